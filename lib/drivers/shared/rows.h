// Rows of views, those that share keys and values, and how kernels fetch these.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "dispatch/tuning.h"
#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/rules/views.h"

namespace simdattn {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

template <bool kConst>
auto row_of(const BasicView<4, kConst>& v, int64_t b, int64_t h, int64_t i) {
  using Byte = std::conditional_t<kConst, const char, char>;
  return static_cast<Byte*>(v.data) + (b * v.stride[0] + h * v.stride[1] + i * v.stride[2]) * size_of(v.dtype);
}
inline float* f32_row_of(const View<4>& v, int64_t b, int64_t h, int64_t i) {
  return reinterpret_cast<float*>(row_of(v, b, h, i));
}

/// The elements from `first` on.
template <bool kConst>
BasicView<4, kConst> part_of(BasicView<4, kConst> v, const std::array<int64_t, 4>& first,
                             const std::array<int64_t, 4>& shape) {
  v.data = row_of(v, first[0], first[1], first[2]) + first[3] * size_of(v.dtype);
  v.shape = shape;
  return v;
}

/// The scale that is given, or the default for rows of d numbers. Under the library's control word.
inline float scale_of(const Optional<float>& scale, int64_t d) {
  return scale ? *scale : 1.0f / std::sqrt(static_cast<float>(d));
}

/// Rows of q that share a key head.
struct GroupedRows {
  const ConstView<4>& q;
  int64_t kv_heads;
  int64_t group = group_of(q.shape[1], kv_heads);
  /// A single row per head (decode): the heads of a group are the rows, and their keys are read once.
  bool grouped = q.shape[2] == 1;
  int64_t rows = grouped ? group : q.shape[2];
  int64_t next_head = grouped ? 1 : 0;  // from row to row

  /// From row to row, in elements.
  template <bool kConst>
  int64_t stride(const BasicView<4, kConst>& v) const {
    return step_of(v, grouped ? 1 : 2);
  }
  /// f(sequence, key head, head of row 0, first row, rows), at most `most` rows at a time.
  template <class F>
  void for_each(int64_t most, const F& f) const {
    for (int64_t b = 0; b < q.shape[0]; ++b) {
      for (int64_t h = 0; h < kv_heads * group; h += grouped ? group : 1) {
        for (int64_t i = 0; i < rows; i += most) f(b, h / group, h, i, std::min(most, rows - i));
      }
    }
  }
  /// Rows that share the packing of keys or values, where these are packed.
  static constexpr int64_t kPacked = 64;
  /// f(sequence, key head, first row, rows), at most kPacked rows at a time of those of all heads of a key head.
  template <class F>
  void for_each_block(const F& f) const {
    const int64_t all = group * q.shape[2];
    for (int64_t b = 0; b < q.shape[0]; ++b) {
      for (int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        for (int64_t i = 0; i < all; i += kPacked) f(b, kv_head, i, std::min(kPacked, all - i));
      }
    }
  }
  /// Row r of those of all heads of a key head.
  template <bool kConst>
  auto row(const BasicView<4, kConst>& v, int64_t b, int64_t kv_head, int64_t r) const {
    return row_of(v, b, kv_head * group + r / q.shape[2], r % q.shape[2]);
  }
};

/// More bytes than this do not stay in one user's share of L3, so they come from memory at each call.
inline constexpr double kCacheBytes = 32 << 20;

/// Where `bytes` come from that one call reads: from beyond L2 if they are more than `stream`. Doubles, because sizes
/// may be anything where strides are 0.
inline Fetch fetch_of(double bytes, double stream) {
  if (bytes <= stream) return Fetch::kNone;
  if (bytes <= kCacheBytes) return Fetch::kMemory;
  const Tuning tuning = tuning_of_cpu();
  return tuning.memory_in_pages ? Fetch::kPages : tuning.memory_by_hardware ? Fetch::kHardware : Fetch::kMemory;
}

inline double bytes_of(const ConstView<4>& v) {
  return static_cast<double>(v.shape[0] * v.shape[1]) * static_cast<double>(v.shape[2]) *
         static_cast<double>(v.shape[3] * size_of(v.dtype));
}

}  // namespace simdattn
