#include <simdattn/extras.h>

#include <cstring>

#include "kernels.h"

namespace simdattn_onnxruntime {
namespace {

/// [batch, n, heads * d] or [batch, heads, n, d] as [batch, heads, n, d].
sa::View<4> heads_of(const Call& call, int index, const Tensor& t, sa::DType type, int64_t heads) {
  if (t.rank == 4) return sa::View<4>(t.data, type, {t.dim[0], t.dim[1], t.dim[2], t.dim[3]});
  if (t.rank != 3) call.refuse(index, "has neither 3 nor 4 dimensions");
  if (heads < 1 || t.dim[2] % heads != 0)
    call.refuse(index, "cannot be divided into " + std::to_string(heads) + " heads");
  const int64_t d = t.dim[2] / heads, row = t.dim[2];
  return sa::View<4>(t.data, type, {t.dim[0], heads, t.dim[1], d}, {t.dim[1] * row, d, row, 1});
}

/// Queries, keys and values of a node, and what they have in common.
struct Rows {
  sa::View<4> q, k, v;
  int rank = 0;  // of the queries
};
Rows read_rows(const Call& call, int64_t heads, int64_t kv_heads) {
  Rows r;
  sa::View<4>* const views[] = {&r.q, &r.k, &r.v};
  for (int i = 0; i < 3; ++i) {
    const Tensor t = call.input(i);
    if (!t) call.refuse(i, "is needed");
    if (i == 0) r.rank = t.rank;
    sa::View<4>& v = *views[i];
    v = heads_of(call, i, t, call.type_of(i, t), i == 0 ? heads : kv_heads);
    if (v.shape[0] != r.q.shape[0]) call.refuse(i, "has another batch size");
    if (v.dtype != r.q.dtype) call.refuse(i, "has another type than the queries");
  }
  if (r.k.shape[3] != r.q.shape[3]) call.refuse(1, "has heads of another size than the queries");
  if (r.k.shape[1] != r.v.shape[1] || r.k.shape[2] != r.v.shape[2])
    call.refuse(2, "has other numbers of heads or tokens than the keys");
  if (r.k.shape[1] < 1 || r.q.shape[1] % r.k.shape[1] != 0)
    call.refuse(1, "has a number of heads that does not divide that of the queries");
  return r;
}

/// Checked before anything is written: how many tokens are past.
int64_t read_past(const Call& call, int index, const sa::View<4>& fresh, Tensor* past) {
  *past = call.input(index);
  if (!*past) return 0;
  call.expect(index, *past, {fresh.shape[0], fresh.shape[1], -1, fresh.shape[3]});
  if (call.type_of(index, *past) != fresh.dtype) call.refuse(index, "has another type than the queries");
  return past->dim[2];
}

/// Keys or values: as they are, or behind what is past in the output `index`.
sa::ConstKv join(const Call& call, const sa::View<4>& fresh, const Tensor& past, int64_t before, int index) {
  const int64_t batch = fresh.shape[0], heads = fresh.shape[1], n = fresh.shape[2], d = fresh.shape[3];
  const Tensor present = call.output(index, {batch, heads, before + n, d});
  if (!present) return sa::ConstKv(fresh);
  const int64_t size = sa::dtype_bytes(fresh.dtype), row = d * size;
  call.check(call.parallel(batch * heads, 2 * batch * heads * (before + n) * row, [&](int64_t head) {
    char* to = present.bytes() + head * (before + n) * row;
    if (before > 0) std::memcpy(to, past.bytes() + head * before * row, static_cast<size_t>(before * row));
    to += before * row;
    const char* const from =
        static_cast<const char*>(fresh.data) + (head / heads * fresh.stride[0] + head % heads * fresh.stride[1]) * size;
    for (int64_t i = 0; i < n; ++i)
      std::memcpy(to + i * row, from + i * fresh.stride[2] * size, static_cast<size_t>(row));
    return sa::Status{};
  }));
  return sa::ConstKv(sa::View<4>(present.data, fresh.dtype, {batch, heads, before + n, d}));
}

/// The problem of all that a node has but what it masks. False: there is nothing to compute.
bool begin(Call* call, Rows* r, int past_index, sa::AttentionProblem* p) {
  Tensor past_k, past_v;
  const int64_t before = read_past(*call, past_index, r->k, &past_k);
  if (read_past(*call, past_index + 1, r->v, &past_v) != before)
    call->refuse(past_index + 1, "has another number of tokens than past_key");
  const Node& node = call->node;
  const int64_t batch = r->q.shape[0], heads = r->q.shape[1], n = r->q.shape[2], d = r->v.shape[3];
  const bool by_head = node.kind == Kind::kAttention && r->rank == 4;
  const Tensor out = by_head ? call->output(0, {batch, heads, n, d}) : call->output(0, {batch, n, heads * d});
  p->k = join(*call, r->k, past_k, before, 1);
  p->v = join(*call, r->v, past_v, before, 2);
  p->q = r->q;
  p->out = heads_of(*call, 0, out, r->q.dtype, heads);
  if (node.scale != 0) p->scoring.scale = node.scale;
  p->scoring.softcap = node.softcap;
  p->scoring.causal = node.causal != 0;
  if (node.causal != 0) p->scoring.offset = before;
  return out.size() != 0;
}

/// A tensor that broadcasts to [batch, heads, n, tokens] as NumPy has it; its last dimension is `tokens`.
sa::ConstView<4> broadcast(const Call& call, int index, const Tensor& t, sa::DType type, const sa::View<4>& q,
                           int64_t tokens) {
  const std::array<int64_t, 4> shape{q.shape[0], q.shape[1], q.shape[2], tokens};
  std::array<int64_t, 4> stride{};
  int64_t step = 1;
  if (t.rank > 4 || t.rank < 1) call.refuse(index, "has neither 1, 2, 3 nor 4 dimensions");
  for (int i = t.rank - 1; i >= 0; --i) {
    const auto at = static_cast<size_t>(4 - t.rank + i);
    const int64_t n = t.dim[static_cast<size_t>(i)];
    if (n != shape[at] && (n != 1 || at == 3)) call.refuse(index, "does not broadcast to the shape of the scores");
    stride[at] = n == 1 && at != 3 ? 0 : step;
    step *= n;
  }
  return sa::ConstView<4>(t.data, type, shape, stride);
}

// ---- MultiHeadAttention ---------------------------------------------------------------------------------------------

/// x plus a part of `bias`, [heads * d] numbers for all rows.
sa::View<4> biased(Call* call, const sa::View<4>& x, const char* bias) {
  const int64_t batch = x.shape[0], heads = x.shape[1], n = x.shape[2], d = x.shape[3];
  const int64_t size = sa::dtype_bytes(x.dtype), numbers = batch * heads * n * d;
  const sa::View<4> sum(call->room<char>(numbers * size), x.dtype, {batch, heads, n, d});
  call->check(call->parallel(batch * heads, 2 * numbers * size, [&](int64_t head) {
    const int64_t h = head % heads;
    const auto part = [&](const sa::View<4>& v) {
      return sa::View<4>(static_cast<char*>(v.data) + (head / heads * v.stride[0] + h * v.stride[1]) * size, v.dtype,
                         {1, 1, n, d}, {0, 0, v.stride[2], 1});
    };
    return sa::add_rows(part(x), sa::ConstView<4>(bias + h * d * size, x.dtype, {1, 1, n, d}, {0, 0, 0, 1}), part(sum));
  }));
  return sum;
}

/// key_padding_mask [batch, tokens] or [batch, n, tokens] as numbers to add, with attention_bias where there is one.
sa::ConstView<4> padding(Call* call, const Tensor& mask, const Tensor& bias, const sa::View<4>& q, int64_t tokens) {
  const int64_t batch = q.shape[0], n = q.shape[2];
  const bool by_row = mask.rank == 3;
  if (mask.element != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) call->refuse(4, "is not int32");
  if (by_row) {
    call->expect(4, mask, {batch, n, tokens});
  } else {
    call->expect(4, mask, {batch, tokens});
  }
  sa::ConstView<4> added;
  float* wide = nullptr;
  if (bias) {
    added = broadcast(*call, 5, bias, call->type_of(5, bias), q, tokens);
    wide = call->room<float>(tokens);
  }
  const int64_t heads = bias && bias.dim[1] != 1 ? q.shape[1] : 1, rows = bias || by_row ? n : 1;
  auto* const sum = call->room<float>(batch * heads * rows * tokens);
  float* to = sum;
  for (int64_t i = 0; i < batch * heads * rows; ++i, to += tokens) {
    const int64_t b = i / (heads * rows), h = i / rows % heads, row = i % rows;
    const int32_t* const kept =
        static_cast<const int32_t*>(mask.data) + (b * (by_row ? n : 1) + (by_row ? row : 0)) * tokens;
    if (bias) {
      const int64_t at = b * added.stride[0] + h * added.stride[1] + row * added.stride[2];
      const sa::ConstKv line = sa::ConstView<4>(
          static_cast<const char*>(added.data) + at * sa::dtype_bytes(added.dtype), added.dtype, {1, 1, 1, tokens});
      call->check(sa::kv_read(line, 0, sa::View<4>(wide, sa::DType::kF32, {1, 1, 1, tokens})));
    }
    for (int64_t j = 0; j < tokens; ++j)
      to[j] = (bias ? wide[j] : 0.0f) + (kept[j] > 0 ? 0.0f : call->node.mask_filter_value);
  }
  return sa::ConstView<4>(sum, sa::DType::kF32, {batch, q.shape[1], n, tokens},
                          {heads * rows * tokens, heads == 1 ? 0 : rows * tokens, rows == 1 ? 0 : tokens, 1});
}

/// What `unidirectional` masks where there are not as many new keys as rows: nothing of the last row. ONNX Runtime's
/// kernel does so, and models of one row a token rest on it.
sa::ConstView<4> causal_mask(Call* call, const sa::View<4>& q, int64_t before, int64_t tokens) {
  const int64_t n = q.shape[2];
  auto* const mask = call->room<uint8_t>(n * tokens);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t seen = i == n - 1 ? tokens : std::min(before + i + 1, tokens);
    std::memset(mask + i * tokens, 1, static_cast<size_t>(seen));
    std::memset(mask + i * tokens + seen, 0, static_cast<size_t>(tokens - seen));
  }
  return sa::ConstView<4>(mask, sa::DType::kU8, {q.shape[0], q.shape[1], n, tokens}, {0, 0, tokens, 1});
}

/// Whether ONNX Runtime has the mask: of all heads together, with a key for each row. Rows without one are not zeros
/// there.
bool stock_has(const Tensor& mask, int64_t n, int64_t tokens) {
  const bool is_bool = mask.element == ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;
  if (!is_bool && mask.element != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) return false;
  if (mask.rank != 2 && (mask.rank != 4 || mask.dim[1] != 1)) return false;
  const auto rank = static_cast<size_t>(mask.rank);
  if (mask.dim[rank - 2] != n || mask.dim[rank - 1] != tokens) return false;
  for (int64_t i = 0; i < mask.size(); i += tokens) {
    const auto* const kept = static_cast<const uint8_t*>(mask.data) + i;
    const auto* const added = static_cast<const float*>(mask.data) + i;
    const auto shows = [](float x) { return x > -1e30f; };
    if (is_bool ? std::memchr(kept, 1, static_cast<size_t>(tokens)) == nullptr
                : std::none_of(added, added + tokens, shows))
      return false;
  }
  return true;
}

}  // namespace

void multi_head_attention(Call* call) {
  const Node& node = call->node;
  Rows r = read_rows(*call, node.num_heads, node.num_heads);
  const Tensor sums = call->input(3), mask = call->input(4), bias = call->input(5), past = call->input(6);
  const int64_t tokens = (past ? past.dim[2] : 0) + r.k.shape[2];
  sa::AttentionProblem p;
  if (mask) {
    p.scoring.bias = padding(call, mask, bias, r.q, tokens);
  } else if (bias) {
    p.scoring.bias = broadcast(*call, 5, bias, call->type_of(5, bias), r.q, tokens);
  }
  if (sums) {
    const int64_t width = r.q.shape[1] * r.q.shape[3], v_width = r.v.shape[1] * r.v.shape[3];
    call->expect(3, sums, {2 * width + v_width});
    if (call->type_of(3, sums) != r.q.dtype) call->refuse(3, "has another type than query");
    const int64_t size = sa::dtype_bytes(r.q.dtype);
    const bool cross = call->input(1).rank == 4;  // keys and values that are projected already
    r.q = biased(call, r.q, sums.bytes());
    if (!cross) {
      r.k = biased(call, r.k, sums.bytes() + width * size);
      r.v = biased(call, r.v, sums.bytes() + 2 * width * size);
    }
  }
  const int64_t fresh = r.k.shape[2];
  if (!begin(call, &r, 6, &p)) return;
  if (node.causal != 0 && fresh != r.q.shape[2]) {
    p.scoring.causal = false;
    p.scoring.mask = causal_mask(call, r.q, tokens - fresh, tokens);
  }
  call->run(&p);
}

// ---- Attention of ONNX ----------------------------------------------------------------------------------------------

void attention(Call* call) {
  const Node& node = call->node;
  Rows r = read_rows(*call, node.num_heads, node.kv_num_heads);
  const Tensor mask = call->input(3);
  const int64_t batch = r.q.shape[0], heads = r.q.shape[1], n = r.q.shape[2], d = r.v.shape[3];
  const int64_t keys = r.k.shape[2];
  if (batch > 0 && call->is_level(n, keys, heads != r.k.shape[1]) && (!mask || stock_has(mask, n, keys))) {
    const Call::Shape by_row{{batch, n, heads * d}, 3}, by_head{{batch, heads, n, d}, 4};
    return call->give_back({r.rank == 3 ? by_row : by_head});
  }
  const Tensor past = call->input(4), nonpad = call->input(6);
  int64_t tokens = (past ? past.dim[2] : 0) + r.k.shape[2];
  sa::AttentionProblem p;
  if (mask) {
    // Keys behind the columns of a mask are masked.
    if (mask.rank > 0) tokens = std::min(tokens, mask.dim[static_cast<size_t>(mask.rank - 1)]);
    if (mask.element == ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL) {
      p.scoring.mask = broadcast(*call, 3, mask, sa::DType::kU8, r.q, tokens);
    } else {
      p.scoring.bias = broadcast(*call, 3, mask, call->type_of(3, mask), r.q, tokens);
    }
  }
  if (nonpad) {
    call->expect(6, nonpad, {batch});
    if (nonpad.element != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) call->refuse(6, "is not int64");
    auto* const lengths = call->room<int32_t>(batch);
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t length = static_cast<const int64_t*>(nonpad.data)[b];
      if (length < 0 || length > (past ? past.dim[2] : 0) + r.k.shape[2])
        call->refuse(6, "has " + std::to_string(length) + ", which is no number of keys");
      lengths[b] = static_cast<int32_t>(std::min(length, tokens));
    }
    p.scoring.kv_length = lengths;
  }
  if (!begin(call, &r, 4, &p)) return;
  p.k.length = p.v.length = tokens;
  call->run(&p);
}

}  // namespace simdattn_onnxruntime
