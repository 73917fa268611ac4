// Batches as blocks of 128 bits, and squares transposed within them.
#ifndef SIMDATTN_LIB_SIMD_BLOCKS_H_
#define SIMDATTN_LIB_SIMD_BLOCKS_H_

#include "lib/simd/native.h"

namespace simdattn {
namespace {

/// Interleaves the lower (upper) halves of every block, unit by unit. Fixed-length SVE transposes nothing in whole batches.
struct Blocks {
  template <class Unit>
  static SIMDATTN_INLINE Floats low(Floats a, Floats b) {
    if constexpr (sizeof(Unit) == 8) {
      return zip_lo_pairs(a, b);
    } else if constexpr (sizeof(Unit) == 2) {
      return zip_lo_words(a, b);
    } else {
      return zip_lo_blocks(a, b);
    }
  }
  template <class Unit>
  static SIMDATTN_INLINE Floats high(Floats a, Floats b) {
    if constexpr (sizeof(Unit) == 8) {
      return zip_hi_pairs(a, b);
    } else if constexpr (sizeof(Unit) == 2) {
      return zip_hi_words(a, b);
    } else {
      return zip_hi_blocks(a, b);
    }
  }
};

/// store(k + i, v) of four vectors whose units lie two, then four rows apart.
template <class O, class V, class Store>
SIMDATTN_INLINE void store_four(int64_t k, V r0, V r1, V r2, V r3, const Store& store) {
  const V a = O::template low<uint32_t>(r0, r1), b = O::template low<uint32_t>(r2, r3);
  const V c = O::template high<uint32_t>(r0, r1), d = O::template high<uint32_t>(r2, r3);
  store(k, O::template low<uint64_t>(a, b));
  store(k + 1, O::template high<uint64_t>(a, b));
  store(k + 2, O::template low<uint64_t>(c, d));
  store(k + 3, O::template high<uint64_t>(c, d));
}
/// store(k, v): units k of the rows load(0), load(1), ...
template <class O, class Load, class Store>
SIMDATTN_INLINE void transpose_blocks(const Load& load, const Store& store, uint32_t /*unit*/) {
  store_four<O>(0, load(0), load(1), load(2), load(3), store);
}
template <class O, class Load, class Store>
SIMDATTN_INLINE void transpose_blocks(const Load& load, const Store& store, uint16_t /*unit*/) {
  const auto r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
  const auto r4 = load(4), r5 = load(5), r6 = load(6), r7 = load(7);
  store_four<O>(0, O::template low<uint16_t>(r0, r1), O::template low<uint16_t>(r2, r3),
                O::template low<uint16_t>(r4, r5), O::template low<uint16_t>(r6, r7), store);
  store_four<O>(4, O::template high<uint16_t>(r0, r1), O::template high<uint16_t>(r2, r3),
                O::template high<uint16_t>(r4, r5), O::template high<uint16_t>(r6, r7), store);
}

#if SIMDATTN_SVE
/// Interleaves the partial sums of kKeys keys, kLanes / kKeys apart, folding them to kLanes / kKeys each: zip_lo takes
/// the lower half of them and zip_hi the upper.
template <int64_t kKeys>
SIMDATTN_INLINE Floats folded(const float* sums) {
  if constexpr (kKeys == 1) {
    return Floats::load_unaligned(sums);
  } else {
    const Floats even = folded<kKeys / 2>(sums);
    const Floats odd = folded<kKeys / 2>(sums + kLanes / kKeys * kLanes);
    return zip_lower(even, odd) + zip_upper(even, odd);
  }
}
SIMDATTN_INLINE Floats fold_keys(const float* sums) { return folded<kLanes>(sums); }
#else
/// The kLanes partial sums of keys 4 b + i, folded to 4 in block b.
template <int64_t kSums = kLanes>
SIMDATTN_INLINE Floats sums_in_blocks(const float* sums, int64_t i) {
  if constexpr (kSums == 16) {
    const auto to_eight = [&](int64_t key) SIMDATTN_LAMBDA {
      const Floats a = Floats::load_unaligned(sums + 16 * key), b = Floats::load_unaligned(sums + 16 * (key + 4));
      return lanes_from<float>(a, b, [](size_t k) { return k + (k < 8 ? 0 : 8); }) +
             lanes_from<float>(a, b, [](size_t k) { return k + (k < 8 ? 8 : 16); });
    };
    const Floats a = to_eight(i), b = to_eight(i + 8);
    return lanes_from<float>(a, b, [](size_t k) { return k + k / 4 * 4; }) +
           lanes_from<float>(a, b, [](size_t k) { return k + k / 4 * 4 + 4; });
  } else if constexpr (kSums == 8) {
    return load_blocks(sums + 8 * i, 8) + load_blocks(sums + 8 * i + 4, 8);
  } else {
    return Floats::load_unaligned(sums + 4 * i);
  }
}

/// Folds the kLanes partial sums of kLanes keys: to 4 in blocks of 128 bits, then within blocks.
SIMDATTN_INLINE Floats fold_keys(const float* sums) {
  const auto two = [&](int64_t key) SIMDATTN_LAMBDA {
    const Floats a = sums_in_blocks(sums, key), b = sums_in_blocks(sums, key + 1);
    return zip_lo_blocks(a, b) + zip_hi_blocks(a, b);
  };
  const Floats a = two(0), b = two(2);
  return zip_lo_pairs(a, b) + zip_hi_pairs(a, b);
}
#endif

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_BLOCKS_H_
