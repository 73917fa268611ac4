// Row-major keys and values, and panels of 16-bit types, into the f32 formats of the tiles.
#pragma once

#include "lib/contract/steps.h"
#include "lib/kernels/elementwise.h"
#include "lib/simd/blocks.h"

namespace simdattn {
namespace {

/// Rows that are transposed at a time. Blocks of 128 bits are put together while loading: block b of register i is 4
/// dimensions of row 4 b + i, and a 4 x 4 transposition within blocks leaves the keys in order, which is half the work
/// of transposing whole batches. Numbers of f16 are 8 x 8, because their conversion needs the keys side by side.
template <class T>
constexpr int64_t kTransposed = std::is_same_v<T, f16> ? 2 * kLanes
                                : kLoadsBlocks         ? kLanes
                                                       : 4;
/// The dimensions that a transposition takes at once.
template <class T>
constexpr int64_t kTransposedDims = 16 / sizeof(T);
/// kTransposedDims of them. Pairs of bf16 take the place of dimensions.
template <class T>
SIMDATTN_INLINE void transpose_some(const T* p, int64_t stride, float* out) {
  if constexpr (std::is_same_v<T, f16>) {
    transpose_blocks<uint16_t>([&](int64_t k) SIMDATTN_LAMBDA { return load_blocks<8>(p + k * stride, stride); },
                               [&](int64_t k, auto v) SIMDATTN_LAMBDA {
                                 store(f32_of_half<false>(v), out + k * kPanelWidth);
                                 store(f32_of_half<true>(v), out + k * kPanelWidth + kLanes);
                               });
  } else if constexpr (std::is_same_v<T, bf16>) {
    transpose_blocks<uint32_t>([&](int64_t k) SIMDATTN_LAMBDA { return load_blocks(p + k * stride, stride); },
                               [&](int64_t k, Floats v) SIMDATTN_LAMBDA {
                                 store(even_of(bits_of(v)), out + 2 * k * kPanelWidth);
                                 store(odd_of(bits_of(v)), out + (2 * k + 1) * kPanelWidth);
                               });
  } else {
    transpose_square<uint32_t>(reinterpret_cast<const char*>(p), stride * int64_t{sizeof(T)},
                               reinterpret_cast<char*>(out), kPanelWidth * int64_t{sizeof(float)});
  }
}

/// Fetches what kCount rows, 32 below these, hold of dimensions d on: a quarter of them with each 128 bits of a line.
template <int64_t kCount, class T>
SIMDATTN_INLINE void prefetch_next(const T* rows, int64_t stride, int64_t d) {
  constexpr int64_t kLine = 64 / sizeof(T);
  constexpr int64_t kQuarter = kCount / 4;
  const int64_t first = kPanelWidth + d % kLine / (kLine / 4) * kQuarter;
  const uintptr_t line = address_at(rows, first * stride + d / kLine * kLine);
#pragma GCC unroll 8
  for (uintptr_t r = 0; r < kQuarter; ++r) {
    __builtin_prefetch(reinterpret_cast<const char*>(line + r * static_cast<uintptr_t>(stride) * sizeof(T)), 0, 2);
  }
}

/// Types whose rows are transposed as they lie in memory.
template <class T>
constexpr bool kTransposes = std::is_same_v<T, float> || (kX86 && (std::is_same_v<T, bf16> || kLanes >= 8));

/// 32 rows of `dim` (a multiple of kTransposedDims) elements into a panel. Not inlined: it is called three times.
template <class T>
__attribute__((noinline)) void transpose(const T* rows, int64_t stride, int64_t dim, float* panel, bool prefetch) {
  // Dimensions of all 32 rows before the next ones: stores of less than a line fill it while L1 has it.
  constexpr bool kFew = kTransposed<T> == 4 || std::is_same_v<T, f16>;
  constexpr int64_t kRun = kFew ? kTransposedDims<T> : kTransposed<T> == 8 ? 64 : int64_t{1} << 31;
  for (int64_t first = 0; first < dim; first += kRun) {
    const int64_t end = smaller(first + kRun, dim);
    if (prefetch && kFew) prefetch_next<kPanelWidth>(rows, stride, first);
#pragma GCC unroll(kLoadsBlocks&& kLanes > 4 ? 1 : 8)  // all rows of a panel: their loads are independent
    for (int64_t j = 0; j < kPanelWidth; j += kTransposed<T>) {
      const T* p = rows + j * stride + first;
      float* out = panel + first * kPanelWidth + j;
      int64_t d = first;
      do {
        if (prefetch && !kFew) prefetch_next<kTransposed<T>>(rows + j * stride, stride, d);
        transpose_some(p, stride, out);
        d += kTransposedDims<T>;
        p += kTransposedDims<T>;
        out += kTransposedDims<T> * kPanelWidth;
      } while (!kFew && d < end);
    }
  }
}

/// `keys` rows of any number of dimensions into a panel.
inline void transpose_rows(const float* rows, int64_t stride, int64_t dim, float* panel, int64_t keys = kPanelWidth) {
  transpose_units<uint32_t>(reinterpret_cast<const char*>(rows), stride * int64_t{sizeof(float)}, keys, dim,
                            reinterpret_cast<char*>(panel), kPanelWidth * int64_t{sizeof(float)});
}
/// Dimensions [done, dim) of at most 32 keys, those that are missing as zeros, through a copy of at most 16 KiB.
inline void pack_through_copy(const char* rows, int64_t stride, int64_t size, int64_t keys, int64_t done, int64_t dim,
                              float* panel, decltype(widen<float>)* widen) {
  constexpr int64_t kStep = 128;
  alignas(64) float copy[kPanelWidth * kStep];
  const Floats zero = in_register(Floats(0.0f));  // known to be zero, it would become a call of memset
  for (int64_t i = done * kPanelWidth; keys < kPanelWidth && i < dim * kPanelWidth; i += kLanes) store(zero, panel + i);
  for (; done < dim; done += kStep) {
    const int64_t count = smaller(kStep, dim - done);
    for (int64_t j = 0; j < keys; ++j) widen(rows + j * stride + done * size, copy + j * count, count);
    transpose_rows(copy, count, count, panel + done * kPanelWidth, keys);
  }
}

template <class T>
void pack_keys(const void* keys_in, int64_t stride_bytes, int64_t keys, int64_t dim, float* panel, bool stream) {
  int64_t done = 0;
  if constexpr (kTransposes<T>) {
    if (keys == kPanelWidth) {
      done = dim - dim % kTransposedDims<T>;
      transpose(static_cast<const T*>(keys_in), stride_bytes / static_cast<int64_t>(sizeof(T)), done, panel, stream);
    }
  }
  if (done == dim) return;
  pack_through_copy(static_cast<const char*>(keys_in), stride_bytes, sizeof(T), keys, done, dim, panel, widen<T>);
}

template <class T>
void pack_values(const void* values, int64_t stride_bytes, int64_t keys, int64_t dim, float* out) {
  const T* rows = static_cast<const T*>(values);
  const int64_t token_stride = stride_bytes / static_cast<int64_t>(sizeof(T));
  for (int64_t j = 0; j < keys; ++j) {
    int64_t x = 0;
    for (; x + kValueGroup <= dim; x += kValueGroup) {
      const T* from = rows + j * token_stride + x;
      float* to = out + x * kKeyBlock + j * kValueGroup;
      unroll<kValueGroup / kLanes>([&](auto i) SIMDATTN_LAMBDA { store(load(from + i * kLanes), to + i * kLanes); });
    }
    for (int64_t i = 0; x < dim && i < kValueGroup; i += kLanes) {
      const Lanes part = first_lanes(larger(smaller(dim - x - i, kLanes), 0));
      store(load(rows + j * token_stride + x + i, part), out + x * kKeyBlock + j * kValueGroup + i);
    }
  }
}

template <class T>
void widen_panel(const void* panel, int64_t dim, float* out) {
  const T* in = static_cast<const T*>(panel);
  if constexpr (std::is_same_v<T, bf16>) {
    for (int64_t d = 0; d < dim; d += 2) {
      for (int64_t j = 0; j < kPanelWidth; j += kLanes) {
        const Bits32 pairs = load_pairs(in + (d * kPanelWidth + 2 * j));
        store(even_of(pairs), out + d * kPanelWidth + j);
        if (d + 1 < dim) store(odd_of(pairs), out + (d + 1) * kPanelWidth + j);
      }
    }
  } else {
    widen<T>(in, out, dim * kPanelWidth);
  }
}

}  // namespace
}  // namespace simdattn
