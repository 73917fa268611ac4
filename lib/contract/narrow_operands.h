// The narrow storage types in the table of a backend: what multiplies them, and the slots of lib/contract/kv_formats.h.
#ifndef SIMDATTN_LIB_CONTRACT_NARROW_OPERANDS_H_
#define SIMDATTN_LIB_CONTRACT_NARROW_OPERANDS_H_

#include "lib/contract/fma.h"
#include "lib/contract/int8_operands.h"
#include "lib/contract/kv_formats.h"
#include "lib/contract/panel_columns.h"

namespace simdattn {
namespace {  // internal to each object, like the helpers of dtypes.h

/// Keys and values stored as int8 for Arithmetic::kInt8: integers and scales as they are.
struct Int8AsStored {
  static float* scales_of(void* panel, int64_t numbers) {
    return reinterpret_cast<float*>(static_cast<char*>(panel) + numbers);
  }
  static void panel(const PackKeys& a) {
    const int64_t numbers = int8_panel_numbers(a.dim);
    std::memcpy(a.panel, a.from, static_cast<size_t>(numbers));
    std::memcpy(scales_of(a.panel, numbers), a.scales, kPanelWidth * sizeof(float));
  }
  static void keys(const PackKeys& a) {
    constexpr int64_t kPitch = kPanelWidth * 4;
    const char* const rows = static_cast<const char*>(a.from);
    char* const out = static_cast<char*>(a.panel);
    const int64_t numbers = int8_panel_numbers(a.dim);
    float* const scales = scales_of(a.panel, numbers);
    if (a.keys < kPanelWidth) std::memset(out, 0, static_cast<size_t>(int8_panel_bytes(a.dim)));
    const int64_t units = a.dim / 4;
    transpose_units<uint32_t>(rows, a.token_stride, a.keys, units, out, kPitch);
    for (int64_t j = 0; j < a.keys; ++j) {
      scales[j] = a.scales[j];
      if (a.dim % 4 == 0) continue;
      char unit[4] = {};
      std::memcpy(unit, rows + j * a.token_stride + 4 * units, static_cast<size_t>(a.dim % 4));
      std::memcpy(out + units * kPitch + 4 * j, unit, 4);
    }
  }
  /// The sign of a scale moves into the integers: weights times scales are at least 0.
  static void values(const PackValues& a) {
    char* const block = static_cast<char*>(a.block);
    float* const scales = scales_of(block, int8_values_numbers(a.columns));
    const int64_t end = a.first + a.keys;
    bool negative = false;
    for (int64_t j = a.first; j < end; ++j) {
      negative = negative || std::signbit(a.scales[j - a.first]);
      scales[j] = std::fabs(a.scales[j - a.first]);
    }
    const char* const rows = static_cast<const char*>(a.rows) + a.column;
    for (int64_t c = 0; c < int8_values_numbers(a.columns) / kKeyBlock; c += kValueGroup) {
      char* const group = block + c * kKeyBlock;
      for (int64_t j = a.first; j < end;) {
        const char* const row = rows + (j - a.first) * a.token_stride + c;
        char* const out = group + j / 4 * kValueGroup * 4 + j % 4;
        if (!negative && j % 4 == 0 && j + 4 <= end && c + kValueGroup <= a.columns) {
          interleave(row, a.token_stride, out);
          interleave(row + 16, a.token_stride, out + 64);
          j += 4;
          continue;
        }
        const bool negate = std::signbit(a.scales[j - a.first]);
        for (int64_t i = 0; i < kValueGroup; ++i) {
          const char integer = c + i < a.columns ? row[i] : char{0};
          out[i * 4] = negate ? negated(integer) : integer;
        }
        ++j;
      }
    }
  }

 private:
  /// 127 of -128, whose negative is no byte.
  static char negated(char code) {
    const int x = static_cast<int8_t>(code);
    return static_cast<char>(x == -128 ? 127 : -x);
  }
  using Bytes [[gnu::vector_size(16)]] = uint8_t;
  using Words [[gnu::vector_size(16)]] = uint16_t;
  /// 16 columns of four rows, column by column.
  static void interleave(const char* rows, int64_t stride, char* out) {
    const auto row =
        [=](int64_t i) {  // not an array: at -O2 filling it is a loop of four steps, which is predicted badly
          Bytes r;
          std::memcpy(&r, rows + i * stride, sizeof r);
          return r;
        };
    const Bytes r0 = row(0), r1 = row(1), r2 = row(2), r3 = row(3);
    const auto low = [](Bytes x, Bytes y) {
      return (Words)__builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    };
    const auto high = [](Bytes x, Bytes y) {
      return (Words)__builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    };
    const auto put = [out](Words x, Words y, int64_t at) {
      const Words first = __builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11);
      const Words second = __builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
      std::memcpy(out + at, &first, sizeof first);
      std::memcpy(out + at + 16, &second, sizeof second);
    };
    put(low(r0, r1), low(r2, r3), 0);
    put(high(r0, r1), high(r2, r3), 32);
  }
};

/// Keys in blocks with scales of their own for Arithmetic::kInt8: the integers of a panel as int8_operands.h has them, then f32
/// scales [dim/32][32].
template <KvType kType>
struct BlockIntegers {
  using Format = FormatOf<kType>;
  static constexpr int64_t kBlock = Format::kBlock;

  static int64_t panel_bytes(int64_t dim) { return int8_panel_numbers(dim) + dim / kBlock * kPanelWidth * 4; }
  /// One block from its units, [kUnits][32].
  static void put(const uint32_t* units, int64_t block, uint8_t* panel) {
    alignas(64) uint32_t words[kBlock / 4 * kPanelWidth];
    Format::Code::integers(units, words);
    std::memcpy(panel + block * static_cast<int64_t>(sizeof words), words, sizeof words);
  }
  static void keys(const PackKeys& a) {
    uint8_t* const panel = static_cast<uint8_t*>(a.panel);
    float* const scales = reinterpret_cast<float*>(panel + int8_panel_numbers(a.dim));
    for (int64_t b = 0; b < a.dim / kBlock; ++b) {
      const uint8_t* const rows = static_cast<const uint8_t*>(a.from) + b * Format::kBlockBytes;
      alignas(64) uint32_t units[Format::kUnits * kPanelWidth] = {};
      transpose_units<uint32_t>(reinterpret_cast<const char*>(rows + Format::kScaleBytes), a.token_stride, a.keys,
                                Format::kUnits, reinterpret_cast<char*>(units), kPanelWidth * kUnitBytes);
      put(units, b, panel);
      for (int64_t j = 0; j < kPanelWidth; ++j) {
        scales[b * kPanelWidth + j] = j < a.keys ? f16_at(rows + j * a.token_stride) : 0.0f;
      }
    }
  }
  static void panel(const PackKeys& a) {
    const uint8_t* const from = static_cast<const uint8_t*>(a.from);
    uint8_t* const panel = static_cast<uint8_t*>(a.panel);
    float* const scales = reinterpret_cast<float*>(panel + int8_panel_numbers(a.dim));
    for (int64_t b = 0; b < a.dim / kBlock; ++b) {
      alignas(64) uint32_t units[Format::kUnits * kPanelWidth];
      std::memcpy(units, from + b * static_cast<int64_t>(sizeof units), sizeof units);
      put(units, b, panel);
      Format::panel_scales(from, a.dim, b, scales + b * kPanelWidth);
    }
  }
  /// The integers of a query one by one: in cells of four bytes they are, in cells of pairs (kernels/int8_pack.h) in the order
  /// 0, 2, 1, 3 of 16 bits.
  static SIMDATTN_FORMAT_INLINE Int8Query query_integers(const void* query, int64_t bytes, int64_t dim, int8_t* out) {
    const int64_t numbers = int8_query_numbers(dim);
    const bool pairs = bytes != int8_query_bytes(dim);
    const char* const cells = static_cast<const char*>(query);
    if (!pairs) std::memcpy(out, cells, static_cast<size_t>(numbers));
    for (int64_t i = 0; pairs && i < numbers; i += 4) {
      int16_t cell[4];
      std::memcpy(cell, cells + 2 * i, sizeof cell);
      out[i] = static_cast<int8_t>(cell[0]);
      out[i + 1] = static_cast<int8_t>(cell[2]);
      out[i + 2] = static_cast<int8_t>(cell[1]);
      out[i + 3] = static_cast<int8_t>(cell[3]);
    }
    Int8Query info;
    std::memcpy(&info, cells + (pairs ? 2 : 1) * numbers, sizeof info);
    return info;
  }
  /// acc = fma(float(dot of a block), its scale, acc), ascending; then times the scales of query and problem.
  static SIMDATTN_FORMAT_INLINE void score_here(const ScoreTile& a) {
    int8_t q[kMaxNarrowDim];
    for (int64_t r = 0; r < a.rows; ++r) {
      const Int8Query info = query_integers(static_cast<const char*>(a.q) + r * a.q_stride, a.q_stride, a.dim, q);
      for (int64_t p = 0; p < a.n_panels; ++p) {
        const auto* const panel =
            reinterpret_cast<const int8_t*>(static_cast<const char*>(a.panels) + p * a.panel_stride);
        const float* const scales = reinterpret_cast<const float*>(panel + int8_panel_numbers(a.dim));
        alignas(64) float acc[kPanelWidth] = {};
        for (int64_t b = 0; b < a.dim / kBlock; ++b) {
          alignas(64) int32_t sum[kPanelWidth] = {};
          for (int64_t d = b * kBlock; d < (b + 1) * kBlock; d += 4) {
            // Words of four dimensions: shifts, not bytes, for vectors.
            int32_t words[kPanelWidth];
            std::memcpy(words, panel + d * kPanelWidth, sizeof words);
            const int32_t q0 = q[d], q1 = q[d + 1], q2 = q[d + 2], q3 = q[d + 3];
            for (int64_t j = 0; j < kPanelWidth; ++j) {
              const uint32_t w = static_cast<uint32_t>(words[j]);
              sum[j] += q0 * (static_cast<int32_t>(w << 24) >> 24) + q1 * (static_cast<int32_t>(w << 16) >> 24) +
                        q2 * (static_cast<int32_t>(w << 8) >> 24) + q3 * (static_cast<int32_t>(w) >> 24);
            }
          }
          for (int64_t j = 0; j < kPanelWidth; ++j) {
            acc[j] = fma(static_cast<float>(sum[j]), scales[b * kPanelWidth + j], acc[j]);
          }
        }
        float* const out = a.s + r * a.lds + p * kPanelWidth;
        for (int64_t j = 0; j < kPanelWidth; ++j) out[j] = acc[j] * (info.scale * a.scale);
      }
    }
  }
  static void score(const ScoreTile& a) { score_here(a); }
  static constexpr void add(KvOperands& operands, void (*score)(const ScoreTile&)) {
    operands.panel_bytes = panel_bytes;
    operands.score_packed = score;
    operands.pack_keys = keys;
    operands.pack_panel = panel;
  }
};

/// N<type>: the slots of a type, as NarrowSlots has them with value_tile for f32, and perhaps pack_keys; with fused_rows
/// above 0 score_tile for so many rows, from its own panels, score_rows and store_panel; for kBF16 perhaps value_tile_bf16 and pack_panel_bf16.
template <template <KvType> class N, KvType kType>
constexpr void add_narrow_type(UKernels& t) {
  using Slots = N<kType>;
  constexpr size_t kIndex = slot(kType);
  KvKernels& storage = t.kv[kIndex];
  storage.all_finite = Slots::all_finite;
  storage.load_rows = Slots::load_rows;
  if constexpr (!is_read_only(kType)) {
    storage.store_rows = Slots::store_rows;
    storage.store_panels = Slots::store_panels;
    storage.load_panels = Slots::load_panels;
  }
  const AttentionKernels& f32 = t.attention[slot(Arithmetic::kF32)];
  KvOperands& as_f32 = t.attention[slot(Arithmetic::kF32)].kv[kIndex];
  as_f32.panel_bytes = f32.kv[0].panel_bytes;
  as_f32.score_packed = f32.kv[0].score_packed;
  if constexpr (!is_read_only(kType)) as_f32.pack_panel = Slots::widen_panel;
  if constexpr (!is_read_only(kType) && requires { Slots::pack_keys; }) as_f32.pack_keys = Slots::pack_keys;
  as_f32.value_tile = Slots::value_tile;
  KvOperands& as_bf16 = t.attention[slot(Arithmetic::kBF16)].kv[kIndex];
  if constexpr (requires { Slots::value_tile_bf16; }) {
    as_bf16.value_tile = Slots::value_tile_bf16;
  }
  if constexpr (!is_read_only(kType) && requires { Slots::pack_panel_bf16; })
    as_bf16.pack_panel = Slots::pack_panel_bf16;
  if constexpr (!is_read_only(kType) && requires { requires Slots::fused_rows > 0; }) {
    as_f32.score_tile = Slots::score_tile;
    as_f32.score_rows = Slots::score_rows;
    as_f32.store_panel = Slots::store_panel;
    as_f32.direct_key_rows = Slots::fused_rows;
  }
}

/// What Arithmetic::kInt8 of a table multiplies as it is stored. `score`: BlockIntegers::score() of any type with blocks.
constexpr void add_stored_integers(UKernels& table, void (*score)(const ScoreTile&)) {
  AttentionKernels& t = table.attention[slot(Arithmetic::kInt8)];
  KvOperands& integers = t.kv[slot(KvType::kInt8)];
  if (integers.score_tile != nullptr) {
    integers.store_panel = table.attention[slot(Arithmetic::kF32)].kv[slot(KvType::kInt8)].store_panel;
  }
  integers.pack_keys = Int8AsStored::keys;
  integers.pack_panel = Int8AsStored::panel;
  integers.pack_values = Int8AsStored::values;
  BlockIntegers<KvType::kQ8_0>::add(t.kv[slot(KvType::kQ8_0)], score);
  BlockIntegers<KvType::kQ4_0>::add(t.kv[slot(KvType::kQ4_0)], score);
}

/// The table with all narrow types.
template <template <KvType> class N>
constexpr UKernels with_narrow_types(UKernels t) {
#define SIMDATTN_ADD(type) add_narrow_type<N, type>(t);
  SIMDATTN_WRITTEN_TYPES(SIMDATTN_ADD)
  SIMDATTN_READ_TYPES(SIMDATTN_ADD)
#undef SIMDATTN_ADD
  void (*score)(const ScoreTile&) = BlockIntegers<KvType::kQ8_0>::score;
  if constexpr (requires { N<KvType::kQ8_0>::score_integers; }) score = N<KvType::kQ8_0>::score_integers;
  add_stored_integers(t, score);
  return t;
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_CONTRACT_NARROW_OPERANDS_H_
