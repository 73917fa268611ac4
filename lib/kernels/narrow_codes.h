// Codes of the narrow storage types as f32 numbers, and their units as columns of panels.
#pragma once

#include "lib/contract/kv_formats.h"
#include "lib/kernels/int8_pack.h"

namespace simdattn {
namespace {

/// Where codes stay as they are, types of a byte a number are one.
template <KvType kType>
constexpr KvType kLaidOutAs = has_scales(kType) ? KvType::kInt8 : kType;

/// The code at bit kBit of each lane as a number. Other bits may hold anything.
template <int kBit, class Format>
SIMDATTN_INLINE Floats number_of(Bits32 w, Format /*format*/) {
  static_assert(Format::kBits == 8 || Format::kBits == 4, "a panel of other codes needs its way to numbers here");
  if constexpr (Format::kBits == 4) {
    if constexpr (kBit > 0) w = w >> kBit;
    return to_float(cast_bits<int32_t>(w & Bits32(15u))) - Floats(Format::kZero);
  } else {
    if constexpr (kBit < 24) w = w << (24 - kBit);
    const Ints code = cast_bits<int32_t>(w);
    if constexpr (!Format::kFp8) return to_float(code >> 24);
    constexpr bool kE4M3 = std::is_same_v<Format, E4M3Format>;
    if constexpr (kE4M3 && !kNativeF16) {
      // A number of f32 over 2^120.
      const Bits32 magnitude = w & Bits32(0x7F000000u);
      const Bits32 finite = bits_of(float_of(magnitude >> 4) * Floats(0x1p120f));
      const Mask nan = equal(magnitude, Bits32(0x7F000000u));
      return float_of((w & Bits32(0x80000000u)) | select(nan, Bits32(0x7FF00000u), finite));
    }
    // A number of f16, of e4m3 over 2^8 and without NaN.
    const Bits32 half = cast_bits<uint32_t>(code >> (kE4M3 ? 17 : 16)) & Bits32(kE4M3 ? 0xBF80u : 0xFF00u);
    const Floats x = f32_from_f16(narrow_bits(half));
    if constexpr (!kE4M3) return x;
    const Bits32 nan = (w & Bits32(0x80000000u)) | Bits32(0x7FF00000u);
    return select(equal(half & Bits32(0x3F80u), Bits32(0x3F80u)), float_of(nan), x * Floats(256.0f));
  }
}

/// The nibble whose highest bit is bit 31 - `shift`, an integer with a sign, times 2^28.
SIMDATTN_INLINE Floats upper_nibble(Bits32 w, int shift) {
  return to_float(cast_bits<int32_t>((w << shift) & Bits32(0xF0000000u)));
}

/// What a nibble stands for, by its bits: with 16 lanes the numbers of q4_0 are looked up.
SIMDATTN_INLINE Floats nibble_numbers() { return to_float(lane_numbers()) - Floats(Q4Format::kZero); }
constexpr bool kLooksUp = kAvx512;
/// What the numbers of nibbles are to be multiplied by.
constexpr float kNibblePower = kLooksUp ? 1.0f : 0x1p-28f;

/// fp8 as f16 numbers, which an instruction converts, subnormal ones too; a type at run time. Numbers are 1 / power of
/// what they should be, and of e4m3 NaN is a number: note_nan() tells.
struct Fp8AsF16 {
  bool e4m3;
  static constexpr float kE4M3Power = 256.0f;
  float power = e4m3 ? kE4M3Power : 1.0f;
  Bits16 mask = Bits16(e4m3 ? uint16_t{0xBF80} : uint16_t{0xFF00});
  /// Codes are the upper halves of 16 bits.
  template <class V>
  SIMDATTN_INLINE V operator()(V codes) const {
    return signed_shift(codes, e4m3 ? 1 : 0) & mask;
  }
  template <class P>
  SIMDATTN_INLINE Bits16 of_row(P codes) const {
    return load_scaled_bytes(codes, e4m3 ? 7 : 8) & mask;
  }
};
/// `seen` has the largest code of e4m3 in each byte, with a sign.
template <class V>
SIMDATTN_INLINE void note_nan(V codes, V& seen) {
  seen = max_bytes(seen, codes | V(0x80808080u));
}
SIMDATTN_INLINE bool saw_nan(Bits32 seen) {
  return any_at_least(cast_bits<uint16_t>(seen), uint16_t{0xFF00}) ||
         any_at_least(cast_bits<uint16_t>(seen << 8), uint16_t{0xFF00});
}
/// True if factors times `power` are as exact as numbers over `power`.
template <class Format>
SIMDATTN_INLINE bool scales_fit(const float* scales, int64_t n) {
  constexpr bool kInt8 = std::is_same_v<Format, Int8Format>;
  Mask fit(true);
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    const Ints size = ints_of(abs(load(scales + i, part)));
    // 0 or at least 2^-102; below 2^120.
    fit = fit & (kInt8 ? at_least(Ints(0), size) | at_least(size, Ints(25 << 23)) : greater(Ints(247 << 23), size));
  });
  return all(fit);
}

/// Bytes that a row has side by side, as numbers.
template <class Format, class Part>
SIMDATTN_INLINE Floats load_numbers(const uint8_t* p, Part part, Format format) {
  if constexpr (std::is_same_v<Part, All> && !Format::kFp8) return to_float(load_integers(p));
  else return number_of<0>(load_bytes(p, part), format);
}

/// The scale at p, in all lanes.
SIMDATTN_INLINE Floats block_scale(const uint8_t* p) {
  uint16_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return f32_from_f16(repeated_half(bits));
}
/// The scales of as many columns of a panel.
SIMDATTN_INLINE Floats load_scales(const uint8_t* p) { return load(reinterpret_cast<const f16*>(p)); }
SIMDATTN_INLINE Bits32 load_units(const uint8_t* p) { return Bits32::load_unaligned(p); }

/// What lies so far ahead is prefetched, because the hardware's streams run too late.
SIMDATTN_INLINE void fetch_ahead(const uint8_t* p) {
  __builtin_prefetch(reinterpret_cast<const char*>(address_at(p, 4096)));
}

/// Dimensions [0, n) of rows to a panel of their type; columns past `keys` become 0. `stream`: fetches what lies behind
/// the next 32 rows, because drivers take two panels at a time.
template <KvType kType>
SIMDATTN_SHARED void transpose_codes(const uint8_t* rows, int64_t stride, int64_t keys, int64_t n, uint8_t* panel,
                                     bool stream) {
  constexpr CodeLayout kLayout = kLayoutOf<kType>;
  if (keys < kPanelWidth) std::memset(panel, 0, static_cast<size_t>(kLayout.panel_bytes(n)));
  // Units that are side by side in a row, and what is left of a last one.
  const int64_t whole = has_scales(kType) ? n / 4 : kLayout.units(n);
  const int64_t together = has_scales(kType) ? whole : kLayout.block_units();
  const uint8_t* block = rows + kLayout.scale_bytes;
  for (int64_t u = 0; u < whole; u += together, block += kLayout.block_bytes()) {
    transpose_units<uint32_t>(reinterpret_cast<const char*>(block), stride, keys, together,
                              reinterpret_cast<char*>(panel + u * kUnitPitch), kUnitPitch);
  }
  for (int64_t j = 0; j < keys; ++j) {
    const uint8_t* const row = rows + j * stride;
    if (stream) fetch_below(row, stride, 2 * kPanelWidth, kLayout.row_bytes(n));
    if constexpr (!has_scales(kType)) {
      for (int64_t b = 0; b < n / kBlockDims; ++b)
        std::memcpy(panel + kLayout.scale_at(n, b, j), row + b * kLayout.block_bytes(), kScaleBytes);
    } else if (n % 4 != 0) {
      uint8_t unit[kUnitBytes] = {};
      std::memcpy(unit, row + n / 4 * 4, static_cast<size_t>(n % 4));
      std::memcpy(panel + n / 4 * kUnitPitch + kUnitBytes * j, unit, kUnitBytes);
    }
  }
}

}  // namespace
}  // namespace simdattn
