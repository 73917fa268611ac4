// The memory of a range of tasks, carved out of the caller's bytes.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_MEMORY_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_MEMORY_H_

#include "lib/drivers/attention_division.h"
#include "lib/drivers/row_state.h"
#include "lib/drivers/workspace.h"
#include "lib/ukernels.h"

namespace simdattn {

inline constexpr int64_t kBlockPanels = kKeyBlock / kPanelWidth;
/// Rows whose scores are taken at a time: 68 KiB, which stay in the CPU caches beside the keys and values of a block.
inline constexpr int64_t kScoreRows = 64;
/// Floats between rows of scores: a power of two would put the rows of a tile into the same sets of a CPU cache.
inline constexpr int64_t kScoreStride = kKeyBlock + 16;

/// One thread's working memory; constant in the lengths of the sequences.
struct AttentionMemory {
  char* q;          // [kRowBlock] rows of queries as the arithmetic wants them
  float* scores;    // [kScoreRows][kScoreStride]
  char* keys;       // [kBlockPanels] packed panels
  char* key_rows;   // [kPanelWidth] rows of the storage type, gathered from several pages
  char* values;     // a packed block
  float* alpha;     // [kScoreRows]
  RowStates total;  // over all splits so far
  RowStates split;  // of the current split
  int64_t query_bytes;
  int64_t panel_bytes;

  AttentionMemory(Workspace& w, const AttentionKernels& kernels, int64_t d_qk, int64_t d_v, KvType key_type) {
    query_bytes = kernels.query_bytes(d_qk);
    panel_bytes = kernels.panel_bytes(d_qk);
    q = w.take<char>(kRowBlock * query_bytes);
    scores = w.take<float>(kScoreRows * kScoreStride);
    keys = w.take<char>(kBlockPanels * panel_bytes);
    key_rows = w.take<char>(kPanelWidth * row_bytes(key_type, d_qk));
    values = w.take<char>(kernels.values_bytes(d_v));
    alpha = w.take<float>(kScoreRows);
    total = take_states(w, kRowBlock, d_v);
    split = take_states(w, kRowBlock, d_v);
  }

  static RowStates take_states(Workspace& w, int64_t rows, int64_t d_v) {
    RowStates s;
    s.ld = (d_v + kValueGroup - 1) / kValueGroup * kValueGroup + 16;
    s.max = w.take<float>(rows);
    s.sum = w.take<float>(rows);
    s.acc = w.take<float>(rows * s.ld);
    return s;
  }
};

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_MEMORY_H_
