#include "device.h"

#include <ggml.h>

#include <cstring>

#include "host.h"
#include "runner.h"

namespace simdattn_ggml {
namespace {

// ggml's structs, filled in where the layout says; the words stay as long as the process.
Words registration_words{}, device_words{};
Layout layout;
ggml_backend_dev_t cpu;
bool has_device;

ggml_backend_reg_t our_registration() { return reinterpret_cast<ggml_backend_reg_t>(registration_words.data()); }
ggml_backend_dev_t our_device() { return reinterpret_cast<ggml_backend_dev_t>(device_words.data()); }

template <class Struct, class F>
void set(Struct* words, int place, F* function) {
  member<F*>(words, place) = function;
}

// ---- Backend --------------------------------------------------------------------------------------------------------

/// Begins with ggml's struct. Its graphs run on a CPU backend of its own, on ggml's threads.
struct Backend {
  Words words{};
  ggml_backend_t cpu = nullptr;
  Runner runner;
};
Backend* of(ggml_backend_t backend) { return reinterpret_cast<Backend*>(backend); }

const char* name(ggml_backend_t) { return "simdattn"; }
void release(ggml_backend_t backend) {
  host.ggml_backend_free(of(backend)->cpu);
  delete of(backend);
}
ggml_status compute(ggml_backend_t backend, ggml_cgraph* graph) {
  return of(backend)->runner.run(of(backend)->cpu, graph, host.ggml_backend_graph_compute);
}
template <class F>
F cpu_function(const char* function) {
  return reinterpret_cast<F>(host.ggml_backend_reg_get_proc_address(host.ggml_backend_dev_backend_reg(cpu), function));
}
void set_n_threads(ggml_backend_t backend, int n) {
  cpu_function<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads")(of(backend)->cpu, n);
}
void set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void* data) {
  cpu_function<ggml_backend_set_abort_callback_t>("ggml_backend_set_abort_callback")(of(backend)->cpu, callback, data);
}

ggml_backend_t init(ggml_backend_dev_t, const char*) {
  static ggml_guid guid = {0x73, 0x69, 0x6d, 0x64, 0x61, 0x74, 0x74, 0x6e,
                           0x2d, 0x67, 0x67, 0x6d, 0x6c, 0x2d, 0x30, 0x31};
  auto* const backend = new Backend;
  backend->cpu = host.ggml_backend_dev_init(cpu, nullptr);
  if (backend->cpu == nullptr) return delete backend, nullptr;
  const auto& at = layout.backend;
  set(backend, at.get_name, name);
  set(backend, at.free, release);
  set(backend, at.graph_compute, compute);
  member<void*>(backend, at.guid) = &guid;
  member<void*>(backend, at.device) = our_device();
  return reinterpret_cast<ggml_backend_t>(backend);
}

// ---- Device: the CPU's but for its name, its type, and what it supports
// -------------------------------------------------

const char* device_name(ggml_backend_dev_t) { return "simdattn"; }
const char* description(ggml_backend_dev_t) { return "simdattn: attention on the CPU"; }
void memory(ggml_backend_dev_t, size_t* free, size_t* total) { *free = *total = 0; }
enum ggml_backend_dev_type type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_ACCEL; }
void props(ggml_backend_dev_t device, ggml_backend_dev_props* p) {
  host.ggml_backend_dev_get_props(cpu, p);  // the host's struct may have other members behind these
  p->name = device_name(device);
  p->description = description(device);
  memory(device, &p->memory_free, &p->memory_total);
  p->type = type(device);
}
ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t) { return host.ggml_backend_dev_buffer_type(cpu); }
ggml_backend_buffer_t from_host(ggml_backend_dev_t, void* data, size_t size, size_t largest) {
  return host.ggml_backend_dev_buffer_from_host_ptr(cpu, data, size, largest);
}
bool supports_buffer_type(ggml_backend_dev_t, ggml_backend_buffer_type_t t) {
  return host.ggml_backend_buft_is_host(t);
}

bool computes_nothing(const ggml_tensor& node) {
  const char* const op = host.ggml_op_name(node.op);
  for (const char* nothing : {"NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE"}) {
    if (std::strcmp(op, nothing) == 0) return true;
  }
  return false;
}
bool supports(ggml_backend_dev_t, const ggml_tensor* node) {
  const Operator* const op = operator_of(*node);
  Call call;
  return op != nullptr ? op->plan(*node, true, &call) : computes_nothing(*node);
}

// ---- Registration ---------------------------------------------------------------------------------------------------

const char* registration_name(ggml_backend_reg_t) { return "simdattn"; }
size_t device_count(ggml_backend_reg_t) { return has_device ? 1 : 0; }
ggml_backend_dev_t device(ggml_backend_reg_t, size_t) { return our_device(); }
void* address(ggml_backend_reg_t, const char* function) {
  if (std::strcmp(function, "ggml_backend_set_n_threads") == 0) return reinterpret_cast<void*>(set_n_threads);
  if (std::strcmp(function, "ggml_backend_set_abort_callback") == 0) return reinterpret_cast<void*>(set_abort_callback);
  return nullptr;
}

void fill_registration() {
  Words& words = registration_words;
  const auto& at = layout.registration;
  // What the host compares with its own. Nothing else here depends on it.
  *reinterpret_cast<int*>(words.data()) = *reinterpret_cast<const int*>(host.ggml_backend_dev_backend_reg(cpu));
  set(&words, at.get_name, registration_name);
  set(&words, at.get_device_count, device_count);
  set(&words, at.get_device, device);
  set(&words, at.get_proc_address, address);
}

void fill_device() {
  Words& words = device_words;
  const auto& at = layout.device;
  set(&words, at.get_name, device_name);
  set(&words, at.get_description, description);
  set(&words, at.get_memory, memory);
  set(&words, at.get_type, type);
  set(&words, at.get_props, props);
  set(&words, at.init_backend, init);
  set(&words, at.get_buffer_type, buffer_type);
  set(&words, at.buffer_from_host_ptr, from_host);
  set(&words, at.supports_op, supports);
  set(&words, at.supports_buft, supports_buffer_type);
  member<void*>(&words, at.registration) = our_registration();
}

}  // namespace

ggml_backend_reg_t registration(const Layout& found, ggml_backend_dev_t cpu_device, bool with_device) {
  if (cpu != nullptr) return our_registration();
  layout = found;
  cpu = cpu_device;
  has_device = with_device;
  fill_registration();
  fill_device();
  return our_registration();
}

}  // namespace simdattn_ggml
