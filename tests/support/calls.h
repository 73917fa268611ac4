// One random call of a public function on two targets, whose results have to have the same bits: shapes, strides,
// types, options and values are drawn. bits_test.cc takes the draws from a seed, fuzz_functions.cc from a fuzzer.
#pragma once

#include "simdattn/simdattn.h"
#include "tests/support/random.h"

namespace simdattn::test {

/// A difference is a fatal failure of GoogleTest. `one` and `other` may be the same target: strides and alignments are
/// not.
using Call = void (*)(Random& random, const Target& one, const Target& other);

void scores_call(Random& random, const Target& one, const Target& other);
void softmax_call(Random& random, const Target& one, const Target& other);
void masked_softmax_call(Random& random, const Target& one, const Target& other);
void weighted_values_call(Random& random, const Target& one, const Target& other);
void rope_call(Random& random, const Target& one, const Target& other);
void kv_append_call(Random& random, const Target& one, const Target& other);
void kv_append_places_call(Random& random, const Target& one, const Target& other);
void rope_start_call(Random& random, const Target& one, const Target& other);
void attention_call(Random& random, const Target& one, const Target& other);
void raw_states_call(Random& random, const Target& one, const Target& other);
void attention_merge_call(Random& random, const Target& one, const Target& other);
void other_scores_call(Random& random, const Target& one, const Target& other);
void elementwise_call(Random& random, const Target& one, const Target& other);
void rope_direct_call(Random& random, const Target& one, const Target& other);
void narrow_append_call(Random& random, const Target& one, const Target& other);
void kv_read_call(Random& random, const Target& one, const Target& other);
void lists_call(Random& random, const Target& one, const Target& other);
void selection_call(Random& random, const Target& one, const Target& other);
void kv_shift_call(Random& random, const Target& one, const Target& other);
/// In calls_state.cc. The second target gets the tokens in chunks, or the tasks in any order.
void linear_attention_call(Random& random, const Target& one, const Target& other);
void causal_conv_call(Random& random, const Target& one, const Target& other);

}  // namespace simdattn::test
