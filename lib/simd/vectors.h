// Comparisons and what follows from them, by the operators that gcc and clang have for vectors: for plain.h, and where a library's own
// are calls.
#ifndef SIMDATTN_LIB_SIMD_VECTORS_H_
#define SIMDATTN_LIB_SIMD_VECTORS_H_

#include "lib/simd/batch.h"

namespace simdattn {
namespace {

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
SIMDATTN_INLINE Mask operator>(Floats a, Floats b) { return Mask(a.numbers() > b.numbers()); }
SIMDATTN_INLINE Mask greater(Ints a, Ints b) { return Mask(a.numbers() > b.numbers()); }
SIMDATTN_INLINE Mask at_least(Ints a, Ints b) { return Mask(a.numbers() >= b.numbers()); }
SIMDATTN_INLINE Mask equal(Bits32 a, Bits32 b) { return Mask(a.numbers() == b.numbers()); }
template <class T>
SIMDATTN_INLINE Batch<T> select(Mask m, Batch<T> yes, Batch<T> no) {
  return Batch<T>::of(m.data ? yes.numbers() : no.numbers());
}
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

template <class T>
SIMDATTN_INLINE Batch<T> max(Batch<T> a, Batch<T> b) {
  return Batch<T>::of(a.numbers() > b.numbers() ? a.numbers() : b.numbers());
}
SIMDATTN_INLINE Ints min(Ints a, Ints b) { return Ints::of(a.numbers() < b.numbers() ? a.numbers() : b.numbers()); }
/// x > m ? x : m: a NaN in x is ignored, m must not be NaN.
SIMDATTN_INLINE Floats max_number(Floats x, Floats m) { return max(x, m); }
SIMDATTN_INLINE Floats abs(Floats v) { return Floats::of(Bits32::of(v.data) & Bits32(0x7FFFFFFFu)); }
SIMDATTN_INLINE Ints abs(Ints v) { return max(v, -v); }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_VECTORS_H_
