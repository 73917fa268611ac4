// Who made the CPU, where its caches or ports want another order of the same arithmetic. x86.
#ifndef SIMDATTN_LIB_CPU_VENDOR_H_
#define SIMDATTN_LIB_CPU_VENDOR_H_

#include <cpuid.h>

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

/// Asked once: under a hypervisor CPUID takes a microsecond or two.
[[maybe_unused, gnu::noinline]] bool made_by_amd() {
  static int known = 0;
  int amd = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (amd == 0) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    amd = __get_cpuid(0, &a, &b, &c, &d) != 0 && b == 0x68747541 ? 1 : -1;  // "Auth"enticAMD
    __atomic_store_n(&known, amd, __ATOMIC_RELAXED);
  }
  return amd > 0;
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_CPU_VENDOR_H_
