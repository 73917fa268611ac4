// Gaussian and additive scores of query rows against row-major keys, per Highway target. The walk is that of scores.cc,
// in its simplest form: there is more to compute per byte of key.
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
#include "lib/highway/slots-inl.h"

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {
namespace {

// Sixteen partial sums are 1, 2 or 4 vectors.
using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;

constexpr size_t kPartials = 16;
/// Keys per reduction, and how many partial sums of each are stored for it.
constexpr size_t kKeys = 16;
constexpr size_t kKept = 4;

/// Folds 16 partial sums to 4 and stores them.
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
#elif HWY_MAX_BYTES >= 64
  const hn::Half<D> dh;
  const hn::Half<decltype(dh)> dq;
  const auto v = hn::Add(hn::LowerHalf(dh, v0), hn::UpperHalf(dh, v0));
  hn::StoreU(hn::Add(hn::LowerHalf(dq, v), hn::UpperHalf(dq, v)), dq, kept);
#elif HWY_MAX_BYTES == 32
  const hn::Half<D> dh;
  const V v = hn::Add(v0, v1);
  hn::StoreU(hn::Add(hn::LowerHalf(dh, v), hn::UpperHalf(dh, v)), dh, kept);
#else
  hn::StoreU(hn::Add(hn::Add(v0, v2), hn::Add(v1, v3)), d, kept);
#endif
}

/// Folds the 4 stored partial sums of each key.
HWY_INLINE void Reduce(const float* HWY_RESTRICT kept, V scale, float* out, size_t keys) {
  const D d;
  const size_t step = hn::Lanes(d);
  for (size_t i = 0; i < keys; i += step) {
    V l0, l1, l2, l3;
    hn::LoadInterleaved4(d, kept + kKept * i, l0, l1, l2, l3);
    const V sum = hn::Add(hn::Add(l0, l2), hn::Add(l1, l3));
    const V s = Canonical(d, hn::Mul(sum, scale));
    if (keys - i >= step) {
      hn::StoreU(s, d, out + i);
    } else {
      hn::StoreN(s, d, out + i, keys - i);
    }
  }
}

/// (q - k)^2
struct Gaussian {
  using Call = ScoreRows;
  static const ScoreRows& Rows(const Call& a) { return a; }
  static float Scale(const Call& a) { return a.scale; }
  explicit Gaussian(const Call& /*a*/) {}

  template <class Load>
  HWY_INLINE V Add(V q, V k, int64_t /*row*/, Load /*load*/, V sum) const {
    const V difference = hn::Sub(q, k);
    return hn::MulAdd(difference, difference, sum);
  }
};

/// w tanh(q + k)
struct Additive {
  using Call = AdditiveRows;
  static const ScoreRows& Rows(const Call& a) { return a.rows; }
  static float Scale(const Call& /*a*/) { return 1.0f; }
  explicit Additive(const Call& a) : w(a.w), ldw(a.ldw) {}

  template <class Load>
  HWY_INLINE V Add(V q, V k, int64_t row, Load load, V sum) const {
    return hn::MulAdd(load(w + row * ldw), Tanh(D(), hn::Add(q, k)), sum);
  }
  const float* w;
  int64_t ldw;
};

/// One key against kQ queries from `row` on.
template <class Term, class T, int kV, int kQ>
HWY_INLINE void OneKey(const Term& term, const ScoreRows& a, int64_t row, const T* k, float* kept) {
  static_assert(kQ == 1 || kQ == 2 || kQ == 4);
  const D d;
  const size_t step = hn::Lanes(d);
  const size_t dim = static_cast<size_t>(a.dim);
  const float* q0 = a.q + row * a.ldq;
  const float* q1 = q0 + (kQ > 1 ? a.ldq : 0);
  const float* q2 = q0 + (kQ > 2 ? 2 * a.ldq : 0);
  const float* q3 = q0 + (kQ > 2 ? 3 * a.ldq : 0);
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
  if constexpr (kQ > 1) Keep(a10, a11, a12, a13, kept + kKeys * kKept);
  if constexpr (kQ > 2) {
    Keep(a20, a21, a22, a23, kept + 2 * kKeys * kKept);
    Keep(a30, a31, a32, a33, kept + 3 * kKeys * kKept);
  }
}

/// Up to 16 keys from key j on against kQ queries.
template <class Term, class T, int kV, int kQ>
HWY_INLINE void Group(const Term& term, const ScoreRows& a, int64_t row, int64_t j, size_t keys, V scale) {
  HWY_ALIGN float kept[kQ * kKeys * kKept];
  const T* k = static_cast<const T*>(a.k) + j * a.ldk;
  for (size_t i = 0; i < keys; ++i) {
    OneKey<Term, T, kV, kQ>(term, a, row, k + static_cast<int64_t>(i) * a.ldk, kept + i * kKept);
  }
  for (int i = 0; i < kQ; ++i) {
    Reduce(kept + static_cast<size_t>(i) * kKeys * kKept, scale, a.s + (row + i) * a.lds + j, keys);
  }
}

template <class Term, class T, int kV>
HWY_INLINE void AllKeys(const typename Term::Call& call) {
  const Term term(call);
  const ScoreRows& a = Term::Rows(call);
  const V scale = hn::Set(D(), Term::Scale(call));
  for (int64_t j = 0; j < a.n_k; j += static_cast<int64_t>(kKeys)) {
    const size_t keys = static_cast<size_t>(HWY_MIN(static_cast<int64_t>(kKeys), a.n_k - j));
    int64_t i = 0;
    for (; i + 4 <= a.n_q; i += 4) Group<Term, T, kV, 4>(term, a, i, j, keys, scale);
    if (i + 2 <= a.n_q) {
      Group<Term, T, kV, 2>(term, a, i, j, keys, scale);
      i += 2;
    }
    if (i < a.n_q) Group<Term, T, kV, 1>(term, a, i, j, keys, scale);
  }
}

template <class Term, class T>
HWY_INLINE void Scores(const typename Term::Call& call) {
#if HWY_HAVE_SCALABLE
  switch (hn::Lanes(D())) {
    case 16: return AllKeys<Term, T, 1>(call);
    case 8: return AllKeys<Term, T, 2>(call);
    default: return AllKeys<Term, T, 4>(call);
  }
#else
  AllKeys<Term, T, static_cast<int>(kPartials / hn::MaxLanes(D()))>(call);
#endif
}

}  // namespace

void GaussianRowsF32(const ScoreRows& a) { Scores<Gaussian, float>(a); }
void GaussianRowsBF16(const ScoreRows& a) { Scores<Gaussian, bf16>(a); }
void GaussianRowsF16(const ScoreRows& a) { Scores<Gaussian, f16>(a); }
void AdditiveRowsF32(const AdditiveRows& a) { Scores<Additive, float>(a); }
void AdditiveRowsBF16(const AdditiveRows& a) { Scores<Additive, bf16>(a); }
void AdditiveRowsF16(const AdditiveRows& a) { Scores<Additive, f16>(a); }

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();
