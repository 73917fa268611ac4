// Operands of Arithmetic::kInt8. Four numbers that are multiplied with four others lie side by side.
//   query     int8 [dim rounded up to 64], zeros at the end; then Int8Query; int16 on targets without dot products of
//             bytes
//   panel     int8 [ceil(dim/4)][32][4], zeros past dim; then f32 scales [32]
//   values    int8 [ceil(dim/32)][kKeyBlock/4][32][4], zeros past dim; then f32 scales [kKeyBlock]
#pragma once

#include "lib/contract/kv_formats.h"

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

/// What follows the integers of a query.
struct Int8Query {
  float scale;
  int32_t sum;  // of the integers: where instructions multiply unsigned by signed numbers, keys are taken + 128
};

constexpr int64_t int8_query_numbers(int64_t dim) { return round_up(dim, 64); }
constexpr int64_t int8_panel_numbers(int64_t dim) { return round_up(dim, 4) * kPanelWidth; }
constexpr int64_t int8_values_numbers(int64_t dim) { return round_up(dim, kValueGroup) * kKeyBlock; }

constexpr int64_t int8_query_bytes(int64_t dim) { return int8_query_numbers(dim) + 64; }
constexpr int64_t int8_panel_bytes(int64_t dim) { return int8_panel_numbers(dim) + kPanelWidth * 4; }
constexpr int64_t int8_values_bytes(int64_t dim) { return int8_values_numbers(dim) + kKeyBlock * 4; }

/// Negative weights count as 0, because weights are multiplied as unsigned bytes: so a product with a scale must not
/// overflow, nor a NaN in their value show. NaN stays.
inline void int8_prepare_weights(const float* in, float* out, int64_t n) {
  for (int64_t j = 0; j < n; ++j) out[j] = in[j] < 0.0f ? 0.0f : in[j];
}

template <class I, class T>
constexpr void set_int8_packing(AttentionKernels& kernels) {
  kernels.prepare_query[index_of(kDTypeOf<T>)] = I::template prepare_query<T>;
  kernels.kv[index_of(kDTypeOf<T>)].pack_keys = I::template pack_keys<T>;
  kernels.kv[index_of(kDTypeOf<T>)].pack_values = I::template pack_values<T>;
}

/// For keys in scale blocks.
constexpr void set_int8_blocks(AttentionKernels& kernels, void (*score)(const ScoreTile&)) {
  for (const detail::KvFormat& f : detail::kKvFormats) {
    if (has_panels(f.type) && block_of(f.type) > 1) kernels.kv[index_of(f.type)].score_packed = score;
  }
}

/// I names the kernels: prepare_query<T>, pack_keys<T>, pack_values<T>, value_packed; score_packed, and score_blocks of
/// keys in scale blocks, whose panels have f32 scales [dim/32][32] behind the integers; kScalesApart if score_packed
/// takes panels of stored integers as they are. `value_stored`: value_tile of stored integers in rows, or null.
template <class I>
constexpr AttentionKernels int8_attention(bool native, int64_t tile_rows, void (*softmax_tile)(const SoftmaxTile&),
                                          void (*value_stored)(const ValueTile&) = nullptr) {
  AttentionKernels kernels = {.native = native,
                              .tile_rows = tile_rows,
                              .value_step = kKeyBlock,
                              .query_bytes = I::query_bytes,
                              .values_bytes = I::values_bytes,
                              .softmax_tile = softmax_tile,
                              .prepare_weights = int8_prepare_weights,
                              .value_packed = I::value_packed};
  for (KvOperands& kv : kernels.kv) {
    kv.panel_bytes = I::panel_bytes;
    kv.score_packed = I::score_packed;
  }
  set_int8_blocks(kernels, I::score_blocks);
  KvOperands& stored = kernels.kv[index_of(KvType::kInt8)];
  if constexpr (requires { I::kScalesApart; }) stored.score_tile = I::score_packed;
  stored.value_tile = value_stored;
  set_int8_packing<I, float>(kernels);
  set_int8_packing<I, bf16>(kernels);
  set_int8_packing<I, f16>(kernels);
  return kernels;
}

}  // namespace
}  // namespace simdattn
