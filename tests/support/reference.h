// The formulas of docs/semantics.md in float64, as plain loops. This is what the library is measured against, so it
// shares nothing with it: of the public header it uses the views, Scoring and Attention as descriptions of a problem.
//
// A Tensor is contiguous, last dimension fastest; read() widens a view into one. Results come with the sum of the
// absolute values of their terms where an error bound needs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <vector>

#include "simdattn/simdattn.h"

namespace reference {

// ---------------------------------------------------------------------------------------------------------------------
// Storage types

double from_bf16(uint16_t bits);
double from_f16(uint16_t bits);
/// Round to nearest even, subnormals included; NaN becomes 0x7FC0 and 0x7E00.
uint16_t to_bf16(double value);
uint16_t to_f16(double value);

size_t bytes(simdattn::DType dtype);
/// Element `index` of an array.
double load(const void* data, simdattn::DType dtype, int64_t index);
void store(void* data, simdattn::DType dtype, int64_t index, double value);
/// Half a unit in the last place at `value`: what one rounding to a floating-point type can cost.
double half_ulp(simdattn::DType dtype, double value);

// ---------------------------------------------------------------------------------------------------------------------
// Tensors

struct Tensor {
  std::vector<int64_t> shape;
  std::vector<double> data;

  Tensor() = default;
  explicit Tensor(std::vector<int64_t> dims, double value = 0);
  int64_t size() const { return static_cast<int64_t>(data.size()); }
  double& operator[](int64_t i) { return data[static_cast<size_t>(i)]; }
  double operator[](int64_t i) const { return data[static_cast<size_t>(i)]; }
  int64_t dim(int i) const { return shape.at(static_cast<size_t>(i)); }
  /// Offset of an element; fewer indices than dimensions give the start of a sub-tensor.
  int64_t offset(std::initializer_list<int64_t> index) const;
  double* row(std::initializer_list<int64_t> index) { return data.data() + offset(index); }
  const double* row(std::initializer_list<int64_t> index) const { return data.data() + offset(index); }
  double& at(std::initializer_list<int64_t> index) { return (*this)[offset(index)]; }
  double at(std::initializer_list<int64_t> index) const { return (*this)[offset(index)]; }
};

/// Narrow storage types: bytes of a block of a row, and how many of them at its beginning are scales. Blocks of one
/// byte have none.
struct Codes {
  int64_t numbers;  // of a block
  int64_t bytes;
  int64_t scales;
};
Codes codes_of(simdattn::KvType type);
/// Where byte `i` of the row of column `lane` is in a panel.
int64_t panel_byte(simdattn::KvType type, int64_t dim, int64_t i, int64_t lane);
/// The numbers of a row, as f32 rounds the products of codes and scales.
std::vector<float> decode(simdattn::KvType type, const unsigned char* row, float scale, int64_t dim);

/// The element type of a strided view, widened.
Tensor read_strided(const void* data, simdattn::DType dtype, int rank, const int64_t* shape, const int64_t* stride);
template <int kRank, bool kConst>
Tensor read(const simdattn::BasicView<kRank, kConst>& v) {
  return read_strided(v.data, v.dtype, kRank, v.shape.data(), v.stride.data());
}
/// Tokens 0 .. tokens-1 of sequence b as [heads, tokens, dim], whatever the layout. What the storage does not hold (a
/// page < 0, a token that the ring has overwritten) reads as NaN.
Tensor read(const simdattn::ConstKv& kv, int64_t b, int64_t tokens);

// ---------------------------------------------------------------------------------------------------------------------
// Arithmetics

/// What an arithmetic multiplies in the place of x, whose rows are its last dimension: rounded to bf16, or 8-bit
/// integers times their row's scale. scales: those of kInt8, else 1. A row of kInt8 with a NaN or infinity is NaN.
Tensor operands(const Tensor& x, simdattn::Arithmetic arithmetic, Tensor* scales = nullptr);

// ---------------------------------------------------------------------------------------------------------------------
// Formulas. Shapes as in the public header; a null pointer is "not wanted".

/// magnitude: |scale| * sum_d |q_d k_d|.
Tensor scores(const Tensor& q, const Tensor& k, double scale, Tensor* magnitude = nullptr);
/// x is [rows, n].
Tensor softmax(const Tensor& x, Tensor* lse = nullptr);
/// x is [B,Hq,n_q,n_kv], raw scores. `scale` here and in attention() stands in for Scoring::scale if it is given: a
/// float cannot hold every scale that a float64 witness is computed with.
Tensor masked_softmax(const Tensor& x, const simdattn::Scoring& scoring, Tensor* lse = nullptr,
                      std::optional<double> scale = {});
/// The modified scores t_ij before masking, and which of them are visible (1 or 0).
Tensor modified_scores(const Tensor& x, const simdattn::Scoring& scoring, Tensor* visible = nullptr,
                       std::optional<double> scale = {});
/// magnitude: sum_j |p_j v_j|. A key of weight 0 has no influence. The sum is that of the arithmetic's operands;
/// weights: what the weights of kInt8 add to the error, which are not among them.
Tensor weighted_values(const Tensor& p, const Tensor& v, Tensor* magnitude = nullptr,
                       simdattn::Arithmetic arithmetic = simdattn::Arithmetic::kF32, Tensor* weights = nullptr);

/// x is [B,H,n,d]; cos and sin [n_positions, r/2]; positions [B,n], or empty: row i stands at position start + i.
Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, const std::vector<int64_t>& positions,
            const simdattn::RopeOptions& options = {});
/// The r/2 inverse frequencies of a table and the factor of its cosines and sines, every scaling. A float64 frequency
/// would leave an angle of 2^31 uncertain by 2^-22, four units in the last place of an f32 cosine; long double has 11
/// bits more (x86) or 60 (AArch64). `f32_angles` is not looked at: this is the formula.
std::vector<long double> rope_frequencies(const simdattn::RopeTableOptions& options, int64_t r,
                                          long double* attention_factor);
/// cos and sin [n, r/2]; positions [axes][n], one axis if there are no sections.
void rope_table(const simdattn::RopeTableOptions& options, int64_t r,
                const std::vector<std::vector<int64_t>>& positions, Tensor* cos, Tensor* sin);
/// [n, d]: sines and cosines in turn.
Tensor sinusoidal_table(int64_t d, double base, const std::vector<int64_t>& positions);

std::vector<double> alibi_slopes(int64_t heads);

/// A linear attention with tensors as in the public header, token-wise ones too: decay [B,Hv,n,1] or [B,Hv,n,d_k], beta
/// [B,Hv,n,1] or [B,1,n,1]; empty: none.
struct StateProblem {
  bool delta = false;
  bool repeated = false;  // heads in ggml's order
  Tensor q, k, v, decay, beta, state;
  double scale = 1;
  bool fused = true;  // a multiply-add rounds once
};
/// `states` after every token [B,n,Hv,d_k,d_v], and for each number how far f32 arithmetic may be from it by
/// docs/numerics.md.
struct StateResult {
  Tensor out, state, states;
  Tensor out_bound, state_bound;
};
StateResult linear_attention(const StateProblem& p);
/// x [B,C,n], weight [C,width], bias [C] or empty, state [B,C,width-1] in and out. bound: as above.
Tensor causal_conv(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor* state, bool silu,
                   Tensor* bound = nullptr);

struct AttentionResult {
  Tensor out;
  Tensor lse;
  Tensor magnitude;  // of out: sum_j p_j |v_j|
  Tensor max;        // of attention(): the raw state, whose accumulator is out * sum
  Tensor sum;
  Tensor weights;  // error of out that rounded weights may bring
};
AttentionResult attention(const Tensor& q, const Tensor& k, const Tensor& v, const simdattn::Scoring& scoring,
                          std::optional<double> scale = {});
/// The same for everything that the public struct can say: any storage of keys and values, varlen batches, arithmetics
/// (over their operands). Outputs of the problem are neither read nor written.
AttentionResult attention(const simdattn::AttentionProblem& problem);

/// A problem's sequences: what is stored, at which positions rows stand, and which keys they see.
struct SequenceRows {
  Tensor q, k, v;  // [Hq, n_q, d], [Hk, n, d], [Hk, n, d_v]
  int64_t batch;   // of the outputs
  int64_t first_row;
  std::vector<int64_t> positions;  // [n_q]
  Tensor visible;                  // [Hq, n_q, n] 1 or 0
  Tensor bias;                     // the same; empty: none
};
std::vector<SequenceRows> sequences(const simdattn::AttentionProblem& problem);

/// parts [P,B,H,n,d_v], lse [P,B,H,n]; sinks [H] or empty.
AttentionResult attention_merge(const Tensor& parts, const Tensor& part_lse, const std::vector<double>& sinks = {});

// Other score functions: [B,Hq,n_q,n_kv] from q [B,Hq,n_q,d_q] and k [B,Hk,n_kv,d_k].

/// -0.5 * |q - k|^2
Tensor gaussian_scores(const Tensor& q, const Tensor& k);
/// q^T M k, m [Hq, d_q, d_k]; magnitude: sum_de |q_d m_de k_e|
Tensor bilinear_scores(const Tensor& q, const Tensor& m, const Tensor& k, Tensor* magnitude = nullptr);
/// weights[h] x[b,h,i,:] for x [B,H,n,d_in], weights [H,d,d_in]
Tensor project(const Tensor& x, const Tensor& weights);
/// w^T tanh(q + k), both already projected, w [Hq, d]
Tensor additive_scores(const Tensor& q, const Tensor& k, const Tensor& w);

}  // namespace reference
