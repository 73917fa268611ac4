#include "lib/drivers/attention/division.h"

#include <algorithm>

#include "lib/contract/steps.h"
#include "lib/drivers/shared/rows.h"
#include "lib/rules/attention.h"

namespace simdattn {
namespace {

/// For threads, fewer row blocks are too few: they become smaller, and if these are too few as well, splits are tasks.
constexpr int64_t kEnoughTasks = 32;
constexpr int64_t kSmallRowBlock = 128;
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

Status divide(const AttentionProblem& a, Threads threads, Division* division) {
  Division& d = *division;
  const AttentionSizes& sizes = d.sizes;
  const Scoring& rules = a.scoring;
  if (rules.kv_length || rules.kv_start || rules.prefix_end || rules.offsets || a.cu_k) {
    for (int64_t s = 0; s < sizes.sequences; ++s) {
      const int64_t n_kv = a.cu_k == nullptr ? a.k.keys() : a.cu_k[s + 1] - a.cu_k[s];
      SIMDATTN_CHECK(check_sequence(rules, s, n_kv));
    }
  }
  struct Tasks {
    int64_t row_blocks = 0;
    int64_t splits = 0;
  } of_large_blocks, of_small_blocks;
  int64_t most_rows = 0;  // of a sequence
  int64_t tokens = 0;     // keys of the sequences that are counted: below 2^60
  bool too_many = false;
  // Sequences of one length are counted once: with strides of 0, a legal batch has any number of them.
  const int64_t same = same_lengths(a) && sizes.sequences > 0 ? sizes.sequences : 1;
  for (int64_t s = 0; s < sizes.sequences && !too_many; s += same) {
    const Sequence seq = sequence_of(a, s);
    const int64_t rows = seq.n_q * sizes.group;  // below 2^60
    const Interval splits = task_splits(a, seq.rules.length);
    const auto add = [&](Tasks& all, int64_t row_block) {
      int64_t blocks;
      int64_t tasks;
      return !__builtin_mul_overflow(steps_of(rows, row_block), sizes.kv_heads * same, &blocks) &&
             !__builtin_mul_overflow(blocks, splits.size(), &tasks) &&
             !__builtin_add_overflow(all.row_blocks, blocks, &all.row_blocks) &&
             !__builtin_add_overflow(all.splits, tasks, &all.splits);
    };
    too_many = !add(of_large_blocks, kRowBlock) || !add(of_small_blocks, kSmallRowBlock);
    most_rows = std::max(most_rows, rows);
    const int64_t keys = seq.rules.length - oldest_token(a, seq.rules.length);
    tokens += has_lists(a) ? std::min(keys, a.lists.length * a.lists.block_size) : keys;
  }
  if (too_many) return kTooManyTasks;
  const double bytes = static_cast<double>(tokens) * static_cast<double>(same) * static_cast<double>(sizes.kv_heads) *
                       static_cast<double>(row_bytes(a.k.type, sizes.d_qk) + row_bytes(a.v.type, sizes.d_v));
  d.fetch = fetch_of(bytes, kFetchedBytes);
  d.fetch_one_row = fetch_of(bytes, kFetchedBytesOfOneRow);
  // Half panels where a panel of keys and the one that is fetched meanwhile exceed L1: they would push each other out.
  const bool fills_l1 = 2 * kPanelWidth * row_bytes(a.k.type, sizes.d_qk) >= tuning_of_cpu().l1_bytes;
  d.keys_at_once = fills_l1 ? kPanelWidth / 2 : kPanelWidth;
  d.scale = scale_of(rules.scale, sizes.d_qk);
  const bool several = threads == Threads::kSeveral && of_large_blocks.row_blocks < kEnoughTasks;
  const Tasks& tasks = several ? of_small_blocks : of_large_blocks;
  d.row_block = several ? kSmallRowBlock : kRowBlock;
  d.row_blocks = tasks.row_blocks;
  d.most_rows = std::min(most_rows, d.row_block);
  d.split = several && tasks.row_blocks < kEnoughTasks && tasks.splits > tasks.row_blocks;
  d.tasks = d.split ? tasks.splits : tasks.row_blocks;
  return {};
}

SequenceTasks::SequenceTasks(const AttentionProblem& a, const Division& d, int64_t s) {
  const Sequence seq = sequence_of(a, s);
  const int64_t rows = seq.n_q * d.sizes.group;
  // Both divisors are constants, so this is a shift: a 64-bit division is slow beside a short call.
  row_blocks = d.row_block == kRowBlock ? steps_of(rows, kRowBlock) : steps_of(rows, kSmallRowBlock);
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
  const int64_t row_block = task_ / splits().size(), n = here_.row_blocks, i = row_block % n;
  return {sequence_, row_block / n, (i % 2 == 0 ? i / 2 : n - 1 - i / 2) * division_.row_block};
}

}  // namespace simdattn
