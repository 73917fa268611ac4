// Fused attention: a problem is checked and divided once, then ranges of its tasks run.
#include <algorithm>
#include <cstring>
#include <new>

#include "dispatch/environment.h"
#include "dispatch/target.h"
#include "lib/contract/dtypes.h"
#include "lib/drivers/attention/attention_division.h"
#include "lib/drivers/attention/attention_memory.h"
#include "lib/drivers/attention/attention_walk.h"
#include "lib/drivers/attention/operands.h"
#include "lib/drivers/drivers.h"
#include "lib/rules/attention.h"

namespace simdattn {
namespace {

/// Sequences are remembered in at most this many groups: where the group's tasks begin, and what its lengths were.
constexpr int64_t kMaxGroups = 24;
constexpr uint64_t kPlanMark = 0x6E6C7061'6E747461u;

/// What AttentionPlan::internal holds.
struct PlanState {
  uint64_t mark;
  const Target* target;
  Attention problem;
  Division division;
  OperandBytes operands;
  int64_t groups;
  int64_t group_size;  // sequences of a group
  bool has_data;       // every pointer that a run needs is there
  struct Group {
    int64_t first_row_block;
    int64_t first_task;  // differs where splits are tasks
    uint64_t lengths;    // digest
    int64_t first(bool splits) const { return splits ? first_task : first_row_block; }
  } group[kMaxGroups];
  ProblemBytes bytes;  // which memory of a range may not touch

  AttentionMemory memory(void* workspace) const { return {operands, division.sizes.d_v, workspace}; }
};
static_assert(sizeof(PlanState) <= sizeof(AttentionPlan::internal));
static_assert(std::is_trivially_copyable_v<PlanState> && alignof(PlanState) <= alignof(uint64_t));

const PlanState* state_of(const AttentionPlan& plan) {
  const auto* s = reinterpret_cast<const PlanState*>(plan.internal.data());
  return s->mark == kPlanMark ? s : nullptr;
}

/// Of everything that says where sequences [first, last) begin, end and stand: entries times powers of one number.
uint64_t digest_of(const Attention& a, int64_t first, int64_t last) {
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

bool has_pages(const Attention& a) { return a.k.page_size > 0 || a.v.page_size > 0; }

OperandBytes operand_bytes(const UKernels& uk, const Attention& a, const Division& d) {
  return {kernels_of(uk, a.arithmetic, d), d.sizes, a.k.type, a.v.type};
}

/// True if what a run reads and writes is there.
bool has_data(const Attention& a) {
  const auto needs = [](const auto& view) {
    for (const int64_t n : view.shape) {
      if (n == 0) return false;
    }
    return view.data == nullptr;
  };
  const auto store = [](const ConstKv& kv) {
    const int64_t units = kv.page_size > 0 ? kv.n_pages : kv.batch;
    return units > 0 && kv.heads > 0 && kv.tokens > 0 &&
           (kv.data == nullptr || (writes_scales(kv.type) && kv.scales == nullptr));
  };
  const bool output = a.out.data != nullptr || a.lse.data != nullptr || a.acc.data != nullptr;
  return output && !needs(a.q) && !store(a.k) && !store(a.v) && !needs(a.scoring.bias) && !needs(a.scoring.keep) &&
         (a.scoring.bits.columns == 0 || a.scoring.bits.data != nullptr) &&
         (a.k.page_size == 0 || a.k.block_table != nullptr || a.k.batch == 0) &&
         (a.v.page_size == 0 || a.v.block_table != nullptr || a.v.batch == 0);
}

/// What ranges of tasks and of reductions have in common. `*state`: the plan's; `*group`: where the range begins.
Status check_range(const AttentionPlan& plan, int64_t first, int64_t last, bool reduce, const void* partial,
                   size_t partial_size, const Exec& exec, const PlanState** state, int64_t* group) {
  SIMDATTN_CHECK(check_planned_size(plan));
  const PlanState* s = *state = state_of(plan);
  if (s == nullptr) return check_task_range(plan, nullptr, first, last, reduce, partial, partial_size, exec);
  const Division& d = s->division;
  const PlannedTasks planned = {s->target, s->has_data, d.split, d.tasks, d.reduce_tasks};
  SIMDATTN_CHECK(check_task_range(plan, &planned, first, last, reduce, partial, partial_size, exec));
  if (first == last) return {};
  SIMDATTN_CHECK(
      check_attention_memory(s->bytes, ByteSet::of(exec.workspace, static_cast<int64_t>(plan.workspace_bytes)),
                             ByteSet::of(d.split ? partial : nullptr, static_cast<int64_t>(plan.partial_bytes))));
  const bool splits = d.split && !reduce;
  int64_t g = 0;
  while (g + 1 < s->groups && s->group[g + 1].first(splits) <= first) ++g;
  for (*group = g; g < s->groups && (g == *group || s->group[g].first(splits) < last); ++g) {
    const int64_t begin = g * s->group_size;
    const int64_t end = std::min(begin + s->group_size, d.sizes.sequences);
    SIMDATTN_CHECK(check_planned_lengths(digest_of(s->problem, begin, end) == s->group[g].lengths));
  }
  return {};
}

}  // namespace

Status drivers::attention(const Attention& a, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  ProblemBytes bytes;
  Division d;
  SIMDATTN_CHECK(check_attention_inputs(a, Data::kNeeded, &d.sizes, &bytes));
  SIMDATTN_CHECK(check_attention_outputs(a, d.sizes, Data::kNeeded, &bytes));
  const Environment environment;
  SIMDATTN_CHECK(divide(a, Threads::kOne, &d));
  for (int64_t s = 0; has_pages(a) && s < d.sizes.sequences; ++s) {
    SIMDATTN_CHECK(check_pages(a, d, s, 0, sequence_of(a, s).n_q));
  }
  if (d.row_blocks == 0) return {};
  const OperandBytes operands = operand_bytes(*uk, a, d);
  const size_t needed = AttentionMemory(operands, d.sizes.d_v, nullptr).w.bytes();
  SIMDATTN_CHECK(check_attention_workspace(exec, needed));
  SIMDATTN_CHECK(check_attention_memory(bytes, ByteSet::of(exec.workspace, static_cast<int64_t>(needed)), {}));

  const KernelHooks hooks(kernels_of(*uk, a.arithmetic, d));
  const AttentionRun run = {a, d, *uk, {operands, d.sizes.d_v, exec.workspace}};
  TaskIterator at(a, d, false, 0, 0);
  for (int64_t t = 0; t < d.row_blocks; ++t, at.next()) run_row_block(run, at.row_block());
  return {};
}

Status drivers::attention_plan(const Attention& a, AttentionPlan* plan, const Exec& exec) {
  const Target* target = nullptr;
  SIMDATTN_CHECK(resolve(exec, &target));
  SIMDATTN_CHECK(check_plan_size(*plan));
  const Data data = has_data(a) ? Data::kNeeded : Data::kLater;
  ProblemBytes bytes;
  Division d;
  SIMDATTN_CHECK(check_attention_inputs(a, data, &d.sizes, &bytes));
  SIMDATTN_CHECK(check_attention_outputs(a, d.sizes, data, &bytes));
  SIMDATTN_CHECK(divide(a, Threads::kSeveral, &d));
  const size_t partial = d.split ? Partials(d, nullptr).bytes(d.tasks) : 0;
  SIMDATTN_CHECK(check_partial_bytes(d.split, partial));

  PlanState* s = new (plan->internal.data()) PlanState;
  s->target = target;
  s->problem = a;
  s->bytes = bytes;
  s->division = d;
  s->operands = operand_bytes(*target->kernels, a, d);
  s->has_data = data == Data::kNeeded;
  const int64_t sequences = d.sizes.sequences;
  s->group_size = std::max((sequences + kMaxGroups - 1) / kMaxGroups, int64_t{1});
  s->groups = (sequences + s->group_size - 1) / s->group_size;
  int64_t row_blocks = 0;
  int64_t tasks = 0;
  for (int64_t g = 0; g < s->groups; ++g) {
    const int64_t first = g * s->group_size;
    const int64_t last = std::min(first + s->group_size, sequences);
    s->group[g] = {row_blocks, tasks, digest_of(a, first, last)};
    const int64_t alike = are_alike(a) ? last - first : 1;
    for (int64_t q = first; q < last; q += alike) {
      row_blocks += tasks_of(a, d, false, q) * alike;
      if (d.split) tasks += tasks_of(a, d, true, q) * alike;
    }
  }
  plan->tasks = d.tasks;
  plan->reduce_tasks = d.reduce_tasks;
  plan->workspace_bytes = d.tasks == 0 ? 0 : s->memory(nullptr).w.bytes();
  plan->partial_bytes = partial;
  s->mark = kPlanMark;
  return {};
}

Status drivers::attention_bind(const Attention& a, AttentionPlan* plan) {
  SIMDATTN_CHECK(check_plan_size(*plan));
  auto* s = const_cast<PlanState*>(state_of(*plan));
  SIMDATTN_CHECK(check_bound_problem(a, s == nullptr ? nullptr : &s->problem));
  AttentionSizes sizes;
  ProblemBytes bytes;
  SIMDATTN_CHECK(check_attention_inputs(a, Data::kNeeded, &sizes, &bytes));
  SIMDATTN_CHECK(check_attention_outputs(a, sizes, Data::kNeeded, &bytes));
  SIMDATTN_CHECK(check_bound_data(has_data(a) || s->division.tasks == 0));
  s->problem = a;
  s->bytes = bytes;
  s->has_data = true;
  return {};
}

Status drivers::attention_range(const AttentionPlan& plan, int64_t first, int64_t last, void* partial,
                                size_t partial_size, const Exec& exec) {
  const PlanState* s = nullptr;
  int64_t g = 0;
  SIMDATTN_CHECK(check_range(plan, first, last, false, partial, partial_size, exec, &s, &g));
  if (first == last) return {};
  const Attention& a = s->problem;
  const Division& d = s->division;
  TaskIterator at(a, d, d.split, g * s->group_size, first - s->group[g].first(d.split));
  TaskIterator ahead = at;
  RowBlockIndex done = {-1, 0, 0};
  for (int64_t t = first; has_pages(a) && t < last; ++t, ahead.next()) {
    const RowBlockIndex index = ahead.row_block();
    if (index.sequence == done.sequence && index.first_row == done.first_row) continue;
    done = index;
    const int64_t end = std::min(index.first_row + d.row_block, sequence_of(a, index.sequence).n_q * d.sizes.group);
    SIMDATTN_CHECK(check_pages(a, d, index.sequence, index.first_row / d.sizes.group, (end - 1) / d.sizes.group + 1));
  }
  const KernelHooks hooks(kernels_of(*s->target->kernels, a.arithmetic, d));
  const AttentionRun run = {a, d, *s->target->kernels, s->memory(exec.workspace)};
  const Partials partials(d, partial);
  for (int64_t t = first; t < last; ++t, at.next()) {
    if (d.split) run_split(run, at.row_block(), at.split(), partials.of_task(t));
    else run_row_block(run, at.row_block());
  }
  return {};
}

Status drivers::attention_reduce(const AttentionPlan& plan, int64_t first, int64_t last, const void* partial,
                                 size_t partial_size, const Exec& exec) {
  const PlanState* s = nullptr;
  int64_t g = 0;
  SIMDATTN_CHECK(check_range(plan, first, last, true, partial, partial_size, exec, &s, &g));
  if (first == last) return {};
  const AttentionRun run = {s->problem, s->division, *s->target->kernels, s->memory(exec.workspace)};
  const Partials partials(s->division, partial);
  TaskIterator at(s->problem, s->division, true, g * s->group_size, 0);
  int64_t task = s->group[g].first_task;
  for (int64_t t = s->group[g].first_row_block; t < last; ++t) {
    const Interval splits = at.splits();
    if (t >= first) reduce_splits(run, at.row_block(), splits, partials, task);
    task += splits.hi - splits.lo;
    for (int64_t split = splits.lo; split < splits.hi; ++split) at.next();
  }
  return {};
}

}  // namespace simdattn
