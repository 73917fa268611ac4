// Where the bytes of a token are: one tensor, a ring, or pages behind a table.
#ifndef SIMDATTN_LIB_DRIVERS_CACHE_KV_STORE_H_
#define SIMDATTN_LIB_DRIVERS_CACHE_KV_STORE_H_

#include <algorithm>
#include <cstring>
#include <limits>

#include "lib/rules/kv.h"

namespace simdattn {

/// One head of one sequence of a KV cache. `first_token` is where the sequence begins in a varlen tensor.
class KvStore {
 public:
  KvStore(const ConstKv& kv, int64_t sequence, int64_t head, int64_t first_token = 0)
      : kv_(kv), first_token_(first_token), sequence_(sequence) {
    if (kv.data == nullptr || kv.tokens == 0) return;  // nobody asks, and strides may lead beyond addresses
    head_ = static_cast<const char*>(kv.data) + (head == 0 ? 0 : head * kv.head_stride);
    if (has_scales(kv.type)) scale_head_ = head == 0 ? 0 : head * kv.scale_head_stride;
    if (kv.page_size > 0 && kv.block_table != nullptr) table_ = kv.block_table + sequence * table_stride(kv);
  }

  /// The address of a token's row or, with panels, of the panel that begins at it. `run`: how many tokens from here on
  /// follow at token_stride() (panels: a multiple of the panel width).
  const char* at(int64_t token, int64_t* run) const {
    const Place p = place(token);
    *run = p.end - p.inside;
    const int64_t inside = panels() ? p.inside / kPanelWidth : p.inside;
    // A stride means nothing where there is one of a kind.
    return head_ + (p.unit == 0 ? 0 : p.unit * kv_.batch_stride) + (inside == 0 ? 0 : inside * kv_.token_stride);
  }

  /// The scales of n tokens from `token` on, which lie in one run (at()); null for types without. `copy`: room for n. Tokens of
  /// a last panel that are not there have scale 0.
  const float* scales(int64_t token, int64_t n, float* copy) const {
    if (!has_scales(kv_.type)) return nullptr;
    if (kv_.scales == nullptr) {
      std::fill_n(copy, n, 1.0f);
      return copy;
    }
    const Place p = place(token);
    const int64_t there = std::min(n, (kv_.page_size > 0 ? p.end : std::min(p.end, kv_.tokens)) - p.inside);
    const char* from = static_cast<const char*>(static_cast<const void*>(kv_.scales)) + scale_head_;
    if (p.unit != 0) from += p.unit * kv_.scale_batch_stride;
    if (p.inside != 0) from += p.inside * kv_.scale_token_stride;
    if (kv_.scale_token_stride == sizeof(float) && there == n) return reinterpret_cast<const float*>(from);
    for (int64_t i = 0; i < there; ++i)
      std::memcpy(copy + i, from + (i == 0 ? 0 : i * kv_.scale_token_stride), sizeof(float));
    std::fill(copy + there, copy + n, 0.0f);
    return copy;
  }

  KvType type() const { return kv_.type; }
  int64_t token_stride() const { return kv_.token_stride; }
  bool panels() const { return kv_.layout == KvLayout::kPanels; }

 private:
  /// A token of a sequence or of a page, which end at `end`.
  struct Place {
    int64_t unit;
    int64_t inside;
    int64_t end;
  };
  /// Sizes fit 32 bits, whose division takes half the time.
  Place place(int64_t token) const {
    if (kv_.page_size > 0) {
      const int64_t index = static_cast<uint32_t>(token) / static_cast<uint32_t>(kv_.page_size);
      // In the place of a page that is not there, whose keys masks hide, any other one may be read.
      return {std::max(table_[index], 0), token - index * kv_.page_size, kv_.page_size};
    }
    if (kv_.ring > 0) return {sequence_, static_cast<uint32_t>(token) % static_cast<uint32_t>(kv_.ring), kv_.ring};
    return {sequence_, token + first_token_, std::numeric_limits<int64_t>::max()};
  }

  const ConstKv& kv_;
  int64_t first_token_;
  int64_t sequence_;
  const char* head_ = nullptr;
  const int32_t* table_ = nullptr;
  int64_t scale_head_ = 0;
};

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_CACHE_KV_STORE_H_
