// Scores of few query rows straight from the codes of the narrow storage types: each number is made in a register,
// times its scale, and multiplied there. The sums are those of score_tile.h over the same numbers in the same order.
//
// From the outside in:
//   score_codes        panels of codes: a tile at a time
//   score_code_rows    rows of codes: score_some_code_rows() makes panels of them in L1, two steps of columns in turns.
//                      While a tile multiplies one step, it makes the other: RowPieces
//   score_codes_tile   a tile: CodeTile has its registers, CodeFactors the scales of its columns
// code_columns.h makes numbers of codes, and has RowPieces.
#pragma once

#include "lib/contract/fma.h"
#include "lib/kernels/code_columns.h"
#include "lib/kernels/score_tile.h"

namespace simdattn {
namespace {

/// Query rows that are multiplied so. With 4 lanes, and with SVE, numbers go through L1 as f32 instead.
constexpr int64_t kFusedRows = kLoadsBlocks && kLanes > 4 ? kMostScoreRows : 0;

/// The format that a tile is compiled for. Both types of fp8 share tiles, and int8 and q8_0 in panels do: a tile asks
/// once per unit or scale block which type it has.
template <KvType kType, bool kInRows>
using TileFormat =
    std::conditional_t<FormatOf<kType>::kFp8, E4M3Format,
                       std::conditional_t<kType == KvType::kQ8_0 && !kInRows, Int8Format, FormatOf<kType>>>;

struct CodeScoreArguments : ScoreTileArguments {
  RowPieces next = {};  // while the tile is multiplied
};

/// Scores one by one: where codes of NaN are among the keys, or scales do not fit.
template <class Format>
SIMDATTN_SHARED void score_codes_one_by_one(const ScoreTileArguments& a, int64_t rows, int64_t columns) {
  for (int64_t j = 0; j < columns; ++j) {
    const int64_t half = columns / 2;
    const uint8_t* const key = reinterpret_cast<const uint8_t*>(j < half ? a.low : a.high) + j % half * kUnitBytes;
    for (int64_t r = 0; r < rows; ++r) {
      float sum = 0.0f;
      for (int64_t i = 0; i < a.dim; ++i) {
        float number[kLanes];
        store(number_of<0>(Bits32(key[i / 4 * kUnitPitch + i % 4]), Format()), number);
        sum = simdattn::fma(a.q[r * a.ldq + i], number[0] * a.scales[a.column + j], sum);
      }
      a.s[r * a.lds + j] = sum * a.scale;
    }
  }
}

/// The scales of a tile's columns times `power`: one for all numbers of a key, or those of its scale blocks in turn.
template <int64_t kBatches>
struct CodeFactors {
  const float* apart;  // null: in scale blocks
  TileColumns<f16, kBatches> of_blocks;
  Floats power;

  SIMDATTN_INLINE void next(Registers<kBatches>& factor, bool in_blocks) {
    unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA {
      reg<c>(factor) = (in_blocks ? load(of_blocks.at(c)) : load(apart + c * kLanes)) * power;
    });
    of_blocks.step();
  }
};
/// A tile while it is multiplied. kInRows: its arguments are CodeScoreArguments.
template <class Format, bool kInRows, int64_t kRows>
struct CodeTile {
  static constexpr int64_t kBatches = kRows <= kWideRows ? 4 : 2, kBlockUnits = Format::kLayout.block_units();
  static constexpr int64_t kBytes = kBatches * kLanes * kUnitBytes;  // of a unit of all columns
  static constexpr bool kInBlocks = Format::kLayout.scale_bytes > 0;

  const ScoreTileArguments& a;
  Fp8Ahead<kBatches> fp8;
  const float* q = a.q;
  int64_t ldq = a.ldq;
  TileColumns<uint32_t, kBatches> columns{a};
  uintptr_t fetched = a.prefetch.first;
  int64_t to_fetch = a.prefetch.count;
  RowPieces pieces = kInRows ? static_cast<const CodeScoreArguments&>(a).next : RowPieces();
  Registers<kRows * kBatches> acc = {};
  Registers<kBatches> factor = {};

  /// n numbers of a unit of each column, from number `first` on. `more`: there is a next one.
  SIMDATTN_INLINE void add_unit(auto first, int64_t n, bool more) {
    if (first == 0 && to_fetch-- > 0) {
      prefetch<kBytes>(fetched);
      fetched += kBytes;
    }
    if constexpr (kInRows && first == 0) {
      if (pieces.any()) pieces.transpose(kInBlocks ? kBlockUnits : 0);
    }
    if constexpr (Format::kFp8) {
      fp8.turn();
      if (more) fp8.make_units(columns, kPanelWidth);
    }
    unroll<4>([&](auto i) SIMDATTN_LAMBDA {
      if (i >= n) return;
      Registers<kBatches> key;
      unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA {
        if constexpr (Format::kFp8) reg<c>(key) = fp8.of_unit(c, i);
        else reg<c>(key) = unit_number<first + i>(Bits32::load_unaligned(columns.at(c)), Format());
        reg<c>(key) = reg<c>(key) * reg<c>(factor);
      });
      add_outer_product<kRows, kBatches>(q + i, ldq, key, acc);
    });
    q += 4;
    columns.step();
  }
};

/// Scales are a.scales; null: those of scale blocks, behind the units.
template <class Format, bool kInRows, int64_t kRows>
__attribute__((noinline)) void score_codes_tile(const ScoreTileArguments& a, bool e4m3) {
  using Tile = CodeTile<Format, kInRows, kRows>;
  constexpr int64_t kBatches = Tile::kBatches, kBlockUnits = Tile::kBlockUnits;
  constexpr bool kFp8 = Format::kFp8, kNibbles = Format::kBits == 4;
  const bool in_blocks = Tile::kInBlocks || (!kFp8 && !kInRows && a.scales == nullptr);
  alignas(64) uint16_t numbers[2][kFp8 ? Tile::kBytes : 1];
  Tile tile{a, {numbers[0], numbers[1], {e4m3}}};
  // Two bytes for each column.
  const auto scales_of = [&](const char* units, int64_t column) SIMDATTN_LAMBDA {
    return units + a.dim / kBlockDims * kBlockUnits * kUnitPitch - column % kPanelWidth * (kUnitBytes - kScaleBytes);
  };
  CodeFactors<kBatches> factors = {
      a.scales + a.column,
      {scales_of(a.low, a.column), nullptr, scales_of(a.high, a.column + kBatches / 2 * kLanes)},
      Floats(kFp8       ? tile.fp8.as_f16.power
             : kNibbles ? kNibblePower
                        : 0x1p-24f)};
  const int64_t block = in_blocks ? kBlockDims : a.dim;
  if constexpr (kFp8) {
    if (a.dim > 0) tile.fp8.make_units(tile.columns, 0);
  }
  for (int64_t i = 0; i < a.dim; i += block) {
    factors.next(tile.factor, in_blocks);
    if constexpr (kNibbles) {
      for (int64_t u = 0; u < kBlockUnits; ++u) tile.add_unit(constant<0>, 4, true);
      tile.columns.step(-kBlockUnits);
      for (int64_t u = 0; u < kBlockUnits; ++u) tile.add_unit(constant<4>, 4, true);
    } else {
      int64_t rest = block;
      for (; rest >= 4; rest -= 4) tile.add_unit(constant<0>, 4, rest > 4);
      if (!kInRows && rest > 0) tile.add_unit(constant<0>, rest, false);  // rows are whole pieces
    }
  }
  store_scores<kRows, kBatches>(tile.acc, a);
  if constexpr (!Tile::kInBlocks) {
    if (in_blocks || (kFp8 && !e4m3)) return;
    if (saw_nan(tile.fp8.seen) || !scales_fit<Format>(a.scales + a.column, kBatches * kLanes))
      score_codes_one_by_one<Format>(a, kRows, kBatches * kLanes);
  }
}

/// As tables of tiles call it.
template <KvType kType, bool kInRows, int64_t kRows>
void score_codes_of(const ScoreTileArguments& a) {
  score_codes_tile<TileFormat<kType, kInRows>, kInRows, kRows>(a, kType == KvType::kFp8E4M3);
}
/// The last two vectors of columns for one or two rows. There is no tile of that shape: the tile of kFusedRows rows
/// takes each row, and writes its scores kFusedRows times.
template <KvType kType, int64_t kRows>
void score_last_codes(const ScoreTileArguments& a) {
  ScoreTileArguments one = a;
  one.ldq = one.lds = 0;
  for (int64_t r = 0; r < kRows; ++r, one.q += a.ldq, one.s += a.lds) score_codes_of<kType, false, kFusedRows>(one);
}
template <KvType kType, bool kInRows>
constexpr ScoreStorage kCodeScores = {
    kUnitBytes,
    {kFusedRows,
     {score_last_codes<kType, 1>, score_last_codes<kType, 2>, nullptr, score_codes_of<kType, kInRows, kFusedRows>}},
    {},
    {kWideRows, {score_codes_of<kType, kInRows, 1>, score_codes_of<kType, kInRows, 2>}}};

template <KvType kType>
void score_codes(const ScoreTile& a) {
  score_in_parts(a, [](const ScoreTile& part) {
    simdattn::score_tile(part, kCodeScores<kType, false>, kLayoutOf<kType>.units(part.dim));
  });
}
/// Keys in rows become panels of their type in L1, as many as the widest tile takes, while those before are multiplied.
SIMDATTN_SHARED void score_some_code_rows(const ScoreTile& a, const ScoreStorage& type, const CodeLayout& layout) {
  const int64_t row = layout.row_bytes(a.dim), panel_bytes = layout.panel_bytes(a.dim);
  constexpr int64_t kStep = larger(4 * kLanes, kPanelWidth);
  const int64_t columns = a.n_panels * kPanelWidth;
  // Rows from one that is multiplied to the one that is fetched meanwhile; rows without gaps as if they were panels.
  const int64_t ahead = kAhead / row / kStep * kStep + 2 * kStep;
  const bool gaps = a.panel_stride != row;  // no fault: what is fetched changes no result
  const uint8_t* const keys = static_cast<const uint8_t*>(a.panels);
  uint8_t* const scratch = reinterpret_cast<uint8_t*>(a.scratch);
  const auto panel = [&](int64_t x) SIMDATTN_LAMBDA {
    return scratch + ((x & kStep) / kPanelWidth + (x & (kStep - 1)) / kPanelWidth) * panel_bytes;
  };
  CodeScoreArguments t = {};
  t.next.stride = a.panel_stride;
  t.next.ahead = a.fetches() && gaps ? ahead * a.panel_stride : 0;
  t.next.units = layout.units(a.dim);
  t.next.panel_bytes = panel_bytes;
  const auto put_next = [&](int64_t x) SIMDATTN_LAMBDA {
    t.next.rows = keys + (x < columns ? x : 0) * a.panel_stride;
    t.next.columns = larger(smaller(kStep, columns - x), 0);
    t.next.panels = panel(x);
    t.next.start();
  };
  put_next(0);
  for (RowPieces first = t.next; first.any();) first.transpose(layout.scale_bytes > 0 ? layout.block_units() : 0);
  t.q = static_cast<const float*>(a.q);
  t.ldq = a.q_stride / static_cast<int64_t>(sizeof(float));
  t.dim = a.dim;
  t.scale = a.scale;
  t.lds = a.lds;
  t.scales = a.scales;
  for (int64_t width, x = 0; x < columns; x += width) {
    const int64_t batches = a.rows <= kWideRows && x + 4 * kLanes <= columns ? 4 : 2;
    width = batches * kLanes;
    const auto units = [&](int64_t c) SIMDATTN_LAMBDA {
      return reinterpret_cast<const char*>(panel(c) + c % kPanelWidth * kUnitBytes);
    };
    t.low = units(x);
    t.high = units(x + width / 2);
    t.s = a.s + x;
    t.column = x;
    if ((x & (kStep - 1)) == 0) put_next(x + kStep);
    else t.next.columns = 0;
    if (a.fetches() && !gaps) t.prefetch = {address_at(keys, (x + ahead) * row), 0, layout.units(a.dim)};
    (batches == 4 ? type.four : type.two).of[a.rows - 1](t);
  }
}

template <KvType kType>
void score_code_rows(const ScoreTile& a) {
  static_assert(std::has_single_bit(static_cast<uint64_t>(kLayoutOf<kType>.block_units())), "RowPieces counts in bits");
  score_in_parts(a,
                 [](const ScoreTile& part) { score_some_code_rows(part, kCodeScores<kType, true>, kLayoutOf<kType>); });
}

}  // namespace
}  // namespace simdattn
