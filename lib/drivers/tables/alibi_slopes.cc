// alibi_slopes(): one slope a head.
#include <cmath>

#include "lib/drivers/drivers.h"
#include "lib/rules/rules.h"

namespace simdattn {

Status drivers::alibi_slopes(int64_t heads, float* slopes) {
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

}  // namespace simdattn
