// The narrow storage types: rows and panels of codes to f32 and back.
#ifndef SIMDATTN_LIB_HIGHWAY_NARROW_H_
#define SIMDATTN_LIB_HIGHWAY_NARROW_H_

#include "hwy/highway.h"
#include "lib/cursor.h"
#include "lib/highway/narrow_codes.h"
#include "lib/highway/narrow_tiles.h"
#include "lib/highway/target.h"
#include "lib/kernels/bf16_attention.h"
#include "lib/kernels/value_tile.h"
#include "lib/kv_formats.h"
#include "lib/narrow_operands.h"
#include "lib/panel_columns.h"

namespace simdattn {
namespace {
namespace highway {

HWY_INLINE void Put(Numbers x, Numbers scale, float* out) { hn::StoreU(hn::Mul(x, scale), D(), out); }

template <class Code>
HWY_INLINE void WidenRow(const uint8_t* row, float scale, int64_t first, int64_t n, float* out, ByteFormat<Code>) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const Numbers factor = hn::Set(d, scale);
  row += first;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) Put(LoadNumbers(row + i, Code()), factor, out + i);
  if (i < n) {
    const size_t rest = static_cast<size_t>(n - i);
    hn::StoreN(hn::Mul(NumberOf<0>(LoadCodesN(row + i, rest), Code()), factor), d, out + i, rest);
  }
}
template <class Code>
HWY_INLINE void WidenRow(const uint8_t* row, float /*scale*/, int64_t first, int64_t n, float* out, BlockFormat<Code>) {
  using Format = BlockFormat<Code>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  row += first / Format::kBlock * Format::kBlockBytes;
  for (int64_t i = 0; i < n; i += Format::kBlock, row += Format::kBlockBytes) {
    const Numbers factor = BlockScale(row);
    for (int64_t j = 0; j < Code::kBytes; j += lanes) {
      const uint8_t* const codes = row + Format::kScaleBytes + j;
      if constexpr (Code::kBytes == 32) {
        Put(LoadNumbers(codes, Int8Code()), factor, out + i + j);
      } else {
        const Codes w = LoadCodes(codes);
        Put(NumberOf<0>(w, Code()), factor, out + i + j);
        Put(NumberOf<4>(w, Code()), factor, out + i + 16 + j);
      }
    }
  }
}
template <class Code>
HWY_INLINE void WidenRow(const uint8_t* row, float scale, int64_t first, int64_t n, float* out, ReadFormat<Code>) {
  ReadFormat<Code>::decode(row, scale, first, n, out);
}

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
template <int kMantissa, int kBias, uint32_t kLargest, uint32_t kNan, uint32_t kOver>
HWY_INLINE void WidenKeys(const uint8_t* panel, const float* scales, int64_t dim, float* out,
                          ByteFormat<Fp8Code<kMantissa, kBias, kLargest, kNan, kOver>>) {
  using Table = Fp8Table<Fp8Code<kMantissa, kBias, kLargest, kNan, kOver>>;
  const D d;
  const Table table;
  for (int64_t j = 0; j < kPanelWidth; j += 16) {
    const Numbers factor = hn::LoadU(d, scales + j);
    for (int64_t i = 0; i < dim; i += 4) {
      const uint8_t* const unit = panel + i / 4 * kUnitPitch + kUnitBytes * j;
      Fetch(unit);
      const __m512i odd = LoadUnits(unit).raw;  // bytes 1 and 3 are the upper halves of 16 bits
      const __m512i even = _mm512_slli_epi16(odd, 8);
      const __m512i first = table(odd, even), second = table(_mm512_srli_epi16(odd, 8), odd);
      float* const y = out + i * kPanelWidth + j;
      Put(Table::Lower(first), factor, y);
      if (i + 1 < dim) Put(Table::Lower(second), factor, y + kPanelWidth);
      if (i + 2 < dim) Put(Table::Upper(first), factor, y + 2 * kPanelWidth);
      if (i + 3 < dim) Put(Table::Upper(second), factor, y + 3 * kPanelWidth);
    }
  }
}
template <int kMantissa, int kBias, uint32_t kLargest, uint32_t kNan, uint32_t kOver>
HWY_INLINE void WidenRow(const uint8_t* row, float scale, int64_t first, int64_t n, float* out,
                         ByteFormat<Fp8Code<kMantissa, kBias, kLargest, kNan, kOver>>) {
  using Code = Fp8Code<kMantissa, kBias, kLargest, kNan, kOver>;
  using Table = Fp8Table<Code>;
  const D d;
  const Table table;
  const Numbers factor = hn::Set(d, scale);
  row += first;
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    const __m512i codes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + i)));
    const __m512i numbers = table(codes, _mm512_slli_epi16(codes, 8));
    Put(Numbers{_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(numbers)), 16))},
        factor, out + i);
    Put(Numbers{_mm512_castsi512_ps(
            _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(numbers, 1)), 16))},
        factor, out + i + 16);
  }
  for (; i < n; i += 16) {
    const size_t rest = static_cast<size_t>(n - i);
    hn::StoreN(hn::Mul(NumberOf<0>(LoadCodesN(row + i, rest), Code()), factor), d, out + i, rest);
  }
}
#endif
template <class Code>
HWY_INLINE void WidenKeys(const uint8_t* panel, const float* scales, int64_t dim, float* out, ByteFormat<Code>) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < dim; i += 4, panel += kUnitPitch) {
    Fetch(panel);
    Fetch(panel + kUnitPitch / 2);
    for (int64_t j = 0; j < kPanelWidth; j += lanes) {
      const Codes w = LoadUnits(panel + kUnitBytes * j);
      const Numbers factor = hn::LoadU(d, scales + j);
      float* const y = out + i * kPanelWidth + j;
      Put(NumberOf<0>(w, Code()), factor, y);
      if (i + 1 < dim) Put(NumberOf<8>(w, Code()), factor, y + kPanelWidth);
      if (i + 2 < dim) Put(NumberOf<16>(w, Code()), factor, y + 2 * kPanelWidth);
      if (i + 3 < dim) Put(NumberOf<24>(w, Code()), factor, y + 3 * kPanelWidth);
    }
  }
}
template <class Code>
HWY_INLINE void WidenKeys(const uint8_t* panel, const float* /*scales*/, int64_t dim, float* out, BlockFormat<Code>) {
  using Format = BlockFormat<Code>;
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t b = 0; b < dim / Format::kBlock; ++b) {
    const uint8_t* const scales = panel + Format::scale_at(dim, b, 0);
    for (int64_t j = 0; j < kPanelWidth; j += lanes) {
      const Numbers factor =
          F32FromF16(d, hn::LoadU(hn::Rebind<uint16_t, D>(), reinterpret_cast<const uint16_t*>(scales) + j));
      for (int64_t u = 0; u < Format::kUnits; ++u) {
        Fetch(panel + (b * Format::kUnits + u) * kUnitPitch + kUnitBytes * j);
        const Codes w = LoadUnits(panel + (b * Format::kUnits + u) * kUnitPitch + kUnitBytes * j);
        float* const y = out + (b * Format::kBlock + 4 * u) * kPanelWidth + j;
        Put(NumberOf<0>(w, Code()), factor, y);
        Put(NumberOf<8>(w, Code()), factor, y + kPanelWidth);
        Put(NumberOf<16>(w, Code()), factor, y + 2 * kPanelWidth);
        Put(NumberOf<24>(w, Code()), factor, y + 3 * kPanelWidth);
        if constexpr (Code::kBytes == 16) {
          float* const upper = y + 16 * kPanelWidth;
          Put(NumberOf<4>(w, Code()), factor, upper);
          Put(NumberOf<12>(w, Code()), factor, upper + kPanelWidth);
          Put(NumberOf<20>(w, Code()), factor, upper + 2 * kPanelWidth);
          Put(NumberOf<28>(w, Code()), factor, upper + 3 * kPanelWidth);
        }
      }
    }
  }
}

/// largest_bits() of lib/kv_formats.h.
HWY_INLINE uint32_t LargestBits(const float* x, int64_t n) {
  const D d;
  const DI di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto largest = hn::Zero(di);
  for (int64_t i = 0; i < n; i += lanes) {
    const Numbers v = i + lanes <= n ? hn::LoadU(d, x + i) : hn::LoadN(d, x + i, static_cast<size_t>(n - i));
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(v)));
  }
  return static_cast<uint32_t>(hn::ReduceMax(di, largest));
}
/// f(numbers) of n numbers as codes.
template <class F>
HWY_INLINE void StoreCodes(const float* x, int64_t n, uint8_t* out, const F& f) {
  const D d;
  const hn::Rebind<uint8_t, DU> d8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::TruncateTo(d8, f(hn::LoadU(d, x + i))), d8, out + i);
  if (i == n) return;
  const size_t rest = static_cast<size_t>(n - i);
  hn::StoreN(hn::TruncateTo(d8, f(hn::LoadN(d, x + i, rest))), d8, out + i, rest);
}
/// round_to_integer() of products.
HWY_INLINE void StoreIntegers(const float* x, int64_t n, float factor, uint8_t* out) {
  const D d;
  const Numbers by = hn::Set(d, factor), rounder = hn::Set(d, 0x1.8p23f);
  StoreCodes(x, n, out, [&](Numbers v) SIMDATTN_LAMBDA {
    return hn::BitCast(DU(), hn::Add(hn::Mul(v, by), rounder));  // the lowest byte of the sum is the integer
  });
}
template <class Code>
HWY_INLINE void EncodeRow(const float* x, int64_t dim, uint8_t* row, float* scale, ByteFormat<Code>) {
  Code::encode(x, dim, row, scale);
}
HWY_INLINE void EncodeRow(const float* x, int64_t dim, uint8_t* row, float* scale, ByteFormat<Int8Code>) {
  const Int8Scale s(LargestBits(x, dim));
  *scale = s.scale;
  if (s.holds) return StoreIntegers(x, dim, s.inverse, row);
  std::memset(row, 0, static_cast<size_t>(dim));
}
template <int kMantissa, int kBias, uint32_t kLargest, uint32_t kNan, uint32_t kOver>
HWY_INLINE void EncodeRow(const float* x, int64_t dim, uint8_t* row, float* scale,
                          ByteFormat<Fp8Code<kMantissa, kBias, kLargest, kNan, kOver>>) {
  using Code = Fp8Code<kMantissa, kBias, kLargest, kNan, kOver>;
  const D d;
  const DI di;
  constexpr int kShift = Code::kShift;
  const auto set = [&](uint32_t bits) SIMDATTN_LAMBDA { return hn::Set(di, static_cast<int32_t>(bits)); };
  const Numbers inverse = hn::Set(d, 1.0f / *scale);
  const Numbers rounder = hn::Set(d, Code::kRounder);
  StoreCodes(x, dim, row, [&](Numbers v) SIMDATTN_LAMBDA {
    // Code::code(), whose comments these are.
    const Numbers y = hn::Mul(v, inverse);
    const auto from = hn::BitCast(di, hn::Abs(v)), bits = hn::BitCast(di, hn::Abs(y));
    const auto sign = hn::And(hn::BitCast(DI(), hn::ShiftRight<24>(hn::BitCast(DU(), y))), set(0x80u));
    const auto small = hn::Sub(hn::BitCast(di, hn::Add(hn::Abs(y), rounder)), hn::BitCast(di, rounder));
    const auto odd = hn::And(hn::ShiftRight<kShift>(bits), set(1));
    const auto normal = hn::Sub(hn::ShiftRight<kShift>(hn::Add(hn::Add(bits, set((1u << (kShift - 1)) - 1)), odd)),
                                set(Code::kExponent >> kShift));
    auto result = hn::IfThenElse(hn::Lt(bits, set(Code::kExponent + (1u << 23))), small, normal);
    result = hn::Min(result, set(kLargest));
    if constexpr (kOver != kNan) result = hn::IfThenElse(hn::Eq(from, set(kInfinityBits)), set(kOver), result);
    const auto infinite = set(kInfinityBits - (kOver == kNan ? 1 : 0));
    const auto none = hn::Or(hn::Gt(from, infinite), hn::Gt(bits, set(kInfinityBits)));
    return hn::BitCast(DU(), hn::IfThenElse(none, set(kNan), hn::Or(result, sign)));
  });
}
template <class Code>
HWY_INLINE void EncodeRow(const float* x, int64_t dim, uint8_t* row, float* scale, BlockFormat<Code>) {
  BlockFormat<Code>::encode(x, dim, row, scale);
}
HWY_INLINE void EncodeRow(const float* x, int64_t dim, uint8_t* row, float* /*scale*/, BlockFormat<Q8Code>) {
  using Format = BlockFormat<Q8Code>;
  for (int64_t b = 0; b < dim / Format::kBlock; ++b, x += Format::kBlock, row += Format::kBlockBytes) {
    const Q8Scale s(LargestBits(x, Format::kBlock));
    put_f16(s.d, row);
    if (s.holds) {
      StoreIntegers(x, Format::kBlock, s.inverse, row + Format::kScaleBytes);
    } else {
      std::memset(row + Format::kScaleBytes, 0, static_cast<size_t>(Format::kBlock));
    }
  }
}

HWY_INLINE void EncodeRow(const float* x, int64_t dim, uint8_t* row, float* /*scale*/, BlockFormat<Q4Code>) {
  using Format = BlockFormat<Q4Code>;
  const D d;
  const DI di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t b = 0; b < dim / Format::kBlock; ++b, x += Format::kBlock, row += Format::kBlockBytes) {
    const uint32_t bits = LargestBits(x, Format::kBlock);
    float extreme = 0.0f;
    for (int64_t i = 0; bits != 0; i += lanes) {  // the first one of that size
      const Numbers v = hn::LoadU(d, x + i);
      const auto found = hn::Eq(hn::BitCast(di, hn::Abs(v)), hn::Set(di, static_cast<int32_t>(bits)));
      const intptr_t first = hn::FindFirstTrue(di, found);
      if (first < 0) continue;
      extreme = x[i + first];
      break;
    }
    const Q4Scale s(bits, extreme);
    put_f16(s.d, row);
    if (!s.holds) {
      std::memset(row + Format::kScaleBytes, 0x88, static_cast<size_t>(Q4Code::kBytes));
      continue;
    }
    const auto code = [&](const float* p) SIMDATTN_LAMBDA {
      const Numbers y = hn::Add(hn::Mul(hn::LoadU(d, p), hn::Set(d, s.inverse)), hn::Set(d, 8.5f));
      return hn::BitCast(DU(), hn::Min(hn::ConvertTo(di, y), hn::Set(di, 15)));
    };
    const hn::Rebind<uint8_t, DU> d8;
    for (int64_t i = 0; i < Q4Code::kBytes; i += lanes) {
      const Codes both = hn::Or(code(x + i), hn::ShiftLeft<4>(code(x + 16 + i)));
      hn::StoreU(hn::TruncateTo(d8, both), d8, row + Format::kScaleBytes + i);
    }
  }
}

/// Fetches bytes [first, first + n) of 32 rows below, a part at a time: behind the next 32, since drivers take two panels at a time.
class RowsBelow {
 public:
  HWY_INLINE RowsBelow(const PackKeys& a, int64_t first, int64_t n)
      : line_(address_at(static_cast<const uint8_t*>(a.from), 2 * kPanelWidth * a.token_stride + first)),
        stride_(static_cast<uintptr_t>(a.token_stride)),
        rows_(a.stream ? kPanelWidth : 0),
        bytes_(static_cast<uintptr_t>(n)) {}
  HWY_INLINE void fetch(int64_t rows) {
    for (; rows > 0 && rows_ > 0; --rows, --rows_, line_ += stride_) {
      for (uintptr_t i = 0; i < bytes_; i += 64) __builtin_prefetch(reinterpret_cast<const char*>(line_ + i), 0, 2);
    }
  }

 private:
  uintptr_t line_;
  uintptr_t stride_;
  int64_t rows_;
  uintptr_t bytes_;
};

/// Units of `keys` rows that lie side by side to columns of a panel.
HWY_INLINE void TransposeUnits(const uint8_t* rows, int64_t stride, int64_t keys, int64_t units, uint8_t* panel,
                               RowsBelow& below) {
  constexpr int64_t kLanes = HWY_MAX_LANES_D(DU);
  int64_t u = 0;
  for (; keys == kPanelWidth && u + 4 <= units; u += 4) {
    below.fetch(4);
    for (int64_t j = 0; j < kPanelWidth; j += kLanes)
      TransposeUnits4(rows + j * stride + kUnitBytes * u, stride, panel + u * kUnitPitch + kUnitBytes * j);
  }
  transpose_units<uint32_t>(reinterpret_cast<const char*>(rows + kUnitBytes * u), stride, keys, units - u,
                            reinterpret_cast<char*>(panel + u * kUnitPitch), kUnitPitch);
}

template <KvType kType>
struct Codec {
  static HWY_NOINLINE void rows(const uint8_t* rows, int64_t stride, const float* scales, int64_t keys, int64_t first,
                                int64_t n, float* out, int64_t ld) {
    const uint8_t* row = rows;
    for (int64_t j = 0; j < keys; ++j, out += ld) {
      row = rows + j * stride;
      for (int64_t i = 0; i < n; i += 64) Fetch(row + i);
      WidenRow(row, has_scales(kType) ? scales[j] : 1.0f, first, n, out, FormatOf<kType>());
    }
  }
  static HWY_INLINE void panel(const uint8_t* panel, const float* scales, int64_t dim, float* out) {
    WidenKeys(panel, scales, dim, out, FormatOf<kType>());
  }
  static HWY_NOINLINE void encode(const float* x, int64_t dim, uint8_t* row, float* scale) {
    if constexpr (!is_read_only(kType)) EncodeRow(x, dim, row, scale, FormatOf<kType>());
  }
};

/// Dimensions [0, n) of rows to a panel of their type; columns past `keys` become 0.
template <KvType kType>
HWY_NOINLINE void TransposeCodes(const uint8_t* rows, int64_t stride, int64_t keys, int64_t n, uint8_t* panel,
                                 RowsBelow below) {
  using Format = FormatOf<kType>;
  if (keys < kPanelWidth) std::memset(panel, 0, static_cast<size_t>(panel_bytes(kType, n)));
  // Units that are side by side in a row, and what is left of a last one.
  const int64_t whole = has_scales(kType) ? n / 4 : Format::units(n);
  const int64_t together = has_scales(kType) ? whole : Format::units(block_of(kType));
  for (int64_t u = 0; u < whole; u += together) {
    TransposeUnits(rows + Format::unit_at(u), stride, keys, together, panel + u * kUnitPitch, below);
  }
  below.fetch(kPanelWidth);
  for (int64_t j = 0; j < keys; ++j) {
    const uint8_t* const row = rows + j * stride;
    Format::put_block_scales(row, n, panel, j);
    if (has_scales(kType) && n % 4 != 0) {
      std::memcpy(panel + n / 4 * kUnitPitch + kUnitBytes * j, row + n / 4 * 4, static_cast<size_t>(n % 4));
    }
  }
}

template <KvType kType>
using Slots = NarrowSlots<kType, Codec<kType>>;

template <KvType kType>
bool AllFiniteNarrow(const FiniteRows& a) {
  return Slots<kType>::all_finite(a);
}
template <KvType kType>
void StoreRowsNarrow(const StoreRows& a) {
  Slots<kType>::store_rows(a);
}
template <KvType kType>
void StorePanelsNarrow(const StoreRows& a) {
  Slots<kType>::store_panels(a);
}
template <KvType kType>
void LoadRowsNarrow(const LoadRows& a) {
  Slots<kType>::load_rows(a);
}
template <KvType kType>
void LoadPanelsNarrow(const LoadRows& a) {
  Slots<kType>::load_panels(a);
}
template <KvType kType>
HWY_NOINLINE void WidenPanelNarrow(const PackKeys& a) {
  const uint8_t* const panel = static_cast<const uint8_t*>(a.from);
  Codec<kType>::panel(panel, a.scales, a.dim, static_cast<float*>(a.panel));
}
template <KvType kType>
void StorePanelNarrow(const PackKeys& a) {
  TransposeCodes<kLaidOutAs<kType>>(static_cast<const uint8_t*>(a.from), a.token_stride, a.keys, a.dim,
                                    static_cast<uint8_t*>(a.panel), RowsBelow(a, 0, row_bytes(kType, a.dim)));
}
/// Rows become a panel of their type first: units of four bytes are transposed, a quarter of what their numbers are or less.
template <KvType kType>
HWY_NOINLINE void PackKeysNarrow(const PackKeys& a) {
  constexpr int64_t kChunk = 128;  // dimensions at a time
  HWY_ALIGN uint8_t panel[panel_bytes(kType, kChunk)];
  HWY_ALIGN float scales[kPanelWidth] = {};
  if (has_scales(kType)) std::memcpy(scales, a.scales, static_cast<size_t>(a.keys) * sizeof(float));
  for (int64_t d = 0; d < a.dim; d += kChunk) {
    const int64_t n = HWY_MIN(kChunk, a.dim - d);
    const int64_t first = row_bytes(kType, d);
    TransposeCodes<kLaidOutAs<kType>>(static_cast<const uint8_t*>(a.from) + first, a.token_stride, a.keys, n, panel,
                                      RowsBelow(a, first, row_bytes(kType, n)));
    Codec<kType>::panel(panel, scales, n, static_cast<float*>(a.panel) + d * kPanelWidth);
  }
}
template <KvType kType>
HWY_NOINLINE void ValuesInF32(const ValueTile& a, void (*kernel)(const ValueTile&)) {
  Slots<kType>::value_tile(a, kernel);
}
template <KvType kType>
void ValueTileBF16Narrow(const ValueTile& a) {
  ValuesInF32<kType>(a, Bf16Kernels::value_tile_f32);
}
template <KvType kType>
void ValueTileNarrow(const ValueTile& a) {
#if SIMDATTN_FUSES_NARROW
  if constexpr (!is_read_only(kType)) {
    if (a.rows <= kFusedRows) {
      const int64_t done = AddValuesNarrow<kType>(a);
      if (done == a.dim) return;
      // Less than a tile of columns.
      return ValuesInF32<kType>(columns_from(a, done), simdattn::value_tile<float>);
    }
  }
#endif
  ValuesInF32<kType>(a, simdattn::value_tile<float>);
}

/// Queries as pairs of 16 bits: dimensions 0 and 2 of four, and 1 and 3.
struct QueryPairs {
  int32_t* even;
  int32_t* odd;
  float scale;
};
constexpr int64_t kIntegerRows = 4;
/// More dimensions are taken row by row: the pairs lie on the stack, 16 KiB.
constexpr int64_t kMostTogether = kMaxNarrowDim / kIntegerRows;

/// kRows rows against the keys of one vector of a panel.
template <int64_t kRows>
HWY_INLINE void ScoreKeys(const QueryPairs* q, const uint8_t* panel, const float* scales, int64_t dim, float* out,
                          int64_t ld) {
  const D d;
  const DI di;
  const hn::Repartition<int16_t, DI> dw;
  auto acc0 = hn::Zero(d), acc1 = acc0, acc2 = acc0, acc3 = acc0;
  for (int64_t b = 0; b < dim; b += 32, scales += kPanelWidth) {
    auto sum0 = hn::Zero(di), sum1 = sum0, sum2 = sum0, sum3 = sum0;
    for (int64_t i = b / 4; i < b / 4 + 8; ++i) {
      const auto w = hn::BitCast(dw, LoadUnits(panel + i * kUnitPitch));
      const auto even = hn::ShiftRight<8>(hn::ShiftLeft<8>(w));
      const auto odd = hn::ShiftRight<8>(w);
      const auto add = [&](int64_t r, auto& sum) SIMDATTN_LAMBDA {
        const auto x = hn::BitCast(dw, hn::Set(di, q[r].even[i])), y = hn::BitCast(dw, hn::Set(di, q[r].odd[i]));
        sum = hn::Add(sum, hn::Add(hn::WidenMulPairwiseAdd(di, even, x), hn::WidenMulPairwiseAdd(di, odd, y)));
      };
      add(0, sum0);
      if constexpr (kRows > 1) add(1, sum1), add(2, sum2), add(3, sum3);
    }
    const auto scale = hn::LoadU(d, scales);
    acc0 = hn::MulAdd(hn::ConvertTo(d, sum0), scale, acc0);
    if constexpr (kRows > 1) {
      acc1 = hn::MulAdd(hn::ConvertTo(d, sum1), scale, acc1);
      acc2 = hn::MulAdd(hn::ConvertTo(d, sum2), scale, acc2);
      acc3 = hn::MulAdd(hn::ConvertTo(d, sum3), scale, acc3);
    }
  }
  hn::StoreU(hn::Mul(acc0, hn::Set(d, q[0].scale)), d, out);
  if constexpr (kRows > 1) {
    hn::StoreU(hn::Mul(acc1, hn::Set(d, q[1].scale)), d, out + ld);
    hn::StoreU(hn::Mul(acc2, hn::Set(d, q[2].scale)), d, out + 2 * ld);
    hn::StoreU(hn::Mul(acc3, hn::Set(d, q[3].scale)), d, out + 3 * ld);
  }
}

/// BlockIntegers::score(), of packed panels, which are alike for all types with blocks.
void ScoreBlockIntegers(const ScoreTile& a) {
  using Integers = BlockIntegers<KvType::kQ8_0>;
  int32_t pairs[kMaxNarrowDim / 2];
  QueryPairs q[kIntegerRows];
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  for (int64_t r = 0; r < a.rows;) {
    const int64_t rows = a.rows - r < kIntegerRows || a.dim > kMostTogether ? 1 : kIntegerRows;
    for (int64_t i = 0; i < rows; ++i) {
      int8_t x[kMaxNarrowDim];
      const char* const query = static_cast<const char*>(a.q) + (r + i) * a.q_stride;
      q[i].scale = Integers::query_integers(query, a.q_stride, a.dim, x).scale * a.scale;
      q[i].even = pairs + i * (a.dim / 2);
      q[i].odd = q[i].even + a.dim / 4;
      const auto pair = [](int8_t low, int8_t high) {
        return static_cast<int32_t>(static_cast<uint32_t>(low & 0xFFFF) | static_cast<uint32_t>(high) << 16);
      };
      for (int64_t d = 0; d < a.dim; d += 4) {
        q[i].even[d / 4] = pair(x[d], x[d + 2]);
        q[i].odd[d / 4] = pair(x[d + 1], x[d + 3]);
      }
    }
    for (int64_t p = 0; p < a.n_panels; ++p) {
      const uint8_t* const panel = static_cast<const uint8_t*>(a.panels) + p * a.panel_stride;
      const float* const scales = reinterpret_cast<const float*>(panel + int8_panel_numbers(a.dim));
      for (int64_t j = 0; j < kPanelWidth; j += lanes) {
        float* const out = a.s + r * a.lds + p * kPanelWidth + j;
        if (rows == 1) {
          ScoreKeys<1>(q, panel + kUnitBytes * j, scales + j, a.dim, out, a.lds);
        } else {
          ScoreKeys<kIntegerRows>(q, panel + kUnitBytes * j, scales + j, a.dim, out, a.lds);
        }
      }
    }
    r += rows;
  }
}

}  // namespace highway
}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_NARROW_H_
