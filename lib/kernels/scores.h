// Scores of query rows against row-major keys: products, squared distances and the additive form.
//
// Keys of the first two are walked in memory order: kLanes partial sums of every key of a pass are left in scratch
// memory in L1, and a transposing reduction folds them for kLanes keys at once. With 16 lanes it folds tiles of four
// queries and four keys, without scratch memory in between.
#pragma once

#include "lib/contract/steps.h"
#include "lib/kernels/elementwise.h"
#include "lib/simd/blocks.h"

namespace simdattn {
namespace {

/// What an element of a query and one of a key add to the score.
struct DotProduct {
  static constexpr bool kRare = false;
  static SIMDATTN_INLINE Floats add(Floats q, Floats k, Floats sum) { return mul_add(q, k, sum); }
  /// What stands for elements of a key where it has none, and queries are -0: the product is -0, which changes no sum.
  static constexpr float kMissing = 0.0f;
};
struct SquaredDistance {
  static constexpr bool kRare = true;  // no tiles of several queries: arithmetic is the bound, not loads
  static SIMDATTN_INLINE Floats add(Floats q, Floats k, Floats sum) {
    const Floats difference = q - k;
    return mul_add(difference, difference, sum);
  }
  static constexpr float kMissing = -0.0f;  // the square is +0, and no sum of squares is -0
};
/// The n < 16 elements that are left of a row, widened, then `fill` up to 16: so they are summed as all others are.
template <class T>
SIMDATTN_SHARED void pad_tail(const T* in, int64_t n, float fill, float* out) {
  for (int64_t i = 0; i < 16; i += kLanes) store(Floats(fill), out + i);
  for_each_batch(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { store(load(in + i, part), out + i, part); });
}

/// Parts of the 16 partial sums that are summed side by side: with batches of 4 they would leave registers for two
/// queries only, and 16-bit keys would be widened twice as often.
template <int64_t kQ>
constexpr int64_t kPartsAtOnce = kParts == 4 && kQ > 1 ? 1 : kParts;
/// Keys that share the loads of kQ queries: their sums, the parts of the queries and one of a key fill the registers.
template <class Term, int64_t kQ>
constexpr int64_t kKeysOf = kQ == 1                            ? 1
                            : kParts == 1                      ? 4
                            : kParts == 2 && (kX86 || kQ == 4) ? 3
                            : kX86 && kQ == 4                  ? 2
                                                               : 4;
/// Of four queries as many as a register tile takes; the same keys then meet the others.
constexpr int64_t kTileOfFour = kParts == 2 && kX86 ? 2 : 4;
/// The sums of four queries and four keys are 16 batches, which are folded in registers.
template <int64_t kQ>
constexpr bool kFoldsTile = kParts == 1 && kLoadsBlocks && kQ == 4;
/// Keys per pass: a multiple of kKeysOf and of kLanes.
constexpr int64_t kKeysPerPass = kParts == 2 ? 24 : 16;  // no fault: any such multiple gives the same results

/// The partial sums of kK keys, the first of which is key `key` of the pass, and kQ queries from `row` on; `q_tail` has
/// the queries' last elements if dim is not a multiple of 16 (kTail). Where kFoldsTile, there may be fewer than kK
/// keys, `keys`: the last one stands for the others, and what is left are four sums of each query.
template <class Term, class T, int64_t kQ, int64_t kK, bool kTail>
SIMDATTN_INLINE void add_terms(const ScoreRows& a, int64_t row, [[maybe_unused]] const float* q_tail, const T* k,
                               float* sums, int64_t key, [[maybe_unused]] int64_t keys) {
  constexpr int64_t kAtOnce = kPartsAtOnce<kQ>;
  const int64_t dim = a.dim, ldk = a.ldk, ldq = a.ldq;
  Registers<kQ, const float*> q_rows;
  unroll<kQ>([&](auto i) SIMDATTN_LAMBDA { reg<i>(q_rows) = a.q + (row + i) * ldq; });
  Registers<kK, const T*> k_rows;
  unroll<kK>([&](auto j) SIMDATTN_LAMBDA { reg<j>(k_rows) = k + (kFoldsTile<kQ> ? smaller(j, keys - 1) : j) * ldk; });
  const int64_t whole = dim - dim % 16;
  [[maybe_unused]] alignas(64) float k_tail[kK * 16];
  if constexpr (kTail) {
    unroll<kK>([&](auto j)
                   SIMDATTN_LAMBDA { pad_tail(reg<j>(k_rows) + whole, dim - whole, Term::kMissing, k_tail + j * 16); });
  }
  // Partial sum p of query n / kK and key n % kK; folded, they are stored in the order of memory.
  const auto fold_and_store = [&](const auto& part) SIMDATTN_LAMBDA {
    unroll<kQ * kK>([&](auto n) SIMDATTN_LAMBDA {
      Registers<kParts> l;
      unroll<kParts>([&](auto p) SIMDATTN_LAMBDA { reg<p>(l) = part(n, p); });
      store(fold_parts<kParts>(l), sums + (n / kK * kKeysPerPass + key + n % kK) * kLanes);
    });
  };
  alignas(64) float kept[kQ * kK * 16];
  for (int64_t first = 0; first < kParts; first += kAtOnce) {
    Registers<kQ * kK * kAtOnce> acc;
    clear(acc);
    const auto add = [&](const auto& query, const auto& key_row) SIMDATTN_LAMBDA {
      unroll<kAtOnce>([&](auto p) SIMDATTN_LAMBDA {
        Registers<kQ> y;
        unroll<kQ>([&](auto i) SIMDATTN_LAMBDA { reg<i>(y) = load(query(i) + p * kLanes); });
        unroll<kK>([&](auto j) SIMDATTN_LAMBDA {
          Floats x = load(key_row(j) + p * kLanes);
          if constexpr (kQ > 1) x = in_register(x);
          unroll<kQ>([&](auto i) SIMDATTN_LAMBDA {
            Floats& sum = reg<(i * kK + j) * kAtOnce + p>(acc);
            sum = Term::add(reg<i>(y), x, sum);
          });
        });
      });
    };
    const int64_t offset = first * kLanes;
    for (int64_t at = offset; at < whole; at += 16) {
      add([&](auto i) SIMDATTN_LAMBDA { return reg<i>(q_rows) + at; },
          [&](auto j) SIMDATTN_LAMBDA { return reg<j>(k_rows) + at; });
    }
    if constexpr (kTail) {
      add([&](auto i) SIMDATTN_LAMBDA { return q_tail + i * 16 + offset; },
          [&](auto j) SIMDATTN_LAMBDA { return k_tail + j * 16 + offset; });
    }
    if constexpr (kFoldsTile<kQ>) {
      store(fold_batches([&](auto n) SIMDATTN_LAMBDA { return reg<n>(acc); }), sums + key * kQ);
    } else if constexpr (kAtOnce == kParts) {
      fold_and_store([&](auto n, auto p) SIMDATTN_LAMBDA { return reg<n * kParts + p>(acc); });
    } else {
      unroll<kQ * kK>([&](auto n) SIMDATTN_LAMBDA { store(reg<n>(acc), kept + n * 16 + offset); });
    }
  }
  if constexpr (kAtOnce < kParts) {
    fold_and_store([&](auto n, auto p) SIMDATTN_LAMBDA { return load(kept + n * 16 + p * kLanes); });
  }
}

/// The partial sums of `keys` keys of kDim elements and one query, which stays in registers as far as there are any.
template <class Term, class T, int64_t kDim>
SIMDATTN_INLINE void add_whole_rows(const ScoreRows& a, int64_t row, const T* first, int64_t keys, float* sums) {
  constexpr int64_t kHeld = smaller(kDim / kLanes, 8);
  const int64_t ldk = a.ldk;
  const float* q = a.q + row * a.ldq;
  Registers<kHeld> held;
  unroll<kHeld>([&](auto i) SIMDATTN_LAMBDA { reg<i>(held) = load(q + i * kLanes); });
  Cursor<const T> next(first);
  for (int64_t j = 0; j < keys; ++j, next += ldk) {
    const T* const k = next.get();
    Registers<kParts> sum;
    clear(sum);
    const auto add = [&](Floats y, int64_t at, auto i)
                         SIMDATTN_LAMBDA { reg<i % kParts>(sum) = Term::add(y, load(k + at), reg<i % kParts>(sum)); };
    unroll<kHeld>([&](auto i) SIMDATTN_LAMBDA { add(reg<i>(held), i * kLanes, i); });
    // A loop, because gcc would load all of them ahead if it were unrolled.
    for (int64_t at = kHeld * kLanes; at < kDim; at += 4 * kLanes) {
      unroll<4>([&](auto i) SIMDATTN_LAMBDA { add(load(q + at + i * kLanes), at + i * kLanes, i); });
    }
    store(fold_parts<kParts>(sum), sums + j * kLanes);
  }
}

/// The scores of one query and at most kKeysPerPass keys from what add_terms() left of them; kOfTile: where kFoldsTile.
template <bool kOfTile>
SIMDATTN_SHARED void fold_sums(const float* sums, int64_t keys, float scale, float* s) {
  for_each_batch(keys, [&](int64_t j, auto part) SIMDATTN_LAMBDA {
    Floats sum;
    if constexpr (kOfTile) sum = load_blocks<1>(sums, 16);
    else sum = fold_keys(sums + j * kLanes);
    store_rounded(sum * Floats(scale), s + j, part);
  });
}

/// Keys [first, end) against `queries` queries from `row` on, kQ in a tile.
template <class Term, class T, int64_t kQ>
__attribute__((noinline)) void score_keys(const ScoreRows& a, int64_t row, int64_t queries, int64_t first,
                                          int64_t end) {
  constexpr int64_t kMost = kQ == kTileOfFour ? 4 : kQ;  // in one call
  const int64_t count = kMost == kQ ? kQ : queries;
  constexpr int64_t kSums = kKeysPerPass * kLanes;
  alignas(64) float sums[kMost * kSums];
  alignas(64) float q_tail[kMost * 16];
  const int64_t rest = a.dim % 16;
  for (int64_t i = 0; rest != 0 && i < count; ++i)
    pad_tail(a.q + (row + i) * a.ldq + (a.dim - rest), rest, -0.0f, q_tail + i * 16);
  for (int64_t key = first; key < end; key += kKeysPerPass) {
    const int64_t keys = smaller(kKeysPerPass, end - key);
    const T* k = static_cast<const T*>(a.k) + key * a.ldk;
    const auto add = [&](int64_t j, auto keys_of_tile, auto tail) SIMDATTN_LAMBDA {
      for (int64_t i = 0; i < count; i += kQ)
        add_terms<Term, T, kQ, keys_of_tile, tail>(a, row + i, q_tail + i * 16, k + j * a.ldk, sums + i * kSums, j,
                                                   keys - j);
    };
    const auto add_all = [&](auto tail) SIMDATTN_LAMBDA {
      constexpr int64_t kK = tail && !kFoldsTile<kQ> ? 1 : kKeysOf<Term, kQ>;
      int64_t j = 0;
      for (; j + (kFoldsTile<kQ> ? 1 : kK) <= keys; j += kK) add(j, constant<kK>, tail);
      if constexpr (kK > 1 && !kFoldsTile<kQ>)
        for (; j < keys; ++j) add(j, constant<1>, tail);
    };
    // Loops for whole rows; squared distances, which are rare, have them for f32 keys alone.
    const auto whole_rows = [&](auto dim) SIMDATTN_LAMBDA {
      if constexpr (kQ > 1 || (Term::kRare && !std::is_same_v<T, float>)) return false;
      else if (a.dim == dim) add_whole_rows<Term, T, dim>(a, row, k, keys, sums);
      return a.dim == dim;
    };
    const bool done = whole_rows(constant<128>) || whole_rows(constant<64>);
    // Rows without a tail have tiles that do not look for one. Those with a tail take one key at a time.
    if (!done && rest == 0) [[likely]]
      add_all(std::false_type());
    else if (!done) add_all(std::true_type());
    for (int64_t i = 0; i < count; ++i)
      fold_sums<kFoldsTile<kQ>>(sums + i * (kFoldsTile<kQ> ? kQ : kSums), keys, a.scale, a.s + (row + i) * a.lds + key);
  }
}

template <class Term, class T>
void score_all(const ScoreRows& a) {
  // More than four queries take so many keys at a time that these stay in L1 for the next four.
  constexpr int64_t kBlock = 48;
  static_assert(kBlock % kKeysPerPass == 0);
  const int64_t block = a.n_q > 4 ? kBlock : larger(a.n_k, 1);
  for (int64_t key = 0; key < a.n_k; key += block) {
    const int64_t end = smaller(key + block, a.n_k);
    int64_t row = 0;
    if constexpr (!Term::kRare) {
      for (; row + 4 <= a.n_q; row += 4) score_keys<Term, T, kTileOfFour>(a, row, 4, key, end);
      if (row + 2 <= a.n_q) {
        score_keys<Term, T, 2>(a, row, 2, key, end);
        row += 2;
      }
    }
    for (; row < a.n_q; ++row) score_keys<Term, T, 1>(a, row, 1, key, end);
  }
}
template <class T>
constexpr auto score_rows = score_all<DotProduct, T>;
template <class T>
constexpr auto gaussian_rows = score_all<SquaredDistance, T>;

/// Sums of w tanh(q + k). Keys are `size` bytes a number; `widen` makes f32 of them, null: they are.
inline void additive_rows(const AdditiveRows& a, int64_t size, decltype(widen<float>)* widen) {
  constexpr int64_t kWidened = 256;  // numbers of a key at a time
  const ScoreRows& rows = a.rows;
  const int64_t dim = rows.dim, whole = dim - dim % 16;
  alignas(64) float wide[kWidened];
  for (int64_t row = 0; row < rows.n_q; ++row) {
    const float* const q = rows.q + row * rows.ldq;
    const float* const weights = a.w + row * a.ldw;
    alignas(64) float q_tail[16], k_tail[16], w_tail[16];
    pad_tail(q + whole, dim - whole, 0.0f, q_tail);
    pad_tail(weights + whole, dim - whole, -0.0f, w_tail);  // tangents of +0 change no sum
    for (int64_t key = 0; key < rows.n_k; ++key) {
      const char* const stored = static_cast<const char*>(rows.k) + key * rows.ldk * size;
      Registers<kParts> sum;
      clear(sum);
      for (int64_t i = 0; i < dim; i += 16) {
        if (widen != nullptr && i % kWidened == 0) widen(stored + i * size, wide, smaller(dim - i, kWidened));
        const float* k = widen != nullptr ? wide + i % kWidened : reinterpret_cast<const float*>(stored) + i;
        const bool tail = i == whole;
        if (tail) {
          pad_tail(k, dim - i, 0.0f, k_tail);
          k = k_tail;
        }
        const float* const y = tail ? q_tail : q + i;
        const float* const w = tail ? w_tail : weights + i;
        unroll<kParts>([&](auto p) SIMDATTN_LAMBDA {
          constexpr int64_t kFirst = p * kLanes;
          reg<p>(sum) = mul_add(load(w + kFirst), tanh_of(load(y + kFirst) + load(k + kFirst)), reg<p>(sum));
        });
      }
      rows.s[row * rows.lds + key] = canonical(fold(sum));
    }
  }
}
template <class T>
void additive_rows(const AdditiveRows& a) {
  additive_rows(a, sizeof(T), std::is_same_v<T, float> ? nullptr : widen<T>);
}

}  // namespace
}  // namespace simdattn
