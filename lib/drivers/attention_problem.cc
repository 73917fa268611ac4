#include "lib/drivers/attention_problem.h"

#include <algorithm>
#include <cmath>

#include "lib/drivers/kv_store.h"
#include "lib/drivers/scoring.h"
#include "lib/drivers/validate.h"
#include "lib/dtypes.h"

namespace simdattn {
namespace {

/// Below this many row blocks, threads get smaller ones, and long keys are split into more tasks.
constexpr int64_t kEnoughTasks = 32;
constexpr int64_t kSmallRowBlock = 128;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr KvText kKeys = SIMDATTN_KV_TEXT("k");
constexpr KvText kValues = SIMDATTN_KV_TEXT("v");

/// Pages of tokens [v.lo, v.hi) of a sequence.
Status check_pages(const ConstKv& kv, int64_t sequence, Interval v, const KvText& text) {
  if (kv.block_table == nullptr) return {};
  for (int64_t t = v.lo; t < v.hi; t = (t / kv.page_size + 1) * kv.page_size) {
    const int64_t page = page_of(kv, sequence, t);
    SIMDATTN_REQUIRE(page >= 0 && page < kv.n_pages, Code::kRange, text.pages);
  }
  return {};
}

}  // namespace

Sequence AttentionProblem::sequence(const Attention& a, int64_t s) const {
  Sequence r = {s, 0, a.q.shape[2], 0, a.k.tokens, s, 0};
  if (a.cu_q != nullptr) {
    r.q_batch = 0;
    r.first_row = a.cu_q[s];
    r.n_q = a.cu_q[s + 1] - r.first_row;
    r.mask_batch = 0;
    r.first_mask_row = r.first_row;
  }
  if (a.cu_k != nullptr) {
    r.first_key = a.cu_k[s];
    r.n_kv = a.cu_k[s + 1] - r.first_key;
  }
  return r;
}

Status check_attention(const Attention& a, bool needs_out, bool for_threads, AttentionProblem* problem) {
  AttentionProblem& p = *problem;
  p.row_blocks = p.partial_rows = p.reduce_tasks = p.kv_bytes = 0;
  p.split = false;
  Extent eq, ek, ev;
  SIMDATTN_CHECK(check_view(a.q, Accept::kStorage, SIMDATTN_ARGUMENT("q"), &eq));
  const bool varlen = a.cu_q != nullptr;
  SIMDATTN_REQUIRE(varlen || a.cu_k == nullptr, Code::kNullPointer, "cu_q: null although cu_k is given");
  SIMDATTN_CHECK(check_kv(a.k, false, a.cu_k != nullptr, false, kKeys, &ek));
  SIMDATTN_CHECK(check_kv(a.v, true, a.cu_k != nullptr, false, kValues, &ev));

  p.d_qk = a.q.shape[3];
  p.d_v = a.v.dim;
  p.heads = a.q.shape[1];
  p.kv_heads = a.k.heads;
  SIMDATTN_REQUIRE(p.d_qk >= 1, Code::kShape, "q.shape[3]: the head dimension must be at least 1");
  SIMDATTN_REQUIRE(a.k.dim == p.d_qk, Code::kShape, "k.dim != q.shape[3]");
  SIMDATTN_REQUIRE(p.kv_heads >= 1 && p.kv_heads <= kMaxSize, Code::kShape,
                   "k.heads: there must be at least one key head");
  SIMDATTN_REQUIRE(a.v.heads == p.kv_heads, Code::kShape, "v.heads != k.heads");
  SIMDATTN_REQUIRE(a.v.tokens == a.k.tokens, Code::kShape, "v.tokens != k.tokens");
  p.group = group_of(p.heads, p.kv_heads);
  SIMDATTN_REQUIRE(p.group >= 0, Code::kShape, "q.shape[1]: query heads must be a multiple of key heads");

  // Sequences.
  p.sequences = a.q.shape[0];
  int64_t longest = a.k.tokens;
  if (varlen) {
    SIMDATTN_REQUIRE(a.n_sequences >= 0 && a.n_sequences <= kMaxSize, Code::kRange,
                     "n_sequences: must be in 0 .. 2^30 - 1");
    SIMDATTN_REQUIRE(a.q.shape[0] == 1, Code::kShape, "q.shape[0]: must be 1 with cu_q");
    p.sequences = a.n_sequences;
    SIMDATTN_REQUIRE(a.cu_q[0] == 0, Code::kRange, "cu_q[0]: must be 0");
    for (int64_t s = 0; s < p.sequences; ++s) {
      SIMDATTN_REQUIRE(a.cu_q[s + 1] >= a.cu_q[s], Code::kRange, "cu_q: must not decrease");
    }
    SIMDATTN_REQUIRE(a.cu_q[p.sequences] == a.q.shape[2], Code::kShape, "cu_q: its last entry must be q.shape[2]");
  }
  if (a.cu_k != nullptr) {
    SIMDATTN_REQUIRE(a.k.batch == 1 && a.v.batch == 1, Code::kShape, "k.batch, v.batch: must be 1 with cu_k");
    SIMDATTN_REQUIRE(a.cu_k[0] == 0, Code::kRange, "cu_k[0]: must be 0");
    longest = 0;
    for (int64_t s = 0; s < p.sequences; ++s) {
      SIMDATTN_REQUIRE(a.cu_k[s + 1] >= a.cu_k[s], Code::kRange, "cu_k: must not decrease");
      longest = std::max<int64_t>(longest, a.cu_k[s + 1] - a.cu_k[s]);
    }
    SIMDATTN_REQUIRE(a.cu_k[p.sequences] == a.k.tokens, Code::kShape, "cu_k: its last entry must be k.tokens");
  } else {
    SIMDATTN_REQUIRE(a.k.batch == p.sequences, Code::kShape, "k.batch: must be the number of sequences");
    SIMDATTN_REQUIRE(a.v.batch == p.sequences, Code::kShape, "v.batch: must be the number of sequences");
  }

  const ScoringShape shape = {p.sequences, a.q.shape[0], p.heads, a.q.shape[2], longest};
  SIMDATTN_CHECK(check_scoring(a.scoring, shape));
  int64_t most_rows = 0;  // of a sequence
  int64_t split_tasks = 0;
  int64_t small_row_blocks = 0;
  int64_t small_split_tasks = 0;
  for (int64_t s = 0; s < p.sequences; ++s) {
    const Sequence q = p.sequence(a, s);
    SIMDATTN_CHECK(check_sequence(a.scoring, s, q.n_kv));
    const SequenceRules rules = sequence_rules(a.scoring, s, q.n_q, q.n_kv);
    if (q.n_q > 0 && (a.k.block_table != nullptr || a.v.block_table != nullptr)) {
      // Neither end of the interval decreases from row to row.
      const Interval seen = {visible_interval(a.scoring, rules, 0).lo,
                             visible_interval(a.scoring, rules, q.n_q - 1).hi};
      SIMDATTN_CHECK(check_pages(a.k, s, seen, kKeys));
      SIMDATTN_CHECK(check_pages(a.v, s, seen, kValues));
    }
    const int64_t rows = q.n_q * p.group;
    most_rows = std::max(most_rows, rows);
    const int64_t blocks = p.kv_heads * ceil_div(rows, kRowBlock);
    const int64_t small_blocks = p.kv_heads * ceil_div(rows, kSmallRowBlock);
    const int64_t splits = splits_of(rules.length);
    p.row_blocks += blocks;
    split_tasks += blocks * splits;
    small_row_blocks += small_blocks;
    small_split_tasks += small_blocks * splits;
    p.kv_bytes += p.kv_heads * rules.length * (p.d_qk * size_of(a.k.dtype) + p.d_v * size_of(a.v.dtype));
  }
  p.scale = a.scoring.scale ? *a.scoring.scale : 1.0f / std::sqrt(static_cast<float>(p.d_qk));
  p.row_block = kRowBlock;
  if (for_threads && p.row_blocks < kEnoughTasks) {
    p.row_block = kSmallRowBlock;
    p.row_blocks = small_row_blocks;
    split_tasks = small_split_tasks;
  }
  p.partial_rows = std::min(most_rows, p.row_block);
  p.tasks = p.row_blocks;
  if (p.row_blocks < kEnoughTasks && split_tasks > p.row_blocks) {
    p.split = true;
    p.tasks = split_tasks;
    p.reduce_tasks = p.row_blocks;
  }

  // Outputs.
  const bool raw = a.acc.data != nullptr || a.max.data != nullptr || a.sum.data != nullptr;
  SIMDATTN_REQUIRE(!raw || (a.acc.data != nullptr && a.max.data != nullptr && a.sum.data != nullptr) || p.tasks == 0,
                   Code::kNullPointer, "acc, max, sum: the raw state is all three of them");
  const std::array<int64_t, 4> out_shape = {a.q.shape[0], a.q.shape[1], a.q.shape[2], p.d_v};
  const std::array<int64_t, 3> row_shape = {a.q.shape[0], a.q.shape[1], a.q.shape[2]};
  Extent outputs[5];  // those that are absent stay empty
  static constexpr const char* kOverlap[5] = {"out: overlaps another argument", "lse: overlaps another argument",
                                              "acc: overlaps another argument", "max: overlaps another argument",
                                              "sum: overlaps another argument"};
  if (a.out.data != nullptr || (needs_out && !raw)) {
    SIMDATTN_CHECK(check_view(a.out, Accept::kStorage, SIMDATTN_ARGUMENT("out"), &outputs[0]));
    SIMDATTN_REQUIRE(same_numbers(a.out.shape, out_shape), Code::kShape,
                     "out.shape: must be [q.shape[0], q.shape[1], q.shape[2], v.dim]");
  }
  if (a.lse.data != nullptr) {
    SIMDATTN_CHECK(check_view(a.lse, Accept::kF32, SIMDATTN_ARGUMENT("lse"), &outputs[1]));
    SIMDATTN_REQUIRE(same_numbers(a.lse.shape, row_shape), Code::kShape,
                     "lse.shape: must be the first three sizes of q");
  }
  if (raw) {
    SIMDATTN_CHECK(check_view(a.acc, Accept::kF32, SIMDATTN_ARGUMENT("acc"), &outputs[2]));
    SIMDATTN_REQUIRE(same_numbers(a.acc.shape, out_shape), Code::kShape,
                     "acc.shape: must be [q.shape[0], q.shape[1], q.shape[2], v.dim]");
    SIMDATTN_CHECK(check_view(a.max, Accept::kF32, SIMDATTN_ARGUMENT("max"), &outputs[3]));
    SIMDATTN_REQUIRE(same_numbers(a.max.shape, row_shape), Code::kShape,
                     "max.shape: must be the first three sizes of q");
    SIMDATTN_CHECK(check_view(a.sum, Accept::kF32, SIMDATTN_ARGUMENT("sum"), &outputs[4]));
    SIMDATTN_REQUIRE(same_numbers(a.sum.shape, row_shape), Code::kShape,
                     "sum.shape: must be the first three sizes of q");
  }
  for (int i = 0; i < 5; ++i) {
    const Extent& o = outputs[i];
    if (o.empty()) continue;
    bool bad =
        overlap(o, eq) || overlaps_kv(o, a.k, ek) || overlaps_kv(o, a.v, ev) || overlaps_scoring(o, a.scoring, shape);
    for (int j = 0; j < i; ++j) bad = bad || overlap(o, outputs[j]);
    SIMDATTN_REQUIRE(!bad, Code::kOverlap, kOverlap[i]);
  }
  return {};
}

TaskIterator::TaskIterator(const Attention& a, const AttentionProblem& p, bool splits, int64_t task)
    : a_(a), p_(p), by_split_(splits) {
  enter_sequence();
  while (sequence_ < p_.sequences) {
    const int64_t here = p_.kv_heads * n_blocks_ * n_splits_;
    if (task < here) break;
    task -= here;
    ++sequence_;
    enter_sequence();
  }
  if (sequence_ == p_.sequences) return;
  split_ = task % n_splits_;
  block_ = task / n_splits_ % n_blocks_;
  kv_head_ = task / n_splits_ / n_blocks_;
}

void TaskIterator::enter_sequence() {
  if (sequence_ >= p_.sequences) return;
  const Sequence q = p_.sequence(a_, sequence_);
  n_blocks_ = ceil_div(q.n_q * p_.group, p_.row_block);
  n_splits_ = by_split_ ? splits_of(sequence_rules(a_.scoring, sequence_, q.n_q, q.n_kv).length) : 1;
}

RowBlockIndex TaskIterator::row_block() const {
  const int64_t block = block_ % 2 == 0 ? block_ / 2 : n_blocks_ - 1 - block_ / 2;
  return {sequence_, kv_head_, block * p_.row_block};
}

void TaskIterator::next() {
  if (++split_ < n_splits_) return;
  split_ = 0;
  if (++block_ < n_blocks_) return;
  block_ = 0;
  if (++kv_head_ < p_.kv_heads) return;
  kv_head_ = 0;
  do {
    ++sequence_;
    enter_sequence();
  } while (sequence_ < p_.sequences && n_blocks_ == 0);
}

}  // namespace simdattn
