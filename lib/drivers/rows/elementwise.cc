// add_rows(): an addition of any strides and types. hadamard(): rows times an orthonormal Hadamard matrix.
#include <algorithm>
#include <utility>

#include "lib/drivers/drivers.h"
#include "lib/drivers/rows/rotate.h"
#include "lib/drivers/rows/rows.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// The same elements with dimensions 2 and `axis` exchanged.
template <class V>
V exchanged(V v, size_t axis) {
  std::swap(v.shape[2], v.shape[axis]);
  std::swap(v.stride[2], v.stride[axis]);
  return v;
}

}  // namespace

Status drivers::add_rows(const UKernels& uk, const ConstView<4>& x, const ConstView<4>& p, const View<4>& out) {
  bool empty = false;
  SIMDATTN_CHECK(check_add_rows(x, p, out, &empty));
  if (empty) return {};

  // The rows of one call: the dimension over which p repeats, if there is one.
  size_t axis = 2;
  for (const size_t k : {size_t{0}, size_t{1}}) {
    if (p.stride[2] != 0 && p.stride[k] == 0 && x.shape[k] > 1) axis = k;
  }
  const ConstView<4> xs = exchanged(x, axis), ps = exchanged(p, axis);
  const View<4> ys = exchanged(out, axis);
  // Rows of p that are not f32 are widened here, each once for all that it is added to.
  constexpr int64_t kColumns = 1024;
  alignas(64) float widened[kColumns];
  // Rows that change their type are added in f32, a piece at a time.
  alignas(64) float piece[kColumns];
  const bool same = xs.dtype == ys.dtype;
  const bool direct = ps.dtype == DType::kF32;
  const int64_t rows_at_once = same && (direct || ps.stride[2] == 0) ? xs.shape[2] : 1;
  const int64_t columns_at_once = same && direct ? xs.shape[3] : kColumns;
  AddRows call = {.x = piece,
                  .p = widened,
                  .y = piece,
                  .x_stride = xs.stride[2],
                  .p_stride = direct ? ps.stride[2] : 0,
                  .y_stride = ys.stride[2],
                  .rows = rows_at_once,
                  .dim = 0};
  for (int64_t i = 0; i < xs.shape[0]; ++i) {
    for (int64_t j = 0; j < xs.shape[1]; ++j) {
      for (int64_t r = 0; r < xs.shape[2]; r += rows_at_once) {
        for (int64_t c = 0; c < xs.shape[3]; c += columns_at_once) {
          call.dim = std::min(columns_at_once, xs.shape[3] - c);
          const char* const from = row_of(xs, i, j, r) + c * size_of(xs.dtype);
          char* const to = row_of(ys, i, j, r) + c * size_of(ys.dtype);
          const char* const row = row_of(ps, i, j, r) + c * size_of(ps.dtype);
          if (direct) call.p = reinterpret_cast<const float*>(row);
          if (!direct) uk.widen[slot(ps.dtype)](row, widened, call.dim);
          if (same) {
            call.x = from;
            call.y = to;
          } else {
            uk.widen[slot(xs.dtype)](from, piece, call.dim);
          }
          uk.add_rows[slot(same ? xs.dtype : DType::kF32)](call);
          if (!same) round_rows(uk, piece, 0, 1, call.dim, ys.dtype, to, 0);
        }
      }
    }
  }
  return {};
}

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
