// Included before a source of the library: the copy that tuning_test links takes its facts of the CPU from a test, and
// counts what it prefetches and stores past the caches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dispatch/tuning.h"

// Instead of dispatch/streaming.h, which is of one architecture.
#define SIMDATTN_DISPATCH_STREAMING_H_

namespace simdattn::test {

struct Counts {
  int64_t prefetches = 0;
  int64_t steps_back = 0;  // a prefetch of a lower address than the one before
  int64_t streamed_bytes = 0;
  int64_t ordered = 0;  // calls of order_copies_past_caches()
  uintptr_t last = 0;
};
inline Counts counts;
inline Tuning tuning;

inline void count_prefetch(const void* address) {
  const auto now = reinterpret_cast<uintptr_t>(address);
  ++counts.prefetches;
  counts.steps_back += now < counts.last;
  counts.last = now;
}

}  // namespace simdattn::test

namespace simdattn {

inline void copy_past_caches(void* to, const void* from, size_t bytes) {
  test::counts.streamed_bytes += static_cast<int64_t>(bytes);
  std::memcpy(to, from, bytes);
}
inline void order_copies_past_caches() { ++test::counts.ordered; }

}  // namespace simdattn

#define tuning_of_cpu() test::tuning
#define __builtin_prefetch(address, ...) ::simdattn::test::count_prefetch(address)
