// libFuzzer over the public functions but attention (fuzz_attention.cc): the input bytes choose the function and make
// every choice of tests/support/calls.h, so that coverage steers shapes, strides, types, storage and options. A good
// call has the same bits on two targets.
//
//   tools/fuzz            a run of every fuzzer from the corpus in tests/data/fuzz.tar.gz
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "dispatch/target.h"
#include "lib/contract/ukernels.h"
#include "simdattn/simdattn.h"
#include "tests/support/calls.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

constexpr Call kCalls[] = {scores_call,      softmax_call,         masked_softmax_call,   weighted_values_call,
                           rope_call,        kv_append_call,       rope_start_call,       kv_append_places_call,
                           raw_states_call,  attention_merge_call, other_scores_call,     elementwise_call,
                           rope_direct_call, narrow_append_call,   kv_read_call,          kv_shift_call,
                           lists_call,       selection_call,       linear_attention_call, causal_conv_call};

void one_input(const uint8_t* data, size_t size) {
  Random random(data, size);
  const Call call = kCalls[random.integer(0, std::ssize(kCalls) - 1)];
  const std::vector<const Target*> all = runnable_targets();
  const Target* const target = all[static_cast<size_t>(random.integer(0, std::ssize(all) - 1))];
  call(random, counterpart(*target), *target);
}

}  // namespace
}  // namespace simdattn::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  simdattn::test::one_input(data, size);
  // Differences and canaries of guarded buffers report through GoogleTest.
  if (::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) std::abort();
  return 0;
}
