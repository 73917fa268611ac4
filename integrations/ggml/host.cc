#include "host.h"

#include <dlfcn.h>

namespace simdattn_ggml {
namespace {

/// Stays open as long as the process: so does this file.
void* library;

}  // namespace

Host host;

void* host_function(const char* name) { return library != nullptr ? dlsym(library, name) : nullptr; }

const char* find_host(const void* caller) {
  Dl_info file;
  // A program is not opened by its name: then null stands for it and what it links.
  if (dladdr(caller, &file) != 0) library = dlopen(file.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) library = dlopen(nullptr, RTLD_LAZY);
#define SIMDATTN_GGML_FIND(name)                                           \
  host.name = reinterpret_cast<decltype(host.name)>(host_function(#name)); \
  if (host.name == nullptr) return #name;
  SIMDATTN_GGML_FUNCTIONS(SIMDATTN_GGML_FIND)
#undef SIMDATTN_GGML_FIND
  return nullptr;
}

}  // namespace simdattn_ggml
