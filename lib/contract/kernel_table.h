// What every backend exports: its tables of micro-kernels, each with what dispatch has to know of it.
#ifndef SIMDATTN_LIB_CONTRACT_KERNEL_TABLE_H_
#define SIMDATTN_LIB_CONTRACT_KERNEL_TABLE_H_

#include <span>

#include "dispatch/cpu.h"
#include "lib/contract/ukernels.h"

namespace simdattn {

struct KernelTable {
  Isa isa;           // what the CPU must have
  const char* name;  // of the target
  const UKernels* kernels;
  bool fma;  // fused multiply-add: the bits of the definition
};

extern const std::span<const KernelTable> kScalarTables;  // best first, all of one name: one of them is the target
/// Of one instruction set, the library that is faster in the benchmark first, because the first target that runs is the
/// default (docs/targets.md).
extern const std::span<const KernelTable> kVectorTables;

}  // namespace simdattn

#endif  // SIMDATTN_LIB_CONTRACT_KERNEL_TABLE_H_
