// index_scores(): how much each row wants each candidate: a key, or a listed block. Rows are the heads of one position,
// or of several, as in attention: a key block is packed once for up to kMostRows of them. Scores of kScoreRows rows and
// a key block are taken at a time and joined head by head while they are in the caches.
#include <algorithm>

#include "lib/contract/operand_bytes.h"
#include "lib/contract/steps.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/shared/operands.h"
#include "lib/drivers/shared/rows.h"
#include "lib/drivers/shared/workspace.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// Rows that share the packing of a key block, of positions that are whole.
constexpr int64_t kMostRows = 256;
constexpr double kFetchedKeyBytes = 1 << 20;

constexpr int64_t positions_at_once(int64_t heads) { return std::max(kMostRows / heads, int64_t{1}); }
int64_t rows_at_once(const ConstView<4>& q) { return q.shape[1] * std::min(q.shape[2], positions_at_once(q.shape[1])); }

/// Enough for every target.
struct IndexBuffers {
  Workspace w;
  int64_t heads;
  int64_t dim;
  int64_t rows = heads * positions_at_once(heads);
  char* q = w.take<char>(rows * most_query_bytes(dim));
  char* panels = w.take<char>(kKeyBlock / kPanelWidth * most_panel_bytes(dim));
  char* key_rows = w.take<char>(kLoadedRows * 4 * (dim + 8));
  float* scores = w.take<float>(kScoreRows * kScoreStride);
  float* joined = w.take<float>(kKeyBlock);  // of one position, whose heads may be in several tiles
};

struct Indexer {
  const UKernels& uk;
  const ConstView<4>& q;
  const ConstKv& k;
  const ConstView<3>& weights;
  const View<4>& out;
  const IndexOptions& options;
  const IndexBuffers& w;
  const AttentionKernels& ops = kernels_of(uk, options.arithmetic, rows_at_once(q));
  int64_t heads = q.shape[1];
  bool each = options.combine == IndexCombine::kEach;
  int64_t candidate = options.block_size / options.keys_per_row;  // rows of k of a candidate
  float scale = scale_of(options.scale, k.dim);
  int64_t query_bytes = ops.query_bytes(k.dim);
  Fetch fetch =
      fetch_of(static_cast<double>(k.keys()) * static_cast<double>(row_bytes(k.type, k.dim)), kFetchedKeyBytes);

  /// Rows first .. first + n - 1 of a sequence.
  void run(int64_t b, int64_t first, int64_t n) const {
    const KvStore store(k, b, 0);
    for (int64_t r = 0; r < n * heads; ++r) {
      ops.prepare_query[index_of(q.dtype)](row_of(q, b, r % heads, first + r / heads), w.q + r * query_bytes, k.dim);
    }
    for (int64_t i = first; i < first + n; ++i) {
      for (int64_t h = 0; h < out.shape[1]; ++h) std::fill_n(f32_row_of(out, b, h, i), out.shape[3], -kInf);
    }
    const int64_t from = options.first * candidate;
    // What the last row sees, which sees most.
    const int64_t seen = std::min(from + out.shape[3] * candidate, rows_seen(b, first + n - 1));
    for (int64_t base = from / kKeyBlock * kKeyBlock; base < seen; base += kKeyBlock) {
      score_block({store, base}, b, first, n * heads, base,
                  {std::max(from - base, int64_t{0}), std::min(seen - base, kKeyBlock)});
    }
  }

  /// Rows of k that row i of q sees: the first ones.
  int64_t rows_seen(int64_t b, int64_t i) const {
    int64_t keys = length_of(options, b, k.keys() * options.keys_per_row);
    if (options.causal) keys = std::clamp(first_position(options, b, keys, q.shape[2]) + i + 1, int64_t{0}, keys);
    return std::min(keys / options.keys_per_row, k.keys());
  }

  /// `all`: heads of all positions.
  void score_block(const BlockTokens& keys, int64_t b, int64_t first, int64_t all, int64_t base, Interval see) const {
    const Operands operands = {uk, ops, k.type, k.dim, w.key_rows, w.panels, fetch};
    // Keys that several tiles need are packed for all of them, and rows for one call of a tile.
    const int64_t at_once = keys.panels() ? kScoreRows : operands.slots.direct_key_rows;
    const ScoreWay way = operands.prepare_keys(keys, see, all, at_once);
    for (int64_t r = 0; r < all; r += kScoreRows) {
      const ScoreTile tile = {.q = w.q + r * query_bytes,
                              .q_stride = query_bytes,
                              .rows = std::min(kScoreRows, all - r),
                              .scale = scale,
                              .s = w.scores,
                              .lds = kScoreStride,
                              .fetch = fetch};
      operands.score(way, tile, keys, see);
      // Heads of one position at a time; a head by itself where each has a row of its own.
      for (int64_t x = r, joined; x < r + tile.rows; x += joined) {
        const int64_t head = x % heads, i = first + x / heads;
        joined = each ? 1 : std::min(heads - head, r + tile.rows - x);
        uk.join_rows({.s = w.scores + (x - r) * kScoreStride + see.lo,
                      .lds = kScoreStride,
                      .rows = joined,
                      .columns = see.hi - see.lo,
                      .weights = weights_of(b, i, head),
                      .relu = options.relu,
                      .largest = options.combine != IndexCombine::kSum,
                      .more = !each && head > 0,
                      .y = w.joined});
        if (each || head + joined == heads) put(b, each ? head : 0, i, base, see, w.joined);
      }
    }
  }

  const float* weights_of(int64_t b, int64_t i, int64_t head) const {
    if (weights.data == nullptr) return nullptr;
    return static_cast<const float*>(weights.data) + b * step_of(weights, 0) + i * step_of(weights, 1) + head;
  }

  /// Scores y of columns `see` of a key block to those candidates that the row sees.
  void put(int64_t b, int64_t h, int64_t i, int64_t base, Interval see, const float* y) const {
    const int64_t end = std::min(see.hi, rows_seen(b, i) - base);
    float* const row = f32_row_of(out, b, h, i) - options.first;
    if (candidate == 1 && see.lo < end) {  // as below: a NaN becomes -inf
      uk.join_rows({.s = y,
                    .lds = 0,
                    .rows = 1,
                    .columns = end - see.lo,
                    .weights = nullptr,
                    .relu = false,
                    .largest = true,
                    .more = false,
                    .y = row + base + see.lo});
      return;
    }
    for (int64_t c = see.lo, stop; c < end; c = stop) {
      const int64_t number = (base + c) / candidate;
      stop = std::min(end, (number + 1) * candidate - base);
      for (int64_t x = c; x < stop; ++x) row[number] = y[x - see.lo] > row[number] ? y[x - see.lo] : row[number];
    }
  }
};

}  // namespace

size_t drivers::index_scores_workspace(Arithmetic arithmetic, int64_t heads, int64_t dim) {
  if (!is_arithmetic(arithmetic) || heads < 1 || heads > kMaxSize || dim < 1 || dim > kMaxSize) return 0;
  return IndexBuffers{Workspace(nullptr), heads, dim}.w.bytes();
}

Status drivers::index_scores(const UKernels& uk, const ConstView<4>& q, const ConstKv& k, const ConstView<3>& weights,
                             const View<4>& scores, const IndexOptions& options, const Exec& exec) {
  const int64_t heads = q.shape[1];
  const size_t needed = drivers::index_scores_workspace(options.arithmetic, heads, q.shape[3]);
  SIMDATTN_CHECK(check_index_scores(q, k, weights, scores, options, exec, needed));
  if (is_empty(scores)) return {};
  const IndexBuffers buffers = {Workspace(exec.workspace), heads, q.shape[3]};
  const Indexer indexer = {uk, q, k, weights, scores, options, buffers};
  const KernelHooks hooks(indexer.ops);
  const int64_t at_once = positions_at_once(heads);
  for (int64_t b = 0; b < q.shape[0]; ++b) {
    for (int64_t i = 0; i < q.shape[2]; i += at_once) indexer.run(b, i, std::min(at_once, q.shape[2] - i));
  }
  return {};
}

}  // namespace simdattn
