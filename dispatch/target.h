// A target is a value: a name, whether this CPU can run it, and its table of micro-kernels.
#ifndef SIMDATTN_DISPATCH_TARGET_H_
#define SIMDATTN_DISPATCH_TARGET_H_

#include "include/simdattn/simdattn.h"

namespace simdattn {

struct UKernels;  // lib/contract/ukernels.h

struct Target {
  const char* name;
  const UKernels* kernels;
  bool exact;               // fused multiply-add: the bits of the definition
  bool runnable;            // as far as CPU and operating system are concerned
  const char* missing;      // what they lack; "" if nothing
  bool permission = false;  // runs with permission only: request_amx()
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

#endif  // SIMDATTN_DISPATCH_TARGET_H_
