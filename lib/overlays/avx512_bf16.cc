#include "lib/overlays/avx512_bf16.h"

#include "lib/overlays/avx512_bf16_kernels.h"

namespace simdattn {
namespace {

struct Vdpbf16ps {
  static Floats add(Floats sum, Words a, Words b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
  }
  static Floats fma(Floats a, Floats b, Floats c) { return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
};
using Kernels = PairKernels<Vdpbf16ps>;

}  // namespace

#define SIMDATTN_PACKING_OF(T)                                           \
  template <>                                                            \
  void Avx512Bf16::query<T>(const void* row, void* query, int64_t dim) { \
    pack_query<T>(row, query, dim);                                      \
  }                                                                      \
  template <>                                                            \
  void Avx512Bf16::keys<T>(const PackKeys& a) {                          \
    pack_keys<T>(a);                                                     \
  }                                                                      \
  template <>                                                            \
  void Avx512Bf16::panel<T>(const PackKeys& a) {                         \
    pack_panel<T>(a);                                                    \
  }                                                                      \
  template <>                                                            \
  void Avx512Bf16::values<T>(const PackValues& a) {                      \
    pack_values<T>(a);                                                   \
  }
SIMDATTN_PACKING_OF(float)
SIMDATTN_PACKING_OF(bf16)
SIMDATTN_PACKING_OF(f16)
#undef SIMDATTN_PACKING_OF

void Avx512Bf16::score_packed(const ScoreTile& a) { Kernels::scores<Packed>(a); }
void Avx512Bf16::score_tile(const ScoreTile& a) { Kernels::scores<Panels>(a); }
void Avx512Bf16::value_packed(const ValueTile& a) { Kernels::values_packed(a); }
void Avx512Bf16::value_tile(const ValueTile& a) { Kernels::values_in_rows(a); }

}  // namespace simdattn
