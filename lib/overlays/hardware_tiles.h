// The tile registers of AMX. The compilers' own intrinsics are macros that want the number of a tile as a literal, and do not
// say that they read and write memory: hence assembly. Registers are no operands of it, so every statement is volatile.
#ifndef SIMDATTN_LIB_OVERLAYS_HARDWARE_TILES_H_
#define SIMDATTN_LIB_OVERLAYS_HARDWARE_TILES_H_

#include <cstdint>

namespace simdattn {
namespace {

/// The memory operand of LDTILECFG.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfiguration) == 64);

struct HardwareTiles {
  static void configure(const TileConfiguration& c) { __asm__ volatile("ldtilecfg %0" : : "m"(c)); }
  static void release() { __asm__ volatile("tilerelease"); }

  template <int kTile>
  static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  static void load(const void* rows, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void store(void* rows, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  /// c += a * b. a: rows; b: columns.
  template <int kC, int kA, int kB>
  static void add_bf16() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  template <int kC, int kA, int kB>
  static void add_signed() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  /// a is unsigned.
  template <int kC, int kA, int kB>
  static void add_unsigned() {
    __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_OVERLAYS_HARDWARE_TILES_H_
