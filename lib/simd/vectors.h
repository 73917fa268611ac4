// What the adapters have, by the operators of gcc and clang for vectors: for plain.h, and where those of a library are
// calls.
#pragma once

#include "lib/simd/batch.h"

namespace simdattn {
namespace {

#if !SIMDATTN_HIGHWAY
template <class T>
SIMDATTN_INLINE Batch<T> repeated(T x) {
  return Batch<T>::of(x - typename Batch<T>::Numbers{});
}
#endif
#if !SIMDATTN_HIGHWAY || HWY_TARGET_IS_NEON
/// memcpy leaves more vectors in registers than a load by a type of any alignment. By LoadU and StoreU of NEON softmax
/// of a tile takes 4 % longer by the model of N1, a panel of q4_0 10 %.
template <class T>
SIMDATTN_INLINE Batch<T> loaded(const void* p) {
  Batch<T> v;
  __builtin_memcpy(&v.data, p, sizeof v);
  return v;
}
template <class T>
SIMDATTN_INLINE void stored(Batch<T> v, void* p) {
  __builtin_memcpy(p, &v.data, sizeof v);
}
#endif

#define SIMDATTN_OPERATOR(op, As)                                \
  template <class T>                                             \
  SIMDATTN_INLINE Batch<T> operator op(Batch<T> a, Batch<T> b) { \
    return Batch<T>::of(as<As>(a) op as<As>(b));                 \
  }
#if !SIMDATTN_HIGHWAY || HWY_TARGET_IS_SVE
// Add, Or and Max of SVE take a constant as a number in the instruction, which writes to its operand: a copy for each.
// By the model of N2 rope of bf16 takes 12 % longer, panels of e4m3 8 %; softmax of a tile puts two vectors on the
// stack.
SIMDATTN_OPERATOR(+, Modular<T>)
SIMDATTN_OPERATOR(-, Modular<T>)
SIMDATTN_OPERATOR(*, Modular<T>)
template <class T>
SIMDATTN_INLINE Batch<T> max(Batch<T> a, Batch<T> b) {
  return Batch<T>::of(larger_numbers(a.numbers(), b.numbers()));
}
#endif
// And, Or and Xor of x86 are of 64-bit lanes, which gcc joins less well with the 32-bit lanes beside them: rope of one
// row of bf16 takes 10 - 17 % longer on AVX2.
#if !SIMDATTN_HIGHWAY || HWY_TARGET_IS_SVE || HWY_ARCH_X86
SIMDATTN_OPERATOR(&, T)
SIMDATTN_OPERATOR(|, T)
SIMDATTN_OPERATOR(^, T)
#endif
#if !SIMDATTN_HIGHWAY
template <class To, class From>
SIMDATTN_INLINE Batch<To> cast_bits(Batch<From> v) {
  return Batch<To>::of(v.data);
}
template <class T>
SIMDATTN_INLINE Batch<T> operator~(Batch<T> v) {
  return Batch<T>::of(~v.numbers());
}
template <class T>
SIMDATTN_INLINE Batch<T> operator<<(Batch<T> v, int bits) {
  return Batch<T>::of(as<Modular<T>>(v) << bits);
}
template <class T>
SIMDATTN_INLINE Batch<T> operator>>(Batch<T> v, int bits) {
  return Batch<T>::of(v.numbers() >> bits);
}
SIMDATTN_INLINE Floats quotient(Floats a, Floats b) { return Floats::of(a.numbers() / b.numbers()); }
SIMDATTN_INLINE Floats to_float(Ints v) { return Floats::of(__builtin_convertvector(v.numbers(), Floats::Numbers)); }
#endif
#undef SIMDATTN_OPERATOR

#if !SIMDATTN_HIGHWAY || HWY_TARGET == HWY_RVV
// On RISC-V a mask of fixed length is no type of clang 19 where it has fewer bits than a byte.
/// A truth value for each 32-bit lane: all bits or none.
struct Mask {
  Ints::Numbers data;

  Mask() = default;
  SIMDATTN_INLINE explicit Mask(bool all) : data(Ints(all ? -1 : 0).numbers()) {}
  SIMDATTN_INLINE explicit Mask(Ints::Numbers r) : data(r) {}
};

SIMDATTN_INLINE Mask operator&(Mask a, Mask b) { return Mask(a.data & b.data); }
SIMDATTN_INLINE Mask operator|(Mask a, Mask b) { return Mask(a.data | b.data); }
SIMDATTN_INLINE Mask operator~(Mask a) { return Mask(~a.data); }
SIMDATTN_INLINE Mask operator==(Floats a, Floats b) { return Mask(a.numbers() == b.numbers()); }
SIMDATTN_INLINE Mask operator<(Floats a, Floats b) { return Mask(a.numbers() < b.numbers()); }
SIMDATTN_INLINE Mask greater(Ints a, Ints b) { return Mask(a.numbers() > b.numbers()); }
SIMDATTN_INLINE Mask equal(Bits32 a, Bits32 b) { return Mask(a.numbers() == b.numbers()); }
SIMDATTN_INLINE Floats select(Mask m, Floats yes, Floats no) {
  return Floats::of(m.data ? yes.numbers() : no.numbers());
}
SIMDATTN_INLINE bool any(Mask m) {
  int32_t bits = 0;
  for (size_t i = 0; i < Ints::size; ++i) bits |= m.data[i];
  return bits != 0;
}
#endif
#if !SIMDATTN_HIGHWAY
template <class T>
SIMDATTN_INLINE bool any_at_least(Batch<T> v, T least) {
  return any(~equal(Bits32::of(v.numbers() >= Batch<T>(least).numbers()), Bits32(0u)));
}
#endif

}  // namespace
}  // namespace simdattn
