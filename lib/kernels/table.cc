// The table of micro-kernels of one instruction set: SIMDATTN_ADAPTER is the adapter's header, SIMDATTN_TABLE the
// table's name. Compiled once per row of meson.build, with that instruction set's flags.
#include "lib/kernels/int8_stored.h"
#include "lib/kernels/kernels.h"
#include "lib/narrow_operands.h"

namespace simdattn {
namespace {

template <KvType kType>
struct Narrow : NarrowSlots<kType> {
  static void value_tile(const ValueTile& a) { values(a, simdattn::value_tile<float>); }
  static void value_tile_bf16(const ValueTile& a) { values(a, Bf16Kernels::value_tile_f32); }
  static __attribute__((noinline)) void widen_panel(const PackKeys& a) { NarrowSlots<kType>::widen_panel(a); }
  static void pack_panel_bf16(const PackKeys& a) {
    widen_panel(a);
    float* const panel = static_cast<float*>(a.panel);
    Bf16Kernels::round(panel, panel, a.dim * kPanelWidth);
  }

 private:
  static __attribute__((noinline)) void values(const ValueTile& a, void (*kernel)(const ValueTile&)) {
    NarrowSlots<kType>::value_tile(a, kernel);
  }
};

}  // namespace

extern const UKernels SIMDATTN_TABLE;
constinit const UKernels SIMDATTN_TABLE = with_narrow_types<Narrow>(
    table_of(int8_attention<Int8Kernels>(!kPairCells, kInt8Rows, softmax_tile<false>, Int8Kernels::value_stored())));

}  // namespace simdattn
