// How the narrow storage types hold numbers: codes of a row, and their places in a panel. Shared by the backends.
//
// A row is bytes of codes; some types have scales among them, others one scale beside each row. A panel holds the codes of 32
// rows in units of four bytes, [unit][32][4]. Every number is a product of a code and a scale, rounded once, so each target
// gives the same bits. Loops are plain, for compilers to make vectors of; always inlined, they have the instruction set of
// their caller.
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
inline constexpr uint32_t kInfinityBits = 0x7F800000u;
inline constexpr float kNaN = std::bit_cast<float>(kCanonicalNaN);

/// The largest magnitude of n numbers, as bits; infinity's or more if one of them is NaN or infinite.
SIMDATTN_FORMAT_INLINE uint32_t largest_bits(const float* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}
constexpr bool is_finite(float x) { return (std::bit_cast<uint32_t>(x) & 0x7FFFFFFFu) < kInfinityBits; }
/// Nearest even; |x| < 2^21.
SIMDATTN_FORMAT_INLINE int32_t round_to_integer(float x) {
  return static_cast<int32_t>(std::bit_cast<uint32_t>(x + 0x1.8p23f) - 0x4B400000u);
}

// ---- Codes of one byte, scales beside the rows -----------------------------------------------------------------------

/// Scale of a row of integers from the bits of its largest magnitude a: a / 127, integers are round(x * (127 / a)). Where 127 / a
/// is not finite the integers are zeros and the scale is 0; with NaN or infinity in the row it is NaN.
struct Int8Scale {
  float scale;
  float inverse;
  bool holds;
  SIMDATTN_FORMAT_INLINE explicit Int8Scale(uint32_t largest) {
    const float a = std::bit_cast<float>(largest);
    inverse = 127.0f / a;
    holds = largest < kInfinityBits && is_finite(inverse);
    scale = holds ? a / 127.0f : largest < kInfinityBits ? 0.0f : kNaN;
  }
};

/// Integers. The largest magnitude of a row is 127 scales.
struct Int8Code {
  /// Of the byte at bit kBit of w.
  template <int kBit>
  static SIMDATTN_FORMAT_INLINE float number(uint32_t w) {
    return static_cast<float>(static_cast<int32_t>(w << (24 - kBit)) >> 24);
  }
  /// A scale with which every product is finite.
  static SIMDATTN_FORMAT_INLINE bool finite(const uint8_t* /*row*/, int64_t /*dim*/, float scale) {
    return (std::bit_cast<uint32_t>(scale) & 0x7FFFFFFFu) < std::bit_cast<uint32_t>(0x1p120f);
  }
  static SIMDATTN_FORMAT_INLINE void encode(const float* x, int64_t dim, uint8_t* row, float* scale) {
    const Int8Scale s(largest_bits(x, dim));
    *scale = s.scale;
    if (!s.holds) {
      std::memset(row, 0, static_cast<size_t>(dim));
      return;
    }
    for (int64_t i = 0; i < dim; ++i) row[i] = static_cast<uint8_t>(round_to_integer(x[i] * s.inverse));
  }
};

/// Floating point of 8 bits with kMantissa of them behind the point: codes up to kLargest are finite numbers, ascending; kNan
/// is the code of NaN, and kOver that of an infinite number.
template <int kMantissa, int kBias, uint32_t kLargest, uint32_t kNan, uint32_t kOver>
struct Fp8Code {
  static constexpr int kShift = 23 - kMantissa;
  static constexpr uint32_t kExponent = static_cast<uint32_t>(127 - kBias) << 23;  // of f32, for exponent field 0
  static constexpr float kUnit = std::bit_cast<float>(kExponent - ((kMantissa - 1) << 23));  // code 1
  static constexpr float kRounder = kUnit * 0x1p23f;

  template <int kBit>
  static SIMDATTN_FORMAT_INLINE float number(uint32_t w) {
    const uint32_t magnitude = w >> kBit & 0x7Fu;
    const uint32_t sign = (w >> kBit & 0x80u) << 24;
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
  /// The code of x * (1 / scale), to nearest even, saturated. NaN, also as the product, and infinities keep what they are, as far
  /// as there is a code.
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
using E4M3Code = Fp8Code<3, 7, 0x7Eu, 0x7Fu, 0x7Fu>;
using E5M2Code = Fp8Code<2, 15, 0x7Bu, 0x7Eu, 0x7Cu>;

template <class Code>
struct ByteFormat {
  static constexpr int64_t units(int64_t dim) { return (dim + 3) / 4; }
  static constexpr int64_t unit_at(int64_t unit) { return kUnitBytes * unit; }
  static SIMDATTN_FORMAT_INLINE void put_block_scales(const uint8_t*, int64_t, uint8_t*, int64_t) {}

  static SIMDATTN_FORMAT_INLINE void encode(const float* x, int64_t dim, uint8_t* row, float* scale) {
    Code::encode(x, dim, row, scale);
  }
  static SIMDATTN_FORMAT_INLINE bool finite(const uint8_t* row, int64_t dim, float scale) {
    return Code::finite(row, dim, scale);
  }
  /// Numbers [first, first + n) of a row.
  static SIMDATTN_FORMAT_INLINE void decode(const uint8_t* row, float scale, int64_t first, int64_t n, float* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = Code::template number<0>(row[first + i]) * scale;
  }
};

// ---- Blocks of 32 that begin with an f16 scale d -----------------------------------------------------------------------

SIMDATTN_FORMAT_INLINE float f16_at(const uint8_t* p) {
  f16 d;
  std::memcpy(&d, p, sizeof d);
  return to_f32(d);
}
SIMDATTN_FORMAT_INLINE void put_f16(float x, uint8_t* p) {
  const f16 d = from_f32<f16>(x);
  std::memcpy(p, &d, sizeof d);
}

/// d of a block of integers, a / 127, from the bits of the largest magnitude a: q = round(x * (1 / d)).
struct Q8Scale {
  float d;
  float inverse;
  bool holds;
  SIMDATTN_FORMAT_INLINE explicit Q8Scale(uint32_t largest) {
    d = std::bit_cast<float>(largest) / 127.0f;
    inverse = 1.0f / d;
    holds = largest < kInfinityBits && is_finite(inverse);
    if (largest >= kInfinityBits) d = kNaN;
  }
};

struct Q8Code {
  static constexpr int64_t kBytes = 32;
  /// The integers of a block of a panel as bytes, [8][32] words of four dimensions.
  static SIMDATTN_FORMAT_INLINE void integers(const uint32_t* units, uint32_t* out) {
    std::memcpy(out, units, 32 * kPanelWidth);
  }
  static SIMDATTN_FORMAT_INLINE void encode(const float* x, uint8_t* block) {
    const Q8Scale s(largest_bits(x, 32));
    put_f16(s.d, block);
    for (int64_t i = 0; i < 32; ++i) {
      block[2 + i] = s.holds ? static_cast<uint8_t>(round_to_integer(x[i] * s.inverse)) : uint8_t{0};
    }
  }
  static SIMDATTN_FORMAT_INLINE void decode(const uint8_t* codes, float d, float* out) {
    for (int64_t i = 0; i < 32; ++i) out[i] = Int8Code::number<0>(codes[i]) * d;
  }
};

/// d of a block of nibbles from the first number of the largest magnitude, whose bits are `largest`.
struct Q4Scale {
  float d;
  float inverse;
  bool holds;
  SIMDATTN_FORMAT_INLINE Q4Scale(uint32_t largest, const float* x) {
    float extreme = 0.0f;  // also for zeros of either sign
    for (int64_t i = 32; i-- > 0 && largest != 0;) {
      if ((std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu) == largest) extreme = x[i];
    }
    d = extreme / -8.0f;
    inverse = 1.0f / d;
    holds = largest < kInfinityBits && is_finite(inverse);
    if (largest >= kInfinityBits) d = kNaN;
  }
};

/// Nibbles, x[0 .. 15] the low ones. d = the number of the largest magnitude / -8, q = min(15, trunc(x * (1 / d) + 8.5)).
struct Q4Code {
  static constexpr int64_t kBytes = 16;
  static SIMDATTN_FORMAT_INLINE void integers(const uint32_t* units, uint32_t* out) {
    for (int64_t u = 0; u < 4; ++u) {
      for (int64_t j = 0; j < kPanelWidth; ++j) out[u * kPanelWidth + j] = less_eight(units[u * kPanelWidth + j]);
      for (int64_t j = 0; j < kPanelWidth; ++j)
        out[(4 + u) * kPanelWidth + j] = less_eight(units[u * kPanelWidth + j] >> 4);
    }
  }
  static SIMDATTN_FORMAT_INLINE void encode(const float* x, uint8_t* block) {
    const Q4Scale s(largest_bits(x, 32), x);
    put_f16(s.d, block);
    const float factor = s.holds ? s.inverse : 0.0f;
    uint32_t q[32];
    for (int64_t i = 0; i < 32; ++i) {
      const int32_t n = static_cast<int32_t>((s.holds ? x[i] : 0.0f) * factor + 8.5f);
      q[i] = static_cast<uint32_t>(n < 15 ? n : 15);
    }
    for (int64_t i = 0; i < 16; ++i) block[2 + i] = static_cast<uint8_t>(q[i] | q[16 + i] << 4);
  }
  static SIMDATTN_FORMAT_INLINE void decode(const uint8_t* codes, float d, float* out) {
    for (int64_t i = 0; i < 16; ++i) out[i] = number<0>(codes[i]) * d;
    for (int64_t i = 0; i < 16; ++i) out[16 + i] = number<4>(codes[i]) * d;
  }

 private:
  /// 8 less in each byte: no byte borrows from the next, whose highest bit is turned over before and after.
  static SIMDATTN_FORMAT_INLINE uint32_t less_eight(uint32_t w) {
    return (((w & 0x0F0F0F0Fu) | 0x80808080u) - 0x08080808u) ^ 0x80808080u;
  }
  template <int kBit>
  static SIMDATTN_FORMAT_INLINE float number(uint32_t w) {
    return static_cast<float>(static_cast<int32_t>(w >> kBit & 15u) - 8);
  }
};

/// Types that others write: a block to numbers. kScaleBytes: d and what else comes before the nibbles.
struct Q4OffsetCode {  // d, m: q * d + m
  static constexpr int64_t kScaleBytes = 4;
  static SIMDATTN_FORMAT_INLINE bool finite(const uint8_t* b) {
    return is_finite(f16_at(b)) && is_finite(f16_at(b + 2));
  }
  static SIMDATTN_FORMAT_INLINE void decode(const uint8_t* b, float* out) {
    const float d = f16_at(b), m = f16_at(b + 2);
    for (int64_t i = 0; i < 16; ++i) out[i] = static_cast<float>(b[4 + i] & 15) * d + m;
    for (int64_t i = 0; i < 16; ++i) out[16 + i] = static_cast<float>(b[4 + i] >> 4) * d + m;
  }
};
/// A fifth bit of each number, in the order of the numbers.
SIMDATTN_FORMAT_INLINE int32_t five_bits(const uint8_t* fifth, const uint8_t* nibbles, int64_t i) {
  const int32_t low = i < 16 ? nibbles[i] & 15 : nibbles[i - 16] >> 4;
  return low | (fifth[i / 8] >> (i % 8) & 1) << 4;
}
struct Q5Code {  // d, fifth bits: (q - 16) * d
  static constexpr int64_t kScaleBytes = 6;
  static SIMDATTN_FORMAT_INLINE bool finite(const uint8_t* b) { return is_finite(f16_at(b)); }
  static SIMDATTN_FORMAT_INLINE void decode(const uint8_t* b, float* out) {
    const float d = f16_at(b);
    for (int64_t i = 0; i < 32; ++i) out[i] = static_cast<float>(five_bits(b + 2, b + 6, i) - 16) * d;
  }
};
struct Q5OffsetCode {  // d, m, fifth bits: q * d + m
  static constexpr int64_t kScaleBytes = 8;
  static SIMDATTN_FORMAT_INLINE bool finite(const uint8_t* b) {
    return is_finite(f16_at(b)) && is_finite(f16_at(b + 2));
  }
  static SIMDATTN_FORMAT_INLINE void decode(const uint8_t* b, float* out) {
    const float d = f16_at(b), m = f16_at(b + 2);
    for (int64_t i = 0; i < 32; ++i) out[i] = static_cast<float>(five_bits(b + 4, b + 8, i)) * d + m;
  }
};
struct Iq4NlCode {  // d: a table of integers
  static constexpr int64_t kScaleBytes = 2;
  static SIMDATTN_FORMAT_INLINE bool finite(const uint8_t* b) { return is_finite(f16_at(b)); }
  static SIMDATTN_FORMAT_INLINE void decode(const uint8_t* b, float* out) {
    constexpr float kNumbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    const float d = f16_at(b);
    for (int64_t i = 0; i < 16; ++i) out[i] = kNumbers[b[2 + i] & 15] * d;
    for (int64_t i = 0; i < 16; ++i) out[16 + i] = kNumbers[b[2 + i] >> 4] * d;
  }
};
template <class Code>
struct ReadFormat {
  static constexpr int64_t kBlock = 32;
  static constexpr int64_t kBlockBytes = Code::kScaleBytes + 16;
  static SIMDATTN_FORMAT_INLINE bool finite(const uint8_t* row, int64_t dim, float /*scale*/) {
    for (int64_t b = 0; b < dim / kBlock; ++b) {
      if (!Code::finite(row + b * kBlockBytes)) return false;
    }
    return true;
  }
  static SIMDATTN_FORMAT_INLINE void decode(const uint8_t* row, float /*scale*/, int64_t first, int64_t n, float* out) {
    row += first / kBlock * kBlockBytes;
    for (int64_t i = 0; i < n; i += kBlock, row += kBlockBytes) Code::decode(row, out + i);
  }
};

template <class Code>
struct BlockFormat {
  static constexpr int64_t kBlock = 32;
  static constexpr int64_t kScaleBytes = 2;
  static constexpr int64_t kUnits = Code::kBytes / kUnitBytes;  // of a block
  static constexpr int64_t kBlockBytes = kScaleBytes + Code::kBytes;
  static constexpr int64_t units(int64_t dim) { return dim / kBlock * kUnits; }
  static constexpr int64_t unit_at(int64_t unit) {
    return unit / kUnits * kBlockBytes + kScaleBytes + unit % kUnits * kUnitBytes;
  }
  static constexpr int64_t scale_at(int64_t dim, int64_t block, int64_t column) {
    return units(dim) * kUnitBytes * kPanelWidth + (block * kPanelWidth + column) * kScaleBytes;
  }
  static SIMDATTN_FORMAT_INLINE void put_block_scales(const uint8_t* row, int64_t dim, uint8_t* panel, int64_t column) {
    for (int64_t b = 0; b < dim / kBlock; ++b) std::memcpy(panel + scale_at(dim, b, column), row + b * kBlockBytes, 2);
  }
  /// The scales of a block of a panel.
  static SIMDATTN_FORMAT_INLINE void panel_scales(const uint8_t* panel, int64_t dim, int64_t block, float* d) {
    const uint8_t* const at = panel + scale_at(dim, block, 0);
    for (int64_t j = 0; j < kPanelWidth; ++j) d[j] = f16_at(at + kScaleBytes * j);
  }

  static SIMDATTN_FORMAT_INLINE void encode(const float* x, int64_t dim, uint8_t* row, float* /*scale*/) {
    for (int64_t b = 0; b < dim / kBlock; ++b) Code::encode(x + b * kBlock, row + b * kBlockBytes);
  }
  static SIMDATTN_FORMAT_INLINE bool finite(const uint8_t* row, int64_t dim, float /*scale*/) {
    for (int64_t b = 0; b < dim / kBlock; ++b) {
      if ((row[b * kBlockBytes + 1] & 0x7C) == 0x7C) return false;
    }
    return true;
  }
  static SIMDATTN_FORMAT_INLINE void decode(const uint8_t* row, float /*scale*/, int64_t first, int64_t n, float* out) {
    row += first / kBlock * kBlockBytes;
    for (int64_t i = 0; i < n; i += kBlock, row += kBlockBytes) Code::decode(row + kScaleBytes, f16_at(row), out + i);
  }
};

// ---- By type -----------------------------------------------------------------------------------------------------------

template <KvType kType>
struct FormatOf;
template <>
struct FormatOf<KvType::kInt8> : ByteFormat<Int8Code> {};
template <>
struct FormatOf<KvType::kFp8E4M3> : ByteFormat<E4M3Code> {};
template <>
struct FormatOf<KvType::kFp8E5M2> : ByteFormat<E5M2Code> {};
template <>
struct FormatOf<KvType::kQ8_0> : BlockFormat<Q8Code> {
  using Code = Q8Code;
};
template <>
struct FormatOf<KvType::kQ4_0> : BlockFormat<Q4Code> {
  using Code = Q4Code;
};
template <>
struct FormatOf<KvType::kQ4_1> : ReadFormat<Q4OffsetCode> {};
template <>
struct FormatOf<KvType::kQ5_0> : ReadFormat<Q5Code> {};
template <>
struct FormatOf<KvType::kQ5_1> : ReadFormat<Q5OffsetCode> {};
template <>
struct FormatOf<KvType::kIq4Nl> : ReadFormat<Iq4NlCode> {};

/// F of every type that is written and read; of every one that is read only.
#define SIMDATTN_WRITTEN_TYPES(F) \
  F(KvType::kInt8)                \
  F(KvType::kFp8E4M3)             \
  F(KvType::kFp8E5M2)             \
  F(KvType::kQ8_0)                \
  F(KvType::kQ4_0)
#define SIMDATTN_READ_TYPES(F) F(KvType::kQ4_1) F(KvType::kQ5_0) F(KvType::kQ5_1) F(KvType::kIq4Nl)

/// row_bytes() and panel_bytes() of a type, always inlined: a build with sanitizers calls those, and objects would share them.
template <KvType kType>
constexpr SIMDATTN_FORMAT_INLINE int64_t row_bytes_of(int64_t dim) {
  constexpr int64_t kOf32 = row_bytes(kType, 32);
  return dim * kOf32 / 32;
}
template <KvType kType>
constexpr SIMDATTN_FORMAT_INLINE int64_t panel_bytes_of(int64_t dim) {
  constexpr int64_t kTogether = kType == KvType::kBF16 ? 2 : has_scales(kType) ? 4 : 1;
  return kPanelWidth * row_bytes_of<kType>((dim + kTogether - 1) / kTogether * kTogether);
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_CONTRACT_KV_FORMATS_H_
