// Slots that treat each element on its own.
#ifndef SIMDATTN_LIB_HIGHWAY_ELEMENTWISE_H_
#define SIMDATTN_LIB_HIGHWAY_ELEMENTWISE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "lib/highway/loads.h"
#include "lib/highway/math.h"
#include "lib/highway/target.h"
#include "lib/ukernels.h"

namespace simdattn {
namespace {

using WidenFunction = void(const void* in, float* out, int64_t n);

template <class T>
HWY_INLINE void WidenImpl(const void* in, float* out, int64_t count) {
  const D d;
  const T* p = static_cast<const T*>(in);
  const size_t n = static_cast<size_t>(count);
  const size_t step = hn::Lanes(d);
  size_t i = 0;
  for (; i + step <= n; i += step) hn::StoreU(LoadWide(d, p + i), d, out + i);
  if (i < n) hn::StoreN(LoadWideN(d, p + i, n - i), d, out + i, n - i);
}

template <class T>
HWY_INLINE void FinishImpl(const float* in, float factor, void* out, int64_t count) {
  const D d;
  T* p = static_cast<T*>(out);
  const size_t n = static_cast<size_t>(count);
  const size_t step = hn::Lanes(d);
  const auto f = hn::Set(d, factor);
  const auto zero = hn::Zero(d);
  size_t i = 0;
  for (; i + step <= n; i += step) StoreRounded(d, hn::Mul(hn::Add(hn::LoadU(d, in + i), zero), f), p + i);
  if (i < n) StoreRoundedN(d, hn::Mul(hn::Add(hn::LoadN(d, in + i, n - i), zero), f), p + i, n - i);
}

/// Magnitudes are compared as signed integers, which every target can.
template <class T, class I>
HWY_INLINE bool AllFiniteImpl(const void* rows, int64_t token_stride, int64_t keys, int64_t dim) {
  const hn::ScalableTag<I> d;
  const size_t n = static_cast<size_t>(dim);
  const size_t step = hn::Lanes(d);
  const auto magnitude = hn::Set(d, std::numeric_limits<I>::max());
  const auto largest = hn::Set(d, static_cast<I>(kUnhidden<T> - 1));
  for (int64_t j = 0; j < keys; ++j) {
    const I* p = reinterpret_cast<const I*>(static_cast<const char*>(rows) + j * token_stride);
    auto found = hn::MaskFalse(d);
    size_t i = 0;
    for (; i + step <= n; i += step) found = hn::Or(found, hn::Gt(hn::And(hn::LoadU(d, p + i), magnitude), largest));
    if (i < n) found = hn::Or(found, hn::Gt(hn::And(hn::LoadN(d, p + i, n - i), magnitude), largest));
    if (!hn::AllFalse(d, found)) return false;
  }
  return true;
}

template <class F>
HWY_INLINE void Map(const float* x, float* y, int64_t count, F f) {
  const D d;
  const size_t n = static_cast<size_t>(count);
  const size_t step = hn::Lanes(d);
  size_t i = 0;
  for (; i + step <= n; i += step) StoreRounded(d, f(d, hn::LoadU(d, x + i)), y + i);
  if (i < n) StoreRoundedN(d, f(d, hn::LoadN(d, x + i, n - i)), y + i, n - i);
}

void WidenF32(const void* in, float* out, int64_t n) { WidenImpl<float>(in, out, n); }
void WidenBF16(const void* in, float* out, int64_t n) { WidenImpl<bf16>(in, out, n); }
void WidenF16(const void* in, float* out, int64_t n) { WidenImpl<f16>(in, out, n); }

void FinishF32(const float* in, float factor, void* out, int64_t n) { FinishImpl<float>(in, factor, out, n); }
void FinishBF16(const float* in, float factor, void* out, int64_t n) { FinishImpl<bf16>(in, factor, out, n); }
void FinishF16(const float* in, float factor, void* out, int64_t n) { FinishImpl<f16>(in, factor, out, n); }

bool AllFiniteF32(const void* rows, int64_t token_stride, int64_t keys, int64_t dim) {
  return AllFiniteImpl<float, int32_t>(rows, token_stride, keys, dim);
}
bool AllFiniteBF16(const void* rows, int64_t token_stride, int64_t keys, int64_t dim) {
  return AllFiniteImpl<bf16, int16_t>(rows, token_stride, keys, dim);
}
bool AllFiniteF16(const void* rows, int64_t token_stride, int64_t keys, int64_t dim) {
  return AllFiniteImpl<f16, int16_t>(rows, token_stride, keys, dim);
}

bool AnyZero(const float* w, int64_t count) {
  const D d;
  const size_t n = static_cast<size_t>(count);
  const size_t step = hn::Lanes(d);
  const auto zero = hn::Zero(d);
  auto found = hn::MaskFalse(d);
  size_t i = 0;
  for (; i + step <= n; i += step) found = hn::Or(found, hn::Eq(hn::LoadU(d, w + i), zero));
  if (i < n) found = hn::Or(found, hn::And(hn::FirstN(d, n - i), hn::Eq(hn::LoadN(d, w + i, n - i), zero)));
  return !hn::AllFalse(d, found);
}

void Merge(float* a, float wa, const float* b, float wb, int64_t count) {
  const D d;
  const size_t n = static_cast<size_t>(count);
  const size_t step = hn::Lanes(d);
  const auto va = hn::Set(d, wa);
  const auto vb = hn::Set(d, wb);
  size_t i = 0;
  for (; i + step <= n; i += step) {
    hn::StoreU(hn::MulAdd(hn::LoadU(d, a + i), va, hn::Mul(hn::LoadU(d, b + i), vb)), d, a + i);
  }
  if (i < n) {
    const size_t m = n - i;
    hn::StoreN(hn::MulAdd(hn::LoadN(d, a + i, m), va, hn::Mul(hn::LoadN(d, b + i, m), vb)), d, a + i, m);
  }
}

void HadamardSums(float* x, int64_t count, int64_t block) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (count < lanes || block < 2) {
    for (int64_t half = 1; half < block; half *= 2) {
      for (int64_t i = 0; i < count; ++i) {
        if ((i & half) != 0) continue;
        const float a = x[i];
        const float b = x[i + half];
        x[i] = a + b;
        x[i + half] = a - b;
      }
    }
    return;
  }
  // Pairs within a vector: the partner's lane comes by a table lookup, and the second of a pair is negated before the sum.
  // The last vector of a count that is none of whole vectors (blocks are smaller than one then) goes through a copy.
  const auto within = [&](float* p, size_t n) SIMDATTN_LAMBDA {
    auto v = hn::LoadN(d, p, n);
    for (uint32_t half = 1; half < block && half < lanes; half *= 2) {
      const auto lane = hn::Iota(du, 0);
      const auto partner = hn::TableLookupLanes(v, hn::IndicesFromVec(d, hn::Xor(lane, hn::Set(du, half))));
      const auto second = hn::Ne(hn::And(lane, hn::Set(du, half)), hn::Zero(du));
      const auto sign = hn::IfThenElseZero(second, hn::Set(du, 0x80000000u));
      v = hn::Add(partner, hn::BitCast(d, hn::Xor(hn::BitCast(du, v), sign)));
    }
    hn::StoreN(v, d, p, n);
  };
  for (int64_t i = 0; i < count; i += lanes) within(x + i, static_cast<size_t>(std::min(lanes, count - i)));
  for (int64_t half = lanes; half < block; half *= 2) {
    for (int64_t group = 0; group < count; group += 2 * half) {
      for (int64_t i = group; i < group + half; i += lanes) {
        const auto a = hn::LoadU(d, x + i);
        const auto b = hn::LoadU(d, x + i + half);
        hn::StoreU(hn::Add(a, b), d, x + i);
        hn::StoreU(hn::Sub(a, b), d, x + i + half);
      }
    }
  }
}

void ExpArray(const float* x, float* y, int64_t n) {
  Map(x, y, n, [](D d, hn::Vec<D> v) SIMDATTN_LAMBDA { return Exp(d, v); });
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_ELEMENTWISE_H_
