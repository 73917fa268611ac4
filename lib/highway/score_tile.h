// Scores of query rows against key panels: lanes are keys, so a score is a chain of fma over the dimension and needs no
// sum across lanes.
#ifndef SIMDATTN_LIB_HIGHWAY_SCORE_TILE_H_
#define SIMDATTN_LIB_HIGHWAY_SCORE_TILE_H_

#include "hwy/highway.h"
#include "lib/highway/register_tile.h"

namespace simdattn {
namespace {

/// How far ahead panels are prefetched at least: an f32 panel of 128 dimensions.
constexpr int64_t kPrefetchBytes = 16384;

struct TileArguments {
  const float* q;
  int64_t ldq;
  const char* low;   // the first half of the tile's columns
  const char* mid;   // the second vector of three
  const char* high;  // the second half, or the third vector of three: of the same panel or of the next
  int64_t dim;
  float scale;
  float* s;
  int64_t lds;
  PrefetchPlan prefetch;  // kStepBytes<T, kVecs> a step
};
using TileFunction = void(const TileArguments&);

/// Dimensions that lie side by side in a panel: the steps of a tile's loop.
template <class T>
constexpr int64_t kStepDims = std::is_same_v<T, bf16> ? 2 : 1;
template <class T>
constexpr int64_t kLaneBytes = kStepDims<T> * static_cast<int64_t>(sizeof(T));  // in a step
constexpr int64_t vectors_of_lanes(int64_t vecs) { return vecs * static_cast<int64_t>(hn::MaxLanes(TileTag())); }
template <class T, size_t kVecs>
constexpr int64_t kStepBytes = vectors_of_lanes(kVecs) * kLaneBytes<T>;

template <class T, size_t kRows, size_t kVecs>
HWY_NOINLINE void Tile(const TileArguments& a) {
  const TileTag d;
  WithRegisters(d, [&](const Accumulators& acc, const Columns& k) SIMDATTN_LAMBDA {
    const int64_t n = static_cast<int64_t>(hn::Lanes(d));
    const float* q = a.q;
    const auto columns = [](const char* p) { return Cursor<const T>(reinterpret_cast<const T*>(p)); };
    Cursor<const T> low = columns(a.low), mid = columns(a.mid), high = columns(a.high);
    const int64_t ldq = a.ldq;
    const int64_t dim = a.dim;
    const auto column = [&](auto c) SIMDATTN_LAMBDA {
      constexpr int64_t kColumn = c;
      if constexpr (kVecs == 3) return (kColumn == 0 ? low : kColumn == 1 ? mid : high).get();
      constexpr int64_t kHalf = kVecs >= 4 ? kVecs / 2 : kVecs;
      return kColumn < kHalf ? low.get() + kColumn * kStepDims<T> * n
                             : high.get() + (kColumn - kHalf) * kStepDims<T> * n;
    };
    uintptr_t line = a.prefetch.first;
    const int64_t prefetch_pitch = a.prefetch.pitch;
    const int64_t prefetch_end = a.prefetch.count * kStepDims<T>;
    for (int64_t i = 0; i < dim; i += kStepDims<T>) {
      if (i < prefetch_end) {
        for (uintptr_t byte = 0; byte < kStepBytes<T, kVecs>; byte += 64)
          __builtin_prefetch(reinterpret_cast<const char*>(line + byte), 0, 2);
        line += static_cast<uintptr_t>(prefetch_pitch);
      }
      if constexpr (std::is_same_v<T, bf16> && kVecs == 3) {
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA { Get<c>(k) = LoadEven(d, column(c)); });
        AddOuterProduct<kRows, kVecs>(d, q, ldq, k, acc);
        if (i + 1 == dim) break;
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA { Get<c>(k) = LoadOdd(d, column(c)); });
        AddOuterProduct<kRows, kVecs>(d, q + 1, ldq, k, acc);
      } else if constexpr (std::is_same_v<T, bf16>) {
        static_assert(kVecs <= 4);
        // The largest tile leaves no registers for the pairs; a second load is cheaper than a place on the stack.
        constexpr bool kReloads =
            (HWY_ARCH_ARM_A64 && kRows * kVecs > 16) || (HWY_TARGET == HWY_AVX2 && kRows * kVecs > 8);
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
          Get<4 + c>(k) = LoadPairs(d, column(c));
          Get<c>(k) = EvenOf(d, Get<4 + c>(k));
        });
        AddOuterProduct<kRows, kVecs>(d, q, ldq, k, acc);
        if (i + 1 == dim) break;
        if constexpr (kReloads) {
          hide(low), hide(high);  // or the compiler would see that it has loaded them already
          ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA { Get<4 + c>(k) = LoadPairs(d, column(c)); });
        }
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA { Get<c>(k) = OddOf(d, Get<4 + c>(k)); });
        AddOuterProduct<kRows, kVecs>(d, q + 1, ldq, k, acc);
      } else {
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA { Get<c>(k) = LoadWide(d, column(c)); });
        AddOuterProduct<kRows, kVecs>(d, q, ldq, k, acc);
      }
      q += kStepDims<T>;
      if constexpr (kRows > 1 && HWY_MAX_BYTES == 64) hide(q);
      low += kStepDims<T> * kPanelWidth;
      if constexpr (kVecs == 3) mid += kStepDims<T> * kPanelWidth;
      high += kStepDims<T> * kPanelWidth;
    }
    const TileVec scale = hn::Set(d, a.scale);
    ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
      float* s = a.s + static_cast<int64_t>(r) * a.lds;
      ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
        hn::StoreU(hn::Mul(Get<r * kVecs + c>(acc), scale), d, s + static_cast<int64_t>(c) * n);
      });
    });
  });
}

/// What depends on the type of the keys. All else is one body for all types.
struct Storage {
  int64_t lane_bytes;
  TileFunction* const* tiles[5];  // by vectors, of 1, 2, ... rows; by one vector of kTileRows alone, or null
};
template <class T, size_t kVecs, class Rows = std::make_index_sequence<static_cast<size_t>(kRowsOf<kVecs>)>>
struct TilesOf;
template <class T, size_t kVecs, size_t... kRows>
struct TilesOf<T, kVecs, std::index_sequence<kRows...>> {
  static constexpr TileFunction* kTiles[] = {Tile<T, kRows + 1, kVecs>...};
};
template <class T>
constexpr TileFunction* const* TilesOfThree() {
  if constexpr (kThreeVectors) return TilesOf<T, 3>::kTiles;
  return nullptr;
}
/// For half a panel that is one vector. Packed panels are f32; of rows that see different keys most tiles have kTileRows.
template <class T>
constexpr TileFunction* const* TilesOfOne() {
  if constexpr (vectors_of_lanes(1) == kHalfPanel && std::is_same_v<T, float>)
    return TilesOf<T, 1, std::index_sequence<kTileRows - 1>>::kTiles;
  return nullptr;
}
template <class T>
constexpr Storage kStorage = {
    kLaneBytes<T>, {nullptr, TilesOfOne<T>(), TilesOf<T, 2>::kTiles, TilesOfThree<T>(), TilesOf<T, 4>::kTiles}};

/// What the tile of rows [first, first + rows) and columns [x, x + vecs vectors) prefetches: its share of the panels to
/// come, which the tiles of the present ones divide among themselves in the order in which they run.
HWY_INLINE PrefetchPlan PanelsToCome(const ScoreTile& a, int64_t lane_bytes, int64_t steps, int64_t vecs, int64_t x,
                                     int64_t first, int64_t rows) {
  const int64_t width = vecs * static_cast<int64_t>(hn::Lanes(TileTag()));
  const int64_t panels = (width + kPanelWidth - 1) / kPanelWidth;
  const int64_t bytes = steps * kPanelWidth * lane_bytes;
  const int64_t step_bytes = vectors_of_lanes(vecs) * lane_bytes;
  const int64_t ahead = (kPrefetchBytes + panels * bytes - 1) / (panels * bytes) * panels;
  const int64_t from = share_of_rows(first, a.rows, steps);
  const int64_t to = share_of_rows(first + rows, a.rows, steps);
  const int64_t offset =
      (x / kPanelWidth + ahead) * a.panel_stride + bytes * (x % kPanelWidth) / kPanelWidth + from * step_bytes;
  return {address_at(static_cast<const char*>(a.panels), offset), step_bytes, to - from};
}

/// `steps` in a panel.
SIMDATTN_SHARED void Score(const ScoreTile& a, const Storage& type, int64_t steps) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  const bool half_last = a.half_last && (n < kHalfPanel || (type.tiles[1] != nullptr && a.rows % kTileRows == 0));
  const int64_t columns = a.n_panels * kPanelWidth - (half_last ? kHalfPanel : 0);
  const int64_t lane_bytes = type.lane_bytes;
  const float* const q = static_cast<const float*>(a.q);
  const int64_t ldq = a.q_stride / static_cast<int64_t>(sizeof(float));
  int64_t x = 0;
  // All rows against `vecs` vectors of columns.
  const auto strip = [&](int64_t vecs) SIMDATTN_LAMBDA {
    const auto column = [&](int64_t c) {
      return static_cast<const char*>(a.panels) + c / kPanelWidth * a.panel_stride + c % kPanelWidth * lane_bytes;
    };
    const char* const low = column(x);
    const char* const mid = column(x + n);
    const char* const high = column(x + (vecs == 3 ? 2 : vecs / 2) * n);
    TileFunction* const* const tiles = type.tiles[vecs];
    for (RowTiles t(a.rows, kTileRows); t.first < a.rows; t.next()) {
      tiles[vecs == 1 ? 0 : t.rows - 1](
          {q + t.first * ldq, ldq, low, mid, high, a.dim, a.scale, a.s + t.first * a.lds + x, a.lds,
           a.fetches() ? PanelsToCome(a, lane_bytes, steps, vecs, x, t.first, t.rows) : PrefetchPlan()});
    }
    x += vecs * n;
  };
  // A tile across two panels prefetches as if panels lay side by side.
  const bool contiguous = a.panel_stride == steps * kPanelWidth * lane_bytes;
  if ((a.rows <= kRowsOf<4> || kRowsOf<4> == kTileRows) && (contiguous || !a.fetches() || 4 * n <= kPanelWidth)) {
    while (x + 4 * n <= columns) strip(4);
  }
  if (kThreeVectors && in_tiles_of_three_or_four(a.rows) && (contiguous || !a.fetches())) {
    // Four vectors are left to two tiles of two.
    while (x + 3 * n <= columns && columns - x != 4 * n) strip(3);
  }
  while (x + 2 * n <= columns) strip(2);
  if (x < columns) strip(1);
}
template <class T>
HWY_INLINE void Score(const ScoreTile& a) {
  Score(a, kStorage<T>, (a.dim + kStepDims<T> - 1) / kStepDims<T>);
}

void ScoreTileF32(const ScoreTile& a) { Score<float>(a); }
void ScoreTileBF16(const ScoreTile& a) { Score<bf16>(a); }
void ScoreTileF16(const ScoreTile& a) { Score<f16>(a); }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_SCORE_TILE_H_
