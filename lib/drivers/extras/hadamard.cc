// hadamard(): rows times an orthonormal Hadamard matrix.
#include <algorithm>

#include "lib/drivers/drivers.h"
#include "lib/drivers/rows/rotate.h"
#include "lib/drivers/rows/rows.h"
#include "lib/rules/rules.h"

namespace simdattn {

Status drivers::hadamard(const UKernels& uk, const ConstView<4>& x, const View<4>& out, int64_t block) {
  bool empty = false;
  SIMDATTN_CHECK(check_hadamard(x, out, block, &empty));
  if (empty) return {};

  alignas(64) float sums[kMaxHadamardBlock];
  const int64_t dim = x.shape[3];
  const int64_t size = hadamard_block(block, dim);
  const int64_t at_once = kMaxHadamardBlock / size * size;
  for (int64_t b = 0; b < x.shape[0]; ++b) {
    for (int64_t h = 0; h < x.shape[1]; ++h) {
      for (int64_t i = 0; i < x.shape[2]; ++i) {
        for (int64_t d = 0; d < dim; d += at_once) {
          const int64_t n = std::min(at_once, dim - d);
          uk.widen[slot(x.dtype)](row_of(x, b, h, i) + d * size_of(x.dtype), sums, n);
          hadamard_blocks(uk, sums, n, size, out.dtype, row_of(out, b, h, i) + d * size_of(out.dtype));
        }
      }
    }
  }
  return {};
}

}  // namespace simdattn
