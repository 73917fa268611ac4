#include "tests/support/test_data.h"

namespace simdattn::test {

const char* test_data() { return SIMDATTN_TEST_DATA; }

}  // namespace simdattn::test
