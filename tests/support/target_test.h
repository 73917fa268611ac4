// Suites that run once for every runnable target, named after it, and fail if one was never entered.
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "dispatch/target.h"
#include "simdattn/simdattn.h"

namespace simdattn::test {

/// Those of the library, with permission for AMX, where there is some.
inline std::vector<const Target*> library_targets() {
  [[maybe_unused]] static const Status asked = request_amx();
  std::vector<const Target*> result;
  for (const Target* t : targets()) {
    if (target_runnable(*t)) result.push_back(t);
  }
  return result;
}
/// Those, and AMX over tiles in software. A program that has to do with others defines it itself.
std::vector<const Target*> runnable_targets();

/// The last of the list.
inline const Target& scalar_target() { return *targets().back(); }

/// The target whose bits `t` has to return: of an exact one, the definition; of the definition, the best other exact
/// one. A target that has no counterpart here is compared with itself: other strides and alignments must not matter.
inline const Target& counterpart(const Target& t) {
  if (!target_exact(t)) return t;
  if (&t != &scalar_target()) return scalar_target();
  for (const Target* other : runnable_targets()) {
    if (target_exact(*other)) return *other;
  }
  return t;
}

inline std::set<const Target*>& entered_targets() {
  static std::set<const Target*> entered;
  return entered;
}

class TargetTest : public ::testing::TestWithParam<const Target*> {
 protected:
  void SetUp() override { entered_targets().insert(GetParam()); }
  static const Target& target() { return *GetParam(); }
  static bool is_exact() { return target_exact(*GetParam()); }
  static Exec exec() { return {.target = GetParam()}; }
};

inline std::string target_name(const ::testing::TestParamInfo<const Target*>& info) {
  std::string result = target_name(*info.param);
  for (char& c : result) {
    if (c == '/' || c == '-' || c == '.') c = '_';
  }
  return result;
}

class EveryTargetEntered : public ::testing::Environment {
 public:
  void TearDown() override {
    if (GTEST_FLAG_GET(filter) != "*" || GTEST_FLAG_GET(list_tests)) return;
    for (const Target* t : runnable_targets()) {
      EXPECT_EQ(entered_targets().count(t), 1u) << target_name(*t) << " can run here but no test entered it";
    }
  }
};
inline ::testing::Environment* const kEveryTargetEntered = ::testing::AddGlobalTestEnvironment(new EveryTargetEntered);

#define SIMDATTN_FOR_EACH_TARGET(Suite)                                                              \
  INSTANTIATE_TEST_SUITE_P(Target, Suite, ::testing::ValuesIn(::simdattn::test::runnable_targets()), \
                           ::simdattn::test::target_name)

}  // namespace simdattn::test
