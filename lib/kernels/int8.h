// Arithmetic::kInt8: the operations that lib/int8_kernels-inl.h asks for. Dot products of bytes with SVE, else 16-bit ones.
#ifndef SIMDATTN_LIB_KERNELS_INT8_H_
#define SIMDATTN_LIB_KERNELS_INT8_H_

#include <cstring>
#include <type_traits>
#include <utility>

#include "lib/cursor.h"
#include "lib/int8_operands.h"
#include "lib/kernels/pack.h"
#include "lib/row_tiles.h"
#include "lib/simd/memory.h"

#define SIMDATTN_INT8_INLINE SIMDATTN_INLINE
#define SIMDATTN_INT8_LAMBDA SIMDATTN_LAMBDA
#define SIMDATTN_INT8_SHARED SIMDATTN_SHARED

namespace simdattn {
namespace {

#include "lib/int8_kernels-inl.h"

struct Int8Operations {
  using F = Floats;
  using I = Ints;
#if SIMDATTN_SVE
  static constexpr size_t kRows = 8;
  static constexpr bool kPairs = false;
  static constexpr bool kFlipValues = true;
#else
  static constexpr size_t kRows = kAvx512 ? 8 : 4;
  static constexpr bool kPairs = true;
  static constexpr bool kFlipValues = false;
#endif
  static constexpr bool kMatrix = false;
  static constexpr bool kHalves = false;
  static constexpr bool kFlipKeys = false;

  static constexpr int64_t lanes() { return kLanes; }

  template <class T>
  static SIMDATTN_INLINE F wide(const T* p) {
    return simdattn::load(p, All());
  }
  template <class T>
  static SIMDATTN_INLINE F wide_n(const T* p, int64_t n) {
    return simdattn::load(p, first_lanes(n));
  }
  static SIMDATTN_INLINE F even(const bf16* pairs) { return even_of(load_pairs(pairs)); }
  static SIMDATTN_INLINE F odd(const bf16* pairs) { return odd_of(load_pairs(pairs)); }
  static SIMDATTN_INLINE F load(const float* p) { return F::load_unaligned(p); }
  static SIMDATTN_INLINE void store(F v, float* p) { v.store_unaligned(p); }
  static SIMDATTN_INLINE F set(float x) { return F(x); }
  static SIMDATTN_INLINE F mul(F a, F b) { return a * b; }
  static SIMDATTN_INLINE F fma(F a, F b, F c) { return simdattn::mul_add(a, b, c); }
  static SIMDATTN_INLINE F max(F a, F b) { return simdattn::max(a, b); }
  static SIMDATTN_INLINE float largest(F v) { return largest_lane(v); }

  static SIMDATTN_INLINE I load_int(const void* p) { return I::load_unaligned(static_cast<const int32_t*>(p)); }
  static SIMDATTN_INLINE void store_int(I v, void* p) { v.store_unaligned(static_cast<int32_t*>(p)); }
  static SIMDATTN_INLINE I set_int(int32_t x) { return I(x); }
  static SIMDATTN_INLINE I repeat(const void* cell) {
    int32_t x;
    std::memcpy(&x, cell, sizeof(x));
    return I(x);
  }
  static SIMDATTN_INLINE I add_int(I a, I b) { return a + b; }
  static SIMDATTN_INLINE I and_int(I a, I b) { return a & b; }
  static SIMDATTN_INLINE I or_int(I a, I b) { return a | b; }
  static SIMDATTN_INLINE I xor_int(I a, I b) { return a ^ b; }
  static SIMDATTN_INLINE I max_int(I a, I b) { return simdattn::max(a, b); }
  template <int kBits>
  static SIMDATTN_INLINE I left(I v) {
#if SIMDATTN_NEON && !SIMDATTN_SVE
    return vshlq_n_s32(v, kBits);
#else
    return v << kBits;
#endif
  }

#if SIMDATTN_PLAIN
  static SIMDATTN_INLINE int32_t largest_int(I v) { return largest_lane(v); }
  static SIMDATTN_INLINE I bits(F v) { return ints_of(v); }
  static SIMDATTN_INLINE I nearest(F v) { return simdattn::nearest(v); }
  static SIMDATTN_INLINE F to_float(I v) { return simdattn::to_float(v); }
  template <bool kUnsigned>
  static SIMDATTN_INLINE void store_bytes(I v, void* p) {
    for (size_t i = 0; i < I::size; ++i) static_cast<int8_t*>(p)[i] = static_cast<int8_t>(v[i]);
  }
  static SIMDATTN_INLINE I even_pairs(I v) { return even_bytes(v); }
  static SIMDATTN_INLINE I odd_pairs(I v) { return odd_bytes(v); }
  template <bool kWeights>
  static SIMDATTN_INLINE void dot(I& sum, I& second, I x, I column) {
    add_products<kWeights>(sum, second, x, column);
  }
  static SIMDATTN_INLINE I total(I sum, I /*second*/) { return sum; }
#elif SIMDATTN_SVE
  static SIMDATTN_INLINE int32_t largest_int(I v) { return svmaxv_s32(svptrue_b32(), v); }
  static SIMDATTN_INLINE int32_t sum_int(I v) { return static_cast<int32_t>(svaddv_s32(svptrue_b32(), v)); }
  static SIMDATTN_INLINE I bits(F v) { return svreinterpret_s32_f32(v); }
  static SIMDATTN_INLINE I nearest(F v) { return svcvt_s32_f32_x(svptrue_b32(), svrintn_f32_x(svptrue_b32(), v)); }
  static SIMDATTN_INLINE F to_float(I v) { return svcvt_f32_s32_x(svptrue_b32(), v); }
  template <bool kUnsigned>
  static SIMDATTN_INLINE void store_bytes(I v, void* p) {
    svst1b_s32(svptrue_b32(), static_cast<int8_t*>(p), v);
  }
  template <bool kWeights>
  static SIMDATTN_INLINE void dot(I& sum, I& /*second*/, I x, I column) {
    if constexpr (kWeights) {
      sum = svreinterpret_s32_u32(
          svdot_u32(svreinterpret_u32_s32(sum), svreinterpret_u8_s32(x), svreinterpret_u8_s32(column)));
    } else {
      sum = svdot_s32(sum, svreinterpret_s8_s32(x), svreinterpret_s8_s32(column));
    }
  }
  static SIMDATTN_INLINE I total(I sum, I /*second*/) { return sum; }
#elif SIMDATTN_X86
#if SIMDATTN_AVX512
  static SIMDATTN_INLINE int32_t largest_int(I v) { return _mm512_reduce_max_epi32(v); }
  static SIMDATTN_INLINE I bits(F v) { return _mm512_castps_si512(v); }
  static SIMDATTN_INLINE I nearest(F v) { return _mm512_cvtps_epi32(v); }
  static SIMDATTN_INLINE F to_float(I v) { return _mm512_cvtepi32_ps(v); }
  template <bool kUnsigned>
  static SIMDATTN_INLINE void store_bytes(I v, void* p) {
    _mm_storeu_si128(static_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v));
  }
  static SIMDATTN_INLINE I even_pairs(I v) { return _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8); }
  static SIMDATTN_INLINE I odd_pairs(I v) { return _mm512_srai_epi16(v, 8); }
#elif SIMDATTN_AVX2
  static SIMDATTN_INLINE int32_t largest_int(I v) {
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
  }
  static SIMDATTN_INLINE I bits(F v) { return _mm256_castps_si256(v); }
  static SIMDATTN_INLINE I nearest(F v) { return _mm256_cvtps_epi32(v); }
  static SIMDATTN_INLINE F to_float(I v) { return _mm256_cvtepi32_ps(v); }
  template <bool kUnsigned>
  static SIMDATTN_INLINE void store_bytes(I v, void* p) {
    const __m256i order = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                           0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i bytes = _mm256_shuffle_epi8(v, order);
    _mm_storel_epi64(static_cast<__m128i*>(p),
                     _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
  }
  static SIMDATTN_INLINE I even_pairs(I v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); }
  static SIMDATTN_INLINE I odd_pairs(I v) { return _mm256_srai_epi16(v, 8); }
#else
  static SIMDATTN_INLINE int32_t largest_int(I v) {
    const __m128i two = _mm_max_epi32(v, _mm_shuffle_epi32(v, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xB1)));
  }
  static SIMDATTN_INLINE I bits(F v) { return _mm_castps_si128(v); }
  static SIMDATTN_INLINE I nearest(F v) { return _mm_cvtps_epi32(v); }
  static SIMDATTN_INLINE F to_float(I v) { return _mm_cvtepi32_ps(v); }
  template <bool kUnsigned>
  static SIMDATTN_INLINE void store_bytes(I v, void* p) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const int32_t four = _mm_cvtsi128_si32(_mm_shuffle_epi8(v, order));
    std::memcpy(p, &four, sizeof(four));
  }
  static SIMDATTN_INLINE I even_pairs(I v) { return _mm_srai_epi16(_mm_slli_epi16(v, 8), 8); }
  static SIMDATTN_INLINE I odd_pairs(I v) { return _mm_srai_epi16(v, 8); }
#endif
  /// In assembly: gcc would add products before sums, and put sums on the stack.
  template <bool kWeights>
  static SIMDATTN_INLINE void dot(I& sum, I& /*second*/, I x, I column) {
    typename I::register_type s = sum, product;
    const typename I::register_type a = x, b = column;
#if SIMDATTN_AVX2
    asm("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(s), "=&v"(product) : "v"(a), "v"(b));
#else
    asm("movdqa %2, %1\n\tpmaddwd %3, %1\n\tpaddd %1, %0" : "+x"(s), "=&x"(product) : "x"(a), "x"(b));
#endif
    sum = s;
  }
  static SIMDATTN_INLINE I total(I sum, I /*second*/) { return sum; }
#else
  static SIMDATTN_INLINE int32_t largest_int(I v) { return vmaxvq_s32(v); }
  static SIMDATTN_INLINE I bits(F v) { return vreinterpretq_s32_f32(v); }
  static SIMDATTN_INLINE I nearest(F v) { return vcvtnq_s32_f32(v); }
  static SIMDATTN_INLINE F to_float(I v) { return vcvtq_f32_s32(v); }
  template <bool kUnsigned>
  static SIMDATTN_INLINE void store_bytes(I v, void* p) {
    const int16x4_t words = vmovn_s32(v);
    const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
    const int32_t four = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
    std::memcpy(p, &four, sizeof(four));
  }
  static SIMDATTN_INLINE I even_pairs(I v) {
    return vreinterpretq_s32_s16(vshrq_n_s16(vshlq_n_s16(vreinterpretq_s16_s32(v), 8), 8));
  }
  static SIMDATTN_INLINE I odd_pairs(I v) { return vreinterpretq_s32_s16(vshrq_n_s16(vreinterpretq_s16_s32(v), 8)); }
  /// The products of the lower lanes go to `sum`, those of the upper ones to `second`.
  template <bool kWeights>
  static SIMDATTN_INLINE void dot(I& sum, I& second, I x, I column) {
    const int16x8_t a = vreinterpretq_s16_s32(x), b = vreinterpretq_s16_s32(column);
    sum = vmlal_s16(sum, vget_low_s16(a), vget_low_s16(b));
    second = vmlal_high_s16(second, a, b);
  }
  static SIMDATTN_INLINE I total(I sum, I second) { return vpaddq_s32(sum, second); }
#endif
  template <bool kUnsigned, class T>
  static SIMDATTN_INLINE void store_bytes(I v0, I v1, I v2, I v3, T* p) {
#if SIMDATTN_AVX512 || SIMDATTN_AVX2
    // Packing keeps 128 bits apart.
#if SIMDATTN_AVX512
    const __m512i low = _mm512_packs_epi32(v0, v1), high = _mm512_packs_epi32(v2, v3);
    const __m512i bytes = kUnsigned ? _mm512_packus_epi16(low, high) : _mm512_packs_epi16(low, high);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    store_int(_mm512_permutexvar_epi32(order, bytes), p);
#else
    const __m256i low = _mm256_packs_epi32(v0, v1), high = _mm256_packs_epi32(v2, v3);
    const __m256i bytes = kUnsigned ? _mm256_packus_epi16(low, high) : _mm256_packs_epi16(low, high);
    store_int(_mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)), p);
#endif
#else
    const int64_t n = lanes();
    store_bytes<kUnsigned>(v0, p);
    store_bytes<kUnsigned>(v1, p + n);
    store_bytes<kUnsigned>(v2, p + 2 * n);
    store_bytes<kUnsigned>(v3, p + 3 * n);
#endif
  }

  static SIMDATTN_INLINE void transpose_cells(const void* rows, int64_t stride, int64_t keys, int64_t cells,
                                              void* panel) {
    simdattn::pack_keys<float>(rows, stride, keys, cells, static_cast<float*>(panel), false);
  }
};

/// By the names that lib/int8_operands.h asks for.
struct Int8Kernels {
  static constexpr auto query_bytes = int8_kernel_query_bytes<Int8Operations>;
  static constexpr auto panel_bytes = int8_panel_bytes;
  static constexpr auto values_bytes = int8_values_bytes;
  template <class T>
  static constexpr auto prepare_query = int8_prepare_query<Int8Operations, T>;
  template <class T>
  static constexpr auto pack_keys = int8_pack_keys<Int8Operations, T>;
  template <class T>
  static constexpr auto pack_panel = int8_pack_panel<Int8Operations, T>;
  template <class T>
  static constexpr auto pack_values = int8_pack_values<Int8Operations, T>;
  static constexpr bool kScalesApart = true;
  static constexpr auto score_packed = int8_score_packed<Int8Operations>;
  static constexpr auto value_packed = int8_value_packed<Int8Operations>;
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_INT8_H_
