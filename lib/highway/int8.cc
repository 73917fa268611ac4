// Arithmetic::kInt8. Also compiled for AVX3_DL, which adds VPDPBUSD to AVX3 and nothing that another kernel uses: of that
// target there is this file alone.
#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/highway/int8.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "lib/highway/register_tile-inl.h"
#include "lib/int8_operands.h"

#undef SIMDATTN_INT8_INLINE
#undef SIMDATTN_INT8_LAMBDA
#undef SIMDATTN_INT8_SHARED
#define SIMDATTN_INT8_INLINE HWY_INLINE
#define SIMDATTN_INT8_LAMBDA SIMDATTN_LAMBDA
#define SIMDATTN_INT8_SHARED SIMDATTN_SHARED

#ifndef SIMDATTN_INT8_ONCE
#define SIMDATTN_INT8_ONCE
namespace simdattn::N_AVX3 {
void PackKeysF32(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel, bool stream);
}
#endif

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {
namespace {

using IntTag = hn::RebindToSigned<TileTag>;
using ByteTag = hn::Repartition<int8_t, IntTag>;
using UnsignedByteTag = hn::Repartition<uint8_t, IntTag>;
using WordTag = hn::Repartition<int16_t, IntTag>;

#include "lib/int8_kernels-inl.h"

/// What multiplies: 16-bit numbers; a cell by a cell; two rows by two columns.
enum class Products : uint8_t { kPairs, kDot, kMatrix };

template <Products kProducts>
struct Int8Operations {
  using F = TileVec;
  using I = hn::Vec<IntTag>;
  static constexpr size_t kRows = kProducts == Products::kPairs ? kInt8TileRows : 8;
  static constexpr bool kPairs = kProducts == Products::kPairs;
  static constexpr bool kMatrix = kProducts == Products::kMatrix;
  static constexpr bool kFlipKeys = kProducts == Products::kDot && HWY_ARCH_X86;
  static constexpr bool kFlipValues = kProducts == Products::kDot && !HWY_ARCH_X86;

  static HWY_INLINE int64_t lanes() { return static_cast<int64_t>(hn::Lanes(TileTag())); }

  template <class T>
  static HWY_INLINE F wide(const T* p) {
    return LoadWide(TileTag(), p);
  }
  template <class T>
  static HWY_INLINE F wide_n(const T* p, int64_t n) {
    return LoadWideN(TileTag(), p, static_cast<size_t>(n));
  }
  static HWY_INLINE F even(const bf16* pairs) { return EvenOf(TileTag(), LoadPairs(TileTag(), pairs)); }
  static HWY_INLINE F odd(const bf16* pairs) { return OddOf(TileTag(), LoadPairs(TileTag(), pairs)); }
  static HWY_INLINE F load(const float* p) { return hn::LoadU(TileTag(), p); }
  static HWY_INLINE void store(F v, float* p) { hn::StoreU(v, TileTag(), p); }
  static HWY_INLINE F set(float x) { return hn::Set(TileTag(), x); }
  static HWY_INLINE F mul(F a, F b) { return hn::Mul(a, b); }
  static HWY_INLINE F fma(F a, F b, F c) { return hn::MulAdd(a, b, c); }
  static HWY_INLINE F max(F a, F b) { return hn::Max(a, b); }
  static HWY_INLINE float largest(F v) { return hn::ReduceMax(TileTag(), v); }

  static HWY_INLINE I load_int(const void* p) { return hn::LoadU(IntTag(), static_cast<const int32_t*>(p)); }
  static HWY_INLINE void store_int(I v, void* p) { hn::StoreU(v, IntTag(), static_cast<int32_t*>(p)); }
  static HWY_INLINE I set_int(int32_t x) { return hn::Set(IntTag(), x); }
  static HWY_INLINE I repeat(const void* cell) {
#if HWY_ARCH_ARM_A64 && !HWY_TARGET_IS_SVE
    if constexpr (!kPairs) {
      // gcc loads into a general register and copies that.
      int32x4_t v;
      __asm__("ld1r {%0.4s}, [%1]" : "=w"(v) : "r"(cell), "m"(*static_cast<const int32_t*>(cell)));
      return I(v);
    }
#endif
    int32_t x;
    std::memcpy(&x, cell, sizeof(x));
    return hn::Set(IntTag(), x);
  }
  static HWY_INLINE I add_int(I a, I b) { return hn::Add(a, b); }
  static HWY_INLINE I and_int(I a, I b) { return hn::And(a, b); }
  static HWY_INLINE I or_int(I a, I b) { return hn::Or(a, b); }
  static HWY_INLINE I xor_int(I a, I b) { return hn::Xor(a, b); }
  static HWY_INLINE I max_int(I a, I b) { return hn::Max(a, b); }
  template <int kBits>
  static HWY_INLINE I left(I v) {
    return hn::ShiftLeft<kBits>(v);
  }
  static HWY_INLINE int32_t largest_int(I v) { return hn::ReduceMax(IntTag(), v); }
  static HWY_INLINE int32_t sum_int(I v) { return hn::ReduceSum(IntTag(), v); }
  static HWY_INLINE I bits(F v) { return hn::BitCast(IntTag(), v); }
  /// NearestInt() of Highway also bounds what overflows.
  static HWY_INLINE I nearest(F v) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    return I{_mm512_cvtps_epi32(v.raw)};
#elif HWY_TARGET == HWY_AVX2
    return I{_mm256_cvtps_epi32(v.raw)};
#elif HWY_ARCH_X86
    return I{_mm_cvtps_epi32(v.raw)};
#else
    return hn::NearestInt(v);
#endif
  }
  static HWY_INLINE F to_float(I v) { return hn::ConvertTo(TileTag(), v); }
  static HWY_INLINE void store_bytes(I v, int8_t* p) {
    const hn::Rebind<int8_t, IntTag> d8;
    hn::StoreU(hn::DemoteTo(d8, v), d8, p);
  }
  static HWY_INLINE void store_bytes_unsigned(I v, uint8_t* p) {
    const hn::Rebind<uint8_t, IntTag> d8;
    hn::StoreU(hn::DemoteTo(d8, v), d8, p);
  }
  static HWY_INLINE I even_pairs(I cells) {
    return hn::BitCast(IntTag(), hn::ShiftRight<8>(hn::ShiftLeft<8>(hn::BitCast(WordTag(), cells))));
  }
  static HWY_INLINE I odd_pairs(I cells) {
    return hn::BitCast(IntTag(), hn::ShiftRight<8>(hn::BitCast(WordTag(), cells)));
  }

  static HWY_INLINE void transpose_cells(const void* rows, int64_t stride, int64_t keys, int64_t cells, void* panel) {
#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3_DL
    simdattn::N_AVX3::PackKeysF32(rows, stride, keys, cells, static_cast<float*>(panel), false);
#else
    PackKeysF32(rows, stride, keys, cells, static_cast<float*>(panel), false);
#endif
  }

  template <bool kWeights>
  static HWY_INLINE void dot(I& sum, [[maybe_unused]] I& second, I x, I column) {
    [[maybe_unused]] const IntTag d;
    if constexpr (kPairs) {
#if HWY_ARCH_X86
      // gcc would add products before sums, and put sums on the stack.
      auto s = sum.raw, product = s;
#if HWY_TARGET <= HWY_AVX2
      __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+v"(s), "=&v"(product) : "v"(x.raw), "v"(column.raw));
#else
      __asm__("movdqa %2, %1\n\tpmaddwd %3, %1\n\tpaddd %1, %0"
              : "+x"(s), "=&x"(product)
              : "x"(x.raw), "x"(column.raw));
#endif
      sum = I{s};
#else
      sum = hn::ReorderWidenMulAccumulate(d, hn::BitCast(WordTag(), x), hn::BitCast(WordTag(), column), sum, second);
#endif
    } else {
#if HWY_ARCH_X86
      // gcc copies the sums of the intrinsic twice a step.
      auto s = sum.raw;
      __asm__("vpdpbusd %2, %1, %0" : "+v"(s) : "v"((kWeights ? x : column).raw), "v"((kWeights ? column : x).raw));
      sum = I{s};
#elif HWY_TARGET_IS_SVE
      if constexpr (kMatrix && kWeights) {
        __asm__(SIMDATTN_ARM_V8_6 "usdot %0.s, %1.b, %2.b" : "+w"(sum) : "w"(x), "w"(column));
      } else if constexpr (kWeights) {
        const hn::RebindToUnsigned<IntTag> du;
        sum = hn::BitCast(d, hn::SumOfMulQuadAccumulate(du, hn::BitCast(UnsignedByteTag(), x),
                                                        hn::BitCast(UnsignedByteTag(), column), hn::BitCast(du, sum)));
      } else {
        sum = hn::SumOfMulQuadAccumulate(d, hn::BitCast(ByteTag(), x), hn::BitCast(ByteTag(), column), sum);
      }
#else
      if constexpr (kMatrix && kWeights) {
        __asm__(SIMDATTN_ARM_V8_6 "usdot %0.4s, %1.16b, %2.16b" : "+w"(sum.raw) : "w"(x.raw), "w"(column.raw));
      } else if constexpr (kWeights) {
        __asm__(SIMDATTN_ARM_V8_6 "udot %0.4s, %1.16b, %2.16b" : "+w"(sum.raw) : "w"(x.raw), "w"(column.raw));
      } else {
        __asm__(SIMDATTN_ARM_V8_6 "sdot %0.4s, %1.16b, %2.16b" : "+w"(sum.raw) : "w"(x.raw), "w"(column.raw));
      }
#endif
    }
  }
  static HWY_INLINE I total(I sum, [[maybe_unused]] I second) {
    if constexpr (kPairs && !HWY_ARCH_X86) return hn::RearrangeToOddPlusEven(sum, second);
    return sum;
  }

#if SIMDATTN_ARM_MATRIX
  using PairTag = hn::Repartition<int64_t, IntTag>;
  /// Eight bytes of each of two rows, again and again.
  static HWY_INLINE I two_rows(const char* first, const char* second) {
    int64_t x = 0, y = 0;
    std::memcpy(&x, first, sizeof(x));
    std::memcpy(&y, second, sizeof(y));
    const PairTag d;
    return hn::BitCast(IntTag(), hn::InterleaveEven(d, hn::Set(d, x), hn::Set(d, y)));
  }
  static HWY_INLINE I zip_lower(I a, I b) { return hn::InterleaveWholeLower(IntTag(), a, b); }
  static HWY_INLINE I zip_upper(I a, I b) { return hn::InterleaveWholeUpper(IntTag(), a, b); }
  static HWY_INLINE I even_halves(I a, I b) {
    const PairTag d;
    return hn::BitCast(IntTag(), hn::ConcatEven(d, hn::BitCast(d, b), hn::BitCast(d, a)));
  }
  static HWY_INLINE I odd_halves(I a, I b) {
    const PairTag d;
    return hn::BitCast(IntTag(), hn::ConcatOdd(d, hn::BitCast(d, b), hn::BitCast(d, a)));
  }
  template <bool kWeights>
  static HWY_INLINE void matrix(I& sum, I rows, I columns) {
#if HWY_TARGET_IS_SVE
    if constexpr (kWeights) {
      __asm__(SIMDATTN_ARM_V8_6 "usmmla %0.s, %1.b, %2.b" : "+w"(sum) : "w"(rows), "w"(columns));
    } else {
      __asm__(SIMDATTN_ARM_V8_6 "smmla %0.s, %1.b, %2.b" : "+w"(sum) : "w"(rows), "w"(columns));
    }
#else
    if constexpr (kWeights) {
      __asm__(SIMDATTN_ARM_V8_6 "usmmla %0.4s, %1.16b, %2.16b" : "+w"(sum.raw) : "w"(rows.raw), "w"(columns.raw));
    } else {
      __asm__(SIMDATTN_ARM_V8_6 "smmla %0.4s, %1.16b, %2.16b" : "+w"(sum.raw) : "w"(rows.raw), "w"(columns.raw));
    }
#endif
  }
#endif
};
using Operations = Int8Operations<kInt8Native ? Products::kDot : Products::kPairs>;

}  // namespace

int64_t Int8Kernels::query_bytes(int64_t dim) { return int8_kernel_query_bytes<Operations>(dim); }
template <class T>
void Int8Kernels::prepare_query(const void* row, void* query, int64_t dim) {
  int8_prepare_query<Operations, T>(row, query, dim);
}
template <class T>
void Int8Kernels::pack_keys(const PackKeys& a) {
  int8_pack_keys<Operations, T>(a);
}
template <class T>
void Int8Kernels::pack_panel(const PackKeys& a) {
  int8_pack_panel<Operations, T>(a);
}
template <class T>
void Int8Kernels::pack_values(const PackValues& a) {
  int8_pack_values<Operations, T>(a);
}
void Int8Kernels::score_packed(const ScoreTile& a) { int8_score_packed<Operations>(a); }
void Int8Kernels::value_packed(const ValueTile& a) { int8_value_packed<Operations>(a); }

#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX3_DL
namespace {

/// A tile of values in rows of stored integers: 64 columns.
struct StoredTile {
  const uint8_t* weights;
  int64_t weight_stride;
  const float* weight_scales;
  const char* rows;
  int64_t row_stride;
  int64_t keys;
  int64_t columns;  // at most 64
  float* o;
  int64_t ldo;
  const float* alpha;  // null: 1
  PrefetchPlan prefetch;
};

/// Four rows are interleaved in registers, lane by lane of 128 bits: a sum has columns 4 k .. 4 k + 3 of each 16.
template <size_t kRows>
SIMDATTN_SHARED void ValueStoredTile(const StoredTile& a) {
  const TileTag d;
  WithRegisters(d, [&](const Accumulators& sum, const Columns& column) SIMDATTN_LAMBDA {
    const auto bits = [](TileVec v) SIMDATTN_LAMBDA { return _mm512_castps_si512(v.raw); };
    const auto vector = [](__m512i v) SIMDATTN_LAMBDA { return TileVec{_mm512_castsi512_ps(v)}; };
    const __mmask64 some = ~uint64_t{0} >> (64 - a.columns);
    const int64_t weight_stride = a.weight_stride;
    const int64_t row_stride = a.row_stride;
    const uint8_t* weights = a.weights;
    Cursor<const char> row(a.rows);
    uintptr_t line = a.prefetch.first;
    for (int64_t left = a.keys; left > 0; left -= 4) {
      if (a.prefetch.count != 0) {
        for (uintptr_t i = 0; i < 4; ++i, line += static_cast<uintptr_t>(a.prefetch.pitch))
          __builtin_prefetch(reinterpret_cast<const char*>(line), 0, 2);
      }
      // Rows past the last one have weight 0.
      const int64_t s1 = left > 1 ? row_stride : 0, s2 = left > 2 ? 2 * row_stride : 0,
                    s3 = left > 3 ? 3 * row_stride : 0;
      const char* const p = row.get();
      const __m512i r0 = _mm512_maskz_loadu_epi8(some, p), r1 = _mm512_maskz_loadu_epi8(some, p + s1);
      const __m512i r2 = _mm512_maskz_loadu_epi8(some, p + s2), r3 = _mm512_maskz_loadu_epi8(some, p + s3);
      const __m512i low0 = _mm512_unpacklo_epi8(r0, r1), low1 = _mm512_unpacklo_epi8(r2, r3);
      const __m512i high0 = _mm512_unpackhi_epi8(r0, r1), high1 = _mm512_unpackhi_epi8(r2, r3);
      Get<0>(column) = vector(_mm512_unpacklo_epi16(low0, low1));
      Get<1>(column) = vector(_mm512_unpackhi_epi16(low0, low1));
      Get<2>(column) = vector(_mm512_unpacklo_epi16(high0, high1));
      Get<3>(column) = vector(_mm512_unpackhi_epi16(high0, high1));
      ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
        int32_t cell;
        std::memcpy(&cell, weights + static_cast<int64_t>(r) * weight_stride, sizeof cell);
        const __m512i x = _mm512_set1_epi32(cell);
        ForEach<4>([&](auto c) SIMDATTN_LAMBDA {
          __m512i s = bits(Get<4 * r + c>(sum));
          __asm__("vpdpbusd %2, %1, %0" : "+v"(s) : "v"(x), "v"(bits(Get<c>(column))));
          Get<4 * r + c>(sum) = vector(s);
        });
      });
      weights += 4;
      row += 4 * row_stride;
    }
    ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
      const auto number = [&](auto k) SIMDATTN_LAMBDA { return _mm512_cvtepi32_ps(bits(Get<4 * r + k>(sum))); };
      const __m512 s0 = number(std::integral_constant<size_t, 0>()), s1 = number(std::integral_constant<size_t, 1>());
      const __m512 s2 = number(std::integral_constant<size_t, 2>()), s3 = number(std::integral_constant<size_t, 3>());
      const __m512 t0 = _mm512_shuffle_f32x4(s0, s1, 0x44), t1 = _mm512_shuffle_f32x4(s2, s3, 0x44);
      const __m512 t2 = _mm512_shuffle_f32x4(s0, s1, 0xEE), t3 = _mm512_shuffle_f32x4(s2, s3, 0xEE);
      float* const o = a.o + static_cast<int64_t>(r) * a.ldo;
      const TileVec alpha = hn::Set(d, a.alpha != nullptr ? a.alpha[r] : 1.0f);
      const TileVec scale = hn::Set(d, a.weight_scales[r]);
      const auto put = [&](int64_t c, __m512 s) SIMDATTN_LAMBDA {
        const int64_t n = a.columns - c;
        if (n <= 0) return;
        const size_t count = static_cast<size_t>(n);
        hn::StoreN(hn::MulAdd(TileVec{s}, scale, hn::Mul(alpha, hn::LoadN(d, o + c, count))), d, o + c, count);
      };
      put(0, _mm512_shuffle_f32x4(t0, t1, 0x88));
      put(16, _mm512_shuffle_f32x4(t0, t1, 0xDD));
      put(32, _mm512_shuffle_f32x4(t2, t3, 0x88));
      put(48, _mm512_shuffle_f32x4(t2, t3, 0xDD));
    });
  });
}

}  // namespace

/// int8_value_packed() of integers in rows as they are stored. At most kKeyBlock keys.
void ValueStoredInt8(const ValueTile& a) {
  constexpr int64_t kMost = 4, kColumns = 64;
  alignas(64) uint8_t weights[kMost * kInt8WeightBytes];
  float weight_scales[kMost];
  for (RowTiles t(a.rows, kMost); t.first < a.rows; t.next()) {
    const int64_t first = t.first;
    for (int64_t r = 0; r < t.rows; ++r) {
      int32_t sum;
      weight_scales[r] = int8_weights<Int8Operations<Products::kDot>>(a.w + (first + r) * a.ldw, a.scales, a.keys, 0,
                                                                      weights + r * kInt8WeightBytes, &sum);
    }
    for (int64_t c = 0; c < a.dim; c += kColumns) {
      StoredTile tile = {weights,
                         kInt8WeightBytes,
                         weight_scales,
                         static_cast<const char*>(a.v) + c,
                         a.key_stride,
                         a.keys,
                         std::min(kColumns, a.dim - c),
                         a.o + first * a.ldo + c,
                         a.ldo,
                         a.alpha != nullptr ? a.alpha + first : nullptr,
                         {}};
      if (a.stream && first == 0) {
        // The next block; rows that lie side by side in the order of memory.
        const bool together = a.key_stride == a.dim;
        const int64_t offset = a.keys * a.key_stride + (together ? a.keys * c : c);
        tile.prefetch = {address_at(static_cast<const char*>(a.v), offset), together ? tile.columns : a.key_stride,
                         a.keys};
      }
      WithRows<kMost>(t.rows, [&](auto r) { ValueStoredTile<r>(tile); });
    }
  }
}
#endif

#undef SIMDATTN_INT8_TYPE
#define SIMDATTN_INT8_TYPE(T)                                               \
  template void Int8Kernels::prepare_query<T>(const void*, void*, int64_t); \
  template void Int8Kernels::pack_keys<T>(const PackKeys&);                 \
  template void Int8Kernels::pack_panel<T>(const PackKeys&);                \
  template void Int8Kernels::pack_values<T>(const PackValues&);
SIMDATTN_INT8_TYPE(float)
SIMDATTN_INT8_TYPE(bf16)
SIMDATTN_INT8_TYPE(f16)

#if SIMDATTN_ARM_MATRIX
#undef SIMDATTN_INT8_DEFINE
#define SIMDATTN_INT8_DEFINE(Name, products)                                                                          \
  int64_t Name::query_bytes(int64_t dim) { return int8_kernel_query_bytes<Int8Operations<Products::products>>(dim); } \
  template <class T>                                                                                                  \
  void Name::prepare_query(const void* row, void* query, int64_t dim) {                                               \
    int8_prepare_query<Int8Operations<Products::products>, T>(row, query, dim);                                       \
  }                                                                                                                   \
  void Name::score_packed(const ScoreTile& a) { int8_score_packed<Int8Operations<Products::products>>(a); }           \
  void Name::value_packed(const ValueTile& a) { int8_value_packed<Int8Operations<Products::products>>(a); }           \
  template void Name::prepare_query<float>(const void*, void*, int64_t);                                              \
  template void Name::prepare_query<bf16>(const void*, void*, int64_t);                                               \
  template void Name::prepare_query<f16>(const void*, void*, int64_t)
#if !HWY_TARGET_IS_SVE
SIMDATTN_INT8_DEFINE(Int8DotKernels, kDot);
#endif
SIMDATTN_INT8_DEFINE(Int8MatrixKernels, kMatrix);
#endif

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();
