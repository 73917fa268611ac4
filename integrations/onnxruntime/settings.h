// What the environment and a session's options ask for, and the lines that users see.
#pragma once

#include <string>

#include "host.h"

namespace simdattn_onnxruntime {

/// What multiplies.
enum class Choice { kAuto, kF32, kBF16, kInt8 };

struct Settings {
  Choice arithmetic = Choice::kAuto;
  bool log = false;  // lines go to stderr, and not only to the log of the session
};

/// The options of a session, `ep.simdattnexecutionprovider.arithmetic` and `.log`, else SIMDATTN_ONNXRUNTIME_ARITHMETIC
/// and SIMDATTN_ONNXRUNTIME_LOG. Throws where one has no meaning.
Settings read_settings(const OrtSessionOptions* options);

/// For narrow arithmetic rows are queries times query heads of a key head. For fewer of them, as in a decode, it is
/// slower than f32: it converts keys.
inline constexpr int64_t kNarrowRows = 32;

/// The arithmetic of a problem.
sa::Arithmetic arithmetic_of(const Settings& settings, const sa::AttentionProblem& problem);

/// A line of the log at the level "info", which is not printed unless a session asks for it.
void say(const Settings& settings, const OrtLogger* logger, const std::string& line);

}  // namespace simdattn_onnxruntime
