// One block of the online softmax: three short passes over rows that lie in L1.
#ifndef SIMDATTN_LIB_HIGHWAY_SOFTMAX_TILE_H_
#define SIMDATTN_LIB_HIGHWAY_SOFTMAX_TILE_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "lib/highway/math.h"
#include "lib/highway/register_tile.h"

namespace simdattn {
namespace {

constexpr int64_t kChunk = 16;  // columns: one of each partial sum
constexpr int64_t kMaxRows = 64;

/// Lanes of the vector at column x that are visible.
HWY_INLINE hn::Mask<TileTag> Visible(TileTag d, int64_t x, int64_t lo, int64_t hi) {
  const auto before = [&](int64_t limit) SIMDATTN_LAMBDA {
    return hn::FirstN(d, static_cast<size_t>(std::clamp<int64_t>(limit - x, 0, kChunk)));
  };
  return hn::AndNot(before(lo), before(hi));
}

/// The larger of `m` and the maximum of columns [lo, hi).
HWY_INLINE float RowMax(TileTag d, const float* s, int64_t lo, int64_t hi, float m) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  TileVec m0 = hn::Set(d, m);
  TileVec m1 = m0;
  int64_t x = lo - lo % n;
  if (x < lo) {
    m0 = MaxNumber(d, hn::IfThenElse(Visible(d, x, lo, hi), hn::LoadU(d, s + x), m0), m0);
    x += n;
  }
  for (; x + 2 * n <= hi; x += 2 * n) {
    m0 = MaxNumber(d, hn::LoadU(d, s + x), m0);
    m1 = MaxNumber(d, hn::LoadU(d, s + x + n), m1);
  }
  for (; x < hi; x += n) m0 = MaxNumber(d, hn::IfThenElse(Visible(d, x, lo, hi), hn::LoadU(d, s + x), m0), m0);
  return hn::ReduceMax(d, MaxNumber(d, m1, m0));
}

/// Turns scores into weights; the sum of the weights. kParts vectors are a chunk. kRounds: the weights are numbers of bf16.
template <int kParts, bool kRounds>
HWY_INLINE float RowWeights(TileTag d, const ExpConstants<TileTag>& constants, float* s, int64_t columns, int64_t lo,
                            int64_t hi, float base) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  const TileVec reference = hn::Set(d, base);
  TileVec l0 = hn::Zero(d), l1 = l0, l2 = l0, l3 = l0;
  const auto rounded = [&](TileVec w) SIMDATTN_LAMBDA { return kRounds ? RoundedToBF16(d, w) : w; };
  const auto weigh = [&](int64_t x, TileVec& l) SIMDATTN_LAMBDA {
    const TileVec w = rounded(Exp(d, hn::Sub(hn::LoadU(d, s + x), reference)));
    hn::StoreU(w, d, s + x);
    l = hn::Add(l, w);
  };
  const auto weigh_visible = [&](int64_t x, TileVec& l) SIMDATTN_LAMBDA {
    const TileVec w = rounded(Exp(d, hn::Sub(hn::LoadU(d, s + x), reference)));
    const TileVec visible = hn::IfThenElseZero(Visible(d, x, lo, hi), w);
    hn::StoreU(visible, d, s + x);
    l = hn::Add(l, visible);
  };
  const auto chunk = [&](int64_t x, const auto& f) SIMDATTN_LAMBDA {
    f(x, l0);
    if constexpr (kParts > 1) f(x + n, l1);
    if constexpr (kParts > 2) {
      f(x + 2 * n, l2);
      f(x + 3 * n, l3);
    }
  };
  const auto clear = [&](int64_t from, int64_t to) SIMDATTN_LAMBDA {
    for (int64_t x = from; x < to; x += n) hn::StoreU(hn::Zero(d), d, s + x);
  };

  int64_t x = lo - lo % kChunk;
  clear(0, x);
  if (x < lo) {
    chunk(x, weigh_visible);
    x += kChunk;
  }
  for (; x + 4 * n <= hi; x += 4 * n) {
    TileVec w0 = hn::Sub(hn::LoadU(d, s + x), reference);
    TileVec w1 = hn::Sub(hn::LoadU(d, s + x + n), reference);
    TileVec w2 = hn::Sub(hn::LoadU(d, s + x + 2 * n), reference);
    TileVec w3 = hn::Sub(hn::LoadU(d, s + x + 3 * n), reference);
    Exp4(d, constants, w0, w1, w2, w3);
    w0 = rounded(w0);
    w1 = rounded(w1);
    w2 = rounded(w2);
    w3 = rounded(w3);
    hn::StoreU(w0, d, s + x);
    hn::StoreU(w1, d, s + x + n);
    hn::StoreU(w2, d, s + x + 2 * n);
    hn::StoreU(w3, d, s + x + 3 * n);
    // Each partial sum grows in the order of the columns.
    TileVec& second = kParts == 1 ? l0 : l1;
    l0 = hn::Add(l0, w0);
    second = hn::Add(second, w1);
    if constexpr (kParts < 4) {
      l0 = hn::Add(l0, w2);
      second = hn::Add(second, w3);
    } else {
      l2 = hn::Add(l2, w2);
      l3 = hn::Add(l3, w3);
    }
  }
  for (; x + kChunk <= hi; x += kChunk) chunk(x, weigh);
  if (x < hi) {
    chunk(x, weigh_visible);
    x += kChunk;
  }
  clear(x, columns);
  if constexpr (kParts == 1) {
    return Fold16(d, l0);
  } else if constexpr (kParts == 2) {
    return Fold16(d, l0, l1);
  } else {
    return Fold16(d, l0, l1, l2, l3);
  }
}

/// At most kMaxRows rows, the first of which is row `first`.
template <bool kRounds>
HWY_INLINE void Rows(const SoftmaxTile& a, int64_t first, int64_t rows) {
  const TileTag d;
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  float* s = a.s + first * a.lds;
  const int32_t* lo = a.lo + first;
  const int32_t* hi = a.hi + first;
  HWY_ALIGN float base[kMaxRows];  // the new maximum, then what exponentials are relative to
  HWY_ALIGN float block_sum[kMaxRows];
  const auto row_lo = [&](int64_t r) { return std::min<int64_t>(lo[r], hi[r]); };

  for (int64_t r = 0; r < rows; ++r) base[r] = RowMax(d, s + r * a.lds, row_lo(r), hi[r], a.max[first + r]);

  for (int64_t r = 0; r < rows; r += n) {
    const size_t count = static_cast<size_t>(std::min(n, rows - r));
    const TileVec m = hn::LoadN(d, base + r, count);
    const TileVec reference = hn::IfThenZeroElse(hn::Eq(m, hn::Set(d, -kInfinity)), m);
    const TileVec old = hn::LoadN(d, a.max + first + r, count);
    hn::StoreN(Exp(d, hn::Sub(old, reference)), d, a.alpha + first + r, count);
    hn::StoreN(hn::Add(m, hn::Zero(d)), d, a.max + first + r, count);
    hn::StoreN(reference, d, base + r, count);
  }

  const ExpConstants<TileTag> constants;
  const auto weigh_rows = [&](auto parts) SIMDATTN_LAMBDA {
    for (int64_t r = 0; r < rows; ++r) {
      block_sum[r] = RowWeights<parts, kRounds>(d, constants, s + r * a.lds, a.columns, row_lo(r), hi[r], base[r]);
    }
  };
  weigh_rows(std::integral_constant<int, kChunk / hn::MaxLanes(TileTag())>());

  for (int64_t r = 0; r < rows; r += n) {
    const size_t count = static_cast<size_t>(std::min(n, rows - r));
    const TileVec alpha = hn::LoadN(d, a.alpha + first + r, count);
    const TileVec sum = hn::LoadN(d, a.sum + first + r, count);
    hn::StoreN(hn::MulAdd(sum, alpha, hn::LoadN(d, block_sum + r, count)), d, a.sum + first + r, count);
  }
}

void SoftmaxTileSlot(const SoftmaxTile& a) {
  for (int64_t first = 0; first < a.rows; first += kMaxRows) Rows<false>(a, first, std::min(kMaxRows, a.rows - first));
}
void SoftmaxTileBF16(const SoftmaxTile& a) {
  for (int64_t first = 0; first < a.rows; first += kMaxRows) Rows<true>(a, first, std::min(kMaxRows, a.rows - first));
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_SOFTMAX_TILE_H_
