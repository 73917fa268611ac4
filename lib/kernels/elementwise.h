// Slots that treat each element on its own, and the largest of many.
#pragma once

#include <limits>

#include "lib/simd/math.h"
#include "lib/simd/memory.h"

namespace simdattn {
namespace {

/// The largest of value(index, part) for n elements, NaN ignored, in kChains chains: eight keep two units with a
/// latency of four busy, two are enough where a value takes several operations.
template <int64_t kChains = 8, class F>
SIMDATTN_INLINE float largest_of(int64_t n, const F& value) {
  Registers<kChains> largest;
  unroll<kChains>([&](auto chain) SIMDATTN_LAMBDA { reg<chain>(largest) = Floats(-kInfinity); });
  for_each_batch_in_chains<kChains>(n, [&](int64_t i, auto part, auto chain) SIMDATTN_LAMBDA {
    Floats v = value(i, part);
    if constexpr (std::is_same_v<decltype(part), Lanes>) v = select(mask_of(part), v, Floats(-kInfinity));
    reg<chain>(largest) = max_number(v, reg<chain>(largest));
  });
  const auto fold = [&](auto half) SIMDATTN_LAMBDA {
    unroll<half>([&](auto c)
                     SIMDATTN_LAMBDA { reg<c>(largest) = max_number(reg<c>(largest), reg<c + half>(largest)); });
  };
  if constexpr (kChains == 8) fold(constant<4>), fold(constant<2>);
  fold(constant<1>);
  return largest_lane(reg<0>(largest));
}

template <class T>
void widen(const void* in, float* out, int64_t n) {
  const T* p = static_cast<const T*>(in);
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store(load(p + i, part), out + i, part); });
}

template <class T>
void finish(const float* in, float factor, void* out, int64_t n) {
  T* p = static_cast<T*>(out);
  const Floats f(factor);
  for_each_batch(n, [&](int64_t i, auto part)
                        SIMDATTN_LAMBDA { store_rounded((load(in + i, part) + Floats(0.0f)) * f, p + i, part); });
}

/// The integer of a storage type.
template <class T>
using BitsOf = std::conditional_t<std::is_same_v<T, float>, uint32_t, uint16_t>;

template <class T>
bool all_finite(const FiniteRows& a) {
  using Bits = Batch<BitsOf<T>>;
  constexpr int64_t kStep = static_cast<int64_t>(Bits::size);
  constexpr BitsOf<T> kMagnitude = std::numeric_limits<BitsOf<T>>::max() >> 1;
  const Bits magnitude(kMagnitude);
  const int64_t dim = a.dim;
  Bits largest(BitsOf<T>{0});
  for (int64_t j = 0; j < a.keys; ++j) {
    const BitsOf<T>* p = reinterpret_cast<const BitsOf<T>*>(static_cast<const char*>(a.rows) + j * a.token_stride);
    if (dim >= kStep) {  // no fault: either way serves whole vectors
      // The last ones, some of them perhaps twice.
      for (int64_t i = 0; i < dim; i += kStep)
        largest = max(largest, Bits::load_unaligned(p + smaller(i, dim - kStep)) & magnitude);
    } else {
      for (int64_t i = 0; i < dim; ++i) {
        if ((p[i] & kMagnitude) >= kUnhidden<T>) return false;
      }
    }
  }
  return !any_at_least(largest, static_cast<BitsOf<T>>(kUnhidden<T>));
}

bool any_zero(const float* w, int64_t n) {
  Mask found(false);
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    Mask zero = load(w + i, part) == Floats(0.0f);
    if constexpr (std::is_same_v<decltype(part), Lanes>) zero = zero & mask_of(part);
    found = found | zero;
  });
  return any(found);
}

int64_t above(const float* x, float bound, int64_t n, int32_t first, int32_t* places) {
  const Floats b(bound);
  int64_t count = 0;
  for (int64_t j = 0; j < n; j += 64) {
    uint64_t word = 0;
    const auto compare = [&](int64_t i, auto part) SIMDATTN_LAMBDA {
      Mask found = load(x + j + i, part) > b;
      if constexpr (std::is_same_v<decltype(part), Lanes>) found = found & mask_of(part);
      word |= uint64_t{word_of(found)} << i;
    };
    if (j + 64 <= n) {
      unroll<64 / kLanes>([&](auto i) SIMDATTN_LAMBDA { compare(i * kLanes, All()); });
    } else {
      for_each_batch(n - j, compare);
    }
    const int64_t before = count;
    count += __builtin_popcountll(word);
    if (places == nullptr) continue;
    int32_t* to = places + before;
    // Some places at a time, whether there are as many or not: most words have a few, and branches would be guesses.
    do {
      unroll<kMorePlaces>([&](auto) SIMDATTN_LAMBDA {
        *to++ = first + static_cast<int32_t>(j) + __builtin_ctzll(word | uint64_t{1} << 63);
        word &= word - 1;
      });
    } while (word != 0);
  }
  return count;
}

/// kCount vectors of columns at p; their sums stay in registers.
template <int64_t kCount, bool kRelu, bool kLargest>
SIMDATTN_INLINE void join_columns(const JoinRows& a, int64_t c, auto part) {
  Registers<kCount> y;
  unroll<kCount>([&](auto i) SIMDATTN_LAMBDA {
    reg<i>(y) = a.more ? load(a.y + c + i * kLanes, part) : Floats(kLargest ? -kInfinity : 0.0f);
  });
  const float* s = a.s + c;
  for (int64_t r = 0; r < a.rows; ++r, s += a.lds) {
    const Floats weight(a.weights != nullptr ? a.weights[r] : 1.0f);
    unroll<kCount>([&](auto i) SIMDATTN_LAMBDA {
      Floats t = load(s + i * kLanes, part);
      if constexpr (kRelu) t = max_number(t, Floats(0.0f));
      reg<i>(y) = kLargest ? max_number(t, reg<i>(y)) : mul_add(weight, t, reg<i>(y));
    });
  }
  unroll<kCount>([&](auto i) SIMDATTN_LAMBDA { store_rounded(reg<i>(y), a.y + c + i * kLanes, part); });
}
template <bool kRelu, bool kLargest>
void join_rows_as(const JoinRows& a) {
  int64_t c = 0;
  for (; c + 4 * kLanes <= a.columns; c += 4 * kLanes) join_columns<4, kRelu, kLargest>(a, c, All());
  for (; c < a.columns; c += kLanes)
    join_columns<1, kRelu, kLargest>(a, c, first_lanes(smaller(a.columns - c, kLanes)));
}
void join_rows(const JoinRows& a) {
  if (a.largest) return a.relu ? join_rows_as<true, true>(a) : join_rows_as<false, true>(a);
  return a.relu ? join_rows_as<true, false>(a) : join_rows_as<false, false>(a);
}

void norm_row(float* x, int64_t n, float factor, const float* weights, bool plus_one) {
  const Floats f(factor);
  const Floats one(1.0f);
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    const Floats w = weights == nullptr ? one : load(weights + i, part);
    store_rounded((load(x + i, part) * f) * (plus_one && weights != nullptr ? one + w : w), x + i, part);
  });
}

void merge(float* a, float wa, const float* b, float wb, int64_t n) {
  const Floats va(wa);
  const Floats vb(wb);
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    store(mul_add(load(a + i, part), va, load(b + i, part) * vb), a + i, part);
  });
}

template <class T>
void add_rows(const AddRows& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    const float* p = a.p + r * a.p_stride;
    T* y = static_cast<T*>(a.y) + r * a.y_stride;
    for_each_batch(a.dim, [&](int64_t i, auto part)
                              SIMDATTN_LAMBDA { store_rounded(load(x + i, part) + load(p + i, part), y + i, part); });
  }
}

void hadamard_sums(float* x, int64_t n, int64_t block) {
  // Pairs within a vector. Lanes past n are in no pair with others.
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
    Floats v = load(x + i, part);
    unroll<__builtin_ctz(kLanes)>([&](auto k) SIMDATTN_LAMBDA {
      constexpr int64_t kHalf = int64_t{1} << k;
      if (kHalf >= block) return;
      const Bits32 second = cast_bits<uint32_t>(lane_numbers()) << (31 - k);  // the sign bit: bit k of the lane
      v = swap_lanes<kHalf>(v) + float_of(bits_of(v) ^ (second & Bits32(0x80000000u)));
    });
    store(v, x + i, part);
  });
  for (int64_t half = kLanes; half < block; half *= 2) {
    for (int64_t group = 0; group < n; group += 2 * half) {
      float* a = x + group;
      float* b = a + half;
      for (int64_t i = 0; i < half; i += kLanes) {
        const Floats low = load(a + i), high = load(b + i);
        store(low + high, a + i);
        store(low - high, b + i);
      }
    }
  }
}

void exp_array(const float* x, float* y, int64_t n) {
  for_each_batch(n,
                 [&](int64_t i, auto part) SIMDATTN_LAMBDA { store_rounded(exp_of(load(x + i, part)), y + i, part); });
}

}  // namespace
}  // namespace simdattn
