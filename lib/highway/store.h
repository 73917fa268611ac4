// Rows of f32 into the types and layouts that keys and values are stored in, and back.
#ifndef SIMDATTN_LIB_HIGHWAY_STORE_H_
#define SIMDATTN_LIB_HIGHWAY_STORE_H_

#include <type_traits>

#include "hwy/highway.h"
#include "lib/highway/blocks.h"
#include "lib/highway/loads.h"
#include "lib/highway/target.h"
#include "lib/panel_columns.h"

namespace simdattn {
namespace {

/// `rows` rows of n numbers, rounded. Strides are bytes.
template <class T>
HWY_NOINLINE void NarrowRows(const char* in, int64_t in_stride, int64_t rows, char* out, int64_t out_stride,
                             int64_t n) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t first = 0;
  if constexpr (std::is_same_v<T, bf16>) {
    first = n - n % (2 * lanes);
    V seen0 = NothingNoticed(), seen1 = seen0;
    for (int64_t r = 0; r < rows; ++r) {
      const float* const x = reinterpret_cast<const float*>(in + r * in_stride);
      bf16* const y = reinterpret_cast<bf16*>(out + r * out_stride);
      const auto two = [&](int64_t i, V& seen) SIMDATTN_LAMBDA {
        const V v0 = hn::LoadU(d, x + i), v1 = hn::LoadU(d, x + i + lanes);
        StoreNumbers(d, v0, v1, y + i);
        Notice(v0, v1, seen);
      };
      int64_t i = 0;
      for (; i + 4 * lanes <= first; i += 4 * lanes) {
        two(i, seen0);
        two(i + 2 * lanes, seen1);
      }
      if (i < first) two(i, seen0);
    }
    if (HWY_UNLIKELY(Noticed(hn::Add(seen0, seen1)))) first = 0;
    if (first == n) return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float* const x = reinterpret_cast<const float*>(in + r * in_stride);
    T* const y = reinterpret_cast<T*>(out + r * out_stride);
    int64_t i = first;
    for (; i + lanes <= n; i += lanes) StoreRounded(d, hn::LoadU(d, x + i), y + i);
    if (i < n) {
      const size_t rest = static_cast<size_t>(n - i);
      StoreRoundedN(d, hn::LoadN(d, x + i, rest), y + i, rest);
    }
  }
}
template <class T>
HWY_NOINLINE void Widen(const T* in, char* out, int64_t n) {
  const D d;
  float* y = reinterpret_cast<float*>(out);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(LoadWide(d, in + i), d, y + i);
  if (i < n) {
    const size_t rest = static_cast<size_t>(n - i);
    hn::StoreN(LoadWideN(d, in + i, rest), d, y + i, rest);
  }
}

#if HWY_TARGET == HWY_AVX2
#define SIMDATTN_ROUNDS_TO_COLUMNS 1
// f32 becomes columns of bf16 in registers, four rows at a time and one after the other: where 32 rows are read at once, a line of
// each, no prefetcher follows them, and it takes a third longer. With AVX-512 two passes are faster: one shuffle packs 32 numbers.
constexpr int64_t kPairPitch = kPanelWidth * 4;
constexpr int64_t kPanelTokens = 4;
constexpr int64_t kPanelDims = 8;

using PanelBits = hn::Repartition<uint16_t, D>;

/// kPanelDims dimensions of two tokens, none of them NaN: their pairs, a token after the other.
HWY_INLINE hn::Vec<PanelBits> PairsOf(V r0, V r1) {
  const D d;
  const auto s0 = UpperThenLower(PlusHalf(d, r0)), s1 = UpperThenLower(PlusHalf(d, r1));
  return TiesToEven(Blocks::low<uint32_t>(s0, s1), Blocks::high<uint32_t>(s0, s1));
}
/// Those of kPanelTokens tokens.
HWY_INLINE void StorePairs(hn::Vec<PanelBits> a, hn::Vec<PanelBits> b, char* out) {
  const PanelBits d16;
  StoreBlocks<2>(d16, Blocks::low<uint64_t>(a, b), out, kPairPitch);
  StoreBlocks<2>(d16, Blocks::high<uint64_t>(a, b), out + kPairPitch, kPairPitch);
}
HWY_INLINE V LoadRow(const char* p) { return hn::LoadU(D(), reinterpret_cast<const float*>(p)); }
HWY_INLINE bool AllFinite(V v) { return hn::AllTrue(D(), hn::IsFinite(v)); }

/// `tokens` rows of `dim` numbers into columns: multiples of kPanelTokens and kPanelDims. False: there may be NaN.
HWY_NOINLINE bool RoundToColumns(const char* rows, int64_t ld, int64_t tokens, int64_t dim, char* out) {
  V seen0 = hn::Zero(D()), seen1 = seen0;
  for (int64_t t = 0; t < tokens; t += kPanelTokens) {
    const char* in = rows + t * ld;
    char* to = out + t * 4;
    for (int64_t i = 0; i < dim; i += kPanelDims, in += kPanelDims * 4, to += kPanelDims / 2 * kPairPitch) {
      const V r0 = LoadRow(in), r1 = LoadRow(in + ld), r2 = LoadRow(in + 2 * ld), r3 = LoadRow(in + 3 * ld);
      StorePairs(PairsOf(r0, r1), PairsOf(r2, r3), to);
      seen0 = hn::MulAdd(r0, r1, seen0);
      seen1 = hn::MulAdd(r2, r3, seen1);
    }
  }
  return AllFinite(hn::Add(seen0, seen1));
}

#else
#undef SIMDATTN_ROUNDS_TO_COLUMNS
#define SIMDATTN_ROUNDS_TO_COLUMNS 0
#endif

struct StoreOps : Blocks {
  static constexpr int64_t kBlocks = HWY_MAX_BYTES / 16;
  using Bytes = hn::ScalableTag<uint8_t>;
  static HWY_INLINE hn::Vec<Bytes> load(const char* p) {
    return hn::LoadU(Bytes(), reinterpret_cast<const uint8_t*>(p));
  }
  static HWY_INLINE void store(hn::Vec<Bytes> v, char* p) { hn::StoreU(v, Bytes(), reinterpret_cast<uint8_t*>(p)); }
  template <int64_t kGroup>
  static HWY_INLINE hn::Vec<Bytes> load_blocks(const char* p, int64_t stride) {
    return LoadBlocks<kGroup>(Bytes(), p, stride);
  }
  template <int64_t kGroup>
  static HWY_INLINE void store_blocks(hn::Vec<Bytes> v, char* p, int64_t stride) {
    StoreBlocks<kGroup>(Bytes(), v, p, stride);
  }
  template <class T>
  static HWY_INLINE void narrow(const char* in, int64_t in_stride, int64_t rows, char* out, int64_t out_stride,
                                int64_t n) {
    NarrowRows<T>(in, in_stride, rows, out, out_stride, n);
  }
  template <class T>
  static HWY_INLINE void widen(const T* in, char* out, int64_t n) {
    Widen(in, out, n);
  }
  template <class T>
  static HWY_INLINE int64_t round_to_columns([[maybe_unused]] const char* rows, [[maybe_unused]] int64_t ld,
                                             [[maybe_unused]] int64_t tokens, [[maybe_unused]] int64_t dim,
                                             [[maybe_unused]] char* out) {
#if SIMDATTN_ROUNDS_TO_COLUMNS
    if constexpr (std::is_same_v<T, bf16>) {
      const int64_t whole = tokens - tokens % kPanelTokens;
      if (whole > 0 && dim % kPanelDims == 0 && RoundToColumns(rows, ld, whole, dim, out)) return whole;
    }
#endif
    return 0;
  }
};

#define SIMDATTN_STORE_SHARED HWY_NOINLINE
#define SIMDATTN_STORE_LAMBDA SIMDATTN_LAMBDA
#define SIMDATTN_STORE_CALLBACK SIMDATTN_LAMBDA
#include "lib/store_kernels-inl.h"

void StoreRowsF32(const StoreRows& a) { store_rows<float>(a); }
void StoreRowsBF16(const StoreRows& a) { store_rows<bf16>(a); }
void StoreRowsF16(const StoreRows& a) { store_rows<f16>(a); }
void StorePanelsF32(const StoreRows& a) { store_panels<float>(a); }
void StorePanelsBF16(const StoreRows& a) { store_panels<bf16>(a); }
void StorePanelsF16(const StoreRows& a) { store_panels<f16>(a); }
void LoadRowsF32(const LoadRows& a) { load_rows<float>(a); }
void LoadRowsBF16(const LoadRows& a) { load_rows<bf16>(a); }
void LoadRowsF16(const LoadRows& a) { load_rows<f16>(a); }
void LoadPanelsF32(const LoadRows& a) { load_panels<float>(a); }
void LoadPanelsBF16(const LoadRows& a) { load_panels<bf16>(a); }
void LoadPanelsF16(const LoadRows& a) { load_panels<f16>(a); }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_STORE_H_
