// Whole steps of sizes that are not negative.
#ifndef SIMDATTN_LIB_CONTRACT_INTEGERS_H_
#define SIMDATTN_LIB_CONTRACT_INTEGERS_H_

#include <cstdint>

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

/// How many steps cover n.
constexpr int64_t steps_of(int64_t n, int64_t step) { return (n + step - 1) / step; }
/// The smallest multiple of `step` that is not below n.
constexpr int64_t round_up(int64_t n, int64_t step) { return steps_of(n, step) * step; }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_CONTRACT_INTEGERS_H_
