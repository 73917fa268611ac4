// The list of the tables that meson.build has compiled: SIMDATTN_XSIMD_TABLES is ROW(name, Isa, fma) for each.
#include "lib/xsimd/tables.h"

namespace simdattn {

#define ROW(name, isa, fma) extern const UKernels kXsimdKernels_##name;
SIMDATTN_XSIMD_TABLES
#undef ROW

const XsimdTable kXsimdTables[] = {
#define ROW(name, isa, fma) {Isa::isa, "xsimd/" #name, &kXsimdKernels_##name, fma},
    SIMDATTN_XSIMD_TABLES
#undef ROW
};
const size_t kXsimdTableCount = sizeof(kXsimdTables) / sizeof(kXsimdTables[0]);

}  // namespace simdattn
