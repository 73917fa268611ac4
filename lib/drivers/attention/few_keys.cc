#include "lib/drivers/attention/key_block.h"

namespace simdattn {
namespace {

/// Scores of the keys of `list` in their columns, because the softmax sums by column. What lies between is masked, so
/// any finite number will do there.
void score_few(const RowBlock& rows, const KeyBlock& block, const TileRows& tile, const TokenList& list,
               const uint8_t* columns) {
  const auto score_all = [&](const BlockTokens& keys, const TileRows& all) {
    score(rows, keys, rows.k.prepare_keys(keys, all.see, all.count, all.count), all);
  };
  if (rows.k_store.panels()) return score_all(block.k, tile);
  GatheredRows gathered(rows.kernels, rows.k_store, list, rows.memory.gathered_keys);
  score_all(BlockTokens(gathered), {tile.first, tile.count, {0, list.count}});
  for (int64_t i = 0; i < tile.count; ++i) {
    float* const row = rows.scores(i);
    float few[kFewKeys];
    std::copy_n(row, list.count, few);
    std::fill(row + tile.see.lo, row + tile.see.hi, 0.0f);
    for (int64_t j = 0; j < list.count; ++j) row[columns[j]] = few[j];
  }
}

}  // namespace

void take_few_keys(const RowBlock& rows, KeyBlock* block, const RowStates& states) {
  for (int64_t r = 0, n; r < rows.rows; r += n) {
    n = 1;
    const SeenColumns seen = block->row[r];
    if (!seen.few() || !gathers(rows, r)) continue;
    const auto same_keys = [&](int64_t row) {
      return block->row[row].interval() == seen.interval() && same_masks(rows.modifiers(r), rows.modifiers(row));
    };
    while (n < kScoreRows && r + n < rows.rows && same_keys(r + n)) ++n;
    const TileRows tile = {r, n, seen.interval()};
    uint8_t columns[kKeyBlock];
    const int64_t count =
        visible_columns(rows.modifiers(r), block->base, {block->base + seen.lo, block->base + seen.hi}, columns);
    if (kMaskThresholds.few_share * count > tile.see.size()) continue;
    int32_t tokens[kFewKeys];
    for (int64_t j = 0; j < count; ++j) tokens[j] = static_cast<int32_t>(block->base + columns[j]);
    const TokenList list = {.tokens = tokens, .count = count, .fetch = rows.fetch != Fetch::kNone};
    GatheredRows values(rows.kernels, rows.v_store, list, rows.memory.gathered_values);
    if (list.fetch) values.prefetch();
    score_few(rows, *block, tile, list, columns);
    modify_tile(rows, *block, tile);
    weigh(rows, *block, tile, states);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < count; ++j) rows.scores(i)[j] = rows.scores(i)[columns[j]];
    }
    BlockValues(rows, BlockTokens(values), {0, count}, n).add({r, n, {0, count}}, states);
    std::fill_n(block->row + r, n, SeenColumns{});
  }
}

}  // namespace simdattn
