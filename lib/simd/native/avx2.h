// AVX2: what takes a port or a register less than an operation of the libraries.
#pragma once

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

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
#if SIMDATTN_HIGHWAY
/// NearestInt takes a comparison and a selection more, for numbers out of range: prompts of kInt8 take 5 % longer.
SIMDATTN_INLINE Ints nearest(Floats v) { return _mm256_cvtps_epi32(v); }
/// StoreMaskBits extends a byte, which costs top_k a tenth.
SIMDATTN_INLINE uint32_t word_of(Mask m) { return static_cast<uint32_t>(_mm256_movemask_ps(m.data.raw)); }
#endif

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
