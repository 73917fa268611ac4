// Softmax over rows.
//
// A row takes three passes: the maximum, exponentials stored to y while they are summed, and the multiplication by the
// reciprocal. Storing the exponentials beats computing them again and the online form by 1.6 to 1.9 times.
#ifndef SIMDATTN_LIB_HIGHWAY_SOFTMAX_ROWS_H_
#define SIMDATTN_LIB_HIGHWAY_SOFTMAX_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "hwy/highway.h"
#include "lib/cursor.h"
#include "lib/dtypes.h"
#include "lib/highway/loads.h"
#include "lib/highway/math.h"
#include "lib/highway/target.h"
#include "lib/ukernels.h"

// Masked loads and stores of f32 do not touch the masked-out elements (Highway promises less for AVX2 because of
// sanitizers, which do not see through its instruction).
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || HWY_TARGET_IS_SVE
#define SIMDATTN_MASKED_ACCESS 1
#else
#define SIMDATTN_MASKED_ACCESS 0
#endif

namespace simdattn {
namespace {

// Sixteen partial sums are 1, 2 or 4 vectors.

/// The maximum of x (of scale * x if kScaled) over n elements. If one is NaN, any value will do: the sum of
/// exponentials is NaN then.
template <bool kScaled>
HWY_INLINE V MaxLanes(const float* HWY_RESTRICT x, size_t n, float scale) {
  const D d;
  const size_t step = hn::Lanes(d);
  const V vs = hn::Set(d, scale);
  const V lowest = hn::Set(d, -kInfinity);
  const auto at = [&](size_t i) SIMDATTN_LAMBDA {
    const V v = hn::LoadU(d, x + i);
    return kScaled ? hn::Mul(v, vs) : v;
  };
  const auto pair = [&](V m, size_t i) SIMDATTN_LAMBDA { return hn::Max(hn::Max(at(i), at(i + step)), m); };
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
  const auto four = [&](size_t j) SIMDATTN_LAMBDA {
    m0 = hn::Max(at(j), m0);
    m1 = hn::Max(at(j + step), m1);
    m2 = hn::Max(at(j + 2 * step), m2);
    m3 = hn::Max(at(j + 3 * step), m3);
  };
  if (n >= 4 * step) {
    for (; i + 4 * step <= n; i += 4 * step) four(i);
    if (i < n) four(n - 4 * step);  // some for the second time: cheaper than a loop whose end cannot be predicted
  } else {
    for (; i + step <= n; i += step) m0 = hn::Max(at(i), m0);
    if (i < n) {
      V v = hn::LoadN(d, x + i, n - i);
      if (kScaled) v = hn::Mul(v, vs);
      m1 = hn::Max(hn::IfThenElse(hn::FirstN(d, n - i), v, lowest), m1);
    }
  }
  return hn::Max(hn::Max(m0, m2), hn::Max(m1, m3));
}

/// A vector whose largest lane is the maximum of scale * x.
HWY_INLINE V MaxScaled(const float* x, size_t n, float scale) {
  // Rounding is monotonic: the largest x gives the largest product.
  if (scale > 0.0f) return hn::Mul(hn::Set(D(), scale), MaxLanes<false>(x, n, scale));
  return MaxLanes<true>(x, n, scale);
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
  const auto part = [&](size_t first, V& sum) SIMDATTN_LAMBDA {
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
  const auto part = [&](size_t first, V& sum) SIMDATTN_LAMBDA {
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

/// y = exp(scale * x - base) over columns [lo, hi); its 16 partial sums go to `partial`.
template <int kV, bool kScaled>
HWY_INLINE void ExpSum(const float* x, float* y, size_t lo, size_t hi, float scale, float base, float* partial) {
  const D d;
  const size_t step = hn::Lanes(d);
  const V vs = hn::Set(d, scale);
  const V vb = hn::Set(d, base);
  const ExpConstants<D> constants;
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
  const auto at = [&](size_t i) SIMDATTN_LAMBDA {
    const V v = hn::LoadU(d, x + i);
    return hn::Sub(kScaled ? hn::Mul(v, vs) : v, vb);
  };
  for (; j + 4 * step <= hi; j += 4 * step) {
    V e0 = at(j);
    V e1 = at(j + step);
    V e2 = at(j + 2 * step);
    V e3 = at(j + 3 * step);
    Exp4(d, constants, e0, e1, e2, e3);
    hn::StoreU(e0, d, y + j);
    hn::StoreU(e1, d, y + j + step);
    hn::StoreU(e2, d, y + j + 2 * step);
    hn::StoreU(e3, d, y + j + 3 * step);
    s0 = hn::Add(s0, e0);
    t1 = hn::Add(t1, e1);
    t2 = hn::Add(t2, e2);
    t3 = hn::Add(t3, e3);
  }
#if SIMDATTN_MASKED_ACCESS
  if (j < hi && hi - j <= kPartials) {
    PartialBlock<kV, kScaled>(x + j, y + j, 0, hi - j, vs, vb, s0, s1, s2, s3);
  } else if (j < hi) {
    const size_t n = hi - j;
    const auto inside = [&](size_t first) SIMDATTN_LAMBDA { return hn::FirstN(d, n > first ? n - first : 0); };
    const M in0 = inside(0), in1 = inside(step), in2 = inside(2 * step), in3 = inside(3 * step);
    // A vector past the end has no address.
    const auto clamped = [&](size_t first) { return j + HWY_MIN(first, n); };
    const size_t j1 = clamped(step), j2 = clamped(2 * step), j3 = clamped(3 * step);
    const auto masked = [&](M in, size_t i) SIMDATTN_LAMBDA {
      const V v = hn::MaskedLoad(in, d, x + i);
      return hn::Sub(kScaled ? hn::Mul(v, vs) : v, vb);
    };
    V e0 = masked(in0, j);
    V e1 = masked(in1, j1);
    V e2 = masked(in2, j2);
    V e3 = masked(in3, j3);
    Exp4(d, constants, e0, e1, e2, e3);
    hn::BlendedStore(e0, in0, d, y + j);
    hn::BlendedStore(e1, in1, d, y + j1);
    hn::BlendedStore(e2, in2, d, y + j2);
    hn::BlendedStore(e3, in3, d, y + j3);
    s0 = hn::Add(s0, hn::IfThenElseZero(in0, e0));
    t1 = hn::Add(t1, hn::IfThenElseZero(in1, e1));
    t2 = hn::Add(t2, hn::IfThenElseZero(in2, e2));
    t3 = hn::Add(t3, hn::IfThenElseZero(in3, e3));
  }
#else
  static_assert(kV == 4, "four vectors are a block of 16");
  if (j < hi) PartialBlock<kV, kScaled>(x + j, y + j, 0, hi - j, vs, vb, s0, s1, s2, s3);
#endif
  hn::Store(s0, d, partial);
  if constexpr (kV > 1) hn::Store(s1, d, partial + step);
  if constexpr (kV > 2) {
    hn::Store(s2, d, partial + 2 * step);
    hn::Store(s3, d, partial + 3 * step);
  }
}

HWY_INLINE void Multiply(float* y, size_t n, float factor) {
  const D d;
  const size_t step = hn::Lanes(d);
  const V f = hn::Set(d, factor);
  const auto at = [&](size_t i) SIMDATTN_LAMBDA { return hn::Mul(hn::LoadU(d, y + i), f); };
  size_t j = 0;
  if (n >= 4 * step) {
    // The last four vectors are read before the loop may have multiplied a part of them.
    const size_t end = n - 4 * step;
    const V l0 = at(end), l1 = at(end + step), l2 = at(end + 2 * step), l3 = at(end + 3 * step);
    for (; j < end; j += 4 * step) {
      const V v0 = at(j), v1 = at(j + step), v2 = at(j + 2 * step), v3 = at(j + 3 * step);
      hn::StoreU(v0, d, y + j);
      hn::StoreU(v1, d, y + j + step);
      hn::StoreU(v2, d, y + j + 2 * step);
      hn::StoreU(v3, d, y + j + 3 * step);
    }
    hn::StoreU(l0, d, y + end);
    hn::StoreU(l1, d, y + end + step);
    hn::StoreU(l2, d, y + end + 2 * step);
    hn::StoreU(l3, d, y + end + 3 * step);
  } else {
    for (; j + step <= n; j += step) hn::StoreU(at(j), d, y + j);
    if (j < n) hn::StoreN(hn::Mul(hn::LoadN(d, y + j, n - j), f), d, y + j, n - j);
  }
}

HWY_INLINE void Fill(float* y, size_t n, float value) {
  const D d;
  const size_t step = hn::Lanes(d);
  const V v = hn::Set(d, value);
  size_t j = 0;
  for (; j + step <= n; j += step) hn::StoreU(v, d, y + j);
  if (j < n) hn::StoreN(v, d, y + j, n - j);
}

/// Rows treated pass by pass, so that the latencies of the reductions and the division overlap, and reduced together.
constexpr int64_t kRowsTogether = 4;
/// Up to this many columns; longer rows would leave L1 between passes.
constexpr size_t kColumnsTogether = 1024;
using D4 = hn::FixedTag<float, kRowsTogether>;
using V4 = hn::Vec<D4>;

/// The same four lanes of f(lanes 0 and 2, lanes 1 and 3) of each of four vectors, transposed: lane r is of v_r.
template <class F>
HWY_INLINE V4 Across(V4 v0, V4 v1, V4 v2, V4 v3, F f) {
  const D4 d4;
  const V4 low = f(hn::ConcatLowerLower(d4, v1, v0), hn::ConcatUpperUpper(d4, v1, v0));
  const V4 high = f(hn::ConcatLowerLower(d4, v3, v2), hn::ConcatUpperUpper(d4, v3, v2));
  return f(hn::ConcatEven(d4, high, low), hn::ConcatOdd(d4, high, low));
}

/// Where row i of `count` has its 16 partial results; rows that are missing repeat the first.
HWY_INLINE const float* PartialOf(const float* partial, int64_t count, int64_t i) {
  return partial + (i < count ? i : 0) * static_cast<int64_t>(kPartials);
}

/// The sums of up to four rows of 16 partial sums: l += l+8, l += l+4, l += l+2, l += l+1.
HWY_INLINE V4 FoldRows(const float* partial, int64_t count) {
  const D4 d4;
  const auto add = [](V4 a, V4 b) SIMDATTN_LAMBDA { return hn::Add(a, b); };
  const auto to_four = [&](const float* p) SIMDATTN_LAMBDA {
    return add(add(hn::Load(d4, p), hn::Load(d4, p + 8)), add(hn::Load(d4, p + 4), hn::Load(d4, p + 12)));
  };
  return Across(to_four(partial), to_four(PartialOf(partial, count, 1)), to_four(PartialOf(partial, count, 2)),
                to_four(PartialOf(partial, count, 3)), add);
}

/// The largest lanes of up to four vectors, kPartials elements apart.
HWY_INLINE V4 LargestOfRows(const float* partial, int64_t count) {
  const D4 d4;
  const auto max = [](V4 a, V4 b) SIMDATTN_LAMBDA { return hn::Max(a, b); };
  const auto to_four = [&](const float* p) SIMDATTN_LAMBDA {
    V4 v = hn::Load(d4, p);
    for (size_t i = kRowsTogether; i < hn::Lanes(D()); i += kRowsTogether) v = max(v, hn::Load(d4, p + i));
    return v;
  };
  return Across(to_four(partial), to_four(PartialOf(partial, count, 1)), to_four(PartialOf(partial, count, 2)),
                to_four(PartialOf(partial, count, 3)), max);
}

/// What the passes over a group of rows hand on, by row.
struct Group {
  HWY_ALIGN float largest[kRowsTogether];
  HWY_ALIGN float base[kRowsTogether];  // what exponentials are relative to
  HWY_ALIGN float sum[kRowsTogether];
  HWY_ALIGN float factor[kRowsTogether];
};

struct RowColumns {
  size_t lo;
  size_t hi;
};
HWY_INLINE RowColumns VisibleOf(const SoftmaxRows& a, int64_t r) {
  const size_t lo = static_cast<size_t>(HWY_MIN(a.lo + r * a.lo_step, a.n));
  return {lo, HWY_MAX(lo, static_cast<size_t>(a.hi + r * a.hi_step))};
}

HWY_INLINE void Maxima(const SoftmaxRows& a, int64_t first, int64_t count, float* partial, Group& group) {
  const D4 d4;
  V4 largest;
  if (a.known_max != nullptr) {
    largest = hn::LoadN(d4, a.known_max + first, static_cast<size_t>(count));
  } else {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t r = first + i;
      const RowColumns c = VisibleOf(a, r);
      hn::Store(MaxScaled(a.x + r * a.ldx + c.lo, c.hi - c.lo, a.scale), D(),
                partial + static_cast<size_t>(i) * kPartials);
    }
    largest = LargestOfRows(partial, count);
  }
  const V4 sink = hn::Set(d4, a.sink);
  largest = hn::IfThenElse(hn::Gt(largest, sink), largest, sink);
  hn::Store(largest, d4, group.largest);
  hn::Store(hn::IfThenZeroElse(hn::Eq(largest, hn::Set(d4, -kInfinity)), largest), d4, group.base);
}

template <int kV>
HWY_INLINE void Exponentials(const SoftmaxRows& a, int64_t first, int64_t count, float* partial, Group& group) {
  const D4 d4;
  const size_t n = static_cast<size_t>(a.n);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t r = first + i;
    const float* x = a.x + r * a.ldx;
    float* y = a.y + r * a.ldy;
    const RowColumns c = VisibleOf(a, r);
    // The masked columns first: their stores drain while exponentials are computed.
    if (c.hi - c.lo != n) {
      Fill(y, c.lo, 0.0f);
      if (c.hi < n) Fill(y + c.hi, n - c.hi, 0.0f);
    }
    float* sums = partial + static_cast<size_t>(i) * kPartials;
    if (a.scale == 1.0f) {
      ExpSum<kV, false>(x, y, c.lo, c.hi, a.scale, group.base[i], sums);
    } else {
      ExpSum<kV, true>(x, y, c.lo, c.hi, a.scale, group.base[i], sums);
    }
  }
  const V4 zero = hn::Zero(d4);
  V4 sum = FoldRows(partial, count);
  if (a.sink != -kInfinity) sum = hn::Add(sum, Exp(d4, hn::Sub(hn::Set(d4, a.sink), hn::Load(d4, group.base))));
  hn::Store(sum, d4, group.sum);
  hn::Store(hn::IfThenElseZero(hn::Gt(sum, zero), hn::Div(hn::Set(d4, 1.0f), sum)), d4, group.factor);
}

HWY_INLINE void Normalise(const SoftmaxRows& a, int64_t first, int64_t count, const Group& group) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t r = first + i;
    float* y = a.y + r * a.ldy;
    const float l = group.sum[i];
    if (is_nan(l)) {
      Fill(y, static_cast<size_t>(a.n), canonical(l));
    } else {
      const RowColumns c = VisibleOf(a, r);
      Multiply(y + c.lo, c.hi - c.lo, group.factor[i]);
    }
    if (a.max != nullptr) {
      a.max[r] = canonical(is_nan(l) ? l : group.largest[i] + 0.0f);
      a.sum[r] = canonical(l);
    }
  }
}

template <int kV>
HWY_INLINE void AllRows(const SoftmaxRows& a) {
  const RowColumns head = VisibleOf(a, 0);
  const RowColumns last = VisibleOf(a, a.rows - 1);
  const bool is_short = HWY_MAX(head.hi - head.lo, last.hi - last.lo) <= kColumnsTogether;
  const int64_t size = is_short ? kRowsTogether : 1;
  HWY_ALIGN float partial[kRowsTogether * kPartials];
  Group groups[2];
  Group* group = &groups[0];
  Group* next = &groups[1];
  int64_t count = HWY_MIN(size, a.rows);
  if (count > 0) Maxima(a, 0, count, partial, *group);
  // The maxima of the next group stand between the sums of this one and their first use, and the multiplications of this
  // one between those maxima and their first use: the latencies of both reductions and of the division are hidden.
  for (int64_t first = 0; count > 0;) {
    Exponentials<kV>(a, first, count, partial, *group);
    const int64_t after = HWY_MIN(size, a.rows - first - count);
    if (after > 0) Maxima(a, first + count, after, partial, *next);
    Normalise(a, first, count, *group);
    first += count;
    count = after;
    std::swap(group, next);
  }
}

void SoftmaxRowsSlot(const SoftmaxRows& a) { AllRows<static_cast<int>(kPartials / hn::MaxLanes(D()))>(a); }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_SOFTMAX_ROWS_H_
