// The tables of functions that ONNX Runtime hands to a provider, and failures on their way back to it. Nothing links
// libonnxruntime: one file serves every version from 1.23 on.
#pragma once

#include <onnxruntime_c_api.h>
#include <simdattn/simdattn.h>

#include <exception>
#include <string>

namespace simdattn_onnxruntime {

namespace sa = simdattn;

/// The version of the interface that is asked for, whatever version the headers have.
inline constexpr uint32_t kApiVersion = 23;

struct Host {
  const OrtApi* api = nullptr;
  const OrtEpApi* ep = nullptr;
  int minor = 0;  // 23 of "1.23.2"
};
/// Set by CreateEpFactories(), before anything else runs.
extern Host host;

/// What functions throw between an entry and the place of a mistake; no exception leaves the file.
struct Failure {
  OrtStatus* status;
};

/// Throws what is not a success.
inline void check(OrtStatus* status) {
  if (status != nullptr) throw Failure{status};
}

[[noreturn]] inline void fail(OrtErrorCode code, const std::string& message) {
  throw Failure{host.api->CreateStatus(code, ("simdattn: " + message).c_str())};
}

/// f(), with failures as the status that ONNX Runtime expects.
template <class F>
OrtStatus* guarded(const F& f) noexcept {
  try {
    f();
    return nullptr;
  } catch (const Failure& failure) {
    return failure.status;
  } catch (const std::exception& e) {
    return host.api->CreateStatus(ORT_FAIL, e.what());
  }
}

}  // namespace simdattn_onnxruntime
