#include "lib/drivers/attention/key_block.h"

namespace simdattn {

BlockScores::BlockScores(const RowBlock& rows, const BlockTokens& keys, Interval see, int64_t count, int64_t at_once)
    : rows_(rows), keys_(keys), way_(rows.k.way_to_score(keys, count, at_once)) {
  if (way_ != ScoreWay::kPackedBlock) return;
  for (int64_t c = panel_start(see.lo); c < see.hi; c += kPanelWidth) {
    rows.k.pack_panel(keys, see, c, packed_panel(c));
  }
}

void BlockScores::score(const TileRows& tile) const {
  const AttentionMemory& memory = rows_.memory;
  const int64_t first = panel_start(tile.see.lo);
  rows_.k.score(way_,
                {.q = rows_.query(tile.first),
                 .q_stride = memory.query_bytes,
                 .rows = tile.count,
                 .panels = packed_panel(first),
                 .panel_stride = memory.panel_bytes,
                 .n_panels = steps_of(tile.see.hi - first, kPanelWidth),
                 .dim = rows_.division.sizes.d_qk,
                 .scale = rows_.division.scale,
                 .s = memory.scores + first,
                 .lds = kScoreStride,
                 .fetch = rows_.fetch,
                 .keys_at_once = rows_.division.keys_at_once,
                 .scratch = memory.keys},
                keys_, tile.see);
}

}  // namespace simdattn
