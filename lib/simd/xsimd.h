// The vocabulary on xsimd. The instruction set is that of the compiler's flags.
#pragma once

#define SIMDATTN_XSIMD 1

#include "lib/simd/batch.h"
#include "xsimd/xsimd.hpp"

namespace simdattn {
namespace {

using Arch = SIMDATTN_XSIMD_ARCH;
static_assert(Arch::supported(), "the compiler flags of this object do not cover its instruction set");

template <class T>
struct RegisterType {
  using type = typename xsimd::batch<T, Arch>::register_type;
};

// Not by its constructor: a function more that gcc inlines at each use.
template <class T>
SIMDATTN_INLINE xsimd::batch<T, Arch> lib(Batch<T> v) {
  return __builtin_bit_cast(xsimd::batch<T, Arch>, v.data);
}

/// Rounded once.
SIMDATTN_INLINE Floats mul_add(Floats a, Floats b, Floats c) { return xsimd::fma(lib(a), lib(b), lib(c)).data; }

}  // namespace
}  // namespace simdattn

#if XSIMD_WITH_NEON64 && !XSIMD_WITH_SVE
// xsimd 13 picks operations of NEON from tuples of functions, which gcc 12 then calls instead of inlining.
#include "lib/simd/vectors.h"  // wants the above
#else

namespace simdattn {
namespace {

using Mask = xsimd::batch_bool<float, Arch>;

SIMDATTN_INLINE Mask operator==(Floats a, Floats b) { return lib(a) == lib(b); }
SIMDATTN_INLINE Mask operator<(Floats a, Floats b) { return lib(a) < lib(b); }
SIMDATTN_INLINE Mask greater(Ints a, Ints b) { return xsimd::batch_bool_cast<float>(lib(a) > lib(b)); }
SIMDATTN_INLINE Mask equal(Bits32 a, Bits32 b) { return xsimd::batch_bool_cast<float>(lib(a) == lib(b)); }
SIMDATTN_INLINE Floats select(Mask m, Floats yes, Floats no) { return xsimd::select(m, lib(yes), lib(no)).data; }
/// Neither is NaN.
SIMDATTN_INLINE Floats max(Floats a, Floats b) { return xsimd::max(lib(a), lib(b)).data; }
SIMDATTN_INLINE bool any(Mask m) { return xsimd::any(m); }

}  // namespace
}  // namespace simdattn

#endif
