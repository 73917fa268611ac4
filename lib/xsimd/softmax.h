// Softmax rows and the modifiers of a row of scores.
//
// A row takes three passes: the maximum, exponentials stored to y while they are summed, and the multiplication by the
// reciprocal.
#ifndef SIMDATTN_LIB_XSIMD_SOFTMAX_H_
#define SIMDATTN_LIB_XSIMD_SOFTMAX_H_

#include "lib/xsimd/math.h"
#include "lib/xsimd/memory.h"

namespace simdattn {
namespace {

/// The maximum of x (of scale * x if kScaled) over n elements, NaN ignored.
template <bool kScaled>
SIMDATTN_INLINE float max_of(const float* x, int64_t n, float scale) {
  constexpr int64_t kChains = 8;
  const Floats factor(scale);
  const auto at = [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    const Floats v = load(x + i, part);
    return kScaled ? v * factor : v;
  };
  Registers<kChains> m;
  unroll<kChains>([&](auto c) SIMDATTN_LAMBDA { reg<c>(m) = Floats(-kInfinity); });
  int64_t i = 0;
  for (; i + kChains * kLanes <= n; i += kChains * kLanes) {
    unroll<kChains>([&](auto c) SIMDATTN_LAMBDA { reg<c>(m) = max_number(at(i + c * kLanes, All()), reg<c>(m)); });
  }
  for (; i + kLanes <= n; i += kLanes) reg<0>(m) = max_number(at(i, All()), reg<0>(m));
  if (i < n) {
    const Lanes part = first_lanes(n - i);
    reg<1>(m) = max_number(xsimd::select(mask_of(part), at(i, part), Floats(-kInfinity)), reg<1>(m));
  }
  unroll<4>([&](auto c) SIMDATTN_LAMBDA { reg<c>(m) = max_number(reg<c>(m), reg<c + 4>(m)); });
  return largest_lane(max_number(max_number(reg<0>(m), reg<2>(m)), max_number(reg<1>(m), reg<3>(m))));
}
/// The maximum of scale * x.
SIMDATTN_INLINE float max_of_scaled(const float* x, int64_t n, float scale) {
  // Rounding is monotonic: the largest x gives the largest product.
  return scale > 0.0f ? scale * max_of<false>(x, n, scale) : max_of<true>(x, n, scale);
}

/// y = exp(scale * x - base) over columns [lo, hi), lo < hi; returns the sum.
template <bool kScaled>
SIMDATTN_INLINE float exp_sum(const float* x, float* y, int64_t lo, int64_t hi, float scale, float base) {
  const Floats vs(scale);
  const Floats vb(base);
  Registers<kParts> sum;
  unroll<kParts>([&](auto p) SIMDATTN_LAMBDA { reg<p>(sum) = Floats(0.0f); });
  const auto argument = [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    const Floats v = load(x + i, part);
    return (kScaled ? v * vs : v) - vb;
  };
  // Columns [from, to) of the 16 that begin at j.
  const auto some = [&](int64_t j, int64_t from, int64_t to) SIMDATTN_LAMBDA {
    unroll<kParts>([&](auto p) SIMDATTN_LAMBDA {
      constexpr int64_t kFirst = p * kLanes;
      if (to <= kFirst || from >= kFirst + kLanes) return;
      const Lanes part = lanes(larger(from - kFirst, 0), smaller(to - kFirst, kLanes));
      const Floats e = exp_of(argument(j + kFirst, part));
      store(e, y + j + kFirst, part);
      reg<p>(sum) = reg<p>(sum) + xsimd::select(mask_of(part), e, Floats(0.0f));
    });
  };
  int64_t j = lo - lo % 16;
  if (j < lo) {
    some(j, lo - j, smaller(hi - j, 16));
    j += 16;
  }
  // Batch i of four goes to batch i mod kParts of the partial sums.
  for (; j + 4 * kLanes <= hi; j += 4 * kLanes) {
    Registers<4> e;
    unroll<4>([&](auto i) SIMDATTN_LAMBDA { reg<i>(e) = argument(j + i * kLanes, All()); });
    exp_each<4>(e);
    unroll<4>([&](auto i) SIMDATTN_LAMBDA {
      store(reg<i>(e), y + j + i * kLanes);
      reg<i % kParts>(sum) = reg<i % kParts>(sum) + reg<i>(e);
    });
  }
  for (; kParts < 4 && j + 16 <= hi; j += 16) {
    Registers<kParts> e;
    unroll<kParts>([&](auto i) SIMDATTN_LAMBDA { reg<i>(e) = argument(j + i * kLanes, All()); });
    exp_each<kParts>(e);
    unroll<kParts>([&](auto i) SIMDATTN_LAMBDA {
      store(reg<i>(e), y + j + i * kLanes);
      reg<i>(sum) = reg<i>(sum) + reg<i>(e);
    });
  }
  if (j < hi) some(j, 0, hi - j);
  return fold(sum);
}

SIMDATTN_INLINE void multiply(float* y, int64_t n, float factor) {
  const Floats f(factor);
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store(load(y + i, part) * f, y + i, part); });
}
SIMDATTN_INLINE void fill(float* y, int64_t n, float value) {
  const Floats v(value);
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store(v, y + i, part); });
}

void softmax_rows(const SoftmaxRows& a) {
  // Short rows are treated pass by pass in groups, so that the latencies of the reductions and the division overlap;
  // long ones would leave the first-level cache between passes.
  constexpr int64_t kMaxGroup = 4;
  const int64_t group = a.hi - a.lo <= 512 ? kMaxGroup : 1;
  const int64_t visible = larger(a.hi - a.lo, 0);
  float largest[kMaxGroup];
  float sum[kMaxGroup];
  for (int64_t first = 0; first < a.rows; first += group) {
    const int64_t count = smaller(group, a.rows - first);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t r = first + i;
      const float m = a.known_max != nullptr ? a.known_max[r] : max_of_scaled(a.x + r * a.ldx + a.lo, visible, a.scale);
      largest[i] = m > a.sink ? m : a.sink;
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t r = first + i;
      const float* x = a.x + r * a.ldx;
      float* y = a.y + r * a.ldy;
      const float base = largest[i] == -kInfinity ? 0.0f : largest[i];
      float l = 0.0f;
      if (visible != 0) {
        l = a.scale == 1.0f ? exp_sum<false>(x, y, a.lo, a.hi, a.scale, base)
                            : exp_sum<true>(x, y, a.lo, a.hi, a.scale, base);
      }
      if (a.sink != -kInfinity) l += first_lane(exp_of(Floats(a.sink - base)));
      sum[i] = l;
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t r = first + i;
      float* y = a.y + r * a.ldy;
      const float l = sum[i];
      if (is_nan(l)) {
        fill(y, a.n, canonical(l));
        largest[i] = l;
      } else {
        multiply(y + a.lo, visible, l > 0.0f ? 1.0f / l : 0.0f);
        if (visible != a.n) {
          fill(y, smaller(a.lo, a.n), 0.0f);
          fill(y + a.lo + visible, a.n - a.lo - visible, 0.0f);
        }
      }
      if (a.max != nullptr) {
        a.max[r] = canonical(largest[i] + 0.0f);
        a.sum[r] = canonical(l);
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------

/// Bits [bit, bit + n) of an array, at most 16.
SIMDATTN_INLINE uint32_t bits_at(const uint8_t* bits, int64_t bit, int64_t n) {
  const uint8_t* p = bits + bit / 8;
  const int64_t bytes = (bit % 8 + n + 7) / 8;
  uint32_t word = p[0];
  if (bytes > 1) word |= static_cast<uint32_t>(p[1]) << 8;
  if (bytes > 2) word |= static_cast<uint32_t>(p[2]) << 16;
  return word >> (bit % 8);
}
/// Lane i is true if bit i is 0.
SIMDATTN_INLINE Mask clear_bits(uint32_t word) {
  alignas(64) static constexpr uint32_t kBits[16] = {1u << 0,  1u << 1,  1u << 2,  1u << 3, 1u << 4,  1u << 5,
                                                     1u << 6,  1u << 7,  1u << 8,  1u << 9, 1u << 10, 1u << 11,
                                                     1u << 12, 1u << 13, 1u << 14, 1u << 15};
  return xsimd::batch_bool_cast<float>((Bits32(word) & Bits32::load_aligned(kBits)) == Bits32(0u));
}

/// t = scale * x, softcap, then ALiBi over columns [lo, hi); the maximum.
SIMDATTN_INLINE float shape_scores(const ModifyRow& a) {
  const Floats scale(a.scale);
  const Floats cap(a.row.softcap);
  const Floats slope(a.row.slope);
  const Ints numbers = lane_numbers();
  Floats largest(-kInfinity);
  for_each_batch(a.hi - a.lo, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    const int64_t c = a.lo + i;
    Floats t = scale * load(a.x + c, part);
    if (a.row.softcap > 0.0f) t = cap * tanh_of(t / cap);
    if (a.row.slope != 0.0f) {
      const int32_t ahead = static_cast<int32_t>(int64_t{a.row.position} - (a.first_key + c));
      t = t - slope * xsimd::to_float(xsimd::abs(Ints(ahead) - numbers));
    }
    store(t, a.t + c, part);
    if constexpr (std::is_same_v<decltype(part), Lanes>) t = xsimd::select(mask_of(part), t, Floats(-kInfinity));
    largest = max_number(t, largest);
  });
  return largest_lane(largest);
}

/// No bias.
struct Nothing {};
/// Which masks a pass over the scores applies.
enum class Hides : uint8_t { kNothing, kBytes, kBits };

/// t = scale * x + bias, -inf where masked, over columns [lo, hi).
template <class B, Hides kHides>
ModifyResult apply(const ModifyRow& a, const float* x, float scale, int64_t lo, int64_t hi) {
  const Floats factor(scale);
  const Floats lowest(-kInfinity);
  Floats largest = lowest;
  Mask masked(false);
  for_each_batch(hi - lo, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    constexpr bool kSome = std::is_same_v<decltype(part), Lanes>;
    const int64_t c = lo + i;
    const int64_t key = a.first_key + c;
    Floats t = load(x + c, part) * factor;
    Mask hidden(false);
    if constexpr (!std::is_same_v<B, Nothing>) {
      const Floats b = load(static_cast<const B*>(a.row.bias) + key, part);
      t = t + b;
      hidden = b == lowest;
    }
    if constexpr (kHides == Hides::kBytes) {
      hidden = hidden | xsimd::batch_bool_cast<float>(load_bytes(a.row.keep + key, part) == Bits32(0u));
    } else if constexpr (kHides == Hides::kBits) {
      hidden = hidden | clear_bits(bits_at(a.row.bits, key - a.row.first_bit, smaller(kLanes, hi - c)));
    }
    if constexpr (kSome) hidden = hidden & mask_of(part);
    masked = masked | hidden;
    t = xsimd::select(hidden, lowest, t);
    store(t, a.t + c, part);
    if constexpr (kSome) t = xsimd::select(mask_of(part), t, lowest);
    largest = max_number(t, largest);
  });
  return {largest_lane(largest), xsimd::any(masked)};
}

template <class B>
SIMDATTN_INLINE ModifyResult apply_bias(const ModifyRow& a, const float* x, float scale) {
  if (a.row.keep != nullptr) return apply<B, Hides::kBytes>(a, x, scale, a.lo, a.hi);
  return apply<B, Hides::kNothing>(a, x, scale, a.lo, a.hi);
}

// At most three passes, the common cases one: scale with softcap and ALiBi; scale with bias and bytes; bits. A later
// pass multiplies by 1.
ModifyResult modify_row(const ModifyRow& a) {
  ModifyResult result = {-kInfinity, false};
  if (a.lo >= a.hi) return result;
  const float* x = a.x;
  float scale = a.scale;
  const auto done = [&] {
    x = a.t;
    scale = 1.0f;
  };
  const RowModifiers& m = a.row;
  const bool bits = m.bits != nullptr && a.first_key + a.hi > m.first_bit;
  const bool shape = m.softcap > 0.0f || m.slope != 0.0f;
  if (shape) {
    result.max = shape_scores(a);
    done();
  }
  if (m.bias != nullptr) {
    switch (m.bias_dtype) {
      case DType::kBF16: result = apply_bias<bf16>(a, x, scale); break;
      case DType::kF16: result = apply_bias<f16>(a, x, scale); break;
      default: result = apply_bias<float>(a, x, scale); break;
    }
    done();
  } else if (m.keep != nullptr) {
    result = apply<Nothing, Hides::kBytes>(a, x, scale, a.lo, a.hi);
    done();
  } else if (!bits && !shape) {
    result = apply<Nothing, Hides::kNothing>(a, x, scale, a.lo, a.hi);
  }
  if (bits) {
    const bool before = result.masked;
    const int64_t from = larger(a.lo, smaller(a.hi, m.first_bit - a.first_key));
    result = apply<Nothing, Hides::kBits>(a, x, scale, from, a.hi);
    if (from > a.lo) {
      const ModifyResult head = apply<Nothing, Hides::kNothing>(a, x, scale, a.lo, from);
      result.max = result.max > head.max ? result.max : head.max;
    }
    result.masked = result.masked || before;
  }
  return result;
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_XSIMD_SOFTMAX_H_
