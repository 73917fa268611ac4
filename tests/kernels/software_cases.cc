#include "tests/kernels/software_cases.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"

namespace simdattn::test {
namespace {

/// Not that of target_test.h, which demands of its program that every target is entered.
const Target& scalar_target() { return *targets().back(); }

}  // namespace

Values any_values(Random& random) {
  return random.of({Values::kOrdinary, Values::kOrdinary, Values::kWide, Values::kSpecial, Values::kHuge});
}

void attention_cases(const Target& software, Arithmetic arithmetic, int64_t count) {
  Random random(seed() * 7000 + 1);
  for (int64_t i = 0; i < count; ++i) {
    AttentionLimits limits;
    // Few rows, one tile of them, several; within a block of keys, and several; around the 32 and 64 numbers of a step.
    limits.max_q = random.of({1, 3, 20, 90});
    limits.max_group = random.of({1, 4, 40});
    limits.max_kv = random.of({40, 300, 700});
    limits.max_dim = random.of({24, 40, 70, 140});
    limits.max_batch = 2;
    limits.values = any_values(random);
    limits.scoring.extreme = random.one_in(4);
    AttentionCase c = random_attention(random, limits);
    c.problem.arithmetic = arithmetic;
    c.clear();
    const Result want = result_of(c, c.problem, scalar_target());
    ASSERT_TRUE(ok(run_attention(c.problem, &software)));
    ASSERT_EQ(written(c), want) << "case " << i << ": " << describe(c.problem);
    ASSERT_TRUE(c.out.gaps_intact() && c.lse.gaps_intact());
  }
}

void size_cases(const Target& software, Arithmetic arithmetic, int64_t count) {
  Random random(seed() * 7000 + 4);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t rows = random.of({1, 4, 12, 13, 15, 16, 17, 31, 32, 33, 47, 48, 64, 65, 100});
    const int64_t heads = random.of({1, 1, 4}), kv_heads = random.coin() ? heads : 1;
    const int64_t n = random.of({1, 2, 31, 32, 33, 63, 64, 65, 127, 255, 256, 257, 289, 320, 511, 600});
    const int64_t d_qk = random.of({1, 2, 15, 31, 32, 33, 63, 64, 65, 80, 127, 128, 130});
    const int64_t d_v = random.of({1, 15, 31, 32, 33, 64, 72, 128});
    const DType type = random.storage();
    Array<4> q(random, random.storage(), {1, heads, rows, d_qk}, Strides::kInput);
    Array<4> k(random, type, {1, kv_heads, n, d_qk}), v(random, type, {1, kv_heads, n, d_v});
    const float v_size = random.of({1.0f, 0x1p-120f, 0x1p-126f}), q_size = random.of({1.0f, 20.0f, 0x1p66f});
    const float k_size = random.of({1.0f, 1.0f, 0x1p66f});
    const auto fill = [&](const Array<4>& x, float size) {
      for_each_element(x.view, [&](int64_t at) { put(x.view.data, x.view.dtype, at, size * random.uniform()); });
    };
    fill(q, q_size);
    fill(k, k_size);
    fill(v, v_size);
    const KvStorage keys = store_kv(random, k, random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedPanels}));
    const KvStorage values = store_kv(random, v, random.of({KvForm::kRows, KvForm::kPagedRows}));
    Array<4> want(random, DType::kF32, {1, heads, rows, d_v}), got(random, DType::kF32, {1, heads, rows, d_v});
    AttentionProblem a;
    a.q = q.view;
    a.k = keys.kv;
    a.v = values.kv;
    a.arithmetic = arithmetic;
    a.scoring.scale = random.of({1.0f, 1.0f, 0.3f, 0x1p-126f, 0x1p-140f});
    a.scoring.causal = random.coin();
    if (random.one_in(3)) a.scoring.window_left = random.of({5, 40, 300});
    a.out = want.view;
    ASSERT_TRUE(run_attention(a, &scalar_target()).ok());
    a.out = got.view;
    ASSERT_TRUE(run_attention(a, &software).ok());
    ASSERT_EQ(difference(want, got), "") << "case " << i << ": " << describe(a);
  }
}

void score_cases(const Target& software, Arithmetic arithmetic, int64_t count) {
  Random random(seed() * 7000 + 2);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t kv_heads = random.integer(1, 2), heads = kv_heads * random.integer(1, 5);
    const int64_t n_q = random.size(1, 40), n_kv = random.size(1, 70), dim = random.size(1, 300);
    Array<4> q(random, random.storage(), {1, heads, n_q, dim}, Strides::kInput);
    Array<4> k(random, random.storage(), {1, kv_heads, n_kv, dim}, Strides::kInput);
    const Values kind = any_values(random);
    q.fill(random, kind);
    k.fill(random, kind);
    Array<4> want(random, DType::kF32, {1, heads, n_q, n_kv}, Strides::kOutput),
        got(random, DType::kF32, {1, heads, n_q, n_kv}, Strides::kOutput);
    std::vector<char> workspace(scores_workspace(arithmetic, dim));
    ScoreOptions options;
    options.arithmetic = arithmetic;
    if (random.coin()) options.scale = random.of({1.0f, 0x1p-100f, 0x1p-126f, 0x1p-140f});
    const auto exec = [&](const Target* t) {
      return Exec{.target = t, .workspace = workspace.data(), .workspace_bytes = workspace.size()};
    };
    ASSERT_TRUE(scores(q.view, k.view, want.view, options, exec(&scalar_target())).ok());
    ASSERT_TRUE(scores(q.view, k.view, got.view, options, exec(&software)).ok());
    ASSERT_EQ(difference(want, got), "") << "case " << i << ": " << n_q << " " << n_kv << " " << dim;
  }
}

void value_cases(const Target& software, Arithmetic arithmetic, int64_t count) {
  Random random(seed() * 7000 + 3);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t kv_heads = random.integer(1, 2), heads = kv_heads * random.integer(1, 5);
    const int64_t n_q = random.size(1, 40), n_kv = random.size(1, 600), dim = random.size(1, 100);
    Array<4> p(random, DType::kF32, {1, heads, n_q, n_kv}, Strides::kInput);
    Array<4> v(random, random.storage(), {1, kv_heads, n_kv, dim}, Strides::kInput);
    p.fill(random, any_values(random));
    v.fill(random, any_values(random));
    const DType type = random.storage();
    Array<4> want(random, type, {1, heads, n_q, dim}, Strides::kOutput),
        got(random, type, {1, heads, n_q, dim}, Strides::kOutput);
    std::vector<char> workspace(weighted_values_workspace(arithmetic, dim));
    ValueOptions options;
    options.arithmetic = arithmetic;
    const auto exec = [&](const Target* t) {
      return Exec{.target = t, .workspace = workspace.data(), .workspace_bytes = workspace.size()};
    };
    ASSERT_TRUE(weighted_values(p.view, v.view, want.view, options, exec(&scalar_target())).ok());
    ASSERT_TRUE(weighted_values(p.view, v.view, got.view, options, exec(&software)).ok());
    ASSERT_EQ(difference(want, got), "") << "case " << i << ": " << n_q << " " << n_kv << " " << dim;
  }
}

}  // namespace simdattn::test
