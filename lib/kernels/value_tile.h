// Accumulates weighted values: lanes are columns of the values, the chain of fma runs over the keys.
#pragma once

#include "lib/kernels/register_tile.h"

namespace simdattn {
namespace {

/// Values that come from beyond the caches are read in portions of about so many bytes, all columns of a portion before
/// the next one, so that memory is read in order; meanwhile the next portion is prefetched.
/// A portion is whole chain groups, counted from the first key of the key block.
constexpr int64_t portion_bytes(int64_t rows) { return rows == 1 ? 16384 : kAvx512 ? 32768 : 65536; }
/// So many bytes of values stay in L2 whatever the order: one call of a tile takes all their keys.
constexpr int64_t kWholeBytes = int64_t{1} << 18;

/// What the tiles of some keys have in common. What differs from tile to tile is passed in registers: as members it
/// would be stored for each tile and loaded again between the multiply-adds.
struct ValueTileArguments {
  int64_t ldw;
  int64_t key_stride;
  int64_t keys;
  int64_t ldo;
  int64_t prefetch_pitch;
  int64_t prefetch_count;               // how often kRowBytes<T, kBatches> are prefetched, once a key
  const float* scales;                  // of the keys, of narrow types
  int64_t first_key;                    // as in ValueTile
  int64_t column;                       // of the tile
  const char* const* listed = nullptr;  // as in ValueTile
};
/// alpha: null: 1. prefetched: where the first of those bytes are; of a list their place in rows prefetch_pitch
/// further.
using ValueTileFunction = void(const ValueTileArguments& a, const float* w, const void* values, float* sums,
                               const float* alpha, uintptr_t prefetched);
template <class T, int64_t kBatches>
constexpr int64_t kRowBytes = kBatches * kLanes * static_cast<int64_t>(sizeof(T));

/// The sums of a tile, times alpha. kPairs: even columns apart from odd ones.
template <int64_t kRows, int64_t kBatches, bool kPairs>
SIMDATTN_INLINE void load_sums(const float* sums, int64_t ldo, const float* alphas, Registers<kRows * kBatches>& acc) {
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    const float* o = sums + r * ldo;
    const Floats alpha(alphas != nullptr ? alphas[r] : 1.0f);
    unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA { reg<r * kBatches + c>(acc) = alpha * load(o + c * kLanes); });
    if constexpr (kPairs) {
      unroll<kBatches / 2>([&](auto c) SIMDATTN_LAMBDA {
        Floats& low = reg<r * kBatches + 2 * c>(acc);
        Floats& high = reg<r * kBatches + 2 * c + 1>(acc);
        const Floats even = even_lanes(low, high);
        high = odd_lanes(low, high);
        low = even;
      });
    }
  });
}
template <int64_t kRows, int64_t kBatches, bool kPairs>
SIMDATTN_INLINE void store_sums(Registers<kRows * kBatches>& acc, float* sums, int64_t ldo) {
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    float* o = sums + r * ldo;
    if constexpr (kPairs) {
      unroll<kBatches / 2>([&](auto c) SIMDATTN_LAMBDA {
        const Floats even = reg<r * kBatches + 2 * c>(acc);
        const Floats odd = reg<r * kBatches + 2 * c + 1>(acc);
        store(zip_lower(even, odd), o + 2 * c * kLanes);
        store(zip_upper(even, odd), o + (2 * c + 1) * kLanes);
      });
    } else {
      unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA { store(reg<r * kBatches + c>(acc), o + c * kLanes); });
    }
  });
}

/// An even number of batches of bf16 is read as pairs and accumulated even columns apart from odd ones.
template <class T, int64_t kRows, int64_t kBatches>
__attribute__((noinline)) void value_register_tile(const ValueTileArguments& a, const float* w, const void* values,
                                                   float* sums, const float* alphas, uintptr_t next) {
  constexpr bool kPairs = std::is_same_v<T, bf16> && kBatches % 2 == 0;
  const int64_t ldo = a.ldo;
  Registers<kRows * kBatches> acc;
  load_sums<kRows, kBatches, kPairs>(sums, ldo, alphas, acc);

  Cursor<const T> v(static_cast<const T*>(values));
  const int64_t ldw = a.ldw;
  const int64_t key_stride = a.key_stride / static_cast<int64_t>(sizeof(T));
  const int64_t keys = a.keys;
  const uintptr_t prefetch_pitch = static_cast<uintptr_t>(a.prefetch_pitch);
  const int64_t prefetch_count = a.prefetch_count;
  const auto add_key = [&]() SIMDATTN_LAMBDA {
    Registers<kBatches> column;
    if constexpr (kPairs) {
      unroll<kBatches / 2>([&](auto c) SIMDATTN_LAMBDA {
        const Bits32 pairs = load_pairs(v.get() + 2 * c * kLanes);
        // One row leaves the ports of shuffles as the bound: every other vector is shifted, which takes another port.
        reg<2 * c>(column) = kRows == 1 && c % 2 == 0 ? shifted_even_of(pairs) : even_of(pairs);
        reg<2 * c + 1>(column) = odd_of(pairs);
      });
    } else {
      unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA {
        const T* const p = v.get() + c * kLanes;
        if constexpr (kThreeBatches && std::is_same_v<T, bf16>) reg<c>(column) = load_in_order(raw(p));
        else reg<c>(column) = load(p);
      });
    }
    add_outer_product<kRows, kBatches>(w, ldw, column, acc);
    ++w;
    v += key_stride;
  };
  int64_t j = 0;
  for (; a.listed != nullptr && j < keys; ++j) {
    v = Cursor<const T>(reinterpret_cast<const T*>(a.listed[j]) + a.column);
    if (j < prefetch_count) {
      prefetch<kRowBytes<T, kBatches>>(address_at(a.listed[a.prefetch_pitch + j], static_cast<int64_t>(next)));
    }
    add_key();
  }
  for (; j < prefetch_count; ++j) {
    prefetch<kRowBytes<T, kBatches>>(next);
    next += prefetch_pitch;
    add_key();
  }
  for (; j < keys; ++j) add_key();
  store_sums<kRows, kBatches, kPairs>(acc, sums, ldo);
}

using ValueTiles = TilesByRows<ValueTileFunction>;
template <class T, int64_t kBatches, int64_t kMost = kRowsOf<kBatches>>
constexpr ValueTiles kValueTiles =
    tiles_by_rows<ValueTileFunction, kMost>([](auto rows) { return value_register_tile<T, rows, kBatches>; });

/// The last columns, less than a batch of them, of `keys` keys as f32, a batch each.
template <class T>
__attribute__((noinline)) void widen_last(const void* v, int64_t key_stride, const float* /*scales*/, int64_t keys,
                                          int64_t columns, float* wide) {
  const Lanes part = first_lanes(columns);
  Cursor<const char> at(static_cast<const char*>(v));
  for (int64_t j = 0; j < keys; ++j) {
    store(load(reinterpret_cast<const T*>(at.get()), part), wide + j * kLanes);
    at += key_stride;
  }
}

/// What depends on the type of the values. All else is one body for all types.
struct ValueStorage {
  int64_t size;                                                      // of a number; 0: scale blocks are taken whole
  int64_t portion_bytes = 0;                                         // 0: as portion_bytes() says
  ValueTiles one = {}, two = {}, three = {}, four = {}, eight = {};  // by batches
  ValueTiles widened = kValueTiles<float, 1>;                        // for last_columns()
  decltype(widen_last<float>)* widen_last;

  const ValueTiles& tiles(int64_t batches) const {
    return batches == 8 ? eight : batches == 4 ? four : batches == 3 ? three : batches == 2 ? two : one;
  }
};
/// Rows of tiles of one batch: the last columns of all types are made f32 numbers, so other types have none.
template <class T>
constexpr int64_t kRowsOfOne = std::is_same_v<T, float> ? kRowsOf<1> : 0;
template <class T>
constexpr ValueStorage kValueStorage = {.size = sizeof(T),
                                        .one = kValueTiles<T, 1, kRowsOfOne<T>>,
                                        .two = kValueTiles<T, 2>,
                                        .three = kValueTiles<T, 3, kRowsOfThree>,
                                        .four = kValueTiles<T, 4>,
                                        .eight = kValueTiles<T, 8>,
                                        .widen_last = widen_last<T>};

/// Keys [key, key + keys) of a ValueTile, which are read together.
struct ValuePortion {
  const ValueTile& a;
  const ValueStorage& type;
  int64_t key;
  int64_t keys;
  bool fetches;  // the next as many keys, unless they are of a list, which are always fetched

  const float* alpha() const { return key == 0 ? a.alpha : nullptr; }
  const float* scales() const { return a.scales != nullptr ? a.scales + key : nullptr; }
  /// Of column x in a row.
  int64_t offset(int64_t x) const { return x / kValueGroup * a.group_stride + x % kValueGroup * type.size; }
  const char* at(int64_t x) const { return static_cast<const char*>(a.v) + key * a.key_stride + offset(x); }
  /// The share of the next as many keys that the tile of rows [first, first + rows), `bytes` from column x on,
  /// prefetches.
  SIMDATTN_INLINE PrefetchPlan next(int64_t x, int64_t bytes, int64_t first, int64_t rows) const {
    if (!fetches && a.listed == nullptr) return {};
    const int64_t from = share_of_rows(first, a.rows, keys);
    const int64_t to = share_of_rows(first + rows, a.rows, keys);
    if (a.listed != nullptr) return {static_cast<uintptr_t>(offset(x)), kPanelWidth + from, to - from};
    const auto address = [&](int64_t offset) {
      return reinterpret_cast<uintptr_t>(a.v) + static_cast<uintptr_t>((key + keys) * a.key_stride + offset);
    };
    if (a.key_stride == offset(a.dim)) return {address(offset(x) * keys + from * bytes), bytes, to - from};
    return {address(from * a.key_stride + offset(x)), a.key_stride, to - from};
  }
};

/// A batch of columns from x on, or the last ones, as f32 of a batch's width: one tile is enough for all types.
SIMDATTN_SHARED void last_columns(const ValuePortion& b, int64_t x) {
  constexpr int64_t kWidened = 64;  // keys at a time
  const ValueTile& a = b.a;
  const int64_t columns = smaller(a.dim - x, kLanes);
  const Lanes part = first_lanes(columns);
  const char* const v = b.at(x);
  alignas(64) float wide[kWidened * kLanes];
  alignas(64) float sums[kTileRows * kLanes];
  for (RowTiles t(a.rows, b.type.widened.most); t.first < a.rows; t.next()) {
    float* const o = a.o + t.first * a.ldo + x;
    for (int64_t r = 0; r < t.rows; ++r) store(load(o + r * a.ldo, part), sums + r * kLanes);
    const PrefetchPlan plan = b.next(x, kLanes * b.type.size, t.first, t.rows);
    const float* alpha = b.alpha() != nullptr ? b.alpha() + t.first : nullptr;
    int64_t done = 0;
    do {
      const int64_t first_key = a.first_key + b.key + done;
      const int64_t count = smaller(kWidened - first_key % kChainGroup, b.keys - done);
      for (int64_t j = done; j < smaller(done + count, plan.count); ++j)
        prefetch<kLanes>(plan.first + static_cast<uintptr_t>(j * plan.pitch));
      b.type.widen_last(v + done * a.key_stride, a.key_stride, b.scales() != nullptr ? b.scales() + done : nullptr,
                        count, columns, wide);
      b.type.widened.of[t.rows - 1](
          {a.ldw, kLanes * static_cast<int64_t>(sizeof(float)), count, kLanes, 0, 0, nullptr, first_key, x},
          a.w + t.first * a.ldw + b.key + done, wide, sums, alpha, 0);
      alpha = nullptr;
      done += count;
    } while (done < b.keys);
    for (int64_t r = 0; r < t.rows; ++r) store(load(sums + r * kLanes), o + r * a.ldo, part);
  }
}

/// Batches of the widest tile that `columns` columns fill and `rows` rows leave registers for. 0: none.
SIMDATTN_INLINE int64_t batches_of_tile(const ValueStorage& type, int64_t rows, int64_t columns) {
  const auto fits = [&](int64_t batches) SIMDATTN_LAMBDA {
    const int64_t most = type.tiles(batches).most;
    return columns >= batches * kLanes && (rows <= most || most == type.two.most);
  };
  if (fits(8)) return 8;
  if (fits(4)) return 4;
  // Four batches are left to two tiles of two.
  if (type.three.most > 0 && in_tiles_of_three_or_four(rows) && columns >= 3 * kLanes && columns != 4 * kLanes)
    return 3;
  return fits(2) ? 2 : fits(1) ? 1 : 0;
}

/// Columns [x, end) of all rows.
SIMDATTN_SHARED void value_columns(const ValuePortion& b, int64_t x, int64_t end) {
  const ValueTile& a = b.a;
  ValueTileArguments t = {a.ldw, a.key_stride, b.keys, a.ldo, 0, 0, b.scales(), a.first_key + b.key, x, a.listed};
  while (const int64_t batches = batches_of_tile(b.type, a.rows, end - x)) {
    const int64_t bytes = b.offset(x + batches * kLanes) - b.offset(x);
    const ValueTiles& tiles = b.type.tiles(batches);
    const char* const v = b.at(x);
    for (RowTiles r(a.rows, tiles.most); r.first < a.rows; r.next()) {
      const PrefetchPlan next = b.next(x, bytes, r.first, r.rows);
      t.column = x;
      t.prefetch_pitch = next.pitch;
      t.prefetch_count = next.count;
      tiles.of[r.rows - 1](t, a.w + r.first * a.ldw + b.key, v, a.o + r.first * a.ldo + x,
                           b.alpha() != nullptr ? b.alpha() + r.first : nullptr, next.first);
    }
    x += batches * kLanes;
  }
  for (; x < end; x += kLanes) last_columns(b, x);
}

/// One row of weights and rows of values of more columns than a tile has: in the order of memory, with the sums in L1.
/// Not with 4 lanes, because so many loads and stores of sums would take longer than memory.
__attribute__((noinline)) inline void rows_in_order(const ValueTile& a) {
  const int64_t key_stride = a.key_stride / static_cast<int64_t>(sizeof(float));
  const int64_t dim = a.dim, keys = a.keys;
  const float* const w = a.w;
  float* const o = a.o;
  const float* v = static_cast<const float*>(a.v);
  if (a.alpha != nullptr) {
    const Floats alpha(*a.alpha);
    for (int64_t x = 0; x < dim; x += kLanes) store(alpha * load(o + x), o + x);
  }
  for (int64_t j = 0; j < keys; ++j, v += key_stride) {
    const Floats weight(w[j]);
    for (int64_t x = 0; x < dim; x += kLanes) store(mul_add(weight, load(v + x), load(o + x)), o + x);
  }
}

SIMDATTN_SHARED void value_tile(const ValueTile& a, const ValueStorage& type) {
  ValuePortion b = {a, type, 0, a.keys, a.fetches()};
  if (type.size != 0 && a.group_stride != kValueGroup * type.size) {
    for (int64_t x = 0; x < a.dim; x += kValueGroup) value_columns(b, x, smaller(x + kValueGroup, a.dim));
    return;
  }
  const bool one_tile = a.rows == 1 && (a.dim == 8 * kLanes || a.dim == 4 * kLanes);
  int64_t portion = one_tile || a.keys * b.offset(a.dim) <= kWholeBytes ? a.keys + kChainGroup : kKeyBlock;
  // One tile of a single row reads rows of values whole and in order, so a CPU's own prefetcher may keep up. Codes of 8
  // bits and fewer take longer than their memory.
  if (a.fetch == Fetch::kHardware && one_tile && type.size > 1) b.fetches = false;
  // Rows and columns of more than one tile find a portion in L2 again.
  if (b.fetches) {
    const int64_t bytes = type.portion_bytes != 0 ? type.portion_bytes : portion_bytes(a.rows);
    portion = larger(bytes / larger(b.offset(a.dim), 1) / kChainGroup, 1) * kChainGroup;
  }
  do {
    b.keys = smaller(portion - (a.first_key + b.key) % kChainGroup, a.keys - b.key);
    value_columns(b, 0, a.dim);
    b.key += b.keys;
  } while (b.key < a.keys);
}
template <class T>
void value_tile(const ValueTile& a) {
  if (std::is_same_v<T, float> && kLanes > 4 && a.fetches() && a.rows == 1 && a.dim > 8 * kLanes &&
      a.dim % kLanes == 0 && a.group_stride == kValueGroup * int64_t{sizeof(float)}) {
    return rows_in_order(a);
  }
  value_tile(a, kValueStorage<T>);
}

}  // namespace
}  // namespace simdattn
