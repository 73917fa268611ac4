// The rows of one task, and their way through splits, blocks of keys and tiles.
//
// Rows are query positions x the query heads that share the key head, so keys and values are read once for all of them:
// decode is a block whose rows are the heads of a group, prefill one whose rows are positions too. No matrix of scores
// exists beyond rows x kKeyBlock.
#include "lib/drivers/attention/attention_walk.h"

#include <algorithm>
#include <limits>

#include "lib/contract/dtypes.h"
#include "lib/definition/math.h"
#include "lib/drivers/attention/operands.h"
#include "lib/drivers/attention/scoring.h"
#include "lib/drivers/cache/kv_store.h"

namespace simdattn {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
/// Row-major keys that only these rows need are packed so many bytes at a time, and their scores taken at once: 16 KiB
/// stay in L1 beside the rows that are read, 32 KiB do not.
constexpr int64_t kPackedKeyBytes = 16384;

constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

/// The rows of one task, and their way through the blocks of keys.
class RowBlock {
 public:
  RowBlock(const AttentionRun& run, const AttentionMemory& memory, const RowBlockIndex& index)
      : a_(run.problem),
        p_(run.division.sizes),
        uk_(run.kernels),
        ops_(run.kernels.attention[slot(run.problem.arithmetic)]),
        key_ops_(ops_.kv[slot(run.problem.k.type)]),
        value_ops_(ops_.kv[slot(run.problem.v.type)]),
        w_(memory),
        scale_(run.division.scale),
        index_(index),
        seq_(sequence_of(a_, index.sequence)),
        rules_(sequence_rules(a_.scoring, index.sequence, seq_.n_q, seq_.n_kv)),
        rows_(std::min(run.division.row_block, seq_.n_q * p_.group - index.first_row)),
        direct_keys_(rows_ <= key_ops_.direct_key_rows),
        direct_values_(rows_ <= kDirectRows && value_ops_.value_tile != nullptr && whole_steps(a_.v, ops_.value_step)),
        signed_scales_(run.problem.arithmetic == Arithmetic::kInt8 && has_scales(a_.v.type)),
        modifiers_(has_modifiers(a_.scoring)),
        fetch_(rows_ > 1 ? run.division.fetch : run.division.fetch_one_row),
        fetch_key_rows_(is_narrow(a_.k.type) ? fetch_ : run.division.fetch),
        keys_at_once_(run.division.keys_at_once),
        k_(a_.k, index.sequence * (a_.cu_k == nullptr), index.kv_head, seq_.first_key),
        v_(a_.v, index.sequence * (a_.cu_k == nullptr), index.kv_head, seq_.first_key),
        keys_(uk_, ops_, k_, w_.key_rows),
        values_(uk_, ops_, v_, w_.key_rows, w_.masked),
        panel_bytes_(key_ops_.panel_bytes(p_.d_qk)),
        see_(memory.see),
        row_modifiers_(memory.modifiers) {
    const int64_t oldest = oldest_token(a_, rules_.length);
    // Without any page, masks hide every key (check_pages).
    const bool no_pages = (a_.k.page_size > 0 && a_.k.n_pages == 0) || (a_.v.page_size > 0 && a_.v.n_pages == 0);
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t i = row_of(r);
      Interval v = visible_interval(a_.scoring, rules_, i);
      v.lo = std::max(v.lo, oldest);
      see_[r] = {v.lo, no_pages ? v.lo : std::max(v.lo, v.hi)};
      if (modifiers_) {
        row_modifiers_[r] = row_modifiers(a_.scoring, rules_, head_of(r), i, seq_.mask_batch, seq_.first_mask_row + i);
      }
    }
  }

  int64_t rows() const { return rows_; }
  /// Outside of these splits no row sees a key: neither end of an interval decreases from row to row.
  Interval splits() const { return {see_[0].lo / kKeySplit, (see_[rows_ - 1].hi + kKeySplit - 1) / kKeySplit}; }

  void load_queries() {
    for (int64_t r = 0; r < rows_; ++r) {
      const auto& st = a_.q.stride;
      const int64_t at = seq_.q_batch * st[0] + head_of(r) * st[1] + (seq_.first_row + row_of(r)) * st[2];
      ops_.prepare_query[slot(a_.q.dtype)](static_cast<const char*>(a_.q.data) + at * size_of(a_.q.dtype),
                                           w_.q + r * w_.query_bytes, p_.d_qk);
    }
  }

  /// State before the first key of split `split`: the sink belongs to the first one.
  void start_states(const RowStates& s, int64_t split) const {
    for (int64_t r = 0; r < rows_; ++r) {
      const bool sink = split == 0 && a_.scoring.sinks != nullptr;
      start(s, r, sink ? a_.scoring.sinks[head_of(r)] : -kInf);
    }
  }

  bool sees_split(int64_t split) const {
    for (int64_t r = 0; r < rows_; ++r) {
      if (see_[r].lo < see_[r].hi && see_[r].lo < (split + 1) * kKeySplit && see_[r].hi > split * kKeySplit)
        return true;
    }
    return false;
  }

  void run_split(int64_t split, const RowStates& s) {
    const int64_t end = std::min(rules_.length, (split + 1) * kKeySplit);
    for (int64_t key = split * kKeySplit; key < end; key += kKeyBlock) run_block(key, s);
  }

  void copy(const RowStates& to, const RowStates& from) const {
    std::copy_n(from.max, rows_, to.max);
    std::copy_n(from.sum, rows_, to.sum);
    for (int64_t r = 0; r < rows_; ++r) std::copy_n(from.acc + r * from.ld, p_.d_v, to.acc + r * to.ld);
  }

  void merge(const RowStates& a, const RowStates& b) const { merge_states(uk_, a, b, rows_, p_.d_v); }

  void store(const RowStates& s) const {
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t h = head_of(r);
      const int64_t i = seq_.first_row + row_of(r);
      float* acc = s.acc + r * s.ld;
      // Where the data made every score -inf, values that are NaN count for as little as the others.
      if (s.sum[r] == 0.0f) std::fill_n(acc, p_.d_v, 0.0f);
      if (a_.out.data != nullptr) store_row(a_.out, h, i, acc, finish_factor(s.sum[r]));
      if (a_.acc.data != nullptr) store_row(a_.acc, h, i, acc, is_nan(s.sum[r]) ? s.sum[r] : 1.0f);
      const bool nan = is_nan(s.sum[r]);
      if (a_.lse.data != nullptr) store_number(a_.lse, h, i, scalar::log_sum_exp(s.max[r], s.sum[r]));
      if (a_.max.data != nullptr) store_number(a_.max, h, i, nan ? s.sum[r] : s.max[r] + 0.0f);
      if (a_.sum.data != nullptr) store_number(a_.sum, h, i, s.sum[r]);
    }
  }

 private:
  int64_t row_of(int64_t r) const { return (index_.first_row + r) / p_.group; }
  int64_t head_of(int64_t r) const { return index_.kv_head * p_.group + (index_.first_row + r) % p_.group; }

  void store_row(const View<4>& out, int64_t h, int64_t i, const float* acc, float factor) const {
    const int64_t at = seq_.q_batch * out.stride[0] + h * out.stride[1] + i * out.stride[2];
    uk_.finish[slot(out.dtype)](acc, factor, static_cast<char*>(out.data) + at * size_of(out.dtype), p_.d_v);
  }
  void store_number(const View<3>& out, int64_t h, int64_t i, float x) const {
    static_cast<float*>(out.data)[seq_.q_batch * out.stride[0] + h * out.stride[1] + i * out.stride[2]] = canonical(x);
  }

  /// One block of the online softmax. A row that sees none of it is left as it is.
  void run_block(int64_t base, const RowStates& s) {
    int32_t lo[kRowBlock];
    int32_t hi[kRowBlock];
    // Neither end of an interval decreases from row to row, so the first and the last tell of the usual block.
    const bool whole = see_[0].hi >= base + kKeyBlock && see_[rows_ - 1].lo <= base;
    Interval all = {0, kKeyBlock};
    if (whole) {
      std::fill_n(lo, rows_, 0);
      std::fill_n(hi, rows_, static_cast<int32_t>(kKeyBlock));
    } else {
      for (int64_t r = 0; r < rows_; ++r) {
        lo[r] = static_cast<int32_t>(std::clamp(see_[r].lo - base, int64_t{0}, kKeyBlock));
        hi[r] = static_cast<int32_t>(std::clamp(see_[r].hi - base, int64_t{lo[r]}, kKeyBlock));
      }
      all = union_of(lo, hi, rows_);
      if (all.lo >= all.hi) return;
    }
    // Where rows see different keys (a diagonal), only as much is computed as each tile of rows needs.
    const bool alike = whole || !differ(lo, hi, rows_, all);
    const int64_t step = alike ? std::min(rows_, kScoreRows) : ops_.tile_rows;
    const bool prepared = keys_in_workspace() && rows_ > step;
    if (prepared) prepare_keys(base, all, all.lo, all.hi, workspace_panel(all.lo));
    block_direct_ = direct_values_ && !(signed_scales_ && values_.negative_scales(base, all.lo, all.hi));
    if (!block_direct_) values_.pack(base, all.lo, all.hi, w_.values);
    bool finite_known = false;
    bool finite = true;
    for (int64_t r = 0; r < rows_; r += step) {
      const int64_t n = std::min(step, rows_ - r);
      const Interval see = alike ? all : union_of(lo + r, hi + r, n);
      if (see.lo >= see.hi) continue;
      const int64_t first = see.lo / kPanelWidth * kPanelWidth;  // partial sums keep their elements: 32 is 2 * 16
      const int64_t columns = round_up(see.hi, kHalfPanel) - first;
      score(base, see, first, r, n, prepared);
      bool mixed = !alike && differ(lo + r, hi + r, n, see);
      if (modifiers_) mixed = modify(base, lo, hi, r, n) || mixed;
      int32_t tile_lo[kScoreRows];
      int32_t tile_hi[kScoreRows];
      for (int64_t i = 0; i < n; ++i) {
        const bool none = lo[r + i] >= hi[r + i];
        tile_lo[i] = none ? 0 : lo[r + i] - static_cast<int32_t>(first);
        tile_hi[i] = none ? 0 : hi[r + i] - static_cast<int32_t>(first);
      }
      ops_.softmax_tile({.s = w_.scores + first,
                         .lds = kScoreStride,
                         .rows = n,
                         .columns = columns,
                         .lo = tile_lo,
                         .hi = tile_hi,
                         .max = s.max + r,
                         .sum = s.sum + r,
                         .alpha = w_.alpha});
      // A weight of 0 hides a finite value only; NaN and infinities in values that a row does not see must be skipped.
      if (mixed && !finite_known) {
        finite = values_.finite(base, all.lo, all.hi);
        finite_known = true;
      }
      add_values(base, see, r, n, s, mixed && !finite, lo, hi);
    }
  }

  static Interval union_of(const int32_t* lo, const int32_t* hi, int64_t n) {
    Interval all = {kKeyBlock, 0};
    for (int64_t r = 0; r < n; ++r) {
      if (lo[r] < hi[r]) all = {std::min(all.lo, int64_t{lo[r]}), std::max(all.hi, int64_t{hi[r]})};
    }
    return all;
  }
  static bool differ(const int32_t* lo, const int32_t* hi, int64_t n, Interval all) {
    for (int64_t r = 0; r < n; ++r) {
      if (lo[r] != all.lo || hi[r] != all.hi) return true;
    }
    return false;
  }

  /// True if every run of values in rows begins where the arithmetic allows it.
  static bool whole_steps(const ConstKv& v, int64_t step) {
    return v.page_size > 0 ? v.page_size % step == 0 : v.ring % step == 0;
  }

  /// True if the scores are taken from packed panels in the workspace, false if from the cache's own panels.
  bool keys_in_workspace() const {
    return !k_.panels() || key_ops_.score_tile == nullptr || (!direct_keys_ && key_ops_.pack_panel != nullptr);
  }

  char* workspace_panel(int64_t column) const { return w_.keys + column / kPanelWidth * panel_bytes_; }

  /// Brings the keys of columns [from, to) of the block into packed panels. Rows outside of `all` are not read.
  void prepare_keys(int64_t base, Interval all, int64_t from, int64_t to, char* panel) const {
    for (int64_t c = from / kPanelWidth * kPanelWidth; c < to; c += kPanelWidth, panel += panel_bytes_) {
      const int64_t first = std::max(c, all.lo) - c;
      const int64_t last = std::min(c + kPanelWidth, all.hi) - c;
      keys_.pack(base + c, first, last, panel, fetch_key_rows_ != Fetch::kNone, see_[rows_ - 1].hi);
    }
  }

  /// The same in panels of the storage type, for score_tile.
  void store_keys(int64_t base, Interval all, int64_t from, int64_t to, char* panel, float* scales) const {
    const int64_t bytes = simdattn::panel_bytes(k_.type(), p_.d_qk);
    for (int64_t c = from; c < to; c += kPanelWidth, panel += bytes, scales += kPanelWidth) {
      const int64_t first = std::max(c, all.lo) - c;
      const int64_t last = std::min(c + kPanelWidth, all.hi) - c;
      keys_.store(base + c, first, last, panel, scales, fetch_ != Fetch::kNone, see_[rows_ - 1].hi);
      std::fill(scales + last, scales + kPanelWidth, 0.0f);
    }
  }

  /// Scores of rows [r, r + n) and columns from `first` on, of which they see `see`. `prepared`: the keys are in
  /// the workspace already.
  void score(int64_t base, Interval see, int64_t first, int64_t r, int64_t n, bool prepared) {
    const int64_t columns = round_up(see.hi, kPanelWidth) - first;
    ScoreTile tile = {.q = w_.q + r * w_.query_bytes,
                      .q_stride = w_.query_bytes,
                      .rows = n,
                      .panels = nullptr,
                      .panel_stride = panel_bytes_,
                      .n_panels = columns / kPanelWidth,
                      .dim = p_.d_qk,
                      .scale = scale_,
                      .s = w_.scores + first,
                      .lds = kScoreStride};
    if (prepared) {
      tile.panels = workspace_panel(first);
      tile.half_last = (see.hi - 1) % kPanelWidth < kHalfPanel;
      key_ops_.score_packed(tile);
      return;
    }
    float scales[kKeyBlock];
    if (keys_in_workspace()) {
      // No other rows need these keys: a few panels at a time, which L1 still holds when they are read.
      const bool as_stored = direct_keys_ && !k_.panels() && key_ops_.store_panel != nullptr;
      // Keys as stored: two panels, so that memory is not idle for long while scores are taken.
      const int64_t width =
          as_stored ? 2 * kPanelWidth : std::max(kPackedKeyBytes / tile.panel_stride, int64_t{1}) * kPanelWidth;
      const bool in_rows = direct_keys_ && !k_.panels() && key_ops_.score_rows != nullptr && n <= kMostScoreRows &&
                           has_direct_rows(p_.d_qk);
      for (int64_t c = first; c < first + columns;) {
        int64_t end = std::min(c + (in_rows ? kPanelWidth : width), first + columns);
        int64_t run = 0;
        const char* const rows = in_rows && c >= see.lo ? k_.at(base + c, &run) : nullptr;
        const int64_t whole = std::min({run, see.hi - c, first + columns - c}) / kPanelWidth;
        tile.s = w_.scores + c;
        if (whole > 0) {
          end = c + whole * kPanelWidth;
          tile.panels = rows;
          tile.panel_stride = k_.token_stride();
          tile.n_panels = whole;
          tile.scales = k_.scales(base + c, whole * kPanelWidth, scales);
          tile.fetch = fetch_key_rows_;
          tile.keys_at_once = keys_at_once_;
          tile.room = w_.keys;
          key_ops_.score_rows(tile);
        } else if (as_stored) {
          store_keys(base, see, c, end, w_.keys, scales);
          tile.panels = w_.keys;
          tile.panel_stride = simdattn::panel_bytes(k_.type(), p_.d_qk);
          tile.n_panels = (end - c) / kPanelWidth;
          tile.scales = has_scales(k_.type()) ? scales : nullptr;
          tile.fetch = Fetch::kNone;
          key_ops_.score_tile(tile);
        } else {
          prepare_keys(base, see, c, end, w_.keys);
          tile.panels = w_.keys;
          tile.n_panels = (end - c) / kPanelWidth;
          key_ops_.score_packed(tile);
        }
        c = end;
      }
      return;
    }
    tile.panel_stride = k_.token_stride();
    tile.fetch = fetch_;
    for (int64_t c = first; c < first + columns;) {
      int64_t run = 0;
      tile.panels = k_.at(base + c, &run);
      const int64_t width = std::min(first + columns - c, run);
      tile.scales = k_.scales(base + c, width, scales);
      tile.n_panels = width / kPanelWidth;
      tile.s = w_.scores + c;
      key_ops_.score_tile(tile);
      c += width;
    }
  }

  /// Softcap, ALiBi, bias and masks. True if a key of some row's interval was masked.
  bool modify(int64_t base, const int32_t* lo, const int32_t* hi, int64_t r, int64_t n) {
    bool masked = false;
    for (int64_t i = r; i < r + n; ++i) {
      float* s = w_.scores + (i - r) * kScoreStride;
      masked = simdattn::modify(uk_, {.row = row_modifiers_[i],
                                      .x = s,
                                      .t = s,
                                      .first_key = base,
                                      .lo = lo[i],
                                      .hi = hi[i],
                                      .scale = 1.0f,
                                      .note_masked = true})
                   .masked ||
               masked;
    }
    return masked;
  }

  /// acc = alpha * acc + weights * values for rows [r, r + n) and columns [see.lo, see.hi).
  void add_values(int64_t base, Interval see, int64_t r, int64_t n, const RowStates& s, bool around_masked,
                  const int32_t* lo, const int32_t* hi) {
    ValueTile tile = {.w = w_.scores + see.lo,
                      .ldw = kScoreStride,
                      .rows = n,
                      .v = w_.values,
                      .first_key = see.lo,
                      .key_stride = 0,
                      .group_stride = 0,
                      .keys = see.hi - see.lo,
                      .dim = p_.d_v,
                      .o = s.acc + r * s.ld,
                      .ldo = s.ld,
                      .alpha = w_.alpha};
    if (around_masked) {
      values_.add_visible(base, tile, [&](int64_t row, int64_t j) {
        const int64_t i = r + row;
        return j >= lo[i] && j < hi[i] && (!modifiers_ || mask_allows(row_modifiers_[i], base + j));
      });
      return;
    }
    if (!block_direct_) {
      ops_.value_packed(tile);
      return;
    }
    tile.key_stride = v_.token_stride();
    tile.group_stride = row_bytes(v_.type(), kValueGroup);
    tile.fetch = fetch_;
    values_.for_each_run(base, see.lo, see.hi, [&](int64_t c, int64_t keys, const char* rows, const float* scales) {
      tile.w = w_.scores + c;
      tile.v = rows;
      tile.scales = scales;
      tile.first_key = c;
      tile.keys = keys;
      value_ops_.value_tile(tile);
      tile.alpha = nullptr;  // later runs of the block continue the sum
    });
  }

  const Attention& a_;
  const AttentionSizes& p_;
  const UKernels& uk_;
  const AttentionKernels& ops_;
  const KvOperands& key_ops_;
  const KvOperands& value_ops_;
  const AttentionMemory& w_;
  float scale_;
  RowBlockIndex index_;
  Sequence seq_;
  SequenceRules rules_;
  int64_t rows_;
  bool direct_keys_;
  bool direct_values_;
  bool signed_scales_;         // integers in place want scales that are not negative
  bool block_direct_ = false;  // values of the current block are read in place
  bool modifiers_;
  Fetch fetch_;
  Fetch fetch_key_rows_;
  int64_t keys_at_once_;
  KvStore<true> k_;
  KvStore<true> v_;
  KeyOperands keys_;
  ValueOperands values_;
  int64_t panel_bytes_;
  Interval* see_;
  RowModifiers* row_modifiers_;
};

}  // namespace

/// All splits of one row block, one after the other.
void run_row_block(const AttentionRun& run, const AttentionMemory& w, const RowBlockIndex& index) {
  RowBlock block(run, w, index);
  block.load_queries();
  block.start_states(w.total, 0);
  const Interval splits = block.splits();
  for (int64_t split = splits.lo; split < splits.hi; ++split) {
    if (!block.sees_split(split)) continue;
    if (split == 0) {
      block.run_split(0, w.total);
    } else {
      block.start_states(w.split, split);
      block.run_split(split, w.split);
      block.merge(w.total, w.split);
    }
  }
  block.store(w.total);
}

void run_split(const AttentionRun& run, const AttentionMemory& w, const RowBlockIndex& index, int64_t split,
               const RowStates& states) {
  RowBlock block(run, w, index);
  block.start_states(states, split);
  if (!block.sees_split(split)) return;
  block.load_queries();
  block.run_split(split, states);
}

void reduce_splits(const AttentionRun& run, const AttentionMemory& w, const RowBlockIndex& index, Interval splits,
                   const Partials& partials, int64_t first_task) {
  const RowBlock block(run, w, index);
  // Without split 0, which no task has: its keys are gone, and only the sink is left of it.
  block.start_states(w.total, 0);
  for (int64_t split = splits.lo; split < splits.hi; ++split, ++first_task) {
    const RowStates part = partials.of_task(first_task);
    if (split == 0) block.copy(w.total, part);
    else block.merge(w.total, part);
  }
  block.store(w.total);
}

}  // namespace simdattn
