// Stores that go past the caches.
#ifndef SIMDATTN_LIB_STREAM_FENCE_H_
#define SIMDATTN_LIB_STREAM_FENCE_H_

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

/// What has been streamed so far is seen by whoever sees what is stored later. x86 orders all other stores by itself.
inline void stream_fence() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_STREAM_FENCE_H_
