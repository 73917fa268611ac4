// AVX-512: what takes a port less than an operation of the libraries.
#pragma once

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

SIMDATTN_INLINE __m256i register_of(Halves v) { return __builtin_bit_cast(__m256i, v); }
/// One shuffle in place of a widening one and a shift.
SIMDATTN_INLINE Floats f32_from_bf16(Halves v) {
  const __m512i order = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0,  //
                                         7, 0, 6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0);
  return _mm512_castsi512_ps(
      _mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, order, _mm512_castsi256_si512(register_of(v))));
}
#if SIMDATTN_HIGHWAY
/// NearestInt takes a comparison and a selection more, for numbers out of range: prompts of kInt8 take 5 % longer.
SIMDATTN_INLINE Ints nearest(Floats v) { return _mm512_cvtps_epi32(v); }
#endif
SIMDATTN_INLINE Floats scale_unless_below(Floats x, Floats lowest, Floats p, Floats n) {
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, lowest, _CMP_NLT_UQ), p, n);
}

}  // namespace
}  // namespace simdattn
