// What score_tile.h and value_tile.h share: a register tile of named accumulators.
//
// Both kernels add outer products: a column of broadcast numbers (queries, weights) times a row of vectors (keys of a
// panel, columns of a value row). Each accumulator is a variable of its own: gcc keeps an array of them in memory.
#ifndef SIMDATTN_LIB_HIGHWAY_REGISTER_TILE_H_
#define SIMDATTN_LIB_HIGHWAY_REGISTER_TILE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "hwy/highway.h"
#include "lib/cursor.h"
#include "lib/highway/loads.h"
#include "lib/highway/target.h"
#include "lib/row_tiles.h"

namespace simdattn {
namespace {
namespace highway {

/// 16 lanes are as many as any tile can use: half a panel, half a group of values.
using TileTag = hn::CappedTag<float, 16>;
using TileVec = hn::Vec<TileTag>;

/// Variable number kIndex of a set. References, because a struct can have no sizeless member.
template <size_t kIndex>
struct Register {
  TileVec& v;
};
template <class Indices>
struct RegisterSet;
template <size_t... kIndices>
struct RegisterSet<std::index_sequence<kIndices...>> : Register<kIndices>... {};
inline constexpr size_t kMaxAccumulators = 24;
using Accumulators = RegisterSet<std::make_index_sequence<kMaxAccumulators>>;
using Columns = RegisterSet<std::make_index_sequence<8>>;

template <size_t kIndex>
HWY_INLINE TileVec& Get(const Register<kIndex>& r) {
  return r.v;
}

template <class F, size_t... kIndices>
HWY_INLINE void ForEach(std::index_sequence<kIndices...>, const F& f) {
  (f(std::integral_constant<size_t, kIndices>{}), ...);
}
/// f(0), f(1), ... with the index as a type: a loop that is unrolled before anything else happens.
template <size_t kCount, class F>
HWY_INLINE void ForEach(const F& f) {
  ForEach(std::make_index_sequence<kCount>{}, f);
}

/// Calls f with as many variables as the largest tile has and room for the vectors of one row; those that a tile does
/// not use vanish.
template <class F>
HWY_INLINE void WithRegisters(TileTag d, const F& f) {
  TileVec a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0, a8 = a0, a9 = a0, a10 = a0,
          a11 = a0, a12 = a0, a13 = a0, a14 = a0, a15 = a0, a16 = a0, a17 = a0, a18 = a0, a19 = a0, a20 = a0, a21 = a0,
          a22 = a0, a23 = a0;
  TileVec c0 = a0, c1 = a0, c2 = a0, c3 = a0, c4 = a0, c5 = a0, c6 = a0, c7 = a0;
  f(Accumulators{{a0},  {a1},  {a2},  {a3},  {a4},  {a5},  {a6},  {a7},  {a8},  {a9},  {a10}, {a11},
                 {a12}, {a13}, {a14}, {a15}, {a16}, {a17}, {a18}, {a19}, {a20}, {a21}, {a22}, {a23}},
    Columns{{c0}, {c1}, {c2}, {c3}, {c4}, {c5}, {c6}, {c7}});
}

#if HWY_TARGET == HWY_AVX2
/// A row of three vectors: with the accumulators of four rows and the columns the number to broadcast has the last
/// register. Left to themselves compilers load the next row's number before this one is done with, and put accumulators
/// on the stack. The assembly reads the one number at x.
HWY_INLINE void AddThree(const float* x, TileVec c0, TileVec c1, TileVec c2, TileVec& a0, TileVec& a1, TileVec& a2) {
  __m256 factor, s0 = a0.raw, s1 = a1.raw, s2 = a2.raw;  // gcc would leave members in memory
  __asm__(
      "vbroadcastss %4, %3\n\t"
      "vfmadd231ps %5, %3, %0\n\t"
      "vfmadd231ps %6, %3, %1\n\t"
      "vfmadd231ps %7, %3, %2"
      : "+x"(s0), "+x"(s1), "+x"(s2), "=&x"(factor)
      : "m"(*x), "x"(c0.raw), "x"(c1.raw), "x"(c2.raw));
  a0 = TileVec{s0};
  a1 = TileVec{s1};
  a2 = TileVec{s2};
}
#endif

/// acc[r][c] += x[r * stride] * column[c]
template <size_t kRows, size_t kVecs>
HWY_INLINE void AddOuterProduct(TileTag d, const float* x, int64_t stride, const Columns& columns,
                                const Accumulators& acc) {
  ForEach<kRows>([&](auto r) SIMDATTN_LAMBDA {
#if HWY_TARGET == HWY_AVX2
    if constexpr (kVecs == 3) {
      AddThree(x + static_cast<int64_t>(r) * stride, Get<0>(columns), Get<1>(columns), Get<2>(columns), Get<3 * r>(acc),
               Get<3 * r + 1>(acc), Get<3 * r + 2>(acc));
      return;
    }
#endif
    const TileVec factor = hn::Set(d, x[static_cast<int64_t>(r) * stride]);
    ForEach<kVecs>([&](auto c) SIMDATTN_LAMBDA {
      TileVec& sum = Get<r * kVecs + c>(acc);
      sum = hn::MulAdd(factor, Get<c>(columns), sum);
    });
  });
}

/// 2 N numbers of bf16, seen as N pairs in f32 lanes.
using PairTag = hn::Repartition<uint16_t, TileTag>;
/// Clang does not keep a scalable vector in a register if it is written as one type and read as another.
HWY_INLINE TileVec AsFloats(TileVec v) {
#if HWY_TARGET_IS_SVE && HWY_COMPILER_CLANG
  __asm__("" : "+w"(v));
#endif
  return v;
}
HWY_INLINE TileVec LoadPairs(TileTag d, const bf16* p) {
  return AsFloats(hn::BitCast(d, hn::LoadU(PairTag(), Bits(p))));
}
HWY_INLINE TileVec LoadPairsN(TileTag d, const bf16* p, size_t n) {
  return AsFloats(hn::BitCast(d, hn::LoadN(PairTag(), Bits(p), n)));
}
HWY_INLINE TileVec ShiftedEvenOf(TileTag d, TileVec pairs) {
  return AsFloats(hn::BitCast(d, hn::ShiftLeft<16>(hn::BitCast(hn::RebindToUnsigned<TileTag>(), AsFloats(pairs)))));
}
/// The even ones and the odd ones: one operation each, where widening in order takes two.
HWY_INLINE TileVec EvenOf(TileTag d, TileVec pairs) {
#if HWY_TARGET == HWY_AVX2
  // A shift takes one of the two ports of multiply-adds.
  const __m256i order = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13,  //
                                         -1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13);
  return TileVec{_mm256_castsi256_ps(_mm256_shuffle_epi8(_mm256_castps_si256(pairs.raw), order))};
#endif
  return ShiftedEvenOf(d, pairs);
}
HWY_INLINE TileVec OddOf(TileTag d, TileVec pairs) {
  const hn::RebindToUnsigned<TileTag> du;
  return AsFloats(hn::BitCast(d, hn::And(hn::BitCast(du, AsFloats(pairs)), hn::Set(du, 0xFFFF0000u))));
}

// bf16 for tiles of three vectors. 4x3 accumulators leave no register for constants nor for pairs: constants stay in memory
// (which elsewhere would cost time), pairs are loaded twice.
#if HWY_TARGET == HWY_AVX2
struct EightPairs {
  bf16 v[16];
};
HWY_INLINE const EightPairs& EightPairsAt(const bf16* p) { return *reinterpret_cast<const EightPairs*>(p); }
HWY_INLINE TileVec LoadEven(TileTag /*d*/, const bf16* p) {
  alignas(32) static constexpr int8_t kOrder[32] = {-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13,
                                                    -1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13};
  // Reads the eight pairs and kOrder. Compilers would load the pairs once, for this and for LoadOdd, and kOrder before the
  // loop.
  __m256 v;
  __asm__("vmovdqu %1, %0\n\tvpshufb %2, %0, %0" : "=x"(v) : "m"(EightPairsAt(p)), "m"(kOrder));
  return TileVec{v};
}
HWY_INLINE TileVec LoadOdd(TileTag /*d*/, const bf16* p) {
  alignas(32) static constexpr uint32_t kUpper[8] = {0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u,
                                                     0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u, 0xFFFF0000u};
  __m256 v;  // reads the eight pairs and kUpper, as above
  __asm__("vmovdqu %1, %0\n\tvpand %2, %0, %0" : "=x"(v) : "m"(EightPairsAt(p)), "m"(kUpper));
  return TileVec{v};
}
HWY_INLINE TileVec LoadInOrder(TileTag /*d*/, const bf16* p) {
  alignas(32) static constexpr int8_t kOrder[32] = {-1, -1, 0, 1, -1, -1, 2,  3,  -1, -1, 4,  5,  -1, -1, 6,  7,
                                                    -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15};
  // Reads kOrder where it lies: as an intrinsic's operand it would be loaded into a register before the loop.
  __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  __asm__("vpshufb %1, %0, %0" : "+x"(v) : "m"(kOrder));
  return TileVec{_mm256_castsi256_ps(v)};
}
#else
HWY_INLINE TileVec LoadEven(TileTag d, const bf16* p) { return EvenOf(d, LoadPairs(d, p)); }
HWY_INLINE TileVec LoadOdd(TileTag d, const bf16* p) { return OddOf(d, LoadPairs(d, p)); }
HWY_INLINE TileVec LoadInOrder(TileTag d, const bf16* p) { return LoadWide(d, p); }
#endif

/// Rows of the largest tile of kVecs columns: its accumulators, the vectors of a row, a broadcast number (and with SSE a
/// product) must fit into the registers. 3x4 with 16 registers and 12x2 with 32 already run at half the peak.
template <size_t kVecs>
inline constexpr int64_t kRowsOf = kVecs <= 2               ? kTileRows
                                   : kVecs == 3             ? 4
                                   : kVecs == 8             ? (kTileRows == 8 || HWY_ARCH_ARM_A64 ? 2 : 1)
                                   : HWY_ARCH_ARM_A64       ? 6
                                   : HWY_TARGET <= HWY_AVX3 ? 4
                                                            : 2;

/// With 16 registers and multiply-adds in a single operation, tiles of three or four rows are three vectors wide: the
/// eight accumulators of two would each have to be used in the very cycle in which they are ready, and converting columns
/// delays that. Scores of bf16 reach 89 % of the peak so, and 76 % otherwise (docs/performance.md).
constexpr bool kThreeVectors = HWY_TARGET == HWY_AVX2;

/// Calls f with `rows` (1 to kMax) as a type.
template <int64_t kMax, class F>
HWY_INLINE void WithRows(int64_t rows, const F& f) {
  ForEach<static_cast<size_t>(kMax)>([&](auto r) SIMDATTN_LAMBDA {
    if (rows == static_cast<int64_t>(r) + 1) f(std::integral_constant<size_t, r + 1>{});
  });
}

/// What a tile prefetches into L2 while it works: in each of the first `count` steps of its loop a piece as large as
/// what it reads, the pieces `pitch` bytes apart. Best in memory order, so that the hardware's streams run ahead too:
/// L1 has too few lines in flight for memory. Into L2, not into L1.
///
/// Write the prefetch itself into the tile's loop: gcc takes a call of a function or lambda that does nothing else for
/// dead code.
struct PrefetchPlan {
  uintptr_t first = 0;  // may lie outside of every object
  int64_t pitch = 0;
  int64_t count = 0;
};

/// Prefetches rows from beyond the caches while earlier ones are read: one of each of the next four pages in turns. A stream of the
/// hardware ends with its page, and one stream alone leaves part of the bandwidth. Into L1: rows from L3 lose by prefetches into L2.
class RowsFromMemory {
 public:
  RowsFromMemory() = default;
  /// `pitch` is from row to row, in bytes as `bytes` is.
  RowsFromMemory(const void* first, int64_t rows, int64_t pitch, int64_t bytes)
      : first_(reinterpret_cast<uintptr_t>(first)),
        rows_(rows),
        pitch_(static_cast<uintptr_t>(pitch)),
        bytes_(static_cast<uintptr_t>(bytes)) {
    while (shift_ < kMostShift && (pitch_ << (shift_ + 1)) <= kPage) ++shift_;
  }
  /// For `count` rows that are read; one question for all of them where there is nothing to fetch.
  HWY_INLINE void Next(int64_t count) {
    if (HWY_LIKELY(rows_ == 0)) return;
    for (int64_t i = 0; i < count; ++i) Next();
  }
  /// For every row that is read.
  HWY_INLINE void Next() {
    if (rows_ == 0) return;
    const int64_t pages = int64_t{4} << shift_;
    const int64_t i = at_ & (pages - 1);
    const int64_t row = at_ - i + pages + ((i & 3) << shift_) + (i >> 2);
    ++at_;
    if (row >= rows_) return;
    const uintptr_t line = first_ + static_cast<uintptr_t>(row) * pitch_;
    for (uintptr_t byte = 0; byte < bytes_; byte += 64) __builtin_prefetch(reinterpret_cast<const char*>(line + byte));
  }

 private:
  static constexpr uintptr_t kPage = 4096;
  static constexpr int kMostShift = 6;  // rows of a line; a pitch of 0 has no page
  uintptr_t first_ = 0;
  int64_t rows_ = 0;
  uintptr_t pitch_ = kPage;
  uintptr_t bytes_ = 0;
  int shift_ = 0;  // 2^shift rows are a page or most of one
  int64_t at_ = 0;
};

}  // namespace highway
}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_HIGHWAY_REGISTER_TILE_H_
