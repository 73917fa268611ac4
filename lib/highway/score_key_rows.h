// Scores of a few query rows against keys in rows: each transposed in registers and multiplied at once, without a panel in between.
#ifndef SIMDATTN_LIB_HIGHWAY_SCORE_KEY_ROWS_H_
#define SIMDATTN_LIB_HIGHWAY_SCORE_KEY_ROWS_H_

#include "hwy/highway.h"
#include "lib/highway/key_rows.h"
#include "lib/highway/register_tile.h"

#if SIMDATTN_SCORES_KEY_ROWS
namespace simdattn {
namespace {

/// Three rows are two and one: L1 still has the keys.
HWY_INLINE ScoreTile RowsFrom(ScoreTile a, int64_t row) {
  a.q = static_cast<const char*>(a.q) + row * a.q_stride;
  a.s += row * a.lds;
  return a;
}

/// The first kRows rows against kVecs vectors of keys from `keys` on. A vector alone waits for its sums, which
/// costs less than keys that fill L1.
template <class T, size_t kRows, size_t kVecs>
HWY_NOINLINE void Vectors(const ScoreTile& a, const T* keys) {
  const TileTag d;
  WithRegisters(d, [&](const Accumulators& acc, const Columns& /*k*/) SIMDATTN_LAMBDA {
    constexpr int64_t n = static_cast<int64_t>(hn::MaxLanes(TileTag()));
    constexpr int64_t kDims = 16 / sizeof(T);
    const int64_t stride = a.panel_stride / static_cast<int64_t>(sizeof(T));
    const int64_t ldq = a.q_stride / static_cast<int64_t>(sizeof(float));
    const float* q = static_cast<const float*>(a.q);
    // The order of additions is that of the dimensions, as in panels.
    const auto add = [&](int64_t i, auto vector, TileVec v) SIMDATTN_LAMBDA {
      ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
        TileVec& sum = Get<kVecs * r + vector>(acc);
        sum = hn::MulAdd(hn::Set(d, q[static_cast<int64_t>(r) * ldq + i]), v, sum);
      });
    };
    constexpr std::integral_constant<size_t, 0> kLow;
    constexpr std::integral_constant<size_t, 1> kHigh;
    // 32 rows below, into L1 and in memory order, which the hardware runs ahead of: a line of each row in turn, or into L2, takes 1.06 - 1.2
    // of the time. From memory one row of four parts in turns, a page each in f32: 0.93 of the time, in L3 1.02.
    constexpr int kRowBits = 5;
    static_assert(kPanelWidth == 1 << kRowBits);
    const int turns = a.fetch == Fetch::kPages ? 2 : 0;
    const uintptr_t below = address_at(keys, (kVecs == 1 ? kPanelWidth / 2 : kPanelWidth) * stride);
    uintptr_t line = below;
    const uintptr_t bytes = static_cast<uintptr_t>(a.dim) * sizeof(T);
    // Rows without gaps are one: a branch for each line took 1.1 of the time (f32 from memory, Zen 4).
    uintptr_t row_end = turns == 0 && stride == a.dim ? UINTPTR_MAX : line + bytes;
    uintptr_t row = 0;
    for (int64_t i = 0; i < a.dim; i += kDims, q += kDims) {
      if (a.fetches()) {
        // Two lines at a time: rows of an odd number of lines, with gaps between them, are fetched but for the last ones.
        ForEach<kVecs* static_cast<size_t>(n) / 8>([&](auto) SIMDATTN_LAMBDA {
          __builtin_prefetch(reinterpret_cast<const char*>(line), 0, 3);
          __builtin_prefetch(reinterpret_cast<const char*>(line + 64), 0, 3);
          line += 128;
          if (HWY_UNLIKELY(line >= row_end)) {
            ++row;
            const uintptr_t at = ((row & ((1u << turns) - 1)) << (kRowBits - turns)) + (row >> turns);
            line = below + at * static_cast<uintptr_t>(a.panel_stride);
            row_end = line + bytes;
          }
        });
      }
      const T* p = keys + i;
      if constexpr (std::is_same_v<T, f16>) {
        EightHalves(p, stride, [&](auto k, TileVec low, TileVec high) SIMDATTN_LAMBDA {
          add(k, kLow, low);
          add(k, kHigh, high);
        });
      } else {
        const auto one = [&](const T* from, auto vector) SIMDATTN_LAMBDA {
          FourLanes(from, stride, [&](auto k, TileVec v) SIMDATTN_LAMBDA {
            if constexpr (std::is_same_v<T, bf16>) {
              add(2 * k, vector, EvenOf(d, v));
              add(2 * k + 1, vector, OddOf(d, v));
            } else {
              add(k, vector, v);
            }
          });
        };
        one(p, kLow);
        if constexpr (kVecs == 2) one(p + n * stride, kHigh);
      }
    }
    const TileVec scale = hn::Set(d, a.scale);
    ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
      float* out = a.s + static_cast<int64_t>(r) * a.lds;
      hn::StoreU(hn::Mul(Get<kVecs * r>(acc), scale), d, out);
      if constexpr (kVecs == 2) hn::StoreU(hn::Mul(Get<kVecs * r + 1>(acc), scale), d, out + n);
    });
  });
}

template <class T, size_t kVecs = 2>
HWY_INLINE void AllKeys(ScoreTile a) {
  constexpr int64_t kStep = static_cast<int64_t>(kVecs * hn::MaxLanes(TileTag()));
  const int64_t stride = a.panel_stride / static_cast<int64_t>(sizeof(T));
  const int64_t keys = a.n_panels * kPanelWidth;
  for (int64_t j = 0; j < keys; j += kStep, a.s += kStep) {
    const T* const first = static_cast<const T*>(a.panels) + j * stride;
    if (a.rows == 4) {
      Vectors<T, 4, kVecs>(a, first);
      continue;
    }
    if (a.rows > 1) Vectors<T, 2, kVecs>(a, first);
    if (a.rows % 2 != 0) Vectors<T, 1, kVecs>(RowsFrom(a, a.rows - 1), first);
  }
}

void ScoreKeyRowsF32(const ScoreTile& a) {
  if constexpr (hn::MaxLanes(TileTag()) == kPanelWidth / 2) {
    if (a.keys_at_once < kPanelWidth) return AllKeys<float, 1>(a);
  }
  AllKeys<float>(a);
}
void ScoreKeyRowsBF16(const ScoreTile& a) { AllKeys<bf16>(a); }
void ScoreKeyRowsF16(const ScoreTile& a) { AllKeys<f16>(a); }

}  // namespace
}  // namespace simdattn
#endif

#endif  // SIMDATTN_LIB_HIGHWAY_SCORE_KEY_ROWS_H_
