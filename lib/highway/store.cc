// Rows of f32 into the types and layouts that keys and values are stored in, and back.
#include <cstring>
#include <type_traits>

#include "lib/panel_columns.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/highway/store.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "lib/highway/loads-inl.h"
#include "lib/highway/slots-inl.h"

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

/// Dimensions of 32 tokens that are converted and then transposed: 8 or 16 KiB, which stay in L1.
constexpr int64_t kStep = 128;

/// Block b (128 bits) of the result is what lies kGroup b rows below p.
template <int64_t kGroup, class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const char* p, int64_t stride) {
  if constexpr (HWY_MAX_LANES_D(D) * sizeof(hn::TFromD<D>) > 16) {
    const hn::Half<D> half;
    constexpr int64_t kRows = static_cast<int64_t>(HWY_MAX_LANES_D(D) * sizeof(hn::TFromD<D>)) / 32 * kGroup;
    return hn::Combine(d, LoadBlocks<kGroup>(half, p + kRows * stride, stride), LoadBlocks<kGroup>(half, p, stride));
  } else {
    return hn::LoadU(d, reinterpret_cast<const hn::TFromD<D>*>(p));
  }
}
template <int64_t kGroup, class D>
HWY_INLINE void StoreBlocks(D d, hn::Vec<D> v, char* p, int64_t stride) {
  if constexpr (HWY_MAX_LANES_D(D) * sizeof(hn::TFromD<D>) > 16) {
    const hn::Half<D> half;
    constexpr int64_t kRows = static_cast<int64_t>(HWY_MAX_LANES_D(D) * sizeof(hn::TFromD<D>)) / 32 * kGroup;
    StoreBlocks<kGroup>(half, hn::LowerHalf(half, v), p, stride);
    StoreBlocks<kGroup>(half, hn::UpperHalf(half, v), p + kRows * stride, stride);
  } else {
    hn::StoreU(v, d, reinterpret_cast<hn::TFromD<D>*>(p));
  }
}

template <class T, class DU>
HWY_INLINE hn::Vec<DU> Lower(DU d, hn::Vec<DU> a, hn::Vec<DU> b) {
  const hn::Repartition<T, DU> dt;
  return hn::BitCast(d, hn::InterleaveLower(dt, hn::BitCast(dt, a), hn::BitCast(dt, b)));
}
template <class T, class DU>
HWY_INLINE hn::Vec<DU> Upper(DU d, hn::Vec<DU> a, hn::Vec<DU> b) {
  const hn::Repartition<T, DU> dt;
  return hn::BitCast(d, hn::InterleaveUpper(dt, hn::BitCast(dt, a), hn::BitCast(dt, b)));
}

/// A square in each block of a vector. Scalable vectors have no loads of blocks.
struct Wide {
#if HWY_HAVE_SCALABLE
  static constexpr int64_t kBlocks = 1;
  // Never called.
  template <class Unit>
  static void put(const char* in, int64_t in_stride, char* out, int64_t out_stride, Unit unit);
  template <class Unit>
  static void take(const char* in, int64_t in_stride, char* out, int64_t out_stride, Unit unit);
#else
  static constexpr int64_t kBlocks = HWY_MAX_BYTES / 16;

  template <class D32, class Load, class Store>
  static HWY_INLINE void Square(D32 d, const Load& load, const Store& store, uint32_t /*unit*/) {
    const auto r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
    const auto a = Lower<uint32_t>(d, r0, r1), b = Lower<uint32_t>(d, r2, r3);
    const auto c = Upper<uint32_t>(d, r0, r1), e = Upper<uint32_t>(d, r2, r3);
    store(0, Lower<uint64_t>(d, a, b));
    store(1, Upper<uint64_t>(d, a, b));
    store(2, Lower<uint64_t>(d, c, e));
    store(3, Upper<uint64_t>(d, c, e));
  }
  template <class D32, class Load, class Store>
  static HWY_INLINE void Square(D32 d, const Load& load, const Store& store, uint16_t /*unit*/) {
    const auto r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
    const auto r4 = load(4), r5 = load(5), r6 = load(6), r7 = load(7);
    const auto four = [&](int64_t k, auto t0, auto t1, auto t2, auto t3) SIMDATTN_LAMBDA {
      const auto a = Lower<uint32_t>(d, t0, t1), b = Lower<uint32_t>(d, t2, t3);
      const auto c = Upper<uint32_t>(d, t0, t1), e = Upper<uint32_t>(d, t2, t3);
      store(k, Lower<uint64_t>(d, a, b));
      store(k + 1, Upper<uint64_t>(d, a, b));
      store(k + 2, Lower<uint64_t>(d, c, e));
      store(k + 3, Upper<uint64_t>(d, c, e));
    };
    four(0, Lower<uint16_t>(d, r0, r1), Lower<uint16_t>(d, r2, r3), Lower<uint16_t>(d, r4, r5),
         Lower<uint16_t>(d, r6, r7));
    four(4, Upper<uint16_t>(d, r0, r1), Upper<uint16_t>(d, r2, r3), Upper<uint16_t>(d, r4, r5),
         Upper<uint16_t>(d, r6, r7));
  }

  template <class Unit>
  static HWY_INLINE void put(const char* in, int64_t in_stride, char* out, int64_t out_stride, Unit unit) {
    const hn::ScalableTag<uint32_t> d;
    constexpr int64_t kGroup = 16 / sizeof(Unit);
    const auto load = [&](int64_t k) SIMDATTN_LAMBDA { return LoadBlocks<kGroup>(d, in + k * in_stride, in_stride); };
    const auto store = [&](int64_t k, auto v)
                           SIMDATTN_LAMBDA { hn::StoreU(v, d, reinterpret_cast<uint32_t*>(out + k * out_stride)); };
    Square(d, load, store, unit);
  }
  template <class Unit>
  static HWY_INLINE void take(const char* in, int64_t in_stride, char* out, int64_t out_stride, Unit unit) {
    const hn::ScalableTag<uint32_t> d;
    constexpr int64_t kGroup = 16 / sizeof(Unit);
    const auto load = [&](int64_t k) SIMDATTN_LAMBDA {
      return hn::LoadU(d, reinterpret_cast<const uint32_t*>(in + k * in_stride));
    };
    const auto store = [&](int64_t k, auto v)
                           SIMDATTN_LAMBDA { StoreBlocks<kGroup>(d, v, out + k * out_stride, out_stride); };
    Square(d, load, store, unit);
  }
#endif
};

// Functions of their own, for types and conversions to share: inlined they were 38 KB a target.

template <class Unit>
HWY_NOINLINE void TransposeRest(const char* in, int64_t in_stride, int64_t rows, int64_t columns, char* out,
                                int64_t out_stride) {
  transpose_units<Unit>(in, in_stride, rows, columns, out, out_stride);
}

/// transpose_units(), most of it by Wide::put: squares of Wide::kBlocks times as many rows side by side.
template <class Unit>
HWY_NOINLINE void PutUnits(const char* in, int64_t in_stride, int64_t rows, int64_t columns, char* out,
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
      TransposeRest<Unit>(in + whole_columns * kSize, in_stride, whole_rows, columns - whole_columns,
                          out + whole_columns * out_stride, out_stride);
    }
    if (whole_rows == rows) return;
  }
  TransposeRest<Unit>(in + whole_rows * in_stride, in_stride, rows - whole_rows, columns, out + whole_rows * kSize,
                      out_stride);
}
/// And by Wide::take: as many columns.
template <class Unit>
HWY_NOINLINE void TakeUnits(const char* in, int64_t in_stride, int64_t rows, int64_t columns, char* out,
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
      TransposeRest<Unit>(in + whole_rows * in_stride, in_stride, rows - whole_rows, whole_columns,
                          out + whole_rows * kSize, out_stride);
    }
    if (whole_columns == columns) return;
  }
  TransposeRest<Unit>(in + whole_columns * kSize, in_stride, rows, columns - whole_columns,
                      out + whole_columns * out_stride, out_stride);
}

/// `tokens` rows of `dim` stored elements into the panel's columns from `column` on, at most kPanelWidth in all.
template <class T>
HWY_INLINE void RowsToColumns(const char* rows, int64_t row_stride, int64_t tokens, int64_t dim, char* panel,
                              int64_t column) {
  using Unit = PanelUnit<T>;
  constexpr int64_t kPitch = kPanelWidth * sizeof(Unit);
  const int64_t units = dim / kUnitDims<T>;
  char* const out = panel + column * static_cast<int64_t>(sizeof(Unit));
  if (tokens == 1) {
    scatter_units<Unit>(rows, units, out, kPitch);
  } else {
    PutUnits<Unit>(rows, row_stride, tokens, units, out, kPitch);
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
HWY_INLINE void ColumnsToRows(const char* panel, int64_t column, int64_t tokens, int64_t dim, char* rows,
                              int64_t row_stride) {
  using Unit = PanelUnit<T>;
  constexpr int64_t kPitch = kPanelWidth * sizeof(Unit);
  const int64_t units = dim / kUnitDims<T>;
  const char* const in = panel + column * static_cast<int64_t>(sizeof(Unit));
  TakeUnits<Unit>(in, kPitch, units, tokens, rows, row_stride);
  if constexpr (kUnitDims<T> == 2) {
    for (int64_t t = 0; dim % 2 != 0 && t < tokens; ++t) {
      copy_unit<T>(in + units * kPitch + t * 4, rows + t * row_stride + (dim - 1) * 2);
    }
  }
}

/// `rows` rows of n numbers, rounded. Strides are bytes.
template <class T>
HWY_NOINLINE void Narrow(const char* in, int64_t in_stride, int64_t rows, char* out, int64_t out_stride, int64_t n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t first = 0;
  if constexpr (std::is_same_v<T, bf16>) {
    first = n - n % (2 * lanes);
    V seen0 = NothingNoticed(), seen1 = seen0;
    for (int64_t r = 0; r < rows; ++r) {
      const float* const x = reinterpret_cast<const float*>(in + r * in_stride);
      bf16* const y = reinterpret_cast<bf16*>(out + r * out_stride);
      const auto two = [&](int64_t i, V& seen) SIMDATTN_LAMBDA {
        const V v0 = hn::LoadU(d, x + i), v1 = hn::LoadU(d, x + i + lanes);
        StoreNumbers(d, v0, v1, y + i);
        Notice(v0, v1, seen);
      };
      int64_t i = 0;
      for (; i + 4 * lanes <= first; i += 4 * lanes) {
        two(i, seen0);
        two(i + 2 * lanes, seen1);
      }
      if (i < first) two(i, seen0);
    }
    if (HWY_UNLIKELY(Noticed(hn::Add(seen0, seen1)))) first = 0;
    if (first == n) return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float* const x = reinterpret_cast<const float*>(in + r * in_stride);
    T* const y = reinterpret_cast<T*>(out + r * out_stride);
    int64_t i = first;
    for (; i + lanes <= n; i += lanes) StoreRounded(d, hn::LoadU(d, x + i), y + i);
    if (i < n) {
      const size_t rest = static_cast<size_t>(n - i);
      StoreRoundedN(d, hn::LoadN(d, x + i, rest), y + i, rest);
    }
  }
}
template <class T>
HWY_NOINLINE void Widen(const T* in, char* out, int64_t n) {
  const D d;
  float* y = reinterpret_cast<float*>(out);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(LoadWide(d, in + i), d, y + i);
  if (i < n) {
    const size_t rest = static_cast<size_t>(n - i);
    hn::StoreN(LoadWideN(d, in + i, rest), d, y + i, rest);
  }
}

#if HWY_TARGET == HWY_AVX2
#undef SIMDATTN_ROUNDS_TO_COLUMNS
#define SIMDATTN_ROUNDS_TO_COLUMNS 1
// f32 becomes columns of bf16 in registers, four rows at a time and one after the other: where 32 rows are read at once, a line of
// each, no prefetcher follows them, and it takes a third longer. With AVX-512 two passes are faster: one shuffle packs 32 numbers.
constexpr int64_t kPairPitch = kPanelWidth * 4;
constexpr int64_t kPanelTokens = 4;
constexpr int64_t kPanelDims = 8;

using PanelBits = hn::Repartition<uint16_t, D>;

/// kPanelDims dimensions of two tokens, none of them NaN: their pairs, a token after the other.
HWY_INLINE hn::Vec<PanelBits> PairsOf(V r0, V r1) {
  const D d;
  const PanelBits d16;
  const auto s0 = UpperThenLower(PlusHalf(d, r0)), s1 = UpperThenLower(PlusHalf(d, r1));
  return TiesToEven(Lower<uint32_t>(d16, s0, s1), Upper<uint32_t>(d16, s0, s1));
}
/// Those of kPanelTokens tokens.
HWY_INLINE void StorePairs(hn::Vec<PanelBits> a, hn::Vec<PanelBits> b, char* out) {
  const PanelBits d16;
  StoreBlocks<2>(d16, Lower<uint64_t>(d16, a, b), out, kPairPitch);
  StoreBlocks<2>(d16, Upper<uint64_t>(d16, a, b), out + kPairPitch, kPairPitch);
}
HWY_INLINE V LoadRow(const char* p) { return hn::LoadU(D(), reinterpret_cast<const float*>(p)); }
HWY_INLINE bool AllFinite(V v) { return hn::AllTrue(D(), hn::IsFinite(v)); }

/// `tokens` rows of `dim` numbers into columns: multiples of kPanelTokens and kPanelDims. False: there may be NaN.
HWY_NOINLINE bool RoundToColumns(const char* rows, int64_t ld, int64_t tokens, int64_t dim, char* out) {
  V seen0 = hn::Zero(D()), seen1 = seen0;
  for (int64_t t = 0; t < tokens; t += kPanelTokens) {
    const char* in = rows + t * ld;
    char* to = out + t * 4;
    for (int64_t i = 0; i < dim; i += kPanelDims, in += kPanelDims * 4, to += kPanelDims / 2 * kPairPitch) {
      const V r0 = LoadRow(in), r1 = LoadRow(in + ld), r2 = LoadRow(in + 2 * ld), r3 = LoadRow(in + 3 * ld);
      StorePairs(PairsOf(r0, r1), PairsOf(r2, r3), to);
      seen0 = hn::MulAdd(r0, r1, seen0);
      seen1 = hn::MulAdd(r2, r3, seen1);
    }
  }
  return AllFinite(hn::Add(seen0, seen1));
}

/// In registers: gcc would load what is in memory for each of two operations.
HWY_INLINE void Rotate(V x0, V x1, V c, V s, V& low, V& high) {
  x0 = InRegister(x0);
  x1 = InRegister(x1);
  c = InRegister(c);
  s = InRegister(s);
  low = hn::MulSub(x0, c, hn::Mul(x1, s));
  high = hn::MulAdd(x0, s, hn::Mul(x1, c));
}

/// The same, rotated: a.half dimensions of one head and those behind them.
HWY_NOINLINE bool RotateToColumns(const RotateToPanels& a, const char* rows, char* out) {
  const D d;
  V seen = hn::Zero(d);
  const int64_t ld = a.ld, half = a.half, cos_stride = a.cos_stride, sin_stride = a.sin_stride;
  for (int64_t t = 0; t < a.tokens; t += kPanelTokens) {
    const char* in = rows + t * ld;
    char* to = out + t * 4;
    const float* cos = a.cos + t * cos_stride;
    const float* sin = a.sin + t * sin_stride;
    for (int64_t i = 0; i < half; i += kPanelDims, in += kPanelDims * 4, cos += kPanelDims, sin += kPanelDims) {
      // Two tokens at a time: the results of four do not fit into sixteen registers.
      const auto two = [&](const char* x, const float* c, const float* s, hn::Vec<PanelBits>& low,
                           hn::Vec<PanelBits>& high) SIMDATTN_LAMBDA {
        V low0, low1, high0, high1;
        Rotate(LoadRow(x), LoadRow(x + 4 * half), hn::LoadU(d, c), hn::LoadU(d, s), low0, high0);
        x += ld;
        Rotate(LoadRow(x), LoadRow(x + 4 * half), hn::LoadU(d, c + cos_stride), hn::LoadU(d, s + sin_stride), low1,
               high1);
        // A NaN comes from a factor that is not finite: both results have it.
        seen = hn::MulAdd(low0, low1, seen);
        low = PairsOf(low0, low1);
        high = PairsOf(high0, high1);
      };
      hn::Vec<PanelBits> low0, low1, high0, high1;
      two(in, cos, sin, low0, high0);
      two(in + 2 * ld, cos + 2 * cos_stride, sin + 2 * sin_stride, low1, high1);
      StorePairs(low0, low1, to);
      StorePairs(high0, high1, to + half / 2 * kPairPitch);
      to += kPanelDims / 2 * kPairPitch;
    }
  }
  return AllFinite(seen);
}
#else
#undef SIMDATTN_ROUNDS_TO_COLUMNS
#define SIMDATTN_ROUNDS_TO_COLUMNS 0
#endif

template <class T>
HWY_INLINE void Rows(const StoreRows& a) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    const char* const from = static_cast<const char*>(a.rows) + t * a.ld;
    char* const to = static_cast<char*>(a.out) + t * a.stride;
    if (a.as_stored) {
      std::memcpy(to, from, static_cast<size_t>(a.dim) * sizeof(T));
    } else {
      Narrow<T>(from, 0, 1, to, 0, a.dim);
    }
  }
}

template <class T>
HWY_INLINE void Panels(const StoreRows& a) {
  for_each_panel(a.column, a.tokens, [&](int64_t panel, int64_t column, int64_t n, int64_t done) HWY_ATTR {
    const char* rows = static_cast<const char*>(a.rows) + done * a.ld;
    char* const to = static_cast<char*>(a.out) + panel * a.stride;
    if (a.as_stored) {
      RowsToColumns<T>(rows, a.ld, n, a.dim, to, column);
      return;
    }
#if SIMDATTN_ROUNDS_TO_COLUMNS
    if constexpr (std::is_same_v<T, bf16>) {
      const int64_t whole = n - n % kPanelTokens;
      if (whole > 0 && a.dim % kPanelDims == 0 && RoundToColumns(rows, a.ld, whole, a.dim, to + column * 4)) {
        if (whole == n) return;
        rows += whole * a.ld;
        column += whole;
        n -= whole;
      }
    }
#endif
    HWY_ALIGN T copy[kPanelWidth * kStep];
    for (int64_t d = 0; d < a.dim; d += kStep) {
      const int64_t count = HWY_MIN(kStep, a.dim - d);
      char* const narrow = reinterpret_cast<char*>(copy);
      Narrow<T>(rows + 4 * d, a.ld, n, narrow, kStep * sizeof(T), count);
      RowsToColumns<T>(narrow, kStep * sizeof(T), n, count, to + d * kPanelWidth * static_cast<int64_t>(sizeof(T)),
                       column);
    }
  });
}

template <class T>
HWY_INLINE void Rows(const LoadRows& a) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    const char* const from = static_cast<const char*>(a.in) + t * a.stride;
    char* const to = static_cast<char*>(a.rows) + t * a.ld;
    if (a.as_stored || std::is_same_v<T, float>) {
      std::memcpy(to, from, static_cast<size_t>(a.dim) * sizeof(T));
    } else {
      Widen(reinterpret_cast<const T*>(from), to, a.dim);
    }
  }
}

template <class T>
HWY_INLINE void Panels(const LoadRows& a) {
  for_each_panel(a.column, a.tokens, [&](int64_t panel, int64_t column, int64_t n, int64_t done) HWY_ATTR {
    const char* const from = static_cast<const char*>(a.in) + panel * a.stride;
    char* const rows = static_cast<char*>(a.rows) + done * a.ld;
    if (a.as_stored || std::is_same_v<T, float>) {
      ColumnsToRows<T>(from, column, n, a.dim, rows, a.ld);
      return;
    }
    HWY_ALIGN T copy[kPanelWidth * kStep];
    for (int64_t d = 0; d < a.dim; d += kStep) {
      const int64_t count = HWY_MIN(kStep, a.dim - d);
      ColumnsToRows<T>(from + d * kPanelWidth * static_cast<int64_t>(sizeof(T)), column, n, count,
                       reinterpret_cast<char*>(copy), kStep * sizeof(T));
      for (int64_t t = 0; t < n; ++t) Widen(copy + t * kStep, rows + t * a.ld + 4 * d, count);
    }
  });
}

}  // namespace

#if SIMDATTN_ROUNDS_TO_COLUMNS
bool RotateToPanelsBF16(const RotateToPanels& a) {
  if (a.tokens % kPanelTokens != 0 || a.half % kPanelDims != 0 || a.first % 2 != 0) return false;
  for (int64_t h = 0; h < a.heads; ++h) {
    const char* const rows = static_cast<const char*>(a.rows) + h * a.row_head;
    char* const panel = static_cast<char*>(a.out) + h * a.panel_head;
    const int64_t first = a.first / 2 * kPairPitch;
    if (!RotateToColumns(a, rows + 4 * a.first, panel + first + a.column * 4)) return false;
    const auto others = [&](int64_t begin, int64_t end) {
      if (begin == end) return;
      StorePanelsBF16({.rows = rows + 4 * begin,
                       .ld = a.ld,
                       .tokens = a.tokens,
                       .dim = end - begin,
                       .out = panel + begin / 2 * kPairPitch,
                       .stride = 0,
                       .column = a.column,
                       .as_stored = false});
    };
    others(0, a.first);
    others(a.first + 2 * a.half, a.dim);
  }
  return true;
}
#endif

void StoreRowsF32(const StoreRows& a) { Rows<float>(a); }
void StoreRowsBF16(const StoreRows& a) { Rows<bf16>(a); }
void StoreRowsF16(const StoreRows& a) { Rows<f16>(a); }
void StorePanelsF32(const StoreRows& a) { Panels<float>(a); }
void StorePanelsBF16(const StoreRows& a) { Panels<bf16>(a); }
void StorePanelsF16(const StoreRows& a) { Panels<f16>(a); }
void LoadRowsF32(const LoadRows& a) { Rows<float>(a); }
void LoadRowsBF16(const LoadRows& a) { Rows<bf16>(a); }
void LoadRowsF16(const LoadRows& a) { Rows<f16>(a); }
void LoadPanelsF32(const LoadRows& a) { Panels<float>(a); }
void LoadPanelsBF16(const LoadRows& a) { Panels<bf16>(a); }
void LoadPanelsF16(const LoadRows& a) { Panels<f16>(a); }

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();
