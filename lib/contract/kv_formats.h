// How the narrow storage types hold numbers: what codes of a row are, and their places in rows and panels. Facts of
// types, and what is computed once for a row or a block; lib/definition/narrow.h and lib/kernels/narrow_rows.h each
// turn codes into numbers and back in a text of their own.
//
// A row is bytes of codes; some types have scales among them, others one scale beside each row. A panel holds the codes
// of 32 rows in units of four bytes, [unit][32][4]. Every number is a product of a code and a scale, rounded once, so
// each target gives the same bits.
#pragma once

#include <bit>
#include <cstdint>

#include "lib/contract/dtypes.h"
#include "lib/contract/steps.h"
#include "lib/contract/ukernels.h"

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

inline constexpr int64_t kUnitBytes = 4;
inline constexpr int64_t kUnitPitch = kUnitBytes * kPanelWidth;
inline constexpr int64_t kBlockDims = detail::KvFormat::kBlock;
inline constexpr int64_t kScaleBytes = 2;  // f16
inline constexpr uint32_t kInfinityBits = 0x7F800000u;
inline constexpr float kNaN = std::bit_cast<float>(kCanonicalNaN);

/// Numbers as integers and their scale: x = scale * integer, nearly. The largest magnitude, whose bits are `largest`,
/// becomes `most`. Where most / largest is not finite integers and scale are 0; with NaN or infinity among the numbers
/// the scale is NaN.
struct IntegerScale {
  float scale;
  float inverse;  // 0: all integers are 0

  __attribute__((always_inline)) IntegerScale(uint32_t largest, float most)
      : scale(std::bit_cast<float>(largest) / most), inverse(most / std::bit_cast<float>(largest)) {
    if (largest < kInfinityBits && is_finite(inverse)) return;
    scale = largest < kInfinityBits ? 0.0f : kNaN;
    inverse = 0.0f;
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
  constexpr int64_t units(int64_t dim) const { return steps_of(dim * block_units(), kBlockDims); }
  constexpr int64_t scale_at(int64_t dim, int64_t block, int64_t column) const {
    return units(dim) * kUnitPitch + (block * kPanelWidth + column) * kScaleBytes;
  }
  constexpr int64_t panel_bytes(int64_t dim) const { return scale_at(dim, scale_bytes == 0 ? 0 : dim / kBlockDims, 0); }
};

// ---- Codes of one byte, scales beside the rows ----------------------------------------------------------------------

struct ByteFormat {
  static constexpr bool kFp8 = false;  // else integers
  static constexpr int kBits = 8;
  static constexpr const int8_t* kTable = nullptr;
  static constexpr CodeLayout kLayout = {0, kBlockDims};
};
/// Integers. The largest magnitude of a row is 127 scales.
struct Int8Format : ByteFormat {
  static constexpr float kLargeScale = 0x1p120f;  // below it every product is finite
};
/// Floating point of 8 bits: kMantissa of them behind the point, and an exponent e for 2^(e - kBias). Codes up to
/// kLargest are finite numbers, ascending; kNan is the code of NaN, and kOver that of an infinite number.
template <int kMantissaBits, int kExponentBias, uint32_t kLargestCode, uint32_t kNanCode, uint32_t kOverCode>
struct Fp8Format : ByteFormat {
  static constexpr bool kFp8 = true;
  static constexpr int kMantissa = kMantissaBits, kBias = kExponentBias;
  static constexpr uint32_t kLargest = kLargestCode, kNan = kNanCode, kOver = kOverCode;
  static constexpr float kLargeScale = 0x1p110f;
};
using E4M3Format = Fp8Format<3, 7, 0x7Eu, 0x7Fu, 0x7Fu>;
using E5M2Format = Fp8Format<2, 15, 0x7Bu, 0x7Eu, 0x7Cu>;

// ---- Scale blocks of 32 that begin with an f16 scale d --------------------------------------------------------------

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
};

/// d of a scale block that is written, from the number of the largest magnitude over its integer.
struct BlockScale {
  float d;
  float inverse;
  bool holds;
  __attribute__((always_inline)) BlockScale(float scale, uint32_t largest)
      : d(largest < kInfinityBits ? scale : kNaN),
        inverse(1.0f / scale),
        holds(largest < kInfinityBits && is_finite(inverse)) {}
};

using Q8Format = BlockFormat<KvType::kQ8_0>;
using Q4Format = BlockFormat<KvType::kQ4_0>;

inline constexpr int8_t kIq4NlNumbers[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/// The codes of a narrow type: blocks, unless something else is said here.
template <KvType kType>
constexpr auto format_of() {
  if constexpr (kType == KvType::kInt8) return Int8Format();
  else if constexpr (kType == KvType::kFp8E4M3) return E4M3Format();
  else if constexpr (kType == KvType::kFp8E5M2) return E5M2Format();
  else if constexpr (kType == KvType::kIq4Nl) return BlockFormat<kType, kIq4NlNumbers>();
  else return BlockFormat<kType>();
}
template <KvType kType>
using FormatOf = decltype(format_of<kType>());
template <KvType kType>
inline constexpr CodeLayout kLayoutOf = FormatOf<kType>::kLayout;

}  // namespace
}  // namespace simdattn
