#include "lib/drivers/attention/key_block.h"

namespace simdattn {

ScoreWay prepare_keys(const RowBlock& rows, const BlockTokens& keys, Interval see, int64_t count, int64_t at_once) {
  const ScoreWay way = rows.k.way_to_score(keys, count, at_once);
  for (int64_t c = panel_start(see.lo); way == ScoreWay::kPackedBlock && c < see.hi; c += kPanelWidth) {
    rows.k.pack_panel(keys, see, c, rows.packed_panel(c));
  }
  return way;
}

void score(const RowBlock& rows, const BlockTokens& keys, ScoreWay way, const TileRows& tile) {
  const int64_t first = panel_start(tile.see.lo);
  rows.k.score(way,
               {.q = rows.query(tile.first),
                .q_stride = rows.memory.query_bytes,
                .rows = tile.count,
                .panels = rows.packed_panel(first),
                .panel_stride = rows.memory.panel_bytes,
                .n_panels = steps_of(tile.see.hi - first, kPanelWidth),
                .dim = rows.division.sizes.d_qk,
                .scale = rows.division.scale,
                .s = rows.memory.scores + first,
                .lds = kScoreStride,
                .fetch = rows.fetch,
                .keys_at_once = rows.division.keys_at_once,
                .scratch = rows.memory.keys},
               keys, tile.see);
}

}  // namespace simdattn
