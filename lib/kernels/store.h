// Rows of f32 into the types and layouts that keys and values are stored in, and back.
#pragma once

#include "lib/kernels/elementwise.h"
#include "lib/simd/blocks.h"

namespace simdattn {
namespace {

/// `rows` rows of n numbers, rounded. Strides are bytes.
template <class T>
__attribute__((noinline)) void narrow_rows(const char* in, int64_t in_stride, int64_t rows, char* out,
                                           int64_t out_stride, int64_t n) {
  int64_t first = 0;
  if constexpr (std::is_same_v<T, bf16>) {
    // Two vectors at a time, as if there were no NaN, because there is none as a rule; again if there was one.
    first = n - n % (2 * kLanes);
    Floats seen(0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      const float* const x = reinterpret_cast<const float*>(in + r * in_stride);
      bf16* const y = reinterpret_cast<bf16*>(out + r * out_stride);
      for (int64_t i = 0; i < first; i += 2 * kLanes) {
        const Floats v0 = load(x + i), v1 = load(x + i + kLanes);
        store_numbers(v0, v1, y + i);
        seen = notice(v0, v1, seen);
      }
    }
    if (!all(finite(seen))) first = 0;
    if (first == n) return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float* const x = reinterpret_cast<const float*>(in + r * in_stride) + first;
    T* const y = reinterpret_cast<T*>(out + r * out_stride) + first;
    for_each_batch(n - first,
                   [&](int64_t i, auto part) SIMDATTN_LAMBDA { store_rounded(load(x + i, part), y + i, part); });
  }
}

/// What is transposed: a number of f32 or f16, a pair of bf16. Nothing looks at the numbers.
template <class T>
using PanelUnit = std::conditional_t<std::is_same_v<T, f16>, uint16_t, uint32_t>;
/// Elements of a unit.
template <class T>
inline constexpr int64_t kUnitDims = std::is_same_v<T, bf16> ? 2 : 1;

/// f(panel, column, tokens, done) for each panel of tokens [column, column + tokens); `done` of them came before.
template <class F>
SIMDATTN_INLINE void for_each_panel(int64_t column, int64_t tokens, const F& f) {
  for (int64_t done = 0; done < tokens;) {
    const int64_t at = column + done;
    const int64_t inside = at % kPanelWidth;
    const int64_t n = smaller(kPanelWidth - inside, tokens - done);
    f(at / kPanelWidth, inside, n, done);
    done += n;
  }
}

/// Dimensions of 32 tokens that are converted and then transposed: 4 or 8 KiB of stack.
constexpr int64_t kStoreStep = 64;

/// `tokens` rows of `dim` stored elements into the panel's columns from `column` on, at most kPanelWidth in all.
template <class T>
SIMDATTN_INLINE void rows_to_columns(const char* rows, int64_t row_stride, int64_t tokens, int64_t dim, char* panel,
                                     int64_t column) {
  constexpr int64_t kSize = sizeof(PanelUnit<T>), kPitch = kPanelWidth * kSize;
  const int64_t units = dim / kUnitDims<T>;
  char* const out = panel + column * kSize;
  transpose_units<PanelUnit<T>>(rows, row_stride, tokens, units, out, kPitch);
  // An odd last dimension of bf16 is paired with zero.
  for (int64_t t = 0; units * kUnitDims<T> != dim && t < tokens; ++t) {
    uint16_t pair[2] = {0, 0};
    __builtin_memcpy(pair, rows + t * row_stride + (dim - 1) * 2, 2);
    __builtin_memcpy(out + units * kPitch + t * 4, pair, 4);
  }
}
/// The inverse.
template <class T>
SIMDATTN_INLINE void columns_to_rows(const char* panel, int64_t column, int64_t tokens, int64_t dim, char* rows,
                                     int64_t row_stride) {
  constexpr int64_t kSize = sizeof(PanelUnit<T>), kPitch = kPanelWidth * kSize;
  const int64_t units = dim / kUnitDims<T>;
  const char* const in = panel + column * kSize;
  transpose_units<PanelUnit<T>>(in, kPitch, units, tokens, rows, row_stride);
  for (int64_t t = 0; units * kUnitDims<T> != dim && t < tokens; ++t) {
    __builtin_memcpy(rows + t * row_stride + (dim - 1) * 2, in + units * kPitch + t * 4, 2);
  }
}

template <class T>
SIMDATTN_INLINE void store_rows(const StoreRows& a) {
  const char* const rows = static_cast<const char*>(a.rows);
  char* const out = static_cast<char*>(a.out);
  if (!a.as_stored) return narrow_rows<T>(rows, a.ld, a.tokens, out, a.stride, a.dim);
  for (int64_t t = 0; t < a.tokens; ++t)
    __builtin_memcpy(out + t * a.stride, rows + t * a.ld, static_cast<size_t>(a.dim) * sizeof(T));
}

template <class T>
SIMDATTN_INLINE void store_panels(const StoreRows& a) {
  for_each_panel(a.column, a.tokens, [&](int64_t panel, int64_t column, int64_t n, int64_t done) SIMDATTN_LAMBDA {
    const char* const rows = static_cast<const char*>(a.rows) + done * a.ld;
    char* const to = static_cast<char*>(a.out) + panel * a.stride;
    if (a.as_stored) {
      rows_to_columns<T>(rows, a.ld, n, a.dim, to, column);
      return;
    }
    alignas(64) T copy[kPanelWidth * kStoreStep];
    for (int64_t d = 0; d < a.dim; d += kStoreStep) {
      const int64_t count = smaller(kStoreStep, a.dim - d);
      char* const narrow = reinterpret_cast<char*>(copy);
      narrow_rows<T>(rows + 4 * d, a.ld, n, narrow, kStoreStep * sizeof(T), count);
      rows_to_columns<T>(narrow, kStoreStep * sizeof(T), n, count,
                         to + d * kPanelWidth * static_cast<int64_t>(sizeof(T)), column);
    }
  });
}

template <class T>
SIMDATTN_INLINE void load_rows(const LoadRows& a) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    const char* const from = static_cast<const char*>(a.in) + t * a.stride;
    char* const to = static_cast<char*>(a.rows) + t * a.ld;
    if (a.as_stored || std::is_same_v<T, float>) {
      __builtin_memcpy(to, from, static_cast<size_t>(a.dim) * sizeof(T));
    } else {
      widen<T>(from, reinterpret_cast<float*>(to), a.dim);
    }
  }
}

template <class T>
SIMDATTN_INLINE void load_panels(const LoadRows& a) {
  for_each_panel(a.column, a.tokens, [&](int64_t panel, int64_t column, int64_t n, int64_t done) SIMDATTN_LAMBDA {
    const char* const from = static_cast<const char*>(a.in) + panel * a.stride;
    char* const rows = static_cast<char*>(a.rows) + done * a.ld;
    if (a.as_stored || std::is_same_v<T, float>) {
      columns_to_rows<T>(from, column, n, a.dim, rows, a.ld);
      return;
    }
    alignas(64) T copy[kPanelWidth * kStoreStep];
    for (int64_t d = 0; d < a.dim; d += kStoreStep) {
      const int64_t count = smaller(kStoreStep, a.dim - d);
      columns_to_rows<T>(from + d * kPanelWidth * static_cast<int64_t>(sizeof(T)), column, n, count,
                         reinterpret_cast<char*>(copy), kStoreStep * sizeof(T));
      for (int64_t t = 0; t < n; ++t)
        widen<T>(copy + t * kStoreStep, reinterpret_cast<float*>(rows + t * a.ld) + d, count);
    }
  });
}

}  // namespace
}  // namespace simdattn
