// The narrow storage types but for what multiplies: rows and panels of codes to f32, and rows of f32 to codes.
#ifndef SIMDATTN_LIB_KERNELS_NARROW_ROWS_H_
#define SIMDATTN_LIB_KERNELS_NARROW_ROWS_H_

#include "lib/kernels/narrow_codes.h"
#include "lib/simd/math.h"

namespace simdattn {
namespace {

// ---- To f32 ---------------------------------------------------------------------------------------------------------

/// The numbers of a scale block.
template <class Format>
SIMDATTN_INLINE void widen_block(const uint8_t* block, float* out) {
  const uint8_t* const codes = block + Format::kLayout.scale_bytes;
  constexpr int64_t kCodeBytes = Format::kLayout.code_bytes;
  [[maybe_unused]] uint32_t high = 0;
  if constexpr (Format::kHighBit) std::memcpy(&high, codes - sizeof high, sizeof high);
  const Floats d = block_scale(block), m = block_scale(block + (Format::kMinimum ? kScaleBytes : 0));
  const auto put = [&](int64_t i, Floats number, auto part) SIMDATTN_LAMBDA {
    const Floats product = number * d;
    store(Format::kMinimum ? product + m : product, out + i, part);
  };
  const auto put_codes = [&](int64_t i, Bits32 code, auto part) SIMDATTN_LAMBDA {
    constexpr uint32_t kHigh = 1u << Format::kLowBits;
    code = code & Bits32(kHigh - 1);
    if constexpr (Format::kHighBit) code = code | select(one_bits(high >> i), Bits32(kHigh), Bits32(0u));
    put(i, to_float(cast_bits<int32_t>(code)) - Floats(Format::kZero), part);
  };
  if constexpr (Format::kTable != nullptr) {
    uint8_t numbers[kBlockDims];
    look_up_nibbles(Format::kTable, codes, numbers);
    for (int64_t j = 0; j < kBlockDims; j += kLanes) put(j, to_float(load_integers(numbers + j)), All());
    return;
  }
  const auto lanes = [] {
    if constexpr (kCodeBytes < kLanes) return first_lanes(kCodeBytes);
    else return All();
  }();
  for (int64_t j = 0; j < kCodeBytes; j += kLanes) {
    if constexpr (Format::kBits == 8) {
      put(j, load_numbers(codes + j, lanes, Format()), lanes);
    } else {
      const Bits32 w = load_bytes(codes + j, lanes);
      put_codes(j, w, lanes);
      unroll<8 / Format::kLowBits - 1>(
          [&](auto i) SIMDATTN_LAMBDA { put_codes((i + 1) * kCodeBytes + j, w >> (i + 1) * Format::kLowBits, lanes); });
    }
  }
}

/// The numbers from bit kFirst on of each byte of units, of the last unit n of them, as rows of a panel of f32.
template <int kFirst, class Format>
SIMDATTN_INLINE void put_units(Bits32 units, Floats factor, int64_t n, float* out, Format format) {
  unroll<4>([&](auto i) SIMDATTN_LAMBDA {
    if (i < n) store(number_of<kFirst + 8 * static_cast<int>(i)>(units, format) * factor, out + i * kPanelWidth);
  });
}
/// A panel as numbers [dim][32]. Nibbles: the lower ones of a scale block, then its upper ones.
template <class Format>
SIMDATTN_INLINE void widen_codes(const uint8_t* panel, const float* scales, int64_t dim, float* out, Format format) {
  constexpr CodeLayout kLayout = Format::kLayout;
  constexpr bool kInBlocks = kLayout.scale_bytes > 0;
  const uint8_t* of_block = panel + kLayout.scale_at(dim, 0, 0);
  constexpr int64_t kRows = kBlockDims / kLayout.block_units();  // of f32, from a unit
  for (int64_t d = 0; d < dim; d += kBlockDims, out += kBlockDims * kPanelWidth) {
    const int64_t units = kLayout.units(smaller(kBlockDims, dim - d));
    for (int64_t j = 0; j < kPanelWidth; j += kLanes) {
      const Floats factor = kInBlocks ? load_scales(of_block + kScaleBytes * j) : load(scales + j);
      for (int64_t u = 0; u < units; ++u) {
        const uint8_t* const unit = panel + u * kUnitPitch + kUnitBytes * j;
        float* const y = out + 4 * u * kPanelWidth + j;
        if (j % 16 == 0) fetch_ahead(unit);  // a line
        put_units<0>(load_units(unit), factor, kInBlocks ? 4 : dim - d - 4 * u, y, format);
        if constexpr (kRows == 8) put_units<4>(load_units(unit), factor, 4, y + 16 * kPanelWidth, format);
      }
    }
    panel += units * kUnitPitch;
    of_block += kPanelWidth * kScaleBytes;
  }
}

// ---- From f32 -------------------------------------------------------------------------------------------------------

SIMDATTN_INLINE void encode_row(const float* x, int64_t dim, uint8_t* row, float* scale, Int8Format /*format*/) {
  const IntegerScale s = int8_scale(x, dim);
  *scale = s.scale;
  int8_bytes<float>(x, dim, s.inverse, row);
}
/// d = the largest magnitude / 127.
SIMDATTN_INLINE BlockScale scale_of(uint32_t largest, const float* /*x*/, Q8Format /*format*/) {
  return {std::bit_cast<float>(largest) / 127.0f, largest};
}
SIMDATTN_INLINE void encode_codes(const float* x, const BlockScale& s, uint8_t* codes, Q8Format /*format*/) {
  int8_bytes<float>(x, kBlockDims, s.holds ? s.inverse : 0.0f, codes);
}
/// d = the first number of the largest magnitude / -8.
SIMDATTN_INLINE BlockScale scale_of(uint32_t largest, const float* x, Q4Format /*format*/) {
  float extreme = 0.0f;  // also for zeros of either sign
  for (int64_t i = kBlockDims; i-- > 0 && largest != 0;) {
    if ((std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu) == largest) extreme = x[i];
  }
  return {extreme / -8.0f, largest};
}
SIMDATTN_INLINE void encode_codes(const float* x, const BlockScale& s, uint8_t* codes, Q4Format /*format*/) {
  uint8_t bytes[kBlockDims];
  store_integers<true>(kBlockDims, bytes, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    const Floats y = load(x + i, part) * Floats(s.inverse) + Floats(8.5f);
    const Ints rounded = nearest(y);
    const Bits32 above = select(to_float(rounded) > y, Bits32(1u), Bits32(0u));
    return min(rounded - cast_bits<int32_t>(above), Ints(15));
  });
  if (!s.holds) std::memset(bytes, 8, sizeof bytes);
  for (int64_t i = 0; i < 16; ++i) codes[i] = static_cast<uint8_t>(bytes[i] | bytes[16 + i] << 4);
}
template <class Format>
SIMDATTN_INLINE void encode_row(const float* x, int64_t dim, uint8_t* row, float* /*apart*/, Format format) {
  for (int64_t d = 0; d < dim; d += kBlockDims, x += kBlockDims, row += Format::kLayout.block_bytes()) {
    const BlockScale s = scale_of(largest_magnitude<float>(x, kBlockDims), x, format);
    const f16 scale = from_f32<f16>(s.d);
    std::memcpy(row, &scale, sizeof scale);
    encode_codes(x, s, row + kScaleBytes, format);
  }
}
/// The code of x * (1 / scale), to nearest even, saturated. NaN, also as the product, and infinities keep what they
/// are, as far as there is a code.
template <int kMantissa, int kBias, uint32_t kLargest, uint32_t kNan, uint32_t kOver>
SIMDATTN_INLINE void encode_row(const float* x, int64_t dim, uint8_t* row, float* scale,
                                Fp8Format<kMantissa, kBias, kLargest, kNan, kOver> /*format*/) {
  constexpr int kShift = 23 - kMantissa;
  constexpr uint32_t kExponent = static_cast<uint32_t>(127 - kBias) << 23;  // of f32, for exponent field 0
  // Below the normal numbers a sum whose last bit is worth one code rounds.
  constexpr float kRounder = std::bit_cast<float>(kExponent - ((kMantissa - 1) << 23)) * 0x1p23f;
  const Floats inverse(1.0f / *scale), rounder(kRounder);
  const auto greater_than = [](Bits32 a, uint32_t b) SIMDATTN_LAMBDA {
    return greater(cast_bits<int32_t>(a), Ints(static_cast<int32_t>(b)));
  };
  store_integers<true>(dim, row, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    const Floats v = load(x + i, part), y = v * inverse;
    const Bits32 from = bits_of(abs(v)), bits = bits_of(abs(y));
    const Bits32 sign = (bits_of(y) >> 24) & Bits32(0x80u);
    const Bits32 small = bits_of(abs(y) + rounder) - bits_of(rounder);
    const Bits32 odd = (bits >> kShift) & Bits32(1u);
    const Bits32 normal = ((bits + Bits32((1u << (kShift - 1)) - 1) + odd) >> kShift) - Bits32(kExponent >> kShift);
    const Bits32 rounded = select(greater_than(bits, kExponent + (1u << 23) - 1), normal, small);
    Bits32 result = cast_bits<uint32_t>(min(cast_bits<int32_t>(rounded), Ints(static_cast<int32_t>(kLargest))));
    if constexpr (kOver != kNan) result = select(equal(from, Bits32(kInfinityBits)), Bits32(kOver), result);
    const Mask none = greater_than(from, kInfinityBits - (kOver == kNan ? 1 : 0)) | greater_than(bits, kInfinityBits);
    return cast_bits<int32_t>(select(none, Bits32(kNan), result | sign));
  });
}

// ---- By type --------------------------------------------------------------------------------------------------------

/// Columns [first, first + n) of rows `stride` bytes apart, as rows of f32 `ld` floats apart.
template <KvType kType>
SIMDATTN_SHARED void widen_rows(const uint8_t* rows, int64_t stride, const float* scales, int64_t keys, int64_t first,
                                int64_t n, float* out, int64_t ld) {
  using Format = FormatOf<kType>;
  constexpr int64_t kBlockBytes = Format::kLayout.block_bytes();
  for (int64_t j = 0; j < keys; ++j, out += ld) {
    const uint8_t* const row = rows + j * stride;
    for (int64_t i = 0; i < n; i += 64) fetch_ahead(row + i);
    const uint8_t* const codes = row + Format::kLayout.row_bytes(first);
    if constexpr (has_scales(kType)) {
      const Floats factor(scales[j]);
      for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
        store(load_numbers(codes + i, part, Format()) * factor, out + i, part);
      });
    } else {
      for (int64_t b = 0; b < n / kBlockDims; ++b) widen_block<Format>(codes + b * kBlockBytes, out + b * kBlockDims);
    }
  }
}
/// A row of numbers as codes, of types that are written.
template <KvType kType>
SIMDATTN_SHARED void encode(const float* x, int64_t dim, uint8_t* row, float* scale) {
  if constexpr (!is_read_only(kType)) encode_row(x, dim, row, scale, FormatOf<kType>());
}
/// True if every number is finite where the scale beside the row is.
template <class Format>
bool codes_are_finite(const uint8_t* row, int64_t dim) {
  if constexpr (Format::kFp8) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const uint32_t magnitude = row[i] & 0x7Fu;
      largest = magnitude > largest ? magnitude : largest;
    }
    return largest <= Format::kLargest;
  } else if constexpr (Format::kLayout.scale_bytes > 0) {
    const auto is_number = [](const uint8_t* p) { return (p[1] & 0x7C) != 0x7C; };
    for (; dim > 0; dim -= kBlockDims, row += Format::kLayout.block_bytes()) {
      if (!is_number(row) || (Format::kMinimum && !is_number(row + kScaleBytes))) return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_NARROW_ROWS_H_
