// Operands in f32 numbers: rows of f32, panels [dim][32], values [ceil(dim/32)][kKeyBlock][32]. The arithmetic kF32, and
// kBF16 by emulation, whose numbers are rounded to bf16 after packing. Shared by the backends.
#ifndef SIMDATTN_LIB_CONTRACT_F32_OPERANDS_H_
#define SIMDATTN_LIB_CONTRACT_F32_OPERANDS_H_

#include <type_traits>

#include "lib/contract/ukernels.h"

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

int64_t f32_query_bytes(int64_t dim) { return (dim + 15) / 16 * 64; }
int64_t f32_panel_bytes(int64_t dim) { return dim * kPanelWidth * 4; }
int64_t f32_values_bytes(int64_t dim) { return (dim + kValueGroup - 1) / kValueGroup * kValueGroup * kKeyBlock * 4; }

/// K: the kernels of element type T. kRound rounds numbers to those that the arithmetic multiplies; null: all of f32.
template <class K, class T, void (*kRound)(const float* in, float* out, int64_t n)>
struct F32Packing {
  static constexpr bool kRounds = kRound != nullptr && !std::is_same_v<T, bf16>;

  static void query(const void* row, void* query, int64_t dim) {
    K::widen(row, static_cast<float*>(query), dim);
    if constexpr (kRounds) kRound(static_cast<float*>(query), static_cast<float*>(query), dim);
  }
  static void keys(const PackKeys& a) {
    float* panel = static_cast<float*>(a.panel);
    K::pack_keys(a.from, a.token_stride, a.keys, a.dim, panel, a.stream);
    if constexpr (kRounds) kRound(panel, panel, a.dim * kPanelWidth);
  }
  static void panel(const PackKeys& a) {
    float* panel = static_cast<float*>(a.panel);
    if constexpr (kRounds && std::is_same_v<T, float>) {
      kRound(static_cast<const float*>(a.from), panel, a.dim * kPanelWidth);
    } else {
      K::widen_panel(a.from, a.dim, panel);
      if constexpr (kRounds) kRound(panel, panel, a.dim * kPanelWidth);
    }
  }
  static void values(const PackValues& a) {
    float* block = static_cast<float*>(a.block) + a.first * kValueGroup;
    K::pack_values(static_cast<const T*>(a.rows) + a.column, a.token_stride, a.keys, a.columns, block);
    if constexpr (kRounds) {
      for (int64_t c = 0; c < a.columns; c += kValueGroup) {
        kRound(block + c * kKeyBlock, block + c * kKeyBlock, a.keys * kValueGroup);
      }
    }
  }
};

/// `kTile` for values in a packed block.
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

template <class K, class T>
constexpr KvOperands f32_operands(void (*score_packed)(const ScoreTile&)) {
  using Packing = F32Packing<K, T, nullptr>;
  return {.panel_bytes = f32_panel_bytes,
          .score_packed = score_packed,
          .score_tile = K::score_tile,
          .score_rows = nullptr,
          .store_panel = nullptr,
          .pack_keys = Packing::keys,
          .pack_panel = std::is_same_v<T, float> ? nullptr : Packing::panel,
          .value_tile = K::value_tile,
          .pack_values = Packing::values};
}

/// The table of a backend: K<T> names the kernels of element type T.
template <template <class T> class K>
constexpr AttentionKernels f32_attention(int64_t tile_rows, void (*softmax_tile)(const SoftmaxTile&)) {
  constexpr auto kScore = K<float>::score_tile;
  return {.native = true,
          .tile_rows = tile_rows,
          .value_step = 1,
          .query_bytes = f32_query_bytes,
          .values_bytes = f32_values_bytes,
          .prepare_query = {F32Packing<K<float>, float, nullptr>::query, F32Packing<K<bf16>, bf16, nullptr>::query,
                            F32Packing<K<f16>, f16, nullptr>::query},
          .kv = {f32_operands<K<float>, float>(kScore), f32_operands<K<bf16>, bf16>(kScore),
                 f32_operands<K<f16>, f16>(kScore)},
          .softmax_tile = softmax_tile,
          .prepare_weights = nullptr,
          .value_packed = f32_value_packed<K<float>::value_tile>,
          .begin = nullptr,
          .end = nullptr};
}

/// kBF16 in f32 multiply-adds; `native` if numbers of bf16 in a cache are multiplied as they are. E names the kernels:
///   round(in, out, n)         f32 numbers to bf16 ones, perhaps in place
///   score_tile, value_tile    of f32 numbers that are bf16 ones, in the formats above
///   score_tile_bf16, value_tile_bf16    the same from panels and rows of bf16
///   softmax_tile              rounded weights
template <template <class T> class K, class E>
constexpr AttentionKernels bf16_attention(bool native, int64_t tile_rows) {
  AttentionKernels kernels = {
      .native = native,
      .tile_rows = tile_rows,
      .value_step = 32,
      .query_bytes = f32_query_bytes,
      .values_bytes = f32_values_bytes,
      .prepare_query = {F32Packing<K<float>, float, E::round>::query, F32Packing<K<bf16>, bf16, E::round>::query,
                        F32Packing<K<f16>, f16, E::round>::query},
      .kv = {},
      .softmax_tile = E::softmax_tile,
      .prepare_weights = E::round,
      .value_packed = f32_value_packed<E::value_tile>,
      .begin = nullptr,
      .end = nullptr};
  for (KvOperands& kv : kernels.kv) {
    kv.panel_bytes = f32_panel_bytes;
    kv.score_packed = E::score_tile;
  }
  KvOperands& f32 = kernels.kv[static_cast<size_t>(KvType::kF32)];
  f32.pack_keys = F32Packing<K<float>, float, E::round>::keys;
  f32.pack_panel = F32Packing<K<float>, float, E::round>::panel;
  f32.pack_values = F32Packing<K<float>, float, E::round>::values;
  KvOperands& half = kernels.kv[static_cast<size_t>(KvType::kBF16)];
  half.score_tile = E::score_tile_bf16;
  half.pack_keys = F32Packing<K<bf16>, bf16, E::round>::keys;
  half.pack_panel = F32Packing<K<bf16>, bf16, E::round>::panel;
  half.value_tile = E::value_tile_bf16;
  half.pack_values = F32Packing<K<bf16>, bf16, E::round>::values;
  KvOperands& f16_ = kernels.kv[static_cast<size_t>(KvType::kF16)];
  f16_.pack_keys = F32Packing<K<f16>, f16, E::round>::keys;
  f16_.pack_panel = F32Packing<K<f16>, f16, E::round>::panel;
  f16_.pack_values = F32Packing<K<f16>, f16, E::round>::values;
  return kernels;
}

template <class K>
bool rows_finite(const FiniteRows& a) {
  return K::all_finite(a.rows, a.token_stride, a.keys, a.dim);
}
template <class K>
constexpr KvKernels kv_kernels() {
  return {.all_finite = rows_finite<K>,
          .store_rows = K::store_rows,
          .store_panels = K::store_panels,
          .load_rows = K::load_rows,
          .load_panels = K::load_panels};
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_CONTRACT_F32_OPERANDS_H_
