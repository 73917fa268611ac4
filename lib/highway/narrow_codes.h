// Codes of the narrow storage types as f32 numbers.
#ifndef SIMDATTN_LIB_HIGHWAY_NARROW_CODES_H_
#define SIMDATTN_LIB_HIGHWAY_NARROW_CODES_H_

#include <bit>
#include <cstring>

#include "hwy/highway.h"
#include "lib/highway/loads.h"
#include "lib/highway/target.h"
#include "lib/kv_formats.h"

namespace simdattn {
namespace {
namespace highway {

/// 16 lanes are half a panel, and half a block.
using DU = hn::RebindToUnsigned<D>;
using DI = hn::RebindToSigned<D>;
using Numbers = hn::Vec<D>;
using Codes = hn::Vec<DU>;

/// Where codes stay as they are, types of a byte a number are one.
template <KvType kType>
inline constexpr KvType kLaidOutAs = has_scales(kType) ? KvType::kInt8 : kType;

template <int kBits>
HWY_INLINE Codes Left(Codes w) {
  if constexpr (kBits == 0) return w;
  else return hn::ShiftLeft<kBits>(w);
}
template <int kBits>
HWY_INLINE Codes Right(Codes w) {
  if constexpr (kBits == 0) return w;
  else return hn::ShiftRight<kBits>(w);
}

/// The code at bit kBit of each lane as a number. Other bits may hold anything.
template <int kBit>
HWY_INLINE Numbers NumberOf(Codes w, Int8Code /*code*/) {
  return hn::ConvertTo(D(), hn::ShiftRight<24>(hn::BitCast(DI(), Left<24 - kBit>(w))));
}
template <int kBit, int kMantissa, int kBias, uint32_t kLargest, uint32_t kNan, uint32_t kOver>
HWY_INLINE Numbers NumberOf(Codes w, Fp8Code<kMantissa, kBias, kLargest, kNan, kOver> /*code*/) {
  using Code = Fp8Code<kMantissa, kBias, kLargest, kNan, kOver>;
  const D d;
  const DU du;
  const DI di;
  const Codes code = Left<24 - kBit>(w);
  const Codes magnitude = hn::And(code, hn::Set(du, 0x7F000000u));
  const Codes sign = hn::And(code, hn::Set(du, 0x80000000u));
  const auto above = [&](uint32_t limit) SIMDATTN_LAMBDA {
    return hn::RebindMask(d, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<int32_t>(limit << 24))));
  };
  // Exponent field 0: as if it were 1, less what that adds. No subnormal f32 takes part.
  constexpr uint32_t kOne = 1u << 23;
  const Codes bits = hn::Add(hn::ShiftRight<1 + kMantissa>(magnitude), hn::Set(du, Code::kExponent));
  const Numbers small =
      hn::Sub(hn::BitCast(d, hn::Add(bits, hn::Set(du, kOne))), hn::BitCast(d, hn::Set(du, Code::kExponent + kOne)));
  Numbers x = hn::IfThenElse(above((1u << kMantissa) - 1), hn::BitCast(d, bits), small);
  const Codes special = hn::Or(hn::ShiftRight<1 + kMantissa>(magnitude), hn::Set(du, kInfinityBits));
  x = hn::IfThenElse(above(kLargest), hn::BitCast(d, special), x);
  return hn::BitCast(d, hn::Or(hn::BitCast(du, x), sign));
}
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
/// Each number without its sign is a bf16: 128 of them are in four registers, and one instruction takes 32 from two of these.
template <class Code>
struct Fp8Table {
  static constexpr size_t kSize = 128;
  struct Bits {
    uint16_t of[kSize];
  };
  static constexpr Bits make() {
    Bits b = {};
    for (uint32_t c = 0; c < kSize; ++c)
      b.of[c] = static_cast<uint16_t>(std::bit_cast<uint32_t>(plain_number(c)) >> 16);
    return b;
  }
  static constexpr float plain_number(uint32_t magnitude) {
    constexpr uint32_t kOne = 1u << (23 - Code::kShift);
    if (magnitude > Code::kTop) return std::bit_cast<float>(magnitude << Code::kShift | kInfinityBits);
    if (magnitude < kOne) return static_cast<float>(magnitude) * Code::kUnit;
    return std::bit_cast<float>((magnitude << Code::kShift) + Code::kExponent);
  }
  alignas(64) static constexpr Bits kBits = make();

  __m512i t0, t1, t2, t3;
  HWY_INLINE Fp8Table()
      : t0(_mm512_load_si512(kBits.of)),
        t1(_mm512_load_si512(kBits.of + 32)),
        t2(_mm512_load_si512(kBits.of + 64)),
        t3(_mm512_load_si512(kBits.of + 96)) {}
  /// bf16 numbers of 32 codes, in the lower half of 16 bits each; `upper`: the same codes in the upper half.
  HWY_INLINE __m512i operator()(__m512i code, __m512i upper) const {
    const __m512i low = _mm512_permutex2var_epi16(t0, code, t1);
    const __m512i high = _mm512_permutex2var_epi16(t2, code, t3);
    const __m512i magnitude = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(code, _mm512_set1_epi16(0x40)), low, high);
    // magnitude | upper & 0x8000
    return _mm512_ternarylogic_epi32(magnitude, upper, _mm512_set1_epi16(static_cast<int16_t>(0x8000)), 0xF8);
  }
  /// Lanes of 32 bits: the lower bf16 as f32, and the upper one.
  static HWY_INLINE Numbers Lower(__m512i pairs) { return Numbers{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))}; }
  static HWY_INLINE Numbers Upper(__m512i pairs) {
    return Numbers{_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))))};
  }
};
#endif

template <int kBit>
HWY_INLINE Numbers NumberOf(Codes w, Q8Code /*code*/) {
  return NumberOf<kBit>(w, Int8Code());
}
template <int kBit>
HWY_INLINE Numbers NumberOf(Codes w, Q4Code /*code*/) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // The lower four bits of a lane choose.
  const __m512 numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  return Numbers{_mm512_permutexvar_ps(Right<kBit>(w).raw, numbers)};
#else
  const Codes nibble = hn::And(Right<kBit>(w), hn::Set(DU(), 15u));
  return hn::Sub(hn::ConvertTo(D(), hn::BitCast(DI(), nibble)), hn::Set(D(), 8.0f));
#endif
}

/// Eight bits each, as many as there are lanes.
HWY_INLINE Codes LoadCodes(const uint8_t* p) { return hn::PromoteTo(DU(), hn::LoadU(hn::Rebind<uint8_t, DU>(), p)); }
HWY_INLINE Codes LoadCodesN(const uint8_t* p, size_t n) {
  return hn::PromoteTo(DU(), hn::LoadN(hn::Rebind<uint8_t, DU>(), p, n));
}
/// As numbers: what a row has side by side.
template <class Code>
HWY_INLINE Numbers LoadNumbers(const uint8_t* p, Code code) {
  return NumberOf<0>(LoadCodes(p), code);
}
HWY_INLINE Numbers LoadNumbers(const uint8_t* p, Int8Code /*code*/) {
  return hn::ConvertTo(D(),
                       hn::PromoteTo(DI(), hn::LoadU(hn::Rebind<int8_t, DI>(), reinterpret_cast<const int8_t*>(p))));
}

HWY_INLINE Numbers BlockScale(const uint8_t* p) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
#if HWY_TARGET <= HWY_AVX3
  return Numbers{_mm512_cvtph_ps(_mm256_set1_epi16(static_cast<int16_t>(bits)))};
#else
  return Numbers{_mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(bits)))};
#endif
#else
  return hn::Set(D(), f16_at(p));
#endif
}

/// How far ahead codes are fetched. The hardware's streams run that far too late.
constexpr uintptr_t kAhead = 4096;
HWY_INLINE void Fetch(const uint8_t* p) {
  __builtin_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(p) + kAhead));
}
HWY_INLINE Codes LoadUnits(const uint8_t* p) { return hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(p)); }
constexpr int64_t kUnitPitch = kUnitBytes * kPanelWidth;

/// Block b of 128 bits of the result is the first units of row 4 b.
template <class V>
HWY_INLINE hn::Vec<V> LoadUnitBlocks(V d, const uint8_t* rows, int64_t stride) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (HWY_MAX_LANES_D(V) == 16) {
    // Masked loads: an insertion into the upper half takes a port of the shuffles.
    const auto block = [&](int64_t row) SIMDATTN_LAMBDA {
      return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + row * stride));
    };
    __m512i v = _mm512_castsi128_si512(block(0));
    v = _mm512_mask_broadcast_i32x4(v, 0x00F0, block(4));
    v = _mm512_mask_broadcast_i32x4(v, 0x0F00, block(8));
    return hn::Vec<V>{_mm512_mask_broadcast_i32x4(v, 0xF000, block(12))};
  }
#endif
  if constexpr (HWY_MAX_LANES_D(V) > 4) {
    const hn::Half<V> half;
    constexpr int64_t kRows = HWY_MAX_LANES_D(V) / 2;
    return hn::Combine(d, LoadUnitBlocks(half, rows + kRows * stride, stride), LoadUnitBlocks(half, rows, stride));
  } else {
    return hn::BitCast(d, hn::LoadU(hn::Repartition<uint8_t, V>(), rows));
  }
}
/// Four units of as many rows as there are lanes to columns of a panel, of whose first unit `out` is.
HWY_INLINE void TransposeUnits4(const uint8_t* p, int64_t stride, uint8_t* out) {
  const DU d;
  const hn::Repartition<uint64_t, DU> d64;
  const auto r0 = LoadUnitBlocks(d, p, stride), r1 = LoadUnitBlocks(d, p + stride, stride);
  const auto r2 = LoadUnitBlocks(d, p + 2 * stride, stride), r3 = LoadUnitBlocks(d, p + 3 * stride, stride);
  const auto t0 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1)),
             t1 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
  const auto t2 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1)),
             t3 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  const auto put = [&](int64_t unit, auto v) SIMDATTN_LAMBDA {
    hn::StoreU(hn::BitCast(d, v), d, reinterpret_cast<uint32_t*>(out + unit * kUnitPitch));
  };
  put(0, hn::InterleaveLower(d64, t0, t1));
  put(1, hn::InterleaveUpper(d64, t0, t1));
  put(2, hn::InterleaveLower(d64, t2, t3));
  put(3, hn::InterleaveUpper(d64, t2, t3));
}

}  // namespace highway
}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_NARROW_CODES_H_
