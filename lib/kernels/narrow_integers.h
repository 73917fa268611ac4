// Scores in Arithmetic::kInt8 of keys in blocks with scales of their own: BlockIntegers::score() of lib/contract/narrow_operands.h.
#ifndef SIMDATTN_LIB_KERNELS_NARROW_INTEGERS_H_
#define SIMDATTN_LIB_KERNELS_NARROW_INTEGERS_H_

#include "lib/contract/narrow_operands.h"
#include "lib/kernels/register_tile.h"

namespace simdattn {
namespace {

constexpr int64_t kIntegerRows = 4;
/// Words that stand for four dimensions: their bytes, or pairs of 16 bits: of 0 and 2, then of 1 and 3.
constexpr int64_t kQueryWords = kProducts == Products::kPairs ? 2 : 1;
struct IntegerQueries {
  const int32_t* words[kIntegerRows];
  float scale[kIntegerRows];
};

/// kRows rows against the keys of one vector of a panel.
template <int64_t kRows>
SIMDATTN_INLINE void score_block_keys(const IntegerQueries& q, const uint8_t* panel, const float* scales, int64_t dim,
                                      float* out, int64_t ld) {
  Registers<kRows> acc;
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA { reg<r>(acc) = Floats(0.0f); });
  for (int64_t b = 0; b < dim; b += 32, scales += kPanelWidth) {
    Registers<kRows, Ints> sum, more;
    unroll<kRows>([&](auto r) SIMDATTN_LAMBDA { reg<r>(sum) = reg<r>(more) = Ints(0); });
    for (int64_t i = b / 4; i < b / 4 + 8; ++i) {
      const Ints cells = Ints::load_unaligned(reinterpret_cast<const int32_t*>(panel + i * kPanelWidth * kUnitBytes));
      unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
        const auto add = [&](int64_t word, Ints numbers) SIMDATTN_LAMBDA {
          add_products<false>(reg<r>(sum), reg<r>(more), Ints(q.words[r][kQueryWords * i + word]), numbers);
        };
        if constexpr (kQueryWords == 2) {
          add(0, even_bytes(cells));
          add(1, odd_bytes(cells));
        } else {
          add(0, cells);
        }
      });
    }
    unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
      reg<r>(acc) = mul_add(to_float(total(reg<r>(sum), reg<r>(more))), load(scales), reg<r>(acc));
    });
  }
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA { store(reg<r>(acc) * Floats(q.scale[r]), out + r * ld); });
}

void score_block_integers(const ScoreTile& a) {
  using Integers = BlockIntegers<KvType::kQ8_0>;
  int32_t words[kMaxNarrowDim / 4 * kQueryWords];
  // Of more dimensions rows are taken one by one: their words lie on the stack.
  const int64_t together = a.dim > kMaxNarrowDim / kIntegerRows ? 1 : kIntegerRows;
  for (RowTiles t(a.rows, together); t.first < a.rows; t.next()) {
    IntegerQueries q;
    for (int64_t r = 0; r < t.rows; ++r) {
      int8_t x[kMaxNarrowDim];
      const char* const query = static_cast<const char*>(a.q) + (t.first + r) * a.q_stride;
      q.scale[r] = Integers::query_integers(query, a.q_stride, a.dim, x).scale * a.scale;
      int32_t* const to = words + r * (a.dim / 4 * kQueryWords);
      q.words[r] = to;
      if constexpr (kQueryWords == 1) {
        std::memcpy(to, x, static_cast<size_t>(a.dim));
      } else {
        for (int64_t i = 0; i < a.dim / 2; ++i) {
          const int8_t* const from = x + i / 2 * 4 + i % 2;
          to[i] = static_cast<int32_t>(static_cast<uint32_t>(from[0] & 0xFFFF) | static_cast<uint32_t>(from[2]) << 16);
        }
      }
    }
    for (int64_t j = 0; j < a.n_panels * kPanelWidth; j += kLanes) {
      const uint8_t* const panel = static_cast<const uint8_t*>(a.panels) + j / kPanelWidth * a.panel_stride;
      const float* const scales = reinterpret_cast<const float*>(panel + int8_panel_numbers(a.dim));
      const int64_t inside = j % kPanelWidth;
      with_rows<kIntegerRows>(t.rows, [&](auto rows) SIMDATTN_LAMBDA {
        score_block_keys<rows>(q, panel + kUnitBytes * inside, scales + inside, a.dim, a.s + t.first * a.lds + j,
                               a.lds);
      });
    }
  }
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_NARROW_INTEGERS_H_
