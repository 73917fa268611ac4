// add_rows(): an addition of any strides and types.
#include <algorithm>

#include "dispatch/target.h"
#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/rows/convert.h"
#include "lib/rules/rules.h"

namespace simdattn {

Status drivers::add_rows(const ConstView<4>& x, const ConstView<4>& p, const View<4>& out, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  bool empty = false;
  SIMDATTN_CHECK(check_add_rows(x, p, out, &empty));
  if (empty) return {};

  const int64_t x_size = size_of(x.dtype);
  const int64_t p_size = size_of(p.dtype);
  const int64_t out_size = size_of(out.dtype);
  // Rows of p that are not f32 are widened here, each once for all that it is added to.
  constexpr int64_t kColumns = 1024;
  alignas(64) float buffer[kColumns];
  // Rows that change their type are added in f32, a piece at a time.
  alignas(64) float sums[kColumns];
  const bool same = x.dtype == out.dtype;
  const bool direct = p.dtype == DType::kF32;
  // The rows of one call: the dimension over which p repeats, if there is one.
  size_t rows_axis = 2;
  for (const size_t axis : {size_t{0}, size_t{1}}) {
    if (p.stride[axis] == 0 && x.shape[axis] > 1) rows_axis = axis;
  }
  if (p.stride[2] == 0) rows_axis = 2;
  const size_t outer = rows_axis == 0 ? 1 : 0;
  const size_t inner = rows_axis == 2 ? 1 : 2;
  const bool repeats = p.stride[rows_axis] == 0;
  const int64_t rows_at_once = same && (direct || repeats) ? x.shape[rows_axis] : 1;
  const int64_t columns_at_once = same && direct ? x.shape[3] : std::min(kColumns, x.shape[3]);
  const auto kernel = uk->add_rows[slot(same ? x.dtype : DType::kF32)];
  AddRows call = {.x = nullptr,
                  .p = buffer,
                  .y = nullptr,
                  .x_stride = x.stride[rows_axis],
                  .p_stride = direct ? p.stride[rows_axis] : 0,
                  .y_stride = out.stride[rows_axis],
                  .rows = rows_at_once,
                  .dim = 0};
  for (int64_t i = 0; i < x.shape[outer]; ++i) {
    for (int64_t j = 0; j < x.shape[inner]; ++j) {
      for (int64_t r = 0; r < x.shape[rows_axis]; r += rows_at_once) {
        const auto start = [&](const auto& stride) {
          return i * stride[outer] + j * stride[inner] + r * stride[rows_axis];
        };
        for (int64_t c = 0; c < x.shape[3]; c += columns_at_once) {
          call.dim = std::min(columns_at_once, x.shape[3] - c);
          const char* const from = static_cast<const char*>(x.data) + (start(x.stride) + c) * x_size;
          char* const to = static_cast<char*>(out.data) + (start(out.stride) + c) * out_size;
          const char* row = static_cast<const char*>(p.data) + (start(p.stride) + c) * p_size;
          if (direct) {
            call.p = reinterpret_cast<const float*>(row);
          } else {
            uk->widen[slot(p.dtype)](row, buffer, call.dim);
          }
          if (same) {
            call.x = from;
            call.y = to;
            kernel(call);
          } else {
            uk->widen[slot(x.dtype)](from, sums, call.dim);
            call.x = call.y = sums;
            kernel(call);
            round_rows(*uk, sums, 0, 1, call.dim, out.dtype, to, 0);
          }
        }
      }
    }
  }
  return {};
}

}  // namespace simdattn
