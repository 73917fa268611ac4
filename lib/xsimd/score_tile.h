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
  const T* mid;   // the second batch of three
  const T* high;  // the second half, or the third batch of three: of the same panel or of the next
  int64_t dim;
  float scale;
  float* s;
  int64_t lds;
  PrefetchPlan prefetch;
};
/// Dimensions that lie side by side in a panel: a step of a tile's loop.
template <class T>
constexpr int64_t kStepDims = std::is_same_v<T, bf16> ? 2 : 1;
template <class T, int64_t kBatches>
constexpr int64_t kStepBytes = kBatches * kLanes * kStepDims<T> * static_cast<int64_t>(sizeof(T));

template <class T, int64_t kRows, int64_t kBatches>
__attribute__((noinline)) void score_register_tile(const ScoreTileArguments<T>& a) {
  constexpr bool kPairs = std::is_same_v<T, bf16>;
  [[maybe_unused]] constexpr int64_t kHalf = kBatches >= 4 ? kBatches / 2 : kBatches;
  Registers<kRows * kBatches> acc;
  unroll<kRows * kBatches>([&](auto i) SIMDATTN_LAMBDA { reg<i>(acc) = Floats(0.0f); });
  const float* q = a.q;
  Cursor<const T> low(a.low), mid(a.mid), high(a.high);
  const int64_t ldq = a.ldq;
  const int64_t dim = a.dim;
  uintptr_t next = a.prefetch.first;
  const auto column = [](const T* l, [[maybe_unused]] const T* m, const T* h, auto c) SIMDATTN_LAMBDA {
    if constexpr (kBatches == 3) return c == 0 ? l : c == 1 ? m : h;
    return c < kHalf ? l + c * kStepDims<T> * kLanes : h + (c - kHalf) * kStepDims<T> * kLanes;
  };
  const auto add = [&](const float* x, const auto& keys) SIMDATTN_LAMBDA {
    Registers<kBatches> k;
    unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA { reg<c>(k) = keys(c); });
    add_outer_product<kRows, kBatches>(x, ldq, k, acc);
  };
  // The largest tiles leave no registers for pairs: they are loaded twice, which the compiler must not notice.
  [[maybe_unused]] constexpr bool kReloads = !kAvx512 && kRows * kBatches > (!kX86 ? 16 : kBatches == 4 ? 4 : 8);
  const auto step = [&]() SIMDATTN_LAMBDA {
    if constexpr (kPairs && kBatches == 3) {
      add(q, [&](auto c) SIMDATTN_LAMBDA { return load_even(raw(column(low.get(), mid.get(), high.get(), c))); });
      add(q + 1, [&](auto c) SIMDATTN_LAMBDA { return load_odd(raw(column(low.get(), mid.get(), high.get(), c))); });
    } else if constexpr (kPairs) {
      Registers<kBatches, Bits32> pairs;
      unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA {
        const Bits32 both = load_pairs(column(low.get(), mid.get(), high.get(), c));
        reg<c>(pairs) = kAvx512 ? in_register(both) : both;  // 16 registers do not hold the pairs of every tile
      });
      add(q, [&](auto c) SIMDATTN_LAMBDA { return even_of(reg<c>(pairs)); });
      if constexpr (kReloads) {
        const T* l = low.get();
        const T* h = high.get();
        asm("" : "+r"(l), "+r"(h));
        unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA { reg<c>(pairs) = load_pairs(column(l, mid.get(), h, c)); });
      }
      add(q + 1, [&](auto c) SIMDATTN_LAMBDA { return odd_of(reg<c>(pairs)); });
    } else {
      add(q, [&](auto c) SIMDATTN_LAMBDA { return load(column(low.get(), mid.get(), high.get(), c)); });
    }
    q += kStepDims<T>;
    low += kStepDims<T> * kPanelWidth;
    if constexpr (kBatches == 3) mid += kStepDims<T> * kPanelWidth;
    high += kStepDims<T> * kPanelWidth;
  };
  const int64_t steps = dim / kStepDims<T>;
  const int64_t prefetch_steps = smaller(a.prefetch.count, steps);
  int64_t i = 0;
  for (; i < prefetch_steps; ++i) {
    prefetch<kStepBytes<T, kBatches>>(next);
    next += kStepBytes<T, kBatches>;
    step();
  }
  for (; i < steps; ++i) step();
  if constexpr (kPairs) {
    if (dim % 2 != 0)
      add(q, [&](auto c) SIMDATTN_LAMBDA { return even_of(load_pairs(column(low.get(), mid.get(), high.get(), c))); });
  }

  const Floats scale(a.scale);
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    unroll<kBatches>([&](auto c)
                         SIMDATTN_LAMBDA { store(reg<r * kBatches + c>(acc) * scale, a.s + r * a.lds + c * kLanes); });
  });
}

template <class T>
constexpr int64_t panel_bytes(int64_t dim) {
  return (dim + kStepDims<T> - 1) / kStepDims<T> * kStepDims<T> * kPanelWidth * static_cast<int64_t>(sizeof(T));
}
/// Bytes that lie between what is used and what is prefetched, at least: an f32 panel of 128 dimensions.
constexpr int64_t kAhead = 16384;

/// What the tile of rows [first, first + rows) and kBatches batches from column x on prefetches: its share of the panels
/// to come.
template <class T, int64_t kBatches>
SIMDATTN_INLINE PrefetchPlan panels_to_come(const ScoreTile& a, int64_t x, int64_t first, int64_t rows) {
  const int64_t panels = (kBatches * kLanes + kPanelWidth - 1) / kPanelWidth;
  const int64_t bytes = panel_bytes<T>(a.dim);
  const int64_t ahead = (kAhead + panels * bytes - 1) / (panels * bytes) * panels;
  const int64_t offset = (x / kPanelWidth + ahead) * a.panel_stride + bytes * (x % kPanelWidth) / kPanelWidth;
  const int64_t steps = (a.dim + kStepDims<T> - 1) / kStepDims<T>;
  const int64_t from = first * steps / a.rows;
  const int64_t to = (first + rows) * steps / a.rows;
  constexpr int64_t kPitch = kStepBytes<T, kBatches>;
  return {reinterpret_cast<uintptr_t>(a.panels) + static_cast<uintptr_t>(offset + from * kPitch), kPitch, to - from};
}

/// All rows against kBatches batches of columns from column `x` on.
template <class T, int64_t kBatches>
SIMDATTN_INLINE void score_strip(const ScoreTile& a, int64_t x) {
  const auto column = [&](int64_t c) SIMDATTN_LAMBDA {
    const char* panel = static_cast<const char*>(a.panels) + c / kPanelWidth * a.panel_stride;
    return reinterpret_cast<const T*>(panel) + c % kPanelWidth * kStepDims<T>;
  };
  const T* low = column(x);
  const T* mid = column(x + kLanes);
  const T* high = column(x + (kBatches == 3 ? 2 : kBatches / 2) * kLanes);
  const float* q = static_cast<const float*>(a.q);
  const int64_t ldq = a.q_stride / static_cast<int64_t>(sizeof(float));
  for (RowTiles t(a.rows, kTileRows); t.first < a.rows; t.next()) {
    const int64_t first = t.first;
    const int64_t rows = t.rows;
    const ScoreTileArguments<T> arguments = {
        q + first * ldq,
        ldq,
        low,
        mid,
        high,
        a.dim,
        a.scale,
        a.s + first * a.lds + x,
        a.lds,
        a.stream ? panels_to_come<T, kBatches>(a, x, first, rows) : PrefetchPlan()};
    with_rows<kRowsOf<kBatches>>(rows, [&](auto r) SIMDATTN_LAMBDA { score_register_tile<T, r, kBatches>(arguments); });
  }
}

template <class T>
void score_tile(const ScoreTile& a) {
  const int64_t columns = a.n_panels * kPanelWidth;
  int64_t x = 0;
  // A tile across two panels prefetches as if panels lay side by side.
  const bool side_by_side = a.panel_stride == panel_bytes<T>(a.dim);
  if ((a.rows <= kRowsOf<4> || kRowsOf<4> == kTileRows) && (side_by_side || !a.stream || 4 * kLanes <= kPanelWidth)) {
    for (; x + 4 * kLanes <= columns; x += 4 * kLanes) score_strip<T, 4>(a, x);
  }
  if constexpr (kThreeBatches) {
    if (in_tiles_of_three_or_four(a.rows) && (side_by_side || !a.stream)) {
      // Four batches are left to two tiles of two.
      for (; x + 3 * kLanes <= columns && columns - x != 4 * kLanes; x += 3 * kLanes) score_strip<T, 3>(a, x);
    }
  }
  for (; x < columns; x += 2 * kLanes) score_strip<T, 2>(a, x);
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_XSIMD_SCORE_TILE_H_
