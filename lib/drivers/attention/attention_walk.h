// One task of attention: a row block against its keys, or against one split of them.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_ATTENTION_WALK_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_ATTENTION_WALK_H_

#include "lib/drivers/attention/attention_memory.h"

namespace simdattn {

/// What the tasks of a range share.
struct AttentionRun {
  const Attention& problem;
  const Division& division;
  const UKernels& kernels;
  AttentionMemory memory;
};

/// All splits of one row block, one after the other, and its outputs.
void run_row_block(const AttentionRun& run, const RowBlockIndex& index);
/// One split of a row block into `states`.
void run_split(const AttentionRun& run, const RowBlockIndex& index, int64_t split, const RowStates& states);
/// Joins the states of the tasks from first_task on, those of one row block in these splits, and writes its outputs.
void reduce_splits(const AttentionRun& run, const RowBlockIndex& index, Interval splits, const Partials& partials,
                   int64_t first_task);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_ATTENTION_WALK_H_
