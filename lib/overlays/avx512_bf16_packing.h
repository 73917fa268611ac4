// Queries, keys and values in the formats of avx512_bf16.h, in vectors of the compiler: tests run the same text on a CPU with AVX2.
#ifndef SIMDATTN_LIB_OVERLAYS_AVX512_BF16_PACKING_H_
#define SIMDATTN_LIB_OVERLAYS_AVX512_BF16_PACKING_H_

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"

#define SIMDATTN_PAIRS_INLINE inline __attribute__((always_inline))
#define SIMDATTN_PAIRS_LAMBDA __attribute__((always_inline))

namespace simdattn {
namespace {

using Floats [[gnu::vector_size(64)]] = float;
using Words [[gnu::vector_size(64)]] = uint32_t;
using Halves [[gnu::vector_size(64)]] = uint16_t;

/// Numbers of a group: 16 steps of each chain. Numbers of a unit: a VDPBF16PS of each.
constexpr int64_t kGroup = 32, kUnit = 4, kGroupUnits = kGroup / kUnit;
/// Bytes of a unit of 32 columns; of that of one row.
constexpr int64_t kUnitBytes = 256, kRowUnitBytes = 8;
constexpr int64_t units_of(int64_t n) { return (n + kUnit - 1) / kUnit; }

template <class V>
SIMDATTN_PAIRS_INLINE V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
template <class V>
SIMDATTN_PAIRS_INLINE void store(V v, void* p) {
  std::memcpy(p, &v, sizeof(v));
}
SIMDATTN_PAIRS_INLINE Words broadcast(const void* p) {
  uint32_t x;
  std::memcpy(&x, p, sizeof(x));
  return Words{} + x;
}

template <class F, int64_t... kIndices>
SIMDATTN_PAIRS_INLINE void unroll(const F& f, std::integer_sequence<int64_t, kIndices...>) {
  (f(std::integral_constant<int64_t, kIndices>()), ...);
}
template <int64_t kCount, class F>
SIMDATTN_PAIRS_INLINE void unroll(const F& f) {
  unroll(f, std::make_integer_sequence<int64_t, kCount>());
}

/// Element i is number kFrom(i) of those of a and b.
template <auto kFrom, class V, int... kIndices>
SIMDATTN_PAIRS_INLINE V permuted(V a, V b, std::integer_sequence<int, kIndices...>) {
  return __builtin_shufflevector(a, b, kFrom(kIndices)...);
}
template <auto kFrom, class V>
SIMDATTN_PAIRS_INLINE V permuted(V a, V b) {
  return permuted<kFrom>(a, b, std::make_integer_sequence<int, sizeof(V) / sizeof(a[0])>());
}
/// a0 b0 a1 b1 ..: the first half of it, and the second.
template <class V>
SIMDATTN_PAIRS_INLINE V zip_lower(V a, V b) {
  return permuted<[](int i) { return i / 2 + i % 2 * int{sizeof(V) / sizeof(V{}[0])}; }>(a, b);
}
template <class V>
SIMDATTN_PAIRS_INLINE V zip_upper(V a, V b) {
  return permuted<[](int i) { return i / 2 + (i % 2 * 2 + 1) * int{sizeof(V) / sizeof(V{}[0]) / 2}; }>(a, b);
}
/// Place i of a unit in memory is this number of it.
constexpr int number_at(int i) { return i / 4 * 4 + (i % 2 == 0 ? 2 : 0) + i / 2 % 2; }
SIMDATTN_PAIRS_INLINE Halves arranged(Halves v) {
  return permuted<[](int i) { return number_at(i); }>(v, v);
}
/// The upper halves of lanes of low and high, arranged.
SIMDATTN_PAIRS_INLINE Halves arranged_upper(Floats low, Floats high) {
  return permuted<[](int i) { return 2 * number_at(i) + 1; }>((Halves)low, (Halves)high);
}
SIMDATTN_PAIRS_INLINE Words pairs(Words upper, Words lower) { return (upper & 0xFFFF0000u) | lower >> 16; }

/// f32 rounded to bf16, in the upper halves of their lanes. Integers: no control register has a say.
SIMDATTN_PAIRS_INLINE Words rounded(Floats x) {
  const Words bits = (Words)x;
  const Words nan = (Words)(x != x);
  return ((bits + 0x7FFFu + (bits >> 16 & 1u)) & ~nan) | (nan & kCanonicalNaN);
}
/// 16 numbers in the upper halves of lanes, rounded.
SIMDATTN_PAIRS_INLINE Words wide(const float* p) { return rounded(load<Floats>(p)); }
SIMDATTN_PAIRS_INLINE Words wide(const f16* p) {
  const __m256 low = _mm256_cvtph_ps(load<__m128i>(p)), high = _mm256_cvtph_ps(load<__m128i>(p + 8));
  Floats x;
  std::memcpy(&x, &low, sizeof(low));
  std::memcpy(reinterpret_cast<char*>(&x) + sizeof(low), &high, sizeof(high));
  return rounded(x);
}

/// 32 numbers of a row as bf16, those from n on zeros.
template <class T>
SIMDATTN_PAIRS_INLINE Halves numbers(const T* row, int64_t n) {
  T copy[kGroup];
  if (n < kGroup) {
    std::memset(copy, 0, sizeof(copy));
    std::memcpy(copy, row, static_cast<size_t>(n) * sizeof(T));
    row = copy;
  }
  if constexpr (std::is_same_v<T, bf16>) {
    return load<Halves>(row);
  } else {
    return permuted<[](int i) { return 2 * i + 1; }>((Halves)wide(row), (Halves)wide(row + 16));
  }
}

template <class T>
void pack_query(const void* row, void* query, int64_t dim) {
  for (int64_t d = 0; d < dim; d += kGroup) {
    store(arranged(numbers(static_cast<const T*>(row) + d, dim - d)), static_cast<char*>(query) + 2 * d);
  }
}

/// v[i] becomes lane i of all.
SIMDATTN_PAIRS_INLINE void transpose(Words (&v)[16]) {
  unroll<4>([&](auto) SIMDATTN_PAIRS_LAMBDA {
    Words t[16];
    unroll<8>([&](auto i) SIMDATTN_PAIRS_LAMBDA {
      t[2 * i] = zip_lower(v[i], v[i + 8]);
      t[2 * i + 1] = zip_upper(v[i], v[i + 8]);
    });
    unroll<16>([&](auto i) SIMDATTN_PAIRS_LAMBDA { v[i] = t[i]; });
  });
}

template <class T>
void pack_keys(const PackKeys& a) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  for (int64_t d = 0; d < a.dim; d += kGroup) {
    char* const panel = static_cast<char*>(a.panel) + d / kUnit * kUnitBytes;
    const int64_t lanes = 2 * std::min(kGroupUnits, units_of(a.dim - d));
    for (int64_t first = 0; first < kPanelWidth; first += 16) {
      Words v[16];
      for (int64_t j = 0; j < 16; ++j) {
        const char* row = static_cast<const char*>(a.from) + (first + j) * a.token_stride + d * kSize;
        if (a.stream) __builtin_prefetch(row + kPanelWidth * a.token_stride, 0, 2);
        v[j] = first + j < a.keys ? (Words)arranged(numbers(reinterpret_cast<const T*>(row), a.dim - d)) : Words{};
      }
      transpose(v);
      for (int64_t i = 0; i < lanes; ++i) store(v[i], panel + (i * kPanelWidth + first) * 4);
    }
  }
}

template <class T>
void pack_panel(const PackKeys& a) {
  for (int64_t d = 0; d < a.dim; d += kUnit) {
    for (int64_t first = 0; first < kPanelWidth; first += 16) {
      const auto number = [&](int64_t i) {
        if (d + i >= a.dim) return Words{};
        if constexpr (std::is_same_v<T, bf16>) {
          const Words two = load<Words>(static_cast<const bf16*>(a.from) + (d + i) / 2 * 2 * kPanelWidth + 2 * first);
          return i % 2 == 0 ? two << 16 : two;
        } else {
          return wide(static_cast<const T*>(a.from) + (d + i) * kPanelWidth + first);
        }
      };
      char* const unit = static_cast<char*>(a.panel) + d / kUnit * kUnitBytes + 4 * first;
      store(pairs(number(0), number(2)), unit);
      store(pairs(number(1), number(3)), unit + kUnitBytes / 2);
    }
  }
}

/// f(where a pair of chain e or o is in a packed block, its key in the upper halves, the lower one's) for keys [first, end).
template <class F>
SIMDATTN_PAIRS_INLINE void for_each_pair(int64_t first, int64_t end, const F& f) {
  for (int64_t j = first / kUnit * kUnit; j < end; j += kUnit) {
    f(j / kUnit * kUnitBytes, j, j + 2);
    f(j / kUnit * kUnitBytes + kUnitBytes / 2, j + 1, j + 3);
  }
}
constexpr uint32_t pair_mask(bool upper, bool lower) { return (upper ? 0xFFFF0000u : 0) | (lower ? 0xFFFFu : 0); }

/// Rows of keys [first, first + n), 32 columns of them, those from `columns` on zeros, into a packed block. Other keys keep their halves of
/// pairs.
template <class T>
void interleave(const char* rows, int64_t stride, int64_t first, int64_t n, int64_t columns, char* block) {
  for_each_pair(first, first + n, [&](int64_t at, int64_t upper, int64_t lower) SIMDATTN_PAIRS_LAMBDA {
    const auto here = [&](int64_t key) { return key >= first && key < first + n; };
    const auto row = [&](int64_t key) SIMDATTN_PAIRS_LAMBDA {
      return here(key) ? numbers(reinterpret_cast<const T*>(rows + (key - first) * stride), columns) : Halves{};
    };
    const Halves a = row(lower), b = row(upper);
    Words pair[2] = {(Words)zip_lower(a, b), (Words)zip_upper(a, b)};
    const uint32_t mask = pair_mask(here(upper), here(lower));
    for (int64_t half = 0; half < 2; ++half) {
      char* const out = block + at + 64 * half;
      store(mask == ~0u ? pair[half] : (pair[half] & mask) | (load<Words>(out) & ~mask), out);
    }
  });
}

template <class T>
void pack_values(const PackValues& a) {
  const char* rows = static_cast<const char*>(a.rows) + a.column * static_cast<int64_t>(sizeof(T));
  for (int64_t c = 0; c < a.columns; c += kValueGroup) {
    interleave<T>(rows + c * static_cast<int64_t>(sizeof(T)), a.token_stride, a.first, a.keys,
                  std::min(kValueGroup, a.columns - c), static_cast<char*>(a.block) + c * kKeyBlock * 2);
  }
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_OVERLAYS_AVX512_BF16_PACKING_H_
