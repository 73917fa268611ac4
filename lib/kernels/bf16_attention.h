// kBF16 by emulation: the chains of lib/bf16_tiles-inl.h in the vocabulary.
#ifndef SIMDATTN_LIB_KERNELS_BF16_ATTENTION_H_
#define SIMDATTN_LIB_KERNELS_BF16_ATTENTION_H_

#include "lib/flush_subnormals.h"
#include "lib/kernels/register_tile.h"
#include "lib/kernels/softmax_tile.h"
#include "lib/scalar/flushed.h"

namespace simdattn {
namespace {

struct Ops {
  using Vec = Floats;
  static constexpr int64_t kRegisters = simdattn::kRegisters;
  // Without fused multiply-add a product takes a register of its own.
  static constexpr int64_t kRows = kAvx512 ? 4 : kTileRows / 2;
  static constexpr int64_t kWideRows = kAvx512 ? 2 : kRegisters == 32 ? 3 : 1;
  static constexpr int64_t kMostLanes = kLanes;
  static constexpr int64_t lanes() { return kLanes; }
  static SIMDATTN_INLINE Vec load(const float* p) { return simdattn::load(p); }
  static SIMDATTN_INLINE void store(Vec v, float* p) { simdattn::store(v, p); }
  static SIMDATTN_INLINE Vec zero() { return Vec(0.0f); }
  static SIMDATTN_INLINE Vec broadcast(const float* p) { return Vec(*p); }
  static SIMDATTN_INLINE Vec add(Vec a, Vec b) {
    if constexpr (FlushSubnormals::kByControlWord) return a + b;
    return lane_by_lane(a, b, b, [](float x, float y, float) { return scalar::flushed_add(x, y); });
  }
  static SIMDATTN_INLINE Vec mul_add(Vec a, Vec b, Vec c) {
    if constexpr (FlushSubnormals::kByControlWord) return simdattn::mul_add(a, b, c);
    return lane_by_lane(a, b, c, scalar::flushed_fma);
  }
  template <class F>
  static Vec lane_by_lane(Vec a, Vec b, Vec c, const F& f) {
    float x[kLanes], y[kLanes], z[kLanes];
    simdattn::store(a, x), simdattn::store(b, y), simdattn::store(c, z);
    for (int64_t i = 0; i < kLanes; ++i) x[i] = f(x[i], y[i], z[i]);
    return simdattn::load(x);
  }
  static SIMDATTN_INLINE Vec rounded(Vec v) { return rounded_to_bf16(v); }
  static SIMDATTN_INLINE Bits32 load_pairs(const bf16* p) { return simdattn::load_pairs(p); }
  static SIMDATTN_INLINE Vec even_of(Bits32 pairs) { return simdattn::even_of(pairs); }
  static SIMDATTN_INLINE Vec odd_of(Bits32 pairs) { return simdattn::odd_of(pairs); }
  static constexpr bool kMultipliesPairs = false;
  static Vec mul_add_even(Vec, Vec, Vec);  // never called
  static Vec mul_add_odd(Vec, Vec, Vec);
  static SIMDATTN_INLINE Vec zip_lower(Vec a, Vec b) { return simdattn::zip_lower(a, b); }
  static SIMDATTN_INLINE Vec zip_upper(Vec a, Vec b) { return simdattn::zip_upper(a, b); }
  template <class T>
  static SIMDATTN_INLINE const T* hide(const T* p) {
    asm("" : "+r"(p));
    return p;
  }
  template <class F>
  static SIMDATTN_INLINE void with_registers(const F& f) {
    Registers<24> chains;
    Registers<8> columns;
    f(chains, columns);
  }
  template <int64_t kIndex, class Set>
  static SIMDATTN_INLINE Vec& at(Set& set) {
    return reg<kIndex>(set);
  }
};

#define SIMDATTN_TILE_INLINE SIMDATTN_INLINE
#define SIMDATTN_TILE_FUNCTION __attribute__((noinline))
#define SIMDATTN_TILE_LAMBDA SIMDATTN_LAMBDA
namespace widened {
#include "lib/bf16_tiles-inl.h"
}
#undef SIMDATTN_TILE_INLINE
#undef SIMDATTN_TILE_FUNCTION
#undef SIMDATTN_TILE_LAMBDA

struct Bf16Kernels {
  static void round(const float* in, float* out, int64_t n) {
    for_each_batch(
        n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store(rounded_to_bf16(load(in + i, part)), out + i, part); });
  }
  static constexpr auto score_tile = widened::score_chains<float>;
  static constexpr auto score_tile_bf16 = widened::score_chains<bf16>;
  static constexpr auto value_tile = widened::value_chains<float>;
  static constexpr auto value_tile_f32 = widened::value_chains<widened::Unrounded>;
  static constexpr auto value_tile_bf16 = widened::value_chains<bf16>;
  static constexpr auto softmax_tile = simdattn::softmax_tile<true>;
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_BF16_ATTENTION_H_
