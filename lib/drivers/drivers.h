// What the public functions do, once lib/api/entry.cc has looked at pointers and struct sizes. It says which functions
// set the floating-point environment themselves. Documented in include/simdattn/simdattn.h; absent views are empty
// ones.
#pragma once

#include "include/simdattn/extras.h"
#include "lib/contract/ukernels.h"

namespace simdattn::drivers {

size_t scores_workspace(Arithmetic arithmetic, int64_t dim);
Status scores(const UKernels& uk, const ConstView<4>& q, const ConstView<4>& k, const View<4>& out,
              const ScoreOptions& options, const Exec& exec);
Status softmax(const UKernels& uk, const ConstView<2>& x, const View<2>& out, const View<1>& lse);
Status masked_softmax(const UKernels& uk, const ConstView<4>& scores, const View<4>& out, const Scoring& scoring,
                      const View<3>& lse);
size_t weighted_values_workspace(Arithmetic arithmetic, int64_t d_v);
Status weighted_values(const UKernels& uk, const ConstView<4>& weights, const ConstView<4>& values, const View<4>& out,
                       const ValueOptions& options, const Exec& exec);
Status gaussian_scores(const UKernels& uk, const ConstView<4>& q, const ConstView<4>& k, const View<4>& out,
                       const ScoreOptions& options);
Status bilinear_scores(const UKernels& uk, const ConstView<4>& q, const ConstView<3>& m, const ConstView<4>& k,
                       const View<4>& out, const ScoreOptions& options, const Exec& exec);
size_t bilinear_scores_workspace(int64_t d_q, int64_t d_k);
Status additive_scores(const UKernels& uk, const ConstView<4>& q, const ConstView<4>& k, const ConstView<2>& w,
                       const View<4>& out, const ConstView<3>& wq, const ConstView<3>& wk, const Exec& exec);
size_t additive_scores_workspace(int64_t d_q, int64_t d_k, int64_t d);

Status alibi_slopes(int64_t heads, float* slopes);
Status hadamard(const UKernels& uk, const ConstView<4>& x, const View<4>& out, int64_t block);
Status add_rows(const UKernels& uk, const ConstView<4>& x, const ConstView<4>& p, const View<4>& out);
Status rope(const UKernels& uk, const ConstView<4>& x, const ConstView<2>& cos, const ConstView<2>& sin,
            const Positions& positions, const View<4>& out, const RopeOptions& options);
Status rope_frequencies(double* inv_freq, int64_t pairs, double* attention_factor, const RopeTableOptions& options);
Status rope_table(const View<2>& cos, const View<2>& sin, const RopeTableOptions& options,
                  const ConstView<2>& positions, int64_t first);
Status rope_direct(const UKernels& uk, const ConstView<4>& x, int64_t pairs, const RopeTableOptions& table,
                   const Positions& positions, const View<4>& out, const RopeOptions& options, const Exec& exec);
size_t rope_direct_workspace(int64_t pairs);
Status sinusoidal_table(const View<2>& out, double base, const ConstView<1>& positions, int64_t first);

Status kv_append(const UKernels& uk, const ConstView<4>& rows, const ConstView<2>& positions, const Kv& kv,
                 const AppendOptions& options);
Status kv_read(const UKernels& uk, const ConstKv& kv, int64_t first, const View<4>& out);
Status kv_shift(const UKernels& uk, const Kv& kv, int64_t first, int64_t last, int64_t delta, const KeyRotation& rope);

Status attention(const AttentionProblem& problem, const Exec& exec);
Status attention_plan(const AttentionProblem& problem, Plan* plan, const Exec& exec);
Status attention_bind(const AttentionProblem& problem, Plan* plan);
/// `reduce`: attention_reduce().
Status attention_range(const Plan& plan, int64_t first, int64_t last, bool reduce, const void* partial,
                       size_t partial_bytes, const Exec& exec);
Status attention_merge(const UKernels& uk, const ConstView<5>& parts, const ConstView<4>& part_lse, const View<4>& out,
                       const View<3>& lse, const float* sinks);

Status index_scores(const UKernels& uk, const ConstView<4>& q, const ConstKv& k, const ConstView<3>& weights,
                    const View<4>& scores, const IndexOptions& options, const Exec& exec);
size_t index_scores_workspace(Arithmetic arithmetic, int64_t heads, int64_t dim);
Status top_k(const UKernels& uk, const ConstView<4>& scores, int64_t k, const View<4>& lists,
             const TopKOptions& options, const Exec& exec);
size_t top_k_workspace(int64_t k);
size_t linear_attention_workspace(const LinearAttentionProblem& problem);
int64_t linear_attention_tasks(const LinearAttentionProblem& problem);
Status linear_attention(const UKernels& uk, const LinearAttentionProblem& problem, int64_t first, int64_t last,
                        const Exec& exec);
Status causal_conv(const UKernels& uk, const CausalConvProblem& problem);

}  // namespace simdattn::drivers
