// Rotary position embedding of all heads at one position.
#pragma once

#include "lib/contract/steps.h"
#include "lib/kernels/elementwise.h"

namespace simdattn {
namespace {

/// x with its sign flipped where `sign` has the sign bit.
SIMDATTN_INLINE Floats flip_sign(Floats x, Bits32 sign) { return float_of(bits_of(x) ^ sign); }

// NaN in the output is noticed in one batch for all heads and made canonical afterwards: a comparison and a selection
// per store would double the arithmetic. Not where f32 is rounded to bf16: by integers a NaN could become a number.
template <class Y>
constexpr bool kNotices = std::is_same_v<Y, float> || (std::is_same_v<Y, f16> && kNativeF16);

/// notice() for two pairs of results. With fused multiply-add the first of each pair is enough: a NaN then comes from a
/// factor that is not finite, and both results have a product with it.
SIMDATTN_INLINE Floats notice_pairs(Floats a0, Floats a1, Floats b0, Floats b1, Floats seen) {
  if constexpr (kX86 && kLanes == 4) seen = notice(a1, b1, seen);
  return notice(a0, b0, seen);
}

/// Stores a result; where NaN is noticed, as it is.
template <class Y, class Part>
SIMDATTN_INLINE void put(Floats v, Y* y, Part part) {
  if constexpr (std::is_same_v<Y, float>) {
    store(v, y, part);
  } else if constexpr (kNotices<Y>) {
    store_halves(f16_of_number(v), raw(y), part);
  } else {
    store_rounded(v, y, part);
  }
}
/// f(from, to) for every head, where dimension `first` of those that rotate is.
template <class T, class F>
SIMDATTN_INLINE void for_each_head(const RopeHeads& a, int64_t first, const F& f) {
  const int64_t heads = a.heads, x_stride = a.x_stride, y_stride = a.y_stride;
  Cursor<const T> x(static_cast<const T*>(a.x) + a.first + first);
  Cursor<T> y(static_cast<T*>(a.y) + a.first + first);
  for (int64_t h = 0; h < heads; ++h, x += x_stride, y += y_stride) f(x.get(), y.get());
}

/// The n stored numbers of every head from `first` on with canonical NaN.
template <class T>
SIMDATTN_SHARED void make_canonical(const RopeHeads& a, int64_t first, int64_t n) {
  for_each_head<T>(a, first, [&](const T* /*from*/, T* to) SIMDATTN_LAMBDA {
    for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store_rounded(load(to + i, part), to + i, part); });
  });
}
/// Where a NaN may have been noticed.
template <class T>
SIMDATTN_INLINE void settle(Floats seen, const RopeHeads& a, int64_t first, int64_t n) {
  if (!all(finite(seen))) make_canonical<T>(a, first, n);
}

// From bf16 to bf16, two batches of neighbours are taken as the even elements and the odd ones: no lane changes its
// place, and rounding needs no comparison, as long as it cannot turn a NaN into a number. That is so where all NaN come
// from bf16, so the table must be finite.
template <class T>
constexpr bool kPairwise = std::is_same_v<T, bf16>;

SIMDATTN_SHARED bool is_finite(const float* cos, const float* sin, int64_t n) {
  Floats seen(0.0f);
  for_each_batch(
      n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { seen = notice(load(cos + i, part), load(sin + i, part), seen); });
  return all(finite(seen));
}

SIMDATTN_INLINE void rotate(Floats x0, Floats x1, Floats c, Floats s, Floats& y0, Floats& y1) {
  y0 = mul_add(x0, c, -(x1 * s));
  y1 = mul_add(x0, s, x1 * c);
}

/// f(index, part, count) over [i, n): kMost batches at a time, then four, unless kMost is 1, then single ones.
template <int64_t kMost, class F>
SIMDATTN_INLINE void for_some_batches(int64_t i, int64_t n, const F& f) {
  const auto several = [&](auto count) SIMDATTN_LAMBDA {
    for (; i + count * kLanes <= n; i += count * kLanes) f(i, All(), count);
  };
  if constexpr (kMost > 4) several(constant<kMost>);
  if constexpr (kMost >= 4) several(constant<4>);
  for (; i + kLanes <= n; i += kLanes) f(i, All(), constant<1>);
  if (i < n) f(i, first_lanes(n - i), constant<1>);
}

/// f(index, count) over [i, n), `count` steps of `width` that fill a line of L1 or kLines of them, then single ones;
/// moves i. Heads may lie a multiple of 4 KiB apart: L1 then drops a line before the next index, and neighbouring lines
/// come together.
template <int64_t kLines, class F>
SIMDATTN_INLINE void for_lines(int64_t& i, int64_t n, int64_t width, const F& f) {
  constexpr int64_t kCount = kAvx512 ? kLines : smaller(kParts, 2);
  for (; kCount > 1 && i + kCount * width <= n; i += kCount * width) f(i, constant<kCount>);
  for (; i + width <= n; i += width) f(i, constant<1>);
}

/// The cosines and sines of kCount batches of pairs from pair `first` on.
template <int64_t kCount>
SIMDATTN_INLINE void load_angles(const RopeHeads& a, Bits32 sign, int64_t first, auto part, Registers<kCount>& c,
                                 Registers<kCount>& s) {
  unroll<kCount>([&](auto i) SIMDATTN_LAMBDA {
    reg<i>(c) = load(a.cos + first + i * kLanes, part);
    reg<i>(s) = flip_sign(load(a.sin + first + i * kLanes, part), sign);
  });
}

/// rotate_halves() from bf16 to bf16, with a table that is finite; the number of pairs that have rotated.
SIMDATTN_INLINE int64_t rotate_half_pairs(const RopeHeads& a, Bits32 sign, Floats& seen) {
  const int64_t half = a.half;
  int64_t done = 0;
  for_lines<2>(done, half, 2 * kLanes, [&](int64_t first, auto count) SIMDATTN_LAMBDA {
    Registers<2 * count> c, s;
    load_angles<2 * count>(a, sign, first, All(), c, s);
    const auto part_evens_and_odds = [&](auto& x) SIMDATTN_LAMBDA {
      unroll<count>([&](auto i) SIMDATTN_LAMBDA {
        const Floats even = even_lanes(reg<2 * i>(x), reg<2 * i + 1>(x));
        reg<2 * i + 1>(x) = odd_lanes(reg<2 * i>(x), reg<2 * i + 1>(x));
        reg<2 * i>(x) = even;
      });
    };
    part_evens_and_odds(c), part_evens_and_odds(s);
    for_each_head<bf16>(a, first, [&](const bf16* from, bf16* to) SIMDATTN_LAMBDA {
      unroll<count>([&](auto i) SIMDATTN_LAMBDA {
        const Bits32 low = load_pairs(from + 2 * i * kLanes), high = load_pairs(from + half + 2 * i * kLanes);
        Floats even0, even1, odd0, odd1;
        rotate(even_of(low), even_of(high), reg<2 * i>(c), reg<2 * i>(s), even0, even1);
        rotate(odd_of(low), odd_of(high), reg<2 * i + 1>(c), reg<2 * i + 1>(s), odd0, odd1);
        store_pairs(even0, odd0, to + 2 * i * kLanes);
        store_pairs(even1, odd1, to + half + 2 * i * kLanes);
        seen = notice_pairs(even0, even1, odd0, odd1, seen);
      });
    });
  });
  return done;
}

/// Dimensions i and half + i of every head rotate together: the table is read once for all heads.
template <class T>
SIMDATTN_INLINE void rotate_halves(const RopeHeads& a, Bits32 sign) {
  const int64_t half = a.half;
  Registers<2> seen;
  clear(seen);
  int64_t done = 0;
  if constexpr (kPairwise<T>) {
    if (is_finite(a.cos, a.sin, half)) done = rotate_half_pairs(a, sign, reg<0>(seen));
  }
  for_some_batches<kPairwise<T> ? 1 : 4>(done, half, [&](int64_t first, auto part, auto count) SIMDATTN_LAMBDA {
    Registers<count> c, s;
    load_angles<count>(a, sign, first, part, c, s);
    for_each_head<T>(a, first, [&](const T* from, T* to) SIMDATTN_LAMBDA {
      Registers<count> y0, y1;
      unroll<count>([&](auto i) SIMDATTN_LAMBDA {
        rotate(in_register(load(from + i * kLanes, part)), in_register(load(from + half + i * kLanes, part)), reg<i>(c),
               reg<i>(s), reg<i>(y0), reg<i>(y1));
        put(reg<i>(y0), to + i * kLanes, part);
        put(reg<i>(y1), to + half + i * kLanes, part);
        if constexpr (kNotices<T> && (i % 2 == 1 || count == 1)) {
          constexpr int64_t kOther = i - i % 2;
          Floats& chain = reg<i / 2>(seen);
          chain = notice_pairs(reg<kOther>(y0), reg<kOther>(y1), reg<i>(y0), reg<i>(y1), chain);
        }
      });
    });
  });
  if constexpr (kNotices<T> || kPairwise<T>) settle<T>(reg<0>(seen) + reg<1>(seen), a, 0, 2 * half);
}

/// Dimensions 2i and 2i + 1 rotate together: y0 = x0 c + x1 (-s), y1 = x0 s + x1 c. From pair `done` on. Not by
/// for_each_head(), which takes one token a tenth longer.
template <class T>
SIMDATTN_INLINE void rotate_neighbours(const RopeHeads& a, Bits32 sign, int64_t done) {
  const T* x = static_cast<const T*>(a.x) + a.first + 2 * done;
  T* y = static_cast<T*>(a.y) + a.first + 2 * done;
  const float* cos = a.cos + done;
  const float* sin = a.sin + done;
  const int64_t n = 2 * (a.half - done), heads = a.heads, x_stride = a.x_stride, y_stride = a.y_stride;
  Registers<4> seen;
  clear(seen);
  constexpr int64_t kMost = kPairwise<T> ? 1 : kAvx512 ? 8 : 4;
  for_some_batches<kMost>(0, n, [&](int64_t dimension, auto part, auto count) SIMDATTN_LAMBDA {
    // An entry per dimension of what multiplies the pair's first number, and its second one.
    Registers<count> own, cross;
    const auto spread = [&](auto i, auto pairs) SIMDATTN_LAMBDA {
      const int64_t pair = dimension / 2 + i / 2 * kLanes;
      const Floats c = load(cos + pair, pairs);
      const Floats s = flip_sign(load(sin + pair, pairs), sign);
      const Floats minus_s = flip_sign(s, Bits32(0x80000000u));
      reg<i>(own) = zip_lower(c, s);
      reg<i>(cross) = zip_lower(minus_s, c);
      if constexpr (i + 1 < count) {
        reg<i + 1>(own) = zip_upper(c, s);
        reg<i + 1>(cross) = zip_upper(minus_s, c);
      }
    };
    if constexpr (count == 1) spread(constant<0>, first_lanes(smaller(n - dimension, kLanes) / 2));
    else unroll<count / 2>([&](auto i) SIMDATTN_LAMBDA { spread(constant<2 * i>, All()); });
    Cursor<const T> in(x + dimension);
    Cursor<T> out(y + dimension);
    for (int64_t h = 0; h < heads; ++h, in += x_stride, out += y_stride) {
      const T* const from = in.get();
      T* const to = out.get();
      Registers<count> rotated;
      unroll<count>([&](auto i) SIMDATTN_LAMBDA {
        const Floats v = load(from + i * kLanes, part);
        reg<i>(rotated) = mul_add(even_twice(v), reg<i>(own), odd_twice(v) * reg<i>(cross));
        put(reg<i>(rotated), to + i * kLanes, part);
        if constexpr (kNotices<T> && (i % 2 == 1 || count == 1)) {
          reg<i / 2>(seen) = notice(reg<i - i % 2>(rotated), reg<i>(rotated), reg<i / 2>(seen));
        }
      });
    }
  });
  if constexpr (kNotices<T>) {
    settle<T>((reg<0>(seen) + reg<1>(seen)) + (reg<2>(seen) + reg<3>(seen)), a, 2 * done, n);
  }
}

/// The same from bf16 to bf16, from pair 0 on, with a table that is finite; the number of pairs that have rotated.
SIMDATTN_INLINE int64_t rotate_pairs(const RopeHeads& a, Bits32 sign) {
  Floats seen(0.0f);
  int64_t done = 0;
  for_lines<4>(done, a.half, kLanes, [&](int64_t first, auto count) SIMDATTN_LAMBDA {
    Registers<count> c, s;
    load_angles<count>(a, sign, first, All(), c, s);
    for_each_head<bf16>(a, 2 * first, [&](const bf16* from, bf16* to) SIMDATTN_LAMBDA {
      unroll<count>([&](auto i) SIMDATTN_LAMBDA {
        const Bits32 pairs = load_pairs(from + 2 * i * kLanes);
        Floats y0, y1;
        rotate(even_of(pairs), odd_of(pairs), reg<i>(c), reg<i>(s), y0, y1);
        store_pairs(y0, y1, to + 2 * i * kLanes);
        seen = notice(y0, y1, seen);
      });
    });
  });
  settle<bf16>(seen, a, 0, 2 * done);
  return done;
}

template <class T>
void rope_heads(const RopeHeads& a) {
  const Bits32 sign(a.inverse ? 0x80000000u : 0u);
  if (!a.interleaved) {
    rotate_halves<T>(a, sign);
  } else {
    int64_t done = 0;
    if constexpr (kPairwise<T>) {
      if (is_finite(a.cos, a.sin, a.half)) done = rotate_pairs(a, sign);
    }
    if (done < a.half) rotate_neighbours<T>(a, sign, done);
  }
  // The dimensions that do not rotate.
  const int64_t end = a.first + 2 * a.half;
  if (a.x == a.y || 2 * a.half == a.dim) return;
  for_each_head<T>(a, -a.first, [&](const T* from, T* to) SIMDATTN_LAMBDA {
    __builtin_memcpy(to, from, static_cast<size_t>(a.first) * sizeof(T));
    __builtin_memcpy(to + end, from + end, static_cast<size_t>(a.dim - end) * sizeof(T));
  });
}

}  // namespace
}  // namespace simdattn
