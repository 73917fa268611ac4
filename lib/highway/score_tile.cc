// Scores of query rows against key panels: lanes are keys, so a score is a chain of fma over the dimension and needs no
// sum across lanes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/highway/score_tile.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "lib/highway/register_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {
namespace {

/// Distance to the lines that are prefetched while a panel is read: an f32 panel of 128 dimensions.
constexpr int64_t kPrefetchBytes = 16384;

template <class T>
struct TileArguments {
  const float* q;
  int64_t ldq;
  const T* low;   // the first half of the tile's columns
  const T* high;  // and the second half: of the same panel or of the next
  int64_t dim;
  float scale;
  float* s;
  int64_t lds;
  int64_t prefetch_from;  // dimensions [from, to) prefetch what lies kPrefetchBytes further on
  int64_t prefetch_to;
};

template <class T, size_t kRows, size_t kVecs>
HWY_NOINLINE void Tile(const TileArguments<T>& a) {
  // Dimensions that lie side by side in a panel.
  constexpr int64_t kGroup = std::is_same_v<T, bf16> ? 2 : 1;
  const TileTag d;
  WithRegisters(d, [&](const Accumulators& acc, const Columns& k) HWY_ATTR {
    const int64_t n = static_cast<int64_t>(hn::Lanes(d));
    const float* q = a.q;
    const T* low = a.low;
    const T* high = a.high;
    const int64_t ldq = a.ldq;
    const int64_t dim = a.dim;
    const int64_t prefetch_from = a.prefetch_from;
    const uint64_t prefetch_count = static_cast<uint64_t>(a.prefetch_to - prefetch_from);
    const auto column = [&](auto c) HWY_ATTR {
      constexpr int64_t kColumn = c;
      constexpr int64_t kHalf = kVecs >= 4 ? kVecs / 2 : kVecs;
      return kColumn < kHalf ? low + kColumn * kGroup * n : high + (kColumn - kHalf) * kGroup * n;
    };
    for (int64_t i = 0; i < dim; i += kGroup) {
      if (static_cast<uint64_t>(i - prefetch_from) < prefetch_count) {
        // Half of the columns at a time.
        constexpr size_t kBytes = kVecs / 2 * hn::MaxLanes(TileTag()) * kGroup * sizeof(T);
        for (size_t line = 0; line < kBytes; line += 64) {
          __builtin_prefetch(reinterpret_cast<const char*>(low) + kPrefetchBytes + line);
          __builtin_prefetch(reinterpret_cast<const char*>(high) + kPrefetchBytes + line);
        }
      }
      if constexpr (std::is_same_v<T, bf16>) {
        static_assert(kVecs <= 4);
        ForEach<kVecs>([&](auto c) HWY_ATTR {
          Get<4 + c>(k) = LoadPairs(d, column(c));
          Get<c>(k) = EvenOf(d, Get<4 + c>(k));
        });
        AddOuterProduct<kRows, kVecs>(d, q, ldq, k, acc);
        if (i + 1 == dim) break;
        ForEach<kVecs>([&](auto c) HWY_ATTR { Get<c>(k) = OddOf(d, Get<4 + c>(k)); });
        AddOuterProduct<kRows, kVecs>(d, q + 1, ldq, k, acc);
      } else {
        ForEach<kVecs>([&](auto c) HWY_ATTR { Get<c>(k) = LoadWide(d, column(c)); });
        AddOuterProduct<kRows, kVecs>(d, q, ldq, k, acc);
      }
      q += kGroup;
      low += kGroup * kPanelWidth;
      high += kGroup * kPanelWidth;
    }
    const TileVec scale = hn::Set(d, a.scale);
    ForEach<kRows>([&](auto r) HWY_ATTR {
      float* s = a.s + static_cast<int64_t>(r) * a.lds;
      ForEach<kVecs>([&](auto c) HWY_ATTR {
        hn::StoreU(hn::Mul(Get<r * kVecs + c>(acc), scale), d, s + static_cast<int64_t>(c) * n);
      });
    });
  });
}

/// All rows against kVecs vectors of columns from column `x` on.
template <class T, size_t kVecs>
HWY_INLINE void Strip(const ScoreTile& a, int64_t x) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  const auto column = [&](int64_t c) {
    const int64_t side_by_side = std::is_same_v<T, bf16> ? 2 : 1;
    return static_cast<const T*>(a.panels) + c / kPanelWidth * a.panel_stride + c % kPanelWidth * side_by_side;
  };
  const T* low = column(x);
  const T* high = column(x + static_cast<int64_t>(kVecs) / 2 * n);
  ForEachRowTile(a.rows, [&](int64_t first, int64_t rows) {
    // Every row tile of a strip fetches its share of the lines.
    const int64_t from = a.stream ? first * a.dim / a.rows & ~int64_t{1} : 0;
    const int64_t to = a.stream ? (first + rows) * a.dim / a.rows & ~int64_t{1} : 0;
    const TileArguments<T> arguments = {a.q + first * a.ldq,     a.ldq, low,  high, a.dim, a.scale,
                                        a.s + first * a.lds + x, a.lds, from, to};
    WithRows<kRowsOf<kVecs>>(rows, [&](auto r) { Tile<T, r, kVecs>(arguments); });
  });
}

template <class T>
HWY_INLINE void Score(const ScoreTile& a) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  const int64_t columns = a.n_panels * kPanelWidth;
  int64_t x = 0;
  if (a.rows <= kRowsOf<4> || kRowsOf<4> == kTileRows) {
    for (; x + 4 * n <= columns; x += 4 * n) Strip<T, 4>(a, x);
  }
  for (; x < columns; x += 2 * n) Strip<T, 2>(a, x);
}

}  // namespace

void ScoreTileF32(const ScoreTile& a) { Score<float>(a); }
void ScoreTileBF16(const ScoreTile& a) { Score<bf16>(a); }
void ScoreTileF16(const ScoreTile& a) { Score<f16>(a); }

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();
