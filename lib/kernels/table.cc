// The table of micro-kernels of one instruction set: SIMDATTN_ADAPTER is the adapter's header, SIMDATTN_TABLE the
// table's name. Compiled once per row of meson.build, with that instruction set's flags.
#include "lib/ukernels.h"

#include "lib/f32_operands.h"
#include "lib/kernels/bf16_attention.h"
#include "lib/kernels/elementwise.h"
#include "lib/kernels/int8.h"
#include "lib/kernels/modify_row.h"
#include "lib/kernels/pack.h"
#include "lib/kernels/rope.h"
#include "lib/kernels/score_tile.h"
#include "lib/kernels/scores.h"
#include "lib/kernels/softmax_rows.h"
#include "lib/kernels/softmax_tile.h"
#include "lib/kernels/store.h"
#include "lib/kernels/value_tile.h"
#include "lib/narrow_operands.h"

namespace simdattn {
namespace {

/// The kernels of element type T, by the names that lib/f32_operands.h asks for.
template <class T>
struct Kernels {
  static constexpr auto score_tile = simdattn::score_tile<T>;
  static constexpr auto value_tile = simdattn::value_tile<T>;
  static constexpr auto pack_keys = simdattn::pack_keys<T>;
  static constexpr auto widen_panel = simdattn::widen_panel<T>;
  static constexpr auto pack_values = simdattn::pack_values<T>;
  static constexpr auto widen = simdattn::widen<T>;
  static constexpr auto all_finite = simdattn::all_finite<T>;
  static constexpr auto store_rows = simdattn::store_rows<T>;
  static constexpr auto store_panels = simdattn::store_panels<T>;
  static constexpr auto load_rows = simdattn::load_rows<T>;
  static constexpr auto load_panels = simdattn::load_panels<T>;
  static constexpr auto rotate_columns = simdattn::rotate_columns<T>;
};

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
constinit const UKernels SIMDATTN_TABLE = with_narrow_types<Narrow>({
    .kv = {kv_kernels<Kernels<float>>(), kv_kernels<Kernels<bf16>>(), kv_kernels<Kernels<f16>>()},
    .attention = {f32_attention<Kernels>(kTileRows, softmax_tile<false>),
                  bf16_attention<Kernels, Bf16Kernels>(Ops::kMultipliesPairs, kTileRows),
                  int8_attention<Int8Kernels>(!Int8Operations::kPairs, Int8Operations::kRows, softmax_tile<false>)},
    .score_rows = {score_rows<float>, score_rows<bf16>, score_rows<f16>},
    .gaussian_rows = {gaussian_rows<float>, gaussian_rows<bf16>, gaussian_rows<f16>},
    .additive_rows = {additive_rows<float>, additive_rows<bf16>, additive_rows<f16>},
    .softmax_rows = softmax_rows,
    .modify_row = modify_row,
    .widen = {widen<float>, widen<bf16>, widen<f16>},
    .finish = {finish<float>, finish<bf16>, finish<f16>},
    .any_zero = any_zero,
    .merge = merge,
    .rope_heads = {rope_heads<float>, rope_heads<bf16>, rope_heads<f16>},
    .add_rows = {add_rows<float>, add_rows<bf16>, add_rows<f16>},
    .hadamard_sums = hadamard_sums,
    .exp = exp_array,
});

}  // namespace simdattn
