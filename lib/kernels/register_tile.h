// What score_tile.h and value_tile.h share: tiles of accumulators that fill the registers. What is added to them is an
// outer product: a column of broadcast numbers (queries, weights) times a row of batches (keys, columns of values).
//
// Each loop over such a tile has a text of its own, because they differ in what fills the registers, not in a
// parameter:
//   score_tile.h      a step is a dimension of a panel; sums begin with 0 and leave times the scale
//   value_tile.h      a step is a key, whose row has the columns; sums come from memory, times alpha, and go back
//   bf16_chains.h     two chains a sum, joined into a sum in memory every 32 steps: half the rows fit
//   int8.h            integers, four or eight dimensions or keys a step
//   score_key_rows.h  columns are transposed in registers, which leaves room for four rows
//   narrow_scores.h, narrow_values.h   columns are made from codes in registers: four rows as well
#pragma once

#include "lib/contract/steps.h"
#include "lib/simd/math.h"
#include "lib/simd/memory.h"

namespace simdattn {
namespace {

/// Rows of the largest tile that is kBatches registers wide: its accumulators, the kBatches that are added and a
/// broadcast number must fit into 32 or 16 registers.
template <int64_t kBatches>
constexpr int64_t kRowsOf = kBatches <= 2      ? kTileRows  // no fault: any number of rows gives the same bits
                            : kBatches == 3    ? 4
                            : kBatches == 8    ? kRegisters / 16
                            : kAvx512          ? 4
                            : kRegisters == 32 ? 6
                                               : 2;

/// AVX2: tiles of three or four rows are three batches wide. With two batches there are eight accumulators, each of
/// which would have to be used in the very cycle in which it is ready; converting columns delays that
/// (docs/performance.md).
constexpr bool kThreeBatches = kX86 && !kAvx512 && kTileRows == 6;

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
