// The kernels of overlay.cc. Apart from their tables (overlays.h): these name every kernel, and overlay.cc defines
// those of one overlay.
#ifndef SIMDATTN_LIB_OVERLAYS_OVERLAY_H_
#define SIMDATTN_LIB_OVERLAYS_OVERLAY_H_

#include "lib/contract/ukernels.h"

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

}  // namespace simdattn

#endif  // SIMDATTN_LIB_OVERLAYS_OVERLAY_H_
