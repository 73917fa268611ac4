// SSE2, and SSE4 where the flags have it; a vector is one 128-bit block. What Highway has and xsimd has not, for xsimd:
// it converts between numbers of one size alone.
#pragma once

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

#if SIMDATTN_HIGHWAY
/// NearestInt takes a comparison and a selection more, for numbers out of range.
SIMDATTN_INLINE Ints nearest(Floats v) { return _mm_cvtps_epi32(v); }
/// StoreMaskBits extends a byte, which costs top_k a tenth with AVX2.
SIMDATTN_INLINE uint32_t word_of(Mask m) { return static_cast<uint32_t>(_mm_movemask_ps(m.data.raw)); }
#else
using Halves = __m128i;
SIMDATTN_INLINE Bits32 widen_bits(__m128i v) { return _mm_unpacklo_epi16(v, _mm_setzero_si128()); }
SIMDATTN_INLINE __m128i narrow_bits(Bits32 v) {
#ifdef __SSE4_1__
  return _mm_packus_epi32(v, v);
#else
  const __m128i low = _mm_srai_epi32(_mm_slli_epi32(v, 16), 16);
  return _mm_packs_epi32(low, low);
#endif
}
SIMDATTN_INLINE __m128i load_halves(const uint16_t* p, All) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
SIMDATTN_INLINE void store_halves(__m128i v, uint16_t* p, All) { _mm_storel_epi64(reinterpret_cast<__m128i*>(p), v); }
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
#ifdef __SSE4_1__
  return _mm_cvtepu8_epi32(_mm_cvtsi32_si128(four));
#else
  const __m128i zero = _mm_setzero_si128();
  return _mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(four), zero), zero);
#endif
}
SIMDATTN_INLINE Ints load_integers(const uint8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  const __m128i bytes = _mm_cvtsi32_si128(four);
#ifdef __SSE4_1__
  return _mm_cvtepi8_epi32(bytes);
#else
  const __m128i words = _mm_unpacklo_epi8(bytes, bytes);
  return _mm_srai_epi32(_mm_unpacklo_epi16(words, words), 24);
#endif
}
/// In each block the lanes of four vectors, each a byte.
template <bool kUnsigned>
SIMDATTN_INLINE Ints packed_bytes(Ints v0, Ints v1, Ints v2, Ints v3) {
  const __m128i low = _mm_packs_epi32(v0, v1), high = _mm_packs_epi32(v2, v3);
  return kUnsigned ? _mm_packus_epi16(low, high) : _mm_packs_epi16(low, high);
}
#endif
SIMDATTN_INLINE Floats f32_from_bf16(Halves v) {
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), __builtin_bit_cast(__m128i, v)));
}

}  // namespace
}  // namespace simdattn
