// Rows times an orthonormal Hadamard matrix, block by block.
#ifndef SIMDATTN_LIB_DRIVERS_EXTRAS_HADAMARD_ROWS_H_
#define SIMDATTN_LIB_DRIVERS_EXTRAS_HADAMARD_ROWS_H_

#include <cmath>

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"

namespace simdattn {

/// n numbers in whole blocks, rounded to `type`. `out` may be `numbers`, which are overwritten.
inline void hadamard_blocks(const UKernels& uk, float* numbers, int64_t n, int64_t block, DType type, void* out) {
  uk.hadamard_sums(numbers, n, block);
  // 1 / sqrt(block), rounded once; a power of two where block is one of 4.
  uk.finish[slot(type)](numbers, static_cast<float>(1.0 / std::sqrt(static_cast<double>(block))), out, n);
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_EXTRAS_HADAMARD_ROWS_H_
