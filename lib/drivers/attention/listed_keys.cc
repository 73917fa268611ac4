#include "lib/drivers/attention/listed_keys.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

namespace simdattn {
namespace {

/// How far inside of the row of its key each row of values is; -1: elsewhere.
int64_t part_of_keys(const ConstKv& v, const ConstKv& k) {
  ConstKv part = k;
  part.data = v.data;
  part.dim = v.dim;
  const int64_t inside = static_cast<const char*>(v.data) - static_cast<const char*>(k.data);
  const bool is_part = std::memcmp(&part, &v, sizeof v) == 0 && k.layout == KvLayout::kRows && inside >= 0 &&
                       inside + row_bytes(v.type, v.dim) <= row_bytes(k.type, k.dim);
  return is_part ? inside : -1;
}

}  // namespace

ListedKeys::ListedKeys(const AttentionRun& run, const RowBlockIndex& index, const Sequence& q)
    : a_(run.problem),
      uk_(run.kernels),
      ops_(kernels_of(uk_, a_.arithmetic, run.division.partial_rows)),
      w_(run.memory),
      modifiers_(has_modifiers(a_.scoring)),
      list_(list_of(a_, q, index.kv_head, index.first_row / run.division.sizes.group)),
      entries_(a_.lists.length),
      size_(a_.lists.block_size),
      length_(q.rules.length),
      part_(part_of_keys(a_.v, a_.k)),
      keys_(uk_, {a_.k, index.sequence * (a_.cu_k == nullptr), index.kv_head, q.first_key}, w_.gathered_keys,
            part_ >= 0 ? kKeyBlock / kPanelWidth : 1),
      values_(uk_, {a_.v, index.sequence * (a_.cu_k == nullptr), index.kv_head, q.first_key}, w_.gathered_values) {
  const int64_t whole = length_ / size_;  // entries below it have all their keys
  int64_t cut = 0;
  for (int64_t e = 0; e < entries_; ++e) {
    places_ += static_cast<uint64_t>(list_[e]) < static_cast<uint64_t>(whole);
    cut += list_[e] == whole;
  }
  places_ = places_ * size_ + cut * (length_ % size_);
}

int64_t ListedKeys::read(int32_t* tokens, int64_t n) {
  int64_t count = 0;
  while (entry_ < entries_ && count < n) {
    const int64_t token = list_[entry_] * size_ + inside_;
    tokens[count] = static_cast<int32_t>(token);
    // -1 and what is past the last key take no place.
    const bool there = static_cast<uint64_t>(token) < static_cast<uint64_t>(length_);
    count += there;
    if (++inside_ < size_ && there) continue;
    ++entry_;
    inside_ = 0;
  }
  return count;
}

bool ListedKeys::whole_panels() const {
  if (a_.k.layout != KvLayout::kPanels || size_ % kPanelWidth != 0) return false;
  // Behind an entry that the length cuts others may begin inside of a panel.
  int32_t c = 0;
  while (c < columns_ && (tokens_[c] - c) % kPanelWidth == 0) ++c;
  return c == columns_;
}

void ListedKeys::begin(int64_t base, int64_t rows, HeadOperands* k, HeadOperands* v, SeenColumns* columns) {
  for (; next_base_ <= base; next_base_ += kKeyBlock) {
    there_ = std::max(there_ - kKeyBlock, int64_t{0});
    std::copy_n(tokens_ + kKeyBlock, there_, tokens_);
    there_ += read(tokens_ + there_, 2 * kKeyBlock - there_);
  }
  columns_ = std::min(there_, kKeyBlock);
  const Interval seen = {w_.see[0].lo, w_.see[rows - 1].hi};  // neither end of an interval decreases from row to row
  const Interval* const part = sees_all(seen) ? nullptr : &seen;
  keys_.begin(tokens_, there_, base, part, true, whole_panels());
  if (part_ < 0) values_.begin(tokens_, there_, base, part, true);
  part_of_keys_ = keys_.kv();
  part_of_keys_.dim = a_.v.dim;
  std::construct_at(k, uk_, ops_, keys_, keys_.kv(), w_.key_rows);
  if (part_ >= 0) std::construct_at(v, uk_, ops_, keys_, part_of_keys_, w_.key_rows, part_);
  else std::construct_at(v, uk_, ops_, values_, values_.kv(), w_.key_rows);
  holes_ = false;
  for (int64_t r = 0; r < rows; ++r) {
    if (r > 0 && w_.see[r].lo == w_.see[r - 1].lo && w_.see[r].hi == w_.see[r - 1].hi) {
      columns[r] = columns[r - 1];
      continue;
    }
    int32_t lo = 0;
    auto hi = static_cast<int32_t>(columns_);
    while (lo < hi && !in_interval(r, lo)) ++lo;
    while (lo < hi && !in_interval(r, hi - 1)) --hi;
    for (int32_t c = lo; !sees_all(w_.see[r]) && c < hi; ++c) holes_ = holes_ || !in_interval(r, c);
    columns[r] = {lo, hi, lo, hi, hi - lo};
  }
}

bool ListedKeys::modify(int64_t r, const SeenColumns& columns, float* s) const {
  const RowModifiers& m = w_.modifiers[r];
  bool masked = false;
  for (int32_t c = columns.lo, end; modifiers_ && c < columns.hi; c = end) {
    // Runs of keys that follow one another. A cap alone looks at no position.
    const bool anywhere = m.slope == 0.0f && m.bias == nullptr && m.keep == nullptr && m.bits == nullptr;
    for (end = c + 1; end < columns.hi && (anywhere || tokens_[end] == tokens_[c] + end - c);) ++end;
    masked |= simdattn::modify(uk_, {m, s, s, tokens_[c] - c, c, end, 1.0f, true}).masked;
  }
  for (int32_t c = columns.lo; holes_ && c < columns.hi; ++c) {
    if (in_interval(r, c)) continue;
    s[c] = -std::numeric_limits<float>::infinity();
    masked = true;
  }
  return masked;
}

}  // namespace simdattn
