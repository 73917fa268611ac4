#include "settings.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace simdattn_ggml {
namespace {

bool is(const char* value, const char* word) { return std::strcmp(value, word) == 0; }

/// The value of a variable; `other` where it is empty or not there.
const char* variable(const char* name, const char* other) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : other;
}

/// Narrow arithmetic that this CPU only emulates would be slow: then there is a sentence.
void set_arithmetic(Settings* s) {
  const char* const value = variable("SIMDATTN_GGML_ARITHMETIC", "f32");
  if (is(value, "f32")) return;
  if (!is(value, "bf16") && !is(value, "int8")) {
    s->wrong = "SIMDATTN_GGML_ARITHMETIC is neither f32, bf16 nor int8";
    return;
  }
  s->arithmetic = is(value, "bf16") ? sa::Arithmetic::kBF16 : sa::Arithmetic::kInt8;
  (void)sa::request_amx();  // where there is none, the other targets are as good as before
  const sa::Target* target = nullptr;
  if (sa::default_target(&target).ok() && sa::target_native(*target, s->arithmetic)) return;
  s->wrong = "SIMDATTN_GGML_ARITHMETIC names an arithmetic for which this CPU has no instructions";
}

Settings read() {
  Settings s;
  s.log = is(variable("SIMDATTN_GGML_LOG", "0"), "1");
  const char* const way = variable("SIMDATTN_GGML", "interpose");
  if (is(way, "off")) {
    s.way = Way::kOff;
  } else if (is(way, "device")) {
    s.way = Way::kDevice;
  } else if (!is(way, "interpose")) {
    s.wrong = "SIMDATTN_GGML is neither interpose, device nor off";
  }
  const sa::Target* target = nullptr;
  if (!sa::default_target(&target).ok()) s.wrong = "SIMDATTN_TARGET names a target that cannot run here";
  if (s.wrong == nullptr) set_arithmetic(&s);
  if (s.wrong != nullptr) s.way = Way::kOff;
  return s;
}

}  // namespace

const Settings& settings() {
  static const Settings s = read();
  return s;
}

void say(ggml_log_level level, const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  if (length < 0) return;
  std::strcat(line, "\n");
  ggml_log_callback log = nullptr;
  void* user = nullptr;
  ggml_log_get(&log, &user);
  if (log == nullptr || settings().log) {
    std::fputs(line, stderr);
  } else {
    log(level, line, user);
  }
}

}  // namespace simdattn_ggml
