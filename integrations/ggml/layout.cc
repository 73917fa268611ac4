#include "layout.h"

#include <dlfcn.h>
#include <ggml.h>

#include <initializer_list>
#include <utility>

#include "host.h"

namespace simdattn_ggml {
namespace {

// ---- Probes ---------------------------------------------------------------------------------------------------------

thread_local int calls, called;

/// What stands at word I of a fake struct. Its callers pass arguments and use results of many types; it ignores the
/// ones and gives 0 for the others, which the calling conventions of all systems with shared libraries allow.
template <int I>
void* probe() {
  ++calls;
  called = I;
  return nullptr;
}
template <int... I>
Words probes(std::integer_sequence<int, I...>) {
  return {reinterpret_cast<void*>(probe<I>)...};
}
Words probes() { return probes(std::make_integer_sequence<int, kWords>()); }

/// The word that `call` calls, as a function of a fake struct; -1 if it calls not exactly one.
template <class Struct, class F>
int function(const F& call) {
  Words fake = probes();
  calls = 0;
  call(reinterpret_cast<Struct*>(fake.data()));
  return calls == 1 ? called : -1;
}

/// The word that `read` returns; -1 if it returns none of them, or calls something.
template <class Struct, class F>
int value(const F& read) {
  Words fake = probes();
  calls = 0;
  const void* word = read(reinterpret_cast<Struct*>(fake.data()));
  for (int i = 0; i < kWords; ++i) {
    if (fake[static_cast<size_t>(i)] == word && calls == 0) return i;
  }
  return -1;
}

bool all_found_and_different(std::initializer_list<int> places) {
  for (const int* a = places.begin(); a != places.end(); ++a) {
    if (*a < 0) return false;
    for (const int* b = places.begin(); b != a; ++b) {
      if (*a == *b) return false;
    }
  }
  return true;
}

// ---- The structs ----------------------------------------------------------------------------------------------------

bool find_backend(Layout* layout) {
  auto& l = layout->backend;
  l.get_name = function<ggml_backend>([](ggml_backend_t x) { host.ggml_backend_name(x); });
  l.free = function<ggml_backend>([](ggml_backend_t x) { host.ggml_backend_free(x); });
  ggml_context* context = host.ggml_init({host.ggml_graph_overhead() + 4096, nullptr, true});
  if (context == nullptr) return false;
  ggml_cgraph* graph = host.ggml_new_graph(context);
  l.graph_compute =
      function<ggml_backend>([graph](ggml_backend_t x) { host.ggml_backend_graph_compute_async(x, graph); });
  host.ggml_free(context);
  l.guid = value<ggml_backend>([](ggml_backend_t x) -> const void* { return host.ggml_backend_guid(x); });
  l.device = value<ggml_backend>([](ggml_backend_t x) -> const void* { return host.ggml_backend_get_device(x); });
  return all_found_and_different({l.get_name, l.free, l.graph_compute, l.guid, l.device});
}

bool find_device(Layout* layout) {
  using Device = ggml_backend_device;
  using D = ggml_backend_dev_t;
  auto& l = layout->device;
  l.get_name = function<Device>([](D x) { host.ggml_backend_dev_name(x); });
  l.get_description = function<Device>([](D x) { host.ggml_backend_dev_description(x); });
  l.get_memory = function<Device>([](D x) {
    size_t free = 0, total = 0;
    host.ggml_backend_dev_memory(x, &free, &total);
  });
  l.get_type = function<Device>([](D x) { host.ggml_backend_dev_type(x); });
  l.get_props = function<Device>([](D x) {
    union {  // the host's struct may be larger
      ggml_backend_dev_props props;
      char bytes[1024];
    } room = {};
    host.ggml_backend_dev_get_props(x, &room.props);
  });
  l.init_backend = function<Device>([](D x) { host.ggml_backend_dev_init(x, nullptr); });
  l.get_buffer_type = function<Device>([](D x) { host.ggml_backend_dev_buffer_type(x); });
  l.buffer_from_host_ptr = function<Device>([](D x) { host.ggml_backend_dev_buffer_from_host_ptr(x, nullptr, 0, 0); });
  l.supports_op = function<Device>([](D x) { host.ggml_backend_dev_supports_op(x, nullptr); });
  l.supports_buft = function<Device>([](D x) { host.ggml_backend_dev_supports_buft(x, nullptr); });
  l.registration = value<Device>([](D x) -> const void* { return host.ggml_backend_dev_backend_reg(x); });
  return all_found_and_different({l.get_name, l.get_description, l.get_memory, l.get_type, l.get_props, l.init_backend,
                                  l.get_buffer_type, l.buffer_from_host_ptr, l.supports_op, l.supports_buft,
                                  l.registration});
}

bool find_registration(Layout* layout) {
  using Registration = ggml_backend_reg;
  auto& l = layout->registration;
  l.get_name = function<Registration>([](ggml_backend_reg_t x) { host.ggml_backend_reg_name(x); });
  l.get_device_count = function<Registration>([](ggml_backend_reg_t x) { host.ggml_backend_reg_dev_count(x); });
  l.get_device = function<Registration>([](ggml_backend_reg_t x) { host.ggml_backend_reg_dev_get(x, 0); });
  l.get_proc_address =
      function<Registration>([](ggml_backend_reg_t x) { host.ggml_backend_reg_get_proc_address(x, ""); });
  // Word 0 holds the version of the interface, which no function returns.
  return all_found_and_different({0, l.get_name, l.get_device_count, l.get_device, l.get_proc_address});
}

}  // namespace

const char* find_layout(Layout* layout) {
  if (!find_registration(layout)) return "this ggml's struct of a registration is not known";
  if (!find_device(layout)) return "this ggml's struct of a device is not known";
  if (!find_backend(layout)) return "this ggml's struct of a backend is not known";
  return nullptr;
}

bool same_file(const void* a, const void* b) {
  Dl_info x, y;
  return dladdr(a, &x) != 0 && dladdr(b, &y) != 0 && x.dli_fbase == y.dli_fbase;
}

const char* check_layout(const Layout& layout, ggml_backend_dev_t cpu) {
  ggml_backend_reg_t registration = host.ggml_backend_dev_backend_reg(cpu);
  const auto is = [](const void* member, const void* expected) { return member != nullptr && member == expected; };
  if (!is(member<void*>(cpu, layout.device.registration), registration))
    return "the CPU device's struct is not as found";
  const auto name = member<const char* (*)(ggml_backend_dev_t)>(cpu, layout.device.get_name);
  const auto init = member<ggml_backend_t (*)(ggml_backend_dev_t, const char*)>(cpu, layout.device.init_backend);
  const auto address =
      member<void* (*)(ggml_backend_reg_t, const char*)>(registration, layout.registration.get_proc_address);
  if (!same_file(name, init) || !same_file(name, address))
    return "the CPU device's functions lie in more than one file";
  if (name(cpu) != host.ggml_backend_dev_name(cpu)) return "the CPU device's functions are not those that ggml calls";
  const char* const one = "ggml_backend_set_n_threads";
  if (!is(address(registration, one), host.ggml_backend_reg_get_proc_address(registration, one)))
    return "the CPU backend's functions are not those that ggml calls";
  const int version = *reinterpret_cast<const int*>(registration);
  if (version < 1 || version > 1000) return "the CPU backend's registration has no version";
  return nullptr;
}

}  // namespace simdattn_ggml
