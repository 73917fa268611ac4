// simdattn: the CPU kernels inside transformer attention.
//
// Conventions that hold for every function of this header:
//
//  - Shapes are [batch, heads, rows, dim]; strides count elements, may be anything (0 broadcasts an input, negative
//    walks backwards) except that the last dimension is contiguous. Data may have any alignment that its type allows.
//  - All arithmetic is f32; a narrower storage type is widened on load and rounded to nearest even on store.
//  - The caller owns memory and threads: no call allocates, locks, throws, logs, or starts a thread.
//  - A call either does everything or returns a Status that names the argument and the rule, having written nothing.
//  - Output may not overlap input or other output unless a function says otherwise.
//  - Results are one bit pattern on every CPU with fused multiply-add (docs/numerics.md); a NaN result is 0x7FC00000
//    (rounded to the storage type), a masked key has no influence whatever its bytes hold.
#ifndef SIMDATTN_SIMDATTN_H_
#define SIMDATTN_SIMDATTN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>

#define SIMDATTN_VERSION_MAJOR 0
#define SIMDATTN_VERSION_MINOR 1
#define SIMDATTN_VERSION_PATCH 0

namespace simdattn {

// ---------------------------------------------------------------------------------------------------------------------
// Storage types

/// The upper half of an f32: 8 exponent bits, 7 stored significand bits.
struct bf16 {
  uint16_t bits;
};
/// IEEE 754 binary16.
struct f16 {
  uint16_t bits;
};

enum class DType : uint8_t { kF32, kBF16, kF16, kU8, kI32, kI64 };

template <class T>
inline constexpr DType kDTypeOf = [] {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>) return DType::kF32;
  else if constexpr (std::is_same_v<U, bf16>) return DType::kBF16;
  else if constexpr (std::is_same_v<U, f16>) return DType::kF16;
  else if constexpr (std::is_same_v<U, uint8_t> || std::is_same_v<U, bool>) return DType::kU8;
  else if constexpr (std::is_same_v<U, int32_t>) return DType::kI32;
  else {
    static_assert(std::is_same_v<U, int64_t>, "not a storage type of simdattn");
    return DType::kI64;
  }
}();

// ---------------------------------------------------------------------------------------------------------------------
// Views

/// Typed at run time, shaped, strided; owns nothing. `data == nullptr` means "absent" where an argument is optional.
template <int kRank, bool kConst>
struct BasicView {
  using Pointer = std::conditional_t<kConst, const void*, void*>;
  Pointer data = nullptr;
  DType dtype = DType::kF32;
  std::array<int64_t, kRank> shape{};
  std::array<int64_t, kRank> stride{};  // in elements

  constexpr BasicView() = default;
  constexpr BasicView(Pointer d, DType t, const std::array<int64_t, kRank>& sh, const std::array<int64_t, kRank>& st)
      : data(d), dtype(t), shape(sh), stride(st) {}
  /// Contiguous, last dimension fastest.
  constexpr BasicView(Pointer d, DType t, const std::array<int64_t, kRank>& sh) : data(d), dtype(t), shape(sh) {
    uint64_t step = 1;  // unsigned: a nonsensical shape wraps here and is refused by the call that takes the view
    for (int i = kRank; i-- > 0;) {
      stride[static_cast<size_t>(i)] = static_cast<int64_t>(step);
      step *= static_cast<uint64_t>(sh[static_cast<size_t>(i)]);
    }
  }
  /// A mutable view converts to a const one.
  template <bool kOther>
    requires(kConst && !kOther)
  constexpr BasicView(const BasicView<kRank, kOther>& v)  // NOLINT(google-explicit-constructor): as T* to const T*
      : data(v.data), dtype(v.dtype), shape(v.shape), stride(v.stride) {}
};
template <int kRank>
using View = BasicView<kRank, false>;
template <int kRank>
using ConstView = BasicView<kRank, true>;

/// view(p, {2, 8, 16, 64}) is a contiguous View<4> of p's element type; a second list gives the strides.
template <class T, size_t kRank>
constexpr auto view(T* data, const int64_t (&shape)[kRank]) {
  constexpr int kR = static_cast<int>(kRank);
  return BasicView<kR, std::is_const_v<T>>(data, kDTypeOf<T>, std::to_array(shape));
}
template <class T, size_t kRank>
constexpr auto view(T* data, const int64_t (&shape)[kRank], const int64_t (&stride)[kRank]) {
  constexpr int kR = static_cast<int>(kRank);
  return BasicView<kR, std::is_const_v<T>>(data, kDTypeOf<T>, std::to_array(shape), std::to_array(stride));
}

// ---------------------------------------------------------------------------------------------------------------------
// Status

enum class Code : uint8_t {
  kOk = 0,
  kNullPointer,  // a pointer is null although its size is not zero
  kShape,        // shapes are negative, zero where forbidden, too large, or disagree
  kStride,       // the last dimension is not contiguous, or strides make an output's elements coincide
  kDType,        // the type is not accepted there
  kOverlap,      // an output shares bytes with another argument
  kRange,        // a number is outside its range (scale, softcap, offset, a position, a table entry)
  kWorkspace,    // Exec::workspace is null or too small
  kTarget,       // unknown target, or one that this CPU cannot run
};

/// The outcome of a call. `detail` is a string of static storage duration: argument, rule.
struct [[nodiscard]] Status {
  Code code = Code::kOk;
  const char* detail = "";
  constexpr bool ok() const { return code == Code::kOk; }
};

// ---------------------------------------------------------------------------------------------------------------------
// Targets

/// One implementation of all kernels for one instruction set, such as "highway/avx2" or "scalar".
struct Target;

/// Every compiled target, best first; "scalar" is last and always runnable.
std::span<const Target* const> targets();
const char* name(const Target& target);
/// True if this CPU and operating system can execute the target.
bool runnable(const Target& target);
/// True if the target has fused multiply-add, and so returns the bits of the definition.
bool exact(const Target& target);
/// Looks a target up by its full name. kTarget if it is unknown or not runnable here; `detail` then lists the names that
/// are good on this machine.
Status find_target(const char* name, const Target** target);
/// SIMDATTN_TARGET from the environment (read once, at the first call that needs it) or else the first runnable target.
/// A name there that cannot run is a kTarget status from every call that relies on the default; never a fallback.
Status default_target(const Target** target);
/// "0.1.0"
const char* version();

/// How to execute a call.
struct Exec {
  const Target* target = nullptr;  // null: the default target
  void* workspace = nullptr;       // bytes of any alignment, needed only by the functions that say so
  size_t workspace_bytes = 0;
};

// ---------------------------------------------------------------------------------------------------------------------
// Scoring: what happens to a score between the dot product and the exponential, and which keys a row sees

/// `offset` value: row i stands at position i + n_kv - n_q, the last row at the last key (n_kv: the sequence's length).
inline constexpr int64_t kBottomRight = std::numeric_limits<int64_t>::min();

/// Bits, little-endian in bytes, rows byte-aligned; 1 = attend. Column c of the mask is key `n_kv - columns + c`; keys
/// before the first column are visible. So `columns = n_kv` is a full mask and a smaller one the tail of a token tree.
struct BitMask {
  const uint8_t* data = nullptr;
  int64_t columns = 0;
  std::array<int64_t, 3> stride{};  // bytes between batches, heads and rows; 0 broadcasts
};

/// For score s of query row i, key j, with p = i + offset, in this order:
///   t = scale * s;  t = softcap * tanh(t / softcap) if softcap > 0;  t += -(slope_h * |p - j|);  t += bias_ij
/// A key is visible if every rule given below allows it. Rows without a visible key give output 0 and lse = -inf (with a
/// sink: lse = sink). Arrays indexed by sequence have one entry per batch entry.
struct Scoring {
  std::optional<float> scale{};         // finite, any sign; default 1/sqrt(d_qk), for masked_softmax 1
  float softcap = 0;                    // finite, >= 0; 0 = none
  bool causal = false;                  // j <= p
  int64_t offset = kBottomRight;        // position of row 0; top-left causal is 0; |offset| <= 2^30, never clamped
  int64_t window_left = -1;             // j >= p - window_left; -1 = unbounded. "sliding_window = W" is W - 1
  int64_t window_right = -1;            // j <= p + window_right; -1 = unbounded
  int64_t chunk = 0;                    // floor(j / chunk) == floor(p / chunk); 0 = none
  const int32_t* prefix_end = nullptr;  // [batch] prefix-LM: j <= max(p, prefix_end - 1); takes the place of causal
  const int32_t* kv_start = nullptr;    // [batch] j >= kv_start
  const int32_t* kv_length = nullptr;   // [batch] j < kv_length; in 0..n_kv; also the n_kv of kBottomRight and BitMask
  ConstView<4> bias{};  // f32, bf16 or f16, [batch, heads, n_q, n_kv], stride 0 broadcasts; -inf = masked
  ConstView<4> keep{};  // u8, the same shape; 0 = masked, anything else attends
  BitMask bits{};
  const float* alibi_slopes = nullptr;  // [heads]
  const float* sinks = nullptr;         // [heads] one logit more in the denominator; not scaled, capped or masked
};

/// slopes[h] of ALiBi for `heads` heads (Press et al. 2022; any number of heads): with n = 2^floor(log2 heads),
/// 2^(-8(h+1)/n) for h < n, else 2^(-4(2(h-n)+1)/n). Within 1 ulp. kShape if heads < 1, kNullPointer.
Status alibi_slopes(int64_t heads, float* slopes);

// ---------------------------------------------------------------------------------------------------------------------
// The unfused kernels

/// out[b,h,i,j] = scale * sum_d q[b,h,i,d] k[b,h/G,j,d].
/// Shapes: q [B,Hq,n_q,d], k [B,Hk,n_kv,d], out f32 [B,Hq,n_q,n_kv]; G = Hq/Hk whole; d >= 1; n_q, n_kv >= 0.
/// q and k f32, bf16 or f16, any mixture. Scale finite, default 1/sqrt(d).
/// Error: |out - exact| <= (ceil(d/16) + 5) * 2^-24 * |scale| * sum |q_d k_d|.
Status scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out, std::optional<float> scale = {},
              const Exec& exec = {});

/// out[r,j] = exp(x[r,j] - max_r) / sum_j exp(x[r,j] - max_r); lse[r] = max_r + ln(sum).
/// Shapes: x, out f32 [rows, n], lse f32 [rows] (optional). `out` may be exactly x (same data and strides).
/// A row of -inf (or n = 0) gives zeros and lse -inf; NaN or +inf in a row make all of the row and its lse NaN.
/// Relative error of out[r,j]: at most (|x[r,j] - max_r| + ln n + n/16 + 14) * 2^-24; measured 5.5 ulp for scores within 5
/// of the maximum (the difference to the maximum is rounded once, and exp turns that into a relative error).
Status softmax(const ConstView<2>& x, const View<2>& out, const View<1>& lse = {}, const Exec& exec = {});

/// Softmax of raw scores with everything in Scoring. Masked entries of out are +0, but for rows with a visible NaN or
/// +inf: all of such a row and its lse are NaN.
/// Shapes: x, out f32 [B,Hq,n_q,n_kv], lse f32 [B,Hq,n_q] (optional). `out` may be exactly x.
Status masked_softmax(const ConstView<4>& x, const View<4>& out, const Scoring& scoring = {}, const View<3>& lse = {},
                      const Exec& exec = {});

/// out[b,h,i,:] = sum_j p[b,h,i,j] v[b,h/G,j,:]. A key whose weight is exactly zero has no influence, NaN or not.
/// Shapes: p f32 [B,Hq,n_q,n_kv], v [B,Hk,n_kv,d_v], out [B,Hq,n_q,d_v]; v and out f32, bf16 or f16.
/// Error: |out - exact| <= n_kv * 2^-24 * sum_j |p_j v_j|, plus half a unit in the last place of out's type.
Status weighted_values(const ConstView<4>& p, const ConstView<4>& v, const View<4>& out, const Exec& exec = {});

// ---------------------------------------------------------------------------------------------------------------------
// Other score functions: in the place of scores(), before the same softmax and weighted_values
//
// Shapes: q [B,Hq,n_q,d_q], k [B,Hk,n_kv,d_k], out f32 [B,Hq,n_q,n_kv]; G = Hq/Hk whole; query head h reads key head h / G;
// dimensions >= 1. q, k and weights f32, bf16 or f16, any mixture; weights are broadcast over heads by stride 0.

/// out[b,h,i,j] = scale * -0.5 * sum_d (q[b,h,i,d] - k[b,h/G,j,d])^2; d_q = d_k. After a softmax: Nadaraya-Watson regression
/// with a Gaussian kernel; scale is 1 / bandwidth^2, finite, default 1.
/// Error: |out - exact| <= (ceil(d/16) + 7) * 2^-24 * |out|: no digits cancel.
Status gaussian_scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out,
                       std::optional<float> scale = {}, const Exec& exec = {});

/// out[b,h,i,j] = scale * q[b,h,i,:]^T m[h,:,:] k[b,h/G,j,:] ("general" attention, Luong et al. 2015); q and k may differ in
/// dimension. m [Hq,d_q,d_k]; scale finite, default 1. Needs bilinear_scores_workspace() bytes of Exec::workspace.
/// Error: |out - exact| <= (d_q + ceil(d_k/16) + 5) * 2^-24 * |scale| * sum |q_d m_de k_e|.
Status bilinear_scores(const ConstView<4>& q, const ConstView<3>& m, const ConstView<4>& k, const View<4>& out,
                       std::optional<float> scale = {}, const Exec& exec = {});
size_t bilinear_scores_workspace(int64_t d_q, int64_t d_k);

/// out[b,h,i,j] = sum_e w[h,e] tanh(a_e + b_e), with a = wq[h] q[b,h,i,:] and b = wk[h/G] k[b,h/G,j,:] (Bahdanau et al. 2015).
/// w f32 [Hq,d]; wq [Hq,d,d_q] and wk [Hk,d,d_k], rows as in a PyTorch Linear layer. Each of wq and wk may be absent: then q
/// (or k) is projected already and its dimension is d. A decoder projects its keys once and passes wq alone.
/// With wq or wk, needs additive_scores_workspace() bytes of Exec::workspace (d_q = 0 without wq, d_k = 0 without wk).
/// Error for projected q and k: |out - exact| <= (ceil(d/16) + 7) * 2^-24 * sum |w_e|; a projection adds
/// (ceil(d_q/16) + 5) * 2^-24 * sum_e |w_e| sum_d |wq_ed q_d|, that of k likewise.
Status additive_scores(const ConstView<4>& q, const ConstView<4>& k, const ConstView<2>& w, const View<4>& out,
                       const ConstView<3>& wq = {}, const ConstView<3>& wk = {}, const Exec& exec = {});
size_t additive_scores_workspace(int64_t d_q, int64_t d_k, int64_t d);

// ---------------------------------------------------------------------------------------------------------------------
// Positions that are added

/// out = x + p, element by element: learned or sinusoidal positions, any broadcasting by stride 0.
/// Shapes: x, p, out [B,H,n,d] f32, bf16 or f16, any mixture. `out` may be exactly x.
Status add_rows(const ConstView<4>& x, const ConstView<4>& p, const View<4>& out, const Exec& exec = {});

// ---------------------------------------------------------------------------------------------------------------------
// Rotary position embedding

enum class RopePairing : uint8_t {
  kInterleaved,  // (2i, 2i+1): GPT-J, Meta Llama, ONNX interleaved=1
  kHalfSplit,    // (i, i + r/2): GPT-NeoX, Hugging Face rotate_half, ONNX default
};

struct RopeOptions {
  RopePairing pairing = RopePairing::kHalfSplit;
  int64_t first_dim = 0;  // rotated dimensions are [first_dim, first_dim + 2 * table columns)
  bool inverse = false;   // rotate by the negative angle
};

/// y0 = x0 c - x1 s, y1 = x0 s + x1 c for every pair, with c and s looked up at the row's position; other dimensions are
/// copied. Computed as y0 = fma(x0, c, -(x1 s)), y1 = fma(x0, s, x1 c).
/// Shapes: x, out [B,H,n,d] f32, bf16 or f16 (any mixture); cos, sin f32 [n_positions, r/2]; positions i32 or i64 [B,n],
/// each in [0, n_positions), or absent: row i stands at position i. `out` may be exactly x if the types agree.
Status rope(const ConstView<4>& x, const ConstView<2>& cos, const ConstView<2>& sin, const ConstView<2>& positions,
            const View<4>& out, const RopeOptions& options = {}, const Exec& exec = {});

/// How the inverse frequencies inv_i of a table come from rope_theta; r = 2 * columns, f = factor, i = 0 .. r/2 - 1.
/// Names as "rope_type" of model configuration files ("mrope" is kDefault with mrope_section).
enum class RopeType : uint8_t {
  kDefault,       // rope_theta^(-2i/r) (Su et al. 2021)
  kLinear,        // that / f
  kProportional,  // that / f for i < floor(partial_rotary_factor * r/2), 0 from there: no rotation (Gemma)
  kDynamic,       // rope_theta * (f L/M - (f-1))^(r/(r-2)) in place of rope_theta, L = max(seq_len, M), M =
                  // max_position_embeddings (dynamic NTK)
  kYarn,          // Peng et al. 2023; needs original_max_position_embeddings
  kLlama3,        // Llama 3.1; f = 8 and original_max_position_embeddings = 8192 unless given
  kLongRope,      // default / long_factor[i] if seq_len > original_max_position_embeddings, else / short_factor[i]
};

/// Which position axis a column follows when positions have several (time, height, width).
enum class MropeLayout : uint8_t {
  kContiguous,   // the first mrope_section[0] columns follow axis 0, the next [1] axis 1, ... (Qwen2-VL)
  kInterleaved,  // three axes: column i follows axis 1 if i % 3 == 1 and i < 3 * mrope_section[1], axis 2 if i % 3 == 2
                 // and i < 3 * mrope_section[2], else axis 0 ("mrope_interleaved", Qwen3-VL)
  kAxial,        // contiguous, and each section is a table of its own with r = 2 * its columns: frequencies start again
                 // (vision encoders: {r/4, r/4} with axes y, x). kDefault and kLinear only
};

/// Fields are named like those of model configuration files ("rope_scaling", "rope_parameters"); docs/guide-rope.md has a
/// line for every well-known family. Every field is checked in every type, except that arrays count where they are used.
struct RopeTableOptions {
  double rope_theta = 10000;  // base of the powers, in [1, 1e15]; > 1 for kYarn
  RopeType rope_type = RopeType::kDefault;
  double factor = 0;  // in [1e-3, 1e6], or 0 = not given: kLinear, kDynamic and kYarn need it
  int64_t original_max_position_embeddings = 0;  // length of pre-training; kYarn: else max_position_embeddings
  int64_t max_position_embeddings = 0;           // kDynamic; kLongRope: its ratio to the original one replaces factor
  int64_t seq_len = 0;                           // kDynamic, kLongRope: length that the table is for; 0 = short
  std::optional<double> attention_factor{};      // in (0, 1e6]; multiplies cos and sin; default: see rope_frequencies
  double beta_fast = 32;                         // kYarn: rotations in the original length, beta_fast >= beta_slow > 0
  double beta_slow = 1;
  double mscale = 0;  // kYarn: used if this and mscale_all_dim are given (not 0)
  double mscale_all_dim = 0;
  bool truncate = true;        // kYarn: round the ends of the ramp to whole columns
  double low_freq_factor = 1;  // kLlama3: high_freq_factor >= low_freq_factor > 0
  double high_freq_factor = 4;
  std::span<const double> short_factor{};  // kLongRope: both, r/2 numbers in [1e-3, 1e6]
  std::span<const double> long_factor{};
  std::span<const double> freq_factors{};  // any type: inv_i / freq_factors[i]; r/2 numbers in [1e-3, 1e6] or none
  std::span<const double> inv_freq{};      // kDefault: these instead of powers; r/2 numbers, 0 or in [1e-20, 1e3]
  double partial_rotary_factor = 1;        // kProportional, in (0, 1]; elsewhere r is the rotated part already
  std::array<int64_t, 4> mrope_section{};  // columns per position axis, summing to r/2; all 0 = one axis
  MropeLayout mrope_layout = MropeLayout::kContiguous;
  /// Computes as PyTorch models do, everything in f32: frequencies in Hugging Face's order of operations, the angle
  /// fl(fl(position) * inv_i), its cosine, times fl(attention factor). Far positions differ visibly from the exact ones
  /// (up to 8e-3 at 131071); this is what such a model was trained with.
  bool f32_angles = false;
};

/// The r/2 = inv_freq.size() inverse frequencies of a table, and the number that multiplies its cos and sin (optional):
/// attention_factor if given; else for kYarn g(mscale) / g(mscale_all_dim) if both are given, otherwise g(1), with g(m) =
/// f <= 1 ? 1 : 0.1 m ln f + 1; for kLongRope f <= 1 ? 1 : sqrt(1 + ln f / ln original_max), f = max_position_embeddings /
/// original_max_position_embeddings if the former is given; else 1. f64 values within 1 ulp; with f32_angles, f32 values.
Status rope_frequencies(std::span<double> inv_freq, double* attention_factor, const RopeTableOptions& options = {});

/// cos[p,i] = attention factor * cos(position_p * inv_i) and sin likewise, for positions first, first + 1, ... or for the
/// positions given. Positions are in (-2^31, 2^31).
/// Shapes: cos, sin f32 [n, r/2]; positions i32 or i64 [axes, n], axes = 1 or the number of mrope_section entries up to
/// the last that is not 0 (1: all axes are equal, as in text). cos and sin may be the two halves of rows of one buffer.
/// Within 0.51 ulp at every position, for frequencies up to 16, also where the cosine or sine is near 0.
Status rope_table(const View<2>& cos, const View<2>& sin, const RopeTableOptions& options = {},
                  const ConstView<2>& positions = {}, int64_t first = 0);

/// rope() for callers without a table: cos and sin of each row's position are computed on the way. The same bits as
/// rope_table() and then rope(). A call forms the frequencies first, which takes longer than a position: pass many rows at
/// once, or table.inv_freq from rope_frequencies() (docs/guide-rope.md). The heads of a position share its cos and sin.
/// Shapes: x, out [B,H,n,d]; 2 * pairs rotated dimensions; positions i32 or i64 [axes,B,n] with axes as in rope_table, or
/// absent: row i stands at position i. Positions are in (-2^31, 2^31). `out` may be exactly x if the types agree.
/// More than 1024 pairs need rope_direct_workspace(pairs) bytes of Exec::workspace.
Status rope_direct(const ConstView<4>& x, int64_t pairs, const RopeTableOptions& table, const ConstView<3>& positions,
                   const View<4>& out, const RopeOptions& options = {}, const Exec& exec = {});
size_t rope_direct_workspace(int64_t pairs);

/// Sinusoidal position encoding (Vaswani et al. 2017): out[p,2i] = sin(position_p * base^(-2i/d)), out[p,2i+1] = cos of the
/// same angle. An odd d ends with a sine. Shapes: out f32 [n,d]; positions i32 or i64 [n], or absent: first, first + 1,
/// ...; in (-2^31, 2^31). base in [1, 1e15]. Within 0.51 ulp.
Status sinusoidal_table(const View<2>& out, double base = 10000, const ConstView<1>& positions = {}, int64_t first = 0);

// ---------------------------------------------------------------------------------------------------------------------
// Key/value storage

/// Keys per panel. A panel holds 32 keys dimension by dimension, so that the lanes of a vector are keys:
///   f32 and f16: [panel][d][32];   bf16: [panel][ceil(d/2)][32][2], an odd last dimension paired with zero.
/// A file-format constant: the same on every CPU and in every version.
inline constexpr int64_t kPanelWidth = 32;
/// Keys per block of the online softmax, and per independently computed split; part of the definition of the result.
inline constexpr int64_t kKeyBlock = 256;
inline constexpr int64_t kKeySplit = 1024;

enum class KvLayout : uint8_t { kRows, kPanels };

/// Elements of one panel of keys.
constexpr int64_t panel_elements(DType dtype, int64_t dim) {
  return kPanelWidth * (dtype == DType::kBF16 ? (dim + 1) / 2 * 2 : dim);
}

/// Where keys or values are: one tensor, a ring, or pages behind a table. Values are always rows.
template <bool kConst>
struct BasicKv {
  using Pointer = std::conditional_t<kConst, const void*, void*>;
  Pointer data = nullptr;
  DType dtype = DType::kF32;
  KvLayout layout = KvLayout::kRows;
  int64_t batch = 0;  // sequences (pages do not count here)
  int64_t heads = 0;
  int64_t tokens = 0;  // keys per sequence that can be addressed (the logical length, also of a ring)
  int64_t dim = 0;
  int64_t batch_stride = 0;  // elements between sequences; with a block table, between pages
  int64_t head_stride = 0;
  int64_t token_stride = 0;  // rows: between tokens; panels: between panels
  // Pages: sequence b's token t is token t % page_size of page block_table[b * block_table_stride + t / page_size].
  const int32_t* block_table = nullptr;
  int64_t block_table_stride = 0;
  int64_t page_size = 0;  // panels: a multiple of kPanelWidth
  int64_t n_pages = 0;
  // Ring: token t is at t % ring; only the last `ring` tokens of a sequence exist. panels: a multiple of kPanelWidth.
  int64_t ring = 0;

  constexpr BasicKv() = default;
  /// A plain tensor [batch, heads, tokens, dim].
  template <bool kOther>
    requires(kConst || !kOther)
  constexpr BasicKv(const BasicView<4, kOther>& v)  // NOLINT(google-explicit-constructor): the common case
      : data(v.data),
        dtype(v.dtype),
        batch(v.shape[0]),
        heads(v.shape[1]),
        tokens(v.shape[2]),
        dim(v.shape[3]),
        batch_stride(v.stride[0]),
        head_stride(v.stride[1]),
        token_stride(v.stride[2]) {
    // A last dimension that is not contiguous cannot be expressed; dim -1 makes every call refuse it.
    if (v.stride[3] != 1 && v.shape[3] > 1) dim = -1;
  }
  template <bool kOther>
    requires(kConst && !kOther)
  constexpr BasicKv(const BasicKv<kOther>& o)  // NOLINT(google-explicit-constructor)
      : data(o.data),
        dtype(o.dtype),
        layout(o.layout),
        batch(o.batch),
        heads(o.heads),
        tokens(o.tokens),
        dim(o.dim),
        batch_stride(o.batch_stride),
        head_stride(o.head_stride),
        token_stride(o.token_stride),
        block_table(o.block_table),
        block_table_stride(o.block_table_stride),
        page_size(o.page_size),
        n_pages(o.n_pages),
        ring(o.ring) {}
};
using Kv = BasicKv<false>;
using ConstKv = BasicKv<true>;

/// Contiguous key panels [batch, heads, ceil(tokens/32), panel].
template <class T>
constexpr auto key_panels(T* data, int64_t batch, int64_t heads, int64_t tokens, int64_t dim) {
  BasicKv<std::is_const_v<T>> kv;
  kv.data = data;
  kv.dtype = kDTypeOf<T>;
  kv.layout = KvLayout::kPanels;
  kv.batch = batch;
  kv.heads = heads;
  kv.tokens = tokens;
  kv.dim = dim;
  kv.token_stride = panel_elements(kv.dtype, dim);
  kv.head_stride = (tokens + kPanelWidth - 1) / kPanelWidth * kv.token_stride;
  kv.batch_stride = heads * kv.head_stride;
  return kv;
}

/// Rotates keys on their way into a cache: table and options as for rope().
struct AppendRope {
  ConstView<2> cos{};
  ConstView<2> sin{};
  RopeOptions options{};
};

/// Stores new tokens: token i of sequence b goes to position positions[b,i] of that sequence, converted to the cache's
/// type and layout, keys rotated by that position if `rope` has a table. A negative position, or one whose page is
/// negative in the block table, is skipped.
/// Shapes: rows [B,H,n,dim]; positions i32 or i64 [B,n], each < cache.tokens. Keys and values are two calls.
Status kv_append(const ConstView<4>& rows, const ConstView<2>& positions, const Kv& cache, const AppendRope& rope = {},
                 const Exec& exec = {});

/// Moves tokens first .. last-1 of every sequence by `delta` positions, of either sign (context shift: after tokens
/// 0 .. n-1 were given up, kv_shift(cache, n, length, -n, rope) makes room). With a table in `rope`, keys are also rotated
/// by delta positions: by row |delta|, inversely if delta < 0. The table's frequencies are those the keys were rotated
/// with, its attention factor 1 (the keys have theirs already); one row computed at |delta| will do, in a view whose row
/// stride is 0. Values, and keys without rotation, move without a table.
/// 0 <= first <= last, and all of the tokens' positions before and after are in 0 .. cache.tokens-1. A token is skipped if
/// its old or new page is negative; sequences must not share the pages that the call touches. In a ring, last - first is
/// at most its capacity. Tokens elsewhere keep their bytes, also those that the moved ones leave behind.
/// Error: against the key rotated to its new position exactly, in the norm of each pair of dimensions, a shift adds at most
/// (u + 2^-22) of the pair's norm; u = 2^-24, 2^-8, 2^-11 for f32, bf16, f16 (one more rounding in the cache's type).
Status kv_shift(const Kv& cache, int64_t first, int64_t last, int64_t delta, const AppendRope& rope = {},
                const Exec& exec = {});

// ---------------------------------------------------------------------------------------------------------------------
// Fused attention

/// One attention problem: out = softmax(scoring(q k^T)) v, and its log-sum-exp.
/// Shapes: q [B,Hq,n_q,d_qk], k [B,Hk,n_kv,d_qk], v [B,Hk,n_kv,d_v], out [B,Hq,n_q,d_v], lse f32 [B,Hq,n_q] (optional);
/// G = Hq/Hk whole; query head h reads key head h / G. q, k, v, out f32, bf16 or f16, any mixture; v may alias k.
/// Varlen: with cu_q, q, out and lse are [1,H,total_q,...] and sequence s has rows cu_q[s] .. cu_q[s+1]; with cu_k too, k
/// and v are [1,Hk,total_k,...]; without it k and v are caches whose batch is n_sequences. bias and keep are then
/// [1,Hq,total_q,longest n_kv] and BitMask rows are counted through the whole of q.
/// Raw state: with `acc` (f32 [B,Hq,n_q,d_v]), `max` and `sum` (f32 [B,Hq,n_q]) given, the un-normalised accumulator, the
/// maximum and the sum are written there and `out`/`lse` may be absent.
struct Attention {
  ConstView<4> q{};
  ConstKv k{};
  ConstKv v{};
  View<4> out{};
  View<3> lse{};
  Scoring scoring{};
  const int32_t* cu_q = nullptr;
  const int32_t* cu_k = nullptr;
  int64_t n_sequences = 0;
  View<4> acc{};
  View<3> max{};
  View<3> sum{};
};

/// How a problem divides. Depends on shapes alone, never on the machine or the number of threads.
struct AttentionTasks {
  int64_t tasks = 0;           // run each of 0 .. tasks-1 once, in any order, on any threads
  int64_t reduce_tasks = 0;    // then each of 0 .. reduce_tasks-1 once (0: nothing to reduce)
  size_t workspace_bytes = 0;  // Exec::workspace of each thread; constant in the lengths
  size_t partial_bytes = 0;    // one buffer shared by all tasks of the problem; 0 if nothing is reduced
};
Status attention_tasks(const Attention& problem, AttentionTasks* tasks, const Exec& exec = {});

/// The whole problem on the calling thread; needs AttentionTasks::workspace_bytes of workspace and no partial buffer.
Status attention(const Attention& problem, const Exec& exec);
/// Tasks first .. last-1. `partial`: AttentionTasks::partial_bytes bytes of any alignment, the same for every range.
Status attention_range(const Attention& problem, int64_t first, int64_t last, void* partial, size_t partial_bytes,
                       const Exec& exec);
/// Reduction tasks first .. last-1, after every task has run.
Status attention_reduce(const Attention& problem, int64_t first, int64_t last, const void* partial,
                        size_t partial_bytes, const Exec& exec);

/// Joins partial results over disjoint keys: with m = max lse_p, w_p = exp(lse_p - m),
/// out = sum w_p o_p / sum w_p, lse = m + ln(sum w_p); all -inf gives 0 and -inf. Parts are taken in ascending order.
/// Shapes: parts [P,B,H,n,d_v] f32, bf16 or f16, part_lse f32 [P,B,H,n], out [B,H,n,d_v], lse f32 [B,H,n] (optional).
/// sinks (optional, [H]): applied to the joined result. `out` may be exactly one of the parts.
Status attention_merge(const ConstView<5>& parts, const ConstView<4>& part_lse, const View<4>& out,
                       const View<3>& lse = {}, const float* sinks = nullptr, const Exec& exec = {});

}  // namespace simdattn

#endif  // SIMDATTN_SIMDATTN_H_
