#include "lib/drivers/shared/rotate.h"

namespace simdattn {

void rotate_heads(const UKernels& uk, DType from, DType to, const RopeHeads& a) {
  if (from == to) return uk.rope_heads[index_of(from)](a);
  constexpr int64_t kPiece = 128;  // dimensions
  constexpr int64_t kAtOnce = 8;   // heads
  alignas(64) float wide[kAtOnce * kPiece];
  RopeHeads some = a;
  for (int64_t h = 0; h < a.heads; h += kAtOnce) {
    some.heads = std::min(kAtOnce, a.heads - h);
    rotate_pieces(
        uk, some, DType::kF32, reinterpret_cast<char*>(wide), kPiece,
        [&](int64_t d, int64_t n, char* to_rows) {
          for (int64_t k = 0; k < some.heads; ++k) {
            uk.widen[index_of(from)](static_cast<const char*>(a.x) + ((h + k) * a.x_stride + d) * size_of(from),
                                     reinterpret_cast<float*>(to_rows) + k * kPiece, n);
          }
        },
        [&](const char* rows, int64_t d, int64_t n) {
          round_rows(uk, reinterpret_cast<const float*>(rows), kPiece, some.heads, n, to,
                     static_cast<char*>(a.y) + (h * a.y_stride + d) * size_of(to), a.y_stride);
        });
  }
}

}  // namespace simdattn
