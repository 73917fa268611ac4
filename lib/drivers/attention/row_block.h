// The rows of one task, and their states from the first key to the outputs. Rows are query positions x the query heads
// that share the key head, so keys and values are read once for all of them: in decode they are the heads of a group,
// in prefill positions too. So there is one path for both, with the same bits.
#pragma once

#include <limits>

#include "lib/drivers/attention/memory.h"
#include "lib/drivers/shared/modifiers.h"
#include "lib/drivers/shared/rows.h"

namespace simdattn {

/// What is the same for all key blocks of a task.
struct RowBlock {
  const AttentionRun& run;
  RowBlockIndex index;
  const AttentionProblem& problem = run.problem;
  const Division& division = run.division;
  const UKernels& kernels = run.kernels;
  const AttentionMemory& memory = run.memory;  // where each part of a key block's life leaves what the next one reads
  const AttentionKernels& arithmetic = memory.kernels;
  Sequence sequence = sequence_of(problem, index.sequence);
  int64_t rows = std::min({division.row_block(), index.rows, (sequence.n_q * division.sizes.group) - index.first_row});
  /// Heads of a position that have the same modifiers: all of a group, or 1.
  int64_t heads_at_once = run.modifiers.by_head ? 1 : division.sizes.group;
  /// All rows see the same keys, unmodified: the ends of what rows see do not decrease, so the first and last row tell.
  bool alike = rows > heads_at_once && !run.modifiers.any &&
               visible_interval(problem.scoring, sequence.rules, position_of(0)) ==
                   visible_interval(problem.scoring, sequence.rules, position_of(rows - 1));
  /// The softmax scales the scores. Modifiers want scaled ones. The largest score is that of the largest product only
  /// if the scale is positive, and -inf stays so only if it is finite; kBF16 takes a subnormal one for 0.
  bool unscaled = arithmetic.scales_in_softmax && !run.modifiers.any &&
                  division.scale >= std::numeric_limits<float>::min() &&
                  division.scale <= std::numeric_limits<float>::max();
  Fetch fetch = rows > 1 ? division.fetch : division.fetch_one_row;  // no fault: what is fetched changes no result
  int64_t batch = problem.cu_k == nullptr ? index.sequence : 0;      // of keys and values
  KvStore k_store{problem.k, batch, index.kv_head, sequence.first_key};
  KvStore v_store{problem.v, batch, index.kv_head, sequence.first_key};
  Operands k{kernels, arithmetic, problem.k.type, division.sizes.d_qk, memory.rows, memory.keys, division.fetch};
  Operands v{kernels, arithmetic, problem.v.type, division.sizes.d_v, memory.rows};

  /// Finds memory.see and memory.modifiers of the rows.
  RowBlock(const AttentionRun& of, const RowBlockIndex& at);

  /// Brings the queries of the rows into memory.q, in the format of the arithmetic.
  void load_queries() const;

  int64_t position_of(int64_t r) const { return (index.first_row + r) / division.sizes.group; }
  int64_t head_of(int64_t r) const {
    return index.kv_head * division.sizes.group + (index.first_row + r) % division.sizes.group;
  }
  /// How many rows from r on, heads of one position or all that are left, have the same modifiers and see the same
  /// keys.
  int64_t same_from(int64_t r) const {
    if (alike) return rows - r;        // no fault: what one look at all rows saves
    if (heads_at_once == 1) return 1;  // no fault: the division is what this saves
    return std::min(rows - r, heads_at_once - (index.first_row + r) % heads_at_once);
  }
  const Interval& see(int64_t r) const { return memory.see[r]; }
  const RowModifiers& modifiers(int64_t r) const { return memory.modifiers[r]; }
  /// Keys that some row sees, masks aside: neither end of an interval decreases from row to row.
  Interval seen() const { return {memory.see[0].lo, memory.see[rows - 1].hi}; }
  /// Asks for the masks of the key block that begins at `base` to be fetched, of rows [r, r + n). With few rows they
  /// are left to the hardware's prefetcher: it keeps up, and the instructions would cost more than they save.
  void fetch_masks(int64_t base, int64_t r, int64_t n) const;
  char* query(int64_t r) const { return memory.queries + r * memory.query_bytes; }
  float* scores(int64_t i) const { return memory.scores + i * kScoreStride; }
};

/// States before the first key: empty, or with `sinks` the sink alone, a virtual key of value 0. The sink belongs to
/// the first split. A sink of +inf is like a visible score of +inf.
void start_states(const RowBlock& rows, const RowStates& states, bool sinks);
/// a = a joined with b, which holds later keys.
void merge_states(const RowBlock& rows, const RowStates& a, const RowStates& b);
/// The outputs of the rows.
void store_states(const RowBlock& rows, const RowStates& states);

// ---- walk.cc: the way of a task through splits and key blocks -------------------------------------------------------

/// All splits of one row block, one after the other, and its outputs.
void run_row_block(const AttentionRun& run, const RowBlockIndex& index);
/// One split of a row block into `states`.
void run_split(const AttentionRun& run, const RowBlockIndex& index, int64_t split, const RowStates& states);
/// Joins the states of the tasks from first_task on, those of one row block in these splits, and writes its outputs.
void reduce_splits(const AttentionRun& run, const RowBlockIndex& index, Interval splits, const Partials& partials,
                   int64_t first_task);

}  // namespace simdattn
