// Random graphs with nodes FLASH_ATTN_EXT among other nodes, for the tests of the plug-in.
#pragma once

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <vector>

namespace tests {

inline int failures = 0;
inline void check(bool good, const std::string& what) {
  if (!good) std::printf("FAILED: %s\n", what.c_str());
  failures += good ? 0 : 1;
}

/// A function that the CPU backend gives by its name.
template <class F>
F cpu_function(const char* name) {
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  return reinterpret_cast<F>(ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), name));
}
inline void set_threads(ggml_backend_t backend, int threads) {
  cpu_function<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads")(backend, threads);
}
inline ggml_backend_t cpu_backend(int threads) {
  ggml_backend_t backend = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
  set_threads(backend, threads);
  return backend;
}

using Floats = std::vector<float>;

/// The error's squares over those of the numbers themselves.
inline double error(const Floats& a, const Floats& b) {
  double e = 0, r = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    e += d * d;
    r += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return e / r;
}
/// What test-backend-ops allows.
constexpr double kMostError = 5e-4;

/// x, then for each layer x += W' attention(W x) over a cache. `matrices`: buffers for W and W', which are then q4_0.
class Graph {
 public:
  explicit Graph(unsigned seed, int layers = 0, ggml_backend_buffer_type_t matrices = nullptr);
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (own_ != nullptr) ggml_backend_buffer_free(own_);
    ggml_backend_buffer_free(weights_buffer_);
    ggml_backend_buffer_free(matrices_buffer_);
    ggml_free(nodes_);
    ggml_free(weights_);
    ggml_free(matrices_);
  }

  /// Memory of its own for every node, where no scheduler gives it.
  Graph& allocate() {
    own_ = ggml_backend_alloc_ctx_tensors_from_buft(nodes_, ggml_backend_cpu_buffer_type());
    return *this;
  }
  void write_inputs() {
    std::memcpy(x_->data, inputs_.data(), ggml_nbytes(x_));
    std::memcpy(mask_->data, masks_.data(), ggml_nbytes(mask_));
  }
  Floats result() const {
    Floats y(static_cast<size_t>(ggml_nelements(out_)));
    std::memcpy(y.data(), out_->data, ggml_nbytes(out_));
    return y;
  }
  /// Computes everything anew.
  Floats run(ggml_backend_t backend) {
    write_inputs();
    std::memset(out_->data, 0xff, ggml_nbytes(out_));
    check(ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS, "graph_compute: " + text);
    check(as_built(), "the graph is afterwards as it was: " + text);
    return result();
  }
  bool as_built() const {
    for (const ggml_tensor* node : flash) {
      if (std::strcmp(ggml_op_name(node->op), "FLASH_ATTN_EXT") != 0) return false;
    }
    return true;
  }

  ggml_cgraph* graph = nullptr;
  std::vector<ggml_tensor*> flash;
  std::string text;  // what is in it
  int queries = 0;

 private:
  static constexpr int kWidth = 64;
  int pick(std::initializer_list<int> from) { return from.begin()[random_() % from.size()]; }
  float number(float size) { return size * (static_cast<float>(random_()) * 0x1.8p-30f - 1.5f); }
  void fill(ggml_tensor* t, float size);

  std::minstd_rand random_;
  ggml_context *matrices_, *weights_, *nodes_;
  ggml_backend_buffer_t matrices_buffer_, weights_buffer_, own_ = nullptr;
  ggml_tensor *x_, *mask_, *out_;
  Floats inputs_;
  std::vector<ggml_fp16_t> masks_;
};

inline void Graph::fill(ggml_tensor* t, float size) {
  Floats x(static_cast<size_t>(ggml_nelements(t)));
  for (float& y : x) y = number(size);
  if (t->type == GGML_TYPE_F32) return ggml_backend_tensor_set(t, x.data(), 0, ggml_nbytes(t));
  std::vector<char> blocks(ggml_nrows(t) * ggml_row_size(t->type, t->ne[0]));
  ggml_quantize_chunk(t->type, x.data(), blocks.data(), 0, ggml_nrows(t), t->ne[0], nullptr);
  ggml_backend_tensor_set(t, blocks.data(), 0, blocks.size());
}

inline Graph::Graph(unsigned seed, int layers, ggml_backend_buffer_type_t matrices) : random_(seed) {
  constexpr ggml_type kTypes[] = {GGML_TYPE_F16,  GGML_TYPE_F32,  GGML_TYPE_BF16, GGML_TYPE_Q8_0,  GGML_TYPE_Q4_0,
                                  GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL};
  const ggml_type k_type = kTypes[random_() % 9], v_type = random_() % 2 != 0 ? k_type : kTypes[random_() % 9];
  const int d = pick({64, 128, 256}), kv_heads = pick({1, 2, 4}), heads = kv_heads * pick({1, 2, 4, 8});
  const int keys = pick({32, 256, 257, 1000, 2048});
  queries = pick({1, 1, 2, 7, 64, 130});
  if (layers == 0) layers = pick({1, 3});
  const float softcap = random_() % 4 != 0 ? 0.0f : 30.0f, bias = random_() % 4 != 0 ? 0.0f : 8.0f;
  const bool with_sinks = random_() % 3 == 0;
  char line[160];
  std::snprintf(line, sizeof line,
                "%s/%s d %d heads %d/%d keys %d queries %d softcap %g bias %g sinks %d layers %d seed %u",
                ggml_type_name(k_type), ggml_type_name(v_type), d, heads, kv_heads, keys, queries,
                static_cast<double>(softcap), static_cast<double>(bias), with_sinks, layers, seed);
  text = line;

  matrices_ = ggml_init({size_t{1} << 20, nullptr, true});
  const ggml_type type = matrices != nullptr ? GGML_TYPE_Q4_0 : GGML_TYPE_F32;
  ggml_tensor* in = ggml_new_tensor_2d(matrices_, type, kWidth, d * heads);
  ggml_tensor* out = ggml_new_tensor_2d(matrices_, type, d * heads, kWidth);
  matrices_buffer_ = ggml_backend_alloc_ctx_tensors_from_buft(
      matrices_, matrices != nullptr ? matrices : ggml_backend_cpu_buffer_type());
  ggml_backend_buffer_set_usage(matrices_buffer_, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  fill(in, 0.125f);
  fill(out, 1 / std::sqrt(static_cast<float>(d * heads)));
  weights_ = ggml_init({size_t{1} << 20, nullptr, true});
  ggml_tensor* sinks = ggml_new_tensor_1d(weights_, GGML_TYPE_F32, heads);
  std::vector<ggml_tensor*> k, v;
  for (int l = 0; l < layers; ++l) {
    k.push_back(ggml_new_tensor_3d(weights_, k_type, d, kv_heads, keys));
    v.push_back(ggml_new_tensor_3d(weights_, v_type, d, kv_heads, keys));
  }
  weights_buffer_ = ggml_backend_alloc_ctx_tensors_from_buft(weights_, ggml_backend_cpu_buffer_type());
  ggml_backend_buffer_set_usage(weights_buffer_, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  for (ggml_tensor* t = ggml_get_first_tensor(weights_); t != nullptr; t = ggml_get_next_tensor(weights_, t)) {
    fill(t, 1);
  }

  inputs_.resize(static_cast<size_t>(kWidth * queries));
  for (float& y : inputs_) y = number(1);
  const int rows = (queries + 63) / 64 * 64;  // ggml 0.9 wants so many
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < keys; ++j) {
      const bool seen = j <= i + keys - queries;
      masks_.push_back(ggml_fp32_to_fp16(!seen ? -INFINITY : bias > 0 ? static_cast<float>(j - keys) / 64 : 0.0f));
    }
  }

  nodes_ = ggml_init({size_t{1} << 20, nullptr, true});
  x_ = ggml_new_tensor_2d(nodes_, GGML_TYPE_F32, kWidth, queries);
  mask_ = ggml_new_tensor_2d(nodes_, GGML_TYPE_F16, keys, rows);
  ggml_set_input(x_);
  ggml_set_input(mask_);
  out_ = x_;
  for (size_t l = 0; l < k.size(); ++l) {
    ggml_tensor* q =
        ggml_permute(nodes_, ggml_reshape_3d(nodes_, ggml_mul_mat(nodes_, in, out_), d, heads, queries), 0, 2, 1, 3);
    ggml_tensor* node =
        ggml_flash_attn_ext(nodes_, q, ggml_permute(nodes_, k[l], 0, 2, 1, 3), ggml_permute(nodes_, v[l], 0, 2, 1, 3),
                            mask_, 1 / std::sqrt(static_cast<float>(d)), bias, softcap);
    if (with_sinks) ggml_flash_attn_ext_add_sinks(node, sinks);
    flash.push_back(node);
    out_ = ggml_add(nodes_, out_, ggml_mul_mat(nodes_, out, ggml_reshape_2d(nodes_, node, d * heads, queries)));
  }
  ggml_set_output(out_);
  graph = ggml_new_graph(nodes_);
  ggml_build_forward_expand(graph, out_);
}

}  // namespace tests
