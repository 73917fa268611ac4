// Rotary position embedding of all heads at one position, per Highway target.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "lib/ukernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/highway/rope.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "lib/highway/loads-inl.h"
#include "lib/highway/slots-inl.h"

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// NaN in f32 output is noticed in a vector of its own for all of a row and made canonical afterwards: a comparison and a
// selection per store would double the arithmetic of a rotation.

/// What Notice() has seen so far.
HWY_INLINE V NothingNoticed() { return hn::Zero(D()); }
/// Remembers that y0 or y1 holds a NaN; other large numbers may be taken for one.
HWY_INLINE void Notice(V y0, V y1, V& seen) {
#if HWY_TARGET == HWY_AVX2
  seen = V{_mm256_or_ps(seen.raw, _mm256_cmp_ps(y0.raw, y1.raw, _CMP_UNORD_Q))};  // off the ports of multiplication
#else
  seen = hn::MulAdd(y0, y1, seen);
#endif
}
HWY_INLINE bool Noticed(V seen) { return !hn::AllFalse(D(), hn::IsNaN(seen)); }

/// Stores a result: f32 as it is.
HWY_INLINE void Put(V v, float* y) { hn::StoreU(v, D(), y); }
HWY_INLINE void PutN(V v, float* y, size_t n) { hn::StoreN(v, D(), y, n); }
template <class Y>
HWY_INLINE void Put(V v, Y* y) {
  StoreRounded(D(), v, y);
}
template <class Y>
HWY_INLINE void PutN(V v, Y* y, size_t n) {
  StoreRoundedN(D(), v, y, n);
}

/// The stored numbers with canonical NaN.
HWY_NOINLINE void MakeCanonical(float* y, size_t n) {
  const D d;
  const size_t step = hn::Lanes(d);
  size_t i = 0;
  for (; i + step <= n; i += step) StoreRounded(d, hn::LoadU(d, y + i), y + i);
  if (i < n) StoreRoundedN(d, hn::LoadN(d, y + i, n - i), y + i, n - i);
}
/// A vector that stays in its register: gcc would fold the load into each of the instructions that use it.
HWY_INLINE V InRegister(V v) {
#if HWY_ARCH_X86
  asm("" : "+v"(v.raw));
#endif
  return v;
}

/// Heads that take one piece of the table after the other, so that their rows stay in the first-level cache.
constexpr int64_t kHeads = 16;

/// Rows of `heads` heads, at the first dimension that turns.
template <class X, class Y>
struct Heads {
  const X* x;
  Y* y;
  int64_t x_stride;
  int64_t y_stride;
  int64_t heads;
};

/// Dimensions i and half + i of two vectors of f32.
template <class Y>
HWY_INLINE void TurnHalves(V x0, V x1, V c, V s, Y* y0, Y* y1, V& seen) {
  const V turned0 = hn::MulSub(x0, c, hn::Mul(x1, s));
  const V turned1 = hn::MulAdd(x0, s, hn::Mul(x1, c));
  Put(turned0, y0);
  Put(turned1, y1);
  if constexpr (std::is_same_v<Y, float>) Notice(turned0, turned1, seen);
}

/// Dimensions i and half + i turn together. Four vectors of the table are kept for all heads.
template <class X, class Y>
HWY_INLINE void HalfSplit(const Heads<X, Y>& a, const float* cos, const float* sin, size_t half, V sign) {
  const D d;
  const size_t step = hn::Lanes(d);
  const int64_t heads = a.heads;
  const int64_t x_stride = a.x_stride;
  const int64_t y_stride = a.y_stride;
  V seen0 = NothingNoticed(), seen1 = seen0;
  size_t i = 0;
  for (; i + 4 * step <= half; i += 4 * step) {
    const V c0 = hn::LoadU(d, cos + i), c1 = hn::LoadU(d, cos + i + step);
    const V c2 = hn::LoadU(d, cos + i + 2 * step), c3 = hn::LoadU(d, cos + i + 3 * step);
    const V s0 = hn::Xor(hn::LoadU(d, sin + i), sign), s1 = hn::Xor(hn::LoadU(d, sin + i + step), sign);
    const V s2 = hn::Xor(hn::LoadU(d, sin + i + 2 * step), sign), s3 = hn::Xor(hn::LoadU(d, sin + i + 3 * step), sign);
    const X* x0 = a.x + i;
    Y* y0 = a.y + i;
    for (int64_t h = 0; h < heads; ++h) {
      const auto turn = [&](size_t at, V c, V s, V& seen) HWY_ATTR {
        const V low = InRegister(LoadWide(d, x0 + at));
        const V high = InRegister(LoadWide(d, x0 + half + at));
        TurnHalves(low, high, c, s, y0 + at, y0 + half + at, seen);
      };
      turn(0, c0, s0, seen0);
      turn(step, c1, s1, seen1);
      turn(2 * step, c2, s2, seen0);
      turn(3 * step, c3, s3, seen1);
      x0 += x_stride;
      y0 += y_stride;
    }
  }
  for (; i < half; i += step) {
    const size_t n = HWY_MIN(step, half - i);
    const V c = hn::LoadN(d, cos + i, n);
    const V s = hn::Xor(hn::LoadN(d, sin + i, n), sign);
    for (int64_t h = 0; h < heads; ++h) {
      const X* x0 = a.x + h * x_stride + i;
      Y* y0 = a.y + h * y_stride + i;
      if (n == step) {
        TurnHalves(LoadWide(d, x0), LoadWide(d, x0 + half), c, s, y0, y0 + half, seen0);
      } else {
        const V low = LoadWideN(d, x0, n);
        const V high = LoadWideN(d, x0 + half, n);
        const V turned0 = hn::MulSub(low, c, hn::Mul(high, s));
        const V turned1 = hn::MulAdd(low, s, hn::Mul(high, c));
        PutN(turned0, y0, n);
        PutN(turned1, y0 + half, n);
        if constexpr (std::is_same_v<Y, float>) Notice(turned0, turned1, seen1);
      }
    }
  }
  if constexpr (std::is_same_v<Y, float>) {
    if (HWY_UNLIKELY(Noticed(seen0) || Noticed(seen1))) {
      for (int64_t h = 0; h < heads; ++h) MakeCanonical(a.y + h * y_stride, 2 * half);
    }
  }
}

/// Pairs of the table that are spread to one entry per dimension at a time.
constexpr size_t kSpread = 128;

/// first[i] multiplies the pair's first number and second[i] its second one, in both dimensions:
///   y0 = x0 c + x1 (-s),  y1 = x0 s + x1 c
HWY_INLINE void Spread(const float* cos, const float* sin, size_t pairs, V sign, float* first, float* second) {
  const D d;
  const size_t step = hn::Lanes(d);
  for (size_t i = 0; i < pairs; i += step) {
    const size_t n = HWY_MIN(step, pairs - i);
    const V c = hn::LoadN(d, cos + i, n);
    const V s = hn::Xor(hn::LoadN(d, sin + i, n), sign);
    hn::StoreInterleaved2(c, s, d, first + 2 * i);
    hn::StoreInterleaved2(hn::Neg(s), c, d, second + 2 * i);
  }
}

/// The even and odd dimensions of a vector, each twice.
template <class X>
HWY_INLINE void LoadPairs(const X* x, V& even, V& odd) {
  const D d;
  const V v = LoadWide(d, x);
  even = hn::DupEven(v);
  odd = hn::DupOdd(v);
}
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
HWY_INLINE void LoadPairs(const float* x, V& even, V& odd) {
  // Loads that duplicate take no shuffle port, which would be the bottleneck. The compiler must not see that both load
  // the same.
  const float* again = x;
  asm("" : "+r"(again));
#if HWY_MAX_BYTES == 64
  even = V{_mm512_moveldup_ps(_mm512_loadu_ps(x))};
  odd = V{_mm512_movehdup_ps(_mm512_loadu_ps(again))};
#else
  even = V{_mm256_moveldup_ps(_mm256_loadu_ps(x))};
  odd = V{_mm256_movehdup_ps(_mm256_loadu_ps(again))};
#endif
}
#endif

/// Dimensions 2i and 2i + 1 turn together; `n` dimensions. Four vectors of the spread table are kept for all heads.
template <class X, class Y>
HWY_INLINE void Interleaved(const Heads<X, Y>& a, const float* first, const float* second, size_t n) {
  const D d;
  const size_t step = hn::Lanes(d);
  const int64_t heads = a.heads;
  const int64_t x_stride = a.x_stride;
  const int64_t y_stride = a.y_stride;
  V seen0 = NothingNoticed(), seen1 = seen0;
  size_t i = 0;
  for (; i + 4 * step <= n; i += 4 * step) {
    const V a0 = hn::LoadU(d, first + i), b0 = hn::LoadU(d, second + i);
    const V a1 = hn::LoadU(d, first + i + step), b1 = hn::LoadU(d, second + i + step);
    const V a2 = hn::LoadU(d, first + i + 2 * step), b2 = hn::LoadU(d, second + i + 2 * step);
    const V a3 = hn::LoadU(d, first + i + 3 * step), b3 = hn::LoadU(d, second + i + 3 * step);
    const X* x = a.x + i;
    Y* y = a.y + i;
    for (int64_t h = 0; h < heads; ++h) {
      const auto turn = [&](size_t at, V p, V q) HWY_ATTR {
        V even, odd;
        LoadPairs(x + at, even, odd);
        const V turned = hn::MulAdd(even, p, hn::Mul(odd, q));
        Put(turned, y + at);
        return turned;
      };
      const V y0 = turn(0, a0, b0);
      const V y1 = turn(step, a1, b1);
      if constexpr (std::is_same_v<Y, float>) Notice(y0, y1, seen0);
      const V y2 = turn(2 * step, a2, b2);
      const V y3 = turn(3 * step, a3, b3);
      if constexpr (std::is_same_v<Y, float>) Notice(y2, y3, seen1);
      x += x_stride;
      y += y_stride;
    }
  }
  for (; i < n; i += step) {
    const size_t m = HWY_MIN(step, n - i);
    const V p = hn::LoadU(d, first + i);
    const V q = hn::LoadU(d, second + i);
    for (int64_t h = 0; h < heads; ++h) {
      const V v = LoadWideN(d, a.x + h * x_stride + i, m);
      const V turned = hn::MulAdd(hn::DupEven(v), p, hn::Mul(hn::DupOdd(v), q));
      PutN(turned, a.y + h * y_stride + i, m);
      if constexpr (std::is_same_v<Y, float>) Notice(turned, turned, seen0);
    }
  }
  if constexpr (std::is_same_v<Y, float>) {
    if (HWY_UNLIKELY(Noticed(seen0) || Noticed(seen1))) {
      for (int64_t h = 0; h < heads; ++h) MakeCanonical(a.y + h * y_stride, n);
    }
  }
}

template <class X, class Y>
HWY_INLINE void Copy(const X* x, Y* y, size_t n) {
  if constexpr (std::is_same_v<X, Y>) {
    std::memcpy(y, x, n * sizeof(X));
  } else {
    const D d;
    const size_t step = hn::Lanes(d);
    size_t i = 0;
    for (; i + step <= n; i += step) StoreRounded(d, LoadWide(d, x + i), y + i);
    if (i < n) StoreRoundedN(d, LoadWideN(d, x + i, n - i), y + i, n - i);
  }
}

template <class X, class Y>
HWY_INLINE void Rope(const RopeHeads& a) {
  const D d;
  const V sign = hn::Set(d, a.inverse ? -0.0f : 0.0f);
  const X* const x = static_cast<const X*>(a.x);
  Y* const y = static_cast<Y*>(a.y);
  const size_t half = static_cast<size_t>(a.half);
  const auto group = [&](int64_t h, int64_t dimension) {
    return Heads<X, Y>{x + h * a.x_stride + dimension, y + h * a.y_stride + dimension, a.x_stride, a.y_stride,
                       HWY_MIN(kHeads, a.heads - h)};
  };
  if (!a.interleaved) {
    for (int64_t h = 0; h < a.heads; h += kHeads) HalfSplit(group(h, a.first), a.cos, a.sin, half, sign);
  } else {
    // Vectors of the last pairs may write up to a vector past them.
    HWY_ALIGN float first[2 * kSpread + 2 * HWY_MAX_LANES_D(D)];
    HWY_ALIGN float second[2 * kSpread + 2 * HWY_MAX_LANES_D(D)];
    for (size_t i = 0; i < half; i += kSpread) {
      const size_t pairs = HWY_MIN(kSpread, half - i);
      Spread(a.cos + i, a.sin + i, pairs, sign, first, second);
      const int64_t dimension = a.first + 2 * static_cast<int64_t>(i);
      for (int64_t h = 0; h < a.heads; h += kHeads) Interleaved(group(h, dimension), first, second, 2 * pairs);
    }
  }
  if (a.x == a.y && std::is_same_v<X, Y>) return;
  const int64_t end = a.first + 2 * a.half;
  if (a.first == 0 && end == a.dim) return;
  for (int64_t h = 0; h < a.heads; ++h) {
    Copy(x + h * a.x_stride, y + h * a.y_stride, static_cast<size_t>(a.first));
    Copy(x + h * a.x_stride + end, y + h * a.y_stride + end, static_cast<size_t>(a.dim - end));
  }
}

}  // namespace

void RopeF32F32(const RopeHeads& a) { Rope<float, float>(a); }
void RopeF32BF16(const RopeHeads& a) { Rope<float, bf16>(a); }
void RopeF32F16(const RopeHeads& a) { Rope<float, f16>(a); }
void RopeBF16F32(const RopeHeads& a) { Rope<bf16, float>(a); }
void RopeBF16BF16(const RopeHeads& a) { Rope<bf16, bf16>(a); }
void RopeBF16F16(const RopeHeads& a) { Rope<bf16, f16>(a); }
void RopeF16F32(const RopeHeads& a) { Rope<f16, float>(a); }
void RopeF16BF16(const RopeHeads& a) { Rope<f16, bf16>(a); }
void RopeF16F16(const RopeHeads& a) { Rope<f16, f16>(a); }

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();
