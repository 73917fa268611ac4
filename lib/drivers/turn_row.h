// One row through the kernel that rotates, in pieces on the stack, from and to wherever its columns are: shared by
// kv_append() and kv_shift(), whose key panels scatter a row.
#ifndef SIMDATTN_LIB_DRIVERS_TURN_ROW_H_
#define SIMDATTN_LIB_DRIVERS_TURN_ROW_H_

#include <algorithm>

#include "lib/dtypes.h"
#include "lib/ukernels.h"

namespace simdattn {

/// `row`: dim, first, half, cos, sin and the two flags count. gather(column, n, to) brings n columns of type `from`,
/// scatter(values, column, n) takes them as `to`; none is gathered after a piece that wrote it.
template <class Gather, class Scatter>
void turn_row(const UKernels& uk, const RopeHeads& row, DType from, DType to, const Gather& gather,
              const Scatter& scatter) {
  constexpr int64_t kColumns = 2048;
  alignas(64) char in[kColumns * 4];
  alignas(64) char out[kColumns * 4];
  const auto kernel = uk.rope_heads[slot(from)][slot(to)];
  RopeHeads piece = row;
  piece.x = in;
  piece.y = out;
  piece.heads = 1;
  piece.first = 0;
  const auto convert = [&](int64_t column, int64_t end) {
    piece.half = 0;
    for (; column < end; column += piece.dim) {
      piece.dim = std::min(kColumns, end - column);
      gather(column, piece.dim, in);
      kernel(piece);
      scatter(out, column, piece.dim);
    }
  };
  convert(0, row.first);
  for (int64_t i = 0; i < row.half; i += piece.half) {
    const int64_t n = std::min(kColumns / 2, row.half - i);
    // Halves of a pair that are far apart are brought together.
    const int64_t low = row.first + (row.interleaved ? 2 * i : i);
    const int64_t high = low + (row.interleaved ? n : row.half);
    gather(low, n, in);
    gather(high, n, in + n * size_of(from));
    piece.half = n;
    piece.dim = 2 * n;
    piece.cos = row.cos + i;
    piece.sin = row.sin + i;
    kernel(piece);
    scatter(out, low, n);
    scatter(out + n * size_of(to), high, n);
  }
  convert(row.first + 2 * row.half, row.dim);
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_TURN_ROW_H_
