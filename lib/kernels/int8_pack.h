// Queries, keys and values of Arithmetic::kInt8: integers with a scale for each row, in the formats of lib/contract/int8_operands.h.
#ifndef SIMDATTN_LIB_KERNELS_INT8_PACK_H_
#define SIMDATTN_LIB_KERNELS_INT8_PACK_H_

#include <cstring>
#include <type_traits>

#include "lib/contract/cursor.h"
#include "lib/contract/int8_operands.h"
#include "lib/kernels/pack.h"
#include "lib/simd/math.h"
#include "lib/simd/memory.h"

namespace simdattn {
namespace {

/// A cell of a query or of weights: four bytes; where numbers of 16 bits are multiplied, bytes 0, 2, 1, 3 as such.
constexpr bool kPairCells = kProducts == Products::kPairs;
constexpr int64_t kCellBytes = kPairCells ? 8 : 4;
/// VPDPBUSD and UDOT multiply unsigned bytes: keys, or values, are taken + 128. Sums then start at -128 times that of the other factors.
constexpr bool kFlipsKeys = kProducts == Products::kDot && kX86;
constexpr bool kFlipsValues = kProducts == Products::kDot && !kX86;

/// The largest magnitude of n numbers(i, part), as bits: infinity's or more if one of them is NaN or infinite.
template <class F>
SIMDATTN_INLINE uint32_t largest_magnitude(int64_t n, const F& numbers) {
  Registers<4, Ints> largest;
  unroll<4>([&](auto chain) SIMDATTN_LAMBDA { reg<chain>(largest) = Ints(0); });
  for_each_batch_in_chains(n, [&](int64_t i, auto part, auto chain) SIMDATTN_LAMBDA {
    reg<chain>(largest) = max(reg<chain>(largest), ints_of(abs(numbers(i, part))));
  });
  const Ints pairs[] = {max(reg<0>(largest), reg<1>(largest)), max(reg<2>(largest), reg<3>(largest))};
  return static_cast<uint32_t>(largest_lane(max(pairs[0], pairs[1])));
}
/// n integers(i, part) as bytes.
template <bool kUnsigned, class F>
SIMDATTN_INLINE void store_integers(int64_t n, void* bytes, const F& integers) {
  constexpr int64_t kStep = 4 * kLanes;
  const auto step = [&](int64_t i, const auto& part, uint8_t* out) SIMDATTN_LAMBDA {
    store_bytes<kUnsigned>(integers(i, part(i)), integers(i + kLanes, part(i + kLanes)),
                           integers(i + 2 * kLanes, part(i + 2 * kLanes)),
                           integers(i + 3 * kLanes, part(i + 3 * kLanes)), out);
  };
  uint8_t* const out = static_cast<uint8_t*>(bytes);
  int64_t i = 0;
  for (; i + kStep <= n; i += kStep) step(i, [](int64_t) SIMDATTN_LAMBDA { return All(); }, out + i);
  if (i == n) return;
  uint8_t last[kStep];
  step(i, [&](int64_t at) SIMDATTN_LAMBDA { return first_lanes(larger(smaller(n - at, kLanes), 0)); }, last);
  std::memcpy(out + i, last, static_cast<size_t>(n - i));
}

template <class T>
SIMDATTN_SHARED IntegerScale int8_scale(const T* x, int64_t n) {
  return {largest_magnitude(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { return load(x + i, part); }), 127.0f};
}
/// n numbers times `inverse` as bytes; 0: zeros, whatever the numbers are.
template <class T>
SIMDATTN_SHARED void int8_bytes(const T* x, int64_t n, float inverse, void* out) {
  if (inverse == 0.0f) {
    std::memset(out, 0, static_cast<size_t>(n));
    return;
  }
  const Floats factor(inverse);
  store_integers<false>(n, out,
                        [&](int64_t i, auto part) SIMDATTN_LAMBDA { return nearest(load(x + i, part) * factor); });
}
/// The sum of n bytes, and of those that complete a vector.
template <bool kUnsigned>
SIMDATTN_INLINE int32_t int8_sum(const void* bytes, int64_t n) {
  const uint8_t* const p = static_cast<const uint8_t*>(bytes);
  Ints sum(0);
  for (int64_t i = 0; i < n; i += kLanes)
    sum = sum + (kUnsigned ? cast_bits<int32_t>(load_bytes(p + i, All())) : load_integers(p + i));
  return sum_of_lanes(sum);
}

/// n bytes, a multiple of 4, as cells of 16 bits.
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

int64_t int8_kernel_query_bytes(int64_t dim) { return int8_query_numbers(dim) / 4 * kCellBytes + 64; }

template <class T>
void int8_prepare_query(const void* row, void* query, int64_t dim) {
  const T* x = static_cast<const T*>(row);
  const IntegerScale quantise = int8_scale(x, dim);
  char* out = static_cast<char*>(query);
  Int8Query info = {quantise.scale, 0};
  const int64_t numbers = int8_query_numbers(dim);
  const int64_t info_at = numbers / 4 * kCellBytes;
  if constexpr (kPairCells) {
    constexpr int64_t kChunk = 256;  // dimensions at a time
    int8_t bytes[kChunk];
    for (int64_t d = 0; d < numbers; d += kChunk) {
      std::memset(bytes, 0, sizeof(bytes));
      int8_bytes(x + d, smaller(dim - d, kChunk), quantise.inverse, bytes);
      int8_pair_cells(bytes, smaller(numbers - d, kChunk), out + d / 4 * kCellBytes);
    }
  } else {
    std::memset(out + numbers - 64, 0, 64);
    int8_bytes(x, dim, quantise.inverse, out);
    if (kFlipsKeys) info.sum = int8_sum<false>(out, numbers);
  }
  std::memset(out + info_at, 0, 64);
  std::memcpy(out + info_at, &info, sizeof(info));
}

/// Rows are quantised as bytes, and their cells transposed like numbers of f32.
template <class T>
void int8_pack_keys(const PackKeys& a) {
  constexpr int64_t kChunk = 256;  // dimensions at a time
  alignas(64) int8_t rows[kPanelWidth * kChunk + 4];
  float inverse[kPanelWidth];
  int8_t* panel = static_cast<int8_t*>(a.panel);
  float* scales = reinterpret_cast<float*>(panel + int8_panel_numbers(a.dim));
  const auto row = [&](int64_t j) SIMDATTN_LAMBDA {
    return reinterpret_cast<const T*>(static_cast<const char*>(a.from) + j * a.token_stride);
  };
  for (int64_t j = 0; j < a.keys; ++j) {
    if (a.stream) {
      const uintptr_t next = address_at(reinterpret_cast<const char*>(row(j)), kPanelWidth * a.token_stride);
      for (uintptr_t byte = 0; byte < static_cast<uintptr_t>(a.dim) * sizeof(T); byte += 64) {
        __builtin_prefetch(reinterpret_cast<const char*>(next + byte), 0, 2);
      }
    }
    const IntegerScale quantise = int8_scale(row(j), a.dim);
    scales[j] = quantise.scale;
    inverse[j] = quantise.inverse;
  }
  for (int64_t j = a.keys; j < kPanelWidth; ++j) scales[j] = 0.0f;
  for (int64_t d = 0; d < a.dim; d += kChunk) {
    const int64_t n = smaller(a.dim - d, kChunk);
    for (int64_t j = 0; j < a.keys; ++j) {
      int8_bytes(row(j) + d, n, inverse[j], rows + j * kChunk);
      std::memset(rows + j * kChunk + n, 0, 4);
    }
    pack_keys<float>(rows, kChunk, a.keys, (n + 3) / 4, reinterpret_cast<float*>(panel + d * kPanelWidth), false);
  }
}

/// Dimension d of columns [c, c + kLanes) of a panel of the storage type; zeros from `dim` on.
template <class T>
SIMDATTN_INLINE Floats int8_panel_column(const T* panel, int64_t d, int64_t dim, int64_t c) {
  if (d >= dim) return Floats(0.0f);
  if constexpr (std::is_same_v<T, bf16>) {
    const Bits32 pairs = load_pairs(panel + (d / 2 * kPanelWidth + c) * 2);
    return d % 2 == 0 ? even_of(pairs) : odd_of(pairs);
  } else {
    return load(panel + d * kPanelWidth + c);
  }
}

template <class T>
void int8_pack_panel(const PackKeys& a) {
  const T* from = static_cast<const T*>(a.from);
  int8_t* panel = static_cast<int8_t*>(a.panel);
  float* scales = reinterpret_cast<float*>(panel + int8_panel_numbers(a.dim));
  alignas(64) float inverse[kLanes];
  alignas(64) int32_t allowed[kLanes];
  for (int64_t c = 0; c < kPanelWidth; c += kLanes) {
    Ints largest(0);
    for (int64_t d = 0; d < a.dim; ++d) largest = max(largest, ints_of(abs(int8_panel_column(from, d, a.dim, c))));
    largest.store_aligned(allowed);
    for (int64_t i = 0; i < kLanes; ++i) {
      const IntegerScale quantise(static_cast<uint32_t>(allowed[i]), 127.0f);
      scales[c + i] = quantise.scale;
      inverse[i] = quantise.inverse;
      allowed[i] = quantise.inverse == 0.0f ? 0 : -1;
    }
    const Floats factor = Floats::load_aligned(inverse);
    const Ints mask = Ints::load_aligned(allowed);
    for (int64_t d = 0; d < a.dim; d += 4) {
      const auto column = [&](int64_t i)
                              SIMDATTN_LAMBDA { return nearest(int8_panel_column(from, d + i, a.dim, c) * factor); };
      const Ints cells = cells_of(column(0), column(1), column(2), column(3)) & mask;
      cells.store_unaligned(reinterpret_cast<int32_t*>(panel + (d / 4 * kPanelWidth + c) * 4));
    }
  }
}

/// Four keys at a time, which share cells. Of a cell that other keys have a part in, theirs is kept.
template <class T>
void int8_pack_values(const PackValues& a) {
  int8_t* block = static_cast<int8_t*>(a.block);
  float* scales = reinterpret_cast<float*>(block + int8_values_numbers(a.columns));
  if (a.keys == 0) return;
  const int64_t end = a.first + a.keys;
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
        const IntegerScale quantise = int8_scale(row[i], a.dim);
        scales[key + i] = quantise.scale;
        inverse[i] = quantise.inverse;
      } else {
        kept |= 0xFFu << 8 * i;
      }
      if (inverse[i] != 0.0f) allowed |= 0xFFu << 8 * i;
      row[i] += a.column;
    }
    const Floats f0(inverse[0]), f1(inverse[1]), f2(inverse[2]), f3(inverse[3]);
    const Ints mask(static_cast<int32_t>(allowed)), keep(static_cast<int32_t>(kept));
    for (int64_t c = 0; c < int8_values_numbers(a.columns) / kKeyBlock; c += kLanes) {
      int8_t* const at =
          block + c / kValueGroup * kValueGroup * kKeyBlock + (key * kValueGroup / 4 + c % kValueGroup) * 4;
      int32_t* const out = reinterpret_cast<int32_t*>(at);
      const int64_t left = a.columns - c;
      const auto number = [&](const T* x, Floats factor) SIMDATTN_LAMBDA {
        return nearest((left >= kLanes ? load(x + c) : load(x + c, first_lanes(larger(left, 0)))) * factor);
      };
      Ints cells = cells_of(number(row[0], f0), number(row[1], f1), number(row[2], f2), number(row[3], f3)) & mask;
      if (kept != 0) cells = cells | (Ints::load_unaligned(out) & keep);
      cells.store_unaligned(out);
    }
  }
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_INT8_PACK_H_
