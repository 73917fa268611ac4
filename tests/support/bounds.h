// Error bounds of the public functions, derived from the operations, in units of kEps relative to the terms.
#pragma once

#include <algorithm>
#include <cmath>

#include "simdattn/simdattn.h"
#include "tests/support/problems.h"

namespace simdattn::test {

/// Half a unit in the last place of an f32, relative.
inline constexpr double kEps = 0x1p-24;
/// Below it exp is 0.
inline constexpr double kTiny = 0x1p-126;

/// Relative errors of exp and tanh and roundings of a multiply-add, on targets with and without fused multiply-add
/// (tests/kernels/slots_test.cc measures the functions).
struct Costs {
  double exp;
  double tanh;
  double fma;
};
inline Costs costs(const Target& t) { return target_exact(t) ? Costs{2, 4, 1} : Costs{4, 8, 2}; }

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

/// Rounding to bf16, relative: half a unit in the last of 8 places.
inline constexpr double kBF16Eps = 0x1p-8;
/// Where the largest weight times its scale is so small that its inverse is infinite, kInt8 adds nothing of a block.
inline constexpr double kInt8Lost = 0x1p-120 * 256 * 127;

/// Roundings of a score beside those of its default scale, in units of kEps relative to |scale| sum |q k| over the
/// operands of the arithmetic, for one fma chain over the dimensions in f32.
inline double score_roundings(Arithmetic a, const Costs& cost, double dim) {
  switch (a) {
    // A chain of 16, the sum of two, the groups, the scale.
    case Arithmetic::kBF16: return 16 * cost.fma + 1 + std::ceil(dim / 32) + 1;
    // The sum is exact: its conversion, two products of scales, the product.
    case Arithmetic::kInt8: return 4;
    default: return cost.fma * dim + 1;
  }
}
/// Roundings of weighted values relative to sum |p v|, beside what weights.
inline double value_roundings(Arithmetic a, const Costs& cost, double keys) {
  const double blocks = std::ceil(keys / static_cast<double>(kKeyBlock));
  switch (a) {
    // As a score; every block may end with a group that is not full. The factor alpha of each block.
    case Arithmetic::kBF16: return 16 * cost.fma + 1 + std::ceil(keys / 32) + 2 * blocks;
    // w * scale, a / 255, and in each block alpha and the sum. Sums of integers are exact.
    case Arithmetic::kInt8: return 2 + (cost.fma + 1) * blocks;
    default: return cost.fma * keys;
  }
}
/// More than the weights' own error (reference::AttentionResult::weights), of first order, can reach: the two roundings
/// of u * (255 / a) decide on the integer.
inline constexpr double kWeightSlack = 1 + 0x1p-10;

struct AttentionBound {
  double out;   // times kEps * sum_j p_j |v_j|; without the error of the weights
  double lse;   // times kEps
  double tiny;  // what is flushed to zero, absolute
};
/// `scaled`, `shift`, `bias`: the largest |scale| sum_d |q k| over operands of the arithmetic, slope * distance, and
/// bias or sink beyond 5.
inline AttentionBound attention_bound(const AttentionProblem& problem, double scaled, double shift, double bias,
                                      const Costs& cost) {
  const Arithmetic a = problem.arithmetic;
  const double dim = static_cast<double>(problem.q.shape[3]);
  const double n = static_cast<double>(problem.k.keys());
  // The products, the default scale (two roundings), the modifiers; score_error() counts one of these.
  const double error =
      score_error(problem.scoring, cost, scaled, (score_roundings(a, cost, dim) + 1) * scaled, shift, bias);
  // Each weight carries the error of its score, of the subtraction of a maximum (also as the product of the factors
  // alpha of later blocks and splits: their exponents add up to the range, sinks reach 5), of exponentials, and of the
  // sum.
  const double range = 2 * (scaled + shift + bias) + 5;
  const double blocks = std::ceil(n / static_cast<double>(kKeyBlock));
  const double weight = error + range + (blocks + 1) * (cost.exp + 2);
  // The sum of kBF16 adds rounded weights.
  const double rounded = a == Arithmetic::kBF16 ? kBF16Eps / kEps : 0;
  // A weight that exp flushes to zero is below kTiny; so is what a flushed step loses.
  const double tiny = a == Arithmetic::kBF16   ? 4 * n * kTiny
                      : a == Arithmetic::kInt8 ? n * kTiny + blocks * kInt8Lost
                                               : n * kTiny;
  return {2 * weight + value_roundings(a, cost, n) + n / 16 + 12, weight + rounded + n / 16 + 6, tiny};
}
/// For queries and keys within -1 .. 1, and sinks within -5 .. 5.
inline AttentionBound attention_bound(const AttentionCase& c, const Costs& cost) {
  const Scoring& s = c.problem.scoring;
  const double dim = static_cast<double>(c.problem.q.shape[3]);
  const double scaled = dim * (s.scale ? std::fabs(static_cast<double>(*s.scale)) : 1.0 / std::sqrt(dim));
  return attention_bound(c.problem, scaled, static_cast<double>(c.scoring.largest_shift),
                         static_cast<double>(c.scoring.largest_bias), cost);
}

}  // namespace simdattn::test
