// Keys in rows, transposed in registers: lanes become keys.
#ifndef SIMDATTN_LIB_HIGHWAY_KEY_ROWS_H_
#define SIMDATTN_LIB_HIGHWAY_KEY_ROWS_H_

#include <type_traits>

#include "hwy/highway.h"
#include "lib/highway/blocks.h"
#include "lib/highway/register_tile.h"

namespace simdattn {
namespace {

/// Keys are transposed in blocks of 128 bits: vector k of a group holds elements of keys k, k + group, ... in its blocks; a
/// transposition within blocks leaves the keys of one dimension in order. Blocks are put together while loading, which
/// halves the work of a transposition of whole vectors. Scalable vectors have no such loads and take one block.
using PackTag = TileTag;

/// Fetches what kCount rows, 32 below these, hold of dimensions i on: a quarter of them with each 128 bits of a line.
template <int64_t kCount, class T>
HWY_INLINE void PrefetchNext(const T* rows, int64_t stride, int64_t i) {
  constexpr int64_t kLine = 64 / sizeof(T);
  constexpr int64_t kQuarter = kCount / 4;
  const int64_t first = kPanelWidth + i % kLine / (kLine / 4) * kQuarter;
  const uintptr_t line = address_at(rows, first * stride + i / kLine * kLine);
#pragma GCC unroll 8
  for (uintptr_t r = 0; r < kQuarter; ++r) {
    __builtin_prefetch(reinterpret_cast<const char*>(line + r * static_cast<uintptr_t>(stride) * sizeof(T)), 0, 2);
  }
}

/// Rows of T below each other, a block of each group.
template <class D, class T>
struct RowBlocks {
  static constexpr int64_t kGroup = 16 / sizeof(hn::TFromD<D>);
  const T* p;
  int64_t stride;
  HWY_INLINE hn::Vec<D> operator()(int64_t k) const {
    return LoadBlocks<kGroup>(D(), reinterpret_cast<const char*>(p + k * stride),
                              stride * static_cast<int64_t>(sizeof(T)));
  }
};

/// f(0, v), ... f(3, v): lanes of 32 bits at p, numbers or pairs of bf16, of as many keys as v has lanes.
template <class T, class F>
HWY_INLINE void FourLanes(const T* p, int64_t stride, const F& f) {
  transpose_blocks<Blocks>(RowBlocks<PackTag, T>{p, stride}, f, uint32_t());
}

/// f(k, low, high) for dimensions k = 0 .. 7 at p: of two vectors of keys, as the conversion of f16 needs them side by side.
template <class F>
HWY_INLINE void EightHalves(const f16* p, int64_t stride, const F& f) {
  using Halves = hn::Repartition<uint16_t, PackTag>;
  const PackTag d;
  const hn::Half<Halves> half;
  const auto give = [&](int64_t k, hn::Vec<Halves> v) SIMDATTN_LAMBDA {
    f(k, F32FromF16(d, hn::LowerHalf(half, v)), F32FromF16(d, hn::UpperHalf(half, v)));
  };
  transpose_blocks<Blocks>(RowBlocks<Halves, f16>{p, stride}, give, uint16_t());
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_KEY_ROWS_H_
