// What tasks of attention keep in the caller's bytes.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_MEMORY_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_MEMORY_H_

#include <algorithm>

#include "lib/contract/integers.h"
#include "lib/drivers/attention/division.h"
#include "lib/drivers/shared/operands.h"
#include "lib/drivers/shared/workspace.h"

namespace simdattn {

/// Rows whose scores are computed at a time: their 68 KiB stay in L2 beside the keys and values of a key block.
inline constexpr int64_t kScoreRows = 64;
/// Floats between rows of scores: a power of two would put the rows of a tile into the same sets of a CPU cache.
inline constexpr int64_t kScoreStride = kKeyBlock + 16;
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
        ld(round_up(d_v, kValueGroup) + kStateStep),
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

/// The states of all splits, in the buffer that all threads share, where splits are tasks.
class Partials {
 public:
  Partials(const Division& division, const void* memory)
      : rows_(division.most_rows), d_v_(division.sizes.d_v), memory_(const_cast<void*>(memory)) {
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
  int64_t query;   // a row of queries as the arithmetic wants it
  int64_t panel;   // a packed panel of keys
  int64_t rows;    // kLoadedRows rows: of keys as stored, put together from several runs, or of keys or values as f32
  int64_t values;  // the packed values of a key block
  int64_t masked;  // the same of kValueGroup dimensions
  int64_t gathered_keys;  // GatheredRows of keys
  int64_t gathered_values;

  OperandBytes() = default;
  OperandBytes(const AttentionKernels& kernels, const AttentionProblem& a, const AttentionSizes& sizes)
      : query(kernels.query_bytes(sizes.d_qk)),
        panel(kernels.kv[index_of(a.k.type)].panel_bytes(sizes.d_qk)),
        values(kernels.values_bytes(sizes.d_v)),
        masked(kernels.values_bytes(std::min(sizes.d_v, kValueGroup))),
        gathered_keys(GatheredRows::bytes_of(a.k.type, sizes.d_qk, has_lists(a) ? kKeyBlock / kPanelWidth : 1)),
        gathered_values(GatheredRows::bytes_of(a.v.type, sizes.d_v)) {
    const KvType k = a.k.type;
    const bool loads_keys =
        kernels.kv[index_of(k)].pack_keys == nullptr || kernels.kv[index_of(k)].pack_panel == nullptr;
    const bool loads_values = kernels.kv[index_of(a.v.type)].pack_values == nullptr;
    const int64_t loaded = 4 * std::max(loads_keys ? sizes.d_qk : 0, loads_values ? sizes.d_v : 0);
    rows = kLoadedRows * std::max(row_bytes(k, sizes.d_qk), loaded);
  }
};

/// One thread's working memory, which is constant in the lengths of the sequences.
struct AttentionMemory {
  OperandBytes bytes_of;
  Workspace w;
  char* q = w.take<char>(kRowBlock * bytes_of.query);                   // rows of queries as the arithmetic wants them
  float* scores = w.take<float>(kScoreRows * kScoreStride);             // [kScoreRows][kScoreStride]
  char* keys = w.take<char>(kKeyBlock / kPanelWidth * bytes_of.panel);  // the packed panels of a key block
  char* rows = w.take<char>(bytes_of.rows);
  char* values = w.take<char>(bytes_of.values);
  char* masked = w.take<char>(bytes_of.masked);
  char* gathered_keys = w.take<char>(bytes_of.gathered_keys);
  char* gathered_values = w.take<char>(bytes_of.gathered_values);
  float* alpha = w.take<float>(kScoreRows);
  Interval* see = w.take<Interval>(kRowBlock);  // the keys that the rules let each row see, masks aside
  RowModifiers* modifiers = w.take<RowModifiers>(kRowBlock);
  RowStates total;  // over all splits so far
  RowStates split;  // of the current split

  /// `memory`: of any alignment; null to measure.
  AttentionMemory(const OperandBytes& bytes, int64_t d_v, void* memory)
      : bytes_of(bytes), w(memory), total(w, kRowBlock, d_v), split(w, kRowBlock, d_v) {}
  size_t bytes() const { return w.bytes(); }
};

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_MEMORY_H_
