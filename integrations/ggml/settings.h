// What the environment asks for, and the lines that users see.
#pragma once

#include <ggml.h>
#include <simdattn/simdattn.h>

namespace simdattn_ggml {

namespace sa = simdattn;

/// SIMDATTN_GGML
enum class Way {
  kInterpose,  // "interpose", the default: the CPU backend's graphs, see interpose.h
  kDevice,     // "device": a device of its own, see device.h
  kOff,        // "off": nothing
};

struct Settings {
  Way way = Way::kInterpose;
  /// SIMDATTN_GGML_ARITHMETIC: what the library chooses for the types of a cache; "auto" and the default.
  bool own_choice = true;
  /// Else "f32", or for nodes of kNarrowRows and more rows "bf16" or "int8".
  sa::Arithmetic arithmetic = sa::Arithmetic::kF32;
  bool log = false;             // SIMDATTN_GGML_LOG=1: lines go to stderr, and there are more of them
  const char* wrong = nullptr;  // a sentence about the first variable that has no meaning
};

/// Rows are queries times query heads of a key head. For fewer of them, as in a decode, narrow arithmetic is slower: it
/// converts keys.
inline constexpr int64_t kNarrowRows = 32;

/// Read at the first call.
const Settings& settings();

/// A line of ggml's log; with SIMDATTN_GGML_LOG=1 on stderr.
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void say(ggml_log_level level, const char* format, ...);

}  // namespace simdattn_ggml
