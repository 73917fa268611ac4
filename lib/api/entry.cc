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

namespace drivers = simdattn::drivers;
using simdattn::Code;
using simdattn::Environment;
using simdattn::Sized;
using simdattn::Status;

namespace {

/// An optional argument: *view, or an absent view.
template <class V>
const V& or_absent(const V* view) {
  static constexpr V kAbsent{};
  return view == nullptr ? kAbsent : *view;
}

/// Refuses the first pointer that is null. `null`: a sentence for each, in the same order.
template <size_t kPointers, class... P>
Status need(const simdattn::Sentences<kPointers>& null, const P*... pointers) {
  static_assert(kPointers == sizeof...(P));
  size_t there = 0;
  const bool all = ((pointers != nullptr && ++there > 0) && ...);
  return all ? Status() : Status{Code::kNullPointer, null.text[there]};
}

}  // namespace

/// Refuses null pointers among the arguments named.
#define SIMDATTN_NEED(...)                                                                                        \
  static constexpr simdattn::Sentences<simdattn::names_in(#__VA_ARGS__)> kNull("", "", #__VA_ARGS__,              \
                                                                               ": the pointer must not be null"); \
  SIMDATTN_CHECK(need(kNull, __VA_ARGS__))
/// `name_` is the caller's struct `name` in this version's size.
#define SIMDATTN_SIZED(type, name)                                 \
  const Sized<type> name##_sized(name);                            \
  SIMDATTN_REQUIRE(name##_sized.ok(), kStructSize,                 \
                   #name ".struct_size: no version of " #type      \
                         " had it; begin with the initialiser of " \
                         "the struct");                            \
  const type& name##_ = *name##_sized
/// The same of a simdattn_exec, and `uk`: the kernels of its target. The driver sets the control word.
#define SIMDATTN_KERNELS(name)            \
  SIMDATTN_SIZED(simdattn_exec, name);    \
  const simdattn::UKernels* uk = nullptr; \
  SIMDATTN_CHECK(resolve(name##_, &uk))
/// And the control word is set.
#define SIMDATTN_EXEC(name) \
  SIMDATTN_KERNELS(name);   \
  const Environment environment

extern "C" {

const char* simdattn_code_name(simdattn_code code) {
  static constexpr const char* kNames[] = {"OK",    "NULL_POINTER", "SHAPE",  "STRIDE",      "DTYPE",     "OVERLAP",
                                           "RANGE", "WORKSPACE",    "TARGET", "STRUCT_SIZE", "STALE_PLAN"};
  const auto i = static_cast<uint32_t>(code);
  return i < sizeof kNames / sizeof *kNames ? kNames[i] : "UNKNOWN";
}

// ---- Unfused --------------------------------------------------------------------------------------------------------

simdattn_status simdattn_scores(const simdattn_const_view4* q, const simdattn_const_view4* k, const simdattn_view4* out,
                                const simdattn_score_options* options, const simdattn_exec* exec) {
  SIMDATTN_NEED(q, k, out);
  SIMDATTN_SIZED(simdattn_score_options, options);
  SIMDATTN_KERNELS(exec);
  return drivers::scores(*uk, *q, *k, *out, options_, exec_);
}

size_t simdattn_scores_workspace(simdattn_arithmetic arithmetic, int64_t d_qk) {
  return drivers::scores_workspace(arithmetic, d_qk);
}

simdattn_status simdattn_softmax(const simdattn_const_view2* x, const simdattn_view2* out, const simdattn_view1* lse,
                                 const simdattn_exec* exec) {
  SIMDATTN_NEED(x, out);
  SIMDATTN_KERNELS(exec);
  return drivers::softmax(*uk, *x, *out, or_absent(lse));
}

simdattn_status simdattn_masked_softmax(const simdattn_const_view4* x, const simdattn_view4* out,
                                        const simdattn_scoring* scoring, const simdattn_view3* lse,
                                        const simdattn_exec* exec) {
  SIMDATTN_NEED(x, out);
  SIMDATTN_SIZED(simdattn_scoring, scoring);
  SIMDATTN_KERNELS(exec);
  return drivers::masked_softmax(*uk, *x, *out, scoring_, or_absent(lse));
}

simdattn_status simdattn_weighted_values(const simdattn_const_view4* p, const simdattn_const_view4* v,
                                         const simdattn_view4* out, const simdattn_value_options* options,
                                         const simdattn_exec* exec) {
  SIMDATTN_NEED(p, v, out);
  SIMDATTN_SIZED(simdattn_value_options, options);
  SIMDATTN_KERNELS(exec);
  return drivers::weighted_values(*uk, *p, *v, *out, options_, exec_);
}

size_t simdattn_weighted_values_workspace(simdattn_arithmetic arithmetic, int64_t d_v) {
  return drivers::weighted_values_workspace(arithmetic, d_v);
}

simdattn_status simdattn_gaussian_scores(const simdattn_const_view4* q, const simdattn_const_view4* k,
                                         const simdattn_view4* out, const simdattn_score_options* options,
                                         const simdattn_exec* exec) {
  SIMDATTN_NEED(q, k, out);
  SIMDATTN_SIZED(simdattn_score_options, options);
  SIMDATTN_EXEC(exec);
  return drivers::gaussian_scores(*uk, *q, *k, *out, options_);
}

simdattn_status simdattn_bilinear_scores(const simdattn_const_view4* q, const simdattn_const_view3* m,
                                         const simdattn_const_view4* k, const simdattn_view4* out,
                                         const simdattn_score_options* options, const simdattn_exec* exec) {
  SIMDATTN_NEED(q, m, k, out);
  SIMDATTN_SIZED(simdattn_score_options, options);
  SIMDATTN_EXEC(exec);
  return drivers::bilinear_scores(*uk, *q, *m, *k, *out, options_, exec_);
}

size_t simdattn_bilinear_scores_workspace(int64_t d_q, int64_t d_k) {
  return drivers::bilinear_scores_workspace(d_q, d_k);
}

simdattn_status simdattn_additive_scores(const simdattn_const_view4* q, const simdattn_const_view4* k,
                                         const simdattn_const_view2* w, const simdattn_view4* out,
                                         const simdattn_const_view3* wq, const simdattn_const_view3* wk,
                                         const simdattn_exec* exec) {
  SIMDATTN_NEED(q, k, w, out);
  SIMDATTN_EXEC(exec);
  return drivers::additive_scores(*uk, *q, *k, *w, *out, or_absent(wq), or_absent(wk), exec_);
}

size_t simdattn_additive_scores_workspace(int64_t d_q, int64_t d_k, int64_t d) {
  return drivers::additive_scores_workspace(d_q, d_k, d);
}

// ---- Positions ------------------------------------------------------------------------------------------------------

simdattn_status simdattn_alibi_slopes(int64_t heads, float* slopes) {
  const Environment environment;
  return drivers::alibi_slopes(heads, slopes);
}

simdattn_status simdattn_hadamard(const simdattn_const_view4* x, const simdattn_view4* out, int64_t block,
                                  const simdattn_exec* exec) {
  SIMDATTN_NEED(x, out);
  SIMDATTN_EXEC(exec);
  return drivers::hadamard(*uk, *x, *out, block);
}

simdattn_status simdattn_add_rows(const simdattn_const_view4* x, const simdattn_const_view4* p,
                                  const simdattn_view4* out, const simdattn_exec* exec) {
  SIMDATTN_NEED(x, p, out);
  SIMDATTN_EXEC(exec);
  return drivers::add_rows(*uk, *x, *p, *out);
}

simdattn_status simdattn_rope(const simdattn_const_view4* x, const simdattn_const_view2* cos,
                              const simdattn_const_view2* sin, const simdattn_positions* positions,
                              const simdattn_view4* out, const simdattn_rope_options* options,
                              const simdattn_exec* exec) {
  SIMDATTN_NEED(x, cos, sin, out);
  SIMDATTN_SIZED(simdattn_rope_options, options);
  SIMDATTN_KERNELS(exec);
  return drivers::rope(*uk, *x, *cos, *sin, or_absent(positions), *out, options_);
}

simdattn_status simdattn_rope_frequencies(double* inv_freq, int64_t pairs, double* attention_factor,
                                          const simdattn_rope_table_options* options) {
  SIMDATTN_SIZED(simdattn_rope_table_options, options);
  const Environment environment;
  return drivers::rope_frequencies(inv_freq, pairs, attention_factor, options_);
}

simdattn_status simdattn_rope_table(const simdattn_view2* cos, const simdattn_view2* sin,
                                    const simdattn_rope_table_options* options, const simdattn_const_view2* positions,
                                    int64_t first) {
  SIMDATTN_NEED(cos, sin);
  SIMDATTN_SIZED(simdattn_rope_table_options, options);
  const Environment environment;
  return drivers::rope_table(*cos, *sin, options_, or_absent(positions), first);
}

simdattn_status simdattn_rope_direct(const simdattn_const_view4* x, int64_t pairs,
                                     const simdattn_rope_table_options* table, const simdattn_positions* positions,
                                     const simdattn_view4* out, const simdattn_rope_options* options,
                                     const simdattn_exec* exec) {
  SIMDATTN_NEED(x, out);
  SIMDATTN_SIZED(simdattn_rope_table_options, table);
  SIMDATTN_SIZED(simdattn_rope_options, options);
  SIMDATTN_EXEC(exec);
  return drivers::rope_direct(*uk, *x, pairs, table_, or_absent(positions), *out, options_, exec_);
}

size_t simdattn_rope_direct_workspace(int64_t pairs) { return drivers::rope_direct_workspace(pairs); }

simdattn_status simdattn_sinusoidal_table(const simdattn_view2* out, double base, const simdattn_const_view1* positions,
                                          int64_t first) {
  SIMDATTN_NEED(out);
  const Environment environment;
  return drivers::sinusoidal_table(*out, base, or_absent(positions), first);
}

// ---- Storage of keys and values -------------------------------------------------------------------------------------

int64_t simdattn_dtype_bytes(simdattn_dtype type) { return simdattn::dtype_bytes(type); }
int64_t simdattn_row_bytes(simdattn_kv_type type, int64_t dim) { return simdattn::row_bytes(type, dim); }
int64_t simdattn_panel_bytes(simdattn_kv_type type, int64_t dim) { return simdattn::panel_bytes(type, dim); }
int64_t simdattn_kv_bytes(simdattn_kv_type type, simdattn_kv_layout layout, int64_t batch, int64_t heads,
                          int64_t tokens, int64_t dim) {
  return simdattn::kv_bytes(type, layout, batch, heads, tokens, dim);
}
simdattn_kv simdattn_contiguous_kv(void* data, simdattn_kv_type type, simdattn_kv_layout layout, int64_t batch,
                                   int64_t heads, int64_t tokens, int64_t dim) {
  return simdattn::contiguous_kv(data, type, layout, batch, heads, tokens, dim);
}

bool simdattn_has_scales(simdattn_kv_type type) { return simdattn::has_scales(type); }
simdattn_kv simdattn_contiguous_scales(simdattn_kv kv, float* scales) {
  return simdattn::contiguous_scales(kv, scales);
}

simdattn_status simdattn_kv_append(const simdattn_const_view4* rows, const simdattn_const_view2* positions,
                                   const simdattn_kv* kv, const simdattn_append_options* options,
                                   const simdattn_exec* exec) {
  SIMDATTN_NEED(rows, kv);
  SIMDATTN_SIZED(simdattn_kv, kv);
  SIMDATTN_SIZED(simdattn_append_options, options);
  SIMDATTN_EXEC(exec);
  return drivers::kv_append(*uk, *rows, or_absent(positions), kv_, options_);
}

simdattn_status simdattn_kv_read(const simdattn_const_kv* kv, int64_t first, const simdattn_view4* out,
                                 const simdattn_exec* exec) {
  SIMDATTN_NEED(kv, out);
  SIMDATTN_SIZED(simdattn_const_kv, kv);
  SIMDATTN_EXEC(exec);
  return drivers::kv_read(*uk, kv_, first, *out);
}

simdattn_status simdattn_kv_shift(const simdattn_kv* kv, int64_t first, int64_t last, int64_t delta,
                                  const simdattn_key_rotation* rope, const simdattn_exec* exec) {
  SIMDATTN_NEED(kv);
  SIMDATTN_SIZED(simdattn_kv, kv);
  SIMDATTN_SIZED(simdattn_key_rotation, rope);
  SIMDATTN_EXEC(exec);
  return drivers::kv_shift(*uk, kv_, first, last, delta, rope_);
}

// ---- Fused attention ------------------------------------------------------------------------------------------------

simdattn_status simdattn_attention(const simdattn_attention_problem* problem, const simdattn_exec* exec) {
  SIMDATTN_NEED(problem);
  SIMDATTN_SIZED(simdattn_attention_problem, problem);
  SIMDATTN_SIZED(simdattn_exec, exec);
  return drivers::attention(problem_, exec_);
}

size_t simdattn_attention_workspace(const simdattn_attention_problem* problem, const simdattn_exec* exec) {
  simdattn_plan plan;
  return simdattn_attention_plan(problem, &plan, exec).ok() ? plan.workspace_bytes : 0;
}

simdattn_status simdattn_attention_plan(const simdattn_attention_problem* problem, simdattn_plan* plan,
                                        const simdattn_exec* exec) {
  SIMDATTN_NEED(problem, plan);
  SIMDATTN_SIZED(simdattn_attention_problem, problem);
  SIMDATTN_SIZED(simdattn_exec, exec);
  const Environment environment;
  return drivers::attention_plan(problem_, plan, exec_);
}

simdattn_status simdattn_attention_bind(const simdattn_attention_problem* problem, simdattn_plan* plan) {
  SIMDATTN_NEED(problem, plan);
  SIMDATTN_SIZED(simdattn_attention_problem, problem);
  const Environment environment;
  return drivers::attention_bind(problem_, plan);
}

simdattn_status simdattn_attention_range(const simdattn_plan* plan, int64_t first, int64_t last, void* partial,
                                         size_t partial_bytes, const simdattn_exec* exec) {
  SIMDATTN_NEED(plan);
  SIMDATTN_SIZED(simdattn_exec, exec);
  const Environment environment;
  return drivers::attention_range(*plan, first, last, false, partial, partial_bytes, exec_);
}

simdattn_status simdattn_attention_reduce(const simdattn_plan* plan, int64_t first, int64_t last, const void* partial,
                                          size_t partial_bytes, const simdattn_exec* exec) {
  SIMDATTN_NEED(plan);
  SIMDATTN_SIZED(simdattn_exec, exec);
  const Environment environment;
  return drivers::attention_range(*plan, first, last, true, partial, partial_bytes, exec_);
}

simdattn_status simdattn_attention_merge(const simdattn_const_view5* parts, const simdattn_const_view4* part_lse,
                                         const simdattn_view4* out, const simdattn_view3* lse, const float* sinks,
                                         const simdattn_exec* exec) {
  SIMDATTN_NEED(parts, part_lse, out);
  SIMDATTN_EXEC(exec);
  return drivers::attention_merge(*uk, *parts, *part_lse, *out, or_absent(lse), sinks);
}

// ---- Which keys a row attends to ------------------------------------------------------------------------------------

simdattn_status simdattn_index_scores(const simdattn_const_view4* q, const simdattn_const_kv* k,
                                      const simdattn_const_view3* weights, const simdattn_view4* scores,
                                      const simdattn_index_options* options, const simdattn_exec* exec) {
  SIMDATTN_NEED(q, k, scores);
  SIMDATTN_SIZED(simdattn_const_kv, k);
  SIMDATTN_SIZED(simdattn_index_options, options);
  SIMDATTN_EXEC(exec);
  return drivers::index_scores(*uk, *q, k_, or_absent(weights), *scores, options_, exec_);
}

size_t simdattn_index_scores_workspace(simdattn_arithmetic arithmetic, int64_t heads, int64_t d) {
  return drivers::index_scores_workspace(arithmetic, heads, d);
}

simdattn_status simdattn_top_k(const simdattn_const_view4* scores, int64_t k, const simdattn_view4* lists,
                               const simdattn_top_k_options* options, const simdattn_exec* exec) {
  SIMDATTN_NEED(scores, lists);
  SIMDATTN_SIZED(simdattn_top_k_options, options);
  SIMDATTN_EXEC(exec);
  return drivers::top_k(*uk, *scores, k, *lists, options_, exec_);
}

size_t simdattn_top_k_workspace(int64_t k) { return drivers::top_k_workspace(k); }

// ---- Attention with a state -----------------------------------------------------------------------------------------

simdattn_status simdattn_linear_attention(const simdattn_linear_attention_problem* problem, const simdattn_exec* exec) {
  SIMDATTN_NEED(problem);
  SIMDATTN_SIZED(simdattn_linear_attention_problem, problem);
  SIMDATTN_EXEC(exec);
  return drivers::linear_attention(*uk, problem_, 0, 0, true, exec_);
}

int64_t simdattn_linear_attention_tasks(const simdattn_linear_attention_problem* problem) {
  const Sized<simdattn_linear_attention_problem> sized(problem);
  return sized.ok() ? drivers::linear_attention_tasks(*sized) : 0;
}

simdattn_status simdattn_linear_attention_range(const simdattn_linear_attention_problem* problem, int64_t first,
                                                int64_t last, const simdattn_exec* exec) {
  SIMDATTN_NEED(problem);
  SIMDATTN_SIZED(simdattn_linear_attention_problem, problem);
  SIMDATTN_EXEC(exec);
  return drivers::linear_attention(*uk, problem_, first, last, false, exec_);
}

size_t simdattn_linear_attention_workspace(const simdattn_linear_attention_problem* problem) {
  const Sized<simdattn_linear_attention_problem> sized(problem);
  return sized.ok() ? drivers::linear_attention_workspace(*sized) : 0;
}

simdattn_status simdattn_causal_conv(const simdattn_causal_conv_problem* problem, const simdattn_exec* exec) {
  SIMDATTN_NEED(problem);
  SIMDATTN_SIZED(simdattn_causal_conv_problem, problem);
  SIMDATTN_EXEC(exec);
  return drivers::causal_conv(*uk, problem_);
}

bool simdattn_target_native(const simdattn_target* target, simdattn_arithmetic arithmetic) {
  const auto index = static_cast<size_t>(arithmetic);
  return target != nullptr && index < simdattn::kArithmetics && target->kernels->attention[index].native;
}

}  // extern "C"
