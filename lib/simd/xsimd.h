// The vocabulary on xsimd. The instruction set is that of the compiler's flags.
#ifndef SIMDATTN_LIB_SIMD_XSIMD_H_
#define SIMDATTN_LIB_SIMD_XSIMD_H_

#include "lib/simd/registers.h"
#include "xsimd/xsimd.hpp"
#if XSIMD_WITH_NEON64 && !XSIMD_WITH_SVE
#include "lib/simd/native/neon_operators.h"
#endif

namespace simdattn {
namespace {

using Arch = SIMDATTN_XSIMD_ARCH;
static_assert(Arch::supported(), "the compiler flags of this object do not cover its instruction set");

template <class T>
using Batch = xsimd::batch<T, Arch>;
using Floats = Batch<float>;
using Bits32 = Batch<uint32_t>;
using Ints = Batch<int32_t>;
using Bits16 = Batch<uint16_t>;
using Mask = xsimd::batch_bool<float, Arch>;

/// The same register as a batch of another type. (xsimd's bitwise_cast on SVE is a call that clang 19 finds ambiguous; on
/// NEON see neon_operators.h.)
template <class To, class From>
SIMDATTN_INLINE Batch<To> cast_bits(xsimd::batch<From, Arch> v) {
#if XSIMD_WITH_SVE
#define SIMDATTN_CAST(to, from) svreinterpret_##to##_##from(v)
#elif XSIMD_WITH_NEON64
#define SIMDATTN_CAST(to, from) vreinterpretq_##to##_##from(v)
#endif
#ifdef SIMDATTN_CAST
  if constexpr (std::is_same_v<To, float>) {
    return SIMDATTN_CAST(f32, u32);
  } else if constexpr (std::is_same_v<To, int32_t>) {
    return SIMDATTN_CAST(s32, u32);
  } else if constexpr (std::is_same_v<To, uint16_t>) {
    return SIMDATTN_CAST(u16, u32);
  } else if constexpr (std::is_same_v<From, uint16_t>) {
    return SIMDATTN_CAST(u32, u16);
  } else if constexpr (std::is_same_v<From, int32_t>) {
    return SIMDATTN_CAST(u32, s32);
  } else {
    return SIMDATTN_CAST(u32, f32);
  }
#undef SIMDATTN_CAST
#else
  return xsimd::bitwise_cast<To>(v);
#endif
}

SIMDATTN_INLINE Floats mul_add(Floats a, Floats b, Floats c) { return xsimd::fma(a, b, c); }
/// x * y - z with one rounding. (xsimd's fms on SVE negates z - x * y, and with it the sign of a zero.)
SIMDATTN_INLINE Floats mul_sub(Floats x, Floats y, Floats z) {
#if XSIMD_WITH_SSE2
  return xsimd::fms(x, y, z);
#else
  return xsimd::fma(x, y, cast_bits<float>(cast_bits<uint32_t>(z) ^ Bits32(0x80000000u)));
#endif
}
/// Correctly rounded. xsimd's division of NEON is 32-bit ARM's: an estimate and two steps.
SIMDATTN_INLINE Floats quotient(Floats a, Floats b) {
#if XSIMD_WITH_NEON64 && !XSIMD_WITH_SVE
  return vdivq_f32(a, b);
#else
  return a / b;
#endif
}
/// x > m ? x : m: a NaN in x is ignored, m must not be NaN.
SIMDATTN_INLINE Floats max_number(Floats x, Floats m) {
#if XSIMD_WITH_SSE2
  return xsimd::max(x, m);  // MAXPS returns its second operand if either is NaN
#else
  return xsimd::select(x > m, x, m);
#endif
}
SIMDATTN_INLINE Floats abs(Floats v) { return xsimd::abs(v); }
SIMDATTN_INLINE Ints abs(Ints v) { return xsimd::abs(v); }
template <class T>
SIMDATTN_INLINE xsimd::batch<T, Arch> max(xsimd::batch<T, Arch> a, xsimd::batch<T, Arch> b) {
  return xsimd::max(a, b);
}
SIMDATTN_INLINE Ints min(Ints a, Ints b) { return xsimd::min(a, b); }

SIMDATTN_INLINE Floats select(Mask m, Floats yes, Floats no) { return xsimd::select(m, yes, no); }
SIMDATTN_INLINE Bits32 select(Mask m, Bits32 yes, Bits32 no) {
  return xsimd::select(xsimd::batch_bool_cast<uint32_t>(m), yes, no);
}
SIMDATTN_INLINE Mask greater(Ints a, Ints b) { return xsimd::batch_bool_cast<float>(a > b); }
SIMDATTN_INLINE Mask at_least(Ints a, Ints b) { return xsimd::batch_bool_cast<float>(a >= b); }
SIMDATTN_INLINE Mask equal(Bits32 a, Bits32 b) { return xsimd::batch_bool_cast<float>(a == b); }
SIMDATTN_INLINE bool any(Mask m) { return xsimd::any(m); }
SIMDATTN_INLINE bool all(Mask m) { return xsimd::all(m); }
/// True if a lane is `least` or more.
template <class T>
SIMDATTN_INLINE bool any_at_least(xsimd::batch<T, Arch> v, T least) {
  return xsimd::any(v >= xsimd::batch<T, Arch>(least));
}
SIMDATTN_INLINE Floats to_float(Ints v) { return xsimd::to_float(v); }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_XSIMD_H_
