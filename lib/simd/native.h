// What the libraries do not offer and each instruction set does: access to some lanes only, 16-bit numbers, movement of
// 128-bit blocks. One file per instruction set, on the compiler's own types.
#ifndef SIMDATTN_LIB_SIMD_NATIVE_H_
#define SIMDATTN_LIB_SIMD_NATIVE_H_

#include "lib/simd/machine.h"

#if SIMDATTN_SVE
#include <arm_neon.h>  // look_up_nibbles
#endif

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

/// out[i] = table[n], where n is the lower nibble of codes[i] for i < 16, else the upper one of codes[i - 16].
SIMDATTN_INLINE void look_up_nibbles(const int8_t* table, const uint8_t* codes, uint8_t* out) {
  using Block = VectorOf<uint8_t, 16>::type;
  Block numbers, w;
  __builtin_memcpy(&numbers, table, sizeof numbers);
  __builtin_memcpy(&w, codes, sizeof w);
  const auto look_up = [&](Block index) SIMDATTN_LAMBDA {
#if SIMDATTN_X86 && defined(__SSSE3__)
    return __builtin_bit_cast(
        Block, _mm_shuffle_epi8(__builtin_bit_cast(__m128i, numbers), __builtin_bit_cast(__m128i, index)));
#elif SIMDATTN_NEON || SIMDATTN_SVE
    return __builtin_bit_cast(
        Block, vqtbl1q_u8(__builtin_bit_cast(uint8x16_t, numbers), __builtin_bit_cast(uint8x16_t, index)));
#elif SIMDATTN_VSX
    using Bytes = __vector unsigned char;
    const Bytes from = __builtin_bit_cast(Bytes, numbers);
    return __builtin_bit_cast(Block, vec_perm(from, from, __builtin_bit_cast(Bytes, index)));
#else
    Block found;
    for (int i = 0; i < 16; ++i) found[i] = numbers[index[i]];
    return found;
#endif
  };
  const Block lower = look_up(w & 15), upper = look_up(w >> 4);
  __builtin_memcpy(out, &lower, sizeof lower);
  __builtin_memcpy(out + sizeof lower, &upper, sizeof upper);
}

SIMDATTN_INLINE float first_lane(Floats v) { return v[0]; }

/// v in a register, and the compiler does not know its origin. gcc would fold its load into each of the instructions
/// that use it; clang 19 would compare the f16 that it was converted from, one by one.
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
