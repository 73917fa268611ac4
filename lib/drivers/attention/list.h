// The keys of a list: one more way to find the keys of a key block. And rows that share a list.
#pragma once

#include <optional>

#include "lib/drivers/attention/key_block.h"

namespace simdattn {

/// The keys of a key block, and those that are fetched meanwhile.
struct ListedTokens {
  int64_t columns;  // of the key block
  int64_t count;    // with those behind it, which are fetched
  int32_t token[kKeyBlock + kPanelWidth];

  /// True if they are whole panels. Behind an entry that the length cuts others may begin inside of a panel.
  bool whole_panels() const {
    for (int64_t c = 0; c < columns; ++c) {
      if ((token[c] - c) % kPanelWidth != 0) return false;
    }
    return true;
  }
};

/// A list, as a sequence reads it: its keys are at places 0, 1, ... Entries of -1 and keys past the last one take none.
class ListReader {
 public:
  ListReader(const AttentionProblem& a, const Sequence& seq, int64_t kv_head, int64_t row)
      : lists_(a.lists), entries_(list_of(a, seq, kv_head, row)), length_(seq.rules.length) {}

  /// The place that is read next.
  int64_t place() const { return place_; }
  /// The next key block; without columns where there are no more keys.
  ListedTokens next_block() {
    ListedTokens tokens;
    tokens.columns = read(tokens.token, kKeyBlock);
    tokens.count = tokens.columns + ListReader(*this).read(tokens.token + tokens.columns, kPanelWidth);
    return tokens;
  }

 private:
  /// The next n keys at most, and how many they are.
  int64_t read(int32_t* tokens, int64_t n) {
    int64_t count = 0;
    while (entry_ < lists_.length && count < n) {
      const int64_t token = entries_[entry_] * lists_.block_size + inside_;
      tokens[count] = static_cast<int32_t>(token);
      const bool there = static_cast<uint64_t>(token) < static_cast<uint64_t>(length_);
      count += there;
      if (++inside_ < lists_.block_size && there) continue;
      ++entry_;
      inside_ = 0;
    }
    place_ += count;
    return count;
  }

  const KeyLists& lists_;
  const int32_t* entries_;
  int64_t length_;      // keys of the sequence
  int64_t entry_ = 0;   // that is read next
  int64_t inside_ = 0;  // keys of it that were read
  int64_t place_ = 0;
};

/// f(block) for the key blocks of one split of a list, after a look. Keys and values are gathered when they are read.
template <class F>
void for_each_listed_block(const RowBlock& rows, ListReader* list, int64_t split, const F& f) {
  const AttentionMemory& memory = rows.memory;
  const int64_t inside = memory.values_inside_keys;
  while (list->place() < (split + 1) * kKeySplit) {
    const int64_t base = list->place();
    const ListedTokens tokens = list->next_block();
    if (tokens.columns == 0) return;
    if (base < split * kKeySplit) continue;  // entries may be -1: where a split begins is known by counting alone
    const TokenList of_values = {.tokens = tokens.token, .count = tokens.count, .seen = rows.seen(), .fetch = true};
    TokenList of_keys = of_values;
    of_keys.whole_panels =
        rows.k_store.panels() && rows.problem.lists.block_size % kPanelWidth == 0 && tokens.whole_panels();
    GatheredRows keys(rows.kernels, rows.k_store, of_keys, memory.gathered_keys);
    std::optional<GatheredRows> values;
    if (inside < 0) values.emplace(rows.kernels, rows.v_store, of_values, memory.gathered_values);
    KeyBlock block(base, tokens.token, BlockTokens(keys), values ? BlockTokens(*values) : BlockTokens(keys, inside));
    look_at_list(rows, tokens.columns, &block);
    f(block);
  }
}

/// f(part) for the rows of a task that share a list, as many neighbours as there are; without lists for all of them.
template <class F>
void for_each_list(const AttentionRun& run, const RowBlockIndex& index, const F& f) {
  const AttentionProblem& a = run.problem;
  if (!has_lists(a)) return f(index);
  const Sequence seq = sequence_of(a, index.sequence);
  const int64_t group = run.division.sizes.group;
  const int64_t end = std::min(index.first_row + run.division.row_block(), seq.n_q * group);
  const auto list = [&](int64_t row) { return list_of(a, seq, index.kv_head, row / group); };
  RowBlockIndex part = index;
  for (; part.first_row < end; part.first_row += part.rows) {
    const int32_t* const first = list(part.first_row);
    int64_t last = part.first_row;
    do {
      last = std::min((last / group + 1) * group, end);
    } while (last < end && (list(last) == first || std::equal(first, first + a.lists.length, list(last))));
    part.rows = last - part.first_row;
    f(part);
  }
}

}  // namespace simdattn
