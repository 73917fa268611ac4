// What every function but attention demands of its arguments.
#ifndef SIMDATTN_LIB_RULES_RULES_H_
#define SIMDATTN_LIB_RULES_RULES_H_

#include "lib/rules/kv.h"

namespace simdattn {

/// What is inside of another struct has one size, and grows into `reserved`.
#define SIMDATTN_SIZE_INSIDE "inside another struct it is that of this version"
#define SIMDATTN_RESERVED "must be 0"

inline Status check_reserved(const RopeOptions& o) {
  SIMDATTN_REQUIRE((o.reserved[0] | o.reserved[1]) == 0, Code::kStructSize, "options.reserved: " SIMDATTN_RESERVED);
  return {};
}

struct RotationText {
  const char* size;
  const char* reserved;
  const char* options_size;
  const char* options_reserved;
};
#define SIMDATTN_ROTATION_TEXT(name)                                                 \
  {name ".struct_size: " SIMDATTN_SIZE_INSIDE, name ".reserved: " SIMDATTN_RESERVED, \
   name ".options.struct_size: " SIMDATTN_SIZE_INSIDE, name ".options.reserved: " SIMDATTN_RESERVED}

inline Status check_inside(const KeyRotation& r, const RotationText& text) {
  SIMDATTN_REQUIRE(r.struct_size == sizeof r, Code::kStructSize, text.size);
  SIMDATTN_REQUIRE((r.reserved[0] | r.reserved[1]) == 0, Code::kStructSize, text.reserved);
  SIMDATTN_REQUIRE(r.options.struct_size == sizeof r.options, Code::kStructSize, text.options_size);
  SIMDATTN_REQUIRE((r.options.reserved[0] | r.options.reserved[1]) == 0, Code::kStructSize, text.options_reserved);
  return {};
}

inline int64_t index_at(const void* data, DType dtype, int64_t i) {
  return dtype == DType::kI32 ? static_cast<const int32_t*>(data)[i] : static_cast<const int64_t*>(data)[i];
}

/// positions[b, i], or start + i where the view is absent.
inline int64_t position_at(const ConstView<2>& positions, int64_t start, int64_t b, int64_t i) {
  if (positions.data == nullptr) return start + i;
  return index_at(positions.data, positions.dtype, b * positions.stride[0] + i * positions.stride[1]);
}

/// Row p of cos or sin. Rows without columns are all the same one, whatever the stride.
inline const float* table_row(const ConstView<2>& table, int64_t p) {
  return static_cast<const float*>(table.data) + (table.shape[1] == 0 ? 0 : p * table.stride[0]);
}

/// The sentences about a rotation, whose arguments are called cos, sin and options, or members of another one.
struct RopeText {
  Argument cos;
  Argument sin;
  const char* shape;
  const char* pairing;
  const char* first_dim;
  const char* too_many;  // pairs that do not fit the dimension
};
#define SIMDATTN_ROPE_TEXT(prefix)                             \
  {SIMDATTN_ARGUMENT_TEXT(prefix "cos"),                       \
   SIMDATTN_ARGUMENT_TEXT(prefix "sin"),                       \
   prefix "sin.shape != " prefix "cos.shape",                  \
   prefix "options.pairing: not a RopePairing",                \
   prefix "options.first_dim: must be in 0 .. head dimension", \
   prefix "cos.shape[1]: first_dim + 2 * pairs exceeds the head dimension"}
inline constexpr RopeText kRope = SIMDATTN_ROPE_TEXT("");
inline constexpr RopeText kAppendRope = SIMDATTN_ROPE_TEXT("options.rope.");
inline constexpr RopeText kShiftRope = SIMDATTN_ROPE_TEXT("rope.");

inline Status check_rope_options(const RopeOptions& options, int64_t pairs, int64_t dim, const RopeText& text,
                                 const char* too_many) {
  SIMDATTN_REQUIRE(options.pairing == RopePairing::kInterleaved || options.pairing == RopePairing::kHalfSplit,
                   Code::kRange, text.pairing);
  SIMDATTN_REQUIRE(options.first_dim >= 0 && options.first_dim <= dim, Code::kRange, text.first_dim);
  SIMDATTN_REQUIRE(pairs <= (dim - options.first_dim) / 2, Code::kShape, too_many);
  return {};
}

inline Status check_rope_table(const ConstView<2>& cos, const ConstView<2>& sin, const RopeOptions& options,
                               int64_t dim, const RopeText& text, ByteSet* cos_extent, ByteSet* sin_extent) {
  SIMDATTN_CHECK(check_view(cos, Accept::kF32, text.cos, cos_extent));
  SIMDATTN_CHECK(check_view(sin, Accept::kF32, text.sin, sin_extent));
  SIMDATTN_REQUIRE(same_shape(cos, sin), Code::kShape, text.shape);
  return check_rope_options(options, cos.shape[1], dim, text, text.too_many);
}

/// Where one token is: `inside` counts in the tensor of its sequence, the ring or the page, and so does `unit`: sequences or
/// pages. A negative unit: nowhere.
struct TokenPlace {
  int64_t unit;
  int64_t inside;
};

template <bool kConst>
TokenPlace place_of(const BasicKv<kConst>& kv, int64_t sequence, int64_t token) {
  if (kv.page_size > 0) return {page_of(kv, sequence, token), token % kv.page_size};
  return {sequence, kv.ring > 0 ? token % kv.ring : token};
}

/// The rows of an append that passed the rules.
class AppendedRows {
 public:
  AppendedRows(const ConstView<2>& positions, const Kv& kv, const AppendOptions& options, int64_t rows)
      : positions_(positions), kv_(kv), options_(options), rows_(rows) {}

  int64_t count(int64_t b) const { return options_.counts != nullptr ? options_.counts[b] : rows_; }
  int64_t position(int64_t b, int64_t i) const { return position_at(positions_, start(b), b, i); }
  int64_t start(int64_t b) const { return options_.starts != nullptr ? options_.starts[b] : options_.start; }
  /// A negative unit: skipped.
  TokenPlace place(int64_t b, int64_t i) const {
    if (options_.slots.data != nullptr) {
      const int64_t at = position_at(options_.slots, 0, b, i);
      if (at < 0 || (rotates() && position(b, i) < 0)) return {-1, 0};
      return {at / kv_.page_size, at % kv_.page_size};
    }
    const int64_t p = position(b, i);
    return p < 0 ? TokenPlace{-1, 0} : place_of(kv_, b, p);
  }
  bool rotates() const { return options_.rope.cos.data != nullptr || options_.rope.sin.data != nullptr; }

 private:
  const ConstView<2>& positions_;
  const Kv& kv_;
  const AppendOptions& options_;
  int64_t rows_;
};

/// Everything that kv_append() demands of its arguments.
Status check_append(const ConstView<4>& rows, const ConstView<2>& positions, const Kv& kv,
                    const AppendOptions& options);

/// Everything that dequantise() demands of its arguments.
Status check_dequantise(const ConstKv& kv, int64_t first, const View<4>& out);

/// `empty`: the store has no bytes.
Status check_kv_shift(const Kv& kv, int64_t first, int64_t last, int64_t delta, const KeyRotation& rope, bool* empty);

/// Largest block: a row of one is transformed on the stack.
inline constexpr int64_t kMaxHadamardBlock = 4096;

/// Longest row that kv_append() and kv_shift() rotate.
inline constexpr int64_t kMaxHadamardRow = 8192;

/// The block that 0 stands for: the largest power of two that divides `dim`.
constexpr int64_t hadamard_block(int64_t block, int64_t dim) {
  if (block != 0) return block;
  const int64_t largest = dim & -dim;
  return largest < kMaxHadamardBlock ? largest : kMaxHadamardBlock;
}

/// Of keys on their way into a cache. `sentence` names the argument.
Status check_key_hadamard(int64_t block, int64_t dim, const char* sentence);
#define SIMDATTN_KEY_HADAMARD_TEXT(argument) \
  argument ": must be 0, or a power of two up to 4096 that divides kv.dim, which is then at most 8192"

Status check_hadamard(const ConstView<4>& x, const View<4>& out, int64_t block, bool* empty);

/// `empty`: there is nothing to write.
Status check_rope(const ConstView<4>& x, const ConstView<2>& cos, const ConstView<2>& sin,
                  const ConstView<2>& positions, const View<4>& out, const RopeOptions& options, bool* empty);
Status check_add_rows(const ConstView<4>& x, const ConstView<4>& p, const View<4>& out, bool* empty);

/// The bytes of the rows of rope_direct().
struct RopeDirectBytes {
  ByteSet x;
  ByteSet out;
};
/// What comes before the rules on the table's options.
Status check_rope_direct_rows(const ConstView<4>& x, int64_t pairs, const View<4>& out, const RopeOptions& options,
                              RopeDirectBytes* bytes);
/// What comes after them. `axes`: of positions, as the options tell; `needed`: bytes of the workspace that the call uses.
Status check_rope_direct_positions(const ConstView<4>& x, const RopeTableOptions& table, int64_t axes,
                                   const ConstView<3>& positions, const View<4>& out, const RopeOptions& options,
                                   const RopeDirectBytes& bytes, const Exec& exec, size_t needed);

/// |position| is below this.
inline constexpr int64_t kPositionLimit = int64_t{1} << 31;
inline constexpr int64_t kMaxColumns = int64_t{1} << 20;

/// The options of a table with `pairs` columns. `table`: the argument is called so, not `options`.
Status check_rope_table_options(const RopeTableOptions& options, int64_t pairs, bool table);
/// The natural logarithm of the theta that kDynamic makes of the given one.
Status check_raised_theta(double ln_theta, bool table);
/// True if an output shares bytes with an array of the options.
bool overlaps_options(const ByteSet& output, const RopeTableOptions& options);

/// rope_frequencies(), but for the options.
Status check_rope_frequencies(const double* inv_freq, int64_t pairs, const double* attention_factor,
                              const RopeTableOptions& options);

/// The bytes of the outputs of rope_table().
struct RopeTableBytes {
  ByteSet cos;
  ByteSet sin;
};
/// What comes before the rules on the options.
Status check_rope_table_outputs(const View<2>& cos, const View<2>& sin, RopeTableBytes* bytes);
/// What comes after them. `axes`: of positions, as the options tell.
Status check_rope_table_positions(const View<2>& cos, const RopeTableOptions& options, int64_t axes,
                                  const ConstView<2>& positions, int64_t first, const RopeTableBytes& bytes);

Status check_sinusoidal_table(const View<2>& out, double base, const ConstView<1>& positions, int64_t first);
Status check_alibi_slopes(int64_t heads, const float* slopes);

/// `needed`: bytes of the workspace that the call uses; here and below.
Status check_scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out, const ScoreOptions& options,
                    const Exec& exec, size_t needed);

Status check_gaussian_scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out,
                             const ScoreOptions& options);

Status check_bilinear_scores(const ConstView<4>& q, const ConstView<3>& m, const ConstView<4>& k, const View<4>& out,
                             const ScoreOptions& options, const Exec& exec, size_t needed);

/// `needed` means nothing without projections.
Status check_additive_scores(const ConstView<4>& q, const ConstView<4>& k, const ConstView<2>& w, const View<4>& out,
                             const ConstView<3>& wq, const ConstView<3>& wk, const Exec& exec, size_t needed);

Status check_softmax(const ConstView<2>& x, const View<2>& out, const View<1>& lse);
Status check_masked_softmax(const ConstView<4>& x, const View<4>& out, const Scoring& scoring, const View<3>& lse);

/// `needed`: bytes of the workspace that the call uses.
Status check_weighted_values(const ConstView<4>& p, const ConstView<4>& v, const View<4>& out,
                             const ValueOptions& options, const Exec& exec, size_t needed);

Status check_attention_merge(const ConstView<5>& parts, const ConstView<4>& part_lse, const View<4>& out,
                             const View<3>& lse, const float* sinks);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_RULES_H_
