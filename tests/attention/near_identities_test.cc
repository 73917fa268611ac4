// Ways to say the same thing that are equal up to rounding, within the bounds of tests/support/bounds.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/attention/compare.h"
#include "tests/attention/identities.h"
#include "tests/support/bounds.h"
#include "tests/support/reference.h"

namespace simdattn::test {
namespace {

/// Compares results that are each within `allowance` and a rounding of the formula.
template <int kRank, class F>
std::string apart(const Array<kRank>& one, const Array<kRank>& other, const F& allowance) {
  const reference::Tensor want = reference::read(other.view);
  return compare(one, want, [&](int64_t e) {
    return (2 * allowance(e) + reference::half_ulp(one.view.dtype, want[e])) * (1 + 0x1p-8);
  });
}
double attention_error(const reference::AttentionResult& formula, const AttentionBound& bound, double more, int64_t e) {
  return (bound.out + more) * kEps * formula.magnitude[e] + kWeightSlack * formula.weights[e] + bound.tiny;
}

TEST_P(Identities, SinkIsAKeyOfValueZero) {
  Random random(seed() * 3000 + 15);
  for (int64_t i = 0; i < cases(200); ++i) {
    const int64_t heads = random.integer(1, 3), n_q = random.integer(1, 5), n = random.size(0, 300),
                  dim = random.integer(1, 20), dim_v = random.integer(1, 20);
    Array<4> q(random, DType::kF32, {1, heads, n_q, dim}, Values::kOrdinary),
        k(random, DType::kF32, {1, heads, n, dim}, Values::kOrdinary),
        v(random, DType::kF32, {1, heads, n, dim_v}, Values::kOrdinary);
    std::vector<float> sinks;
    for (int64_t h = 0; h < heads; ++h) sinks.push_back(4 * random.uniform());
    // One more dimension carries the sink: queries have 1 there, keys 0, the virtual key the sink.
    Array<4> q1(random, DType::kF32, {1, heads, n_q, dim + 1}), k1(random, DType::kF32, {1, heads, n + 1, dim + 1}),
        v1(random, DType::kF32, {1, heads, n + 1, dim_v});
    const int64_t at = random.integer(0, n);  // where the virtual key stands
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t r = 0; r < n_q; ++r) {
        for (int64_t d = 0; d <= dim; ++d) q1.set_at({0, h, r, d}, d < dim ? q.get_at({0, h, r, d}) : 1.0f);
      }
      for (int64_t t = 0; t <= n; ++t) {
        const int64_t from = t < at ? t : t - 1;
        for (int64_t d = 0; d <= dim; ++d)
          k1.set_at({0, h, t, d}, t == at   ? (d < dim ? 0.0f : sinks[static_cast<size_t>(h)])
                                  : d < dim ? k.get_at({0, h, from, d})
                                            : 0.0f);
        for (int64_t d = 0; d < dim_v; ++d) v1.set_at({0, h, t, d}, t == at ? 0.0f : v.get_at({0, h, from, d}));
      }
    }
    Array<4> out(random, DType::kF32, {1, heads, n_q, dim_v}), out1 = out.like(random);
    Array<3> lse(random, DType::kF32, {1, heads, n_q}), lse1 = lse.like(random);
    AttentionCase c;
    AttentionProblem& a = c.problem;
    a.q = q.view, a.k = k.view, a.v = v.view, a.out = out.view, a.lse = lse.view;
    a.scoring.scale = 1.0f;
    a.scoring.sinks = sinks.data();
    ASSERT_TRUE(run_attention(a, &target()).ok());
    const reference::AttentionResult exact_result = reference::attention(a);
    AttentionProblem b = a;
    b.q = q1.view, b.k = k1.view, b.v = v1.view, b.out = out1.view, b.lse = lse1.view;
    b.scoring.sinks = nullptr;
    ASSERT_TRUE(run_attention(b, &target()).ok());
    const AttentionBound bound = attention_bound(c, costs(target()));
    ASSERT_EQ(apart(out, out1, [&](int64_t e) { return bound.out * kEps * exact_result.magnitude[e]; }), "")
        << "case " << i << " n " << n;
    ASSERT_EQ(apart(lse, lse1, [&](int64_t) { return bound.lse * kEps; }), "") << "case " << i << " n " << n;
  }
}

TEST_P(Identities, FusedIsTheThreeSteps) {
  Random random(seed() * 3000 + 16);
  for (int64_t i = 0; i < cases(250); ++i) {
    AttentionLimits limits;
    limits.varlen = limits.forms = false;
    limits.max_kv = random.one_in(6) ? 600 : 60;
    const AttentionCase c = random_attention(random, limits);
    AttentionProblem a = c.problem;
    a.lse = c.lse.view;
    ASSERT_TRUE(run_attention(a, &target()).ok());
    const auto& qs = a.q.shape;
    const Array<4> s(random, DType::kF32, {qs[0], qs[1], qs[2], a.k.capacity});
    const Array<4> out = c.out.like(random);
    const Array<3> lse = c.lse.like(random);
    Scoring scoring = a.scoring;
    const ScoreOptions score_options = {.scale = scoring.scale, .arithmetic = a.arithmetic};
    ASSERT_TRUE(run_scores(a.q, c.k_rows.view, s.view, score_options, &target()).ok());
    scoring.scale = {};
    ASSERT_TRUE(masked_softmax(s.view, s.view, scoring, lse.view, exec()).ok());
    const ValueOptions value_options = {.arithmetic = a.arithmetic};
    ASSERT_TRUE(ok(run_weighted_values(s.view, c.v_rows.view, out.view, value_options, &target())));
    const reference::AttentionResult formula = reference::attention(a);
    const AttentionBound bound = attention_bound(c, costs(target()));
    ASSERT_EQ(apart(c.out, out, [&](int64_t e) { return attention_error(formula, bound, 0, e); }), "") << where(i, a);
    ASSERT_EQ(apart(c.lse, lse, [&](int64_t) { return bound.lse * kEps; }), "") << where(i, a);
  }
}

/// Attention over disjoint ranges of keys, joined; a sink in one of them or afterwards.
TEST_P(Identities, MergedPartsAreTheWhole) {
  Random random(seed() * 3000 + 17);
  for (int64_t i = 0; i < cases(200); ++i) {
    AttentionLimits limits;
    limits.varlen = limits.forms = false;
    limits.max_kv = random.one_in(8) ? 1500 : 100;
    AttentionCase c = random_attention(random, limits);
    AttentionProblem& a = c.problem;
    const int64_t n = a.k.capacity, n_q = a.q.shape[2];
    a.scoring.kv_length = a.scoring.offsets = nullptr;
    if (a.scoring.offset == kBottomRight) a.scoring.offset = n - n_q;
    a.scoring.packed_mask = PackedMask();  // its columns count from the end of the keys
    a.lse = c.lse.view;
    ASSERT_TRUE(run_attention(a, &target()).ok());
    const reference::AttentionResult formula = reference::attention(a);
    const int64_t n_parts = random.integer(1, 4);
    const auto& shape = c.out.view.shape;
    const Array<5> parts(random, DType::kF32, {n_parts, shape[0], shape[1], shape[2], shape[3]}, Strides::kOutput);
    const Array<4> part_lse(random, DType::kF32, {n_parts, shape[0], shape[1], shape[2]}, Strides::kOutput);
    const bool sinks_after = random.coin();
    const int64_t sinks_in = random.integer(0, n_parts - 1);
    int64_t first = 0;
    for (int64_t p = 0; p < n_parts; ++p) {
      const int64_t last = p + 1 == n_parts ? n : random.integer(first, n);
      AttentionProblem part = a;
      // Keys keep their numbers: a part is what lies between a start and a length.
      const std::vector<int32_t> length(static_cast<size_t>(shape[0]), static_cast<int32_t>(last));
      std::vector<int32_t> start;
      for (int64_t b = 0; b < shape[0]; ++b)
        start.push_back(
            std::max(static_cast<int32_t>(first), a.scoring.kv_start != nullptr ? a.scoring.kv_start[b] : 0));
      part.scoring.kv_start = start.data();
      part.scoring.kv_length = length.data();
      if (sinks_after || p != sinks_in) part.scoring.sinks = nullptr;
      part.out = View<4>(static_cast<float*>(parts.view.data) + p * parts.view.stride[0], DType::kF32, shape,
                         {parts.view.stride[1], parts.view.stride[2], parts.view.stride[3], 1});
      part.lse = View<3>(static_cast<float*>(part_lse.view.data) + p * part_lse.view.stride[0], DType::kF32,
                         {shape[0], shape[1], shape[2]},
                         {part_lse.view.stride[1], part_lse.view.stride[2], part_lse.view.stride[3]});
      ASSERT_TRUE(ok(run_attention(part, &target())));
      first = last;
    }
    const Array<4> out = c.out.like(random);
    const Array<3> lse = c.lse.like(random);
    ASSERT_TRUE(ok(attention_merge(parts.view, part_lse.view, out.view, lse.view,
                                   sinks_after ? a.scoring.sinks : nullptr, exec())));
    const AttentionBound bound = attention_bound(c, costs(target()));
    // The parts' own errors, and the merge: weights whose exponents carry the error of a log-sum-exp each.
    const double more = 2 * bound.lse + 2 * costs(target()).exp + 3 * static_cast<double>(n_parts) + 8;
    const auto message = [&] { return std::to_string(n_parts) + " parts, " + where(i, a); };
    ASSERT_EQ(apart(c.out, out, [&](int64_t e) { return attention_error(formula, bound, more, e); }), "") << message();
    ASSERT_EQ(apart(c.lse, lse, [&](int64_t) { return (bound.lse + more) * kEps; }), "") << message();
  }
}

}  // namespace
}  // namespace simdattn::test
