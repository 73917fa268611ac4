// Tables of positions as models have them, and their formulas in 256-bit arithmetic.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/rope/high_precision.h"

namespace rope_models {

using high_precision::Fixed;
using simdattn::MropeLayout;
using simdattn::RopeTableOptions;
using enum simdattn::RopeType;

struct Model {
  const char* name;
  int64_t pairs;
  RopeTableOptions options;
};

inline std::vector<double> factors(double first, double step, double third) {
  std::vector<double> f;
  for (int i = 0; i < 48; ++i) f.push_back(first + step * i + third * i * (i % 3));
  return f;
}
inline const std::vector<double> kLongFactors = factors(1.08, 1.34, 0.01), kShortFactors = factors(1.0, 0.04, 0);

/// Parameters as model configurations have them, and some at the edges.
inline const std::vector<Model>& models() {
  static const std::vector<Model> list = {
      {"default 1e4", 64, {}},
      {"default 5e5 of 80", 40, {.rope_theta = 5e5}},
      {"default 8e6", 64, {.rope_theta = 8e6}},
      {"default 1e15", 16, {.rope_theta = 1e15}},
      {"default 1", 2, {.rope_theta = 1}},
      {"one column", 1, {}},
      {"linear 4", 64, {.rope_theta = 1e5, .rope_type = kLinear, .factor = 4}},
      {"linear 8", 128, {.rope_theta = 1e6, .rope_type = kLinear, .factor = 8}},
      {"linear 3.7", 16, {.rope_type = kLinear, .factor = 3.7}},
      {"linear 0.1", 16, {.rope_type = kLinear, .factor = 0.1}},
      {"proportional", 128, {.rope_theta = 1e6, .rope_type = kProportional, .partial_rotary_factor = 0.25}},
      {"dynamic short", 64, {.rope_type = kDynamic, .factor = 2, .max_position_embeddings = 4096, .seq_len = 100}},
      {"dynamic long", 64, {.rope_type = kDynamic, .factor = 2, .max_position_embeddings = 4096, .seq_len = 16384}},
      {"dynamic one column",
       1,
       {.rope_type = kDynamic, .factor = 2, .max_position_embeddings = 4096, .seq_len = 16384}},
      {"yarn 4", 64, {.rope_theta = 1e6, .rope_type = kYarn, .factor = 4, .original_max_position_embeddings = 32768}},
      {"yarn without rounding",
       32,
       {.rope_theta = 150000,
        .rope_type = kYarn,
        .factor = 32,
        .original_max_position_embeddings = 4096,
        .truncate = false}},
      {"yarn with mscale pair",
       32,
       {.rope_type = kYarn,
        .factor = 40,
        .original_max_position_embeddings = 4096,
        .mscale = 0.707,
        .mscale_all_dim = 0.8}},
      {"yarn, equal ends",
       32,
       {.rope_theta = 50000,
        .rope_type = kYarn,
        .factor = 32,
        .original_max_position_embeddings = 4096,
        .beta_fast = 1,
        .beta_slow = 1,
        .truncate = false}},
      {"llama3 8", 64, {.rope_theta = 5e5, .rope_type = kLlama3}},
      {"llama3 32", 32, {.rope_theta = 5e5, .rope_type = kLlama3, .factor = 32}},
      {"llama3 with a step", 64, {.rope_theta = 5e5, .rope_type = kLlama3, .factor = 16, .high_freq_factor = 1}},
      {"longrope short",
       48,
       {.rope_type = kLongRope,
        .original_max_position_embeddings = 4096,
        .max_position_embeddings = 131072,
        .short_factor = kShortFactors,
        .long_factor = kLongFactors}},
      {"longrope long",
       48,
       {.rope_type = kLongRope,
        .original_max_position_embeddings = 4096,
        .max_position_embeddings = 131072,
        .seq_len = 4097,
        .short_factor = kShortFactors,
        .long_factor = kLongFactors}},
      {"longrope, attention factor given",
       48,
       {.rope_type = kLongRope,
        .factor = 16,
        .original_max_position_embeddings = 4096,
        .attention_factor = 1.25,
        .short_factor = kShortFactors,
        .long_factor = kLongFactors}},
      {"longrope, factor",
       48,
       {.rope_type = kLongRope,
        .factor = 16,
        .original_max_position_embeddings = 4096,
        .short_factor = kShortFactors,
        .long_factor = kLongFactors}},
      {"frequency factors", 48, {.rope_theta = 5e5, .freq_factors = kLongFactors}},
      {"frequencies given", 48, {.inv_freq = kShortFactors}},
      {"axial", 40, {.mrope_section = {20, 20}, .mrope_layout = MropeLayout::kAxial}},
      {"axial of three sizes", 64, {.mrope_section = {22, 21, 21}, .mrope_layout = MropeLayout::kAxial}},
      {"yarn, ramp past the last column",
       16,
       {.rope_theta = 100,
        .rope_type = kYarn,
        .factor = 4,
        .original_max_position_embeddings = 1000000,
        .beta_fast = 10000}},
      {"yarn, ramp from before the first column",
       32,
       {.rope_type = kYarn, .factor = 2.5, .original_max_position_embeddings = 100}},
  };
  return list;
}

// ---------------------------------------------------------------------------------------------------------------------
// The formulas, as spec pages print them

inline Fixed yarn_g(const RopeTableOptions& o, double m) {
  return o.factor <= 1 ? Fixed(1.0) : Fixed(m) * log(Fixed(o.factor)) / 10 + Fixed(1.0);
}

inline Fixed exact_attention_factor(const RopeTableOptions& o) {
  if (o.attention_factor) return *o.attention_factor;
  if (o.rope_type == kYarn) {
    if (o.mscale != 0 && o.mscale_all_dim != 0) return yarn_g(o, o.mscale) / yarn_g(o, o.mscale_all_dim);
    return yarn_g(o, 1);
  }
  if (o.rope_type == kLongRope) {
    const Fixed m0 = static_cast<double>(o.original_max_position_embeddings);
    const Fixed f =
        o.max_position_embeddings != 0 ? Fixed(static_cast<double>(o.max_position_embeddings)) / m0 : Fixed(o.factor);
    return sqrt(Fixed(1.0) + log(f) / log(m0));
  }
  return 1.0;
}

inline std::vector<Fixed> exact_frequencies(const RopeTableOptions& o, int64_t pairs) {
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
  if (o.rope_type == kDynamic && o.seq_len > o.max_position_embeddings && pairs > 1) {
    const Fixed ratio =
        f * Fixed(static_cast<double>(o.seq_len)) / Fixed(static_cast<double>(o.max_position_embeddings));
    theta = theta * exp(log(ratio - (f - Fixed(1.0))) * (Fixed(r) / Fixed(r - 2)));
  }
  const Fixed ln_theta = log(theta);
  const Fixed two_pi = Fixed(2.0) * high_precision::pi();
  Fixed low, high;
  if (o.rope_type == kYarn) {
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
      case kDefault:
        if (o.inv_freq.size > 0) inv = o.inv_freq.data[k];
        break;
      case kDynamic: break;
      case kLinear: inv = inv / f; break;
      case kProportional:
        if (o.factor != 0) inv = inv / f;
        if (static_cast<double>(i) >= std::floor(o.partial_rotary_factor * static_cast<double>(pairs))) inv = 0.0;
        break;
      case kYarn: {
        Fixed ramp = (Fixed(static_cast<double>(i)) - low) / (high - low);
        if (ramp.negative()) ramp = 0.0;
        if (Fixed(1.0) < ramp) ramp = 1.0;
        inv = inv / f * ramp + inv * (Fixed(1.0) - ramp);
        break;
      }
      case kLlama3: {
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
      case kLongRope: {
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

}  // namespace rope_models
