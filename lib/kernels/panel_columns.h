// Rows into columns of a key panel and back: a transposition of units of 32 bits (f32, pairs of bf16) or of 16 (f16).
// No number is looked at, so one piece of code in vectors of 128 bits serves every instruction set; targets with wider
// ones do most of the work in squares of their own.
#ifndef SIMDATTN_LIB_KERNELS_PANEL_COLUMNS_H_
#define SIMDATTN_LIB_KERNELS_PANEL_COLUMNS_H_

#include <cstdint>
#include <type_traits>

#include "lib/contract/dtypes.h"
#include "lib/simd/registers.h"

namespace simdattn {
namespace {

template <class Unit>
using UnitVector [[gnu::vector_size(16)]] = Unit;

template <class Unit>
SIMDATTN_INLINE UnitVector<Unit> load_units(const char* p) {
  UnitVector<Unit> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class V>
SIMDATTN_INLINE void store_units(V v, char* p) {
  __builtin_memcpy(p, &v, sizeof v);
}

/// Four vectors of four units as columns. Strides are bytes, here and below.
SIMDATTN_INLINE void store_columns(UnitVector<uint32_t> r0, UnitVector<uint32_t> r1, UnitVector<uint32_t> r2,
                                   UnitVector<uint32_t> r3, char* out, int64_t out_stride) {
  using Row = UnitVector<uint32_t>;
  const Row a = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), b = __builtin_shufflevector(r2, r3, 0, 4, 1, 5);
  const Row c = __builtin_shufflevector(r0, r1, 2, 6, 3, 7), d = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  store_units(__builtin_shufflevector(a, b, 0, 1, 4, 5), out);
  store_units(__builtin_shufflevector(a, b, 2, 3, 6, 7), out + out_stride);
  store_units(__builtin_shufflevector(c, d, 0, 1, 4, 5), out + 2 * out_stride);
  store_units(__builtin_shufflevector(c, d, 2, 3, 6, 7), out + 3 * out_stride);
}
/// A square of as many rows as a vector has units.
SIMDATTN_INLINE void transpose_square(const char* in, int64_t in_stride, char* out, int64_t out_stride,
                                      uint32_t /*unit*/) {
  const auto row = [=](int64_t i) { return load_units<uint32_t>(in + i * in_stride); };
  store_columns(row(0), row(1), row(2), row(3), out, out_stride);
}
SIMDATTN_INLINE void transpose_square(const char* in, int64_t in_stride, char* out, int64_t out_stride,
                                      uint16_t /*unit*/) {
  using Row = UnitVector<uint16_t>;
  using Pairs = UnitVector<uint32_t>;
  const auto row = [=](int64_t i) { return load_units<uint16_t>(in + i * in_stride); };
  const auto low = [](Row a, Row b) { return (Pairs)__builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); };
  const auto high = [](Row a, Row b) { return (Pairs)__builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); };
  const Row r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3), r4 = row(4), r5 = row(5), r6 = row(6), r7 = row(7);
  store_columns(low(r0, r1), low(r2, r3), low(r4, r5), low(r6, r7), out, out_stride);
  store_columns(high(r0, r1), high(r2, r3), high(r4, r5), high(r6, r7), out + 4 * out_stride, out_stride);
}

template <class Unit>
SIMDATTN_INLINE void copy_unit(const char* from, char* to) {
  __builtin_memcpy(to, from, sizeof(Unit));
}

/// out[c][r] = in[r][c]
template <class Unit>
SIMDATTN_INLINE void transpose_units(const char* in, int64_t in_stride, int64_t rows, int64_t columns, char* out,
                                     int64_t out_stride) {
  constexpr int64_t kSize = sizeof(Unit);
  constexpr int64_t kSquare = 16 / kSize;
  // A line of four rows is used up before the next rows are read: rows of all heads of a token are often a power of two
  // apart, and then fall on each other in the L1 cache.
  constexpr int64_t kLine = 64 / kSize;
  const int64_t whole_rows = rows - rows % kSquare;
  const int64_t whole_columns = columns - columns % kSquare;
  for (int64_t first = 0; whole_rows > 0 && first < whole_columns; first += kLine) {
    const int64_t end = whole_columns < first + kLine ? whole_columns : first + kLine;
    for (int64_t r = 0; r < whole_rows; r += kSquare) {
      for (int64_t c = first; c < end; c += kSquare) {
        transpose_square(in + r * in_stride + c * kSize, in_stride, out + c * out_stride + r * kSize, out_stride,
                         Unit{});
      }
    }
  }
  for (int64_t r = whole_rows; r < rows; ++r) {
    const char* from = in + r * in_stride;
    char* to = out + r * kSize;
#pragma GCC unroll 4
    for (int64_t c = 0; c < columns; ++c) copy_unit<Unit>(from + c * kSize, to + c * out_stride);
  }
  for (int64_t c = whole_columns; c < columns; ++c) {
    for (int64_t r = 0; r < whole_rows; ++r) {
      copy_unit<Unit>(in + r * in_stride + c * kSize, out + c * out_stride + r * kSize);
    }
  }
}

template <class T>
using PanelUnit = std::conditional_t<std::is_same_v<T, f16>, uint16_t, uint32_t>;
/// Elements of a unit.
template <class T>
inline constexpr int64_t kUnitDims = std::is_same_v<T, bf16> ? 2 : 1;

/// f(panel, column, tokens, done) for each panel that tokens column .. column + tokens - 1 of many lie in; `done`
/// tokens came before.
template <class F>
SIMDATTN_INLINE void for_each_panel(int64_t column, int64_t tokens, const F& f) {
  for (int64_t done = 0; done < tokens;) {
    const int64_t at = column + done;
    const int64_t inside = at % kPanelWidth;
    const int64_t n = kPanelWidth - inside < tokens - done ? kPanelWidth - inside : tokens - done;
    f(at / kPanelWidth, inside, n, done);
    done += n;
  }
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_PANEL_COLUMNS_H_
