// Outputs beside the float64 formulas of tests/support/reference.cc.
#pragma once

#include <cmath>
#include <cstdio>
#include <string>

#include "tests/support/problems.h"
#include "tests/support/reference.h"

namespace simdattn::test {

inline uint64_t canonical_nan(DType t) {
  return t == DType::kF32 ? 0x7FC00000u : t == DType::kBF16 ? 0x7FC0u : 0x7E00u;
}

/// Compares an output with the formula; allowance(i) for element i in logical order, without the rounding to storage.
/// A NaN has to be the canonical one, an infinity the same.
template <int kRank, class F>
std::string compare(const Array<kRank>& got, const reference::Tensor& want, F&& allowance) {
  std::string problem;
  int64_t i = 0;
  for_each_element(got.view, [&](int64_t at) {
    if (!problem.empty()) return;
    const double g = static_cast<double>(get(got.view.data, got.view.dtype, at));
    const double w = want[i];
    // What was rounded may lie on the other side of a power of two: the larger unit counts.
    const double rounding = reference::half_ulp(got.view.dtype, std::fabs(g) > std::fabs(w) ? g : w);
    const double most = allowance(i) + rounding + (std::isfinite(w) ? rounding * 0x1p-8 : 0.0);
    bool good;
    if (std::isnan(w)) good = element_bits(got.view.data, got.view.dtype, at) == canonical_nan(got.view.dtype);
    else good = w == g || std::fabs(g - w) <= most;
    if (!good) {
      char text[200];
      std::snprintf(text, sizeof text, "element %lld: %.9g, formula %.17g, allowed %.3g, error %.3g",
                    static_cast<long long>(i), g, w, most, std::fabs(g - w));
      problem = text;
    }
    ++i;
  });
  if (problem.empty() && !got.gaps_intact()) problem = "bytes between the elements of an output were written";
  return problem;
}

}  // namespace simdattn::test
