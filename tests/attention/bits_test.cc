// The public functions: every exact target returns the bits of the definition, whatever shapes, strides, types, options
// and values; the definition is compared with the best other target. Targets without fused multiply-add have bits of
// their own; for them a second call with other strides and alignments has to give the same ones.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/support/calls.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

class Bits : public TargetTest {
 protected:
  /// The target whose bits are expected, and how: see above.
  static const Target& other() { return counterpart(target()); }
  /// So many calls, each on both targets.
  static void check(Call call, uint64_t number, int64_t count) {
    Random random(seed() * 2000 + number);
    for (int64_t i = 0; i < cases(count); ++i) {
      call(random, other(), target());
      if (HasFatalFailure()) FAIL() << "case " << i;
    }
  }
};

TEST_P(Bits, Scores) { check(scores_call, 1, 1500); }
TEST_P(Bits, Softmax) { check(softmax_call, 2, 2500); }
TEST_P(Bits, MaskedSoftmax) { check(masked_softmax_call, 3, 3000); }
TEST_P(Bits, WeightedValues) { check(weighted_values_call, 4, 1200); }
TEST_P(Bits, Rope) { check(rope_call, 5, 2000); }
TEST_P(Bits, KvAppend) { check(kv_append_call, 6, 1500); }
TEST_P(Bits, KvAppendPlaces) { check(kv_append_places_call, 10, 600); }
TEST_P(Bits, RopeStart) { check(rope_start_call, 11, 300); }
TEST_P(Bits, Attention) { check(attention_call, 7, 2500); }
TEST_P(Bits, Lists) { check(lists_call, 18, 600); }
TEST_P(Bits, Selection) { check(selection_call, 19, 400); }
TEST_P(Bits, RawStates) { check(raw_states_call, 8, 600); }
TEST_P(Bits, AttentionMerge) { check(attention_merge_call, 9, 1500); }
TEST_P(Bits, OtherScores) { check(other_scores_call, 12, 600); }
TEST_P(Bits, Elementwise) { check(elementwise_call, 13, 600); }
TEST_P(Bits, RopeDirect) { check(rope_direct_call, 14, 300); }
TEST_P(Bits, NarrowAppend) { check(narrow_append_call, 15, 600); }
TEST_P(Bits, KvRead) { check(kv_read_call, 16, 600); }
TEST_P(Bits, KvShift) { check(kv_shift_call, 17, 600); }
TEST_P(Bits, LinearAttention) { check(linear_attention_call, 18, 600); }
TEST_P(Bits, CausalConv) { check(causal_conv_call, 19, 800); }

SIMDATTN_FOR_EACH_TARGET(Bits);

}  // namespace
}  // namespace simdattn::test
