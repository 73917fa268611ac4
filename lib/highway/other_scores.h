// Gaussian and additive scores of query rows against row-major keys. Keys are taken one by one: there
// is more to compute per byte of key than in scores.h.
#ifndef SIMDATTN_LIB_HIGHWAY_OTHER_SCORES_H_
#define SIMDATTN_LIB_HIGHWAY_OTHER_SCORES_H_

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "lib/dtypes.h"
#include "lib/highway/elementwise.h"
#include "lib/highway/loads.h"
#include "lib/highway/math.h"
#include "lib/highway/partial_sums.h"
#include "lib/highway/target.h"
#include "lib/ukernels.h"

namespace simdattn {
namespace {

/// (q - k)^2
struct Gaussian {
  static constexpr int kMaxQueries = 4;
  static constexpr bool kRare = true;  // no loops of its own for two queries
  static float Scale(const ScoreRows& a) { return a.scale; }

  template <int kQ, class T>
  static int64_t Blocks(const float*, int64_t, const T*, int64_t, size_t, V, float*, int64_t, int64_t,
                        RowsFromMemory&) {
    return 0;
  }

  /// One key against kQ queries.
  template <int kV, int kQ, class T>
  static HWY_INLINE void OneKey(const float* q, int64_t ldq, const float* q_tail, const T* k, size_t dim, float* kept) {
    static_assert(kQ == 1 || kQ == 4);
    const D d;
    const size_t step = hn::Lanes(d);
    const V zero = hn::Zero(d);
    V a00 = zero, a01 = zero, a02 = zero, a03 = zero;
    V a10 = zero, a11 = zero, a12 = zero, a13 = zero;
    V a20 = zero, a21 = zero, a22 = zero, a23 = zero;
    V a30 = zero, a31 = zero, a32 = zero, a33 = zero;
    const auto add = [&](const float* y, V x, V& sum) SIMDATTN_LAMBDA {
      const V difference = hn::Sub(hn::LoadU(d, y), x);
      sum = hn::MulAdd(difference, difference, sum);
    };
    const auto part = [&](const float* y, int64_t pitch, const auto* x_at, V& s0, V& s1, V& s2, V& s3) SIMDATTN_LAMBDA {
      const V x = LoadWide(d, x_at);
      add(y, x, s0);
      if constexpr (kQ > 1) add(y + pitch, x, s1);
      if constexpr (kQ > 2) {
        add(y + 2 * pitch, x, s2);
        add(y + 3 * pitch, x, s3);
      }
    };
    const auto sixteen = [&](const float* y, int64_t pitch, const auto* x) SIMDATTN_LAMBDA {
      part(y, pitch, x, a00, a10, a20, a30);
      if constexpr (kV > 1) part(y + step, pitch, x + step, a01, a11, a21, a31);
      if constexpr (kV > 2) {
        part(y + 2 * step, pitch, x + 2 * step, a02, a12, a22, a32);
        part(y + 3 * step, pitch, x + 3 * step, a03, a13, a23, a33);
      }
    };
    size_t i = 0;
    for (; i + kPartials <= dim; i += kPartials) sixteen(q + i, ldq, k + i);
    if (HWY_UNLIKELY(i < dim) && kMaskedTails) {
      const size_t n = dim - i;
      const hn::Mask<D> inside = hn::FirstN(d, n);
      const V x = LoadWideN(d, k + i, n);
      const auto last = [&](int64_t r, V& sum) SIMDATTN_LAMBDA {
        const V difference = hn::Sub(hn::LoadN(d, q + r * ldq + i, n), x);
        sum = MulAddFirst(inside, difference, difference, sum);
      };
      last(0, a00);
      if constexpr (kQ > 1) last(1, a10);
      if constexpr (kQ > 2) {
        last(2, a20);
        last(3, a30);
      }
    } else if (HWY_UNLIKELY(i < dim)) {
      HWY_ALIGN float k_tail[kPartials];
      PadTail(k + i, dim - i, -0.0f, k_tail);  // as in q: squares of +0, and no sum of squares is -0
      sixteen(q_tail, int64_t{kPartials}, k_tail);
    }
    Keep(a00, a01, a02, a03, kept);
    if constexpr (kQ > 1) Keep(a10, a11, a12, a13, kept + kScratch);
    if constexpr (kQ > 2) {
      Keep(a20, a21, a22, a23, kept + 2 * kScratch);
      Keep(a30, a31, a32, a33, kept + 3 * kScratch);
    }
  }

  template <int kV, int kQ, class T>
  HWY_INLINE void Group(const float* q, int64_t ldq, int64_t /*row*/, const T* k, int64_t ldk, size_t dim, size_t keys,
                        float* kept, RowsFromMemory& fetch) const {
    HWY_ALIGN float q_tail[kQ * kPartials];
    PadQueries<kQ>(q, ldq, dim, q_tail);
    for (size_t j = 0; j < keys; ++j) {
      fetch.Next();
      OneKey<kV, kQ>(q, ldq, q_tail, k + static_cast<int64_t>(j) * ldk, dim, kept + j * kKept);
    }
  }
};

/// w tanh(q + k), in f32. Keys are bytes, and so is their stride. Where a vector holds all partial sums four queries share a key, and each type has
/// its loops; elsewhere one loop, behind a pass that widens, is enough for all types.
struct Additive {
  static constexpr int kMaxQueries = kMaskedTails ? 4 : 1;
  static constexpr bool kRare = true;
  static constexpr size_t kPiece = 256;  // elements that are widened at a time
  static float Scale(const ScoreRows& /*a*/) { return 1.0f; }

  template <int kQ>
  static int64_t Blocks(const float*, int64_t, const uint8_t*, int64_t, size_t, V, float*, int64_t, int64_t,
                        RowsFromMemory&) {
    return 0;
  }

  template <int kV>
  HWY_INLINE void OneKey(const float* q, const float* weights, const uint8_t* k, size_t dim, float* kept) const {
    const D d;
    const size_t step = hn::Lanes(d);
    HWY_ALIGN float wide[kPiece];
    HWY_ALIGN float q_tail[kPartials], w_tail[kPartials];
    const V zero = hn::Zero(d);
    V s0 = zero, s1 = zero, s2 = zero, s3 = zero;
    for (size_t done = 0; done < dim;) {
      size_t n = HWY_MIN(kPiece, dim - done) / kPartials * kPartials;
      const float* y = q + done;
      const float* factor = weights + done;
      const float* x;
      if (n > 0) {
        x = reinterpret_cast<const float*>(k + done * element);
        if (widen != nullptr) {
          widen(k + done * element, wide, static_cast<int64_t>(n));
          x = wide;
        }
        done += n;
      } else {
        // Weights of -0 and tangents of +0 are left out.
        n = dim - done;
        for (size_t i = 0; i < kPartials; i += step) hn::StoreU(zero, d, wide + i);
        if (widen != nullptr) {
          widen(k + done * element, wide, static_cast<int64_t>(n));
        } else {
          PadTail(reinterpret_cast<const float*>(k + done * element), n, 0.0f, wide);
        }
        PadTail(y, n, 0.0f, q_tail);
        PadTail(factor, n, -0.0f, w_tail);
        x = wide;
        y = q_tail;
        factor = w_tail;
        done = dim;
        n = kPartials;
      }
      const auto add = [&](size_t at, V& sum) SIMDATTN_LAMBDA {
        const V t = Tanh(d, hn::Add(hn::LoadU(d, y + at), hn::LoadU(d, x + at)));
        sum = hn::MulAdd(hn::LoadU(d, factor + at), t, sum);
      };
      for (size_t i = 0; i < n; i += kPartials) {
        add(i, s0);
        if constexpr (kV > 1) add(i + step, s1);
        if constexpr (kV > 2) {
          add(i + 2 * step, s2);
          add(i + 3 * step, s3);
        }
      }
    }
    Keep(s0, s1, s2, s3, kept);
  }

  /// Where one vector holds the 16 partial sums. The end of a row takes the same loop: its own had one more copy of the tangent.
  template <int kQ, class T>
  static HWY_NOINLINE void Keys(const float* q, int64_t ldq, const float* weights, int64_t ldw, const uint8_t* k,
                                int64_t ldk, size_t dim, size_t keys, float* kept) {
    static_assert(kQ == 1 || kQ == 4);
    const D d;
    const V zero = hn::Zero(d);
    for (size_t j = 0; j < keys; ++j, k += ldk) {
      const T* const x = reinterpret_cast<const T*>(k);
      V s0 = zero, s1 = zero, s2 = zero, s3 = zero;
      for (size_t i = 0; i < dim; i += kPartials) {
        const size_t n = dim - i;
        const bool whole = n >= kPartials;
        const V to = HWY_LIKELY(whole) ? LoadWide(d, x + i) : LoadWideN(d, x + i, n);
        const auto add = [&](int64_t r, V& sum) SIMDATTN_LAMBDA {
          V from, factor;
          if (HWY_LIKELY(whole)) {
            from = hn::LoadU(d, q + r * ldq + i);
            factor = hn::LoadU(d, weights + r * ldw + i);
          } else {
            from = hn::LoadN(d, q + r * ldq + i, n);
            factor = hn::LoadNOr(hn::Set(d, -0.0f), d, weights + r * ldw + i, n);  // tangents of +0 are left out
          }
          sum = hn::MulAdd(factor, Tanh(d, hn::Add(from, to)), sum);
        };
        add(0, s0);
        if constexpr (kQ == 4) {
          add(1, s1);
          add(2, s2);
          add(3, s3);
        }
      }
      Keep(s0, zero, zero, zero, kept + j * kKept);
      if constexpr (kQ == 4) {
        Keep(s1, zero, zero, zero, kept + kScratch + j * kKept);
        Keep(s2, zero, zero, zero, kept + 2 * kScratch + j * kKept);
        Keep(s3, zero, zero, zero, kept + 3 * kScratch + j * kKept);
      }
    }
  }

  template <int kV, int kQ>
  /// Not inlined: beside another loop this one took 1.06 - 1.18 of the time.
  HWY_NOINLINE void Group(const float* q, int64_t ldq, int64_t row, const uint8_t* k, int64_t ldk, size_t dim,
                          size_t keys, float* kept, RowsFromMemory& /*fetch*/) const {
    if constexpr (kMaskedTails) {
      static_assert(kV == 1);
      const auto run = widen == nullptr ? Keys<kQ, float> : widen == WidenBF16 ? Keys<kQ, bf16> : Keys<kQ, f16>;
      run(q, ldq, w + row * ldw, ldw, k, ldk, dim, keys, kept);
    } else {
      static_assert(kQ == 1);
      for (size_t j = 0; j < keys; ++j) {
        OneKey<kV>(q, w + row * ldw, k + static_cast<int64_t>(j) * ldk, dim, kept + j * kKept);
      }
    }
  }

  const float* w;
  int64_t ldw;
  size_t element;        // bytes
  WidenFunction* widen;  // null: f32
};

SIMDATTN_SHARED void AdditiveScores(const AdditiveRows& a, int64_t element, WidenFunction* widen) {
  ScoreRows rows = a.rows;
  rows.ldk *= element;
  AllScores<uint8_t>(Additive{a.w, a.ldw, static_cast<size_t>(element), widen}, rows);
}

void GaussianRowsF32(const ScoreRows& a) { AllScores<float>(Gaussian(), a); }
void GaussianRowsBF16(const ScoreRows& a) { AllScores<bf16>(Gaussian(), a); }
void GaussianRowsF16(const ScoreRows& a) { AllScores<f16>(Gaussian(), a); }
void AdditiveRowsF32(const AdditiveRows& a) { AdditiveScores(a, 4, nullptr); }
void AdditiveRowsBF16(const AdditiveRows& a) { AdditiveScores(a, 2, WidenBF16); }
void AdditiveRowsF16(const AdditiveRows& a) { AdditiveScores(a, 2, WidenF16); }

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_OTHER_SCORES_H_
