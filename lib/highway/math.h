// exp, tanh, maximum and the fold of 16 partial sums on vectors: operation by operation the
// sequences of lib/scalar, so that the bits are the same (without fused multiply-add, MulAdd rounds twice).
#ifndef SIMDATTN_LIB_HIGHWAY_MATH_H_
#define SIMDATTN_LIB_HIGHWAY_MATH_H_

#include "hwy/highway.h"
#include "lib/highway/target.h"
#include "lib/math_constants.h"

namespace simdattn {
namespace {

/// x > m ? x : m: a NaN in x is ignored, m must not be NaN.
template <class D>
HWY_INLINE hn::Vec<D> MaxNumber(D /*d*/, hn::Vec<D> x, hn::Vec<D> m) {
#if HWY_ARCH_X86
  return hn::Max(x, m);  // MAXPS returns its second operand if either is NaN
#else
  return hn::IfThenElse(hn::Gt(x, m), x, m);
#endif
}

/// p 2^n where t = n + kRoundMagic, and 0 where x < kExpLowest. The scaling is exact: p is in [0.7, 1.42] and wherever
/// the result is not 0, it is a normal number. NaN in p stays NaN.
template <class D>
HWY_INLINE hn::Vec<D> ExpScale(D d, hn::Vec<D> x, hn::Vec<D> p, hn::Vec<D> n, hn::Vec<D> t) {
  const auto lowest = hn::Set(d, kExpLowest);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  (void)t;
  if constexpr (HWY_MAX_LANES_D(D) == 16) {
    return hn::Vec<D>{_mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x.raw, lowest.raw, _CMP_NLT_UQ), p.raw, n.raw)};
  } else if constexpr (HWY_MAX_LANES_D(D) == 8) {
    return hn::Vec<D>{_mm256_maskz_scalef_ps(_mm256_cmp_ps_mask(x.raw, lowest.raw, _CMP_NLT_UQ), p.raw, n.raw)};
  } else {
    return hn::Vec<D>{_mm_maskz_scalef_ps(_mm_cmp_ps_mask(x.raw, lowest.raw, _CMP_NLT_UQ), p.raw, n.raw)};
  }
#else
  (void)n;
  // The low bits of t hold n; the bits of kRoundMagic itself are shifted out.
  const hn::RebindToUnsigned<D> du;
  const auto exponent = hn::Add(hn::ShiftLeft<23>(hn::BitCast(du, t)), hn::Set(du, 127u << 23));
  return hn::IfThenZeroElse(hn::Lt(x, lowest), hn::Mul(p, hn::BitCast(d, exponent)));
#endif
}

/// scalar::exp for x <= 88 and NaN.
template <class D>
HWY_INLINE hn::Vec<D> Exp(D d, hn::Vec<D> x) {
  const auto magic = hn::Set(d, kRoundMagic);
  const auto one = hn::Set(d, 1.0f);
  const auto t = hn::MulAdd(x, hn::Set(d, kLog2E), magic);
  const auto n = hn::Sub(t, magic);
  auto r = hn::MulAdd(n, hn::Set(d, -kLn2Hi), x);
  r = hn::MulAdd(n, hn::Set(d, -kLn2Lo), r);
  auto p = hn::MulAdd(hn::Set(d, kExpPoly[4]), r, hn::Set(d, kExpPoly[3]));
  p = hn::MulAdd(p, r, hn::Set(d, kExpPoly[2]));
  p = hn::MulAdd(p, r, hn::Set(d, kExpPoly[1]));
  p = hn::MulAdd(p, r, hn::Set(d, kExpPoly[0]));
  p = hn::MulAdd(p, r, one);
  p = hn::MulAdd(p, r, one);
  return ExpScale(d, x, p, n, t);
}

/// What Exp4 needs. With 32 registers the constants stay in registers: gcc would make them memory operands, and half of
/// the multiplications with a memory operand lose a cycle.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
template <class D>
struct ExpConstants {
  HWY_INLINE ExpConstants()
      : log2e(Keep(kLog2E)),
        magic(Keep(kRoundMagic)),
        ln2_hi(Keep(-kLn2Hi)),
        ln2_lo(Keep(-kLn2Lo)),
        c0(Keep(kExpPoly[0])),
        c1(Keep(kExpPoly[1])),
        c2(Keep(kExpPoly[2])),
        c3(Keep(kExpPoly[3])),
        c4(Keep(kExpPoly[4])),
        one(Keep(1.0f)),
        lowest(Keep(kExpLowest)) {}
  hn::Vec<D> log2e, magic, ln2_hi, ln2_lo, c0, c1, c2, c3, c4, one, lowest;

 private:
  static HWY_INLINE hn::Vec<D> Keep(float value) {
    hn::Vec<D> v = hn::Set(D(), value);
    asm("" : "+v"(v.raw));
    return v;
  }
};
#define SIMDATTN_EXP_CONSTANT(name, value) (constants.name)
#else
template <class D>
struct ExpConstants {};
#define SIMDATTN_EXP_CONSTANT(name, value) (hn::Set(d, value))
#endif

/// Exp of four vectors, operation by operation side by side: one after the other they would fill the scheduler with
/// operations that wait for each other.
template <class D>
HWY_INLINE void Exp4([[maybe_unused]] D d, [[maybe_unused]] const ExpConstants<D>& constants, hn::Vec<D>& x0,
                     hn::Vec<D>& x1, hn::Vec<D>& x2, hn::Vec<D>& x3) {
  const auto magic = SIMDATTN_EXP_CONSTANT(magic, kRoundMagic);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  const auto alive = [&](hn::Vec<D> x) SIMDATTN_LAMBDA {
    if constexpr (HWY_MAX_LANES_D(D) == 16) {
      return _mm512_cmp_ps_mask(x.raw, constants.lowest.raw, _CMP_NLT_UQ);
    } else if constexpr (HWY_MAX_LANES_D(D) == 8) {
      return _mm256_cmp_ps_mask(x.raw, constants.lowest.raw, _CMP_NLT_UQ);
    } else {
      return _mm_cmp_ps_mask(x.raw, constants.lowest.raw, _CMP_NLT_UQ);
    }
  };
  const auto alive0 = alive(x0), alive1 = alive(x1), alive2 = alive(x2), alive3 = alive(x3);
#endif
  const auto log2e = SIMDATTN_EXP_CONSTANT(log2e, kLog2E);
  const auto t0 = hn::MulAdd(x0, log2e, magic);
  const auto t1 = hn::MulAdd(x1, log2e, magic);
  const auto t2 = hn::MulAdd(x2, log2e, magic);
  const auto t3 = hn::MulAdd(x3, log2e, magic);
  const auto n0 = hn::Sub(t0, magic);
  const auto n1 = hn::Sub(t1, magic);
  const auto n2 = hn::Sub(t2, magic);
  const auto n3 = hn::Sub(t3, magic);
  const auto ln2_hi = SIMDATTN_EXP_CONSTANT(ln2_hi, -kLn2Hi);
  auto r0 = hn::MulAdd(n0, ln2_hi, x0);
  auto r1 = hn::MulAdd(n1, ln2_hi, x1);
  auto r2 = hn::MulAdd(n2, ln2_hi, x2);
  auto r3 = hn::MulAdd(n3, ln2_hi, x3);
  const auto ln2_lo = SIMDATTN_EXP_CONSTANT(ln2_lo, -kLn2Lo);
  r0 = hn::MulAdd(n0, ln2_lo, r0);
  r1 = hn::MulAdd(n1, ln2_lo, r1);
  r2 = hn::MulAdd(n2, ln2_lo, r2);
  r3 = hn::MulAdd(n3, ln2_lo, r3);
  auto p0 = SIMDATTN_EXP_CONSTANT(c4, kExpPoly[4]);
  auto p1 = p0, p2 = p0, p3 = p0;
  const auto step = [&](hn::Vec<D> c) SIMDATTN_LAMBDA {
    p0 = hn::MulAdd(p0, r0, c);
    p1 = hn::MulAdd(p1, r1, c);
    p2 = hn::MulAdd(p2, r2, c);
    p3 = hn::MulAdd(p3, r3, c);
  };
  step(SIMDATTN_EXP_CONSTANT(c3, kExpPoly[3]));
  step(SIMDATTN_EXP_CONSTANT(c2, kExpPoly[2]));
  step(SIMDATTN_EXP_CONSTANT(c1, kExpPoly[1]));
  step(SIMDATTN_EXP_CONSTANT(c0, kExpPoly[0]));
  const auto one = SIMDATTN_EXP_CONSTANT(one, 1.0f);
  step(one);
  step(one);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  const auto scaled = [&](auto mask, hn::Vec<D> p, hn::Vec<D> n) SIMDATTN_LAMBDA {
    if constexpr (HWY_MAX_LANES_D(D) == 16) {
      return hn::Vec<D>{_mm512_maskz_scalef_ps(mask, p.raw, n.raw)};
    } else if constexpr (HWY_MAX_LANES_D(D) == 8) {
      return hn::Vec<D>{_mm256_maskz_scalef_ps(mask, p.raw, n.raw)};
    } else {
      return hn::Vec<D>{_mm_maskz_scalef_ps(mask, p.raw, n.raw)};
    }
  };
  x0 = scaled(alive0, p0, n0);
  x1 = scaled(alive1, p1, n1);
  x2 = scaled(alive2, p2, n2);
  x3 = scaled(alive3, p3, n3);
#else
  x0 = ExpScale(d, x0, p0, n0, t0);
  x1 = ExpScale(d, x1, p1, n1, t1);
  x2 = ExpScale(d, x2, p2, n2, t2);
  x3 = ExpScale(d, x3, p3, n3, t3);
#endif
}
#undef SIMDATTN_EXP_CONSTANT
template <class D>
HWY_INLINE void Exp4(D d, hn::Vec<D>& x0, hn::Vec<D>& x1, hn::Vec<D>& x2, hn::Vec<D>& x3) {
  const ExpConstants<D> constants;
  Exp4(d, constants, x0, x1, x2, x3);
}

/// scalar::tanh.
template <class D>
HWY_INLINE hn::Vec<D> Tanh(D d, hn::Vec<D> x) {
  const hn::RebindToUnsigned<D> du;
  const auto one = hn::Set(d, 1.0f);
  const auto magic = hn::Set(d, kRoundMagic);
  const auto saturation = hn::Set(d, kTanhSaturation);
  auto a = hn::Abs(x);
  const auto is_small = hn::Lt(a, hn::Set(d, kTanhSmall));

  const auto z = hn::Mul(a, a);
  auto q = hn::MulAdd(hn::Set(d, kTanhPoly[3]), z, hn::Set(d, kTanhPoly[2]));
  q = hn::MulAdd(q, z, hn::Set(d, kTanhPoly[1]));
  q = hn::MulAdd(q, z, hn::Set(d, kTanhPoly[0]));
  const auto small = hn::MulAdd(hn::Mul(a, z), q, a);

  a = hn::IfThenElse(hn::Gt(a, saturation), saturation, a);  // not Min: NaN stays
  const auto y = hn::Add(a, a);
  const auto t = hn::MulAdd(y, hn::Set(d, kLog2E), magic);
  const auto n = hn::Sub(t, magic);
  auto r = hn::MulAdd(n, hn::Set(d, -kLn2Hi), y);
  r = hn::MulAdd(n, hn::Set(d, -kLn2Lo), r);
  auto p = hn::MulAdd(hn::Set(d, kExpPoly[4]), r, hn::Set(d, kExpPoly[3]));
  p = hn::MulAdd(p, r, hn::Set(d, kExpPoly[2]));
  p = hn::MulAdd(p, r, hn::Set(d, kExpPoly[1]));
  p = hn::MulAdd(p, r, hn::Set(d, kExpPoly[0]));
  const auto expm1_r = hn::MulAdd(p, hn::Mul(r, r), r);
  const auto s = hn::BitCast(d, hn::Add(hn::ShiftLeft<23>(hn::BitCast(du, t)), hn::Set(du, 127u << 23)));
  const auto e = hn::MulAdd(s, expm1_r, hn::Sub(s, one));
  const auto large = hn::Div(e, hn::Add(e, hn::Set(d, 2.0f)));
  return hn::CopySign(hn::IfThenElse(is_small, small, large), x);
}

/// Four partial sums, one vector of 4 lanes: l += l+2, l += l+1.
template <class D>
HWY_INLINE float Fold4([[maybe_unused]] D d, hn::Vec<D> v) {
  v = hn::Add(v, hn::Shuffle1032(v));
  return hn::GetLane(hn::Add(v, hn::Shuffle2301(v)));
}
/// Eight partial sums, one vector of 8 lanes.
template <class D>
HWY_INLINE float Fold8([[maybe_unused]] D d, hn::Vec<D> v) {
  const hn::Half<D> dh;
  return Fold4(dh, hn::Add(hn::LowerHalf(dh, v), hn::UpperHalf(dh, v)));
}
/// The fold of 16 partial sums in one vector of 16 lanes,
template <class D>
HWY_INLINE float Fold16([[maybe_unused]] D d, hn::Vec<D> v) {
  const hn::Half<D> dh;
  return Fold8(dh, hn::Add(hn::LowerHalf(dh, v), hn::UpperHalf(dh, v)));
}
/// in two vectors of 8,
template <class D>
HWY_INLINE float Fold16(D d, hn::Vec<D> v0, hn::Vec<D> v1) {
  return Fold8(d, hn::Add(v0, v1));
}
/// in four vectors of 4.
template <class D>
HWY_INLINE float Fold16(D d, hn::Vec<D> v0, hn::Vec<D> v1, hn::Vec<D> v2, hn::Vec<D> v3) {
  return Fold4(d, hn::Add(hn::Add(v0, v2), hn::Add(v1, v3)));
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_MATH_H_
