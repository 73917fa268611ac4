// The kernels of the overlay SIMDATTN_OVERLAY (overlays.h): the same text as that of its base, compiled with more
// instructions.
#include "lib/overlays/overlays.h"

#include "lib/kernels/bf16_chains.h"
#include "lib/kernels/int8.h"

namespace simdattn {

using O = SIMDATTN_OVERLAY;

void O::prepare_query_f32(const void* row, void* query, int64_t dim) { int8_prepare_query<float>(row, query, dim); }
void O::prepare_query_bf16(const void* row, void* query, int64_t dim) { int8_prepare_query<bf16>(row, query, dim); }
void O::prepare_query_f16(const void* row, void* query, int64_t dim) { int8_prepare_query<f16>(row, query, dim); }
void O::score_packed(const ScoreTile& a) { int8_scores<false>(a); }
void O::score_blocks(const ScoreTile& a) { int8_scores<true>(a); }
void O::value_packed(const ValueTile& a) { int8_value_packed(a); }
void O::weigh_rows(const ValueTile& a, uint8_t* out, int64_t stride, float* scales, int32_t* start) {
  int8_weigh_rows(a, out, stride, scales, start);
}
void O::value_stored(const ValueTile& a) {
  if constexpr (kMultipliesStored) int8_value_stored<>(a);
}
void O::score_pairs(const ScoreTile& a) {
  if constexpr (kMultipliesPairs) score_chains<bf16>(a);
}
void O::value_pairs(const ValueTile& a) {
  if constexpr (kMultipliesPairs) value_chains<bf16>(a);
}

}  // namespace simdattn
