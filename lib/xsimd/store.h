// Rows of f32 into the types and layouts that keys and values are stored in, and back.
#ifndef SIMDATTN_LIB_XSIMD_STORE_H_
#define SIMDATTN_LIB_XSIMD_STORE_H_

#include "lib/panel_columns.h"
#include "lib/xsimd/memory.h"

namespace simdattn {
namespace {

/// Dimensions of 32 tokens that are converted and then transposed: 8 or 16 KiB, which stay in L1.
constexpr int64_t kStoreStep = 128;

template <class T>
__attribute__((noinline)) void narrow_row(const char* in, T* out, int64_t n) {
  const float* x = reinterpret_cast<const float*>(in);
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store_rounded(load(x + i, part), out + i, part); });
}
template <class T>
__attribute__((noinline)) void wide_row(const T* in, char* out, int64_t n) {
  float* y = reinterpret_cast<float*>(out);
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store(load(in + i, part), y + i, part); });
}

template <class T>
void store_rows(const StoreRows& a) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    const char* const from = static_cast<const char*>(a.rows) + t * a.ld;
    char* const to = static_cast<char*>(a.out) + t * a.stride;
    if (a.as_stored) {
      __builtin_memcpy(to, from, static_cast<size_t>(a.dim) * sizeof(T));
    } else {
      narrow_row(from, reinterpret_cast<T*>(to), a.dim);
    }
  }
}

template <class T>
void store_panels(const StoreRows& a) {
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
      for (int64_t t = 0; t < n; ++t) narrow_row(rows + t * a.ld + 4 * d, copy + t * kStoreStep, count);
      rows_to_columns<T>(reinterpret_cast<const char*>(copy), kStoreStep * sizeof(T), n, count,
                         to + d * kPanelWidth * static_cast<int64_t>(sizeof(T)), column);
    }
  });
}

template <class T>
void load_rows(const LoadRows& a) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    const char* const from = static_cast<const char*>(a.in) + t * a.stride;
    char* const to = static_cast<char*>(a.rows) + t * a.ld;
    if (a.as_stored || std::is_same_v<T, float>) {
      __builtin_memcpy(to, from, static_cast<size_t>(a.dim) * sizeof(T));
    } else {
      wide_row(reinterpret_cast<const T*>(from), to, a.dim);
    }
  }
}

template <class T>
void load_panels(const LoadRows& a) {
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
      for (int64_t t = 0; t < n; ++t) wide_row(copy + t * kStoreStep, rows + t * a.ld + 4 * d, count);
    }
  });
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_XSIMD_STORE_H_
