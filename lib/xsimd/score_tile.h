// Scores of query rows against key panels: lanes are keys, so a score is a chain of fma over the dimension and needs no
// sum across lanes.
#ifndef SIMDATTN_LIB_XSIMD_SCORE_TILE_H_
#define SIMDATTN_LIB_XSIMD_SCORE_TILE_H_

#include "lib/xsimd/register_tile.h"

namespace simdattn {
namespace {

template <class T>
struct ScoreTileArguments {
  const float* q;
  int64_t ldq;
  const T* low;   // the first half of the tile's columns
  const T* high;  // and the second half: of the same panel or of the next
  int64_t dim;
  float scale;
  float* s;
  int64_t lds;
  int64_t prefetch_from;  // dimensions [from, to) prefetch what lies kScorePrefetch bytes further on
  int64_t prefetch_to;
};
/// An f32 panel of 128 dimensions.
constexpr uintptr_t kScorePrefetch = 16384;

template <class T, int64_t kRows, int64_t kBatches>
__attribute__((noinline)) void score_register_tile(const ScoreTileArguments<T>& a) {
  constexpr bool kPairs = std::is_same_v<T, bf16>;
  // Dimensions that lie side by side in a panel.
  constexpr int64_t kGroup = kPairs ? 2 : 1;
  constexpr int64_t kHalf = kBatches >= 4 ? kBatches / 2 : kBatches;
  Registers<kRows * kBatches> acc;
  unroll<kRows * kBatches>([&](auto i) SIMDATTN_LAMBDA { reg<i>(acc) = Floats(0.0f); });
  const float* q = a.q;
  const T* low = a.low;
  const T* high = a.high;
  const int64_t ldq = a.ldq;
  const int64_t dim = a.dim;
  const int64_t prefetch_from = a.prefetch_from;
  const uint64_t prefetch_count = static_cast<uint64_t>(a.prefetch_to - prefetch_from);
  const auto column = [&](auto c) SIMDATTN_LAMBDA {
    return c < kHalf ? low + c * kGroup * kLanes : high + (c - kHalf) * kGroup * kLanes;
  };
  for (int64_t d = 0; d < dim; d += kGroup) {
    if (static_cast<uint64_t>(d - prefetch_from) < prefetch_count) {
      constexpr int64_t kBytes = kLanes * kGroup * static_cast<int64_t>(sizeof(T));
      constexpr int64_t kPerLine = kBytes >= 64 ? 1 : 64 / kBytes;
      unroll<(kBatches + kPerLine - 1) / kPerLine>([&](auto line) SIMDATTN_LAMBDA {
        prefetch(reinterpret_cast<uintptr_t>(column(std::integral_constant<int64_t, line * kPerLine>())) +
                 kScorePrefetch);
      });
    }
    Registers<kBatches> k;
    if constexpr (kPairs) {
      unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA { reg<c>(k) = even_of(load_pairs(column(c))); });
      add_outer_product<kRows, kBatches>(q, ldq, k, acc);
      if (d + 1 == dim) break;
      unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA { reg<c>(k) = odd_of(load_pairs(column(c))); });
      add_outer_product<kRows, kBatches>(q + 1, ldq, k, acc);
    } else {
      unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA { reg<c>(k) = load(column(c)); });
      add_outer_product<kRows, kBatches>(q, ldq, k, acc);
    }
    q += kGroup;
    low += kGroup * kPanelWidth;
    high += kGroup * kPanelWidth;
  }
  const Floats scale(a.scale);
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    unroll<kBatches>([&](auto c)
                         SIMDATTN_LAMBDA { store(reg<r * kBatches + c>(acc) * scale, a.s + r * a.lds + c * kLanes); });
  });
}

/// All rows against kBatches batches of columns from column `x` on.
template <class T, int64_t kBatches>
SIMDATTN_INLINE void score_strip(const ScoreTile& a, int64_t x) {
  const auto column = [&](int64_t c) SIMDATTN_LAMBDA {
    constexpr int64_t kSideBySide = std::is_same_v<T, bf16> ? 2 : 1;
    return static_cast<const T*>(a.panels) + c / kPanelWidth * a.panel_stride + c % kPanelWidth * kSideBySide;
  };
  const T* low = column(x);
  const T* high = column(x + kBatches / 2 * kLanes);
  for_each_row_tile(a.rows, [&](int64_t first, int64_t rows) SIMDATTN_LAMBDA {
    // Every row tile of a strip fetches its share of the lines.
    const int64_t from = a.stream ? first * a.dim / a.rows & ~int64_t{1} : 0;
    const int64_t to = a.stream ? (first + rows) * a.dim / a.rows & ~int64_t{1} : 0;
    const ScoreTileArguments<T> arguments = {a.q + first * a.ldq,     a.ldq, low,  high, a.dim, a.scale,
                                             a.s + first * a.lds + x, a.lds, from, to};
    with_rows<kRowsOf<kBatches>>(rows, [&](auto r) SIMDATTN_LAMBDA { score_register_tile<T, r, kBatches>(arguments); });
  });
}

template <class T>
void score_tile(const ScoreTile& a) {
  const int64_t columns = a.n_panels * kPanelWidth;
  int64_t x = 0;
  if (a.rows <= kRowsOf<4> || kRowsOf<4> == kTileRows) {
    for (; x + 4 * kLanes <= columns; x += 4 * kLanes) score_strip<T, 4>(a, x);
  }
  for (; x < columns; x += 2 * kLanes) score_strip<T, 2>(a, x);
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_XSIMD_SCORE_TILE_H_
