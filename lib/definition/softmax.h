// The online softmax of a tile: the definition.
#ifndef SIMDATTN_LIB_DEFINITION_SOFTMAX_H_
#define SIMDATTN_LIB_DEFINITION_SOFTMAX_H_

#include <cmath>
#include <limits>

#include "lib/contract/fma.h"
#include "lib/contract/ukernels.h"
#include "lib/definition/math.h"
#include "lib/definition/scores.h"

namespace simdattn::scalar {

/// The larger one; a NaN in `x` is ignored: it comes back through the sum of exponentials.
static inline float max_number(float m, float x) { return x > m ? x : m; }
/// -inf - -inf would be NaN: with nothing visible yet, exponentials are taken relative to 0.
static inline float reference_point(float m) { return m == -std::numeric_limits<float>::infinity() ? 0.0f : m; }

/// rounded(w) is what is stored and added of weight w.
template <class Rounded>
static inline void weigh(const SoftmaxTile& a, const Rounded& rounded) {
  for (int64_t r = 0; r < a.rows; ++r) {
    float* s = a.s + r * a.lds;
    float m = a.max[r];
    for (int64_t j = a.lo[r]; j < a.hi[r]; ++j) m = max_number(m, s[j]);
    const float base = reference_point(m);
    float partial[16] = {};
    for (int64_t j = 0; j < a.columns; ++j) {
      s[j] = j < a.lo[r] || j >= a.hi[r] ? 0.0f : rounded(exp(s[j] - base));
      partial[j % 16] += s[j];
    }
    a.alpha[r] = exp(a.max[r] - base);
    a.sum[r] = fma(a.sum[r], a.alpha[r], fold(partial));
    a.max[r] = m + 0.0f;  // +0 where both zeros are the maximum: their order must not matter
  }
}
}  // namespace simdattn::scalar

#endif  // SIMDATTN_LIB_DEFINITION_SOFTMAX_H_
