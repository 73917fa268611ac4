// The vocabulary on Highway. The instruction set is that of the compiler's flags (-DHWY_COMPILE_ONLY_STATIC).
#ifndef SIMDATTN_LIB_SIMD_HIGHWAY_H_
#define SIMDATTN_LIB_SIMD_HIGHWAY_H_

#include "hwy/highway.h"
#include "lib/simd/registers.h"

namespace simdattn {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
template <class T>
using Tag = hn::ScalableTag<T>;

// The registers themselves. Those of SVE have a size only as types of a fixed length.
#if HWY_TARGET_IS_SVE
#define SIMDATTN_FIXED __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)))
template <class T>
struct RegisterType;
template <>
struct RegisterType<float> {
  typedef svfloat32_t type SIMDATTN_FIXED;
};
template <>
struct RegisterType<uint32_t> {
  typedef svuint32_t type SIMDATTN_FIXED;
};
template <>
struct RegisterType<int32_t> {
  typedef svint32_t type SIMDATTN_FIXED;
};
template <>
struct RegisterType<uint16_t> {
  typedef svuint16_t type SIMDATTN_FIXED;
};
typedef svbool_t MaskRegister SIMDATTN_FIXED;
#undef SIMDATTN_FIXED
template <class T>
SIMDATTN_INLINE auto raw_of(T v) {
  return v;
}
#else
template <class T>
struct RegisterType {
  using type = decltype(hn::Vec<Tag<T>>::raw);
};
using MaskRegister = decltype(hn::Mask<Tag<float>>::raw);
template <class V>
SIMDATTN_INLINE auto raw_of(V v) {
  return v.raw;
}
#endif

/// One register. It converts from and to the compiler's own type.
template <class T>
struct Batch {
  using register_type = typename RegisterType<T>::type;
  static constexpr size_t size = HWY_MAX_BYTES / sizeof(T);
  register_type data;

  Batch() = default;
  SIMDATTN_INLINE Batch(T x) : data(raw_of(hn::Set(Tag<T>(), x))) {}  // NOLINT: implicit, as all of these
  SIMDATTN_INLINE Batch(register_type r) : data(r) {}                 // NOLINT
  SIMDATTN_INLINE operator register_type() const { return data; }     // NOLINT
  SIMDATTN_INLINE hn::Vec<Tag<T>> v() const {
#if HWY_TARGET_IS_SVE
    return data;
#else
    return hn::Vec<Tag<T>>{data};
#endif
  }
  static SIMDATTN_INLINE Batch load_unaligned(const T* p) { return raw_of(hn::LoadU(Tag<T>(), p)); }
  static SIMDATTN_INLINE Batch load_aligned(const T* p) { return raw_of(hn::Load(Tag<T>(), p)); }
  SIMDATTN_INLINE void store_unaligned(T* p) const { hn::StoreU(v(), Tag<T>(), p); }
  SIMDATTN_INLINE void store_aligned(T* p) const { hn::Store(v(), Tag<T>(), p); }

  friend SIMDATTN_INLINE Batch operator+(Batch a, Batch b) { return raw_of(hn::Add(a.v(), b.v())); }
  friend SIMDATTN_INLINE Batch operator-(Batch a, Batch b) { return raw_of(hn::Sub(a.v(), b.v())); }
  friend SIMDATTN_INLINE Batch operator*(Batch a, Batch b) { return raw_of(hn::Mul(a.v(), b.v())); }
  friend SIMDATTN_INLINE Batch operator&(Batch a, Batch b) { return raw_of(hn::And(a.v(), b.v())); }
  friend SIMDATTN_INLINE Batch operator|(Batch a, Batch b) { return raw_of(hn::Or(a.v(), b.v())); }
  friend SIMDATTN_INLINE Batch operator^(Batch a, Batch b) { return raw_of(hn::Xor(a.v(), b.v())); }
  friend SIMDATTN_INLINE Batch operator<<(Batch a, int bits) { return raw_of(hn::ShiftLeftSame(a.v(), bits)); }
  friend SIMDATTN_INLINE Batch operator>>(Batch a, int bits) { return raw_of(hn::ShiftRightSame(a.v(), bits)); }
};
using Floats = Batch<float>;
using Bits32 = Batch<uint32_t>;
using Ints = Batch<int32_t>;
using Bits16 = Batch<uint16_t>;

/// A truth value for each 32-bit lane.
struct Mask {
  using register_type = MaskRegister;
  register_type data;

  Mask() = default;
  SIMDATTN_INLINE explicit Mask(bool all)
      : data(raw_of(all ? hn::Not(hn::MaskFalse(Tag<float>())) : hn::MaskFalse(Tag<float>()))) {}
  SIMDATTN_INLINE explicit Mask(register_type r) : data(r) {}
  SIMDATTN_INLINE operator register_type() const { return data; }  // NOLINT
  SIMDATTN_INLINE hn::Mask<Tag<float>> v() const {
#if HWY_TARGET_IS_SVE
    return data;
#else
    return hn::Mask<Tag<float>>{data};
#endif
  }
  friend SIMDATTN_INLINE Mask operator&(Mask a, Mask b) { return Mask(raw_of(hn::And(a.v(), b.v()))); }
  friend SIMDATTN_INLINE Mask operator|(Mask a, Mask b) { return Mask(raw_of(hn::Or(a.v(), b.v()))); }
  friend SIMDATTN_INLINE Mask operator~(Mask a) { return Mask(raw_of(hn::Not(a.v()))); }
};
SIMDATTN_INLINE Mask operator==(Floats a, Floats b) { return Mask(raw_of(hn::Eq(a.v(), b.v()))); }
/// True where either is NaN, which hn::Ne is not on x86.
SIMDATTN_INLINE Mask operator!=(Floats a, Floats b) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  return Mask(_mm512_cmp_ps_mask(a, b, _CMP_NEQ_UQ));
#elif HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  return Mask(_mm256_cmp_ps(a, b, _CMP_NEQ_UQ));
#elif HWY_ARCH_X86
  return Mask(_mm_cmpneq_ps(a, b));
#else
  return Mask(raw_of(hn::Ne(a.v(), b.v())));
#endif
}
SIMDATTN_INLINE Mask operator<(Floats a, Floats b) { return Mask(raw_of(hn::Lt(a.v(), b.v()))); }
SIMDATTN_INLINE Mask operator>(Floats a, Floats b) { return Mask(raw_of(hn::Gt(a.v(), b.v()))); }

/// The same register as a batch of another type.
template <class To, class From>
SIMDATTN_INLINE Batch<To> cast_bits(Batch<From> v) {
  return raw_of(hn::BitCast(Tag<To>(), v.v()));
}

SIMDATTN_INLINE Floats mul_add(Floats a, Floats b, Floats c) { return raw_of(hn::MulAdd(a.v(), b.v(), c.v())); }
/// x * y - z with one rounding.
SIMDATTN_INLINE Floats mul_sub(Floats x, Floats y, Floats z) { return raw_of(hn::MulSub(x.v(), y.v(), z.v())); }
/// Correctly rounded.
SIMDATTN_INLINE Floats quotient(Floats a, Floats b) { return raw_of(hn::Div(a.v(), b.v())); }
SIMDATTN_INLINE Floats select(Mask m, Floats yes, Floats no) { return raw_of(hn::IfThenElse(m.v(), yes.v(), no.v())); }
SIMDATTN_INLINE Bits32 select(Mask m, Bits32 yes, Bits32 no) {
  return raw_of(hn::IfThenElse(hn::RebindMask(Tag<uint32_t>(), m.v()), yes.v(), no.v()));
}
/// x > m ? x : m: a NaN in x is ignored, m must not be NaN.
SIMDATTN_INLINE Floats max_number(Floats x, Floats m) {
#if HWY_ARCH_X86
  return raw_of(hn::Max(x.v(), m.v()));  // MAXPS returns its second operand if either is NaN
#else
  return select(x > m, x, m);
#endif
}
SIMDATTN_INLINE Floats abs(Floats v) { return raw_of(hn::Abs(v.v())); }
SIMDATTN_INLINE Ints abs(Ints v) { return raw_of(hn::Abs(v.v())); }
template <class T>
SIMDATTN_INLINE Batch<T> max(Batch<T> a, Batch<T> b) {
  return raw_of(hn::Max(a.v(), b.v()));
}
SIMDATTN_INLINE Ints min(Ints a, Ints b) { return raw_of(hn::Min(a.v(), b.v())); }

template <class M>
SIMDATTN_INLINE Mask mask_of_ints(M m) {
  return Mask(raw_of(hn::RebindMask(Tag<float>(), m)));
}
SIMDATTN_INLINE Mask greater(Ints a, Ints b) { return mask_of_ints(hn::Gt(a.v(), b.v())); }
SIMDATTN_INLINE Mask at_least(Ints a, Ints b) { return mask_of_ints(hn::Ge(a.v(), b.v())); }
SIMDATTN_INLINE Mask equal(Bits32 a, Bits32 b) { return mask_of_ints(hn::Eq(a.v(), b.v())); }
SIMDATTN_INLINE bool any(Mask m) { return !hn::AllFalse(Tag<float>(), m.v()); }
SIMDATTN_INLINE bool all(Mask m) { return hn::AllTrue(Tag<float>(), m.v()); }
/// True if a lane is `least` or more.
template <class T>
SIMDATTN_INLINE bool any_at_least(Batch<T> v, T least) {
  return !hn::AllFalse(Tag<T>(), hn::Ge(v.v(), hn::Set(Tag<T>(), least)));
}
SIMDATTN_INLINE Floats to_float(Ints v) { return raw_of(hn::ConvertTo(Tag<float>(), v.v())); }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_HIGHWAY_H_
