// Runs a model by a libonnxruntime of any version with the provider, and the same model in float without it, which is
// another file if the first one is of f16 or bf16: ONNX Runtime has few kernels for these. Both get the same random
// numbers.
//
//   host LIBONNXRUNTIME PLUGIN MODEL MODEL_IN_FLOAT
//
// Prints the version and the largest difference of an output; ends with 1 if it is above what rounding explains, or if
// the provider was refused, with its status.
#include <dlfcn.h>
#include <onnxruntime_c_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
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

// ---- Numbers of every type ------------------------------------------------------------------------------------------

void store(ONNXTensorElementDataType element, void* data, int64_t at, float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  if (element == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) static_cast<float*>(data)[at] = x;
  if (element == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16) static_cast<_Float16*>(data)[at] = static_cast<_Float16>(x);
  if (element == ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16)
    static_cast<uint16_t*>(data)[at] = static_cast<uint16_t>(bits >> 16);
}

float load(ONNXTensorElementDataType element, const void* data, size_t at) {
  if (element == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16) return static_cast<const _Float16*>(data)[at];
  if (element != ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16) return static_cast<const float*>(data)[at];
  const uint32_t bits = uint32_t{static_cast<const uint16_t*>(data)[at]} << 16;
  float x = 0;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

/// A part of the largest number that an output may be away.
double most_of(ONNXTensorElementDataType element) {
  if (element == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16) return 0x1p-9;
  return element == ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16 ? 0x1p-6 : 1e-4;
}

// ---- Sessions -------------------------------------------------------------------------------------------------------

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
      if (element == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) {
        static_cast<int32_t*>(data)[k] =
            static_cast<int32_t>(std::strcmp(name, "seqlens_k") == 0 ? kTotal - 1 : kTotal);
      } else if (element == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) {
        static_cast<int64_t*>(data)[k] = k;
      } else {  // a number that every type has
        store(element, data, k, static_cast<float>(random >> 25) / 64.0f - 1.0f);
      }
    }
    inputs.names.emplace_back(name);
    inputs.values.push_back(value);
  }
  return inputs;
}

struct Output {
  std::vector<float> numbers;
  ONNXTensorElementDataType element{};
};

std::vector<Output> run(const OrtEnv* env, const char* model, bool ours) {
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
  const Inputs inputs = make_inputs(session);
  OrtAllocator* allocator = nullptr;
  check(api->GetAllocatorWithDefaultOptions(&allocator));
  size_t count = 0;
  check(api->SessionGetOutputCount(session, &count));
  std::vector<char*> outputs(count);
  std::vector<const char*> names;
  for (const std::string& name : inputs.names) names.push_back(name.c_str());
  for (size_t i = 0; i < count; ++i) check(api->SessionGetOutputName(session, i, allocator, &outputs[i]));
  std::vector<OrtValue*> made(count, nullptr);
  check(
      api->Run(session, nullptr, names.data(), inputs.values.data(), names.size(), outputs.data(), count, made.data()));
  std::vector<Output> result;
  for (OrtValue* value : made) {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    size_t n = 0;
    void* data = nullptr;
    check(api->GetTensorTypeAndShape(value, &info));
    check(api->GetTensorShapeElementCount(info, &n));
    check(api->GetTensorMutableData(value, &data));
    Output out;
    check(api->GetTensorElementType(info, &out.element));
    for (size_t i = 0; i < n; ++i) out.numbers.push_back(load(out.element, data, i));
    result.push_back(std::move(out));
  }
  api->ReleaseSession(session);
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
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
  const auto theirs = run(env, argv[4], false), ours = run(env, argv[3], true);
  double largest = 0;
  bool well = ours.size() == theirs.size();
  for (size_t i = 0; well && i < ours.size(); ++i) {
    const std::vector<float>&x = ours[i].numbers, &y = theirs[i].numbers;
    double difference = 0, most = 1;
    well = x.size() == y.size();
    for (size_t k = 0; well && k < x.size(); ++k) {
      const double d = std::fabs(static_cast<double>(x[k]) - static_cast<double>(y[k]));
      difference = std::isnan(d) ? INFINITY : std::max(difference, d);
      most = std::max(most, std::fabs(static_cast<double>(y[k])));
    }
    well = well && difference <= most_of(ours[i].element) * most;
    largest = std::max(largest, difference);
  }
  std::printf("%s differs by %g\n", argv[3], largest);
  return well ? 0 : 1;
}
