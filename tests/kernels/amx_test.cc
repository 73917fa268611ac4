// AMX: the permission to use it, and its kernels. On a CPU without AMX they run over tiles in software that compute
// what instructions were recorded to compute; what only the instructions themselves can show is skipped by name.
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
#include "tests/kernels/software_cases.h"
#include "tests/kernels/software_tiles.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/records.h"

namespace simdattn::test {
namespace {

const Target* amx_target() {
  for (const Target* t : targets()) {
    if (std::strcmp(target_name(*t), "intrinsics/amx") == 0) return t;
  }
  return nullptr;
}
bool cpu_has_amx() { return *missing_feature(Isa::kAmx) == '\0'; }

// ---------------------------------------------------------------------------------------------------------------------
// Permission. Google Test runs these in this order: the last one asks, and nothing takes permission back.

TEST(AmxPermission, NotRunnableBeforeItIsAskedFor) {
  const Target* const amx = amx_target();
  ASSERT_NE(amx, nullptr);
  EXPECT_FALSE(target_runnable(*amx));
  EXPECT_TRUE(target_exact(*amx));
  EXPECT_TRUE(target_native(*amx, Arithmetic::kBF16));
  EXPECT_TRUE(target_native(*amx, Arithmetic::kInt8));
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
    EXPECT_STREQ(target_missing(*amx), "permission: call request_amx()");
    EXPECT_STREQ(unknown.detail, "name: this target needs permission: call request_amx()");
    EXPECT_STREQ(call.detail, "exec.target: it needs permission: call request_amx()");
  } else {
    EXPECT_STREQ(target_missing(*amx), missing_feature(Isa::kAmx));
    EXPECT_STREQ(call.detail, "exec.target: this CPU cannot run it");
  }
}

TEST(AmxPermission, SentenceNamesWhatIsMissing) {
  if (cpu_has_amx()) GTEST_SKIP() << "this CPU has AMX";
  for (int i = 0; i < 2; ++i) {
    const Status s = request_amx();
    EXPECT_EQ(s.code, Code::kTarget);
    EXPECT_EQ(s.detail, std::string("request_amx: this CPU or operating system lacks ") + missing_feature(Isa::kAmx));
    EXPECT_FALSE(target_runnable(*amx_target()));
  }
}

TEST(AmxPermission, RunnableAndDefaultOnceItIsGiven) {
  if (!cpu_has_amx()) GTEST_SKIP() << "this CPU lacks " << missing_feature(Isa::kAmx);
  ASSERT_TRUE(ok(request_amx()));
  EXPECT_TRUE(request_amx().ok());
  EXPECT_TRUE(target_runnable(*amx_target()));
  EXPECT_STREQ(target_missing(*amx_target()), "");
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

TEST_P(AmxKernels, Attention) { attention_cases(software_, arithmetic(), cases(400)); }
TEST_P(AmxKernels, SizesAndTinyNumbers) { size_cases(software_, arithmetic(), cases(400)); }
TEST_P(AmxKernels, Scores) {
  calls_ = cases(300);
  score_cases(software_, arithmetic(), calls_);
}
TEST_P(AmxKernels, WeightedValues) {
  calls_ = cases(300);
  value_cases(software_, arithmetic(), calls_);
}

INSTANTIATE_TEST_SUITE_P(Arithmetic, AmxKernels, ::testing::Values(Arithmetic::kBF16, Arithmetic::kInt8),
                         [](const auto& a) { return a.param == Arithmetic::kBF16 ? "kBF16" : "kInt8"; });

// ---------------------------------------------------------------------------------------------------------------------
// The instructions

// With permission every other suite takes intrinsics/amx for one target more (tests/support/target_test.h). Here the
// same problem runs over both kinds of tiles.
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
