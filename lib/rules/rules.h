// What every function but attention demands of its arguments.
#pragma once

#include "lib/rules/views.h"

namespace simdattn {

// Where a call has a workspace, `needed` says how many bytes of it are used.

// ---- Rows -----------------------------------------------------------------------------------------------------------

/// `f32_alone`: there is no other arithmetic.
Status check_scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out, const ScoreOptions& options,
                    bool f32_alone, const Exec& exec, size_t needed);
Status check_bilinear_scores(const ConstView<4>& q, const ConstView<3>& m, const ConstView<4>& k, const View<4>& out,
                             const ScoreOptions& options, const Exec& exec, size_t needed);
/// `needed` means nothing without projections.
Status check_additive_scores(const ConstView<4>& q, const ConstView<4>& k, const ConstView<2>& w, const View<4>& out,
                             const ConstView<3>& wq, const ConstView<3>& wk, const Exec& exec, size_t needed);
Status check_softmax(const ConstView<2>& x, const View<2>& out, const View<1>& lse);
Status check_masked_softmax(const ConstView<4>& x, const View<4>& out, const Scoring& scoring, const View<3>& lse);
Status check_weighted_values(const ConstView<4>& p, const ConstView<4>& v, const View<4>& out,
                             const ValueOptions& options, const Exec& exec, size_t needed);
Status check_attention_merge(const ConstView<5>& parts, const ConstView<4>& part_lse, const View<4>& out,
                             const View<3>& lse, const float* sinks);
Status check_add_rows(const ConstView<4>& x, const ConstView<4>& p, const View<4>& out);

/// Largest Hadamard block: a row of one is transformed on the stack.
inline constexpr int64_t kMaxHadamardBlock = 4096;
/// Longest row that kv_append() and kv_shift() rotate.
inline constexpr int64_t kMaxHadamardRow = 8192;
/// The Hadamard block that 0 stands for: the largest power of two that divides `dim`.
constexpr int64_t hadamard_block(int64_t block, int64_t dim) {
  if (block != 0) return block;
  const int64_t largest = dim & -dim;
  return largest < kMaxHadamardBlock ? largest : kMaxHadamardBlock;
}
Status check_hadamard(const ConstView<4>& x, const View<4>& out, int64_t block);

// ---- Rotation -------------------------------------------------------------------------------------------------------

/// |position| is below this.
inline constexpr int64_t kPositionLimit = int64_t{1} << 31;
/// Of a table of cos and sin.
inline constexpr int64_t kMaxColumns = int64_t{1} << 20;

inline int64_t index_at(const void* data, DType dtype, int64_t i) {
  return dtype == DType::kI32 ? static_cast<const int32_t*>(data)[i] : static_cast<const int64_t*>(data)[i];
}
/// positions[b, i], or start + i where the view is absent.
inline int64_t position_at(const ConstView<2>& positions, int64_t start, int64_t b, int64_t i) {
  if (positions.data == nullptr) return start + i;
  return index_at(positions.data, positions.dtype, b * positions.stride[0] + i * positions.stride[1]);
}
/// [batch, rows] of [1, batch, rows].
inline ConstView<2> of_one_axis(const Positions& p) {
  return {p.rows.data, p.rows.dtype, {p.rows.shape[1], p.rows.shape[2]}, {p.rows.stride[1], p.rows.stride[2]}};
}
/// Row p of cos or sin. Rows without columns are all the same one, whatever the stride.
inline const float* table_row(const ConstView<2>& table, int64_t p) {
  return static_cast<const float*>(table.data) + (table.shape[1] == 0 ? 0 : p * table.stride[0]);
}

/// One index per row of a call.
Status check_indices(const ConstView<2>& v, int64_t batch, int64_t n, const Argument& argument, const char* shape,
                     ByteSet* bytes);

/// Whose rotation: of rope() itself, or a member of what another function takes. Sentences begin with the name of that.
enum class Rotation : uint8_t { kRope, kAppend, kShift };
/// Keys of `dim` numbers on their way into a cache. A struct inside of another one has one size, and grows into
/// `reserved`. Whole arguments may be of other versions: lib/api/sized.h.
Status check_key_rotation(const KeyRotation& r, int64_t dim, Rotation of, ByteSet* cos, ByteSet* sin, ByteSet* norm);
/// Longest row that is normed: it is on the stack meanwhile.
inline constexpr int64_t kMaxNormDim = 2048;
inline bool has_norm(const RopeOptions& o) { return o.norm != RowNorm::kNone; }
inline bool has_table(const KeyRotation& r) { return r.cos.data != nullptr || r.sin.data != nullptr; }

Status check_rope(const ConstView<4>& x, const ConstView<2>& cos, const ConstView<2>& sin, const Positions& positions,
                  const View<4>& out, const RopeOptions& options);

Status check_rope_direct(const ConstView<4>& x, int64_t pairs, const RopeTableOptions& table,
                         const Positions& positions, const View<4>& out, const RopeOptions& options, const Exec& exec,
                         size_t needed);

// ---- Tables: of cos and sin, of the sinusoidal encoding, of ALiBi's slopes ------------------------------------------

inline int64_t axes_of(const RopeTableOptions& options) {
  int64_t axes = 4;
  while (axes > 1 && options.mrope_section[static_cast<size_t>(axes - 1)] == 0) --axes;
  return axes;
}
/// Positions by axis, or first, first + 1, ... where they are absent; `outside`: the sentence about such a one.
Status check_table_positions(const ConstView<3>& positions, int64_t first, int64_t n, const char* outside,
                             ByteSet* bytes);
/// The options of a table with `pairs` columns, but for check_raised_theta(). `table`: the argument is called so, not
/// `options`.
Status check_rope_table_options(const RopeTableOptions& options, int64_t pairs, bool table);
/// The natural logarithm of the theta that kDynamic makes of the given one.
Status check_raised_theta(double ln_theta, bool table);
/// True if an output shares bytes with an array of the options.
bool overlaps_options(const ByteSet& output, const RopeTableOptions& options);
Status check_rope_frequencies(const double* inv_freq, int64_t pairs, const double* attention_factor,
                              const RopeTableOptions& options);
Status check_rope_table(const View<2>& cos, const View<2>& sin, const RopeTableOptions& options,
                        const ConstView<2>& positions, int64_t first);
Status check_sinusoidal_table(const View<2>& out, double base, const ConstView<1>& positions, int64_t first);
Status check_alibi_slopes(int64_t heads, const float* slopes);

// ---- Stores ---------------------------------------------------------------------------------------------------------

/// Where one token is: `inside` counts in the tensor of its sequence, the ring or the page, and so does `unit`:
/// sequences or pages. A negative unit: nowhere.
struct TokenPlace {
  int64_t unit, inside;
};
template <bool kConst>
TokenPlace place_of(const BasicKv<kConst>& kv, int64_t sequence, int64_t token) {
  if (kv.page_size > 0) return {page_of(kv, sequence, token), token % kv.page_size};
  return {sequence, kv.ring > 0 ? token % kv.ring : token};
}

/// The rows of an append that passed the rules.
struct AppendedRows {
  const ConstView<2>& positions;
  const Kv& kv;
  const AppendOptions& options;
  int64_t rows;  // of a sequence

  int64_t count(int64_t b) const { return options.counts != nullptr ? options.counts[b] : rows; }
  int64_t position(int64_t b, int64_t i) const { return position_at(positions, start(b), b, i); }
  int64_t start(int64_t b) const { return options.starts != nullptr ? options.starts[b] : options.start; }
  /// A negative unit: skipped.
  TokenPlace place(int64_t b, int64_t i) const {
    if (options.slots.data != nullptr) {
      const int64_t at = position_at(options.slots, 0, b, i);
      if (at < 0 || (rotates() && position(b, i) < 0)) return {-1, 0};
      return {at / kv.page_size, at % kv.page_size};
    }
    const int64_t p = position(b, i);
    return p < 0 ? TokenPlace{-1, 0} : place_of(kv, b, p);
  }
  bool rotates() const { return has_table(options.rope); }
};

// ---- Which keys a row attends to ------------------------------------------------------------------------------------

/// `k`: a store of one head.
Status check_index_scores(const ConstView<4>& q, const ConstKv& k, const ConstView<3>& weights, const View<4>& scores,
                          const IndexOptions& options, const Exec& exec, size_t needed);
Status check_top_k(const ConstView<4>& scores, int64_t k, const View<4>& lists, const TopKOptions& options,
                   const Exec& exec, size_t needed);

Status check_append(const ConstView<4>& rows, const ConstView<2>& positions, const Kv& kv,
                    const AppendOptions& options);
Status check_kv_read(const ConstKv& kv, int64_t first, const View<4>& out);
Status check_kv_shift(const Kv& kv, int64_t first, int64_t last, int64_t delta, const KeyRotation& rope);

// ---- Attention with a state -----------------------------------------------------------------------------------------

/// Of the convolution: the channels that are treated together fit the stack.
inline constexpr int64_t kMaxConvWidth = 32;
/// Heads of q that read one state.
inline constexpr int64_t kMaxStateQueries = 256;
constexpr bool is_delta(LinearRule r) { return r == LinearRule::kDelta || r == LinearRule::kGatedDelta; }
constexpr bool is_gated(LinearRule r) { return r == LinearRule::kGated || r == LinearRule::kGatedDelta; }
/// Where the tokens of a sequence are, and its state; a negative one: it is skipped.
struct StateSequence {
  int64_t batch, first, tokens, state;
};
/// Of a LinearAttentionProblem or CausalConvProblem.
template <class Problem>
int64_t sequences_of(const Problem& a, int64_t batch) {
  return a.cu_q != nullptr ? a.n_sequences : batch;
}
/// The same that passed the rules, with n tokens a batch entry.
template <class Problem>
StateSequence sequence_of(const Problem& a, int64_t s, int64_t n) {
  const int64_t state = a.state_index != nullptr ? a.state_index[s] : s;
  if (a.cu_q == nullptr) return {s, 0, n, state};
  return {0, a.cu_q[s], a.cu_q[s + 1] - a.cu_q[s], state};
}
Status check_linear_attention(const LinearAttentionProblem& a, const Exec& exec, size_t needed);
Status check_causal_conv(const CausalConvProblem& a);

}  // namespace simdattn
