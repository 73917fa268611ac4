// The slots of the narrow storage types that do not multiply, over a codec: how codes become numbers and numbers codes.
#ifndef SIMDATTN_LIB_CONTRACT_NARROW_SLOTS_H_
#define SIMDATTN_LIB_CONTRACT_NARROW_SLOTS_H_

#include "lib/contract/kv_formats.h"

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

/// Codes to numbers and numbers to codes in plain C++. Backends have vectors for it.
template <KvType kType>
struct PlainCodec {
  /// Columns [first, first + n) of rows `stride` bytes apart, as rows of f32 `ld` floats apart.
  static SIMDATTN_FORMAT_INLINE void rows(const uint8_t* rows, int64_t stride, const float* scales, int64_t keys,
                                          int64_t first, int64_t n, float* out, int64_t ld) {
    for (int64_t j = 0; j < keys; ++j) {
      FormatOf<kType>::decode(rows + j * stride, has_scales(kType) ? scales[j] : 1.0f, first, n, out + j * ld);
    }
  }
  /// A panel as numbers [dim][32].
  static SIMDATTN_FORMAT_INLINE void panel(const uint8_t* panel, const float* scales, int64_t dim, float* out) {
    FormatOf<kType>::decode_panel(panel, scales, dim, out);
  }
  /// A row of numbers as codes, of types that are written.
  static SIMDATTN_FORMAT_INLINE void encode(const float* x, int64_t dim, uint8_t* row, float* scale) {
    if constexpr (!is_read_only(kType)) FormatOf<kType>::encode(x, dim, row, scale);
  }
};

/// All that does not multiply, of one type.
template <KvType kType, class Codec = PlainCodec<kType>>
struct NarrowSlots {
  using Format = FormatOf<kType>;
  static constexpr int64_t kUnitPitch = kUnitBytes * kPanelWidth;
  /// A row of codes with room for the rest of its last unit.
  static constexpr size_t kRowBuffer = static_cast<size_t>(row_bytes(kType, kMaxNarrowDim)) + kUnitBytes;

  static const uint8_t* at(const void* p, int64_t bytes) { return static_cast<const uint8_t*>(p) + bytes; }
  static uint8_t* at(void* p, int64_t bytes) { return static_cast<uint8_t*>(p) + bytes; }
  static float scale_of(const float* scales, int64_t token) { return has_scales(kType) ? scales[token] : 1.0f; }

  static SIMDATTN_FORMAT_INLINE bool all_finite(const FiniteRows& a) {
    for (int64_t j = 0; j < a.keys; ++j) {
      if (!Format::finite(at(a.rows, j * a.token_stride), a.dim, scale_of(a.scales, j))) return false;
    }
    return true;
  }

  static SIMDATTN_FORMAT_INLINE void row_to_bytes(const StoreRows& a, int64_t t, uint8_t* row) {
    const uint8_t* const from = at(a.rows, t * a.ld);
    if (a.as_stored) {
      std::memcpy(row, from, static_cast<size_t>(row_bytes_of<kType>(a.dim)));
    } else {
      float none;
      Codec::encode(reinterpret_cast<const float*>(from), a.dim, row, has_scales(kType) ? a.scales + t : &none);
    }
  }
  static SIMDATTN_FORMAT_INLINE void bytes_to_row(const LoadRows& a, int64_t t, const uint8_t* row) {
    uint8_t* const to = at(a.rows, t * a.ld);
    if (a.as_stored) {
      std::memcpy(to, row, static_cast<size_t>(row_bytes_of<kType>(a.dim)));
    } else {
      const float scale = scale_of(a.scales, t);
      Codec::rows(row, 0, &scale, 1, 0, a.dim, reinterpret_cast<float*>(to), 0);
    }
  }

  static SIMDATTN_FORMAT_INLINE void store_rows(const StoreRows& a) {
    for (int64_t t = 0; t < a.tokens; ++t) row_to_bytes(a, t, at(a.out, t * a.stride));
  }
  static SIMDATTN_FORMAT_INLINE void load_rows(const LoadRows& a) {
    for (int64_t t = 0; t < a.tokens; ++t) bytes_to_row(a, t, at(a.in, t * a.stride));
  }
  static SIMDATTN_FORMAT_INLINE void store_panels(const StoreRows& a) {
    alignas(64) uint8_t row[kRowBuffer];
    const int64_t units = Format::units(a.dim);
    for (int64_t t = 0; t < a.tokens; ++t) {
      const int64_t j = a.column + t;
      std::memset(row + row_bytes_of<kType>(a.dim), 0, kUnitBytes);
      row_to_bytes(a, t, row);
      uint8_t* const panel = at(a.out, j / kPanelWidth * a.stride);
      uint8_t* const column = panel + j % kPanelWidth * kUnitBytes;
      for (int64_t u = 0; u < units; ++u) std::memcpy(column + u * kUnitPitch, row + Format::unit_at(u), kUnitBytes);
      Format::put_block_scales(row, a.dim, panel, j % kPanelWidth);
    }
  }
  static SIMDATTN_FORMAT_INLINE void load_panels(const LoadRows& a) {
    alignas(64) uint8_t row[kRowBuffer];
    const int64_t units = Format::units(a.dim);
    for (int64_t t = 0; t < a.tokens; ++t) {
      const int64_t j = a.column + t;
      const uint8_t* const panel = at(a.in, j / kPanelWidth * a.stride);
      const uint8_t* const column = panel + j % kPanelWidth * kUnitBytes;
      for (int64_t u = 0; u < units; ++u) std::memcpy(row + Format::unit_at(u), column + u * kUnitPitch, kUnitBytes);
      Format::take_block_scales(panel, a.dim, j % kPanelWidth, row);
      bytes_to_row(a, t, row);
    }
  }

  /// A panel as f32 numbers [dim][32].
  static SIMDATTN_FORMAT_INLINE void widen_panel(const PackKeys& a) {
    Codec::panel(at(a.from, 0), a.scales, a.dim, static_cast<float*>(a.panel));
  }

  /// `kernel`, which takes f32, if need be as `round` leaves it: some keys and columns at a time become f32 in L1. The keys of a step of
  /// kBF16 stay together.
  static SIMDATTN_FORMAT_INLINE void value_tile(const ValueTile& a, void (*kernel)(const ValueTile&),
                                                void (*round)(const float*, float*, int64_t) = nullptr) {
    constexpr int64_t kKeys = 32, kColumns = 128;
    alignas(64) float wide[kKeys * kColumns];
    int64_t j = 0;
    do {
      const int64_t most = kKeys - (a.first_key + j) % kKeys;
      const int64_t keys = most < a.keys - j ? most : a.keys - j;
      for (int64_t c = 0; c < a.dim; c += kColumns) {
        ValueTile tile = a;
        tile.dim = kColumns < a.dim - c ? kColumns : a.dim - c;
        Codec::rows(at(a.v, j * a.key_stride), a.key_stride, a.scales + (has_scales(kType) ? j : 0), keys, c, tile.dim,
                    wide, kColumns);
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
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_CONTRACT_NARROW_SLOTS_H_
