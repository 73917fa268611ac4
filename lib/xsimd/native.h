// What xsimd does not offer and each instruction set does: access to some lanes only, 16-bit numbers, movement of
// 128-bit blocks. Intrinsics are in one file per instruction set; NEON also has neon_operators.h, and casts are in batch.h.
#ifndef SIMDATTN_LIB_XSIMD_NATIVE_H_
#define SIMDATTN_LIB_XSIMD_NATIVE_H_

#include "lib/xsimd/batch.h"
#if XSIMD_WITH_AVX512F
#include "lib/xsimd/native_avx512.h"
#elif XSIMD_WITH_AVX2
#include "lib/xsimd/native_avx2.h"
#elif XSIMD_WITH_SSE2
#include "lib/xsimd/native_sse.h"
#elif XSIMD_WITH_SVE
#include "lib/xsimd/native_sve.h"
#elif XSIMD_WITH_NEON64
#include "lib/xsimd/native_neon.h"
#else
#error "an instruction set without a file"
#endif

namespace simdattn {
namespace {

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
