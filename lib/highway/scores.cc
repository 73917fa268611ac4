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
#include "lib/highway/register_tile-inl.h"
#include "lib/highway/slots-inl.h"

// On x86 with wide vectors the partial sums of a key are stored as two halves, in an array of lower and one of upper
// halves: a store that extracts takes no shuffle port, and the first fold becomes an addition of whole vectors. Else they
// are folded to 4 before the store.
#undef SIMDATTN_STORE_HALVES
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
#define SIMDATTN_STORE_HALVES 1
#else
#define SIMDATTN_STORE_HALVES 0
#endif

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {
namespace {

// Sixteen partial sums are 1, 2 or 4 vectors.
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

constexpr size_t kPartials = 16;
/// Keys per reduction: a multiple of the register tile's keys (4, 3 or 1) and of the lanes.
constexpr size_t kKeys = HWY_MAX_BYTES == 32 ? 24 : 16;
/// Partial sums per key and array of the scratch.
constexpr size_t kKept = SIMDATTN_STORE_HALVES ? HWY_MAX_BYTES / 8 : 4;
/// Floats of the scratch per query.
constexpr size_t kScratch = kKeys * kKept * (SIMDATTN_STORE_HALVES ? 2 : 1);

HWY_INLINE void StoreScores(V sums, V scale, float* out, size_t n) {
  const D d;
  const V s = Canonical(d, hn::Mul(sums, scale));
  if (n >= hn::Lanes(d)) {
    hn::StoreU(s, d, out);
  } else {
    hn::StoreN(s, d, out, n);
  }
}

#if SIMDATTN_STORE_HALVES && HWY_MAX_BYTES == 64

/// Stores the partial sums 0 to 7, and behind those of all keys 8 to 15.
HWY_INLINE void Keep(V v0, V /*v1*/, V /*v2*/, V /*v3*/, float* kept) {
  _mm256_storeu_ps(kept, _mm512_castps512_ps256(v0.raw));
  _mm256_storeu_ps(kept + kKeys * kKept, _mm512_extractf32x8_ps(v0.raw, 1));
}

/// [a b], [c d] in 8 partial sums each to [a b c d] in 4.
HWY_INLINE __m512 Fold4Of(__m512 ab, __m512 cd) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, _MM_SHUFFLE(2, 0, 2, 0)),
                       _mm512_shuffle_f32x4(ab, cd, _MM_SHUFFLE(3, 1, 3, 1)));
}
/// In each quarter: the sums 0 1 2 3 of a and b become a0+a2 b0+b2 a1+a3 b1+b3.
HWY_INLINE __m512 Fold2Of(__m512 a, __m512 b) {
  return _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
}

/// Folds 16 partial sums of each of 16 keys.
HWY_INLINE void Reduce(const float* HWY_RESTRICT kept, V scale, float* out, size_t keys) {
  const auto pair = [&](size_t i) HWY_ATTR {
    return _mm512_add_ps(_mm512_loadu_ps(kept + 2 * i * kKept), _mm512_loadu_ps(kept + (kKeys + 2 * i) * kKept));
  };
  const __m512 k0 = Fold4Of(pair(0), pair(1));
  const __m512 k4 = Fold4Of(pair(2), pair(3));
  const __m512 k8 = Fold4Of(pair(4), pair(5));
  const __m512 k12 = Fold4Of(pair(6), pair(7));
  const __m512d x = _mm512_castps_pd(Fold2Of(k0, k4));
  const __m512d y = _mm512_castps_pd(Fold2Of(k8, k12));
  const __m512 sums =
      _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  // Lane 4 i + j holds key 4 j + i.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  StoreScores(V{_mm512_permutexvar_ps(order, sums)}, scale, out, keys);
}

#elif SIMDATTN_STORE_HALVES

/// Folds to 8 partial sums, stores 0 to 3, and behind those of all keys 4 to 7.
HWY_INLINE void Keep(V v0, V v1, V /*v2*/, V /*v3*/, float* kept) {
  const __m256 v = _mm256_add_ps(v0.raw, v1.raw);
  _mm_storeu_ps(kept, _mm256_castps256_ps128(v));
  _mm_storeu_ps(kept + kKeys * kKept, _mm256_extractf128_ps(v, 1));
}

/// Folds 8 partial sums of each of `keys` keys.
HWY_INLINE void Reduce(const float* HWY_RESTRICT kept, V scale, float* out, size_t keys) {
  // In each half: the sums 0 1 2 3 of a and b become a0+a2 b0+b2 a1+a3 b1+b3.
  const auto fold2 = [&](__m256 a, __m256 b)
                         HWY_ATTR { return _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)); };
  for (size_t i = 0; i < keys; i += 8) {
    const auto pair = [&](size_t j) HWY_ATTR {
      const float* p = kept + (i + 2 * j) * kKept;
      return _mm256_add_ps(_mm256_loadu_ps(p), _mm256_loadu_ps(p + kKeys * kKept));
    };
    const __m256d x = _mm256_castps_pd(fold2(pair(0), pair(1)));
    const __m256d y = _mm256_castps_pd(fold2(pair(2), pair(3)));
    const __m256 sums =
        _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
    // Even keys, then odd ones.
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    StoreScores(V{_mm256_permutevar8x32_ps(sums, order)}, scale, out + i, keys - i);
  }
}

#else

/// Folds to 4 partial sums and stores them.
HWY_INLINE void Keep(V v0, [[maybe_unused]] V v1, [[maybe_unused]] V v2, [[maybe_unused]] V v3, float* kept) {
  const D d;
#if HWY_TARGET_IS_SVE
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

#endif  // SIMDATTN_STORE_HALVES

/// A vector that stays in its register: gcc would fold the load into each of the instructions that use it.
HWY_MAYBE_UNUSED HWY_INLINE V InRegister(V v) {
#if HWY_ARCH_X86
  asm("" : "+v"(v.raw));
#endif
  return v;
}

/// fma in the lanes that are inside the row.
HWY_INLINE V MulAddFirst(hn::Mask<D> inside, V a, V b, V c) { return hn::IfThenElse(inside, hn::MulAdd(a, b, c), c); }

/// One key against kQ queries.
template <class T, int kV, int kQ>
HWY_INLINE void OneKey(const float* q, int64_t ldq, const T* k, size_t dim, float* kept) {
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
  if constexpr (kQ > 1) Keep(a10, a11, a12, a13, kept + kScratch);
  if constexpr (kQ > 2) {
    Keep(a20, a21, a22, a23, kept + 2 * kScratch);
    Keep(a30, a31, a32, a33, kept + 3 * kScratch);
  }
}

/// Rows of kVectors whole vectors against one query; up to 8 vectors of the query stay in registers.
template <class T, int kV, size_t kVectors>
HWY_INLINE void WholeRows(const float* q, const T* k, int64_t ldk, size_t keys, float* kept) {
  static_assert(kVectors >= 4 && kVectors % 4 == 0);
  const D d;
  const size_t step = hn::Lanes(d);
  const V zero = hn::Zero(d);
  const auto query = [&](size_t i) HWY_ATTR { return i < kVectors ? hn::LoadU(d, q + i * step) : zero; };
  const V q0 = query(0), q1 = query(1), q2 = query(2), q3 = query(3);
  const V q4 = query(4), q5 = query(5), q6 = query(6), q7 = query(7);
  for (size_t j = 0; j < keys; ++j) {
    V a0 = zero, a1 = zero, a2 = zero, a3 = zero;
    // Four vectors add to partial sums (0 0 0 0), (0 1 0 1) or (0 1 2 3).
    V& b1 = kV == 1 ? a0 : a1;
    V& b2 = kV == 4 ? a2 : a0;
    V& b3 = kV == 4 ? a3 : b1;
    a0 = hn::MulAdd(q0, LoadWide(d, k), a0);
    b1 = hn::MulAdd(q1, LoadWide(d, k + step), b1);
    b2 = hn::MulAdd(q2, LoadWide(d, k + 2 * step), b2);
    b3 = hn::MulAdd(q3, LoadWide(d, k + 3 * step), b3);
    if constexpr (kVectors > 4) {
      a0 = hn::MulAdd(q4, LoadWide(d, k + 4 * step), a0);
      b1 = hn::MulAdd(q5, LoadWide(d, k + 5 * step), b1);
      b2 = hn::MulAdd(q6, LoadWide(d, k + 6 * step), b2);
      b3 = hn::MulAdd(q7, LoadWide(d, k + 7 * step), b3);
    }
    for (size_t i = 8; i < kVectors; i += 4) {
      const float* p = q + i * step;
      const T* r = k + i * step;
      a0 = hn::MulAdd(hn::LoadU(d, p), LoadWide(d, r), a0);
      b1 = hn::MulAdd(hn::LoadU(d, p + step), LoadWide(d, r + step), b1);
      b2 = hn::MulAdd(hn::LoadU(d, p + 2 * step), LoadWide(d, r + 2 * step), b2);
      b3 = hn::MulAdd(hn::LoadU(d, p + 3 * step), LoadWide(d, r + 3 * step), b3);
    }
    Keep(a0, a1, a2, a3, kept);
    kept += kKept;
    k += ldk;
  }
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3

/// Partial sums kDistance apart are added: in lanes whose number has that bit those of y, in the others those of x.
template <int kDistance>
HWY_INLINE V Fold(V x, V y) {
  __m512 own, partner;
  if constexpr (kDistance == 8) {
    own = _mm512_mask_blend_ps(0xFF00, x.raw, y.raw);
    partner = _mm512_shuffle_f32x4(x.raw, y.raw, _MM_SHUFFLE(1, 0, 3, 2));
  } else if constexpr (kDistance == 4) {
    own = _mm512_mask_blend_ps(0xF0F0, x.raw, y.raw);
    const __m512i order = _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
    partner = _mm512_permutex2var_ps(x.raw, order, y.raw);
  } else if constexpr (kDistance == 2) {
    own = _mm512_mask_blend_ps(0xCCCC, x.raw, y.raw);
    partner = _mm512_shuffle_ps(x.raw, y.raw, _MM_SHUFFLE(1, 0, 3, 2));
  } else {
    own = _mm512_mask_blend_ps(0xAAAA, x.raw, y.raw);
    const __m512i order = _mm512_setr_epi32(1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30);
    partner = _mm512_permutex2var_ps(x.raw, order, y.raw);
  }
  return V{_mm512_add_ps(own, partner)};
}

/// The sums of kCount sets of partial sums that begin at kFirst and are kStep apart, kCount of them side by side.
template <size_t kFirst, size_t kStep>
HWY_INLINE V FoldAll(const Accumulators& acc) {
  if constexpr (kStep == kPartials) {
    return Get<kFirst>(acc);
  } else {
    return Fold<static_cast<int>(kStep)>(FoldAll<kFirst, 2 * kStep>(acc), FoldAll<kFirst + kStep, 2 * kStep>(acc));
  }
}

/// 16 / kQ keys against kQ queries: 16 accumulators, folded in registers. (Through a scratch it takes fewer operations, but
/// every store costs about as much as a multiply-add: 59 % of their peak in L1 instead of 66 %.)
template <class T, size_t kQ>
HWY_INLINE void ScoreBlock(const float* q, int64_t ldq, const T* k, int64_t ldk, size_t dim, V scale, float* s,
                           int64_t lds) {
  constexpr size_t kCount = kPartials / kQ;
  const D d;
  WithRegisters(d, [&](const Accumulators& acc, const Columns& x) HWY_ATTR {
    size_t i = 0;
    for (; i + kPartials <= dim; i += kPartials) {
      ForEach<kCount>([&](auto c) HWY_ATTR {
        const T* row = k + static_cast<int64_t>(c) * ldk + i;
        Get<c>(x) = LoadWide(d, row);
      });
      ForEach<kQ>([&](auto r) HWY_ATTR {
        const V y = hn::LoadU(d, q + static_cast<int64_t>(r) * ldq + i);
        ForEach<kCount>([&](auto c) HWY_ATTR {
          V& sum = Get<r * kCount + c>(acc);
          sum = hn::MulAdd(y, Get<c>(x), sum);
        });
      });
    }
    if (i < dim) {
      const size_t n = dim - i;
      const hn::Mask<D> inside = hn::FirstN(d, n);
      ForEach<kCount>([&](auto c) HWY_ATTR { Get<c>(x) = LoadWideN(d, k + static_cast<int64_t>(c) * ldk + i, n); });
      ForEach<kQ>([&](auto r) HWY_ATTR {
        const V y = hn::LoadN(d, q + static_cast<int64_t>(r) * ldq + i, n);
        ForEach<kCount>([&](auto c) HWY_ATTR {
          V& sum = Get<r * kCount + c>(acc);
          sum = MulAddFirst(inside, y, Get<c>(x), sum);
        });
      });
    }
    const V sums = Canonical(d, hn::Mul(FoldAll<0, 1>(acc), scale));
    if constexpr (kQ == 4) {
      _mm_storeu_ps(s, _mm512_castps512_ps128(sums.raw));
      _mm_storeu_ps(s + lds, _mm512_extractf32x4_ps(sums.raw, 1));
      _mm_storeu_ps(s + 2 * lds, _mm512_extractf32x4_ps(sums.raw, 2));
      _mm_storeu_ps(s + 3 * lds, _mm512_extractf32x4_ps(sums.raw, 3));
    } else {
      _mm256_storeu_ps(s, _mm512_castps512_ps256(sums.raw));
      _mm256_storeu_ps(s + lds, _mm512_extractf32x8_ps(sums.raw, 1));
    }
  });
}

#endif  // x86 with 512-bit vectors

/// Three keys against two queries, where two vectors hold the 16 partial sums: 12 accumulators of 16 registers.
template <class T>
HWY_INLINE void ThreeKeys(const float* q0, int64_t ldq, const T* k0, int64_t ldk, size_t dim, float* kept) {
  const D d;
  const size_t step = hn::Lanes(d);
  const float* q1 = q0 + ldq;
  const T* k1 = k0 + ldk;
  const T* k2 = k1 + ldk;
  const V zero = hn::Zero(d);
  V a00 = zero, a01 = zero, a02 = zero, a10 = zero, a11 = zero, a12 = zero;
  V b00 = zero, b01 = zero, b02 = zero, b10 = zero, b11 = zero, b12 = zero;
  const auto part = [&](size_t at, V& s00, V& s01, V& s02, V& s10, V& s11, V& s12) HWY_ATTR {
    const V y0 = hn::LoadU(d, q0 + at);
    const V y1 = hn::LoadU(d, q1 + at);
    const V x0 = InRegister(LoadWide(d, k0 + at));
    s00 = hn::MulAdd(y0, x0, s00);
    s10 = hn::MulAdd(y1, x0, s10);
    const V x1 = InRegister(LoadWide(d, k1 + at));
    s01 = hn::MulAdd(y0, x1, s01);
    s11 = hn::MulAdd(y1, x1, s11);
    const V x2 = InRegister(LoadWide(d, k2 + at));
    s02 = hn::MulAdd(y0, x2, s02);
    s12 = hn::MulAdd(y1, x2, s12);
  };
  size_t i = 0;
  for (; i + 2 * kPartials <= dim; i += 2 * kPartials) {
    part(i, a00, a01, a02, a10, a11, a12);
    part(i + step, b00, b01, b02, b10, b11, b12);
    part(i + kPartials, a00, a01, a02, a10, a11, a12);
    part(i + kPartials + step, b00, b01, b02, b10, b11, b12);
  }
  for (; i + kPartials <= dim; i += kPartials) {
    part(i, a00, a01, a02, a10, a11, a12);
    part(i + step, b00, b01, b02, b10, b11, b12);
  }
  if (i < dim) {
    const auto last = [&](size_t at, V& s00, V& s01, V& s02, V& s10, V& s11, V& s12) HWY_ATTR {
      if (at >= dim) return;
      const size_t n = dim - at;
      const hn::Mask<D> inside = hn::FirstN(d, n);
      const V y0 = hn::LoadN(d, q0 + at, n);
      const V y1 = hn::LoadN(d, q1 + at, n);
      const V x0 = LoadWideN(d, k0 + at, n);
      const V x1 = LoadWideN(d, k1 + at, n);
      const V x2 = LoadWideN(d, k2 + at, n);
      s00 = MulAddFirst(inside, y0, x0, s00);
      s01 = MulAddFirst(inside, y0, x1, s01);
      s02 = MulAddFirst(inside, y0, x2, s02);
      s10 = MulAddFirst(inside, y1, x0, s10);
      s11 = MulAddFirst(inside, y1, x1, s11);
      s12 = MulAddFirst(inside, y1, x2, s12);
    };
    last(i, a00, a01, a02, a10, a11, a12);
    last(i + step, b00, b01, b02, b10, b11, b12);
  }
  Keep(a00, b00, zero, zero, kept);
  Keep(a01, b01, zero, zero, kept + kKept);
  Keep(a02, b02, zero, zero, kept + 2 * kKept);
  kept += kScratch;
  Keep(a10, b10, zero, zero, kept);
  Keep(a11, b11, zero, zero, kept + kKept);
  Keep(a12, b12, zero, zero, kept + 2 * kKept);
}

/// The partial sums of up to kKeys keys against kQ queries.
template <class T, int kV, int kQ>
HWY_INLINE void Group(const float* q, int64_t ldq, const T* k, int64_t ldk, size_t dim, size_t keys, float* kept) {
  const auto key = [&](size_t j) { return k + static_cast<int64_t>(j) * ldk; };
  size_t j = 0;
  if constexpr (kQ == 1) {
    if (dim == 128) return WholeRows<T, kV, 8 * kV>(q, k, ldk, keys, kept);
    if (dim == 64) return WholeRows<T, kV, 4 * kV>(q, k, ldk, keys, kept);
  } else if constexpr (kV == 2) {
    for (; j + 3 <= keys; j += 3) {
      ThreeKeys(q, ldq, key(j), ldk, dim, kept + j * kKept);
      if constexpr (kQ == 4) ThreeKeys(q + 2 * ldq, ldq, key(j), ldk, dim, kept + j * kKept + 2 * kScratch);
    }
  }
  for (; j < keys; ++j) OneKey<T, kV, kQ>(q, ldq, key(j), dim, kept + j * kKept);
}

/// Keys [first, end) against kQ queries. Each group is folded when the next one has been computed: a load of what was stored in
/// narrower pieces just before waits until the stores are done.
template <class T, int kV, int kQ>
HWY_INLINE void Keys(const ScoreRows& a, int64_t i, int64_t first, int64_t end) {
  constexpr int64_t kStep = static_cast<int64_t>(kKeys);
  constexpr size_t kGroup = static_cast<size_t>(kQ) * kScratch;
  HWY_ALIGN float kept[2 * kGroup];
  const V scale = hn::Set(D(), a.scale);
  const T* k = static_cast<const T*>(a.k);
  float* s = a.s + i * a.lds;
  const float* q = a.q + i * a.ldq;
  const int64_t ldq = a.ldq;
  const size_t dim = static_cast<size_t>(a.dim);
  float* now = kept;
  float* before = kept + kGroup;
  const auto reduce = [&](const float* from, int64_t j, size_t keys) HWY_ATTR {
    for (int r = 0; r < kQ; ++r) Reduce(from + static_cast<size_t>(r) * kScratch, scale, s + r * a.lds + j, keys);
  };
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if constexpr (kQ > 1) {
    constexpr int64_t kBlock = static_cast<int64_t>(kPartials) / kQ;
    for (; first + kBlock <= end; first += kBlock) {
      ScoreBlock<T, kQ>(q, ldq, k + first * a.ldk, a.ldk, dim, scale, s + first, a.lds);
    }
  }
#endif
  int64_t j = first;
  size_t keys = 0;
  for (; j < end; j += kStep) {
    keys = static_cast<size_t>(HWY_MIN(kStep, end - j));
    Group<T, kV, kQ>(q, ldq, k + j * a.ldk, a.ldk, dim, keys, now);
    if (j != first) reduce(before, j - kStep, kKeys);
    float* const swap = now;
    now = before;
    before = swap;
  }
  if (j != first) reduce(before, j - kStep, keys);
}

template <class T, int kV>
HWY_INLINE void AllQueries(const ScoreRows& a) {
  // More than four queries take the keys in blocks that stay in L1 for the next four.
  constexpr int64_t kBlock = 48;
  static_assert(kBlock % static_cast<int64_t>(kKeys) == 0);
  const int64_t block = a.n_q > 4 ? kBlock : a.n_k;
  for (int64_t j = 0; j < a.n_k; j += block) {
    const int64_t end = HWY_MIN(j + block, a.n_k);
    int64_t i = 0;
    for (; i + 4 <= a.n_q; i += 4) Keys<T, kV, 4>(a, i, j, end);
    if (i + 2 <= a.n_q) {
      Keys<T, kV, 2>(a, i, j, end);
      i += 2;
    }
    if (i < a.n_q) Keys<T, kV, 1>(a, i, j, end);
  }
}

template <class T>
HWY_INLINE void Scores(const ScoreRows& a) {
#if HWY_HAVE_SCALABLE
  switch (hn::Lanes(D())) {
    case 16: return AllQueries<T, 1>(a);
    case 8: return AllQueries<T, 2>(a);
    default: return AllQueries<T, 4>(a);
  }
#else
  AllQueries<T, static_cast<int>(kPartials / hn::MaxLanes(D()))>(a);
#endif
}

}  // namespace

void ScoreRowsF32(const ScoreRows& a) { Scores<float>(a); }
void ScoreRowsBF16(const ScoreRows& a) { Scores<bf16>(a); }
void ScoreRowsF16(const ScoreRows& a) { Scores<f16>(a); }

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();
