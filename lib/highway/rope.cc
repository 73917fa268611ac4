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

/// x with its sign flipped where `sign` has the sign bit.
HWY_INLINE V Signed(V x, V sign) { return hn::Xor(x, sign); }

/// Dimensions i and half + i turn together.
template <class X, class Y>
HWY_INLINE void HalfSplit(const X* x, Y* y, const float* cos, const float* sin, size_t half, V sign) {
  const D d;
  const size_t step = hn::Lanes(d);
  size_t i = 0;
  for (; i + step <= half; i += step) {
    const V x0 = LoadWide(d, x + i);
    const V x1 = LoadWide(d, x + half + i);
    const V c = hn::LoadU(d, cos + i);
    const V s = Signed(hn::LoadU(d, sin + i), sign);
    StoreRounded(d, hn::MulSub(x0, c, hn::Mul(x1, s)), y + i);
    StoreRounded(d, hn::MulAdd(x0, s, hn::Mul(x1, c)), y + half + i);
  }
  if (i < half) {
    const size_t n = half - i;
    const V x0 = LoadWideN(d, x + i, n);
    const V x1 = LoadWideN(d, x + half + i, n);
    const V c = hn::LoadN(d, cos + i, n);
    const V s = Signed(hn::LoadN(d, sin + i, n), sign);
    StoreRoundedN(d, hn::MulSub(x0, c, hn::Mul(x1, s)), y + i, n);
    StoreRoundedN(d, hn::MulAdd(x0, s, hn::Mul(x1, c)), y + half + i, n);
  }
}

/// Pairs of the table that are spread to one entry per dimension at a time.
constexpr size_t kSpread = 128;

/// own[i] multiplies the pair's first number and cross[i] its second one, in both dimensions:
///   y0 = x0 c + x1 (-s),  y1 = x0 s + x1 c
HWY_INLINE void Spread(const float* cos, const float* sin, size_t pairs, V sign, float* first, float* second) {
  const D d;
  const size_t step = hn::Lanes(d);
  for (size_t i = 0; i < pairs; i += step) {
    const size_t n = HWY_MIN(step, pairs - i);
    const V c = hn::LoadN(d, cos + i, n);
    const V s = Signed(hn::LoadN(d, sin + i, n), sign);
    hn::StoreInterleaved2(c, s, d, first + 2 * i);
    hn::StoreInterleaved2(hn::Neg(s), c, d, second + 2 * i);
  }
}

/// Dimensions 2i and 2i + 1 turn together; `n` dimensions.
template <class X, class Y>
HWY_INLINE void Interleaved(const X* x, Y* y, const float* first, const float* second, size_t n) {
  const D d;
  const size_t step = hn::Lanes(d);
  const auto turn = [&](V v, size_t i) HWY_ATTR {
    const V product = hn::Mul(hn::DupOdd(v), hn::LoadU(d, second + i));
    return hn::MulAdd(hn::DupEven(v), hn::LoadU(d, first + i), product);
  };
  size_t i = 0;
  for (; i + step <= n; i += step) StoreRounded(d, turn(LoadWide(d, x + i), i), y + i);
  if (i < n) StoreRoundedN(d, turn(LoadWideN(d, x + i, n - i), i), y + i, n - i);
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
  const X* x = static_cast<const X*>(a.x);
  Y* y = static_cast<Y*>(a.y);
  const size_t half = static_cast<size_t>(a.half);
  if (!a.interleaved) {
    for (int64_t h = 0; h < a.heads; ++h) {
      HalfSplit(x + h * a.x_stride + a.first, y + h * a.y_stride + a.first, a.cos, a.sin, half, sign);
    }
  } else {
    // Vectors of the last pairs may write up to a vector past them.
    HWY_ALIGN float first[2 * kSpread + 2 * HWY_MAX_LANES_D(D)];
    HWY_ALIGN float second[2 * kSpread + 2 * HWY_MAX_LANES_D(D)];
    for (size_t i = 0; i < half; i += kSpread) {
      const size_t pairs = HWY_MIN(kSpread, half - i);
      Spread(a.cos + i, a.sin + i, pairs, sign, first, second);
      const int64_t at = a.first + 2 * static_cast<int64_t>(i);
      for (int64_t h = 0; h < a.heads; ++h) {
        Interleaved(x + h * a.x_stride + at, y + h * a.y_stride + at, first, second, 2 * pairs);
      }
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
