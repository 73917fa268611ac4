// Weighted values around invisible keys whose values may be NaN or infinite.
#ifndef SIMDATTN_LIB_DRIVERS_VALUE_BLOCK_H_
#define SIMDATTN_LIB_DRIVERS_VALUE_BLOCK_H_

#include "lib/ukernels.h"

namespace simdattn {

/// A value tile in which invisible keys are skipped row by row instead of being multiplied by 0. Visible keys form the
/// same chain, so where all values are finite this gives the bits of the plain tile (a zero's sign apart, which
/// UKernels::finish settles). `visible(row, key)`.
template <class Visible>
void add_visible_values(void (*value_tile)(const ValueTile&), const ValueTile& tile, const Visible& visible) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    ValueTile run = tile;
    run.rows = 1;
    run.o = tile.o + r * tile.ldo;
    run.alpha = tile.alpha == nullptr ? nullptr : tile.alpha + r;
    if (run.alpha != nullptr) {
      run.keys = 0;
      value_tile(run);
      run.alpha = nullptr;
    }
    for (int64_t j = 0; j < tile.keys;) {
      if (!visible(r, j)) {
        ++j;
        continue;
      }
      const int64_t first = j;
      while (j < tile.keys && visible(r, j)) ++j;
      run.w = tile.w + r * tile.ldw + first;
      run.v = static_cast<const char*>(tile.v) + first * tile.key_stride;  // rows; of packed blocks the stride is 0
      run.first_key = tile.first_key + first;
      run.keys = j - first;
      value_tile(run);
    }
  }
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_VALUE_BLOCK_H_
