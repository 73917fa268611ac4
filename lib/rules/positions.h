// Position ids and rotary tables: shared by rope() and what rotates keys of a cache.
#ifndef SIMDATTN_LIB_RULES_POSITIONS_H_
#define SIMDATTN_LIB_RULES_POSITIONS_H_

#include "lib/rules/views.h"

namespace simdattn {

/// positions[b, i], or start + i where the view is absent.
inline int64_t position_at(const ConstView<2>& positions, int64_t start, int64_t b, int64_t i) {
  if (positions.data == nullptr) return start + i;
  const int64_t at = b * positions.stride[0] + i * positions.stride[1];
  return positions.dtype == DType::kI32 ? static_cast<const int32_t*>(positions.data)[at]
                                        : static_cast<const int64_t*>(positions.data)[at];
}

/// Row p of cos or sin. Rows without columns are all the same one, whatever the stride.
inline const float* table_row(const ConstView<2>& table, int64_t p) {
  return static_cast<const float*>(table.data) + (table.shape[1] == 0 ? 0 : p * table.stride[0]);
}

/// Every position in low .. limit - 1; where the view is absent, positions are start .. start + n - 1.
inline Status check_positions(const ConstView<2>& positions, int64_t start, int64_t batch, int64_t n, int64_t low,
                              int64_t limit, ByteSet* extent) {
  extent->clear();
  if (positions.data == nullptr) {
    SIMDATTN_REQUIRE(start >= 0 && (start < limit || (start == limit && n == 0)), Code::kRange,
                     "options.start: not a row of cos and sin");
    SIMDATTN_REQUIRE(n <= limit - start || batch == 0, Code::kRange,
                     "options.start: start + rows are more than the rows of cos and sin");
    return {};
  }
  SIMDATTN_CHECK(check_view(positions, Accept::kIndex, SIMDATTN_ARGUMENT("positions"), extent));
  SIMDATTN_REQUIRE(positions.shape[0] == batch && positions.shape[1] == n, Code::kShape,
                   "positions.shape: must be [batch, rows]");
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t i = 0; i < n; ++i) {
      const int64_t p = position_at(positions, start, b, i);
      SIMDATTN_REQUIRE(p >= low && p < limit, Code::kRange,
                       "positions: outside the rows 0 .. n_positions-1 of cos and sin");
    }
  }
  return {};
}

/// The sentences about a rotation, whose arguments are called cos, sin and options, or members of another one.
struct RopeText {
  Argument cos;
  Argument sin;
  const char* shape;
  const char* pairing;
  const char* first_dim;
  const char* too_many;  // pairs that do not fit the dimension
};
#define SIMDATTN_ROPE_TEXT(prefix)                             \
  {SIMDATTN_ARGUMENT_TEXT(prefix "cos"),                       \
   SIMDATTN_ARGUMENT_TEXT(prefix "sin"),                       \
   prefix "sin.shape != " prefix "cos.shape",                  \
   prefix "options.pairing: not a RopePairing",                \
   prefix "options.first_dim: must be in 0 .. head dimension", \
   prefix "cos.shape[1]: first_dim + 2 * pairs exceeds the head dimension"}
inline constexpr RopeText kRope = SIMDATTN_ROPE_TEXT("");
inline constexpr RopeText kAppendRope = SIMDATTN_ROPE_TEXT("options.rope.");
inline constexpr RopeText kShiftRope = SIMDATTN_ROPE_TEXT("rope.");

inline Status check_rope_options(const RopeOptions& options, int64_t pairs, int64_t dim, const RopeText& text,
                                 const char* too_many) {
  SIMDATTN_REQUIRE(options.pairing == RopePairing::kInterleaved || options.pairing == RopePairing::kHalfSplit,
                   Code::kRange, text.pairing);
  SIMDATTN_REQUIRE(options.first_dim >= 0 && options.first_dim <= dim, Code::kRange, text.first_dim);
  SIMDATTN_REQUIRE(pairs <= (dim - options.first_dim) / 2, Code::kShape, too_many);
  return {};
}

inline Status check_rope_table(const ConstView<2>& cos, const ConstView<2>& sin, const RopeOptions& options,
                               int64_t dim, const RopeText& text, ByteSet* cos_extent, ByteSet* sin_extent) {
  SIMDATTN_CHECK(check_view(cos, Accept::kF32, text.cos, cos_extent));
  SIMDATTN_CHECK(check_view(sin, Accept::kF32, text.sin, sin_extent));
  SIMDATTN_REQUIRE(same_shape(cos, sin), Code::kShape, text.shape);
  return check_rope_options(options, cos.shape[1], dim, text, text.too_many);
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_POSITIONS_H_
