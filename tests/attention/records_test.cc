// The arithmetics kBF16 and kInt8 against what matrix instructions computed (recorded; tests/data/hardware.md). Bits,
// on every exact target.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lib/contract/dtypes.h"
#include "lib/definition/flushed.h"
#include "tests/attention/definition_test.h"
#include "tests/support/indices.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/records.h"

namespace simdattn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

class Records : public Definition {};

float from_bf16_bits(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

uint32_t bits_of(float x) { return x == x ? std::bit_cast<uint32_t>(x) : 0x7FC00000u; }

/// Steps of one instruction each, by one definition of its operations.
template <float kFma(float, float, float), float kAdd(float, float), class X, class Y>
float tdpbf16ps(const X& x, const Y& y, float c) {
  float e = 0, o = 0;
  for (int64_t k = 0; k < 32; k += 2) {
    e = kFma(x(k), y(k), e);
    o = kFma(x(k + 1), y(k + 1), o);
  }
  return kAdd(c, kAdd(e, o));
}
template <float kFma(float, float, float), class X, class Y>
float vdpbf16ps(const X& x, const Y& y, float c) {
  for (int64_t k = 0; k < 32; k += 2) c = kFma(x(k), y(k), kFma(x(k + 1), y(k + 1), c));
  return c;
}

/// Both definitions have the bits of both instructions.
TEST(Hardware, BF16StepsOfTheDefinitions) {
  for (const char* name : kRecordedClasses) {
    const Bf16Records r(name);
    const std::vector<float> tdp = r.results("tdpbf16ps"), vdp = r.results("vdpbf16ps");
    int64_t differences[4] = {};
    r.for_each([&](int64_t t, int64_t m, int64_t n, size_t at) {
      const auto x = [&](int64_t k) { return from_bf16_bits(r.first(t, m, k)); };
      const auto y = [&](int64_t k) { return from_bf16_bits(r.second(t, n, k)); };
      const float c = r.c[at];
      const uint32_t tdp_bits = bits_of(tdp[at]), vdp_bits = bits_of(vdp[at]);
      differences[0] += bits_of(tdpbf16ps<scalar::flushed_fma, scalar::flushed_add>(x, y, c)) != tdp_bits;
      differences[1] += bits_of(tdpbf16ps<second::flushed_fma, second::flushed_add>(x, y, c)) != tdp_bits;
      differences[2] += bits_of(vdpbf16ps<scalar::flushed_fma>(x, y, c)) != vdp_bits;
      differences[3] += bits_of(vdpbf16ps<second::flushed_fma>(x, y, c)) != vdp_bits;
    });
    for (const int64_t d : differences) EXPECT_EQ(d, 0) << name;
  }
}

/// Both definitions agree near the smallest normal number, where rounding and flushing meet: sums that are off by
/// fractions of its last place.
TEST(Hardware, BothDefinitionsFlushAlike) {
  Random random(seed() * 8000 + 9);
  int64_t zeros = 0, normal = 0;
  for (int64_t i = 0; i < cases(200000); ++i) {
    const float sign = random.coin() ? 1.0f : -1.0f;
    const float near = sign * static_cast<float>(random.integer(0x1FFFFFD, 0x2000003)) * 0x1p-25f;  // about 1
    const float off = -sign * static_cast<float>(random.integer(0, 64)) * 0x1p-79f;                 // of 2^-155
    const float c = random.coin() ? sign * 0x1p-126f : sign * 0x1.000002p-126f;
    const float a = random.coin() ? off : near, b = a == off ? 0x1p-76f : 0x1p-126f, d = a == off ? c : 0.0f;
    const float want = second::flushed_fma(a, b, d);
    ASSERT_EQ(bits_of(scalar::flushed_fma(a, b, d)), bits_of(want)) << a << " " << b << " " << d;
    (want == 0 ? zeros : normal) += 1;
    const float x = c * 1.5f, y = -c * random.of({0.5f, 0.25f, 1.5f, 1.0f});
    ASSERT_EQ(bits_of(scalar::flushed_add(x, y)), bits_of(second::flushed_add(x, y))) << x << " " << y;
  }
  // Products next to 2^-151, nearer than an f64 sum with 2^-126 can tell.
  for (const float sign : {1.0f, -1.0f}) {
    const float c = sign * 0x1p-126f;
    const float below = scalar::flushed_fma(-sign * 0x1p-75f * (1 + 0x1p-15f), 0x1p-76f * (1 - 0x1p-15f), c);
    const float above = scalar::flushed_fma(-sign * 0x1p-75f * (1 + 0x1p-11f), 0x1p-76f * (1 - 0x1p-11f + 0x1p-22f), c);
    EXPECT_EQ(bits_of(below), bits_of(c));
    EXPECT_EQ(bits_of(above), bits_of(sign * 0.0f));
  }
  // A subnormal operand is a zero, wherever it stands.
  for (const auto& fma : {scalar::flushed_fma, second::flushed_fma}) {
    EXPECT_EQ(fma(0x1p-63f, 0x1p-63f, 0x1p-130f), 0x1p-126f);
    EXPECT_EQ(fma(0x1p-130f, 0x1p100f, 0x1p-40f), 0x1p-40f);
    EXPECT_EQ(fma(0x1p100f, -0x1p-130f, 0x1p-40f), 0x1p-40f);
  }
  EXPECT_GT(zeros, 100);
  EXPECT_GT(normal, 100);
}

/// A group whose even chain ends at c without a rounding, and whose odd chain at 0: bf16 numbers of one operand. Those
/// of the other are unit(i). A subnormal c counts as a zero.
void as_group(float c, float* x) {
  std::fill_n(x, 32, 0.0f);
  if (!(std::fabs(c) < kInf)) {
    x[0] = c;
    return;
  }
  if (std::fabs(c) < std::numeric_limits<float>::min()) return;
  // Three parts of 8 bits; of a small number they would be subnormal.
  const bool small = std::fabs(c) < 0x1p-60f;
  if (small) c *= 0x1p64f;
  for (int i = small ? 6 : 0; c != 0; i += 2) {
    x[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(c) & 0xFFFF0000u);
    c -= x[i];
  }
}
float unit(int64_t i) { return i % 2 == 1 || i > 10 ? 0.0f : i < 6 ? 1.0f : 0x1p-64f; }

/// scores() of 64 dimensions, of which the first 32 make c and the others are the tile's, and weighted_values() of 64
/// keys likewise. What the instruction makes -0 is +0 at the end of both.
TEST_P(Records, ScoresAndValuesAreTDPBF16PS) {
  if (!is_exact()) GTEST_SKIP() << "no fused multiply-add";
  Random random(seed() * 8000 + 1);
  for (const char* name : kRecordedClasses) {
    const Bf16Records r(name);
    const std::vector<float> want = r.results("tdpbf16ps");
    int64_t values_compared = 0, changed = 0;
    for (int64_t t = 0; t < r.tiles; ++t) {
      // One column of the tile at a time: head n.
      const Array<4> q(random, DType::kBF16, {1, 16, 16, 64}), k(random, DType::kBF16, {1, 16, 1, 64}),
          s(random, DType::kF32, {1, 16, 16, 1}), p(random, DType::kF32, {1, 16, 16, 64}),
          v(random, DType::kBF16, {1, 16, 64, 1}), o(random, DType::kF32, {1, 16, 16, 1});
      bool hidden[16][16] = {};
      for (int64_t n = 0; n < 16; ++n) {
        for (int64_t i = 0; i < 64; ++i) {
          const float y = i < 32 ? unit(i) : from_bf16_bits(r.second(t, n, i - 32));
          k.set_at({0, n, 0, i}, y);
          v.set_at({0, n, i, 0}, y);
        }
        for (int64_t m = 0; m < 16; ++m) {
          float group[32];
          as_group(r.c[static_cast<size_t>((t * 16 + m) * 16 + n)], group);
          for (int64_t i = 0; i < 64; ++i) {
            const float x = i < 32 ? group[i] : from_bf16_bits(r.first(t, m, i - 32));
            q.set_at({0, n, m, i}, x);
            p.set_at({0, n, m, i}, x);
            // A weight of 0 hides the value that the instruction multiplies with it.
            hidden[m][n] = hidden[m][n] || (x == 0 && !(std::fabs(v.get_at({0, n, i, 0})) < kInf));
          }
        }
      }
      Status status = run_scores(q.view, k.view, s.view, {.scale = 1.0f, .arithmetic = Arithmetic::kBF16}, &target());
      ASSERT_TRUE(status.ok()) << status.detail;
      status = run_weighted_values(p.view, v.view, o.view, {.arithmetic = Arithmetic::kBF16}, &target());
      ASSERT_TRUE(status.ok()) << status.detail;
      for (const auto [m, n] : indices(16, 16)) {
        const size_t at = static_cast<size_t>((t * 16 + m) * 16 + n);
        float result = want[at];
        if (flushes_before_rounding()) {
          result = tdpbf16ps<second::flushed_fma, second::flushed_add>(
              [&](int64_t i) { return from_bf16_bits(r.first(t, m, i)); },
              [&](int64_t i) { return from_bf16_bits(r.second(t, n, i)); }, r.c[at]);
          changed += bits_of(result) != bits_of(want[at]);
        }
        const uint32_t expected = bits_of(result + 0.0f);
        ASSERT_EQ(bits_of(s.get_at({0, n, m, 0})), expected)
            << name << ", scores, tile " << t << ", " << m << ", " << n;
        if (hidden[m][n]) continue;
        ASSERT_EQ(bits_of(o.get_at({0, n, m, 0})), expected)
            << name << ", values, tile " << t << ", " << m << ", " << n;
        ++values_compared;
      }
    }
    EXPECT_GT(values_compared, r.tiles * 128) << name;
    EXPECT_TRUE(changed == 0 || std::string(name) == "flush_boundary") << name;
  }
}

/// scores() whose integers are the tile's, all scales 1, and weighted_values() likewise: a dimension, a key and a
/// column more hold the largest magnitude. -128 is no integer of kInt8: its products are taken out of the record.
TEST_P(Records, ScoresAndValuesAreTDPBSSDAndTDPBUSD) {
  Random random(seed() * 8000 + 2);
  const Int8Records r("int8");
  const std::vector<int32_t> ssd = r.results("tdpbssd"), usd = r.results("tdpbusd");
  constexpr Arithmetic kArithmetic = Arithmetic::kInt8;
  for (int64_t t = 0; t < r.tiles; ++t) {
    const Array<4> q(random, DType::kF32, {1, 1, 16, 66}), k(random, DType::kF32, {1, 1, 16, 66}),
        s(random, DType::kF32, {1, 1, 16, 16}), p(random, DType::kF32, {1, 1, 16, 65}),
        v(random, DType::kF32, {1, 1, 65, 17}), o(random, DType::kF32, {1, 1, 16, 17});
    const auto whole = [](int8_t x) { return x == -128 ? 0.0f : static_cast<float>(x); };
    bool key_is[64];  // its value has no -128
    for (int64_t j = 0; j < 64; ++j) {
      key_is[j] = true;
      for (int64_t n = 0; n < 16; ++n) key_is[j] = key_is[j] && r.second(t, n, j) != -128;
    }
    for (int64_t m = 0; m < 16; ++m) {
      for (int64_t i = 0; i < 64; ++i) {
        q.set_at({0, 0, m, i}, whole(r.first(t, m, i)));
        k.set_at({0, 0, m, i}, whole(r.second(t, m, i)));
        p.set_at({0, 0, m, i}, key_is[i] ? static_cast<float>(static_cast<uint8_t>(r.first(t, m, i))) : 0.0f);
        v.set_at({0, 0, i, m}, whole(r.second(t, m, i)));
      }
      q.set_at({0, 0, m, 64}, 127), q.set_at({0, 0, m, 65}, 0);
      k.set_at({0, 0, m, 64}, 0), k.set_at({0, 0, m, 65}, 127);
      p.set_at({0, 0, m, 64}, 255);
    }
    for (int64_t i = 0; i < 65; ++i) v.set_at({0, 0, i, 16}, 127);
    for (int64_t m = 0; m < 16; ++m) v.set_at({0, 0, 64, m}, 0);
    Status status = run_scores(q.view, k.view, s.view, {.scale = 1.0f, .arithmetic = kArithmetic}, &target());
    ASSERT_TRUE(status.ok()) << status.detail;
    status = run_weighted_values(p.view, v.view, o.view, {.arithmetic = kArithmetic}, &target());
    ASSERT_TRUE(status.ok()) << status.detail;
    for (const auto [m, n] : indices(16, 16)) {
      const size_t at = static_cast<size_t>((t * 16 + m) * 16 + n);
      // Accumulators wrap around; so do these.
      uint32_t score = static_cast<uint32_t>(ssd[at]) - static_cast<uint32_t>(r.c[at]);
      uint32_t value = static_cast<uint32_t>(usd[at]) - static_cast<uint32_t>(r.c[at]);
      for (int64_t i = 0; i < 64; ++i) {
        const int a = r.first(t, m, i), b = r.second(t, n, i);
        if (a == -128 || b == -128) score -= static_cast<uint32_t>(a * b);
        if (!key_is[i]) value -= static_cast<uint32_t>(static_cast<uint8_t>(a) * b);
      }
      ASSERT_EQ(s.get_at({0, 0, m, n}), static_cast<float>(static_cast<int32_t>(score))) << t << ", " << m << ", " << n;
      ASSERT_EQ(o.get_at({0, 0, m, n}), static_cast<float>(static_cast<int32_t>(value))) << t << ", " << m << ", " << n;
    }
  }
}

SIMDATTN_FOR_EACH_TARGET(Records);

}  // namespace
}  // namespace simdattn::test
