// Where the bytes of tokens are: one tensor, a ring, or pages behind a table.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/rules/rules.h"

namespace simdattn {

template <bool kConst>
using StoreByte = std::conditional_t<kConst, const char, char>;

/// The stride of what there is one of may be any number: it must not be multiplied.
inline int64_t offset_of(int64_t index, int64_t stride) { return index == 0 ? 0 : index * stride; }
/// The row of a token, or the panel, for one head.
template <bool kConst>
StoreByte<kConst>* row_at(const BasicKv<kConst>& kv, const TokenPlace& p, int64_t head) {
  return static_cast<StoreByte<kConst>*>(kv.data) + offset_of(p.unit, kv.batch_stride) +
         offset_of(head, kv.head_stride) +
         offset_of(kv.layout == KvLayout::kPanels ? p.inside / kPanelWidth : p.inside, kv.token_stride);
}
/// Its scale, of types that have any and if they are given.
template <bool kConst>
StoreByte<kConst>* scale_at(const BasicKv<kConst>& kv, const TokenPlace& p, int64_t head, int64_t token = 0) {
  return reinterpret_cast<StoreByte<kConst>*>(kv.scales) + offset_of(p.unit, kv.scale_batch_stride) +
         offset_of(head, kv.scale_head_stride) + offset_of(p.inside + token, kv.scale_token_stride);
}
/// The scales of tokens side by side in one unit.
template <bool kConst>
void load_scales(const BasicKv<kConst>& kv, const TokenPlace& p, int64_t head, int64_t tokens, float* scales) {
  for (int64_t t = 0; t < tokens; ++t) {
    scales[t] = 1.0f;
    if (kv.scales != nullptr) std::memcpy(scales + t, scale_at(kv, p, head, t), sizeof(float));
  }
}

/// True if each row of values may be inside of the row of its key (latent attention), depending on addresses.
inline bool may_lie_inside_keys(const ConstKv& v, const ConstKv& k) {
  return k.layout == KvLayout::kRows && places_of(v) == places_of(k) &&
         row_bytes(v.type, v.dim) <= row_bytes(k.type, k.dim);
}
/// How far inside of the row of its key each row of values is, of values that may be there; -1: elsewhere.
inline int64_t values_inside_keys(const ConstKv& v, const ConstKv& k) {
  if (v.scales != k.scales || v.block_table != k.block_table) return -1;
  const int64_t inside = static_cast<const char*>(v.data) - static_cast<const char*>(k.data);
  return inside >= 0 && inside + row_bytes(v.type, v.dim) <= row_bytes(k.type, k.dim) ? inside : -1;
}

/// Tokens of a store that follow one another in memory.
struct TokenRun {
  const char* data = nullptr;     // the row of the first token or, of a store of panels, the panel that begins with it
  int64_t stride = 0;             // bytes to the next row, or panel
  int64_t tokens = 0;             // how many there are: of panels whole ones
  const float* scales = nullptr;  // [tokens], of types whose scales stand apart; else null
  bool goes_on = false;           // what comes next lies behind them, so that a kernel may fetch ahead
};

/// One head of one sequence of a KV cache. `first_token` is where the sequence begins in a varlen tensor.
class KvStore {
 public:
  KvStore(const ConstKv& kv, int64_t sequence, int64_t head, int64_t first_token = 0)
      : kv_(kv), first_token_(first_token), sequence_(sequence), head_(head) {
    if (kv.page_size > 0 && kv.capacity > 0) table_ = kv.block_table + sequence * table_stride(kv);
  }

  /// The tokens from `token` on that follow one another, at most `most`. `scratch`: for so many scales that lie apart.
  TokenRun run(int64_t token, int64_t most, float* scratch) const {
    const TokenPlace p = place(token);
    const int64_t end = kv_.page_size > 0 ? kv_.page_size
                        : kv_.ring > 0    ? kv_.ring
                                          : std::numeric_limits<int64_t>::max();
    const int64_t tokens = std::min(end - p.inside, most);
    return {row_at(kv_, p, head_), kv_.token_stride, tokens, scales(p, tokens, scratch), true};
  }
  /// The scales of one token of a type whose scales stand apart.
  float scale(int64_t token) const {
    float copy;
    return *scales(place(token), 1, &copy);
  }
  /// True if every run but the first one of a key block begins at a multiple of `step`, counted from its first token.
  bool whole_steps(int64_t step) const { return (kv_.page_size > 0 ? kv_.page_size : kv_.ring) % step == 0; }

  /// One row of a panel, as it is stored.
  void copy_from_panel(const UKernels& uk, int64_t token, char* to) const {
    const TokenPlace p = place(token);
    uk.kv[index_of(kv_.type)].load_panels({.in = row_at(kv_, p, head_),
                                           .column = p.inside % kPanelWidth,
                                           .tokens = 1,
                                           .dim = kv_.dim,
                                           .rows = to,
                                           .as_stored = true});
  }
  /// Where the rows of n tokens begin or, of keys in panels, a 32nd of each token's panel.
  void find_rows(const int32_t* tokens, int64_t n, const char** rows) const {
    const bool one_unit = kv_.page_size == 0 && kv_.ring == 0 && !panels();
    const char* const first = one_unit ? row_at(kv_, {sequence_, first_token_}, head_) : nullptr;
    for (int64_t j = 0; one_unit && j < n; ++j) rows[j] = first + tokens[j] * kv_.token_stride;
    for (int64_t j = 0; !one_unit && j < n; ++j) {
      const TokenPlace p = place(tokens[j]);
      const int64_t part = panels() ? p.inside % kPanelWidth * panel_bytes(kv_.type, kv_.dim) / kPanelWidth : 0;
      rows[j] = row_at(kv_, p, head_) + part;
    }
  }

  KvType type() const { return kv_.type; }
  int64_t dim() const { return kv_.dim; }
  int64_t token_stride() const { return kv_.token_stride; }
  bool panels() const { return kv_.layout == KvLayout::kPanels; }

 private:
  /// The scales of n tokens of one run; null for types without. Tokens of a last panel that are not there have scale 0.
  const float* scales(const TokenPlace& p, int64_t n, float* scratch) const {
    if (!has_scales(kv_.type)) return nullptr;
    const bool may_end = kv_.scales != nullptr && kv_.page_size == 0;
    const int64_t there = may_end ? std::min(n, kv_.capacity - p.inside) : n;
    if (kv_.scales != nullptr && kv_.scale_token_stride == sizeof(float) && there == n) {
      return reinterpret_cast<const float*>(scale_at(kv_, p, head_));
    }
    load_scales(kv_, p, head_, there, scratch);
    std::fill(scratch + there, scratch + n, 0.0f);
    return scratch;
  }

  /// By the rules tokens and page sizes fit 32 bits, whose division takes half the time.
  TokenPlace place(int64_t token) const {
    if (kv_.page_size > 0) {
      const int64_t index = static_cast<uint32_t>(token) / static_cast<uint32_t>(kv_.page_size);
      // In the place of a page that is not there, whose keys masks hide, any other one may be read.
      return {std::max(table_[index], 0), token - index * kv_.page_size};
    }
    if (kv_.ring > 0) return {sequence_, static_cast<uint32_t>(token) % static_cast<uint32_t>(kv_.ring)};
    return {sequence_, token + first_token_};
  }

  const ConstKv& kv_;
  int64_t first_token_;
  int64_t sequence_;
  int64_t head_;
  const int32_t* table_ = nullptr;
};

}  // namespace simdattn
