#include <algorithm>

#include "lib/rules/rules.h"

namespace simdattn {
namespace {

constexpr double kMaxTheta = 1e15;
constexpr double kMinFactor = 1e-3;
constexpr double kMaxFactor = 1e6;

/// False for NaN.
bool within(double x, double low, double high) { return x >= low && x <= high; }

bool each_within(const Doubles& values, double low, double high) {
  return std::all_of(values.begin(), values.end(), [=](double v) { return within(v, low, high); });
}

/// Or a number of positions.
bool is_position(int64_t p) { return p >= 0 && p < kPositionLimit; }

bool absent(const Doubles& numbers) { return numbers.data == nullptr && !numbers.empty(); }

/// Requires of an option. Sentences begin with the argument that holds it: `options`, or `table` of rope_direct().
#define SIMDATTN_OPTION(condition, code, rule) \
  SIMDATTN_REQUIRE(condition, code, table ? "table." rule : "options." rule)

/// What each scaling demands of fields that pass on their own.
Status check_type(const RopeTableOptions& o, int64_t pairs, bool table) {
  switch (o.rope_type) {
    case RopeType::kDefault:
      SIMDATTN_OPTION(o.factor == 0 || o.factor == 1, kRange, "factor: kDefault does not scale; rope_type says how to");
      break;
    case RopeType::kLinear: SIMDATTN_OPTION(o.factor != 0, kRange, "factor: kLinear needs it"); break;
    case RopeType::kDynamic:
      SIMDATTN_OPTION(o.factor != 0, kRange, "factor: kDynamic needs it");
      SIMDATTN_OPTION(o.max_position_embeddings != 0, kRange, "max_position_embeddings: kDynamic needs it");
      break;
    case RopeType::kYarn:
      SIMDATTN_OPTION(o.factor != 0, kRange, "factor: kYarn needs it");
      SIMDATTN_OPTION(o.rope_theta > 1, kRange, "rope_theta: must be greater than 1 for kYarn");
      SIMDATTN_OPTION(o.original_max_position_embeddings != 0 || o.max_position_embeddings != 0, kRange,
                      "original_max_position_embeddings: kYarn needs it");
      break;
    case RopeType::kLongRope:
      SIMDATTN_OPTION(o.original_max_position_embeddings >= 2, kRange,
                      "original_max_position_embeddings: kLongRope needs it (at least 2)");
      SIMDATTN_OPTION(o.short_factor.size == pairs, kShape, "short_factor: kLongRope needs one number per column");
      SIMDATTN_OPTION(o.long_factor.size == pairs, kShape, "long_factor: kLongRope needs one number per column");
      SIMDATTN_OPTION(each_within(o.short_factor, kMinFactor, kMaxFactor), kRange,
                      "short_factor: every one must be in [1e-3, 1e6]");
      SIMDATTN_OPTION(each_within(o.long_factor, kMinFactor, kMaxFactor), kRange,
                      "long_factor: every one must be in [1e-3, 1e6]");
      break;
    case RopeType::kProportional:
    case RopeType::kLlama3: break;
  }
  return {};
}

ByteSet bytes_of(const Doubles& values) {
  return ByteSet::of(values.data, values.size * static_cast<int64_t>(sizeof(double)));
}

}  // namespace

Status check_rope_table_options(const RopeTableOptions& o, int64_t pairs, bool table) {
  SIMDATTN_OPTION(is_enumerator(o.rope_type, RopeType::kLongRope), kRange, "rope_type: not a RopeType");
  SIMDATTN_OPTION(is_enumerator(o.mrope_layout, MropeLayout::kAxial), kRange, "mrope_layout: not a MropeLayout");
  SIMDATTN_OPTION(within(o.rope_theta, 1, kMaxTheta), kRange, "rope_theta: must be in [1, 1e15]");
  SIMDATTN_OPTION(o.factor == 0 || within(o.factor, kMinFactor, kMaxFactor), kRange,
                  "factor: must be in [1e-3, 1e6], or 0 if not given");
  SIMDATTN_OPTION(is_position(o.original_max_position_embeddings), kRange,
                  "original_max_position_embeddings: must be in [0, 2^31)");
  SIMDATTN_OPTION(is_position(o.max_position_embeddings), kRange, "max_position_embeddings: must be in [0, 2^31)");
  SIMDATTN_OPTION(is_position(o.seq_len), kRange, "seq_len: must be in [0, 2^31)");
  SIMDATTN_OPTION(!o.attention_factor || (*o.attention_factor > 0 && *o.attention_factor <= kMaxFactor), kRange,
                  "attention_factor: must be in (0, 1e6]");
  SIMDATTN_OPTION(within(o.beta_slow, 1e-6, 1e6), kRange, "beta_slow: must be in [1e-6, 1e6]");
  SIMDATTN_OPTION(within(o.beta_fast, 1e-6, 1e6), kRange, "beta_fast: must be in [1e-6, 1e6]");
  SIMDATTN_OPTION(o.beta_fast >= o.beta_slow, kRange, "beta_fast: must not be less than beta_slow");
  SIMDATTN_OPTION(within(o.mscale, 0, 1e6), kRange, "mscale: must be in [0, 1e6]; 0 is not given");
  SIMDATTN_OPTION(within(o.mscale_all_dim, 0, 1e6), kRange, "mscale_all_dim: must be in [0, 1e6]; 0 is not given");
  SIMDATTN_OPTION(within(o.low_freq_factor, 1e-6, 1e6), kRange, "low_freq_factor: must be in [1e-6, 1e6]");
  SIMDATTN_OPTION(within(o.high_freq_factor, 1e-6, 1e6), kRange, "high_freq_factor: must be in [1e-6, 1e6]");
  SIMDATTN_OPTION(o.high_freq_factor >= o.low_freq_factor, kRange,
                  "high_freq_factor: must not be less than low_freq_factor");
  SIMDATTN_OPTION(o.partial_rotary_factor > 0 && o.partial_rotary_factor <= 1, kRange,
                  "partial_rotary_factor: must be in (0, 1]");

  SIMDATTN_OPTION(!absent(o.short_factor), kNullPointer, "short_factor: null although its size is not 0");
  SIMDATTN_OPTION(!absent(o.long_factor), kNullPointer, "long_factor: null although its size is not 0");
  SIMDATTN_OPTION(!absent(o.freq_factors), kNullPointer, "freq_factors: null although its size is not 0");
  SIMDATTN_OPTION(!absent(o.inv_freq), kNullPointer, "inv_freq: null although its size is not 0");
  if (!o.freq_factors.empty()) {
    SIMDATTN_OPTION(o.freq_factors.size == pairs, kShape, "freq_factors: must have one number per column");
    SIMDATTN_OPTION(each_within(o.freq_factors, kMinFactor, kMaxFactor), kRange,
                    "freq_factors: every one must be in [1e-3, 1e6]");
  }
  if (!o.inv_freq.empty()) {
    SIMDATTN_OPTION(o.rope_type == RopeType::kDefault, kRange, "inv_freq: rope_type must be kDefault");
    SIMDATTN_OPTION(o.inv_freq.size == pairs, kShape, "inv_freq: must have one number per column");
    for (const double v : o.inv_freq) {
      SIMDATTN_OPTION(v == 0 || within(v, 1e-20, 1e3), kRange, "inv_freq: every one must be 0 or in [1e-20, 1e3]");
    }
  }

  int64_t columns = 0;
  for (const int64_t section : o.mrope_section) {
    SIMDATTN_OPTION(section >= 0 && section <= pairs, kRange, "mrope_section: entries must be in [0, columns]");
    columns += section;
  }
  if (columns == 0) {
    SIMDATTN_OPTION(o.mrope_layout == MropeLayout::kContiguous, kRange, "mrope_layout: needs mrope_section");
    return check_type(o, pairs, table);
  }
  SIMDATTN_OPTION(columns == pairs, kShape, "mrope_section: must sum to the table's columns");
  const bool three_axes = o.mrope_section[2] != 0 && o.mrope_section[3] == 0;
  SIMDATTN_OPTION(o.mrope_layout != MropeLayout::kInterleaved || three_axes, kRange,
                  "mrope_section: kInterleaved takes three axes");
  const bool plain = o.rope_type == RopeType::kDefault || o.rope_type == RopeType::kLinear;
  SIMDATTN_OPTION(o.mrope_layout != MropeLayout::kAxial || plain, kRange,
                  "mrope_layout: kAxial takes rope_type kDefault or kLinear");
  return check_type(o, pairs, table);
}

Status check_raised_theta(double ln_theta, bool table) {
  constexpr double kMaxLnTheta = 34.538776394910684;
  SIMDATTN_OPTION(!(ln_theta > kMaxLnTheta), kRange, "seq_len: kDynamic would raise rope_theta beyond 1e15");
  return {};
}

Status check_table_positions(const ConstView<3>& positions, int64_t first, int64_t n, const char* outside,
                             ByteSet* bytes) {
  if (positions.data == nullptr) {
    SIMDATTN_REQUIRE(is_empty(positions), kNullPointer, "positions.data: null although its shape is not empty");
    SIMDATTN_REQUIRE(first > -kPositionLimit && first < kPositionLimit && n <= kPositionLimit - first, kRange, outside);
    return {};
  }
  SIMDATTN_CHECK(check_view(positions, Accept::kIndex, kArgument<"positions">, bytes));
  const auto [axes, batch, rows] = positions.shape;
  for (int64_t axis = 0; axis < axes; ++axis) {
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t at = axis * positions.stride[0] + b * positions.stride[1] + i * positions.stride[2];
        const int64_t p = index_at(positions.data, positions.dtype, at);
        SIMDATTN_REQUIRE(p > -kPositionLimit && p < kPositionLimit, kRange,
                         "positions: every position must be in (-2^31, 2^31)");
      }
    }
  }
  return {};
}

bool overlaps_options(const ByteSet& output, const RopeTableOptions& o) {
  return share_bytes(output, bytes_of(o.short_factor)) || share_bytes(output, bytes_of(o.long_factor)) ||
         share_bytes(output, bytes_of(o.freq_factors)) || share_bytes(output, bytes_of(o.inv_freq));
}

Status check_rope_frequencies(const double* inv_freq, int64_t pairs, const double* attention_factor,
                              const RopeTableOptions& options) {
  SIMDATTN_REQUIRE(pairs >= 1 && pairs <= kMaxColumns, kShape, "pairs: must be in 1 .. 2^20");
  SIMDATTN_REQUIRE(inv_freq != nullptr, kNullPointer, "inv_freq: null");
  const ByteSet out = ByteSet::of(inv_freq, pairs * static_cast<int64_t>(sizeof(double)));
  const ByteSet factor = ByteSet::of(attention_factor, sizeof(double));
  SIMDATTN_REQUIRE(!overlaps_options(out, options), kOverlap, "inv_freq: overlaps an array of options");
  SIMDATTN_CHECK(check_apart<"attention_factor", "inv_freq">(factor, {&out}));
  SIMDATTN_REQUIRE(!overlaps_options(factor, options), kOverlap, "attention_factor: overlaps an array of options");
  return check_rope_table_options(options, pairs, false);
}

Status check_rope_table(const View<2>& cos, const View<2>& sin, const RopeTableOptions& options,
                        const ConstView<2>& positions, int64_t first) {
  ByteSet ec, es, read;
  SIMDATTN_CHECK(check_view(cos, Accept::kF32, kArgument<"cos">, &ec));
  SIMDATTN_CHECK(check_view(sin, Accept::kF32, kArgument<"sin">, &es));
  SIMDATTN_REQUIRE(same_numbers(cos.shape, sin.shape), kShape, "sin.shape != cos.shape");
  const auto [n, columns] = cos.shape;
  SIMDATTN_REQUIRE(columns >= 1 && columns <= kMaxColumns, kShape, "cos.shape[1]: must be in 1 .. 2^20");
  SIMDATTN_CHECK(check_rope_table_options(options, columns, false));
  if (positions.data != nullptr) {
    SIMDATTN_REQUIRE(positions.shape[1] == n, kShape, "positions.shape[1] != cos.shape[0]");
    SIMDATTN_REQUIRE(positions.shape[0] == 1 || positions.shape[0] == axes_of(options), kShape,
                     "positions.shape[0]: must be 1 or the number of position axes in options.mrope_section");
  }
  const ConstView<3> one_batch(positions.data, positions.dtype, {positions.shape[0], 1, positions.shape[1]},
                               {positions.stride[0], 0, positions.stride[1]});
  SIMDATTN_CHECK(check_table_positions(one_batch, first, n, "first: every position must be in (-2^31, 2^31)", &read));
  SIMDATTN_CHECK(check_apart<"sin", "cos">(es, {&ec}));
  SIMDATTN_CHECK(check_apart<"positions", "cos, sin">(read, {&ec, &es}));
  SIMDATTN_REQUIRE(!overlaps_options(ec, options), kOverlap, "cos: overlaps an array of options");
  SIMDATTN_REQUIRE(!overlaps_options(es, options), kOverlap, "sin: overlaps an array of options");
  return {};
}

Status check_sinusoidal_table(const View<2>& out, double base, const ConstView<1>& positions, int64_t first) {
  ByteSet bytes, read;
  SIMDATTN_CHECK(check_view(out, Accept::kF32, kArgument<"out">, &bytes));
  const auto [n, d] = out.shape;
  SIMDATTN_REQUIRE(d >= 1 && d <= kMaxColumns, kShape, "out.shape[1]: must be in 1 .. 2^20");
  SIMDATTN_REQUIRE(within(base, 1, kMaxTheta), kRange, "base: must be in [1, 1e15]");
  SIMDATTN_REQUIRE(positions.data == nullptr || positions.shape[0] == n, kShape, "positions.shape[0] != out.shape[0]");
  const ConstView<3> one_axis(positions.data, positions.dtype, {1, 1, positions.shape[0]}, {0, 0, positions.stride[0]});
  SIMDATTN_CHECK(check_table_positions(one_axis, first, n, "first: every position must be in (-2^31, 2^31)", &read));
  return check_apart<"positions", "out">(read, {&bytes});
}

Status check_alibi_slopes(int64_t heads, const float* slopes) {
  SIMDATTN_REQUIRE(heads >= 1 && heads <= kMaxSize, kShape, "heads: must be in 1 .. 2^30 - 1");
  SIMDATTN_REQUIRE(slopes != nullptr, kNullPointer, "slopes: must not be null");
  return {};
}

}  // namespace simdattn
