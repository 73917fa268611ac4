// The kernels around VDPBF16PS, which avx512_bf16.cc has; in tests software takes its place, so any CPU runs the text.
#pragma once

#include <algorithm>
#include <cstring>

#include "dispatch/environment.h"
#include "lib/contract/steps.h"
#include "lib/kernels/score_key_rows.h"
#include "lib/overlays/bf16_packing.h"

namespace simdattn {
namespace {

/// Rows of a register tile: 24 sums of 2 vectors of columns and 2 chains.
constexpr int64_t kPairRows = 6;
/// Panels, or groups of 32 columns of values, that a tile of few rows takes, whose chains would else be too few to hide
/// how long an instruction takes.
constexpr int64_t kMostGroups = 4;
template <int64_t kRows>
constexpr int64_t kGroupsOf = kRows == 1   ? kMostGroups
                              : kRows <= 3 ? 2
                                           : 1;
constexpr int64_t groups_for(int64_t rows) { return rows == 1 ? kGroupsOf<1> : rows <= 3 ? kGroupsOf<3> : 1; }
/// Rows whose weights stay in L1 beside 32 columns of values.
constexpr int64_t kWeightRows = 24;
/// Numbers of a unit: a VDPBF16PS for each chain.
constexpr int64_t kUnit = Avx512Bf16::kUnit, kGroupUnits = kChainGroup / kUnit;
/// Bytes of a unit of 32 columns; of a row.
constexpr int64_t kUnitColumnsBytes = kUnit / 2 * kPairBytes, kUnitRowBytes = kUnit * 2;
constexpr int64_t units_of(int64_t n) { return steps_of(n, kUnit); }

/// Two numbers of bf16 in every lane.
SIMDATTN_INLINE Bits32 repeated_pair(const char* p) {
  uint32_t pair;
  std::memcpy(&pair, p, sizeof(pair));
  return Bits32(pair);
}

/// 16 pairs that two instructions use, each of which compilers would let load them again.
SIMDATTN_INLINE Bits32 load_once(const char* p) { return in_register(Bits32::load_unaligned(p)); }

/// Where the columns of a tile come from: of() has those of chains e, e, o, o of a unit, of the group of 32 columns
/// `offset` bytes behind the first one.
struct Packed {
  static constexpr bool kCutsUnits = false;
  const char* at;
  int64_t group;  // bytes from one group of columns to the next
  SIMDATTN_INLINE void of(int64_t offset, Registers<4, Bits32>& c) const {
    unroll<4>([&](auto i) SIMDATTN_LAMBDA { reg<i>(c) = Bits32::load_unaligned(at + offset + 64 * i); });
  }
  SIMDATTN_INLINE void step() { at += kUnitColumnsBytes; }
  static void order(Floats& /*low*/, Floats& /*high*/) {}
};
/// A panel of bf16: rows of pairs x0 x1, then x2 x3.
struct Panels {
  static constexpr bool kCutsUnits = true;
  const char* at;
  int64_t group;
  SIMDATTN_INLINE void of(int64_t offset, Registers<4, Bits32>& c) const {
    unroll<2>([&](auto i) SIMDATTN_LAMBDA {
      const char* const p = at + offset + 64 * i;
      const Bits32 a = load_once(p), b = load_once(p + 128);
      reg<i>(c) = cast_bits<uint32_t>(lower_words(b, a));
      reg<2 + i>(c) = cast_bits<uint32_t>(upper_words(b, a));
    });
  }
  SIMDATTN_INLINE void step() { at += kUnitColumnsBytes; }
  static void order(Floats& /*low*/, Floats& /*high*/) {}
};
/// What a tile fetches meanwhile: for each unit of 32 columns as many bytes as it reads, half of them `second` bytes
/// behind the others. Evenly, and in the order of memory, because the hardware's prefetcher follows: the columns of the
/// tile are a line of each row, which it does not follow.
struct Later {
  static constexpr int64_t kBytes = kUnit * kValueGroup * 2;
  uintptr_t at = 0;  // 0: nothing
  int64_t second = 0, pitch = 0;
};
/// Rows of 32 values of bf16.
struct Rows {
  const char* at;
  int64_t group;
  int64_t stride;
  Later later;
  SIMDATTN_INLINE void of(int64_t offset, Registers<4, Bits32>& c) {
    if (later.at != 0) {
      prefetch<Later::kBytes / 2>(later.at);
      prefetch<Later::kBytes / 2>(later.at + static_cast<uintptr_t>(later.second));
      later.at += static_cast<uintptr_t>(later.pitch);
    }
    unroll<2>([&](auto i) SIMDATTN_LAMBDA {
      const char* const p = at + offset + i * stride;
      const Bits32 a = load_once(p + 2 * stride), b = load_once(p);
      reg<2 * i>(c) = zip_lo<uint16_t>(a, b);
      reg<2 * i + 1>(c) = zip_hi<uint16_t>(a, b);
    });
  }
  SIMDATTN_INLINE void step() { at += kUnit * stride; }
  static SIMDATTN_INLINE void order(Floats& low, Floats& high) {
    const Floats first = lanes_from<float>(low, high, [](size_t i) { return i / 8 * 4 + i % 4 + i / 4 % 2 * 16; });
    high = lanes_from<float>(low, high, [](size_t i) { return 8 + i / 8 * 4 + i % 4 + i / 4 % 2 * 16; });
    low = first;
  }
};

/// Rows of 32 sums. `fresh`: they are zeros, whatever is there.
struct Sums {
  float* at;
  int64_t ld;
  bool fresh;
};

/// Dot::add(sum, a, b): VDPBF16PS. K: whose operands they are.
template <class Dot, class K>
struct PairKernels {
  /// sum: of each row and group e, e, o, o.
  template <int64_t kRows, int64_t kGroups, class Columns>
  static SIMDATTN_INLINE void store_sums(Registers<kRows * 4 * kGroups>& sum, const Sums& s, bool fresh) {
    float* const third = s.at + 3 * s.ld;
    unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
      unroll<kGroups>([&](auto g) SIMDATTN_LAMBDA {
        float* const at = (r < 3 ? s.at : third) + r % 3 * s.ld + g * kPanelWidth;
        constexpr int64_t kFirst = 4 * (kGroups * r + g);
        Floats total[] = {reg<kFirst>(sum) + reg<kFirst + 2>(sum), reg<kFirst + 1>(sum) + reg<kFirst + 3>(sum)};
        Columns::order(total[0], total[1]);
        unroll<2>([&](auto i) SIMDATTN_LAMBDA {
          if (!fresh) total[i] = load(at + 16 * i) + total[i];
          store(total[i], at + 16 * i);
        });
      });
    });
  }

  /// Adds the products of `units` units, of which the first begins a chain group, in kGroups groups of 32 columns. Not
  /// inlined: additions know no subnormal numbers, see FlushSubnormals.
  template <int64_t kRows, int64_t kGroups, class Columns>
  [[gnu::noinline]] static void add(const Columns& first, const LeftRows& left_rows, int64_t units, const Sums& s) {
    constexpr int64_t kSums = 4 * kGroups;  // of a row: of each group e, e, o, o
    Columns columns = first;
    const char* x = left_rows.data;
    const int64_t stride = left_rows.stride, gap = left_rows.step - kGroupUnits * kUnitRowBytes;
    bool fresh = s.fresh;
    do {
      Registers<kRows * kSums> sum;
      clear(sum);
      int64_t left = std::min(units, kGroupUnits);
      do {
        const char* const third = x + 3 * stride;
        unroll<kGroups>([&](auto g) SIMDATTN_LAMBDA {
          Registers<4, Bits32> c;
          columns.of(g * columns.group, c);
          unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
            const char* const unit = (r < 3 ? x : third) + r % 3 * stride;
            const Bits32 chain[] = {repeated_pair(unit), repeated_pair(unit + kUnitRowBytes / 2)};
            unroll<4>([&](auto i) SIMDATTN_LAMBDA {
              Floats& of = reg<kSums * r + 4 * g + i>(sum);
              of = Dot::add(of, chain[i / 2], reg<i>(c));
            });
          });
        });
        x += kUnitRowBytes;
        columns.step();
      } while (--left > 0);
      x += gap;
      units -= kGroupUnits;
      store_sums<kRows, kGroups, Columns>(sum, s, fresh);
      fresh = false;
    } while (units > 0);
  }
  /// `groups`: groups_for(rows) or 1.
  template <class Columns>
  [[gnu::noinline]] static void add_rows(int64_t rows, int64_t groups, const Columns& columns, const LeftRows& x,
                                         int64_t units, const Sums& sums) {
    with_rows<kPairRows>(rows, [&](auto r) SIMDATTN_LAMBDA {
      if (groups == 1) add<r, 1>(columns, x, units, sums);
      else if constexpr (kGroupsOf<r> > 1) add<r, kGroupsOf<r>>(columns, x, units, sums);
    });
  }

  /// A last group whose last unit is not whole goes through a copy: beside an odd last dimension may stand anything.
  template <class Columns>
  static void scores(const ScoreTile& a) {
    const FlushSubnormals flush;
    constexpr int64_t kQueryStep = kGroupUnits * kUnitRowBytes;
    alignas(64) char last[kGroupBytes];
    const int64_t whole = Columns::kCutsUnits && a.dim % kUnit != 0 ? a.dim / kChainGroup * kChainGroup : a.dim;
    const int64_t bytes = units_of(a.dim) * kUnitColumnsBytes;
    const int64_t ahead = steps_of(kAheadBytes, bytes) * a.panel_stride;
    // From memory one panel after the other is read, in its order.
    const int64_t most = whole < a.dim || a.fetches() ? 1 : groups_for(a.rows);
    for (int64_t groups, p = 0; p < a.n_panels; p += groups) {
      groups = a.n_panels - p < most ? 1 : most;
      const char* const panel = static_cast<const char*>(a.panels) + p * a.panel_stride;
      const char* const rest = panel + whole / kUnit * kUnitColumnsBytes;
      if (whole < a.dim) {
        Bf16Packing<K, bf16>::panel({rest, 0, nullptr, kPanelWidth, a.dim - whole, last, false});
      }
      for (RowTiles t(a.rows, kPairRows); t.first < a.rows; t.next()) {
        for (int64_t g = 0; a.fetches() && g < groups; ++g) {
          fetch(panel + g * a.panel_stride, ahead, share_of_rows(t.first, a.rows, bytes),
                share_of_rows(t.first + t.rows, a.rows, bytes));
        }
        const char* const q = static_cast<const char*>(a.q) + t.first * a.q_stride;
        float* const s = a.s + t.first * a.lds + p * kPanelWidth;
        if (whole > 0) {
          add_rows(t.rows, groups, Columns{panel, a.panel_stride}, {q, a.q_stride, kQueryStep}, units_of(whole),
                   {s, a.lds, true});
        }
        if (whole < a.dim) {
          add_rows(t.rows, 1, Packed{last, 0}, {q + 2 * whole, a.q_stride, kQueryStep}, units_of(a.dim - whole),
                   {s, a.lds, whole == 0});
        }
        scale_scores(a, s, t.rows, groups * kPanelWidth);
      }
    }
  }

  /// kRows rows and the 32 keys whose rows begin at `keys`, transposed in registers: two units of a key are a block.
  template <int64_t kRows>
  [[gnu::noinline]] static void score_keys(const ScoreTile& a, const char* keys, float* s) {
    const Sums sums = {s, a.lds, true};
    const char* q = static_cast<const char*>(a.q);
    RowsBelow<bf16> below(a, address_at(keys, kPanelWidth * a.panel_stride), nullptr);
    for (int64_t d = 0; d < a.dim; d += kChainGroup) {
      Registers<kRows * 4> sum;
      clear(sum);
      const int64_t end = std::min(a.dim, d + kChainGroup);
      for (int64_t i = d; i < end; i += 2 * kUnit) {
        if (a.fetches()) unroll<4>([&](auto) SIMDATTN_LAMBDA { below.fetch(); });
        unroll<2>([&](auto half) SIMDATTN_LAMBDA {
          const char* const rows = keys + half * 16 * a.panel_stride + 2 * i;
          transpose_blocks<uint32_t>(
              [&](int64_t k) SIMDATTN_LAMBDA {
                return float_of(arranged<kUnit>(bits_of(
                    load_blocks_at([&](int64_t b) SIMDATTN_LAMBDA { return rows + (k + 4 * b) * a.panel_stride; }))));
              },
              [&](auto k, Floats pairs) SIMDATTN_LAMBDA {
                unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
                  Floats& of = reg<4 * r + k % 2 * 2 + half>(sum);
                  of = Dot::add(of, repeated_pair(q + r * a.q_stride + 4 * k), bits_of(pairs));
                });
              });
        });
        q += 2 * kUnitRowBytes;
      }
      store_sums<kRows, 1, Packed>(sum, sums, d == 0);
    }
    scale_scores(a, s, kRows, kPanelWidth);
  }
  /// Keys of bf16 in rows, for a few rows.
  static void score_rows(const ScoreTile& a) {
    const FlushSubnormals flush;
    for (int64_t p = 0; p < a.n_panels; ++p) {
      with_rows<kMostScoreRows>(a.rows, [&](auto r) SIMDATTN_LAMBDA {
        score_keys<r>(a, static_cast<const char*>(a.panels) + p * kPanelWidth * a.panel_stride, a.s + p * kPanelWidth);
      });
    }
  }

  /// The share of some columns in what is fetched of the keys kKeysAhead further. Of rows that lie apart, pieces of the
  /// bytes of a unit, or halves of them where rows are that short.
  static Later later_of(const ValueTile& a, const ValueColumns& v) {
    if (!a.fetches()) return {};
    constexpr int64_t kLine = kValueGroup * 2, kPiece = Later::kBytes, kGroups = kPiece / kLine;
    const int64_t group = v.column / kValueGroup, in_piece = group % kGroups, groups = steps_of(a.dim, kValueGroup);
    const uintptr_t rows = address_at(v.rows - group * kLine, kKeysAhead * a.key_stride);
    const auto from = [&](int64_t bytes) { return rows + static_cast<uintptr_t>(bytes); };
    if (a.key_stride == a.dim * 2) return {from(group * kGroupUnits * kPiece), kPiece / 2, kPiece};
    const bool whole = groups - (group - in_piece) > kGroups / 2;
    const int64_t first = in_piece * kGroupUnits * (whole ? 1 : 2) * a.key_stride + (group - in_piece) * kLine;
    return whole ? Later{from(first), kPiece / 2, a.key_stride} : Later{from(first), a.key_stride, 2 * a.key_stride};
  }

  /// Packed values, or those of bf16 in rows, of which a group that is not whole is packed first.
  template <bool kPacked>
  static void values(const ValueTile& a) {
    const FlushSubnormals flush;
    scale_sums(a, kPacked ? round_up(a.dim, kValueGroup) : a.dim);
    const int64_t groups = groups_for(a.rows);
    for (RowTiles some(a.rows, kWeightRows); some.first < a.rows; some.next()) {
      const auto add_columns = [&](const ValueColumns& v) {
        for (RowTiles t(some.rows, kPairRows); t.first < some.rows; t.next()) {
          const int64_t row = some.first + t.first;
          v.with_sums(a, row, t.rows, [&](const LeftRows& w, float* sums, int64_t ld) {
            const Sums to = {sums, ld, false};
            if (kPacked || v.pairs != nullptr) {
              add_rows(t.rows, v.groups, Packed{v.pairs, kBlockBytes}, w, units_of(v.keys), to);
            } else {
              add_rows(t.rows, v.groups,
                       Rows{v.rows, a.group_stride, a.key_stride, row == 0 ? later_of(a, v) : Later()}, w, kGroupUnits,
                       to);
            }
          });
        }
      };
      if constexpr (kPacked) for_each_packed<kUnit>(a, groups, add_columns);
      else for_each_in_rows<kUnit, true>(a, groups, add_columns);
    }
  }
};

}  // namespace
}  // namespace simdattn
