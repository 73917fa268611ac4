// kBF16 where no instruction computes its chains: f32 multiply-adds with subnormal numbers flushed; and with BFMLALB and BFMLALT, which
// multiply numbers of bf16 as they are.
//
// Both chains of every sum are in registers, so a tile has half the rows of an f32 one. The sums themselves are touched once in 32 steps:
// they stay where they are stored.
//
// The control word is set around the tiles, and those are not inlined: no operation moves across.
#ifndef SIMDATTN_LIB_KERNELS_BF16_CHAINS_H_
#define SIMDATTN_LIB_KERNELS_BF16_CHAINS_H_

#include "lib/definition/flushed.h"
#include "lib/kernels/register_tile.h"
#include "lib/simd/flush_subnormals.h"

#define SIMDATTN_NOINLINE __attribute__((noinline))

namespace simdattn {
namespace {

/// Numbers per group: a chain over the first, third, ... of them and one over the others. Which of the two begins does not
/// matter, so a group that begins in its middle needs no care.
constexpr int64_t kChainGroup = 32;

/// Rows of the largest tile of two vectors; of four. Without fused multiply-add a product takes a register of its own.
constexpr int64_t kChainRows = kAvx512 ? 4 : kTileRows / 2;
constexpr int64_t kWideChainRows = kAvx512 ? 2 : kRegisters == 32 ? 3 : 1;
template <int64_t kVecs>
constexpr int64_t kMostChainRows = kVecs == 4 ? kWideChainRows : kChainRows;
/// The registers do not hold pairs of bf16 beside what they become: pairs are loaded twice.
template <int64_t kRows, int64_t kVecs>
constexpr bool kLoadsTwice = 2 * kRows * kVecs + 2 * kVecs + 1 > kRegisters;

/// f32 that may be any number: it is rounded before it comes to a tile. float: numbers of bf16.
struct Unrounded {
  float x;
};
/// T is how a cache stores numbers, not how they are packed.
template <class T>
constexpr bool kStored = std::is_same_v<T, bf16>;
/// Pairs of bf16 are multiplied as they are.
template <class T>
constexpr bool kInPairs = kMultipliesPairs && std::is_same_v<T, bf16>;
/// Tiles of four vectors: for all rows where they are as high as the others, else for the few rows of a decoding step.
template <class T>
constexpr bool kWide = std::is_same_v<T, bf16> || kWideChainRows == kChainRows;
constexpr bool takes_wide_tiles(int64_t rows) { return rows <= kWideChainRows || kWideChainRows == kChainRows; }

// Where no control word flushes, operands and results are flushed one by one.
SIMDATTN_INLINE Floats flushed(Floats v) {
  const Floats zero = float_of(bits_of(v) & Bits32(0x80000000u));
  return select(abs(v) < Floats(scalar::kSmallestNormal), zero, v);
}
SIMDATTN_NOINLINE Floats step_by_lanes(Floats a, Floats b, Floats c) {
  float x[kLanes], y[kLanes], z[kLanes];
  store(a, x), store(b, y), store(c, z);
  for (int64_t i = 0; i < kLanes; ++i) x[i] = scalar::flushed_fma(x[i], y[i], z[i]);
  return load(x);
}
SIMDATTN_INLINE Floats chain_sum(Floats a, Floats b) {
  if constexpr (FlushSubnormals::kByControlWord) return a + b;
  return flushed(flushed(a) + flushed(b));
}
SIMDATTN_INLINE Floats chain_step(Floats a, Floats b, Floats c) {
  if constexpr (FlushSubnormals::kByControlWord) return mul_add(a, b, c);
  const Floats sum = mul_add(flushed(a), flushed(b), flushed(c));
  // The smallest normal number may be a tiny one that was rounded up.
  if (any(abs(sum) == Floats(scalar::kSmallestNormal))) return step_by_lanes(a, b, c);
  return flushed(sum);
}

constexpr auto kFirstChain = std::integral_constant<int64_t, 0>();
constexpr auto kSecondChain = std::integral_constant<int64_t, 1>();
/// Chain k of row r and vector c: number (k * kRows + r) * kVecs + c.
template <int64_t kRows, int64_t kVecs>
using Chains = Registers<2 * kRows * kVecs>;

/// f(row, vector, r * kVecs + c) of a tile, as types.
template <int64_t kRows, int64_t kVecs, class F>
SIMDATTN_INLINE void each_sum(const F& f) {
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    unroll<kVecs>([&](auto c) SIMDATTN_LAMBDA { f(r, c, std::integral_constant<int64_t, r * kVecs + c>()); });
  });
}
/// chains[kChain][r][c] = multiply(x[r * stride], c, chains[kChain][r][c])
template <int64_t kChain, int64_t kRows, int64_t kVecs, class Multiply>
SIMDATTN_INLINE void add_to_chains(const float* x, int64_t stride, Chains<kRows, kVecs>& chains,
                                   const Multiply& multiply) {
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    const Floats factor(x[r * stride]);
    unroll<kVecs>([&](auto c) SIMDATTN_LAMBDA {
      Floats& sum = reg<(kChain * kRows + r) * kVecs + c>(chains);
      sum = multiply(factor, c, sum);
    });
  });
}
template <int64_t kRows, int64_t kVecs>
SIMDATTN_INLINE void clear_chains(Chains<kRows, kVecs>& chains) {
  unroll<2 * kRows * kVecs>([&](auto i) SIMDATTN_LAMBDA { reg<i>(chains) = Floats(0.0f); });
}
/// The sum of both chains.
template <int64_t kRows, int64_t kVecs, int64_t kIndex>
SIMDATTN_INLINE Floats joined(Chains<kRows, kVecs>& chains) {
  return chain_sum(reg<kIndex>(chains), reg<kRows * kVecs + kIndex>(chains));
}

// ---------------------------------------------------------------------------------------------------------------------
// Scores: lanes are keys

template <class T>
struct ScoreChains {
  const float* q;
  int64_t ldq;
  const T* low;   // the first half of the tile's columns
  const T* high;  // the second half: of the same panel or of the next
  int64_t dim;
  const float* scale;
  float* s;
  int64_t lds;
  PrefetchPlan prefetch;
};

template <class T, int64_t kRows, int64_t kVecs>
SIMDATTN_NOINLINE void score_chains_tile(const ScoreChains<T>& a) {
  constexpr bool kPairs = std::is_same_v<T, bf16>;
  constexpr int64_t kHalf = kVecs / 2;
  Chains<kRows, kVecs> chains;
  Registers<kVecs> columns;
  const int64_t ldq = a.ldq;
  const float* q = a.q;
  Cursor<const T> low(a.low), high(a.high);
  const auto load_columns = [&](const T* l, const T* h, auto chain) SIMDATTN_LAMBDA {
    unroll<kVecs>([&](auto c) SIMDATTN_LAMBDA {
      const T* const half = (c < kHalf ? l : h) + c % kHalf * (kPairs ? 2 : 1) * kLanes;
      if constexpr (!kPairs) {
        reg<c>(columns) = load(half + chain * kPanelWidth);
      } else if constexpr (kMultipliesPairs) {
        reg<c>(columns) = float_of(load_pairs(half));
      } else if constexpr (chain == 0) {
        reg<c>(columns) = even_of(load_pairs(half));
      } else {
        reg<c>(columns) = odd_of(load_pairs(half));
      }
    });
  };
  const auto add = [&](auto chain) SIMDATTN_LAMBDA {
    add_to_chains<chain, kRows, kVecs>(q + chain, ldq, chains, [&](Floats factor, auto c, Floats sum) SIMDATTN_LAMBDA {
      if constexpr (kInPairs<T>) {
        constexpr bool kOdd = chain == 1;
        return mul_add_pairs<kOdd>(factor, reg<c>(columns), sum);
      } else {
        return chain_step(factor, reg<c>(columns), sum);
      }
    });
  };
  const auto at = [&](auto r, auto c) SIMDATTN_LAMBDA { return a.s + r * a.lds + c * kLanes; };
  each_sum<kRows, kVecs>([&](auto r, auto c, auto) SIMDATTN_LAMBDA { store(Floats(0.0f), at(r, c)); });
  uintptr_t line = a.prefetch.first;
  const uintptr_t pitch = static_cast<uintptr_t>(a.prefetch.pitch);
  int64_t prefetches = a.prefetch.count;
  for (int64_t left = a.dim; left > 0;) {
    const int64_t group = smaller(left, kChainGroup);
    left -= group;
    clear_chains<kRows, kVecs>(chains);
#pragma GCC unroll 1
    for (int64_t i = 0; i < group / 2; ++i) {
      if (kStored<T> && prefetches > 0) {
        prefetch<2 * kVecs * kLanes * int64_t{sizeof(T)}>(line);
        line += pitch;
        --prefetches;
      }
      const T *l = low.get(), *h = high.get();
      load_columns(l, h, kFirstChain);
      add(kFirstChain);
      if constexpr (kPairs && !kMultipliesPairs && kLoadsTwice<kRows, kVecs>) hide(l), hide(h);
      load_columns(l, h, kSecondChain);
      add(kSecondChain);
      q += 2;
      low += 2 * kPanelWidth;
      high += 2 * kPanelWidth;
    }
    if (group % 2 != 0) {
      load_columns(low.get(), high.get(), kFirstChain);
      add(kFirstChain);
    }
    each_sum<kRows, kVecs>([&](auto r, auto c, auto i) SIMDATTN_LAMBDA {
      store(chain_sum(load(at(r, c)), joined<kRows, kVecs, i>(chains)), at(r, c));
    });
  }
  const Floats scale(*a.scale);
  each_sum<kRows, kVecs>([&](auto r, auto c, auto)
                             SIMDATTN_LAMBDA { store(chain_step(load(at(r, c)), scale, Floats(0.0f)), at(r, c)); });
}

/// What the tile of rows [first, first + rows) and kVecs vectors from column x on prefetches: its share of the panels to come,
/// 16 KiB ahead at least.
template <class T, int64_t kVecs>
SIMDATTN_INLINE PrefetchPlan chain_panels_to_come(const ScoreTile& a, int64_t x, int64_t first, int64_t rows) {
  constexpr int64_t kWidth = kVecs * kLanes;
  constexpr int64_t kPanels = (kWidth + kPanelWidth - 1) / kPanelWidth;
  constexpr int64_t kPair = 2 * static_cast<int64_t>(sizeof(T));
  const int64_t steps = (a.dim + 1) / 2;
  const int64_t bytes = steps * kPanelWidth * kPair;
  const int64_t ahead = (16384 + kPanels * bytes - 1) / (kPanels * bytes) * kPanels;
  const int64_t from = share_of_rows(first, a.rows, steps);
  const int64_t to = share_of_rows(first + rows, a.rows, steps);
  const int64_t offset =
      (x / kPanelWidth + ahead) * a.panel_stride + bytes * (x % kPanelWidth) / kPanelWidth + from * kWidth * kPair;
  return {address_at(static_cast<const char*>(a.panels), offset), kWidth * kPair, to - from};
}

/// All rows against kVecs vectors of columns from column `x` on.
template <class T, int64_t kVecs>
SIMDATTN_INLINE void score_chains_strip(const ScoreTile& a, int64_t x) {
  constexpr int64_t kStep = std::is_same_v<T, bf16> ? 2 : 1;  // dimensions that lie side by side
  const auto column = [&](int64_t c) {
    const char* panel = static_cast<const char*>(a.panels) + c / kPanelWidth * a.panel_stride;
    return reinterpret_cast<const T*>(panel) + c % kPanelWidth * kStep;
  };
  const int64_t ldq = a.q_stride / static_cast<int64_t>(sizeof(float));
  for (RowTiles t(a.rows, kMostChainRows<kVecs>); t.first < a.rows; t.next()) {
    const ScoreChains<T> arguments = {
        static_cast<const float*>(a.q) + t.first * ldq,
        ldq,
        column(x),
        column(x + kVecs / 2 * kLanes),
        a.dim,
        &a.scale,
        a.s + t.first * a.lds + x,
        a.lds,
        kStored<T> && a.fetches() ? chain_panels_to_come<T, kVecs>(a, x, t.first, t.rows) : PrefetchPlan()};
    with_rows<kMostChainRows<kVecs>>(t.rows,
                                     [&](auto r) SIMDATTN_LAMBDA { score_chains_tile<T, r, kVecs>(arguments); });
  }
}
template <class T>
void score_chains(const ScoreTile& a) {
  const FlushSubnormals flush;
  const int64_t columns = a.n_panels * kPanelWidth;
  int64_t x = 0;
  if constexpr (kWide<T>) {
    if (takes_wide_tiles(a.rows)) {
      for (; x + 4 * kLanes <= columns; x += 4 * kLanes) score_chains_strip<T, 4>(a, x);
    }
  }
  for (; x < columns; x += 2 * kLanes) score_chains_strip<T, 2>(a, x);
}

// ---------------------------------------------------------------------------------------------------------------------
// Values: lanes are columns

template <class T>
struct ValueChains {
  const float* w;
  int64_t ldw;
  const T* v;
  int64_t key_stride;
  int64_t first_group;  // keys up to the end of the group in which the first one is
  int64_t keys;
  float* o;
  int64_t ldo;
  const float* alpha;  // null: 1
  PrefetchPlan prefetch;
};

template <class T, int64_t kRows, int64_t kVecs>
SIMDATTN_NOINLINE void value_chains_tile(const ValueChains<T>& a) {
  constexpr bool kPairs = std::is_same_v<T, bf16>;  // registers hold even columns and odd columns apart
  Chains<kRows, kVecs> chains;
  Registers<kVecs> columns;
  const int64_t ldw = a.ldw;
  const float* w = a.w;
  Cursor<const T> v(a.v);
  const int64_t key_stride = a.key_stride;
  const auto load_columns = [&](const T* key) SIMDATTN_LAMBDA {
    unroll<kVecs / 2>([&](auto c) SIMDATTN_LAMBDA {
      if constexpr (kPairs) {
        const Bits32 pairs = load_pairs(key + 2 * c * kLanes);
        reg<2 * c>(columns) = kMultipliesPairs ? float_of(pairs) : even_of(pairs);
        if constexpr (!kMultipliesPairs) reg<2 * c + 1>(columns) = odd_of(pairs);
      } else {
        reg<2 * c>(columns) = load(key + 2 * c * kLanes);
        reg<2 * c + 1>(columns) = load(key + (2 * c + 1) * kLanes);
      }
    });
  };
  const auto add = [&](auto chain) SIMDATTN_LAMBDA {
    add_to_chains<chain, kRows, kVecs>(w + chain, ldw, chains, [&](Floats factor, auto c, Floats sum) SIMDATTN_LAMBDA {
      if constexpr (kInPairs<T>) {
        constexpr bool kOdd = c % 2 == 1;
        return mul_add_pairs<kOdd>(factor, reg<c - c % 2>(columns), sum);
      } else {
        return chain_step(factor, reg<c>(columns), sum);
      }
    });
  };
  const auto at = [&](auto r, auto c) SIMDATTN_LAMBDA { return a.o + r * a.ldo + c * kLanes; };
  if (a.alpha != nullptr) {
    each_sum<kRows, kVecs>([&](auto r, auto c, auto) SIMDATTN_LAMBDA {
      store(chain_step(Floats(a.alpha[r]), load(at(r, c)), Floats(0.0f)), at(r, c));
    });
  }
  uintptr_t line = a.prefetch.first;
  const uintptr_t pitch = static_cast<uintptr_t>(a.prefetch.pitch);
  int64_t prefetches = a.prefetch.count;
  int64_t left = a.keys;
  for (int64_t group = smaller(a.first_group, left); left > 0; group = smaller(left, kChainGroup)) {
    left -= group;
    clear_chains<kRows, kVecs>(chains);
#pragma GCC unroll 1
    for (int64_t i = 0; i < group / 2; ++i) {
      if (kStored<T> && prefetches > 0) {
        constexpr int64_t kBytes = kVecs * kLanes * int64_t{sizeof(T)};
        prefetch<kBytes>(line);
        prefetch<kBytes>(line + pitch);
        line += 2 * pitch;
        prefetches -= 2;
      }
      load_columns(v.get());
      add(kFirstChain);
      load_columns(v.get() + key_stride);
      add(kSecondChain);
      w += 2;
      v += 2 * key_stride;
    }
    if (group % 2 != 0) {
      load_columns(v.get());
      add(kFirstChain);
      w += 1;
      v += key_stride;
    }
    each_sum<kRows, kVecs / 2>([&](auto r, auto c, auto i) SIMDATTN_LAMBDA {
      float* const o = a.o + r * a.ldo + 2 * c * kLanes;
      const Floats even = joined<kRows, kVecs, 2 * i>(chains), odd = joined<kRows, kVecs, 2 * i + 1>(chains);
      store(chain_sum(load(o), kPairs ? zip_lower(even, odd) : even), o);
      store(chain_sum(load(o + kLanes), kPairs ? zip_upper(even, odd) : odd), o + kLanes);
    });
  }
}

/// What the tile of rows [first, first + rows) and kVecs vectors from column x on prefetches while it takes `keys` keys from
/// `key` on: its share of the next as many.
template <class T, int64_t kVecs>
SIMDATTN_INLINE PrefetchPlan chain_values_to_come(const ValueTile& a, int64_t key, int64_t keys, int64_t x,
                                                  int64_t first, int64_t rows) {
  constexpr int64_t kSize = static_cast<int64_t>(sizeof(T));
  const int64_t width = kVecs * kLanes * kSize;
  const int64_t from = first * keys / a.rows;
  const int64_t to = (first + rows) * keys / a.rows;
  const auto address = [&](int64_t offset) {
    return address_at(static_cast<const char*>(a.v), (key + keys) * a.key_stride + offset);
  };
  if (a.key_stride == a.dim * kSize) return {address(x * keys * kSize + from * width), width, to - from};
  return {address(from * a.key_stride + x * kSize), a.key_stride, to - from};
}

/// Columns [x, x + kVecs vectors) of `keys` keys from `key` on, for all rows.
template <class T, int64_t kVecs>
SIMDATTN_INLINE void value_chains_strip(const ValueTile& a, int64_t key, int64_t keys, int64_t x) {
  const char* group = static_cast<const char*>(a.v) + key * a.key_stride + x / kValueGroup * a.group_stride;
  const T* const v = reinterpret_cast<const T*>(group) + x % kValueGroup;
  const int64_t key_stride = a.key_stride / static_cast<int64_t>(sizeof(T));
  const int64_t first_group = kChainGroup - (a.first_key + key) % kChainGroup;
  const float* const alpha = key == 0 ? a.alpha : nullptr;
  for (RowTiles t(a.rows, kMostChainRows<kVecs>); t.first < a.rows; t.next()) {
    const ValueChains<T> arguments = {
        a.w + t.first * a.ldw + key,
        a.ldw,
        v,
        key_stride,
        first_group,
        keys,
        a.o + t.first * a.ldo + x,
        a.ldo,
        alpha != nullptr ? alpha + t.first : nullptr,
        kStored<T> && a.fetches() ? chain_values_to_come<T, kVecs>(a, key, keys, x, t.first, t.rows) : PrefetchPlan()};
    with_rows<kMostChainRows<kVecs>>(t.rows,
                                     [&](auto r) SIMDATTN_LAMBDA { value_chains_tile<T, r, kVecs>(arguments); });
  }
}
/// Columns [x, end) of `keys` keys from `key` on; multiples of kValueGroup.
template <class T>
SIMDATTN_NOINLINE void value_chains_columns(const ValueTile& a, int64_t key, int64_t keys, int64_t x, int64_t end) {
  const bool contiguous = a.group_stride == kValueGroup * static_cast<int64_t>(sizeof(T));
  if constexpr (kWide<T>) {
    if (takes_wide_tiles(a.rows) && (contiguous || 4 * kLanes <= kValueGroup)) {
      for (; x + 4 * kLanes <= end; x += 4 * kLanes) value_chains_strip<T, 4>(a, key, keys, x);
    }
  }
  for (; x < end; x += 2 * kLanes) value_chains_strip<T, 2>(a, key, keys, x);
}

/// Values of f32 are rounded once for all rows, a group of keys and 16 KiB at a time, which stay in L1.
SIMDATTN_NOINLINE void round_values(const ValueTile& a, int64_t key, int64_t keys, int64_t x, int64_t columns,
                                    float* out) {
  for (int64_t j = key; j < key + keys; ++j) {
    const char* const row = static_cast<const char*>(a.v) + j * a.key_stride + x / kValueGroup * a.group_stride;
    if (a.fetches()) {
      const uintptr_t next = address_at(row, kChainGroup * a.key_stride);
      for (int64_t byte = 0; byte < columns * 4; byte += 64) prefetch<64>(next + static_cast<uintptr_t>(byte));
    }
    for (int64_t c = 0; c < columns; c += kLanes, out += kLanes) {
      const char* const at = row + c / kValueGroup * a.group_stride;
      store(rounded_to_bf16(load(reinterpret_cast<const float*>(at) + c % kValueGroup)), out);
    }
  }
}
/// Numbers in rows, whose columns lie side by side.
SIMDATTN_NOINLINE void rounded_value_chains(const ValueTile& a, int64_t columns) {
  constexpr int64_t kColumns = 128;
  alignas(64) float values[kChainGroup * kColumns];
  int64_t key = 0;
  do {
    const int64_t group = kChainGroup - (a.first_key + key) % kChainGroup;
    const int64_t keys = smaller(a.keys - key, group);
    for (int64_t x = 0; x < columns; x += kColumns) {
      ValueTile part = a;
      part.dim = smaller(columns - x, kColumns);
      round_values(a, key, keys, x, part.dim, values);
      part.w = a.w + key;
      part.v = values;
      part.first_key = a.first_key + key;
      part.key_stride = part.dim * static_cast<int64_t>(sizeof(float));
      part.group_stride = kValueGroup * static_cast<int64_t>(sizeof(float));
      part.keys = keys;
      part.o = a.o + x;
      part.alpha = key == 0 ? a.alpha : nullptr;
      part.fetch = Fetch::kNone;
      value_chains_columns<float>(part, 0, keys, 0, part.dim);
    }
    key += group;
  } while (key < a.keys);
}
/// The columns from `x` on, less than kValueGroup of them, by way of copies that have all. Packed values have all.
template <class T>
SIMDATTN_NOINLINE void last_value_chains(const ValueTile& a, int64_t x) {
  const size_t columns = static_cast<size_t>(a.dim - x);
  alignas(64) T values[kChainGroup * kValueGroup] = {};
  alignas(64) float sums[kChainRows * kValueGroup] = {};
  for (int64_t key = 0; key < a.keys || key == 0;) {
    const int64_t group = kChainGroup - (a.first_key + key) % kChainGroup;
    const int64_t keys = smaller(a.keys - key, group);
    for (int64_t j = 0; j < keys; ++j) {
      const char* from = static_cast<const char*>(a.v) + (key + j) * a.key_stride + x / kValueGroup * a.group_stride;
      __builtin_memcpy(values + j * kValueGroup, from, columns * sizeof(T));
    }
    for (RowTiles t(a.rows, kChainRows); t.first < a.rows; t.next()) {
      float* const o = a.o + t.first * a.ldo + x;
      for (int64_t r = 0; r < t.rows; ++r)
        __builtin_memcpy(sums + r * kValueGroup, o + r * a.ldo, columns * sizeof(float));
      ValueTile part = a;
      part.w = a.w + t.first * a.ldw + key;
      part.rows = t.rows;
      part.v = values;
      part.first_key = a.first_key + key;
      part.key_stride = kValueGroup * static_cast<int64_t>(sizeof(T));
      part.group_stride = part.key_stride;
      part.keys = keys;
      part.o = sums;
      part.ldo = kValueGroup;
      part.alpha = a.alpha != nullptr && key == 0 ? a.alpha + t.first : nullptr;
      part.fetch = Fetch::kNone;
      if constexpr (kStored<T>) value_chains_columns<T>(part, 0, keys, 0, kValueGroup);
      else rounded_value_chains(part, kValueGroup);
      for (int64_t r = 0; r < t.rows; ++r)
        __builtin_memcpy(o + r * a.ldo, sums + r * kValueGroup, columns * sizeof(float));
    }
    key += group;
  }
}

/// Rows from beyond the caches are read in blocks of whole groups, all columns of a block before the next block, so that
/// memory is read in order; meanwhile the next block is prefetched. 128 KiB, which L2 holds: a line is read by one tile, and each tile
/// begins and joins chains, so that smaller blocks cost more.
SIMDATTN_INLINE int64_t value_block(const ValueTile& a, int64_t size) {
  const int64_t in_block = 131072 / (a.dim * size) / kChainGroup * kChainGroup;
  return a.fetches() ? larger(in_block, kChainGroup) : kKeyBlock;
}
/// Unrounded: of rows; float: of packed groups, which are whole.
template <class T>
void value_chains(const ValueTile& a) {
  const FlushSubnormals flush;
  const int64_t whole = a.dim / kValueGroup * kValueGroup;
  if constexpr (std::is_same_v<T, Unrounded>) {
    rounded_value_chains(a, whole);
  } else {
    const int64_t block = value_block(a, static_cast<int64_t>(sizeof(T)));
    int64_t key = 0;
    do {
      // The first block ends with a group.
      const int64_t most = block - (a.first_key + key) % kChainGroup;
      value_chains_columns<T>(a, key, smaller(a.keys - key, most), 0, whole);
      key += most;
    } while (key < a.keys);
  }
  if constexpr (!std::is_same_v<T, float>) {
    if (whole < a.dim) last_value_chains<T>(a, whole);
  }
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_BF16_CHAINS_H_
