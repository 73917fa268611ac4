// The vocabulary without a library and without an instruction set: a vector is SIMDATTN_PLAIN_LANES numbers, of the type that gcc
// and clang have for any CPU. It serves CPUs that no library serves, and shows sanitizers every access of the kernels.
#ifndef SIMDATTN_LIB_SIMD_PLAIN_H_
#define SIMDATTN_LIB_SIMD_PLAIN_H_

#define SIMDATTN_PLAIN 1

#include <bit>
#include <cstring>

#include "lib/contract/fma.h"
#include "lib/simd/registers.h"

namespace simdattn {
namespace {

// Of a type that depends on an argument gcc would forget the attribute.
template <class T>
struct VectorOf;
#define SIMDATTN_VECTOR(T)                                                 \
  template <>                                                              \
  struct VectorOf<T> {                                                     \
    typedef T type __attribute__((vector_size(4 * SIMDATTN_PLAIN_LANES))); \
  }
SIMDATTN_VECTOR(float);
SIMDATTN_VECTOR(uint32_t);
SIMDATTN_VECTOR(int32_t);
SIMDATTN_VECTOR(uint16_t);
#undef SIMDATTN_VECTOR

/// One vector.
template <class T>
struct Batch {
  static constexpr size_t size = 4 * SIMDATTN_PLAIN_LANES / sizeof(T);
  using register_type = typename VectorOf<T>::type;
  register_type data;

  Batch() = default;
  SIMDATTN_INLINE Batch(T x) : data(x - register_type{}) {}        // NOLINT: implicit, as all of these
  SIMDATTN_INLINE Batch(register_type r) : data(r) {}              // NOLINT
  SIMDATTN_INLINE operator register_type() const { return data; }  // NOLINT
  SIMDATTN_INLINE T operator[](size_t i) const { return data[i]; }
  static SIMDATTN_INLINE Batch load_unaligned(const T* p) {
    Batch v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
  static SIMDATTN_INLINE Batch load_aligned(const T* p) { return *reinterpret_cast<const Batch*>(p); }
  SIMDATTN_INLINE void store_unaligned(T* p) const { std::memcpy(p, this, sizeof(*this)); }
  SIMDATTN_INLINE void store_aligned(T* p) const { *reinterpret_cast<Batch*>(p) = *this; }
};
using Floats = Batch<float>;
using Bits32 = Batch<uint32_t>;
using Ints = Batch<int32_t>;
using Bits16 = Batch<uint16_t>;
/// A truth value for each 32-bit lane: all bits or none.
struct Mask {
  Ints::register_type data;

  Mask() = default;
  SIMDATTN_INLINE explicit Mask(bool all) : data(Ints(all ? -1 : 0)) {}
  SIMDATTN_INLINE explicit Mask(Ints::register_type r) : data(r) {}
};

/// Lane i is f(i).
template <class V, class F>
SIMDATTN_INLINE V each(const F& f) {
  V v;
  for (size_t i = 0; i < V::size; ++i) v.data[i] = f(i);
  return v;
}
template <class To, class From>
SIMDATTN_INLINE Batch<To> cast_bits(Batch<From> v) {
  return std::bit_cast<Batch<To>>(v);
}

SIMDATTN_INLINE Floats operator+(Floats a, Floats b) { return a.data + b.data; }
SIMDATTN_INLINE Floats operator-(Floats a, Floats b) { return a.data - b.data; }
SIMDATTN_INLINE Floats operator*(Floats a, Floats b) { return a.data * b.data; }
SIMDATTN_INLINE Floats quotient(Floats a, Floats b) { return a.data / b.data; }
SIMDATTN_INLINE Bits32 operator+(Bits32 a, Bits32 b) { return a.data + b.data; }
SIMDATTN_INLINE Bits32 operator-(Bits32 a, Bits32 b) { return a.data - b.data; }
SIMDATTN_INLINE Bits32 operator<<(Bits32 a, int bits) { return a.data << bits; }
// Unsigned, as the compiler may assume that signed sums do not overflow.
SIMDATTN_INLINE Ints operator+(Ints a, Ints b) {
  return cast_bits<int32_t>(cast_bits<uint32_t>(a) + cast_bits<uint32_t>(b));
}
SIMDATTN_INLINE Ints operator-(Ints a, Ints b) {
  return cast_bits<int32_t>(cast_bits<uint32_t>(a) - cast_bits<uint32_t>(b));
}
SIMDATTN_INLINE Ints operator<<(Ints a, int bits) { return cast_bits<int32_t>(cast_bits<uint32_t>(a) << bits); }
template <class T>
SIMDATTN_INLINE Batch<T> operator>>(Batch<T> a, int bits) {
  return a.data >> bits;
}
template <class T>
SIMDATTN_INLINE Batch<T> operator&(Batch<T> a, Batch<T> b) {
  return a.data & b.data;
}
template <class T>
SIMDATTN_INLINE Batch<T> operator|(Batch<T> a, Batch<T> b) {
  return a.data | b.data;
}
template <class T>
SIMDATTN_INLINE Batch<T> operator^(Batch<T> a, Batch<T> b) {
  return a.data ^ b.data;
}

SIMDATTN_INLINE Mask operator&(Mask a, Mask b) { return Mask(a.data & b.data); }
SIMDATTN_INLINE Mask operator|(Mask a, Mask b) { return Mask(a.data | b.data); }
SIMDATTN_INLINE Mask operator~(Mask a) { return Mask(~a.data); }
SIMDATTN_INLINE Mask operator==(Floats a, Floats b) { return Mask(a.data == b.data); }
SIMDATTN_INLINE Mask operator!=(Floats a, Floats b) { return Mask(a.data != b.data); }
SIMDATTN_INLINE Mask operator<(Floats a, Floats b) { return Mask(a.data < b.data); }
SIMDATTN_INLINE Mask operator>(Floats a, Floats b) { return Mask(a.data > b.data); }
SIMDATTN_INLINE Mask greater(Ints a, Ints b) { return Mask(a.data > b.data); }
SIMDATTN_INLINE Mask at_least(Ints a, Ints b) { return Mask(a.data >= b.data); }
SIMDATTN_INLINE Mask equal(Bits32 a, Bits32 b) { return Mask(a.data == b.data); }
template <class T>
SIMDATTN_INLINE Batch<T> select(Mask m, Batch<T> yes, Batch<T> no) {
  return m.data ? yes.data : no.data;
}

SIMDATTN_INLINE void fused(Floats& sum, const Floats& a, const Floats& b) {
  for (size_t i = 0; i < Floats::size; ++i) sum.data[i] = simdattn::fma(a[i], b[i], sum[i]);
}
#ifdef __FP_FAST_FMAF
SIMDATTN_INLINE
#else
SIMDATTN_SHARED  // as a function call for each lane it would be most of the code
#endif
void add_product(Floats& sum, const Floats& a, const Floats& b) { fused(sum, a, b); }
/// Rounded once.
SIMDATTN_INLINE Floats mul_add(Floats a, Floats b, Floats c) {
  add_product(c, a, b);
  return c;
}
SIMDATTN_INLINE Floats mul_sub(Floats x, Floats y, Floats z) { return mul_add(x, y, -z.data); }
template <class T>
SIMDATTN_INLINE Batch<T> max(Batch<T> a, Batch<T> b) {
  return a.data > b.data ? a.data : b.data;
}
SIMDATTN_INLINE Ints min(Ints a, Ints b) { return a.data < b.data ? a.data : b.data; }
/// x > m ? x : m: a NaN in x is ignored, m must not be NaN.
SIMDATTN_INLINE Floats max_number(Floats x, Floats m) { return max(x, m); }
SIMDATTN_INLINE Floats abs(Floats v) { return cast_bits<float>(cast_bits<uint32_t>(v) & Bits32(0x7FFFFFFFu)); }
SIMDATTN_INLINE Ints abs(Ints v) { return max(v, Ints(0) - v); }
SIMDATTN_INLINE Floats to_float(Ints v) { return __builtin_convertvector(v.data, Floats::register_type); }

SIMDATTN_INLINE bool any(Mask m) {
  int32_t bits = 0;
  for (size_t i = 0; i < Ints::size; ++i) bits |= m.data[i];
  return bits != 0;
}
SIMDATTN_INLINE bool all(Mask m) { return !any(~m); }
/// True if a lane is `least` or more.
template <class T>
SIMDATTN_INLINE bool any_at_least(Batch<T> v, T least) {
  bool found = false;
  for (size_t i = 0; i < v.size; ++i) found |= v[i] >= least;
  return found;
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_PLAIN_H_
