// Rows of f32 into the types and layouts that keys and values are stored in, and back.
#ifndef SIMDATTN_LIB_XSIMD_STORE_H_
#define SIMDATTN_LIB_XSIMD_STORE_H_

#include "lib/panel_columns.h"
#include "lib/xsimd/memory.h"

namespace simdattn {
namespace {

/// Dimensions of 32 tokens that are converted and then transposed: 8 or 16 KiB, which stay in L1.
constexpr int64_t kStoreStep = 128;

/// A square in each block of 128 bits of a batch.
struct Wide {
#if XSIMD_WITH_AVX2
  static constexpr int64_t kBlocks = kLanes / 4;

  /// Block b to kGroup b rows below p.
  template <int64_t kGroup>
  static SIMDATTN_INLINE void store_blocks(Floats v, char* p, int64_t stride) {
    const auto at = [&](int64_t b) SIMDATTN_LAMBDA { return reinterpret_cast<float*>(p + kGroup * b * stride); };
#if XSIMD_WITH_AVX512F
    _mm_storeu_ps(at(0), _mm512_castps512_ps128(v));
    _mm_storeu_ps(at(1), _mm512_extractf32x4_ps(v, 1));
    _mm_storeu_ps(at(2), _mm512_extractf32x4_ps(v, 2));
    _mm_storeu_ps(at(3), _mm512_extractf32x4_ps(v, 3));
#else
    _mm_storeu_ps(at(0), _mm256_castps256_ps128(v));
    _mm_storeu_ps(at(1), _mm256_extractf128_ps(v, 1));
#endif
  }

  template <class Load, class Store>
  static SIMDATTN_INLINE void square(const Load& load, const Store& store, uint32_t /*unit*/) {
    const Floats r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
    const Floats a = zip_lo_blocks(r0, r1), b = zip_lo_blocks(r2, r3);
    const Floats c = zip_hi_blocks(r0, r1), d = zip_hi_blocks(r2, r3);
    store(0, zip_lo_pairs(a, b));
    store(1, zip_hi_pairs(a, b));
    store(2, zip_lo_pairs(c, d));
    store(3, zip_hi_pairs(c, d));
  }
  template <class Load, class Store>
  static SIMDATTN_INLINE void square(const Load& load, const Store& store, uint16_t /*unit*/) {
    const Floats r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
    const Floats r4 = load(4), r5 = load(5), r6 = load(6), r7 = load(7);
    const auto four = [&](int64_t k, Floats t0, Floats t1, Floats t2, Floats t3) SIMDATTN_LAMBDA {
      const Floats a = zip_lo_blocks(t0, t1), b = zip_lo_blocks(t2, t3);
      const Floats c = zip_hi_blocks(t0, t1), d = zip_hi_blocks(t2, t3);
      store(k, zip_lo_pairs(a, b));
      store(k + 1, zip_hi_pairs(a, b));
      store(k + 2, zip_lo_pairs(c, d));
      store(k + 3, zip_hi_pairs(c, d));
    };
    four(0, zip_lo_words(r0, r1), zip_lo_words(r2, r3), zip_lo_words(r4, r5), zip_lo_words(r6, r7));
    four(4, zip_hi_words(r0, r1), zip_hi_words(r2, r3), zip_hi_words(r4, r5), zip_hi_words(r6, r7));
  }

  template <class Unit>
  static SIMDATTN_INLINE void put(const char* in, int64_t in_stride, char* out, int64_t out_stride, Unit unit) {
    square([&](int64_t k) SIMDATTN_LAMBDA { return load_blocks<16 / sizeof(Unit)>(in + k * in_stride, in_stride); },
           [&](int64_t k, Floats v) SIMDATTN_LAMBDA { store(v, reinterpret_cast<float*>(out + k * out_stride)); },
           unit);
  }
  template <class Unit>
  static SIMDATTN_INLINE void take(const char* in, int64_t in_stride, char* out, int64_t out_stride, Unit unit) {
    square([&](int64_t k) SIMDATTN_LAMBDA { return load(reinterpret_cast<const float*>(in + k * in_stride)); },
           [&](int64_t k, Floats v)
               SIMDATTN_LAMBDA { store_blocks<16 / sizeof(Unit)>(v, out + k * out_stride, out_stride); },
           unit);
  }
#else
  static constexpr int64_t kBlocks = 1;
  // Never called.
  template <class Unit>
  static void put(const char* in, int64_t in_stride, char* out, int64_t out_stride, Unit unit);
  template <class Unit>
  static void take(const char* in, int64_t in_stride, char* out, int64_t out_stride, Unit unit);
#endif
};

// Functions of their own, for types and conversions to share: inlined they were 38 KB a target.

template <class Unit>
__attribute__((noinline)) void transpose_rest(const char* in, int64_t in_stride, int64_t rows, int64_t columns,
                                              char* out, int64_t out_stride) {
  transpose_units<Unit>(in, in_stride, rows, columns, out, out_stride);
}

/// transpose_units(), most of it by Wide::put: squares of Wide::kBlocks times as many rows side by side.
template <class Unit>
__attribute__((noinline)) void put_units(const char* in, int64_t in_stride, int64_t rows, int64_t columns, char* out,
                                         int64_t out_stride) {
  constexpr int64_t kSize = sizeof(Unit);
  constexpr int64_t kSquare = 16 / kSize;
  constexpr int64_t kRows = kSquare * Wide::kBlocks;
  const int64_t whole_rows = Wide::kBlocks == 1 ? 0 : rows - rows % kRows;
  const int64_t whole_columns = columns - columns % kSquare;
  if constexpr (Wide::kBlocks > 1) {
    constexpr int64_t kLine = 64 / kSize;
    for (int64_t first = 0; first < whole_columns; first += kLine) {
      const int64_t end = whole_columns < first + kLine ? whole_columns : first + kLine;
      for (int64_t r = 0; r < whole_rows; r += kRows) {
        for (int64_t c = first; c < end; c += kSquare) {
          Wide::put(in + r * in_stride + c * kSize, in_stride, out + c * out_stride + r * kSize, out_stride, Unit{});
        }
      }
    }
    if (whole_rows > 0 && whole_columns < columns) {
      transpose_rest<Unit>(in + whole_columns * kSize, in_stride, whole_rows, columns - whole_columns,
                           out + whole_columns * out_stride, out_stride);
    }
    if (whole_rows == rows) return;
  }
  transpose_rest<Unit>(in + whole_rows * in_stride, in_stride, rows - whole_rows, columns, out + whole_rows * kSize,
                       out_stride);
}
/// And by Wide::take: as many columns.
template <class Unit>
__attribute__((noinline)) void take_units(const char* in, int64_t in_stride, int64_t rows, int64_t columns, char* out,
                                          int64_t out_stride) {
  constexpr int64_t kSize = sizeof(Unit);
  constexpr int64_t kSquare = 16 / kSize;
  constexpr int64_t kColumns = kSquare * Wide::kBlocks;
  const int64_t whole_columns = Wide::kBlocks == 1 ? 0 : columns - columns % kColumns;
  const int64_t whole_rows = rows - rows % kSquare;
  if constexpr (Wide::kBlocks > 1) {
    for (int64_t c = 0; c < whole_columns; c += kColumns) {
      for (int64_t r = 0; r < whole_rows; r += kSquare) {
        Wide::take(in + r * in_stride + c * kSize, in_stride, out + c * out_stride + r * kSize, out_stride, Unit{});
      }
    }
    if (whole_columns > 0 && whole_rows < rows) {
      transpose_rest<Unit>(in + whole_rows * in_stride, in_stride, rows - whole_rows, whole_columns,
                           out + whole_rows * kSize, out_stride);
    }
    if (whole_columns == columns) return;
  }
  transpose_rest<Unit>(in + whole_columns * kSize, in_stride, rows, columns - whole_columns,
                       out + whole_columns * out_stride, out_stride);
}

/// `tokens` rows of `dim` stored elements into the panel's columns from `column` on, at most kPanelWidth in all.
template <class T>
SIMDATTN_INLINE void rows_to_columns(const char* rows, int64_t row_stride, int64_t tokens, int64_t dim, char* panel,
                                     int64_t column) {
  using Unit = PanelUnit<T>;
  constexpr int64_t kPitch = kPanelWidth * sizeof(Unit);
  const int64_t units = dim / kUnitDims<T>;
  char* const out = panel + column * static_cast<int64_t>(sizeof(Unit));
  if (tokens == 1) {
    scatter_units<Unit>(rows, units, out, kPitch);
  } else {
    put_units<Unit>(rows, row_stride, tokens, units, out, kPitch);
  }
  if constexpr (kUnitDims<T> == 2) {
    // An odd last dimension is paired with zero.
    for (int64_t t = 0; dim % 2 != 0 && t < tokens; ++t) {
      uint16_t pair[2] = {0, 0};
      copy_unit<T>(rows + t * row_stride + (dim - 1) * 2, reinterpret_cast<char*>(pair));
      copy_unit<Unit>(reinterpret_cast<const char*>(pair), out + units * kPitch + t * 4);
    }
  }
}

/// The inverse.
template <class T>
SIMDATTN_INLINE void columns_to_rows(const char* panel, int64_t column, int64_t tokens, int64_t dim, char* rows,
                                     int64_t row_stride) {
  using Unit = PanelUnit<T>;
  constexpr int64_t kPitch = kPanelWidth * sizeof(Unit);
  const int64_t units = dim / kUnitDims<T>;
  const char* const in = panel + column * static_cast<int64_t>(sizeof(Unit));
  take_units<Unit>(in, kPitch, units, tokens, rows, row_stride);
  if constexpr (kUnitDims<T> == 2) {
    for (int64_t t = 0; dim % 2 != 0 && t < tokens; ++t) {
      copy_unit<T>(in + units * kPitch + t * 4, rows + t * row_stride + (dim - 1) * 2);
    }
  }
}

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
