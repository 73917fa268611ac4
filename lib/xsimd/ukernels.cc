// The table of micro-kernels of one instruction set: SIMDATTN_XSIMD_ARCH as xsimd's type, SIMDATTN_XSIMD_TABLE as the
// table's name. Compiled once per row of meson.build, with that instruction set's flags.
#include "lib/ukernels.h"

#include "lib/xsimd/elementwise.h"
#include "lib/xsimd/modify_row.h"
#include "lib/xsimd/pack.h"
#include "lib/xsimd/rope.h"
#include "lib/xsimd/score_tile.h"
#include "lib/xsimd/scores.h"
#include "lib/xsimd/softmax_rows.h"
#include "lib/xsimd/softmax_tile.h"
#include "lib/xsimd/value_tile.h"

namespace simdattn {

extern const UKernels SIMDATTN_XSIMD_TABLE;
constinit const UKernels SIMDATTN_XSIMD_TABLE = {
    .tile_rows = kTileRows,
    .score_rows = {score_rows<float>, score_rows<bf16>, score_rows<f16>},
    .gaussian_rows = {gaussian_rows<float>, gaussian_rows<bf16>, gaussian_rows<f16>},
    .additive_rows = {additive_rows<float>, additive_rows<bf16>, additive_rows<f16>},
    .softmax_rows = softmax_rows,
    .modify_row = modify_row,
    .score_tile = {score_tile<float>, score_tile<bf16>, score_tile<f16>},
    .softmax_tile = softmax_tile,
    .value_tile = {value_tile<float>, value_tile<bf16>, value_tile<f16>},
    .pack_keys = {pack_keys<float>, pack_keys<bf16>, pack_keys<f16>},
    .widen_panel = {widen_panel<float>, widen_panel<bf16>, widen_panel<f16>},
    .pack_values = {pack_values<float>, pack_values<bf16>, pack_values<f16>},
    .widen = {widen<float>, widen<bf16>, widen<f16>},
    .finish = {finish<float>, finish<bf16>, finish<f16>},
    .all_finite = {all_finite<float>, all_finite<bf16>, all_finite<f16>},
    .any_zero = any_zero,
    .merge = merge,
    .rope_heads = {{rope_heads<float, float>, rope_heads<float, bf16>, rope_heads<float, f16>},
                   {rope_heads<bf16, float>, rope_heads<bf16, bf16>, rope_heads<bf16, f16>},
                   {rope_heads<f16, float>, rope_heads<f16, bf16>, rope_heads<f16, f16>}},
    .add_rows = {{add_rows<float, float>, add_rows<float, bf16>, add_rows<float, f16>},
                 {add_rows<bf16, float>, add_rows<bf16, bf16>, add_rows<bf16, f16>},
                 {add_rows<f16, float>, add_rows<f16, bf16>, add_rows<f16, f16>}},
    .exp = exp_array,
    .tanh = tanh_array,
};

}  // namespace simdattn
