#pragma once

namespace simdattn::test {

// The folder into which the build unpacks the archives of tests/data.
const char* test_data();

}  // namespace simdattn::test
