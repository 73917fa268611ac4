// The columns of a rope table: shared by rope_table() and rope_direct().
#ifndef SIMDATTN_LIB_DRIVERS_ROPE_ROPE_COLUMNS_H_
#define SIMDATTN_LIB_DRIVERS_ROPE_ROPE_COLUMNS_H_

#include <cstdint>

#include "include/simdattn/simdattn.h"
#include "lib/drivers/tables/angles.h"
#include "lib/drivers/tables/double_double.h"
#include "lib/rules/views.h"

namespace simdattn {

/// Options with defaults filled in, and what every column needs of them.
struct RopeScaling {
  const RopeTableOptions* options = nullptr;
  int64_t pairs = 0;
  double factor = 1;
  double original_max = 0;
  DoubleDouble ln_theta;
  DoubleDouble ramp_low;  // kYarn
  DoubleDouble ramp_high;
  int64_t rotated = 0;    // kProportional: columns that rotate
  Doubles long_or_short;  // kLongRope
  double attention_factor = 1;
  float theta_f32 = 0;
  DoubleDouble ln_theta_f32;
  int64_t axes = 1;
};

/// Checks the options of a table with `pairs` columns. `table`: the argument is called so, not `options`.
Status resolve_rope_scaling(const RopeTableOptions& options, int64_t pairs, bool table, RopeScaling* scaling);

/// What one column's angles are made of.
struct RopeColumn {
  Turns turns{};
  float inv = 0;     // f32_angles
  int32_t axis = 0;  // of the position
};

/// Columns begin .. end-1. one_axis: positions have a single axis, whatever the options say.
void rope_columns(const RopeScaling& scaling, bool one_axis, int64_t begin, int64_t end, RopeColumn* columns);
/// cos and sin of `n` columns at a position with up to four axes.
void rope_row(const RopeScaling& scaling, const RopeColumn* columns, int64_t n, const int64_t* position, float* cos,
              float* sin);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_ROPE_ROPE_COLUMNS_H_
