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

template <int64_t kRows = 4, class T>
SIMDATTN_INLINE Floats load_blocks(const T* p, int64_t) {
  return vreinterpretq_f32_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p)));
}
SIMDATTN_INLINE Floats zip_lo_words(Floats a, Floats b) {
  return vreinterpretq_f32_u16(vzip1q_u16(vreinterpretq_u16_f32(a), vreinterpretq_u16_f32(b)));
}
SIMDATTN_INLINE Floats zip_hi_words(Floats a, Floats b) {
  return vreinterpretq_f32_u16(vzip2q_u16(vreinterpretq_u16_f32(a), vreinterpretq_u16_f32(b)));
}
SIMDATTN_INLINE Floats f32_of_first(Floats v) { return vcvt_f32_f16(vget_low_f16(vreinterpretq_f16_f32(v))); }
SIMDATTN_INLINE Floats f32_of_second(Floats v) { return vcvt_high_f32_f16(vreinterpretq_f16_f32(v)); }
SIMDATTN_INLINE Floats zip_lo_blocks(Floats a, Floats b) { return vzip1q_f32(a, b); }
SIMDATTN_INLINE Floats zip_hi_blocks(Floats a, Floats b) { return vzip2q_f32(a, b); }
SIMDATTN_INLINE Floats zip_lo_pairs(Floats a, Floats b) {
  return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
SIMDATTN_INLINE Floats zip_hi_pairs(Floats a, Floats b) {
  return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
SIMDATTN_INLINE Floats sums_in_blocks(const float* sums, int64_t i) { return Floats::load_unaligned(sums + 4 * i); }
template <class Op>
SIMDATTN_INLINE float fold_lanes(Floats v, const Op& op) {
  v = op(v, Floats(vextq_f32(v, v, 2)));
  v = op(v, Floats(vextq_f32(v, v, 1)));
  return vgetq_lane_f32(v, 0);
}
SIMDATTN_INLINE Floats even_lanes(Floats a, Floats b) { return vuzp1q_f32(a, b); }
SIMDATTN_INLINE Floats odd_lanes(Floats a, Floats b) { return vuzp2q_f32(a, b); }
SIMDATTN_INLINE Floats zip_lower(Floats a, Floats b) { return vzip1q_f32(a, b); }
SIMDATTN_INLINE Floats zip_upper(Floats a, Floats b) { return vzip2q_f32(a, b); }
SIMDATTN_INLINE Floats even_twice(Floats v) { return vtrn1q_f32(v, v); }
SIMDATTN_INLINE Floats odd_twice(Floats v) { return vtrn2q_f32(v, v); }

/// The lower (upper) words of the lanes of e and of o, side by side: e's, o's, e's, ...
SIMDATTN_INLINE Bits16 lower_words(Bits32 e, Bits32 o) {
  return vtrn1q_u16(vreinterpretq_u16_u32(e), vreinterpretq_u16_u32(o));
}
SIMDATTN_INLINE Bits16 upper_words(Bits32 e, Bits32 o) {
  return vtrn2q_u16(vreinterpretq_u16_u32(e), vreinterpretq_u16_u32(o));
}
/// upper without its last bit where lower is 0.
SIMDATTN_INLINE Bits16 ties_to_even(Bits16 upper, Bits16 lower) {
  return vbicq_u16(upper, vqsubq_u16(vdupq_n_u16(1), lower));
}
/// Two vectors without NaN, one behind the other, rounded to nearest even.
SIMDATTN_INLINE void store_numbers(Bits32 b0, Bits32 b1, bf16* p) {
  const uint16x8_t w0 = vreinterpretq_u16_u32(b0), w1 = vreinterpretq_u16_u32(b1);
  vst1q_u16(reinterpret_cast<uint16_t*>(p), ties_to_even(vuzp2q_u16(w0, w1), vuzp1q_u16(w0, w1)));
}
/// Lane i of the result is lane i ^ kHalf.
template <int64_t kHalf>
SIMDATTN_INLINE Floats swap_lanes(Floats v) {
  if constexpr (kHalf == 1) return vrev64q_f32(v);
  else return vextq_f32(v, v, 2);
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
/// Bytes 0 and 2 (1 and 3) of each lane as numbers of 16 bits.
SIMDATTN_INLINE Ints even_bytes(Ints v) {
  return vreinterpretq_s32_s16(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s32(v), 8), 8));
}
SIMDATTN_INLINE Ints odd_bytes(Ints v) { return vreinterpretq_s32_s16(vshrq_n_s16(vreinterpretq_s16_s32(v), 8)); }

}  // namespace
}  // namespace simdattn

#include "lib/simd/native/lanes.h"  // wants the above

#endif  // SIMDATTN_LIB_SIMD_NATIVE_NEON_H_
