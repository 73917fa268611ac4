#include "lib/drivers/attention/key_block.h"

namespace simdattn {

void score(const RowBlock& rows, const BlockTokens& keys, ScoreWay way, const TileRows& tile) {
  const int64_t first = panel_start(tile.see.lo);
  rows.k.score(way,
               {.q = rows.query(tile.first),
                .q_stride = rows.memory.query_bytes,
                .rows = tile.count,
                .panels = rows.memory.keys + first / kPanelWidth * rows.memory.panel_bytes,
                .panel_stride = rows.memory.panel_bytes,
                .n_panels = steps_of(tile.see.hi - first, kPanelWidth),
                .dim = rows.division.sizes.d_qk,
                .scale = rows.division.scale,
                .s = rows.memory.scores + first,
                .lds = kScoreStride,
                .unscaled = rows.unscaled,
                .fetch = rows.fetch,
                .keys_at_once = rows.division.keys_at_once,
                .scratch = rows.memory.keys},
               keys, tile.see);
}

}  // namespace simdattn
