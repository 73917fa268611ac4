// The state of an online softmax: maximum, sum, accumulator. The empty row (-inf, 0, 0) is the identity of merging.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_ROW_STATE_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_ROW_STATE_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/contract/dtypes.h"
#include "lib/contract/fma.h"
#include "lib/contract/ukernels.h"

namespace simdattn {

/// What RowStates::ld is a multiple of.
inline constexpr int64_t kStateStep = 16;

/// States of the rows of one task, over memory of the caller.
struct RowStates {
  float* max;  // [rows]
  float* sum;  // [rows]
  float* acc;  // [rows][ld]
  int64_t ld;
};

/// Nothing visible yet, or only the sink: a virtual key of value 0. A sink of +inf is like a visible score of +inf.
inline void start(const RowStates& s, int64_t row, float sink) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  s.max[row] = sink;
  s.sum[row] = sink == -kInf ? 0.0f : std::isfinite(sink) ? 1.0f : std::numeric_limits<float>::quiet_NaN();
  // Sixteen at a time: of one run compilers make `rep stos`, which starts too slowly for a short row.
  for (float *d = s.acc + row * s.ld, *end = d + s.ld; d < end; d += kStateStep) std::memset(d, 0, kStateStep * 4);
}

/// a = a joined with b, which holds later keys.
inline void merge_states(const UKernels& uk, const RowStates& a, const RowStates& b, int64_t rows, int64_t dim) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr int64_t kAtOnce = 32;
  for (int64_t first = 0; first < rows; first += kAtOnce) {
    const int64_t n = std::min(kAtOnce, rows - first);
    float* max = a.max + first;
    float* sum = a.sum + first;
    const float* other_max = b.max + first;
    const float* other_sum = b.sum + first;
    float joined[kAtOnce];
    float below[2 * kAtOnce];  // the joined maximum: a's, then b's
    float weight[2 * kAtOnce];
    for (int64_t i = 0; i < n; ++i) {
      joined[i] = other_max[i] > max[i] ? other_max[i] : max[i];
      const float base = joined[i] == -kInf ? 0.0f : joined[i];
      below[i] = max[i] - base;
      below[n + i] = other_max[i] - base;
    }
    uk.exp(below, weight, 2 * n);
    for (int64_t i = 0; i < n; ++i) {
      const float wa = weight[i];
      const float wb = weight[n + i];
      max[i] = joined[i];
      sum[i] = fma(sum[i], wa, other_sum[i] * wb);
      uk.merge(a.acc + (first + i) * a.ld, wa, b.acc + (first + i) * b.ld, wb, dim);
    }
  }
}

/// The factor that turns the accumulator into the output: 0 for an empty row, NaN for a NaN row.
inline float finish_factor(float sum) { return sum > 0.0f ? 1.0f / sum : sum == 0.0f ? 0.0f : sum; }

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_ROW_STATE_H_
