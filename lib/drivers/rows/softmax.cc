// softmax() and masked_softmax(): rows of scores to rows of probabilities.
#include <algorithm>

#include "dispatch/environment.h"
#include "lib/contract/steps.h"
#include "lib/definition/math.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/shared/modifiers.h"
#include "lib/drivers/shared/rows.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// Rows per call of the slot when their log-sum-exp is wanted: maxima and sums pass through the stack.
constexpr int64_t kLseRows = 64;
/// Modified scores of a row, or of several short ones, pass through the stack: written to `out` they would wait for its
/// lines from L2. Short rows take half of the space: L1 also holds as much of x, of a bias, and of out.
constexpr int64_t kModifiedScores = 4096;
constexpr int64_t kModifiedRows = 16;
static_assert(kModifiedRows <= kLseRows);

/// `rows` rows of `a` from row r on.
SoftmaxRows some_rows(SoftmaxRows a, int64_t r, int64_t rows) {
  a.x += r * a.ldx;
  a.y += r * a.ldy;
  a.lo += r * a.lo_step;
  a.hi += r * a.hi_step;
  a.rows = rows;
  return a;
}

/// Runs `a` on its rows, at most kLseRows if it knows their maxima; lse (may be null) gets one entry per row.
void softmax_with_lse(const UKernels& uk, const SoftmaxRows& a, float* lse) {
  if (lse == nullptr) return uk.softmax_rows(a);
  float max[kLseRows];
  float sum[kLseRows];
  for (int64_t r = 0; r < a.rows; r += kLseRows) {
    SoftmaxRows call = some_rows(a, r, std::min(kLseRows, a.rows - r));
    call.max = max;
    call.sum = sum;
    uk.softmax_rows(call);
    for (int64_t i = 0; i < call.rows; ++i) lse[r + i] = canonical(scalar::log_sum_exp(max[i], sum[i]));
  }
}

/// Runs `a` on its rows after the modifiers `of_row(r)` of row r.
template <class F>
void modified_rows(const UKernels& uk, const SoftmaxRows& a, F of_row, float* lse) {
  alignas(64) float scores[kModifiedScores];
  const bool on_stack = a.n <= kModifiedScores;
  const int64_t stride = round_up(a.n, 16);
  const int64_t at_once = std::clamp<int64_t>(kModifiedScores / 2 / std::max<int64_t>(stride, 1), 1, kModifiedRows);
  for (int64_t r = 0; r < a.rows; r += at_once) {
    SoftmaxRows call = some_rows(a, r, std::min(at_once, a.rows - r));
    const float* const x = call.x;
    float* const t = on_stack ? scores : call.y;
    call.x = t;
    call.ldx = on_stack ? stride : call.ldy;
    call.scale = 1.0f;
    if (at_once == 1) {
      // Whole key blocks at the ends of a long row that masks hide.
      const RowModifiers row = of_row(r);
      const auto hidden = [&](int64_t lo, int64_t hi) {
        return !mask_allows(row, lo) && seen_columns(row, lo, {lo, hi}).none();
      };
      const auto next = [&] { return std::min(call.lo + kKeyBlock, call.hi); };
      const auto last = [&] { return std::max(call.hi - kKeyBlock, call.lo); };
      while (call.lo < call.hi && hidden(call.lo, next())) call.lo = next();
      while (call.lo < call.hi && hidden(last(), call.hi)) call.hi = last();
    }
    float max[kModifiedRows];
    for (int64_t i = 0; i < call.rows; ++i) {
      max[i] = modify(uk, {.row = of_row(r + i),
                           .x = x + i * a.ldx,
                           .t = t + i * call.ldx,
                           .first_key = 0,
                           .lo = call.lo + i * a.lo_step,
                           .hi = call.hi + i * a.hi_step,
                           .scale = a.scale})
                   .max;
    }
    call.known_max = max;
    softmax_with_lse(uk, call, lse == nullptr ? nullptr : lse + r);
  }
}

}  // namespace

Status drivers::softmax(const UKernels& uk, const ConstView<2>& x, const View<2>& out, const View<1>& lse) {
  SIMDATTN_CHECK(check_softmax(x, out, lse));
  const Environment environment;
  const SoftmaxRows call = {.x = static_cast<const float*>(x.data),
                            .ldx = x.shape[1] == 0 ? 0 : step_of(x, 0),
                            .y = static_cast<float*>(out.data),
                            .ldy = x.shape[1] == 0 ? 0 : step_of(out, 0),
                            .rows = x.shape[0],
                            .n = x.shape[1],
                            .lo = 0,
                            .hi = x.shape[1],
                            .sink = -kInf};
  softmax_with_lse(uk, call, static_cast<float*>(lse.data));
  return {};
}

Status drivers::masked_softmax(const UKernels& uk, const ConstView<4>& scores, const View<4>& out,
                               const Scoring& scoring, const View<3>& lse) {
  SIMDATTN_CHECK(check_masked_softmax(scores, out, scoring, lse));
  const Environment environment;
  const auto [batch, heads, n_q, n_kv] = scores.shape;
  // Without columns there are rows of lse all the same; the other data may be null, to which nothing is added.
  ConstView<4> x = scores;
  View<4> y = out;
  if (n_kv == 0) x.stride = y.stride = {};
  const float scale = scoring.scale ? *scoring.scale : 1.0f;
  const bool modifiers = modifiers_of(scoring).any;
  for (int64_t b = 0; b < batch; ++b) {
    const SequenceRules rules = sequence_rules(scoring, b, n_q, n_kv);
    for (int64_t h = 0; h < heads; ++h) {
      int64_t rows;
      for (int64_t i = 0; i < n_q; i += rows) {
        const Interval v = visible_interval(scoring, rules, i);
        // Rows whose intervals are the same, or move by the same steps, share a call.
        Interval step = {0, 0};
        rows = 1;
        while (i + rows < n_q && rows < kLseRows) {
          const Interval next = visible_interval(scoring, rules, i + rows);
          if (rows == 1) step = {next.lo - v.lo, next.hi - v.hi};
          if (next.lo != v.lo + rows * step.lo || next.hi != v.hi + rows * step.hi) break;
          ++rows;
        }
        const SoftmaxRows call = {.x = reinterpret_cast<const float*>(row_of(x, b, h, i)),
                                  .ldx = step_of(x, 2),
                                  .y = f32_row_of(y, b, h, i),
                                  .ldy = step_of(y, 2),
                                  .rows = rows,
                                  .n = n_kv,
                                  .lo = v.lo,
                                  .hi = v.hi,
                                  .lo_step = step.lo,
                                  .hi_step = step.hi,
                                  .scale = scale,
                                  .sink = scoring.sinks != nullptr ? scoring.sinks[h] : -kInf};
        float* row_lse = static_cast<float*>(lse.data);
        if (row_lse != nullptr) row_lse += b * lse.stride[0] + h * lse.stride[1] + i * lse.stride[2];
        if (modifiers) {
          const auto of_row = [&](int64_t r) {
            return row_modifiers(scoring, {h, i + r + rules.offset, b, i + r, rules.length});
          };
          modified_rows(uk, call, of_row, row_lse);
        } else {
          softmax_with_lse(uk, call, row_lse);
        }
      }
    }
  }
  return {};
}

}  // namespace simdattn
