// The kernels of a narrow storage type, by the names that lib/contract/narrow_operands.h asks for.
#ifndef SIMDATTN_LIB_KERNELS_NARROW_H_
#define SIMDATTN_LIB_KERNELS_NARROW_H_

#include "lib/kernels/bf16_attention.h"
#include "lib/kernels/narrow_integers.h"
#include "lib/kernels/narrow_rows.h"
#include "lib/kernels/narrow_values.h"

namespace simdattn {
namespace {

template <KvType kType>
struct Narrow : NarrowRows<kType> {
  static constexpr int64_t fused_rows = is_read_only(kType) ? 0 : kFusedRows;
  static void score_tile(const ScoreTile& a) { score_codes<kType>(a); }
  static void score_rows(const ScoreTile& a) { score_code_rows<kType>(a); }
  static void value_tile(const ValueTile& a) {
    if constexpr (fused_rows > 0) {
      if (a.rows <= fused_rows && add_code_values<kType>(a)) return;
    }
    NarrowRows<kType>::value_tile(a, simdattn::value_tile<float>);
  }
  static void value_tile_bf16(const ValueTile& a) {
    NarrowRows<kType>::value_tile(a, Bf16Kernels::value_tile, Bf16Kernels::round);
  }
  static void pack_panel_bf16(const PackKeys& a) {
    NarrowRows<kType>::widen_panel(a);
    float* const panel = static_cast<float*>(a.panel);
    Bf16Kernels::round(panel, panel, a.dim * kPanelWidth);
  }
  static constexpr auto score_integers = score_block_integers;
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_NARROW_H_
