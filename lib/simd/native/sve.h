// SVE of a fixed length: predicated access, 16-bit numbers, which loads and stores convert.
#pragma once

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

struct Lanes {
  Mask mask;
};
SIMDATTN_INLINE Lanes first_lanes(int64_t n) { return {Mask(svwhilelt_b32_s64(0, n))}; }
SIMDATTN_INLINE Lanes lanes(int64_t from, int64_t to) {
  return {Mask(svbic_b_z(svptrue_b32(), svwhilelt_b32_s64(0, to), svwhilelt_b32_s64(0, from)))};
}
SIMDATTN_INLINE Mask mask_of(Lanes part) { return part.mask; }

SIMDATTN_INLINE Floats load(const float* p, Lanes part) { return svld1_f32(part.mask, p); }
SIMDATTN_INLINE void store(Floats v, float* p, Lanes part) { svst1_f32(part.mask, p, v); }

/// In the lower halves of 32-bit lanes: loads and stores convert.
using Halves = Bits32;
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, All) { return svld1uh_u32(svptrue_b32(), p); }
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, Lanes part) { return svld1uh_u32(part.mask, p); }
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, All) { svst1h_u32(svptrue_b32(), p, v); }
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, Lanes part) { svst1h_u32(part.mask, p, v); }
/// x in all of them.
SIMDATTN_INLINE Halves repeated_half(uint16_t x) { return Halves(x); }
SIMDATTN_INLINE Bits32 widen_bits(Halves v) { return v; }
SIMDATTN_INLINE Halves narrow_bits(Bits32 v) { return v; }
SIMDATTN_INLINE Floats f32_from_f16(Halves v) { return svcvt_f32_f16_x(svptrue_b32(), svreinterpret_f16_u32(v)); }
SIMDATTN_INLINE Halves f16_of_number(Floats v) { return svreinterpret_u32_f16(svcvt_f16_f32_z(svptrue_b32(), v)); }
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) { return svld1ub_u32(svptrue_b32(), p); }
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, Lanes part) { return svld1ub_u32(part.mask, p); }
SIMDATTN_INLINE Ints load_integers(const uint8_t* p) {
  return svld1sb_s32(svptrue_b32(), reinterpret_cast<const int8_t*>(p));
}
SIMDATTN_INLINE Ints nearest(Floats v) { return svcvt_s32_f32_x(svptrue_b32(), svrintn_f32_x(svptrue_b32(), v)); }

}  // namespace
}  // namespace simdattn
