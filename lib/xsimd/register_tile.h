// What score_tile.h and value_tile.h share: tiles of accumulators that fill the registers, to which outer products are
// added: a column of broadcast numbers (queries, weights) times a row of batches (keys, columns of values).
#ifndef SIMDATTN_LIB_XSIMD_REGISTER_TILE_H_
#define SIMDATTN_LIB_XSIMD_REGISTER_TILE_H_

#include "lib/xsimd/math.h"
#include "lib/xsimd/memory.h"

namespace simdattn {
namespace {

/// Rows of the largest tile of kBatches columns: its accumulators, the batches of a row and a broadcast number must fit
/// into 32 or 16 registers.
template <int64_t kBatches>
constexpr int64_t kRowsOf = kBatches <= 2   ? kTileRows
                            : kBatches == 8 ? (!kX86 || kAvx512 ? 2 : 1)
                            : !kX86         ? 6
                            : kAvx512       ? 4
                                            : 2;

/// acc[r][c] += x[r * stride] * column[c]
template <int64_t kRows, int64_t kBatches>
SIMDATTN_INLINE void add_outer_product(const float* x, int64_t stride, Registers<kBatches>& column,
                                       Registers<kRows * kBatches>& acc) {
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    const Floats factor(x[r * stride]);
    unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA {
      Floats& sum = reg<r * kBatches + c>(acc);
      sum = xsimd::fma(factor, reg<c>(column), sum);
    });
  });
}

/// Cuts rows into as few tiles as possible, of about equal size: f(first row, rows).
template <class F>
SIMDATTN_INLINE void for_each_row_tile(int64_t rows, const F& f) {
  const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t first = rows * t / tiles;
    f(first, rows * (t + 1) / tiles - first);
  }
}

/// Calls f with `rows` (1 to kMax) as a type.
template <int64_t kMax, class F>
SIMDATTN_INLINE void with_rows(int64_t rows, const F& f) {
  unroll<kMax>([&](auto r) SIMDATTN_LAMBDA {
    if (rows == r + 1) f(std::integral_constant<int64_t, r + 1>());
  });
}

/// What a tile prefetches into the second-level cache: in each of the first `count` steps of its loop a piece as large
/// as what it reads, the pieces `pitch` bytes apart. Divided among the tiles of a block it covers the next block, in
/// memory order, so that the hardware's streams run ahead as well.
///
/// The steps that prefetch are a loop of their own: a branch in each step would cost a 4x2 tile a tenth of its time.
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

#endif  // SIMDATTN_LIB_XSIMD_REGISTER_TILE_H_
