// The rules on attention problems.
#ifndef SIMDATTN_LIB_RULES_ATTENTION_H_
#define SIMDATTN_LIB_RULES_ATTENTION_H_

#include "lib/rules/kv.h"
#include "lib/rules/scoring.h"
#include "lib/rules/views.h"

namespace simdattn {

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

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_ATTENTION_H_
