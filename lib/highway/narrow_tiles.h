// Scores and weighted values of few query rows straight from the codes of the narrow storage types: each number is made in a
// register, times its scale, and multiplied there. The sums are those of score_tile.h and value_tile.h over the same numbers
// in f32, in the same order, so the bits are too. Also compiled for AVX3_DL, for e4m3 alone: VPERMI2B of its VBMI takes 64 bytes from a
// table of 128.
#ifndef SIMDATTN_LIB_HIGHWAY_NARROW_TILES_H_
#define SIMDATTN_LIB_HIGHWAY_NARROW_TILES_H_

#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "lib/fma.h"
#include "lib/highway/narrow_codes.h"
#include "lib/highway/register_tile.h"

#if SIMDATTN_FUSES_NARROW
namespace simdattn {
namespace {
namespace highway {

static_assert(std::is_same_v<TileVec, Numbers>);

// Prefetches are in several streams at once, each in a page of its own. A core waits for few lines of L1 at a time (16 are common); the
// hardware's streams, which run ahead within a page, bring the others to L2.
/// How far ahead panels are prefetched, and how many bytes of rows are read at most, all columns of them, before the next ones.
constexpr int64_t kNarrowPrefetchBytes = 16384;
constexpr int64_t kBlockBytes = 20480;

#if HWY_TARGET == HWY_AVX2
/// AddThree() of two vectors.
HWY_INLINE void AddTwo(const float* x, TileVec c0, TileVec c1, TileVec& a0, TileVec& a1) {
  __m256 factor, s0 = a0.raw, s1 = a1.raw;
  __asm__(
      "vbroadcastss %3, %2\n\t"
      "vfmadd231ps %4, %2, %0\n\t"
      "vfmadd231ps %5, %2, %1"
      : "+x"(s0), "+x"(s1), "=&x"(factor)
      : "m"(*x), "x"(c0.raw), "x"(c1.raw));
  a0 = TileVec{s0};
  a1 = TileVec{s1};
}
#endif

/// Units of rows that are transposed at a time.
constexpr int64_t kRowUnits = 4;

/// Rows of the largest tile of kVecs vectors of columns of values.
template <size_t kVecs>
constexpr int64_t kValueRows = kVecs == 4 && HWY_TARGET == HWY_AVX2 ? 2 : kFusedRows;

/// fp8 as f16 numbers that an instruction converts; with VBMI they come from tables of bytes.
#define SIMDATTN_FP8_IN_HALVES (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && HWY_TARGET > HWY_AVX3_DL)
#if SIMDATTN_FP8_IN_HALVES
using Halves = decltype(Codes::raw);
using HalfTag = hn::Repartition<int16_t, DU>;
using HalfVec = hn::Vec<HalfTag>;
HWY_INLINE Halves LoadHalves(const uint8_t* p) { return hn::LoadU(hn::Repartition<uint8_t, DU>(), p).raw; }
HWY_INLINE Halves Masked(Halves v, uint16_t mask) {
  return hn::And(HalfVec{v}, hn::Set(HalfTag(), static_cast<int16_t>(mask))).raw;
}
template <int kBits>
HWY_INLINE Halves ShiftedLeft(Halves v) {
  return hn::ShiftLeft<kBits>(HalfVec{v}).raw;
}
template <int kBits>
HWY_INLINE Halves ShiftedRight(Halves v) {
  return hn::ShiftRight<kBits>(HalfVec{v}).raw;
}
#if HWY_TARGET <= HWY_AVX3
/// Bit 7 of a byte: one of the codes was NaN.
HWY_INLINE void NoteNan(Halves codes, Numbers& nan, E4M3Code /*code*/) {
  const __m512i next = _mm512_add_epi8(codes, _mm512_set1_epi8(1));
  nan.raw = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_castps_si512(nan.raw), next, codes, 0xF6));
}
HWY_INLINE bool SawNan(Numbers nan) { return _mm512_movepi8_mask(_mm512_castps_si512(nan.raw)) != 0; }
HWY_INLINE Numbers NumbersAt(const uint8_t* halves) {
  return Numbers{_mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(halves)))};
}
#else
/// `nan`: the most of the codes without their signs, a byte all ones if one was NaN.
HWY_INLINE void NoteNan(Halves codes, Numbers& nan, E4M3Code /*code*/) {
  const __m256i signs = _mm256_set1_epi8(static_cast<int8_t>(0x80));
  nan.raw = _mm256_castsi256_ps(_mm256_max_epu8(_mm256_castps_si256(nan.raw), _mm256_or_si256(codes, signs)));
}
HWY_INLINE bool SawNan(Numbers nan) {
  return _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_castps_si256(nan.raw), _mm256_set1_epi8(-1))) != 0;
}
HWY_INLINE Numbers NumbersAt(const uint8_t* halves) {
  return Numbers{_mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(halves)))};
}
#endif
HWY_INLINE void NoteNan(Halves /*codes*/, Numbers& /*nan*/, E5M2Code /*code*/) {}
/// Codes as f16 numbers; those of e4m3 as 2^-8 of them, which keeps subnormal ones exact, and with a number for NaN. From the
/// upper halves of 16 bits with zeros below, and from upper halves with anything below.
HWY_INLINE Halves HalvesOf(Halves upper, E5M2Code /*code*/) { return upper; }
HWY_INLINE Halves HalvesOf(Halves upper, E4M3Code /*code*/) { return Masked(ShiftedRight<1>(upper), 0xBF80); }
[[maybe_unused]] HWY_INLINE Halves HalvesOfOdd(Halves bytes, E5M2Code /*code*/) { return Masked(bytes, 0xFF00); }
[[maybe_unused]] HWY_INLINE Halves HalvesOfOdd(Halves bytes, E4M3Code code) { return HalvesOf(bytes, code); }

/// f16 numbers of a vector of codes on their way through L1. A conversion of 256 bits from memory
/// saves the shuffle that it takes from a register; one of 512 bits saves one of two.
struct alignas(sizeof(Halves)) HalvesInMemory {
  uint8_t of[sizeof(Halves)];
  HWY_INLINE void operator=(Halves v) {
    std::memcpy(of, &v, sizeof v);
    __asm__("" : "+m"(of));
  }
  HWY_INLINE Numbers lower() const { return NumbersAt(of); }
  HWY_INLINE Numbers upper() const { return NumbersAt(of + sizeof(Halves) / 2); }
};
#endif

#if HWY_TARGET == HWY_AVX2
struct Lanes8 {
  constexpr explicit Lanes8(uint32_t x) : v{x, x, x, x, x, x, x, x} {}
  uint32_t v[8];
};
#endif
#if HWY_TARGET == HWY_AVX2
/// Byte `from` of each lane as its upper one, 0 below.
struct ByteOrder {
  constexpr explicit ByteOrder(int from) {
    for (int i = 0; i < 32; ++i) v[i] = static_cast<int8_t>(i % 4 == 3 ? i % 16 / 4 * 4 + from : -1);
  }
  int8_t v[32] = {};
};
#endif
/// kBits bits of each lane, a signed integer below kShift others, times 2^(32 - kBits).
template <int kBits, int kShift>
HWY_INLINE Numbers UpperInteger(Codes w) {
#if HWY_TARGET == HWY_AVX2
  if constexpr (kBits == 8 && kShift != 0 && kShift % 8 == 0) {
    // Bytes in their place, zeros below: a shift takes a port of the multiply-adds, and leaves bits to be cleared. Reads the order
    // where it lies, as below.
    alignas(32) static constexpr ByteOrder kOrder(3 - kShift / 8);
    Codes upper;
    __asm__("vpshufb %2, %1, %0" : "=x"(upper.raw) : "x"(w.raw), "m"(kOrder));
    return hn::ConvertTo(D(), hn::BitCast(DI(), upper));
  }
#endif
  w = Left<kShift>(w);
  if constexpr (kShift != 32 - kBits) {
#if HWY_TARGET == HWY_AVX2
    // Reads the mask where it lies: with four rows there is no register for it.
    alignas(32) static constexpr Lanes8 kMask(~0u << (32 - kBits));
    __asm__("vpand %1, %0, %0" : "+x"(w.raw) : "m"(kMask));
#else
    w = hn::And(w, hn::Set(DU(), ~0u << (32 - kBits)));
#endif
  }
  return hn::ConvertTo(D(), hn::BitCast(DI(), w));
}

// ---- One way to read per kind of code ----------------------------------------------------------------------------------

/// What a loop reads of a type. unit<kBit, kVector>(): the number at bit kBit of each unit of a panel, bits ascending from 0 or from 4;
/// row<kVector>(): vector kVector of a tile's columns of a row, times `factor`. a and b keep what the next ones are made of.
/// Numbers of units are 1 / kPower of what they should be, those of rows 1 / kRowPower, and factors as many times.
/// kNotesNan: for NaN there is a number, and b, which is the same for all, tells whether that was.
/// kMakesAhead: unit() and row() read at p what prepare() and prepare_row() have put there while the unit or row before was multiplied. No other way from a
/// code to its number is as long, and multiply-adds that wait for each other fill the scheduler, so that it would begin late.
template <class Code>
struct Reader;
template <>
struct Reader<Int8Code> {
  /// Vectors of a tile's columns: as many have theirs in turns, and interleaved() reads them, four from 64 bytes.
  static constexpr size_t kInterleaved = 1;
  static constexpr bool kNotesNan = false;
  static constexpr bool kMakesAhead = false;
  /// Integers of panels stay in the upper bits, without those below: a shift to the right would take a port of the conversion.
  static constexpr float kPower = 0x1p-24f;
  static constexpr float kRowPower = 1.0f;
  template <int kBit, size_t kVector>
  HWY_INLINE void unit(const uint8_t* p, TileVec& a, TileVec& /*b*/, TileVec& x) const {
    if constexpr (kBit < 8) a = hn::BitCast(D(), LoadUnits(p));
    x = UpperInteger<8, 24 - kBit>(hn::BitCast(DU(), a));
  }
  template <size_t kVector>
  HWY_INLINE void row(const uint8_t* p, TileVec factor, TileVec& /*a*/, TileVec& /*b*/, TileVec& x) const {
    x = hn::Mul(LoadNumbers(p, Int8Code()), factor);
  }
#if HWY_TARGET <= HWY_AVX3
  /// Integers of a panel also as 128 more times 2^kBit: a mask leaves them, without any shift. With
  /// the factor times 2^-kBit and 128 factors less one multiply-add makes the product, rounded once as it must be. It takes 20
  /// registers. kOffsetRows: up to so many rows are multiplied that way.
  static constexpr size_t kOffsetRows = 4;
  template <int kBit>
  HWY_INLINE void offset_unit(const uint8_t* p, TileVec& a, TileVec& x) const {
    if constexpr (kBit < 8) a = hn::BitCast(D(), hn::Xor(LoadUnits(p), hn::Set(DU(), 0x00808080u)));
    x = hn::ConvertTo(D(), hn::BitCast(DI(), hn::And(hn::BitCast(DU(), a), hn::Set(DU(), 0xFFu << kBit))));
  }
#else
  static constexpr size_t kOffsetRows = 0;
#endif
};
template <>
struct Reader<Q8Code> : Reader<Int8Code> {
  static constexpr size_t kOffsetRows =
      HWY_MIN(Reader<Int8Code>::kOffsetRows, size_t{1});  // factors change with each block
};

/// Two vectors of a row are the low and the high nibbles of the same bytes.
template <>
struct Reader<Q4Code> {
  static constexpr size_t kInterleaved = 1;
  static constexpr size_t kOffsetRows = 0;
  static constexpr bool kNotesNan = false;
  static constexpr bool kMakesAhead = false;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  static constexpr float kPower = 1.0f;
  static constexpr float kRowPower = 1.0f;
  template <int kBit, size_t kVector>
  HWY_INLINE void unit(const uint8_t* p, TileVec& a, TileVec& /*b*/, TileVec& x) const {
    if constexpr (kBit < 8) a = hn::BitCast(D(), LoadUnits(p));
    x = NumberOf<kBit>(hn::BitCast(DU(), a), Q4Code());
  }
  /// Instead of numbers the table that they come from is multiplied.
  template <size_t kVector>
  HWY_INLINE void row(const uint8_t* p, TileVec factor, TileVec& a, TileVec& b, TileVec& x) const {
    if constexpr (kVector % 2 == 0) {
      a = hn::BitCast(D(), LoadCodes(p));
      b = hn::Mul(Numbers{_mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)}, factor);
    }
    x = Numbers{_mm512_permutexvar_ps(Right<kVector % 2 * 4>(hn::BitCast(DU(), a)).raw, b.raw)};
  }
#else
  static constexpr float kPower = 0x1p-28f;
  static constexpr float kRowPower = 0x1p-28f;
  template <int kBit, size_t kVector>
  HWY_INLINE void unit(const uint8_t* p, TileVec& a, TileVec& /*b*/, TileVec& x) const {
    if constexpr (kBit < 8) a = hn::BitCast(D(), Signed(LoadUnits(p)));
    x = UpperInteger<4, 28 - kBit>(hn::BitCast(DU(), a));
  }
  template <size_t kVector>
  HWY_INLINE void row(const uint8_t* p, TileVec factor, TileVec& a, TileVec& /*b*/, TileVec& x) const {
    if constexpr (kVector % 2 == 0) a = hn::BitCast(D(), Signed(LoadCodes(p)));
    x = hn::Mul(UpperInteger<4, 28 - kVector % 2 * 4>(hn::BitCast(DU(), a)), factor);
  }

 private:
  /// Nibbles as signed integers: 8 less.
  static HWY_INLINE Codes Signed(Codes w) { return hn::Xor(w, hn::Set(DU(), 0x88888888u)); }
#endif
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL
/// The bf16 numbers of Fp8Table in two tables of bytes.
template <class Code>
class Fp8Bytes {
 public:
  HWY_INLINE Fp8Bytes()
      : low0_(_mm512_load_si512(kBytes.low)),
        low1_(_mm512_load_si512(kBytes.low + 64)),
        high0_(_mm512_load_si512(kBytes.high)),
        high1_(_mm512_load_si512(kBytes.high + 64)) {}
  /// bf16 numbers of the first eight bytes of each 16, and of the others.
  HWY_INLINE void operator()(__m512i codes, __m512i& first, __m512i& second) const {
    const __m512i low = _mm512_permutex2var_epi8(low0_, codes, low1_);
    // high | codes & 0x80
    const __m512i high = _mm512_ternarylogic_epi32(_mm512_permutex2var_epi8(high0_, codes, high1_), codes,
                                                   _mm512_set1_epi8(static_cast<int8_t>(0x80)), 0xF8);
    first = _mm512_unpacklo_epi8(low, high);
    second = _mm512_unpackhi_epi8(low, high);
  }

 private:
  static constexpr size_t kSize = Fp8Table<Code>::kSize;
  struct Bytes {
    uint8_t low[kSize], high[kSize];
  };
  static constexpr Bytes make() {
    Bytes b = {};
    for (size_t c = 0; c < kSize; ++c) {
      const uint16_t number = Fp8Table<Code>::kBits.of[c];
      b.low[c] = static_cast<uint8_t>(number);
      b.high[c] = static_cast<uint8_t>(number >> 8);
    }
    return b;
  }
  alignas(64) static constexpr Bytes kBytes = make();

  __m512i low0_, low1_, high0_, high1_;
};
#endif

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
template <int kMantissa, int kBias, uint32_t kLargest, uint32_t kNan, uint32_t kOver>
struct Reader<Fp8Code<kMantissa, kBias, kLargest, kNan, kOver>> {
  using Code = Fp8Code<kMantissa, kBias, kLargest, kNan, kOver>;
  static constexpr size_t kOffsetRows = 0;
  HWY_INLINE Reader() {}  // NOLINT(modernize-use-equals-default): of this instruction set
#if !SIMDATTN_FP8_IN_HALVES
  static constexpr size_t kInterleaved = 4;
  static constexpr bool kNotesNan = false;
  static constexpr bool kMakesAhead = false;
  static constexpr float kPower = 1.0f;
  static constexpr float kRowPower = 1.0f;
  using Table = Fp8Table<Code>;
  Fp8Bytes<Code> table;
  template <int kBit, size_t kVector>
  HWY_INLINE void unit(const uint8_t* p, TileVec& a, TileVec& b, TileVec& x) const {
    if constexpr (kBit == 0) {
      // Bytes 0 and 1 of four units, then bytes 2 and 3.
      const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
      __m512i first, second;
      table(_mm512_shuffle_epi8(LoadUnits(p).raw, order), first, second);
      a = TileVec{_mm512_castsi512_ps(first)};
      b = TileVec{_mm512_castsi512_ps(second)};
    }
    const __m512i pairs = _mm512_castps_si512((kBit < 16 ? a : b).raw);
    x = kBit % 16 == 0 ? Table::Lower(pairs) : Table::Upper(pairs);
  }
  template <size_t kVector>
  HWY_INLINE void interleaved(const uint8_t* p, TileVec& a, TileVec& b, TileVec& x) const {
    unit<kVector % 4 * 8, kVector>(p, a, b, x);
  }
  template <size_t kVector>
  HWY_INLINE void row(const uint8_t* p, TileVec factor, TileVec& a, TileVec& /*b*/, TileVec& x) const {
    if constexpr (kVector % 2 == 0) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      __m512i numbers, other;
      table(_mm512_permutexvar_epi64(_mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3), _mm512_castsi256_si512(bytes)), numbers,
            other);
      a = TileVec{_mm512_castsi512_ps(numbers)};
    }
    const __m512i halves = _mm512_castps_si512(a.raw);
    const auto half = VU16<D>{kVector % 2 == 0 ? _mm512_castsi512_si256(halves) : _mm512_extracti64x4_epi64(halves, 1)};
    x = hn::Mul(F32FromBF16(D(), half), factor);
  }
#else
  static constexpr size_t kInterleaved = HWY_TARGET <= HWY_AVX3 ? 2 : 1;
  static constexpr bool kNotesNan = std::is_same_v<Code, E4M3Code>;
  static constexpr bool kMakesAhead = HWY_TARGET == HWY_AVX2;
  static constexpr float kPower = kNotesNan ? 256.0f : 1.0f;
  static constexpr float kRowPower = kPower;
  /// kMakesAhead: twice what a tile reads at a time.
  mutable HalvesInMemory halves[kMakesAhead ? 8 : 4][2];
  /// Of kBytes codes of a row.
  template <size_t kBytes>
  HWY_INLINE void note_row(const uint8_t* p, TileVec& b) const {
    if constexpr (kBytes < sizeof(Halves)) {
      NoteNan(Halves(hn::ZeroExtendVector(DU(), hn::LoadU(hn::Half<DU>(), reinterpret_cast<const uint32_t*>(p))).raw),
              b, Code());
    } else {
      ForEach<kBytes / sizeof(Halves)>([&](auto i)
                                           SIMDATTN_LAMBDA { NoteNan(LoadHalves(p + i * sizeof(Halves)), b, Code()); });
    }
  }
#if HWY_TARGET <= HWY_AVX3
  /// The even bytes of 16 bits to one place, the odd ones to the other.
  HWY_INLINE void put(Halves bytes, HalvesInMemory* to) const {
    to[0] = HalvesOf(ShiftedLeft<8>(bytes), Code());
    to[1] = HalvesOfOdd(bytes, Code());
  }
  template <int kBit, size_t kVector>
  HWY_INLINE void unit(const uint8_t* p, TileVec& /*a*/, TileVec& b, TileVec& x) const {
    if constexpr (kBit == 0) {
      // Bytes 0 and 1 of all units, then bytes 2 and 3.
      alignas(64) static constexpr WordOrder kOrder;
      const __m512i units = LoadUnits(p).raw;
      NoteNan(units, b, Code());
      put(_mm512_permutexvar_epi16(_mm512_load_si512(kOrder.v), units), halves[kVector]);
    }
    const HalvesInMemory& from = halves[kVector][kBit / 8 % 2];
    x = kBit < 16 ? from.lower() : from.upper();
  }
  /// Vectors 0 and 1 of four are the even and the odd of 32 columns.
  template <size_t kVector>
  HWY_INLINE void interleaved(const uint8_t* p, TileVec& /*a*/, TileVec& /*b*/, TileVec& x) const {
    HalvesInMemory* const group = halves[kVector / 4];
    if constexpr (kVector % 4 == 0) {
      put(LoadHalves(p), group);
    }
    x = kVector % 4 < 2 ? group[kVector % 2].lower() : group[kVector % 2].upper();
  }
  template <size_t kVector>
  HWY_INLINE void row(const uint8_t* p, TileVec factor, TileVec& /*a*/, TileVec& /*b*/, TileVec& x) const {
    HalvesInMemory& group = halves[kVector / 2][0];
    if constexpr (kVector % 2 == 0) {
      const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
      group = HalvesOf(ShiftedLeft<8>(_mm512_cvtepu8_epi16(bytes)), Code());
    }
    x = hn::Mul(kVector % 2 == 0 ? group.lower() : group.upper(), factor);
  }

 private:
  struct WordOrder {
    constexpr WordOrder() {
      for (int i = 0; i < 32; ++i) v[i] = static_cast<int16_t>(i % 16 * 2 + i / 16);
    }
    int16_t v[32] = {};
  };
#else
  template <size_t kVector>
  HWY_INLINE void prepare(const uint8_t* p, TileVec& b, HalvesInMemory* to) const {
    const __m256i units = LoadUnits(p).raw;
    NoteNan(units, b, Code());
    ForEach<2>([&](auto pair) SIMDATTN_LAMBDA {
      // Bytes 0 and 1, or 2 and 3, of eight units: eight of one kind after the other, in the upper halves of 16 bits.
      constexpr int8_t k = 2 * pair;
      const __m256i order =
          _mm256_setr_epi8(-1, k, -1, k + 4, -1, k + 8, -1, k + 12, -1, k + 1, -1, k + 5, -1, k + 9, -1, k + 13, -1, k,
                           -1, k + 4, -1, k + 8, -1, k + 12, -1, k + 1, -1, k + 5, -1, k + 9, -1, k + 13);
      to[2 * kVector + pair] = HalvesOf(_mm256_permute4x64_epi64(_mm256_shuffle_epi8(units, order), 0xD8), Code());
    });
  }
  template <int kBit, size_t kVector>
  HWY_INLINE void unit(const uint8_t* p, TileVec& /*a*/, TileVec& /*b*/, TileVec& x) const {
    x = NumbersAt(p + 64 * kVector + 2 * kBit);
  }
  template <size_t kVecs>
  HWY_INLINE void prepare_row(const uint8_t* p, TileVec& b, HalvesInMemory* to) const {
    if constexpr (kNotesNan) note_row<kVecs * 8>(p, b);
    ForEach<kVecs / 2>([&](auto pair) SIMDATTN_LAMBDA {
      const __m256i order = _mm256_setr_epi8(-1, 0, -1, 1, -1, 2, -1, 3, -1, 4, -1, 5, -1, 6, -1, 7,  //
                                             -1, 8, -1, 9, -1, 10, -1, 11, -1, 12, -1, 13, -1, 14, -1, 15);
      const __m256i bytes =
          _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * pair)));
      to[pair] = HalvesOf(_mm256_shuffle_epi8(bytes, order), Code());
    });
  }
  template <size_t kVector>
  HWY_INLINE void row(const uint8_t* p, TileVec factor, TileVec& /*a*/, TileVec& /*b*/, TileVec& x) const {
    x = hn::Mul(NumbersAt(p + 16 * kVector), factor);
  }
#endif
#endif
};
#endif

/// Where numbers are made ahead, and which are read: pointers, as compilers keep what a reader holds in memory.
template <class Code>
struct HalvesInTurns {
  HWY_INLINE explicit HalvesInTurns(const Reader<Code>& /*reader*/) {}
  HWY_INLINE const uint8_t* now() const { return nullptr; }
  HWY_INLINE void turn() {}
};
#if SIMDATTN_FP8_IN_HALVES
template <class Code>
  requires Reader<Code>::kMakesAhead
struct HalvesInTurns<Code> {
  HalvesInMemory *last, *next;
  HWY_INLINE explicit HalvesInTurns(const Reader<Code>& reader) : last(reader.halves[4]), next(reader.halves[0]) {}
  HWY_INLINE const uint8_t* now() const { return last->of; }
  HWY_INLINE void turn() {
    HalvesInMemory* const made = next;
    next = last, last = made;
  }
};
#endif

template <class Format>
struct CodeOf;
template <class C>
struct CodeOf<ByteFormat<C>> {
  using Code = C;
};
template <class C>
CodeOf<ByteFormat<C>> CodeIn(ByteFormat<C>);
template <class C>
struct CodeOf<BlockFormat<C>> {
  using Code = C;
};
template <class C>
CodeOf<BlockFormat<C>> CodeIn(BlockFormat<C>);
template <KvType kType>
using CodeOfType = typename decltype(CodeIn(FormatOf<kType>()))::Code;
template <KvType kType>
constexpr bool kNibbles = std::is_same_v<CodeOfType<kType>, Q4Code>;

// ---- Scores ------------------------------------------------------------------------------------------------------------

/// Keys in rows that become panels while the tile before them is multiplied.
struct RowsToTranspose {
  const uint8_t* rows;
  int64_t stride;
  int64_t columns;  // 0: none
  uint8_t* panels;
  int64_t ahead;  // 0; or bytes from a row to the one that is fetched for it
};

/// What a tile of scores fetches for later ones: in each of the first `units` units kUnitLines lines, in each block kScaleLines.
struct PanelsToFetch {
  uintptr_t first = 0;   // of the lines of the first unit; may lie outside of every object
  uintptr_t scales = 0;  // of the lines of the first block; those of the next one are next to them
  uintptr_t apart = 0;   // bytes between the lines of a unit or block
  int64_t units = 0;
};

struct ScoreArguments {
  const float* q;
  int64_t ldq;
  const uint8_t* low;   // the first half of the tile's columns
  const uint8_t* high;  // the second: of the same panel or of the next
  int64_t high_column;  // of the tile's columns; 0 where there is one panel only: then both halves are the same
  const float* scales;  // of the tile's columns, where they stand apart
  int64_t low_scales;   // from low to the scales of the first block, where they do not
  int64_t high_scales;
  int64_t dim;
  float scale;
  float* s;
  int64_t lds;
  PanelsToFetch fetch;
  RowsToTranspose next;
};

/// Lines of the cache that a unit of all columns has, and a block's scales of all columns.
template <size_t kVecs>
constexpr uintptr_t kUnitLines = kVecs * hn::MaxLanes(TileTag()) * kUnitBytes / 64;
template <KvType kType, size_t kVecs>
constexpr uintptr_t kScaleLines = has_scales(kType) ? 0 : (kVecs * hn::MaxLanes(TileTag()) * 2 + 63) / 64;

template <class Code>
HWY_INLINE float NumberAt(const uint8_t* p, Code /*code*/) {
  using Number = std::conditional_t<std::is_same_v<Code, Q8Code>, Int8Code, Code>;
  return Number::template number<0>(*p);
}

/// Scores one by one, for codes and scales with which a tile's arithmetic would not do.
template <KvType kType>
HWY_NOINLINE void ScoreAgain(const ScoreArguments& a, int64_t rows, int64_t half) {
  const float* q = a.q;
  float* s = a.s;
  for (int64_t r = 0; r < rows; ++r, q += a.ldq, s += a.lds) {
    for (int64_t j = 0; j < half + a.high_column; ++j) {
      const bool high = j >= half;
      const uint8_t* const panel = (high ? a.high : a.low) + (high ? j - half : j) * kUnitBytes;
      float sum = 0.0f;
      for (int64_t i = 0; i < a.dim; ++i) {
        const int64_t block = i / block_of(kType);
        float factor;
        if constexpr (has_scales(kType)) {
          factor = a.scales[high ? a.high_column + j - half : j];
        } else {
          factor = f16_at((high ? a.high + a.high_scales + (j - half) * 2 : a.low + a.low_scales + j * 2) +
                          block * kPanelWidth * 2);
        }
        sum = simdattn::fma(q[i], NumberAt(panel + i / 4 * kUnitPitch + i % 4, CodeOfType<kType>()) * factor, sum);
      }
      s[high ? a.high_column + j - half : j] = sum * a.scale;
    }
  }
}

/// Rows on their way into panels, kRowUnits units of a vector of columns at a time.
template <KvType kType>
class RowPieces {
  using Format = FormatOf<kType>;

 public:
  HWY_INLINE RowPieces(const RowsToTranspose& a, int64_t dim)
      : a_(a), units_(Format::units(dim)), panel_bytes_(panel_bytes(kType, dim)) {
    if (any()) start();
  }
  HWY_INLINE bool any() const { return column_ < a_.columns; }
  HWY_INLINE void transpose() {
    if constexpr (!has_scales(kType)) {
      if (unit_ % Format::kUnits == 0) {
        // One by one: that takes no port of the arithmetic.
        ForEach<hn::MaxLanes(D())>([&](auto i) SIMDATTN_LAMBDA {
          constexpr int64_t kRow = i;
          std::memcpy(scales_ + kRow * Format::kScaleBytes, from_ + kRow * a_.stride, Format::kScaleBytes);
        });
        scales_ += kPanelWidth * Format::kScaleBytes;
        from_ += Format::kScaleBytes;
      }
    }
    TransposeUnits4(from_, a_.stride, to_);
    if (a_.ahead != 0) {
      uintptr_t below = address_at(from_, a_.ahead + unit_ / kRowUnits % 4 * (a_.stride - kRowUnits * kUnitBytes));
      for (size_t i = 0; i < hn::MaxLanes(D()) / 4; ++i, below += static_cast<uintptr_t>(4 * a_.stride))
        __builtin_prefetch(reinterpret_cast<const char*>(below), 0, 2);
    }
    from_ += kRowUnits * kUnitBytes;
    to_ += kRowUnits * kUnitPitch;
    unit_ += kRowUnits;
    if (unit_ < units_) return;
    unit_ = 0;
    column_ += static_cast<int64_t>(hn::Lanes(D()));
    if (any()) start();
  }

 private:
  HWY_INLINE void start() {
    uint8_t* const panel = a_.panels + column_ / kPanelWidth * panel_bytes_;
    from_ = a_.rows + column_ * a_.stride;
    to_ = panel + column_ % kPanelWidth * kUnitBytes;
    if constexpr (!has_scales(kType))
      scales_ = panel + units_ * kUnitPitch + column_ % kPanelWidth * Format::kScaleBytes;
  }

  const RowsToTranspose a_;
  int64_t units_, panel_bytes_;
  int64_t unit_ = 0, column_ = 0;
  // The next piece, and scales where they are codes' neighbours.
  const uint8_t* from_ = nullptr;
  uint8_t* to_ = nullptr;
  uint8_t* scales_ = nullptr;
};
/// All of them at once: those of the first tile.
template <KvType kType>
HWY_NOINLINE void TransposeRows(const RowsToTranspose& a, int64_t dim) {
  for (RowPieces<kType> rows(a, dim); rows.any();) rows.transpose();
}

template <KvType kType, size_t kRows, size_t kVecs>
HWY_NOINLINE void ScoreNarrow(const ScoreArguments& a) {
  const TileTag d;
  WithRegisters(d, [&](const Accumulators& acc, const Columns& number) SIMDATTN_LAMBDA {
    WithRegisters(d, [&](const Accumulators& factor, const Columns& state) SIMDATTN_LAMBDA {
      constexpr int64_t kHalf = kVecs / 2;
      const int64_t n = static_cast<int64_t>(hn::Lanes(d));
      const Reader<CodeOfType<kType>> reader;
      constexpr bool kOffset = kRows <= Reader<CodeOfType<kType>>::kOffsetRows;
      constexpr bool kNotesNan = Reader<CodeOfType<kType>>::kNotesNan;
      constexpr bool kMakesAhead = Reader<CodeOfType<kType>>::kMakesAhead;
      constexpr bool kMayBeInexact = kOffset || (has_scales(kType) && Reader<CodeOfType<kType>>::kPower != 1.0f);
      const float* q = a.q;
#if HWY_TARGET == HWY_AVX2
      // From the first row of queries to the next and to the fourth: addresses take their multiples.
      int64_t ldq = a.ldq, ldq3 = 3 * a.ldq;
#else
      // From the first row of queries to each. In memory: else gcc keeps them in vector registers, from which a port of the arithmetic brings
      // them back (AVX-512, three and four rows: an eighth of a tile).
      int64_t to_row[kRows];
      ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA { to_row[r] = static_cast<int64_t>(r) * a.ldq; });
#endif
      HalvesInTurns<CodeOfType<kType>> halves(reader);
      const int64_t high_column = a.high_column;
      Cursor<const uint8_t> low(a.low), high(a.high);
      const auto column = [&](auto c) SIMDATTN_LAMBDA {
        constexpr int64_t kVector = c;
        return kVector < kHalf ? kVector * n : high_column + (kVector - kHalf) * n;
      };
      // Places of vector c in the two halves: bytes for a column.
      const auto at = [&](auto c, int64_t bytes) SIMDATTN_LAMBDA {
        constexpr int64_t kVector = c;
        return kVector < kHalf ? low.get() + kVector * n * bytes : high.get() + (kVector - kHalf) * n * bytes;
      };
      // The number at bit kBit of each unit is dimension `dimension` from q on.
      const auto add = [&](auto bit, int64_t dimension) SIMDATTN_LAMBDA {
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
          if constexpr (kOffset) {
            reader.template offset_unit<bit>(at(c, kUnitBytes), Get<c>(state), Get<c>(number));
          } else {
            reader.template unit<bit, c>(kMakesAhead ? halves.now() : at(c, kUnitBytes), Get<c>(state),
                                         Get<4 + (kNotesNan ? 0 : c)>(state), Get<c>(number));
          }
          if constexpr (kOffset && bit < 24) {
            Get<c>(number) = hn::MulAdd(Get<c>(number), Get<bit / 2 + c>(factor), Get<16 + c>(factor));
          } else {
            Get<c>(number) = hn::Mul(Get<c>(number), Get<(kOffset ? 12 : 0) + c>(factor));
          }
        });
#if HWY_TARGET == HWY_AVX2
        if constexpr (kRows > 1) __asm__("" : "+r"(ldq));
        if constexpr (kRows > 3) __asm__("" : "+r"(ldq3));
#else
        if constexpr (kRows > 1) __asm__("" : "+m"(to_row));
#endif
        ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
#if HWY_TARGET == HWY_AVX2
          const float* const from = q + (r == 3 ? ldq3 : static_cast<int64_t>(r) * ldq) + dimension;
          if constexpr (kVecs == 2) {
            AddTwo(from, Get<0>(number), Get<1>(number), Get<2 * r>(acc), Get<2 * r + 1>(acc));
            return;
          }
          const TileVec x = hn::Set(d, *from);
#else
          const TileVec x = hn::Set(d, q[(r == 0 ? 0 : to_row[r]) + dimension]);
#endif
          ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
            TileVec& sum = Get<r * kVecs + c>(acc);
            sum = hn::MulAdd(x, Get<c>(number), sum);
          });
        });
      };
      // Of the unit `bytes` further on.
      const auto prepare = [&]([[maybe_unused]] int64_t bytes) SIMDATTN_LAMBDA {
        if constexpr (kMakesAhead) {
          ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
            reader.template prepare<c>(at(c, kUnitBytes) + bytes, Get<4>(state), halves.next);
          });
        }
      };
      // Factors times a power of two, and what is to be added, are exact if they are 0 or in [2^-98, 2^120); those of e4m3 below
      // 2^120. Scales of blocks are numbers of f16, which are exact if they are finite; negative ones would make zeros of the other sign.
      bool exact = true;
      const auto derive_factors = [&]() SIMDATTN_LAMBDA {
        if constexpr (kNotesNan) {
          ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
            exact = exact && hn::AllTrue(d, hn::Lt(hn::Abs(Get<c>(factor)), hn::Set(d, 0x1p120f)));
          });
        } else if constexpr (kMayBeInexact && has_scales(kType)) {
          const DI di;
          ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
            const auto bits = hn::BitCast(di, Get<c>(factor));
            const auto inside =
                hn::And(hn::Gt(bits, hn::Set(di, (29 << 23) - 1)), hn::Lt(bits, hn::Set(di, 247 << 23)));
            exact = exact && hn::AllTrue(di, hn::Or(inside, hn::Eq(bits, hn::Zero(di))));
          });
        }
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
          if constexpr (kOffset) {
            Get<4 + c>(factor) = hn::Mul(Get<c>(factor), hn::Set(d, 0x1p-8f));
            Get<8 + c>(factor) = hn::Mul(Get<c>(factor), hn::Set(d, 0x1p-16f));
            Get<12 + c>(factor) = hn::Mul(Get<c>(factor), hn::Set(d, 0x1p-24f));
            Get<16 + c>(factor) = hn::Mul(Get<c>(factor), hn::Set(d, -128.0f));
          } else if constexpr (Reader<CodeOfType<kType>>::kPower != 1.0f) {
            Get<c>(factor) = hn::Mul(Get<c>(factor), hn::Set(d, Reader<CodeOfType<kType>>::kPower));
          }
        });
      };
      uintptr_t line = a.fetch.first;
      [[maybe_unused]] uintptr_t scale_line = a.fetch.scales;
      int64_t to_fetch = a.fetch.units;
      const uintptr_t apart = a.fetch.apart;
      // One vector of columns of a piece of rows behind each unit: all of it first, or in a loop of its own, would not overlap, as
      // multiply-adds that wait for each other fill the scheduler.
      RowPieces<kType> rows(a.next, a.dim);
      const auto next = [&](int64_t n_units)
                            SIMDATTN_LAMBDA { low += n_units * kUnitPitch, high += n_units * kUnitPitch; };
      const auto start_unit = [&]() SIMDATTN_LAMBDA {
        if (to_fetch > 0) {
          for (uintptr_t i = 0; i < kUnitLines<kVecs>; ++i)
            __builtin_prefetch(reinterpret_cast<const char*>(line + i * apart), 0, 2);
          line += 64;
          --to_fetch;
        }
        if (rows.any()) rows.transpose();
      };
      if constexpr (has_scales(kType)) {
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA { Get<c>(factor) = hn::LoadU(d, a.scales + column(c)); });
        derive_factors();
        int64_t rest = a.dim;
        if (rest > 0) prepare(0);
        for (; rest >= 4; rest -= 4) {
          start_unit();
          halves.turn();
          if (rest > 4) prepare(kUnitPitch);
          ForEach<4>([&](auto i) SIMDATTN_LAMBDA { add(std::integral_constant<int, 8 * i>(), i); });
          q += 4, next(1);
        }
        halves.turn();
        if (rest > 0) add(std::integral_constant<int, 0>(), 0);
        if (rest > 1) add(std::integral_constant<int, 8>(), 1);
        if (rest > 2) add(std::integral_constant<int, 16>(), 2);
      } else {
        using Format = FormatOf<kType>;
        Cursor<const uint8_t> low_scales(a.low + a.low_scales), high_scales(a.high + a.high_scales);
        const hn::Rebind<uint16_t, D> d16;
        [[maybe_unused]] auto largest = hn::Zero(d16);  // bits of scales: negative ones are larger than infinity
        for (int64_t block = 0; block < a.dim / Format::kBlock; ++block) {
          if (to_fetch > 0) {
            for (uintptr_t i = 0; i < kScaleLines<kType, kVecs>; ++i)
              __builtin_prefetch(reinterpret_cast<const char*>(scale_line + i * apart), 0, 2);
            scale_line += 64;
          }
          ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
            constexpr int64_t kVector = c;
            const uint8_t* const p = kVector < kHalf ? low_scales.get() + kVector * n * Format::kScaleBytes
                                                     : high_scales.get() + (kVector - kHalf) * n * Format::kScaleBytes;
            const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
            if constexpr (kOffset) largest = hn::Max(largest, bits);
            Get<c>(factor) = F32FromF16(d, bits);
          });
          low_scales += Format::kScaleBytes * kPanelWidth, high_scales += Format::kScaleBytes * kPanelWidth;
          derive_factors();
          for (int64_t u = 0; u < Format::kUnits; ++u) {
            start_unit();
            ForEach<4>([&](auto i) SIMDATTN_LAMBDA { add(std::integral_constant<int, 8 * i>(), i); });
            q += 4, next(1);
          }
          if constexpr (kNibbles<kType>) {
            next(-Format::kUnits);
            for (int64_t u = 0; u < Format::kUnits; ++u, q += 4, next(1)) {
              ForEach<4>([&](auto i) SIMDATTN_LAMBDA { add(std::integral_constant<int, 8 * i + 4>(), i); });
            }
          }
        }
        if constexpr (kOffset) exact = hn::AllTrue(d16, hn::Lt(largest, hn::Set(d16, uint16_t{0x7C00})));
      }
      const TileVec scale = hn::Set(d, a.scale);
      ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
        float* s = a.s + static_cast<int64_t>(r) * a.lds;
        ForEach<kVecs>([&](auto c)
                           SIMDATTN_LAMBDA { hn::StoreU(hn::Mul(Get<r * kVecs + c>(acc), scale), d, s + column(c)); });
      });
#if SIMDATTN_FP8_IN_HALVES
      if constexpr (kNotesNan) exact = exact && !SawNan(Get<4>(state));
#endif
      if constexpr (kMayBeInexact) {
        if (!exact) ScoreAgain<kType>(a, kRows, kHalf * n);
      }
    });
  });
}

/// Tiles of 1, 2, ... rows, of kScoreVecs vectors.
struct ScoreFunctions {
  void (*tiles[kFusedRows])(const ScoreArguments&);
  void (*transpose)(const RowsToTranspose&, int64_t dim);
};
constexpr int64_t kScoreVecs[kFusedRows] = {4, 4, 2, 2};
template <KvType kType>
constexpr ScoreFunctions kScoreTiles = {
    {ScoreNarrow<kType, 1, 4>, ScoreNarrow<kType, 2, 4>, ScoreNarrow<kType, 3, 2>, ScoreNarrow<kType, 4, 2>},
    TransposeRows<kLaidOutAs<kType>>};

/// Up to kFusedRows rows against all columns. `in_rows`: keys in rows, a.panel_stride bytes apart.
HWY_NOINLINE void ScoreColumns(const ScoreTile& a, KvType type, const ScoreFunctions& functions, bool in_rows) {
  const int64_t width = kScoreVecs[a.rows - 1] * static_cast<int64_t>(hn::Lanes(TileTag()));
  const int64_t columns = a.n_panels * kPanelWidth;
  const int64_t bytes = panel_bytes(type, a.dim);
  const int64_t row = row_bytes(type, a.dim);
  const int64_t units = (has_scales(type) ? a.dim + 3 : row - a.dim / 32 * 2) / kUnitBytes;
  const uint8_t* const keys = static_cast<const uint8_t*>(a.panels);
  static_assert(2 * 4 * HWY_MAX_LANES_D(TileTag) <= kScoreRowPanels * kPanelWidth);
  ScoreArguments t = {.q = static_cast<const float*>(a.q),
                      .ldq = a.q_stride / static_cast<int64_t>(sizeof(float)),
                      .low = keys,
                      .high = keys,
                      .high_column = width / 2,
                      .scales = a.scales,
                      .low_scales = 0,
                      .high_scales = 0,
                      .dim = a.dim,
                      .scale = a.scale,
                      .s = a.s,
                      .lds = a.lds,
                      .fetch = {},
                      .next = {}};
  // Columns from those that are read to those that are fetched.
  const int64_t ahead = in_rows ? ((kNarrowPrefetchBytes - 1) / (width * row) + 2) * width
                                : ((kNarrowPrefetchBytes - 1) / (2 * bytes) + 1) * 2 * kPanelWidth;
  const bool one_after_the_other = a.panel_stride == row;
  // Tiles narrower than a panel begin inside of one. All of these are powers of two: a mask takes the place of a division.
  const int64_t step = HWY_MAX(width, kPanelWidth);
  // Panels of rows: those that are multiplied, and those of the next tile.
  const auto transposed = [&](int64_t x) SIMDATTN_LAMBDA {
    return reinterpret_cast<uint8_t*>(a.room) + ((x & step) != 0 ? step / kPanelWidth * bytes : 0);
  };
  const auto in_step = [step](int64_t c) SIMDATTN_LAMBDA { return c & (step - 1); };
  const auto rows_at = [&](int64_t x) -> RowsToTranspose {
    return {keys + (x < columns ? x * a.panel_stride : 0), a.panel_stride, x < columns ? HWY_MIN(step, columns - x) : 0,
            transposed(x), a.fetches() && !one_after_the_other ? ahead * a.panel_stride : 0};
  };
  if (in_rows) functions.transpose(rows_at(0), a.dim);
  for (int64_t x = 0; x < columns; x += width) {
    if (x + width > columns) t.high_column = 0;
    const int64_t middle = x + t.high_column;
    const auto panel = [&](int64_t c) {
      return in_rows ? transposed(x) + in_step(c) / kPanelWidth * bytes : keys + c / kPanelWidth * a.panel_stride;
    };
    t.low = panel(x) + x % kPanelWidth * kUnitBytes;
    t.high = panel(middle) + middle % kPanelWidth * kUnitBytes;
    // Scales of blocks lie behind the units.
    t.low_scales = units * kUnitPitch + x % kPanelWidth * (2 - kUnitBytes);
    t.high_scales = units * kUnitPitch + middle % kPanelWidth * (2 - kUnitBytes);
    if (in_rows) t.next = in_step(x) == 0 ? rows_at(x + step) : RowsToTranspose{};
    if (a.fetches() && (!in_rows || one_after_the_other)) {
      // Two tiles fetch as many panels as they read, all at a time and half of each, some tiles ahead. A tile alone fetches its own,
      // as if they followed each other. Rows that do are as long as panels.
      const int64_t second = (x & width) != 0, first = x & ~width;
      const uintptr_t stride = static_cast<uintptr_t>(in_rows ? kPanelWidth * row : a.panel_stride);
      const uintptr_t half = static_cast<uintptr_t>(units) * 64;  // of the units of a panel
      const uintptr_t to = address_at(keys, 0) + static_cast<uintptr_t>((first + ahead) / kPanelWidth) * stride;
      if (first + 2 * width <= columns) {
        t.fetch = {to + static_cast<uintptr_t>(second) * half,
                   to + 2 * half + static_cast<uintptr_t>(second * width / kPanelWidth) * stride, stride, units};
      } else {
        t.fetch = {to, to + static_cast<uintptr_t>(width * kUnitBytes / 64) * half, half, units};
      }
    }
    if (a.scales != nullptr) t.scales = a.scales + x;
    t.s = a.s + x;
    functions.tiles[a.rows - 1](t);
  }
}

HWY_NOINLINE void ScoreAll(ScoreTile a, KvType type, const ScoreFunctions& functions, bool in_rows) {
  for (int64_t rest = a.rows; rest > 0; rest -= kFusedRows) {
    a.rows = HWY_MIN(kFusedRows, rest);
    ScoreColumns(a, type, functions, in_rows);
    a.q = static_cast<const char*>(a.q) + kFusedRows * a.q_stride;
    a.s += kFusedRows * a.lds;
    a.fetch = Fetch::kNone;
  }
}

// ---- Values ------------------------------------------------------------------------------------------------------------

/// What a tile of values fetches: in each of the first `count` keys kRowLines lines, `apart` bytes apart, then `pitch` on.
struct RowsToFetch {
  uintptr_t first = 0;
  int64_t pitch = 0;
  int64_t count = 0;
  int64_t apart = 0;
};
struct ValueArguments {
  const float* w;
  int64_t ldw;
  const uint8_t* v;  // the tile's first code of the first key
  int64_t key_stride;
  const float* scales;  // of the keys, where they stand apart, times kRowPower
  int64_t column;       // of the tile
  int64_t keys;
  float* o;  // of column 0
  int64_t ldo;
  const float* alpha;    // null: 1
  RowsToFetch prefetch;  // kRowLines<kType, kVecs> a key
};
template <KvType kType, size_t kVecs>
constexpr uintptr_t kRowLines =
    static_cast<uintptr_t>(row_bytes(kType, 32) * static_cast<int64_t>(kVecs * hn::MaxLanes(TileTag())) / 32 + 63) / 64;

/// The scales of a tile's blocks in one row, of which `p` is the first, times kPower.
template <class Format, size_t kBlocks>
struct BlockScales {
  HWY_INLINE explicit BlockScales(const uint8_t* /*p*/) {}
  template <int64_t kBlock>
  HWY_INLINE TileVec factor(const uint8_t* p) const {
    constexpr float kPower = Reader<typename Format::Code>::kRowPower;
    const TileVec x = BlockScale(p + kBlock * Format::kBlockBytes);
    return kPower == 1.0f ? x : hn::Mul(x, hn::Set(TileTag(), kPower));
  }
};
#if HWY_TARGET <= HWY_AVX3
/// Of several blocks: gathered by integer operations and converted together. Converted one by one, each in a whole vector, they hold up the
/// multiplications.
template <class Format, size_t kBlocks>
  requires(kBlocks > 1)
struct BlockScales<Format, kBlocks> {
  alignas(16) float of[4];
  HWY_INLINE explicit BlockScales(const uint8_t* p) {
    uint64_t bits = 0;
    ForEach<kBlocks>([&](auto b) SIMDATTN_LAMBDA {
      constexpr int64_t kBlock = b;
      uint16_t scale;
      std::memcpy(&scale, p + kBlock * Format::kBlockBytes, sizeof scale);
      bits |= uint64_t{scale} << (16 * b);
    });
    __asm__("" : "+m"(bits));  // converted from memory: from a register takes two shuffles more
    _mm_store_ps(of, _mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(&bits))));
    __asm__("" : "+m"(of));  // read from memory: to repeat a lane of a register is an operation more
  }
  template <int64_t kBlock>
  HWY_INLINE TileVec factor(const uint8_t* /*p*/) const {
    return hn::Set(TileTag(), of[kBlock]);
  }
};
#endif

/// Column of a tile's vector c, where the tile begins at column x. Nibbles: vectors 2 i and 2 i + 1 are those of bytes i n on.
template <KvType kType>
HWY_INLINE int64_t ColumnOf(int64_t x, int64_t c, int64_t n) {
  if constexpr (!kNibbles<kType>) return x + c * n;
  const int64_t byte = x / 2 + c / 2 * n;
  return byte / 16 * 32 + byte % 16 + c % 2 * 16;
}

#if SIMDATTN_FP8_IN_HALVES
/// Sums that codes of NaN have part in.
HWY_NOINLINE void PutNan(const ValueArguments& a, int64_t rows, int64_t columns) {
  for (int64_t j = 0; j < a.keys; ++j) {
    for (int64_t c = 0; c < columns; ++c) {
      if ((a.v[j * a.key_stride + c] & 0x7F) != 0x7F) continue;
      for (int64_t r = 0; r < rows; ++r) a.o[r * a.ldo + a.column + c] = kNaN;
    }
  }
}
#endif

template <KvType kType, size_t kRows, size_t kVecs>
HWY_NOINLINE void AddValues(const ValueArguments& a) {
  const TileTag d;
  WithRegisters(d, [&](const Accumulators& acc, const Columns& number) SIMDATTN_LAMBDA {
    using Format = FormatOf<kType>;
    using Code = CodeOfType<kType>;
    constexpr size_t kTurns = kVecs % 4 == 0 ? Reader<Code>::kInterleaved : 1;
    // Each vector is added as soon as it is made: eight of numbers would need as many registers.
    constexpr bool kWide = kVecs == 8;
    const int64_t n = static_cast<int64_t>(hn::Lanes(d));
    constexpr size_t kBlocks = has_scales(kType) ? 0 : kVecs * hn::MaxLanes(TileTag()) / block_of(kType);
    const Reader<Code> reader;
    const float* const alphas = a.alpha;
    ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
      const float* o = a.o + static_cast<int64_t>(r) * a.ldo;
      if constexpr (kTurns > 1) {
        ForEach<kVecs / kTurns>([&](auto g) SIMDATTN_LAMBDA {
          constexpr size_t i = r * kVecs + kTurns * g;
          const float* const from = o + a.column + static_cast<int64_t>(kTurns * g) * n;
          if constexpr (kTurns == 2) {
            hn::LoadInterleaved2(d, from, Get<i>(acc), Get<i + 1>(acc));
          } else {
            hn::LoadInterleaved4(d, from, Get<i>(acc), Get<i + 1>(acc), Get<i + 2>(acc), Get<i + 3>(acc));
          }
        });
      } else {
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
          Get<r * kVecs + c>(acc) = hn::LoadU(d, o + ColumnOf<kType>(a.column, c, n));
        });
      }
      const TileVec alpha = hn::Set(d, alphas != nullptr ? alphas[r] : 1.0f);
      ForEach<kVecs>([&](auto c)
                         SIMDATTN_LAMBDA { Get<r * kVecs + c>(acc) = hn::Mul(alpha, Get<r * kVecs + c>(acc)); });
    });
    const float* w = a.w;
    const float* scales = a.scales;
    const int64_t ldw = a.ldw;
    const int64_t key_stride = a.key_stride;
    Cursor<const uint8_t> v(a.v);
    uintptr_t line = a.prefetch.first;
    const int64_t prefetch_pitch = a.prefetch.pitch;
    const int64_t prefetch_count = a.prefetch.count;
    const uintptr_t apart = static_cast<uintptr_t>(a.prefetch.apart);
    const int64_t keys = a.keys;
    // From the first code back to the scale of its block.
    [[maybe_unused]] const int64_t to_scale = -(a.column % block_of(kType) / (kNibbles<kType> ? 2 : 1) + 2);
    // Not with two vectors or two rows: the time did not change, or was longer.
    constexpr bool kNextRow = Reader<Code>::kMakesAhead && kRows == 1 && kVecs > 2;
    HalvesInTurns<Code> halves(reader);
    if constexpr (kNextRow) {
      if (keys > 0) reader.template prepare_row<kVecs>(v.get(), Get<7>(number), halves.next);
    }
    for (int64_t j = 0; j < keys; ++j) {
      if (j < prefetch_count) {
        for (uintptr_t i = 0; i < kRowLines<kType, kVecs>; ++i)
          __builtin_prefetch(reinterpret_cast<const char*>(line + i * apart), 0, 2);
        line += static_cast<uintptr_t>(prefetch_pitch);
      }
      if constexpr (kNextRow) {
        halves.turn();
        if (j + 1 < keys) reader.template prepare_row<kVecs>(v.get() + key_stride, Get<7>(number), halves.next);
      } else if constexpr (Reader<Code>::kMakesAhead) {
        reader.template prepare_row<kVecs>(v.get(), Get<7>(number), halves.last);
      } else if constexpr (Reader<Code>::kNotesNan) {
        reader.template note_row<kVecs * hn::MaxLanes(TileTag())>(v.get(), Get<7>(number));
      }
      [[maybe_unused]] const BlockScales<Format, kBlocks> block_scales(v.get() + to_scale);
      ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
        constexpr int64_t kVector = c;
        TileVec& factor = Get<5>(number);
        if constexpr (kTurns > 1) {
          if constexpr (kVector == 0) factor = hn::Set(d, *scales++);
          reader.template interleaved<c>(v.get() + (kVector - kVector % 4) * n, Get<6>(number), Get<7>(number),
                                         Get<c % 4>(number));
          Get<c % 4>(number) = hn::Mul(Get<c % 4>(number), factor);
        } else if constexpr (has_scales(kType)) {
          if constexpr (kVector == 0) factor = hn::Set(d, *scales++);
          reader.template row<c>(Reader<Code>::kMakesAhead ? halves.now() : v.get() + kVector * n, factor,
                                 Get<6>(number), Get<7>(number), Get<c % 4>(number));
        } else {
          const int64_t code = kNibbles<kType> ? kVector / 2 * n : kVector * n;  // among those of the tile
          const int64_t block = code / Code::kBytes;
          const bool first = code % Code::kBytes == 0 && !(kNibbles<kType> && kVector % 2 == 1);
          if (kVector == 0 || first) factor = block_scales.template factor<block>(v.get() + to_scale);
          reader.template row<c>(v.get() + block * Format::kBlockBytes + code % Code::kBytes, factor, Get<6>(number),
                                 Get<7>(number), Get<c % 4>(number));
        }
        if constexpr (kWide && c % 4 == 3) {
          ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
            const TileVec weight = hn::Set(d, w[static_cast<int64_t>(r) * ldw]);
            ForEach<4>([&](auto i) SIMDATTN_LAMBDA {
              TileVec& sum = Get<r * kVecs + c - 3 + i>(acc);
              sum = hn::MulAdd(weight, Get<i>(number), sum);
            });
          });
        }
      });
      if constexpr (!kWide)
        ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
          const TileVec weight = hn::Set(d, w[static_cast<int64_t>(r) * ldw]);
          ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
            TileVec& sum = Get<r * kVecs + c>(acc);
            sum = hn::MulAdd(weight, Get<c>(number), sum);
          });
        });
      ++w;
      v += key_stride;
    }
    ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
      float* o = a.o + static_cast<int64_t>(r) * a.ldo;
      if constexpr (kTurns > 1) {
        ForEach<kVecs / kTurns>([&](auto g) SIMDATTN_LAMBDA {
          constexpr size_t i = r * kVecs + kTurns * g;
          float* const to = o + a.column + static_cast<int64_t>(kTurns * g) * n;
          if constexpr (kTurns == 2) {
            hn::StoreInterleaved2(Get<i>(acc), Get<i + 1>(acc), d, to);
          } else {
            hn::StoreInterleaved4(Get<i>(acc), Get<i + 1>(acc), Get<i + 2>(acc), Get<i + 3>(acc), d, to);
          }
        });
      } else {
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
          hn::StoreU(Get<r * kVecs + c>(acc), d, o + ColumnOf<kType>(a.column, c, n));
        });
      }
    });
#if SIMDATTN_FP8_IN_HALVES
    if constexpr (Reader<Code>::kNotesNan) {
      if (SawNan(Get<7>(number))) PutNan(a, kRows, static_cast<int64_t>(kVecs) * n);
    }
#endif
  });
}

/// Tiles of 1, 2, ... rows: of two vectors of columns, and of four.
using ValueFunction = void (*)(const ValueArguments&);
struct ValueFunctions {
  ValueFunction two[kFusedRows];
  ValueFunction four[kValueRows<4>];
  ValueFunction eight[1];  // or null
};
/// One row has eight vectors: with four a sum is ready just when it is to be used again. Nibbles gain nothing from memory.
template <KvType kType>
constexpr bool kEightVectors = !kNibbles<kType>;
template <KvType kType, size_t kVecs, size_t... kIndices>
constexpr void PutFunctions(ValueFunction* out, std::index_sequence<kIndices...> /*rows*/) {
  ((out[kIndices] = AddValues<kType, kIndices + 1, kVecs>), ...);
}
template <KvType kType>
constexpr ValueFunctions kValueTiles = [] {
  ValueFunctions f = {};
  PutFunctions<kType, 2>(f.two, std::make_index_sequence<kFusedRows>());
  PutFunctions<kType, 4>(f.four, std::make_index_sequence<static_cast<size_t>(kValueRows<4>)>());
  if constexpr (kEightVectors<kType>) PutFunctions<kType, 8>(f.eight, std::make_index_sequence<1>());
  return f;
}();

/// Keys [key, key + keys), as many columns from x on as the tiles have.
HWY_NOINLINE void ValueColumns(const ValueTile& a, KvType type, int64_t key, int64_t keys, int64_t block_keys,
                               int64_t x, const ValueFunction* tiles, int64_t most, int64_t columns) {
  const uint8_t* const v = static_cast<const uint8_t*>(a.v) + key * a.key_stride;
  RowsToFetch prefetch;
  if (a.fetches()) {
    // Its share of the next keys, whose rows' bytes the tiles divide among themselves in order.
    const int64_t bytes = row_bytes(type, a.dim);
    if (a.key_stride == bytes) {
      // As many streams as a tile's part of a row has lines.
      const int64_t piece = bytes * columns / a.dim, lines = (piece + 63) / 64;
      prefetch = {address_at(v, block_keys * bytes + keys * bytes * x / a.dim), (piece + lines - 1) / lines, keys,
                  keys * piece / lines};
    } else {
      prefetch = {address_at(v, block_keys * a.key_stride + bytes * x / a.dim), a.key_stride, keys, 64};
    }
  }
  const int64_t block = block_of(type);
  // Behind the scale of its block.
  const uint8_t* const codes =
      has_scales(type) ? v + x
                       : v + row_bytes(type, x / block * block) + 2 + x % block * (row_bytes(type, block) - 2) / block;
  for (RowTiles t(a.rows, most); t.first < a.rows; t.next()) {
    const int64_t first = t.first;
    tiles[t.rows - 1]({a.w + first * a.ldw + key, a.ldw, codes, a.key_stride,
                       has_scales(type) ? a.scales + key : nullptr, x, keys, a.o + first * a.ldo, a.ldo,
                       a.alpha != nullptr && key == 0 ? a.alpha + first : nullptr,
                       first == 0 ? prefetch : RowsToFetch()});
  }
}

/// Columns [0, return value): whole tiles.
HWY_NOINLINE int64_t AddWholeTiles(const ValueTile& a, KvType type, const ValueFunctions& tiles) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  int64_t block = a.keys;
  if (a.fetches()) {
    // Divides the keys of a tile.
    for (block = 16; 2 * block * row_bytes(type, a.dim) <= kBlockBytes;) block *= 2;
  }
  int64_t key = 0, x;
  do {
    const int64_t keys = HWY_MIN(block, a.keys - key);
    x = 0;
    if (a.rows == 1 && tiles.eight[0] != nullptr) {
      for (; x + 8 * n <= a.dim; x += 8 * n) ValueColumns(a, type, key, keys, block, x, tiles.eight, 1, 8 * n);
    }
    if (a.rows <= kValueRows<4> || kValueRows<4> == kFusedRows) {
      for (; x + 4 * n <= a.dim; x += 4 * n)
        ValueColumns(a, type, key, keys, block, x, tiles.four, kValueRows<4>, 4 * n);
    }
    for (; x + 2 * n <= a.dim; x += 2 * n) ValueColumns(a, type, key, keys, block, x, tiles.two, kFusedRows, 2 * n);
    key += block;
  } while (key < a.keys);
  return x;
}

template <KvType kType>
void ScoreTileNarrow(const ScoreTile& a) {
  ScoreAll(a, kType, kScoreTiles<kType>, false);
}
template <KvType kType>
void ScoreRowsNarrow(const ScoreTile& a) {
  ScoreAll(a, kType, kScoreTiles<kType>, true);
}

/// Columns [0, return value): whole tiles.
template <KvType kType>
int64_t AddValuesNarrow(const ValueTile& a) {
  if constexpr (Reader<CodeOfType<kType>>::kNotesNan) {
    // Sizes of scales and NaN compare as integers.
    const DI di;
    const int64_t n = static_cast<int64_t>(hn::Lanes(di));
    auto most = hn::Zero(di);
    const auto note = [&](auto x) SIMDATTN_LAMBDA {
      most = hn::Max(most, hn::And(hn::BitCast(di, x), hn::Set(di, 0x7FFFFFFF)));
    };
    int64_t j = 0;
    for (; j + n <= a.keys; j += n) note(hn::LoadU(D(), a.scales + j));
    if (j < a.keys) note(hn::LoadN(D(), a.scales + j, static_cast<size_t>(a.keys - j)));
    if (!hn::AllTrue(di, hn::Lt(most, hn::Set(di, 247 << 23)))) return 0;
    // Multiplied here once for all tiles: in a tile a product of one number and its repetition take a port of the arithmetic each.
    HWY_ALIGN float scales[kKeyBlock];
    for (j = 0; j < a.keys; j += n) {
      const size_t count = static_cast<size_t>(HWY_MIN(n, a.keys - j));
      const float power = Reader<CodeOfType<kType>>::kRowPower;
      hn::StoreU(hn::Mul(hn::LoadN(D(), a.scales + j, count), hn::Set(D(), power)), D(), scales + j);
    }
    ValueTile scaled = a;
    scaled.scales = scales;
    return AddWholeTiles(scaled, kType, kValueTiles<kType>);
  } else {
    return AddWholeTiles(a, kType, kValueTiles<kType>);
  }
}

}  // namespace highway
}  // namespace
}  // namespace simdattn
#endif

#endif  // SIMDATTN_LIB_HIGHWAY_NARROW_TILES_H_
