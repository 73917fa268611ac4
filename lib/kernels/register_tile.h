// What score_tile.h and value_tile.h share: tiles of accumulators that fill the registers. What is added to them is an
// outer product: a column of broadcast numbers (queries, weights) times a row of batches (keys, columns of values).
//
// The functions of tiles and who instantiates them, most once for each number of rows. Each has a loop of its own,
// because they differ in what fills the registers, not in a parameter:
//   score_register_tile   kScoreTiles of score_tile.h          kF32, panels of f32, bf16, f16; a step is a dimension
//   score_chains_tile     kScoreChainTiles of bf16_chains.h    kBF16, panels of f32 and bf16; two chains a sum, joined
//                                                              in memory every 32 steps: half the rows fit
//   score_codes_tile      kCodeScores of narrow_scores.h       kF32, panels and rows of codes, which become numbers in
//                                                              registers: up to four rows
//   score_key_vectors     score_key_rows() of its header       kF32, rows of f32, bf16, f16, which are transposed in
//                                                              registers: up to four rows
//   int8_score_tile, int8_score_blocks_tile   int8.h           kInt8, panels of integers
//   value_register_tile   kValueTiles of value_tile.h          kF32, rows of f32, bf16, f16; packed values; a step is a
//                                                              key; sums come from memory and go back
//   value_chains_tile     kValueChainTiles of bf16_chains.h    kBF16, the same of f32 and bf16
//   value_codes_tile      kCodeValueTiles of narrow_values.h   kF32, rows of codes
//   int8_value_tile, int8_stored_tile         int8.h           kInt8, packed values; rows of int8
// int8.h is compiled once more for each overlay of lib/overlays/overlay.cc. amx.cc and avx512_bf16.cc have tiles of
// their own. lib/targets/table.cc puts what calls all these into the slots of a target.
#pragma once

#include "lib/contract/steps.h"
#include "lib/simd/math.h"
#include "lib/simd/memory.h"

namespace simdattn {
namespace {

/// Rows of the largest tile that is kBatches registers wide: its accumulators, the batches that are added and a
/// broadcast number must fit into 32 or 16 registers.
template <int64_t kBatches>
constexpr int64_t kRowsOf = kBatches <= 2      ? kTileRows
                            : kBatches == 3    ? 4
                            : kBatches == 8    ? kRegisters / 16  // no fault: any number of rows has the same bits
                            : kAvx512          ? 4
                            : kRegisters == 32 ? 6
                                               : 2;
/// AVX2: tiles of three or four rows are three batches wide. With two batches there are eight accumulators, each of
/// which would have to be used in the very cycle in which it is ready; converting columns delays that
/// (docs/performance.md).
constexpr bool kThreeBatches = kX86 && !kAvx512 && kTileRows == 6;
/// Rows of their tiles; 0: there are none.
constexpr int64_t kRowsOfThree = kThreeBatches ? kRowsOf<3> : 0;

/// acc[r][kFirst + c] += x[r * stride] * columns[c]: the innermost step of scores and of values.
template <int64_t kRows, int64_t kBatches, int64_t kFirst = 0, int64_t kColumns = kBatches>
SIMDATTN_INLINE void add_outer_product(const float* x, int64_t stride, Registers<kColumns>& columns,
                                       Registers<kRows * kBatches>& acc) {
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    if constexpr (kThreeBatches && kBatches == 3) {
      add_three(x + r * stride, columns, reg<3 * r>(acc), reg<3 * r + 1>(acc), reg<3 * r + 2>(acc));
    } else {
      const Floats factor(x[r * stride]);
      unroll<kColumns>([&](auto c) SIMDATTN_LAMBDA {
        Floats& sum = reg<r * kBatches + kFirst + c>(acc);
        sum = mul_add(factor, reg<c>(columns), sum);
      });
    }
  });
}

/// f(row, batch, row * kBatches + batch) for all of a tile, as types.
template <int64_t kRows, int64_t kBatches, class F>
SIMDATTN_INLINE void each_sum(const F& f) {
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA { f(r, c, constant<r * kBatches + c>); });
  });
}

/// Calls f with `rows` (1 .. kMax) as a type, so that it is a constant there.
template <int64_t kMax, class F>
SIMDATTN_INLINE void with_rows(int64_t rows, const F& f) {
  unroll<kMax>([&](auto r) SIMDATTN_LAMBDA {
    if (rows == r + 1) f(constant<r + 1>);
  });
}

/// Functions for tiles of 1, 2, ... `most` rows.
template <class Tile>
struct TilesByRows {
  int64_t most = 0;  // 0: there are none
  Tile* of[kTileRows] = {};
};
/// These functions: tile(rows), with the number of rows as a type. kMost may be 0.
template <class Tile, int64_t kMost, class F>
constexpr TilesByRows<Tile> tiles_by_rows(const F& tile) {
  TilesByRows<Tile> tiles = {kMost};
  unroll<kMost>([&](auto i) { tiles.of[i] = tile(constant<i + 1>); });
  return tiles;
}

/// What a tile prefetches into L2: in each of the first `count` steps of its loop a piece as large as what the step
/// reads, pieces `pitch` bytes apart. The tiles of some keys share what the next keys have, in memory order, so that
/// the hardware's prefetcher follows. The steps that prefetch are a loop of their own: no step has a branch.
struct PrefetchPlan {
  uintptr_t first = 0;
  int64_t pitch = 0;
  int64_t count = 0;
};
/// Prefetches kBytes, which may lie outside every object: into L2, or with 3 into L1.
template <int64_t kBytes, int kLocality = 2>
SIMDATTN_INLINE void prefetch(uintptr_t address) {
  unroll<(kBytes + 63) / 64>([&](auto line) SIMDATTN_LAMBDA {
    __builtin_prefetch(reinterpret_cast<const char*>(address + line * 64), 0, kLocality);
  });
}

}  // namespace
}  // namespace simdattn
