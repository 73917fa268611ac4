// e4m3 of the overlay avx3_dl.
#include "lib/highway/narrow_tiles.h"
#include "lib/kernels/overlays.h"

namespace simdattn {
using namespace highway;
using O = Overlay<avx3_dl>;

template <>
void O::score_tile_e4m3(const ScoreTile& a) {
  ScoreTileNarrow<KvType::kFp8E4M3>(a);
}
template <>
void O::score_rows_e4m3(const ScoreTile& a) {
  ScoreRowsNarrow<KvType::kFp8E4M3>(a);
}
template <>
int64_t O::add_values_e4m3(const ValueTile& a) {
  return AddValuesNarrow<KvType::kFp8E4M3>(a);
}

}  // namespace simdattn
