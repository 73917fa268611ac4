// Conversions of f16 for xsimd, which has none: by integers (memory.h) each takes a dozen operations in place of one.
#pragma once

#include "lib/simd/halves.h"

namespace simdattn {
namespace {

#if SIMDATTN_AVX512
SIMDATTN_INLINE Floats f32_from_f16(Halves v) { return _mm512_cvtph_ps(__builtin_bit_cast(__m256i, v)); }
SIMDATTN_INLINE Halves f16_of_number(Floats v) {
  return __builtin_bit_cast(Halves, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#elif SIMDATTN_AVX2
SIMDATTN_INLINE Floats f32_from_f16(Halves v) { return _mm256_cvtph_ps(__builtin_bit_cast(__m128i, v)); }
SIMDATTN_INLINE Halves f16_of_number(Floats v) {
  return __builtin_bit_cast(Halves, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#elif SIMDATTN_NEON
SIMDATTN_INLINE Floats f32_from_f16(Halves v) { return vcvt_f32_f16(__builtin_bit_cast(float16x4_t, v)); }
SIMDATTN_INLINE Halves f16_of_number(Floats v) { return __builtin_bit_cast(Halves, vcvt_f16_f32(v)); }
#endif

}  // namespace
}  // namespace simdattn
