#include "lib/drivers/attention/key_block.h"

namespace simdattn {

bool gathers(const RowBlock& rows, int64_t r) {
  if (rows.problem.arithmetic == Arithmetic::kBF16) return false;
  const int64_t last = r + kFewRows - 1;  // no fault: where keys are gathered changes no result
  return rows.rows <= kFewRows || (last < rows.rows && same_masks(rows.modifiers(r), rows.modifiers(last)));
}

void look(const RowBlock& rows, KeyBlock* block) {
  const int64_t base = block->base;
  const bool masks = rows.run.modifiers.hides;
  Interval last = {0, 0};
  for (int64_t r = 0, n; r < rows.rows; r += n) {
    n = rows.same_from(r);
    const int64_t lo = std::clamp(rows.see(r).lo, base, base + kKeyBlock);
    const Interval keys = {lo, std::clamp(rows.see(r).hi, lo, base + kKeyBlock)};
    SeenColumns seen = all_columns(base, keys);
    if (masks) {
      // What the row before sees holds for this row as a rule, and to find that out takes less time than a look.
      const RowModifiers& m = rows.modifiers(r);
      bool same = r > 0 && keys == last;
      if (same) {
        seen = block->row[r - 1];
        const bool in_tile = r % rows.arithmetic.tile_rows != 0 && !gathers(rows, r);
        same = same_masks(m, rows.modifiers(r - 1)) || still_sees(m, base, keys, in_tile, &seen);
      }
      if (!same) {
        seen = seen_columns(m, base, keys);
        block->few |= seen.few();
      }
    }
    std::fill_n(block->row + r, n, seen);
    last = keys;  // no fault: another look finds the same
  }
}

void look_at_list(const RowBlock& rows, int64_t columns, KeyBlock* block) {
  for (int64_t r = 0; r < rows.rows; ++r) {
    const Interval& see = rows.see(r);
    if (r > 0 && see == rows.see(r - 1)) {
      block->row[r] = block->row[r - 1];
      continue;
    }
    auto hi = static_cast<int32_t>(columns);
    int32_t lo = 0;
    while (lo < hi && !see.has(block->key(lo))) ++lo;
    while (lo < hi && !see.has(block->key(hi - 1))) --hi;
    for (int32_t c = lo; !block->holes && c < hi; ++c) block->holes = !see.has(block->key(c));
    block->row[r] = {lo, hi, lo, hi, hi - lo};
  }
}

}  // namespace simdattn
