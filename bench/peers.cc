#include <cstring>

#include "bench/loops.h"

namespace bench {

// One per object of loops.cc; the build file says which there are.
#define BENCH_LOOPS_DECLARE(isa) extern const Loops kLoops_##isa;
#if defined(BENCH_HAVE_LOOPS_avx3)
BENCH_LOOPS_DECLARE(avx3)
#endif
#if defined(BENCH_HAVE_LOOPS_avx2)
BENCH_LOOPS_DECLARE(avx2)
#endif
#if defined(BENCH_HAVE_LOOPS_sse2)
BENCH_LOOPS_DECLARE(sse2)
#endif
#if defined(BENCH_HAVE_LOOPS_neon)
BENCH_LOOPS_DECLARE(neon)
#endif

const Loops* find_loops(const char* isa) {
  static const Loops* const all[] = {
#if defined(BENCH_HAVE_LOOPS_avx3)
      &kLoops_avx3,
#endif
#if defined(BENCH_HAVE_LOOPS_avx2)
      &kLoops_avx2,
#endif
#if defined(BENCH_HAVE_LOOPS_sse2)
      &kLoops_sse2,
#endif
#if defined(BENCH_HAVE_LOOPS_neon)
      &kLoops_neon,
#endif
      nullptr,
  };
  for (const Loops* loops : all) {
    if (loops != nullptr && std::strcmp(loops->isa, isa) == 0) return loops;
  }
  return nullptr;
}

}  // namespace bench
