// Bad calls of tables of positions: each field, view and array is named, and nothing is written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "simdattn/extras.h"

namespace {

using simdattn::Code;
using simdattn::MropeLayout;
using simdattn::RopeTableOptions;
using simdattn::RopeType;
using simdattn::Status;
using simdattn::view;
using enum simdattn::RopeType;

void refused(Code code, const std::string& start, const Status& status) {
  EXPECT_EQ(status.code, code) << start << ": " << status.detail;
  EXPECT_EQ(std::string(status.detail).rfind(start, 0), 0u) << start << ": " << status.detail;
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
  std::vector<Bad> bad;
  const auto refuse = [&](const char* field, const RopeTableOptions& o, Code code = Code::kRange) {
    bad.push_back({field, code, o});
  };
  refuse("rope_type", {.rope_type = static_cast<RopeType>(7)});
  refuse("rope_theta", {.rope_theta = 1, .rope_type = kYarn, .factor = 2, .max_position_embeddings = 64});
  refuse("factor", {.factor = 2});
  refuse("factor", {.rope_type = kLinear});
  refuse("factor", {.rope_type = kDynamic, .max_position_embeddings = 64});
  refuse("factor", {.rope_type = kYarn, .original_max_position_embeddings = 64});
  refuse("original_max_position_embeddings", {.original_max_position_embeddings = -1});
  refuse("original_max_position_embeddings", {.original_max_position_embeddings = int64_t{1} << 31});
  refuse("original_max_position_embeddings", {.rope_type = kYarn, .factor = 2});
  refuse("original_max_position_embeddings",
         {.rope_type = kLongRope, .factor = 2, .short_factor = good, .long_factor = good});
  refuse("max_position_embeddings", {.max_position_embeddings = -1});
  refuse("max_position_embeddings", {.rope_type = kDynamic, .factor = 2});
  refuse("seq_len", {.seq_len = -1});
  refuse("seq_len",
         {.rope_theta = 1e14, .rope_type = kDynamic, .factor = 9, .max_position_embeddings = 2, .seq_len = 100});
  refuse("beta_fast", {.beta_fast = 1, .beta_slow = 2});
  refuse("high_freq_factor", {.low_freq_factor = 4, .high_freq_factor = 3.9});
  refuse("partial_rotary_factor", {.partial_rotary_factor = 1.01});
  refuse("freq_factors", {.freq_factors = few}, Code::kShape);
  refuse("freq_factors", {.freq_factors = {nullptr, 8}}, Code::kNullPointer);
  refuse("short_factor", {.short_factor = {nullptr, 8}}, Code::kNullPointer);
  refuse("long_factor", {.long_factor = {nullptr, -1}}, Code::kNullPointer);
  refuse("inv_freq", {.inv_freq = {nullptr, 1}}, Code::kNullPointer);
  refuse("freq_factors", {.freq_factors = negative});
  refuse("freq_factors", {.freq_factors = nan});
  refuse("inv_freq", {.inv_freq = few}, Code::kShape);
  refuse("inv_freq", {.inv_freq = negative});
  refuse("inv_freq", {.inv_freq = nan});
  refuse("inv_freq", {.rope_type = kLlama3, .inv_freq = good});
  refuse("mrope_section", {.mrope_section = {3, 3}}, Code::kShape);
  refuse("mrope_section", {.mrope_section = {9, -1}});
  refuse("mrope_section", {.mrope_section = {std::numeric_limits<int64_t>::max(), 2}});
  refuse("mrope_section", {.mrope_section = {4, 4}, .mrope_layout = MropeLayout::kInterleaved});
  refuse("mrope_section", {.mrope_section = {2, 2, 2, 2}, .mrope_layout = MropeLayout::kInterleaved});
  refuse("mrope_layout", {.mrope_layout = MropeLayout::kAxial});
  refuse("mrope_layout", {.mrope_layout = static_cast<MropeLayout>(3)});
  refuse("mrope_layout", {.rope_type = kLlama3, .mrope_section = {4, 4}, .mrope_layout = MropeLayout::kAxial});
  for (const auto& [field, is_long] : {std::pair{"short_factor", 0}, std::pair{"long_factor", 1}}) {
    for (const auto& [code, values] :
         {std::pair{Code::kShape, &few}, {Code::kRange, &negative}, {Code::kRange, &nan}}) {
      RopeTableOptions o{.rope_type = kLongRope,
                         .original_max_position_embeddings = 64,
                         .max_position_embeddings = 128,
                         .short_factor = good,
                         .long_factor = good};
      (is_long == 0 ? o.short_factor : o.long_factor) = *values;
      refuse(field, o, code);
    }
  }
  const auto numbers = [&](const char* field, double RopeTableOptions::* member, std::vector<double> values) {
    values.insert(values.end(), {kNaN, kInf, -kInf, -1.0, -1e-300, 1e300});
    for (const double value : values) {
      RopeTableOptions o;
      o.*member = value;
      refuse(field, o);
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
    refuse("attention_factor", o);
  }

  for (const Bad& b : bad) {
    float cos[8], sin[8];
    double inv[8], factor = 42;
    std::fill(cos, cos + 8, 42.0f);
    std::fill(sin, sin + 8, 42.0f);
    std::fill(inv, inv + 8, 42.0);
    const Status status = simdattn::rope_table(view(cos, {1, 8}), view(sin, {1, 8}), b.options);
    refused(b.code, std::string("options.") + b.field + ":", status);
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

TEST(SinusoidalTable, BadCallsAreNamed) {
  std::vector<float> a(64, 42.0f);
  const std::vector<int64_t> p(8, 1);
  const int64_t far[2] = {0, int64_t{1} << 31};
  const auto out = view(a.data(), {2, 8});
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

}  // namespace
