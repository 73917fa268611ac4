// Arithmetic::kInt8. Compiled for AVX3_DL, too, which has VPDPBUSD: avx3_dl.cc.
#ifndef SIMDATTN_LIB_HIGHWAY_INT8_H_
#define SIMDATTN_LIB_HIGHWAY_INT8_H_

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "dispatch/cpu.h"
#include "hwy/highway.h"
#include "lib/highway/register_tile.h"
#include "lib/int8_operands.h"
#include "lib/kernels/pack.h"

#define SIMDATTN_INT8_INLINE HWY_INLINE
#define SIMDATTN_INT8_LAMBDA SIMDATTN_LAMBDA
#define SIMDATTN_INT8_SHARED SIMDATTN_SHARED

namespace simdattn {
namespace {
namespace highway {

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
  static constexpr bool kHalves = HWY_ARCH_X86 && HWY_TARGET <= HWY_SSE4;
  static HWY_INLINE I max_halves(I a, I b) {
    const WordTag d;
    return hn::BitCast(IntTag(), hn::Max(hn::BitCast(d, a), hn::BitCast(d, b)));
  }
  static HWY_INLINE I cells(I v0, I v1, I v2, I v3) {
    const WordTag d16;
    const ByteTag d8;
    const auto bytes = hn::ReorderDemote2To(d8, hn::ReorderDemote2To(d16, v0, v1), hn::ReorderDemote2To(d16, v2, v3));
    const auto order = hn::Dup128VecFromValues(d8, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return hn::BitCast(IntTag(), hn::TableLookupBytes(bytes, order));
  }
  template <bool kUnsigned>
  using NarrowTag = hn::Rebind<std::conditional_t<kUnsigned, uint8_t, int8_t>, IntTag>;
  template <bool kUnsigned, class T>
  static HWY_INLINE void store_bytes(I v, T* p) {
    const NarrowTag<kUnsigned> d8;
    hn::StoreU(hn::DemoteTo(d8, v), d8, p);
  }
  template <bool kUnsigned, class T>
  static HWY_INLINE void store_bytes(I v0, I v1, I v2, I v3, T* p) {
#if HWY_ARCH_X86
    // Packing keeps 128 bits apart: lane 4 b + i of the result is part b of vector i.
    const WordTag d16;
    const hn::Repartition<std::conditional_t<kUnsigned, uint8_t, int8_t>, IntTag> d8;
    const auto bytes = hn::ReorderDemote2To(d8, hn::ReorderDemote2To(d16, v0, v1), hn::ReorderDemote2To(d16, v2, v3));
    constexpr int32_t kParts = static_cast<int32_t>(hn::MaxLanes(IntTag())) / 4;
    if constexpr (kParts == 1) {
      hn::StoreU(bytes, d8, p);
    } else {
      alignas(64) int32_t order[4 * kParts];
      for (int32_t i = 0; i < 4 * kParts; ++i) order[i] = i % kParts * 4 + i / kParts;
      const auto sorted = hn::TableLookupLanes(hn::BitCast(IntTag(), bytes), hn::SetTableIndices(IntTag(), order));
      hn::StoreU(hn::BitCast(d8, sorted), d8, p);
    }
#else
    const int64_t n = lanes();
    store_bytes<kUnsigned>(v0, p);
    store_bytes<kUnsigned>(v1, p + n);
    store_bytes<kUnsigned>(v2, p + 2 * n);
    store_bytes<kUnsigned>(v3, p + 3 * n);
#endif
  }
  static HWY_INLINE I even_pairs(I cells) {
    return hn::BitCast(IntTag(), hn::ShiftRight<8>(hn::ShiftLeft<8>(hn::BitCast(WordTag(), cells))));
  }
  static HWY_INLINE I odd_pairs(I cells) {
    return hn::BitCast(IntTag(), hn::ShiftRight<8>(hn::BitCast(WordTag(), cells)));
  }

  static HWY_INLINE void transpose_cells(const void* rows, int64_t stride, int64_t keys, int64_t cells, void* panel) {
    simdattn::pack_keys<float>(rows, stride, keys, cells, static_cast<float*>(panel), false);
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

/// By the names that lib/int8_operands.h asks for. Cells of bytes are packed alike, whatever multiplies them.
template <class Multiplying>
struct Int8KernelsOf {
  static constexpr auto query_bytes = int8_kernel_query_bytes<Multiplying>;
  static constexpr auto panel_bytes = int8_panel_bytes;
  static constexpr auto values_bytes = int8_values_bytes;
  template <class T>
  static constexpr auto prepare_query = int8_prepare_query<Multiplying, T>;
  template <class T>
  static constexpr auto pack_keys = int8_pack_keys<Operations, T>;
  template <class T>
  static constexpr auto pack_panel = int8_pack_panel<Operations, T>;
  template <class T>
  static constexpr auto pack_values = int8_pack_values<Operations, T>;
  static constexpr bool kScalesApart = true;
  static constexpr auto score_packed = int8_score_packed<Multiplying>;
  static constexpr auto value_packed = int8_value_packed<Multiplying>;
};
using Int8Kernels = Int8KernelsOf<Operations>;

/// Values of stored integers in rows.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
struct StoredOperations : Operations {
  static constexpr size_t kStoredRows = 4;
  static HWY_INLINE I load_bytes(const char* p, int64_t n) {
    return I{_mm512_maskz_loadu_epi8(~uint64_t{0} >> (64 - n), p)};
  }
  static HWY_INLINE I zip_bytes_lower(I a, I b) { return I{_mm512_unpacklo_epi8(a.raw, b.raw)}; }
  static HWY_INLINE I zip_bytes_upper(I a, I b) { return I{_mm512_unpackhi_epi8(a.raw, b.raw)}; }
  static HWY_INLINE I zip_words_lower(I a, I b) { return I{_mm512_unpacklo_epi16(a.raw, b.raw)}; }
  static HWY_INLINE I zip_words_upper(I a, I b) { return I{_mm512_unpackhi_epi16(a.raw, b.raw)}; }
  static HWY_INLINE void sort_columns(F& s0, F& s1, F& s2, F& s3) {
    const __m512 t0 = _mm512_shuffle_f32x4(s0.raw, s1.raw, 0x44), t1 = _mm512_shuffle_f32x4(s2.raw, s3.raw, 0x44);
    const __m512 t2 = _mm512_shuffle_f32x4(s0.raw, s1.raw, 0xEE), t3 = _mm512_shuffle_f32x4(s2.raw, s3.raw, 0xEE);
    s0 = F{_mm512_shuffle_f32x4(t0, t1, 0x88)};
    s1 = F{_mm512_shuffle_f32x4(t0, t1, 0xDD)};
    s2 = F{_mm512_shuffle_f32x4(t2, t3, 0x88)};
    s3 = F{_mm512_shuffle_f32x4(t2, t3, 0xDD)};
  }
  static HWY_INLINE void store_n(F v, float* p, int64_t n) { hn::StoreN(v, TileTag(), p, static_cast<size_t>(n)); }
};

#include "lib/int8_stored_values-inl.h"

constexpr auto ValueStoredInt8 = int8_value_stored<StoredOperations>;
#else
constexpr void (*ValueStoredInt8)(const ValueTile&) = nullptr;
#endif

}  // namespace highway
}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_INT8_H_
