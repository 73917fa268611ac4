// Rows of f32 into the types and layouts that keys and values are stored in, and back.
#ifndef SIMDATTN_LIB_KERNELS_STORE_H_
#define SIMDATTN_LIB_KERNELS_STORE_H_

#include "lib/panel_columns.h"
#include "lib/simd/blocks.h"
#include "lib/simd/memory.h"

namespace simdattn {
namespace {

template <class T>
__attribute__((noinline)) void narrow_row(const char* in, T* out, int64_t n) {
  const float* x = reinterpret_cast<const float*>(in);
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store_rounded(load(x + i, part), out + i, part); });
}
template <class T>
__attribute__((noinline)) void wide_row(const T* in, char* out, int64_t n) {
  float* y = reinterpret_cast<float*>(out);
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store(load(in + i, part), y + i, part); });
}

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
    const auto at = [&](int64_t b) SIMDATTN_LAMBDA { return reinterpret_cast<float*>(p + kGroup * b * stride); };
#if SIMDATTN_AVX512
    _mm_storeu_ps(at(0), _mm512_castps512_ps128(v));
    _mm_storeu_ps(at(1), _mm512_extractf32x4_ps(v, 1));
    _mm_storeu_ps(at(2), _mm512_extractf32x4_ps(v, 2));
    _mm_storeu_ps(at(3), _mm512_extractf32x4_ps(v, 3));
#else
    _mm_storeu_ps(at(0), _mm256_castps256_ps128(v));
    _mm_storeu_ps(at(1), _mm256_extractf128_ps(v, 1));
#endif
  }
#else
  static constexpr int64_t kBlocks = 1;
#endif
  template <class T>
  static SIMDATTN_INLINE void narrow(const char* in, int64_t in_stride, int64_t rows, char* out, int64_t out_stride,
                                     int64_t n) {
    for (int64_t r = 0; r < rows; ++r) narrow_row(in + r * in_stride, reinterpret_cast<T*>(out + r * out_stride), n);
  }
  template <class T>
  static SIMDATTN_INLINE void widen(const T* in, char* out, int64_t n) {
    wide_row(in, out, n);
  }
  template <class T>
  static SIMDATTN_INLINE int64_t round_to_columns(const char* /*rows*/, int64_t /*ld*/, int64_t /*tokens*/,
                                                  int64_t /*dim*/, char* /*out*/) {
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
