// The functions that are linked, with C linkage. Each looks for null pointers, brings structs of other versions to this
// one's size (sized.h), finds the target (dispatch/target.h), sets the floating-point control word, and calls its
// driver.
//
// Where the fixed cost of a call counts, the driver sets the control word, after the rules. Reading the word waits for
// the arithmetic of the call before; the rules run while that goes on.
#define SIMDATTN_BUILDING 1
#include "dispatch/environment.h"
#include "dispatch/target.h"
#include "lib/api/sized.h"
#include "lib/contract/ukernels.h"
#include "lib/drivers/drivers.h"
#include "lib/rules/views.h"

using namespace simdattn;  // the C names beside it are the same types

namespace {

/// An optional argument: *view, or an absent view.
template <class V>
const V& or_absent(const V* view) {
  static constexpr V kAbsent{};
  return view == nullptr ? kAbsent : *view;
}

/// Refuses the first pointer that is null. `null`: a sentence for each, in the same order.
template <class NullSentences>
Status need(const NullSentences& null, const void* const (&pointers)[NullSentences::kCount]) {
  for (size_t i = 0; i < null.kCount; ++i) SIMDATTN_REQUIRE(pointers[i] != nullptr, kNullPointer, null[i]);
  return {};
}

}  // namespace

/// Refuses null pointers among the arguments named.
#define SIMDATTN_NEED(...)                                                                  \
  static constexpr Sentences<"", "", #__VA_ARGS__, ": the pointer must not be null"> kNull; \
  SIMDATTN_CHECK(need(kNull, {__VA_ARGS__}))
/// `name_` is the caller's struct `name` in this version's size.
#define SIMDATTN_SIZED(type, name)                                                                                  \
  const Sized<type> name##_sized(name);                                                                             \
  SIMDATTN_REQUIRE(name##_sized.ok(), kStructSize,                                                                  \
                   #name ".struct_size: no version of " #type " had it; begin with the initialiser of the struct"); \
  const type& name##_ = *name##_sized
/// The same of a simdattn_exec, and `uk`: the kernels of its target. The driver sets the control word.
#define SIMDATTN_KERNELS(name)         \
  SIMDATTN_SIZED(simdattn_exec, name); \
  const UKernels* uk = nullptr;        \
  SIMDATTN_CHECK(resolve(name##_, &uk))
/// And the control word is set.
#define SIMDATTN_EXEC(name) \
  SIMDATTN_KERNELS(name);   \
  const Environment environment

extern "C" {

const char* simdattn_code_name(Code code) {
  static constexpr const char* kNames[] = {"OK",    "NULL_POINTER", "SHAPE",  "STRIDE",      "DTYPE",     "OVERLAP",
                                           "RANGE", "WORKSPACE",    "TARGET", "STRUCT_SIZE", "STALE_PLAN"};
  const auto i = static_cast<uint32_t>(code);
  return i < sizeof kNames / sizeof *kNames ? kNames[i] : "UNKNOWN";
}

// ---- Unfused --------------------------------------------------------------------------------------------------------

Status simdattn_scores(const ConstView<4>* q, const ConstView<4>* k, const View<4>* out, const ScoreOptions* options,
                       const Exec* exec) {
  SIMDATTN_NEED(q, k, out);
  SIMDATTN_SIZED(simdattn_score_options, options);
  SIMDATTN_KERNELS(exec);
  return drivers::scores(*uk, *q, *k, *out, options_, exec_);
}

size_t simdattn_scores_workspace(Arithmetic arithmetic, int64_t d_qk) {
  return drivers::scores_workspace(arithmetic, d_qk);
}

Status simdattn_softmax(const ConstView<2>* x, const View<2>* out, const View<1>* lse, const Exec* exec) {
  SIMDATTN_NEED(x, out);
  SIMDATTN_KERNELS(exec);
  return drivers::softmax(*uk, *x, *out, or_absent(lse));
}

Status simdattn_masked_softmax(const ConstView<4>* x, const View<4>* out, const Scoring* scoring, const View<3>* lse,
                               const Exec* exec) {
  SIMDATTN_NEED(x, out);
  SIMDATTN_SIZED(simdattn_scoring, scoring);
  SIMDATTN_KERNELS(exec);
  return drivers::masked_softmax(*uk, *x, *out, scoring_, or_absent(lse));
}

Status simdattn_weighted_values(const ConstView<4>* p, const ConstView<4>* v, const View<4>* out,
                                const ValueOptions* options, const Exec* exec) {
  SIMDATTN_NEED(p, v, out);
  SIMDATTN_SIZED(simdattn_value_options, options);
  SIMDATTN_KERNELS(exec);
  return drivers::weighted_values(*uk, *p, *v, *out, options_, exec_);
}

size_t simdattn_weighted_values_workspace(Arithmetic arithmetic, int64_t d_v) {
  return drivers::weighted_values_workspace(arithmetic, d_v);
}

Status simdattn_gaussian_scores(const ConstView<4>* q, const ConstView<4>* k, const View<4>* out,
                                const ScoreOptions* options, const Exec* exec) {
  SIMDATTN_NEED(q, k, out);
  SIMDATTN_SIZED(simdattn_score_options, options);
  SIMDATTN_EXEC(exec);
  return drivers::gaussian_scores(*uk, *q, *k, *out, options_);
}

Status simdattn_bilinear_scores(const ConstView<4>* q, const ConstView<3>* m, const ConstView<4>* k, const View<4>* out,
                                const ScoreOptions* options, const Exec* exec) {
  SIMDATTN_NEED(q, m, k, out);
  SIMDATTN_SIZED(simdattn_score_options, options);
  SIMDATTN_EXEC(exec);
  return drivers::bilinear_scores(*uk, *q, *m, *k, *out, options_, exec_);
}

size_t simdattn_bilinear_scores_workspace(int64_t d_q, int64_t d_k) {
  return drivers::bilinear_scores_workspace(d_q, d_k);
}

Status simdattn_additive_scores(const ConstView<4>* q, const ConstView<4>* k, const ConstView<2>* w, const View<4>* out,
                                const ConstView<3>* wq, const ConstView<3>* wk, const Exec* exec) {
  SIMDATTN_NEED(q, k, w, out);
  SIMDATTN_EXEC(exec);
  return drivers::additive_scores(*uk, *q, *k, *w, *out, or_absent(wq), or_absent(wk), exec_);
}

size_t simdattn_additive_scores_workspace(int64_t d_q, int64_t d_k, int64_t d) {
  return drivers::additive_scores_workspace(d_q, d_k, d);
}

// ---- Positions ------------------------------------------------------------------------------------------------------

Status simdattn_alibi_slopes(int64_t heads, float* slopes) {
  const Environment environment;
  return drivers::alibi_slopes(heads, slopes);
}

Status simdattn_hadamard(const ConstView<4>* x, const View<4>* out, int64_t block, const Exec* exec) {
  SIMDATTN_NEED(x, out);
  SIMDATTN_EXEC(exec);
  return drivers::hadamard(*uk, *x, *out, block);
}

Status simdattn_add_rows(const ConstView<4>* x, const ConstView<4>* p, const View<4>* out, const Exec* exec) {
  SIMDATTN_NEED(x, p, out);
  SIMDATTN_EXEC(exec);
  return drivers::add_rows(*uk, *x, *p, *out);
}

Status simdattn_rope(const ConstView<4>* x, const ConstView<2>* cos, const ConstView<2>* sin,
                     const Positions* positions, const View<4>* out, const RopeOptions* options, const Exec* exec) {
  SIMDATTN_NEED(x, cos, sin, out);
  SIMDATTN_SIZED(simdattn_rope_options, options);
  SIMDATTN_KERNELS(exec);
  return drivers::rope(*uk, *x, *cos, *sin, or_absent(positions), *out, options_);
}

Status simdattn_rope_frequencies(double* inv_freq, int64_t pairs, double* attention_factor,
                                 const RopeTableOptions* options) {
  SIMDATTN_SIZED(simdattn_rope_table_options, options);
  const Environment environment;
  return drivers::rope_frequencies(inv_freq, pairs, attention_factor, options_);
}

Status simdattn_rope_table(const View<2>* cos, const View<2>* sin, const RopeTableOptions* options,
                           const ConstView<2>* positions, int64_t first) {
  SIMDATTN_NEED(cos, sin);
  SIMDATTN_SIZED(simdattn_rope_table_options, options);
  const Environment environment;
  return drivers::rope_table(*cos, *sin, options_, or_absent(positions), first);
}

Status simdattn_rope_direct(const ConstView<4>* x, int64_t pairs, const RopeTableOptions* table,
                            const Positions* positions, const View<4>* out, const RopeOptions* options,
                            const Exec* exec) {
  SIMDATTN_NEED(x, out);
  SIMDATTN_SIZED(simdattn_rope_table_options, table);
  SIMDATTN_SIZED(simdattn_rope_options, options);
  SIMDATTN_EXEC(exec);
  return drivers::rope_direct(*uk, *x, pairs, table_, or_absent(positions), *out, options_, exec_);
}

size_t simdattn_rope_direct_workspace(int64_t pairs) { return drivers::rope_direct_workspace(pairs); }

Status simdattn_sinusoidal_table(const View<2>* out, double base, const ConstView<1>* positions, int64_t first) {
  SIMDATTN_NEED(out);
  const Environment environment;
  return drivers::sinusoidal_table(*out, base, or_absent(positions), first);
}

// ---- Storage of keys and values -------------------------------------------------------------------------------------

int64_t simdattn_dtype_bytes(DType type) { return dtype_bytes(type); }
int64_t simdattn_row_bytes(KvType type, int64_t dim) { return row_bytes(type, dim); }
int64_t simdattn_panel_bytes(KvType type, int64_t dim) { return panel_bytes(type, dim); }
int64_t simdattn_kv_bytes(KvType type, KvLayout layout, int64_t batch, int64_t heads, int64_t tokens, int64_t dim) {
  return kv_bytes(type, layout, batch, heads, tokens, dim);
}
Kv simdattn_contiguous_kv(void* data, KvType type, KvLayout layout, int64_t batch, int64_t heads, int64_t tokens,
                          int64_t dim) {
  return contiguous_kv(data, type, layout, batch, heads, tokens, dim);
}

bool simdattn_has_scales(KvType type) { return has_scales(type); }
Kv simdattn_contiguous_scales(Kv kv, float* scales) { return contiguous_scales(kv, scales); }

Status simdattn_kv_append(const ConstView<4>* rows, const ConstView<2>* positions, const Kv* kv,
                          const AppendOptions* options, const Exec* exec) {
  SIMDATTN_NEED(rows, kv);
  SIMDATTN_SIZED(simdattn_kv, kv);
  SIMDATTN_SIZED(simdattn_append_options, options);
  SIMDATTN_EXEC(exec);
  return drivers::kv_append(*uk, *rows, or_absent(positions), kv_, options_);
}

Status simdattn_kv_read(const ConstKv* kv, int64_t first, const View<4>* out, const Exec* exec) {
  SIMDATTN_NEED(kv, out);
  SIMDATTN_SIZED(simdattn_const_kv, kv);
  SIMDATTN_EXEC(exec);
  return drivers::kv_read(*uk, kv_, first, *out);
}

Status simdattn_kv_shift(const Kv* kv, int64_t first, int64_t last, int64_t delta, const KeyRotation* rope,
                         const Exec* exec) {
  SIMDATTN_NEED(kv);
  SIMDATTN_SIZED(simdattn_kv, kv);
  SIMDATTN_SIZED(simdattn_key_rotation, rope);
  SIMDATTN_EXEC(exec);
  return drivers::kv_shift(*uk, kv_, first, last, delta, rope_);
}

// ---- Fused attention ------------------------------------------------------------------------------------------------

Status simdattn_attention(const AttentionProblem* problem, const Exec* exec) {
  SIMDATTN_NEED(problem);
  SIMDATTN_SIZED(simdattn_attention_problem, problem);
  SIMDATTN_SIZED(simdattn_exec, exec);
  return drivers::attention(problem_, exec_);
}

size_t simdattn_attention_workspace(const AttentionProblem* problem, const Exec* exec) {
  Plan plan;
  return simdattn_attention_plan(problem, &plan, exec).ok() ? plan.workspace_bytes : 0;
}

Status simdattn_attention_plan(const AttentionProblem* problem, Plan* plan, const Exec* exec) {
  SIMDATTN_NEED(problem, plan);
  SIMDATTN_SIZED(simdattn_attention_problem, problem);
  SIMDATTN_SIZED(simdattn_exec, exec);
  const Environment environment;
  return drivers::attention_plan(problem_, plan, exec_);
}

Status simdattn_attention_bind(const AttentionProblem* problem, Plan* plan) {
  SIMDATTN_NEED(problem, plan);
  SIMDATTN_SIZED(simdattn_attention_problem, problem);
  const Environment environment;
  return drivers::attention_bind(problem_, plan);
}

Status simdattn_attention_range(const Plan* plan, int64_t first, int64_t last, void* partial, size_t partial_bytes,
                                const Exec* exec) {
  SIMDATTN_NEED(plan);
  SIMDATTN_SIZED(simdattn_exec, exec);
  const Environment environment;
  return drivers::attention_range(*plan, first, last, false, partial, partial_bytes, exec_);
}

Status simdattn_attention_reduce(const Plan* plan, int64_t first, int64_t last, const void* partial,
                                 size_t partial_bytes, const Exec* exec) {
  SIMDATTN_NEED(plan);
  SIMDATTN_SIZED(simdattn_exec, exec);
  const Environment environment;
  return drivers::attention_range(*plan, first, last, true, partial, partial_bytes, exec_);
}

Status simdattn_attention_merge(const ConstView<5>* parts, const ConstView<4>* part_lse, const View<4>* out,
                                const View<3>* lse, const float* sinks, const Exec* exec) {
  SIMDATTN_NEED(parts, part_lse, out);
  SIMDATTN_EXEC(exec);
  return drivers::attention_merge(*uk, *parts, *part_lse, *out, or_absent(lse), sinks);
}

// ---- Which keys a row attends to ------------------------------------------------------------------------------------

Status simdattn_index_scores(const ConstView<4>* q, const ConstKv* k, const ConstView<3>* weights,
                             const View<4>* scores, const IndexOptions* options, const Exec* exec) {
  SIMDATTN_NEED(q, k, scores);
  SIMDATTN_SIZED(simdattn_const_kv, k);
  SIMDATTN_SIZED(simdattn_index_options, options);
  SIMDATTN_EXEC(exec);
  return drivers::index_scores(*uk, *q, k_, or_absent(weights), *scores, options_, exec_);
}

size_t simdattn_index_scores_workspace(Arithmetic arithmetic, int64_t heads, int64_t d) {
  return drivers::index_scores_workspace(arithmetic, heads, d);
}

Status simdattn_top_k(const ConstView<4>* scores, int64_t k, const View<4>* lists, const TopKOptions* options,
                      const Exec* exec) {
  SIMDATTN_NEED(scores, lists);
  SIMDATTN_SIZED(simdattn_top_k_options, options);
  SIMDATTN_EXEC(exec);
  return drivers::top_k(*uk, *scores, k, *lists, options_, exec_);
}

size_t simdattn_top_k_workspace(int64_t k) { return drivers::top_k_workspace(k); }

// ---- Attention with a state -----------------------------------------------------------------------------------------

Status simdattn_linear_attention(const LinearAttentionProblem* problem, const Exec* exec) {
  SIMDATTN_NEED(problem);
  SIMDATTN_SIZED(simdattn_linear_attention_problem, problem);
  SIMDATTN_EXEC(exec);
  return drivers::linear_attention(*uk, problem_, 0, drivers::linear_attention_tasks(problem_), exec_);
}

int64_t simdattn_linear_attention_tasks(const LinearAttentionProblem* problem) {
  const Sized<LinearAttentionProblem> sized(problem);
  return sized.ok() ? drivers::linear_attention_tasks(*sized) : 0;
}

Status simdattn_linear_attention_range(const LinearAttentionProblem* problem, int64_t first, int64_t last,
                                       const Exec* exec) {
  SIMDATTN_NEED(problem);
  SIMDATTN_SIZED(simdattn_linear_attention_problem, problem);
  SIMDATTN_EXEC(exec);
  return drivers::linear_attention(*uk, problem_, first, last, exec_);
}

size_t simdattn_linear_attention_workspace(const LinearAttentionProblem* problem) {
  const Sized<LinearAttentionProblem> sized(problem);
  return sized.ok() ? drivers::linear_attention_workspace(*sized) : 0;
}

Status simdattn_causal_conv(const CausalConvProblem* problem, const Exec* exec) {
  SIMDATTN_NEED(problem);
  SIMDATTN_SIZED(simdattn_causal_conv_problem, problem);
  SIMDATTN_EXEC(exec);
  return drivers::causal_conv(*uk, problem_);
}

// ---- Targets: the others are in dispatch, which does not look inside the tables -------------------------------------

bool simdattn_target_native(const Target* target, Arithmetic arithmetic) {
  const auto index = static_cast<size_t>(arithmetic);
  return target != nullptr && index < kArithmetics && target->kernels->attention[index].native;
}

}  // extern "C"
