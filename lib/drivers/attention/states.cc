#include "lib/drivers/attention/row_block.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/contract/fma.h"
#include "lib/definition/math.h"

namespace simdattn {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

}  // namespace

void start_states(const RowBlock& rows, const RowStates& s, bool sinks) {
  const float* const sink_of = sinks ? rows.problem.scoring.sinks : nullptr;
  for (int64_t r = 0; r < rows.rows; ++r) {
    const float sink = sink_of != nullptr ? sink_of[rows.head_of(r)] : -kInf;
    s.max[r] = sink;
    s.sum[r] = sink == -kInf ? 0.0f : std::isfinite(sink) ? 1.0f : std::numeric_limits<float>::quiet_NaN();
    // Sixteen at a time: of one long run compilers make `rep stos`, which starts too slowly for a short row.
    for (float *d = s.acc + r * s.ld, *end = d + s.ld; d < end; d += kStateStep) std::memset(d, 0, kStateStep * 4);
  }
}

void merge_states(const RowBlock& rows, const RowStates& a, const RowStates& b) {
  constexpr int64_t kAtOnce = 32;
  for (int64_t first = 0; first < rows.rows; first += kAtOnce) {
    const int64_t n = std::min(kAtOnce, rows.rows - first);
    float below[2 * kAtOnce];  // the joined maximum: a's, then b's
    float weight[2 * kAtOnce];
    for (int64_t i = 0; i < n; ++i) {
      const float max = a.max[first + i];
      const float other = b.max[first + i];
      const float joined = other > max ? other : max;
      const float base = joined == -kInf ? 0.0f : joined;
      below[i] = max - base;
      below[n + i] = other - base;
      a.max[first + i] = joined;
    }
    rows.kernels.exp(below, weight, 2 * n);
    for (int64_t i = 0, r = first; i < n; ++i, ++r) {
      a.sum[r] = fma(a.sum[r], weight[i], b.sum[r] * weight[n + i]);
      rows.kernels.merge(a.acc + r * a.ld, weight[i], b.acc + r * b.ld, weight[n + i], rows.division.sizes.d_v);
    }
  }
}

void store_states(const RowBlock& rows, const RowStates& s) {
  const AttentionProblem& a = rows.problem;
  const int64_t d_v = rows.division.sizes.d_v;
  for (int64_t r = 0; r < rows.rows; ++r) {
    const auto place = [&](const auto& stride) {
      return rows.sequence.q_batch * stride[0] + rows.head_of(r) * stride[1] +
             (rows.sequence.first_row + rows.position_of(r)) * stride[2];
    };
    const float sum = s.sum[r];
    float* const acc = s.acc + r * s.ld;
    const auto store_row = [&](const View<4>& out, float factor) {
      if (out.data == nullptr) return;
      char* const to = static_cast<char*>(out.data) + place(out.stride) * size_of(out.dtype);
      rows.kernels.finish[index_of(out.dtype)](acc, factor, to, d_v);
    };
    const auto store_number = [&](const View<3>& out, float x) {
      if (out.data != nullptr) static_cast<float*>(out.data)[place(out.stride)] = canonical(x);
    };
    // Every score was -inf: the row counts as one without keys, also where values are NaN.
    if (sum == 0.0f) std::fill_n(acc, d_v, 0.0f);
    const bool nan = is_nan(sum);
    store_row(a.out, sum > 0.0f ? 1.0f / sum : sum);
    store_row(a.acc, nan ? sum : 1.0f);
    if (a.lse.data != nullptr) store_number(a.lse, scalar::log_sum_exp(s.max[r], sum));
    store_number(a.max, nan ? sum : s.max[r] + 0.0f);
    store_number(a.sum, sum);
  }
}

}  // namespace simdattn
