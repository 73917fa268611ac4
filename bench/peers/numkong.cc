// NumKong: attention in bf16 by AMX, keys and values packed beforehand. It is headers alone, of which
// SIMDATTN_NUMKONG names the folder when the build is configured. Its causal function masks nothing in 7.6.0, so it
// is asked for rows that see all keys.
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "bench/peers/peer.h"

// Its functions are static, and only some are called here.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#define NK_TARGET_SAPPHIREAMX 1
#include <numkong/capabilities.h>
#include <numkong/types.h>

#include <numkong/attention/sapphireamx.h>
#pragma GCC diagnostic pop

namespace bench {
namespace {

/// Linux has given this process AMX: the benchmark asks for it.
bool permitted() {
  constexpr int kGetPermission = 0x1022, kTileData = 18;  // ARCH_GET_XCOMP_PERM
  unsigned long long features = 0;
  return syscall(SYS_arch_prctl, kGetPermission, &features) == 0 && (features >> kTileData & 1) != 0;
}

struct Freed {
  void operator()(void* p) const { std::free(p); }
};
template <class T>
std::shared_ptr<T> array(size_t bytes) {
  return {static_cast<T*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), Freed()};
}

template <bool kPacksAnew>
Call make(const Work& w) {
  const auto size = [](int64_t n) { return static_cast<nk_size_t>(n); };
  const std::shared_ptr<void> packed =
      array<char>(nk_attention_kv_packed_size_sapphireamx(size(w.kv_heads), size(w.d), size(w.n)));
  const std::shared_ptr<float> out = array<float>(sizeof(float) * size(w.heads * w.n_q * w.d));
  const auto pack = [w, size, packed] {
    nk_attention_pack_k_sapphireamx(static_cast<const nk_bf16_t*>(w.k), packed.get(), size(w.kv_heads), size(w.n),
                                    size(w.d));
    nk_attention_pack_v_sapphireamx(static_cast<const nk_bf16_t*>(w.v), packed.get(), size(w.kv_heads), size(w.n),
                                    size(w.d));
  };
  pack();
  return {[=] {
            if (kPacksAnew) pack();
            nk_attention_bf16_sapphireamx(static_cast<const nk_bf16_t*>(w.q), packed.get(), out.get(), size(w.heads),
                                          size(w.kv_heads), size(w.n_q), size(w.n), size(w.d), w.scale);
          },
          [=] {
            auto* to = static_cast<nk_bf16_t*>(w.out);
            for (int64_t i = 0; i < w.heads * w.n_q * w.d; ++i) to[i] = static_cast<nk_bf16_t>(out.get()[i]);
          }};
}

bool can(const Work& w) {
  return w.kind == Kind::kAttention && w.type == simdattn::DType::kBF16 && w.threads == 1 && !w.masked &&
         (!w.causal || w.n_q == 1) && w.d % 16 == 0 && w.d <= 256 && permitted();
}

template <bool kPacksAnew>
std::string settings() {
  return std::string("NumKong ") + std::to_string(NK_VERSION_MAJOR) + "." + std::to_string(NK_VERSION_MINOR) + "." +
         std::to_string(NK_VERSION_PATCH) + ", nk_attention_bf16_sapphireamx, f32 out; packing of keys and values " +
         (kPacksAnew ? "counted" : "not counted");
}

const Peer kPeers[] = {{"numkong", settings<true>, can, make<true>},
                       {"numkong_packed", settings<false>, can, make<false>}};

}  // namespace
}  // namespace bench

const bench::Peer* simdattn_bench_peers(size_t* count) {
  *count = 2;
  return bench::kPeers;
}
