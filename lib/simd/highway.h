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
#define SIMDATTN_FIXED(T, Register)                         \
  template <>                                               \
  struct RegisterType<T> {                                  \
    typedef Register type __attribute__((SIMDATTN_LENGTH)); \
  }
#endif
#if HWY_TARGET_IS_SVE
SIMDATTN_FIXED(float, svfloat32_t);
SIMDATTN_FIXED(uint32_t, svuint32_t);
SIMDATTN_FIXED(int32_t, svint32_t);
SIMDATTN_FIXED(uint16_t, svuint16_t);
SIMDATTN_FIXED(bool, svbool_t);
#undef SIMDATTN_FIXED
using MaskRegister = RegisterType<bool>::type;
#elif HWY_TARGET == HWY_RVV
SIMDATTN_FIXED(float, vfloat32m1_t);
SIMDATTN_FIXED(uint32_t, vuint32m1_t);
SIMDATTN_FIXED(int32_t, vint32m1_t);
SIMDATTN_FIXED(uint16_t, vuint16m1_t);
#undef SIMDATTN_FIXED
#else
template <class T>
struct RegisterType {
  using type = decltype(hn::Vec<Tag<T>>::raw);
};
using MaskRegister = decltype(hn::Mask<Tag<float>>::raw);
#endif

#if HWY_TARGET == HWY_RVV
template <class T>
SIMDATTN_INLINE hn::Vec<Tag<T>> lib(Batch<T> v) {
  return v.data;
}
template <class V>
SIMDATTN_INLINE V own(V v) {
  return v;
}
#else
/// A truth value for each 32-bit lane.
struct Mask {
  MaskRegister data;

  Mask() = default;
  SIMDATTN_INLINE explicit Mask(bool all)
      : Mask(all ? hn::Not(hn::MaskFalse(Tag<float>())) : hn::MaskFalse(Tag<float>())) {}
  SIMDATTN_INLINE explicit Mask(MaskRegister r) : data(r) {}
#if !HWY_TARGET_IS_SVE
  SIMDATTN_INLINE explicit Mask(hn::Mask<Tag<float>> m) : data(m.raw) {}
#endif
  SIMDATTN_INLINE operator MaskRegister() const { return data; }  // NOLINT: implicit
};

// To the library's types, and back.
#if HWY_TARGET_IS_SVE
template <class V>
SIMDATTN_INLINE auto lib(V v) {
  return v.data;
}
template <class T>
SIMDATTN_INLINE auto own(T v) {
  return v;
}
#else
template <class T>
SIMDATTN_INLINE hn::Vec<Tag<T>> lib(Batch<T> v) {
  return hn::Vec<Tag<T>>{v.data};
}
SIMDATTN_INLINE hn::Mask<Tag<float>> lib(Mask m) { return hn::Mask<Tag<float>>{m.data}; }
template <class V>
SIMDATTN_INLINE auto own(V v) {
  return v.raw;
}
#endif

SIMDATTN_INLINE Mask operator&(Mask a, Mask b) { return Mask(hn::And(lib(a), lib(b))); }
SIMDATTN_INLINE Mask operator|(Mask a, Mask b) { return Mask(hn::Or(lib(a), lib(b))); }
SIMDATTN_INLINE Mask operator~(Mask a) { return Mask(hn::Not(lib(a))); }
SIMDATTN_INLINE Mask operator==(Floats a, Floats b) { return Mask(hn::Eq(lib(a), lib(b))); }
SIMDATTN_INLINE Mask operator<(Floats a, Floats b) { return Mask(hn::Lt(lib(a), lib(b))); }
template <class M>
SIMDATTN_INLINE Mask mask_of_ints(M m) {
  return Mask(hn::RebindMask(Tag<float>(), m));
}
SIMDATTN_INLINE Mask greater(Ints a, Ints b) { return mask_of_ints(hn::Gt(lib(a), lib(b))); }
SIMDATTN_INLINE Mask equal(Bits32 a, Bits32 b) { return mask_of_ints(hn::Eq(lib(a), lib(b))); }
SIMDATTN_INLINE Floats select(Mask m, Floats yes, Floats no) { return own(hn::IfThenElse(lib(m), lib(yes), lib(no))); }
SIMDATTN_INLINE bool any(Mask m) { return !hn::AllFalse(Tag<float>(), lib(m)); }

/// Neither is NaN.
SIMDATTN_INLINE Floats max(Floats a, Floats b) { return own(hn::Max(lib(a), lib(b))); }
#endif

/// Rounded once.
SIMDATTN_INLINE Floats mul_add(Floats a, Floats b, Floats c) { return own(hn::MulAdd(lib(a), lib(b), lib(c))); }

}  // namespace
}  // namespace simdattn

#if HWY_TARGET == HWY_RVV
// A mask of fixed length is no type of clang 19 where it has fewer bits than a byte.
#include "lib/simd/vectors.h"  // wants the above
#endif
