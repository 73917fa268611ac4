// Where the bytes of a token are: one tensor, a ring, or pages behind a table.
#ifndef SIMDATTN_LIB_DRIVERS_CACHE_KV_STORE_H_
#define SIMDATTN_LIB_DRIVERS_CACHE_KV_STORE_H_

#include <algorithm>
#include <cstring>
#include <limits>

#include "lib/rules/kv.h"

namespace simdattn {

/// One head of one sequence of a KV cache. `first_token` is where the sequence begins in a varlen tensor.
template <bool kConst>
class KvStore {
 public:
  using Byte = std::conditional_t<kConst, const char, char>;

  KvStore(const BasicKv<kConst>& kv, int64_t sequence, int64_t head, int64_t first_token = 0)
      : kv_(kv), first_token_(first_token) {
    if (kv.data == nullptr || kv.tokens == 0) return;  // nobody asks, and strides may lead beyond addresses
    head_ = static_cast<Byte*>(kv.data) + (head == 0 ? 0 : head * kv.head_stride);
    if (has_scales(kv.type)) sequence_ = sequence, scale_head_ = head == 0 ? 0 : head * kv.scale_head_stride;
    if (kv.page_size == 0) {
      if (sequence != 0) head_ += sequence * kv.batch_stride;
    } else if (kv.block_table != nullptr) {
      table_ = kv.block_table + sequence * table_stride(kv);
    }
  }

  /// The address of a token's row or, with panels, of the panel that begins at it. `run`: how many tokens from here on
  /// follow at kv.token_stride (panels: a multiple of the panel width).
  Byte* at(int64_t token, int64_t* run) const {
    int64_t inside = token + first_token_;
    *run = std::numeric_limits<int64_t>::max();
    Byte* base = head_;
    if (kv_.page_size > 0) {
      // Sizes fit 32 bits, whose division takes half the time.
      const uint32_t page_size = static_cast<uint32_t>(kv_.page_size);
      const int64_t index = static_cast<uint32_t>(token) / page_size;
      inside = token - index * kv_.page_size;
      // In the place of a page that is not there, whose keys masks hide, any other one may be read.
      const int64_t page = std::max(table_[index], 0);
      if (page != 0) base += page * kv_.batch_stride;
      *run = kv_.page_size - inside;
    } else if (kv_.ring > 0) {
      inside = static_cast<uint32_t>(token) % static_cast<uint32_t>(kv_.ring);
      *run = kv_.ring - inside;
    }
    if (kv_.layout == KvLayout::kPanels) inside /= kPanelWidth;
    return inside == 0 ? base : base + inside * kv_.token_stride;
  }

  /// The scales of n tokens from `token` on, which lie in one run (at()); null for types without. `copy`: room for n. Tokens of
  /// a last panel that are not there have scale 0.
  const float* scales(int64_t token, int64_t n, float* copy) const {
    if (!has_scales(kv_.type)) return nullptr;
    if (kv_.scales == nullptr) {
      std::fill_n(copy, n, 1.0f);
      return copy;
    }
    int64_t inside = token + first_token_;
    int64_t unit = sequence_;
    int64_t end = kv_.tokens;
    if (kv_.page_size > 0) {
      unit = std::max(table_[token / kv_.page_size], 0);
      inside = token % kv_.page_size;
      end = kv_.page_size;
    } else if (kv_.ring > 0) {
      inside = token % kv_.ring;
      end = std::min(kv_.ring, kv_.tokens);
    }
    const int64_t there = std::min(n, end - inside);
    const char* from = static_cast<const char*>(static_cast<const void*>(kv_.scales)) + scale_head_;
    if (unit != 0) from += unit * kv_.scale_batch_stride;
    if (inside != 0) from += inside * kv_.scale_token_stride;
    if (kv_.scale_token_stride == sizeof(float) && there == n) return reinterpret_cast<const float*>(from);
    for (int64_t i = 0; i < there; ++i)
      std::memcpy(copy + i, from + (i == 0 ? 0 : i * kv_.scale_token_stride), sizeof(float));
    std::fill(copy + there, copy + n, 0.0f);
    return copy;
  }

  KvType type() const { return kv_.type; }
  int64_t token_stride() const { return kv_.token_stride; }
  bool panels() const { return kv_.layout == KvLayout::kPanels; }
  int64_t dim() const { return kv_.dim; }

 private:
  const BasicKv<kConst>& kv_;
  int64_t first_token_;
  Byte* head_ = nullptr;
  const int32_t* table_ = nullptr;
  int64_t sequence_ = 0;  // where there are scales
  int64_t scale_head_ = 0;
};

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_CACHE_KV_STORE_H_
