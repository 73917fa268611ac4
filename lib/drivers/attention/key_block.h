// A key block, and the four parts of its life: look, score, weigh, values. Each has a file of its name.
#pragma once

#include <optional>

#include "lib/drivers/attention/row_block.h"

namespace simdattn {

/// Up to kKeyBlock keys, which are columns 0, 1, ...: where keys and values are, and what the rows of a task see.
/// It is made once per step and passed from part to part, so no part needs to know whether keys come from a list.
struct KeyBlock {
  int64_t base;           // the first key or, of a list, place
  const int32_t* listed;  // of a list: the keys of the columns; null: they are base, base + 1, ...
  BlockTokens k;
  BlockTokens v;
  /// Some row sees few keys of many columns.
  bool few = false;    // no fault: each row is asked once more
  bool holes = false;  // the interval of some row leaves out columns between others: lists are in any order
  SeenColumns row[kRowBlock];

  /// Nobody has looked yet.
  KeyBlock(int64_t first, const int32_t* list, const BlockTokens& keys, const BlockTokens& values)
      : base(first), listed(list), k(keys), v(values) {}

  int64_t key(int64_t column) const { return listed == nullptr ? base + column : listed[column]; }
  /// Keys from column c on that follow one another, up to column `end`.
  int64_t adjacent(int64_t c, int64_t end) const {
    if (listed == nullptr) return end - c;
    int64_t n = 1;
    while (c + n < end && listed[c + n] == listed[c] + n) ++n;
    return n;
  }
  /// The columns that one of rows [r, r + n) sees.
  Interval seen_by(int64_t r, int64_t n) const {
    Interval all = {kKeyBlock, 0};  // no fault: what a row sees ends at 1 or later
    for (const int64_t end = r + n; r < end; ++r) {
      if (!row[r].none()) all = {std::min(all.lo, int64_t{row[r].lo}), std::max(all.hi, int64_t{row[r].hi})};
    }
    return all;
  }
  /// True if each of rows [r, r + n) sees the columns `see`.
  bool same_interval(int64_t r, int64_t n, Interval see) const {
    for (const int64_t end = r + n; r < end; ++r) {
      if (row[r].interval() != see) return false;
    }
    return true;
  }
};

/// Rows of a task whose scores are in memory at a time, and the columns that one of them sees. Fewer rows than the task
/// has, because their scores shall stay in the caches beside the keys and values of the key block.
struct TileRows {
  int64_t first;
  int64_t count;
  Interval see;
};

// ---- look.cc: what each row sees ------------------------------------------------------------------------------------

/// Sets what the rows see of keys base, base + 1, ... Masks are looked at once for rows that share them.
void look(const RowBlock& rows, KeyBlock* block);
/// The same of `columns` keys of a list. Masks are left to the pass over the scores: keys of a list are in any order,
/// so to look at their masks one by one would take as long as to apply them.
void look_at_list(const RowBlock& rows, int64_t columns, KeyBlock* block);

/// True if keys of row r may be gathered. Rows that share masks (the heads of a group) gain from it, because one copy
/// serves all of them; a row alone is quicker in a tile with others. kBF16 gathers nothing, because its chains end at
/// fixed columns: without the columns between them the sums would have other bits.
bool gathers(const RowBlock& rows, int64_t r);

// ---- score.cc: queries times keys -----------------------------------------------------------------------------------

/// Scores of a tile in memory.scores, row by row, by the way of rows.k.prepare_keys().
void score(const RowBlock& rows, const BlockTokens& keys, ScoreWay way, const TileRows& tile);

// ---- weigh.cc: modifiers, then weights ------------------------------------------------------------------------------

/// Softcap, ALiBi, bias and masks on the scores of a tile. True if a key was masked between the ends of what a row
/// sees.
bool modify_tile(const RowBlock& rows, const KeyBlock& block, const TileRows& tile);
/// Scores of a tile become weights; states.max and sum take them in, and memory.alpha gets the factors of states.acc.
void weigh(const RowBlock& rows, const KeyBlock& block, const TileRows& tile, const RowStates& states);

// ---- values.cc: weights times values --------------------------------------------------------------------------------

/// Values of a key block, added to the states of the rows: acc = alpha * acc + weights * values.
class BlockValues {
 public:
  /// For up to `count` rows that see columns `see`. Values are packed here, unless the rows are so few that packing
  /// would take longer than to convert the values once per tile.
  BlockValues(const RowBlock& rows, const BlockTokens& values, Interval see, int64_t count);

  /// For the rows of a tile, whose weights of columns that a row does not see are 0.
  void add(const TileRows& tile, const RowStates& states) const;
  /// The same where rows of the tile see different keys: a weight of 0 hides a finite value only, so if some value is
  /// not finite, each row is taken over the keys of `block` that it sees.
  void add_visible(const KeyBlock& block, const TileRows& tile, const RowStates& states);

 private:
  ValueTile tile_of(const TileRows& tile, const RowStates& states) const;

  const RowBlock& rows_;
  const BlockTokens& values_;
  Interval see_;
  bool in_place_;
  std::optional<bool> finite_;  // known once some tile has asked
};

// ---- few_keys.cc: all of it for rows that see few keys of the key block ---------------------------------------------

/// Adds what rows see that see the same few keys of a key block (sequences that take turns in one store). These rows
/// count as seeing nothing of it afterwards, so that the other parts pass over them.
void take_few_keys(const RowBlock& rows, KeyBlock* block, const RowStates& states);

}  // namespace simdattn
