#include "lib/rules/plan.h"

namespace simdattn {
namespace {

template <int kRank, bool kConst>
bool same(const BasicView<kRank, kConst>& a, const BasicView<kRank, kConst>& b) {
  return a.dtype == b.dtype && same_numbers(a.shape, b.shape) && same_numbers(a.stride, b.stride);
}
bool same(const ConstKv& a, const ConstKv& b) {
  return places_of(a) == places_of(b) &&
         std::tie(a.struct_size, a.length, a.dim, a.reserved) == std::tie(b.struct_size, b.length, b.dim, b.reserved);
}
bool same(const Optional<float>& a, const Optional<float>& b) {
  return a.given == b.given && (!a || a.value == b.value);
}
/// Both are given, or neither is.
bool same(const int32_t* a, const int32_t* b) { return (a == nullptr) == (b == nullptr); }
bool same(const std::array<int64_t, 3>& a, const std::array<int64_t, 3>& b) { return same_numbers(a, b); }
template <class Number>
bool same(Number a, Number b) {
  return a == b;
}

}  // namespace

Status check_bound_problem(const AttentionProblem& a, const AttentionProblem& planned) {
#define SIMDATTN_SAME(member, rule) SIMDATTN_REQUIRE(same(a.member, planned.member), kStalePlan, #member rule)
#define SIMDATTN_ARRAY ": type, shape and strides must be those of the plan"
#define SIMDATTN_STORE ": type, layout, sizes, strides and those of its scales must be those of the plan"
#define SIMDATTN_NUMBER ": must be that of the plan"
#define SIMDATTN_PRESENCE ": must be given where it was for the plan, and only there"
  SIMDATTN_SAME(q, SIMDATTN_ARRAY);
  SIMDATTN_SAME(k, SIMDATTN_STORE);
  SIMDATTN_SAME(v, SIMDATTN_STORE);
  SIMDATTN_SAME(arithmetic, SIMDATTN_NUMBER);
  SIMDATTN_SAME(n_sequences, SIMDATTN_NUMBER);
  SIMDATTN_SAME(cu_q, SIMDATTN_PRESENCE);
  SIMDATTN_SAME(cu_k, SIMDATTN_PRESENCE);
  SIMDATTN_SAME(scoring.scale, SIMDATTN_NUMBER);
  SIMDATTN_SAME(scoring.softcap, SIMDATTN_NUMBER);
  SIMDATTN_SAME(scoring.causal, SIMDATTN_NUMBER);
  SIMDATTN_SAME(scoring.offset, SIMDATTN_NUMBER);
  SIMDATTN_SAME(scoring.window_left, SIMDATTN_NUMBER);
  SIMDATTN_SAME(scoring.window_right, SIMDATTN_NUMBER);
  SIMDATTN_SAME(scoring.chunk, SIMDATTN_NUMBER);
  SIMDATTN_SAME(scoring.offsets, SIMDATTN_PRESENCE);
  SIMDATTN_SAME(scoring.prefix_end, SIMDATTN_PRESENCE);
  SIMDATTN_SAME(scoring.kv_start, SIMDATTN_PRESENCE);
  SIMDATTN_SAME(scoring.kv_length, SIMDATTN_PRESENCE);
  SIMDATTN_SAME(scoring.bias, SIMDATTN_ARRAY);
  SIMDATTN_SAME(scoring.mask, SIMDATTN_ARRAY);
  SIMDATTN_SAME(lists.heads, SIMDATTN_NUMBER);
  SIMDATTN_SAME(lists.length, SIMDATTN_NUMBER);
  SIMDATTN_SAME(lists.block_size, SIMDATTN_NUMBER);
  SIMDATTN_SAME(lists.stride, SIMDATTN_NUMBER);
  SIMDATTN_SAME(scoring.packed_mask.columns, SIMDATTN_NUMBER);
  SIMDATTN_SAME(scoring.packed_mask.stride, SIMDATTN_NUMBER);
  return {};
}

Status check_masks_given(const AttentionProblem& a) {
  const Scoring& s = a.scoring;
  SIMDATTN_REQUIRE(s.bias.data != nullptr || is_empty(s.bias), kNullPointer, kArgument<"scoring.bias">.null);
  SIMDATTN_REQUIRE(s.mask.data != nullptr || is_empty(s.mask), kNullPointer, kArgument<"scoring.mask">.null);
  return {};
}

Status check_task_range(const Plan& plan, const PlannedTasks& planned, int64_t first, int64_t last, bool reduce,
                        const void* partial, size_t partial_size, const Exec& exec) {
  SIMDATTN_REQUIRE(exec.target == nullptr || exec.target == planned.target, kTarget,
                   "exec.target: not the one that the plan was made for");
  SIMDATTN_REQUIRE(planned.has_data || planned.tasks == 0, kNullPointer,
                   "plan: made without data; attention_bind gives it the arrays");
  SIMDATTN_REQUIRE(
      first >= 0 && first <= last && last <= (reduce ? planned.reduce_tasks : planned.tasks), kRange,
      reduce ? "first, last: must be within 0 .. plan.reduce_tasks" : "first, last: must be within 0 .. plan.tasks");
  if (planned.tasks > 0) SIMDATTN_CHECK(check_attention_workspace(exec, plan.workspace_bytes));
  if (planned.split) {
    SIMDATTN_REQUIRE(partial != nullptr, kNullPointer, "partial: null although plan.partial_bytes is not 0");
    SIMDATTN_REQUIRE(partial_size >= plan.partial_bytes, kWorkspace, "partial_bytes: less than plan.partial_bytes");
  }
  return {};
}

}  // namespace simdattn
