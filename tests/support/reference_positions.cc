// The formulas of rotations, tables of positions and ALiBi.
#include <algorithm>
#include <cmath>

#include "tests/support/indices.h"
#include "tests/support/reference.h"

namespace reference {

using simdattn::test::indices;

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const std::vector<int64_t>& positions,
            const simdattn::RopeOptions& options) {
  Tensor result = x;
  const int64_t pairs = cos.dim(1);
  const bool interleaved = options.pairing == simdattn::RopePairing::kInterleaved;
  for (const auto [b, h, i] : indices(x.dim(0), x.dim(1), x.dim(2))) {
    const int64_t position = positions.empty() ? i : positions[static_cast<size_t>(b * x.dim(2) + i)];
    for (int64_t pair = 0; pair < pairs; ++pair) {
      const int64_t first = options.first_dim + (interleaved ? 2 * pair : pair);
      const int64_t second = first + (interleaved ? 1 : pairs);
      const double c = cos.at({position, pair});
      const double s = options.inverse ? -sin.at({position, pair}) : sin.at({position, pair});
      const double x0 = x.at({b, h, i, first}), x1 = x.at({b, h, i, second});
      result.at({b, h, i, first}) = x0 * c - x1 * s;
      result.at({b, h, i, second}) = x0 * s + x1 * c;
    }
  }
  return result;
}

namespace {

constexpr long double kPi = 3.14159265358979323846264338327950288L;

long double real(double value) { return static_cast<long double>(value); }
long double real(int64_t value) { return static_cast<long double>(value); }

// base^(-2i/r)
long double frequency(long double base, int64_t i, int64_t r) { return std::pow(base, -2 * real(i) / real(r)); }

// The column at which a wave turns `rotations` times in the original length.
long double yarn_column(const simdattn::RopeTableOptions& o, int64_t r, long double length, double rotations) {
  return real(r) * std::log(length / (real(rotations) * 2 * kPi)) / (2 * std::log(real(o.rope_theta)));
}

// YaRN's g.
long double magnitude_scale(long double factor, long double mscale) {
  return factor <= 1 ? 1.0L : 0.1L * mscale * std::log(factor) + 1.0L;
}

}  // namespace

std::vector<long double> rope_frequencies(const simdattn::RopeTableOptions& o, int64_t r,
                                          long double* attention_factor) {
  using simdattn::RopeType;
  const int64_t columns = r / 2;
  const long double theta = real(o.rope_theta);
  const long double max_position = real(o.max_position_embeddings);
  long double original = real(o.original_max_position_embeddings);
  long double f = real(o.factor);
  long double magnitude = 1;
  std::vector<long double> inv(static_cast<size_t>(columns));
  for (int64_t i = 0; i < columns; ++i) {
    inv[static_cast<size_t>(i)] = o.inv_freq.size == 0 ? frequency(theta, i, r) : real(o.inv_freq.data[i]);
  }
  const auto each = [&](auto change) {
    for (int64_t i = 0; i < columns; ++i) inv[static_cast<size_t>(i)] = change(i, inv[static_cast<size_t>(i)]);
  };

  switch (o.rope_type) {
    case RopeType::kDefault: break;
    case RopeType::kLinear: each([&](int64_t, long double w) { return w / f; }); break;
    case RopeType::kProportional: {
      const auto rotated = static_cast<int64_t>(std::floor(real(o.partial_rotary_factor) * real(r) / 2));
      each([&](int64_t i, long double w) { return i < rotated ? w / (f == 0 ? 1 : f) : 0; });
      break;
    }
    case RopeType::kDynamic: {
      const long double length = std::max(real(o.seq_len), max_position);
      const long double base = theta * std::pow(f * length / max_position - (f - 1), real(r) / real(r - 2));
      each([&](int64_t i, long double) { return frequency(base, i, r); });
      break;
    }
    case RopeType::kYarn: {
      if (original == 0) original = max_position;
      long double low = yarn_column(o, r, original, o.beta_fast);
      long double high = yarn_column(o, r, original, o.beta_slow);
      if (o.truncate) {
        low = std::floor(low);
        high = std::ceil(high);
      }
      low = std::max(low, 0.0L);
      high = std::min(high, real(r - 1));
      if (low == high) high += 0.001L;
      each([&](int64_t i, long double w) {
        const long double ramp = std::clamp((real(i) - low) / (high - low), 0.0L, 1.0L);
        return w / f * ramp + w * (1 - ramp);
      });
      magnitude = o.mscale != 0 && o.mscale_all_dim != 0
                      ? magnitude_scale(f, real(o.mscale)) / magnitude_scale(f, real(o.mscale_all_dim))
                      : magnitude_scale(f, 1);
      break;
    }
    case RopeType::kLlama3: {
      if (f == 0) f = 8;
      if (original == 0) original = 8192;
      const long double low = real(o.low_freq_factor), high = real(o.high_freq_factor);
      each([&](int64_t, long double w) {
        const long double wavelength = 2 * kPi / w;
        if (wavelength < original / high) return w;
        if (wavelength > original / low) return w / f;
        const long double s = (original / wavelength - low) / (high - low);
        return (1 - s) * w / f + s * w;
      });
      break;
    }
    case RopeType::kLongRope: {
      const auto& ext = o.seq_len > o.original_max_position_embeddings ? o.long_factor : o.short_factor;
      each([&](int64_t i, long double w) { return w / real(ext.data[i]); });
      if (o.max_position_embeddings != 0) f = max_position / original;
      magnitude = f <= 1 ? 1.0L : std::sqrt(1 + std::log(f) / std::log(original));
      break;
    }
  }
  if (o.freq_factors.size > 0) {
    each([&](int64_t i, long double w) { return w / real(o.freq_factors.data[i]); });
  }
  if (attention_factor != nullptr) *attention_factor = o.attention_factor ? real(*o.attention_factor) : magnitude;
  return inv;
}

void rope_table(const simdattn::RopeTableOptions& o, int64_t r, const std::vector<std::vector<int64_t>>& positions,
                Tensor* cos, Tensor* sin) {
  using simdattn::MropeLayout;
  const int64_t n = static_cast<int64_t>(positions[0].size());
  *cos = Tensor({n, r / 2});
  *sin = *cos;
  long double factor = 1;
  std::vector<long double> inv = rope_frequencies(o, r, &factor);
  std::vector<size_t> axis(inv.size(), 0);
  int64_t begin = 0;
  for (size_t a = 0; a < o.mrope_section.size(); ++a) {
    const int64_t width = o.mrope_section[a];
    if (o.mrope_layout == MropeLayout::kInterleaved) {
      for (int64_t i = static_cast<int64_t>(a); a > 0 && i < 3 * width && i < r / 2; i += 3) {
        axis[static_cast<size_t>(i)] = a;
      }
    } else {
      std::vector<long double> own;
      if (o.mrope_layout == MropeLayout::kAxial && width > 0) own = rope_frequencies(o, 2 * width, nullptr);
      for (int64_t i = 0; i < width; ++i) {
        axis[static_cast<size_t>(begin + i)] = a;
        if (!own.empty()) inv[static_cast<size_t>(begin + i)] = own[static_cast<size_t>(i)];
      }
    }
    begin += width;
  }
  int64_t element = 0;
  for (int64_t p = 0; p < n; ++p) {
    for (size_t i = 0; i < inv.size(); ++i, ++element) {
      const std::vector<int64_t>& own_axis = positions[positions.size() == 1 ? 0 : axis[i]];
      const long double angle = real(own_axis[static_cast<size_t>(p)]) * inv[i];
      (*cos)[element] = static_cast<double>(factor * std::cos(angle));
      (*sin)[element] = static_cast<double>(factor * std::sin(angle));
    }
  }
}

Tensor sinusoidal_table(int64_t d, double base, const std::vector<int64_t>& positions) {
  Tensor result({static_cast<int64_t>(positions.size()), d});
  int64_t element = 0;
  for (const int64_t position : positions) {
    for (int64_t i = 0; i < d; ++i) {
      const long double angle = real(position) * frequency(real(base), i / 2, d);
      result[element++] = static_cast<double>(i % 2 == 0 ? std::sin(angle) : std::cos(angle));
    }
  }
  return result;
}

std::vector<double> alibi_slopes(int64_t heads) {
  int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  std::vector<double> slopes;
  for (int64_t h = 0; h < heads; ++h) {
    const double n = static_cast<double>(power);
    const double exponent =
        h < power ? -8.0 * static_cast<double>(h + 1) / n : -4.0 * static_cast<double>(2 * (h - power) + 1) / n;
    slopes.push_back(std::exp2(exponent));
  }
  return slopes;
}

}  // namespace reference
