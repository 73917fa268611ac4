// The slots of AMX, on its tile registers.
#include "lib/overlays/amx_kernels.h"

namespace simdattn {
namespace {

/// The compilers' own intrinsics are macros that want the number of a tile as a literal, and do not say that they read
/// and write memory: hence assembly. Tile registers cannot be operands of it, so
/// every statement is volatile, or compilers would move or drop it.
struct HardwareTiles {
  static void configure(const TileConfiguration& c) { __asm__ volatile("ldtilecfg %0" : : "m"(c)); }
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
using Kernels = AmxKernels<HardwareTiles>;

}  // namespace

template struct Bf16Packing<Amx, float>;
template struct Bf16Packing<Amx, bf16>;
template struct Bf16Packing<Amx, f16>;

void Amx::score_packed(const ScoreTile& a) { Kernels::bf16_scores(a); }
void Amx::value_packed(const ValueTile& a) { Kernels::bf16_values<true>(a); }
void Amx::value_tile(const ValueTile& a) { Kernels::bf16_values<false>(a); }
void Amx::int8_score_packed(const ScoreTile& a) { Kernels::int8_scores(a); }
void Amx::int8_value_packed(const ValueTile& a) { Kernels::int8_values_packed(a); }
void Amx::begin() { Kernels::begin(); }
void Amx::end() { Kernels::end(); }

void Amx::prepare_weights(const float* in, float* out, int64_t n) {
  for (int64_t j = 0; j < n; j += kChainGroup) numbers<kUnit>(in + j, n - j).store_unaligned(out + j);
}

void Amx::narrow_weights(float* w, int64_t ldw, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r, w += ldw) {
    for (int64_t c = 0; c < columns; c += kChainGroup) {
      const Floats high = c + 16 < columns ? load(w + c + 16) : Floats(0.0f);
      arranged_upper<kUnit>(load(w + c), high).store_unaligned(w + c);
    }
  }
}

}  // namespace simdattn
