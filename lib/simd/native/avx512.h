// AVX-512: masked access, 16-bit numbers, 128-bit blocks.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_AVX512_H_
#define SIMDATTN_LIB_SIMD_NATIVE_AVX512_H_

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

/// Some lanes of a batch take part; memory of the others is not touched.
struct Lanes {
  __mmask16 mask;
};
/// Lanes [0, n), n <= kLanes.
SIMDATTN_INLINE Lanes first_lanes(int64_t n) {
  return {static_cast<__mmask16>(_bzhi_u32(0xFFFFu, static_cast<uint32_t>(n)))};
}
/// Lanes [from, to), 0 <= from, to <= kLanes.
SIMDATTN_INLINE Lanes lanes(int64_t from, int64_t to) {
  return {static_cast<__mmask16>(first_lanes(to).mask & ~first_lanes(from).mask)};
}
SIMDATTN_INLINE Mask mask_of(Lanes part) { return Mask(part.mask); }

SIMDATTN_INLINE Floats load(const float* p, Lanes part) { return _mm512_maskz_loadu_ps(part.mask, p); }
SIMDATTN_INLINE void store(Floats v, float* p, Lanes part) { _mm512_mask_storeu_ps(p, part.mask, v); }

/// As many 16-bit numbers as a batch has lanes.
using Halves = __m256i;
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, All) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, Lanes part) { return _mm256_maskz_loadu_epi16(part.mask, p); }
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, All) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), v); }
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, Lanes part) { _mm256_mask_storeu_epi16(p, part.mask, v); }
SIMDATTN_INLINE Bits32 widen_bits(Halves v) { return _mm512_cvtepu16_epi32(v); }
/// Numbers below 2^16.
SIMDATTN_INLINE Halves narrow_bits(Bits32 v) { return _mm512_cvtepi32_epi16(v); }
SIMDATTN_INLINE Floats f32_from_f16(Halves v) { return _mm512_cvtph_ps(v); }
SIMDATTN_INLINE Halves f16_of_number(Floats v) {
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/// One shuffle in place of a widening one and a shift.
SIMDATTN_INLINE Floats f32_from_bf16(Halves v) {
  const __m512i order = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0,  //
                                         7, 0, 6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0);
  return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, order, _mm512_castsi256_si512(v)));
}
/// Rounded to nearest even by integers: the masked addition puts the canonical NaN in place, one shuffle takes the upper
/// halves.
SIMDATTN_INLINE Halves bf16_from_f32(Floats v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i last_bit = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_mask_add_epi32(_mm512_set1_epi32(static_cast<int32_t>(kCanonicalNaN)),
                                                _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q), bits,
                                                _mm512_add_epi32(last_bit, _mm512_set1_epi32(0x7FFF)));
  const __m512i upper = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                         31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  return _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper, rounded));
}
SIMDATTN_INLINE Halves repeated_half(uint16_t x) { return _mm256_set1_epi16(static_cast<int16_t>(x)); }
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, Lanes part) {
  return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(part.mask, p));
}
SIMDATTN_INLINE Ints load_integers(const uint8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
/// Byte i of each lane as its upper one, zeros below.
template <int i>
SIMDATTN_INLINE Bits32 upper_byte(Bits32 v) {
  return _mm512_and_si512(_mm512_slli_epi32(v, 24 - 8 * i), _mm512_set1_epi32(static_cast<int32_t>(0xFF000000u)));
}
/// Bytes 2 kPair of all lanes, then bytes 2 kPair + 1, as upper halves of 16 bits, zeros below.
template <int kPair>
SIMDATTN_INLINE Bits16 upper_bytes(Bits32 v) {
  constexpr int8_t k = 2 * kPair;
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(-1, k, -1, k + 4, -1, k + 8, -1, k + 12,  //
                                                             -1, k + 1, -1, k + 5, -1, k + 9, -1, k + 13));
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), _mm512_shuffle_epi8(v, order));
}
/// Half of a signed number, towards -infinity.
SIMDATTN_INLINE Bits16 signed_shift(Bits16 v, int n) { return _mm512_sra_epi16(v, _mm_cvtsi32_si128(n)); }
SIMDATTN_INLINE Bits32 max_bytes(Bits32 a, Bits32 b) { return _mm512_max_epu8(a, b); }
/// 2 kLanes bytes as upper halves of 16 bits, zeros below.
SIMDATTN_INLINE Bits16 load_upper_bytes(const uint8_t* p) {
  return _mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 8);
}
/// Lanes whose byte is not 0.
SIMDATTN_INLINE Mask nonzero_bytes(const uint8_t* p, All) {
  const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return Mask(_mm_test_epi8_mask(v, v));
}
SIMDATTN_INLINE Mask nonzero_bytes(const uint8_t* p, Lanes part) {
  const __m128i v = _mm_maskz_loadu_epi8(part.mask, p);
  return Mask(_mm_test_epi8_mask(v, v));
}
/// Lanes whose bit of `word` is 1.
SIMDATTN_INLINE Mask one_bits(uint32_t word) { return Mask(static_cast<__mmask16>(word)); }

/// Block b (128 bits) of the result is what lies at p + kRows b stride.
template <int64_t kRows = 4, class T>
SIMDATTN_INLINE Floats load_blocks(const T* p, int64_t stride) {
  const auto at = [&](int64_t b) { return _mm_loadu_ps(reinterpret_cast<const float*>(p + kRows * b * stride)); };
  const __m256 low = _mm256_insertf128_ps(_mm256_castps128_ps256(at(0)), at(1), 1);
  const __m256 high = _mm256_insertf128_ps(_mm256_castps128_ps256(at(2)), at(3), 1);
  return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}
/// Interleaves the lower (upper) halves of every block, by 16 bits, numbers and pairs.
SIMDATTN_INLINE Floats zip_lo_words(Floats a, Floats b) {
  return _mm512_castsi512_ps(_mm512_unpacklo_epi16(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
SIMDATTN_INLINE Floats zip_hi_words(Floats a, Floats b) {
  return _mm512_castsi512_ps(_mm512_unpackhi_epi16(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
SIMDATTN_INLINE Floats zip_lo_blocks(Floats a, Floats b) { return _mm512_unpacklo_ps(a, b); }
SIMDATTN_INLINE Floats zip_hi_blocks(Floats a, Floats b) { return _mm512_unpackhi_ps(a, b); }
SIMDATTN_INLINE Floats zip_lo_pairs(Floats a, Floats b) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
SIMDATTN_INLINE Floats zip_hi_pairs(Floats a, Floats b) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
/// f16 in the first or second half of a register.
SIMDATTN_INLINE Floats f32_of_first(Floats v) { return f32_from_f16(_mm512_castsi512_si256(_mm512_castps_si512(v))); }
SIMDATTN_INLINE Floats f32_of_second(Floats v) {
  return f32_from_f16(_mm512_extracti64x4_epi64(_mm512_castps_si512(v), 1));
}
/// The 16 partial sums of key `key` of 16 are stored as two halves, the second ones behind all first ones: a store that
/// extracts needs no shuffle, and the first fold is then an addition of whole batches.
constexpr int64_t kPieces = 2;
template <int64_t kPiece>
SIMDATTN_INLINE void store_sums(Floats v, float* sums, int64_t key) {
  if constexpr (kPiece == 0) {
    _mm256_storeu_ps(sums + key * 8, _mm512_castps512_ps256(v));
  } else {
    _mm256_storeu_ps(sums + 128 + key * 8, _mm512_extractf32x8_ps(v, 1));
  }
}
/// The partial sums of keys 4 i + b, folded to 4 in block b.
SIMDATTN_INLINE Floats sums_in_blocks(const float* sums, int64_t i) {
  const float* p = sums + i * 32;
  const __m512 ab = _mm512_add_ps(_mm512_loadu_ps(p), _mm512_loadu_ps(p + 128));
  const __m512 cd = _mm512_add_ps(_mm512_loadu_ps(p + 16), _mm512_loadu_ps(p + 144));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
}
/// Lane 4 b + i becomes lane 4 i + b.
SIMDATTN_INLINE Floats in_key_order(Floats v) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return _mm512_permutexvar_ps(order, v);
}

/// Joins all lanes by op: halves, quarters and so on, the order of the 16 partial sums.
template <class Op>
SIMDATTN_INLINE float fold_lanes(Floats v, const Op& op) {
  const __m256 eight = op(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
  return fold_four(op(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1)), op);
}

/// Even and odd numbers of a and then b, and back.
SIMDATTN_INLINE Floats even_lanes(Floats a, Floats b) {
  const __m512i i = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  return _mm512_permutex2var_ps(a, i, b);
}
SIMDATTN_INLINE Floats odd_lanes(Floats a, Floats b) {
  const __m512i i = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
  return _mm512_permutex2var_ps(a, i, b);
}
SIMDATTN_INLINE Floats zip_lower(Floats a, Floats b) {
  const __m512i i = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  return _mm512_permutex2var_ps(a, i, b);
}
SIMDATTN_INLINE Floats zip_upper(Floats a, Floats b) {
  const __m512i i = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  return _mm512_permutex2var_ps(a, i, b);
}
SIMDATTN_INLINE Floats even_twice(Floats v) { return _mm512_moveldup_ps(v); }
SIMDATTN_INLINE Floats odd_twice(Floats v) { return _mm512_movehdup_ps(v); }

/// p 2^n, 0 where x < lowest.
SIMDATTN_INLINE Floats scale_unless_below(Floats x, Floats lowest, Floats p, Floats n) {
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, lowest, _CMP_NLT_UQ), p, n);
}

/// The lower (upper) words of the lanes of e and of o, side by side: e's, o's, e's, ...
SIMDATTN_INLINE Bits16 lower_words(Bits32 e, Bits32 o) {
  return _mm512_mask_blend_epi16(0xAAAAAAAAu, e, _mm512_slli_epi32(o, 16));
}
SIMDATTN_INLINE Bits16 upper_words(Bits32 e, Bits32 o) {
  return _mm512_mask_blend_epi16(0xAAAAAAAAu, _mm512_srli_epi32(e, 16), o);
}
/// upper without its last bit where lower is 0.
SIMDATTN_INLINE Bits16 ties_to_even(Bits16 upper, Bits16 lower) {
  return _mm512_andnot_si512(_mm512_subs_epu16(_mm512_set1_epi16(1), lower), upper);
}
/// Two vectors without NaN, one behind the other, rounded to nearest even.
SIMDATTN_INLINE void store_numbers(Bits32 b0, Bits32 b1, bf16* p) {
  const __m512i even = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32,  //
                                        30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const __m512i odd = _mm512_add_epi16(even, _mm512_set1_epi16(1));
  const Bits16 rounded = ties_to_even(_mm512_permutex2var_epi16(b0, odd, b1), _mm512_permutex2var_epi16(b0, even, b1));
  _mm512_storeu_si512(p, rounded);
}
/// Lane i of the result is lane i ^ kHalf.
template <int64_t kHalf>
SIMDATTN_INLINE Floats swap_lanes(Floats v) {
  if constexpr (kHalf >= 4) return _mm512_shuffle_f32x4(v, v, kHalf == 4 ? 0xB1 : 0x4E);
  else return _mm512_permute_ps(v, kHalf == 1 ? 0xB1 : 0x4E);
}
/// The blocks to rows of kRows p's stride.
template <int64_t kRows>
SIMDATTN_INLINE void store_blocks(Floats v, char* p, int64_t stride) {
  const auto at = [&](int64_t b) SIMDATTN_LAMBDA { return reinterpret_cast<float*>(p + kRows * b * stride); };
  _mm_storeu_ps(at(0), _mm512_castps512_ps128(v));
  _mm_storeu_ps(at(1), _mm512_extractf32x4_ps(v, 1));
  _mm_storeu_ps(at(2), _mm512_extractf32x4_ps(v, 2));
  _mm_storeu_ps(at(3), _mm512_extractf32x4_ps(v, 3));
}

/// To nearest even. What does not fit becomes -2^31.
SIMDATTN_INLINE Ints nearest(Floats v) { return _mm512_cvtps_epi32(v); }
template <bool kUnsigned>
SIMDATTN_INLINE __m512i packed_bytes(Ints v0, Ints v1, Ints v2, Ints v3) {
  const __m512i low = _mm512_packs_epi32(v0, v1), high = _mm512_packs_epi32(v2, v3);
  return kUnsigned ? _mm512_packus_epi16(low, high) : _mm512_packs_epi16(low, high);
}
/// The lanes of four vectors, each a byte, one behind the other.
template <bool kUnsigned>
SIMDATTN_INLINE void store_bytes(Ints v0, Ints v1, Ints v2, Ints v3, void* p) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(p, _mm512_permutexvar_epi32(order, packed_bytes<kUnsigned>(v0, v1, v2, v3)));
}
/// Byte i of a lane is that of v_i, -128 .. 127.
SIMDATTN_INLINE Ints cells_of(Ints v0, Ints v1, Ints v2, Ints v3) {
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  return _mm512_shuffle_epi8(packed_bytes<false>(v0, v1, v2, v3), order);
}
/// Bytes 0 and 2 (1 and 3) of each lane as numbers of 16 bits.
SIMDATTN_INLINE Ints even_bytes(Ints v) { return _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8); }
SIMDATTN_INLINE Ints odd_bytes(Ints v) { return _mm512_srai_epi16(v, 8); }
/// The first n bytes of 4 kLanes, then zeros.
SIMDATTN_INLINE Floats load_cells(const char* p, int64_t n) {
  return _mm512_castsi512_ps(_mm512_maskz_loadu_epi8(_bzhi_u64(~uint64_t{0}, static_cast<uint64_t>(n)), p));
}
/// By bytes.
SIMDATTN_INLINE Floats zip_lo_bytes(Floats a, Floats b) {
  return _mm512_castsi512_ps(_mm512_unpacklo_epi8(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
SIMDATTN_INLINE Floats zip_hi_bytes(Floats a, Floats b) {
  return _mm512_castsi512_ps(_mm512_unpackhi_epi8(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
/// Block b of vector i to where block `kLanes / 4 b + i` of all four lies.
SIMDATTN_INLINE void order_columns(Floats& s0, Floats& s1, Floats& s2, Floats& s3) {
  const __m512 t0 = _mm512_shuffle_f32x4(s0, s1, 0x44), t1 = _mm512_shuffle_f32x4(s2, s3, 0x44);
  const __m512 t2 = _mm512_shuffle_f32x4(s0, s1, 0xEE), t3 = _mm512_shuffle_f32x4(s2, s3, 0xEE);
  s0 = _mm512_shuffle_f32x4(t0, t1, 0x88);
  s1 = _mm512_shuffle_f32x4(t0, t1, 0xDD);
  s2 = _mm512_shuffle_f32x4(t2, t3, 0x88);
  s3 = _mm512_shuffle_f32x4(t2, t3, 0xDD);
}

SIMDATTN_INLINE Floats sum_where(Mask m, Floats a, Floats b, Floats other) {
  return _mm512_mask_add_ps(other, m, a, b);
}
SIMDATTN_INLINE Floats add_where_finite(Mask m, Floats a, Floats b) { return sum_where(m, a, b, b); }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_NATIVE_AVX512_H_
