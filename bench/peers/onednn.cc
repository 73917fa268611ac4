// oneDNN: matmul and softmax as primitives made once; attention as matmul, softmax, matmul, and, where the version has
// the graph API, as its SDPA (matmul, scale, mask, softmax, matmul in one partition).
#include <omp.h>

#include <dnnl.hpp>
#include <limits>

#include "bench/peers/plain.h"

#if DNNL_VERSION_MAJOR > 3 || (DNNL_VERSION_MAJOR == 3 && DNNL_VERSION_MINOR >= 5)
#define BENCH_GRAPH 1
#include <oneapi/dnnl/dnnl_graph.hpp>
#endif

namespace bench {
namespace {

using dnnl::memory;
using simdattn::DType;

const dnnl::engine& cpu() {
  static const dnnl::engine e(dnnl::engine::kind::cpu, 0);
  return e;
}

memory::data_type type_of(DType t) {
  return t == DType::kF32    ? memory::data_type::f32
         : t == DType::kBF16 ? memory::data_type::bf16
                             : memory::data_type::f16;
}

memory wrap(const memory::desc& desc, const void* data) { return memory(desc, cpu(), const_cast<void*>(data)); }

#if DNNL_VERSION_MAJOR >= 3
dnnl::matmul::primitive_desc matmul_desc(const memory::desc& a, const memory::desc& b, const memory::desc& c,
                                         float scale) {
  dnnl::primitive_attr attr;
  if (scale != 1) {
    dnnl::post_ops ops;
    ops.append_eltwise(dnnl::algorithm::eltwise_linear, scale, 0);
    attr.set_post_ops(ops);
  }
  return {cpu(), a, b, c, attr};
}
dnnl::softmax_forward::primitive_desc softmax_desc(const memory::desc& x, const memory::desc& out) {
  return {cpu(), dnnl::prop_kind::forward_inference, dnnl::algorithm::softmax_accurate, x,
          out,   static_cast<int>(x.get_ndims()) - 1};
}
#else
dnnl::matmul::primitive_desc matmul_desc(const memory::desc& a, const memory::desc& b, const memory::desc& c,
                                         float scale) {
  dnnl::primitive_attr attr;
  if (scale != 1) attr.set_output_scales(0, {scale});
  return {dnnl::matmul::desc(a, b, c), attr, cpu()};
}
dnnl::softmax_v2_forward::primitive_desc softmax_desc(const memory::desc& x, const memory::desc& out) {
  return {dnnl::softmax_v2_forward::desc(dnnl::prop_kind::forward_inference, dnnl::algorithm::softmax_accurate, x, out,
                                         static_cast<int>(x.dims().size()) - 1),
          cpu()};
}
#endif

/// Primitives with their arguments, one after another.
struct Steps {
  dnnl::stream stream{cpu()};
  std::vector<std::pair<dnnl::primitive, std::unordered_map<int, memory>>> steps;
  std::vector<std::vector<char>> buffers;
  int threads = 1;

  char* buffer(int64_t bytes) { return buffers.emplace_back(static_cast<size_t>(bytes)).data(); }
  void matmul(const memory::desc& a, const void* pa, const memory::desc& b, const void* pb, const memory::desc& c,
              const void* pc, float scale) {
    steps.emplace_back(dnnl::matmul(matmul_desc(a, b, c, scale)),
                       std::unordered_map<int, memory>{
                           {DNNL_ARG_SRC, wrap(a, pa)}, {DNNL_ARG_WEIGHTS, wrap(b, pb)}, {DNNL_ARG_DST, wrap(c, pc)}});
  }
  void softmax(const memory::desc& x, const void* from, const memory::desc& out, const void* to) {
#if DNNL_VERSION_MAJOR >= 3
    dnnl::softmax_forward step(softmax_desc(x, out));
#else
    dnnl::softmax_v2_forward step(softmax_desc(x, out));
#endif
    steps.emplace_back(step,
                       std::unordered_map<int, memory>{{DNNL_ARG_SRC, wrap(x, from)}, {DNNL_ARG_DST, wrap(out, to)}});
  }
  void run() {
    omp_set_num_threads(threads);
    for (auto& [primitive, arguments] : steps) primitive.execute(stream, arguments);
    stream.wait();
  }
};

/// Decode: the rows are the heads of a group. A prompt: 128 rows at a time, over the keys that the last of them sees.
void add_attention(Steps& steps, const Work& w, memory::data_type t) {
  const auto f32 = memory::data_type::f32;
  const int64_t all = w.n_q == 1 ? w.heads / w.kv_heads : w.n_q;
  const int64_t batch = w.kv_heads;
  const int64_t block = w.n_q == 1 ? all : std::min<int64_t>(all, 128);
  const int64_t size = w.type == DType::kF32 ? 4 : 2;
  char* s = steps.buffer(batch * block * w.n * 4);
  char* p = steps.buffer(batch * block * w.n * size);
  for (int64_t first = 0; first < all; first += block) {
    const int64_t rows = std::min(block, all - first);
    const bool masked = w.causal && w.n_q > 1;
    const int64_t keys = masked ? first + rows + w.n - w.n_q : w.n;
    const memory::desc q({batch, rows, w.d}, t, memory::dims{all * w.d, w.d, 1});
    const memory::desc k({batch, w.d, keys}, t, memory::dims{w.n * w.d, 1, w.d});
    const memory::desc v({batch, keys, w.d}, t, memory::dims{w.n * w.d, w.d, 1});
    const memory::desc scores({batch, rows, keys}, f32, memory::dims{rows * keys, keys, 1});
    const memory::desc weights({batch, rows, keys}, t, memory::dims{rows * keys, keys, 1});
    dnnl::primitive_attr attr;
    dnnl::post_ops ops;
    ops.append_eltwise(
#if DNNL_VERSION_MAJOR < 3
        1,
#endif
        dnnl::algorithm::eltwise_linear, w.scale, 0);
    const auto row_bytes = [&](int64_t row) { return row * w.d * size; };
    std::unordered_map<int, memory> more;
    if (masked) {  // added by the product: 0, or -inf where a row does not see the key
      const memory::desc mask({1, rows, keys}, f32, memory::dims{rows * keys, keys, 1});
      float* m = reinterpret_cast<float*>(steps.buffer(rows * keys * 4));
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < keys; ++j) {
          m[i * keys + j] = j <= first + i + w.n - w.n_q ? 0 : -std::numeric_limits<float>::infinity();
        }
      }
      ops.append_binary(dnnl::algorithm::binary_add, mask);
      more[DNNL_ARG_ATTR_MULTIPLE_POST_OP(1) | DNNL_ARG_SRC_1] = wrap(mask, m);
    }
    attr.set_post_ops(ops);
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul product(dnnl::matmul::primitive_desc(cpu(), q, k, scores, attr));
#else
    const dnnl::matmul product(dnnl::matmul::primitive_desc(dnnl::matmul::desc(q, k, scores), attr, cpu()));
#endif
    more[DNNL_ARG_SRC] = wrap(q, static_cast<const char*>(w.q) + row_bytes(first));
    more[DNNL_ARG_WEIGHTS] = wrap(k, w.k);
    more[DNNL_ARG_DST] = wrap(scores, s);
    steps.steps.emplace_back(product, more);
    steps.softmax(scores, s, weights, p);
    steps.matmul(weights, p, v, w.v, q, static_cast<const char*>(w.out) + row_bytes(first), 1);
  }
}

Call make(const Work& w) {
  const auto steps = std::make_shared<Steps>();
  omp_set_num_threads(w.threads);  // primitives are made for so many threads
  steps->threads = w.threads;
  const auto t = type_of(w.type);
  const auto f32 = memory::data_type::f32;
  switch (w.kind) {
    case Kind::kSoftmax: {
      const memory::desc x({w.n_q, w.n}, f32, memory::dims{w.n, 1});
      steps->softmax(x, w.q, x, w.out);
      break;
    }
    case Kind::kScores:
      steps->matmul({{w.n_q, w.d}, t, memory::dims{w.d, 1}}, w.q, {{w.d, w.n}, t, memory::dims{1, w.d}}, w.k,
                    {{w.n_q, w.n}, f32, memory::dims{w.n, 1}}, w.out, w.scale);
      break;
    case Kind::kWeightedValues:
      steps->matmul({{w.n_q, w.n}, f32, memory::dims{w.n, 1}}, w.q, {{w.n, w.d}, t, memory::dims{w.d, 1}}, w.v,
                    {{w.n_q, w.d}, t, memory::dims{w.d, 1}}, w.out, 1);
      break;
    default: add_attention(*steps, w, t);
  }
  return {[steps] { steps->run(); }};
}

/// Asks the library: it knows the pairs of types that it has a fast kernel for.
bool can(const Work& w) {
  if (w.kind == Kind::kRope || w.kind == Kind::kNone) return false;
  if (w.kind == Kind::kSoftmax) return w.type == DType::kF32;
  if (w.kind == Kind::kWeightedValues && w.type != DType::kF32) return false;  // f32 probabilities: no such product
  if (w.kind == Kind::kAttention && w.n_q > 1 && w.kv_heads != w.heads) return false;
  try {
    const auto t = type_of(w.type);
    const memory::desc a({8, 64}, t, memory::dims{64, 1}), b({64, 32}, t, memory::dims{1, 64}),
        c({8, 32}, memory::data_type::f32, memory::dims{32, 1});
    (void)matmul_desc(a, b, c, 1);
    return true;
  } catch (const dnnl::error&) {
    return false;
  }
}

std::string settings() {
  const dnnl_version_t* v = dnnl_version();
  return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch) +
         ", OpenMP, primitives made once, scale and mask in the product's post-ops; attention: group folded into "
         "rows, " +
         "prompts in blocks of 128 rows; 16-bit: products of 16-bit numbers, probabilities rounded to 16 bits";
}

#ifdef BENCH_GRAPH

namespace graph = dnnl::graph;

/// 0 and -inf are exact when cut; the scale is rounded as its type says.
uint16_t bits_of(DType type, float x) {
  if (type == DType::kBF16) {
    const uint32_t b = __builtin_bit_cast(uint32_t, x);
    return static_cast<uint16_t>((b + 0x7FFFu + (b >> 16 & 1u)) >> 16);
  }
#ifdef __aarch64__
  return __builtin_bit_cast(uint16_t, static_cast<__fp16>(x));
#else
  return __builtin_bit_cast(uint16_t, static_cast<_Float16>(x));
#endif
}
/// `count` values in numbers of that type.
template <class F>
void* fill(std::vector<float>& to, DType type, size_t count, const F& value) {
  to.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const float x = value(i);
    if (type == DType::kF32) to[i] = x;
    else reinterpret_cast<uint16_t*>(to.data())[i] = bits_of(type, x);
  }
  return to.data();
}

/// 0 where a row sees a key, else -inf.
void* fill_mask(std::vector<float>& to, const Work& w, int64_t rows) {
  return fill(to, w.type, static_cast<size_t>(rows * w.n), [&](size_t i) {
    const int64_t row = static_cast<int64_t>(i) / w.n, key = static_cast<int64_t>(i) % w.n;
    return key <= row + w.n - w.n_q ? 0.0f : -std::numeric_limits<float>::infinity();
  });
}

using Logical = graph::logical_tensor;

Logical::data_type graph_type(DType t) {
  return t == DType::kF32    ? Logical::data_type::f32
         : t == DType::kBF16 ? Logical::data_type::bf16
                             : Logical::data_type::f16;
}
Logical dense(size_t id, Logical::data_type type, const Logical::dims& dims) {
  Logical::dims strides(dims.size());
  int64_t step = 1;
  for (size_t i = dims.size(); i-- > 0; step *= dims[i]) strides[i] = step;
  return Logical(id, type, dims, strides);
}
std::vector<Logical> in_order_of_ports(const graph::partition& partition, const std::vector<Logical>& inputs) {
  std::vector<Logical> ordered;
  for (const Logical& port : partition.get_input_ports()) {
    for (const Logical& l : inputs) {
      if (l.get_id() == port.get_id()) ordered.push_back(l);
    }
  }
  return ordered;
}

struct GraphState {
  graph::compiled_partition compiled;
  std::vector<graph::tensor> in, out;
  std::vector<float> buffers[2];
  dnnl::stream stream{cpu()};
  int threads = 1;
};

Call make_graph(const Work& w) {
  omp_set_num_threads(w.threads);
  const auto state = std::make_shared<GraphState>();
  state->threads = w.threads;
  const auto t = graph_type(w.type);
  size_t id = 0;
  const auto tensor = [&](const Logical::dims& dims) { return dense(id++, t, dims); };
  const auto inner = [&] { return Logical(id++, Logical::data_type::f32, 4, Logical::layout_type::strided); };
  // Decode: the group's heads are rows of one product.
  const int64_t rows = w.n_q == 1 ? w.heads / w.kv_heads : w.n_q;
  const Logical q = tensor({1, w.kv_heads, rows, w.d}), k = tensor({1, w.kv_heads, w.n, w.d}),
                v = tensor({1, w.kv_heads, w.n, w.d}), out = tensor({1, w.kv_heads, rows, w.d}), factor = tensor({1});
  const bool masked = w.causal && w.n_q > 1;
  const Logical mask = tensor({1, 1, rows, w.n});
  const Logical s0 = inner(), s1 = inner(), s2 = inner();
  const Logical p(id++, t, 4, Logical::layout_type::strided);
  graph::op product(0, graph::op::kind::MatMul, {q, k}, {s0}, "qk");
  product.set_attr<bool>(graph::op::attr::transpose_b, true);
  graph::op scale(1, graph::op::kind::Multiply, {s0, factor}, {s1}, "scale");
  graph::op add(2, graph::op::kind::Add, {s1, mask}, {s2}, "mask");
  graph::op softmax(3, graph::op::kind::SoftMax, {masked ? s2 : s1}, {p}, "softmax");
  softmax.set_attr<int64_t>(graph::op::attr::axis, -1);
  graph::op weighted(4, graph::op::kind::MatMul, {p, v}, {out}, "pv");
  graph::graph g(dnnl::engine::kind::cpu);
  g.add_op(product);
  g.add_op(scale);
  if (masked) g.add_op(add);
  g.add_op(softmax);
  g.add_op(weighted);
  g.finalize();
  const auto partitions = g.get_partitions();
  if (partitions.size() != 1 || !partitions[0].is_supported()) return {};
  std::vector<Logical> inputs{q, k, factor, v};
  if (masked) inputs.push_back(mask);
  const std::vector<Logical> ordered = in_order_of_ports(partitions[0], inputs);
  state->compiled = partitions[0].compile(ordered, {out}, cpu());
  void* factor_data = fill(state->buffers[0], w.type, 1, [&](size_t) { return w.scale; });
  void* mask_data = masked ? fill_mask(state->buffers[1], w, rows) : nullptr;
  for (const Logical& l : ordered) {
    const void* data = l.get_id() == q.get_id()        ? w.q
                       : l.get_id() == k.get_id()      ? w.k
                       : l.get_id() == v.get_id()      ? w.v
                       : l.get_id() == factor.get_id() ? factor_data
                                                       : mask_data;
    state->in.emplace_back(l, cpu(), const_cast<void*>(data));
  }
  state->out.emplace_back(out, cpu(), w.out);
  return {[state] {
    omp_set_num_threads(state->threads);
    state->compiled.execute(state->stream, state->in, state->out);
    state->stream.wait();
  }};
}

bool can_graph(const Work& w) { return w.kind == Kind::kAttention && can(w) && (w.n_q == 1 || w.kv_heads == w.heads); }

std::string graph_settings() { return "the graph API's SDPA, one partition; a causal mask is a tensor of 0 and -inf"; }

#endif

const Peer kPeers[] = {{"onednn", settings, can, make},
#ifdef BENCH_GRAPH
                       {"onednn_graph", graph_settings, can_graph, make_graph}
#endif
};

}  // namespace
}  // namespace bench

const bench::Peer* simdattn_bench_peers(size_t* count) {
  *count = sizeof bench::kPeers / sizeof bench::kPeers[0];
  return bench::kPeers;
}
