// The slots of AMX, on its tile registers.
#include "lib/overlays/amx_kernels.h"

namespace simdattn {
namespace {

/// The compilers' own intrinsics are macros that want the number of a tile as a literal, and do not say that they read
/// and write memory: hence assembly. Tile registers cannot be operands of it, so
/// every statement is volatile, or compilers would move or drop it.
struct HardwareTiles {
  static void configure(const TileConfiguration& c) { __asm__ volatile("ldtilecfg %0" : : "m"(c)); }
  static void store_configuration(TileConfiguration* c) { __asm__ volatile("sttilecfg %0" : "=m"(*c)); }
  static void release() { __asm__ volatile("tilerelease"); }

  template <int kTile>
  static void zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  static void load(const void* rows, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void store(void* rows, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(rows), "r"(stride), "i"(kTile) : "memory");
  }
  /// c += a * b. a: rows; b: columns.
  template <Numbers kNumbers, int kC, int kA, int kB>
  static void add() {
    if constexpr (kNumbers == Numbers::kBf16) {
      __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
    } else if constexpr (kNumbers == Numbers::kSigned) {
      __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
    } else {
      __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
    }
  }
};
using Kernels = AmxKernels<HardwareTiles, avx3_dl>;

}  // namespace

template struct Bf16Packing<Amx, float>;
template struct Bf16Packing<Amx, bf16>;
template struct Bf16Packing<Amx, f16>;

void Amx::score_packed(const ScoreTile& a) { Kernels::bf16_scores(a); }
void Amx::value_packed(const ValueTile& a) { Kernels::bf16_values<true>(a); }
void Amx::value_tile(const ValueTile& a) { Kernels::bf16_values<false>(a); }
void Amx::int8_score_packed(const ScoreTile& a) { Kernels::int8_scores(a); }
void Amx::int8_value_packed(const ValueTile& a) { Kernels::int8_values_packed(a); }
void Amx::softmax_tile(const SoftmaxTile& a) { simdattn::softmax_tile<true, Bf16Weights<kUnit>>(a); }
void Amx::prepare_weights(const float* in, float* out, int64_t n) { Bf16Weights<kUnit>::prepare(in, out, n); }
void Amx::begin(KeptRegisters* kept) { Kernels::begin(kept); }
void Amx::end(const KeptRegisters& kept) { Kernels::end(kept); }

}  // namespace simdattn
