#include <cstring>

#include "bench/loops.h"

namespace bench {

// One per object of loops.cc; the build file says which there are.
#define BENCH_LOOPS(isa) extern const Loops kLoops_##isa;
BENCH_ISAS(BENCH_LOOPS)
#undef BENCH_LOOPS

const Loops* find_loops(const char* isa) {
  static const Loops* const all[] = {
#define BENCH_LOOPS(isa) &kLoops_##isa,
      BENCH_ISAS(BENCH_LOOPS)
#undef BENCH_LOOPS
          nullptr,
  };
  for (const Loops* loops : all) {
    if (loops != nullptr && std::strcmp(loops->isa, isa) == 0) return loops;
  }
  return nullptr;
}

}  // namespace bench
