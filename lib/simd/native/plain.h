// No instruction set: what native/ has of each, in standard C++ over the arrays of plain.h.
#pragma once

#include <cmath>
#include <cstring>

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

using Halves = VectorOf<uint16_t, sizeof(Floats) / 2>::type;
SIMDATTN_INLINE Bits32 widen_bits(Halves v) { return __builtin_convertvector(v, Bits32::Numbers); }
SIMDATTN_INLINE Halves narrow_bits(Bits32 v) { return __builtin_convertvector(v.data, Halves); }
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, All) {
  return each<Bits32>([&](size_t i) SIMDATTN_LAMBDA { return p[i]; });
}
SIMDATTN_INLINE Ints load_integers(const uint8_t* p) {
  return each<Ints>([&](size_t i) SIMDATTN_LAMBDA { return static_cast<int8_t>(p[i]); });
}
template <int k>
SIMDATTN_INLINE Bits16 upper_bytes(Bits32 v) {
  return each<Bits16>([&](size_t i) SIMDATTN_LAMBDA {
    return static_cast<uint16_t>(v[i % Floats::size] >> (8 * k + 16 * (i / Floats::size)) << 8);
  });
}
SIMDATTN_INLINE Bits16 load_scaled_bytes(const uint8_t* p, int n) {
  return each<Bits16>([&](size_t i)
                          SIMDATTN_LAMBDA { return static_cast<uint16_t>(static_cast<int8_t>(p[i]) * (1 << n)); });
}

SIMDATTN_INLINE Floats load_cells(const char* p, int64_t n) {
  return float_of(each<Bits32>([&](size_t i) SIMDATTN_LAMBDA {
    const int64_t at = 4 * static_cast<int64_t>(i), left = n - at;
    uint32_t cell = 0;
    if (left > 0) std::memcpy(&cell, p + at, left < 4 ? static_cast<size_t>(left) : 4);
    return cell;
  }));
}

SIMDATTN_INLINE Ints nearest(Floats v) {
  return each<Ints>([&](size_t i) SIMDATTN_LAMBDA {
    return std::fabs(v[i]) < 0x1p31f ? static_cast<int32_t>(std::nearbyint(v[i])) : INT32_MIN;
  });
}

}  // namespace
}  // namespace simdattn
