// The way of a task through splits and key blocks. No matrix of scores exists beyond rows x kKeyBlock.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_WALK_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_WALK_H_

#include "lib/drivers/attention/key_block.h"

namespace simdattn {

/// All splits of one row block, one after the other, and its outputs.
void run_row_block(const AttentionRun& run, const RowBlockIndex& index);
/// One split of a row block into `states`.
void run_split(const AttentionRun& run, const RowBlockIndex& index, int64_t split, const RowStates& states);
/// Joins the states of the tasks from first_task on, those of one row block in these splits, and writes its outputs.
void reduce_splits(const AttentionRun& run, const RowBlockIndex& index, Interval splits, const Partials& partials,
                   int64_t first_task);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_WALK_H_
