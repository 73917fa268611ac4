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
  using type = xsimd::batch<T, Arch>;
  using raw = typename type::register_type;
};
/// The library's vector.
template <class T>
SIMDATTN_INLINE xsimd::batch<T, Arch> lib(Batch<T> v) {
  return v.data;
}
/// Rounded once.
SIMDATTN_INLINE Floats mul_add(Floats a, Floats b, Floats c) { return xsimd::fma(lib(a), lib(b), lib(c)); }

}  // namespace
}  // namespace simdattn

#if XSIMD_WITH_NEON64 && !XSIMD_WITH_SVE
// xsimd 13 picks operations of NEON from tuples of functions, which gcc 12 then calls instead of inlining.
#include "lib/simd/vectors.h"  // wants the above
#else

namespace simdattn {
namespace {

template <class T>
SIMDATTN_INLINE Batch<T> repeated(T x) {
  return xsimd::batch<T, Arch>(x);
}
template <class T>
SIMDATTN_INLINE Batch<T> loaded(const void* p) {
  return xsimd::batch<T, Arch>::load_unaligned(static_cast<const T*>(p));
}
template <class T>
SIMDATTN_INLINE void stored(Batch<T> v, void* p) {
  lib(v).store_unaligned(static_cast<T*>(p));
}
template <class To, class From>
SIMDATTN_INLINE Batch<To> cast_bits(Batch<From> v) {
  return xsimd::bitwise_cast<To>(lib(v));
}

#define SIMDATTN_OPERATOR(op)                                    \
  template <class T>                                             \
  SIMDATTN_INLINE Batch<T> operator op(Batch<T> a, Batch<T> b) { \
    return lib(a) op lib(b);                                     \
  }
SIMDATTN_OPERATOR(+)
SIMDATTN_OPERATOR(-)
SIMDATTN_OPERATOR(*)
SIMDATTN_OPERATOR(&)
SIMDATTN_OPERATOR(|)
SIMDATTN_OPERATOR(^)
#undef SIMDATTN_OPERATOR
template <class T>
SIMDATTN_INLINE Batch<T> operator~(Batch<T> v) {
  return ~lib(v);
}
template <class T>
SIMDATTN_INLINE Batch<T> operator<<(Batch<T> v, int bits) {
  return lib(v) << bits;
}
template <class T>
SIMDATTN_INLINE Batch<T> operator>>(Batch<T> v, int bits) {
  return lib(v) >> bits;
}
SIMDATTN_INLINE Floats quotient(Floats a, Floats b) { return lib(a) / lib(b); }
SIMDATTN_INLINE Floats to_float(Ints v) { return xsimd::to_float(lib(v)); }
template <class T>
SIMDATTN_INLINE Batch<T> max(Batch<T> a, Batch<T> b) {
  return xsimd::max(lib(a), lib(b));
}

using Mask = xsimd::batch_bool<float, Arch>;

SIMDATTN_INLINE Mask operator==(Floats a, Floats b) { return lib(a) == lib(b); }
SIMDATTN_INLINE Mask operator<(Floats a, Floats b) { return lib(a) < lib(b); }
SIMDATTN_INLINE Mask greater(Ints a, Ints b) { return xsimd::batch_bool_cast<float>(lib(a) > lib(b)); }
SIMDATTN_INLINE Mask equal(Bits32 a, Bits32 b) { return xsimd::batch_bool_cast<float>(lib(a) == lib(b)); }
SIMDATTN_INLINE Floats select(Mask m, Floats yes, Floats no) { return xsimd::select(m, lib(yes), lib(no)); }
SIMDATTN_INLINE bool any(Mask m) { return xsimd::any(m); }
template <class T>
SIMDATTN_INLINE bool any_at_least(Batch<T> v, T least) {
  return xsimd::any(lib(v) >= lib(Batch<T>(least)));
}

}  // namespace
}  // namespace simdattn

#endif
