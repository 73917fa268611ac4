// Whole registers of 16-bit numbers; and some lanes by way of memory, for instruction sets without masked access: of
// 16-bit numbers and bytes, and of f32 but for AVX2.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_LANES_H_
#define SIMDATTN_LIB_SIMD_NATIVE_LANES_H_

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

#if SIMDATTN_PLAIN || SIMDATTN_AVX2 || SIMDATTN_NEON
using StoredHalves [[gnu::aligned(2), gnu::may_alias]] =
    Halves;  // memcpy of 16 bytes would go through general registers
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, All) { return *reinterpret_cast<const StoredHalves*>(p); }
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, All) { *reinterpret_cast<StoredHalves*>(p) = v; }
#endif

#if !SIMDATTN_AVX2 && !SIMDATTN_SVE
struct Lanes {
  int64_t from, to;
};
SIMDATTN_INLINE Lanes first_lanes(int64_t n) { return {0, n}; }
SIMDATTN_INLINE Lanes lanes(int64_t from, int64_t to) { return {from, to}; }
SIMDATTN_INLINE Mask mask_of(Lanes part) {
  const Ints i = lane_numbers();
  return greater(Ints(static_cast<int32_t>(part.to)), i) & at_least(i, Ints(static_cast<int32_t>(part.from)));
}
#endif

#if !SIMDATTN_AVX512 && !SIMDATTN_SVE
/// to[i] = from[i] for the lanes of part; unrolled.
template <class T>
SIMDATTN_INLINE void copy_lanes(const T* from, T* to, Lanes part) {
  unroll<kLanes>([&](auto i) SIMDATTN_LAMBDA {
    if (part.from <= i && i < part.to) to[i] = from[i];
  });
}
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, Lanes part) {
  alignas(8) uint16_t copy[kLanes] = {};
  copy_lanes(p, copy, part);
  return load_halves(copy, All());
}
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, Lanes part) {
  alignas(8) uint16_t copy[kLanes];
  store_halves(v, copy, All());
  copy_lanes(copy, p, part);
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, Lanes part) {
  uint8_t copy[kLanes] = {};
  copy_lanes(p, copy, part);
  return load_bytes(copy, All());
}
#if !SIMDATTN_AVX2
SIMDATTN_INLINE Floats load(const float* p, Lanes part) {
  float copy[kLanes] = {};
  copy_lanes(p, copy, part);
  return Floats::load_unaligned(copy);
}
SIMDATTN_INLINE void store(Floats v, float* p, Lanes part) {
  float copy[kLanes];
  v.store_unaligned(copy);
  copy_lanes(copy, p, part);
}
#endif
#endif

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_NATIVE_LANES_H_
