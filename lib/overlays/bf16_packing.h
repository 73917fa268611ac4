// Queries, keys, values and weights in the formats of overlays.h, and what the kernels have in common.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "lib/kernels/bf16_chains.h"
#include "lib/kernels/softmax.h"
#include "lib/overlays/overlays.h"
#include "lib/simd/blocks.h"
#include "lib/simd/memory.h"

namespace simdattn {
namespace {

static_assert(kLanes == 16);

/// Bytes of a pair of 32 columns; of a group of them; of 32 columns of packed values.
constexpr int64_t kPairBytes = kPanelWidth * 4, kGroupBytes = kChainGroup / 2 * kPairBytes,
                  kBlockBytes = kKeyBlock / 2 * kPairBytes;
/// How far ahead panels are prefetched; rows of values.
constexpr int64_t kAheadBytes = 16384, kKeysAhead = 2 * kChainGroup;

/// Number of a unit, counted on, at place i in memory. Pair p is the places 2 p, its lower half, and 2 p + 1.
template <int64_t kUnit, class I>
constexpr I number_at(I i) {
  return kUnit == 2 ? i : i / 4 * 4 + (i % 2 == 0 ? 2 : 0) + i / 2 % 2;
}

/// 32 numbers of 16 bits as units.
template <int64_t kUnit>
SIMDATTN_INLINE Bits32 arranged(Bits32 v) {
  return lanes_from<uint16_t>(v, v, [](size_t i) { return number_at<kUnit>(i); });
}
/// The upper halves of lanes of low and high, arranged.
template <int64_t kUnit>
SIMDATTN_INLINE Bits32 arranged_upper(Floats low, Floats high) {
  return lanes_from<uint16_t>(bits_of(low), bits_of(high), [](size_t i) { return 2 * number_at<kUnit>(i) + 1; });
}

/// 32 numbers of a row as bf16, arranged, those from n on zeros.
template <int64_t kUnit, class T>
SIMDATTN_INLINE Bits32 numbers(const T* row, int64_t n) {
  constexpr bool kStored = std::is_same_v<T, bf16>;
  const auto as_bf16 = [](Floats v) SIMDATTN_LAMBDA { return kStored ? v : rounded_to_bf16(v); };
  if (n < kChainGroup) {
    const auto part = [&](int64_t from) SIMDATTN_LAMBDA {
      return n > from ? load(row + from, first_lanes(smaller(n - from, kLanes))) : Floats(0.0f);
    };
    return arranged_upper<kUnit>(as_bf16(part(0)), as_bf16(part(kLanes)));
  }
  if constexpr (kStored) return arranged<kUnit>(load_pairs(row));
  else return arranged_upper<kUnit>(as_bf16(load(row)), as_bf16(load(row + kLanes)));
}

/// f(pair, whether its lower half is a key of [first, end), whether its upper one is) for pairs with such a key.
template <int64_t kUnit, class F>
SIMDATTN_INLINE void for_each_pair_of_keys(int64_t first, int64_t end, const F& f) {
  for (int64_t p = first / kUnit * kUnit / 2; p < pairs_of<kUnit>(end); ++p) {
    const auto here = [&](int64_t place) {
      const int64_t key = number_at<kUnit>(place);
      return key >= first && key < end;
    };
    f(p, here(2 * p), here(2 * p + 1));
  }
}
constexpr uint32_t pair_mask(bool lower, bool upper) { return (lower ? 0xFFFFu : 0) | (upper ? 0xFFFF0000u : 0); }

/// Keys [first, first + n), 32 columns, those from `columns` on zeros, into packed values. Other keys keep their
/// halves.
template <int64_t kUnit, class T>
void interleave(const char* rows, int64_t stride, int64_t first, int64_t n, int64_t columns, char* block) {
  for_each_pair_of_keys<kUnit>(first, first + n, [&](int64_t p, bool lower, bool upper) SIMDATTN_LAMBDA {
    const auto row = [&](int64_t place, bool here) SIMDATTN_LAMBDA {
      const char* const at = rows + (number_at<kUnit>(place) - first) * stride;
      return here ? numbers<2>(reinterpret_cast<const T*>(at), columns) : Bits32(0u);
    };
    const Bits32 a = row(2 * p, lower), b = row(2 * p + 1, upper);
    const auto put = [&](Bits32 pairs, char* out) SIMDATTN_LAMBDA {
      const Bits32 mask(pair_mask(lower, upper));
      if (!lower || !upper) pairs = (pairs & mask) | (Bits32::load_unaligned(out) & ~mask);
      pairs.store_unaligned(out);
    };
    put(zip_lower<uint16_t>(a, b), block + p * kPairBytes);
    put(zip_upper<uint16_t>(a, b), block + p * kPairBytes + 64);
  });
}

// ---- What kernels have in common

/// Bytes [from, to) of what is `ahead` bytes behind `data`, where there may be nothing.
inline void fetch(const char* data, int64_t ahead, int64_t from, int64_t to) {
  const auto line = reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(ahead);
  for (int64_t i = from / 64 * 64; i < to; i += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(line + static_cast<uintptr_t>(i)), 0, 2);
  }
}

/// o = alpha * o, but for the sign of a zero, which finish takes off anyway. Not inlined: see FlushSubnormals.
[[gnu::noinline]] void scale_sums(const ValueTile& a, int64_t columns) {
  for (int64_t r = 0; r < a.rows && a.alpha != nullptr; ++r) {
    float* const o = a.o + r * a.ldo;
    const Floats alpha(a.alpha[r]);
    for_each_batch(columns,
                   [&](int64_t c, auto part) SIMDATTN_LAMBDA { store(load(o + c, part) * alpha, o + c, part); });
  }
}

/// s = scale * s for sums of `rows` rows and some columns, unless the softmax does so. Not inlined: see
/// FlushSubnormals.
[[gnu::noinline]] void scale_scores(const ScoreTile& a, float* s, int64_t rows, int64_t columns) {
  const Floats factor(a.scale);
  for (int64_t r = 0; r < rows && !a.unscaled; ++r, s += a.lds) {
    for (int64_t c = 0; c < columns; c += 16) store(chain_step(load(s + c), factor, Floats(0.0f)), s + c);
  }
}

/// The left operand of products: where it begins, bytes between its rows, and between 32 numbers of a row.
struct LeftRows {
  const char* data;
  int64_t stride;
  int64_t step;
};

/// Some keys, the first of which begins a chain group, and 32 columns of theirs, or as many as are left, or several
/// times 32. Keys of a chain group that are not the call's are zeros.
struct ValueColumns {
  int64_t key, keys;
  int64_t column, columns;
  int64_t groups;     // of 32 columns; of several all are whole
  const char* pairs;  // packed values; null: a whole group of keys in rows
  const char* rows;

  /// f(weights, sums, floats between rows of sums) for n rows from `row` on and these columns: whole groups of sums.
  template <class F>
  SIMDATTN_INLINE void with_sums(const ValueTile& a, int64_t row, int64_t n, const F& f) const {
    constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
    const LeftRows w = {reinterpret_cast<const char*>(a.w + row * a.ldw + (key - a.first_key)), a.ldw * kFloat,
                        kChainGroup * kFloat};
    float* const o = a.o + row * a.ldo + column;
    if (columns >= kValueGroup) return f(w, o, a.ldo);
    alignas(64) float sums[Amx::kRows * kValueGroup];
    for (int64_t r = 0; r < n; ++r) std::copy_n(o + r * a.ldo, columns, sums + r * kValueGroup);
    f(w, sums, kValueGroup);
    for (int64_t r = 0; r < n; ++r) std::copy_n(sums + r * kValueGroup, columns, o + r * a.ldo);
  }
};
/// f(ValueColumns) of packed values: keys of a chain group that is not whole, whole ones, keys of another one; or all
/// at once, if the other keys of the chain groups may be added. `groups`: of columns, that f takes at once, or 1.
template <int64_t kUnit, class F>
SIMDATTN_INLINE void for_each_packed(const ValueTile& a, int64_t groups, const F& f) {
  const int64_t end = a.first_key + a.keys;
  for (int64_t to, from = a.first_key; from < end; from = to) {
    const int64_t key = from / kChainGroup * kChainGroup;
    const bool cuts = !a.whole_groups && (from > key || end - key < kChainGroup);
    to = a.whole_groups ? end : cuts ? std::min(key + kChainGroup, end) : end / kChainGroup * kChainGroup;
    for (int64_t n, c = 0; c < a.dim; c += n * kValueGroup) {
      n = !cuts && a.dim - c > (groups - 1) * kValueGroup ? groups : 1;
      const char* pairs = static_cast<const char*>(a.v) + c / kValueGroup * kBlockBytes + key / 2 * kPairBytes;
      alignas(64) char cut[kGroupBytes];
      if (cuts) {
        std::memset(cut, 0, sizeof(cut));
        for_each_pair_of_keys<kUnit>(from - key, to - key, [&](int64_t p, bool lower, bool upper) SIMDATTN_LAMBDA {
          for (int64_t at = p * kPairBytes; at < (p + 1) * kPairBytes; at += 64) {
            (Bits32::load_unaligned(pairs + at) & Bits32(pair_mask(lower, upper))).store_unaligned(cut + at);
          }
        });
        pairs = cut;
      }
      f(ValueColumns{key, to - key, c, n * kValueGroup, n, pairs, nullptr});
    }
  }
}
/// f(ValueColumns) of values of bf16 in rows: a chain group of keys after the other, as they lie in memory. kInPlace:
/// whole ones are left there, of `groups` groups of columns at once, or 1, and f fetches what follows.
template <int64_t kUnit, bool kInPlace, class F>
SIMDATTN_INLINE void for_each_in_rows(const ValueTile& a, int64_t groups, const F& f) {
  const int64_t end = a.first_key + a.keys;
  alignas(64) char pairs[kGroupBytes];
  for (int64_t key = a.first_key / kChainGroup * kChainGroup; key < end && a.keys > 0; key += kChainGroup) {
    const int64_t from = std::max(a.first_key - key, int64_t{0}), keys = std::min(end - key, kChainGroup) - from;
    for (int64_t n, c = 0; c < a.dim; c += n * kValueGroup) {
      n = kInPlace && keys == kChainGroup && a.dim - c >= groups * kValueGroup ? groups : 1;
      const int64_t columns = std::min(n * kValueGroup, a.dim - c);
      const char* const rows =
          static_cast<const char*>(a.v) + (key + from - a.first_key) * a.key_stride + c / kValueGroup * a.group_stride;
      const bool in_place = kInPlace && keys == kChainGroup && columns >= kValueGroup;
      if (!in_place) {
        for (int64_t j = 0; a.fetches() && j < keys; ++j)
          fetch(rows + j * a.key_stride, kKeysAhead * a.key_stride, 0, 1);
        if (keys < kChainGroup) std::memset(pairs, 0, kGroupBytes);
        interleave<kUnit, bf16>(rows, a.key_stride, from, keys, columns, pairs);
      }
      f(ValueColumns{key, kChainGroup, c, columns, n, in_place ? nullptr : pairs, rows});
    }
  }
}

// ---- Weights

/// One sweep over scores scales them, subtracts, takes exponentials, rounds them to bf16, adds them, and leaves them in
/// their places as operands. A product below the smallest normal number counts as 0 in the maximum; in an exponential
/// it cannot be told from 0.
template <int64_t kUnit>
struct Bf16Weights {
  static float scaled(const SoftmaxTile& a, float x) {
    return a.scale != 1.0f ? scalar::flushed_fma(x, a.scale, 0.0f) : x;
  }
  static float weigh(const SoftmaxTile& a, float* s, Columns see, float base) {
    const Floats factor(a.scale), reference(base);
    Registers<1> sum;
    clear(sum);
    // `count` groups from column j on; `whole`: all of their columns are seen.
    const auto add = [&](int64_t j, auto count, auto whole) SIMDATTN_LAMBDA {
      Registers<2 * count> e;
      unroll<2 * count>([&](auto i) SIMDATTN_LAMBDA {
        const int64_t c = j + 16 * i;
        if constexpr (whole) {
          reg<i>(e) = load(s + c) * factor - reference;
        } else {
          const auto lane = [c](int64_t of) SIMDATTN_LAMBDA { return smaller(larger(of - c, 0), 16); };
          const Lanes seen = lanes(lane(see.lo), lane(see.hi));
          reg<i>(e) = select(mask_of(seen), load(s + c, seen) * factor, Floats(-kInfinity)) - reference;
        }
      });
      exp_each<2 * count>(e);
      unroll<2 * count>([&](auto i) SIMDATTN_LAMBDA {
        reg<i>(e) = rounded_to_bf16(reg<i>(e));
        reg<0>(sum) = reg<0>(sum) + reg<i>(e);
      });
      unroll<count>([&](auto g) SIMDATTN_LAMBDA {
        arranged_upper<kUnit>(reg<2 * g>(e), reg<2 * g + 1>(e)).store_unaligned(s + j + kChainGroup * g);
      });
    };
    for (int64_t j = 0; j < a.columns;) {
      if (see.lo <= j && j + 2 * kChainGroup <= see.hi) {
        add(j, constant<2>, std::true_type());
        j += 2 * kChainGroup;
        continue;
      }
      if (see.hi <= j || see.lo >= j + kChainGroup) store(Floats(0.0f), s + j);
      else add(j, constant<1>, std::false_type());
      j += kChainGroup;
    }
    return fold(sum);
  }
  static void prepare(const float* in, float* out, int64_t n) {
    for (int64_t j = 0; j < n; j += kChainGroup) numbers<kUnit>(in + j, n - j).store_unaligned(out + j);
  }
};

}  // namespace

template <class K, class T>
void Bf16Packing<K, T>::query(const void* row, void* query, int64_t dim) {
  for (int64_t d = 0; d < dim; d += kChainGroup) {
    numbers<K::kUnit>(static_cast<const T*>(row) + d, dim - d).store_unaligned(static_cast<char*>(query) + 2 * d);
  }
}

template <class K, class T>
void Bf16Packing<K, T>::keys(const PackKeys& a) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  constexpr bool kInPlace = std::is_same_v<T, bf16>;
  for (int64_t first = 0; first < kPanelWidth; first += 16) {
    for (int64_t d = 0; d < a.dim; d += kChainGroup) {
      char* const panel = static_cast<char*>(a.panel) + d / 2 * kPairBytes + first * 4;
      const int64_t lanes = pairs_of<K::kUnit>(std::min(kChainGroup, a.dim - d));
      // A stride beyond the last key is not looked at: of a single key it is any number.
      const char* rows = static_cast<const char*>(a.from) + (first < a.keys ? first * a.token_stride : 0) + d * kSize;
      int64_t stride = a.token_stride;
      for (int64_t j = 0; a.stream && j < 16; ++j) __builtin_prefetch(rows + (kPanelWidth + j) * stride, 0, 2);
      alignas(64) char copy[16][64];
      if (!kInPlace || d + kChainGroup > a.dim || first + 16 > a.keys) {
        for (int64_t j = 0; j < 16; ++j) {
          const bool is_key = first + j < a.keys;
          const auto* const row = reinterpret_cast<const T*>(rows + (is_key ? j * stride : 0));
          (is_key ? numbers<2>(row, a.dim - d) : Bits32(0u)).store_unaligned(copy[j]);
        }
        rows = copy[0];
        stride = 64;
      }
      // Block b of a vector is of row k + 4 b, so that 16 rows are transposed within blocks.
      for (int64_t i = 0; i < lanes; i += 4) {
        transpose_blocks<uint32_t>(
            [&](int64_t k) SIMDATTN_LAMBDA {
              const Floats v =
                  load_blocks_at([&](int64_t b) SIMDATTN_LAMBDA { return rows + (k + 4 * b) * stride + 4 * i; });
              return float_of(arranged<K::kUnit>(bits_of(v)));
            },
            [&](int64_t k, Floats v) SIMDATTN_LAMBDA {
              if (i + k < lanes) bits_of(v).store_unaligned(panel + (i + k) * kPairBytes);
            });
      }
    }
  }
}

template <class K, class T>
void Bf16Packing<K, T>::panel(const PackKeys& a) {
  for (int64_t p = 0; p < pairs_of<K::kUnit>(a.dim); ++p) {
    for (int64_t first = 0; first < kPanelWidth; first += 16) {
      const auto number = [&](int64_t place) {
        const int64_t d = number_at<K::kUnit>(place);
        if (d >= a.dim) return Bits32(0u);
        if constexpr (std::is_same_v<T, bf16>) {
          const Bits32 two = load_pairs(static_cast<const bf16*>(a.from) + d / 2 * 2 * kPanelWidth + 2 * first);
          return d % 2 == 0 ? two << 16 : two;
        } else {
          return bits_of(rounded_to_bf16(load(static_cast<const T*>(a.from) + d * kPanelWidth + first)));
        }
      };
      upper_words(number(2 * p), number(2 * p + 1))
          .store_unaligned(static_cast<char*>(a.panel) + p * kPairBytes + 4 * first);
    }
  }
}

template <class K, class T>
void Bf16Packing<K, T>::values(const PackValues& a) {
  const char* rows = static_cast<const char*>(a.rows) + a.column * static_cast<int64_t>(sizeof(T));
  for (int64_t c = 0; c < a.columns; c += kValueGroup) {
    interleave<K::kUnit, T>(rows + c * static_cast<int64_t>(sizeof(T)), a.token_stride, a.first, a.keys,
                            std::min(kValueGroup, a.columns - c), static_cast<char*>(a.packed) + c * kKeyBlock * 2);
  }
}

}  // namespace simdattn
