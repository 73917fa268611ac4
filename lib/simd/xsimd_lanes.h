// Rounding, bytes and order by xsimd. Not for SVE (native/sve.h).
#pragma once

#include "lib/simd/machine.h"

namespace simdattn {
namespace {

SIMDATTN_INLINE Ints nearest(Floats v) { return xsimd::nearbyint_as_int(lib(v)); }

#if SIMDATTN_X86
SIMDATTN_INLINE uint32_t word_of(Mask m) { return static_cast<uint32_t>(m.mask()); }
/// Two operations, and no constant but 1.
SIMDATTN_INLINE Bits16 ties_to_even(Bits16 upper, Bits16 lower) {
  return xsimd::bitwise_andnot(lib(upper), xsimd::ssub(lib(Bits16(uint16_t{1})), lib(lower)));
}
/// The library's vector with lanes of T, and back.
template <class T, class U>
SIMDATTN_INLINE xsimd::batch<T, Arch> lib_as(Batch<U> v) {
  return xsimd::bitwise_cast<T>(lib(v));
}
template <class U, class V>
SIMDATTN_INLINE Batch<U> own_as(V v) {
  return xsimd::bitwise_cast<U>(v);
}
/// Of unsigned bytes.
SIMDATTN_INLINE Bits32 max_bytes(Bits32 a, Bits32 b) {
  return own_as<uint32_t>(xsimd::max(lib_as<uint8_t>(a), lib_as<uint8_t>(b)));
}
/// Bytes 0 and 2 (1 and 3) of each lane as numbers of 16 bits.
SIMDATTN_INLINE Ints even_bytes(Ints v) { return own_as<int32_t>((lib_as<int16_t>(v) << 8) >> 8); }
SIMDATTN_INLINE Ints odd_bytes(Ints v) { return own_as<int32_t>(lib_as<int16_t>(v) >> 8); }
/// Signed numbers, towards -infinity.
SIMDATTN_INLINE Bits16 signed_shift(Bits16 v, int n) {
  const auto numbers = lib_as<int16_t>(v);
  // With AVX-512 one count for all lanes would take a shuffle besides.
  if constexpr (kAvx512) return own_as<uint16_t>(numbers >> xsimd::batch<int16_t, Arch>(static_cast<int16_t>(n)));
  else return own_as<uint16_t>(numbers >> n);
}
#if !SIMDATTN_AVX512  // there it takes eight instructions, where the compiler takes one
template <class T = float, class U>
SIMDATTN_INLINE Batch<U> zip_lower(Batch<U> a, Batch<U> b) {
  using L = typename xsimd::as_unsigned_integer_t<T>;
  return own_as<U>(xsimd::zip_lo(lib_as<L>(a), lib_as<L>(b)));
}
template <class T = float, class U>
SIMDATTN_INLINE Batch<U> zip_upper(Batch<U> a, Batch<U> b) {
  using L = typename xsimd::as_unsigned_integer_t<T>;
  return own_as<U>(xsimd::zip_hi(lib_as<L>(a), lib_as<L>(b)));
}
#endif
#endif

#if SIMDATTN_AVX512
SIMDATTN_INLINE Floats lane_of(Floats table, Bits32 index) { return xsimd::swizzle(lib(table), lib(index)); }
#elif SIMDATTN_AVX2
/// In each block two lanes of a, then two of b; brought into order.
template <uint32_t k>
SIMDATTN_INLINE Floats every_second(Floats a, Floats b) {
  using Order = xsimd::batch_constant<uint32_t, Arch, k, k + 2, k + 8, k + 10, k + 4, k + 6, k + 12, k + 14>;
  using Blocks = xsimd::batch_constant<uint64_t, Arch, 0, 2, 1, 3>;
  const auto pairs = xsimd::bitwise_cast<double>(xsimd::shuffle(lib(a), lib(b), Order()));
  return xsimd::bitwise_cast<float>(xsimd::swizzle(pairs, Blocks()));
}
SIMDATTN_INLINE Floats even_lanes(Floats a, Floats b) { return every_second<0>(a, b); }
SIMDATTN_INLINE Floats odd_lanes(Floats a, Floats b) { return every_second<1>(a, b); }
#endif

}  // namespace
}  // namespace simdattn
