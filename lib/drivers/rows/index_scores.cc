// index_scores(): how much each row wants each key or block of keys.
//
// Rows are the heads of one position, or of several, as in attention: a block of keys is packed once for up to kMostRows of them. Scores
// of kTileRows rows and a block of keys are taken at a time and joined head by head while they are in the caches.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/drivers/attention/attention_division.h"
#include "lib/drivers/attention/operands.h"
#include "lib/drivers/attention/scoring.h"
#include "lib/drivers/attention/workspace.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/rows/rows.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
/// Rows that share the packing of a block of keys, of positions that are whole.
constexpr int64_t kMostRows = 256;
/// Rows whose scores are taken at a time, and the floats between them: see attention_walk.h.
constexpr int64_t kTileRows = 64;
constexpr int64_t kStride = kKeyBlock + 16;
constexpr double kStreamBytes = 1 << 20;

constexpr int64_t positions_at_once(int64_t heads) { return std::max(kMostRows / heads, int64_t{1}); }
int64_t rows_at_once(const ConstView<4>& q) { return q.shape[1] * std::min(q.shape[2], positions_at_once(q.shape[1])); }

/// Enough for every target: none has operands wider than f32, or rounds a dimension up to more than 64.
struct IndexBuffers {
  Workspace w;
  int64_t heads;
  int64_t dim;
  int64_t padded = (dim + 63) / 64 * 64;
  int64_t rows = heads * positions_at_once(heads);
  char* q = w.take<char>(rows * (4 * padded + 64));
  char* panels = w.take<char>(kKeyBlock * (4 * padded + 4));
  char* key_rows = w.take<char>(kLoadedRows * 4 * (dim + 8));
  float* scores = w.take<float>(kTileRows * kStride);
  float* joined = w.take<float>(kMostRows * kKeyBlock);  // [positions][kKeyBlock]
};

class Indexer {
 public:
  Indexer(const UKernels& uk, const ConstView<4>& q, const ConstKv& k, const ConstView<3>& weights,
          const View<4>& scores, const IndexOptions& options, const RowPositions& positions, const IndexBuffers& w)
      : uk_(uk),
        ops_(kernels_of(uk, options.arithmetic, rows_at_once(q))),
        q_(q),
        k_(k),
        weights_(weights),
        out_(scores),
        o_(options),
        positions_(positions),
        w_(w),
        heads_(q.shape[1]),
        candidate_(options.block_size / options.keys_per_row),
        scale_(options.scale ? *options.scale : 1.0f / std::sqrt(static_cast<float>(q.shape[3]))),
        query_bytes_(ops_.query_bytes(k.dim)),
        fetch_(fetch_of(static_cast<double>(k.keys()) * static_cast<double>(row_bytes(k.type, k.dim)), kStreamBytes)) {}

  /// Rows first .. first + n - 1 of a sequence.
  void run(int64_t b, int64_t first, int64_t n) const {
    const HeadOperands keys(uk_, ops_, k_, b, 0, 0, w_.key_rows);
    for (int64_t r = 0; r < n * heads_; ++r) {
      ops_.prepare_query[slot(q_.dtype)](row_of(q_, b, r % heads_, first + r / heads_), w_.q + r * query_bytes_,
                                         k_.dim);
    }
    const int64_t from = o_.first * candidate_;
    const int64_t to = std::min(from + out_.shape[3] * candidate_, k_.keys());
    const int64_t seen = std::min(to, rows_seen(b, first + n - 1));  // by the last row, which sees most
    for (int64_t i = first; i < first + n; ++i) {
      for (int64_t h = 0; h < out_.shape[1]; ++h) std::fill_n(f32_row_of(out_, b, h, i), out_.shape[3], -kInf);
    }
    for (int64_t base = from / kKeyBlock * kKeyBlock; base < seen; base += kKeyBlock) {
      score_block(keys, b, first, n, base, {std::max(from - base, int64_t{0}), std::min(seen - base, kKeyBlock)});
    }
  }

 private:
  /// Rows of k that row i of q sees: the first ones.
  int64_t rows_seen(int64_t b, int64_t i) const {
    int64_t keys = positions_.length(b);
    if (o_.causal) keys = std::clamp(positions_.of_row(b, i) + 1, int64_t{0}, keys);
    return std::min(keys / o_.keys_per_row, k_.keys());
  }

  void score_block(const HeadOperands& keys, int64_t b, int64_t first, int64_t n, int64_t base, Interval see) const {
    const int64_t panel_bytes = keys.slots.panel_bytes(k_.dim);
    const int64_t begin = see.lo / kPanelWidth * kPanelWidth;
    const int64_t all = n * heads_;
    // Keys that several tiles need are packed for all of them, and rows for one call of a tile.
    const bool packed = keys.packs_keys(all) && all > (keys.store.panels() ? kTileRows : keys.slots.direct_key_rows);
    for (int64_t c = begin; packed && c < see.hi; c += kPanelWidth) {
      keys.pack_panel(base, see.lo, see.hi, c, w_.panels + c / kPanelWidth * panel_bytes, fetch_ != Fetch::kNone);
    }
    for (int64_t r = 0, rows; r < all; r += rows) {
      rows = std::min(kTileRows, all - r);
      const ScoreTile tile = {.q = w_.q + r * query_bytes_,
                              .q_stride = query_bytes_,
                              .rows = rows,
                              .panels = w_.panels + begin / kPanelWidth * panel_bytes,
                              .panel_stride = panel_bytes,
                              .n_panels = (see.hi - begin + kPanelWidth - 1) / kPanelWidth,
                              .dim = k_.dim,
                              .scale = scale_,
                              .s = w_.scores + begin,
                              .lds = kStride,
                              .room = w_.panels};
      if (packed) keys.slots.score_packed(tile);
      else keys.score(tile, base, see.lo, see.hi, all, fetch_, fetch_);
      // Heads of one position at a time; a head by itself where each has a row of its own.
      for (int64_t x = r, joined; x < r + rows; x += joined) {
        const int64_t head = x % heads_;
        joined = o_.combine == IndexCombine::kEach ? 1 : std::min(heads_ - head, r + rows - x);
        const int64_t position = x / heads_;
        join(b, first + position, head, joined, w_.scores + (x - r) * kStride + see.lo, see, position);
        if (o_.combine == IndexCombine::kEach || head + joined == heads_) {
          const int64_t out_head = o_.combine == IndexCombine::kEach ? head : 0;
          put(b, out_head, first + position, base, see, w_.joined + position * kKeyBlock);
        }
      }
    }
  }

  void join(int64_t b, int64_t i, int64_t head, int64_t rows, const float* s, Interval see, int64_t position) const {
    const float* weights = nullptr;
    if (weights_.data != nullptr) {
      weights = static_cast<const float*>(weights_.data) + b * step_of(weights_, 0) + i * step_of(weights_, 1) + head;
    }
    uk_.join_rows({.s = s,
                   .lds = kStride,
                   .rows = rows,
                   .columns = see.hi - see.lo,
                   .weights = weights,
                   .relu = o_.relu,
                   .largest = o_.combine != IndexCombine::kSum,
                   .more = o_.combine != IndexCombine::kEach && head > 0,
                   .y = w_.joined + position * kKeyBlock});
  }

  /// Scores y of columns `see` of a block to those candidates that the row sees.
  void put(int64_t b, int64_t h, int64_t i, int64_t base, Interval see, const float* y) const {
    float* const out = f32_row_of(out_, b, h, i);
    const int64_t end = std::min(see.hi, rows_seen(b, i) - base);
    for (int64_t c = see.lo; c < end;) {
      const int64_t candidate = (base + c) / candidate_;
      const int64_t stop = candidate_ == 1 ? end : std::min(end, (candidate + 1) * candidate_ - base);
      float* const to = out + candidate - o_.first;
      if (candidate_ == 1) std::copy_n(y, stop - c, to);
      else
        for (int64_t x = c; x < stop; ++x) *to = y[x - see.lo] > *to ? y[x - see.lo] : *to;
      c = stop;
    }
  }

  const UKernels& uk_;
  const AttentionKernels& ops_;
  const ConstView<4>& q_;
  const ConstKv& k_;
  const ConstView<3>& weights_;
  const View<4>& out_;
  const IndexOptions& o_;
  const RowPositions& positions_;
  const IndexBuffers& w_;
  int64_t heads_;
  int64_t candidate_;  // rows of k of a candidate
  float scale_;
  int64_t query_bytes_;
  Fetch fetch_;
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
  const RowPositions positions = {options.kv_length, options.offsets,
                                  options.keys == -1 ? k.keys() * options.keys_per_row : options.keys, options.offset,
                                  q.shape[2]};
  const IndexBuffers buffers = {Workspace(exec.workspace), heads, q.shape[3]};
  const Indexer indexer(uk, q, k, weights, scores, options, positions, buffers);
  const KernelHooks hooks(kernels_of(uk, options.arithmetic, rows_at_once(q)));
  const int64_t at_once = positions_at_once(heads);
  for (int64_t b = 0; b < q.shape[0]; ++b) {
    for (int64_t i = 0; i < q.shape[2]; i += at_once) indexer.run(b, i, std::min(at_once, q.shape[2] - i));
  }
  return {};
}

}  // namespace simdattn
