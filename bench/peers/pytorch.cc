// PyTorch's C++ library. SDPA chooses the flash kernel of the CPU from 2.1 on; before, products and softmax.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#if __has_include(<torch/version.h>)
#include <torch/version.h>
#else
#include <torch/csrc/api/include/torch/version.h>
#endif

#include <cstring>
#include <memory>

#include "bench/peers/peer.h"

namespace bench {
namespace {

using simdattn::DType;

at::ScalarType type_of(DType t) {
  return t == DType::kF32 ? at::kFloat : t == DType::kBF16 ? at::kBFloat16 : at::kHalf;
}

at::Tensor wrap(const void* data, at::IntArrayRef shape, at::ScalarType type) {
  return at::from_blob(const_cast<void*>(data), shape, at::TensorOptions().dtype(type));
}

Call make(const Work& w) {
  const c10::InferenceMode guard;
  const auto t = type_of(w.type);
  const int threads = w.threads;
  const auto call = [threads](auto body) -> Call {
    return {[=]() mutable {
      const c10::InferenceMode mode;
      if (at::get_num_threads() != threads) at::set_num_threads(threads);
      body();
    }};
  };
  switch (w.kind) {
    case Kind::kSoftmax: {
      const at::Tensor x = wrap(w.q, {w.n_q, w.n}, at::kFloat);
      at::Tensor out = wrap(w.out, {w.n_q, w.n}, at::kFloat);
      return call([=]() mutable { at::_softmax_out(out, x, 1, false); });
    }
    case Kind::kScores: {
      const at::Tensor q = wrap(w.q, {w.n_q, w.d}, t).mul(w.scale), k = wrap(w.k, {w.n, w.d}, t).t();
      at::Tensor out = wrap(w.out, {w.n_q, w.n}, at::kFloat);
      return call([=]() mutable { at::mm_out(out, q, k); });
    }
    case Kind::kWeightedValues: {
      const at::Tensor p = wrap(w.q, {w.n_q, w.n}, at::kFloat), v = wrap(w.v, {w.n, w.d}, at::kFloat);
      at::Tensor out = wrap(w.out, {w.n_q, w.d}, at::kFloat);
      return call([=]() mutable { at::mm_out(out, p, v); });
    }
    default: {
      const int64_t rows = w.n_q == 1 ? w.heads / w.kv_heads : w.n_q;  // decode: the group's heads are rows
      const at::Tensor q = wrap(w.q, {1, w.kv_heads, rows, w.d}, t), k = wrap(w.k, {1, w.kv_heads, w.n, w.d}, t),
                       v = wrap(w.v, {1, w.kv_heads, w.n, w.d}, t);
      const auto result = std::make_shared<at::Tensor>();
      const bool causal = w.causal && w.n_q > 1;
      Call c = call([=] {
#if TORCH_VERSION_MAJOR >= 2
        *result = at::scaled_dot_product_attention(q, k, v, {}, 0.0, causal, w.scale);
#else
        *result = std::get<0>(at::_scaled_dot_product_attention(q, k, v, {}, 0.0, false, causal));
#endif
      });
      // Where the result stands is known after a call only: the time of copying it is not the peer's.
      const size_t bytes = static_cast<size_t>(w.heads * w.n_q * w.d) * (w.type == DType::kF32 ? 4 : 2);
      c.after = [=, out = w.out] { std::memcpy(out, result->contiguous().data_ptr(), bytes); };
      return c;
    }
  }
}

bool can(const Work& w) {
  switch (w.kind) {
    case Kind::kSoftmax: return true;
    case Kind::kScores:
    case Kind::kWeightedValues: return w.type == DType::kF32;
    case Kind::kAttention: {
      if (w.n_q > 1 && (w.kv_heads != w.heads || w.n != w.n_q)) return false;
#if TORCH_VERSION_MAJOR >= 2
      return true;
#else
      return w.type == DType::kF32;  // no 16-bit products on the CPU that are faster than f32
#endif
    }
    default: return false;
  }
}

std::string settings() {
  return "PyTorch " TORCH_VERSION ", inference mode, outputs given; attention: " +
         std::string(TORCH_VERSION_MAJOR >= 2 ? "scaled_dot_product_attention" : "_scaled_dot_product_attention") +
         ", group folded into rows";
}

const Peer kPeers[] = {{"pytorch", settings, can, make}};

}  // namespace
}  // namespace bench

const bench::Peer* simdattn_bench_peers(size_t* count) {
  *count = 1;
  return bench::kPeers;
}
