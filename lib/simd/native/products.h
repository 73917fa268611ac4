// Products of integers of 8 bits, as machine.h says in kProducts. A lane of Ints is a cell: four bytes that are
// multiplied with four others. x is a cell of a row of queries or, with kWeights, of weights, which are unsigned;
// `column` has cells of keys or values.
#pragma once

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

#if SIMDATTN_PLAIN || (SIMDATTN_NEON && SIMDATTN_XSIMD && !defined(__ARM_FEATURE_DOTPROD))
template <bool kWeights>
SIMDATTN_INLINE void add_products(Ints& sum, Ints& /*more*/, Ints x, Ints column) {
  sum = sum + (x << 16 >> 16) * (column << 16 >> 16) + (x >> 16) * (column >> 16);
}

#elif SIMDATTN_X86
/// sum += x column. kPairs: of two numbers of 16 bits, both signed. kDot: of four bytes; of a query the keys are
/// unsigned. Of pairs, sums start at 0; `more` takes further ones, which total() adds.
template <bool kWeights>
SIMDATTN_INLINE void add_products(Ints& sum, Ints& /*more*/, Ints x, Ints column) {
  // In assembly: gcc would add products before sums, and put sums on the stack; those of VPDPBUSD it would copy.
  using R = Ints::Raw;
  R s = sum;
  const R a = x, b = column;
#if defined(__AVX512VNNI__)
  asm("vpdpbusd %2, %1, %0" : "+v"(s) : "v"(kWeights ? a : b), "v"(kWeights ? b : a));
#elif defined(__AVXVNNI__)
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(s) : "x"(kWeights ? a : b), "x"(kWeights ? b : a));
#elif SIMDATTN_AVX2
  R product;
  asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(s), "=&v"(product) : "v"(a), "v"(b));
#else
  R product;
  asm("movdqa %2, %1\n\tpmaddwd %3, %1\n\tpaddd %1, %0" : "+x"(s), "=&x"(product) : "x"(a), "x"(b));
#endif
  sum = s;
}

#elif SIMDATTN_SVE
/// kDotLanes: of weights the values are unsigned, too. kMatrix: they are signed.
template <bool kWeights>
SIMDATTN_INLINE void add_products(Ints& sum, Ints& /*more*/, Ints x, Ints column) {
  const svint32_t s = sum;
  const svint8_t a = svreinterpret_s8_s32(x), b = svreinterpret_s8_s32(column);
  if constexpr (!kWeights) {
    sum = svdot_s32(s, a, b);
  } else {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    sum = svusdot_s32(s, svreinterpret_u8_s8(a), b);
#else
    sum = svreinterpret_s32_u32(svdot_u32(svreinterpret_u32_s32(s), svreinterpret_u8_s8(a), svreinterpret_u8_s8(b)));
#endif
  }
}

SIMDATTN_INLINE Ints load_group(const char* p) {
  return svreinterpret_s32_s8(svld1rq_s8(svptrue_b8(), reinterpret_cast<const int8_t*>(p)));
}
#if defined(__ARM_FEATURE_MATMUL_INT8)
template <bool kWeights>
SIMDATTN_INLINE void add_matrix_products(Ints& sum, Ints rows, Ints columns) {
  const svint8_t a = svreinterpret_s8_s32(rows), b = svreinterpret_s8_s32(columns);
  if constexpr (kWeights) sum = svusmmla_s32(sum, svreinterpret_u8_s8(a), b);
  else sum = svmmla_s32(sum, a, b);
}
#else
template <bool kWeights, int lane>
SIMDATTN_INLINE void add_lane_products(Ints& sum, Ints rows, Ints column) {
  const svint32_t s = sum;
  const svint8_t a = svreinterpret_s8_s32(rows), b = svreinterpret_s8_s32(column);
  if constexpr (!kWeights) sum = svdot_lane_s32(s, b, a, lane);
  else
    sum = svreinterpret_s32_u32(
        svdot_lane_u32(svreinterpret_u32_s32(s), svreinterpret_u8_s8(b), svreinterpret_u8_s8(a), lane));
}
#endif

#elif SIMDATTN_NEON
#if defined(__ARM_FEATURE_DOTPROD)
template <bool kWeights>
SIMDATTN_INLINE void add_products(Ints& sum, Ints& /*more*/, Ints x, Ints column) {
  const int8x16_t a = vreinterpretq_s8_s32(x), b = vreinterpretq_s8_s32(column);
  if constexpr (!kWeights) {
    sum = vdotq_s32(sum, a, b);
  } else {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    sum = vusdotq_s32(sum, vreinterpretq_u8_s8(a), b);
#else
    const uint32x4_t s = vreinterpretq_u32_s32(sum);
    sum = vreinterpretq_s32_u32(vdotq_u32(s, vreinterpretq_u8_s8(a), vreinterpretq_u8_s8(b)));
#endif
  }
}
#endif

/// Cells of a group of rows, in every block.
SIMDATTN_INLINE Ints load_group(const char* p) {
  return vreinterpretq_s32_s8(vld1q_s8(reinterpret_cast<const int8_t*>(p)));
}
#if defined(__ARM_FEATURE_MATMUL_INT8)
/// Of every block a sum for row 0 and column 0, 0 and 1, 1 and 0, 1 and 1.
template <bool kWeights>
SIMDATTN_INLINE void add_matrix_products(Ints& sum, Ints rows, Ints columns) {
  const int8x16_t a = vreinterpretq_s8_s32(rows), b = vreinterpretq_s8_s32(columns);
  if constexpr (kWeights) sum = vusmmlaq_s32(sum, vreinterpretq_u8_s8(a), b);
  else sum = vmmlaq_s32(sum, a, b);
}
#elif defined(__ARM_FEATURE_DOTPROD)
/// add_products() of the cell in lane `lane` of every block.
template <bool kWeights, int lane>
SIMDATTN_INLINE void add_lane_products(Ints& sum, Ints rows, Ints column) {
  const int8x16_t a = vreinterpretq_s8_s32(rows), b = vreinterpretq_s8_s32(column);
  if constexpr (!kWeights) sum = vdotq_laneq_s32(sum, b, a, lane);
  else
    sum = vreinterpretq_s32_u32(
        vdotq_laneq_u32(vreinterpretq_u32_s32(sum), vreinterpretq_u8_s8(b), vreinterpretq_u8_s8(a), lane));
}
#endif
#endif

#if SIMDATTN_SVE && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
/// sum + factor times the even (odd) numbers of pairs of bf16, rounded once. factor: a number of bf16.
template <bool kOdd>
SIMDATTN_INLINE Floats mul_add_pairs(float factor, Floats pairs, Floats sum) {
  const svbfloat16_t f = svreinterpret_bf16_f32(Floats(factor)), p = svreinterpret_bf16_f32(pairs);
  if constexpr (kOdd) return svbfmlalt_lane_f32(sum, p, f, 1);
  else return svbfmlalb_lane_f32(sum, p, f, 1);
}
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
template <bool kOdd>
SIMDATTN_INLINE Floats mul_add_pairs(float factor, Floats pairs, Floats sum) {
  // The upper half of the lowest lane. From a vector of that number gcc 12 would copy it into all lanes first.
  const bfloat16x4_t f = vreinterpret_bf16_u64(vcreate_u64(__builtin_bit_cast(uint32_t, factor)));
  const bfloat16x8_t p = vreinterpretq_bf16_f32(pairs);
  if constexpr (kOdd) return vbfmlaltq_lane_f32(sum, p, f, 1);
  else return vbfmlalbq_lane_f32(sum, p, f, 1);
}
#endif

#if !SIMDATTN_PAIRS_OF_HIGHWAY
SIMDATTN_INLINE Ints total(Ints sum, Ints /*more*/) { return sum; }
#endif

}  // namespace
}  // namespace simdattn
