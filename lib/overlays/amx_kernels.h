// The products of AMX and the vector code around them, over tiles that are the hardware's or, in tests, software.
// Tiles 0 and 1 are the sums of the first 16 rows, 2 and 3 of the second; 4 and 5 hold rows, 6 and 7 columns.
#pragma once

#include <bit>
#include <cstring>

#include "dispatch/environment.h"
#include "lib/kernels/bf16_chains.h"
#include "lib/overlays/bf16_packing.h"

namespace simdattn {
namespace {

/// Of a tile.
constexpr int64_t kAmxRows = 16;
constexpr int64_t kTileBytes = 64;
/// What one step multiplies of the right operand: 32 columns, that is two tiles.
constexpr int64_t kColumnsBytes = kAmxRows * kPairBytes;

/// The memory operand of LDTILECFG.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfiguration) == sizeof(KeptRegisters));

/// TDPBF16PS, TDPBSSD, TDPBUSD: what the numbers of the left operand are.
enum class Numbers { kBf16, kSigned, kUnsigned };

/// Tiles: the instructions. Integers::weigh_rows(): weights of kInt8 as bytes.
template <class Tiles, class Integers>
struct AmxKernels {
  /// Tiles of rows and sums have `rows` rows.
  static void configure(int64_t rows) {
    TileConfiguration c;
    for (int t = 0; t < 8; ++t) {
      c.row_bytes[t] = static_cast<uint16_t>(kTileBytes);
      c.rows[t] = static_cast<uint8_t>(t < 6 ? rows : kAmxRows);
    }
    Tiles::configure(c);
  }
  static void begin(KeptRegisters* kept) {
    TileConfiguration of_caller;
    Tiles::store_configuration(&of_caller);
    *kept = std::bit_cast<KeptRegisters>(of_caller);
    configure(kAmxRows);
  }
  /// What the caller's tiles held is lost, as after any call that may use them.
  static void end(const KeptRegisters& kept) {
    const auto of_caller = std::bit_cast<TileConfiguration>(kept);
    if (of_caller.palette == 0) Tiles::release();
    else Tiles::configure(of_caller);
  }

  /// f(first row, rows) for as many whole tiles of rows as there are, then for what is left in tiles of that size.
  template <class F>
  static void for_whole_tiles(int64_t rows, const F& f) {
    const int64_t whole = rows / kAmxRows * kAmxRows;
    if (whole > 0) f(0, whole);
    if (whole == rows) return;
    configure(rows - whole);
    f(whole, rows - whole);
    configure(kAmxRows);
  }
  /// f(first row, rows, whether there are two tiles of them) for pairs of tiles of `rows` rows from row `first`.
  template <class F>
  [[gnu::always_inline]] static void for_each_pair(int64_t first, int64_t rows, const F& f) {
    int64_t r = first;
    for (; r + 2 * kAmxRows <= first + rows; r += 2 * kAmxRows) f(r, 2 * kAmxRows, std::true_type());
    if (r < first + rows) f(r, first + rows - r, std::false_type());
  }

  /// f(tile, where its first sum is) for the tiles of sums, `stride` bytes between their rows in memory.
  template <bool kTwo, class F>
  [[gnu::always_inline]] static void for_each_sum(int64_t stride, const F& f) {
    unroll<kTwo ? 4 : 2>([&](auto t) SIMDATTN_LAMBDA { f(t, t / 2 * kAmxRows * stride + t % 2 * kTileBytes); });
  }
  template <bool kTwo>
  [[gnu::always_inline]] static void zero_sums() {
    for_each_sum<kTwo>(0, [](auto t, int64_t) SIMDATTN_LAMBDA { Tiles::template zero<t>(); });
  }
  template <bool kTwo>
  [[gnu::always_inline]] static void load_sums(const float* sums, int64_t ld) {
    const int64_t stride = ld * int64_t{sizeof(float)};
    for_each_sum<kTwo>(stride, [&](auto t, int64_t at) SIMDATTN_LAMBDA {
      Tiles::template load<t>(reinterpret_cast<const char*>(sums) + at, stride);
    });
  }
  /// Sums of 32 bits.
  template <bool kTwo>
  [[gnu::always_inline]] static void store_sums(void* sums, int64_t ld) {
    const int64_t stride = ld * int64_t{sizeof(float)};
    for_each_sum<kTwo>(stride, [&](auto t, int64_t at) SIMDATTN_LAMBDA {
      Tiles::template store<t>(static_cast<char*>(sums) + at, stride);
    });
  }

  /// Adds `steps` steps to the sums.
  template <Numbers kNumbers, bool kTwo>
  [[gnu::always_inline]] static void multiply(LeftRows a, const char* b, int64_t steps) {
    const int64_t second = kAmxRows * a.stride;
    for (; steps > 0; --steps, a.data += a.step, b += kColumnsBytes) {
      Tiles::template load<4>(a.data, a.stride);
      Tiles::template load<6>(b, kPairBytes);
      Tiles::template add<kNumbers, 0, 4, 6>();
      if constexpr (kTwo) {
        Tiles::template load<5>(a.data + second, a.stride);
        Tiles::template add<kNumbers, 2, 5, 6>();
      }
      Tiles::template load<7>(b + kTileBytes, kPairBytes);
      Tiles::template add<kNumbers, 1, 4, 7>();
      if constexpr (kTwo) Tiles::template add<kNumbers, 3, 5, 7>();
    }
  }

  /// s = the products of the rows of queries and the 32 columns of each panel, of `pairs` rows of kPairBytes;
  /// finish(panel, s, first row, rows) then makes scores of them. `odd`: the last row's pairs of 16 bits have a first
  /// number alone. The other is zero where kv_append wrote it; elsewhere it may be NaN, which times zero is no zero.
  template <Numbers kNumbers, class Finish>
  static void scores(const ScoreTile& a, int64_t pairs, bool odd, const Finish& finish) {
    alignas(64) char last[kColumnsBytes];
    const int64_t whole = (odd ? pairs - 1 : pairs) / kAmxRows;
    const int64_t rest = (pairs - whole * kAmxRows) * kPairBytes;
    const int64_t bytes = pairs * kPairBytes;
    const int64_t ahead = a.fetches() ? steps_of(kAheadBytes, bytes) * a.panel_stride : 0;
    for_whole_tiles(a.rows, [&](int64_t first, int64_t rows) {
      for (int64_t p = 0; p < a.n_panels; ++p) {
        const char* panel = static_cast<const char*>(a.panels) + p * a.panel_stride;
        if (rest > 0) {
          std::memcpy(last, panel + whole * kColumnsBytes, static_cast<size_t>(rest));
          std::memset(last + rest, 0, static_cast<size_t>(kColumnsBytes - rest));
          for (int64_t i = rest - kPairBytes + 2; odd && i < rest; i += 4) std::memset(last + i, 0, 2);
        }
        for_each_pair(first, rows, [&](int64_t r, int64_t count, auto two) {
          // Rows divide among themselves what a panel has to fetch of the panels to come.
          if (a.fetches()) fetch(panel, ahead, r * bytes / a.rows, (r + count) * bytes / a.rows);
          LeftRows q = {static_cast<const char*>(a.q) + r * a.q_stride, a.q_stride, kTileBytes};
          zero_sums<two>();
          multiply<kNumbers, two>(q, panel, whole);
          q.data += whole * kTileBytes;
          if (rest > 0) multiply<kNumbers, two>(q, last, 1);
          float* const s = a.s + r * a.lds + p * kPanelWidth;
          store_sums<two>(s, a.lds);
          finish(panel, s, r, count);
        });
      }
    });
  }

  // ---- kBF16 ----

  static void bf16_scores(const ScoreTile& a) {
    const FlushSubnormals flush;
    scores<Numbers::kBf16>(
        a, pairs_of<Amx::kUnit>(a.dim), a.dim % 2 == 1,
        [&](const char*, float* s, int64_t, int64_t rows) { scale_scores(a, s, rows, kPanelWidth); });
  }

  /// Packed values, or those of bf16 in rows, of which each group of keys is packed on its way: for few rows.
  template <bool kPacked>
  static void bf16_values(const ValueTile& a) {
    const FlushSubnormals flush;
    scale_sums(a, kPacked ? round_up(a.dim, kValueGroup) : a.dim);
    for_whole_tiles(a.rows, [&](int64_t first_row, int64_t n) {
      const auto add_columns = [&](const ValueColumns& v) {
        for_each_pair(first_row, n, [&](int64_t r, int64_t count, auto two) {
          v.with_sums(a, r, count, [&](const LeftRows& w, float* sums, int64_t ld) {
            load_sums<two>(sums, ld);
            multiply<Numbers::kBf16, two>(w, v.pairs, steps_of(v.keys, kChainGroup));
            store_sums<two>(sums, ld);
          });
        });
      };
      if constexpr (kPacked) for_each_packed<Amx::kUnit>(a, 1, add_columns);
      else for_each_in_rows<Amx::kUnit, false>(a, 1, add_columns);
    });
  }

  // ---- kInt8 ----

  static void int8_scores(const ScoreTile& a) {
    const int64_t numbers = int8_panel_numbers(a.dim);
    const int64_t query_numbers = int8_query_numbers(a.dim);
    scores<Numbers::kSigned>(
        a, numbers / kPairBytes, false, [&](const char* panel, float* s, int64_t first, int64_t rows) {
          const auto* scales = reinterpret_cast<const float*>(panel + numbers);
          const Floats low = load(scales), high = load(scales + 16);
          for (int64_t r = 0; r < rows; ++r, s += a.lds) {
            Int8Query info;
            std::memcpy(&info, static_cast<const char*>(a.q) + (first + r) * a.q_stride + query_numbers, sizeof(info));
            const Floats factor(info.scale * a.scale);
            store(to_float(Ints::load_unaligned(s)) * (factor * low), s);
            store(to_float(Ints::load_unaligned(s + 16)) * (factor * high), s + 16);
          }
        });
  }

  static constexpr int64_t kInt8Keys = 4 * kAmxRows;
  /// Bytes between rows of weights: those of a key block and what whole vectors write past them. An odd
  /// number of lines, so that rows do not fall into the same sets of L1.
  static constexpr int64_t kWeightBytes = kKeyBlock + kTileBytes;

  static void int8_values_packed(const ValueTile& a) {
    const int64_t dim = round_up(a.dim, kValueGroup);
    const int64_t first = a.first_key / kInt8Keys;
    const int64_t steps = steps_of(a.first_key + a.keys, kInt8Keys) - first;
    const char* const of_keys = static_cast<const char*>(a.v) + int8_values_numbers(a.dim);
    const float* const scales = reinterpret_cast<const float*>(of_keys) + a.first_key;
    alignas(64) uint8_t p[2 * kAmxRows * kWeightBytes];
    alignas(64) int32_t sums[2 * kAmxRows * kValueGroup];
    float scale[2 * kAmxRows];
    int32_t start[2 * kAmxRows];  // not used
    for_whole_tiles(a.rows, [&](int64_t first_row, int64_t n) {
      for_each_pair(first_row, n, [&](int64_t row, int64_t count, auto two) {
        ValueTile part = a;
        part.w += row * a.ldw;
        part.rows = count;
        part.scales = scales;
        std::memset(p, 0, static_cast<size_t>(count * kWeightBytes));  // steps begin and end at other keys, too
        Integers::weigh_rows(part, p, kWeightBytes, scale, start);
        const LeftRows weights = {reinterpret_cast<const char*>(p) + first * kTileBytes, kWeightBytes, kTileBytes};
        for (int64_t c = 0; c < dim; c += kValueGroup) {
          const char* block = static_cast<const char*>(a.v) + c * kKeyBlock;
          zero_sums<two>();
          multiply<Numbers::kUnsigned, two>(weights, block + first * kColumnsBytes, steps);
          store_sums<two>(sums, kValueGroup);
          for (int64_t r = 0; r < count; ++r) {
            const Floats factor(scale[r]), alpha(a.alpha == nullptr ? 1.0f : a.alpha[row + r]);
            for (int64_t x = 0; x < kValueGroup; x += 16) {
              float* o = a.o + (row + r) * a.ldo + c + x;
              const Floats sum = to_float(Ints::load_unaligned(sums + r * kValueGroup + x));
              store(mul_add(sum, factor, alpha * load(o)), o);
            }
          }
        }
      });
    });
  }
};

}  // namespace
}  // namespace simdattn
