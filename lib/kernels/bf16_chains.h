// kBF16 where no instruction computes its chains: f32 multiply-adds with subnormal numbers flushed; and with BFMLALB and BFMLALT, which
// multiply numbers of bf16 as they are.
//
// Both chains of every sum are in registers, so a tile has half the rows of an f32 one. The sums themselves are touched once in 32 steps:
// they stay where they are stored.
//
// The control word is set around the tiles, and those are not inlined: no operation moves across.
#ifndef SIMDATTN_LIB_KERNELS_BF16_CHAINS_H_
#define SIMDATTN_LIB_KERNELS_BF16_CHAINS_H_

#include "dispatch/environment.h"
#include "lib/definition/flushed.h"
#include "lib/kernels/score_tile.h"
#include "lib/kernels/value_tile.h"

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

/// T is bf16, as a cache stores it, or float: packed numbers of bf16.
template <class T>
constexpr bool kStored = std::is_same_v<T, bf16>;
/// Pairs of bf16 are multiplied as they are.
template <class T>
constexpr bool kInPairs = kMultipliesPairs && std::is_same_v<T, bf16>;
/// Rows of tiles of four vectors: all rows where those are as high as the others, else the few rows of a decoding step from a cache.
template <class T>
constexpr int64_t kWideRowsOf = kStored<T> || kWideChainRows == kChainRows ? kWideChainRows : 0;

// Where no control word flushes, operands and results are flushed one by one.
SIMDATTN_INLINE Floats flushed(Floats v) {
  const Floats zero = float_of(bits_of(v) & Bits32(0x80000000u));
  return select(abs(v) < Floats(scalar::kSmallestNormal), zero, v);
}
__attribute__((noinline)) Floats step_by_lanes(Floats a, Floats b, Floats c) {
  float x[kLanes], y[kLanes], z[kLanes];
  store(a, x), store(b, y), store(c, z);
  for (int64_t i = 0; i < kLanes; ++i) x[i] = scalar::flushed_fma(x[i], y[i], z[i]);
  return load(x);
}
SIMDATTN_INLINE Floats chain_sum(Floats a, Floats b) {
  if constexpr (kFlushesByControlWord) return a + b;
  return flushed(flushed(a) + flushed(b));
}
SIMDATTN_INLINE Floats chain_step(Floats a, Floats b, Floats c) {
  if constexpr (kFlushesByControlWord) return mul_add(a, b, c);
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

template <class T, int64_t kRows, int64_t kVecs>
__attribute__((noinline)) void score_chains_tile(const ScoreTileArguments& a) {
  constexpr bool kPairs = kStored<T>;
  constexpr int64_t kHalf = kVecs / 2;
  Chains<kRows, kVecs> chains;
  Registers<kVecs> columns;
  const int64_t ldq = a.ldq;
  const float* q = a.q;
  Cursor<const T> low(reinterpret_cast<const T*>(a.low)), high(reinterpret_cast<const T*>(a.high));
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
  const Floats scale(a.scale);
  each_sum<kRows, kVecs>([&](auto r, auto c, auto)
                             SIMDATTN_LAMBDA { store(chain_step(load(at(r, c)), scale, Floats(0.0f)), at(r, c)); });
}

template <class T, int64_t kVecs, class Rows = std::make_integer_sequence<int64_t, kMostChainRows<kVecs>>>
struct ScoreChainTiles;
template <class T, int64_t kVecs, int64_t... kRows>
struct ScoreChainTiles<T, kVecs, std::integer_sequence<int64_t, kRows...>> {
  static constexpr ScoreTileFunction* kTiles[] = {score_chains_tile<T, kRows + 1, kVecs>...};
};
template <class T>
constexpr ScoreTileFunction* const* wide_score_chains() {
  if constexpr (kWideRowsOf<T> > 0) return ScoreChainTiles<T, 4>::kTiles;
  return nullptr;
}
template <class T>
constexpr ScoreStorage kScoreChains = {
    kLaneBytes<T>,
    {nullptr, nullptr, ScoreChainTiles<T, 2>::kTiles, nullptr, wide_score_chains<T>()},
    kWideRowsOf<T>,
    kChainRows};
template <class T>
void score_chains(const ScoreTile& a) {
  const FlushSubnormals flush;
  score_tile(a, kScoreChains<T>, (a.dim + kStepDims<T> - 1) / kStepDims<T>);
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
__attribute__((noinline)) void value_chains_tile(const ValueChains<T>& a) {
  constexpr bool kPairs = kStored<T>;  // registers hold even columns and odd columns apart
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

/// Columns [x, x + kVecs vectors) for all rows.
template <class T, int64_t kVecs>
SIMDATTN_INLINE void value_chains_strip(const KeyBlock& b, int64_t x) {
  constexpr int64_t kSize = static_cast<int64_t>(sizeof(T));
  const ValueTile& a = b.a;
  for (RowTiles t(a.rows, kMostChainRows<kVecs>); t.first < a.rows; t.next()) {
    const ValueChains<T> arguments = {a.w + t.first * a.ldw + b.key,
                                      a.ldw,
                                      reinterpret_cast<const T*>(b.at(x)),
                                      a.key_stride / kSize,
                                      kChainGroup - (a.first_key + b.key) % kChainGroup,
                                      b.keys,
                                      a.o + t.first * a.ldo + x,
                                      a.ldo,
                                      b.alpha() != nullptr ? b.alpha() + t.first : nullptr,
                                      kStored<T> ? b.next(x, kVecs * kLanes * kSize, t.first, t.rows) : PrefetchPlan()};
    with_rows<kMostChainRows<kVecs>>(t.rows,
                                     [&](auto r) SIMDATTN_LAMBDA { value_chains_tile<T, r, kVecs>(arguments); });
  }
}
/// Columns [0, end); a multiple of kValueGroup.
template <class T>
__attribute__((noinline)) void value_chains_columns(const ValueTile& a, int64_t key, int64_t keys, int64_t end) {
  constexpr ValueStorage kStorage = {static_cast<int64_t>(sizeof(T)), {}, nullptr};
  const KeyBlock b = {a, kStorage, key, keys};
  int64_t x = 0;
  if constexpr (kWideRowsOf<T> > 0) {
    const bool contiguous = a.group_stride == kValueGroup * kStorage.size;
    if ((a.rows <= kWideRowsOf<T> || kWideRowsOf<T> == kChainRows) && (contiguous || 4 * kLanes <= kValueGroup)) {
      for (; x + 4 * kLanes <= end; x += 4 * kLanes) value_chains_strip<T, 4>(b, x);
    }
  }
  for (; x < end; x += 2 * kLanes) value_chains_strip<T, 2>(b, x);
}

/// The columns from `x` on, less than kValueGroup of them, by way of copies that have all.
template <class T>
__attribute__((noinline)) void last_value_chains(const ValueTile& a, int64_t x) {
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
      value_chains_columns<T>(part, 0, keys, kValueGroup);
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
template <class T>
void value_chains(const ValueTile& a) {
  const FlushSubnormals flush;
  const int64_t whole = a.dim / kValueGroup * kValueGroup;
  const int64_t block = value_block(a, static_cast<int64_t>(sizeof(T)));
  int64_t key = 0;
  do {
    // The first block ends with a group.
    const int64_t most = block - (a.first_key + key) % kChainGroup;
    value_chains_columns<T>(a, key, smaller(a.keys - key, most), whole);
    key += most;
  } while (key < a.keys);
  if (whole < a.dim) last_value_chains<T>(a, whole);
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_BF16_CHAINS_H_
