// The kernels of a narrow storage type, by the names that lib/contract/table_of_kernels.h asks for.
#ifndef SIMDATTN_LIB_KERNELS_NARROW_H_
#define SIMDATTN_LIB_KERNELS_NARROW_H_

#include "lib/kernels/bf16_chains.h"
#include "lib/kernels/int8_as_stored.h"
#include "lib/kernels/narrow_slots.h"
#include "lib/kernels/narrow_values.h"

namespace simdattn {
namespace {

template <KvType kType>
struct Narrow : NarrowRows<kType> {
  using Rows = NarrowRows<kType>;

  static void value_tile(const ValueTile& a) {
    if constexpr (kFusedRows > 0 && has_panels(kType)) {
      if (a.rows <= kFusedRows && add_code_values<kType>(a)) return;
    }
    Rows::value_tile(a, simdattn::value_tile<float>);
  }
  static void value_tile_bf16(const ValueTile& a) { Rows::value_tile(a, Bf16Kernels::value_tile, Bf16Kernels::round); }
  static void pack_panel_bf16(const PackKeys& a) {
    Rows::widen_panel(a);
    float* const panel = static_cast<float*>(a.panel);
    Bf16Kernels::round(panel, panel, a.dim * kPanelWidth);
  }
  static constexpr void set_operands(KvOperands& f32, KvOperands& bf16, KvOperands& int8) {
    bf16.value_tile = value_tile_bf16;
    if constexpr (has_panels(kType)) {
      f32.pack_keys = Rows::pack_keys;
      f32.pack_panel = Rows::widen_panel;
      bf16.pack_panel = pack_panel_bf16;
      if constexpr (kFusedRows > 0) {
        f32.score_tile = score_codes<kType>;
        f32.score_rows = score_code_rows<kType>;
        f32.store_panel = Rows::store_panel;
        f32.direct_key_rows = kFusedRows;
      }
    }
    if constexpr (kType == KvType::kInt8) {
      int8.store_panel = Rows::store_panel;
      int8.pack_keys = Int8AsStored::keys;
      int8.pack_panel = Int8AsStored::panel;
      int8.pack_values = Int8AsStored::values;
    } else if constexpr (has_panels(kType) && block_of(kType) > 1) {
      int8.panel_bytes = BlockIntegers<kType>::panel_bytes;
      int8.pack_keys = BlockIntegers<kType>::template pack<true>;
      int8.pack_panel = BlockIntegers<kType>::template pack<false>;
    }
  }
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_NARROW_H_
