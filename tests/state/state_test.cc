// Attention with a state, and the convolution before it: the bits of docs/numerics.md, written down here once more; the
// float64 formula within the bound derived there; what clears a state; threads.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "lib/definition/math.h"
#include "simdattn/simdattn.h"
#include "tests/support/indices.h"
#include "tests/support/problems.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class State : public TargetTest {
 protected:
  static Status run(const LinearAttentionProblem& p) {
    std::vector<char> memory(linear_attention_workspace(p));
    return linear_attention(p, {.target = &target(), .workspace = memory.data(), .workspace_bytes = memory.size()});
  }
};

/// One batch entry with as many heads everywhere.
struct Problem {
  Array<4> q, k, v, decay, beta, state, out;
  LinearAttentionProblem p;
  Problem(Random& random, LinearRule rule, int64_t heads, int64_t n, int64_t d_k, int64_t d_v, Values values,
          bool by_channel) {
    const bool gated = rule == LinearRule::kGated || rule == LinearRule::kGatedDelta;
    const bool delta = rule == LinearRule::kDelta || rule == LinearRule::kGatedDelta;
    const auto array = [&](int64_t columns, float factor) {
      Array<4> a(random, random.storage(), {1, heads, n, columns}, Strides::kInput);
      for_each_element(a.view,
                       [&](int64_t at) { put(a.view.data, a.view.dtype, at, factor * number(random, values)); });
      return a;
    };
    q = array(d_k, 1);
    k = array(d_k, 1 / std::sqrt(static_cast<float>(d_k)));
    v = array(d_v, 1);
    p.rule = rule;
    p.q = q.view, p.k = k.view, p.v = v.view;
    if (gated) {
      decay = array(by_channel ? d_k : 1, 1);
      for_each_element(decay.view, [&](int64_t at) {
        const float x = get(decay.view.data, decay.view.dtype, at);
        put(decay.view.data, decay.view.dtype, at, random.one_in(30) ? -kInf : -std::fabs(x));
      });
      p.decay = decay.view;
    }
    if (delta) {
      beta = array(1, 1.5f);
      p.beta = beta.view;
    }
    state = Array<4>(random, DType::kF32, {1, heads, d_k, d_v}, Strides::kOutput);
    state.fill(random, values);
    p.state = state.view;
    out = Array<4>(random, DType::kF32, {1, heads, n, d_v}, Strides::kOutput);
    p.out = out.view;
  }
};

uint32_t bits_of(float x) { return x == x ? std::bit_cast<uint32_t>(x) : 0x7FC00000u; }

/// docs/numerics.md in the plainest words.
TEST_P(State, Definition) {
  if (!is_exact()) GTEST_SKIP() << "no fused multiply-add";
  Random random(seed() * 3 + 1);
  for (int64_t i = 0; i < cases(150); ++i) {
    const LinearRule rule =
        random.of({LinearRule::kLinear, LinearRule::kGated, LinearRule::kDelta, LinearRule::kGatedDelta});
    const int64_t n = random.integer(1, 40), d_k = random.size(1, 70), d_v = random.size(1, 70), heads = 2;
    const Problem a(random, rule, heads, n, d_k, d_v, random.of({Values::kOrdinary, Values::kWide, Values::kSpecial}),
                    random.coin());
    std::vector<float> want_state, want_out(static_cast<size_t>(heads * n * d_v));
    for (const auto [h, i0, j] : indices(heads, d_k, d_v)) want_state.push_back(a.state.get_at({0, h, i0, j}));
    const float scale = 1.0f / std::sqrt(static_cast<float>(d_k));
    for (const auto [h, j, t] : indices(heads, d_v, n)) {
      const auto s = [&, head = h, column = j](int64_t x) -> float& {
        return want_state[static_cast<size_t>((head * d_k + x) * d_v + column)];
      };
      float r = 0;
      for (int64_t x = 0; x < d_k; ++x) {
        if (a.p.decay.data != nullptr) {
          const float g = scalar::exp(a.decay.get_at({0, h, t, a.decay.view.shape[3] == 1 ? 0 : x}));
          s(x) = g == 0 ? 0 : g * s(x);
        }
        r = std::fma(a.k.get_at({0, h, t, x}), s(x), r);
      }
      float u = a.v.get_at({0, h, t, j});
      if (a.p.beta.data != nullptr) u = (u - r) * a.beta.get_at({0, h, t, 0});
      float o = 0;
      for (int64_t x = 0; x < d_k; ++x) {
        s(x) = std::fma(a.k.get_at({0, h, t, x}), u, s(x));
        o = std::fma(a.q.get_at({0, h, t, x}), s(x), o);
      }
      want_out[static_cast<size_t>((h * n + t) * d_v + j)] = (o + 0.0f) * scale;
    }
    ASSERT_TRUE(run(a.p).ok());
    for (const auto [h, t, j] : indices(heads, n, d_v)) {
      ASSERT_EQ(bits_of(want_out[static_cast<size_t>((h * n + t) * d_v + j)]),
                std::bit_cast<uint32_t>(a.out.get_at({0, h, t, j})))
          << "case " << i << ", token " << t << ", column " << j << " of " << d_v << ", d_k " << d_k;
    }
    for (const auto [h, x, j] : indices(heads, d_k, d_v)) {
      ASSERT_EQ(bits_of(want_state[static_cast<size_t>((h * d_k + x) * d_v + j)]),
                std::bit_cast<uint32_t>(a.state.get_at({0, h, x, j})))
          << "case " << i << ", state, row " << x << ", column " << j;
    }
  }
}

/// The float64 formula, within the bound of docs/numerics.md.
TEST_P(State, Formula) {
  Random random(seed() * 3 + 2);
  double worst = 0;
  for (int64_t i = 0; i < cases(60); ++i) {
    const LinearRule rule =
        random.of({LinearRule::kLinear, LinearRule::kGated, LinearRule::kDelta, LinearRule::kGatedDelta});
    const int64_t n = random.integer(1, 70), d_k = random.size(1, 80), d_v = random.size(1, 40), heads = 2;
    const Problem a(random, rule, heads, n, d_k, d_v, Values::kOrdinary, random.coin());
    reference::StateProblem p;
    p.fused = target_exact(target());
    p.delta = rule == LinearRule::kDelta || rule == LinearRule::kGatedDelta;
    p.q = reference::read(a.q.view), p.k = reference::read(a.k.view), p.v = reference::read(a.v.view);
    if (a.p.decay.data != nullptr) p.decay = reference::read(a.decay.view);
    if (a.p.beta.data != nullptr) p.beta = reference::read(a.beta.view);
    p.state = reference::read(a.state.view);
    p.scale = 1 / std::sqrt(static_cast<double>(d_k));
    const reference::StateResult want = reference::linear_attention(p);
    ASSERT_TRUE(run(a.p).ok());
    const reference::Tensor out = reference::read(a.out.view), state = reference::read(a.state.view);
    for (int64_t x = 0; x < out.size(); ++x) {
      const double error = std::fabs(out[x] - want.out[x]);
      ASSERT_LE(error, want.out_bound[x]) << "case " << i << ", element " << x << " of out";
      worst = std::max(worst, error / want.out_bound[x]);
    }
    for (int64_t x = 0; x < state.size(); ++x) {
      ASSERT_LE(std::fabs(state[x] - want.state[x]), want.state_bound[x])
          << "case " << i << ", element " << x << " of the state";
    }
  }
  EXPECT_GT(worst, 0.001) << "the bound says nothing";
}

TEST_P(State, ConvolutionFormula) {
  Random random(seed() * 3 + 3);
  for (int64_t i = 0; i < cases(100); ++i) {
    const int64_t channels = random.size(1, 70), n = random.integer(1, 80), width = random.integer(1, 9);
    Array<3> x(random, random.storage(), {2, channels, n}, Values::kOrdinary, Strides::kInput);
    const Array<2> weight(random, random.storage(), {channels, width}, Values::kOrdinary, Strides::kInput);
    const Array<1> bias(random, random.storage(), {channels}, Values::kOrdinary, Strides::kInput);
    Array<3> state(random, x.view.dtype, {2, channels, width - 1}, Values::kOrdinary, Strides::kOutput);
    const Array<3> out(random, DType::kF32, {2, channels, n}, Strides::kOutput);
    CausalConvProblem p;
    p.x = x.view, p.weight = weight.view, p.bias = bias.view, p.out = out.view, p.silu = random.coin();
    if (width > 1) p.state = state.view;
    reference::Tensor past = reference::read(state.view), bound;
    const reference::Tensor want = reference::causal_conv(reference::read(x.view), reference::read(weight.view),
                                                          reference::read(bias.view), &past, p.silu, &bound);
    ASSERT_TRUE(causal_conv(p, exec()).ok());
    const reference::Tensor got = reference::read(out.view), left = reference::read(state.view);
    for (int64_t e = 0; e < got.size(); ++e) ASSERT_LE(std::fabs(got[e] - want[e]), bound[e]) << "case " << i;
    for (int64_t e = 0; e < left.size(); ++e) ASSERT_EQ(left[e], past[e]) << "case " << i << ", state";
  }
}

/// Inputs that begin where the past ends, with rows of another length: they are no continuation of its rows.
TEST_P(State, ConvolutionOfOverlappingInputs) {
  constexpr int64_t channels = 40, n = 5, past = 3;
  Random random(9);
  const Array<1> numbers(random, DType::kF32, {past + channels * n}, Values::kOrdinary, Strides::kInput);
  const Array<2> weight(random, DType::kF32, {channels, past + 1}, Values::kOrdinary, Strides::kInput);
  const Array<3> out(random, DType::kF32, {1, channels, n}), want = out.like(random);
  const float* const first = static_cast<const float*>(numbers.view.data);
  const std::vector<float> before(first, first + channels * past), x(first + past, first + past + channels * n);
  CausalConvProblem p;
  p.weight = weight.view;
  p.state_in = view(first, {1, channels, past});
  p.x = view(first + past, {1, channels, n});
  p.out = out.view;
  ASSERT_TRUE(causal_conv(p, exec()).ok());
  p.state_in = view(before.data(), {1, channels, past});
  p.x = view(x.data(), {1, channels, n});
  p.out = want.view;
  ASSERT_TRUE(causal_conv(p, exec()).ok());
  EXPECT_EQ(difference(want, out), "");
}

/// A decay of -inf clears a state, whatever it holds; a large one makes it infinite.
TEST_P(State, Decays) {
  for (const LinearRule rule : {LinearRule::kGated, LinearRule::kGatedDelta}) {
    for (const float old : {1.0f, kInf, -kInf, kNaN}) {
      Random random(4);
      const int64_t n = 5, d = 40;
      const Problem a(random, rule, 1, n, d, d, Values::kOrdinary, false),
          b(random, rule, 1, n, d, d, Values::kOrdinary, false);
      LinearAttentionProblem first = a.p, second = b.p;
      float decays[n] = {-0.5f, -1, -kInf, -0.25f, 0};
      first.decay = second.decay = view(decays, {1, 1, n, 1});
      second.q = first.q, second.k = first.k, second.v = first.v, second.beta = first.beta;
      for_each_element(a.state.view, [&](int64_t at) { put(a.state.view.data, DType::kF32, at, old); });
      b.state.fill(random, Values::kSpecial);
      ASSERT_TRUE(run(first).ok() && run(second).ok());
      EXPECT_EQ(difference(a.state, b.state), "") << "what was before shows";
      for (const auto [t, j] : indices(n, d)) {
        EXPECT_TRUE(t < 2 || std::isfinite(a.out.get_at({0, 0, t, j}))) << t;
      }
    }
  }
  Random random(5);
  const Problem a(random, LinearRule::kGated, 1, 1, 3, 3, Values::kOrdinary, false);
  const float grows = 88;
  LinearAttentionProblem p = a.p;
  p.decay = view(&grows, {1, 1, 1, 1});
  a.state.set_at({0, 0, 1, 1}, -2);
  ASSERT_TRUE(run(p).ok());
  EXPECT_EQ(a.state.get_at({0, 0, 1, 1}), -kInf);
}

/// Where docs/semantics.md says that a NaN goes.
TEST_P(State, NaNs) {
  constexpr int64_t d_k = 5, d_v = 70, row = 3, column = 66;
  for (const LinearRule rule : {LinearRule::kGated, LinearRule::kGatedDelta}) {
    const bool delta = rule == LinearRule::kGatedDelta;
    for (const std::string where : {"q", "k", "v", "decay", "beta", "state"}) {
      if (where == "beta" && !delta) continue;
      Random random(7);
      const Problem a(random, rule, 2, 1, d_k, d_v, Values::kOrdinary, true);
      for_each_element(a.decay.view, [&](int64_t at) { put(a.decay.view.data, a.decay.view.dtype, at, -0.5f); });
      if (where == "q") a.q.set_at({0, 1, 0, row}, kNaN);
      if (where == "k") a.k.set_at({0, 1, 0, row}, kNaN);
      if (where == "v") a.v.set_at({0, 1, 0, column}, kNaN);
      if (where == "decay") a.decay.set_at({0, 1, 0, row}, kNaN);
      if (where == "beta") a.beta.set_at({0, 1, 0, 0}, kNaN);
      if (where == "state") a.state.set_at({0, 1, row, column}, kNaN);
      ASSERT_TRUE(run(a.p).ok());
      const bool of_column = where == "v" || where == "state";
      for (const auto [h, i, j] : indices(2, d_k, d_v)) {
        const bool whole = delta && !of_column, whole_column = of_column && (delta || where == "v");
        const bool want = h == 1 && where != "q" &&
                          (whole || (whole_column ? j == column : i == row && (where != "state" || j == column)));
        EXPECT_EQ(std::isnan(a.state.get_at({0, h, i, j})), want) << where << ", row " << i << ", column " << j;
      }
      for (const auto [h, j] : indices(2, d_v)) {
        EXPECT_EQ(std::isnan(a.out.get_at({0, h, 0, j})), h == 1 && (!of_column || j == column)) << where << j;
      }
    }
  }
}

/// The default scale is one number for all functions: docs/numerics.md.
TEST_P(State, DefaultScale) {
  for (int64_t d = 1; d <= 300; ++d) {
    std::vector<float> one(static_cast<size_t>(d)), past(one.size());
    one[0] = 1;
    float out[5] = {};
    const auto row = view(static_cast<const float*>(one.data()), {1, 1, 1, d});
    const auto number = [&](int64_t i) { return view(out + i, {1, 1, 1, 1}); };
    LinearAttentionProblem linear;
    linear.rule = LinearRule::kLinear;
    linear.q = linear.k = row;
    linear.v = view(static_cast<const float*>(one.data()), {1, 1, 1, 1});
    linear.state = view(past.data(), {1, 1, d, 1});
    linear.out = number(0);
    AttentionProblem problem;
    problem.q = row;
    problem.k = problem.v = ConstView<4>(row);
    problem.acc = view(past.data(), {1, 1, 1, d});
    problem.max = view(out + 1, {1, 1, 1});
    problem.sum = view(out + 2, {1, 1, 1});
    std::vector<char> memory(std::max({linear_attention_workspace(linear), attention_workspace(problem),
                                       index_scores_workspace(Arithmetic::kF32, 1, d)}));
    const Exec with = {.target = &target(), .workspace = memory.data(), .workspace_bytes = memory.size()};
    ASSERT_TRUE(linear_attention(linear, with).ok());
    ASSERT_TRUE(attention(problem, with).ok());
    ASSERT_TRUE(scores(row, row, number(3), {}, with).ok());
    ASSERT_TRUE(index_scores(row, row, {}, number(4), {}, with).ok());
    const float want = 1.0f / std::sqrt(static_cast<float>(d));
    for (const int64_t i : {0, 1, 3, 4}) EXPECT_EQ(out[i], want) << "function " << i << ", d " << d;
  }
}

/// Callers whose structs end before the newest members; what stands behind them is not looked at.
TEST_P(State, OlderStructs) {
  Random random(8);
  const Problem a(random, LinearRule::kGatedDelta, 1, 3, 20, 20, Values::kOrdinary, false);
  const Array<4> state = a.state.with(random, Strides::kOutput), out = a.out.like(random);
  ASSERT_TRUE(run(a.p).ok());
  LinearAttentionProblem older = a.p;
  older.state = state.view, older.out = out.view;
  older.state_in = a.q.view;
  older.struct_size = offsetof(LinearAttentionProblem, state_in);
  ASSERT_TRUE(run(older).ok());
  EXPECT_EQ(difference(a.state, state), "");
  EXPECT_EQ(difference(a.out, out), "");
  older.struct_size -= 8;
  EXPECT_EQ(run(older).code, Code::kStructSize);
  const Array<3> x(random, DType::kF32, {1, 5, 3}, Values::kOrdinary, Strides::kInput),
      y(random, DType::kF32, {1, 5, 3});
  const Array<2> weight(random, DType::kF32, {5, 1}, Values::kOrdinary, Strides::kInput);
  CausalConvProblem conv;
  conv.x = conv.state_in = x.view, conv.out = y.view, conv.weight = weight.view, conv.out_transposed = true;
  conv.struct_size = offsetof(CausalConvProblem, state_in);
  EXPECT_TRUE(causal_conv(conv, exec()).ok());
  conv.struct_size -= 8;
  EXPECT_EQ(causal_conv(conv, exec()).code, Code::kStructSize);
}

/// Tasks on threads.
TEST_P(State, Threads) {
  Random random(6);
  const Problem a(random, LinearRule::kGatedDelta, 3, 50, 33, 150, Values::kOrdinary, true);
  const Array<4> state = a.state.with(random, Strides::kOutput), out = a.out.like(random);
  LinearAttentionProblem p = a.p;
  p.state = state.view;
  p.out = out.view;
  ASSERT_TRUE(run(a.p).ok());
  const int64_t tasks = linear_attention_tasks(p);
  ASSERT_EQ(tasks, 3 * 3);
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<char> memory(linear_attention_workspace(p));
      const Exec exec = {.target = &target(), .workspace = memory.data(), .workspace_bytes = memory.size()};
      EXPECT_TRUE(linear_attention_range(p, tasks * t / 4, tasks * (t + 1) / 4, exec).ok());
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(difference(a.out, out), "");
  EXPECT_EQ(difference(a.state, state), "");
}

SIMDATTN_FOR_EACH_TARGET(State);

}  // namespace
}  // namespace simdattn::test
