// The list of the tables that meson.build has chosen: SIMDATTN_INTRINSICS_TABLES is ROW(name, Isa) for each.
#include "lib/kernel_table.h"

namespace simdattn {

#define ROW(name, isa) extern const UKernels kIntrinsicsKernels_##name;  // lib/highway/ukernels.cc
SIMDATTN_INTRINSICS_TABLES
#undef ROW

static constexpr KernelTable kList[] = {
#define ROW(name, isa) {Isa::isa, "intrinsics/" #name, &kIntrinsicsKernels_##name, true},
    SIMDATTN_INTRINSICS_TABLES
#undef ROW
};
constinit const std::span<const KernelTable> kIntrinsicsTables = kList;

}  // namespace simdattn
