// The narrow storage types in the table of a backend: what multiplies them, and the slots of lib/kv_formats.h.
#ifndef SIMDATTN_LIB_NARROW_OPERANDS_H_
#define SIMDATTN_LIB_NARROW_OPERANDS_H_

#include "lib/int8_operands.h"
#include "lib/kv_formats.h"
#include "lib/panel_columns.h"

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

/// Keys and values stored as int8 for Arithmetic::kInt8: integers and scales as they are.
struct Int8AsStored {
  static float* scales_of(void* panel, int64_t numbers) {
    return reinterpret_cast<float*>(static_cast<char*>(panel) + numbers);
  }
  static void panel(const PackKeys& a) {
    const int64_t numbers = int8_panel_numbers(a.dim);
    std::memcpy(a.panel, a.from, static_cast<size_t>(numbers));
    std::memcpy(scales_of(a.panel, numbers), a.scales, kPanelWidth * sizeof(float));
  }
  static void keys(const PackKeys& a) {
    constexpr int64_t kPitch = kPanelWidth * 4;
    const char* const rows = static_cast<const char*>(a.from);
    char* const out = static_cast<char*>(a.panel);
    const int64_t numbers = int8_panel_numbers(a.dim);
    float* const scales = scales_of(a.panel, numbers);
    if (a.keys < kPanelWidth) std::memset(out, 0, static_cast<size_t>(int8_panel_bytes(a.dim)));
    const int64_t units = a.dim / 4;
    transpose_units<uint32_t>(rows, a.token_stride, a.keys, units, out, kPitch);
    for (int64_t j = 0; j < a.keys; ++j) {
      scales[j] = a.scales[j];
      if (a.dim % 4 == 0) continue;
      char unit[4] = {};
      std::memcpy(unit, rows + j * a.token_stride + 4 * units, static_cast<size_t>(a.dim % 4));
      std::memcpy(out + units * kPitch + 4 * j, unit, 4);
    }
  }
  static void values(const PackValues& a) {
    char* const block = static_cast<char*>(a.block);
    float* const scales = scales_of(block, int8_values_numbers(a.columns));
    for (int64_t j = a.first; j < a.first + a.keys; ++j) {
      const char* const row = static_cast<const char*>(a.rows) + (j - a.first) * a.token_stride + a.column;
      scales[j] = a.scales[j - a.first];
      for (int64_t c = 0; c < int8_values_numbers(a.columns) / kKeyBlock; c += kValueGroup) {
        char* const group = block + c * kKeyBlock + j / 4 * kValueGroup * 4 + j % 4;
        for (int64_t i = 0; i < kValueGroup; ++i) group[i * 4] = c + i < a.columns ? row[c + i] : char{0};
      }
    }
  }
};

/// Keys in blocks with scales of their own for Arithmetic::kInt8: the integers of a panel as int8_operands.h has them, then f32
/// scales [dim/32][32].
template <KvType kType>
struct BlockIntegers {
  using Format = FormatOf<kType>;
  static constexpr int64_t kBlock = Format::kBlock;

  static int64_t panel_bytes(int64_t dim) { return int8_panel_numbers(dim) + dim / kBlock * kPanelWidth * 4; }
  static void put(const int8_t* integers, int64_t block, int64_t column, int8_t* panel) {
    for (int64_t i = 0; i < kBlock; ++i)
      panel[((block * kBlock + i) / 4 * kPanelWidth + column) * 4 + i % 4] = integers[i];
  }
  static void keys(const PackKeys& a) {
    int8_t* const panel = static_cast<int8_t*>(a.panel);
    float* const scales = reinterpret_cast<float*>(panel + int8_panel_numbers(a.dim));
    std::memset(panel, 0, static_cast<size_t>(panel_bytes(a.dim)));
    for (int64_t j = 0; j < a.keys; ++j) {
      const uint8_t* row = static_cast<const uint8_t*>(a.from) + j * a.token_stride;
      for (int64_t b = 0; b < a.dim / kBlock; ++b, row += Format::kBlockBytes) {
        int8_t integers[kBlock];
        Format::Code::integers(row + Format::kScaleBytes, integers);
        put(integers, b, j, panel);
        scales[b * kPanelWidth + j] = f16_at(row);
      }
    }
  }
  static void panel(const PackKeys& a) {
    const uint8_t* const from = static_cast<const uint8_t*>(a.from);
    int8_t* const panel = static_cast<int8_t*>(a.panel);
    float* const scales = reinterpret_cast<float*>(panel + int8_panel_numbers(a.dim));
    for (int64_t b = 0; b < a.dim / kBlock; ++b) {
      Format::panel_scales(from, a.dim, b, scales + b * kPanelWidth);
      for (int64_t j = 0; j < kPanelWidth; ++j) {
        uint8_t codes[Format::Code::kBytes];
        for (int64_t u = 0; u < Format::kUnits; ++u) {
          std::memcpy(codes + u * kUnitBytes, from + ((b * Format::kUnits + u) * kPanelWidth + j) * kUnitBytes,
                      kUnitBytes);
        }
        int8_t integers[kBlock];
        Format::Code::integers(codes, integers);
        put(integers, b, j, panel);
      }
    }
  }
  /// acc = fma(float(dot of a block), its scale, acc), ascending; then times the scales of query and problem.
  static void score(const ScoreTile& a) {
    for (int64_t r = 0; r < a.rows; ++r) {
      const auto* q = reinterpret_cast<const int8_t*>(static_cast<const char*>(a.q) + r * a.q_stride);
      Int8Query info;
      std::memcpy(&info, q + int8_query_numbers(a.dim), sizeof(info));
      for (int64_t c = 0; c < a.n_panels * kPanelWidth; ++c) {
        const char* const bytes = static_cast<const char*>(a.panels) + c / kPanelWidth * a.panel_stride;
        const auto* const panel = reinterpret_cast<const int8_t*>(bytes);
        const float* const scales = reinterpret_cast<const float*>(panel + int8_panel_numbers(a.dim));
        const int64_t j = c % kPanelWidth;
        float acc = 0.0f;
        for (int64_t b = 0; b < a.dim / kBlock; ++b) {
          int32_t sum = 0;
          for (int64_t d = b * kBlock; d < (b + 1) * kBlock; ++d)
            sum += q[d] * panel[(d / 4 * kPanelWidth + j) * 4 + d % 4];
          acc = __builtin_fmaf(static_cast<float>(sum), scales[b * kPanelWidth + j], acc);
        }
        a.s[r * a.lds + c] = acc * (info.scale * a.scale);
      }
    }
  }
  static constexpr void add(KvOperands& operands) {
    operands.panel_bytes = panel_bytes;
    operands.score_packed = score;
    operands.pack_keys = keys;
    operands.pack_panel = panel;
  }
};

/// N<type>: the slots of a type, as NarrowSlots has them with value_tile for f32.
template <template <KvType> class N, KvType kType>
constexpr void add_narrow_type(UKernels& t) {
  using Slots = N<kType>;
  constexpr size_t kIndex = static_cast<size_t>(kType);
  t.kv[kIndex] = {.all_finite = Slots::all_finite,
                  .store_rows = Slots::store_rows,
                  .store_panels = Slots::store_panels,
                  .load_rows = Slots::load_rows,
                  .load_panels = Slots::load_panels,
                  .rotate_columns = nullptr};
  const AttentionKernels& f32 = t.attention[static_cast<size_t>(Arithmetic::kF32)];
  KvOperands& as_f32 = t.attention[static_cast<size_t>(Arithmetic::kF32)].kv[kIndex];
  as_f32.panel_bytes = f32.kv[0].panel_bytes;
  as_f32.score_packed = f32.kv[0].score_packed;
  as_f32.pack_panel = Slots::widen_panel;
  as_f32.value_tile = Slots::value_tile;
}

/// The types that kInt8 takes as they are stored.
constexpr void add_stored_integers(AttentionKernels& int8) {
  KvOperands& integers = int8.kv[static_cast<size_t>(KvType::kInt8)];
  integers.pack_keys = Int8AsStored::keys;
  integers.pack_panel = Int8AsStored::panel;
  integers.pack_values = Int8AsStored::values;
  BlockIntegers<KvType::kQ8_0>::add(int8.kv[static_cast<size_t>(KvType::kQ8_0)]);
  BlockIntegers<KvType::kQ4_0>::add(int8.kv[static_cast<size_t>(KvType::kQ4_0)]);
}

template <template <KvType> class N, KvType... kTypes>
constexpr UKernels with_types(UKernels t) {
  (add_narrow_type<N, kTypes>(t), ...);
  add_stored_integers(t.attention[static_cast<size_t>(Arithmetic::kInt8)]);
  return t;
}
/// The table with all narrow types.
template <template <KvType> class N>
constexpr UKernels with_narrow_types(const UKernels& t) {
  return with_types<N, KvType::kInt8, KvType::kFp8E4M3, KvType::kFp8E5M2, KvType::kQ8_0, KvType::kQ4_0>(t);
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_NARROW_OPERANDS_H_
