// kBF16 by emulation: the chains of lib/bf16_tiles-inl.h in Highway's vectors, and its rounding.
#ifndef SIMDATTN_LIB_HIGHWAY_BF16_ATTENTION_H_
#define SIMDATTN_LIB_HIGHWAY_BF16_ATTENTION_H_

#include <type_traits>

#include "hwy/highway.h"
#include "lib/flush_subnormals.h"
#include "lib/highway/register_tile.h"

namespace simdattn {
namespace {

#define SIMDATTN_TILE_INLINE HWY_INLINE
#define SIMDATTN_TILE_FUNCTION HWY_NOINLINE
#define SIMDATTN_TILE_LAMBDA SIMDATTN_LAMBDA

template <int64_t kCount, class F, int64_t... kIndices>
HWY_INLINE void unroll(const F& f, std::integer_sequence<int64_t, kIndices...>) {
  (f(std::integral_constant<int64_t, kIndices>()), ...);
}
template <int64_t kCount, class F>
HWY_INLINE void unroll(const F& f) {
  unroll<kCount>(f, std::make_integer_sequence<int64_t, kCount>());
}
template <int64_t kMax, class F>
HWY_INLINE void with_rows(int64_t rows, const F& f) {
  unroll<kMax>([&](auto r) SIMDATTN_LAMBDA {
    if (rows == r + 1) f(std::integral_constant<int64_t, r + 1>());
  });
}

struct Ops {
  using Vec = TileVec;
#if HWY_ARCH_ARM_A64
  static constexpr int64_t kRegisters = 32, kRows = 3, kWideRows = 3;
#elif HWY_TARGET <= HWY_AVX3
  static constexpr int64_t kRegisters = 32, kRows = 4, kWideRows = 2;
#elif HWY_TARGET == HWY_AVX2
  static constexpr int64_t kRegisters = 16, kRows = 3, kWideRows = 1;
#else  // a product takes a register of its own
  static constexpr int64_t kRegisters = 16, kRows = 2, kWideRows = 1;
#endif
  static constexpr int64_t kMostLanes = static_cast<int64_t>(hn::MaxLanes(TileTag()));
  static HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(TileTag())); }
  static HWY_INLINE Vec load(const float* p) { return hn::LoadU(TileTag(), p); }
  static HWY_INLINE void store(Vec v, float* p) { hn::StoreU(v, TileTag(), p); }
  static HWY_INLINE Vec zero() { return hn::Zero(TileTag()); }
  static HWY_INLINE Vec broadcast(const float* p) { return hn::Set(TileTag(), *p); }
  static HWY_INLINE Vec add(Vec a, Vec b) { return hn::Add(a, b); }
  static HWY_INLINE Vec mul_add(Vec a, Vec b, Vec c) { return hn::MulAdd(a, b, c); }
  static HWY_INLINE Vec rounded(Vec v) { return RoundedToBF16(TileTag(), v); }
  static HWY_INLINE Vec load_pairs(const bf16* p) { return LoadPairs(TileTag(), p); }
  static HWY_INLINE Vec even_of(Vec pairs) { return EvenOf(TileTag(), pairs); }
  static HWY_INLINE Vec odd_of(Vec pairs) { return OddOf(TileTag(), pairs); }
  static constexpr bool kMultipliesPairs = false;
  static Vec mul_add_even(Vec, Vec, Vec);  // never called
  static Vec mul_add_odd(Vec, Vec, Vec);
  static HWY_INLINE Vec zip_lower(Vec a, Vec b) { return hn::InterleaveWholeLower(TileTag(), a, b); }
  static HWY_INLINE Vec zip_upper(Vec a, Vec b) { return hn::InterleaveWholeUpper(TileTag(), a, b); }
  template <class T>
  static HWY_INLINE const T* hide(const T* p) {
    __asm__("" : "+r"(p));
    return p;
  }
  template <class F>
  static HWY_INLINE void with_registers(const F& f) {
    WithRegisters(TileTag(),
                  [&](const Accumulators& chains, const Columns& columns) SIMDATTN_LAMBDA { f(chains, columns); });
  }
  template <int64_t kIndex, class Set>
  static HWY_INLINE Vec& at(const Set& set) {
    return Get<static_cast<size_t>(kIndex)>(set);
  }
};

namespace widened {
#include "lib/bf16_tiles-inl.h"
}

#if SIMDATTN_ARM_MATRIX
namespace pairs {
using Widening = simdattn::Ops;
/// BFMLALB, BFMLALT. Of a broadcast f32, which is a number of bf16, the upper half is element 1.
struct Ops : Widening {
  static constexpr bool kMultipliesPairs = true;
  static HWY_INLINE Vec mul_add_even(Vec factor, Vec columns, Vec sum) {
#if HWY_TARGET_IS_SVE
    __asm__(SIMDATTN_ARM_V8_6 "bfmlalb %0.s, %1.h, %2.h[1]" : "+w"(sum) : "w"(columns), "y"(factor));
#else
    __asm__(SIMDATTN_ARM_V8_6 "bfmlalb %0.4s, %1.8h, %2.h[1]" : "+w"(sum.raw) : "w"(columns.raw), "x"(factor.raw));
#endif
    return sum;
  }
  static HWY_INLINE Vec mul_add_odd(Vec factor, Vec columns, Vec sum) {
#if HWY_TARGET_IS_SVE
    __asm__(SIMDATTN_ARM_V8_6 "bfmlalt %0.s, %1.h, %2.h[1]" : "+w"(sum) : "w"(columns), "y"(factor));
#else
    __asm__(SIMDATTN_ARM_V8_6 "bfmlalt %0.4s, %1.8h, %2.h[1]" : "+w"(sum.raw) : "w"(columns.raw), "x"(factor.raw));
#endif
    return sum;
  }
};
#include "lib/bf16_tiles-inl.h"
}  // namespace pairs
#endif

void RoundToBF16(const float* in, float* out, int64_t n) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(RoundedToBF16(d, hn::LoadU(d, in + i)), d, out + i);
  if (i < n) {
    const size_t rest = static_cast<size_t>(n - i);
    hn::StoreN(RoundedToBF16(d, hn::LoadN(d, in + i, rest)), d, out + i, rest);
  }
}
void ScoreChainsF32(const ScoreTile& a) { widened::score_chains<float>(a); }
void ScoreChainsBF16(const ScoreTile& a) { widened::score_chains<bf16>(a); }
void ValueChainsF32(const ValueTile& a) { widened::value_chains<float>(a); }
void ValueChainsUnrounded(const ValueTile& a) { widened::value_chains<widened::Unrounded>(a); }
void ValueChainsBF16(const ValueTile& a) { widened::value_chains<bf16>(a); }
#if SIMDATTN_ARM_MATRIX
void ScorePairs(const ScoreTile& a) { pairs::score_chains<bf16>(a); }
void ValuePairs(const ValueTile& a) { pairs::value_chains<bf16>(a); }
#endif

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_BF16_ATTENTION_H_
