// Attention on OpenMP threads: two loops, one over the tasks of a problem and one over the reductions of its key
// splits. Checks that the bits are those of attention() on one thread.
#include <omp.h>
#include <simdattn/simdattn.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "command_line.h"

namespace sa = simdattn;

namespace {

void check(const sa::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "attention_openmp: %s\n", status.detail);
  std::exit(1);
}

void attention_openmp(const sa::AttentionProblem& problem) {
  sa::Plan plan;
  check(sa::attention_plan(problem, &plan, {.threads = omp_get_max_threads()}));
  std::vector<std::byte> partial(plan.partial_bytes);
#pragma omp parallel
  {
    std::vector<std::byte> workspace(plan.workspace_bytes);
    const sa::Exec exec{.workspace = workspace.data(), .workspace_bytes = workspace.size()};
#pragma omp for schedule(dynamic)  // a later row block of a causal prefill sees more keys: tasks are not equal
    for (int64_t task = 0; task < plan.tasks; ++task) {
      check(sa::attention_range(plan, task, task + 1, partial.data(), partial.size(), exec));
    }  // the barrier here is needed: a reduction reads what several tasks wrote
#pragma omp for
    for (int64_t task = 0; task < plan.reduce_tasks; ++task) {
      check(sa::attention_reduce(plan, task, task + 1, partial.data(), partial.size(), exec));
    }
  }
}

std::vector<float> data(int64_t n) {  // anything between -1 and 1
  std::vector<float> x(static_cast<size_t>(n));
  uint32_t state = 1;
  for (float& f : x) f = static_cast<float>(static_cast<int32_t>(state = state * 1664525 + 1013904223)) * 0x1p-31f;
  return x;
}

bool compare(const char* what, int64_t heads, int64_t kv_heads, int64_t n_q, int64_t n_kv, int64_t d) {
  const std::vector<float> q = data(heads * n_q * d), k = data(kv_heads * n_kv * d), v = data(kv_heads * n_kv * d);
  std::vector<float> expected(q.size()), out(q.size());
  sa::AttentionProblem problem{.q = sa::view(q.data(), {1, heads, n_q, d}),
                               .k = sa::view(k.data(), {1, kv_heads, n_kv, d}),
                               .v = sa::view(v.data(), {1, kv_heads, n_kv, d}),
                               .out = sa::view(expected.data(), {1, heads, n_q, d}),
                               .scoring = {.causal = true}};
  sa::Plan plan;
  check(sa::attention_plan(problem, &plan));
  std::vector<std::byte> workspace(plan.workspace_bytes);
  const double start = omp_get_wtime();
  check(sa::attention(problem, {.workspace = workspace.data(), .workspace_bytes = workspace.size()}));
  const double middle = omp_get_wtime();
  problem.out = sa::view(out.data(), {1, heads, n_q, d});
  attention_openmp(problem);
  const double stop = omp_get_wtime();

  const bool same = std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) == 0;
  std::printf("%s: 1 thread %.2f ms, %d threads %.2f ms, %s\n", what, (middle - start) * 1e3, omp_get_max_threads(),
              (stop - middle) * 1e3, same ? "the same bits" : "DIFFERENT BITS");
  return same;
}

constexpr char kUsage[] =
    "usage: attention_openmp\n"
    "Times a causal prefill and a long decode on one thread and on OpenMP's (OMP_NUM_THREADS), and compares the bits.";

int run(int argc, char** argv) {
  if (!CommandLine(kUsage).parse(argc, argv).empty()) throw std::runtime_error(kUsage);
  const bool prefill = compare("causal prefill of 1024 tokens, 8/2 heads of 64", 8, 2, 1024, 1024, 64);
  const bool decode = compare("decode at 65536 tokens, 8/2 heads of 64", 8, 2, 1, 65536, 64);
  return prefill && decode ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("attention_openmp", [&] { return run(argc, argv); });
}
