// NEON, for xsimd, which converts between numbers of one size alone; a vector is one 128-bit block.
#pragma once

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

using Halves = uint16x4_t;
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

}  // namespace
}  // namespace simdattn
