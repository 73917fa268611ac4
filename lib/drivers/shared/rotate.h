// Rows rotated, and from one element type to another. Kernels keep the type: a row that changes it passes through f32.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"

namespace simdattn {

/// `rows` rows of n f32 numbers, `ld` apart, rounded to a type, `stride` elements apart; NaN canonical.
inline void round_rows(const UKernels& uk, const float* in, int64_t ld, int64_t rows, int64_t n, DType type, void* out,
                       int64_t stride) {
  if (ld == n && stride == n) n *= std::exchange(rows, 1);  // side by side they are one row
  // The stride of a single row means nothing, and may be any number.
  uk.kv[index_of(kv_type_of(type))].store_rows({.rows = in,
                                                .ld = ld * int64_t{sizeof(float)},
                                                .tokens = rows,
                                                .dim = n,
                                                .out = out,
                                                .stride = rows > 1 ? stride * size_of(type) : 0});
}

/// The inverse: `rows` rows of n numbers of a type, `stride` elements apart, as f32.
inline void widen_rows(const UKernels& uk, DType type, const void* in, int64_t stride, int64_t rows, int64_t n,
                       float* out, int64_t ld) {
  if (ld == n && stride == n) n *= std::exchange(rows, 1);
  uk.kv[index_of(type)].load_rows({.in = in,
                                   .stride = rows > 1 ? stride * size_of(type) : 0,
                                   .tokens = rows,
                                   .dim = n,
                                   .rows = out,
                                   .ld = ld * int64_t{sizeof(float)}});
}

/// n numbers in whole blocks times an orthonormal Hadamard matrix, rounded to a type; `numbers`, overwritten, may be
/// out.
inline void hadamard_blocks(const UKernels& uk, float* numbers, int64_t n, int64_t block, DType type, void* out) {
  uk.hadamard_sums(numbers, n, block);
  // 1 / sqrt(block), rounded once; a power of two where block is one of 4.
  uk.finish[index_of(type)](numbers, static_cast<float>(1.0 / std::sqrt(static_cast<double>(block))), out, n);
}

/// The RMS norm of a row of a type, as f32: the sum of squares is a dot product of two rows.
inline void norm_row(const UKernels& uk, const RopeOptions& options, DType type, const void* row, float* x, int64_t n) {
  uk.widen[index_of(type)](row, x, n);
  float sum = 0;
  uk.score_rows[index_of(DType::kF32)](
      {.q = x, .ldq = 0, .n_q = 1, .k = x, .ldk = 0, .n_k = 1, .dim = n, .scale = 1.0f, .s = &sum, .lds = 0});
  const float r = 1.0f / std::sqrt(sum / static_cast<float>(n) + options.norm_epsilon);
  uk.norm_row(x, n, r, options.norm_weight, options.norm == RowNorm::kRmsPlusOne);
}

/// The rotation of rows of `dim` dimensions by `pairs` angles, none: a copy. The caller sets rows and angles.
inline RopeHeads rotation_of(const RopeOptions& options, int64_t dim, int64_t pairs) {
  return {.dim = dim,
          .first = pairs > 0 ? options.first_dim : 0,
          .half = pairs,
          .interleaved = options.pairing == RopePairing::kInterleaved,
          .inverse = options.inverse};
}

/// RopeHeads in pieces of `piece` dimensions: load(dimension, n, to) brings n dimensions of a.heads rows of `type` into
/// `buffer`, rows `piece` apart, store(from, dimension, n) takes them. None is loaded after a piece that wrote it.
template <class Load, class Store>
void rotate_pieces(const UKernels& uk, const RopeHeads& a, DType type, char* buffer, int64_t piece, const Load& load,
                   const Store& store) {
  const auto copy = [&](int64_t at, int64_t end) {
    for (; at < end; at += piece) {
      const int64_t n = std::min(piece, end - at);
      load(at, n, buffer);
      store(buffer, at, n);
    }
  };
  copy(0, a.first);
  RopeHeads call = a;
  call.x = call.y = buffer;
  call.x_stride = call.y_stride = piece;
  call.first = 0;
  for (int64_t i = 0; i < a.half; i += call.half) {
    call.half = std::min(piece / 2, a.half - i);
    call.dim = 2 * call.half;
    call.cos = a.cos + i;
    call.sin = a.sin + i;
    // The pairs of a piece are one run of dimensions, or two.
    const int64_t n = a.interleaved ? call.dim : call.half;
    const int64_t low = a.first + (a.interleaved ? 2 * i : i);
    char* const upper = buffer + n * size_of(type);
    load(low, n, buffer);
    if (!a.interleaved) load(low + a.half, n, upper);
    uk.rope_heads[index_of(type)](call);
    store(buffer, low, n);
    if (!a.interleaved) store(upper, low + a.half, n);
  }
  copy(a.first + 2 * a.half, a.dim);
}

/// RopeHeads from rows of type `from` to rows of type `to`. x and y are the same memory only if the types are the same.
[[gnu::noinline]] inline void rotate_heads(const UKernels& uk, DType from, DType to, const RopeHeads& a) {
  if (from == to) return uk.rope_heads[index_of(from)](a);
  constexpr int64_t kPiece = 128;  // dimensions
  constexpr int64_t kAtOnce = 8;   // heads
  alignas(64) float wide[kAtOnce * kPiece];
  RopeHeads some = a;
  for (int64_t h = 0; h < a.heads; h += kAtOnce) {
    some.heads = std::min(kAtOnce, a.heads - h);
    rotate_pieces(
        uk, some, DType::kF32, reinterpret_cast<char*>(wide), kPiece,
        [&](int64_t d, int64_t n, char* rows) {
          widen_rows(uk, from, static_cast<const char*>(a.x) + (h * a.x_stride + d) * size_of(from), a.x_stride,
                     some.heads, n, reinterpret_cast<float*>(rows), kPiece);
        },
        [&](const char* rows, int64_t d, int64_t n) {
          round_rows(uk, reinterpret_cast<const float*>(rows), kPiece, some.heads, n, to,
                     static_cast<char*>(a.y) + (h * a.y_stride + d) * size_of(to), a.y_stride);
        });
  }
}

}  // namespace simdattn
