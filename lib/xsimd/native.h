// What xsimd does not offer and each instruction set does: access to some lanes only, 16-bit numbers, movement of
// 128-bit blocks. The only file here that knows intrinsics.
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
SIMDATTN_INLINE Halves f16_from_f32(Floats v) {
  return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, Lanes part) {
  return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(part.mask, p));
}

/// Block b (128 bits) of the result is 4 numbers at p + 4 b stride.
SIMDATTN_INLINE Floats load_blocks(const float* p, int64_t stride) {
  const __m256 low = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + 4 * stride), 1);
  const __m256 high =
      _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + 8 * stride)), _mm_loadu_ps(p + 12 * stride), 1);
  return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}
/// Interleaves the lower (upper) halves of every block, by numbers and by pairs.
SIMDATTN_INLINE Floats zip_lo_blocks(Floats a, Floats b) { return _mm512_unpacklo_ps(a, b); }
SIMDATTN_INLINE Floats zip_hi_blocks(Floats a, Floats b) { return _mm512_unpackhi_ps(a, b); }
SIMDATTN_INLINE Floats zip_lo_pairs(Floats a, Floats b) {
  return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
SIMDATTN_INLINE Floats zip_hi_pairs(Floats a, Floats b) {
  return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
}
/// Partial sums of rows p + 4 b stride, 16 numbers each, folded to 4 in block b.
SIMDATTN_INLINE Floats load_folded_to_blocks(const float* p, int64_t stride) {
  const __m512 a = _mm512_loadu_ps(p), b = _mm512_loadu_ps(p + 4 * stride);
  const __m512 c = _mm512_loadu_ps(p + 8 * stride), d = _mm512_loadu_ps(p + 12 * stride);
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
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

SIMDATTN_INLINE Floats load_blocks(const float* p, int64_t stride) {
  return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + 4 * stride), 1);
}
SIMDATTN_INLINE Floats zip_lo_blocks(Floats a, Floats b) { return _mm256_unpacklo_ps(a, b); }
SIMDATTN_INLINE Floats zip_hi_blocks(Floats a, Floats b) { return _mm256_unpackhi_ps(a, b); }
SIMDATTN_INLINE Floats zip_lo_pairs(Floats a, Floats b) {
  return _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}
SIMDATTN_INLINE Floats zip_hi_pairs(Floats a, Floats b) {
  return _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(a), _mm256_castps_pd(b)));
}
/// Rows of 8 numbers.
SIMDATTN_INLINE Floats load_folded_to_blocks(const float* p, int64_t stride) {
  return load_blocks(p, stride) + load_blocks(p + 4, stride);
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
SIMDATTN_INLINE __m128i narrow_bits(Bits32 v) {
  const __m256i packed = _mm256_packus_epi32(v, v);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
}
SIMDATTN_INLINE Floats f32_from_f16(__m128i v) { return _mm256_cvtph_ps(v); }
SIMDATTN_INLINE __m128i f16_from_f32(Floats v) {
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

SIMDATTN_INLINE Floats load_blocks(const float* p, int64_t) { return Floats::load_unaligned(p); }
SIMDATTN_INLINE Floats zip_lo_blocks(Floats a, Floats b) { return xsimd::zip_lo(a, b); }
SIMDATTN_INLINE Floats zip_hi_blocks(Floats a, Floats b) { return xsimd::zip_hi(a, b); }
SIMDATTN_INLINE Floats zip_lo_pairs(Floats a, Floats b) { return _mm_movelh_ps(a, b); }
SIMDATTN_INLINE Floats zip_hi_pairs(Floats a, Floats b) { return _mm_movehl_ps(b, a); }
SIMDATTN_INLINE Floats load_folded_to_blocks(const float* p, int64_t) { return Floats::load_unaligned(p); }
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
SIMDATTN_INLINE Halves f16_from_f32(Floats v) { return svreinterpret_u32_f16(svcvt_f16_f32_z(svptrue_b32(), v)); }
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) { return svld1ub_u32(svptrue_b32(), p); }
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, Lanes part) { return svld1ub_u32(part.mask, p); }

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
SIMDATTN_INLINE Halves f16_from_f32(Floats v) { return vreinterpret_u16_f16(vcvt_f16_f32(v)); }
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
SIMDATTN_INLINE Floats load_folded_to_blocks(const float* p, int64_t) { return Floats::load_unaligned(p); }
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

SIMDATTN_INLINE float first_lane(Floats v) { return static_cast<Floats::register_type>(v)[0]; }

/// Prefetches the line at `address`, which may lie outside every object.
SIMDATTN_INLINE void prefetch(uintptr_t address) { __builtin_prefetch(reinterpret_cast<const char*>(address)); }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_XSIMD_NATIVE_H_
