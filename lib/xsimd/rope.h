// Rotary position embedding of all heads at one position.
#ifndef SIMDATTN_LIB_XSIMD_ROPE_H_
#define SIMDATTN_LIB_XSIMD_ROPE_H_

#include "lib/xsimd/math.h"
#include "lib/xsimd/memory.h"

namespace simdattn {
namespace {

/// x with its sign flipped where `sign` has the sign bit.
SIMDATTN_INLINE Floats flip_sign(Floats x, Bits32 sign) { return float_of(bits_of(x) ^ sign); }

/// Dimensions i and half + i turn together. `sign` is that of -s.
template <class X, class Y>
SIMDATTN_INLINE void turn_halves(const X* x, Y* y, const float* cos, const float* sin, int64_t half, Bits32 sign) {
  const Bits32 other_sign = sign ^ Bits32(0x80000000u);
  for_each_batch(half, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    const Floats x0 = load(x + i, part);
    const Floats x1 = load(x + half + i, part);
    const Floats c = load(cos + i, part);
    const Floats table = load(sin + i, part);
    const Floats s = flip_sign(table, other_sign);
    const Floats minus_s = flip_sign(table, sign);
    store_rounded(xsimd::fma(x0, c, x1 * minus_s), y + i, part);
    store_rounded(xsimd::fma(x0, s, x1 * c), y + half + i, part);
  });
}

/// Pairs of the table that are spread to one entry per dimension at a time.
constexpr int64_t kSpread = 128;

/// Entries that multiply the pair's first and second number, in both dimensions:
///   y0 = x0 c + x1 (-s),  y1 = x0 s + x1 c
SIMDATTN_INLINE void spread(const float* cos, const float* sin, int64_t pairs, Bits32 sign, float* first,
                            float* second) {
  const Bits32 other_sign = sign ^ Bits32(0x80000000u);
  for_each_batch(pairs, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    const Floats c = load(cos + i, part);
    const Floats table = load(sin + i, part);
    const Floats s = flip_sign(table, other_sign);
    const Floats minus_s = flip_sign(table, sign);
    store(zip_lower(c, s), first + 2 * i);
    store(zip_upper(c, s), first + 2 * i + kLanes);
    store(zip_lower(minus_s, c), second + 2 * i);
    store(zip_upper(minus_s, c), second + 2 * i + kLanes);
  });
}

/// Dimensions 2i and 2i + 1 turn together; `n` dimensions.
template <class X, class Y>
SIMDATTN_INLINE void turn_neighbours(const X* x, Y* y, const float* first, const float* second, int64_t n) {
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    const Floats v = load(x + i, part);
    const Floats product = odd_twice(v) * load(second + i);
    store_rounded(xsimd::fma(even_twice(v), load(first + i), product), y + i, part);
  });
}

template <class X, class Y>
SIMDATTN_INLINE void copy(const X* x, Y* y, int64_t n) {
  if constexpr (std::is_same_v<X, Y>) {
    __builtin_memcpy(y, x, static_cast<size_t>(n) * sizeof(X));
  } else {
    for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store_rounded(load(x + i, part), y + i, part); });
  }
}

template <class X, class Y>
void rope_heads(const RopeHeads& a) {
  const Bits32 sign(a.inverse ? 0u : 0x80000000u);
  const X* x = static_cast<const X*>(a.x);
  Y* y = static_cast<Y*>(a.y);
  if (!a.interleaved) {
    for (int64_t h = 0; h < a.heads; ++h) {
      turn_halves(x + h * a.x_stride + a.first, y + h * a.y_stride + a.first, a.cos, a.sin, a.half, sign);
    }
  } else {
    // The last batches may reach past the last pair.
    alignas(64) float first[2 * kSpread + 2 * kLanes];
    alignas(64) float second[2 * kSpread + 2 * kLanes];
    for (int64_t i = 0; i < a.half; i += kSpread) {
      const int64_t pairs = smaller(kSpread, a.half - i);
      spread(a.cos + i, a.sin + i, pairs, sign, first, second);
      const int64_t at = a.first + 2 * i;
      for (int64_t h = 0; h < a.heads; ++h) {
        turn_neighbours(x + h * a.x_stride + at, y + h * a.y_stride + at, first, second, 2 * pairs);
      }
    }
  }
  if (a.x == a.y && std::is_same_v<X, Y>) return;
  const int64_t end = a.first + 2 * a.half;
  if (a.first == 0 && end == a.dim) return;
  for (int64_t h = 0; h < a.heads; ++h) {
    copy(x + h * a.x_stride, y + h * a.y_stride, a.first);
    copy(x + h * a.x_stride + end, y + h * a.y_stride + end, a.dim - end);
  }
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_XSIMD_ROPE_H_
