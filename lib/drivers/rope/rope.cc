// Rotary position embedding. Tables of cos and sin: every scaling, several position axes, exact or as f32 models
// compute them. The exact way forms frequencies in double-double arithmetic and angles in fixed point (angles.h).
// rope() rotates by a table, rope_direct() by angles that are computed on the way.
#include <algorithm>
#include <cmath>

#include "dispatch/environment.h"
#include "dispatch/streaming.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/shared/rotate.h"
#include "lib/drivers/shared/rows.h"
#include "lib/drivers/shared/workspace.h"
#include "lib/drivers/tables/angles.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// Options with defaults filled in, and what every column needs of them.
struct RopeScaling {
  const RopeTableOptions* options = nullptr;
  int64_t pairs = 0;
  double factor = 1;
  double original_max = 0;
  DoubleDouble ln_theta;
  DoubleDouble ramp_low;  // kYarn
  DoubleDouble ramp_high;
  int64_t rotated = 0;    // kProportional: columns that rotate
  Doubles long_or_short;  // kLongRope
  double attention_factor = 1;
  DoubleDouble ln_theta_f32;
  int64_t axes = 1;  // no fault: set before it is read
};

/// What one column's angles are made of.
struct RopeColumn {
  union {
    Turns turns{};
    float inv;  // f32_angles
  };
  uint32_t axis = 0;  // of the position
};

// What is computed once in a call or in a column is cold, or the operators of double-double are inlined at every use.
// The time is in `exp`, which is hot though only these call it, and in rope_row.

/// 0.1 m ln f + 1: the growth of attention entropy that YaRN balances.
[[gnu::cold]] DoubleDouble yarn_magnitude(double f, double m) {
  if (f <= 1) return 1.0;
  return log(DoubleDouble(f)) * m / 10.0 + 1.0;
}

/// The column (a real number) whose angle turns `rotations` times over the original length.
[[gnu::cold]] DoubleDouble yarn_correction(const RopeScaling& s, double rotations) {
  const DoubleDouble length = DoubleDouble(s.original_max) / (kTwoPiDD * rotations);
  return log(length) * static_cast<double>(s.pairs) / s.ln_theta;
}

[[gnu::cold]] void resolve_yarn(const RopeTableOptions& o, RopeScaling* s) {
  if (s->original_max == 0) s->original_max = static_cast<double>(o.max_position_embeddings);
  DoubleDouble low = yarn_correction(*s, o.beta_fast);
  DoubleDouble high = yarn_correction(*s, o.beta_slow);
  if (o.truncate) {
    low = floor(low);
    high = -floor(-high);
  }
  const DoubleDouble last = static_cast<double>(2 * s->pairs - 1);
  if (low < 0.0) low = 0.0;
  if (last < high) high = last;
  if (low.hi == high.hi && low.lo == high.lo) high = high + 0.001;
  s->ramp_low = low;
  s->ramp_high = high;
  const bool two = o.mscale != 0 && o.mscale_all_dim != 0;
  DoubleDouble magnitude = yarn_magnitude(o.factor, two ? o.mscale : 1);
  if (two) magnitude = magnitude / yarn_magnitude(o.factor, o.mscale_all_dim);
  s->attention_factor = magnitude.hi;
}

[[gnu::cold]] Status resolve_dynamic(const RopeTableOptions& o, bool table, RopeScaling* s) {
  if (o.seq_len <= o.max_position_embeddings || s->pairs == 1) return {};  // one column has exponent 0: no base
  const auto max = static_cast<double>(o.max_position_embeddings);
  const DoubleDouble beyond = DoubleDouble(static_cast<double>(o.seq_len) - max) / max;  // L/M - 1
  const DoubleDouble growth = beyond * o.factor + 1.0;
  s->ln_theta = s->ln_theta + log(growth) * static_cast<double>(s->pairs) / static_cast<double>(s->pairs - 1);
  return check_raised_theta(s->ln_theta.hi, table);
}

[[gnu::cold]] void resolve_longrope(const RopeTableOptions& o, RopeScaling* s) {
  s->long_or_short = o.seq_len > o.original_max_position_embeddings ? o.long_factor : o.short_factor;
  DoubleDouble f = s->factor;
  if (o.max_position_embeddings != 0)
    f = DoubleDouble(static_cast<double>(o.max_position_embeddings)) / s->original_max;
  if (1.0 < f) s->attention_factor = std::sqrt((1.0 + log(f) / log(DoubleDouble(s->original_max))).hi);
}

/// Column i of a table (kAxial: of its section) with `pairs` columns.
struct Column {
  size_t axis;
  int64_t i;
  int64_t pairs;
};

Column locate(const RopeScaling& s, int64_t c) {
  const RopeTableOptions& o = *s.options;
  if (s.axes == 1) return {0, c, s.pairs};
  if (o.mrope_layout == MropeLayout::kInterleaved) {
    const size_t residue = static_cast<size_t>(c % 3);
    const bool follows = residue != 0 && c < 3 * o.mrope_section[residue];
    return {follows ? residue : 0, c, s.pairs};
  }
  size_t axis = 0;
  int64_t start = 0;
  while (c >= start + o.mrope_section[axis]) start += o.mrope_section[axis++];
  if (o.mrope_layout == MropeLayout::kAxial) return {axis, c - start, o.mrope_section[axis]};
  return {axis, c, s.pairs};
}

/// Of column c as the scaling forms it, from 1 / theta^(i / pairs).
DoubleDouble scaled_frequency(const RopeScaling& s, int64_t c) {
  const RopeTableOptions& o = *s.options;
  const Column column = locate(s, c);
  const auto i = static_cast<double>(column.i);
  const DoubleDouble inv = exp(-(s.ln_theta * i / static_cast<double>(column.pairs)));
  switch (o.rope_type) {
    case RopeType::kDefault:
    case RopeType::kDynamic: break;
    case RopeType::kLinear: return inv / s.factor;
    case RopeType::kProportional: return c < s.rotated ? inv / s.factor : 0.0;
    case RopeType::kYarn: {
      DoubleDouble ramp = (DoubleDouble(i) - s.ramp_low) / (s.ramp_high - s.ramp_low);
      if (ramp < 0.0) ramp = 0.0;
      if (1.0 < ramp) ramp = 1.0;
      return inv / s.factor * ramp + inv * (1.0 - ramp);
    }
    case RopeType::kLlama3: {
      // The two outer branches of the formula are the ends of the middle one, which vanishes if the factors are equal.
      const DoubleDouble turns = inv * s.original_max / kTwoPiDD;
      DoubleDouble smooth = 1.0;
      if (turns < o.high_freq_factor) {
        const DoubleDouble width = DoubleDouble(o.high_freq_factor) - o.low_freq_factor;
        smooth = turns < o.low_freq_factor ? 0.0 : (turns - o.low_freq_factor) / width;
      }
      return (1.0 - smooth) * inv / s.factor + smooth * inv;
    }
    case RopeType::kLongRope: return inv / s.long_or_short[c];
  }
  return inv;
}

/// In f32 and in the order of operations of Hugging Face's functions (PyTorch computes number / tensor as reciprocal
/// times number). The power alone is rounded once from its exact value: PyTorch's depends on its build by an ulp or
/// two.
float scaled_frequency_f32(const RopeScaling& s, int64_t c) {
  const RopeTableOptions& o = *s.options;
  const Column column = locate(s, c);
  const auto factor = static_cast<float>(s.factor);
  const float exponent = static_cast<float>(2 * column.i) / static_cast<float>(2 * column.pairs);
  const auto power = static_cast<float>(exp(s.ln_theta_f32 * static_cast<double>(exponent)).hi);
  const float inv = 1.0f / power;
  switch (o.rope_type) {
    case RopeType::kDefault:
    case RopeType::kDynamic: break;
    case RopeType::kLinear: return inv / factor;
    case RopeType::kProportional: return c < s.rotated ? inv / factor : 0.0f;
    case RopeType::kYarn: {
      const float interpolated = 1.0f / (factor * power);
      const auto low = static_cast<float>(s.ramp_low.hi);
      const auto span = static_cast<float>((s.ramp_high - s.ramp_low).hi);
      float ramp = (static_cast<float>(column.i) - low) / span;
      ramp = ramp < 0 ? 0.0f : ramp > 1 ? 1.0f : ramp;
      const float extrapolation = 1.0f - ramp;
      return interpolated * (1.0f - extrapolation) + inv * extrapolation;
    }
    case RopeType::kLlama3: {
      const float wavelength = 1.0f / inv * 0x1.921fb6p+2f;
      const auto low = static_cast<float>(o.low_freq_factor);
      const auto width = static_cast<float>(o.high_freq_factor - o.low_freq_factor);
      const bool is_long = wavelength > static_cast<float>(s.original_max / o.low_freq_factor);
      const bool is_short = wavelength < static_cast<float>(s.original_max / o.high_freq_factor);
      const float smooth = (1.0f / wavelength * static_cast<float>(s.original_max) - low) / width;
      if (is_long) return inv / factor;
      return is_short || width == 0 ? inv : (1.0f - smooth) * inv / factor + smooth * inv;
    }
    case RopeType::kLongRope: return 1.0f / (static_cast<float>(s.long_or_short[c]) * power);
  }
  return inv;
}

/// Of column c; with f32_angles an f32.
[[gnu::cold]] DoubleDouble frequency(const RopeScaling& s, int64_t c) {
  const RopeTableOptions& o = *s.options;
  const bool given = !o.inv_freq.empty();
  if (o.f32_angles) {
    const float inv = given ? static_cast<float>(o.inv_freq[c]) : scaled_frequency_f32(s, c);
    return static_cast<double>(o.freq_factors.empty() ? inv : inv / static_cast<float>(o.freq_factors[c]));
  }
  const DoubleDouble inv = given ? o.inv_freq[c] : scaled_frequency(s, c);
  return o.freq_factors.empty() ? inv : inv / o.freq_factors[c];
}

/// Of the options of a table with `pairs` columns. `table`: the argument is called so, not `options`.
[[gnu::cold]] Status resolve_rope_scaling(const RopeTableOptions& o, int64_t pairs, bool table, RopeScaling* s) {
  s->options = &o;
  s->pairs = pairs;
  s->factor = o.factor != 0 ? o.factor : 1;
  s->original_max = static_cast<double>(o.original_max_position_embeddings);
  s->ln_theta = log(DoubleDouble(o.rope_theta));
  switch (o.rope_type) {
    case RopeType::kDefault:
    case RopeType::kLinear: break;
    case RopeType::kProportional:
      s->rotated = static_cast<int64_t>(std::floor(o.partial_rotary_factor * static_cast<double>(pairs)));
      break;
    case RopeType::kDynamic: SIMDATTN_CHECK(resolve_dynamic(o, table, s)); break;
    case RopeType::kYarn: resolve_yarn(o, s); break;
    case RopeType::kLlama3:
      if (o.factor == 0) s->factor = 8;
      if (s->original_max == 0) s->original_max = 8192;
      break;
    case RopeType::kLongRope: resolve_longrope(o, s); break;
  }
  if (o.attention_factor) s->attention_factor = *o.attention_factor;
  if (o.f32_angles) {
    s->attention_factor = static_cast<double>(static_cast<float>(s->attention_factor));
    const bool changed = o.rope_type == RopeType::kDynamic;
    const auto theta = static_cast<float>(changed ? exp(s->ln_theta).hi : o.rope_theta);
    s->ln_theta_f32 = log(DoubleDouble(static_cast<double>(theta)));
  }
  s->axes = axes_of(o);
  return {};
}

/// Columns begin .. end-1. one_axis: positions have a single axis, whatever the options say.
void rope_columns(const RopeScaling& s, bool one_axis, int64_t begin, int64_t end, RopeColumn* columns) {
  for (int64_t c = begin; c < end; ++c) {
    RopeColumn& column = columns[c - begin];
    column.axis = one_axis ? 0 : static_cast<uint32_t>(locate(s, c).axis);
    const DoubleDouble inv = frequency(s, c);
    if (s.options->f32_angles) column.inv = static_cast<float>(inv.hi);
    else column.turns = turns_of_frequency(inv);
  }
}

/// cos and sin of `n` columns at a position with up to four axes.
void rope_row(const RopeScaling& s, const RopeColumn* columns, int64_t n, const std::array<int64_t, 4>& position,
              float* cos, float* sin) {
  const auto attention_f32 = static_cast<float>(s.attention_factor);
  for (int64_t k = 0; k < n; ++k) {
    const int64_t at = position[columns[k].axis];
    if (s.options->f32_angles) {
      const CosSin cs = cos_sin(static_cast<float>(at) * columns[k].inv);
      cos[k] = static_cast<float>(cs.cos) * attention_f32;
      sin[k] = static_cast<float>(cs.sin) * attention_f32 + 0.0f;
    } else {
      const CosSin cs = cos_sin(columns[k].turns, at);
      cos[k] = static_cast<float>(cs.cos * s.attention_factor);
      sin[k] = static_cast<float>(cs.sin * s.attention_factor) + 0.0f;  // +0 at -0
    }
  }
}

/// Up to this many pairs, their constants and one row of cos and sin stand on the stack (32 KiB).
constexpr int64_t kStackPairs = 1024;

struct DirectBuffers {
  Workspace w;
  int64_t pairs;
  RopeColumn* columns = w.take<RopeColumn>(pairs);
  float* cos = w.take<float>(pairs);
  float* sin = w.take<float>(pairs);
};

/// Heads of a token that rotate in L1 before they are stored past the caches.
constexpr int64_t kStreamedBytes = 4096;

/// The rotation of rows of x into rows of `out`, token by token.
struct TokenRotation {
  const UKernels& uk;
  const ConstView<4>& x;
  const View<4>& out;
  const RopeOptions& options;
  int64_t pairs;
  RopeHeads call = rotation_of(options, x.shape[3], pairs);
  bool norms = has_norm(options);
  /// The CPU gains by stores past the caches, and rows of `out` would not stay in these anyway. Not for rows of 16-bit
  /// numbers, because converting them takes as long as memory does, nor in place: such rows are in the caches.
  bool streams = tuning_of_cpu().stream_results && out.data != x.data && out.dtype == DType::kF32 && !norms &&
                 out.shape[3] * size_of(out.dtype) <= kStreamedBytes && bytes_of(out) > kCacheBytes;

  /// All heads of token i, by the angles of `call`.
  void rotate(int64_t b, int64_t i) {
    if (norms) return norm_and_rotate(b, i);
    if (streams) return rotate_past_caches(b, i);
    call.x = row_of(x, b, 0, i);
    call.y = row_of(out, b, 0, i);
    call.x_stride = x.stride[1];
    call.y_stride = out.stride[1];
    call.heads = x.shape[1];
    rotate_heads(uk, x.dtype, out.dtype, call);
  }
  ~TokenRotation() {
    if (streams) order_copies_past_caches();
  }

 private:
  /// In f32, rounded once.
  [[gnu::noinline]] void norm_and_rotate(int64_t b, int64_t i) {
    alignas(64) float row[kMaxNormDim];
    RopeHeads head = call;
    head.x = head.y = row;
    for (int64_t h = 0; h < x.shape[1]; ++h) {
      norm_row(uk, options, x.dtype, row_of(x, b, h, i), row, head.dim);
      uk.rope_heads[index_of(DType::kF32)](head);
      round_rows(uk, row, 0, 1, head.dim, out.dtype, row_of(out, b, h, i), 0);
    }
  }
  /// With a copy at the end. Kernels that store past the caches by themselves would be a second set of them, and no
  /// faster, because memory is the bound.
  [[gnu::noinline]] void rotate_past_caches(int64_t b, int64_t i) {
    alignas(64) char rows[kStreamedBytes];
    const int64_t row_bytes = call.dim * size_of(out.dtype), at_once = kStreamedBytes / row_bytes;
    RopeHeads heads = call;
    heads.y = rows;
    heads.x_stride = x.stride[1];
    heads.y_stride = call.dim;
    for (int64_t h = 0; h < x.shape[1]; h += at_once) {
      heads.x = row_of(x, b, h, i);
      heads.heads = std::min(at_once, x.shape[1] - h);
      rotate_heads(uk, x.dtype, out.dtype, heads);
      for (int64_t k = 0; k < heads.heads; ++k) {
        copy_past_caches(row_of(out, b, h + k, i), rows + k * row_bytes, static_cast<size_t>(row_bytes));
      }
    }
  }
};

/// Position i of sequence b on each axis; first + i where there is no array of them.
std::array<int64_t, 4> position_of(const ConstView<3>& positions, int64_t first, int64_t b, int64_t i) {
  if (positions.data == nullptr) return {first + i};
  std::array<int64_t, 4> position = {};
  for (int64_t axis = 0; axis < positions.shape[0]; ++axis) {
    const int64_t at = axis * positions.stride[0] + b * positions.stride[1] + i * positions.stride[2];
    position[static_cast<size_t>(axis)] = index_at(positions.data, positions.dtype, at);
  }
  return position;
}

}  // namespace

Status drivers::rope_frequencies(double* inv_freq, int64_t pairs, double* attention_factor,
                                 const RopeTableOptions& options) {
  SIMDATTN_CHECK(check_rope_frequencies(inv_freq, pairs, attention_factor, options));
  RopeScaling s;
  SIMDATTN_CHECK(resolve_rope_scaling(options, pairs, false, &s));
  for (int64_t c = 0; c < pairs; ++c) inv_freq[c] = frequency(s, c).hi;
  if (attention_factor != nullptr) *attention_factor = s.attention_factor;
  return {};
}

Status drivers::rope_table(const View<2>& cos, const View<2>& sin, const RopeTableOptions& options,
                           const ConstView<2>& positions, int64_t first) {
  SIMDATTN_CHECK(check_rope_table(cos, sin, options, positions, first));
  const auto [n, columns] = cos.shape;
  RopeScaling s;
  SIMDATTN_CHECK(resolve_rope_scaling(options, columns, false, &s));

  const auto [axes, n_positions] = positions.shape;
  const ConstView<3> of_tokens(positions.data, positions.dtype, {axes, 1, n_positions},
                               {positions.stride[0], 0, positions.stride[1]});
  for (int64_t begin = 0; begin < columns && n > 0; begin += kColumnChunk) {
    const int64_t end = std::min(begin + kColumnChunk, columns);
    RopeColumn chunk[kColumnChunk];
    rope_columns(s, positions.data == nullptr || axes == 1, begin, end, chunk);
    for (int64_t p = 0; p < n; ++p) {
      rope_row(s, chunk, end - begin, position_of(of_tokens, first, 0, p),
               static_cast<float*>(cos.data) + p * cos.stride[0] + begin,
               static_cast<float*>(sin.data) + p * sin.stride[0] + begin);
    }
  }
  return {};
}

Status drivers::rope(const UKernels& uk, const ConstView<4>& x, const ConstView<2>& cos, const ConstView<2>& sin,
                     const Positions& positions, const View<4>& out, const RopeOptions& options) {
  SIMDATTN_CHECK(check_rope(x, cos, sin, positions, out, options));
  if (is_empty(out)) return {};

  const Environment environment;
  const ConstView<2> rows = of_one_axis(positions);
  TokenRotation rotation = {uk, x, out, options, cos.shape[1]};
  for (int64_t b = 0; b < x.shape[0]; ++b) {
    for (int64_t i = 0; i < x.shape[2]; ++i) {
      const int64_t p = position_at(rows, positions.start, b, i);
      rotation.call.cos = table_row(cos, p);
      rotation.call.sin = table_row(sin, p);
      rotation.rotate(b, i);
    }
  }
  return {};
}

size_t drivers::rope_direct_workspace(int64_t pairs) {
  return pairs > kStackPairs && pairs <= kMaxColumns ? DirectBuffers{Workspace(nullptr), pairs}.w.bytes() : 0;
}

Status drivers::rope_direct(const UKernels& uk, const ConstView<4>& x, int64_t pairs, const RopeTableOptions& table,
                            const Positions& positions, const View<4>& out, const RopeOptions& options,
                            const Exec& exec) {
  SIMDATTN_CHECK(check_rope_direct(x, pairs, table, positions, out, options, exec, rope_direct_workspace(pairs)));
  RopeScaling scaling;
  SIMDATTN_CHECK(resolve_rope_scaling(table, pairs, true, &scaling));
  if (is_empty(out)) return {};

  alignas(64) char stack[kStackPairs * (sizeof(RopeColumn) + 2 * sizeof(float)) + 64];
  const DirectBuffers buffers = {Workspace(pairs > kStackPairs ? exec.workspace : stack), pairs};
  rope_columns(scaling, positions.rows.data == nullptr || positions.rows.shape[0] == 1, 0, pairs, buffers.columns);
  TokenRotation rotation = {uk, x, out, options, pairs};
  rotation.call.cos = buffers.cos;
  rotation.call.sin = buffers.sin;
  for (int64_t i = 0; i < x.shape[2]; ++i) {
    std::array<int64_t, 4> last = {kPositionLimit};  // no position: the row in the buffers is of none yet
    for (int64_t b = 0; b < x.shape[0]; ++b) {
      const std::array<int64_t, 4> position = position_of(positions.rows, positions.start, b, i);
      if (position != last) rope_row(scaling, buffers.columns, pairs, position, buffers.cos, buffers.sin);
      last = position;  // no fault: without it rows are computed again
      rotation.rotate(b, i);
    }
  }
  return {};
}

}  // namespace simdattn
