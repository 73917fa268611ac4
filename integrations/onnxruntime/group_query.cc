#include <cstring>

#include "kernels.h"
#include "rotation.h"

namespace simdattn_onnxruntime {
namespace {

/// Heads of a tensor [batch, n, heads * d], or of a part of one whose rows are `row` numbers long.
struct Rows {
  char* data = nullptr;
  int64_t row = 0;
};

/// The node's shapes and inputs, all of them checked.
struct Problem {
  sa::DType type;
  int64_t size, batch, n, heads, kv_heads, d;
  Rows q, k, v;
  Tensor past_k, past_v;
  int64_t past = 0, total = 0, capacity = 0;      // tokens of past_key; total_sequence_length; tokens of present_key
  int32_t *starts = nullptr, *lengths = nullptr;  // [batch] where the new tokens begin; keys with them
};

void read_rows(const Call& call, Problem* p) {
  const Node& node = call.node;
  const Tensor q = call.input(0, {-1, -1, -1});
  p->type = call.type_of(0, q);
  p->size = sa::dtype_bytes(p->type);
  p->batch = q.dim[0];
  p->n = q.dim[1];
  p->heads = node.num_heads;
  p->kv_heads = node.kv_num_heads;
  if (p->heads < 1 || p->kv_heads < 1 || p->heads % p->kv_heads != 0)
    fail(ORT_INVALID_ARGUMENT, node.name + ": num_heads is no multiple of kv_num_heads");
  const bool packed = node.input[1] < 0;
  const int64_t all = packed ? p->heads + 2 * p->kv_heads : p->heads;
  p->d = q.dim[2] / all;
  if (p->d == 0 || p->d * all != q.dim[2]) call.refuse(0, "cannot be divided into " + std::to_string(all) + " heads");
  p->q = {q.bytes(), q.dim[2]};
  if (packed) {
    p->k = {q.bytes() + p->heads * p->d * p->size, q.dim[2]};
    p->v = {p->k.data + p->kv_heads * p->d * p->size, q.dim[2]};
    return;
  }
  for (const int i : {1, 2}) {
    const Tensor t = call.input(i, {p->batch, p->n, p->kv_heads * p->d});
    if (t.element != q.element) call.refuse(i, "has another type than query");
    (i == 1 ? p->k : p->v) = Rows{t.bytes(), p->kv_heads * p->d};
  }
}

void read_lengths(Call* call, Problem* p) {
  for (const int i : {3, 4}) {
    const Tensor t = call->input(i);
    if (!t) continue;
    call->expect(i, t, {p->batch, p->kv_heads, i == 3 ? -1 : p->past, p->d});
    sa::DType type = p->type;
    if (!is_float(t.element, &type) || type != p->type) call->refuse(i, "has another type than query");
    (i == 3 ? p->past_k : p->past_v) = t;
    p->past = t.dim[2];
  }
  const Tensor seqlens = call->input(5), total = call->input(6);
  for (const int i : {5, 6}) {
    const Tensor& t = i == 5 ? seqlens : total;
    if (!t) call->refuse(i, "is needed");
    if (t.element != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) call->refuse(i, "is not int32");
    if (t.size() != (i == 5 ? p->batch : 1))
      call->refuse(i, "has another number of elements than batch_size, or than 1");
  }
  p->total = *static_cast<const int32_t*>(total.data);
  if (p->total < 0) call->refuse(6, "is negative");
  p->capacity = std::max(p->past, p->total);
  const bool prompt = p->n == p->total;  // what the past holds does not count then
  p->starts = call->room<int32_t>(p->batch);
  p->lengths = call->room<int32_t>(p->batch);
  for (int64_t b = 0; b < p->batch; ++b) {
    const int64_t length = int64_t{static_cast<const int32_t*>(seqlens.data)[b]} + 1;
    if (length < (prompt ? 1 : p->n) || length > p->total)
      call->refuse(5,
                   "has " + std::to_string(length - 1) + ", and total_sequence_length is " + std::to_string(p->total));
    p->lengths[b] = static_cast<int32_t>(length);
    p->starts[b] = prompt ? 0 : static_cast<int32_t>(length - p->n);
    if (!prompt && p->starts[b] > p->past) call->refuse(5, "counts more tokens than there are in past_key");
  }
}

/// One head of a cache: what is past at its front, and zeros where no token is.
void carry(const Problem& p, const Tensor& past, const Tensor& present, int64_t b, int64_t head) {
  if (past.data == present.data) return;
  const int64_t row = p.d * p.size, used = p.starts[b] + p.n;
  char* const to = present.bytes() + head * p.capacity * row;
  if (p.starts[b] > 0) std::memcpy(to, past.bytes() + head * p.past * row, static_cast<size_t>(p.starts[b] * row));
  if (used < p.capacity) std::memset(to + used * row, 0, static_cast<size_t>((p.capacity - used) * row));
}

sa::View<4> view(const Problem& p, char* data, int64_t heads, int64_t row) {
  return sa::View<4>(data, p.type, {1, heads, p.n, p.d}, {0, p.d, row, 1});
}

/// Stores the new keys and values, and rotates. Returns the queries.
Rows store(Call* call, const Problem& p, const Tensor& present_k, const Tensor& present_v) {
  const bool rotates = call->node.do_rotary != 0;
  Rotation rotation;
  Rows queries = p.q;
  if (rotates) {
    const Tensor ids = call->input(9);
    if (ids) {
      call->expect(9, ids, {p.batch, p.n});
      if (ids.element != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) call->refuse(9, "is not int64");
    }
    rotation = make_rotation(call, 7, call->input(7), {p.batch, p.n, static_cast<const int64_t*>(ids.data), p.starts});
    if (2 * rotation.cos.shape[1] > p.d) call->refuse(7, "has more columns than half of a head");
    queries = {call->room<char>(p.batch * p.n * p.heads * p.d * p.size), p.heads * p.d};
  }
  const int64_t group = p.heads / p.kv_heads, row = p.d * p.size;
  const bool in_place = p.past_k.data == present_k.data && p.past_v.data == present_v.data;
  const int64_t tokens = p.n * (rotates ? group + 2 : 2) + (in_place ? 0 : 2 * p.capacity);
  call->check(call->parallel(p.batch * p.kv_heads, 2 * p.batch * p.kv_heads * tokens * row, [&](int64_t head) {
    const int64_t b = head / p.kv_heads, h = head % p.kv_heads;
    carry(p, p.past_k, present_k, b, head);
    carry(p, p.past_v, present_v, b, head);
    const int64_t first = (head * p.capacity + p.starts[b]) * row;
    const auto from = [&](const Rows& r, int64_t at) { return r.data + (b * p.n * r.row + at * p.d) * p.size; };
    for (const Rows* r : {&p.k, &p.v}) {
      if (r == &p.k && rotates) continue;
      char* const to = (r == &p.k ? present_k : present_v).bytes() + first;
      for (int64_t i = 0; i < p.n; ++i)
        std::memcpy(to + i * row, from(*r, h) + i * r->row * p.size, static_cast<size_t>(row));
    }
    if (!rotates) return sa::Status{};
    const sa::Positions at = rotation.positions(b);
    const sa::Status keys = sa::rope(view(p, from(p.k, h), 1, p.k.row), rotation.cos, rotation.sin, at,
                                     view(p, present_k.bytes() + first, 1, p.d), rotation.options);
    if (!keys.ok()) return keys;
    return sa::rope(view(p, from(p.q, h * group), group, p.q.row), rotation.cos, rotation.sin, at,
                    view(p, from(queries, h * group), group, queries.row), rotation.options);
  }));
  return queries;
}

/// head_sink, or the 0 of a smooth softmax.
const float* read_sinks(Call* call, int64_t heads) {
  const Tensor sink = call->input(11);
  if (!sink && call->node.smooth_softmax != 1) return nullptr;
  auto* const sinks = call->room<float>(heads);
  if (!sink) {
    std::fill(sinks, sinks + heads, 0.0f);
    return sinks;
  }
  call->expect(11, sink, {heads});
  const sa::ConstKv row = sa::ConstView<4>(sink.data, call->type_of(11, sink), {1, 1, 1, heads});
  call->check(sa::kv_read(row, 0, sa::View<4>(sinks, sa::DType::kF32, {1, 1, 1, heads})));
  return sinks;
}

sa::ConstView<4> read_bias(const Call& call, const Problem& p) {
  const Tensor t = call.input(10);
  if (!t) return {};
  call.expect(10, t, {-1, -1, p.n, p.total});
  if ((t.dim[0] != 1 && t.dim[0] != p.batch) || (t.dim[1] != 1 && t.dim[1] != p.heads))
    call.refuse(10, "has other numbers of sequences or heads than query, or than 1");
  const int64_t rows = p.n * p.total;
  return sa::ConstView<4>(t.data, call.type_of(10, t), {p.batch, p.heads, p.n, p.total},
                          {t.dim[0] == 1 ? 0 : t.dim[1] * rows, t.dim[1] == 1 ? 0 : rows, p.total, 1});
}

}  // namespace

void group_query_attention(Call* call) {
  const Node& node = call->node;
  Problem p;
  read_rows(*call, &p);
  read_lengths(call, &p);
  sa::AttentionProblem a;
  a.scoring.sinks = read_sinks(call, p.heads);
  a.scoring.bias = read_bias(*call, p);
  const Tensor out = call->output(0, {p.batch, p.n, p.heads * p.d});
  const Tensor present_k = call->output(1, {p.batch, p.kv_heads, p.capacity, p.d});
  const Tensor present_v = call->output(2, {p.batch, p.kv_heads, p.capacity, p.d});
  const Rows queries = store(call, p, present_k, present_v);
  if (out.size() == 0) return;

  const auto rows = [&](char* data, int64_t row) {
    return sa::View<4>(data, p.type, {p.batch, p.heads, p.n, p.d}, {p.n * row, p.d, row, 1});
  };
  const auto cache = [&](const Tensor& t) {
    sa::ConstKv kv = sa::ConstView<4>(t.data, p.type, {p.batch, p.kv_heads, p.capacity, p.d});
    kv.length = p.total;
    return kv;
  };
  a.q = rows(queries.data, queries.row);
  a.out = rows(out.bytes(), p.heads * p.d);
  a.k = cache(present_k);
  a.v = cache(present_v);
  a.scoring.causal = true;
  a.scoring.offsets = p.starts;
  a.scoring.kv_length = p.lengths;
  a.scoring.softcap = node.softcap;
  if (node.scale != 0) a.scoring.scale = node.scale;
  // From 1.24 on the window counts the row's own key.
  if (node.local_window_size > 0) a.scoring.window_left = node.local_window_size - (host.minor >= 24 ? 1 : 0);
  call->run(&a);
}

}  // namespace simdattn_onnxruntime
