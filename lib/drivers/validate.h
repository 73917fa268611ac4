// The rules on arguments, and the sentences that name them. Everything is checked before the first write.
#ifndef SIMDATTN_LIB_DRIVERS_VALIDATE_H_
#define SIMDATTN_LIB_DRIVERS_VALIDATE_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "include/simdattn/simdattn.h"

namespace simdattn {

/// Largest size of a dimension and of |offset|: positions and their differences fit 32 bits.
inline constexpr int64_t kMaxSize = (int64_t{1} << 30) - 1;

/// The sentences about one argument.
struct Argument {
  const char* null;
  const char* dtype;
  const char* shape;
  const char* stride;
  const char* range;
  const char* self_overlap;
  const char* overlap;
};
#define SIMDATTN_ARGUMENT_TEXT(name)                                                     \
  ::simdattn::Argument{name ".data: null although its shape is not empty",               \
                       name ".dtype: not a type accepted here",                          \
                       name ".shape: every size must be in 0 .. 2^30 - 1",               \
                       name ".stride: the last dimension must be contiguous (stride 1)", \
                       name ".stride: too large for 64-bit addresses",                   \
                       name ".stride: elements of an output must not coincide",          \
                       name ": overlaps another argument"}
/// A constant: no call puts the sentences together.
#define SIMDATTN_ARGUMENT(name)                                                 \
  ([]() -> const ::simdattn::Argument& {                                        \
    static constexpr ::simdattn::Argument kText = SIMDATTN_ARGUMENT_TEXT(name); \
    return kText;                                                               \
  }())

/// Which types an argument may have: bit size_t(DType) of those.
enum class Accept : uint8_t {
  kF32 = 1 << static_cast<int>(DType::kF32),
  kStorage = 1 << static_cast<int>(DType::kBF16) | 1 << static_cast<int>(DType::kF16) | kF32,
  kIndex = 1 << static_cast<int>(DType::kI32) | 1 << static_cast<int>(DType::kI64),
  kMask = 1 << static_cast<int>(DType::kU8)
};

/// Bytes [first, last) that a view touches, and what is needed to tell apart views that interleave. Refers to the
/// view's shape and stride, so it must not outlive the view. Nothing but `first` and `last` is set while it is empty.
struct Extent {
  uintptr_t first = 0;
  uintptr_t last = 0;
  uintptr_t data;
  uint64_t row_bytes;  // of the contiguous last dimension
  const int64_t* shape;
  const int64_t* stride;
  int outer;  // dimensions beside the last
  int64_t size;
  bool empty() const { return first == last; }
  void clear() { first = last = 0; }
};
/// `bytes` contiguous bytes; empty if there are none or `data` is null.
Extent extent_of(const void* data, int64_t bytes);

/// Checks a view on its own and computes its extent. Empty views pass with any pointer; what is not const is an output.
template <int kRank, bool kConst>
Status check_view(const BasicView<kRank, kConst>& v, Accept accept, const Argument& argument, Extent* extent);

/// True if the extents have a byte in common, whether a view touches it or not.
inline bool meet(const Extent& a, const Extent& b) {
  return !a.empty() && !b.empty() && a.first < b.last && b.first < a.last;
}
/// overlap() of two that meet.
bool overlap_inside(const Extent& a, const Extent& b);
/// True if the two may share a byte. Exact for views whose rows interleave at a common step; otherwise by extent.
inline bool overlap(const Extent& a, const Extent& b) { return meet(a, b) && overlap_inside(a, b); }

/// operator== of std::array calls memcmp, which waits until the numbers that the caller has just stored one by one can
/// be loaded as vectors.
template <size_t kRank>
bool same_numbers(const std::array<int64_t, kRank>& a, const std::array<int64_t, kRank>& b) {
  uint64_t difference = 0;
  for (size_t i = 0; i < kRank; ++i) difference |= static_cast<uint64_t>(a[i] ^ b[i]);
  return difference == 0;
}

/// Query heads per key head, or -1 if they do not divide. Checked sizes fit 32 bits, whose division takes half the time.
inline int64_t group_of(int64_t heads, int64_t kv_heads) {
  const int64_t group = static_cast<uint32_t>(heads) / static_cast<uint32_t>(kv_heads);
  return group * kv_heads == heads ? group : -1;
}

/// True if both views are the same elements (an in-place call).
template <int kRank, bool kA, bool kB>
bool same_elements(const BasicView<kRank, kA>& a, const BasicView<kRank, kB>& b) {
  return a.data == b.data && a.dtype == b.dtype && same_numbers(a.stride, b.stride);
}

template <int kRank, bool kA, bool kB>
bool same_shape(const BasicView<kRank, kA>& a, const BasicView<kRank, kB>& b) {
  return same_numbers(a.shape, b.shape);
}

#define SIMDATTN_CHECK(expression)                                        \
  do {                                                                    \
    if (const ::simdattn::Status status_ = (expression); !status_.ok()) { \
      return status_;                                                     \
    }                                                                     \
  } while (false)

#define SIMDATTN_REQUIRE(condition, code, sentence)              \
  do {                                                           \
    if (!(condition)) return ::simdattn::Status{code, sentence}; \
  } while (false)

/// Everything in `scoring` for a batch of `batch` sequences; masks must match [batch or 1 with varlen, heads, n_q, n_kv].
/// lengths: what kv_start and kv_length are bounded by, per sequence.
struct ScoringShape {
  int64_t sequences;   // entries of the per-sequence arrays
  int64_t mask_batch;  // shape of bias and keep
  int64_t heads;
  int64_t mask_rows;
  int64_t mask_columns;
};
Status check_scoring(const Scoring& scoring, const ScoringShape& shape);
/// The per-sequence entries of sequence `b` with `n_kv` keys.
Status check_sequence(const Scoring& scoring, int64_t b, int64_t n_kv);
/// True if an output extent touches a mask, a bias or one of the per-head and per-sequence arrays.
bool overlaps_scoring(const Extent& output, const Scoring& scoring, const ScoringShape& shape);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_VALIDATE_H_
