#include "lib/drivers/attention/key_block.h"

namespace simdattn {
namespace {

/// True if values are added from where they are, for `count` rows.
bool takes_values(const RowBlock& rows, const BlockTokens& values, Interval see, int64_t count) {
  if (count > kDirectRows || rows.v.slots.value_tile == nullptr) return false;
  if (!values.whole_steps(rows.arithmetic.value_step)) return false;
  // kInt8 multiplies stored integers in place only if every scale is >= 0: quantised weights are unsigned, so a sign
  // cannot be folded into them.
  const bool signed_scales = rows.problem.arithmetic == Arithmetic::kInt8 && has_scales(rows.problem.v.type);
  return !(signed_scales && rows.v.negative_scales(values, see));
}

}  // namespace

BlockValues::BlockValues(const RowBlock& rows, const BlockTokens& values, Interval see, int64_t count)
    : rows_(rows), values_(values), see_(see), in_place_(takes_values(rows, values, see, count)) {
  if (!in_place_) rows.v.pack_values(values, see, 0, rows.division.sizes.d_v, rows.memory.values);
}

ValueTile BlockValues::tile_of(const TileRows& tile, const RowStates& states) const {
  return {.w = rows_.memory.scores + tile.see.lo,
          .ldw = kScoreStride,
          .rows = tile.count,
          .v = rows_.memory.values,
          .first_key = tile.see.lo,
          .group_stride = row_bytes(rows_.problem.v.type, kValueGroup),
          .keys = tile.see.size(),
          .dim = rows_.division.sizes.d_v,
          .o = states.acc + tile.first * states.ld,
          .ldo = states.ld,
          .alpha = rows_.memory.alpha};
}

void BlockValues::add(const TileRows& tile, const RowStates& states) const {
  ValueTile call = tile_of(tile, states);
  const Interval groups = {tile.see.lo / kChainGroup * kChainGroup, round_up(tile.see.hi, kChainGroup)};
  call.whole_groups = finite_.value_or(false) && groups.lo >= see_.lo && groups.hi <= see_.hi;
  if (!in_place_) return rows_.arithmetic.value_packed(call);
  call.fetch = rows_.fetch;
  rows_.v.add_in_place(values_, call);
}

void BlockValues::add_visible(const KeyBlock& block, const TileRows& tile, const RowStates& states) {
  if (!finite_) finite_ = rows_.v.finite(values_, see_);
  if (*finite_) return add(tile, states);
  const bool masks = rows_.run.modifiers.hides;
  rows_.v.add_visible(values_, tile_of(tile, states), rows_.memory.masked, [&](int64_t i, int64_t column) {
    const int64_t r = tile.first + i;
    const int64_t key = block.key(column);
    if (column < block.row[r].lo || column >= block.row[r].hi || !rows_.see(r).has(key)) return false;
    return !masks || mask_allows(rows_.modifiers(r), key);
  });
}

}  // namespace simdattn
