// One register of numbers, whose operators are those of gcc and clang for vectors. Adapters share it.
#pragma once

#include "lib/simd/registers.h"

namespace simdattn {
namespace {

/// kBytes of numbers, and the same at any address. (Of a type that depends on an argument gcc would forget the
/// attributes.)
template <class T, size_t kBytes>
struct VectorOf;
#define SIMDATTN_VECTOR(T)                                                          \
  template <size_t kBytes>                                                          \
  struct VectorOf<T, kBytes> {                                                      \
    typedef T type __attribute__((vector_size(kBytes)));                            \
    typedef T anywhere __attribute__((vector_size(kBytes), aligned(1), may_alias)); \
  }
SIMDATTN_VECTOR(float);
SIMDATTN_VECTOR(uint64_t);
SIMDATTN_VECTOR(uint32_t);
SIMDATTN_VECTOR(int32_t);
SIMDATTN_VECTOR(uint16_t);
SIMDATTN_VECTOR(int16_t);
SIMDATTN_VECTOR(uint8_t);
SIMDATTN_VECTOR(int8_t);
#undef SIMDATTN_VECTOR

/// The adapter's: `type` is a library's vector, `raw` what intrinsics take where that is another type. On x86 the
/// latter does not say how wide integers are.
template <class T>
struct RegisterType;
/// `raw` of a register that intrinsics take as it is.
struct NoRaw {};

// The adapter's, too: a number in every lane, and access to memory at any address. It also has the operators.
template <class T>
struct Batch;
template <class T>
SIMDATTN_INLINE Batch<T> repeated(T x);
template <class T>
SIMDATTN_INLINE Batch<T> loaded(const void* p);
template <class T>
SIMDATTN_INLINE void stored(Batch<T> v, void* p);

/// One register of numbers.
template <class T>
struct Batch {
  using Register = typename RegisterType<T>::type;
  using Raw = typename RegisterType<T>::raw;
  using Numbers = typename VectorOf<T, sizeof(Register)>::type;
  static constexpr size_t size = sizeof(Register) / sizeof(T);
  Register data;

  Batch() = default;
  SIMDATTN_INLINE Batch(T x) : Batch(repeated<T>(x)) {}                           // NOLINT: implicit, as all of these
  SIMDATTN_INLINE Batch(Register r) : data(r) {}                                  // NOLINT
  SIMDATTN_INLINE Batch(Raw r) : Batch(of(r)) {}                                  // NOLINT
  SIMDATTN_INLINE operator Register() const { return data; }                      // NOLINT
  SIMDATTN_INLINE operator Raw() const { return __builtin_bit_cast(Raw, data); }  // NOLINT
  template <class V>
  static SIMDATTN_INLINE Batch of(V v) {
    return __builtin_bit_cast(Register, v);
  }
  SIMDATTN_INLINE Numbers numbers() const { return __builtin_bit_cast(Numbers, data); }
  SIMDATTN_INLINE T operator[](size_t i) const { return numbers()[i]; }

  static SIMDATTN_INLINE Batch load_unaligned(const void* p) { return loaded<T>(p); }
  SIMDATTN_INLINE void store_unaligned(void* p) const { stored(*this, p); }
};
/// Sums of signed integers may not overflow; unsigned ones have the same bits.
template <class T>
using Modular = std::conditional_t<std::is_same_v<T, int32_t>, uint32_t, T>;
/// The same register as lanes of T.
template <class T, class V>
SIMDATTN_INLINE auto as(V v) {
  return __builtin_bit_cast(typename VectorOf<T, sizeof(V)>::type, v.data);
}
/// The compiler's: libraries flip the sign's bit on x86, which gcc joins with no multiply-add: rope would take 3 % more
/// instructions. On NEON it is a register more: masked softmax would put a third vector on the stack.
template <class T>
SIMDATTN_INLINE Batch<T> operator-(Batch<T> v) {
  return Batch<T>::of(-as<Modular<T>>(v));
}
/// One instruction: gcc knows it if it sees each vector once.
template <class V>
SIMDATTN_INLINE V larger_numbers(V a, V b) {
  return a > b ? a : b;
}
using Floats = Batch<float>;
using Bits32 = Batch<uint32_t>;
using Ints = Batch<int32_t>;
using Bits16 = Batch<uint16_t>;

}  // namespace
}  // namespace simdattn
