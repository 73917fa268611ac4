// The tables of micro-kernels that the library has, and the targets that dispatch makes of them. A target is a value: a
// name, whether this CPU can run it, and its table.
#pragma once

#include <span>

#include "dispatch/cpu.h"
#include "include/simdattn/simdattn.h"

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

struct Target {
  const char* name;
  const UKernels* kernels;
  bool exact;               // fused multiply-add: the bits of the definition
  bool runnable;            // as far as CPU and operating system are concerned
  const char* missing;      // what they lack; "" if nothing
  bool permission = false;  // runs with permission only: request_amx()
  bool fast_bf16 = false;   // multiplies bf16 in less time than f32
};

/// What keeps the target from running now; "" if it can. The answer changes once at most, when permission comes.
const char* missing_now(const Target& target);

/// exec.target, or the default target, if this CPU can run it.
Status resolve(const Exec& exec, const Target** target);
/// Its table.
inline Status resolve(const Exec& exec, const UKernels** kernels) {
  const Target* t = exec.target;
  if (t == nullptr || !t->runnable || t->permission) {
    if (const Status status = resolve(exec, &t); !status.ok()) return status;
  }
  *kernels = t->kernels;
  return {};
}

}  // namespace simdattn
