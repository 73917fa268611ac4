// Arithmetic on unevaluated sums of two doubles (about 106 bits), and what position tables need of it: logarithm and
// exponential. Built on IEEE additions and fused multiply-add alone, so it returns the same bits with every compiler, CPU and C
// library; libm's pow, log and exp do not.
//
// Algorithms: Knuth's and Dekker's error-free sums, products by fma (Ogita, Rump, Oishi 2005), division after Hida, Li,
// Bailey 2001. Largest relative errors of 3000 random arguments each against 600-bit arithmetic: sum, product and
// quotient 2^-105, log 2^-104 on [1, e^36], exp 2^-101 on [-40, 0].
#ifndef SIMDATTN_LIB_DRIVERS_TABLES_DOUBLE_DOUBLE_H_
#define SIMDATTN_LIB_DRIVERS_TABLES_DOUBLE_DOUBLE_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "lib/contract/fma.h"

namespace simdattn {

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

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_TABLES_DOUBLE_DOUBLE_H_
