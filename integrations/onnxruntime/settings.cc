#include "settings.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace simdattn_onnxruntime {
namespace {

constexpr char kPrefix[] = "ep.simdattnexecutionprovider.";

/// The value of a variable of the environment; "" where it is not there.
std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

[[noreturn]] void refuse(const std::string& what, const std::string& rule) {
  fail(ORT_INVALID_ARGUMENT, what + " " + rule);
}

void set_arithmetic(Settings* s, const std::string& name, const std::string& value) {
  if (value.empty() || value == "auto") {
    s->arithmetic = Choice::kAuto;
  } else if (value == "f32") {
    s->arithmetic = Choice::kF32;
  } else if (value == "bf16") {
    s->arithmetic = Choice::kBF16;
  } else if (value == "int8") {
    s->arithmetic = Choice::kInt8;
  } else {
    refuse(name, "is neither auto, f32, bf16 nor int8");
  }
}

void set_log(Settings* s, const std::string& name, const std::string& value) {
  if (!value.empty() && value != "0" && value != "1") refuse(name, "is neither 0 nor 1");
  s->log = value == "1";
}

void set(Settings* s, const std::string& key, const std::string& name, const std::string& value) {
  if (key == "arithmetic") {
    set_arithmetic(s, name, value);
  } else if (key == "log") {
    set_log(s, name, value);
  } else {
    refuse(name, "is no option: there are arithmetic and log");
  }
}

/// Narrow arithmetic that this CPU only emulates would be slow.
void check_arithmetic(const Settings& s) {
  const sa::Target* target = nullptr;
  if (const sa::Status status = sa::default_target(&target); !status.ok())
    refuse("SIMDATTN_TARGET", "names a target that cannot run here");
  if (s.arithmetic == Choice::kAuto || s.arithmetic == Choice::kF32) return;
  const bool bf16 = s.arithmetic == Choice::kBF16;
  if (!sa::target_native(*target, bf16 ? sa::Arithmetic::kBF16 : sa::Arithmetic::kInt8))
    refuse("arithmetic", std::string(bf16 ? "bf16" : "int8") + ": this CPU has no instructions for it");
}

}  // namespace

Settings read_settings(const OrtSessionOptions* options) {
  Settings s;
  for (const char* key : {"arithmetic", "log"}) {
    std::string name = std::string("SIMDATTN_ONNXRUNTIME_") + (*key == 'a' ? "ARITHMETIC" : "LOG");
    set(&s, key, name, variable(name.c_str()));
  }
  OrtKeyValuePairs* entries = nullptr;
  check(host.api->GetSessionOptionsConfigEntries(options, &entries));
  const std::unique_ptr<OrtKeyValuePairs, void (*)(OrtKeyValuePairs*)> owner(
      entries, [](OrtKeyValuePairs* e) { host.api->ReleaseKeyValuePairs(e); });
  const char *const *keys = nullptr, *const *values = nullptr;
  size_t n = 0;
  host.api->GetKeyValuePairs(entries, &keys, &values, &n);
  constexpr size_t kLength = sizeof kPrefix - 1;
  for (size_t i = 0; i < n; ++i) {
    if (std::strncmp(keys[i], kPrefix, kLength) == 0) set(&s, keys[i] + kLength, keys[i], values[i]);
  }
  (void)sa::request_amx();  // where there is none, the other targets are as good as before
  check_arithmetic(s);
  return s;
}

sa::Arithmetic arithmetic_of(const Settings& settings, const sa::AttentionProblem& p) {
  if (settings.arithmetic == Choice::kF32) return sa::Arithmetic::kF32;
  if (settings.arithmetic == Choice::kAuto) return sa::arithmetic_for(p.q.dtype, p.k.type, p.v.type);
  const int64_t rows = p.k.heads > 0 ? p.q.shape[2] * p.q.shape[1] / p.k.heads : 0;
  if (rows < kNarrowRows) return sa::Arithmetic::kF32;
  return settings.arithmetic == Choice::kBF16 ? sa::Arithmetic::kBF16 : sa::Arithmetic::kInt8;
}

void say(const Settings& settings, const OrtLogger* logger, const std::string& line) {
  const std::string text = "simdattn: " + line;
  if (settings.log) std::fprintf(stderr, "%s\n", text.c_str());
  if (logger != nullptr) {
    if (OrtStatus* s = host.api->Logger_LogMessage(logger, ORT_LOGGING_LEVEL_INFO, text.c_str(), ORT_TSTR(__FILE__),
                                                   __LINE__, "say"))
      host.api->ReleaseStatus(s);
  }
}

}  // namespace simdattn_onnxruntime
