// Alone, so that the linker takes it from the library only where the program has none.
#include "tests/support/target_test.h"

namespace simdattn::test {

std::vector<const Target*> runnable_targets() {
  [[maybe_unused]] static const Status asked = request_amx();
  std::vector<const Target*> result;
  for (const Target* t : targets()) {
    if (target_runnable(*t)) result.push_back(t);
  }
  return result;
}

}  // namespace simdattn::test
