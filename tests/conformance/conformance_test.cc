// Runs the conformance vectors of a directory on the library, every runnable target by turns, and says how far the
// worst element of each case is from its allowance. The format is described in the README beside the vectors.
//
//   conformance_test [DIRECTORY] [--target NAME] [--filter TEXT] [--reference]
//
// DIRECTORY is, if not given, $SIMDATTN_CONFORMANCE, or $SIMDATTN_SHARED/conformance, or the selection of tests/data.
// --reference runs the float64 formulas of tests/support/reference.cc instead of
// the library: a check of that witness. The exit status is 1 if a case fails.
//
// Allowances are those of the vectors. On top comes only what a result's own type makes unavoidable, as the README of
// the vectors has it for bf16 and f16: half a unit in the last place where the expected value is more exact than the
// type of the result (cosines of a table, given to 1e-9, are stored as f32), or an f32 error bound, derived where it
// is used, where a case is specified in float64 arithmetic throughout (`rope_relative`).

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/conformance/conformance_engine.h"
#include "tests/conformance/conformance_run.h"
#include "tests/support/case_reader.h"
#include "tests/support/test_data.h"

namespace conformance {
namespace {

std::map<std::string, void (*)(Run&)> all_ops() {
  std::map<std::string, void (*)(Run&)> result;
  for (const auto& list : {kernel_ops(), position_ops(), selection_ops(), state_ops()}) {
    for (const Op& op : list) result[op.name] = op.run;
  }
  return result;
}

/// Its node tests follow ONNX up to release 1.20, which added the mask before the soft cap: they must not pass.
constexpr const char* kSupersededGroup = "onnx_attention_1_20";

struct Options {
  std::string directory;
  std::string target;
  std::string filter;
  bool reference = false;
};

struct Totals {
  int passed = 0;
  int failed = 0;
  int different = 0;                                     // as expected of the superseded group
  std::map<std::string, std::set<std::string>> skipped;  // reason: cases
};

void run_case(const std::string& directory, const IndexEntry& entry, Engine& engine, Totals* totals) {
  const auto line = [&](const char* verdict, const std::string& rest) {
    std::printf("%s %s %s %s\n", entry.id.c_str(), engine.name().c_str(), verdict, rest.c_str());
  };
  static const std::map<std::string, void (*)(Run&)> ops = all_ops();
  const auto op = ops.find(entry.op);
  const std::string group = entry.id.substr(0, entry.id.find('/'));
  if (op == ops.end()) {
    totals->skipped["group " + group + ", op " + entry.op + ": unknown to this program"].insert(entry.id);
    line("not-run", "op " + entry.op + " is unknown to this program");
    return;
  }
  Outcome outcome;
  try {
    const Case test = read_case(directory, entry.id);
    Run run(test, engine);
    try {
      op->second(run);
      run.finish();
    } catch (const EngineError& error) {
      run.outcome.failures.push_back({"", error.what()});
    }
    outcome = run.outcome;
  } catch (const NotExpressed& reason) {
    totals->skipped["group " + group + ", op " + entry.op + ": " + reason.what()].insert(entry.id);
    line("not-run", reason.what());
    return;
  } catch (const std::exception& error) {  // a case that contradicts itself
    outcome.failures.push_back({"", error.what()});
  }
  std::string rest = "worst " + text(outcome.worst) + " (" + outcome.where + ")";
  for (const Failure& failure : outcome.failures) rest += "; " + failure.sentence;
  if (group == kSupersededGroup) {
    bool different = false, otherwise_wrong = false;
    for (const Failure& failure : outcome.failures) {
      different = different || failure.output == "Y";
      otherwise_wrong = otherwise_wrong || (failure.output != "Y" && failure.output != "qk_matmul_output");
    }
    if (different && !otherwise_wrong) {
      ++totals->different;
      line("differs-as-expected", rest);
      return;
    }
    if (!different) rest += "; Y agrees with an order that ONNX gave up after release 1.20";
    ++totals->failed;
    line("fail", rest);
    return;
  }
  ++(outcome.failures.empty() ? totals->passed : totals->failed);
  line(outcome.failures.empty() ? "pass" : "fail", rest);
}

int run_all(const Options& options) {
  (void)simdattn::request_amx();  // a target the more, where there is AMX
  std::vector<std::unique_ptr<Engine>> engines;
  if (options.reference) {
    engines.push_back(reference_engine());
  } else if (!options.target.empty()) {
    const simdattn::Target* target = nullptr;
    const simdattn::Status status = simdattn::find_target(options.target.c_str(), &target);
    if (!status.ok()) {
      std::fprintf(stderr, "conformance_test: %s: %s\n", options.target.c_str(), status.detail);
      return 2;
    }
    engines.push_back(library_engine(*target));
  } else {
    for (const simdattn::Target* target : simdattn::targets()) {
      if (simdattn::target_runnable(*target)) engines.push_back(library_engine(*target));
    }
  }

  std::vector<IndexEntry> index;
  for (IndexEntry& entry : read_index(options.directory)) {
    if (entry.id.find(options.filter) != std::string::npos) index.push_back(entry);
  }
  Totals totals;
  for (const auto& engine : engines) {
    for (const IndexEntry& entry : index) run_case(options.directory, entry, *engine, &totals);
  }
  size_t not_run = 0;
  for (const auto& [reason, ids] : totals.skipped) {
    std::printf("not run: %zu of %s\n", ids.size(), reason.c_str());
    not_run += ids.size();
  }
  std::printf("%zu cases, %zu of them not run, on %zu target(s): %d passed, %d failed, %d differ as expected\n",
              index.size(), not_run, engines.size(), totals.passed, totals.failed, totals.different);
  if (totals.passed + totals.failed + totals.different == 0) {
    std::fprintf(stderr, "conformance_test: no case was run\n");
    return 1;
  }
  return totals.failed == 0 ? 0 : 1;
}

int usage() {
  std::fprintf(stderr, "usage: conformance_test [DIRECTORY] [--target NAME] [--filter TEXT] [--reference]\n");
  return 2;
}

int main_with(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--reference") {
      options.reference = true;
    } else if ((argument == "--target" || argument == "--filter") && i + 1 < argc) {
      (argument == "--target" ? options.target : options.filter) = argv[++i];
    } else if (!argument.empty() && argument[0] != '-' && options.directory.empty()) {
      options.directory = argument;
    } else {
      return usage();
    }
  }
  if (options.directory.empty()) {
    if (const char* named = std::getenv("SIMDATTN_CONFORMANCE")) options.directory = named;
  }
  if (options.directory.empty()) {
    if (const char* shared = std::getenv("SIMDATTN_SHARED")) options.directory = std::string(shared) + "/conformance";
  }
  if (options.directory.empty()) options.directory = simdattn::test::test_data() + std::string("/conformance");
  if (!std::filesystem::exists(options.directory + "/index.txt")) {
    std::fprintf(stderr, "conformance_test: no conformance vectors, %s/index.txt does not exist\n",
                 options.directory.c_str());
    return 1;
  }
  return run_all(options);
}

}  // namespace
}  // namespace conformance

int main(int argc, char** argv) {
  try {
    return conformance::main_with(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "conformance_test: %s\n", error.what());
    return 1;
  }
}
