// Digests of what every public function returns over a fixed set of problems: one definition, so one digest on every
// CPU, instruction set, vector length, operating system and compiler.
//
//   simdattn-digest                    prints the digests of the default target
//   simdattn-digest --target NAME      or of another one
//   simdattn-digest --check FILE       compares every target that runs here with FILE (tests/digest.txt)
//   simdattn-digest --every N ...      only every Nth line, for emulators, and targets with fused multiply-add alone
//
// Targets without fused multiply-add have bits of their own, which are the same on all of them: one digest of all their
// digests is recorded. Where it differs, those of two targets tell which lines do.
//
// A line's seed is its name: lines can be added without changing others. tools/digest/ has the lines, in files by what
// they call.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "tools/digest/run.h"

namespace simdattn::digest {
namespace {

/// 16 hexadecimal digits.
std::string text_of(const Digest& d) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(d.value()));
  return text;
}

/// The digest of a line on a target; a message if a call failed.
std::string digest(const Line& line, const Target* target) {
  Digest seed;
  seed.add(line.name.data(), line.name.size());
  Run run{Random(seed.value()), target, {}, {}, {}, {}};
  for (int i = 0; i < line.problems; ++i) {
    if (!line.run(run)) return run.error;
  }
  return text_of(run.digest);
}

/// The name of the digest of all digests of a target without fused multiply-add.
constexpr const char* kUnfused = "all of these without fused multiply-add";

using Expected = std::map<std::string, std::string>;  // digest of a name

/// How many lines of a target differ.
int differences(const Lines& lines, const Expected& expected, const Target* t) {
  int count = 0;
  const auto differs = [&](const std::string& name, const std::string& got) {
    const auto want = expected.find(name);
    if (want != expected.end() && want->second == got) return;
    ++count;
    std::printf("%s, %s: %s, expected %s\n", target_name(*t), name.c_str(), got.c_str(),
                want == expected.end() ? "a line that the file does not have" : want->second.c_str());
  };
  Digest all;
  for (const Line& line : lines) {
    const std::string got = digest(line, t);
    all.add(got.data(), got.size());
    if (target_exact(*t)) differs(line.name, got);
  }
  if (!target_exact(*t)) differs(kUnfused, text_of(all));
  return count;
}

int check(const Lines& lines, bool all_lines, const char* path, const Target* only) {
  std::ifstream file(path);
  Expected expected;
  for (std::string text; std::getline(file, text);) {
    if (text.size() > 18 && text[0] != '#') expected[text.substr(18)] = text.substr(0, 16);
  }
  if (expected.empty()) {
    std::fprintf(stderr, "simdattn-digest: %s holds no digests\n", path);
    return 2;
  }
  int wrong = 0;
  for (const Target* t : targets()) {
    if (!target_runnable(*t) || !(target_exact(*t) || all_lines) || (only != nullptr && t != only)) continue;
    const int differing = differences(lines, expected, t);
    wrong += differing;
    std::printf("%-22s %zu digests, %s\n", target_name(*t), lines.size(),
                differing == 0 ? "all agree" : "not all agree");
    std::fflush(stdout);
  }
  return wrong == 0 ? 0 : 1;
}

int main_of(int argc, char** argv) {
  (void)request_amx();  // a target the more, where there is AMX
  const Target* target = nullptr;
  const char* file = nullptr;
  int every = 1;
  for (int i = 1; i < argc; ++i) {
    const bool more = i + 1 < argc;
    if (more && std::strcmp(argv[i], "--check") == 0) {
      file = argv[++i];
    } else if (more && std::strcmp(argv[i], "--every") == 0 && std::atoi(argv[i + 1]) > 0) {
      every = std::atoi(argv[++i]);
    } else if (more && std::strcmp(argv[i], "--target") == 0) {
      if (const Status s = find_target(argv[++i], &target); !s.ok()) {
        std::fprintf(stderr, "simdattn-digest: %s\n", s.detail);
        return 2;
      }
    } else {
      std::fputs("usage: simdattn-digest [--target NAME] [--every N] [--check FILE]\n", stderr);
      return 2;
    }
  }
  Lines lines, all;
  add_row_lines(&all);
  add_position_lines(&all);
  add_state_lines(&all);
  add_attention_lines(&all);
  for (size_t i = 0; i < all.size(); i += static_cast<size_t>(every)) lines.push_back(all[i]);
  if (file != nullptr) return check(lines, every == 1, file, target);

  if (target == nullptr) {
    if (const Status s = default_target(&target); !s.ok()) {
      std::fprintf(stderr, "simdattn-digest: %s\n", s.detail);
      return 2;
    }
  }
  std::printf("# Digests of the results of every public function; see tools/simdattn-digest.cc.\n");
  bool failed = false;
  Digest unfused;
  for (const Line& line : lines) {
    const std::string d = digest(line, target);
    unfused.add(d.data(), d.size());
    failed = failed || d.size() != 16;
    std::printf("%s  %s\n", d.c_str(), line.name.c_str());
  }
  if (!target_exact(*target) && every == 1) std::printf("%s  %s\n", text_of(unfused).c_str(), kUnfused);
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace simdattn::digest

int main(int argc, char** argv) { return simdattn::digest::main_of(argc, argv); }
