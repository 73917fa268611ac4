// What the Highway backend exports: its tables, best first.
#ifndef SIMDATTN_LIB_HIGHWAY_TABLES_H_
#define SIMDATTN_LIB_HIGHWAY_TABLES_H_

#include <cstddef>

#include "dispatch/cpu.h"
#include "lib/ukernels.h"

namespace simdattn {

struct HighwayTable {
  Isa isa;
  const char* name;
  const UKernels* kernels;
  bool fma;
};
extern const HighwayTable kHighwayTables[];
extern const size_t kHighwayTableCount;

}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_TABLES_H_
