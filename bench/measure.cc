// What is known of the cases' contestants: who takes part, the turns, and what is made of the times.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "bench/contestant.h"
#include "bench/harness.h"
#include "bench/peers.h"
#include "lib/contract/dtypes.h"

namespace bench {
namespace {

using simdattn::Target;

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

std::string status_text(const simdattn::Status& s) {
  return s.ok() ? std::string() : std::string("call failed: ") + s.detail;
}

/// Multiply-adds of one sample of a limit.
constexpr size_t kFmaSteps = 4000;
constexpr size_t kNone = SIZE_MAX;

/// One case. Contestant i is that of row i, as far as there are rows: targets, then other libraries, then targets once
/// more. Behind them stand what no row is for: companions, and the probes of the limits.
class Measurement {
 public:
  Measurement(const Case& c, const MeasureOptions& options) : case_(c), options_(options), p_(c.prepare()) {
    for (const auto& s : p_.streams) stream_bytes_ += s.size();
  }
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;

  std::vector<Result> results() {
    if (simdattn::find_target("scalar", &scalar_).code != simdattn::Code::kOk) {
      return {{.target = "scalar", .error = "the target is missing", .counters = {}}};
    }
    add_targets();
    add_peers();
    if (options_.twice) add_repeats();
    if (p_.companion) add_companions();
    if (!case_.fixed_cost && !case_.threads && p_.copy_bytes == 0) add_reads();
    if (p_.copy_bytes > 0) add_copies();
    prepare_turns();
    take_turns();
    std::vector<Result> results;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].result.error.empty()) report(i);
      results.push_back(std::move(rows_[i].result));
    }
    return results;
  }

 private:
  struct Row {
    Result result;
    const Target* target = nullptr;  // null: another library
    double error = 0;                // of the exact result, where there are other libraries
    size_t companion = kNone;
  };
  /// The probes of one instruction set.
  struct Reads {
    size_t plain = kNone, prefetch = kNone;
  };

  void add(Row row, Contestant contestant) {
    rows_.push_back(std::move(row));
    contestants_.push_back(std::move(contestant));
  }
  bool good(size_t i) const { return i >= rows_.size() || rows_[i].result.error.empty(); }
  bool is_scalar(size_t i) const { return i < rows_.size() && rows_[i].target == scalar_; }
  bool is_peer(size_t i) const { return i < rows_.size() && rows_[i].target == nullptr; }
  /// A target other than the definition, with a good result.
  bool is_good_target(size_t i) const { return !is_peer(i) && !is_scalar(i) && good(i); }

  /// A call inside a timed loop: that it succeeds was seen before.
  Contestant timed(const Target* t) {
    Contestant k;
    k.call = [this, t] {
      (void)p_.run(t, t == scalar_);
      asm volatile("" : : : "memory");
    };
    k.threads = case_.threads;
    k.wants_clock = case_.elements > 0;
    return k;
  }
  void clear_output() {
    if (p_.reset) p_.reset();
    else std::memset(p_.out, 0xA5, p_.out_elements * element_size(p_.out_dtype));
  }

  /// Each is compared with the definition's result, of whose time there is then one sample.
  void add_targets() {
    const size_t size = element_size(p_.out_dtype);
    std::vector<std::byte> expected(p_.count * size);
    if (p_.reset) p_.reset();
    auto start = Clock::now();
    const std::string scalar_error = status_text(p_.run(scalar_, true));
    scalar_call_ns_ = ns_since(start);
    std::memcpy(expected.data(), static_cast<std::byte*>(p_.out) + p_.first * size, expected.size());

    for (const Target* t : options_.targets) {
      Row row;
      row.target = t;
      Result& r = row.result;
      r.target = simdattn::target_name(*t);
      r.error = scalar_error;
      Contestant k = timed(t);
      if (r.error.empty() && t != scalar_) {
        clear_output();
        start = Clock::now();
        r.error = status_text(p_.run(t, false));
        k.estimate = ns_since(start);
        if (r.error.empty()) {
          r.error = difference(p_, expected.data(), simdattn::target_exact(*t), p_.absolute, p_.relative);
        }
      }
      add(std::move(row), std::move(k));
    }
  }

  /// Other libraries, each checked against the exact result; so are the targets, which tells the error of all.
  void add_peers() {
    const std::vector<const Peer*> peers = peers_for(case_.work);
    if (peers.empty()) return;
    has_peers_ = true;
    const std::vector<double> exact_result = exact(p_.work, p_.first, p_.count);
    for (Row& row : rows_) {
      if (!row.result.error.empty()) continue;
      if (p_.reset) p_.reset();
      (void)p_.run(row.target, row.target == scalar_);
      row.error = largest_error(p_, exact_result);
    }
    for (const Peer* peer : peers) add_peer(*peer, exact_result);
  }
  void add_peer(const Peer& peer, const std::vector<double>& exact_result) {
    Row row;
    row.result.target = std::string("peer/") + peer.name;
    clear_output();
    Call call = peer.make(p_.work);
    if (!call.run) {
      row.result.error = "the library refused the problem";
    } else {
      call.run();
      if (call.after) call.after();
      row.error = largest_error(p_, exact_result);
      if (!(row.error <= peer_bound(case_.work))) {
        char text[96];
        std::snprintf(text, sizeof text, "wrong result: off by %.3g of the largest exact number", row.error);
        row.result.error = text;
      }
    }
    Contestant k;
    k.call = [run = call.run] {
      run();
      asm volatile("" : : : "memory");
    };
    k.wants_clock = case_.elements > 0;
    calls_.push_back(std::move(call));
    add(std::move(row), std::move(k));
  }

  /// Once more under other names.
  void add_repeats() {
    for (size_t i = 0, n = rows_.size(); i < n; ++i) {
      if (!is_good_target(i)) continue;
      for (const bool slower : {false, true}) {
        Row row;
        row.target = rows_[i].target;
        row.result.target = rows_[i].result.target + (slower ? " and a tenth" : " again");
        Contestant k = timed(row.target);
        if (slower) k.call = with_a_tenth(row.target);
        add(std::move(row), std::move(k));
      }
    }
  }
  std::function<void()> with_a_tenth(const Target* t) {
    const auto measured = [](auto f) {
      const auto before = Clock::now();
      f();
      return ns_since(before);
    };
    double call_ns = 0, add_ns = 0;  // of one call when it is warm, and of one dependent addition
    for (int probe = 0; probe < 5; ++probe) {
      const double call = measured([&] { (void)p_.run(t, false); });
      const double add = measured([] { dependent_adds(kAdds); }) / static_cast<double>(kAdds);
      call_ns = probe == 0 ? call : std::min(call_ns, call);
      add_ns = probe == 0 ? add : std::min(add_ns, add);
    }
    return [this, t, adds = static_cast<size_t>(0.1 * call_ns / add_ns)] {
      (void)p_.run(t, false);
      dependent_adds(adds);
      asm volatile("" : : : "memory");
    };
  }

  void add_companions() {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (!is_good_target(i)) continue;
      const Target* t = rows_[i].target;
      const std::string error = status_text(p_.companion(t));
      if (!error.empty()) {
        rows_[i].result.error = std::string(case_.companion) + ": " + error;
        continue;
      }
      rows_[i].companion = contestants_.size();
      Contestant k;
      k.threads = case_.threads;  // compared with wall time, so itself in wall time
      k.call = [this, t] {
        (void)p_.companion(t);
        asm volatile("" : : : "memory");
      };
      contestants_.push_back(std::move(k));
    }
  }

  /// The probes of the limits that apply to the rows' instruction sets: multiply-adds, and reading the streams.
  void add_reads() {
    for (size_t i = 0; i < rows_.size(); ++i) {
      const std::string name = isa_of_target(rows_[i].result.target);
      const Isa* isa = find_isa(name);
      if (isa == nullptr) continue;
      if (p_.flops > 0) contestants_[i].fma = [isa] { return isa->fma(kFmaSteps); };
      if (reads_.contains(name)) continue;
      Reads reads;
      if (stream_bytes_ > 0) reads.plain = add_read(isa->read);
      if (stream_bytes_ > cache_sizes().l2) reads.prefetch = add_read(isa->read_prefetch);
      reads_[name] = reads;
    }
  }
  size_t add_read(uint64_t (*read)(const void*, size_t)) {
    Contestant k;
    k.call = [this, read] {
      for (const auto& s : p_.streams) sink_ = sink_ + read(s.data(), s.size());
    };
    contestants_.push_back(std::move(k));
    return contestants_.size() - 1;
  }

  void add_copies() {
    // A copy of half the bytes touches as much memory as work in place does.
    const size_t bytes = p_.copy_bytes / (p_.in_place ? 2 : 1);
    copy_from_ = random_buffer(simdattn::DType::kF32, bytes / 4 + 1, 99);
    copy_to_ = random_buffer(simdattn::DType::kF32, bytes / 4 + 1, 98);
    copy_ = contestants_.size();
    Contestant k;
    k.call = [this, bytes] {
      std::memcpy(copy_to_.data(), copy_from_.data(), bytes);
      asm volatile("" : : "r"(copy_to_.data()) : "memory");
    };
    contestants_.push_back(std::move(k));
    for (const Row& row : rows_) {
      const std::string name = isa_of_target(row.result.target);
      const Isa* isa = find_isa(name);
      if (isa == nullptr || isa_copy_.contains(name)) continue;
      isa_copy_[name] = contestants_.size();
      Contestant own;
      own.call = [this, isa, bytes] { isa->copy(copy_from_.data(), copy_to_.data(), bytes); };
      contestants_.push_back(std::move(own));
    }
  }

  void prepare_turns() {
    start_ = Clock::now();
    for (size_t i = 0; i < contestants_.size(); ++i) {
      if (!good(i)) continue;
      Contestant& k = contestants_[i];
      // What was seen while verifying is good enough for a long call; it is a sample of the definition, which gets few.
      if (is_scalar(i)) k.estimate = scalar_call_ns_;
      if (is_scalar(i) && scalar_call_ns_ > kLongCallNs) k.ns.push_back(scalar_call_ns_);
      if (k.estimate < kLongCallNs) k.calibrate();
    }
    spent_.assign(contestants_.size(), 0);
    quickest_ = budget();
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (good(i)) quickest_ = std::min(quickest_, contestants_[i].estimate);
    }
  }
  double budget() const { return options_.seconds * 1e9; }
  /// The definition is slow: it gets a tenth of the time, and no turn at all if one would take longer. Other libraries
  /// that are slower by far: three turns, then a tenth of the time each.
  bool takes_part(size_t i, int round) const {
    if (!good(i)) return false;
    const double tenth = 0.1 * ns_since(start_);
    if (is_peer(i) && round >= 3 && contestants_[i].estimate > 8 * quickest_)
      return spent_[i] + contestants_[i].estimate <= tenth;
    if (!is_scalar(i)) return true;
    const bool first = round < 2 && scalar_call_ns_ < budget() / 10 && scalar_call_ns_ < 0.2e9;
    return first || spent_[i] + scalar_call_ns_ <= tenth;
  }
  void take_turns() {
    std::mt19937_64 random(options_.seed);
    std::vector<size_t> order(contestants_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    size_t most = 0;
    // At least three turns each, so that there is a spread.
    for (int round = 0; most <= kMaxSamples && (round < 3 || ns_since(start_) <= budget()); ++round) {
      // Fisher and Yates, so that a seed gives the same order with every C++ library.
      for (size_t k = order.size(); k > 1; --k) std::swap(order[k - 1], order[random() % k]);
      for (const size_t i : order) {
        if (!takes_part(i, round)) continue;
        const auto turn_start = Clock::now();
        contestants_[i].turn();
        spent_[i] += ns_since(turn_start);
        most = std::max(most, contestants_[i].ns.size());
      }
    }
  }

  double scalar_ns() const {
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (is_scalar(i)) return contestants_[i].best() / p_.scalar_share;
    }
    return 0;
  }
  void report(size_t i) {
    Result& r = rows_[i].result;
    const Contestant& k = contestants_[i];
    r.ns = is_scalar(i) ? scalar_ns() : k.best();
    r.spread = k.spread();
    r.samples = static_cast<int>(k.ns.size());
    auto& out = r.counters;
    out["p50_ns"] = r.ns * (1 + r.spread);
    out["spread"] = r.spread;
    out["samples"] = r.samples;
    if (has_peers_) out["error"] = rows_[i].error;
    out["noisy"] = noisy(r.spread, r.samples) ? 1 : 0;
    const double bytes = case_.bytes > 0 ? case_.bytes : static_cast<double>(stream_bytes_);
    if (bytes > 0) out["GB_per_s"] = bytes / r.ns;
    if (p_.flops > 0) out["GFLOP_per_s"] = p_.flops / r.ns;
    if (scalar_ns() > 0) out["speedup"] = scalar_ns() / r.ns;
    if (!k.clock.empty() && case_.elements > 0) {
      const double cycle = quantile(k.clock, 0.1);
      out["GHz"] = 1 / cycle;
      out["cycles_per_element"] = r.ns / cycle / case_.elements;
    }
    if (rows_[i].companion != kNone) {
      const double companion = contestants_[rows_[i].companion].best();
      out["relative"] = r.ns / companion / p_.companion_work;
      out["companion_ns"] = companion;
      if (p_.more_calls > 0) out["ns_per_call"] = (r.ns - companion) / p_.more_calls;
    }
    if (const double limit = limit_of(i, &out); limit > 0) {
      out["limit_ns"] = limit;
      out["share"] = limit / r.ns;
    }
  }
  /// The limit, measured at the same moments; which one it is goes to `out`.
  double limit_of(size_t i, std::map<std::string, double>* out) const {
    const std::string isa = isa_of_target(rows_[i].result.target);
    if (copy_ != kNone && !is_scalar(i)) {
      double limit = contestants_[copy_].best();
      const auto own = isa_copy_.find(isa);
      if (own != isa_copy_.end()) limit = std::min(limit, contestants_[own->second].best());
      (*out)["limit_is_copy"] = 1;
      return p_.in_place ? 2 * limit : limit;  // half the bytes were copied
    }
    const auto it = reads_.find(isa);
    if (it == reads_.end()) return 0;
    double read = 0;
    if (it->second.plain != kNone) read = contestants_[it->second.plain].best();
    if (it->second.prefetch != kNone) read = std::min(read, contestants_[it->second.prefetch].best());
    const double compute = p_.flops * quantile(contestants_[i].fma_ns, 0.1);
    const double limit = std::max(read, compute);
    if (limit > 0) (*out)[read > compute ? "limit_is_read" : "limit_is_fma"] = 1;
    return limit;
  }

  const Case& case_;
  const MeasureOptions& options_;
  Prepared p_;
  const Target* scalar_ = nullptr;
  double scalar_call_ns_ = 0;
  size_t stream_bytes_ = 0;
  std::vector<Row> rows_;
  std::vector<Contestant> contestants_;
  std::vector<Call> calls_;  // kept until all is measured
  bool has_peers_ = false;
  std::map<std::string, Reads> reads_;  // by instruction set
  volatile uint64_t sink_ = 0;
  Buffer copy_from_, copy_to_;
  size_t copy_ = kNone;
  std::map<std::string, size_t> isa_copy_;
  Clock::time_point start_;  // of the turns
  std::vector<double> spent_;
  double quickest_ = 0;
};

}  // namespace

bool noisy(double spread, int samples) { return samples < 3 || spread > 0.1; }

std::vector<Result> measure(const Case& c, const MeasureOptions& options) { return Measurement(c, options).results(); }

}  // namespace bench
