// VDPBF16PS in software, and the kernels of lib/overlays/avx512_bf16_kernels.h over it: what lets any CPU with AVX2
// test their text.
#pragma once

#include "dispatch/target.h"
#include "lib/contract/ukernels.h"

namespace simdattn::test {

/// "test/software_pairs": the definition, but for kBF16. Null: this CPU lacks AVX2.
const Target* software_pairs();

/// sum[16] += a[16][2] * b[16][2], the second products first: in software, and by the instruction.
void software_vdpbf16ps(const void* a, const void* b, float* sum);
void hardware_vdpbf16ps(const void* a, const void* b, float* sum);

}  // namespace simdattn::test
