// Some lanes by way of memory, for instruction sets without masked access: of 16-bit numbers and bytes, and of f32 but for AVX2.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_LANES_H_
#define SIMDATTN_LIB_SIMD_NATIVE_LANES_H_

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

#if !SIMDATTN_AVX2
struct Lanes {
  int64_t from, to;
};
SIMDATTN_INLINE Lanes first_lanes(int64_t n) { return {0, n}; }
SIMDATTN_INLINE Lanes lanes(int64_t from, int64_t to) { return {from, to}; }
SIMDATTN_INLINE Mask mask_of(Lanes part) {
  const Ints i = lane_numbers();
  return greater(Ints(static_cast<int32_t>(part.to)), i) & at_least(i, Ints(static_cast<int32_t>(part.from)));
}

SIMDATTN_INLINE Floats load(const float* p, Lanes part) {
  alignas(sizeof(Floats)) float copy[kLanes] = {};
  copy_lanes<kLanes>(p, copy, part.from, part.to);
  return Floats::load_aligned(copy);
}
SIMDATTN_INLINE void store(Floats v, float* p, Lanes part) {
  alignas(sizeof(Floats)) float copy[kLanes];
  v.store_aligned(copy);
  copy_lanes<kLanes>(copy, p, part.from, part.to);
}
#endif

SIMDATTN_INLINE Halves load_halves(const uint16_t* p, Lanes part) {
  alignas(8) uint16_t copy[kLanes] = {};
  copy_lanes<kLanes>(p, copy, part.from, part.to);
  return load_halves(copy, All());
}
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, Lanes part) {
  alignas(8) uint16_t copy[kLanes];
  store_halves(v, copy, All());
  copy_lanes<kLanes>(copy, p, part.from, part.to);
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, Lanes part) {
  alignas(4) uint8_t copy[kLanes] = {};
  copy_lanes<kLanes>(p, copy, part.from, part.to);
  return load_bytes(copy, All());
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_NATIVE_LANES_H_
