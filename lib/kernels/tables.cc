// The list of the tables that meson.build has compiled: SIMDATTN_TABLES is ROW(backend, name, Isa, fma) for each.
#include "lib/contract/kernel_table.h"

namespace simdattn {

#define ROW(backend, name, isa, fma) extern const UKernels kKernels_##backend##_##name;
SIMDATTN_TABLES
#undef ROW

static constexpr KernelTable kList[] = {
#define ROW(backend, name, isa, fma) {Isa::isa, #backend "/" #name, &kKernels_##backend##_##name, fma},
    SIMDATTN_TABLES
#undef ROW
    {Isa::kBaseline, nullptr, nullptr, false}};  // an array of no elements is none
constinit const std::span<const KernelTable> kVectorTables(kList, std::size(kList) - 1);

}  // namespace simdattn
