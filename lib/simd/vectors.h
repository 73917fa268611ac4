// Masks and comparisons by the compiler's operators for vectors: for plain.h, and where a library's own are calls.
#pragma once

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
SIMDATTN_INLINE Mask greater(Ints a, Ints b) { return Mask(a.numbers() > b.numbers()); }
SIMDATTN_INLINE Mask equal(Bits32 a, Bits32 b) { return Mask(a.numbers() == b.numbers()); }
SIMDATTN_INLINE Floats select(Mask m, Floats yes, Floats no) {
  return Floats::of(m.data ? yes.numbers() : no.numbers());
}
/// Neither is NaN.
SIMDATTN_INLINE Floats max(Floats a, Floats b) { return select(b < a, a, b); }
SIMDATTN_INLINE bool any(Mask m) {
  int32_t bits = 0;
  for (size_t i = 0; i < Ints::size; ++i) bits |= m.data[i];
  return bits != 0;
}

}  // namespace
}  // namespace simdattn
