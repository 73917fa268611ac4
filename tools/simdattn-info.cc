// What this machine is, which targets were compiled, which can run, and which one a call takes by default.
//
//   simdattn-info              everything
//   simdattn-info --runnable   the names of the runnable targets, one a line, best first
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "dispatch/target.h"
#include "include/simdattn/simdattn.h"

namespace {

/// The processor's name as the operating system tells it.
std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    for (const char* key : {"model name", "Model", "CPU part"}) {
      if (line.rfind(key, 0) == 0 && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
    }
  }
  return "unknown";
}

/// Those that the target has instructions for, beside f32.
std::string native_arithmetics(const simdattn::Target& target) {
  std::string text;
  if (simdattn::target_native(target, simdattn::Arithmetic::kBF16)) text += "bf16";
  if (simdattn::target_native(target, simdattn::Arithmetic::kInt8)) text += text.empty() ? "int8" : " int8";
  return text.empty() ? "-" : text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--runnable") == 0) {
    for (const simdattn::Target* t : simdattn::targets()) {
      if (simdattn::target_runnable(*t)) std::puts(simdattn::target_name(*t));
    }
    return 0;
  }
  if (argc != 1) {
    std::fputs("usage: simdattn-info [--runnable]\n", stderr);
    return 2;
  }

  const simdattn::Target* chosen = nullptr;
  const simdattn::Status status = simdattn::default_target(&chosen);
  std::printf("simdattn %s\nCPU: %s\n\nTargets, best first, with the arithmetics beside f32 that are native:\n",
              simdattn::version(), cpu_name().c_str());
  for (const simdattn::Target* t : simdattn::targets()) {
    std::printf("  %-24s%-10s", simdattn::target_name(*t), native_arithmetics(*t).c_str());
    if (!t->runnable) {
      std::printf("not taken: this CPU or operating system lacks %s\n", t->missing);
    } else if (!simdattn::target_runnable(*t)) {
      std::printf("not taken: %s\n", simdattn::target_missing(*t));
    } else {
      std::printf("runnable%s%s\n",
                  simdattn::target_exact(*t) ? "" : ", no fused multiply-add: not the bits of the definition",
                  t == chosen ? "  <- default" : "");
    }
  }
  if (!status.ok()) {
    std::printf("\nNo default: %s\n", status.detail);
    return 1;
  }
  std::printf("\nDefault: %s (%s)\n", simdattn::target_name(*chosen),
              std::getenv("SIMDATTN_TARGET") != nullptr && *std::getenv("SIMDATTN_TARGET") != '\0'
                  ? "named by SIMDATTN_TARGET"
                  : "the first runnable one");
  return 0;
}
