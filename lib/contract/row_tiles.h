// How kernels cut the rows of a tile into register tiles.
#ifndef SIMDATTN_LIB_CONTRACT_ROW_TILES_H_
#define SIMDATTN_LIB_CONTRACT_ROW_TILES_H_

#include <cstdint>

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

/// As few tiles of at most `most` rows as possible, of about equal size, the larger ones first:
///   for (RowTiles t(rows, most); t.first < rows; t.next()) { ... rows [t.first, t.first + t.rows) ... }
struct RowTiles {
  int64_t first = 0;
  int64_t rows;

  constexpr RowTiles(int64_t all, int64_t most) : rows(all), least(all) {
    if (all <= most) return;  // usual in decode, and without a division
    const uint32_t tiles = static_cast<uint32_t>((all + most - 1) / most);
    least = static_cast<uint32_t>(all) / tiles;
    larger = static_cast<uint32_t>(all) % tiles;
    rows = least + (larger > 0);
  }
  constexpr void next() {
    first += rows;
    --larger;
    rows = least + (larger > 0);
  }

 private:
  int64_t least;
  int64_t larger = 0;  // tiles to come, this one included, with one row more
};

/// What the tiles of rows [0, first) take of `count` things that the tiles of all rows share; one tile without a
/// division.
constexpr int64_t share_of_rows(int64_t first, int64_t rows, int64_t count) {
  return first == 0 ? 0 : first == rows ? count : first * count / rows;
}

/// True if RowTiles(rows, 6) are one or two tiles of three or four rows each.
constexpr bool in_tiles_of_three_or_four(int64_t rows) { return rows == 3 || rows == 4 || rows == 7 || rows == 8; }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_CONTRACT_ROW_TILES_H_
