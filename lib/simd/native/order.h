// Order of lanes by the shuffles of gcc and clang, for vectors of any length: for targets whose instructions have no better way. A file of
// native/ includes it.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_ORDER_H_
#define SIMDATTN_LIB_SIMD_NATIVE_ORDER_H_

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

/// Lane i of the result is lane f(i) of a and b, one behind the other.
template <class V, class F>
SIMDATTN_INLINE V lanes_from(V a, V b, const F& /*f*/) {
  return [&]<size_t... kLane>(std::index_sequence<kLane...>) SIMDATTN_LAMBDA {
    return V(static_cast<typename V::register_type>(__builtin_shufflevector(a.data, b.data, F()(kLane)...)));
  }(std::make_index_sequence<V::size>());
}

/// Interleaves the lower (kUpper: upper) halves of every block of a and b, by kUnit lanes of T.
template <class T, size_t kUnit, bool kUpper>
SIMDATTN_INLINE Floats zip_blocks(Floats a, Floats b) {
  return cast_bits<float>(lanes_from(cast_bits<T>(a), cast_bits<T>(b), [](size_t i) {
    constexpr size_t kBlock = 16 / sizeof(T);
    const size_t unit = i % kBlock / kUnit;
    const size_t from = i / kBlock * kBlock + (kUpper ? kBlock / 2 : 0) + unit / 2 * kUnit + i % kUnit;
    return unit % 2 == 0 ? from : Batch<T>::size + from;
  }));
}
SIMDATTN_INLINE Floats zip_lo_words(Floats a, Floats b) { return zip_blocks<uint16_t, 1, false>(a, b); }
SIMDATTN_INLINE Floats zip_hi_words(Floats a, Floats b) { return zip_blocks<uint16_t, 1, true>(a, b); }
SIMDATTN_INLINE Floats zip_lo_blocks(Floats a, Floats b) { return zip_blocks<uint32_t, 1, false>(a, b); }
SIMDATTN_INLINE Floats zip_hi_blocks(Floats a, Floats b) { return zip_blocks<uint32_t, 1, true>(a, b); }
SIMDATTN_INLINE Floats zip_lo_pairs(Floats a, Floats b) { return zip_blocks<uint32_t, 2, false>(a, b); }
SIMDATTN_INLINE Floats zip_hi_pairs(Floats a, Floats b) { return zip_blocks<uint32_t, 2, true>(a, b); }

SIMDATTN_INLINE Floats even_lanes(Floats a, Floats b) {
  return lanes_from(a, b, [](size_t i) { return 2 * i; });
}
SIMDATTN_INLINE Floats odd_lanes(Floats a, Floats b) {
  return lanes_from(a, b, [](size_t i) { return 2 * i + 1; });
}
SIMDATTN_INLINE Floats zip_lower(Floats a, Floats b) {
  return lanes_from(a, b, [](size_t i) { return i / 2 + i % 2 * Floats::size; });
}
SIMDATTN_INLINE Floats zip_upper(Floats a, Floats b) {
  return lanes_from(a, b, [](size_t i) { return i / 2 + i % 2 * Floats::size + Floats::size / 2; });
}
SIMDATTN_INLINE Floats even_twice(Floats v) {
  return lanes_from(v, v, [](size_t i) { return i / 2 * 2; });
}
SIMDATTN_INLINE Floats odd_twice(Floats v) {
  return lanes_from(v, v, [](size_t i) { return i / 2 * 2 + 1; });
}
/// Lane i of the result is lane i ^ kHalf.
template <int64_t kHalf>
SIMDATTN_INLINE Floats swap_lanes(Floats v) {
  return lanes_from(v, v, [](size_t i) { return i ^ static_cast<size_t>(kHalf); });
}
template <class Op>
SIMDATTN_INLINE float fold_lanes(Floats v, const Op& op) {
  unroll<4>([&](auto i) SIMDATTN_LAMBDA {
    constexpr int64_t kHalf = 8 >> i;
    if constexpr (kHalf < kLanes) v = op(v, swap_lanes<kHalf>(v));
  });
  return v.data[0];
}

/// The lower (upper) words of the lanes of e and of o, side by side: e's, o's, e's, ...
SIMDATTN_INLINE Bits16 lower_words(Bits32 e, Bits32 o) {
  return lanes_from(cast_bits<uint16_t>(e), cast_bits<uint16_t>(o),
                    [](size_t i) { return i % 2 == 0 ? i : Bits16::size + i - 1; });
}
SIMDATTN_INLINE Bits16 upper_words(Bits32 e, Bits32 o) {
  return lanes_from(cast_bits<uint16_t>(e), cast_bits<uint16_t>(o),
                    [](size_t i) { return i % 2 == 0 ? i + 1 : Bits16::size + i; });
}
/// upper without its last bit where lower is 0.
SIMDATTN_INLINE Bits16 ties_to_even(Bits16 upper, Bits16 lower) {
  using V = Bits16::register_type;
  const V zero = Bits16(uint16_t{0}), one = Bits16(uint16_t{1});
  return static_cast<V>(upper.data & ~(reinterpret_cast<V>(lower.data == zero) & one));
}
/// Two vectors without NaN, one behind the other, rounded to nearest even.
SIMDATTN_INLINE void store_numbers(Bits32 b0, Bits32 b1, bf16* p) {
  const Bits16 w0 = cast_bits<uint16_t>(b0), w1 = cast_bits<uint16_t>(b1);
  const Bits16 lower = lanes_from(w0, w1, [](size_t i) { return 2 * i; });
  const Bits16 upper = lanes_from(w0, w1, [](size_t i) { return 2 * i + 1; });
  ties_to_even(upper, lower).store_unaligned(reinterpret_cast<uint16_t*>(p));
}
/// Bytes 0 and 2 (1 and 3) of each lane as numbers of 16 bits.
SIMDATTN_INLINE Ints even_bytes(Ints v) { return (((v << 24) >> 24) & Ints(0xFFFF)) | (((v << 8) >> 24) << 16); }
SIMDATTN_INLINE Ints odd_bytes(Ints v) { return even_bytes(v >> 8); }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_NATIVE_ORDER_H_
