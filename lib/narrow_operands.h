// The narrow storage types in the table of a backend: what multiplies them, and the slots of lib/kv_formats.h.
#ifndef SIMDATTN_LIB_NARROW_OPERANDS_H_
#define SIMDATTN_LIB_NARROW_OPERANDS_H_

#include "lib/fma.h"
#include "lib/int8_operands.h"
#include "lib/kv_formats.h"
#include "lib/panel_columns.h"

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
  static void values(const PackValues& a) {
    char* const block = static_cast<char*>(a.block);
    float* const scales = scales_of(block, int8_values_numbers(a.columns));
    for (int64_t j = a.first; j < a.first + a.keys; ++j) {
      const char* const row = static_cast<const char*>(a.rows) + (j - a.first) * a.token_stride + a.column;
      scales[j] = a.scales[j - a.first];
      for (int64_t c = 0; c < int8_values_numbers(a.columns) / kKeyBlock; c += kValueGroup) {
        char* const group = block + c * kKeyBlock + j / 4 * kValueGroup * 4 + j % 4;
        for (int64_t i = 0; i < kValueGroup; ++i) group[i * 4] = c + i < a.columns ? row[c + i] : char{0};
      }
    }
  }
};

/// Keys in blocks with scales of their own for Arithmetic::kInt8: the integers of a panel as int8_operands.h has them, then f32
/// scales [dim/32][32].
template <KvType kType>
struct BlockIntegers {
  using Format = FormatOf<kType>;
  static constexpr int64_t kBlock = Format::kBlock;

  static int64_t panel_bytes(int64_t dim) { return int8_panel_numbers(dim) + dim / kBlock * kPanelWidth * 4; }
  static void put(const int8_t* integers, int64_t block, int64_t column, int8_t* panel) {
    for (int64_t i = 0; i < kBlock; ++i)
      panel[((block * kBlock + i) / 4 * kPanelWidth + column) * 4 + i % 4] = integers[i];
  }
  static void keys(const PackKeys& a) {
    int8_t* const panel = static_cast<int8_t*>(a.panel);
    float* const scales = reinterpret_cast<float*>(panel + int8_panel_numbers(a.dim));
    std::memset(panel, 0, static_cast<size_t>(panel_bytes(a.dim)));
    for (int64_t j = 0; j < a.keys; ++j) {
      const uint8_t* row = static_cast<const uint8_t*>(a.from) + j * a.token_stride;
      for (int64_t b = 0; b < a.dim / kBlock; ++b, row += Format::kBlockBytes) {
        int8_t integers[kBlock];
        Format::Code::integers(row + Format::kScaleBytes, integers);
        put(integers, b, j, panel);
        scales[b * kPanelWidth + j] = f16_at(row);
      }
    }
  }
  static void panel(const PackKeys& a) {
    const uint8_t* const from = static_cast<const uint8_t*>(a.from);
    int8_t* const panel = static_cast<int8_t*>(a.panel);
    float* const scales = reinterpret_cast<float*>(panel + int8_panel_numbers(a.dim));
    for (int64_t b = 0; b < a.dim / kBlock; ++b) {
      Format::panel_scales(from, a.dim, b, scales + b * kPanelWidth);
      for (int64_t j = 0; j < kPanelWidth; ++j) {
        uint8_t codes[Format::Code::kBytes];
        for (int64_t u = 0; u < Format::kUnits; ++u) {
          std::memcpy(codes + u * kUnitBytes, from + ((b * Format::kUnits + u) * kPanelWidth + j) * kUnitBytes,
                      kUnitBytes);
        }
        int8_t integers[kBlock];
        Format::Code::integers(codes, integers);
        put(integers, b, j, panel);
      }
    }
  }
  /// The integers of a query one by one: in cells of four bytes they are, in cells of pairs (int8_kernels-inl.h) in the order
  /// 0, 2, 1, 3 of 16 bits.
  static Int8Query query_integers(const void* query, int64_t bytes, int64_t dim, int8_t* out) {
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
  static void score(const ScoreTile& a) {
    int8_t q[kMaxNarrowDim];
    for (int64_t r = 0; r < a.rows; ++r) {
      const Int8Query info = query_integers(static_cast<const char*>(a.q) + r * a.q_stride, a.q_stride, a.dim, q);
      for (int64_t p = 0; p < a.n_panels; ++p) {
        const auto* const panel =
            reinterpret_cast<const int8_t*>(static_cast<const char*>(a.panels) + p * a.panel_stride);
        const float* const scales = reinterpret_cast<const float*>(panel + int8_panel_numbers(a.dim));
        float acc[kPanelWidth] = {};
        for (int64_t b = 0; b < a.dim / kBlock; ++b) {
          int32_t sum[kPanelWidth] = {};
          for (int64_t d = b * kBlock; d < (b + 1) * kBlock; d += 4) {
            const int8_t* const cells = panel + d * kPanelWidth;
            for (int64_t j = 0; j < kPanelWidth; ++j) {
              for (int64_t i = 0; i < 4; ++i) sum[j] += q[d + i] * cells[4 * j + i];
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
  static constexpr void add(KvOperands& operands) {
    operands.panel_bytes = panel_bytes;
    operands.score_packed = score;
    operands.pack_keys = keys;
    operands.pack_panel = panel;
  }
};

/// N<type>: the slots of a type, as NarrowSlots has them with value_tile for f32, and perhaps pack_keys.
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
}

/// What a table of Arithmetic::kInt8 multiplies as it is stored.
constexpr void add_stored_integers(AttentionKernels& t) {
  KvOperands& integers = t.kv[slot(KvType::kInt8)];
  integers.pack_keys = Int8AsStored::keys;
  integers.pack_panel = Int8AsStored::panel;
  integers.pack_values = Int8AsStored::values;
  BlockIntegers<KvType::kQ8_0>::add(t.kv[slot(KvType::kQ8_0)]);
  BlockIntegers<KvType::kQ4_0>::add(t.kv[slot(KvType::kQ4_0)]);
}

template <template <KvType> class N, KvType... kTypes>
constexpr UKernels with_types(UKernels t) {
  (add_narrow_type<N, kTypes>(t), ...);
  add_stored_integers(t.attention[slot(Arithmetic::kInt8)]);
  return t;
}
/// The table with all narrow types.
template <template <KvType> class N>
constexpr UKernels with_narrow_types(const UKernels& t) {
  return with_types<N, KvType::kInt8, KvType::kFp8E4M3, KvType::kFp8E5M2, KvType::kQ8_0, KvType::kQ4_0, KvType::kQ4_1,
                    KvType::kQ5_0, KvType::kQ5_1, KvType::kIq4Nl>(t);
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_NARROW_OPERANDS_H_
