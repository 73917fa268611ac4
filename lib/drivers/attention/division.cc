#include "lib/drivers/attention/division.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "lib/contract/steps.h"
#include "lib/drivers/shared/rows.h"

namespace simdattn {
namespace {

/// A call whose keys and values have more bytes reads them from beyond L2 and prefetches. A single row multiplies so
/// little that the hardware's prefetcher suffices up to a larger size.
constexpr double kFetchedBytes = 1 << 20;
constexpr double kFetchedBytesOfOneRow = 8 << 20;

/// The first token that both stores still hold. A ring holds the last ones.
int64_t oldest_token(const AttentionProblem& a, int64_t length) {
  int64_t oldest = 0;
  for (const int64_t ring : {a.k.ring, a.v.ring}) {
    if (ring > 0) oldest = std::max(oldest, length - ring);
  }
  return oldest;
}

/// The splits [lo, hi) of a sequence that are tasks: all of them or, of a ring, the last ones. The number for a ring is
/// the most splits that its tokens can touch, so it does not fall as the sequence grows. A ring of up to kKeySplit
/// tokens is one task, which computes every split that the ring touches.
Interval task_splits(const AttentionProblem& a, int64_t length) {
  if (has_lists(a)) return {0, std::max(steps_of(a.lists.length * a.lists.block_size, kKeySplit), int64_t{1})};
  const int64_t splits = std::max(steps_of(length, kKeySplit), int64_t{1});
  const int64_t held = length - oldest_token(a, length);
  if (held == length) return {0, splits};
  const int64_t most = held <= kKeySplit ? 1 : (held - 2) / kKeySplit + 2;
  return {splits - std::min(splits, most), splits};
}

/// A shift, because a 64-bit division is slow beside a short call.
int64_t row_blocks_of(int64_t rows, int bits) { return (rows + (int64_t{1} << bits) - 1) >> bits; }

/// Row blocks have 256, 128, ... or 16 rows: fewer would not fill the register tiles.
constexpr int kRowBlockSizes = 5;

/// How many tasks there are with row blocks of one size.
struct TaskCount {
  int64_t row_blocks = 0, splits = 0;

  /// Adds the tasks of `heads` heads of so many rows and splits. False if there are more than can be counted.
  bool add(int64_t rows, int bits, int64_t of_split, int64_t heads) {
    int64_t blocks, tasks;
    return !__builtin_mul_overflow(row_blocks_of(rows, bits), heads, &blocks) &&
           !__builtin_mul_overflow(blocks, of_split, &tasks) &&
           !__builtin_add_overflow(row_blocks, blocks, &row_blocks) && !__builtin_add_overflow(splits, tasks, &splits);
  }
};

/// What the slowest thread takes, as a multiple of an equal share of the work in large row blocks, where threads take
/// tasks one by one from a shared counter (tools/simdattn-tasks.cc counts the loads). The terms are:
///  - a thread without a task, or one that still has a task when others have none left: half of the longest task in the
///    mean, where tasks differ; else a little, because threads do not begin together;
///  - what each row block does anew, to fetch or pack keys and values, which is as much as 12 more rows would cost.
double estimate(int64_t tasks, int64_t rows, bool differ, double threads) {
  const double share = threads / static_cast<double>(tasks);
  return (std::max(1.0, share) + (differ ? 0.9 : 0.15) * share) * (1 + 12 / static_cast<double>(rows));
}

/// Chooses the size of row blocks, and whether splits are tasks. The more splits a problem has, the better is the
/// estimate with splits, so a problem that is not split with the longest sequences is not split with shorter ones.
void choose_tasks(const AttentionProblem& a, int64_t threads, std::span<const TaskCount> count, int64_t most_rows,
                  Division* division) {
  Division& d = *division;
  // Splits leave states in memory, which are joined when all are there. That costs little time, but for many rows much
  // memory, and many rows have enough row blocks.
  constexpr double kCostOfSplits = 1.05;
  constexpr int64_t kMostSplitRows = 8192;
  const bool may_split =
      threads > 1 && count.back().row_blocks <= kMostSplitRows >> (kRowBlockBits + 1 - kRowBlockSizes);
  double least = HUGE_VAL;
  const auto consider = [&](size_t i, bool split, int64_t tasks) {
    // Also where no lengths are given: the sizes of such a plan hold for any lengths.
    const bool differ =
        d.sizes.sequences > 1 || (a.scoring.causal && a.q.shape[2] > 1 && count[i].row_blocks > d.sizes.kv_heads);
    const int64_t rows = std::min(most_rows, kRowBlock >> i);
    const double time = estimate(tasks, rows, differ, static_cast<double>(threads)) * (split ? kCostOfSplits : 1);
    if (time >= least) return;
    least = time;
    d.row_block_bits = kRowBlockBits - static_cast<int>(i);
    d.row_blocks = count[i].row_blocks;
    d.split = split;
    d.tasks = tasks;
  };
  for (size_t i = 0; i < count.size() && count[0].row_blocks > 0; ++i) {
    consider(i, false, count[i].row_blocks);
    if (may_split && count[i].splits > count[i].row_blocks) consider(i, true, count[i].splits);
  }
  d.most_rows = std::min(most_rows, d.row_block());
  // As many as any size of row blocks needs, because a plan of shorter sequences may have another size.
  for (size_t i = 0; d.split && i < count.size(); ++i) {
    int64_t rows;
    const bool fits = !__builtin_mul_overflow(count[i].splits, std::min(most_rows, kRowBlock >> i), &rows);
    d.partial_rows = std::max(d.partial_rows, fits ? rows : INT64_MAX);
  }
}

}  // namespace

Sequence sequence_of(const AttentionProblem& a, int64_t s) {
  Sequence r = {s, s, 0, a.q.shape[2], 0, a.k.keys(), {}};
  if (a.cu_q != nullptr) {
    r.q_batch = 0;
    r.first_row = a.cu_q[s];
    r.n_q = a.cu_q[s + 1] - r.first_row;
  }
  if (a.cu_k != nullptr) {
    r.first_key = a.cu_k[s];
    r.n_kv = a.cu_k[s + 1] - r.first_key;
  }
  r.rules = sequence_rules(a.scoring, s, r.n_q, r.n_kv);
  r.rules.start = std::max(r.rules.start, oldest_token(a, r.rules.length));
  return r;
}

bool same_lengths(const AttentionProblem& a) { return a.cu_q == nullptr && a.scoring.kv_length == nullptr; }

Status divide(const AttentionProblem& a, int64_t threads, Division* division) {
  Division& d = *division;
  const AttentionSizes& sizes = d.sizes;
  const Scoring& rules = a.scoring;
  if (rules.kv_length || rules.kv_start || rules.prefix_end || rules.offsets || a.cu_k) {
    for (int64_t s = 0; s < sizes.sequences; ++s) {
      const int64_t n_kv = a.cu_k == nullptr ? a.k.keys() : a.cu_k[s + 1] - a.cu_k[s];
      SIMDATTN_CHECK(check_sequence(rules, s, n_kv));
    }
  }
  d.heads_together = threads == 1 ? 1 : sizes.kv_heads;
  TaskCount count[kRowBlockSizes];
  int sizes_of_blocks = threads == 1 ? 1 : kRowBlockSizes;  // those whose tasks can be counted
  int64_t most_rows = 0;                                    // of a sequence
  int64_t tokens = 0;                                       // no fault: keys, below 2^60: they choose what is fetched
  // Sequences of one length are counted once: with strides of 0, a legal batch has any number of them.
  const int64_t same = same_lengths(a) && sizes.sequences > 0 ? sizes.sequences : 1;
  for (int64_t s = 0; s < sizes.sequences; s += same) {
    const Sequence seq = sequence_of(a, s);
    const int64_t rows = seq.n_q * sizes.group;  // below 2^60
    const int64_t splits = task_splits(a, seq.rules.length).size();
    for (int i = 0; i < sizes_of_blocks; ++i) {
      if (!count[i].add(rows, kRowBlockBits - i, splits, sizes.kv_heads * same)) sizes_of_blocks = i;
    }
    if (sizes_of_blocks == 0) return kTooManyTasks;
    most_rows = std::max(most_rows, rows);
    const int64_t keys = seq.rules.length - oldest_token(a, seq.rules.length);  // no fault: chooses what is fetched
    tokens += has_lists(a) ? std::min(keys, a.lists.length * a.lists.block_size) : keys;
  }
  const double bytes = static_cast<double>(tokens) * static_cast<double>(same) * static_cast<double>(sizes.kv_heads) *
                       static_cast<double>(row_bytes(a.k.type, sizes.d_qk) + row_bytes(a.v.type, sizes.d_v));
  d.fetch = fetch_of(bytes, kFetchedBytes);
  d.fetch_one_row = fetch_of(bytes, kFetchedBytesOfOneRow);
  // Half panels where a panel of keys and the one that is fetched meanwhile exceed L1: they would push each other out.
  const bool fills_l1 = 2 * kPanelWidth * row_bytes(a.k.type, sizes.d_qk) >= tuning_of_cpu().l1_bytes;
  d.keys_at_once = fills_l1 ? kPanelWidth / 2 : kPanelWidth;
  d.scale = scale_of(rules.scale, sizes.d_qk);
  choose_tasks(a, threads, {count, static_cast<size_t>(sizes_of_blocks)}, most_rows, &d);
  return {};
}

SequenceTasks::SequenceTasks(const AttentionProblem& a, const Division& d, int64_t s) {
  const Sequence seq = sequence_of(a, s);
  const int64_t rows = seq.n_q * d.sizes.group;
  row_blocks = row_blocks_of(rows, d.row_block_bits);
  if (d.split) splits = task_splits(a, seq.rules.length);
  tasks = d.sizes.kv_heads * row_blocks * splits.size();
}

void TaskIterator::skip_sequences() {
  const int64_t sequences = division_.sizes.sequences;
  while (sequence_ < sequences) {
    here_ = SequenceTasks(a_, division_, sequence_);
    if (task_ < here_.tasks) return;
    const int64_t passed = !same_lengths(a_) ? 1 : here_.tasks == 0 ? sequences - sequence_ : task_ / here_.tasks;
    sequence_ += passed;
    task_ -= passed * here_.tasks;
  }
}

RowBlockIndex TaskIterator::row_block() const {
  const int64_t n = here_.row_blocks, heads = division_.heads_together, of_heads = n * heads;
  const int64_t block = task_ / splits().size(), first_head = block / of_heads * heads;
  const int64_t i = block % of_heads, pair = i / 2 / heads;
  if (is_middle(pair)) return {sequence_, first_head + i - 2 * pair * heads, pair << division_.row_block_bits};
  return {sequence_, first_head + i / 2 % heads, (i % 2 == 0 ? n - 1 - pair : pair) << division_.row_block_bits};
}

}  // namespace simdattn
