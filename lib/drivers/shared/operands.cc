#include "lib/drivers/shared/operands.h"

#include <bit>

namespace simdattn {

// ---- Keys: the ways to score those of a key block, and their panels -------------------------------------------------

ScoreWay Operands::way_to_score(const BlockTokens& keys, int64_t rows, int64_t at_once) const {
  // For many rows keys are packed once, because each register tile would convert them again, unless the slot packs
  // them.
  const bool few = rows <= slots.direct_key_rows;
  if (keys.panels() && slots.score_tile != nullptr && (few || slots.pack_panel == nullptr)) {
    return ScoreWay::kStoredPanels;
  }
  if (rows > at_once) return ScoreWay::kPackedBlock;
  if (keys.panels() || !few) return ScoreWay::kPackedPanel;
  if (slots.score_rows != nullptr && rows <= kMostScoreRows && can_read_rows_in_place(dim))
    return ScoreWay::kRowsInPlace;
  return stores_panels() ? ScoreWay::kStoredPanel : ScoreWay::kPackedPanel;
}

ScoreWay Operands::prepare_keys(const BlockTokens& keys, Interval see, int64_t rows, int64_t at_once) const {
  const ScoreWay way = way_to_score(keys, rows, at_once);
  if (way != ScoreWay::kPackedBlock) return way;
  const int64_t panel_bytes = slots.panel_bytes(dim);
  for (int64_t c = panel_start(see.lo); c < see.hi; c += kPanelWidth) {
    pack_panel(keys, see, c, panels + c / kPanelWidth * panel_bytes);
  }
  return way;
}

void Operands::score(ScoreWay way, ScoreTile tile, const BlockTokens& keys, Interval see) const {
  const int64_t first = panel_start(see.lo);
  tile.panel_stride = slots.panel_bytes(dim);
  tile.panels = panels + first / kPanelWidth * tile.panel_stride;
  tile.n_panels = steps_of(see.hi - first, kPanelWidth);
  tile.dim = dim;
  tile.s += first;
  tile.scratch = panels;
  switch (way) {
    case ScoreWay::kPackedBlock: tile.fetch = Fetch::kNone; return slots.score_packed(tile);
    case ScoreWay::kStoredPanels: return score_stored_panels(tile, keys, see);
    case ScoreWay::kRowsInPlace: return score_rows_in_place(tile, keys, see);
    case ScoreWay::kStoredPanel:
    case ScoreWay::kPackedPanel:
      for (int64_t c = first, end = c + tile.n_panels * kPanelWidth; c < end; c += kPanelWidth) {
        score_panel(tile, keys, see, c, way == ScoreWay::kStoredPanel);
      }
  }
}

void Operands::score_stored_panels(ScoreTile tile, const BlockTokens& keys, Interval see) const {
  const Fetch fetch = tile.fetch;
  float scales[kKeyBlock];
  for (int64_t c = panel_start(see.lo), end = c + tile.n_panels * kPanelWidth; c < end;) {
    const TokenRun run = keys.run(c, end - c, scales);
    tile.panels = run.data;
    tile.panel_stride = run.stride;
    tile.scales = run.scales;
    tile.n_panels = run.tokens / kPanelWidth;
    tile.fetch = run.goes_on ? fetch : Fetch::kNone;
    slots.score_tile(tile);
    tile.s += run.tokens;
    c += run.tokens;
  }
}

void Operands::score_rows_in_place(const ScoreTile& tile, const BlockTokens& keys, Interval see) const {
  const Fetch fetch = is_narrow(type) ? tile.fetch : fetch_rows;
  float scales[kKeyBlock];
  ScoreTile part = tile;
  const int64_t first = panel_start(see.lo), end = first + tile.n_panels * kPanelWidth;
  for (int64_t c = first; c < end; c += part.n_panels * kPanelWidth) {
    part.s = tile.s + (c - first);
    part.listed = slots.takes_lists && c >= see.lo ? keys.listed(c) : nullptr;
    TokenRun run;
    if (part.listed != nullptr) run = {*part.listed, 0, std::min(kPanelWidth, see.hi - c), nullptr, false};
    else if (c >= see.lo) run = keys.run(c, see.hi - c, scales);
    part.n_panels = run.tokens / kPanelWidth;
    if (part.n_panels == 0) {
      score_panel(tile, keys, see, c, stores_panels());
      part.n_panels = 1;
      continue;
    }
    part.panels = run.data;
    part.panel_stride = run.stride;
    part.scales = run.scales;
    part.fetch = run.goes_on ? fetch : Fetch::kNone;
    slots.score_rows(part);
  }
}

/// Scores of the panel at column c, which is put together in L1 and read from there: no other rows need it.
void Operands::score_panel(ScoreTile tile, const BlockTokens& keys, Interval see, int64_t c, bool as_stored) const {
  float scales[kPanelWidth];
  if (as_stored) join_rows(slots.store_panel, keys, see, c, panels, scales);
  else pack_panel(keys, see, c, panels);
  tile.panels = panels;
  tile.n_panels = 1;
  tile.scales = as_stored && has_scales(type) ? scales : nullptr;
  tile.fetch = Fetch::kNone;
  tile.s += c - panel_start(see.lo);
  (as_stored ? slots.score_tile : slots.score_packed)(tile);
}

void Operands::pack_panel(const BlockTokens& keys, Interval see, int64_t c, void* panel) const {
  float scales[kPanelWidth];
  if (!keys.panels()) return join_rows(slots.pack_keys, keys, see, c, panel, scales);
  const TokenRun run = keys.run(c, kPanelWidth, scales);
  const PackKeys pack = {run.data, run.stride, run.scales, std::min(see.hi - c, kPanelWidth), dim, panel};
  if (slots.pack_panel != nullptr) return slots.pack_panel(pack);
  const bool as_stored = slots.pack_keys != nullptr && !is_narrow(type);
  load(storage.load_panels, run, loaded, as_stored);
  (as_stored ? slots : f32())
      .pack_keys({.from = loaded,
                  .token_stride = as_stored ? row_bytes(type, dim) : 4 * dim,
                  .keys = kPanelWidth,
                  .dim = dim,
                  .panel = panel});
}

/// One panel of keys in rows, by `slot`; null: they pass through f32.
void Operands::join_rows(void (*slot)(const PackKeys&), const BlockTokens& keys, Interval see, int64_t c, void* panel,
                         float* scales) const {
  const Interval columns = see & Interval{c, c + kPanelWidth};
  PackKeys pack = {.from = nullptr, .token_stride = 0, .keys = columns.hi - c, .dim = dim, .panel = panel};
  float scratch[kPanelWidth];
  const TokenRun all = keys.run(columns.lo, columns.hi - columns.lo, scratch);
  std::fill_n(scales, kPanelWidth, 0.0f);
  if (slot != nullptr && columns.lo == c && all.tokens >= pack.keys) {
    if (all.scales != nullptr) std::copy_n(all.scales, pack.keys, scales);
    pack.from = all.data;
    pack.token_stride = all.stride;
    pack.scales = all.scales;
    pack.stream = fetch_rows != Fetch::kNone && all.goes_on;
    return slot(pack);
  }
  // Rows of several runs, as stored or as f32.
  const int64_t row = slot == nullptr ? 4 * dim : row_bytes(type, dim);
  std::memset(loaded, 0, static_cast<size_t>((columns.lo - c) * row));
  for_each_run(keys, columns, [&](int64_t j, const TokenRun& run) {
    load(storage.load_rows, run, loaded + (j - c) * row, slot != nullptr);
    if (run.scales != nullptr) std::copy_n(run.scales, run.tokens, scales + (j - c));
  });
  pack.from = loaded;
  pack.token_stride = row;
  pack.scales = slot != nullptr && has_scales(type) ? scales : nullptr;
  (slot != nullptr ? slot : f32().pack_keys)(pack);
}

// ---- Values: where they are, or packed ------------------------------------------------------------------------------

bool Operands::finite(const BlockTokens& tokens, Interval see) const {
  bool finite = true;
  for_each_run(tokens, see, [&](int64_t, const TokenRun& run) {
    finite = finite && storage.all_finite({run.data, run.stride, run.scales, run.tokens, dim});
  });
  return finite;
}

bool Operands::negative_scales(const BlockTokens& tokens, Interval see) const {
  uint32_t signs = 0;
  for_each_run(tokens, see, [&](int64_t, const TokenRun& run) {
    for (int64_t j = 0; j < run.tokens; ++j) signs |= std::bit_cast<uint32_t>(run.scales[j]);
  });
  return signs >> 31 != 0;
}

void Operands::add_in_place(const BlockTokens& values, ValueTile tile) const {
  float scales[kKeyBlock];
  const Fetch fetch = tile.fetch;
  const bool takes_lists = slots.takes_lists && tile.dim % kValueGroup == 0;
  for (const int64_t end = tile.first_key + tile.keys; tile.first_key < end; tile.first_key += tile.keys) {
    const int64_t c = tile.first_key;
    tile.listed = takes_lists ? values.listed(c) : nullptr;
    const int64_t in_panel = std::min(kPanelWidth - c % kPanelWidth, end - c);
    const TokenRun run =
        tile.listed != nullptr ? TokenRun{*tile.listed, 0, in_panel, nullptr, false} : values.run(c, end - c, scales);
    tile.v = run.data;
    tile.key_stride = run.stride;
    tile.scales = run.scales;
    tile.keys = run.tokens;
    tile.fetch = run.goes_on ? fetch : Fetch::kNone;
    slots.value_tile(tile);
    tile.w += run.tokens;
    tile.alpha = nullptr;  // later runs of the key block continue the sum
  }
}

void Operands::pack_values(const BlockTokens& values, Interval see, int64_t column, int64_t columns,
                           char* block) const {
  for_each_run(values, see, [&](int64_t first, const TokenRun& run) {
    PackValues pack = {run.data, run.stride, run.scales, first, run.tokens, dim, column, columns, block};
    if (slots.pack_values != nullptr) return slots.pack_values(pack);
    pack.rows = loaded;
    pack.token_stride = 4 * dim;
    pack.scales = nullptr;
    for (int64_t j = 0; j < run.tokens; j += kLoadedRows) {
      pack.first = first + j;
      pack.keys = std::min(kLoadedRows, run.tokens - j);
      const TokenRun part = {run.data + j * run.stride, run.stride, pack.keys,
                             run.scales == nullptr ? nullptr : run.scales + j, false};
      load(storage.load_rows, part, loaded);
      f32().pack_values(pack);
    }
  });
}

/// Loads tokens into `rows`, as f32 or as they are stored.
void Operands::load(void (*slot)(const LoadRows&), const TokenRun& run, char* rows, bool as_stored) const {
  slot({.in = run.data,
        .stride = run.stride,
        .column = 0,
        .tokens = run.tokens,
        .dim = dim,
        .rows = rows,
        .ld = as_stored ? row_bytes(type, dim) : 4 * dim,
        .as_stored = as_stored,
        .scales = run.scales});
}

}  // namespace simdattn
