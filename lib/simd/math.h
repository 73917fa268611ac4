// exp, tanh, maximum and the fold of 16 partial sums: operation by operation the sequences of lib/definition, so that
// the bits are the same (without fused multiply-add, fma rounds twice).
#pragma once

#include <limits>

#include "lib/contract/math_constants.h"
#include "lib/simd/lanes.h"

namespace simdattn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// 2^n where t = n + kRoundMagic: its low bits hold n; the bits of kRoundMagic itself are shifted out.
SIMDATTN_INLINE Floats power_of_two(Floats t) { return float_of((bits_of(t) << 23) + Bits32(127u << 23)); }

/// p 2^n, and 0 where x < kExpLowest. Exact: p is in [0.7, 1.42], and a result that is not 0 is a normal number.
SIMDATTN_INLINE Floats exp_scale(Floats x, Floats p, [[maybe_unused]] Floats n, [[maybe_unused]] Floats t) {
  const Floats lowest(kExpLowest);
#if SIMDATTN_AVX512
  return scale_unless_below(x, lowest, p, n);
#elif SIMDATTN_X86
  // Compilers would compare a mask of select() with 0 once more.
  const Bits32 below = Bits32::of(x.numbers() < lowest.numbers());
  return float_of(bits_of(p * power_of_two(t)) & ~below);
#else
  return select(x < lowest, Floats(0.0f), p * power_of_two(t));
#endif
}

/// What exp and tanh of x have in common: x = n ln 2 + r, t = n + kRoundMagic, and the polynomial p of r.
template <int64_t kCount>
struct ReducedExp {
  Registers<kCount> t, n, r, p;

  SIMDATTN_INLINE explicit ReducedExp(Registers<kCount>& x) {
    const Floats magic(kRoundMagic);
    const auto each = [](const auto& f) SIMDATTN_LAMBDA { unroll<kCount>(f); };
    each([&](auto i) SIMDATTN_LAMBDA { reg<i>(t) = mul_add(reg<i>(x), Floats(kLog2E), magic); });
    each([&](auto i) SIMDATTN_LAMBDA { reg<i>(n) = reg<i>(t) - magic; });
    each([&](auto i) SIMDATTN_LAMBDA { reg<i>(r) = mul_add(reg<i>(n), Floats(-kLn2Hi), reg<i>(x)); });
    each([&](auto i) SIMDATTN_LAMBDA { reg<i>(r) = mul_add(reg<i>(n), Floats(-kLn2Lo), reg<i>(r)); });
    each([&](auto i) SIMDATTN_LAMBDA { reg<i>(p) = Floats(kExpPoly[4]); });
    unroll<4>([&](auto k) SIMDATTN_LAMBDA { multiply_add(Floats(kExpPoly[3 - k])); });
  }
  /// p = p r + c
  SIMDATTN_INLINE void multiply_add(Floats c) {
    unroll<kCount>([&](auto i) SIMDATTN_LAMBDA { reg<i>(p) = mul_add(reg<i>(p), reg<i>(r), c); });
  }
};

/// scalar::exp of kCount batches, operation by operation side by side: one after the other they would fill the
/// scheduler with operations that wait for each other. x <= 88 or NaN.
template <int64_t kCount>
SIMDATTN_INLINE void exp_each(Registers<kCount>& x) {
  ReducedExp<kCount> e(x);
  e.multiply_add(Floats(1.0f));
  e.multiply_add(Floats(1.0f));
  unroll<kCount>([&](auto i)
                     SIMDATTN_LAMBDA { reg<i>(x) = exp_scale(reg<i>(x), reg<i>(e.p), reg<i>(e.n), reg<i>(e.t)); });
}
SIMDATTN_INLINE Floats exp_of(Floats x) {
  Registers<1> one = {{x}};
  exp_each<1>(one);
  return reg<0>(one);
}

/// scalar::tanh.
SIMDATTN_INLINE Floats tanh_of(Floats x) {
  const Floats saturation(kTanhSaturation);
  Floats a = abs(x);
  const Mask is_small = a < Floats(kTanhSmall);

  const Floats z = a * a;
  Floats q = mul_add(Floats(kTanhPoly[3]), z, Floats(kTanhPoly[2]));
  q = mul_add(q, z, Floats(kTanhPoly[1]));
  q = mul_add(q, z, Floats(kTanhPoly[0]));
  const Floats small = mul_add(a * z, q, a);

  a = select(a > saturation, saturation, a);  // not min: NaN stays
  Registers<1> y = {{a + a}};
  ReducedExp<1> reduced(y);
  const Floats r = reg<0>(reduced.r), expm1_r = mul_add(reg<0>(reduced.p), r * r, r);
  const Floats s = power_of_two(reg<0>(reduced.t));
  const Floats e = mul_add(s, expm1_r, s - Floats(1.0f));
  const Floats large = quotient(e, e + Floats(2.0f));
  const Bits32 sign(0x80000000u);  // neither branch is negative
  return float_of(bits_of(select(is_small, small, large)) | (bits_of(x) & sign));
}

/// 16 partial sums in kParts batches, added up to the kLanes of one.
template <int64_t kCount>
SIMDATTN_INLINE Floats fold_parts(Registers<kCount>& l) {
  static_assert(kCount == kParts);
  if constexpr (kCount == 1) {
    return reg<0>(l);
  } else if constexpr (kCount == 2) {
    return reg<0>(l) + reg<1>(l);
  } else {
    return (reg<0>(l) + reg<2>(l)) + (reg<1>(l) + reg<3>(l));
  }
}
template <class V>
SIMDATTN_INLINE auto sum_of_lanes(V v) {
  return fold_lanes(v, [](V a, V b) SIMDATTN_LAMBDA { return a + b; });
}
SIMDATTN_INLINE float fold(Registers<kParts>& l) { return sum_of_lanes(fold_parts<kParts>(l)); }
/// No lane is NaN.
template <class V>
SIMDATTN_INLINE auto largest_lane(V v) {
  return fold_lanes(v, [](V a, V b) SIMDATTN_LAMBDA { return max(a, b); });
}

/// What has been seen so far: not finite if a or b is not; other large numbers may be taken for one.
SIMDATTN_INLINE Floats notice(Floats a, Floats b, Floats seen) {
  if constexpr (kX86 && !kAvx512) {
    return seen + (a + b);  // off the ports of multiplication
  } else {
    return mul_add(a, b, seen);
  }
}

/// Lanes that are neither NaN nor infinite.
SIMDATTN_INLINE Mask finite(Floats v) { return abs(v) < Floats(kInfinity); }

}  // namespace
}  // namespace simdattn
