// Generates text greedily with a llama2.c model: the attention is the library's, everything around it is plain C++ in
// the order of llama2.c's run.c, whose text at temperature 0 this prints.
//
//   llama2_generate MODEL TOKENIZER [--prompt P] [--steps N] [--target T] [--arithmetic A] [--kv TYPE] [--hadamard]
//
// With another arithmetic or storage the text may leave that one: docs/numerics.md#accuracy says when.
#include <simdattn/extras.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "command_line.h"
#include "llama2_model.h"

namespace sa = simdattn;

namespace {

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

/// The model and its key/value cache of `capacity` tokens.
class Llama2 {
 public:
  Llama2(const Llama2Checkpoint& model, int64_t capacity, const AttentionOptions& options)
      : m_(model),
        c_(model.config),
        options_(options),
        capacity_(capacity),
        exec_{.target = options.target},
        table_(capacity, model.config.head_size()) {
    const auto layer_bytes = [&](sa::KvLayout layout) {
      return sa::kv_bytes(options_.type, layout, 1, c_.n_kv_heads, capacity, c_.head_size());
    };
    key_layer_ = layer_bytes(sa::KvLayout::kPanels);
    value_layer_ = layer_bytes(sa::KvLayout::kRows);
    keys_.resize(count(c_.n_layers * key_layer_));
    values_.resize(count(c_.n_layers * value_layer_));
    // One for each head and token. Those of fp8 are the caller's, and stay 1.
    if (sa::has_scales(options_.type)) scales_.assign(count(2 * c_.n_layers * scale_layer()), 1.0f);
  }

  /// Appends the tokens to the sequence; returns the likeliest next one.
  int next(std::span<const int> tokens) {
    const int64_t n = static_cast<int64_t>(tokens.size()), last = n - 1;
    const std::vector<float> logits =
        forward(m_, tokens, std::span(&last, 1), pool_,
                [&](int64_t layer, float* q, float* k, float* v, float* out) { attend(layer, n, q, k, v, out); });
    length_ += n;
    return best_token(logits, 0, c_.vocab_size);
  }

  /// Spent in the library: rotation, storing keys and values, attention.
  double attention_seconds() const { return attention_seconds_; }

 private:
  /// Appends n keys and values to layer l and attends to all of its keys.
  void attend(int64_t l, int64_t n, float* q, float* k, float* v, float* out) {
    const double start = now();
    const int64_t hk = c_.n_kv_heads, d = c_.head_size();
    const auto store = [&](std::byte* data, sa::KvLayout layout, int64_t number) {
      const sa::Kv kv = sa::contiguous_kv(data, options_.type, layout, 1, hk, capacity_, d);
      return scales_.empty() ? kv : sa::contiguous_scales(kv, scales_.data() + number * scale_layer());
    };
    const sa::Kv keys = store(keys_.data() + l * key_layer_, sa::KvLayout::kPanels, 2 * l);
    const sa::Kv values = store(values_.data() + l * value_layer_, sa::KvLayout::kRows, 2 * l + 1);
    const auto key_rows = rows_of(k, n, hk, d), value_rows = rows_of(v, n, hk, d);
    const auto queries = rows_of(q, n, c_.n_heads, d), outputs = rows_of(out, n, c_.n_heads, d);
    const auto rotate = [&](const sa::View<4>& rows) {
      check(sa::rope(rows, table_.rotation.cos, table_.rotation.sin, length_, rows, table_.rotation.options, exec_));
    };
    rotate(queries);
    if (options_.hadamard) {
      rotate(key_rows);
      for (const auto& rows : {key_rows, value_rows, queries}) check(sa::hadamard(rows, rows, 0, exec_));
      check(sa::kv_append(key_rows, {}, keys, {.start = length_}, exec_));
    } else {
      check(sa::kv_append(key_rows, {}, keys, {.rope = table_.rotation, .start = length_}, exec_));
    }
    check(sa::kv_append(value_rows, {}, values, {.start = length_}, exec_));

    sa::AttentionProblem problem{.q = queries, .k = keys, .v = values};
    problem.k.length = problem.v.length = length_ + n;
    problem.out = outputs;
    problem.arithmetic = options_.arithmetic;
    problem.scoring.causal = true;  // row i stands at position length_ + i: kBottomRight is the default
    sa::Plan plan;
    check(sa::attention_plan(problem, &plan, exec_));
    if (workspace_.size() < plan.workspace_bytes) workspace_.resize(plan.workspace_bytes);
    sa::Exec exec = exec_;
    exec.workspace = workspace_.data();
    exec.workspace_bytes = workspace_.size();
    check(sa::attention(problem, exec));
    if (options_.hadamard) check(sa::hadamard(outputs, outputs, 0, exec_));
    attention_seconds_ += now() - start;
  }

  int64_t scale_layer() const { return c_.n_kv_heads * capacity_; }

  const Llama2Checkpoint& m_;
  const Llama2Config& c_;
  AttentionOptions options_;
  int64_t capacity_;
  sa::Exec exec_;
  RopeTable table_;
  ThreadPool pool_{1};
  int64_t length_ = 0;                       // tokens in the cache
  int64_t key_layer_ = 0, value_layer_ = 0;  // bytes of one layer
  std::vector<float> scales_;
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
    "       llama2_generate --list-targets\n"
    "Prints the text of a llama2.c model at temperature 0. --steps 0: to the end of the model's context.";

template <class Names>
auto one_of(const Names& names, const std::string& option, const std::string& value) {
  std::string known;
  for (const auto& n : names) {
    if (value == n.name) return n.value;
    known += std::string(known.empty() ? "" : ", ") + n.name;
  }
  throw std::runtime_error(option + " takes one of " + known + ", not \"" + value + "\"");
}

Options parse(int argc, char** argv) {
  Options o;
  AttentionOptions& a = o.attention;
  o.files = CommandLine(kUsage)
                .text("--prompt", &o.prompt)
                .whole("--steps", &o.steps, 0, std::numeric_limits<int64_t>::max())
                .option("--target", [&](const std::string& name) { a.target = find_target(name); })
                .option("--arithmetic",
                        [&](const std::string& name) { a.arithmetic = one_of(kArithmetics, "--arithmetic", name); })
                .option("--kv", [&](const std::string& name) { a.type = one_of(kKvTypes, "--kv", name); })
                .flag("--hadamard", &a.hadamard)
                .flag("--list-targets", &o.list_targets)
                .parse(argc, argv);
  if (!o.list_targets && o.files.size() != 2) throw std::runtime_error(kUsage);
  return o;
}

int run(const Options& o) {
  if (o.list_targets) {
    for (const sa::Target* t : sa::targets()) {
      if (sa::target_runnable(*t)) std::printf("%s\n", sa::target_name(*t));
    }
    return 0;
  }
  AttentionOptions attention = o.attention;
  if (attention.target == nullptr) check(sa::default_target(&attention.target));
  const Llama2Checkpoint model = read_checkpoint(o.files[0]);
  const int64_t context = model.config.seq_len;
  const Llama2Tokenizer tokenizer(o.files[1], model.config.vocab_size);
  const std::vector<int> prompt = encode_prompt(tokenizer, o.prompt, context);
  const int64_t n_prompt = static_cast<int64_t>(prompt.size());
  const int64_t steps = o.steps == 0 ? context : std::min(o.steps, context);

  Llama2 llama(model, steps, attention);
  const double start = now();
  int chosen = llama.next(std::span(prompt).first(count(std::min(n_prompt, steps))));
  const double prefilled = now();
  int64_t decoded = 0;
  int token = prompt[0];
  for (int64_t position = 1; position <= steps; ++position) {
    const int next = position < n_prompt ? prompt[count(position)] : chosen;
    if (next == Llama2Tokenizer::kBos) break;
    const std::string_view piece = tokenizer.decode(token, next);
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
    token = next;
    if (position >= n_prompt && position < steps) {
      chosen = llama.next(std::span(&token, 1));
      ++decoded;
    }
  }
  const double stop = now();
  std::fflush(stdout);
  std::fputc('\n', stderr);  // stdout holds the text and nothing else
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw std::runtime_error("cannot write the text");

  const int64_t prefill = std::min(n_prompt, steps);
  std::fprintf(stderr, "%s: prompt of %lld tokens, %.0f tokens/s", sa::target_name(*attention.target),
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
  return run_program("llama2_generate", [&] { return run(parse(argc, argv)); });
}
