#include "bench/harness.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "bench/peers.h"
#include "lib/contract/dtypes.h"

namespace bench {
namespace {

using simdattn::Target;
using Clock = std::chrono::steady_clock;

double ns_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

// A turn of a contestant: it warms up for so long, then takes samples of at least so long.
constexpr double kWarmUpNs = 100e3;  // after 512-bit instructions a core needs about that long to change its clock
constexpr double kSampleNs = 30e3;
constexpr int kSamplesPerTurn = 3;
constexpr double kLongCallNs = 300e3;  // one call is a turn
constexpr double kVeryLongCallNs = 20e6;
constexpr size_t kMaxSamples = 600;
constexpr size_t kAdds = 16384;

double quantile(std::vector<double> v, double q) {
  if (v.empty()) return 0;
  std::sort(v.begin(), v.end());
  return v[static_cast<size_t>(q * static_cast<double>(v.size() - 1))];
}

/// What this thread has run for. Long calls are timed with it: while one runs, other programs get their turns too,
/// which the short samples of the probes escape. (Asking costs a system call, too much for short samples.)
double thread_ns() {
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

// ---------------------------------------------------------------------------------------------------------------------
// Verification

double widen(const void* data, simdattn::DType dtype, size_t i) {
  return simdattn::with_storage(
      dtype, [&]<class T>(T) { return static_cast<double>(simdattn::to_f32(static_cast<const T*>(data)[i])); });
}

/// The reason why `got` is not what the definition says, or an empty string.
std::string difference(const Prepared& p, const std::byte* expected, bool bits, double absolute, double relative) {
  const size_t size = element_size(p.out_dtype);
  const std::byte* got = static_cast<const std::byte*>(p.out) + p.first * size;
  if (bits && std::memcmp(got, expected, p.count * size) == 0) return "";
  for (size_t i = 0; i < p.count; ++i) {
    const double e = widen(expected, p.out_dtype, i);
    const double g = widen(got, p.out_dtype, i);
    const bool same_bits = std::memcmp(got + i * size, expected + i * size, size) == 0;
    if (bits ? same_bits : same_bits || std::abs(g - e) <= absolute + relative * std::abs(e)) continue;
    char text[160];
    std::snprintf(text, sizeof text, "wrong result: element %zu is %.9g, the definition says %.9g (%s)", p.first + i, g,
                  e, bits ? "same bits required" : "beyond the bound");
    return text;
  }
  return "";
}

/// The largest difference from the exact result, as a share of the largest exact number.
double largest_error(const Prepared& p, const std::vector<double>& exact_result) {
  const std::byte* got = static_cast<const std::byte*>(p.out) + p.first * element_size(p.out_dtype);
  double error = 0, largest = 0;
  for (size_t i = 0; i < exact_result.size(); ++i) {
    const double e = std::abs(widen(got, p.out_dtype, i) - exact_result[i]);
    if (!(e <= error)) error = e;  // a NaN stays
    largest = std::max(largest, std::abs(exact_result[i]));
  }
  return error / largest;
}

/// Enough to show that it does the same work: 16-bit libraries round probabilities, sums or both to 16 bits, and one
/// computes angles in f32.
double peer_bound(const Work& w) {
  return w.type != simdattn::DType::kF32 ? 0.05 : w.kind == Kind::kRope ? 1e-2 : 1e-3;
}

}  // namespace

bool noisy(double spread, int samples) { return samples < 3 || spread > 0.1; }

std::vector<Result> measure(const Case& c, const MeasureOptions& options) {
  Prepared p = c.prepare();
  const Target* scalar = nullptr;
  std::vector<Result> results;
  std::vector<Contestant> contestants;  // entry i belongs to results[i] as far as there are results
  std::vector<const Target*> result_targets;
  if (simdattn::find_target("scalar", &scalar).code != simdattn::Code::kOk) {
    return {{.target = "scalar", .error = "the target is missing", .counters = {}}};
  }

  const auto status_text = [](const simdattn::Status& s) {
    return s.ok() ? std::string() : std::string("call failed: ") + s.detail;
  };
  // A call inside a timed loop: that it succeeds was seen before.
  const auto timed = [&](const Target* t, bool part) {
    return [&p, t, part] {
      (void)p.run(t, part);
      asm volatile("" : : : "memory");
    };
  };

  // The definition's result, and one sample of its time.
  const size_t size = element_size(p.out_dtype);
  std::vector<std::byte> expected(p.count * size);
  if (p.reset) p.reset();
  auto start = Clock::now();
  const std::string scalar_error = status_text(p.run(scalar, true));
  const double scalar_call_ns = ns_since(start);
  std::memcpy(expected.data(), static_cast<std::byte*>(p.out) + p.first * size, expected.size());

  for (const Target* t : options.targets) {
    Result r;
    double estimate = 0;
    r.target = simdattn::target_name(*t);
    r.error = scalar_error;
    if (r.error.empty() && t != scalar) {
      if (p.reset) {
        p.reset();
      } else {
        std::memset(p.out, 0xA5, p.out_elements * size);
      }
      start = Clock::now();
      r.error = status_text(p.run(t, false));
      estimate = ns_since(start);
      if (r.error.empty()) r.error = difference(p, expected.data(), simdattn::target_exact(*t), p.absolute, p.relative);
    }
    Contestant k;
    k.call = timed(t, t == scalar);
    k.estimate = estimate;
    k.threads = c.threads;
    k.wants_clock = c.elements > 0;
    contestants.push_back(std::move(k));
    results.push_back(std::move(r));
    result_targets.push_back(t);
  }
  // Other libraries, each checked against the exact result; so are the targets, which tells the error of all.
  std::vector<double> exact_result;
  const std::vector<const Peer*> peers = peers_for(c.work);
  if (!peers.empty()) exact_result = exact(p.work, p.first, p.count);
  std::vector<double> errors(results.size());
  for (size_t i = 0; i < results.size() && !peers.empty(); ++i) {
    if (!results[i].error.empty()) continue;
    const Target* t = result_targets[i];
    if (p.reset) p.reset();
    (void)p.run(t, t == scalar);
    errors[i] = largest_error(p, exact_result);
  }
  std::vector<Call> calls;  // kept until all is measured
  for (const Peer* peer : peers) {
    Result r;
    r.target = std::string("peer/") + peer->name;
    errors.push_back(0);
    if (p.reset) {
      p.reset();
    } else {
      std::memset(p.out, 0xA5, p.out_elements * size);
    }
    Call call = peer->make(p.work);
    if (!call.run) {
      r.error = "the library refused the problem";
    } else {
      call.run();
      if (call.after) call.after();
      errors.back() = largest_error(p, exact_result);
      if (!(errors.back() <= peer_bound(c.work))) {
        char text[96];
        std::snprintf(text, sizeof text, "wrong result: off by %.3g of the largest exact number", errors.back());
        r.error = text;
      }
    }
    Contestant k;
    k.call = [run = call.run] {
      run();
      asm volatile("" : : : "memory");
    };
    k.wants_clock = c.elements > 0;
    calls.push_back(std::move(call));
    contestants.push_back(std::move(k));
    results.push_back(std::move(r));
    result_targets.push_back(nullptr);
  }
  // Once more under other names.
  for (size_t i = 0, n = result_targets.size(); i < n && options.twice; ++i) {
    const Target* t = result_targets[i];
    if (t == nullptr || t == scalar || !results[i].error.empty()) continue;
    for (const bool slower : {false, true}) {
      Contestant k;
      k.call = timed(t, false);
      if (slower) {
        double call_ns = 0, add_ns = 0;  // of one call when it is warm, and of one dependent addition
        for (int probe = 0; probe < 5; ++probe) {
          const auto measured = [](auto f) {
            const auto before = Clock::now();
            f();
            return ns_since(before);
          };
          const double call = measured([&] { (void)p.run(t, false); });
          const double add = measured([] { dependent_adds(kAdds); }) / static_cast<double>(kAdds);
          call_ns = probe == 0 ? call : std::min(call_ns, call);
          add_ns = probe == 0 ? add : std::min(add_ns, add);
        }
        k.call = [&p, t, adds = static_cast<size_t>(0.1 * call_ns / add_ns)] {
          (void)p.run(t, false);
          dependent_adds(adds);
          asm volatile("" : : : "memory");
        };
      }
      k.threads = c.threads;
      k.wants_clock = c.elements > 0;
      contestants.push_back(std::move(k));
      results.push_back(
          {.target = results[i].target + (slower ? " and a tenth" : " again"), .error = {}, .counters = {}});
      result_targets.push_back(t);
      errors.push_back(0);
    }
  }

  // Beside them: companions, and the probes of the limits that apply to them.
  std::vector<size_t> companion_of(results.size(), SIZE_MAX);
  if (p.companion) {
    for (size_t i = 0; i < results.size(); ++i) {
      const Target* t = result_targets[i];
      if (t == nullptr || t == scalar || !results[i].error.empty()) continue;
      const std::string error = status_text(p.companion(t));
      if (!error.empty()) {
        results[i].error = std::string(c.companion) + ": " + error;
        continue;
      }
      companion_of[i] = contestants.size();
      Contestant k;
      k.threads = c.threads;  // compared with wall time, so itself in wall time
      k.call = [&p, t] {
        (void)p.companion(t);
        asm volatile("" : : : "memory");
      };
      contestants.push_back(std::move(k));
    }
  }
  struct Limits {
    size_t read = SIZE_MAX, read_prefetch = SIZE_MAX;
  };
  std::map<std::string, Limits> limits;
  constexpr size_t kFmaSteps = 4000;
  size_t stream_bytes = 0;
  for (const auto& s : p.streams) stream_bytes += s.size();
  volatile uint64_t sink = 0;
  if (!c.fixed_cost && !c.threads && p.copy_bytes == 0) {
    for (size_t i = 0; i < results.size(); ++i) {
      const std::string name = isa_of_target(results[i].target);
      const Isa* isa = find_isa(name);
      if (isa == nullptr) continue;
      if (p.flops > 0) contestants[i].fma = [isa] { return isa->fma(kFmaSteps); };
      if (limits.contains(name)) continue;
      Limits l;
      if (stream_bytes > 0) {
        for (const bool prefetch : {false, true}) {
          if (prefetch && stream_bytes <= cache_sizes().l2) continue;
          (prefetch ? l.read_prefetch : l.read) = contestants.size();
          Contestant k;
          k.call = [&p, &sink, read = prefetch ? isa->read_prefetch : isa->read] {
            for (const auto& s : p.streams) sink = sink + read(s.data(), s.size());
          };
          contestants.push_back(std::move(k));
        }
      }
      limits[name] = l;
    }
  }
  Buffer copy_from, copy_to;
  // A copy of half the bytes touches as much memory as work in place does.
  const size_t copy_bytes = p.copy_bytes / (p.in_place ? 2 : 1);
  size_t copy = SIZE_MAX;
  std::map<std::string, size_t> isa_copy;
  if (p.copy_bytes > 0) {
    copy_from = random_buffer(simdattn::DType::kF32, copy_bytes / 4 + 1, 99);
    copy_to = random_buffer(simdattn::DType::kF32, copy_bytes / 4 + 1, 98);
    copy = contestants.size();
    Contestant k;
    k.call = [&] {
      std::memcpy(copy_to.data(), copy_from.data(), copy_bytes);
      asm volatile("" : : "r"(copy_to.data()) : "memory");
    };
    contestants.push_back(std::move(k));
    for (const Result& r : results) {
      const std::string name = isa_of_target(r.target);
      const Isa* isa = find_isa(name);
      if (isa == nullptr || isa_copy.contains(name)) continue;
      isa_copy[name] = contestants.size();
      Contestant own;
      own.call = [&, isa] { isa->copy(copy_from.data(), copy_to.data(), copy_bytes); };
      contestants.push_back(std::move(own));
    }
  }

  // The turns. The definition is slow: it gets a tenth of the time, and no turn at all if one would take longer.
  const double budget = options.seconds * 1e9;
  double scalar_total = 0;
  start = Clock::now();
  const auto takes_part = [&](size_t i) { return i >= results.size() || results[i].error.empty(); };
  const auto is_scalar = [&](size_t i) { return i < results.size() && result_targets[i] == scalar; };
  for (size_t i = 0; i < contestants.size(); ++i) {
    if (!takes_part(i)) continue;
    // What was seen while verifying is good enough for a long call; it is a sample of the definition, which gets few.
    if (is_scalar(i)) contestants[i].estimate = scalar_call_ns;
    if (is_scalar(i) && scalar_call_ns > kLongCallNs) contestants[i].ns.push_back(scalar_call_ns);
    if (contestants[i].estimate < kLongCallNs) contestants[i].calibrate();
  }
  std::vector<double> spent(contestants.size());
  double quickest = budget;
  for (size_t i = 0; i < results.size(); ++i) {
    if (takes_part(i)) quickest = std::min(quickest, contestants[i].estimate);
  }
  std::mt19937_64 random(options.seed);
  std::vector<size_t> order(contestants.size());
  std::iota(order.begin(), order.end(), size_t{0});
  for (int round = 0;; ++round) {
    const double elapsed = ns_since(start);
    // At least three turns each, so that there is a spread.
    if (elapsed > budget && round >= 3) break;
    size_t most = 0;
    // Fisher and Yates, so that a seed gives the same order with every C++ library.
    for (size_t k = order.size(); k > 1; --k) std::swap(order[k - 1], order[random() % k]);
    for (const size_t i : order) {
      if (!takes_part(i)) continue;
      const auto turn_start = Clock::now();
      // Other libraries that are slower by far: three turns, then a tenth of the time each.
      if (i < results.size() && result_targets[i] == nullptr && round >= 3 && contestants[i].estimate > 8 * quickest &&
          spent[i] + contestants[i].estimate > 0.1 * ns_since(start)) {
        continue;
      }
      if (is_scalar(i)) {
        const bool first = round < 2 && scalar_call_ns < budget / 10 && scalar_call_ns < 0.2e9;
        if (!first && scalar_total + scalar_call_ns > 0.1 * ns_since(start)) continue;
      }
      contestants[i].turn();
      spent[i] += ns_since(turn_start);
      if (is_scalar(i)) scalar_total += ns_since(turn_start);
      most = std::max(most, contestants[i].ns.size());
    }
    if (most > kMaxSamples) break;
  }

  double scalar_ns = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    if (result_targets[i] == scalar) scalar_ns = contestants[i].best() / p.scalar_share;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    Result& r = results[i];
    if (!r.error.empty()) continue;
    const Contestant& k = contestants[i];
    const bool part = result_targets[i] == scalar;
    r.ns = part ? scalar_ns : k.best();
    r.spread = k.spread();
    r.samples = static_cast<int>(k.ns.size());
    auto& out = r.counters;
    out["p50_ns"] = r.ns * (1 + r.spread);
    out["spread"] = r.spread;
    out["samples"] = r.samples;
    if (!peers.empty()) out["error"] = errors[i];
    out["noisy"] = noisy(r.spread, r.samples) ? 1 : 0;
    const double bytes = c.bytes > 0 ? c.bytes : static_cast<double>(stream_bytes);
    if (bytes > 0) out["GB_per_s"] = bytes / r.ns;
    if (p.flops > 0) out["GFLOP_per_s"] = p.flops / r.ns;
    if (scalar_ns > 0) out["speedup"] = scalar_ns / r.ns;
    if (!k.clock.empty() && c.elements > 0) {
      const double cycle = quantile(k.clock, 0.1);
      out["GHz"] = 1 / cycle;
      out["cycles_per_element"] = r.ns / cycle / c.elements;
    }
    if (companion_of[i] != SIZE_MAX) {
      const double companion = contestants[companion_of[i]].best();
      out["relative"] = r.ns / companion / p.companion_work;
      out["companion_ns"] = companion;
      if (p.more_calls > 0) out["ns_per_call"] = (r.ns - companion) / p.more_calls;
    }
    // The limit, measured at the same moments.
    double limit = 0;
    if (copy != SIZE_MAX && !part) {
      limit = contestants[copy].best();
      const auto own = isa_copy.find(isa_of_target(r.target));
      if (own != isa_copy.end()) limit = std::min(limit, contestants[own->second].best());
      if (p.in_place) limit *= 2;  // half the bytes were copied
      out["limit_is_copy"] = 1;
    } else if (const auto it = limits.find(isa_of_target(r.target)); it != limits.end()) {
      const Limits& l = it->second;
      double read = 0, compute = 0;
      if (l.read != SIZE_MAX) read = contestants[l.read].best();
      if (l.read_prefetch != SIZE_MAX) read = std::min(read, contestants[l.read_prefetch].best());
      compute = p.flops * quantile(k.fma_ns, 0.1);
      limit = std::max(read, compute);
      if (limit > 0) out[read > compute ? "limit_is_read" : "limit_is_fma"] = 1;
    }
    if (limit > 0) {
      out["limit_ns"] = limit;
      out["share"] = limit / r.ns;
    }
  }
  return results;
}

// ---------------------------------------------------------------------------------------------------------------------
// Data

size_t element_size(simdattn::DType dtype) { return static_cast<size_t>(simdattn::size_of(dtype)); }

const char* type_name(simdattn::DType dtype) {
  switch (dtype) {
    case simdattn::DType::kBF16: return "bf16";
    case simdattn::DType::kF16: return "f16";
    default: return "f32";
  }
}

void fill(void* data, simdattn::DType dtype, size_t elements, uint64_t seed, float amplitude) {
  uint64_t x = 0x9E3779B97F4A7C15u * (seed + 1);
  const auto next = [&] {  // xorshift64
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x;
  };
  simdattn::with_storage(dtype, [&]<class T>(T) {
    // Elements are drawn from 4096 numbers: conversion and generation of hundreds of megabytes would take longer than
    // what is measured on them.
    std::array<T, 4096> numbers;
    for (T& n : numbers) {
      const float unit = static_cast<float>(static_cast<int64_t>(next() >> 40) - (1 << 23)) * 0x1p-23f;
      n = simdattn::from_f32<T>(unit * amplitude);
    }
    T* out = static_cast<T*>(data);
    size_t i = 0;
    for (; i + 5 <= elements; i += 5) {
      const uint64_t r = next();
      out[i] = numbers[r & 4095];
      out[i + 1] = numbers[r >> 12 & 4095];
      out[i + 2] = numbers[r >> 24 & 4095];
      out[i + 3] = numbers[r >> 36 & 4095];
      out[i + 4] = numbers[r >> 48 & 4095];
    }
    for (; i < elements; ++i) out[i] = numbers[next() & 4095];
  });
}

Buffer random_buffer(simdattn::DType dtype, size_t elements, uint64_t seed, float amplitude) {
  Buffer b(elements * element_size(dtype));
  fill(b.data(), dtype, elements, seed, amplitude);
  return b;
}

size_t most_workspace(std::initializer_list<const simdattn::AttentionProblem*> problems) {
  size_t bytes = 0;
  for (const Target* t : simdattn::targets()) {
    if (!simdattn::target_runnable(*t)) continue;
    for (const simdattn::AttentionProblem* a : problems) {
      simdattn::Plan plan;
      if (a->q.data == nullptr || !simdattn::attention_plan(*a, &plan, {.target = t}).ok()) continue;
      bytes = std::max(bytes, plan.workspace_bytes);
    }
  }
  return bytes;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  add_softmax_cases(cases);
  add_masked_softmax_cases(cases);
  add_scores_cases(cases);
  add_weighted_values_cases(cases);
  add_rope_cases(cases);
  add_position_cases(cases);
  add_kv_cases(cases);
  add_other_scores_cases(cases);
  add_attention_cases(cases);
  add_mask_cases(cases);
  add_arithmetic_cases(cases);
  add_narrow_cases(cases);
  add_plan_cases(cases);
  add_state_cases(cases);
  add_call_cost_cases(cases);
  add_selection_cases(cases);
  return cases;
}

}  // namespace bench
