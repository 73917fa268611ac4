// NEON: 16-bit numbers, order of lanes; a vector is one 128-bit block.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_NEON_H_
#define SIMDATTN_LIB_SIMD_NATIVE_NEON_H_

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

using Halves = uint16x4_t;
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, All) { return vld1_u16(p); }
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, All) { vst1_u16(p, v); }
SIMDATTN_INLINE Bits32 widen_bits(Halves v) { return vmovl_u16(v); }
SIMDATTN_INLINE Halves narrow_bits(Bits32 v) { return vmovn_u32(v); }
SIMDATTN_INLINE Floats f32_from_f16(Halves v) { return vcvt_f32_f16(vreinterpret_f16_u16(v)); }
SIMDATTN_INLINE Halves f16_of_number(Floats v) { return vreinterpret_u16_f16(vcvt_f16_f32(v)); }
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) {
  uint32_t four;
  __builtin_memcpy(&four, p, 4);
  return vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)))));
}

SIMDATTN_INLINE Ints load_integers(const uint8_t* p) {
  uint32_t four;
  __builtin_memcpy(&four, p, 4);
  return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)))));
}
SIMDATTN_INLINE Halves repeated_half(uint16_t x) { return vdup_n_u16(x); }

SIMDATTN_INLINE Floats f32_of_first(Floats v) { return vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_f32(v))); }
SIMDATTN_INLINE Floats f32_of_second(Floats v) { return vcvt_high_f32_f16(vreinterpretq_f16_f32(v)); }

/// upper without its last bit where lower is 0.
SIMDATTN_INLINE Bits16 ties_to_even(Bits16 upper, Bits16 lower) {
  return vbicq_u16(upper, vqsubq_u16(vdupq_n_u16(1), lower));
}
/// To nearest even.
SIMDATTN_INLINE Ints nearest(Floats v) { return vcvtnq_s32_f32(v); }
/// The lanes of four vectors, each a byte, one behind the other.
template <bool kUnsigned>
SIMDATTN_INLINE void store_bytes(Ints v0, Ints v1, Ints v2, Ints v3, void* p) {
  const int16x8_t low = vuzp1q_s16(vreinterpretq_s16_s32(v0), vreinterpretq_s16_s32(v1));
  const int16x8_t high = vuzp1q_s16(vreinterpretq_s16_s32(v2), vreinterpretq_s16_s32(v3));
  vst1q_s8(static_cast<int8_t*>(p), vuzp1q_s8(vreinterpretq_s8_s16(low), vreinterpretq_s8_s16(high)));
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_NATIVE_NEON_H_
