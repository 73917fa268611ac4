// exp, tanh, ln, and sums over the dimensions of a query and a key: the definitions, as fixed sequences of IEEE
// operations. The scalar target is made of them, and drivers take them for what is rare. Error bounds:
// docs/numerics.md.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "lib/contract/dtypes.h"
#include "lib/contract/fma.h"
#include "lib/contract/math_constants.h"

namespace simdattn::scalar {

static inline float pow2i(float n) {  // n integral, -126 <= n <= 127
  return std::bit_cast<float>((static_cast<uint32_t>(static_cast<int32_t>(n)) + 127u) << 23);
}

/// x = n ln 2 + r.
struct Reduced {
  float n;
  float r;
};
static inline Reduced reduced(float x) {
  const float n = fma(x, kLog2E, kRoundMagic) - kRoundMagic;
  return {n, fma(n, -kLn2Lo, fma(n, -kLn2Hi, x))};
}
/// c[0] + c[1] x + c[2] x^2 + ..
template <size_t kTerms>
static inline float polynomial(const float (&c)[kTerms], float x) {
  float p = c[kTerms - 1];
  for (size_t i = kTerms - 1; i-- > 0;) p = fma(p, x, c[i]);
  return p;
}

/// e^x for x <= 88: 0 where the result would be below the smallest normal number; NaN stays NaN.
static inline float exp(float x) {
  if (x < kExpLowest) return 0.0f;
  if (x != x) return x;
  const auto [n, r] = reduced(x);
  const float p = fma(fma(polynomial(kExpPoly, r), r, 1.0f), r, 1.0f);
  return p * pow2i(n < 127.0f ? n : 127.0f);
}

/// Small |x|: an odd polynomial. Otherwise tanh |x| = e / (e + 2) with e = e^(2|x|) - 1 formed without cancellation.
static inline float tanh(float x) {
  if (x != x) return x;
  const float a = std::fabs(x);
  if (a < kTanhSmall) {
    const float z = a * a;
    return std::copysign(fma(a * z, polynomial(kTanhPoly, z), a), x);
  }
  const float limited = a > kTanhSaturation ? kTanhSaturation : a;
  const auto [n, r] = reduced(limited + limited);
  const float expm1_r = fma(polynomial(kExpPoly, r), r * r, r);
  const float s = pow2i(n);
  const float e = fma(s, expm1_r, s - 1.0f);
  return std::copysign(e / (e + 2.0f), x);
}

/// ln x for x >= 0, in f64: x = 2^k m with m in [sqrt(1/2), sqrt 2), ln m = 2 atanh((m - 1) / (m + 1)).
/// |s| <= 0.1716, so the first term left out, 2 s^19 / 19, is below 3e-16.
static inline double log(float x) {
  if (!(x > 0.0f))
    return x == 0.0f ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  if (x == std::numeric_limits<float>::infinity()) return x;
  const uint64_t bits = std::bit_cast<uint64_t>(static_cast<double>(x));
  int64_t k = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++k;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double p = 1.0 / 17.0;
  for (const double c : {1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0}) {
    p = p * z + c;
  }
  return static_cast<double>(k) * 0.69314718055994530942 + 2.0 * s * p;
}

/// m + ln(l) with one rounding to f32: the log-sum-exp of a state.
static inline float log_sum_exp(float m, float l) { return static_cast<float>(static_cast<double>(m) + log(l)); }

/// Folds the 16 partial sums.
static inline float fold(float (&l)[16]) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) l[i] += l[i + width];
  }
  return l[0];
}

/// term(d, q_d, k_d, sum) adds dimension d to partial sum d mod 16. q[d] and k[d]: numbers of any element type.
template <class Query, class Key, class Term>
static inline float sum_over_dimensions(Query q, Key k, int64_t dim, const Term& term) {
  float partial[16] = {};
  for (int64_t d = 0; d < dim; ++d) partial[d % 16] = term(d, to_f32(q[d]), to_f32(k[d]), partial[d % 16]);
  return fold(partial);
}

template <class Query, class Key>
static inline float dot(Query q, Key k, int64_t dim) {
  return sum_over_dimensions(q, k, dim, [](int64_t, float x, float y, float sum) { return fma(x, y, sum); });
}

template <class Query, class Key>
static inline float squared_distance(Query q, Key k, int64_t dim) {
  return sum_over_dimensions(q, k, dim, [](int64_t, float x, float y, float sum) {
    const float difference = x - y;
    return fma(difference, difference, sum);
  });
}

/// The sum of w_d tanh(q_d + k_d).
template <class Query, class Key>
static inline float additive(Query q, Key k, const float* w, int64_t dim) {
  return sum_over_dimensions(q, k, dim,
                             [w](int64_t d, float x, float y, float sum) { return fma(w[d], tanh(x + y), sum); });
}

}  // namespace simdattn::scalar
