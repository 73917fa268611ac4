// Columns of key panels to columns of another one, their dimensions rotated in pairs: all but the arithmetic, which the
// backends have. In a panel lanes are keys, and all of them rotate by the same angles: nothing is transposed.
#ifndef SIMDATTN_LIB_CONTRACT_ROTATE_COLUMNS_H_
#define SIMDATTN_LIB_CONTRACT_ROTATE_COLUMNS_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lib/contract/panel_columns.h"
#include "lib/contract/ukernels.h"

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

// Always inlined: the code then has the instruction set of its caller.
#define SIMDATTN_COLUMNS_INLINE inline __attribute__((always_inline))

/// Pairs of whole rows of lanes, kPanelWidth elements a dimension. Pairs of neighbours follow each other; else the first
/// dimensions of `pairs` pairs begin at x, the second ones x_distance elements behind. y is x or does not overlap it.
template <class T>
struct PairRows {
  const T* x;
  T* y;
  int64_t x_distance;
  int64_t y_distance;
  int64_t pairs;
  const float* cos;
  const float* sin;
  bool interleaved;
  bool inverse;
};

/// Elements of a row that rotates in registers of any width.
constexpr int64_t kMostLanes = 64;

/// Where element d of column j is.
template <class T>
SIMDATTN_COLUMNS_INLINE int64_t column_index(int64_t d, int64_t j) {
  return kUnitDims<T> == 2 ? (d / 2 * kPanelWidth + j) * 2 + d % 2 : d * kPanelWidth + j;
}

/// Between memory that does not overlap; 2 bytes or more.
SIMDATTN_COLUMNS_INLINE void copy_lanes(const char* in, char* out, int64_t bytes) {
  if (bytes >= 16) {
    for (int64_t i = 0; i + 16 < bytes; i += 16) __builtin_memcpy(out + i, in + i, 16);
    __builtin_memcpy(out + bytes - 16, in + bytes - 16, 16);
  } else if (bytes >= 8) {
    __builtin_memcpy(out, in, 8);
    __builtin_memcpy(out + bytes - 8, in + bytes - 8, 8);
  } else if (bytes >= 4) {
    __builtin_memcpy(out, in, 4);
    __builtin_memcpy(out + bytes - 4, in + bytes - 4, 4);
  } else {
    __builtin_memcpy(out, in, 2);
  }
}
/// `bytes` of each row of two panels.
SIMDATTN_COLUMNS_INLINE void copy_rows(const char* in, char* out, int64_t pitch, int64_t rows, int64_t bytes) {
  for (int64_t r = 0; r < rows; ++r, in += pitch, out += pitch) copy_lanes(in, out, bytes);
}

/// The slot. rotate_rows(PairRows) rotates whole rows; rotate_lanes(x0, x1, c, s) two rows of kMostLanes elements in place,
/// for all that is not whole pairs of dimensions of bf16, or if not `by_rows`.
template <class T, class RotateRows, class RotateLanes>
SIMDATTN_COLUMNS_INLINE void rotate_columns_of(const RotateColumns& a, bool by_rows, const RotateRows& rotate_rows,
                                               const RotateLanes& rotate_lanes) {
  using Unit = PanelUnit<T>;
  constexpr int64_t kSize = sizeof(T);
  constexpr int64_t kPitch = kPanelWidth * static_cast<int64_t>(sizeof(Unit));
  if (a.columns == 0) return;
  const T* const x = static_cast<const T*>(a.from);
  // Of the first panel, and where the second one begins.
  const int64_t near = kPanelWidth - a.from_column < a.columns ? kPanelWidth - a.from_column : a.columns;
  const char* const far = near < a.columns ? static_cast<const char*>(a.from) + a.from_stride : nullptr;
  T* const y = static_cast<T*>(a.to);
  const int64_t end = a.first + 2 * a.half;
  if (kUnitDims<T> == 2 && (a.first % 2 != 0 || (!a.interleaved && a.half % 2 != 0))) by_rows = false;
  if (!by_rows) {
    alignas(64) T x0[kMostLanes] = {}, x1[kMostLanes] = {};
    const auto get = [&](int64_t d, T* lanes) {
      const T* const next = reinterpret_cast<const T*>(far);
      for (int64_t j = 0; j < near; ++j) lanes[j] = x[column_index<T>(d, a.from_column + j)];
      for (int64_t j = near; j < a.columns; ++j) lanes[j] = next[column_index<T>(d, j - near)];
    };
    const auto put = [&](const T* lanes, int64_t d) {
      for (int64_t j = 0; j < a.columns; ++j) y[column_index<T>(d, a.to_column + j)] = lanes[j];
    };
    for (int64_t d = 0; d < a.dim; ++d) {
      if (d >= a.first && d < end) continue;
      get(d, x0);
      put(x0, d);
    }
    for (int64_t i = 0; i < a.half; ++i) {
      const int64_t d0 = a.first + (a.interleaved ? 2 * i : i);
      const int64_t d1 = d0 + (a.interleaved ? 1 : a.half);
      get(d0, x0);
      get(d1, x1);
      rotate_lanes(x0, x1, a.cos[i], a.inverse ? -a.sin[i] : a.sin[i]);
      put(x0, d0);
      put(x1, d1);
    }
  } else if (near == kPanelWidth) {
    if (a.half > 0) {
      rotate_rows({x + a.first * kPanelWidth, y + a.first * kPanelWidth, a.half * kPanelWidth, a.half * kPanelWidth,
                   a.half, a.cos, a.sin, a.interleaved, a.inverse});
    }
    if (x != y) {
      const int64_t dims = (a.dim + kUnitDims<T> - 1) / kUnitDims<T> * kUnitDims<T>;
      std::memcpy(y, x, static_cast<size_t>(a.first * kPanelWidth * kSize));
      std::memcpy(y + end * kPanelWidth, x + end * kPanelWidth,
                  static_cast<size_t>((dims - end) * kPanelWidth * kSize));
    }
  } else {
    // Some columns of a number of rows at a time, in lanes from 0 on. Lanes of no column are zeros.
    constexpr int64_t kDims = 32;
    alignas(64) T rows[kDims * kPanelWidth] = {};
    constexpr int64_t kUnit = sizeof(Unit);
    const char* const in = reinterpret_cast<const char*>(x) + a.from_column * kUnit;
    char* const out = reinterpret_cast<char*>(y) + a.to_column * kUnit;
    const int64_t bytes = a.columns * kUnit;
    const auto units = [](int64_t dims) { return (dims + kUnitDims<T> - 1) / kUnitDims<T>; };
    const auto get = [&](int64_t d, int64_t n, T* to) {
      char* const lanes = reinterpret_cast<char*>(to);
      copy_rows(in + d * kPanelWidth * kSize, lanes, kPitch, units(n), near * kUnit);
      if (far == nullptr) return;
      copy_rows(far + d * kPanelWidth * kSize, lanes + near * kUnit, kPitch, units(n), bytes - near * kUnit);
    };
    const auto put = [&](const T* from, int64_t d, int64_t n) {
      copy_rows(reinterpret_cast<const char*>(from), out + d * kPanelWidth * kSize, kPitch, units(n), bytes);
    };
    for (int64_t i = 0, pairs = 0; i < a.half; i += pairs) {
      pairs = kDims / 2 < a.half - i ? kDims / 2 : a.half - i;
      // The pairs are one run of dimensions, or two.
      const int64_t run = a.interleaved ? 2 * pairs : pairs;
      const int64_t d = a.first + (a.interleaved ? 2 * i : i);
      for (int64_t k = 0; k < 2 * pairs; k += run) get(d + (k > 0 ? a.half : 0), run, rows + k * kPanelWidth);
      const PairRows<T> piece = {rows,      rows,      run * kPanelWidth, run * kPanelWidth, pairs,
                                 a.cos + i, a.sin + i, a.interleaved,     a.inverse};
      if (a.columns == kPanelWidth) {
        PairRows<T> whole = piece;
        whole.y = y + d * kPanelWidth;
        whole.y_distance = a.half * kPanelWidth;
        rotate_rows(whole);
        continue;
      }
      rotate_rows(piece);
      for (int64_t k = 0; k < 2 * pairs; k += run) put(rows + k * kPanelWidth, d + (k > 0 ? a.half : 0), run);
    }
    for (int64_t d = a.half > 0 && a.first == 0 ? end : 0, n = 0; d < a.dim; d += n) {
      if (a.half > 0 && d == a.first) d = end;
      const int64_t stop = d < a.first ? a.first : a.dim;
      n = kDims < stop - d ? kDims : stop - d;
      if (n == 0) break;
      get(d, n, rows);
      put(rows, d, n);
    }
  }
  // An odd last dimension of bf16 is paired with zero.
  if (kUnitDims<T> == 2 && a.dim % 2 != 0) {
    for (int64_t j = 0; j < a.columns; ++j) y[column_index<T>(a.dim, a.to_column + j)] = T{};
  }
}

#undef SIMDATTN_COLUMNS_INLINE

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_CONTRACT_ROTATE_COLUMNS_H_
