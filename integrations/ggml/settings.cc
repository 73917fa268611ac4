#include "settings.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "host.h"

namespace simdattn_ggml {
namespace {

bool is(const char* value, const char* word) { return std::strcmp(value, word) == 0; }

/// The value of a variable; `other` where it is empty or not there.
const char* variable(const char* name, const char* other) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : other;
}

/// A sentence about an arithmetic that this target only emulates, which would be slow, with the targets that do not.
const char* emulated(const char* arithmetic, sa::Arithmetic which, const sa::Target& target) {
  static char text[1024];
  int end = std::snprintf(text, sizeof text, "SIMDATTN_GGML_ARITHMETIC: %s has no instructions for %s; of this CPU, ",
                          sa::target_name(target), arithmetic);
  bool any = false;
  for (const sa::Target* t : sa::targets()) {
    if (!sa::target_runnable(*t) || !sa::target_native(*t, which)) continue;
    end +=
        std::snprintf(text + end, sizeof text - static_cast<size_t>(end), "%s%s", any ? ", " : "", sa::target_name(*t));
    any = true;
  }
  std::snprintf(text + end, sizeof text - static_cast<size_t>(end), "%s", any ? " have" : "no target has");
  return text;
}

void set_arithmetic(const sa::Target& target, Settings* s) {
  const char* const value = variable("SIMDATTN_GGML_ARITHMETIC", "auto");
  s->own_choice = is(value, "auto");
  if (s->own_choice || is(value, "f32")) return;
  if (!is(value, "bf16") && !is(value, "int8")) {
    s->wrong = "SIMDATTN_GGML_ARITHMETIC is neither auto, f32, bf16 nor int8";
    return;
  }
  s->arithmetic = is(value, "bf16") ? sa::Arithmetic::kBF16 : sa::Arithmetic::kInt8;
  if (!sa::target_native(target, s->arithmetic)) s->wrong = emulated(value, s->arithmetic, target);
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
  sa::Status status = sa::default_target(&target);
  // AMX: where SIMDATTN_TARGET names a target of it, or the environment an arithmetic that it has. For a cache of bf16
  // arithmetic_of() asks. The permission makes the frames of signals larger, so no other program gets it.
  const char* const named = variable("SIMDATTN_GGML_ARITHMETIC", "auto");
  if (!status.ok() || !(is(named, "auto") || is(named, "f32"))) {
    if (sa::request_amx().ok()) status = sa::default_target(&target);
  }
  if (!status.ok()) s.wrong = status.detail;  // with the names that can run
  if (s.wrong == nullptr) set_arithmetic(*target, &s);
  if (s.wrong != nullptr) s.way = Way::kOff;
  return s;
}

}  // namespace

const Settings& settings() {
  static const Settings s = read();
  return s;
}

void say(ggml_log_level level, const char* format, ...) {
  char line[1280];  // a list of targets is long
  va_list arguments;
  va_start(arguments, format);
  const int length = std::vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  if (length < 0) return;
  std::strcat(line, "\n");
  ggml_log_callback log = nullptr;
  void* user = nullptr;
  if (host.ggml_log_get != nullptr) host.ggml_log_get(&log, &user);
  if (log == nullptr || settings().log) {
    std::fputs(line, stderr);
  } else {
    log(level, line, user);
  }
}

}  // namespace simdattn_ggml
