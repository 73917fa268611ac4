// One block of the online softmax: three short passes over rows that lie in L1.
#ifndef SIMDATTN_LIB_KERNELS_SOFTMAX_TILE_H_
#define SIMDATTN_LIB_KERNELS_SOFTMAX_TILE_H_

#include "lib/simd/math.h"
#include "lib/simd/memory.h"

namespace simdattn {
namespace {

/// Lanes of the batch at column x that lie in [lo, hi).
SIMDATTN_INLINE Mask inside(int64_t x, int64_t lo, int64_t hi) {
  const Ints column = lane_numbers() + Ints(static_cast<int32_t>(x));
  return at_least(column, Ints(static_cast<int32_t>(lo))) & greater(Ints(static_cast<int32_t>(hi)), column);
}

/// The larger of `m` and the maximum of columns [lo, hi).
SIMDATTN_INLINE float row_max(const float* s, int64_t lo, int64_t hi, float m) {
  Floats m0(m);
  Floats m1(m);
  const auto visible = [&](int64_t x) SIMDATTN_LAMBDA { return select(inside(x, lo, hi), load(s + x), Floats(m)); };
  int64_t x = lo - lo % kLanes;
  if (x < lo) {
    m0 = max_number(visible(x), m0);
    x += kLanes;
  }
  for (; x + 2 * kLanes <= hi; x += 2 * kLanes) {
    m0 = max_number(load(s + x), m0);
    m1 = max_number(load(s + x + kLanes), m1);
  }
  for (; x < hi; x += kLanes) m0 = max_number(visible(x), m0);
  return largest_lane(max_number(m1, m0));
}

/// Turns scores into weights; the sum of the weights. kRounds: the weights are numbers of bf16.
template <bool kRounds>
SIMDATTN_INLINE float row_weights(float* s, int64_t columns, int64_t lo, int64_t hi, float base) {
  const Floats reference(base);
  Registers<kParts> l;
  unroll<kParts>([&](auto p) SIMDATTN_LAMBDA { reg<p>(l) = Floats(0.0f); });
  // 16 columns: one of each partial sum.
  const auto weigh = [&](int64_t x, auto masked) SIMDATTN_LAMBDA {
    Registers<kParts> w;
    unroll<kParts>([&](auto p) SIMDATTN_LAMBDA { reg<p>(w) = load(s + x + p * kLanes) - reference; });
    exp_each<kParts>(w);
    unroll<kParts>([&](auto p) SIMDATTN_LAMBDA {
      if constexpr (kRounds) reg<p>(w) = rounded_to_bf16(reg<p>(w));
      if constexpr (masked) reg<p>(w) = select(inside(x + p * kLanes, lo, hi), reg<p>(w), Floats(0.0f));
      store(reg<p>(w), s + x + p * kLanes);
      reg<p>(l) = reg<p>(l) + reg<p>(w);
    });
  };
  const auto clear = [&](int64_t from, int64_t to) SIMDATTN_LAMBDA {
    for (int64_t x = from; x < to; x += kLanes) store(Floats(0.0f), s + x);
  };
  int64_t x = lo - lo % 16;
  clear(0, x);
  if (x < lo) {
    weigh(x, std::true_type());
    x += 16;
  }
  for (; x + 16 <= hi; x += 16) weigh(x, std::false_type());
  if (x < hi) {
    weigh(x, std::true_type());
    x += 16;
  }
  clear(x, columns);
  return fold(l);
}

/// At most kMaxSoftmaxRows rows, the first of which is row `first`.
constexpr int64_t kMaxSoftmaxRows = 64;
template <bool kRounds>
SIMDATTN_INLINE void softmax_some(const SoftmaxTile& a, int64_t first, int64_t rows) {
  float* s = a.s + first * a.lds;
  const int32_t* hi = a.hi + first;
  alignas(64) float base[kMaxSoftmaxRows];  // the new maximum, then what exponentials are relative to
  alignas(64) float block_sum[kMaxSoftmaxRows];
  const auto row_lo = [&](int64_t r) { return smaller(a.lo[first + r], hi[r]); };

  for (int64_t r = 0; r < rows; ++r) base[r] = row_max(s + r * a.lds, row_lo(r), hi[r], a.max[first + r]);
  for_each_batch(rows, [&](int64_t r, auto part) SIMDATTN_LAMBDA {
    const Floats m = load(base + r, part);
    const Floats reference = select(m == Floats(-kInfinity), Floats(0.0f), m);
    store(exp_of(load(a.max + first + r, part) - reference), a.alpha + first + r, part);
    store(m + Floats(0.0f), a.max + first + r, part);
    store(reference, base + r, part);
  });
  for (int64_t r = 0; r < rows; ++r) {
    block_sum[r] = row_weights<kRounds>(s + r * a.lds, a.columns, row_lo(r), hi[r], base[r]);
  }
  for_each_batch(rows, [&](int64_t r, auto part) SIMDATTN_LAMBDA {
    float* sum = a.sum + first + r;
    store(mul_add(load(sum, part), load(a.alpha + first + r, part), load(block_sum + r, part)), sum, part);
  });
}

template <bool kRounds>
void softmax_tile(const SoftmaxTile& a) {
  for (int64_t first = 0; first < a.rows; first += kMaxSoftmaxRows) {
    softmax_some<kRounds>(a, first, smaller(kMaxSoftmaxRows, a.rows - first));
  }
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_SOFTMAX_TILE_H_
