// The kernels of Arithmetic::kInt8 over a backend's vector operations. Text: a backend includes it inside its own unnamed
// namespace, once per instruction set, after lib/cursor.h, lib/row_tiles.h and lib/int8_operands.h and with these macros:
//   SIMDATTN_INT8_INLINE, SIMDATTN_INT8_LAMBDA, SIMDATTN_INT8_SHARED    what small functions, lambdas and large functions need
//
// O names the operations. Vectors F of f32 and I of int32 have lanes() lanes, a power of two up to 16; a lane of I is also a
// cell: four bytes that are multiplied with four others.
//   kPairs                   multiplies 16-bit numbers: bytes 0 and 2 of a cell, then 1 and 3; else all four bytes
//   kFlipKeys, kFlipValues   takes columns + 128, unsigned; then sums start at -128 times the sum of the other factors
//   kRows                    rows of the largest register tile, which is two vectors wide
//   dot<kWeights>(sum, second, x, column)     adds the products of a cell x of a row; second: more room for sums, at will
//   total(sum, second)
//   store_bytes<kUnsigned>(v, out), (v0, v1, v2, v3, out)     the lowest byte of each lane, which is all of its number
//   kHalves                  has max_halves(), of 16-bit numbers, and cells(): four vectors of numbers of a byte as the bytes of cells
//   kMatrix                  multiplies two rows by two columns where there are two rows: see int8_matrix-inl.h
//
// Exact in any order: 255 * 127 * 256 keys and 127 * 127 * 65536 dimensions are below 2^31.

/// The integers of vectors that hold queries or weights, with what has to be known of them. Cells of pairs: two of 16 bits.
template <class O>
inline constexpr int64_t kInt8CellBytes = O::kPairs ? 8 : 4;

template <class O>
int64_t int8_kernel_query_bytes(int64_t dim) {
  return int8_query_numbers(dim) / 4 * kInt8CellBytes<O> + 64;
}

// ---- Quantisation ----

/// Two numbers of bf16 a lane, without their signs; and the larger one of each two as f32.
template <class O>
SIMDATTN_INT8_INLINE typename O::I int8_pair_magnitudes(const bf16* x) {
  return O::and_int(O::load_int(x), O::set_int(0x7FFF7FFF));
}
template <class O>
SIMDATTN_INT8_INLINE typename O::I int8_larger_of_pairs(typename O::I pairs) {
  return O::max_int(O::template left<16>(pairs), O::and_int(pairs, O::set_int(0x7FFF0000)));
}

/// The largest magnitude of n numbers; NaN if one of them is NaN or infinite. As integers, magnitudes order like the numbers.
template <class O, class T>
SIMDATTN_INT8_SHARED float int8_largest(const T* x, int64_t n) {
  const int64_t lanes = O::lanes();
  const typename O::I magnitude = O::set_int(0x7FFFFFFF);
  typename O::I m0 = O::set_int(0), m1 = m0;
  int64_t i = 0;
  if constexpr (O::kHalves && std::is_same_v<T, bf16>) {
    typename O::I pairs = m0;
    for (; i + 2 * lanes <= n; i += 2 * lanes) pairs = O::max_halves(pairs, int8_pair_magnitudes<O>(x + i));
    m0 = int8_larger_of_pairs<O>(pairs);
  }
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    m0 = O::max_int(m0, O::and_int(O::bits(O::wide(x + i)), magnitude));
    m1 = O::max_int(m1, O::and_int(O::bits(O::wide(x + i + lanes)), magnitude));
  }
  for (; i < n; i += lanes) {
    const typename O::F v = i + lanes <= n ? O::wide(x + i) : O::wide_n(x + i, n - i);
    m0 = O::max_int(m0, O::and_int(O::bits(v), magnitude));
  }
  return int8_magnitude(O::largest_int(O::max_int(m0, m1)));
}

/// n numbers as bytes, whole vectors of them: zeros past the end. With kSum returns their sum.
template <class O, bool kSum, class T>
SIMDATTN_INT8_SHARED int32_t int8_bytes(const T* x, int64_t n, float inverse, int8_t* out) {
  const int64_t lanes = O::lanes();
  if (inverse == 0.0f) {
    std::memset(out, 0, static_cast<size_t>((n + lanes - 1) / lanes * lanes));
    return 0;
  }
  const typename O::F factor = O::set(inverse);
  typename O::I total = O::set_int(0);
  const auto integers = [&](typename O::F v) SIMDATTN_INT8_LAMBDA {
    const typename O::I i = O::nearest(O::mul(v, factor));
    if constexpr (kSum) total = O::add_int(total, i);
    return i;
  };
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    const typename O::I i0 = integers(O::wide(x + i)), i1 = integers(O::wide(x + i + lanes));
    const typename O::I i2 = integers(O::wide(x + i + 2 * lanes)), i3 = integers(O::wide(x + i + 3 * lanes));
    O::template store_bytes<false>(i0, i1, i2, i3, out + i);
  }
  for (; i + lanes <= n; i += lanes) O::template store_bytes<false>(integers(O::wide(x + i)), out + i);
  if (i < n) O::template store_bytes<false>(integers(O::wide_n(x + i, n - i)), out + i);
  if constexpr (kSum) return O::sum_int(total);
  return 0;
}

/// Bytes as the cells of pairs: n of them, a multiple of 4.
template <class Byte>
void int8_pair_cells(const Byte* bytes, int64_t n, void* out) {
  int16_t* cells = static_cast<int16_t*>(out);
  for (int64_t i = 0; i < n; i += 4) {
    cells[i] = bytes[i];
    cells[i + 1] = bytes[i + 2];
    cells[i + 2] = bytes[i + 1];
    cells[i + 3] = bytes[i + 3];
  }
}

template <class O, class T>
void int8_prepare_query(const void* row, void* query, int64_t dim) {
  const T* x = static_cast<const T*>(row);
  const RowScale quantise(int8_largest<O>(x, dim));
  char* out = static_cast<char*>(query);
  Int8Query info = {quantise.scale, 0};
  const int64_t numbers = int8_query_numbers(dim);
  const int64_t info_at = numbers / 4 * kInt8CellBytes<O>;
  if constexpr (O::kPairs) {
    constexpr int64_t kChunk = 256;  // dimensions at a time
    int8_t bytes[kChunk];
    for (int64_t d = 0; d < numbers; d += kChunk) {
      const int64_t n = numbers - d < kChunk ? numbers - d : kChunk;
      const int64_t own = dim - d < n ? dim - d : n;
      std::memset(bytes, 0, sizeof(bytes));
      int8_bytes<O, false>(x + d, own, quantise.inverse, bytes);
      int8_pair_cells(bytes, n, out + d / 4 * kInt8CellBytes<O>);
    }
  } else {
    std::memset(out + numbers - 64, 0, 64);
    info.sum = int8_bytes<O, O::kFlipKeys>(x, dim, quantise.inverse, reinterpret_cast<int8_t*>(out));
  }
  std::memset(out + info_at, 0, 64);
  std::memcpy(out + info_at, &info, sizeof(info));
}

// ---- Packing ----

/// Rows are quantised as bytes, and their cells transposed like numbers of f32.
template <class O, class T>
void int8_pack_keys(const PackKeys& a) {
  constexpr int64_t kChunk = 256;  // dimensions at a time
  alignas(64) int8_t rows[kPanelWidth * kChunk];
  float inverse[kPanelWidth];
  int8_t* panel = static_cast<int8_t*>(a.panel);
  float* scales = reinterpret_cast<float*>(panel + int8_panel_numbers(a.dim));
  const auto row = [&](int64_t j) SIMDATTN_INT8_LAMBDA {
    return reinterpret_cast<const T*>(static_cast<const char*>(a.from) + j * a.token_stride);
  };
  for (int64_t j = 0; j < a.keys; ++j) {
    if (a.stream) {
      const uintptr_t next = address_at(reinterpret_cast<const char*>(row(j)), kPanelWidth * a.token_stride);
      for (uintptr_t byte = 0; byte < static_cast<uintptr_t>(a.dim) * sizeof(T); byte += 64) {
        __builtin_prefetch(reinterpret_cast<const char*>(next + byte), 0, 2);
      }
    }
    const RowScale quantise(int8_largest<O>(row(j), a.dim));
    scales[j] = quantise.scale;
    inverse[j] = quantise.inverse;
  }
  for (int64_t j = a.keys; j < kPanelWidth; ++j) scales[j] = 0.0f;
  for (int64_t d = 0; d < a.dim; d += kChunk) {
    const int64_t n = a.dim - d < kChunk ? a.dim - d : kChunk;
    for (int64_t j = 0; j < a.keys; ++j) int8_bytes<O, false>(row(j) + d, n, inverse[j], rows + j * kChunk);
    O::transpose_cells(rows, kChunk, a.keys, (n + 3) / 4, panel + d * kPanelWidth);
  }
}

/// Four vectors of numbers times factors as the four bytes of cells, where a mask allows it.
template <class O>
SIMDATTN_INT8_INLINE typename O::I int8_quantised_cells(typename O::F x0, typename O::F x1, typename O::F x2,
                                                        typename O::F x3, typename O::F f0, typename O::F f1,
                                                        typename O::F f2, typename O::F f3, typename O::I mask) {
  const typename O::I b0 = O::nearest(O::mul(x0, f0)), b1 = O::nearest(O::mul(x1, f1));
  const typename O::I b2 = O::nearest(O::mul(x2, f2)), b3 = O::nearest(O::mul(x3, f3));
  if constexpr (O::kHalves) {
    return O::and_int(O::cells(b0, b1, b2, b3), mask);
  } else {
    const typename O::I byte = O::set_int(255);
    const typename O::I low = O::or_int(O::and_int(b0, byte), O::template left<8>(O::and_int(b1, byte)));
    const typename O::I high = O::or_int(O::template left<16>(O::and_int(b2, byte)), O::template left<24>(b3));
    return O::and_int(O::or_int(low, high), mask);
  }
}

/// Dimension d of columns [c, c + lanes) of a panel of the storage type.
template <class O, class T>
SIMDATTN_INT8_INLINE typename O::F int8_panel_column(const T* panel, int64_t d, int64_t c) {
  if constexpr (std::is_same_v<T, bf16>) {
    const bf16* pairs = panel + (d / 2 * kPanelWidth + c) * 2;
    return d % 2 == 0 ? O::even(pairs) : O::odd(pairs);
  } else {
    return O::wide(panel + d * kPanelWidth + c);
  }
}

template <class O, class T>
void int8_pack_panel(const PackKeys& a) {
  const T* from = static_cast<const T*>(a.from);
  int8_t* panel = static_cast<int8_t*>(a.panel);
  float* scales = reinterpret_cast<float*>(panel + int8_panel_numbers(a.dim));
  const typename O::I magnitude = O::set_int(0x7FFFFFFF);
  alignas(64) float inverse[16];
  alignas(64) int32_t allowed[16];
  for (int64_t c = 0; c < kPanelWidth; c += O::lanes()) {
    typename O::I largest = O::set_int(0);
    int64_t looked = 0;
    if constexpr (O::kHalves && std::is_same_v<T, bf16>) {
      for (; looked + 2 <= a.dim; looked += 2) {
        largest = O::max_halves(largest, int8_pair_magnitudes<O>(from + (looked / 2 * kPanelWidth + c) * 2));
      }
      largest = int8_larger_of_pairs<O>(largest);
    }
    for (int64_t d = looked; d < a.dim; ++d) {
      largest = O::max_int(largest, O::and_int(O::bits(int8_panel_column<O>(from, d, c)), magnitude));
    }
    O::store_int(largest, allowed);
    for (int64_t i = 0; i < O::lanes(); ++i) {
      const RowScale quantise(int8_magnitude(allowed[i]));
      scales[c + i] = quantise.scale;
      inverse[i] = quantise.inverse;
      allowed[i] = quantise.inverse == 0.0f ? 0 : -1;
    }
    const typename O::F f = O::load(inverse);
    const typename O::I mask = O::load_int(allowed);
    const typename O::F zero = O::set(0.0f);
    for (int64_t d = 0; d < a.dim; d += 4) {
      const typename O::F x0 = int8_panel_column<O>(from, d, c);
      const typename O::F x1 = d + 1 < a.dim ? int8_panel_column<O>(from, d + 1, c) : zero;
      const typename O::F x2 = d + 2 < a.dim ? int8_panel_column<O>(from, d + 2, c) : zero;
      const typename O::F x3 = d + 3 < a.dim ? int8_panel_column<O>(from, d + 3, c) : zero;
      O::store_int(int8_quantised_cells<O>(x0, x1, x2, x3, f, f, f, f, mask), panel + (d / 4 * kPanelWidth + c) * 4);
    }
  }
}

/// Four keys at a time, which share cells. Of a cell that other keys have a part in, theirs is kept.
template <class O, class T>
void int8_pack_values(const PackValues& a) {
  int8_t* block = static_cast<int8_t*>(a.block);
  float* scales = reinterpret_cast<float*>(block + int8_values_numbers(a.columns));
  if (a.keys == 0) return;
  const int64_t end = a.first + a.keys;
  const int64_t lanes = O::lanes();
  for (int64_t key = a.first / 4 * 4; key < end; key += 4) {
    const T* row[4];
    float inverse[4];
    uint32_t allowed = 0, kept = 0;
    for (int64_t i = 0; i < 4; ++i) {
      const bool here = key + i >= a.first && key + i < end;
      const int64_t j = here ? key + i - a.first : 0;
      row[i] = reinterpret_cast<const T*>(static_cast<const char*>(a.rows) + j * a.token_stride);
      inverse[i] = 0.0f;
      if (here) {
        const RowScale quantise(int8_largest<O>(row[i], a.dim));
        scales[key + i] = quantise.scale;
        inverse[i] = quantise.inverse;
      } else {
        kept |= 0xFFu << 8 * i;
      }
      if (inverse[i] != 0.0f) allowed |= 0xFFu << 8 * i;
      row[i] += a.column;
    }
    const typename O::F f0 = O::set(inverse[0]), f1 = O::set(inverse[1]), f2 = O::set(inverse[2]),
                        f3 = O::set(inverse[3]);
    const typename O::I mask = O::set_int(static_cast<int32_t>(allowed));
    const typename O::I keep = O::set_int(static_cast<int32_t>(kept));
    for (int64_t c = 0; c < int8_values_numbers(a.columns) / kKeyBlock; c += lanes) {
      int8_t* out = block + c / kValueGroup * kValueGroup * kKeyBlock + (key * kValueGroup / 4 + c % kValueGroup) * 4;
      typename O::I cells = O::set_int(0);
      if (c + lanes <= a.columns) {
        cells = int8_quantised_cells<O>(O::wide(row[0] + c), O::wide(row[1] + c), O::wide(row[2] + c),
                                        O::wide(row[3] + c), f0, f1, f2, f3, mask);
      } else if (c < a.columns) {
        const int64_t n = a.columns - c;
        cells = int8_quantised_cells<O>(O::wide_n(row[0] + c, n), O::wide_n(row[1] + c, n), O::wide_n(row[2] + c, n),
                                        O::wide_n(row[3] + c, n), f0, f1, f2, f3, mask);
      }
      if (kept != 0) cells = O::or_int(cells, O::and_int(O::load_int(out), keep));
      O::store_int(cells, out);
    }
  }
}

// ---- Products ----

/// Variable number kIndex of a set. References, because a struct can have no sizeless member, and gcc keeps arrays in memory.
template <class O, size_t kIndex>
struct Int8Register {
  typename O::I& v;
};
template <class O, class Indices>
struct Int8RegisterSet;
template <class O, size_t... kIndices>
struct Int8RegisterSet<O, std::index_sequence<kIndices...>> : Int8Register<O, kIndices>... {};
template <class O>
using Int8Sums = Int8RegisterSet<O, std::make_index_sequence<16>>;
template <class O>
using Int8Columns = Int8RegisterSet<O, std::make_index_sequence<4>>;

/// f(sums, columns), all of them 0. What is not used takes no register.
template <class O, class F>
SIMDATTN_INT8_INLINE void int8_with_registers(const F& f) {
  using I = typename O::I;
  I z = O::set_int(0);
  I s0 = z, s1 = z, s2 = z, s3 = z, s4 = z, s5 = z, s6 = z, s7 = z, s8 = z, s9 = z, s10 = z, s11 = z, s12 = z, s13 = z,
    s14 = z, s15 = z;
  I c0 = z, c1 = z, c2 = z, c3 = z;
  const Int8Sums<O> sums{{s0}, {s1}, {s2},  {s3},  {s4},  {s5},  {s6},  {s7},
                         {s8}, {s9}, {s10}, {s11}, {s12}, {s13}, {s14}, {s15}};
  const Int8Columns<O> columns{{c0}, {c1}, {c2}, {c3}};
  f(sums, columns);
}
template <size_t kIndex, class O>
SIMDATTN_INT8_INLINE typename O::I& int8_get(const Int8Register<O, kIndex>& r) {
  return r.v;
}
template <class F, size_t... kIndices>
SIMDATTN_INT8_INLINE void int8_unroll(std::index_sequence<kIndices...>, const F& f) {
  (f(std::integral_constant<size_t, kIndices>{}), ...);
}

/// One tile: rows of cells times two vectors of columns.
struct Int8Tile {
  const char* x;     // cells of the first row
  int64_t x_stride;  // bytes
  const char* columns;
  int64_t steps;         // cells of a row
  const int32_t* start;  // [rows]
  uintptr_t ahead = 0;   // what lies so many bytes behind the columns is prefetched, if any
};

#include "lib/int8_matrix-inl.h"

/// Calls finish(row, vector, sum) with the row and the number of the vector as types.
template <class O, size_t kRows, bool kWeights, class Finish>
SIMDATTN_INT8_INLINE void int8_tile(const Int8Tile& a, const Finish& finish) {
  if constexpr (O::kMatrix && kRows > 1) return int8_matrix_tile<O, kRows, kWeights>(a, finish);
  using I = typename O::I;
  int8_with_registers<O>([&](const auto& sum, const auto& column) SIMDATTN_INT8_LAMBDA {
    int8_with_registers<O>([&](const auto& second, const auto&) SIMDATTN_INT8_LAMBDA {
      constexpr auto kEachRow = std::make_index_sequence<kRows>{};
      constexpr auto kEachVector = std::make_index_sequence<2>{};

      if constexpr (kWeights ? O::kFlipValues : O::kFlipKeys) {
        int8_unroll(kEachRow, [&](auto r) SIMDATTN_INT8_LAMBDA {
          int8_get<2 * r>(sum) = int8_get<2 * r + 1>(sum) = O::set_int(a.start[r]);
        });
      }
      const int64_t lane_bytes = O::lanes() * 4;
      const int64_t x_stride = a.x_stride;
      const uintptr_t ahead = a.ahead;
      Cursor<const char> x(a.x), at(a.columns);
      for (int64_t step = a.steps; step > 0; --step) {
        if (ahead != 0) {
          for (uintptr_t byte = 0; byte < static_cast<uintptr_t>(2 * lane_bytes); byte += 64)
            __builtin_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(at.get()) + ahead + byte), 0,
                               2);
        }
        int8_unroll(kEachVector, [&](auto c) SIMDATTN_INT8_LAMBDA {
          int8_get<c>(column) = O::load_int(at.get() + static_cast<int64_t>(c) * lane_bytes);
          if constexpr (O::kPairs) {
            int8_get<c + 2>(column) = O::odd_pairs(int8_get<c>(column));
            int8_get<c>(column) = O::even_pairs(int8_get<c>(column));
          } else if constexpr (kWeights ? O::kFlipValues : O::kFlipKeys) {
            int8_get<c>(column) = O::xor_int(int8_get<c>(column), O::set_int(static_cast<int32_t>(0x80808080u)));
          }
        });
        int8_unroll(kEachRow, [&](auto r) SIMDATTN_INT8_LAMBDA {
          const char* cell = x.get() + static_cast<int64_t>(r) * x_stride;
          const I first = O::repeat(cell);
          int8_unroll(kEachVector, [&](auto c) SIMDATTN_INT8_LAMBDA {
            O::template dot<kWeights>(int8_get<2 * r + c>(sum), int8_get<2 * r + c>(second), first,
                                      int8_get<c>(column));
          });
          if constexpr (O::kPairs) {
            const I others = O::repeat(cell + 4);
            int8_unroll(kEachVector, [&](auto c) SIMDATTN_INT8_LAMBDA {
              O::template dot<kWeights>(int8_get<2 * r + c>(sum), int8_get<2 * r + c>(second), others,
                                        int8_get<c + 2>(column));
            });
          }
        });
        x += kInt8CellBytes<O>;
        at += kPanelWidth * 4;
      }
      int8_unroll(kEachRow, [&](auto r) SIMDATTN_INT8_LAMBDA {
        int8_unroll(kEachVector, [&](auto c) SIMDATTN_INT8_LAMBDA {
          finish(r, c, O::to_float(O::total(int8_get<2 * r + c>(sum), int8_get<2 * r + c>(second))));
        });
      });
    });
  });
}

template <size_t kMost, class F>
SIMDATTN_INT8_INLINE void int8_with_rows(int64_t rows, const F& f) {
  if (rows == static_cast<int64_t>(kMost)) return f(std::integral_constant<size_t, kMost>{});
  if constexpr (kMost > 1) int8_with_rows<kMost - 1>(rows, f);
}
/// f(first row, number of rows as a type) in tiles of kMost rows, then of half as many, ... 1. If kMost is no power of two, in tiles of
/// about equal size: 8 rows would be 6, 1 and 1.
template <size_t kMost, class F>
SIMDATTN_INT8_INLINE void int8_row_tiles(int64_t first, int64_t rows, const F& f) {
  if constexpr ((kMost & (kMost - 1)) != 0) {
    for (RowTiles t(rows, kMost); t.first < rows; t.next()) {
      int8_with_rows<kMost>(t.rows, [&](auto count) SIMDATTN_INT8_LAMBDA { f(t.first, count); });
    }
    return;
  }
  constexpr int64_t kStep = static_cast<int64_t>(kMost);
  for (; first + kStep <= rows; first += kStep) f(first, std::integral_constant<size_t, kMost>{});
  if constexpr (kMost > 1) int8_row_tiles<kMost / 2>(first, rows, f);
}

struct Int8Scores {
  const float* factors;  // [rows] scale of the query times that of the scores
  const float* scales;   // of the keys
  float* s;
  int64_t lds;
};
template <class O, size_t kRows>
SIMDATTN_INT8_SHARED void int8_score_tile(const Int8Tile& a, const Int8Scores& b) {
  const int64_t lanes = O::lanes();
  // Vectors may alias all types: what b holds would be loaded again after each store.
  const float* const factors = b.factors;
  const float* const scales = b.scales;
  float* const s = b.s;
  const int64_t lds = b.lds;
  int8_tile<O, kRows, false>(a, [&](auto r, auto c, auto sum) SIMDATTN_INT8_LAMBDA {
    const int64_t at = static_cast<int64_t>(c) * lanes;
    const typename O::F factor = O::mul(O::set(factors[r]), O::load(scales + at));
    O::store(O::mul(sum, factor), s + static_cast<int64_t>(r) * lds + at);
  });
}

/// Panels with scales behind them, or a.scales.
template <class O>
void int8_score_packed(const ScoreTile& a) {
  constexpr int64_t kMost = 64;  // rows at a time
  const int64_t lanes = O::lanes();
  const int64_t info_at = int8_query_numbers(a.dim) / 4 * kInt8CellBytes<O>;
  const uintptr_t ahead = a.fetches() ? static_cast<uintptr_t>((16384 / a.panel_stride + 1) * a.panel_stride) : 0;
  float factors[kMost];
  int32_t start[kMost];
  for (int64_t first = 0; first < a.rows; first += kMost) {
    const int64_t rows = a.rows - first < kMost ? a.rows - first : kMost;
    const char* q = static_cast<const char*>(a.q) + first * a.q_stride;
    for (int64_t r = 0; r < rows; ++r) {
      Int8Query info;
      std::memcpy(&info, q + r * a.q_stride + info_at, sizeof(info));
      factors[r] = info.scale * a.scale;
      start[r] = -128 * info.sum;
    }
    for (int64_t p = 0; p < a.n_panels; ++p) {
      const char* panel = static_cast<const char*>(a.panels) + p * a.panel_stride;
      const float* scales = a.scales != nullptr ? a.scales + p * kPanelWidth
                                                : reinterpret_cast<const float*>(panel + int8_panel_numbers(a.dim));
      int8_row_tiles<O::kRows>(0, rows, [&](int64_t r, auto count) SIMDATTN_INT8_LAMBDA {
        for (int64_t c = 0; c < kPanelWidth; c += 2 * lanes) {
          int8_score_tile<O, count>(
              {q + r * a.q_stride, a.q_stride, panel + c * 4, (a.dim + 3) / 4, start + r, first + r == 0 ? ahead : 0},
              {factors + r, scales + c, a.s + (first + r) * a.lds + p * kPanelWidth + c, a.lds});
        }
      });
    }
  }
}

/// Bytes of a row of quantised weights: those of a block, and what whole vectors write past them.
inline constexpr int64_t kInt8WeightBytes = kKeyBlock + 32;

/// The largest product of a row's weights with the scales of their keys, at least 0; NaN if a product is not finite.
template <class O>
SIMDATTN_INT8_SHARED float int8_largest_product(const float* w, const float* scales, int64_t keys) {
  const int64_t lanes = O::lanes();
  const typename O::F zero = O::set(0.0f);
  // Two chains each; poison becomes NaN. As integers, positive numbers order like numbers and negative ones are below 0.
  typename O::F poison0 = zero, poison1 = zero;
  typename O::I largest0 = O::set_int(0), largest1 = largest0;
  const auto look = [&](typename O::F x, typename O::F scale, typename O::I& largest, typename O::F& poison)
                        SIMDATTN_INT8_LAMBDA {
                          const typename O::F product = O::mul(x, scale);
                          largest = O::max_int(largest, O::bits(product));
                          poison = O::fma(product, zero, poison);
                        };
  int64_t j = 0;
  for (; j + 2 * lanes <= keys; j += 2 * lanes) {
    look(O::load(w + j), O::load(scales + j), largest0, poison0);
    look(O::load(w + j + lanes), O::load(scales + j + lanes), largest1, poison1);
  }
  for (; j + lanes <= keys; j += lanes) look(O::load(w + j), O::load(scales + j), largest0, poison0);
  if (j < keys) look(O::wide_n(w + j, keys - j), O::wide_n(scales + j, keys - j), largest0, poison0);
  // Any NaN, its sign cleared, is larger than all numbers.
  const typename O::I poison = O::and_int(O::or_int(O::bits(poison0), O::bits(poison1)), O::set_int(0x7FFFFFFF));
  return int8_magnitude(O::largest_int(O::max_int(O::max_int(largest0, largest1), poison)));
}

/// The products times `inverse` as bytes, 0 for negative ones, and a vector of them at most past the end. With kFlipValues
/// returns their sum.
template <class O>
SIMDATTN_INT8_SHARED int32_t int8_product_bytes(const float* w, const float* scales, int64_t keys, float inverse,
                                                uint8_t* out) {
  const int64_t lanes = O::lanes();
  const typename O::F zero = O::set(0.0f), factor = O::set(inverse);
  typename O::I total = O::set_int(0);
  const auto integers = [&](typename O::F x, typename O::F scale) SIMDATTN_INT8_LAMBDA {
    const typename O::I p = O::nearest(O::mul(O::max(O::mul(x, scale), zero), factor));
    if constexpr (O::kFlipValues) total = O::add_int(total, p);
    return p;
  };
  int64_t j = 0;
  for (; j + 4 * lanes <= keys; j += 4 * lanes) {
    const auto part = [&](int64_t at) SIMDATTN_INT8_LAMBDA { return integers(O::load(w + at), O::load(scales + at)); };
    const typename O::I p0 = part(j), p1 = part(j + lanes), p2 = part(j + 2 * lanes), p3 = part(j + 3 * lanes);
    O::template store_bytes<true>(p0, p1, p2, p3, out + j);
  }
  for (; j + lanes <= keys; j += lanes) {
    O::template store_bytes<true>(integers(O::load(w + j), O::load(scales + j)), out + j);
  }
  if (j < keys) {
    const int64_t n = keys - j;
    O::template store_bytes<true>(integers(O::wide_n(w + j, n), O::wide_n(scales + j, n)), out + j);
  }
  std::memset(out + keys, 0, 4);
  if constexpr (O::kFlipValues) return O::sum_int(total);
  return 0;
}

/// Rows of weights of `keys` keys, which begin `offset` < 4 bytes behind those of `out`, before which zeros stand.
struct Int8Weights {
  const float* w;
  int64_t ldw;
  int64_t rows;
  const float* scales;  // of the values
  int64_t keys;
  int64_t offset;
};
/// One pass over all rows and then the other: what a row waits for, its largest product and two divisions, overlaps with
/// other rows. scales: NaN if a product is not finite. start: see Int8Tile.
template <class O>
void int8_weigh_rows(const Int8Weights& a, uint8_t* out, int64_t stride, float* scales, int32_t* start) {
  for (int64_t r = 0; r < a.rows; ++r) scales[r] = int8_largest_product<O>(a.w + r * a.ldw, a.scales, a.keys);
  for (int64_t r = 0; r < a.rows; ++r) {
    const WeightScale quantise(scales[r], !is_nan(scales[r]));
    scales[r] = quantise.scale;
    uint8_t* const row = out + r * stride;
    std::memset(row, 0, 4);
    start[r] = -128 * int8_product_bytes<O>(a.w + r * a.ldw, a.scales, a.keys, quantise.inverse, row + a.offset);
  }
}

/// The same as cells, kInt8WeightStride bytes a row. At most 32 rows.
template <class O>
inline constexpr int64_t kInt8WeightStride = kInt8WeightBytes / 4 * kInt8CellBytes<O>;
template <class O>
void int8_weight_cells(const Int8Weights& a, char* out, float* scales, int32_t* start) {
  if constexpr (O::kPairs) {
    alignas(64) uint8_t bytes[32 * kInt8WeightBytes];
    int8_weigh_rows<O>(a, bytes, kInt8WeightBytes, scales, start);
    for (int64_t r = 0; r < a.rows; ++r) {
      int8_pair_cells(bytes + r * kInt8WeightBytes, (a.offset + a.keys + 3) / 4 * 4, out + r * kInt8WeightStride<O>);
    }
  } else {
    int8_weigh_rows<O>(a, reinterpret_cast<uint8_t*>(out), kInt8WeightStride<O>, scales, start);
  }
}

struct Int8Values {
  const float* scales;  // [rows]
  const float* alpha;   // null: 1
  float* o;
  int64_t ldo;
};
template <class O, size_t kRows>
SIMDATTN_INT8_SHARED void int8_value_tile(const Int8Tile& a, const Int8Values& b) {
  const int64_t lanes = O::lanes();
  const float* const scales = b.scales;
  const float* const alpha = b.alpha;
  float* const first = b.o;
  const int64_t ldo = b.ldo;
  int8_tile<O, kRows, true>(a, [&](auto r, auto c, auto sum) SIMDATTN_INT8_LAMBDA {
    float* o = first + static_cast<int64_t>(r) * ldo + static_cast<int64_t>(c) * lanes;
    const typename O::F before = O::mul(O::set(alpha != nullptr ? alpha[r] : 1.0f), O::load(o));
    O::store(O::fma(sum, O::set(scales[r]), before), o);
  });
}

template <class O>
void int8_value_packed(const ValueTile& a) {
  constexpr int64_t kMost = 32;  // rows at a time: their weights and a group of columns stay in L1
  constexpr int64_t kStride = kInt8WeightStride<O>;
  const int64_t lanes = O::lanes();
  const char* block = static_cast<const char*>(a.v);
  const float* scales = reinterpret_cast<const float*>(block + int8_values_numbers(a.dim)) + a.first_key;
  const int64_t offset = a.first_key % 4;
  const int64_t steps = (offset + a.keys + 3) / 4;
  alignas(64) char weights[kMost * kStride];
  float weight_scales[kMost];
  int32_t start[kMost];
  for (int64_t first = 0; first < a.rows; first += kMost) {
    const int64_t rows = a.rows - first < kMost ? a.rows - first : kMost;
    int8_weight_cells<O>({a.w + first * a.ldw, a.ldw, rows, scales, a.keys, offset}, weights, weight_scales, start);
    for (int64_t c = 0; c < a.dim; c += 2 * lanes) {
      const char* columns =
          block + c / kValueGroup * kValueGroup * kKeyBlock + (a.first_key / 4 * kValueGroup + c % kValueGroup) * 4;
      int8_row_tiles<O::kRows>(0, rows, [&](int64_t r, auto count) SIMDATTN_INT8_LAMBDA {
        int8_value_tile<O, count>({weights + r * kStride, kStride, columns, steps, start + r},
                                  {weight_scales + r, a.alpha != nullptr ? a.alpha + first + r : nullptr,
                                   a.o + (first + r) * a.ldo + c, a.ldo});
      });
    }
  }
}
