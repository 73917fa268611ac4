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

/// The first array of scoring that an output shares a byte with, as an index into SIMDATTN_OVERLAPS_SCORING; -1: none.
int overlapped_scoring(const ByteSet& output, const Scoring& scoring, const ScoringShape& shape);
/// False in most calls: the question about overlaps then needs no answer.
inline bool has_arrays(const Scoring& s) {
  return s.bias.data != nullptr || s.keep.data != nullptr || s.bits.data != nullptr || s.bias_scale != nullptr ||
         s.alibi_slopes != nullptr || s.sinks != nullptr || s.offsets != nullptr || s.prefix_end != nullptr ||
         s.kv_start != nullptr || s.kv_length != nullptr;
}
#define SIMDATTN_OVERLAPS_SCORING(output)                                            \
  {output ": overlaps scoring.bias",         output ": overlaps scoring.keep",       \
   output ": overlaps scoring.bits",         output ": overlaps scoring.bias_scale", \
   output ": overlaps scoring.alibi_slopes", output ": overlaps scoring.sinks",      \
   output ": overlaps scoring.offsets",      output ": overlaps scoring.prefix_end", \
   output ": overlaps scoring.kv_start",     output ": overlaps scoring.kv_length"}
inline constexpr int kScoringArrays = 10;
/// The bytes of one of them; none if it is absent.
ByteSet scoring_bytes(const Scoring& scoring, const ScoringShape& shape, int array);

/// The sentences about its keys and values.
inline constexpr KvText kKeysText = SIMDATTN_KV_TEXT("k");
inline constexpr KvText kValuesText = SIMDATTN_KV_TEXT("v");

/// Sizes of a problem whose shapes agree. check_attention_inputs() sets all of them.
struct AttentionSizes {
  int64_t sequences = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t group = 0;
  int64_t d_qk = 0;
  int64_t d_v = 0;
  ScoringShape scoring;
  bool scoring_arrays = false;  // whether scoring has any
};

/// The arrays of a problem beside those of scoring.
enum AttentionArray : int {
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
  kAttentionArrays
};
/// The bytes of those that have any.
struct AttentionBytes {
  int count = 0;
  AttentionArray array[kAttentionArrays];
  union {  // only those in use are ever written: all of them would be most of the work
    ByteSet set[kAttentionArrays];
  };
  AttentionBytes() {}
  /// The next one, to be filled where it is: a copy would wait for the numbers that were just stored one by one.
  ByteSet* next() { return &set[count]; }
  void keep(AttentionArray a) {
    if (set[count].empty()) return;
    array[count] = a;
    ++count;
  }
};

/// Shapes, types, strides and options of everything that is read, but for entries of sequences and pages.
Status check_attention_inputs(const Attention& a, Data data, AttentionSizes* sizes, AttentionBytes* bytes);

/// Shapes of the outputs, and that none shares a byte with anything else. Where data come later, nulls pass.
Status check_attention_outputs(const Attention& a, const AttentionSizes& sizes, Data data, AttentionBytes* bytes);

/// That workspace and partial states share no byte with the problem's arrays.
Status check_attention_memory(const Attention& a, const AttentionSizes& sizes, const AttentionBytes& bytes,
                              const ByteSet& workspace, const ByteSet& partial);

/// The sentence of the first thing but addresses of data that differs; null: nothing does.
const char* problem_difference(const Attention& a, const Attention& b);

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

#endif  // SIMDATTN_LIB_RULES_ATTENTION_H_
