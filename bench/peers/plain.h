// What a good compiler makes of the obvious code, for the module that includes it: softmax and products of rows, and
// attention composed of a library's two matrix products with the softmax between them.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "bench/peers/peer.h"

namespace bench {
namespace {

// A polynomial of degree six after reduction by ln 2, without a call, so that the loop around it can be vectorised.
inline float exp_loop(float x) {
  x = x < -87.0f ? -87.0f : x;
  const float shifted = x * 1.44269504f + 12582912.0f;
  const int32_t n = __builtin_bit_cast(int32_t, shifted) - 0x4B400000;
  const float k = static_cast<float>(n);
  const float r = x - k * 0.693145752f - k * 1.42860677e-6f;
  float p = 1.388889e-3f;
  p = p * r + 8.333333e-3f;
  p = p * r + 4.166667e-2f;
  p = p * r + 1.666667e-1f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * __builtin_bit_cast(float, (n + 127) << 23);
}

/// `x` and `out` may be the same.
inline void softmax_row(const float* x, float* out, size_t n) {
  float max = x[0];
  for (size_t i = 0; i < n; ++i) max = x[i] > max ? x[i] : max;
  float sum = 0;
#ifdef __clang__
#pragma clang loop vectorize(assume_safety)
#else
#pragma GCC ivdep
#endif
  for (size_t i = 0; i < n; ++i) {
    const float e = exp_loop(x[i] - max);
    out[i] = e;
    sum += e;
  }
  const float inverse = 1 / sum;
  for (size_t i = 0; i < n; ++i) out[i] *= inverse;
}

/// Attention in f32 of two products. `scores(q, rows, k, keys, out)`: out [rows][keys] = scale * q k^T;
/// `values(p, rows, keys, v, out)`: out [rows][d] = p v. Query heads of a group are rows of one product when a token is
/// decoded; a prompt is cut into blocks of 128 rows, each with the keys that its last row sees.
template <class Scores, class Values>
void composed_attention(const Work& w, std::vector<float>& memory, Scores scores, Values values) {
  const int64_t group = w.heads / w.kv_heads;
  const int64_t rows_at_once = w.n_q == 1 ? group : std::min<int64_t>(w.n_q, 128);
  memory.resize(static_cast<size_t>(rows_at_once * w.n));
  float* p = memory.data();
  for (int64_t h = 0; h < (w.n_q == 1 ? w.kv_heads : w.heads); ++h) {
    const int64_t kv = w.n_q == 1 ? h : h / group;
    const int64_t all = w.n_q == 1 ? group : w.n_q;
    const float* q = static_cast<const float*>(w.q) + h * all * w.d;
    const float* k = static_cast<const float*>(w.k) + kv * w.n * w.d;
    const float* v = static_cast<const float*>(w.v) + kv * w.n * w.d;
    float* out = static_cast<float*>(w.out) + h * all * w.d;
    for (int64_t first = 0; first < all; first += rows_at_once) {
      const int64_t rows = std::min(rows_at_once, all - first);
      const bool masked = w.causal && w.n_q > 1;
      const int64_t keys = masked ? first + rows + w.n - w.n_q : w.n;
      scores(q + first * w.d, rows, k, keys, p);
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t visible = masked ? first + i + 1 + w.n - w.n_q : keys;
        softmax_row(p + i * keys, p + i * keys, static_cast<size_t>(visible));
        std::fill(p + i * keys + visible, p + (i + 1) * keys, 0.0f);
      }
      values(p, rows, keys, v, out + first * w.d);
    }
  }
}

}  // namespace
}  // namespace bench
