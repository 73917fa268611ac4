// kBF16 by BFMLALB and BFMLALT, which multiply numbers of bf16 as they are: the chains of lib/bf16_tiles-inl.h.
#ifndef SIMDATTN_LIB_HIGHWAY_BF16_PAIRS_H_
#define SIMDATTN_LIB_HIGHWAY_BF16_PAIRS_H_

#include "lib/kernels/bf16_attention.h"

#define SIMDATTN_TILE_INLINE SIMDATTN_INLINE
#define SIMDATTN_TILE_FUNCTION __attribute__((noinline))
#define SIMDATTN_TILE_LAMBDA SIMDATTN_LAMBDA

namespace simdattn {
namespace {
namespace pairs {

using Widening = simdattn::Ops;
/// Of a broadcast f32, which is a number of bf16, the upper half is element 1.
struct Ops : Widening {
  static constexpr bool kMultipliesPairs = true;
  static SIMDATTN_INLINE Vec load_pairs(const bf16* p) { return float_of(simdattn::load_pairs(p)); }
  static SIMDATTN_INLINE Vec even_of(Vec pairs) { return simdattn::even_of(bits_of(pairs)); }
  static SIMDATTN_INLINE Vec odd_of(Vec pairs) { return simdattn::odd_of(bits_of(pairs)); }
#if HWY_TARGET_IS_SVE
#define SIMDATTN_PAIR_STEP(name)                                  \
  svfloat32_t s = sum;                                            \
  __asm__(SIMDATTN_ARM_V8_6 name " %0.s, %1.h, %2.h[1]"           \
          : "+w"(s)                                               \
          : "w"(svfloat32_t(columns)), "y"(svfloat32_t(factor))); \
  return s
#else
#define SIMDATTN_PAIR_STEP(name)                                  \
  float32x4_t s = sum;                                            \
  __asm__(SIMDATTN_ARM_V8_6 name " %0.4s, %1.8h, %2.h[1]"         \
          : "+w"(s)                                               \
          : "w"(float32x4_t(columns)), "x"(float32x4_t(factor))); \
  return s
#endif
  static SIMDATTN_INLINE Vec mul_add_even(Vec factor, Vec columns, Vec sum) { SIMDATTN_PAIR_STEP("bfmlalb"); }
  static SIMDATTN_INLINE Vec mul_add_odd(Vec factor, Vec columns, Vec sum) { SIMDATTN_PAIR_STEP("bfmlalt"); }
#undef SIMDATTN_PAIR_STEP
};
#include "lib/bf16_tiles-inl.h"

}  // namespace pairs
}  // namespace
}  // namespace simdattn

#undef SIMDATTN_TILE_INLINE
#undef SIMDATTN_TILE_FUNCTION
#undef SIMDATTN_TILE_LAMBDA

#endif  // SIMDATTN_LIB_HIGHWAY_BF16_PAIRS_H_
