// Sets of bytes that strided arrays touch, and whether two of them share a byte.
#pragma once

#include <cstddef>
#include <cstdint>

namespace simdattn {

/// The bytes of a strided array: a contiguous run of `width` bytes, repeated by every dimension. All of them lie in
/// [first, first + span). Made of the run and then its repetitions:
///
///     ByteSet set = ByteSet::of(data, row_bytes);
///     if (!set.add(tokens, token_stride, element_size)) return too_large;
///     if (!set.add(heads, head_stride, element_size)) return too_large;
///
/// It holds numbers alone, no pointer into what it was made from. self_overlap() is fastest for dimensions that were
/// added from the innermost to the outermost, and answers the same for every order.
struct ByteSet {
  static constexpr int kMaxDims = 4;
  /// Largest `width`.
  static constexpr int64_t kMaxWidth = int64_t{1} << 58;
  /// Largest |step| * (count - 1) in bytes: beyond every address space in use, and no sum of those of two sets comes
  /// near 2^63.
  static constexpr int64_t kMaxReach = int64_t{1} << 58;

  uint64_t first;           // where addresses have 32 bits, too: it may wrap on its way
  int64_t span;             // 0 in a set of no bytes
  int64_t width;            // of the contiguous run
  int outer;                // dimensions in use, which alone are written
  bool nested;              // if so, every step goes beyond all that was added before, and no byte comes twice
  int64_t step[kMaxDims];   // in bytes, of any sign; `first` is moved already. 0 where the same bytes come again
  int32_t count[kMaxDims];  // at least 2

  ByteSet() { clear(); }
  /// `bytes` contiguous bytes, at most kMaxWidth; none if `data` is null or `bytes` is not positive.
  static ByteSet of(const void* data, int64_t bytes) {
    ByteSet set;
    if (data != nullptr && bytes > 0) set.restart(data, bytes);  // no fault: no bytes are empty wherever they begin
    return set;
  }
  /// The same of any address, and of a size that is not negative.
  void restart(const void* data, int64_t bytes) {
    first = reinterpret_cast<uintptr_t>(data);
    span = width = bytes;
    outer = 0;
    nested = true;
  }
  void clear() { restart(nullptr, 0); }
  bool empty() const { return span == 0; }

  /// Repeats the set `times` times (1 .. 2^30) at every `stride` units of `unit` bytes (1 .. 2^30), of any sign. False,
  /// with the set as it was, if it would reach further than kMaxReach. Not for an empty set; at most kMaxDims times.
  [[nodiscard]] bool add(int64_t times, int64_t stride, int64_t unit = 1) {
    if (times == 1) return true;  // its stride means nothing
    int64_t reach;
    if (__builtin_mul_overflow(stride, (times - 1) * unit, &reach) || reach > kMaxReach || reach < -kMaxReach) {
      return false;
    }
    const int64_t down = reach >> 63 & reach;
    nested = nested && stride * unit >= span;
    first += static_cast<uint64_t>(down);
    span += reach - 2 * down;
    count[outer] = static_cast<int32_t>(times);
    step[outer++] = stride * unit;
    return true;
  }
};

/// Partial sums that a decision may look at. See share_bytes().
inline constexpr int kOverlapWork = 1 << 10;

/// True if [first, first + span) of both meet. By distances, which are right even where an address wraps.
inline bool extents_meet(const ByteSet& a, const ByteSet& b) {
  const uint64_t distance = b.first - a.first;
  return (distance < static_cast<uint64_t>(a.span) && b.span != 0) ||
         (uint64_t{0} - distance < static_cast<uint64_t>(b.span) && a.span != 0);
}
/// share_bytes() of two whose extents meet. Takes what it tried off `*left`; true when that becomes negative.
bool share_bytes_inside(const ByteSet& a, const ByteSet& b, int* left);
/// self_overlap() of one whose dimensions were not added in nested order.
bool self_overlap_inside(const ByteSet& a, int* left);

/// True if the two sets have a byte in common, or may have: no answer is false wrongly.
///
/// The question is whether a sum of i[k] * step[k] over the dimensions of both falls into an interval. The largest step
/// leaves a few i to try, where dimensions nest: dense arrays with their dimensions in any order, with gaps behind rows
/// or matrices, reversed, and parts of one packed buffer are decided exactly. Arrays that interleave without such an
/// order are taken for overlapping after kOverlapWork tries.
inline bool share_bytes(const ByteSet& a, const ByteSet& b) {
  if (!extents_meet(a, b)) [[likely]]
    return false;
  int left = kOverlapWork;
  return share_bytes_inside(a, b, &left);
}

/// True if two different index tuples of the set touch a common byte. Exact as share_bytes is.
inline bool self_overlap(const ByteSet& a) {
  if (a.nested) [[likely]]
    return false;
  int left = kOverlapWork;
  return self_overlap_inside(a, &left);
}

}  // namespace simdattn
