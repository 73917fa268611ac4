// Batches as blocks of 128 bits, and squares transposed within them.
#ifndef SIMDATTN_LIB_SIMD_BLOCKS_H_
#define SIMDATTN_LIB_SIMD_BLOCKS_H_

#include "lib/simd/native.h"

namespace simdattn {
namespace {

// Fixed-length SVE transposes nothing in whole batches.

/// store(k + i, v) of four vectors whose units lie two, then four rows apart.
template <class Store>
SIMDATTN_INLINE void store_four(int64_t k, Floats r0, Floats r1, Floats r2, Floats r3, const Store& store) {
  const Floats a = zip_lo<uint32_t>(r0, r1), b = zip_lo<uint32_t>(r2, r3);
  const Floats c = zip_hi<uint32_t>(r0, r1), d = zip_hi<uint32_t>(r2, r3);
  store(k, zip_lo<uint64_t>(a, b));
  store(k + 1, zip_hi<uint64_t>(a, b));
  store(k + 2, zip_lo<uint64_t>(c, d));
  store(k + 3, zip_hi<uint64_t>(c, d));
}
/// store(k, v): units k, of 32 or 16 bits, of the rows load(0), load(1), ...
template <class Unit, class Load, class Store>
SIMDATTN_INLINE void transpose_blocks(const Load& load, const Store& store) {
  const Floats r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
  if constexpr (sizeof(Unit) == 4) {
    store_four(0, r0, r1, r2, r3, store);
  } else {
    const Floats r4 = load(4), r5 = load(5), r6 = load(6), r7 = load(7);
    store_four(0, zip_lo<Unit>(r0, r1), zip_lo<Unit>(r2, r3), zip_lo<Unit>(r4, r5), zip_lo<Unit>(r6, r7), store);
    store_four(4, zip_hi<Unit>(r0, r1), zip_hi<Unit>(r2, r3), zip_hi<Unit>(r4, r5), zip_hi<Unit>(r6, r7), store);
  }
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
/// Lane n: the sum of the 4 numbers in block n / 4 of quarters(n % 4).
template <class Quarters>
SIMDATTN_INLINE Floats fold_blocks(const Quarters& quarters) {
  const auto two = [&](auto i) SIMDATTN_LAMBDA {
    const Floats a = quarters(i), b = quarters(std::integral_constant<int64_t, i + 1>());
    return zip_lo<uint32_t>(a, b) + zip_hi<uint32_t>(a, b);
  };
  const Floats a = two(std::integral_constant<int64_t, 0>()), b = two(std::integral_constant<int64_t, 2>());
  return zip_lo<uint64_t>(a, b) + zip_hi<uint64_t>(a, b);
}
/// Lane n: the sum of batch(n), of 16 lanes; n is a constant.
template <class Batch>
SIMDATTN_INLINE Floats fold_batches(const Batch& batch) {
  return fold_blocks([&](auto i) SIMDATTN_LAMBDA {
    const auto to_eight = [&](auto key) SIMDATTN_LAMBDA {
      const Floats a = batch(key), b = batch(std::integral_constant<int64_t, key + 4>());
      return lower_halves(a, b) + upper_halves(a, b);
    };
    const Floats a = to_eight(i), b = to_eight(std::integral_constant<int64_t, i + 8>());
    return even_blocks(a, b) + odd_blocks(a, b);
  });
}
/// Folds the kLanes partial sums of kLanes keys: to 4 in blocks of 128 bits, then within blocks.
SIMDATTN_INLINE Floats fold_keys(const float* sums) {
  const auto batch = [&](int64_t n) SIMDATTN_LAMBDA { return Floats::load_unaligned(sums + n * kLanes); };
  if constexpr (kLanes == 16) return fold_batches(batch);
  return fold_blocks([&](int64_t i) SIMDATTN_LAMBDA {
    return kLanes == 4 ? batch(i) : load_blocks(sums + 8 * i, 8) + load_blocks(sums + 8 * i + 4, 8);
  });
}
#endif

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_BLOCKS_H_
