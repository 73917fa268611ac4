// The keys of a list, gathered block by block: attention then walks over a store of rows that holds them in the order of the list.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_LISTED_KEYS_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_LISTED_KEYS_H_

#include <algorithm>
#include <cstring>

#include "lib/drivers/attention/attention_walk.h"

namespace simdattn {

/// The list of some rows, and its keys in its order: a key's number there is its place. Keys and values are gathered where they are wanted.
class ListedKeys {
 public:
  ListedKeys(const AttentionRun& run, const RowBlockIndex& index, const Sequence& q);
  ListedKeys(const ListedKeys&) = delete;

  /// Places of the whole list.
  int64_t places() const { return places_; }
  /// Makes k and v operands whose tokens are places, for those from base on; blocks come in ascending order. `columns`: what each of the rows
  /// sees of the block, from the first column to the last one.
  void begin(int64_t base, int64_t rows, HeadOperands* k, HeadOperands* v, SeenColumns* columns);

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
  bool sees_all(Interval keys) const { return keys.lo <= 0 && keys.hi >= length_; }
  /// The next n tokens of the list; how many there are.
  int64_t read(int32_t* tokens, int64_t n);
  bool whole_panels() const;

  const AttentionProblem& a_;
  const UKernels& uk_;
  const AttentionKernels& ops_;
  const AttentionMemory& w_;
  bool modifiers_;
  const int32_t* list_;
  int64_t entries_;
  int64_t size_;    // keys of an entry
  int64_t length_;  // of the sequence
  int64_t places_ = 0;
  int64_t entry_ = 0;      // the next one
  int64_t inside_ = 0;     // and its keys that were read
  int64_t columns_ = 0;    // of the block
  int64_t there_ = 0;      // tokens of the list that were read: of the block, and of the one after it
  int64_t next_base_ = 0;  // of the next block
  bool holes_ = false;     // a row does not see a column between others
  int64_t part_;           // how far inside of rows of keys those of values are; -1: elsewhere
  GatheredRows keys_;
  GatheredRows values_;
  ConstKv part_of_keys_;
  int32_t tokens_[2 * kKeyBlock];
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
