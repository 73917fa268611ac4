#include "lib/drivers/rows/convert.h"

#include <algorithm>

namespace simdattn {

void rotate_heads(const UKernels& uk, DType from, DType to, const RopeHeads& a) {
  if (from == to) return uk.rope_heads[slot(from)](a);
  constexpr int64_t kPiece = 128;  // dimensions
  constexpr int64_t kAtOnce = 8;   // heads
  alignas(64) float wide[kAtOnce * kPiece];
  for (int64_t h = 0; h < a.heads; h += kAtOnce) {
    const int64_t heads = std::min(kAtOnce, a.heads - h);
    // n dimensions of each of these heads, from dimension `at` on, to and from `numbers` in each row of the buffer.
    const auto widen = [&](int64_t at, float* numbers, int64_t n) {
      for (int64_t k = 0; k < heads; ++k) {
        const char* const x = static_cast<const char*>(a.x) + ((h + k) * a.x_stride + at) * size_of(from);
        uk.widen[slot(from)](x, numbers + k * kPiece, n);
      }
    };
    const auto round = [&](const float* numbers, int64_t at, int64_t n) {
      char* const y = static_cast<char*>(a.y) + (h * a.y_stride + at) * size_of(to);
      round_rows(uk, numbers, kPiece, heads, n, to, y, a.y_stride);
    };
    for (int64_t i = 0; i < a.half; i += kPiece / 2) {
      const int64_t pairs = std::min(kPiece / 2, a.half - i);
      // The pairs of a piece are one run of dimensions, or two.
      const int64_t run = a.interleaved ? 2 * pairs : pairs;
      const int64_t first = a.first + (a.interleaved ? 2 * i : i);
      for (int64_t done = 0; done < 2 * pairs; done += run) widen(first + (done > 0 ? a.half : 0), wide + done, run);
      uk.rope_heads[slot(DType::kF32)]({.x = wide,
                                        .y = wide,
                                        .x_stride = kPiece,
                                        .y_stride = kPiece,
                                        .heads = heads,
                                        .dim = 2 * pairs,
                                        .first = 0,
                                        .half = pairs,
                                        .cos = a.cos + i,
                                        .sin = a.sin + i,
                                        .interleaved = a.interleaved,
                                        .inverse = a.inverse});
      for (int64_t done = 0; done < 2 * pairs; done += run) round(wide + done, first + (done > 0 ? a.half : 0), run);
    }
    const auto convert = [&](int64_t at, int64_t end) {
      for (; at < end; at += kPiece) {
        const int64_t n = std::min(kPiece, end - at);
        widen(at, wide, n);
        round(wide, at, n);
      }
    };
    convert(0, a.first);
    convert(a.first + 2 * a.half, a.dim);
  }
}

}  // namespace simdattn
