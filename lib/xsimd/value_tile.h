// Accumulates weighted values: lanes are columns of the values, the chain of fma runs over the keys.
#ifndef SIMDATTN_LIB_XSIMD_VALUE_TILE_H_
#define SIMDATTN_LIB_XSIMD_VALUE_TILE_H_

#include "lib/xsimd/register_tile.h"

namespace simdattn {
namespace {

/// Rows of values that come from beyond the caches are read in blocks of this size, all columns of a block before the
/// next block, so that memory is read in order; meanwhile the next block is prefetched.
constexpr int64_t kBlockBytes = 16384;

template <class T>
struct ValueTileArguments {
  const float* w;
  int64_t ldw;
  const T* v;
  int64_t key_stride;
  int64_t keys;
  float* o;
  int64_t ldo;
  const float* alpha;  // null: 1
  PrefetchPlan prefetch;
};
template <class T, int64_t kBatches>
constexpr int64_t kRowBytes = kBatches * kLanes * static_cast<int64_t>(sizeof(T));

/// kBatches batches of columns. An even number of batches of bf16 is read as pairs and accumulated even columns apart from
/// odd ones.
template <class T, int64_t kRows, int64_t kBatches>
__attribute__((noinline)) void value_register_tile(const ValueTileArguments<T>& a) {
  constexpr bool kPairs = std::is_same_v<T, bf16> && kBatches % 2 == 0;
  Registers<kRows * kBatches> acc;
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    const float* o = a.o + r * a.ldo;
    const Floats alpha(a.alpha != nullptr ? a.alpha[r] : 1.0f);
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

  const float* w = a.w;
  Cursor<const T> v(a.v);
  const int64_t ldw = a.ldw;
  const int64_t key_stride = a.key_stride;
  const int64_t keys = a.keys;
  uintptr_t next = a.prefetch.first;
  const uintptr_t prefetch_pitch = static_cast<uintptr_t>(a.prefetch.pitch);
  const int64_t prefetch_count = a.prefetch.count;
  const auto add_key = [&]() SIMDATTN_LAMBDA {
    Registers<kBatches> column;
    if constexpr (kPairs) {
      unroll<kBatches / 2>([&](auto c) SIMDATTN_LAMBDA {
        const Bits32 pairs = load_pairs(v.get() + 2 * c * kLanes);
        reg<2 * c>(column) = even_of(pairs);
        reg<2 * c + 1>(column) = odd_of(pairs);
      });
    } else {
      unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA { reg<c>(column) = load_column(v.get() + c * kLanes); });
    }
    add_outer_product<kRows, kBatches>(w, ldw, column, acc);
    ++w;
    v += key_stride;
  };
  int64_t j = 0;
  for (; j < prefetch_count; ++j) {
    prefetch<kRowBytes<T, kBatches>>(next);
    next += prefetch_pitch;
    add_key();
  }
  for (; j < keys; ++j) add_key();

  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    float* o = a.o + r * a.ldo;
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

/// What the tile of rows [first, first + rows) and kBatches batches from column x on prefetches while it takes `keys` keys
/// from `key` on: its share of the next as many.
template <class T, int64_t kBatches>
SIMDATTN_INLINE PrefetchPlan values_to_come(const ValueTile& a, int64_t key, int64_t keys, int64_t x, int64_t first,
                                            int64_t rows) {
  constexpr int64_t kSize = static_cast<int64_t>(sizeof(T));
  const int64_t from = first * keys / a.rows;
  const int64_t to = (first + rows) * keys / a.rows;
  const auto address = [&](int64_t offset) {
    return reinterpret_cast<uintptr_t>(a.v) + static_cast<uintptr_t>((key + keys) * a.key_stride + offset);
  };
  if (a.key_stride == a.dim * kSize) {
    constexpr int64_t kPitch = kRowBytes<T, kBatches>;
    return {address(x * keys * kSize + from * kPitch), kPitch, to - from};
  }
  return {address(from * a.key_stride + x * kSize), a.key_stride, to - from};
}

/// Columns [x, x + kBatches batches) of `keys` keys from `key` on, for all rows.
template <class T, int64_t kBatches>
SIMDATTN_INLINE void value_strip(const ValueTile& a, int64_t key, int64_t keys, int64_t x) {
  const char* group = static_cast<const char*>(a.v) + key * a.key_stride + x / kValueGroup * a.group_stride;
  const T* v = reinterpret_cast<const T*>(group) + x % kValueGroup;
  const int64_t key_stride = a.key_stride / static_cast<int64_t>(sizeof(T));
  for (RowTiles t(a.rows, kTileRows); t.first < a.rows; t.next()) {
    const int64_t first = t.first;
    const int64_t rows = t.rows;
    const float* alpha = a.alpha != nullptr && key == 0 ? a.alpha + first : nullptr;
    const ValueTileArguments<T> arguments = {
        a.w + first * a.ldw + key,
        a.ldw,
        v,
        key_stride,
        keys,
        a.o + first * a.ldo + x,
        a.ldo,
        alpha,
        a.stream ? values_to_come<T, kBatches>(a, key, keys, x, first, rows) : PrefetchPlan()};
    with_rows<kRowsOf<kBatches>>(rows, [&](auto r) SIMDATTN_LAMBDA { value_register_tile<T, r, kBatches>(arguments); });
  }
}

/// The last columns of a row, less than a batch of them: values and sums go through f32 of a batch's width, so that one tile
/// is enough for all types. (Tiles that read and write a part of a batch were a third of the code here.)
template <class T>
__attribute__((noinline)) void last_columns(const ValueTile& a, int64_t key, int64_t keys, int64_t x) {
  constexpr int64_t kWidened = 64;  // keys at a time
  const Lanes part = first_lanes(a.dim - x);
  alignas(64) float wide[kWidened * kLanes];
  alignas(64) float sums[kTileRows * kLanes];
  for (RowTiles t(a.rows, kTileRows); t.first < a.rows; t.next()) {
    const int64_t first = t.first;
    const int64_t rows = t.rows;
    float* o = a.o + first * a.ldo + x;
    for (int64_t r = 0; r < rows; ++r) store(load(o + r * a.ldo, part), sums + r * kLanes);
    const PrefetchPlan plan = a.stream ? values_to_come<T, 1>(a, key, keys, x, first, rows) : PrefetchPlan();
    int64_t done = 0;
    do {
      const int64_t count = smaller(kWidened, keys - done);
      for (int64_t j = 0; j < count; ++j) {
        const char* group =
            static_cast<const char*>(a.v) + (key + done + j) * a.key_stride + x / kValueGroup * a.group_stride;
        const T* v = reinterpret_cast<const T*>(group) + x % kValueGroup;
        store(load(v, part), wide + j * kLanes);
        if (done + j < plan.count) {
          prefetch<kRowBytes<T, 1>>(plan.first + static_cast<uintptr_t>((done + j) * plan.pitch));
        }
      }
      const float* alpha = a.alpha != nullptr && key == 0 && done == 0 ? a.alpha + first : nullptr;
      const ValueTileArguments<float> arguments = {
          a.w + first * a.ldw + key + done, a.ldw, wide, kLanes, count, sums, kLanes, alpha, PrefetchPlan()};
      with_rows<kTileRows>(rows, [&](auto r) SIMDATTN_LAMBDA { value_register_tile<float, r, 1>(arguments); });
      done += count;
    } while (done < keys);
    for (int64_t r = 0; r < rows; ++r) store(load(sums + r * kLanes), o + r * a.ldo, part);
  }
}

/// Columns [x, end) of `keys` keys from `key` on: the widest tiles that the rows leave registers for.
template <class T>
__attribute__((noinline)) void value_columns(const ValueTile& a, int64_t key, int64_t keys, int64_t x, int64_t end) {
  const auto fits = [&](int64_t batches, int64_t max_rows) SIMDATTN_LAMBDA {
    return x + batches * kLanes <= end && (a.rows <= max_rows || max_rows == kTileRows);
  };
  for (; fits(8, kRowsOf<8>); x += 8 * kLanes) value_strip<T, 8>(a, key, keys, x);
  for (; fits(4, kRowsOf<4>); x += 4 * kLanes) value_strip<T, 4>(a, key, keys, x);
  if constexpr (kThreeBatches) {
    if (in_tiles_of_three_or_four(a.rows)) {
      for (; fits(3, kTileRows) && end - x != 4 * kLanes; x += 3 * kLanes) value_strip<T, 3>(a, key, keys, x);
    }
  }
  for (; fits(2, kRowsOf<2>); x += 2 * kLanes) value_strip<T, 2>(a, key, keys, x);
  for (; x + kLanes <= end; x += kLanes) value_strip<T, 1>(a, key, keys, x);
  if (x < end) last_columns<T>(a, key, keys, x);
}

template <class T>
void value_tile(const ValueTile& a) {
  if (a.group_stride == kValueGroup * static_cast<int64_t>(sizeof(T))) {
    const int64_t in_block = larger(kBlockBytes / (larger(a.dim, 1) * static_cast<int64_t>(sizeof(T))), 16);
    const int64_t block = a.stream ? in_block : larger(a.keys, 1);
    int64_t key = 0;
    do {
      value_columns<T>(a, key, smaller(block, a.keys - key), 0, a.dim);
      key += block;
    } while (key < a.keys);
  } else {
    for (int64_t x = 0; x < a.dim; x += kValueGroup) {
      value_columns<T>(a, 0, a.keys, x, smaller(x + kValueGroup, a.dim));
    }
  }
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_XSIMD_VALUE_TILE_H_
