// Runs a model by a libonnxruntime of any version, without the provider and with it, on the same random inputs.
//
//   host LIBONNXRUNTIME PLUGIN MODEL
//
// Prints the version and the largest difference of an output; ends with 1 if it is above 1e-4 of the largest number, or
// with the status that the provider was refused with.
#include <dlfcn.h>
#include <onnxruntime_c_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr int64_t kRows = 5, kPast = 20, kTotal = 14;  // new tokens, room of the cache, tokens with the new ones

const OrtApi* api;

void check(OrtStatus* status) {
  if (status == nullptr) return;
  std::printf("refused: %s\n", api->GetErrorMessage(status));
  std::exit(1);
}

/// Sizes of dimensions that have no number in the model, by their names.
int64_t size_of(const char* name) {
  const std::string s = name != nullptr ? name : "";
  if (s.rfind("past", 0) == 0) return kPast;
  if (s.rfind("total", 0) == 0) return kTotal;
  return s.rfind("n", 0) == 0 ? kRows : 1;
}

struct Inputs {
  std::vector<std::string> names;
  std::vector<OrtValue*> values;
};

Inputs make_inputs(const OrtSession* session) {
  OrtAllocator* allocator = nullptr;
  check(api->GetAllocatorWithDefaultOptions(&allocator));
  size_t count = 0;
  check(api->SessionGetInputCount(session, &count));
  Inputs inputs;
  uint32_t random = 1;
  for (size_t i = 0; i < count; ++i) {
    char* name = nullptr;
    OrtTypeInfo* type = nullptr;
    const OrtTensorTypeAndShapeInfo* info = nullptr;
    size_t rank = 0;
    check(api->SessionGetInputName(session, i, allocator, &name));
    check(api->SessionGetInputTypeInfo(session, i, &type));
    check(api->CastTypeInfoToTensorInfo(type, &info));
    check(api->GetDimensionsCount(info, &rank));
    std::vector<int64_t> shape(rank);
    std::vector<const char*> symbols(rank);
    check(api->GetDimensions(info, shape.data(), rank));
    check(api->GetSymbolicDimensions(info, symbols.data(), rank));
    for (size_t d = 0; d < rank; ++d) {
      if (shape[d] < 0) shape[d] = size_of(symbols[d]);
    }
    ONNXTensorElementDataType element{};
    check(api->GetTensorElementType(info, &element));
    OrtValue* value = nullptr;
    void* data = nullptr;
    int64_t size = 1;
    for (const int64_t d : shape) size *= d;
    check(api->CreateTensorAsOrtValue(allocator, shape.data(), rank, element, &value));
    check(api->GetTensorMutableData(value, &data));
    for (int64_t k = 0; k < size; ++k) {
      random = random * 1664525u + 1013904223u;
      if (element == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) {
        static_cast<float*>(data)[k] = static_cast<float>(random >> 8) / 8388608.0f - 1.0f;
      } else if (element == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) {
        static_cast<int32_t*>(data)[k] =
            static_cast<int32_t>(std::strcmp(name, "seqlens_k") == 0 ? kTotal - 1 : kTotal);
      } else {
        static_cast<int64_t*>(data)[k] = k;
      }
    }
    inputs.names.emplace_back(name);
    inputs.values.push_back(value);
  }
  return inputs;
}

std::vector<std::vector<float>> run(const OrtEnv* env, const char* model, bool ours, Inputs* inputs) {
  OrtSessionOptions* options = nullptr;
  check(api->CreateSessionOptions(&options));
  check(api->SetIntraOpNumThreads(options, 2));
  if (ours) {
    const OrtEpDevice* const* devices = nullptr;
    size_t n = 0;
    check(api->GetEpDevices(env, &devices, &n));
    for (size_t i = 0; i < n; ++i) {
      if (std::strcmp(api->EpDevice_EpName(devices[i]), "SimdattnExecutionProvider") != 0) continue;
      const char *key = "log", *value = "1";
      check(api->SessionOptionsAppendExecutionProvider_V2(options, const_cast<OrtEnv*>(env), &devices[i], 1, &key,
                                                          &value, 1));
    }
  }
  OrtSession* session = nullptr;
  check(api->CreateSession(env, model, options, &session));
  if (inputs->values.empty()) *inputs = make_inputs(session);
  OrtAllocator* allocator = nullptr;
  check(api->GetAllocatorWithDefaultOptions(&allocator));
  size_t count = 0;
  check(api->SessionGetOutputCount(session, &count));
  std::vector<char*> outputs(count);
  std::vector<const char*> names;
  for (const std::string& name : inputs->names) names.push_back(name.c_str());
  for (size_t i = 0; i < count; ++i) check(api->SessionGetOutputName(session, i, allocator, &outputs[i]));
  std::vector<OrtValue*> made(count, nullptr);
  check(api->Run(session, nullptr, names.data(), inputs->values.data(), names.size(), outputs.data(), count,
                 made.data()));
  std::vector<std::vector<float>> result;
  for (OrtValue* value : made) {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    size_t n = 0;
    void* data = nullptr;
    check(api->GetTensorTypeAndShape(value, &info));
    check(api->GetTensorShapeElementCount(info, &n));
    check(api->GetTensorMutableData(value, &data));
    result.emplace_back(static_cast<float*>(data), static_cast<float*>(data) + n);
  }
  api->ReleaseSession(session);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  void* const library = dlopen(argv[1], RTLD_NOW);
  if (library == nullptr) return std::printf("%s\n", dlerror()), 2;
  const auto base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(library, "OrtGetApiBase"))();
  api = base->GetApi(22);
  if (api == nullptr) return std::printf("%s is too old for this program\n", base->GetVersionString()), 2;
  std::printf("%s: ", base->GetVersionString());
  std::fflush(stdout);
  OrtEnv* env = nullptr;
  check(api->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "host", &env));
  check(api->RegisterExecutionProviderLibrary(env, "simdattn", argv[2]));
  Inputs inputs;
  const auto theirs = run(env, argv[3], false, &inputs), ours = run(env, argv[3], true, &inputs);
  double difference = 0, most = 1;
  for (size_t i = 0; i < ours.size(); ++i) {
    for (size_t k = 0; k < ours[i].size(); ++k) {
      const double d = std::fabs(static_cast<double>(ours[i][k]) - static_cast<double>(theirs[i][k]));
      difference = std::isnan(d) ? INFINITY : std::max(difference, d);
      most = std::max(most, std::fabs(static_cast<double>(theirs[i][k])));
    }
  }
  std::printf("%s differs by %g\n", argv[3], difference);
  return difference <= 1e-4 * most ? 0 : 1;
}
