#include "lib/drivers/attention/key_block.h"

namespace simdattn {

void score(const RowBlock& rows, const BlockTokens& keys, ScoreWay way, const TileRows& tile) {
  rows.k.score(way,
               {.q = rows.query(tile.first),
                .q_stride = rows.memory.query_bytes,
                .rows = tile.count,
                .scale = rows.division.scale,
                .s = rows.memory.scores,
                .lds = kScoreStride,
                .unscaled = rows.unscaled,
                .fetch = rows.fetch,
                .keys_at_once = rows.division.keys_at_once},
               keys, tile.see);
}

}  // namespace simdattn
