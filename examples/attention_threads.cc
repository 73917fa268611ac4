// Attention on a pool of std::thread: the library divides a problem into tasks, the caller runs them where it likes.
// Shows one causal prefill and one long decode, on 1 thread and on all, and that both give the same bits.
//
//   attention_threads [THREADS]
#include <simdattn/simdattn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "command_line.h"
#include "thread_pool.h"

namespace sa = simdattn;

namespace {

void check(const sa::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.detail);
}

/// attention() on a pool. Memory is allocated here for brevity; an engine would keep it from call to call.
void attention_on(ThreadPool& pool, const sa::AttentionProblem& problem) {
  sa::Plan plan;
  check(sa::attention_plan(problem, &plan, {.threads = pool.size()}));
  std::vector<std::vector<std::byte>> workspace(static_cast<size_t>(pool.size()));
  for (auto& bytes : workspace) bytes.resize(plan.workspace_bytes);
  std::vector<std::byte> partial(plan.partial_bytes);
  const auto exec = [&](int thread) {
    return sa::Exec{.workspace = workspace[static_cast<size_t>(thread)].data(),
                    .workspace_bytes = plan.workspace_bytes};
  };
  pool.run(plan.tasks, [&](int64_t task, int thread) {
    check(sa::attention_range(plan, task, task + 1, partial.data(), partial.size(), exec(thread)));
  });
  pool.run(plan.reduce_tasks, [&](int64_t task, int thread) {
    check(sa::attention_reduce(plan, task, task + 1, partial.data(), partial.size(), exec(thread)));
  });
}

std::vector<float> data(int64_t n) {  // anything between -1 and 1
  std::vector<float> x(static_cast<size_t>(n));
  uint32_t state = 1;
  for (float& f : x) f = static_cast<float>(static_cast<int32_t>(state = state * 1664525 + 1013904223)) * 0x1p-31f;
  return x;
}

bool compare(const char* what, int threads, int64_t heads, int64_t kv_heads, int64_t n_q, int64_t n_kv, int64_t d) {
  const std::vector<float> q = data(heads * n_q * d), k = data(kv_heads * n_kv * d), v = data(kv_heads * n_kv * d);
  std::vector<float> out[2];
  double seconds[2];
  for (const int many : {0, 1}) {
    out[many].resize(q.size());
    sa::AttentionProblem problem{.q = sa::view(q.data(), {1, heads, n_q, d}),
                                 .k = sa::view(k.data(), {1, kv_heads, n_kv, d}),
                                 .v = sa::view(v.data(), {1, kv_heads, n_kv, d}),
                                 .out = sa::view(out[many].data(), {1, heads, n_q, d}),
                                 .scoring = {.causal = true}};
    ThreadPool pool(many ? threads : 1);
    attention_on(pool, problem);  // once to warm up
    const auto start = std::chrono::steady_clock::now();
    attention_on(pool, problem);
    seconds[many] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  const bool same = std::memcmp(out[0].data(), out[1].data(), out[0].size() * sizeof(float)) == 0;
  std::printf("%s: 1 thread %.2f ms, %d threads %.2f ms, %s\n", what, seconds[0] * 1e3, threads, seconds[1] * 1e3,
              same ? "the same bits" : "DIFFERENT BITS");
  return same;
}

constexpr char kUsage[] =
    "usage: attention_threads [THREADS]\n"
    "Times a causal prefill and a long decode on one thread and on THREADS (what the machine has), and compares the "
    "bits.";

int run(int argc, char** argv) {
  const std::vector<std::string> words = CommandLine(kUsage).parse(argc, argv);
  if (words.size() > 1) throw std::runtime_error(kUsage);
  const int threads = words.empty() ? std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 1024)
                                    : static_cast<int>(whole_number("THREADS", words[0], 1, 1024));
  const bool prefill = compare("causal prefill of 1024 tokens, 8/2 heads of 64", threads, 8, 2, 1024, 1024, 64);
  const bool decode = compare("decode at 65536 tokens, 8/2 heads of 64", threads, 8, 2, 1, 65536, 64);
  return prefill && decode ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("attention_threads", [&] { return run(argc, argv); });
}
