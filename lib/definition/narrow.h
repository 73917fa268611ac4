// The narrow storage types: the number of each code, the codes of a row, where a panel has them, and what kInt8
// multiplies. One number and one byte at a time. Kernels have a text of their own for all of it (lib/kernels/narrow.h),
// so that tests can find a mistake in either.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>

#include "lib/contract/kv_formats.h"
#include "lib/definition/attention.h"
#include "lib/definition/math.h"

namespace simdattn {
namespace {

float f16_of(const uint8_t* p) { return to_f32(f16{static_cast<uint16_t>(p[0] | p[1] << 8)}); }

/// Floating point of 8 bits: a sign, an exponent e for 2^(e - kBias), a mantissa. Numbers with e = 0 are subnormal.
template <class Format>
struct Fp8 {
  static float number(uint32_t code) {
    constexpr uint32_t kOne = 1u << Format::kMantissa;
    const uint32_t magnitude = code & 0x7Fu, exponent = magnitude / kOne;
    const int32_t places = static_cast<int32_t>(exponent == 0 ? magnitude : magnitude % kOne + kOne);
    const int32_t power = static_cast<int32_t>(exponent == 0 ? 1 : exponent) - Format::kBias - Format::kMantissa;
    const float x = magnitude <= Format::kLargest
                        ? static_cast<float>(places) * scalar::pow2i(static_cast<float>(power))
                        : std::bit_cast<float>(kInfinityBits | magnitude << (23 - Format::kMantissa));
    return code < 0x80u ? x : -x;
  }
  /// The code of y = x * (1 / scale): that of the nearest number, of two the even one, saturated. NaN, and infinities
  /// of x, keep what they are, as far as there is a code.
  static uint32_t code(float x, float y) {
    const bool infinite = std::fabs(x) == std::bit_cast<float>(kInfinityBits);
    if (is_nan(y) || (infinite && Format::kOver == Format::kNan)) return Format::kNan;
    const float size = std::fabs(y);
    uint32_t below = 0;  // the last one whose number is not above `size`
    for (uint32_t step = 64; step > 0; step /= 2) {
      if (below + step <= Format::kLargest && number(below + step) <= size) below += step;
    }
    if (below < Format::kLargest) {
      const float middle = (number(below) + number(below + 1)) / 2.0f;
      if (size > middle || (size == middle && below % 2 != 0)) ++below;
    }
    return (infinite ? Format::kOver : below) | (std::signbit(y) ? 0x80u : 0u);
  }
};

template <KvType kType>
struct Narrow {
  using Format = FormatOf<kType>;
  static constexpr detail::KvFormat kRow = detail::kv_format(kType);
  static constexpr bool kApart = kRow.scales_apart;
  static constexpr int64_t kBlockBytes = row_bytes(kType, kBlockDims);      // of 32 numbers
  static constexpr int64_t kScalesBytes = kScaleBytes * kRow.block_scales;  // that they begin with

  // ---- Codes and numbers --------------------------------------------------------------------------------------------

  static const uint8_t* block_with(const uint8_t* row, int64_t i) { return row + i / kBlockDims * kBlockBytes; }
  static float scale_of(const uint8_t* row, int64_t i, float apart) {
    return kApart ? apart : f16_of(block_with(row, i));
  }
  static float scale_of_row(const float* scales, int64_t j) { return kApart ? scales[j] : 1.0f; }
  /// Number i of a row without its scale. Codes have 2, 4 or 8 bits, of which the lowest ones of all bytes come first,
  /// or one bit more, in a word before those bytes.
  static int integer(const uint8_t* row, int64_t i) {
    constexpr int kBits = kRow.bits < 4 ? 2 : kRow.bits < 8 ? 4 : 8;
    constexpr int64_t kBytes = kBlockDims * kBits / 8;
    const uint8_t* const block = block_with(row, i);
    const uint8_t* const codes = block + kBlockBytes - kBytes;
    const int64_t at = i % kBlockDims;
    if (kBits == 8) return static_cast<int8_t>(codes[at]);
    int code = codes[at % kBytes] >> at / kBytes * kBits & ((1 << kBits) - 1);
    if (kRow.bits > kBits) code += (block[kScalesBytes + at / 8] >> at % 8 & 1) << kBits;
    return Format::kTable != nullptr ? Format::kTable[code] : code - kRow.zero;
  }
  static float number(const uint8_t* row, int64_t i, float apart) {
    if constexpr (Format::kFp8) return Fp8<Format>::number(row[i]) * apart;
    const float product = static_cast<float>(integer(row, i)) * scale_of(row, i, apart);
    return kRow.block_scales == 2 ? product + f16_of(block_with(row, i) + kScaleBytes) : product;
  }

  /// int8 chooses the scale, fp8 divides by it.
  static void encode(const float* x, int64_t dim, uint8_t* row, float* scale) {
    if constexpr (Format::kFp8) {
      const float inverse = 1.0f / *scale;
      for (int64_t i = 0; i < dim; ++i) row[i] = static_cast<uint8_t>(Fp8<Format>::code(x[i], x[i] * inverse));
    } else if constexpr (kApart) {
      const Integers integers(x, dim, 127.0f);
      *scale = integers.scale;
      for (int64_t i = 0; i < dim; ++i) row[i] = static_cast<uint8_t>(integers(x[i]));
    } else if constexpr (kRow.written) {
      for (int64_t i = 0; i < dim; i += kBlockDims, row += kBlockBytes) encode_block(x + i, row);
    }
  }
  /// q8_0: d = the largest magnitude / 127, q = round(x * (1 / d)).
  /// q4_0: d = the first number of the largest magnitude / -8, q = min(15, trunc(x * (1 / d) + 8.5)).
  static void encode_block(const float* x, uint8_t* block) {
    static_assert(kRow.bits == 8 || kRow.bits == 4);
    const uint32_t largest = largest_bits(x, kBlockDims);
    float extreme = 0.0f;  // also for zeros of either sign
    for (int64_t i = 0; i < kBlockDims && extreme == 0.0f; ++i) {
      if (largest_bits(x + i, 1) == largest) extreme = x[i] + 0.0f;
    }
    const BlockScale s(kRow.bits == 8 ? std::fabs(extreme) / 127.0f : extreme / -8.0f, largest);
    const uint16_t d = from_f32<f16>(s.d).bits;
    std::memcpy(block, &d, sizeof d);
    for (int64_t i = 0; i < kBlockDims; ++i) {
      int32_t code = s.holds ? round_to_integer(x[i] * s.inverse) : 0;
      if (kRow.bits == 4) code = s.holds ? static_cast<int32_t>(x[i] * s.inverse + 8.5f) : 8;
      if (kRow.bits == 4 && code > 15) code = 15;
      uint8_t& byte = block[kScaleBytes + i % (kBlockDims * kRow.bits / 8)];
      byte = static_cast<uint8_t>(kRow.bits == 4 && i >= 16 ? byte | code << 4 : code);
    }
  }

  static bool all_finite(const FiniteRows& a) {
    for (int64_t j = 0; j < a.keys; ++j) {
      if constexpr (kApart) {
        if (!(std::fabs(a.scales[j]) < Format::kLargeScale)) return false;
      }
      for (int64_t i = 0; i < a.dim; ++i) {
        if (!is_finite(number(at<uint8_t>(a.rows, j * a.token_stride), i, 1.0f))) return false;
      }
    }
    return true;
  }

  // ---- Rows and panels ----------------------------------------------------------------------------------------------

  using Row = uint8_t[row_bytes(kType, kMaxNarrowDim)];

  /// Where a panel has byte i of the row in column `column`: codes in units of four bytes, then scales.
  static int64_t panel_index(int64_t dim, int64_t i, int64_t column) {
    const int64_t codes = kBlockBytes - kScalesBytes;  // of a block
    const int64_t block = i / kBlockBytes, in_block = i % kBlockBytes;
    if (in_block < kScalesBytes) {
      const int64_t units = (dim * codes / kBlockDims + 3) / 4;
      return units * 4 * kPanelWidth + (block * kPanelWidth + column) * kScaleBytes + in_block;
    }
    const int64_t code = block * codes + in_block - kScalesBytes;
    return (code / 4 * kPanelWidth + column) * 4 + code % 4;
  }
  /// Byte i of token t.
  template <bool kPanels, class A, class Store>
  static auto& byte(const A& a, Store* store, int64_t t, int64_t i) {
    if (!kPanels) return at<uint8_t>(store, t * a.stride)[i];
    const int64_t j = a.column + t;
    return at<uint8_t>(store, j / kPanelWidth * a.stride)[panel_index(a.dim, i, j % kPanelWidth)];
  }

  template <bool kPanels>
  static void store(const StoreRows& a) {
    const int64_t bytes = row_bytes(kType, a.dim);
    for (int64_t t = 0; t < a.tokens; ++t) {
      Row row;
      if (a.as_stored) std::memcpy(row, at<char>(a.rows, t * a.ld), static_cast<size_t>(bytes));
      else encode(at<float>(a.rows, t * a.ld), a.dim, row, kApart ? a.scales + t : nullptr);
      for (int64_t i = 0; i < bytes; ++i) byte<kPanels>(a, a.out, t, i) = row[i];
      // What is left of a last unit of bytes.
      for (int64_t i = bytes; kPanels && kApart && i % 4 != 0; ++i) byte<kPanels>(a, a.out, t, i) = 0;
    }
  }
  template <bool kPanels>
  static void load(const LoadRows& a) {
    const int64_t bytes = row_bytes(kType, a.dim);
    for (int64_t t = 0; t < a.tokens; ++t) {
      Row row;
      for (int64_t i = 0; i < bytes; ++i) row[i] = byte<kPanels>(a, a.in, t, i);
      if (a.as_stored) std::memcpy(at<char>(a.rows, t * a.ld), row, static_cast<size_t>(bytes));
      for (int64_t i = 0; !a.as_stored && i < a.dim; ++i) {
        at<float>(a.rows, t * a.ld)[i] = number(row, i, scale_of_row(a.scales, t));
      }
    }
  }
  static constexpr auto store_rows = store<false>;
  static constexpr auto store_panels = store<true>;
  static constexpr auto load_rows = load<false>;
  static constexpr auto load_panels = load<true>;

  // ---- What multiplies ----------------------------------------------------------------------------------------------

  static void value_tile(const ValueTile& a) {
    add_values<F32Arithmetic>(a, [&a](int64_t j, int64_t c) {
      return number(at<uint8_t>(a.v, j * a.key_stride), c, scale_of_row(a.scales, j));
    });
  }

  // kInt8 multiplies the integers of int8, q8_0 and q4_0 as they are: nothing is rounded again.

  static int64_t int8_panel(int64_t dim) {
    return int8_panel_numbers(dim) + (kApart ? 1 : dim / kBlockDims) * kPanelWidth * 4;
  }
  /// From rows, or from a panel of the type.
  template <bool kPanel>
  static void pack_keys(const PackKeys& a) {
    std::memset(a.panel, 0, static_cast<size_t>(int8_panel(a.dim)));
    for (int64_t j = 0; j < (kPanel ? kPanelWidth : a.keys); ++j) {
      Row row;
      const void* const from = kPanel ? a.from : at<char>(a.from, j * a.token_stride);
      load<kPanel>({.in = from, .column = j, .tokens = 1, .dim = a.dim, .rows = row, .as_stored = true});
      for (int64_t i = 0; i < a.dim; ++i) {
        at<int8_t>(a.panel, Int8Integers::cell(i, j))[0] = static_cast<int8_t>(integer(row, i));
      }
      for (int64_t i = 0; i < (kApart ? 1 : a.dim); i += kBlockDims) {
        at<float>(a.panel, int8_panel_numbers(a.dim))[i / kBlockDims * kPanelWidth + j] =
            scale_of(row, i, scale_of_row(a.scales, j));
      }
    }
  }
  /// The sign of a scale moves into the integers, because weights times scales are multiplied as unsigned bytes. The
  /// opposite of -128 is 127.
  static void pack_values(const PackValues& a) {
    const int64_t numbers = int8_values_numbers(a.columns);
    for (int64_t j = 0; j < a.keys; ++j) {
      at<float>(a.packed, numbers)[a.first + j] = std::fabs(a.scales[j]);
      for (int64_t c = 0; c < numbers / kKeyBlock; ++c) {
        const int x = c < a.columns ? integer(at<uint8_t>(a.rows, j * a.token_stride), a.column + c) : 0;
        at<int8_t>(a.packed, Int8Integers::value_cell(a.first + j, c))[0] =
            static_cast<int8_t>(!std::signbit(a.scales[j]) ? x
                                : x == -128                ? 127
                                                           : -x);
      }
    }
  }
  static constexpr void set_operands(KvOperands& /*f32*/, KvOperands& /*bf16*/, KvOperands& int8) {
    if constexpr (kRow.in_panel > 0 && !Format::kFp8) {
      int8.panel_bytes = int8_panel;
      int8.pack_keys = pack_keys<false>;
      int8.pack_panel = pack_keys<true>;
      if constexpr (kApart) int8.pack_values = pack_values;
    }
  }
};

}  // namespace
}  // namespace simdattn
