// The vocabulary on Highway. The instruction set is that of the compiler's flags (-DHWY_COMPILE_ONLY_STATIC).
#pragma once

#define SIMDATTN_HIGHWAY 1

#include "hwy/highway.h"
#include "lib/simd/batch.h"

namespace simdattn {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
template <class T>
using Tag = hn::ScalableTag<T>;

// The registers themselves. Those of SVE and RISC-V have a size only as types of a fixed length.
#if HWY_TARGET_IS_SVE
#define SIMDATTN_LENGTH arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)
#elif HWY_TARGET == HWY_RVV
#define SIMDATTN_LENGTH riscv_rvv_vector_bits(__riscv_v_fixed_vlen)
#endif
#ifdef SIMDATTN_LENGTH
#define SIMDATTN_FIXED(T)                                          \
  template <>                                                      \
  struct RegisterType<T> {                                         \
    typedef hn::Vec<Tag<T>> type __attribute__((SIMDATTN_LENGTH)); \
    using raw = NoRaw;                                             \
  }
SIMDATTN_FIXED(float);
SIMDATTN_FIXED(uint32_t);
SIMDATTN_FIXED(int32_t);
SIMDATTN_FIXED(uint16_t);
#undef SIMDATTN_FIXED
#else
template <class T>
struct RegisterType {
  using type = hn::Vec<Tag<T>>;
  using raw = decltype(type::raw);
};
#endif

/// The library's vector.
template <class T>
SIMDATTN_INLINE hn::Vec<Tag<T>> lib(Batch<T> v) {
  return v.data;
}
/// As one with lanes of T, and back.
template <class T, class U>
SIMDATTN_INLINE hn::Vec<Tag<T>> lib_as(Batch<U> v) {
  return hn::BitCast(Tag<T>(), lib(v));
}
template <class U, class V>
SIMDATTN_INLINE Batch<U> own_as(V v) {
  return hn::BitCast(Tag<U>(), v);
}
template <class To, class From>
SIMDATTN_INLINE Batch<To> cast_bits(Batch<From> v) {
  return lib_as<To>(v);
}

template <class T>
SIMDATTN_INLINE Batch<T> repeated(T x) {
  return hn::Set(Tag<T>(), x);
}
#if !HWY_TARGET_IS_NEON
template <class T>
SIMDATTN_INLINE Batch<T> loaded(const void* p) {
  return hn::LoadU(Tag<T>(), static_cast<const T*>(p));
}
template <class T>
SIMDATTN_INLINE void stored(Batch<T> v, void* p) {
  hn::StoreU(lib(v), Tag<T>(), static_cast<T*>(p));
}
#endif

#define SIMDATTN_OPERATOR(op, Function, As)                       \
  template <class T>                                              \
  SIMDATTN_INLINE Batch<T> operator op(Batch<T> a, Batch<T> b) {  \
    return own_as<T>(hn::Function(lib_as<As>(a), lib_as<As>(b))); \
  }
#if !HWY_TARGET_IS_SVE
SIMDATTN_OPERATOR(+, Add, Modular<T>)
SIMDATTN_OPERATOR(-, Sub, Modular<T>)
SIMDATTN_OPERATOR(*, Mul, Modular<T>)
#endif
#if !HWY_TARGET_IS_SVE && !HWY_ARCH_X86
SIMDATTN_OPERATOR(&, And, T)
SIMDATTN_OPERATOR(|, Or, T)
SIMDATTN_OPERATOR(^, Xor, T)
#endif
#undef SIMDATTN_OPERATOR
template <class T>
SIMDATTN_INLINE Batch<T> operator~(Batch<T> v) {
  return hn::Not(lib(v));
}
template <class T>
SIMDATTN_INLINE Batch<T> operator<<(Batch<T> v, int bits) {
  return hn::ShiftLeftSame(lib(v), bits);
}
template <class T>
SIMDATTN_INLINE Batch<T> operator>>(Batch<T> v, int bits) {
  return hn::ShiftRightSame(lib(v), bits);
}
/// Rounded once.
SIMDATTN_INLINE Floats mul_add(Floats a, Floats b, Floats c) { return hn::MulAdd(lib(a), lib(b), lib(c)); }
/// Correctly rounded.
SIMDATTN_INLINE Floats quotient(Floats a, Floats b) { return hn::Div(lib(a), lib(b)); }
SIMDATTN_INLINE Floats to_float(Ints v) { return hn::ConvertTo(Tag<float>(), lib(v)); }
/// Neither is NaN.
#if HWY_TARGET_IS_SVE
SIMDATTN_INLINE Floats max(Floats a, Floats b) { return hn::Max(lib(a), lib(b)); }
#else
template <class T>
SIMDATTN_INLINE Batch<T> max(Batch<T> a, Batch<T> b) {
  return hn::Max(lib(a), lib(b));
}
#endif

#if HWY_TARGET != HWY_RVV
/// A truth value for each 32-bit lane.
struct Mask {
#if HWY_TARGET_IS_SVE
  typedef svbool_t Register __attribute__((SIMDATTN_LENGTH));
#else
  using Register = hn::Mask<Tag<float>>;
#endif
  Register data;

  Mask() = default;
  SIMDATTN_INLINE explicit Mask(bool all)
      : Mask(all ? hn::Not(hn::MaskFalse(Tag<float>())) : hn::MaskFalse(Tag<float>())) {}
  SIMDATTN_INLINE explicit Mask(Register r) : data(r) {}
  SIMDATTN_INLINE operator Register() const { return data; }  // NOLINT: implicit
};
SIMDATTN_INLINE hn::Mask<Tag<float>> lib(Mask m) { return m; }
template <class M>
SIMDATTN_INLINE Mask mask_of_integers(M m) {
  return Mask(hn::RebindMask(Tag<float>(), m));
}

SIMDATTN_INLINE Mask operator&(Mask a, Mask b) { return Mask(hn::And(lib(a), lib(b))); }
SIMDATTN_INLINE Mask operator|(Mask a, Mask b) { return Mask(hn::Or(lib(a), lib(b))); }
SIMDATTN_INLINE Mask operator~(Mask a) { return Mask(hn::Not(lib(a))); }
SIMDATTN_INLINE Mask operator==(Floats a, Floats b) { return Mask(hn::Eq(lib(a), lib(b))); }
SIMDATTN_INLINE Mask operator<(Floats a, Floats b) { return Mask(hn::Lt(lib(a), lib(b))); }
SIMDATTN_INLINE Mask greater(Ints a, Ints b) { return mask_of_integers(hn::Gt(lib(a), lib(b))); }
SIMDATTN_INLINE Mask equal(Bits32 a, Bits32 b) { return mask_of_integers(hn::Eq(lib(a), lib(b))); }
SIMDATTN_INLINE Floats select(Mask m, Floats yes, Floats no) { return hn::IfThenElse(lib(m), lib(yes), lib(no)); }
SIMDATTN_INLINE bool any(Mask m) { return !hn::AllFalse(Tag<float>(), lib(m)); }
#endif
/// True if a lane is `least` or more.
template <class T>
SIMDATTN_INLINE bool any_at_least(Batch<T> v, T least) {
  return !hn::AllFalse(Tag<T>(), hn::Ge(lib(v), lib(Batch<T>(least))));
}

}  // namespace
}  // namespace simdattn

#include "lib/simd/vectors.h"  // wants the above
