// kBF16 where no instruction computes its chains: f32 multiply-adds with subnormal numbers flushed; and with BFMLALB
// and BFMLALT, which multiply numbers of bf16 as they are.
//
// Both chains of every sum are in registers, so a tile has half the rows of an f32 one. The sums stay in memory,
// because they are touched once in 32 steps. One chain has the first, third, ... numbers of a group (kChainGroup), the
// other one the rest. Which of them begins does not matter, so a group that begins in its middle needs no care.
//
// The control word is set around the tiles, which are not inlined: compilers move arithmetic across changes of it.
#pragma once

#include "dispatch/environment.h"
#include "lib/definition/flushed.h"
#include "lib/kernels/score_tile.h"
#include "lib/kernels/softmax.h"
#include "lib/kernels/value_tile.h"

namespace simdattn {
namespace {

/// Rows of the largest tile of two vectors; of four. Without fused multiply-add a product takes a register of its own.
constexpr int64_t kChainRows = kAvx512 ? 4 : kTileRows / 2;
constexpr int64_t kWideChainRows = kAvx512 ? 2 : kRegisters == 32 ? 3 : 1;
template <int64_t kVecs>
constexpr int64_t kMostChainRows = kVecs == 4 ? kWideChainRows : kChainRows;
/// Pairs are loaded twice where registers do not hold them and what they become: else a sum would go to the stack.
template <int64_t kRows, int64_t kVecs>
constexpr bool kLoadsTwice = 2 * kRows * kVecs + 2 * kVecs + 1 > kRegisters;

/// T is bf16, as a cache stores it, or float: packed numbers of bf16.
template <class T>
constexpr bool kStored = std::is_same_v<T, bf16>;
/// Pairs of bf16 are multiplied as they are.
template <class T>
constexpr bool kInPairs = kMultipliesPairs && std::is_same_v<T, bf16>;
/// Rows of tiles of four vectors: any where these tiles are as high as the others, else the few of a decoding step.
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

/// Chain k of row r and vector c: number (k * kRows + r) * kVecs + c.
template <int64_t kRows, int64_t kVecs>
using Chains = Registers<2 * kRows * kVecs>;

/// chains[kChain][r][c] = chain_step(x[r * stride], column c, chains[kChain][r][c]). Where pairs are multiplied as they
/// are, those of kKeys have numbers of either chain, other ones of a column and the next one.
template <class T, bool kKeys, int64_t kChain, int64_t kRows, int64_t kVecs>
SIMDATTN_INLINE void add_to_chains(const float* x, int64_t stride, Registers<kVecs>& columns,
                                   Chains<kRows, kVecs>& chains) {
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    const std::conditional_t<kInPairs<T>, float, Floats> factor(x[r * stride]);  // mul_add_pairs() takes a number
    unroll<kVecs>([&](auto c) SIMDATTN_LAMBDA {
      Floats& sum = reg<(kChain * kRows + r) * kVecs + c>(chains);
      constexpr bool kOdd = (kKeys ? kChain : c % 2) == 1;
      if constexpr (kInPairs<T>) sum = mul_add_pairs<kOdd>(factor, reg<kKeys ? c : c - c % 2>(columns), sum);
      else sum = chain_step(factor, reg<c>(columns), sum);
    });
  });
}
/// The sum of both chains.
template <int64_t kRows, int64_t kVecs, int64_t kIndex>
SIMDATTN_INLINE Floats joined(Chains<kRows, kVecs>& chains) {
  return chain_sum(reg<kIndex>(chains), reg<kRows * kVecs + kIndex>(chains));
}

// ---- Scores: lanes are keys -----------------------------------------------------------------------------------------

/// The numbers of one chain, from the places of `low` and `high`.
template <class T, int64_t kVecs, class Chain>
SIMDATTN_INLINE void load_key_columns(const TileColumns<T, kVecs>& tile, const T* low, const T* high, Chain chain,
                                      Registers<kVecs>& columns) {
  unroll<kVecs>([&](auto c) SIMDATTN_LAMBDA {
    const T* const p = tile.at(low, high, c);
    if constexpr (!kStored<T>) reg<c>(columns) = load(p + chain * kPanelWidth);
    else if constexpr (kMultipliesPairs) reg<c>(columns) = float_of(load_pairs(p));
    else reg<c>(columns) = chain == 0 ? even_of(load_pairs(p)) : odd_of(load_pairs(p));
  });
}

template <class T, int64_t kRows, int64_t kVecs>
__attribute__((noinline)) void score_chains_tile(const ScoreTileArguments& a) {
  Chains<kRows, kVecs> chains;
  Registers<kVecs> columns;
  const int64_t ldq = a.ldq;
  const float* q = a.q;
  TileColumns<T, kVecs> tile(a);
  const auto add = [&](auto chain) SIMDATTN_LAMBDA {
    add_to_chains<T, true, chain, kRows, kVecs>(q + chain, ldq, columns, chains);
  };
  const auto at = [&](auto r, auto c) SIMDATTN_LAMBDA { return a.s + r * a.lds + c * kLanes; };
  each_sum<kRows, kVecs>([&](auto r, auto c, auto) SIMDATTN_LAMBDA { store(Floats(0.0f), at(r, c)); });
  uintptr_t line = a.prefetch.first;
  const uintptr_t pitch = static_cast<uintptr_t>(a.prefetch.pitch);
  int64_t prefetches = a.prefetch.count;
  for (int64_t left = a.dim; left > 0;) {
    const int64_t group = smaller(left, kChainGroup);
    left -= group;
    clear(chains);
#pragma GCC unroll 1
    for (int64_t i = 0; i < group / 2; ++i) {
      if (kStored<T> && prefetches > 0) {
        prefetch<2 * kVecs * kLanes * int64_t{sizeof(T)}>(line);
        line += pitch;
        --prefetches;
      }
      const T *l = tile.low.get(), *h = tile.high.get();
      load_key_columns(tile, l, h, constant<0>, columns);
      add(constant<0>);
      if constexpr (kStored<T> && !kMultipliesPairs && kLoadsTwice<kRows, kVecs>) hide(l), hide(h);
      load_key_columns(tile, l, h, constant<1>, columns);
      add(constant<1>);
      q += 2;
      unroll<2 / kStepDims<T>>([&](auto) SIMDATTN_LAMBDA { tile.step(); });
    }
    if (group % 2 != 0) {
      load_key_columns(tile, tile.low.get(), tile.high.get(), constant<0>, columns);
      add(constant<0>);
    }
    each_sum<kRows, kVecs>([&](auto r, auto c, auto i) SIMDATTN_LAMBDA {
      store(chain_sum(load(at(r, c)), joined<kRows, kVecs, i>(chains)), at(r, c));
    });
  }
  const Floats scale(a.scale);
  each_sum<kRows, kVecs>([&](auto r, auto c, auto)
                             SIMDATTN_LAMBDA { store(chain_step(load(at(r, c)), scale, Floats(0.0f)), at(r, c)); });
}

template <class T, int64_t kVecs, int64_t kMost = kMostChainRows<kVecs>>
constexpr ScoreTiles kScoreChainTiles =
    tiles_by_rows<ScoreTileFunction, kMost>([](auto rows) { return score_chains_tile<T, rows, kVecs>; });
template <class T>
constexpr ScoreStorage kScoreChains = {
    kLaneBytes<T>, kScoreChainTiles<T, 2>, {}, kScoreChainTiles<T, 4, kWideRowsOf<T>>};
template <class T>
void score_chains(const ScoreTile& a) {
  const FlushSubnormals flush;
  score_tile(a, kScoreChains<T>, (a.dim + kStepDims<T> - 1) / kStepDims<T>);
}

// ---- Values: lanes are columns --------------------------------------------------------------------------------------

/// The columns of a key. Of bf16 registers hold even columns and odd columns apart.
template <class T, int64_t kVecs>
SIMDATTN_INLINE void load_value_columns(const T* key, Registers<kVecs>& columns) {
  unroll<kVecs>([&](auto c) SIMDATTN_LAMBDA {
    if constexpr (!kStored<T>) {
      reg<c>(columns) = load(key + c * kLanes);
    } else if constexpr (c % 2 == 0) {
      const Bits32 pairs = load_pairs(key + c * kLanes);
      reg<c>(columns) = kMultipliesPairs ? float_of(pairs) : even_of(pairs);
      if constexpr (!kMultipliesPairs) reg<c + 1>(columns) = odd_of(pairs);
    }
  });
}

template <class T, int64_t kRows, int64_t kVecs>
__attribute__((noinline)) void value_chains_tile(const ValueTileArguments& a, const float* w, const void* values,
                                                 float* sums, const float* alphas, uintptr_t next) {
  Chains<kRows, kVecs> chains;
  Registers<kVecs> columns;
  const int64_t ldw = a.ldw;
  Cursor<const T> v(static_cast<const T*>(values));
  const int64_t key_stride = a.key_stride / static_cast<int64_t>(sizeof(T));
  const auto add = [&](auto chain) SIMDATTN_LAMBDA {
    add_to_chains<T, false, chain, kRows, kVecs>(w + chain, ldw, columns, chains);
  };
  const auto at = [&](auto r, auto c) SIMDATTN_LAMBDA { return sums + r * a.ldo + c * kLanes; };
  if (alphas != nullptr) {
    each_sum<kRows, kVecs>([&](auto r, auto c, auto) SIMDATTN_LAMBDA {
      store(chain_step(Floats(alphas[r]), load(at(r, c)), Floats(0.0f)), at(r, c));
    });
  }
  const uintptr_t pitch = static_cast<uintptr_t>(a.prefetch_pitch);
  int64_t prefetches = a.prefetch_count;
  int64_t group = kChainGroup - a.first_key % kChainGroup;  // keys up to the end of the group in which the first one is
  for (int64_t left = a.keys; left > 0; group = kChainGroup) {
    group = smaller(group, left);
    left -= group;
    clear(chains);
#pragma GCC unroll 1
    for (int64_t i = 0; i < group / 2; ++i) {
      if (kStored<T> && prefetches > 0) {
        prefetch<kRowBytes<T, kVecs>>(next);
        prefetch<kRowBytes<T, kVecs>>(next + pitch);
        next += 2 * pitch;
        prefetches -= 2;
      }
      load_value_columns<T, kVecs>(v.get(), columns);
      add(constant<0>);
      load_value_columns<T, kVecs>(v.get() + key_stride, columns);
      add(constant<1>);
      w += 2;
      v += 2 * key_stride;
    }
    if (group % 2 != 0) {
      load_value_columns<T, kVecs>(v.get(), columns);
      add(constant<0>);
      w += 1;
      v += key_stride;
    }
    each_sum<kRows, kVecs>([&](auto r, auto c, auto i) SIMDATTN_LAMBDA {
      Floats sum = joined<kRows, kVecs, i>(chains);
      if constexpr (kStored<T>) {
        const Floats even = joined<kRows, kVecs, i - c % 2>(chains), odd = joined<kRows, kVecs, i - c % 2 + 1>(chains);
        sum = c % 2 == 0 ? zip_lower(even, odd) : zip_upper(even, odd);
      }
      store(chain_sum(load(at(r, c)), sum), at(r, c));
    });
  }
}

template <class T, int64_t kVecs, int64_t kMost = kMostChainRows<kVecs>>
constexpr ValueTiles kValueChainTiles =
    tiles_by_rows<ValueTileFunction, kMost>([](auto rows) { return value_chains_tile<T, rows, kVecs>; });
/// Portions of 128 KiB, which L2 holds: larger than those of kF32, because each tile begins and joins chains.
template <class T>
constexpr ValueStorage kValueChains = {.size = sizeof(T),
                                       .portion_bytes = 131072,
                                       .two = kValueChainTiles<T, 2>,
                                       .four = kValueChainTiles<T, 4, kWideRowsOf<T>>,
                                       .widened = kValueChainTiles<float, 1>,
                                       .widen_last = widen_last<T>};
template <class T>
void value_chains(const ValueTile& a) {
  const FlushSubnormals flush;
  value_tile(a, kValueChains<T>);
}

/// By the names that lib/contract/table_of_kernels.h asks for.
struct Bf16Kernels {
  SIMDATTN_SHARED static void round(const float* in, float* out, int64_t n) {
    for_each_batch(
        n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store(rounded_to_bf16(load(in + i, part)), out + i, part); });
  }
  static constexpr auto score_tile = score_chains<float>;
  static constexpr auto score_tile_bf16 = score_chains<bf16>;
  static constexpr auto value_tile = value_chains<float>;
  static constexpr auto value_tile_bf16 = value_chains<bf16>;
  static constexpr auto softmax_tile = simdattn::softmax_tile<true>;
};

}  // namespace
}  // namespace simdattn
