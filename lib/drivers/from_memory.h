// How kernels read rows that come from memory.
#ifndef SIMDATTN_LIB_DRIVERS_FROM_MEMORY_H_
#define SIMDATTN_LIB_DRIVERS_FROM_MEMORY_H_

#include "dispatch/cpu.h"
#include "lib/dtypes.h"
#include "lib/ukernels.h"

namespace simdattn {

/// So many bytes do not stay in one user's share of L3. Intel's CPUs read them faster from several pages at once, for which their own prefetches do
/// not suffice: `scores` of 128 MiB, Xeon (Emerald Rapids), 0.5 - 0.94 of the time. On a Zen 4 prefetches cost 5 - 40 %.
inline FromMemory from_memory(double bytes) {
  if (bytes <= (32 << 20)) return FromMemory::kNo;
  return is_intel() ? FromMemory::kPages : is_zen4() ? FromMemory::kInOrder : FromMemory::kNo;
}

/// A double: sizes may be anything where strides are 0.
inline double bytes_of(const ConstView<4>& v) {
  return static_cast<double>(v.shape[0] * v.shape[1]) * static_cast<double>(v.shape[2]) *
         static_cast<double>(v.shape[3] * size_of(v.dtype));
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_FROM_MEMORY_H_
