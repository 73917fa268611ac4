// alibi_slopes(): one slope a head. sinusoidal_table(): the additive position encoding of Vaswani et al. 2017.
#include <algorithm>
#include <cmath>

#include "lib/drivers/drivers.h"
#include "lib/drivers/tables/angles.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// Cold, as what rope.cc computes once in a column: operators of double-double would be inlined at every use.
[[gnu::cold, gnu::noinline]] DoubleDouble logarithm(double x) { return log(DoubleDouble(x)); }
/// The angle of position 1 for 1 / base^(2 i / d).
[[gnu::cold, gnu::noinline]] Turns sinusoidal_frequency(DoubleDouble ln_base, int64_t i, int64_t d) {
  const DoubleDouble exponent = DoubleDouble(static_cast<double>(2 * i)) / static_cast<double>(d);
  return turns_of_frequency(exp(-(ln_base * exponent)));
}

}  // namespace

[[gnu::cold]] Status drivers::alibi_slopes(int64_t heads, float* slopes) {
  SIMDATTN_CHECK(check_alibi_slopes(heads, slopes));
  int64_t n = 1;
  while (2 * n <= heads) n *= 2;
  for (int64_t h = 0; h < heads; ++h) {
    // 2^-x with x = 8(h+1)/n or 4(2(h-n)+1)/n. n is a power of two: x is exact, and repeated square roots give 2^-1/n.
    const int64_t numerator = h < n ? 8 * (h + 1) : 4 * (2 * (h - n) + 1);
    const int64_t whole = numerator / n;
    int64_t rest = numerator % n;
    double y = 1.0;
    double root = 0.5;  // 2^-1, 2^-1/2, 2^-1/4, ...
    for (int64_t bit = n / 2; bit > 0; bit /= 2) {
      root = std::sqrt(root);
      if (rest >= bit) {
        rest -= bit;
        y *= root;
      }
    }
    slopes[h] = static_cast<float>(std::ldexp(y, -static_cast<int>(whole)));
  }
  return {};
}

Status drivers::sinusoidal_table(const View<2>& out, double base, const ConstView<1>& positions, int64_t first) {
  SIMDATTN_CHECK(check_sinusoidal_table(out, base, positions, first));
  const auto [n, d] = out.shape;
  const bool given = positions.data != nullptr;

  const DoubleDouble ln_base = logarithm(base);
  const int64_t pairs = (d + 1) / 2;
  for (int64_t begin = 0; begin < pairs; begin += kColumnChunk) {
    const int64_t end = std::min(begin + kColumnChunk, pairs);
    Turns frequency[kColumnChunk];
    for (int64_t i = begin; i < end; ++i) frequency[i - begin] = sinusoidal_frequency(ln_base, i, d);
    for (int64_t p = 0; p < n; ++p) {
      const int64_t position = given ? index_at(positions.data, positions.dtype, p * positions.stride[0]) : first + p;
      float* row = static_cast<float*>(out.data) + p * out.stride[0];
      for (int64_t i = begin; i < end; ++i) {
        const CosSin cs = cos_sin(frequency[i - begin], position);
        row[2 * i] = static_cast<float>(cs.sin) + 0.0f;  // +0 at -0
        if (2 * i + 1 < d) row[2 * i + 1] = static_cast<float>(cs.cos);
      }
    }
  }
  return {};
}

}  // namespace simdattn
