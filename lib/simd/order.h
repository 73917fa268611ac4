// Order of lanes by the shuffles of gcc and clang, for vectors of any length, and what can be said with them.
#pragma once

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

/// Lane i of the result is lane f(i) of a and b, one behind the other. A lane is as wide as T.
template <class T, class V, class F>
SIMDATTN_INLINE V lanes_from(V a, V b, const F& /*f*/) {
  return [&]<size_t... kLane>(std::index_sequence<kLane...>) SIMDATTN_LAMBDA {
    return V::of(__builtin_shufflevector(as<T>(a), as<T>(b), F()(kLane)...));
  }(std::make_index_sequence<sizeof(V) / sizeof(T)>());
}

/// Where lane i of what zip_lo or zip_hi returns comes from: `first` is the first lane of each block.
template <class T, class V>
constexpr size_t zipped_lane(size_t i, size_t first) {
  constexpr size_t kBlock = 16 / sizeof(T);
  return i / kBlock * kBlock + first + i % kBlock / 2 + (i % 2 == 0 ? 0 : sizeof(V) / sizeof(T));
}
/// Interleaves the lower (upper) halves of every block of a and b by lanes of T. On x86 V is taken for integers,
/// whatever it holds: their shuffles have two ports where those of floating point have one.
template <class T, class V>
SIMDATTN_INLINE V zip_lo(V a, V b) {
  return lanes_from<T>(a, b, [](size_t i) { return zipped_lane<T, V>(i, 0); });
}
template <class T, class V>
SIMDATTN_INLINE V zip_hi(V a, V b) {
  return lanes_from<T>(a, b, [](size_t i) { return zipped_lane<T, V>(i, 8 / sizeof(T)); });
}

#if !SIMDATTN_HIGHWAY_ORDER
/// The even (odd) lanes of a, then those of b.
template <class T, class V>
SIMDATTN_INLINE V evens(V a, V b) {
  return lanes_from<T>(a, b, [](size_t i) { return 2 * i; });
}
template <class T, class V>
SIMDATTN_INLINE V odds(V a, V b) {
  return lanes_from<T>(a, b, [](size_t i) { return 2 * i + 1; });
}
/// The lower (upper) half of a, then that of b.
SIMDATTN_INLINE Floats lower_halves(Floats a, Floats b) {
  return lanes_from<float>(a, b, [](size_t i) { return i + (i < Floats::size / 2 ? 0 : Floats::size / 2); });
}
SIMDATTN_INLINE Floats upper_halves(Floats a, Floats b) {
  return lanes_from<float>(a, b, [](size_t i) { return i + (i < Floats::size / 2 ? Floats::size / 2 : Floats::size); });
}
#if !(SIMDATTN_XSIMD && SIMDATTN_X86) || SIMDATTN_AVX512
template <class T = float, class V>
SIMDATTN_INLINE V zip_lower(V a, V b) {
  return lanes_from<T>(a, b, [](size_t i) { return i / 2 + i % 2 * (sizeof(V) / sizeof(T)); });
}
template <class T = float, class V>
SIMDATTN_INLINE V zip_upper(V a, V b) {
  return lanes_from<T>(a, b, [](size_t i) { return i / 2 + (i % 2 * 2 + 1) * (sizeof(V) / sizeof(T) / 2); });
}
#endif
/// Lane i of the result is lane i ^ kHalf.
template <int64_t kHalf, class V>
SIMDATTN_INLINE V swap_lanes(V v) {
  return lanes_from<float>(v, v, [](size_t i) { return i ^ static_cast<size_t>(kHalf); });
}
/// The lower (upper) words of the lanes of e and of o, side by side: e's, o's, e's, ...
#if SIMDATTN_X86 && !SIMDATTN_AVX2
SIMDATTN_INLINE Bits16 lower_words(Bits32 e, Bits32 o) { return cast_bits<uint16_t>((e & Bits32(0xFFFFu)) | o << 16); }
SIMDATTN_INLINE Bits16 upper_words(Bits32 e, Bits32 o) {
  return cast_bits<uint16_t>(e >> 16 | (o & Bits32(0xFFFF0000u)));
}
#else
SIMDATTN_INLINE Bits16 lower_words(Bits32 e, Bits32 o) {  // with AVX a shift and a selection
  return cast_bits<uint16_t>(lanes_from<uint16_t>(
      e, kX86 ? o << 16 : o, [](size_t i) { return i % 2 == 0 ? i : Bits16::size + i - (kX86 ? 0 : 1); }));
}
SIMDATTN_INLINE Bits16 upper_words(Bits32 e, Bits32 o) {
  return cast_bits<uint16_t>(lanes_from<uint16_t>(
      kX86 ? e >> 16 : e, o, [](size_t i) { return i % 2 == 0 ? i + (kX86 ? 0 : 1) : Bits16::size + i; }));
}
#endif

/// a and b, one behind the other. (By way of memory, blocks stored apart would wait to be loaded together.)
template <class V>
SIMDATTN_INLINE auto joined(V a, V b) {
  return [&]<size_t... kLane>(std::index_sequence<kLane...>) SIMDATTN_LAMBDA {
    return __builtin_shufflevector(a, b, kLane...);
  }(std::make_index_sequence<2 * sizeof(V) / sizeof(float)>());
}
template <class Address>
SIMDATTN_INLINE Floats load_blocks_at(const Address& address) {
  const auto at = [&](int64_t b) SIMDATTN_LAMBDA {
    VectorOf<float, 16>::type v;
    __builtin_memcpy(&v, address(b), sizeof v);
    return v;
  };
  if constexpr (kLanes == 4) return Floats::of(at(0));
  else if constexpr (kLanes == 8) return Floats::of(joined(at(0), at(1)));
  else return Floats::of(joined(joined(at(0), at(1)), joined(at(2), at(3))));
}
#endif
#if !SIMDATTN_HIGHWAY_LANES && !(SIMDATTN_XSIMD && SIMDATTN_X86)
/// Of unsigned bytes.
SIMDATTN_INLINE Bits32 max_bytes(Bits32 a, Bits32 b) {
  return Bits32::of(larger_numbers(as<uint8_t>(a), as<uint8_t>(b)));
}
/// Bytes 0 and 2 (1 and 3) of each lane as numbers of 16 bits.
SIMDATTN_INLINE Ints even_bytes(Ints v) { return Ints::of((as<int16_t>(v) << 8) >> 8); }
SIMDATTN_INLINE Ints odd_bytes(Ints v) { return Ints::of(as<int16_t>(v) >> 8); }
/// Signed numbers, towards -infinity.
SIMDATTN_INLINE Bits16 signed_shift(Bits16 v, int n) { return Bits16::of(as<int16_t>(v) >> static_cast<int16_t>(n)); }
#endif

#if !(SIMDATTN_XSIMD && SIMDATTN_AVX2) || SIMDATTN_AVX512
SIMDATTN_INLINE Floats even_lanes(Floats a, Floats b) { return evens<float>(a, b); }
SIMDATTN_INLINE Floats odd_lanes(Floats a, Floats b) { return odds<float>(a, b); }
#endif
#if SIMDATTN_AVX512
// These take no port of the arithmetic when v comes from memory; DupEven and what compilers choose for it do.
SIMDATTN_INLINE Floats even_twice(Floats v) { return _mm512_moveldup_ps(v); }
SIMDATTN_INLINE Floats odd_twice(Floats v) { return _mm512_movehdup_ps(v); }
#elif SIMDATTN_AVX2
SIMDATTN_INLINE Floats even_twice(Floats v) { return _mm256_moveldup_ps(v); }
SIMDATTN_INLINE Floats odd_twice(Floats v) { return _mm256_movehdup_ps(v); }
#elif !SIMDATTN_HIGHWAY_ORDER
SIMDATTN_INLINE Floats even_twice(Floats v) {
  return lanes_from<float>(v, v, [](size_t i) { return i / 2 * 2; });
}
SIMDATTN_INLINE Floats odd_twice(Floats v) {
  return lanes_from<float>(v, v, [](size_t i) { return i / 2 * 2 + 1; });
}
#endif
/// The even (odd) blocks of a, then those of b.
SIMDATTN_INLINE Floats even_blocks(Floats a, Floats b) {
  return lanes_from<float>(a, b, [](size_t i) { return i + i / 4 * 4; });
}
SIMDATTN_INLINE Floats odd_blocks(Floats a, Floats b) {
  return lanes_from<float>(a, b, [](size_t i) { return i + i / 4 * 4 + 4; });
}
/// Block b of vector i to where block 4 b + i of all four lies.
SIMDATTN_INLINE void order_columns(Floats& s0, Floats& s1, Floats& s2, Floats& s3) {
  if constexpr (kLanes == 4) return;
  const Floats t0 = lower_halves(s0, s1), t1 = lower_halves(s2, s3);
  const Floats t2 = upper_halves(s0, s1), t3 = upper_halves(s2, s3);
  s0 = kLanes == 8 ? t0 : even_blocks(t0, t1);
  s1 = kLanes == 8 ? t1 : odd_blocks(t0, t1);
  s2 = kLanes == 8 ? t2 : even_blocks(t2, t3);
  s3 = kLanes == 8 ? t3 : odd_blocks(t2, t3);
}
/// Joins all lanes by op: halves, quarters and so on, the order of the 16 partial sums.
template <class V, class Op>
SIMDATTN_INLINE auto fold_lanes(V v, const Op& op) {
  unroll<4>([&](auto i) SIMDATTN_LAMBDA {
    constexpr int64_t kHalf = 8 >> i;
    if constexpr (kHalf < kLanes) v = op(v, swap_lanes<kHalf>(v));
  });
  return v[0];
}

#if SIMDATTN_PLAIN || SIMDATTN_SVE || (SIMDATTN_NEON && SIMDATTN_XSIMD)
SIMDATTN_INLINE Bits16 ties_to_even(Bits16 upper, Bits16 lower) {
  return upper & ~(max(lower, Bits16(uint16_t{1})) - lower);
}
#endif
#if !(SIMDATTN_HIGHWAY && SIMDATTN_AVX2)
template <int i>
SIMDATTN_INLINE Bits32 upper_byte(Bits32 v) {
  return (v << (24 - 8 * i)) & Bits32(0xFF000000u);
}
template <int k>
SIMDATTN_INLINE Bits16 upper_bytes(Bits32 v) {
  return cast_bits<uint16_t>(evens<uint16_t>(v << (8 - 8 * k), v >> (8 + 8 * k)));
}
#endif
/// The same of p + kRows b stride.
template <int64_t kRows = 4, class T>
SIMDATTN_INLINE Floats load_blocks(const T* p, int64_t stride) {
  return load_blocks_at([&](int64_t b) SIMDATTN_LAMBDA { return p + kRows * b * stride; });
}

}  // namespace
}  // namespace simdattn
