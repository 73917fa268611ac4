// Where the bytes of tokens are: one tensor, a ring, or pages behind a table. Attention reads them in runs, and tokens come and go many at a
// time.
#ifndef SIMDATTN_LIB_DRIVERS_CACHE_KV_STORE_H_
#define SIMDATTN_LIB_DRIVERS_CACHE_KV_STORE_H_

#include <algorithm>
#include <cstring>
#include <limits>

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/rules/rules.h"

namespace simdattn {

template <bool kConst>
using StoreByte = std::conditional_t<kConst, const char, char>;

template <bool kConst>
bool in_panels(const BasicKv<kConst>& kv) {
  return kv.layout == KvLayout::kPanels;
}
/// A stride means nothing where there is one of a kind.
inline int64_t offset_of(int64_t index, int64_t stride) { return index == 0 ? 0 : index * stride; }
/// The row of a token, or the panel, for one head.
template <bool kConst>
StoreByte<kConst>* row_at(const BasicKv<kConst>& kv, const TokenPlace& p, int64_t head) {
  return static_cast<StoreByte<kConst>*>(kv.data) + offset_of(p.unit, kv.batch_stride) +
         offset_of(head, kv.head_stride) +
         offset_of(in_panels(kv) ? p.inside / kPanelWidth : p.inside, kv.token_stride);
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

/// One head of one sequence of a KV cache. `first_token` is where the sequence begins in a varlen tensor.
class KvStore {
 public:
  KvStore(const ConstKv& kv, int64_t sequence, int64_t head, int64_t first_token = 0)
      : kv_(kv), first_token_(first_token), sequence_(sequence), head_(head) {
    if (kv.page_size > 0 && kv.capacity > 0) table_ = kv.block_table + sequence * table_stride(kv);
  }

  /// The address of a token's row or, with panels, of the panel that begins at it. `run`: how many tokens from here on
  /// follow at token_stride() (panels: a multiple of the panel width).
  const char* at(int64_t token, int64_t* run) const {
    const TokenPlace p = place(token);
    *run = (kv_.page_size > 0 ? kv_.page_size
            : kv_.ring > 0    ? kv_.ring
                              : std::numeric_limits<int64_t>::max()) -
           p.inside;
    return row_at(kv_, p, head_);
  }

  /// The scales of n tokens from `token` on, which lie in one run (at()); null for types without. `copy`: room for n. Tokens of
  /// a last panel that are not there have scale 0.
  const float* scales(int64_t token, int64_t n, float* copy) const {
    if (!has_scales(kv_.type)) return nullptr;
    const TokenPlace p = place(token);
    const bool may_end = kv_.scales != nullptr && kv_.page_size == 0;
    const int64_t there = may_end ? std::min(n, kv_.capacity - p.inside) : n;
    if (kv_.scales != nullptr && kv_.scale_token_stride == sizeof(float) && there == n) {
      return reinterpret_cast<const float*>(scale_at(kv_, p, head_));
    }
    load_scales(kv_, p, head_, there, copy);
    std::fill(copy + there, copy + n, 0.0f);
    return copy;
  }

  /// One row of a panel, as it is stored.
  void copy_from_panel(const UKernels& uk, int64_t token, char* to) const {
    const TokenPlace p = place(token);
    uk.kv[slot(kv_.type)].load_panels({.in = row_at(kv_, p, head_),
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

  const ConstKv& kv() const { return kv_; }
  KvType type() const { return kv_.type; }
  int64_t token_stride() const { return kv_.token_stride; }
  bool panels() const { return in_panels(kv_); }

 private:
  /// Sizes fit 32 bits, whose division takes half the time.
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

/// Elements of a buffer on the stack. 32 tokens of 256 dimensions; a token of more than all of it goes in pieces.
/// A function with a buffer is not inlined: several buffers in one frame exceed the stack that simdattn.h promises.
inline constexpr int64_t kTokenBuffer = 8192;
/// Dimensions of such a piece.
inline constexpr int64_t kTokenPiece = 2048;

/// Tokens that are treated at a time: a power of two, so that whole panels are met.
inline int64_t tokens_at_a_time(int64_t dim) {
  int64_t n = kPanelWidth;
  while (n > 1 && n * dim > kTokenBuffer) n /= 2;
  return n;
}

/// The tokens of a store. They come and go as elements of its own type or, with narrow types, as f32. Tokens side by side in
/// one unit are one call of a slot a head.
template <bool kConst>
class BasicTokenStore {
 public:
  using Byte = StoreByte<kConst>;
  BasicTokenStore(const UKernels& uk, const BasicKv<kConst>& kv) : kernels_(uk.kv[slot(kv.type)]), kv_(kv) {}

  bool narrow() const { return is_narrow(kv_.type); }
  /// Of a token on its way.
  DType dtype() const { return narrow() ? DType::kF32 : static_cast<DType>(kv_.type); }
  bool panels() const { return in_panels(kv_); }

  /// The column of a panel that a token is in; 0 with rows.
  int64_t column(const TokenPlace& p) const { return panels() ? p.inside % kPanelWidth : 0; }
  /// Tokens from p on in its page, ring or tensor.
  int64_t room(const TokenPlace& p) const {
    return (kv_.page_size > 0 ? kv_.page_size : kv_.ring > 0 ? kv_.ring : kv_.capacity) - p.inside;
  }

  /// `tokens` rows to p and the places after it in the same unit: f32, or as they are stored. Rows that are stored as they are
  /// leave scales alone.
  void store(const void* rows, int64_t ld, int64_t tokens, const TokenPlace& p, int64_t head, bool as_stored) const {
    float scales[kPanelWidth];
    if (!as_stored && has_scales(kv_.type)) load_scales(kv_, p, head, tokens, scales);
    (panels() ? kernels_.store_panels : kernels_.store_rows)({.rows = rows,
                                                              .ld = ld,
                                                              .tokens = tokens,
                                                              .dim = kv_.dim,
                                                              .out = row_at(kv_, p, head),
                                                              .stride = kv_.token_stride,
                                                              .column = column(p),
                                                              .as_stored = as_stored,
                                                              .scales = scales});
    if (!as_stored && writes_scales(kv_.type)) store_scales(p, head, tokens, scales);
  }
  void load(void* rows, int64_t ld, int64_t tokens, const TokenPlace& p, int64_t head, bool as_stored) const {
    float scales[kPanelWidth];
    if (!as_stored && has_scales(kv_.type)) load_scales(kv_, p, head, tokens, scales);
    (panels() ? kernels_.load_panels : kernels_.load_rows)({.in = row_at(kv_, p, head),
                                                            .stride = kv_.token_stride,
                                                            .column = column(p),
                                                            .tokens = tokens,
                                                            .dim = kv_.dim,
                                                            .rows = rows,
                                                            .ld = ld,
                                                            .as_stored = as_stored,
                                                            .scales = scales});
  }
  void store_scales(const TokenPlace& p, int64_t head, int64_t tokens, const float* scales) const {
    for (int64_t t = 0; t < tokens; ++t) std::memcpy(scale_at(kv_, p, head, t), scales + t, sizeof(float));
  }

  /// Where dimension d of a token is, of types that are not narrow. Rows that are longer than a buffer take this, and what
  /// occurs seldom: once in the code rather than fast.
  Byte* element(const TokenPlace& p, int64_t head, int64_t d) const {
    const int64_t pair = in_pairs() ? 2 : 1;
    const int64_t index = panels() ? (d / pair * kPanelWidth + column(p)) * pair + d % pair : d;
    return row_at(kv_, p, head) + index * size_of(dtype());
  }
  /// n dimensions from d on, as they are stored.
  void load_piece(const TokenPlace& p, int64_t head, int64_t d, int64_t n, char* to) const {
    const int64_t size = size_of(dtype());
    for (int64_t k = 0; k < n; ++k) std::memcpy(to + k * size, element(p, head, d + k), static_cast<size_t>(size));
  }
  void store_piece(const char* from, const TokenPlace& p, int64_t head, int64_t d, int64_t n) const {
    const int64_t size = size_of(dtype());
    for (int64_t k = 0; k < n; ++k) std::memcpy(element(p, head, d + k), from + k * size, static_cast<size_t>(size));
    // What an odd last dimension is paired with.
    if (in_pairs() && d + n == kv_.dim && kv_.dim % 2 != 0) std::memset(element(p, head, kv_.dim), 0, sizeof(bf16));
  }

 private:
  /// Panels of bf16 hold dimensions in pairs.
  bool in_pairs() const { return panels() && kv_.type == KvType::kBF16; }

  const KvKernels& kernels_;
  const BasicKv<kConst>& kv_;
};
using TokenStore = BasicTokenStore<false>;

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_CACHE_KV_STORE_H_
