// Tables of positions against formulas in 256-bit arithmetic, against each other, and against bad calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "simdattn/extras.h"
#include "tests/rope/high_precision.h"
#include "tests/rope/rope_models.h"
#include "tests/support/indices.h"
#include "tests/support/status.h"

namespace {

using high_precision::cos_sin;
using high_precision::CosSin;
using high_precision::Fixed;
using high_precision::ulp_error;
using rope_models::exact_attention_factor;
using rope_models::exact_frequencies;
using rope_models::Model;
using rope_models::models;
using simdattn::MropeLayout;
using simdattn::RopeTableOptions;
using simdattn::RopeType;
using enum simdattn::RopeType;
using simdattn::Status;
using simdattn::view;
using simdattn::test::indices;
using simdattn::test::ok;

/// Positions where position * inv comes nearest to a multiple of pi/2: denominators of the continued fraction of
/// inv * 2/pi, and a few combinations of them.
std::vector<int64_t> near_zeros(const Fixed& inv) {
  std::vector<int64_t> result;
  Fixed x = inv * Fixed(2.0) / high_precision::pi();
  if (static_cast<double>(x) < 1e-12) return result;
  int64_t q0 = 1, q1 = 0;  // q_{-2}, q_{-1}
  for (int n = 0; n < 60; ++n) {
    const double a = std::floor(static_cast<double>(x));
    if (a * static_cast<double>(q1) + static_cast<double>(q0) >= 0x1p31) break;
    const int64_t q2 = static_cast<int64_t>(a) * q1 + q0;
    if (q2 > 0) result.push_back(q2);
    if (q1 > 0 && q1 + q2 < int64_t{1} << 31) result.push_back(q1 + q2);
    q0 = q1;
    q1 = q2;
    x = x - Fixed(a);
    if (static_cast<double>(x) < 1e-30) break;
    x = Fixed(1.0) / x;
  }
  return result;
}

struct Table {
  int64_t n = 0;
  int64_t pairs = 0;
  std::vector<float> cos, sin;
  float c(int64_t p, int64_t i) const { return cos[static_cast<size_t>(p * pairs + i)]; }
  float s(int64_t p, int64_t i) const { return sin[static_cast<size_t>(p * pairs + i)]; }
  bool operator==(const Table& o) const {
    return cos.size() == o.cos.size() && std::memcmp(cos.data(), o.cos.data(), 4 * cos.size()) == 0 &&
           std::memcmp(sin.data(), o.sin.data(), 4 * sin.size()) == 0;
  }
};

Table make_table(const RopeTableOptions& o, int64_t pairs, const std::vector<int64_t>& positions, int64_t axes = 1) {
  Table t;
  t.n = static_cast<int64_t>(positions.size()) / axes;
  t.pairs = pairs;
  t.cos.assign(static_cast<size_t>(t.n * pairs), NAN);
  t.sin = t.cos;
  EXPECT_TRUE(ok(simdattn::rope_table(view(t.cos.data(), {t.n, pairs}), view(t.sin.data(), {t.n, pairs}), o,
                                      view(positions.data(), {axes, t.n}))));
  return t;
}

/// 0, powers of two and their neighbours, the ends, random ones; both signs.
std::vector<int64_t> sweep_positions(uint64_t seed, int random) {
  std::vector<int64_t> p = {0};
  for (int e = 0; e <= 31; ++e) {
    for (const int64_t d : {-1, 0, 1}) {
      const int64_t x = (int64_t{1} << e) + d;
      if (x > 0 && x < int64_t{1} << 31) p.insert(p.end(), {x, -x});
    }
  }
  std::mt19937_64 bits(seed);
  for (int k = 0; k < random; ++k) {
    const uint64_t b = bits();
    const auto magnitude = static_cast<int64_t>((b >> 33) >> (k % 4 == 0 ? b % 31 : 0));
    p.push_back((b >> 32 & 1) != 0 ? -magnitude : magnitude);
  }
  return p;
}

uint64_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }

// ---------------------------------------------------------------------------------------------------------------------

TEST(RopeFrequencies, EveryTypeWithinOneUlpOfTheFormula) {
  for (const Model& m : models()) {
    SCOPED_TRACE(m.name);
    std::vector<double> got(static_cast<size_t>(m.pairs), NAN);
    double factor = NAN;
    ASSERT_TRUE(ok(simdattn::rope_frequencies(got.data(), m.pairs, &factor, m.options)));
    const Fixed want_factor = exact_attention_factor(m.options);
    EXPECT_LE(std::fabs(static_cast<double>((Fixed(factor) - want_factor) / want_factor)), 0x1p-52);
    const std::vector<Fixed> want = exact_frequencies(m.options, m.pairs);
    for (size_t i = 0; i < got.size(); ++i) {
      const double w = static_cast<double>(want[i]);
      if (w == 0) {
        EXPECT_EQ(got[i], 0);
      } else {
        // Rounded from double-double: half a unit in the last place.
        EXPECT_LE(std::ldexp(std::fabs(static_cast<double>(Fixed(got[i]) - want[i])), 52 - std::ilogb(w)), 0.5001) << i;
      }
    }
  }
}

// 0.1 ln f + 1 from f = 1 on, not from 2.
TEST(RopeTable, YarnOfFactorsNearOne) {
  for (const double f : {1.0, 1.015625, 1.25, 2.0}) {
    const RopeTableOptions o = {.rope_type = kYarn, .factor = f, .original_max_position_embeddings = 4096};
    const std::vector<Fixed> want = exact_frequencies(o, 64);
    std::vector<double> got(64);
    double factor = 0;
    ASSERT_TRUE(simdattn::rope_frequencies(got.data(), 64, &factor, o).ok());
    EXPECT_LE(std::fabs(static_cast<double>(Fixed(factor) - exact_attention_factor(o))), 0x1p-53) << f;
    for (size_t i = 0; i < 64; ++i) {
      EXPECT_LE(std::ldexp(std::fabs(static_cast<double>(Fixed(got[i]) - want[i])), 52 - std::ilogb(got[i])), 0.5001)
          << f << ", " << i;
    }
  }
}

TEST(RopeTable, WithinHalfAnUlpAtSweptPositions) {
  double worst = 0;
  for (size_t k = 0; k < models().size(); ++k) {
    const Model& m = models()[k];
    SCOPED_TRACE(m.name);
    const std::vector<int64_t> positions = sweep_positions(1000 + k, 100);
    const Table t = make_table(m.options, m.pairs, positions);
    const std::vector<Fixed> inv = exact_frequencies(m.options, m.pairs);
    const Fixed factor = exact_attention_factor(m.options);
    // A quarter of the columns of every row, shifting: all columns and all positions occur.
    for (int64_t p = 0; p < t.n; ++p) {
      for (int64_t i = p % 4; i < m.pairs; i += 4) {
        const CosSin want =
            cos_sin(Fixed(static_cast<double>(positions[static_cast<size_t>(p)])) * inv[static_cast<size_t>(i)]);
        const double e = std::max(ulp_error(t.c(p, i), want.cos * factor), ulp_error(t.s(p, i), want.sin * factor));
        ASSERT_LE(e, 0.51) << "position " << positions[static_cast<size_t>(p)] << " column " << i;
        worst = std::max(worst, e);
      }
    }
  }
  RecordProperty("worst_ulp", std::to_string(worst));
  std::printf("worst error: %.6f ulp\n", worst);
}

TEST(RopeTable, WithinHalfAnUlpWhereCosOrSinIsNearZero) {
  double worst = 0, smallest = 1;
  for (const Model& m : models()) {
    SCOPED_TRACE(m.name);
    const std::vector<Fixed> inv = exact_frequencies(m.options, m.pairs);
    const Fixed factor = exact_attention_factor(m.options);
    for (int64_t i = 0; i < m.pairs; i += m.pairs > 20 ? 3 : 1) {
      const std::vector<int64_t> positions = near_zeros(inv[static_cast<size_t>(i)]);
      if (positions.empty()) continue;
      const Table t = make_table(m.options, m.pairs, positions);
      for (int64_t p = 0; p < t.n; ++p) {
        const CosSin want =
            cos_sin(Fixed(static_cast<double>(positions[static_cast<size_t>(p)])) * inv[static_cast<size_t>(i)]);
        const double e = std::max(ulp_error(t.c(p, i), want.cos * factor), ulp_error(t.s(p, i), want.sin * factor));
        ASSERT_LE(e, 0.51) << "position " << positions[static_cast<size_t>(p)] << " column " << i;
        worst = std::max(worst, e);
        smallest =
            std::min({smallest, std::fabs(static_cast<double>(want.cos)), std::fabs(static_cast<double>(want.sin))});
      }
    }
  }
  std::printf("worst error: %.6f ulp; smallest |cos|, |sin|: %.3g\n", worst, smallest);
  EXPECT_LT(smallest, 1e-10);  // the search does find what it is after
}

/// Frequencies in f32 as PyTorch computes them, with a correctly rounded power.
std::vector<float> f32_frequencies(const RopeTableOptions& o, int64_t pairs) {
  std::vector<float> result;
  for (int64_t i = 0; i < pairs; ++i) {
    const auto k = static_cast<size_t>(i);
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(2 * pairs);
    const auto theta = static_cast<double>(static_cast<float>(o.rope_theta));
    const auto power =
        static_cast<float>(static_cast<double>(exp(log(Fixed(theta)) * Fixed(static_cast<double>(exponent)))));
    float inv = 1.0f / power;
    if (o.inv_freq.size > 0) inv = static_cast<float>(o.inv_freq.data[k]);
    if (o.rope_type == kLinear) inv = inv / static_cast<float>(o.factor);
    if (o.rope_type == kLongRope)
      inv = 1.0f / (static_cast<float>(
                        (o.seq_len > o.original_max_position_embeddings ? o.long_factor : o.short_factor).data[k]) *
                    power);
    if (o.freq_factors.size > 0) inv = inv / static_cast<float>(o.freq_factors.data[k]);
    result.push_back(inv);
  }
  return result;
}

TEST(RopeTable, F32AnglesAreTheRoundedProductsAndTheirCosinesExact) {
  for (const Model& m : models()) {
    SCOPED_TRACE(m.name);
    RopeTableOptions o = m.options;
    o.f32_angles = true;
    const auto count = static_cast<size_t>(m.pairs);
    std::vector<double> inv(count), exact(count);
    double factor = 0;
    ASSERT_TRUE(simdattn::rope_frequencies(inv.data(), m.pairs, &factor, o).ok());
    ASSERT_TRUE(simdattn::rope_frequencies(exact.data(), m.pairs, nullptr, m.options).ok());
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(inv[i], static_cast<double>(static_cast<float>(inv[i])));
      EXPECT_NEAR(inv[i], exact[i], 1e-6 * exact[i]) << i;
    }
    EXPECT_EQ(factor, static_cast<double>(static_cast<float>(factor)));
    const bool simple =
        o.mrope_section[0] == 0 && (o.rope_type == kDefault || o.rope_type == kLinear || o.rope_type == kLongRope);
    if (simple) {
      const std::vector<float> want = f32_frequencies(o, m.pairs);
      for (size_t i = 0; i < count; ++i) EXPECT_EQ(inv[i], static_cast<double>(want[i])) << i;
    }
    const std::vector<int64_t> positions = sweep_positions(7, 40);
    const Table t = make_table(o, m.pairs, positions);
    for (int64_t p = 0; p < t.n; ++p) {
      for (int64_t i = p % 8; i < m.pairs; i += 8) {
        const float angle =
            static_cast<float>(positions[static_cast<size_t>(p)]) * static_cast<float>(inv[static_cast<size_t>(i)]);
        const CosSin want = cos_sin(Fixed(static_cast<double>(angle)));
        if (factor == 1) {
          ASSERT_LE(ulp_error(t.c(p, i), want.cos), 0.51) << positions[static_cast<size_t>(p)] << " " << i;
          ASSERT_LE(ulp_error(t.s(p, i), want.sin), 0.51) << positions[static_cast<size_t>(p)] << " " << i;
        } else {  // the product with the factor is one more rounding
          ASSERT_LE(ulp_error(t.c(p, i), want.cos * Fixed(factor)), 1.51);
          ASSERT_LE(ulp_error(t.s(p, i), want.sin * Fixed(factor)), 1.51);
        }
      }
    }
  }
}

TEST(RopeTable, NegativePositionsMirror) {
  for (const bool f32_angles : {false, true}) {
    for (const Model& m : models()) {
      RopeTableOptions o = m.options;
      o.f32_angles = f32_angles;
      const std::vector<int64_t> up = {0, 1, 2, 77, 4095, 131071, 123456789, 2147483647};
      std::vector<int64_t> down;
      for (const int64_t p : up) down.push_back(-p);
      const Table a = make_table(o, m.pairs, up), b = make_table(o, m.pairs, down);
      for (size_t k = 0; k < a.cos.size(); ++k) {
        ASSERT_EQ(bits_of(a.cos[k]), bits_of(b.cos[k]));
        ASSERT_EQ(bits_of(0.0f - a.sin[k]), bits_of(b.sin[k]));
      }
      for (int64_t i = 0; i < m.pairs; ++i) {
        EXPECT_EQ(bits_of(a.s(0, i)), 0u) << "+0";
        EXPECT_EQ(bits_of(b.s(0, i)), 0u) << "+0";
      }
    }
  }
}

TEST(RopeTable, PositionsOfEveryKindGiveTheSameBits) {
  const Model& m = models()[14];  // yarn: the attention factor takes part
  std::vector<int64_t> positions;
  for (int64_t p = -3; p < 30; ++p) positions.push_back(p);
  const auto n = static_cast<int64_t>(positions.size());
  const Table want = make_table(m.options, m.pairs, positions);

  Table counted = want;
  std::fill(counted.cos.begin(), counted.cos.end(), 7.0f);
  std::fill(counted.sin.begin(), counted.sin.end(), 7.0f);
  ASSERT_TRUE(simdattn::rope_table(view(counted.cos.data(), {n, m.pairs}), view(counted.sin.data(), {n, m.pairs}),
                                   m.options, {}, -3)
                  .ok());
  EXPECT_TRUE(counted == want);

  const std::vector<int32_t> narrow(positions.begin(), positions.end());
  Table i32 = want;
  std::fill(i32.cos.begin(), i32.cos.end(), 7.0f);
  ASSERT_TRUE(simdattn::rope_table(view(i32.cos.data(), {n, m.pairs}), view(i32.sin.data(), {n, m.pairs}), m.options,
                                   view(narrow.data(), {1, n}))
                  .ok());
  EXPECT_TRUE(i32 == want);

  // One buffer of [n, cos | sin | 3 elements that stay], rows backwards.
  const int64_t step = 2 * m.pairs + 3;
  std::vector<float> both(static_cast<size_t>(n * step), 7.0f);
  float* last = both.data() + (n - 1) * step;
  ASSERT_TRUE(
      ok(simdattn::rope_table(view(last, {n, m.pairs}, {-step, 1}), view(last + m.pairs, {n, m.pairs}, {-step, 1}),
                              m.options, view(positions.data(), {1, n}))));
  for (int64_t p = 0; p < n; ++p) {
    const float* row = last - p * step;
    for (int64_t i = 0; i < m.pairs; ++i) {
      ASSERT_EQ(bits_of(row[i]), bits_of(want.c(p, i)));
      ASSERT_EQ(bits_of(row[m.pairs + i]), bits_of(want.s(p, i)));
    }
    for (int64_t k = 2 * m.pairs; k < step; ++k) EXPECT_EQ(row[k], 7.0f);
  }
}

TEST(RopeTable, TypesMeetWhereTheirFormulasDo) {
  const std::vector<int64_t> positions = sweep_positions(3, 30);
  const std::vector<double> fours(48, 4.0), ones(48, 1.0);
  const RopeTableOptions plain{.rope_theta = 5e5};
  const Table want = make_table(plain, 48, positions);
  const auto same = [&](const char* what, const RopeTableOptions& o) {
    EXPECT_TRUE(make_table(o, 48, positions) == want) << what;
  };
  same("linear 1", {.rope_theta = 5e5, .rope_type = kLinear, .factor = 1});
  same("proportional, all", {.rope_theta = 5e5, .rope_type = kProportional});
  same("dynamic within its length",
       {.rope_theta = 5e5, .rope_type = kDynamic, .factor = 4, .max_position_embeddings = 64, .seq_len = 64});
  same("yarn 1", {.rope_theta = 5e5, .rope_type = kYarn, .factor = 1, .original_max_position_embeddings = 64});
  same("llama3 1", {.rope_theta = 5e5, .rope_type = kLlama3, .factor = 1});
  same("longrope of ones", {.rope_theta = 5e5,
                            .rope_type = kLongRope,
                            .original_max_position_embeddings = 64,
                            .short_factor = ones,
                            .long_factor = fours});
  same("an interleaved text",
       {.rope_theta = 5e5, .mrope_section = {16, 16, 16}, .mrope_layout = MropeLayout::kInterleaved});
  same("factors of one", {.rope_theta = 5e5, .freq_factors = ones});

  const Table linear = make_table({.rope_theta = 5e5, .rope_type = kLinear, .factor = 4}, 48, positions);
  EXPECT_TRUE(make_table({.rope_theta = 5e5, .freq_factors = fours}, 48, positions) == linear);
  EXPECT_FALSE(linear == want);
  // yarn: its original_max falls back to max_position_embeddings.
  EXPECT_TRUE(make_table({.rope_type = kYarn, .factor = 4, .original_max_position_embeddings = 512}, 48, positions) ==
              make_table({.rope_type = kYarn, .factor = 4, .max_position_embeddings = 512}, 48, positions));
  // attention_factor multiplies; 2 is exact.
  Table doubled = make_table({.rope_theta = 5e5, .attention_factor = 2.0}, 48, positions);
  for (float& x : doubled.cos) x *= 0.5f;
  for (float& x : doubled.sin) x *= 0.5f;
  EXPECT_TRUE(doubled == want);
}

TEST(RopeTable, ColumnsFollowTheirAxis) {
  const std::vector<int64_t> axes[3] = {{3, -1, 100000, 7}, {0, 5, 131071, 70000}, {9, 9, -77, 2147483647}};
  std::vector<int64_t> all;
  for (const auto& a : axes) all.insert(all.end(), a.begin(), a.end());
  const std::vector<int64_t> sections = {24, 20, 20};
  for (const bool f32_angles : {false, true}) {
    RopeTableOptions o{.rope_theta = 1e6, .mrope_section = {24, 20, 20}, .f32_angles = f32_angles};
    RopeTableOptions plain{.rope_theta = 1e6, .f32_angles = f32_angles};
    const Table one[3] = {make_table(plain, 64, axes[0]), make_table(plain, 64, axes[1]),
                          make_table(plain, 64, axes[2])};
    const auto check = [&](const Table& t, auto&& axis_of) {
      for (const auto [p, i] : indices(4, 64)) {
        ASSERT_EQ(bits_of(t.c(p, i)), bits_of(one[axis_of(i)].c(p, i))) << p << " " << i;
        ASSERT_EQ(bits_of(t.s(p, i)), bits_of(one[axis_of(i)].s(p, i))) << p << " " << i;
      }
    };
    check(make_table(o, 64, all, 3), [](int64_t i) { return i < 24 ? 0 : i < 44 ? 1 : 2; });
    o.mrope_layout = MropeLayout::kInterleaved;
    check(make_table(o, 64, all, 3), [](int64_t i) { return i % 3 == 1 && i < 60 ? 1 : i % 3 == 2 && i < 60 ? 2 : 0; });
    // Sections of their own are three tables side by side.
    o.mrope_layout = MropeLayout::kAxial;
    const Table t = make_table(o, 64, all, 3);
    int64_t start = 0;
    for (size_t a = 0; a < 3; ++a) {
      const Table own = make_table(plain, sections[a], axes[a]);
      for (const auto [p, i] : indices(4, sections[a])) {
        ASSERT_EQ(bits_of(t.c(p, start + i)), bits_of(own.c(p, i)));
        ASSERT_EQ(bits_of(t.s(p, start + i)), bits_of(own.s(p, i)));
      }
      start += sections[a];
    }
  }
}

TEST(SinusoidalTable, WithinHalfAnUlpOfTheFormula) {
  double worst = 0;
  for (const int64_t d : {1, 2, 4, 7, 64, 300, 512}) {
    for (const double base : {10000.0, 777.0}) {
      const std::vector<int64_t> positions = sweep_positions(static_cast<uint64_t>(d), 20);
      const auto n = static_cast<int64_t>(positions.size());
      std::vector<float> out(static_cast<size_t>(n * d), NAN);
      ASSERT_TRUE(ok(simdattn::sinusoidal_table(view(out.data(), {n, d}), base, view(positions.data(), {n}))));
      for (int64_t i = 0; 2 * i < d; i += d > 64 ? 5 : 1) {
        const Fixed inv = exp(-(log(Fixed(base)) * Fixed(static_cast<double>(2 * i)) / Fixed(static_cast<double>(d))));
        for (int64_t p = i % 3; p < n; p += 3) {
          const CosSin want = cos_sin(Fixed(static_cast<double>(positions[static_cast<size_t>(p)])) * inv);
          const float* row = out.data() + p * d;
          double e = ulp_error(row[2 * i], want.sin);
          if (2 * i + 1 < d) e = std::max(e, ulp_error(row[2 * i + 1], want.cos));
          ASSERT_LE(e, 0.51) << d << " " << positions[static_cast<size_t>(p)] << " " << i;
          worst = std::max(worst, e);
        }
      }
    }
  }
  std::printf("worst error: %.6f ulp\n", worst);
}

TEST(SinusoidalTable, IsARopeTableInterleaved) {
  const int64_t n = 40, d = 150;
  std::vector<float> out(static_cast<size_t>(n * (d + 1)), 7.0f), cos(static_cast<size_t>(n * d / 2)), sin = cos;
  ASSERT_TRUE(simdattn::sinusoidal_table(view(out.data(), {n, d}, {d + 1, 1}), 10000, {}, 5000).ok());
  ASSERT_TRUE(simdattn::rope_table(view(cos.data(), {n, d / 2}), view(sin.data(), {n, d / 2}), {}, {}, 5000).ok());
  for (int64_t p = 0; p < n; ++p) {
    const float* row = out.data() + p * (d + 1);
    for (int64_t i = 0; i < d / 2; ++i) {
      ASSERT_EQ(bits_of(row[2 * i]), bits_of(sin[static_cast<size_t>(p * d / 2 + i)]));
      ASSERT_EQ(bits_of(row[2 * i + 1]), bits_of(cos[static_cast<size_t>(p * d / 2 + i)]));
    }
    EXPECT_EQ(row[d], 7.0f);
  }
}

/// One bit pattern on every CPU, with every compiler and every C library: the digest is part of the definition.
TEST(PositionTables, BitsAreTheDefinition) {
  uint64_t digest = 0xcbf29ce484222325u;  // FNV-1a over little-endian words
  const auto add = [&](uint64_t word, int bytes) {
    for (int k = 0; k < bytes; ++k) digest = (digest ^ (word >> 8 * k & 0xFF)) * 0x100000001b3u;
  };
  for (const bool f32_angles : {false, true}) {
    for (const Model& m : models()) {
      RopeTableOptions o = m.options;
      o.f32_angles = f32_angles;
      // Not std::mt19937_64's distributions, which differ between libraries; its raw bits do not.
      const Table t = make_table(o, m.pairs, sweep_positions(99, 400));
      for (const float x : t.cos) add(bits_of(x), 4);
      for (const float x : t.sin) add(bits_of(x), 4);
      std::vector<double> inv(static_cast<size_t>(m.pairs));
      double factor = 0;
      ASSERT_TRUE(simdattn::rope_frequencies(inv.data(), m.pairs, &factor, o).ok());
      for (const double x : inv) add(std::bit_cast<uint64_t>(x), 8);
      add(std::bit_cast<uint64_t>(factor), 8);
    }
  }
  std::vector<float> out(1000 * 66);
  ASSERT_TRUE(simdattn::sinusoidal_table(view(out.data(), {1000, 66}), 10000, {}, -500).ok());
  for (const float x : out) add(bits_of(x), 4);
  std::printf("digest: %016llx\n", static_cast<unsigned long long>(digest));
  // The same from gcc and clang at every optimisation level, on x86-64 and AArch64. A change is a breaking change.
  EXPECT_EQ(digest, 0x4a656b94d33a83f3u);
}

}  // namespace
