// libggml-simdattn.so: what ggml calls when it loads the file that GGML_BACKEND_PATH names. docs/llama-cpp.md is for
// its users.
//
// ggml_backend_init() tries everything in a forked process first (trial.h). Only what worked there is done in this one.
#include <ggml-backend.h>
#include <ggml.h>

#include <cstdio>
#include <cstring>
#include <mutex>

#include "device.h"
#include "hook.h"
#include "host.h"
#include "interpose.h"
#include "layout.h"
#include "runner.h"
#include "selftest.h"
#include "settings.h"
#include "trial.h"

namespace simdattn_ggml {
namespace {

ggml_backend_dev_t cpu_device() { return host.ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU); }

/// All that the process would do, in another one.
Verdict verdict() {
  Verdict v = {};
  Layout layout = {};
  const char* wrong = find_layout(&layout);
  if (wrong == nullptr) wrong = check_layout(layout, cpu_device());
  if (wrong == nullptr && !tensor_as_compiled())
    wrong = "ggml_tensor is another struct than in the headers of the build";
  if (wrong == nullptr) v.operators = agreeing_operators(cpu_device());
  if (wrong == nullptr && v.operators == 0) wrong = "the self-test found results that are not ggml's";
  if (wrong == nullptr && settings().way == Way::kInterpose && !has_hook(cpu_device()))
    wrong = interpose(layout, cpu_device());  // writes where it will write
  if (wrong != nullptr) {
    v.operators = 0;
    std::snprintf(v.reason, sizeof v.reason, "%s", wrong);
  }
  return v;
}

struct Names {
  char text[160] = "";
};
Names names_of(unsigned operators) {
  Names names;
  for (int i = 0; i < kOperators; ++i) {
    if ((operators >> i & 1u) == 0) continue;
    const size_t end = std::strlen(names.text);
    std::snprintf(names.text + end, sizeof names.text - end, "%s%s", end != 0 ? ", " : "", kTable[i].name);
  }
  return names;
}

void say_what_is_taken(unsigned operators, unsigned doubtful) {
  const sa::Target* target = nullptr;
  const bool known = sa::default_target(&target).ok();
  say(GGML_LOG_LEVEL_INFO, "simdattn: version %s, %s, takes %s %s", sa::version(),
      known ? sa::target_name(*target) : "?", names_of(operators).text,
      settings().way == Way::kDevice
          ? "as a device: use -fa on"
          : (has_hook(cpu_device()) ? "of the CPU backend, by its hook" : "of the CPU backend"));
  if (doubtful == 0) return;
  say(GGML_LOG_LEVEL_WARN, "simdattn: leaves %s to ggml: nodes of this version failed the self-test",
      names_of(doubtful).text);
}

/// With SIMDATTN_GGML_LOG=1, when the process ends.
struct LastLine {
  ~LastLine() {
    if (!settings().log) return;
    std::fprintf(stderr, "simdattn: took %lld nodes, left %lld to ggml\n", static_cast<long long>(counts.taken),
                 static_cast<long long>(counts.left));
  }
};

ggml_backend_reg_t refuse(const char* reason) {
  say(GGML_LOG_LEVEL_WARN, "simdattn: does nothing: %s", reason);
  return nullptr;
}

ggml_backend_reg_t refuse_without(const char* function) {
  char reason[160];
  std::snprintf(reason, sizeof reason, "the program that loads it shows no %s, so its ggml is linked statically or old",
                function);
  return refuse(reason);
}

ggml_backend_reg_t load() {
  if (settings().wrong != nullptr) return refuse(settings().wrong);
  const Verdict v = try_in_child(verdict);
  Layout layout = {};
  if (v.operators == 0 || find_layout(&layout) != nullptr) return refuse(v.reason);
  const unsigned found = find_operators();
  take_operators(found & v.operators);
  if (settings().way == Way::kInterpose && has_hook(cpu_device())) {
    set_hooks(cpu_device());
  } else if (settings().way == Way::kInterpose) {
    if (const char* wrong = interpose(layout, cpu_device())) return refuse(wrong);
  }
  static LastLine last_line;
  say_what_is_taken(v.operators, found & ~v.operators);
  return registration(layout, cpu_device(), settings().way == Way::kDevice);
}

}  // namespace
}  // namespace simdattn_ggml

extern "C" {

/// 0: ggml says that this file is not for this system, and leaves it.
__attribute__((visibility("default"))) int ggml_backend_score(void) {
  const simdattn_ggml::Settings& s = simdattn_ggml::settings();
  return s.way == simdattn_ggml::Way::kOff && s.wrong == nullptr ? 0 : 1;
}

/// A second call, as programs make that load all backends twice, returns what the first one did.
__attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) {
  const void* const caller = __builtin_return_address(0);  // no fault: its caller is of ggml, too
  static const char* const missing = simdattn_ggml::find_host(caller);
  if (missing != nullptr) return simdattn_ggml::refuse_without(missing);
  if (simdattn_ggml::cpu_device() == nullptr) return simdattn_ggml::refuse("no CPU backend is loaded yet");
  static ggml_backend_reg_t once = simdattn_ggml::load();
  return once;
}
}
