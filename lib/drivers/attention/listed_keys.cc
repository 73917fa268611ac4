#include "lib/drivers/attention/listed_keys.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>

namespace simdattn {
namespace {

/// Rows that are fetched ahead of the one that is copied.
constexpr int64_t kRowsAhead = 32;
constexpr uintptr_t kLine = 64;

/// A store of kKeyBlock rows, one behind the other.
ConstKv rows_of(const ConstKv& kv, const char* rows, const float* scales) {
  ConstKv r;
  r.data = rows;
  r.type = kv.type;
  r.batch = r.heads = 1;
  r.capacity = kKeyBlock;
  r.dim = kv.dim;
  r.token_stride = row_bytes(kv.type, kv.dim);
  r.scales = has_scales(kv.type) ? scales : nullptr;
  r.scale_token_stride = sizeof(float);
  return r;
}

/// True if each row of values is a part of the row of its key.
bool is_part(const ConstKv& v, const ConstKv& k) {
  ConstKv part = k;
  part.data = v.data;
  part.dim = v.dim;
  const auto* const value = static_cast<const char*>(v.data);
  const auto* const key = static_cast<const char*>(k.data);
  return std::memcmp(&part, &v, sizeof v) == 0 && value >= key &&
         value + row_bytes(v.type, v.dim) <= key + row_bytes(k.type, k.dim);
}

void fetch_row(const char* row, int64_t bytes) {
  for (const char* p = row - reinterpret_cast<uintptr_t>(row) % kLine; p < row + bytes; p += kLine) {
    __builtin_prefetch(p, 0, 2);
  }
}

}  // namespace

ListedKeys::ListedKeys(const AttentionRun& run, const RowBlockIndex& index, const Sequence& q)
    : a_(run.problem),
      uk_(run.kernels),
      ops_(kernels_of(uk_, a_.arithmetic, run.division)),
      w_(run.memory),
      sequence_(index.sequence * (a_.cu_k == nullptr)),
      head_(index.kv_head),
      first_key_(q.first_key),
      modifiers_(has_modifiers(a_.scoring)),
      list_(list_of(a_, q, index.kv_head, index.first_row / run.division.sizes.group)),
      entries_(a_.lists.length),
      size_(a_.lists.block_size),
      length_(q.rules.length),
      aliases_(is_part(a_.v, a_.k)),
      keys_(rows_of(a_.k, w_.listed.keys, key_scales_)),
      values_(rows_of(a_.v, w_.listed.values, value_scales_)) {
  if (aliases_) {
    values_.data = w_.listed.keys + (static_cast<const char*>(a_.v.data) - static_cast<const char*>(a_.k.data));
    values_.token_stride = keys_.token_stride;
    if (has_scales(a_.v.type)) values_.scales = key_scales_;
  }
  for (int64_t e = 0; e < entries_; ++e) {
    if (list_[e] >= 0) places_ += std::clamp(length_ - list_[e] * size_, int64_t{0}, size_);
  }
  advance();
}

int64_t ListedKeys::read(int32_t* tokens, int64_t n) {
  int64_t count = 0;
  for (; entry_ < entries_; ++entry_, inside_ = 0) {
    if (list_[entry_] < 0) continue;
    const int64_t first = list_[entry_] * size_;
    for (const int64_t keys = std::min(size_, length_ - first); inside_ < keys; ++inside_) {
      if (count == n) return count;
      tokens[count++] = static_cast<int32_t>(first + inside_);
    }
  }
  return count;
}

void ListedKeys::advance() {
  next_base_ += kKeyBlock;
  ahead_ = read(next_, kKeyBlock);
}

bool ListedKeys::in_panels() const {
  if (size_ % kPanelWidth != 0) return false;
  for (int64_t c = 0; c < columns_; ++c) {
    if (tokens_[c] % kPanelWidth != c % kPanelWidth) return false;
    if (c % kPanelWidth != 0 && tokens_[c] != tokens_[c - 1] + 1) return false;
  }
  return true;
}

void ListedKeys::gather(int64_t base, int64_t rows, HeadOperands* k, HeadOperands* v, SeenColumns* columns) {
  while (next_base_ < base) advance();
  columns_ = ahead_;
  std::copy_n(next_, columns_, tokens_);
  advance();
  block_ = {tokens_, columns_, base};
  in_place_ = in_panels();
  if (in_place_) {
    std::construct_at(k, uk_, ops_, a_.k, sequence_, head_, first_key_, w_.key_rows, &block_);
    std::construct_at(v, uk_, ops_, a_.v, sequence_, head_, first_key_, w_.key_rows, &block_);
  } else {
    copy_rows({w_.see[0].lo, w_.see[rows - 1].hi});  // neither end of an interval decreases from row to row
    std::construct_at(k, uk_, ops_, keys_, 0, 0, -base, w_.key_rows);
    std::construct_at(v, uk_, ops_, values_, 0, 0, -base, w_.key_rows);
  }
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
    for (int32_t c = lo; c < hi; ++c) holes_ = holes_ || !in_interval(r, c);
    columns[r] = {lo, hi, lo, hi, hi - lo};
  }
}

void ListedKeys::copy_rows(Interval seen) {
  const KvStore k(a_.k, sequence_, head_, first_key_);
  const KvStore v(a_.v, sequence_, head_, first_key_);
  const int64_t key = keys_.token_stride;
  const int64_t value = aliases_ ? 0 : values_.token_stride;
  char* const keys = static_cast<char*>(const_cast<void*>(keys_.data));
  char* const values = static_cast<char*>(const_cast<void*>(values_.data));
  const auto is_seen = [&](int32_t token) { return token >= seen.lo && token < seen.hi; };
  for (int64_t c = 0; c < columns_; ++c) {
    const int64_t to_come = c + kRowsAhead - columns_;  // in the next block
    if (const int32_t token = to_come < 0 ? tokens_[c + kRowsAhead] : next_[to_come];
        to_come < ahead_ && is_seen(token)) {
      if (!k.panels()) fetch_row(k.row(token), key);
      if (!aliases_) fetch_row(v.row(token), value);
    }
    if (is_seen(tokens_[c])) {
      k.copy_row(uk_, tokens_[c], keys + c * key, key_scales_ + c);
      if (!aliases_) v.copy_row(uk_, tokens_[c], values + c * value, value_scales_ + c);
    } else {
      std::memset(keys + c * key, 0, static_cast<size_t>(key));
      if (!aliases_) std::memset(values + c * value, 0, static_cast<size_t>(value));
      key_scales_[c] = value_scales_[c] = 0.0f;
    }
  }
}

bool ListedKeys::whole_runs() const {
  const int64_t step = ops_.value_step;
  return !in_place_ || (step <= kPanelWidth && (a_.v.page_size > 0 ? a_.v.page_size : a_.v.ring) % kPanelWidth == 0);
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
