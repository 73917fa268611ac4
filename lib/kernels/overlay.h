// The kernels of overlay.cc. Apart from their tables (overlays.h): these name every kernel, and overlay.cc defines those of one overlay.
#ifndef SIMDATTN_LIB_KERNELS_OVERLAY_H_
#define SIMDATTN_LIB_KERNELS_OVERLAY_H_

#include "lib/contract/ukernels.h"

namespace simdattn {

struct avx3_dl;
struct avx_vnni;
struct neon_dotprod;
struct neon_i8mm;
struct sve2_128_i8mm;
struct sve_256_i8mm;

/// Keys and values of kInt8 are packed by the base.
template <class Name>
struct Overlay {
  static void prepare_query_f32(const void* row, void* query, int64_t dim);
  static void prepare_query_bf16(const void* row, void* query, int64_t dim);
  static void prepare_query_f16(const void* row, void* query, int64_t dim);
  static void score_packed(const ScoreTile& a);
  static void score_blocks(const ScoreTile& a);
  static void value_packed(const ValueTile& a);
  /// int8_weigh_rows() of lib/kernels/int8.h, for overlays whose products are others.
  static void weigh_rows(const ValueTile& a, uint8_t* out, int64_t stride, float* scales, int32_t* start);
  static void value_stored(const ValueTile& a);  // x86
  /// kBF16 from panels and rows of bf16: ARM with BFMLALB and BFMLALT.
  static void score_pairs(const ScoreTile& a);
  static void value_pairs(const ValueTile& a);
};

}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_OVERLAY_H_
