// Gaussian, bilinear and additive scores: against the float64 formulas within the published bounds, bit by bit between
// targets, with every wrong argument, and what they are used for: before the same softmax and weighted values.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "simdattn/extras.h"
#include "tests/support/bounds.h"
#include "tests/support/indices.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

/// Largest |got - want| in units of allowance(i), and the gaps of the output.
template <class F>
std::string compare(const Array<4>& got, const reference::Tensor& want, F&& allowance) {
  std::string problem;
  int64_t i = 0;
  for_each_element(got.view, [&](int64_t at) {
    const double g = static_cast<double>(get(got.view.data, got.view.dtype, at));
    if (problem.empty() && !(std::fabs(g - want[i]) <= allowance(i))) {
      char text[160];
      std::snprintf(text, sizeof text, "element %lld: %.9g, formula %.17g, allowed %.3g", static_cast<long long>(i), g,
                    want[i], allowance(i));
      problem = text;
    }
    ++i;
  });
  return problem.empty() && !got.gaps_intact() ? "bytes between the elements of an output were written" : problem;
}

std::string difference(const Array<4>& want, const Array<4>& got) {
  if (!want.gaps_intact() || !got.gaps_intact()) return "bytes between the elements of an output were written";
  const std::vector<uint64_t> w = want.bits(), g = got.bits();
  for (size_t i = 0; i < w.size(); ++i) {
    if (w[i] == g[i]) continue;
    char text[120];
    std::snprintf(text, sizeof text, "element %zu: %08llx, expected %08llx", i, static_cast<unsigned long long>(g[i]),
                  static_cast<unsigned long long>(w[i]));
    return text;
  }
  return "";
}

struct Shapes {
  int64_t batch, kv_heads, heads, n_q, n_kv, d_q, d_k, d;
  explicit Shapes(Random& random)
      : batch(random.integer(1, 2)),
        kv_heads(random.integer(1, 3)),
        heads(kv_heads * random.integer(1, 4)),
        n_q(random.coin() ? 1 : random.integer(0, 19)),
        n_kv(random.one_in(8) ? random.integer(120, 300) : random.size(0, 40)),
        d_q(random.size(1, 90)),
        d_k(random.size(1, 90)),
        d(random.size(1, 90)) {
    if (n_kv > 100) d_q = std::min<int64_t>(d_q, 20), d_k = std::min<int64_t>(d_k, 20), d = std::min<int64_t>(d, 20);
    if (!random.one_in(10)) return;
    // Both sides of what the drivers cut: 256 rows of a matrix; 8192 elements of query rows, 8 rows at a time.
    batch = 1;
    n_kv = std::min<int64_t>(n_kv, 5);
    if (random.coin()) {
      d_q = random.of<int64_t>({255, 256, 257, 511, 512, 513, 600});
      d_k = random.of<int64_t>({31, 257, 300});
    } else {
      d = random.of<int64_t>({1024, 1025, 1366, 4096, 4097, 8192, 8193, 8200});
      d_q = d_k = 5;
      n_q = std::min<int64_t>(n_q, 9);
    }
  }
  std::array<int64_t, 4> q(int64_t dim) const { return {batch, heads, n_q, dim}; }
  std::array<int64_t, 4> k(int64_t dim) const { return {batch, kv_heads, n_kv, dim}; }
  std::array<int64_t, 4> out() const { return {batch, heads, n_q, n_kv}; }
  std::string text() const {
    std::string result = "shapes";
    for (const int64_t n : {batch, kv_heads, heads, n_q, n_kv, d_q, d_k, d}) result += " " + std::to_string(n);
    return result;
  }
};

Array<4> input(Random& random, const std::array<int64_t, 4>& shape, Values values) {
  Array<4> result(random, random.storage(), shape, values, Strides::kInput);
  return result;
}
template <size_t kRank>
Array<static_cast<int>(kRank)> weights(Random& random, const int64_t (&shape)[kRank], Values values, DType dtype) {
  Array<static_cast<int>(kRank)> result(random, dtype, std::to_array(shape), values, Strides::kInput);
  return result;
}

/// Exactly the workspace that a function asks for, at any alignment and against a guard page.
struct Scratch {
  Guarded memory;
  Exec exec;
  Scratch(Random& random, const Target& target, size_t bytes) : memory(bytes, random.guard()) {
    exec = {.target = &target, .workspace = memory.data(), .workspace_bytes = bytes};
  }
};

class ScoreFunctions : public TargetTest {
 protected:
  static Costs cost() { return costs(target()); }
  /// The target whose bits are expected; where there is no fused multiply-add, other strides must not matter.
  static const Target& other() { return counterpart(target()); }
  static Values values(Random& random) {
    return random.of({Values::kOrdinary, Values::kWide, Values::kSpecial, Values::kHuge});
  }
};

TEST_P(ScoreFunctions, GaussianFormula) {
  Random random(seed() * 3000 + 1);
  for (int64_t i = 0; i < cases(100); ++i) {
    const Shapes s(random);
    const Array<4> q = input(random, s.q(s.d), Values::kOrdinary), k = input(random, s.k(s.d), Values::kOrdinary);
    Array<4> out(random, DType::kF32, s.out(), Strides::kOutput);
    Optional<float> scale;
    if (random.coin()) scale = 4 * random.uniform();
    ASSERT_TRUE(ok(gaussian_scores(q.view, k.view, out.view, {.scale = scale}, exec())));
    reference::Tensor want = reference::gaussian_scores(reference::read(q.view), reference::read(k.view));
    for (double& x : want.data) x *= static_cast<double>(scale.value_or(1.0f));
    const double roundings = cost().fma * std::ceil(static_cast<double>(s.d) / 16) + 7;
    ASSERT_EQ(compare(out, want, [&](int64_t e) { return roundings * kEps * std::fabs(want[e]); }), "") << s.text();
  }
}

TEST_P(ScoreFunctions, BilinearFormula) {
  Random random(seed() * 3000 + 2);
  for (int64_t i = 0; i < cases(60); ++i) {
    Shapes s(random);
    if (s.d_q > 250 && s.d_k > 250) s.heads = s.kv_heads;
    const Array<4> q = input(random, s.q(s.d_q), Values::kOrdinary), k = input(random, s.k(s.d_k), Values::kOrdinary);
    const Array<3> m = weights(random, {s.heads, s.d_q, s.d_k}, Values::kOrdinary, random.storage());
    Array<4> out(random, DType::kF32, s.out(), Strides::kOutput);
    Optional<float> scale;
    if (random.coin()) scale = 4 * random.uniform();
    const Scratch scratch(random, target(), bilinear_scores_workspace(s.d_q, s.d_k));
    ASSERT_TRUE(ok(bilinear_scores(q.view, m.view, k.view, out.view, {.scale = scale}, scratch.exec)));
    const double factor = static_cast<double>(scale.value_or(1.0f));
    reference::Tensor magnitude;
    reference::Tensor want = reference::bilinear_scores(reference::read(q.view), reference::read(m.view),
                                                        reference::read(k.view), &magnitude);
    for (double& x : want.data) x *= factor;
    const double roundings = cost().fma * (static_cast<double>(s.d_q) + std::ceil(static_cast<double>(s.d_k) / 16)) + 5;
    ASSERT_EQ(compare(out, want, [&](int64_t e) { return roundings * kEps * std::fabs(factor) * magnitude[e]; }), "")
        << s.text();
  }
}

TEST_P(ScoreFunctions, AdditiveFormula) {
  Random random(seed() * 3000 + 3);
  for (int64_t i = 0; i < cases(60); ++i) {
    const Shapes s(random);
    const bool project_q = random.coin(), project_k = random.coin();
    const int64_t d_q = project_q ? s.d_q : 0, d_k = project_k ? s.d_k : 0;
    const Array<4> q = input(random, s.q(project_q ? d_q : s.d), Values::kOrdinary);
    const Array<4> k = input(random, s.k(project_k ? d_k : s.d), Values::kOrdinary);
    const Array<2> w = weights(random, {s.heads, s.d}, Values::kOrdinary, DType::kF32);
    const Array<3> wq = weights(random, {s.heads, s.d, d_q}, Values::kOrdinary, random.storage());
    const Array<3> wk = weights(random, {s.kv_heads, s.d, d_k}, Values::kOrdinary, random.storage());
    Array<4> out(random, DType::kF32, s.out(), Strides::kOutput);
    const ConstView<3> absent;
    const Scratch scratch(random, target(), additive_scores_workspace(d_q, d_k, s.d));
    ASSERT_TRUE(ok(additive_scores(q.view, k.view, w.view, out.view, project_q ? ConstView<3>(wq.view) : absent,
                                   project_k ? ConstView<3>(wk.view) : absent, scratch.exec)));
    const reference::Tensor tq = reference::read(q.view), tk = reference::read(k.view), tw = reference::read(w.view);
    const reference::Tensor twq = reference::read(wq.view), twk = reference::read(wk.view);
    const reference::Tensor a = project_q ? reference::project(tq, twq) : tq;
    const reference::Tensor b = project_k ? reference::project(tk, twk) : tk;
    const reference::Tensor want = reference::additive_scores(a, b, tw);
    // sum_e |w_e|, and what the projections bring along: tanh does not let an error grow.
    const auto absolute = [](reference::Tensor t) {
      for (double& x : t.data) x = std::fabs(x);
      return t;
    };
    const reference::Tensor aq = project_q ? reference::project(absolute(tq), absolute(twq)) : tq;
    const reference::Tensor ak = project_k ? reference::project(absolute(tk), absolute(twk)) : tk;
    const double n = static_cast<double>(s.d);
    const double own = cost().fma * std::ceil(n / 16) + 7 + (cost().tanh - 4) / 2;
    const double of_q = project_q ? cost().fma * std::ceil(static_cast<double>(d_q) / 16) + 5 : 0;
    const double of_k = project_k ? cost().fma * std::ceil(static_cast<double>(d_k) / 16) + 5 : 0;
    const int64_t group = s.heads / s.kv_heads;
    std::vector<double> allowed;
    for (const auto [bb, h, r, j] : indices(s.batch, s.heads, s.n_q, s.n_kv)) {
      double sum = 0;
      for (int64_t e = 0; e < s.d; ++e) {
        double term = own;
        if (project_q) term += of_q * aq.at({bb, h, r, e});
        if (project_k) term += of_k * ak.at({bb, h / group, j, e});
        sum += std::fabs(tw.at({h, e})) * term;
      }
      allowed.push_back(kEps * sum);
    }
    ASSERT_EQ(compare(out, want, [&](int64_t e) { return allowed[static_cast<size_t>(e)]; }), "")
        << s.text() << " projections " << project_q << project_k;
  }
}

TEST_P(ScoreFunctions, Bits) {
  Random random(seed() * 3000 + 4);
  for (int64_t i = 0; i < cases(250); ++i) {
    const Shapes s(random);
    const Values kind = values(random);
    const int which = static_cast<int>(random.integer(0, 2));
    const bool project_q = which == 2 && random.coin(), project_k = which == 2 && random.coin();
    const int64_t d_q = which == 1 || project_q ? s.d_q : s.d, d_k = which == 1 || project_k ? s.d_k : s.d;
    const Array<4> q = input(random, s.q(d_q), kind), k = input(random, s.k(d_k), kind);
    const Array<3> m = weights(random, {s.heads, which == 1 ? d_q : 0, d_k}, kind, random.storage());
    const Array<3> wq = weights(random, {s.heads, project_q ? s.d : 0, d_q}, kind, random.storage());
    const Array<3> wk = weights(random, {s.kv_heads, project_k ? s.d : 0, d_k}, kind, random.storage());
    const Array<2> w = weights(random, {s.heads, s.d}, kind, DType::kF32);
    const Optional<float> scale = random.coin() ? Optional<float>() : number(random, Values::kWide);
    const ConstView<3> absent;
    const auto run = [&](const ConstView<4>& from_q, const ConstView<4>& from_k, const Array<4>& out,
                         const Target& t) -> Status {
      const Scratch scratch(random, t,
                            which == 1 ? bilinear_scores_workspace(d_q, d_k)
                                       : additive_scores_workspace(project_q ? d_q : 0, project_k ? d_k : 0, s.d));
      if (which == 0) return gaussian_scores(from_q, from_k, out.view, {.scale = scale}, {.target = &t});
      if (which == 1) return bilinear_scores(from_q, m.view, from_k, out.view, {.scale = scale}, scratch.exec);
      return additive_scores(from_q, from_k, w.view, out.view, project_q ? ConstView<3>(wq.view) : absent,
                             project_k ? ConstView<3>(wk.view) : absent, scratch.exec);
    };
    Array<4> want(random, DType::kF32, s.out(), Strides::kOutput), got(random, DType::kF32, s.out(), Strides::kOutput);
    const Array<4> q2 = q.with(random, Strides::kOutput), k2 = k.with(random, Strides::kOutput);
    ASSERT_TRUE(ok(run(q.view, k.view, want, other())));
    ASSERT_TRUE(run(q2.view, k2.view, got, target()).ok());
    ASSERT_EQ(difference(want, got), "") << "function " << which << ", " << s.text();
  }
}

/// 16-bit query rows beyond the stack buffer take another way to the same bits.
TEST_P(ScoreFunctions, LongRows) {
  if (!is_exact()) GTEST_SKIP() << "the long way is the definition's";
  Random random(seed() * 3000 + 5);
  constexpr int64_t kDim = 8200;
  Array<4> q(random, DType::kBF16, {1, 2, 2, kDim}, Values::kOrdinary),
      k(random, DType::kF16, {1, 1, 3, kDim}, Values::kOrdinary);
  Array<4> q32(random, DType::kF32, {1, 2, 2, kDim});
  for_each_element(q.view,
                   [&](int64_t at) { put(q32.view.data, DType::kF32, at, get(q.view.data, DType::kBF16, at)); });
  const Array<2> w = weights(random, {2, kDim}, Values::kOrdinary, DType::kF32);
  for (const int which : {0, 1, 2}) {
    Array<4> a(random, DType::kF32, {1, 2, 2, 3}), b(random, DType::kF32, {1, 2, 2, 3});
    for (const bool narrow : {true, false}) {
      const ConstView<4> from = narrow ? q.view : q32.view;
      const View<4> out = narrow ? a.view : b.view;
      ASSERT_TRUE(ok(which == 0   ? scores(from, k.view, out, {}, exec())
                     : which == 1 ? gaussian_scores(from, k.view, out, {}, exec())
                                  : additive_scores(from, k.view, w.view, out, {}, {}, exec())));
    }
    ASSERT_EQ(difference(a, b), "") << "function " << which;
  }
}

TEST_P(ScoreFunctions, NaNIsCanonical) {
  const float nan = std::bit_cast<float>(0xFFC12345u), inf = std::numeric_limits<float>::infinity();
  for (const float x : {nan, inf}) {
    const float q[1] = {x}, k[1] = {x};
    const float w[1] = {1.0f}, m[1] = {nan};
    float out[1] = {0};
    alignas(64) char memory[4096];
    const Exec e = {.target = &target(), .workspace = memory, .workspace_bytes = sizeof memory};
    const auto bits = [&] { return std::bit_cast<uint32_t>(out[0]); };
    ASSERT_TRUE(gaussian_scores(view(q, {1, 1, 1, 1}), view(k, {1, 1, 1, 1}), view(out, {1, 1, 1, 1}), {}, e).ok());
    EXPECT_EQ(bits(), 0x7FC00000u) << x;
    ASSERT_TRUE(bilinear_scores(view(q, {1, 1, 1, 1}), view(m, {1, 1, 1}), view(k, {1, 1, 1, 1}),
                                view(out, {1, 1, 1, 1}), {}, e)
                    .ok());
    EXPECT_EQ(bits(), 0x7FC00000u) << x;
    ASSERT_TRUE(additive_scores(view(q, {1, 1, 1, 1}), view(k, {1, 1, 1, 1}), view(w, {1, 1}), view(out, {1, 1, 1, 1}),
                                {}, {}, e)
                    .ok());
    EXPECT_EQ(bits(), x == inf ? 0x3F800000u : 0x7FC00000u) << x;  // tanh(inf) = 1
  }
}

/// Where the functions say the same: M = identity, and the expanded square.
TEST_P(ScoreFunctions, AgreeWhereTheyCoincide) {
  Random random(seed() * 3000 + 6);
  const int64_t n = 5, d = 24;
  Array<4> q(random, DType::kF32, {1, 2, n, d}, Values::kOrdinary),
      k(random, DType::kF32, {1, 2, n, d}, Values::kOrdinary);
  Array<4> dot(random, DType::kF32, {1, 2, n, n}), other(random, DType::kF32, {1, 2, n, n});
  ASSERT_TRUE(scores(q.view, k.view, dot.view, {.scale = 1.0f}, exec()).ok());
  // M = identity is the dot product, to the bit: every chain has one term that is not zero.
  std::vector<float> identity(static_cast<size_t>(d * d));
  for (int64_t i = 0; i < d; ++i) identity[static_cast<size_t>(i * d + i)] = 1.0f;
  const Scratch scratch(random, target(), bilinear_scores_workspace(d, d));
  const ConstView<3> m = view(identity.data(), {2, d, d}, {0, d, 1});
  ASSERT_TRUE(bilinear_scores(q.view, m, k.view, other.view, {}, scratch.exec).ok());
  EXPECT_EQ(difference(dot, other), "");
  // -0.5 |q - k|^2 = q k - 0.5 |q|^2 - 0.5 |k|^2.
  ASSERT_TRUE(gaussian_scores(q.view, k.view, other.view, {}, exec()).ok());
  for (const auto [h, i, j] : indices(2, n, n)) {
    double norms = 0;
    for (int64_t c = 0; c < d; ++c) norms += std::pow(q.get_at({0, h, i, c}), 2) + std::pow(k.get_at({0, h, j, c}), 2);
    EXPECT_NEAR(other.get_at({0, h, i, j}), static_cast<double>(dot.get_at({0, h, i, j})) - 0.5 * norms, 1e-5);
  }
  // Where q = k the kernel is at its maximum, 0.
  Array<4> self(random, DType::kF32, {1, 2, n, n});
  ASSERT_TRUE(gaussian_scores(k.view, k.view, self.view, {}, exec()).ok());
  for (int64_t i = 0; i < n; ++i) EXPECT_EQ(self.get_at({0, 1, i, i}), 0.0f);
}

/// Nadaraya-Watson regression, by hand: keys 0, 1, 2 with values 10, 20, 40, query 0.5.
TEST_P(ScoreFunctions, KernelRegression) {
  const float q[1] = {0.5f}, k[3] = {0, 1, 2}, v[3] = {10, 20, 40};
  float s[3], p[3], out[1];
  ASSERT_TRUE(gaussian_scores(view(q, {1, 1, 1, 1}), view(k, {1, 1, 3, 1}), view(s, {1, 1, 1, 3}), {}, exec()).ok());
  EXPECT_EQ(s[0], -0.125f);
  EXPECT_EQ(s[1], -0.125f);
  EXPECT_EQ(s[2], -1.125f);
  ASSERT_TRUE(softmax(view(s, {1, 3}), view(p, {1, 3}), {}, exec()).ok());
  ASSERT_TRUE(weighted_values(view(p, {1, 1, 1, 3}), view(v, {1, 1, 3, 1}), view(out, {1, 1, 1, 1}), {}, exec()).ok());
  const double e = std::exp(-1.0);
  EXPECT_NEAR(out[0], (10 + 20 + 40 * e) / (2 + e), 1e-5);
  // A narrow kernel is a look-up of the nearest key.
  const float near[1] = {0.9f};
  ASSERT_TRUE(
      gaussian_scores(view(near, {1, 1, 1, 1}), view(k, {1, 1, 3, 1}), view(s, {1, 1, 1, 3}), {.scale = 1e4f}, exec())
          .ok());
  ASSERT_TRUE(softmax(view(s, {1, 3}), view(p, {1, 3}), {}, exec()).ok());
  ASSERT_TRUE(weighted_values(view(p, {1, 1, 1, 3}), view(v, {1, 1, 3, 1}), view(out, {1, 1, 1, 1}), {}, exec()).ok());
  EXPECT_EQ(out[0], 20.0f);
}

/// Bahdanau's formula by hand, projections inside and outside.
TEST_P(ScoreFunctions, AdditiveByHand) {
  const float s_prev[2] = {1, -2}, h[2 * 3] = {0.5f, 0, 1, -1, 2, 0.25f};
  const float wq[2 * 2] = {0.5f, 0.25f, -1, 1}, wk[2 * 3] = {1, 0, 0.5f, 0, -0.5f, 2}, w[2] = {2, -1};
  float out[2];
  alignas(64) char memory[16384];
  ASSERT_LE(additive_scores_workspace(2, 3, 2), sizeof memory);
  const Exec e = {.target = &target(), .workspace = memory, .workspace_bytes = sizeof memory};
  ASSERT_TRUE(additive_scores(view(s_prev, {1, 1, 1, 2}), view(h, {1, 1, 2, 3}), view(w, {1, 2}),
                              view(out, {1, 1, 1, 2}), view(wq, {1, 2, 2}), view(wk, {1, 2, 3}), e)
                  .ok());
  // Wq s = (0, -3); Wk h = (1, 2) and (-0.875, -0.5).
  EXPECT_NEAR(out[0], 2 * std::tanh(1.0) - std::tanh(-1.0), 1e-6);
  EXPECT_NEAR(out[1], 2 * std::tanh(-0.875) - std::tanh(-3.5), 1e-6);
}

/// Equal scores are mean pooling, a one-hot row is a hard look-up.
TEST_P(ScoreFunctions, MeanPoolingAndHardLookup) {
  Random random(seed() * 3000 + 7);
  const int64_t n = 8, d = 40;
  Array<4> v(random, DType::kF32, {1, 1, n, d}, Values::kOrdinary), out(random, DType::kF32, {1, 1, 1, d});
  std::vector<float> s(static_cast<size_t>(n), -3.25f), p(static_cast<size_t>(n));
  ASSERT_TRUE(softmax(view(s.data(), {1, n}), view(p.data(), {1, n}), {}, exec()).ok());
  for (const float x : p) EXPECT_EQ(x, 0.125f);
  ASSERT_TRUE(weighted_values(view(p.data(), {1, 1, 1, n}), v.view, out.view, {}, exec()).ok());
  for (int64_t c = 0; c < d; ++c) {
    double mean = 0;
    for (int64_t j = 0; j < n; ++j) mean += static_cast<double>(v.get_at({0, 0, j, c})) / static_cast<double>(n);
    EXPECT_NEAR(out.get_at({0, 0, 0, c}), mean, 1e-6);
  }
  // One score far above the others: the value to the bit, and nothing of a NaN elsewhere.
  s.assign(s.size(), -1e4f);
  s[5] = 1.0f;
  ASSERT_TRUE(softmax(view(s.data(), {1, n}), view(p.data(), {1, n}), {}, exec()).ok());
  for (int64_t j = 0; j < n; ++j) EXPECT_EQ(p[static_cast<size_t>(j)], j == 5 ? 1.0f : 0.0f);
  v.set_at({0, 0, 2, 7}, std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(weighted_values(view(p.data(), {1, 1, 1, n}), v.view, out.view, {}, exec()).ok());
  for (int64_t c = 0; c < d; ++c) EXPECT_EQ(out.get_at({0, 0, 0, c}), v.get_at({0, 0, 5, c}));
}

TEST(ScoreFunctionRules, BadCallsNameTheArgument) {
  struct Call {
    std::vector<float> memory = std::vector<float>(4096, 1.0f);
    std::vector<float> result = std::vector<float>(64, 7.0f);
    std::vector<char> space = std::vector<char>(65536);
    ConstView<4> q = view(memory.data(), {1, 4, 2, 6}), k = view(memory.data(), {1, 2, 3, 6});
    ConstView<3> m = view(memory.data(), {4, 6, 6}), wq, wk;
    ConstView<2> w = view(memory.data(), {4, 6});
    View<4> out = view(result.data(), {1, 4, 2, 3});
    Optional<float> scale;
    Arithmetic arithmetic = Arithmetic::kF32;
    Exec exec = {.target = targets().back(), .workspace = space.data(), .workspace_bytes = space.size()};
  };
  enum Which { kGaussian = 1, kBilinear = 2, kAdditive = 4, kAll = 7 };
  const auto check = [](int which, Code code, const char* detail, auto&& change) {
    for (const int f : {kGaussian, kBilinear, kAdditive}) {
      if ((which & f) == 0) continue;
      Call c;
      const auto run = [&] {
        const ScoreOptions options = {.scale = c.scale, .arithmetic = c.arithmetic};
        if (f == kGaussian) return gaussian_scores(c.q, c.k, c.out, options, c.exec);
        if (f == kBilinear) return bilinear_scores(c.q, c.m, c.k, c.out, options, c.exec);
        return additive_scores(c.q, c.k, c.w, c.out, c.wq, c.wk, c.exec);
      };
      ASSERT_TRUE(run().ok()) << run().detail;
      c.result.assign(c.result.size(), 7.0f);
      change(c);
      const std::vector<float> before = c.result;
      const Status s = run();
      EXPECT_EQ(s.code, code) << f << ": " << s.detail;
      EXPECT_NE(std::strstr(s.detail, detail), nullptr) << f << ": " << s.detail << " does not say " << detail;
      EXPECT_EQ(c.result, before);
    }
  };
  check(kAll, Code::kNullPointer, "q.data", [](Call& c) { c.q.data = nullptr; });
  check(kAll, Code::kNullPointer, "k.data", [](Call& c) { c.k.data = nullptr; });
  check(kAll, Code::kNullPointer, "out.data", [](Call& c) { c.out.data = nullptr; });
  check(kAll, Code::kDType, "q.dtype", [](Call& c) { c.q.dtype = DType::kI32; });
  check(kAll, Code::kDType, "out.dtype", [](Call& c) { c.out.dtype = DType::kF16; });
  check(kAll, Code::kShape, "k.shape[0]", [](Call& c) { c.k.shape[0] = 2; });
  check(kAll, Code::kShape, "k.shape[1]", [](Call& c) { c.k.shape[1] = 0; });
  check(kAll, Code::kShape, "q.shape[1]", [](Call& c) { c.k.shape[1] = 3; });
  check(kAll, Code::kShape, "out.shape", [](Call& c) { c.out.shape[3] = 2; });
  check(kGaussian | kAdditive, Code::kShape, "k.shape[3]", [](Call& c) { c.k.shape[3] = 5; });
  check(kAll, Code::kShape, "q.shape[3]", [](Call& c) { c.q.shape[3] = 0; });
  check(kAll, Code::kStride, "q.stride", [](Call& c) { c.q.stride[3] = 2; });
  check(kAll, Code::kStride, "out.stride", [](Call& c) { c.out.stride[1] = 0; });
  check(kAll, Code::kOverlap, "out: overlaps q", [](Call& c) { c.q.data = c.out.data; });
  check(kAll, Code::kOverlap, "out: overlaps k", [](Call& c) { c.k.data = c.out.data; });
  check(kGaussian | kBilinear, Code::kRange, "scale", [](Call& c) { c.scale = std::nanf(""); });
  // They compute in f32 alone.
  for (const Arithmetic a : {Arithmetic::kBF16, Arithmetic::kInt8, static_cast<Arithmetic>(3)}) {
    check(kGaussian | kBilinear, Code::kRange, "options.arithmetic", [a](Call& c) { c.arithmetic = a; });
  }
  check(kBilinear, Code::kNullPointer, "m.data", [](Call& c) { c.m.data = nullptr; });
  check(kBilinear, Code::kShape, "m.shape", [](Call& c) { c.m.shape[1] = 5; });
  check(kBilinear, Code::kDType, "m.dtype", [](Call& c) { c.m.dtype = DType::kU8; });
  check(kBilinear, Code::kOverlap, "overlaps m", [](Call& c) { c.m.data = c.out.data; });
  check(kBilinear, Code::kWorkspace, "exec.workspace:", [](Call& c) { c.exec.workspace = nullptr; });
  check(kBilinear, Code::kWorkspace, "exec.workspace_bytes",
        [](Call& c) { c.exec.workspace_bytes = bilinear_scores_workspace(6, 6) - 1; });
  check(kAdditive, Code::kDType, "w.dtype", [](Call& c) { c.w.dtype = DType::kF16; });
  check(kAdditive, Code::kShape, "w.shape[0]", [](Call& c) { c.w.shape[0] = 2; });
  check(kAdditive, Code::kShape, "w.shape[1]", [](Call& c) { c.w.shape[1] = 0; });
  check(kAdditive, Code::kShape, "no wq", [](Call& c) { c.w.shape[1] = 5; });
  check(kAdditive, Code::kShape, "wq.shape", [](Call& c) { c.wq = view(c.memory.data(), {4, 6, 5}); });
  check(kAdditive, Code::kShape, "wk.shape", [](Call& c) { c.wk = view(c.memory.data(), {4, 6, 6}); });
  check(kAdditive, Code::kOverlap, "overlaps w", [](Call& c) { c.w.data = c.out.data; });
  check(kAdditive, Code::kOverlap, "overlaps wk",
        [](Call& c) { c.wk = view(const_cast<const float*>(c.result.data()), {2, 6, 6}, {0, 6, 1}); });
  check(kAdditive, Code::kWorkspace, "exec.workspace:", [](Call& c) {
    c.wk = view(c.memory.data(), {2, 6, 6});
    c.exec.workspace = nullptr;
  });
  check(kAdditive, Code::kWorkspace, "exec.workspace_bytes", [](Call& c) {
    c.wk = view(c.memory.data(), {2, 6, 6});
    c.exec.workspace_bytes = additive_scores_workspace(0, 6, 6) - 1;
  });
}

/// The largest integer sums of kInt8, of either sign; one dimension more is refused.
TEST_P(ScoreFunctions, Int8OfMostDimensions) {
  constexpr int64_t kDim = 131072, kRows = 9, kKeys = 35;
  Random random(seed() * 7000 + 40);
  const ScoreOptions options = {.scale = 1.0f, .arithmetic = Arithmetic::kInt8};
  const std::vector<float> x(kRows * (kDim + 1), 0.5f), minus(x.size(), -0.5f);
  std::vector<float> result(kRows * kKeys);
  const View<4> out = view(result.data(), {1, 1, kRows, kKeys});
  for (const float* keys : {x.data(), minus.data()}) {
    const ConstView<4> q = view(x.data(), {1, 1, kRows, kDim});
    const ConstView<4> k(keys, DType::kF32, {1, 1, kKeys, kDim}, {0, 0, 0, 1});
    ASSERT_TRUE(ok(run_scores(q, k, out, options, GetParam())));
    for (const float score : result) ASSERT_FLOAT_EQ(score, static_cast<float>(kDim) / 2 * keys[0]);
  }
  const ConstView<4> q = view(x.data(), {1, 1, kRows, kDim + 1});
  const Status s = run_scores(q, ConstView<4>(x.data(), DType::kF32, {1, 1, kKeys, kDim + 1}, {0, 0, 0, 1}), out,
                              options, GetParam());
  EXPECT_EQ(s.code, Code::kShape);
  EXPECT_EQ(std::string(s.detail).rfind("q.shape[3]", 0), 0u) << s.detail;
}

SIMDATTN_FOR_EACH_TARGET(ScoreFunctions);

}  // namespace
}  // namespace simdattn::test
