// Rows from one element type to another. Kernels keep the type of a row, so what changes it passes through f32.
#ifndef SIMDATTN_LIB_DRIVERS_ROWS_CONVERT_H_
#define SIMDATTN_LIB_DRIVERS_ROWS_CONVERT_H_

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"

namespace simdattn {

/// `rows` rows of n f32 numbers, `ld` elements apart, rounded to a type; NaN canonical. `stride`: elements between rows of out.
inline void round_rows(const UKernels& uk, const float* in, int64_t ld, int64_t rows, int64_t n, DType type, void* out,
                       int64_t stride) {
  // The stride of a single row means nothing, and may be any number.
  uk.kv[slot(kv_type_of(type))].store_rows({.rows = in,
                                            .ld = ld * int64_t{sizeof(float)},
                                            .tokens = rows,
                                            .dim = n,
                                            .out = out,
                                            .stride = rows > 1 ? stride * size_of(type) : 0,
                                            .column = 0,
                                            .as_stored = false});
}

/// RopeHeads from rows of type `from` to rows of type `to`. x and y are the same memory only if the types are the same.
void rotate_heads(const UKernels& uk, DType from, DType to, const RopeHeads& a);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ROWS_CONVERT_H_
