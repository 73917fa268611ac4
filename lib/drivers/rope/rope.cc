// rope(): rotates rows by the angles of their positions.
#include "lib/rules/rules.h"

#include "dispatch/environment.h"
#include "dispatch/target.h"
#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/rows/convert.h"

namespace simdattn {
Status drivers::rope(const ConstView<4>& x, const ConstView<2>& cos, const ConstView<2>& sin,
                     const ConstView<2>& positions, const View<4>& out, const RopeOptions& options, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  bool empty = false;
  SIMDATTN_CHECK(check_rope(x, cos, sin, positions, out, options, &empty));
  if (empty) return {};

  const Environment environment;
  const int64_t n = x.shape[2];
  const int64_t x_size = size_of(x.dtype);
  const int64_t out_size = size_of(out.dtype);
  RopeHeads call = {.x = nullptr,
                    .y = nullptr,
                    .x_stride = x.stride[1],
                    .y_stride = out.stride[1],
                    .heads = x.shape[1],
                    .dim = x.shape[3],
                    .first = options.first_dim,
                    .half = cos.shape[1],
                    .cos = nullptr,
                    .sin = nullptr,
                    .interleaved = options.pairing == RopePairing::kInterleaved,
                    .inverse = options.inverse};
  for (int64_t b = 0; b < x.shape[0]; ++b) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t p = position_at(positions, options.start, b, i);
      call.x = static_cast<const char*>(x.data) + (b * x.stride[0] + i * x.stride[2]) * x_size;
      call.y = static_cast<char*>(out.data) + (b * out.stride[0] + i * out.stride[2]) * out_size;
      call.cos = table_row(cos, p);
      call.sin = table_row(sin, p);
      rotate_heads(*uk, x.dtype, out.dtype, call);
    }
  }
  return {};
}

}  // namespace simdattn
