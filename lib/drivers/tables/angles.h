// cos and sin of position * frequency without a rounding error in the angle: the frequency in quarter turns is a fixed
// point number of 160 bits, its product with an integer position is exact modulo a full turn, and the remainder goes
// through polynomials in f64. Integer operations and IEEE doubles only: the same bits on every CPU and compiler.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "lib/contract/fma.h"

namespace simdattn {

// ---- Sums of two doubles --------------------------------------------------------------------------------------------
//
// Arithmetic on unevaluated sums of two doubles (about 106 bits), and what position tables need of it: logarithm and
// exponential. Built on IEEE additions and fused multiply-add alone, because libm's pow, log and exp differ.
// Algorithms: Knuth's and Dekker's error-free sums, products by fma (Ogita, Rump, Oishi 2005), division after Hida, Li,
// Bailey 2001. Largest relative errors of 3000 random arguments each against 600-bit arithmetic: sum, product and
// quotient 2^-105, log 2^-104 on [1, e^36], exp 2^-101 on [-40, 0].

/// hi + lo, with hi the nearest double to the sum.
struct DoubleDouble {
  double hi = 0;
  double lo = 0;
  constexpr DoubleDouble() = default;
  constexpr DoubleDouble(double h, double l = 0) : hi(h), lo(l) {}  // NOLINT(google-explicit-constructor): exact
};

inline constexpr DoubleDouble kLn2DD{0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56};
inline constexpr DoubleDouble kTwoPiDD{0x1.921fb54442d18p+2, 0x1.1a62633145c07p-52};
inline constexpr DoubleDouble kTwoOverPiDD{0x1.45f306dc9c883p-1, -0x1.6b01ec5417056p-55};

/// For |a| >= |b|, or a = 0.
static inline DoubleDouble fast_two_sum(double a, double b) {
  const double s = a + b;
  return {s, b - (s - a)};
}
static inline DoubleDouble two_sum(double a, double b) {
  const double s = a + b;
  const double t = s - a;
  return {s, (a - (s - t)) + (b - t)};
}
static inline DoubleDouble two_product(double a, double b) {
  const double p = a * b;
  return {p, fma(a, b, -p)};
}

static inline DoubleDouble operator+(DoubleDouble a, DoubleDouble b) {
  DoubleDouble s = two_sum(a.hi, b.hi);
  const DoubleDouble t = two_sum(a.lo, b.lo);
  s = fast_two_sum(s.hi, s.lo + t.hi);
  return fast_two_sum(s.hi, s.lo + t.lo);
}
static inline DoubleDouble operator-(DoubleDouble a) { return {-a.hi, -a.lo}; }
static inline DoubleDouble operator-(DoubleDouble a, DoubleDouble b) { return a + -b; }
static inline DoubleDouble operator*(DoubleDouble a, DoubleDouble b) {
  const DoubleDouble p = two_product(a.hi, b.hi);
  return fast_two_sum(p.hi, fma(a.hi, b.lo, fma(a.lo, b.hi, p.lo)));
}
static inline DoubleDouble operator/(DoubleDouble a, DoubleDouble b) {
  const double q0 = a.hi / b.hi;
  DoubleDouble r = a - b * q0;
  const double q1 = r.hi / b.hi;
  r = r - b * q1;
  return fast_two_sum(q0, q1) + r.hi / b.hi;
}
static inline bool operator<(DoubleDouble a, DoubleDouble b) { return a.hi < b.hi || (a.hi == b.hi && a.lo < b.lo); }

/// Largest integer <= a, for |a| < 2^52.
static inline double floor(DoubleDouble a) {
  const double f = std::floor(a.hi);
  return f == a.hi && a.lo < 0 ? f - 1 : f;
}

/// 2^n for -1022 <= n <= 1023.
static inline double power_of_two(int n) { return std::bit_cast<double>(static_cast<uint64_t>(1023 + n) << 52); }

/// e^a for |a| <= 700. k ln 2 is taken off, then a Taylor polynomial on |s| <= ln(2)/2: s^26/26! < 2^-127.
[[gnu::hot]] static inline DoubleDouble exp(DoubleDouble a) {
  constexpr double kMagic = 0x1.8p52;  // adding and subtracting it rounds to an integer
  const double k = a.hi * 0x1.71547652b82fep0 + kMagic - kMagic;
  const DoubleDouble s = a - kLn2DD * k;
  DoubleDouble y = 1.0;
  for (int n = 25; n >= 1; --n) y = 1.0 + y * s / static_cast<double>(n);
  const double scale = power_of_two(static_cast<int>(k));
  return {y.hi * scale, y.lo * scale};
}

/// Natural logarithm of a normal a > 0: a = m 2^k with m in [1/sqrt 2, sqrt 2), ln m = 2 artanh((m-1)/(m+1)). The
/// series ends at f^45/45 with f <= 0.1716, 2^-122 of the sum.
static inline DoubleDouble log(DoubleDouble a) {
  int k = static_cast<int>(std::bit_cast<uint64_t>(a.hi) >> 52) - 1023;
  if (a.hi * power_of_two(-k) > 0x1.6a09e667f3bcdp0) ++k;
  const double scale = power_of_two(-k);
  const DoubleDouble m{a.hi * scale, a.lo * scale};
  const DoubleDouble f = (m - 1.0) / (m + 1.0);
  const DoubleDouble f2 = f * f;
  DoubleDouble y = 1.0 / DoubleDouble(45.0);
  for (int n = 43; n >= 1; n -= 2) y = 1.0 / DoubleDouble(static_cast<double>(n)) + y * f2;
  return kLn2DD * static_cast<double>(k) + y * f * 2.0;
}

// ---- Angles ---------------------------------------------------------------------------------------------------------

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

/// Adds (or subtracts) magnitude * 2^shift, dropping bits outside.
static inline void accumulate(Turns& x, uint64_t magnitude, int shift, bool subtract) {
  uint64_t carry = 0;
  for (uint32_t& limb : x) {  // the magnitude's bits for it are `shift` bits up, further down from limb to limb
    const uint64_t bits = shift >= 32 || shift <= -64 ? 0 : shift >= 0 ? magnitude << shift : magnitude >> -shift;
    const uint64_t a = carry + static_cast<uint32_t>(bits);
    const uint64_t sum = subtract ? limb - a : limb + a;
    limb = static_cast<uint32_t>(sum);
    carry = subtract ? sum >> 63 : sum >> 32;
    shift -= 32;
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
  // 2/pi in units of 2^-256; with 2^exponent the unit in the last place of the angle, the quarter turns of one such
  // unit are these bits shifted right by 256 - 158 - exponent, of which only the lowest 160 matter.
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
