// Scores of few query rows straight from the codes of the narrow storage types: each number is made in a register, times its
// scale, and multiplied there. The sums are those of score_tile.h over the same numbers in f32, in the same order.
#ifndef SIMDATTN_LIB_KERNELS_NARROW_SCORES_H_
#define SIMDATTN_LIB_KERNELS_NARROW_SCORES_H_

#include "lib/contract/fma.h"
#include "lib/kernels/narrow_codes.h"
#include "lib/kernels/score_tile.h"

namespace simdattn {
namespace {

/// Query rows that are multiplied so. With 4 lanes numbers go through L1 as f32.
constexpr int64_t kFusedRows = kLoadsBlocks && kLanes > 4 ? 4 : 0;

template <class Code>
Code code_in(ByteFormat<Code>);
template <class Code>
Code code_in(BlockFormat<Code>);
template <KvType kType>
using CodeOf = decltype(code_in(FormatOf<kType>()));

/// Numbers of units are 1 / kUnitPower of what they should be.
template <class Code>
constexpr float kUnitPower = kIsFp8<Code>                   ? kFp8Power<Code>
                             : std::is_same_v<Code, Q4Code> ? 0x1p-28f
                                                            : 0x1p-24f;
/// Number i of the unit in each lane. Nibbles: the lower ones of four bytes, then the upper ones.
template <int i, class Code>
SIMDATTN_INLINE Floats unit_number(Bits32 w, Code /*code*/) {
  return to_float(cast_bits<int32_t>(upper_byte<i>(w)));
}
template <int i>
SIMDATTN_INLINE Floats unit_number(Bits32 w, Q4Code /*code*/) {
  return upper_nibble(w ^ Bits32(0x88888888u), i < 4 ? 28 - 8 * i : 24 - 8 * (i - 4));
}

/// f16 numbers on their way through L1, made while the unit or row before is multiplied: conversions from memory save a shuffle,
/// and no other way from a code to its number is as long.
template <int64_t kCount>
struct HalvesAhead {
  alignas(64) uint16_t numbers[2][kCount];
  uint16_t* now = numbers[0];
  uint16_t* next = numbers[1];
  SIMDATTN_INLINE void turn() {
    uint16_t* const made = next;
    next = now, now = made;
  }
};

/// Keys in rows that become panels.
struct RowsToTranspose {
  const uint8_t* rows = nullptr;
  int64_t stride = 0;
  int64_t columns = 0;  // 0: none
  uint8_t* panels = nullptr;
  int64_t ahead = 0;  // 0; or bytes from a row to the one that is fetched for it
};
struct CodeScoreArguments : ScoreTileArguments {
  RowsToTranspose next = {};  // while the tile is multiplied
};

/// Rows of keys on their way into panels, a piece for each unit that a tile multiplies: four units of a vector of columns. At once
/// they would take the time that the chains of multiply-adds leave.
template <KvType kType>
class RowPieces {
  using Format = FormatOf<kType>;

 public:
  SIMDATTN_INLINE RowPieces(const RowsToTranspose& a, int64_t dim)
      : a_(a), units_(Format::units(dim)), panel_bytes_(panel_bytes_of<kType>(dim)) {
    if (any()) start();
  }
  SIMDATTN_INLINE bool any() const { return column_ < a_.columns; }
  SIMDATTN_INLINE void transpose() {
    if constexpr (!has_scales(kType)) {
      if ((unit_ & (Format::kUnits - 1)) == 0) {
        // One by one: that takes no port of the arithmetic.
        unroll<kLanes>([&](auto i) SIMDATTN_LAMBDA {
          std::memcpy(scales_ + i * Format::kScaleBytes, from_ + i * a_.stride, Format::kScaleBytes);
        });
        scales_ += kPanelWidth * Format::kScaleBytes;
        from_ += Format::kScaleBytes;
      }
    }
    transpose_four_units(from_, a_.stride, to_);
    if (a_.ahead != 0) {
      // Four pieces fetch a line of each row.
      uintptr_t line = address_at(from_, a_.ahead + (unit_ >> 2 & 3) * (a_.stride - 4 * kUnitBytes));
      unroll<kLanes / 4>([&](auto) SIMDATTN_LAMBDA {
        prefetch<64>(line);
        line += static_cast<uintptr_t>(4 * a_.stride);
      });
    }
    from_ += 4 * kUnitBytes;
    to_ += 4 * kUnitPitch;
    unit_ += 4;
    if (unit_ < units_) return;
    unit_ = 0;
    column_ += kLanes;
    if (any()) start();
  }

 private:
  SIMDATTN_INLINE void start() {
    uint8_t* const panel = a_.panels + column_ / kPanelWidth * panel_bytes_;
    from_ = a_.rows + column_ * a_.stride;
    to_ = panel + column_ % kPanelWidth * kUnitBytes;
    if constexpr (!has_scales(kType))
      scales_ = panel + units_ * kUnitPitch + column_ % kPanelWidth * Format::kScaleBytes;
  }

  const RowsToTranspose a_;
  int64_t units_, panel_bytes_;
  int64_t unit_ = 0, column_ = 0;
  const uint8_t* from_ = nullptr;
  uint8_t* to_ = nullptr;
  uint8_t* scales_ = nullptr;
};

/// Scores of columns that have a code of NaN.
SIMDATTN_SHARED void put_nan_scores(const ScoreTileArguments& a, int64_t rows, int64_t columns) {
  for (int64_t j = 0; j < columns; ++j) {
    const int64_t half = columns / 2;
    const uint8_t* const p = reinterpret_cast<const uint8_t*>(j < half ? a.low : a.high) + j % half * kUnitBytes;
    for (int64_t i = 0; i < a.dim; ++i) {
      if ((p[i / 4 * kUnitPitch + i % 4] & 0x7F) != 0x7F) continue;
      for (int64_t r = 0; r < rows; ++r) a.s[r * a.lds + j] = kNaN;
    }
  }
}

/// kInRows: `a` is a CodeScoreArguments.
template <KvType kType, bool kInRows, int64_t kRows, int64_t kBatches>
__attribute__((noinline)) void score_codes_tile(const ScoreTileArguments& a) {
  using Format = FormatOf<kType>;
  using Code = CodeOf<kType>;
  constexpr bool kFp8 = kIsFp8<Code>;
  constexpr int64_t kHalf = kBatches / 2;
  constexpr int64_t kBytes = kBatches * kLanes * kUnitBytes;
  Registers<kRows * kBatches> acc;
  unroll<kRows * kBatches>([&](auto i) SIMDATTN_LAMBDA { reg<i>(acc) = Floats(0.0f); });
  Registers<kBatches> factor;
  constexpr int64_t kHalvesBytes = kFp8 ? kBytes : 1;
  [[maybe_unused]] HalvesAhead<kHalvesBytes> halves;
  [[maybe_unused]] Bits32 seen(0);
  const float* q = a.q;
  const int64_t ldq = a.ldq;
  Cursor<const uint8_t> low(reinterpret_cast<const uint8_t*>(a.low)), high(reinterpret_cast<const uint8_t*>(a.high));
  uintptr_t fetched = a.prefetch.first;
  int64_t to_fetch = a.prefetch.count;
  [[maybe_unused]] RowPieces<kType> rows(kInRows ? static_cast<const CodeScoreArguments&>(a).next : RowsToTranspose(),
                                         a.dim);
  const auto units_at = [&](auto c, int64_t ahead) SIMDATTN_LAMBDA {
    return load_units((c < kHalf ? low.get() : high.get()) + ahead + c % kHalf * kLanes * kUnitBytes);
  };
  const auto prepare = [&](int64_t ahead) SIMDATTN_LAMBDA {
    unroll<kFp8 ? kBatches : 0>([&](auto c) SIMDATTN_LAMBDA {
      const Bits32 units = units_at(c, ahead);
      if constexpr (kNotesNan<Code>) note_nan(units, seen);
      fp8_as_f16<Code>(upper_bytes<0>(units)).store_aligned(halves.next + 4 * c * kLanes);
      fp8_as_f16<Code>(upper_bytes<1>(units)).store_aligned(halves.next + (4 * c + 2) * kLanes);
    });
  };
  // n numbers of a unit of each column, from number kFirst on. `more`: there is a next one.
  const auto add_unit = [&](auto first, int64_t n, bool more) SIMDATTN_LAMBDA {
    if constexpr (first == 0) {
      if (to_fetch-- > 0) {
        prefetch<kBytes>(fetched);
        fetched += kBytes;
      }
      if constexpr (kInRows) {
        if (rows.any()) rows.transpose();
      }
    }
    if constexpr (kFp8) {
      halves.turn();
      if (more) prepare(kUnitPitch);
    }
    unroll<4>([&](auto i) SIMDATTN_LAMBDA {
      if (i >= n) return;
      Registers<kBatches> key;
      unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA {
        if constexpr (kFp8) reg<c>(key) = f32_from_f16(load_halves(halves.now + (4 * c + i) * kLanes, All()));
        else reg<c>(key) = unit_number<first + i>(units_at(c, 0), Code());
        reg<c>(key) = reg<c>(key) * reg<c>(factor);
      });
      add_outer_product<kRows, kBatches>(q + i, ldq, key, acc);
    });
    q += 4;
    low += kUnitPitch;
    high += kUnitPitch;
  };
  constexpr std::integral_constant<int, 0> kLower;
  constexpr std::integral_constant<int, 4> kUpper;
  const Floats power(kUnitPower<Code>);
  if constexpr (has_scales(kType)) {
    unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA { reg<c>(factor) = load(a.scales + a.column + c * kLanes) * power; });
    if (a.dim > 0) prepare(0);
    int64_t rest = a.dim;
    for (; rest >= 4; rest -= 4) add_unit(kLower, 4, rest > 4);
    if (rest > 0) add_unit(kLower, rest, false);
  } else {
    // The scales of all blocks lie behind the units, two bytes for each column.
    const auto scales_of = [&](const char* units, int64_t column) {
      return Cursor<const uint8_t>(reinterpret_cast<const uint8_t*>(units) + Format::units(a.dim) * kUnitPitch -
                                   column % kPanelWidth * (kUnitBytes - Format::kScaleBytes));
    };
    auto low_scales = scales_of(a.low, a.column), high_scales = scales_of(a.high, a.column + kHalf * kLanes);
    for (int64_t i = 0; i < a.dim; i += Format::kBlock) {
      unroll<kBatches>([&](auto c) SIMDATTN_LAMBDA {
        const int64_t offset = (c % kHalf) * kLanes * Format::kScaleBytes;
        reg<c>(factor) = load_scales((c < kHalf ? low_scales.get() : high_scales.get()) + offset) * power;
      });
      low_scales += kPanelWidth * Format::kScaleBytes;
      high_scales += kPanelWidth * Format::kScaleBytes;
      for (int64_t u = 0; u < Format::kUnits; ++u) add_unit(kLower, 4, true);
      if constexpr (Format::Code::kBytes == 16) {
        low += -Format::kUnits * kUnitPitch;
        high += -Format::kUnits * kUnitPitch;
        for (int64_t u = 0; u < Format::kUnits; ++u) add_unit(kUpper, 4, true);
      }
    }
  }
  const Floats scale(a.scale);
  unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
    unroll<kBatches>([&](auto c)
                         SIMDATTN_LAMBDA { store(reg<r * kBatches + c>(acc) * scale, a.s + r * a.lds + c * kLanes); });
  });
  if constexpr (kNotesNan<Code>) {
    if (saw_nan(seen)) put_nan_scores(a, kRows, kBatches * kLanes);
  }
}

/// Rows of the largest tile of four vectors; more rows have tiles of two. One and two rows need those only for a panel that is left.
constexpr int64_t kWideRows = 2;
template <KvType kType, bool kInRows, int64_t kBatches, int64_t kRows>
constexpr ScoreTileFunction* code_score_tile() {
  constexpr bool kNeeded = kBatches == 4 || kRows > kWideRows || (!kInRows && 4 * kLanes > kPanelWidth);
  if constexpr (kNeeded) return score_codes_tile<kType, kInRows, kRows, kBatches>;
  return nullptr;
}
template <KvType kType, bool kInRows>
constexpr ScoreTileFunction* kWideScoreTiles[] = {code_score_tile<kType, kInRows, 4, 1>(),
                                                  code_score_tile<kType, kInRows, 4, 2>()};
template <KvType kType, bool kInRows>
constexpr ScoreTileFunction* kOtherScoreTiles[] = {
    code_score_tile<kType, kInRows, 2, 1>(), code_score_tile<kType, kInRows, 2, 2>(),
    code_score_tile<kType, kInRows, 2, 3>(), code_score_tile<kType, kInRows, 2, 4>()};
template <KvType kType>
constexpr ScoreStorage kCodeScores = {
    kUnitBytes, {nullptr, nullptr, kOtherScoreTiles<kType, false>, nullptr, kWideScoreTiles<kType, false>}, kWideRows};

/// Scores one by one. Keys in rows, or in panels.
template <KvType kType>
SIMDATTN_SHARED void score_codes_one_by_one(const ScoreTile& a, bool in_rows) {
  const int64_t ldq = a.q_stride / static_cast<int64_t>(sizeof(float));
  for (int64_t j = 0; j < a.n_panels * kPanelWidth; ++j) {
    const uint8_t* const key =
        static_cast<const uint8_t*>(a.panels) +
        (in_rows ? j * a.panel_stride : j / kPanelWidth * a.panel_stride + j % kPanelWidth * kUnitBytes);
    for (int64_t r = 0; r < a.rows; ++r) {
      const float* const q = static_cast<const float*>(a.q) + r * ldq;
      float sum = 0.0f;
      for (int64_t i = 0; i < a.dim; ++i) {
        const float number = CodeOf<kType>::template number<0>(key[in_rows ? i : i / 4 * kUnitPitch + i % 4]);
        sum = simdattn::fma(q[i], number * a.scales[j], sum);
      }
      a.s[r * a.lds + j] = sum * a.scale;
    }
  }
}

/// score(tile) of at most kFusedRows rows each.
template <KvType kType, class F>
SIMDATTN_INLINE void score_in_parts(ScoreTile a, bool in_rows, const F& score) {
  if constexpr (has_scales(kType) && kUnitPower<CodeOf<kType>> != 1.0f) {
    if (!scales_fit<CodeOf<kType>>(a.scales, a.n_panels * kPanelWidth))
      return score_codes_one_by_one<kType>(a, in_rows);
  }
  for (int64_t rest = a.rows; rest > 0; rest -= kFusedRows) {
    a.rows = smaller(kFusedRows, rest);
    score(a);
    a.q = static_cast<const char*>(a.q) + kFusedRows * a.q_stride;
    a.s += kFusedRows * a.lds;
    a.fetch = Fetch::kNone;
  }
}
template <KvType kType>
void score_codes(const ScoreTile& a) {
  score_in_parts<kType>(a, false, [](ScoreTile part) {
    part.half_last = false;  // one and two rows have no tile of half a panel
    simdattn::score_tile(part, kCodeScores<kType>, FormatOf<kType>::units(part.dim));
  });
}
/// Keys in rows become panels of their type in L1, as many at a time as the widest tile takes, while those before are multiplied.
template <KvType kType>
SIMDATTN_SHARED void score_some_code_rows(const ScoreTile& a) {
  constexpr int64_t kStep = larger(4 * kLanes, kPanelWidth);
  const int64_t bytes = panel_bytes_of<kType>(a.dim), columns = a.n_panels * kPanelWidth;
  const int64_t row = row_bytes_of<kType>(a.dim);
  // Rows from one that is multiplied to the one that is fetched meanwhile. Rows without gaps are fetched as if they were panels.
  const int64_t ahead = kAhead / row / kStep * kStep + 2 * kStep;
  const bool gaps = a.panel_stride != row;
  const uint8_t* const keys = static_cast<const uint8_t*>(a.panels);
  uint8_t* const room = reinterpret_cast<uint8_t*>(a.room);
  const auto panel = [&](int64_t x) SIMDATTN_LAMBDA {
    return room + ((x & kStep) / kPanelWidth + (x & (kStep - 1)) / kPanelWidth) * bytes;
  };
  const auto rows_at = [&](int64_t x) -> RowsToTranspose {
    return {keys + (x < columns ? x : 0) * a.panel_stride, a.panel_stride, larger(smaller(kStep, columns - x), 0),
            panel(x), a.fetches() && gaps ? ahead * a.panel_stride : 0};
  };
  for (RowPieces<kType> first(rows_at(0), a.dim); first.any();) first.transpose();
  CodeScoreArguments t = {};
  t.q = static_cast<const float*>(a.q);
  t.ldq = a.q_stride / static_cast<int64_t>(sizeof(float));
  t.dim = a.dim;
  t.scale = a.scale;
  t.lds = a.lds;
  t.scales = a.scales;
  for (int64_t width, x = 0; x < columns; x += width) {
    const bool wide = a.rows <= kWideRows && x + 4 * kLanes <= columns;
    width = (wide ? 4 : 2) * kLanes;
    const auto units = [&](int64_t c) SIMDATTN_LAMBDA {
      return reinterpret_cast<const char*>(panel(c) + c % kPanelWidth * kUnitBytes);
    };
    t.low = units(x);
    t.high = units(x + width / 2);
    t.s = a.s + x;
    t.column = x;
    t.next = (x & (kStep - 1)) == 0 ? rows_at(x + kStep) : RowsToTranspose();
    if (a.fetches() && !gaps) {
      t.prefetch = {address_at(keys, (x + ahead) * row), 0, FormatOf<kType>::units(a.dim)};
    }
    // Nothing follows a panel that is left.
    const bool in_rows = wide || a.rows > kWideRows;
    const auto* const tiles = wide      ? kWideScoreTiles<kType, true>
                              : in_rows ? kOtherScoreTiles<kType, true>
                                        : kOtherScoreTiles<kType, false>;
    tiles[a.rows - 1](t);
  }
}

template <KvType kType>
void score_code_rows(const ScoreTile& a) {
  score_in_parts<kType>(a, true, score_some_code_rows<kType>);
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_NARROW_SCORES_H_
