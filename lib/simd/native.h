// What the libraries do not offer and each instruction set does: access to some lanes only, 16-bit numbers, movement of
// 128-bit blocks. One file per instruction set, on the compiler's own types.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_H_
#define SIMDATTN_LIB_SIMD_NATIVE_H_

#include "lib/simd/machine.h"

#include "lib/simd/native/order.h"

#if SIMDATTN_PLAIN
#include "lib/simd/native/plain.h"
#elif SIMDATTN_AVX512
#include "lib/simd/native/avx512.h"
#elif SIMDATTN_AVX2
#include "lib/simd/native/avx2.h"
#elif SIMDATTN_X86
#include "lib/simd/native/sse.h"
#elif SIMDATTN_SVE
#include "lib/simd/native/sve.h"
#elif SIMDATTN_NEON
#include "lib/simd/native/neon.h"
#elif SIMDATTN_VSX
#include "lib/simd/native/vsx.h"
#endif
#if !SIMDATTN_AVX512 && !SIMDATTN_SVE
#include "lib/simd/native/lanes.h"
#endif
#include "lib/simd/native/absent.h"
#include "lib/simd/native/products.h"

namespace simdattn {
namespace {

#if SIMDATTN_PLAIN || SIMDATTN_VSX
/// upper without its last bit where lower is 0.
SIMDATTN_INLINE Bits16 ties_to_even(Bits16 upper, Bits16 lower) {
  return upper & ~(Bits16::of(lower.numbers() == 0) & Bits16(uint16_t{1}));
}
#endif
#if !SIMDATTN_AVX512
/// m ? a + b : other.
SIMDATTN_INLINE Floats sum_where(Mask m, Floats a, Floats b, Floats other) { return select(m, a + b, other); }
#endif
#if !SIMDATTN_AVX2
/// Byte i of a lane is that of v_i, -128 .. 127.
SIMDATTN_INLINE Ints cells_of(Ints v0, Ints v1, Ints v2, Ints v3) {
  const auto byte = [](Ints v) SIMDATTN_LAMBDA { return cast_bits<uint32_t>(v) & Bits32(255); };
  return cast_bits<int32_t>(byte(v0) | byte(v1) << 8 | byte(v2) << 16 | cast_bits<uint32_t>(v3) << 24);
}
#endif

SIMDATTN_INLINE float first_lane(Floats v) { return v[0]; }

/// A vector that stays in its register: gcc would fold its load into each of the instructions that use it.
template <class V>
SIMDATTN_INLINE V in_register(V v) {
#if SIMDATTN_X86
  typename V::register_type r = v;
  asm("" : "+v"(r));
  return r;
#else
  return v;
#endif
}

/// v, whose origin the compiler does not know: clang 19 would compare the f16 that it was converted from, one by one.
SIMDATTN_INLINE Floats opaque(Floats v) {
#if defined(__clang__) && SIMDATTN_X86
  Floats::register_type data = v;
  asm("" : "+v"(data));
  v = data;
#elif defined(__clang__) && SIMDATTN_SVE
  svfloat32_t data = v;  // clang knows no register for a vector of fixed length
  asm("" : "+w"(data));
  v = data;
#elif defined(__clang__) && SIMDATTN_NEON
  Floats::register_type data = v;
  asm("" : "+w"(data));
  v = data;
#endif
  return v;
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_NATIVE_H_
