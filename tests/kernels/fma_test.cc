// lib/contract/fma.h without the instruction, against the instruction; where it is the baseline's, against the C
// library.
#include "lib/contract/fma.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/support/random.h"

namespace simdattn::test {
namespace {

#if defined(__x86_64__)
template <class T>
[[gnu::target("fma")]] T expected(T a, T b, T c) {
  return std::fma(a, b, c);
}
bool expected_here() { return __builtin_cpu_supports("fma") != 0; }
#else
template <class T>
T expected(T a, T b, T c) {
  return std::fma(a, b, c);
}
bool expected_here() { return true; }
#endif

class Fma : public ::testing::Test {
  void SetUp() override {
    if (!expected_here()) GTEST_SKIP() << "this CPU has no fused multiply-add to compare with";
  }
};

template <class T>
bool same(T x, T y) {
  return x == y ? std::signbit(x) == std::signbit(y) : std::isnan(x) && std::isnan(y);
}

template <class T>
int wrong(T a, T b, T c) {
  const T got = fma_of_operations(a, b, c);
  const T want = expected(a, b, c);
  EXPECT_TRUE(same(got, want)) << std::hexfloat << a << " * " << b << " + " << c << " = " << got << ", not " << want;
  EXPECT_TRUE(same(fma(a, b, c), want)) << std::hexfloat << a << " * " << b << " + " << c;
  return same(got, want) ? 0 : 1;
}

TEST_F(Fma, EdgesOfF32) {
  const float inf = std::numeric_limits<float>::infinity();
  const float x[] = {0.0f,
                     1.0f,
                     1.0f + 0x1p-23f,
                     1.0f - 0x1p-24f,
                     3.0f,
                     0x1p-126f,
                     0x1p-127f,
                     0x1p-149f,
                     0x1p-75f,
                     0x1.8p-75f,
                     std::numeric_limits<float>::max(),
                     0x1p64f,
                     0x1.000002p64f,
                     inf,
                     std::numeric_limits<float>::quiet_NaN()};
  int errors = 0;
  for (const float a : x) {
    for (const float b : x) {
      for (const float c : x) {
        for (int signs = 0; signs < 8; ++signs) {
          errors += wrong((signs & 1) != 0 ? -a : a, (signs & 2) != 0 ? -b : b, (signs & 4) != 0 ? -c : c);
          if (errors > 20) return;
        }
      }
    }
  }
}

/// A random number of `digits` digits, near 2^-range .. 2^range.
template <class T>
T number(Random& random, int digits, int range) {
  const auto mantissa = static_cast<int64_t>(random.bits() >> (64 - digits));
  return static_cast<T>(std::ldexp(static_cast<double>(random.coin() ? -mantissa : mantissa),
                                   static_cast<int>(random.integer(-range, range)) - digits));
}

/// Any numbers; sums that vanish; sums that nearly vanish; products half way between two numbers, where the sign of a
/// sum far below the last digit decides.
template <class T>
void random_cases(int exponents, int digits) {
  Random random(7);
  int errors = 0;
  for (int i = 0; i < 1000000 && errors < 20; ++i) {
    const int kind = i % 4;
    const T a = number<T>(random, kind == 3 ? (digits + 2) / 2 : digits, exponents);
    const T b = number<T>(random, kind == 3 ? (digits + 2) / 2 : digits, exponents);
    T c = number<T>(random, digits, 2 * exponents);
    if (kind == 1) c = -(a * b);
    if (kind == 2) c = std::nextafter(-(a * b), T{1});
    if (kind == 3) c = static_cast<T>(std::ldexp(static_cast<double>(a) * static_cast<double>(b), -60 - i / 4 % 60));
    if (random.coin()) c = -c;
    errors += wrong(a, b, c);
  }
}

TEST_F(Fma, RandomF32) { random_cases<float>(60, 24); }
TEST_F(Fma, SubnormalF32) { random_cases<float>(74, 24); }
TEST_F(Fma, RandomF64) { random_cases<double>(200, 53); }
TEST_F(Fma, NearF64) { random_cases<double>(30, 53); }

}  // namespace
}  // namespace simdattn::test
