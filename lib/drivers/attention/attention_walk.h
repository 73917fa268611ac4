// One task of attention: a row block against its keys, or against one split of them.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_ATTENTION_WALK_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_ATTENTION_WALK_H_

#include "lib/drivers/attention/attention_division.h"
#include "lib/drivers/attention/attention_memory.h"

namespace simdattn {

struct AttentionRun {
  const Attention& problem;
  const Division& division;
  const UKernels& kernels;
};

/// The states of tasks that are splits, in the buffer that all threads share.
class Partials {
 public:
  Partials(const Division& division, const void* memory)
      : states_(division.partial_rows, division.sizes.d_v), memory_(first_line(const_cast<void*>(memory))) {}
  /// Bytes of the buffer for so many tasks; 0 if they are too many.
  size_t bytes(int64_t tasks) const {
    int64_t all;
    if (__builtin_mul_overflow(states_.bytes, tasks, &all) || all > (int64_t{1} << 62)) return 0;
    return static_cast<size_t>(all + kLine - 1);
  }
  RowStates of_task(int64_t task) const { return states_.at(memory_ + states_.bytes * task); }

 private:
  StatesLayout states_;
  char* memory_;
};

/// All splits of one row block, one after the other, and its outputs.
void run_row_block(const AttentionRun& run, const AttentionMemory& memory, const RowBlockIndex& index);
/// One split of a row block into `states`.
void run_split(const AttentionRun& run, const AttentionMemory& memory, const RowBlockIndex& index, int64_t split,
               const RowStates& states);
/// Joins the states of the tasks from first_task on, those of one row block in these splits, and writes its outputs.
void reduce_splits(const AttentionRun& run, const AttentionMemory& memory, const RowBlockIndex& index, Interval splits,
                   const Partials& partials, int64_t first_task);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_ATTENTION_WALK_H_
