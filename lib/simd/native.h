// What the libraries do not offer and each instruction set does: access to some lanes only, 16-bit numbers, movement of
// 128-bit blocks. One file per instruction set, on the compiler's own types.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_H_
#define SIMDATTN_LIB_SIMD_NATIVE_H_

#include "lib/simd/machine.h"

#include "lib/simd/native/order.h"

#if SIMDATTN_PLAIN
#include "lib/simd/native/plain.h"
#elif SIMDATTN_AVX512
#include "lib/simd/native/avx512.h"
#elif SIMDATTN_AVX2
#include "lib/simd/native/avx2.h"
#elif SIMDATTN_X86
#include "lib/simd/native/sse.h"
#elif SIMDATTN_SVE
#include "lib/simd/native/sve.h"
#elif SIMDATTN_NEON
#include "lib/simd/native/neon.h"
#elif SIMDATTN_VSX
#include "lib/simd/native/vsx.h"
#endif
#include "lib/simd/native/absent.h"
#include "lib/simd/native/lanes.h"
#include "lib/simd/native/products.h"

namespace simdattn {
namespace {

#if !SIMDATTN_AVX512
/// m ? a + b : other.
SIMDATTN_INLINE Floats sum_where(Mask m, Floats a, Floats b, Floats other) { return select(m, a + b, other); }
#endif
/// The lanes of four vectors, each a byte, one behind the other.
template <bool kUnsigned>
SIMDATTN_INLINE void store_bytes(Ints v0, Ints v1, Ints v2, Ints v3, void* p) {
#if SIMDATTN_X86
  const Ints blocks = packed_bytes<kUnsigned>(v0, v1, v2, v3);
  const Ints bytes =
      lanes_from<int32_t>(blocks, blocks, [](size_t i) { return i % (kLanes / 4) * 4 + i / (kLanes / 4); });
#else
  const Ints bytes = evens<uint8_t>(evens<uint16_t>(v0, v1), evens<uint16_t>(v2, v3));
#endif
  bytes.store_unaligned(p);
}
/// Byte i of a lane is that of v_i, -128 .. 127.
SIMDATTN_INLINE Ints cells_of(Ints v0, Ints v1, Ints v2, Ints v3) {
#if SIMDATTN_AVX2
  const Ints blocks = packed_bytes<false>(v0, v1, v2, v3);
  return lanes_from<uint8_t>(blocks, blocks, [](size_t i) { return i / 16 * 16 + i % 4 * 4 + i % 16 / 4; });
#else
  const auto byte = [](Ints v) SIMDATTN_LAMBDA { return cast_bits<uint32_t>(v) & Bits32(255); };
  return cast_bits<int32_t>(byte(v0) | byte(v1) << 8 | byte(v2) << 16 | cast_bits<uint32_t>(v3) << 24);
#endif
}
/// x in all of them. Where conversions take 32-bit lanes, in both halves of each: they read the lower one.
SIMDATTN_INLINE Halves repeated_half(uint16_t x) {
  return __builtin_bit_cast(Halves, VectorOf<uint16_t, sizeof(Halves)>::type{} + x);
}

SIMDATTN_INLINE float first_lane(Floats v) { return v[0]; }

/// v in a register, and the compiler does not know its origin. gcc would fold its load into each of the instructions that use it; clang 19
/// would compare the f16 that it was converted from, one by one.
template <class T>
SIMDATTN_INLINE Batch<T> in_register(Batch<T> v) {
#if SIMDATTN_X86
  asm("" : "+v"(v.data));
#elif SIMDATTN_SVE
  svfloat32_t data = cast_bits<float>(v);  // clang knows no register for a vector of fixed length
  asm("" : "+w"(data));
  v = cast_bits<T>(Floats(data));
#elif SIMDATTN_NEON
  asm("" : "+w"(v.data));
#endif
  return v;
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_SIMD_NATIVE_H_
