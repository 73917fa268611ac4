#include "lib/highway/avx3_dl.h"

#include "lib/highway/int8.h"
#include "lib/highway/narrow_tiles.h"

namespace simdattn::avx3_dl {
using namespace highway;

SIMDATTN_DEFINE_INT8_KERNELS(Int8, Operations)
void value_stored_int8(const ValueTile& a) { ValueStoredInt8(a); }

void score_tile_e4m3(const ScoreTile& a) { ScoreTileNarrow<KvType::kFp8E4M3>(a); }
void score_rows_e4m3(const ScoreTile& a) { ScoreRowsNarrow<KvType::kFp8E4M3>(a); }
int64_t add_values_e4m3(const ValueTile& a) { return AddValuesNarrow<KvType::kFp8E4M3>(a); }

}  // namespace simdattn::avx3_dl
