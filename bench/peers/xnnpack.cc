// XNNPACK: its softmax operator, made once.
#include <xnnpack.h>

#include <memory>

#include "bench/peers/peer.h"

namespace bench {
namespace {

Call make(const Work& w) {
  static const bool ready = xnn_initialize(nullptr) == xnn_status_success;
  if (!ready) return {};
  const size_t n = static_cast<size_t>(w.n), rows = static_cast<size_t>(w.n_q);
  xnn_operator_t op = nullptr;
  const float* x = static_cast<const float*>(w.q);
  float* out = static_cast<float*>(w.out);
#ifdef BENCH_XNNPACK_RESHAPE
  if (xnn_create_softmax_nc_f32(0, &op) != xnn_status_success ||
      xnn_reshape_softmax_nc_f32(op, n, n, n, rows, nullptr) != xnn_status_success ||
      xnn_setup_softmax_nc_f32(op, x, out) != xnn_status_success) {
    return {};
  }
#else
  if (xnn_create_softmax_nc_f32(n, n, n, 0, &op) != xnn_status_success ||
      xnn_setup_softmax_nc_f32(op, rows, x, out, nullptr) != xnn_status_success) {
    return {};
  }
#endif
  const std::shared_ptr<xnn_operator> keep(op, [](xnn_operator* o) { (void)xnn_delete_operator(o); });
  return {[keep] { (void)xnn_run_operator(keep.get(), nullptr); }};
}

bool can(const Work& w) { return w.kind == Kind::kSoftmax && w.threads == 1; }

std::string settings() { return "XNNPACK (it has no version), softmax_nc_f32, operator made once, no thread pool"; }

const Peer kPeers[] = {{"xnnpack", settings, can, make}};

}  // namespace
}  // namespace bench

const bench::Peer* simdattn_bench_peers(size_t* count) {
  *count = 1;
  return bench::kPeers;
}
