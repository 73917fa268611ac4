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

/// Memory to fetch into the cache, `step` bytes further on for each 16 columns.
struct Fetch {
  const char* at;
  int64_t step;

  SIMDATTN_INLINE void columns(int64_t n) {
    for (int64_t c = 0; c < n; c += 16, at += step) __builtin_prefetch(at);
  }
};

/// y = exp(scale * x - base) over columns [lo, hi), lo < hi; returns the sum.
template <bool kScaled>
SIMDATTN_INLINE float exp_sum(const float* x, float* y, int64_t lo, int64_t hi, float scale, float base, Fetch first,
                              Fetch second) {
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
    first.columns(4 * kLanes);
    second.columns(4 * kLanes);
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

/// The columns that row r sees.
struct Columns {
  int64_t lo;
  int64_t hi;
};
SIMDATTN_INLINE Columns visible_columns(const SoftmaxRows& a, int64_t r) {
  const int64_t lo = a.lo + r * a.lo_step;
  return {lo, larger(lo, a.hi + r * a.hi_step)};
}

SIMDATTN_INLINE float maximum_of_row(const SoftmaxRows& a, int64_t r) {
  const Columns c = visible_columns(a, r);
  const float m = a.known_max != nullptr ? a.known_max[r] : max_of_scaled(a.x + r * a.ldx + c.lo, c.hi - c.lo, a.scale);
  return m > a.sink ? m : a.sink;
}

/// y = exp(scale * x - maximum); returns the sum. `ahead` rows below is the next x.
SIMDATTN_INLINE float exponentials_of_row(const SoftmaxRows& a, int64_t r, float maximum, int64_t ahead) {
  const float* x = a.x + r * a.ldx;
  float* y = a.y + r * a.ldy;
  const float base = maximum == -kInfinity ? 0.0f : maximum;
  const Columns c = visible_columns(a, r);
  const auto fetch = [&](const SoftmaxRows::Next& next) -> Fetch {
    if (next.data == nullptr) return {reinterpret_cast<const char*>(x + ahead * a.ldx + c.lo), 64};
    return {static_cast<const char*>(next.data) + r * next.row_bytes + c.lo * next.column_bytes,
            16 * next.column_bytes};
  };
  float l = 0.0f;
  if (c.lo < c.hi) {
    l = a.scale == 1.0f ? exp_sum<false>(x, y, c.lo, c.hi, a.scale, base, fetch(a.next[0]), fetch(a.next[1]))
                        : exp_sum<true>(x, y, c.lo, c.hi, a.scale, base, fetch(a.next[0]), fetch(a.next[1]));
  }
  if (a.sink != -kInfinity) l += first_lane(exp_of(Floats(a.sink - base)));
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
      fill(y, smaller(c.lo, a.n), 0.0f);
      fill(y + c.hi, a.n - c.hi, 0.0f);
    }
  }
  if (a.max != nullptr) {
    a.max[r] = canonical(is_nan(l) ? l : maximum + 0.0f);
    a.sum[r] = canonical(l);
  }
}

void softmax_rows(const SoftmaxRows& a) {
  if (a.rows == 0) return;
  // Short rows are treated pass by pass in groups, and the maxima of the next group before the multiplications of this
  // one, so that the latencies of the reductions and the division overlap with other work. Long ones would leave the
  // first-level cache between passes.
  constexpr int64_t kMaxGroup = 4;
  const Columns head = visible_columns(a, 0);
  const Columns last = visible_columns(a, a.rows - 1);
  const int64_t size = larger(head.hi - head.lo, last.hi - last.lo) <= 1024 ? kMaxGroup : 1;
  float maxima[2][kMaxGroup];
  float sums[kMaxGroup];
  float* maximum = maxima[0];
  float* next = maxima[1];
  int64_t count = smaller(size, a.rows);
  for (int64_t i = 0; i < count; ++i) maximum[i] = maximum_of_row(a, i);
  for (int64_t first = 0; count > 0;) {
    const int64_t after = first + count;
    const int64_t more = smaller(size, a.rows - after);
    const int64_t ahead = more == count ? count : 0;
    for (int64_t i = 0; i < count; ++i) sums[i] = exponentials_of_row(a, first + i, maximum[i], ahead);
    for (int64_t i = 0; i < more; ++i) next[i] = maximum_of_row(a, after + i);
    for (int64_t i = 0; i < count; ++i) normalise_row(a, first + i, maximum[i], sums[i]);
    std::swap(maximum, next);
    first = after;
    count = more;
  }
}

// ---------------------------------------------------------------------------------------------------------------------

/// Bits [bit, bit + n) from `p` on, n <= kLanes, below others; bit < 8. Reads each byte that holds one of them, perhaps
/// twice.
template <bool kWhole>
SIMDATTN_INLINE uint32_t bits_at(const uint8_t* p, uint64_t bit, uint64_t n) {
  const uint64_t last = (bit + n - 1) / 8;
  uint32_t word = p[0];
  if constexpr (kLanes <= 8) {
    word |= static_cast<uint32_t>(p[last]) << 8;
  } else {
    word |= static_cast<uint32_t>(kWhole || last > 0 ? p[1] : 0) << 8 | static_cast<uint32_t>(p[last]) << 16;
  }
  return word >> bit;
}
#if !XSIMD_WITH_AVX512F
/// Lanes whose byte is not 0.
template <class Part>
SIMDATTN_INLINE Mask nonzero_bytes(const uint8_t* p, Part part) {
  return xsimd::batch_bool_cast<float>(cast_bits<int32_t>(load_bytes(p, part)) > Ints(0));
}
/// Lanes whose bit of `word` is 1.
SIMDATTN_INLINE Mask one_bits(uint32_t word) {
  alignas(64) static constexpr uint32_t kBits[16] = {1u << 0,  1u << 1,  1u << 2,  1u << 3, 1u << 4,  1u << 5,
                                                     1u << 6,  1u << 7,  1u << 8,  1u << 9, 1u << 10, 1u << 11,
                                                     1u << 12, 1u << 13, 1u << 14, 1u << 15};
  const Bits32 own = Bits32::load_aligned(kBits);
  return xsimd::batch_bool_cast<float>((Bits32(word) & own) == own);
}
#endif

/// Maxima of four chains.
SIMDATTN_INLINE float largest_of(Registers<4>& m) {
  return largest_lane(max_number(max_number(reg<0>(m), reg<2>(m)), max_number(reg<1>(m), reg<3>(m))));
}

/// t = scale * x, softcap, then ALiBi over columns [lo, hi); the maximum.
template <bool kCap, bool kSlope>
SIMDATTN_INLINE float shape_scores(const ModifyRow& a) {
  const Floats scale(a.scale);
  const Floats cap(a.row.softcap);
  const Floats slope(a.row.slope);
  Ints ahead =
      Ints(static_cast<int32_t>(a.row.position - (a.first_key + a.lo))) - lane_numbers();  // of the next columns
  const float* x = a.x + a.lo;
  float* y = a.t + a.lo;
  Registers<4> largest;
  unroll<4>([&](auto c) SIMDATTN_LAMBDA { reg<c>(largest) = Floats(-kInfinity); });
  for_each_batch_in_chains(a.hi - a.lo, [&](int64_t i, auto part, auto chain) SIMDATTN_LAMBDA {
    Floats t = scale * load(x + i, part);
    if constexpr (kCap) t = cap * tanh_of(quotient(t, cap));
    if constexpr (kSlope) {
      t = t - slope * xsimd::to_float(xsimd::abs(ahead));
      ahead = ahead - Ints(static_cast<int32_t>(kLanes));
    }
    store(t, y + i, part);
    if constexpr (std::is_same_v<decltype(part), Lanes>) t = xsimd::select(mask_of(part), t, Floats(-kInfinity));
    reg<chain>(largest) = max_number(t, reg<chain>(largest));
  });
  return largest_of(largest);
}

/// v, whose origin the compiler does not know: clang 19 would compare the f16 that it was converted from, one by one.
SIMDATTN_INLINE Floats opaque(Floats v) {
#if defined(__clang__) && XSIMD_WITH_SSE2
  asm("" : "+v"(v.data));
#elif defined(__clang__) && XSIMD_WITH_SVE
  svfloat32_t data = v;  // clang knows no register for a vector of fixed length
  asm("" : "+w"(data));
  v = data;
#elif defined(__clang__)
  asm("" : "+w"(v.data));
#endif
  return v;
}

/// No bias.
struct Nothing {};
/// Which masks a pass over the scores applies.
enum class Hides : uint8_t { kNothing, kBytes, kBits };

/// t + bias where `visible`, else -inf, also if t is NaN or +inf. kOwn: `visible` is what the bias allows.
template <bool kOwn>
SIMDATTN_INLINE Floats add_visible(Mask visible, Floats t, Floats bias) {
  const Floats lowest(-kInfinity);
#if XSIMD_WITH_AVX512F
  return _mm512_mask_add_ps(kOwn ? bias : lowest, visible, t, bias);
#else
  if constexpr (!kOwn) return xsimd::select(visible, t + bias, lowest);
  // 0 + -inf: less than a selection after the addition.
#if XSIMD_WITH_SSE2
  return (t & Floats(visible.data)) + bias;
#else
  return xsimd::select(visible, t, Floats(0.0f)) + bias;
#endif
#endif
}

/// t = scale * x + bias, -inf where masked, over columns [lo, hi). kBare: scale is 1, and nobody asks what was masked.
template <class B, Hides kHides, bool kBare>
ModifyResult apply_as(const ModifyRow& a, const float* scores, float scale, int64_t lo, int64_t hi) {
  const Floats factor(scale);
  const Floats lowest(-kInfinity);
  // In variables of their own: a store to t might change what `a` refers to.
  const int64_t columns = hi - lo;
  const int64_t first_key = a.first_key + lo;
  [[maybe_unused]] const int64_t first_bit = first_key - a.row.first_bit;
  const B* bias = static_cast<const B*>(a.row.bias) + (std::is_same_v<B, Nothing> ? 0 : first_key);
  const uint8_t* keep = a.row.keep;
  const uint8_t* bits = a.row.bits + (kHides == Hides::kBits ? first_bit / 8 : 0);
  [[maybe_unused]] const uint64_t shift = static_cast<uint64_t>(first_bit) % 8;
  const float* x = scores + lo;
  float* y = a.t + lo;
  Registers<4> largest;
  unroll<4>([&](auto c) SIMDATTN_LAMBDA { reg<c>(largest) = lowest; });
  Mask all_visible(true);
  for_each_batch_in_chains(columns, [&](int64_t i, auto part, auto chain) SIMDATTN_LAMBDA {
    constexpr bool kSome = std::is_same_v<decltype(part), Lanes>;
    Floats t = load(x + i, part);
    if constexpr (!kBare) t = t * factor;
    Mask visible(true);
    if constexpr (kHides == Hides::kBytes) {
      visible = nonzero_bytes(keep + first_key + i, part);
    } else if constexpr (kHides == Hides::kBits) {
      const uint64_t n = static_cast<uint64_t>(kSome ? columns - i : kLanes);
      if constexpr (kLanes % 8 == 0) {
        visible = one_bits(bits_at<!kSome>(bits + i / 8, shift, n));
      } else {
        const uint64_t bit = shift + static_cast<uint64_t>(i);
        visible = one_bits(bits_at<!kSome>(bits + bit / 8, bit % 8, n));
      }
    }
    if constexpr (!std::is_same_v<B, Nothing>) {
      const Floats b = opaque(load(bias + i, part));
      constexpr bool kOwn = kHides == Hides::kNothing;
      visible = kOwn ? b != lowest : visible & (b != lowest);
      t = add_visible<kOwn>(visible, t, b);
    } else {
      t = xsimd::select(visible, t, lowest);
    }
    if constexpr (!kBare && kSome) all_visible = all_visible & (visible | ~mask_of(part));
    if constexpr (!kBare && !kSome) all_visible = all_visible & visible;
    store(t, y + i, part);
    if constexpr (kSome) t = xsimd::select(mask_of(part), t, lowest);
    reg<chain>(largest) = max_number(t, reg<chain>(largest));
  });
  return {largest_of(largest), !xsimd::all(all_visible)};
}
template <class B, Hides kHides>
SIMDATTN_INLINE ModifyResult apply(const ModifyRow& a, const float* scores, float scale, int64_t lo, int64_t hi) {
  if (scale == 1.0f && !a.note_masked) return apply_as<B, kHides, true>(a, scores, scale, lo, hi);
  return apply_as<B, kHides, false>(a, scores, scale, lo, hi);
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
    if (!(m.softcap > 0.0f)) {
      result.max = shape_scores<false, true>(a);
    } else if (m.slope == 0.0f) {
      result.max = shape_scores<true, false>(a);
    } else {
      result.max = shape_scores<true, true>(a);
    }
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
