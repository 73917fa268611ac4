// The threads of the extension module under ThreadSanitizer: tools/sanitize team. Python's locks are semaphores of the
// C library, which the sanitizer knows.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <vector>

#include "python/core/core.h"

namespace {

constexpr int kItems = 200;

// Written by the caller, read by all; written by all, read by the caller: in memory of its own, as arrays are.
struct Job {
  std::vector<int> in, out;
  std::atomic<int> next{0};
};

void work(void* argument) {
  Job& job = *static_cast<Job*>(argument);
  for (int i; (i = job.next.fetch_add(1, std::memory_order_relaxed)) < kItems;) {
    job.out[size_t(i)] = job.in[size_t(i)] + 1;
    std::this_thread::yield();
  }
}

bool run(int threads) {
  Job job{std::vector<int>(kItems), std::vector<int>(kItems)};
  std::iota(job.in.begin(), job.in.end(), threads);
  simdattn_python::run_team(work, &job, threads, false);
  for (int i = 0; i < kItems; ++i) {
    if (job.out[size_t(i)] != i + threads + 1) return false;
  }
  return true;
}

}  // namespace

int main() {
  Py_InitializeEx(0);
  PyEval_SaveThread();
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&wrong] {
      for (int i = 0; i < 100; ++i) wrong += run(1 + i % 5) ? 0 : 1;
    });
  }
  for (std::thread& t : callers) t.join();
  std::printf("%d wrong\n", wrong.load());
  std::fflush(stdout);
  std::_Exit(wrong == 0 ? 0 : 1);  // workers never end
}
