// What the programs around the pages share: numbers, the formula in float64, and comparisons that say what differs.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "simdattn/extras.h"

namespace guides {

using Floats = std::vector<float>;

inline Floats numbers(int64_t n, uint32_t state) {  // anything between -1 and 1
  Floats x(static_cast<size_t>(n));
  for (float& f : x) f = static_cast<float>(static_cast<int32_t>(state = state * 1664525 + 1013904223)) * 0x1p-31f;
  return x;
}

inline void good(const simdattn::Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "FAIL %s: %s\n", what, status.detail);
  std::exit(1);
}

inline void refused(const simdattn::Status& status, const char* detail) {
  if (!status.ok() && std::strncmp(status.detail, detail, std::strlen(detail)) == 0) return;
  std::fprintf(stderr, "FAIL \"%s\" expected, not \"%s\"\n", detail, status.detail);
  std::exit(1);
}

inline void near(const float* a, const float* b, size_t n, double tolerance, const char* what) {
  for (size_t i = 0; i < n; ++i) {
    if (std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])) <= tolerance) continue;  // false for NaN
    std::fprintf(stderr, "FAIL %s: element %zu is %g, not %g\n", what, i, static_cast<double>(a[i]),
                 static_cast<double>(b[i]));
    std::exit(1);
  }
}
inline void near(const Floats& a, const Floats& b, double tolerance, const char* what) {
  if (a.size() != b.size()) std::abort();
  near(a.data(), b.data(), a.size(), tolerance, what);
}
inline void same_bits(const Floats& a, const Floats& b, const char* what) {
  if (a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) return;
  std::fprintf(stderr, "FAIL %s: other bits\n", what);
  std::exit(1);
}

/// Rows [n, heads, d] rotated at positions first, first + 1, ... in float64: pairs (i, i + d/2), base 10000 unless
/// given.
inline Floats rotated(const Floats& x, int64_t n, int64_t heads, int64_t d, int64_t first, double base = 10000) {
  Floats y(x.size());
  for (int64_t r = 0; r < n * heads; ++r) {
    for (int64_t i = 0; i < d / 2; ++i) {
      const double angle = static_cast<double>(first + r / heads) *
                           std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(d));
      const size_t at0 = static_cast<size_t>(r * d + i), at1 = static_cast<size_t>(r * d + i + d / 2);
      const double x0 = static_cast<double>(x[at0]), x1 = static_cast<double>(x[at1]);
      y[at0] = static_cast<float>(x0 * std::cos(angle) - x1 * std::sin(angle));
      y[at1] = static_cast<float>(x0 * std::sin(angle) + x1 * std::cos(angle));
    }
  }
  return y;
}

/// Attention in float64 over q, out [n_q, heads, d] and k, v [n_kv, kv_heads, d]. bias(h, i, j): what a score gets, or
/// -infinity; without it, row i sees keys up to i + n_kv - n_q.
inline Floats attention(const Floats& q, const Floats& k, const Floats& v, int64_t heads, int64_t kv_heads, int64_t d,
                        const std::function<double(int64_t, int64_t, int64_t)>& bias = {}) {
  const int64_t n_q = static_cast<int64_t>(q.size()) / (heads * d);
  const int64_t n_kv = static_cast<int64_t>(k.size()) / (kv_heads * d);
  Floats out(q.size());
  std::vector<double> p(static_cast<size_t>(n_kv));
  for (int64_t i = 0; i < n_q; ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      const float* row = q.data() + (i * heads + h) * d;
      const int64_t kv_head = h / (heads / kv_heads);
      double max = -INFINITY, sum = 0;
      for (int64_t j = 0; j < n_kv; ++j) {
        double dot = 0;
        for (int64_t e = 0; e < d; ++e) {
          dot += static_cast<double>(row[e]) *
                 static_cast<double>(k[static_cast<size_t>((j * kv_heads + kv_head) * d + e)]);
        }
        const double extra = bias ? bias(h, i, j) : j <= i + n_kv - n_q ? 0 : -INFINITY;
        double& t = p[static_cast<size_t>(j)];
        t = dot / std::sqrt(static_cast<double>(d)) + extra;
        max = t > max ? t : max;
      }
      if (max == -INFINITY) continue;  // zeros
      for (double& t : p) sum += t = std::exp(t - max);
      for (int64_t e = 0; e < d; ++e) {
        double o = 0;
        for (int64_t j = 0; j < n_kv; ++j) {
          o +=
              p[static_cast<size_t>(j)] * static_cast<double>(v[static_cast<size_t>((j * kv_heads + kv_head) * d + e)]);
        }
        out[static_cast<size_t>((i * heads + h) * d + e)] = static_cast<float>(o / sum);
      }
    }
  }
  return out;
}

}  // namespace guides
