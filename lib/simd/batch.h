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
#undef SIMDATTN_VECTOR

/// The adapter's: `type` is what intrinsics take, which on x86 does not say how wide integers are.
template <class T>
struct RegisterType;

#if defined(__ARM_FEATURE_SVE) && !defined(__clang__) && __GNUC__ > 12
constexpr bool kCopiesByType = true;
#else
constexpr bool kCopiesByType = false;
#endif

template <class T>
struct Batch {
  using register_type = typename RegisterType<T>::type;
  using Numbers = typename VectorOf<T, sizeof(register_type)>::type;
  using Anywhere = typename VectorOf<T, sizeof(register_type)>::anywhere;
  /// Sums of signed integers may not overflow; unsigned ones have the same bits.
  using Modular =
      typename VectorOf<std::conditional_t<std::is_same_v<T, int32_t>, uint32_t, T>, sizeof(register_type)>::type;
  static constexpr size_t size = sizeof(register_type) / sizeof(T);
  register_type data;

  Batch() = default;
  SIMDATTN_INLINE Batch(T x) : Batch(of(x - Numbers{})) {}         // NOLINT: implicit, as all of these
  SIMDATTN_INLINE Batch(register_type r) : data(r) {}              // NOLINT
  SIMDATTN_INLINE operator register_type() const { return data; }  // NOLINT
  template <class V>
  static SIMDATTN_INLINE Batch of(V v) {
    return __builtin_bit_cast(register_type, v);
  }
  SIMDATTN_INLINE Numbers numbers() const { return __builtin_bit_cast(Numbers, data); }
  SIMDATTN_INLINE Modular modular() const { return __builtin_bit_cast(Modular, data); }
  SIMDATTN_INLINE T operator[](size_t i) const { return numbers()[i]; }

  /// With SVE gcc 14 makes memcpy of registers of 128 bits, so vectors of 256 would come from the stack. Elsewhere, and
  /// by gcc 12, memcpy leaves more vectors in registers.
  static SIMDATTN_INLINE Batch load_unaligned(const void* p) {
    if constexpr (kCopiesByType) return of(*static_cast<const Anywhere*>(p));
    Batch v;
    __builtin_memcpy(&v.data, p, sizeof(v));
    return v;
  }
  SIMDATTN_INLINE void store_unaligned(void* p) const {
    if constexpr (kCopiesByType) *static_cast<Anywhere*>(p) = numbers();
    else __builtin_memcpy(p, &data, sizeof(data));
  }

  SIMDATTN_INLINE Batch operator-() const { return of(-modular()); }
  SIMDATTN_INLINE Batch operator~() const { return of(~numbers()); }
  friend SIMDATTN_INLINE Batch operator+(Batch a, Batch b) { return of(a.modular() + b.modular()); }
  friend SIMDATTN_INLINE Batch operator-(Batch a, Batch b) { return of(a.modular() - b.modular()); }
  friend SIMDATTN_INLINE Batch operator*(Batch a, Batch b) { return of(a.modular() * b.modular()); }
  friend SIMDATTN_INLINE Batch operator&(Batch a, Batch b) { return of(a.numbers() & b.numbers()); }
  friend SIMDATTN_INLINE Batch operator|(Batch a, Batch b) { return of(a.numbers() | b.numbers()); }
  friend SIMDATTN_INLINE Batch operator^(Batch a, Batch b) { return of(a.numbers() ^ b.numbers()); }
  friend SIMDATTN_INLINE Batch operator<<(Batch a, int bits) { return of(a.modular() << bits); }
  friend SIMDATTN_INLINE Batch operator>>(Batch a, int bits) { return of(a.numbers() >> bits); }
};
/// The same register as lanes of T.
template <class T, class V>
SIMDATTN_INLINE auto as(V v) {
  return __builtin_bit_cast(typename VectorOf<T, sizeof(V)>::type, v.data);
}
using Floats = Batch<float>;
using Bits32 = Batch<uint32_t>;
using Ints = Batch<int32_t>;
using Bits16 = Batch<uint16_t>;

}  // namespace
}  // namespace simdattn
