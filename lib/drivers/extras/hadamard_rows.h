// One row times an orthonormal Hadamard matrix, block by block.
#ifndef SIMDATTN_LIB_DRIVERS_EXTRAS_HADAMARD_ROWS_H_
#define SIMDATTN_LIB_DRIVERS_EXTRAS_HADAMARD_ROWS_H_

#include <cmath>

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"

namespace simdattn {

/// 1 / sqrt(block), rounded once; a power of two where block is one of 4.
inline float hadamard_factor(int64_t block) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(block))); }

/// n numbers in whole blocks, in place.
inline void hadamard_in_place(const UKernels& uk, float* numbers, int64_t n, int64_t block) {
  uk.hadamard_sums(numbers, n, block);
  uk.finish[slot(DType::kF32)](numbers, hadamard_factor(block), numbers, n);
}

/// `dim` numbers in whole blocks. `sums`: f32, as many as are taken at a time, a multiple of the block.
inline void hadamard_row(const UKernels& uk, const void* x, DType x_type, void* out, DType out_type, int64_t dim,
                         int64_t block, float* sums, int64_t at_a_time) {
  const float factor = hadamard_factor(block);
  for (int64_t d = 0; d < dim; d += at_a_time) {
    const int64_t n = dim - d < at_a_time ? dim - d : at_a_time;
    uk.widen[slot(x_type)](static_cast<const char*>(x) + d * size_of(x_type), sums, n);
    uk.hadamard_sums(sums, n, block);
    uk.finish[slot(out_type)](sums, factor, static_cast<char*>(out) + d * size_of(out_type), n);
  }
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_EXTRAS_HADAMARD_ROWS_H_
