// AVX2: what takes a port or a register less than an operation of the libraries. What Highway has and xsimd has not,
// for xsimd: it has no access to some lanes, no f16, no blocks, and converts between numbers of one size alone.
#pragma once

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

#if !SIMDATTN_HIGHWAY
SIMDATTN_INLINE Floats load(const float* p, Lanes part) {
  return _mm256_maskload_ps(p, _mm256_castps_si256(part.mask));
}
SIMDATTN_INLINE void store(Floats v, float* p, Lanes part) {
  _mm256_maskstore_ps(p, _mm256_castps_si256(part.mask), v);
}

template <class Address>
SIMDATTN_INLINE Floats load_blocks_at(const Address& address) {
  const auto at = [&](int64_t b) { return _mm_loadu_ps(reinterpret_cast<const float*>(address(b))); };
  return _mm256_insertf128_ps(_mm256_castps128_ps256(at(0)), at(1), 1);
}

using Halves = __m128i;
SIMDATTN_INLINE Bits32 widen_bits(__m128i v) { return _mm256_cvtepu16_epi32(v); }
#endif
SIMDATTN_INLINE __m128i register_of(Halves v) { return __builtin_bit_cast(__m128i, v); }
/// For VPSHUFB: the numbers of 16 bits of a block, the even ones of each block, as upper halves of lanes.
alignas(32) constexpr int8_t kInOrder[32] = {-1, -1, 0, 1, -1, -1, 2,  3,  -1, -1, 4,  5,  -1, -1, 6,  7,
                                             -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15};
alignas(32) constexpr int8_t kEvenOnes[32] = {-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13,
                                              -1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13};
SIMDATTN_INLINE __m256i shuffled_by(const int8_t (&order)[32], __m256i v) {
  return _mm256_shuffle_epi8(v, _mm256_load_si256(reinterpret_cast<const __m256i*>(order)));
}
/// A broadcast that comes with the load and one shuffle in place of a widening one and a shift.
SIMDATTN_INLINE Floats f32_from_bf16(Halves v) {
  return _mm256_castsi256_ps(shuffled_by(kInOrder, _mm256_broadcastsi128_si256(register_of(v))));
}
#if !SIMDATTN_HIGHWAY
SIMDATTN_INLINE __m128i narrow_bits(Bits32 v) {
  const __m256i packed = _mm256_packus_epi32(v, v);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0)));
}
#endif
/// The lower halves as the upper ones: a shift would take one of the two ports of multiply-adds.
SIMDATTN_INLINE Floats even_of(Bits32 pairs) { return _mm256_castsi256_ps(shuffled_by(kEvenOnes, pairs)); }
/// f32_from_bf16, even_of and odd_of of memory for the tile of 4x3 accumulators, which leaves no register for constants
/// nor for pairs: constants stay in memory (which elsewhere would cost time), pairs are loaded twice.
struct EightPairs {
  uint16_t v[16];
};
SIMDATTN_INLINE Floats load_in_order(const uint16_t* p) {
  // Reads kInOrder where it lies: as an intrinsic's operand it would be loaded into a register before the loop.
  __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  asm("vpshufb %1, %0, %0" : "+x"(v) : "m"(kInOrder));
  return _mm256_castsi256_ps(v);
}
SIMDATTN_INLINE Floats load_even(const uint16_t* p) {
  // Compilers would load the pairs once, for this and for load_odd, and kEvenOnes before the loop.
  __m256 v;
  asm("vmovdqu %1, %0\n\tvpshufb %2, %0, %0" : "=x"(v) : "m"(*reinterpret_cast<const EightPairs*>(p)), "m"(kEvenOnes));
  return v;
}
SIMDATTN_INLINE Floats load_odd(const uint16_t* p) {
  alignas(32) static constexpr uint32_t kUpper[8] = {0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u,
                                                     0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u};
  __m256 v;
  asm("vmovdqu %1, %0\n\tvpand %2, %0, %0" : "=x"(v) : "m"(*reinterpret_cast<const EightPairs*>(p)), "m"(kUpper));
  return v;
}
#if !SIMDATTN_HIGHWAY
SIMDATTN_INLINE Floats f32_from_f16(__m128i v) { return _mm256_cvtph_ps(v); }
SIMDATTN_INLINE __m128i f16_of_number(Floats v) {
  return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
SIMDATTN_INLINE Ints load_integers(const uint8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
#endif
/// A shift would take one of the two ports of multiply-adds.
template <int i>
SIMDATTN_INLINE Bits32 upper_byte(Bits32 v) {
  if constexpr (i == 3) return _mm256_and_si256(v, _mm256_set1_epi32(static_cast<int32_t>(0xFF000000u)));
  const __m256i order = _mm256_setr_epi8(-1, -1, -1, i, -1, -1, -1, i + 4, -1, -1, -1, i + 8, -1, -1, -1, i + 12,  //
                                         -1, -1, -1, i, -1, -1, -1, i + 4, -1, -1, -1, i + 8, -1, -1, -1, i + 12);
  return _mm256_shuffle_epi8(v, order);
}
/// Both k have their shuffles in common.
template <int k>
SIMDATTN_INLINE Bits16 upper_bytes(Bits32 v) {
  const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15,  //
                                         0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, order), 0xD8);
  return k == 0 ? _mm256_slli_epi16(words, 8) : words;
}
/// A shift by one count for all lanes would take a shuffle besides.
SIMDATTN_INLINE Bits16 load_scaled_bytes(const uint8_t* p, int n) {
  return _mm256_mullo_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
                            _mm256_set1_epi16(static_cast<int16_t>(1 << n)));
}

/// In each block the upper words of its lanes, then the lower ones.
SIMDATTN_INLINE __m256i upper_then_lower(__m256i v) {
  const __m256i order = _mm256_setr_epi8(2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13,  //
                                         2, 3, 6, 7, 10, 11, 14, 15, 0, 1, 4, 5, 8, 9, 12, 13);
  return _mm256_shuffle_epi8(v, order);
}
/// Two vectors without NaN, one behind the other, rounded to nearest even.
SIMDATTN_INLINE void store_rounded_words(Bits32 b0, Bits32 b1, uint16_t* p) {
  const __m256i s0 = upper_then_lower(b0), s1 = upper_then_lower(b1);
  const __m256i rounded = ties_to_even(_mm256_unpacklo_epi64(s0, s1), _mm256_unpackhi_epi64(s0, s1));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(rounded, _MM_SHUFFLE(3, 1, 2, 0)));
}

#if SIMDATTN_HIGHWAY
/// NearestInt takes a comparison and a selection more, for numbers out of range.
SIMDATTN_INLINE Ints nearest(Floats v) { return _mm256_cvtps_epi32(v); }
/// StoreMaskBits extends a byte, which costs top_k a tenth.
SIMDATTN_INLINE uint32_t word_of(Mask m) { return static_cast<uint32_t>(_mm256_movemask_ps(m.data.raw)); }
#else
/// In each block the lanes of four vectors, each a byte.
template <bool kUnsigned>
SIMDATTN_INLINE Ints packed_bytes(Ints v0, Ints v1, Ints v2, Ints v3) {
  const __m256i low = _mm256_packs_epi32(v0, v1), high = _mm256_packs_epi32(v2, v3);
  return kUnsigned ? _mm256_packus_epi16(low, high) : _mm256_packs_epi16(low, high);
}
#endif
SIMDATTN_INLINE Floats load_cells(const char* p, int64_t n) {
  if (n == 32) return _mm256_loadu_ps(reinterpret_cast<const float*>(p));
  if (n % 4 == 0) return load(reinterpret_cast<const float*>(p), first_lanes(n / 4));
  alignas(32) char copy[32] = {};
  __builtin_memcpy(copy, p, static_cast<size_t>(n));
  return _mm256_load_ps(reinterpret_cast<const float*>(copy));
}

/// a_i += *x column_i. In a tile of four rows of three batches the number to broadcast has the last register. Compilers
/// would load the next row's number before this one is done with, and put accumulators on the stack.
SIMDATTN_INLINE void add_three(const float* x, Registers<3>& column, Floats& a0, Floats& a1, Floats& a2) {
  __m256 factor, s0 = a0, s1 = a1, s2 = a2;  // gcc would leave members in memory
  const __m256 c0 = reg<0>(column), c1 = reg<1>(column), c2 = reg<2>(column);
  asm("vbroadcastss %4, %3\n\t"
      "vfmadd231ps %5, %3, %0\n\t"
      "vfmadd231ps %6, %3, %1\n\t"
      "vfmadd231ps %7, %3, %2"
      : "+x"(s0), "+x"(s1), "+x"(s2), "=&x"(factor)
      : "m"(*x), "x"(c0), "x"(c1), "x"(c2));
  a0 = s0;
  a1 = s1;
  a2 = s2;
}

}  // namespace
}  // namespace simdattn
