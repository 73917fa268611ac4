// What rope_table and sinusoidal_table share: which positions a table is for.
#ifndef SIMDATTN_LIB_DRIVERS_TABLE_POSITIONS_H_
#define SIMDATTN_LIB_DRIVERS_TABLE_POSITIONS_H_

#include <cstdint>

#include "lib/rules/views.h"

namespace simdattn {

inline constexpr double kMaxTheta = 1e15;
/// |position| is below this.
inline constexpr int64_t kPositionLimit = int64_t{1} << 31;
inline constexpr int64_t kMaxColumns = int64_t{1} << 20;
/// Columns whose constants stand on the stack while all rows are filled.
inline constexpr int64_t kColumnChunk = 64;

/// False for NaN.
static inline bool within(double x, double low, double high) { return x >= low && x <= high; }

static inline int64_t index_at(const void* data, DType dtype, int64_t i) {
  return dtype == DType::kI32 ? static_cast<const int32_t*>(data)[i] : static_cast<const int64_t*>(data)[i];
}

/// positions [axes, n], or first, first + 1, ... where absent.
static inline Status check_table_positions(const ConstView<2>& positions, int64_t first, int64_t n, ByteSet* extent) {
  extent->clear();
  if (positions.data == nullptr) {
    SIMDATTN_REQUIRE(positions.shape[0] == 0 || positions.shape[1] == 0, Code::kNullPointer,
                     "positions.data: null although its shape is not empty");
    SIMDATTN_REQUIRE(first > -kPositionLimit && first < kPositionLimit && n <= kPositionLimit - first, Code::kRange,
                     "first: every position must be in (-2^31, 2^31)");
    return {};
  }
  SIMDATTN_CHECK(check_view(positions, Accept::kIndex, SIMDATTN_ARGUMENT("positions"), extent));
  for (int64_t a = 0; a < positions.shape[0]; ++a) {
    for (int64_t i = 0; i < positions.shape[1]; ++i) {
      const int64_t p = index_at(positions.data, positions.dtype, a * positions.stride[0] + i * positions.stride[1]);
      SIMDATTN_REQUIRE(p > -kPositionLimit && p < kPositionLimit, Code::kRange,
                       "positions: every position must be in (-2^31, 2^31)");
    }
  }
  return {};
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_TABLE_POSITIONS_H_
