// Arithmetic::kBF16 where instructions multiply pairs of bf16, and how their operands look. A pair is what a lane of 32
// bits holds.
//
// AMX: TDPBF16PS makes a chain of the lower halves of lanes and one of the upper halves, so a pair is two consecutive
// numbers. AVX512-BF16: VDPBF16PS adds two products to each lane of sums: that of the upper halves, then that of the
// lower ones. So a pair is two consecutive steps of one chain, the earlier one in its upper half. Of four numbers x0 ..
// x3 the chains have x0 x2 and x1 x3.
//
// A unit is the least number of numbers that are whole pairs, in memory AMX: x0 x1; AVX512-BF16: x2 x0, x3 x1.
//   query     bf16 [dim rounded up to 32], unit by unit, zeros at the end; an odd number of lines of the CPU caches
//   panel     bf16 [pairs of dim][32][2], zeros in the last unit past dim
//   values    bf16 [ceil(dim/32)][kKeyBlock/2][32][2]: pairs of keys in 32 columns, zeros past dim
//   weights   AVX512-BF16: f32, as the softmax leaves them; the value slots arrange them like a query
//             AMX: bf16 in place of f32: keys 32 g .. 32 g + 31 of the key block lie in the first half of their 128
//             bytes
// kInt8 on AMX: lib/contract/int8_operands.h, packed by the slots of highway/avx3_dl.
#pragma once

#include "lib/contract/dtypes.h"
#include "lib/contract/steps.h"
#include "lib/contract/ukernels.h"

namespace simdattn {

/// Of element type T, in the units of K. bf16_packing.h; K.cc instantiates it.
template <class K, class T>
struct Bf16Packing {
  static void query(const void* row, void* query, int64_t dim);
  static void keys(const PackKeys& a);
  static void panel(const PackKeys& a);
  static void values(const PackValues& a);
};

/// avx512_bf16.cc
struct Avx512Bf16 {
  static constexpr int64_t kUnit = 4;
  static void score_packed(const ScoreTile& a);
  static void score_tile(const ScoreTile& a);  // panels of bf16
  static void value_packed(const ValueTile& a);
  static void value_tile(const ValueTile& a);  // rows of bf16
};

/// amx.cc
struct Amx {
  static constexpr int64_t kUnit = 2;
  /// Rows that share the loads of the right operand: two tiles of them.
  static constexpr int64_t kRows = 32;
  static void score_packed(const ScoreTile& a);
  static constexpr auto score_tile = score_packed;  // panels of bf16 are packed ones
  static void value_packed(const ValueTile& a);
  static void value_tile(const ValueTile& a);  // rows of bf16
  static void int8_score_packed(const ScoreTile& a);
  static void int8_value_packed(const ValueTile& a);
  static void begin();
  static void end();
  static void prepare_weights(const float* in, float* out, int64_t n);  // `out`: n rounded up to 32 numbers
  /// Weights that are rounded already, to their places as operands. `columns`: a multiple of 16.
  static void narrow_weights(float* w, int64_t ldw, int64_t rows, int64_t columns);
};

namespace {  // internal to each object, like the helpers of dtypes.h

/// Pairs in whole units.
template <int64_t kUnit>
constexpr int64_t pairs_of(int64_t n) {
  return steps_of(n, kUnit) * (kUnit / 2);
}
inline int64_t bf16_query_bytes(int64_t dim) { return (steps_of(dim, 32) | 1) * 64; }
template <int64_t kUnit>
int64_t bf16_panel_bytes(int64_t dim) {
  return pairs_of<kUnit>(dim) * kPanelWidth * 4;
}
inline int64_t bf16_values_bytes(int64_t dim) { return round_up(dim, kValueGroup) * kKeyBlock * 2; }

/// `kernels`, kBF16 of the base, with the slots of K. Slots of the base for values in rows of other types stay.
template <class K>
constexpr AttentionKernels bf16_pairs(AttentionKernels kernels, int64_t tile_rows) {
  kernels.native = true;
  kernels.tile_rows = tile_rows;
  kernels.query_bytes = bf16_query_bytes;
  kernels.values_bytes = bf16_values_bytes;
  kernels.value_packed = K::value_packed;
  for (KvOperands& kv : kernels.kv) {
    const auto value_tile = kv.value_tile;
    kv = {};
    kv.panel_bytes = bf16_panel_bytes<K::kUnit>;
    kv.score_packed = K::score_packed;
    kv.value_tile = value_tile;
  }
  set_packing<Bf16Packing, K>(kernels);
  kernels.kv[index_of(KvType::kBF16)].score_tile = K::score_tile;
  kernels.kv[index_of(KvType::kBF16)].value_tile = K::value_tile;
  return kernels;
}

}  // namespace
}  // namespace simdattn
