#include <optional>

#include "lib/drivers/attention/list.h"

namespace simdattn {
namespace {

/// One step of the online softmax, after the look. The state of a row that sees none of these keys stays as it is.
void run_block(const RowBlock& rows, const KeyBlock& block, const RowStates& states) {
  int64_t begin = 0;
  int64_t end = rows.rows;
  while (begin < end && block.row[begin].none()) ++begin;
  while (begin < end && block.row[end - 1].none()) --end;
  if (begin == end) return;
  const Interval all = block.seen_by(begin, end - begin);
  // Where rows see different keys (a diagonal), tiles are as small as the kernel allows: each computes what its own
  // rows see, and large tiles would compute most of the triangle that nobody sees.
  const bool same_interval = block.same_interval(begin, end - begin, all);
  const int64_t step = same_interval ? rows.arithmetic.rows_at_once : rows.arithmetic.tile_rows;
  const ScoreWay way = rows.k.prepare_keys(block.k, all, end - begin, step);
  BlockValues values(rows, block.v, all, end - begin);
  for (int64_t r = begin; r < end; r += step) {
    TileRows tile = {r, std::min(step, end - r), all};
    if (!same_interval) tile.see = block.seen_by(r, tile.count);
    if (tile.see.lo >= tile.see.hi) continue;
    rows.fetch_masks(block.base + kKeyBlock, r, tile.count);
    score(rows, block.k, way, tile);
    const bool masked = modify_tile(rows, block, tile);
    weigh(rows, block, tile, states);
    if (masked || !(same_interval || block.same_interval(r, tile.count, tile.see)))
      values.add_visible(block, tile, states);
    else values.add(tile, states);
  }
}

/// One row block, or the part of it whose rows share a list.
class Walk {
 public:
  Walk(const AttentionRun& run, const RowBlockIndex& index) : rows_(run, index) {
    if (has_lists(run.problem)) {
      list_.emplace(run.problem, rows_.sequence, index.kv_head, index.first_row / run.division.sizes.group);
    }
  }

  const RowBlock& rows() const { return rows_; }
  /// The splits that some row sees a key of.
  Interval splits() const {
    const KeyLists& lists = rows_.problem.lists;
    const Interval keys = list_ ? Interval{0, lists.length * lists.block_size} : rows_.seen();
    return {keys.lo / kKeySplit, steps_of(keys.hi, kKeySplit)};
  }
  /// Splits of a list are taken in ascending order.
  void run_split(int64_t split, const RowStates& states) {
    if (list_) {
      return for_each_listed_block(rows_, &*list_, split,
                                   [&](const KeyBlock& block) { run_block(rows_, block, states); });
    }
    const int64_t end = std::min(rows_.sequence.rules.length, (split + 1) * kKeySplit);
    for (int64_t key = split * kKeySplit; key < end; key += kKeyBlock) {
      KeyBlock block(key, nullptr, {rows_.k_store, key}, {rows_.v_store, key});
      look(rows_, &block);
      if (block.few) take_few_keys(rows_, &block, states);
      run_block(rows_, block, states);
    }
  }

 private:
  RowBlock rows_;
  std::optional<ListReader> list_;
};

}  // namespace

void run_row_block(const AttentionRun& run, const RowBlockIndex& index) {
  const AttentionMemory& memory = run.memory;
  for_each_list(run, index, [&](const RowBlockIndex& part) {
    Walk walk(run, part);
    walk.rows().load_queries();
    start_states(walk.rows(), memory.total, true);
    const Interval splits = walk.splits();
    for (int64_t split = splits.lo; split < splits.hi; ++split) {
      if (split == 0) {
        walk.run_split(0, memory.total);
      } else {
        start_states(walk.rows(), memory.split, false);
        walk.run_split(split, memory.split);
        merge_states(walk.rows(), memory.total, memory.split);
      }
    }
    store_states(walk.rows(), memory.total);
  });
}

void run_split(const AttentionRun& run, const RowBlockIndex& index, int64_t split, const RowStates& states) {
  for_each_list(run, index, [&](const RowBlockIndex& part) {
    const RowStates s = states.from(part.first_row - index.first_row);
    Walk walk(run, part);
    start_states(walk.rows(), s, split == 0);
    const Interval splits = walk.splits();
    if (split < splits.lo || split >= splits.hi) return;
    walk.rows().load_queries();
    walk.run_split(split, s);
  });
}

void reduce_splits(const AttentionRun& run, const RowBlockIndex& index, Interval splits, const Partials& partials,
                   int64_t first_task) {
  const RowBlock rows(run, index);
  // The states of split 0 hold the sink, which alone is left of it where a ring has overwritten its keys.
  start_states(rows, run.memory.total, splits.lo > 0);
  for (int64_t split = splits.lo; split < splits.hi; ++split) {
    merge_states(rows, run.memory.total, partials.of_task(first_task++));
  }
  store_states(rows, run.memory.total);
}

}  // namespace simdattn
