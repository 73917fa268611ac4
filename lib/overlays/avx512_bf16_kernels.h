// The kernels around VDPBF16PS, which avx512_bf16.cc has; in tests software takes its place, so any CPU runs the text.
#pragma once

#include <algorithm>
#include <cstring>

#include "dispatch/environment.h"
#include "lib/contract/steps.h"
#include "lib/kernels/register_tile.h"
#include "lib/overlays/bf16_packing.h"

namespace simdattn {
namespace {

/// Rows of a register tile: 24 sums of 2 vectors of columns and 2 chains.
constexpr int64_t kPairRows = 6;
/// Rows whose weights are arranged at a time, in L1 beside 32 columns of values.
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

/// Where the columns of a tile come from: next() has those of chains e, e, o, o of a unit.
struct Packed {
  static constexpr bool kCutsUnits = false;
  const char* at;
  SIMDATTN_INLINE void next(Registers<4, Bits32>& c) {
    unroll<4>([&](auto i) SIMDATTN_LAMBDA { reg<i>(c) = Bits32::load_unaligned(at + 64 * i); });
    at += kUnitColumnsBytes;
  }
};
/// A panel of bf16: rows of pairs x0 x1, then x2 x3.
struct Panels {
  static constexpr bool kCutsUnits = true;
  const char* at;
  SIMDATTN_INLINE void next(Registers<4, Bits32>& c) {
    unroll<2>([&](auto i) SIMDATTN_LAMBDA {
      const Bits32 a = Bits32::load_unaligned(at + 64 * i), b = Bits32::load_unaligned(at + 128 + 64 * i);
      reg<i>(c) = cast_bits<uint32_t>(lower_words(b, a));
      reg<2 + i>(c) = cast_bits<uint32_t>(upper_words(b, a));
    });
    at += kUnitColumnsBytes;
  }
};
/// Rows of 32 values of bf16.
struct Rows {
  const char* at;
  int64_t stride;
  SIMDATTN_INLINE void next(Registers<4, Bits32>& c) {
    unroll<2>([&](auto i) SIMDATTN_LAMBDA {
      const Bits32 a = Bits32::load_unaligned(at + (2 + i) * stride), b = Bits32::load_unaligned(at + i * stride);
      reg<2 * i>(c) = zip_lower<uint16_t>(a, b);
      reg<2 * i + 1>(c) = zip_upper<uint16_t>(a, b);
    });
    at += kUnit * stride;
  }
};

/// Rows of 32 sums. `fresh`: they are zeros, whatever is there. `scale`: multiplies them at last; null: none.
struct Sums {
  float* at;
  int64_t ld;
  bool fresh;
  const float* scale;
};

/// Dot::add(sum, a, b): VDPBF16PS. Dot::fma(a, b, c): one multiply-add of f32. K: whose operands they are.
template <class Dot, class K>
struct PairKernels {
  /// Adds the products of `units` units, of which the first begins a group. x: rows of queries or weights. Not inlined:
  /// additions know no subnormal numbers, see FlushSubnormals.
  template <int64_t kRows, class Columns>
  [[gnu::noinline]] static void add(Columns columns, const char* x, int64_t stride, int64_t units, Sums s) {
    do {
      Registers<kRows * 4> sum;  // of each row e, e, o, o
      clear(sum);
      int64_t left = std::min(units, kGroupUnits);
      do {
        Registers<4, Bits32> c;
        columns.next(c);
        const char* const third = x + 3 * stride;
        unroll<kRows>([&](auto r) SIMDATTN_LAMBDA {
          const char* const unit = (r < 3 ? x : third) + r % 3 * stride;
          const Bits32 chain[] = {repeated_pair(unit), repeated_pair(unit + kUnitRowBytes / 2)};
          unroll<4>([&](auto i) SIMDATTN_LAMBDA {
            reg<4 * r + i>(sum) = Dot::add(reg<4 * r + i>(sum), chain[i / 2], reg<i>(c));
          });
        });
        x += kUnitRowBytes;
      } while (--left > 0);
      units -= kGroupUnits;
      const bool scales = units <= 0 && s.scale != nullptr;
      const Floats scale(scales ? *s.scale : 0.0f);
      float* const third = s.at + 3 * s.ld;
      unroll<kRows * 2>([&](auto i) SIMDATTN_LAMBDA {
        float* const at = (i < 6 ? s.at : third) + i / 2 % 3 * s.ld + i % 2 * 16;
        constexpr int64_t kEven = i / 2 * 4 + i % 2;
        Floats total = reg<kEven>(sum) + reg<kEven + 2>(sum);
        if (!s.fresh) total = load(at) + total;
        if (scales) total = Dot::fma(total, scale, Floats(0.0f));
        store(total, at);
      });
      s.fresh = false;
    } while (units > 0);
  }
  template <class Columns>
  static void add_rows(int64_t rows, const Columns& columns, const char* x, int64_t stride, int64_t units,
                       const Sums& sums) {
    with_rows<kPairRows>(rows, [&](auto r) SIMDATTN_LAMBDA { add<r>(columns, x, stride, units, sums); });
  }

  /// A last group whose last unit is not whole goes through a copy: beside an odd last dimension may stand anything.
  template <class Columns>
  static void scores(const ScoreTile& a) {
    const FlushSubnormals flush;
    alignas(64) char last[kGroupBytes];
    const int64_t whole = Columns::kCutsUnits && a.dim % kUnit != 0 ? a.dim / kChainGroup * kChainGroup : a.dim;
    const int64_t bytes = units_of(a.dim) * kUnitColumnsBytes;
    const int64_t ahead = steps_of(kAheadBytes, bytes) * a.panel_stride;
    for (int64_t p = 0; p < a.n_panels; ++p) {
      const char* const panel = static_cast<const char*>(a.panels) + p * a.panel_stride;
      const char* const rest = panel + whole / kUnit * kUnitColumnsBytes;
      if (whole < a.dim) {
        Bf16Packing<K, bf16>::panel({rest, 0, nullptr, kPanelWidth, a.dim - whole, last, false});
      }
      for (RowTiles t(a.rows, kPairRows); t.first < a.rows; t.next()) {
        if (a.fetches())
          fetch(panel, ahead, share_of_rows(t.first, a.rows, bytes), share_of_rows(t.first + t.rows, a.rows, bytes));
        const char* const q = static_cast<const char*>(a.q) + t.first * a.q_stride;
        float* const s = a.s + t.first * a.lds + p * kPanelWidth;
        const bool cut = whole < a.dim;
        if (whole > 0) {
          add_rows(t.rows, Columns{panel}, q, a.q_stride, units_of(whole), {s, a.lds, true, cut ? nullptr : &a.scale});
        }
        if (cut) {
          add_rows(t.rows, Packed{last}, q + 2 * whole, a.q_stride, units_of(a.dim - whole),
                   {s, a.lds, whole == 0, &a.scale});
        }
      }
    }
  }

  /// Weights of rows, arranged; in a call's first and last group those of keys outside of it are zeros.
  struct Weights {
    static constexpr int64_t kStride = kKeyBlock * 2;
    alignas(64) char data[kWeightRows * kStride];

    const char* at(int64_t row, int64_t key) const { return data + row * kStride + key / kUnit * kUnitRowBytes; }
    void arrange(const ValueTile& a, int64_t first_row, int64_t rows) {
      const int64_t end = a.first_key + a.keys;
      for (int64_t r = 0; r < rows; ++r) {
        const float* const w = a.w + (first_row + r) * a.ldw - a.first_key;
        for (int64_t group = a.first_key / kChainGroup * kChainGroup; group < end; group += kChainGroup) {
          const auto sixteen = [&](int64_t key) SIMDATTN_LAMBDA {
            const auto lane = [&](int64_t of) { return smaller(larger(of - key, 0), kLanes); };
            return load(w + key, lanes(lane(a.first_key), lane(end)));
          };
          arranged_upper<kUnit>(sixteen(group), sixteen(group + 16)).store_unaligned(data + r * kStride + 2 * group);
        }
      }
    }
  };
  /// f(first row of a.rows, rows, their weights)
  template <class F>
  static void with_weights(const ValueTile& a, const F& f) {
    Weights weights;
    for (RowTiles t(a.rows, kWeightRows); t.first < a.rows; t.next()) {
      weights.arrange(a, t.first, t.rows);
      f(t.first, t.rows, weights);
    }
  }

  /// Packed values, or those of bf16 in rows, of which a group that is not whole is packed first.
  template <bool kPacked>
  static void values(const ValueTile& a) {
    const FlushSubnormals flush;
    scale_sums(a, kPacked ? round_up(a.dim, kValueGroup) : a.dim);
    with_weights(a, [&](int64_t first_row, int64_t rows, const Weights& weights) {
      const auto add_columns = [&](const ValueColumns& v) {
        for (RowTiles t(rows, kPairRows); t.first < rows; t.next()) {
          const char* const w = weights.at(t.first, v.key);
          v.with_sums(a.o + (first_row + t.first) * a.ldo + v.column, a.ldo, t.rows, [&](float* sums, int64_t ld) {
            const Sums to = {sums, ld, false, nullptr};
            if (kPacked || v.pairs != nullptr) {
              add_rows(t.rows, Packed{v.pairs}, w, Weights::kStride, units_of(v.keys), to);
            } else {
              add_rows(t.rows, Rows{v.rows, a.key_stride}, w, Weights::kStride, kGroupUnits, to);
            }
          });
        }
      };
      if constexpr (kPacked) for_each_packed<kUnit>(a, add_columns);
      else for_each_in_rows<kUnit, true>(a, add_columns);
    });
  }
};

}  // namespace
}  // namespace simdattn
