// What the libraries do not offer and each instruction set does: access to some lanes only, 16-bit numbers, movement of
// 128-bit blocks. One file per instruction set, on the compiler's own types.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_H_
#define SIMDATTN_LIB_SIMD_NATIVE_H_

#include "lib/simd/machine.h"

#if SIMDATTN_X86
namespace simdattn {
namespace {

/// MAXPS returns its second operand if either is NaN.
struct Max {
  SIMDATTN_INLINE __m128 operator()(__m128 a, __m128 b) const { return _mm_max_ps(a, b); }
#if SIMDATTN_AVX2
  SIMDATTN_INLINE __m256 operator()(__m256 a, __m256 b) const { return _mm256_max_ps(a, b); }
#endif
};
template <class Op>
SIMDATTN_INLINE float fold_four(__m128 v, const Op& op) {
  v = op(v, _mm_movehl_ps(v, v));
  v = op(v, _mm_shuffle_ps(v, v, 0xF5));
  return _mm_cvtss_f32(v);
}

}  // namespace
}  // namespace simdattn
#else
namespace simdattn {
namespace {
struct Max {
  SIMDATTN_INLINE Floats operator()(Floats a, Floats b) const { return max(a, b); }
};
}  // namespace
}  // namespace simdattn
#endif

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
#include "lib/simd/native/absent.h"
#include "lib/simd/native/products.h"

namespace simdattn {
namespace {

#if !SIMDATTN_AVX512
constexpr int64_t kPieces = 1;
template <int64_t kPiece>
SIMDATTN_INLINE void store_sums(Floats v, float* sums, int64_t key) {
  v.store_unaligned(sums + key * kLanes);
}
SIMDATTN_INLINE Floats in_key_order(Floats v) { return v; }
#endif
#if !SIMDATTN_AVX512
/// m ? a + b : other.
SIMDATTN_INLINE Floats sum_where(Mask m, Floats a, Floats b, Floats other) { return select(m, a + b, other); }
/// m ? a + b : b, which is -inf where not m.
SIMDATTN_INLINE Floats add_where_finite(Mask m, Floats a, Floats b) {
#if SIMDATTN_X86
  return (a & Floats(m.data)) + b;  // one operation less than a selection after the sum
#else
  return select(m, a, Floats(0.0f)) + b;
#endif
}
#endif
#if !SIMDATTN_AVX2
/// Byte i of a lane is that of v_i, -128 .. 127.
SIMDATTN_INLINE Ints cells_of(Ints v0, Ints v1, Ints v2, Ints v3) {
  const auto byte = [](Ints v) SIMDATTN_LAMBDA { return cast_bits<uint32_t>(v) & Bits32(255); };
  return cast_bits<int32_t>(byte(v0) | byte(v1) << 8 | byte(v2) << 16 | cast_bits<uint32_t>(v3) << 24);
}
#endif

SIMDATTN_INLINE float first_lane(Floats v) { return static_cast<Floats::register_type>(v)[0]; }

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
