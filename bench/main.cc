// simdattn-bench: measures every kernel on every target that this machine can run and prints one table.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "bench/harness.h"
#include "bench/machine.h"
#include "bench/peers.h"
#include "bench/report.h"

namespace {

using bench::Case;
using bench::Record;
using bench::Result;
using Clock = std::chrono::steady_clock;

constexpr const char* kUsage =
    "usage: simdattn-bench [options] [--benchmark_...]\n"
    "  --full            every case; without it a selection that takes about two minutes\n"
    "  --filter REGEX    only cases whose kernel/shape/type matches, of all cases\n"
    "  --target NAME     only this target beside scalar; may be repeated\n"
    "  --seconds S       time for all cases together (default 110; with --full or --filter one per case)\n"
    "  --json FILE       also write the results as Google Benchmark's JSON\n"
    "  --peers           the cases that other libraries have too, with all that were built, on the default target\n"
    "  --seed N          of the order within each turn (default 1)\n"
    "  --self-check      every target under two names, and a tenth slower under a third: are differences what they "
    "seem?\n"
    "  --list            print the names of the cases and stop; * marks the selection\n"
    "  --machine         print what this machine can do and stop\n"
    "  --context KEY=VALUE  a line for the report, such as the commit; may be repeated\n";

struct Options {
  bool full = false;
  bool list = false;
  bool machine = false;
  std::string filter;
  std::vector<std::string> targets;
  double seconds = 0;
  std::string json;
  bool peers = false;
  bool self_check = false;
  uint64_t seed = 1;
  std::vector<std::pair<std::string, std::string>> context;
  std::vector<char*> rest;
};

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "simdattn-bench: %s\n", text.c_str());
  std::exit(2);
}

Options parse(int argc, char** argv) {
  Options o;
  o.rest.push_back(argv[0]);
  for (int i = 1; i < argc; ++i) {
    std::string arg = argv[i];
    std::string attached;
    bool has_attached = false;
    if (const size_t eq = arg.find('='); eq != arg.npos && !arg.starts_with("--benchmark_")) {
      attached = arg.substr(eq + 1);
      has_attached = true;
      arg.resize(eq);
    }
    const auto value = [&]() -> std::string {
      if (has_attached) return attached;
      if (i + 1 >= argc) fail(arg + " needs a value");
      return argv[++i];
    };
    if (arg == "--full") {
      o.full = true;
    } else if (arg == "--list") {
      o.list = true;
    } else if (arg == "--machine") {
      o.machine = true;
    } else if (arg == "--filter") {
      o.filter = value();
    } else if (arg == "--target") {
      o.targets.push_back(value());
    } else if (arg == "--seconds") {
      const std::string text = value();
      char* end = nullptr;
      o.seconds = std::strtod(text.c_str(), &end);
      if (*end != 0 || !(o.seconds > 0)) fail("--seconds needs a positive number, not \"" + text + "\"");
    } else if (arg == "--json") {
      o.json = value();
    } else if (arg == "--peers") {
      o.peers = true;
    } else if (arg == "--self-check") {
      o.self_check = true;
    } else if (arg == "--seed") {
      const std::string text = value();
      char* end = nullptr;
      o.seed = std::strtoull(text.c_str(), &end, 10);
      if (text.empty() || *end != 0) fail("--seed needs a number, not \"" + text + "\"");
    } else if (arg == "--context") {
      const std::string text = value();
      const size_t eq = text.find('=');
      if (eq == text.npos) fail("--context needs KEY=VALUE, not \"" + text + "\"");
      o.context.emplace_back(text.substr(0, eq), text.substr(eq + 1));
    } else if (arg == "--help" || arg == "-h") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    } else if (arg.starts_with("--benchmark_")) {
      o.rest.push_back(argv[i]);
    } else {
      std::fputs(kUsage, stderr);
      fail("unknown argument \"" + std::string(argv[i]) + "\"");
    }
  }
  return o;
}

std::string rate(double v, const char* unit) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*f %s", v < 99.5e9 ? 1 : 0, v * 1e-9, unit);
  return text;
}

std::vector<std::pair<std::string, std::string>> describe(const bench::Machine& m) {
  std::vector<std::pair<std::string, std::string>> lines{{"cpu", m.cpu}, {"clock", rate(m.clock, "GHz")}};
  std::string names, sizes, copy;
  for (size_t l = 0; l < m.levels.size(); ++l) {
    const double kib = static_cast<double>(m.levels[l].bytes) / 1024;
    char text[64];
    std::snprintf(text, sizeof text, kib < 1024 ? "%s %.0f KiB" : "%s %.0f MiB", m.levels[l].name,
                  kib < 1024 ? kib : kib / 1024);
    sizes += (l > 0 ? ", " : "") + std::string(text);
    copy += (l > 0 ? " / " : "") + rate(m.copy[l], "GB/s");
  }
  for (const bench::IsaPeak& p : m.isas) {
    std::string text = rate(p.flops, "GFLOP/s fma; read ");
    for (size_t l = 0; l < p.read.size(); ++l) text += (l > 0 ? " / " : "") + rate(p.read[l], "GB/s");
    lines.emplace_back(std::string("limits ") + p.isa->name, text);
  }
  lines.emplace_back("copy", copy);
  lines.emplace_back("read", "sizes of the probes, also of copies: " + sizes);
  return lines;
}

/// Collects what Google Benchmark reports; the table is printed at the end of all.
class Collector : public benchmark::BenchmarkReporter {
 public:
  explicit Collector(bench::Report* report) : report_(report) {}
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      Record r;
      if (!bench::parse_name(run.benchmark_name(), &r)) continue;
      r.note = run.report_label;
      for (const auto& [key, value] : run.counters) r.counters[key] = value.value;
      r.ns = run.real_accumulated_time * 1e9;
      if (!r.counters.contains("samples")) r.error = last_error();
      report_->records.push_back(std::move(r));
    }
  }
  static std::string& last_error() {
    static std::string text;
    return text;
  }

 private:
  bench::Report* report_;
};

class Runner {
 public:
  Runner(std::vector<Case> cases, bench::MeasureOptions options)
      : cases_(std::move(cases)), options_(std::move(options)) {}

  /// One benchmark per case and contestant. They are measured together when the first of a case is run; Google
  /// Benchmark then asks for the others' figures one by one.
  void register_all() {
    for (size_t i = 0; i < cases_.size(); ++i) {
      std::vector<std::string> names;
      for (const simdattn::Target* t : options_.targets) {
        names.push_back(simdattn::target_name(*t));
        if (options_.twice && names.back() != "scalar") {
          for (const char* other : {" again", " and a tenth"})
            names.push_back(simdattn::target_name(*t) + std::string(other));
        }
      }
      for (const bench::Peer* peer : bench::peers_for(cases_[i].work)) {
        names.push_back(std::string("peer/") + peer->name);
      }
      for (const std::string& name : names) {
        benchmark::RegisterBenchmark((cases_[i].name() + "/" + name).c_str(),
                                     [this, i, name](benchmark::State& state) { run(state, i, name); })
            ->UseManualTime()
            ->Iterations(1);
      }
    }
    start_ = Clock::now();
  }
  bool any_failed() const { return failed_; }

 private:
  void run(benchmark::State& state, size_t i, const std::string& name) {
    if (measured_ != i) measure(i);
    measured_ = i;
    const Result* result = nullptr;
    for (const Result& r : results_) {
      if (r.target == name) result = &r;
    }
    const std::string error = result == nullptr ? "was not measured" : result->error;
    if (!error.empty()) {
      // That another library refuses a problem, or solves it badly, is no failure of this one.
      if (!name.starts_with("peer/")) failed_ = true;
      Collector::last_error() = error;
      std::fprintf(stderr, "FAILED %s on %s: %s\n", cases_[i].name().c_str(), name.c_str(), error.c_str());
      state.SkipWithError(error.c_str());
    }
    for (auto _ : state) state.SetIterationTime(error.empty() ? result->ns * 1e-9 : 0);
    if (!error.empty()) return;
    for (const auto& [key, value] : result->counters) state.counters[key] = value;
    if (result->counters.contains("relative")) state.SetLabel(cases_[i].companion);
  }

  void measure(size_t i) {
    const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
    double left = 0;
    for (size_t k = i; k < cases_.size(); ++k) left += cases_[k].weight;
    // A third is for preparing and verifying; what one case saves the later ones get.
    const double share = 0.67 * (options_.seconds - elapsed) * cases_[i].weight / left;
    bench::MeasureOptions options = options_;
    options.seconds = std::clamp(share, 0.1, 10.0);
    options.seed += i;
    std::fprintf(stderr, "[%zu/%zu] %5.0f s  %s ...", i + 1, cases_.size(), elapsed, cases_[i].name().c_str());
    results_ = bench::measure(cases_[i], options);
    const Result* best = nullptr;
    for (const Result& r : results_) {
      if (r.ns > 0 && !r.target.starts_with("peer/") && (best == nullptr || r.ns < best->ns)) best = &r;
    }
    if (best != nullptr) std::fprintf(stderr, " %.4g us on %s", best->ns * 1e-3, best->target.c_str());
    std::fprintf(stderr, "\n");
  }

  std::vector<Case> cases_;
  bench::MeasureOptions options_;  // seconds: of all cases
  Clock::time_point start_;
  size_t measured_ = SIZE_MAX;
  std::vector<Result> results_;
  bool failed_ = false;
};

std::vector<Case> selected_cases(const Options& o) {
  std::vector<Case> cases;
  try {
    const std::regex filter(o.filter);
    for (Case& c : bench::all_cases()) {
      const bool selected =
          o.filter.empty() ? (o.peers ? c.peers : o.full || o.list || c.main) : std::regex_search(c.name(), filter);
      if (selected) cases.push_back(std::move(c));
    }
  } catch (const std::regex_error& e) {
    fail("--filter: " + std::string(e.what()));
  }
  return cases;
}

/// The definition; then those that are asked for, or the default one beside other libraries, or all.
std::vector<const simdattn::Target*> selected_targets(const Options& o) {
  std::vector<const simdattn::Target*> targets;
  const auto add_target = [&](const std::string& name) {
    const simdattn::Target* t = nullptr;
    const simdattn::Status s = simdattn::find_target(name.c_str(), &t);
    if (!s.ok()) fail(name + ": " + s.detail);
    for (const simdattn::Target* seen : targets) {
      if (seen == t) return;
    }
    targets.push_back(t);
  };
  add_target("scalar");
  for (const std::string& name : o.targets) add_target(name);
  if (o.targets.empty() && (o.peers || o.self_check)) {
    const simdattn::Target* t = nullptr;
    if (const simdattn::Status s = simdattn::default_target(&t); !s.ok()) fail(s.detail);
    add_target(simdattn::target_name(*t));
  } else if (o.targets.empty()) {
    for (const simdattn::Target* t : simdattn::targets()) {
      if (simdattn::target_runnable(*t)) add_target(simdattn::target_name(*t));
    }
  }
  return targets;
}

/// What the measurement depends on, beside the machine.
void describe_run(const Options& o, bench::Report& report) {
  report.context.emplace_back("version", std::string("simdattn ") + simdattn::version());
  report.context.emplace_back("compiler", BENCH_COMPILER);
  report.context.emplace_back("seed", std::to_string(o.seed));
  report.context.insert(report.context.end(), o.context.begin(), o.context.end());
  if (!o.peers) return;
  for (const auto& [name, text] : bench::peer_settings()) report.context.emplace_back("peer " + name, text);
  for (const auto& [name, text] : bench::missing_peers()) report.context.emplace_back("missing " + name, text);
  // On one CPU two threads that wait for each other busily, at a fixed priority, wait for ever.
  if (std::thread::hardware_concurrency() > 1) {
    std::fprintf(stderr, "comparing bits ...\n");
    for (const auto& [name, text] : bench::peer_bits()) report.context.emplace_back("bits " + name, text);
  }
}

}  // namespace

int main(int argc, char** argv) {
  (void)simdattn::request_amx();  // a target the more, where there is AMX
  Options o = parse(argc, argv);
  if (o.peers) bench::load_peers();

  std::vector<Case> cases = selected_cases(o);
  if (o.list) {
    for (const Case& c : cases) std::printf("%c %s\n", c.main ? '*' : ' ', c.name().c_str());
    return 0;
  }
  if (cases.empty()) fail("no case matches \"" + o.filter + "\"; --list prints their names");

  std::vector<const simdattn::Target*> targets = selected_targets(o);
  bench::Report report;
  std::fprintf(stderr, "measuring this machine ...\n");
  report.context = describe(bench::measure_machine());
  if (o.machine) {
    for (const auto& [key, value] : report.context) std::printf("%-12s %s\n", key.c_str(), value.c_str());
    return 0;
  }
  describe_run(o, report);
  for (const auto& [key, value] : report.context) benchmark::AddCustomContext(key, value);

  std::string out = "--benchmark_out=" + o.json;
  std::string out_format = "--benchmark_out_format=json";
  if (!o.json.empty()) {
    o.rest.push_back(out.data());
    o.rest.push_back(out_format.data());
  }
  int rest = static_cast<int>(o.rest.size());
  o.rest.push_back(nullptr);
  benchmark::Initialize(&rest, o.rest.data());
  if (benchmark::ReportUnrecognizedArguments(rest, o.rest.data())) return 2;

  const double seconds = o.seconds > 0                            ? o.seconds
                         : o.full || o.peers || !o.filter.empty() ? static_cast<double>(cases.size())
                                                                  : 110;
  Runner runner(std::move(cases),
                {.targets = std::move(targets), .seconds = seconds, .seed = o.seed, .twice = o.self_check});
  runner.register_all();
  Collector collector(&report);
  benchmark::RunSpecifiedBenchmarks(&collector);
  benchmark::Shutdown();
  bench::print_table(report, stdout);
  std::fflush(stdout);
  if (!o.json.empty()) std::fprintf(stderr, "results written to %s\n", o.json.c_str());
  if (o.self_check && !bench::print_self_check(report, stdout)) return 1;
  return runner.any_failed() ? 1 : 0;
}
