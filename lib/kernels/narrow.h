// The kernels of a narrow storage type, by the names that lib/contract/table_of_kernels.h asks for; and how stored
// integers become operands of Arithmetic::kInt8, no number of which is rounded again.
#pragma once

#include "lib/kernels/bf16_chains.h"
#include "lib/kernels/narrow_rows.h"
#include "lib/kernels/narrow_values.h"

namespace simdattn {
namespace {

/// The scales behind the integers of a panel or of packed values.
inline float* scales_behind(void* integers, int64_t bytes) {
  return reinterpret_cast<float*>(static_cast<char*>(integers) + bytes);
}

/// Of int8: integers and scales as they are.
struct Int8AsStored {
  static void panel(const PackKeys& a) {
    const int64_t numbers = int8_panel_numbers(a.dim);
    std::memcpy(a.panel, a.from, static_cast<size_t>(numbers));
    std::memcpy(scales_behind(a.panel, numbers), a.scales, kPanelWidth * sizeof(float));
  }
  static void keys(const PackKeys& a) {
    NarrowRows<KvType::kInt8>::store_panel(a);
    float* const scales = scales_behind(a.panel, int8_panel_numbers(a.dim));
    for (int64_t j = 0; j < kPanelWidth; ++j) scales[j] = j < a.keys ? a.scales[j] : 0.0f;
  }
  /// The sign of a scale moves into the integers, because weights times scales are multiplied as unsigned bytes.
  static void values(const PackValues& a) {
    float* const scales = scales_behind(a.packed, int8_values_numbers(a.columns)) + a.first;
    bool negative = false;
    for (int64_t j = 0; j < a.keys; ++j) {
      negative = negative || std::signbit(a.scales[j]);
      scales[j] = std::fabs(a.scales[j]);
    }
    for (int64_t c = 0; c < a.columns; c += kValueGroup) {
      char* const group = static_cast<char*>(a.packed) + c * kKeyBlock;
      for (int64_t j = 0; j < a.keys;) {
        const char* const row = static_cast<const char*>(a.rows) + j * a.token_stride + a.column + c;
        const int64_t key = a.first + j;
        char* const out = group + key / 4 * kValueGroup * 4 + key % 4;
        if (!negative && key % 4 == 0 && j + 4 <= a.keys && c + kValueGroup <= a.columns) {
          interleave(row, a.token_stride, out);
          interleave(row + 16, a.token_stride, out + 64);
          j += 4;
          continue;
        }
        for (int64_t i = 0; i < kValueGroup; ++i) {
          const int x = c + i < a.columns ? static_cast<int8_t>(row[i]) : 0;
          out[i * 4] = static_cast<char>(!std::signbit(a.scales[j]) ? x : x == -128 ? 127 : -x);
        }
        ++j;
      }
    }
  }

 private:
  /// 16 columns of four rows, column by column.
  static void interleave(const char* rows, int64_t stride, char* out) {
    const auto row = [=](int64_t i) { return Block::load_unaligned(rows + i * stride); };
    interleave_four<uint8_t, uint16_t>(row(0), row(1), row(2), row(3),
                                       [out](int64_t i, Block v) { v.store_unaligned(out + 16 * i); });
  }
};

/// Keys in scale blocks: the integers of a panel as int8_operands.h has them, then f32 scales [dim/32][32].
template <KvType kType>
struct BlockIntegers {
  static constexpr CodeLayout kLayout = kLayoutOf<kType>;
  static_assert(FormatOf<kType>::kBits == 8 || FormatOf<kType>::kBits == 4);

  static constexpr int64_t panel_bytes(int64_t dim) {
    return int8_panel_numbers(dim) + dim / kBlockDims * kPanelWidth * 4;
  }
  /// From rows, or from a panel of the type.
  template <bool kFromRows>
  static void pack(const PackKeys& a) {
    const uint8_t* const from = static_cast<const uint8_t*>(a.from);
    uint8_t* out = static_cast<uint8_t*>(a.panel);
    float* scales = scales_behind(out, int8_panel_numbers(a.dim));
    for (int64_t b = 0; b < a.dim / kBlockDims; ++b, scales += kPanelWidth) {
      alignas(64) uint8_t copy[kLayout.panel_bytes(kBlockDims)];
      const uint8_t *units = from + b * kLayout.block_units() * kUnitPitch, *d = from + kLayout.scale_at(a.dim, b, 0);
      if (kFromRows) {
        transpose_codes<kType>(from + b * kLayout.block_bytes(), a.token_stride, a.keys, kBlockDims, copy, false);
        units = copy, d = copy + kLayout.scale_at(kBlockDims, 0, 0);
      }
      for (int64_t j = 0; j < kPanelWidth; j += kLanes) store(load_scales(d + j * kScaleBytes), scales + j);
      for (int shift = 0; shift < 8; shift += FormatOf<kType>::kBits, out += sizeof(Words)) integers(units, shift, out);
    }
  }

 private:
  using Words = uint32_t[kLayout.block_units() * kPanelWidth];
  /// Bytes, or nibbles from bit `shift` of each byte on less 8.
  static void integers(const uint8_t* units, int shift, uint8_t* out) {
    Words words;
    std::memcpy(words, units, sizeof words);
    for (uint32_t& w : words) {
      // No byte borrows from the next, whose highest bit is turned over before and after.
      const uint32_t nibbles = (((w >> shift & 0x0F0F0F0Fu) | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
      w = FormatOf<kType>::kBits == 8 ? w : nibbles;
    }
    std::memcpy(out, words, sizeof words);
  }
};

template <KvType kType>
struct Narrow : NarrowRows<kType> {
  using Rows = NarrowRows<kType>;

  static void value_tile(const ValueTile& a) {
    if constexpr (kFusedRows > 0 && has_panels(kType)) {
      if (a.rows <= kFusedRows && add_code_values<kType>(a)) return;
    }
    narrow_value_tile(a, Rows::kRow, simdattn::value_tile<float>);
  }
  static void value_tile_bf16(const ValueTile& a) {
    narrow_value_tile(a, Rows::kRow, Bf16Kernels::value_tile, Bf16Kernels::round);
  }
  static void pack_panel_bf16(const PackKeys& a) {
    Rows::widen_panel(a);
    float* const panel = static_cast<float*>(a.panel);
    Bf16Kernels::round(panel, panel, a.dim * kPanelWidth);
  }
  static constexpr void set_operands(KvOperands& f32, KvOperands& bf16, KvOperands& int8) {
    bf16.value_tile = value_tile_bf16;
    if constexpr (has_panels(kType)) {
      f32.pack_keys = Rows::pack_keys;
      f32.pack_panel = Rows::widen_panel;
      bf16.pack_panel = pack_panel_bf16;
      if constexpr (kFusedRows > 0) {
        f32.score_tile = score_codes<kType>;
        f32.score_rows = score_code_rows<kType>;
        f32.store_panel = Rows::store_panel;
        f32.direct_key_rows = kFusedRows;
      }
    }
    if constexpr (kType == KvType::kInt8) {
      int8.store_panel = Rows::store_panel;
      int8.pack_keys = Int8AsStored::keys;
      int8.pack_panel = Int8AsStored::panel;
      int8.pack_values = Int8AsStored::values;
    } else if constexpr (has_panels(kType) && block_of(kType) > 1) {
      int8.panel_bytes = BlockIntegers<kType>::panel_bytes;
      int8.pack_keys = BlockIntegers<kType>::template pack<true>;
      int8.pack_panel = BlockIntegers<kType>::template pack<false>;
    }
  }
};

}  // namespace
}  // namespace simdattn
