// Keys in rows, transposed in registers: lanes become keys.
#if defined(SIMDATTN_LIB_HIGHWAY_KEY_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SIMDATTN_LIB_HIGHWAY_KEY_ROWS_INL_H_
#undef SIMDATTN_LIB_HIGHWAY_KEY_ROWS_INL_H_
#else
#define SIMDATTN_LIB_HIGHWAY_KEY_ROWS_INL_H_
#endif

#include <type_traits>

#include "hwy/highway.h"
#include "lib/highway/register_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {
namespace {

/// Keys are transposed in blocks of 128 bits: vector k of a group holds elements of keys k, k + group, ... in its blocks; a
/// transposition within blocks leaves the keys of one dimension in order. Blocks are put together while loading, which
/// halves the work of a transposition of whole vectors. Scalable vectors have no such loads and take one block.
#if HWY_HAVE_SCALABLE
using PackTag = hn::CappedTag<float, 4>;
#else
using PackTag = TileTag;
#endif

/// Block b of the result is the first elements of row kPitch b.
template <int64_t kPitch, class D, class T>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const T* p, int64_t stride) {
  constexpr size_t kBytes = HWY_MAX_LANES_D(D) * sizeof(hn::TFromD<D>);
  if constexpr (kBytes > 16) {
    const hn::Half<D> half;
    constexpr int64_t kRows = static_cast<int64_t>(kBytes) / 32 * kPitch;
    return hn::Combine(d, LoadBlocks<kPitch>(half, p + kRows * stride, stride), LoadBlocks<kPitch>(half, p, stride));
  } else if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(d, p);
  } else {
    return hn::BitCast(d, hn::LoadU(hn::Repartition<uint16_t, D>(), Bits(p)));
  }
}

/// a and b interleaved in each block by elements of type T: the lower and the upper halves.
template <class T, class D>
HWY_INLINE hn::Vec<D> Lower(D d, hn::Vec<D> a, hn::Vec<D> b) {
  const hn::Repartition<T, D> dt;
  return hn::BitCast(d, hn::InterleaveLower(dt, hn::BitCast(dt, a), hn::BitCast(dt, b)));
}
template <class T, class D>
HWY_INLINE hn::Vec<D> Upper(D d, hn::Vec<D> a, hn::Vec<D> b) {
  const hn::Repartition<T, D> dt;
  return hn::BitCast(d, hn::InterleaveUpper(dt, hn::BitCast(dt, a), hn::BitCast(dt, b)));
}

/// Fetches what kCount rows, 32 below these, hold of dimensions i on: a quarter of them with each 128 bits of a line.
template <int64_t kCount, class T>
HWY_INLINE void PrefetchNext(const T* rows, int64_t stride, int64_t i) {
  constexpr int64_t kLine = 64 / sizeof(T);
  constexpr int64_t kQuarter = kCount / 4;
  const int64_t first = kPanelWidth + i % kLine / (kLine / 4) * kQuarter;
  const uintptr_t line = address_at(rows, first * stride + i / kLine * kLine);
  for (uintptr_t r = 0; r < kQuarter; ++r) {
    __builtin_prefetch(reinterpret_cast<const char*>(line + r * static_cast<uintptr_t>(stride) * sizeof(T)), 0, 2);
  }
}

/// f(0, v), ... f(3, v): lanes of 32 bits at p, numbers or pairs of bf16, of as many keys as v has lanes.
template <class T, class F>
HWY_INLINE void FourLanes(PackTag d, const T* p, int64_t stride, const F& f) {
  const auto r0 = LoadBlocks<4>(d, p, stride);
  const auto r1 = LoadBlocks<4>(d, p + stride, stride);
  const auto r2 = LoadBlocks<4>(d, p + 2 * stride, stride);
  const auto r3 = LoadBlocks<4>(d, p + 3 * stride, stride);
  const auto t0 = Lower<uint32_t>(d, r0, r1);
  const auto t1 = Lower<uint32_t>(d, r2, r3);
  const auto t2 = Upper<uint32_t>(d, r0, r1);
  const auto t3 = Upper<uint32_t>(d, r2, r3);
  f(std::integral_constant<int64_t, 0>(), Lower<uint64_t>(d, t0, t1));
  f(std::integral_constant<int64_t, 1>(), Upper<uint64_t>(d, t0, t1));
  f(std::integral_constant<int64_t, 2>(), Lower<uint64_t>(d, t2, t3));
  f(std::integral_constant<int64_t, 3>(), Upper<uint64_t>(d, t2, t3));
}

#if !HWY_HAVE_SCALABLE
/// f(k, low, high) for dimensions k = 0 .. 7 at p: of two vectors of keys, as the conversion of f16 needs them side by side.
template <class F>
HWY_INLINE void EightHalves(PackTag d, const f16* p, int64_t stride, const F& f) {
  const hn::Repartition<uint16_t, PackTag> d16;
  const hn::Half<decltype(d16)> half;
  const auto row = [&](int64_t k) SIMDATTN_LAMBDA { return LoadBlocks<8>(d16, p + k * stride, stride); };
  const auto r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3), r4 = row(4), r5 = row(5), r6 = row(6), r7 = row(7);
  const auto give = [&](auto k, auto v) SIMDATTN_LAMBDA {
    f(k, F32FromF16(d, hn::LowerHalf(half, v)), F32FromF16(d, hn::UpperHalf(half, v)));
  };
  // Dimensions k to k + 3 of the eight; the halves of the first interleaving hold four each.
  const auto four = [&](auto k, auto a, auto b, auto c, auto e) SIMDATTN_LAMBDA {
    const auto t0 = Lower<uint32_t>(d16, a, b);
    const auto t1 = Lower<uint32_t>(d16, c, e);
    const auto t2 = Upper<uint32_t>(d16, a, b);
    const auto t3 = Upper<uint32_t>(d16, c, e);
    give(k, Lower<uint64_t>(d16, t0, t1));
    give(std::integral_constant<int64_t, k + 1>(), Upper<uint64_t>(d16, t0, t1));
    give(std::integral_constant<int64_t, k + 2>(), Lower<uint64_t>(d16, t2, t3));
    give(std::integral_constant<int64_t, k + 3>(), Upper<uint64_t>(d16, t2, t3));
  };
  four(std::integral_constant<int64_t, 0>(), Lower<uint16_t>(d16, r0, r1), Lower<uint16_t>(d16, r2, r3),
       Lower<uint16_t>(d16, r4, r5), Lower<uint16_t>(d16, r6, r7));
  four(std::integral_constant<int64_t, 4>(), Upper<uint16_t>(d16, r0, r1), Upper<uint16_t>(d16, r2, r3),
       Upper<uint16_t>(d16, r4, r5), Upper<uint16_t>(d16, r6, r7));
}
#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();

#endif  // toggle guard
