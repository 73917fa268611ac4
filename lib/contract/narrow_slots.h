// The slots of the narrow storage types that do not multiply, over a codec: how codes become numbers and numbers codes.
#ifndef SIMDATTN_LIB_CONTRACT_NARROW_SLOTS_H_
#define SIMDATTN_LIB_CONTRACT_NARROW_SLOTS_H_

#include "lib/contract/kv_formats.h"

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

/// Codes to numbers and numbers to codes in plain C++. Backends have vectors for it.
template <KvType kType>
struct PlainCodec {
  using Format = FormatOf<kType>;

  /// Columns [first, first + n) of rows `stride` bytes apart, as rows of f32 `ld` floats apart.
  static SIMDATTN_FORMAT_INLINE void rows(const uint8_t* rows, int64_t stride, const float* scales, int64_t keys,
                                          int64_t first, int64_t n, float* out, int64_t ld) {
    for (int64_t j = 0; j < keys; ++j, out += ld) {
      const uint8_t* const codes = rows + j * stride + Format::kLayout.row_bytes(first);
      if constexpr (has_scales(kType)) {
        for (int64_t i = 0; i < n; ++i) out[i] = Format::number(codes[i]) * scales[j];
      } else {
        for (int64_t b = 0; b < n / kBlockDims; ++b)
          Format::decode(codes + b * Format::kLayout.block_bytes(), out + b * kBlockDims);
      }
    }
  }
  /// A row of numbers as codes, of types that are written.
  static SIMDATTN_FORMAT_INLINE void encode(const float* x, int64_t dim, uint8_t* row, float* scale) {
    if constexpr (has_scales(kType)) {
      Format::encode(x, dim, row, scale);
    } else if constexpr (!is_read_only(kType)) {
      for (int64_t d = 0; d < dim; d += kBlockDims, row += Format::kLayout.block_bytes()) Format::encode(x + d, row);
    }
  }
};

/// What depends on the type. All else is one body for all types.
struct NarrowRow : CodeLayout {
  decltype(&PlainCodec<KvType::kInt8>::rows) rows;
  decltype(&PlainCodec<KvType::kInt8>::encode) encode;

  const float* scales_from(const float* scales, int64_t token) const {
    return scale_bytes > 0 ? nullptr : scales + token;
  }
  /// f(offset in a row, offset in a panel, bytes) of all that a row has in column `column` of a panel.
  template <class F>
  SIMDATTN_FORMAT_INLINE void for_each_piece(int64_t dim, int64_t column, const F& f) const {
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

#define SIMDATTN_NARROW_SLOT __attribute__((noinline)) inline
SIMDATTN_NARROW_SLOT void store_narrow_rows(const StoreRows& a, const NarrowRow& type) {
  for (int64_t t = 0; t < a.tokens; ++t) type.put(a, t, static_cast<uint8_t*>(a.out) + t * a.stride);
}
SIMDATTN_NARROW_SLOT void load_narrow_rows(const LoadRows& a, const NarrowRow& type) {
  for (int64_t t = 0; t < a.tokens; ++t) type.take(a, t, static_cast<const uint8_t*>(a.in) + t * a.stride);
}
SIMDATTN_NARROW_SLOT void store_narrow_panels(const StoreRows& a, const NarrowRow& type) {
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
SIMDATTN_NARROW_SLOT void load_narrow_panels(const LoadRows& a, const NarrowRow& type) {
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
SIMDATTN_NARROW_SLOT void narrow_value_tile(const ValueTile& a, const NarrowRow& type, void (*kernel)(const ValueTile&),
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
#undef SIMDATTN_NARROW_SLOT

/// All that does not multiply, of one type.
template <KvType kType, class Codec = PlainCodec<kType>>
struct NarrowSlots {
  static constexpr NarrowRow kRow = {kLayoutOf<kType>, Codec::rows, Codec::encode};
  static_assert(kRow.row_bytes(kBlockDims) == row_bytes(kType, kBlockDims));

  static bool all_finite(const FiniteRows& a) {
    for (int64_t j = 0; j < a.keys; ++j) {
      const uint8_t* const row = static_cast<const uint8_t*>(a.rows) + j * a.token_stride;
      if (!FormatOf<kType>::finite(row, a.dim, has_scales(kType) ? a.scales[j] : 1.0f)) return false;
    }
    return true;
  }
  static void store_rows(const StoreRows& a) { store_narrow_rows(a, kRow); }
  static void load_rows(const LoadRows& a) { load_narrow_rows(a, kRow); }
  static void store_panels(const StoreRows& a) { store_narrow_panels(a, kRow); }
  static void load_panels(const LoadRows& a) { load_narrow_panels(a, kRow); }
  /// Keys in rows as a panel of their type.
  static void store_panel(const PackKeys& a) {
    if (a.keys < kPanelWidth) std::memset(a.panel, 0, static_cast<size_t>(kRow.panel_bytes(a.dim)));
    store_panels(
        {.rows = a.from, .ld = a.token_stride, .tokens = a.keys, .dim = a.dim, .out = a.panel, .as_stored = true});
  }
  static void value_tile(const ValueTile& a, void (*kernel)(const ValueTile&),
                         void (*round)(const float*, float*, int64_t) = nullptr) {
    narrow_value_tile(a, kRow, kernel, round);
  }
  /// Slots that not all backends have.
  static constexpr void add_slots(KvOperands& /*f32*/, KvOperands& /*bf16*/) {}
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_CONTRACT_NARROW_SLOTS_H_
