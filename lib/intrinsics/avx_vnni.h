// Arithmetic::kInt8 on CPUs with AVX-VNNI: VPDPBUSD of 256 bits.
#ifndef SIMDATTN_LIB_INTRINSICS_AVX_VNNI_H_
#define SIMDATTN_LIB_INTRINSICS_AVX_VNNI_H_

#include "lib/int8_operands.h"

namespace simdattn {

SIMDATTN_INT8_KERNELS(AvxVnniInt8);
void value_stored_avx_vnni(const ValueTile& a);

/// lib/highway/ukernels.cc: rows of cells of four bytes into a panel.
void avx_vnni_transpose_cells(const void* rows, int64_t stride, int64_t keys, int64_t cells, void* panel);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_INTRINSICS_AVX_VNNI_H_
