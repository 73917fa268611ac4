// Columns of a tile of scores from codes in panels: a unit is four bytes of each key, whose codes become numbers.
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

}  // namespace
}  // namespace simdattn
