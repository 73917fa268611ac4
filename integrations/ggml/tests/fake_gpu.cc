// A GPU that is none: a device of the type GPU, made of the CPU's buffers, that computes what it claims with a CPU
// backend of its own. Programs find it where it lies as libggml-vulkan.so in their working folder. It prints how many
// nodes it got and whether one was not ggml's.
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "host.h"
#include "layout.h"

namespace {

using simdattn_ggml::Layout;
using simdattn_ggml::member;
using simdattn_ggml::Words;

Layout layout;
Words registration_words{}, device_words{};
long attention_nodes = 0, strange_nodes = 0;

template <class Struct, class F>
void set(Struct* words, int place, F* function) {
  member<F*>(words, place) = function;
}
ggml_backend_dev_t device() { return reinterpret_cast<ggml_backend_dev_t>(device_words.data()); }

struct Backend {
  Words words{};
  ggml_backend_t cpu = nullptr;
};
Backend* of(ggml_backend_t backend) { return reinterpret_cast<Backend*>(backend); }

const char* name(ggml_backend_t) { return "Fake0"; }
void release(ggml_backend_t backend) { delete of(backend); }
ggml_status compute(ggml_backend_t backend, ggml_cgraph* graph) {
  for (int i = 0, n = ggml_graph_n_nodes(graph); i < n; ++i) {
    const char* const op = ggml_op_name(ggml_graph_node(graph, i)->op);
    attention_nodes += std::strcmp(op, "FLASH_ATTN_EXT") == 0 ? 1 : 0;
    strange_nodes += std::strcmp(op, "CUSTOM") == 0 ? 1 : 0;
  }
  return ggml_backend_graph_compute(of(backend)->cpu, graph);
}
/// The CPU backend is made on the spot: once the plug-in is loaded, it would be wrapped.
ggml_backend_t stock_cpu() {
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  ggml_backend_reg_t registration = ggml_backend_dev_backend_reg(cpu);
  ggml_backend_t backend = ggml_backend_dev_init(cpu, nullptr);
  const auto use_reference = reinterpret_cast<void (*)(ggml_backend_t, bool)>(
      ggml_backend_reg_get_proc_address(registration, "ggml_backend_cpu_set_use_ref"));
  if (use_reference != nullptr) use_reference(backend, true);  // not ours, whoever made it
  return backend;
}
ggml_backend_t init(ggml_backend_dev_t, const char*) {
  static ggml_guid guid = {0xfa, 0xce};
  auto* const backend = new Backend;
  backend->cpu = stock_cpu();
  set(backend, layout.backend.get_name, name);
  set(backend, layout.backend.free, release);
  set(backend, layout.backend.graph_compute, compute);
  member<void*>(backend, layout.backend.guid) = &guid;
  member<void*>(backend, layout.backend.device) = device();
  return reinterpret_cast<ggml_backend_t>(backend);
}

const char* device_name(ggml_backend_dev_t) { return "Fake0"; }
void memory(ggml_backend_dev_t, size_t* free, size_t* total) { *free = *total = size_t{8} << 30; }
enum ggml_backend_dev_type type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }
void props(ggml_backend_dev_t d, ggml_backend_dev_props* p) {
  p->name = p->description = device_name(d);
  memory(d, &p->memory_free, &p->memory_total);
  p->type = type(d);
  p->caps.buffer_from_host_ptr = true;
}
ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t) { return ggml_backend_cpu_buffer_type(); }
ggml_backend_buffer_t from_host(ggml_backend_dev_t, void* data, size_t size, size_t) {
  return ggml_backend_cpu_buffer_from_ptr(data, size);
}
/// With FAKE_GPU=no-attention attention is left to the CPU.
bool supports(ggml_backend_dev_t, const ggml_tensor* node) {
  static const char* const choice = std::getenv("FAKE_GPU");
  return choice == nullptr || std::strcmp(choice, "no-attention") != 0 ||
         std::strcmp(ggml_op_name(node->op), "FLASH_ATTN_EXT") != 0;
}
bool supports_buffer_type(ggml_backend_dev_t, ggml_backend_buffer_type_t t) { return ggml_backend_buft_is_host(t); }

const char* registration_name(ggml_backend_reg_t) { return "Fake"; }
size_t device_count(ggml_backend_reg_t) { return 1; }
ggml_backend_dev_t get_device(ggml_backend_reg_t, size_t) { return device(); }
void* address(ggml_backend_reg_t, const char*) { return nullptr; }

struct LastLine {
  ~LastLine() {
    std::fprintf(stderr, "fake GPU: %ld nodes of attention, %ld strange nodes\n", attention_nodes, strange_nodes);
  }
} last_line;

}  // namespace

/// FAKE_GPU_VERSION: that of the interface, as the program wants it; this file is loaded before the CPU backend that
/// tells it.
extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) {
  const char* const version = std::getenv("FAKE_GPU_VERSION");
  if (simdattn_ggml::find_host(__builtin_return_address(0)) != nullptr) return nullptr;
  if (find_layout(&layout) != nullptr || version == nullptr) return nullptr;
  *reinterpret_cast<int*>(registration_words.data()) = std::atoi(version);
  set(&registration_words, layout.registration.get_name, registration_name);
  set(&registration_words, layout.registration.get_device_count, device_count);
  set(&registration_words, layout.registration.get_device, get_device);
  set(&registration_words, layout.registration.get_proc_address, address);
  set(&device_words, layout.device.get_name, device_name);
  set(&device_words, layout.device.get_description, device_name);
  set(&device_words, layout.device.get_memory, memory);
  set(&device_words, layout.device.get_type, type);
  set(&device_words, layout.device.get_props, props);
  set(&device_words, layout.device.init_backend, init);
  set(&device_words, layout.device.get_buffer_type, buffer_type);
  set(&device_words, layout.device.buffer_from_host_ptr, from_host);
  set(&device_words, layout.device.supports_op, supports);
  set(&device_words, layout.device.supports_buft, supports_buffer_type);
  member<void*>(&device_words, layout.device.registration) = registration_words.data();
  return reinterpret_cast<ggml_backend_reg_t>(registration_words.data());
}
