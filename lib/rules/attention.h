// The rules on Scoring, on attention problems, and on the plans and memory that they run with.
#ifndef SIMDATTN_LIB_RULES_ATTENTION_H_
#define SIMDATTN_LIB_RULES_ATTENTION_H_

#include "lib/rules/kv.h"

namespace simdattn {

/// What the arrays of a Scoring are measured by.
struct ScoringShape {
  int64_t sequences = 0;   // entries of the per-sequence arrays
  int64_t mask_batch = 0;  // shape of bias and keep, whose sizes may also be 1
  int64_t heads = 0;
  int64_t mask_rows = 0;
  int64_t mask_columns = 0;
};
/// Everything but the per-sequence entries. Without data (Data::kLater) null masks count as absent.
Status check_scoring(const Scoring& scoring, const ScoringShape& shape, Data data = Data::kNeeded);
/// The per-sequence entries of sequence `b` with `n_kv` keys.
Status check_sequence(const Scoring& scoring, int64_t b, int64_t n_kv);

/// The arrays of a problem.
enum ProblemArray : int {
  kQ,
  kK,
  kV,
  kOut,
  kLse,
  kAcc,
  kMax,
  kSum,
  kCuQ,
  kCuK,
  kTableK,
  kTableV,
  kScalesK,
  kScalesV,
  kBias,
  kKeep,
  kBits,
  kBiasScale,
  kSlopes,
  kSinks,
  kOffsets,
  kPrefixEnd,
  kKvStart,
  kKvLength,
  kProblemArrays
};
/// Their names in that order.
inline constexpr char kProblemNames[] =
    "q, k, v, out, lse, acc, max, sum, cu_q, cu_k, k.block_table, v.block_table, k.scales, v.scales, "
    "scoring.bias, scoring.keep, scoring.bits, scoring.bias_scale, scoring.alibi_slopes, scoring.sinks, "
    "scoring.offsets, scoring.prefix_end, scoring.kv_start, scoring.kv_length";
using ProblemOverlaps = Sentences<kProblemArrays>;
inline constexpr ProblemOverlaps kOutOverlaps("out: overlaps ", kProblemNames);
inline constexpr ProblemOverlaps kLseOverlaps("lse: overlaps ", kProblemNames);

/// The bytes of those that have any.
struct ProblemBytes {
  int count = 0;
  ProblemArray array[kProblemArrays];
  union {  // only those in use are ever written: all of them would be most of the work
    ByteSet set[kProblemArrays];
  };
  ProblemBytes() {}
  /// The next one, to be filled where it is: a copy would wait for the numbers that were just stored one by one.
  ByteSet* next() { return &set[count]; }
  void keep(ProblemArray a) {
    if (!set[count].empty()) array[count++] = a;
  }
  void keep(ProblemArray a, const void* data, int64_t bytes) {
    next()->restart(data, bytes);
    keep(a);
  }
  /// That `written` shares no byte with any of them.
  Status check_apart(const ByteSet& written, const ProblemOverlaps& overlaps) const;
};
/// Keeps the arrays of a Scoring that passed check_scoring().
void keep_scoring(const Scoring& scoring, const ScoringShape& shape, ProblemBytes* bytes);

/// Sizes of a problem whose shapes agree. check_attention_inputs() sets all of them.
struct AttentionSizes {
  int64_t sequences = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t group = 0;
  int64_t d_qk = 0;
  int64_t d_v = 0;
  ScoringShape scoring;
};

/// Shapes, types, strides and options of everything that is read, but for entries of sequences and pages.
Status check_attention_inputs(const Attention& a, Data data, AttentionSizes* sizes, ProblemBytes* bytes);
/// Shapes of the outputs, and that none shares a byte with anything else. Where data come later, nulls pass.
Status check_attention_outputs(const Attention& a, const AttentionSizes& sizes, Data data, ProblemBytes* bytes);
/// That workspace and partial states share no byte with the problem's arrays, nor with each other.
Status check_attention_memory(const ProblemBytes& bytes, const ByteSet& workspace, const ByteSet& partial);
Status check_attention_workspace(const Exec& exec, size_t needed);

/// `too_many`: the tasks of all sequences cannot be counted.
inline Status check_task_count(bool too_many) {
  return !too_many ? Status()
                   : Status{Code::kShape, "q.shape: rows and heads of all sequences are more than 2^63 tasks"};
}
/// `bytes`: of all partial states, 0 if they cannot be counted.
inline Status check_partial_bytes(bool split, size_t bytes) {
  return !split || bytes > 0 ? Status() : Status{Code::kShape, "v.dim: the partial states of all splits are too large"};
}
/// A plan to be filled, or to be bound.
Status check_plan_size(const AttentionPlan& plan);
/// `planned`: the problem of the plan, of which all but addresses of data is that of `a`; null: it holds none.
Status check_bound_problem(const Attention& a, const Attention* planned);
/// `there`: every array of a problem with tasks is.
inline Status check_bound_data(bool there) {
  return there ? Status() : Status{Code::kNullPointer, "problem: arrays are still null"};
}

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
inline Status check_planned_lengths(bool same) {
  return same ? Status()
              : Status{
                    Code::kStalePlan,
                    "plan: cu_q, cu_k, kv_length, kv_start, prefix_end or offsets are not those that it was made from"};
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_ATTENTION_H_
