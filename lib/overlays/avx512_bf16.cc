// The slots of AVX512-BF16.
#include "lib/overlays/avx512_bf16_kernels.h"

namespace simdattn {
namespace {

struct Vdpbf16ps {
  static Floats add(Floats sum, Words a, Words b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
  static Floats fma(Floats a, Floats b, Floats c) { return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
};
using Kernels = PairKernels<Vdpbf16ps, Avx512Bf16>;

}  // namespace

template struct Bf16Packing<Avx512Bf16, float>;
template struct Bf16Packing<Avx512Bf16, bf16>;
template struct Bf16Packing<Avx512Bf16, f16>;

void Avx512Bf16::score_packed(const ScoreTile& a) { Kernels::scores<Packed>(a); }
void Avx512Bf16::score_tile(const ScoreTile& a) { Kernels::scores<Panels>(a); }
void Avx512Bf16::value_packed(const ValueTile& a) { Kernels::values_packed(a); }
void Avx512Bf16::value_tile(const ValueTile& a) { Kernels::values_in_rows(a); }

}  // namespace simdattn
