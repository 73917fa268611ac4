// cos and sin of position * frequency without a rounding error in the angle: the frequency in quarter turns is a fixed
// point number of 160 bits, its product with an integer position is exact modulo a full turn, and the remainder goes
// through polynomials in f64. Integer operations and IEEE doubles only, so every CPU and compiler returns the same bits.
#ifndef SIMDATTN_LIB_DRIVERS_TABLES_ANGLES_H_
#define SIMDATTN_LIB_DRIVERS_TABLES_ANGLES_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "lib/drivers/tables/double_double.h"

namespace simdattn {

/// Columns whose constants stand on the stack while all rows of a table are filled.
inline constexpr int64_t kColumnChunk = 64;

struct CosSin {
  double cos;
  double sin;
};

/// An angle modulo one turn, in quarter turns of 2^158 units, least significant limb first.
using Turns = std::array<uint32_t, 5>;

/// On |r| <= pi/4. The first Taylor terms left out, r^19/19! and r^18/18!, are below 2^-62 and 2^-58 of the result.
static inline CosSin cos_sin_reduced(double r) {
  const double z = r * r;
  double s = 1.0 / 355687428096000;  // 17!
  for (const double term :
       {-1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6})
    s = s * z + term;
  double c = 1.0 / 20922789888000;  // 16!
  for (const double term :
       {-1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5})
    c = c * z + term;
  return {1.0 + c * z, r + r * (s * z)};
}

static inline CosSin cos_sin(Turns x) {
  // Half a quarter turn more makes the top two bits the nearest quadrant; then it is taken off again. What is left, in
  // [-1/2, 1/2) quarter turns, is a two's complement number of 160 bits.
  const uint32_t top = x[4] + (1u << 29);
  const uint32_t quadrant = top >> 30;
  x[4] = (top & 0x3FFFFFFFu) - (1u << 29);
  const bool negative = (x[4] >> 31) != 0;
  if (negative) {
    uint64_t carry = 1;
    for (uint32_t& limb : x) {
      carry += static_cast<uint32_t>(~limb);
      limb = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
  }
  double quarters = 0;
  for (const uint32_t limb : x) quarters = quarters * 0x1p-32 + static_cast<double>(limb);
  const double r = quarters * (0x1.921fb54442d18p+0 * 0x1p-30);
  const CosSin cs = cos_sin_reduced(negative ? -r : r);
  switch (quadrant) {
    case 0: return cs;
    case 1: return {-cs.sin, cs.cos};
    case 2: return {-cs.cos, -cs.sin};
    default: return {cs.sin, -cs.cos};
  }
}

/// adds (or subtracts) magnitude * 2^shift, dropping bits outside.
static inline void accumulate(Turns& x, uint64_t magnitude, int shift, bool subtract) {
  if (shift < 0) {
    magnitude = shift > -64 ? magnitude >> -shift : 0;
    shift = 0;
  }
  if (shift >= 160) return;
  const int offset = shift % 32;
  const uint64_t low = magnitude << offset;
  const uint64_t high = offset != 0 ? magnitude >> (64 - offset) : 0;
  const uint32_t addend[3] = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                              static_cast<uint32_t>(high)};
  const size_t first = static_cast<size_t>(shift / 32);
  uint64_t carry = 0;
  for (size_t k = first; k < x.size(); ++k) {
    const uint32_t a = k - first < 3 ? addend[k - first] : 0;
    const uint64_t sum = subtract ? static_cast<uint64_t>(x[k]) - a - carry : static_cast<uint64_t>(x[k]) + a + carry;
    x[k] = static_cast<uint32_t>(sum);
    carry = subtract ? sum >> 63 : sum >> 32;
  }
}

/// The angle of position 1 for a frequency (radians per position) in [0, 2^40).
static inline Turns turns_of_frequency(DoubleDouble frequency) {
  const DoubleDouble quarters = frequency * kTwoOverPiDD;
  Turns x{};
  for (const double part : {quarters.hi, quarters.lo}) {
    const uint64_t bits = std::bit_cast<uint64_t>(part);
    const int exponent = static_cast<int>(bits >> 52 & 0x7FF);
    if (exponent == 0) continue;  // zero: the frequencies that occur have no subnormal part
    accumulate(x, (bits & 0xFFFFFFFFFFFFFu) | 0x10000000000000u, exponent - 1075 + 158, bits >> 63 != 0);
  }
  return x;
}

/// cos and sin of position * frequency, |position| < 2^32.
static inline CosSin cos_sin(const Turns& frequency, int64_t position) {
  const uint64_t p = static_cast<uint64_t>(position < 0 ? -position : position);
  Turns x;
  uint64_t carry = 0;
  for (size_t k = 0; k < x.size(); ++k) {
    carry += p * frequency[k];
    x[k] = static_cast<uint32_t>(carry);
    carry >>= 32;
  }
  CosSin cs = cos_sin(x);
  if (position < 0) cs.sin = -cs.sin;
  return cs;
}

/// cos and sin of an f32 angle, |angle| < 2^64: exact reduction as above, from the bits of 2/pi.
static inline CosSin cos_sin(float angle) {
  const uint32_t bits = std::bit_cast<uint32_t>(angle);
  const float magnitude = std::bit_cast<float>(bits & 0x7FFFFFFFu);
  if (magnitude < 0.78539816f) return cos_sin_reduced(static_cast<double>(angle));
  // 2/pi in units of 2^-256; with 2^exponent the unit in the last place of the angle, the quarter turns of one such unit
  // are these bits shifted right by 256 - 158 - exponent, of which only the lowest 160 matter.
  constexpr uint32_t kTwoOverPi[8] = {0xdebbc561u, 0x41fe5163u, 0x3c439041u, 0xdb629599u,
                                      0xf534ddc0u, 0xfc2757d1u, 0x4e441529u, 0xa2f9836eu};
  const int exponent = static_cast<int>(bits >> 23 & 0xFF) - 150;
  const int shift = 98 - exponent;
  Turns unit{};
  for (size_t k = 0; k < unit.size(); ++k) {
    const size_t limb = k + static_cast<size_t>(shift / 32);
    const uint64_t low = limb < 8 ? kTwoOverPi[limb] : 0;
    const uint64_t high = limb + 1 < 8 ? kTwoOverPi[limb + 1] : 0;
    unit[k] = static_cast<uint32_t>((high << 32 | low) >> (shift % 32));
  }
  const auto m = static_cast<int64_t>((bits & 0x7FFFFFu) | 0x800000u);
  return cos_sin(unit, bits >> 31 != 0 ? -m : m);
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_TABLES_ANGLES_H_
