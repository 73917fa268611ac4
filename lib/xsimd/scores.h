// Scores of query rows against row-major keys: products, squared distances and the additive form.
//
// Keys are walked in memory order, 16 at a time: a rolled loop leaves kLanes partial sums of every key in a scratch of
// the first-level cache, and a transposing reduction folds them for kLanes keys at once.
#ifndef SIMDATTN_LIB_XSIMD_SCORES_H_
#define SIMDATTN_LIB_XSIMD_SCORES_H_

#include "lib/xsimd/math.h"
#include "lib/xsimd/memory.h"

namespace simdattn {
namespace {

/// Keys per pass.
constexpr int64_t kKeysPerPass = 16;
/// Queries that share the loads of a key: 16 registers of 4 lanes hold the sums of two.
constexpr int64_t kQueriesPerPass = kParts == 4 && kX86 ? 2 : 4;

#if XSIMD_WITH_SVE
/// Interleaves the partial sums of kKeys keys, kStep apart, folding them to kLanes / kKeys each: zip_lo takes the lower
/// half of them and zip_hi the upper.
template <int64_t kKeys>
SIMDATTN_INLINE Floats folded(const float* sums) {
  if constexpr (kKeys == 1) {
    return load(sums);
  } else {
    const Floats even = folded<kKeys / 2>(sums);
    const Floats odd = folded<kKeys / 2>(sums + kLanes / kKeys * kLanes);
    return xsimd::zip_lo(even, odd) + xsimd::zip_hi(even, odd);
  }
}
SIMDATTN_INLINE Floats fold_keys(const float* sums) { return folded<kLanes>(sums); }
#else
/// Folds the kLanes partial sums of kLanes keys: to 4 in blocks of 128 bits, then within blocks.
SIMDATTN_INLINE Floats fold_keys(const float* sums) {
  const auto four = [&](int64_t key) SIMDATTN_LAMBDA { return load_folded_to_blocks(sums + key * kLanes, kLanes); };
  const auto two = [&](int64_t key) SIMDATTN_LAMBDA {
    const Floats a = four(key), b = four(key + 1);
    return zip_lo_blocks(a, b) + zip_hi_blocks(a, b);
  };
  const Floats a = two(0), b = two(2);
  return zip_lo_pairs(a, b) + zip_hi_pairs(a, b);
}
#endif

/// What an element of a query and one of a key add to the score.
struct DotProduct {
  SIMDATTN_INLINE Floats operator()(Floats q, Floats k, Floats sum) const { return xsimd::fma(q, k, sum); }
};
struct SquaredDistance {
  SIMDATTN_INLINE Floats operator()(Floats q, Floats k, Floats sum) const {
    const Floats difference = q - k;
    return xsimd::fma(difference, difference, sum);
  }
};

/// The partial sums of one key and kQ queries.
template <class Term, class T, int64_t kQ>
SIMDATTN_INLINE void add_terms(const float* q, int64_t ldq, const T* k, int64_t dim, float* sums) {
  const Term term;
  Registers<kQ * kParts> acc;
  unroll<kQ * kParts>([&](auto i) SIMDATTN_LAMBDA { reg<i>(acc) = Floats(0.0f); });
  int64_t i = 0;
  for (; i + 16 <= dim; i += 16) {
    unroll<kParts>([&](auto part) SIMDATTN_LAMBDA {
      const int64_t at = i + part * kLanes;
      const Floats x = load(k + at);
      unroll<kQ>([&](auto row) SIMDATTN_LAMBDA {
        Floats& sum = reg<row * kParts + part>(acc);
        sum = term(load(q + row * ldq + at), x, sum);
      });
    });
  }
  if (i < dim) {
    unroll<kParts>([&](auto part) SIMDATTN_LAMBDA {
      const int64_t at = i + part * kLanes;
      if (at >= dim) return;
      const Lanes inside = first_lanes(smaller(kLanes, dim - at));
      const Floats x = load(k + at, inside);
      unroll<kQ>([&](auto row) SIMDATTN_LAMBDA {
        Floats& sum = reg<row * kParts + part>(acc);
        sum = xsimd::select(mask_of(inside), term(load(q + row * ldq + at, inside), x, sum), sum);
      });
    });
  }
  unroll<kQ>([&](auto row) SIMDATTN_LAMBDA {
    Registers<kParts> l;
    unroll<kParts>([&](auto part) SIMDATTN_LAMBDA { reg<part>(l) = reg<row * kParts + part>(acc); });
    store(fold_parts<kParts>(l), sums + row * kKeysPerPass * kLanes);
  });
}

/// Scores of `keys` keys from their partial sums.
SIMDATTN_INLINE void finish_scores(const float* sums, int64_t keys, float factor, float* s) {
  const Floats scale(factor);
  for_each_batch(keys, [&](int64_t j, auto part)
                           SIMDATTN_LAMBDA { store_rounded(fold_keys(sums + j * kLanes) * scale, s + j, part); });
}

template <class Term, class T, int64_t kQ>
void score_pass(const ScoreRows& a, int64_t query, int64_t key) {
  alignas(64) float sums[kQ * kKeysPerPass * kLanes];
  const int64_t keys = smaller(kKeysPerPass, a.n_k - key);
  const float* q = a.q + query * a.ldq;
  const T* k = static_cast<const T*>(a.k) + key * a.ldk;
  for (int64_t j = 0; j < keys; ++j) add_terms<Term, T, kQ>(q, a.ldq, k + j * a.ldk, a.dim, sums + j * kLanes);
  for (int64_t row = 0; row < kQ; ++row) {
    finish_scores(sums + row * kKeysPerPass * kLanes, keys, a.scale, a.s + (query + row) * a.lds + key);
  }
}

template <class Term, class T>
SIMDATTN_INLINE void score_all(const ScoreRows& a) {
  for (int64_t key = 0; key < a.n_k; key += kKeysPerPass) {
    int64_t query = 0;
    if constexpr (kQueriesPerPass == 4) {
      for (; query + 4 <= a.n_q; query += 4) score_pass<Term, T, 4>(a, query, key);
    }
    for (; query + 2 <= a.n_q; query += 2) score_pass<Term, T, 2>(a, query, key);
    if (query < a.n_q) score_pass<Term, T, 1>(a, query, key);
  }
}
template <class T>
void score_rows(const ScoreRows& a) {
  score_all<DotProduct, T>(a);
}
template <class T>
void gaussian_rows(const ScoreRows& a) {
  score_all<SquaredDistance, T>(a);
}

template <class T>
void additive_rows(const AdditiveRows& all) {
  const ScoreRows& a = all.rows;
  alignas(64) float sums[kKeysPerPass * kLanes];
  for (int64_t query = 0; query < a.n_q; ++query) {
    const float* q = a.q + query * a.ldq;
    const float* w = all.w + query * all.ldw;
    for (int64_t key = 0; key < a.n_k; key += kKeysPerPass) {
      const int64_t keys = smaller(kKeysPerPass, a.n_k - key);
      for (int64_t j = 0; j < keys; ++j) {
        const T* k = static_cast<const T*>(a.k) + (key + j) * a.ldk;
        Registers<kParts> sum;
        unroll<kParts>([&](auto part) SIMDATTN_LAMBDA { reg<part>(sum) = Floats(0.0f); });
        for (int64_t i = 0; i < a.dim; i += 16) {
          unroll<kParts>([&](auto part) SIMDATTN_LAMBDA {
            const int64_t at = i + part * kLanes;
            const auto add = [&](auto lanes) SIMDATTN_LAMBDA {
              const Floats t = tanh_of(load(q + at, lanes) + load(k + at, lanes));
              return xsimd::fma(load(w + at, lanes), t, reg<part>(sum));
            };
            if (at + kLanes <= a.dim) {
              reg<part>(sum) = add(All());
            } else if (at < a.dim) {
              const Lanes inside = first_lanes(a.dim - at);
              reg<part>(sum) = xsimd::select(mask_of(inside), add(inside), reg<part>(sum));
            }
          });
        }
        store(fold_parts<kParts>(sum), sums + j * kLanes);
      }
      finish_scores(sums, keys, 1.0f, a.s + query * a.lds + key);
    }
  }
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_XSIMD_SCORES_H_
