// Where members stand in structs that ggml's public headers only declare.
//
// A table of layouts by version was rejected: ggml changes them within one interface version, and a host may be newer
// than this file. Instead the public functions of ggml are called with a struct full of probes, and the probe that is
// called tells the place.
#pragma once

#include <ggml-backend.h>

#include <array>

namespace simdattn_ggml {

/// Words that a struct of this plug-in has. ggml's have up to 20; those that nobody fills in are null, which stands for
/// "optional".
inline constexpr int kWords = 48;
using Words = std::array<void*, kWords>;

/// Places in words, counted from 0.
struct Layout {
  struct {
    int get_name, free, graph_compute, guid, device;
  } backend;
  struct {
    int get_name, get_description, get_memory, get_type, get_props, init_backend, get_buffer_type, buffer_from_host_ptr,
        supports_op, supports_buft, registration;
  } device;
  struct {
    int get_name, get_device_count, get_device, get_proc_address;
  } registration;
};

/// The layout of the ggml in this process. Returns null, or a sentence that says what is not as it should be.
const char* find_layout(Layout* layout);

/// Compares the layout with the CPU device that ggml made itself. Returns null, or a sentence.
const char* check_layout(const Layout& layout, ggml_backend_dev_t cpu);

/// Member `place` of a struct of ggml's, or of this plug-in's.
template <class T, class Struct>
T& member(Struct* object, int place) {
  static_assert(sizeof(T) == sizeof(void*), "a member is a word");
  return reinterpret_cast<T&>(reinterpret_cast<void**>(object)[place]);
}

/// Whether both addresses lie in the same loaded file.
bool same_file(const void* a, const void* b);
template <class F, class G>
bool same_file(F* a, G* b) {
  return same_file(reinterpret_cast<const void*>(a), reinterpret_cast<const void*>(b));
}

}  // namespace simdattn_ggml
