#include "lib/drivers/attention/key_block.h"

namespace simdattn {

bool modify_tile(const RowBlock& rows, const KeyBlock& block, const TileRows& tile) {
  const Modifiers& modifiers = rows.run.modifiers;
  if (!modifiers.any && !block.holes) return false;
  bool masked = false;
  for (int64_t i = 0; i < tile.count; ++i) {
    const int64_t r = tile.first + i;
    const SeenColumns& seen = block.row[r];
    float* const s = rows.scores(i);
    const int64_t end = modifiers.changes_all ? seen.hi : seen.to;
    for (int64_t c = modifiers.changes_all ? seen.lo : seen.from, n; modifiers.any && c < end; c += n) {
      n = modifiers.by_position ? block.adjacent(c, end) : end - c;
      masked |= modify(rows.kernels, {rows.modifiers(r), s, s, block.key(c) - c, c, c + n, 1.0f}).masked;
    }
    for (int64_t c = seen.lo; block.holes && c < seen.hi; ++c) {
      if (rows.see(r).has(block.key(c))) continue;
      s[c] = -kInf;
      masked = true;
    }
  }
  return masked;
}

void weigh(const RowBlock& rows, const KeyBlock& block, const TileRows& tile, const RowStates& states) {
  const int64_t first = panel_start(tile.see.lo);  // a multiple of 16: sums count elements modulo 16
  int32_t lo[kScoreRows], hi[kScoreRows];
  for (int64_t i = 0; i < tile.count; ++i) {
    const SeenColumns& seen = block.row[tile.first + i];
    lo[i] = seen.none() ? 0 : seen.lo - static_cast<int32_t>(first);
    hi[i] = seen.none() ? 0 : seen.hi - static_cast<int32_t>(first);
  }
  rows.arithmetic.softmax_tile({.s = rows.memory.scores + first,
                                .lds = kScoreStride,
                                .rows = tile.count,
                                .columns = round_up(tile.see.hi, kHalfPanel) - first,
                                .lo = lo,
                                .hi = hi,
                                .max = states.max + tile.first,
                                .sum = states.sum + tile.first,
                                .alpha = rows.memory.alpha,
                                .scale = rows.unscaled ? rows.division.scale : 1.0f});
}

}  // namespace simdattn
