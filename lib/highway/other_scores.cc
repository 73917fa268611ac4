// Gaussian and additive scores of query rows against row-major keys, per Highway target. Keys are taken one by one: there
// is more to compute per byte of key than in scores.cc.
#include <cstddef>
#include <cstdint>

#include "lib/dtypes.h"
#include "lib/ukernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/highway/other_scores.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "lib/highway/loads-inl.h"
#include "lib/highway/math-inl.h"
#include "lib/highway/partial_sums-inl.h"
#include "lib/highway/slots-inl.h"

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {
namespace {

/// One key against kQ queries from `row` on.
template <int kV, int kQ, class Term, class T>
HWY_INLINE void OneKey(const Term& term, const float* q0, int64_t ldq, int64_t row, const T* k, size_t dim,
                       float* kept) {
  static_assert(kQ == 1 || kQ == 2 || kQ == 4);
  const D d;
  const size_t step = hn::Lanes(d);
  const float* q1 = q0 + (kQ > 1 ? ldq : 0);
  const float* q2 = q0 + (kQ > 2 ? 2 * ldq : 0);
  const float* q3 = q0 + (kQ > 2 ? 3 * ldq : 0);
  const V zero = hn::Zero(d);
  V a00 = zero, a01 = zero, a02 = zero, a03 = zero;
  V a10 = zero, a11 = zero, a12 = zero, a13 = zero;
  V a20 = zero, a21 = zero, a22 = zero, a23 = zero;
  V a30 = zero, a31 = zero, a32 = zero, a33 = zero;
  const auto part = [&](size_t at, V& s0, V& s1, V& s2, V& s3) HWY_ATTR {
    const auto load = [&](const float* p) HWY_ATTR { return hn::LoadU(d, p + at); };
    const V x = LoadWide(d, k + at);
    s0 = term.Add(load(q0), x, row, load, s0);
    if constexpr (kQ > 1) s1 = term.Add(load(q1), x, row + 1, load, s1);
    if constexpr (kQ > 2) {
      s2 = term.Add(load(q2), x, row + 2, load, s2);
      s3 = term.Add(load(q3), x, row + 3, load, s3);
    }
  };
  size_t i = 0;
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
      const auto load = [&](const float* p) HWY_ATTR { return hn::LoadN(d, p + at, n); };
      const V x = LoadWideN(d, k + at, n);
      s0 = hn::IfThenElse(inside, term.Add(load(q0), x, row, load, s0), s0);
      if constexpr (kQ > 1) s1 = hn::IfThenElse(inside, term.Add(load(q1), x, row + 1, load, s1), s1);
      if constexpr (kQ > 2) {
        s2 = hn::IfThenElse(inside, term.Add(load(q2), x, row + 2, load, s2), s2);
        s3 = hn::IfThenElse(inside, term.Add(load(q3), x, row + 3, load, s3), s3);
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

/// Up to kKeys keys one by one.
template <int kV, int kQ, class Term, class T>
HWY_INLINE void OneByOne(const Term& term, const float* q, int64_t ldq, int64_t row, const T* k, int64_t ldk,
                         size_t dim, size_t keys, float* kept) {
  for (size_t j = 0; j < keys; ++j)
    OneKey<kV, kQ>(term, q, ldq, row, k + static_cast<int64_t>(j) * ldk, dim, kept + j * kKept);
}

/// What terms have in common that take the keys one by one.
struct OneByOneTerm {
  template <int kQ, class T>
  static int64_t Blocks(const float*, int64_t, const T*, int64_t, size_t, V, float*, int64_t, int64_t) {
    return 0;
  }
};

/// (q - k)^2
struct Gaussian : OneByOneTerm {
  static float Scale(const ScoreRows& a) { return a.scale; }

  template <class Load>
  HWY_INLINE V Add(V q, V k, int64_t /*row*/, Load /*load*/, V sum) const {
    const V difference = hn::Sub(q, k);
    return hn::MulAdd(difference, difference, sum);
  }
  template <int kV, int kQ, class T>
  HWY_INLINE void Group(const float* q, int64_t ldq, int64_t row, const T* k, int64_t ldk, size_t dim, size_t keys,
                        float* kept) const {
    OneByOne<kV, kQ>(*this, q, ldq, row, k, ldk, dim, keys, kept);
  }
};

/// w tanh(q + k)
struct Additive : OneByOneTerm {
  static float Scale(const ScoreRows& /*a*/) { return 1.0f; }

  template <class Load>
  HWY_INLINE V Add(V q, V k, int64_t row, Load load, V sum) const {
    return hn::MulAdd(load(w + row * ldw), Tanh(D(), hn::Add(q, k)), sum);
  }
  template <int kV, int kQ, class T>
  HWY_INLINE void Group(const float* q, int64_t ldq, int64_t row, const T* k, int64_t ldk, size_t dim, size_t keys,
                        float* kept) const {
    OneByOne<kV, kQ>(*this, q, ldq, row, k, ldk, dim, keys, kept);
  }
  Additive(const float* weights, int64_t stride) : w(weights), ldw(stride) {}
  const float* w;
  int64_t ldw;
};

}  // namespace

void GaussianRowsF32(const ScoreRows& a) { AllScores<float>(Gaussian(), a); }
void GaussianRowsBF16(const ScoreRows& a) { AllScores<bf16>(Gaussian(), a); }
void GaussianRowsF16(const ScoreRows& a) { AllScores<f16>(Gaussian(), a); }
void AdditiveRowsF32(const AdditiveRows& a) { AllScores<float>(Additive(a.w, a.ldw), a.rows); }
void AdditiveRowsBF16(const AdditiveRows& a) { AllScores<bf16>(Additive(a.w, a.ldw), a.rows); }
void AdditiveRowsF16(const AdditiveRows& a) { AllScores<f16>(Additive(a.w, a.ldw), a.rows); }

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();
