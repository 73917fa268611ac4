// The contract between drivers and micro-kernels: one pointer per slot, one table per target.
//
// Every slot has one definition (lib/definition) and returns its bits on every target with fused multiply-add.
// Slots check nothing: drivers pass valid sizes. Sizes of zero are legal and do nothing. A slot reads exactly the
// elements that its arguments describe (tails by partial loads) and writes exactly its outputs. A slot per element type
// is an array indexed by DType: f32, bf16, f16. Slots per storage type stand in one struct per KvType (KvKernels,
// KvOperands). NaN on output is always the canonical quiet NaN.
//
// Where a comment says "the sum", it has 16 partial sums (element i goes to partial i mod 16), folded 8, 4, 2, 1.
//
// attention() calls the slots of AttentionKernels, near the end of this file. The structs before it are arguments of
// slots; those of linear attention are in state_tiles.h.
#pragma once

#include <iterator>

#include "lib/contract/dtypes.h"
#include "lib/contract/state_tiles.h"

namespace simdattn {

/// Element types that a typed slot is indexed by: size_t(DType) of f32, bf16, f16.
inline constexpr size_t kElementTypes = 3;
/// KV storage types: size_t(KvType). What follows reads the table of types.h.
inline constexpr size_t kKvTypes = std::size(detail::kKvFormats);
/// Types narrower than elements: codes of 8 bits and fewer, times scales.
constexpr bool is_narrow(KvType type) {
  constexpr uint32_t kTypes = detail::kv_types_with([](const detail::KvFormat& f) { return f.bits <= 8; });
  return detail::is_among(kTypes, type);
}
/// Numbers that share a scale inside a row, which is a multiple of them; 1: the type has no scale blocks.
constexpr int64_t block_of(KvType type) {
  constexpr uint32_t kTypes = detail::kv_types_with([](const detail::KvFormat& f) { return f.block > 1; });
  return detail::is_among(kTypes, type) ? detail::KvFormat::kBlock : 1;
}
constexpr bool is_read_only(KvType type) {
  constexpr uint32_t kTypes = detail::kv_types_with([](const detail::KvFormat& f) { return !f.written; });
  return detail::is_among(kTypes, type);
}
/// True if keys of this type can be panels; else they are rows.
constexpr bool has_panels(KvType type) {
  constexpr uint32_t kTypes = detail::kv_types_with([](const detail::KvFormat& f) { return f.in_panel > 0; });
  return detail::is_among(kTypes, type);
}
/// True if kv_append writes the scales of the tokens that it writes.
constexpr bool writes_scales(KvType type) {
  constexpr uint32_t kTypes = detail::kv_types_with([](const detail::KvFormat& f) { return f.scales_chosen; });
  return detail::is_among(kTypes, type);
}
/// Most numbers of a row of a narrow type. A row is treated whole in buffers on the stack, because the scale of
/// int8 depends on all of its numbers.
inline constexpr int64_t kMaxNarrowDim = 8192;
/// Most rows of a task whose scores are in memory at a time: their 68 KiB stay in L2 beside the keys and values of a
/// key block.
inline constexpr int64_t kScoreRows = 64;
/// Half a panel: softmax_tile takes so many columns at a time, one for each partial sum.
inline constexpr int64_t kHalfPanel = kPanelWidth / 2;
/// Numbers of a chain group of kBF16: 16 steps of each of its two chains, which are joined at its end.
inline constexpr int64_t kChainGroup = 32;
/// Width in columns of a group of packed values; the register tile's columns on every target divide it.
inline constexpr int64_t kValueGroup = 32;

/// Where keys and values come from, which says how they are fetched. No result depends on it.
enum class Fetch : uint8_t {
  kNone,      // from the caches: nothing is prefetched
  kMemory,    // from beyond L2: what follows is prefetched
  kPages,     // from beyond L2, on a CPU that is fastest when rows of four memory pages are asked for in turns
  kHardware,  // from beyond L2, on a CPU that is fastest when software prefetches no rows of values that are read whole
};

/// For scores() and its kin: n_q query rows (f32) against n_k keys in rows: s = scale * sum_d q k, the sum with fma.
struct ScoreRows {
  const float* q;
  int64_t ldq, n_q;
  const void* k;
  int64_t ldk, n_k;
  int64_t dim;
  float scale;
  float* s;  // [n_q][lds]; NaN canonical
  int64_t lds;
  Fetch fetch = Fetch::kNone;
};

/// s = the sum of w_d tanh(q_d + k_d), with fma(w_d, tanh, sum). `rows.scale` is not used.
struct AdditiveRows {
  ScoreRows rows;
  const float* w;
  int64_t ldw;  // from query row to query row
};

/// y[r] = x[r] + p[r] for `rows` rows.
struct AddRows {
  const void* x;
  const float* p;
  void* y;                               // may be x
  int64_t x_stride, p_stride, y_stride;  // elements between rows
  int64_t rows, dim;
};

/// Softmax over columns [lo, hi) of `rows` rows, in row r [lo + r * lo_step, hi + r * hi_step); the other columns of y
/// become +0. The partial sums count columns from 0, so the bits do not depend on how a masked column came to be
/// masked. y may be x.
///   t = scale * x; m = max(t, sink); l = sum exp(t - m) + exp(sink - m); y = exp(t - m) * (1 / l)
/// m = -inf (nothing visible, no sink): y = 0, max = -inf, sum = 0. NaN in l: y is NaN in all n columns.
struct SoftmaxRows {
  const float* x;
  int64_t ldx;
  float* y;
  int64_t ldy;
  int64_t rows, n;
  int64_t lo, hi;
  int64_t lo_step = 0, hi_step = 0;
  float scale = 1;
  float sink;                            // -inf: none
  const float* known_max = nullptr;      // max of scale * x per row where an earlier pass has it (then scale is 1)
  float *max = nullptr, *sum = nullptr;  // [rows] m and l for the log-sum-exp; null: not wanted
};

/// What happens to the scores of one query row beside scale and interval. Pointers are at key 0 of the row.
struct RowModifiers {
  float softcap;     // 0: none
  float slope;       // 0: none; t += -(slope * |position - key|)
  int32_t position;  // of the row
  float bias_scale;  // multiplies the bias, but for -inf
  DType bias_dtype;
  const void* bias;     // null: none; -inf masks
  const uint8_t* keep;  // null: none; 0 masks
  const uint8_t* bits;  // null: none; bit 0 is key first_bit; keys before it are visible
  int64_t first_bit;
  // True if bias or keep is one number for all keys. No slot looks at these: modify() in drivers/shared/modifiers.h
  // repeats the number first.
  bool one_bias;
  bool one_keep;
};
/// t = x with softcap, ALiBi, bias and masks of one row.
struct ModifyRow {
  RowModifiers row;
  const float* x;  // column c is key first_key + c
  float* t;        // may be x
  int64_t first_key;
  int64_t lo, hi;  // columns to treat: [lo, hi)
  float scale;
};
struct ModifyResult {
  float max;    // of t over [lo, hi), NaN ignored; -inf if nothing is visible
  bool masked;  // a key of [lo, hi) was masked: its t is -inf
};

/// s[r][32 p + j] = the score of prepared query r and key j of panel p, as the arithmetic defines it.
struct ScoreTile {
  const void* q;
  int64_t q_stride;  // bytes
  int64_t rows;
  const void* panels = nullptr;
  int64_t panel_stride = 0;       // bytes
  const float* scales = nullptr;  // [32 n_panels] of panels of types whose scales stand apart; else null
  int64_t n_panels = 0;
  int64_t dim = 0;
  float scale;
  float* s;
  int64_t lds;
  /// The scale is left out, because softmax_tile multiplies by it: with AttentionKernels::scales_in_softmax alone.
  bool unscaled = false;
  Fetch fetch = Fetch::kNone;
  /// For score_rows: keys per pass, 16 or 32. No result depends on it.
  int64_t keys_at_once = kPanelWidth;
  /// For score_rows with KvOperands::takes_lists: where the 32 rows of one panel are, instead of `panels`; then where
  /// 32 are that are wanted later.
  const char* const* listed = nullptr;
  /// For score_rows: memory of kScoreRowPanels panels of the storage type, at a multiple of 64 bytes.
  char* scratch = nullptr;

  bool fetches() const { return fetch != Fetch::kNone; }
};

/// One step of the online softmax over `columns` (a multiple of 16, at most kKeyBlock) columns. Row r sees [lo[r],
/// hi[r]); the weights of all other columns become +0. With m' = max(m, max of visible s):
///   alpha = exp(m - m'), w = exp(s - m'), sum = fma(sum, alpha, sum of w), m = m'
/// where m' = -inf is taken as 0 inside the exponentials.
struct SoftmaxTile {
  float* s;  // scores in, weights out
  int64_t lds;
  int64_t rows, columns;
  const int32_t *lo, *hi;
  float *max, *sum;  // [rows] in and out
  float* alpha;      // [rows] out
  float scale = 1;   // with scores that are ScoreTile::unscaled: theirs, positive and normal
};

/// o[r][c] = alpha[r] * o[r][c] + the sum of w[r][j] * v[j][c], as the arithmetic defines it; in f32 fma(w[r][j],
/// v[j][c], o[r][c]) for ascending j. Columns 32 g .. 32 g + 31 of key j are at v + j * key_stride + g * group_stride.
/// In kBF16 a zero may lose its sign where values of f32 are not packed; finish leaves no -0 anyway.
struct ValueTile {
  const float* w;
  int64_t ldw;
  int64_t rows;
  const void* v;
  const float* scales = nullptr;             // [keys] of rows whose scales stand apart; else null
  int64_t first_key = 0;                     // the first key's column in its key block
  int64_t key_stride = 0, group_stride = 0;  // bytes
  int64_t keys;  // at most kKeyBlock, but for rows of f32, bf16 and f16 in kF32 (weighted_values)
  int64_t dim;
  float* o;
  int64_t ldo;
  const float* alpha = nullptr;  // null: 1
  /// For value_packed: in the chain groups of these keys all values are packed and finite, and weights of other keys
  /// are 0, so they may be added too. (In general such values are anything, and 0 times NaN is NaN.)
  bool whole_groups = false;
  Fetch fetch = Fetch::kNone;
  /// With KvOperands::takes_lists: where the rows of at most 32 keys are, instead of v; 32 further on where as many
  /// rows are that are wanted later. dim is whole groups of kValueGroup then.
  const char* const* listed = nullptr;

  bool fetches() const { return fetch != Fetch::kNone; }
};

/// Joins the scores of some heads: y[c] = fma(weights[r], t, y[c]) for ascending rows r, t = relu ? (s > 0 ? s : 0) :
/// s; with `largest` t > y[c] ? t : y[c]. Starts from +0, or -inf with `largest`.
struct JoinRows {
  const float* s;
  int64_t lds;
  int64_t rows, columns;
  const float* weights;  // null: 1
  bool relu, largest;
  bool more;  // y holds the outcome of earlier rows
  float* y;
};

/// Rotates the pairs of `heads` rows that stand at one position and copies the dimensions outside [first, first+2 half)
/// unless x and y are the same memory. y0 = fma(x0, c, -(x1 s)), y1 = fma(x0, s, x1 c); s is negated if `inverse`.
struct RopeHeads {
  const void* x = nullptr;
  void* y = nullptr;
  int64_t x_stride = 0, y_stride = 0;  // elements between heads
  int64_t heads = 1;
  int64_t dim, first;
  int64_t half;                                // pairs
  const float *cos = nullptr, *sin = nullptr;  // [half]
  bool interleaved, inverse;
};

/// Stores `tokens` rows in a KV storage type. Rows of f32 are rounded to nearest even, NaN canonical (narrow types: as
/// lib/definition/narrow.h says); rows that are of the storage type already are copied bit by bit.
/// Rows: token i at out + i * stride. Panels: token i is column `column` + i of the panels that begin at `out`,
/// `stride` bytes apart; other columns keep their bytes, but for the zero that an odd last dimension of bf16 is paired
/// with.
struct StoreRows {
  const void* rows;
  int64_t ld = 0;  // bytes between tokens
  int64_t tokens, dim;
  void* out;
  int64_t stride = 0;       // bytes between rows; between panels
  int64_t column = 0;       // panels: of the first token, in 0 .. 31
  bool as_stored = false;   // rows are of the storage type, else f32
  float* scales = nullptr;  // [tokens] of types whose scales stand apart: written by int8; not used if as_stored
};

/// The inverse: rows of f32, or of the storage type, from a KV storage type.
struct LoadRows {
  const void* in;
  int64_t stride = 0;  // bytes between rows; between panels
  int64_t column = 0;  // panels: of the first token, in 0 .. 31
  int64_t tokens, dim;
  void* rows;
  int64_t ld = 0;  // bytes between tokens
  bool as_stored = false;
  const float* scales = nullptr;  // [tokens] of types whose scales stand apart
};

/// `keys` rows of a KV storage type.
struct FiniteRows {
  const void* rows;
  int64_t token_stride;           // bytes
  const float* scales = nullptr;  // [keys] of types whose scales stand apart; else null
  int64_t keys, dim;
};

// ---- Tables ---------------------------------------------------------------------------------------------------------

/// What depends on how keys and values are stored, and not on the arithmetic.
struct KvKernels {
  /// True if every number is finite, and stays so when it is rounded to bf16. Of numbers near overflow narrow types may
  /// say false.
  bool (*all_finite)(const FiniteRows&);
  /// Null: the stores of types that are read only, and stores and loads of panels of types that have none.
  void (*store_rows)(const StoreRows&);
  void (*store_panels)(const StoreRows&);
  void (*load_rows)(const LoadRows&);
  void (*load_panels)(const LoadRows&);
};

/// `keys` <= 32 row-major keys, or one panel of the storage type, into one packed panel; columns past `keys` become 0.
struct PackKeys {
  const void* from;
  int64_t token_stride;           // bytes; of rows
  const float* scales = nullptr;  // [keys] of types whose scales stand apart; else null
  int64_t keys;                   // of rows; of a panel all columns
  int64_t dim;
  void* panel;
  bool stream = false;  // the keys come from beyond the CPU caches, and 32 rows more lie below: prefetch those
};

/// Dimensions [column, column + columns) of `keys` rows of values, of which the first is key `first` of its key block,
/// into packed values of that many dimensions. `column` is a multiple of kValueGroup.
struct PackValues {
  const void* rows;
  int64_t token_stride;           // bytes
  const float* scales = nullptr;  // [keys] of types whose scales stand apart; else null
  int64_t first, keys;
  int64_t dim;  // of a row: what is derived from a row (the scale of integers) is derived from all of it
  int64_t column, columns;
  void* packed;
};

/// Up to so many rows, keys and values are read in place where there are slots for that. For more they are packed once
/// per key block, because each register tile would convert them again.
inline constexpr int64_t kDirectRows = 12;
/// Most query rows of KvOperands::score_rows.
inline constexpr int64_t kMostScoreRows = 4;
/// Most query rows of AttentionKernels::of_few_rows.
inline constexpr int64_t kFewRows = 4;
/// ScoreTile::scratch in panels of the storage type: two tiles of the widest vectors. The packed panels of a key block,
/// which lend their memory, are larger.
inline constexpr int64_t kScoreRowPanels = 4;
/// score_rows reads keys in pieces of kDirectRowDims dimensions, up to kMostDirectRowDims in all.
inline constexpr int64_t kDirectRowDims = 16, kMostDirectRowDims = 576;
constexpr bool can_read_rows_in_place(int64_t dim) { return dim % kDirectRowDims == 0 && dim <= kMostDirectRowDims; }

/// How one arithmetic multiplies keys and values of one storage type. Where a slot is null,
/// lib/drivers/shared/operands.h loads rows as f32 and calls the slot of kv[kF32]; so a storage type is complete once
/// it can be loaded.
struct KvOperands {
  int64_t (*panel_bytes)(int64_t dim);  // of a packed panel of kPanelWidth keys
  /// Keys in packed panels.
  void (*score_packed)(const ScoreTile&);
  /// Keys in the storage type's own panels. Null: they are packed first.
  void (*score_tile)(const ScoreTile&);
  /// Keys in rows of which can_read_rows_in_place is true, as many as n_panels panels have, for up to kMostScoreRows
  /// query rows. `panels` is the first key's row, panel_stride the bytes from one row to the next. Null: store_panel is
  /// used. (UKernels::score_rows is another slot.)
  void (*score_rows)(const ScoreTile&);
  /// Makes a panel of the storage type from keys in rows, for score_tile; scales stay where they are. Null: pack_keys
  /// is used.
  void (*store_panel)(const PackKeys&);
  void (*pack_keys)(const PackKeys&);
  /// Null where there is a score_tile: panels of the storage type are packed ones already.
  void (*pack_panel)(const PackKeys&);
  /// Values in rows. Null: they are packed first.
  void (*value_tile)(const ValueTile&);
  void (*pack_values)(const PackValues&);
  /// For more query rows than this keys are packed and not taken by score_tile, where every register tile would convert
  /// them again.
  int64_t direct_key_rows = kDirectRows;
  /// score_rows and value_tile take ScoreTile::listed and ValueTile::listed.
  bool takes_lists = false;
};

/// What a caller had in registers that `begin` sets for the slots: the memory operand of LDTILECFG.
struct alignas(64) KeptRegisters {
  unsigned char bytes[64];
};

/// The inside of attention in one arithmetic. Its slots alone know the formats of query rows, packed panels and packed
/// values, so each target may choose what its instructions take.
struct AttentionKernels {
  /// True if the CPU multiplies this way; else multiply-adds of f32 emulate it.
  bool native;
  /// Rows of the largest register tile: where rows see different keys, so many are computed at a time.
  int64_t tile_rows;
  /// Where all rows see the same keys, so many are computed at a time, at most kScoreRows.
  int64_t rows_at_once = kScoreRows;
  /// softmax_tile multiplies scores by the scale in its sweep: then score slots may leave it out.
  bool scales_in_softmax = false;
  /// Values in rows are added in runs of keys. All runs but the first of a key block begin at multiples of this,
  /// counted from its first key, so that one call adds whole steps of the definition.
  int64_t value_step;
  int64_t (*query_bytes)(int64_t dim);   // of a row of queries; a multiple of 64
  int64_t (*values_bytes)(int64_t dim);  // of kKeyBlock packed values
  /// Brings a row of queries, of each element type, into the format of this arithmetic.
  void (*prepare_query[kElementTypes])(const void* row, void* query, int64_t dim) = {};
  KvOperands kv[kKvTypes] = {};
  /// Leaves weights in the format that the value slots take.
  void (*softmax_tile)(const SoftmaxTile&);
  /// Brings weights that no softmax_tile made into that format; null: it is f32.
  void (*prepare_weights)(const float* in, float* out, int64_t n) = nullptr;
  /// Packed values of a key block from v on; `first_key` is the first one that is added, strides are not used. `o`
  /// has whole groups of kValueGroup columns: past the last one zeros, which may become NaN. Bytes of zero hold zeros.
  void (*value_packed)(const ValueTile&);
  /// Called before the first and after the last of these slots in a range of tasks: `end` sets again what `begin` has
  /// kept. Null: nothing to do.
  void (*begin)(KeptRegisters* kept) = nullptr;
  void (*end)(const KeptRegisters& kept) = nullptr;
  /// Kernels of tasks of at most kFewRows rows, where they are faster than those above. Null: those above serve all
  /// tasks.
  const AttentionKernels* of_few_rows = nullptr;
};

/// Packing by P<K, T>, for each element type T.
template <template <class, class> class P, class K>
constexpr void set_packing(AttentionKernels& kernels) {
  const auto set = [&kernels]<class T>(T /*type*/) {
    kernels.prepare_query[index_of(kDTypeOf<T>)] = P<K, T>::query;
    KvOperands& kv = kernels.kv[index_of(kDTypeOf<T>)];
    kv.pack_keys = P<K, T>::keys;
    kv.pack_panel = P<K, T>::panel;
    kv.pack_values = P<K, T>::values;
  };
  set(float()), set(bf16()), set(f16());
}

/// Arithmetics: size_t(Arithmetic).
inline constexpr size_t kArithmetics = 3;

/// Elements behind the last place that UKernels::above may write.
inline constexpr int64_t kMorePlaces = 4;

/// The table of one target.
struct UKernels {
  KvKernels kv[kKvTypes];
  AttentionKernels attention[kArithmetics];

  void (*score_rows[kElementTypes])(const ScoreRows&);
  /// score_rows with the sum of (q - k)^2: fma(difference, difference, sum).
  void (*gaussian_rows[kElementTypes])(const ScoreRows&);
  void (*additive_rows[kElementTypes])(const AdditiveRows&);
  void (*softmax_rows)(const SoftmaxRows&);
  ModifyResult (*modify_row)(const ModifyRow&);

  /// n elements to f32.
  void (*widen[kElementTypes])(const void* in, float* out, int64_t n);
  /// out = (in + 0) * factor, rounded to the type; NaN canonical. (+0 turns -0 into +0.)
  void (*finish[kElementTypes])(const float* in, float factor, void* out, int64_t n);
  /// True if an element equals zero.
  bool (*any_zero)(const float* w, int64_t n);
  /// How many of n numbers are above a bound. `places`, if not null, gets first + j of each such x[j], ascending. It
  /// has space for kMorePlaces more.
  int64_t (*above)(const float* x, float bound, int64_t n, int32_t first, int32_t* places);
  void (*join_rows)(const JoinRows&);
  /// x[i] = (x[i] * factor) * w, w = weights[i], or 1 + weights[i], or 1 where there are none. NaN canonical.
  void (*norm_row)(float* x, int64_t n, float factor, const float* weights, bool plus_one);
  /// a[i] = fma(a[i], wa, b[i] * wb)
  void (*merge)(float* a, float wa, const float* b, float wb, int64_t n);

  /// For rows whose type stays the same. The drivers take other rows through f32.
  void (*rope_heads[kElementTypes])(const RopeHeads&);
  void (*add_rows[kElementTypes])(const AddRows&);

  /// For every `block` numbers of the n in x (a power of two that divides n), in place: for half = 1, 2, 4, ... below
  /// block, all pairs (x[i], x[i + half]) of groups of 2 half become (x[i] + x[i + half], x[i] - x[i + half]).
  void (*hadamard_sums)(float* x, int64_t n, int64_t block);

  /// Element by element: the library's exponential (x <= 88).
  void (*exp)(const float* x, float* y, int64_t n);

  /// Attention with a state: see StateTile.
  void (*update_state)(const StateTile&);
  void (*convolve)(const ConvTile&);
};

}  // namespace simdattn
