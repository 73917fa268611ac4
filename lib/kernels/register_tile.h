// What score_tile.h and value_tile.h share: tiles of accumulators that fill the registers, to which outer products are
// added: a column of broadcast numbers (queries, weights) times a row of batches (keys, columns of values).
#ifndef SIMDATTN_LIB_KERNELS_REGISTER_TILE_H_
#define SIMDATTN_LIB_KERNELS_REGISTER_TILE_H_

#include "lib/contract/cursor.h"
#include "lib/contract/row_tiles.h"
#include "lib/simd/math.h"
#include "lib/simd/memory.h"

namespace simdattn {
namespace {

/// Rows of the largest tile that is kBatches registers wide: its accumulators, the batches of a row and a broadcast number must
/// fit into 32 or 16 registers.
template <int64_t kBatches>
constexpr int64_t kRowsOf = kBatches <= 2      ? kTileRows
                            : kBatches == 3    ? 4
                            : kBatches == 8    ? kRegisters / 16
                            : kAvx512          ? 4
                            : kRegisters == 32 ? 6
                                               : 2;

/// With 16 registers and multiply-adds in a single operation, tiles of three or four rows are three batches wide: the
/// eight accumulators of two would each have to be used in the very cycle in which they are ready, and converting columns
/// delays that (docs/performance.md).
constexpr bool kThreeBatches = kX86 && !kAvx512 && kTileRows == 6;

/// acc[r][c] += x[r * stride] * column[c]
template <int64_t kRows, int64_t kBatches>
SIMDATTN_INLINE void add_outer_product(const float* x, int64_t stride, Registers<kBatches>& column,
                                       Registers<kRows * kBatches>& acc) {
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    if constexpr (kThreeBatches && kBatches == 3) {
      add_three(x + r * stride, column, reg<3 * r>(acc), reg<3 * r + 1>(acc), reg<3 * r + 2>(acc));
    } else {
      const Floats factor(x[r * stride]);
      unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA {
        Floats& sum = reg<r * kBatches + c>(acc);
        sum = mul_add(factor, reg<c>(column), sum);
      });
    }
  });
}

/// load() of a tile's column.
template <class T>
SIMDATTN_INLINE Floats load_column(const T* p) {
  if constexpr (kThreeBatches && std::is_same_v<T, bf16>) {
    return load_in_order(raw(p));
  } else {
    return load(p);
  }
}

/// Calls f with `rows` (1 to kMax) as a type.
template <int64_t kMax, class F>
SIMDATTN_INLINE void with_rows(int64_t rows, const F& f) {
  unroll<kMax>([&](auto r) SIMDATTN_LAMBDA {
    if (rows == r + 1) f(std::integral_constant<int64_t, r + 1>());
  });
}

/// The tiles of 1, 2, ... `most` rows.
template <class Tile>
struct TilesByRows {
  int64_t most = 0;  // 0: there are none
  Tile* of[kTileRows] = {};
};
/// Of kMost rows, which may be 0: tile(rows), with the number of rows as a type.
template <class Tile, int64_t kMost, class F>
constexpr TilesByRows<Tile> tiles_by_rows(const F& tile) {
  TilesByRows<Tile> tiles = {kMost};
  unroll<kMost>([&](auto i) { tiles.of[i] = tile(std::integral_constant<int64_t, i + 1>()); });
  return tiles;
}

/// What a tile prefetches into L2: in each of the first `count` steps of its loop a piece as large
/// as what it reads, the pieces `pitch` bytes apart. Divided among the tiles of a block it covers the next block, in
/// memory order, so that the hardware's streams run ahead as well.
///
/// The steps that prefetch are a loop of their own, so that no step has a branch.
struct PrefetchPlan {
  uintptr_t first = 0;
  int64_t pitch = 0;
  int64_t count = 0;
};
/// Prefetches kBytes, which may lie outside every object.
template <int64_t kBytes>
SIMDATTN_INLINE void prefetch(uintptr_t address) {
  unroll<(kBytes + 63) / 64>(
      [&](auto line) SIMDATTN_LAMBDA { __builtin_prefetch(reinterpret_cast<const char*>(address + line * 64), 0, 2); });
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_REGISTER_TILE_H_
