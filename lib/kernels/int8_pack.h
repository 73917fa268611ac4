// Queries, keys and values of Arithmetic::kInt8: integers with a scale for each row, in the formats of
// lib/contract/int8_operands.h.
#pragma once

#include <cstring>
#include <type_traits>

#include "lib/contract/int8_operands.h"
#include "lib/contract/steps.h"
#include "lib/kernels/pack.h"

namespace simdattn {
namespace {

/// A cell of a query or of weights: four bytes; where numbers of 16 bits are multiplied, bytes 0, 2, 1, 3 as such.
constexpr bool kPairCells = kProducts == Products::kPairs;
constexpr int64_t kCellBytes = kPairCells ? 8 : 4;
/// VPDPBUSD and UDOT multiply unsigned bytes: keys, or values, are taken + 128, and sums start at -128 times that of
/// the other factors.
constexpr bool kFlipsKeys = kProducts == Products::kDot;
constexpr bool kFlipsValues = kProducts == Products::kDotLanes;

/// The largest magnitude of n numbers(i, part), as bits: infinity's or more if one of them is NaN or infinite.
template <class F>
SIMDATTN_INLINE uint32_t largest_magnitude(int64_t n, const F& numbers) {
  Registers<4, Ints> largest;
  clear(largest);
  for_each_batch_in_chains(n, [&](int64_t i, auto part, auto chain) SIMDATTN_LAMBDA {
    reg<chain>(largest) = max(reg<chain>(largest), ints_of(abs(numbers(i, part))));
  });
  const Ints pairs[] = {max(reg<0>(largest), reg<1>(largest)), max(reg<2>(largest), reg<3>(largest))};
  return static_cast<uint32_t>(largest_lane(max(pairs[0], pairs[1])));
}
/// n integers(i, part) as bytes; kRoom: and those that complete four vectors, of lanes that are not loaded.
template <bool kUnsigned, bool kRoom = false, class F>
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
  step(
      i, [&](int64_t at) SIMDATTN_LAMBDA { return first_lanes(larger(smaller(n - at, kLanes), 0)); },
      kRoom ? out + i : last);
  if (!kRoom) std::memcpy(out + i, last, static_cast<size_t>(n - i));
}

template <class T>
SIMDATTN_SHARED uint32_t largest_magnitude(const void* row, int64_t n) {
  const T* const x = static_cast<const T*>(row);
  constexpr int64_t kStep = 2 * kLanes;
  if (std::is_same_v<T, bf16> && n >= kStep) {
    // As numbers of 16 bits, the last ones of them perhaps twice.
    Bits16 largest(uint16_t{0});
    for (int64_t i = 0; i < n; i += kStep) {
      const uint16_t* const p = reinterpret_cast<const uint16_t*>(x) + smaller(i, n - kStep);
      largest = max(largest, Bits16::load_unaligned(p) & Bits16(uint16_t{0x7FFF}));
    }
    const Bits32 pairs = cast_bits<uint32_t>(largest);
    return static_cast<uint32_t>(largest_lane(max(ints_of(even_of(pairs)), ints_of(odd_of(pairs)))));
  }
  return largest_magnitude(n, [&](int64_t i, auto part) SIMDATTN_LAMBDA { return load(x + i, part); });
}
/// n numbers times `inverse` as bytes; 0: zeros, whatever the numbers are.
template <class T>
SIMDATTN_SHARED void int8_bytes(const void* row, int64_t n, float inverse, void* out) {
  const T* const x = static_cast<const T*>(row);
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

/// n bytes, and those that complete a vector, as cells of 16 bits. They may be the last ones of what the cells take.
template <bool kUnsigned>
void int8_pair_cells(const void* bytes, int64_t n, void* out) {
  for (int64_t i = 0; i < n; i += 4 * kLanes) {
    const Ints cells = Ints::load_unaligned(reinterpret_cast<const int32_t*>(static_cast<const char*>(bytes) + i));
    const Ints lower(0x00FF00FF);
    const Ints even = kUnsigned ? cells & lower : even_bytes(cells);
    const Ints odd = kUnsigned ? (cells >> 8) & lower : odd_bytes(cells);
    const Floats e = float_of(cast_bits<uint32_t>(even)), o = float_of(cast_bits<uint32_t>(odd));
    float* const to = reinterpret_cast<float*>(static_cast<char*>(out) + 2 * i);
    store(zip_lower(e, o), to);
    store(zip_upper(e, o), to + kLanes);
  }
}

constexpr int64_t int8_kernel_query_bytes(int64_t dim) { return int8_query_numbers(dim) / 4 * kCellBytes + 64; }

template <class T>
void int8_prepare_query(const void* row, void* query, int64_t dim) {
  const T* x = static_cast<const T*>(row);
  const IntegerScale quantise(largest_magnitude<T>(x, dim), 127.0f);
  char* out = static_cast<char*>(query);
  Int8Query info = {quantise.scale, 0};
  const int64_t numbers = int8_query_numbers(dim);
  const int64_t info_at = numbers / 4 * kCellBytes;
  char* const bytes = out + info_at - numbers;
  std::memset(out + info_at - 64, 0, 128);
  int8_bytes<T>(x, dim, quantise.inverse, bytes);
  if (kPairCells) int8_pair_cells<false>(bytes, numbers, out);
  if (kFlipsKeys) info.sum = int8_sum<false>(out, numbers);
  std::memcpy(out + info_at, &info, sizeof(info));
}

/// `bytes` of the row that lies `rows` below, which may be outside of every object.
inline void fetch_below(const void* row, int64_t stride, int64_t rows, int64_t bytes) {
  const uintptr_t below = address_at(static_cast<const char*>(row), rows * stride);
  for (uintptr_t i = 0; i < static_cast<uintptr_t>(bytes); i += 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(below + i), 0, 2);
  }
}

/// Rows are quantised as bytes, and their cells transposed like numbers of f32. Keys are `size` bytes a number.
inline void int8_pack_keys(const PackKeys& a, int64_t size, uint32_t (*largest)(const void*, int64_t),
                           void (*bytes)(const void*, int64_t, float, void*)) {
  constexpr int64_t kChunk = 256;  // dimensions at a time
  alignas(64) int8_t rows[kPanelWidth * kChunk + 4];
  float inverse[kPanelWidth];
  int8_t* panel = static_cast<int8_t*>(a.panel);
  float* scales = reinterpret_cast<float*>(panel + int8_panel_numbers(a.dim));
  const auto row = [&](int64_t j) SIMDATTN_LAMBDA { return static_cast<const char*>(a.from) + j * a.token_stride; };
  for (int64_t j = 0; j < a.keys; ++j) {
    if (a.stream) fetch_below(row(j), a.token_stride, kPanelWidth, a.dim * size);
    const IntegerScale quantise(largest(row(j), a.dim), 127.0f);
    scales[j] = quantise.scale;
    inverse[j] = quantise.inverse;
  }
  for (int64_t j = a.keys; j < kPanelWidth; ++j) scales[j] = 0.0f;
  std::memset(rows + a.keys * kChunk, 0, static_cast<size_t>((kPanelWidth - a.keys) * kChunk));
  for (int64_t d = 0; d < a.dim; d += kChunk) {
    const int64_t n = smaller(a.dim - d, kChunk);
    for (int64_t j = 0; j < a.keys; ++j) {
      bytes(row(j) + d * size, n, inverse[j], rows + j * kChunk);
      std::memset(rows + j * kChunk + n, 0, 4);
    }
    transpose_rows(reinterpret_cast<const float*>(rows), kChunk / 4, (n + 3) / 4,
                   reinterpret_cast<float*>(panel + d * kPanelWidth));
  }
}
template <class T>
void int8_pack_keys(const PackKeys& a) {
  int8_pack_keys(a, sizeof(T), largest_magnitude<T>, int8_bytes<T>);
}

/// Four keys at a time, which share cells. Of a cell that other keys have a part in, theirs is kept.
template <class T>
void int8_pack_values(const PackValues& a) {
  int8_t* block = static_cast<int8_t*>(a.packed);
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
        const IntegerScale quantise(largest_magnitude<T>(row[i], a.dim), 127.0f);
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
