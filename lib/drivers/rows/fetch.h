// How kernels fetch keys and values.
#ifndef SIMDATTN_LIB_DRIVERS_ROWS_FETCH_H_
#define SIMDATTN_LIB_DRIVERS_ROWS_FETCH_H_

#include "dispatch/tuning.h"
#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"

namespace simdattn {

/// So many bytes do not stay in one user's share of L3.
inline constexpr double kCacheBytes = 32 << 20;

/// `bytes` that one call reads: from beyond L2 if they are more than `stream`. Doubles: sizes may be anything where strides are 0.
inline Fetch fetch_of(double bytes, double stream) {
  if (bytes <= stream) return Fetch::kNone;
  if (bytes <= kCacheBytes) return Fetch::kMemory;
  const Tuning tuning = tuning_of_cpu();
  return tuning.memory_in_pages ? Fetch::kPages : tuning.memory_by_hardware ? Fetch::kHardware : Fetch::kMemory;
}

inline double bytes_of(const ConstView<4>& v) {
  return static_cast<double>(v.shape[0] * v.shape[1]) * static_cast<double>(v.shape[2]) *
         static_cast<double>(v.shape[3] * size_of(v.dtype));
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ROWS_FETCH_H_
