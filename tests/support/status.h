// For EXPECT_TRUE and ASSERT_TRUE: a status that says its sentence where it is a failure.
#pragma once

#include <gtest/gtest.h>

#include "simdattn/simdattn.h"

namespace simdattn::test {

inline ::testing::AssertionResult ok(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << status.detail;
}

}  // namespace simdattn::test
