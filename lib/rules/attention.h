// The rules on Scoring, on attention problems, and on the memory that they run with.
#pragma once

#include "lib/rules/views.h"

namespace simdattn {

/// The arrays of a problem.
inline constexpr Text kProblemArrays =
    "q, k, v, out, lse, acc, max, sum, cu_q, cu_k, k.block_table, v.block_table, k.scales, v.scales, "
    "scoring.bias, scoring.mask, scoring.packed_mask, scoring.bias_scale, scoring.alibi_slopes, scoring.sinks, "
    "scoring.offsets, scoring.prefix_end, scoring.kv_start, scoring.kv_length, lists";
/// One of them, by its number.
struct ProblemArray {
  int index;
  ProblemArray() = default;
  /// From its name. A name that is not in the list does not compile.
  consteval ProblemArray(const char* name) : index(0) {
    std::string_view names = kProblemArrays;
    for (; first_name(names) != name; ++index) names.remove_prefix(first_name(names).size() + 2);
  }
};

/// The bytes of the arrays that have any.
struct ProblemBytes {
  static constexpr size_t kMost = names_in(kProblemArrays) - 1;  // cu_k excludes block tables
  int count = 0;
  ProblemArray array[kMost];
  union {  // written as far as they are in use: to write all of them would be most of the work
    ByteSet set[kMost];
  };
  ProblemBytes() {}
  /// A place for the bytes of an array, which a check fills and keep() keeps. Filled where it is, not copied:
  /// see same_numbers().
  ByteSet* next() { return &set[count]; }
  void keep(ProblemArray a) {
    if (!set[count].empty()) array[count++] = a;
  }
  void keep(ProblemArray a, const ByteSet& of) {
    if (of.empty()) return;
    *next() = of;
    keep(a);
  }
  void keep(ProblemArray a, const void* data, int64_t bytes) {
    if (data == nullptr) return;
    next()->restart(data, bytes);
    keep(a);
  }
};
/// That `written`, the bytes of kOutput, shares none with any of them.
template <Text kOutput>
Status check_apart(const ByteSet& written, const ProblemBytes& bytes) {
  for (int i = 0; i < bytes.count && !written.empty(); ++i) {
    SIMDATTN_REQUIRE(!share_bytes(written, bytes.set[i]), kOverlap,
                     (kOverlaps<kOutput, kProblemArrays>[bytes.array[i].index]));
  }
  return {};
}

/// Checks everything but the per-sequence entries, and keeps the arrays: those of `sequences` entries, and masks of
/// `shape` [batch, heads, n_q, n_kv], whose sizes may also be 1. A mask without data is absent, but
/// where data come later (Data::kLater) one that has a shape.
Status check_scoring(const Scoring& scoring, int64_t sequences, const std::array<int64_t, 4>& shape, Data data,
                     ProblemBytes* bytes);
/// Checks the per-sequence entries of sequence `b`, which has `n_kv` keys.
Status check_sequence(const Scoring& scoring, int64_t b, int64_t n_kv);

/// Sizes of a problem whose shapes agree. check_attention() sets all of them.
struct AttentionSizes {
  int64_t sequences = 0;
  int64_t heads = 0, kv_heads = 0, group = 0;
  int64_t d_qk = 0, d_v = 0;
};

/// Checks everything but the entries of per-sequence arrays, block tables and lists. Where data come later, null
/// pointers pass.
Status check_attention(const AttentionProblem& a, Data data, AttentionSizes* sizes, ProblemBytes* bytes);
/// Checks that workspace and partial states share no byte with the problem's arrays, nor with each other.
Status check_attention_memory(const ProblemBytes& bytes, const ByteSet& workspace, const ByteSet& partial);
Status check_attention_workspace(const Exec& exec, size_t needed);

inline bool has_lists(const AttentionProblem& a) { return a.lists.heads > 0; }

// What drivers refuse when they count tasks and follow lists.
inline constexpr Status kTooManyTasks = {Code::kShape,
                                         "q.shape: rows and heads of all sequences are more than 2^63 tasks"};
inline constexpr Status kNoKeyOfList = {Code::kRange, "lists: an entry is neither -1 nor one of the sequence's keys"};
inline constexpr Status kEntryTwice = {Code::kRange, "lists: an entry comes twice"};

}  // namespace simdattn
