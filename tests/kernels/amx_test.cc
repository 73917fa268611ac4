// AMX: the permission to use it, the tiles of a caller, and its kernels. They run over tiles in software that compute
// what instructions were recorded to compute; what only the instructions themselves can show is skipped by name.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <csignal>
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

#define SIMDATTN_NEED_AMX()                                                   \
  if (amx_target() == nullptr) GTEST_SKIP() << "intrinsics/amx is not built"; \
  if (!cpu_has_amx()) GTEST_SKIP() << "this CPU lacks " << missing_feature(Isa::kAmx)

// ---------------------------------------------------------------------------------------------------------------------
// Permission. Google Test runs these in this order: the last one asks, and nothing takes permission back.

TEST(AmxPermission, NotRunnableBeforeItIsAskedFor) {
  const Target* const amx = amx_target();
  if (amx == nullptr) GTEST_SKIP() << "intrinsics/amx is not built";
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
  if (amx_target() == nullptr) GTEST_SKIP() << "intrinsics/amx is not built";
  for (int i = 0; i < 2; ++i) {
    const Status s = request_amx();
    EXPECT_EQ(s.code, Code::kTarget);
    EXPECT_EQ(s.detail, std::string("request_amx: this CPU or operating system lacks ") + missing_feature(Isa::kAmx));
    EXPECT_FALSE(target_runnable(*amx_target()));
  }
}

TEST(AmxPermission, RefusalNamesSmallAlternateStacks) {
  EXPECT_STREQ(refusal(ENOSPC),
               "request_amx: a thread has an alternate signal stack of less than AT_MINSIGSTKSZ bytes");
  EXPECT_STREQ(refusal(EPERM), "request_amx: the operating system refuses");
}

#if defined(__linux__)
TEST(AmxPermission, RefusedWhileAnAlternateStackIsSmall) {
  SIMDATTN_NEED_AMX();
  std::vector<char> memory(8192);
  stack_t stack = {}, before = {};
  stack.ss_sp = memory.data();
  stack.ss_size = memory.size();
  if (sigaltstack(&stack, &before) != 0) GTEST_SKIP() << "alternate stacks of 8 KiB are refused here";
  const Status s = request_amx();
  ASSERT_EQ(sigaltstack(&before, nullptr), 0);
  EXPECT_EQ(s.code, Code::kTarget);
  EXPECT_STREQ(s.detail, refusal(ENOSPC));
  EXPECT_FALSE(target_runnable(*amx_target()));
}
#endif

TEST(AmxPermission, RunnableAndDefaultOnceItIsGiven) {
  SIMDATTN_NEED_AMX();
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
  const Status unknown = find_target("no such target", &found);
  EXPECT_NE(std::strstr(unknown.detail, "intrinsics/amx"), nullptr) << unknown.detail;
  EXPECT_EQ(std::strstr(unknown.detail, "request_amx()"), nullptr) << unknown.detail;
}

// ---------------------------------------------------------------------------------------------------------------------
// Tiles in software against what was recorded

TEST(SoftwareTiles, ComputeWhatInstructionsWereRecordedToCompute) {
  if (software_tiles() == nullptr) GTEST_SKIP() << "this CPU cannot run tiles in software";
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
  for (const char* kind : kRecordedClasses) {
    if (kFlushesBeforeRounding && std::strcmp(kind, "flush_boundary") == 0)
      continue;  // as all kernels of such a CPU do
    compare(Bf16Records(kind), kind, "tdpbf16ps", software_add_bf16);
  }
  compare(Int8Records("int8"), "int8", "tdpbssd", software_add_signed);
  compare(Int8Records("int8"), "int8", "tdpbusd", software_add_unsigned);
  EXPECT_EQ(take_tile_counts().broken_rules, 0);
}

// ---------------------------------------------------------------------------------------------------------------------
// The kernels, against the definition

class AmxKernels : public ::testing::TestWithParam<Arithmetic> {
 protected:
  void SetUp() override {
    if (software_tiles() == nullptr) GTEST_SKIP() << "this CPU cannot run tiles in software";
    configure_as_caller();
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
    EXPECT_TRUE(is_configured_as_caller());
  }
  static Arithmetic arithmetic() { return GetParam(); }
  static const Target& software() { return *software_tiles(); }

  int64_t calls_ = 0;
};

TEST_P(AmxKernels, Attention) { attention_cases(software(), arithmetic(), cases(400)); }
TEST_P(AmxKernels, SizesAndTinyNumbers) { size_cases(software(), arithmetic(), cases(400)); }
TEST_P(AmxKernels, Scores) {
  calls_ = cases(300);
  score_cases(software(), arithmetic(), calls_);
}
TEST_P(AmxKernels, WeightedValues) {
  calls_ = cases(300);
  value_cases(software(), arithmetic(), calls_);
}

INSTANTIATE_TEST_SUITE_P(Arithmetic, AmxKernels, ::testing::Values(Arithmetic::kBF16, Arithmetic::kInt8),
                         [](const auto& a) { return a.param == Arithmetic::kBF16 ? "kBF16" : "kInt8"; });

// ---------------------------------------------------------------------------------------------------------------------
// The instructions

// With permission every other suite takes intrinsics/amx for one target more (tests/support/target_test.h). Here the
// same problem runs over both kinds of tiles.
TEST(AmxHardware, TilesOfHardwareAndSoftware) {
  SIMDATTN_NEED_AMX();
  ASSERT_TRUE(request_amx().ok());
  for (int64_t i = 0; i < cases(200); ++i) {
    Random random(seed() * 7000 + 5 + static_cast<uint64_t>(i));
    AttentionLimits limits;
    limits.max_q = 70;
    limits.max_kv = 600;
    limits.max_dim = 140;
    limits.values = any_values(random);
    AttentionCase c = random_attention(random, limits);
    c.problem.arithmetic = random.coin() ? Arithmetic::kBF16 : Arithmetic::kInt8;
    c.clear();
    ASSERT_TRUE(run_attention(c.problem, software_tiles()).ok());
    const std::vector<uint64_t> want = c.out.bits();
    c.clear();
    ASSERT_TRUE(run_attention(c.problem, amx_target()).ok());
    ASSERT_EQ(want, c.out.bits()) << "case " << i << ": " << describe(c.problem);
  }
}

#if defined(__x86_64__)
/// The memory operand of LDTILECFG and STTILECFG.
struct alignas(64) Configuration {
  unsigned char bytes[64] = {};
};

// The software tiles look at this in every suite. A program that configures its tiles once a thread, as ggml does,
// would end by SIGILL.
TEST(AmxHardware, TilesOfTheCallerAreConfiguredAsBefore) {
  SIMDATTN_NEED_AMX();
  ASSERT_TRUE(request_amx().ok());
  const Configuration released;
  Configuration own;
  own.bytes[0] = 1;  // palette
  for (int t = 0; t < 8; ++t) {
    own.bytes[16 + 2 * t] = 32;  // bytes of a row
    own.bytes[48 + t] = 7;       // rows
  }
  for (const bool configured : {true, false}) {
    if (configured) __asm__ volatile("ldtilecfg %0" : : "m"(own));
    else __asm__ volatile("tilerelease");
    for (const Arithmetic arithmetic : {Arithmetic::kBF16, Arithmetic::kInt8}) {
      attention_cases(*amx_target(), arithmetic, 5);
      score_cases(*amx_target(), arithmetic, 5);
      value_cases(*amx_target(), arithmetic, 5);
    }
    Configuration behind;
    __asm__ volatile("sttilecfg %0" : "=m"(behind));
    EXPECT_EQ(std::memcmp(&behind, configured ? &own : &released, sizeof behind), 0) << configured;
  }
  __asm__ volatile("tilerelease");
}
#endif

}  // namespace
}  // namespace simdattn::test
