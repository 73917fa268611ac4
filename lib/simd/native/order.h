// Order of lanes by the shuffles of gcc and clang, for vectors of any length, and what can be said with them.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_ORDER_H_
#define SIMDATTN_LIB_SIMD_NATIVE_ORDER_H_

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

/// Interleaves the lower (kUpper: upper) halves of every block of a and b.
template <class T, bool kUpper, class V>
SIMDATTN_INLINE V zip_blocks(V a, V b) {
  return lanes_from<T>(a, b, [](size_t i) {
    constexpr size_t kBlock = 16 / sizeof(T);
    const size_t from = i / kBlock * kBlock + (kUpper ? kBlock / 2 : 0) + i % kBlock / 2;
    return i % 2 == 0 ? from : sizeof(V) / sizeof(T) + from;
  });
}
// On x86 as integers: their shuffles have two ports where those of floating point have one.
SIMDATTN_INLINE Floats zip_lo_bytes(Floats a, Floats b) { return zip_blocks<uint8_t, false>(a, b); }
SIMDATTN_INLINE Floats zip_hi_bytes(Floats a, Floats b) { return zip_blocks<uint8_t, true>(a, b); }
SIMDATTN_INLINE Floats zip_lo_words(Floats a, Floats b) { return zip_blocks<uint16_t, false>(a, b); }
SIMDATTN_INLINE Floats zip_hi_words(Floats a, Floats b) { return zip_blocks<uint16_t, true>(a, b); }
SIMDATTN_INLINE Floats zip_lo_blocks(Floats a, Floats b) { return zip_blocks<uint32_t, false>(a, b); }
SIMDATTN_INLINE Floats zip_hi_blocks(Floats a, Floats b) { return zip_blocks<uint32_t, true>(a, b); }
SIMDATTN_INLINE Floats zip_lo_pairs(Floats a, Floats b) { return zip_blocks<uint64_t, false>(a, b); }
SIMDATTN_INLINE Floats zip_hi_pairs(Floats a, Floats b) { return zip_blocks<uint64_t, true>(a, b); }

/// The even (odd) lanes of a, then those of b.
template <class T, class V>
SIMDATTN_INLINE V evens(V a, V b) {
  return lanes_from<T>(a, b, [](size_t i) { return 2 * i; });
}
template <class T, class V>
SIMDATTN_INLINE V odds(V a, V b) {
  return lanes_from<T>(a, b, [](size_t i) { return 2 * i + 1; });
}
/// The even (odd) halves of the blocks of a, then those of b.
SIMDATTN_INLINE Ints even_pairs(Ints a, Ints b) { return evens<uint64_t>(a, b); }
SIMDATTN_INLINE Ints odd_pairs(Ints a, Ints b) { return odds<uint64_t>(a, b); }
SIMDATTN_INLINE Floats zip_lower(Floats a, Floats b) {
  return lanes_from<float>(a, b, [](size_t i) { return i / 2 + i % 2 * Floats::size; });
}
SIMDATTN_INLINE Floats zip_upper(Floats a, Floats b) {
  return lanes_from<float>(a, b, [](size_t i) { return i / 2 + i % 2 * Floats::size + Floats::size / 2; });
}
#if SIMDATTN_AVX512
// These take no port of the arithmetic when v comes from memory. Compilers choose another instruction for the shuffle, which does.
SIMDATTN_INLINE Floats even_twice(Floats v) { return _mm512_moveldup_ps(v); }
SIMDATTN_INLINE Floats odd_twice(Floats v) { return _mm512_movehdup_ps(v); }
#elif SIMDATTN_AVX2
SIMDATTN_INLINE Floats even_twice(Floats v) { return _mm256_moveldup_ps(v); }
SIMDATTN_INLINE Floats odd_twice(Floats v) { return _mm256_movehdup_ps(v); }
#else
SIMDATTN_INLINE Floats even_twice(Floats v) {
  return lanes_from<float>(v, v, [](size_t i) { return i / 2 * 2; });
}
SIMDATTN_INLINE Floats odd_twice(Floats v) {
  return lanes_from<float>(v, v, [](size_t i) { return i / 2 * 2 + 1; });
}
#endif
/// Lane i of the result is lane i ^ kHalf.
template <int64_t kHalf, class V>
SIMDATTN_INLINE V swap_lanes(V v) {
  return lanes_from<float>(v, v, [](size_t i) { return i ^ static_cast<size_t>(kHalf); });
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

#if !SIMDATTN_AVX2 || SIMDATTN_AVX512
SIMDATTN_INLINE Floats even_lanes(Floats a, Floats b) { return evens<float>(a, b); }
SIMDATTN_INLINE Floats odd_lanes(Floats a, Floats b) { return odds<float>(a, b); }
#endif

#if !SIMDATTN_AVX2
/// Block b (128 bits) of the result is what lies at p + kRows b stride.
template <int64_t kRows = 4, class T>
SIMDATTN_INLINE Floats load_blocks(const T* p, int64_t stride) {
  Floats r;
  for (int64_t b = 0; b < kLanes / 4; ++b)
    __builtin_memcpy(reinterpret_cast<char*>(&r) + 16 * b, p + kRows * b * stride, 16);
  return r;
}
#endif
/// Bytes 0 and 2 (1 and 3) of each lane as numbers of 16 bits.
SIMDATTN_INLINE Ints even_bytes(Ints v) { return Ints::of((as<int16_t>(v) << 8) >> 8); }
SIMDATTN_INLINE Ints odd_bytes(Ints v) { return Ints::of(as<int16_t>(v) >> 8); }
/// Signed numbers, towards -infinity.
#if SIMDATTN_AVX512
// One count for all lanes would take a shuffle besides.
SIMDATTN_INLINE Bits16 signed_shift(Bits16 v, int n) {
  return _mm512_srav_epi16(v, _mm512_set1_epi16(static_cast<int16_t>(n)));
}
#else
SIMDATTN_INLINE Bits16 signed_shift(Bits16 v, int n) { return Bits16::of(as<int16_t>(v) >> static_cast<int16_t>(n)); }
#endif

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_NATIVE_ORDER_H_
