// The tables of micro-kernels that the library has, each with what is asked before one is taken.
#ifndef SIMDATTN_DISPATCH_KERNEL_TABLE_H_
#define SIMDATTN_DISPATCH_KERNEL_TABLE_H_

#include <span>

#include "dispatch/cpu.h"

namespace simdattn {

struct UKernels;  // lib/contract/ukernels.h: dispatch hands it on and does not look inside

struct KernelTable {
  Isa isa;           // what the CPU must have
  const char* name;  // of the target
  const UKernels* kernels;
  bool fma;  // fused multiply-add: the bits of the definition
};

/// Most tables of both lists. What is compiled is checked against it (lib/targets/tables.cc).
inline constexpr size_t kMaxTargets = 32;

extern const std::span<const KernelTable> kScalarTables;  // best first, all of one name: one of them is the target
/// Of one instruction set, the library that is faster in the benchmark first, because the first target that runs is the
/// default (docs/targets.md).
extern const std::span<const KernelTable> kVectorTables;

}  // namespace simdattn

#endif  // SIMDATTN_DISPATCH_KERNEL_TABLE_H_
