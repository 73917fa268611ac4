// Generates text greedily with a llama2.c model: the attention is the library's, everything around it is plain C++ in
// the order of llama2.c's run.c, whose text at temperature 0 this prints.
//
//   llama2_generate MODEL TOKENIZER [--prompt P] [--steps N] [--target T] [--arithmetic A] [--kv TYPE] [--hadamard]
//
// With another arithmetic or storage the text may leave that one: docs/accuracy.md says when.
#include <simdattn/simdattn.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "llama2_checkpoint.h"
#include "llama2_tokenizer.h"

namespace sa = simdattn;

namespace {

void check(const sa::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.detail);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

size_t count(int64_t n) { return static_cast<size_t>(n); }

/// out[r,i] = sum_j w[i,j] x[r,j], ascending j
void matmul(float* out, const float* x, const float* w, int64_t rows, int64_t n_in, int64_t n_out) {
  for (int64_t i = 0; i < n_out; ++i) {
    for (int64_t r = 0; r < rows; ++r) {
      float sum = 0;
      for (int64_t j = 0; j < n_in; ++j) sum += w[i * n_in + j] * x[r * n_in + j];
      out[r * n_out + i] = sum;
    }
  }
}

void rms_norm(float* out, const float* x, const float* weight, int64_t rows, int64_t dim) {
  for (int64_t r = 0; r < rows; ++r, x += dim, out += dim) {
    float squares = 0;
    for (int64_t j = 0; j < dim; ++j) squares += x[j] * x[j];
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(dim) + 1e-5f);
    for (int64_t j = 0; j < dim; ++j) out[j] = weight[j] * (scale * x[j]);
  }
}

struct ArithmeticName {
  const char* name;
  sa::Arithmetic value;
};
constexpr ArithmeticName kArithmetics[] = {
    {"f32", sa::Arithmetic::kF32}, {"bf16", sa::Arithmetic::kBF16}, {"int8", sa::Arithmetic::kInt8}};
struct KvTypeName {
  const char* name;
  sa::KvType value;
};
// Blocks of 32 (q8_0 and its like) want head sizes of a multiple of 32; kv_append says so.
constexpr KvTypeName kKvTypes[] = {{"f32", sa::KvType::kF32},      {"bf16", sa::KvType::kBF16},
                                   {"f16", sa::KvType::kF16},      {"int8", sa::KvType::kInt8},
                                   {"e4m3", sa::KvType::kFp8E4M3}, {"e5m2", sa::KvType::kFp8E5M2},
                                   {"q8_0", sa::KvType::kQ8_0},    {"q4_0", sa::KvType::kQ4_0}};

/// How attention is computed.
struct AttentionOptions {
  const sa::Target* target = nullptr;
  sa::Arithmetic arithmetic = sa::Arithmetic::kF32;
  sa::KvType type = sa::KvType::kF32;
  bool hadamard = false;  // rotate queries and keys, values and outputs
};

/// The transformer and its key/value cache of `capacity` tokens.
class Llama2 {
 public:
  Llama2(const Llama2Checkpoint& model, int64_t capacity, const AttentionOptions& options)
      : m_(model), c_(model.config), options_(options), capacity_(capacity), exec_{.target = options.target} {
    const int64_t half = c_.head_size() / 2;
    cos_.resize(count(capacity * half));
    sin_.resize(count(capacity * half));
    check(sa::rope_table(sa::view(cos_.data(), {capacity, half}), sa::view(sin_.data(), {capacity, half})));
    const auto layer_bytes = [&](sa::KvLayout layout) {
      return sa::kv_bytes(options_.type, layout, 1, c_.n_kv_heads, capacity, c_.head_size());
    };
    key_layer_ = layer_bytes(sa::KvLayout::kPanels);
    value_layer_ = layer_bytes(sa::KvLayout::kRows);
    keys_.resize(count(c_.n_layers * key_layer_));
    values_.resize(count(c_.n_layers * value_layer_));
    // One for each head and token. Those of fp8 are the caller's, and stay 1.
    if (sa::has_scales(options_.type)) scales_.assign(count(2 * c_.n_layers * scale_layer()), 1.0f);
    logits_.resize(count(c_.vocab_size));
  }

  /// Appends the tokens to the sequence; returns the logits of what follows the last.
  std::span<const float> forward(std::span<const int> tokens) {
    const int64_t n = static_cast<int64_t>(tokens.size());
    const int64_t dim = c_.dim, hidden = c_.hidden_dim, kv_dim = c_.kv_dim();
    std::vector<float> x(count(n * dim)), y(x.size()), q(x.size()), k(count(n * kv_dim)), v(k.size());
    std::vector<float> gate(count(n * hidden)), up(gate.size());
    for (int64_t r = 0; r < n; ++r) std::copy_n(m_.token_embedding + tokens[count(r)] * dim, dim, x.data() + r * dim);

    for (int64_t l = 0; l < c_.n_layers; ++l) {
      rms_norm(y.data(), x.data(), m_.rms_att + l * dim, n, dim);
      matmul(q.data(), y.data(), m_.wq + l * dim * dim, n, dim, dim);
      matmul(k.data(), y.data(), m_.wk + l * dim * kv_dim, n, dim, kv_dim);
      matmul(v.data(), y.data(), m_.wv + l * dim * kv_dim, n, dim, kv_dim);
      attend(l, n, q.data(), k.data(), v.data(), y.data());
      matmul(q.data(), y.data(), m_.wo + l * dim * dim, n, dim, dim);
      for (size_t i = 0; i < x.size(); ++i) x[i] += q[i];

      rms_norm(y.data(), x.data(), m_.rms_ffn + l * dim, n, dim);
      matmul(gate.data(), y.data(), m_.w1 + l * dim * hidden, n, dim, hidden);
      matmul(up.data(), y.data(), m_.w3 + l * dim * hidden, n, dim, hidden);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] * (1.0f / (1.0f + std::exp(-gate[i]))) * up[i];
      matmul(y.data(), gate.data(), m_.w2 + l * hidden * dim, n, hidden, dim);
      for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
    }
    length_ += n;

    rms_norm(y.data(), x.data() + (n - 1) * dim, m_.rms_final, 1, dim);
    matmul(logits_.data(), y.data(), m_.classifier, 1, dim, c_.vocab_size);
    return logits_;
  }

  /// Spent in the library: rotation, storing keys and values, attention.
  double attention_seconds() const { return attention_seconds_; }

 private:
  /// Appends n keys and values to layer l and attends to all of its keys. q, k, v and out are [n, heads * head_size], so
  /// their views have the strides of [batch, heads, n, head_size] in that order.
  void attend(int64_t l, int64_t n, float* q, float* k, float* v, float* out) {
    const double start = now();
    const int64_t h = c_.n_heads, hk = c_.n_kv_heads, d = c_.head_size(), dim = c_.dim, kv_dim = c_.kv_dim();
    const int64_t half = d / 2;
    const auto cos = sa::view(cos_.data(), {capacity_, half});
    const auto sin = sa::view(sin_.data(), {capacity_, half});
    const sa::RopeOptions pairs{.pairing = sa::RopePairing::kInterleaved};
    sa::RopeOptions query_pairs = pairs;
    query_pairs.start = length_;

    const auto store = [&](std::byte* data, sa::KvLayout layout, int64_t number) {
      const sa::Kv kv = sa::contiguous_kv(data, options_.type, layout, 1, hk, capacity_, d);
      return scales_.empty() ? kv : sa::contiguous_scales(kv, scales_.data() + number * scale_layer());
    };
    const sa::Kv keys = store(keys_.data() + l * key_layer_, sa::KvLayout::kPanels, 2 * l);
    const sa::Kv values = store(values_.data() + l * value_layer_, sa::KvLayout::kRows, 2 * l + 1);
    const auto key_rows = sa::view(k, {1, hk, n, d}, {n * kv_dim, d, kv_dim, 1});
    const auto value_rows = sa::view(v, {1, hk, n, d}, {n * kv_dim, d, kv_dim, 1});
    const auto queries = sa::view(q, {1, h, n, d}, {n * dim, d, dim, 1});
    const auto outputs = sa::view(out, {1, h, n, d}, {n * dim, d, dim, 1});
    check(sa::rope(queries, cos, sin, {}, queries, query_pairs, exec_));
    if (options_.hadamard) {
      sa::RopeOptions key_pairs = query_pairs;
      check(sa::rope(key_rows, cos, sin, {}, key_rows, key_pairs, exec_));
      for (const auto& rows : {key_rows, value_rows, queries}) check(sa::hadamard(rows, rows, 0, exec_));
      check(sa::kv_append(key_rows, {}, keys, {.start = length_}, exec_));
    } else {
      check(sa::kv_append(key_rows, {}, keys, {.rope = {.cos = cos, .sin = sin, .options = pairs}, .start = length_},
                          exec_));
    }
    check(sa::kv_append(value_rows, {}, values, {.start = length_}, exec_));

    sa::Attention problem{.q = queries, .k = keys, .v = values};
    problem.k.length = problem.v.length = length_ + n;
    problem.out = outputs;
    problem.arithmetic = options_.arithmetic;
    problem.scoring.causal = true;  // row i stands at position length_ + i: kBottomRight is the default
    sa::AttentionPlan plan;
    check(sa::attention_plan(problem, &plan, exec_));
    if (workspace_.size() < plan.workspace_bytes) workspace_.resize(plan.workspace_bytes);
    sa::Exec exec = exec_;
    exec.workspace = workspace_.data();
    exec.workspace_bytes = workspace_.size();
    check(sa::attention(problem, exec));
    if (options_.hadamard) check(sa::hadamard(outputs, outputs, 0, exec_));
    attention_seconds_ += now() - start;
  }

  const Llama2Checkpoint& m_;
  const Llama2Config& c_;
  AttentionOptions options_;
  int64_t capacity_;
  sa::Exec exec_;
  int64_t length_ = 0;                       // tokens in the cache
  int64_t key_layer_ = 0, value_layer_ = 0;  // bytes of one layer
  int64_t scale_layer() const { return c_.n_kv_heads * capacity_; }
  std::vector<float> cos_, sin_, logits_, scales_;
  std::vector<std::byte> keys_, values_, workspace_;
  double attention_seconds_ = 0;
};

struct Options {
  std::vector<std::string> files;
  std::string prompt;
  int64_t steps = 256;  // 0: to the end of the model's context
  AttentionOptions attention;
  bool list_targets = false;
};

constexpr char kUsage[] =
    "usage: llama2_generate MODEL TOKENIZER [--prompt TEXT] [--steps N] [--target NAME]\n"
    "                       [--arithmetic f32|bf16|int8] [--kv TYPE] [--hadamard]\n"
    "       llama2_generate --list-targets";

template <class Names>
auto one_of(const Names& names, const std::string& option, const std::string& value) {
  std::string known;
  for (const auto& n : names) {
    if (value == n.name) return n.value;
    known += std::string(known.empty() ? "" : ", ") + n.name;
  }
  throw std::runtime_error(option + " takes one of " + known + ", not \"" + value + "\"");
}

Options parse(std::span<char* const> arguments) {
  Options o;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string name = arguments[i];
    if (name == "--list-targets") {
      o.list_targets = true;
      continue;
    }
    if (name == "--hadamard") {
      o.attention.hadamard = true;
      continue;
    }
    if (!name.starts_with("--")) {
      o.files.push_back(name);
      continue;
    }
    if (i + 1 == arguments.size()) throw std::runtime_error(name + " needs a value\n" + kUsage);
    const std::string value = arguments[++i];
    if (name == "--prompt") {
      o.prompt = value;
    } else if (name == "--steps") {
      const char* const end = value.data() + value.size();
      const auto parsed = std::from_chars(value.data(), end, o.steps);
      if (parsed.ec != std::errc() || parsed.ptr != end || o.steps < 0) {
        throw std::runtime_error("--steps takes a whole number from 0, not \"" + value + "\"");
      }
    } else if (name == "--target") {
      const sa::Status found = sa::find_target(value.c_str(), &o.attention.target);
      if (!found.ok()) throw std::runtime_error("--target " + value + ": " + found.detail);
    } else if (name == "--arithmetic") {
      o.attention.arithmetic = one_of(kArithmetics, name, value);
    } else if (name == "--kv") {
      o.attention.type = one_of(kKvTypes, name, value);
    } else {
      throw std::runtime_error("unknown option " + name + "\n" + kUsage);
    }
  }
  if (!o.list_targets && o.files.size() != 2) throw std::runtime_error(kUsage);
  return o;
}

int run(const Options& o) {
  if (o.list_targets) {
    for (const sa::Target* t : sa::targets()) {
      if (sa::runnable(*t)) std::printf("%s\n", sa::name(*t));
    }
    return 0;
  }
  AttentionOptions attention = o.attention;
  if (attention.target == nullptr) check(sa::default_target(&attention.target));
  const Llama2Checkpoint model = read_checkpoint(o.files[0]);
  const int64_t context = model.config.seq_len;
  const Llama2Tokenizer tokenizer(o.files[1], model.config.vocab_size);
  const std::vector<int> prompt = tokenizer.encode(o.prompt, context);
  const int64_t n_prompt = static_cast<int64_t>(prompt.size());
  if (n_prompt > context) {
    throw std::runtime_error("the prompt is " + std::to_string(n_prompt) +
                             " tokens, more than the model's context of " + std::to_string(context));
  }
  const int64_t steps = o.steps == 0 ? context : std::min(o.steps, context);

  Llama2 llama(model, steps, attention);
  const double start = now();
  std::span<const float> logits = llama.forward(std::span(prompt).first(count(std::min(n_prompt, steps))));
  const double prefilled = now();
  int64_t decoded = 0;
  int token = prompt[0];
  for (int64_t position = 1; position <= steps; ++position) {
    const int next = position < n_prompt
                         ? prompt[count(position)]
                         : static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    if (next == Llama2Tokenizer::kBos) break;
    const std::string_view piece = tokenizer.decode(token, next);
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
    token = next;
    if (position >= n_prompt && position < steps) {
      logits = llama.forward(std::span(&token, 1));
      ++decoded;
    }
  }
  const double stop = now();
  std::fflush(stdout);
  std::fputc('\n', stderr);  // stdout holds the text and nothing else
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw std::runtime_error("cannot write the text");

  const int64_t prefill = std::min(n_prompt, steps);
  std::fprintf(stderr, "%s: prompt of %lld tokens, %.0f tokens/s", sa::name(*attention.target),
               static_cast<long long>(prefill), static_cast<double>(prefill) / (prefilled - start));
  if (decoded > 0) {
    std::fprintf(stderr, "; decoded %lld tokens, %.0f tokens/s", static_cast<long long>(decoded),
                 static_cast<double>(decoded) / (stop - prefilled));
  }
  std::fprintf(stderr, "; %.0f %% of the time in attention\n", 100 * llama.attention_seconds() / (stop - start));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(std::span(argv, count(argc)).subspan(1)));
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "llama2_generate: not enough memory\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "llama2_generate: %s\n", error.what());
  }
  return 1;
}
