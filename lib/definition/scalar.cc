// The target "scalar": the definition as a table.
//
// On x86 this file is compiled twice: for the baseline CPU, where fma is a library call, and with the FMA
// instructions on (SIMDATTN_SCALAR_FMA), so that "scalar" is an honest yardstick on CPUs that have them. Both give the
// same bits. Auto-vectorisation is off in both.
#include "dispatch/target.h"
#include "lib/definition/narrow.h"
#include "lib/definition/slots.h"
#include "lib/definition/state.h"

#include "lib/contract/table_of_kernels.h"  // behind the slots, which it names

namespace simdattn {

constexpr UKernels kDefinition =
    with_narrow_types<Narrow>(table_of(f32_attention<softmax_tile<F32Arithmetic>>(4), bf16_attention<Bf16Chains>(4),
                                       int8_attention<Int8Integers>(false, 4, softmax_tile<F32Arithmetic>)));

extern const UKernels kScalarFmaKernels;
#ifdef SIMDATTN_SCALAR_FMA
constinit const UKernels kScalarFmaKernels = kDefinition;
#else
extern const UKernels kScalarKernels;
constinit const UKernels kScalarKernels = kDefinition;
static constexpr KernelTable kList[] = {
#ifdef SIMDATTN_HAVE_SCALAR_FMA
    {Isa::kAvx2, "scalar", &kScalarFmaKernels, true},
#endif
    {Isa::kBaseline, "scalar", &kScalarKernels, true},
};
constinit const std::span<const KernelTable> kScalarTables = kList;
#endif

}  // namespace simdattn
