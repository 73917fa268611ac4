// What tasks of attention keep in the caller's bytes.
#pragma once

#include "lib/contract/steps.h"
#include "lib/drivers/attention/division.h"
#include "lib/drivers/shared/operands.h"
#include "lib/drivers/shared/workspace.h"

namespace simdattn {

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

  RowStates from(int64_t row) const {
    RowStates s = *this;
    s.max += row;
    s.sum += row;
    s.acc += row * ld;
    return s;
  }
};

/// The states of all splits, in the buffer that all threads share, where splits are tasks.
struct Partials {
  const Division& division;
  Workspace w;
  RowStates states{w, division.partial_rows, division.sizes.d_v};

  RowStates of_task(int64_t task) const { return states.from(task * division.most_rows); }
};
/// Bytes of that buffer; 0 if they are too many.
inline size_t partial_bytes(const Division& d) {
  constexpr int64_t kMost = int64_t{1} << 62;
  if (d.partial_rows > kMost / round_up(d.sizes.d_v + kStateStep, kValueGroup) / 8) return 0;
  return Partials{d, Workspace(nullptr)}.w.bytes();
}

/// One thread's working memory. Its size depends neither on the lengths of the sequences nor on an address: those of a
/// plan may change (attention_bind).
struct AttentionMemory {
  const AttentionKernels& kernels;
  const AttentionProblem& a;
  const AttentionSizes& sizes;
  Workspace w;
  bool may_share_copies = has_lists(a) && may_lie_inside_keys(a.v, a.k);
  /// Values that lie inside of the keys of a list are read from the copies of these. Else negative.
  int64_t values_inside_keys = may_share_copies ? simdattn::values_inside_keys(a.v, a.k) : -1;
  const KvOperands& k = kernels.kv[index_of(a.k.type)];
  const KvOperands& v = kernels.kv[index_of(a.v.type)];
  int64_t query_bytes = kernels.query_bytes(sizes.d_qk);  // of a row of queries as the arithmetic wants it
  char* queries = w.take<char>(kRowBlock * query_bytes);
  float* scores = w.take<float>(kScoreRows * kScoreStride);                        // [kScoreRows][kScoreStride]
  char* keys = w.take<char>(kKeyBlock / kPanelWidth * k.panel_bytes(sizes.d_qk));  // the packed panels of a key block
  char* rows = w.take<char>(loaded_rows_bytes());
  char* values = w.take<char>(kernels.values_bytes(sizes.d_v));  // the packed values of a key block
  char* masked = w.take<char>(kernels.values_bytes(std::min(sizes.d_v, kValueGroup)));
  /// Values are read after all keys of a key block: if from copies of these, there must be so many.
  GatheredMemory gathered_keys{w, a.k.type, sizes.d_qk, may_share_copies ? kKeyBlock / kPanelWidth : 1};
  GatheredMemory gathered_values{w, a.v.type, sizes.d_v};
  float* alpha = w.take<float>(kScoreRows);
  Interval* see = w.take<Interval>(kRowBlock);  // the keys that the rules let each row see, masks aside
  RowModifiers* modifiers = w.take<RowModifiers>(kRowBlock);
  RowStates total{w, kRowBlock, sizes.d_v};  // over all splits so far
  RowStates split{w, kRowBlock, sizes.d_v};  // of the current split

  /// Of kLoadedRows rows: of keys as stored, put together from several runs, or of keys or values as f32.
  int64_t loaded_rows_bytes() const {
    const bool loads_keys = k.pack_keys == nullptr || k.pack_panel == nullptr;
    const int64_t loaded = std::max(loads_keys ? sizes.d_qk : 0, v.pack_values == nullptr ? sizes.d_v : 0);
    return kLoadedRows * std::max(row_bytes(a.k.type, sizes.d_qk), 4 * loaded);
  }
};

/// What the tasks of a range share.
struct AttentionRun {
  const AttentionProblem& problem;
  const Division& division;
  const UKernels& kernels;
  void* workspace;                                      // null: to measure
  Modifiers modifiers = modifiers_of(problem.scoring);  // what those of the call do
  AttentionMemory memory{kernels_of(kernels, problem.arithmetic, division.most_rows), problem, division.sizes,
                         Workspace(workspace)};
};

}  // namespace simdattn
