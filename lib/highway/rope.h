// Rotary position embedding of all heads at one position and of columns of key panels.
#ifndef SIMDATTN_LIB_HIGHWAY_ROPE_H_
#define SIMDATTN_LIB_HIGHWAY_ROPE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "lib/cursor.h"
#include "lib/highway/elementwise.h"
#include "lib/highway/loads.h"
#include "lib/highway/target.h"
#include "lib/rotate_columns.h"
#include "lib/ukernels.h"

namespace simdattn {
namespace {

// NaN in the output is noticed in a vector of its own for all of a row and made canonical afterwards: a comparison and a
// selection per store would double the arithmetic of a rotation. Not where f32 is rounded to bf16 by integers, which could
// turn a NaN into a number.
template <class T>
constexpr bool kNotices = std::is_same_v<T, float> || (std::is_same_v<T, f16> && SIMDATTN_NATIVE_F16);

/// Notice() for two pairs of results. With fused multiply-add the first of each pair is enough: a NaN then comes from a
/// factor that is not finite, and both results have a product with it.
HWY_INLINE void NoticePairs(V a0, V a1, V b0, V b1, V& seen) {
#if HWY_NATIVE_FMA
  (void)a1;
  (void)b1;
#else
  Notice(a1, b1, seen);
#endif
  Notice(a0, b0, seen);
}

/// The same beside rounding, which leaves ports of multiplication free: one operation with AVX2 too.
HWY_INLINE void NoticeRounded(V a0, V a1, V b0, V b1, V& seen) {
#if HWY_TARGET == HWY_AVX2
  (void)a1;
  (void)b1;
  seen = hn::MulAdd(a0, b0, seen);
#else
  NoticePairs(a0, a1, b0, b1, seen);
#endif
}

/// Stores a result; where NaN is noticed, as it is.
HWY_INLINE void PutRotated(V v, float* y) { hn::StoreU(v, D(), y); }
HWY_INLINE void PutN(V v, float* y, size_t n) { hn::StoreN(v, D(), y, n); }
#if SIMDATTN_NATIVE_F16
HWY_INLINE VU16<D> NarrowHalves(V v) {
  return hn::BitCast(hn::Rebind<uint16_t, D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
}
HWY_INLINE void PutRotated(V v, f16* y) { hn::StoreU(NarrowHalves(v), hn::Rebind<uint16_t, D>(), Bits(y)); }
HWY_INLINE void PutN(V v, f16* y, size_t n) { hn::StoreN(NarrowHalves(v), hn::Rebind<uint16_t, D>(), Bits(y), n); }
#endif
template <class Y>
HWY_INLINE void PutRotated(V v, Y* y) {
  StoreRounded(D(), v, y);
}
template <class Y>
HWY_INLINE void PutN(V v, Y* y, size_t n) {
  StoreRoundedN(D(), v, y, n);
}

/// The stored numbers with canonical NaN.
template <class Y>
HWY_NOINLINE void MakeCanonical(Y* y, size_t n) {
  const D d;
  const size_t step = hn::Lanes(d);
  size_t i = 0;
  for (; i + step <= n; i += step) StoreRounded(d, LoadWide(d, y + i), y + i);
  if (i < n) StoreRoundedN(d, LoadWideN(d, y + i, n - i), y + i, n - i);
}
// From bf16 to bf16 a vector of pairs of elements is taken as two of f32, the even elements and the odd ones: no lane
// changes its place, and rounding needs no comparison, as long as it cannot turn a NaN into a number. That is so where
// all NaN come from bf16, so the table must be finite.
template <class T>
constexpr bool kEvenOdd = std::is_same_v<T, bf16>;

HWY_INLINE void LoadEvenOdd(const bf16* p, V& even, V& odd) {
  const D d;
  const hn::RebindToUnsigned<D> du;
  const auto both = hn::BitCast(du, hn::LoadU(hn::Repartition<uint16_t, D>(), Bits(p)));
  even = hn::BitCast(d, hn::ShiftLeft<16>(both));
  odd = hn::BitCast(d, hn::And(both, hn::Set(du, 0xFFFF0000u)));
}
HWY_INLINE void StoreEvenOdd(V even, V odd, bf16* p) {
  const D d;
  const hn::Repartition<uint16_t, D> d16;
  const auto e = PlusHalf(d, even), o = PlusHalf(d, odd);
#if HWY_ARCH_X86
  const hn::RebindToUnsigned<D> du;
  const auto upper = hn::OddEven(o, hn::BitCast(d16, hn::ShiftRight<16>(hn::BitCast(du, e))));
  const auto lower = hn::OddEven(hn::BitCast(d16, hn::ShiftLeft<16>(hn::BitCast(du, o))), e);
#else
  const auto upper = hn::InterleaveOdd(d16, e, o), lower = hn::InterleaveEven(d16, e, o);
#endif
  hn::StoreU(TiesToEven(upper, lower), d16, Bits(p));
}
HWY_INLINE bool IsFiniteTable(const float* cos, const float* sin, size_t half) {
  const D d;
  const size_t step = hn::Lanes(d);
  V seen = NothingNoticed();
  for (size_t i = 0; i < half; i += step)
    Notice(hn::LoadN(d, cos + i, half - i), hn::LoadN(d, sin + i, half - i), seen);
  return !Noticed(seen);
}

/// Heads that take one piece of the table after the other, so that their rows stay in L1.
constexpr int64_t kHeads = 32;

/// Rows of some heads, at the first dimension that rotates.
template <class T>
struct Heads {
  const T* x;
  T* y;
  int64_t x_stride;
  int64_t y_stride;
  int64_t heads;
};

HWY_INLINE void Rotate(V low, V high, V c, V s, V& new_low, V& new_high) {
  new_low = hn::MulSub(low, c, hn::Mul(high, s));
  new_high = hn::MulAdd(low, s, hn::Mul(high, c));
}

/// kVectors (1, 2 or 4) vectors of dimensions from i on rotate with those from half + i on. Their part of the table is kept
/// in registers for all heads.
template <size_t kVectors, class T>
HWY_INLINE void RotateHalves(const Heads<T>& a, const float* cos, const float* sin, V sign, size_t half, size_t i,
                             V& seen0, V& seen1) {
  const D d;
  const size_t step = hn::Lanes(d);
  const auto at = [&](size_t k) SIMDATTN_LAMBDA { return i + (k < kVectors ? k : 0) * step; };
  const V c0 = hn::LoadU(d, cos + at(0)), c1 = hn::LoadU(d, cos + at(1));
  const V c2 = hn::LoadU(d, cos + at(2)), c3 = hn::LoadU(d, cos + at(3));
  const V s0 = hn::Xor(hn::LoadU(d, sin + at(0)), sign), s1 = hn::Xor(hn::LoadU(d, sin + at(1)), sign);
  const V s2 = hn::Xor(hn::LoadU(d, sin + at(2)), sign), s3 = hn::Xor(hn::LoadU(d, sin + at(3)), sign);
  const int64_t x_stride = a.x_stride;
  const int64_t y_stride = a.y_stride;
  Cursor<const T> from(a.x + i);
  Cursor<T> to(a.y + i);
  for (int64_t h = a.heads; h > 0; --h) {
    const T* const x = from.get();
    T* const y = to.get();
    const auto rotate = [&](size_t k, V c, V s, V& low, V& high) SIMDATTN_LAMBDA {
      Rotate(InRegister(LoadWide(d, x + k * step)), InRegister(LoadWide(d, x + half + k * step)), c, s, low, high);
      PutRotated(low, y + k * step);
      PutRotated(high, y + half + k * step);
    };
    const auto two = [&](size_t k, V ca, V sa, V cb, V sb, V& seen) SIMDATTN_LAMBDA {
      V low0, high0, low1, high1;
      rotate(k, ca, sa, low0, high0);
      rotate(k + 1, cb, sb, low1, high1);
      if constexpr (kNotices<T>) NoticePairs(low0, high0, low1, high1, seen);
    };
    if constexpr (kVectors == 1) {
      V low, high;
      rotate(0, c0, s0, low, high);
      if constexpr (kNotices<T>) Notice(low, high, seen0);
    } else {
      two(0, c0, s0, c1, s1, seen0);
    }
    if constexpr (kVectors == 4) two(2, c2, s2, c3, s3, seen1);
    from += x_stride;
    to += y_stride;
  }
}

/// The table of two vectors of bf16: that of the even elements and that of the odd ones.
HWY_INLINE void LoadTableEvenOdd(const float* table, V sign, V& even, V& odd) {
  const D d;
  const V t0 = hn::Xor(hn::LoadU(d, table), sign), t1 = hn::Xor(hn::LoadU(d, table + hn::Lanes(d)), sign);
  even = hn::ConcatEven(d, t1, t0);
  odd = hn::ConcatOdd(d, t1, t0);
}

/// The same for kVectors = 2 or 4 vectors.
template <size_t kVectors>
HWY_INLINE void RotateHalvesEvenOdd(const Heads<bf16>& a, const float* cos, const float* sin, V sign, size_t half,
                                    size_t i, V& seen) {
  const D d;
  const size_t step = hn::Lanes(d);
  const size_t next = kVectors == 4 ? 2 * step : 0;
  const V plus = hn::Zero(d);
  V even_c0, odd_c0, even_s0, odd_s0, even_c1, odd_c1, even_s1, odd_s1;
  LoadTableEvenOdd(cos + i, plus, even_c0, odd_c0);
  LoadTableEvenOdd(sin + i, sign, even_s0, odd_s0);
  LoadTableEvenOdd(cos + i + next, plus, even_c1, odd_c1);
  LoadTableEvenOdd(sin + i + next, sign, even_s1, odd_s1);
  Cursor<const bf16> from(a.x + i);
  Cursor<bf16> to(a.y + i);
  for (int64_t h = a.heads; h > 0; --h) {
    const auto two = [&](const bf16* x, bf16* y, V even_c, V odd_c, V even_s, V odd_s) SIMDATTN_LAMBDA {
      V even_low, odd_low, even_high, odd_high;
      LoadEvenOdd(x, even_low, odd_low);
      LoadEvenOdd(x + half, even_high, odd_high);
      V low0, high0, low1, high1;
      Rotate(even_low, even_high, even_c, even_s, low0, high0);
      Rotate(odd_low, odd_high, odd_c, odd_s, low1, high1);
      StoreEvenOdd(low0, low1, y);
      StoreEvenOdd(high0, high1, y + half);
      NoticeRounded(low0, high0, low1, high1, seen);
    };
    two(from.get(), to.get(), even_c0, odd_c0, even_s0, odd_s0);
    if constexpr (kVectors == 4) two(from.get() + next, to.get() + next, even_c1, odd_c1, even_s1, odd_s1);
    from += a.x_stride;
    to += a.y_stride;
  }
}

/// Dimensions i and half + i rotate together.
template <class T>
HWY_NOINLINE void HalfSplit(const Heads<T>& a, const float* cos, const float* sin, size_t half, bool inverse) {
  const D d;
  const V sign = hn::Set(d, inverse ? -0.0f : 0.0f);
  const size_t step = hn::Lanes(d);
  V seen0 = NothingNoticed(), seen1 = seen0;
  size_t i = 0;
  if constexpr (kEvenOdd<T>) {
    if (IsFiniteTable(cos, sin, half)) {
#if HWY_ARCH_X86 && HWY_MAX_BYTES == 64
      for (; i + 4 * step <= half; i += 4 * step) RotateHalvesEvenOdd<4>(a, cos, sin, sign, half, i, seen0);
#endif
      for (; i + 2 * step <= half; i += 2 * step) RotateHalvesEvenOdd<2>(a, cos, sin, sign, half, i, seen0);
    }
  }
  for (; i + 4 * step <= half; i += 4 * step) RotateHalves<4>(a, cos, sin, sign, half, i, seen0, seen1);
  for (; i + 2 * step <= half; i += 2 * step) RotateHalves<2>(a, cos, sin, sign, half, i, seen0, seen1);
  if (i + step <= half) {
    RotateHalves<1>(a, cos, sin, sign, half, i, seen0, seen1);
    i += step;
  }
  if (i < half) {
    const size_t n = half - i;
    const V c = hn::LoadN(d, cos + i, n);
    const V s = hn::Xor(hn::LoadN(d, sin + i, n), sign);
    for (int64_t h = 0; h < a.heads; ++h) {
      const T* x = a.x + h * a.x_stride + i;
      T* y = a.y + h * a.y_stride + i;
      V low, high;
      Rotate(LoadWideN(d, x, n), LoadWideN(d, x + half, n), c, s, low, high);
      PutN(low, y, n);
      PutN(high, y + half, n);
      if constexpr (kNotices<T>) Notice(low, high, seen0);
    }
  }
  if constexpr (kNotices<T> || kEvenOdd<T>) {
    if (HWY_UNLIKELY(Noticed(seen0) || Noticed(seen1))) {
      for (int64_t h = 0; h < a.heads; ++h) MakeCanonical(a.y + h * a.y_stride, 2 * half);
    }
  }
}

/// The even and odd dimensions of a vector, each twice.
template <class X>
HWY_INLINE void LoadInterleaved(const X* x, V& even, V& odd) {
  const D d;
  const V v = LoadWide(d, x);
  even = hn::DupEven(v);
  odd = hn::DupOdd(v);
}
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
HWY_INLINE void LoadInterleaved(const float* x, V& even, V& odd) {
  // Loads that duplicate take no shuffle port, which would be the bottleneck. Compilers would load once and shuffle. Each
  // reads the whole vector at x.
#if HWY_MAX_BYTES == 64
  const __m512_u& memory = *reinterpret_cast<const __m512_u*>(x);
#else
  const __m256_u& memory = *reinterpret_cast<const __m256_u*>(x);
#endif
  asm("vmovsldup %1, %0" : "=v"(even.raw) : "m"(memory));
  asm("vmovshdup %1, %0" : "=v"(odd.raw) : "m"(memory));
}
#endif

/// What multiplies the first numbers of pairs and what the second ones, in both dimensions of each:
///   y0 = x0 c + x1 (-s),  y1 = x0 s + x1 c
HWY_INLINE void SpreadLower(V c, V s, V& first, V& second) {
  first = hn::InterleaveWholeLower(D(), c, s);
  second = hn::InterleaveWholeLower(D(), hn::Neg(s), c);
}
HWY_INLINE void SpreadUpper(V c, V s, V& first, V& second) {
  first = hn::InterleaveWholeUpper(D(), c, s);
  second = hn::InterleaveWholeUpper(D(), hn::Neg(s), c);
}

/// kVectors (2, 4 or 8) vectors of dimensions from 2 i on rotate. Their part of the table is kept in registers for all heads.
template <size_t kVectors, class T>
HWY_INLINE void RotatePairs(const Heads<T>& a, const float* cos, const float* sin, V sign, size_t i, V& seen0,
                            V& seen1) {
  const D d;
  const size_t step = hn::Lanes(d);
  const auto at = [&](size_t k) SIMDATTN_LAMBDA { return i + (2 * k < kVectors ? k : 0) * step; };
  const V c0 = hn::LoadU(d, cos + at(0)), c1 = hn::LoadU(d, cos + at(1));
  const V c2 = hn::LoadU(d, cos + at(2)), c3 = hn::LoadU(d, cos + at(3));
  const V s0 = hn::Xor(hn::LoadU(d, sin + at(0)), sign), s1 = hn::Xor(hn::LoadU(d, sin + at(1)), sign);
  const V s2 = hn::Xor(hn::LoadU(d, sin + at(2)), sign), s3 = hn::Xor(hn::LoadU(d, sin + at(3)), sign);
  V p0, q0, p1, q1, p2, q2, p3, q3, p4, q4, p5, q5, p6, q6, p7, q7;
  SpreadLower(c0, s0, p0, q0);
  SpreadUpper(c0, s0, p1, q1);
  SpreadLower(c1, s1, p2, q2);
  SpreadUpper(c1, s1, p3, q3);
  SpreadLower(c2, s2, p4, q4);
  SpreadUpper(c2, s2, p5, q5);
  SpreadLower(c3, s3, p6, q6);
  SpreadUpper(c3, s3, p7, q7);
  const int64_t x_stride = a.x_stride;
  const int64_t y_stride = a.y_stride;
  Cursor<const T> from(a.x + 2 * i);
  Cursor<T> to(a.y + 2 * i);
  for (int64_t h = a.heads; h > 0; --h) {
    const T* const x = from.get();
    T* const y = to.get();
    const auto rotate = [&](size_t k, V p, V q) SIMDATTN_LAMBDA {
      V even, odd;
      LoadInterleaved(x + k * step, even, odd);
      const V rotated = hn::MulAdd(even, p, hn::Mul(odd, q));
      PutRotated(rotated, y + k * step);
      return rotated;
    };
    const auto two = [&](size_t k, V pa, V qa, V pb, V qb, V& seen) SIMDATTN_LAMBDA {
      const V y0 = rotate(k, pa, qa);
      const V y1 = rotate(k + 1, pb, qb);
      if constexpr (kNotices<T>) Notice(y0, y1, seen);
    };
    two(0, p0, q0, p1, q1, seen0);
    if constexpr (kVectors >= 4) two(2, p2, q2, p3, q3, seen1);
    if constexpr (kVectors == 8) {
      two(4, p4, q4, p5, q5, seen0);
      two(6, p6, q6, p7, q7, seen1);
    }
    from += x_stride;
    to += y_stride;
  }
}

/// The same for kVectors = 2 or 4 vectors of bf16.
template <size_t kVectors>
HWY_INLINE void RotatePairsEvenOdd(const Heads<bf16>& a, const float* cos, const float* sin, V sign, size_t i,
                                   V& seen) {
  const D d;
  const size_t step = hn::Lanes(d);
  const auto at = [&](size_t k) SIMDATTN_LAMBDA { return i + (k < kVectors ? k : 0) * step; };
  const V c0 = hn::LoadU(d, cos + at(0)), c1 = hn::LoadU(d, cos + at(1));
  const V c2 = hn::LoadU(d, cos + at(2)), c3 = hn::LoadU(d, cos + at(3));
  const V s0 = hn::Xor(hn::LoadU(d, sin + at(0)), sign), s1 = hn::Xor(hn::LoadU(d, sin + at(1)), sign);
  const V s2 = hn::Xor(hn::LoadU(d, sin + at(2)), sign), s3 = hn::Xor(hn::LoadU(d, sin + at(3)), sign);
  Cursor<const bf16> from(a.x + 2 * i);
  Cursor<bf16> to(a.y + 2 * i);
  for (int64_t h = a.heads; h > 0; --h) {
    const auto two = [&](size_t k, V ca, V sa, V cb, V sb) SIMDATTN_LAMBDA {
      const bf16* const x = from.get() + 2 * k * step;
      bf16* const y = to.get() + 2 * k * step;
      V even0, odd0, even1, odd1;
      LoadEvenOdd(x, even0, odd0);
      LoadEvenOdd(x + 2 * step, even1, odd1);
      V low0, high0, low1, high1;
      Rotate(even0, odd0, ca, sa, low0, high0);
      Rotate(even1, odd1, cb, sb, low1, high1);
      StoreEvenOdd(low0, high0, y);
      StoreEvenOdd(low1, high1, y + 2 * step);
      NoticeRounded(low0, high0, low1, high1, seen);
    };
    two(0, c0, s0, c1, s1);
    if constexpr (kVectors == 4) two(2, c2, s2, c3, s3);
    from += a.x_stride;
    to += a.y_stride;
  }
}

/// Dimensions 2i and 2i + 1 rotate together.
template <class T>
HWY_NOINLINE void Interleaved(const Heads<T>& a, const float* cos, const float* sin, size_t half, bool inverse) {
  const D d;
  const V sign = hn::Set(d, inverse ? -0.0f : 0.0f);
  const size_t step = hn::Lanes(d);
  V seen0 = NothingNoticed(), seen1 = seen0;
  size_t i = 0;
  if constexpr (kEvenOdd<T>) {
    if (IsFiniteTable(cos, sin, half)) {
#if HWY_ARCH_X86 && HWY_MAX_BYTES == 64
      for (; i + 4 * step <= half; i += 4 * step) RotatePairsEvenOdd<4>(a, cos, sin, sign, i, seen0);
#endif
      for (; i + 2 * step <= half; i += 2 * step) RotatePairsEvenOdd<2>(a, cos, sin, sign, i, seen0);
    }
  }
#if HWY_ARCH_X86 && HWY_MAX_BYTES == 64
  // A whole row of 128 dimensions: heads in the order of memory. Rows in two halves, all heads of one and then of the other, take half as
  // long again where they come from memory.
  for (; i + 4 * step <= half; i += 4 * step) RotatePairs<8>(a, cos, sin, sign, i, seen0, seen1);
#endif
  for (; i + 2 * step <= half; i += 2 * step) RotatePairs<4>(a, cos, sin, sign, i, seen0, seen1);
  if (i + step <= half) {
    RotatePairs<2>(a, cos, sin, sign, i, seen0, seen1);
    i += step;
  }
  for (; i < half; i += step / 2) {
    const size_t pairs = HWY_MIN(step / 2, half - i);
    V p, q;
    SpreadLower(hn::LoadN(d, cos + i, pairs), hn::Xor(hn::LoadN(d, sin + i, pairs), sign), p, q);
    for (int64_t h = 0; h < a.heads; ++h) {
      const V v = LoadWideN(d, a.x + h * a.x_stride + 2 * i, 2 * pairs);
      const V rotated = hn::MulAdd(hn::DupEven(v), p, hn::Mul(hn::DupOdd(v), q));
      PutN(rotated, a.y + h * a.y_stride + 2 * i, 2 * pairs);
      if constexpr (kNotices<T>) Notice(rotated, rotated, seen0);
    }
  }
  if constexpr (kNotices<T> || kEvenOdd<T>) {
    if (HWY_UNLIKELY(Noticed(seen0) || Noticed(seen1))) {
      for (int64_t h = 0; h < a.heads; ++h) MakeCanonical(a.y + h * a.y_stride, 2 * half);
    }
  }
}

template <class T>
void Rope(const RopeHeads& a) {
  const T* x = static_cast<const T*>(a.x);
  T* y = static_cast<T*>(a.y);
  for (int64_t h = 0; h < a.heads; h += kHeads) {
    const Heads<T> heads{x + h * a.x_stride + a.first, y + h * a.y_stride + a.first, a.x_stride, a.y_stride,
                         HWY_MIN(kHeads, a.heads - h)};
    const auto rotate = a.interleaved ? Interleaved<T> : HalfSplit<T>;
    rotate(heads, a.cos, a.sin, static_cast<size_t>(a.half), a.inverse);
  }
  // The dimensions that do not rotate.
  const int64_t end = a.first + 2 * a.half;
  if (a.x == a.y || 2 * a.half == a.dim) return;
  for (int64_t h = 0; h < a.heads; ++h) {
    const T* from = x + h * a.x_stride;
    T* to = y + h * a.y_stride;
    std::memcpy(to, from, static_cast<size_t>(a.first) * sizeof(T));
    std::memcpy(to + end, from + end, static_cast<size_t>(a.dim - end) * sizeof(T));
  }
}

template <class T>
HWY_NOINLINE void RotateRows(const PairRows<T>& a) {
  const D d;
  const V sign = hn::Set(d, a.inverse ? -0.0f : 0.0f);
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  const auto cos = [&](int64_t i) SIMDATTN_LAMBDA { return hn::Set(d, a.cos[i]); };
  const auto sin = [&](int64_t i) SIMDATTN_LAMBDA { return hn::Xor(hn::Set(d, a.sin[i]), sign); };
  V seen = NothingNoticed();
  V low0, high0, low1, high1;
  if constexpr (!kEvenOdd<T>) {
    const int64_t next = a.interleaved ? 2 * kPanelWidth : kPanelWidth;
    const int64_t x_distance = a.interleaved ? kPanelWidth : a.x_distance;
    const int64_t y_distance = a.interleaved ? kPanelWidth : a.y_distance;
    Cursor<const T> from(a.x);
    Cursor<T> to(a.y);
    for (int64_t i = 0; i < a.pairs; ++i, from += next, to += next) {
      const V c = cos(i), s = sin(i);
      const T* const x = from.get();
      T* const y = to.get();
      for (int64_t k = 0; k < kPanelWidth; k += 2 * step) {
        Rotate(LoadWide(d, x + k), LoadWide(d, x + x_distance + k), c, s, low0, high0);
        Rotate(LoadWide(d, x + k + step), LoadWide(d, x + x_distance + k + step), c, s, low1, high1);
        PutRotated(low0, y + k);
        PutRotated(low1, y + k + step);
        PutRotated(high0, y + y_distance + k);
        PutRotated(high1, y + y_distance + k + step);
        if constexpr (kNotices<T>) NoticePairs(low0, high0, low1, high1, seen);
      }
    }
  } else if (a.interleaved) {
    Cursor<const T> from(a.x);
    Cursor<T> to(a.y);
    for (int64_t i = 0; i < a.pairs; ++i, from += 2 * kPanelWidth, to += 2 * kPanelWidth) {
      const V c = cos(i), s = sin(i);
      const T* const x = from.get();
      T* const y = to.get();
      for (int64_t k = 0; k < 2 * kPanelWidth; k += 4 * step) {
        V even0, odd0, even1, odd1;
        LoadEvenOdd(x + k, even0, odd0);
        LoadEvenOdd(x + k + 2 * step, even1, odd1);
        Rotate(even0, odd0, c, s, low0, high0);
        Rotate(even1, odd1, c, s, low1, high1);
        StoreEvenOdd(low0, high0, y + k);
        StoreEvenOdd(low1, high1, y + k + 2 * step);
        NoticeRounded(low0, high0, low1, high1, seen);
      }
    }
  } else {
    Cursor<const T> from(a.x);
    Cursor<T> to(a.y);
    for (int64_t i = 0; i < a.pairs; i += 2, from += 2 * kPanelWidth, to += 2 * kPanelWidth) {
      const V even_c = cos(i), odd_c = cos(i + 1), even_s = sin(i), odd_s = sin(i + 1);
      const T* const x = from.get();
      T* const y = to.get();
      for (int64_t k = 0; k < 2 * kPanelWidth; k += 2 * step) {
        V even_low, odd_low, even_high, odd_high;
        LoadEvenOdd(x + k, even_low, odd_low);
        LoadEvenOdd(x + a.x_distance + k, even_high, odd_high);
        Rotate(even_low, even_high, even_c, even_s, low0, high0);
        Rotate(odd_low, odd_high, odd_c, odd_s, low1, high1);
        StoreEvenOdd(low0, low1, y + k);
        StoreEvenOdd(high0, high1, y + a.y_distance + k);
        NoticeRounded(low0, high0, low1, high1, seen);
      }
    }
  }
  if constexpr (kNotices<T> || kEvenOdd<T>) {
    if (HWY_UNLIKELY(Noticed(seen))) {
      const size_t n = static_cast<size_t>(a.pairs * kPanelWidth);
      MakeCanonical(a.y, a.interleaved ? 2 * n : n);
      if (!a.interleaved) MakeCanonical(a.y + a.y_distance, n);
    }
  }
}
template <class T>
HWY_NOINLINE void RotateLanes(T* x0, T* x1, float c, float s) {
  const D d;
  for (int64_t k = 0; k < kPanelWidth; k += static_cast<int64_t>(hn::Lanes(d))) {
    V low, high;
    Rotate(LoadWide(d, x0 + k), LoadWide(d, x1 + k), hn::Set(d, c), hn::Set(d, s), low, high);
    StoreRounded(d, low, x0 + k);
    StoreRounded(d, high, x1 + k);
  }
}

template <class T>
HWY_INLINE void RotateAllColumns(const RotateColumns& a) {
  const bool by_rows = !kEvenOdd<T> || IsFiniteTable(a.cos, a.sin, static_cast<size_t>(a.half));
  rotate_columns_of<T>(a, by_rows, RotateRows<T>, RotateLanes<T>);
}

void RopeF32(const RopeHeads& a) { Rope<float>(a); }
void RopeBF16(const RopeHeads& a) { Rope<bf16>(a); }
void RopeF16(const RopeHeads& a) { Rope<f16>(a); }

void RotateColumnsF32(const RotateColumns& a) { RotateAllColumns<float>(a); }
void RotateColumnsBF16(const RotateColumns& a) { RotateAllColumns<bf16>(a); }
void RotateColumnsF16(const RotateColumns& a) { RotateAllColumns<f16>(a); }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_ROPE_H_
