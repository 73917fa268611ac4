// libonnxruntime-simdattn.so: an execution provider that takes single nodes of attention and runs them on the CPU's own
// tensors, so that nothing is copied between it and ONNX Runtime's provider. docs/onnxruntime.md is for its users.
#include <cstdio>
#include <memory>

#include "kernels.h"
#include "stock.h"

namespace simdattn_onnxruntime {

Host host;

namespace {

constexpr char kName[] = "SimdattnExecutionProvider";

// ---- A node that was taken ------------------------------------------------------------------------------------------

struct Compiled : OrtNodeComputeInfo {
  Compiled(Node n, const Settings& s, std::shared_ptr<StockMaker> m, OrtOp* o)
      : OrtNodeComputeInfo{}, node(std::move(n)), settings(s), maker(std::move(m)), stock(o) {
    ort_version_supported = kApiVersion;
    CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*, void** state) noexcept -> OrtStatus* {
      *state = self;  // there is none: sessions may run a node by many threads at once
      return nullptr;
    };
    Compute = [](OrtNodeComputeInfo* self, void*, OrtKernelContext* context) noexcept {
      return static_cast<const Compiled*>(self)->run(context);
    };
    ReleaseState = [](OrtNodeComputeInfo*, void*) noexcept {};
  }
  ~Compiled() {
    if (stock != nullptr) host.api->ReleaseOp(stock);
  }
  Compiled(const Compiled&) = delete;
  Compiled& operator=(const Compiled&) = delete;

  OrtStatus* run(OrtKernelContext* context) const noexcept {
    constexpr void (*kRun[])(Call*) = {group_query_attention, multi_head_attention, attention,
                                       rotary_embedding,      linear_attention,     causal_conv};
    return guarded([&] {
      Call call(node, settings, stock, context);
      kRun[static_cast<size_t>(node.kind)](&call);
    });
  }

  const Node node;
  const Settings settings;
  const std::shared_ptr<StockMaker> maker;  // of `stock`
  OrtOp* const stock;
};

/// Where values of the node are among those of the node that ONNX Runtime makes of it, which has each value once.
template <size_t kMost>
void find_values(const Values& own, const Values& outer, std::array<int, kMost>* places) {
  places->fill(-1);
  for (size_t i = 0; i < own.names.size() && i < kMost; ++i) {
    if (!own.has(i)) continue;
    const auto at = std::find(outer.names.begin(), outer.names.end(), own.names[i]);
    if (at != outer.names.end()) (*places)[i] = static_cast<int>(at - outer.names.begin());
  }
}

// ---- The provider of a session --------------------------------------------------------------------------------------

struct Provider : OrtEp {
  Provider(const Settings& s, const OrtLogger* l) : OrtEp{}, settings(s), logger(l) {
    ort_version_supported = kApiVersion;
    GetName = [](const OrtEp*) noexcept { return kName; };
    GetCapability = [](OrtEp* self, const OrtGraph* graph, OrtEpGraphSupportInfo* support) noexcept {
      return guarded([&] { static_cast<Provider*>(self)->choose(graph, support); });
    };
    Compile = [](OrtEp* self, const OrtGraph** graphs, const OrtNode** fused, size_t n, OrtNodeComputeInfo** result,
                 OrtNode**) noexcept {
      return guarded([&] {
        for (size_t i = 0; i < n; ++i) result[i] = static_cast<Provider*>(self)->compile(graphs[i], fused[i]);
      });
    };
    ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** infos, size_t n) noexcept {
      for (size_t i = 0; i < n; ++i) delete static_cast<Compiled*>(infos[i]);
    };
  }

  void choose(const OrtGraph* graph, OrtEpGraphSupportInfo* support) {
    size_t n = 0, taken = 0, left = 0;
    check(host.api->Graph_GetNumNodes(graph, &n));
    std::vector<const OrtNode*> nodes(n);
    check(host.api->Graph_GetNodes(graph, nodes.data(), n));
    OrtNodeFusionOptions fusion{};
    fusion.ort_version_supported = kApiVersion;
    for (const OrtNode* node : nodes) {
      Node read;
      std::string reason;
      const Verdict verdict = examine(node, &read, &reason);
      if (verdict == Verdict::kOther) continue;
      const bool takes = verdict == Verdict::kTaken;
      say(settings, logger, takes ? "takes " + read.name : "leaves " + read.name + " to ONNX Runtime: " + reason);
      ++(takes ? taken : left);
      if (takes) check(host.ep->EpGraphSupportInfo_AddNodesToFuse(support, &node, 1, &fusion));
    }
    if (taken + left != 0)
      say(settings, logger, "took " + std::to_string(taken) + " nodes, left " + std::to_string(left));
  }

  Compiled* compile(const OrtGraph* graph, const OrtNode* fused) {
    const OrtNode* node = nullptr;
    size_t n = 0;
    check(host.api->Graph_GetNumNodes(graph, &n));
    if (n != 1) fail(ORT_FAIL, "a graph of one node was expected");
    check(host.api->Graph_GetNodes(graph, &node, 1));
    Node read;
    std::string reason;
    if (examine(node, &read, &reason) != Verdict::kTaken) fail(ORT_FAIL, read.name + " is no longer taken: " + reason);
    find_values(inputs_of(node), inputs_of(fused), &read.input);
    find_values(outputs_of(node), outputs_of(fused), &read.output);
    OrtOp* const stock = stock_of(node, read);
    return new Compiled(std::move(read), settings, maker, stock);
  }

  /// ONNX Runtime's kernel for calls of few rows; null where there are none, and for a row of RotaryEmbedding, because
  /// the way to the kernel takes as long as what it saves.
  OrtOp* stock_of(const OrtNode* node, const Node& read) {
    const auto end = read.output.begin() + read.outputs;
    const bool has_outputs = std::find(read.output.begin(), end, -1) == end;
    if (read.last_level_row < read.first_level_row || read.kind == Kind::kRotary || !has_outputs) return nullptr;
    if (maker == nullptr) maker = std::make_shared<StockMaker>();
    OrtOp* const stock = maker->make(node, read);
    if (stock != nullptr)
      say(settings, logger,
          "gives " + read.name + " back where few rows or keys come, for which ONNX Runtime is as fast");
    return stock;
  }

  const Settings settings;
  const OrtLogger* const logger;
  std::shared_ptr<StockMaker> maker;  // from the first node on that needs it
};

// ---- What makes it --------------------------------------------------------------------------------------------------

OrtStatus* find_devices(OrtEpFactory* self, const OrtHardwareDevice* const* devices, size_t n, OrtEpDevice** result,
                        size_t most, size_t* count) noexcept {
  *count = 0;
  return guarded([&] {
    for (size_t i = 0; i < n && *count < most; ++i) {
      if (host.api->HardwareDevice_Type(devices[i]) == OrtHardwareDeviceType_CPU)
        check(host.ep->CreateEpDevice(self, devices[i], nullptr, nullptr, &result[(*count)++]));
    }
  });
}

OrtStatus* create(OrtEpFactory*, const OrtHardwareDevice* const*, const OrtKeyValuePairs* const*, size_t,
                  const OrtSessionOptions* options, const OrtLogger* logger, OrtEp** ep) noexcept {
  *ep = nullptr;
  return guarded([&] {
    const Settings settings = read_settings(options);
    const sa::Target* target = nullptr;
    (void)sa::default_target(&target);
    say(settings, logger, std::string("version ") + sa::version() + ", " + sa::target_name(*target));
    *ep = new Provider(settings, logger);
  });
}

struct Factory : OrtEpFactory {
  Factory() : OrtEpFactory{} {
    ort_version_supported = kApiVersion;
    GetName = [](const OrtEpFactory*) noexcept -> const char* { return kName; };
    GetVendor = [](const OrtEpFactory*) noexcept -> const char* { return "simdattn"; };
    GetVendorId = [](const OrtEpFactory*) noexcept -> uint32_t { return 0; };
    GetVersion = [](const OrtEpFactory*) noexcept -> const char* { return sa::version(); };
    GetSupportedDevices = find_devices;
    CreateEp = create;
    ReleaseEp = [](OrtEpFactory*, OrtEp* ep) noexcept { delete static_cast<Provider*>(ep); };
    // All memory is the CPU's, which ONNX Runtime has.
    CreateAllocator = [](OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*,
                         OrtAllocator** a) noexcept -> OrtStatus* {
      *a = nullptr;
      return nullptr;
    };
    ReleaseAllocator = [](OrtEpFactory*, OrtAllocator*) noexcept {};
    CreateDataTransfer = [](OrtEpFactory*, OrtDataTransferImpl** transfer) noexcept -> OrtStatus* {
      *transfer = nullptr;
      return nullptr;
    };
    IsStreamAware = [](const OrtEpFactory*) noexcept { return false; };
  }
};

/// A version that has no provider by this interface gets a status by the functions that it has.
OrtStatus* too_old(const OrtApiBase* base) {
  const OrtApi* const old = base->GetApi(1);
  const std::string text =
      std::string("simdattn: needs ONNX Runtime 1.23 or later; this is ") + base->GetVersionString();
  return old != nullptr ? old->CreateStatus(ORT_NOT_IMPLEMENTED, text.c_str()) : nullptr;
}

}  // namespace
}  // namespace simdattn_onnxruntime

extern "C" {

__attribute__((visibility("default"))) OrtStatus* CreateEpFactories(const char*, const OrtApiBase* base,
                                                                    const OrtLogger*, OrtEpFactory** factories,
                                                                    size_t most, size_t* count) {
  using namespace simdattn_onnxruntime;
  *count = 0;
  const OrtApi* const api = base->GetApi(kApiVersion);
  if (api == nullptr) return too_old(base);
  host.api = api;
  host.ep = api->GetEpApi();
  int major = 0;
  (void)std::sscanf(base->GetVersionString(), "%d.%d", &major, &host.minor);
  if (major > 1) host.minor = 1 << 20;
  return guarded([&] {
    if (most < 1) fail(ORT_INVALID_ARGUMENT, "there is no room for a factory");
    factories[0] = new Factory;
    *count = 1;
  });
}

__attribute__((visibility("default"))) OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) {
  delete static_cast<simdattn_onnxruntime::Factory*>(factory);
  return nullptr;
}
}
