/* simdattn for C (from C99 on). The C++ functions call these.
 *
 * simdattn_NAME does what simdattn::NAME of <simdattn/simdattn.h> does. Its shapes, ranges, failures and error bounds
 * are explained there. Views, options and `exec` are passed by pointer; NULL stands for what is absent or default.
 *
 *   simdattn_attention_problem p = SIMDATTN_ATTENTION_PROBLEM_INIT;
 *   p.scoring.causal = true;
 */
#ifndef SIMDATTN_SIMDATTN_C_H_
#define SIMDATTN_SIMDATTN_C_H_

#include "simdattn/types.h"

#ifdef __cplusplus
extern "C" {
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored \
    "-Wreturn-type-c-linkage" /* Status has default members, and is returned like the C struct */
#endif
#endif

/* ---- Status ------------------------------------------------------------------------------------------------------ */

/** "OK", "NULL_POINTER", ...: the enumerator without its prefix. */
SIMDATTN_API const char* simdattn_code_name(simdattn_code code);

/* ---- Targets ----------------------------------------------------------------------------------------------------- */

/** Every compiled target, best first, and how many. */
SIMDATTN_API const simdattn_target* const* simdattn_targets(size_t* count);
/** "BACKEND/INSTRUCTIONS", or "scalar". */
SIMDATTN_API const char* simdattn_target_name(const simdattn_target* target);
/** True if this CPU and operating system can execute the target. */
SIMDATTN_API bool simdattn_target_runnable(const simdattn_target* target);
/** True if the target returns the bits of the definition. */
SIMDATTN_API bool simdattn_target_exact(const simdattn_target* target);
/** True if the target has instructions for the arithmetic. */
SIMDATTN_API bool simdattn_target_native(const simdattn_target* target, simdattn_arithmetic arithmetic);
/** The arithmetic that is fastest for operands of these types without being less exact than they are. */
SIMDATTN_API simdattn_arithmetic simdattn_arithmetic_for(simdattn_dtype q, simdattn_kv_type k, simdattn_kv_type v,
                                                         const simdattn_exec* exec);
/** What is lacking to run the target; "" if nothing is. */
SIMDATTN_API const char* simdattn_target_missing(const simdattn_target* target);
/** Looks a target up by its name. */
SIMDATTN_API simdattn_status simdattn_find_target(const char* name, const simdattn_target** target);
/** The target of SIMDATTN_TARGET, else the first runnable one. */
SIMDATTN_API simdattn_status simdattn_default_target(const simdattn_target** target);
/** Asks the operating system to let this process use AMX. */
SIMDATTN_API simdattn_status simdattn_request_amx(void);

/* ---- Version ----------------------------------------------------------------------------------------------------- */

/** "0.3.0", of the library that was linked. */
SIMDATTN_API const char* simdattn_version(void);

/* ---- The unfused kernels ----------------------------------------------------------------------------------------- */

/** Scores of queries and keys: scale * q k^T. */
SIMDATTN_API simdattn_status simdattn_scores(const simdattn_const_view4* q, const simdattn_const_view4* k,
                                             const simdattn_view4* out, const simdattn_score_options* options,
                                             const simdattn_exec* exec);
/** Bytes of workspace for simdattn_scores(). */
SIMDATTN_API size_t simdattn_scores_workspace(simdattn_arithmetic arithmetic, int64_t d_qk);
/** Softmax of rows, and their log-sum-exp. */
SIMDATTN_API simdattn_status simdattn_softmax(const simdattn_const_view2* x, const simdattn_view2* out,
                                              const simdattn_view1* lse, const simdattn_exec* exec);
/** Softmax of raw scores with masks, bias and the like. */
SIMDATTN_API simdattn_status simdattn_masked_softmax(const simdattn_const_view4* x, const simdattn_view4* out,
                                                     const simdattn_scoring* scoring, const simdattn_view3* lse,
                                                     const simdattn_exec* exec);
/** Values times probabilities. */
SIMDATTN_API simdattn_status simdattn_weighted_values(const simdattn_const_view4* p, const simdattn_const_view4* v,
                                                      const simdattn_view4* out, const simdattn_value_options* options,
                                                      const simdattn_exec* exec);
/** Bytes of workspace for simdattn_weighted_values(). */
SIMDATTN_API size_t simdattn_weighted_values_workspace(simdattn_arithmetic arithmetic, int64_t d_v);

/* ---- Rotary position embedding ----------------------------------------------------------------------------------- */

/** Rotates rows, by a table. */
SIMDATTN_API simdattn_status simdattn_rope(const simdattn_const_view4* x, const simdattn_const_view2* cos,
                                           const simdattn_const_view2* sin, const simdattn_positions* positions,
                                           const simdattn_view4* out, const simdattn_rope_options* options,
                                           const simdattn_exec* exec);
/** Inverse frequencies of a model. */
SIMDATTN_API simdattn_status simdattn_rope_frequencies(double* inv_freq, int64_t pairs, double* attention_factor,
                                                       const simdattn_rope_table_options* options);
/** Cosines and sines of positions. */
SIMDATTN_API simdattn_status simdattn_rope_table(const simdattn_view2* cos, const simdattn_view2* sin,
                                                 const simdattn_rope_table_options* options,
                                                 const simdattn_const_view2* positions, int64_t first);
/** Rotates rows, without a table. */
SIMDATTN_API simdattn_status simdattn_rope_direct(const simdattn_const_view4* x, int64_t pairs,
                                                  const simdattn_rope_table_options* table,
                                                  const simdattn_positions* positions, const simdattn_view4* out,
                                                  const simdattn_rope_options* options, const simdattn_exec* exec);
/** Bytes of workspace for simdattn_rope_direct(). */
SIMDATTN_API size_t simdattn_rope_direct_workspace(int64_t pairs);

/* ---- Storage of keys and values ---------------------------------------------------------------------------------- */

/** Bytes of an element. */
SIMDATTN_API int64_t simdattn_dtype_bytes(simdattn_dtype type);
/** Bytes of a key or value in rows. */
SIMDATTN_API int64_t simdattn_row_bytes(simdattn_kv_type type, int64_t dim);
/** Bytes of a panel of 32 keys. */
SIMDATTN_API int64_t simdattn_panel_bytes(simdattn_kv_type type, int64_t dim);
/** Bytes of a contiguous store. */
SIMDATTN_API int64_t simdattn_kv_bytes(simdattn_kv_type type, simdattn_kv_layout layout, int64_t batch, int64_t heads,
                                       int64_t tokens, int64_t dim);
/** A contiguous store. */
SIMDATTN_API simdattn_kv simdattn_contiguous_kv(void* data, simdattn_kv_type type, simdattn_kv_layout layout,
                                                int64_t batch, int64_t heads, int64_t tokens, int64_t dim);
/** True for types whose scales stand apart. */
SIMDATTN_API bool simdattn_has_scales(simdattn_kv_type type);
/** `kv` with contiguous scales. */
SIMDATTN_API simdattn_kv simdattn_contiguous_scales(simdattn_kv kv, float* scales);
/** Cached tokens as rows of f32. */
SIMDATTN_API simdattn_status simdattn_kv_read(const simdattn_const_kv* kv, int64_t first, const simdattn_view4* out,
                                              const simdattn_exec* exec);
/** Stores new keys or values. */
SIMDATTN_API simdattn_status simdattn_kv_append(const simdattn_const_view4* rows, const simdattn_const_view2* positions,
                                                const simdattn_kv* kv, const simdattn_append_options* options,
                                                const simdattn_exec* exec);
/** Moves cached keys or values to other positions. */
SIMDATTN_API simdattn_status simdattn_kv_shift(const simdattn_kv* kv, int64_t first, int64_t last, int64_t delta,
                                               const simdattn_key_rotation* rope, const simdattn_exec* exec);

/* ---- Fused attention --------------------------------------------------------------------------------------------- */

/** Fused attention, all of it on this thread. */
SIMDATTN_API simdattn_status simdattn_attention(const simdattn_attention_problem* problem, const simdattn_exec* exec);
/** Bytes of workspace for simdattn_attention(). */
SIMDATTN_API size_t simdattn_attention_workspace(const simdattn_attention_problem* problem, const simdattn_exec* exec);
/** Checks a problem once and divides it into tasks. */
SIMDATTN_API simdattn_status simdattn_attention_plan(const simdattn_attention_problem* problem, simdattn_plan* plan,
                                                     const simdattn_exec* exec);
/** Gives a plan the arrays of another problem of the same kind. */
SIMDATTN_API simdattn_status simdattn_attention_bind(const simdattn_attention_problem* problem, simdattn_plan* plan);
/** Runs tasks of a plan. */
SIMDATTN_API simdattn_status simdattn_attention_range(const simdattn_plan* plan, int64_t first, int64_t last,
                                                      void* partial, size_t partial_bytes, const simdattn_exec* exec);
/** Runs reduction tasks of a plan, after all others. */
SIMDATTN_API simdattn_status simdattn_attention_reduce(const simdattn_plan* plan, int64_t first, int64_t last,
                                                       const void* partial, size_t partial_bytes,
                                                       const simdattn_exec* exec);
/** Joins partial results over disjoint keys. */
SIMDATTN_API simdattn_status simdattn_attention_merge(const simdattn_const_view5* parts,
                                                      const simdattn_const_view4* part_lse, const simdattn_view4* out,
                                                      const simdattn_view3* lse, const float* sinks,
                                                      const simdattn_exec* exec);

/* ---- Which keys a row attends to --------------------------------------------------------------------------------- */

/** Scores of an indexer: how much each row wants each key or block of keys. */
SIMDATTN_API simdattn_status simdattn_index_scores(const simdattn_const_view4* q, const simdattn_const_kv* k,
                                                   const simdattn_const_view3* weights, const simdattn_view4* scores,
                                                   const simdattn_index_options* options, const simdattn_exec* exec);
/** Bytes of workspace for simdattn_index_scores(). */
SIMDATTN_API size_t simdattn_index_scores_workspace(simdattn_arithmetic arithmetic, int64_t heads, int64_t d);
/** The places of the k largest scores of each row. */
SIMDATTN_API simdattn_status simdattn_top_k(const simdattn_const_view4* scores, int64_t k, const simdattn_view4* lists,
                                            const simdattn_top_k_options* options, const simdattn_exec* exec);
/** Bytes of workspace for simdattn_top_k(). */
SIMDATTN_API size_t simdattn_top_k_workspace(int64_t k);
/* ---- Attention with a state -------------------------------------------------------------------------------------- */

/** Linear attention: gated delta net, KDA and the like; all of it on this thread. */
SIMDATTN_API simdattn_status simdattn_linear_attention(const simdattn_linear_attention_problem* problem,
                                                       const simdattn_exec* exec);
/** Tasks that simdattn_linear_attention_range() divides a problem into. */
SIMDATTN_API int64_t simdattn_linear_attention_tasks(const simdattn_linear_attention_problem* problem);
/** Runs some of them. */
SIMDATTN_API simdattn_status simdattn_linear_attention_range(const simdattn_linear_attention_problem* problem,
                                                             int64_t first, int64_t last, const simdattn_exec* exec);
/** Bytes of workspace for both. */
SIMDATTN_API size_t simdattn_linear_attention_workspace(const simdattn_linear_attention_problem* problem);
/** Depthwise causal convolution with a state. */
SIMDATTN_API simdattn_status simdattn_causal_conv(const simdattn_causal_conv_problem* problem,
                                                  const simdattn_exec* exec);

#ifdef __cplusplus
#if defined(__clang__)
#pragma clang diagnostic pop
#endif
} /* extern "C" */
#endif

#endif /* SIMDATTN_SIMDATTN_C_H_ */
