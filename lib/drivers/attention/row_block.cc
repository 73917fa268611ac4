#include "lib/drivers/attention/row_block.h"

#include <cmath>
#include <cstring>

#include "lib/contract/fma.h"
#include "lib/contract/steps.h"
#include "lib/definition/math.h"

namespace simdattn {

RowBlock::RowBlock(const AttentionRun& of, const RowBlockIndex& at) : run(of), index(at) {
  // Without any page, masks hide every key (check_pages).
  const auto no_pages = [](const ConstKv& kv) { return kv.page_size > 0 && kv.n_pages == 0; };
  if (no_pages(problem.k) || no_pages(problem.v)) sequence.rules.start = sequence.rules.length;
  for (int64_t r = 0, n; r < rows; r += n) {
    n = same_from(r);
    const int64_t i = position_of(r);
    std::fill_n(memory.see + r, n, visible_interval(problem.scoring, sequence.rules, i));
    if (!run.modifiers.any) continue;
    std::fill_n(memory.modifiers + r, n, row_modifiers(problem.scoring, place_of(sequence, head_of(r), i)));
  }
  fetch_masks(memory.see[0].lo / kKeyBlock * kKeyBlock, 0, rows);
}

void RowBlock::load_queries() const {
  const auto prepare = arithmetic.prepare_query[index_of(problem.q.dtype)];
  for (int64_t r = 0; r < rows; ++r) {
    const char* const row = row_of(problem.q, sequence.q_batch, head_of(r), sequence.first_row + position_of(r));
    prepare(row, query(r), division.sizes.d_qk);
  }
}

void RowBlock::fetch_masks(int64_t base, int64_t first, int64_t n) const {
  if (!run.modifiers.hides || has_lists(problem) || rows <= kFewRows) return;
  const auto prefetch = [&](const void* p, int64_t size) {
    for (int64_t i = 0; p != nullptr && i < kKeyBlock * size; i += 64) {
      __builtin_prefetch(reinterpret_cast<const void*>(address_at(static_cast<const char*>(p), base * size + i)));
    }
  };
  for (int64_t r = first; r < first + n; r += heads_at_once) {
    const RowModifiers& m = modifiers(r);
    if (r > 0 && same_masks(m, modifiers(r - 1))) continue;
    if (!m.one_bias) prefetch(m.bias, size_of(m.bias_dtype));
    if (!m.one_keep) prefetch(m.keep, 1);
  }
}

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
    const int64_t batch = rows.sequence.q_batch, head = rows.head_of(r);
    const int64_t row = rows.sequence.first_row + rows.position_of(r);
    const float sum = s.sum[r];
    float* const acc = s.acc + r * s.ld;
    const auto store_row = [&](const View<4>& out, float factor) {
      if (out.data == nullptr) return;
      rows.kernels.finish[index_of(out.dtype)](acc, factor, row_of(out, batch, head, row), d_v);
    };
    const auto store_number = [&](const View<3>& out, float x) {
      if (out.data == nullptr) return;
      static_cast<float*>(out.data)[batch * out.stride[0] + head * out.stride[1] + row * out.stride[2]] = canonical(x);
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
