// Arithmetic::kInt8. Exact in any order: 255 * 127 * 256 keys and 127 * 127 * 131072 dimensions are below 2^31.
#pragma once

#include "lib/kernels/int8_pack.h"
#include "lib/kernels/register_tile.h"

namespace simdattn {
namespace {

constexpr bool kMatrix = kProducts == Products::kMatrix;
/// Rows of the largest tile: with two vectors of columns it fills the registers.
constexpr int64_t kInt8Rows = kMatrix ? 12 : kPairCells ? (kTileRows == 6 ? 4 : kTileRows) : kX86 && !kAvx512 ? 6 : 8;
/// A group is so many rows whose cells one vector holds, 16 bytes in every block: one row is repeated, two are
/// multiplied as a matrix, four by their lanes.
template <int64_t kRows>
constexpr int64_t kGroupRows = kMatrix && kRows % 2 == 0                            ? 2
                               : kProducts == Products::kDotLanes && kRows % 4 == 0 ? 4
                                                                                    : 1;
constexpr int64_t kLargestGroup = kGroupRows<kInt8Rows>;

/// Rows of cells that many tiles take, also in groups, 16 / kLargestGroup bytes of each row in turn.
template <int64_t kBytes>
class Int8Rows {
 public:
  /// `bytes` of each of `count` rows, a multiple of 8; those of all rows are at most kBytes.
  Int8Rows(const char* rows, int64_t stride, int64_t bytes, int64_t count)
      : rows_(rows), stride_(stride), bytes_(bytes) {
    constexpr int64_t kEach = 16 / kLargestGroup;
    for (int64_t r = 0; kLargestGroup > 1 && r < count / kLargestGroup * kLargestGroup; ++r) {
      char* const to = groups_ + r / kLargestGroup * kLargestGroup * bytes + r % kLargestGroup * kEach;
      for (int64_t i = 0; i < bytes; i += kEach) std::memcpy(to + i * kLargestGroup, rows + r * stride + i, kEach);
    }
  }
  /// Operands of an Int8Tile of kRows rows, the first of which is `r`.
  template <int64_t kRows>
  const char* at(int64_t r) const {
    return kGroupRows<kRows> > 1 ? groups_ + r * bytes_ : rows_ + r * stride_;
  }
  template <int64_t kRows>
  int64_t group_stride() const {
    return kGroupRows<kRows> > 1 ? kGroupRows<kRows> * bytes_ : stride_;
  }

 private:
  const char* rows_;
  int64_t stride_, bytes_;
  alignas(16) char groups_[kLargestGroup > 1 ? kBytes : 1];
};

/// One tile: rows of cells times two vectors of columns.
struct Int8Tile {
  const char* x;     // cells of the first group
  int64_t x_stride;  // bytes from a group to the next
  const char* columns;
  int64_t steps;         // cells of a row
  const int32_t* start;  // [rows]: of sums, where kFlipsKeys or kFlipsValues
  uintptr_t ahead = 0;   // what lies so many bytes behind the columns is prefetched, if any
};

SIMDATTN_INLINE Ints load_cells(const char* p) { return Ints::load_unaligned(reinterpret_cast<const int32_t*>(p)); }
/// A cell in every lane, as a number of f32: gcc would load an integer into a general register first.
SIMDATTN_INLINE Ints repeat_cell(const char* p) {
  float x;
  std::memcpy(&x, p, sizeof(x));
  return ints_of(Floats(x));
}

/// int8_tile() of groups of two rows, which are multiplied by two columns: two steps at a time, eight dimensions or
/// keys, of which the columns' second cell of an odd last step is zeros.
template <int64_t kRows, bool kWeights, class Finish>
SIMDATTN_INLINE void int8_matrix_tile(const Int8Tile& a, const Finish& finish) {
  // Number 4 p + 2 c + h: rows 2 p and 2 p + 1, and one half of the columns of vector c.
  Registers<2 * kRows, Ints> sum;
  Registers<4, Ints> column;
  clear(sum);
  const int64_t x_stride = a.x_stride;
  Cursor<const char> x(a.x), at(a.columns);
  const auto step = [&](auto two) SIMDATTN_LAMBDA {
    unroll<2>([&](auto c) SIMDATTN_LAMBDA {
      const char* const cells = at.get() + c * kLanes * 4;
      const Floats first = float_of(cast_bits<uint32_t>(load_cells(cells)));
      Floats second(0.0f);
      if constexpr (two) second = float_of(cast_bits<uint32_t>(load_cells(cells + kPanelWidth * 4)));
      reg<2 * c>(column) = ints_of(zip_lower(first, second));
      reg<2 * c + 1>(column) = ints_of(zip_upper(first, second));
    });
    unroll<kRows / 2>([&](auto p) SIMDATTN_LAMBDA {
      const Ints rows = load_group(x.get() + p * x_stride);
      unroll<4>([&](auto i)
                    SIMDATTN_LAMBDA { add_matrix_products<kWeights>(reg<4 * p + i>(sum), rows, reg<i>(column)); });
    });
  };
  for (int64_t steps = a.steps / 2; steps > 0; --steps) {
    step(std::true_type());
    x += 4 * kCellBytes;
    at += 2 * kPanelWidth * 4;
  }
  if (a.steps % 2 != 0) step(std::false_type());
  unroll<kRows / 2>([&](auto p) SIMDATTN_LAMBDA {
    unroll<2>([&](auto c) SIMDATTN_LAMBDA {
      const Ints lower = reg<4 * p + 2 * c>(sum), upper = reg<4 * p + 2 * c + 1>(sum);
      finish(constant<2 * p>, c, to_float(evens<uint64_t>(lower, upper)));
      finish(constant<2 * p + 1>, c, to_float(odds<uint64_t>(lower, upper)));
    });
  });
}

/// Two vectors of cells as add_products() takes them; of pairs all even bytes, then all odd ones.
template <bool kFlips>
SIMDATTN_INLINE void load_columns(const char* at, Registers<4, Ints>& column) {
  unroll<2>([&](auto c) SIMDATTN_LAMBDA {
    const Ints cells = load_cells(at + c * kLanes * 4);
    if constexpr (kPairCells) {
      reg<c>(column) = even_bytes(cells);
      reg<c + 2>(column) = odd_bytes(cells);
    } else {
      reg<c>(column) = kFlips ? cells ^ Ints(static_cast<int32_t>(0x80808080u)) : cells;
    }
  });
}

/// Calls finish(row, vector, sum) with the row and the number of the vector as types.
template <int64_t kRows, bool kWeights, class Finish>
SIMDATTN_INLINE void int8_tile(const Int8Tile& a, const Finish& finish) {
  constexpr int64_t kGroup = kGroupRows<kRows>;
  if constexpr (kGroup == 2) return int8_matrix_tile<kRows, kWeights>(a, finish);
  constexpr bool kFlips = kWeights ? kFlipsValues : kFlipsKeys;
  // Few sums would wait for each other, so every other step adds to a second set. Not with UDOT: gcc would copy the
  // sums.
  constexpr bool kAlternates = kRows <= 2 && kProducts != Products::kPairs && !(kWeights && kFlipsValues);
  Registers<2 * kRows, Ints> sum, more;
  Registers<4, Ints> column;
  unroll<2 * kRows>([&](auto i) SIMDATTN_LAMBDA {
    reg<i>(sum) = Ints(kFlips ? a.start[i / 2] : 0);
    reg<i>(more) = Ints(0);
  });
  const int64_t x_stride = a.x_stride;
  const uintptr_t ahead = a.ahead;
  Cursor<const char> x(a.x), at(a.columns);
  const auto step = [&](Registers<2 * kRows, Ints>& to) SIMDATTN_LAMBDA {
    if (ahead != 0) prefetch<2 * kLanes * 4>(reinterpret_cast<uintptr_t>(at.get()) + ahead);
    load_columns<kFlips>(at.get(), column);
    unroll<kRows / kGroup>([&](auto g) SIMDATTN_LAMBDA {
      const char* const cell = x.get() + g * x_stride;
      if constexpr (kGroup == 4) {
        const Ints rows = load_group(cell);
        unroll<8>([&](auto i) SIMDATTN_LAMBDA {
          add_lane_products<kWeights, i / 2>(reg<8 * g + i>(to), rows, reg<i % 2>(column));
        });
      } else {
        unroll<kCellBytes / 4>([&](auto half) SIMDATTN_LAMBDA {
          const Ints factors = repeat_cell(cell + 4 * half);
          unroll<2>([&](auto c) SIMDATTN_LAMBDA {
            add_products<kWeights>(reg<2 * g + c>(to), reg<2 * g + c>(more), factors, reg<c + 2 * half>(column));
          });
        });
      }
    });
    x += kGroup * kCellBytes;
    at += kPanelWidth * 4;
  };
  if constexpr (kAlternates) {
    for (int64_t steps = a.steps / 2; steps > 0; --steps) {
      step(sum);
      step(more);
    }
    if (a.steps % 2 != 0) step(sum);
  } else {
    for (int64_t steps = a.steps; steps > 0; --steps) step(sum);
  }
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    unroll<2>([&](auto c) SIMDATTN_LAMBDA {
      const Ints first = reg<2 * r + c>(sum), second = reg<2 * r + c>(more);
      finish(r, c, to_float(kAlternates ? first + second : total(first, second)));
    });
  });
}

/// f(first row, number of rows as a type) in tiles of kMost rows, then of half as many, ... 1; after 12 in tiles of 8.
/// Where kMost is 6, tiles are of about equal size, because 8 rows would be 6, 1 and 1.
template <int64_t kMost, class F>
SIMDATTN_INLINE void int8_row_tiles(int64_t first, int64_t rows, const F& f) {
  if constexpr (kMost == 6) {
    for (RowTiles t(rows, kMost); t.first < rows; t.next()) {
      with_rows<kMost>(t.rows, [&](auto count) SIMDATTN_LAMBDA { f(t.first, count); });
    }
  } else {
    for (; first + kMost <= rows; first += kMost) f(first, constant<kMost>);
    if constexpr (kMost > 1) int8_row_tiles<kMost == 12 ? 8 : kMost / 2>(first, rows, f);
  }
}

/// Passed as a copy: vectors may alias all types, so members would be loaded again after each store.
struct Int8Scores {
  const float* factors;  // [rows] scale of the query times that of the scores
  const float* scales;   // of the keys
  float* s;
  int64_t lds;
};
template <int64_t kRows>
SIMDATTN_SHARED void int8_score_tile(const Int8Tile& a, Int8Scores to) {
  int8_tile<kRows, false>(a, [&](auto r, auto c, Floats sum) SIMDATTN_LAMBDA {
    const Floats factor = Floats(to.factors[r]) * load(to.scales + c * kLanes);
    store(sum * factor, to.s + r * to.lds + c * kLanes);
  });
}

/// The same of dimensions in `blocks` scale blocks: s = fma(sum, scale, s), then times the factor. The starts of a
/// scale block are start_stride behind those of the one before.
template <int64_t kRows>
SIMDATTN_SHARED void int8_score_blocks_tile(Int8Tile a, int64_t blocks, int64_t start_stride, Int8Scores to) {
  const auto for_each_score = [&](const auto& f) SIMDATTN_LAMBDA {
    unroll<2 * kRows>([&](auto i) SIMDATTN_LAMBDA { f(i / 2, to.s + i / 2 * to.lds + i % 2 * kLanes); });
  };
  for_each_score([](auto, float* s) SIMDATTN_LAMBDA { store(Floats(0.0f), s); });
  for (; blocks > 0; --blocks) {
    int8_tile<kRows, false>(a, [&](auto r, auto c, Floats sum) SIMDATTN_LAMBDA {
      float* const s = to.s + r * to.lds + c * kLanes;
      store(mul_add(sum, load(to.scales + c * kLanes), load(s)), s);
    });
    a.x += a.steps * kCellBytes * kGroupRows<kRows>;
    a.columns += a.steps * kPanelWidth * 4;
    a.start += start_stride;
    to.scales += kPanelWidth;
  }
  for_each_score([&](auto r, float* s) SIMDATTN_LAMBDA { store(load(s) * Floats(to.factors[r]), s); });
}

/// Panels with scales behind them, or a.scales. kBlocks: BlockIntegers of narrow.h.
template <bool kBlocks>
void int8_scores(const ScoreTile& a) {
  constexpr int64_t kMost = kBlocks ? 16 : 64;  // rows at a time
  constexpr int64_t kBytes = 16384;             // fewer rows if that many do not fit, down to single ones
  const int64_t info_at = int8_query_numbers(a.dim) / 4 * kCellBytes;
  const int64_t fit = kBytes / info_at / kLargestGroup * kLargestGroup;
  const int64_t at_once = kLargestGroup > 1 ? larger(smaller(fit, kMost), 1) : kMost;
  const uintptr_t ahead = a.fetches() ? static_cast<uintptr_t>((16384 / a.panel_stride + 1) * a.panel_stride) : 0;
  const int64_t blocks = kBlocks ? a.dim / kBlockDims : 1;
  const int64_t steps = kBlocks ? kBlockDims / 4 : (a.dim + 3) / 4;
  float factors[kMost];
  int32_t start[kBlocks ? (kFlipsKeys ? kMaxNarrowDim / kBlockDims : 1) * kMost : kMost];
  for (int64_t first = 0; first < a.rows; first += at_once) {
    const int64_t rows = smaller(a.rows - first, at_once);
    const char* q = static_cast<const char*>(a.q) + first * a.q_stride;
    const Int8Rows<kBytes> queries(q, a.q_stride, info_at, rows);
    for (int64_t r = 0; r < rows; ++r) {
      Int8Query info;
      std::memcpy(&info, q + r * a.q_stride + info_at, sizeof(info));
      factors[r] = info.scale * a.scale;
      start[r] = -128 * info.sum;
      for (int64_t b = 0; kBlocks && kFlipsKeys && b < blocks; ++b)
        start[b * kMost + r] = -128 * int8_sum<false>(q + r * a.q_stride + b * kBlockDims, kBlockDims);
    }
    for (int64_t p = 0; p < a.n_panels; ++p) {
      const char* panel = static_cast<const char*>(a.panels) + p * a.panel_stride;
      const float* scales = a.scales != nullptr ? a.scales + p * kPanelWidth
                                                : reinterpret_cast<const float*>(panel + int8_panel_numbers(a.dim));
      int8_row_tiles<kInt8Rows>(0, rows, [&](int64_t r, auto count) SIMDATTN_LAMBDA {
        for (int64_t c = 0; c < kPanelWidth; c += 2 * kLanes) {
          const Int8Tile tile = {
              queries.template at<count>(r), queries.template group_stride<count>(), panel + c * 4, steps, start + r,
              first + r == 0 ? ahead : 0};
          const Int8Scores to = {factors + r, scales + c, a.s + (first + r) * a.lds + p * kPanelWidth + c, a.lds};
          if constexpr (kBlocks) int8_score_blocks_tile<count>(tile, blocks, kFlipsKeys ? kMost : 0, to);
          else int8_score_tile<count>(tile, to);
        }
      });
    }
  }
}

/// Bytes of a row of quantised weights: those of a key block, and what whole vectors write past them.
constexpr int64_t kInt8WeightBytes = kKeyBlock + larger(32, 4 * kLanes);
/// The same as cells.
constexpr int64_t kInt8WeightStride = kInt8WeightBytes / 4 * kCellBytes;

/// Products of weights and scales as bytes, 0 for negative ones, behind first_key zeros; at most 32 rows. scales: NaN
/// if a product is not finite. start: see Int8Tile. One pass over all rows and then the other: what a row waits for,
/// its largest product and two divisions, overlaps with other rows.
SIMDATTN_SHARED void int8_weigh_rows(const ValueTile& a, uint8_t* out, int64_t stride, float* scales, int32_t* start) {
  float inverse[32];
  const auto products = [&](int64_t r) SIMDATTN_LAMBDA {
    const float* const w = a.w + r * a.ldw;
    return [w, of_values = a.scales](int64_t i, auto part)
               SIMDATTN_LAMBDA { return load(w + i, part) * load(of_values + i, part); };
  };
  for (int64_t r = 0; r < a.rows; ++r) {
    // As integers, negative numbers are below 0, and NaN is larger than all numbers.
    Registers<2, Ints> largest{{Ints(0)}, {Ints(0)}};
    Registers<2> poison{{Floats(0.0f)}, {Floats(0.0f)}};  // NaN unless products are finite
    for_each_batch_in_chains<2>(a.keys, [&, product = products(r)](int64_t i, auto part, auto chain) SIMDATTN_LAMBDA {
      const Floats x = product(i, part);
      reg<chain>(largest) = max(reg<chain>(largest), ints_of(x));
      reg<chain>(poison) = mul_add(x, Floats(0.0f), reg<chain>(poison));
    });
    const Ints all = max(max(reg<0>(largest), reg<1>(largest)), ints_of(abs(reg<0>(poison) + reg<1>(poison))));
    const IntegerScale quantise(static_cast<uint32_t>(largest_lane(all)), 255.0f);
    scales[r] = quantise.scale;
    inverse[r] = quantise.inverse;
  }
  for (int64_t r = 0; r < a.rows; ++r) {
    uint8_t* const row = out + r * stride;
    const auto product = products(r);
    const Floats factor(inverse[r]);
    for (int64_t i = 0; i < a.first_key; i += 4) std::memset(row + i, 0, 4);  // no call
    store_integers<true, true>(a.keys, row + a.first_key, [&](int64_t i, auto part) SIMDATTN_LAMBDA {
      return nearest(max(product(i, part), Floats(0.0f)) * factor);
    });
    std::memset(row + a.first_key + a.keys, 0, kLanes);
    start[r] = kFlipsValues ? -128 * int8_sum<true>(row, a.first_key + a.keys) : 0;
  }
}
/// The same as cells, kInt8WeightStride bytes a row.
inline void int8_weight_cells(const ValueTile& a, char* out, float* scales, int32_t* start) {
  uint8_t* const bytes = reinterpret_cast<uint8_t*>(out) + kInt8WeightStride - kInt8WeightBytes;
  int8_weigh_rows(a, bytes, kInt8WeightStride, scales, start);
  for (int64_t r = 0; kPairCells && r < a.rows; ++r) {
    const int64_t at = r * kInt8WeightStride;
    int8_pair_cells<true>(bytes + at, a.first_key + a.keys, out + at);
  }
}

struct Int8Values {
  const float* scales;  // [rows]
  const float* alpha;   // null: 1
  float* o;
  int64_t ldo;
};
template <int64_t kRows>
SIMDATTN_SHARED void int8_value_tile(const Int8Tile& a, Int8Values to) {
  int8_tile<kRows, true>(a, [&](auto r, auto c, Floats sum) SIMDATTN_LAMBDA {
    float* const o = to.o + r * to.ldo + c * kLanes;
    const Floats before = Floats(to.alpha != nullptr ? to.alpha[r] : 1.0f) * load(o);
    store(mul_add(sum, Floats(to.scales[r]), before), o);
  });
}

inline void int8_value_packed(const ValueTile& a) {
  constexpr int64_t kMost = 32;  // rows at a time: their weights and a group of columns stay in L1
  constexpr int64_t kStride = kInt8WeightStride;
  const char* block = static_cast<const char*>(a.v);
  const float* scales = reinterpret_cast<const float*>(block + int8_values_numbers(a.dim)) + a.first_key;
  const int64_t offset = a.first_key % 4;
  const int64_t steps = (offset + a.keys + 3) / 4;
  alignas(64) char weights[kMost * kStride];
  float weight_scales[kMost];
  int32_t start[kMost];
  for (int64_t first = 0; first < a.rows; first += kMost) {
    const int64_t rows = smaller(a.rows - first, kMost);
    ValueTile part = a;
    part.w += first * a.ldw;
    part.rows = rows;
    part.scales = scales;
    part.first_key = offset;
    int8_weight_cells(part, weights, weight_scales, start);
    const Int8Rows<kMost * kStride> cells(weights, kStride, kStride, rows);
    for (int64_t c = 0; c < a.dim; c += 2 * kLanes) {
      const char* columns =
          block + c / kValueGroup * kValueGroup * kKeyBlock + (a.first_key / 4 * kValueGroup + c % kValueGroup) * 4;
      int8_row_tiles<kInt8Rows>(0, rows, [&](int64_t r, auto count) SIMDATTN_LAMBDA {
        int8_value_tile<count>(
            {cells.template at<count>(r), cells.template group_stride<count>(), columns, steps, start + r},
            {weight_scales + r, a.alpha != nullptr ? a.alpha + first + r : nullptr, a.o + (first + r) * a.ldo + c,
             a.ldo});
      });
    }
  }
}

// ---- Values in rows of stored integers ------------------------------------------------------------------------------
// Nothing is packed, because a few rows of weights would not pay for it.

/// Rows of the largest tile: its sums, four vectors of columns and a cell of the row fill the registers.
constexpr int64_t kStoredRows = kAvx512 ? 4 : 2;

/// Rows of weights, as cells, times up to 4 kLanes columns. Four rows of values are interleaved in registers: sum k has
/// columns 4 k .. 4 k + 3 of each 16. `ahead`: what is prefetched for each key.
template <int64_t kRows>
SIMDATTN_SHARED void int8_stored_tile(const ValueTile& a, const char* weights, const float* scales,
                                      PrefetchPlan ahead) {
  Registers<4 * kRows, Ints> sum;
  clear(sum);
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
    Registers<4, Ints> column;
    interleave_four<uint8_t, uint16_t>(r0, r1, r2, r3,
                                       [&](auto i, Floats v) SIMDATTN_LAMBDA { reg<i>(column) = ints_of(v); });
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
