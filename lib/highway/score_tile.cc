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

/// How far ahead panels are prefetched at least: an f32 panel of 128 dimensions.
constexpr int64_t kPrefetchBytes = 16384;

template <class T>
struct TileArguments {
  const float* q;
  int64_t ldq;
  const T* low;   // the first half of the tile's columns
  const T* mid;   // the second vector of three
  const T* high;  // the second half, or the third vector of three: of the same panel or of the next
  int64_t dim;
  float scale;
  float* s;
  int64_t lds;
  PrefetchPlan prefetch;  // kStepBytes<T, kVecs> a step
};

/// Dimensions that lie side by side in a panel: the steps of a tile's loop.
template <class T>
constexpr int64_t kStepDims = std::is_same_v<T, bf16> ? 2 : 1;
template <class T, size_t kVecs>
constexpr int64_t kStepBytes = static_cast<int64_t>(kVecs * hn::MaxLanes(TileTag()) * sizeof(T)) * kStepDims<T>;

/// Where a and b point to, hidden from the compiler.
template <class T>
HWY_INLINE void Hide(Cursor<T>& a, Cursor<T>& b) {
  T* p = a.get();
  T* q = b.get();
  __asm__("" : "+r"(p), "+r"(q));
  a = Cursor<T>(p);
  b = Cursor<T>(q);
}

template <class T, size_t kRows, size_t kVecs>
HWY_NOINLINE void Tile(const TileArguments<T>& a) {
  const TileTag d;
  WithRegisters(d, [&](const Accumulators& acc, const Columns& k) SIMDATTN_LAMBDA {
    const int64_t n = static_cast<int64_t>(hn::Lanes(d));
    const float* q = a.q;
    Cursor<const T> low(a.low), mid(a.mid), high(a.high);
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
          Hide(low, high);  // or the compiler would see that it has loaded them already
          ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA { Get<4 + c>(k) = LoadPairs(d, column(c)); });
        }
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA { Get<c>(k) = OddOf(d, Get<4 + c>(k)); });
        AddOuterProduct<kRows, kVecs>(d, q + 1, ldq, k, acc);
      } else {
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA { Get<c>(k) = LoadWide(d, column(c)); });
        AddOuterProduct<kRows, kVecs>(d, q, ldq, k, acc);
      }
      q += kStepDims<T>;
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

template <class T>
HWY_INLINE int64_t PanelBytes(int64_t dim) {
  return (dim + kStepDims<T> - 1) / kStepDims<T> * kStepDims<T> * kPanelWidth * static_cast<int64_t>(sizeof(T));
}

/// What the tile of rows [first, first + rows) and columns [x, x + kVecs vectors) prefetches: its share of the panels to
/// come, which the tiles of the present ones divide among themselves in the order in which they run.
template <class T, size_t kVecs>
HWY_INLINE PrefetchPlan PanelsToCome(const ScoreTile& a, int64_t x, int64_t first, int64_t rows) {
  const int64_t width = static_cast<int64_t>(kVecs * hn::Lanes(TileTag()));
  const int64_t panels = (width + kPanelWidth - 1) / kPanelWidth;
  const int64_t bytes = PanelBytes<T>(a.dim);
  const int64_t ahead = (kPrefetchBytes + panels * bytes - 1) / (panels * bytes) * panels;
  const int64_t steps = (a.dim + kStepDims<T> - 1) / kStepDims<T>;
  const int64_t from = first * steps / a.rows;
  const int64_t to = (first + rows) * steps / a.rows;
  const int64_t offset = (x / kPanelWidth + ahead) * a.panel_stride + bytes * (x % kPanelWidth) / kPanelWidth +
                         from * kStepBytes<T, kVecs>;
  return {address_at(static_cast<const char*>(a.panels), offset), kStepBytes<T, kVecs>, to - from};
}

/// All rows against kVecs vectors of columns from column `x` on.
template <class T, size_t kVecs>
HWY_INLINE void Strip(const ScoreTile& a, int64_t x) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  const auto column = [&](int64_t c) {
    const char* panel = static_cast<const char*>(a.panels) + c / kPanelWidth * a.panel_stride;
    return reinterpret_cast<const T*>(panel) + c % kPanelWidth * kStepDims<T>;
  };
  const T* low = column(x);
  const T* mid = column(x + n);
  const T* high = column(x + static_cast<int64_t>(kVecs == 3 ? 2 : kVecs / 2) * n);
  const float* q = static_cast<const float*>(a.q);
  const int64_t ldq = a.q_stride / static_cast<int64_t>(sizeof(float));
  for (RowTiles t(a.rows, kTileRows); t.first < a.rows; t.next()) {
    const int64_t first = t.first;
    const int64_t rows = t.rows;
    const TileArguments<T> arguments = {q + first * ldq,
                                        ldq,
                                        low,
                                        mid,
                                        high,
                                        a.dim,
                                        a.scale,
                                        a.s + first * a.lds + x,
                                        a.lds,
                                        a.stream ? PanelsToCome<T, kVecs>(a, x, first, rows) : PrefetchPlan()};
    WithRows<kRowsOf<kVecs>>(rows, [&](auto r) { Tile<T, r, kVecs>(arguments); });
  }
}

template <class T>
HWY_INLINE void Score(const ScoreTile& a) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  const int64_t columns = a.n_panels * kPanelWidth;
  int64_t x = 0;
  // A tile across two panels prefetches as if panels lay side by side.
  const bool contiguous = a.panel_stride == PanelBytes<T>(a.dim);
  if ((a.rows <= kRowsOf<4> || kRowsOf<4> == kTileRows) && (contiguous || !a.stream || 4 * n <= kPanelWidth)) {
    for (; x + 4 * n <= columns; x += 4 * n) Strip<T, 4>(a, x);
  }
  if constexpr (kThreeVectors) {
    if (in_tiles_of_three_or_four(a.rows) && (contiguous || !a.stream)) {
      // Four vectors are left to two tiles of two.
      for (; x + 3 * n <= columns && columns - x != 4 * n; x += 3 * n) Strip<T, 3>(a, x);
    }
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
