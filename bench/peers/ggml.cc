// ggml: graphs of its own operators on its CPU backend, made once; inputs stand where they are.
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <limits>
#include <memory>
#include <vector>

#include "bench/peers/peer.h"
#include "lib/contract/dtypes.h"

namespace bench {
namespace {

using simdattn::DType;

ggml_type type_of(DType t) {
  return t == DType::kF32 ? GGML_TYPE_F32 : t == DType::kBF16 ? GGML_TYPE_BF16 : GGML_TYPE_F16;
}

ggml_backend_dev_t device() {
  static const ggml_backend_dev_t d = [] {
    ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    ggml_backend_load_all();
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  }();
  return d;
}

struct Graph {
  ggml_backend_t backend = nullptr;
  ggml_context* context = nullptr;
  ggml_cgraph* graph = nullptr;
  ggml_gallocr_t memory = nullptr;
  ggml_tensor* result = nullptr;
  std::vector<ggml_backend_buffer_t> wrapped;
  std::vector<std::vector<char>> arrays;  // inputs in the types and orders that ggml wants

  Graph() {
    context = ggml_init({.mem_size = size_t{1} << 20, .mem_buffer = nullptr, .no_alloc = true});
    graph = ggml_new_graph(context);
  }
  Graph(const Graph&) = delete;
  ~Graph() {
    if (memory != nullptr) ggml_gallocr_free(memory);
    for (ggml_backend_buffer_t b : wrapped) ggml_backend_buffer_free(b);
    ggml_free(context);
    if (backend != nullptr) ggml_backend_free(backend);
  }
  /// A tensor over an array that is there already; sizes begin with the innermost.
  ggml_tensor* input(ggml_type type, const void* data, int64_t a, int64_t b, int64_t c = 1) {
    ggml_tensor* t = ggml_new_tensor_3d(context, type, a, b, c);
    void* at = const_cast<void*>(data);
    const ggml_backend_buffer_t buffer =
        ggml_backend_dev_buffer_from_host_ptr(device(), at, ggml_nbytes(t), ggml_nbytes(t));
    ggml_backend_tensor_alloc(buffer, t, at);
    wrapped.push_back(buffer);
    return t;
  }
  char* array(size_t bytes) {
    arrays.emplace_back(bytes + 64);
    const uintptr_t at = reinterpret_cast<uintptr_t>(arrays.back().data());
    return reinterpret_cast<char*>((at + 63) / 64 * 64);
  }
  /// As f32, times a factor.
  const float* widened(const void* data, DType type, int64_t count, float factor) {
    float* out = reinterpret_cast<float*>(array(static_cast<size_t>(count) * 4));
    simdattn::with_storage(type, [&]<class T>(T) {
      for (int64_t i = 0; i < count; ++i) out[i] = factor * simdattn::to_f32(static_cast<const T*>(data)[i]);
    });
    return out;
  }
  /// Values as ggml keeps them without its flash kernel: keys innermost.
  const void* transposed(const void* v, DType type, int64_t heads, int64_t n, int64_t d) {
    char* out = array(static_cast<size_t>(heads * n * d) * (type == DType::kF32 ? 4 : 2));
    simdattn::with_storage(type, [&]<class T>(T) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t e = 0; e < d; ++e) {
            reinterpret_cast<T*>(out)[(h * d + e) * n + j] = static_cast<const T*>(v)[(h * n + j) * d + e];
          }
        }
      }
    });
    return out;
  }
  /// The first `count` numbers of the result, in another type.
  void copy_result(void* out, DType type, int64_t count) const {
    simdattn::with_storage(type, [&]<class T>(T) {
      const float* from = static_cast<const float*>(result->data);
      for (int64_t i = 0; i < count; ++i) static_cast<T*>(out)[i] = simdattn::from_f32<T>(from[i]);
    });
  }
  bool finish(ggml_tensor* r, int threads) {
    result = r;
    ggml_set_output(r);
    ggml_build_forward_expand(graph, r);
    backend = ggml_backend_dev_init(device(), nullptr);
    const auto set = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(device()), "ggml_backend_set_n_threads"));
    if (backend == nullptr || set == nullptr) return false;
    set(backend, threads);
    memory = ggml_gallocr_new(ggml_backend_get_default_buffer_type(backend));
    return ggml_gallocr_alloc_graph(memory, graph);
  }
};

ggml_tensor* mask_of(Graph& g, const Work& w) {
  if (!w.masked && (!w.causal || w.n_q == 1)) return nullptr;
  const int64_t rows = (w.n_q + 63) / 64 * 64;  // older versions want as many
  auto* m = reinterpret_cast<ggml_fp16_t*>(g.array(static_cast<size_t>(rows * w.n) * sizeof(ggml_fp16_t)));
  const ggml_fp16_t seen = ggml_fp32_to_fp16(0), hidden = ggml_fp32_to_fp16(-std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < w.n; ++j) {
      const bool sees = w.masked ? w.keep[i % w.n_q * w.n + j] != 0 : j <= i + w.n - w.n_q;
      m[i * w.n + j] = i < w.n_q && sees ? seen : hidden;
    }
  }
  return g.input(GGML_TYPE_F16, m, w.n, rows);
}

#ifdef BENCH_GGML_STATE
/// A graph with an operator for each layer. Its states are transposed, and new ones go to arrays of their own.
Call make_state(const Work& w) {
  const auto g = std::make_shared<Graph>();
  const auto tensor = [&](const void* data, int64_t a, int64_t tokens) {
    return ggml_reshape_4d(g->context, g->input(GGML_TYPE_F32, data, a, w.heads, tokens), a, w.heads, tokens, 1);
  };
  const int64_t rows = w.n_q * w.heads;
  ggml_tensor *q = tensor(g->widened(w.q, w.type, rows * w.d, 1), w.d, w.n_q),
              *k = tensor(g->widened(w.k, w.type, rows * w.d, 1), w.d, w.n_q),
              *v = tensor(g->widened(w.v, w.type, rows * w.d, 1), w.d, w.n_q),
              *decay = tensor(w.decay, w.by_channel ? w.d : 1, w.n_q), *beta = tensor(w.beta, 1, w.n_q);
  ggml_tensor* r = nullptr;
  for (int64_t layer = 0; layer < w.layers; ++layer) {
    const int64_t numbers = w.heads * w.d * w.d;
    const void* const state = g->transposed(w.states + layer * numbers, DType::kF32, w.heads, w.d, w.d);
    r = ggml_gated_delta_net(
        g->context, q, k, v, decay, beta,
        ggml_reshape_4d(g->context, g->input(GGML_TYPE_F32, state, w.d, w.d, w.heads), w.d, w.d, w.heads, 1), 1);
    ggml_set_output(r);
    ggml_build_forward_expand(g->graph, r);
  }
  if (!g->finish(r, w.threads)) return {};
  return {[g] { (void)ggml_backend_graph_compute(g->backend, g->graph); },
          [g, count = rows * w.d, type = w.type, out = w.out] { g->copy_result(out, type, count); }};
}
#else
Call make_state(const Work&) { return {}; }
#endif

ggml_tensor* rope_of(Graph& g, const Work& w) {
  ggml_context* c = g.context;
  int32_t* positions = reinterpret_cast<int32_t*>(g.array(static_cast<size_t>(w.n_q) * 4));
  for (int64_t i = 0; i < w.n_q; ++i) positions[i] = static_cast<int32_t>(w.position + i);
  ggml_tensor* p = ggml_new_tensor_1d(c, GGML_TYPE_I32, w.n_q);
  const ggml_backend_buffer_t b =
      ggml_backend_dev_buffer_from_host_ptr(device(), positions, ggml_nbytes(p), ggml_nbytes(p));
  ggml_backend_tensor_alloc(b, p, positions);
  g.wrapped.push_back(b);
  ggml_tensor* x = g.input(GGML_TYPE_F32, w.q, w.d, w.heads, w.n_q);
  const auto f = w.in_place ? ggml_rope_ext_inplace : ggml_rope_ext;
  return f(c, x, p, nullptr, static_cast<int>(w.d), w.interleaved ? 0 : GGML_ROPE_TYPE_NEOX, 0, 10000, 1, 0, 1, 0, 0);
}

template <bool kFlash>
ggml_tensor* attention_of(Graph& g, const Work& w) {
  ggml_context* c = g.context;
  const ggml_type t = type_of(w.type);
  ggml_tensor* q = g.input(GGML_TYPE_F32, g.widened(w.q, w.type, w.heads * w.n_q * w.d, 1), w.d, w.n_q, w.heads);
  ggml_tensor* k = g.input(t, w.k, w.d, w.n, w.kv_heads);
  ggml_tensor* mask = mask_of(g, w);
  if constexpr (kFlash) {
    return ggml_flash_attn_ext(c, q, k, g.input(t, w.v, w.d, w.n, w.kv_heads), mask, w.scale, 0, 0);
  } else {
    ggml_tensor* v = g.input(t, g.transposed(w.v, w.type, w.kv_heads, w.n, w.d), w.n, w.d, w.kv_heads);
    return ggml_mul_mat(c, v, ggml_soft_max_ext(c, ggml_mul_mat(c, k, q), mask, w.scale, 0));
  }
}

template <bool kFlash>
Call make(const Work& w) {
  if (w.kind == Kind::kState) return make_state(w);
  const auto g = std::make_shared<Graph>();
  ggml_context* c = g->context;
  const ggml_type t = type_of(w.type);
  ggml_tensor* r = nullptr;
  int64_t count = w.n_q * w.n;
  DType out_type = DType::kF32;
  switch (w.kind) {
    case Kind::kSoftmax: r = ggml_soft_max(c, g->input(GGML_TYPE_F32, w.q, w.n, w.n_q)); break;
    case Kind::kScores:
      r = ggml_mul_mat(c, g->input(t, w.k, w.d, w.n),
                       g->input(GGML_TYPE_F32, g->widened(w.q, w.type, w.n_q * w.d, w.scale), w.d, w.n_q));
      break;
    case Kind::kWeightedValues:
      r = ggml_mul_mat(c, g->input(t, g->transposed(w.v, w.type, 1, w.n, w.d), w.n, w.d),
                       g->input(GGML_TYPE_F32, w.q, w.n, w.n_q));
      count = w.n_q * w.d;
      out_type = w.type;
      break;
    case Kind::kRope:
      r = rope_of(*g, w);
      count = w.n_q * w.heads * w.d;
      break;
    default:
      r = attention_of<kFlash>(*g, w);
      count = w.heads * w.n_q * w.d;
      out_type = w.type;
  }
  if (!g->finish(r, w.threads)) return {};
  Call call{[g] { (void)ggml_backend_graph_compute(g->backend, g->graph); }};
  if (r->data != w.out) {
    call.after = [g, count, out_type, out = w.out] { g->copy_result(out, out_type, count); };
  }
  return call;
}

bool can(const Work& w) {
#ifndef BENCH_GGML_STATE
  if (w.kind == Kind::kState) return false;
#endif
  if (w.kind == Kind::kSoftmax || w.kind == Kind::kRope) return w.type == DType::kF32;
  // Its result has the heads of a token beside each other.
  return w.kind != Kind::kAttention || w.n_q == 1 || w.heads == 1;
}
bool can_flash(const Work& w) { return w.kind == Kind::kAttention && can(w); }

std::string settings() {
  return std::string("ggml ") + ggml_version() +
         ", CPU backend, graph made once; queries f32, keys in the row's type, values transposed beforehand; rope "
         "computes its angles";
}
std::string flash_settings() { return "ggml_flash_attn_ext of the same"; }

const Peer kPeers[] = {{"ggml", settings, can, make<false>}, {"ggml_flash", flash_settings, can_flash, make<true>}};

}  // namespace
}  // namespace bench

const bench::Peer* simdattn_bench_peers(size_t* count) {
  *count = 2;
  return bench::kPeers;
}
