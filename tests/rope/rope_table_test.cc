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

#include "simdattn/simdattn.h"
#include "tests/rope/high_precision.h"
#include "tests/support/indices.h"
#include "tests/support/status.h"

namespace {

using high_precision::cos_sin;
using high_precision::CosSin;
using high_precision::Fixed;
using high_precision::ulp_error;
using simdattn::Code;
using simdattn::MropeLayout;
using simdattn::RopeTableOptions;
using simdattn::RopeType;
using simdattn::Status;
using simdattn::view;
using simdattn::test::indices;
using simdattn::test::ok;

struct Model {
  const char* name;
  int64_t pairs;
  RopeTableOptions options;
};

const std::vector<double>& long_factors() {
  static const std::vector<double> v = [] {
    std::vector<double> f;
    for (int i = 0; i < 48; ++i) f.push_back(1.08 + 1.34 * i + 0.01 * i * (i % 3));
    return f;
  }();
  return v;
}
const std::vector<double>& short_factors() {
  static const std::vector<double> v = [] {
    std::vector<double> f;
    for (int i = 0; i < 48; ++i) f.push_back(1.0 + 0.04 * i);
    return f;
  }();
  return v;
}

/// Parameters as model configurations have them, and some at the edges.
const std::vector<Model>& models() {
  static const std::vector<Model> v = {
      {"default 1e4", 64, {}},
      {"default 5e5 of 80", 40, {.rope_theta = 5e5}},
      {"default 8e6", 64, {.rope_theta = 8e6}},
      {"default 1e15", 16, {.rope_theta = 1e15}},
      {"default 1", 2, {.rope_theta = 1}},
      {"one column", 1, {}},
      {"linear 4", 64, {.rope_theta = 1e5, .rope_type = RopeType::kLinear, .factor = 4}},
      {"linear 8", 128, {.rope_theta = 1e6, .rope_type = RopeType::kLinear, .factor = 8}},
      {"linear 3.7", 16, {.rope_type = RopeType::kLinear, .factor = 3.7}},
      {"linear 0.1", 16, {.rope_type = RopeType::kLinear, .factor = 0.1}},
      {"proportional", 128, {.rope_theta = 1e6, .rope_type = RopeType::kProportional, .partial_rotary_factor = 0.25}},
      {"dynamic short",
       64,
       {.rope_type = RopeType::kDynamic, .factor = 2, .max_position_embeddings = 4096, .seq_len = 100}},
      {"dynamic long",
       64,
       {.rope_type = RopeType::kDynamic, .factor = 2, .max_position_embeddings = 4096, .seq_len = 16384}},
      {"dynamic one column",
       1,
       {.rope_type = RopeType::kDynamic, .factor = 2, .max_position_embeddings = 4096, .seq_len = 16384}},
      {"yarn 4",
       64,
       {.rope_theta = 1e6, .rope_type = RopeType::kYarn, .factor = 4, .original_max_position_embeddings = 32768}},
      {"yarn without rounding",
       32,
       {.rope_theta = 150000,
        .rope_type = RopeType::kYarn,
        .factor = 32,
        .original_max_position_embeddings = 4096,
        .truncate = false}},
      {"yarn with mscale pair",
       32,
       {.rope_type = RopeType::kYarn,
        .factor = 40,
        .original_max_position_embeddings = 4096,
        .mscale = 0.707,
        .mscale_all_dim = 0.8}},
      {"yarn, equal ends",
       32,
       {.rope_theta = 50000,
        .rope_type = RopeType::kYarn,
        .factor = 32,
        .original_max_position_embeddings = 4096,
        .beta_fast = 1,
        .beta_slow = 1,
        .truncate = false}},
      {"llama3 8", 64, {.rope_theta = 5e5, .rope_type = RopeType::kLlama3}},
      {"llama3 32", 32, {.rope_theta = 5e5, .rope_type = RopeType::kLlama3, .factor = 32}},
      {"llama3 with a step",
       64,
       {.rope_theta = 5e5, .rope_type = RopeType::kLlama3, .factor = 16, .high_freq_factor = 1}},
      {"longrope short",
       48,
       {.rope_type = RopeType::kLongRope,
        .original_max_position_embeddings = 4096,
        .max_position_embeddings = 131072,
        .short_factor = short_factors(),
        .long_factor = long_factors()}},
      {"longrope long",
       48,
       {.rope_type = RopeType::kLongRope,
        .original_max_position_embeddings = 4096,
        .max_position_embeddings = 131072,
        .seq_len = 4097,
        .short_factor = short_factors(),
        .long_factor = long_factors()}},
      {"longrope, attention factor given",
       48,
       {.rope_type = RopeType::kLongRope,
        .factor = 16,
        .original_max_position_embeddings = 4096,
        .attention_factor = 1.25,
        .short_factor = short_factors(),
        .long_factor = long_factors()}},
      {"longrope, factor",
       48,
       {.rope_type = RopeType::kLongRope,
        .factor = 16,
        .original_max_position_embeddings = 4096,
        .short_factor = short_factors(),
        .long_factor = long_factors()}},
      {"frequency factors", 48, {.rope_theta = 5e5, .freq_factors = long_factors()}},
      {"frequencies given", 48, {.inv_freq = short_factors()}},
      {"axial", 40, {.mrope_section = {20, 20}, .mrope_layout = MropeLayout::kAxial}},
      {"axial of three sizes", 64, {.mrope_section = {22, 21, 21}, .mrope_layout = MropeLayout::kAxial}},
      {"yarn, ramp past the last column",
       16,
       {.rope_theta = 100,
        .rope_type = RopeType::kYarn,
        .factor = 4,
        .original_max_position_embeddings = 1000000,
        .beta_fast = 10000}},
      {"yarn, ramp from before the first column",
       32,
       {.rope_type = RopeType::kYarn, .factor = 2.5, .original_max_position_embeddings = 100}},
  };
  return v;
}

// ---------------------------------------------------------------------------------------------------------------------
// The formulas, as spec pages print them

Fixed yarn_g(const RopeTableOptions& o, double m) {
  return o.factor <= 1 ? Fixed(1.0) : Fixed(m) * log(Fixed(o.factor)) / 10 + Fixed(1.0);
}

Fixed exact_attention_factor(const RopeTableOptions& o) {
  if (o.attention_factor) return *o.attention_factor;
  if (o.rope_type == RopeType::kYarn) {
    if (o.mscale != 0 && o.mscale_all_dim != 0) return yarn_g(o, o.mscale) / yarn_g(o, o.mscale_all_dim);
    return yarn_g(o, 1);
  }
  if (o.rope_type == RopeType::kLongRope) {
    const Fixed m0 = static_cast<double>(o.original_max_position_embeddings);
    const Fixed f =
        o.max_position_embeddings != 0 ? Fixed(static_cast<double>(o.max_position_embeddings)) / m0 : Fixed(o.factor);
    return sqrt(Fixed(1.0) + log(f) / log(m0));
  }
  return 1.0;
}

std::vector<Fixed> exact_frequencies(const RopeTableOptions& o, int64_t pairs) {
  std::vector<Fixed> result;
  if (o.mrope_layout == MropeLayout::kAxial) {
    for (const int64_t section : o.mrope_section) {
      RopeTableOptions own = o;
      own.mrope_section = {};
      own.mrope_layout = MropeLayout::kContiguous;
      for (const Fixed& f : exact_frequencies(own, section)) result.push_back(f);
    }
    return result;
  }
  const auto r = static_cast<double>(2 * pairs);
  const Fixed f = o.factor;
  Fixed theta = o.rope_theta;
  if (o.rope_type == RopeType::kDynamic && o.seq_len > o.max_position_embeddings && pairs > 1) {
    const Fixed ratio =
        f * Fixed(static_cast<double>(o.seq_len)) / Fixed(static_cast<double>(o.max_position_embeddings));
    theta = theta * exp(log(ratio - (f - Fixed(1.0))) * (Fixed(r) / Fixed(r - 2)));
  }
  const Fixed ln_theta = log(theta);
  const Fixed two_pi = Fixed(2.0) * high_precision::pi();
  Fixed low, high;
  if (o.rope_type == RopeType::kYarn) {
    const Fixed m0 = static_cast<double>(o.original_max_position_embeddings);
    const auto corr = [&](double n) { return Fixed(r) * log(m0 / (Fixed(n) * two_pi)) / (Fixed(2.0) * ln_theta); };
    low = corr(o.beta_fast);
    high = corr(o.beta_slow);
    if (o.truncate) {  // no configuration here comes within 1e-10 of an integer
      low = std::floor(static_cast<double>(low));
      high = std::ceil(static_cast<double>(high));
    }
    if (low.negative()) low = 0.0;
    if (Fixed(r - 1) < high) high = r - 1;
    if (!(low < high) && !(high < low)) high = high + Fixed(0.001);
  }
  for (int64_t i = 0; i < pairs; ++i) {
    const auto k = static_cast<size_t>(i);
    Fixed inv = exp(-(ln_theta * Fixed(static_cast<double>(2 * i)) / Fixed(r)));
    switch (o.rope_type) {
      case RopeType::kDefault:
        if (o.inv_freq.size > 0) inv = o.inv_freq.data[k];
        break;
      case RopeType::kDynamic: break;
      case RopeType::kLinear: inv = inv / f; break;
      case RopeType::kProportional:
        if (o.factor != 0) inv = inv / f;
        if (static_cast<double>(i) >= std::floor(o.partial_rotary_factor * static_cast<double>(pairs))) inv = 0.0;
        break;
      case RopeType::kYarn: {
        Fixed ramp = (Fixed(static_cast<double>(i)) - low) / (high - low);
        if (ramp.negative()) ramp = 0.0;
        if (Fixed(1.0) < ramp) ramp = 1.0;
        inv = inv / f * ramp + inv * (Fixed(1.0) - ramp);
        break;
      }
      case RopeType::kLlama3: {
        const Fixed factor = o.factor != 0 ? o.factor : 8.0;
        const Fixed m0 = 8192.0, lo = o.low_freq_factor, hi = o.high_freq_factor;
        const Fixed lambda = two_pi / inv;
        if (lambda < m0 / hi) break;
        if (m0 / lo < lambda) {
          inv = inv / factor;
          break;
        }
        const Fixed s = (m0 / lambda - lo) / (hi - lo);
        inv = (Fixed(1.0) - s) * inv / factor + s * inv;
        break;
      }
      case RopeType::kLongRope: {
        const bool is_long = o.seq_len > o.original_max_position_embeddings;
        inv = inv / Fixed(is_long ? o.long_factor.data[k] : o.short_factor.data[k]);
        break;
      }
    }
    if (o.freq_factors.size > 0) inv = inv / Fixed(o.freq_factors.data[k]);
    result.push_back(inv);
  }
  return result;
}

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
    const RopeTableOptions o = {.rope_type = RopeType::kYarn, .factor = f, .original_max_position_embeddings = 4096};
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
    if (o.rope_type == RopeType::kLinear) inv = inv / static_cast<float>(o.factor);
    if (o.rope_type == RopeType::kLongRope)
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
        o.mrope_section[0] == 0 &&
        (o.rope_type == RopeType::kDefault || o.rope_type == RopeType::kLinear || o.rope_type == RopeType::kLongRope);
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
  same("linear 1", {.rope_theta = 5e5, .rope_type = RopeType::kLinear, .factor = 1});
  same("proportional, all", {.rope_theta = 5e5, .rope_type = RopeType::kProportional});
  same("dynamic within its length",
       {.rope_theta = 5e5, .rope_type = RopeType::kDynamic, .factor = 4, .max_position_embeddings = 64, .seq_len = 64});
  same("yarn 1",
       {.rope_theta = 5e5, .rope_type = RopeType::kYarn, .factor = 1, .original_max_position_embeddings = 64});
  same("llama3 1", {.rope_theta = 5e5, .rope_type = RopeType::kLlama3, .factor = 1});
  same("longrope of ones", {.rope_theta = 5e5,
                            .rope_type = RopeType::kLongRope,
                            .original_max_position_embeddings = 64,
                            .short_factor = ones,
                            .long_factor = fours});
  same("an interleaved text",
       {.rope_theta = 5e5, .mrope_section = {16, 16, 16}, .mrope_layout = MropeLayout::kInterleaved});
  same("factors of one", {.rope_theta = 5e5, .freq_factors = ones});

  const Table linear = make_table({.rope_theta = 5e5, .rope_type = RopeType::kLinear, .factor = 4}, 48, positions);
  EXPECT_TRUE(make_table({.rope_theta = 5e5, .freq_factors = fours}, 48, positions) == linear);
  EXPECT_FALSE(linear == want);
  // yarn: its original_max falls back to max_position_embeddings.
  EXPECT_TRUE(
      make_table({.rope_type = RopeType::kYarn, .factor = 4, .original_max_position_embeddings = 512}, 48, positions) ==
      make_table({.rope_type = RopeType::kYarn, .factor = 4, .max_position_embeddings = 512}, 48, positions));
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

TEST(RopeTable, BadFieldsAreNamedAndNothingIsWritten) {
  struct Bad {
    const char* field;
    Code code;
    RopeTableOptions options;
  };
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::vector<double> good(8, 2.0), few(7, 2.0), negative = {1, 1, 1, 1, 1, 1, 1, -1},
                                                       nan = {1, 1, kNaN, 1, 1, 1, 1, 1};
  const RopeType yarn = RopeType::kYarn, dynamic = RopeType::kDynamic, longrope = RopeType::kLongRope;
  std::vector<Bad> bad = {
      {"rope_type", Code::kRange, {.rope_type = static_cast<RopeType>(7)}},
      {"rope_theta", Code::kRange, {.rope_theta = 1, .rope_type = yarn, .factor = 2, .max_position_embeddings = 64}},
      {"factor", Code::kRange, {.factor = 2}},
      {"factor", Code::kRange, {.rope_type = RopeType::kLinear}},
      {"factor", Code::kRange, {.rope_type = dynamic, .max_position_embeddings = 64}},
      {"factor", Code::kRange, {.rope_type = yarn, .original_max_position_embeddings = 64}},
      {"original_max_position_embeddings", Code::kRange, {.original_max_position_embeddings = -1}},
      {"original_max_position_embeddings", Code::kRange, {.original_max_position_embeddings = int64_t{1} << 31}},
      {"original_max_position_embeddings", Code::kRange, {.rope_type = yarn, .factor = 2}},
      {"original_max_position_embeddings",
       Code::kRange,
       {.rope_type = longrope, .factor = 2, .short_factor = good, .long_factor = good}},
      {"max_position_embeddings", Code::kRange, {.max_position_embeddings = -1}},
      {"max_position_embeddings", Code::kRange, {.rope_type = dynamic, .factor = 2}},
      {"seq_len", Code::kRange, {.seq_len = -1}},
      {"seq_len",
       Code::kRange,
       {.rope_theta = 1e14, .rope_type = dynamic, .factor = 9, .max_position_embeddings = 2, .seq_len = 100}},
      {"beta_fast", Code::kRange, {.beta_fast = 1, .beta_slow = 2}},
      {"high_freq_factor", Code::kRange, {.low_freq_factor = 4, .high_freq_factor = 3.9}},
      {"partial_rotary_factor", Code::kRange, {.partial_rotary_factor = 1.01}},
      {"freq_factors", Code::kShape, {.freq_factors = few}},
      {"freq_factors", Code::kNullPointer, {.freq_factors = {nullptr, 8}}},
      {"short_factor", Code::kNullPointer, {.short_factor = {nullptr, 8}}},
      {"long_factor", Code::kNullPointer, {.long_factor = {nullptr, -1}}},
      {"inv_freq", Code::kNullPointer, {.inv_freq = {nullptr, 1}}},
      {"freq_factors", Code::kRange, {.freq_factors = negative}},
      {"freq_factors", Code::kRange, {.freq_factors = nan}},
      {"inv_freq", Code::kShape, {.inv_freq = few}},
      {"inv_freq", Code::kRange, {.inv_freq = negative}},
      {"inv_freq", Code::kRange, {.inv_freq = nan}},
      {"inv_freq", Code::kRange, {.rope_type = RopeType::kLlama3, .inv_freq = good}},
      {"mrope_section", Code::kShape, {.mrope_section = {3, 3}}},
      {"mrope_section", Code::kRange, {.mrope_section = {9, -1}}},
      {"mrope_section", Code::kRange, {.mrope_section = {std::numeric_limits<int64_t>::max(), 2}}},
      {"mrope_section", Code::kRange, {.mrope_section = {4, 4}, .mrope_layout = MropeLayout::kInterleaved}},
      {"mrope_section", Code::kRange, {.mrope_section = {2, 2, 2, 2}, .mrope_layout = MropeLayout::kInterleaved}},
      {"mrope_layout", Code::kRange, {.mrope_layout = MropeLayout::kAxial}},
      {"mrope_layout", Code::kRange, {.mrope_layout = static_cast<MropeLayout>(3)}},
      {"mrope_layout",
       Code::kRange,
       {.rope_type = RopeType::kLlama3, .mrope_section = {4, 4}, .mrope_layout = MropeLayout::kAxial}},
  };
  for (const auto& [field, factors] : {std::pair{"short_factor", 0}, std::pair{"long_factor", 1}}) {
    for (const auto& [code, values] :
         {std::pair{Code::kShape, &few}, {Code::kRange, &negative}, {Code::kRange, &nan}}) {
      RopeTableOptions o{.rope_type = longrope,
                         .original_max_position_embeddings = 64,
                         .max_position_embeddings = 128,
                         .short_factor = good,
                         .long_factor = good};
      (factors == 0 ? o.short_factor : o.long_factor) = *values;
      bad.push_back({field, code, o});
    }
  }
  const auto numbers = [&](const char* field, double RopeTableOptions::* member, std::vector<double> values) {
    values.insert(values.end(), {kNaN, kInf, -kInf, -1.0, -1e-300, 1e300});
    for (const double value : values) {
      RopeTableOptions o;
      o.*member = value;
      bad.push_back({field, Code::kRange, o});
    }
  };
  numbers("rope_theta", &RopeTableOptions::rope_theta, {0, 0.999, 1.1e15});
  numbers("factor", &RopeTableOptions::factor, {0.9e-3, 1.1e6});
  numbers("beta_fast", &RopeTableOptions::beta_fast, {0});
  numbers("beta_slow", &RopeTableOptions::beta_slow, {0});
  numbers("mscale", &RopeTableOptions::mscale, {});
  numbers("mscale_all_dim", &RopeTableOptions::mscale_all_dim, {});
  numbers("low_freq_factor", &RopeTableOptions::low_freq_factor, {0});
  numbers("high_freq_factor", &RopeTableOptions::high_freq_factor, {0, 0.5});
  numbers("partial_rotary_factor", &RopeTableOptions::partial_rotary_factor, {0});
  for (const double value : {kNaN, kInf, 0.0, -1.0, 1.1e6}) {
    RopeTableOptions o;
    o.attention_factor = value;
    bad.push_back({"attention_factor", Code::kRange, o});
  }

  for (const Bad& b : bad) {
    float cos[8], sin[8];
    double inv[8], factor = 42;
    std::fill(cos, cos + 8, 42.0f);
    std::fill(sin, sin + 8, 42.0f);
    std::fill(inv, inv + 8, 42.0);
    const Status status = simdattn::rope_table(view(cos, {1, 8}), view(sin, {1, 8}), b.options);
    EXPECT_EQ(status.code, b.code) << b.field << ": " << status.detail;
    EXPECT_EQ(std::string(status.detail).rfind(std::string("options.") + b.field + ":", 0), 0u)
        << b.field << ": " << status.detail;
    const Status frequencies = simdattn::rope_frequencies(inv, 8, &factor, b.options);
    EXPECT_EQ(frequencies.code, b.code) << b.field;
    EXPECT_STREQ(frequencies.detail, status.detail);
    for (int i = 0; i < 8; ++i) {
      EXPECT_EQ(cos[i], 42.0f) << b.field;
      EXPECT_EQ(sin[i], 42.0f) << b.field;
      EXPECT_EQ(inv[i], 42.0) << b.field;
    }
    EXPECT_EQ(factor, 42) << b.field;
  }
}

TEST(RopeTable, BadViewsAndPositionsAreNamed) {
  std::vector<float> a(64, 42.0f), b(64, 42.0f);
  const std::vector<int64_t> p(24, 1);
  const auto c = view(a.data(), {2, 8}), s = view(b.data(), {2, 8});
  int64_t far[2] = {0, int64_t{1} << 31};
  int64_t deep[2] = {-(int64_t{1} << 31), 0};
  const simdattn::View<2> absent(nullptr, simdattn::DType::kF32, {2, 8});
  const std::vector<uint8_t> bytes(8, 0);
  const RopeTableOptions three{.mrope_section = {4, 2, 2}};
  const auto refused = [&](Code code, const char* start, const Status& status) {
    EXPECT_EQ(status.code, code) << start << ": " << status.detail;
    EXPECT_EQ(std::string(status.detail).rfind(start, 0), 0u) << start << ": " << status.detail;
  };
  using simdattn::rope_table;
  refused(Code::kNullPointer, "cos", rope_table(absent, s));
  refused(Code::kNullPointer, "sin", rope_table(c, absent));
  refused(Code::kShape, "sin.shape", rope_table(c, view(b.data(), {3, 8})));
  refused(Code::kShape, "sin.shape", rope_table(c, view(b.data(), {2, 7})));
  refused(Code::kShape, "cos.shape", rope_table(view(a.data(), {2, 0}), view(b.data(), {2, 0})));
  refused(Code::kShape, "cos.shape", rope_table(view(a.data(), {-1, 8}), view(b.data(), {-1, 8})));
  refused(Code::kShape, "cos.shape[1]",
          rope_table(view(a.data(), {0, (1 << 20) + 1}), view(b.data(), {0, (1 << 20) + 1})));
  refused(Code::kStride, "cos.stride", rope_table(view(a.data(), {2, 8}, {16, 2}), s));
  refused(Code::kStride, "sin.stride", rope_table(c, view(b.data(), {2, 8}, {7, 1})));
  refused(Code::kStride, "sin.stride", rope_table(c, view(b.data(), {2, 8}, {0, 1})));
  refused(Code::kDType, "cos.dtype", rope_table(view(reinterpret_cast<simdattn::bf16*>(a.data()), {2, 8}), s));
  refused(Code::kOverlap, "sin", rope_table(c, c));
  refused(Code::kOverlap, "sin", rope_table(c, view(a.data() + 15, {2, 8})));
  refused(Code::kDType, "positions.dtype", rope_table(c, s, {}, view(bytes.data(), {1, 2})));
  refused(Code::kShape, "positions.shape[1]", rope_table(c, s, {}, view(p.data(), {1, 3})));
  refused(Code::kShape, "positions.shape[0]", rope_table(c, s, {}, view(p.data(), {3, 2})));
  refused(Code::kShape, "positions.shape[0]", rope_table(c, s, three, view(p.data(), {2, 2})));
  refused(Code::kShape, "positions.shape[0]", rope_table(c, s, three, view(p.data(), {4, 2})));
  refused(Code::kRange, "positions", rope_table(c, s, {}, view(far, {1, 2})));
  refused(Code::kRange, "positions", rope_table(c, s, {}, view(deep, {1, 2})));
  refused(Code::kRange, "first", rope_table(c, s, {}, {}, (int64_t{1} << 31) - 1));
  refused(Code::kRange, "first", rope_table(c, s, {}, {}, -(int64_t{1} << 31)));
  refused(Code::kRange, "first", rope_table(c, s, {}, {}, std::numeric_limits<int64_t>::max()));
  refused(Code::kNullPointer, "positions",
          rope_table(c, s, {}, simdattn::ConstView<2>(nullptr, simdattn::DType::kI64, {1, 2})));
  refused(Code::kOverlap, "positions: overlaps cos",
          rope_table(c, s, {}, view(reinterpret_cast<int32_t*>(a.data()) + 3, {1, 2})));
  refused(Code::kOverlap, "positions: overlaps sin",
          rope_table(c, s, {}, view(reinterpret_cast<int32_t*>(b.data()) + 3, {1, 2})));
  std::vector<double> shared(8, 2.0);
  refused(Code::kOverlap, "cos",
          rope_table(view(reinterpret_cast<float*>(shared.data()), {2, 8}), s, {.freq_factors = shared}));
  refused(Code::kOverlap, "sin",
          rope_table(c, view(reinterpret_cast<float*>(shared.data()), {2, 8}), {.freq_factors = shared}));
  // Arrays that another type uses too: each by itself.
  for (const RopeTableOptions& o :
       {RopeTableOptions{.short_factor = shared}, RopeTableOptions{.long_factor = shared}}) {
    refused(Code::kOverlap, "cos", rope_table(view(reinterpret_cast<float*>(shared.data()), {2, 8}), s, o));
    refused(Code::kOverlap, "sin", rope_table(c, view(reinterpret_cast<float*>(shared.data()), {2, 8}), o));
    refused(Code::kOverlap, "inv_freq", simdattn::rope_frequencies(shared.data(), 8, nullptr, o));
  }
  refused(Code::kOverlap, "inv_freq", simdattn::rope_frequencies(shared.data(), 8, nullptr, {.inv_freq = shared}));
  refused(Code::kShape, "pairs", simdattn::rope_frequencies(shared.data(), 0, nullptr));
  refused(Code::kNullPointer, "inv_freq", simdattn::rope_frequencies(nullptr, 8, nullptr));
  for (const float x : a) EXPECT_EQ(x, 42.0f);
  for (const float x : b) EXPECT_EQ(x, 42.0f);
  for (const double x : shared) EXPECT_EQ(x, 2.0);

  EXPECT_TRUE(rope_table(view(a.data(), {0, 8}), view(b.data(), {0, 8})).ok()) << "no rows is a no-op";
  EXPECT_EQ(a[0], 42.0f);
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

TEST(SinusoidalTable, BadCallsAreNamed) {
  std::vector<float> a(64, 42.0f);
  const std::vector<int64_t> p(8, 1);
  const int64_t far[2] = {0, int64_t{1} << 31};
  const auto out = view(a.data(), {2, 8});
  const auto refused = [&](Code code, const char* start, const Status& status) {
    EXPECT_EQ(status.code, code) << start << ": " << status.detail;
    EXPECT_EQ(std::string(status.detail).rfind(start, 0), 0u) << start << ": " << status.detail;
  };
  using simdattn::sinusoidal_table;
  refused(Code::kNullPointer, "out", sinusoidal_table(simdattn::View<2>(nullptr, simdattn::DType::kF32, {2, 8})));
  refused(Code::kShape, "out.shape", sinusoidal_table(view(a.data(), {2, 0})));
  refused(Code::kShape, "out.shape", sinusoidal_table(view(a.data(), {-2, 8})));
  refused(Code::kStride, "out.stride", sinusoidal_table(view(a.data(), {2, 8}, {4, 1})));
  refused(Code::kDType, "out.dtype", sinusoidal_table(view(reinterpret_cast<int32_t*>(a.data()), {2, 8})));
  for (const double base : {0.0, 0.5, -1.0, 2e15, std::nan(""), std::numeric_limits<double>::infinity()})
    refused(Code::kRange, "base", sinusoidal_table(out, base));
  refused(Code::kShape, "positions.shape", sinusoidal_table(out, 10000, view(p.data(), {3})));
  refused(Code::kRange, "positions", sinusoidal_table(out, 10000, view(far, {2})));
  refused(Code::kRange, "first", sinusoidal_table(out, 10000, {}, (int64_t{1} << 31) - 1));
  refused(Code::kNullPointer, "positions",
          sinusoidal_table(out, 10000, simdattn::ConstView<1>(nullptr, simdattn::DType::kI64, {2})));
  refused(Code::kOverlap, "positions", sinusoidal_table(out, 10000, view(reinterpret_cast<int32_t*>(a.data()), {2})));
  for (const float x : a) EXPECT_EQ(x, 42.0f);
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
