// Some lanes of 16-bit numbers and of bytes on AVX2 and SSE4.2, which have no masked access to them.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_HALVES_H_
#define SIMDATTN_LIB_SIMD_NATIVE_HALVES_H_

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

using Halves = __m128i;
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, Lanes part) {
  alignas(16) uint16_t copy[8] = {};
  copy_lanes<kLanes>(p, copy, part.from, part.to);
  return _mm_load_si128(reinterpret_cast<const __m128i*>(copy));
}
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, Lanes part) {
  alignas(16) uint16_t copy[8];
  _mm_store_si128(reinterpret_cast<__m128i*>(copy), v);
  copy_lanes<kLanes>(copy, p, part.from, part.to);
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, Lanes part) {
  alignas(8) uint8_t copy[8] = {};
  copy_lanes<kLanes>(p, copy, part.from, part.to);
  return load_bytes_of(copy);
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_NATIVE_HALVES_H_
