// The limits of one instruction set. The probes are compiled once per set, with its flags.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace bench {

/// They may be called only where a target of that set is runnable.
struct Isa {
  const char* name;  // "avx3", "avx2", "sse2", "neon", "sve"
  size_t vector_bytes;
  /// Runs `steps` rounds of independent f32 multiply-adds and returns the flops done (2 per lane, fused or not).
  double (*fma)(size_t steps);
  /// Reads `bytes` bytes (less the remainder of eight vectors) once; returns something that depends on them.
  uint64_t (*read)(const void* data, size_t bytes);
  /// The same with a software prefetch 4 KiB ahead, which on some CPUs doubles what one core gets from DRAM.
  uint64_t (*read_prefetch)(const void* data, size_t bytes);
  /// Copies `bytes` bytes (less the remainder of eight vectors) by plain loads and stores; some memcpys do worse.
  void (*copy)(const void* from, void* to, size_t bytes);
};

}  // namespace bench
