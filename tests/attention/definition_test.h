// What the suites of the definition share.
#pragma once

#include <string>

#include "simdattn/simdattn.h"
#include "tests/attention/second_definition.h"
#include "tests/support/target_test.h"

namespace simdattn::test {

class Definition : public TargetTest {
 protected:
  void SetUp() override {
    TargetTest::SetUp();
    second::flush_before_rounding(flushes_before_rounding());
  }
  void TearDown() override { second::flush_before_rounding(false); }
  /// 64-bit ARM's instructions do; the scalar target computes around it.
  static bool flushes_before_rounding() {
#ifdef __aarch64__
    return std::string(simdattn::target_name(target())) != "scalar";
#else
    return false;
#endif
  }
};

}  // namespace simdattn::test
