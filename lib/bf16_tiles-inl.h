// kBF16 where no instruction computes its chains: f32 multiply-adds with subnormal numbers flushed. Included once per
// instruction set, inside the namespace of a backend, which says before how its vectors work:
//   SIMDATTN_TILE_INLINE, SIMDATTN_TILE_FUNCTION, SIMDATTN_TILE_LAMBDA    attributes of functions that are inlined, of those
//                               that must not be, and of lambdas
//   Ops::Vec, lanes()           a vector of f32, of at most 16 lanes
//   Ops::kRegisters             how many there are
//   Ops::kRows, kWideRows       rows of the largest tile of two vectors; of four
//   Ops::load, store, zero, broadcast, add, mul_add
//   Ops::rounded                to numbers of bf16; NaN stays NaN
//   Ops::load_pairs, even_of, odd_of    of each two neighbours of bf16 the first, the second, widened
//   Ops::kMultipliesPairs       then mul_add_even, mul_add_odd multiply them as they are
//   Ops::zip_lower, zip_upper           what puts both in order again
//   Ops::hide                   a pointer that the compiler does not recognise
//   Ops::with_registers(f)      f(accumulators, columns): sets of registers, `at<i>(set)` is one of them
//   unroll<n>(f)                f(0), f(1), ... with the index as a type
//
// Both chains of every sum are in registers, so a tile has half the rows of an f32 one. The sums themselves are touched once in 32 steps: they
// stay where they are stored.
//
// The control word is set around the tiles, and those are not inlined: no operation moves across.

/// Numbers per group: a chain over the first, third, ... of them and one over the others. Which of the two begins does not
/// matter, so a group that begins in its middle needs no care.
constexpr int64_t kChainGroup = 32;

/// chains[kChain][r][c] = multiply(x[r * stride], c, chains[kChain][r][c])
template <int64_t kChain, int64_t kRows, int64_t kVecs, class Chains, class Multiply>
SIMDATTN_TILE_INLINE void add_to_chains(const float* x, int64_t stride, Chains& chains, const Multiply& multiply) {
  unroll<kRows>([&](auto r) SIMDATTN_TILE_LAMBDA {
    const Ops::Vec factor = Ops::broadcast(x + r * stride);
    unroll<kVecs>([&](auto c) SIMDATTN_TILE_LAMBDA {
      Ops::Vec& sum = Ops::at<(kChain * kRows + r) * kVecs + c>(chains);
      sum = multiply(factor, c, sum);
    });
  });
}
template <int64_t kRows, int64_t kVecs, class Chains>
SIMDATTN_TILE_INLINE void clear_chains(Chains& chains) {
  unroll<2 * kRows * kVecs>([&](auto i) SIMDATTN_TILE_LAMBDA { Ops::at<i>(chains) = Ops::zero(); });
}
/// The sum of the two chains of row r and vector c.
template <int64_t kRows, int64_t kVecs, int64_t kIndex, class Chains>
SIMDATTN_TILE_INLINE Ops::Vec joined(Chains& chains) {
  return Ops::add(Ops::at<kIndex>(chains), Ops::at<kRows * kVecs + kIndex>(chains));
}
/// The registers do not hold pairs of bf16 beside what they become: pairs are loaded twice.
template <int64_t kRows, int64_t kVecs>
constexpr bool kLoadsTwice = !Ops::kMultipliesPairs && 2 * kRows * kVecs + 2 * kVecs + 1 > Ops::kRegisters;

/// f32 that may be any number: it is rounded before it comes to a tile. float: numbers of bf16.
struct Unrounded {
  float x;
};
/// Bytes of the numbers that a vector holds, read from T.
template <class T>
constexpr int64_t kVectorBytes = Ops::kMostLanes * static_cast<int64_t>(sizeof(T));
/// T is how a cache stores numbers, not how they are packed.
template <class T>
constexpr bool kStored = std::is_same_v<T, bf16>;
/// Rows of the largest tile.
template <int64_t kVecs>
constexpr int64_t kMostRows = kVecs == 4 ? Ops::kWideRows : Ops::kRows;
/// Tiles of four vectors: for all rows where they are as high as the others, else for the few rows of a decoding step.
template <class T>
constexpr bool kWide = std::is_same_v<T, bf16> || Ops::kWideRows == Ops::kRows;

// ---------------------------------------------------------------------------------------------------------------------
// Scores: lanes are keys

template <class T>
struct ScoreChains {
  const float* q;
  int64_t ldq;
  const T* low;   // the first half of the tile's columns
  const T* high;  // the second half: of the same panel or of the next
  int64_t dim;
  const float* scale;
  float* s;
  int64_t lds;
  PrefetchPlan prefetch;
};

template <class T, int64_t kRows, int64_t kVecs>
SIMDATTN_TILE_FUNCTION void score_chains_tile(const ScoreChains<T>& a) {
  constexpr bool kPairs = std::is_same_v<T, bf16>;
  constexpr int64_t kHalf = kVecs / 2;
  Ops::with_registers([&](auto& chains, auto& columns) SIMDATTN_TILE_LAMBDA {
    const int64_t n = Ops::lanes();
    const int64_t ldq = a.ldq;
    const float* q = a.q;
    Cursor<const T> low(a.low), high(a.high);
    const auto load = [&](const T* l, const T* h, auto chain) SIMDATTN_TILE_LAMBDA {
      unroll<kVecs>([&](auto c) SIMDATTN_TILE_LAMBDA {
        const T* const half = c < kHalf ? l : h;
        if constexpr (!kPairs) {
          Ops::at<c>(columns) = Ops::load(half + c % kHalf * n + chain * kPanelWidth);
        } else if constexpr (Ops::kMultipliesPairs) {
          Ops::at<c>(columns) = Ops::load_pairs(half + c % kHalf * 2 * n);
        } else if constexpr (chain == 0) {
          Ops::at<c>(columns) = Ops::even_of(Ops::load_pairs(half + c % kHalf * 2 * n));
        } else {
          Ops::at<c>(columns) = Ops::odd_of(Ops::load_pairs(half + c % kHalf * 2 * n));
        }
      });
    };
    constexpr auto kFirst = std::integral_constant<int64_t, 0>();
    constexpr auto kSecond = std::integral_constant<int64_t, 1>();
    const auto add = [&](const float* x, auto chain) SIMDATTN_TILE_LAMBDA {
      add_to_chains<chain, kRows, kVecs>(x, ldq, chains,
                                         [&](Ops::Vec factor, auto c, Ops::Vec sum) SIMDATTN_TILE_LAMBDA {
                                           if constexpr (!kPairs || !Ops::kMultipliesPairs) {
                                             return Ops::mul_add(factor, Ops::at<c>(columns), sum);
                                           } else if constexpr (chain == 0) {
                                             return Ops::mul_add_even(factor, Ops::at<c>(columns), sum);
                                           } else {
                                             return Ops::mul_add_odd(factor, Ops::at<c>(columns), sum);
                                           }
                                         });
    };
    unroll<kRows>([&](auto r) SIMDATTN_TILE_LAMBDA {
      unroll<kVecs>([&](auto c) SIMDATTN_TILE_LAMBDA { Ops::store(Ops::zero(), a.s + r * a.lds + c * n); });
    });
    uintptr_t line = a.prefetch.first;
    const uintptr_t pitch = static_cast<uintptr_t>(a.prefetch.pitch);
    int64_t prefetches = a.prefetch.count;
    for (int64_t left = a.dim; left > 0;) {
      const int64_t group = left < kChainGroup ? left : kChainGroup;
      left -= group;
      const auto prefetch = [&]() SIMDATTN_TILE_LAMBDA {
        if (!kStored<T> || prefetches <= 0) return;
        for (uintptr_t byte = 0; byte < 2 * kVecs * kVectorBytes<T>; byte += 64) {
          __builtin_prefetch(reinterpret_cast<const char*>(line + byte), 0, 2);
        }
        line += pitch;
        --prefetches;
      };
      clear_chains<kRows, kVecs>(chains);
#pragma GCC unroll 1
      for (int64_t i = 0; i < group / 2; ++i) {
        prefetch();
        load(low.get(), high.get(), kFirst);
        add(q, kFirst);
        if constexpr (kPairs && kLoadsTwice<kRows, kVecs>) {
          load(Ops::hide(low.get()), Ops::hide(high.get()), kSecond);
        } else {
          load(low.get(), high.get(), kSecond);
        }
        add(q + 1, kSecond);
        q += 2;
        low += 2 * kPanelWidth;
        high += 2 * kPanelWidth;
      }
      if (group % 2 != 0) {
        load(low.get(), high.get(), kFirst);
        add(q, kFirst);
      }
      unroll<kRows>([&](auto r) SIMDATTN_TILE_LAMBDA {
        unroll<kVecs>([&](auto c) SIMDATTN_TILE_LAMBDA {
          float* const s = a.s + r * a.lds + c * n;
          Ops::store(Ops::add(Ops::load(s), joined<kRows, kVecs, r * kVecs + c>(chains)), s);
        });
      });
    }
    const Ops::Vec scale = Ops::broadcast(a.scale);
    unroll<kRows>([&](auto r) SIMDATTN_TILE_LAMBDA {
      unroll<kVecs>([&](auto c) SIMDATTN_TILE_LAMBDA {
        float* const s = a.s + r * a.lds + c * n;
        Ops::store(Ops::mul_add(Ops::load(s), scale, Ops::zero()), s);
      });
    });
  });
}

/// What the tile of rows [first, first + rows) and kVecs vectors from column x on prefetches: its share of the panels to come,
/// 16 KiB ahead at least.
template <class T, int64_t kVecs>
SIMDATTN_TILE_INLINE PrefetchPlan chain_panels_to_come(const ScoreTile& a, int64_t x, int64_t first, int64_t rows) {
  const int64_t width = kVecs * Ops::lanes();
  const int64_t panels = (width + kPanelWidth - 1) / kPanelWidth;
  const int64_t steps = (a.dim + 1) / 2;
  constexpr int64_t kPair = 2 * static_cast<int64_t>(sizeof(T));
  const int64_t bytes = steps * kPanelWidth * kPair;
  const int64_t ahead = (16384 + panels * bytes - 1) / (panels * bytes) * panels;
  const int64_t from = share_of_rows(first, a.rows, steps);
  const int64_t to = share_of_rows(first + rows, a.rows, steps);
  const int64_t offset =
      (x / kPanelWidth + ahead) * a.panel_stride + bytes * (x % kPanelWidth) / kPanelWidth + from * width * kPair;
  return {address_at(static_cast<const char*>(a.panels), offset), width * kPair, to - from};
}

/// All rows against kVecs vectors of columns from column `x` on.
template <class T, int64_t kVecs>
SIMDATTN_TILE_INLINE void score_chains_strip(const ScoreTile& a, int64_t x) {
  constexpr int64_t kStep = std::is_same_v<T, bf16> ? 2 : 1;  // dimensions that lie side by side
  const auto column = [&](int64_t c) {
    const char* panel = static_cast<const char*>(a.panels) + c / kPanelWidth * a.panel_stride;
    return reinterpret_cast<const T*>(panel) + c % kPanelWidth * kStep;
  };
  const int64_t ldq = a.q_stride / static_cast<int64_t>(sizeof(float));
  for (RowTiles t(a.rows, kMostRows<kVecs>); t.first < a.rows; t.next()) {
    const ScoreChains<T> arguments = {
        static_cast<const float*>(a.q) + t.first * ldq,
        ldq,
        column(x),
        column(x + kVecs / 2 * Ops::lanes()),
        a.dim,
        &a.scale,
        a.s + t.first * a.lds + x,
        a.lds,
        kStored<T> && a.fetches() ? chain_panels_to_come<T, kVecs>(a, x, t.first, t.rows) : PrefetchPlan()};
    with_rows<kMostRows<kVecs>>(t.rows,
                                [&](auto r) SIMDATTN_TILE_LAMBDA { score_chains_tile<T, r, kVecs>(arguments); });
  }
}
template <class T>
void score_chains(const ScoreTile& a) {
  const FlushSubnormals flush;
  const int64_t n = Ops::lanes();
  const int64_t columns = a.n_panels * kPanelWidth;
  int64_t x = 0;
  if constexpr (kWide<T>) {
    if (a.rows <= Ops::kWideRows || Ops::kWideRows == Ops::kRows) {
      for (; x + 4 * n <= columns; x += 4 * n) score_chains_strip<T, 4>(a, x);
    }
  }
  for (; x < columns; x += 2 * n) score_chains_strip<T, 2>(a, x);
}

// ---------------------------------------------------------------------------------------------------------------------
// Values: lanes are columns

template <class T>
struct ValueChains {
  const float* w;
  int64_t ldw;
  const T* v;
  int64_t key_stride;
  int64_t first_group;  // keys up to the end of the group in which the first one is
  int64_t keys;
  float* o;
  int64_t ldo;
  const float* alpha;  // null: 1
  PrefetchPlan prefetch;
};

template <class T, int64_t kRows, int64_t kVecs>
SIMDATTN_TILE_FUNCTION void value_chains_tile(const ValueChains<T>& a) {
  constexpr bool kPairs = std::is_same_v<T, bf16>;  // registers hold even columns and odd columns apart
  Ops::with_registers([&](auto& chains, auto& columns) SIMDATTN_TILE_LAMBDA {
    const int64_t n = Ops::lanes();
    const int64_t ldw = a.ldw;
    const float* w = a.w;
    Cursor<const T> v(a.v);
    const int64_t key_stride = a.key_stride;
    const auto load = [&](const T* key) SIMDATTN_TILE_LAMBDA {
      if constexpr (kPairs) {
        unroll<kVecs / 2>([&](auto c) SIMDATTN_TILE_LAMBDA {
          const auto pairs = Ops::load_pairs(key + 2 * c * n);
          if constexpr (Ops::kMultipliesPairs) {
            Ops::at<2 * c>(columns) = pairs;
          } else {
            Ops::at<2 * c>(columns) = Ops::even_of(pairs);
            Ops::at<2 * c + 1>(columns) = Ops::odd_of(pairs);
          }
        });
      } else {
        unroll<kVecs>([&](auto c) SIMDATTN_TILE_LAMBDA { Ops::at<c>(columns) = Ops::load(key + c * n); });
      }
    };
    constexpr auto kFirst = std::integral_constant<int64_t, 0>();
    constexpr auto kSecond = std::integral_constant<int64_t, 1>();
    const auto add = [&](const float* x, auto chain) SIMDATTN_TILE_LAMBDA {
      add_to_chains<chain, kRows, kVecs>(x, ldw, chains,
                                         [&](Ops::Vec factor, auto c, Ops::Vec sum) SIMDATTN_TILE_LAMBDA {
                                           if constexpr (!kPairs || !Ops::kMultipliesPairs) {
                                             return Ops::mul_add(factor, Ops::at<c>(columns), sum);
                                           } else if constexpr (c % 2 == 0) {
                                             return Ops::mul_add_even(factor, Ops::at<c>(columns), sum);
                                           } else {
                                             return Ops::mul_add_odd(factor, Ops::at<c - 1>(columns), sum);
                                           }
                                         });
    };
    if (a.alpha != nullptr) {
      unroll<kRows>([&](auto r) SIMDATTN_TILE_LAMBDA {
        const Ops::Vec alpha = Ops::broadcast(a.alpha + r);
        unroll<kVecs>([&](auto c) SIMDATTN_TILE_LAMBDA {
          float* const o = a.o + r * a.ldo + c * n;
          Ops::store(Ops::mul_add(alpha, Ops::load(o), Ops::zero()), o);
        });
      });
    }
    uintptr_t line = a.prefetch.first;
    const uintptr_t pitch = static_cast<uintptr_t>(a.prefetch.pitch);
    int64_t prefetches = a.prefetch.count;
    int64_t left = a.keys;
    for (int64_t group = a.first_group < left ? a.first_group : left; left > 0;
         group = left < kChainGroup ? left : kChainGroup) {
      left -= group;
      const auto prefetch = [&]() SIMDATTN_TILE_LAMBDA {
        if (!kStored<T> || prefetches <= 0) return;
        for (uintptr_t byte = 0; byte < kVecs * kVectorBytes<T>; byte += 64) {
          __builtin_prefetch(reinterpret_cast<const char*>(line + byte), 0, 2);
          __builtin_prefetch(reinterpret_cast<const char*>(line + pitch + byte), 0, 2);
        }
        line += 2 * pitch;
        prefetches -= 2;
      };
      clear_chains<kRows, kVecs>(chains);
#pragma GCC unroll 1
      for (int64_t i = 0; i < group / 2; ++i) {
        prefetch();
        load(v.get());
        add(w, kFirst);
        load(v.get() + key_stride);
        add(w + 1, kSecond);
        w += 2;
        v += 2 * key_stride;
      }
      if (group % 2 != 0) {
        load(v.get());
        add(w, kFirst);
        w += 1;
        v += key_stride;
      }
      unroll<kRows>([&](auto r) SIMDATTN_TILE_LAMBDA {
        unroll<kVecs / 2>([&](auto c) SIMDATTN_TILE_LAMBDA {
          float* const o = a.o + r * a.ldo + 2 * c * n;
          const Ops::Vec even = joined<kRows, kVecs, r * kVecs + 2 * c>(chains);
          const Ops::Vec odd = joined<kRows, kVecs, r * kVecs + 2 * c + 1>(chains);
          Ops::store(Ops::add(Ops::load(o), kPairs ? Ops::zip_lower(even, odd) : even), o);
          Ops::store(Ops::add(Ops::load(o + n), kPairs ? Ops::zip_upper(even, odd) : odd), o + n);
        });
      });
    }
  });
}

/// What the tile of rows [first, first + rows) and kVecs vectors from column x on prefetches while it takes `keys` keys from
/// `key` on: its share of the next as many.
template <class T, int64_t kVecs>
SIMDATTN_TILE_INLINE PrefetchPlan chain_values_to_come(const ValueTile& a, int64_t key, int64_t keys, int64_t x,
                                                       int64_t first, int64_t rows) {
  constexpr int64_t kSize = static_cast<int64_t>(sizeof(T));
  const int64_t width = kVecs * Ops::lanes() * kSize;
  const int64_t from = first * keys / a.rows;
  const int64_t to = (first + rows) * keys / a.rows;
  const auto address = [&](int64_t offset) {
    return address_at(static_cast<const char*>(a.v), (key + keys) * a.key_stride + offset);
  };
  if (a.key_stride == a.dim * kSize) return {address(x * keys * kSize + from * width), width, to - from};
  return {address(from * a.key_stride + x * kSize), a.key_stride, to - from};
}

/// Columns [x, x + kVecs vectors) of `keys` keys from `key` on, for all rows.
template <class T, int64_t kVecs>
SIMDATTN_TILE_INLINE void value_chains_strip(const ValueTile& a, int64_t key, int64_t keys, int64_t x) {
  const char* group = static_cast<const char*>(a.v) + key * a.key_stride + x / kValueGroup * a.group_stride;
  const T* const v = reinterpret_cast<const T*>(group) + x % kValueGroup;
  const int64_t key_stride = a.key_stride / static_cast<int64_t>(sizeof(T));
  const int64_t first_group = kChainGroup - (a.first_key + key) % kChainGroup;
  const float* const alpha = key == 0 ? a.alpha : nullptr;
  for (RowTiles t(a.rows, kMostRows<kVecs>); t.first < a.rows; t.next()) {
    const ValueChains<T> arguments = {
        a.w + t.first * a.ldw + key,
        a.ldw,
        v,
        key_stride,
        first_group,
        keys,
        a.o + t.first * a.ldo + x,
        a.ldo,
        alpha != nullptr ? alpha + t.first : nullptr,
        kStored<T> && a.fetches() ? chain_values_to_come<T, kVecs>(a, key, keys, x, t.first, t.rows) : PrefetchPlan()};
    with_rows<kMostRows<kVecs>>(t.rows,
                                [&](auto r) SIMDATTN_TILE_LAMBDA { value_chains_tile<T, r, kVecs>(arguments); });
  }
}
/// Columns [x, end) of `keys` keys from `key` on; multiples of kValueGroup.
template <class T>
SIMDATTN_TILE_FUNCTION void value_chains_columns(const ValueTile& a, int64_t key, int64_t keys, int64_t x,
                                                 int64_t end) {
  const int64_t n = Ops::lanes();
  const bool contiguous = a.group_stride == kValueGroup * static_cast<int64_t>(sizeof(T));
  if constexpr (kWide<T>) {
    if ((a.rows <= Ops::kWideRows || Ops::kWideRows == Ops::kRows) && (contiguous || 4 * n <= kValueGroup)) {
      for (; x + 4 * n <= end; x += 4 * n) value_chains_strip<T, 4>(a, key, keys, x);
    }
  }
  for (; x < end; x += 2 * n) value_chains_strip<T, 2>(a, key, keys, x);
}

/// Values of f32 are rounded once for all rows, a group of keys and 16 KiB at a time, which stay in L1.
SIMDATTN_TILE_FUNCTION void round_values(const ValueTile& a, int64_t key, int64_t keys, int64_t x, int64_t columns,
                                         float* out) {
  const int64_t n = Ops::lanes();
  for (int64_t j = key; j < key + keys; ++j) {
    const char* const row = static_cast<const char*>(a.v) + j * a.key_stride + x / kValueGroup * a.group_stride;
    if (a.fetches()) {
      const uintptr_t next = address_at(row, kChainGroup * a.key_stride);
      for (uintptr_t byte = 0; byte < static_cast<uintptr_t>(columns) * sizeof(float); byte += 64) {
        __builtin_prefetch(reinterpret_cast<const char*>(next + byte), 0, 2);
      }
    }
    for (int64_t c = 0; c < columns; c += n, out += n) {
      const char* const at = row + c / kValueGroup * a.group_stride;
      Ops::store(Ops::rounded(Ops::load(reinterpret_cast<const float*>(at) + c % kValueGroup)), out);
    }
  }
}
/// Numbers in rows, whose columns lie side by side.
SIMDATTN_TILE_FUNCTION void rounded_value_chains(const ValueTile& a, int64_t columns) {
  constexpr int64_t kColumns = 128;
  alignas(64) float values[kChainGroup * kColumns];
  int64_t key = 0;
  do {
    const int64_t group = kChainGroup - (a.first_key + key) % kChainGroup;
    const int64_t keys = a.keys - key < group ? a.keys - key : group;
    for (int64_t x = 0; x < columns; x += kColumns) {
      ValueTile part = a;
      part.dim = columns - x < kColumns ? columns - x : kColumns;
      round_values(a, key, keys, x, part.dim, values);
      part.w = a.w + key;
      part.v = values;
      part.first_key = a.first_key + key;
      part.key_stride = part.dim * static_cast<int64_t>(sizeof(float));
      part.group_stride = kValueGroup * static_cast<int64_t>(sizeof(float));
      part.keys = keys;
      part.o = a.o + x;
      part.alpha = key == 0 ? a.alpha : nullptr;
      part.fetch = Fetch::kNone;
      value_chains_columns<float>(part, 0, keys, 0, part.dim);
    }
    key += group;
  } while (key < a.keys);
}
/// The columns from `x` on, less than kValueGroup of them, by way of copies that have all. Packed values have all.
template <class T>
SIMDATTN_TILE_FUNCTION void last_value_chains(const ValueTile& a, int64_t x) {
  const size_t columns = static_cast<size_t>(a.dim - x);
  alignas(64) T values[kChainGroup * kValueGroup] = {};
  alignas(64) float sums[Ops::kRows * kValueGroup] = {};
  for (int64_t key = 0; key < a.keys || key == 0;) {
    const int64_t group = kChainGroup - (a.first_key + key) % kChainGroup;
    const int64_t keys = a.keys - key < group ? a.keys - key : group;
    for (int64_t j = 0; j < keys; ++j) {
      const char* from = static_cast<const char*>(a.v) + (key + j) * a.key_stride + x / kValueGroup * a.group_stride;
      __builtin_memcpy(values + j * kValueGroup, from, columns * sizeof(T));
    }
    for (RowTiles t(a.rows, Ops::kRows); t.first < a.rows; t.next()) {
      float* const o = a.o + t.first * a.ldo + x;
      for (int64_t r = 0; r < t.rows; ++r)
        __builtin_memcpy(sums + r * kValueGroup, o + r * a.ldo, columns * sizeof(float));
      ValueTile part = a;
      part.w = a.w + t.first * a.ldw + key;
      part.rows = t.rows;
      part.v = values;
      part.first_key = a.first_key + key;
      part.key_stride = kValueGroup * static_cast<int64_t>(sizeof(T));
      part.group_stride = part.key_stride;
      part.keys = keys;
      part.o = sums;
      part.ldo = kValueGroup;
      part.alpha = a.alpha != nullptr && key == 0 ? a.alpha + t.first : nullptr;
      part.fetch = Fetch::kNone;
      if constexpr (kStored<T>) value_chains_columns<T>(part, 0, keys, 0, kValueGroup);
      else rounded_value_chains(part, kValueGroup);
      for (int64_t r = 0; r < t.rows; ++r)
        __builtin_memcpy(o + r * a.ldo, sums + r * kValueGroup, columns * sizeof(float));
    }
    key += group;
  }
}

/// Rows from beyond the caches are read in blocks of whole groups, all columns of a block before the next block, so that
/// memory is read in order; meanwhile the next block is prefetched. 128 KiB, which L2 holds: a line is read by one tile, and each tile
/// begins and joins chains, so that smaller blocks cost more.
SIMDATTN_TILE_INLINE int64_t value_block(const ValueTile& a, int64_t size) {
  const int64_t in_block = 131072 / (a.dim * size) / kChainGroup * kChainGroup;
  return a.fetches() ? (in_block > kChainGroup ? in_block : kChainGroup) : kKeyBlock;
}
/// Unrounded: of rows; float: of packed groups, which are whole.
template <class T>
void value_chains(const ValueTile& a) {
  const FlushSubnormals flush;
  const int64_t whole = a.dim / kValueGroup * kValueGroup;
  if constexpr (std::is_same_v<T, Unrounded>) {
    rounded_value_chains(a, whole);
  } else {
    const int64_t block = value_block(a, static_cast<int64_t>(sizeof(T)));
    int64_t key = 0;
    do {
      // The first block ends with a group.
      const int64_t most = block - (a.first_key + key) % kChainGroup;
      value_chains_columns<T>(a, key, a.keys - key < most ? a.keys - key : most, 0, whole);
      key += most;
    } while (key < a.keys);
  }
  if constexpr (!std::is_same_v<T, float>) {
    if (whole < a.dim) last_value_chains<T>(a, whole);
  }
}
