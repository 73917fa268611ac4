// What AVX3_DL replaces in the table of AVX3: VPDPBUSD multiplies the bytes of Arithmetic::kInt8, and VPERMI2B, which takes 64 bytes from a
// table of 128, reads e4m3.
#ifndef SIMDATTN_LIB_HIGHWAY_AVX3_DL_H_
#define SIMDATTN_LIB_HIGHWAY_AVX3_DL_H_

#include "lib/int8_operands.h"

namespace simdattn::avx3_dl {

SIMDATTN_INT8_KERNELS(Int8);
void value_stored_int8(const ValueTile& a);

void score_tile_e4m3(const ScoreTile& a);
void score_rows_e4m3(const ScoreTile& a);
/// Columns [0, return value): whole tiles.
int64_t add_values_e4m3(const ValueTile& a);

}  // namespace simdattn::avx3_dl

#endif  // SIMDATTN_LIB_HIGHWAY_AVX3_DL_H_
