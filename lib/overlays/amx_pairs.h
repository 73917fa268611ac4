// Rows of numbers as pairs of bf16: what the right operands of AMX consist of.
#ifndef SIMDATTN_LIB_OVERLAYS_AMX_PAIRS_H_
#define SIMDATTN_LIB_OVERLAYS_AMX_PAIRS_H_

#include <immintrin.h>

#include <algorithm>
#include <type_traits>

#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"

namespace simdattn {
namespace {

/// The first n lanes: none if n <= 0.
inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>((1u << std::clamp<int64_t>(n, 0, 16)) - 1); }
inline __mmask32 first_32_lanes(int64_t n) {
  return static_cast<__mmask32>((uint64_t{1} << std::clamp<int64_t>(n, 0, 32)) - 1);
}

/// Numbers 2 i and 2 i + 1 of each 32-bit lane's upper half, in order: the 32 numbers of a and b without their lower halves.
inline __m512i upper_halves(__m512i a, __m512i b) {
  alignas(64) static constexpr uint16_t kOdd[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                    33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(a, _mm512_load_si512(kOdd), b);
}

/// f32 rounded to bf16, in the upper halves of their lanes. Integers: no control register has a say.
inline __m512i rounded_bf16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i last = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(bits, _mm512_add_epi32(last, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_mov_epi32(sum, nan, _mm512_set1_epi32(static_cast<int>(kCanonicalNaN)));
}

/// 32 numbers of a row as bf16, those from n on zeros.
template <class T>
__m512i load_bf16(const T* row, int64_t n) {
  if constexpr (std::is_same_v<T, bf16>) {
    return _mm512_maskz_loadu_epi16(first_32_lanes(n), row);
  } else {
    const auto load = [&](int64_t i) {
      const __mmask16 mask = first_lanes(n - i);
      if constexpr (std::is_same_v<T, float>) {
        return _mm512_maskz_loadu_ps(mask, row + i);
      } else {
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, row + i));
      }
    };
    return upper_halves(rounded_bf16(load(0)), rounded_bf16(load(16)));
  }
}

/// Rows first .. first + n - 1 of a group into pairs of rows [..][32][2]; columns from `columns` on become zeros. Other rows
/// keep their halves of pairs.
template <class T>
void interleave_rows(const char* rows, int64_t stride, int64_t first, int64_t n, int64_t columns, char* pairs) {
  alignas(64) static constexpr uint16_t kPlaces[64] = {0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                       8,  40, 9,  41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47,
                                                       16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
                                                       24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
  const __m512i low = _mm512_load_si512(kPlaces);
  const __m512i high = _mm512_load_si512(kPlaces + 32);
  const int64_t end = first + n;
  for (int64_t j = first / 2 * 2; j < end; j += 2) {
    const auto row = [&](int64_t i) { return reinterpret_cast<const T*>(rows + (i - first) * stride); };
    const bool even = j >= first;
    const bool odd = j + 1 < end;
    const __m512i a = even ? load_bf16(row(j), columns) : _mm512_setzero_si512();
    const __m512i b = odd ? load_bf16(row(j + 1), columns) : _mm512_setzero_si512();
    const __mmask32 mask = (even ? 0x55555555u : 0u) | (odd ? 0xAAAAAAAAu : 0u);
    char* out = pairs + j / 2 * 128;
    _mm512_mask_storeu_epi16(out, mask, _mm512_permutex2var_epi16(a, low, b));
    _mm512_mask_storeu_epi16(out + 64, mask, _mm512_permutex2var_epi16(a, high, b));
  }
}

/// A step of pairs of keys, of which those outside of [from, to) become zeros.
inline void cut_pairs(const char* pairs, int64_t from, int64_t to, char* out) {
  for (int64_t j = 0; j < 32; j += 2) {
    const __mmask32 even = j >= from && j < to ? 0x55555555u : 0u;
    const __mmask32 odd = j + 1 >= from && j + 1 < to ? 0xAAAAAAAAu : 0u;
    for (int64_t half = 0; half < 128; half += 64) {
      const int64_t at = j / 2 * 128 + half;
      _mm512_storeu_si512(out + at, _mm512_maskz_loadu_epi16(even | odd, pairs + at));
    }
  }
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_OVERLAYS_AMX_PAIRS_H_
