// Keys as operands: the ways to score those of a key block, and their panels.
#include "lib/drivers/shared/operands.h"

namespace simdattn {
namespace {

/// The first column of the panel that holds column c.
int64_t panel_start(int64_t c) { return c / kPanelWidth * kPanelWidth; }

}  // namespace

ScoreWay Operands::way_to_score(const BlockTokens& keys, int64_t rows, int64_t at_once) const {
  // For many rows keys are packed once, because each register tile would convert them again. Where the slot itself
  // packs, there is nothing to save.
  const bool few = rows <= slots.direct_key_rows;
  if (keys.panels() && slots.score_tile != nullptr && (few || slots.pack_panel == nullptr)) {
    return ScoreWay::kStoredPanels;
  }
  if (rows > at_once) return ScoreWay::kPackedBlock;
  if (keys.panels() || !few) return ScoreWay::kPackedPanel;
  if (slots.score_rows != nullptr && rows <= kMostScoreRows && can_read_rows_in_place(dim_))
    return ScoreWay::kRowsInPlace;
  return stores_panels() ? ScoreWay::kStoredPanel : ScoreWay::kPackedPanel;
}

void Operands::score(ScoreWay way, const ScoreTile& tile, const BlockTokens& keys, Interval see, KeyFetch fetch) const {
  switch (way) {
    case ScoreWay::kPackedBlock: return slots.score_packed(tile);
    case ScoreWay::kStoredPanels: return score_stored_panels(tile, keys, see, fetch);
    case ScoreWay::kRowsInPlace: return score_rows_in_place(tile, keys, see, fetch);
    case ScoreWay::kStoredPanel:
    case ScoreWay::kPackedPanel:
      for (int64_t c = panel_start(see.lo), end = c + tile.n_panels * kPanelWidth; c < end; c += kPanelWidth) {
        score_panel(tile, keys, see, c, fetch, way == ScoreWay::kStoredPanel);
      }
  }
}

void Operands::score_stored_panels(ScoreTile tile, const BlockTokens& keys, Interval see, KeyFetch fetch) const {
  float scales[kKeyBlock];
  const int64_t first = panel_start(see.lo);
  const int64_t end = first + tile.n_panels * kPanelWidth;
  for (int64_t c = first; c < end; c += tile.n_panels * kPanelWidth) {
    const TokenRun run = keys.run(c, end - c, scales);
    tile.panels = run.data;
    tile.panel_stride = run.stride;
    tile.scales = run.scales;
    tile.n_panels = run.tokens / kPanelWidth;
    tile.fetch = run.goes_on ? fetch.in_place : Fetch::kNone;
    slots.score_tile(tile);
    tile.s += run.tokens;
  }
}

void Operands::score_rows_in_place(ScoreTile tile, const BlockTokens& keys, Interval see, KeyFetch fetch) const {
  float scales[kKeyBlock];
  const int64_t first = panel_start(see.lo);
  const int64_t end = first + tile.n_panels * kPanelWidth;
  const Fetch in_place = is_narrow(type_) ? fetch.in_place : fetch.transposed;
  ScoreTile part = tile;
  for (int64_t c = first; c < end; c += part.n_panels * kPanelWidth) {
    part.s = tile.s + (c - first);
    part.listed = slots.takes_lists && c >= see.lo ? keys.listed(c) : nullptr;
    TokenRun run;
    if (part.listed != nullptr) run = {*part.listed, 0, std::min(kPanelWidth, see.hi - c), nullptr, false};
    else if (c >= see.lo) run = keys.run(c, see.hi - c, scales);
    part.n_panels = run.tokens / kPanelWidth;
    if (part.n_panels == 0) {
      score_panel(tile, keys, see, c, fetch, stores_panels());
      part.n_panels = 1;
      continue;
    }
    part.panels = run.data;
    part.panel_stride = run.stride;
    part.scales = run.scales;
    part.fetch = run.goes_on ? in_place : Fetch::kNone;
    slots.score_rows(part);
  }
}

/// Scores of the panel at column c, which is put together in L1 and read from there: no other rows need it.
void Operands::score_panel(ScoreTile tile, const BlockTokens& keys, Interval see, int64_t c, KeyFetch fetch,
                           bool as_stored) const {
  float scales[kPanelWidth];
  const bool stream = fetch.transposed != Fetch::kNone;
  if (as_stored) store_panel(keys, see, c, tile.scratch, scales, stream);
  else pack_panel(keys, see, c, tile.scratch, stream);
  tile.panels = tile.scratch;
  tile.n_panels = 1;
  tile.scales = as_stored && has_scales(type_) ? scales : nullptr;
  tile.s += c - panel_start(see.lo);
  (as_stored ? slots.score_tile : slots.score_packed)(tile);
}

void Operands::pack_panel(const BlockTokens& keys, Interval see, int64_t c, void* panel, bool stream) const {
  float scales[kPanelWidth];
  if (!keys.panels()) return join_rows(slots.pack_keys, keys, see, c, panel, scales, stream);
  const TokenRun run = keys.run(c, kPanelWidth, scales);
  const PackKeys pack = {run.data, run.stride, run.scales, std::min(see.hi - c, kPanelWidth), dim_, panel};
  if (slots.pack_panel != nullptr) return slots.pack_panel(pack);
  const bool as_stored = slots.pack_keys != nullptr && !is_narrow(type_);
  load(storage_.load_panels, run, rows_, as_stored);
  (as_stored ? slots : f32())
      .pack_keys({.from = rows_,
                  .token_stride = as_stored ? row_bytes(type_, dim_) : 4 * dim_,
                  .keys = kPanelWidth,
                  .dim = dim_,
                  .panel = panel});
}

/// One panel of keys in rows, by `slot`; null: they pass through f32.
void Operands::join_rows(void (*slot)(const PackKeys&), const BlockTokens& keys, Interval see, int64_t c, void* panel,
                         float* scales, bool stream) const {
  const Interval columns = {std::max(see.lo, c), std::min(see.hi, c + kPanelWidth)};
  PackKeys pack = {.from = nullptr, .token_stride = 0, .keys = columns.hi - c, .dim = dim_, .panel = panel};
  float scratch[kPanelWidth];
  const TokenRun all = keys.run(columns.lo, columns.hi - columns.lo, scratch);
  std::fill_n(scales, kPanelWidth, 0.0f);
  if (slot != nullptr && columns.lo == c && all.tokens >= pack.keys) {
    if (all.scales != nullptr) std::copy_n(all.scales, pack.keys, scales);
    pack.from = all.data;
    pack.token_stride = all.stride;
    pack.scales = all.scales;
    pack.stream = stream && all.goes_on;
    return slot(pack);
  }
  // Rows of several runs, as stored or as f32.
  const int64_t row = slot == nullptr ? 4 * dim_ : row_bytes(type_, dim_);
  std::memset(rows_, 0, static_cast<size_t>((columns.lo - c) * row));
  for_each_run(keys, columns, [&](int64_t j, const TokenRun& run) {
    char* const to = rows_ + (j - c) * row;
    if (slot == nullptr) {
      load(storage_.load_rows, run, to);
    } else if (run.stride == row) {
      std::memcpy(to, run.data, static_cast<size_t>(run.tokens * row));
    } else {
      for (int64_t i = 0; i < run.tokens; ++i)
        std::memcpy(to + i * row, run.data + i * run.stride, static_cast<size_t>(row));
    }
    if (run.scales != nullptr) std::copy_n(run.scales, run.tokens, scales + (j - c));
  });
  pack.from = rows_;
  pack.token_stride = row;
  pack.scales = slot != nullptr && has_scales(type_) ? scales : nullptr;
  (slot != nullptr ? slot : f32().pack_keys)(pack);
}

}  // namespace simdattn
