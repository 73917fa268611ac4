// kInt8 of a few rows and storage of f32 or bf16: numbers are quantised where they are multiplied, in f32. Text, a part of int8.cc.
//
// Integers of 8 bits have products of 14 (16 with weights), so f32 holds the sum of a block's 256 weighted values and of kInt8FewRowsDims
// products of a score exactly, in any order. A vector of numbers then takes widening, a product, a rounding and one multiply-add a row.
// Packing them as bytes and unpacking pairs takes twice as much, which more rows pay for.

using IntTag64 = hn::Repartition<int64_t, IntTag>;
using IntVec = hn::Vec<IntTag>;

/// Rows of a tile of kVecs vectors.
constexpr int64_t kFewRowsTile = HWY_TARGET <= HWY_AVX3 ? 8 : 4;
/// Of a score several sums, so that multiply-adds do not wait for each other.
template <size_t kRows>
constexpr size_t kSumsOfScore = HWY_TARGET <= HWY_AVX3 && kRows == 1        ? 4
                                : kRows <= (HWY_TARGET <= HWY_AVX3 ? 3 : 2) ? 2
                                                                            : 1;

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

/// The largest magnitudes so far of numbers as they lie in a panel, or in a row.
template <class T>
struct Largest {
  static constexpr int64_t kStep = 1;  // vectors of lanes() numbers that one look takes
  static HWY_INLINE IntVec Look(const T* p, IntVec largest) {
    const IntTag di;
    return hn::Max(largest, hn::And(hn::BitCast(di, LoadWide(TileTag(), p)), hn::Set(di, 0x7FFFFFFF)));
  }
  static HWY_INLINE IntVec LookLast(const T* p, IntVec largest) { return Look(p, largest); }
  static HWY_INLINE IntVec Magnitudes(IntVec largest) { return largest; }
};
/// Of two numbers a lane, each doubled: that shifts signs out and takes no constant.
template <>
struct Largest<bf16> {
  static constexpr int64_t kStep = 2;
  static HWY_INLINE IntVec Look(const bf16* p, IntVec largest) {
    const PairTag d;
    const auto pairs = hn::BitCast(d, LoadPairs(TileTag(), p));
    return hn::BitCast(IntTag(), hn::Max(hn::BitCast(d, largest), hn::Add(pairs, pairs)));
  }
  /// An odd last dimension: what it is paired with in a panel may be anything.
  static HWY_INLINE IntVec LookLast(const bf16* p, IntVec largest) {
    const PairTag d;
    const auto numbers = hn::ShiftLeft<17>(hn::BitCast(IntTag(), LoadPairs(TileTag(), p)));
    return hn::BitCast(IntTag(), hn::Max(hn::BitCast(d, largest), hn::BitCast(d, numbers)));
  }
  /// The larger one of each pair.
  static HWY_INLINE IntVec Magnitudes(IntVec largest) {
    const hn::RebindToUnsigned<IntTag> d;
    const auto high = hn::ShiftRight<1>(hn::BitCast(d, largest));
    const auto low = hn::ShiftLeft<15>(hn::BitCast(d, largest));
    const IntVec mask = hn::Set(IntTag(), 0x7FFF0000);
    return hn::Max(hn::And(hn::BitCast(IntTag(), high), mask), hn::And(hn::BitCast(IntTag(), low), mask));
  }
};

// ---- Scores: lanes are keys ----

template <class T>
constexpr int64_t kPanelStep = Largest<T>::kStep;  // dimensions that lie side by side

template <class T>
HWY_NOINLINE void PanelScales(const T* panel, int64_t dim, float* scales, float* inverses) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  constexpr int64_t kStep = kPanelStep<T>;
  // A line at least at once.
  for (int64_t c = 0; c < kPanelWidth; c += 4 * n) {
    IntVec m0 = hn::Zero(IntTag()), m1 = m0, m2 = m0, m3 = m0;
    Cursor<const T> at(panel + c * kStep);
    int64_t i = 0;
    for (; i + kStep <= dim; i += kStep) {
      m0 = Largest<T>::Look(at.get(), m0);
      m1 = Largest<T>::Look(at.get() + n * kStep, m1);
      if (4 * n <= kPanelWidth) {
        m2 = Largest<T>::Look(at.get() + 2 * n * kStep, m2);
        m3 = Largest<T>::Look(at.get() + 3 * n * kStep, m3);
      }
      at += kPanelWidth * kStep;
    }
    if (i < dim) {
      m0 = Largest<T>::LookLast(at.get(), m0);
      m1 = Largest<T>::LookLast(at.get() + n * kStep, m1);
      if (4 * n <= kPanelWidth) {
        m2 = Largest<T>::LookLast(at.get() + 2 * n * kStep, m2);
        m3 = Largest<T>::LookLast(at.get() + 3 * n * kStep, m3);
      }
    }
    StoreRowScales(Largest<T>::Magnitudes(m0), scales + c, inverses + c);
    StoreRowScales(Largest<T>::Magnitudes(m1), scales + c + n, inverses + c + n);
    if (4 * n <= kPanelWidth) {
      StoreRowScales(Largest<T>::Magnitudes(m2), scales + c + 2 * n, inverses + c + 2 * n);
      StoreRowScales(Largest<T>::Magnitudes(m3), scales + c + 3 * n, inverses + c + 3 * n);
    }
  }
}

template <class T>
struct QuantisedScores {
  const float* q;  // integers
  int64_t ldq;
  const float* factors;  // [rows]
  const T* panel;        // at the first column
  const float* scales;   // of the columns
  const float* inverses;
  int64_t dim;
  float* s;
  int64_t lds;
  uintptr_t ahead;  // what lies so many bytes behind the columns is prefetched, if any
  const T* next;    // the same columns of a panel whose scales are wanted
  float* next_scales;
  float* next_inverses;
};

/// Two vectors of columns. Meanwhile the largest numbers of a panel to come are looked for, which from four rows on costs nothing.
template <class T, size_t kRows>
HWY_NOINLINE void QuantisedScoreTile(const QuantisedScores<T>& a) {
  constexpr size_t kSums = kSumsOfScore<kRows>;
  const TileTag d;
  WithRegisters(d, [&](const Accumulators& acc, const Columns& k) SIMDATTN_LAMBDA {
    const int64_t n = static_cast<int64_t>(hn::Lanes(d));
    const float* q = a.q;
    const int64_t ldq = a.ldq;
    const uintptr_t ahead = a.ahead;
    Cursor<const T> at(a.panel), next(a.next);
    IntVec largest0 = hn::Zero(IntTag()), largest1 = largest0;
    Get<2>(k) = hn::LoadU(d, a.inverses);
    Get<3>(k) = hn::LoadU(d, a.inverses + n);
    const auto add = [&](auto sum, const float* x, TileVec column0, TileVec column1) SIMDATTN_LAMBDA {
      constexpr size_t kFirst = sum % kSums * kRows * 2;
      Get<0>(k) = hn::Round(hn::Mul(column0, Get<2>(k)));
      Get<1>(k) = hn::Round(hn::Mul(column1, Get<3>(k)));
      ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
        const TileVec factor = hn::Set(d, x[static_cast<int64_t>(r) * ldq]);
        Get<kFirst + 2 * r>(acc) = hn::MulAdd(factor, Get<0>(k), Get<kFirst + 2 * r>(acc));
        Get<kFirst + 2 * r + 1>(acc) = hn::MulAdd(factor, Get<1>(k), Get<kFirst + 2 * r + 1>(acc));
      });
    };
    const auto look = [&](auto i) SIMDATTN_LAMBDA {
      constexpr int64_t kDim = i;
      if constexpr (kDim % kPanelStep<T> == 0) {
        const T* const column = next.get() + kDim * kPanelWidth;
        largest0 = Largest<T>::Look(column, largest0);
        largest1 = Largest<T>::Look(column + n * kPanelStep<T>, largest1);
      }
    };
    const auto dimension = [&](auto i) SIMDATTN_LAMBDA {
      constexpr int64_t kDim = i;
      if constexpr (std::is_same_v<T, bf16>) {
        const bf16* const pairs = at.get() + kDim / 2 * 2 * kPanelWidth;
        if constexpr (kDim % 2 == 0) {
          add(i, q + kDim, EvenOf(d, LoadPairs(d, pairs)), EvenOf(d, LoadPairs(d, pairs + 2 * n)));
        } else {
          add(i, q + kDim, OddOf(d, LoadPairs(d, pairs)), OddOf(d, LoadPairs(d, pairs + 2 * n)));
        }
      } else {
        const T* const column = at.get() + kDim * kPanelWidth;
        add(i, q + kDim, LoadWide(d, column), LoadWide(d, column + n));
      }
    };
    const int64_t dim = a.dim;
    int64_t i = 0;
    for (; i + 4 <= dim; i += 4) {
      if (ahead != 0) {
        const int64_t pitch = kPanelStep<T> * kPanelWidth * static_cast<int64_t>(sizeof(T));
        uintptr_t line = reinterpret_cast<uintptr_t>(at.get()) + ahead;
        for (int64_t row = 0; row < 4; row += kPanelStep<T>, line += static_cast<uintptr_t>(pitch)) {
          for (uintptr_t byte = 0; byte < 2 * HWY_MAX_LANES_D(TileTag) * kPanelStep<T> * sizeof(T); byte += 64) {
            __builtin_prefetch(reinterpret_cast<const char*>(line + byte), 0, 2);
          }
        }
      }
      ForEach<4>([&](auto j) SIMDATTN_LAMBDA {
        look(j);
        dimension(j);
      });
      q += 4;
      at += 4 * kPanelWidth;
      next += 4 * kPanelWidth;
    }
    ForEach<3>([&](auto j) SIMDATTN_LAMBDA {
      if (i + static_cast<int64_t>(j) >= dim) return;
      dimension(j);
      if (j % kPanelStep<T> != 0) return;
      if (i + static_cast<int64_t>(j) + kPanelStep<T> <= dim) return look(j);
      const T* const column = next.get() + static_cast<int64_t>(j) * kPanelWidth;
      largest0 = Largest<T>::LookLast(column, largest0);
      largest1 = Largest<T>::LookLast(column + n * kPanelStep<T>, largest1);
    });
    StoreRowScales(Largest<T>::Magnitudes(largest0), a.next_scales, a.next_inverses);
    StoreRowScales(Largest<T>::Magnitudes(largest1), a.next_scales + n, a.next_inverses + n);
    ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
      const TileVec factor = hn::Set(d, a.factors[r]);
      float* const s = a.s + static_cast<int64_t>(r) * a.lds;
      ForEach<2>([&](auto c) SIMDATTN_LAMBDA {
        TileVec sum = Get<2 * r + c>(acc);
        ForEach<kSums - 1>([&](auto x)
                               SIMDATTN_LAMBDA { sum = hn::Add(sum, Get<(x + 1) * kRows * 2 + 2 * r + c>(acc)); });
        const int64_t column = static_cast<int64_t>(c) * n;
        hn::StoreU(hn::Mul(sum, hn::Mul(factor, hn::LoadU(d, a.scales + column))), d, s + column);
      });
    });
  });
}

/// The integers of a query as f32, in the order of dimensions.
template <class Cell>
HWY_INLINE void QueryIntegers(const char* query, int64_t numbers, float* out) {
  const TileTag d;
  const int64_t n = static_cast<int64_t>(hn::Lanes(d));
  const hn::Rebind<Cell, IntTag> cells;
  for (int64_t i = 0; i < numbers; i += n) {
    const Cell* const from = reinterpret_cast<const Cell*>(query) + i;
    TileVec v = hn::ConvertTo(d, hn::PromoteTo(IntTag(), hn::LoadU(cells, from)));
    if constexpr (sizeof(Cell) == 2) v = hn::Per4LaneBlockShuffle<3, 1, 2, 0>(v);  // int8_pair_cells()
    hn::StoreU(v, d, out + i);
  }
}

template <class T>
void QuantisedScore(const ScoreTile& a) {
  constexpr int64_t kMost = kDirectRows;  // rows at a time
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  const int64_t numbers = int8_query_numbers(a.dim);
  // Targets with dot products of bytes prepare bytes.
  const bool bytes = a.q_stride == int8_query_bytes(a.dim);
  alignas(64) float q[kMost * kInt8FewRowsDims];
  float factors[kMost];
  // Of a panel and the two after it: divisions end while the panel between is multiplied.
  constexpr int64_t kAhead = 2;
  alignas(64) float scales[kAhead + 1][kPanelWidth], inverses[kAhead + 1][kPanelWidth];
  const uintptr_t ahead = a.stream ? static_cast<uintptr_t>((16384 / a.panel_stride + 1) * a.panel_stride) : 0;
  for (int64_t first = 0; first < a.rows; first += kMost) {
    const int64_t rows = a.rows - first < kMost ? a.rows - first : kMost;
    for (int64_t r = 0; r < rows; ++r) {
      const char* const query = static_cast<const char*>(a.q) + (first + r) * a.q_stride;
      Int8Query info;
      std::memcpy(&info, query + (bytes ? 1 : 2) * numbers, sizeof(info));
      factors[r] = info.scale * a.scale;
      if (bytes) QueryIntegers<int8_t>(query, numbers, q + r * numbers);
      else QueryIntegers<int16_t>(query, numbers, q + r * numbers);
    }
    const auto panel = [&](int64_t p) SIMDATTN_LAMBDA {
      return reinterpret_cast<const T*>(static_cast<const char*>(a.panels) + p * a.panel_stride);
    };
    for (int64_t p = 0; p < kAhead && p < a.n_panels; ++p) PanelScales<T>(panel(p), a.dim, scales[p], inverses[p]);
    int64_t now = 0, then = kAhead;  // p, p + kAhead modulo kAhead + 1
    for (int64_t p = 0; p < a.n_panels; ++p) {
      const T* const next = panel(p + kAhead < a.n_panels ? p + kAhead : p);
      for (int64_t c = 0; c < kPanelWidth; c += 2 * n) {
        for (RowTiles t(rows, kFewRowsTile); t.first < rows; t.next()) {
          const QuantisedScores<T> tile = {q + t.first * numbers,
                                           numbers,
                                           factors + t.first,
                                           panel(p) + c * kPanelStep<T>,
                                           scales[now] + c,
                                           inverses[now] + c,
                                           a.dim,
                                           a.s + (first + t.first) * a.lds + p * kPanelWidth + c,
                                           a.lds,
                                           first + t.first == 0 ? ahead : 0,
                                           next + c * kPanelStep<T>,
                                           scales[then] + c,
                                           inverses[then] + c};
          WithRows<kFewRowsTile>(t.rows, [&](auto r) { QuantisedScoreTile<T, r>(tile); });
        }
      }
      now = now == kAhead ? 0 : now + 1;
      then = then == kAhead ? 0 : then + 1;
    }
  }
}

// ---- Values: lanes are columns ----

/// Of each 128 bits of four vectors the largest number: of rows 0, 1, 2, 3, in each 128 bits.
HWY_INLINE IntVec LargestOfFour(IntVec r0, IntVec r1, IntVec r2, IntVec r3) {
  const IntTag d;
  const IntTag64 d64;
  const IntVec t0 = hn::Max(hn::InterleaveLower(d, r0, r1), hn::InterleaveUpper(d, r0, r1));
  const IntVec t1 = hn::Max(hn::InterleaveLower(d, r2, r3), hn::InterleaveUpper(d, r2, r3));
  const auto u0 = hn::BitCast(d64, t0), u1 = hn::BitCast(d64, t1);
  return hn::Max(hn::BitCast(d, hn::InterleaveLower(d64, u0, u1)), hn::BitCast(d, hn::InterleaveUpper(d64, u0, u1)));
}

/// The largest magnitudes of four rows, in each 128 bits.
template <class T>
HWY_INLINE IntVec LargestOfFourRows(const T* x0, const T* x1, const T* x2, const T* x3, int64_t dim) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  constexpr int64_t kStep = Largest<T>::kStep;
  IntVec m0 = hn::Zero(IntTag()), m1 = m0, m2 = m0, m3 = m0;
  int64_t i = 0;
  const auto look = [&](int64_t at) SIMDATTN_LAMBDA {
    m0 = Largest<T>::Look(x0 + at, m0);
    m1 = Largest<T>::Look(x1 + at, m1);
    m2 = Largest<T>::Look(x2 + at, m2);
    m3 = Largest<T>::Look(x3 + at, m3);
  };
  const int64_t step = n * kStep;
  // Loops of a few steps are predicted badly.
  for (; i + 4 * step <= dim; i += 4 * step) {
    look(i);
    look(i + step);
    look(i + 2 * step);
    look(i + 3 * step);
  }
  for (; i + step <= dim; i += step) look(i);
  m0 = Largest<T>::Magnitudes(m0);
  m1 = Largest<T>::Magnitudes(m1);
  m2 = Largest<T>::Magnitudes(m2);
  m3 = Largest<T>::Magnitudes(m3);
  for (; i < dim; i += n) {
    const auto rest = [&](const T* x, IntVec largest) SIMDATTN_LAMBDA {
      const TileVec v = LoadWideN(TileTag(), x + i, static_cast<size_t>(dim - i));
      return hn::Max(largest, hn::And(hn::BitCast(IntTag(), v), hn::Set(IntTag(), 0x7FFFFFFF)));
    };
    m0 = rest(x0, m0);
    m1 = rest(x1, m1);
    m2 = rest(x2, m2);
    m3 = rest(x3, m3);
  }
  return LargestOfFour(m0, m1, m2, m3);
}

/// Of vectors of LargestOfFourRows(), one after the other, the largest numbers in the order of rows.
HWY_INLINE IntVec LargestOfBlocks(const int32_t* fours) {
  const IntTag d;
#if HWY_TARGET <= HWY_AVX3
  const __m512i a = hn::LoadU(d, fours).raw, b = hn::LoadU(d, fours + 16).raw;
  const __m512i c = hn::LoadU(d, fours + 32).raw, e = hn::LoadU(d, fours + 48).raw;
  const __m512i ab = _mm512_max_epi32(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xEE));
  const __m512i ce = _mm512_max_epi32(_mm512_shuffle_i64x2(c, e, 0x44), _mm512_shuffle_i64x2(c, e, 0xEE));
  return IntVec{_mm512_max_epi32(_mm512_shuffle_i64x2(ab, ce, 0x88), _mm512_shuffle_i64x2(ab, ce, 0xDD))};
#elif HWY_TARGET == HWY_AVX2
  const IntVec a = hn::LoadU(d, fours), b = hn::LoadU(d, fours + 8);
  return hn::Max(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
#else
  return hn::LoadU(d, fours);
#endif
}

/// Scales of rows, and room for those of a vector past them. In two loops: a vector of scales waits for two divisions, and the reorder window
/// holds no more than 16 rows.
template <class T>
HWY_NOINLINE void ScalesOfRows(const ValueTile& a, float* scales, float* inverses) {
  const int64_t n = static_cast<int64_t>(hn::Lanes(TileTag()));
  alignas(64) int32_t fours[kKeyBlock / 4 * HWY_MAX_LANES_D(TileTag)] = {};
  const int64_t row_bytes = a.key_stride;
  const int64_t dim = a.dim;
  const char* row = static_cast<const char*>(a.v);
  int32_t* at = fours;
  for (int64_t left = a.keys; left > 0; left -= 4, at += n) {
    // The last of a block stand for rows past it.
    const int64_t row1 = left > 1 ? row_bytes : 0, row2 = left > 2 ? 2 * row_bytes : 0,
                  row3 = left > 3 ? 3 * row_bytes : 0;
    const auto numbers = [&](int64_t offset) SIMDATTN_LAMBDA { return reinterpret_cast<const T*>(row + offset); };
    hn::StoreU(LargestOfFourRows<T>(numbers(0), numbers(row1), numbers(row2), numbers(row3), dim), IntTag(), at);
    if (left > 4) row += 4 * row_bytes;
  }
  for (int64_t j = 0; j < a.keys; j += n) {
    StoreRowScales(LargestOfBlocks(fours + j / 4 * n), scales + j, inverses + j);
  }
}

template <class T>
struct QuantisedValues {
  const float* w;  // integers
  int64_t ldw;
  const T* v;
  int64_t key_stride;  // elements
  const float* inverses;
  int64_t keys;
  float* sums;  // whole vectors; of bf16 even columns in one, odd columns in the next
  int64_t ld;
  PrefetchPlan prefetch;
};

template <class T, size_t kRows, size_t kVecs>
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
    const int64_t prefetch_pitch = a.prefetch.pitch;
    const int64_t prefetch_count = a.prefetch.count;
    const auto each_sum = [&](const auto& f) SIMDATTN_LAMBDA {
      ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
        ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
          f(Get<r * kVecs + c>(acc), a.sums + static_cast<int64_t>(r) * a.ld + static_cast<int64_t>(c) * n);
        });
      });
    };
    each_sum([&](TileVec& sum, const float* at) SIMDATTN_LAMBDA { sum = hn::LoadU(d, at); });
    for (int64_t j = 0; j < keys; ++j) {
      if (j < prefetch_count) {
        for (uintptr_t byte = 0; byte < kVecs * HWY_MAX_LANES_D(TileTag) * sizeof(T); byte += 64)
          __builtin_prefetch(reinterpret_cast<const char*>(line + byte), 0, 2);
        line += static_cast<uintptr_t>(prefetch_pitch);
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
        ForEach<kVecs>(
            [&](auto c) SIMDATTN_LAMBDA { Get<c>(k) = quantised(LoadWide(d, v.get() + static_cast<int64_t>(c) * n)); });
      }
      AddOuterProduct<kRows, kVecs>(d, w, ldw, k, acc);
      ++w;
      v += key_stride;
    }
    each_sum([&](const TileVec& sum, float* at) SIMDATTN_LAMBDA { hn::StoreU(sum, d, at); });
  });
}

/// Vectors of the widest tile whose accumulators fit.
template <int64_t kVecs>
constexpr int64_t kFewRowsOf = (HWY_TARGET <= HWY_AVX3 ? 16 : 8) / kVecs;

/// Columns of values at a time: their sums stay in L1.
constexpr int64_t kFewRowsColumns = 256;

/// kLeast: fewer rows have wider tiles.
template <class T, size_t kVecs, size_t kLeast>
HWY_INLINE void QuantisedValueStrip(const QuantisedValues<T>& a, int64_t rows) {
  for (RowTiles t(rows, kFewRowsOf<kVecs>); t.first < rows; t.next()) {
    QuantisedValues<T> tile = a;
    tile.w += t.first * a.ldw;
    tile.sums += t.first * a.ld;
    if (t.first > 0) tile.prefetch = PrefetchPlan();
    WithRows<kFewRowsOf<kVecs>>(t.rows, [&](auto r) {
      if constexpr (r >= kLeast) QuantisedValueTile<T, r, kVecs>(tile);
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
  if (rows <= kFewRowsOf<8>) {
    while (x + 8 * n <= columns) strip(std::integral_constant<size_t, 8>(), kOne);
  } else if (rows <= kFewRowsOf<4>) {
    constexpr std::integral_constant<size_t, kFewRowsOf<8> + 1> kMore;
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
  float weight_scales[kMost];
  ScalesOfRows<T>(a, scales, inverses);
  for (int64_t first = 0; first < a.rows; first += kMost) {
    const int64_t rows = a.rows - first < kMost ? a.rows - first : kMost;
    int8_weigh_rows<Operations>({a.w + first * a.ldw, a.ldw, rows, scales, a.keys, 0}, weights, kKeyBlock,
                                weight_scales);
    for (int64_t x = 0; x < a.dim; x += kFewRowsColumns) {
      const int64_t columns = a.dim - x < kFewRowsColumns ? a.dim - x : kFewRowsColumns;
      const int64_t whole = columns / (2 * n) * (2 * n);
      const int64_t padded = (columns + 2 * n - 1) / (2 * n) * (2 * n);
      std::memset(sums, 0, static_cast<size_t>(rows * padded) * sizeof(float));
      const int64_t in_block = 32768 / (columns * kSize);
      const int64_t block = in_block < 16 ? 16 : in_block > kMostKeys ? kMostKeys : in_block;
      for (int64_t key = 0; key < a.keys; key += block) {
        const int64_t keys = a.keys - key < block ? a.keys - key : block;
        const T* const v = reinterpret_cast<const T*>(static_cast<const char*>(a.v) + key * a.key_stride) + x;
        const bool next = a.stream && first == 0;
        QuantisedValues<T> part = {weights + key, kKeyBlock, v,      a.key_stride / kSize, inverses + key,
                                   keys,          sums,      padded, PrefetchPlan()};
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
          const TileVec s0 = hn::LoadU(d, sums + r * padded + c), s1 = hn::LoadU(d, sums + r * padded + c + n);
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
