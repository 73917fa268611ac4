// Ops of the vectors: attention with a state, and the convolution before it.
#include <algorithm>

#include "tests/conformance/conformance_run.h"

namespace conformance {
namespace {

using simdattn::DType;
using simdattn::View;

void check(const simdattn::Status& status, const char* function) {
  if (!status.ok()) throw EngineError(std::string(function) + ": " + status.detail);
}

/// An operand [B, n, heads * dim] as [B, heads, n, dim]; rank 3 or 4.
Slice<4> by_heads(const Operand& x, int64_t heads) {
  const int64_t batch = x.exact.dim(0), n = x.exact.dim(1);
  const int64_t row = batch * n == 0 ? 0 : x.exact.size() / (batch * n), d = row / heads;
  return {&x, {batch, heads, n, d}, {n * row, d, row, 1}};
}

/// Storage for an output, all ones at first: a NaN.
template <int kRank>
struct Storage {
  std::vector<unsigned char> bytes;
  View<kRank> view;
  Storage(DType dtype, const std::array<int64_t, kRank>& shape) : view(nullptr, dtype, shape) {
    int64_t elements = 1;
    for (const int64_t n : shape) elements *= n;
    bytes.assign(static_cast<size_t>(elements) * reference::bytes(dtype) + 1, 0xFF);
    view.data = bytes.data();
  }
  Tensor tensor() const { return reference::read(view); }
};

struct StateCase {
  explicit StateCase(const Case& test)
      : q(test.input("q")), k(test.input("k")), v(test.input("v")), rule(test.word("update_rule")) {
    heads = test.integer("heads_v");
    d_k = test.integer("head_dim_k");
    d_v = test.integer("head_dim_v");
    batch = test.integer("batch");
    n = test.integer("n");
    q4 = by_heads(q, test.integer("heads_q"));
    k4 = by_heads(k, test.integer("heads_k"));
    v4 = by_heads(v, heads);
    if (const Array* array = test.find_input("decay")) {
      decay = Operand(*array);
      decay4 = by_heads(decay, heads);
    }
    if (const Array* array = test.find_input("beta")) {
      beta = Operand(*array);
      beta4 = by_heads(beta, beta.exact.dim(2));
    }
    past = Tensor({batch, heads, d_k, d_v});
    if (const Array* array = test.find_input("past_state")) past = Operand(*array).exact;
    scale = test.number("scale");
  }
  Operand q, k, v, decay, beta;
  Slice<4> q4, k4, v4, decay4, beta4;
  Tensor past;
  std::string rule;
  int64_t heads, d_k, d_v, batch, n;
  double scale;
};

struct StateOutputs {
  Tensor out, state, states;
};

/// How a case is asked for; every way has the same bits.
struct Way {
  int64_t chunk = 0;  // tokens a call, 0: all
  bool transposed = false;
  bool by_tasks = false;  // last task first
  bool pool = false;      // states in another order, by an index
  DType out = DType::kF32;
};

StateOutputs run_library(const StateCase& c, const simdattn::Target& target, const Way& way) {
  simdattn::LinearAttentionProblem p;
  p.rule = c.rule == "linear"  ? simdattn::LinearRule::kLinear
           : c.rule == "gated" ? simdattn::LinearRule::kGated
           : c.rule == "delta" ? simdattn::LinearRule::kDelta
                               : simdattn::LinearRule::kGatedDelta;
  p.scale = static_cast<float>(c.scale);
  p.transposed = way.transposed;
  const int64_t out_heads = std::max(c.q4.shape[1], c.heads), spare = way.pool ? 1 : 0;
  const int64_t rows = way.transposed ? c.d_v : c.d_k, columns = way.transposed ? c.d_k : c.d_v;
  Storage<4> out(way.out, {c.batch, out_heads, c.n, c.d_v});
  Storage<4> state(DType::kF32, {c.batch + spare, c.heads, rows, columns});
  Storage<5> states(DType::kF32, {c.batch, c.n, c.heads, rows, columns});
  std::vector<int32_t> index;
  for (int64_t b = 0; b < c.batch; ++b) index.push_back(static_cast<int32_t>(way.pool ? c.batch - b : b));
  // [b, h, i, j] of a state, in a view.
  const auto element = [&](int64_t b, int64_t h, int64_t i, int64_t j) {
    return ((index[static_cast<size_t>(b)] * c.heads + h) * c.d_k + (way.transposed ? 0 : i)) * c.d_v +
           (way.transposed ? j * c.d_k + i : j);
  };
  float* const numbers = static_cast<float*>(state.view.data);
  for (const auto [b, h, i, j] : indices(c.batch, c.heads, c.d_k, c.d_v)) {
    numbers[element(b, h, i, j)] = static_cast<float>(c.past.at({b, h, i, j}));
  }
  p.state = state.view;
  if (way.pool) p.state_index = index.data();
  const auto part = [](const Slice<4>& x, int64_t t, int64_t tokens) {
    simdattn::ConstView<4> v = x.view();
    v.data = static_cast<const char*>(v.data) + t * v.stride[2] * static_cast<int64_t>(reference::bytes(v.dtype));
    v.shape[2] = tokens;
    return v;
  };
  const int64_t chunk = way.chunk > 0 ? way.chunk : std::max<int64_t>(c.n, 1);
  std::vector<char> memory;
  for (int64_t t = 0; t < c.n; t += chunk) {
    const int64_t tokens = std::min(chunk, c.n - t);
    p.q = part(c.q4, t, tokens);
    p.k = part(c.k4, t, tokens);
    p.v = part(c.v4, t, tokens);
    if (c.decay4.operand != nullptr) p.decay = part(c.decay4, t, tokens);
    if (c.beta4.operand != nullptr) p.beta = part(c.beta4, t, tokens);
    p.out = out.view;
    p.out.data = static_cast<char*>(p.out.data) + t * c.d_v * static_cast<int64_t>(reference::bytes(way.out));
    p.out.shape[2] = tokens;
    p.states = states.view;
    p.states.data = static_cast<float*>(p.states.data) + t * p.states.stride[1];
    p.states.shape[1] = tokens;
    memory.resize(simdattn::linear_attention_workspace(p));
    const simdattn::Exec exec = {.target = &target, .workspace = memory.data(), .workspace_bytes = memory.size()};
    if (!way.by_tasks) {
      check(simdattn::linear_attention(p, exec), "linear_attention");
      continue;
    }
    for (int64_t task = simdattn::linear_attention_tasks(p); task-- > 0;) {
      check(simdattn::linear_attention_range(p, task, task + 1, exec), "linear_attention_range");
    }
  }
  StateOutputs result = {out.tensor(), Tensor({c.batch, c.heads, c.d_k, c.d_v}),
                         Tensor({c.batch, c.n, c.heads, c.d_k, c.d_v})};
  for (const auto [b, h, i, j] : indices(c.batch, c.heads, c.d_k, c.d_v)) {
    result.state.at({b, h, i, j}) = numbers[element(b, h, i, j)];
    for (int64_t t = 0; t < c.n; ++t) {
      const int64_t at =
          ((b * c.n + t) * c.heads + h) * c.d_k * c.d_v + (way.transposed ? j * c.d_k + i : i * c.d_v + j);
      result.states.at({b, t, h, i, j}) = static_cast<const float*>(states.view.data)[at];
    }
  }
  return result;
}

void run_linear_attention(Run& run) {
  const StateCase c(run.test);
  if (run.engine.target() == nullptr) {
    const auto exact = [](const Slice<4>& x) { return x.operand != nullptr ? x.exact() : Tensor(); };
    const reference::StateResult r =
        reference::linear_attention({c.rule == "delta" || c.rule == "gated_delta", false, exact(c.q4), exact(c.k4),
                                     exact(c.v4), exact(c.decay4), exact(c.beta4), c.past, c.scale});
    run.expect("o", token_major(r.out));
    run.expect("present_state", r.state);
    run.expect("states", r.states);
    run.expect("onnx_o", token_major(r.out));
    run.expect("onnx_present_state", r.state);
    return;
  }
  const simdattn::Target& target = *run.engine.target();
  const StateOutputs first = run_library(c, target, {});
  run.expect("o", token_major(first.out));
  run.expect("present_state", first.state);
  run.expect("states", first.states);
  run.expect("onnx_o", token_major(first.out));
  run.expect("onnx_present_state", first.state);
  const std::pair<const char*, Way> ways[] = {{"token by token", {.chunk = 1}},
                                              {"in chunks of 5", {.chunk = 5}},
                                              {"in chunks of 64, states of a pool", {.chunk = 64, .pool = true}},
                                              {"transposed states", {.transposed = true}},
                                              {"transposed, in chunks of 3", {.chunk = 3, .transposed = true}},
                                              {"task by task", {.by_tasks = true}}};
  for (const auto& [what, way] : ways) {
    const StateOutputs other = run_library(c, target, way);
    run.expect_same(first.out, other.out, what);
    run.expect_same(first.state, other.state, what);
    run.expect_same(first.states, other.states, what);
  }
  if (c.q.dtype == DType::kF32) return;
  const StateOutputs narrow = run_library(c, target, {.out = c.q.dtype});
  run.expect("o", token_major(narrow.out), "in the input's type", run.stored_as(c.q.dtype));
  run.expect_same(first.state, narrow.state, "out in the input's type");
}

/// [B, C, n] as [B, n, C], or back.
Tensor swapped(const Tensor& x) {
  Tensor y({x.dim(0), x.dim(2), x.dim(1)});
  for (const auto [b, i, j] : indices(x.dim(0), x.dim(1), x.dim(2))) y.at({b, j, i}) = x.at({b, i, j});
  return y;
}

void run_causal_conv(Run& run) {
  const Case& test = run.test;
  const Operand x(test.input("x")), weight(test.input("weight"));
  Operand bias;
  if (const Array* array = test.find_input("bias")) bias = Operand(*array);
  const int64_t batch = x.exact.dim(0), channels = x.exact.dim(1), n = x.exact.dim(2), width = weight.exact.dim(1);
  const bool silu = test.word("activation") == "silu";
  Tensor past({batch, channels, width - 1});
  if (const Array* array = test.find_input("past_state")) past = Operand(*array).exact;
  if (run.engine.target() == nullptr) {
    Tensor state = past;
    const Tensor y = reference::causal_conv(x.exact, weight.exact, bias.exact, &state, silu);
    for (const char* name : {"y", "onnx_y"}) run.expect(name, y);
    for (const char* name : {"present_state", "onnx_present_state"}) run.expect(name, state);
    return;
  }
  struct Result {
    Tensor y, state;
  };
  const auto library = [&](bool channels_last, int64_t chunk, DType type) -> Result {
    const Operand ordered(channels_last ? swapped(x.exact) : x.exact, x.dtype);
    const Operand old(channels_last ? swapped(past) : past, x.dtype);
    const int64_t a = channels_last ? n : channels, b = channels_last ? channels : n;
    const int64_t c = channels_last ? width - 1 : channels, d = channels_last ? channels : width - 1;
    Storage<3> y(type, {batch, a, b}), state(x.dtype, {batch, c, d});
    std::copy(old.storage.begin(), old.storage.end(), state.bytes.begin());
    for (int64_t t = 0; t < n; t += chunk) {
      simdattn::CausalConvProblem p;
      const auto part = [&](auto v) {
        const int64_t step = channels_last ? v.stride[1] : 1;
        using Byte = std::remove_pointer_t<decltype(v.data)>;
        using Char = std::conditional_t<std::is_const_v<Byte>, const char, char>;
        v.data = static_cast<Char*>(v.data) + t * step * static_cast<int64_t>(reference::bytes(v.dtype));
        v.shape[channels_last ? 1 : 2] = std::min(chunk, n - t);
        return v;
      };
      p.x = part(reshape<3>(ordered, {batch, a, b}).view());
      p.out = part(y.view);
      p.weight = reshape<2>(weight, {channels, width}).view();
      if (!bias.storage.empty()) p.bias = reshape<1>(bias, {channels}).view();
      if (width > 1) p.state = state.view;
      p.channels_last = channels_last;
      p.silu = silu;
      check(simdattn::causal_conv(p, {.target = run.engine.target()}), "causal_conv");
    }
    const Tensor values = y.tensor(), left = state.tensor();
    return {channels_last ? swapped(values) : values, channels_last ? swapped(left) : left};
  };
  const int64_t all = std::max<int64_t>(n, 1);
  const Result first = library(false, all, DType::kF32);
  for (const char* name : {"y", "onnx_y"}) run.expect(name, first.y);
  for (const char* name : {"present_state", "onnx_present_state"}) run.expect(name, first.state);
  for (const bool channels_last : {false, true}) {
    for (const int64_t chunk : {all, int64_t{1}, int64_t{40}}) {
      const Result other = library(channels_last, chunk, DType::kF32);
      run.expect_same(first.y, other.y, "another order of dimensions, or chunks");
      run.expect_same(first.state, other.state, "another order of dimensions, or chunks");
    }
  }
  if (x.dtype != DType::kF32)
    run.expect("y", library(true, all, x.dtype).y, "in the input's type", run.stored_as(x.dtype));
}

}  // namespace

std::vector<Op> state_ops() { return {{"linear_attention", run_linear_attention}, {"causal_conv", run_causal_conv}}; }

}  // namespace conformance
