// The rules on Scoring.
#ifndef SIMDATTN_LIB_RULES_SCORING_H_
#define SIMDATTN_LIB_RULES_SCORING_H_

#include "lib/rules/views.h"

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

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_SCORING_H_
