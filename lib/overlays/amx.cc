// The slots of AMX.
#include "lib/overlays/amx.h"

#include "lib/overlays/amx_kernels.h"

namespace simdattn {

using Kernels = AmxKernels<HardwareTiles>;

void AmxBf16::score_tile(const ScoreTile& a) { Kernels::bf16_scores(a); }
void AmxBf16::value_tile(const ValueTile& a) { Kernels::bf16_values(a); }
void AmxBf16::value_packed(const ValueTile& a) { Kernels::bf16_values_packed(a); }
void AmxBf16::begin() { Kernels::begin(); }
void AmxBf16::end() { Kernels::end(); }
void AmxInt8::score_packed(const ScoreTile& a) { Kernels::int8_scores(a); }
void AmxInt8::value_packed(const ValueTile& a) { Kernels::int8_values_packed(a); }

}  // namespace simdattn
