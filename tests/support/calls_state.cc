// Attention with a state, and the convolution before it: see calls.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/calls.h"
#include "tests/support/indices.h"
#include "tests/support/problems.h"

namespace simdattn::test {
namespace {

/// An array and, for the second target, its elements at other places.
template <int kRank>
struct Pair {
  Array<kRank> first, second;
  Pair() = default;
  Pair(Random& random, DType dtype, const std::array<int64_t, kRank>& shape, Values values, bool output) {
    first = Array<kRank>(random, dtype, shape, output ? Strides::kOutput : Strides::kInput);
    first.fill(random, values);
    second = first.with(random, Strides::kOutput);
  }
};

/// Where sequences begin in `total` tokens.
std::vector<int32_t> cuts(Random& random, int64_t sequences, int64_t total) {
  std::vector<int32_t> at = {0, static_cast<int32_t>(total)};
  for (int64_t s = 1; s < sequences; ++s) at.push_back(static_cast<int32_t>(random.integer(0, total)));
  std::sort(at.begin(), at.end());
  return at;
}

/// Different states out of `states`; some sequences are skipped.
std::vector<int32_t> places(Random& random, int64_t sequences, int64_t states) {
  std::vector<int32_t> all;
  for (int64_t s = 0; s < states; ++s) all.push_back(static_cast<int32_t>(s));
  for (size_t s = all.size(); s-- > 1;)
    std::swap(all[s], all[static_cast<size_t>(random.integer(0, static_cast<int64_t>(s)))]);
  all.resize(static_cast<size_t>(sequences));
  for (int32_t& s : all) {
    if (random.one_in(8)) s = -1;
  }
  return all;
}

/// Elements first .. first + n - 1 along a dimension.
template <int kRank, bool kConst>
BasicView<kRank, kConst> tokens_of(BasicView<kRank, kConst> v, size_t dimension, int64_t first, int64_t n) {
  using Byte = std::conditional_t<kConst, const char, char>;
  if (v.data == nullptr) return v;
  if (v.shape[dimension] > 1) v.data = static_cast<Byte*>(v.data) + first * v.stride[dimension] * size_of(v.dtype);
  v.shape[dimension] = n;
  return v;
}

/// Where the second call finds its states, and what becomes of them.
enum class Kept { kInPlace, kApart, kNot };
Kept kept_of(Random& random) { return random.of({Kept::kInPlace, Kept::kInPlace, Kept::kApart, Kept::kNot}); }

/// The states as they are, at another place; `state` has other numbers in those that sequences write.
template <int kRank>
Array<kRank> moved(Random& random, const Array<kRank>& state, const int32_t* index, int64_t sequences) {
  Array<kRank> before = state.with(random, Strides::kInput);
  auto all = state.view;
  for (int64_t s = 0; s < sequences; ++s) {
    const int64_t at = index != nullptr ? index[s] : s;
    if (at < 0) continue;
    auto one = tokens_of(all, 0, at, 1);
    for_each_element(one, [&](int64_t i) { put(one.data, one.dtype, i, 12345.0f); });
  }
  return before;
}

/// The elements of one in the other, whose last two dimensions are exchanged.
void exchange(const Array<3>& from, const Array<3>& to) {
  const auto [a, b, c] = from.view.shape;
  for (const auto [i, j, k] : indices(a, b, c)) {
    set_element_bits(to.view.data, to.view.dtype, to.at({i, k, j}),
                     element_bits(from.view.data, from.view.dtype, from.at({i, j, k})));
  }
}
/// `past` and x one after the other along a dimension.
Array<3> joined(Random& random, const Array<3>& past, const Array<3>& x, size_t dimension) {
  std::array<int64_t, 3> shape = x.view.shape;
  shape[dimension] += past.view.shape[dimension];
  Array<3> all(random, x.view.dtype, shape, Strides::kOutput);
  for (const Array<3>* part : {&past, &x}) {
    const int64_t first = part == &x ? past.view.shape[dimension] : 0;
    for (const auto [i, j, k] : indices(part->view.shape[0], part->view.shape[1], part->view.shape[2])) {
      std::array<int64_t, 3> to = {i, j, k};
      to[dimension] += first;
      set_element_bits(all.view.data, all.view.dtype, all.at(to),
                       element_bits(part->view.data, part->view.dtype, part->at({i, j, k})));
    }
  }
  return all;
}

}  // namespace

void linear_attention_call(Random& random, const Target& one, const Target& other) {
  const bool large = random.one_in(12);
  const int64_t d_k = random.size(1, large ? 150 : 40), d_v = random.size(1, large ? 200 : 80);
  const int64_t n = random.integer(0, large ? 90 : 12), sequences = random.integer(1, 3);
  const bool varlen = random.coin();
  const int64_t k_heads = random.integer(1, 2), heads = k_heads * random.integer(1, 3);
  int64_t q_heads = heads * random.integer(1, 3);
  if (random.coin()) q_heads = k_heads;
  const int64_t batch = varlen ? 1 : sequences, states = sequences + random.integer(0, 2);
  const Values kind = random.of({Values::kOrdinary, Values::kOrdinary, Values::kWide, Values::kSpecial, Values::kHuge});
  LinearAttentionProblem a;
  a.rule = random.of({LinearRule::kLinear, LinearRule::kGated, LinearRule::kDelta, LinearRule::kGatedDelta});
  a.head_order = random.of({HeadOrder::kNeighbours, HeadOrder::kRepeated});
  a.transposed = random.one_in(3);
  const bool gated = a.rule == LinearRule::kGated || a.rule == LinearRule::kGatedDelta;
  const bool delta = a.rule == LinearRule::kDelta || a.rule == LinearRule::kGatedDelta;
  const Pair<4> q(random, random.storage(), {batch, q_heads, n, d_k}, kind, false);
  const Pair<4> k(random, random.storage(), {batch, k_heads, n, d_k}, kind, false);
  const Pair<4> v(random, random.storage(), {batch, heads, n, d_v}, kind, false);
  Pair<4> decay, beta;
  if (gated) {
    decay = Pair<4>(random, random.storage(), {batch, heads, n, random.coin() ? 1 : d_k}, kind, false);
    const float edges[] = {-std::numeric_limits<float>::infinity(), -87.0f, -88.0f, 88.0f, 87.9f, 200.0f, 0.0f};
    for_each_element(decay.first.view, [&](int64_t at) {
      if (random.one_in(10)) put(decay.first.view.data, decay.first.view.dtype, at, edges[random.integer(0, 6)]);
    });
    decay.second = decay.first.with(random, Strides::kOutput);
  }
  if (delta && !random.one_in(4)) {
    beta = Pair<4>(random, random.storage(), {batch, random.coin() ? heads : 1, n, 1}, kind, false);
  }
  std::array<int64_t, 4> shape = {states, heads, d_k, d_v};
  if (a.transposed) std::swap(shape[2], shape[3]);
  const bool pool = states > sequences || random.coin();
  Pair<4> state(random, DType::kF32, shape, kind, true);
  const int64_t kept = random.one_in(3) ? random.integer(1, 4) : 0;
  const std::array<int64_t, 5> kept_shape = {sequences, kept, heads, shape[2], shape[3]};
  Pair<5> kept_states(random, DType::kF32, kept_shape, Values::kOrdinary, true);
  Pair<4> out(random, random.storage(), {batch, std::max(q_heads, heads), n, d_v}, Values::kOrdinary, true);
  const Numbers<int32_t> cu_q(random, cuts(random, sequences, n)), index(random, places(random, sequences, states));
  if (varlen) a.cu_q = cu_q.data(), a.n_sequences = sequences;
  if (pool) a.state_index = index.data();
  if (random.coin()) a.scale = number(random, Values::kWide);
  // A later chunk needs the state that an earlier one left.
  const Kept where = kept_of(random);
  const bool whole = varlen || kept > 0 || n == 0 || where == Kept::kNot;
  Array<4> before;
  if (where != Kept::kInPlace) before = moved(random, state.second, a.state_index, sequences);
  before.memory.read_only();

  const auto with = [&](bool second) {
    const auto of = [second](const auto& pair) { return second ? pair.second.view : pair.first.view; };
    LinearAttentionProblem p = a;
    p.q = of(q), p.k = of(k), p.v = of(v), p.decay = of(decay), p.beta = of(beta);
    p.state = of(state), p.out = of(out);
    if (kept > 0) p.states = of(kept_states);
    if (!second || where == Kept::kInPlace) return p;
    p.state_in = before.view;
    if (where == Kept::kNot) p.state = {};
    return p;
  };
  const auto run = [&](const LinearAttentionProblem& p, const Target& target, bool by_tasks) {
    const Guarded memory(linear_attention_workspace(p), random.guard());
    const Exec exec = {.target = &target, .workspace = memory.data(), .workspace_bytes = memory.size()};
    if (!by_tasks) return linear_attention(p, exec);
    const int64_t tasks = linear_attention_tasks(p), cut = random.integer(0, tasks);
    const Status s = linear_attention_range(p, cut, tasks, exec);
    return s.ok() ? linear_attention_range(p, 0, cut, exec) : s;
  };
  const std::string what = " n " + std::to_string(n) + ", d " + std::to_string(d_k) + " " + std::to_string(d_v) +
                           ", heads " + std::to_string(q_heads) + " " + std::to_string(k_heads) + " " +
                           std::to_string(heads) + ", rule " + std::to_string(static_cast<int>(a.rule));
  Status s = run(with(false), one, false);
  ASSERT_TRUE(s.ok()) << s.detail << what;
  LinearAttentionProblem p = with(true);
  if (whole) {
    s = run(p, other, random.coin());
    ASSERT_TRUE(s.ok()) << s.detail << what;
  } else {
    for (int64_t t = 0, m; t < n; t += m) {
      m = random.integer(1, n - t);
      LinearAttentionProblem chunk = p;
      chunk.q = tokens_of(p.q, 2, t, m), chunk.k = tokens_of(p.k, 2, t, m), chunk.v = tokens_of(p.v, 2, t, m);
      chunk.decay = tokens_of(p.decay, 2, t, m), chunk.beta = tokens_of(p.beta, 2, t, m);
      chunk.out = tokens_of(p.out, 2, t, m);
      if (t > 0) chunk.state_in = {};
      s = run(chunk, other, random.coin());
      ASSERT_TRUE(s.ok()) << s.detail << what;
    }
  }
  ASSERT_EQ(difference(out.first, out.second), "") << what;
  if (where != Kept::kNot) {
    ASSERT_EQ(difference(state.first, state.second), "") << "state" << what;
  }
  ASSERT_EQ(difference(kept_states.first, kept_states.second), "") << "states" << what;
}

void causal_conv_call(Random& random, const Target& one, const Target& other) {
  const int64_t channels = random.size(1, 100), n = random.integer(0, random.one_in(8) ? 90 : 12);
  const int64_t width = random.one_in(4) ? random.integer(1, 32) : 4, sequences = random.integer(1, 3);
  const bool varlen = random.coin(), last = random.coin(), in_place = random.one_in(4);
  const int64_t batch = varlen ? 1 : sequences, states = sequences + (width > 1 ? random.integer(0, 2) : 0);
  const Values kind = random.of({Values::kOrdinary, Values::kOrdinary, Values::kWide, Values::kSpecial, Values::kHuge});
  const DType type = random.storage();
  const auto shape = [last](int64_t a, int64_t c, int64_t t) -> std::array<int64_t, 3> {
    return last ? std::array<int64_t, 3>{a, t, c} : std::array<int64_t, 3>{a, c, t};
  };
  const Pair<3> x(random, type, shape(batch, channels, n), kind, in_place);
  const Pair<2> weight(random, random.storage(), {channels, width}, kind, false);
  const Pair<1> bias(random, random.storage(), {channels}, kind, false);
  Pair<3> state(random, type, shape(states, channels, width - 1), kind, true);
  Pair<3> out(random, in_place ? type : random.storage(), x.first.view.shape, Values::kOrdinary, true);
  const Numbers<int32_t> cu_q(random, cuts(random, sequences, n)), index(random, places(random, sequences, states));
  CausalConvProblem a;
  a.channels_last = last;
  a.silu = random.coin();
  if (varlen) a.cu_q = cu_q.data(), a.n_sequences = sequences;
  const bool biased = random.coin();
  if (width > 1 && (states > sequences || random.coin())) a.state_index = index.data();
  // The second call: states and outputs may lie elsewhere, and the past in front of x.
  const size_t tokens = last ? 1 : 2;
  const Kept where = width > 1 ? kept_of(random) : Kept::kInPlace;
  const bool turned = !in_place && random.coin(),
             in_one = where != Kept::kInPlace && !varlen && !in_place && a.state_index == nullptr && random.coin();
  Array<3> before, both, other_out;
  if (where != Kept::kInPlace) before = moved(random, state.second, a.state_index, sequences);
  if (in_one) both = joined(random, before, x.second, tokens);
  before.memory.read_only();
  both.memory.read_only();
  if (turned) {
    const auto [b, i, j] = out.second.view.shape;
    other_out = Array<3>(random, out.second.view.dtype, {b, j, i}, Strides::kOutput);
    exchange(out.second, other_out);
  }
  const auto with = [&](bool second) {
    const auto of = [second](const auto& pair) { return second ? pair.second.view : pair.first.view; };
    CausalConvProblem p = a;
    p.x = of(x), p.weight = of(weight);
    if (biased) p.bias = of(bias);
    if (width > 1) p.state = of(state);
    p.out = in_place ? of(x) : of(out);
    if (!second) return p;
    p.out_transposed = turned;
    if (turned) p.out = other_out.view;
    if (where == Kept::kInPlace) return p;
    p.state_in = before.view;
    if (where == Kept::kNot) p.state = {};
    if (in_one) p.x = tokens_of(ConstView<3>(both.view), tokens, width - 1, n);
    return p;
  };
  const std::string what = " channels " + std::to_string(channels) + ", n " + std::to_string(n) + ", width " +
                           std::to_string(width) + (last ? ", channels last" : "");
  Status s = causal_conv(with(false), {.target = &one});
  ASSERT_TRUE(s.ok()) << s.detail << what;
  const CausalConvProblem p = with(true);
  const bool whole = varlen || (where == Kept::kNot && !in_one);
  for (int64_t t = 0, m; t == 0 || t < n; t += std::max<int64_t>(m, 1)) {
    m = whole || n == 0 ? n : random.integer(1, n - t);
    CausalConvProblem chunk = p;
    chunk.x = tokens_of(p.x, tokens, t, m);
    chunk.out = tokens_of(p.out, turned ? 3 - tokens : tokens, t, m);
    if (in_one) chunk.state_in = tokens_of(ConstView<3>(both.view), tokens, t, width - 1);
    if (t > 0 && !in_one) chunk.state_in = {};
    s = causal_conv(chunk, {.target = &other});
    ASSERT_TRUE(s.ok()) << s.detail << what;
  }
  if (turned) exchange(other_out, out.second);
  ASSERT_EQ(in_place ? difference(x.first, x.second) : difference(out.first, out.second), "") << what;
  if (where != Kept::kNot) {
    ASSERT_EQ(difference(state.first, state.second), "") << "state" << what;
  }
}

}  // namespace simdattn::test
