// The list of the targets that are compiled in, apart from scalar. The build writes it, because it alone knows which
// were asked for: SIMDATTN_TABLES is a row for each, as
//   ROW(highway, avx3_dl, kAvx3Dl, true) ROW(highway, avx3, kAvx3, true) ROW(highway, avx2, kAvx2, true)
// with the backend, the name, the instruction set of dispatch/cpu.h, and whether it has fused multiply-add.
#include "dispatch/target.h"

#include <iterator>

namespace simdattn {

#define ROW(backend, name, isa, fma) extern const UKernels kKernels_##backend##_##name;
SIMDATTN_TABLES
#undef ROW

static constexpr KernelTable kList[] = {
#define ROW(backend, name, isa, fma) {Isa::isa, #backend "/" #name, &kKernels_##backend##_##name, fma},
    SIMDATTN_TABLES
#undef ROW
    {Isa::kBaseline, nullptr, nullptr, false}};  // an array of no elements is none
// The definition has one more, scalar.
static_assert(std::size(kList) <= kMaxTargets, "raise kMaxTargets of dispatch/target.h");

constinit const std::span<const KernelTable> kVectorTables(kList, std::size(kList) - 1);

}  // namespace simdattn
