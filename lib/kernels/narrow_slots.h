// The slots of the narrow storage types that do not multiply, and those that make f32 of rows and panels.
#ifndef SIMDATTN_LIB_KERNELS_NARROW_SLOTS_H_
#define SIMDATTN_LIB_KERNELS_NARROW_SLOTS_H_

#include "lib/kernels/narrow_rows.h"

namespace simdattn {
namespace {

/// What depends on the type. All else is one body for all types.
struct NarrowRow : CodeLayout {
  decltype(&widen_rows<KvType::kInt8>) rows;
  decltype(&simdattn::encode<KvType::kInt8>) encode;

  const float* scales_from(const float* scales, int64_t token) const {
    return scale_bytes > 0 ? nullptr : scales + token;
  }
  /// f(offset in a row, offset in a panel, bytes) of all that a row has in column `column` of a panel.
  template <class F>
  SIMDATTN_INLINE void for_each_piece(int64_t dim, int64_t column, const F& f) const {
    constexpr std::integral_constant<size_t, kScaleBytes> kScale;
    constexpr std::integral_constant<size_t, kUnitBytes> kUnit;
    const int64_t together = scale_bytes > 0 ? block_units() : units(dim);
    int64_t in_row = 0, scale = scale_at(dim, 0, column), unit = column * kUnitBytes;
    for (int64_t u = 0; u < units(dim); u += together, scale += kPanelWidth * kScaleBytes) {
      if (scale_bytes > 0) f(in_row, scale, kScale);
      in_row += scale_bytes;
      for (int64_t i = 0; i < together; ++i, in_row += kUnitBytes, unit += kUnitPitch) f(in_row, unit, kUnit);
    }
  }

  void put(const StoreRows& a, int64_t t, uint8_t* row) const {
    const char* const from = static_cast<const char*>(a.rows) + t * a.ld;
    float none;
    if (a.as_stored) std::memcpy(row, from, static_cast<size_t>(row_bytes(a.dim)));
    else encode(reinterpret_cast<const float*>(from), a.dim, row, scale_bytes > 0 ? &none : a.scales + t);
  }
  void take(const LoadRows& a, int64_t t, const uint8_t* row) const {
    char* const to = static_cast<char*>(a.rows) + t * a.ld;
    if (a.as_stored) std::memcpy(to, row, static_cast<size_t>(row_bytes(a.dim)));
    else rows(row, 0, scales_from(a.scales, t), 1, 0, a.dim, reinterpret_cast<float*>(to), 0);
  }
};
constexpr int64_t longest_narrow_row() {
  int64_t longest = 0;
  for (const detail::KvFormat& f : detail::kKvFormats) {
    const int64_t bytes = is_narrow(f.type) ? row_bytes(f.type, kMaxNarrowDim) : 0;
    longest = bytes > longest ? bytes : longest;
  }
  return longest;
}
/// A row of codes of any type, with space for the rest of its last unit.
using NarrowRowBuffer = uint8_t[longest_narrow_row() + kUnitBytes];

SIMDATTN_SHARED void store_narrow_rows(const StoreRows& a, const NarrowRow& type) {
  for (int64_t t = 0; t < a.tokens; ++t) type.put(a, t, static_cast<uint8_t*>(a.out) + t * a.stride);
}
SIMDATTN_SHARED void load_narrow_rows(const LoadRows& a, const NarrowRow& type) {
  for (int64_t t = 0; t < a.tokens; ++t) type.take(a, t, static_cast<const uint8_t*>(a.in) + t * a.stride);
}
SIMDATTN_SHARED void store_narrow_panels(const StoreRows& a, const NarrowRow& type) {
  alignas(64) NarrowRowBuffer row;
  for (int64_t t = 0; t < a.tokens; ++t) {
    const int64_t j = a.column + t;
    uint8_t* const panel = static_cast<uint8_t*>(a.out) + j / kPanelWidth * a.stride;
    std::memset(row + type.row_bytes(a.dim), 0, kUnitBytes);
    type.put(a, t, row);
    type.for_each_piece(a.dim, j % kPanelWidth, [&](int64_t in_row, int64_t in_panel, auto bytes) {
      std::memcpy(panel + in_panel, row + in_row, bytes);
    });
  }
}
SIMDATTN_SHARED void load_narrow_panels(const LoadRows& a, const NarrowRow& type) {
  alignas(64) NarrowRowBuffer row;
  for (int64_t t = 0; t < a.tokens; ++t) {
    const int64_t j = a.column + t;
    const uint8_t* const panel = static_cast<const uint8_t*>(a.in) + j / kPanelWidth * a.stride;
    type.for_each_piece(a.dim, j % kPanelWidth, [&](int64_t in_row, int64_t in_panel, auto bytes) {
      std::memcpy(row + in_row, panel + in_panel, bytes);
    });
    type.take(a, t, row);
  }
}
/// Values become f32 in L1, some keys and columns at a time, and `kernel` multiplies them. `round`, unless it is null,
/// rounds them before. Keys of one step of kBF16 stay in one call.
SIMDATTN_SHARED void narrow_value_tile(const ValueTile& a, const NarrowRow& type, void (*kernel)(const ValueTile&),
                                       void (*round)(const float*, float*, int64_t)) {
  constexpr int64_t kKeys = 32, kColumns = 128;
  alignas(64) float wide[kKeys * kColumns];
  int64_t j = 0;
  do {
    const int64_t most = kKeys - (a.first_key + j) % kKeys;
    const int64_t keys = most < a.keys - j ? most : a.keys - j;
    for (int64_t c = 0; c < a.dim; c += kColumns) {
      ValueTile tile = a;
      tile.dim = kColumns < a.dim - c ? kColumns : a.dim - c;
      type.rows(static_cast<const uint8_t*>(a.v) + j * a.key_stride, a.key_stride, type.scales_from(a.scales, j), keys,
                c, tile.dim, wide, kColumns);
      for (int64_t k = 0; round != nullptr && k < keys; ++k) {
        round(wide + k * kColumns, wide + k * kColumns, tile.dim);
      }
      tile.w = a.w + j;
      tile.v = wide;
      tile.scales = nullptr;
      tile.first_key = a.first_key + j;
      tile.key_stride = kColumns * 4;
      tile.group_stride = kValueGroup * 4;
      tile.keys = keys;
      tile.o = a.o + c;
      tile.alpha = j == 0 ? a.alpha : nullptr;
      tile.fetch = Fetch::kNone;
      kernel(tile);
    }
    j += keys;
  } while (j < a.keys);
}

template <KvType kType>
struct NarrowRows {
  using Format = FormatOf<kType>;
  static constexpr CodeLayout kLayout = kLayoutOf<kType>;
  static constexpr NarrowRow kRow = {kLayout, widen_rows<kType>, encode<kType>};
  static_assert(kLayout.row_bytes(kBlockDims) == row_bytes(kType, kBlockDims));

  static bool all_finite(const FiniteRows& a) {
    for (int64_t j = 0; j < a.keys; ++j) {
      const uint8_t* const row = static_cast<const uint8_t*>(a.rows) + j * a.token_stride;
      if constexpr (has_scales(kType)) {
        if (!(std::fabs(a.scales[j]) < Format::kLargeScale)) return false;
      }
      if (!codes_are_finite<Format>(row, a.dim)) return false;
    }
    return true;
  }
  static void store_rows(const StoreRows& a) { store_narrow_rows(a, kRow); }
  static void load_rows(const LoadRows& a) { load_narrow_rows(a, kRow); }
  static void store_panels(const StoreRows& a) { store_narrow_panels(a, kRow); }
  static void load_panels(const LoadRows& a) { load_narrow_panels(a, kRow); }
  static void value_tile(const ValueTile& a, void (*kernel)(const ValueTile&),
                         void (*round)(const float*, float*, int64_t) = nullptr) {
    narrow_value_tile(a, kRow, kernel, round);
  }
  /// Keys in rows as a panel of their type.
  static void store_panel(const PackKeys& a) {
    transpose_codes<kLaidOutAs<kType>>(static_cast<const uint8_t*>(a.from), a.token_stride, a.keys, a.dim,
                                       static_cast<uint8_t*>(a.panel), a.stream);
  }
  static void widen_panel(const PackKeys& a) {
    widen_panel(static_cast<const uint8_t*>(a.from), a.scales, a.dim, static_cast<float*>(a.panel));
  }
  /// Rows become a panel of their type first: units of four bytes are transposed, a quarter of what their numbers are
  /// or less.
  static void pack_keys(const PackKeys& a) {
    constexpr int64_t kChunk = 128;  // dimensions at a time
    alignas(64) uint8_t panel[kLayout.panel_bytes(kChunk)];
    alignas(64) float scales[kPanelWidth] = {};
    if (has_scales(kType)) std::memcpy(scales, a.scales, static_cast<size_t>(a.keys) * sizeof(float));
    for (int64_t d = 0; d < a.dim; d += kChunk) {
      const int64_t n = smaller(kChunk, a.dim - d);
      const int64_t first = kLayout.row_bytes(d);
      transpose_codes<kLaidOutAs<kType>>(static_cast<const uint8_t*>(a.from) + first, a.token_stride, a.keys, n, panel,
                                         a.stream);
      widen_panel(panel, scales, n, static_cast<float*>(a.panel) + d * kPanelWidth);
    }
  }

 private:
  static __attribute__((noinline)) void widen_panel(const uint8_t* panel, const float* scales, int64_t dim,
                                                    float* out) {
    widen_codes(panel, scales, dim, out, FormatOf<kType>());
  }
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_NARROW_SLOTS_H_
