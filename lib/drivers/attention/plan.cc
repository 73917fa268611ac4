// Fused attention in parts: attention_plan() keeps what checking and dividing a problem has found in a Plan, from which
// attention_range() runs tasks. attention_bind() gives the plan the arrays of another problem of the same shapes.
#include <algorithm>
#include <new>

#include "dispatch/target.h"
#include "lib/drivers/attention/row_block.h"
#include "lib/drivers/drivers.h"
#include "lib/rules/plan.h"

namespace simdattn {
namespace {

/// A plan remembers its sequences in at most so many groups of equal size: where tasks begin, and a digest of lengths.
constexpr int64_t kMaxGroups = 24;
/// For how many threads a problem is divided whose caller does not tell.
constexpr int64_t kUnknownThreads = 4;
/// PlanState::mark of a plan that attention_plan() made: "attnapln".
constexpr uint64_t kPlanMark = 0x6E6C7061'6E747461u;

/// What Plan::internal holds.
struct PlanState {
  uint64_t mark;
  AttentionProblem problem;
  Division division;
  PlannedTasks tasks;
  int64_t groups;
  int64_t group_size;  // sequences of a group
  struct Group {
    int64_t first_task;
    uint64_t lengths;  // digest_of() its sequences
  } group[kMaxGroups];
  ProblemBytes bytes;  // of the problem's arrays: workspace and partial states must lie elsewhere
};
static_assert(sizeof(PlanState) <= sizeof(Plan::internal));
static_assert(std::is_trivially_copyable_v<PlanState> && alignof(PlanState) <= alignof(uint64_t));

const PlanState* state_of(const Plan& plan) {
  const auto* s = reinterpret_cast<const PlanState*>(plan.internal.data());
  return s->mark == kPlanMark ? s : nullptr;
}

/// A digest of all that says where sequences [first, last) begin and end, and at which positions their rows stand.
uint64_t digest_of(const AttentionProblem& a, int64_t first, int64_t last) {
  uint64_t h = 0;
  const auto add = [&](const int32_t* numbers, int64_t end) {
    for (int64_t s = first; numbers != nullptr && s < end; ++s) {
      h = h * 0x9E3779B97F4A7C15u + static_cast<uint32_t>(numbers[s]);
    }
  };
  add(a.cu_q, last + 1);
  add(a.cu_k, last + 1);
  add(a.scoring.kv_length, last);
  add(a.scoring.kv_start, last);
  add(a.scoring.prefix_end, last);
  add(a.scoring.offsets, last);
  return h;
}

/// True if no pointer is null that a run follows.
bool has_data(const AttentionProblem& a) {
  const auto view = [](const ConstView<4>& v) { return v.data != nullptr || is_empty(v); };
  const auto store = [](const ConstKv& kv) {
    const bool empty = (kv.page_size > 0 ? kv.n_pages : kv.batch) <= 0 || kv.heads <= 0 || kv.capacity <= 0;
    return (empty || (kv.data != nullptr && (kv.scales != nullptr || !writes_scales(kv.type)))) &&
           (kv.page_size == 0 || kv.block_table != nullptr || kv.batch == 0);
  };
  const bool output = a.out.data != nullptr || a.lse.data != nullptr || a.acc.data != nullptr;
  return output && view(a.q) && store(a.k) && store(a.v) && view(a.scoring.bias) && view(a.scoring.mask) &&
         (a.scoring.packed_mask.columns == 0 || a.scoring.packed_mask.data != nullptr) &&
         (a.lists.heads == 0 || a.lists.length == 0 || a.lists.data != nullptr || is_empty(a.q));
}

/// Checks the places of tasks [first, last), each as often as heads differ in them. `at`: at the first one.
Status check_places_of(const AttentionProblem& a, const Division& d, TaskIterator at, int64_t first, int64_t last) {
  const bool by_head = a.lists.heads > 1;
  RowBlockIndex done = {-1, 0, 0};
  for (int64_t t = first; t < last; ++t, at.next()) {
    const RowBlockIndex index = at.row_block();
    const bool other_split =
        index.sequence == done.sequence && index.kv_head == done.kv_head && index.first_row == done.first_row;
    const bool as_head_before = !by_head && index.kv_head > 0 && t - at.tasks_between_heads() >= first;
    if (other_split || as_head_before) continue;
    done = index;  // no fault: what is checked again is as right
    const int64_t head = by_head ? index.kv_head : 0;
    const int64_t end = std::min(index.first_row + d.row_block(), sequence_of(a, index.sequence).n_q * d.sizes.group);
    SIMDATTN_CHECK(check_places(a, d, index.sequence, {head, head + 1}, index.first_row / d.sizes.group,
                                (end - 1) / d.sizes.group + 1));
  }
  return {};
}

}  // namespace

Status drivers::attention_plan(const AttentionProblem& a, Plan* plan, const Exec& exec) {
  const Target* target = nullptr;
  SIMDATTN_CHECK(resolve(exec, &target));
  if (exec.threads < 0) return kNegativeThreads;
  if (plan->struct_size != sizeof *plan) return kPlanOfOtherSize;
  const Data data = has_data(a) ? Data::kNeeded : Data::kLater;
  ProblemBytes bytes;
  Division d;
  SIMDATTN_CHECK(check_attention(a, data, &d.sizes, &bytes));
  SIMDATTN_CHECK(divide(a, exec.threads == 0 ? kUnknownThreads : exec.threads, &d));
  const size_t partial = d.split ? partial_bytes(d) : 0;
  if (d.split && partial == 0) return kPartialsTooLarge;

  PlanState* s = new (plan->internal.data()) PlanState;
  s->problem = a;
  s->bytes = bytes;
  s->division = d;
  s->tasks = {target, data == Data::kNeeded, d.split, d.tasks, d.split ? d.row_blocks : 0};
  const int64_t sequences = d.sizes.sequences;
  s->group_size = std::max(steps_of(sequences, kMaxGroups), int64_t{1});
  s->groups = steps_of(sequences, s->group_size);
  int64_t tasks = 0;
  for (int64_t g = 0; g < s->groups; ++g) {
    const int64_t first = g * s->group_size;
    const int64_t last = std::min(first + s->group_size, sequences);
    s->group[g] = {tasks, digest_of(a, first, last)};
    const int64_t same = same_lengths(a) ? last - first : 1;
    for (int64_t sequence = first; sequence < last; sequence += same) {
      tasks += SequenceTasks(a, d, sequence).tasks * same;
    }
  }
  plan->tasks = d.tasks;
  plan->reduce_tasks = s->tasks.reduce_tasks;
  plan->workspace_bytes = d.tasks == 0 ? 0 : AttentionRun{a, d, *target->kernels, nullptr}.memory.w.bytes();
  plan->partial_bytes = partial;
  s->mark = kPlanMark;
  return {};
}

Status drivers::attention_bind(const AttentionProblem& a, Plan* plan) {
  if (plan->struct_size != sizeof *plan) return kPlanOfOtherSize;
  auto* s = const_cast<PlanState*>(state_of(*plan));
  if (s == nullptr) return kNoPlan;
  SIMDATTN_CHECK(check_bound_problem(a, s->problem));
  AttentionSizes sizes;
  ProblemBytes bytes;
  SIMDATTN_CHECK(check_attention(a, Data::kNeeded, &sizes, &bytes));
  if (s->tasks.tasks > 0) SIMDATTN_CHECK(check_masks_given(a));
  s->problem = a;
  s->bytes = bytes;
  s->tasks.has_data = true;
  return {};
}

Status drivers::attention_range(const Plan& plan, int64_t first, int64_t last, bool reduce, const void* partial,
                                size_t partial_size, const Exec& exec) {
  if (plan.struct_size != sizeof plan) return kPlanOfOthers;
  const PlanState* s = state_of(plan);
  if (s == nullptr) return kNoPlan;
  SIMDATTN_CHECK(check_task_range(plan, s->tasks, first, last, reduce, partial, partial_size, exec));
  if (first == last) return {};
  SIMDATTN_CHECK(check_attention_memory(
      s->bytes, workspace_bytes(exec, plan.workspace_bytes),
      ByteSet::of(s->tasks.split ? partial : nullptr, static_cast<int64_t>(plan.partial_bytes))));
  const AttentionProblem& a = s->problem;
  const Division& d = s->division;
  // The group that has task `first`. What is reduced is counted from the first row block on: where splits are tasks,
  // there are few of these.
  int64_t group = 0;
  while (!reduce && group + 1 < s->groups && s->group[group + 1].first_task <= first) ++group;
  for (int64_t g = group; g < s->groups && (reduce || g == group || s->group[g].first_task < last); ++g) {
    const int64_t begin = g * s->group_size;
    const int64_t end = std::min(begin + s->group_size, d.sizes.sequences);
    if (digest_of(a, begin, end) != s->group[g].lengths) return kChangedLengths;
  }

  const AttentionRun run = {a, d, *s->tasks.target->kernels, exec.workspace};
  const Partials partials = {d, Workspace(const_cast<void*>(partial))};
  TaskIterator at(a, d, group * s->group_size, reduce ? 0 : first - s->group[group].first_task);
  if (reduce) {
    for (int64_t t = 0, task = 0; t < last; ++t) {
      const Interval splits = at.splits();
      if (t >= first) reduce_splits(run, at.row_block(), splits, partials, task);
      task += splits.size();
      at.next(splits.size());
    }
    return {};
  }
  // Everything is checked before the first write: a call that fails writes nothing.
  if (has_places(a)) SIMDATTN_CHECK(check_places_of(a, d, at, first, last));
  const KernelHooks hooks(run.memory.kernels);
  for (int64_t t = first; t < last; ++t, at.next()) {
    if (d.split) run_split(run, at.row_block(), at.split(), partials.of_task(t));
    else run_row_block(run, at.row_block());
  }
  return {};
}

}  // namespace simdattn
