// The rules on what is done to rows by their positions: rope(), rope_direct() and add_rows().
#ifndef SIMDATTN_LIB_RULES_ROPE_H_
#define SIMDATTN_LIB_RULES_ROPE_H_

#include "lib/rules/views.h"

namespace simdattn {

/// `empty`: there is nothing to write.
Status check_rope(const ConstView<4>& x, const ConstView<2>& cos, const ConstView<2>& sin,
                  const ConstView<2>& positions, const View<4>& out, const RopeOptions& options, bool* empty);
Status check_add_rows(const ConstView<4>& x, const ConstView<4>& p, const View<4>& out, bool* empty);

/// The bytes of the rows of rope_direct().
struct RopeDirectBytes {
  ByteSet x;
  ByteSet out;
};
/// What comes before the rules on the table's options.
Status check_rope_direct_rows(const ConstView<4>& x, int64_t pairs, const View<4>& out, const RopeOptions& options,
                              RopeDirectBytes* bytes);
/// What comes after them. `axes`: of positions, as the options tell; `needed`: bytes of the workspace that the call uses.
Status check_rope_direct_positions(const ConstView<4>& x, const RopeTableOptions& table, int64_t axes,
                                   const ConstView<3>& positions, const View<4>& out, const RopeOptions& options,
                                   const RopeDirectBytes& bytes, const Exec& exec, size_t needed);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_ROPE_H_
