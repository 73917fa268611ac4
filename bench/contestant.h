// One of those that take turns: a call, and the times that it took.
#pragma once

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <vector>

#include "bench/machine.h"

namespace bench {

using Clock = std::chrono::steady_clock;

inline double ns_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

// A turn of a contestant: it warms up for so long, then takes samples of at least so long.
inline constexpr double kWarmUpNs =
    100e3;  // after 512-bit instructions a core needs about that long to change its clock
inline constexpr double kSampleNs = 30e3;
inline constexpr int kSamplesPerTurn = 3;
inline constexpr double kLongCallNs = 300e3;  // one call is a turn
inline constexpr double kVeryLongCallNs = 20e6;
inline constexpr size_t kMaxSamples = 600;
inline constexpr size_t kAdds = 16384;

inline double quantile(std::vector<double> v, double q) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[static_cast<size_t>(q * static_cast<double>(v.size() - 1))];
}

/// What this thread has run for. Long calls are timed with it: while one runs, other programs get their turns too,
/// which the short samples of the probes escape. (Asking costs a system call, too much for short samples.)
inline double thread_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

struct Contestant {
  std::function<void()> call;
  std::vector<double> ns;     // per call
  std::vector<double> clock;  // nanoseconds per dependent add, right before and after the samples of a turn
  // The multiply-adds of its instruction set, right after a turn: under a kernel that also loads and stores a core may
  // run at a lower clock (15 % with 512 bits on one Xeon) than under multiply-adds alone, and returns from it in
  // milliseconds.
  std::function<double()> fma;  // returns the operations it did
  std::vector<double> fma_ns;   // per operation
  double estimate = 0;          // ns of one call
  bool wants_clock = false;
  bool threads = false;  // work is done on other threads as well

  double best() const { return quantile(ns, 0.1); }
  double spread() const { return ns.empty() ? 0 : quantile(ns, 0.5) / best() - 1; }

  void calibrate() {
    size_t calls = 1;
    for (;;) {
      const auto start = Clock::now();
      for (size_t i = 0; i < calls; ++i) call();
      const double elapsed = ns_since(start);
      estimate = elapsed / static_cast<double>(calls);
      if (elapsed > kSampleNs / 4) return;
      calls *= 4;
    }
  }
  void measure_clock() {
    if (!wants_clock) return;
    const auto start = Clock::now();
    dependent_adds(kAdds);
    clock.push_back(ns_since(start) / static_cast<double>(kAdds));
  }
  void turn() {
    const auto calls_in = [&](double ns_wanted) { return static_cast<size_t>(std::ceil(ns_wanted / estimate)); };
    const bool is_long = estimate > kLongCallNs;
    const size_t inner = is_long ? 1 : calls_in(kSampleNs);
    // One call brings back into the caches what others displaced; a call of tens of milliseconds does so by itself.
    for (size_t i = estimate < kVeryLongCallNs ? calls_in(kWarmUpNs) : 0; i-- > 0;) call();
    measure_clock();
    for (int s = 0; s < (is_long ? 1 : kSamplesPerTurn); ++s) {
      const bool own_time = is_long && !threads;
      const double own_start = own_time ? thread_ns() : 0;
      const auto start = Clock::now();
      for (size_t i = 0; i < inner; ++i) call();
      const double elapsed = own_time ? thread_ns() - own_start : ns_since(start);
      ns.push_back(elapsed / static_cast<double>(inner));
      estimate = std::min(estimate, ns.back());
    }
    measure_clock();
    for (int i = 0; fma && i < kSamplesPerTurn; ++i) {
      const auto start = Clock::now();
      const double operations = fma();
      fma_ns.push_back(ns_since(start) / operations);
    }
  }
};

}  // namespace bench
