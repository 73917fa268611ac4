// Accumulates weighted values: lanes are columns of the values, the chain of fma runs over the keys.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/highway/value_tile.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "lib/highway/register_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {
namespace {

/// Rows of values that come from beyond the caches are read in blocks of about this many bytes, all columns of a block
/// before the next block, so that memory is read in order and L1 holds what a second pass over the columns needs.
constexpr int64_t kBlockBytes = 16384;

template <class T>
struct TileArguments {
  const float* w;
  int64_t ldw;
  const T* v;
  int64_t key_stride;
  int64_t keys;
  float* o;
  int64_t ldo;
  const float* alpha;     // null: 1
  PrefetchPlan prefetch;  // kTileBytes<T, kVecs> a key
  RowsFromMemory rows;    // instead, for one row
};

template <class T, size_t kVecs>
constexpr int64_t kTileBytes = static_cast<int64_t>(kVecs * hn::MaxLanes(TileTag()) * sizeof(T));

/// kVecs vectors of columns.
template <class T, size_t kRows, size_t kVecs>
HWY_NOINLINE void Tile(const TileArguments<T>& a) {
  constexpr bool kPairs = std::is_same_v<T, bf16> && kVecs % 2 == 0;
  const TileTag d;
  WithRegisters(d, [&](const Accumulators& acc, const Columns& k) SIMDATTN_LAMBDA {
    const size_t n = hn::Lanes(d);
    const auto load = [&](const float* o, size_t c) SIMDATTN_LAMBDA { return hn::LoadU(d, o + c * n); };
    const auto store = [&](TileVec v, float* o, size_t c) SIMDATTN_LAMBDA { hn::StoreU(v, d, o + c * n); };

    ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
      const float* o = a.o + static_cast<int64_t>(r) * a.ldo;
      const TileVec alpha = hn::Set(d, a.alpha != nullptr ? a.alpha[r] : 1.0f);
      if constexpr (kPairs) {
        ForEach<kVecs / 2>([&](auto c) SIMDATTN_LAMBDA {
          const TileVec low = hn::Mul(alpha, load(o, 2 * c));
          const TileVec high = hn::Mul(alpha, load(o, 2 * c + 1));
          Get<r * kVecs + 2 * c>(acc) = hn::ConcatEven(d, high, low);
          Get<r * kVecs + 2 * c + 1>(acc) = hn::ConcatOdd(d, high, low);
        });
      } else {
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA { Get<r * kVecs + c>(acc) = hn::Mul(alpha, load(o, c)); });
      }
    });

    const float* w = a.w;
    Cursor<const T> v(a.v);
    const int64_t ldw = a.ldw;
    const int64_t key_stride = a.key_stride;
    const int64_t keys = a.keys;
    uintptr_t line = a.prefetch.first;
    const int64_t prefetch_pitch = a.prefetch.pitch;
    [[maybe_unused]] RowsFromMemory rows_to_fetch = a.rows;
    [[maybe_unused]] const bool from_memory = a.rows.any();
    // One comparison a key, or values in L1 take a tenth more instructions.
    const int64_t prefetch_count = kRows == 1 && from_memory ? keys : a.prefetch.count;
    for (int64_t j = 0; j < keys; ++j) {
      if (j < prefetch_count) {
        if (kRows == 1 && from_memory) {
          rows_to_fetch.Next();
        } else {
          for (uintptr_t byte = 0; byte < kTileBytes<T, kVecs>; byte += 64)
            __builtin_prefetch(reinterpret_cast<const char*>(line + byte), 0, 2);
          line += static_cast<uintptr_t>(prefetch_pitch);
        }
      }
      if constexpr (kPairs) {
        ForEach<kVecs / 2>([&](auto c) SIMDATTN_LAMBDA {
          const TileVec pairs = LoadPairs(d, v.get() + 2 * c * n);
          Get<2 * c>(k) = EvenOf(d, pairs);
          Get<2 * c + 1>(k) = OddOf(d, pairs);
        });
      } else {
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
          if constexpr (std::is_same_v<T, bf16>) {
            Get<c>(k) = LoadInOrder(d, v.get() + c * n);
          } else {
            Get<c>(k) = LoadWide(d, v.get() + c * n);
          }
        });
      }
      AddOuterProduct<kRows, kVecs>(d, w, ldw, k, acc);
      ++w;
      v += key_stride;
    }

    ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
      float* o = a.o + static_cast<int64_t>(r) * a.ldo;
      if constexpr (kPairs) {
        ForEach<kVecs / 2>([&](auto c) SIMDATTN_LAMBDA {
          const TileVec even = Get<r * kVecs + 2 * c>(acc);
          const TileVec odd = Get<r * kVecs + 2 * c + 1>(acc);
          store(hn::InterleaveWholeLower(d, even, odd), o, 2 * c);
          store(hn::InterleaveWholeUpper(d, even, odd), o, 2 * c + 1);
        });
      } else {
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA { store(Get<r * kVecs + c>(acc), o, c); });
      }
    });
  });
}

/// What the tile of rows [first, first + rows) and columns [x, x + kVecs vectors) of a block prefetches: its share of the
/// next block, which the tiles divide among themselves in the order in which they run.
template <class T, size_t kVecs>
HWY_INLINE PrefetchPlan ValuesToCome(const ValueTile& a, int64_t key, int64_t keys, int64_t x, int64_t first,
                                     int64_t rows) {
  const int64_t size = static_cast<int64_t>(sizeof(T));
  const auto next = [&](int64_t offset) {
    return address_at(static_cast<const char*>(a.v), (key + keys) * a.key_stride + offset);
  };
  const int64_t from = first * keys / a.rows;
  const int64_t to = (first + rows) * keys / a.rows;
  if (a.key_stride == a.dim * size)
    return {next(x * keys * size + from * kTileBytes<T, kVecs>), kTileBytes<T, kVecs>, to - from};
  return {next(from * a.key_stride + x * size), a.key_stride, to - from};
}

/// Columns [x, x + kVecs vectors) of `keys` keys from `key` on, for all rows.
template <class T, size_t kVecs>
HWY_INLINE void Strip(const ValueTile& a, int64_t key, int64_t keys, int64_t x) {
  const char* group = static_cast<const char*>(a.v) + key * a.key_stride + x / kValueGroup * a.group_stride;
  const T* v = reinterpret_cast<const T*>(group) + x % kValueGroup;
  const int64_t key_stride = a.key_stride / static_cast<int64_t>(sizeof(T));
  // As many rows again: those of the next call lie behind these.
  const RowsFromMemory rows_to_fetch =
      a.from_memory ? RowsFromMemory(v, 2 * keys, a.key_stride, kTileBytes<T, kVecs>) : RowsFromMemory();
  for (RowTiles t(a.rows, kTileRows); t.first < a.rows; t.next()) {
    const int64_t first = t.first;
    const int64_t rows = t.rows;
    const TileArguments<T> arguments = {
        a.w + first * a.ldw + key,
        a.ldw,
        v,
        key_stride,
        keys,
        a.o + first * a.ldo + x,
        a.ldo,
        a.alpha != nullptr && key == 0 ? a.alpha + first : nullptr,
        a.stream ? ValuesToCome<T, kVecs>(a, key, keys, x, first, rows) : PrefetchPlan(),
        rows_to_fetch};
    WithRows<kRowsOf<kVecs>>(rows, [&](auto r) { Tile<T, r, kVecs>(arguments); });
  }
}

/// The last columns of one row, less than a vector of them.
template <class T>
HWY_INLINE void LastColumnsOfOneRow(const ValueTile& a, int64_t key, int64_t keys, int64_t x) {
  const TileTag d;
  const size_t columns = static_cast<size_t>(a.dim - x);
  const char* group = static_cast<const char*>(a.v) + x / kValueGroup * a.group_stride;
  float* o = a.o + x;
  TileVec sum = hn::Mul(hn::Set(d, a.alpha != nullptr && key == 0 ? *a.alpha : 1.0f), hn::LoadN(d, o, columns));
  for (int64_t j = key; j < key + keys; ++j) {
    const T* v = reinterpret_cast<const T*>(group + j * a.key_stride) + x % kValueGroup;
    sum = hn::MulAdd(hn::Set(d, a.w[j]), LoadWideN(d, v, columns), sum);
  }
  hn::StoreN(sum, d, o, columns);
}

/// The same of several rows: values and sums go through f32 of a vector's width, so that one
/// tile is enough for all types. (Tiles that read and write a part of a vector were a third of this file's code.)
template <class T>
HWY_NOINLINE void LastColumns(const ValueTile& a, int64_t key, int64_t keys, int64_t x) {
  constexpr int64_t kWidened = 64;  // keys at a time
  const TileTag d;
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  const size_t columns = static_cast<size_t>(a.dim - x);
  if (a.rows == 1) return LastColumnsOfOneRow<T>(a, key, keys, x);
  HWY_ALIGN float wide[kWidened * HWY_MAX_LANES_D(TileTag)];
  HWY_ALIGN float sums[kTileRows * HWY_MAX_LANES_D(TileTag)];
  for (RowTiles t(a.rows, kTileRows); t.first < a.rows; t.next()) {
    const int64_t first = t.first;
    const int64_t rows = t.rows;
    float* o = a.o + first * a.ldo + x;
    for (int64_t r = 0; r < rows; ++r) hn::StoreU(hn::LoadN(d, o + r * a.ldo, columns), d, sums + r * n);
    const PrefetchPlan prefetch = a.stream ? ValuesToCome<T, 1>(a, key, keys, x, first, rows) : PrefetchPlan();
    int64_t done = 0;
    do {
      const int64_t count = std::min(kWidened, keys - done);
      for (int64_t j = 0; j < count; ++j) {
        const char* group =
            static_cast<const char*>(a.v) + (key + done + j) * a.key_stride + x / kValueGroup * a.group_stride;
        const T* v = reinterpret_cast<const T*>(group) + x % kValueGroup;
        hn::StoreU(LoadWideN(d, v, columns), d, wide + j * n);
        if (done + j < prefetch.count) {
          const uintptr_t line = prefetch.first + static_cast<uintptr_t>((done + j) * prefetch.pitch);
          __builtin_prefetch(reinterpret_cast<const char*>(line), 0, 2);
        }
      }
      const TileArguments<float> arguments = {a.w + first * a.ldw + key + done,
                                              a.ldw,
                                              wide,
                                              n,
                                              count,
                                              sums,
                                              n,
                                              a.alpha != nullptr && key == 0 && done == 0 ? a.alpha + first : nullptr,
                                              PrefetchPlan(),
                                              RowsFromMemory()};
      WithRows<kTileRows>(rows, [&](auto r) { Tile<float, r, 1>(arguments); });
      done += count;
    } while (done < keys);
    for (int64_t r = 0; r < rows; ++r) hn::StoreN(hn::LoadU(d, sums + r * n), d, o + r * a.ldo, columns);
  }
}

/// Columns [x, end) of `keys` keys from `key` on: the widest tiles that the rows leave registers for.
template <class T>
HWY_NOINLINE void ColumnRange(const ValueTile& a, int64_t key, int64_t keys, int64_t x, int64_t end) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  const auto fits = [&](int64_t vecs, int64_t max_rows) {
    return x + vecs * n <= end && (a.rows <= max_rows || max_rows == kTileRows);
  };
  for (; fits(8, kRowsOf<8>); x += 8 * n) Strip<T, 8>(a, key, keys, x);
  for (; fits(4, kRowsOf<4>); x += 4 * n) Strip<T, 4>(a, key, keys, x);
  if constexpr (kThreeVectors) {
    if (in_tiles_of_three_or_four(a.rows)) {
      for (; fits(3, kTileRows) && end - x != 4 * n; x += 3 * n) Strip<T, 3>(a, key, keys, x);
    }
  }
  for (; fits(2, kRowsOf<2>); x += 2 * n) Strip<T, 2>(a, key, keys, x);
  for (; x + n <= end; x += n) Strip<T, 1>(a, key, keys, x);
  if (x < end) LastColumns<T>(a, key, keys, x);
}

template <class T>
HWY_INLINE void Values(const ValueTile& a) {
  ValueTile tile = a;
  if (a.group_stride == kValueGroup * static_cast<int64_t>(sizeof(T))) {
    const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
    if (a.stream && a.rows == 1 && (a.dim == 8 * n || a.dim == 4 * n) &&
        a.key_stride == a.dim * static_cast<int64_t>(sizeof(T))) {
      // One row and one tile read what lies in one piece in order: blocks would end tiles, and rows are fetched 256 keys or four pages ahead. f32 in
      // 512-bit vectors leaves that to hardware: prefetches take a fifth more time from L3, a twelfth from memory (Zen 5). From bf16
      // and with narrower vectors they pay beyond the caches.
      constexpr bool kPrefetches = !(std::is_same_v<T, float> && HWY_MAX_BYTES == 64);
      tile.stream = kPrefetches && !a.from_memory;
      tile.from_memory = kPrefetches && a.from_memory;
      return ColumnRange<T>(tile, 0, a.keys, 0, a.dim);
    }
    tile.from_memory = false;
    const int64_t in_block = kBlockBytes / (a.dim * static_cast<int64_t>(sizeof(T)));
    const int64_t block = a.stream ? std::max<int64_t>(in_block, 16) : a.keys;
    int64_t key = 0;
    do {
      ColumnRange<T>(tile, key, std::min(block, a.keys - key), 0, a.dim);
      key += block;
    } while (key < a.keys);
  } else {
    for (int64_t x = 0; x < a.dim; x += kValueGroup) ColumnRange<T>(a, 0, a.keys, x, std::min(x + kValueGroup, a.dim));
  }
}

}  // namespace

void ValueTileF32(const ValueTile& a) { Values<float>(a); }
void ValueTileBF16(const ValueTile& a) { Values<bf16>(a); }
void ValueTileF16(const ValueTile& a) { Values<f16>(a); }

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();
