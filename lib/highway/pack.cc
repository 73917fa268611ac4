// Row-major keys and values, and panels of 16-bit types, into the f32 formats of the tiles.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/highway/pack.cc"
#include <type_traits>

#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "lib/highway/register_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {
namespace {

/// Keys are transposed in blocks of 128 bits: four rows of a vector hold elements d to d + 3 of keys 4 b + i in block b;
/// a 4 x 4 transposition within blocks leaves the keys of one d in order. Blocks are put together while loading, which
/// halves the work of a transposition of whole vectors. Scalable vectors have no such loads and take one block.
#if HWY_HAVE_SCALABLE
using PackTag = hn::CappedTag<float, 4>;
#else
using PackTag = TileTag;
#endif

/// Block b of the result is 4 elements of row 4 b.
template <class D>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const float* p, int64_t stride) {
  if constexpr (HWY_MAX_LANES_D(D) <= 4) {
    (void)stride;
    return hn::LoadU(d, p);
  } else {
    const hn::Half<D> half;
    constexpr int64_t kRows = HWY_MAX_LANES_D(D) / 2;
    return hn::Combine(d, LoadBlocks(half, p + kRows * stride, stride), LoadBlocks(half, p, stride));
  }
}

/// 32 rows of `dim` (a multiple of 4) elements into a panel.
HWY_INLINE void Transpose(const float* rows, int64_t stride, int64_t dim, float* panel) {
  const PackTag d;
  const hn::Repartition<double, PackTag> dd;
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  const auto low = [&](auto a, auto b) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveLower(dd, hn::BitCast(dd, a), hn::BitCast(dd, b)));
  };
  const auto high = [&](auto a, auto b) HWY_ATTR {
    return hn::BitCast(d, hn::InterleaveUpper(dd, hn::BitCast(dd, a), hn::BitCast(dd, b)));
  };
  for (int64_t i = 0; i < dim; i += 4) {
    for (int64_t j = 0; j < kPanelWidth; j += n) {
      const float* p = rows + j * stride + i;
      const auto r0 = LoadBlocks(d, p, stride);
      const auto r1 = LoadBlocks(d, p + stride, stride);
      const auto r2 = LoadBlocks(d, p + 2 * stride, stride);
      const auto r3 = LoadBlocks(d, p + 3 * stride, stride);
      const auto t0 = hn::InterleaveLower(d, r0, r1);
      const auto t1 = hn::InterleaveLower(d, r2, r3);
      const auto t2 = hn::InterleaveUpper(d, r0, r1);
      const auto t3 = hn::InterleaveUpper(d, r2, r3);
      float* out = panel + i * kPanelWidth + j;
      hn::StoreU(low(t0, t1), d, out);
      hn::StoreU(high(t0, t1), d, out + kPanelWidth);
      hn::StoreU(low(t2, t3), d, out + 2 * kPanelWidth);
      hn::StoreU(high(t2, t3), d, out + 3 * kPanelWidth);
    }
  }
}

/// n elements to f32, then zeros up to `padded`.
template <class T>
HWY_INLINE void WidenRow(const T* in, int64_t n, float* out, int64_t padded) {
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
void Keys(const void* keys_in, int64_t token_stride, int64_t keys, int64_t dim, float* panel) {
  const T* rows = static_cast<const T*>(keys_in);
  int64_t done = 0;
  if constexpr (std::is_same_v<T, float>) {
    if (keys == kPanelWidth) {
      done = dim - dim % 4;
      Transpose(rows, token_stride, done, panel);
    }
  }
  // Other types, missing keys and the last dimensions go through a copy: 16 KiB, or 32 bytes a row at the end.
  constexpr int64_t kStep = 128;
  HWY_ALIGN float copy[kPanelWidth * kStep];
  HWY_ALIGN float last[4 * kPanelWidth];
  for (; done < dim; done += kStep) {
    const int64_t count = std::min(kStep, dim - done);
    const int64_t padded = (count + 3) / 4 * 4;
    for (int64_t j = 0; j < kPanelWidth; ++j) {
      WidenRow(rows + j * token_stride + done, j < keys ? count : 0, copy + j * kStep, padded);
    }
    const int64_t whole = count - count % 4;
    Transpose(copy, kStep, whole, panel + done * kPanelWidth);
    if (whole < count) {
      Transpose(copy + whole, kStep, 4, last);
      WidenRow(last, (count - whole) * kPanelWidth, panel + (done + whole) * kPanelWidth,
               (count - whole) * kPanelWidth);
    }
  }
}

template <class T>
void Values(const void* values, int64_t token_stride, int64_t keys, int64_t dim, float* out) {
  const T* rows = static_cast<const T*>(values);
  for (int64_t j = 0; j < keys; ++j) {
    for (int64_t x = 0; x < dim; x += kValueGroup) {
      WidenRow(rows + j * token_stride + x, std::min(kValueGroup, dim - x), out + x * kKeyBlock + j * kValueGroup,
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
    WidenRow(in, dim * kPanelWidth, out, dim * kPanelWidth);
  }
}

}  // namespace

void PackKeysF32(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel) {
  Keys<float>(rows, token_stride, keys, dim, panel);
}
void PackKeysBF16(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel) {
  Keys<bf16>(rows, token_stride, keys, dim, panel);
}
void PackKeysF16(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel) {
  Keys<f16>(rows, token_stride, keys, dim, panel);
}
void PackValuesF32(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* out) {
  Values<float>(rows, token_stride, keys, dim, out);
}
void PackValuesBF16(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* out) {
  Values<bf16>(rows, token_stride, keys, dim, out);
}
void PackValuesF16(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* out) {
  Values<f16>(rows, token_stride, keys, dim, out);
}
void WidenPanelF32(const void* panel, int64_t dim, float* out) { Panel<float>(panel, dim, out); }
void WidenPanelBF16(const void* panel, int64_t dim, float* out) { Panel<bf16>(panel, dim, out); }
void WidenPanelF16(const void* panel, int64_t dim, float* out) { Panel<f16>(panel, dim, out); }

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();
