// Every operation of lib/simd, of every adapter and instruction set, beside plain C++.
#include <gtest/gtest.h>

#include "dispatch/cpu.h"
#include "dispatch/environment.h"
#include "tests/kernels/vocabulary.h"

namespace simdattn {
#define ROW(name, isa) void check_vocabulary_##name(VocabularyReport);
SIMDATTN_VOCABULARY_ROWS
#undef ROW

namespace {

void report(const char* operation, int64_t numbers, int64_t lane) {
  ADD_FAILURE() << operation << ", numbers " << numbers << ", lane " << lane;
}

#define ROW(name, isa)                                                                                      \
  TEST(Vocabulary, name) {                                                                                  \
    if (*missing_feature(Isa::isa) != '\0') GTEST_SKIP() << "this CPU lacks " << missing_feature(Isa::isa); \
    const Environment environment;                                                                          \
    check_vocabulary_##name(report);                                                                        \
  }
SIMDATTN_VOCABULARY_ROWS
#undef ROW

}  // namespace
}  // namespace simdattn
