// The tasks of attention, each a row block against its keys or against one split of them, and their memory, carved out of the
// caller's bytes.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_ATTENTION_WALK_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_ATTENTION_WALK_H_

#include <algorithm>

#include "lib/drivers/attention/attention_division.h"
#include "lib/drivers/attention/operands.h"
#include "lib/drivers/attention/workspace.h"

namespace simdattn {

/// Rows whose scores are computed at a time. Their 68 KiB stay in the CPU caches beside the keys and values of a block.
inline constexpr int64_t kScoreRows = 64;
/// Floats between rows of scores: a power of two would put the rows of a tile into the same sets of a CPU cache.
inline constexpr int64_t kScoreStride = kKeyBlock + 16;
/// At most so many keys of a block are gathered and multiplied as a block of their own.
inline constexpr int64_t kFewKeys = kKeyBlock / 4;
/// RowStates::ld is a multiple of this, and this much larger than a row needs: rows do not lie a power of two apart.
inline constexpr int64_t kStateStep = 16;

/// States of an online softmax, of the rows of one task. The empty row (-inf, 0, 0) is the identity of merging.
struct RowStates {
  float* max;  // [rows]
  float* sum;  // [rows]
  int64_t ld;  // floats between rows of acc
  float* acc;  // [rows][ld]

  RowStates(Workspace& w, int64_t rows, int64_t d_v)
      : max(w.take<float>(rows)),
        sum(w.take<float>(rows)),
        ld((d_v + kValueGroup - 1) / kValueGroup * kValueGroup + kStateStep),
        acc(w.take<float>(rows * ld)) {}

  /// The states of rows from `row` on.
  RowStates from(int64_t row) const {
    RowStates s = *this;
    s.max += row;
    s.sum += row;
    s.acc += row * ld;
    return s;
  }
};

/// A block of keys, and what the rows of a task see of it.
struct Block {
  int64_t base;      // its first key
  bool few = false;  // some row sees few of its keys
  SeenColumns row[kRowBlock];

  /// The columns that one of rows [r, r + n) sees.
  Interval seen_by(int64_t r, int64_t n) const {
    Interval all = {kKeyBlock, 0};
    for (const int64_t end = r + n; r < end; ++r) {
      if (!row[r].none()) all = {std::min(all.lo, int64_t{row[r].lo}), std::max(all.hi, int64_t{row[r].hi})};
    }
    return all;
  }
  /// True if all of rows [r, r + n) see the columns `see`.
  bool alike(int64_t r, int64_t n, Interval see) const {
    for (const int64_t end = r + n; r < end; ++r) {
      if (row[r].lo != see.lo || row[r].hi != see.hi) return false;
    }
    return true;
  }
};

/// The states of all splits, in the buffer that all threads share, where splits are tasks.
class Partials {
 public:
  Partials(const Division& division, const void* memory)
      : rows_(division.partial_rows), d_v_(division.sizes.d_v), memory_(const_cast<void*>(memory)) {
    Workspace measured(nullptr);
    RowStates(measured, rows_, d_v_);
    task_bytes_ = static_cast<int64_t>(measured.used());
  }
  /// Bytes of the buffer for so many tasks; 0 if they are too many.
  size_t bytes(int64_t tasks) const {
    int64_t all;
    if (__builtin_mul_overflow(task_bytes_, tasks, &all) || all > (int64_t{1} << 62)) return 0;
    Workspace measured(nullptr);
    measured.take<char>(all);
    return measured.bytes();
  }
  RowStates of_task(int64_t task) const {
    Workspace w(memory_);
    w.take<char>(task_bytes_ * task);
    return {w, rows_, d_v_};
  }

 private:
  int64_t rows_;
  int64_t d_v_;
  int64_t task_bytes_;
  void* memory_;
};

/// Bytes of operands. A plan keeps them: to ask the arithmetic takes about as long as all checks of a range.
struct OperandBytes {
  int64_t query;  // a row of queries as the arithmetic wants it
  int64_t panel;  // a packed panel of keys
  int64_t
      key_rows;    // kLoadedRows rows: of keys as stored, put together from several pages, or of keys or values as f32
  int64_t values;  // a packed block of values
  int64_t masked;  // a packed block of kValueGroup columns of values
  int64_t gathered_keys;  // GatheredRows of keys
  int64_t gathered_values;

  OperandBytes() = default;
  OperandBytes(const AttentionKernels& kernels, const AttentionProblem& a, const AttentionSizes& sizes)
      : query(kernels.query_bytes(sizes.d_qk)),
        panel(kernels.kv[slot(a.k.type)].panel_bytes(sizes.d_qk)),
        values(kernels.values_bytes(sizes.d_v)),
        masked(kernels.values_bytes(std::min(sizes.d_v, kValueGroup))),
        gathered_keys(GatheredRows::bytes_of(a.k.type, sizes.d_qk, has_lists(a) ? kKeyBlock / kPanelWidth : 1)),
        gathered_values(GatheredRows::bytes_of(a.v.type, sizes.d_v)) {
    const KvType k = a.k.type;
    const bool loads_keys = kernels.kv[slot(k)].pack_keys == nullptr || kernels.kv[slot(k)].pack_panel == nullptr;
    const bool loads_values = kernels.kv[slot(a.v.type)].pack_values == nullptr;
    const int64_t loaded = 4 * std::max(loads_keys ? sizes.d_qk : 0, loads_values ? sizes.d_v : 0);
    key_rows = kLoadedRows * std::max(row_bytes(k, sizes.d_qk), loaded);
  }
};

/// One thread's working memory, which is constant in the lengths of the sequences.
struct AttentionMemory {
  OperandBytes bytes_of;
  Workspace w;
  char* q = w.take<char>(kRowBlock * bytes_of.query);                   // rows of queries as the arithmetic wants them
  float* scores = w.take<float>(kScoreRows * kScoreStride);             // [kScoreRows][kScoreStride]
  char* keys = w.take<char>(kKeyBlock / kPanelWidth * bytes_of.panel);  // the packed panels of a block
  char* key_rows = w.take<char>(bytes_of.key_rows);
  char* values = w.take<char>(bytes_of.values);
  char* masked = w.take<char>(bytes_of.masked);
  char* gathered_keys = w.take<char>(bytes_of.gathered_keys);
  char* gathered_values = w.take<char>(bytes_of.gathered_values);
  float* alpha = w.take<float>(kScoreRows);
  Interval* see = w.take<Interval>(kRowBlock);  // the keys that the rules let each row see, masks aside
  RowModifiers* modifiers = w.take<RowModifiers>(kRowBlock);
  RowStates total;  // over all splits so far
  RowStates split;  // of the current split

  /// `memory`: of any alignment; null to measure, which w.bytes() then tells.
  AttentionMemory(const OperandBytes& bytes, int64_t d_v, void* memory)
      : bytes_of(bytes), w(memory), total(w, kRowBlock, d_v), split(w, kRowBlock, d_v) {}
};

/// What the tasks of a range share.
struct AttentionRun {
  const AttentionProblem& problem;
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
