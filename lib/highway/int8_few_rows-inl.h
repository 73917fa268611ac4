// kInt8 of a few rows and storage of f32 or bf16: numbers are quantised where they are multiplied, in f32 or as pairs of 16 bits. Text, a part of
// int8.cc.
//
// Integers of 8 bits have products of 14 (16 with weights), so f32 holds the sum of a block's 256 weighted values and of kInt8FewRowsDims
// products of a score exactly, in any order. A vector of numbers then takes widening, a product, a rounding and one multiply-add a row.
// Packing them as bytes and unpacking pairs takes twice as much, which more rows pay for.

using IntVec = hn::Vec<IntTag>;

/// Rows whose integers are multiplied as pairs of 16 bits, two dimensions of a key or two keys of a column, and added up as 32. A product and a sum
/// are as many operations as two multiply-adds, but most ports take them; and half of what two multiply-adds are with SSE4. A pair takes two operations to
/// put together, which one row does not pay for, nor two with AVX2. (Two rows take as long either way with AVX-512, where five are three and two.)
constexpr bool as_pairs(int64_t rows) { return rows > (HWY_TARGET > HWY_AVX2 ? 0 : HWY_TARGET <= HWY_AVX3 ? 1 : 2); }
/// Rows of two tiles: the first one keeps its integers in L1, and the other one does not quantise again.
enum class Kept : uint8_t { kNo, kWritten, kRead };
constexpr bool kKeepsIntegers = HWY_TARGET == HWY_AVX2;
/// Of a tile. Two rows that read what another tile keeps are pairs as its rows are.
template <size_t kRows, Kept kKept>
constexpr bool kAsPairs = as_pairs(kRows) || kKept == Kept::kRead;

/// Rows of a tile of kVecs vectors.
constexpr int64_t kFewRowsTile = HWY_TARGET <= HWY_AVX3 ? 8 : 4;
/// There are no tiles of five and of seven rows (12 KB): three and two, four and three. With SSE4 none of three (5 KB): two and one.
constexpr bool has_tile(size_t rows) { return rows != 5 && rows != 7 && (rows != 3 || HWY_TARGET <= HWY_AVX2); }
/// Rows of a tile at most.
constexpr int64_t rows_of_tiles(int64_t rows, int64_t most) {
  if (HWY_TARGET > HWY_AVX2 && most == 4) return rows % 4 == 0 ? 4 : 2;
  return most > 4 && (rows == 5 || rows == 7 || rows > 8) ? 4 : most;
}
/// Vectors of a tile of scores. One row has room for four where they are no more than a panel.
template <size_t kRows>
constexpr size_t kScoreVecs = HWY_TARGET > HWY_AVX3&& kRows == 1 ? 4 : 2;
/// Of a score two sums where multiply-adds would wait for each other: even and odd dimensions.
template <size_t kRows, Kept kKept>
constexpr size_t kSumsOfScore = !kAsPairs<kRows, kKept> && kScoreVecs<kRows> == 2 ? 2 : 1;
/// Whether a row has tiles of half a panel too: see ScoreTile::half_step.
template <class T>
constexpr bool kHalfPanels = HWY_TARGET <= HWY_AVX3 && sizeof(T) == 4;

/// Of a product the integer of magnitude up to 127 that it rounds to, in the lower half of what is 1.5 * 2^23 and it, or NaN.
HWY_INLINE TileVec InLowerHalf(TileVec v) { return hn::Add(v, hn::Set(TileTag(), 12582912.0f)); }
/// Pairs of the lower halves.
HWY_INLINE TileVec LowerHalves(TileVec even, TileVec odd) {
  const TileTag d;
#if HWY_TARGET <= HWY_AVX3
  // A shift and a blend in one.
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 0, 1, 4, 5, 4, 5, 8, 9, 8, 9, 12, 13, 12, 13));
  const __m512i pairs =
      _mm512_mask_shuffle_epi8(_mm512_castps_si512(even.raw), 0xCCCCCCCCCCCCCCCC, _mm512_castps_si512(odd.raw), order);
  return hn::BitCast(d, IntVec{pairs});
#else
  const hn::RebindToUnsigned<TileTag> du;
  const hn::Repartition<uint16_t, TileTag> d16;
  const auto upper = hn::BitCast(d16, hn::ShiftLeft<16>(hn::BitCast(du, odd)));
  return hn::BitCast(d, hn::OddEven(upper, hn::BitCast(d16, even)));
#endif
}
/// Two products rounded to integers as pairs.
HWY_INLINE TileVec ToPairs(TileVec even, TileVec odd) {
  const TileVec low = InLowerHalf(even);
  return LowerHalves(low, InLowerHalf(odd));
}
/// sum += a pair times pairs. kLast: which are not used again, so that the product can take their register.
template <bool kLast>
HWY_INLINE void AddPair(TileVec factor, TileVec pairs, TileVec& sum) {
#if HWY_TARGET > HWY_AVX2
  if constexpr (kLast) {
    const __m128i product = _mm_madd_epi16(_mm_castps_si128(pairs.raw), _mm_castps_si128(factor.raw));
    sum = TileVec{_mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(sum.raw), product))};
    return;
  }
#endif
  Operations::I total = hn::BitCast(IntTag(), sum), unused = total;
  Operations::dot<false>(total, unused, hn::BitCast(IntTag(), factor), hn::BitCast(IntTag(), pairs));
  sum = hn::BitCast(TileTag(), total);
}
/// What a sum is.
HWY_INLINE TileVec SumOf(TileVec sum, bool pairs) {
  return pairs ? hn::ConvertTo(TileTag(), hn::BitCast(IntTag(), sum)) : sum;
}
/// acc[r][c] += a pair at x[r * stride] times column[c]
template <size_t kRows, size_t kVecs>
HWY_INLINE void AddPairs(const float* x, int64_t stride, const Columns& columns, const Accumulators& acc) {
  ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
    const TileVec pair = hn::Set(TileTag(), x[static_cast<int64_t>(r) * stride]);
    ForEach<kVecs>([&](auto c)
                       SIMDATTN_LAMBDA { AddPair<kRows == 1>(pair, Get<c>(columns), Get<r * kVecs + c>(acc)); });
  });
}

/// RowScale of largest magnitudes, which are those of numbers if they are below infinity's.
HWY_INLINE void StoreRowScales(IntVec magnitudes, float* scales, float* inverses) {
  const TileTag d;
  const IntTag di;
  const TileVec largest = hn::BitCast(d, magnitudes);
  const TileVec inverse = hn::Div(hn::Set(d, 127.0f), largest);
  const auto infinity = hn::Set(di, 0x7F800000);
  const auto finite = hn::RebindMask(d, hn::Lt(magnitudes, infinity));
  const auto some = hn::And(hn::Lt(inverse, hn::BitCast(d, infinity)), finite);
  const TileVec none =
      hn::IfThenElse(finite, hn::Zero(d), hn::BitCast(d, hn::Set(di, static_cast<int32_t>(kCanonicalNaN))));
  hn::StoreU(hn::IfThenElse(some, hn::Div(largest, hn::Set(d, 127.0f)), none), d, scales);
  hn::StoreU(hn::IfThenElseZero(some, inverse), d, inverses);
}

using Magnitudes = hn::Vec<hn::RebindToUnsigned<IntTag>>;

/// The largest magnitudes so far of numbers as they lie in a panel, or in a row. Each is doubled: that shifts its sign out and takes no
/// constant.
template <class T>
struct Largest {
  static constexpr int64_t kStep = 1;  // vectors of lanes() numbers that one look takes
  static HWY_INLINE Magnitudes Look(TileVec numbers, Magnitudes largest) {
    const hn::RebindToUnsigned<IntTag> d;
    const Magnitudes bits = hn::BitCast(d, numbers);
    return hn::Max(largest, hn::Add(bits, bits));
  }
  static HWY_INLINE Magnitudes Look(const T* p, Magnitudes largest) { return Look(LoadWide(TileTag(), p), largest); }
  static HWY_INLINE Magnitudes LookLast(const T* p, Magnitudes largest) { return Look(p, largest); }
  static HWY_INLINE Magnitudes LookN(const T* p, size_t n, Magnitudes largest) {
    return Look(LoadWideN(TileTag(), p, n), largest);
  }
  static HWY_INLINE IntVec OfLanes(Magnitudes largest) { return hn::BitCast(IntTag(), hn::ShiftRight<1>(largest)); }
};
/// Of two numbers a lane.
template <>
struct Largest<bf16> {
  static constexpr int64_t kStep = 2;
  static HWY_INLINE Magnitudes Look(TileVec numbers, Magnitudes largest) {
    const PairTag d;
    const auto pairs = hn::BitCast(d, numbers);
    return hn::BitCast(hn::RebindToUnsigned<IntTag>(), hn::Max(hn::BitCast(d, largest), hn::Add(pairs, pairs)));
  }
  static HWY_INLINE Magnitudes Look(const bf16* p, Magnitudes largest) {
    return Look(LoadPairs(TileTag(), p), largest);
  }
  /// An odd last dimension: what it is paired with in a panel may be anything.
  static HWY_INLINE Magnitudes LookLast(const bf16* p, Magnitudes largest) {
    const PairTag d;
    const hn::RebindToUnsigned<IntTag> du;
    const auto numbers = hn::ShiftLeft<17>(hn::BitCast(du, LoadPairs(TileTag(), p)));
    return hn::BitCast(du, hn::Max(hn::BitCast(d, largest), hn::BitCast(d, numbers)));
  }
  static HWY_INLINE Magnitudes LookN(const bf16* p, size_t n, Magnitudes largest) {
    return Look(LoadPairsN(TileTag(), p, n), largest);
  }
  /// The larger one of each pair.
  static HWY_INLINE IntVec OfLanes(Magnitudes largest) {
    const IntTag d;
    const IntVec high = hn::BitCast(d, hn::ShiftRight<1>(largest)), low = hn::BitCast(d, hn::ShiftLeft<15>(largest));
    const IntVec mask = hn::Set(d, 0x7FFF0000);
    return hn::Max(hn::And(high, mask), hn::And(low, mask));
  }
};
/// Of keys, where NaN may count for nothing: it makes the score NaN anyway, or is met when numbers become pairs.
template <class T>
struct LargestOfKeys : Largest<T> {};
#if HWY_TARGET <= HWY_AVX3
/// One operation, for either port, in place of two, of which one has a single port.
template <>
struct LargestOfKeys<float> {
  static constexpr int64_t kStep = 1;
  static HWY_INLINE Magnitudes Look(const float* p, Magnitudes largest) {
    return Magnitudes{_mm512_castps_si512(_mm512_range_ps(_mm512_loadu_ps(p), _mm512_castsi512_ps(largest.raw), 11))};
  }
  static HWY_INLINE Magnitudes LookLast(const float* p, Magnitudes largest) { return Look(p, largest); }
  static HWY_INLINE IntVec OfLanes(Magnitudes largest) { return hn::BitCast(IntTag(), largest); }
};
#endif
HWY_INLINE Magnitudes NoMagnitudes() { return hn::Zero(hn::RebindToUnsigned<IntTag>()); }

// ---- Scales of rows ----

/// The larger magnitudes, lane by lane.
template <class T>
HWY_INLINE Magnitudes LargerOf(Magnitudes a, Magnitudes b) {
  if constexpr (std::is_same_v<T, bf16>) {
    const PairTag d;
    return hn::BitCast(hn::RebindToUnsigned<IntTag>(), hn::Max(hn::BitCast(d, a), hn::BitCast(d, b)));
  } else {
    return hn::Max(a, b);
  }
}
/// Of each 128 bits of four vectors the largest magnitudes: of rows 0, 1, 2, 3, in each 128 bits.
template <class T>
HWY_INLINE Magnitudes LargestOfFour(Magnitudes r0, Magnitudes r1, Magnitudes r2, Magnitudes r3) {
  const hn::RebindToUnsigned<IntTag> d;
  const hn::Repartition<uint64_t, TileTag> d64;
  const Magnitudes t0 = LargerOf<T>(hn::InterleaveLower(d, r0, r1), hn::InterleaveUpper(d, r0, r1));
  const Magnitudes t1 = LargerOf<T>(hn::InterleaveLower(d, r2, r3), hn::InterleaveUpper(d, r2, r3));
  const auto u0 = hn::BitCast(d64, t0), u1 = hn::BitCast(d64, t1);
  return LargerOf<T>(hn::BitCast(d, hn::InterleaveLower(d64, u0, u1)),
                     hn::BitCast(d, hn::InterleaveUpper(d64, u0, u1)));
}

/// The largest magnitudes of lanes() rows, of each of which there is a vector.
template <class T>
HWY_INLINE IntVec LargestOfRows(const uint32_t* rows) {
  const hn::RebindToUnsigned<IntTag> d;
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  const auto four = [&](int64_t first) SIMDATTN_LAMBDA {
    const auto row = [&](int64_t i) SIMDATTN_LAMBDA { return hn::LoadU(d, rows + (first + i) * n); };
    return LargestOfFour<T>(row(0), row(1), row(2), row(3));
  };
#if HWY_TARGET <= HWY_AVX3
  const auto halves = [&](Magnitudes a, Magnitudes b, auto low, auto high) SIMDATTN_LAMBDA {
    return LargerOf<T>(Magnitudes{_mm512_shuffle_i64x2(a.raw, b.raw, low)},
                       Magnitudes{_mm512_shuffle_i64x2(a.raw, b.raw, high)});
  };
  constexpr std::integral_constant<int, 0x44> kLower;
  constexpr std::integral_constant<int, 0xEE> kUpper;
  constexpr std::integral_constant<int, 0x88> kEven;
  constexpr std::integral_constant<int, 0xDD> kOdd;
  const Magnitudes largest =
      halves(halves(four(0), four(4), kLower, kUpper), halves(four(8), four(12), kLower, kUpper), kEven, kOdd);
#elif HWY_TARGET == HWY_AVX2
  const Magnitudes a = four(0), b = four(4);
  const Magnitudes largest = LargerOf<T>(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
#else
  const Magnitudes largest = four(0);
#endif
  return Largest<T>::OfLanes(largest);
}

/// Scales of `rows` rows, and of those of a vector past them.
template <class T>
HWY_NOINLINE void StoreScalesOfRows(const uint32_t* largest, int64_t rows, float* scales, float* inverses) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  for (int64_t j = 0; j < rows; j += n) StoreRowScales(LargestOfRows<T>(largest + j * n), scales + j, inverses + j);
}

/// Vectors of as many rows as one tile of scores has columns, of so many vectors: it looks at them.
template <size_t kVecs>
constexpr size_t kLookedAt = kVecs * HWY_MAX_LANES_D(TileTag) * HWY_MAX_LANES_D(TileTag);

/// Scales of all rows of a.v, and of those of a vector past them.
template <class T>
HWY_NOINLINE void ScalesOfRows(const ValueTile& a, float* scales, float* inverses) {
  const hn::RebindToUnsigned<IntTag> d;
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  constexpr int64_t kStep = Largest<T>::kStep;
  alignas(64) uint32_t largest[kLookedAt<2>];
  const int64_t row_bytes = a.key_stride;
  const int64_t dim = a.dim;
  const char* row = static_cast<const char*>(a.v);
  for (int64_t j = 0; j < a.keys; j += 2 * n) {
    const int64_t keys = a.keys - j < 2 * n ? a.keys - j : 2 * n;
    if (keys < 2 * n) std::memset(largest, 0, sizeof(largest));
    // Four rows side by side; the last of a block stand for rows past it.
    for (int64_t i = 0; i < keys; i += 4) {
      const int64_t left = a.keys - j - i;
      const T* const x0 = reinterpret_cast<const T*>(row);
      const T* const x1 = reinterpret_cast<const T*>(row + (left > 1 ? row_bytes : 0));
      const T* const x2 = reinterpret_cast<const T*>(row + (left > 2 ? 2 * row_bytes : 0));
      const T* const x3 = reinterpret_cast<const T*>(row + (left > 3 ? 3 * row_bytes : 0));
      Magnitudes m0 = NoMagnitudes(), m1 = m0, m2 = m0, m3 = m0;
      int64_t x = 0;
      const auto look = [&](int64_t at) SIMDATTN_LAMBDA {
        m0 = Largest<T>::Look(x0 + at, m0);
        m1 = Largest<T>::Look(x1 + at, m1);
        m2 = Largest<T>::Look(x2 + at, m2);
        m3 = Largest<T>::Look(x3 + at, m3);
      };
      const int64_t step = n * kStep;
      // Loops of a few steps are predicted badly.
      for (; x + 4 * step <= dim; x += 4 * step) {
        look(x);
        look(x + step);
        look(x + 2 * step);
        look(x + 3 * step);
      }
      for (; x + step <= dim; x += step) look(x);
      if (x < dim) {
        const size_t rest = static_cast<size_t>(dim - x);
        m0 = Largest<T>::LookN(x0 + x, rest, m0);
        m1 = Largest<T>::LookN(x1 + x, rest, m1);
        m2 = Largest<T>::LookN(x2 + x, rest, m2);
        m3 = Largest<T>::LookN(x3 + x, rest, m3);
      }
      uint32_t* const out = largest + i * n;
      hn::StoreU(m0, d, out);
      hn::StoreU(m1, d, out + n);
      hn::StoreU(m2, d, out + 2 * n);
      hn::StoreU(m3, d, out + 3 * n);
      if (left > 4) row += 4 * row_bytes;
    }
    StoreScalesOfRows<T>(largest, keys, scales + j, inverses + j);
  }
}

// ---- Scores: lanes are keys ----

template <class T>
constexpr int64_t kPanelStep = Largest<T>::kStep;  // dimensions that lie side by side

template <class T>
HWY_NOINLINE void PanelScales(const T* panel, int64_t dim, float* scales, float* inverses) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  constexpr int64_t kStep = kPanelStep<T>;
  // A line at least at once.
  for (int64_t c = 0; c < kPanelWidth; c += 4 * n) {
    Magnitudes m0 = NoMagnitudes(), m1 = m0, m2 = m0, m3 = m0;
    Cursor<const T> at(panel + c * kStep);
    int64_t i = 0;
    for (; i + kStep <= dim; i += kStep) {
      m0 = LargestOfKeys<T>::Look(at.get(), m0);
      m1 = LargestOfKeys<T>::Look(at.get() + n * kStep, m1);
      if (4 * n <= kPanelWidth) {
        m2 = LargestOfKeys<T>::Look(at.get() + 2 * n * kStep, m2);
        m3 = LargestOfKeys<T>::Look(at.get() + 3 * n * kStep, m3);
      }
      at += kPanelWidth * kStep;
    }
    if (i < dim) {
      m0 = LargestOfKeys<T>::LookLast(at.get(), m0);
      m1 = LargestOfKeys<T>::LookLast(at.get() + n * kStep, m1);
      if (4 * n <= kPanelWidth) {
        m2 = LargestOfKeys<T>::LookLast(at.get() + 2 * n * kStep, m2);
        m3 = LargestOfKeys<T>::LookLast(at.get() + 3 * n * kStep, m3);
      }
    }
    StoreRowScales(LargestOfKeys<T>::OfLanes(m0), scales + c, inverses + c);
    StoreRowScales(LargestOfKeys<T>::OfLanes(m1), scales + c + n, inverses + c + n);
    if (4 * n <= kPanelWidth) {
      StoreRowScales(LargestOfKeys<T>::OfLanes(m2), scales + c + 2 * n, inverses + c + 2 * n);
      StoreRowScales(LargestOfKeys<T>::OfLanes(m3), scales + c + 3 * n, inverses + c + 3 * n);
    }
  }
}

template <class T>
struct QuantisedScores {
  const float* q;  // integers, or pairs of them
  int64_t ldq;
  const float* factors;  // [rows]
  const T* panel;        // at the first column
  const float* scales;   // of the columns
  const float* inverses;
  int64_t dim;
  float* s;
  int64_t lds;
  uintptr_t ahead;     // what lies so many bytes behind the columns is prefetched, if any
  const T* next;       // the same columns of a panel whose scales are wanted
  float* next_scales;  // null: none
  float* next_inverses;
  const T* values;       // as many rows of values as columns, whose scales are wanted
  int64_t value_stride;  // elements
  float* value_scales;   // null: none
  float* value_inverses;
  float* integers;  // pairs of the columns, 2 lanes() for two dimensions: see Kept
};

/// Four rows multiply values of a turn in the next one, as what waits for them would fill the scheduler: 0.97 of the time (Zen 4). Others would gain
/// as much, for 12 KB.
template <size_t kRows, size_t kVecs, Kept kKept>
constexpr bool kColumnsAhead =
    kRows == 4 && kKept == Kept::kNo && (HWY_TARGET <= HWY_AVX3 ? kVecs == 4 : HWY_TARGET <= HWY_AVX2);
using ColumnsToCome = RegisterSet<std::make_index_sequence<4>>;

/// False: a pass of its own looks at columns to come. What four vectors of scores and four largest numbers leave of 16 registers does not hold the
/// largest numbers of values, which then go through the stack in every turn (Zen 4: 1.05 of the time; of bf16 a pass takes as much).
template <class T, size_t kRows>
constexpr bool kLooksAhead = kScoreVecs<kRows> <= 2 || sizeof(T) == 2;

/// Two more columns of a row of two vectors.
HWY_INLINE void AddTwo(const float* x, TileVec c0, TileVec c1, TileVec& a0, TileVec& a1) {
#if HWY_TARGET == HWY_AVX2
  // Compilers would put accumulators on the stack, as they load numbers before those before them are done with. Reads the one number at x.
  __m256 factor, s0 = a0.raw, s1 = a1.raw;
  __asm__("vbroadcastss %3, %2\n\tvfmadd231ps %4, %2, %0\n\tvfmadd231ps %5, %2, %1"
          : "+x"(s0), "+x"(s1), "=&x"(factor)
          : "m"(*x), "x"(c0.raw), "x"(c1.raw));
  a0 = TileVec{s0};
  a1 = TileVec{s1};
#else
  const TileVec factor = hn::Set(TileTag(), *x);
  a0 = hn::MulAdd(factor, c0, a0);
  a1 = hn::MulAdd(factor, c1, a1);
#endif
}
/// One vector of columns, two or four. Meanwhile the largest numbers of columns to come and those of rows of values are looked for. Two
/// dimensions a turn: four take twice the code, and win nothing.
template <class T, size_t kRows, Kept kKept, size_t kVecs = kScoreVecs<kRows>>
HWY_NOINLINE void QuantisedScoreTile(const QuantisedScores<T>& a) {
  constexpr size_t kSums = kSumsOfScore<kRows, kKept>;
  constexpr int64_t kStep = kPanelStep<T>;
  const TileTag d;
  WithRegisters(d, [&](const Accumulators& acc, const Columns& k) SIMDATTN_LAMBDA {
    const int64_t n = static_cast<int64_t>(hn::Lanes(d));
    const float* q = a.q;
    const int64_t ldq = a.ldq;
    const uintptr_t ahead = a.ahead;
    ForEach<kVecs>([&](auto c)
                       SIMDATTN_LAMBDA { Get<kVecs + c>(k) = hn::LoadU(d, a.inverses + static_cast<int64_t>(c) * n); });
    Cursor<const T> at(a.panel), next(a.next), values(a.values);
    Magnitudes m0 = NoMagnitudes(), m1 = m0, m2 = m0, m3 = m0;
    const auto largest = [&](auto c) SIMDATTN_LAMBDA -> Magnitudes& {
      if constexpr (c == 0) return m0;
      else if constexpr (c == 1) return m1;
      else if constexpr (c == 2) return m2;
      else return m3;
    };
    // Of rows of values, in two halves where there are four vectors of columns.
    Magnitudes of_values = m0, of_others = m0;
    alignas(64) uint32_t looked_at[kLookedAt<kVecs>];
    uint32_t* of_row = looked_at;
    const int64_t others = 2 * n * a.value_stride;
    const bool looks_ahead = kLooksAhead<T, kRows> && kKept != Kept::kRead && a.next_scales != nullptr;
    const bool looks_at_values = kKept != Kept::kRead && a.value_scales != nullptr;
    constexpr int64_t kValueVecs = kVecs == 1 ? 2 : 4;  // of numbers in each step
    const int64_t value_steps = a.dim / (kValueVecs * n);
    const int64_t next_row = a.value_stride - value_steps * kValueVecs * n;
    float* integers = a.integers;
    int64_t steps_left = value_steps;
    // Keys of which NaN was passed over: all bits of numbers in lower halves. Of those of NaN some are no other's.
    constexpr bool kMeetsNaN = HWY_TARGET <= HWY_AVX3 && std::is_same_v<T, float> && kAsPairs<kRows, kKept>;
    [[maybe_unused]] IntVec met0 = hn::Zero(IntTag()), met1 = met0;
    /// Two dimensions, or the last one.
    [[maybe_unused]] const auto pair = [&](auto numbers) SIMDATTN_LAMBDA {
      ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
        float* const kept = integers + static_cast<int64_t>(c) * n;
        if constexpr (kKept == Kept::kRead) {
          Get<c>(k) = hn::LoadU(d, kept);
          return;
        }
        const T* const from = at.get() + static_cast<int64_t>(c) * n * kStep;
        const auto times_inverse = [&](TileVec v) SIMDATTN_LAMBDA { return hn::Mul(v, Get<kVecs + c>(k)); };
        // Of an odd last dimension any number may be the other one: zero multiplies it.
        if constexpr (std::is_same_v<T, bf16>) {
          Get<c>(k) = ToPairs(times_inverse(LoadEven(d, from)), times_inverse(LoadOdd(d, from)));
        } else {
          const TileVec even = InLowerHalf(times_inverse(LoadWide(d, from)));
          const TileVec odd = InLowerHalf(times_inverse(LoadWide(d, from + (numbers == 2 ? kPanelWidth : 0))));
          if constexpr (kMeetsNaN) {
            IntVec& bits = c == 0 ? met0 : met1;
            bits = hn::Or3(bits, hn::BitCast(IntTag(), even), hn::BitCast(IntTag(), odd));
          }
          Get<c>(k) = LowerHalves(even, odd);
        }
        if constexpr (kKept == Kept::kWritten) hn::StoreU(Get<c>(k), d, kept);
      });
      AddPairs<kRows, kVecs>(q, ldq, k, acc);
    };
    [[maybe_unused]] const auto dimension = [&](auto i) SIMDATTN_LAMBDA {
      ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
        TileVec& column = Get<c>(k);
        const T* const from =
            at.get() + (kStep == 1 ? static_cast<int64_t>(i) * kPanelWidth : 0) + static_cast<int64_t>(c) * n * kStep;
        if constexpr (!std::is_same_v<T, bf16>) column = LoadWide(d, from);
        else if constexpr (i == 0) column = LoadEven(d, from);
        else column = LoadOdd(d, from);
        column = hn::Round(hn::Mul(column, Get<kVecs + c>(k)));
      });
      ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
        const float* const x = q + static_cast<int64_t>(i) + static_cast<int64_t>(r) * ldq;
        constexpr size_t kFirst = (i % kSums * kRows + r) * kVecs;
        if constexpr (kVecs == 2) {
          AddTwo(x, Get<0>(k), Get<1>(k), Get<kFirst>(acc), Get<kFirst + 1>(acc));
        } else {
          const TileVec factor = hn::Set(d, *x);
          ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
            Get<kFirst + c>(acc) = hn::MulAdd(factor, Get<c>(k), Get<kFirst + c>(acc));
          });
        }
      });
    };
    const int64_t dim = a.dim;
    for (int64_t i = 0; i + 2 <= dim; i += 2) {
      if (kKept != Kept::kRead && ahead != 0) {
        // Without a branch for each line.
        constexpr uintptr_t kPitch = kStep * kPanelWidth * sizeof(T);
        constexpr uintptr_t kBytes = kVecs * HWY_MAX_LANES_D(TileTag) * static_cast<size_t>(kStep) * sizeof(T);
        const uintptr_t line = reinterpret_cast<uintptr_t>(at.get()) + ahead;
#pragma GCC unroll 4
        for (uintptr_t byte = 0; byte < kBytes; byte += 64) {
          __builtin_prefetch(reinterpret_cast<const char*>(line + byte), 0, 2);
          if constexpr (kStep == 1) __builtin_prefetch(reinterpret_cast<const char*>(line + kPitch + byte), 0, 2);
        }
      }
      if (looks_ahead) {
        ForEach<static_cast<size_t>(2 / kStep)>([&](auto j) SIMDATTN_LAMBDA {
          const T* const column = next.get() + static_cast<int64_t>(j) * kPanelWidth;
          ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
            // One vector has two largest numbers, as each look waits for the one before.
            Magnitudes& m = kVecs == 1 ? largest(j) : largest(c);
            m = LargestOfKeys<T>::Look(column + static_cast<int64_t>(c) * n * kStep, m);
          });
        });
      }
      if constexpr (kAsPairs<kRows, kKept>) pair(std::integral_constant<size_t, 2>());
      else dimension(std::integral_constant<size_t, 0>());
      if (looks_at_values) {
        ForEach<static_cast<size_t>(kValueVecs / kStep)>([&](auto j) SIMDATTN_LAMBDA {
          const T* const numbers = values.get() + static_cast<int64_t>(j) * n * kStep;
          of_values = Largest<T>::Look(numbers, of_values);
          if constexpr (kVecs == 4) of_others = Largest<T>::Look(numbers + others, of_others);
        });
        values += kValueVecs * n;
        if (--steps_left == 0) {
          hn::StoreU(of_values, hn::RebindToUnsigned<IntTag>(), of_row);
          of_values = NoMagnitudes();
          if constexpr (kVecs == 4) {
            hn::StoreU(of_others, hn::RebindToUnsigned<IntTag>(), of_row + 2 * n * n);
            of_others = NoMagnitudes();
          }
          of_row += n;
          values += next_row;
          steps_left = value_steps;
        }
      }
      if constexpr (!kAsPairs<kRows, kKept>) dimension(std::integral_constant<size_t, 1>());
      q += kAsPairs<kRows, kKept> ? 1 : 2;
      integers += kKept != Kept::kNo ? static_cast<int64_t>(kVecs) * n : 0;
      at += 2 * kPanelWidth;
      next += 2 * kPanelWidth;
    }
    if (dim % 2 != 0) {
      if constexpr (kAsPairs<kRows, kKept>) pair(std::integral_constant<size_t, 1>());
      else dimension(std::integral_constant<size_t, 0>());
      if constexpr (kLooksAhead<T, kRows> && kKept != Kept::kRead) {
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
          largest(c) = LargestOfKeys<T>::LookLast(next.get() + static_cast<int64_t>(c) * n * kStep, largest(c));
        });
      }
    }
    if (looks_ahead) {
      if constexpr (kVecs == 1) m0 = LargerOf<T>(m0, m1);
      ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
        const int64_t column = static_cast<int64_t>(c) * n;
        StoreRowScales(LargestOfKeys<T>::OfLanes(largest(c)), a.next_scales + column, a.next_inverses + column);
      });
    }
    ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
      const TileVec factor = hn::Set(d, a.factors[r]);
      float* const s = a.s + static_cast<int64_t>(r) * a.lds;
      ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
        TileVec sum = Get<kVecs * r + c>(acc);
        if constexpr (kSums == 2) sum = hn::Add(sum, Get<(kRows + r) * kVecs + c>(acc));
        const int64_t column = static_cast<int64_t>(c) * n;
        TileVec scale = hn::Mul(factor, hn::LoadU(d, a.scales + column));
        if constexpr (kMeetsNaN) {
          const auto finite = hn::Eq(hn::And(c == 0 ? met0 : met1, hn::Set(IntTag(), 0x34000000)), hn::Zero(IntTag()));
          const TileVec nan = hn::BitCast(d, hn::Set(IntTag(), static_cast<int32_t>(kCanonicalNaN)));
          scale = hn::IfThenElse(hn::RebindMask(d, finite), scale, nan);
        }
        hn::StoreU(hn::Mul(SumOf(sum, kAsPairs<kRows, kKept>), scale), d, s + column);
      });
    });
    if (looks_at_values) {
      StoreScalesOfRows<T>(looked_at, static_cast<int64_t>(kVecs) * n, a.value_scales, a.value_inverses);
    }
  });
}

/// The integers of a query in the order of dimensions, as f32 or as pairs.
template <class Cell>
HWY_INLINE void QueryIntegers(const char* query, int64_t numbers, bool pairs, float* out) {
  const IntTag d;
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  const hn::Rebind<Cell, IntTag> cells;
  for (int64_t i = 0; i < numbers; i += n) {
    IntVec v = hn::PromoteTo(d, hn::LoadU(cells, reinterpret_cast<const Cell*>(query) + i));
    if constexpr (sizeof(Cell) == 2) v = hn::Per4LaneBlockShuffle<3, 1, 2, 0>(v);  // int8_pair_cells()
    if (pairs) {
      const hn::Rebind<int16_t, IntTag> words;
      hn::StoreU(hn::DemoteTo(words, v), words, reinterpret_cast<int16_t*>(out) + i);
    } else {
      hn::StoreU(hn::ConvertTo(TileTag(), v), TileTag(), out + i);
    }
  }
}

/// How many columns before they are multiplied some are looked at. Two panels: divisions end while the one between is
/// multiplied. But what lies between has to stay in L1, 32 KiB on a Zen 4, beside rows of values. One row of f32: the
/// pass that looks also fetches. Else one tile ahead (time of two panels, 512 keys; 8192: AVX-512, one row of f32 0.86;
/// 0.84, of bf16 0.99; 0.96, four rows of f32 0.97; 0.97, of bf16 0.985; AVX2, one row of f32 0.95; 0.91, four 0.98;
/// 0.91, of bf16 0.985; 0.99).
template <class T>
HWY_INLINE int64_t ColumnsAhead(int64_t rows) {
  if (HWY_TARGET > HWY_AVX2 || !is_zen4()) return 2 * kPanelWidth;
  if (rows > 1) return HWY_TARGET <= HWY_AVX3 ? kPanelWidth : kPanelWidth / 2;
  if (sizeof(T) == sizeof(float)) return 0;
  return HWY_TARGET <= HWY_AVX3 ? kPanelWidth : 2 * kPanelWidth;
}

template <class T>
void QuantisedScore(const ScoreTile& a) {
  constexpr int64_t kMost = kDirectRows;  // rows at a time
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  const int64_t numbers = int8_query_numbers(a.dim);
  // Targets with dot products of bytes prepare bytes.
  const bool bytes = a.q_stride == int8_query_bytes(a.dim);
  alignas(64) float q[kMost * kInt8FewRowsDims];
  alignas(64) float integers[kKeepsIntegers ? kInt8FewRowsDims * HWY_MAX_LANES_D(TileTag) : 1];
  float factors[kMost];
  constexpr int64_t kKept = 4 * kPanelWidth;  // scales of so many columns, a power of two
  alignas(64) float scales[kKept], inverses[kKept];
  const uintptr_t ahead = a.stream ? static_cast<uintptr_t>((16384 / a.panel_stride + 1) * a.panel_stride) : 0;
  for (int64_t first = 0; first < a.rows; first += kMost) {
    const int64_t rows = a.rows - first < kMost ? a.rows - first : kMost;
    for (int64_t r = 0; r < rows; ++r) {
      const char* const query = static_cast<const char*>(a.q) + (first + r) * a.q_stride;
      Int8Query info;
      std::memcpy(&info, query + (bytes ? 1 : 2) * numbers, sizeof(info));
      factors[r] = info.scale * a.scale;
      if (bytes) QueryIntegers<int8_t>(query, numbers, as_pairs(rows), q + r * numbers);
      else QueryIntegers<int16_t>(query, numbers, as_pairs(rows), q + r * numbers);
    }
    const auto panel = [&](int64_t p) SIMDATTN_LAMBDA {
      return reinterpret_cast<const T*>(static_cast<const char*>(a.panels) + p * a.panel_stride);
    };
    const auto column = [&](int64_t x)
                            SIMDATTN_LAMBDA { return panel(x / kPanelWidth) + x % kPanelWidth * kPanelStep<T>; };
    const bool halves = kHalfPanels<T> && rows == 1 && a.half_step;
    const int64_t width = halves ? n : 2 * n;
    const int64_t columns_ahead = halves ? n : ColumnsAhead<T>(rows);
    const bool in_tiles = columns_ahead > 0 && (rows > 1 || kLooksAhead<T, 1>);
    int64_t looked = 0;  // columns
    const auto look = [&](int64_t end) SIMDATTN_LAMBDA {
      for (; looked < end && looked < a.n_panels * kPanelWidth; looked += kPanelWidth) {
        PanelScales<T>(column(looked), a.dim, scales + looked % kKept, inverses + looked % kKept);
      }
    };
    look(columns_ahead);
    for (int64_t p = 0; p < a.n_panels; ++p) {
      if (!in_tiles) look(p * kPanelWidth + columns_ahead + 1);
      for (int64_t c = 0; c < kPanelWidth; c += width) {
        const bool looks = a.value_scales != nullptr && first == 0;
        const int64_t x = p * kPanelWidth + c, now = x % kKept, to_come = x + columns_ahead, then = to_come % kKept;
        const bool more = in_tiles && to_come >= looked && to_come < a.n_panels * kPanelWidth;
        const T* const next = column(more ? to_come : x);
        for (RowTiles t(rows, rows_of_tiles(rows, kFewRowsTile)); t.first < rows; t.next()) {
          if (kScoreVecs<1> > 2 && t.rows == 1 && c % (static_cast<int64_t>(kScoreVecs<1>) * n) != 0)
            continue;  // the tile before took them too
          const bool once = t.first == 0;
          const QuantisedScores<T> tile = {
              q + t.first * numbers,
              numbers,
              factors + t.first,
              column(x),
              scales + now,
              inverses + now,
              a.dim,
              a.s + (first + t.first) * a.lds + x,
              a.lds,
              first + t.first == 0 ? ahead : 0,
              next,
              once && more ? scales + then : nullptr,
              inverses + then,
              looks ? reinterpret_cast<const T*>(static_cast<const char*>(a.values) + x * a.value_stride) : nullptr,
              a.value_stride / static_cast<int64_t>(sizeof(T)),
              looks && once ? a.value_scales + x : nullptr,
              looks ? a.value_inverses + x : nullptr,
              integers};
          const bool keeps = kKeepsIntegers && rows > kFewRowsTile;
          if constexpr (kHalfPanels<T>) {
            if (halves) {
              QuantisedScoreTile<T, 1, Kept::kNo, 1>(tile);
              continue;
            }
          }
          WithRows<kFewRowsTile>(t.rows, [&](auto r) {
            if constexpr (kKeepsIntegers && r > 1) {
              if (keeps && !once) return QuantisedScoreTile<T, r, Kept::kRead>(tile);
              if constexpr (r > 2) {
                if (keeps && once) return QuantisedScoreTile<T, r, Kept::kWritten>(tile);
              }
            }
            if constexpr (has_tile(r)) QuantisedScoreTile<T, r, Kept::kNo>(tile);
          });
        }
      }
    }
  }
}

// ---- Values: lanes are columns ----

template <class T>
struct QuantisedValues {
  const float* w;  // integers, or pairs of them
  int64_t ldw;
  const T* v;
  int64_t key_stride;  // elements
  const float* inverses;
  int64_t keys;
  float* sums;  // whole vectors; of bf16 even columns in one, odd columns in the next
  int64_t ld;
  PrefetchPlan prefetch;
  float* integers;  // pairs of two vectors of columns, two keys at a time: see Kept
};

template <class T, size_t kRows, size_t kVecs, Kept kKept>
HWY_NOINLINE void QuantisedValueTile(const QuantisedValues<T>& a) {
  const TileTag d;
  WithRegisters(d, [&](const Accumulators& acc, const Columns& k) SIMDATTN_LAMBDA {
    const int64_t n = static_cast<int64_t>(hn::Lanes(d));
    const float* w = a.w;
    const int64_t ldw = a.ldw;
    Cursor<const T> v(a.v);
    const int64_t key_stride = a.key_stride;
    const int64_t keys = a.keys;
    const float* inverses = a.inverses;
    uintptr_t line = a.prefetch.first;
    const uintptr_t prefetch_pitch = static_cast<uintptr_t>(a.prefetch.pitch);
    const int64_t prefetch_count = kKept == Kept::kRead ? 0 : a.prefetch.count;
    float* integers = a.integers;
    const auto each_sum = [&](const auto& f) SIMDATTN_LAMBDA {
      ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
          f(Get<r * kVecs + c>(acc), a.sums + static_cast<int64_t>(r) * a.ld + static_cast<int64_t>(c) * n);
        });
      });
    };
    each_sum([&](TileVec& sum, const float* at) SIMDATTN_LAMBDA { sum = hn::LoadU(d, at); });
    constexpr uintptr_t kBytes = kVecs * HWY_MAX_LANES_D(TileTag) * sizeof(T);
    if constexpr (kAsPairs<kRows, kKept>) {
      TileVec next0 = hn::Zero(d), next1 = next0, next2 = next0, next3 = next0;
      const ColumnsToCome next{{next0}, {next1}, {next2}, {next3}};
      const auto load = [&](int64_t j, const auto& to) SIMDATTN_LAMBDA {
        // Of an odd last key any other may be the second one: zero multiplies it.
        const bool second = j + 1 < keys;
        if constexpr (kKept == Kept::kRead) {
          ForEach<kVecs>([&](auto c)
                             SIMDATTN_LAMBDA { Get<c>(to) = hn::LoadU(d, integers + static_cast<int64_t>(c) * n); });
        } else {
          const TileVec inverse0 = hn::Set(d, inverses[j]), inverse1 = hn::Set(d, inverses[second ? j + 1 : j]);
          const T* const v0 = v.get();
          const T* const v1 = v0 + (second ? key_stride : 0);
          const auto pairs = [&](TileVec x0, TileVec x1)
                                 SIMDATTN_LAMBDA { return ToPairs(hn::Mul(x0, inverse0), hn::Mul(x1, inverse1)); };
          if constexpr (std::is_same_v<T, bf16>) {
            ForEach<kVecs / 2>([&](auto c) SIMDATTN_LAMBDA {
              const int64_t at = 2 * static_cast<int64_t>(c) * n;
              const TileVec p0 = LoadPairs(d, v0 + at), p1 = LoadPairs(d, v1 + at);
              Get<2 * c>(to) = pairs(EvenOf(d, p0), EvenOf(d, p1));
              Get<2 * c + 1>(to) = pairs(OddOf(d, p0), OddOf(d, p1));
            });
          } else {
            ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
              const int64_t at = static_cast<int64_t>(c) * n;
              Get<c>(to) = pairs(LoadWide(d, v0 + at), LoadWide(d, v1 + at));
            });
          }
        }
        if constexpr (kKept == Kept::kWritten) {
          ForEach<kVecs>([&](auto c)
                             SIMDATTN_LAMBDA { hn::StoreU(Get<c>(to), d, integers + static_cast<int64_t>(c) * n); });
        }
        if constexpr (kKept != Kept::kNo) integers += static_cast<int64_t>(kVecs) * n;
        v += 2 * key_stride;
      };
      constexpr bool kAhead = kColumnsAhead<kRows, kVecs, kKept>;
      if (kAhead && keys > 0) load(0, k);
      for (int64_t j = kAhead ? 2 : 0; j < keys; j += 2) {
        if (j < prefetch_count) {
#pragma GCC unroll 8
          for (uintptr_t byte = 0; byte < kBytes; byte += 64) {
            __builtin_prefetch(reinterpret_cast<const char*>(line + byte), 0, 2);
            __builtin_prefetch(reinterpret_cast<const char*>(line + prefetch_pitch + byte), 0, 2);
          }
          line += 2 * prefetch_pitch;
        }
        if constexpr (kAhead) load(j, next);
        else load(j, k);
        AddPairs<kRows, kVecs>(w, ldw, k, acc);
        if constexpr (kAhead) ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA { Get<c>(k) = Get<c>(next); });
        ++w;
      }
      if (kAhead && keys > 0) AddPairs<kRows, kVecs>(w, ldw, k, acc);
    } else {
#if HWY_TARGET == HWY_AVX2
#pragma GCC unroll 2  // what a turn costs beside is a sixth of its operations
#endif
      for (int64_t j = 0; j < keys; ++j) {
        if (j < prefetch_count) {
#pragma GCC unroll 8
          for (uintptr_t byte = 0; byte < kBytes; byte += 64)
            __builtin_prefetch(reinterpret_cast<const char*>(line + byte), 0, 2);
          line += prefetch_pitch;
        }
        const TileVec inverse = hn::Set(d, inverses[j]);
        const auto quantised = [&](TileVec x) SIMDATTN_LAMBDA { return hn::Round(hn::Mul(x, inverse)); };
        if constexpr (std::is_same_v<T, bf16>) {
          ForEach<kVecs / 2>([&](auto c) SIMDATTN_LAMBDA {
            const TileVec pairs = LoadPairs(d, v.get() + 2 * static_cast<int64_t>(c) * n);
            Get<2 * c>(k) = quantised(EvenOf(d, pairs));
            Get<2 * c + 1>(k) = quantised(OddOf(d, pairs));
          });
        } else {
          ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
            Get<c>(k) = quantised(LoadWide(d, v.get() + static_cast<int64_t>(c) * n));
          });
        }
        AddOuterProduct<kRows, kVecs>(d, w, ldw, k, acc);
        ++w;
        v += key_stride;
      }
    }
    each_sum([&](const TileVec& sum, float* at) SIMDATTN_LAMBDA { hn::StoreU(sum, d, at); });
  });
}

/// Rows of a tile of kVecs vectors whose accumulators fit.
template <int64_t kVecs>
constexpr int64_t kFewRowsOf =
    (HWY_TARGET > HWY_AVX2 && kVecs == 2) ? kFewRowsTile : (HWY_TARGET <= HWY_AVX3 ? 16 : 8) / kVecs;
/// Rows of tiles of eight vectors, which with 16 registers leave none for what else a key takes.
constexpr int64_t kWidestRows = HWY_TARGET <= HWY_AVX3 ? kFewRowsOf<8> : 0;

/// Columns of values at a time: their sums stay in L1.
constexpr int64_t kFewRowsColumns = 256;

/// kLeast: fewer rows have wider tiles.
template <class T, size_t kVecs, size_t kLeast>
HWY_INLINE void QuantisedValueStrip(const QuantisedValues<T>& a, int64_t rows) {
  for (RowTiles t(rows, rows_of_tiles(rows, kFewRowsOf<kVecs>)); t.first < rows; t.next()) {
    QuantisedValues<T> tile = a;
    tile.w += t.first * a.ldw;
    tile.sums += t.first * a.ld;
    if (t.first > 0) tile.prefetch = PrefetchPlan();
    WithRows<kFewRowsOf<kVecs>>(t.rows, [&](auto r) {
      if constexpr (kKeepsIntegers && kVecs == 2 && r > 1) {
        if (t.first > 0) return QuantisedValueTile<T, r, kVecs, Kept::kRead>(tile);
        if constexpr (r > 2) {
          if (rows > kFewRowsOf<kVecs>) return QuantisedValueTile<T, r, kVecs, Kept::kWritten>(tile);
        }
      }
      if constexpr (r >= kLeast && has_tile(r)) QuantisedValueTile<T, r, kVecs, Kept::kNo>(tile);
    });
  }
}

/// `columns` whole vectors, an even number of them, of all rows.
template <class T>
HWY_NOINLINE void AddQuantised(const QuantisedValues<T>& a, int64_t rows, int64_t columns, bool next) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  int64_t x = 0;
  const auto strip = [&](auto vecs, auto least) {
    constexpr size_t kVecs = vecs;
    QuantisedValues<T> part = a;
    part.v += x;
    part.sums += x;
    part.prefetch = PrefetchPlan();
    if (next) {
      const int64_t bytes = static_cast<int64_t>(kVecs * HWY_MAX_LANES_D(TileTag) * sizeof(T));
      const int64_t size = static_cast<int64_t>(sizeof(T));
      // In the order of memory, where rows lie side by side.
      part.prefetch =
          a.key_stride == columns
              ? PrefetchPlan{a.prefetch.first + static_cast<uintptr_t>(x * a.keys * size), bytes, a.keys}
              : PrefetchPlan{a.prefetch.first + static_cast<uintptr_t>(x * size), a.key_stride * size, a.keys};
    }
    QuantisedValueStrip<T, kVecs, least>(part, rows);
    x += static_cast<int64_t>(kVecs) * n;
  };
  constexpr std::integral_constant<size_t, 1> kOne;
  if (rows <= kWidestRows) {
    if constexpr (kWidestRows > 0) {
      while (x + 8 * n <= columns) strip(std::integral_constant<size_t, 8>(), kOne);
    }
  } else if (rows <= kFewRowsOf<4>) {
    constexpr std::integral_constant<size_t, kWidestRows + 1> kMore;
    while (x + 4 * n <= columns) strip(std::integral_constant<size_t, 4>(), kMore);
  }
  while (x < columns) strip(std::integral_constant<size_t, 2>(), kOne);
}

template <class T>
void QuantisedValue(const ValueTile& a) {
  const TileTag d;
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  constexpr int64_t kMost = kDirectRows;  // rows at a time
  constexpr int64_t kMostKeys = 128;      // and keys, of which L1 holds the columns
  constexpr int64_t kSize = static_cast<int64_t>(sizeof(T));
  alignas(64) float scales[kKeyBlock + HWY_MAX_LANES_D(TileTag)], inverses[kKeyBlock + HWY_MAX_LANES_D(TileTag)];
  alignas(64) float weights[kMost * kKeyBlock];
  alignas(64) float sums[kMost * kFewRowsColumns];
  alignas(64) T rest[kMostKeys * 2 * HWY_MAX_LANES_D(TileTag)];
  alignas(64) float integers[kKeepsIntegers ? kMostKeys * 2 * HWY_MAX_LANES_D(TileTag) : 1];
  float weight_scales[kMost];
  const bool given = a.row_scales != nullptr;
  if (!given) ScalesOfRows<T>(a, scales, inverses);
  const float* const row_scales = given ? a.row_scales : scales;
  const float* const row_inverses = given ? a.row_inverses : inverses;
  for (int64_t first = 0; first < a.rows; first += kMost) {
    const int64_t rows = a.rows - first < kMost ? a.rows - first : kMost;
    const bool pairs = as_pairs(rows);
    const Int8Weights given_weights = {a.w + first * a.ldw, a.ldw, rows, row_scales, a.keys, 0};
    if (pairs) {
      int8_weigh_rows<Operations>(given_weights, reinterpret_cast<int16_t*>(weights), 2 * kKeyBlock, weight_scales);
    } else {
      int8_weigh_rows<Operations>(given_weights, weights, kKeyBlock, weight_scales);
    }
    for (int64_t x = 0; x < a.dim; x += kFewRowsColumns) {
      const int64_t columns = a.dim - x < kFewRowsColumns ? a.dim - x : kFewRowsColumns;
      const int64_t whole = columns / (2 * n) * (2 * n);
      const int64_t padded = (columns + 2 * n - 1) / (2 * n) * (2 * n);
      std::memset(sums, 0, static_cast<size_t>(rows * padded) * sizeof(float));
      const int64_t in_block = 32768 / (columns * kSize);
      const int64_t block = in_block < 16 ? 16 : in_block > kMostKeys ? kMostKeys : in_block / 2 * 2;
      for (int64_t key = 0; key < a.keys; key += block) {
        const int64_t keys = a.keys - key < block ? a.keys - key : block;
        const T* const v = reinterpret_cast<const T*>(static_cast<const char*>(a.v) + key * a.key_stride) + x;
        const bool next = a.stream && first == 0;
        QuantisedValues<T> part = {weights + (pairs ? key / 2 : key),
                                   kKeyBlock,
                                   v,
                                   a.key_stride / kSize,
                                   row_inverses + key,
                                   keys,
                                   sums,
                                   padded,
                                   PrefetchPlan(),
                                   integers};
        part.prefetch.first = address_at(reinterpret_cast<const char*>(v), a.keys * a.key_stride);
        AddQuantised<T>(part, rows, whole, next);
        if (whole < columns) {
          for (int64_t j = 0; j < keys; ++j) {
            T* const row = rest + j * 2 * n;
            std::memset(row, 0, static_cast<size_t>(2 * n * kSize));
            std::memcpy(row, v + j * part.key_stride + whole, static_cast<size_t>((columns - whole) * kSize));
          }
          part.v = rest;
          part.key_stride = 2 * n;
          part.sums += whole;
          AddQuantised<T>(part, rows, 2 * n, false);
        }
      }
      for (int64_t r = 0; r < rows; ++r) {
        const TileVec scale = hn::Set(d, weight_scales[r]);
        const TileVec alpha = hn::Set(d, a.alpha != nullptr ? a.alpha[first + r] : 1.0f);
        float* const o = a.o + (first + r) * a.ldo + x;
        const auto put = [&](int64_t c, TileVec sum) SIMDATTN_LAMBDA {
          if (c + n <= columns) {
            hn::StoreU(hn::MulAdd(sum, scale, hn::Mul(alpha, hn::LoadU(d, o + c))), d, o + c);
          } else if (c < columns) {
            const size_t left = static_cast<size_t>(columns - c);
            hn::StoreN(hn::MulAdd(sum, scale, hn::Mul(alpha, hn::LoadN(d, o + c, left))), d, o + c, left);
          }
        };
        for (int64_t c = 0; c < columns; c += 2 * n) {
          const float* const sum = sums + r * padded + c;
          const TileVec s0 = SumOf(hn::LoadU(d, sum), pairs), s1 = SumOf(hn::LoadU(d, sum + n), pairs);
          if constexpr (std::is_same_v<T, bf16>) {
            put(c, hn::InterleaveWholeLower(d, s0, s1));
            put(c + n, hn::InterleaveWholeUpper(d, s0, s1));
          } else {
            put(c, s0);
            put(c + n, s1);
          }
        }
      }
    }
  }
}
