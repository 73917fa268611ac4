#include <cstring>
#include <utility>

#include "kernels.h"

namespace simdattn_onnxruntime {
namespace {

/// A sequence without a past begins with zeros.
void begin_state(const Tensor& past, const Tensor& present, int64_t size) {
  if (!past && present.size() != 0) std::memset(present.data, 0, static_cast<size_t>(present.size() * size));
}

/// [batch, n, heads * d] as [batch, heads, n, d].
sa::ConstView<4> heads_of(const Call& call, int index, const Tensor& t, int64_t heads, int64_t d) {
  const int64_t n = t.dim[1], row = t.dim[2];
  return sa::ConstView<4>(t.data, call.type_of(index, t), {t.dim[0], heads, n, d}, {n * row, d, row, 1});
}

/// The input `index`, [batch, n, heads * d], where heads or d is what its last dimension leaves.
Tensor rows_of(const Call& call, int index, const Tensor& query) {
  const Tensor t = call.input(index, {query.dim[0], query.dim[1], -1});
  if (t.element != query.element) call.refuse(index, "has another type than query");
  return t;
}

int64_t divide(const Call& call, int index, const Tensor& t, int64_t by, const char* rule) {
  const int64_t n = by > 0 ? t.dim[2] / by : 0;
  if (n < 1 || n * by != t.dim[2]) call.refuse(index, rule);
  return n;
}

/// decay or beta: a number for each head, for each of its channels (`d`), or for all heads together.
sa::ConstView<4> read_gate(const Call& call, int index, const Tensor& query, int64_t heads, int64_t d) {
  const Tensor t = rows_of(call, index, query);
  if (t.dim[2] == heads) return heads_of(call, index, t, heads, 1);
  if (t.dim[2] == heads * d) return heads_of(call, index, t, heads, d);
  if (index != 5 || t.dim[2] != 1) call.refuse(index, "has another last dimension than a head or channel needs");
  return heads_of(call, index, t, 1, 1);
}

sa::LinearRule rule_of(const std::string& name) {
  if (name == "linear") return sa::LinearRule::kLinear;
  if (name == "gated") return sa::LinearRule::kGated;
  return name == "delta" ? sa::LinearRule::kDelta : sa::LinearRule::kGatedDelta;
}

}  // namespace

void linear_attention(Call* call) {
  const Node& node = call->node;
  const int64_t heads = node.kv_num_heads;
  const Tensor q = call->input(0, {-1, -1, -1});
  const Tensor k = rows_of(*call, 1, q), v = rows_of(*call, 2, q), past = call->input(3);
  const int64_t d_k = divide(*call, 0, q, node.num_heads, "cannot be divided into q_num_heads heads");
  const int64_t k_heads = divide(*call, 1, k, d_k, "has heads of another size than query");
  const int64_t d_v = divide(*call, 2, v, heads, "cannot be divided into kv_num_heads heads");
  if (heads % k_heads != 0) call->refuse(1, "has a number of heads that does not divide kv_num_heads");
  const int64_t out_heads = std::max(heads, node.num_heads), n = q.dim[1], row = out_heads * d_v;
  if (out_heads % std::min(heads, node.num_heads) != 0)
    call->refuse(0, "has a number of heads that is neither multiple nor divisor of kv_num_heads");
  if (call->is_level(n)) return call->give_back({{{q.dim[0], n, row}, 3}, {{q.dim[0], heads, d_k, d_v}, 4}});
  sa::LinearAttentionProblem p;
  p.rule = rule_of(node.update_rule);
  if (p.rule == sa::LinearRule::kGated || p.rule == sa::LinearRule::kGatedDelta)
    p.decay = read_gate(*call, 4, q, heads, d_k);
  if (p.rule == sa::LinearRule::kDelta || p.rule == sa::LinearRule::kGatedDelta)
    p.beta = read_gate(*call, 5, q, heads, 1);
  const std::array<int64_t, 4> shape{q.dim[0], heads, d_k, d_v};
  if (past) {
    call->expect(3, past, shape.data(), shape.size());
    if (past.element != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) call->refuse(3, "is not float");
    p.state_in = sa::ConstView<4>(past.data, sa::DType::kF32, shape);
  }
  p.q = heads_of(*call, 0, q, node.num_heads, d_k);
  p.k = heads_of(*call, 1, k, k_heads, d_k);
  p.v = heads_of(*call, 2, v, heads, d_v);
  if (node.scale != 0) p.scale = node.scale;
  const Tensor out = call->output(0, {q.dim[0], n, row});
  p.out = sa::View<4>(out.data, p.q.dtype, {q.dim[0], out_heads, n, d_v}, {n * row, d_v, row, 1});
  const Tensor present = call->output(1, shape.data(), shape.size());
  begin_state(past, present, 4);
  p.state = sa::View<4>(present.data, sa::DType::kF32, shape);
  call->share(sa::linear_attention_tasks(p), sa::linear_attention_workspace(p),
              [&](int64_t first, int64_t last, const sa::Exec& exec) {
                return sa::linear_attention_range(p, first, last, exec);
              });
}

void causal_conv(Call* call) {
  const bool last = call->node.channels_last != 0;
  const Tensor x = call->input(0), past = call->input(3), bias = call->input(2);
  const sa::DType type = call->type_of(0, x);
  if (last ? x.rank < 3 : x.rank != 3) call->refuse(0, last ? "has less than 3 dimensions" : "has not 3 dimensions");
  const int64_t batch = x.dim[0], n = last ? x.dim[1] : x.dim[2];
  int64_t channels = last ? 1 : x.dim[1];
  for (int i = 2; last && i < x.rank; ++i) channels *= x.dim[static_cast<size_t>(i)];
  const Tensor weight = call->input(1, {channels, 1, -1});
  const int64_t width = weight.dim[2];
  if (width < 1 || width > 32) call->refuse(1, "has a width that is not in 1 .. 32");
  if (bias) call->expect(2, bias, {channels});
  std::array<int64_t, 6> of_state = x.dim;
  of_state[last ? 1 : 2] = width - 1;
  const auto rank = static_cast<size_t>(x.rank);
  if (past) call->expect(3, past, of_state.data(), rank);
  for (const auto& [index, t] : {std::pair{1, &weight}, {2, &bias}, {3, &past}}) {
    if (*t && t->element != x.element) call->refuse(index, "has another type than input");
  }
  const Tensor out = call->output(0, x.dim.data(), rank), present = call->output(1, of_state.data(), rank);
  const int64_t size = sa::dtype_bytes(type);
  begin_state(past, present, size);
  if (channels * batch == 0) return;

  // Channels are independent of one another: a part of them is a job. Few bytes are one call.
  const int64_t bytes = 2 * x.size() * size, most = call->shares(bytes) ? 64 : channels;
  const int64_t parts = (channels + most - 1) / most;
  call->check(call->parallel(batch * parts, bytes, [&](int64_t job) {
    const int64_t b = job / parts, c = job % parts * most, count = std::min(most, channels - c);
    const auto part = [&](const Tensor& t, int64_t tokens) {
      const int64_t stride = last ? channels : tokens;
      return sa::View<3>(t.bytes() + (b * channels * tokens + c * (last ? 1 : tokens)) * size, type,
                         {1, last ? tokens : count, last ? count : tokens}, {channels * tokens, stride, 1});
    };
    sa::CausalConvProblem p;
    p.channels_last = last;
    p.silu = call->node.activation != "none";
    p.x = part(x, n);
    p.out = part(out, n);
    p.weight = sa::ConstView<2>(weight.bytes() + c * width * size, type, {count, width});
    if (bias) p.bias = sa::ConstView<1>(bias.bytes() + c * size, type, {count});
    if (width > 1) p.state = part(present, width - 1);
    if (width > 1 && past) p.state_in = part(past, width - 1);
    return sa::causal_conv(p);
  }));
}

}  // namespace simdattn_onnxruntime
