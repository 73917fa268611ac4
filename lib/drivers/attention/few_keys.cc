#include "lib/drivers/attention/key_block.h"

#include <algorithm>

namespace simdattn {
namespace {

/// Columns of a key block, and their tokens.
struct FewKeys {
  int64_t count;
  uint8_t column[kKeyBlock];
  int32_t token[kFewKeys];
};

/// Scores of the keys, in their columns, because the softmax sums by column. What lies between is masked, so any finite
/// number will do there.
void score_few(const RowBlock& rows, const KeyBlock& block, const FewKeys& keys, const TileRows& tile,
               const TokenList& list) {
  if (rows.k_store.panels()) return BlockScores(rows, block.k, tile.see, tile.count, tile.count).score(tile);
  GatheredRows gathered(rows.kernels, rows.k_store, list, rows.memory.gathered_keys);
  const TileRows dense = {tile.first, tile.count, {0, keys.count}};
  const BlockTokens tokens(gathered);
  BlockScores(rows, tokens, dense.see, tile.count, tile.count).score(dense);
  for (int64_t i = 0; i < tile.count; ++i) {
    float* const row = rows.scores(i);
    float few[kFewKeys];
    std::copy_n(row, keys.count, few);
    std::fill(row + tile.see.lo, row + tile.see.hi, 0.0f);
    for (int64_t j = 0; j < keys.count; ++j) row[keys.column[j]] = few[j];
  }
}

/// Adds the values of the keys, whose weights are in their columns.
void add_few(const RowBlock& rows, const FewKeys& keys, const TileRows& tile, GatheredRows& gathered,
             const RowStates& states) {
  for (int64_t i = 0; i < tile.count; ++i) {
    float* const row = rows.scores(i);
    for (int64_t j = 0; j < keys.count; ++j) row[j] = row[keys.column[j]];
  }
  const BlockTokens tokens(gathered);
  const TileRows dense = {tile.first, tile.count, {0, keys.count}};
  BlockValues(rows, tokens, dense.see, tile.count).add(dense, states);
}

/// How many rows from r on share the masks and the columns of row r.
int64_t rows_with_same_keys(const RowBlock& rows, const KeyBlock& block, int64_t r) {
  const Interval see = {block.row[r].lo, block.row[r].hi};
  int64_t n = 1;
  while (n < kScoreRows && r + n < rows.rows && block.same_interval(r + n, 1, see) &&
         same_masks(rows.modifiers(r), rows.modifiers(r + n))) {
    ++n;
  }
  return n;
}

}  // namespace

void take_few_keys(const RowBlock& rows, KeyBlock* block, const RowStates& states) {
  for (int64_t r = 0, n; r < rows.rows; r += n) {
    n = 1;
    const SeenColumns seen = block->row[r];
    if (!seen.few() || !gathers(rows, r)) continue;
    n = rows_with_same_keys(rows, *block, r);
    const TileRows tile = {r, n, {seen.lo, seen.hi}};
    FewKeys keys;
    keys.count =
        visible_columns(rows.modifiers(r), block->base, {block->base + seen.lo, block->base + seen.hi}, keys.column);
    if (kMaskThresholds.few_share * keys.count > tile.see.size()) continue;
    for (int64_t j = 0; j < keys.count; ++j) keys.token[j] = static_cast<int32_t>(block->base + keys.column[j]);
    const TokenList list = {.tokens = keys.token, .count = keys.count, .fetch = rows.fetch != Fetch::kNone};
    GatheredRows values(rows.kernels, rows.v_store, list, rows.memory.gathered_values);
    if (list.fetch) values.prefetch();
    score_few(rows, *block, keys, tile, list);
    modify_tile(rows, *block, tile);
    weigh(rows, *block, tile, states);
    add_few(rows, keys, tile, values, states);
    std::fill_n(block->row + r, n, SeenColumns{});
  }
}

}  // namespace simdattn
