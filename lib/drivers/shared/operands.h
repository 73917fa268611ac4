// Keys and values of one storage type as operands of an arithmetic: their scores, packed panels, packed values. Where a
// storage type lacks a slot, rows are loaded as f32 and take that of f32: so every type works with every arithmetic.
#pragma once

#include "lib/drivers/shared/block_tokens.h"

namespace simdattn {

/// The kernels that serve tasks of at most `rows` rows.
inline const AttentionKernels& kernels_of(const UKernels& uk, Arithmetic arithmetic, int64_t rows) {
  const AttentionKernels& kernels = uk.attention[index_of(arithmetic)];
  return kernels.of_few_rows != nullptr && rows <= kFewRows ? *kernels.of_few_rows : kernels;
}

/// Calls AttentionKernels::begin and end around the slots of an arithmetic: the tiles of AMX are configured there, and
/// then as the caller had them, who may configure them once a thread.
class KernelHooks {
 public:
  explicit KernelHooks(const AttentionKernels& kernels) : kernels_(kernels) {
    if (kernels_.begin != nullptr) kernels_.begin(&kept_);
  }
  ~KernelHooks() {
    if (kernels_.end != nullptr) kernels_.end(kept_);
  }
  KernelHooks(const KernelHooks&) = delete;
  KernelHooks& operator=(const KernelHooks&) = delete;

 private:
  const AttentionKernels& kernels_;
  KeptRegisters kept_;
};

/// Rows that are loaded as f32, or put together from several runs, at a time.
inline constexpr int64_t kLoadedRows = kPanelWidth;

/// Floats between rows of scores: a power of two would put the rows of a tile into the same sets of a CPU cache.
inline constexpr int64_t kScoreStride = kKeyBlock + 16;

/// How the scores of some rows and the keys of a key block are computed. way_to_score() has the rule.
enum class ScoreWay : uint8_t {
  kPackedBlock,   // score_packed: all panels are packed before, because several tiles of rows need them
  kStoredPanels,  // score_tile, on the store's own panels
  kRowsInPlace,   // score_rows, on the store's own rows; where fewer than 32 follow one another, one of the next two
                  // ways
  kStoredPanel,   // score_tile, on one panel at a time that is put together in the storage type
  kPackedPanel    // score_packed, on one panel at a time
};

/// How one arithmetic multiplies keys or values of one storage type and dimension.
struct Operands {
  const UKernels& kernels;
  const AttentionKernels& arithmetic;
  KvType type;
  int64_t dim;
  char* loaded;                     // memory for kLoadedRows rows, as stored or as f32
  char* panels = nullptr;           // memory for packed panels: those of a key block, or one of them at a time
  Fetch fetch_rows = Fetch::kNone;  // for slots that transpose rows of keys
  const KvOperands& slots = arithmetic.kv[index_of(type)];
  const KvKernels& storage = kernels.kv[index_of(type)];

  /// How the keys of columns `see` are scored for `rows` rows, at most `at_once` of them in a tile. Packs the panels of
  /// kPackedBlock.
  ScoreWay prepare_keys(const BlockTokens& keys, Interval see, int64_t rows, int64_t at_once) const;
  /// Scores of a tile's rows with keys [see.lo, see.hi), in whole panels from the one that holds see.lo on. The tile
  /// says what rows there are and what becomes of them: tile.s is at column 0 of the key block, tile.fetch is for slots
  /// that read keys where they are.
  void score(ScoreWay way, ScoreTile tile, const BlockTokens& keys, Interval see) const;

  /// Packs values [see.lo, see.hi) of a key block, dimensions [column, column + columns).
  void pack_values(const BlockTokens& values, Interval see, int64_t column, int64_t columns, char* block) const;
  /// True if all numbers of these tokens are finite. See KvKernels::all_finite.
  bool finite(const BlockTokens& tokens, Interval see) const;
  /// True if the scale of one of these tokens has its sign bit set.
  bool negative_scales(const BlockTokens& tokens, Interval see) const;
  /// Adds the values that `tile` names, from where they are: what says where is not looked at. Needs slots.value_tile.
  void add_in_place(const BlockTokens& values, ValueTile tile) const;

  /// Adds values as `tile` says, except that a value that a row does not see counts as zeros: a weight of 0 would hide
  /// finite values only. visible(row, column) tells. Row by row, so slow, but values that are not finite are rare.
  /// `masked`: memory of values_bytes(kValueGroup).
  template <class Visible>
  void add_visible(const BlockTokens& values, const ValueTile& tile, char* masked, const Visible& visible) const {
    const int64_t end = tile.first_key + tile.keys;
    ValueTile one = tile;
    one.rows = 1;
    one.v = masked;
    for (int64_t r = 0; r < tile.rows; ++r) {
      one.w = tile.w + r * tile.ldw;
      one.alpha = tile.alpha == nullptr ? nullptr : tile.alpha + r;
      for (int64_t c = 0; c < dim; c += kValueGroup) {
        one.dim = std::min(kValueGroup, dim - c);
        one.o = tile.o + r * tile.ldo + c;
        std::memset(masked, 0, static_cast<size_t>(arithmetic.values_bytes(one.dim)));
        for (int64_t j = tile.first_key; j < end; ++j) {
          const int64_t first = j;
          while (j < end && visible(r, j)) ++j;
          if (first < j) pack_values(values, {first, j}, c, one.dim, masked);
        }
        arithmetic.value_packed(one);
      }
    }
  }

 private:
  ScoreWay way_to_score(const BlockTokens& keys, int64_t rows, int64_t at_once) const;
  /// True if a panel of the storage type can be put together and multiplied.
  bool stores_panels() const { return slots.store_panel != nullptr && slots.score_tile != nullptr; }
  const KvOperands& f32() const { return arithmetic.kv[index_of(KvType::kF32)]; }
  /// Packs keys [c, c + 32) of a key block into `panel`. Keys outside of `see` are not read, because their pages may
  /// not exist; their lanes hold unspecified numbers, whose scores nobody looks at.
  void pack_panel(const BlockTokens& keys, Interval see, int64_t c, void* panel) const;
  void load(void (*slot)(const LoadRows&), const TokenRun& run, char* rows, bool as_stored = false) const;
  void join_rows(void (*slot)(const PackKeys&), const BlockTokens& keys, Interval see, int64_t c, void* panel,
                 float* scales) const;
  void score_stored_panels(ScoreTile tile, const BlockTokens& keys, Interval see) const;
  void score_rows_in_place(const ScoreTile& tile, const BlockTokens& keys, Interval see) const;
  void score_panel(ScoreTile tile, const BlockTokens& keys, Interval see, int64_t c, bool as_stored) const;
};

}  // namespace simdattn
