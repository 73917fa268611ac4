// What the xsimd backend exports: its tables.
#ifndef SIMDATTN_LIB_XSIMD_TABLES_H_
#define SIMDATTN_LIB_XSIMD_TABLES_H_

#include <cstddef>

#include "dispatch/cpu.h"
#include "lib/ukernels.h"

namespace simdattn {

struct XsimdTable {
  Isa isa;
  const char* name;
  const UKernels* kernels;
  bool fma;
};
extern const XsimdTable kXsimdTables[];
extern const size_t kXsimdTableCount;

}  // namespace simdattn

#endif  // SIMDATTN_LIB_XSIMD_TABLES_H_
