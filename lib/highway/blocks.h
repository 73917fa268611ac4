// Vectors as blocks of 128 bits: each from a row of its own, and squares transposed within them.
#ifndef SIMDATTN_LIB_HIGHWAY_BLOCKS_H_
#define SIMDATTN_LIB_HIGHWAY_BLOCKS_H_

#include "hwy/highway.h"
#include "lib/highway/target.h"

namespace simdattn {
namespace {
/// What squares-inl.h asks of a backend, for every type of vector.
struct Blocks {
  template <class Unit, class V>
  static HWY_INLINE V low(V a, V b) {
    const hn::DFromV<V> d;
    const hn::Repartition<Unit, hn::DFromV<V>> units;
    return hn::BitCast(d, hn::InterleaveLower(units, hn::BitCast(units, a), hn::BitCast(units, b)));
  }
  template <class Unit, class V>
  static HWY_INLINE V high(V a, V b) {
    const hn::DFromV<V> d;
    const hn::Repartition<Unit, hn::DFromV<V>> units;
    return hn::BitCast(d, hn::InterleaveUpper(units, hn::BitCast(units, a), hn::BitCast(units, b)));
  }
};

/// Block b of the result is what lies kGroup b rows below p. Strides are bytes.
template <int64_t kGroup, class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const char* p, int64_t stride) {
  constexpr int64_t kBytes = static_cast<int64_t>(HWY_MAX_LANES_D(D) * sizeof(hn::TFromD<D>));
  if constexpr (kBytes > 16) {
    const hn::Half<D> half;
    constexpr int64_t kRows = kBytes / 32 * kGroup;
    return hn::Combine(d, LoadBlocks<kGroup>(half, p + kRows * stride, stride), LoadBlocks<kGroup>(half, p, stride));
  } else {
    return hn::BitCast(d, hn::LoadU(hn::Repartition<uint8_t, D>(), reinterpret_cast<const uint8_t*>(p)));
  }
}
template <int64_t kGroup, class D>
HWY_INLINE void StoreBlocks(D /*d*/, hn::Vec<D> v, char* p, int64_t stride) {
  constexpr int64_t kBytes = static_cast<int64_t>(HWY_MAX_LANES_D(D) * sizeof(hn::TFromD<D>));
  if constexpr (kBytes > 16) {
    const hn::Half<D> half;
    constexpr int64_t kRows = kBytes / 32 * kGroup;
    StoreBlocks<kGroup>(half, hn::LowerHalf(half, v), p, stride);
    StoreBlocks<kGroup>(half, hn::UpperHalf(half, v), p + kRows * stride, stride);
  } else {
    const hn::Repartition<uint8_t, D> bytes;
    hn::StoreU(hn::BitCast(bytes, v), bytes, reinterpret_cast<uint8_t*>(p));
  }
}

#include "lib/squares-inl.h"

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_BLOCKS_H_
