// The state of an online softmax: maximum, sum, accumulator. The empty row (-inf, 0, 0) is the identity of merging.
#ifndef SIMDATTN_LIB_DRIVERS_ROW_STATE_H_
#define SIMDATTN_LIB_DRIVERS_ROW_STATE_H_

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/dtypes.h"
#include "lib/scalar/math.h"
#include "lib/ukernels.h"

namespace simdattn {

/// States of the rows of one task, over memory of the caller.
struct RowStates {
  float* max;  // [rows]
  float* sum;  // [rows]
  float* acc;  // [rows][ld]
  int64_t ld;
};

/// Nothing visible yet, or only the sink: a virtual key of value 0. A sink of +inf is like a visible score of +inf.
inline void start(const RowStates& s, int64_t row, int64_t dim, float sink) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  s.max[row] = sink;
  s.sum[row] = sink == -kInf ? 0.0f : std::isfinite(sink) ? 1.0f : std::numeric_limits<float>::quiet_NaN();
  std::fill_n(s.acc + row * s.ld, dim, 0.0f);
}

/// a = a joined with b, which holds later keys.
inline void merge_states(const UKernels& uk, const RowStates& a, const RowStates& b, int64_t row, int64_t dim) {
  if (b.sum[row] == 0.0f) return;  // nothing visible there
  const float m = b.max[row] > a.max[row] ? b.max[row] : a.max[row];
  const float base = m == -std::numeric_limits<float>::infinity() ? 0.0f : m;
  const float wa = scalar::exp(a.max[row] - base);
  const float wb = scalar::exp(b.max[row] - base);
  a.max[row] = m;
  a.sum[row] = std::fma(a.sum[row], wa, b.sum[row] * wb);
  uk.merge(a.acc + row * a.ld, wa, b.acc + row * b.ld, wb, dim);
}

/// The factor that turns the accumulator into the output: 0 for an empty row, NaN for a NaN row.
inline float finish_factor(float sum) { return sum > 0.0f ? 1.0f / sum : sum == 0.0f ? 0.0f : sum; }

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ROW_STATE_H_
