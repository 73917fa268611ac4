// The kernels of one instruction set by the names that f32_operands.h asks for, and the table of them all.
#ifndef SIMDATTN_LIB_KERNELS_KERNELS_H_
#define SIMDATTN_LIB_KERNELS_KERNELS_H_

#include "lib/f32_operands.h"
#include "lib/kernels/bf16_attention.h"
#include "lib/kernels/elementwise.h"
#include "lib/kernels/modify_row.h"
#include "lib/kernels/pack.h"
#include "lib/kernels/rope.h"
#include "lib/kernels/score_key_rows.h"
#include "lib/kernels/score_tile.h"
#include "lib/kernels/scores.h"
#include "lib/kernels/softmax_rows.h"
#include "lib/kernels/softmax_tile.h"
#include "lib/kernels/store.h"
#include "lib/kernels/value_tile.h"
#include "lib/ukernels.h"

namespace simdattn {
namespace {

/// Of element type T.
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

constexpr AttentionKernels attention_in_f32() {
  AttentionKernels kernels = f32_attention<Kernels>(kTileRows, softmax_tile<false>);
  if constexpr (kScoresKeyRows) {
    kernels.kv[slot(KvType::kF32)].score_rows = score_key_rows<float>;
    kernels.kv[slot(KvType::kBF16)].score_rows = score_key_rows<bf16>;
    kernels.kv[slot(KvType::kF16)].score_rows = score_key_rows<f16>;
  }
  return kernels;
}

/// All but the narrow storage types, with the inside of kInt8 as given.
constexpr UKernels table_of(const AttentionKernels& int8) {
  return {.kv = {kv_kernels<Kernels<float>>(), kv_kernels<Kernels<bf16>>(), kv_kernels<Kernels<f16>>()},
          .attention = {attention_in_f32(), bf16_attention<Kernels, Bf16Kernels>(false, kTileRows), int8},
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
          .exp = exp_array};
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_KERNELS_H_
