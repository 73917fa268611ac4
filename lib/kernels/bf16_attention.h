// kBF16 by emulation.
#ifndef SIMDATTN_LIB_KERNELS_BF16_ATTENTION_H_
#define SIMDATTN_LIB_KERNELS_BF16_ATTENTION_H_

#include "lib/kernels/bf16_chains.h"
#include "lib/kernels/softmax_tile.h"

namespace simdattn {
namespace {

struct Bf16Kernels {
  static void round(const float* in, float* out, int64_t n) {
    for_each_batch(
        n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store(rounded_to_bf16(load(in + i, part)), out + i, part); });
  }
  static constexpr auto score_tile = score_chains<float>;
  static constexpr auto score_tile_bf16 = score_chains<bf16>;
  static constexpr auto value_tile = value_chains<float>;
  static constexpr auto value_tile_bf16 = value_chains<bf16>;
  static constexpr auto softmax_tile = simdattn::softmax_tile<true>;
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_BF16_ATTENTION_H_
