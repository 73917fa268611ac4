#include "lib/intrinsics/avx_vnni.h"

#include <immintrin.h>

#include <cstring>
#include <type_traits>
#include <utility>

#include "lib/cursor.h"
#include "lib/dtypes.h"
#include "lib/row_tiles.h"

#define SIMDATTN_INT8_INLINE inline __attribute__((always_inline))
#define SIMDATTN_INT8_LAMBDA __attribute__((always_inline))
// One body for several callers: gcc would make a copy for each set of constant arguments.
#ifdef __clang__
#define SIMDATTN_INT8_SHARED __attribute__((noinline))
#else
#define SIMDATTN_INT8_SHARED __attribute__((noinline, noclone))
#endif

namespace simdattn {

namespace {

#include "lib/int8_kernels-inl.h"
#include "lib/int8_stored_values-inl.h"

struct Operations {
  using F = __m256;
  using I = __m256i;
  static constexpr size_t kRows = 6;  // 12 sums, 2 columns, a cell of the row, and 128 in each byte
  static constexpr bool kPairs = false;
  static constexpr bool kMatrix = false;
  static constexpr bool kFlipKeys = true;
  static constexpr bool kFlipValues = false;

  static constexpr int64_t lanes() { return 8; }

  static F wide(const float* p) { return _mm256_loadu_ps(p); }
  static F wide(const bf16* p) {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
  }
  static F wide(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
  /// n < 8
  template <class T>
  static F wide_n(const T* p, int64_t n) {
    T copy[8] = {};
    for (int64_t i = 0; i < n; ++i) copy[i] = p[i];
    return wide(copy);
  }
  static F even(const bf16* pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(load_int(pairs), 16)); }
  static F odd(const bf16* pairs) {
    return _mm256_castsi256_ps(_mm256_and_si256(load_int(pairs), set_int(static_cast<int32_t>(0xFFFF0000u))));
  }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(F v, float* p) { _mm256_storeu_ps(p, v); }
  static F set(float x) { return _mm256_set1_ps(x); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static float largest(F v) {
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
  }

  static I load_int(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store_int(I v, void* p) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  static I set_int(int32_t x) { return _mm256_set1_epi32(x); }
  static I repeat(const void* cell) {
    int32_t x;
    std::memcpy(&x, cell, sizeof(x));
    return set_int(x);
  }
  static I add_int(I a, I b) { return _mm256_add_epi32(a, b); }
  static I and_int(I a, I b) { return _mm256_and_si256(a, b); }
  static I or_int(I a, I b) { return _mm256_or_si256(a, b); }
  static I xor_int(I a, I b) { return _mm256_xor_si256(a, b); }
  static I max_int(I a, I b) { return _mm256_max_epi32(a, b); }
  template <int kBits>
  static I left(I v) {
    return _mm256_slli_epi32(v, kBits);
  }
  static int32_t largest_int(I v) {
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
  }
  static int32_t sum_int(I v) {
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
  }
  static constexpr bool kHalves = true;
  static I max_halves(I a, I b) { return _mm256_max_epi16(a, b); }
  static I cells(I v0, I v1, I v2, I v3) {
    const I order = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    return _mm256_shuffle_epi8(_mm256_packs_epi16(_mm256_packs_epi32(v0, v1), _mm256_packs_epi32(v2, v3)), order);
  }
  static I bits(F v) { return _mm256_castps_si256(v); }
  static I nearest(F v) { return _mm256_cvtps_epi32(v); }
  static F to_float(I v) { return _mm256_cvtepi32_ps(v); }
  template <bool kUnsigned>
  static void store_bytes(I v, void* p) {
    const __m256i order = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                           0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i bytes = _mm256_shuffle_epi8(v, order);
    _mm_storel_epi64(static_cast<__m128i*>(p),
                     _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
  }
  template <bool kUnsigned>
  static void store_bytes(I v0, I v1, I v2, I v3, void* p) {
    const __m256i low = _mm256_packs_epi32(v0, v1), high = _mm256_packs_epi32(v2, v3);
    const __m256i bytes = kUnsigned ? _mm256_packus_epi16(low, high) : _mm256_packs_epi16(low, high);
    // Packing keeps 128 bits apart.
    store_int(_mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)), p);
  }

  static void transpose_cells(const void* rows, int64_t stride, int64_t keys, int64_t cells, void* panel) {
    avx_vnni_transpose_cells(rows, stride, keys, cells, panel);
  }

  /// In assembly: gcc copies the sums of the intrinsic twice a step.
  template <bool kWeights>
  static SIMDATTN_INT8_INLINE void dot(I& sum, I& /*second*/, I x, I column) {
    I s = sum;
    __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(s) : "x"(kWeights ? x : column), "x"(kWeights ? column : x));
    sum = s;
  }
  static I total(I sum, I /*second*/) { return sum; }

  static constexpr size_t kStoredRows = 2;  // 8 sums, 4 vectors of columns, a cell of the row
  static I load_bytes(const char* p, int64_t n) {
    if (n == 32) return load_int(p);
    if (n % 4 == 0) {
      const I cell = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
      return _mm256_maskload_epi32(reinterpret_cast<const int*>(p),
                                   _mm256_cmpgt_epi32(set_int(static_cast<int32_t>(n / 4)), cell));
    }
    char copy[32] = {};
    std::memcpy(copy, p, static_cast<size_t>(n));
    return load_int(copy);
  }
  static I zip_bytes_lower(I a, I b) { return _mm256_unpacklo_epi8(a, b); }
  static I zip_bytes_upper(I a, I b) { return _mm256_unpackhi_epi8(a, b); }
  static I zip_words_lower(I a, I b) { return _mm256_unpacklo_epi16(a, b); }
  static I zip_words_upper(I a, I b) { return _mm256_unpackhi_epi16(a, b); }
  static void sort_columns(F& s0, F& s1, F& s2, F& s3) {
    const F t0 = _mm256_permute2f128_ps(s0, s1, 0x20), t1 = _mm256_permute2f128_ps(s2, s3, 0x20);
    const F t2 = _mm256_permute2f128_ps(s0, s1, 0x31), t3 = _mm256_permute2f128_ps(s2, s3, 0x31);
    s0 = t0;
    s1 = t1;
    s2 = t2;
    s3 = t3;
  }
  /// n < 8
  static void store_n(F v, float* p, int64_t n) {
    float copy[8];
    store(v, copy);
    std::memcpy(p, copy, static_cast<size_t>(n) * sizeof(float));
  }
};

}  // namespace

SIMDATTN_DEFINE_INT8_KERNELS(AvxVnniInt8, Operations)
void value_stored_avx_vnni(const ValueTile& a) { int8_value_stored<Operations>(a); }

}  // namespace simdattn
