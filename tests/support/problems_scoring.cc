#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "tests/support/problems.h"

namespace simdattn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

}  // namespace

ScoringCase random_scoring(Random& random, const ScoringShapes& shapes, const ScoringLimits& limits) {
  ScoringCase c;
  Scoring& s = c.scoring;
  const size_t sequences = shapes.n_q.size();
  const int64_t n_kv = shapes.mask_columns;
  int64_t longest_q = 0;
  for (const int64_t n : shapes.n_q) longest_q = std::max(longest_q, n);
  const int64_t reach = std::max(n_kv, longest_q) + 3;

  if (random.one_in(3)) s.scale = random.one_in(12) ? 0.0f : 2 * random.uniform();
  if (random.one_in(4)) s.softcap = random.of({0.5f, 3.0f, 30.0f, 50.0f});
  s.causal = random.coin();
  if (random.one_in(3)) s.offset = random.integer(-reach, reach);
  if (limits.extreme && random.one_in(20)) s.offset = random.of({(int64_t{1} << 30) - 1, -((int64_t{1} << 30) - 1)});
  if (random.one_in(4)) s.window_left = random.of({random.integer(0, 5), random.integer(0, reach), int64_t{1} << 40});
  if (random.one_in(5)) s.window_right = random.of({random.integer(0, 5), random.integer(0, reach), int64_t{1} << 40});
  if (random.one_in(6)) s.chunk = random.of({random.integer(1, 6), random.integer(1, reach), int64_t{1} << 40});

  std::vector<int32_t> lengths;
  if (limits.per_sequence) {
    if (random.one_in(6)) {
      std::vector<int32_t> offsets(sequences);
      for (int32_t& p : offsets)
        p = limits.extreme && random.one_in(20) ? random.of({1 << 30, -(1 << 30)})
                                                : static_cast<int32_t>(random.integer(-reach, reach));
      c.offsets = Numbers<int32_t>(random, offsets);
      s.offsets = c.offsets.data();
    }
    for (const int64_t n : shapes.n_kv)
      lengths.push_back(static_cast<int32_t>(random.coin() ? n : random.integer(0, n)));
    if (random.one_in(3)) {
      c.kv_length = Numbers<int32_t>(random, lengths);
      s.kv_length = c.kv_length.data();
    }
    std::vector<int32_t> numbers(sequences);
    if (random.one_in(6)) {
      for (int32_t& n : numbers) n = static_cast<int32_t>(random.integer(0, random.coin() ? 3 : reach));
      c.kv_start = Numbers<int32_t>(random, numbers);
      s.kv_start = c.kv_start.data();
    }
    if (random.one_in(8)) {
      for (int32_t& n : numbers) n = static_cast<int32_t>(random.integer(0, reach));
      c.prefix_end = Numbers<int32_t>(random, numbers);
      s.prefix_end = c.prefix_end.data();
    }
  }
  // Any size may be 1 instead: that broadcasts.
  const auto mask_shape = [&] {
    std::array<int64_t, 4> shape = {shapes.mask_batch, shapes.heads, shapes.mask_rows, n_kv};
    if (random.one_in(3)) {
      for (int64_t& n : shape)
        if (random.one_in(3)) n = 1;
    }
    return shape;
  };
  if (random.one_in(3)) {
    c.bias = Array<4>(random, random.storage(), mask_shape(), Strides::kInput);
    for_each_element(c.bias.view, [&](int64_t at) {
      float x = 4 * random.uniform();
      if (random.one_in(6)) x = -kInf;
      if (limits.extreme && random.one_in(30)) x = random.of({-1e9f, -std::numeric_limits<float>::max(), 1e9f});
      if (limits.extreme && random.one_in(4000)) x = std::nanf("9");
      put(c.bias.view.data, c.bias.view.dtype, at, x);
    });
    s.bias = c.bias.view;
    c.largest_bias = 4;
    if (random.one_in(3)) {
      std::vector<float> factors(static_cast<size_t>(shapes.heads));
      for (float& x : factors)
        x = limits.extreme && random.one_in(20) ? 1e30f : random.one_in(6) ? 0.0f : 2 * random.uniform();
      c.bias_scale = Numbers<float>(random, factors);
      s.bias_scale = c.bias_scale.data();
      float largest = 0;
      for (const float x : factors) largest = std::max(largest, std::fabs(x));
      c.largest_bias *= largest;
    }
  }
  if (random.one_in(4)) {
    c.mask = Array<4>(random, DType::kU8, mask_shape(), Strides::kInput);
    const int64_t rarity = random.integer(1, 6);
    for_each_element(c.mask.view, [&](int64_t at) {
      set_element_bits(c.mask.view.data, DType::kU8, at,
                       random.one_in(rarity) ? 0u : static_cast<uint64_t>(random.integer(1, 255)));
    });
    s.mask = c.mask.view;
  }
  if (random.one_in(4)) {
    int64_t most = n_kv;
    for (size_t b = 0; b < sequences; ++b)
      most = std::min<int64_t>(most, s.kv_length != nullptr ? lengths[b] : shapes.n_kv[b]);
    s.packed_mask.columns = random.coin() ? most : random.integer(0, most);
    const int64_t row_bytes = (s.packed_mask.columns + 7) / 8 + random.integer(0, 2);
    s.packed_mask.stride[2] = random.one_in(5) ? 0 : row_bytes;
    s.packed_mask.stride[1] = random.coin() ? 0 : row_bytes * shapes.mask_rows;
    s.packed_mask.stride[0] = random.coin() ? 0 : row_bytes * shapes.mask_rows * shapes.heads;
    int64_t bytes = (s.packed_mask.columns + 7) / 8;
    bytes += s.packed_mask.stride[2] * std::max<int64_t>(shapes.mask_rows - 1, 0) +
             s.packed_mask.stride[1] * (shapes.heads - 1) + s.packed_mask.stride[0] * (shapes.mask_batch - 1);
    c.packed_mask = Guarded(static_cast<size_t>(bytes), random.guard());
    const bool dense = random.coin();
    for (size_t i = 0; i < c.packed_mask.size(); ++i)
      c.packed_mask.data()[i] = static_cast<uint8_t>(random.bits() | (dense ? random.bits() : 0));
    s.packed_mask.data = c.packed_mask.data();
  }
  if (random.one_in(4)) {
    std::vector<float> slopes(static_cast<size_t>(shapes.heads));
    for (float& x : slopes)
      x = limits.extreme && random.one_in(9) ? 1e5f : random.one_in(6) ? 0.0f : 0.5f * random.uniform();
    if (random.coin()) (void)alibi_slopes(shapes.heads, slopes.data());
    c.slopes = Numbers<float>(random, slopes);
    s.alibi_slopes = c.slopes.data();
    for (const float x : slopes)
      c.largest_shift = std::max(c.largest_shift, std::fabs(x) * static_cast<float>(2 * reach));
  }
  if (random.one_in(4)) {
    std::vector<float> sinks(static_cast<size_t>(shapes.heads));
    for (float& x : sinks) x = random.one_in(8) ? -kInf : 5 * random.uniform();
    c.sinks = Numbers<float>(random, sinks);
    s.sinks = c.sinks.data();
  }
  return c;
}

std::string describe(const Scoring& s) {
  std::string text;
  if (s.scale) text += ", scale " + std::to_string(*s.scale);
  if (s.softcap > 0) text += ", softcap " + std::to_string(s.softcap);
  if (s.causal) text += ", causal";
  if (s.offset != kBottomRight) text += ", offset " + std::to_string(s.offset);
  if (s.offsets != nullptr) text += ", offsets " + std::to_string(s.offsets[0]) + "...";
  if (s.window_left >= 0) text += ", window_left " + std::to_string(s.window_left);
  if (s.window_right >= 0) text += ", window_right " + std::to_string(s.window_right);
  if (s.chunk > 0) text += ", chunk " + std::to_string(s.chunk);
  if (s.prefix_end != nullptr) text += ", prefix_end " + std::to_string(s.prefix_end[0]) + "...";
  if (s.kv_start != nullptr) text += ", kv_start " + std::to_string(s.kv_start[0]) + "...";
  if (s.kv_length != nullptr) text += ", kv_length " + std::to_string(s.kv_length[0]) + "...";
  const auto sizes = [](const ConstView<4>& v) {
    std::string list = " [";
    for (const int64_t n : v.shape) list += std::to_string(n) + " ";
    return list + "]";
  };
  if (s.bias.data != nullptr)
    text += ", bias" + sizes(s.bias) + " type " + std::to_string(static_cast<int>(s.bias.dtype));
  if (s.bias_scale != nullptr) text += ", bias_scale " + std::to_string(s.bias_scale[0]) + "...";
  if (s.mask.data != nullptr) text += ", keep" + sizes(s.mask);
  if (s.packed_mask.data != nullptr) text += ", bits of " + std::to_string(s.packed_mask.columns) + " columns";
  if (s.alibi_slopes != nullptr) text += ", ALiBi";
  if (s.sinks != nullptr) text += ", sinks";
  return text;
}

}  // namespace simdattn::test
