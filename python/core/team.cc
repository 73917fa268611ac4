// Threads that share a call. None of them spins beside PyTorch's.
#include <atomic>

#include <unistd.h>

#include "python/core/core.h"

namespace simdattn_python {

namespace {

constexpr int kMostWorkers = 255;

// Workers sleep in a lock of their own until there is work. They know nothing of Python, and the process ends without
// them.
struct Team {
  PyThread_type_lock done;
  PyThread_type_lock wake[kMostWorkers];
  int workers;
  int process;  // a fork has none of the threads
  std::atomic<int> running;
  void (*function)(void*);
  void* argument;
};
Team team;

void serve(void* wake) {
  for (;;) {
    PyThread_acquire_lock(static_cast<PyThread_type_lock>(wake), 1);
    team.function(team.argument);
    if (team.running.fetch_sub(1) == 1) PyThread_release_lock(team.done);
  }
}

// A lock that is held, as nobody waits for anything yet.
PyThread_type_lock held_lock() {
  PyThread_type_lock lock = PyThread_allocate_lock();
  if (lock != nullptr) PyThread_acquire_lock(lock, 1);
  return lock;
}

void start_workers(int wanted) {
  if (team.process != getpid()) {
    team.process = getpid();
    team.workers = 0;
    team.done = held_lock();
  }
  while (team.done != nullptr && team.workers < wanted && team.workers < kMostWorkers) {
    PyThread_type_lock wake = held_lock();
    if (wake == nullptr || PyThread_start_new_thread(serve, wake) == static_cast<unsigned long>(-1)) break;
    team.wake[team.workers++] = wake;
  }
}

void (*openmp_parallel)(void (*function)(void*), void* argument, unsigned n, unsigned flags);
int openmp_process;  // whose threads OpenMP has: after a fork it would wait for threads that are not there

bool run_openmp(void (*function)(void*), void* argument, int n) {
  if (openmp_parallel == nullptr || openmp_process != getpid()) return false;
  openmp_parallel(function, argument, unsigned(n), 0);
  return true;
}

}  // namespace

void set_openmp(void* parallel) {
  openmp_parallel = reinterpret_cast<decltype(openmp_parallel)>(parallel);
  openmp_process = getpid();
}

void run_team(void (*function)(void*), void* argument, int n, bool openmp) {
  if (n <= 1 || (openmp && run_openmp(function, argument, n))) {
    if (n <= 1) function(argument);
    return;
  }
  static PyThread_type_lock const busy = PyThread_allocate_lock();
  // A team that works for another thread is not waited for.
  if (busy == nullptr || PyThread_acquire_lock(busy, 0) == 0) return function(argument);
  start_workers(n - 1);
  const int helpers = n - 1 < team.workers ? n - 1 : team.workers;
  team.function = function;
  team.argument = argument;
  team.running.store(helpers);
  for (int i = 0; i < helpers; ++i) PyThread_release_lock(team.wake[i]);
  function(argument);
  if (helpers > 0) PyThread_acquire_lock(team.done, 1);
  PyThread_release_lock(busy);
}

}  // namespace simdattn_python
