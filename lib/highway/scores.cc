// Scores of query rows against row-major keys, per Highway target.
//
// Keys are walked in memory order, 16 at a time: a rolled loop leaves the partial sums of 16 keys in a scratch of the
// first-level cache, one transposed reduction folds them.
#include <cstddef>
#include <cstdint>

#include "lib/dtypes.h"
#include "lib/ukernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/highway/scores.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "lib/highway/loads-inl.h"
#include "lib/highway/slots-inl.h"

// 512-bit shuffles fold all 16 partial sums; else they are folded to 4 before they are stored.
#undef SIMDATTN_FOLD_512
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define SIMDATTN_FOLD_512 1
#else
#define SIMDATTN_FOLD_512 0
#endif

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {
namespace {

// Sixteen partial sums are 1, 2 or 4 vectors.
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

constexpr size_t kPartials = 16;
/// Keys per reduction.
constexpr size_t kKeys = 16;
/// Partial sums per key in the scratch.
constexpr size_t kKept = SIMDATTN_FOLD_512 ? 16 : 4;

HWY_INLINE void StoreScores(V sums, V scale, float* out, size_t n) {
  const D d;
  const V s = Canonical(d, hn::Mul(sums, scale));
  if (n >= hn::Lanes(d)) {
    hn::StoreU(s, d, out);
  } else {
    hn::StoreN(s, d, out, n);
  }
}

#if SIMDATTN_FOLD_512

HWY_INLINE void Keep(V v0, V /*v1*/, V /*v2*/, V /*v3*/, float* kept) { hn::StoreU(v0, D(), kept); }

/// a's and b's halves: [a a] + [b b] in 8 partial sums each.
HWY_INLINE V Fold8Of(V a, V b) {
  const __m512 low = _mm512_shuffle_f32x4(a.raw, b.raw, _MM_SHUFFLE(1, 0, 1, 0));
  const __m512 high = _mm512_shuffle_f32x4(a.raw, b.raw, _MM_SHUFFLE(3, 2, 3, 2));
  return V{_mm512_add_ps(low, high)};
}
/// From [i | i+4] and [i+8 | i+12] in 8 partial sums each to one quarter for each key.
HWY_INLINE V Fold4Of(V a, V b) {
  const __m512 even = _mm512_shuffle_f32x4(a.raw, b.raw, _MM_SHUFFLE(2, 0, 2, 0));
  const __m512 odd = _mm512_shuffle_f32x4(a.raw, b.raw, _MM_SHUFFLE(3, 1, 3, 1));
  return V{_mm512_add_ps(even, odd)};
}
/// Quarters of [0 1 2 3] of a and b become [a0+a2 b0+b2 a1+a3 b1+b3].
HWY_INLINE V Fold2Of(V a, V b) {
  return V{_mm512_add_ps(_mm512_unpacklo_ps(a.raw, b.raw), _mm512_unpackhi_ps(a.raw, b.raw))};
}

/// Folds 16 partial sums of each of 16 keys.
HWY_INLINE void Reduce(const float* HWY_RESTRICT kept, V scale, float* out, size_t keys) {
  const D d;
  const auto quarter = [&](size_t i) HWY_ATTR {
    const float* p = kept + i * kKept;
    const V low = Fold8Of(hn::LoadU(d, p), hn::LoadU(d, p + 4 * kKept));
    const V high = Fold8Of(hn::LoadU(d, p + 8 * kKept), hn::LoadU(d, p + 12 * kKept));
    return Fold4Of(low, high);
  };
  const V ab = Fold2Of(quarter(0), quarter(1));
  const V cd = Fold2Of(quarter(2), quarter(3));
  const __m512d x = _mm512_castps_pd(ab.raw);
  const __m512d y = _mm512_castps_pd(cd.raw);
  const __m512 low = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
  const __m512 high = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
  StoreScores(V{_mm512_add_ps(low, high)}, scale, out, keys);
}

#else

/// Folds to 4 partial sums and stores them.
HWY_INLINE void Keep(V v0, [[maybe_unused]] V v1, [[maybe_unused]] V v2, [[maybe_unused]] V v3, float* kept) {
  const D d;
#if HWY_HAVE_SCALABLE
  switch (hn::Lanes(d)) {
    case 16:
      v0 = hn::Add(v0, hn::SlideDownLanes(d, v0, 8));
      v0 = hn::Add(v0, hn::SlideDownLanes(d, v0, 4));
      break;
    case 8:
      v0 = hn::Add(v0, v1);
      v0 = hn::Add(v0, hn::SlideDownLanes(d, v0, 4));
      break;
    default: v0 = hn::Add(hn::Add(v0, v2), hn::Add(v1, v3)); break;
  }
  hn::StoreN(v0, d, kept, 4);
#elif HWY_MAX_BYTES == 32
  const hn::Half<D> dh;
  const V v = hn::Add(v0, v1);
  hn::StoreU(hn::Add(hn::LowerHalf(dh, v), hn::UpperHalf(dh, v)), dh, kept);
#else
  hn::StoreU(hn::Add(hn::Add(v0, v2), hn::Add(v1, v3)), d, kept);
#endif
}

HWY_INLINE void Reduce(const float* HWY_RESTRICT kept, V scale, float* out, size_t keys) {
  const D d;
  const size_t step = hn::Lanes(d);
  for (size_t i = 0; i < keys; i += step) {
    V l0, l1, l2, l3;
    hn::LoadInterleaved4(d, kept + 4 * i, l0, l1, l2, l3);
    StoreScores(hn::Add(hn::Add(l0, l2), hn::Add(l1, l3)), scale, out + i, keys - i);
  }
}

#endif  // SIMDATTN_FOLD_512

/// fma in the lanes that are inside the row.
HWY_INLINE V MulAddFirst(hn::Mask<D> inside, V a, V b, V c) { return hn::IfThenElse(inside, hn::MulAdd(a, b, c), c); }

/// One key against kQ queries.
template <class T, int kV, int kQ>
HWY_INLINE void OneKey(const float* q, size_t ldq, const T* k, size_t dim, float* kept, size_t kept_stride) {
  static_assert(kQ == 1 || kQ == 2 || kQ == 4);
  const D d;
  const size_t step = hn::Lanes(d);
  const float* q1 = q + (kQ > 1 ? ldq : 0);
  const float* q2 = q + (kQ > 2 ? 2 * ldq : 0);
  const float* q3 = q + (kQ > 2 ? 3 * ldq : 0);
  const V zero = hn::Zero(d);
  V a00 = zero, a01 = zero, a02 = zero, a03 = zero;
  V a10 = zero, a11 = zero, a12 = zero, a13 = zero;
  V a20 = zero, a21 = zero, a22 = zero, a23 = zero;
  V a30 = zero, a31 = zero, a32 = zero, a33 = zero;
  size_t i = 0;
  const auto part = [&](size_t at, V& s0, V& s1, V& s2, V& s3) HWY_ATTR {
    const V x = LoadWide(d, k + at);
    s0 = hn::MulAdd(hn::LoadU(d, q + at), x, s0);
    if constexpr (kQ > 1) s1 = hn::MulAdd(hn::LoadU(d, q1 + at), x, s1);
    if constexpr (kQ > 2) {
      s2 = hn::MulAdd(hn::LoadU(d, q2 + at), x, s2);
      s3 = hn::MulAdd(hn::LoadU(d, q3 + at), x, s3);
    }
  };
  for (; i + kPartials <= dim; i += kPartials) {
    part(i, a00, a10, a20, a30);
    if constexpr (kV > 1) part(i + step, a01, a11, a21, a31);
    if constexpr (kV > 2) {
      part(i + 2 * step, a02, a12, a22, a32);
      part(i + 3 * step, a03, a13, a23, a33);
    }
  }
  if (i < dim) {
    const auto last = [&](size_t at, V& s0, V& s1, V& s2, V& s3) HWY_ATTR {
      if (at >= dim) return;
      const size_t n = dim - at;
      const hn::Mask<D> inside = hn::FirstN(d, n);
      const V x = LoadWideN(d, k + at, n);
      s0 = MulAddFirst(inside, hn::LoadN(d, q + at, n), x, s0);
      if constexpr (kQ > 1) s1 = MulAddFirst(inside, hn::LoadN(d, q1 + at, n), x, s1);
      if constexpr (kQ > 2) {
        s2 = MulAddFirst(inside, hn::LoadN(d, q2 + at, n), x, s2);
        s3 = MulAddFirst(inside, hn::LoadN(d, q3 + at, n), x, s3);
      }
    };
    last(i, a00, a10, a20, a30);
    if constexpr (kV > 1) last(i + step, a01, a11, a21, a31);
    if constexpr (kV > 2) {
      last(i + 2 * step, a02, a12, a22, a32);
      last(i + 3 * step, a03, a13, a23, a33);
    }
  }
  Keep(a00, a01, a02, a03, kept);
  if constexpr (kQ > 1) Keep(a10, a11, a12, a13, kept + kept_stride);
  if constexpr (kQ > 2) {
    Keep(a20, a21, a22, a23, kept + 2 * kept_stride);
    Keep(a30, a31, a32, a33, kept + 3 * kept_stride);
  }
}

/// Up to 16 keys against kQ queries.
template <class T, int kV, int kQ>
HWY_INLINE void Group(const ScoreRows& a, const float* q, const T* k, float* s, size_t keys, V scale) {
  HWY_ALIGN float kept[kQ * kKeys * kKept];
  constexpr size_t kStride = kKeys * kKept;
  const size_t ldq = static_cast<size_t>(a.ldq);
  const size_t dim = static_cast<size_t>(a.dim);
  for (size_t j = 0; j < keys; ++j) {
    OneKey<T, kV, kQ>(q, ldq, k + static_cast<int64_t>(j) * a.ldk, dim, kept + j * kKept, kStride);
  }
  for (int i = 0; i < kQ; ++i) Reduce(kept + static_cast<size_t>(i) * kStride, scale, s + i * a.lds, keys);
}

template <class T, int kV>
HWY_INLINE void AllKeys(const ScoreRows& a) {
  const V scale = hn::Set(D(), a.scale);
  const T* k = static_cast<const T*>(a.k);
  for (int64_t j = 0; j < a.n_k; j += static_cast<int64_t>(kKeys)) {
    const size_t keys = static_cast<size_t>(HWY_MIN(static_cast<int64_t>(kKeys), a.n_k - j));
    const T* rows = k + j * a.ldk;
    int64_t i = 0;
    for (; i + 4 <= a.n_q; i += 4) Group<T, kV, 4>(a, a.q + i * a.ldq, rows, a.s + i * a.lds + j, keys, scale);
    if (i + 2 <= a.n_q) {
      Group<T, kV, 2>(a, a.q + i * a.ldq, rows, a.s + i * a.lds + j, keys, scale);
      i += 2;
    }
    if (i < a.n_q) Group<T, kV, 1>(a, a.q + i * a.ldq, rows, a.s + i * a.lds + j, keys, scale);
  }
}

template <class T>
HWY_INLINE void Scores(const ScoreRows& a) {
#if HWY_HAVE_SCALABLE
  switch (hn::Lanes(D())) {
    case 16: return AllKeys<T, 1>(a);
    case 8: return AllKeys<T, 2>(a);
    default: return AllKeys<T, 4>(a);
  }
#else
  AllKeys<T, static_cast<int>(kPartials / hn::MaxLanes(D()))>(a);
#endif
}

}  // namespace

void ScoreRowsF32(const ScoreRows& a) { Scores<float>(a); }
void ScoreRowsBF16(const ScoreRows& a) { Scores<bf16>(a); }
void ScoreRowsF16(const ScoreRows& a) { Scores<f16>(a); }

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();
