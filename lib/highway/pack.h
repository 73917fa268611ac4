// Row-major keys and values, and panels of 16-bit types, into the f32 formats of the tiles.
#ifndef SIMDATTN_LIB_HIGHWAY_PACK_H_
#define SIMDATTN_LIB_HIGHWAY_PACK_H_

#include <type_traits>

#include "hwy/highway.h"
#include "lib/highway/key_rows.h"
#include "lib/highway/register_tile.h"

namespace simdattn {
namespace {

/// One dimension of an f32 panel, or two of pairs of bf16.
HWY_INLINE void StoreKeys(hn::Vec<PackTag> v, float* out, const float* /*type*/) { hn::StoreU(v, PackTag(), out); }
[[maybe_unused]] HWY_INLINE void StoreKeys(TileVec pairs, float* out, const bf16* /*type*/) {
  const TileTag d;
  hn::StoreU(EvenOf(d, pairs), d, out);
  hn::StoreU(OddOf(d, pairs), d, out + kPanelWidth);
}

/// Dimensions of all 32 rows that are transposed before the next ones: with stores of less than a line, L1 holds the lines until they are full. Rows of
/// 256 dimensions: 0.82 - 0.93 of the time of whole rows (AVX2, SSE4; decode from L3). Vectors of 128 bits take four or eight dimensions.
template <class T>
constexpr int64_t kRunOf(int64_t rows) {
  return rows == 4 ? static_cast<int64_t>(16 / sizeof(T)) : rows == 8 ? 64 : int64_t{1} << 31;
}

/// 32 rows of `dim` elements (a multiple of what 128 bits hold) into a panel. Lanes of 32 bits: numbers, or pairs of bf16. Not inlined: it is called three times.
template <class T>
HWY_NOINLINE void Transpose(const T* rows, int64_t stride, int64_t dim, float* panel, bool prefetch) {
  constexpr int64_t kRows = static_cast<int64_t>(hn::MaxLanes(PackTag()));
  constexpr int64_t kLane = sizeof(float) / sizeof(T);
  constexpr int64_t kRun = kRunOf<T>(kRows);
  for (int64_t first = 0; first < dim; first += kRun) {
    const int64_t end = std::min(first + kRun, dim);
    if (prefetch && kRows == 4) PrefetchNext<kPanelWidth>(rows, stride, first);
#if HWY_MAX_BYTES == 16
#pragma GCC unroll 8  // 0.93 of the time from L1, 0.85 from memory (f32)
#endif
    for (int64_t j = 0; j < kPanelWidth; j += kRows) {
      const T* p = rows + j * stride + first;
      float* out = panel + first * kPanelWidth + j;
      int64_t i = first;
      do {
        if (prefetch && kRows > 4) PrefetchNext<kRows>(rows + j * stride, stride, i);
        FourLanes(p, stride, [&](auto k, auto v) SIMDATTN_LAMBDA { StoreKeys(v, out + k * kLane * kPanelWidth, p); });
        i += 4 * kLane;
        p += 4 * kLane;
        out += 4 * kLane * kPanelWidth;
      } while (kRows > 4 && i < end);
    }
  }
}

/// The same for f16.
HWY_INLINE void Transpose(const f16* rows, int64_t stride, int64_t dim, float* panel, bool prefetch) {
  const PackTag d;
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < dim; i += 8) {
    if (prefetch) PrefetchNext<kPanelWidth>(rows, stride, i);
    for (int64_t j = 0; j < kPanelWidth; j += 2 * n) {
      EightHalves(rows + j * stride + i, stride, [&](auto k, auto low, auto high) SIMDATTN_LAMBDA {
        float* out = panel + (i + k) * kPanelWidth + j;
        hn::StoreU(low, d, out);
        hn::StoreU(high, d, out + n);
      });
    }
  }
}

/// n elements to f32, whole vectors.
template <class T>
HWY_INLINE void WidenWhole(const T* in, int64_t n, float* out) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += lanes) hn::StoreU(LoadWide(d, in + i), d, out + i);
}

/// n elements to f32, then zeros up to `padded`.
template <class T>
HWY_INLINE void WidenValues(const T* in, int64_t n, float* out, int64_t padded) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(LoadWide(d, in + i), d, out + i);
  if (i < n) {
    hn::StoreN(LoadWideN(d, in + i, static_cast<size_t>(n - i)), d, out + i, static_cast<size_t>(padded - i));
    i += lanes;
  }
  for (; i < padded; i += lanes) hn::StoreN(hn::Zero(d), d, out + i, static_cast<size_t>(padded - i));
}

template <class T>
void KeysToPanel(const void* keys_in, int64_t stride_bytes, int64_t keys, int64_t dim, float* panel, bool stream) {
  const T* rows = static_cast<const T*>(keys_in);
  const int64_t token_stride = stride_bytes / static_cast<int64_t>(sizeof(T));
  int64_t done = 0;
  if (keys == kPanelWidth) {
    done = dim - dim % static_cast<int64_t>(16 / sizeof(T));
    Transpose(rows, token_stride, done, panel, stream);
  }
  // Missing keys, which count as zeros, and the last dimensions go through a copy of at most 16 KiB.
  constexpr int64_t kStep = 128;
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  HWY_ALIGN float copy[kPanelWidth * kStep + HWY_MAX_LANES_D(TileTag)];
  const TileVec zero = InRegister(hn::Zero(d));  // known to be zero, it would become a call of memset
  HWY_ALIGN float last[4 * kPanelWidth];
  for (; done < dim; done += kStep) {
    const int64_t count = std::min(kStep, dim - done);
    const int64_t padded = (count + 3) / 4 * 4;
    for (int64_t j = 0; j < keys; ++j) WidenValues(rows + j * token_stride + done, count, copy + j * padded, padded);
    for (int64_t i = keys * padded; i < kPanelWidth * padded; i += lanes) hn::StoreU(zero, d, copy + i);
    const int64_t whole = count - count % 4;
    Transpose(copy, padded, whole, panel + done * kPanelWidth, false);
    if (whole < count) {
      Transpose(copy + whole, padded, 4, last, false);
      WidenWhole(last, (count - whole) * kPanelWidth, panel + (done + whole) * kPanelWidth);
    }
  }
}

template <class T>
void ValuesToBlock(const void* values, int64_t stride_bytes, int64_t keys, int64_t dim, float* out) {
  const T* rows = static_cast<const T*>(values);
  const int64_t token_stride = stride_bytes / static_cast<int64_t>(sizeof(T));
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t x = 0; x < dim; x += kValueGroup) {
      WidenValues(rows + j * token_stride + x, std::min(kValueGroup, dim - x), out + x * kKeyBlock + j * kValueGroup,
                  kValueGroup);
    }
  }
}

template <class T>
void Panel(const void* panel, int64_t dim, float* out) {
  const T* in = static_cast<const T*>(panel);
  if constexpr (std::is_same_v<T, bf16>) {
    const TileTag d;
    const int64_t n = static_cast<int64_t>(hn::Lanes(d));
    for (int64_t i = 0; i < dim; i += 2) {
      for (int64_t j = 0; j < kPanelWidth; j += n) {
        const TileVec pairs = LoadPairs(d, in + (i * kPanelWidth + 2 * j));
        hn::StoreU(EvenOf(d, pairs), d, out + i * kPanelWidth + j);
        if (i + 1 < dim) hn::StoreU(OddOf(d, pairs), d, out + (i + 1) * kPanelWidth + j);
      }
    }
  } else {
    WidenWhole(in, dim * kPanelWidth, out);
  }
}

void PackKeysF32(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel, bool stream) {
  KeysToPanel<float>(rows, token_stride, keys, dim, panel, stream);
}
void PackKeysBF16(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel, bool stream) {
  KeysToPanel<bf16>(rows, token_stride, keys, dim, panel, stream);
}
void PackKeysF16(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel, bool stream) {
  KeysToPanel<f16>(rows, token_stride, keys, dim, panel, stream);
}
void PackValuesF32(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* out) {
  ValuesToBlock<float>(rows, token_stride, keys, dim, out);
}
void PackValuesBF16(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* out) {
  ValuesToBlock<bf16>(rows, token_stride, keys, dim, out);
}
void PackValuesF16(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* out) {
  ValuesToBlock<f16>(rows, token_stride, keys, dim, out);
}
void WidenPanelF32(const void* panel, int64_t dim, float* out) { Panel<float>(panel, dim, out); }
void WidenPanelBF16(const void* panel, int64_t dim, float* out) { Panel<bf16>(panel, dim, out); }
void WidenPanelF16(const void* panel, int64_t dim, float* out) { Panel<f16>(panel, dim, out); }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_PACK_H_
