// Keys and values of a store as operands of an arithmetic: packed panels and packed blocks.
//
// Where a storage type lacks a slot, rows are loaded as f32 and take the slot of f32. So every storage type works with every
// arithmetic.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_OPERANDS_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_OPERANDS_H_

#include <algorithm>
#include <bit>
#include <cstring>

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/drivers/attention/gathered_rows.h"

namespace simdattn {

/// Calls AttentionKernels::begin and end around the slots of an arithmetic: AMX is configured and released there.
class KernelHooks {
 public:
  explicit KernelHooks(const AttentionKernels& kernels) : kernels_(kernels) {
    if (kernels_.begin != nullptr) kernels_.begin();
  }
  ~KernelHooks() {
    if (kernels_.end != nullptr) kernels_.end();
  }
  KernelHooks(const KernelHooks&) = delete;
  KernelHooks& operator=(const KernelHooks&) = delete;

 private:
  const AttentionKernels& kernels_;
};

/// Rows that are loaded as f32, or put together from several pages, at a time.
inline constexpr int64_t kLoadedRows = kPanelWidth;

/// The keys or the values of one head of one sequence.
class HeadOperands {
 public:
  const KvStore store;
  const KvOperands& slots;

  /// `rows`: for kLoadedRows rows, as stored or as f32.
  HeadOperands(const UKernels& kernels, const AttentionKernels& arithmetic, const ConstKv& kv, int64_t sequence,
               int64_t head, int64_t first_token, char* rows)
      : store(kv, sequence, head, first_token),
        slots(arithmetic.kv[slot(kv.type)]),
        arithmetic_(arithmetic),
        storage_(kernels.kv[slot(kv.type)]),
        rows_(rows),
        dim_(kv.dim) {}
  /// Those of a list. `kv`: gathered.kv(), or `part` bytes inside its rows.
  HeadOperands(const UKernels& kernels, const AttentionKernels& arithmetic, GatheredRows& gathered, const ConstKv& kv,
               char* rows, int64_t part = 0)
      : HeadOperands(kernels, arithmetic, kv, 0, 0, 0, rows) {
    gathered_ = &gathered;
    part_ = part;
  }

  /// As KvStore::at(); stride() is how far the rows of the run are from one another.
  const char* at(int64_t token, int64_t* run) const {
    return gathered_ == nullptr ? store.at(token, run) : gathered_->at(token, run) + part_;
  }
  int64_t stride() const { return gathered_ != nullptr ? gathered_->stride() : store.token_stride(); }
  bool gathered() const { return gathered_ != nullptr; }
  /// True if what lies behind the last run is what comes next.
  bool goes_on() const { return gathered_ == nullptr || gathered_->goes_on(); }
  /// Where the rows of the panel of a token are, for slots that take lists; null if they do not, or if what follows lies behind them.
  const char* const* listed(int64_t token) const {
    if (gathered_ == nullptr || part_ != 0 || !gathered_->in_place() || !slots.takes_lists) return nullptr;
    const char* const* const rows = gathered_->rows(token);
    return goes_on() ? nullptr : rows;
  }

  /// True if scores of `rows` rows are taken from packed panels, false if from the cache's own panels.
  bool packs_keys(int64_t rows) const {
    return !store.panels() || slots.score_tile == nullptr ||
           (rows > slots.direct_key_rows && slots.pack_panel != nullptr);
  }

  /// Scores of some rows with keys [lo, hi) of a block, in whole panels from the one that holds lo on. `tile.room` is memory for a packed panel;
  /// `rows`: for so many keys are read; `fetch`: how, `fetch_rows`: how those that are transposed. They come from one of
  ///   the cache's own panels       score_tile     in_panels
  ///   the cache's rows             score_rows     in_rows: few query rows, whole runs of 32 keys
  ///   one panel in L1              score_tile     as_stored: rows put together in the storage type
  ///                                score_packed   else
  void score(ScoreTile tile, int64_t base, int64_t lo, int64_t hi, int64_t rows, Fetch fetch, Fetch fetch_rows) const {
    const bool in_panels = !packs_keys(rows);
    const bool direct = !store.panels() && rows <= slots.direct_key_rows;
    const bool in_rows =
        direct && slots.score_rows != nullptr && tile.rows <= kMostScoreRows && has_direct_rows(tile.dim);
    const bool as_stored = direct && slots.store_panel != nullptr && slots.score_tile != nullptr;
    const bool stream = fetch_rows != Fetch::kNone;
    const Fetch in_place = in_rows && !is_narrow(store.type()) ? fetch_rows : fetch;
    float scales[kKeyBlock];
    float* const s = tile.s;
    const int64_t first = lo / kPanelWidth * kPanelWidth;
    const int64_t end = first + tile.n_panels * kPanelWidth;
    for (int64_t c = first; c < end; c += tile.n_panels * kPanelWidth) {
      tile.s = s + (c - first);
      const bool here = in_panels || (in_rows && c >= lo);
      tile.listed = in_rows && here ? listed(base + c) : nullptr;
      int64_t run = tile.listed != nullptr ? kPanelWidth : 0;
      tile.panels = tile.listed != nullptr ? *tile.listed : here ? at(base + c, &run) : nullptr;
      tile.n_panels = std::min(run, (in_panels ? end : hi) - c) / kPanelWidth;
      if (tile.n_panels > 0) {
        tile.panel_stride = stride();
        tile.scales = store.scales(base + c, tile.n_panels * kPanelWidth, scales);
        tile.fetch = goes_on() ? in_place : Fetch::kNone;
        (in_panels ? slots.score_tile : slots.score_rows)(tile);
      } else {  // one at a time, which L1 still holds when it is read: no other rows need it
        pack_panel(base, lo, hi, c, tile.room, stream, as_stored ? scales : nullptr);
        tile.panels = tile.room;
        tile.n_panels = 1;
        tile.scales = as_stored && has_scales(store.type()) ? scales : nullptr;
        tile.fetch = Fetch::kNone;
        (as_stored ? slots.score_tile : slots.score_packed)(tile);
      }
    }
  }

  /// Columns [c, c + 32) of a block of keys become `panel`. Those outside of [lo, hi) are not read, and of no account. `stream`: they come from
  /// memory. `scales` null: a packed panel. Else keys in rows become a panel of the storage type, by KvOperands::store_panel, and scales[32] theirs.
  void pack_panel(int64_t base, int64_t lo, int64_t hi, int64_t c, void* panel, bool stream,
                  float* scales = nullptr) const {
    const int64_t token = base + c;
    const int64_t first = std::max(lo - c, int64_t{0});
    const int64_t last = std::min(hi - c, kPanelWidth);
    const auto slot = scales == nullptr ? slots.pack_keys : slots.store_panel;
    float room[kPanelWidth];
    if (scales == nullptr) scales = room;
    int64_t run = 0;
    PackKeys pack = {.from = at(store.panels() ? token : token + first, &run),
                     .token_stride = stride(),
                     .keys = last,
                     .dim = dim_,
                     .panel = panel};
    if (store.panels()) {
      pack.scales = store.scales(token, kPanelWidth, scales);
      if (slots.pack_panel != nullptr) return slots.pack_panel(pack);
      const bool as_stored = slots.pack_keys != nullptr && !is_narrow(store.type());
      load(storage_.load_panels, pack.from, pack.scales, kPanelWidth, rows_, as_stored);
      pack.from = rows_;
      pack.token_stride = as_stored ? row_bytes(store.type(), dim_) : 4 * dim_;
      pack.keys = kPanelWidth;
      pack.scales = nullptr;
      return (as_stored ? slots : f32()).pack_keys(pack);
    }
    std::fill_n(scales, kPanelWidth, 0.0f);
    if (slot != nullptr && first == 0 && run >= last) {
      pack.scales = store.scales(token, last, scales);
      if (pack.scales != nullptr) std::copy_n(pack.scales, last, scales);
      pack.stream = stream && goes_on();
      return slot(pack);
    }
    // Rows of several runs, as stored or as f32.
    const int64_t row = slot == nullptr ? 4 * dim_ : row_bytes(store.type(), dim_);
    std::memset(rows_, 0, static_cast<size_t>(first * row));
    for_each_run(token, first, last, [&](int64_t j, int64_t keys, const char* from, const float* run_scales) {
      char* const to = rows_ + j * row;
      if (slot == nullptr) {
        load(storage_.load_rows, from, run_scales, keys, to);
      } else if (stride() == row) {
        std::memcpy(to, from, static_cast<size_t>(keys * row));
      } else {
        for (int64_t i = 0; i < keys; ++i) std::memcpy(to + i * row, from + i * stride(), static_cast<size_t>(row));
      }
      if (run_scales != nullptr) std::copy_n(run_scales, keys, scales + j);
    });
    pack.from = rows_;
    pack.token_stride = row;
    pack.scales = slot != nullptr && has_scales(store.type()) ? scales : nullptr;
    (slot != nullptr ? slot : f32().pack_keys)(pack);
  }

  /// Keys [from, to) of the block that begins at `base`, in runs of adjacent rows: f(number of the run's first key in the block, how many
  /// keys, their rows, their scales).
  template <class F>
  void for_each_run(int64_t base, int64_t from, int64_t to, const F& f) const {
    float scales[kKeyBlock];
    for (int64_t j = from; j < to;) {
      int64_t run = 0;
      const char* rows = at(base + j, &run);
      const int64_t keys = std::min(to - j, run);
      f(j, keys, rows, store.scales(base + j, keys, scales));
      j += keys;
    }
  }

  /// Values of keys [from, to) into a packed block, all columns.
  void pack_block(int64_t base, int64_t from, int64_t to, char* block) const {
    pack_columns(base, from, to, 0, dim_, block);
  }

  /// True if all numbers of keys [from, to) are finite. See KvKernels::all_finite.
  bool finite(int64_t base, int64_t from, int64_t to) const {
    bool finite = true;
    for_each_run(base, from, to, [&](int64_t, int64_t keys, const char* rows, const float* scales) {
      finite = finite && storage_.all_finite({rows, stride(), scales, keys, dim_});
    });
    return finite;
  }

  /// True if the scale of one of these keys has its sign bit set.
  bool negative_scales(int64_t base, int64_t from, int64_t to) const {
    uint32_t signs = 0;
    for_each_run(base, from, to, [&](int64_t, int64_t keys, const char*, const float* scales) {
      for (int64_t j = 0; j < keys; ++j) signs |= std::bit_cast<uint32_t>(scales[j]);
    });
    return signs >> 31 != 0;
  }

  /// Adds values as `tile` says, except that a key that a row does not see counts as zeros: a weight of 0 would hide finite values only.
  /// visible(row, key of the block) tells. Row by row, so slow. `masked`: memory of values_bytes(kValueGroup).
  template <class Visible>
  void add_visible(int64_t base, const ValueTile& tile, char* masked, const Visible& visible) const {
    const int64_t end = tile.first_key + tile.keys;
    ValueTile one = tile;
    one.rows = 1;
    one.v = masked;
    for (int64_t r = 0; r < tile.rows; ++r) {
      one.w = tile.w + r * tile.ldw;
      one.alpha = tile.alpha == nullptr ? nullptr : tile.alpha + r;
      for (int64_t c = 0; c < dim_; c += kValueGroup) {
        one.dim = std::min(kValueGroup, dim_ - c);
        one.o = tile.o + r * tile.ldo + c;
        std::memset(masked, 0, static_cast<size_t>(arithmetic_.values_bytes(one.dim)));
        for (int64_t j = tile.first_key; j < end; ++j) {
          const int64_t first = j;
          while (j < end && visible(r, j)) ++j;
          if (first < j) pack_columns(base, first, j, c, one.dim, masked);
        }
        arithmetic_.value_packed(one);
      }
    }
  }

 private:
  const KvOperands& f32() const { return arithmetic_.kv[slot(KvType::kF32)]; }

  /// Loads tokens into `rows`, as f32 or as they are stored.
  void load(void (*slot)(const LoadRows&), const void* from, const float* scales, int64_t tokens, char* rows,
            bool as_stored = false) const {
    slot({.in = from,
          .stride = stride(),
          .column = 0,
          .tokens = tokens,
          .dim = dim_,
          .rows = rows,
          .ld = as_stored ? row_bytes(store.type(), dim_) : 4 * dim_,
          .as_stored = as_stored,
          .scales = scales});
  }

  void pack_columns(int64_t base, int64_t from, int64_t to, int64_t column, int64_t columns, char* block) const {
    for_each_run(base, from, to, [&](int64_t first, int64_t keys, const char* rows, const float* scales) {
      PackValues pack = {rows, stride(), scales, first, keys, dim_, column, columns, block};
      if (slots.pack_values != nullptr) return slots.pack_values(pack);
      pack.rows = rows_;
      pack.token_stride = 4 * dim_;
      pack.scales = nullptr;
      for (int64_t j = 0; j < keys; j += kLoadedRows) {
        pack.first = first + j;
        pack.keys = std::min(kLoadedRows, keys - j);
        load(storage_.load_rows, rows + j * stride(), scales == nullptr ? nullptr : scales + j, pack.keys, rows_);
        f32().pack_values(pack);
      }
    });
  }

  const AttentionKernels& arithmetic_;
  const KvKernels& storage_;
  GatheredRows* gathered_ = nullptr;
  int64_t part_ = 0;
  char* rows_;
  int64_t dim_;
};

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_OPERANDS_H_
