// Columns of a tile of scores from codes in panels: a unit is four bytes of each key, whose codes become numbers. And
// keys in rows of codes on their way into such panels.
#pragma once

#include "lib/kernels/narrow_codes.h"
#include "lib/kernels/score_tile.h"

namespace simdattn {
namespace {

/// Number i of the unit in each lane. Nibbles: the lower ones of four bytes, then the upper ones.
template <int i, class Format>
SIMDATTN_INLINE Floats unit_number(Bits32 w, Format /*format*/) {
  static_assert(Format::kBits == 8 || Format::kBits == 4);
  constexpr int kBit = i < 4 ? 8 * i : 8 * (i - 4) + 4;
  if constexpr (Format::kBits == 8) return to_float(cast_bits<int32_t>(upper_byte<i>(w)));
  else if constexpr (kLooksUp) return lane_of(nibble_numbers(), w >> kBit);
  else return upper_nibble(w ^ Bits32(0x88888888u), 28 - kBit);
}

/// Numbers of fp8 as f16 on their way through L1, made while the unit or row before is multiplied: conversions from
/// memory save a shuffle, and no other way from a code to its number is as long.
/// Apart from the numbers, because compilers would keep the pointers in memory beside them.
template <int64_t kBatches>
struct Fp8Ahead {
  uint16_t* now;
  uint16_t* next;
  Fp8AsF16 as_f16;
  Bits32 seen = Bits32(0u);

  SIMDATTN_INLINE void turn() {
    uint16_t* const made = next;
    next = now, now = made;
  }
  /// Units of the columns of a panel, `ahead` of where these are.
  SIMDATTN_INLINE void make_units(const TileColumns<uint32_t, kBatches>& columns, int64_t ahead) {
    unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA {
      const Bits32 units = Bits32::load_unaligned(columns.at(c) + ahead);
      note_nan(units, seen);
      as_f16(upper_bytes<0>(units)).store_unaligned(next + 4 * c * kLanes);
      as_f16(upper_bytes<1>(units)).store_unaligned(next + (4 * c + 2) * kLanes);
    });
  }
  /// Number i of the unit of batch c.
  SIMDATTN_INLINE Floats of_unit(int64_t c, int64_t i) const {
    return f32_from_f16(load_halves(now + (4 * c + i % 2 * 2 + i / 2) * kLanes, All()));
  }
  SIMDATTN_INLINE void make_row(const uint8_t* codes) {
    unroll<kBatches / 2>([&](auto c) SIMDATTN_LAMBDA {
      as_f16.of_row(codes + 2 * c * kLanes).store_unaligned(next + 2 * c * kLanes);
      if constexpr (kBatches == 2) note_nan(cast_bits<uint32_t>(load_scaled_bytes(codes, 8)), seen);
      else if constexpr (c % 2 == 0) note_nan(load_units(codes + 2 * c * kLanes), seen);
    });
  }
};

/// Rows of keys on their way into panels, a piece for each unit that a tile multiplies: four units of a vector of
/// columns. At once they would take the time that the chains of multiply-adds leave.
struct RowPieces {
  const uint8_t* rows = nullptr;
  int64_t stride = 0;   // no fault: nothing reads it where there are no columns
  int64_t columns = 0;  // 0: none
  uint8_t* panels = nullptr;
  int64_t ahead = 0;  // 0; or bytes from a row to the one that is fetched for it
  int64_t units = 0;
  int64_t panel_bytes = 0;
  // Where it is.
  int64_t unit = 0, column = 0;
  const uint8_t* from = nullptr;
  uint8_t* to = nullptr;
  uint8_t* scales = nullptr;

  SIMDATTN_INLINE bool any() const { return column < columns; }
  SIMDATTN_INLINE void start() {
    uint8_t* const panel = panels + column / kPanelWidth * panel_bytes;
    from = rows + column * stride;
    to = panel + column % kPanelWidth * kUnitBytes;
    scales = panel + units * kUnitPitch + column % kPanelWidth * kScaleBytes;
  }
  /// of_block: units of a scale block of a row, which begins with its scale; 0: there are no such scales.
  SIMDATTN_INLINE void transpose(int64_t of_block) {
    if (of_block != 0 && (unit & (of_block - 1)) == 0) {
      // One by one: that takes no port of the arithmetic.
      unroll<kLanes>([&](auto i)
                         SIMDATTN_LAMBDA { std::memcpy(scales + i * kScaleBytes, from + i * stride, kScaleBytes); });
      scales += kPanelWidth * kScaleBytes;
      from += kScaleBytes;
    }
    transpose_square<uint32_t>(reinterpret_cast<const char*>(from), stride, reinterpret_cast<char*>(to), kUnitPitch);
    if (ahead != 0) {
      // Four pieces fetch a line of each row.
      uintptr_t line = address_at(from, ahead + (unit >> 2 & 3) * (stride - 4 * kUnitBytes));
      unroll<kLanes / 4>([&](auto) SIMDATTN_LAMBDA {
        prefetch<64>(line);
        line += static_cast<uintptr_t>(4 * stride);
      });
    }
    from += 4 * kUnitBytes;
    to += 4 * kUnitPitch;
    unit += 4;
    if (unit < units) return;
    unit = 0;
    column += kLanes;
    if (any()) start();
  }
};

}  // namespace
}  // namespace simdattn
