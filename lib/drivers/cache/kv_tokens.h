// Tokens from and to where they are stored, many at a time: what kv_append() and kv_shift() share.
#ifndef SIMDATTN_LIB_DRIVERS_CACHE_KV_TOKENS_H_
#define SIMDATTN_LIB_DRIVERS_CACHE_KV_TOKENS_H_

#include <algorithm>
#include <cstring>

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/drivers/rows/convert.h"
#include "lib/rules/rules.h"

namespace simdattn {

/// Elements of a buffer on the stack. 32 tokens of 256 dimensions; a token of more than all of it goes in pieces.
/// A function with a buffer is not inlined: several buffers in one frame exceed the stack that simdattn.h promises.
inline constexpr int64_t kTokenBuffer = 8192;

/// The tokens of a store. They come and go as elements of its own type or, with narrow types, as f32. Tokens side by side in
/// one unit are one call of a slot a head.
class TokenStore {
 public:
  TokenStore(const UKernels& uk, const Kv& kv)
      : kernels_(uk.kv[slot(kv.type)]), kv_(kv), panels_(kv.layout == KvLayout::kPanels) {}

  bool narrow() const { return is_narrow(kv_.type); }
  /// Of a token on its way.
  DType dtype() const { return narrow() ? DType::kF32 : static_cast<DType>(kv_.type); }
  bool panels() const { return panels_; }
  const KvKernels& kernels() const { return kernels_; }
  int64_t row_size() const { return narrow() ? 4 * kv_.dim : row_bytes(kv_.type, kv_.dim); }

  /// The column of a panel that a token is in; 0 with rows.
  int64_t column(const TokenPlace& p) const { return panels_ ? p.inside % kPanelWidth : 0; }
  /// The row of a token, or the panel, for one head.
  char* at(const TokenPlace& p, int64_t head) const {
    const int64_t index = panels_ ? p.inside / kPanelWidth : p.inside;
    // A stride means nothing where there is one of a kind.
    return static_cast<char*>(kv_.data) + (p.unit == 0 ? 0 : p.unit * kv_.batch_stride) +
           (head == 0 ? 0 : head * kv_.head_stride) + (index == 0 ? 0 : index * kv_.token_stride);
  }

  /// `tokens` rows to p and the places after it in the same unit: f32, or as they are stored. Rows that are stored as they are
  /// leave scales alone.
  void store(const void* rows, int64_t ld, int64_t tokens, const TokenPlace& p, int64_t head, bool as_stored) const {
    float scales[kPanelWidth];
    if (!as_stored && has_scales(kv_.type)) load_scales(scales, tokens, p, head);
    (panels_ ? kernels_.store_panels : kernels_.store_rows)({.rows = rows,
                                                             .ld = ld,
                                                             .tokens = tokens,
                                                             .dim = kv_.dim,
                                                             .out = at(p, head),
                                                             .stride = kv_.token_stride,
                                                             .column = column(p),
                                                             .as_stored = as_stored,
                                                             .scales = scales});
    if (!as_stored && writes_scales(kv_.type)) store_scales(scales, tokens, p, head);
  }
  void load(void* rows, int64_t ld, int64_t tokens, const TokenPlace& p, int64_t head, bool as_stored) const {
    float scales[kPanelWidth];
    if (!as_stored && has_scales(kv_.type)) load_scales(scales, tokens, p, head);
    (panels_ ? kernels_.load_panels : kernels_.load_rows)({.in = at(p, head),
                                                           .stride = kv_.token_stride,
                                                           .column = column(p),
                                                           .tokens = tokens,
                                                           .dim = kv_.dim,
                                                           .rows = rows,
                                                           .ld = ld,
                                                           .as_stored = as_stored,
                                                           .scales = scales});
  }

  /// The scales of at most kPanelWidth tokens, of types that have any.
  void load_scales(float* scales, int64_t tokens, const TokenPlace& p, int64_t head) const {
    for (int64_t t = 0; t < tokens; ++t) {
      if (kv_.scales == nullptr) {
        scales[t] = 1.0f;
      } else {
        std::memcpy(scales + t, scale_at(p, head, t), sizeof(float));
      }
    }
  }
  void store_scales(const float* scales, int64_t tokens, const TokenPlace& p, int64_t head) const {
    for (int64_t t = 0; t < tokens; ++t) std::memcpy(scale_at(p, head, t), scales + t, sizeof(float));
  }

  /// Dimensions first .. first + n - 1 of one token; n is at most kPiece. Rows that are longer than a buffer take these: once in the
  /// code rather than fast.
  static constexpr int64_t kPiece = 2048;
  [[gnu::noinline]] void store_piece(const char* row, int64_t first, int64_t n, const TokenPlace& p,
                                     int64_t head) const {
    const int64_t size = size_of(dtype());
    alignas(64) char piece[(kPiece + 2) * sizeof(float)];
    const Even e(first, n, kv_.dim);
    // Panels of bf16 hold dimensions in pairs: the neighbour of an odd end keeps its bytes.
    if (e.first < first || e.n > n) load_even(piece, e, p, head);
    std::memcpy(piece + (first - e.first) * size, row, static_cast<size_t>(n * size));
    (panels_ ? kernels_.store_panels : kernels_.store_rows)({.rows = piece,
                                                             .ld = 0,
                                                             .tokens = 1,
                                                             .dim = e.n,
                                                             .out = at(p, head) + offset(e.first),
                                                             .stride = 0,
                                                             .column = column(p),
                                                             .as_stored = true});
  }
  [[gnu::noinline]] void load_piece(char* row, int64_t first, int64_t n, const TokenPlace& p, int64_t head) const {
    const int64_t size = size_of(dtype());
    alignas(64) char piece[(kPiece + 2) * sizeof(float)];
    const Even e(first, n, kv_.dim);
    load_even(piece, e, p, head);
    std::memcpy(row, piece + (first - e.first) * size, static_cast<size_t>(n * size));
  }

 private:
  /// A range of dimensions widened to whole pairs.
  struct Even {
    int64_t first;
    int64_t n;
    Even(int64_t begin, int64_t count, int64_t dim)
        : first(begin - begin % 2), n(std::min((begin + count + 1) / 2 * 2, dim) - first) {}
  };
  /// Bytes before an even dimension.
  int64_t offset(int64_t d) const { return panels_ ? panel_bytes(kv_.type, d) : row_bytes(kv_.type, d); }
  [[gnu::noinline]] void load_even(char* piece, const Even& e, const TokenPlace& p, int64_t head) const {
    (panels_ ? kernels_.load_panels : kernels_.load_rows)({.in = at(p, head) + offset(e.first),
                                                           .stride = 0,
                                                           .column = column(p),
                                                           .tokens = 1,
                                                           .dim = e.n,
                                                           .rows = piece,
                                                           .ld = 0,
                                                           .as_stored = true});
  }

  char* scale_at(const TokenPlace& p, int64_t head, int64_t token) const {
    const int64_t inside = p.inside + token;
    return static_cast<char*>(kv_.scales) + (p.unit == 0 ? 0 : p.unit * kv_.scale_batch_stride) +
           (head == 0 ? 0 : head * kv_.scale_head_stride) + (inside == 0 ? 0 : inside * kv_.scale_token_stride);
  }

  const KvKernels& kernels_;
  const Kv& kv_;
  bool panels_;
};

/// One row of more dimensions than the buffer holds, through the kernel that rotates; without pairs it is converted.
/// load(column, n, to) brings n columns of type `from`, store(values, column, n) takes them as `to`; none is loaded after a
/// piece that wrote it.
template <class Load, class Store>
[[gnu::noinline]] void rotate_long_row(const UKernels& uk, const RopeHeads& row, DType from, DType to, const Load& load,
                                       const Store& store) {
  alignas(64) char in[TokenStore::kPiece * sizeof(float)];
  alignas(64) char out[TokenStore::kPiece * sizeof(float)];
  RopeHeads piece = row;
  piece.x = in;
  piece.y = out;
  piece.heads = 1;
  piece.first = 0;
  const auto convert = [&](int64_t column, int64_t end) {
    piece.half = 0;
    for (; column < end; column += piece.dim) {
      piece.dim = std::min(TokenStore::kPiece, end - column);
      load(column, piece.dim, in);
      rotate_heads(uk, from, to, piece);
      store(out, column, piece.dim);
    }
  };
  convert(0, row.first);
  for (int64_t i = 0; i < row.half; i += piece.half) {
    const int64_t n = std::min(TokenStore::kPiece / 2, row.half - i);
    // Halves of a pair that are far apart are brought together.
    const int64_t low = row.first + (row.interleaved ? 2 * i : i);
    const int64_t high = low + (row.interleaved ? n : row.half);
    load(low, n, in);
    load(high, n, in + n * size_of(from));
    piece.half = n;
    piece.dim = 2 * n;
    piece.cos = row.cos + i;
    piece.sin = row.sin + i;
    rotate_heads(uk, from, to, piece);
    store(out, low, n);
    store(out + n * size_of(to), high, n);
  }
  convert(row.first + 2 * row.half, row.dim);
}

/// Tokens that are treated at a time: a power of two, so that whole panels are met.
inline int64_t tokens_at_a_time(int64_t dim) {
  int64_t n = kPanelWidth;
  while (n > 1 && n * dim > kTokenBuffer) n /= 2;
  return n;
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_CACHE_KV_TOKENS_H_
