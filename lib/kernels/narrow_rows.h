// The narrow storage types but for what multiplies codes: rows and panels of codes to f32, rows of f32 to codes, and
// the slots that do this.
#pragma once

#include "lib/kernels/narrow_codes.h"
#include "lib/simd/math.h"

namespace simdattn {
namespace {

// ---- To f32 ---------------------------------------------------------------------------------------------------------

/// The numbers of a scale block.
template <class Format>
SIMDATTN_INLINE void widen_block(const uint8_t* block, float* out) {
  const uint8_t* const codes = block + Format::kLayout.scale_bytes;
  constexpr int64_t kCodeBytes = Format::kLayout.code_bytes;
  [[maybe_unused]] uint32_t high = 0;
  if constexpr (Format::kHighBit) std::memcpy(&high, codes - sizeof high, sizeof high);
  const Floats d = block_scale(block), m = block_scale(block + (Format::kMinimum ? kScaleBytes : 0));
  const auto put = [&](int64_t i, Floats number, auto part) SIMDATTN_LAMBDA {
    const Floats product = number * d;
    store(Format::kMinimum ? product + m : product, out + i, part);
  };
  const auto put_codes = [&](int64_t i, Bits32 code, auto part) SIMDATTN_LAMBDA {
    constexpr uint32_t kHigh = 1u << Format::kLowBits;
    code = code & Bits32(kHigh - 1);
    if constexpr (Format::kHighBit) code = code | select(one_bits(high >> i), Bits32(kHigh), Bits32(0u));
    put(i, to_float(cast_bits<int32_t>(code)) - Floats(Format::kZero), part);
  };
  if constexpr (Format::kTable != nullptr) {
    uint8_t numbers[kBlockDims];
    look_up_nibbles(Format::kTable, codes, numbers);
    for (int64_t j = 0; j < kBlockDims; j += kLanes) put(j, to_float(load_integers(numbers + j)), All());
    return;
  }
  const auto lanes = [] {
    if constexpr (kCodeBytes < kLanes) return first_lanes(kCodeBytes);
    else return All();
  }();
  for (int64_t j = 0; j < kCodeBytes; j += kLanes) {
    if constexpr (Format::kBits == 8) {
      put(j, load_numbers(codes + j, lanes, Format()), lanes);
    } else {
      const Bits32 w = load_bytes(codes + j, lanes);
      put_codes(j, w, lanes);
      unroll<8 / Format::kLowBits - 1>(
          [&](auto i) SIMDATTN_LAMBDA { put_codes((i + 1) * kCodeBytes + j, w >> (i + 1) * Format::kLowBits, lanes); });
    }
  }
}

/// The numbers from bit kFirst on of each byte of units, of the last unit n of them, as rows of a panel of f32.
template <int kFirst, class Format>
SIMDATTN_INLINE void put_units(Bits32 units, Floats factor, int64_t n, float* out, Format format) {
  unroll<4>([&](auto i) SIMDATTN_LAMBDA {
    if (i < n) store(number_of<kFirst + 8 * static_cast<int>(i)>(units, format) * factor, out + i * kPanelWidth);
  });
}
/// A panel as numbers [dim][32]. Nibbles: the lower ones of a scale block, then its upper ones.
template <class Format>
__attribute__((noinline)) void widen_codes(const uint8_t* panel, const float* scales, int64_t dim, float* out) {
  constexpr CodeLayout kLayout = Format::kLayout;
  constexpr bool kInBlocks = kLayout.scale_bytes > 0;
  const uint8_t* of_block = panel + kLayout.scale_at(dim, 0, 0);
  constexpr int64_t kRows = kBlockDims / kLayout.block_units();  // of f32, from a unit
  for (int64_t d = 0; d < dim; d += kBlockDims, out += kBlockDims * kPanelWidth) {
    const int64_t units = kLayout.units(smaller(kBlockDims, dim - d));
    for (int64_t j = 0; j < kPanelWidth; j += kLanes) {
      const Floats factor = kInBlocks ? load_scales(of_block + kScaleBytes * j) : load(scales + j);
      for (int64_t u = 0; u < units; ++u) {
        const uint8_t* const unit = panel + u * kUnitPitch + kUnitBytes * j;
        float* const y = out + 4 * u * kPanelWidth + j;
        if (j % 16 == 0) fetch_ahead(unit);  // a line
        put_units<0>(load_units(unit), factor, kInBlocks ? 4 : dim - d - 4 * u, y, Format());
        if constexpr (kRows == 8) put_units<4>(load_units(unit), factor, 4, y + 16 * kPanelWidth, Format());
      }
    }
    panel += units * kUnitPitch;
    of_block += kPanelWidth * kScaleBytes;
  }
}

// ---- From f32 -------------------------------------------------------------------------------------------------------

SIMDATTN_INLINE void encode_row(const float* x, int64_t dim, uint8_t* row, float* scale, Int8Format /*format*/) {
  const IntegerScale s(largest_magnitude<float>(x, dim), 127.0f);
  *scale = s.scale;
  int8_bytes<float>(x, dim, s.inverse, row);
}
/// d = the largest magnitude / 127.
SIMDATTN_INLINE BlockScale scale_of(uint32_t largest, const float* /*x*/, Q8Format /*format*/) {
  return {std::bit_cast<float>(largest) / 127.0f, largest};
}
SIMDATTN_INLINE void encode_codes(const float* x, const BlockScale& s, uint8_t* codes, Q8Format /*format*/) {
  int8_bytes<float>(x, kBlockDims, s.holds ? s.inverse : 0.0f, codes);
}
/// d = the first number of the largest magnitude / -8.
SIMDATTN_INLINE BlockScale scale_of(uint32_t largest, const float* x, Q4Format /*format*/) {
  float extreme = 0.0f;  // also for zeros of either sign
  for (int64_t i = kBlockDims; i-- > 0 && largest != 0;) {
    if ((std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu) == largest) extreme = x[i];
  }
  return {extreme / -8.0f, largest};
}
SIMDATTN_INLINE void encode_codes(const float* x, const BlockScale& s, uint8_t* codes, Q4Format /*format*/) {
  uint8_t bytes[kBlockDims];
  store_integers<true>(kBlockDims, bytes, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    const Floats y = load(x + i, part) * Floats(s.inverse) + Floats(8.5f);
    const Ints rounded = nearest(y);
    const Bits32 above = select(to_float(rounded) > y, Bits32(1u), Bits32(0u));
    return min(rounded - cast_bits<int32_t>(above), Ints(15));
  });
  if (!s.holds) std::memset(bytes, 8, sizeof bytes);
  for (int64_t i = 0; i < 16; ++i) codes[i] = static_cast<uint8_t>(bytes[i] | bytes[16 + i] << 4);
}
template <class Format>
SIMDATTN_INLINE void encode_row(const float* x, int64_t dim, uint8_t* row, float* /*apart*/, Format format) {
  for (int64_t d = 0; d < dim; d += kBlockDims, x += kBlockDims, row += Format::kLayout.block_bytes()) {
    const BlockScale s = scale_of(largest_magnitude<float>(x, kBlockDims), x, format);
    const f16 scale = from_f32<f16>(s.d);
    std::memcpy(row, &scale, sizeof scale);
    encode_codes(x, s, row + kScaleBytes, format);
  }
}
/// The code of x * (1 / scale), to nearest even, saturated. NaN, also as the product, and infinities stay if they have
/// a code.
template <int kMantissa, int kBias, uint32_t kLargest, uint32_t kNan, uint32_t kOver>
SIMDATTN_INLINE void encode_row(const float* x, int64_t dim, uint8_t* row, float* scale,
                                Fp8Format<kMantissa, kBias, kLargest, kNan, kOver> /*format*/) {
  constexpr int kShift = 23 - kMantissa;
  constexpr uint32_t kExponent = static_cast<uint32_t>(127 - kBias) << 23;  // of f32, for exponent field 0
  // Below the normal numbers a sum whose last bit is worth one code rounds.
  constexpr float kRounder = std::bit_cast<float>(kExponent - ((kMantissa - 1) << 23)) * 0x1p23f;
  const Floats inverse(1.0f / *scale), rounder(kRounder);
  const auto greater_than = [](Bits32 a, uint32_t b) SIMDATTN_LAMBDA {
    return greater(cast_bits<int32_t>(a), Ints(static_cast<int32_t>(b)));
  };
  store_integers<true>(dim, row, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    const Floats v = load(x + i, part), y = v * inverse;
    const Bits32 from = bits_of(abs(v)), bits = bits_of(abs(y));
    const Bits32 sign = (bits_of(y) >> 24) & Bits32(0x80u);
    const Bits32 small = bits_of(abs(y) + rounder) - bits_of(rounder);
    const Bits32 odd = (bits >> kShift) & Bits32(1u);
    const Bits32 normal = ((bits + Bits32((1u << (kShift - 1)) - 1) + odd) >> kShift) - Bits32(kExponent >> kShift);
    const Bits32 rounded = select(greater_than(bits, kExponent + (1u << 23) - 1), normal, small);
    Bits32 result = cast_bits<uint32_t>(min(cast_bits<int32_t>(rounded), Ints(static_cast<int32_t>(kLargest))));
    if constexpr (kOver != kNan) result = select(equal(from, Bits32(kInfinityBits)), Bits32(kOver), result);
    const Mask none = greater_than(from, kInfinityBits - (kOver == kNan ? 1 : 0)) | greater_than(bits, kInfinityBits);
    return cast_bits<int32_t>(select(none, Bits32(kNan), result | sign));
  });
}

// ---- By type --------------------------------------------------------------------------------------------------------

/// Columns [first, first + n) of rows `stride` bytes apart, as rows of f32 `ld` floats apart.
template <KvType kType>
SIMDATTN_SHARED void widen_rows(const uint8_t* rows, int64_t stride, const float* scales, int64_t keys, int64_t first,
                                int64_t n, float* out, int64_t ld) {
  using Format = FormatOf<kType>;
  constexpr int64_t kBlockBytes = Format::kLayout.block_bytes();
  for (int64_t j = 0; j < keys; ++j, out += ld) {
    const uint8_t* const row = rows + j * stride;
    for (int64_t i = 0; i < n; i += 64) fetch_ahead(row + i);
    const uint8_t* const codes = row + Format::kLayout.row_bytes(first);
    if constexpr (has_scales(kType)) {
      const Floats factor(scales[j]);
      for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
        store(load_numbers(codes + i, part, Format()) * factor, out + i, part);
      });
    } else {
      for (int64_t b = 0; b < n / kBlockDims; ++b) widen_block<Format>(codes + b * kBlockBytes, out + b * kBlockDims);
    }
  }
}
/// A row of numbers as codes, of types that are written.
template <KvType kType>
SIMDATTN_SHARED void encode(const float* x, int64_t dim, uint8_t* row, float* scale) {
  if constexpr (!is_read_only(kType)) encode_row(x, dim, row, scale, FormatOf<kType>());
}
/// True if every number is finite where the scale beside the row is.
template <class Format>
bool codes_are_finite(const uint8_t* row, int64_t dim) {
  if constexpr (Format::kFp8) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const uint32_t magnitude = row[i] & 0x7Fu;
      largest = magnitude > largest ? magnitude : largest;
    }
    return largest <= Format::kLargest;
  } else if constexpr (Format::kLayout.scale_bytes > 0) {
    const auto is_number = [](const uint8_t* p) { return (p[1] & 0x7C) != 0x7C; };
    for (; dim > 0; dim -= kBlockDims, row += Format::kLayout.block_bytes()) {
      if (!is_number(row) || (Format::kMinimum && !is_number(row + kScaleBytes))) return false;
    }
  }
  return true;
}

// ---- Slots ----------------------------------------------------------------------------------------------------------

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
    const int64_t together = scale_bytes > 0 ? block_units() : units(dim);
    int64_t in_row = 0, scale = scale_at(dim, 0, column), unit = column * kUnitBytes;
    for (int64_t u = 0; u < units(dim); u += together, scale += kPanelWidth * kScaleBytes) {
      if (scale_bytes > 0) f(in_row, scale, constant<kScaleBytes>);
      in_row += scale_bytes;
      for (int64_t i = 0; i < together; ++i, in_row += kUnitBytes, unit += kUnitPitch)
        f(in_row, unit, constant<kUnitBytes>);
    }
  }
};
/// A row of codes of any type, which has at most 8 bits a number and two scales a block, and the rest of its last unit.
using NarrowRowBuffer = uint8_t[kMaxNarrowDim / kBlockDims * (kBlockDims + 2 * kScaleBytes) + kUnitBytes];

/// In rows, or in columns of panels.
SIMDATTN_SHARED void store_narrow(const StoreRows& a, const NarrowRow& type, bool in_panels) {
  alignas(64) NarrowRowBuffer copy;
  const int64_t size = type.row_bytes(a.dim);
  for (int64_t t = 0; t < a.tokens; ++t) {
    const char* const from = static_cast<const char*>(a.rows) + t * a.ld;
    const int64_t j = a.column + t;
    uint8_t* const to = static_cast<uint8_t*>(a.out) + (in_panels ? j / kPanelWidth : t) * a.stride;
    uint8_t* const row = in_panels ? copy : to;
    if (a.as_stored) std::memcpy(row, from, static_cast<size_t>(size));
    else type.encode(reinterpret_cast<const float*>(from), a.dim, row, type.scale_bytes > 0 ? nullptr : a.scales + t);
    if (!in_panels) continue;
    std::memset(row + size, 0, kUnitBytes);
    type.for_each_piece(a.dim, j % kPanelWidth, [&](int64_t in_row, int64_t in_panel, auto bytes) {
      std::memcpy(to + in_panel, row + in_row, bytes);
    });
  }
}
SIMDATTN_SHARED void load_narrow(const LoadRows& a, const NarrowRow& type, bool in_panels) {
  alignas(64) NarrowRowBuffer copy;
  for (int64_t t = 0; t < a.tokens; ++t) {
    const int64_t j = a.column + t;
    const uint8_t* row = static_cast<const uint8_t*>(a.in) + (in_panels ? j / kPanelWidth : t) * a.stride;
    if (in_panels) {
      type.for_each_piece(a.dim, j % kPanelWidth, [&](int64_t in_row, int64_t in_panel, auto bytes) {
        std::memcpy(copy + in_row, row + in_panel, bytes);
      });
      row = copy;
    }
    char* const to = static_cast<char*>(a.rows) + t * a.ld;
    if (a.as_stored) std::memcpy(to, row, static_cast<size_t>(type.row_bytes(a.dim)));
    else type.rows(row, 0, type.scales_from(a.scales, t), 1, 0, a.dim, reinterpret_cast<float*>(to), 0);
  }
}
/// Values become f32 in L1, some keys and columns at a time, and `kernel` multiplies them. `round`, unless it is null,
/// rounds them before. Keys of one step of kBF16 stay in one call.
SIMDATTN_SHARED void narrow_value_tile(const ValueTile& a, const NarrowRow& type, void (*kernel)(const ValueTile&),
                                       void (*round)(const float*, float*, int64_t) = nullptr) {
  constexpr int64_t kKeys = 32, kColumns = 128;
  alignas(64) float wide[kKeys * kColumns];
  int64_t j = 0;
  do {
    const int64_t keys = smaller(kKeys - (a.first_key + j) % kKeys, a.keys - j);
    for (int64_t c = 0; c < a.dim; c += kColumns) {
      ValueTile tile = a;
      tile.dim = smaller(kColumns, a.dim - c);
      type.rows(static_cast<const uint8_t*>(a.v) + j * a.key_stride, a.key_stride, type.scales_from(a.scales, j), keys,
                c, tile.dim, wide, kColumns);
      for (int64_t k = 0; round != nullptr && k < keys; ++k) round(wide + k * kColumns, wide + k * kColumns, tile.dim);
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
  static_assert(kLayout.row_bytes(kMaxNarrowDim) + kUnitBytes <= static_cast<int64_t>(sizeof(NarrowRowBuffer)));

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
  static void store_rows(const StoreRows& a) { store_narrow(a, kRow, false); }
  static void load_rows(const LoadRows& a) { load_narrow(a, kRow, false); }
  static void store_panels(const StoreRows& a) { store_narrow(a, kRow, true); }
  static void load_panels(const LoadRows& a) { load_narrow(a, kRow, true); }
  /// Keys in rows as a panel of their type.
  static void store_panel(const PackKeys& a) {
    transpose_codes<kLaidOutAs<kType>>(static_cast<const uint8_t*>(a.from), a.token_stride, a.keys, a.dim,
                                       static_cast<uint8_t*>(a.panel), a.stream);
  }
  static void widen_panel(const PackKeys& a) {
    widen_codes<Format>(static_cast<const uint8_t*>(a.from), a.scales, a.dim, static_cast<float*>(a.panel));
  }
  /// Rows become a panel of their type first, because codes are a quarter of their numbers or less.
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
      widen_codes<Format>(panel, scales, n, static_cast<float*>(a.panel) + d * kPanelWidth);
    }
  }
};

}  // namespace
}  // namespace simdattn
