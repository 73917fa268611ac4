// How an attention problem divides into sequences and tasks.
#pragma once

#include "lib/contract/ukernels.h"
#include "lib/drivers/shared/intervals.h"
#include "lib/drivers/shared/modifiers.h"
#include "lib/rules/attention.h"

namespace simdattn {

/// Rows of a row block at most. Rows are independent, so no result depends on this number. Keys and values are fetched,
/// widened or packed once per row block, so larger ones do that less often, but smaller ones make more tasks.
inline constexpr int kRowBlockBits = 8;
inline constexpr int64_t kRowBlock = int64_t{1} << kRowBlockBits;

/// One sequence of the batch, plain or varlen.
struct Sequence {
  int64_t index;      // among all sequences
  int64_t q_batch;    // its place in the first dimension of q, out, lse, bias and masks
  int64_t first_row;  // row of these where it begins
  int64_t n_q;        // its rows
  int64_t first_key;  // token of k and v where it begins
  int64_t n_kv;       // its keys; rules.length of them count
  SequenceRules rules;
};
Sequence sequence_of(const AttentionProblem& a, int64_t s);

/// Where row `row` of a sequence is in masks and bias.
inline RowPlace place_of(const Sequence& seq, int64_t head, int64_t row) {
  return {head, row + seq.rules.offset, seq.q_batch, seq.first_row + row, seq.rules.length};
}

/// The list of row `row` of a sequence, for a key/value head.
inline const int32_t* list_of(const AttentionProblem& a, const Sequence& seq, int64_t head, int64_t row) {
  const auto& stride = a.lists.stride;
  const int64_t list_head = a.lists.heads > 1 ? head : 0;
  return a.lists.data + seq.q_batch * stride[0] + list_head * stride[1] + (seq.first_row + row) * stride[2];
}

/// The rows of a task, which share a key/value head: row r is query head r % G of its group at query position r / G.
struct RowBlockIndex {
  int64_t sequence;
  int64_t kv_head;
  int64_t first_row;
  int64_t rows = kRowBlock;  // at most
};

/// How a problem divides into tasks, and the numbers that all tasks share. A plan keeps it, so it comes from shapes,
/// lengths and options alone: arrays may come later.
struct Division {
  AttentionSizes sizes;
  int row_block_bits = kRowBlockBits;  // a row block has 2^bits rows; the last one of a sequence may have fewer
  int64_t row_blocks = 0;              // of all sequences and heads
  int64_t most_rows = 0;               // rows of the largest row block
  int64_t partial_rows = 0;            // whose states are in memory, where splits are tasks
  bool split = false;                  // a task is a split of a row block, not all of it
  Fetch fetch = Fetch::kNone;          // where tasks of several rows get keys and values from
  Fetch fetch_one_row = Fetch::kNone;  // the same for tasks of one row
  int64_t keys_at_once = kPanelWidth;  // ScoreTile::keys_at_once
  int64_t tasks = 0;                   // row blocks, or splits of row blocks
  int64_t heads_together = 1;  // whose row blocks alternate: all; 1 on one thread, which keeps its keys in caches
  float scale = 0;             // of scores

  int64_t row_block() const { return int64_t{1} << row_block_bits; }
};

/// True if all sequences have as many rows and keys.
bool same_lengths(const AttentionProblem& a);

/// Checks the entries of every sequence and divides the problem, whose sizes are in `division` already, for so many
/// threads. For one, row blocks are as large as may be. For more, row blocks are smaller, or splits are tasks, where
/// that lets the threads end earlier.
Status divide(const AttentionProblem& a, int64_t threads, Division* division);

/// How one sequence divides.
struct SequenceTasks {
  int64_t row_blocks = 0;    // of each key/value head
  Interval splits = {0, 1};  // of each row block, where they are tasks
  int64_t tasks = 0;

  SequenceTasks() = default;
  SequenceTasks(const AttentionProblem& a, const Division& d, int64_t sequence);
};

/// Walks tasks in their order: by sequences, groups of `heads_together` key/value heads, pairs of row blocks, heads
/// of the group, row blocks of the pair, splits. The pairs are the last and the first row block, the second to last
/// and the second, ... and, of an odd number, the one in the middle. So any range of tasks of a causal problem has
/// its share of long and short ones, for threads that have a range each, and the longest ones do not come at the end,
/// for threads that take one after the other.
class TaskIterator {
 public:
  /// At `task` tasks after the first one of sequence `sequence`.
  TaskIterator(const AttentionProblem& a, const Division& division, int64_t sequence, int64_t task)
      : a_(a), division_(division), sequence_(sequence), task_(task) {
    skip_sequences();
  }
  RowBlockIndex row_block() const;
  int64_t split() const { return splits().lo + task_ % splits().size(); }
  Interval splits() const { return here_.splits; }
  /// So many tasks before the first split of a row block comes that of the same row block of the head before.
  int64_t tasks_between_heads() const {
    const int64_t heads = division_.heads_together, of_heads = here_.row_blocks * heads;
    if (heads == 1) return of_heads * splits().size();
    return (is_middle(task_ / splits().size() % of_heads / 2 / heads) ? 1 : 2) * splits().size();
  }
  void next(int64_t tasks = 1) {
    task_ += tasks;
    if (task_ >= here_.tasks) skip_sequences();
  }

 private:
  /// To the sequence that has the task.
  void skip_sequences();
  bool is_middle(int64_t pair) const { return 2 * pair + 1 == here_.row_blocks; }

  const AttentionProblem& a_;
  const Division& division_;
  int64_t sequence_;
  int64_t task_;        // counted from the first one of the sequence
  SequenceTasks here_;  // of the sequence
};

/// True if keys are found through block tables or lists, whose entries are checked before a run.
inline bool has_places(const AttentionProblem& a) { return a.k.page_size > 0 || a.v.page_size > 0 || has_lists(a); }
/// Checks the lists of these heads for rows [first_row, last_row) (query positions) of a sequence, and the pages of the
/// keys that these rows see, of all heads. A negative entry of a block table is good where masks hide all of its keys
/// from all of these rows.
Status check_places(const AttentionProblem& a, const Division& division, int64_t sequence, Interval list_heads,
                    int64_t first_row, int64_t last_row);

}  // namespace simdattn
