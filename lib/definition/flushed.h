// The two operations of bf16 matrix instructions: fused multiply-add and addition, rounded to nearest even, that know
// no subnormal numbers. Operands that are subnormal count as zeros of their sign; so does a result that is tiny after
// rounding.
#pragma once

#include <cmath>
#include <limits>

#include "lib/contract/fma.h"

namespace simdattn::scalar {

static inline constexpr float kSmallestNormal = std::numeric_limits<float>::min();

static inline float flushed(float x) { return std::fabs(x) < kSmallestNormal ? std::copysign(0.0f, x) : x; }

/// a * b + c. a * b must be exact in f64, which products of f32 numbers are.
static inline float flushed_fma(float a, float b, float c) {
  a = flushed(a);
  b = flushed(b);
  c = flushed(c);
  const float r = fma(a, b, c);
  if (std::fabs(r) != kSmallestNormal) return flushed(r);
  // With subnormal numbers at hand, 2^-126 is also what results between 2^-126 - 2^-150 and 2^-126 - 2^-151 are rounded
  // to. With 24 bits and any exponent those stay below it: they are tiny. The sum is formed exactly, in two numbers.
  const double p = static_cast<double>(a) * b;
  const double high = p + c;
  const double part = high - p;
  const double low = (p - (high - part)) + (c - part);
  constexpr double kLeast = 0x1p-126 - 0x1p-151;
  const double size = std::fabs(high);
  const bool tiny = size < kLeast || (size == kLeast && (high < 0 ? low > 0 : low < 0));
  return tiny ? std::copysign(0.0f, r) : r;
}

/// x + y. Sums below 2^-126 are exact, so none is rounded up to it.
static inline float flushed_add(float x, float y) { return flushed(flushed(x) + flushed(y)); }

}  // namespace simdattn::scalar
