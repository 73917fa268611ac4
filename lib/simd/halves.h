// Bytes and 16-bit numbers by the compiler's vectors: for plain.h, and for xsimd, which converts between numbers of one
// size alone.
#pragma once

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

/// V::size numbers of type Small at p, each converted: to Words first, because gcc takes a detour through memory from 8
/// bits to 32.
template <class V, class Small, class Word>
SIMDATTN_INLINE V converted(const void* p) {
  typename VectorOf<Small, V::size * sizeof(Small)>::type v;
  __builtin_memcpy(&v, p, sizeof v);
  using Words = typename VectorOf<Word, V::size * sizeof(Word)>::type;
  return V::of(__builtin_convertvector(__builtin_convertvector(v, Words), typename V::Numbers));
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) { return converted<Bits32, uint8_t, uint16_t>(p); }
SIMDATTN_INLINE Ints load_integers(const uint8_t* p) { return converted<Ints, int8_t, int16_t>(p); }
SIMDATTN_INLINE Bits16 load_scaled_bytes(const uint8_t* p, int n) { return converted<Bits16, int8_t, int16_t>(p) << n; }

using Halves = VectorOf<uint16_t, sizeof(Floats) / 2>::type;
/// memcpy of 16 bytes would go through general registers.
using StoredHalves [[gnu::aligned(2), gnu::may_alias]] = Halves;
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, All) { return *reinterpret_cast<const StoredHalves*>(p); }
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, All) { *reinterpret_cast<StoredHalves*>(p) = v; }
SIMDATTN_INLINE Halves repeated_half(uint16_t x) { return Halves{} + x; }
SIMDATTN_INLINE Bits32 widen_bits(Halves v) { return Bits32::of(__builtin_convertvector(v, Bits32::Numbers)); }
SIMDATTN_INLINE Halves narrow_bits(Bits32 v) { return __builtin_convertvector(v.numbers(), Halves); }

}  // namespace
}  // namespace simdattn
