// The slots of AVX512-BF16.
#include "lib/overlays/avx512_bf16_kernels.h"

namespace simdattn {
namespace {

struct Vdpbf16ps {
  static SIMDATTN_INLINE Floats add(Floats sum, Bits32 a, Bits32 b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)(__m512i)a, (__m512bh)(__m512i)b);
  }
};
using Kernels = PairKernels<Vdpbf16ps, Avx512Bf16>;

}  // namespace

template struct Bf16Packing<Avx512Bf16, float>;
template struct Bf16Packing<Avx512Bf16, bf16>;
template struct Bf16Packing<Avx512Bf16, f16>;

void Avx512Bf16::score_packed(const ScoreTile& a) { Kernels::scores<Packed>(a); }
void Avx512Bf16::score_tile(const ScoreTile& a) { Kernels::scores<Panels>(a); }
void Avx512Bf16::score_rows(const ScoreTile& a) { Kernels::score_rows(a); }
void Avx512Bf16::value_packed(const ValueTile& a) { Kernels::values<true>(a); }
void Avx512Bf16::value_tile(const ValueTile& a) { Kernels::values<false>(a); }
void Avx512Bf16::softmax_tile(const SoftmaxTile& a) { simdattn::softmax_tile<true, Bf16Weights<kUnit>>(a); }
void Avx512Bf16::prepare_weights(const float* in, float* out, int64_t n) { Bf16Weights<kUnit>::prepare(in, out, n); }

}  // namespace simdattn
