#include "lib/rules/values.h"

#include "lib/rules/workspace.h"

namespace simdattn {

Status check_weighted_values(const ConstView<4>& p, const ConstView<4>& v, const View<4>& out,
                             const ValueOptions& options, const Exec& exec, size_t needed) {
  ByteSet ep, ev, eo;
  SIMDATTN_REQUIRE(is_arithmetic(options.arithmetic), Code::kRange, "options.arithmetic: not an Arithmetic");
  SIMDATTN_CHECK(check_view(p, Accept::kF32, SIMDATTN_ARGUMENT("p"), &ep));
  SIMDATTN_CHECK(check_view(v, Accept::kElements, SIMDATTN_ARGUMENT("v"), &ev));
  SIMDATTN_CHECK(check_view(out, Accept::kElements, SIMDATTN_ARGUMENT("out"), &eo));
  SIMDATTN_REQUIRE(v.shape[0] == p.shape[0], Code::kShape, "v.shape[0] != p.shape[0]");
  SIMDATTN_REQUIRE(v.shape[1] >= 1, Code::kShape, "v.shape[1]: there must be at least one value head");
  SIMDATTN_REQUIRE(group_of(p.shape[1], v.shape[1]) >= 0, Code::kShape,
                   "p.shape[1]: query heads must be a multiple of value heads");
  SIMDATTN_REQUIRE(v.shape[2] == p.shape[3], Code::kShape, "v.shape[2] != p.shape[3]");
  SIMDATTN_REQUIRE(v.shape[3] >= 1, Code::kShape, "v.shape[3]: the head dimension must be at least 1");
  SIMDATTN_REQUIRE(out.shape[0] == p.shape[0] && out.shape[1] == p.shape[1] && out.shape[2] == p.shape[2] &&
                       out.shape[3] == v.shape[3],
                   Code::kShape, "out.shape: must be [p.shape[0], p.shape[1], p.shape[2], v.shape[3]]");
  SIMDATTN_REQUIRE(!share_bytes(eo, ep), Code::kOverlap, "out: overlaps p");
  SIMDATTN_REQUIRE(!share_bytes(eo, ev), Code::kOverlap, "out: overlaps v");
  if (options.arithmetic == Arithmetic::kF32) return {};
  ByteSet memory;
  return check_workspace(
      exec, needed,
      {{ep, "exec.workspace: overlaps p"}, {ev, "exec.workspace: overlaps v"}, {eo, "exec.workspace: overlaps out"}},
      &memory);
}

}  // namespace simdattn
