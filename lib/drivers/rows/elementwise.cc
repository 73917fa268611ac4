// add_rows(): an addition of any strides and types. hadamard(): rows times an orthonormal Hadamard matrix.
#include <algorithm>

#include "lib/drivers/drivers.h"
#include "lib/drivers/shared/rotate.h"
#include "lib/drivers/shared/rows.h"
#include "lib/rules/rules.h"

namespace simdattn {

Status drivers::add_rows(const UKernels& uk, const ConstView<4>& x, const ConstView<4>& p, const View<4>& out) {
  SIMDATTN_CHECK(check_add_rows(x, p, out));
  if (is_empty(out)) return {};

  // Rows of p that are not f32 are widened here.
  constexpr int64_t kColumns = 1024;
  alignas(64) float widened[kColumns];
  // Rows that change their type are added in f32, a piece at a time.
  alignas(64) float piece[kColumns];
  const bool same = x.dtype == out.dtype;
  const bool direct = p.dtype == DType::kF32;
  const int64_t rows_at_once = same && (direct || p.stride[2] == 0) ? x.shape[2] : 1;
  const int64_t columns_at_once = same && direct ? x.shape[3] : kColumns;
  AddRows call = {.x = piece,
                  .p = widened,
                  .y = piece,
                  .x_stride = x.stride[2],
                  .p_stride = direct ? p.stride[2] : 0,
                  .y_stride = out.stride[2],
                  .rows = rows_at_once,
                  .dim = 0};
  for (int64_t i = 0; i < x.shape[0]; ++i) {
    for (int64_t j = 0; j < x.shape[1]; ++j) {
      for (int64_t r = 0; r < x.shape[2]; r += rows_at_once) {
        for (int64_t c = 0; c < x.shape[3]; c += columns_at_once) {
          call.dim = std::min(columns_at_once, x.shape[3] - c);
          const char* const from = row_of(x, i, j, r) + c * size_of(x.dtype);
          char* const to = row_of(out, i, j, r) + c * size_of(out.dtype);
          const char* const row = row_of(p, i, j, r) + c * size_of(p.dtype);
          if (direct) call.p = reinterpret_cast<const float*>(row);
          if (!direct) uk.widen[index_of(p.dtype)](row, widened, call.dim);
          if (same) {
            call.x = from;
            call.y = to;
          } else {
            uk.widen[index_of(x.dtype)](from, piece, call.dim);
          }
          uk.add_rows[index_of(same ? x.dtype : DType::kF32)](call);
          if (!same) round_rows(uk, piece, 0, 1, call.dim, out.dtype, to, 0);
        }
      }
    }
  }
  return {};
}

Status drivers::hadamard(const UKernels& uk, const ConstView<4>& x, const View<4>& out, int64_t block) {
  SIMDATTN_CHECK(check_hadamard(x, out, block));
  if (is_empty(out)) return {};

  alignas(64) float sums[kMaxHadamardBlock];
  const int64_t dim = x.shape[3];
  const int64_t size = hadamard_block(block, dim);
  const int64_t at_once = kMaxHadamardBlock / size * size;
  for (int64_t b = 0; b < x.shape[0]; ++b) {
    for (int64_t h = 0; h < x.shape[1]; ++h) {
      for (int64_t i = 0; i < x.shape[2]; ++i) {
        for (int64_t d = 0; d < dim; d += at_once) {
          const int64_t n = std::min(at_once, dim - d);
          uk.widen[index_of(x.dtype)](row_of(x, b, h, i) + d * size_of(x.dtype), sums, n);
          hadamard_blocks(uk, sums, n, size, out.dtype, row_of(out, b, h, i) + d * size_of(out.dtype));
        }
      }
    }
  }
  return {};
}

}  // namespace simdattn
