// The narrow storage types: rows and panels of codes to f32 and back.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/highway/narrow.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "lib/cursor.h"
#include "lib/highway/loads-inl.h"
#include "lib/highway/slots-inl.h"
#include "lib/kv_formats.h"
#include "lib/narrow_operands.h"
#include "lib/panel_columns.h"

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {
namespace {

/// 16 lanes are half a panel, and half a block.
using D = hn::CappedTag<float, 16>;
using DU = hn::RebindToUnsigned<D>;
using DI = hn::RebindToSigned<D>;
using Numbers = hn::Vec<D>;
using Codes = hn::Vec<DU>;

template <int kBits>
HWY_INLINE Codes Left(Codes w) {
  if constexpr (kBits == 0) return w;
  else return hn::ShiftLeft<kBits>(w);
}
template <int kBits>
HWY_INLINE Codes Right(Codes w) {
  if constexpr (kBits == 0) return w;
  else return hn::ShiftRight<kBits>(w);
}

/// The code at bit kBit of each lane as a number. Other bits may hold anything.
template <int kBit>
HWY_INLINE Numbers NumberOf(Codes w, Int8Code /*code*/) {
  return hn::ConvertTo(D(), hn::ShiftRight<24>(hn::BitCast(DI(), Left<24 - kBit>(w))));
}
template <int kBit, int kMantissa, int kBias, uint32_t kLargest, uint32_t kNan, uint32_t kOver>
HWY_INLINE Numbers NumberOf(Codes w, Fp8Code<kMantissa, kBias, kLargest, kNan, kOver> /*code*/) {
  using Code = Fp8Code<kMantissa, kBias, kLargest, kNan, kOver>;
  const D d;
  const DU du;
  const DI di;
  const Codes code = Left<24 - kBit>(w);
  const Codes magnitude = hn::And(code, hn::Set(du, 0x7F000000u));
  const Codes sign = hn::And(code, hn::Set(du, 0x80000000u));
  const auto above = [&](uint32_t limit) HWY_ATTR {
    return hn::RebindMask(d, hn::Gt(hn::BitCast(di, magnitude), hn::Set(di, static_cast<int32_t>(limit << 24))));
  };
  // Exponent field 0: as if it were 1, less what that adds. No subnormal f32 takes part.
  constexpr uint32_t kOne = 1u << 23;
  const Codes bits = hn::Add(hn::ShiftRight<1 + kMantissa>(magnitude), hn::Set(du, Code::kExponent));
  const Numbers small =
      hn::Sub(hn::BitCast(d, hn::Add(bits, hn::Set(du, kOne))), hn::BitCast(d, hn::Set(du, Code::kExponent + kOne)));
  Numbers x = hn::IfThenElse(above((1u << kMantissa) - 1), hn::BitCast(d, bits), small);
  const Codes special = hn::Or(hn::ShiftRight<1 + kMantissa>(magnitude), hn::Set(du, kInfinityBits));
  x = hn::IfThenElse(above(kLargest), hn::BitCast(d, special), x);
  return hn::BitCast(d, hn::Or(hn::BitCast(du, x), sign));
}
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
/// Each number without its sign is a bf16: 128 of them are in four registers, and one instruction takes 32 from two of these.
template <class Code>
struct Fp8Table {
  static constexpr size_t kSize = 128;
  struct Bits {
    uint16_t of[kSize];
  };
  static constexpr Bits make() {
    Bits b = {};
    for (uint32_t c = 0; c < kSize; ++c)
      b.of[c] = static_cast<uint16_t>(std::bit_cast<uint32_t>(plain_number(c)) >> 16);
    return b;
  }
  static constexpr float plain_number(uint32_t magnitude) {
    constexpr uint32_t kOne = 1u << (23 - Code::kShift);
    if (magnitude > Code::kTop) return std::bit_cast<float>(magnitude << Code::kShift | kInfinityBits);
    if (magnitude < kOne) return static_cast<float>(magnitude) * Code::kUnit;
    return std::bit_cast<float>((magnitude << Code::kShift) + Code::kExponent);
  }
  alignas(64) static constexpr Bits kBits = make();

  __m512i t0, t1, t2, t3;
  HWY_INLINE Fp8Table()
      : t0(_mm512_load_si512(kBits.of)),
        t1(_mm512_load_si512(kBits.of + 32)),
        t2(_mm512_load_si512(kBits.of + 64)),
        t3(_mm512_load_si512(kBits.of + 96)) {}
  /// bf16 numbers of 32 codes, in the lower half of 16 bits each; `upper`: the same codes in the upper half.
  HWY_INLINE __m512i operator()(__m512i code, __m512i upper) const {
    const __m512i low = _mm512_permutex2var_epi16(t0, code, t1);
    const __m512i high = _mm512_permutex2var_epi16(t2, code, t3);
    const __m512i magnitude = _mm512_mask_blend_epi16(_mm512_test_epi16_mask(code, _mm512_set1_epi16(0x40)), low, high);
    // magnitude | upper & 0x8000
    return _mm512_ternarylogic_epi32(magnitude, upper, _mm512_set1_epi16(static_cast<int16_t>(0x8000)), 0xF8);
  }
  /// Lanes of 32 bits: the lower bf16 as f32, and the upper one.
  static HWY_INLINE Numbers Lower(__m512i pairs) { return Numbers{_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))}; }
  static HWY_INLINE Numbers Upper(__m512i pairs) {
    return Numbers{_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))))};
  }
};
#endif

template <int kBit>
HWY_INLINE Numbers NumberOf(Codes w, Q8Code /*code*/) {
  return NumberOf<kBit>(w, Int8Code());
}
template <int kBit>
HWY_INLINE Numbers NumberOf(Codes w, Q4Code /*code*/) {
  const D d;
  const DU du;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  // The lower four bits of a lane choose.
  const __m512 numbers = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  return Numbers{_mm512_permutexvar_ps(Right<kBit>(w).raw, numbers)};
#else
  const Codes nibble = hn::And(Right<kBit>(w), hn::Set(du, 15u));
  return hn::Sub(hn::ConvertTo(d, hn::BitCast(DI(), nibble)), hn::Set(d, 8.0f));
#endif
}

/// Eight bits each, as many as there are lanes.
HWY_INLINE Codes LoadCodes(const uint8_t* p) { return hn::PromoteTo(DU(), hn::LoadU(hn::Rebind<uint8_t, DU>(), p)); }
HWY_INLINE Codes LoadCodesN(const uint8_t* p, size_t n) {
  return hn::PromoteTo(DU(), hn::LoadN(hn::Rebind<uint8_t, DU>(), p, n));
}
/// As numbers: what a row has side by side.
template <class Code>
HWY_INLINE Numbers LoadNumbers(const uint8_t* p, Code code) {
  return NumberOf<0>(LoadCodes(p), code);
}
HWY_INLINE Numbers LoadNumbers(const uint8_t* p, Int8Code /*code*/) {
  return hn::ConvertTo(D(),
                       hn::PromoteTo(DI(), hn::LoadU(hn::Rebind<int8_t, DI>(), reinterpret_cast<const int8_t*>(p))));
}
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
HWY_INLINE Numbers BlockScale(const uint8_t* p) {
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return hn::Set(D(), _cvtsh_ss(bits));
#else
  return hn::Set(D(), f16_at(p));
#endif
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

/// How far ahead codes are fetched. The hardware's streams run that far too late.
constexpr uintptr_t kAhead = 4096;
HWY_INLINE void Fetch(const uint8_t* p) {
  __builtin_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(p) + kAhead));
}
HWY_INLINE Codes LoadUnits(const uint8_t* p) { return hn::LoadU(DU(), reinterpret_cast<const uint32_t*>(p)); }
constexpr int64_t kPitch = kUnitBytes * kPanelWidth;

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
      const uint8_t* const unit = panel + i / 4 * kPitch + kUnitBytes * j;
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
  for (int64_t i = 0; i < dim; i += 4, panel += kPitch) {
    Fetch(panel);
    Fetch(panel + kPitch / 2);
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
        Fetch(panel + (b * Format::kUnits + u) * kPitch + kUnitBytes * j);
        const Codes w = LoadUnits(panel + (b * Format::kUnits + u) * kPitch + kUnitBytes * j);
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

template <KvType kType>
struct Widening {
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
};

template <KvType kType>
using Slots = NarrowSlots<kType, Widening<kType>>;

}  // namespace

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
  Widening<kType>::panel(panel, a.scales, a.dim, static_cast<float*>(a.panel));
}
/// Rows become a panel of their type first: units of four bytes are transposed, a quarter of what their numbers are or less.
template <KvType kType>
HWY_NOINLINE void PackKeysNarrow(const PackKeys& a) {
  using Format = FormatOf<kType>;
  constexpr int64_t kChunk = 128;  // dimensions at a time
  HWY_ALIGN uint8_t panel[panel_bytes(kType, kChunk)];
  HWY_ALIGN float scales[kPanelWidth] = {};
  if (has_scales(kType)) std::memcpy(scales, a.scales, static_cast<size_t>(a.keys) * sizeof(float));
  const uint8_t* const rows = static_cast<const uint8_t*>(a.from);
  for (int64_t d = 0; d < a.dim; d += kChunk) {
    const int64_t n = HWY_MIN(kChunk, a.dim - d);
    const uint8_t* const part = rows + row_bytes(kType, d);
    if (a.keys < kPanelWidth) std::memset(panel, 0, sizeof panel);
    for (int64_t j = 0; a.stream && j < a.keys; ++j) {
      const uintptr_t next = address_at(part, (j + kPanelWidth) * a.token_stride);
      for (uintptr_t i = 0; i < static_cast<uintptr_t>(row_bytes(kType, n)); i += 64) {
        __builtin_prefetch(reinterpret_cast<const char*>(next + i));
      }
    }
    // Units that are side by side in a row, and what is left of a last one.
    const int64_t whole = has_scales(kType) ? n / 4 : Format::units(n);
    const int64_t together = has_scales(kType) ? whole : Format::units(block_of(kType));
    for (int64_t u = 0; u < whole; u += together) {
      transpose_units<uint32_t>(reinterpret_cast<const char*>(part + Format::unit_at(u)), a.token_stride, a.keys,
                                together, reinterpret_cast<char*>(panel + u * kPitch), kPitch);
    }
    for (int64_t j = 0; j < a.keys; ++j) {
      const uint8_t* const row = part + j * a.token_stride;
      Format::put_block_scales(row, n, panel, j);
      if (has_scales(kType) && n % 4 != 0) {
        std::memcpy(panel + n / 4 * kPitch + kUnitBytes * j, row + n / 4 * 4, static_cast<size_t>(n % 4));
      }
    }
    Widening<kType>::panel(panel, scales, n, static_cast<float*>(a.panel) + d * kPanelWidth);
  }
}
template <KvType kType>
void ValueTileNarrow(const ValueTile& a) {
  Slots<kType>::template value_tile<ValueTileF32>(a);
}

namespace {

/// Queries as pairs of 16 bits: dimensions 0 and 2 of four, and 1 and 3.
struct QueryPairs {
  int32_t even[kMaxNarrowDim / 4];
  int32_t odd[kMaxNarrowDim / 4];
  float scale;
};
constexpr int64_t kIntegerRows = 4;

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
      const auto w = hn::BitCast(dw, LoadUnits(panel + i * kPitch));
      const auto even = hn::ShiftRight<8>(hn::ShiftLeft<8>(w));
      const auto odd = hn::ShiftRight<8>(w);
      const auto add = [&](int64_t r, auto& sum) HWY_ATTR {
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

}  // namespace

/// BlockIntegers::score(), of packed panels, which are alike for all types with blocks.
void ScoreBlockIntegers(const ScoreTile& a) {
  using Blocks = BlockIntegers<KvType::kQ8_0>;
  QueryPairs q[kIntegerRows];
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  for (int64_t r = 0; r < a.rows;) {
    const int64_t rows = a.rows - r < kIntegerRows ? 1 : kIntegerRows;
    for (int64_t i = 0; i < rows; ++i) {
      int8_t x[kMaxNarrowDim];
      const char* const query = static_cast<const char*>(a.q) + (r + i) * a.q_stride;
      q[i].scale = Blocks::query_integers(query, a.q_stride, a.dim, x).scale * a.scale;
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

#undef SIMDATTN_READ
#define SIMDATTN_READ(type)                                 \
  template bool AllFiniteNarrow<type>(const FiniteRows& a); \
  template void LoadRowsNarrow<type>(const LoadRows& a);    \
  template void ValueTileNarrow<type>(const ValueTile& a)
#undef SIMDATTN_NARROW
#define SIMDATTN_NARROW(type)                                \
  SIMDATTN_READ(type);                                       \
  template void StoreRowsNarrow<type>(const StoreRows& a);   \
  template void StorePanelsNarrow<type>(const StoreRows& a); \
  template void LoadPanelsNarrow<type>(const LoadRows& a);   \
  template void PackKeysNarrow<type>(const PackKeys& a);     \
  template void WidenPanelNarrow<type>(const PackKeys& a)
SIMDATTN_NARROW(KvType::kInt8);
SIMDATTN_NARROW(KvType::kFp8E4M3);
SIMDATTN_NARROW(KvType::kFp8E5M2);
SIMDATTN_NARROW(KvType::kQ8_0);
SIMDATTN_NARROW(KvType::kQ4_0);
SIMDATTN_READ(KvType::kQ4_1);
SIMDATTN_READ(KvType::kQ5_0);
SIMDATTN_READ(KvType::kQ5_1);
SIMDATTN_READ(KvType::kIq4Nl);

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();
