// Keys and values that are stored as integers, as operands of Arithmetic::kInt8: no number is rounded again.
#ifndef SIMDATTN_LIB_KERNELS_INT8_AS_STORED_H_
#define SIMDATTN_LIB_KERNELS_INT8_AS_STORED_H_

#include "lib/contract/int8_operands.h"
#include "lib/contract/kv_formats.h"
#include "lib/kernels/narrow_slots.h"
#include "lib/kernels/panel_columns.h"

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
  using Bytes [[gnu::vector_size(16)]] = uint8_t;
  static Bytes low(Bytes x, Bytes y) {
    return __builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  }
  static Bytes high(Bytes x, Bytes y) {
    return __builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  }
  /// 16 columns of four rows, column by column.
  static void interleave(const char* rows, int64_t stride, char* out) {
    Bytes r0, r1, r2, r3;
    std::memcpy(&r0, rows, sizeof r0);
    std::memcpy(&r1, rows + stride, sizeof r1);
    std::memcpy(&r2, rows + 2 * stride, sizeof r2);
    std::memcpy(&r3, rows + 3 * stride, sizeof r3);
    // Stored one by one, because gcc would copy an array of them from the stack.
    const auto put = [out](Bytes x, int64_t at) { std::memcpy(out + at, &x, sizeof x); };
    const Bytes even0 = low(r0, r2), odd0 = low(r1, r3), even1 = high(r0, r2), odd1 = high(r1, r3);
    put(low(even0, odd0), 0);
    put(high(even0, odd0), 16);
    put(low(even1, odd1), 32);
    put(high(even1, odd1), 48);
  }
};

/// Keys in scale blocks: the integers of a panel as int8_operands.h has them, then f32 scales [dim/32][32].
template <KvType kType>
struct BlockIntegers {
  static constexpr CodeLayout kLayout = kLayoutOf<kType>;
  static constexpr int64_t kWords = kLayout.block_units() * kPanelWidth;
  static_assert(FormatOf<kType>::kBits == 8 || FormatOf<kType>::kBits == 4);

  static int64_t panel_bytes(int64_t dim) { return int8_panel_numbers(dim) + dim / kBlockDims * kPanelWidth * 4; }
  /// From rows, or from a panel of the type.
  template <bool kFromRows>
  static void pack(const PackKeys& a) {
    const uint8_t* const from = static_cast<const uint8_t*>(a.from);
    uint8_t* out = static_cast<uint8_t*>(a.panel);
    float* scales = scales_behind(out, int8_panel_numbers(a.dim));
    for (int64_t b = 0; b < a.dim / kBlockDims; ++b, scales += kPanelWidth) {
      alignas(64) uint32_t units[kWords] = {};
      const uint8_t* const rows = from + b * kLayout.block_bytes();
      if (kFromRows) {
        transpose_units<uint32_t>(reinterpret_cast<const char*>(rows + kScaleBytes), a.token_stride, a.keys,
                                  kLayout.block_units(), reinterpret_cast<char*>(units), kUnitPitch);
      } else {
        std::memcpy(units, from + b * static_cast<int64_t>(sizeof units), sizeof units);
      }
      for (int64_t j = 0; j < kPanelWidth; ++j) {
        const uint8_t* const scale = kFromRows ? rows + j * a.token_stride : from + kLayout.scale_at(a.dim, b, j);
        f16 d = {};
        if (!kFromRows || j < a.keys) std::memcpy(&d, scale, sizeof d);
        scales[j] = to_f32(d);
      }
      for (int shift = 0; shift < 8; shift += FormatOf<kType>::kBits, out += sizeof units) integers(units, shift, out);
    }
  }

 private:
  /// Bytes, or nibbles from bit `shift` of each byte on less 8.
  static void integers(const uint32_t* units, int shift, uint8_t* out) {
    uint32_t words[kWords];
    for (int64_t i = 0; i < kWords; ++i) {
      // No byte borrows from the next, whose highest bit is turned over before and after.
      const uint32_t nibbles = (((units[i] >> shift & 0x0F0F0F0Fu) | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
      words[i] = FormatOf<kType>::kBits == 8 ? units[i] : nibbles;
    }
    std::memcpy(out, words, sizeof words);
  }
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_INT8_AS_STORED_H_
