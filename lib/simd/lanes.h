// Access to some lanes only, bytes and 16-bit numbers. What a library has is in its _lanes.h; native/ has what is so
// slow otherwise that a loop loses by it, for each instruction set. Here the rest is made of other operations, for
// xsimd and for plain.h. vocabulary.md has what each function does.
#pragma once

#include "lib/simd/machine.h"

#if SIMDATTN_HIGHWAY_LANES
#include "lib/simd/highway_lanes.h"
#elif !SIMDATTN_SVE
#include "lib/simd/halves.h"
#if SIMDATTN_XSIMD
#include "lib/simd/native/f16.h"
#include "lib/simd/xsimd_lanes.h"
#endif
#endif
#include "lib/simd/order.h"

#if SIMDATTN_AVX512
#include "lib/simd/native/avx512.h"
#elif SIMDATTN_AVX2
#include "lib/simd/native/avx2.h"
#elif SIMDATTN_SVE
#include "lib/simd/native/sve.h"
#endif
#include "lib/simd/native/products.h"

namespace simdattn {
namespace {

// Operations that some instruction sets lack. They are declared for all, for templates that name them, and called where
// they exist: kernels ask the constants of machine.h first.
template <class P>
Ints load_group(P p);
template <bool kWeights>
void add_matrix_products(Ints& sum, Ints rows, Ints columns);
template <bool kWeights, int lane>
void add_lane_products(Ints& sum, Ints rows, Ints column);
template <bool kOdd>
Floats mul_add_pairs(float factor, Floats pairs, Floats sum);
template <class P>
Floats load_in_order(P p);
template <class R>
void add_three(const float* x, R& column, Floats& a0, Floats& a1, Floats& a2);
template <class V>
Floats lane_of(Floats table, V index);
template <class P>
void widen_four(uint64_t f16_bits, P p);
template <class P>
Bits16 load_scaled_bytes(P p, int n);

#if !SIMDATTN_MASKED_ACCESS
struct Lanes {
  int64_t from, to;
};
SIMDATTN_INLINE Lanes first_lanes(int64_t n) { return {0, n}; }
SIMDATTN_INLINE Lanes lanes(int64_t from, int64_t to) { return {from, to}; }
SIMDATTN_INLINE Mask mask_of(Lanes part) {
  const Ints i = lane_numbers();
  return greater(Ints(static_cast<int32_t>(part.to)), i) & at_least(i, Ints(static_cast<int32_t>(part.from)));
}
#endif

#if !SIMDATTN_MASK_REGISTERS && !SIMDATTN_SVE
// Some lanes by way of memory, for instruction sets without masked access.
template <class T>
SIMDATTN_INLINE void copy_lanes(const T* from, T* to, Lanes part) {
  unroll<kLanes>([&](auto i) SIMDATTN_LAMBDA {
    if (part.from <= i && i < part.to) to[i] = from[i];
  });
}
SIMDATTN_INLINE Halves load_halves(const uint16_t* p, Lanes part) {
  alignas(8) uint16_t copy[kLanes] = {};
  copy_lanes(p, copy, part);
  return load_halves(copy, All());
}
SIMDATTN_INLINE void store_halves(Halves v, uint16_t* p, Lanes part) {
  alignas(8) uint16_t copy[kLanes];
  store_halves(v, copy, All());
  copy_lanes(copy, p, part);
}
SIMDATTN_INLINE Bits32 load_bytes(const uint8_t* p, Lanes part) {
  uint8_t copy[kLanes] = {};
  copy_lanes(p, copy, part);
  return load_bytes(copy, All());
}
#if !SIMDATTN_MASKED_ACCESS
SIMDATTN_INLINE Floats load(const float* p, Lanes part) {
  float copy[kLanes] = {};
  copy_lanes(p, copy, part);
  Floats::Numbers v;  // gcc would put the array together in general registers for a load of the library
  __builtin_memcpy(&v, copy, sizeof v);
  return Floats::of(v);
}
SIMDATTN_INLINE void store(Floats v, float* p, Lanes part) {
  float copy[kLanes];
  v.store_unaligned(copy);
  copy_lanes(copy, p, part);
}
#endif
#endif

#if !SIMDATTN_MASK_REGISTERS
/// m ? a + b : other.
SIMDATTN_INLINE Floats sum_where(Mask m, Floats a, Floats b, Floats other) { return select(m, a + b, other); }
#endif
/// The lanes of four vectors, each a byte, one behind the other.
template <bool kUnsigned>
SIMDATTN_INLINE void store_bytes(Ints v0, Ints v1, Ints v2, Ints v3, void* p) {
#if SIMDATTN_X86 && SIMDATTN_HIGHWAY
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
#if SIMDATTN_AVX2 && SIMDATTN_HIGHWAY
  const Ints blocks = packed_bytes<false>(v0, v1, v2, v3);
  return lanes_from<uint8_t>(blocks, blocks, [](size_t i) { return i / 16 * 16 + i % 4 * 4 + i % 16 / 4; });
#else
  const auto byte = [](Ints v) SIMDATTN_LAMBDA { return cast_bits<uint32_t>(v) & Bits32(255); };
  return cast_bits<int32_t>(byte(v0) | byte(v1) << 8 | byte(v2) << 16 | cast_bits<uint32_t>(v3) << 24);
#endif
}
#if !SIMDATTN_HIGHWAY_LANES
/// The first n bytes at p, then zeros.
SIMDATTN_INLINE Floats load_cells(const char* p, int64_t n) {
  if (n == sizeof(Floats)) return Floats::load_unaligned(p);
  char copy[sizeof(Floats)] = {};
  __builtin_memcpy(copy, p, static_cast<size_t>(n));
  return Floats::load_unaligned(copy);
}

/// out[i] = table[n], where n is the lower nibble of codes[i] for i < 16, else the upper one of codes[i - 16].
SIMDATTN_INLINE void look_up_nibbles(const int8_t* table, const uint8_t* codes, uint8_t* out) {
  using Block = VectorOf<uint8_t, 16>::type;
  Block numbers, w;
  __builtin_memcpy(&numbers, table, sizeof numbers);
  __builtin_memcpy(&w, codes, sizeof w);
  const auto look_up = [&](Block index) SIMDATTN_LAMBDA {
#ifdef __clang__
    Block found;
    for (int i = 0; i < 16; ++i) found[i] = numbers[index[i]];
    return found;
#else
    return __builtin_shuffle(numbers, index);
#endif
  };
  const Block lower = look_up(w & 15), upper = look_up(w >> 4);
  __builtin_memcpy(out, &lower, sizeof lower);
  __builtin_memcpy(out + sizeof lower, &upper, sizeof upper);
}
#endif

/// v in a register, and the compiler does not know its origin. gcc would fold its load into each of the instructions
/// that use it; clang 19 would compare the f16 that it was converted from, one by one.
template <class T>
SIMDATTN_INLINE Batch<T> in_register(Batch<T> v) {
#if SIMDATTN_X86
  typename Batch<T>::Raw data = v;
  asm("" : "+v"(data));
  v = data;
#elif SIMDATTN_SVE
  svfloat32_t data = cast_bits<float>(v);  // clang knows no register for a vector of fixed length
  asm("" : "+w"(data));
  v = cast_bits<T>(Floats(data));
#elif SIMDATTN_NEON
  typename Batch<T>::Raw data = v;
  asm("" : "+w"(data));
  v = data;
#endif
  return v;
}

}  // namespace
}  // namespace simdattn
