// Speculative decoding: a cheap draft proposes how the text may go on, as a tree of tokens; the model looks at all of
// the tree in one call and keeps the path that it would have chosen itself. The text is that of greedy decoding, in
// fewer steps.
//
//   speculate MODEL TOKENIZER [--prompt TEXT] [--steps N] [--nodes N] [--branches N]
//
// The draft is the text so far: what followed the last few tokens where they stood before.
// docs/serving.md#speculative-decoding explains this file.
#include <simdattn/simdattn.h>

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

constexpr char kUsage[] =
    "usage: speculate MODEL TOKENIZER [--prompt TEXT] [--steps N] [--nodes N] [--branches N] [--target NAME]\n"
    "Prints the text of a llama2.c model at temperature 0, several tokens in a step.\n"
    "  --steps N        positions, prompt included; 0: to the end of the model's context (256)\n"
    "  --nodes N        tokens of a tree at most; 1: no draft, one token in a step (16)\n"
    "  --branches N     how many continuations are tried; 1: a chain (4)";

struct Options {
  std::vector<std::string> files;
  std::string prompt;
  int64_t steps = 256, nodes = 16, branches = 4;
  const sa::Target* target = nullptr;
};

// ---- The draft ------------------------------------------------------------------------------------------------------

/// Node 0 is the next token, which is certain; every other one may follow its parent, which stands before it.
struct Tree {
  struct Node {
    int token;
    int parent;  // -1: none
    int depth;
  };
  std::vector<Node> nodes;

  int size() const { return static_cast<int>(nodes.size()); }
  int child(int parent, int token) const {  // -1: none
    for (int i = parent + 1; i < size(); ++i) {
      if (nodes[count(i)].parent == parent && nodes[count(i)].token == token) return i;
    }
    return -1;
  }
};

/// What followed the last tokens of `text` where they stood before: up to `branches` places, those that agree on most
/// tokens first, of these the latest first. The text's last token becomes node 0.
Tree draft(std::span<const int> text, int64_t most_nodes, int64_t branches, int64_t most_depth) {
  constexpr size_t kLongest = 4;  // tokens that agree
  Tree tree;
  tree.nodes.push_back({text.back(), -1, 0});
  int64_t tried = 0;
  for (size_t agree = std::min(kLongest, text.size() - 1); agree >= 1; --agree) {
    const auto tail = text.last(agree);
    for (size_t end = text.size() - 1; end >= agree && tried < branches; --end) {  // text[end] followed
      const bool longer = agree < kLongest && end > agree && text[end - agree - 1] == text[text.size() - agree - 1];
      if (longer || !std::equal(tail.begin(), tail.end(), text.begin() + static_cast<std::ptrdiff_t>(end - agree)))
        continue;
      ++tried;
      int at = 0;
      for (size_t i = end; i < text.size() && tree.nodes[count(at)].depth < most_depth; ++i) {
        int next = tree.child(at, text[i]);
        if (next < 0) {
          if (tree.size() >= most_nodes) return tree;
          next = tree.size();
          tree.nodes.push_back({text[i], at, tree.nodes[count(at)].depth + 1});
        }
        at = next;
      }
    }
  }
  return tree;
}

// ---- The target -----------------------------------------------------------------------------------------------------

class Decoder {
 public:
  /// A cache of `capacity` tokens, and room for a tree of `nodes` behind it.
  Decoder(const Llama2Checkpoint& model, int64_t capacity, int64_t nodes, const sa::Target* target)
      : m_(model),
        c_(model.config),
        capacity_(capacity + nodes),
        exec_{.target = target},
        table_(capacity_, model.config.head_size()) {
    keys_.resize(count(c_.n_layers * layer_bytes(sa::KvLayout::kPanels)));
    values_.resize(count(c_.n_layers * layer_bytes(sa::KvLayout::kRows)));
  }

  /// Looks at all nodes of a tree in one call. Their keys and values then stand behind the cache. Returns the likeliest
  /// token after each node, or nothing if none is to be chosen: a prompt is a tree without branches.
  std::vector<int> look(const Tree& tree, bool choose) {
    const int64_t n = tree.size();
    std::vector<int> tokens;
    std::vector<int64_t> rows;
    positions_.clear();
    for (const Tree::Node& node : tree.nodes) {
      if (choose) rows.push_back(static_cast<int64_t>(tokens.size()));
      tokens.push_back(node.token);
      positions_.push_back(length_ + node.depth);
    }
    set_bits(tree);
    const std::vector<float> logits =
        forward(m_, tokens, rows, pool_,
                [&](int64_t layer, float* q, float* k, float* v, float* out) { attend(layer, n, q, k, v, out); });
    std::vector<int> best;
    for (const int64_t row : rows) best.push_back(best_token(logits, row, c_.vocab_size));
    return best;
  }

  /// Keeps the keys and values of a path of nodes from the root on; those of the others are given up.
  void keep(std::span<const int> path) {
    for (int64_t i = 0; i < static_cast<int64_t>(path.size()); ++i) {
      const int64_t from = length_ + path[count(i)], to = length_ + i;
      if (from == to) continue;
      // A key was rotated for its depth, which is where it comes to: no table.
      for (int64_t l = 0; l < c_.n_layers; ++l) {
        check(sa::kv_shift(store(keys_, sa::KvLayout::kPanels, l), from, from + 1, to - from, {}, exec_));
        check(sa::kv_shift(store(values_, sa::KvLayout::kRows, l), from, from + 1, to - from, {}, exec_));
      }
    }
    length_ += static_cast<int64_t>(path.size());
  }

 private:
  /// A node sees itself and what its parent sees: a row of bits for each node, a column for each node. A chain needs
  /// none.
  void set_bits(const Tree& tree) {
    const int64_t n = tree.size(), row_bytes = (n + 7) / 8;
    bits_.clear();
    if (tree.nodes.back().depth == n - 1) return;
    bits_.resize(count(n * row_bytes));
    for (int64_t i = 0; i < n; ++i) {
      uint8_t* const row = bits_.data() + i * row_bytes;
      if (i > 0) std::copy_n(bits_.data() + tree.nodes[count(i)].parent * row_bytes, row_bytes, row);
      row[i / 8] = static_cast<uint8_t>(row[i / 8] | 1 << i % 8);
    }
  }

  int64_t layer_bytes(sa::KvLayout layout) const {
    return sa::kv_bytes(sa::KvType::kF32, layout, 1, c_.n_kv_heads, capacity_, c_.head_size());
  }
  sa::Kv store(std::vector<std::byte>& memory, sa::KvLayout layout, int64_t layer) {
    return sa::contiguous_kv(memory.data() + layer * layer_bytes(layout), sa::KvType::kF32, layout, 1, c_.n_kv_heads,
                             capacity_, c_.head_size());
  }

  void attend(int64_t layer, int64_t n, float* q, float* k, float* v, float* out) {
    const int64_t h = c_.n_heads, hk = c_.n_kv_heads, d = c_.head_size();
    const sa::Kv keys = store(keys_, sa::KvLayout::kPanels, layer), values = store(values_, sa::KvLayout::kRows, layer);
    // A node's place in the cache is behind those before it; its position, for the rotation, is behind its parent.
    const auto positions = sa::view(static_cast<const int64_t*>(positions_.data()), {1, n});
    const sa::KeyRotation& rope = table_.rotation;
    for (const auto& rows : {rows_of(q, n, h, d), rows_of(k, n, hk, d)}) {
      check(sa::rope(rows, rope.cos, rope.sin, positions, rows, rope.options, exec_));
    }
    check(sa::kv_append(rows_of(k, n, hk, d), {}, keys, {.start = length_}, exec_));
    check(sa::kv_append(rows_of(v, n, hk, d), {}, values, {.start = length_}, exec_));

    sa::AttentionProblem problem{.q = rows_of(q, n, h, d), .k = keys, .v = values, .out = rows_of(out, n, h, d)};
    problem.k.length = problem.v.length = length_ + n;
    if (bits_.empty()) problem.scoring.causal = true;
    else problem.scoring.packed_mask = {.data = bits_.data(), .columns = n, .stride = {0, 0, (n + 7) / 8}};
    sa::Plan plan;
    check(sa::attention_plan(problem, &plan, exec_));
    if (workspace_.size() < plan.workspace_bytes) workspace_.resize(plan.workspace_bytes);
    sa::Exec exec = exec_;
    exec.workspace = workspace_.data();
    exec.workspace_bytes = workspace_.size();
    check(sa::attention(problem, exec));
  }

  const Llama2Checkpoint& m_;
  const Llama2Config& c_;
  int64_t capacity_;
  int64_t length_ = 0;  // tokens of the cache that stay
  sa::Exec exec_;
  RopeTable table_;
  ThreadPool pool_{1};
  std::vector<int64_t> positions_;
  std::vector<uint8_t> bits_;
  std::vector<std::byte> keys_, values_, workspace_;
};

// ---- The program ----------------------------------------------------------------------------------------------------

int run(int argc, char** argv) {
  Options o;
  o.files = CommandLine(kUsage)
                .text("--prompt", &o.prompt)
                .whole("--steps", &o.steps, 0, std::numeric_limits<int64_t>::max())
                .whole("--nodes", &o.nodes, 1, 1024)
                .whole("--branches", &o.branches, 1, 1024)
                .option("--target", [&](const std::string& name) { o.target = find_target(name); })
                .parse(argc, argv);
  if (o.files.size() != 2) throw std::runtime_error(kUsage);
  if (o.target == nullptr) check(sa::default_target(&o.target));
  const Llama2Checkpoint model = read_checkpoint(o.files[0]);
  const int64_t context = model.config.seq_len;
  const Llama2Tokenizer tokenizer(o.files[1], model.config.vocab_size);
  const int64_t limit = o.steps == 0 ? context : std::min(o.steps, context);  // tokens that come into the cache
  std::vector<int> text = encode_prompt(tokenizer, o.prompt, context);
  if (static_cast<int64_t>(text.size()) > limit + 1) text.resize(count(limit + 1));

  size_t printed = 1;
  const auto print = [&] {  // up to BOS; false behind it
    for (; printed < text.size(); ++printed) {
      if (text[printed] == Llama2Tokenizer::kBos) return false;
      const std::string_view piece = tokenizer.decode(text[printed - 1], text[printed]);
      std::fwrite(piece.data(), 1, piece.size(), stdout);
    }
    std::fflush(stdout);
    return true;
  };

  Decoder decoder(model, limit, std::max(o.nodes, static_cast<int64_t>(text.size())), o.target);
  const size_t n_prompt = text.size();
  if (n_prompt > 1 &&
      static_cast<int64_t>(n_prompt) <= limit) {  // all of the prompt but its last token, the first root
    Tree chain;
    std::vector<int> path;
    for (int i = 0; i + 1 < static_cast<int>(n_prompt); ++i) {
      chain.nodes.push_back({text[count(i)], i - 1, i});
      path.push_back(i);
    }
    decoder.look(chain, false);
    decoder.keep(path);
  }

  const double start = now();
  int64_t steps = 0, looked_at = 0;
  while (print() && static_cast<int64_t>(text.size()) <= limit) {
    // Tokens beyond the limit would be thrown away: the deepest node is the last that comes into the cache.
    const Tree tree = draft(text, o.nodes, o.branches, limit - static_cast<int64_t>(text.size()));
    const std::vector<int> best = decoder.look(tree, true);
    std::vector<int> path = {0};
    // As far as the draft says what the model chooses; and one token more, which the model says alone.
    for (int at = 0;;) {
      text.push_back(best[count(at)]);
      at = tree.child(at, best[count(at)]);
      if (at < 0) break;
      path.push_back(at);
    }
    decoder.keep(path);
    ++steps;
    looked_at += tree.size();
  }
  const double stop = now();
  std::fputc('\n', stderr);  // stdout holds the text and nothing else
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw std::runtime_error("cannot write the text");

  const int64_t made = static_cast<int64_t>(text.size() - n_prompt);
  const auto per_step = [&](int64_t n) { return steps > 0 ? static_cast<double>(n) / static_cast<double>(steps) : 0; };
  std::fprintf(stderr, "%s: %lld tokens in %lld steps, %.2f in a step from trees of %.1f; %.0f tokens/s\n",
               sa::target_name(*o.target), static_cast<long long>(made), static_cast<long long>(steps), per_step(made),
               per_step(looked_at), static_cast<double>(made) / (stop - start));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("speculate", [&] { return run(argc, argv); });
}
