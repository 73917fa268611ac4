// The instruction set that this object is compiled for: Highway's types of vectors, and what the kernels have to know of it.
#ifndef SIMDATTN_LIB_HIGHWAY_TARGET_H_
#define SIMDATTN_LIB_HIGHWAY_TARGET_H_

#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "lib/int8_operands.h"
#include "lib/simd/machine.h"
#include "lib/ukernels.h"

static_assert(HWY_TARGET == HWY_BASELINE_TARGETS, "Highway knows a fault of this compiler and leaves the target out");

namespace simdattn {
namespace {
namespace highway {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using M = hn::Mask<D>;

/// narrow_tiles.h: up to kFusedRows rows. On other targets the numbers go through L1 as f32.
#define SIMDATTN_FUSES_NARROW (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2)
constexpr int64_t kFusedRows = 4;

}  // namespace highway
}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_TARGET_H_
