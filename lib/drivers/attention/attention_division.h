// How an attention problem divides into sequences and tasks.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_ATTENTION_DIVISION_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_ATTENTION_DIVISION_H_

#include "lib/contract/dtypes.h"
#include "lib/drivers/attention/scoring.h"
#include "lib/rules/attention.h"

namespace simdattn {

/// Rows of a task at most. Rows are independent, so this does not touch any result. Keys and values are fetched, widened
/// or packed once per row block: more rows share that, and fewer leave more tasks.
inline constexpr int64_t kRowBlock = 256;

/// One sequence of the batch, plain or varlen.
struct Sequence {
  int64_t index;      // of it
  int64_t q_batch;    // index into the first dimension of q, out, lse
  int64_t first_row;  // row of q where it begins
  int64_t n_q;
  int64_t first_key;   // token of k and v where it begins
  int64_t n_kv;        // keys that it could have
  int64_t mask_batch;  // the same for bias, mask and packed_mask
  int64_t first_mask_row;
  SequenceRules rules;
};
Sequence sequence_of(const AttentionProblem& a, int64_t s);

/// The list of row `row` of a sequence, for a key/value head.
inline const int32_t* list_of(const AttentionProblem& a, const Sequence& q, int64_t head, int64_t row) {
  const auto& stride = a.lists.stride;
  const int64_t list_head = a.lists.heads > 1 ? head : 0;
  return a.lists.data + q.q_batch * stride[0] + list_head * stride[1] + (q.first_row + row) * stride[2];
}

/// Which rows a task computes: rows of one key/value head, counted position by position, head by head of the group.
struct RowBlockIndex {
  int64_t sequence;
  int64_t kv_head;
  int64_t first_row;
  int64_t rows = kRowBlock;  // at most
  bool listed = false;       // they share a list
};

/// Everything beside the arrays that running a task needs to know.
struct Division {
  AttentionSizes sizes;
  int64_t row_block = kRowBlock;  // rows of a task, but for the last ones of a sequence
  int64_t row_blocks = 0;         // of all sequences and heads
  int64_t partial_rows = 0;       // rows of the largest task
  bool split = false;             // tasks are (row block, split)
  Fetch fetch = Fetch::kNone;     // of keys and values, by tasks of several rows
  Fetch fetch_one_row = Fetch::kNone;
  int64_t keys_at_once = kPanelWidth;  // see ScoreTile
  int64_t tasks = 0;
  float scale = 0;
};

/// The kernels of all its tasks.
inline const AttentionKernels& kernels_of(const UKernels& uk, Arithmetic arithmetic, const Division& division) {
  const AttentionKernels& kernels = uk.attention[slot(arithmetic)];
  return kernels.of_few_rows != nullptr && division.partial_rows <= kFewRows ? *kernels.of_few_rows : kernels;
}

/// True if all sequences have as many rows and keys.
bool are_alike(const AttentionProblem& a);

/// Who runs the tasks: one thread takes the largest row blocks, several want enough of them, if need be smaller ones or splits.
enum class Threads : uint8_t { kOne, kSeveral };

/// Checks the entries of every sequence and divides the problem, whose sizes are in `division` already.
Status divide(const AttentionProblem& a, Threads threads, Division* division);

/// Walks tasks in their flat order: sequences, key/value heads, row blocks, splits. Row blocks go first, last, second,
/// second to last, ..., so that any contiguous range of tasks of a causal problem has its share of long and short ones.
class TaskIterator {
 public:
  /// At `task` tasks after the first one of sequence `sequence`.
  TaskIterator(const AttentionProblem& a, const Division& division, int64_t sequence, int64_t task);
  RowBlockIndex row_block() const;
  int64_t split() const { return splits_.lo + task_ % (splits_.hi - splits_.lo); }
  Interval splits() const { return splits_; }  // of the sequence
  void next(int64_t tasks = 1) {
    task_ += tasks;
    if (task_ >= here_) skip_sequences();
  }

 private:
  /// To the sequence that has the task.
  void skip_sequences();

  const AttentionProblem& a_;
  const Division& division_;
  int64_t sequence_;
  int64_t task_;  // of the sequence, which has
  int64_t here_ = 0;
  int64_t n_blocks_ = 0;
  Interval splits_ = {0, 1};
};

/// Tasks of one sequence.
int64_t tasks_of(const AttentionProblem& a, const Division& division, bool splits, int64_t sequence);

/// Pages of the keys that rows [first_row, last_row) (query positions) of a sequence see, and the lists of these rows. An entry of a table below
/// 0 is good where masks hide all of its keys from all of these rows.
Status check_places(const AttentionProblem& a, const Division& division, int64_t sequence, int64_t first_row,
                    int64_t last_row);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_ATTENTION_DIVISION_H_
