// What the kernels are held to: shares of the machine's own limits, so that the same numbers hold on any machine.
#ifndef SIMDATTN_BENCH_GOALS_H_
#define SIMDATTN_BENCH_GOALS_H_

#include <cstdio>
#include <string>

#include "bench/report.h"

namespace bench {

struct Goal {
  const char* counter;  // of a Record; "ns" is its time
  double floor;         // the least that is good enough
  double aim;           // where it should get to
  bool less_is_better;
};
/// The goal of a record, if there is one for its case and instruction set.
bool find_goal(const Record& record, Goal* goal);

/// One row per case and instruction set that has a goal, with the best target of that set.
void print_goals(const Report& report, std::FILE* out);

}  // namespace bench

#endif  // SIMDATTN_BENCH_GOALS_H_
