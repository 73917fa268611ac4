// Batches as blocks of 128 bits, and squares transposed within them.
#pragma once

#include "lib/simd/lanes.h"

namespace simdattn {
namespace {

/// Blocks of a batch that is loaded block by block; 1: there are no such loads.
constexpr int64_t kBatchBlocks = kLoadsBlocks ? kLanes / 4 : 1;
/// A vector of one block on every target, for `V` of what works within blocks.
struct Block {
  VectorOf<uint32_t, 16>::type data;

  template <class V>
  static SIMDATTN_INLINE Block of(V v) {
    return {__builtin_bit_cast(VectorOf<uint32_t, 16>::type, v)};
  }
  static SIMDATTN_INLINE Block load_unaligned(const void* p) {
    Block v;
    __builtin_memcpy(&v.data, p, sizeof v);
    return v;
  }
  SIMDATTN_INLINE void store_unaligned(void* p) const { __builtin_memcpy(p, &data, sizeof data); }
};

/// store(kFirst + i, v), quarter i of each block: r0 .. r3 interleaved by units of Unit. The number is a type.
template <class Unit, class TwoUnits, int64_t kFirst = 0, class V, class Store>
SIMDATTN_INLINE void interleave_four(V r0, V r1, V r2, V r3, const Store& store) {
  const V a = zip_lo<Unit>(r0, r1), b = zip_lo<Unit>(r2, r3), c = zip_hi<Unit>(r0, r1), d = zip_hi<Unit>(r2, r3);
  store(constant<kFirst>, zip_lo<TwoUnits>(a, b));
  store(constant<kFirst + 1>, zip_hi<TwoUnits>(a, b));
  store(constant<kFirst + 2>, zip_lo<TwoUnits>(c, d));
  store(constant<kFirst + 3>, zip_hi<TwoUnits>(c, d));
}
/// store(k, v): units k, of 32 or 16 bits, of the rows load(0), load(1), ... In whole batches not with SVE.
template <class Unit, class Load, class Store>
SIMDATTN_INLINE void transpose_blocks(const Load& load, const Store& store) {
  const auto r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
  if constexpr (sizeof(Unit) == 4) {
    interleave_four<uint32_t, uint64_t>(r0, r1, r2, r3, store);
  } else {
    const auto r4 = load(4), r5 = load(5), r6 = load(6), r7 = load(7);
    interleave_four<uint32_t, uint64_t>(zip_lo<Unit>(r0, r1), zip_lo<Unit>(r2, r3), zip_lo<Unit>(r4, r5),
                                        zip_lo<Unit>(r6, r7), store);
    interleave_four<uint32_t, uint64_t, 4>(zip_hi<Unit>(r0, r1), zip_hi<Unit>(r2, r3), zip_hi<Unit>(r4, r5),
                                           zip_hi<Unit>(r6, r7), store);
  }
}

#if SIMDATTN_SVE
/// Interleaves the partial sums of kKeys keys, kLanes / kKeys apart, folding them to kLanes / kKeys each: zip_lo takes
/// the lower half of them and zip_hi the upper.
template <int64_t kKeys>
SIMDATTN_INLINE Floats folded(const float* sums) {
  if constexpr (kKeys == 1) {
    return Floats::load_unaligned(sums);
  } else {
    const Floats even = folded<kKeys / 2>(sums);
    const Floats odd = folded<kKeys / 2>(sums + kLanes / kKeys * kLanes);
    return zip_lower(even, odd) + zip_upper(even, odd);
  }
}
SIMDATTN_INLINE Floats fold_keys(const float* sums) { return folded<kLanes>(sums); }
#else
/// Lane n: the sum of the 4 numbers in block n / 4 of quarters(n % 4).
template <class Quarters>
SIMDATTN_INLINE Floats fold_blocks(const Quarters& quarters) {
  const auto two = [&](auto i) SIMDATTN_LAMBDA {
    const Floats a = quarters(i), b = quarters(constant<i + 1>);
    return zip_lo<uint32_t>(a, b) + zip_hi<uint32_t>(a, b);
  };
  const Floats a = two(constant<0>), b = two(constant<2>);
  return zip_lo<uint64_t>(a, b) + zip_hi<uint64_t>(a, b);
}
/// Lane n: the sum of batch(n), of 16 lanes; n is a constant.
template <class Batch>
SIMDATTN_INLINE Floats fold_batches(const Batch& batch) {
  return fold_blocks([&](auto i) SIMDATTN_LAMBDA {
    const auto to_eight = [&](auto key) SIMDATTN_LAMBDA {
      const Floats a = batch(key), b = batch(constant<key + 4>);
      return lower_halves(a, b) + upper_halves(a, b);
    };
    const Floats a = to_eight(i), b = to_eight(constant<i + 8>);
    return even_blocks(a, b) + odd_blocks(a, b);
  });
}
/// Folds the kLanes partial sums of kLanes keys: to 4 in blocks of 128 bits, then within blocks.
SIMDATTN_INLINE Floats fold_keys(const float* sums) {
  const auto batch = [&](int64_t n) SIMDATTN_LAMBDA { return Floats::load_unaligned(sums + n * kLanes); };
  if constexpr (kLanes == 16) return fold_batches(batch);
  return fold_blocks([&](int64_t i) SIMDATTN_LAMBDA {
    return kLanes == 4 ? batch(i) : load_blocks(sums + 8 * i, 8) + load_blocks(sums + 8 * i + 4, 8);
  });
}
#endif

// Units of 16 or 32 bits moved from rows to columns. Strides are bytes.

/// A square of as many rows as a block has units; of kSide of them side by side, in a block of a batch each.
template <class Unit, int64_t kSide = kBatchBlocks>
SIMDATTN_INLINE void transpose_square(const char* in, int64_t in_stride, char* out, int64_t out_stride) {
  static_assert(kSide == 1 || kSide == kBatchBlocks);
  const auto row = [&](int64_t i) SIMDATTN_LAMBDA {
    const char* const p = in + i * in_stride;
    if constexpr (kSide == 1) return Block::load_unaligned(p);
    else return load_blocks<16 / sizeof(Unit)>(p, in_stride);
  };
  transpose_blocks<Unit>(row, [&](int64_t i, auto v) SIMDATTN_LAMBDA { v.store_unaligned(out + i * out_stride); });
}

/// out[c][r] = in[r][c]
template <class Unit, int64_t kSide = kBatchBlocks>
SIMDATTN_SHARED void transpose_units(const char* in, int64_t in_stride, int64_t rows, int64_t columns, char* out,
                                     int64_t out_stride) {
  constexpr int64_t kSize = sizeof(Unit), kSquare = 16 / kSize, kRows = kSquare * kSide;
  // A line of some rows is used up before the next rows are read: rows of all heads of a token are often a power of two
  // apart, and then fall on each other in the L1 cache.
  constexpr int64_t kLine = 64 / kSize;
  const int64_t whole_rows = rows - rows % kRows;
  const int64_t whole_columns = columns - columns % kSquare;
  for (int64_t first = 0; whole_rows > 0 && first < whole_columns; first += kLine) {
    for (int64_t r = 0; r < whole_rows; r += kRows) {
      for (int64_t c = first; c < smaller(first + kLine, whole_columns); c += kSquare) {
        transpose_square<Unit, kSide>(in + r * in_stride + c * kSize, in_stride, out + c * out_stride + r * kSize,
                                      out_stride);
      }
    }
  }
  // [from_row, end_row) of columns from `from_column` on.
  const auto rest = [&](int64_t from_row, int64_t end_row, int64_t from_column) SIMDATTN_LAMBDA {
    if (from_row == end_row || from_column == columns) return;
    const char* const from = in + from_row * in_stride + from_column * kSize;
    char* const to = out + from_column * out_stride + from_row * kSize;
    if constexpr (kSide > 1) {
      transpose_units<Unit, 1>(from, in_stride, end_row - from_row, columns - from_column, to, out_stride);
    } else {
      for (int64_t r = 0; r < end_row - from_row; ++r) {
#pragma GCC unroll 4
        for (int64_t c = 0; c < columns - from_column; ++c)
          __builtin_memcpy(to + c * out_stride + r * kSize, from + r * in_stride + c * kSize, kSize);
      }
    }
  };
  rest(0, whole_rows, whole_columns);
  rest(whole_rows, rows, 0);
}

}  // namespace
}  // namespace simdattn
