// Scores of query rows against row-major keys.
#ifndef SIMDATTN_LIB_HIGHWAY_SCORES_H_
#define SIMDATTN_LIB_HIGHWAY_SCORES_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "hwy/highway.h"
#include "lib/cursor.h"
#include "lib/dtypes.h"
#include "lib/highway/loads.h"
#include "lib/highway/partial_sums.h"
#include "lib/highway/register_tile.h"
#include "lib/highway/target.h"
#include "lib/ukernels.h"

namespace simdattn {
namespace {

/// One key against kQ queries.
template <class T, int kV, int kQ>
HWY_INLINE void OneKey(const float* q, int64_t ldq, const float* q_tail, const T* k, size_t dim, float* kept) {
  static_assert(kQ == 1 || kQ == 2 || kQ == 4);
  const D d;
  const size_t step = hn::Lanes(d);
  const V zero = hn::Zero(d);
  V a00 = zero, a01 = zero, a02 = zero, a03 = zero;
  V a10 = zero, a11 = zero, a12 = zero, a13 = zero;
  V a20 = zero, a21 = zero, a22 = zero, a23 = zero;
  V a30 = zero, a31 = zero, a32 = zero, a33 = zero;
  const auto part = [&](const auto* y, int64_t pitch, const auto* x_at, size_t at, V& s0, V& s1, V& s2, V& s3)
                        SIMDATTN_LAMBDA {
                          const V x = LoadWide(d, x_at + at);
                          s0 = hn::MulAdd(hn::LoadU(d, y + at), x, s0);
                          if constexpr (kQ > 1) s1 = hn::MulAdd(hn::LoadU(d, y + pitch + at), x, s1);
                          if constexpr (kQ > 2) {
                            s2 = hn::MulAdd(hn::LoadU(d, y + 2 * pitch + at), x, s2);
                            s3 = hn::MulAdd(hn::LoadU(d, y + 3 * pitch + at), x, s3);
                          }
                        };
  const auto sixteen = [&](const float* y, int64_t pitch, const auto* x, size_t i) SIMDATTN_LAMBDA {
    part(y, pitch, x, i, a00, a10, a20, a30);
    if constexpr (kV > 1) part(y, pitch, x, i + step, a01, a11, a21, a31);
    if constexpr (kV > 2) {
      part(y, pitch, x, i + 2 * step, a02, a12, a22, a32);
      part(y, pitch, x, i + 3 * step, a03, a13, a23, a33);
    }
  };
  size_t i = 0;
  for (; i + kPartials <= dim; i += kPartials) sixteen(q, ldq, k, i);
  if (HWY_UNLIKELY(i < dim) && kMaskedTails) {
    const size_t n = dim - i;
    const hn::Mask<D> inside = hn::FirstN(d, n);
    const V x = LoadWideN(d, k + i, n);
    const auto last = [&](int64_t r, V& sum)
                          SIMDATTN_LAMBDA { sum = MulAddFirst(inside, hn::LoadN(d, q + r * ldq + i, n), x, sum); };
    last(0, a00);
    if constexpr (kQ > 1) last(1, a10);
    if constexpr (kQ > 2) {
      last(2, a20);
      last(3, a30);
    }
  } else if (HWY_UNLIKELY(i < dim)) {
    HWY_ALIGN float k_tail[kPartials];
    PadTail(k + i, dim - i, 0.0f, k_tail);
    sixteen(q_tail, int64_t{kPartials}, k_tail, 0);
  }
  Keep(a00, a01, a02, a03, kept);
  if constexpr (kQ > 1) Keep(a10, a11, a12, a13, kept + kScratch);
  if constexpr (kQ > 2) {
    Keep(a20, a21, a22, a23, kept + 2 * kScratch);
    Keep(a30, a31, a32, a33, kept + 3 * kScratch);
  }
}

/// Rows of kVectors whole vectors against one query; up to 8 vectors of the query stay in registers. keep() takes the partial sums of each key.
template <class T, int kV, size_t kVectors, class F>
HWY_INLINE void WholeRows(const float* q, const T* first, int64_t ldk, size_t keys, RowsFromMemory& fetch,
                          const F& keep) {
  static_assert(kVectors >= 4 && kVectors % 4 == 0);
  const D d;
  const size_t step = hn::Lanes(d);
  const V zero = hn::Zero(d);
  const auto query = [&](size_t i) SIMDATTN_LAMBDA { return i < kVectors ? hn::LoadU(d, q + i * step) : zero; };
  const V q0 = query(0), q1 = query(1), q2 = query(2), q3 = query(3);
  const V q4 = query(4), q5 = query(5), q6 = query(6), q7 = query(7);
  Cursor<const T> row(first);
  for (size_t j = 0; j < keys; ++j) {
    fetch.Next();
    const T* const k = row.get();
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
    keep(a0, a1, a2, a3);
    row += ldk;
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
  WithRegisters(d, [&](const Accumulators& acc, const Columns& x) SIMDATTN_LAMBDA {
    size_t i = 0;
    for (; i + kPartials <= dim; i += kPartials) {
      ForEach<kCount>([&](auto c) SIMDATTN_LAMBDA {
        const T* row = k + static_cast<int64_t>(c) * ldk + i;
        Get<c>(x) = LoadWide(d, row);
      });
      ForEach<kQ>([&](auto r) SIMDATTN_LAMBDA {
        const V y = hn::LoadU(d, q + static_cast<int64_t>(r) * ldq + i);
        ForEach<kCount>([&](auto c) SIMDATTN_LAMBDA {
          V& sum = Get<r * kCount + c>(acc);
          sum = hn::MulAdd(y, Get<c>(x), sum);
        });
      });
    }
    if (i < dim) {
      const size_t n = dim - i;
      const hn::Mask<D> inside = hn::FirstN(d, n);
      ForEach<kCount>([&](auto c)
                          SIMDATTN_LAMBDA { Get<c>(x) = LoadWideN(d, k + static_cast<int64_t>(c) * ldk + i, n); });
      ForEach<kQ>([&](auto r) SIMDATTN_LAMBDA {
        const V y = hn::LoadN(d, q + static_cast<int64_t>(r) * ldq + i, n);
        ForEach<kCount>([&](auto c) SIMDATTN_LAMBDA {
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
HWY_INLINE void ThreeKeys(const float* q, int64_t ldq, const float* q_tail, const T* k, int64_t ldk, size_t dim,
                          float* kept) {
  const D d;
  const size_t step = hn::Lanes(d);
  const V zero = hn::Zero(d);
  V a00 = zero, a01 = zero, a02 = zero, a10 = zero, a11 = zero, a12 = zero;
  V b00 = zero, b01 = zero, b02 = zero, b10 = zero, b11 = zero, b12 = zero;
  const auto part_of = [&](const float* q0, const float* q1, const auto* k0, const auto* k1, const auto* k2, size_t at,
                           V& s00, V& s01, V& s02, V& s10, V& s11, V& s12) SIMDATTN_LAMBDA {
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
  // Before the loops: calls that keep the sums alive would leave them fewer registers for addresses, 1.035 of the time.
  HWY_ALIGN float k_tail[3 * kPartials];
  const size_t whole = dim / kPartials * kPartials;
  if (HWY_UNLIKELY(whole < dim)) {
    for (size_t j = 0; j < 3; ++j) {
      PadTail(k + static_cast<int64_t>(j) * ldk + whole, dim - whole, 0.0f, k_tail + j * kPartials);
    }
  }
  const float* const q1 = q + ldq;
  const T* const k1 = k + ldk;
  const T* const k2 = k1 + ldk;
  const auto part = [&](size_t at, V& s00, V& s01, V& s02, V& s10, V& s11, V& s12)
                        SIMDATTN_LAMBDA { part_of(q, q1, k, k1, k2, at, s00, s01, s02, s10, s11, s12); };
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
  if (HWY_UNLIKELY(i < dim)) {
    const auto last = [&](size_t at, V& s00, V& s01, V& s02, V& s10, V& s11, V& s12) SIMDATTN_LAMBDA {
      part_of(q_tail, q_tail + kPartials, k_tail, k_tail + kPartials, k_tail + 2 * kPartials, at, s00, s01, s02, s10,
              s11, s12);
    };
    last(0, a00, a01, a02, a10, a11, a12);
    last(step, b00, b01, b02, b10, b11, b12);
  }
  Keep(a00, b00, zero, zero, kept);
  Keep(a01, b01, zero, zero, kept + kKept);
  Keep(a02, b02, zero, zero, kept + 2 * kKept);
  kept += kScratch;
  Keep(a10, b10, zero, zero, kept);
  Keep(a11, b11, zero, zero, kept + kKept);
  Keep(a12, b12, zero, zero, kept + 2 * kKept);
}

/// q k
struct Dot {
  static constexpr int kMaxQueries = 4;
  static constexpr bool kRare = false;
  static float Scale(const ScoreRows& a) { return a.scale; }

  template <int kQ, class T>
  HWY_INLINE int64_t Blocks(const float* q, int64_t ldq, const T* k, int64_t ldk, size_t dim, V scale, float* s,
                            int64_t lds, int64_t keys, RowsFromMemory& fetch) const {
    int64_t j = 0;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
    if constexpr (kQ > 1) {
      constexpr int64_t kBlock = static_cast<int64_t>(kPartials) / kQ;
      for (; j + kBlock <= keys; j += kBlock) {
        fetch.Next(kBlock);
        ScoreBlock<T, kQ>(q, ldq, k + j * ldk, ldk, dim, scale, s + j, lds);
      }
    }
#else
    (void)q, (void)ldq, (void)k, (void)ldk, (void)dim, (void)scale, (void)s, (void)lds, (void)keys, (void)fetch;
#endif
    return j;
  }

  template <int kV, int kQ, class T>
  HWY_INLINE void Group(const float* q, int64_t ldq, int64_t /*row*/, const T* k, int64_t ldk, size_t dim, size_t keys,
                        float* kept, RowsFromMemory& fetch) const {
    HWY_ALIGN float q_tail[kQ * kPartials];
    PadQueries<kQ>(q, ldq, dim, q_tail);
    const auto key = [&](size_t j) { return k + static_cast<int64_t>(j) * ldk; };
    size_t j = 0;
    if constexpr (kQ == 1) {
      const auto keep = [&](V v0, V v1, V v2, V v3) SIMDATTN_LAMBDA {
        Keep(v0, v1, v2, v3, kept);
        kept += kKept;
      };
      if (dim == 128) return WholeRows<T, kV, 8 * kV>(q, k, ldk, keys, fetch, keep);
      if (dim == 64) return WholeRows<T, kV, 4 * kV>(q, k, ldk, keys, fetch, keep);
    } else if constexpr (kQ > 1 && kV == 2) {
      for (; j + 3 <= keys; j += 3) {
        fetch.Next(3);
        ThreeKeys(q, ldq, q_tail, key(j), ldk, dim, kept + j * kKept);
        if constexpr (kQ == 4)
          ThreeKeys(q + 2 * ldq, ldq, q_tail + 2 * kPartials, key(j), ldk, dim, kept + j * kKept + 2 * kScratch);
      }
    }
    for (; j < keys; ++j) {
      fetch.Next();
      OneKey<T, kV, kQ>(q, ldq, q_tail, key(j), dim, kept + j * kKept);
    }
  }
};

void ScoreRowsF32(const ScoreRows& a) { AllScores<float>(Dot(), a); }
void ScoreRowsBF16(const ScoreRows& a) { AllScores<bf16>(Dot(), a); }
void ScoreRowsF16(const ScoreRows& a) { AllScores<f16>(Dot(), a); }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_SCORES_H_
