/* simdattn for C (from C99 on), and what the C++ functions call.
 *
 * simdattn_NAME does what simdattn::NAME of <simdattn/simdattn.h> does, and is explained there: shapes, ranges, failures,
 * error bounds. Views, options and `exec` are passed by pointer; NULL stands for what is absent or default.
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

/* Targets. simdattn_targets() gives the list and its length. */
SIMDATTN_API const simdattn_target* const* simdattn_targets(size_t* count);
SIMDATTN_API const char* simdattn_name(const simdattn_target* target);
SIMDATTN_API bool simdattn_runnable(const simdattn_target* target);
SIMDATTN_API bool simdattn_exact(const simdattn_target* target);
SIMDATTN_API bool simdattn_native(const simdattn_target* target, simdattn_arithmetic arithmetic);
SIMDATTN_API const char* simdattn_missing(const simdattn_target* target);
SIMDATTN_API simdattn_status simdattn_find_target(const char* name, const simdattn_target** target);
SIMDATTN_API simdattn_status simdattn_default_target(const simdattn_target** target);
SIMDATTN_API simdattn_status simdattn_request_amx(void);
SIMDATTN_API const char* simdattn_version(void);

/* The unfused kernels. */
SIMDATTN_API simdattn_status simdattn_scores(const simdattn_const_view4* q, const simdattn_const_view4* k,
                                             const simdattn_view4* out, const simdattn_score_options* options,
                                             const simdattn_exec* exec);
SIMDATTN_API size_t simdattn_scores_workspace(simdattn_arithmetic arithmetic, int64_t d_qk);
SIMDATTN_API simdattn_status simdattn_softmax(const simdattn_const_view2* x, const simdattn_view2* out,
                                              const simdattn_view1* lse, const simdattn_exec* exec);
SIMDATTN_API simdattn_status simdattn_masked_softmax(const simdattn_const_view4* x, const simdattn_view4* out,
                                                     const simdattn_scoring* scoring, const simdattn_view3* lse,
                                                     const simdattn_exec* exec);
SIMDATTN_API simdattn_status simdattn_weighted_values(const simdattn_const_view4* p, const simdattn_const_view4* v,
                                                      const simdattn_view4* out, const simdattn_value_options* options,
                                                      const simdattn_exec* exec);
SIMDATTN_API size_t simdattn_weighted_values_workspace(simdattn_arithmetic arithmetic, int64_t d_v);
SIMDATTN_API simdattn_status simdattn_gaussian_scores(const simdattn_const_view4* q, const simdattn_const_view4* k,
                                                      const simdattn_view4* out, const simdattn_score_options* options,
                                                      const simdattn_exec* exec);
SIMDATTN_API simdattn_status simdattn_bilinear_scores(const simdattn_const_view4* q, const simdattn_const_view3* m,
                                                      const simdattn_const_view4* k, const simdattn_view4* out,
                                                      const simdattn_score_options* options, const simdattn_exec* exec);
SIMDATTN_API size_t simdattn_bilinear_scores_workspace(int64_t d_q, int64_t d_k);
SIMDATTN_API simdattn_status simdattn_additive_scores(const simdattn_const_view4* q, const simdattn_const_view4* k,
                                                      const simdattn_const_view2* w, const simdattn_view4* out,
                                                      const simdattn_const_view3* wq, const simdattn_const_view3* wk,
                                                      const simdattn_exec* exec);
SIMDATTN_API size_t simdattn_additive_scores_workspace(int64_t d_q, int64_t d_k, int64_t d);

/* Positions. */
SIMDATTN_API simdattn_status simdattn_alibi_slopes(int64_t heads, float* slopes);
SIMDATTN_API simdattn_status simdattn_hadamard(const simdattn_const_view4* x, const simdattn_view4* out, int64_t block,
                                               const simdattn_exec* exec);
SIMDATTN_API simdattn_status simdattn_add_rows(const simdattn_const_view4* x, const simdattn_const_view4* p,
                                               const simdattn_view4* out, const simdattn_exec* exec);
SIMDATTN_API simdattn_status simdattn_rope(const simdattn_const_view4* x, const simdattn_const_view2* cos,
                                           const simdattn_const_view2* sin, const simdattn_const_view2* positions,
                                           const simdattn_view4* out, const simdattn_rope_options* options,
                                           const simdattn_exec* exec);
SIMDATTN_API simdattn_status simdattn_rope_frequencies(double* inv_freq, int64_t pairs, double* attention_factor,
                                                       const simdattn_rope_table_options* options);
SIMDATTN_API simdattn_status simdattn_rope_table(const simdattn_view2* cos, const simdattn_view2* sin,
                                                 const simdattn_rope_table_options* options,
                                                 const simdattn_const_view2* positions, int64_t first);
SIMDATTN_API simdattn_status simdattn_rope_direct(const simdattn_const_view4* x, int64_t pairs,
                                                  const simdattn_rope_table_options* table,
                                                  const simdattn_const_view3* positions, const simdattn_view4* out,
                                                  const simdattn_rope_options* options, const simdattn_exec* exec);
SIMDATTN_API size_t simdattn_rope_direct_workspace(int64_t pairs);
SIMDATTN_API simdattn_status simdattn_sinusoidal_table(const simdattn_view2* out, double base,
                                                       const simdattn_const_view1* positions, int64_t first);

/* Storage of keys and values. */
SIMDATTN_API int64_t simdattn_dtype_bytes(simdattn_dtype type);
SIMDATTN_API int64_t simdattn_row_bytes(simdattn_kv_type type, int64_t dim);
SIMDATTN_API int64_t simdattn_panel_bytes(simdattn_kv_type type, int64_t dim);
SIMDATTN_API int64_t simdattn_kv_bytes(simdattn_kv_type type, simdattn_kv_layout layout, int64_t batch, int64_t heads,
                                       int64_t tokens, int64_t dim);
SIMDATTN_API simdattn_kv simdattn_contiguous_kv(void* data, simdattn_kv_type type, simdattn_kv_layout layout,
                                                int64_t batch, int64_t heads, int64_t tokens, int64_t dim);
SIMDATTN_API bool simdattn_has_scales(simdattn_kv_type type);
SIMDATTN_API simdattn_kv simdattn_contiguous_scales(simdattn_kv kv, float* scales);
SIMDATTN_API simdattn_status simdattn_dequantise(const simdattn_const_kv* kv, int64_t first, const simdattn_view4* out,
                                                 const simdattn_exec* exec);
SIMDATTN_API simdattn_status simdattn_kv_append(const simdattn_const_view4* rows, const simdattn_const_view2* positions,
                                                const simdattn_kv* kv, const simdattn_append_options* options,
                                                const simdattn_exec* exec);
SIMDATTN_API simdattn_status simdattn_kv_shift(const simdattn_kv* kv, int64_t first, int64_t last, int64_t delta,
                                               const simdattn_key_rotation* rope, const simdattn_exec* exec);

/* Fused attention. */
SIMDATTN_API simdattn_status simdattn_attention(const simdattn_attention_problem* problem, const simdattn_exec* exec);
SIMDATTN_API simdattn_status simdattn_attention_plan(const simdattn_attention_problem* problem, simdattn_plan* plan,
                                                     const simdattn_exec* exec);
SIMDATTN_API simdattn_status simdattn_attention_bind(const simdattn_attention_problem* problem, simdattn_plan* plan);
SIMDATTN_API simdattn_status simdattn_attention_range(const simdattn_plan* plan, int64_t first, int64_t last,
                                                      void* partial, size_t partial_bytes, const simdattn_exec* exec);
SIMDATTN_API simdattn_status simdattn_attention_reduce(const simdattn_plan* plan, int64_t first, int64_t last,
                                                       const void* partial, size_t partial_bytes,
                                                       const simdattn_exec* exec);
SIMDATTN_API simdattn_status simdattn_attention_merge(const simdattn_const_view5* parts,
                                                      const simdattn_const_view4* part_lse, const simdattn_view4* out,
                                                      const simdattn_view3* lse, const float* sinks,
                                                      const simdattn_exec* exec);

#ifdef __cplusplus
#if defined(__clang__)
#pragma clang diagnostic pop
#endif
} /* extern "C" */
#endif

#endif /* SIMDATTN_SIMDATTN_C_H_ */
