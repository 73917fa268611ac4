// The definition: compiled for CPUs with fused multiply-add, where there are others, and for all.
#include "lib/contract/kernel_table.h"

namespace simdattn {

extern const UKernels kScalarKernels;
#ifdef SIMDATTN_HAVE_SCALAR_FMA
extern const UKernels kScalarFmaKernels;
#endif

static constexpr KernelTable kList[] = {
#ifdef SIMDATTN_HAVE_SCALAR_FMA
    {Isa::kAvx2, "scalar", &kScalarFmaKernels, true},
#endif
    {Isa::kBaseline, "scalar", &kScalarKernels, true},
};
constinit const std::span<const KernelTable> kScalarTables = kList;

}  // namespace simdattn
