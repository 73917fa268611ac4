// The table of a text of kernels: of lib/definition, and of lib/kernels for each instruction set. Included behind the text, whose functions
// it names.
#ifndef SIMDATTN_LIB_CONTRACT_TABLE_OF_KERNELS_H_
#define SIMDATTN_LIB_CONTRACT_TABLE_OF_KERNELS_H_

#include "lib/contract/f32_operands.h"
#include "lib/contract/ukernels.h"

namespace simdattn {
namespace {

/// Of element type T, by the names that f32_operands.h asks for.
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
};

/// All but the narrow storage types.
constexpr UKernels table_of(const AttentionKernels& f32, const AttentionKernels& bf16_, const AttentionKernels& int8) {
  return {.kv = {kv_kernels<Kernels<float>>(), kv_kernels<Kernels<bf16>>(), kv_kernels<Kernels<f16>>()},
          .attention = {f32, bf16_, int8},
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

#endif  // SIMDATTN_LIB_CONTRACT_TABLE_OF_KERNELS_H_
