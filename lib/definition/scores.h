// Sums over the dimensions of a query and a key: the definition of the score functions. The scalar target is made of it, and
// drivers take it for query rows that are too long to be widened.
#ifndef SIMDATTN_LIB_DEFINITION_SCORES_H_
#define SIMDATTN_LIB_DEFINITION_SCORES_H_

#include <cstdint>

#include "lib/contract/dtypes.h"
#include "lib/contract/fma.h"
#include "lib/definition/math.h"

namespace simdattn::scalar {

/// Folds the 16 partial sums.
static inline float fold(float (&l)[16]) {
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) l[i] += l[i + width];
  }
  return l[0];
}

/// term(d, q_d, k_d, sum) adds dimension d to partial sum d mod 16.
template <class Query, class Key, class Term>
static inline float sum_over_dimensions(const Query* q, const Key* k, int64_t dim, const Term& term) {
  float partial[16] = {};
  for (int64_t d = 0; d < dim; ++d) partial[d % 16] = term(d, to_f32(q[d]), to_f32(k[d]), partial[d % 16]);
  return fold(partial);
}

template <class Query, class Key>
static inline float dot(const Query* q, const Key* k, int64_t dim) {
  return sum_over_dimensions(q, k, dim, [](int64_t, float x, float y, float sum) { return fma(x, y, sum); });
}

template <class Query, class Key>
static inline float squared_distance(const Query* q, const Key* k, int64_t dim) {
  return sum_over_dimensions(q, k, dim, [](int64_t, float x, float y, float sum) {
    const float difference = x - y;
    return fma(difference, difference, sum);
  });
}

/// The sum of w_d tanh(q_d + k_d).
template <class Query, class Key>
static inline float additive(const Query* q, const Key* k, const float* w, int64_t dim) {
  return sum_over_dimensions(q, k, dim,
                             [w](int64_t d, float x, float y, float sum) { return fma(w[d], tanh(x + y), sum); });
}

}  // namespace simdattn::scalar

#endif  // SIMDATTN_LIB_DEFINITION_SCORES_H_
