// Keys and values of a cache as operands of an arithmetic: packed panels and packed blocks.
//
// A slot that a storage type lacks is replaced by its way through rows of f32, so every storage type works with every
// arithmetic.
#ifndef SIMDATTN_LIB_DRIVERS_ATTENTION_OPERANDS_H_
#define SIMDATTN_LIB_DRIVERS_ATTENTION_OPERANDS_H_

#include <algorithm>
#include <bit>
#include <cstring>

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/drivers/cache/kv_store.h"

namespace simdattn {

/// Begins and ends what an arithmetic needs around its slots.
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

/// Rows that are loaded as f32 at a time.
inline constexpr int64_t kLoadedRows = kPanelWidth;

inline const KvOperands& f32_operands_of(const AttentionKernels& kernels) { return kernels.kv[slot(KvType::kF32)]; }

/// Bytes for kLoadedRows rows of keys on their way into a panel.
inline int64_t key_rows_bytes(const AttentionKernels& kernels, KvType type, int64_t dim) {
  const bool loads = kernels.kv[slot(type)].pack_keys == nullptr || kernels.kv[slot(type)].pack_panel == nullptr;
  return kLoadedRows * std::max(row_bytes(type, dim), loads ? 4 * dim : 0);
}
/// The same for values on their way into a block.
inline int64_t value_rows_bytes(const AttentionKernels& kernels, KvType type, int64_t dim) {
  return kernels.kv[slot(type)].pack_values == nullptr ? kLoadedRows * 4 * dim : 0;
}

/// Packs the keys of one head of one sequence.
class KeyOperands {
 public:
  /// `rows`: key_rows_bytes().
  KeyOperands(const UKernels& kernels, const AttentionKernels& ops, const KvStore<true>& store, char* rows)
      : storage_(kernels.kv[slot(store.type())]),
        ops_(ops.kv[slot(store.type())]),
        f32_(f32_operands_of(ops)),
        k_(store),
        rows_(rows),
        dim_(store.dim()) {}

  /// Columns [0, 32) of `panel` become tokens from `token` on, of which [first, last) are read; the others are of no
  /// account. `stream`: see PackKeys; no token from `end` on is fetched.
  void pack(int64_t token, int64_t first, int64_t last, void* panel, bool stream, int64_t end) const {
    PackKeys pack = {
        .from = nullptr, .token_stride = k_.token_stride(), .keys = last, .dim = dim_, .panel = panel, .stream = false};
    float scales[kPanelWidth];
    if (k_.panels()) {
      int64_t run = 0;
      pack.from = k_.at(token, &run);
      pack.scales = k_.scales(token, kPanelWidth, scales);
      if (ops_.pack_panel != nullptr) return ops_.pack_panel(pack);
      storage_.load_panels({.in = pack.from,
                            .stride = 0,
                            .column = 0,
                            .tokens = kPanelWidth,
                            .dim = dim_,
                            .rows = rows_,
                            .ld = 4 * dim_,
                            .as_stored = false,
                            .scales = pack.scales});
      pack.keys = kPanelWidth;
      return pack_loaded(pack);
    }
    pack_rows(token, first, pack, scales, ops_.pack_keys, stream, end);
  }

  /// The same into a panel of the storage type, by KvOperands::store_panel; scales of columns [0, last) into `scales`.
  void store(int64_t token, int64_t first, int64_t last, void* panel, float* scales, bool stream, int64_t end) const {
    PackKeys pack = {
        .from = nullptr, .token_stride = k_.token_stride(), .keys = last, .dim = dim_, .panel = panel, .stream = false};
    const float* const from = pack_rows(token, first, pack, scales, ops_.store_panel, stream, end);
    if (from != nullptr && from != scales) std::copy_n(from, last, scales);
  }

 private:
  /// Rows by `slot`, null: by way of f32. Returns where their scales are, perhaps `scales`; null for types without. Fills in
  /// `pack`: a copy would wait for the numbers that were just stored one by one.
  const float* pack_rows(int64_t token, int64_t first, PackKeys& pack, float* scales, void (*slot)(const PackKeys&),
                         bool stream, int64_t end) const {
    const int64_t last = pack.keys;
    int64_t run = 0;
    pack.from = k_.at(token + first, &run);
    if (slot != nullptr && first == 0 && run >= last) {
      pack.scales = k_.scales(token, last, scales);
      pack.stream = stream;
      slot(pack);
      return pack.scales;
    }
    const bool loads = slot == nullptr;
    const int64_t row = loads ? 4 * dim_ : row_bytes(k_.type(), dim_);
    std::memset(rows_, 0, static_cast<size_t>(first * row));
    std::fill_n(scales, first, 0.0f);
    for (int64_t j = first; j < last; j += run) {
      const char* from = k_.at(token + j, &run);
      run = std::min(run, last - j);
      char* copy = rows_ + j * row;
      if (stream) prefetch(token + j + kPanelWidth, run, end);
      const float* const run_scales = k_.scales(token + j, run, scales + j);
      if (loads) {
        storage_.load_rows({.in = from,
                            .stride = k_.token_stride(),
                            .column = 0,
                            .tokens = run,
                            .dim = dim_,
                            .rows = copy,
                            .ld = row,
                            .as_stored = false,
                            .scales = run_scales});
        continue;
      }
      if (run_scales != nullptr && run_scales != scales + j) std::copy_n(run_scales, run, scales + j);
      if (k_.token_stride() == row) {
        std::memcpy(copy, from, static_cast<size_t>(run * row));
      } else {
        for (int64_t i = 0; i < run; ++i) {
          std::memcpy(copy + i * row, from + i * k_.token_stride(), static_cast<size_t>(row));
        }
      }
    }
    if (loads) return pack_loaded(pack), nullptr;
    pack.from = rows_;
    pack.token_stride = row;
    pack.scales = has_scales(k_.type()) ? scales : nullptr;
    slot(pack);
    return pack.scales;
  }

  void pack_loaded(PackKeys& pack) const {
    pack.from = rows_;
    pack.token_stride = 4 * dim_;
    f32_.pack_keys(pack);
  }

  /// Rows that the next panel will read: pages lie anywhere, and the hardware's prefetching ends at each.
  void prefetch(int64_t token, int64_t rows, int64_t end) const {
    constexpr int64_t kLine = 64;
    if (token >= end) return;
    int64_t run = 0;
    const char* row = k_.at(token, &run);
    const int64_t bytes = row_bytes(k_.type(), dim_);
    for (rows = std::min(rows, run); rows > 0; --rows, row += k_.token_stride()) {
      for (int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(row + i);
    }
  }

  const KvKernels& storage_;
  const KvOperands& ops_;
  const KvOperands& f32_;
  const KvStore<true>& k_;
  char* rows_;
  int64_t dim_;
};

/// Packs the values of one head of one sequence, and adds them around keys that a row does not see.
class ValueOperands {
 public:
  /// `rows`: value_rows_bytes(). `masked`: values_bytes(kValueGroup), for add_visible() alone.
  ValueOperands(const UKernels& kernels, const AttentionKernels& ops, const KvStore<true>& store, char* rows,
                char* masked)
      : storage_(kernels.kv[slot(store.type())]),
        kernels_(ops),
        ops_(ops.kv[slot(store.type())]),
        f32_(f32_operands_of(ops)),
        v_(store),
        rows_(rows),
        masked_(masked),
        dim_(store.dim()) {}

  /// f(first key of the run in the block, keys, their rows, their scales) for keys [from, to) of the block that begins at
  /// `base`.
  template <class F>
  void for_each_run(int64_t base, int64_t from, int64_t to, const F& f) const {
    float scales[kKeyBlock];
    for (int64_t j = from; j < to;) {
      int64_t run = 0;
      const char* rows = v_.at(base + j, &run);
      const int64_t keys = std::min(to - j, run);
      f(j, keys, rows, v_.scales(base + j, keys, scales));
      j += keys;
    }
  }

  /// Keys [from, to) into a packed block, all columns.
  void pack(int64_t base, int64_t from, int64_t to, char* block) const { pack_columns(base, from, to, 0, dim_, block); }

  bool finite(int64_t base, int64_t from, int64_t to) const {
    bool finite = true;
    for_each_run(base, from, to, [&](int64_t, int64_t keys, const char* rows, const float* scales) {
      finite =
          finite && storage_.all_finite(
                        {.rows = rows, .token_stride = v_.token_stride(), .scales = scales, .keys = keys, .dim = dim_});
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

  /// Adds keys [first_key, first_key + keys) of a block as `tile` says, except that a key that a row does not see counts as
  /// zeros: a weight of 0 would hide finite values only. visible(row, key of the block). Row by row: slow.
  template <class Visible>
  void add_visible(int64_t base, const ValueTile& tile, const Visible& visible) const {
    const int64_t end = tile.first_key + tile.keys;
    ValueTile one = tile;
    one.rows = 1;
    one.v = masked_;
    for (int64_t r = 0; r < tile.rows; ++r) {
      one.w = tile.w + r * tile.ldw;
      one.alpha = tile.alpha == nullptr ? nullptr : tile.alpha + r;
      for (int64_t c = 0; c < dim_; c += kValueGroup) {
        one.dim = std::min(kValueGroup, dim_ - c);
        one.o = tile.o + r * tile.ldo + c;
        std::memset(masked_, 0, static_cast<size_t>(kernels_.values_bytes(one.dim)));
        for (int64_t j = tile.first_key; j < end; ++j) {
          const int64_t first = j;
          while (j < end && visible(r, j)) ++j;
          if (first < j) pack_columns(base, first, j, c, one.dim, masked_);
        }
        kernels_.value_packed(one);
      }
    }
  }

 private:
  void pack_columns(int64_t base, int64_t from, int64_t to, int64_t column, int64_t columns, char* block) const {
    PackValues pack = {.rows = nullptr,
                       .token_stride = v_.token_stride(),
                       .first = 0,
                       .keys = 0,
                       .dim = dim_,
                       .column = column,
                       .columns = columns,
                       .block = block};
    for_each_run(base, from, to, [&](int64_t first, int64_t keys, const char* rows, const float* scales) {
      if (ops_.pack_values != nullptr) {
        pack.rows = rows;
        pack.scales = scales;
        pack.first = first;
        pack.keys = keys;
        ops_.pack_values(pack);
        return;
      }
      pack.token_stride = 4 * dim_;
      for (int64_t j = 0; j < keys; j += kLoadedRows) {
        pack.rows = rows_;
        pack.first = first + j;
        pack.keys = std::min(kLoadedRows, keys - j);
        storage_.load_rows({.in = rows + j * v_.token_stride(),
                            .stride = v_.token_stride(),
                            .column = 0,
                            .tokens = pack.keys,
                            .dim = dim_,
                            .rows = rows_,
                            .ld = 4 * dim_,
                            .as_stored = false,
                            .scales = scales == nullptr ? nullptr : scales + j});
        f32_.pack_values(pack);
      }
    });
  }

  const KvKernels& storage_;
  const AttentionKernels& kernels_;
  const KvOperands& ops_;
  const KvOperands& f32_;
  const KvStore<true>& v_;
  char* rows_;
  char* masked_;
  int64_t dim_;
};

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ATTENTION_OPERANDS_H_
