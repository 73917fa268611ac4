// Arithmetic::kBF16 and kInt8 on AMX, and how their operands look.
//
// A tile holds 16 rows of 64 bytes. The left operand of a product has a row per query; the right one has a row per 4 bytes of
// those, that is two numbers of bf16 or four of 8 bits side by side, for 16 columns. kBF16:
//   query     bf16 [dim rounded up to 32], zeros at the end; an odd number of lines of the CPU caches
//   panel     bf16 [ceil(dim/2)][32][2], as key panels of bf16 are
//   values    bf16 [ceil(dim/32)][kKeyBlock/2][32][2], zeros past dim
//   weights   bf16 in place of f32: keys 32 g .. 32 g + 31 of the block lie in the first half of their 128 bytes
// kInt8: lib/contract/int8_operands.h, packed by the slots of highway/avx3_dl.
#ifndef SIMDATTN_LIB_OVERLAYS_AMX_H_
#define SIMDATTN_LIB_OVERLAYS_AMX_H_

#include "lib/contract/ukernels.h"

namespace simdattn {

/// Rows that share the loads of the right operand: two tiles of them.
inline constexpr int64_t kAmxRows = 32;

/// amx_operands.cc
struct AmxBf16Operands {
  static int64_t query_bytes(int64_t dim);
  static int64_t panel_bytes(int64_t dim);
  static int64_t values_bytes(int64_t dim);
  static void prepare_query_f32(const void* row, void* query, int64_t dim);
  static void prepare_query_bf16(const void* row, void* query, int64_t dim);
  static void prepare_query_f16(const void* row, void* query, int64_t dim);
  static void pack_keys_f32(const PackKeys& a);
  static void pack_keys_bf16(const PackKeys& a);
  static void pack_values_f32(const PackValues& a);
  static void pack_values_bf16(const PackValues& a);
  /// `out`: n rounded up to 32 numbers.
  static void prepare_weights(const float* in, float* out, int64_t n);
  /// Weights that are rounded already, to their places as operands. `columns`: a multiple of 16.
  static void narrow_weights(float* w, int64_t ldw, int64_t rows, int64_t columns);
};

/// amx.cc
struct AmxBf16 : AmxBf16Operands {
  static void score_tile(const ScoreTile& a);
  static void value_tile(const ValueTile& a);
  static void value_packed(const ValueTile& a);
  static void begin();
  static void end();
};

/// amx.cc
struct AmxInt8 {
  static void score_packed(const ScoreTile& a);
  static void value_packed(const ValueTile& a);
};

namespace {  // internal to each object, like the helpers of int8_operands.h

/// `softmax_tile` leaves weights as narrow_weights does.
[[maybe_unused]] constexpr AttentionKernels amx_bf16_attention(void (*softmax_tile)(const SoftmaxTile&)) {
  using A = AmxBf16;
  AttentionKernels kernels = {.native = true,
                              .tile_rows = kAmxRows,
                              .value_step = 32,
                              .query_bytes = A::query_bytes,
                              .values_bytes = A::values_bytes,
                              .prepare_query = {A::prepare_query_f32, A::prepare_query_bf16, A::prepare_query_f16},
                              .kv = {},
                              .softmax_tile = softmax_tile,
                              .prepare_weights = A::prepare_weights,
                              .value_packed = A::value_packed,
                              .begin = A::begin,
                              .end = A::end};
  for (KvOperands& kv : kernels.kv) {
    kv.panel_bytes = A::panel_bytes;
    kv.score_packed = A::score_tile;
  }
  KvOperands& f32 = kernels.kv[static_cast<size_t>(KvType::kF32)];
  f32.pack_keys = A::pack_keys_f32;
  f32.pack_values = A::pack_values_f32;
  KvOperands& half = kernels.kv[static_cast<size_t>(KvType::kBF16)];
  half.score_tile = A::score_tile;
  half.pack_keys = A::pack_keys_bf16;
  half.value_tile = A::value_tile;
  half.pack_values = A::pack_values_bf16;
  return kernels;
}

/// `kernels`: of a target whose operands are those of lib/contract/int8_operands.h.
[[maybe_unused]] constexpr AttentionKernels amx_int8_attention(AttentionKernels kernels) {
  kernels.native = true;
  kernels.tile_rows = kAmxRows;
  kernels.value_packed = AmxInt8::value_packed;
  kernels.begin = AmxBf16::begin;
  kernels.end = AmxBf16::end;
  // Storage with several scales a key has a score of its own.
  const auto vectors = kernels.kv[static_cast<size_t>(KvType::kF32)].score_packed;
  for (KvOperands& kv : kernels.kv) {
    if (kv.score_packed == vectors) kv.score_packed = AmxInt8::score_packed;
  }
  return kernels;
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_OVERLAYS_AMX_H_
