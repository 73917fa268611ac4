// The memory of a range of tasks, carved out of the caller's bytes.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_ATTENTION_MEMORY_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_ATTENTION_MEMORY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/drivers/attention/attention_division.h"
#include "lib/drivers/attention/operands.h"
#include "lib/drivers/attention/row_state.h"

namespace simdattn {

inline constexpr int64_t kBlockPanels = kKeyBlock / kPanelWidth;
/// Rows whose scores are taken at a time: 68 KiB, which stay in the CPU caches beside the keys and values of a block.
inline constexpr int64_t kScoreRows = 64;
/// Floats between rows of scores: a power of two would put the rows of a tile into the same sets of a CPU cache.
inline constexpr int64_t kScoreStride = kKeyBlock + 16;

/// Every array begins a line of the CPU caches.
inline constexpr int64_t kLine = 64;
constexpr int64_t round_to_lines(int64_t bytes) { return (bytes + kLine - 1) & -kLine; }
inline char* first_line(void* memory) {
  return static_cast<char*>(memory) + (0 - reinterpret_cast<uintptr_t>(memory)) % kLine;
}

/// Where the states of some rows are, relative to their beginning.
struct StatesLayout {
  int64_t ld;
  int64_t sum;  // the maxima come first
  int64_t acc;
  int64_t bytes;

  static_assert(kValueGroup % kStateStep == 0);

  StatesLayout() = default;
  StatesLayout(int64_t rows, int64_t d_v) {
    const int64_t column = round_to_lines(rows * int64_t{sizeof(float)});
    ld = (d_v + kValueGroup - 1) / kValueGroup * kValueGroup + kStateStep;
    sum = column;
    acc = 2 * column;
    bytes = acc + round_to_lines(rows * ld * int64_t{sizeof(float)});
  }
  RowStates at(char* memory) const {
    return {reinterpret_cast<float*>(memory), reinterpret_cast<float*>(memory + sum),
            reinterpret_cast<float*>(memory + acc), ld};
  }
};

/// Where everything is in one thread's working memory, which is constant in the lengths of the sequences. A plan computes
/// it once: asking the arithmetic for its sizes takes about as long as all checks of a range.
struct AttentionLayout {
  int64_t query_bytes;
  int64_t scores;  // offsets; the queries come first
  int64_t keys;
  int64_t key_rows;
  int64_t values;
  int64_t masked;
  int64_t alpha;
  int64_t see;
  int64_t modifiers;
  int64_t total;
  int64_t split;
  StatesLayout states;

  AttentionLayout() = default;
  AttentionLayout(const AttentionKernels& kernels, int64_t d_qk, int64_t d_v, KvType key_type, KvType value_type)
      : query_bytes(kernels.query_bytes(d_qk)), states(kRowBlock, d_v) {
    const int64_t panel_bytes = kernels.kv[slot(key_type)].panel_bytes(d_qk);
    scores = round_to_lines(kRowBlock * query_bytes);
    keys = scores + round_to_lines(kScoreRows * kScoreStride * int64_t{sizeof(float)});
    key_rows = keys + round_to_lines(kBlockPanels * panel_bytes);
    values = key_rows + round_to_lines(std::max(key_rows_bytes(kernels, key_type, d_qk),
                                                value_rows_bytes(kernels, value_type, d_v)));
    masked = values + round_to_lines(kernels.values_bytes(d_v));
    alpha = masked + round_to_lines(kernels.values_bytes(std::min(d_v, kValueGroup)));
    see = alpha + round_to_lines(kScoreRows * int64_t{sizeof(float)});
    modifiers = see + round_to_lines(kRowBlock * int64_t{sizeof(Interval)});
    total = modifiers + round_to_lines(kRowBlock * int64_t{sizeof(RowModifiers)});
    split = total + states.bytes;
  }
  /// Enough for memory of any alignment.
  size_t bytes() const { return static_cast<size_t>(split + states.bytes + kLine - 1); }
};

/// One thread's working memory.
struct AttentionMemory {
  char* q;                  // [kRowBlock] rows of queries as the arithmetic wants them
  float* scores;            // [kScoreRows][kScoreStride]
  char* keys;               // [kBlockPanels] packed panels
  char* key_rows;           // [kPanelWidth] rows of the storage type, gathered from several pages, or of f32
  char* values;             // a packed block
  char* masked;             // one of kValueGroup columns
  float* alpha;             // [kScoreRows]
  Interval* see;            // [kRowBlock] the keys that a row sees, masks aside
  RowModifiers* modifiers;  // [kRowBlock]
  RowStates total;          // over all splits so far
  RowStates split;          // of the current split
  int64_t query_bytes;

  /// `memory`: of any alignment.
  AttentionMemory(const AttentionLayout& at, void* memory) {
    char* m = first_line(memory);
    q = m;
    scores = reinterpret_cast<float*>(m + at.scores);
    keys = m + at.keys;
    key_rows = m + at.key_rows;
    values = m + at.values;
    masked = m + at.masked;
    alpha = reinterpret_cast<float*>(m + at.alpha);
    see = reinterpret_cast<Interval*>(m + at.see);
    modifiers = reinterpret_cast<RowModifiers*>(m + at.modifiers);
    total = at.states.at(m + at.total);
    split = at.states.at(m + at.split);
    query_bytes = at.query_bytes;
  }
};

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_ATTENTION_MEMORY_H_
