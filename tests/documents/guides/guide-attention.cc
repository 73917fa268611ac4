// docs/guide-attention.md: the call against the loop that it replaces, and against the formula.
#include "page.h"
#include "tests/documents/guides/check.h"

namespace {

using guides::Floats;
using guides::good;

/// [heads, n, d] of [n, heads, d].
Floats by_head(const Floats& x, int64_t heads, int64_t n, int64_t d) {
  Floats y(x.size());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t h = 0; h < heads; ++h) std::copy_n(x.data() + (i * heads + h) * d, d, y.data() + (h * n + i) * d);
  }
  return y;
}

void run(const sa::AttentionProblem& problem) {
  sa::Plan plan;
  good(sa::attention_plan(problem, &plan), "attention_plan");
  std::vector<std::byte> workspace(plan.workspace_bytes);
  good(sa::attention(problem, {.workspace = workspace.data(), .workspace_bytes = workspace.size()}), "attention");
}

}  // namespace

int main() {
  constexpr int kHeads = 6, kKvHeads = 2, kDim = 24;
  constexpr double kTolerance = 2e-6;  // some roundings of values below 1
  for (const auto& [n_q, n_kv] : {std::pair<int, int>{1, 1}, {1, 300}, {33, 33}, {20, 290}}) {
    const Floats q = guides::numbers(n_q * kHeads * kDim, 1), k = guides::numbers(n_kv * kKvHeads * kDim, 2);
    const Floats v = guides::numbers(n_kv * kKvHeads * kDim, 3);
    const Floats hq = by_head(q, kHeads, n_q, kDim), hk = by_head(k, kKvHeads, n_kv, kDim);
    const Floats hv = by_head(v, kKvHeads, n_kv, kDim);
    const Floats formula = guides::attention(q, k, v, kHeads, kKvHeads, kDim);

    Floats before(q.size()), after(q.size()), tokens(q.size());
    attention_before(hq.data(), hk.data(), hv.data(), before.data(), kHeads, kKvHeads, n_q, n_kv, kDim);
    std::vector<std::byte> workspace;
    good(attention_after(hq.data(), hk.data(), hv.data(), after.data(), kHeads, kKvHeads, n_q, n_kv, kDim, workspace),
         "attention_after");
    guides::near(before, by_head(formula, kHeads, n_q, kDim), kTolerance, "attention_before");
    guides::near(after, by_head(formula, kHeads, n_q, kDim), kTolerance, "attention_after");
    sa::AttentionProblem problem =
        attention_of_tokens(q.data(), k.data(), v.data(), tokens.data(), kHeads, kKvHeads, n_q, n_kv, kDim);
    run(problem);
    guides::near(tokens, formula, kTolerance, "attention_of_tokens");
    guides::same_bits(by_head(tokens, kHeads, n_q, kDim), after, "attention_of_tokens");

    Floats slopes(kHeads), mask = guides::numbers(n_q * n_kv, 4);
    good(sa::alibi_slopes(kHeads, slopes.data()), "alibi_slopes");
    slopes[1] = 0;
    for (size_t i = 1; i < mask.size(); i += 3) mask[i] = -INFINITY;
    problem.scoring = sloped_mask(mask.data(), n_q, n_kv, slopes.data());
    run(problem);
    const int64_t columns = n_kv;
    guides::near(tokens,
                 guides::attention(q, k, v, kHeads, kKvHeads, kDim,
                                   [&](int64_t h, int64_t i, int64_t j) {
                                     const float m = mask[static_cast<size_t>(i * columns + j)];
                                     return std::isinf(m) ? -INFINITY
                                                          : static_cast<double>(m) *
                                                                static_cast<double>(slopes[static_cast<size_t>(h)]);
                                   }),
                 kTolerance, "sloped_mask");
  }
  {
    const float x[8] = {};
    float out[8];
    const sa::AttentionProblem problem{.q = sa::view(x, {1, 1, 2, 4}),
                                       .k = sa::view(x, {1, 1, 4, 2}),
                                       .v = sa::view(x, {1, 1, 4, 2}),
                                       .out = sa::view(out, {1, 1, 2, 2})};
    guides::refused(sa::attention(problem, {}), "k.dim != q.shape[3]");
  }
}
