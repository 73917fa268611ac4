// How the narrow storage types hold numbers: codes of a row, and their places in a panel. Shared by the backends.
//
// A row is bytes of codes; some types have scales among them, others one scale beside each row. A panel holds the codes
// of 32 rows in units of four bytes, [unit][32][4]. Every number is a product of a code and a scale, rounded once, so
// each target gives the same bits. Loops are plain, for compilers to make vectors of; always inlined, they have the
// instruction set of their caller.
#ifndef SIMDATTN_LIB_CONTRACT_KV_FORMATS_H_
#define SIMDATTN_LIB_CONTRACT_KV_FORMATS_H_

#include <bit>
#include <cstdint>
#include <cstring>

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

#define SIMDATTN_FORMAT_INLINE inline __attribute__((always_inline))

inline constexpr int64_t kUnitBytes = 4;
inline constexpr int64_t kUnitPitch = kUnitBytes * kPanelWidth;
inline constexpr int64_t kBlockDims = detail::KvFormat::kBlock;
inline constexpr int64_t kScaleBytes = 2;  // f16
inline constexpr uint32_t kInfinityBits = 0x7F800000u;
inline constexpr float kNaN = std::bit_cast<float>(kCanonicalNaN);

/// The largest magnitude of n numbers, as bits; infinity's or more if one of them is NaN or infinite.
template <class T>
SIMDATTN_FORMAT_INLINE uint32_t largest_bits(const T* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(to_f32(x[i])) & 0x7FFFFFFFu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}
/// Nearest even; |x| < 2^21.
SIMDATTN_FORMAT_INLINE int32_t round_to_integer(float x) {
  return static_cast<int32_t>(std::bit_cast<uint32_t>(x + 0x1.8p23f) - 0x4B400000u);
}

/// Numbers as integers and their scale: x = scale * integer, nearly. The largest magnitude, whose bits are `largest`,
/// becomes `most`. Where most / largest is not finite integers and scale are 0; with NaN or infinity among the numbers
/// the scale is NaN.
struct IntegerScale {
  float scale;
  float inverse;  // 0: all integers are 0

  SIMDATTN_FORMAT_INLINE IntegerScale(uint32_t largest, float most)
      : scale(std::bit_cast<float>(largest) / most), inverse(most / std::bit_cast<float>(largest)) {
    if (largest < kInfinityBits && is_finite(inverse)) return;
    scale = largest < kInfinityBits ? 0.0f : kNaN;
    inverse = 0.0f;
  }
  SIMDATTN_FORMAT_INLINE int32_t operator()(float x) const {
    return inverse == 0.0f ? 0 : round_to_integer(x * inverse);
  }
};

/// Where the codes of a type lie, in rows and in panels. A scale block is 32 numbers; types without scales in front of
/// codes are cut into as many, so that one loop serves all types.
struct CodeLayout {
  int64_t scale_bytes;  // what a scale block begins with; 0: a scale stands beside each row
  int64_t code_bytes;   // of a scale block

  constexpr int64_t block_bytes() const { return scale_bytes + code_bytes; }
  constexpr int64_t block_units() const { return code_bytes / kUnitBytes; }
  constexpr int64_t row_bytes(int64_t dim) const { return dim * block_bytes() / kBlockDims; }
  constexpr int64_t units(int64_t dim) const { return (dim * block_units() + kBlockDims - 1) / kBlockDims; }
  constexpr int64_t scale_at(int64_t dim, int64_t block, int64_t column) const {
    return units(dim) * kUnitPitch + (block * kPanelWidth + column) * kScaleBytes;
  }
  constexpr int64_t panel_bytes(int64_t dim) const { return scale_at(dim, scale_bytes == 0 ? 0 : dim / kBlockDims, 0); }
};

// ---- Codes of one byte, scales beside the rows ----------------------------------------------------------------------

struct ByteFormat {
  static constexpr bool kFp8 = false;  // else integers
  static constexpr int kBits = 8;
  static constexpr CodeLayout kLayout = {0, kBlockDims};
};

/// Integers. The largest magnitude of a row is 127 scales.
struct Int8Format : ByteFormat {
  static SIMDATTN_FORMAT_INLINE float number(uint32_t code) { return static_cast<float>(static_cast<int8_t>(code)); }
  /// A scale with which every product is finite.
  static SIMDATTN_FORMAT_INLINE bool finite(const uint8_t* /*row*/, int64_t /*dim*/, float scale) {
    return (std::bit_cast<uint32_t>(scale) & 0x7FFFFFFFu) < std::bit_cast<uint32_t>(0x1p120f);
  }
  static SIMDATTN_FORMAT_INLINE void encode(const float* x, int64_t dim, uint8_t* row, float* scale) {
    const IntegerScale quantise(largest_bits(x, dim), 127.0f);
    *scale = quantise.scale;
    for (int64_t i = 0; i < dim; ++i) row[i] = static_cast<uint8_t>(quantise(x[i]));
  }
};

/// Floating point of 8 bits with kMantissa of them behind the point: codes up to kLargest are finite numbers,
/// ascending; kNan is the code of NaN, and kOver that of an infinite number.
template <int kMantissa, int kBias, uint32_t kLargest, uint32_t kNan, uint32_t kOver>
struct Fp8Format : ByteFormat {
  static constexpr bool kFp8 = true;
  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kExponent = static_cast<uint32_t>(127 - kBias) << 23;  // of f32, for exponent field 0
  static constexpr float kUnit = std::bit_cast<float>(kExponent - ((kMantissa - 1) << 23));  // code 1
  static constexpr float kRounder = kUnit * 0x1p23f;

  static SIMDATTN_FORMAT_INLINE float number(uint32_t byte) {
    const uint32_t magnitude = byte & 0x7Fu;
    const uint32_t sign = (byte & 0x80u) << 24;
    // No subnormal f32 takes part, which some CPUs are slow at.
    const uint32_t small = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * kUnit);
    uint32_t bits = (magnitude << kShift) + kExponent;
    bits = magnitude < (1u << kMantissa) ? small : bits;
    bits = magnitude > kLargest ? magnitude << kShift | kInfinityBits : bits;
    return std::bit_cast<float>(bits | sign);
  }
  static SIMDATTN_FORMAT_INLINE bool finite(const uint8_t* row, int64_t dim, float scale) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const uint32_t magnitude = row[i] & 0x7Fu;
      largest = magnitude > largest ? magnitude : largest;
    }
    return largest <= kLargest && (std::bit_cast<uint32_t>(scale) & 0x7FFFFFFFu) < std::bit_cast<uint32_t>(0x1p110f);
  }
  /// The code of x * (1 / scale), to nearest even, saturated. NaN, also as the product, and infinities keep what they
  /// are, as far as there is a code.
  static SIMDATTN_FORMAT_INLINE void encode(const float* x, int64_t dim, uint8_t* row, float* scale) {
    const float inverse = 1.0f / *scale;
    for (int64_t i = 0; i < dim; ++i) row[i] = static_cast<uint8_t>(code(x[i], x[i] * inverse));
  }

 private:
  static SIMDATTN_FORMAT_INLINE uint32_t code(float x, float y) {
    const uint32_t from = std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu;
    const uint32_t bits = std::bit_cast<uint32_t>(y) & 0x7FFFFFFFu;
    const uint32_t sign = std::bit_cast<uint32_t>(y) >> 24 & 0x80u;
    // Below the normal numbers a sum whose last bit is worth one code rounds.
    const uint32_t small =
        std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + kRounder) - std::bit_cast<uint32_t>(kRounder);
    const uint32_t normal =
        ((bits + ((1u << (kShift - 1)) - 1) + (bits >> kShift & 1u)) >> kShift) - (kExponent >> kShift);
    uint32_t result = bits < kExponent + (1u << 23) ? small : normal;
    result = result > kLargest ? kLargest : result;
    result = from == kInfinityBits ? kOver : result;
    const bool none = from > kInfinityBits || bits > kInfinityBits || (kOver == kNan && from == kInfinityBits);
    return none ? kNan : result | sign;
  }
};
using E4M3Format = Fp8Format<3, 7, 0x7Eu, 0x7Fu, 0x7Fu>;
using E5M2Format = Fp8Format<2, 15, 0x7Bu, 0x7Eu, 0x7Cu>;

// ---- Scale blocks of 32 that begin with an f16 scale d --------------------------------------------------------------

SIMDATTN_FORMAT_INLINE float f16_at(const uint8_t* p) {
  f16 d;
  std::memcpy(&d, p, sizeof d);
  return to_f32(d);
}
SIMDATTN_FORMAT_INLINE void put_f16(float x, uint8_t* p) {
  const f16 d = from_f32<f16>(x);
  std::memcpy(p, &d, sizeof d);
}

/// d, with kMinimum m, then with kHighBit a word of the highest bits of all codes, then their other kLowBits bits:
/// bytes, or parts of bytes of which the lowest ones come first. A number is (code - kZero) d, or code d + m; or the
/// one of kNumbers that the code says, times d.
template <KvType kType, const int8_t* kNumbers = nullptr>
struct BlockFormat {
  static constexpr detail::KvFormat kRow = detail::kv_format(kType);
  static constexpr bool kFp8 = false;
  static constexpr int kBits = kRow.bits, kZero = kRow.zero;
  static constexpr int kLowBits = static_cast<int>(std::bit_floor(static_cast<unsigned>(kBits)));
  static constexpr bool kMinimum = kRow.block_scales == 2, kHighBit = kBits == kLowBits + 1;
  static constexpr const int8_t* kTable = kNumbers;
  static constexpr CodeLayout kLayout = {kRow.block_scales * kScaleBytes + (kHighBit ? kBlockDims / 8 : 0),
                                         kBlockDims* kLowBits / 8};
  static_assert(kRow.block == kBlockDims && (kBits == kLowBits || kHighBit));

  static SIMDATTN_FORMAT_INLINE bool finite(const uint8_t* row, int64_t dim, float /*scale*/) {
    const auto is_number = [](const uint8_t* p) { return (p[1] & 0x7C) != 0x7C; };
    for (; dim > 0; dim -= kBlockDims, row += kLayout.block_bytes()) {
      if (!is_number(row) || (kMinimum && !is_number(row + 2))) return false;
    }
    return true;
  }
  static SIMDATTN_FORMAT_INLINE void decode(const uint8_t* block, float* out) {
    const float d = f16_at(block), m = kMinimum ? f16_at(block + kScaleBytes) : 0.0f;
    const uint8_t* const codes = block + kLayout.scale_bytes;
    for (int64_t i = 0; i < kBlockDims; ++i) {
      const uint8_t byte = codes[i % kLayout.code_bytes];
      int32_t code = byte >> (i / kLayout.code_bytes * kLowBits) & ((1 << kLowBits) - 1);
      if (kBits == 8) code = static_cast<int8_t>(byte);
      if (kHighBit) code |= (codes[i / 8 - kBlockDims / 8] >> (i % 8) & 1) << kLowBits;
      const float product = static_cast<float>(kTable != nullptr ? kTable[code] : code - kZero) * d;
      out[i] = kMinimum ? product + m : product;
    }
  }
};

/// d of a scale block that is written, from the number of the largest magnitude over its integer.
struct BlockScale {
  float d;
  float inverse;
  bool holds;
  SIMDATTN_FORMAT_INLINE BlockScale(float scale, uint32_t largest)
      : d(largest < kInfinityBits ? scale : kNaN),
        inverse(1.0f / scale),
        holds(largest < kInfinityBits && is_finite(inverse)) {}
};

/// d = the largest magnitude / 127, q = round(x * (1 / d)).
struct Q8Format : BlockFormat<KvType::kQ8_0> {
  static SIMDATTN_FORMAT_INLINE BlockScale scale(uint32_t largest, const float* /*x*/) {
    return {std::bit_cast<float>(largest) / 127.0f, largest};
  }
  static SIMDATTN_FORMAT_INLINE void encode(const float* x, uint8_t* block) {
    const BlockScale s = scale(largest_bits(x, kBlockDims), x);
    put_f16(s.d, block);
    for (int64_t i = 0; i < kBlockDims; ++i) {
      block[2 + i] = s.holds ? static_cast<uint8_t>(round_to_integer(x[i] * s.inverse)) : uint8_t{0};
    }
  }
};

/// d = the first number of the largest magnitude / -8, q = min(15, trunc(x * (1 / d) + 8.5)).
struct Q4Format : BlockFormat<KvType::kQ4_0> {
  static SIMDATTN_FORMAT_INLINE BlockScale scale(uint32_t largest, const float* x) {
    float extreme = 0.0f;  // also for zeros of either sign
    for (int64_t i = kBlockDims; i-- > 0 && largest != 0;) {
      if ((std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu) == largest) extreme = x[i];
    }
    return {extreme / -8.0f, largest};
  }
  static SIMDATTN_FORMAT_INLINE void encode(const float* x, uint8_t* block) {
    const BlockScale s = scale(largest_bits(x, kBlockDims), x);
    put_f16(s.d, block);
    const auto code = [&](int64_t i) {
      const int32_t n = s.holds ? static_cast<int32_t>(x[i] * s.inverse + 8.5f) : 8;
      return n < 15 ? n : 15;
    };
    for (int64_t i = 0; i < 16; ++i) block[2 + i] = static_cast<uint8_t>(code(i) | code(16 + i) << 4);
  }
};

inline constexpr int8_t kIq4NlNumbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/// The codes of a narrow type: blocks, unless something else is said here.
template <KvType kType>
struct CodesOf {
  using Format = BlockFormat<kType>;
};
template <>
struct CodesOf<KvType::kInt8> {
  using Format = Int8Format;
};
template <>
struct CodesOf<KvType::kFp8E4M3> {
  using Format = E4M3Format;
};
template <>
struct CodesOf<KvType::kFp8E5M2> {
  using Format = E5M2Format;
};
template <>
struct CodesOf<KvType::kQ8_0> {
  using Format = Q8Format;
};
template <>
struct CodesOf<KvType::kQ4_0> {
  using Format = Q4Format;
};
template <>
struct CodesOf<KvType::kIq4Nl> {
  using Format = BlockFormat<KvType::kIq4Nl, kIq4NlNumbers>;
};
template <KvType kType>
using FormatOf = typename CodesOf<kType>::Format;
template <KvType kType>
inline constexpr CodeLayout kLayoutOf = FormatOf<kType>::kLayout;

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_CONTRACT_KV_FORMATS_H_
