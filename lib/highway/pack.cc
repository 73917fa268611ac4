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

/// Keys are transposed in blocks of 128 bits: vector k of a group holds elements of keys k, k + group, ... in its blocks; a
/// transposition within blocks leaves the keys of one dimension in order. Blocks are put together while loading, which
/// halves the work of a transposition of whole vectors. Scalable vectors have no such loads and take one block.
#if HWY_HAVE_SCALABLE
using PackTag = hn::CappedTag<float, 4>;
#else
using PackTag = TileTag;
#endif

/// Block b of the result is the first elements of row kPitch b.
template <int64_t kPitch, class D, class T>
HWY_INLINE hn::Vec<D> LoadBlocks(D d, const T* p, int64_t stride) {
  constexpr size_t kBytes = HWY_MAX_LANES_D(D) * sizeof(hn::TFromD<D>);
  if constexpr (kBytes > 16) {
    const hn::Half<D> half;
    constexpr int64_t kRows = static_cast<int64_t>(kBytes) / 32 * kPitch;
    return hn::Combine(d, LoadBlocks<kPitch>(half, p + kRows * stride, stride), LoadBlocks<kPitch>(half, p, stride));
  } else if constexpr (std::is_same_v<T, float>) {
    return hn::LoadU(d, p);
  } else {
    return hn::BitCast(d, hn::LoadU(hn::Repartition<uint16_t, D>(), Bits(p)));
  }
}

/// a and b interleaved in each block by elements of type T: the lower and the upper halves.
template <class T, class D>
HWY_INLINE hn::Vec<D> Lower(D d, hn::Vec<D> a, hn::Vec<D> b) {
  const hn::Repartition<T, D> dt;
  return hn::BitCast(d, hn::InterleaveLower(dt, hn::BitCast(dt, a), hn::BitCast(dt, b)));
}
template <class T, class D>
HWY_INLINE hn::Vec<D> Upper(D d, hn::Vec<D> a, hn::Vec<D> b) {
  const hn::Repartition<T, D> dt;
  return hn::BitCast(d, hn::InterleaveUpper(dt, hn::BitCast(dt, a), hn::BitCast(dt, b)));
}

/// Fetches what kCount rows, 32 below these, hold of dimensions i on: a quarter of them with each 128 bits of a line.
template <int64_t kCount, class T>
HWY_INLINE void PrefetchNext(const T* rows, int64_t stride, int64_t i) {
  constexpr int64_t kLine = 64 / sizeof(T);
  constexpr int64_t kQuarter = kCount / 4;
  const int64_t first = kPanelWidth + i % kLine / (kLine / 4) * kQuarter;
  const uintptr_t line = address_at(rows, first * stride + i / kLine * kLine);
  for (uintptr_t r = 0; r < kQuarter; ++r) {
    __builtin_prefetch(reinterpret_cast<const char*>(line + r * static_cast<uintptr_t>(stride) * sizeof(T)), 0, 2);
  }
}

/// One dimension of an f32 panel, or two of pairs of bf16.
HWY_INLINE void StoreKeys(hn::Vec<PackTag> v, float* out, const float* /*type*/) { hn::StoreU(v, PackTag(), out); }
[[maybe_unused]] HWY_INLINE void StoreKeys(TileVec pairs, float* out, const bf16* /*type*/) {
  const TileTag d;
  hn::StoreU(EvenOf(d, pairs), d, out);
  hn::StoreU(OddOf(d, pairs), d, out + kPanelWidth);
}

/// 32 rows of `dim` elements (a multiple of what 128 bits hold) into a panel. Lanes of 32 bits: numbers, or pairs of bf16.
template <class T>
HWY_INLINE void Transpose(const T* rows, int64_t stride, int64_t dim, float* panel, bool prefetch) {
  const PackTag d;
  constexpr int64_t kRows = static_cast<int64_t>(hn::MaxLanes(PackTag()));
  constexpr int64_t kLane = sizeof(float) / sizeof(T);
  for (int64_t j = 0; j < kPanelWidth; j += kRows) {
    const T* p = rows + j * stride;
    float* out = panel + j;
    for (int64_t i = 0; i < dim; i += 4 * kLane, p += 4 * kLane, out += 4 * kLane * kPanelWidth) {
      if (prefetch) PrefetchNext<kRows>(rows + j * stride, stride, i);
      const auto r0 = LoadBlocks<4>(d, p, stride);
      const auto r1 = LoadBlocks<4>(d, p + stride, stride);
      const auto r2 = LoadBlocks<4>(d, p + 2 * stride, stride);
      const auto r3 = LoadBlocks<4>(d, p + 3 * stride, stride);
      const auto t0 = Lower<uint32_t>(d, r0, r1);
      const auto t1 = Lower<uint32_t>(d, r2, r3);
      const auto t2 = Upper<uint32_t>(d, r0, r1);
      const auto t3 = Upper<uint32_t>(d, r2, r3);
      StoreKeys(Lower<uint64_t>(d, t0, t1), out, p);
      StoreKeys(Upper<uint64_t>(d, t0, t1), out + kLane * kPanelWidth, p);
      StoreKeys(Lower<uint64_t>(d, t2, t3), out + 2 * kLane * kPanelWidth, p);
      StoreKeys(Upper<uint64_t>(d, t2, t3), out + 3 * kLane * kPanelWidth, p);
    }
  }
}

#if !HWY_HAVE_SCALABLE
/// The same for f16, whose conversion needs them side by side.
HWY_INLINE void Transpose(const f16* rows, int64_t stride, int64_t dim, float* panel, bool prefetch) {
  const PackTag d;
  const hn::Repartition<uint16_t, PackTag> d16;
  const hn::Half<decltype(d16)> half;
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < dim; i += 8) {
    if (prefetch) PrefetchNext<kPanelWidth>(rows, stride, i);
    for (int64_t j = 0; j < kPanelWidth; j += 2 * n) {
      const f16* p = rows + j * stride + i;
      const auto row = [&](int64_t k) SIMDATTN_LAMBDA { return LoadBlocks<8>(d16, p + k * stride, stride); };
      const auto r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3), r4 = row(4), r5 = row(5), r6 = row(6), r7 = row(7);
      const auto store = [&](int64_t k, auto v) SIMDATTN_LAMBDA {
        float* out = panel + (i + k) * kPanelWidth + j;
        hn::StoreU(F32FromF16(d, hn::LowerHalf(half, v)), d, out);
        hn::StoreU(F32FromF16(d, hn::UpperHalf(half, v)), d, out + n);
      };
      // Dimensions k to k + 3 of the eight; the halves of the first interleaving hold four each.
      const auto four = [&](int64_t k, auto a, auto b, auto c, auto e) SIMDATTN_LAMBDA {
        const auto t0 = Lower<uint32_t>(d16, a, b);
        const auto t1 = Lower<uint32_t>(d16, c, e);
        const auto t2 = Upper<uint32_t>(d16, a, b);
        const auto t3 = Upper<uint32_t>(d16, c, e);
        store(k, Lower<uint64_t>(d16, t0, t1));
        store(k + 1, Upper<uint64_t>(d16, t0, t1));
        store(k + 2, Lower<uint64_t>(d16, t2, t3));
        store(k + 3, Upper<uint64_t>(d16, t2, t3));
      };
      four(0, Lower<uint16_t>(d16, r0, r1), Lower<uint16_t>(d16, r2, r3), Lower<uint16_t>(d16, r4, r5),
           Lower<uint16_t>(d16, r6, r7));
      four(4, Upper<uint16_t>(d16, r0, r1), Upper<uint16_t>(d16, r2, r3), Upper<uint16_t>(d16, r4, r5),
           Upper<uint16_t>(d16, r6, r7));
    }
  }
}
#endif

/// n elements to f32, whole vectors.
template <class T>
HWY_INLINE void WidenWhole(const T* in, int64_t n, float* out) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < n; i += lanes) hn::StoreU(LoadWide(d, in + i), d, out + i);
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
void Keys(const void* keys_in, int64_t stride_bytes, int64_t keys, int64_t dim, float* panel, bool stream) {
  const T* rows = static_cast<const T*>(keys_in);
  const int64_t token_stride = stride_bytes / static_cast<int64_t>(sizeof(T));
  int64_t done = 0;
  if constexpr (std::is_same_v<T, float> || !HWY_HAVE_SCALABLE) {
    if (keys == kPanelWidth) {
      done = dim - dim % static_cast<int64_t>(16 / sizeof(T));
      Transpose(rows, token_stride, done, panel, stream);
    }
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
    for (int64_t j = 0; j < keys; ++j) WidenRow(rows + j * token_stride + done, count, copy + j * padded, padded);
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
void Values(const void* values, int64_t stride_bytes, int64_t keys, int64_t dim, float* out) {
  const T* rows = static_cast<const T*>(values);
  const int64_t token_stride = stride_bytes / static_cast<int64_t>(sizeof(T));
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
    WidenWhole(in, dim * kPanelWidth, out);
  }
}

}  // namespace

void PackKeysF32(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel, bool stream) {
  Keys<float>(rows, token_stride, keys, dim, panel, stream);
}
void PackKeysBF16(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel, bool stream) {
  Keys<bf16>(rows, token_stride, keys, dim, panel, stream);
}
void PackKeysF16(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel, bool stream) {
  Keys<f16>(rows, token_stride, keys, dim, panel, stream);
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
