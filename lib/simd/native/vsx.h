// VSX of 64-bit Power, little-endian, from POWER9 on: 16-bit numbers; a vector is one 128-bit block.
#pragma once

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

/// In the lower halves of 32-bit lanes, where conversions of f16 take them.
using Halves = Bits32;
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, All) {
  unsigned long long four;
  __builtin_memcpy(&four, p, sizeof(four));
  const __vector unsigned long long words = {four, 0};
  return bits_of(zip_lo<uint16_t>(reinterpret_cast<Floats::register_type>(words), Floats(0.0f)));
}
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, All) {
  const auto words = vec_pack(v.data, v.data);
  const unsigned long long four = reinterpret_cast<__vector unsigned long long>(words)[0];
  __builtin_memcpy(p, &four, sizeof(four));
}
SIMDATTN_INLINE Bits32 widen_bits(Halves v) { return v; }
SIMDATTN_INLINE Halves narrow_bits(Bits32 v) { return v; }
SIMDATTN_INLINE Floats f32_from_f16(Halves v) {
  Floats::register_type r;
  asm("xvcvhpsp %x0,%x1" : "=wa"(r) : "wa"(v.data));
  return r;
}
SIMDATTN_INLINE Halves f16_of_number(Floats v) {
  Halves::register_type r;
  asm("xvcvsphp %x0,%x1" : "=wa"(r) : "wa"(v.data));
  return r;
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) {
  uint32_t four;
  __builtin_memcpy(&four, p, sizeof(four));
  const Bits32::register_type places = {0, 8, 16, 24};
  return Bits32(four).data >> places & Bits32(255u).data;
}
SIMDATTN_INLINE Ints load_integers(const uint8_t* p) { return cast_bits<int32_t>(load_bytes(p, All()) << 24) >> 24; }

SIMDATTN_INLINE Ints nearest(Floats v) { return vec_cts(vec_rint(v.data), 0); }

}  // namespace
}  // namespace simdattn
