// What xsimd does not offer and each instruction set does: access to some lanes only, 16-bit numbers, movement of
// 128-bit blocks. Intrinsics are here; NEON also has neon_operators.h, and casts are in batch.h.
#ifndef SIMDATTN_LIB_XSIMD_NATIVE_H_
#define SIMDATTN_LIB_XSIMD_NATIVE_H_

#include "lib/xsimd/batch.h"

namespace simdattn {
namespace {

/// All lanes of a batch take part in a load or store.
struct All {};

/// to[i] = from[i] for `begin` <= i < `end` within kCount: unrolled, for instruction sets without masked access.
template <int64_t kCount, class T>
SIMDATTN_INLINE void copy_lanes(const T* from, T* to, int64_t begin, int64_t end) {
  unroll<kCount>([&](auto i) SIMDATTN_LAMBDA {
    if (begin <= i && i < end) to[i] = from[i];
  });
}

// ---------------------------------------------------------------------------------------------------------------------
#if XSIMD_WITH_AVX512F

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
  using Eight = xsimd::batch<float, xsimd::avx2>;
  using Four = xsimd::batch<float, xsimd::sse4_2>;
  const Eight eight = op(Eight(_mm512_castps512_ps256(v)), Eight(_mm512_extractf32x8_ps(v, 1)));
  Four four = op(Four(_mm256_castps256_ps128(eight)), Four(_mm256_extractf128_ps(eight, 1)));
  four = op(four, Four(_mm_movehl_ps(four, four)));
  four = op(four, Four(_mm_movehdup_ps(four)));
  return _mm_cvtss_f32(four);
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

/// p 2^n, 0 where x < lowest. (xsimd::ldexp takes n as integers and would convert it back.)
SIMDATTN_INLINE Floats scale_unless_below(Floats x, Floats lowest, Floats p, Floats n) {
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, lowest, _CMP_NLT_UQ), p, n);
}

// ---------------------------------------------------------------------------------------------------------------------
#elif XSIMD_WITH_SSE2

#if XSIMD_WITH_AVX2

struct Lanes {
  __m256i mask;
  int64_t from, to;
};
SIMDATTN_INLINE Lanes first_lanes(int64_t n) {
  return {_mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int32_t>(n)), lane_numbers()), 0, n};
}
SIMDATTN_INLINE Lanes lanes(int64_t from, int64_t to) {
  return {_mm256_andnot_si256(first_lanes(from).mask, first_lanes(to).mask), from, to};
}
SIMDATTN_INLINE Mask mask_of(Lanes part) { return Mask(_mm256_castsi256_ps(part.mask)); }

SIMDATTN_INLINE Floats load(const float* p, Lanes part) { return _mm256_maskload_ps(p, part.mask); }
SIMDATTN_INLINE void store(Floats v, float* p, Lanes part) { _mm256_maskstore_ps(p, part.mask, v); }

template <int64_t kRows = 4, class T>
SIMDATTN_INLINE Floats load_blocks(const T* p, int64_t stride) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(reinterpret_cast<const float*>(p))),
                              _mm_loadu_ps(reinterpret_cast<const float*>(p + kRows * stride)), 1);
}
SIMDATTN_INLINE Floats zip_lo_words(Floats a, Floats b) {
  return _mm256_castsi256_ps(_mm256_unpacklo_epi16(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
SIMDATTN_INLINE Floats zip_hi_words(Floats a, Floats b) {
  return _mm256_castsi256_ps(_mm256_unpackhi_epi16(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
SIMDATTN_INLINE Floats f32_of_first(Floats v) {
  return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_castps_si256(v)));
}
SIMDATTN_INLINE Floats f32_of_second(Floats v) {
  return _mm256_cvtph_ps(_mm256_extracti128_si256(_mm256_castps_si256(v), 1));
}
// By integer instructions: they have two ports where those of floating point have one.
SIMDATTN_INLINE Floats zip_lo_blocks(Floats a, Floats b) {
  return _mm256_castsi256_ps(_mm256_unpacklo_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
SIMDATTN_INLINE Floats zip_hi_blocks(Floats a, Floats b) {
  return _mm256_castsi256_ps(_mm256_unpackhi_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
SIMDATTN_INLINE Floats zip_lo_pairs(Floats a, Floats b) {
  return _mm256_castsi256_ps(_mm256_unpacklo_epi64(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
SIMDATTN_INLINE Floats zip_hi_pairs(Floats a, Floats b) {
  return _mm256_castsi256_ps(_mm256_unpackhi_epi64(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
/// The 8 partial sums of keys 4 b + i, folded to 4 in block b.
SIMDATTN_INLINE Floats sums_in_blocks(const float* sums, int64_t i) {
  return load_blocks(sums + 8 * i, 8) + load_blocks(sums + 8 * i + 4, 8);
}
template <class Op>
SIMDATTN_INLINE float fold_lanes(Floats v, const Op& op) {
  using Four = xsimd::batch<float, xsimd::sse4_2>;
  Four four = op(Four(_mm256_castps256_ps128(v)), Four(_mm256_extractf128_ps(v, 1)));
  four = op(four, Four(_mm_movehl_ps(four, four)));
  four = op(four, Four(_mm_movehdup_ps(four)));
  return _mm_cvtss_f32(four);
}
SIMDATTN_INLINE Floats ordered_blocks(__m256 v) {  // blocks (a b) of pairs become (a's, b's)
  return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), _MM_SHUFFLE(3, 1, 2, 0)));
}
SIMDATTN_INLINE Floats even_lanes(Floats a, Floats b) { return ordered_blocks(_mm256_shuffle_ps(a, b, 0x88)); }
SIMDATTN_INLINE Floats odd_lanes(Floats a, Floats b) { return ordered_blocks(_mm256_shuffle_ps(a, b, 0xDD)); }
SIMDATTN_INLINE Floats zip_lower(Floats a, Floats b) { return xsimd::zip_lo(a, b); }
SIMDATTN_INLINE Floats zip_upper(Floats a, Floats b) { return xsimd::zip_hi(a, b); }
SIMDATTN_INLINE Floats even_twice(Floats v) { return _mm256_moveldup_ps(v); }
SIMDATTN_INLINE Floats odd_twice(Floats v) { return _mm256_movehdup_ps(v); }

SIMDATTN_INLINE Bits32 widen_bits(__m128i v) { return _mm256_cvtepu16_epi32(v); }
/// A broadcast that comes with the load and one shuffle in place of a widening one and a shift.
SIMDATTN_INLINE Floats f32_from_bf16(__m128i v) {
  const __m256i order = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,  //
                                         -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
  return _mm256_castsi256_ps(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(v), order));
}
SIMDATTN_INLINE __m128i narrow_bits(Bits32 v) {
  const __m256i packed = _mm256_packus_epi32(v, v);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
}
/// The lower halves as the upper ones: a shift would take one of the two ports of multiply-adds.
SIMDATTN_INLINE Floats even_of(Bits32 pairs) {
  const __m256i order = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13,  //
                                         -1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13);
  return _mm256_castsi256_ps(_mm256_shuffle_epi8(pairs, order));
}
/// f32_from_bf16, even_of and odd_of of memory for the tile of 4x3 accumulators, which leaves no register for constants
/// nor for pairs: constants stay in memory (which elsewhere would cost up to a quarter), pairs are loaded twice.
struct EightPairs {
  uint16_t v[16];
};
SIMDATTN_INLINE Floats load_in_order(const uint16_t* p) {
  alignas(32) static constexpr int8_t kOrder[32] = {-1, -1, 0, 1, -1, -1, 2,  3,  -1, -1, 4,  5,  -1, -1, 6,  7,
                                                    -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15};
  __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  asm("vpshufb %1, %0, %0" : "+x"(v) : "m"(kOrder));
  return _mm256_castsi256_ps(v);
}
SIMDATTN_INLINE Floats load_even(const uint16_t* p) {
  alignas(32) static constexpr int8_t kOrder[32] = {-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13,
                                                    -1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13};
  __m256 v;
  asm("vmovdqu %1, %0\n\tvpshufb %2, %0, %0" : "=x"(v) : "m"(*reinterpret_cast<const EightPairs*>(p)), "m"(kOrder));
  return v;
}
SIMDATTN_INLINE Floats load_odd(const uint16_t* p) {
  alignas(32) static constexpr uint32_t kUpper[8] = {0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u,
                                                     0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u};
  __m256 v;
  asm("vmovdqu %1, %0\n\tvpand %2, %0, %0" : "=x"(v) : "m"(*reinterpret_cast<const EightPairs*>(p)), "m"(kUpper));
  return v;
}
SIMDATTN_INLINE Floats f32_from_f16(__m128i v) { return _mm256_cvtph_ps(v); }
SIMDATTN_INLINE __m128i f16_of_number(Floats v) {
  return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
SIMDATTN_INLINE __m128i load_halves(const uint16_t* p, All) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
SIMDATTN_INLINE void store_halves(__m128i v, uint16_t* p, All) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), v); }
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
SIMDATTN_INLINE Bits32 load_bytes_of(const uint8_t* eight) { return load_bytes(eight, All()); }

#else  // SSE4.2

struct Lanes {
  int64_t from, to;
};
SIMDATTN_INLINE Lanes first_lanes(int64_t n) { return {0, n}; }
SIMDATTN_INLINE Lanes lanes(int64_t from, int64_t to) { return {from, to}; }
SIMDATTN_INLINE Mask mask_of(Lanes part) {
  const Ints i = lane_numbers();
  return xsimd::batch_bool_cast<float>((i < Ints(static_cast<int32_t>(part.to))) &
                                       (i >= Ints(static_cast<int32_t>(part.from))));
}

SIMDATTN_INLINE Floats load(const float* p, Lanes part) {
  alignas(16) float copy[4] = {};
  copy_lanes<kLanes>(p, copy, part.from, part.to);
  return Floats::load_aligned(copy);
}
SIMDATTN_INLINE void store(Floats v, float* p, Lanes part) {
  alignas(16) float copy[4];
  v.store_aligned(copy);
  copy_lanes<kLanes>(copy, p, part.from, part.to);
}

template <class T>
SIMDATTN_INLINE Floats load_blocks(const T* p, int64_t) {
  return _mm_loadu_ps(reinterpret_cast<const float*>(p));
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
  v = op(v, Floats(_mm_movehl_ps(v, v)));
  v = op(v, Floats(_mm_movehdup_ps(v)));
  return _mm_cvtss_f32(v);
}
SIMDATTN_INLINE Floats even_lanes(Floats a, Floats b) { return _mm_shuffle_ps(a, b, 0x88); }
SIMDATTN_INLINE Floats odd_lanes(Floats a, Floats b) { return _mm_shuffle_ps(a, b, 0xDD); }
SIMDATTN_INLINE Floats zip_lower(Floats a, Floats b) { return xsimd::zip_lo(a, b); }
SIMDATTN_INLINE Floats zip_upper(Floats a, Floats b) { return xsimd::zip_hi(a, b); }
SIMDATTN_INLINE Floats even_twice(Floats v) { return _mm_moveldup_ps(v); }
SIMDATTN_INLINE Floats odd_twice(Floats v) { return _mm_movehdup_ps(v); }

SIMDATTN_INLINE Bits32 widen_bits(__m128i v) { return _mm_cvtepu16_epi32(v); }
SIMDATTN_INLINE __m128i narrow_bits(Bits32 v) { return _mm_packus_epi32(v, v); }
SIMDATTN_INLINE __m128i load_halves(const uint16_t* p, All) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
SIMDATTN_INLINE void store_halves(__m128i v, uint16_t* p, All) { _mm_storel_epi64(reinterpret_cast<__m128i*>(p), v); }
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return _mm_cvtepu8_epi32(_mm_cvtsi32_si128(four));
}
SIMDATTN_INLINE Bits32 load_bytes_of(const uint8_t* eight) { return load_bytes(eight, All()); }

#endif  // AVX2 or SSE4.2

using Halves = __m128i;
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, Lanes part) {
  alignas(16) uint16_t copy[8] = {};
  copy_lanes<kLanes>(p, copy, part.from, part.to);
  return _mm_load_si128(reinterpret_cast<const __m128i*>(copy));
}
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, Lanes part) {
  alignas(16) uint16_t copy[8];
  _mm_store_si128(reinterpret_cast<__m128i*>(copy), v);
  copy_lanes<kLanes>(copy, p, part.from, part.to);
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, Lanes part) {
  alignas(8) uint8_t copy[8] = {};
  copy_lanes<kLanes>(p, copy, part.from, part.to);
  return load_bytes_of(copy);
}

// ---------------------------------------------------------------------------------------------------------------------
#elif XSIMD_WITH_SVE

struct Lanes {
  Mask mask;
};
SIMDATTN_INLINE Lanes first_lanes(int64_t n) { return {Mask(svwhilelt_b32_s64(0, n))}; }
SIMDATTN_INLINE Lanes lanes(int64_t from, int64_t to) {
  return {Mask(svbic_b_z(svptrue_b32(), svwhilelt_b32_s64(0, to), svwhilelt_b32_s64(0, from)))};
}
SIMDATTN_INLINE Mask mask_of(Lanes part) { return part.mask; }

SIMDATTN_INLINE Floats load(const float* p, Lanes part) { return svld1_f32(part.mask, p); }
SIMDATTN_INLINE void store(Floats v, float* p, Lanes part) { svst1_f32(part.mask, p, v); }

/// In the lower halves of 32-bit lanes: loads and stores convert.
using Halves = Bits32;
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, All) { return svld1uh_u32(svptrue_b32(), p); }
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, Lanes part) { return svld1uh_u32(part.mask, p); }
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, All) { svst1h_u32(svptrue_b32(), p, v); }
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, Lanes part) { svst1h_u32(part.mask, p, v); }
SIMDATTN_INLINE Bits32 widen_bits(Halves v) { return v; }
SIMDATTN_INLINE Halves narrow_bits(Bits32 v) { return v; }
SIMDATTN_INLINE Floats f32_from_f16(Halves v) { return svcvt_f32_f16_x(svptrue_b32(), svreinterpret_f16_u32(v)); }
SIMDATTN_INLINE Halves f16_of_number(Floats v) { return svreinterpret_u32_f16(svcvt_f16_f32_z(svptrue_b32(), v)); }
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) { return svld1ub_u32(svptrue_b32(), p); }
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, Lanes part) { return svld1ub_u32(part.mask, p); }

template <class Op>
SIMDATTN_INLINE float fold_lanes(Floats v, const Op& op) {
  if constexpr (kLanes > 8) v = op(v, Floats(svext_f32(v, v, 8)));
  if constexpr (kLanes > 4) v = op(v, Floats(svext_f32(v, v, 4)));
  v = op(v, Floats(svext_f32(v, v, 2)));
  v = op(v, Floats(svext_f32(v, v, 1)));
  return svlastb_f32(svpfalse_b(), v);
}

SIMDATTN_INLINE Floats even_lanes(Floats a, Floats b) { return svuzp1_f32(a, b); }
SIMDATTN_INLINE Floats odd_lanes(Floats a, Floats b) { return svuzp2_f32(a, b); }
SIMDATTN_INLINE Floats zip_lower(Floats a, Floats b) { return xsimd::zip_lo(a, b); }
SIMDATTN_INLINE Floats zip_upper(Floats a, Floats b) { return xsimd::zip_hi(a, b); }
SIMDATTN_INLINE Floats even_twice(Floats v) { return svtrn1_f32(v, v); }
SIMDATTN_INLINE Floats odd_twice(Floats v) { return svtrn2_f32(v, v); }

// ---------------------------------------------------------------------------------------------------------------------
#elif XSIMD_WITH_NEON64

struct Lanes {
  int64_t from, to;
};
SIMDATTN_INLINE Lanes first_lanes(int64_t n) { return {0, n}; }
SIMDATTN_INLINE Lanes lanes(int64_t from, int64_t to) { return {from, to}; }
SIMDATTN_INLINE Mask mask_of(Lanes part) {
  const Ints i = lane_numbers();
  return xsimd::batch_bool_cast<float>((i < Ints(static_cast<int32_t>(part.to))) &
                                       (i >= Ints(static_cast<int32_t>(part.from))));
}

SIMDATTN_INLINE Floats load(const float* p, Lanes part) {
  alignas(16) float copy[4] = {};
  copy_lanes<kLanes>(p, copy, part.from, part.to);
  return Floats::load_aligned(copy);
}
SIMDATTN_INLINE void store(Floats v, float* p, Lanes part) {
  alignas(16) float copy[4];
  v.store_aligned(copy);
  copy_lanes<kLanes>(copy, p, part.from, part.to);
}

using Halves = uint16x4_t;
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, All) { return vld1_u16(p); }
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, Lanes part) {
  uint16_t copy[4] = {};
  copy_lanes<kLanes>(p, copy, part.from, part.to);
  return vld1_u16(copy);
}
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, All) { vst1_u16(p, v); }
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, Lanes part) {
  uint16_t copy[4];
  vst1_u16(copy, v);
  copy_lanes<kLanes>(copy, p, part.from, part.to);
}
SIMDATTN_INLINE Bits32 widen_bits(Halves v) { return vmovl_u16(v); }
SIMDATTN_INLINE Halves narrow_bits(Bits32 v) { return vmovn_u32(v); }
SIMDATTN_INLINE Floats f32_from_f16(Halves v) { return vcvt_f32_f16(vreinterpret_f16_u16(v)); }
SIMDATTN_INLINE Halves f16_of_number(Floats v) { return vreinterpret_u16_f16(vcvt_f16_f32(v)); }
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) {
  uint32_t four;
  __builtin_memcpy(&four, p, 4);
  return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)))));
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, Lanes part) {
  uint8_t copy[4] = {};
  copy_lanes<kLanes>(p, copy, part.from, part.to);
  return load_bytes(copy, All());
}

SIMDATTN_INLINE Floats load_blocks(const float* p, int64_t) { return Floats::load_unaligned(p); }
SIMDATTN_INLINE Floats zip_lo_blocks(Floats a, Floats b) { return xsimd::zip_lo(a, b); }
SIMDATTN_INLINE Floats zip_hi_blocks(Floats a, Floats b) { return xsimd::zip_hi(a, b); }
SIMDATTN_INLINE Floats zip_lo_pairs(Floats a, Floats b) {
  return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
SIMDATTN_INLINE Floats zip_hi_pairs(Floats a, Floats b) {
  return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
SIMDATTN_INLINE Floats sums_in_blocks(const float* sums, int64_t i) { return Floats::load_unaligned(sums + 4 * i); }
template <class Op>
SIMDATTN_INLINE float fold_lanes(Floats v, const Op& op) {
  v = op(v, Floats(vextq_f32(v, v, 2)));
  v = op(v, Floats(vextq_f32(v, v, 1)));
  return vgetq_lane_f32(v, 0);
}
SIMDATTN_INLINE Floats even_lanes(Floats a, Floats b) { return vuzp1q_f32(a, b); }
SIMDATTN_INLINE Floats odd_lanes(Floats a, Floats b) { return vuzp2q_f32(a, b); }
SIMDATTN_INLINE Floats zip_lower(Floats a, Floats b) { return xsimd::zip_lo(a, b); }
SIMDATTN_INLINE Floats zip_upper(Floats a, Floats b) { return xsimd::zip_hi(a, b); }
SIMDATTN_INLINE Floats even_twice(Floats v) { return vtrn1q_f32(v, v); }
SIMDATTN_INLINE Floats odd_twice(Floats v) { return vtrn2q_f32(v, v); }

#else
#error "an instruction set without a section here"
#endif
// ---------------------------------------------------------------------------------------------------------------------

#if !XSIMD_WITH_AVX512F
constexpr int64_t kPieces = 1;
template <int64_t kPiece>
SIMDATTN_INLINE void store_sums(Floats v, float* sums, int64_t key) {
  v.store_unaligned(sums + key * kLanes);
}
SIMDATTN_INLINE Floats in_key_order(Floats v) { return v; }
#endif

SIMDATTN_INLINE float first_lane(Floats v) { return static_cast<Floats::register_type>(v)[0]; }

/// A batch that stays in its register: gcc would fold its load into each of the instructions that use it.
template <class T>
SIMDATTN_INLINE xsimd::batch<T, Arch> in_register(xsimd::batch<T, Arch> v) {
#if XSIMD_WITH_SSE2
  typename xsimd::batch<T, Arch>::register_type r = v;
  asm("" : "+v"(r));
  return r;
#else
  return v;
#endif
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_XSIMD_NATIVE_H_
