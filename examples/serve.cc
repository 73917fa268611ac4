// Continuous batching: many sequences join and leave, and share one cache of pages. A step is one attention over all of
// them, whether they bring a chunk of their prompt or one token. What begins alike is stored once, and read once.
//
//   serve MODEL TOKENIZER [--prompts FILE] [--steps N] [--sequences N] [--rows N] [--pages N]
//         [--page-size N] [--threads N]
//
// Every text is, to the byte, what llama2_generate prints for its prompt alone. docs/serving.md explains this file.
#include <simdattn/simdattn.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "command_line.h"
#include "join_states.h"
#include "llama2_model.h"

namespace sa = simdattn;

namespace {

constexpr char kUsage[] =
    "usage: serve MODEL TOKENIZER [--prompts FILE] [--steps N] [--sequences N] [--rows N] [--pages N]\n"
    "             [--page-size N] [--threads N] [--no-cascade] [--digest] [--target NAME]\n"
    "Continues many prompts at once with a llama2.c model at temperature 0.\n"
    "  --prompts FILE   a prompt a line; else 64 of the program's own\n"
    "  --steps N        positions of a sequence, prompt included; 0: to the end of the model's context (256)\n"
    "  --sequences N    how many run at a time (64)\n"
    "  --rows N         tokens of a step; longer prompts come in chunks (256)\n"
    "  --pages N        pages of the cache; 0: as many as the sequences can need (0)\n"
    "  --page-size N    tokens of a page: 32, 64, ... 1024 (32)\n"
    "  --threads N      (what the machine has)\n"
    "  --no-cascade     attend to a shared prefix once for each sequence\n"
    "  --digest         print a number beside each text that changes with any bit of any logit";

struct Options {
  std::vector<std::string> files;
  std::string prompts;
  int64_t steps = 256, sequences = 64, rows = 256, pages = 0, page_size = 32, threads = 0;
  bool no_cascade = false, digest = false;
  const sa::Target* target = nullptr;
};

// ---- Pages ----------------------------------------------------------------------------------------------------------

/// Which pages are free, and how many sequences use each of the others.
class PagePool {
 public:
  explicit PagePool(int64_t pages) : users_(count(pages), 0) {
    for (int64_t page = pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
  }
  int64_t available() const { return static_cast<int64_t>(free_.size()); }
  int64_t in_use() const { return static_cast<int64_t>(users_.size() - free_.size()); }
  int32_t take() {
    const int32_t page = free_.back();
    free_.pop_back();
    users_[count(page)] = 1;
    return page;
  }
  int32_t share(int32_t page) {
    ++users_[count(page)];
    return page;
  }
  void give_back(int32_t page) {
    if (--users_[count(page)] == 0) free_.push_back(page);
  }

 private:
  std::vector<int32_t> free_, users_;
};

/// Keys and values of all layers: pages of key panels and of value rows, with one number for both.
class PagedCache {
 public:
  PagedCache(const Llama2Config& c, int64_t pages, int64_t page_size) : c_(c), pages_(pages), page_size_(page_size) {
    keys_.resize(count(c.n_layers * layer_bytes(sa::KvLayout::kPanels)));
    values_.resize(count(c.n_layers * layer_bytes(sa::KvLayout::kRows)));
  }
  /// Sequence s of `sequences` has the pages table[s * width], table[s * width + 1], ...
  sa::Kv keys(int64_t layer, const std::vector<int32_t>& table, int64_t sequences) {
    return store(keys_, sa::KvLayout::kPanels, layer, table, sequences);
  }
  sa::Kv values(int64_t layer, const std::vector<int32_t>& table, int64_t sequences) {
    return store(values_, sa::KvLayout::kRows, layer, table, sequences);
  }

 private:
  int64_t layer_bytes(sa::KvLayout layout) const {
    return sa::kv_bytes(sa::KvType::kF32, layout, pages_, c_.n_kv_heads, page_size_, c_.head_size());
  }
  sa::Kv store(std::vector<std::byte>& memory, sa::KvLayout layout, int64_t layer, const std::vector<int32_t>& table,
               int64_t sequences) {
    sa::Kv kv = sa::contiguous_kv(memory.data() + layer * layer_bytes(layout), sa::KvType::kF32, layout, pages_,
                                  c_.n_kv_heads, page_size_, c_.head_size());
    kv.batch = sequences;
    kv.block_table = table.data();
    kv.block_table_stride = static_cast<int64_t>(table.size()) / sequences;
    kv.capacity = kv.block_table_stride * page_size_;
    kv.page_size = page_size_;
    kv.n_pages = pages_;
    return kv;
  }

  const Llama2Config& c_;
  int64_t pages_, page_size_;
  std::vector<std::byte> keys_, values_;
};

// ---- A step ---------------------------------------------------------------------------------------------------------

struct Sequence {
  size_t request;
  std::vector<int> tokens;  // the prompt, then what was chosen
  int64_t stored = 0;       // how many of them have their keys and values in the cache
  int64_t rows = 0;         // how many more this step brings
  std::vector<int32_t> pages = {};
  uint64_t digest = 14695981039346656037u;  // FNV-1a over the logits of all choices

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
};

/// Part of a batch that sees the same keys or its own: rows cu_q[s] .. cu_q[s+1] and keys 0 .. lengths[s] of sequence
/// s.
struct Ragged {
  std::vector<int32_t> cu_q = {0}, lengths, table;
  int64_t sequences() const { return static_cast<int64_t>(lengths.size()); }
  int64_t rows() const { return cu_q.back(); }
  void add(int64_t n_rows, int64_t n_keys, const int32_t* pages, int64_t n_pages, int64_t table_width) {
    cu_q.push_back(static_cast<int32_t>(rows() + n_rows));
    lengths.push_back(static_cast<int32_t>(n_keys));
    table.insert(table.end(), pages, pages + n_pages);
    table.resize(count(sequences() * table_width), -1);  // never looked at: the sequence has no keys there
  }
};

/// All arrays of a step. The first shared.rows() rows of `own` are those of `shared`.
struct Batch {
  std::vector<int> tokens;
  std::vector<int64_t> positions, slots;  // of every row: in its sequence, and in the pool of pages
  std::vector<int64_t> wanted;            // rows whose logits choose a token
  Ragged own, shared;
};

class Attention {
 public:
  Attention(const Llama2Config& c, int64_t capacity, PagedCache& cache, ThreadPool& pool, const sa::Target* target)
      : c_(c), cache_(cache), pool_(pool), target_(target), table_(capacity, c.head_size()) {
    workspaces_.resize(count(pool.size()));
  }

  /// Layer `layer` of a step; all layers of a step have the same Batch.
  void run(const Batch& batch, int64_t layer, float* q, float* k, float* v, float* out) {
    const double start = now();
    store(batch, layer, q, k, v);
    const double stored = now();
    const int64_t rows = batch.own.rows(), h = c_.n_heads, d = c_.head_size();
    const bool cascade = batch.shared.rows() > 0;
    if (cascade) reserve(rows);

    sa::AttentionProblem own = problem(batch.own, layer, q);
    own.scoring.causal = true;  // a sequence's last row stands at its last key
    own.out = rows_of(out, rows, h, d);
    if (cascade) give_state(own, 0, rows);
    run(own, layer, &own_plan_);
    if (cascade) {
      // Every row stands behind all of the prefix: no mask.
      sa::AttentionProblem shared = problem(batch.shared, layer, q);
      give_state(shared, 1, rows);
      run(shared, layer, &shared_plan_);
      const TwoStates states = {acc_.data(), max_.data(), sum_.data(), batch.shared.rows(), rows, h, d};
      join_(states, out, [&](int number, const sa::AttentionProblem& join) { run(join, layer, &join_plans_[number]); });
    }
    store_seconds += stored - start;
    attention_seconds += now() - stored;
  }

  double store_seconds = 0, attention_seconds = 0;

 private:
  /// Rotates queries, and stores keys and values in their pages: blocks of rows, each on some thread.
  void store(const Batch& batch, int64_t layer, float* q, float* k, float* v) {
    constexpr int64_t kRows = 16;
    const int64_t rows = batch.own.rows(), h = c_.n_heads, hk = c_.n_kv_heads, d = c_.head_size();
    sa::Kv keys = cache_.keys(layer, batch.own.table, batch.own.sequences());
    sa::Kv values = cache_.values(layer, batch.own.table, batch.own.sequences());
    keys.batch = values.batch = 1;  // with slots all rows are one sequence, and no table is read
    const sa::KeyRotation& rope = table_.rotation;
    pool_.run((rows + kRows - 1) / kRows, [&](int64_t task, int) {
      const int64_t first = task * kRows, n = std::min(kRows, rows - first);
      const auto positions = sa::view(batch.positions.data() + first, {1, n});
      const auto slots = sa::view(batch.slots.data() + first, {1, n});
      const auto queries = rows_of(q + first * h * d, n, h, d);
      const sa::Exec exec{.target = target_};
      check(sa::rope(queries, rope.cos, rope.sin, positions, queries, rope.options, exec));
      check(
          sa::kv_append(rows_of(k + first * hk * d, n, hk, d), positions, keys, {.rope = rope, .slots = slots}, exec));
      check(sa::kv_append(rows_of(v + first * hk * d, n, hk, d), {}, values, {.slots = slots}, exec));
    });
  }

  sa::AttentionProblem problem(const Ragged& part, int64_t layer, const float* q) {
    const int64_t h = c_.n_heads, d = c_.head_size();
    return {.q = sa::view(q, {1, h, part.rows(), d}, {part.rows() * h * d, d, h * d, 1}),
            .k = cache_.keys(layer, part.table, part.sequences()),
            .v = cache_.values(layer, part.table, part.sequences()),
            .scoring = {.kv_length = part.lengths.data()},
            .cu_q = part.cu_q.data(),
            .n_sequences = part.sequences()};
  }

  /// One plan serves all layers of a step. Its tasks run on the pool, in any order: the bits are the same.
  void run(const sa::AttentionProblem& problem, int64_t layer, sa::Plan* plan) {
    check(layer == 0 ? sa::attention_plan(problem, plan, {.target = target_, .threads = pool_.size()})
                     : sa::attention_bind(problem, plan));
    if (partial_.size() < plan->partial_bytes) partial_.resize(plan->partial_bytes);
    const auto exec = [&](int thread) {
      std::vector<std::byte>& memory = workspaces_[count(thread)];
      if (memory.size() < plan->workspace_bytes) memory.resize(plan->workspace_bytes);
      return sa::Exec{.target = target_, .workspace = memory.data(), .workspace_bytes = memory.size()};
    };
    pool_.run(plan->tasks, [&](int64_t task, int thread) {
      check(sa::attention_range(*plan, task, task + 1, partial_.data(), partial_.size(), exec(thread)));
    });
    if (plan->reduce_tasks == 0) return;
    pool_.run(plan->reduce_tasks, [&](int64_t task, int thread) {
      check(sa::attention_reduce(*plan, task, task + 1, partial_.data(), partial_.size(), exec(thread)));
    });
  }

  // Raw states: part 0 over a sequence's own keys, part 1 over the shared ones. acc [2, rows, heads, head_size], max
  // and sum [2, heads, rows].
  void reserve(int64_t rows) {
    acc_.resize(count(2 * rows * c_.dim));
    max_.resize(count(2 * rows * c_.n_heads));
    sum_.resize(max_.size());
  }
  void give_state(sa::AttentionProblem& problem, int64_t part, int64_t rows) {
    const int64_t h = c_.n_heads, d = c_.head_size(), n = problem.q.shape[2];
    problem.acc = rows_of(acc_.data() + part * rows * c_.dim, n, h, d);
    problem.max = sa::view(max_.data() + part * h * rows, {1, h, n}, {h * rows, rows, 1});
    problem.sum = sa::view(sum_.data() + part * h * rows, {1, h, n}, {h * rows, rows, 1});
  }

  const Llama2Config& c_;
  PagedCache& cache_;
  ThreadPool& pool_;
  const sa::Target* target_;
  RopeTable table_;
  StateJoin join_;
  sa::Plan own_plan_, shared_plan_, join_plans_[2];  // of this step
  std::vector<float> acc_, max_, sum_;
  std::vector<std::vector<std::byte>> workspaces_;
  std::vector<std::byte> partial_;
};

// ---- Who runs -------------------------------------------------------------------------------------------------------

class Server {
 public:
  Server(const Llama2Checkpoint& model, const Options& o, int64_t limit, int64_t pages)
      : m_(model),
        o_(o),
        limit_(limit),
        free_pages_(pages),
        threads_(static_cast<int>(o.threads)),
        cache_(model.config, pages, o.page_size),
        attention_(model.config, limit, cache_, threads_, o.target) {}

  void add(std::vector<int> prompt) {
    if (static_cast<int64_t>(prompt.size()) > limit_ + 1) prompt.resize(count(limit_ + 1));
    prompt_tokens_ += static_cast<int64_t>(prompt.size());
    waiting_.push_back(std::make_unique<Sequence>(Sequence{.request = done_.size(), .tokens = std::move(prompt)}));
    done_.emplace_back();
  }

  struct Done {
    std::vector<int> tokens;
    uint64_t digest = 0;
  };
  /// What became of every prompt, in the order in which they were added.
  const std::vector<Done>& run() {
    start_ = reported_ = now();
    const size_t requests = done_.size();
    while (!waiting_.empty() || !running_.empty()) {
      admit();
      if (!running_.empty()) step();
      if (now() - reported_ < 1) continue;
      reported_ = now();
      std::fprintf(stderr, "serve: %zu of %zu done, %zu running, %zu waiting, %lld tokens\n",
                   requests - running_.size() - waiting_.size(), requests, running_.size(), waiting_.size(),
                   static_cast<long long>(computed_));
    }
    return done_;
  }

  void report() const {
    const double seconds = now() - start_;
    const auto share = [&](double part) { return 100 * part / seconds; };
    const auto number = [](int64_t n) { return static_cast<long long>(n); };
    int64_t tokens = 0;
    for (const Done& d : done_) tokens += static_cast<int64_t>(d.tokens.size());
    std::fprintf(
        stderr,
        "%s, %d threads: %zu sequences, prompts of %lld tokens, %lld new ones in %lld steps, %.0f new tokens/s\n"
        "at most %zu sequences and %lld pages at once; %lld tokens found in shared pages, %lld rows in cascade, "
        "%lld sequences put back\n"
        "%.0f %% of the time in attention, %.0f %% in rope and append\n",
        sa::target_name(*o_.target), threads_.size(), done_.size(), number(prompt_tokens_),
        number(tokens - prompt_tokens_), number(steps_), static_cast<double>(tokens - prompt_tokens_) / seconds,
        most_running_, number(most_pages_), number(found_), number(cascaded_), number(put_back_),
        share(attention_.attention_seconds), share(attention_.store_seconds));
  }

 private:
  using Owned = std::unique_ptr<Sequence>;

  int64_t pages_for(int64_t tokens) const { return (tokens + o_.page_size - 1) / o_.page_size; }

  /// Lets waiting sequences run, in their order, as long as there is room.
  void admit() {
    while (!waiting_.empty() && static_cast<int64_t>(running_.size()) < o_.sequences) {
      Sequence& s = *waiting_.front();
      if (s.length() > limit_) {  // nothing to be chosen
        finish(waiting_.front());
        waiting_.pop_front();
        continue;
      }
      // Full pages that a running sequence has, or will have: the same tokens from the first on. One token remains to
      // be computed.
      const Sequence* like = nullptr;
      int64_t pages = 0;
      for (const Owned& r : running_) {
        const auto most = std::min(s.tokens.size() - 1, r->tokens.size());
        const auto differs =
            std::mismatch(s.tokens.begin(), s.tokens.begin() + static_cast<std::ptrdiff_t>(most), r->tokens.begin());
        const int64_t common = (differs.first - s.tokens.begin()) / o_.page_size;
        if (common > pages) like = r.get(), pages = common;
      }
      if (pages * o_.page_size > (like != nullptr ? like->stored : 0)) return;  // soon they will be there
      if (pages_for(s.length()) - pages > free_pages_.available()) return;
      for (int64_t p = 0; p < pages; ++p) s.pages.push_back(free_pages_.share(like->pages[count(p)]));
      s.stored = pages * o_.page_size;
      found_ += s.stored;
      running_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
  }

  void give_back(Sequence& s) {
    for (const int32_t page : s.pages) free_pages_.give_back(page);
    s.pages.clear();
    s.stored = 0;
  }

  void finish(Owned& s) {
    give_back(*s);
    done_[s->request] = {std::move(s->tokens), s->digest};
    s.reset();
  }

  /// How many rows each sequence brings: one if it is at its last token, first of all; then chunks of prompts, oldest
  /// first.
  void divide() {
    int64_t left = o_.rows;
    for (const bool prompts : {false, true}) {
      for (Owned& s : running_) {
        const int64_t missing = s->length() - s->stored;
        if ((missing > 1) != prompts) continue;
        s->rows = std::min(missing, left);
        left -= s->rows;
      }
    }
  }

  /// Pages for the rows of the step, the oldest sequence first. If there are none the youngest goes back to those that
  /// wait: it keeps its tokens, and computes their keys and values again.
  void take_pages() {
    for (size_t i = 0; i < running_.size(); ++i) {
      Sequence& s = *running_[i];
      while (static_cast<int64_t>(s.pages.size()) < pages_for(s.stored + s.rows)) {
        if (free_pages_.available() > 0) {
          s.pages.push_back(free_pages_.take());
          continue;
        }
        const bool itself = running_.size() == i + 1;
        give_back(*running_.back());
        waiting_.push_front(std::move(running_.back()));
        running_.pop_back();
        ++put_back_;
        if (itself) return;
      }
    }
  }

  /// Sequences that can attend to a prefix together, from the first on, and how long it is. A prefix ends where a key
  /// split ends, and none has more than a split of keys of its own: then the joined states are those of the definition.
  /// So they are on targets with fused multiply-add.
  struct Group {
    std::vector<Sequence*> members;
    int64_t prefix = 0;
  };
  std::vector<Group> groups() const {
    const int64_t split_pages = sa::kKeySplit / o_.page_size;
    std::map<int32_t, Group> by_page;  // whoever shares the last page of the first split shares all before it
    for (const Owned& s : running_) {
      if (o_.no_cascade || !sa::target_exact(*o_.target) || s->rows == 0 || s->stored < sa::kKeySplit) continue;
      by_page[s->pages[count(split_pages - 1)]].members.push_back(s.get());
    }
    std::vector<Group> all;
    for (auto& [page, group] : by_page) {
      const std::vector<int32_t>& first = group.members[0]->pages;
      size_t common = first.size();
      for (const Sequence* s : group.members) {
        const auto most = std::min(common, s->pages.size());
        common = count(
            std::mismatch(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(most), s->pages.begin()).first -
            first.begin());
      }
      const int64_t prefix = static_cast<int64_t>(common) / split_pages * sa::kKeySplit;
      std::erase_if(group.members, [&](const Sequence* s) {
        return s->stored < prefix || s->stored + s->rows - prefix > sa::kKeySplit;
      });
      group.prefix = prefix;
      if (group.members.size() > 1) all.push_back(std::move(group));
    }
    return all;
  }

  void step() {
    divide();
    take_pages();
    if (running_.empty()) return;

    Batch batch;
    const int64_t width = pages_for(limit_);
    std::vector<Sequence*> order;  // as their rows follow each other: those of a group together, the others last
    std::vector<bool> grouped(done_.size());
    const auto add = [&](Sequence* s, int64_t prefix) {
      const int64_t first_page = prefix / o_.page_size;
      batch.own.add(s->rows, s->stored + s->rows - prefix, s->pages.data() + first_page,
                    static_cast<int64_t>(s->pages.size()) - first_page, width);
      grouped[s->request] = true;
      order.push_back(s);
    };
    for (const Group& group : groups()) {
      const int64_t before = batch.own.rows();
      for (Sequence* s : group.members) add(s, group.prefix);
      batch.shared.add(batch.own.rows() - before, group.prefix, group.members[0]->pages.data(),
                       group.prefix / o_.page_size, width);
    }
    for (const Owned& s : running_) {
      if (s->rows > 0 && !grouped[s->request]) add(s.get(), 0);
    }
    for (const Sequence* s : order) {
      for (int64_t p = s->stored; p < s->stored + s->rows; ++p) {
        batch.tokens.push_back(s->tokens[count(p)]);
        batch.positions.push_back(p);
        batch.slots.push_back(s->pages[count(p / o_.page_size)] * o_.page_size + p % o_.page_size);
      }
      if (s->stored + s->rows == s->length()) batch.wanted.push_back(static_cast<int64_t>(batch.tokens.size()) - 1);
    }

    const std::vector<float> logits = forward(
        m_, batch.tokens, batch.wanted, threads_,
        [&](int64_t layer, float* q, float* k, float* v, float* out) { attention_.run(batch, layer, q, k, v, out); });

    int64_t row = 0;
    for (Sequence* s : order) {
      s->stored += s->rows;
      s->rows = 0;
      if (s->stored < s->length()) continue;
      s->tokens.push_back(best_token(logits, row, m_.config.vocab_size));
      for (const float logit :
           std::span(logits).subspan(count(row++ * m_.config.vocab_size), count(m_.config.vocab_size))) {
        s->digest = (s->digest ^ std::bit_cast<uint32_t>(logit)) * 1099511628211u;
      }
    }
    ++steps_;
    computed_ += batch.own.rows();
    cascaded_ += batch.shared.rows();
    most_running_ = std::max(most_running_, running_.size());
    most_pages_ = std::max(most_pages_, free_pages_.in_use());
    for (Owned& s : running_) {
      if (s->tokens.back() == Llama2Tokenizer::kBos && s->length() > 1) s->tokens.pop_back(), finish(s);
      else if (s->length() > limit_) finish(s);
    }
    std::erase(running_, nullptr);
  }

  const Llama2Checkpoint& m_;
  const Options& o_;
  int64_t limit_;  // tokens that a sequence puts into the cache
  PagePool free_pages_;
  ThreadPool threads_;
  PagedCache cache_;
  Attention attention_;
  std::deque<Owned> waiting_;
  std::vector<Owned> running_;  // the oldest first
  std::vector<Done> done_;

  double start_ = 0, reported_ = 0;
  int64_t prompt_tokens_ = 0, steps_ = 0, computed_ = 0, found_ = 0, cascaded_ = 0, put_back_ = 0, most_pages_ = 0;
  size_t most_running_ = 0;
};

// ---- The program ----------------------------------------------------------------------------------------------------

std::vector<std::string> own_prompts() {
  std::vector<std::string> all;
  for (const char* who :
       {"Tom", "Lily", "the cat", "a little bird", "Ben and Mia", "an old man", "the big red car", "she"}) {
    for (const char* start : {"Once upon a time, there was ", "One day, ", "In the park, ", "It was raining and ",
                              "Mom said to ", "\"Hello\", said ", "", "The story begins with "}) {
      all.push_back(std::string(start) + who);
    }
  }
  return all;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::istringstream in(read_file(path));
  std::vector<std::string> all;
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with('\r')) line.pop_back();
    all.push_back(line);
  }
  if (all.empty()) throw std::runtime_error(path + ": no prompts, of which one stands in each line");
  return all;
}

int run(int argc, char** argv) {
  Options o;
  o.files = CommandLine(kUsage)
                .text("--prompts", &o.prompts)
                .whole("--steps", &o.steps, 0, std::numeric_limits<int64_t>::max())
                .whole("--sequences", &o.sequences, 1, 1 << 20)
                .whole("--rows", &o.rows, 1, 1 << 20)
                .whole("--pages", &o.pages, 0, 1 << 30)
                .whole("--page-size", &o.page_size, 32, 1024)
                .whole("--threads", &o.threads, 1, 1024)
                .flag("--no-cascade", &o.no_cascade)
                .flag("--digest", &o.digest)
                .option("--target", [&](const std::string& name) { o.target = find_target(name); })
                .parse(argc, argv);
  if (o.files.size() != 2) throw std::runtime_error(kUsage);
  if ((o.page_size & (o.page_size - 1)) != 0) {
    throw std::runtime_error("--page-size takes a power of two, so that a key split ends where a page ends, not " +
                             std::to_string(o.page_size));
  }
  if (o.threads == 0) o.threads = std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 1024);
  if (o.target == nullptr) check(sa::default_target(&o.target));

  const Llama2Checkpoint model = read_checkpoint(o.files[0]);
  const int64_t context = model.config.seq_len;
  const Llama2Tokenizer tokenizer(o.files[1], model.config.vocab_size);
  const std::vector<std::string> prompts = o.prompts.empty() ? own_prompts() : lines_of(o.prompts);
  const int64_t limit = o.steps == 0 ? context : std::min(o.steps, context);
  const int64_t longest = (limit + o.page_size - 1) / o.page_size;
  const int64_t at_a_time = std::min(o.sequences, static_cast<int64_t>(prompts.size()));
  const int64_t pages = o.pages == 0 ? at_a_time * longest : o.pages;
  if (pages < longest) {
    throw std::runtime_error("--pages " + std::to_string(pages) + " are too few: one sequence of " +
                             std::to_string(limit) + " tokens takes " + std::to_string(longest) + " pages of " +
                             std::to_string(o.page_size));
  }

  Server server(model, o, limit, pages);
  for (size_t i = 0; i < prompts.size(); ++i) {
    try {
      server.add(encode_prompt(tokenizer, prompts[i], context));
    } catch (const std::runtime_error& error) {
      throw std::runtime_error("prompt " + std::to_string(i + 1) + ": " + error.what());
    }
  }
  const std::vector<Server::Done>& done = server.run();
  server.report();
  for (size_t i = 0; i < done.size(); ++i) {
    std::printf("--- %zu", i + 1);
    if (o.digest) std::printf(" %016llx", static_cast<unsigned long long>(done[i].digest));
    std::printf("\n%s\n", text_of(tokenizer, done[i].tokens).c_str());
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw std::runtime_error("cannot write the texts");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("serve", [&] { return run(argc, argv); });
}
