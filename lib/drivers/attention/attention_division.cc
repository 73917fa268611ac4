#include "lib/drivers/attention/attention_division.h"

#include <algorithm>
#include <cmath>

#include "lib/contract/dtypes.h"
#include "lib/drivers/rows/fetch.h"
#include "lib/rules/attention.h"

namespace simdattn {
namespace {

/// Below this many row blocks, threads get smaller ones, and long keys are split into more tasks.
constexpr int64_t kEnoughTasks = 32;
constexpr int64_t kSmallRowBlock = 128;
/// Keys and values of one call beyond this come from beyond L2 and are prefetched. A single row leaves the hardware's
/// prefetcher time enough up to a larger size; four rows and more do not.
constexpr double kStreamBytes = 1 << 20;
constexpr double kStreamBytesOfOneRow = 8 << 20;

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Row blocks of so many rows, by shifts: a division of 64 bits is slow beside a short call.
int64_t row_blocks_of(const Division& d, int64_t rows) {
  return d.row_block == kRowBlock ? ceil_div(rows, kRowBlock) : ceil_div(rows, kSmallRowBlock);
}

/// Keys of a sequence.
int64_t length_of(const Attention& a, int64_t s) {
  return a.scoring.kv_length != nullptr ? a.scoring.kv_length[s] : sequence_of(a, s).n_kv;
}

/// check_sequence() for all of them, where it may find what check_scoring() did not.
Status check_sequences(const Attention& a, int64_t sequences) {
  const Scoring& s = a.scoring;
  if (s.kv_start == nullptr && s.prefix_end == nullptr && s.offsets == nullptr) {
    if (s.kv_length == nullptr && (s.bits.columns == 0 || a.cu_k == nullptr)) return {};
    // A batch that decodes has lengths alone: one comparison each, if all are good.
    if (s.bits.columns == 0 && a.cu_k == nullptr) {
      const uint32_t most = static_cast<uint32_t>(a.k.keys());
      bool wrong = false;
      for (int64_t i = 0; i < sequences; ++i) wrong |= static_cast<uint32_t>(s.kv_length[i]) > most;
      if (!wrong) return {};
    }
  }
  for (int64_t i = 0; i < sequences; ++i) SIMDATTN_CHECK(check_sequence(s, i, sequence_of(a, i).n_kv));
  return {};
}

bool hidden(const Attention& a, const Division& d, int64_t s, const SequenceRules& rules, int64_t first_row,
            int64_t last_row, Interval keys) {
  if (!has_modifiers(a.scoring)) return false;
  const Sequence seq = sequence_of(a, s);
  for (int64_t i = first_row; i < last_row; ++i) {
    const Interval row = visible_interval(a.scoring, rules, i);
    const Interval seen = {std::max(row.lo, keys.lo), std::min(row.hi, keys.hi)};
    for (int64_t h = 0; h < d.sizes.heads && seen.lo < seen.hi; ++h) {
      const RowModifiers m = row_modifiers(a.scoring, rules, h, i, seq.mask_batch, seq.first_mask_row + i);
      for (int64_t j = seen.lo; j < seen.hi; ++j) {
        if (mask_allows(m, j)) return false;
      }
    }
  }
  return true;
}

}  // namespace

Sequence sequence_of(const Attention& a, int64_t s) {
  Sequence r = {s, 0, a.q.shape[2], 0, a.k.keys(), s, 0};
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

bool are_alike(const Attention& a) { return a.cu_q == nullptr && a.scoring.kv_length == nullptr; }

Interval task_splits(const Attention& a, int64_t length) {
  const int64_t splits = splits_of(length);
  const int64_t held = length - oldest_token(a, length);
  if (held == length) return {0, splits};
  const int64_t most = held <= kKeySplit ? 1 : (held - 2) / kKeySplit + 2;
  return {splits - std::min(splits, most), splits};
}

Status divide(const Attention& a, Threads threads, Division* division) {
  Division& d = *division;
  const AttentionSizes& sizes = d.sizes;
  int64_t most_rows = 0;  // of a sequence
  int64_t row_blocks = 0;
  int64_t split_tasks = 0;
  int64_t small_row_blocks = 0;
  int64_t small_split_tasks = 0;
  int64_t tokens = 0;  // of sequences that are not alike: below 2^60
  bool too_many = false;
  SIMDATTN_CHECK(check_sequences(a, sizes.sequences));
  // Sequences that are alike are counted once: with strides of 0, a legal batch has any number of them.
  const int64_t alike = are_alike(a) && sizes.sequences > 0 ? sizes.sequences : 1;
  // Nothing overflows if it does not where every sequence has all rows and all keys.
  const bool few = 0x1p-62 * (static_cast<double>(a.q.shape[2] * sizes.group) / kSmallRowBlock + 1) *
                       static_cast<double>(sizes.kv_heads) * static_cast<double>(splits_of(a.k.keys())) *
                       static_cast<double>(sizes.sequences) <
                   1;
  for (int64_t s = 0; s < sizes.sequences; s += alike) {
    const int64_t length = length_of(a, s);
    const int64_t rows = sequence_of(a, s).n_q * sizes.group;  // below 2^60
    most_rows = std::max(most_rows, rows);
    const Interval split = task_splits(a, length);
    const int64_t splits = split.hi - split.lo;
    int64_t blocks = ceil_div(rows, kRowBlock);
    int64_t small_blocks = ceil_div(rows, kSmallRowBlock);
    // Every count is below that of small blocks and splits.
    int64_t most;
    too_many =
        !few && (__builtin_mul_overflow(small_blocks, sizes.kv_heads * alike, &most) ||
                 __builtin_mul_overflow(most, splits, &most) || __builtin_add_overflow(small_split_tasks, most, &most));
    if (too_many) break;
    blocks *= sizes.kv_heads * alike;
    small_blocks *= sizes.kv_heads * alike;
    row_blocks += blocks;
    split_tasks += blocks * splits;
    small_row_blocks += small_blocks;
    small_split_tasks += small_blocks * splits;
    tokens += length - oldest_token(a, length);
  }
  SIMDATTN_CHECK(check_task_count(too_many));
  const double bytes = static_cast<double>(tokens) * static_cast<double>(alike) * static_cast<double>(sizes.kv_heads) *
                       static_cast<double>(row_bytes(a.k.type, sizes.d_qk) + row_bytes(a.v.type, sizes.d_v));
  d.fetch = fetch_of(bytes, kStreamBytes);
  d.fetch_one_row = fetch_of(bytes, kStreamBytesOfOneRow);
  // A panel of keys and the one that is fetched meanwhile.
  const bool fills_l1 = 2 * kPanelWidth * row_bytes(a.k.type, sizes.d_qk) >= tuning_of_cpu().l1_bytes;
  d.keys_at_once = fills_l1 ? kPanelWidth / 2 : kPanelWidth;
  d.scale = a.scoring.scale ? *a.scoring.scale : 1.0f / std::sqrt(static_cast<float>(sizes.d_qk));
  d.row_block = kRowBlock;
  if (threads == Threads::kSeveral && row_blocks < kEnoughTasks) {
    d.row_block = kSmallRowBlock;
    row_blocks = small_row_blocks;
    split_tasks = small_split_tasks;
  }
  d.row_blocks = row_blocks;
  d.partial_rows = std::min(most_rows, d.row_block);
  d.one_block = most_rows <= d.row_block && row_blocks == sizes.sequences * sizes.kv_heads;
  d.split = row_blocks < kEnoughTasks && split_tasks > row_blocks;
  d.tasks = d.split ? split_tasks : row_blocks;
  d.reduce_tasks = d.split ? row_blocks : 0;
  return {};
}

int64_t oldest_token(const Attention& a, int64_t length) {
  int64_t oldest = 0;
  for (const int64_t ring : {a.k.ring, a.v.ring}) {
    if (ring > 0) oldest = std::max(oldest, length - ring);
  }
  return oldest;
}

Interval keys_of_rows(const Attention& a, const SequenceRules& rules, int64_t first_row, int64_t last_row) {
  // Neither end of the interval decreases from row to row.
  return {std::max(visible_interval(a.scoring, rules, first_row).lo, oldest_token(a, rules.length)),
          visible_interval(a.scoring, rules, last_row - 1).hi};
}

Status check_pages(const Attention& a, const Division& d, int64_t s, int64_t first_row, int64_t last_row) {
  if (a.k.page_size == 0 && a.v.page_size == 0) return {};
  if (first_row >= last_row) return {};
  const Sequence q = sequence_of(a, s);
  const SequenceRules rules = sequence_rules(a.scoring, s, q.n_q, q.n_kv);
  const Interval seen = keys_of_rows(a, rules, first_row, last_row);
  if (seen.lo >= seen.hi) return {};
  const struct {
    const ConstKv& kv;
    const char* text;
  } stores[2] = {{a.k, kKeysText.pages}, {a.v, kValuesText.pages}};
  for (const auto& store : stores) {
    const ConstKv& kv = store.kv;
    if (kv.page_size == 0) continue;
    const int32_t* table = kv.block_table + s * table_stride(kv);
    const uint32_t size = static_cast<uint32_t>(kv.page_size);
    const int64_t first = static_cast<uint32_t>(seen.lo) / size;
    const int64_t last = static_cast<uint32_t>(seen.hi - 1) / size;
    const uint32_t pages = static_cast<uint32_t>(kv.n_pages);
    bool wrong = false;
    for (int64_t i = first; i <= last; ++i) wrong |= static_cast<uint32_t>(table[i]) >= pages;
    if (!wrong) continue;
    for (int64_t i = first; i <= last; ++i) {
      if (static_cast<uint32_t>(table[i]) < pages) continue;
      const Interval keys = {i * kv.page_size, (i + 1) * kv.page_size};
      SIMDATTN_REQUIRE(table[i] < 0 && hidden(a, d, s, rules, first_row, last_row,
                                              {std::max(keys.lo, seen.lo), std::min(keys.hi, seen.hi)}),
                       Code::kRange, store.text);
    }
  }
  return {};
}

TaskIterator::TaskIterator(const Attention& a, const Division& division, bool splits, int64_t sequence, int64_t task)
    : a_(a), division_(division), by_split_(splits), sequence_(sequence) {
  const AttentionSizes& sizes = division_.sizes;
  const bool alike = by_split_ ? are_alike(a_) : a_.cu_q == nullptr || division_.one_block;
  if (alike && sequence_ < sizes.sequences) {
    enter_sequence();
    const int64_t each = sizes.kv_heads * n_blocks_ * (splits_.hi - splits_.lo);
    sequence_ = each > 0 ? sequence_ + task / each : sizes.sequences;
    task -= each > 0 ? task / each * each : 0;
  } else {
    for (; sequence_ < sizes.sequences; ++sequence_) {
      const int64_t here = tasks_of(a_, division_, by_split_, sequence_);
      if (task < here) break;
      task -= here;
    }
  }
  if (sequence_ >= sizes.sequences) return;
  enter_sequence();
  const int64_t n_splits = splits_.hi - splits_.lo;
  if (n_splits == 1 && n_blocks_ == 1) {  // decode
    kv_head_ = task;
    return;
  }
  split_ = splits_.lo + task % n_splits;
  block_ = task / n_splits % n_blocks_;
  kv_head_ = task / n_splits / n_blocks_;
}

void TaskIterator::enter_sequence() {
  if (sequence_ >= division_.sizes.sequences) return;
  const Sequence q = sequence_of(a_, sequence_);
  n_blocks_ = row_blocks_of(division_, q.n_q * division_.sizes.group);
  if (by_split_) splits_ = task_splits(a_, length_of(a_, sequence_));
  split_ = splits_.lo;
}

RowBlockIndex TaskIterator::row_block() const {
  const int64_t block = block_ % 2 == 0 ? block_ / 2 : n_blocks_ - 1 - block_ / 2;
  return {sequence_, kv_head_, block * division_.row_block};
}

void TaskIterator::next() {
  if (++split_ < splits_.hi) return;
  split_ = splits_.lo;
  if (++block_ < n_blocks_) return;
  block_ = 0;
  if (++kv_head_ < division_.sizes.kv_heads) return;
  kv_head_ = 0;
  do {
    ++sequence_;
    enter_sequence();
  } while (sequence_ < division_.sizes.sequences && n_blocks_ == 0);
}

int64_t tasks_of(const Attention& a, const Division& d, bool splits, int64_t s) {
  const int64_t rows = (a.cu_q == nullptr ? a.q.shape[2] : a.cu_q[s + 1] - a.cu_q[s]) * d.sizes.group;
  const int64_t blocks = d.sizes.kv_heads * row_blocks_of(d, rows);
  if (!splits) return blocks;
  const Interval split = task_splits(a, length_of(a, s));
  return blocks * (split.hi - split.lo);
}

}  // namespace simdattn
