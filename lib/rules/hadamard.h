// The rules on Hadamard rotations.
#ifndef SIMDATTN_LIB_RULES_HADAMARD_H_
#define SIMDATTN_LIB_RULES_HADAMARD_H_

#include "lib/rules/views.h"

namespace simdattn {

/// Largest block: a row of one is transformed on the stack.
inline constexpr int64_t kMaxHadamardBlock = 4096;

/// Longest row that kv_append() and kv_shift() rotate.
inline constexpr int64_t kMaxHadamardRow = 8192;

/// The block that 0 stands for: the largest power of two that divides `dim`.
constexpr int64_t hadamard_block(int64_t block, int64_t dim) {
  if (block != 0) return block;
  const int64_t largest = dim & -dim;
  return largest < kMaxHadamardBlock ? largest : kMaxHadamardBlock;
}

/// Of keys on their way into a cache. `sentence` names the argument.
Status check_key_hadamard(int64_t block, int64_t dim, const char* sentence);
#define SIMDATTN_KEY_HADAMARD_TEXT(argument) \
  argument ": must be 0, or a power of two up to 4096 that divides kv.dim, which is then at most 8192"

Status check_hadamard(const ConstView<4>& x, const View<4>& out, int64_t block, bool* empty);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_HADAMARD_H_
