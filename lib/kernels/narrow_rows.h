// The narrow storage types but for what multiplies: rows and panels of codes to f32, and rows of f32 to codes.
#ifndef SIMDATTN_LIB_KERNELS_NARROW_ROWS_H_
#define SIMDATTN_LIB_KERNELS_NARROW_ROWS_H_

#include "lib/contract/narrow_slots.h"
#include "lib/kernels/narrow_codes.h"
#include "lib/simd/math.h"

namespace simdattn {
namespace {

// ---- To f32 ------------------------------------------------------------------------------------------------------------

/// Numbers [first, first + n) of a row.
template <class Code>
SIMDATTN_INLINE void widen_row(const uint8_t* row, float scale, int64_t first, int64_t n, float* out,
                               ByteFormat<Code> /*format*/) {
  const Floats factor(scale);
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    store(load_numbers(row + first + i, part, Code()) * factor, out + i, part);
  });
}
template <class Code>
SIMDATTN_INLINE void widen_row(const uint8_t* row, float /*scale*/, int64_t first, int64_t n, float* out,
                               BlockFormat<Code> /*format*/) {
  using Format = BlockFormat<Code>;
  row += first / Format::kBlock * Format::kBlockBytes;
  for (int64_t i = 0; i < n; i += Format::kBlock, row += Format::kBlockBytes) {
    const Floats factor = block_scale(row);
    for (int64_t j = 0; j < Code::kBytes; j += kLanes) {
      const uint8_t* const codes = row + Format::kScaleBytes + j;
      store(load_numbers(codes, All(), Code()) * factor, out + i + j);
      if constexpr (Code::kBytes == 16)
        store(number_of<4>(load_bytes(codes, All()), Code()) * factor, out + i + 16 + j);
    }
  }
}
template <class Code>
SIMDATTN_INLINE void widen_row(const uint8_t* row, float scale, int64_t first, int64_t n, float* out,
                               ReadFormat<Code> /*format*/) {
  ReadFormat<Code>::decode(row, scale, first, n, out);
}

/// The numbers from bit kFirst on of each byte of units, of the last unit n of them, as rows of a panel of f32.
template <int kFirst, class Code>
SIMDATTN_INLINE void put_units(Bits32 units, Floats factor, int64_t n, float* out, Code code) {
  unroll<4>([&](auto i) SIMDATTN_LAMBDA {
    if (i < n) store(number_of<kFirst + 8 * static_cast<int>(i)>(units, code) * factor, out + i * kPanelWidth);
  });
}
/// A panel as numbers [dim][32].
template <class Code>
SIMDATTN_INLINE void widen_codes(const uint8_t* panel, const float* scales, int64_t dim, float* out,
                                 ByteFormat<Code> /*format*/) {
  for (int64_t i = 0; i < dim; i += 4, panel += kUnitPitch, out += 4 * kPanelWidth) {
    fetch_ahead(panel);
    fetch_ahead(panel + kUnitPitch / 2);
    for (int64_t j = 0; j < kPanelWidth; j += kLanes)
      put_units<0>(load_units(panel + kUnitBytes * j), load(scales + j), dim - i, out + j, Code());
  }
}
template <class Code>
SIMDATTN_INLINE void widen_codes(const uint8_t* panel, const float* /*scales*/, int64_t dim, float* out,
                                 BlockFormat<Code> /*format*/) {
  using Format = BlockFormat<Code>;
  const uint8_t* scales = panel + Format::scale_at(dim, 0, 0);
  for (int64_t b = 0; b < dim; b += Format::kBlock, scales += kPanelWidth * Format::kScaleBytes) {
    for (int64_t j = 0; j < kPanelWidth; j += kLanes) {
      const Floats factor = load_scales(scales + Format::kScaleBytes * j);
      for (int64_t u = 0; u < Format::kUnits; ++u) {
        const uint8_t* const units = panel + u * kUnitPitch + kUnitBytes * j;
        float* const y = out + 4 * u * kPanelWidth + j;
        fetch_ahead(units);
        put_units<0>(load_units(units), factor, 4, y, Code());
        if constexpr (Code::kBytes == 16) put_units<4>(load_units(units), factor, 4, y + 16 * kPanelWidth, Code());
      }
    }
    panel += Format::kUnits * kUnitPitch;
    out += Format::kBlock * kPanelWidth;
  }
}

// ---- From f32 ----------------------------------------------------------------------------------------------------------

/// largest_bits() of lib/contract/kv_formats.h.
SIMDATTN_INLINE uint32_t largest_magnitude(const float* x, int64_t n) {
  Ints largest(0);
  for_each_batch(
      n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { largest = max(largest, ints_of(abs(load(x + i, part)))); });
  return static_cast<uint32_t>(largest_lane(largest));
}
/// f(numbers) of n numbers as bytes.
template <bool kUnsigned, class F>
SIMDATTN_INLINE void store_codes(const float* x, int64_t n, uint8_t* out, const F& f) {
  constexpr int64_t kStep = 4 * kLanes;
  const auto step = [&](const float* from, uint8_t* to) SIMDATTN_LAMBDA {
    store_bytes<kUnsigned>(f(load(from)), f(load(from + kLanes)), f(load(from + 2 * kLanes)),
                           f(load(from + 3 * kLanes)), to);
  };
  for (; n >= kStep; n -= kStep, x += kStep, out += kStep) step(x, out);
  if (n == 0) return;
  float last[kStep] = {};
  uint8_t codes[kStep];
  std::memcpy(last, x, static_cast<size_t>(n) * sizeof(float));
  step(last, codes);
  std::memcpy(out, codes, static_cast<size_t>(n));
}
SIMDATTN_INLINE void store_integers(const float* x, int64_t n, bool holds, float inverse, uint8_t* out) {
  if (!holds) {
    std::memset(out, 0, static_cast<size_t>(n));
    return;
  }
  store_codes<false>(x, n, out, [&](Floats v) SIMDATTN_LAMBDA { return nearest(v * Floats(inverse)); });
}

SIMDATTN_INLINE void encode_row(const float* x, int64_t dim, uint8_t* row, float* scale,
                                ByteFormat<Int8Code> /*format*/) {
  const Int8Scale s(largest_magnitude(x, dim));
  *scale = s.scale;
  store_integers(x, dim, s.holds, s.inverse, row);
}
SIMDATTN_INLINE void encode_row(const float* x, int64_t dim, uint8_t* row, float* /*scale*/,
                                BlockFormat<Q8Code> /*format*/) {
  using Format = BlockFormat<Q8Code>;
  for (int64_t b = 0; b < dim; b += Format::kBlock, x += Format::kBlock, row += Format::kBlockBytes) {
    const Q8Scale s(largest_magnitude(x, Format::kBlock));
    put_f16(s.d, row);
    store_integers(x, Format::kBlock, s.holds, s.inverse, row + Format::kScaleBytes);
  }
}
SIMDATTN_INLINE void encode_row(const float* x, int64_t dim, uint8_t* row, float* /*scale*/,
                                BlockFormat<Q4Code> /*format*/) {
  using Format = BlockFormat<Q4Code>;
  for (int64_t b = 0; b < dim; b += Format::kBlock, x += Format::kBlock, row += Format::kBlockBytes) {
    const Q4Scale s(largest_magnitude(x, Format::kBlock), x);
    put_f16(s.d, row);
    uint8_t codes[Format::kBlock];
    store_codes<true>(x, Format::kBlock, codes, [&](Floats v) SIMDATTN_LAMBDA {
      const Floats y = v * Floats(s.inverse) + Floats(8.5f);
      const Ints rounded = nearest(y);
      const Bits32 above = select(to_float(rounded) > y, Bits32(1u), Bits32(0u));
      return min(rounded - cast_bits<int32_t>(above), Ints(15));
    });
    if (!s.holds) std::memset(codes, 8, sizeof codes);
    for (int64_t i = 0; i < 16; ++i) row[2 + i] = static_cast<uint8_t>(codes[i] | codes[16 + i] << 4);
  }
}
/// Fp8Code::code(), which has the comments.
template <int kMantissa, int kBias, uint32_t kLargest, uint32_t kNan, uint32_t kOver>
SIMDATTN_INLINE void encode_row(const float* x, int64_t dim, uint8_t* row, float* scale,
                                ByteFormat<Fp8Code<kMantissa, kBias, kLargest, kNan, kOver>> /*format*/) {
  using Code = Fp8Code<kMantissa, kBias, kLargest, kNan, kOver>;
  constexpr int kShift = Code::kShift;
  const Floats inverse(1.0f / *scale), rounder(Code::kRounder);
  const auto greater_than = [](Bits32 a, uint32_t b) SIMDATTN_LAMBDA {
    return greater(cast_bits<int32_t>(a), Ints(static_cast<int32_t>(b)));
  };
  store_codes<true>(x, dim, row, [&](Floats v) SIMDATTN_LAMBDA {
    const Floats y = v * inverse;
    const Bits32 from = bits_of(abs(v)), bits = bits_of(abs(y));
    const Bits32 sign = (bits_of(y) >> 24) & Bits32(0x80u);
    const Bits32 small = bits_of(abs(y) + rounder) - bits_of(rounder);
    const Bits32 odd = (bits >> kShift) & Bits32(1u);
    const Bits32 normal =
        ((bits + Bits32((1u << (kShift - 1)) - 1) + odd) >> kShift) - Bits32(Code::kExponent >> kShift);
    const Bits32 rounded = select(greater_than(bits, Code::kExponent + (1u << 23) - 1), normal, small);
    Bits32 result = cast_bits<uint32_t>(min(cast_bits<int32_t>(rounded), Ints(static_cast<int32_t>(kLargest))));
    if constexpr (kOver != kNan) result = select(equal(from, Bits32(kInfinityBits)), Bits32(kOver), result);
    const Mask none = greater_than(from, kInfinityBits - (kOver == kNan ? 1 : 0)) | greater_than(bits, kInfinityBits);
    return cast_bits<int32_t>(select(none, Bits32(kNan), result | sign));
  });
}

// ---- The slots ---------------------------------------------------------------------------------------------------------

/// What NarrowSlots asks for.
template <KvType kType>
struct VectorCodec {
  static __attribute__((noinline)) void rows(const uint8_t* rows, int64_t stride, const float* scales, int64_t keys,
                                             int64_t first, int64_t n, float* out, int64_t ld) {
    for (int64_t j = 0; j < keys; ++j, out += ld) {
      const uint8_t* const row = rows + j * stride;
      for (int64_t i = 0; i < n; i += 64) fetch_ahead(row + i);
      widen_row(row, has_scales(kType) ? scales[j] : 1.0f, first, n, out, FormatOf<kType>());
    }
  }
  static __attribute__((noinline)) void panel(const uint8_t* panel, const float* scales, int64_t dim, float* out) {
    widen_codes(panel, scales, dim, out, FormatOf<kType>());
  }
  static __attribute__((noinline)) void encode(const float* x, int64_t dim, uint8_t* row, float* scale) {
    if constexpr (!is_read_only(kType)) encode_row(x, dim, row, scale, FormatOf<kType>());
  }
};

template <KvType kType>
struct NarrowRows : NarrowSlots<kType, VectorCodec<kType>> {
  /// Keys in rows as a panel of their type.
  static void store_panel(const PackKeys& a) {
    transpose_codes<kLaidOutAs<kType>>(static_cast<const uint8_t*>(a.from), a.token_stride, a.keys, a.dim,
                                       static_cast<uint8_t*>(a.panel), CodesBelow(a, 0, row_bytes_of<kType>(a.dim)));
  }
  /// Rows become a panel of their type first: units of four bytes are transposed, a quarter of what their numbers are or less.
  static void pack_keys(const PackKeys& a) {
    constexpr int64_t kChunk = 128;  // dimensions at a time
    alignas(64) uint8_t panel[panel_bytes(kType, kChunk)];
    alignas(64) float scales[kPanelWidth] = {};
    if (has_scales(kType)) std::memcpy(scales, a.scales, static_cast<size_t>(a.keys) * sizeof(float));
    for (int64_t d = 0; d < a.dim; d += kChunk) {
      const int64_t n = smaller(kChunk, a.dim - d);
      const int64_t first = row_bytes_of<kType>(d);
      transpose_codes<kLaidOutAs<kType>>(static_cast<const uint8_t*>(a.from) + first, a.token_stride, a.keys, n, panel,
                                         CodesBelow(a, first, row_bytes_of<kType>(n)));
      VectorCodec<kType>::panel(panel, scales, n, static_cast<float*>(a.panel) + d * kPanelWidth);
    }
  }
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_NARROW_ROWS_H_
