// The walk of query rows over row-major keys, and the sums over the dimension in 16 partial sums.
//
// Keys are walked in memory order, 16 or 24 at a time: a rolled loop leaves the partial sums of each in a scratch in
// L1, one transposed reduction folds them. A term says what is summed:
//   kMaxQueries   1, or 4 if it has tiles of 4 queries
//   kRare         it has no tiles of 2 queries
//   float Scale(const ScoreRows&)   what multiplies the sums
//   int64_t Blocks<kQ>(q, ldq, k, ldk, dim, scale, s, lds, keys)   scores of the first of `keys` keys against kQ queries
//                                                                  that pass no scratch; how many
//   void Group<kV, kQ>(q, ldq, row, k, ldk, dim, keys, kept, fetch)   the partial sums of up to kKeys keys against kQ queries,
//                                                                     each in kV vectors; `row` is the first of the
//                                                                     queries. Calls fetch.Next() for each key, unless
//                                                                     it computes longer than memory takes
// What the loops need is passed one by one: read from ScoreRows, it costs gcc the registers of the tiles. For the same
// reason each term has its own loop over the dimension.
#ifndef SIMDATTN_LIB_HIGHWAY_PARTIAL_SUMS_H_
#define SIMDATTN_LIB_HIGHWAY_PARTIAL_SUMS_H_

#include "hwy/highway.h"
#include "lib/highway/loads.h"
#include "lib/highway/register_tile.h"
#include "lib/highway/target.h"
#include "lib/ukernels.h"

// On x86 with wide vectors the partial sums of a key are stored as two halves, in an array of lower and one of upper
// halves: a store that extracts takes no shuffle port, and the first fold becomes an addition of whole vectors. Else they
// are folded to 4 before the store.
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
#define SIMDATTN_STORE_HALVES 1
#else
#define SIMDATTN_STORE_HALVES 0
#endif

namespace simdattn {
namespace {

// Sixteen partial sums are 1, 2 or 4 vectors.

constexpr size_t kPartials = 16;
/// Keys per reduction: a multiple of the keys that a term takes at a time (4, 3 or 1) and of the lanes.
constexpr size_t kKeys = HWY_MAX_BYTES == 32 ? 24 : 16;
/// Partial sums per key and array of the scratch.
constexpr size_t kKept = SIMDATTN_STORE_HALVES ? HWY_MAX_BYTES / 8 : 4;
/// Floats of the scratch per query.
constexpr size_t kScratch = kKeys * kKept * (SIMDATTN_STORE_HALVES ? 2 : 1);

/// Lanes past n come from a scratch that was never written: they may hold subnormal numbers, and multiplying those takes
/// some CPUs 150 cycles.
HWY_INLINE void StoreScores(V sums, V scale, float* out, size_t n) {
  const D d;
  if (n >= hn::Lanes(d)) {
    hn::StoreU(Canonical(d, hn::Mul(sums, scale)), d, out);
  } else {
    const V valid = hn::IfThenElseZero(hn::FirstN(d, n), sums);
    hn::StoreN(Canonical(d, hn::Mul(valid, scale)), d, out, n);
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
  const auto pair = [&](size_t i) SIMDATTN_LAMBDA {
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
                         SIMDATTN_LAMBDA { return _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)); };
  for (size_t i = 0; i < keys; i += 8) {
    const auto pair = [&](size_t j) SIMDATTN_LAMBDA {
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
#if HWY_MAX_BYTES == 32
  v0 = hn::Add(v0, v1);
  hn::StoreN(hn::Add(v0, hn::SlideDownLanes(d, v0, 4)), d, kept, 4);
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

/// One masked operation takes what is left of a row.
constexpr bool kMaskedTails = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3;

/// fma in the lanes that are inside the row.
[[maybe_unused]] HWY_INLINE V MulAddFirst(hn::Mask<D> inside, V a, V b, V c) {
  return hn::IfThenElse(inside, hn::MulAdd(a, b, c), c);
}

/// Elsewhere: the n < 16 elements that are left of a row, widened and followed by `fill` up to 16: then they are summed as all others
/// are. Where elements are missing a term must be -0, which changes no sum: queries get -0 and keys +0.
template <class T>
SIMDATTN_SHARED void PadTail(const T* in, size_t n, float fill, float* out) {
  const D d;
  const size_t step = hn::Lanes(d);
  for (size_t i = 0; i < kPartials; i += step) {
    V v = hn::Set(d, fill);
    if (i < n) v = hn::IfThenElse(hn::FirstN(d, n - i), LoadWideN(d, in + i, n - i), v);
    hn::StoreU(v, d, out + i);
  }
}
/// The same for the queries of a tile, 16 floats apart.
template <int kQ>
HWY_INLINE void PadQueries(const float* q, int64_t ldq, size_t dim, float* out) {
  const size_t n = dim % kPartials;
  if (kMaskedTails || n == 0) return;
  for (int64_t r = 0; r < kQ; ++r) PadTail(q + r * ldq + (dim - n), n, -0.0f, out + r * int64_t{kPartials});
}

/// Keys [first, end) against kQ queries from `row` on. Each group is folded when the next one has been computed: a load of what was stored in
/// narrower pieces just before waits until the stores are done.
template <class T, int kV, int kQ, class Term>
HWY_INLINE void Keys(const Term& term, const ScoreRows& a, int64_t row, int64_t first, int64_t end,
                     RowsFromMemory& fetch) {
  constexpr int64_t kStep = static_cast<int64_t>(kKeys);
  constexpr size_t kSums = static_cast<size_t>(kQ) * kScratch;
  HWY_ALIGN float kept[2 * kSums];
  const V scale = hn::Set(D(), term.Scale(a));
  const T* k = static_cast<const T*>(a.k);
  float* s = a.s + row * a.lds;
  const float* q = a.q + row * a.ldq;
  const int64_t ldq = a.ldq;
  const size_t dim = static_cast<size_t>(a.dim);
  float* now = kept;
  float* before = kept + kSums;
  const auto reduce = [&](const float* from, int64_t j, size_t keys) SIMDATTN_LAMBDA {
    for (int r = 0; r < kQ; ++r) Reduce(from + static_cast<size_t>(r) * kScratch, scale, s + r * a.lds + j, keys);
  };
  first += term.template Blocks<kQ>(q, ldq, k + first * a.ldk, a.ldk, dim, scale, s + first, a.lds, end - first, fetch);
  int64_t j = first;
  size_t keys = 0;
  for (; j < end; j += kStep) {
    keys = static_cast<size_t>(HWY_MIN(kStep, end - j));
    term.template Group<kV, kQ>(q, ldq, row, k + j * a.ldk, a.ldk, dim, keys, now, fetch);
    if (j != first) reduce(before, j - kStep, kKeys);
    float* const swap = now;
    now = before;
    before = swap;
  }
  if (j != first) reduce(before, j - kStep, keys);
}

template <class T, int kV, class Term>
HWY_INLINE void AllQueries(const Term& term, const ScoreRows& a) {
  // More than four queries take the keys in blocks that stay in L1 for the next four.
  constexpr int64_t kBlock = 48;
  static_assert(kBlock % static_cast<int64_t>(kKeys) == 0);
  const int64_t block = a.n_q > 4 ? kBlock : a.n_k;
  RowsFromMemory fetch, none;
  if (a.fetch == Fetch::kPages) {
    fetch =
        RowsFromMemory(a.k, a.n_k, a.ldk * static_cast<int64_t>(sizeof(T)), a.dim * static_cast<int64_t>(sizeof(T)));
  }
  for (int64_t j = 0; j < a.n_k; j += block) {
    const int64_t end = HWY_MIN(j + block, a.n_k);
    int64_t i = 0;
    if constexpr (Term::kMaxQueries > 1) {
      for (; i + 4 <= a.n_q; i += 4) Keys<T, kV, 4>(term, a, i, j, end, i == 0 ? fetch : none);
    }
    if constexpr (!Term::kRare) {
      if (i + 2 <= a.n_q) {
        Keys<T, kV, 2>(term, a, i, j, end, i == 0 ? fetch : none);
        i += 2;
      }
    }
    for (; i < a.n_q; ++i) Keys<T, kV, 1>(term, a, i, j, end, i == 0 ? fetch : none);
  }
}

/// Scores of all query rows against all keys.
template <class T, class Term>
HWY_INLINE void AllScores(const Term& term, const ScoreRows& a) {
  AllQueries<T, static_cast<int>(kPartials / hn::MaxLanes(D()))>(term, a);
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_PARTIAL_SUMS_H_
