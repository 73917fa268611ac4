#include "lib/rules/rules.h"

namespace simdattn {
namespace {

constexpr double kMaxTheta = 1e15;
constexpr double kMinFactor = 1e-3;
constexpr double kMaxFactor = 1e6;

/// False for NaN.
bool within(double x, double low, double high) { return x >= low && x <= high; }

bool each_within(const Doubles& values, double low, double high) {
  for (const double v : values)
    if (!within(v, low, high)) return false;
  return true;
}

/// Refuses an option by the name of the argument that holds it: `options`, or `table` (rope_direct).
#define SIMDATTN_REFUSE(code, rule) \
  Status { Code::code, table ? "table." rule : "options." rule }

Status check_fields(const RopeTableOptions& o, int64_t pairs, bool table) {
  if (o.rope_type < RopeType::kDefault || o.rope_type > RopeType::kLongRope)
    return SIMDATTN_REFUSE(kRange, "rope_type: not a RopeType");
  if (o.mrope_layout < MropeLayout::kContiguous || o.mrope_layout > MropeLayout::kAxial)
    return SIMDATTN_REFUSE(kRange, "mrope_layout: not a MropeLayout");
  if (!within(o.rope_theta, 1, kMaxTheta)) return SIMDATTN_REFUSE(kRange, "rope_theta: must be in [1, 1e15]");
  if (o.factor != 0 && !within(o.factor, kMinFactor, kMaxFactor))
    return SIMDATTN_REFUSE(kRange, "factor: must be in [1e-3, 1e6], or 0 if not given");
  if (o.original_max_position_embeddings < 0 || o.original_max_position_embeddings >= kPositionLimit)
    return SIMDATTN_REFUSE(kRange, "original_max_position_embeddings: must be in [0, 2^31)");
  if (o.max_position_embeddings < 0 || o.max_position_embeddings >= kPositionLimit)
    return SIMDATTN_REFUSE(kRange, "max_position_embeddings: must be in [0, 2^31)");
  if (o.seq_len < 0 || o.seq_len >= kPositionLimit) return SIMDATTN_REFUSE(kRange, "seq_len: must be in [0, 2^31)");
  if (o.attention_factor && !(*o.attention_factor > 0 && *o.attention_factor <= kMaxFactor))
    return SIMDATTN_REFUSE(kRange, "attention_factor: must be in (0, 1e6]");
  if (!within(o.beta_slow, 1e-6, 1e6)) return SIMDATTN_REFUSE(kRange, "beta_slow: must be in [1e-6, 1e6]");
  if (!within(o.beta_fast, 1e-6, 1e6)) return SIMDATTN_REFUSE(kRange, "beta_fast: must be in [1e-6, 1e6]");
  if (o.beta_fast < o.beta_slow) return SIMDATTN_REFUSE(kRange, "beta_fast: must not be less than beta_slow");
  if (!within(o.mscale, 0, kMaxFactor)) return SIMDATTN_REFUSE(kRange, "mscale: must be in [0, 1e6]; 0 is not given");
  if (!within(o.mscale_all_dim, 0, kMaxFactor))
    return SIMDATTN_REFUSE(kRange, "mscale_all_dim: must be in [0, 1e6]; 0 is not given");
  if (!within(o.low_freq_factor, 1e-6, 1e6)) return SIMDATTN_REFUSE(kRange, "low_freq_factor: must be in [1e-6, 1e6]");
  if (!within(o.high_freq_factor, 1e-6, 1e6))
    return SIMDATTN_REFUSE(kRange, "high_freq_factor: must be in [1e-6, 1e6]");
  if (o.high_freq_factor < o.low_freq_factor)
    return SIMDATTN_REFUSE(kRange, "high_freq_factor: must not be less than low_freq_factor");
  if (!(o.partial_rotary_factor > 0 && o.partial_rotary_factor <= 1))
    return SIMDATTN_REFUSE(kRange, "partial_rotary_factor: must be in (0, 1]");

  const auto absent = [](const Doubles& numbers) { return numbers.data == nullptr && !numbers.empty(); };
  if (absent(o.short_factor)) return SIMDATTN_REFUSE(kNullPointer, "short_factor: null although its size is not 0");
  if (absent(o.long_factor)) return SIMDATTN_REFUSE(kNullPointer, "long_factor: null although its size is not 0");
  if (absent(o.freq_factors)) return SIMDATTN_REFUSE(kNullPointer, "freq_factors: null although its size is not 0");
  if (absent(o.inv_freq)) return SIMDATTN_REFUSE(kNullPointer, "inv_freq: null although its size is not 0");
  if (!o.freq_factors.empty()) {
    if (o.freq_factors.size != pairs) return SIMDATTN_REFUSE(kShape, "freq_factors: must have one number per column");
    if (!each_within(o.freq_factors, kMinFactor, kMaxFactor))
      return SIMDATTN_REFUSE(kRange, "freq_factors: every one must be in [1e-3, 1e6]");
  }
  if (!o.inv_freq.empty()) {
    if (o.rope_type != RopeType::kDefault) return SIMDATTN_REFUSE(kRange, "inv_freq: rope_type must be kDefault");
    if (o.inv_freq.size != pairs) return SIMDATTN_REFUSE(kShape, "inv_freq: must have one number per column");
    for (const double v : o.inv_freq)
      if (v != 0 && !within(v, 1e-20, 1e3))
        return SIMDATTN_REFUSE(kRange, "inv_freq: every one must be 0 or in [1e-20, 1e3]");
  }

  int64_t columns = 0;
  for (const int64_t section : o.mrope_section) {
    if (section < 0 || section > pairs)
      return SIMDATTN_REFUSE(kRange, "mrope_section: entries must be in [0, columns]");
    columns += section;
  }
  if (columns == 0) {
    if (o.mrope_layout != MropeLayout::kContiguous) return SIMDATTN_REFUSE(kRange, "mrope_layout: needs mrope_section");
    return {};
  }
  if (columns != pairs) return SIMDATTN_REFUSE(kShape, "mrope_section: must sum to the table's columns");
  if (o.mrope_layout == MropeLayout::kInterleaved && (o.mrope_section[2] == 0 || o.mrope_section[3] != 0))
    return SIMDATTN_REFUSE(kRange, "mrope_section: kInterleaved takes three axes");
  if (o.mrope_layout == MropeLayout::kAxial && o.rope_type != RopeType::kDefault && o.rope_type != RopeType::kLinear)
    return SIMDATTN_REFUSE(kRange, "mrope_layout: kAxial takes rope_type kDefault or kLinear");
  return {};
}

/// What each scaling demands of fields that pass on their own.
Status check_type(const RopeTableOptions& o, int64_t pairs, bool table) {
  switch (o.rope_type) {
    case RopeType::kDefault:
      if (o.factor != 0 && o.factor != 1)
        return SIMDATTN_REFUSE(kRange, "factor: kDefault does not scale; rope_type says how to");
      break;
    case RopeType::kLinear:
      if (o.factor == 0) return SIMDATTN_REFUSE(kRange, "factor: kLinear needs it");
      break;
    case RopeType::kDynamic:
      if (o.factor == 0) return SIMDATTN_REFUSE(kRange, "factor: kDynamic needs it");
      if (o.max_position_embeddings == 0) return SIMDATTN_REFUSE(kRange, "max_position_embeddings: kDynamic needs it");
      break;
    case RopeType::kYarn:
      if (o.factor == 0) return SIMDATTN_REFUSE(kRange, "factor: kYarn needs it");
      if (!(o.rope_theta > 1)) return SIMDATTN_REFUSE(kRange, "rope_theta: must be greater than 1 for kYarn");
      if (o.original_max_position_embeddings == 0 && o.max_position_embeddings == 0)
        return SIMDATTN_REFUSE(kRange, "original_max_position_embeddings: kYarn needs it");
      break;
    case RopeType::kLongRope:
      if (o.original_max_position_embeddings < 2)
        return SIMDATTN_REFUSE(kRange, "original_max_position_embeddings: kLongRope needs it (at least 2)");
      if (o.short_factor.size != pairs)
        return SIMDATTN_REFUSE(kShape, "short_factor: kLongRope needs one number per column");
      if (o.long_factor.size != pairs)
        return SIMDATTN_REFUSE(kShape, "long_factor: kLongRope needs one number per column");
      if (!each_within(o.short_factor, kMinFactor, kMaxFactor))
        return SIMDATTN_REFUSE(kRange, "short_factor: every one must be in [1e-3, 1e6]");
      if (!each_within(o.long_factor, kMinFactor, kMaxFactor))
        return SIMDATTN_REFUSE(kRange, "long_factor: every one must be in [1e-3, 1e6]");
      break;
    case RopeType::kProportional:
    case RopeType::kLlama3: break;
  }
  return {};
}

ByteSet bytes_of(const Doubles& values) {
  return ByteSet::of(values.data, values.size * static_cast<int64_t>(sizeof(double)));
}

/// positions [axes, n], or first, first + 1, ... where absent.
Status check_table_positions(const ConstView<2>& positions, int64_t first, int64_t n, ByteSet* extent) {
  extent->clear();
  if (positions.data == nullptr) {
    SIMDATTN_REQUIRE(positions.shape[0] == 0 || positions.shape[1] == 0, Code::kNullPointer,
                     "positions.data: null although its shape is not empty");
    SIMDATTN_REQUIRE(first > -kPositionLimit && first < kPositionLimit && n <= kPositionLimit - first, Code::kRange,
                     "first: every position must be in (-2^31, 2^31)");
    return {};
  }
  SIMDATTN_CHECK(check_view(positions, Accept::kIndex, SIMDATTN_ARGUMENT("positions"), extent));
  for (int64_t a = 0; a < positions.shape[0]; ++a) {
    for (int64_t i = 0; i < positions.shape[1]; ++i) {
      const int64_t p = index_at(positions.data, positions.dtype, a * positions.stride[0] + i * positions.stride[1]);
      SIMDATTN_REQUIRE(p > -kPositionLimit && p < kPositionLimit, Code::kRange,
                       "positions: every position must be in (-2^31, 2^31)");
    }
  }
  return {};
}

}  // namespace

Status check_rope_table_options(const RopeTableOptions& o, int64_t pairs, bool table) {
  SIMDATTN_CHECK(check_fields(o, pairs, table));
  return check_type(o, pairs, table);
}

Status check_raised_theta(double ln_theta, bool table) {
  if (ln_theta > 34.538776394910684)  // ln 1e15
    return SIMDATTN_REFUSE(kRange, "seq_len: kDynamic would raise rope_theta beyond 1e15");
  return {};
}

bool overlaps_options(const ByteSet& output, const RopeTableOptions& o) {
  return share_bytes(output, bytes_of(o.short_factor)) || share_bytes(output, bytes_of(o.long_factor)) ||
         share_bytes(output, bytes_of(o.freq_factors)) || share_bytes(output, bytes_of(o.inv_freq));
}

Status check_rope_frequencies(const double* inv_freq, int64_t pairs, const double* attention_factor,
                              const RopeTableOptions& options) {
  SIMDATTN_REQUIRE(pairs >= 1 && pairs <= kMaxColumns, Code::kShape, "pairs: must be in 1 .. 2^20");
  SIMDATTN_REQUIRE(inv_freq != nullptr, Code::kNullPointer, "inv_freq: null");
  const ByteSet out = ByteSet::of(inv_freq, pairs * static_cast<int64_t>(sizeof(double)));
  const ByteSet factor = ByteSet::of(attention_factor, sizeof(double));
  SIMDATTN_REQUIRE(!overlaps_options(out, options), Code::kOverlap, "inv_freq: overlaps an array of options");
  SIMDATTN_REQUIRE(!share_bytes(factor, out), Code::kOverlap, "attention_factor: overlaps inv_freq");
  SIMDATTN_REQUIRE(!overlaps_options(factor, options), Code::kOverlap,
                   "attention_factor: overlaps an array of options");
  return {};
}

Status check_rope_table_outputs(const View<2>& cos, const View<2>& sin, RopeTableBytes* bytes) {
  SIMDATTN_CHECK(check_view(cos, Accept::kF32, SIMDATTN_ARGUMENT("cos"), &bytes->cos));
  SIMDATTN_CHECK(check_view(sin, Accept::kF32, SIMDATTN_ARGUMENT("sin"), &bytes->sin));
  SIMDATTN_REQUIRE(same_shape(cos, sin), Code::kShape, "sin.shape != cos.shape");
  const int64_t columns = cos.shape[1];
  SIMDATTN_REQUIRE(columns >= 1 && columns <= kMaxColumns, Code::kShape, "cos.shape[1]: must be in 1 .. 2^20");
  return {};
}

Status check_rope_table_positions(const View<2>& cos, const RopeTableOptions& options, int64_t axes,
                                  const ConstView<2>& positions, int64_t first, const RopeTableBytes& bytes) {
  ByteSet read;
  const int64_t n = cos.shape[0];
  if (positions.data != nullptr) {
    SIMDATTN_REQUIRE(positions.shape[1] == n, Code::kShape, "positions.shape[1] != cos.shape[0]");
    SIMDATTN_REQUIRE(positions.shape[0] == 1 || positions.shape[0] == axes, Code::kShape,
                     "positions.shape[0]: must be 1 or the number of position axes in options.mrope_section");
  }
  SIMDATTN_CHECK(check_table_positions(positions, first, n, &read));
  SIMDATTN_REQUIRE(!share_bytes(bytes.cos, bytes.sin), Code::kOverlap, "sin: overlaps cos");
  SIMDATTN_REQUIRE(!share_bytes(bytes.cos, read), Code::kOverlap, "positions: overlaps cos");
  SIMDATTN_REQUIRE(!share_bytes(bytes.sin, read), Code::kOverlap, "positions: overlaps sin");
  SIMDATTN_REQUIRE(!overlaps_options(bytes.cos, options), Code::kOverlap, "cos: overlaps an array of options");
  SIMDATTN_REQUIRE(!overlaps_options(bytes.sin, options), Code::kOverlap, "sin: overlaps an array of options");
  return {};
}

Status check_sinusoidal_table(const View<2>& out, double base, const ConstView<1>& positions, int64_t first) {
  ByteSet bytes;
  ByteSet read;
  SIMDATTN_CHECK(check_view(out, Accept::kF32, SIMDATTN_ARGUMENT("out"), &bytes));
  const auto [n, d] = out.shape;
  SIMDATTN_REQUIRE(d >= 1 && d <= kMaxColumns, Code::kShape, "out.shape[1]: must be in 1 .. 2^20");
  SIMDATTN_REQUIRE(within(base, 1, kMaxTheta), Code::kRange, "base: must be in [1, 1e15]");
  const bool given = positions.data != nullptr;
  SIMDATTN_REQUIRE(!given || positions.shape[0] == n, Code::kShape, "positions.shape[0] != out.shape[0]");
  const ConstView<2> one_axis(positions.data, positions.dtype, {given ? 1 : 0, positions.shape[0]},
                              {0, positions.stride[0]});
  SIMDATTN_CHECK(check_table_positions(one_axis, first, n, &read));
  SIMDATTN_REQUIRE(given || positions.shape[0] == 0, Code::kNullPointer,
                   "positions.data: null although its shape is not empty");
  SIMDATTN_REQUIRE(!share_bytes(bytes, read), Code::kOverlap, "positions: overlaps out");
  return {};
}

Status check_alibi_slopes(int64_t heads, const float* slopes) {
  SIMDATTN_REQUIRE(heads >= 1 && heads <= kMaxSize, Code::kShape, "heads: must be in 1 .. 2^30 - 1");
  SIMDATTN_REQUIRE(slopes != nullptr, Code::kNullPointer, "slopes: must not be null");
  return {};
}

}  // namespace simdattn
