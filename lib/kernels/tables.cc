// The list of the tables that meson.build has compiled: SIMDATTN_XSIMD_TABLES is ROW(name, Isa, fma) for each.
#include "lib/kernel_table.h"

namespace simdattn {

#define ROW(name, isa, fma) extern const UKernels kXsimdKernels_##name;
SIMDATTN_XSIMD_TABLES
#undef ROW

static constexpr KernelTable kList[] = {
#define ROW(name, isa, fma) {Isa::isa, "xsimd/" #name, &kXsimdKernels_##name, fma},
    SIMDATTN_XSIMD_TABLES
#undef ROW
};
constinit const std::span<const KernelTable> kXsimdTables = kList;

}  // namespace simdattn
