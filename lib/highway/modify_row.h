// The modifiers of a row of scores: scale, softcap, ALiBi, bias and masks.
#ifndef SIMDATTN_LIB_HIGHWAY_MODIFY_ROW_H_
#define SIMDATTN_LIB_HIGHWAY_MODIFY_ROW_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "hwy/highway.h"
#include "lib/dtypes.h"
#include "lib/highway/loads.h"
#include "lib/highway/math.h"
#include "lib/highway/target.h"
#include "lib/ukernels.h"

namespace simdattn {
namespace {

/// The largest lane; no lane is NaN.
HWY_INLINE float LargestLane(V v) {
  const D d;
  return hn::ReduceMax(d, v);
}

/// Which masks a pass over the scores applies.
enum class Mask : uint8_t { kNone, kKeep, kBits };

/// True where keep[lane] is not 0.
HWY_INLINE M Kept(const uint8_t* keep, size_t n) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  const auto v = hn::LoadN(hn::Rebind<uint8_t, D>(), keep, n);
  return M{_mm_test_epi8_mask(v.raw, v.raw)};
#else
  const D d;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint8_t, D> d8;
  const auto v = hn::PromoteTo(di, n >= hn::Lanes(d) ? hn::LoadU(d8, keep) : hn::LoadN(d8, keep, n));
  return hn::RebindMask(d, hn::Gt(v, hn::Zero(di)));  // x86 has no comparison for inequality
#endif
}

/// Bits [bit, bit + n) of an array, at most 16.
HWY_INLINE uint32_t BitsAt(const uint8_t* bits, size_t bit, size_t n) {
  const uint8_t* p = bits + bit / 8;
  const size_t bytes = (bit % 8 + n + 7) / 8;
  uint32_t word = p[0];
  if (bytes > 1) word |= uint32_t{p[1]} << 8;
  if (bytes > 2) word |= uint32_t{p[2]} << 16;
  return word >> (bit % 8);
}
HWY_INLINE M FromBits(uint32_t word) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  return M{static_cast<__mmask16>(word)};
#else
  const D d;
  const hn::RebindToUnsigned<D> du;
  const auto lane_bit = hn::Shl(hn::Set(du, 1u), hn::Iota(du, 0));
  return hn::RebindMask(d, hn::TestBit(hn::Set(du, word), lane_bit));
#endif
}

/// The maximum of t = f(x, lanes, column) over columns [lo, hi), where f takes up to Lanes(d) columns; stores t.
template <class F>
HWY_INLINE float Modify(const float* x, float* t, int64_t lo, int64_t hi, F f) {
  const D d;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  const V lowest = hn::Set(d, -kInfinity);
  V m0 = lowest, m1 = lowest, m2 = lowest, m3 = lowest;
  const auto whole = [&](int64_t c, V& m) SIMDATTN_LAMBDA {
    const V v = f(hn::LoadU(d, x + c), hn::Lanes(d), c);
    hn::StoreU(v, d, t + c);
    m = MaxNumber(d, v, m);
  };
  int64_t c = lo;
  for (; c + 4 * step <= hi; c += 4 * step) {
    whole(c, m0);
    whole(c + step, m1);
    whole(c + 2 * step, m2);
    whole(c + 3 * step, m3);
  }
  for (; c + step <= hi; c += step) whole(c, m0);
  if (c < hi) {
    const size_t n = static_cast<size_t>(hi - c);
    const V v = f(hn::LoadN(d, x + c, n), n, c);
    hn::StoreN(v, d, t + c, n);
    m1 = MaxNumber(d, hn::IfThenElse(hn::FirstN(d, n), v, lowest), m1);
  }
  return LargestLane(MaxNumber(d, MaxNumber(d, m0, m1), MaxNumber(d, m2, m3)));
}

/// t = scale * x, softcap, then ALiBi over columns [lo, hi).
template <bool kCap, bool kSlope>
HWY_INLINE float Shape(const ModifyRow& a) {
  const D d;
  const hn::RebindToSigned<D> di;
  const V scale = hn::Set(d, a.scale);
  const V cap = hn::Set(d, a.row.softcap);
  const V slope = hn::Set(d, a.row.slope);
  const int64_t first = int64_t{a.row.position} - a.first_key;
  const auto lanes = hn::Iota(di, 0);
  return Modify(a.x, a.t, a.lo, a.hi, [&](V x, size_t /*n*/, int64_t c) SIMDATTN_LAMBDA {
    V t = hn::Mul(scale, x);
    if (kCap) t = hn::Mul(cap, Tanh(d, hn::Div(t, cap)));
    if (kSlope) {
      const V distance = hn::ConvertTo(d, hn::Abs(hn::Sub(hn::Set(di, static_cast<int32_t>(first - c)), lanes)));
      t = hn::Sub(t, hn::Mul(slope, distance));
    }
    return t;
  });
}

/// No bias.
struct Nothing {};

/// True unless a bias is -inf.
HWY_INLINE M Allows(V bias) {
  const D d;
  const V lowest = hn::Set(d, -kInfinity);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  return M{_mm512_cmp_ps_mask(bias.raw, lowest.raw, _CMP_NEQ_UQ)};
#elif HWY_TARGET == HWY_AVX2
  return M{_mm256_cmp_ps(bias.raw, lowest.raw, _CMP_NEQ_UQ)};
#else
  return hn::Not(hn::Eq(bias, lowest));
#endif
}

/// t + bias where `visible`, else -inf, also if t is NaN or +inf. kOwn: `visible` is what the bias allows.
template <bool kOwn>
HWY_INLINE V AddVisible(M visible, V t, V bias) {
  const D d;
  const V lowest = hn::Set(d, -kInfinity);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  return V{_mm512_mask_add_ps(kOwn ? bias.raw : lowest.raw, visible.raw, t.raw, bias.raw)};
#else
  if (!kOwn) return hn::IfThenElse(visible, hn::Add(t, bias), lowest);
  return hn::Add(hn::IfThenElseZero(visible, t), bias);  // 0 + -inf: less than a selection after the addition
#endif
}

/// t = scale * x + bias_scale * bias, -inf where masked, over columns [lo, hi). A bias or a mask, not both. kBare: both scales are 1, and nobody asks what
/// was masked.
template <class B, Mask kMask, bool kBare>
HWY_INLINE ModifyResult ApplyAs(const ModifyRow& a, const float* x, float scale, int64_t lo, int64_t hi) {
  constexpr bool kBias = !std::is_same_v<B, Nothing>;
  const D d;
  const V vs = hn::Set(d, scale);
  const V bias_scale = hn::Set(d, a.row.bias_scale);
  const V lowest = hn::Set(d, -kInfinity);
  const B* bias = static_cast<const B*>(a.row.bias);
  const uint8_t* keep = a.row.keep;
  const uint8_t* bits = a.row.bits;
  const int64_t first_key = a.first_key;
  const int64_t first_bit = a.first_key - a.row.first_bit;
  M all = hn::Not(hn::MaskFalse(d));
  const float max = Modify(x, a.t, lo, hi, [&](V v, size_t n, int64_t c) SIMDATTN_LAMBDA {
    const bool whole = n == hn::Lanes(d);
    V t = kBare ? v : hn::Mul(v, vs);
    if constexpr (!kBias && kMask == Mask::kNone) return t;
    M visible = all;
    if constexpr (kMask == Mask::kKeep) {
      visible = Kept(keep + first_key + c, n);
    } else if constexpr (kMask == Mask::kBits) {
      visible = FromBits(BitsAt(bits, static_cast<size_t>(first_bit + c), n));
    }
    if constexpr (kBias) {
      const B* p = bias + first_key + c;
      const V b = InRegister(whole ? LoadWide(d, p) : LoadWideN(d, p, n));
      visible = Allows(b);
      t = kBare ? AddVisible<true>(visible, t, b) : AddVisible<false>(visible, t, hn::Mul(b, bias_scale));
    }
    if (!kBare) all = hn::And(all, whole ? visible : hn::Or(visible, hn::Not(hn::FirstN(d, n))));
    return kBias ? t : hn::IfThenElse(visible, t, lowest);
  });
  return {max, !hn::AllTrue(d, all)};
}
template <class B, Mask kMask>
HWY_INLINE ModifyResult Apply(const ModifyRow& a, const float* x, float scale, int64_t lo, int64_t hi) {
  const bool plain = std::is_same_v<B, Nothing> || a.row.bias_scale == 1.0f;
  if (scale == 1.0f && plain && !a.note_masked) return ApplyAs<B, kMask, true>(a, x, scale, lo, hi);
  return ApplyAs<B, kMask, false>(a, x, scale, lo, hi);
}

// One pass for scale with softcap and ALiBi, one for the bias, one for each mask: one in most calls, which is the one that
// scales. A later pass multiplies by 1.
ModifyResult ModifyRowSlot(const ModifyRow& a) {
  ModifyResult result = {-kInfinity, false};
  if (a.lo >= a.hi) return result;
  const float* x = a.x;
  float scale = a.scale;
  const auto passed = [&](ModifyResult pass) {
    result = {pass.max, pass.masked || result.masked};
    x = a.t;
    scale = 1.0f;
  };
  const RowModifiers& m = a.row;
  const bool bits = m.bits != nullptr && a.first_key + a.hi > m.first_bit;
  const bool shape = m.softcap > 0.0f || m.slope != 0.0f;
  if (shape) {
    passed({m.softcap > 0.0f ? m.slope != 0.0f ? Shape<true, true>(a) : Shape<true, false>(a) : Shape<false, true>(a),
            false});
  }
  if (m.bias != nullptr) {
    switch (m.bias_dtype) {
      case DType::kBF16: passed(Apply<bf16, Mask::kNone>(a, x, scale, a.lo, a.hi)); break;
      case DType::kF16: passed(Apply<f16, Mask::kNone>(a, x, scale, a.lo, a.hi)); break;
      default: passed(Apply<float, Mask::kNone>(a, x, scale, a.lo, a.hi)); break;
    }
  }
  if (m.keep != nullptr) passed(Apply<Nothing, Mask::kKeep>(a, x, scale, a.lo, a.hi));
  const bool modified = shape || m.bias != nullptr || m.keep != nullptr;
  // Keys before the first bit are visible.
  const int64_t from = bits ? HWY_MAX(a.lo, HWY_MIN(a.hi, m.first_bit - a.first_key)) : a.hi;
  if (from > a.lo && (bits || !modified)) result.max = Apply<Nothing, Mask::kNone>(a, x, scale, a.lo, from).max;
  if (bits) {
    const ModifyResult tail = Apply<Nothing, Mask::kBits>(a, x, scale, from, a.hi);
    const bool whole = from == a.lo;
    passed({whole || tail.max > result.max ? tail.max : result.max, tail.masked});
  }
  return result;
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_MODIFY_ROW_H_
