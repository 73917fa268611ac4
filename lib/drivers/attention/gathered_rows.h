// Rows of some tokens as attention wants them: one behind the other. A panel of them is there at a time.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_GATHERED_ROWS_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_GATHERED_ROWS_H_

#include <algorithm>
#include <cstring>

#include "lib/drivers/cache/kv_store.h"

namespace simdattn {

/// Keys or values of a store in the order of a list: a ring of panels, kv(), which has the rows that at() was called for.
class GatheredRows {
 public:
  /// `to`: bytes_of(). `panels`: of the ring, at most those of a block.
  GatheredRows(const UKernels& uk, const KvStore& from, char* to, int64_t panels = 1)
      : uk_(uk),
        from_(from),
        to_(to),
        scales_(reinterpret_cast<float*>(to + panels * panel_bytes(from.type(), from.kv().dim))),
        zeros_(reinterpret_cast<char*>(scales_ + panels * kPanelWidth)),
        panels_(panels) {
    std::memset(zeros_, 0, static_cast<size_t>(row_bytes(from.type(), from.kv().dim)));
  }
  GatheredRows(const GatheredRows&) = delete;
  static int64_t bytes_of(KvType type, int64_t dim, int64_t panels = 1) {
    return panels * (panel_bytes(type, dim) + kPanelWidth * int64_t{sizeof(float)}) + row_bytes(type, dim);
  }

  /// Places base, base + 1, ... of kv() are tokens[0 .. n) from now on. Those outside of [lo, hi) are not read: their rows are zeros. `panels`: they
  /// are whole panels of a store of panels, and become such, which are read whole. `fetch`: they may come from memory.
  void begin(const int32_t* tokens, int64_t n, int64_t base, int64_t lo, int64_t hi, bool fetch, bool panels = false) {
    tokens_ = tokens;
    n_ = n;
    base_ = base;
    lo_ = lo;
    hi_ = hi;
    fetch_ = fetch;
    first_ = -2 * kPanelWidth;
    std::fill_n(held_, panels_, -1);
    kv_ = contiguous_kv(static_cast<const char*>(to_), from_.type(), panels ? KvLayout::kPanels : KvLayout::kRows, 1, 1,
                        panels_ * kPanelWidth, from_.kv().dim);
    if (has_scales(kv_.type)) kv_ = contiguous_scales(kv_, static_cast<const float*>(scales_));
    kv_.ring = panels_ * kPanelWidth;
  }
  const ConstKv& kv() const { return kv_; }
  /// Where the rows of the panel of a place are and, behind them, those of the next panel; zeros in the place of rows that are not read. Not of
  /// stores of panels.
  const char* const* rows(int64_t place) {
    const int64_t first = (place - base_) / kPanelWidth * kPanelWidth;
    if (first == first_) return rows_;
    if (first != first_ + kPanelWidth) find(first);
    std::copy_n(rows_ + kPanelWidth, kPanelWidth, rows_);
    first_ = first;
    find(first + kPanelWidth);
    const int64_t stride = from_.token_stride();
    together_ = 1;
    while (!from_.panels() && together_ < 2 * kPanelWidth && rows_[together_] == rows_[0] + together_ * stride)
      ++together_;
    return rows_;
  }
  /// True if the next panel lies behind the one of rows(), as it would without a list.
  bool goes_on() const { return together_ == 2 * kPanelWidth; }
  /// True if there are rows to read in place.
  bool in_place() const { return !from_.panels(); }

  /// A row of the panel of a place, which is copied unless its rows lie together; stride() is that of all of them then.
  const char* at(int64_t place) {
    rows(place);
    const int64_t inside = (place - base_) % kPanelWidth;
    const bool copies = from_.panels() || has_scales(kv_.type) || together_ < std::min(kPanelWidth, n_ - first_);
    stride_ = copies ? kv_.token_stride : from_.token_stride();
    const int64_t panel = first_ / kPanelWidth % panels_;
    char* const to = to_ + panel * (in_panels(kv_) ? stride_ : kPanelWidth * kv_.token_stride);
    if (first_ != held_[panel]) hold(copies, to, scales_ + panel * kPanelWidth);
    held_[panel] = first_;
    return !copies ? rows_[inside] : in_panels(kv_) ? to : to + inside * stride_;
  }
  int64_t stride() const { return stride_; }

 private:
  bool seen(int64_t token) const { return token >= lo_ && token < hi_; }
  /// Rows of tokens[first ..), or 32nds of a panel, behind the others.
  void find(int64_t first) {
    for (int64_t j = 0; j < kPanelWidth; ++j) {
      const int64_t token = first + j < n_ ? tokens_[first + j] : -1;
      rows_[kPanelWidth + j] = token >= 0 && (seen(token) || in_panels(kv_)) ? from_.row(token) : zeros_;
    }
  }
  void hold(bool copies, char* to, float* scales) {
    const bool panels = in_panels(kv_);
    const int64_t bytes = panels ? kv_.token_stride / kPanelWidth : kv_.token_stride;
    // Of keys in panels, tokens by themselves have a little of many lines.
    const bool fetches = fetch_ && !goes_on() && from_.panels() == panels;
    for (int64_t j = 0; j < kPanelWidth; ++j) {
      for (int64_t i = 0; fetches && i < bytes; i += 64) __builtin_prefetch(rows_[j + kPanelWidth] + i, 0, 2);
      if (copies && !panels && first_ + j < n_) copy(tokens_[first_ + j], rows_[j], to + j * bytes, scales + j);
    }
    if (!panels || first_ >= n_) return;
    std::memcpy(to, rows_[0], static_cast<size_t>(kv_.token_stride));
    const float* const from = from_.scales(tokens_[first_], kPanelWidth, scales);
    if (from != nullptr && from != scales) std::copy_n(from, kPanelWidth, scales);
  }
  void copy(int64_t token, const char* row, char* to, float* scale) {
    *scale = 0.0f;
    if (seen(token) && (from_.panels() || has_scales(kv_.type))) from_.copy_row(uk_, token, to, scale);
    else std::memcpy(to, row, static_cast<size_t>(kv_.token_stride));
  }

  const UKernels& uk_;
  KvStore from_;
  char* to_;
  float* scales_;
  char* zeros_;
  int64_t panels_;
  ConstKv kv_;
  const int32_t* tokens_ = nullptr;
  int64_t n_ = 0;
  int64_t base_ = 0;
  int64_t lo_ = 0;
  int64_t hi_ = 0;
  bool fetch_ = false;
  int64_t first_ = 0;                      // the first column of rows_
  int64_t together_ = 0;                   // so many of rows_ follow one another
  int64_t held_[kKeyBlock / kPanelWidth];  // the first columns of the panels that are there
  int64_t stride_ = 0;
  const char* rows_[2 * kPanelWidth];
};

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_GATHERED_ROWS_H_
