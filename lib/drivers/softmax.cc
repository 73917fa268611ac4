// softmax() and masked_softmax(): rows of scores to rows of probabilities.
#include <algorithm>
#include <limits>

#include "dispatch/target.h"
#include "lib/drivers/scoring.h"
#include "lib/drivers/validate.h"
#include "lib/dtypes.h"
#include "lib/scalar/math.h"
#include "lib/ukernels.h"

namespace simdattn {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
/// Rows per call of the slot when their log-sum-exp is wanted: maxima and sums pass through the stack.
constexpr int64_t kLseRows = 64;

/// Runs `a` on its rows; lse (may be null) gets one entry per row at `lse_stride`.
void softmax_with_lse(const UKernels& uk, const SoftmaxRows& a, float* lse, int64_t lse_stride) {
  if (lse == nullptr) {
    uk.softmax_rows(a);
    return;
  }
  float max[kLseRows];
  float sum[kLseRows];
  const int64_t rows = a.rows;
  SoftmaxRows call = a;
  for (int64_t r = 0; r < rows; r += kLseRows) {
    call.rows = std::min(kLseRows, rows - r);
    call.max = max;
    call.sum = sum;
    uk.softmax_rows(call);
    for (int64_t i = 0; i < call.rows; ++i) lse[(r + i) * lse_stride] = canonical(scalar::log_sum_exp(max[i], sum[i]));
    call.x += kLseRows * call.ldx;
    call.y += kLseRows * call.ldy;
    if (call.known_max != nullptr) call.known_max += kLseRows;
  }
}

}  // namespace

Status softmax(const ConstView<2>& x, const View<2>& out, const View<1>& lse, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  Extent ex, eo, el;
  SIMDATTN_CHECK(check_view(x, Accept::kF32, SIMDATTN_ARGUMENT("x"), &ex));
  SIMDATTN_CHECK(check_view(out, Accept::kF32, SIMDATTN_ARGUMENT("out"), &eo));
  SIMDATTN_REQUIRE(same_shape(x, out), Code::kShape, "out.shape != x.shape");
  SIMDATTN_REQUIRE(same_elements(x, out) || !overlap(eo, ex), Code::kOverlap, "out: overlaps x without being x");
  if (lse.data != nullptr) {
    SIMDATTN_CHECK(check_view(lse, Accept::kF32, SIMDATTN_ARGUMENT("lse"), &el));
    SIMDATTN_REQUIRE(lse.shape[0] == x.shape[0], Code::kShape, "lse.shape[0] != x.shape[0]");
    SIMDATTN_REQUIRE(!overlap(el, ex) && !overlap(el, eo), Code::kOverlap, "lse: overlaps x or out");
  }
  const SoftmaxRows call = {.x = static_cast<const float*>(x.data),
                            .ldx = x.stride[0],
                            .y = static_cast<float*>(out.data),
                            .ldy = out.stride[0],
                            .rows = x.shape[0],
                            .n = x.shape[1],
                            .lo = 0,
                            .hi = x.shape[1],
                            .scale = 1.0f,
                            .sink = -kInf,
                            .known_max = nullptr,
                            .max = nullptr,
                            .sum = nullptr};
  softmax_with_lse(*uk, call, static_cast<float*>(lse.data), 1);
  return {};
}

Status masked_softmax(const ConstView<4>& x, const View<4>& out, const Scoring& scoring, const View<3>& lse,
                      const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  Extent ex, eo, el;
  SIMDATTN_CHECK(check_view(x, Accept::kF32, SIMDATTN_ARGUMENT("x"), &ex));
  SIMDATTN_CHECK(check_view(out, Accept::kF32, SIMDATTN_ARGUMENT("out"), &eo));
  SIMDATTN_REQUIRE(same_shape(x, out), Code::kShape, "out.shape != x.shape");
  SIMDATTN_REQUIRE(same_elements(x, out) || !overlap(eo, ex), Code::kOverlap, "out: overlaps x without being x");
  const int64_t batch = x.shape[0];
  const int64_t heads = x.shape[1];
  const int64_t n_q = x.shape[2];
  const int64_t n_kv = x.shape[3];
  const ScoringShape shape = {batch, batch, heads, n_q, n_kv};
  SIMDATTN_CHECK(check_scoring(scoring, shape));
  for (int64_t b = 0; b < batch; ++b) SIMDATTN_CHECK(check_sequence(scoring, b, n_kv));
  SIMDATTN_REQUIRE(!overlaps_scoring(eo, scoring, shape), Code::kOverlap, "out: overlaps an array of scoring");
  if (lse.data != nullptr) {
    SIMDATTN_CHECK(check_view(lse, Accept::kF32, SIMDATTN_ARGUMENT("lse"), &el));
    SIMDATTN_REQUIRE(lse.shape[0] == batch && lse.shape[1] == heads && lse.shape[2] == n_q, Code::kShape,
                     "lse.shape: must be the first three sizes of x");
    SIMDATTN_REQUIRE(!overlap(el, ex) && !overlap(el, eo), Code::kOverlap, "lse: overlaps x or out");
    SIMDATTN_REQUIRE(!overlaps_scoring(el, scoring, shape), Code::kOverlap, "lse: overlaps an array of scoring");
  }

  const float scale = scoring.scale ? *scoring.scale : 1.0f;
  const bool modifiers = has_modifiers(scoring);
  for (int64_t b = 0; b < batch; ++b) {
    const SequenceRules rules = sequence_rules(scoring, b, n_q, n_kv);
    for (int64_t h = 0; h < heads; ++h) {
      const float* x0 = static_cast<const float*>(x.data) + b * x.stride[0] + h * x.stride[1];
      float* y0 = static_cast<float*>(out.data) + b * out.stride[0] + h * out.stride[1];
      float* lse0 =
          lse.data == nullptr ? nullptr : static_cast<float*>(lse.data) + b * lse.stride[0] + h * lse.stride[1];
      int64_t rows;
      for (int64_t i = 0; i < n_q; i += rows) {
        const Interval v = visible_interval(scoring, rules, i);
        // Rows that see the same interval share a call.
        rows = 1;
        while (i + rows < n_q && rows < kLseRows) {
          const Interval next = visible_interval(scoring, rules, i + rows);
          if (next.lo != v.lo || next.hi != v.hi) break;
          ++rows;
        }
        SoftmaxRows call = {.x = x0 + i * x.stride[2],
                            .ldx = x.stride[2],
                            .y = y0 + i * out.stride[2],
                            .ldy = out.stride[2],
                            .rows = rows,
                            .n = n_kv,
                            .lo = v.lo,
                            .hi = v.hi,
                            .scale = scale,
                            .sink = scoring.sinks != nullptr ? scoring.sinks[h] : -kInf,
                            .known_max = nullptr,
                            .max = nullptr,
                            .sum = nullptr};
        float* row_lse = lse0 == nullptr ? nullptr : lse0 + i * lse.stride[2];
        if (!modifiers) {
          softmax_with_lse(*uk, call, row_lse, 1);
          continue;
        }
        // The modified scores go to `out`, their maximum comes along; each row is still in the first cache for the
        // exponential.
        call.rows = 1;
        call.scale = 1.0f;
        for (int64_t r = 0; r < rows; ++r) {
          const float max = uk->modify_row({.row = row_modifiers(scoring, rules, h, i + r, b, i + r),
                                            .x = x0 + (i + r) * x.stride[2],
                                            .t = y0 + (i + r) * out.stride[2],
                                            .first_key = 0,
                                            .lo = v.lo,
                                            .hi = v.hi,
                                            .scale = scale})
                                .max;
          call.x = call.y = y0 + (i + r) * out.stride[2];
          call.known_max = &max;
          softmax_with_lse(*uk, call, row_lse == nullptr ? nullptr : row_lse + r, 1);
        }
      }
    }
  }
  return {};
}

}  // namespace simdattn
