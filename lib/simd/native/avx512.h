// AVX-512: what takes a port less than an operation of the libraries. What Highway has and xsimd has not, for xsimd: it
// has no access to some lanes, no f16, no blocks, and converts between numbers of one size alone.
#pragma once

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

#if !SIMDATTN_HIGHWAY
SIMDATTN_INLINE Floats load(const float* p, Lanes part) { return _mm512_maskz_loadu_ps(part.mask, p); }
SIMDATTN_INLINE void store(Floats v, float* p, Lanes part) { _mm512_mask_storeu_ps(p, part.mask, v); }

using Halves = __m256i;
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, Lanes part) { return _mm256_maskz_loadu_epi16(part.mask, p); }
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, Lanes part) { _mm256_mask_storeu_epi16(p, part.mask, v); }
SIMDATTN_INLINE Bits32 widen_bits(Halves v) { return _mm512_cvtepu16_epi32(v); }
SIMDATTN_INLINE Halves narrow_bits(Bits32 v) { return _mm512_cvtepi32_epi16(v); }
/// One shuffle in place of a shift and two.
SIMDATTN_INLINE Halves upper_bits(Bits32 v) {
  const __m512i order = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                         31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_castsi512_si256(_mm512_permutexvar_epi16(order, v));
}
SIMDATTN_INLINE Floats f32_from_f16(Halves v) { return _mm512_cvtph_ps(v); }
SIMDATTN_INLINE Halves f16_of_number(Floats v) {
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, Lanes part) {
  return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(part.mask, p));
}
SIMDATTN_INLINE Ints load_integers(const uint8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
SIMDATTN_INLINE void widen_four(uint64_t f16_bits, float* p) {
  _mm_store_ps(p, _mm_cvtph_ps(_mm_cvtsi64_si128(static_cast<long long>(f16_bits))));
}
SIMDATTN_INLINE Mask nonzero_bytes(const uint8_t* p, All) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return Mask(_mm_test_epi8_mask(v, v));
}
SIMDATTN_INLINE Mask nonzero_bytes(const uint8_t* p, Lanes part) {
  const __m128i v = _mm_maskz_loadu_epi8(part.mask, p);
  return Mask(_mm_test_epi8_mask(v, v));
}

template <class Address>
SIMDATTN_INLINE Floats load_blocks_at(const Address& address) {
  const auto at = [&](int64_t b) { return _mm_loadu_ps(reinterpret_cast<const float*>(address(b))); };
  __m512 v = _mm512_castps128_ps512(at(0));
  v = _mm512_mask_broadcast_f32x4(v, 0x00F0, at(1));
  v = _mm512_mask_broadcast_f32x4(v, 0x0F00, at(2));
  return _mm512_mask_broadcast_f32x4(v, 0xF000, at(3));
}

/// In each block the lanes of four vectors, each a byte.
template <bool kUnsigned>
SIMDATTN_INLINE Ints packed_bytes(Ints v0, Ints v1, Ints v2, Ints v3) {
  const __m512i low = _mm512_packs_epi32(v0, v1), high = _mm512_packs_epi32(v2, v3);
  return kUnsigned ? _mm512_packus_epi16(low, high) : _mm512_packs_epi16(low, high);
}
SIMDATTN_INLINE Floats load_cells(const char* p, int64_t n) {
  return _mm512_castsi512_ps(_mm512_maskz_loadu_epi8(_bzhi_u64(~uint64_t{0}, static_cast<uint64_t>(n)), p));
}
#endif

SIMDATTN_INLINE __m256i register_of(Halves v) { return __builtin_bit_cast(__m256i, v); }
/// One shuffle in place of a widening one and a shift.
SIMDATTN_INLINE Floats f32_from_bf16(Halves v) {
  const __m512i order = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0,  //
                                         7, 0, 6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0);
  return _mm512_castsi512_ps(
      _mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, order, _mm512_castsi256_si512(register_of(v))));
}
/// One shuffle for both k.
template <int k>
SIMDATTN_INLINE Bits16 upper_bytes(Bits32 v) {
  const __m512i order = _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1,  //
                                         30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i words = _mm512_permutexvar_epi16(order, v);
  return k == 0 ? _mm512_slli_epi16(words, 8) : words;
}
/// A shift and a mask would take a port of multiply-adds each.
template <int i>
SIMDATTN_INLINE Bits32 upper_byte(Bits32 v) {
  const __m128i block = _mm_setr_epi8(-1, -1, -1, i, -1, -1, -1, i + 4, -1, -1, -1, i + 8, -1, -1, -1, i + 12);
  return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(block));
}
/// A shift by one count for all lanes would take a shuffle besides.
SIMDATTN_INLINE Bits16 load_scaled_bytes(const uint8_t* p, int n) {
  return _mm512_sllv_epi16(_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))),
                           _mm512_set1_epi16(static_cast<int16_t>(n)));
}
SIMDATTN_INLINE Floats scale_unless_below(Floats x, Floats lowest, Floats p, Floats n) {
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, lowest, _CMP_NLT_UQ), p, n);
}

#if SIMDATTN_HIGHWAY
/// NearestInt takes a comparison and a selection more, for numbers out of range.
SIMDATTN_INLINE Ints nearest(Floats v) { return _mm512_cvtps_epi32(v); }
#endif

}  // namespace
}  // namespace simdattn
