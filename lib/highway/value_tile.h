// Accumulates weighted values: lanes are columns of the values, the chain of fma runs over the keys.
#ifndef SIMDATTN_LIB_HIGHWAY_VALUE_TILE_H_
#define SIMDATTN_LIB_HIGHWAY_VALUE_TILE_H_

#include "hwy/highway.h"
#include "lib/highway/register_tile.h"

namespace simdattn {
namespace {

/// Rows of values that come from beyond the caches are read in blocks of about so many bytes, all columns of a block before the
/// next block, so that memory is read in order. One row of weights: L1 holds what a second pass over the columns needs (32 KiB: 1.08 of the
/// time from memory, AVX2). With more rows L2 is fast enough, and each tile costs 35 cycles beside its multiply-adds (16 KiB: 1.02 of the
/// time; 64 KiB with AVX-512: 1.12 from memory, 0.99 from L3; Zen 4).
constexpr int64_t block_bytes(int64_t rows) { return rows == 1 ? 16384 : HWY_MAX_BYTES == 64 ? 32768 : 65536; }
/// So many bytes of values are found in L2 again in any order: one call of a tile takes all keys (512 KiB: 8 rows 1.1 of the time).
constexpr int64_t kWholeBytes = int64_t{1} << 18;

/// What the tiles of some keys have in common. What differs from tile to tile is passed in registers: as members it was stored for each and
/// loaded again, between the multiply-adds of one tile and those of the next (35 of 500 cycles, AVX-512, Zen 4).
struct AddArguments {
  int64_t ldw;
  int64_t key_stride;
  int64_t keys;
  int64_t ldo;
  int64_t prefetch_pitch;
  int64_t prefetch_count;      // how often kTileBytes<T, kVecs> are prefetched, once a key
  const RowsFromMemory* rows;  // instead, for one row
};
/// alpha: null: 1. prefetched: where the first of those bytes are.
using AddFunction = void(const AddArguments& a, const float* w, const void* values, float* sums, const float* alpha,
                         uintptr_t prefetched);

template <class T, size_t kVecs>
constexpr int64_t kTileBytes = static_cast<int64_t>(kVecs * hn::MaxLanes(TileTag()) * sizeof(T));

/// kVecs vectors of columns.
template <class T, size_t kRows, size_t kVecs>
HWY_NOINLINE void AddTile(const AddArguments& a, const float* w, const void* values, float* sums, const float* alphas,
                          uintptr_t line) {
  constexpr bool kPairs = std::is_same_v<T, bf16> && kVecs % 2 == 0;
  const TileTag d;
  WithRegisters(d, [&](const Accumulators& acc, const Columns& k) SIMDATTN_LAMBDA {
    const size_t n = hn::Lanes(d);
    const int64_t ldo = a.ldo;
    const auto load = [&](const float* o, size_t c) SIMDATTN_LAMBDA { return hn::LoadU(d, o + c * n); };
    const auto store = [&](TileVec v, float* o, size_t c) SIMDATTN_LAMBDA { hn::StoreU(v, d, o + c * n); };

    ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
      const float* o = sums + static_cast<int64_t>(r) * ldo;
      const TileVec alpha = hn::Set(d, alphas != nullptr ? alphas[r] : 1.0f);
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

    Cursor<const T> v(static_cast<const T*>(values));
    const int64_t ldw = a.ldw;
    const int64_t key_stride = a.key_stride / static_cast<int64_t>(sizeof(T));
    const int64_t keys = a.keys;
    const auto column = [&](auto c) SIMDATTN_LAMBDA {
      if constexpr (std::is_same_v<T, bf16>) return LoadInOrder(d, v.get() + c * n);
      else return LoadWide(d, v.get() + c * n);
    };
    const auto add_key = [&]() SIMDATTN_LAMBDA {
      if constexpr (kRows == 1 && kVecs == 8 && !kPairs && HWY_MAX_BYTES < 64) {
        // A column is multiplied as it is loaded: eight of them beside eight sums and the weight are more than 16 registers. With 32, conversions of
        // f16 are better not waited for one by one (1.04 of the time).
        const TileVec weight = hn::Set(d, *w);
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
#if HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSE2
          // In the order of memory. gcc 12 loads the last column, of a second line, right after the first one: f32 from L3 takes 0.91 or 1.14 of the
          // time on a Zen 4, one or the other for a whole process.
          if constexpr (c + 1 == kVecs) {
            const T* p = v.get();
            __asm__("" : "+r"(p), "+x"(Get<c - 1>(acc).raw));
            v = Cursor<const T>(p);
          }
#endif
          Get<c>(acc) = hn::MulAdd(weight, column(c), Get<c>(acc));
        });
      } else {
        if constexpr (kPairs) {
          ForEach<kVecs / 2>([&](auto c) SIMDATTN_LAMBDA {
            const TileVec pairs = LoadPairs(d, v.get() + 2 * c * n);
            // One row, AVX2: half of them shifted, 0.96 - 1.0 of the time on a Zen 4. All of them would be 0.01 better there, but by a count of ports worse
            // than none on Intel's.
            Get<2 * c>(k) = kRows == 1 && c % 2 == 0 ? ShiftedEvenOf(d, pairs) : EvenOf(d, pairs);
            Get<2 * c + 1>(k) = OddOf(d, pairs);
          });
        } else {
          ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA { Get<c>(k) = column(c); });
        }
        AddOuterProduct<kRows, kVecs>(d, w, ldw, k, acc);
      }
      ++w;
      if constexpr (kRows > 1 && HWY_MAX_BYTES == 64) hide(w);
      v += key_stride;
    };
    const uintptr_t pitch = static_cast<uintptr_t>(a.prefetch_pitch);
    const auto prefetch = [&]() SIMDATTN_LAMBDA {
      for (uintptr_t byte = 0; byte < kTileBytes<T, kVecs>; byte += 64)
        __builtin_prefetch(reinterpret_cast<const char*>(line + byte), 0, 2);
      line += pitch;
    };
    const int64_t prefetched = std::min(a.prefetch_count, keys);
    int64_t j = 0;
    if constexpr (kRows == 1) {
      // Three loops: one with two branches a key took up to 1.13 of the time (16-bit values from L3, AVX2, Zen 4).
      if (a.rows != nullptr) {
        RowsFromMemory rows_to_fetch = *a.rows;
        for (; j < keys; ++j) {
          rows_to_fetch.Next();
          add_key();
        }
      }
      for (; j < prefetched; ++j) {
        prefetch();
        add_key();
      }
    }
    for (; j < keys; ++j) {
      if (kRows > 1 && j < prefetched) prefetch();
      add_key();
    }

    ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
      float* o = sums + static_cast<int64_t>(r) * ldo;
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

/// The tiles of 1, 2, ... rows.
template <class T, size_t kVecs, class Rows = std::make_index_sequence<static_cast<size_t>(kRowsOf<kVecs>)>>
struct AddTilesOf;
template <class T, size_t kVecs, size_t... kRows>
struct AddTilesOf<T, kVecs, std::index_sequence<kRows...>> {
  static constexpr AddFunction* kTiles[] = {AddTile<T, kRows + 1, kVecs>...};
};

/// The last columns, less than a vector of them, of `keys` keys as f32, a vector each.
template <class T>
HWY_NOINLINE void WidenLast(const void* v, int64_t key_stride, int64_t keys, size_t columns, float* wide) {
  const TileTag d;
  Cursor<const char> at(static_cast<const char*>(v));
  for (int64_t j = 0; j < keys; ++j) {
    hn::StoreU(LoadWideN(d, reinterpret_cast<const T*>(at.get()), columns), d, wide);
    at += key_stride;
    wide += hn::Lanes(d);
  }
}

/// What depends on the type of the values. All else is one body for all types: it would be a third of this file's code.
struct ValueStorage {
  int64_t size;
  AddFunction* const* tiles[9];  // by vectors
  decltype(WidenLast<float>)* widen_last;
};
template <class T, size_t kVecs>
constexpr AddFunction* const* Tiles() {
  if constexpr (kVecs == 3 && !kThreeVectors) return nullptr;
  else return AddTilesOf<T, kVecs>::kTiles;
}
template <class T>
constexpr ValueStorage kValueStorage = {
    static_cast<int64_t>(sizeof(T)),
    {nullptr, Tiles<T, 1>(), Tiles<T, 2>(), Tiles<T, 3>(), Tiles<T, 4>(), nullptr, nullptr, nullptr, Tiles<T, 8>()},
    WidenLast<T>};

/// Keys [key, key + keys) of a ValueTile, and how they are fetched.
struct KeyBlock {
  const ValueTile& a;
  const ValueStorage& type;
  int64_t key;
  int64_t keys;
  bool fetches;   // the block behind them
  bool in_pages;  // they and as many rows again, those of the next call: Fetch::kPages

  const float* alpha() const { return key == 0 ? a.alpha : nullptr; }
  const char* at(int64_t x) const {
    return static_cast<const char*>(a.v) + key * a.key_stride + x / kValueGroup * a.group_stride +
           x % kValueGroup * type.size;
  }
  /// What the tile of rows [first, first + rows) and columns [x, x + `bytes`) prefetches: its share of the next block, which
  /// the tiles divide among themselves in the order in which they run.
  HWY_INLINE PrefetchPlan Next(int64_t x, int64_t bytes, int64_t first, int64_t rows) const {
    if (!fetches) return {};
    const auto next = [&](int64_t offset) {
      return address_at(static_cast<const char*>(a.v), (key + keys) * a.key_stride + offset);
    };
    const int64_t from = share_of_rows(first, a.rows, keys);
    const int64_t to = share_of_rows(first + rows, a.rows, keys);
    if (a.key_stride == a.dim * type.size) return {next(x * keys * type.size + from * bytes), bytes, to - from};
    return {next(from * a.key_stride + x * type.size), a.key_stride, to - from};
  }
};

/// The last columns of any number of rows, less than a vector of them: values and sums go through f32 of a vector's width, so that one
/// tile is enough for all types. (Tiles that read and write a part of a vector were a third of this file's code.)
SIMDATTN_SHARED void LastColumns(const KeyBlock& b, int64_t x) {
  constexpr int64_t kWidened = 64;  // keys at a time
  const ValueTile& a = b.a;
  const TileTag d;
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  const size_t columns = static_cast<size_t>(a.dim - x);
  const char* const v = b.at(x);
  HWY_ALIGN float wide[kWidened * HWY_MAX_LANES_D(TileTag)];
  HWY_ALIGN float sums[kTileRows * HWY_MAX_LANES_D(TileTag)];
  for (RowTiles t(a.rows, kTileRows); t.first < a.rows; t.next()) {
    float* const o = a.o + t.first * a.ldo + x;
    for (int64_t r = 0; r < t.rows; ++r) hn::StoreU(hn::LoadN(d, o + r * a.ldo, columns), d, sums + r * n);
    const PrefetchPlan prefetch = b.Next(x, n * b.type.size, t.first, t.rows);
    const float* alpha = b.alpha() != nullptr ? b.alpha() + t.first : nullptr;
    int64_t done = 0;
    do {
      const int64_t count = std::min(kWidened, b.keys - done);
      for (int64_t j = done; j < std::min(done + count, prefetch.count); ++j) {
        const uintptr_t line = prefetch.first + static_cast<uintptr_t>(j * prefetch.pitch);
        __builtin_prefetch(reinterpret_cast<const char*>(line), 0, 2);
      }
      b.type.widen_last(v + done * a.key_stride, a.key_stride, count, columns, wide);
      AddTilesOf<float, 1>::kTiles[t.rows - 1](
          {a.ldw, n * static_cast<int64_t>(sizeof(float)), count, n, 0, 0, nullptr},
          a.w + t.first * a.ldw + b.key + done, wide, sums, alpha, 0);
      alpha = nullptr;
      done += count;
    } while (done < b.keys);
    for (int64_t r = 0; r < t.rows; ++r) hn::StoreN(hn::LoadU(d, sums + r * n), d, o + r * a.ldo, columns);
  }
}

/// Vectors of the widest tile that `columns` columns fill and `rows` rows leave registers for. 0: they are less than a vector.
HWY_INLINE int64_t VectorsOfTile(int64_t rows, int64_t columns) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  const auto fits = [&](int64_t vecs, int64_t max_rows) {
    return columns >= vecs * n && (rows <= max_rows || max_rows == kTileRows);
  };
  if (fits(8, kRowsOf<8>)) return 8;
  if (fits(4, kRowsOf<4>)) return 4;
  // Four vectors are left to two tiles of two.
  if (kThreeVectors && in_tiles_of_three_or_four(rows) && fits(3, kTileRows) && columns != 4 * n) return 3;
  if (fits(2, kRowsOf<2>)) return 2;
  return columns >= n ? 1 : 0;
}

/// Columns [x, end) of all rows.
SIMDATTN_SHARED void ColumnRange(const KeyBlock& b, int64_t x, int64_t end) {
  const ValueTile& a = b.a;
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  AddArguments t = {a.ldw, a.key_stride, b.keys, a.ldo, 0, 0, nullptr};
  RowsFromMemory rows_to_fetch;
  while (const int64_t vecs = VectorsOfTile(a.rows, end - x)) {
    const int64_t bytes = vecs * n * b.type.size;
    AddFunction* const* const tiles = b.type.tiles[vecs];
    const char* const v = b.at(x);
    if (b.in_pages) {
      rows_to_fetch = RowsFromMemory(v, 2 * b.keys, a.key_stride, bytes);
      t.rows = &rows_to_fetch;
    }
    for (RowTiles r(a.rows, kTileRows); r.first < a.rows; r.next()) {
      const PrefetchPlan next = b.Next(x, bytes, r.first, r.rows);
      t.prefetch_pitch = next.pitch;
      t.prefetch_count = next.count;
      tiles[r.rows - 1](t, a.w + r.first * a.ldw + b.key, v, a.o + r.first * a.ldo + x,
                        b.alpha() != nullptr ? b.alpha() + r.first : nullptr, next.first);
    }
    x += vecs * n;
  }
  if (x < end) LastColumns(b, x);
}

/// One row of weights and rows of f32 values of more columns than a tile has, from beyond L2: in the order of memory, with the sums in L1.
HWY_NOINLINE void RowsInOrder(const ValueTile& a) {
  const TileTag d;
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  const int64_t key_stride = a.key_stride / static_cast<int64_t>(sizeof(float));
  const int64_t dim = a.dim, keys = a.keys;
  const float* const w = a.w;
  float* const o = a.o;
  const float* v = static_cast<const float*>(a.v);
  if (a.alpha != nullptr) {
    const TileVec alpha = hn::Set(d, *a.alpha);
    for (int64_t x = 0; x < dim; x += n) hn::StoreU(hn::Mul(alpha, hn::LoadU(d, o + x)), d, o + x);
  }
  for (int64_t j = 0; j < keys; ++j, v += key_stride) {
    const TileVec weight = hn::Set(d, w[j]);
    const auto add = [&](int64_t x) SIMDATTN_LAMBDA {
      hn::StoreU(hn::MulAdd(weight, hn::LoadU(d, v + x), hn::LoadU(d, o + x)), d, o + x);
    };
    int64_t x = 0;
    for (; x + 4 * n <= dim; x += 4 * n) {
      add(x);
      add(x + n);
      add(x + 2 * n);
      add(x + 3 * n);
    }
    for (; x < dim; x += n) add(x);
  }
}

SIMDATTN_SHARED void WeightedValues(const ValueTile& a, const ValueStorage& type) {
  KeyBlock b = {a, type, 0, a.keys, a.fetches(), false};
  if (a.group_stride != kValueGroup * type.size) {
    for (int64_t x = 0; x < a.dim; x += kValueGroup) ColumnRange(b, x, std::min(x + kValueGroup, a.dim));
    return;
  }
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  if (b.fetches && a.rows == 1 && a.dim > 8 * n && a.dim % n == 0 && type.size == sizeof(float)) return RowsInOrder(a);
  const bool one_tile = a.rows == 1 && (a.dim == 8 * n || a.dim == 4 * n);
  int64_t block = one_tile || a.keys * a.dim * type.size <= kWholeBytes ? a.keys : kKeyBlock;
  if (b.fetches && one_tile && a.key_stride == a.dim * type.size) {
    // What lies in one piece is read in order: blocks would end tiles. f32 in vectors of 512 bits is left to hardware.
    const bool prefetches = !(type.size == sizeof(float) && HWY_MAX_BYTES == 64);
    b.in_pages = prefetches && a.fetch == Fetch::kPages;
    b.fetches = prefetches && a.fetch == Fetch::kMemory;
    if (b.fetches) block = kKeyBlock;  // of all keys at once the next ones would lie behind the end
  } else if (b.fetches) {
    // Rows and columns of more than one tile find a block in L2 again.
    block = std::max<int64_t>(block_bytes(a.rows) / (a.dim * type.size), 16);
  }
  do {
    b.keys = std::min(block, a.keys - b.key);
    ColumnRange(b, 0, a.dim);
    b.key += block;
  } while (b.key < a.keys);
}

void ValueTileF32(const ValueTile& a) { WeightedValues(a, kValueStorage<float>); }
void ValueTileBF16(const ValueTile& a) { WeightedValues(a, kValueStorage<bf16>); }
void ValueTileF16(const ValueTile& a) { WeightedValues(a, kValueStorage<f16>); }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_VALUE_TILE_H_
