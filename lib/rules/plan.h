// The rules on what an attention problem is run with: its plan, ranges of tasks, workspace and partial states.
#ifndef SIMDATTN_LIB_RULES_PLAN_H_
#define SIMDATTN_LIB_RULES_PLAN_H_

#include "lib/rules/views.h"

namespace simdattn {

Status check_attention_workspace(const Exec& exec, size_t needed);
/// `too_many`: the tasks of all sequences cannot be counted.
Status check_task_count(bool too_many);
/// `bytes`: of all partial states, 0 if they cannot be counted.
Status check_partial_bytes(bool split, size_t bytes);

/// A plan to be filled, or to be bound.
Status check_plan_size(const AttentionPlan& plan);
/// `planned`: the problem of the plan; null: it holds none.
Status check_bound_problem(const Attention& a, const Attention* planned);
/// `there`: every array of a problem with tasks is.
Status check_bound_data(bool there);

/// A plan whose tasks are to run.
Status check_planned_size(const AttentionPlan& plan);
/// What a range is held against.
struct PlannedTasks {
  const Target* target;
  bool has_data;
  bool split;
  int64_t tasks;
  int64_t reduce_tasks;
};
/// `planned` is null in a plan that was never made.
Status check_task_range(const AttentionPlan& plan, const PlannedTasks* planned, int64_t first, int64_t last,
                        bool reduce, const void* partial, size_t partial_size, const Exec& exec);
/// `same`: the lengths of the sequences are those of the plan.
Status check_planned_lengths(bool same);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_PLAN_H_
