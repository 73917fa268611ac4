// Attention with a state: the gated delta rule, with a decay of a head or of its channels (KDA), for one token and for
// a prompt; and the convolution before it. States in place and, `_out`, as ggml has them: transposed, read from one
// array and written to another one; `ggml`: its layout of the convolution, tokens contiguous in the inputs and channels
// in outputs.
//
// One token goes through so many layers that their states come from beyond L2: the limit is reading and writing them
// once.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/harness.h"
#include "bench/shapes.h"

namespace bench {
namespace {

using simdattn::DType;

constexpr int64_t kHeads = 32, kDim = 128, kLayers = 8;

Work work_of(DType type, int64_t n, bool by_channel) {
  return {.kind = Kind::kState,
          .type = type,
          .heads = kHeads,
          .kv_heads = kHeads,
          .n_q = n,
          .d = kDim,
          .scale = 1 / std::sqrt(static_cast<float>(kDim)),
          .layers = n == 1 ? kLayers : 1,
          .by_channel = by_channel};
}

struct StateData {
  Buffer q, k, v, decay, beta, states, original, out, workspace;

  StateData(DType type, const Work& work) {
    const size_t rows = static_cast<size_t>(work.n_q * kHeads), elements = rows * kDim;
    q = random_buffer(type, elements, 1);
    k = random_buffer(type, elements, 2, 0.15f);  // of length 1 or so
    v = random_buffer(type, elements, 3);
    decay = random_buffer(DType::kF32, work.by_channel ? elements : rows, 4, 0.1f);
    beta = random_buffer(DType::kF32, rows, 5, 0.5f);
    const size_t decays = decay.size() / sizeof(float);
    for (size_t i = 0; i < decays; ++i) decay.as<float>()[i] = -std::abs(decay.as<float>()[i]);
    for (size_t i = 0; i < rows; ++i) beta.as<float>()[i] += 0.5f;
    original = random_buffer(DType::kF32, static_cast<size_t>(work.layers * kHeads * kDim * kDim), 6, 0.1f);
    states = Buffer(original.size());
    out = Buffer(elements * element_size(type));
  }
};

Prepared prepare(DType type, int64_t n, bool by_channel, bool in_place) {
  const Work work = work_of(type, n, by_channel);
  auto data = std::make_shared<StateData>(type, work);
  const size_t elements = static_cast<size_t>(n * kHeads) * kDim;
  const auto problem = [=, d = data.get()](int64_t layer) {
    const auto of = [&](const Buffer& b, DType t, int64_t columns) {
      return simdattn::View<4>(b.data(), t, {1, kHeads, n, columns}, {0, columns, kHeads * columns, 1});
    };
    simdattn::LinearAttentionProblem p;
    p.q = of(d->q, type, kDim), p.k = of(d->k, type, kDim), p.v = of(d->v, type, kDim);
    p.decay = of(d->decay, DType::kF32, by_channel ? kDim : 1), p.beta = of(d->beta, DType::kF32, 1);
    const int64_t first = layer * kHeads * kDim * kDim;
    p.state = {d->states.as<float>() + first, DType::kF32, {1, kHeads, kDim, kDim}};
    if (!in_place) {
      p.transposed = true;
      p.state_in = {d->original.as<float>() + first, DType::kF32, p.state.shape};
    }
    p.out = of(d->out, type, kDim);
    return p;
  };
  data->workspace = Buffer(simdattn::linear_attention_workspace(problem(0)));
  Prepared p;
  p.keep = data;
  p.run = [=, d = data.get()](const simdattn::Target* t, bool) {
    simdattn::Status s;
    for (int64_t layer = 0; layer < work.layers && s.ok(); ++layer) {
      s = simdattn::linear_attention(
          problem(layer), {.target = t, .workspace = d->workspace.data(), .workspace_bytes = d->workspace.size()});
    }
    return s;
  };
  if (in_place) p.reset = [d = data.get()] { std::memcpy(d->states.data(), d->original.data(), d->states.size()); };
  p.out = data->out.data();
  p.out_dtype = type;
  p.out_elements = p.count = elements;
  p.absolute = 1e-4;
  p.relative = type == DType::kF32 ? 1e-4 : 0x1p-7;
  if (n == 1) {
    p.copy_bytes = data->states.size();
    p.in_place = in_place;
  } else {
    // A multiply-add each: decay, reading, update, reading.
    p.flops = 2 * 4 * static_cast<double>(elements) * kDim;
  }
  p.work = work;
  p.work.q = data->q.data();
  p.work.k = data->k.data();
  p.work.v = data->v.data();
  p.work.decay = data->decay.as<float>();
  p.work.beta = data->beta.as<float>();
  p.work.states = data->original.as<float>();
  p.work.out = data->out.data();
  return p;
}

Prepared prepare_conv(DType type, int64_t n, bool as_ggml) {
  struct Data {
    Buffer x, weight, bias, state, original, out;
  };
  constexpr int64_t kChannels = 8192, kWidth = 4;
  auto data = std::make_shared<Data>();
  const size_t elements = static_cast<size_t>(n * kChannels);
  data->x = random_buffer(type, elements + kChannels * (kWidth - 1), 1);
  data->weight = random_buffer(type, kChannels * kWidth, 2);
  data->original = random_buffer(type, kChannels * (kWidth - 1), 4);
  data->state = Buffer(data->original.size());
  data->out = Buffer(elements * element_size(type));
  Prepared p;
  p.keep = data;
  p.run = [=, d = data.get()](const simdattn::Target* t, bool) {
    simdattn::CausalConvProblem c;
    c.weight = {d->weight.data(), type, {kChannels, kWidth}};
    c.out = {d->out.data(), type, {1, n, kChannels}};
    if (as_ggml) {
      const std::array<int64_t, 3> stride = {0, kWidth - 1 + n, 1};
      c.state_in = {d->x.data(), type, {1, kChannels, kWidth - 1}, stride};
      c.x = {
          d->x.as<char>() + (kWidth - 1) * static_cast<int64_t>(element_size(type)), type, {1, kChannels, n}, stride};
      c.out_transposed = true;
      return simdattn::causal_conv(c, {.target = t});
    }
    c.x = {d->x.data(), type, {1, n, kChannels}};
    c.state = {d->state.data(), type, {1, kWidth - 1, kChannels}};
    c.channels_last = c.silu = true;
    return simdattn::causal_conv(c, {.target = t});
  };
  p.reset = [d = data.get()] { std::memcpy(d->state.data(), d->original.data(), d->state.size()); };
  p.out = data->out.data();
  p.out_dtype = type;
  p.out_elements = p.count = elements;
  p.absolute = 1e-4;
  p.relative = type == DType::kF32 ? 1e-4 : 0x1p-7;
  p.copy_bytes = data->out.size();
  return p;
}

}  // namespace

void add_state_cases(std::vector<Case>& cases) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto add = [&](const char* kernel, const std::string& shape, std::function<Prepared()> run) -> Case& {
      Case c;
      c.kernel = kernel;
      c.shape = shape;
      c.type = type_name(type);
      c.main = type != DType::kF16;
      c.prepare = std::move(run);
      cases.push_back(std::move(c));
      return cases.back();
    };
    for (const int64_t n : {1, 512}) {
      const std::string tokens = std::to_string(n);
      for (const bool by_channel : {false, true}) {
        Case& c = add(by_channel ? "kda" : "gated_delta_net", "32heads_" + tokens,
                      [=] { return prepare(type, n, by_channel, true); });
        c.work = work_of(type, n, by_channel);
        c.peers = type == DType::kF32;
      }
      if (type == DType::kF32) {
        add("gated_delta_net", "32heads_" + tokens + "_out", [=] { return prepare(type, n, false, false); });
      }
      add("causal_conv", "8192x4_" + tokens, [=] { return prepare_conv(type, n, false); });
      add("causal_conv", "8192x4_" + tokens + "_ggml", [=] { return prepare_conv(type, n, true); });
    }
  }
}

}  // namespace bench
