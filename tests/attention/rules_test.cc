// The rules S1 to S12 of docs/semantics.md, one by one. Each is stated for masked_softmax() on raw scores and for
// attention() with one key dimension: q = 1 and k = the score.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/attention/compare.h"
#include "tests/support/bounds.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

double to_double(float x) { return static_cast<double>(x); }

struct Row {
  std::vector<float> p;    // masked_softmax
  std::vector<float> out;  // attention
  float lse = 0;           // of masked_softmax
  float lse_fused = 0;
};

class Rules : public TargetTest {
 protected:
  /// One head, one query row over scores x; values [n][dim_v].
  static Row run(const std::vector<float>& x, const Scoring& scoring, const std::vector<float>& values,
                 int64_t dim_v = 1) {
    const int64_t n = static_cast<int64_t>(x.size());
    Row r;
    r.p.assign(x.size(), -7);
    r.out.assign(static_cast<size_t>(dim_v), -7);
    Status s = masked_softmax(view(x.data(), {1, 1, 1, n}), view(r.p.data(), {1, 1, 1, n}), scoring,
                              view(&r.lse, {1, 1, 1}), exec());
    EXPECT_TRUE(s.ok()) << s.detail;
    const float one = 1;
    AttentionProblem a;
    a.q = view(&one, {1, 1, 1, 1});
    a.k = view(x.data(), {1, 1, n, 1});
    a.v = view(values.data(), {1, 1, n, dim_v});
    a.out = view(r.out.data(), {1, 1, 1, dim_v});
    a.lse = view(&r.lse_fused, {1, 1, 1});
    a.scoring = scoring;
    s = run_attention(a, GetParam());
    EXPECT_TRUE(s.ok()) << s.detail;
    return r;
  }
  static void expect_zero(const std::vector<float>& v) {
    for (const float x : v) EXPECT_EQ(std::bit_cast<uint32_t>(x), 0u) << x;
  }
  static void expect_nan(const std::vector<float>& v) {
    for (const float x : v) EXPECT_EQ(std::bit_cast<uint32_t>(x), 0x7FC00000u) << x;
  }
};

TEST_P(Rules, S1_ScaleAndItsDefault) {
  const std::vector<float> q = {1, 2, 3, 4}, k = {1, 1, 1, 1, 2, 0, 0, 0};
  std::vector<float> s(2);
  ASSERT_TRUE(
      scores(view(q.data(), {1, 1, 1, 4}), view(k.data(), {1, 1, 2, 4}), view(s.data(), {1, 1, 1, 2}), {}, exec())
          .ok());
  EXPECT_EQ(s, (std::vector<float>{5, 1}));  // 10 / sqrt 4, 2 / sqrt 4
  ASSERT_TRUE(scores(view(q.data(), {1, 1, 1, 4}), view(k.data(), {1, 1, 2, 4}), view(s.data(), {1, 1, 1, 2}),
                     {.scale = -3.0f}, exec())
                  .ok());
  EXPECT_EQ(s, (std::vector<float>{-30, -6}));
  // attention() with the default scale over 4 dimensions: weights 1 / (1 + e^-4).
  const std::vector<float> v = {1, 0};
  float out = 0;
  AttentionProblem a;
  a.q = view(q.data(), {1, 1, 1, 4});
  a.k = view(k.data(), {1, 1, 2, 4});
  a.v = view(v.data(), {1, 1, 2, 1});
  a.out = view(&out, {1, 1, 1, 1});
  ASSERT_TRUE(run_attention(a, GetParam()).ok());
  EXPECT_NEAR(to_double(out), 1 / (1 + std::exp(-4.0)), 16 * kEps);
  // masked_softmax() takes scores as they are.
  EXPECT_NEAR(to_double(run({0, 1}, {}, {0, 0}).p[1]), 1 / (1 + std::exp(-1.0)), 16 * kEps);
}

TEST_P(Rules, S1_MaximumIsTakenAfterANegativeScale) {
  const Row r = run({-1000, 0, 1000}, {.scale = -1.0f}, {1, 2, 3});
  EXPECT_EQ(r.p, (std::vector<float>{1, 0, 0}));
  EXPECT_EQ(r.out[0], 1.0f);
  EXPECT_EQ(r.lse, 1000.0f);
  EXPECT_EQ(r.lse_fused, 1000.0f);
}

TEST_P(Rules, S2_SoftcapComesAfterScaleAndBeforeBias) {
  const float bias[] = {0, 5};
  Scoring s = {.scale = 2.0f, .softcap = 3.0f, .bias = view(bias, {1, 1, 1, 2})};
  const Row r = run({4, -1}, s, {1, 0});
  const double t0 = 3 * std::tanh(8.0 / 3), t1 = 3 * std::tanh(-2.0 / 3) + 5;
  const double want = 1 / (1 + std::exp(t1 - t0));
  EXPECT_NEAR(to_double(r.p[0]), want, 64 * kEps * want);
  EXPECT_NEAR(to_double(r.out[0]), want, 64 * kEps * want);
  const double lse = t0 + std::log1p(std::exp(t1 - t0));
  EXPECT_NEAR(to_double(r.lse), lse, 64 * kEps);
  EXPECT_NEAR(to_double(r.lse_fused), lse, 64 * kEps);
}

TEST_P(Rules, S3_AlibiCountsDistanceFromTheRowsPosition) {
  const float slope = 0.5f;
  // Position 1 of keys 0 .. 3: distances 1, 0, 1, 2, also for keys behind the row.
  const Row r = run({0, 0, 0, 0}, {.offset = 1, .alibi_slopes = &slope}, {1, 2, 3, 4});
  const double e[] = {std::exp(-0.5), 1, std::exp(-0.5), std::exp(-1.0)};
  const double sum = e[0] + e[1] + e[2] + e[3];
  for (size_t j = 0; j < 4; ++j) EXPECT_NEAR(to_double(r.p[j]), e[j] / sum, 32 * kEps) << j;
  EXPECT_NEAR(to_double(r.out[0]), (e[0] + 2 * e[1] + 3 * e[2] + 4 * e[3]) / sum, 128 * kEps);
}

TEST_P(Rules, S4_BiasInThreeTypesLargeNegativesAreNumbers) {
  const float f32[] = {0.5f, -kInf, -1.5f};
  const bf16 b16[] = {{0x3F00}, {0xFF80}, {0xBFC0}};
  const f16 h16[] = {{0x3800}, {0xFC00}, {0xBE00}};
  const double want = 1 / (1 + std::exp(-2.0));
  const ConstView<4> biases[] = {view(f32, {1, 1, 1, 3}), view(b16, {1, 1, 1, 3}), view(h16, {1, 1, 1, 3})};
  for (const ConstView<4>& bias : biases) {
    const Row r = run({1, 1, 1}, {.bias = bias}, {1, kNaN, 0});
    EXPECT_NEAR(to_double(r.p[0]), want, 32 * kEps);
    EXPECT_EQ(std::bit_cast<uint32_t>(r.p[1]), 0u);
    EXPECT_NEAR(to_double(r.out[0]), want, 32 * kEps);
  }
  // A row made only of -FLT_MAX or of -1e9 is an ordinary softmax.
  for (const float low : {-std::numeric_limits<float>::max(), -1e9f}) {
    const float all[] = {low, low, low, low};
    const Row r = run({0, 0, 0, 0}, {.bias = view(all, {1, 1, 1, 4})}, {1, 2, 3, 4});
    for (const float p : r.p) EXPECT_EQ(p, 0.25f);
    EXPECT_EQ(r.out[0], 2.5f);
    EXPECT_EQ(r.lse, low);
    EXPECT_EQ(r.lse_fused, low);
  }
}

TEST_P(Rules, S5_OnesAttend) {
  const uint8_t keep[] = {0, 1, 0, 255, 0};
  const uint8_t bits[] = {0b01010};
  Row r = run({1, 2, 3, 2, 5}, {.mask = view(keep, {1, 1, 1, 5})}, {10, 20, 30, 40, 50});
  EXPECT_EQ(r.p, (std::vector<float>{0, 0.5f, 0, 0.5f, 0}));
  EXPECT_EQ(r.out[0], 30.0f);
  r = run({1, 2, 3, 2, 5}, {.packed_mask = {.data = bits, .columns = 5}}, {10, 20, 30, 40, 50});
  EXPECT_EQ(r.p, (std::vector<float>{0, 0.5f, 0, 0.5f, 0}));
  EXPECT_EQ(r.out[0], 30.0f);
  // Fewer columns than keys: the tail of a tree; keys before it are visible.
  const uint8_t tail[] = {0b01};
  r = run({1, 1, 1, 1, 1}, {.packed_mask = {.data = tail, .columns = 2}}, {1, 2, 3, 4, 100});
  EXPECT_EQ(r.p, (std::vector<float>{0.25f, 0.25f, 0.25f, 0.25f, 0}));
  EXPECT_EQ(r.out[0], 2.5f);
}

TEST_P(Rules, S6_MaskedKeysHaveNoInfluence) {
  // Ways to mask key 2 of 4; what its bytes hold must not matter.
  const uint8_t keep[] = {1, 1, 0, 1};
  const uint8_t bits[] = {0b1011};
  const float bias[] = {0, 0, -kInf, 0};
  const std::vector<std::pair<const char*, Scoring>> ways = {
      {"keep", {.mask = view(keep, {1, 1, 1, 4})}},
      {"bits", {.packed_mask = {.data = bits, .columns = 4}}},
      {"bias", {.bias = view(bias, {1, 1, 1, 4})}},
      {"softcap and keep", {.softcap = 5, .mask = view(keep, {1, 1, 1, 4})}}};
  for (const auto& [what, scoring] : ways) {
    const Row clean = run({1, 2, 0, 1}, scoring, {1, 2, 0, 4});
    for (const float garbage : {kNaN, kInf, -kInf, 3e38f, std::numeric_limits<float>::max()}) {
      const Row r = run({1, 2, garbage, 1}, scoring, {1, 2, garbage, 4});
      EXPECT_EQ(r.p, clean.p) << what << " " << garbage;
      EXPECT_EQ(std::bit_cast<uint32_t>(r.p[2]), 0u) << what << " " << garbage;
      EXPECT_EQ(r.out, clean.out) << what << " " << garbage;
      EXPECT_EQ(r.lse, clean.lse) << what << " " << garbage;
      EXPECT_EQ(r.lse_fused, clean.lse_fused) << what << " " << garbage;
    }
  }
  // The same for intervals: keys past the length, before the start, outside the window, above the diagonal.
  const int32_t length = 3, start = 1;
  const std::vector<std::pair<const char*, Scoring>> intervals = {{"kv_length", {.kv_length = &length}},
                                                                  {"causal", {.causal = true, .offset = 2}},
                                                                  {"window_right", {.offset = 0, .window_right = 2}},
                                                                  {"chunk", {.offset = 0, .chunk = 3}}};
  for (const auto& [what, scoring] : intervals) {
    const Row clean = run({1, 2, 3, 0}, scoring, {1, 2, 3, 0});
    for (const float garbage : {kNaN, kInf}) {
      const Row r = run({1, 2, 3, garbage}, scoring, {1, 2, 3, garbage});
      EXPECT_EQ(r.p, clean.p) << what;
      EXPECT_EQ(r.out, clean.out) << what;
      EXPECT_EQ(r.lse_fused, clean.lse_fused) << what;
    }
  }
  for (const auto& [what, scoring] : std::vector<std::pair<const char*, Scoring>>{
           {"kv_start", {.kv_start = &start}}, {"window_left", {.window_left = 2}}}) {
    const Row clean = run({0, 2, 3, 4}, scoring, {0, 2, 3, 4});
    const Row r = run({kNaN, 2, 3, 4}, scoring, {kNaN, 2, 3, 4});
    EXPECT_EQ(r.p, clean.p) << what;
    EXPECT_EQ(r.out, clean.out) << what;
    EXPECT_EQ(r.lse_fused, clean.lse_fused) << what;
  }
}

TEST_P(Rules, S7_NothingVisibleIsZeroAndMinusInfinity) {
  const int32_t zero = 0;
  const uint8_t keep[] = {0, 0, 0};
  const float bias[] = {-kInf, -kInf, -kInf};
  const std::vector<Scoring> ways = {{.kv_length = &zero},
                                     {.causal = true, .offset = -1},
                                     {.mask = view(keep, {1, 1, 1, 3})},
                                     {.bias = view(bias, {1, 1, 1, 3})}};
  for (const Scoring& scoring : ways) {
    const Row r = run({1, kNaN, 3}, scoring, {1, kNaN, 3});
    expect_zero(r.p);
    expect_zero(r.out);
    EXPECT_EQ(r.lse, -kInf);
    EXPECT_EQ(r.lse_fused, -kInf);
  }
  const Row none = run({}, {}, {}, 3);
  expect_zero(none.out);
  EXPECT_EQ(none.lse, -kInf);
  EXPECT_EQ(none.lse_fused, -kInf);
}

TEST_P(Rules, S8_NothingVisibleWithASinkHasItsLogSumExp) {
  const int32_t zero = 0;
  for (const float sink : {0.0f, -3.5f, 100.0f, -1e30f}) {
    const Row r = run({1, 2, 3}, {.kv_length = &zero, .sinks = &sink}, {1, 2, 3});
    expect_zero(r.p);
    expect_zero(r.out);
    EXPECT_EQ(r.lse, sink);
    EXPECT_EQ(r.lse_fused, sink);
  }
  // And a sink of 0 beside one visible score of 0 is half of the row.
  const float sink = 0;
  const Row r = run({0}, {.sinks = &sink}, {3});
  EXPECT_EQ(r.p[0], 0.5f);
  EXPECT_EQ(r.out[0], 1.5f);
}

TEST_P(Rules, S9_NaN) {
  // In a visible score: all of the row and its lse, wherever the NaN stands and whatever the rest is.
  for (const size_t n : {1u, 2u, 16u, 17u, 33u, 300u, 1500u}) {
    for (const size_t at : {size_t{0}, n / 2, n - 1}) {
      for (const float rest : {0.0f, -kInf, 50.0f}) {
        std::vector<float> x(n, rest);
        x[at] = std::bit_cast<float>(0xFFA12345u);
        const Row r = run(x, {}, std::vector<float>(2 * n, 1.0f), 2);
        expect_nan(r.p);
        expect_nan(r.out);
        expect_nan({r.lse, r.lse_fused});
      }
    }
  }
  const float bias[] = {0, kNaN, 0};
  Row r = run({1, 2, 3}, {.bias = view(bias, {1, 1, 1, 3})}, {1, 2, 3});
  expect_nan(r.p);
  expect_nan(r.out);
  expect_nan({r.lse, r.lse_fused});
  r = run({1, kNaN, 3}, {.softcap = 10}, {1, 2, 3});
  expect_nan(r.p);
  expect_nan(r.out);
  // In a visible value: that column of the output only.
  r = run({1, 2, 3}, {}, {1, 2, 3, kNaN, 5, 6}, 2);
  EXPECT_TRUE(std::isfinite(r.out[0]));
  expect_nan({r.out[1]});
  EXPECT_TRUE(std::isfinite(r.lse_fused));
  // In a query: its row, no other.
  const float q[] = {kNaN, 1}, k[] = {1, 2}, v[] = {1, 2};
  float out[2], lse[2];
  AttentionProblem a;
  a.q = view(q, {1, 1, 2, 1});
  a.k = view(k, {1, 1, 2, 1});
  a.v = view(v, {1, 1, 2, 1});
  a.out = view(out, {1, 1, 2, 1});
  a.lse = view(lse, {1, 1, 2});
  ASSERT_TRUE(run_attention(a, GetParam()).ok());
  expect_nan({out[0], lse[0]});
  EXPECT_TRUE(std::isfinite(out[1]) && std::isfinite(lse[1]));
}

TEST_P(Rules, S10_Infinities) {
  Row r = run({1, kInf, 3}, {}, {1, 2, 3});
  expect_nan(r.p);
  expect_nan(r.out);
  expect_nan({r.lse, r.lse_fused});
  // A softcap makes it finite.
  r = run({kInf, -kInf}, {.softcap = 2}, {1, 0});
  const double want = 1 / (1 + std::exp(-4.0));
  EXPECT_NEAR(to_double(r.p[0]), want, 32 * kEps);
  EXPECT_NEAR(to_double(r.out[0]), want, 32 * kEps);
  // -inf that comes from the data is a key of weight 0; if there are only such, the row is empty.
  r = run({0, -kInf, 0}, {}, {1, 2, 3});
  EXPECT_EQ(r.p, (std::vector<float>{0.5f, 0, 0.5f}));
  EXPECT_EQ(r.out[0], 2.0f);
  for (const size_t n : {1u, 5u, 40u, 700u}) {
    r = run(std::vector<float>(n, -kInf), {}, std::vector<float>(n, 1.0f));
    expect_zero(r.p);
    expect_zero(r.out);
    EXPECT_EQ(r.lse, -kInf);
    EXPECT_EQ(r.lse_fused, -kInf);
  }
}

/// A score of -inf that the data make is a visible key of weight 0: a NaN or infinity in its value makes NaN of that
/// element, in whatever block and split it stands, alone there or with others. A row of nothing else is zero, its lse
/// -inf.
TEST_P(Rules, S10_MinusInfinityIsAVisibleKeyOfWeightZero) {
  Random random(seed() * 1000 + 10);
  for (const int64_t n : {1, 7, 255, 256, 257, 1023, 1024, 1025, 2047, 2048, 2049, 2600}) {
    for (const int64_t rows : {1, 12, 13, 20}) {  // with more than 12, values are packed
      for (const bool alone : {false, true}) {    // all scores before or behind the key are -inf, too
        const int64_t borders[] = {0, 255, 256, 1023, 1024, 1025, 2047, 2048, n - 1, n / 2};
        const int64_t at = std::min(n - 1, borders[random.integer(0, std::ssize(borders) - 1)]);
        const Array<4> q(random, DType::kF32, {1, 1, rows, 1}), k(random, DType::kF32, {1, 1, n, 1}),
            v(random, random.storage(), {1, 1, n, 3}, Values::kOrdinary), out(random, DType::kF32, {1, 1, rows, 3});
        const Array<4> acc = out.like(random), keep(random, DType::kU8, {1, 1, rows, n});
        const Array<3> lse(random, DType::kF32, {1, 1, rows}), max = lse.like(random), sum = lse.like(random);
        // A number for the maximum somewhere, or nowhere.
        const int64_t number = random.coin() ? random.integer(0, n - 1) : n;
        for (int64_t t = 0; t < n; ++t)
          k.set_at({0, 0, t, 0}, t == at || (alone && t != number) ? -kInf : random.uniform());
        for (int64_t r = 0; r < rows; ++r) q.set_at({0, 0, r, 0}, r % 5 == 4 ? 0.5f : 1.0f);
        v.set_at({0, 0, at, 1}, random.of({kNaN, kInf, -kInf}));
        // Hidden keys beside it, whose values are NaN in the last column; some hide the key itself.
        keep.fill_bytes(1);
        const bool masks = random.coin();
        for (int64_t t = 0; t < n && masks; ++t) {
          if (t == at || !random.one_in(3)) continue;
          v.set_at({0, 0, t, 2}, kNaN);
          for (int64_t r = 0; r < rows; ++r) set_element_bits(keep.view.data, DType::kU8, keep.at({0, 0, r, t}), 0);
        }
        if (masks && rows > 3) set_element_bits(keep.view.data, DType::kU8, keep.at({0, 0, 3, at}), 0);
        const float sink = random.uniform();
        AttentionProblem a;
        a.q = q.view, a.k = k.view, a.v = v.view, a.out = out.view, a.lse = lse.view;
        a.acc = acc.view, a.max = max.view, a.sum = sum.view;
        if (masks) a.scoring.mask = keep.view;
        if (random.one_in(3)) a.scoring.sinks = &sink;
        if (random.one_in(3)) a.scoring.causal = true;
        const reference::AttentionResult want = reference::attention(a);
        reference::Tensor want_acc = want.out;
        for (int64_t e = 0; e < want_acc.size(); ++e) want_acc[e] *= want.sum[e / 3];
        for (const bool tasks : {false, true}) {
          out.fill_bytes(0xA5), acc.fill_bytes(0xA5), lse.fill_bytes(0xA5);
          ASSERT_TRUE(ok(tasks ? run_tasks(a, GetParam(), random) : run_attention(a, GetParam())));
          const std::string text = "n " + std::to_string(n) + ", key " + std::to_string(at) + ", rows " +
                                   std::to_string(rows) + (alone ? ", alone" : "") + (tasks ? ", tasks" : "") +
                                   describe(a.scoring);
          // The scores are numbers of the test, so only the weights have errors.
          const double roundings = 16 + static_cast<double>(n);
          ASSERT_EQ(compare(out, want.out,
                            [&](int64_t e) {
                              const double m = want.magnitude[e];
                              return std::isfinite(m) ? 2 * roundings * kEps * m + kTiny : 0.0;
                            }),
                    "")
              << text;
          ASSERT_EQ(compare(lse, want.lse, [&](int64_t) { return 2 * roundings * kEps; }), "") << "lse, " << text;
          ASSERT_EQ(compare(max, want.max, [&](int64_t) { return 0.0; }), "") << "max, " << text;
          ASSERT_EQ(compare(acc, want_acc,
                            [&](int64_t e) {
                              const double m = want.magnitude[e] * want.sum[e / 3];
                              return std::isfinite(m) ? 2 * roundings * kEps * m + kTiny : 0.0;
                            }),
                    "")
              << "acc, " << text;
        }
      }
    }
  }
  // masked_softmax: its weight is 0, and a row of nothing else is all 0.
  const Row r = run({0, -kInf, 0}, {}, {1, kNaN, 3});
  EXPECT_EQ(r.p, (std::vector<float>{0.5f, 0, 0.5f}));
  expect_nan(r.out);
  const Row empty = run({-kInf, -kInf}, {}, {kNaN, kInf});
  expect_zero(empty.p);
  expect_zero(empty.out);
  EXPECT_EQ(empty.lse, -kInf);
  EXPECT_EQ(empty.lse_fused, -kInf);
}

TEST_P(Rules, S11_NoRowsIsNoOperation) {
  float unused = 5;
  const std::vector<float> k = {1, 2};
  EXPECT_TRUE(scores(ConstView<4>(nullptr, DType::kF32, {1, 1, 0, 2}), view(k.data(), {1, 1, 1, 2}),
                     View<4>(nullptr, DType::kF32, {1, 1, 0, 1}), {}, exec())
                  .ok());
  EXPECT_TRUE(masked_softmax(ConstView<4>(nullptr, DType::kF32, {1, 1, 0, 2}),
                             View<4>(nullptr, DType::kF32, {1, 1, 0, 2}), {}, {}, exec())
                  .ok());
  AttentionProblem a;
  a.q = ConstView<4>(nullptr, DType::kF32, {1, 1, 0, 2});
  a.k = view(k.data(), {1, 1, 1, 2});
  a.v = view(k.data(), {1, 1, 1, 2});
  a.out = View<4>(&unused, DType::kF32, {1, 1, 0, 2});
  EXPECT_TRUE(run_attention(a, GetParam()).ok());
  EXPECT_EQ(unused, 5.0f);
  // The errors of S11 are in bad_calls_test.cc.
}

TEST_P(Rules, S12_HeadsOfAGroupAreNeighbours) {
  // Four query heads, two key heads: 0 0 1 1.
  const float q[] = {1, 1, 1, 1}, k[] = {3, 5};
  float s[4], out[4];
  ASSERT_TRUE(scores(view(q, {1, 4, 1, 1}), view(k, {1, 2, 1, 1}), view(s, {1, 4, 1, 1}), {}, exec()).ok());
  EXPECT_EQ(std::vector<float>(s, s + 4), (std::vector<float>{3, 3, 5, 5}));
  ASSERT_TRUE(weighted_values(view(q, {1, 4, 1, 1}), view(k, {1, 2, 1, 1}), view(out, {1, 4, 1, 1}), {}, exec()).ok());
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{3, 3, 5, 5}));
  AttentionProblem a;
  a.q = view(q, {1, 4, 1, 1});
  a.k = view(k, {1, 2, 1, 1});
  a.v = view(k, {1, 2, 1, 1});
  a.out = view(out, {1, 4, 1, 1});
  ASSERT_TRUE(run_attention(a, GetParam()).ok());
  EXPECT_EQ(std::vector<float>(out, out + 4), (std::vector<float>{3, 3, 5, 5}));
}

TEST_P(Rules, WeightZeroHidesAValue) {
  // weighted_values: a key whose weight is exactly zero has no influence, and neither has its zero's sign.
  const std::vector<float> p = {0.5f, 0.0f, -0.0f, 0.5f}, v = {2, kNaN, kInf, 4};
  float out = 0;
  ASSERT_TRUE(
      weighted_values(view(p.data(), {1, 1, 1, 4}), view(v.data(), {1, 1, 4, 1}), view(&out, {1, 1, 1, 1}), {}, exec())
          .ok());
  EXPECT_EQ(out, 3.0f);
  const std::vector<float> zeros = {0, 0, 0, 0};
  ASSERT_TRUE(weighted_values(view(zeros.data(), {1, 1, 1, 4}), view(v.data(), {1, 1, 4, 1}), view(&out, {1, 1, 1, 1}),
                              {}, exec())
                  .ok());
  EXPECT_EQ(std::bit_cast<uint32_t>(out), 0u);
}

SIMDATTN_FOR_EACH_TARGET(Rules);

}  // namespace
}  // namespace simdattn::test
