// Random calls in one arithmetic on a target whose instructions are software, against the definition: failures are
// those of Google Test.
#pragma once

#include <cstdint>

#include "dispatch/target.h"
#include "lib/contract/ukernels.h"
#include "tests/support/random.h"

namespace simdattn::test {

Values any_values(Random& random);

void attention_cases(const Target& software, Arithmetic arithmetic, int64_t count);
/// Sizes on both sides of every constant that cuts work: rows of a tile, dimensions of a step, keys of a group and of a
/// block; and numbers whose products with a scale, or whose sums after a new maximum, fall below the smallest normal
/// one.
void size_cases(const Target& software, Arithmetic arithmetic, int64_t count);
void score_cases(const Target& software, Arithmetic arithmetic, int64_t count);
void value_cases(const Target& software, Arithmetic arithmetic, int64_t count);

}  // namespace simdattn::test
