// Tokens of a list brought into its order, as attention wants them: one behind the other, a panel of them at a time.
#pragma once

#include "lib/drivers/shared/intervals.h"
#include "lib/drivers/shared/kv_store.h"
#include "lib/drivers/shared/workspace.h"

namespace simdattn {

/// Which tokens are gathered: those of a key block at most.
struct TokenList {
  const int32_t* tokens;
  int64_t count;  // up to a panel of tokens behind the key block are wanted next: they are only fetched
  /// Others are not read, because their pages may not exist, but in whole panels: rows of zeros stand in their place.
  Interval seen = {0, std::numeric_limits<int64_t>::max()};
  bool whole_panels = false;  // these are whole panels of a store of panels, and stay such
  bool fetch = false;         // they may come from memory
};

/// What gathering needs beside the list.
struct GatheredMemory {
  /// Of a key block, and of the panel that is fetched meanwhile.
  static constexpr int64_t kRows = kKeyBlock + kPanelWidth;

  Workspace& w;  // that it is taken from
  KvType type;
  int64_t dim;
  int64_t panels = 1;  // that are copied at a time
  int64_t row_bytes = simdattn::row_bytes(type, dim);
  int64_t panel_bytes = simdattn::panel_bytes(type, dim);
  const char** rows = w.take<const char*>(kRows);
  char* copies = w.take<char>(panels * panel_bytes);
  float* scales = w.take<float>(panels * kPanelWidth);
  char* zeros = w.take<char>(row_bytes);  // a row
};

/// The tokens of a list, at places 0, 1, ... A panel of rows that lie one behind the other stays where it is. Any other
/// is copied when one of its places is asked for, and the copy holds until as many other panels have been asked for as
/// the memory has copies.
class GatheredRows {
 public:
  GatheredRows(const UKernels& uk, const KvStore& from, const TokenList& list, const GatheredMemory& memory)
      : uk_(uk), from_(from), list_(list), memory_(memory) {
    std::memset(memory.zeros, 0, static_cast<size_t>(memory.row_bytes));
    std::fill_n(held_, memory.panels, -1);
    const int64_t n = list.count;
    const int64_t filled = std::min(n + 2 * kPanelWidth, memory.kRows);
    from_.find_rows(list.tokens, n, memory.rows);
    for (int64_t j = 0; !list.whole_panels && j < n; ++j) {
      if (!list.seen.has(list.tokens[j])) memory.rows[j] = memory.zeros;
    }
    // Behind the list addresses are compared and prefetched, but nothing is read there: any would do.
    std::fill(memory.rows + n, memory.rows + filled, memory.zeros);  // no fault: of these addresses none is read
    find_neighbours(filled / kPanelWidth);
  }
  GatheredRows(const GatheredRows&) = delete;
  GatheredRows& operator=(const GatheredRows&) = delete;

  /// The tokens from `place` on that follow one another, at most `most`. The run goes on if the next panel lies behind
  /// it, as it would without a list.
  TokenRun run(int64_t place, int64_t most) {
    const int64_t panel = place / kPanelWidth, inside = place % kPanelWidth, copy_index = panel % memory_.panels;
    const bool copied = from_.panels() || has_scales(from_.type()) ||
                        together_[panel] < std::min(kPanelWidth, list_.count - panel * kPanelWidth);
    const bool goes_on = together_[panel] >= 2 * kPanelWidth;
    char* const copy = memory_.copies + copy_index * memory_.panel_bytes;
    float* const scales = memory_.scales + copy_index * kPanelWidth;
    if (held_[copy_index] != panel) {
      if (list_.fetch && !goes_on) prefetch_behind(panel);
      if (copied) copy_panel(panel, copy, scales);
      held_[copy_index] = panel;
    }
    if (!copied) {
      // Of a long run all but the last panel, which is a run of its own: then `goes_on` holds for all of it.
      const int64_t tokens = (goes_on ? together_[panel] / kPanelWidth - 1 : 1) * kPanelWidth - inside;
      return {memory_.rows[place], from_.token_stride(), std::min(tokens, most), nullptr, goes_on};
    }
    const int64_t step = list_.whole_panels ? memory_.panel_bytes : memory_.row_bytes;
    return {list_.whole_panels ? copy : copy + inside * step, step, std::min(kPanelWidth - inside, most),
            has_scales(from_.type()) ? scales + inside : nullptr, goes_on};
  }

  /// Where the rows of the panel at `place` and of the next one are, for slots that take lists, with zeros in the place
  /// of rows that are not read. Null in a store of panels, and if the rows lie together, which run() has.
  const char* const* listed(int64_t place) const {
    return from_.panels() || together_[place / kPanelWidth] >= 2 * kPanelWidth ? nullptr : memory_.rows + place;
  }
  bool whole_panels() const { return list_.whole_panels; }
  void prefetch() const {
    for (int64_t j = 0; j < list_.count; ++j) {
      for (int64_t i = 0; i < memory_.row_bytes; i += 64) __builtin_prefetch(memory_.rows[j] + i);
    }
  }

 private:
  /// How many rows from the first one of each panel on follow one another.
  void find_neighbours(int64_t panels) {
    const int64_t stride = from_.token_stride();
    for (int64_t p = panels; p-- > 0;) {
      const char* const* const rows = memory_.rows + p * kPanelWidth;
      const int64_t known = p + 1 < panels ? kPanelWidth + 1 : kPanelWidth;  // no fault: shorter runs, the same rows
      int64_t n = 1;
      while (n < known && rows[n] == rows[0] + n * stride) ++n;
      together_[p] = from_.panels() ? 1 : n <= kPanelWidth ? n : kPanelWidth + together_[p + 1];
    }
  }

  /// Tokens of panels that are taken apart have a few bytes of each of many lines. To fetch all of these would take
  /// more time than it saves, so they are left alone.
  void prefetch_behind(int64_t panel) const {
    if (from_.panels() != list_.whole_panels) return;
    const int64_t bytes = list_.whole_panels ? memory_.panel_bytes / kPanelWidth : memory_.row_bytes;
    const char* const* const next = memory_.rows + (panel + 1) * kPanelWidth;
    for (int64_t j = 0; j < kPanelWidth; ++j) {
      for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(next[j] + i, 0, 2);
    }
  }

  void copy_panel(int64_t panel, char* to, float* scales) const {
    const int64_t first = panel * kPanelWidth;
    const int64_t n = std::min(kPanelWidth, list_.count - first);
    if (list_.whole_panels) {
      std::memcpy(to, memory_.rows[first], static_cast<size_t>(memory_.panel_bytes));
      const float* const from = from_.run(list_.tokens[first], kPanelWidth, scales).scales;
      if (from != nullptr && from != scales) std::copy_n(from, kPanelWidth, scales);
      return;
    }
    for (int64_t j = 0; j < n; ++j) {
      const int32_t token = list_.tokens[first + j];
      const char* const row = memory_.rows[first + j];
      const bool seen = row != memory_.zeros;
      if (seen && from_.panels()) from_.copy_from_panel(uk_, token, to + j * memory_.row_bytes);
      else std::memcpy(to + j * memory_.row_bytes, row, static_cast<size_t>(memory_.row_bytes));
      scales[j] = seen && has_scales(from_.type()) ? from_.scale(token) : 0.0f;
    }
  }

  const UKernels& uk_;
  KvStore from_;
  TokenList list_;
  const GatheredMemory& memory_;
  int64_t together_[GatheredMemory::kRows / kPanelWidth];
  int64_t held_[kKeyBlock / kPanelWidth];  // the panels whose copies are there
};

}  // namespace simdattn
