// The tables of overlays: of targets that are another one, their base, with kernels of some arithmetics replaced. The
// base's object has the tables; the kernels are in objects of their own, compiled with more instructions: in overlay.cc
// those of one of the structs below, in amx.cc and avx512_bf16.cc those of Amx and Avx512Bf16.
//
// kBF16 where instructions multiply pairs of bf16. A pair is what a lane of 32 bits holds.
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
//   weights   bf16 in place of f32, unit by unit: keys 32 g .. 32 g + 31 in the first half of their 128 bytes
// kInt8 on AMX: lib/contract/int8_operands.h, packed by the slots of highway/avx3_dl.
#pragma once

#include <type_traits>

#include "lib/contract/int8_operands.h"

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
  static void score_rows(const ScoreTile& a);  // rows of bf16
  static void value_packed(const ValueTile& a);
  static void value_tile(const ValueTile& a);  // rows of bf16
  static void softmax_tile(const SoftmaxTile& a);
  static void prepare_weights(const float* in, float* out, int64_t n);  // `out`: n rounded up to 32 numbers
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
  static void softmax_tile(const SoftmaxTile& a);
  static void prepare_weights(const float* in, float* out, int64_t n);  // `out`: n rounded up to 32 numbers
  static void begin(KeptRegisters* kept);
  static void end(const KeptRegisters& kept);
};

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

namespace {  // internal to each object, like the helpers of dtypes.h

/// Pairs in whole units.
template <int64_t kUnit>
constexpr int64_t pairs_of(int64_t n) {
  return steps_of(n, kUnit) * (kUnit / 2);
}
constexpr int64_t bf16_query_bytes(int64_t dim) { return (steps_of(dim, 32) | 1) * 64; }
template <int64_t kUnit>
constexpr int64_t bf16_panel_bytes(int64_t dim) {
  return pairs_of<kUnit>(dim) * kPanelWidth * 4;
}
constexpr int64_t bf16_values_bytes(int64_t dim) { return round_up(dim, kValueGroup) * kKeyBlock * 2; }

/// `kernels`, kBF16 of the base, with the slots of K. The base's slots for values in rows go, as they take weights of
/// f32.
template <class K>
constexpr AttentionKernels bf16_pairs(AttentionKernels kernels, int64_t tile_rows) {
  kernels.native = true;
  kernels.tile_rows = tile_rows;
  kernels.query_bytes = bf16_query_bytes;
  kernels.values_bytes = bf16_values_bytes;
  kernels.softmax_tile = K::softmax_tile;
  kernels.scales_in_softmax = true;
  kernels.prepare_weights = K::prepare_weights;
  kernels.value_packed = K::value_packed;
  for (KvOperands& kv : kernels.kv) {
    kv = {};
    kv.panel_bytes = bf16_panel_bytes<K::kUnit>;
    kv.score_packed = K::score_packed;
  }
  set_packing<Bf16Packing, K>(kernels);
  kernels.kv[index_of(KvType::kBF16)].score_tile = K::score_tile;
  kernels.kv[index_of(KvType::kBF16)].value_tile = K::value_tile;
  return kernels;
}

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
/// kBF16 and kInt8 on tiles, by the slots of K. `table` has kInt8 in dot products of bytes.
template <class K>
constexpr UKernels with_tiles(UKernels table, const AttentionKernels* of_few_rows) {
  AttentionKernels& pairs = table.attention[index_of(Arithmetic::kBF16)];
  pairs = bf16_pairs<K>(pairs, Amx::kRows);
  pairs.kv[index_of(KvType::kBF16)].pack_panel = nullptr;  // panels of bf16 are packed ones
  pairs.of_few_rows = of_few_rows;
  AttentionKernels& integers = table.attention[index_of(Arithmetic::kInt8)];
  integers.tile_rows = Amx::kRows;
  set_int8_products(integers, K::int8_score_packed, K::int8_value_packed);
  for (AttentionKernels* kernels : {&pairs, &integers}) {
    kernels->rows_at_once = Amx::kRows;
    kernels->begin = K::begin;
    kernels->end = K::end;
  }
  return table;
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
  return with_tiles<Amx>(overlaid<kBase>(static_cast<const avx3_dl*>(nullptr)),
                         &kBase.attention[index_of(Arithmetic::kBF16)]);
}
template <const UKernels& kBase>
constexpr UKernels overlaid(const avx512_bf16*) {
  UKernels table = overlaid<kBase>(static_cast<const avx3_dl*>(nullptr));
  AttentionKernels& pairs = table.attention[index_of(Arithmetic::kBF16)];
  pairs = bf16_pairs<Avx512Bf16>(pairs, 12);
  pairs.kv[index_of(KvType::kBF16)].score_rows = Avx512Bf16::score_rows;
  pairs.rows_at_once = 48;  // whole tiles of 6 rows, and 24 whose weights stay in L1
  return table;
}
template <const UKernels& kBase>
constexpr UKernels overlaid(const neon_dotprod*) {
  return with_int8<neon_dotprod>(kBase, 8);
}
/// Those with I8MM. Another overlay does not compile without a function of its own.
template <const UKernels& kBase, class Name>
  requires(std::is_same_v<Name, neon_i8mm> || std::is_same_v<Name, sve2_128_i8mm> || std::is_same_v<Name, sve_256_i8mm>)
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
