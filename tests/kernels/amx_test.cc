// AMX: the permission to use it, and its kernels. On a CPU without AMX they run over tiles in software that compute what
// instructions were recorded to compute; what only the instructions themselves can show is skipped by name.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "dispatch/cpu.h"
#include "dispatch/target.h"
#include "simdattn/simdattn.h"
#include "tests/kernels/software_tiles.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/records.h"

namespace simdattn::test {
namespace {

const Target* amx_target() {
  for (const Target* t : targets()) {
    if (std::strcmp(name(*t), "intrinsics/amx") == 0) return t;
  }
  return nullptr;
}
const Target& scalar_target() { return *targets().back(); }
bool cpu_has_amx() { return *missing_feature(Isa::kAmx) == '\0'; }

// ---------------------------------------------------------------------------------------------------------------------
// Permission. Google Test runs these in this order: the last one asks, and nothing takes permission back.

TEST(AmxPermission, NotRunnableBeforeItIsAskedFor) {
  const Target* const amx = amx_target();
  ASSERT_NE(amx, nullptr);
  EXPECT_FALSE(runnable(*amx));
  EXPECT_TRUE(exact(*amx));
  EXPECT_TRUE(native(*amx, Arithmetic::kBF16));
  EXPECT_TRUE(native(*amx, Arithmetic::kInt8));
  const Target* chosen = nullptr;
  ASSERT_TRUE(default_target(&chosen).ok());
  EXPECT_NE(chosen, amx);
  const Target* found = chosen;
  const Status unknown = find_target("intrinsics/amx", &found);
  EXPECT_EQ(unknown.code, Code::kTarget);
  EXPECT_EQ(found, chosen);
  const float x = 1;
  float y = 0;
  const Status call = softmax(view(&x, {1, 1}), view(&y, {1, 1}), {}, {.target = amx});
  EXPECT_EQ(call.code, Code::kTarget);
  EXPECT_EQ(y, 0.0f);
  if (cpu_has_amx()) {
    EXPECT_STREQ(missing(*amx), "permission: call request_amx()");
    EXPECT_STREQ(unknown.detail, "name: this target needs permission: call request_amx()");
    EXPECT_STREQ(call.detail, "exec.target: it needs permission: call request_amx()");
  } else {
    EXPECT_STREQ(missing(*amx), missing_feature(Isa::kAmx));
    EXPECT_STREQ(call.detail, "exec.target: this CPU cannot run it");
  }
}

TEST(AmxPermission, SentenceNamesWhatIsMissing) {
  if (cpu_has_amx()) GTEST_SKIP() << "this CPU has AMX";
  for (int i = 0; i < 2; ++i) {
    const Status s = request_amx();
    EXPECT_EQ(s.code, Code::kTarget);
    EXPECT_EQ(s.detail, std::string("request_amx: this CPU or operating system lacks ") + missing_feature(Isa::kAmx));
    EXPECT_FALSE(runnable(*amx_target()));
  }
}

TEST(AmxPermission, RunnableAndDefaultOnceItIsGiven) {
  if (!cpu_has_amx()) GTEST_SKIP() << "this CPU lacks " << missing_feature(Isa::kAmx);
  const Status s = request_amx();
  ASSERT_TRUE(s.ok()) << s.detail;
  EXPECT_TRUE(request_amx().ok());
  EXPECT_TRUE(runnable(*amx_target()));
  EXPECT_STREQ(missing(*amx_target()), "");
  const Target* found = nullptr;
  EXPECT_TRUE(find_target("intrinsics/amx", &found).ok());
  EXPECT_EQ(found, amx_target());
  if (const char* named = std::getenv("SIMDATTN_TARGET"); named == nullptr || *named == '\0') {
    ASSERT_TRUE(default_target(&found).ok());
    EXPECT_EQ(found, amx_target());
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Tiles in software against what was recorded

TEST(SoftwareTiles, ComputeWhatInstructionsWereRecordedToCompute) {
  if (*missing_feature(Isa::kAvx3Dl) != '\0') GTEST_SKIP() << "this CPU lacks " << missing_feature(Isa::kAvx3Dl);
  const auto compare = [](const auto& records, const char* kind, const char* result, auto* product) {
    using Number = typename std::decay_t<decltype(records.c)>::value_type;
    const std::vector<Number> want = records.results(result);
    for (size_t t = 0; t < static_cast<size_t>(records.tiles); ++t) {
      const size_t operands = t * records.a.size() / static_cast<size_t>(records.tiles);
      std::array<Number, 256> got;
      std::memcpy(got.data(), &records.c[256 * t], sizeof got);
      product(&records.a[operands], &records.b[operands], got.data());
      for (size_t i = 0; i < 256; ++i) {
        const Number expected = want[256 * t + i];
        if (expected != expected && got[i] != got[i]) continue;
        ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(expected))
            << kind << " " << result << ", tile " << t << ", element " << i;
      }
    }
  };
  for (const char* kind : kRecordedClasses) compare(Bf16Records(kind), kind, "tdpbf16ps", software_add_bf16);
  compare(Int8Records("int8"), "int8", "tdpbssd", software_add_signed);
  compare(Int8Records("int8"), "int8", "tdpbusd", software_add_unsigned);
  EXPECT_EQ(take_tile_counts().broken_rules, 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// The kernels, against the definition

class AmxKernels : public ::testing::TestWithParam<Arithmetic> {
 protected:
  void SetUp() override {
    if (*missing_feature(Isa::kAvx3Dl) != '\0') GTEST_SKIP() << "this CPU lacks " << missing_feature(Isa::kAvx3Dl);
    table_ = over_software_tiles(*amx_target()->kernels);
    take_tile_counts();
  }
  void TearDown() override {
    if (IsSkipped()) return;
    const TileCounts counts = take_tile_counts();
    EXPECT_EQ(counts.broken_rules, 0);
    EXPECT_GT(counts.products, 0);
    EXPECT_GT(counts.begun, 0);
    EXPECT_EQ(counts.begun, counts.ended);
    if (calls_ > 0) {
      EXPECT_EQ(counts.begun, calls_) << "tiles are configured once per call";
    }
  }
  static Arithmetic arithmetic() { return GetParam(); }

  UKernels table_;
  Target software_ = {"test/software_tiles", &table_, true, true, ""};
  int64_t calls_ = 0;
};

template <int kRank>
std::string difference(const Array<kRank>& want, const Array<kRank>& got) {
  const std::vector<uint64_t> w = want.bits(), g = got.bits();
  for (size_t i = 0; i < w.size(); ++i) {
    if (w[i] == g[i]) continue;
    char text[120];
    std::snprintf(text, sizeof text, "element %zu of %zu: %08llx, expected %08llx", i, w.size(),
                  static_cast<unsigned long long>(g[i]), static_cast<unsigned long long>(w[i]));
    return text;
  }
  return want.gaps_intact() && got.gaps_intact() ? "" : "bytes between the elements of an output were written";
}

Values any_values(Random& random) {
  return random.of({Values::kOrdinary, Values::kOrdinary, Values::kWide, Values::kSpecial, Values::kHuge});
}

TEST_P(AmxKernels, Attention) {
  Random random(seed() * 7000 + 1);
  for (int64_t i = 0; i < cases(400); ++i) {
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
    c.problem.arithmetic = arithmetic();
    c.clear();
    ASSERT_TRUE(run_attention(c.problem, &scalar_target()).ok());
    const std::vector<uint64_t> want = c.out.bits(), want_lse = c.lse.bits();
    c.clear();
    const Status s = run_attention(c.problem, &software_);
    ASSERT_TRUE(s.ok()) << s.detail;
    ASSERT_EQ(want, c.out.bits()) << "case " << i << ": " << describe(c.problem);
    ASSERT_EQ(want_lse, c.lse.bits()) << "case " << i << ": " << describe(c.problem);
    ASSERT_TRUE(c.out.gaps_intact() && c.lse.gaps_intact());
  }
}

/// Sizes on both sides of every constant that cuts work: rows of a tile, dimensions of a step, keys of a group and of a block;
/// and numbers whose products with a scale, or whose sums after a new maximum, fall below the smallest normal one.
TEST_P(AmxKernels, SizesAndTinyNumbers) {
  Random random(seed() * 7000 + 4);
  for (int64_t i = 0; i < cases(400); ++i) {
    const int64_t rows = random.of({1, 4, 12, 13, 15, 16, 17, 31, 32, 33, 47, 48, 64, 65, 100});
    const int64_t heads = random.of({1, 1, 4}), kv_heads = random.coin() ? heads : 1;
    const int64_t n = random.of({1, 2, 31, 32, 33, 63, 64, 65, 127, 255, 256, 257, 289, 320, 511, 600});
    const int64_t d_qk = random.of({1, 2, 15, 31, 32, 33, 63, 64, 65, 80, 127, 128, 130});
    const int64_t d_v = random.of({1, 15, 31, 32, 33, 64, 72, 128});
    const DType type = random.storage();
    Array<4> q(random, random.storage(), {1, heads, rows, d_qk}, Strides::kInput);
    Array<4> k(random, type, {1, kv_heads, n, d_qk}), v(random, type, {1, kv_heads, n, d_v});
    const float v_size = random.of({1.0f, 0x1p-120f, 0x1p-126f}), q_size = random.of({1.0f, 20.0f});
    const auto fill = [&](const Array<4>& x, float size) {
      for_each_element(x.view, [&](int64_t at) { put(x.view.data, x.view.dtype, at, size * random.uniform()); });
    };
    fill(q, q_size);
    fill(k, 1.0f);
    fill(v, v_size);
    const KvStorage keys = store_kv(random, k, random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedPanels}));
    const KvStorage values = store_kv(random, v, random.of({KvForm::kRows, KvForm::kPagedRows}));
    Array<4> want(random, DType::kF32, {1, heads, rows, d_v}), got(random, DType::kF32, {1, heads, rows, d_v});
    Attention a;
    a.q = q.view;
    a.k = keys.kv;
    a.v = values.kv;
    a.arithmetic = arithmetic();
    a.scoring.scale = random.of({1.0f, 1.0f, 0.3f, 0x1p-126f, 0x1p-140f});
    a.scoring.causal = random.coin();
    if (random.one_in(3)) a.scoring.window_left = random.of({5, 40, 300});
    a.out = want.view;
    ASSERT_TRUE(run_attention(a, &scalar_target()).ok());
    a.out = got.view;
    ASSERT_TRUE(run_attention(a, &software_).ok());
    ASSERT_EQ(difference(want, got), "") << "case " << i << ": " << describe(a);
  }
}

TEST_P(AmxKernels, Scores) {
  Random random(seed() * 7000 + 2);
  for (int64_t i = 0; i < cases(300); ++i) {
    const int64_t kv_heads = random.integer(1, 2), heads = kv_heads * random.integer(1, 5);
    const int64_t n_q = random.size(1, 40), n_kv = random.size(1, 70), dim = random.size(1, 300);
    Array<4> q(random, random.storage(), {1, heads, n_q, dim}, Strides::kInput);
    Array<4> k(random, random.storage(), {1, kv_heads, n_kv, dim}, Strides::kInput);
    const Values kind = any_values(random);
    q.fill(random, kind);
    k.fill(random, kind);
    Array<4> want(random, DType::kF32, {1, heads, n_q, n_kv}, Strides::kOutput),
        got(random, DType::kF32, {1, heads, n_q, n_kv}, Strides::kOutput);
    std::vector<char> workspace(scores_workspace(arithmetic(), dim));
    ScoreOptions options;
    options.arithmetic = arithmetic();
    if (random.coin()) options.scale = random.of({1.0f, 0x1p-100f, 0x1p-126f, 0x1p-140f});
    const auto exec = [&](const Target* t) {
      return Exec{.target = t, .workspace = workspace.data(), .workspace_bytes = workspace.size()};
    };
    ASSERT_TRUE(scores(q.view, k.view, want.view, options, exec(&scalar_target())).ok());
    ASSERT_TRUE(scores(q.view, k.view, got.view, options, exec(&software_)).ok());
    ++calls_;
    ASSERT_EQ(difference(want, got), "") << "case " << i << ": " << n_q << " " << n_kv << " " << dim;
  }
}

TEST_P(AmxKernels, WeightedValues) {
  Random random(seed() * 7000 + 3);
  for (int64_t i = 0; i < cases(300); ++i) {
    const int64_t kv_heads = random.integer(1, 2), heads = kv_heads * random.integer(1, 5);
    const int64_t n_q = random.size(1, 40), n_kv = random.size(1, 600), dim = random.size(1, 100);
    Array<4> p(random, DType::kF32, {1, heads, n_q, n_kv}, Strides::kInput);
    Array<4> v(random, random.storage(), {1, kv_heads, n_kv, dim}, Strides::kInput);
    p.fill(random, any_values(random));
    v.fill(random, any_values(random));
    const DType type = random.storage();
    Array<4> want(random, type, {1, heads, n_q, dim}, Strides::kOutput),
        got(random, type, {1, heads, n_q, dim}, Strides::kOutput);
    std::vector<char> workspace(weighted_values_workspace(arithmetic(), dim));
    ValueOptions options;
    options.arithmetic = arithmetic();
    const auto exec = [&](const Target* t) {
      return Exec{.target = t, .workspace = workspace.data(), .workspace_bytes = workspace.size()};
    };
    ASSERT_TRUE(weighted_values(p.view, v.view, want.view, options, exec(&scalar_target())).ok());
    ASSERT_TRUE(weighted_values(p.view, v.view, got.view, options, exec(&software_)).ok());
    ++calls_;
    ASSERT_EQ(difference(want, got), "") << "case " << i << ": " << n_q << " " << n_kv << " " << dim;
  }
}

INSTANTIATE_TEST_SUITE_P(Arithmetic, AmxKernels, ::testing::Values(Arithmetic::kBF16, Arithmetic::kInt8),
                         [](const auto& a) { return a.param == Arithmetic::kBF16 ? "kBF16" : "kInt8"; });

// ---------------------------------------------------------------------------------------------------------------------
// The instructions

// With permission every other suite takes intrinsics/amx for one target more (tests/support/target_test.h). Here the same problem runs
// over both kinds of tiles.
TEST(AmxHardware, TilesOfHardwareAndSoftware) {
  if (!cpu_has_amx())
    GTEST_SKIP() << "this CPU lacks " << missing_feature(Isa::kAmx) << ": no test runs intrinsics/amx";
  ASSERT_TRUE(request_amx().ok());
  const UKernels table = over_software_tiles(*amx_target()->kernels);
  const Target software = {"test/software_tiles", &table, true, true, ""};
  Random random(seed() * 7000 + 5);
  for (int64_t i = 0; i < cases(200); ++i) {
    AttentionLimits limits;
    limits.max_q = 70;
    limits.max_kv = 600;
    limits.max_dim = 140;
    limits.values = any_values(random);
    AttentionCase c = random_attention(random, limits);
    c.problem.arithmetic = random.coin() ? Arithmetic::kBF16 : Arithmetic::kInt8;
    c.clear();
    ASSERT_TRUE(run_attention(c.problem, &software).ok());
    const std::vector<uint64_t> want = c.out.bits();
    c.clear();
    ASSERT_TRUE(run_attention(c.problem, amx_target()).ok());
    ASSERT_EQ(want, c.out.bits()) << "case " << i << ": " << describe(c.problem);
  }
}

}  // namespace
}  // namespace simdattn::test
