// Softmax rows and the modifiers of a row of scores, per Highway target.
//
// A row takes three passes: the maximum, exponentials stored to y while they are summed, and the multiplication by the
// reciprocal. Storing the exponentials beats computing them again and the online form by 1.6 to 1.9 times.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "lib/dtypes.h"
#include "lib/ukernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/highway/softmax.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "lib/highway/loads-inl.h"
#include "lib/highway/math-inl.h"
#include "lib/highway/slots-inl.h"

// Masked loads and stores of f32 do not touch the masked-out elements (Highway promises less for AVX2 because of
// sanitizers, which do not see through its instruction).
#undef SIMDATTN_MASKED_ACCESS
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_HAVE_SCALABLE
#define SIMDATTN_MASKED_ACCESS 1
#else
#define SIMDATTN_MASKED_ACCESS 0
#endif

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {
namespace {

// Sixteen partial sums are 1, 2 or 4 vectors.
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
using M = hn::Mask<D>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kPartials = 16;

/// The largest lane; no lane is NaN.
HWY_INLINE float LargestLane(V v) {
  const D d;
  return hn::ReduceMax(d, v);
}

/// The maximum of x (of scale * x if kScaled) over n elements. If one is NaN, any value will do: the sum of
/// exponentials is NaN then.
template <bool kScaled>
HWY_INLINE V MaxLanes(const float* HWY_RESTRICT x, size_t n, float scale) {
  const D d;
  const size_t step = hn::Lanes(d);
  const V vs = hn::Set(d, scale);
  const V lowest = hn::Set(d, -kInfinity);
  const auto at = [&](size_t i) HWY_ATTR {
    const V v = hn::LoadU(d, x + i);
    return kScaled ? hn::Mul(v, vs) : v;
  };
  const auto pair = [&](V m, size_t i) HWY_ATTR { return hn::Max(hn::Max(at(i), at(i + step)), m); };
  V m0 = lowest, m1 = lowest, m2 = lowest, m3 = lowest;
  size_t i = 0;
  if (n >= 16 * step) {
    // Eight maxima, each of a pair: the latency of four cycles would hide only half of the throughput of four.
    V m4 = lowest, m5 = lowest, m6 = lowest, m7 = lowest;
    for (; i + 16 * step <= n; i += 16 * step) {
      m0 = pair(m0, i);
      m1 = pair(m1, i + 2 * step);
      m2 = pair(m2, i + 4 * step);
      m3 = pair(m3, i + 6 * step);
      m4 = pair(m4, i + 8 * step);
      m5 = pair(m5, i + 10 * step);
      m6 = pair(m6, i + 12 * step);
      m7 = pair(m7, i + 14 * step);
    }
    m0 = hn::Max(m0, m4);
    m1 = hn::Max(m1, m5);
    m2 = hn::Max(m2, m6);
    m3 = hn::Max(m3, m7);
  }
  for (; i + 4 * step <= n; i += 4 * step) {
    m0 = hn::Max(at(i), m0);
    m1 = hn::Max(at(i + step), m1);
    m2 = hn::Max(at(i + 2 * step), m2);
    m3 = hn::Max(at(i + 3 * step), m3);
  }
  for (; i + step <= n; i += step) m0 = hn::Max(at(i), m0);
  if (i < n) {
    V v = hn::LoadN(d, x + i, n - i);
    if (kScaled) v = hn::Mul(v, vs);
    m1 = hn::Max(hn::IfThenElse(hn::FirstN(d, n - i), v, lowest), m1);
  }
  return hn::Max(hn::Max(m0, m2), hn::Max(m1, m3));
}

/// The maximum of scale * x.
HWY_INLINE float MaxScaled(const float* x, size_t n, float scale) {
  // Rounding is monotonic: the largest x gives the largest product.
  if (scale > 0.0f) return scale * LargestLane(MaxLanes<false>(x, n, scale));
  return LargestLane(MaxLanes<true>(x, n, scale));
}

template <bool kScaled>
HWY_INLINE V ExpOf(V x, V scale, V base) {
  const D d;
  return Exp(d, hn::Sub(kScaled ? hn::Mul(x, scale) : x, base));
}

/// y = exp(scale * x - base) in lanes [from, to) of one block of 16 columns, added to the partial sums.
template <int kV, bool kScaled>
HWY_INLINE void PartialBlock(const float* x, float* y, size_t from, size_t to, V scale, V base, V& s0, V& s1, V& s2,
                             V& s3) {
  const D d;
  const size_t step = hn::Lanes(d);
#if SIMDATTN_MASKED_ACCESS
  const auto part = [&](size_t first, V& sum) HWY_ATTR {
    if (to <= first || from >= first + step) return;
    M mask = hn::FirstN(d, to - first);
    if (from > first) mask = hn::AndNot(hn::FirstN(d, from - first), mask);
    const V e = ExpOf<kScaled>(hn::MaskedLoad(mask, d, x + first), scale, base);
    sum = hn::Add(sum, hn::IfThenElseZero(mask, e));
    hn::BlendedStore(e, mask, d, y + first);
  };
#else
  HWY_ALIGN float buffer[kPartials] = {};
  for (size_t i = from; i < to; ++i) buffer[i] = x[i];
  const auto part = [&](size_t first, V& sum) HWY_ATTR {
    const V e = ExpOf<kScaled>(hn::LoadU(d, buffer + first), scale, base);
    hn::StoreU(e, d, buffer + first);
    if (to <= first || from >= first + step) return;
    M mask = hn::FirstN(d, to - first);
    if (from > first) mask = hn::AndNot(hn::FirstN(d, from - first), mask);
    sum = hn::Add(sum, hn::IfThenElseZero(mask, e));
  };
#endif
  part(0, s0);
  if constexpr (kV > 1) part(step, s1);
  if constexpr (kV > 2) {
    part(2 * step, s2);
    part(3 * step, s3);
  }
#if !SIMDATTN_MASKED_ACCESS
  for (size_t i = from; i < to; ++i) y[i] = buffer[i];
#endif
}

/// y = exp(scale * x - base) over columns [lo, hi); returns the sum.
template <int kV, bool kScaled>
HWY_INLINE float ExpSum(const float* x, float* y, size_t lo, size_t hi, float scale, float base) {
  const D d;
  const size_t step = hn::Lanes(d);
  const V vs = hn::Set(d, scale);
  const V vb = hn::Set(d, base);
  V s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  size_t j = lo / kPartials * kPartials;
  if (j < lo) {
    PartialBlock<kV, kScaled>(x + j, y + j, lo - j, HWY_MIN(hi - j, kPartials), vs, vb, s0, s1, s2, s3);
    j += kPartials;
  }
  // Four vectors at a time; they add to partial sums (0 0 0 0), (0 1 0 1) or (0 1 2 3).
  V& t1 = kV == 1 ? s0 : s1;
  V& t2 = kV == 4 ? s2 : s0;
  V& t3 = kV == 4 ? s3 : t1;
  const auto at = [&](size_t i) HWY_ATTR {
    const V v = hn::LoadU(d, x + i);
    return hn::Sub(kScaled ? hn::Mul(v, vs) : v, vb);
  };
  for (; j + 4 * step <= hi; j += 4 * step) {
    V e0 = at(j);
    V e1 = at(j + step);
    V e2 = at(j + 2 * step);
    V e3 = at(j + 3 * step);
    Exp4(d, e0, e1, e2, e3);
    hn::StoreU(e0, d, y + j);
    hn::StoreU(e1, d, y + j + step);
    hn::StoreU(e2, d, y + j + 2 * step);
    hn::StoreU(e3, d, y + j + 3 * step);
    s0 = hn::Add(s0, e0);
    t1 = hn::Add(t1, e1);
    t2 = hn::Add(t2, e2);
    t3 = hn::Add(t3, e3);
  }
  for (; kV < 4 && j + kPartials <= hi; j += kPartials) {
    const V e0 = ExpOf<kScaled>(hn::LoadU(d, x + j), vs, vb);
    hn::StoreU(e0, d, y + j);
    s0 = hn::Add(s0, e0);
    if constexpr (kV == 2) {
      const V e1 = ExpOf<kScaled>(hn::LoadU(d, x + j + step), vs, vb);
      hn::StoreU(e1, d, y + j + step);
      s1 = hn::Add(s1, e1);
    }
  }
  if (j < hi) PartialBlock<kV, kScaled>(x + j, y + j, 0, hi - j, vs, vb, s0, s1, s2, s3);
  if constexpr (kV == 1) {
    return Fold16(d, s0);
  } else if constexpr (kV == 2) {
    return Fold16(d, s0, s1);
  } else {
    return Fold16(d, s0, s1, s2, s3);
  }
}

HWY_INLINE void Multiply(float* y, size_t n, float factor) {
  const D d;
  const size_t step = hn::Lanes(d);
  const V f = hn::Set(d, factor);
  size_t j = 0;
  for (; j + 2 * step <= n; j += 2 * step) {
    hn::StoreU(hn::Mul(hn::LoadU(d, y + j), f), d, y + j);
    hn::StoreU(hn::Mul(hn::LoadU(d, y + j + step), f), d, y + j + step);
  }
  for (; j + step <= n; j += step) hn::StoreU(hn::Mul(hn::LoadU(d, y + j), f), d, y + j);
  if (j < n) hn::StoreN(hn::Mul(hn::LoadN(d, y + j, n - j), f), d, y + j, n - j);
}

HWY_INLINE void Fill(float* y, size_t n, float value) {
  const D d;
  const size_t step = hn::Lanes(d);
  const V v = hn::Set(d, value);
  size_t j = 0;
  for (; j + step <= n; j += step) hn::StoreU(v, d, y + j);
  if (j < n) hn::StoreN(v, d, y + j, n - j);
}

/// Rows treated pass by pass, so that the latencies of the reductions and the division overlap.
constexpr int64_t kGroup = 4;
/// Up to this many columns; longer rows would leave the first-level cache between passes.
constexpr int64_t kGroupColumns = 1024;

template <int kV>
HWY_INLINE void Rows(const SoftmaxRows& a, int64_t first, int64_t count) {
  const D d;
  const size_t lo = static_cast<size_t>(a.lo);
  const size_t hi = static_cast<size_t>(a.hi);
  const size_t n = static_cast<size_t>(a.n);
  const size_t visible = hi > lo ? hi - lo : 0;
  float largest[kGroup];
  float sum[kGroup];
  for (int64_t i = 0; i < count; ++i) {
    const int64_t r = first + i;
    const float m = a.known_max != nullptr ? a.known_max[r] : MaxScaled(a.x + r * a.ldx + lo, visible, a.scale);
    largest[i] = m > a.sink ? m : a.sink;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t r = first + i;
    const float* x = a.x + r * a.ldx;
    float* y = a.y + r * a.ldy;
    const float base = largest[i] == -kInfinity ? 0.0f : largest[i];
    float l = 0.0f;
    if (visible != 0) {
      l = a.scale == 1.0f ? ExpSum<kV, false>(x, y, lo, hi, a.scale, base)
                          : ExpSum<kV, true>(x, y, lo, hi, a.scale, base);
    }
    if (a.sink != -kInfinity) l += hn::GetLane(Exp(d, hn::Set(d, a.sink - base)));
    sum[i] = l;
  }
  for (int64_t i = 0; i < count; ++i) {
    const int64_t r = first + i;
    float* y = a.y + r * a.ldy;
    const float l = sum[i];
    if (is_nan(l)) {
      Fill(y, n, canonical(l));
      largest[i] = l;
    } else {
      const float inverse = l > 0.0f ? 1.0f / l : 0.0f;
      Multiply(y + lo, visible, inverse);
      if (visible != n) {
        Fill(y, HWY_MIN(lo, n), 0.0f);
        const size_t end = lo + visible;
        if (end < n) Fill(y + end, n - end, 0.0f);
      }
    }
    if (a.max != nullptr) {
      a.max[r] = canonical(largest[i] + 0.0f);
      a.sum[r] = canonical(l);
    }
  }
}

template <int kV>
HWY_INLINE void AllRows(const SoftmaxRows& a) {
  const int64_t group = a.hi - a.lo <= kGroupColumns ? kGroup : 1;
  for (int64_t r = 0; r < a.rows; r += group) Rows<kV>(a, r, HWY_MIN(group, a.rows - r));
}

/// Which masks a pass over the scores applies.
enum class Mask : uint8_t { kNone, kKeep, kBits };

/// True where keep[lane] is not 0.
HWY_INLINE M Kept(const uint8_t* keep, size_t n) {
  const D d;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  const auto v = hn::LoadN(hn::Rebind<uint8_t, D>(), keep, n);
  return M{_mm_test_epi8_mask(v.raw, v.raw)};
#else
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint8_t, D> d8;
  const auto v = hn::PromoteTo(du, n >= hn::Lanes(d) ? hn::LoadU(d8, keep) : hn::LoadN(d8, keep, n));
  return hn::RebindMask(d, hn::Ne(v, hn::Zero(du)));
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
  const D d;
  const hn::RebindToUnsigned<D> du;
  const auto lane_bit = hn::Shl(hn::Set(du, 1u), hn::Iota(du, 0));
  return hn::RebindMask(d, hn::TestBit(hn::Set(du, word), lane_bit));
}

/// t = scale * x, softcap, then ALiBi over columns [lo, hi).
HWY_INLINE float Shape(const ModifyRow& a, int64_t lo, int64_t hi) {
  const D d;
  const hn::RebindToSigned<D> di;
  const size_t step = hn::Lanes(d);
  const V scale = hn::Set(d, a.scale);
  const V cap = hn::Set(d, a.row.softcap);
  const V slope = hn::Set(d, a.row.slope);
  const auto lanes = hn::Iota(di, 0);
  V largest = hn::Set(d, -kInfinity);
  const auto shaped = [&](V x, int64_t c) HWY_ATTR {
    V t = hn::Mul(scale, x);
    if (a.row.softcap > 0.0f) t = hn::Mul(cap, Tanh(d, hn::Div(t, cap)));
    if (a.row.slope != 0.0f) {
      const int32_t ahead = static_cast<int32_t>(int64_t{a.row.position} - (a.first_key + c));
      const V distance = hn::ConvertTo(d, hn::Abs(hn::Sub(hn::Set(di, ahead), lanes)));
      t = hn::Sub(t, hn::Mul(slope, distance));
    }
    return t;
  };
  int64_t c = lo;
  for (; c + static_cast<int64_t>(step) <= hi; c += static_cast<int64_t>(step)) {
    const V t = shaped(hn::LoadU(d, a.x + c), c);
    hn::StoreU(t, d, a.t + c);
    largest = MaxNumber(d, t, largest);
  }
  if (c < hi) {
    const size_t n = static_cast<size_t>(hi - c);
    const V t = shaped(hn::LoadN(d, a.x + c, n), c);
    hn::StoreN(t, d, a.t + c, n);
    largest = MaxNumber(d, hn::IfThenElse(hn::FirstN(d, n), t, hn::Set(d, -kInfinity)), largest);
  }
  return LargestLane(largest);
}

/// No bias.
struct Nothing {};

/// t = scale * x + bias, -inf where masked, over columns [lo, hi).
template <class B, Mask kMask>
HWY_INLINE ModifyResult Apply(const ModifyRow& a, const float* x, float scale, int64_t lo, int64_t hi) {
  constexpr bool kBias = !std::is_same_v<B, Nothing>;
  const D d;
  const size_t step = hn::Lanes(d);
  const V vs = hn::Set(d, scale);
  const V lowest = hn::Set(d, -kInfinity);
  const B* bias = static_cast<const B*>(a.row.bias);
  V largest = lowest;
  M masked = hn::MaskFalse(d);

  const auto treat = [&](V v, size_t n, int64_t c) HWY_ATTR {
    V t = hn::Mul(v, vs);
    M hidden = masked;
    bool any = false;
    if constexpr (kBias) {
      const B* p = bias + a.first_key + c;
      const V b = n == step ? LoadWide(d, p) : LoadWideN(d, p, n);
      t = hn::Add(t, b);
      hidden = hn::Eq(b, lowest);
      any = true;
    }
    if constexpr (kMask != Mask::kNone) {
      M visible;
      if constexpr (kMask == Mask::kKeep) {
        visible = Kept(a.row.keep + a.first_key + c, n);
      } else {
        const size_t bit = static_cast<size_t>(a.first_key + c - a.row.first_bit);
        visible = FromBits(BitsAt(a.row.bits, bit, n));
      }
      hidden = any ? hn::Or(hidden, hn::Not(visible)) : hn::Not(visible);
    }
    if (n != step) hidden = hn::And(hidden, hn::FirstN(d, n));
    masked = hn::Or(masked, hidden);
    return hn::IfThenElse(hidden, lowest, t);
  };

  int64_t c = lo;
  for (; c + static_cast<int64_t>(step) <= hi; c += static_cast<int64_t>(step)) {
    const V t = treat(hn::LoadU(d, x + c), step, c);
    hn::StoreU(t, d, a.t + c);
    largest = MaxNumber(d, t, largest);
  }
  if (c < hi) {
    const size_t n = static_cast<size_t>(hi - c);
    const V t = treat(hn::LoadN(d, x + c, n), n, c);
    hn::StoreN(t, d, a.t + c, n);
    largest = MaxNumber(d, hn::IfThenElse(hn::FirstN(d, n), t, lowest), largest);
  }
  return {LargestLane(largest), !hn::AllFalse(d, masked)};
}

template <class B>
HWY_INLINE ModifyResult ApplyBias(const ModifyRow& a, const float* x, float scale) {
  if (a.row.keep != nullptr) return Apply<B, Mask::kKeep>(a, x, scale, a.lo, a.hi);
  return Apply<B, Mask::kNone>(a, x, scale, a.lo, a.hi);
}

}  // namespace

void SoftmaxRowsSlot(const SoftmaxRows& a) {
#if HWY_HAVE_SCALABLE
  switch (hn::Lanes(D())) {
    case 16: return AllRows<1>(a);
    case 8: return AllRows<2>(a);
    default: return AllRows<4>(a);
  }
#else
  AllRows<static_cast<int>(kPartials / hn::MaxLanes(D()))>(a);
#endif
}

// At most three passes, the common cases one: scale with softcap and ALiBi; scale with bias and bytes; bits. A later
// pass multiplies by 1.
ModifyResult ModifyRowSlot(const ModifyRow& a) {
  ModifyResult result = {-kInfinity, false};
  if (a.lo >= a.hi) return result;
  const float* x = a.x;
  float scale = a.scale;
  const RowModifiers& m = a.row;
  const bool bits = m.bits != nullptr && a.first_key + a.hi > m.first_bit;
  const bool shape = m.softcap > 0.0f || m.slope != 0.0f;
  if (shape) {
    result.max = Shape(a, a.lo, a.hi);
    x = a.t;
    scale = 1.0f;
  }
  if (m.bias != nullptr) {
    switch (m.bias_dtype) {
      case DType::kBF16: result = ApplyBias<bf16>(a, x, scale); break;
      case DType::kF16: result = ApplyBias<f16>(a, x, scale); break;
      default: result = ApplyBias<float>(a, x, scale); break;
    }
  } else if (m.keep != nullptr) {
    result = Apply<Nothing, Mask::kKeep>(a, x, scale, a.lo, a.hi);
  } else if (!bits && !shape) {
    result = Apply<Nothing, Mask::kNone>(a, x, scale, a.lo, a.hi);
  }
  if (bits) {
    if (m.bias != nullptr || m.keep != nullptr) {
      x = a.t;
      scale = 1.0f;
    }
    const bool before = result.masked;
    const int64_t from = HWY_MAX(a.lo, HWY_MIN(a.hi, m.first_bit - a.first_key));
    result = Apply<Nothing, Mask::kBits>(a, x, scale, from, a.hi);
    if (from > a.lo) {
      const ModifyResult head = Apply<Nothing, Mask::kNone>(a, x, scale, a.lo, from);
      result.max = result.max > head.max ? result.max : head.max;
    }
    result.masked = result.masked || before;
  }
  return result;
}

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();
