// Scores of query rows against key panels. Lanes are keys, so a score is a chain of fma over the dimensions and needs
// no sum across lanes.
//
// score_tile() is the slot. It cuts the columns into strips of two, three or four batches and the rows into register
// tiles; score_register_tile() is one such tile, which adds an outer product for each dimension (register_tile.h).
#pragma once

#include "lib/kernels/register_tile.h"

namespace simdattn {
namespace {

/// The arguments of a register tile. Its batches of columns may lie in two panels, so three pointers say where they
/// begin.
struct ScoreTileArguments {
  const float* q;
  int64_t ldq;
  const char* low;   // of two or four batches the first half; of three the first one
  const char* mid;   // of three batches the second one
  const char* high;  // of two or four batches the second half; of three the third one
  int64_t dim;
  float scale;
  float* s;
  int64_t lds;
  PrefetchPlan prefetch;
  const float* scales = nullptr;  // of keys of narrow types, from column 0 on
  int64_t column = 0;             // the tile's first one
};
using ScoreTileFunction = void(const ScoreTileArguments&);
/// Dimensions that lie side by side in a panel. One step of a tile's loop takes them.
template <class T>
constexpr int64_t kStepDims = std::is_same_v<T, bf16> ? 2 : 1;
template <class T>
constexpr int64_t kLaneBytes = kStepDims<T> * static_cast<int64_t>(sizeof(T));  // bytes of a key in a step
template <class T, int64_t kBatches>
constexpr int64_t kStepBytes = kBatches * kLanes * kLaneBytes<T>;

/// The batches of columns of a tile, where its loop is.
template <class T, int64_t kBatches>
struct TileColumns {
  Cursor<const T> low, mid, high;

  SIMDATTN_INLINE TileColumns(const char* l, const char* m, const char* h)
      : low(reinterpret_cast<const T*>(l)), mid(reinterpret_cast<const T*>(m)), high(reinterpret_cast<const T*>(h)) {}
  SIMDATTN_INLINE explicit TileColumns(const ScoreTileArguments& a) : TileColumns(a.low, a.mid, a.high) {}
  /// Batch c, from the places of `low` and `high`.
  template <class C>
  SIMDATTN_INLINE const T* at(const T* l, const T* h, C c) const {
    if constexpr (kBatches == 3) return c == 0 ? l : c == 1 ? mid.get() : h;
    constexpr int64_t kHalf = kBatches * kLanes > kPanelWidth ? kBatches / 2 : kBatches;
    return c < kHalf ? l + c * kStepDims<T> * kLanes : h + (c - kHalf) * kStepDims<T> * kLanes;
  }
  template <class C>
  SIMDATTN_INLINE const T* at(C c) const {
    return at(low.get(), high.get(), c);
  }
  SIMDATTN_INLINE void step(int64_t n = 1) {
    low += n * kStepDims<T> * kPanelWidth;
    if constexpr (kBatches == 3) mid += n * kStepDims<T> * kPanelWidth;
    if constexpr (kBatches == 3 || kBatches * kLanes > kPanelWidth) high += n * kStepDims<T> * kPanelWidth;
  }
};
/// The scores of a tile from its sums. `a` has scale, s and lds.
template <int64_t kRows, int64_t kBatches>
SIMDATTN_INLINE void store_scores(Registers<kRows * kBatches>& acc, const auto& a) {
  const Floats scale(a.scale);
  each_sum<kRows, kBatches>([&](auto r, auto c, auto i)
                                SIMDATTN_LAMBDA { store(reg<i>(acc) * scale, a.s + r * a.lds + c * kLanes); });
}

/// Accumulators beside which there are registers for the pairs of bf16 of kBatches batches.
template <int64_t kBatches>
constexpr int64_t kMostSumsBesidePairs = kAvx512         ? 32
                                         : !kX86         ? 16
                                         : kBatches == 4 ? 4
                                                         : 8;

template <class T, int64_t kRows, int64_t kBatches>
__attribute__((noinline)) void score_register_tile(const ScoreTileArguments& a) {
  constexpr bool kPairs = std::is_same_v<T, bf16>;
  Registers<kRows * kBatches> acc;
  clear(acc);
  const float* q = a.q;
  TileColumns<T, kBatches> columns(a);
  const int64_t ldq = a.ldq;
  const int64_t dim = a.dim;
  uintptr_t next = a.prefetch.first;
  const auto add = [&](const float* x, const auto& keys) SIMDATTN_LAMBDA {
    Registers<kBatches> k;
    unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA { reg<c>(k) = keys(c); });
    add_outer_product<kRows, kBatches>(x, ldq, k, acc);
  };
  // The largest tiles leave no registers for pairs of bf16, which are loaded twice: hide() keeps the loads apart.
  [[maybe_unused]] constexpr bool kReloads = kRows * kBatches > kMostSumsBesidePairs<kBatches>;
  // Nor for the zeros of even_of() and odd_of().
  [[maybe_unused]] constexpr bool kShifts = !kX86 && kReloads;
  const auto step = [&]() SIMDATTN_LAMBDA {
    if constexpr (kPairs && kBatches == 3) {
      add(q, [&](auto c) SIMDATTN_LAMBDA { return load_even(raw(columns.at(c))); });
      add(q + 1, [&](auto c) SIMDATTN_LAMBDA { return load_odd(raw(columns.at(c))); });
    } else if constexpr (kPairs) {
      Registers<kBatches, Bits32> pairs;
      unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA {
        const Bits32 both = load_pairs(columns.at(c));
        reg<c>(pairs) = kAvx512 ? in_register(both) : both;  // 16 registers do not hold the pairs of every tile
      });
      add(q, [&](auto c) SIMDATTN_LAMBDA { return kShifts ? shifted_even_of(reg<c>(pairs)) : even_of(reg<c>(pairs)); });
      if constexpr (kReloads) {
        const T *l = columns.low.get(), *h = columns.high.get();
        hide(l), hide(h);
        unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA { reg<c>(pairs) = load_pairs(columns.at(l, h, c)); });
      }
      add(q + 1,
          [&](auto c) SIMDATTN_LAMBDA { return kShifts ? shifted_odd_of(reg<c>(pairs)) : odd_of(reg<c>(pairs)); });
    } else {
      add(q, [&](auto c) SIMDATTN_LAMBDA { return load(columns.at(c)); });
    }
    q += kStepDims<T>;
    columns.step();
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
    if (dim % 2 != 0) add(q, [&](auto c) SIMDATTN_LAMBDA { return even_of(load_pairs(columns.at(c))); });
  }
  store_scores<kRows, kBatches>(acc, a);
}

/// Rows of the largest tile of four vectors, where few rows have tiles of their own. Tiles of two have kMostScoreRows.
constexpr int64_t kWideRows = 2;
/// score(tile) of kMostScoreRows rows each, then of at most kWideRows: three are two and one, for which L1 still has
/// the keys.
template <class F>
SIMDATTN_INLINE void score_in_parts(ScoreTile a, const F& score) {
  for (int64_t rest = a.rows; rest > 0; rest -= a.rows) {
    a.rows = rest >= kMostScoreRows ? kMostScoreRows : smaller(rest, kWideRows);
    score(a);
    a.q = static_cast<const char*>(a.q) + a.rows * a.q_stride;
    a.s += a.rows * a.lds;
    a.fetch = Fetch::kNone;
  }
}

/// What depends on the type of the keys: register tiles, by batches. All else is one body for all types.
using ScoreTiles = TilesByRows<ScoreTileFunction>;
struct ScoreStorage {
  int64_t lane_bytes;
  ScoreTiles two, three, four;
};
template <class T, int64_t kBatches, int64_t kMost = kRowsOf<kBatches>>
constexpr ScoreTiles kScoreTiles =
    tiles_by_rows<ScoreTileFunction, kMost>([](auto rows) { return score_register_tile<T, rows, kBatches>; });
template <class T>
constexpr ScoreStorage kScoreStorage = {kLaneBytes<T>, kScoreTiles<T, 2>, kScoreTiles<T, 3, kRowsOfThree>,
                                        kScoreTiles<T, 4>};

/// Least distance in bytes between what is used and what is prefetched: an f32 panel of 128 dimensions.
constexpr int64_t kAhead = 16384;

/// The share of the panels to come that the tile of rows [first, first + rows), `batches` from column x on, prefetches.
SIMDATTN_SHARED PrefetchPlan panels_to_come(const ScoreTile& a, int64_t lane_bytes, int64_t steps, int64_t batches,
                                            int64_t x, int64_t first, int64_t rows) {
  const int64_t panels = (batches * kLanes + kPanelWidth - 1) / kPanelWidth;
  const int64_t bytes = steps * kPanelWidth * lane_bytes;
  const int64_t step_bytes = batches * kLanes * lane_bytes;
  const int64_t ahead = (kAhead + panels * bytes - 1) / (panels * bytes) * panels;
  const int64_t offset = (x / kPanelWidth + ahead) * a.panel_stride + bytes * (x % kPanelWidth) / kPanelWidth;
  const int64_t from = share_of_rows(first, a.rows, steps);
  const int64_t to = share_of_rows(first + rows, a.rows, steps);
  return {reinterpret_cast<uintptr_t>(a.panels) + static_cast<uintptr_t>(offset + from * step_bytes), step_bytes,
          to - from};
}

/// The slot, for keys of any type. `steps`: those of a tile's loop, in a panel.
SIMDATTN_SHARED void score_tile(const ScoreTile& a, const ScoreStorage& type, int64_t steps) {
  const int64_t columns = a.n_panels * kPanelWidth;
  const int64_t lane_bytes = type.lane_bytes;
  const float* const q = static_cast<const float*>(a.q);
  const int64_t ldq = a.q_stride / static_cast<int64_t>(sizeof(float));
  int64_t x = 0;
  // All rows against `batches` of columns.
  const auto strip = [&](int64_t batches, const ScoreTiles& tiles) SIMDATTN_LAMBDA {
    const auto column = [&](int64_t c) SIMDATTN_LAMBDA {
      return static_cast<const char*>(a.panels) + c / kPanelWidth * a.panel_stride + c % kPanelWidth * lane_bytes;
    };
    const char* const low = column(x);
    const char* const mid = column(x + kLanes);
    const char* const high = column(x + (batches == 3 ? 2 : batches / 2) * kLanes);
    for (RowTiles t(a.rows, tiles.most); t.first < a.rows; t.next()) {
      tiles.of[t.rows - 1](
          {q + t.first * ldq, ldq, low, mid, high, a.dim, a.scale, a.s + t.first * a.lds + x, a.lds,
           a.fetches() ? panels_to_come(a, lane_bytes, steps, batches, x, t.first, t.rows) : PrefetchPlan(), a.scales,
           x});
    }
    x += batches * kLanes;
  };
  // A tile across two panels prefetches as if panels lay side by side. Scales behind the codes of a panel are an eighth
  // of these at most.
  const int64_t panel = steps * kPanelWidth * lane_bytes;
  const bool side_by_side = a.panel_stride >= panel && a.panel_stride <= panel + panel / 8;
  if ((a.rows <= type.four.most || type.four.most == type.two.most) &&
      (side_by_side || !a.fetches() || 4 * kLanes <= kPanelWidth)) {
    while (x + 4 * kLanes <= columns) strip(4, type.four);
  }
  if (type.three.most > 0 && in_tiles_of_three_or_four(a.rows) && (side_by_side || !a.fetches())) {
    // Four batches are left to two tiles of two.
    while (x + 3 * kLanes <= columns && columns - x != 4 * kLanes) strip(3, type.three);
  }
  while (x < columns) strip(2, type.two);
}
template <class T>
void score_tile(const ScoreTile& a) {
  score_tile(a, kScoreStorage<T>, (a.dim + kStepDims<T> - 1) / kStepDims<T>);
}

}  // namespace
}  // namespace simdattn
