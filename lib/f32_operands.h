// Operands of f32 arithmetic: rows of f32, panels [dim][32], values [ceil(dim/32)][kKeyBlock][32]. Shared by the backends.
#ifndef SIMDATTN_LIB_F32_OPERANDS_H_
#define SIMDATTN_LIB_F32_OPERANDS_H_

#include "lib/ukernels.h"

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

int64_t f32_query_bytes(int64_t dim) { return (dim + 15) / 16 * 64; }
int64_t f32_panel_bytes(int64_t dim) { return dim * kPanelWidth * 4; }
int64_t f32_values_bytes(int64_t dim) { return (dim + kValueGroup - 1) / kValueGroup * kValueGroup * kKeyBlock * 4; }

template <void kPack(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* out)>
void f32_pack_values(const PackValues& a) {
  kPack(a.rows, a.token_stride, a.keys, a.dim, static_cast<float*>(a.block) + a.first * kValueGroup);
}
template <void kTile(const ValueTile&)>
void f32_value_packed(const ValueTile& a) {
  ValueTile tile = a;
  tile.v = static_cast<const float*>(a.v) + a.first_key * kValueGroup;
  tile.key_stride = kValueGroup * 4;
  tile.group_stride = kValueGroup * 4 * kKeyBlock;
  // Whole groups: their last columns are zeros, and so are those of the accumulators.
  tile.dim = (a.dim + kValueGroup - 1) / kValueGroup * kValueGroup;
  kTile(tile);
}
template <void kPack(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel, bool stream)>
void f32_pack_keys(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, void* panel, bool stream) {
  kPack(rows, token_stride, keys, dim, static_cast<float*>(panel), stream);
}
template <void kWiden(const void* panel, int64_t dim, float* out)>
void f32_pack_panel(const void* panel, int64_t dim, void* packed) {
  kWiden(panel, dim, static_cast<float*>(packed));
}
template <void kWiden(const void* in, float* out, int64_t n)>
void f32_prepare_query(const void* row, void* query, int64_t dim) {
  kWiden(row, static_cast<float*>(query), dim);
}

/// The table of a backend: K<T> names the kernels of element type T.
template <class K>
constexpr KvOperands f32_operands() {
  return {.score_tile = K::score_tile,
          .value_tile = K::value_tile,
          .pack_keys = f32_pack_keys<K::pack_keys>,
          .pack_panel = f32_pack_panel<K::widen_panel>,
          .pack_values = f32_pack_values<K::pack_values>};
}
template <template <class T> class K>
constexpr AttentionKernels f32_attention(int64_t tile_rows, void (*softmax_tile)(const SoftmaxTile&)) {
  return {.tile_rows = tile_rows,
          .query_bytes = f32_query_bytes,
          .panel_bytes = f32_panel_bytes,
          .values_bytes = f32_values_bytes,
          .prepare_query = {f32_prepare_query<K<float>::widen>, f32_prepare_query<K<bf16>::widen>,
                            f32_prepare_query<K<f16>::widen>},
          .kv = {f32_operands<K<float>>(), f32_operands<K<bf16>>(), f32_operands<K<f16>>()},
          .score_packed = K<float>::score_tile,
          .packed_is = {true, false, false},
          .softmax_tile = softmax_tile,
          .value_packed = f32_value_packed<K<float>::value_tile>,
          .begin = nullptr,
          .end = nullptr};
}
template <class K>
constexpr KvKernels kv_kernels() {
  return {.all_finite = K::all_finite,
          .store_rows = K::store_rows,
          .store_panels = K::store_panels,
          .load_rows = K::load_rows,
          .load_panels = K::load_panels,
          .rotate_columns = K::rotate_columns};
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_F32_OPERANDS_H_
