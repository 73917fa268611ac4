// What the native_*.h have in common: which lanes of a batch take part in a load or store.
#ifndef SIMDATTN_LIB_XSIMD_LANES_H_
#define SIMDATTN_LIB_XSIMD_LANES_H_

#include "lib/xsimd/batch.h"

namespace simdattn {
namespace {

/// All lanes of a batch take part in a load or store.
struct All {};

/// to[i] = from[i] for `begin` <= i < `end` within kCount: unrolled, for instruction sets without masked access.
template <int64_t kCount, class T>
SIMDATTN_INLINE void copy_lanes(const T* from, T* to, int64_t begin, int64_t end) {
  unroll<kCount>([&](auto i) SIMDATTN_LAMBDA {
    if (begin <= i && i < end) to[i] = from[i];
  });
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_XSIMD_LANES_H_
