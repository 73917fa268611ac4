#include "lib/rules/plan.h"

#include "lib/rules/attention.h"

namespace simdattn {

Status check_attention_workspace(const Exec& exec, size_t needed) {
  SIMDATTN_REQUIRE(exec.workspace != nullptr, Code::kWorkspace,
                   "exec.workspace: null; see AttentionPlan::workspace_bytes");
  SIMDATTN_REQUIRE(exec.workspace_bytes >= needed, Code::kWorkspace,
                   "exec.workspace_bytes: less than AttentionPlan::workspace_bytes");
  return {};
}

Status check_task_count(bool too_many) {
  SIMDATTN_REQUIRE(!too_many, Code::kShape, "q.shape: rows and heads of all sequences are more than 2^63 tasks");
  return {};
}

Status check_partial_bytes(bool split, size_t bytes) {
  SIMDATTN_REQUIRE(!split || bytes > 0, Code::kShape, "v.dim: the partial states of all splits are too large");
  return {};
}

Status check_plan_size(const AttentionPlan& plan) {
  SIMDATTN_REQUIRE(plan.struct_size == sizeof(AttentionPlan), Code::kStructSize,
                   "plan.struct_size: not that of this version");
  return {};
}

Status check_bound_problem(const Attention& a, const Attention* planned) {
  SIMDATTN_REQUIRE(planned != nullptr, Code::kStalePlan, "plan: not made by attention_plan");
  const char* const different = problem_difference(a, *planned);
  SIMDATTN_REQUIRE(different == nullptr, Code::kStalePlan, different);
  return {};
}

Status check_bound_data(bool there) {
  SIMDATTN_REQUIRE(there, Code::kNullPointer, "problem: arrays are still null");
  return {};
}

Status check_planned_size(const AttentionPlan& plan) {
  SIMDATTN_REQUIRE(plan.struct_size == sizeof(AttentionPlan), Code::kStructSize,
                   "plan.struct_size: not made by this version");
  return {};
}

Status check_task_range(const AttentionPlan& plan, const PlannedTasks* planned, int64_t first, int64_t last,
                        bool reduce, const void* partial, size_t partial_size, const Exec& exec) {
  SIMDATTN_REQUIRE(planned != nullptr, Code::kStalePlan, "plan: not made by attention_plan");
  SIMDATTN_REQUIRE(exec.target == nullptr || exec.target == planned->target, Code::kTarget,
                   "exec.target: not the one that the plan was made for");
  SIMDATTN_REQUIRE(planned->has_data || planned->tasks == 0, Code::kNullPointer,
                   "plan: made without data; attention_bind gives it the arrays");
  SIMDATTN_REQUIRE(
      first >= 0 && first <= last && last <= (reduce ? planned->reduce_tasks : planned->tasks), Code::kRange,
      reduce ? "first, last: must be within 0 .. plan.reduce_tasks" : "first, last: must be within 0 .. plan.tasks");
  if (planned->tasks > 0) SIMDATTN_CHECK(check_attention_workspace(exec, plan.workspace_bytes));
  if (planned->split) {
    SIMDATTN_REQUIRE(partial != nullptr, Code::kNullPointer, "partial: null although plan.partial_bytes is not 0");
    SIMDATTN_REQUIRE(partial_size >= plan.partial_bytes, Code::kWorkspace,
                     "partial_bytes: less than plan.partial_bytes");
  }
  return {};
}

Status check_planned_lengths(bool same) {
  SIMDATTN_REQUIRE(same, Code::kStalePlan,
                   "plan: cu_q, cu_k, kv_length, kv_start, prefix_end or offsets are not those that it was made from");
  return {};
}

}  // namespace simdattn
