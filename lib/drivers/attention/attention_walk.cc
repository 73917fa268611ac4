// The rows of one task, and their way through splits, blocks of keys and tiles.
//
// Rows are query positions x the query heads that share the key head, so keys and values are read once for all of them:
// decode is a block whose rows are the heads of a group, prefill one whose rows are positions too. No matrix of scores
// exists beyond rows x kKeyBlock.
#include "lib/drivers/attention/attention_walk.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "lib/contract/fma.h"
#include "lib/definition/math.h"
#include "lib/drivers/attention/listed_keys.h"

namespace simdattn {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

/// True if every run of adjacent value rows begins at a multiple of `step` (AttentionKernels::value_step). Gathered
/// rows are added panel by panel, however many panels their ring holds.
bool whole_steps(const HeadOperands& v, int64_t step) {
  const ConstKv& kv = v.store.kv();
  const int64_t run = v.gathered() ? kPanelWidth : kv.page_size > 0 ? kv.page_size : kv.ring;
  return run % step == 0;
}

/// The rows of one task, and their way through the blocks of keys.
class RowBlock {
 public:
  RowBlock(const AttentionRun& run, const RowBlockIndex& index)
      : a_(run.problem),
        d_(run.division),
        uk_(run.kernels),
        ops_(kernels_of(uk_, a_.arithmetic, d_.partial_rows)),
        w_(run.memory),
        index_(index),
        seq_(sequence_of(a_, index.sequence)),
        rows_(std::min({d_.row_block, index.rows, seq_.n_q * d_.sizes.group - index.first_row})),
        masks_(has_masks(a_.scoring) && !has_lists(a_)),
        fetches_masks_(masks_ && rows_ > kFewRows),
        modifiers_(has_modifiers(a_.scoring)),
        alike_(modifies_heads_alike(a_.scoring) ? d_.sizes.group : 1),
        shapes_(a_.scoring.softcap > 0.0f || a_.scoring.alibi_slopes != nullptr),
        fetch_(rows_ > 1 ? d_.fetch : d_.fetch_one_row),
        k_(uk_, ops_, a_.k, index.sequence * (a_.cu_k == nullptr), index.kv_head, seq_.first_key, w_.key_rows),
        v_(uk_, ops_, a_.v, index.sequence * (a_.cu_k == nullptr), index.kv_head, seq_.first_key, w_.key_rows) {
    // Without any page, masks hide every key (check_pages).
    const bool no_pages = (a_.k.page_size > 0 && a_.k.n_pages == 0) || (a_.v.page_size > 0 && a_.v.n_pages == 0);
    if (no_pages) seq_.rules.start = seq_.rules.length;
    for (int64_t r = 0, n = alike_from(0); r < rows_; r += n, n = alike_from(r)) {
      const int64_t i = position_of(r);
      std::fill_n(w_.see + r, n, visible_interval(a_.scoring, seq_.rules, i));
      if (!modifiers_) continue;
      const int64_t mask_row = seq_.first_mask_row + i;
      std::fill_n(w_.modifiers + r, n, row_modifiers(a_.scoring, seq_.rules, head_of(r), i, seq_.mask_batch, mask_row));
    }
    if (fetches_masks_) prefetch_masks(w_.modifiers, {0, rows_}, alike_, w_.see[0].lo / kKeyBlock * kKeyBlock);
    if (index.listed) listed_.emplace(run, index, seq_);
  }

  /// The splits that some row sees a key of: neither end of an interval decreases from row to row.
  Interval splits() const {
    const Interval keys = listed_ ? Interval{0, listed_->places()} : Interval{w_.see[0].lo, w_.see[rows_ - 1].hi};
    return {keys.lo / kKeySplit, (keys.hi + kKeySplit - 1) / kKeySplit};
  }

  void load_queries() {
    const auto& stride = a_.q.stride;
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t at =
          seq_.q_batch * stride[0] + head_of(r) * stride[1] + (seq_.first_row + position_of(r)) * stride[2];
      ops_.prepare_query[slot(a_.q.dtype)](static_cast<const char*>(a_.q.data) + at * size_of(a_.q.dtype), query(r),
                                           d_.sizes.d_qk);
    }
  }

  /// States before the first key: empty, or with `sinks` the sink alone, a virtual key of value 0. The sink belongs to the first split. A
  /// sink of +inf is like a visible score of +inf.
  void start_states(const RowStates& s, bool sinks) const {
    for (int64_t r = 0; r < rows_; ++r) {
      const float sink = sinks && a_.scoring.sinks != nullptr ? a_.scoring.sinks[head_of(r)] : -kInf;
      s.max[r] = sink;
      s.sum[r] = sink == -kInf ? 0.0f : std::isfinite(sink) ? 1.0f : std::numeric_limits<float>::quiet_NaN();
      // Sixteen at a time: compilers make one long run into `rep stos`, which starts too slowly for a short row.
      for (float *d = s.acc + r * s.ld, *end = d + s.ld; d < end; d += kStateStep) std::memset(d, 0, kStateStep * 4);
    }
  }

  void run_split(int64_t split, const RowStates& s) {
    const int64_t end = std::min(listed_ ? listed_->places() : seq_.rules.length, (split + 1) * kKeySplit);
    for (int64_t key = split * kKeySplit; key < end; key += kKeyBlock) run_block(key, s);
  }

  /// a = a joined with b, which holds later keys.
  void merge(const RowStates& a, const RowStates& b) const {
    constexpr int64_t kAtOnce = 32;
    for (int64_t first = 0; first < rows_; first += kAtOnce) {
      const int64_t n = std::min(kAtOnce, rows_ - first);
      float below[2 * kAtOnce];  // the joined maximum: a's, then b's
      float weight[2 * kAtOnce];
      for (int64_t i = 0; i < n; ++i) {
        const float max = a.max[first + i];
        const float other = b.max[first + i];
        const float joined = other > max ? other : max;
        const float base = joined == -kInf ? 0.0f : joined;
        below[i] = max - base;
        below[n + i] = other - base;
        a.max[first + i] = joined;
      }
      uk_.exp(below, weight, 2 * n);
      for (int64_t i = 0, r = first; i < n; ++i, ++r) {
        a.sum[r] = fma(a.sum[r], weight[i], b.sum[r] * weight[n + i]);
        uk_.merge(a.acc + r * a.ld, weight[i], b.acc + r * b.ld, weight[n + i], d_.sizes.d_v);
      }
    }
  }

  void store(const RowStates& s) const {
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t h = head_of(r);
      const int64_t i = seq_.first_row + position_of(r);
      const float sum = s.sum[r];
      float* acc = s.acc + r * s.ld;
      // Every score was -inf: the row counts as one without keys, also where values are NaN.
      if (sum == 0.0f) std::fill_n(acc, d_.sizes.d_v, 0.0f);
      const bool nan = is_nan(sum);
      if (a_.out.data != nullptr) store_row(a_.out, h, i, acc, sum > 0.0f ? 1.0f / sum : sum);
      if (a_.acc.data != nullptr) store_row(a_.acc, h, i, acc, nan ? sum : 1.0f);
      if (a_.lse.data != nullptr) store_number(a_.lse, h, i, scalar::log_sum_exp(s.max[r], sum));
      if (a_.max.data != nullptr) store_number(a_.max, h, i, nan ? sum : s.max[r] + 0.0f);
      if (a_.sum.data != nullptr) store_number(a_.sum, h, i, sum);
    }
  }

 private:
  int64_t position_of(int64_t r) const { return (index_.first_row + r) / d_.sizes.group; }
  int64_t head_of(int64_t r) const { return index_.kv_head * d_.sizes.group + (index_.first_row + r) % d_.sizes.group; }
  /// How many rows from r on, heads of its position, have its modifiers.
  int64_t alike_from(int64_t r) const {
    return alike_ == 1 ? 1 : std::min(rows_ - r, alike_ - (index_.first_row + r) % alike_);
  }
  char* query(int64_t r) const { return w_.q + r * w_.bytes_of.query; }

  void store_row(const View<4>& out, int64_t h, int64_t i, const float* acc, float factor) const {
    const int64_t at = seq_.q_batch * out.stride[0] + h * out.stride[1] + i * out.stride[2];
    uk_.finish[slot(out.dtype)](acc, factor, static_cast<char*>(out.data) + at * size_of(out.dtype), d_.sizes.d_v);
  }
  void store_number(const View<3>& out, int64_t h, int64_t i, float x) const {
    static_cast<float*>(out.data)[seq_.q_batch * out.stride[0] + h * out.stride[1] + i * out.stride[2]] = canonical(x);
  }

  /// One block of the online softmax. A row that sees none of it is left as it is.
  void run_block(int64_t base, const RowStates& s) {
    Block b;
    b.base = base;
    if (listed_) listed_->begin(base, rows_, &k_, &v_, b.row);
    else look(b);
    if (b.few) run_few(b, s);
    int64_t begin = 0;
    int64_t end = rows_;
    while (begin < end && b.row[begin].none()) ++begin;
    while (begin < end && b.row[end - 1].none()) --end;
    if (begin == end) return;
    const int64_t rows = end - begin;
    const Interval all = b.seen_by(begin, rows);
    // Where rows see different keys (a diagonal), only as much is computed as each tile of rows needs.
    const bool alike = b.alike(begin, rows, all);
    const int64_t step = alike ? kScoreRows : ops_.tile_rows;
    // Keys that several tiles need are packed for all of them.
    const bool packed = k_.packs_keys(rows) && rows > step;
    for (int64_t c = all.lo / kPanelWidth * kPanelWidth; packed && c < all.hi; c += kPanelWidth) {
      k_.pack_panel(base, all.lo, all.hi, c, packed_panel(c), d_.fetch != Fetch::kNone);
    }
    const bool direct = whole_steps(v_, ops_.value_step) && takes_values(v_, base, all, rows);
    if (!direct) v_.pack_block(base, all.lo, all.hi, w_.values);
    std::optional<bool> finite;
    for (int64_t r = begin; r < end; r += step) {
      const int64_t n = std::min(step, end - r);
      const Interval see = alike ? all : b.seen_by(r, n);
      if (see.lo >= see.hi) continue;
      if (fetches_masks_) prefetch_masks(w_.modifiers, {r, r + n}, alike_, base + kKeyBlock);
      score(k_, base, see, r, n, rows, packed);
      const bool masked = modify(b, r, n);
      weigh(b, see, r, n, s);
      // A weight of 0 hides a finite value only; NaN and infinities in values that a row does not see must be skipped.
      const bool hides = masked || !(alike || b.alike(r, n, see));
      if (hides && !finite) finite = v_.finite(base, all.lo, all.hi);
      const ValueTile tile = value_tile(see, r, n, s);
      if (!hides || *finite) {
        add_values(v_, base, tile, direct);
        continue;
      }
      v_.add_visible(base, tile, w_.masked, [&](int64_t row, int64_t j) {
        const int64_t i = r + row;
        if (j < b.row[i].lo || j >= b.row[i].hi) return false;
        return listed_ ? listed_->sees(i, j) : !masks_ || mask_allows(w_.modifiers[i], base + j);
      });
    }
  }

  /// What each row sees. Rows that share masks, the heads of a group as a rule, share the look at them.
  void look(Block& b) const {
    Interval last = {0, 0};
    for (int64_t r = 0, n = alike_from(0); r < rows_; r += n, n = alike_from(r)) {
      const int64_t lo = std::clamp(w_.see[r].lo, b.base, b.base + kKeyBlock);
      const Interval keys = {lo, std::clamp(w_.see[r].hi, lo, b.base + kKeyBlock)};
      SeenColumns seen = masks_ && r > 0 ? b.row[r - 1] : all_columns(b.base, keys);
      const RowModifiers* const m = w_.modifiers + r;
      const bool same_keys = r > 0 && keys.lo == last.lo && keys.hi == last.hi;
      if (masks_ && !(same_keys && (same_masks(m[0], m[-1]) ||
                                    sees_alike(*m, b.base, keys, r % ops_.tile_rows != 0 && !gathers(r), &seen)))) {
        seen = seen_columns(*m, b.base, keys, gathers(r));
        b.few |= seen.few();
      }
      std::fill_n(b.row + r, n, seen);
      last = keys;
    }
  }

  /// True if keys of row r may be gathered. Rows that share masks (the heads of a group) gain from it; a row alone is quicker in a tile
  /// with others. kBF16 gathers nothing: its chains end at fixed columns.
  bool gathers(int64_t r) const {
    const int64_t last = r + kFewRows - 1;
    return a_.arithmetic != Arithmetic::kBF16 &&
           (rows_ <= kFewRows || (last < rows_ && same_masks(w_.modifiers[r], w_.modifiers[last])));
  }

  /// Takes rows that see the same few keys of a block: these keys are gathered and multiplied as a block of their own; for the softmax
  /// their scores return to their columns. Afterwards the rows count as seeing nothing of the block.
  void run_few(Block& b, const RowStates& s) const {
    for (int64_t r = 0, n; r < rows_; r += n) {
      n = 1;
      const Interval see = {b.row[r].lo, b.row[r].hi};
      if (!b.row[r].few() || !gathers(r)) continue;
      const RowModifiers& m = w_.modifiers[r];
      while (n < kScoreRows && r + n < rows_ && b.alike(r + n, 1, see) && same_masks(m, w_.modifiers[r + n])) ++n;
      uint8_t list[kKeyBlock];
      const int64_t count = seen_columns(m, b.base, {b.base + see.lo, b.base + see.hi}, true, list).visible;
      if (4 * count > see.hi - see.lo) continue;
      int32_t tokens[kFewKeys];
      for (int64_t j = 0; j < count; ++j) tokens[j] = static_cast<int32_t>(b.base + list[j]);
      const bool fetch = fetch_ != Fetch::kNone;
      GatheredRows values(uk_, v_.store, w_.gathered_values);
      values.begin(tokens, count, 0, nullptr, fetch);
      for (int64_t j = 0; fetch && j < count; ++j) {
        const char* const row = values.rows(0)[j];
        for (int64_t i = 0; i < values.kv().token_stride; i += 64) __builtin_prefetch(row + i);
      }
      if (k_.store.panels()) {
        score(k_, b.base, see, r, n, n, false);
      } else {
        GatheredRows keys(uk_, k_.store, w_.gathered_keys);
        keys.begin(tokens, count, 0, nullptr, fetch);
        score(HeadOperands(uk_, ops_, keys, keys.kv(), w_.key_rows), 0, {0, count}, r, n, n, false);
        for (int64_t i = 0; i < n; ++i) {
          float* const row = w_.scores + i * kScoreStride;
          float few[kFewKeys];
          std::copy_n(row, count, few);
          std::fill(row + see.lo, row + see.hi, 0.0f);  // any numbers: they are masked
          for (int64_t j = 0; j < count; ++j) row[list[j]] = few[j];
        }
      }
      modify(b, r, n);
      weigh(b, see, r, n, s);
      for (int64_t i = 0; i < n; ++i) {
        float* const row = w_.scores + i * kScoreStride;
        for (int64_t j = 0; j < count; ++j) row[j] = row[list[j]];
      }
      const HeadOperands v(uk_, ops_, values, values.kv(), w_.key_rows);
      const bool direct = whole_steps(v, ops_.value_step) && takes_values(v, 0, {0, count}, n);
      if (!direct) v.pack_block(0, 0, count, w_.values);
      add_values(v, 0, value_tile({0, count}, r, n, s), direct);
      std::fill_n(b.row + r, n, SeenColumns{});
    }
  }

  char* packed_panel(int64_t column) const { return w_.keys + column / kPanelWidth * w_.bytes_of.panel; }

  /// Scores of rows [r, r + n) in the panels that hold columns `see`. `rows`: for so many keys are read. `packed`: the panels were packed before,
  /// for several tiles of rows.
  void score(const HeadOperands& k, int64_t base, Interval see, int64_t r, int64_t n, int64_t rows, bool packed) const {
    const int64_t first = see.lo / kPanelWidth * kPanelWidth;
    const ScoreTile tile = {.q = query(r),
                            .q_stride = w_.bytes_of.query,
                            .rows = n,
                            .panels = packed_panel(first),
                            .panel_stride = w_.bytes_of.panel,
                            .n_panels = (round_up(see.hi, kPanelWidth) - first) / kPanelWidth,
                            .dim = d_.sizes.d_qk,
                            .scale = d_.scale,
                            .s = w_.scores + first,
                            .lds = kScoreStride,
                            .keys_at_once = d_.keys_at_once,
                            .room = w_.keys};
    if (packed) k.slots.score_packed(tile);
    else k.score(tile, base, see.lo, see.hi, rows, fetch_, d_.fetch);
  }

  /// Softcap, ALiBi, bias and masks. True if a key of some row's interval was masked.
  bool modify(const Block& b, int64_t r, int64_t n) const {
    bool masked = false;
    for (int64_t i = r; listed_ && i < r + n; ++i) {
      masked |= listed_->modify(i, b.row[i], w_.scores + (i - r) * kScoreStride);
    }
    for (int64_t i = r; modifiers_ && !listed_ && i < r + n; ++i) {
      const int64_t lo = shapes_ ? b.row[i].lo : b.row[i].from;
      const int64_t hi = shapes_ ? b.row[i].hi : b.row[i].to;
      float* s = w_.scores + (i - r) * kScoreStride;
      if (lo < hi) masked |= simdattn::modify(uk_, {w_.modifiers[i], s, s, b.base, lo, hi, 1.0f, true}).masked;
    }
    return masked;
  }

  /// Scores of rows [r, r + n) in columns `see` become weights.
  void weigh(const Block& b, Interval see, int64_t r, int64_t n, const RowStates& s) const {
    const int64_t first = see.lo / kPanelWidth * kPanelWidth;  // partial sums keep their elements: 32 is 2 * 16
    int32_t lo[kScoreRows];
    int32_t hi[kScoreRows];
    for (int64_t i = 0; i < n; ++i) {
      const SeenColumns& row = b.row[r + i];
      lo[i] = row.none() ? 0 : row.lo - static_cast<int32_t>(first);
      hi[i] = row.none() ? 0 : row.hi - static_cast<int32_t>(first);
    }
    ops_.softmax_tile({.s = w_.scores + first,
                       .lds = kScoreStride,
                       .rows = n,
                       .columns = round_up(see.hi, kHalfPanel) - first,
                       .lo = lo,
                       .hi = hi,
                       .max = s.max + r,
                       .sum = s.sum + r,
                       .alpha = w_.alpha});
  }

  /// True if value_tile takes these values from where they are, for `rows` rows; false if they are packed first.
  bool takes_values(const HeadOperands& v, int64_t base, Interval keys, int64_t rows) const {
    // Integers in place want scales that are not negative.
    const bool signed_scales = a_.arithmetic == Arithmetic::kInt8 && has_scales(a_.v.type);
    return rows <= kDirectRows && v.slots.value_tile != nullptr &&
           !(signed_scales && v.negative_scales(base, keys.lo, keys.hi));
  }

  /// acc = alpha * acc + weights * values for rows [r, r + n) and columns `see`, of a packed block.
  ValueTile value_tile(Interval see, int64_t r, int64_t n, const RowStates& s) const {
    return {.w = w_.scores + see.lo,
            .ldw = kScoreStride,
            .rows = n,
            .v = w_.values,
            .first_key = see.lo,
            .group_stride = row_bytes(a_.v.type, kValueGroup),
            .keys = see.hi - see.lo,
            .dim = d_.sizes.d_v,
            .o = s.acc + r * s.ld,
            .ldo = s.ld,
            .alpha = w_.alpha};
  }

  /// Adds the values of a tile, of the packed block, or if `direct` from where they are.
  void add_values(const HeadOperands& v, int64_t base, ValueTile tile, bool direct) const {
    if (!direct) return ops_.value_packed(tile);
    const auto add = [&](int64_t c, int64_t keys, const char* rows, const float* scales) {
      tile.w = w_.scores + c;
      tile.v = rows;
      tile.key_stride = v.stride();
      tile.scales = scales;
      tile.first_key = c;
      tile.keys = keys;
      tile.fetch = v.goes_on() ? fetch_ : Fetch::kNone;
      v.slots.value_tile(tile);
      tile.alpha = nullptr;  // later runs of the block continue the sum
    };
    const int64_t end = tile.first_key + tile.keys;
    const bool whole = tile.dim % kValueGroup == 0;
    for (int64_t c = tile.first_key, next; c < end; c = next) {
      next = v.gathered() ? std::min((c / kPanelWidth + 1) * kPanelWidth, end) : end;
      const char* const* const listed = whole ? v.listed(base + c) : nullptr;
      tile.listed = listed != nullptr ? listed + c % kPanelWidth : nullptr;
      if (listed != nullptr) add(c, next - c, *tile.listed, nullptr);
      else v.for_each_run(base, c, next, add);
    }
  }

  const AttentionProblem& a_;
  const Division& d_;
  const UKernels& uk_;           // of the target
  const AttentionKernels& ops_;  // of its arithmetic
  const AttentionMemory& w_;
  RowBlockIndex index_;
  Sequence seq_;
  int64_t rows_;
  bool masks_;
  bool fetches_masks_;  // those of few rows are left to the hardware
  bool modifiers_;
  int64_t alike_;  // rows of a position whose modifiers are the same: all, or 1
  bool shapes_;    // a softcap or ALiBi changes every score
  Fetch fetch_;
  HeadOperands k_;
  HeadOperands v_;
  std::optional<ListedKeys> listed_;
};

}  // namespace

void run_row_block(const AttentionRun& run, const RowBlockIndex& index) {
  const AttentionMemory& w = run.memory;
  for_each_list(run, index, [&](const RowBlockIndex& part) {
    RowBlock block(run, part);
    block.load_queries();
    block.start_states(w.total, true);
    const Interval splits = block.splits();
    for (int64_t split = splits.lo; split < splits.hi; ++split) {
      if (split == 0) {
        block.run_split(0, w.total);
      } else {
        block.start_states(w.split, false);
        block.run_split(split, w.split);
        block.merge(w.total, w.split);
      }
    }
    block.store(w.total);
  });
}

void run_split(const AttentionRun& run, const RowBlockIndex& index, int64_t split, const RowStates& states) {
  for_each_list(run, index, [&](const RowBlockIndex& part) {
    const RowStates s = states.from(part.first_row - index.first_row);
    RowBlock block(run, part);
    block.start_states(s, split == 0);
    const Interval splits = block.splits();
    if (split < splits.lo || split >= splits.hi) return;
    block.load_queries();
    block.run_split(split, s);
  });
}

void reduce_splits(const AttentionRun& run, const RowBlockIndex& index, Interval splits, const Partials& partials,
                   int64_t first_task) {
  const RowBlock block(run, index);
  // The states of split 0 hold the sink. Where no task has it, as its keys are gone, only the sink is left of it.
  block.start_states(run.memory.total, splits.lo > 0);
  for (int64_t split = splits.lo; split < splits.hi; ++split) {
    block.merge(run.memory.total, partials.of_task(first_task++));
  }
  block.store(run.memory.total);
}

}  // namespace simdattn
