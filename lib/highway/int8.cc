// Arithmetic::kInt8. Also compiled for AVX3_DL, which adds VPDPBUSD to AVX3 and nothing that another kernel uses: of that
// target there is this file alone.
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
#define SIMDATTN_INT8_LAMBDA HWY_ATTR
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

struct Int8Operations {
  using F = TileVec;
  using I = hn::Vec<IntTag>;
  static constexpr size_t kRows = kInt8TileRows;
  static constexpr bool kPairs = !kInt8Native;
  static constexpr bool kFlipKeys = kInt8Native && HWY_ARCH_X86;
  static constexpr bool kFlipValues = kInt8Native && !HWY_ARCH_X86;

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
#elif HWY_TARGET == HWY_NEON_BF16
      if constexpr (kWeights) {
        sum = I(vreinterpretq_s32_u32(
            vdotq_u32(vreinterpretq_u32_s32(sum.raw), vreinterpretq_u8_s32(x.raw), vreinterpretq_u8_s32(column.raw))));
      } else {
        sum = I(vdotq_s32(sum.raw, vreinterpretq_s8_s32(x.raw), vreinterpretq_s8_s32(column.raw)));
      }
#else
      if constexpr (kWeights) {
        const hn::RebindToUnsigned<IntTag> du;
        sum = hn::BitCast(d, hn::SumOfMulQuadAccumulate(du, hn::BitCast(UnsignedByteTag(), x),
                                                        hn::BitCast(UnsignedByteTag(), column), hn::BitCast(du, sum)));
      } else {
        sum = hn::SumOfMulQuadAccumulate(d, hn::BitCast(ByteTag(), x), hn::BitCast(ByteTag(), column), sum);
      }
#endif
    }
  }
  static HWY_INLINE I total(I sum, [[maybe_unused]] I second) {
    if constexpr (kPairs && !HWY_ARCH_X86) return hn::RearrangeToOddPlusEven(sum, second);
    return sum;
  }
};

}  // namespace

int64_t Int8Kernels::query_bytes(int64_t dim) { return int8_kernel_query_bytes<Int8Operations>(dim); }
template <class T>
void Int8Kernels::prepare_query(const void* row, void* query, int64_t dim) {
  int8_prepare_query<Int8Operations, T>(row, query, dim);
}
template <class T>
void Int8Kernels::pack_keys(const PackKeys& a) {
  int8_pack_keys<Int8Operations, T>(a);
}
template <class T>
void Int8Kernels::pack_panel(const PackKeys& a) {
  int8_pack_panel<Int8Operations, T>(a);
}
template <class T>
void Int8Kernels::pack_values(const PackValues& a) {
  int8_pack_values<Int8Operations, T>(a);
}
void Int8Kernels::score_packed(const ScoreTile& a) { int8_score_packed<Int8Operations>(a); }
void Int8Kernels::value_packed(const ValueTile& a) { int8_value_packed<Int8Operations>(a); }

#undef SIMDATTN_INT8_TYPE
#define SIMDATTN_INT8_TYPE(T)                                               \
  template void Int8Kernels::prepare_query<T>(const void*, void*, int64_t); \
  template void Int8Kernels::pack_keys<T>(const PackKeys&);                 \
  template void Int8Kernels::pack_panel<T>(const PackKeys&);                \
  template void Int8Kernels::pack_values<T>(const PackValues&);
SIMDATTN_INT8_TYPE(float)
SIMDATTN_INT8_TYPE(bf16)
SIMDATTN_INT8_TYPE(f16)

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();
