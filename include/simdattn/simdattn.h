// simdattn: the CPU kernels inside transformer attention, for C++17 and later. types.h has the types and options,
// extras.h other score functions and added positions.
#ifndef SIMDATTN_SIMDATTN_H_
#define SIMDATTN_SIMDATTN_H_

#include "simdattn/simdattn_c.h"
#include "simdattn/types.h"

/// The CPU kernels inside transformer attention.
///
/// Conventions that hold for every function of this header:
///
///  - Shapes are [batch, heads, rows, dim]. Strides of views count elements, those of a Kv bytes. A stride may be any
///    number: 0 broadcasts an input, a negative one walks backwards. Two limits: the last dimension is contiguous, and
///    size - 1 strides of a dimension are at most 2^58 bytes, even where another dimension has no elements. Data may
///    have any alignment that its type allows.
///  - Arithmetic is f32 unless options say otherwise. A narrower storage type is widened on load and rounded to nearest
///    even on store.
///  - The caller owns memory and threads: no call allocates, locks, throws, logs, or starts a thread. A call takes at
///    most 48 KiB of the thread's stack.
///  - A call either does everything, or writes nothing and returns a Status that names the argument and the rule.
///  - No output may share a byte with an input, another output, a table, an array of options or the workspace, unless a
///    function says otherwise. Arrays may interleave without sharing a byte where their dimensions nest: parts of one
///    packed buffer in any order, slices of one buffer, transposed, reversed, with gaps. Other interleavings may be
///    refused.
///  - A result has the same bits on every CPU with fused multiply-add (docs/numerics.md), whatever the caller's
///    floating-point control word says; a call leaves the word as it was. A NaN result is 0x7FC00000, rounded to the
///    storage type. A masked key has no influence, whatever its bytes hold.
///
/// What there is; in extras.h, beside the dot product, also other scores, `hadamard`, added positions, `alibi_slopes`:
///
/// | function | what |
/// |---|---|
/// | `scores` | `scale * q k^T`, grouped heads |
/// | `softmax`, `masked_softmax` | rows of scores to probabilities and log-sum-exp; masked: everything in `Scoring` |
/// | `weighted_values` | probabilities times values |
/// | `attention`, `attention_workspace` | the fused whole: decode, prefill, varlen batches; the bytes it needs |
/// | `attention_plan` | checks a problem once, also before there is data |
/// | `attention_bind` | gives a plan the arrays of another layer |
/// | `attention_range`, `attention_reduce` | the tasks of a plan, on your threads |
/// | `attention_merge` | joins partial results over disjoint keys |
/// | `index_scores` | how much each row wants each key or block of keys, heads joined |
/// | `top_k` | the places of the k largest scores of a row: lists of keys, for `attention` |
/// | `linear_attention`, `linear_attention_workspace` | attention with a state: gated delta net, KDA; its bytes |
/// | `linear_attention_range`, `linear_attention_tasks` | its tasks, on your threads |
/// | `causal_conv` | the short convolution before it |
/// | `kv_append` | stores new keys and values in panels, rows, pages or a ring; converts, rotates |
/// | `kv_shift` | moves cached keys and values to other positions |
/// | `kv_read` | cached tokens of any type as f32 |
/// | `kv_bytes`, `contiguous_kv`, `key_panels`, `dtype_bytes` | sizes and descriptions of stores |
/// | `rope`, `rope_direct` | rotary embedding, with a table and without |
/// | `rope_table`, `rope_frequencies` | angles of every common model family, exact |
/// | `targets`, `find_target`, `default_target` | which implementations there are |
/// | `target_name`, `target_runnable`, `target_missing` | its name; whether it can run here, or what it lacks |
/// | `target_exact`, `target_native` | whether it has the bits of the definition; an arithmetic in hardware |
/// | `arithmetic_for` | what to multiply operands of some types by here |
/// | `request_amx` | permission of the operating system to use AMX |
/// | `version`, `code_name` | of the library; of a status |
namespace simdattn {

// ---------------------------------------------------------------------------------------------------------------------
// Views

namespace detail {
template <size_t kRank>
constexpr std::array<int64_t, kRank> array_of(const int64_t (&numbers)[kRank]) {
  std::array<int64_t, kRank> result{};
  for (size_t i = 0; i < kRank; ++i) result[i] = numbers[i];
  return result;
}
}  // namespace detail

/// view(p, {2, 8, 16, 64}) is a contiguous View<4> of p's element type, or a ConstView<4> if that is const.
template <class T, size_t kRank>
constexpr auto view(T* data, const int64_t (&shape)[kRank]) {
  return BasicView<static_cast<int>(kRank), std::is_const_v<T>>(data, kDTypeOf<T>, detail::array_of(shape));
}
/// The same with strides, in elements.
template <class T, size_t kRank>
constexpr auto view(T* data, const int64_t (&shape)[kRank], const int64_t (&stride)[kRank]) {
  return BasicView<static_cast<int>(kRank), std::is_const_v<T>>(data, kDTypeOf<T>, detail::array_of(shape),
                                                                detail::array_of(stride));
}

// ---------------------------------------------------------------------------------------------------------------------
// Status

/// The enumerator's name in C and Python without its prefix: "OK", "NULL_POINTER", "SHAPE"; of other numbers "UNKNOWN".
inline const char* code_name(Code code) { return simdattn_code_name(code); }

// ---------------------------------------------------------------------------------------------------------------------
// Targets

/// What targets() returns: never empty, and valid as long as the program.
struct TargetList {
  const Target* const* data;                                    // the pointers
  size_t count;                                                 // how many
  const Target* const* begin() const { return data; }           // for a loop over all
  const Target* const* end() const { return data + count; }     // behind the last
  size_t size() const { return count; }                         // how many
  const Target* operator[](size_t i) const { return data[i]; }  // target i
  const Target* front() const { return data[0]; }               // the best that was compiled
  const Target* back() const { return data[count - 1]; }        // "scalar"
};

/// Every compiled target, best first; "scalar" is last and always runnable.
inline TargetList targets() {
  TargetList list{};
  list.data = simdattn_targets(&list.count);
  return list;
}
/// "BACKEND/INSTRUCTIONS", or "scalar": what SIMDATTN_TARGET and find_target() take.
inline const char* target_name(const Target& target) { return simdattn_target_name(&target); }
/// True if this CPU and operating system can execute the target. Only request_amx() changes it.
inline bool target_runnable(const Target& target) { return simdattn_target_runnable(&target); }
/// What this CPU or operating system lacks for the target; "" if it is runnable.
inline const char* target_missing(const Target& target) { return simdattn_target_missing(&target); }
/// True if the target has fused multiply-add and so returns the bits of the definition.
inline bool target_exact(const Target& target) { return simdattn_target_exact(&target); }
/// True if the target has instructions for the arithmetic. Where it has none, the same bits come from emulation.
inline bool target_native(const Target& target, Arithmetic arithmetic) {
  return simdattn_target_native(&target, arithmetic);
}
/// The arithmetic to take for queries, keys and values of these types where nobody has asked for a certain one: kBF16
/// if all three are bf16 and the target of `exec` multiplies bf16 faster than f32 on this CPU (AMX, with permission;
/// AVX512-BF16 of AMD), else kF32. Sums are f32 in both; kBF16 rounds weights to the type of the values, as other
/// libraries do with such operands. It depends on no size, so a decoded row has the bits that it has in the prompt. But
/// bits then differ between kinds of CPU: name one arithmetic where they must not. Ask after request_amx(), and once
/// for a cache. kF32 where the target cannot run.
inline Arithmetic arithmetic_for(DType q, KvType k, KvType v, const Exec& exec = {}) {
  return simdattn_arithmetic_for(q, k, v, &exec);
}
/// Looks a target up by its full name. kTarget if it is unknown or not runnable here; `detail` lists the names that are
/// runnable here.
inline Status find_target(const char* name, const Target** target) { return simdattn_find_target(name, target); }
/// The target named by the environment variable SIMDATTN_TARGET, else the first runnable one. The variable is read
/// once, at the first call that needs it. If it names a target that cannot run, every call that relies on the default
/// returns kTarget.
inline Status default_target(const Target** target) { return simdattn_default_target(target); }
/// Asks the operating system to let this process use AMX. Before, "intrinsics/amx" is not runnable; afterwards it is
/// the default, unless SIMDATTN_TARGET says otherwise. No result changes a bit. Call it before the first plan; a second
/// call does nothing. Other threads of the process and forked processes have the permission too, and it cannot be given
/// back. For a thread that has run AMX the operating system saves 8 KiB more of registers, on alternate signal stacks
/// too: before this call, those of all threads must have getauxval(AT_MINSIGSTKSZ) bytes, some 12 KiB.
/// A call that takes AMX configures its tiles, and at its end as they were: a thread may configure its own once. What
/// tiles hold is lost.
/// kTarget where there is no AMX, or where an alternate signal stack is too small: `detail` names what is missing.
inline Status request_amx() { return simdattn_request_amx(); }

// ---------------------------------------------------------------------------------------------------------------------
// Version

/// Version of the library that was linked: "0.3.0".
inline const char* version() { return simdattn_version(); }

// ---------------------------------------------------------------------------------------------------------------------
// The unfused kernels

/// out[b,h,i,j] = scale * sum_d q[b,h,i,d] k[b,h/G,j,d].
/// Shapes: q [B,Hq,n_q,d], k [B,Hk,n_kv,d], out f32 [B,Hq,n_q,n_kv]; G = Hq/Hk whole; d >= 1; n_q, n_kv >= 0.
/// q and k are f32, bf16 or f16, any mixture. options.scale: default 1/sqrt(d).
/// Error: |out - exact| <= (ceil(d/16) + 5) * 2^-24 * |scale| * sum |q_d k_d|.
/// options.arithmetic: kBF16 multiplies rows rounded to bf16, kInt8 rows of 8-bit integers with a scale each, as
/// attention does (docs/numerics.md). Both need scores_workspace(arithmetic, d) bytes of Exec::workspace; kF32 needs
/// none. Their error is against the exact result of the rounded rows; in place of (ceil(d/16) + 5) it has (ceil(d/32) +
/// 20) in kBF16, 6 in kInt8.
inline Status scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out, const ScoreOptions& options = {},
                     const Exec& exec = {}) {
  return simdattn_scores(&q, &k, &out, &options, &exec);
}
/// Bytes of Exec::workspace that scores() needs for keys of d_qk numbers; 0 in kF32.
inline size_t scores_workspace(Arithmetic arithmetic, int64_t d_qk) {
  return simdattn_scores_workspace(arithmetic, d_qk);
}

/// out[r,j] = exp(x[r,j] - max_r) / sum_j exp(x[r,j] - max_r); lse[r] = max_r + ln(sum).
/// Shapes: x, out f32 [rows, n], lse f32 [rows] (optional). `out` may be exactly x (same data and strides).
/// A row of -inf (or n = 0) gives zeros and lse -inf; NaN or +inf in a row make all of the row and its lse NaN.
/// Relative error of out[r,j]: at most (|x[r,j] - max_r| + ln n + n/16 + 14) * 2^-24: the difference to the maximum is
/// rounded once, and exp turns that into a relative error. Measured: 5.5 ulp for scores within 5 of the maximum.
inline Status softmax(const ConstView<2>& x, const View<2>& out, const View<1>& lse = {}, const Exec& exec = {}) {
  return simdattn_softmax(&x, &out, &lse, &exec);
}

/// Softmax of raw scores with everything in Scoring. Masked entries of out are +0. A row with a visible NaN or +inf is
/// NaN in all its entries, and so is its lse.
/// Shapes: x, out f32 [B,Hq,n_q,n_kv], lse f32 [B,Hq,n_q] (optional). `out` may be exactly x.
inline Status masked_softmax(const ConstView<4>& x, const View<4>& out, const Scoring& scoring = {},
                             const View<3>& lse = {}, const Exec& exec = {}) {
  return simdattn_masked_softmax(&x, &out, &scoring, &lse, &exec);
}

/// out[b,h,i,:] = sum_j p[b,h,i,j] v[b,h/G,j,:]. A key whose weight is exactly zero has no influence, NaN or not.
/// Shapes: p f32 [B,Hq,n_q,n_kv], v [B,Hk,n_kv,d_v], out [B,Hq,n_q,d_v]; v and out are f32, bf16 or f16.
/// Error: |out - exact| <= n_kv * 2^-24 * sum_j |p_j v_j|, plus half a unit in the last place of out's type.
/// options.arithmetic: kBF16 multiplies weights and values rounded to bf16. kInt8 multiplies 8-bit integers, with a
/// scale for each value and one for the weights of each 256 keys; a negative weight counts as 0, and a NaN or infinity
/// in a value makes all of the row NaN. Both need weighted_values_workspace(arithmetic, d_v) bytes of Exec::workspace;
/// kF32 needs none.
/// Error of kBF16, against the exact result of rounded weights and values: (17 + ceil(n_kv/32) + 2 ceil(n_kv/256)) in
/// place of n_kv. Error of kInt8, against the exact result of p and the integers: (2 + 2 ceil(n_kv/256)) in place of
/// n_kv, plus the sum over 256 keys each of (max p_j s_j) / 510 * sum |v8_j|, with s_j the scale of value j and v8_j
/// its integers.
inline Status weighted_values(const ConstView<4>& p, const ConstView<4>& v, const View<4>& out,
                              const ValueOptions& options = {}, const Exec& exec = {}) {
  return simdattn_weighted_values(&p, &v, &out, &options, &exec);
}
/// Bytes of Exec::workspace that weighted_values() needs for values of d_v numbers; 0 in kF32.
inline size_t weighted_values_workspace(Arithmetic arithmetic, int64_t d_v) {
  return simdattn_weighted_values_workspace(arithmetic, d_v);
}

// ---------------------------------------------------------------------------------------------------------------------
// Rotary position embedding

/// y0 = fma(x0, c, -(x1 s)), y1 = fma(x0, s, x1 c) for every pair, with c and s of the row's position; other dimensions
/// are copied. With options.norm rows pass the RMS norm first, in f32.
/// Shapes: x, out [B,H,n,d] f32, bf16 or f16 (any mixture); cos, sin f32 [n_positions, r/2]. `positions`: the position
/// of row 0, or a view [B,n]; each position is in [0, n_positions). `out` may be exactly x if the types agree.
inline Status rope(const ConstView<4>& x, const ConstView<2>& cos, const ConstView<2>& sin, const Positions& positions,
                   const View<4>& out, const RopeOptions& options = {}, const Exec& exec = {}) {
  return simdattn_rope(&x, &cos, &sin, &positions, &out, &options, &exec);
}

/// The `pairs` = r/2 inverse frequencies of a table, and its attention factor (optional), which multiplies cos and sin.
/// f64 values within 1 ulp; with f32_angles, f32 values. The attention factor is options.attention_factor if that is
/// given, else
///   kYarn, with f = factor: g(mscale) / g(mscale_all_dim) if both are given, otherwise g(1);
///   g(m) = f <= 1 ? 1 : 0.1 m ln f + 1;
///   kLongRope, with f = max_position_embeddings / original_max_position_embeddings if the former is given, otherwise
///   factor: f <= 1 ? 1 : sqrt(1 + ln f / ln original_max_position_embeddings);
///   other types: 1.
inline Status rope_frequencies(double* inv_freq, int64_t pairs, double* attention_factor,
                               const RopeTableOptions& options = {}) {
  return simdattn_rope_frequencies(inv_freq, pairs, attention_factor, &options);
}

/// cos[p,i] = attention factor * cos(position_p * inv_i), and sin likewise, for positions first, first + 1, ... or for
/// the positions given. Positions are in (-2^31, 2^31).
/// Shapes: cos, sin f32 [n, r/2]; positions i32 or i64 [axes, n]. axes is 1 (all axes are equal, as in text) or the
/// number of mrope_section entries up to the last that is not 0. cos and sin may be the two halves of rows of one
/// buffer.
/// Error: within 0.51 ulp at every position, for frequencies up to 16, also where the cosine or sine is near 0.
inline Status rope_table(const View<2>& cos, const View<2>& sin, const RopeTableOptions& options = {},
                         const ConstView<2>& positions = {}, int64_t first = 0) {
  return simdattn_rope_table(&cos, &sin, &options, &positions, first);
}

/// rope() for callers without a table: the bits of rope_table() and then rope(). A call forms the frequencies first,
/// which takes longer than a position: pass many rows at once, or table.inv_freq from rope_frequencies()
/// (docs/guide-rope.md). The heads of a position share its cos and sin.
/// Shapes: x, out [B,H,n,d] f32, bf16 or f16 (any mixture); 2 * pairs rotated dimensions. `positions`: the position of
/// row 0, or a view [B,n] or [axes,B,n] with axes as in rope_table; each in (-2^31, 2^31). `out` may be exactly x if
/// the types agree. More than 1024 pairs need rope_direct_workspace(pairs) bytes of Exec::workspace.
inline Status rope_direct(const ConstView<4>& x, int64_t pairs, const RopeTableOptions& table,
                          const Positions& positions, const View<4>& out, const RopeOptions& options = {},
                          const Exec& exec = {}) {
  return simdattn_rope_direct(&x, pairs, &table, &positions, &out, &options, &exec);
}
/// Bytes of Exec::workspace that rope_direct() needs; 0 up to 1024 pairs.
inline size_t rope_direct_workspace(int64_t pairs) { return simdattn_rope_direct_workspace(pairs); }

// ---------------------------------------------------------------------------------------------------------------------
// Storage of keys and values

/// Bytes of an element; 0 for an unknown type.
constexpr int64_t dtype_bytes(DType type) {
  return type == DType::kF32 || type == DType::kI32    ? 4
         : type == DType::kBF16 || type == DType::kF16 ? 2
         : type == DType::kU8                          ? 1
         : type == DType::kI64                         ? 8
                                                       : 0;
}

/// Bytes of a contiguous store [batch, heads, tokens, dim]. In panels, tokens are rounded up to whole panels.
constexpr int64_t kv_bytes(KvType type, KvLayout layout, int64_t batch, int64_t heads, int64_t tokens, int64_t dim) {
  return batch * heads *
         (layout == KvLayout::kPanels ? (tokens + kPanelWidth - 1) / kPanelWidth * panel_bytes(type, dim)
                                      : tokens * row_bytes(type, dim));
}

/// A contiguous store of that many bytes. For pages: a store of `batch` pages of `tokens` each, in which the caller
/// then sets batch, capacity, n_pages, page_size and block_table.
template <class Byte>
constexpr auto contiguous_kv(Byte* data, KvType type, KvLayout layout, int64_t batch, int64_t heads, int64_t tokens,
                             int64_t dim) {
  BasicKv<std::is_const_v<Byte>> kv;
  kv.data = data;
  kv.type = type;
  kv.layout = layout;
  kv.batch = batch;
  kv.heads = heads;
  kv.capacity = tokens;
  kv.dim = dim;
  kv.token_stride = layout == KvLayout::kPanels ? panel_bytes(type, dim) : row_bytes(type, dim);
  kv.head_stride = kv_bytes(type, layout, 1, 1, tokens, dim);
  kv.batch_stride = heads * kv.head_stride;
  return kv;
}

/// `kv` with contiguous scales, f32 [batch, heads, tokens], for a type that has_scales() names. For pages: call it
/// before batch and capacity are set, so that each place of a page has a scale.
template <bool kConst, class Float>
constexpr BasicKv<kConst> contiguous_scales(BasicKv<kConst> kv, Float* scales) {
  kv.scales = scales;
  kv.scale_token_stride = sizeof(float);
  kv.scale_head_stride = kv.capacity * kv.scale_token_stride;
  kv.scale_batch_stride = kv.heads * kv.scale_head_stride;
  return kv;
}

/// Contiguous key panels [batch, heads, ceil(tokens/32), panel] of the pointer's element type.
template <class T>
constexpr auto key_panels(T* data, int64_t batch, int64_t heads, int64_t tokens, int64_t dim) {
  return contiguous_kv(data, kv_type_of(kDTypeOf<T>), KvLayout::kPanels, batch, heads, tokens, dim);
}

/// Stores new tokens, in the storage type and layout of `kv`. Row i of sequence b goes to position positions[b,i] of
/// that sequence, or without positions to options.start + i. Keys are rotated by that position if options.rope has a
/// table. A row is skipped if its position is negative, or its page in the block table. Of two rows at one position
/// either one is stored, whole or element by element.
/// Shapes: rows [B,H,n,dim] f32, bf16 or f16; positions i32 or i64 [B,n], each < kv.capacity. Keys and values are two
/// calls.
inline Status kv_append(const ConstView<4>& rows, const ConstView<2>& positions, const Kv& kv,
                        const AppendOptions& options = {}, const Exec& exec = {}) {
  return simdattn_kv_append(&rows, &positions, &kv, &options, &exec);
}

/// Tokens first, first + 1, ... of every sequence as rows of f32: the numbers that attention sees in a store of any
/// type and layout. NaN is canonical. A page outside 0 .. n_pages-1 is refused.
/// Shapes: out f32 [B,H,n,dim]; first + n <= kv.capacity; in a ring n <= kv.ring.
inline Status kv_read(const ConstKv& kv, int64_t first, const View<4>& out, const Exec& exec = {}) {
  return simdattn_kv_read(&kv, first, &out, &exec);
}

/// Moves tokens first .. last-1 of every sequence by `delta` positions, of either sign. Context shift: when tokens 0 ..
/// n-1 are given up, kv_shift(kv, n, length, -n, rope) closes the gap. With a table in `rope` keys are also rotated by
/// delta positions: by row |delta|, inversely if delta < 0. The table has the frequencies that the keys were rotated
/// with and an attention factor of 1, as the keys have theirs already. One row computed at |delta| will do, in a view
/// whose row stride is 0. Without a table tokens only move: values, and keys without rotation.
/// 0 <= first <= last, and all positions before and after are in 0 .. kv.capacity-1; in a ring, last - first is at most
/// kv.ring. A token is skipped if its old or new page is negative. Sequences must not share the pages that the call
/// touches. Other tokens keep their bytes, and so do the places that the moved ones leave.
/// Error: against the key rotated to its new position exactly, a shift adds at most (u + 2^-22) of the norm of each
/// pair of dimensions; u = 2^-24, 2^-8, 2^-11 for f32, bf16, f16 (one more rounding in the storage type). With
/// rope.hadamard_block the pairs are those before the matrix.
inline Status kv_shift(const Kv& kv, int64_t first, int64_t last, int64_t delta, const KeyRotation& rope = {},
                       const Exec& exec = {}) {
  return simdattn_kv_shift(&kv, first, last, delta, &rope, &exec);
}

// ---------------------------------------------------------------------------------------------------------------------
// Fused attention
//
// The problem is explained at `AttentionProblem` in types.h.

/// Checks a problem once and divides it into tasks, for exec.threads threads. Everything that the problem points to
/// must live as long as the plan is used. Between runs data may change: the elements of q, k, v, out, bias, masks,
/// sinks, slopes and lists. Lengths must not (cu_q, cu_k, kv_length, kv_start, prefix_end, offsets): a range that meets
/// changed ones returns kStalePlan. Entries of block tables may change: the plan does not look at them, and every range
/// checks those of the pages that it reads.
/// Without data: pointers of arrays other than lengths may be null, those of scales, block tables, lists and masks too
/// (their shapes and strides are set all the same). Such a plan tells sizes, which depend on no address, and
/// attention_bind() gives it the data. Without kv_length the sizes hold for all lengths up to k.length.
inline Status attention_plan(const AttentionProblem& problem, Plan* plan, const Exec& exec = {}) {
  return simdattn_attention_plan(&problem, plan, &exec);
}
/// Gives a plan the arrays of another problem with the same shapes, strides, types, options and lengths: those of
/// another layer. kStalePlan where one of these differs; `detail` names it. What runs then is `problem`: its outputs,
/// slopes, bias_scale and sinks may be others than the plan had. A mask or bias that has a shape needs data here.
inline Status attention_bind(const AttentionProblem& problem, Plan* plan) {
  return simdattn_attention_bind(&problem, plan);
}
/// Runs tasks first .. last-1 of plan.tasks. `partial`: plan.partial_bytes bytes of any alignment, the same for every
/// range. exec.workspace: plan.workspace_bytes bytes of this thread. exec.target: that of the plan, or null. A call
/// reads the lengths of at least a 24th of all sequences: with 10,000 sequences and more, give a call several tasks.
inline Status attention_range(const Plan& plan, int64_t first, int64_t last, void* partial, size_t partial_bytes,
                              const Exec& exec) {
  return simdattn_attention_range(&plan, first, last, partial, partial_bytes, &exec);
}
/// Runs reduction tasks first .. last-1 of plan.reduce_tasks, after every task has run. Other arguments: as for
/// attention_range().
inline Status attention_reduce(const Plan& plan, int64_t first, int64_t last, const void* partial, size_t partial_bytes,
                               const Exec& exec) {
  return simdattn_attention_reduce(&plan, first, last, partial, partial_bytes, &exec);
}
/// Runs the whole problem on the calling thread. Needs attention_workspace() bytes of Exec::workspace and no partial
/// buffer.
inline Status attention(const AttentionProblem& problem, const Exec& exec) {
  return simdattn_attention(&problem, &exec);
}

/// Bytes of Exec::workspace that attention() needs: Plan::workspace_bytes. 0 also for a problem that attention()
/// refuses.
inline size_t attention_workspace(const AttentionProblem& problem, const Exec& exec = {}) {
  return simdattn_attention_workspace(&problem, &exec);
}

/// Joins partial results over disjoint keys, in ascending order: with m = max lse_p and w_p = exp(lse_p - m),
/// out = sum w_p o_p / sum w_p, lse = m + ln(sum w_p). If every lse_p is -inf, out is 0 and lse -inf.
/// Shapes: parts [P,B,H,n,d_v] f32, bf16 or f16, part_lse f32 [P,B,H,n], out [B,H,n,d_v], lse f32 [B,H,n] (optional).
/// sinks (optional, [H]): applied to the joined result. `out` may be exactly one of the parts.
inline Status attention_merge(const ConstView<5>& parts, const ConstView<4>& part_lse, const View<4>& out,
                              const View<3>& lse = {}, const float* sinks = nullptr, const Exec& exec = {}) {
  return simdattn_attention_merge(&parts, &part_lse, &out, &lse, sinks, &exec);
}

// ---------------------------------------------------------------------------------------------------------------------
// Which keys a row attends to

/// scores[b,.,i,c] = how much row i wants candidate c. s_h = scale * q_h . k, with options.relu max(s_h, 0); heads are
/// joined to the sum of weights_h * s_h, to their maximum, or not at all. A candidate is options.block_size keys. Its
/// score is the largest of those that the row sees, NaN aside, or -inf. No matrix of heads x keys is formed.
/// Shapes: q [B,H,n,d] f32, bf16 or f16; k [B,1,rows,d] any storage type, rows or panels, pages or not; weights f32
/// [B,n,H], of kSum alone (absent: 1); scores f32 [B,1,n,c], of kEach [B,H,n,c], for candidates from options.first on;
/// first + c is at most their number, ceil(k.length * options.keys_per_row / options.block_size). exec.workspace:
/// index_scores_workspace() bytes.
/// Error: that of a score of attention in the same arithmetic; kSum adds H roundings of the sum.
inline Status index_scores(const ConstView<4>& q, const ConstKv& k, const ConstView<3>& weights, const View<4>& scores,
                           const IndexOptions& options, const Exec& exec) {
  return simdattn_index_scores(&q, &k, &weights, &scores, &options, &exec);
}
/// Bytes of Exec::workspace that index_scores() needs for q [.,heads,.,d]; 0 if it refuses such a q.
inline size_t index_scores_workspace(Arithmetic arithmetic, int64_t heads, int64_t d) {
  return simdattn_index_scores_workspace(arithmetic, heads, d);
}

/// lists[b,h,i,:] = the places of the k largest scores of a row, ascending, then -1. Of equal scores the lowest place
/// comes first; -0 equals +0. -inf and NaN are never taken. Blocks that options.local_blocks and options.tail name are
/// taken whatever their scores are. The position of a row is i + offset; a row with a negative one has no block of its
/// own.
/// Shapes: scores f32 [B,H,n,c]; lists i32 [B,H,n,l] with l >= k, and l >= k + 1 with options.tail; k >= 0.
/// exec.workspace: top_k_workspace(k) bytes.
inline Status top_k(const ConstView<4>& scores, int64_t k, const View<4>& lists, const TopKOptions& options,
                    const Exec& exec) {
  return simdattn_top_k(&scores, k, &lists, &options, &exec);
}
/// Bytes of Exec::workspace that top_k() needs; 0 if k is outside 0 .. 2^30 - 1.
inline size_t top_k_workspace(int64_t k) { return simdattn_top_k_workspace(k); }
// Attention with a state
//
// The problems are explained at `LinearAttentionProblem` and `CausalConvProblem` in types.h.

/// The whole problem on the calling thread; needs linear_attention_workspace() bytes of Exec::workspace.
/// With the delta rule a NaN in k, beta or the decay makes the whole state of its head NaN, one in v or in the state
/// its column. Without the rule one in k or in the decay of a channel makes its row NaN. A decay of -inf clears it.
/// Error of out and state: docs/numerics.md.
inline Status linear_attention(const LinearAttentionProblem& problem, const Exec& exec) {
  return simdattn_linear_attention(&problem, &exec);
}
/// Tasks of a problem: sequences * Hv * ceil(d_v / 64). 0 where one of these sizes breaks the rules.
inline int64_t linear_attention_tasks(const LinearAttentionProblem& problem) {
  return simdattn_linear_attention_tasks(&problem);
}
/// Tasks first .. last-1, each of which is to run once, in any order, on any threads, with a workspace for each thread.
/// A task has its own columns of its head's state: none waits for another one, and no result depends on how they are
/// divided.
inline Status linear_attention_range(const LinearAttentionProblem& problem, int64_t first, int64_t last,
                                     const Exec& exec) {
  return simdattn_linear_attention_range(&problem, first, last, &exec);
}
/// Bytes of Exec::workspace that each of both calls needs. They depend on the head dimensions and the numbers of heads
/// alone.
inline size_t linear_attention_workspace(const LinearAttentionProblem& problem) {
  return simdattn_linear_attention_workspace(&problem);
}

/// Depthwise causal convolution with a state, all of it on this thread. Channels are independent: threads take slices
/// of them.
/// Error: |c - exact| <= (width + 1) * 2^-24 * (|bias| + sum |w z|) before the activation; SiLU adds at most 1.1 of
/// that and 8 * 2^-24 * |y|; a y below 2^-119 in size may be 0.
inline Status causal_conv(const CausalConvProblem& problem, const Exec& exec = {}) {
  return simdattn_causal_conv(&problem, &exec);
}

}  // namespace simdattn

#endif  // SIMDATTN_SIMDATTN_H_
