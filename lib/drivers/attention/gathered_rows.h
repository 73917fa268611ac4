// Rows of some tokens as attention wants them: one behind the other. A panel of them is there at a time.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_GATHERED_ROWS_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_GATHERED_ROWS_H_

#include <algorithm>
#include <cstring>

#include "lib/drivers/attention/scoring.h"
#include "lib/drivers/cache/kv_store.h"

namespace simdattn {

/// Keys or values of a store in the order of a list: a ring of panels, kv(), which has the rows that at() was called for.
class GatheredRows {
 public:
  /// `to`: bytes_of(). `panels`: of the ring, at most those of a block.
  GatheredRows(const UKernels& uk, const KvStore& from, char* to, int64_t panels = 1)
      : uk_(uk),
        from_(from),
        rows_(reinterpret_cast<const char**>(to)),
        to_(to + kRows * int64_t{sizeof(char*)}),
        scales_(reinterpret_cast<float*>(to_ + panels * panel_bytes(from.type(), from.kv().dim))),
        zeros_(reinterpret_cast<char*>(scales_ + panels * kPanelWidth)),
        panels_(panels) {
    std::memset(zeros_, 0, static_cast<size_t>(row_bytes(from.type(), from.kv().dim)));
  }
  GatheredRows(const GatheredRows&) = delete;
  static int64_t bytes_of(KvType type, int64_t dim, int64_t panels = 1) {
    return kRows * int64_t{sizeof(char*)} + panels * (panel_bytes(type, dim) + kPanelWidth * int64_t{sizeof(float)}) +
           row_bytes(type, dim);
  }

  /// Places base, base + 1, ... of kv() are tokens[0 .. n) from now on. `seen`: others are not read, their rows are zeros; null: all are. `panels`:
  /// they are whole panels of a store of panels, and become such, which are read whole. `fetch`: they may come from memory.
  void begin(const int32_t* tokens, int64_t n, int64_t base, const Interval* seen, bool fetch, bool panels = false) {
    tokens_ = tokens;
    n_ = n;
    base_ = base;
    fetch_ = fetch;
    first_ = -1;
    std::fill_n(held_, panels_, -1);
    kv_ = contiguous_kv(static_cast<const char*>(to_), from_.type(), panels ? KvLayout::kPanels : KvLayout::kRows, 1, 1,
                        panels_ * kPanelWidth, from_.kv().dim);
    if (has_scales(kv_.type)) kv_ = contiguous_scales(kv_, static_cast<const float*>(scales_));
    kv_.ring = panels_ * kPanelWidth;
    n = std::min(n, kRows);
    from_.find_rows(tokens, n, rows_);
    for (int64_t j = 0; seen != nullptr && !panels && j < n; ++j) {
      if (tokens[j] < seen->lo || tokens[j] >= seen->hi) rows_[j] = zeros_;
    }
    std::fill(rows_ + n, rows_ + std::min(n + 2 * kPanelWidth, kRows), zeros_);
  }
  const ConstKv& kv() const { return kv_; }
  /// Where the rows of the panel of a place are and, behind them, those of the next panel; zeros in the place of rows that are not read. Not of
  /// stores of panels.
  const char* const* rows(int64_t place) {
    const int64_t first = (place - base_) / kPanelWidth * kPanelWidth;
    const char* const* const rows = rows_ + first;
    if (first == first_) return rows;
    together_ = first == first_ + kPanelWidth ? std::max(together_ - kPanelWidth, int64_t{1}) : 1;
    first_ = first;
    const int64_t stride = from_.token_stride(), most = from_.panels() ? 1 : kRows - first;
    while (together_ < most && rows[together_] == rows[0] + together_ * stride) ++together_;
    return rows;
  }
  /// True if the next panel lies behind the one of rows(), as it would without a list.
  bool goes_on() const { return together_ >= 2 * kPanelWidth; }
  /// True if there are rows to read in place.
  bool in_place() const { return !from_.panels(); }

  /// A row of the panel of a place, which is copied unless its rows lie together; stride() is that of all of them then. `run`: of so many rows from
  /// there on, the rest of the panel and those behind it that go on too.
  const char* at(int64_t place, int64_t* run) {
    rows(place);
    const int64_t inside = (place - base_) % kPanelWidth;
    copies_ = from_.panels() || has_scales(kv_.type) || together_ < std::min(kPanelWidth, n_ - first_);
    *run = (!copies_ && goes_on() ? together_ / kPanelWidth - 1 : 1) * kPanelWidth - inside;
    const int64_t panel = first_ / kPanelWidth % panels_;
    char* const to = to_ + panel * (in_panels(kv_) ? stride() : kPanelWidth * kv_.token_stride);
    if (first_ != held_[panel]) hold(to, scales_ + panel * kPanelWidth);
    held_[panel] = first_;
    return !copies_ ? rows_[first_ + inside] : in_panels(kv_) ? to : to + inside * stride();
  }
  int64_t stride() const { return copies_ ? kv_.token_stride : from_.token_stride(); }

 private:
  /// Of a block, and of what is fetched meanwhile.
  static constexpr int64_t kRows = kKeyBlock + kPanelWidth;

  void hold(char* to, float* scales) {
    const bool panels = in_panels(kv_);
    const int64_t bytes = panels ? kv_.token_stride / kPanelWidth : kv_.token_stride;
    const char* const* const rows = rows_ + first_;
    // Of keys in panels, tokens by themselves have a little of many lines.
    const bool fetches = fetch_ && !goes_on() && from_.panels() == panels;
    for (int64_t j = 0; j < kPanelWidth; ++j) {
      for (int64_t i = 0; fetches && i < bytes; i += 64) __builtin_prefetch(rows[j + kPanelWidth] + i, 0, 2);
      if (!copies_ || panels || first_ + j >= n_) continue;
      const int32_t token = tokens_[first_ + j];
      const bool seen = rows[j] != zeros_;
      if (seen && from_.panels()) from_.copy_from_panel(uk_, token, to + j * bytes);
      else std::memcpy(to + j * bytes, rows[j], static_cast<size_t>(bytes));
      scales[j] = seen && has_scales(kv_.type) ? *from_.scales(token, 1, scales + j) : 0.0f;
    }
    if (!panels || first_ >= n_) return;
    std::memcpy(to, rows[0], static_cast<size_t>(kv_.token_stride));
    const float* const from = from_.scales(tokens_[first_], kPanelWidth, scales);
    if (from != nullptr && from != scales) std::copy_n(from, kPanelWidth, scales);
  }

  const UKernels& uk_;
  KvStore from_;
  const char** rows_;  // [kRows]
  char* to_;
  float* scales_;
  char* zeros_;
  int64_t panels_;
  ConstKv kv_;
  const int32_t* tokens_ = nullptr;
  int64_t n_ = 0;
  int64_t base_ = 0;
  bool fetch_ = false;
  int64_t first_ = 0;                      // the first column of the panel that was asked for
  int64_t together_ = 0;                   // so many rows from there on follow one another
  int64_t held_[kKeyBlock / kPanelWidth];  // the first columns of the panels that are there
  bool copies_ = false;
};

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_GATHERED_ROWS_H_
