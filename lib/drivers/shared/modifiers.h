// What happens to scores between their scale and the softmax: softcap, ALiBi, bias and masks, which one pass over a
// row's scores applies. And what a look at masks and bias tells before: which scores they hide or change.
#pragma once

#include <cstdint>

#include "include/simdattn/simdattn.h"
#include "lib/contract/ukernels.h"
#include "lib/drivers/shared/intervals.h"

namespace simdattn {

/// What some modifier of a call does, by the table of modifiers.cc.
struct Modifiers {
  bool any = false;
  bool hides = false;        // it may hide keys, so a look at it pays before keys are read
  bool changes_all = false;  // it changes every score: a look cannot leave out columns
  bool by_position = false;  // it depends on the key's position: runs of keys of a list are modified one by one
  bool by_head = false;      // it differs between the heads of a group
};
Modifiers modifiers_of(const Scoring& scoring);

/// Where a row is in what modifies it: its place in bias and masks is that in q.
struct RowPlace {
  int64_t head;
  int64_t position;
  int64_t q_batch;
  int64_t q_row;
  int64_t length;  // keys of the sequence
};
RowModifiers row_modifiers(const Scoring& scoring, const RowPlace& row);

/// The slot modify_row, also where a bias or mask is one number for all keys.
ModifyResult modify(const UKernels& uk, const ModifyRow& a);

// ---- masks.cc -------------------------------------------------------------------------------------------------------

/// True if both rows read the same bias and masks.
inline bool same_masks(const RowModifiers& a, const RowModifiers& b) {
  return a.bias == b.bias && a.keep == b.keep && a.bits == b.bits;
}
/// True if masks and bias let the row see a key of its interval. For rare cases: NaN in masked values, missing pages.
bool mask_allows(const RowModifiers& row, int64_t key);

/// When it pays to treat masked keys in another way. Times depend on these, results do not.
struct MaskThresholds {
  /// To gather keys and to spread their scores costs as much as a quarter of the columns, and as a short call.
  int64_t few_share = 4;
  int64_t few_columns = kKeyBlock / 4;
  /// An end of a row's columns moves by so many at least: less saves no panel, and rows whose ends differ share no
  /// tile.
  int64_t least_move = kPanelWidth;
};
inline constexpr MaskThresholds kMaskThresholds;
/// At most so many keys of a key block are gathered.
inline constexpr int64_t kFewKeys = kKeyBlock / kMaskThresholds.few_share;

/// What a row sees of a key block, whose key c is column c.
struct SeenColumns {
  /// The row sees [lo, hi), but for what masks hide.
  int32_t lo;
  int32_t hi;
  /// Of these, masks and bias hide or change scores of [from, to) alone.
  int32_t from;
  int32_t to;
  /// It sees at most so many of [lo, hi).
  int32_t visible;

  bool none() const { return lo >= hi; }
  Interval interval() const { return {lo, hi}; }
  /// True if it sees few keys of many columns.
  bool few() const {
    return hi - lo >= kMaskThresholds.few_columns && visible <= (hi - lo) / kMaskThresholds.few_share;
  }
};

/// What a row sees of `keys`, of the key block that begins at `base`, if nothing hides or changes them.
inline SeenColumns all_columns(int64_t base, Interval keys) {
  const int32_t lo = static_cast<int32_t>(keys.lo - base);
  const int32_t hi = static_cast<int32_t>(keys.hi - base);
  return {lo, hi, lo, lo, hi - lo};
}

/// A look at masks and bias. `keys`: what the row's interval has of a key block, which begins at `base`. An end moves
/// by MaskThresholds::least_move at least, in steps of 8, so that rows that see nearly the same see the same columns.
/// Where masks hide all keys behind an end and do nothing before it, that end is exact, and no column needs modifying.
SeenColumns seen_columns(const RowModifiers& row, int64_t base, Interval keys);
/// The columns of `keys` that masks and bias let the row see, ascending, into `list`; how many there are.
int64_t visible_columns(const RowModifiers& row, int64_t base, Interval keys, uint8_t* list);
/// True if `seen`, of the row before, which has the same interval, holds for this row too, `visible` aside. An end
/// where masks do nothing else may be a key later: it moves. Where masks change every key of the row before, it holds
/// if this row sees one of the two keys at each end, because a mask with a pattern may hide a single one, or `in_tile`:
/// both rows are computed together. Quicker than a look; false if in doubt.
bool still_sees(const RowModifiers& row, int64_t base, Interval keys, bool in_tile, SeenColumns* seen);

}  // namespace simdattn
