// The modifiers of a row of scores: scale, softcap, ALiBi, bias and masks.
#pragma once

#include "lib/kernels/elementwise.h"

namespace simdattn {
namespace {

/// Bits [bit, bit + n) from `p` on, below others; bit < 8, 0 < n <= kLanes. Reads each byte that holds one of them.
SIMDATTN_INLINE uint32_t bits_at(const uint8_t* p, uint64_t bit, uint64_t n) {
  uint32_t word = 0;
  for (uint64_t i = 0; i <= (bit + n - 1) / 8; ++i) word |= static_cast<uint32_t>(p[i]) << 8 * i;
  return word >> bit;
}

/// t = scale * x, softcap if kCap, then ALiBi over columns [lo, hi); the maximum.
template <bool kCap>
SIMDATTN_INLINE float shape_scores(const ModifyRow& a) {
  const Floats scale(a.scale);
  const Floats cap(a.row.softcap);
  const Floats slope(a.row.slope);
  Ints ahead =
      Ints(static_cast<int32_t>(a.row.position - (a.first_key + a.lo))) - lane_numbers();  // of the next columns
  const float* x = a.x + a.lo;
  float* y = a.t + a.lo;
  return largest_of<2>(a.hi - a.lo, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    Floats t = scale * load(x + i, part);
    if constexpr (kCap) t = cap * tanh_of(quotient(t, cap));
    t = t - slope * to_float(abs(ahead));
    ahead = ahead - Ints(static_cast<int32_t>(kLanes));
    store(t, y + i, part);
    return t;
  });
}

/// No bias.
struct Nothing {};
/// Which masks a pass over the scores applies.
enum class Hides : uint8_t { kNothing, kBytes, kBits };

/// t = scale * x + bias_scale * bias, -inf where masked, over columns [lo, hi). A bias or a mask, not both.
template <class B, Hides kHides>
ModifyResult apply(const ModifyRow& a, const float* scores, float scale, int64_t lo, int64_t hi) {
  constexpr bool kBias = !std::is_same_v<B, Nothing>;
  const Floats factor(scale);
  [[maybe_unused]] const Floats bias_scale(a.row.bias_scale);
  const Floats lowest(-kInfinity);
  // In variables of their own, because for the compiler a store to t may change what `a` refers to.
  const int64_t columns = hi - lo;
  const int64_t first_key = a.first_key + lo;
  [[maybe_unused]] const int64_t first_bit = first_key - a.row.first_bit;
  const B* bias = static_cast<const B*>(a.row.bias) + (kBias ? first_key : 0);
  const uint8_t* keep = a.row.keep;
  const uint8_t* bits = a.row.bits + (kHides == Hides::kBits ? first_bit / 8 : 0);
  [[maybe_unused]] const uint64_t shift = static_cast<uint64_t>(first_bit) % 8;
  const float* x = scores + lo;
  float* y = a.t + lo;
  Mask all_visible(true);
  const float largest = largest_of<2>(columns, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    constexpr bool kSome = std::is_same_v<decltype(part), Lanes>;
    Floats t = load(x + i, part) * factor;
    Mask visible(true);
    if constexpr (kHides == Hides::kBytes) {
      visible = nonzero_bytes(keep + first_key + i, part);
    } else if constexpr (kHides == Hides::kBits) {
      const uint64_t n = static_cast<uint64_t>(kSome ? columns - i : kLanes);
      const uint64_t bit = shift + static_cast<uint64_t>(i);
      visible = one_bits(bits_at(bits + bit / 8, bit % 8, n));
    }
    if constexpr (kBias) {
      const Floats b = in_register(load(bias + i, part));
      visible = b != lowest;
      t = sum_where(visible, t, b * bias_scale, lowest);
    } else {
      t = select(visible, t, lowest);
    }
    if constexpr (kSome) all_visible = all_visible & (visible | ~mask_of(part));
    else all_visible = all_visible & visible;
    store(t, y + i, part);
    return t;
  });
  return {largest, !all(all_visible)};
}

// One pass for scale with softcap and ALiBi, one for the bias, one for each mask. Most calls have one modifier, so one
// pass; to fuse all of them would make a loop for each combination. A later pass multiplies by 1.
ModifyResult modify_row(const ModifyRow& a) {
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
  if (shape) passed({m.softcap > 0.0f ? shape_scores<true>(a) : shape_scores<false>(a), false});
  if (m.bias != nullptr) {
    passed(with_storage(m.bias_dtype,
                        [&](auto type) { return apply<decltype(type), Hides::kNothing>(a, x, scale, a.lo, a.hi); }));
  }
  if (m.keep != nullptr) passed(apply<Nothing, Hides::kBytes>(a, x, scale, a.lo, a.hi));
  const bool modified = shape || m.bias != nullptr || m.keep != nullptr;
  // Keys before the first bit are visible.
  const int64_t from = bits ? larger(a.lo, smaller(a.hi, m.first_bit - a.first_key)) : a.hi;
  if (from > a.lo && (bits || !modified)) result.max = apply<Nothing, Hides::kNothing>(a, x, scale, a.lo, from).max;
  if (bits) {
    const ModifyResult tail = apply<Nothing, Hides::kBits>(a, x, scale, from, a.hi);
    const bool whole = from == a.lo;
    passed({whole || tail.max > result.max ? tail.max : result.max, tail.masked});
  }
  return result;
}

}  // namespace
}  // namespace simdattn
