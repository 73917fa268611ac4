// Fused attention: tasks -> splits -> key blocks -> tiles.
//
// A task is one row block of one key/value head of one sequence. Its rows are query positions x the query heads that
// share the key head, so keys and values are read once for all of them: decode is a block whose rows are the heads of a
// group, prefill one whose rows are positions too. No matrix of scores exists beyond rows x kKeyBlock.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "dispatch/target.h"
#include "lib/drivers/attention_problem.h"
#include "lib/drivers/kv_store.h"
#include "lib/drivers/row_state.h"
#include "lib/drivers/scoring.h"
#include "lib/drivers/validate.h"
#include "lib/drivers/value_block.h"
#include "lib/drivers/workspace.h"
#include "lib/dtypes.h"
#include "lib/scalar/math.h"
#include "lib/ukernels.h"

namespace simdattn {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int64_t kBlockPanels = kKeyBlock / kPanelWidth;
/// With more rows than this, keys and values are widened or packed to f32 once per block, because every register tile
/// would convert them again; with fewer they are read in place.
constexpr int64_t kDirectRows = 12;
/// Rows whose scores are taken at a time: 68 KiB, which stay in the caches beside the keys and values of a block.
constexpr int64_t kScoreRows = 64;
/// Keys and values of one call beyond this come from beyond the second-level cache and are prefetched. A single row leaves
/// the hardware's prefetching time enough: there, 16-bit keys of 2 MiB lose 10 % with AVX-512 and win 7 % with AVX2, while
/// 4 rows and more win 10-40 % from 2 MiB on with either.
constexpr int64_t kStreamBytes = int64_t{1} << 20;
constexpr int64_t kStreamBytesOfOneRow = int64_t{8} << 20;
/// Row-major keys that only these rows need are packed so many elements at a time, and their scores taken at once: 16 KiB
/// stay in the first cache, 32 KiB cost 5-15 % (4 rows, 128 dimensions).
constexpr int64_t kPackedKeys = 4096;
/// Floats between rows of scores: a power of two would put the rows of a tile into the same cache sets.
constexpr int64_t kScoreStride = kKeyBlock + 16;

constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

/// One thread's working memory; constant in the lengths of the sequences.
struct Scratch {
  float* q;         // [kRowBlock][ldq]
  float* scores;    // [kScoreRows][kScoreStride]
  float* keys;      // [kBlockPanels] f32 panels
  char* key_rows;   // [kPanelWidth][d_qk] in the storage type: rows gathered from several pages
  float* values;    // [groups of 32 columns][kKeyBlock][32]
  float* alpha;     // [kScoreRows]
  RowStates total;  // over all splits so far
  RowStates split;  // of the current split
  int64_t ldq;

  Scratch(Workspace& w, int64_t d_qk, int64_t d_v) {
    ldq = round_up(d_qk, 16);
    q = w.take<float>(kRowBlock * ldq);
    scores = w.take<float>(kScoreRows * kScoreStride);
    keys = w.take<float>(kBlockPanels * kPanelWidth * d_qk);
    key_rows = w.take<char>(kPanelWidth * d_qk * 4);
    values = w.take<float>(round_up(d_v, kValueGroup) * kKeyBlock);
    alpha = w.take<float>(kScoreRows);
    total = take_states(w, kRowBlock, d_v);
    split = take_states(w, kRowBlock, d_v);
  }

  static int64_t acc_stride(int64_t d_v) { return round_up(d_v, kValueGroup) + 16; }
  static RowStates take_states(Workspace& w, int64_t rows, int64_t d_v) {
    RowStates s;
    s.ld = acc_stride(d_v);
    s.max = w.take<float>(rows);
    s.sum = w.take<float>(rows);
    s.acc = w.take<float>(rows * s.ld);
    return s;
  }
};

size_t workspace_bytes(const AttentionProblem& p) {
  Workspace measure(nullptr);
  Scratch scratch(measure, p.d_qk, p.d_v);
  return measure.bytes();
}

/// The buffer that tasks share when splits are tasks: one slot of states per task.
size_t partial_slot_bytes(const AttentionProblem& p) {
  Workspace measure(nullptr);
  Scratch::take_states(measure, p.partial_rows, p.d_v);
  return measure.used();
}
size_t partial_bytes(const AttentionProblem& p) {
  if (!p.split) return 0;
  Workspace measure(nullptr);
  measure.take<char>(static_cast<int64_t>(partial_slot_bytes(p)) * p.tasks);
  return measure.bytes();
}
RowStates partial_states(const AttentionProblem& p, const void* partial, int64_t task) {
  Workspace w(const_cast<void*>(partial));
  w.take<char>(static_cast<int64_t>(partial_slot_bytes(p)) * task);
  return Scratch::take_states(w, p.partial_rows, p.d_v);
}

/// The rows of one task, and their way through the blocks of keys.
class RowBlock {
 public:
  RowBlock(const Attention& a, const AttentionProblem& p, const UKernels& uk, const Scratch& scratch,
           const RowBlockIndex& index)
      : a_(a),
        p_(p),
        uk_(uk),
        w_(scratch),
        index_(index),
        seq_(p.sequence(a, index.sequence)),
        rules_(sequence_rules(a.scoring, index.sequence, seq_.n_q, seq_.n_kv)),
        rows_(std::min(p.row_block, seq_.n_q * p.group - index.first_row)),
        direct_(rows_ <= kDirectRows),
        modifiers_(has_modifiers(a.scoring)),
        stream_(p.kv_bytes > (rows_ > 1 ? kStreamBytes : kStreamBytesOfOneRow)),
        k_(a.k, index.sequence * (a.cu_k == nullptr), index.kv_head, seq_.first_key),
        v_(a.v, index.sequence * (a.cu_k == nullptr), index.kv_head, seq_.first_key) {
    int64_t oldest = 0;  // the first token that both stores still hold
    for (const int64_t ring : {a.k.ring, a.v.ring}) {
      if (ring > 0) oldest = std::max(oldest, rules_.length - ring);
    }
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t i = row_of(r);
      Interval v = visible_interval(a.scoring, rules_, i);
      v.lo = std::max(v.lo, oldest);
      see_[r] = {v.lo, std::max(v.lo, v.hi)};
      if (modifiers_) {
        row_modifiers_[r] = row_modifiers(a.scoring, rules_, head_of(r), i, seq_.mask_batch, seq_.first_mask_row + i);
      }
    }
  }

  int64_t rows() const { return rows_; }
  int64_t splits() const { return splits_of(rules_.length); }

  void load_queries() {
    for (int64_t r = 0; r < rows_; ++r) {
      const auto& st = a_.q.stride;
      const int64_t at = seq_.q_batch * st[0] + head_of(r) * st[1] + (seq_.first_row + row_of(r)) * st[2];
      uk_.widen[slot(a_.q.dtype)](static_cast<const char*>(a_.q.data) + at * size_of(a_.q.dtype), w_.q + r * w_.ldq,
                                  p_.d_qk);
    }
  }

  /// State before the first key of split `split`: the sink belongs to the first one.
  void start_states(const RowStates& s, int64_t split) const {
    for (int64_t r = 0; r < rows_; ++r) {
      const bool sink = split == 0 && a_.scoring.sinks != nullptr;
      start(s, r, s.ld, sink ? a_.scoring.sinks[head_of(r)] : -kInf);
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
    const int64_t step = alike ? std::min(rows_, kScoreRows) : uk_.tile_rows;
    const bool prepared = keys_in_workspace() && rows_ > step;
    if (prepared) prepare_keys(base, all, all.lo, all.hi, workspace_panel(all.lo));
    if (!direct_) pack_values(base, all);
    bool finite_known = false;
    bool finite = true;
    for (int64_t r = 0; r < rows_; r += step) {
      const int64_t n = std::min(step, rows_ - r);
      const Interval see = alike ? all : union_of(lo + r, hi + r, n);
      if (see.lo >= see.hi) continue;
      const int64_t first = see.lo / kPanelWidth * kPanelWidth;  // partial sums keep their elements: 32 is 2 * 16
      const int64_t columns = round_up(see.hi, kPanelWidth) - first;
      score(base, see, first, columns, r, n, prepared);
      bool mixed = !alike && differ(lo + r, hi + r, n, see);
      if (modifiers_) mixed = modify(base, lo, hi, r, n) || mixed;
      int32_t tile_lo[kScoreRows];
      int32_t tile_hi[kScoreRows];
      for (int64_t i = 0; i < n; ++i) {
        const bool none = lo[r + i] >= hi[r + i];
        tile_lo[i] = none ? 0 : lo[r + i] - static_cast<int32_t>(first);
        tile_hi[i] = none ? 0 : hi[r + i] - static_cast<int32_t>(first);
      }
      uk_.softmax_tile({.s = w_.scores + first,
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
        finite = values_finite(base, all);
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

  /// True if the scores are taken from f32 panels in the workspace, false if from the cache's own panels.
  bool keys_in_workspace() const { return !k_.panels() || (!direct_ && k_.dtype() != DType::kF32); }

  int64_t panel_elements() const { return kPanelWidth * p_.d_qk; }
  float* workspace_panel(int64_t column) const { return w_.keys + column / kPanelWidth * panel_elements(); }

  /// Brings the keys of columns [from, to) of the block into f32 panels. Rows outside of `all` are not read.
  void prepare_keys(int64_t base, Interval all, int64_t from, int64_t to, float* panel) {
    const size_t type = slot(k_.dtype());
    for (int64_t c = from / kPanelWidth * kPanelWidth; c < to; c += kPanelWidth, panel += panel_elements()) {
      int64_t run = 0;
      if (k_.panels()) {
        uk_.widen_panel[type](k_.at(base + c, &run), p_.d_qk, panel);
        continue;
      }
      const int64_t first = std::max(c, all.lo);
      const int64_t keys = std::min(c + kPanelWidth, all.hi) - first;
      const char* rows = k_.at(base + first, &run);
      if (first == c && run >= keys) {
        uk_.pack_keys[type](rows, k_.token_stride(), keys, p_.d_qk, panel, stream_);
      } else {
        const int64_t row_bytes = p_.d_qk * size_of(k_.dtype());
        std::memset(w_.key_rows, 0, static_cast<size_t>((first - c) * row_bytes));
        for (int64_t j = first; j < first + keys; ++j) {
          std::memcpy(w_.key_rows + (j - c) * row_bytes, k_.at(base + j, &run), static_cast<size_t>(row_bytes));
        }
        uk_.pack_keys[type](w_.key_rows, p_.d_qk, first - c + keys, p_.d_qk, panel, false);
      }
    }
  }

  /// Scores of rows [r, r + n) and columns [first, first + columns), of which they see `see`. `prepared`: the keys are in
  /// the workspace already.
  void score(int64_t base, Interval see, int64_t first, int64_t columns, int64_t r, int64_t n, bool prepared) {
    ScoreTile tile = {.q = w_.q + r * w_.ldq,
                      .ldq = w_.ldq,
                      .rows = n,
                      .panels = nullptr,
                      .panel_stride = kPanelWidth * p_.d_qk,
                      .n_panels = columns / kPanelWidth,
                      .dim = p_.d_qk,
                      .scale = p_.scale,
                      .s = w_.scores + first,
                      .lds = kScoreStride,
                      .stream = false};
    if (prepared) {
      tile.panels = workspace_panel(first);
      uk_.score_tile[slot(DType::kF32)](tile);
      return;
    }
    if (keys_in_workspace()) {
      // No other rows need these keys: a few panels at a time, which the first cache still holds when they are read.
      const int64_t width = std::max(kPackedKeys / panel_elements(), int64_t{1}) * kPanelWidth;
      for (int64_t c = first; c < first + columns; c += width) {
        const int64_t end = std::min(c + width, first + columns);
        prepare_keys(base, see, c, end, w_.keys);
        tile.panels = w_.keys;
        tile.n_panels = (end - c) / kPanelWidth;
        tile.s = w_.scores + c;
        uk_.score_tile[slot(DType::kF32)](tile);
      }
      return;
    }
    tile.panel_stride = k_.token_stride();
    tile.stream = stream_;
    for (int64_t c = first; c < first + columns;) {
      int64_t run = 0;
      tile.panels = k_.at(base + c, &run);
      const int64_t width = std::min(first + columns - c, run);
      tile.n_panels = width / kPanelWidth;
      tile.s = w_.scores + c;
      uk_.score_tile[slot(k_.dtype())](tile);
      c += width;
    }
  }

  /// Softcap, ALiBi, bias and masks. True if a key of some row's interval was masked.
  bool modify(int64_t base, const int32_t* lo, const int32_t* hi, int64_t r, int64_t n) {
    bool masked = false;
    for (int64_t i = r; i < r + n; ++i) {
      float* s = w_.scores + (i - r) * kScoreStride;
      masked = uk_.modify_row({.row = row_modifiers_[i],
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

  /// Calls f(first column, keys, rows in the value cache) for each run of columns [see.lo, see.hi).
  template <class F>
  void for_each_value_run(int64_t base, Interval see, const F& f) {
    for (int64_t c = see.lo; c < see.hi;) {
      int64_t run = 0;
      const char* rows = v_.at(base + c, &run);
      const int64_t keys = std::min(see.hi - c, run);
      f(c, keys, rows);
      c += keys;
    }
  }

  void pack_values(int64_t base, Interval all) {
    for_each_value_run(base, all, [&](int64_t c, int64_t keys, const char* rows) {
      uk_.pack_values[slot(v_.dtype())](rows, v_.token_stride(), keys, p_.d_v, w_.values + c * kValueGroup);
    });
  }

  bool values_finite(int64_t base, Interval all) {
    bool finite = true;
    for_each_value_run(base, all, [&](int64_t, int64_t keys, const char* rows) {
      finite = finite && uk_.all_finite[slot(v_.dtype())](rows, v_.token_stride(), keys, p_.d_v);
    });
    return finite;
  }

  /// acc = alpha * acc + weights * values for rows [r, r + n) and columns [see.lo, see.hi).
  void add_values(int64_t base, Interval see, int64_t r, int64_t n, const RowStates& s, bool around_masked,
                  const int32_t* lo, const int32_t* hi) {
    ValueTile tile = {.w = nullptr,
                      .ldw = kScoreStride,
                      .rows = n,
                      .v = nullptr,
                      .key_stride = v_.token_stride(),
                      .group_stride = kValueGroup,
                      .keys = 0,
                      .dim = p_.d_v,
                      .o = s.acc + r * s.ld,
                      .ldo = s.ld,
                      .alpha = w_.alpha,
                      .stream = stream_};
    const auto run = [&](DType type, int64_t c, int64_t keys, const void* values) {
      tile.w = w_.scores + c;
      tile.v = values;
      tile.keys = keys;
      if (around_masked) {
        add_visible_values(uk_, type, tile, [&](int64_t row, int64_t j) {
          const int64_t i = r + row;
          return c + j >= lo[i] && c + j < hi[i] && (!modifiers_ || mask_allows(row_modifiers_[i], base + c + j));
        });
      } else {
        uk_.value_tile[slot(type)](tile);
      }
      tile.alpha = nullptr;  // later runs of the block continue the chain
    };
    if (direct_) {
      for_each_value_run(base, see, [&](int64_t c, int64_t keys, const char* rows) { run(v_.dtype(), c, keys, rows); });
    } else {
      tile.key_stride = kValueGroup;
      tile.group_stride = kValueGroup * kKeyBlock;
      tile.dim = round_up(p_.d_v, kValueGroup);
      tile.stream = false;
      run(DType::kF32, see.lo, see.hi - see.lo, w_.values + see.lo * kValueGroup);
    }
  }

  const Attention& a_;
  const AttentionProblem& p_;
  const UKernels& uk_;
  const Scratch& w_;
  RowBlockIndex index_;
  Sequence seq_;
  SequenceRules rules_;
  int64_t rows_;
  bool direct_;
  bool modifiers_;
  bool stream_;
  KvStore<true> k_;
  KvStore<true> v_;
  Interval see_[kRowBlock];
  RowModifiers row_modifiers_[kRowBlock];
};

Status check_workspace(const AttentionProblem& p, const Exec& exec) {
  if (p.tasks == 0) return {};
  SIMDATTN_REQUIRE(exec.workspace != nullptr, Code::kWorkspace, "exec.workspace: null; see attention_tasks");
  SIMDATTN_REQUIRE(exec.workspace_bytes >= workspace_bytes(p), Code::kWorkspace,
                   "exec.workspace_bytes: less than AttentionTasks::workspace_bytes");
  return {};
}

Status check_partial(const AttentionProblem& p, const void* partial, size_t bytes) {
  if (!p.split) return {};
  SIMDATTN_REQUIRE(partial != nullptr, Code::kNullPointer,
                   "partial: null although AttentionTasks::partial_bytes is not 0");
  SIMDATTN_REQUIRE(bytes >= partial_bytes(p), Code::kWorkspace,
                   "partial_bytes: less than AttentionTasks::partial_bytes");
  return {};
}

/// All splits of one row block, one after the other.
void run_row_block(const Attention& a, const AttentionProblem& p, const UKernels& uk, const Scratch& w,
                   const RowBlockIndex& index) {
  RowBlock block(a, p, uk, w, index);
  block.load_queries();
  block.start_states(w.total, 0);
  for (int64_t split = 0; split < block.splits(); ++split) {
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

}  // namespace

Status attention_tasks(const Attention& a, AttentionTasks* tasks, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  SIMDATTN_REQUIRE(tasks != nullptr, Code::kNullPointer, "tasks: must not be null");
  AttentionProblem p;
  SIMDATTN_CHECK(check_attention(a, false, true, &p));
  *tasks = {p.tasks, p.reduce_tasks, p.tasks == 0 ? 0 : workspace_bytes(p), partial_bytes(p)};
  return {};
}

Status attention(const Attention& a, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  AttentionProblem p;
  SIMDATTN_CHECK(check_attention(a, true, false, &p));
  SIMDATTN_CHECK(check_workspace(p, exec));
  if (p.tasks == 0) return {};
  Workspace workspace(exec.workspace);
  const Scratch w(workspace, p.d_qk, p.d_v);
  TaskIterator at(a, p, false, 0);
  for (int64_t t = 0; t < p.row_blocks; ++t, at.next()) run_row_block(a, p, *uk, w, at.row_block());
  return {};
}

Status attention_range(const Attention& a, int64_t first, int64_t last, void* partial, size_t partial_size,
                       const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  AttentionProblem p;
  SIMDATTN_CHECK(check_attention(a, true, true, &p));
  SIMDATTN_REQUIRE(first >= 0 && first <= last && last <= p.tasks, Code::kRange,
                   "first, last: must be within 0 .. AttentionTasks::tasks");
  SIMDATTN_CHECK(check_workspace(p, exec));
  SIMDATTN_CHECK(check_partial(p, partial, partial_size));
  if (first == last) return {};
  Workspace workspace(exec.workspace);
  const Scratch w(workspace, p.d_qk, p.d_v);
  TaskIterator at(a, p, p.split, first);
  for (int64_t t = first; t < last; ++t, at.next()) {
    if (!p.split) {
      run_row_block(a, p, *uk, w, at.row_block());
      continue;
    }
    RowBlock block(a, p, *uk, w, at.row_block());
    const RowStates states = partial_states(p, partial, t);
    block.start_states(states, at.split());
    if (block.sees_split(at.split())) {
      block.load_queries();
      block.run_split(at.split(), states);
    }
  }
  return {};
}

Status attention_reduce(const Attention& a, int64_t first, int64_t last, const void* partial, size_t partial_size,
                        const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  AttentionProblem p;
  SIMDATTN_CHECK(check_attention(a, true, true, &p));
  SIMDATTN_REQUIRE(first >= 0 && first <= last && last <= p.reduce_tasks, Code::kRange,
                   "first, last: must be within 0 .. AttentionTasks::reduce_tasks");
  SIMDATTN_CHECK(check_workspace(p, exec));
  SIMDATTN_CHECK(check_partial(p, partial, partial_size));
  if (first == last) return {};
  Workspace workspace(exec.workspace);
  const Scratch w(workspace, p.d_qk, p.d_v);
  TaskIterator at(a, p, true, 0);
  int64_t task = 0;
  for (int64_t t = 0; t < last; ++t) {
    const int64_t splits = at.splits();
    if (t >= first) {
      const RowBlock block(a, p, *uk, w, at.row_block());
      for (int64_t split = 0; split < splits; ++split) {
        const RowStates s = partial_states(p, partial, task + split);
        if (split == 0) {
          block.copy(w.total, s);
        } else {
          block.merge(w.total, s);
        }
      }
      block.store(w.total);
    }
    task += splits;
    for (int64_t split = 0; split < splits; ++split) at.next();
  }
  return {};
}

}  // namespace simdattn
