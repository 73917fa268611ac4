#include "bench/peers.h"

#if !defined(_WIN32)
#include <dlfcn.h>
#endif
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "simdattn/simdattn.h"

namespace bench {
namespace {

struct Loaded {
  std::vector<const Peer*> peers;
  std::vector<std::pair<std::string, std::string>> missing;
  bool modules = false;

  Loaded() {
    size_t count = 0;
    const Peer* loops = simdattn_bench_peers(&count);
    for (size_t i = 0; i < count; ++i) peers.push_back(loops + i);
  }
};

Loaded& loaded() {
  static Loaded l;
  return l;
}

bool runs_avx512() {
  for (const simdattn::Target* t : simdattn::targets()) {
    if (simdattn::target_runnable(*t) && std::strstr(simdattn::target_name(*t), "avx3") != nullptr) return true;
  }
  return false;
}

}  // namespace

void load_peers() {
#if !defined(_WIN32)
  // OpenBLAS takes new AMD CPUs for Haswell. Whatever the environment says, the report is about its best.
  if (runs_avx512()) setenv("OPENBLAS_CORETYPE", "SkylakeX", 1);
  loaded().modules = true;
  for (const char* name : {"eigen", "openblas", "onednn", "xnnpack", "ggml", "onnxruntime", "numkong", "pytorch"}) {
    const std::string path = std::string(BENCH_PEERS_DIR "/peer_") + name + ".so";
    if (access(path.c_str(), R_OK) != 0) {
      loaded().missing.emplace_back(name, "not built: its package was not found");
      continue;
    }
    void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    using Entry = const Peer*(size_t*);
    const auto entry = module == nullptr ? nullptr : reinterpret_cast<Entry*>(dlsym(module, "simdattn_bench_peers"));
    if (entry == nullptr) {
      loaded().missing.emplace_back(name, dlerror());
      continue;
    }
    size_t count = 0;
    const Peer* peers = entry(&count);
    for (size_t i = 0; i < count; ++i) loaded().peers.push_back(peers + i);
  }
#endif
}

bool peers_loaded() { return loaded().modules; }

std::vector<std::pair<std::string, std::string>> missing_peers() { return loaded().missing; }

std::vector<std::pair<std::string, std::string>> peer_settings() {
  std::vector<std::pair<std::string, std::string>> all;
  for (const Peer* p : loaded().peers) all.emplace_back(p->name, p->settings());
  return all;
}

std::vector<const Peer*> peers_for(const Work& work) {
  std::vector<const Peer*> able;
  if (work.kind == Kind::kNone) return able;
  for (const Peer* p : loaded().peers) {
    // Of these libraries one has an operator with a state.
    if (work.kind == Kind::kState && std::strcmp(p->name, "ggml") != 0) continue;
    const bool knows_masks = std::strcmp(p->name, "loops") == 0 || std::strcmp(p->name, "ggml_flash") == 0;
    if ((!work.masked || knows_masks) && p->can(work)) able.push_back(p);
  }
  return able;
}

}  // namespace bench
