// Joins attention over two runs of keys as the library joins its own key splits, so that the bits are those of one call
// over all keys. attention_merge() does the same from rounded outputs and log-sum-exps, to the last digits but not to
// the bit.
#pragma once

#include <simdattn/simdattn.h>

#include <cstdint>
#include <functional>
#include <vector>

/// Raw states (AttentionProblem::acc, max, sum) of the first `n` of `rows` rows: part 0 over the LATER keys, part 1
/// over the earlier ones. The bits are those of one call if the earlier keys end at a multiple of kKeySplit, the later
/// ones are at most kKeySplit, and the target has fused multiply-add (target_exact()). Elsewhere sums are rounded at
/// other places.
struct TwoStates {
  const float* acc;  // [2, rows, heads, d]
  const float* max;  // [2, heads, rows]
  const float* sum;  // [2, heads, rows]
  int64_t n, rows, heads, d;
};

class StateJoin {
 public:
  /// Runs an attention problem: number 0 and number 1 of every join.
  using Run = std::function<void(int number, const simdattn::AttentionProblem& problem)>;

  /// out [n, heads, d]
  void operator()(const TwoStates& states, float* out, const Run& run);

 private:
  std::vector<float> max_, sum_, denominator_;
};
