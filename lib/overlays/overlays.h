// The tables of overlays: of targets that are another one, their base, with kernels of some arithmetics replaced. The
// base's object has the tables; the kernels are in objects of their own, compiled with more instructions: in overlay.cc
// those of one of the structs below, in amx.cc and avx512_bf16.cc those of bf16_pairs.h.
#pragma once

#include "lib/contract/int8_operands.h"
#include "lib/overlays/bf16_pairs.h"

namespace simdattn {

// The base packs keys and values of kInt8. weigh_rows: int8_weigh_rows(), for overlays whose products are others.
// value_stored: x86 alone. score_pairs, value_pairs: kBF16 from bf16, on ARM with BFMLALB and BFMLALT.
#define SIMDATTN_OVERLAY_KERNELS(name)                                                                       \
  struct name {                                                                                              \
    static void prepare_query_f32(const void* row, void* query, int64_t dim);                                \
    static void prepare_query_bf16(const void* row, void* query, int64_t dim);                               \
    static void prepare_query_f16(const void* row, void* query, int64_t dim);                                \
    static void score_packed(const ScoreTile& a);                                                            \
    static void score_blocks(const ScoreTile& a);                                                            \
    static void value_packed(const ValueTile& a);                                                            \
    static void weigh_rows(const ValueTile& a, uint8_t* out, int64_t stride, float* scales, int32_t* start); \
    static void value_stored(const ValueTile& a);                                                            \
    static void score_pairs(const ScoreTile& a);                                                             \
    static void value_pairs(const ValueTile& a);                                                             \
  }
SIMDATTN_OVERLAY_KERNELS(avx3_dl);
SIMDATTN_OVERLAY_KERNELS(avx_vnni);
SIMDATTN_OVERLAY_KERNELS(neon_dotprod);
SIMDATTN_OVERLAY_KERNELS(neon_i8mm);
SIMDATTN_OVERLAY_KERNELS(sve2_128_i8mm);
SIMDATTN_OVERLAY_KERNELS(sve_256_i8mm);
struct amx;
struct avx512_bf16;

namespace {

/// In place of the base's. Storage with several scales a key keeps a score of its own.
constexpr void set_int8_products(AttentionKernels& kernels, void (*score)(const ScoreTile&),
                                 void (*value)(const ValueTile&)) {
  const auto of_base = kernels.kv[index_of(KvType::kF32)].score_packed;
  for (KvOperands& kv : kernels.kv) {
    if (kv.score_packed == of_base) kv.score_packed = score;
  }
  kernels.value_packed = value;
}
/// kInt8 in dot products of bytes.
template <class Name>
constexpr UKernels with_int8(UKernels table, int64_t tile_rows, void (*value_stored)(const ValueTile&) = nullptr) {
  AttentionKernels& kernels = table.attention[index_of(Arithmetic::kInt8)];
  kernels.native = true;
  kernels.tile_rows = tile_rows;
  kernels.query_bytes = int8_query_bytes;
  kernels.prepare_query[index_of(DType::kF32)] = Name::prepare_query_f32;
  kernels.prepare_query[index_of(DType::kBF16)] = Name::prepare_query_bf16;
  kernels.prepare_query[index_of(DType::kF16)] = Name::prepare_query_f16;
  set_int8_products(kernels, Name::score_packed, Name::value_packed);
  set_int8_blocks(kernels, Name::score_blocks);
  kernels.kv[index_of(KvType::kInt8)].score_tile = Name::score_packed;
  kernels.kv[index_of(KvType::kInt8)].value_tile = value_stored;
  return table;
}
/// kSoftmax leaves numbers of bf16 as f32.
template <void (*kSoftmax)(const SoftmaxTile&)>
void amx_softmax_tile(const SoftmaxTile& a) {
  kSoftmax(a);
  Amx::narrow_weights(a.s, a.lds, a.rows, a.columns);
}

// The tables, found by overlaid<base>(pointer to name). The number is how many rows are computed at a time where rows
// see different keys: a register tile, but with avx3_dl two, because its products are so cheap that calls show.
template <const UKernels& kBase>
constexpr UKernels overlaid(const avx_vnni*) {
  return with_int8<avx_vnni>(kBase, 6, avx_vnni::value_stored);
}
template <const UKernels& kBase>
constexpr UKernels overlaid(const avx3_dl*) {
  return with_int8<avx3_dl>(kBase, 16, avx3_dl::value_stored);
}
template <const UKernels& kBase>
constexpr UKernels overlaid(const amx*) {
  UKernels table = overlaid<kBase>(static_cast<const avx3_dl*>(nullptr));
  AttentionKernels& pairs = table.attention[index_of(Arithmetic::kBF16)];
  for (KvOperands& kv : pairs.kv) kv.value_tile = nullptr;  // the base's take weights of f32
  pairs = bf16_pairs<Amx>(pairs, Amx::kRows);
  pairs.kv[index_of(KvType::kBF16)].pack_panel = nullptr;  // panels of bf16 are packed ones
  pairs.softmax_tile = amx_softmax_tile<kBase.attention[index_of(Arithmetic::kBF16)].softmax_tile>;
  pairs.prepare_weights = Amx::prepare_weights;
  pairs.of_few_rows = &kBase.attention[index_of(Arithmetic::kBF16)];
  AttentionKernels& integers = table.attention[index_of(Arithmetic::kInt8)];
  integers.tile_rows = Amx::kRows;
  set_int8_products(integers, Amx::int8_score_packed, Amx::int8_value_packed);
  for (AttentionKernels* kernels : {&pairs, &integers}) {
    kernels->begin = Amx::begin;
    kernels->end = Amx::end;
  }
  return table;
}
template <const UKernels& kBase>
constexpr UKernels overlaid(const avx512_bf16*) {
  UKernels table = overlaid<kBase>(static_cast<const avx3_dl*>(nullptr));
  AttentionKernels& pairs = table.attention[index_of(Arithmetic::kBF16)];
  pairs = bf16_pairs<Avx512Bf16>(pairs, 12);
  return table;
}
template <const UKernels& kBase>
constexpr UKernels overlaid(const neon_dotprod*) {
  return with_int8<neon_dotprod>(kBase, 8);
}
/// Those with I8MM.
template <const UKernels& kBase, class Name>
constexpr UKernels overlaid(const Name*) {
  UKernels table = with_int8<Name>(kBase, 8);
  AttentionKernels& kernels = table.attention[index_of(Arithmetic::kBF16)];
  kernels.native = true;
  kernels.kv[index_of(KvType::kBF16)].score_tile = Name::score_pairs;
  kernels.kv[index_of(KvType::kBF16)].value_tile = Name::value_pairs;
  return table;
}

}  // namespace
}  // namespace simdattn
