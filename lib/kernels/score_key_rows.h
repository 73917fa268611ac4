// Scores of a few query rows against keys in rows, which are transposed in registers and multiplied at once.
#pragma once

#include "lib/kernels/score_tile.h"
#include "lib/simd/blocks.h"

namespace simdattn {
namespace {

/// The rows that a tile prefetches: those of a list into L2; else those 32 rows below into L1, in memory order, of
/// which the hardware's prefetcher runs ahead. With Fetch::kPages four parts of the rows come in turns, a page each.
template <class T>
class RowsBelow {
 public:
  SIMDATTN_INLINE RowsBelow(const ScoreTile& a, uintptr_t first, const char* const* listed)
      : listed_(listed),
        first_(listed != nullptr ? address_at(*listed, 0) : first),
        line_(first_),
        stride_(static_cast<uintptr_t>(a.panel_stride)),
        bytes_(static_cast<uintptr_t>(a.dim) * sizeof(T)),  // no fault: what is fetched changes no result
        turns_(a.fetch == Fetch::kPages ? 2 : 0),
        // Rows without gaps are one.
        row_end_(turns_ == 0 && stride_ == bytes_ && listed == nullptr ? UINTPTR_MAX : line_ + bytes_) {}
  /// Two lines: of rows of an odd number of lines, with gaps between them, the last one is left out.
  SIMDATTN_INLINE void fetch() {
    if (line_ >= row_end_) [[unlikely]] {
      constexpr int kRowBits = 5;
      static_assert(kPanelWidth == 1 << kRowBits);
      ++row_;
      line_ = listed_ != nullptr
                  ? address_at(listed_[row_], 0)
                  : first_ + (((row_ & ((1u << turns_) - 1)) << (kRowBits - turns_)) + (row_ >> turns_)) * stride_;
      row_end_ = line_ + bytes_;
    }
    if (listed_ != nullptr) prefetch<128>(line_);
    else prefetch<128, 3>(line_);
    line_ += 128;
  }

 private:
  const char* const* listed_;
  uintptr_t first_, line_, stride_, bytes_;
  int turns_;
  uintptr_t row_end_;
  uintptr_t row_ = 0;
};

/// The first kRows rows against kBatches vectors of keys, whose rows are at keys[0], keys[1], ...
template <class T, int64_t kRows, int64_t kBatches>
__attribute__((noinline)) void score_key_vectors(const ScoreTile& a, const char* const* keys) {
  constexpr int64_t kDims = 16 / sizeof(T);
  const int64_t ldq = a.q_stride / static_cast<int64_t>(sizeof(float));
  const float* q = static_cast<const float*>(a.q);
  Registers<kRows * kBatches> acc;
  clear(acc);
  // The order of additions is that of the dimensions, as in panels.
  const auto add = [&](int64_t i, auto batch, Floats v) SIMDATTN_LAMBDA {
    unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
      Floats& sum = reg<kBatches * r + batch>(acc);
      sum = mul_add(Floats(q[r * ldq + i]), v, sum);
    });
  };
  RowsBelow<T> below(a, address_at(*keys, (kBatches == 1 ? kPanelWidth / 2 : kPanelWidth) * a.panel_stride),
                     a.listed != nullptr ? keys + kPanelWidth : nullptr);
  const bool fetches = a.fetches() || a.listed != nullptr;
  for (int64_t i = 0; i < a.dim; i += kDims, q += kDims) {
    if (fetches) unroll<kBatches * kLanes / 8>([&](auto) SIMDATTN_LAMBDA { below.fetch(); });
    const auto at = [&](int64_t row) SIMDATTN_LAMBDA { return reinterpret_cast<const T*>(keys[row]) + i; };
    if constexpr (std::is_same_v<T, f16>) {
      transpose_blocks<uint16_t>(
          [&](int64_t k)
              SIMDATTN_LAMBDA { return load_blocks_at([&](int64_t b) SIMDATTN_LAMBDA { return at(k + 8 * b); }); },
          [&](int64_t k, auto v) SIMDATTN_LAMBDA {
            add(k, constant<0>, f32_of_half<false>(v));
            add(k, constant<1>, f32_of_half<true>(v));
          });
    } else {
      unroll<kBatches>([&](auto batch) SIMDATTN_LAMBDA {
        transpose_blocks<uint32_t>(
            [&](int64_t k) SIMDATTN_LAMBDA {
              return load_blocks_at([&](int64_t b) SIMDATTN_LAMBDA { return at(batch * kLanes + k + 4 * b); });
            },
            [&](int64_t k, Floats v) SIMDATTN_LAMBDA {
              if constexpr (std::is_same_v<T, bf16>) {
                add(2 * k, batch, even_of(bits_of(v)));
                add(2 * k + 1, batch, odd_of(bits_of(v)));
              } else {
                add(k, batch, v);
              }
            });
      });
    }
  }
  store_scores<kRows, kBatches>(acc, a);
}

template <class T, int64_t kBatches>
SIMDATTN_INLINE void score_all_key_rows(ScoreTile a) {
  constexpr int64_t kStep = kBatches * kLanes;
  const char* rows[kStep];
  for (int64_t j = 0; j < a.n_panels * kPanelWidth; j += kStep, a.s += kStep) {
    const char* const* first = a.listed + j;
    if (a.listed == nullptr) {
      for (int64_t i = 0; i < kStep; ++i) rows[i] = static_cast<const char*>(a.panels) + (j + i) * a.panel_stride;
      first = rows;
    }
    score_in_parts(a, [first](const ScoreTile& part) SIMDATTN_LAMBDA {
      if (part.rows == 4) score_key_vectors<T, 4, kBatches>(part, first);
      else if (part.rows == 2) score_key_vectors<T, 2, kBatches>(part, first);
      else score_key_vectors<T, 1, kBatches>(part, first);
    });
  }
}
template <class T>
void score_key_rows(const ScoreTile& a) {
  if constexpr (kLanes == kPanelWidth / 2 && std::is_same_v<T, float>) {
    if (a.keys_at_once < kPanelWidth) return score_all_key_rows<T, 1>(a);
  }
  score_all_key_rows<T, 2>(a);
}

}  // namespace
}  // namespace simdattn
