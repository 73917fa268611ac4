// The rows of one task, and their states from the first key to the outputs.
//
// Rows are query positions x the query heads that share the key head, so keys and values are read once for all of them:
// in decode they are the heads of a group, in prefill positions too. So there is one path for both, with the same
// bits.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_ROW_BLOCK_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_ROW_BLOCK_H_

#include <algorithm>

#include "lib/drivers/attention/memory.h"
#include "lib/drivers/shared/masks.h"

namespace simdattn {

/// What the tasks of a range share.
struct AttentionRun {
  const AttentionProblem& problem;
  const Division& division;
  const UKernels& kernels;
  AttentionMemory memory;
};

/// What is the same for all key blocks of a task.
struct RowBlock {
  const AttentionProblem& problem;
  const Division& division;
  const UKernels& kernels;
  const AttentionKernels& arithmetic;
  const AttentionMemory& memory;  // where each part of a key block's life leaves what the next one reads
  RowBlockIndex index;
  Sequence sequence;
  int64_t rows;
  int64_t heads_at_once;  // heads of a position that have the same modifiers: all of a group, or 1
  Fetch fetch;
  KvStore k_store;
  KvStore v_store;
  Operands k;
  Operands v;

  /// Finds memory.see and memory.modifiers of the rows.
  RowBlock(const AttentionRun& run, const RowBlockIndex& index);

  /// Brings the queries of the rows into memory.q, in the format of the arithmetic.
  void load_queries() const;

  int64_t position_of(int64_t r) const { return (index.first_row + r) / division.sizes.group; }
  int64_t head_of(int64_t r) const {
    return index.kv_head * division.sizes.group + (index.first_row + r) % division.sizes.group;
  }
  /// How many rows from r on, heads of one position, have the same modifiers and see the same keys.
  int64_t same_from(int64_t r) const {
    return heads_at_once == 1 ? 1 : std::min(rows - r, heads_at_once - (index.first_row + r) % heads_at_once);
  }
  const Interval& see(int64_t r) const { return memory.see[r]; }
  const RowModifiers& modifiers(int64_t r) const { return memory.modifiers[r]; }
  /// Keys that some row sees, masks aside: neither end of an interval decreases from row to row.
  Interval seen() const { return {memory.see[0].lo, memory.see[rows - 1].hi}; }
  /// With few rows masks are left to the hardware's prefetcher: it keeps up, and the instructions would cost more than
  /// they save.
  bool fetches_masks() const { return division.modifiers.hides && !has_lists(problem) && rows > kFewRows; }
  /// Asks for the masks of the key block that begins at `base` to be fetched, of rows [r, r + n).
  void fetch_masks(int64_t base, int64_t r, int64_t n) const {
    if (fetches_masks()) prefetch_masks(memory.modifiers, {r, r + n}, heads_at_once, base);
  }
  KeyFetch key_fetch() const { return {fetch, division.fetch}; }
  char* query(int64_t r) const { return memory.q + r * memory.bytes_of.query; }
  float* scores(int64_t i) const { return memory.scores + i * kScoreStride; }
};

/// States before the first key: empty, or with `sinks` the sink alone, a virtual key of value 0. The sink belongs to
/// the first split. A sink of +inf is like a visible score of +inf.
void start_states(const RowBlock& rows, const RowStates& states, bool sinks);
/// a = a joined with b, which holds later keys.
void merge_states(const RowBlock& rows, const RowStates& a, const RowStates& b);
/// The outputs of the rows.
void store_states(const RowBlock& rows, const RowStates& states);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_ROW_BLOCK_H_
