#include "interpose.h"

#include <ggml.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "host.h"
#include "runner.h"

namespace simdattn_ggml {
namespace {

using Init = ggml_backend_t (*)(ggml_backend_dev_t, const char*);
using Address = void* (*)(ggml_backend_reg_t, const char*);
using Free = void (*)(ggml_backend_t);
using UseReference = void (*)(ggml_backend_t, bool);

/// What ggml has where ours stand. Written once, before any of ours can be called.
Layout layout;
Init stock_init;
Address stock_address;
// Every CPU backend of a process has the same functions.
Runner::Compute stock_compute;
Free stock_free;
UseReference stock_use_reference;

struct Backend {
  Runner runner;
  std::atomic<bool> reference{false};  // the host wants ggml's own code
};

std::mutex mutex;
/// Never destroyed, because hosts free backends while the process ends.
std::unordered_map<ggml_backend_t, std::unique_ptr<Backend>>& backends() {
  static auto* const all = new std::unordered_map<ggml_backend_t, std::unique_ptr<Backend>>;
  return *all;
}
Backend* find(ggml_backend_t backend) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto i = backends().find(backend);
  return i != backends().end() ? i->second.get() : nullptr;
}

ggml_status our_compute(ggml_backend_t backend, ggml_cgraph* graph) {
  Backend* const b = find(backend);
  if (b == nullptr || b->reference) return stock_compute(backend, graph);
  return b->runner.run(backend, graph, stock_compute);
}

void our_free(ggml_backend_t backend) {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    backends().erase(backend);
  }
  stock_free(backend);
}

ggml_backend_t our_init(ggml_backend_dev_t device, const char* parameters) {
  ggml_backend_t backend = stock_init(device, parameters);
  if (backend == nullptr) return backend;
  auto& compute = member<Runner::Compute>(backend, layout.backend.graph_compute);
  auto& release = member<Free>(backend, layout.backend.free);
  if (member<void*>(backend, layout.backend.device) != device || !same_file(compute, stock_init) ||
      !same_file(release, stock_init))
    return backend;
  const std::lock_guard<std::mutex> lock(mutex);
  if (stock_compute == nullptr) {
    stock_compute = compute;
    stock_free = release;
  }
  if (compute != stock_compute || release != stock_free) return backend;
  backends()[backend] = std::make_unique<Backend>();
  compute = our_compute;
  release = our_free;
  return backend;
}

void our_use_reference(ggml_backend_t backend, bool yes) {
  if (Backend* const b = find(backend)) b->reference = yes;
  stock_use_reference(backend, yes);
}

/// Who compares the CPU backend with ggml's reference, as test-backend-ops does, must not get ours twice.
void* our_address(ggml_backend_reg_t registration, const char* name) {
  void* const address = stock_address(registration, name);
  if (address == nullptr || std::strcmp(name, "ggml_backend_cpu_set_use_ref") != 0) return address;
  stock_use_reference = reinterpret_cast<UseReference>(address);
  return reinterpret_cast<void*>(our_use_reference);
}

}  // namespace

const char* interpose(const Layout& found, ggml_backend_dev_t cpu) {
  auto& init = member<Init>(cpu, found.device.init_backend);
  if (init == our_init) return nullptr;
  if (const char* wrong = check_layout(found, cpu)) return wrong;
  layout = found;
  auto& address = member<Address>(host.ggml_backend_dev_backend_reg(cpu), found.registration.get_proc_address);
  stock_init = init;
  stock_address = address;
  init = our_init;
  address = our_address;
  return nullptr;
}

}  // namespace simdattn_ggml
