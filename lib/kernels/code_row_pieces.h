// Keys in rows of codes as panels of the same codes, in pieces that a tile of scores makes while it multiplies the
// panels before.
#pragma once

#include "lib/kernels/narrow_codes.h"

namespace simdattn {
namespace {

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
