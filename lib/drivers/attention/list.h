// The keys of a list: one more way to find the keys of a key block. And rows that share a list.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_LIST_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_LIST_H_

#include <algorithm>
#include <optional>

#include "lib/drivers/attention/key_block.h"

namespace simdattn {

/// The keys of a key block, and those that are fetched meanwhile.
struct ListedTokens {
  int64_t columns;  // of the key block
  int64_t count;    // with those behind it, which are fetched
  int32_t token[kKeyBlock + kPanelWidth];
};

/// A list, as a sequence reads it. Its keys are at places 0, 1, ...: entries of -1, and keys past the last one, take no
/// place.
class KeyList {
 public:
  KeyList(const AttentionProblem& a, const Sequence& seq, int64_t kv_head, int64_t row)
      : entries_(list_of(a, seq, kv_head, row)),
        count_(a.lists.length),
        size_(a.lists.block_size),
        length_(seq.rules.length),
        places_(count_places()) {}

  /// Where a reader has come to.
  struct Cursor {
    int64_t entry = 0;
    int64_t inside = 0;  // keys of the entry that were read
  };
  /// How many keys there are.
  int64_t places() const { return places_; }
  /// The next key block. The cursor moves behind it.
  ListedTokens next_block(Cursor* at) const;

 private:
  int64_t count_places() const;
  /// The next n keys at most, and how many they are.
  int64_t read(Cursor* at, int32_t* tokens, int64_t n) const;

  const int32_t* entries_;
  int64_t count_;
  int64_t size_;    // keys of an entry
  int64_t length_;  // keys of the sequence
  int64_t places_;
};

/// How far inside of the row of its key each row of values is; -1: elsewhere.
int64_t values_inside_keys(const ConstKv& v, const ConstKv& k);
/// Which of these tokens are gathered. `store`: as panels where it has such, and the tokens are whole ones.
TokenList tokens_to_gather(const RowBlock& rows, const ListedTokens& tokens, const KvStore& store);

/// f(block) for the key blocks of one split of a list, after a look. Keys and values are gathered when they are read.
template <class F>
void for_each_listed_block(const RowBlock& rows, const KeyList& list, int64_t split, const F& f) {
  const int64_t inside = values_inside_keys(rows.problem.v, rows.problem.k);
  const int64_t first = split * kKeySplit, end = std::min(list.places(), first + kKeySplit);
  KeyList::Cursor at;
  for (int64_t base = 0; base < end; base += kKeyBlock) {
    const ListedTokens tokens = list.next_block(&at);
    if (base < first) continue;  // entries may be -1, so where a split begins is known only by counting from the first
    const AttentionMemory& memory = rows.memory;
    // Values inside of keys (latent attention) are read from the copies of the keys. These must then hold a whole key
    // block, because values are read after all of its keys.
    GatheredRows keys(rows.kernels, rows.k_store, tokens_to_gather(rows, tokens, rows.k_store), memory.gathered_keys,
                      inside >= 0 ? kKeyBlock / kPanelWidth : 1);
    std::optional<GatheredRows> values;
    if (inside < 0) {
      values.emplace(rows.kernels, rows.v_store, tokens_to_gather(rows, tokens, rows.v_store), memory.gathered_values);
    }
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
  const int64_t end = std::min(index.first_row + run.division.row_block, seq.n_q * group);
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

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_LIST_H_
