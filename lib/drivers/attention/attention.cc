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
constexpr int64_t kMaxGroups = 64;
constexpr uint64_t kPlanMark = 0x6E6C7061'6E747461u;

/// What AttentionPlan::internal holds.
struct PlanState {
  uint64_t mark;
  const Target* target;
  Attention problem;
  Division division;
  AttentionLayout memory;
  int64_t groups;
  int64_t group_size;  // sequences of a group
  double task_groups;  // groups over tasks
  double row_block_groups;
  bool has_data;  // every pointer that a run needs is there
  struct Group {
    int64_t first_row_block;
    int64_t first_task;  // differs where splits are tasks
    uint64_t lengths;    // digest
  } group[kMaxGroups];
  /// Addresses that memory of a range may not touch.
  int n_extents;
  struct Extent {
    uintptr_t first;
    uintptr_t last;
  } extents[kAttentionArrays + kScoringArrays];
};
static_assert(sizeof(PlanState) <= sizeof(AttentionPlan::internal));
static_assert(std::is_trivially_copyable_v<PlanState> && alignof(PlanState) <= alignof(uint64_t));

const PlanState* state_of(const AttentionPlan& plan) {
  const auto* s = reinterpret_cast<const PlanState*>(plan.internal.data());
  return s->mark == kPlanMark ? s : nullptr;
}

/// Of everything that says where a sequence begins, ends and stands.
uint64_t digest_of(const Attention& a, int64_t first, int64_t last) {
  // Entries times powers of one number, in four sums that do not wait for each other. Another number joins these, so that no two
  // entries have the same factor.
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15u, kJoin = 0xD1342543DE82EF95u;
  uint64_t h = 0;
  const auto add = [&](const int32_t* numbers, int64_t end) {
    if (numbers == nullptr) return;
    uint64_t part[4] = {h};
    int64_t s = first;
    for (; s + 4 <= end; s += 4) {
      for (int i = 0; i < 4; ++i) part[i] = part[i] * kFactor + static_cast<uint32_t>(numbers[s + i]);
    }
    for (; s < end; ++s) part[0] = part[0] * kFactor + static_cast<uint32_t>(numbers[s]);
    h = ((part[0] * kJoin + part[1]) * kJoin + part[2]) * kJoin + part[3];
  };
  add(a.cu_q, last + 1);
  add(a.cu_k, last + 1);
  add(a.scoring.kv_length, last);
  add(a.scoring.kv_start, last);
  add(a.scoring.prefix_end, last);
  add(a.scoring.offsets, last);
  return h;
}

Status check_all_pages(const Attention& a, const Division& d) {
  if (a.k.page_size == 0 && a.v.page_size == 0) return {};
  for (int64_t s = 0; s < d.sizes.sequences; ++s) {
    SIMDATTN_CHECK(check_pages(a, d, s, 0, sequence_of(a, s).n_q));
  }
  return {};
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

void remember_extents(const AttentionBytes& bytes, const Attention& a, const AttentionSizes& sizes, PlanState* s) {
  s->n_extents = 0;
  const auto add = [&](const ByteSet& set) {
    if (set.empty()) return;
    s->extents[s->n_extents++] = {set.first, set.first + static_cast<uintptr_t>(set.span)};
  };
  for (int i = 0; i < bytes.count; ++i) add(bytes.set[i]);
  for (int i = 0; i < kScoringArrays; ++i) add(scoring_bytes(a.scoring, sizes.scoring, i));
}

/// The memory of a range against the arrays of the plan.
Status check_memory(const PlanState& s, const void* workspace, size_t workspace_bytes, const void* partial,
                    size_t partial_bytes) {
  const ByteSet memory[2] = {ByteSet::of(workspace, static_cast<int64_t>(workspace_bytes)),
                             ByteSet::of(partial, static_cast<int64_t>(partial_bytes))};
  bool meet = extents_meet(memory[0], memory[1]);
  for (const ByteSet& m : memory) {
    if (m.empty()) continue;
    const uintptr_t last = m.first + static_cast<uintptr_t>(m.span);
    for (int i = 0; i < s.n_extents; ++i) meet |= (m.first < s.extents[i].last) & (s.extents[i].first < last);
  }
  if (!meet) return {};
  // Between arrays that interleave there may be room all the same.
  AttentionSizes sizes;
  AttentionBytes bytes;
  SIMDATTN_CHECK(check_attention_inputs(s.problem, Data::kNeeded, &sizes, &bytes));
  SIMDATTN_CHECK(check_attention_outputs(s.problem, sizes, Data::kNeeded, &bytes));
  return check_attention_memory(s.problem, sizes, bytes, memory[0], memory[1]);
}

/// The group that holds task or row block `index`.
int64_t group_of_task(const PlanState& s, int64_t index, bool splits) {
  const auto first = [&](int64_t g) { return splits ? s.group[g].first_task : s.group[g].first_row_block; };
  // Groups of a batch have about as many tasks each, so a guess takes less than a search.
  const double guess = static_cast<double>(index) * (splits ? s.task_groups : s.row_block_groups);
  int64_t g = std::min(static_cast<int64_t>(guess), s.groups - 1);
  while (first(g) > index) --g;
  while (g + 1 < s.groups && first(g + 1) <= index) ++g;
  return g;
}

Status check_lengths(const PlanState& s, int64_t group) {
  const int64_t first = group * s.group_size;
  const int64_t last = std::min(first + s.group_size, s.division.sizes.sequences);
  return check_planned_lengths(digest_of(s.problem, first, last) == s.group[group].lengths);
}

/// What ranges of tasks and of reductions have in common.
Status check_range(const AttentionPlan& plan, int64_t first, int64_t last, bool reduce, const void* partial,
                   size_t partial_size, const Exec& exec, const PlanState** state, int64_t* first_group) {
  SIMDATTN_CHECK(check_planned_size(plan));
  const PlanState* s = state_of(plan);
  if (s == nullptr) return check_task_range(plan, nullptr, first, last, reduce, partial, partial_size, exec);
  const Division& d = s->division;
  const PlannedTasks planned = {s->target, s->has_data, d.split, d.tasks, d.reduce_tasks};
  SIMDATTN_CHECK(check_task_range(plan, &planned, first, last, reduce, partial, partial_size, exec));
  if (first < last) {
    SIMDATTN_CHECK(check_memory(*s, exec.workspace, plan.workspace_bytes, d.split ? partial : nullptr,
                                d.split ? plan.partial_bytes : 0));
    const bool splits = d.split && !reduce;
    const int64_t group = group_of_task(*s, first, splits);
    SIMDATTN_CHECK(check_lengths(*s, group));
    for (int64_t g = group + 1; g < s->groups; ++g) {
      if ((splits ? s->group[g].first_task : s->group[g].first_row_block) >= last) break;
      SIMDATTN_CHECK(check_lengths(*s, g));
    }
    *first_group = group;
  }
  *state = s;
  return {};
}

}  // namespace

Status drivers::attention(const Attention& a, const Exec& exec) {
  const UKernels* kernels_of_target = nullptr;
  SIMDATTN_CHECK(resolve(exec, &kernels_of_target));
  const UKernels& uk = *kernels_of_target;
  AttentionBytes bytes;
  Division d;
  AttentionSizes& sizes = d.sizes;
  SIMDATTN_CHECK(check_attention_inputs(a, Data::kNeeded, &sizes, &bytes));
  SIMDATTN_CHECK(check_attention_outputs(a, sizes, Data::kNeeded, &bytes));
  const Environment environment;
  SIMDATTN_CHECK(divide(a, Threads::kOne, &d));
  SIMDATTN_CHECK(check_all_pages(a, d));
  if (d.row_blocks == 0) return {};
  const AttentionKernels& kernels = uk.attention[slot(a.arithmetic)];
  const AttentionLayout layout(kernels, sizes.d_qk, sizes.d_v, a.k.type, a.v.type);
  const size_t needed = layout.bytes();
  SIMDATTN_CHECK(check_attention_workspace(exec, needed));
  SIMDATTN_CHECK(
      check_attention_memory(a, sizes, bytes, ByteSet::of(exec.workspace, static_cast<int64_t>(needed)), {}));

  const KernelHooks hooks(kernels);
  const AttentionMemory memory(layout, exec.workspace);
  const AttentionRun run = {a, d, uk};
  TaskIterator at(a, d, false, 0, 0);
  for (int64_t t = 0; t < d.row_blocks; ++t, at.next()) run_row_block(run, memory, at.row_block());
  return {};
}

Status drivers::attention_plan(const Attention& a, AttentionPlan* plan, const Exec& exec) {
  const Target* target = nullptr;
  SIMDATTN_CHECK(resolve(exec, &target));
  SIMDATTN_CHECK(check_plan_size(*plan));
  const Data data = has_data(a) ? Data::kNeeded : Data::kLater;
  AttentionBytes bytes;
  Division d;
  AttentionSizes& sizes = d.sizes;
  SIMDATTN_CHECK(check_attention_inputs(a, data, &sizes, &bytes));
  SIMDATTN_CHECK(check_attention_outputs(a, sizes, data, &bytes));
  SIMDATTN_CHECK(divide(a, Threads::kSeveral, &d));
  const size_t partial = d.split ? Partials(d, nullptr).bytes(d.tasks) : 0;
  SIMDATTN_CHECK(check_partial_bytes(d.split, partial));

  PlanState* s = new (plan->internal.data()) PlanState;
  s->target = target;
  s->problem = a;
  s->division = d;
  s->has_data = data == Data::kNeeded;
  s->group_size = sizes.sequences == 0 ? 1 : (sizes.sequences + kMaxGroups - 1) / kMaxGroups;
  s->groups = (sizes.sequences + s->group_size - 1) / s->group_size;
  int64_t row_blocks = 0;
  int64_t tasks = 0;
  for (int64_t g = 0; g < s->groups; ++g) {
    const int64_t first = g * s->group_size;
    const int64_t last = std::min(first + s->group_size, sizes.sequences);
    s->group[g] = {row_blocks, tasks, digest_of(a, first, last)};
    if (d.one_block && !d.split) {  // as where all of a batch decode
      row_blocks += (last - first) * sizes.kv_heads;
      continue;
    }
    const int64_t alike = are_alike(a) ? last - first : 1;
    for (int64_t q = first; q < last; q += alike) {
      row_blocks += tasks_of(a, d, false, q) * alike;
      if (d.split) tasks += tasks_of(a, d, true, q) * alike;
    }
  }
  const auto per_group = [&](int64_t n) {
    return n == 0 ? 0.0 : static_cast<double>(s->groups) / static_cast<double>(n);
  };
  s->row_block_groups = per_group(row_blocks);
  s->task_groups = per_group(tasks);
  s->memory =
      AttentionLayout(target->kernels->attention[slot(a.arithmetic)], sizes.d_qk, sizes.d_v, a.k.type, a.v.type);
  remember_extents(bytes, a, sizes, s);
  plan->tasks = d.tasks;
  plan->reduce_tasks = d.reduce_tasks;
  plan->workspace_bytes = d.tasks == 0 ? 0 : s->memory.bytes();
  plan->partial_bytes = partial;
  s->mark = kPlanMark;
  return {};
}

Status drivers::attention_bind(const Attention& a, AttentionPlan* plan) {
  SIMDATTN_CHECK(check_plan_size(*plan));
  auto* s = const_cast<PlanState*>(state_of(*plan));
  SIMDATTN_CHECK(check_bound_problem(a, s == nullptr ? nullptr : &s->problem));
  AttentionSizes sizes;
  AttentionBytes bytes;
  SIMDATTN_CHECK(check_attention_inputs(a, Data::kNeeded, &sizes, &bytes));
  SIMDATTN_CHECK(check_attention_outputs(a, sizes, Data::kNeeded, &bytes));
  SIMDATTN_CHECK(check_bound_data(has_data(a) || s->division.tasks == 0));
  s->problem = a;
  s->has_data = true;
  remember_extents(bytes, a, sizes, s);
  return {};
}

Status drivers::attention_range(const AttentionPlan& plan, int64_t first, int64_t last, void* partial,
                                size_t partial_size, const Exec& exec) {
  const PlanState* s = nullptr;
  int64_t first_group = 0;
  SIMDATTN_CHECK(check_range(plan, first, last, false, partial, partial_size, exec, &s, &first_group));
  if (first == last) return {};
  const Attention& a = s->problem;
  const Division& d = s->division;
  const UKernels& uk = *s->target->kernels;
  const PlanState::Group& group = s->group[first_group];
  TaskIterator at(a, d, d.split, first_group * s->group_size,
                  first - (d.split ? group.first_task : group.first_row_block));
  if (a.k.page_size > 0 || a.v.page_size > 0) {
    TaskIterator ahead = at;
    RowBlockIndex done = {-1, 0, 0};
    for (int64_t t = first; t < last; ++t, ahead.next()) {
      const RowBlockIndex index = ahead.row_block();
      if (index.sequence == done.sequence && index.first_row == done.first_row) continue;
      done = index;
      const int64_t rows = std::min(d.row_block, sequence_of(a, index.sequence).n_q * d.sizes.group - index.first_row);
      SIMDATTN_CHECK(check_pages(a, d, index.sequence, index.first_row / d.sizes.group,
                                 (index.first_row + rows - 1) / d.sizes.group + 1));
    }
  }
  const AttentionKernels& kernels = uk.attention[slot(a.arithmetic)];
  const KernelHooks hooks(kernels);
  const AttentionMemory memory(s->memory, exec.workspace);
  const AttentionRun run = {a, d, uk};
  const Partials partials(d, partial);
  for (int64_t t = first; t < last; ++t, at.next()) {
    if (d.split) {
      run_split(run, memory, at.row_block(), at.split(), partials.of_task(t));
    } else {
      run_row_block(run, memory, at.row_block());
    }
  }
  return {};
}

Status drivers::attention_reduce(const AttentionPlan& plan, int64_t first, int64_t last, const void* partial,
                                 size_t partial_size, const Exec& exec) {
  const PlanState* s = nullptr;
  int64_t first_group = 0;
  SIMDATTN_CHECK(check_range(plan, first, last, true, partial, partial_size, exec, &s, &first_group));
  if (first == last) return {};
  const Attention& a = s->problem;
  const Division& d = s->division;
  const UKernels& uk = *s->target->kernels;
  const AttentionMemory memory(s->memory, exec.workspace);
  const AttentionRun run = {a, d, uk};
  const Partials partials(d, partial);
  const PlanState::Group& group = s->group[first_group];
  TaskIterator at(a, d, true, first_group * s->group_size, 0);
  int64_t task = group.first_task;
  for (int64_t t = group.first_row_block; t < last; ++t) {
    const Interval splits = at.splits();
    if (t >= first) reduce_splits(run, memory, at.row_block(), splits, partials, task);
    task += splits.hi - splits.lo;
    for (int64_t split = splits.lo; split < splits.hi; ++split) at.next();
  }
  return {};
}

}  // namespace simdattn
