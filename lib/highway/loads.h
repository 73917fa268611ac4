// Loads and stores of f32, bf16 and f16 memory as f32 vectors. `d` is any f32 tag, a capped or
// halved one too; the partial forms touch the first n elements and nothing else.
#ifndef SIMDATTN_LIB_HIGHWAY_LOADS_H_
#define SIMDATTN_LIB_HIGHWAY_LOADS_H_

#include "hwy/highway.h"
#include "lib/dtypes.h"
#include "lib/highway/target.h"

// The CPU converts f16; else integer operations do (SSE2, SSE4).
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_ARCH_ARM_A64
#define SIMDATTN_NATIVE_F16 1
#else
#define SIMDATTN_NATIVE_F16 0
#endif

namespace simdattn {
namespace {
namespace highway {

template <class D>
using VU16 = hn::Vec<hn::Rebind<uint16_t, D>>;

/// A vector that stays in its register: gcc would fold the load into each of the instructions that use it.
template <class V>
HWY_INLINE V InRegister(V v) {
#if HWY_ARCH_X86
  asm("" : "+v"(v.raw));
#endif
  return v;
}

/// bf16 bits to f32: the upper half.
template <class D>
HWY_INLINE hn::Vec<D> F32FromBF16(D d, VU16<D> v) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (HWY_MAX_LANES_D(D) == 16) {
    // One shuffle in place of a widening one and a shift.
    const __m512i order = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0, 7, 0, 6, 0, 5, 0, 4, 0,
                                           3, 0, 2, 0, 1, 0, 0, 0);
    const __m512i wide = _mm512_castsi256_si512(v.raw);
    return hn::Vec<D>{_mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, order, wide))};
  }
#elif HWY_TARGET == HWY_AVX2
  if constexpr (HWY_MAX_LANES_D(D) == 8) {
    const __m256i order = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,  //
                                           -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
    const __m256i twice = _mm256_broadcastsi128_si256(v.raw);
    return hn::Vec<D>{_mm256_castsi256_ps(_mm256_shuffle_epi8(twice, order))};
  }
#endif
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, v)));
}

/// Sequence and constants of to_f32 in lib/dtypes.h; a signalling NaN may become quiet.
template <class D>
HWY_INLINE hn::Vec<D> F32FromF16(D d, VU16<D> v) {
#if SIMDATTN_NATIVE_F16
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), v));
#else
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto u = hn::PromoteTo(du, v);
  const auto magnitude = hn::And(u, hn::Set(du, 0x7FFFu));
  const auto sign = hn::ShiftLeft<16>(hn::Xor(u, magnitude));
  const auto shifted = hn::ShiftLeft<13>(magnitude);
  const auto finite = hn::BitCast(du, hn::Mul(hn::BitCast(d, shifted), hn::Set(d, 0x1p112f)));
  const auto is_finite = hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, 0x7C00));
  const auto special = hn::Or(shifted, hn::Set(du, 0x7F800000u));
  return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(hn::RebindMask(du, is_finite), finite, special)));
#endif
}

using VF32 = hn::Vec<hn::ScalableTag<float>>;
/// NaN becomes the canonical one.
template <class D>
HWY_INLINE hn::Vec<D> Canonical(D d, hn::Vec<D> v) {
  const hn::RebindToUnsigned<D> du;
  return hn::IfThenElse(hn::Eq(v, v), v, hn::BitCast(d, hn::Set(du, kCanonicalNaN)));
}

/// Rounds to nearest even; NaN becomes the canonical one.
template <class D>
HWY_INLINE VU16<D> BF16FromF32(D d, hn::Vec<D> v) {
  // By integers: the CPUs' own instructions flush subnormal numbers.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (HWY_MAX_LANES_D(D) == 16) {
    // The masked addition puts NaN in place, one shuffle takes the upper halves.
    const __m512i bits = _mm512_castps_si512(v.raw);
    const __mmask16 number = _mm512_cmp_ps_mask(v.raw, v.raw, _CMP_ORD_Q);
    const __m512i lowest_bit = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i sum = _mm512_mask_add_epi32(_mm512_set1_epi32(static_cast<int>(kCanonicalNaN)), number, bits,
                                              _mm512_add_epi32(lowest_bit, _mm512_set1_epi32(0x7FFF)));
    const __m512i upper = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                           31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    return VU16<D>{_mm512_castsi512_si256(_mm512_permutexvar_epi16(upper, sum))};
  }
#endif
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  const auto b = hn::BitCast(du, Canonical(d, v));
  const auto odd = hn::And(hn::ShiftRight<16>(b), hn::Set(du, 1u));
  const auto rounded = hn::Add(hn::Add(b, hn::Set(du, 0x7FFFu)), odd);
  return hn::TruncateTo(d16, hn::ShiftRight<16>(rounded));
}

template <class D>
HWY_INLINE VU16<D> F16FromF32(D d, hn::Vec<D> v) {
  const hn::Rebind<uint16_t, D> d16;
#if SIMDATTN_NATIVE_F16
  return hn::BitCast(d16, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), Canonical(d, v)));
#else
  // from_f32<f16> in lib/dtypes.h.
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const auto b = hn::BitCast(du, v);
  const auto magnitude = hn::And(b, hn::Set(du, 0x7FFFFFFFu));
  const auto sign = hn::ShiftRight<16>(hn::Xor(b, magnitude));
  const auto below = [&](int32_t limit) {
    return hn::RebindMask(du, hn::Lt(hn::BitCast(di, magnitude), hn::Set(di, limit)));
  };
  const auto sum = hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f));
  const auto small = hn::Sub(hn::BitCast(du, sum), hn::Set(du, 0x3F000000u));
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  const auto rounded = hn::Add(hn::Add(magnitude, hn::Set(du, 0xFFFu)), odd);
  const auto normal = hn::ShiftRight<13>(hn::Sub(rounded, hn::Set(du, 0x38000000u)));
  auto bits = hn::IfThenElse(below(0x38800000), small, normal);
  bits = hn::IfThenElse(below(0x477FF000), bits, hn::Set(du, 0x7C00u));
  bits = hn::Or(bits, sign);
  bits = hn::IfThenElse(hn::RebindMask(du, hn::Eq(v, v)), bits, hn::Set(du, 0x7E00u));
  return hn::TruncateTo(d16, bits);
#endif
}

HWY_INLINE const uint16_t* Bits(const bf16* p) { return reinterpret_cast<const uint16_t*>(p); }
HWY_INLINE const uint16_t* Bits(const f16* p) { return reinterpret_cast<const uint16_t*>(p); }
HWY_INLINE uint16_t* Bits(bf16* p) { return reinterpret_cast<uint16_t*>(p); }
HWY_INLINE uint16_t* Bits(f16* p) { return reinterpret_cast<uint16_t*>(p); }

/// Lanes(d) elements, widened.
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D d, const bf16* p) {
  return F32FromBF16(d, hn::LoadU(hn::Rebind<uint16_t, D>(), Bits(p)));
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWide(D d, const f16* p) {
  return F32FromF16(d, hn::LoadU(hn::Rebind<uint16_t, D>(), Bits(p)));
}

/// The first n elements (all lanes if n is larger), then zeros.
template <class D>
HWY_INLINE hn::Vec<D> LoadWideN(D d, const float* p, size_t n) {
  return hn::LoadN(d, p, n);
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWideN(D d, const bf16* p, size_t n) {
  return F32FromBF16(d, hn::LoadN(hn::Rebind<uint16_t, D>(), Bits(p), n));
}
template <class D>
HWY_INLINE hn::Vec<D> LoadWideN(D d, const f16* p, size_t n) {
  return F32FromF16(d, hn::LoadN(hn::Rebind<uint16_t, D>(), Bits(p), n));
}

}  // namespace highway
}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_LOADS_H_
