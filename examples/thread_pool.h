// A pool of std::thread, as small as the examples need: threads wait between jobs, a job is a number of tasks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

/// Lets threads go on when all of them have come. std::barrier, but that gcc 12's forgets to wake a thread now and then
/// on Windows.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void arrive_and_wait() {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    if (++arrived_ < threads_) {
      all_came_.wait(lock, [&] { return round_ != round; });
    } else {
      arrived_ = 0;
      ++round_;
      all_came_.notify_all();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_came_;
  int threads_;
  int arrived_ = 0;
  int64_t round_ = 0;
};

/// The caller is thread 0, so a pool of 1 starts none.
class ThreadPool {
 public:
  explicit ThreadPool(int threads) : begin_(threads), end_(threads) {
    for (int t = 1; t < threads; ++t) {
      threads_.emplace_back([this, t] {
        for (begin_.arrive_and_wait(); body_ != nullptr; begin_.arrive_and_wait()) work(t);
      });
    }
  }
  ~ThreadPool() {
    body_ = nullptr;
    begin_.arrive_and_wait();
    for (std::thread& t : threads_) t.join();
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  /// Calls body(task, thread) once for each task, in no particular order. An exception of one of them, the first, comes
  /// out here; tasks that have not begun by then are left out.
  void run(int64_t tasks, const std::function<void(int64_t task, int thread)>& body) {
    body_ = &body;
    tasks_ = tasks;
    next_ = 0;
    begin_.arrive_and_wait();
    work(0);
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  void work(int thread) {
    try {
      for (int64_t task; (task = next_++) < tasks_;) (*body_)(task, thread);
    } catch (...) {
      const std::lock_guard lock(failure_mutex_);
      if (!failure_) failure_ = std::current_exception();
      next_ = tasks_;
    }
    end_.arrive_and_wait();
  }

  Barrier begin_, end_;
  std::atomic<int64_t> next_ = 0;
  int64_t tasks_ = 0;
  const std::function<void(int64_t, int)>* body_ = nullptr;
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};
