// The contract between drivers and micro-kernels: one pointer per slot, one table per target.
//
// Every slot has one definition (lib/scalar/ukernels.cc) and returns its bits on every target with fused multiply-add.
// Slots check nothing: drivers pass valid sizes. Sizes of zero are legal and do nothing. A slot reads exactly the
// elements that its arguments describe (tails by partial loads) and writes exactly its outputs. Typed slots are arrays
// indexed by storage type in the order of DType: f32, bf16, f16. "NaN" on output is always the canonical quiet NaN.
//
// The sum of n numbers is taken in 16 partial sums (element i goes to partial i mod 16), folded 8, 4, 2, 1.
#ifndef SIMDATTN_LIB_UKERNELS_H_
#define SIMDATTN_LIB_UKERNELS_H_

#include <cstddef>
#include <cstdint>

#include "include/simdattn/simdattn.h"

namespace simdattn {

/// Storage types a typed slot is indexed by: size_t(DType) of f32, bf16, f16.
inline constexpr size_t kStorageTypes = 3;
/// Width in columns of a group of packed values; the register tile's columns on every target divide it.
inline constexpr int64_t kValueGroup = 32;

/// scores of `n_q` query rows (f32) against `n_k` row-major keys: s = scale * sum_d q k, the sum as above with fma.
struct ScoreRows {
  const float* q;
  int64_t ldq;
  int64_t n_q;
  const void* k;
  int64_t ldk;
  int64_t n_k;
  int64_t dim;
  float scale;
  float* s;  // [n_q][lds]; NaN canonical
  int64_t lds;
};

/// s = the sum of w_d tanh(q_d + k_d), as above with fma(w_d, tanh, sum). `rows.scale` is not used.
struct AdditiveRows {
  ScoreRows rows;
  const float* w;
  int64_t ldw;  // from query row to query row
};

/// y[r] = x[r] + p[r] for `rows` rows.
struct AddRows {
  const void* x;
  const float* p;
  void* y;           // may be x
  int64_t x_stride;  // elements between rows
  int64_t p_stride;
  int64_t y_stride;
  int64_t rows;
  int64_t dim;
};

/// Softmax over columns [lo, hi) of `rows` rows, in row r [lo + r * lo_step, hi + r * hi_step); the other columns of y
/// become +0. The partial sums count columns from 0, so the bits do not depend on how a masked column came to be masked. y
/// may be x.
///   t = scale * x; m = max(t, sink); l = sum exp(t - m) + exp(sink - m); y = exp(t - m) * (1 / l)
/// m = -inf (nothing visible, no sink): y = 0, max = -inf, sum = 0. NaN in l: y is NaN in all n columns.
struct SoftmaxRows {
  /// What the caller reads after this call, fetched into the cache while exponentials are computed: for row r and column
  /// c the line of data + r * row_bytes + c * column_bytes. Null: nothing.
  struct Next {
    const void* data;
    int64_t row_bytes;
    int64_t column_bytes;
  };

  const float* x;
  int64_t ldx;
  float* y;
  int64_t ldy;
  int64_t rows;
  int64_t n;
  int64_t lo;
  int64_t hi;
  int64_t lo_step;
  int64_t hi_step;
  float scale;
  float sink;              // -inf: none
  const float* known_max;  // max of scale * x per row where an earlier pass has it (then scale is 1), else null
  float* max;              // [rows] m and l for the log-sum-exp; null: not wanted
  float* sum;
  Next next[2];
};

/// What happens to the scores of one query row beside scale and interval. Pointers are at key 0 of the row.
struct RowModifiers {
  float softcap;     // 0: none
  float slope;       // 0: none; t += -(slope * |position - key|)
  int32_t position;  // of the row
  DType bias_dtype;
  const void* bias;     // null: none; -inf masks
  const uint8_t* keep;  // null: none; 0 masks
  const uint8_t* bits;  // null: none; bit 0 is key first_bit; keys before it are visible
  int64_t first_bit;
};
struct ModifyRow {
  RowModifiers row;
  const float* x;  // column c is key first_key + c
  float* t;        // may be x
  int64_t first_key;
  int64_t lo;  // columns to treat: [lo, hi)
  int64_t hi;
  float scale;
  bool note_masked;
};
struct ModifyResult {
  float max;    // of t over [lo, hi), NaN ignored; -inf if nothing is visible
  bool masked;  // with note_masked: a key of [lo, hi) was masked (its t is -inf); else unspecified
};

/// s[r][32 p + j] = scale * (one fma chain over the dimension, from 0, ascending) for f32 queries and key panels.
struct ScoreTile {
  const float* q;
  int64_t ldq;
  int64_t rows;
  const void* panels;
  int64_t panel_stride;  // elements
  int64_t n_panels;
  int64_t dim;
  float scale;
  float* s;
  int64_t lds;
  bool stream;  // the panels come from beyond the caches: prefetch
};

/// One block of the online softmax over `columns` (a multiple of 16, at most kKeyBlock) columns. Row r sees [lo[r],
/// hi[r]); the weights of all other columns become +0. With m' = max(m, max of visible s):
///   alpha = exp(m - m'), w = exp(s - m'), sum = fma(sum, alpha, sum of w), m = m'
/// where m' = -inf is taken as 0 inside the exponentials.
struct SoftmaxTile {
  float* s;  // scores in, weights out
  int64_t lds;
  int64_t rows;
  int64_t columns;
  const int32_t* lo;
  const int32_t* hi;
  float* max;    // [rows] in and out
  float* sum;    // [rows] in and out
  float* alpha;  // [rows] out
};

/// o[r][c] = alpha[r] * o[r][c], then fma(w[r][j], v[j][c], o[r][c]) for ascending j. Column c of key j is
/// v[j * key_stride + (c / 32) * group_stride + c % 32]: rows have group_stride 32, packed values 32 * kKeyBlock.
struct ValueTile {
  const float* w;
  int64_t ldw;
  int64_t rows;
  const void* v;
  int64_t key_stride;
  int64_t group_stride;
  int64_t keys;
  int64_t dim;
  float* o;
  int64_t ldo;
  const float* alpha;  // null: 1
  bool stream;
};

/// Rotates the pairs of `heads` rows that stand at one position and copies the dimensions outside [first, first+2 half)
/// unless x and y are the same memory. y0 = fma(x0, c, -(x1 s)), y1 = fma(x0, s, x1 c); s is negated if `inverse`.
struct RopeHeads {
  const void* x;
  void* y;
  int64_t x_stride;  // elements between heads
  int64_t y_stride;
  int64_t heads;
  int64_t dim;
  int64_t first;
  int64_t half;      // pairs
  const float* cos;  // [half]
  const float* sin;
  bool interleaved;
  bool inverse;
};

struct UKernels {
  /// Query rows that one register tile of score_tile and value_tile takes.
  int64_t tile_rows;

  void (*score_rows[kStorageTypes])(const ScoreRows&);
  /// score_rows with the sum of (q - k)^2: fma(difference, difference, sum).
  void (*gaussian_rows[kStorageTypes])(const ScoreRows&);
  void (*additive_rows[kStorageTypes])(const AdditiveRows&);
  void (*softmax_rows)(const SoftmaxRows&);
  ModifyResult (*modify_row)(const ModifyRow&);

  void (*score_tile[kStorageTypes])(const ScoreTile&);
  void (*softmax_tile)(const SoftmaxTile&);
  void (*value_tile[kStorageTypes])(const ValueTile&);

  /// `keys` <= 32 row-major keys into one f32 panel [dim][32]; columns past `keys` become 0. `stream`: the keys come from
  /// beyond the caches, and 32 rows more lie below: prefetch those.
  void (*pack_keys[kStorageTypes])(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel,
                                   bool stream);
  /// One panel of the type's own layout into an f32 panel.
  void (*widen_panel[kStorageTypes])(const void* panel, int64_t dim, float* out);
  /// `keys` <= kKeyBlock rows of values into f32 groups [ceil(dim/32)][kKeyBlock][32]; columns past dim become 0.
  void (*pack_values[kStorageTypes])(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* out);
  /// n elements to f32.
  void (*widen[kStorageTypes])(const void* in, float* out, int64_t n);
  /// out = (in + 0) * factor, rounded to the type; NaN canonical. (+0 turns -0 into +0.)
  void (*finish[kStorageTypes])(const float* in, float factor, void* out, int64_t n);
  /// True if no element of `keys` rows is NaN or infinite.
  bool (*all_finite[kStorageTypes])(const void* rows, int64_t token_stride, int64_t keys, int64_t dim);
  /// True if an element equals zero.
  bool (*any_zero)(const float* w, int64_t n);
  /// a[i] = fma(a[i], wa, b[i] * wb)
  void (*merge)(float* a, float wa, const float* b, float wb, int64_t n);

  /// [type of x][type of y]
  void (*rope_heads[kStorageTypes][kStorageTypes])(const RopeHeads&);

  /// [type of x][type of y]
  void (*add_rows[kStorageTypes][kStorageTypes])(const AddRows&);

  /// Element by element: the library's exponential (x <= 88) and hyperbolic tangent.
  void (*exp)(const float* x, float* y, int64_t n);
  void (*tanh)(const float* x, float* y, int64_t n);
};

}  // namespace simdattn

#endif  // SIMDATTN_LIB_UKERNELS_H_
