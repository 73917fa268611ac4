#include "lib/drivers/attention/list.h"

#include <tuple>

namespace simdattn {
namespace {

/// All that says where the tokens of a store are, but for its beginning. A member of BasicKv that is not named here
/// does not compile.
auto places_of(const ConstKv& kv) {
  const auto& [struct_size, data, type, layout, batch, heads, capacity, length, dim, batch_stride, head_stride,
               token_stride, scales, scale_batch_stride, scale_head_stride, scale_token_stride, block_table,
               block_table_stride, page_size, n_pages, ring, reserved] = kv;
  return std::tie(type, layout, batch, heads, capacity, batch_stride, head_stride, token_stride, scales,
                  scale_batch_stride, scale_head_stride, scale_token_stride, block_table, block_table_stride, page_size,
                  n_pages, ring);
}

/// True if tokens, in the order of a list, are whole panels. Behind an entry that the length cuts others may begin
/// inside of a panel.
bool are_whole_panels(const ListedTokens& tokens) {
  for (int64_t c = 0; c < tokens.columns; ++c) {
    if ((tokens.token[c] - c) % kPanelWidth != 0) return false;
  }
  return true;
}

}  // namespace

int64_t KeyList::count_places() const {
  const int64_t whole = length_ / size_;  // entries below it have all their keys
  int64_t all = 0, cut = 0;
  for (int64_t e = 0; e < count_; ++e) {
    all += static_cast<uint64_t>(entries_[e]) < static_cast<uint64_t>(whole);
    cut += entries_[e] == whole;
  }
  return all * size_ + cut * (length_ % size_);
}

int64_t KeyList::read(Cursor* at, int32_t* tokens, int64_t n) const {
  int64_t count = 0;
  while (at->entry < count_ && count < n) {
    const int64_t token = entries_[at->entry] * size_ + at->inside;
    tokens[count] = static_cast<int32_t>(token);
    const bool there = static_cast<uint64_t>(token) < static_cast<uint64_t>(length_);
    count += there;
    if (++at->inside < size_ && there) continue;
    ++at->entry;
    at->inside = 0;
  }
  return count;
}

ListedTokens KeyList::next_block(Cursor* at) const {
  ListedTokens tokens;
  tokens.columns = read(at, tokens.token, kKeyBlock);
  Cursor ahead = *at;
  tokens.count = tokens.columns + read(&ahead, tokens.token + tokens.columns, kPanelWidth);
  return tokens;
}

int64_t values_inside_keys(const ConstKv& v, const ConstKv& k) {
  if (k.layout != KvLayout::kRows || places_of(v) != places_of(k)) return -1;
  const int64_t inside = static_cast<const char*>(v.data) - static_cast<const char*>(k.data);
  return inside >= 0 && inside + row_bytes(v.type, v.dim) <= row_bytes(k.type, k.dim) ? inside : -1;
}

TokenList tokens_to_gather(const RowBlock& rows, const ListedTokens& tokens, const KvStore& store) {
  const Interval seen = rows.seen();
  const bool all = seen.lo <= 0 && seen.hi >= rows.sequence.rules.length;
  TokenList list = {.tokens = tokens.token, .count = tokens.count, .whole_panels = false, .fetch = true};
  if (!all) list.seen = seen;
  list.whole_panels = store.panels() && rows.problem.lists.block_size % kPanelWidth == 0 && are_whole_panels(tokens);
  return list;
}

}  // namespace simdattn
