// Between the suite `vocabulary` and the checks that are compiled for each instruction set.
#pragma once

#include <cstdint>

namespace simdattn {

/// An operation that gave something else than plain C++, for which numbers and in which lane.
using VocabularyReport = void (*)(const char* operation, int64_t numbers, int64_t lane);

}  // namespace simdattn
