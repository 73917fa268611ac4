// Rotary position embedding of all heads at one position.
#ifndef SIMDATTN_LIB_XSIMD_ROPE_H_
#define SIMDATTN_LIB_XSIMD_ROPE_H_

#include "lib/xsimd/math.h"
#include "lib/xsimd/memory.h"

namespace simdattn {
namespace {

/// x with its sign flipped where `sign` has the sign bit.
SIMDATTN_INLINE Floats flip_sign(Floats x, Bits32 sign) { return float_of(bits_of(x) ^ sign); }

// A NaN in f32 output is noticed in one batch for all heads and made canonical afterwards: a comparison and a selection
// per store would double the arithmetic.
SIMDATTN_INLINE void put(Floats v, float* y, All part) { store(v, y, part); }
SIMDATTN_INLINE void put(Floats v, float* y, Lanes part) { store(v, y, part); }
template <class Y, class Part>
SIMDATTN_INLINE void put(Floats v, Y* y, Part part) {
  store_rounded(v, y, part);
}
/// The stored numbers of all heads with canonical NaN, if one has been noticed.
template <class Y>
SIMDATTN_INLINE void settle(Floats seen, Y* y, int64_t stride, int64_t heads, int64_t n) {
  if constexpr (std::is_same_v<Y, float>) {
    if (!xsimd::any(xsimd::isnan(seen))) return;
    for (int64_t h = 0; h < heads; ++h, y += stride) {
      for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store_rounded(load(y + i, part), y + i, part); });
    }
  }
}

/// f(index, part, count) over n elements: four batches at a time, then single ones.
template <class F>
SIMDATTN_INLINE void for_four_batches(int64_t n, const F& f) {
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) f(i, All(), std::integral_constant<int64_t, 4>());
  for (; i + kLanes <= n; i += kLanes) f(i, All(), std::integral_constant<int64_t, 1>());
  if (i < n) f(i, first_lanes(n - i), std::integral_constant<int64_t, 1>());
}

/// Dimensions i and half + i of every head turn together: the table is read once for all heads.
template <class X, class Y>
SIMDATTN_INLINE void turn_halves(const RopeHeads& a, Bits32 sign) {
  const X* x = static_cast<const X*>(a.x) + a.first;
  Y* y = static_cast<Y*>(a.y) + a.first;
  const int64_t half = a.half, heads = a.heads, x_stride = a.x_stride, y_stride = a.y_stride;
  const float* cos = a.cos;
  const float* sin = a.sin;
  Registers<2> seen = {{Floats(0.0f)}, {Floats(0.0f)}};
  for_four_batches(half, [&](int64_t first, auto part, auto count) SIMDATTN_LAMBDA {
    Registers<count> c, s;
    unroll<count>([&](auto i) SIMDATTN_LAMBDA {
      reg<i>(c) = load(cos + first + i * kLanes, part);
      reg<i>(s) = flip_sign(load(sin + first + i * kLanes, part), sign);
    });
    const X* from = x + first;
    Y* to = y + first;
    for (int64_t h = 0; h < heads; ++h, from += x_stride, to += y_stride) {
      unroll<count>([&](auto i) SIMDATTN_LAMBDA {
        const Floats x0 = in_register(load(from + i * kLanes, part));
        const Floats x1 = in_register(load(from + half + i * kLanes, part));
        const Floats y0 = multiply_subtract(x0, reg<i>(c), x1 * reg<i>(s));
        const Floats y1 = xsimd::fma(x0, reg<i>(s), x1 * reg<i>(c));
        put(y0, to + i * kLanes, part);
        put(y1, to + half + i * kLanes, part);
        if constexpr (std::is_same_v<Y, float>) reg<i % 2>(seen) = notice_nan(y0, y1, reg<i % 2>(seen));
      });
    }
  });
  settle(reg<0>(seen) + reg<1>(seen), y, y_stride, heads, 2 * half);
}

/// Pairs of the table that are spread to one entry per dimension at a time.
constexpr int64_t kSpread = 128;

/// Entries that multiply the pair's first and second number, in both dimensions:
///   y0 = x0 c + x1 (-s),  y1 = x0 s + x1 c
SIMDATTN_INLINE void spread(const float* cos, const float* sin, int64_t pairs, Bits32 sign, float* first,
                            float* second) {
  for_each_batch(pairs, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    const Floats c = load(cos + i, part);
    const Floats s = flip_sign(load(sin + i, part), sign);
    const Floats minus_s = flip_sign(s, Bits32(0x80000000u));
    store(zip_lower(c, s), first + 2 * i);
    store(zip_upper(c, s), first + 2 * i + kLanes);
    store(zip_lower(minus_s, c), second + 2 * i);
    store(zip_upper(minus_s, c), second + 2 * i + kLanes);
  });
}

/// Dimensions 2i and 2i + 1 turn together; `n` dimensions from `at` on.
template <class X, class Y>
SIMDATTN_INLINE void turn_neighbours(const RopeHeads& a, int64_t at, const float* first, const float* second,
                                     int64_t n) {
  const X* x = static_cast<const X*>(a.x) + at;
  Y* y = static_cast<Y*>(a.y) + at;
  const int64_t heads = a.heads, x_stride = a.x_stride, y_stride = a.y_stride;
  Registers<2> seen = {{Floats(0.0f)}, {Floats(0.0f)}};
  for_four_batches(n, [&](int64_t dimension, auto part, auto count) SIMDATTN_LAMBDA {
    Registers<count> own, cross;
    unroll<count>([&](auto i) SIMDATTN_LAMBDA {
      reg<i>(own) = load(first + dimension + i * kLanes);
      reg<i>(cross) = load(second + dimension + i * kLanes);
    });
    const X* from = x + dimension;
    Y* to = y + dimension;
    for (int64_t h = 0; h < heads; ++h, from += x_stride, to += y_stride) {
      Registers<count> turned;
      unroll<count>([&](auto i) SIMDATTN_LAMBDA {
        const Floats v = load(from + i * kLanes, part);
        reg<i>(turned) = xsimd::fma(even_twice(v), reg<i>(own), odd_twice(v) * reg<i>(cross));
        put(reg<i>(turned), to + i * kLanes, part);
        if constexpr (std::is_same_v<Y, float> && (i % 2 == 1 || count == 1)) {
          constexpr int64_t kLast = i - i % 2;
          Floats& chain = reg<i / 2 % 2>(seen);
          chain = notice_nan(reg<kLast>(turned), reg<i>(turned), chain);
        }
      });
    }
  });
  settle(reg<0>(seen) + reg<1>(seen), y, y_stride, heads, n);
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
  const Bits32 sign(a.inverse ? 0x80000000u : 0u);
  const X* x = static_cast<const X*>(a.x);
  Y* y = static_cast<Y*>(a.y);
  if (!a.interleaved) {
    turn_halves<X, Y>(a, sign);
  } else {
    // The last batches may reach past the last pair.
    alignas(64) float first[2 * kSpread + 2 * kLanes];
    alignas(64) float second[2 * kSpread + 2 * kLanes];
    for (int64_t i = 0; i < a.half; i += kSpread) {
      const int64_t pairs = smaller(kSpread, a.half - i);
      spread(a.cos + i, a.sin + i, pairs, sign, first, second);
      turn_neighbours<X, Y>(a, a.first + 2 * i, first, second, 2 * pairs);
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
