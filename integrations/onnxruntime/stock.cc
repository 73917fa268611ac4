#include "stock.h"

namespace simdattn_onnxruntime {
namespace {

constexpr char kDomain[] = "simdattn", kName[] = "Empty";

/// Fields of a message of Protocol Buffers: text shorter than 128 bytes, and a number less than 128.
std::string field(int number, const std::string& text) {
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(text.size())} + text;
}
std::string field(int number, int value) {
  return std::string{static_cast<char>(number << 3), static_cast<char>(value)};
}

/// A ModelProto of ONNX: y = Empty(x), both float.
std::string model() {
  const std::string type = field(2, field(1, field(1, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT)));
  const std::string node = field(1, "x") + field(2, "y") + field(4, kName) + field(7, kDomain);
  const std::string graph =
      field(1, node) + field(2, "g") + field(11, field(1, "x") + type) + field(12, field(1, "y") + type);
  return field(1, 8) + field(7, graph) + field(8, field(1, kDomain) + field(2, 1));
}

}  // namespace

struct StockMaker::Empty : OrtCustomOp {
  Empty() : OrtCustomOp{} {
    version = kApiVersion;
    GetName = [](const OrtCustomOp*) noexcept { return kName; };
    GetExecutionProviderType = [](const OrtCustomOp*) noexcept -> const char* { return nullptr; };
    GetInputType =
        GetOutputType = [](const OrtCustomOp*, size_t) noexcept { return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT; };
    GetInputTypeCount = GetOutputTypeCount = [](const OrtCustomOp*) noexcept -> size_t { return 1; };
    GetInputCharacteristic =
        GetOutputCharacteristic = [](const OrtCustomOp*, size_t) noexcept { return INPUT_OUTPUT_REQUIRED; };
    GetInputMemoryType = [](const OrtCustomOp*, size_t) noexcept { return OrtMemTypeDefault; };
    CreateKernel = [](const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* given) noexcept -> void* {
      auto* const self = const_cast<Empty*>(static_cast<const Empty*>(op));
      if (OrtStatus* s = api->CopyKernelInfo(given, &self->info)) api->ReleaseStatus(s);
      return self;
    };
    KernelCompute = [](void*, OrtKernelContext*) noexcept {};
    KernelDestroy = [](void*) noexcept {};
  }
  OrtKernelInfo* info = nullptr;
};

StockMaker::StockMaker() : op_(new Empty) {
  const OrtApi& api = *host.api;
  OrtEnv* env = nullptr;  // that of the process
  OrtSessionOptions* options = nullptr;
  const std::string bytes = model();
  OrtStatus* status = api.CreateEnv(ORT_LOGGING_LEVEL_WARNING, kDomain, &env);
  if (status == nullptr) status = api.CreateSessionOptions(&options);
  if (status == nullptr) status = api.CreateCustomOpDomain(kDomain, &domain_);
  if (status == nullptr) status = api.CustomOpDomain_Add(domain_, op_.get());
  if (status == nullptr) status = api.AddCustomOpDomain(options, domain_);
  if (status == nullptr) status = api.SetIntraOpNumThreads(options, 1);
  if (status == nullptr) status = api.SetInterOpNumThreads(options, 1);
  if (status == nullptr) status = api.SetSessionGraphOptimizationLevel(options, ORT_DISABLE_ALL);
  if (status == nullptr) status = api.CreateSessionFromArray(env, bytes.data(), bytes.size(), options, &session_);
  if (status != nullptr) api.ReleaseStatus(status);  // nothing is given back then
  if (options != nullptr) api.ReleaseSessionOptions(options);
  if (env != nullptr) api.ReleaseEnv(env);
}

StockMaker::~StockMaker() {
  if (op_->info != nullptr) host.api->ReleaseKernelInfo(op_->info);
  if (session_ != nullptr) host.api->ReleaseSession(session_);
  if (domain_ != nullptr) host.api->ReleaseCustomOpDomain(domain_);
}

OrtOp* StockMaker::make(const OrtNode* node, const Node& read) const {
  const OrtApi& api = *host.api;
  const char *type = nullptr, *domain = nullptr;
  int version = 0;
  size_t n = 0;
  check(api.Node_GetOperatorType(node, &type));
  check(api.Node_GetDomain(node, &domain));
  check(api.Node_GetSinceVersion(node, &version));
  check(api.Node_GetNumAttributes(node, &n));
  std::vector<const OrtOpAttr*> attributes(n);
  check(api.Node_GetAttributes(node, attributes.data(), n));
  // The types that the operator's kernels are chosen by, and no others.
  constexpr ONNXTensorElementDataType kF32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
  std::vector<const char*> names{"T1", "T2", "U"};  // U: of masks, float or bool in one kernel
  std::vector<ONNXTensorElementDataType> types{read.element, read.element, kF32};
  if (read.kind == Kind::kLinear) names = {"T"}, types = {read.element};
  OrtOp* op = nullptr;
  if (op_->info == nullptr) return nullptr;
  OrtStatus* const status =
      api.CreateOp(op_->info, type, domain, version, names.data(), types.data(), static_cast<int>(names.size()),
                   attributes.data(), static_cast<int>(n), read.inputs, read.outputs, &op);
  if (status != nullptr) api.ReleaseStatus(status);
  return status == nullptr ? op : nullptr;
}

}  // namespace simdattn_onnxruntime
