// Arithmetic::kBF16 on CPUs with AVX512-BF16, and how its operands look.
//
// VDPBF16PS adds two products to each lane of sums: that of the upper halves, then that of the lower ones. Two consecutive steps of one
// chain of kBF16 lie in a lane, so one instruction makes both. Of a unit of four numbers x0 .. x3, x0 and x2 belong to chain e, x1 and
// x3 to chain o; numbers of bf16 lie in memory as x2 x0, x3 x1:
//   query     bf16 [dim rounded up to 32], unit by unit, zeros at the end; an odd number of lines of the CPU caches
//   panel     bf16 [ceil(dim/4)][2][32][2]: of each unit x2 x0 of the 32 keys, then x3 x1
//   values    bf16 [ceil(dim/32)][kKeyBlock/4][2][32][2]: the same of four keys in 32 columns, zeros past dim
//   weights   f32, as the softmax leaves them; the value slots arrange them like a query
#ifndef SIMDATTN_LIB_OVERLAYS_AVX512_BF16_H_
#define SIMDATTN_LIB_OVERLAYS_AVX512_BF16_H_

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"

namespace simdattn {

/// avx512_bf16.cc, for each element type.
struct Avx512Bf16 {
  template <class T>
  static void query(const void* row, void* query, int64_t dim);
  template <class T>
  static void keys(const PackKeys& a);
  template <class T>
  static void panel(const PackKeys& a);
  template <class T>
  static void values(const PackValues& a);
  static void score_packed(const ScoreTile& a);
  static void score_tile(const ScoreTile& a);  // panels of bf16
  static void value_packed(const ValueTile& a);
  static void value_tile(const ValueTile& a);  // rows of bf16
};

namespace {  // internal to each object, like the helpers of dtypes.h

inline int64_t bf16_query_bytes(int64_t dim) { return ((dim + 31) / 32 | 1) * 64; }
inline int64_t bf16_panel_bytes(int64_t dim) { return (dim + 3) / 4 * 256; }
inline int64_t bf16_values_bytes(int64_t dim) {
  return (dim + kValueGroup - 1) / kValueGroup * kValueGroup * kKeyBlock * 2;
}

/// `kernels`: kBF16 of the target that has the other slots. Weights are f32 numbers in both, so its slots for values in rows of other types
/// stay. K: the slots, as above.
template <class K>
constexpr AttentionKernels avx512_bf16_attention(AttentionKernels kernels) {
  constexpr size_t kF32 = slot(KvType::kF32), kBF16 = slot(KvType::kBF16), kF16 = slot(KvType::kF16);
  kernels.native = true;
  kernels.tile_rows = 12;
  kernels.query_bytes = bf16_query_bytes;
  kernels.values_bytes = bf16_values_bytes;
  kernels.prepare_query[slot(DType::kF32)] = K::template query<float>;
  kernels.prepare_query[slot(DType::kBF16)] = K::template query<bf16>;
  kernels.prepare_query[slot(DType::kF16)] = K::template query<f16>;
  kernels.value_packed = K::value_packed;
  for (KvOperands& kv : kernels.kv) {
    const auto value_tile = kv.value_tile;
    kv = {};
    kv.panel_bytes = bf16_panel_bytes;
    kv.score_packed = K::score_packed;
    kv.value_tile = value_tile;
  }
  const auto pack = [&](size_t type, void (*keys)(const PackKeys&), void (*panel)(const PackKeys&),
                        void (*values)(const PackValues&)) {
    kernels.kv[type].pack_keys = keys;
    kernels.kv[type].pack_panel = panel;
    kernels.kv[type].pack_values = values;
  };
  pack(kF32, K::template keys<float>, K::template panel<float>, K::template values<float>);
  pack(kBF16, K::template keys<bf16>, K::template panel<bf16>, K::template values<bf16>);
  pack(kF16, K::template keys<f16>, K::template panel<f16>, K::template values<f16>);
  kernels.kv[kBF16].score_tile = K::score_tile;
  kernels.kv[kBF16].value_tile = K::value_tile;
  return kernels;
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_OVERLAYS_AVX512_BF16_H_
