// SSE2, and SSE4 where the flags have it: 16-bit numbers, order of lanes; a vector is one 128-bit block.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_SSE_H_
#define SIMDATTN_LIB_SIMD_NATIVE_SSE_H_

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

template <class T>
SIMDATTN_INLINE Floats load_blocks(const T* p, int64_t) {
  return _mm_loadu_ps(reinterpret_cast<const float*>(p));
}
SIMDATTN_INLINE Floats zip_lo_words(Floats a, Floats b) {
  return _mm_castsi128_ps(_mm_unpacklo_epi16(_mm_castps_si128(a), _mm_castps_si128(b)));
}
SIMDATTN_INLINE Floats zip_hi_words(Floats a, Floats b) {
  return _mm_castsi128_ps(_mm_unpackhi_epi16(_mm_castps_si128(a), _mm_castps_si128(b)));
}
// By integer instructions: they have two ports where those of floating point have one.
SIMDATTN_INLINE Floats zip_lo_blocks(Floats a, Floats b) {
  return _mm_castsi128_ps(_mm_unpacklo_epi32(_mm_castps_si128(a), _mm_castps_si128(b)));
}
SIMDATTN_INLINE Floats zip_hi_blocks(Floats a, Floats b) {
  return _mm_castsi128_ps(_mm_unpackhi_epi32(_mm_castps_si128(a), _mm_castps_si128(b)));
}
SIMDATTN_INLINE Floats zip_lo_pairs(Floats a, Floats b) {
  return _mm_castsi128_ps(_mm_unpacklo_epi64(_mm_castps_si128(a), _mm_castps_si128(b)));
}
SIMDATTN_INLINE Floats zip_hi_pairs(Floats a, Floats b) {
  return _mm_castsi128_ps(_mm_unpackhi_epi64(_mm_castps_si128(a), _mm_castps_si128(b)));
}
SIMDATTN_INLINE Floats sums_in_blocks(const float* sums, int64_t i) { return Floats::load_unaligned(sums + 4 * i); }
template <class Op>
SIMDATTN_INLINE float fold_lanes(Floats v, const Op& op) {
  return fold_four(static_cast<__m128>(v), op);
}
SIMDATTN_INLINE Floats even_lanes(Floats a, Floats b) { return _mm_shuffle_ps(a, b, 0x88); }
SIMDATTN_INLINE Floats odd_lanes(Floats a, Floats b) { return _mm_shuffle_ps(a, b, 0xDD); }
SIMDATTN_INLINE Floats zip_lower(Floats a, Floats b) { return _mm_unpacklo_ps(a, b); }
SIMDATTN_INLINE Floats zip_upper(Floats a, Floats b) { return _mm_unpackhi_ps(a, b); }
SIMDATTN_INLINE Floats even_twice(Floats v) { return _mm_shuffle_ps(v, v, 0xA0); }
SIMDATTN_INLINE Floats odd_twice(Floats v) { return _mm_shuffle_ps(v, v, 0xF5); }

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
  const __m128i zero = _mm_setzero_si128();
  return _mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(four), zero), zero);
}
SIMDATTN_INLINE Ints load_integers(const uint8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  const __m128i bytes = _mm_cvtsi32_si128(four), words = _mm_unpacklo_epi8(bytes, bytes);
  return _mm_srai_epi32(_mm_unpacklo_epi16(words, words), 24);
}
SIMDATTN_INLINE __m128i repeated_half(uint16_t x) { return _mm_set1_epi16(static_cast<int16_t>(x)); }

/// The lower (upper) words of the lanes of e and of o, side by side: e's, o's, e's, ...
SIMDATTN_INLINE Bits16 lower_words(Bits32 e, Bits32 o) {
  return _mm_or_si128(_mm_and_si128(e, _mm_set1_epi32(0xFFFF)), _mm_slli_epi32(o, 16));
}
SIMDATTN_INLINE Bits16 upper_words(Bits32 e, Bits32 o) {
  return _mm_or_si128(_mm_srli_epi32(e, 16), _mm_andnot_si128(_mm_set1_epi32(0xFFFF), o));
}
/// upper without its last bit where lower is 0.
SIMDATTN_INLINE Bits16 ties_to_even(Bits16 upper, Bits16 lower) {
  return _mm_andnot_si128(_mm_subs_epu16(_mm_set1_epi16(1), lower), upper);
}
/// Two vectors without NaN, one behind the other, rounded to nearest even.
SIMDATTN_INLINE void store_numbers(Bits32 b0, Bits32 b1, bf16* p) {
  const auto words = [](__m128i v0, __m128i v1)
                         SIMDATTN_LAMBDA { return _mm_packs_epi32(_mm_srai_epi32(v0, 16), _mm_srai_epi32(v1, 16)); };
  const Bits16 rounded = ties_to_even(words(b0, b1), words(_mm_slli_epi32(b0, 16), _mm_slli_epi32(b1, 16)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), rounded);
}
/// Lane i of the result is lane i ^ kHalf.
template <int64_t kHalf>
SIMDATTN_INLINE Floats swap_lanes(Floats v) {
  return _mm_shuffle_ps(v, v, kHalf == 1 ? 0xB1 : 0x4E);
}

/// To nearest even. What does not fit becomes -2^31.
SIMDATTN_INLINE Ints nearest(Floats v) { return _mm_cvtps_epi32(v); }
/// The lanes of four vectors, each a byte, one behind the other.
template <bool kUnsigned>
SIMDATTN_INLINE void store_bytes(Ints v0, Ints v1, Ints v2, Ints v3, void* p) {
  const __m128i low = _mm_packs_epi32(v0, v1), high = _mm_packs_epi32(v2, v3);
  _mm_storeu_si128(static_cast<__m128i*>(p), kUnsigned ? _mm_packus_epi16(low, high) : _mm_packs_epi16(low, high));
}
/// Bytes 0 and 2 (1 and 3) of each lane as numbers of 16 bits.
SIMDATTN_INLINE Ints even_bytes(Ints v) { return _mm_srai_epi16(_mm_slli_epi16(v, 8), 8); }
SIMDATTN_INLINE Ints odd_bytes(Ints v) { return _mm_srai_epi16(v, 8); }

}  // namespace
}  // namespace simdattn

#include "lib/simd/native/lanes.h"  // wants the above

#endif  // SIMDATTN_LIB_SIMD_NATIVE_SSE_H_
