// Rows of f32 into the types and layouts that keys and values are stored in, and back.
#ifndef SIMDATTN_LIB_KERNELS_STORE_H_
#define SIMDATTN_LIB_KERNELS_STORE_H_

#include "lib/panel_columns.h"
#include "lib/simd/blocks.h"
#include "lib/simd/math.h"
#include "lib/simd/memory.h"

namespace simdattn {
namespace {

/// `rows` rows of n numbers, rounded. Strides are bytes.
template <class T>
__attribute__((noinline)) void narrow_rows(const char* in, int64_t in_stride, int64_t rows, char* out,
                                           int64_t out_stride, int64_t n) {
  int64_t first = 0;
  if constexpr (std::is_same_v<T, bf16>) {
    // Two vectors at a time, as if there were no NaN; again if there was one.
    first = n - n % (2 * kLanes);
    Floats seen(0.0f);
    for (int64_t r = 0; r < rows; ++r) {
      const float* const x = reinterpret_cast<const float*>(in + r * in_stride);
      bf16* const y = reinterpret_cast<bf16*>(out + r * out_stride);
      for (int64_t i = 0; i < first; i += 2 * kLanes) {
        const Floats v0 = load(x + i), v1 = load(x + i + kLanes);
        store_numbers(v0, v1, y + i);
        seen = notice(v0, v1, seen);
      }
    }
    if (!all(finite(seen))) first = 0;
    if (first == n) return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float* const x = reinterpret_cast<const float*>(in + r * in_stride) + first;
    T* const y = reinterpret_cast<T*>(out + r * out_stride) + first;
    for_each_batch(n - first,
                   [&](int64_t i, auto part) SIMDATTN_LAMBDA { store_rounded(load(x + i, part), y + i, part); });
  }
}
template <class T>
__attribute__((noinline)) void wide_row(const T* in, char* out, int64_t n) {
  float* y = reinterpret_cast<float*>(out);
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store(load(in + i, part), y + i, part); });
}

#if SIMDATTN_AVX2 && !SIMDATTN_AVX512
// f32 becomes columns of bf16 in registers, four rows at a time and one after the other: no prefetcher follows 32 rows that
// are read at once, a line of each. With AVX-512 two passes are faster: one shuffle packs 32 numbers.
constexpr int64_t kPanelTokens = 4;
constexpr int64_t kPanelDims = 8;

/// `tokens` rows of `dim` numbers into columns: multiples of kPanelTokens and kPanelDims. False: there may be NaN.
__attribute__((noinline)) inline bool columns_of_rows(const char* rows, int64_t ld, int64_t tokens, int64_t dim,
                                                      char* out) {
  constexpr int64_t kPitch = kPanelWidth * 4;
  Floats seen0(0.0f), seen1 = seen0;
  const auto row = [](const char* p) SIMDATTN_LAMBDA { return load(reinterpret_cast<const float*>(p)); };
  for (int64_t t = 0; t < tokens; t += kPanelTokens) {
    const char* in = rows + t * ld;
    char* to = out + t * 4;
    for (int64_t i = 0; i < dim; i += kPanelDims, in += kPanelDims * 4, to += kPanelDims / 2 * kPitch) {
      const Floats r0 = row(in), r1 = row(in + ld), r2 = row(in + 2 * ld), r3 = row(in + 3 * ld);
      const Floats a = pairs_of_rows(plus_half(r0), plus_half(r1)), b = pairs_of_rows(plus_half(r2), plus_half(r3));
      store_blocks<2>(zip_lo_pairs(a, b), to, kPitch);
      store_blocks<2>(zip_hi_pairs(a, b), to + kPitch, kPitch);
      seen0 = mul_add(r0, r1, seen0);
      seen1 = mul_add(r2, r3, seen1);
    }
  }
  return all(finite(seen0 + seen1));
}
#endif

struct StoreOps : Blocks {
#if SIMDATTN_AVX2
  static constexpr int64_t kBlocks = kLanes / 4;
  static SIMDATTN_INLINE Floats load(const char* p) { return simdattn::load(reinterpret_cast<const float*>(p)); }
  static SIMDATTN_INLINE void store(Floats v, char* p) { simdattn::store(v, reinterpret_cast<float*>(p)); }
  template <int64_t kGroup>
  static SIMDATTN_INLINE Floats load_blocks(const char* p, int64_t stride) {
    return simdattn::load_blocks<kGroup>(p, stride);
  }
  template <int64_t kGroup>
  static SIMDATTN_INLINE void store_blocks(Floats v, char* p, int64_t stride) {
    simdattn::store_blocks<kGroup>(v, p, stride);
  }
#else
  static constexpr int64_t kBlocks = 1;
#endif
  template <class T>
  static SIMDATTN_INLINE void narrow(const char* in, int64_t in_stride, int64_t rows, char* out, int64_t out_stride,
                                     int64_t n) {
    narrow_rows<T>(in, in_stride, rows, out, out_stride, n);
  }
  template <class T>
  static SIMDATTN_INLINE void widen(const T* in, char* out, int64_t n) {
    wide_row(in, out, n);
  }
  template <class T>
  static SIMDATTN_INLINE int64_t round_to_columns([[maybe_unused]] const char* rows, [[maybe_unused]] int64_t ld,
                                                  [[maybe_unused]] int64_t tokens, [[maybe_unused]] int64_t dim,
                                                  [[maybe_unused]] char* out) {
#if SIMDATTN_AVX2 && !SIMDATTN_AVX512
    if constexpr (std::is_same_v<T, bf16>) {
      const int64_t whole = tokens - tokens % kPanelTokens;
      if (whole > 0 && dim % kPanelDims == 0 && columns_of_rows(rows, ld, whole, dim, out)) return whole;
    }
#endif
    return 0;
  }
};

#define SIMDATTN_STORE_SHARED __attribute__((noinline))
#define SIMDATTN_STORE_LAMBDA SIMDATTN_LAMBDA
#define SIMDATTN_STORE_CALLBACK SIMDATTN_LAMBDA
#include "lib/store_kernels-inl.h"

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_STORE_H_
