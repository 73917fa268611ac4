#include "tests/support/calls.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/calls_parts.h"
#include "tests/support/indices.h"

namespace simdattn::test {
namespace {

/// Now and then the values are the first numbers of the keys.
void alias_values(Random& random, AttentionProblem& a) {
  const int64_t d_v = a.v.dim;
  const bool whole = row_bytes(a.k.type, 1) > 0 || d_v % 32 == 0;  // blocks of 32
  if (a.k.layout != KvLayout::kRows || d_v > a.k.dim || !whole || !random.one_in(4)) return;
  a.v = a.k;
  a.v.dim = d_v;
}

}  // namespace

void scores_call(Random& random, const Target& one, const Target& other) {
  const bool tall = random.one_in(20);  // other arithmetics take 64 rows at a time
  const int64_t kv_heads = random.integer(1, 3), heads = kv_heads * random.integer(1, 5);
  const int64_t batch = random.integer(1, 2), n_q = random.integer(0, tall ? 70 : 6), n_kv = random.size(0, 70),
                dim = random.size(1, tall ? 40 : 140);
  Array<4> q(random, random.storage(), {batch, heads, n_q, dim}, Strides::kInput);
  Array<4> k(random, random.storage(), {batch, kv_heads, n_kv, dim}, Strides::kInput);
  const Values kind = values(random);
  q.fill(random, kind);
  k.fill(random, kind);
  Array<4> want(random, DType::kF32, {batch, heads, n_q, n_kv}, Strides::kOutput), got = sibling(random, want);
  Optional<float> scale;
  if (random.coin()) scale = number(random, Values::kWide);
  const Array<4> q2 = q.with(random, Strides::kOutput), k2 = k.with(random, Strides::kOutput);
  const ScoreOptions options = {.scale = scale, .arithmetic = random_arithmetic(random)};
  ASSERT_TRUE(run_scores(q.view, k.view, want.view, options, &one).ok());
  ASSERT_TRUE(run_scores(q2.view, k2.view, got.view, options, &other).ok());
  ASSERT_EQ(difference(want, got), "") << sizes({batch, heads, kv_heads, n_q, n_kv, dim})
                                       << arithmetic_name(options.arithmetic);
}

void softmax_call(Random& random, const Target& one, const Target& other) {
  const int64_t rows = random.integer(0, 12), n = random.size(0, 500);
  Array<2> x(random, DType::kF32, {rows, n}, Strides::kInput);
  x.fill(random, values(random));
  const float spread = random.of({1.0f, 60.0f});
  if (random.coin())
    for_each_element(x.view, [&](int64_t at) { put(x.view.data, DType::kF32, at, spread * random.uniform()); });
  Array<2> want(random, DType::kF32, {rows, n}, Strides::kOutput), got = sibling(random, want);
  Array<1> want_lse(random, DType::kF32, {rows}), got_lse(random, DType::kF32, {rows});
  const bool in_place = random.coin();
  if (in_place) got.assign(x.bits());
  const View<1> absent;
  const bool with_lse = random.coin();
  ASSERT_TRUE(softmax(x.view, want.view, want_lse.view, {.target = &one}).ok());
  ASSERT_TRUE(softmax(in_place ? ConstView<2>(got.view) : ConstView<2>(x.view), got.view,
                      with_lse ? got_lse.view : absent, {.target = &other})
                  .ok());
  ASSERT_EQ(difference(want, got), "") << sizes({rows, n}) << " in place " << in_place;
  if (with_lse) {
    ASSERT_EQ(difference(want_lse, got_lse), "") << "lse" << sizes({rows, n});
  }
}

void masked_softmax_call(Random& random, const Target& one, const Target& other) {
  // Some with more rows than one call of the slot takes, and some with longer rows than fit into its buffer.
  const bool tall = random.one_in(30), wide = random.one_in(100);
  const int64_t batch = tall || wide ? 1 : random.integer(1, 3), heads = random.integer(1, tall || wide ? 2 : 4),
                n_q = random.integer(0, tall ? 150 : 9), n_kv = random.size(0, wide ? 6000 : 200);
  Array<4> x(random, DType::kF32, {batch, heads, n_q, n_kv}, Strides::kInput);
  x.fill(random, values(random));
  if (random.coin())
    for_each_element(x.view, [&](int64_t at) { put(x.view.data, DType::kF32, at, 15 * random.uniform()); });
  const std::vector<int64_t> q(static_cast<size_t>(batch), n_q), kv(static_cast<size_t>(batch), n_kv);
  const ScoringCase c = random_scoring(random, {heads, batch, n_q, n_kv, q, kv}, {.extreme = random.coin()});
  Array<4> want(random, DType::kF32, {batch, heads, n_q, n_kv}, Strides::kOutput), got = sibling(random, want);
  Array<3> want_lse(random, DType::kF32, {batch, heads, n_q}, Strides::kOutput), got_lse = sibling(random, want_lse);
  const bool in_place = random.coin();
  if (in_place) got.assign(x.bits());
  const View<3> absent;
  const bool with_lse = random.coin();
  ASSERT_TRUE(masked_softmax(x.view, want.view, c.scoring, want_lse.view, {.target = &one}).ok());
  ASSERT_TRUE(masked_softmax(in_place ? ConstView<4>(got.view) : ConstView<4>(x.view), got.view, c.scoring,
                             with_lse ? got_lse.view : absent, {.target = &other})
                  .ok());
  ASSERT_EQ(difference(want, got), "") << sizes({batch, heads, n_q, n_kv}) << " in place " << in_place
                                       << describe(c.scoring);
  if (with_lse) {
    ASSERT_EQ(difference(want_lse, got_lse), "") << "lse" << sizes({batch, heads, n_q, n_kv}) << describe(c.scoring);
  }
}

void weighted_values_call(Random& random, const Target& one, const Target& other) {
  const bool tall = random.one_in(20);  // other arithmetics take 64 rows at a time
  const int64_t kv_heads = random.integer(1, 2), heads = kv_heads * random.integer(1, 5);
  const int64_t batch = random.integer(1, 2), n_q = random.integer(0, tall ? 70 : 10),
                n_kv = random.size(0, random.one_in(8) ? 600 : 60), dim = random.size(1, tall ? 40 : 140);
  Array<4> p(random, DType::kF32, {batch, heads, n_q, n_kv}, Strides::kInput);
  Array<4> v(random, random.storage(), {batch, kv_heads, n_kv, dim}, Strides::kInput);
  const Values kind = values(random);
  p.fill(random, random.coin() ? Values::kOrdinary : kind);
  if (random.coin())
    for_each_element(p.view, [&](int64_t at) {
      if (random.coin()) put(p.view.data, DType::kF32, at, 0.0f);
    });
  v.fill(random, kind);
  Array<4> want(random, random.storage(), {batch, heads, n_q, dim}, Strides::kOutput), got = sibling(random, want);
  const Array<4> p2 = p.with(random, Strides::kOutput), v2 = v.with(random, Strides::kOutput);
  const ValueOptions options = {.arithmetic = random_arithmetic(random)};
  ASSERT_TRUE(run_weighted_values(p.view, v.view, want.view, options, &one).ok());
  ASSERT_TRUE(run_weighted_values(p2.view, v2.view, got.view, options, &other).ok());
  ASSERT_EQ(difference(want, got), "") << sizes({batch, heads, kv_heads, n_q, n_kv, dim})
                                       << arithmetic_name(options.arithmetic);
}

void attention_call(Random& random, const Target& one, const Target& other) {
  AttentionLimits limits;
  limits.values = values(random);
  limits.scoring.extreme = random.coin();
  switch (random.integer(0, 9)) {
    case 0: limits.max_kv = 2500, limits.max_q = 4, limits.max_dim = 16, limits.max_batch = 1; break;
    case 1: limits.max_dim = 200, limits.max_q = 3; break;
    case 2: limits.max_q = 90, limits.max_batch = 1; break;
    case 3: limits.max_kv = 400; break;
    default: break;
  }
  AttentionCase c = random_attention(random, limits);
  alias_values(random, c.problem);
  Array<4> got = sibling(random, c.out);
  Array<3> got_lse = sibling(random, c.lse);
  AttentionProblem second = c.problem;
  second.out = got.view;
  if (second.lse.data != nullptr) second.lse = got_lse.view;
  const Array<4> q = c.q.with(random, Strides::kOutput);
  second.q = q.view;
  Status s = run_attention(c.problem, &one);
  ASSERT_TRUE(s.ok()) << s.detail << ": " << describe(c.problem);
  s = run_attention(second, &other);
  ASSERT_TRUE(s.ok()) << s.detail;
  ASSERT_EQ(difference(c.out, got), "") << ": " << describe(c.problem);
  if (second.lse.data != nullptr) {
    ASSERT_EQ(difference(c.lse, got_lse), "") << "lse"
                                              << ": " << describe(c.problem);
  }
}

void lists_call(Random& random, const Target& one, const Target& other) {
  AttentionLimits limits;
  limits.values = values(random);
  limits.varlen = limits.scoring.per_sequence = false;
  limits.max_q = random.one_in(8) ? 40 : 6;
  limits.max_kv = random.one_in(8) ? 600 : 80;
  AttentionCase c = random_attention(random, limits);
  alias_values(random, c.problem);
  const auto& shape = c.out.view.shape;
  KeyLists& lists = c.problem.lists;
  lists.heads = random.coin() ? 1 : c.problem.k.heads;
  lists.block_size = random.of<int64_t>({1, 1, 4, 32});
  lists.length = random.one_in(8) ? random.integer(200, 1200) / lists.block_size : random.integer(0, 30);
  lists.stride = {lists.heads * shape[2] * lists.length, random.coin() ? 0 : shape[2] * lists.length,
                  random.one_in(3) ? 0 : lists.length};
  const int64_t blocks = (c.problem.k.keys() + lists.block_size - 1) / lists.block_size;
  std::vector<int32_t> entries(static_cast<size_t>(shape[0] * lists.heads * shape[2] * lists.length), -1);
  int64_t last = -1;
  for (size_t e = 0; e < entries.size(); ++e) {
    if (lists.length > 0 && static_cast<int64_t>(e) % lists.length == 0) last = -1;
    const int64_t next =
        random.coin() ? last + random.integer(1, 3) : random.integer(0, std::max<int64_t>(blocks - 1, 0));
    if (next < blocks && next != last && !random.one_in(9)) entries[e] = static_cast<int32_t>(last = next);
  }
  const Numbers<int32_t> guarded(random, entries);
  lists.data = guarded.data();
  Array<4> got = sibling(random, c.out);
  AttentionProblem second = c.problem;
  second.out = got.view;
  second.lse = {};
  Status s = run_attention(c.problem, &one);
  ASSERT_TRUE(s.ok()) << s.detail << ": " << describe(c.problem);
  s = random.coin() ? run_attention(second, &other) : run_tasks(second, &other, random);
  ASSERT_TRUE(s.ok()) << s.detail;
  ASSERT_EQ(difference(c.out, got), "") << ": " << describe(c.problem);
}

void selection_call(Random& random, const Target& one, const Target& other) {
  const int64_t batch = random.integer(1, 2), heads = random.one_in(8) ? random.integer(60, 270) : random.integer(1, 8),
                n = random.integer(1, 4), rows = random.one_in(8) ? random.integer(250, 520) : random.size(1, 70),
                dim = random.size(1, 40);
  Array<4> q(random, random.storage(), {batch, heads, n, dim}, Strides::kInput);
  q.fill(random, values(random));
  const Array<4> k(random, random.storage(), {batch, 1, rows, dim}, values(random));
  const KvStorage store =
      store_kv(random, k, random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels}));
  Array<3> weights(random, DType::kF32, {batch, n, heads}, Strides::kInput);
  weights.fill(random, values(random));
  IndexOptions o;
  o.arithmetic = random_arithmetic(random);
  o.combine = random.of({IndexCombine::kSum, IndexCombine::kMax, IndexCombine::kEach});
  o.relu = random.coin();
  o.causal = random.coin();
  o.block_size = random.of<int64_t>({1, 1, 3, 64});
  const int64_t candidates = (rows + o.block_size - 1) / o.block_size, size = random.integer(0, candidates + 2);
  const bool weighted = o.combine == IndexCombine::kSum && random.coin();
  const int64_t out_heads = o.combine == IndexCombine::kEach ? heads : 1;
  Array<4> want(random, DType::kF32, {batch, out_heads, n, candidates}, Strides::kOutput), got = sibling(random, want);
  Array<4> want_list(random, DType::kI32, {batch, out_heads, n, size}, Strides::kOutput),
      got_list = sibling(random, want_list);
  const Guarded memory(std::max(index_scores_workspace(o.arithmetic, heads, dim), top_k_workspace(size)),
                       random.guard());
  const auto run = [&](const Array<4>& scores, const Array<4>& lists, const Target& target) {
    const Exec exec = {.target = &target, .workspace = memory.data(), .workspace_bytes = memory.size()};
    const Status s =
        index_scores(q.view, store.kv, weighted ? ConstView<3>(weights.view) : ConstView<3>(), scores.view, o, exec);
    return s.ok() ? top_k(scores.view, size, lists.view, {.block_size = o.block_size}, exec) : s;
  };
  Status s = run(want, want_list, one);
  ASSERT_TRUE(s.ok()) << s.detail;
  s = run(got, got_list, other);
  ASSERT_TRUE(s.ok()) << s.detail;
  ASSERT_EQ(difference(want, got), "") << sizes({batch, heads, n, rows, dim});
  ASSERT_EQ(difference(want_list, got_list), "") << sizes({batch, heads, n, rows, size});
}

void raw_states_call(Random& random, const Target& one, const Target& other) {
  AttentionLimits limits;
  limits.values = values(random);
  if (random.one_in(10)) limits.max_kv = 2500, limits.max_q = 4;
  const AttentionCase c = random_attention(random, limits);
  AttentionProblem first = c.problem, second = c.problem;
  const auto& shape = c.out.view.shape;
  Array<4> want_acc(random, DType::kF32, shape, Strides::kOutput), got_acc = sibling(random, want_acc);
  const std::array<int64_t, 3> numbers = {shape[0], shape[1], shape[2]};
  Array<3> want_max(random, DType::kF32, numbers, Strides::kOutput), got_max = sibling(random, want_max);
  Array<3> want_sum(random, DType::kF32, numbers, Strides::kOutput), got_sum = sibling(random, want_sum);
  first.acc = want_acc.view, first.max = want_max.view, first.sum = want_sum.view;
  second.acc = got_acc.view, second.max = got_max.view, second.sum = got_sum.view;
  second.out = View<4>();
  second.lse = View<3>();
  Status s = run_attention(first, &one);
  ASSERT_TRUE(s.ok()) << s.detail << describe(first);
  s = run_attention(second, &other);
  ASSERT_TRUE(s.ok()) << s.detail << describe(first);
  ASSERT_EQ(difference(want_acc, got_acc), "") << ": " << describe(first);
  ASSERT_EQ(difference(want_max, got_max), "") << ": " << describe(first);
  ASSERT_EQ(difference(want_sum, got_sum), "") << ": " << describe(first);
}

void attention_merge_call(Random& random, const Target& one, const Target& other) {
  const int64_t parts = random.integer(1, 6), batch = random.integer(1, 2), heads = random.integer(1, 3),
                n = random.integer(0, 4), dim = random.size(1, 140);
  Array<5> part(random, random.storage(), {parts, batch, heads, n, dim}, Strides::kInput);
  Array<4> part_lse(random, DType::kF32, {parts, batch, heads, n}, Strides::kInput);
  const Values kind = values(random);
  part.fill(random, kind);
  part_lse.fill(random, kind);
  for_each_element(part_lse.view, [&](int64_t at) {
    if (random.one_in(4))
      put(part_lse.view.data, DType::kF32, at,
          random.coin() ? -std::numeric_limits<float>::infinity() : 30 * random.uniform());
  });
  Array<4> want(random, random.storage(), {batch, heads, n, dim}, Strides::kOutput), got = sibling(random, want);
  Array<3> want_lse(random, DType::kF32, {batch, heads, n}, Strides::kOutput), got_lse = sibling(random, want_lse);
  std::vector<float> values;
  for (int64_t h = 0; h < heads; ++h) values.push_back(5 * random.uniform());
  const Numbers<float> sinks(random, values);
  const float* const given = random.coin() ? sinks.data() : nullptr;
  const Array<5> part2 = part.with(random, Strides::kOutput);
  ASSERT_TRUE(attention_merge(part.view, part_lse.view, want.view, want_lse.view, given, {.target = &one}).ok());
  ASSERT_TRUE(attention_merge(part2.view, part_lse.view, got.view, got_lse.view, given, {.target = &other}).ok());
  ASSERT_EQ(difference(want, got), "") << sizes({parts, batch, heads, n, dim});
  ASSERT_EQ(difference(want_lse, got_lse), "") << "lse" << sizes({parts, batch, heads, n, dim});
}

void other_scores_call(Random& random, const Target& one, const Target& other) {
  const int64_t kv_heads = random.integer(1, 3), heads = kv_heads * random.integer(1, 4), batch = random.integer(1, 2),
                n_q = random.integer(0, 10), n_kv = random.size(0, 60), d = random.size(1, 70);
  const int64_t kind = random.integer(0, 2);
  const bool project_q = random.coin(), project_k = random.coin();
  const bool free = kind != 0;  // dimensions of their own
  const int64_t d_q = free && (kind == 1 || project_q) ? random.size(1, 70) : d;
  const int64_t d_k = free && (kind == 1 || project_k) ? random.size(1, 70) : d;
  Array<4> q(random, random.storage(), {batch, heads, n_q, d_q}, Strides::kInput);
  Array<4> k(random, random.storage(), {batch, kv_heads, n_kv, d_k}, Strides::kInput);
  Array<3> m(random, random.storage(), {heads, d_q, d_k}, Strides::kInput);
  Array<2> w(random, DType::kF32, {heads, d}, Strides::kInput);
  Array<3> wq(random, random.storage(), {heads, d, d_q}, Strides::kInput);
  Array<3> wk(random, random.storage(), {kv_heads, d, d_k}, Strides::kInput);
  const Values filling = values(random);
  q.fill(random, filling), k.fill(random, filling), m.fill(random, filling);
  w.fill(random, filling), wq.fill(random, filling), wk.fill(random, filling);
  Array<4> want(random, DType::kF32, {batch, heads, n_q, n_kv}, Strides::kOutput), got = sibling(random, want);
  const ScoreOptions options = {.scale = number(random, Values::kWide)};
  const size_t bytes = kind == 0   ? 0
                       : kind == 1 ? bilinear_scores_workspace(d_q, d_k)
                                   : additive_scores_workspace(project_q ? d_q : 0, project_k ? d_k : 0, d);
  const ConstView<3> absent;
  const auto run = [&](const Array<4>& out, const Target& target) {
    const Guarded workspace(bytes, random.guard());
    const Exec exec = {.target = &target, .workspace = workspace.data(), .workspace_bytes = bytes};
    if (kind == 0) return gaussian_scores(q.view, k.view, out.view, options, exec);
    if (kind == 1) return bilinear_scores(q.view, m.view, k.view, out.view, options, exec);
    return additive_scores(q.view, k.view, w.view, out.view, project_q ? ConstView<3>(wq.view) : absent,
                           project_k ? ConstView<3>(wk.view) : absent, exec);
  };
  Status s = run(want, one);
  ASSERT_TRUE(s.ok()) << s.detail;
  s = run(got, other);
  ASSERT_TRUE(s.ok()) << s.detail;
  ASSERT_EQ(difference(want, got), "") << kind << sizes({batch, heads, kv_heads, n_q, n_kv, d_q, d_k, d});
}

void elementwise_call(Random& random, const Target& one, const Target& other) {
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 3), n = random.integer(0, 5),
                block = int64_t{1} << random.integer(0, random.one_in(20) ? 12 : 7),
                dim = block > 512 ? block : block * random.integer(1, 5);
  Array<4> x(random, random.storage(), {batch, heads, n, dim}, Strides::kInput),
      p(random, random.storage(), {batch, heads, n, dim}, Strides::kInput);
  x.fill(random, values(random));
  p.fill(random, values(random));
  Array<4> want(random, random.storage(), x.view.shape, Strides::kOutput), got = sibling(random, want);
  const bool adds = random.coin();
  const int64_t given = random.coin() ? 0 : block;
  const auto run = [&](const Array<4>& out, const Target& target) {
    return adds ? add_rows(x.view, p.view, out.view, {.target = &target})
                : hadamard(x.view, out.view, given, {.target = &target});
  };
  ASSERT_TRUE(run(want, one).ok());
  ASSERT_TRUE(run(got, other).ok());
  ASSERT_EQ(difference(want, got), "") << adds << sizes({batch, heads, n, dim, given});
}

}  // namespace simdattn::test
