// No instruction set: what native/ has of each, in standard C++ over the arrays of plain.h.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_PLAIN_H_
#define SIMDATTN_LIB_SIMD_NATIVE_PLAIN_H_

#include <cmath>
#include <cstring>

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

struct Halves {
  static constexpr size_t size = Floats::size;
  uint16_t data[Floats::size];
};
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, All) {
  Halves r;
  std::memcpy(r.data, p, sizeof(r.data));
  return r;
}
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, All) { std::memcpy(p, v.data, sizeof(v.data)); }
SIMDATTN_INLINE Bits32 widen_bits(Halves v) {
  return each<Bits32>([&](size_t i) SIMDATTN_LAMBDA { return v.data[i]; });
}
SIMDATTN_INLINE Halves narrow_bits(Bits32 v) {
  return each<Halves>([&](size_t i) SIMDATTN_LAMBDA { return static_cast<uint16_t>(v[i]); });
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) {
  return each<Bits32>([&](size_t i) SIMDATTN_LAMBDA { return p[i]; });
}
SIMDATTN_INLINE Ints load_integers(const uint8_t* p) {
  return each<Ints>([&](size_t i) SIMDATTN_LAMBDA { return static_cast<int8_t>(p[i]); });
}
SIMDATTN_INLINE Halves repeated_half(uint16_t x) {
  return each<Halves>([&](size_t) SIMDATTN_LAMBDA { return x; });
}
/// Byte i of each lane as its upper one, zeros below.
template <int i>
SIMDATTN_INLINE Bits32 upper_byte(Bits32 v) {
  return (v << (24 - 8 * i)) & Bits32(0xFF000000u);
}
/// Bytes k of all lanes, then bytes k + 2, as upper halves of 16 bits, anything below.
template <int k>
SIMDATTN_INLINE Bits16 upper_bytes(Bits32 v) {
  return each<Bits16>([&](size_t i) SIMDATTN_LAMBDA {
    return static_cast<uint16_t>(v[i % Floats::size] >> (8 * k + 16 * (i / Floats::size)) << 8);
  });
}
SIMDATTN_INLINE Bits32 max_bytes(Bits32 a, Bits32 b) {
  return Bits32::of(as<uint8_t>(a) > as<uint8_t>(b) ? as<uint8_t>(a) : as<uint8_t>(b));
}
/// 2 kLanes bytes with signs, times 2^n.
SIMDATTN_INLINE Bits16 load_scaled_bytes(const uint8_t* p, int n) {
  return each<Bits16>([&](size_t i)
                          SIMDATTN_LAMBDA { return static_cast<uint16_t>(static_cast<int8_t>(p[i]) * (1 << n)); });
}

/// The f16 in the first and in the second half of a vector.
SIMDATTN_INLINE Floats f32_of_f16(Floats v, size_t first) {
  const Bits16 words = cast_bits<uint16_t>(v);
  return each<Floats>([&](size_t i) SIMDATTN_LAMBDA { return to_f32(f16{words[first + i]}); });
}
SIMDATTN_INLINE Floats f32_of_first(Floats v) { return f32_of_f16(v, 0); }
SIMDATTN_INLINE Floats f32_of_second(Floats v) { return f32_of_f16(v, Floats::size); }

/// To nearest even. What does not fit becomes -2^31.
SIMDATTN_INLINE Ints nearest(Floats v) {
  return each<Ints>([&](size_t i) SIMDATTN_LAMBDA {
    return std::fabs(v[i]) < 0x1p31f ? static_cast<int32_t>(std::nearbyint(v[i])) : INT32_MIN;
  });
}
/// The lanes of four vectors, each a byte, one behind the other.
template <bool kUnsigned>
SIMDATTN_INLINE void store_bytes(Ints v0, Ints v1, Ints v2, Ints v3, void* p) {
  uint8_t* const out = static_cast<uint8_t*>(p);
  for (size_t i = 0; i < Floats::size; ++i) {
    out[i] = static_cast<uint8_t>(v0[i]);
    out[Floats::size + i] = static_cast<uint8_t>(v1[i]);
    out[2 * Floats::size + i] = static_cast<uint8_t>(v2[i]);
    out[3 * Floats::size + i] = static_cast<uint8_t>(v3[i]);
  }
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_NATIVE_PLAIN_H_
