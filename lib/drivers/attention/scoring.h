// Which keys a row sees, and what happens to its scores. Rules (causality, lengths, windows, chunks, prefixes) are an interval of
// keys per row; masks, bias, softcap and ALiBi are one pass over its scores.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_SCORING_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_SCORING_H_

#include <cstdint>

#include "include/simdattn/simdattn.h"
#include "lib/contract/ukernels.h"

namespace simdattn {

/// Half-open range of keys; empty if hi <= lo.
struct Interval {
  int64_t lo;
  int64_t hi;
};

/// Scoring as it applies to one sequence.
struct SequenceRules {
  int64_t start;       // keys below are invisible
  int64_t length;      // keys at and past it are invisible
  int64_t offset;      // position of query row 0
  int64_t prefix_end;  // 0: none
};

SequenceRules sequence_rules(const Scoring& scoring, int64_t sequence, int64_t n_q, int64_t n_kv);

/// Causality, window, chunk, prefix and lengths are all intervals of keys; this is their intersection for row i.
/// Both ends are within 0 .. length, and neither decreases from one row to the next.
Interval visible_interval(const Scoring& scoring, const SequenceRules& rules, int64_t row);

/// True if a bias or a mask may hide keys.
bool has_masks(const Scoring& scoring);
/// True if scores need the optional pass over the tile.
bool has_modifiers(const Scoring& scoring);
/// True if the modifiers of a row do not depend on its head.
bool modifies_heads_alike(const Scoring& scoring);

/// The modifiers of one row. `mask_batch`, `mask_row`: its place in bias, mask and packed_mask, which in varlen differs from sequence
/// and row.
RowModifiers row_modifiers(const Scoring& scoring, const SequenceRules& rules, int64_t head, int64_t row,
                           int64_t mask_batch, int64_t mask_row);

/// The slot modify_row, also where a bias or mask is one number for all keys.
ModifyResult modify(const UKernels& uk, const ModifyRow& a);

/// True if both rows read the same bias and masks.
inline bool same_masks(const RowModifiers& a, const RowModifiers& b) {
  return a.bias == b.bias && a.keep == b.keep && a.bits == b.bits;
}
/// True if masks and bias let the row see a key of its interval. One key at a time, so for rare cases: NaN in masked values, pages
/// that are missing.
bool mask_allows(const RowModifiers& row, int64_t key);

/// Asks for what looks at a block of keys read, of which the first is `key`. Of the rows each `step`th is taken.
void prefetch_masks(const RowModifiers* all, Interval rows, int64_t step, int64_t key);

/// What a row sees of a block of keys; column c is key c of the block.
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
  /// True if it sees few keys of many columns.
  bool few() const { return hi - lo >= kKeyBlock / 4 && visible <= (hi - lo) / 4; }
};

/// What a row sees of `keys`, of the block whose first key is `base`, if nothing hides or changes them.
inline SeenColumns all_columns(int64_t base, Interval keys) {
  const int32_t lo = static_cast<int32_t>(keys.lo - base);
  const int32_t hi = static_cast<int32_t>(keys.hi - base);
  return {lo, hi, lo, lo, hi - lo};
}

/// A look at masks and bias. `keys`: what the row's interval has of a block, whose first key is `base`. An end moves by 32 keys at
/// least, in steps of 8, so that rows that see nearly the same stay alike. Where masks hide all keys behind an end and do nothing before
/// it, that end is exact, and no column needs modifying. `few`: `visible` is counted where it may be a small part of all, else it may be
/// too large. `list`, if not null, gets the visible columns; it has room for all.
SeenColumns seen_columns(const RowModifiers& row, int64_t base, Interval keys, bool few, uint8_t* list = nullptr);
/// True if `seen`, of the row before, with the same interval, holds for this row too, `visible` aside. An end where masks do nothing else
/// may be a key later: it moves. Where masks change every key of the row before, it holds if this row sees keys at both ends, or `in_tile`:
/// both rows are computed together. Quicker than a look; false if in doubt.
bool sees_alike(const RowModifiers& row, int64_t base, Interval keys, bool in_tile, SeenColumns* seen);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_SCORING_H_
