// The rules on tables: of cos and sin, of the sinusoidal encoding, of ALiBi's slopes.
#ifndef SIMDATTN_LIB_RULES_TABLES_H_
#define SIMDATTN_LIB_RULES_TABLES_H_

#include "lib/rules/views.h"

namespace simdattn {

/// |position| is below this.
inline constexpr int64_t kPositionLimit = int64_t{1} << 31;
inline constexpr int64_t kMaxColumns = int64_t{1} << 20;

inline int64_t index_at(const void* data, DType dtype, int64_t i) {
  return dtype == DType::kI32 ? static_cast<const int32_t*>(data)[i] : static_cast<const int64_t*>(data)[i];
}

/// The options of a table with `pairs` columns. `table`: the argument is called so, not `options`.
Status check_rope_table_options(const RopeTableOptions& options, int64_t pairs, bool table);
/// The natural logarithm of the theta that kDynamic makes of the given one.
Status check_raised_theta(double ln_theta, bool table);
/// True if an output shares bytes with an array of the options.
bool overlaps_options(const ByteSet& output, const RopeTableOptions& options);

/// rope_frequencies(), but for the options.
Status check_rope_frequencies(const double* inv_freq, int64_t pairs, const double* attention_factor,
                              const RopeTableOptions& options);

/// The bytes of the outputs of rope_table().
struct RopeTableBytes {
  ByteSet cos;
  ByteSet sin;
};
/// What comes before the rules on the options.
Status check_rope_table_outputs(const View<2>& cos, const View<2>& sin, RopeTableBytes* bytes);
/// What comes after them. `axes`: of positions, as the options tell.
Status check_rope_table_positions(const View<2>& cos, const RopeTableOptions& options, int64_t axes,
                                  const ConstView<2>& positions, int64_t first, const RopeTableBytes& bytes);

Status check_sinusoidal_table(const View<2>& out, double base, const ConstView<1>& positions, int64_t first);
Status check_alibi_slopes(int64_t heads, const float* slopes);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_TABLES_H_
