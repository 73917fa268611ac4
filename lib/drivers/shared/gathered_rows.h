// Tokens in the order of a list, as attention wants them: one behind the other, a panel of them at a time.
#ifndef SIMDATTN_LIB_DRIVERS_SHARED_GATHERED_ROWS_H_
#define SIMDATTN_LIB_DRIVERS_SHARED_GATHERED_ROWS_H_

#include <algorithm>
#include <cstring>

#include "lib/drivers/shared/intervals.h"
#include "lib/drivers/shared/kv_store.h"

namespace simdattn {

/// Which tokens are gathered: those of a key block at most.
struct TokenList {
  const int32_t* tokens;
  int64_t count;  // up to a panel of tokens behind the key block are wanted next: they are only fetched
  /// Tokens outside are not read, because their pages may not exist: rows of zeros stand in their place. Whole panels
  /// are read.
  Interval seen = {0, std::numeric_limits<int64_t>::max()};
  bool whole_panels = false;  // these are whole panels of a store of panels, and stay such
  bool fetch = false;         // they may come from memory
};

/// The tokens of a list, at places 0, 1, ... A panel of rows that lie one behind the other stays where it is. Any other
/// is copied when one of its places is asked for.
class GatheredRows {
 public:
  /// `memory`: bytes_of(). `panels`: how many panels of copies it holds.
  GatheredRows(const UKernels& uk, const KvStore& from, const TokenList& list, char* memory, int64_t panels = 1)
      : uk_(uk),
        from_(from),
        list_(list),
        panels_(panels),
        row_bytes_(row_bytes(from.type(), from.dim())),
        panel_bytes_(panel_bytes(from.type(), from.dim())),
        rows_(reinterpret_cast<const char**>(memory)),
        copies_(memory + kRows * int64_t{sizeof(char*)}),
        scales_(reinterpret_cast<float*>(copies_ + panels * panel_bytes_)),
        zeros_(reinterpret_cast<char*>(scales_ + panels * kPanelWidth)) {
    std::memset(zeros_, 0, static_cast<size_t>(row_bytes_));
    std::fill_n(held_, panels_, -1);
    const int64_t n = std::min(list.count, kRows);
    const int64_t filled = std::min(n + 2 * kPanelWidth, kRows);
    from_.find_rows(list.tokens, n, rows_);
    for (int64_t j = 0; !list.whole_panels && j < n; ++j) {
      if (list.tokens[j] < list.seen.lo || list.tokens[j] >= list.seen.hi) rows_[j] = zeros_;
    }
    // Behind the list addresses are compared and prefetched, but nothing is read there: any would do.
    std::fill(rows_ + n, rows_ + filled, zeros_);  // no fault: of these addresses none is read
    find_neighbours(filled / kPanelWidth);
  }
  GatheredRows(const GatheredRows&) = delete;
  GatheredRows& operator=(const GatheredRows&) = delete;
  static int64_t bytes_of(KvType type, int64_t dim, int64_t panels = 1) {
    return kRows * int64_t{sizeof(char*)} + panels * (panel_bytes(type, dim) + kPanelWidth * int64_t{sizeof(float)}) +
           row_bytes(type, dim);
  }

  /// The tokens from `place` on that follow one another, at most `most`. Copies hold until as many other panels were
  /// asked for as the memory has. A run goes on if the next panel lies behind it, as it would without a list.
  TokenRun run(int64_t place, int64_t most) {
    const int64_t panel = place / kPanelWidth, inside = place % kPanelWidth, copy_index = panel % panels_;
    const bool copied = from_.panels() || has_scales(from_.type()) ||
                        together_[panel] < std::min(kPanelWidth, list_.count - panel * kPanelWidth);
    const bool goes_on = together_[panel] >= 2 * kPanelWidth;
    char* const copy = copies_ + copy_index * panel_bytes_;
    float* const scales = scales_ + copy_index * kPanelWidth;
    if (held_[copy_index] != panel) {
      if (list_.fetch && !goes_on) prefetch_behind(panel);
      if (copied) copy_panel(panel, copy, scales);
      held_[copy_index] = panel;
    }
    if (!copied) {
      // Of a long run all but the last panel: then `goes_on` holds for all of it, and the last panel is a run of its
      // own.
      const int64_t tokens = (goes_on ? together_[panel] / kPanelWidth - 1 : 1) * kPanelWidth - inside;
      return {rows_[place], from_.token_stride(), std::min(tokens, most), nullptr, goes_on};
    }
    return {list_.whole_panels ? copy : copy + inside * row_bytes_, list_.whole_panels ? panel_bytes_ : row_bytes_,
            std::min(kPanelWidth - inside, most), has_scales(from_.type()) ? scales + inside : nullptr, goes_on};
  }

  /// Where the rows from `place` on are, for slots that take lists: those of its panel and of the next one, with zeros
  /// in the place of rows that are not read. Null if they are elsewhere in a store of panels, or lie together, which
  /// run() has.
  const char* const* listed(int64_t place) const {
    return from_.panels() || together_[place / kPanelWidth] >= 2 * kPanelWidth ? nullptr : rows_ + place;
  }
  bool whole_panels() const { return list_.whole_panels; }
  /// Asks for all rows.
  void prefetch() const {
    for (int64_t j = 0; j < list_.count; ++j) {
      for (int64_t i = 0; i < row_bytes_; i += 64) __builtin_prefetch(rows_[j] + i);
    }
  }

 private:
  /// Of a key block, and of the panel that is fetched meanwhile.
  static constexpr int64_t kRows = kKeyBlock + kPanelWidth;

  /// How many rows from the first one of each panel on follow one another.
  void find_neighbours(int64_t panels) {
    const int64_t stride = from_.token_stride();
    for (int64_t p = panels; p-- > 0;) {
      const char* const* const rows = rows_ + p * kPanelWidth;
      const int64_t known = p + 1 < panels ? kPanelWidth + 1 : kPanelWidth;
      int64_t n = 1;
      while (n < known && rows[n] == rows[0] + n * stride) ++n;
      together_[p] = from_.panels() ? 1 : n <= kPanelWidth ? n : kPanelWidth + together_[p + 1];
    }
  }

  /// Tokens of panels that are taken apart have a few bytes of each of many lines. To fetch all of these would take
  /// more time than it saves, so they are left alone.
  void prefetch_behind(int64_t panel) const {
    if (from_.panels() != list_.whole_panels) return;
    const int64_t bytes = list_.whole_panels ? panel_bytes_ / kPanelWidth : row_bytes_;
    const char* const* const next = rows_ + (panel + 1) * kPanelWidth;
    for (int64_t j = 0; j < kPanelWidth; ++j) {
      for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(next[j] + i, 0, 2);
    }
  }

  void copy_panel(int64_t panel, char* to, float* scales) const {
    const int64_t first = panel * kPanelWidth;
    const int64_t n = std::min(kPanelWidth, list_.count - first);
    if (list_.whole_panels) {
      std::memcpy(to, rows_[first], static_cast<size_t>(panel_bytes_));
      const float* const from = from_.run(list_.tokens[first], kPanelWidth, scales).scales;
      if (from != nullptr && from != scales) std::copy_n(from, kPanelWidth, scales);
      return;
    }
    for (int64_t j = 0; j < n; ++j) {
      const int32_t token = list_.tokens[first + j];
      const char* const row = rows_[first + j];
      const bool seen = row != zeros_;
      if (seen && from_.panels()) from_.copy_from_panel(uk_, token, to + j * row_bytes_);
      else std::memcpy(to + j * row_bytes_, row, static_cast<size_t>(row_bytes_));
      scales[j] = seen && has_scales(from_.type()) ? from_.scale(token) : 0.0f;
    }
  }

  const UKernels& uk_;
  KvStore from_;
  TokenList list_;
  int64_t panels_;
  int64_t row_bytes_;
  int64_t panel_bytes_;
  const char** rows_;  // [kRows]
  char* copies_;       // [panels_] panels
  float* scales_;      // [panels_][kPanelWidth]
  char* zeros_;        // a row
  int64_t together_[kRows / kPanelWidth];
  int64_t held_[kKeyBlock / kPanelWidth];  // the panels whose copies are there
};

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_SHARED_GATHERED_ROWS_H_
