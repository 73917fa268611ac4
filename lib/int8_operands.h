// Operands of Arithmetic::kInt8, shared by the backends. Four numbers that are multiplied with four others lie side by side.
//   query     int8 [dim rounded up to 64], zeros at the end; then Int8Query
//   panel     int8 [ceil(dim/4)][32][4], zeros past dim; then f32 scales [32]
//   values    int8 [ceil(dim/32)][kKeyBlock/4][32][4], zeros past dim; then f32 scales [kKeyBlock]
#ifndef SIMDATTN_LIB_INT8_OPERANDS_H_
#define SIMDATTN_LIB_INT8_OPERANDS_H_

#include "lib/ukernels.h"

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

/// What follows the integers of a query.
struct Int8Query {
  float scale;
  int32_t sum;  // of the integers: where instructions multiply unsigned by signed numbers, keys are taken + 128
};

constexpr int64_t int8_query_numbers(int64_t dim) { return (dim + 63) / 64 * 64; }
constexpr int64_t int8_panel_numbers(int64_t dim) { return (dim + 3) / 4 * 4 * kPanelWidth; }
constexpr int64_t int8_values_numbers(int64_t dim) {
  return (dim + kValueGroup - 1) / kValueGroup * kValueGroup * kKeyBlock;
}

constexpr int64_t int8_query_bytes(int64_t dim) { return int8_query_numbers(dim) + 64; }
constexpr int64_t int8_panel_bytes(int64_t dim) { return int8_panel_numbers(dim) + kPanelWidth * 4; }
constexpr int64_t int8_values_bytes(int64_t dim) { return int8_values_numbers(dim) + kKeyBlock * 4; }

/// I names the kernels: prepare_query<T>, score_packed, pack_keys and pack_values of f32 rows, value_packed.
template <class I>
constexpr AttentionKernels int8_attention(bool native, int64_t tile_rows, void (*softmax_tile)(const SoftmaxTile&)) {
  AttentionKernels kernels = {.native = native,
                              .tile_rows = tile_rows,
                              .value_step = kKeyBlock,
                              .query_bytes = I::query_bytes,
                              .values_bytes = I::values_bytes,
                              .prepare_query = {I::template prepare_query<float>, I::template prepare_query<bf16>,
                                                I::template prepare_query<f16>},
                              .kv = {},
                              .softmax_tile = softmax_tile,
                              .prepare_weights = nullptr,
                              .value_packed = I::value_packed,
                              .begin = nullptr,
                              .end = nullptr};
  for (KvOperands& kv : kernels.kv) {
    kv.panel_bytes = I::panel_bytes;
    kv.score_packed = I::score_packed;
  }
  KvOperands& f32 = kernels.kv[static_cast<size_t>(KvType::kF32)];
  f32.pack_keys = I::pack_keys;
  f32.pack_values = I::pack_values;
  return kernels;
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_INT8_OPERANDS_H_
