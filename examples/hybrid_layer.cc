// A hybrid model's layers in one program: a causal convolution, the gated delta rule, then softmax attention with a KV
// cache. A prompt in chunks, then token by token, as a server runs them; every output is compared with float64.
// docs/guide-layers.md explains it.
//
//   hybrid_layer [--tokens N] [--prompt N] [--chunk N] [--target NAME]
#include <simdattn/simdattn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "command_line.h"

namespace sa = simdattn;

namespace {

constexpr char kUsage[] =
    "usage: hybrid_layer [--tokens N] [--prompt N] [--chunk N] [--target NAME]\n"
    "Runs a layer with a state and a layer with a KV cache over one sequence, and compares them with float64.\n"
    "  --tokens N       tokens of the sequence (96)\n"
    "  --prompt N       tokens that are there at the beginning (70)\n"
    "  --chunk N        tokens of the prompt in a call (32)";

constexpr int64_t kHeads = 4, kKeyHeads = 2, kDim = 32;               // of both layers
constexpr int64_t kWidth = 4;                                         // of the convolution
constexpr int64_t kKeys = kKeyHeads * kDim, kValues = kHeads * kDim;  // numbers of a token
constexpr int64_t kChannels = 2 * kKeys + kValues;                    // q, k and v side by side

struct Options {
  int64_t tokens = 96, prompt = 70, chunk = 32;
  const sa::Target* target = nullptr;
};

void check(const sa::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.detail);
}

/// Numbers in -1 .. 1, the same everywhere.
struct Numbers {
  uint32_t state = 1;
  float next() {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  std::vector<float> some(int64_t n, float factor) {
    std::vector<float> result(static_cast<size_t>(n));
    for (float& x : result) x = factor * next();
    return result;
  }
};

/// What the layers' projections would give for the tokens of a sequence: the inputs of this program.
struct Inputs {
  explicit Inputs(int64_t n) : tokens(n) {}
  int64_t tokens;
  Numbers numbers;
  std::vector<float> conv = numbers.some(kChannels * kWidth, 0.5f), bias = numbers.some(kChannels, 0.1f);
  std::vector<float> mixed = numbers.some(tokens * kChannels, 1);  // before the convolution
  std::vector<float> decay = numbers.some(tokens * kHeads, 0.2f);  // made negative below
  std::vector<float> beta = numbers.some(tokens * kHeads, 1);      // made 0 .. 1 below
  std::vector<float> query = numbers.some(tokens * kValues, 1), key = numbers.some(tokens * kKeys, 1);
};

// ---- The layers -----------------------------------------------------------------------------------------------------

/// What a sequence keeps between calls. The first two do not grow with its length.
struct Memory {
  explicit Memory(int64_t tokens)
      : inputs(static_cast<size_t>((kWidth - 1) * kChannels)),
        state(static_cast<size_t>(kHeads * kDim * kDim)),
        keys(static_cast<size_t>(sa::kv_bytes(sa::KvType::kF32, sa::KvLayout::kPanels, 1, kKeyHeads, tokens, kDim))),
        values(static_cast<size_t>(sa::kv_bytes(sa::KvType::kF32, sa::KvLayout::kRows, 1, kKeyHeads, tokens, kDim))),
        k(sa::contiguous_kv(keys.data(), sa::KvType::kF32, sa::KvLayout::kPanels, 1, kKeyHeads, tokens, kDim)),
        v(sa::contiguous_kv(values.data(), sa::KvType::kF32, sa::KvLayout::kRows, 1, kKeyHeads, tokens, kDim)) {}
  std::vector<float> inputs, state;
  std::vector<char> keys, values;
  sa::Kv k, v;
};

/// Heads of tokens that lie one behind the other: [1, heads, n, dim].
template <class T>
auto heads_of(T* data, int64_t heads, int64_t n, int64_t dim, int64_t row) {
  return sa::view(data, {1, heads, n, dim}, {0, dim, row, 1});
}

/// Tokens first .. first + n - 1 through both layers; out [n, kHeads * kDim].
void run_layers(const Inputs& in, int64_t first, int64_t n, Memory& memory, const sa::Target* target, float* linear,
                float* out) {
  sa::Exec exec = {.target = target};
  std::vector<float> mixed(static_cast<size_t>(n * kChannels));

  sa::CausalConvProblem conv;
  conv.x = sa::view(in.mixed.data() + first * kChannels, {1, n, kChannels});
  conv.weight = sa::view(in.conv.data(), {kChannels, kWidth});
  conv.bias = sa::view(in.bias.data(), {kChannels});
  conv.state = sa::view(memory.inputs.data(), {1, kWidth - 1, kChannels});
  conv.out = sa::view(mixed.data(), {1, n, kChannels});
  conv.channels_last = true;
  conv.silu = true;
  check(sa::causal_conv(conv, exec));

  // Keys and queries of length 1, as models of this kind have them: the delta rule then removes what a key has stored.
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t h = 0; h < 2 * kKeyHeads; ++h) {
      float* const x = mixed.data() + row * kChannels + h * kDim;
      float sum = 1e-6f;
      for (int64_t i = 0; i < kDim; ++i) sum += x[i] * x[i];
      for (int64_t i = 0; i < kDim; ++i) x[i] /= std::sqrt(sum);
    }
  }

  sa::LinearAttentionProblem delta;
  delta.rule = sa::LinearRule::kGatedDelta;
  delta.q = heads_of<const float>(mixed.data(), kKeyHeads, n, kDim, kChannels);
  delta.k = heads_of<const float>(mixed.data() + kKeys, kKeyHeads, n, kDim, kChannels);
  delta.v = heads_of<const float>(mixed.data() + 2 * kKeys, kHeads, n, kDim, kChannels);
  delta.decay = heads_of(in.decay.data() + first * kHeads, kHeads, n, 1, kHeads);
  delta.beta = heads_of(in.beta.data() + first * kHeads, kHeads, n, 1, kHeads);
  delta.state = sa::view(memory.state.data(), {1, kHeads, kDim, kDim});
  delta.out = heads_of(linear, kHeads, n, kDim, kValues);
  std::vector<char> workspace(sa::linear_attention_workspace(delta));
  exec.workspace = workspace.data();
  exec.workspace_bytes = workspace.size();
  check(sa::linear_attention(delta, exec));

  // The next layer is of the usual kind. Its values are the first heads of the other one's output.
  const auto keys = heads_of(in.key.data() + first * kKeys, kKeyHeads, n, kDim, kKeys);
  check(sa::kv_append(keys, {}, memory.k, {.start = first}, exec));
  check(
      sa::kv_append(heads_of<const float>(linear, kKeyHeads, n, kDim, kValues), {}, memory.v, {.start = first}, exec));
  sa::AttentionProblem attention;
  attention.q = heads_of(in.query.data() + first * kValues, kHeads, n, kDim, kValues);
  attention.k = memory.k;
  attention.v = memory.v;
  attention.k.length = attention.v.length = first + n;
  attention.out = heads_of(out, kHeads, n, kDim, kValues);
  attention.scoring.causal = true;
  sa::Plan plan;
  check(sa::attention_plan(attention, &plan, exec));
  workspace.resize(std::max(workspace.size(), plan.workspace_bytes));
  exec.workspace = workspace.data();
  exec.workspace_bytes = workspace.size();
  check(sa::attention(attention, exec));
}

// ---- The same in float64 --------------------------------------------------------------------------------------------

/// All tokens at once, from the formulas.
std::vector<double> formula(const Inputs& in, std::vector<double>* linear) {
  const auto at = [](const auto& x, int64_t i) { return static_cast<double>(x[static_cast<size_t>(i)]); };
  std::vector<double> mixed(in.mixed.size()), out(static_cast<size_t>(in.tokens * kValues));
  const auto m = [&](int64_t t, int64_t c) -> double& { return mixed[static_cast<size_t>(t * kChannels + c)]; };
  for (int64_t t = 0; t < in.tokens; ++t) {
    for (int64_t c = 0; c < kChannels; ++c) {
      double sum = at(in.bias, c);
      for (int64_t j = 0; j < kWidth; ++j) {
        const int64_t from = t + j - (kWidth - 1);
        if (from >= 0) sum += at(in.conv, c * kWidth + j) * at(in.mixed, from * kChannels + c);
      }
      m(t, c) = sum / (1 + std::exp(-sum));
    }
    for (int64_t h = 0; h < 2 * kKeyHeads; ++h) {
      double sum = 1e-6;
      for (int64_t i = 0; i < kDim; ++i) sum += m(t, h * kDim + i) * m(t, h * kDim + i);
      for (int64_t i = 0; i < kDim; ++i) m(t, h * kDim + i) /= std::sqrt(sum);
    }
  }
  linear->assign(static_cast<size_t>(in.tokens * kValues), 0);
  for (int64_t h = 0; h < kHeads; ++h) {
    const int64_t q_at = h / 2 * kDim, k_at = kKeys + h / 2 * kDim, v_at = 2 * kKeys + h * kDim;
    for (int64_t j = 0; j < kDim; ++j) {
      double state[kDim] = {};
      for (int64_t t = 0; t < in.tokens; ++t) {
        double read = 0, sum = 0;
        for (int64_t i = 0; i < kDim; ++i) {
          state[i] *= std::exp(at(in.decay, t * kHeads + h));
          read += m(t, k_at + i) * state[i];
        }
        const double u = at(in.beta, t * kHeads + h) * (m(t, v_at + j) - read);
        for (int64_t i = 0; i < kDim; ++i) {
          state[i] += m(t, k_at + i) * u;
          sum += m(t, q_at + i) * state[i];
        }
        (*linear)[static_cast<size_t>(t * kValues + h * kDim + j)] = sum / std::sqrt(static_cast<double>(kDim));
      }
    }
  }
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t t = 0; t < in.tokens; ++t) {
      std::vector<double> weight;
      double total = 0;
      for (int64_t s = 0; s <= t; ++s) {
        double score = 0;
        for (int64_t i = 0; i < kDim; ++i) {
          score += at(in.query, t * kValues + h * kDim + i) * at(in.key, s * kKeys + h / 2 * kDim + i);
        }
        weight.push_back(std::exp(score / std::sqrt(static_cast<double>(kDim))));
        total += weight.back();
      }
      for (int64_t j = 0; j < kDim; ++j) {
        double sum = 0;
        for (int64_t s = 0; s <= t; ++s)
          sum += weight[static_cast<size_t>(s)] * at(*linear, s * kValues + h / 2 * kDim + j);
        out[static_cast<size_t>(t * kValues + h * kDim + j)] = sum / total;
      }
    }
  }
  return out;
}

int run(const Options& options) {
  Inputs in(options.tokens);
  for (float& x : in.decay) x = -std::fabs(x);
  for (float& x : in.beta) x = 0.5f + 0.5f * x;
  const auto outputs = [&](int64_t prompt, int64_t chunk, std::vector<float>* linear) {
    Memory memory(options.tokens);
    std::vector<float> out(static_cast<size_t>(options.tokens * kValues));
    linear->resize(out.size());
    for (int64_t t = 0, n; t < options.tokens; t += n) {
      n = t < prompt ? std::min(chunk, prompt - t) : 1;
      run_layers(in, t, n, memory, options.target, linear->data() + t * kValues, out.data() + t * kValues);
    }
    return out;
  };
  std::vector<float> linear, other;
  std::vector<double> exact_linear;
  const std::vector<float> out = outputs(std::min(options.prompt, options.tokens), options.chunk, &linear);
  const bool same = out == outputs(options.tokens, options.tokens, &other) && linear == other;
  const std::vector<double> exact = formula(in, &exact_linear);
  double error = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    error = std::max({error, std::fabs(out[i] - exact[i]), std::fabs(linear[i] - exact_linear[i])});
  }
  std::printf("%lld tokens, the largest difference to float64 is %.2g, %s in one call\n",
              static_cast<long long>(options.tokens), error, same ? "the same bits" : "other bits");
  return same && error < 2e-7 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("hybrid_layer", [&] {
    Options options;
    CommandLine line(kUsage);
    line.whole("--tokens", &options.tokens, 1, 4096)
        .whole("--prompt", &options.prompt, 0, 4096)
        .whole("--chunk", &options.chunk, 1, 4096)
        .option("--target", [&](const std::string& name) { check(sa::find_target(name.c_str(), &options.target)); });
    if (!line.parse(argc, argv).empty()) throw std::runtime_error(line.usage());
    return run(options);
  });
}
