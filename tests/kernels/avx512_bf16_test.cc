// VDPBF16PS: software in its place has the bits that the instruction was recorded to have, and the kernels of
// intrinsics/avx512_bf16 over it those of the definition. In the same program the suites slots_bf16 and bits run over
// that software.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "dispatch/cpu.h"
#include "lib/definition/flushed.h"
#include "tests/kernels/software_cases.h"
#include "tests/kernels/software_pairs.h"
#include "tests/support/records.h"
#include "tests/support/target_test.h"

namespace simdattn::test {

std::vector<const Target*> runnable_targets() {
  if (const Target* t = software_pairs()) return {t};
  return {};
}

namespace {

using Product = void (*)(const void*, const void*, float*);
using Lanes = std::array<uint32_t, 16>;

/// row(row m of a, a tile of b, sums) for each row of all tiles, against the records of `instruction`.
template <class F>
void compare(const char* instruction, const F& row) {
  for (const char* kind : kRecordedClasses) {
    const Bf16Records records(kind);
    const std::vector<float> want = records.results(instruction);
    ASSERT_GT(want.size(), 0u);
    for (size_t m = 0; m < want.size() / 16; ++m) {
      std::array<float, 16> sum;
      std::memcpy(sum.data(), &records.c[16 * m], 64);
      row(&records.a[32 * m], &records.b[m / 16 * 512], sum.data());
      for (size_t n = 0; n < 16; ++n) {
        const float expected = want[16 * m + n];
        if (std::isnan(expected) && std::isnan(sum[n])) continue;
        ASSERT_EQ(std::bit_cast<uint32_t>(sum[n]), std::bit_cast<uint32_t>(expected))
            << kind << ", row " << m << ", column " << n;
      }
    }
  }
}

/// 16 instructions, pairs as they were recorded.
void single_instruction(Product product) {
  compare("vdpbf16ps", [&](const uint16_t* a, const uint16_t* b, float* sum) {
    for (size_t k = 0; k < 16; ++k) {
      Lanes x;
      x.fill(a[2 * k] | uint32_t{a[2 * k + 1]} << 16);
      product(x.data(), b + 32 * k, sum);
    }
  });
}

/// A tile of TDPBF16PS in lanes that hold two steps of one chain, the earlier one in the upper half.
void two_steps_of_a_chain(Product product) {
  compare("tdpbf16ps", [&](const uint16_t* a, const uint16_t* b, float* sum) {
    std::array<float, 16> chain[2] = {};
    for (size_t k = 0; k < 16; k += 2) {
      for (size_t odd = 0; odd < 2; ++odd) {
        Lanes x, y;
        x.fill(uint32_t{a[2 * k + odd]} << 16 | a[2 * k + 2 + odd]);
        for (size_t n = 0; n < 16; ++n) y[n] = uint32_t{b[32 * k + 2 * n + odd]} << 16 | b[32 * (k + 1) + 2 * n + odd];
        product(x.data(), y.data(), chain[odd].data());
      }
    }
    for (size_t n = 0; n < 16; ++n) sum[n] = scalar::flushed_add(sum[n], scalar::flushed_add(chain[0][n], chain[1][n]));
  });
}

class Vdpbf16ps : public ::testing::Test {
 protected:
  void SetUp() override {
    if (software_pairs() == nullptr) GTEST_SKIP() << "this CPU lacks " << missing_feature(Isa::kAvx2);
  }
  static const Target& software() { return *software_pairs(); }
};

TEST_F(Vdpbf16ps, SoftwareComputesWhatWasRecorded) { single_instruction(software_vdpbf16ps); }
TEST_F(Vdpbf16ps, SoftwareMakesTwoStepsOfAChain) { two_steps_of_a_chain(software_vdpbf16ps); }
TEST_F(Vdpbf16ps, HardwareComputesWhatWasRecordedAndTwoStepsOfAChain) {
  const char* const missing = missing_feature(Isa::kAvx512Bf16);
  if (*missing != '\0') GTEST_SKIP() << "this CPU lacks " << missing << ": no test runs intrinsics/avx512_bf16";
  single_instruction(hardware_vdpbf16ps);
  two_steps_of_a_chain(hardware_vdpbf16ps);
}

TEST_F(Vdpbf16ps, Attention) { attention_cases(software(), Arithmetic::kBF16, cases(400)); }
TEST_F(Vdpbf16ps, SizesAndTinyNumbers) { size_cases(software(), Arithmetic::kBF16, cases(400)); }
TEST_F(Vdpbf16ps, Scores) { score_cases(software(), Arithmetic::kBF16, cases(300)); }
TEST_F(Vdpbf16ps, WeightedValues) { value_cases(software(), Arithmetic::kBF16, cases(300)); }

}  // namespace
}  // namespace simdattn::test
