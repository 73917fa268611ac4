// The keys of a list, gathered block by block: attention then walks over a store of rows that holds them in the order of the list.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_LISTED_KEYS_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_LISTED_KEYS_H_

#include <algorithm>
#include <cstring>

#include "lib/drivers/attention/attention_walk.h"

namespace simdattn {

/// The list of some rows, and its keys in its order: a key's number there is its place.
class ListedKeys {
 public:
  ListedKeys(const AttentionRun& run, const RowBlockIndex& index, const Sequence& q);
  ListedKeys(const ListedKeys&) = delete;

  /// Places of the whole list.
  int64_t places() const { return places_; }
  /// Makes k and v operands whose tokens are places, of which base .. base + kKeyBlock - 1 are there; blocks come in ascending order. `columns`:
  /// what each of the rows sees of the block, from the first column to the last one. Keys that no row sees are zeros.
  void gather(int64_t base, int64_t rows, HeadOperands* k, HeadOperands* v, SeenColumns* columns);

  /// True if the block was not gathered: it is whole panels of neighbours, which lie well where they are.
  bool in_place() const { return in_place_; }
  /// True if values that are read in place come in runs that begin at steps of the arithmetic.
  bool whole_runs() const;
  /// True if row r sees one of its columns.
  bool sees(int64_t r, int64_t column) const {
    return in_interval(r, column) && (!modifiers_ || mask_allows(w_.modifiers[r], tokens_[column]));
  }
  /// Softcap, ALiBi, bias and masks of row r, whose scores of the block are s. True if one of its columns was masked.
  bool modify(int64_t r, const SeenColumns& columns, float* s) const;

 private:
  bool in_interval(int64_t r, int64_t column) const {
    return tokens_[column] >= w_.see[r].lo && tokens_[column] < w_.see[r].hi;
  }
  /// The next n tokens of the list; how many there are.
  int64_t read(int32_t* tokens, int64_t n);
  bool in_panels() const;
  /// Rows of the block, of keys that some row sees.
  void copy_rows(Interval seen);
  /// To the block after next_.
  void advance();

  const AttentionProblem& a_;
  const UKernels& uk_;
  const AttentionKernels& ops_;
  const AttentionMemory& w_;
  int64_t sequence_;  // of the caches
  int64_t head_;
  int64_t first_key_;
  bool modifiers_;
  const int32_t* list_;
  int64_t entries_;
  int64_t size_;    // keys of an entry
  int64_t length_;  // of the sequence
  int64_t places_ = 0;
  int64_t entry_ = 0;   // the next one
  int64_t inside_ = 0;  // and its keys that were read
  int64_t columns_ = 0;
  int64_t next_base_ = -kKeyBlock;
  int64_t ahead_ = 0;  // tokens of next_
  bool in_place_ = false;
  bool holes_ = false;  // a row does not see a column between others
  ListedPlaces block_ = {tokens_, 0, 0};
  bool aliases_;  // values are the beginning of keys, or another part
  ConstKv keys_;  // the gathered rows, the first place of the block first
  ConstKv values_;
  int32_t tokens_[kKeyBlock];  // of the block that was gathered
  int32_t next_[kKeyBlock];    // of the one after it
  float key_scales_[kKeyBlock];
  float value_scales_[kKeyBlock];
};

/// f(part) for the rows of a task that share a list, as many neighbours as there are.
template <class F>
void for_each_list(const AttentionRun& run, const RowBlockIndex& index, const F& f) {
  const AttentionProblem& a = run.problem;
  if (!has_lists(a)) return f(index);
  const Sequence q = sequence_of(a, index.sequence);
  const int64_t group = run.division.sizes.group;
  const int64_t end = std::min(index.first_row + run.division.row_block, q.n_q * group);
  const auto list = [&](int64_t row) { return list_of(a, q, index.kv_head, row / group); };
  RowBlockIndex part = index;
  part.listed = true;
  for (; part.first_row < end; part.first_row += part.rows) {
    const int32_t* const first = list(part.first_row);
    int64_t last = part.first_row;
    do {
      last = std::min((last / group + 1) * group, end);
    } while (last < end &&
             (list(last) == first || std::memcmp(list(last), first, static_cast<size_t>(a.lists.length) * 4) == 0));
    part.rows = last - part.first_row;
    f(part);
  }
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_LISTED_KEYS_H_
