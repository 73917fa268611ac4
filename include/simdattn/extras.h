/* simdattn: what stands beside dot-product attention and its cache, for C (from C99 on) and C++ (from C++17 on).
 *
 * Other score functions, the Hadamard rotation before narrow storage, positions that are added. simdattn_NAME for C
 * does what simdattn::NAME does, and is explained there.
 */
#ifndef SIMDATTN_EXTRAS_H_
#define SIMDATTN_EXTRAS_H_

#ifdef __cplusplus
#include "simdattn/simdattn.h"

extern "C" {
#if defined(__clang__)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wreturn-type-c-linkage" /* as in simdattn_c.h */
#endif
#else
#include "simdattn/simdattn_c.h"
#endif

/* ---- Other score functions --------------------------------------------------------------------------------------- */

/** Scores by squared distance. */
SIMDATTN_API simdattn_status simdattn_gaussian_scores(const simdattn_const_view4* q, const simdattn_const_view4* k,
                                                      const simdattn_view4* out, const simdattn_score_options* options,
                                                      const simdattn_exec* exec);
/** Scores through a matrix: q^T m k. */
SIMDATTN_API simdattn_status simdattn_bilinear_scores(const simdattn_const_view4* q, const simdattn_const_view3* m,
                                                      const simdattn_const_view4* k, const simdattn_view4* out,
                                                      const simdattn_score_options* options, const simdattn_exec* exec);
/** Bytes of workspace for simdattn_bilinear_scores(). */
SIMDATTN_API size_t simdattn_bilinear_scores_workspace(int64_t d_q, int64_t d_k);
/** Scores by a layer of tanh. */
SIMDATTN_API simdattn_status simdattn_additive_scores(const simdattn_const_view4* q, const simdattn_const_view4* k,
                                                      const simdattn_const_view2* w, const simdattn_view4* out,
                                                      const simdattn_const_view3* wq, const simdattn_const_view3* wk,
                                                      const simdattn_exec* exec);
/** Bytes of workspace for simdattn_additive_scores(). */
SIMDATTN_API size_t simdattn_additive_scores_workspace(int64_t d_q, int64_t d_k, int64_t d);

/* ---- Rotation before 8 and 4 bits -------------------------------------------------------------------------------- */

/** Multiplies blocks of rows by a Hadamard matrix. */
SIMDATTN_API simdattn_status simdattn_hadamard(const simdattn_const_view4* x, const simdattn_view4* out, int64_t block,
                                               const simdattn_exec* exec);

/* ---- Positions that are added ------------------------------------------------------------------------------------ */

/** Slopes of ALiBi. */
SIMDATTN_API simdattn_status simdattn_alibi_slopes(int64_t heads, float* slopes);
/** Adds positions to rows. */
SIMDATTN_API simdattn_status simdattn_add_rows(const simdattn_const_view4* x, const simdattn_const_view4* p,
                                               const simdattn_view4* out, const simdattn_exec* exec);
/** Sinusoidal positions. */
SIMDATTN_API simdattn_status simdattn_sinusoidal_table(const simdattn_view2* out, double base,
                                                       const simdattn_const_view1* positions, int64_t first);

#ifdef __cplusplus
#if defined(__clang__)
#pragma clang diagnostic pop
#endif
} /* extern "C" */

namespace simdattn {

// ---------------------------------------------------------------------------------------------------------------------
// Other score functions
//
// They take the place of scores(); softmax and weighted_values follow as ever.
//
// Shapes: q [B,Hq,n_q,d_q], k [B,Hk,n_kv,d_k], out f32 [B,Hq,n_q,n_kv]; G = Hq/Hk whole; query head h reads key head
// h / G; dimensions >= 1. q, k and weights f32, bf16 or f16, any mixture; weights are broadcast over heads by stride 0.

/// out[b,h,i,j] = scale * -0.5 * sum_d (q[b,h,i,d] - k[b,h/G,j,d])^2; d_q = d_k. With a softmax this is Nadaraya-Watson
/// regression with a Gaussian kernel; scale is 1 / bandwidth^2, default 1.
/// Error: |out - exact| <= (ceil(d/16) + 7) * 2^-24 * |out|.
inline Status gaussian_scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out,
                              const ScoreOptions& options = {}, const Exec& exec = {}) {
  return simdattn_gaussian_scores(&q, &k, &out, &options, &exec);
}

/// out[b,h,i,j] = scale * q[b,h,i,:]^T m[h,:,:] k[b,h/G,j,:] ("general" attention, Luong et al. 2015); q and k may
/// differ in dimension. m [Hq,d_q,d_k]; scale default 1. Needs bilinear_scores_workspace() bytes of Exec::workspace.
/// Error: |out - exact| <= (d_q + ceil(d_k/16) + 5) * 2^-24 * |scale| * sum |q_d m_de k_e|.
inline Status bilinear_scores(const ConstView<4>& q, const ConstView<3>& m, const ConstView<4>& k, const View<4>& out,
                              const ScoreOptions& options = {}, const Exec& exec = {}) {
  return simdattn_bilinear_scores(&q, &m, &k, &out, &options, &exec);
}
/// Bytes of Exec::workspace that bilinear_scores() needs.
inline size_t bilinear_scores_workspace(int64_t d_q, int64_t d_k) {
  return simdattn_bilinear_scores_workspace(d_q, d_k);
}

/// out[b,h,i,j] = sum_e w[h,e] tanh(a_e + b_e), with a = wq[h] q[b,h,i,:] and b = wk[h/G] k[b,h/G,j,:] (Bahdanau et al.
/// 2015). w f32 [Hq,d]; wq [Hq,d,d_q] and wk [Hk,d,d_k], rows as in a PyTorch Linear layer. Without wq, q is projected
/// already and its dimension is d; k likewise without wk. A decoder projects its keys once and passes wq alone.
/// With wq or wk, needs additive_scores_workspace() bytes of Exec::workspace (d_q = 0 without wq, d_k = 0 without wk).
/// Error for projected q and k: |out - exact| <= (ceil(d/16) + 7) * 2^-24 * sum |w_e|; a projection adds
/// (ceil(d_q/16) + 5) * 2^-24 * sum_e |w_e| sum_d |wq_ed q_d|, that of k likewise.
inline Status additive_scores(const ConstView<4>& q, const ConstView<4>& k, const ConstView<2>& w, const View<4>& out,
                              const ConstView<3>& wq = {}, const ConstView<3>& wk = {}, const Exec& exec = {}) {
  return simdattn_additive_scores(&q, &k, &w, &out, &wq, &wk, &exec);
}
/// Bytes of Exec::workspace that additive_scores() needs. d_q: the dimension of q if there is wq, else 0; d_k likewise;
/// d: that of w.
inline size_t additive_scores_workspace(int64_t d_q, int64_t d_k, int64_t d) {
  return simdattn_additive_scores_workspace(d_q, d_k, d);
}

// ---------------------------------------------------------------------------------------------------------------------
// Rotation before 8 and 4 bits

/// out = x H / sqrt(block) for every `block` numbers of a row; H is the Hadamard matrix of +1 and -1 in Sylvester's
/// order. The matrix is orthonormal and its own inverse: q and k rotated alike have the same products, and a second
/// call undoes the first. It spreads a channel of large numbers over its block, so that one scale serves all numbers of
/// the block better. Rotate q and k after RoPE. Where values are rotated, rotate the output. kv_append rotates what it
/// stores: KeyRotation::hadamard_block.
/// Shapes: x, out [B,H,n,d] f32, bf16 or f16, any mixture, d >= 1; block 0 (the largest power of two that divides d, at
/// most 4096), or a power of two up to 4096 that divides d. `out` may be exactly x if the types are the same.
/// Error: |out - exact| <= (log2(block) + 1) * 2^-24 * sum |x| / sqrt(block), plus half a unit in the last place of
/// out's type.
inline Status hadamard(const ConstView<4>& x, const View<4>& out, int64_t block = 0, const Exec& exec = {}) {
  return simdattn_hadamard(&x, &out, block, &exec);
}

// ---------------------------------------------------------------------------------------------------------------------
// Positions that are added

/// slopes[h] of ALiBi for any number of heads (Press et al. 2022): with n = 2^floor(log2 heads), 2^(-8(h+1)/n) for h <
/// n, else 2^(-4(2(h-n)+1)/n). Within 1 ulp. kShape if heads < 1, kNullPointer if slopes is null.
inline Status alibi_slopes(int64_t heads, float* slopes) { return simdattn_alibi_slopes(heads, slopes); }

/// out = x + p, element by element: learned or sinusoidal positions, any broadcasting by stride 0.
/// Shapes: x, p, out [B,H,n,d] f32, bf16 or f16, any mixture. `out` may be exactly x.
inline Status add_rows(const ConstView<4>& x, const ConstView<4>& p, const View<4>& out, const Exec& exec = {}) {
  return simdattn_add_rows(&x, &p, &out, &exec);
}

/// Sinusoidal position encoding (Vaswani et al. 2017): out[p,2i] = sin(position_p * base^(-2i/d)), out[p,2i+1] = cos of
/// the same angle. An odd d ends with a sine. Without positions they are first, first + 1, ... Within 0.51 ulp.
/// Shapes: out f32 [n,d]; positions i32 or i64 [n], each in (-2^31, 2^31). base is in [1, 1e15].
inline Status sinusoidal_table(const View<2>& out, double base = 10000, const ConstView<1>& positions = {},
                               int64_t first = 0) {
  return simdattn_sinusoidal_table(&out, base, &positions, first);
}

}  // namespace simdattn
#endif

#endif /* SIMDATTN_EXTRAS_H_ */
