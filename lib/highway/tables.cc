// The list of the tables that meson.build has compiled: SIMDATTN_HIGHWAY_TABLES is ROW(name, Isa, fma) for each.
#include "lib/kernel_table.h"

namespace simdattn {

#define ROW(name, isa, fma) extern const UKernels kHighwayKernels_##name;
SIMDATTN_HIGHWAY_TABLES
#undef ROW

static constexpr KernelTable kList[] = {
#define ROW(name, isa, fma) {Isa::isa, "highway/" #name, &kHighwayKernels_##name, fma},
    SIMDATTN_HIGHWAY_TABLES
#undef ROW
};
constinit const std::span<const KernelTable> kHighwayTables = kList;

}  // namespace simdattn
