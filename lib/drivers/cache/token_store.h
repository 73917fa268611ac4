// The tokens of a store on their way into it and out of it, many at a time.
#pragma once

#include "lib/drivers/shared/kv_store.h"

namespace simdattn {

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

/// The tokens of a store. They come and go as elements of its own type or, with narrow types, as f32. Tokens side by
/// side in one unit are one call of a slot a head.
template <bool kConst>
struct BasicTokenStore {
  const UKernels& uk;
  const BasicKv<kConst>& kv;
  const KvKernels& kernels = uk.kv[index_of(kv.type)];

  bool narrow() const { return is_narrow(kv.type); }
  /// The type of the elements of a token on its way.
  DType dtype() const { return narrow() ? DType::kF32 : static_cast<DType>(kv.type); }
  bool panels() const { return kv.layout == KvLayout::kPanels; }

  /// The column of a panel that a token is in; 0 with rows.
  int64_t column(const TokenPlace& p) const { return panels() ? p.inside % kPanelWidth : 0; }
  /// Tokens from p on in its page, ring or tensor.
  int64_t tokens_left(const TokenPlace& p) const {
    return (kv.page_size > 0 ? kv.page_size : kv.ring > 0 ? kv.ring : kv.capacity) - p.inside;
  }

  /// `tokens` rows to p and the places after it in the same unit: f32, or as they are stored, which leaves scales
  /// alone.
  void store(const void* rows, int64_t ld, int64_t tokens, const TokenPlace& p, int64_t head, bool as_stored) const {
    float scales[kPanelWidth];
    if (!as_stored && has_scales(kv.type)) load_scales(kv, p, head, tokens, scales);
    (panels() ? kernels.store_panels : kernels.store_rows)({.rows = rows,
                                                            .ld = ld,
                                                            .tokens = tokens,
                                                            .dim = kv.dim,
                                                            .out = row_at(kv, p, head),
                                                            .stride = kv.token_stride,
                                                            .column = column(p),
                                                            .as_stored = as_stored,
                                                            .scales = scales});
    if (!as_stored && writes_scales(kv.type)) store_scales(p, head, tokens, scales);
  }
  void load(void* rows, int64_t ld, int64_t tokens, const TokenPlace& p, int64_t head, bool as_stored) const {
    float scales[kPanelWidth];
    if (!as_stored && has_scales(kv.type)) load_scales(kv, p, head, tokens, scales);
    (panels() ? kernels.load_panels : kernels.load_rows)({.in = row_at(kv, p, head),
                                                          .stride = kv.token_stride,
                                                          .column = column(p),
                                                          .tokens = tokens,
                                                          .dim = kv.dim,
                                                          .rows = rows,
                                                          .ld = ld,
                                                          .as_stored = as_stored,
                                                          .scales = scales});
  }
  void store_scales(const TokenPlace& p, int64_t head, int64_t tokens, const float* scales) const {
    for (int64_t t = 0; t < tokens; ++t) std::memcpy(scale_at(kv, p, head, t), scales + t, sizeof(float));
  }

  /// Panels of bf16 hold dimensions in pairs.
  bool in_pairs() const { return panels() && kv.type == KvType::kBF16; }
  /// Where dimension d of a token is, of types that are not narrow. Rows that are longer than a buffer take this, and
  /// what occurs seldom: once in the code rather than fast.
  StoreByte<kConst>* element(const TokenPlace& p, int64_t head, int64_t d) const {
    const int64_t pair = in_pairs() ? 2 : 1;
    const int64_t index = panels() ? (d / pair * kPanelWidth + column(p)) * pair + d % pair : d;
    return row_at(kv, p, head) + index * size_of(dtype());
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
    if (in_pairs() && d + n == kv.dim && kv.dim % 2 != 0) std::memset(element(p, head, kv.dim), 0, sizeof(bf16));
  }
};
using TokenStore = BasicTokenStore<false>;

}  // namespace simdattn
