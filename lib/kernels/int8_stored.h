// Values of Arithmetic::kInt8 from rows of stored integers, as they are. Nothing is packed, because a few rows of
// weights would not pay for it.
#ifndef SIMDATTN_LIB_KERNELS_INT8_STORED_H_
#define SIMDATTN_LIB_KERNELS_INT8_STORED_H_

#include "lib/kernels/int8.h"

namespace simdattn {
namespace {

/// Rows of the largest tile: its sums, four vectors of columns and a cell of the row fill the registers.
constexpr int64_t kStoredRows = kAvx512 ? 4 : 2;

/// Rows of weights, as cells, times up to 4 kLanes columns. Four rows of values are interleaved in registers: sum k has
/// columns 4 k .. 4 k + 3 of each 16. `ahead`: what is prefetched for each key.
template <int64_t kRows>
SIMDATTN_SHARED void int8_stored_tile(const ValueTile& a, const char* weights, const float* scales,
                                      PrefetchPlan ahead) {
  Registers<4 * kRows, Ints> sum;
  unroll<4 * kRows>([&](auto i) SIMDATTN_LAMBDA { reg<i>(sum) = Ints(0); });
  const int64_t row_stride = a.key_stride;
  const int64_t columns = a.dim;
  Cursor<const char> row(static_cast<const char*>(a.v));
  for (int64_t left = a.keys; left > 0; left -= 4) {
    for (int64_t i = 0; ahead.count > 0 && i < 4; ++i, ahead.first += static_cast<uintptr_t>(ahead.pitch)) {
      prefetch<64>(ahead.first);
    }
    // Rows past the last one have weight 0.
    const int64_t at1 = left > 1 ? row_stride : 0, at2 = left > 2 ? 2 * row_stride : 0,
                  at3 = left > 3 ? 3 * row_stride : 0;
    const char* const p = row.get();
    const Floats r0 = load_cells(p, columns), r1 = load_cells(p + at1, columns);
    const Floats r2 = load_cells(p + at2, columns), r3 = load_cells(p + at3, columns);
    const Floats low0 = zip_lo<uint8_t>(r0, r1), low1 = zip_lo<uint8_t>(r2, r3);
    const Floats high0 = zip_hi<uint8_t>(r0, r1), high1 = zip_hi<uint8_t>(r2, r3);
    Registers<4, Ints> column = {{ints_of(zip_lo<uint16_t>(low0, low1))},
                                 {ints_of(zip_hi<uint16_t>(low0, low1))},
                                 {ints_of(zip_lo<uint16_t>(high0, high1))},
                                 {ints_of(zip_hi<uint16_t>(high0, high1))}};
    unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
      const char* const cell = weights + r * kInt8WeightStride;
      const Ints x = repeat_cell(cell);
      unroll<4>([&](auto c) SIMDATTN_LAMBDA {
        Ints& s = reg<4 * r + c>(sum);
        if constexpr (kPairCells) {
          add_products<true>(s, s, x, even_bytes(reg<c>(column)));
          add_products<true>(s, s, repeat_cell(cell + 4), odd_bytes(reg<c>(column)));
        } else {
          add_products<true>(s, s, x, reg<c>(column));
        }
      });
    });
    weights += kCellBytes;
    row += 4 * row_stride;
  }
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    Registers<4> t;
    unroll<4>([&](auto c) SIMDATTN_LAMBDA { reg<c>(t) = to_float(reg<4 * r + c>(sum)); });
    order_columns(reg<0>(t), reg<1>(t), reg<2>(t), reg<3>(t));
    float* const o = a.o + r * a.ldo;
    const Floats alpha(a.alpha != nullptr ? a.alpha[r] : 1.0f), scale(scales[r]);
    unroll<4>([&](auto i) SIMDATTN_LAMBDA {
      constexpr int64_t c = i * kLanes;
      const auto put = [&](auto part) SIMDATTN_LAMBDA {
        store(mul_add(reg<i>(t), scale, alpha * load(o + c, part)), o + c, part);
      };
      if (columns - c >= kLanes) put(All());
      else if (columns > c) put(first_lanes(columns - c));
    });
  });
}

/// int8_value_packed() of integers in rows as they are stored. At most kKeyBlock keys.
template <int64_t kMost = kStoredRows>
void int8_value_stored(const ValueTile& a) {
  constexpr int64_t kWidth = 4 * kLanes;
  alignas(64) char weights[kMost * kInt8WeightStride];
  float weight_scales[kMost];
  int32_t start[kMost];  // not used
  for (RowTiles t(a.rows, kMost); t.first < a.rows; t.next()) {
    ValueTile tile = a;
    tile.w += t.first * a.ldw;
    tile.rows = t.rows;
    tile.first_key = 0;
    if (a.alpha != nullptr) tile.alpha += t.first;
    int8_weight_cells(tile, weights, weight_scales, start);
    for (int64_t c = 0; c < a.dim; c += kWidth) {
      tile.v = static_cast<const char*>(a.v) + c;
      tile.dim = smaller(a.dim - c, kWidth);
      tile.o = a.o + t.first * a.ldo + c;
      PrefetchPlan ahead;
      if (a.fetches() && t.first == 0) {
        // The next key block; rows that lie side by side are fetched in the order of memory.
        const bool together = a.key_stride == a.dim;
        const int64_t offset = a.keys * a.key_stride + (together ? a.keys * c : c);
        ahead = {address_at(static_cast<const char*>(a.v), offset), together ? tile.dim : a.key_stride, a.keys};
      }
      with_rows<kMost>(t.rows,
                       [&](auto rows) SIMDATTN_LAMBDA { int8_stored_tile<rows>(tile, weights, weight_scales, ahead); });
    }
  }
}

/// By the names that lib/contract/int8_operands.h asks for.
struct Int8Kernels {
  static constexpr auto query_bytes = int8_kernel_query_bytes;
  static constexpr auto panel_bytes = int8_panel_bytes;
  static constexpr auto values_bytes = int8_values_bytes;
  template <class T>
  static constexpr auto prepare_query = int8_prepare_query<T>;
  template <class T>
  static constexpr auto pack_keys = int8_pack_keys<T>;
  template <class T>
  static constexpr auto pack_values = int8_pack_values<T>;
  static constexpr bool kScalesApart = true;
  static constexpr auto score_packed = int8_scores<false>;
  static constexpr auto score_blocks = int8_scores<true>;
  static constexpr auto value_packed = int8_value_packed;
  static constexpr void (*value_stored())(const ValueTile&) {
    if constexpr (kMultipliesStored) return int8_value_stored<>;
    else return nullptr;
  }
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_INT8_STORED_H_
