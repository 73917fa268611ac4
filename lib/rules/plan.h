// The rules on plans of attention, and on ranges of their tasks.
#pragma once

#include "lib/rules/attention.h"

namespace simdattn {

inline constexpr Status kPartialsTooLarge = {Code::kShape, "v.dim: the partial states of all splits are too large"};
inline constexpr Status kPlanOfOtherSize = {Code::kStructSize, "plan.struct_size: not that of this version"};
inline constexpr Status kPlanOfOthers = {Code::kStructSize, "plan.struct_size: not made by this version"};
inline constexpr Status kNegativeThreads = {Code::kRange, "exec.threads: negative"};
inline constexpr Status kNoPlan = {Code::kStalePlan, "plan: not made by attention_plan"};
inline constexpr Status kChangedLengths = {
    Code::kStalePlan,
    "plan: cu_q, cu_k, kv_length, kv_start, prefix_end or offsets are not those that it was made from"};

/// Checks that all is as it was when the plan was made, but for what nothing in a plan depends on: addresses, which
/// outputs there are, and whether there are slopes, scales of the bias or sinks.
Status check_bound_problem(const AttentionProblem& a, const AttentionProblem& planned);
/// Checks that masks with a shape have data. attention() takes others as absent, but a plan that was made from shapes
/// has promised them.
Status check_masks_given(const AttentionProblem& a);
/// What check_task_range() compares a range with.
struct PlannedTasks {
  const Target* target;
  bool has_data;  // every pointer that a run needs is there
  bool split;     // tasks are (row block, split)
  int64_t tasks, reduce_tasks;
};
Status check_task_range(const Plan& plan, const PlannedTasks& planned, int64_t first, int64_t last, bool reduce,
                        const void* partial, size_t partial_size, const Exec& exec);

}  // namespace simdattn
