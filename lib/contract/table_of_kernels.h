// The table of a text of kernels: of lib/definition, and of lib/kernels for each instruction set. Included behind the
// text, whose functions it names.
//
// Operands of kF32, and of kBF16 by emulation, are f32 numbers: rows of f32, panels [dim][32], values
// [ceil(dim/32)][kKeyBlock][32]. For kBF16 they are rounded to bf16 after packing.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "lib/contract/steps.h"
#include "lib/contract/ukernels.h"

namespace simdattn {
namespace {

constexpr int64_t f32_query_bytes(int64_t dim) { return round_up(dim, 16) * 4; }
constexpr int64_t f32_panel_bytes(int64_t dim) { return dim * kPanelWidth * 4; }
constexpr int64_t f32_values_bytes(int64_t dim) { return round_up(dim, kValueGroup) * kKeyBlock * 4; }

/// Of element type T, for arithmetic E of with_f32_operands().
template <class E, class T>
struct F32Packing {
  static constexpr bool kRounds = !std::is_null_pointer_v<decltype(E::round)> && !std::is_same_v<T, bf16>;
  static void round(float* x, int64_t n) {
    if constexpr (kRounds) E::round(x, x, n);
  }

  static void query(const void* row, void* query, int64_t dim) {
    widen<T>(row, static_cast<float*>(query), dim);
    round(static_cast<float*>(query), dim);
  }
  static void keys(const PackKeys& a) {
    float* panel = static_cast<float*>(a.panel);
    pack_keys<T>(a.from, a.token_stride, a.keys, a.dim, panel, a.stream);
    round(panel, a.dim * kPanelWidth);
  }
  static void panel(const PackKeys& a) {
    float* panel = static_cast<float*>(a.panel);
    if constexpr (kRounds && std::is_same_v<T, float>) {
      E::round(static_cast<const float*>(a.from), panel, a.dim * kPanelWidth);
    } else {
      widen_panel<T>(a.from, a.dim, panel);
      round(panel, a.dim * kPanelWidth);
    }
  }
  static void values(const PackValues& a) {
    float* block = static_cast<float*>(a.packed) + a.first * kValueGroup;
    pack_values<T>(static_cast<const T*>(a.rows) + a.column, a.token_stride, a.keys, a.columns, block);
    for (int64_t c = 0; kRounds && c < a.columns; c += kValueGroup) round(block + c * kKeyBlock, a.keys * kValueGroup);
  }
};

/// `kTile` for packed values.
template <void kTile(const ValueTile&)>
void f32_value_packed(const ValueTile& a) {
  ValueTile tile = a;
  tile.v = static_cast<const float*>(a.v) + a.first_key * kValueGroup;
  tile.key_stride = kValueGroup * 4;
  tile.group_stride = kValueGroup * 4 * kKeyBlock;
  tile.dim = round_up(a.dim, kHalfPanel);  // whole vectors: the last columns are zeros, and so are those of the sums
  kTile(tile);
}

/// E names the kernels of an arithmetic:
///   round(in, out, n)         f32 numbers to those that it multiplies, perhaps in place; null: all of f32
///   score_tile, value_tile    of such numbers in the formats above
///   softmax_tile              weights that are such numbers
template <class E>
constexpr AttentionKernels with_f32_operands(int64_t tile_rows, int64_t value_step) {
  AttentionKernels kernels = {.native = false,
                              .tile_rows = tile_rows,
                              .value_step = value_step,
                              .query_bytes = f32_query_bytes,
                              .values_bytes = f32_values_bytes,
                              .softmax_tile = E::softmax_tile,
                              .prepare_weights = E::round,
                              .value_packed = f32_value_packed<E::value_tile>};
  for (KvOperands& kv : kernels.kv) {
    kv.panel_bytes = f32_panel_bytes;
    kv.score_packed = E::score_tile;
  }
  set_packing<F32Packing, E>(kernels);
  return kernels;
}

template <void kSoftmaxTile(const SoftmaxTile&)>
struct F32Numbers {
  static constexpr std::nullptr_t round = nullptr;
  static constexpr auto score_tile = simdattn::score_tile<float>;
  static constexpr auto value_tile = simdattn::value_tile<float>;
  static constexpr auto softmax_tile = kSoftmaxTile;
};
template <void kSoftmaxTile(const SoftmaxTile&)>
constexpr AttentionKernels f32_attention(int64_t tile_rows) {
  AttentionKernels kernels = with_f32_operands<F32Numbers<kSoftmaxTile>>(tile_rows, 1);
  kernels.native = true;
  constexpr void (*kScore[])(const ScoreTile&) = {score_tile<float>, score_tile<bf16>, score_tile<f16>};
  constexpr void (*kValue[])(const ValueTile&) = {value_tile<float>, value_tile<bf16>, value_tile<f16>};
  for (size_t type = 0; type < kElementTypes; ++type) {
    kernels.kv[type].score_tile = kScore[type];
    kernels.kv[type].value_tile = kValue[type];
  }
  kernels.kv[index_of(KvType::kF32)].pack_panel = nullptr;
  return kernels;
}
/// kBF16 in f32 multiply-adds. E names two kernels more: score_tile_bf16, value_tile_bf16, the same from panels and
/// rows of bf16.
template <class E>
constexpr AttentionKernels bf16_attention(int64_t tile_rows) {
  AttentionKernels kernels = with_f32_operands<E>(tile_rows, 32);
  kernels.kv[index_of(KvType::kBF16)].score_tile = E::score_tile_bf16;
  kernels.kv[index_of(KvType::kBF16)].value_tile = E::value_tile_bf16;
  return kernels;
}

template <class T>
constexpr KvKernels kv_kernels() {
  return {.all_finite = all_finite<T>,
          .store_rows = store_rows<T>,
          .store_panels = store_panels<T>,
          .load_rows = load_rows<T>,
          .load_panels = load_panels<T>};
}

/// All but the narrow storage types.
constexpr UKernels table_of(const AttentionKernels& f32, const AttentionKernels& bf16_, const AttentionKernels& int8) {
  return {.kv = {kv_kernels<float>(), kv_kernels<bf16>(), kv_kernels<f16>()},
          .attention = {f32, bf16_, int8},
          .score_rows = {score_rows<float>, score_rows<bf16>, score_rows<f16>},
          .gaussian_rows = {gaussian_rows<float>, gaussian_rows<bf16>, gaussian_rows<f16>},
          .additive_rows = {additive_rows<float>, additive_rows<bf16>, additive_rows<f16>},
          .softmax_rows = softmax_rows,
          .modify_row = modify_row,
          .widen = {widen<float>, widen<bf16>, widen<f16>},
          .finish = {finish<float>, finish<bf16>, finish<f16>},
          .any_zero = any_zero,
          .above = above,
          .join_rows = join_rows,
          .norm_row = norm_row,
          .merge = merge,
          .rope_heads = {rope_heads<float>, rope_heads<bf16>, rope_heads<f16>},
          .add_rows = {add_rows<float>, add_rows<bf16>, add_rows<f16>},
          .hadamard_sums = hadamard_sums,
          .exp = exp_array,
          .update_state = update_state,
          .convolve = convolve};
}

/// Slots: the kernels of a narrow type. Where a type is multiplied in a way of its own, set_operands() says so.
template <KvType kType, class Slots>
constexpr void add_narrow_type(UKernels& t) {
  constexpr bool kWritten = !is_read_only(kType), kPanels = has_panels(kType);
  constexpr size_t kIndex = index_of(kType);
  t.kv[kIndex] = {.all_finite = Slots::all_finite,
                  .store_rows = kWritten ? Slots::store_rows : nullptr,
                  .store_panels = kWritten && kPanels ? Slots::store_panels : nullptr,
                  .load_rows = Slots::load_rows,
                  .load_panels = kPanels ? Slots::load_panels : nullptr};
  AttentionKernels& f32 = t.attention[index_of(Arithmetic::kF32)];
  f32.kv[kIndex].panel_bytes = f32.kv[0].panel_bytes;
  f32.kv[kIndex].score_packed = f32.kv[0].score_packed;
  f32.kv[kIndex].value_tile = Slots::value_tile;
  Slots::set_operands(f32.kv[kIndex], t.attention[index_of(Arithmetic::kBF16)].kv[kIndex],
                      t.attention[index_of(Arithmetic::kInt8)].kv[kIndex]);
}
/// The table with all narrow types. N<type>: their slots.
template <template <KvType> class N>
constexpr UKernels with_narrow_types(UKernels t) {
  const auto add = [&t]<size_t kIndex>(std::integral_constant<size_t, kIndex>) {
    if constexpr (is_narrow(KvType{kIndex})) add_narrow_type<KvType{kIndex}, N<KvType{kIndex}>>(t);
  };
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    (add(std::integral_constant<size_t, kIndex>()), ...);
  }(std::make_index_sequence<kKvTypes>());
  return t;
}

}  // namespace
}  // namespace simdattn
