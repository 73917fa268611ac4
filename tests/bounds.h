// Error bounds of the public functions, derived from the operations, in units of kEps relative to the terms.
#ifndef SIMDATTN_TESTS_BOUNDS_H_
#define SIMDATTN_TESTS_BOUNDS_H_

#include <algorithm>
#include <cmath>

#include "simdattn/simdattn.h"
#include "tests/problems.h"

namespace simdattn::test {

/// Half a unit in the last place of an f32, relative.
inline constexpr double kEps = 0x1p-24;
/// Below it exp is 0.
inline constexpr double kTiny = 0x1p-126;

/// Relative errors of exp and tanh and roundings of a multiply-add, on targets with and without fused multiply-add
/// (tests/slots_test.cc measures the functions).
struct Costs {
  double exp;
  double tanh;
  double fma;
};
inline Costs costs(const Target& t) { return exact(t) ? Costs{2, 4, 1} : Costs{4, 8, 2}; }

/// Absolute error of a modified score: each step rounds once, and errors pass through tanh without growing.
/// `scaled`: |scale * x|; `error`: what the score brought along.
inline double score_error(const Scoring& s, const Costs& c, double scaled, double error, double shift, double bias) {
  double e = error + scaled;
  double t = scaled;
  if (s.softcap > 0) {
    t = std::min(t, static_cast<double>(s.softcap));
    e += (2 + c.tanh) * t;
  }
  if (s.alibi_slopes != nullptr) {
    t += shift;
    e += 2 * shift + t;
  }
  if (s.bias.data != nullptr) {
    t += bias;
    e += t + (s.bias_scale != nullptr ? bias : 0);
  }
  return e;
}

struct AttentionBound {
  double out;  // times kEps * sum_j p_j |v_j|
  double lse;  // times kEps
};
/// For queries and keys within -1 .. 1.
inline AttentionBound attention_bound(const AttentionCase& c, const Costs& cost) {
  const Scoring& s = c.problem.scoring;
  const double dim = static_cast<double>(c.problem.q.shape[3]);
  const double n = static_cast<double>(c.problem.k.keys());
  const double scaled = dim * (s.scale ? std::fabs(static_cast<double>(*s.scale)) : 1.0 / std::sqrt(dim));
  const double shift = static_cast<double>(c.scoring.largest_shift), bias = static_cast<double>(c.scoring.largest_bias);
  // The chain over the dimensions, the default scale, the modifiers.
  const double error = score_error(s, cost, scaled, (cost.fma * dim + 2) * scaled, shift, bias);
  // Each weight carries the error of its score, of the subtraction of a maximum (also as the product of the factors
  // alpha of later blocks and splits: their exponents add up to the range, sinks reach 5), of exponentials, and of the
  // sum.
  const double range = 2 * (scaled + shift + bias) + 5;
  const double blocks = std::ceil(n / static_cast<double>(kKeyBlock));
  const double weight = error + range + (blocks + 1) * (cost.exp + 2);
  return {2 * weight + cost.fma * n + n / 16 + 12, weight + n / 16 + 6};
}

}  // namespace simdattn::test

#endif  // SIMDATTN_TESTS_BOUNDS_H_
