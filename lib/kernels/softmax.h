// Softmax over rows, and one step of the online softmax.
//
// A row takes three passes: the maximum, exponentials stored to y while they are summed, and the multiplication by the
// reciprocal, which the online softmax leaves to its end.
#pragma once

#include "lib/contract/steps.h"
#include "lib/kernels/elementwise.h"

namespace simdattn {
namespace {

/// The maximum of scale * x over n elements, NaN ignored. Not kScaled: scale is 1.
template <bool kScaled>
SIMDATTN_SHARED float max_of(const float* x, int64_t n, float scale) {
  const Floats factor(scale);
  return largest_of(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    const Floats v = load(x + i, part);
    return kScaled ? v * factor : v;
  });
}

/// y = exp(scale * x - base) over columns [from, to) of 16, each added to its one of 16 sums. `rounds`: to bf16.
SIMDATTN_SHARED void exp_some(const float* x, float* y, int64_t from, int64_t to, float scale, float base, bool rounds,
                              float* sums) {
  for (int64_t i = from - from % kLanes; i < to; i += kLanes) {
    const Lanes part = lanes(larger(from - i, 0), smaller(to - i, kLanes));
    const bool whole = kParts > 1 && from <= i && to >= i + kLanes;
    Floats e = exp_of((whole ? load(x + i) : load(x + i, part)) * Floats(scale) - Floats(base));
    if (rounds) e = rounded_to_bf16(e);
    if (whole) store(e, y + i);
    else store(e, y + i, part);
    store(load(sums + i) + select(mask_of(part), e, Floats(0.0f)), sums + i);
  }
}

/// The same over columns [lo, hi), lo < hi; returns the sum. What lies `ahead` elements further on is prefetched, if
/// not 0: a later row. Not kScaled: scale is 1.
template <bool kRounds, bool kScaled>
SIMDATTN_INLINE float exp_sum(const float* x, float* y, int64_t lo, int64_t hi, float scale, float base,
                              int64_t ahead) {
  const Floats vs(scale);
  const Floats vb(base);
  Registers<kParts> sum;
  clear(sum);
  // Columns [from, to) of the 16 that begin at j.
  const auto some = [&](int64_t j, int64_t from, int64_t to) SIMDATTN_LAMBDA {
    alignas(64) float sums[16];
    unroll<kParts>([&](auto p) SIMDATTN_LAMBDA { store(reg<p>(sum), sums + p * kLanes); });
    exp_some(x + j, y + j, from, to, scale, base, kRounds, sums);
    unroll<kParts>([&](auto p) SIMDATTN_LAMBDA { reg<p>(sum) = load(sums + p * kLanes); });
  };
  int64_t j = lo - lo % 16;
  if (j < lo) {
    some(j, lo - j, smaller(hi - j, 16));
    j += 16;
  }
  // Batch i goes to batch i mod kParts of the partial sums.
  const auto whole = [&](auto count) SIMDATTN_LAMBDA {
    for (; j + count * kLanes <= hi; j += count * kLanes) {
      Registers<count> e;
      unroll<count>([&](auto i) SIMDATTN_LAMBDA {
        const Floats v = load(x + j + i * kLanes);
        reg<i>(e) = (kScaled ? v * vs : v) - vb;
      });
      for (int64_t line = 0; ahead != 0 && line < count * kLanes; line += 16) {
        __builtin_prefetch(reinterpret_cast<const char*>(address_at(x, ahead + j + line)));
      }
      exp_each<count>(e);
      unroll<count>([&](auto i) SIMDATTN_LAMBDA {
        if (kRounds) reg<i>(e) = rounded_to_bf16(reg<i>(e));
        store(reg<i>(e), y + j + i * kLanes);
        reg<i % kParts>(sum) = reg<i % kParts>(sum) + reg<i>(e);
      });
    }
  };
  whole(constant<4>);
  if constexpr (kParts < 4) whole(constant<kParts>);
  if (j < hi) some(j, 0, hi - j);
  return fold(sum);
}

SIMDATTN_INLINE void multiply(float* y, int64_t n, float factor) {
  const Floats f(factor);
  for_each_batch_in_chains(
      n, [&](int64_t i, auto part, auto) SIMDATTN_LAMBDA { store(load(y + i, part) * f, y + i, part); });
}
SIMDATTN_INLINE void fill(float* y, int64_t n, float value) {
  const Floats v(value);
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store(v, y + i, part); });
}

/// The columns that row r sees.
struct Columns {
  int64_t lo;
  int64_t hi;
};
SIMDATTN_INLINE Columns visible_columns(const SoftmaxRows& a, int64_t r) {
  const int64_t lo = smaller(a.lo + r * a.lo_step, a.n);
  return {lo, larger(lo, a.hi + r * a.hi_step)};
}

SIMDATTN_INLINE float maximum_of_row(const SoftmaxRows& a, int64_t r) {
  const Columns c = visible_columns(a, r);
  const float* const x = a.x + r * a.ldx + c.lo;
  const int64_t n = c.hi - c.lo;
  // Rounding is monotonic: the largest x gives the largest product.
  const float m = a.known_max != nullptr ? a.known_max[r]
                  : a.scale > 0.0f       ? a.scale * max_of<false>(x, n, 1.0f)
                                         : max_of<true>(x, n, a.scale);
  return m > a.sink ? m : a.sink;
}

/// y = exp(scale * x - maximum); returns the sum. Row r + ahead is prefetched.
SIMDATTN_INLINE float exponentials_of_row(const SoftmaxRows& a, int64_t r, float maximum, int64_t ahead) {
  const float* x = a.x + r * a.ldx;
  float* y = a.y + r * a.ldy;
  const float base = maximum == -kInfinity ? 0.0f : maximum;
  const Columns c = visible_columns(a, r);
  float l = c.lo >= c.hi      ? 0.0f
            : a.scale == 1.0f ? exp_sum<false, false>(x, y, c.lo, c.hi, a.scale, base, ahead * a.ldx)
                              : exp_sum<false, true>(x, y, c.lo, c.hi, a.scale, base, ahead * a.ldx);
  if (a.sink != -kInfinity) l += exp_of(Floats(a.sink - base))[0];
  return l;
}

SIMDATTN_INLINE void normalise_row(const SoftmaxRows& a, int64_t r, float maximum, float l) {
  float* y = a.y + r * a.ldy;
  if (is_nan(l)) {
    fill(y, a.n, canonical(l));
  } else {
    const Columns c = visible_columns(a, r);
    multiply(y + c.lo, c.hi - c.lo, l > 0.0f ? 1.0f / l : 0.0f);
    if (c.hi - c.lo != a.n) {
      fill(y, c.lo, 0.0f);
      fill(y + c.hi, a.n - c.hi, 0.0f);
    }
  }
  if (a.max != nullptr) {
    a.max[r] = canonical(is_nan(l) ? l : maximum + 0.0f);
    a.sum[r] = canonical(l);
  }
}

void softmax_rows(const SoftmaxRows& a) {
  // Short rows are treated pass by pass in groups, and the next group's maxima are found before this one is divided:
  // what reductions and divisions wait for overlaps with other work. Long rows would leave L1 between passes.
  constexpr int64_t kRowsTogether = 4;
  const Columns head = visible_columns(a, 0);
  const Columns last = visible_columns(a, a.rows - 1);
  const int64_t size = larger(head.hi - head.lo, last.hi - last.lo) <= 1024 ? kRowsTogether : 1;
  float maxima[2][kRowsTogether], sums[kRowsTogether];
  const auto find_maxima = [&](int64_t first, float* maximum) SIMDATTN_LAMBDA {
    for (int64_t r = first; r < smaller(first + size, a.rows); ++r) maximum[r - first] = maximum_of_row(a, r);
  };
  find_maxima(0, maxima[0]);
  int now = 0;
  for (int64_t first = 0; first < a.rows; first += size, now ^= 1) {
    const int64_t end = smaller(first + size, a.rows);
    const float* const maximum = maxima[now];
    for (int64_t r = first; r < end; ++r) sums[r - first] = exponentials_of_row(a, r, maximum[r - first], size);
    find_maxima(end, maxima[now ^ 1]);
    for (int64_t r = first; r < end; ++r) normalise_row(a, r, maximum[r - first], sums[r - first]);
  }
}

/// A step of the online softmax, in short passes over rows that lie in L1. kRounds: weights are numbers of bf16.
/// Packed: scales scores, and makes weights of another form of them. Weights of f32 are no such type, because gcc would
/// keep vectors of NEON on the stack.
template <bool kRounds, class Packed = void>
void softmax_tile(const SoftmaxTile& a) {
  constexpr bool kPacks = !std::is_void_v<Packed>;
  constexpr int64_t kMost = 64;  // rows at a time
  for (int64_t first = 0; first < a.rows; first += kMost) {
    const int64_t rows = smaller(kMost, a.rows - first);
    float *const max = a.max + first, *const sum = a.sum + first, *const alpha = a.alpha + first;
    alignas(64) float base[kMost];  // the new maximum, then what exponentials are relative to
    alignas(64) float sums[kMost];
    const auto columns = [&](int64_t r) -> Columns {
      return {smaller(a.lo[first + r], a.hi[first + r]), a.hi[first + r]};
    };
    for (int64_t r = 0; r < rows; ++r) {
      const Columns c = columns(r);
      float largest = max_of<false>(a.s + (first + r) * a.lds + c.lo, c.hi - c.lo, 1.0f);
      if constexpr (kPacks) largest = Packed::scaled(a, largest);
      base[r] = largest > max[r] ? largest : max[r];
    }
    for_each_batch(rows, [&](int64_t r, auto part) SIMDATTN_LAMBDA {
      const Floats m = load(base + r, part);
      const Floats reference = select(m == Floats(-kInfinity), Floats(0.0f), m);
      store(exp_of(load(max + r, part) - reference), alpha + r, part);
      store(m + Floats(0.0f), max + r, part);
      store(reference, base + r, part);
    });
    for (int64_t r = 0; r < rows; ++r) {
      const Columns c = columns(r);
      float* const s = a.s + (first + r) * a.lds;
      if constexpr (kPacks) {
        sums[r] = Packed::weigh(a, s, c, base[r]);
      } else {
        sums[r] = c.lo < c.hi ? exp_sum<kRounds, false>(s, s, c.lo, c.hi, 1.0f, base[r], 0) : 0.0f;
        fill(s, c.lo, 0.0f);
        fill(s + c.hi, a.columns - c.hi, 0.0f);
      }
    }
    for_each_batch(rows, [&](int64_t r, auto part) SIMDATTN_LAMBDA {
      store(mul_add(load(sum + r, part), load(alpha + r, part), load(sums + r, part)), sum + r, part);
    });
  }
}

}  // namespace
}  // namespace simdattn
