// hadamard(): rows times an orthonormal Hadamard matrix.
#include "dispatch/target.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/extras/hadamard_rows.h"
#include "lib/rules/rules.h"

namespace simdattn {

Status drivers::hadamard(const ConstView<4>& x, const View<4>& out, int64_t block, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  bool empty = false;
  SIMDATTN_CHECK(check_hadamard(x, out, block, &empty));
  if (empty) return {};

  alignas(64) float sums[kMaxHadamardBlock];
  const int64_t dim = x.shape[3];
  const int64_t size = hadamard_block(block, dim);
  for (int64_t b = 0; b < x.shape[0]; ++b) {
    for (int64_t h = 0; h < x.shape[1]; ++h) {
      for (int64_t i = 0; i < x.shape[2]; ++i) {
        const int64_t from = b * x.stride[0] + h * x.stride[1] + i * x.stride[2];
        const int64_t to = b * out.stride[0] + h * out.stride[1] + i * out.stride[2];
        hadamard_row(*uk, static_cast<const char*>(x.data) + from * size_of(x.dtype), x.dtype,
                     static_cast<char*>(out.data) + to * size_of(out.dtype), out.dtype, dim, size, sums,
                     kMaxHadamardBlock / size * size);
      }
    }
  }
  return {};
}

}  // namespace simdattn
