#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <numeric>
#include <thread>

#include "bench/harness.h"
#include "bench/peers.h"
#include "bench/shapes.h"

// Whole problems of real models. A prefill case of "1head" is one query head of the model: heads are independent, and
// the rate is the same. The definition computes a few heads (decode) or the last rows of one head (prefill): those are
// the same bits as in the whole problem.

namespace bench {
namespace {

using simdattn::AttentionProblem;
using simdattn::DType;

struct Setup {
  Model model;
  DType type = DType::kF32;
  bool panels = false;
  int64_t n_q = 1;
  int64_t n_kv = 0;
  int threads = 1;
  int64_t reference = 0;  // keys (and rows, if there is more than one) of the problem that this one is compared with
  // Mixed batches: rows of each sequence; sequence s has lengths[s] keys in its cache, n_kv is the longest.
  std::vector<int32_t> rows{};
  std::vector<int32_t> lengths{};
};

/// Two threads or more that wait for a range of tasks each; busy, as engines do between layers.
class Pool {
 public:
  explicit Pool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  }
  ~Pool() {
    stop_ = true;
    ++generation_;
    for (std::thread& t : workers_) t.join();
  }
  void run(const std::function<void(int)>& f) {
    f_ = &f;
    pending_ = static_cast<int>(workers_.size());
    ++generation_;
    f(0);
    while (pending_ != 0) relax();
  }

 private:
  // On a machine with fewer cores than threads the others must get their turn.
  static void relax() { std::this_thread::yield(); }
  void work(int index) {
    for (unsigned seen = 0;;) {
      while (generation_ == seen) relax();
      seen = generation_;
      if (stop_) return;
      (*f_)(index);
      --pending_;
    }
  }
  std::vector<std::thread> workers_;
  const std::function<void(int)>* f_ = nullptr;
  std::atomic<int> pending_{0};
  std::atomic<unsigned> generation_{0};
  std::atomic<bool> stop_{false};
};

struct Data {
  Setup s;
  int64_t sequences = 1, n_q = 0;
  int64_t longest = 0;  // keys: what a growing problem is compared with may be the larger one of the two
  Buffer q, k, v, out, k2, k_rows;
  std::vector<Buffer> workspace;  // one per thread
  Buffer partial;
  std::vector<int32_t> cu_q;
  std::unique_ptr<Pool> pool;
  AttentionProblem whole, part, companion;
  int32_t reference_length = 0;

  bool mixed() const { return !s.rows.empty(); }
  simdattn::Status run(const AttentionProblem& a, const simdattn::Target* t) {
    return simdattn::attention(a,
                               {.target = t, .workspace = workspace[0].data(), .workspace_bytes = workspace[0].size()});
  }
  simdattn::Status run_threads(const AttentionProblem& a, const simdattn::Target* t) {
    simdattn::Plan plan;
    simdattn::Status status = simdattn::attention_plan(a, &plan, {.target = t});
    if (!status.ok()) return status;
    if (partial.size() < plan.partial_bytes) partial = Buffer(plan.partial_bytes);
    std::atomic<bool> failed{false};
    // One task at a time from a shared counter: the most even cut.
    for (const bool reduce : {false, true}) {
      const int64_t n = reduce ? plan.reduce_tasks : plan.tasks;
      if (n == 0) continue;
      std::atomic<int64_t> next{0};
      pool->run([&](int thread) {
        const Buffer& w = workspace[static_cast<size_t>(thread)];
        const simdattn::Exec exec{.target = t, .workspace = w.data(), .workspace_bytes = w.size()};
        for (int64_t i; (i = next++) < n;) {
          const simdattn::Status one =
              reduce ? simdattn::attention_reduce(plan, i, i + 1, partial.data(), partial.size(), exec)
                     : simdattn::attention_range(plan, i, i + 1, partial.data(), partial.size(), exec);
          if (!one.ok()) failed = true;
        }
      });
    }
    if (failed) return {simdattn::Code::kShape, "a task of the problem failed"};
    return status;
  }
};

simdattn::ConstKv keys(const Buffer& b, DType type, bool panels, int64_t batch, int64_t heads, int64_t tokens,
                       int64_t dim) {
  if (!panels) return simdattn::ConstView<4>(b.data(), type, {batch, heads, tokens, dim});
  return simdattn::contiguous_kv(b.as<const char>(), simdattn::kv_type_of(type), simdattn::KvLayout::kPanels, batch,
                                 heads, tokens, dim);
}

/// Keys that row `i` of `n_q` sees among `n_kv`.
int64_t visible(const Model& m, int64_t i, int64_t n_q, int64_t n_kv) {
  const int64_t end = i + 1 + n_kv - n_q;
  return m.window > 0 ? std::min(end, m.window) : end;
}
int64_t visible_pairs(const Model& m, int64_t first, int64_t n_q, int64_t n_kv) {
  int64_t pairs = 0;
  for (int64_t i = first; i < n_q; ++i) pairs += visible(m, i, n_q, n_kv);
  return pairs;
}

// Multiply-adds that the definition does for the comparison, about: it takes some nanoseconds for one.
constexpr int64_t kScalarWork = 20'000'000;

/// What libraries without panels, windows and caps can be asked for.
Work work_of(const Setup& s) {
  const Model& m = s.model;
  if (!s.rows.empty() || s.threads > 1 || s.reference > 0 || m.softcap > 0 || m.v_is_k || s.n_q > s.n_kv) return {};
  return {.kind = Kind::kAttention,
          .type = s.type,
          .heads = m.heads,
          .kv_heads = m.kv_heads,
          .n_q = s.n_q,
          .n = s.n_kv,
          .d = m.d_qk,
          .scale = m.scale > 0 ? m.scale : 1 / std::sqrt(static_cast<float>(m.d_qk)),
          .causal = true};
}

size_t count(auto... factors) { return static_cast<size_t>((int64_t{1} * ... * factors)); }

/// Queries, keys and values.
void fill(Data& d) {
  const Setup& s = d.s;
  const Model& m = s.model;
  d.n_q = s.n_q;
  if (d.mixed()) {
    d.sequences = static_cast<int64_t>(s.rows.size());
    d.cu_q.push_back(0);
    for (const int32_t r : s.rows) d.cu_q.push_back(d.cu_q.back() + r);
    d.n_q = d.cu_q.back();
  }
  const int64_t padded = (s.n_kv + simdattn::kPanelWidth - 1) / simdattn::kPanelWidth * simdattn::kPanelWidth;
  d.longest = std::max(padded, s.reference);
  const int64_t most_rows = s.n_q > 1 ? std::max(d.n_q, s.reference) : d.n_q;
  d.q = random_buffer(s.type, count(m.heads, most_rows, m.d_qk), 1);
  d.k = random_buffer(s.type, count(d.sequences, m.kv_heads, d.longest, m.d_qk), 2);
  if (!m.v_is_k) d.v = random_buffer(s.type, count(d.sequences, m.kv_heads, std::max(s.n_kv, s.reference), m.d_v), 3);
  d.out = Buffer(count(m.heads, most_rows, m.d_v) * sizeof(float));
}

/// Panels whose keys other libraries read from rows.
void fill_rows(Data& d) {
  const Setup& s = d.s;
  const Model& m = s.model;
  d.k_rows = random_buffer(s.type, count(m.kv_heads, s.n_kv, m.d_qk), 2);
  std::vector<int32_t> positions(static_cast<size_t>(s.n_kv));
  std::iota(positions.begin(), positions.end(), 0);
  (void)simdattn::kv_append(simdattn::ConstView<4>(d.k_rows.data(), s.type, {1, m.kv_heads, s.n_kv, m.d_qk}),
                            simdattn::view(positions.data(), {1, s.n_kv}),
                            simdattn::contiguous_kv(d.k.as<char>(), simdattn::kv_type_of(s.type),
                                                    simdattn::KvLayout::kPanels, 1, m.kv_heads, s.n_kv, m.d_qk));
}

/// The whole problem, or the same with fewer heads and rows.
AttentionProblem problem(const Data& d, const Buffer& k, bool panels, int64_t heads, int64_t first_row) {
  const Setup& s = d.s;
  const Model& m = s.model;
  const int64_t kv_heads = (heads + m.group() - 1) / m.group();
  const int64_t rows = d.n_q - first_row;
  AttentionProblem a;
  const size_t size = element_size(s.type);
  a.q = {d.q.as<std::byte>() + count(first_row, m.d_qk) * size,
         s.type,
         {1, heads, rows, m.d_qk},
         {m.heads * d.n_q * m.d_qk, d.n_q * m.d_qk, m.d_qk, 1}};
  a.k = keys(k, s.type, panels, d.sequences, m.kv_heads, s.n_kv, m.d_qk);
  a.k.heads = kv_heads;
  if (m.v_is_k) {
    a.v = simdattn::ConstView<4>(k.data(), s.type, {d.sequences, kv_heads, s.n_kv, m.d_v},
                                 {m.kv_heads * s.n_kv * m.d_qk, s.n_kv * m.d_qk, m.d_qk, 1});
  } else {
    a.v = simdattn::ConstView<4>(d.v.data(), s.type, {d.sequences, kv_heads, s.n_kv, m.d_v},
                                 {m.kv_heads * s.n_kv * m.d_v, s.n_kv * m.d_v, m.d_v, 1});
  }
  a.out = {d.out.as<std::byte>() + count(first_row, m.d_v) * size,
           s.type,
           {1, heads, rows, m.d_v},
           {m.heads * d.n_q * m.d_v, d.n_q * m.d_v, m.d_v, 1}};
  if (m.scale > 0) a.scoring.scale = m.scale;
  a.scoring.softcap = m.softcap;
  a.scoring.causal = true;
  if (m.window > 0) a.scoring.window_left = m.window - 1;
  if (d.mixed()) {
    a.cu_q = d.cu_q.data();
    a.n_sequences = d.sequences;
    a.scoring.kv_length = s.lengths.data();
  }
  return a;
}

struct Counts {
  int64_t pairs = 0;           // of a query and a key that it sees
  double streamed_tokens = 0;  // per head of keys
};
Counts count_pairs(const Data& d) {
  const Setup& s = d.s;
  if (!d.mixed()) {
    const int64_t pairs = visible_pairs(s.model, 0, d.n_q, s.n_kv);
    return {pairs, static_cast<double>(d.n_q == 1 ? pairs : s.n_kv)};
  }
  Counts counts;
  for (size_t i = 0; i < s.rows.size(); ++i) {
    counts.pairs += visible_pairs(s.model, 0, s.rows[i], s.lengths[i]);
    counts.streamed_tokens += s.lengths[i];
  }
  return counts;
}

/// What the definition computes: as much as kScalarWork, whole groups of heads if it can be.
struct Part {
  int64_t heads;
  int64_t first_row = 0;
};
Part part_of(const Data& d, int64_t pairs) {
  const Setup& s = d.s;
  const Model& m = s.model;
  const int64_t per_pair = m.d_qk + m.d_v;
  Part part = {m.heads};
  if (m.heads * pairs * per_pair <= kScalarWork) return part;
  part.heads = std::clamp<int64_t>(kScalarWork / (pairs * per_pair), 1, m.group());
  while (part.heads > 1 && m.group() % part.heads != 0) --part.heads;
  if (!d.mixed() && part.heads == 1) {
    part.first_row = d.n_q - std::clamp<int64_t>(kScalarWork / (s.n_kv * per_pair), 1, d.n_q);
  }
  return part;
}

/// What a case is compared with: one thread, another length, or panels.
void set_companion(Data& d, int64_t pairs, Prepared& p) {
  const Setup& s = d.s;
  const Model& m = s.model;
  if (s.threads > 1) {
    d.pool = std::make_unique<Pool>(s.threads);
    d.companion = d.whole;
  } else if (s.reference > 0) {
    const int64_t rows = d.n_q > 1 ? s.reference : 1;
    d.companion = d.whole;
    d.reference_length = static_cast<int32_t>(s.reference);
    d.companion.q.shape[2] = d.companion.out.shape[2] = rows;
    if (s.reference > s.n_kv) {
      d.companion.k = keys(d.k, s.type, s.panels, d.sequences, m.kv_heads, s.reference, m.d_qk);
      d.companion.v = simdattn::ConstView<4>(d.v.data(), s.type, {d.sequences, m.kv_heads, s.reference, m.d_v});
    }
    d.companion.scoring.kv_length = &d.reference_length;
    p.companion_work = static_cast<double>(pairs) / static_cast<double>(visible_pairs(m, 0, rows, s.reference));
  } else if (!s.panels && !m.v_is_k) {
    d.k2 = random_buffer(s.type, count(d.sequences, m.kv_heads, d.longest, m.d_qk), 2);
    d.companion = problem(d, d.k2, true, m.heads, 0);
  } else {
    return;
  }
  p.companion = [&d](const simdattn::Target* t) { return d.run(d.companion, t); };
}

Prepared prepare(const Setup& setup) {
  auto data = std::make_shared<Data>();
  Data& d = *data;
  d.s = setup;
  const Setup& s = d.s;
  const Model& m = s.model;
  fill(d);
  const Work work = work_of(s);
  if (s.panels && !peers_for(work).empty()) fill_rows(d);
  const auto [pairs, streamed_tokens] = count_pairs(d);
  const Part part = part_of(d, pairs);
  const int64_t part_pairs = d.mixed() ? pairs : visible_pairs(m, part.first_row, d.n_q, s.n_kv);
  d.whole = problem(d, d.k, s.panels, m.heads, 0);
  d.part = problem(d, d.k, s.panels, part.heads, part.first_row);
  // The part must still read key head 0 for all of its heads.
  if (part.heads < m.group()) d.part.k.heads = d.part.v.heads = 1;
  Prepared p;
  p.keep = data;
  set_companion(d, pairs, p);
  const size_t workspace = most_workspace({&d.whole, &d.part, &d.companion});
  for (int i = 0; i < s.threads; ++i) d.workspace.emplace_back(workspace);

  p.work = work;
  p.work.q = d.q.data();
  p.work.k = s.panels ? d.k_rows.data() : d.k.data();
  p.work.v = d.v.data();
  p.work.out = d.out.data();
  p.run = [&d](const simdattn::Target* t, bool is_part) {
    if (is_part) return d.run(d.part, t);
    return d.s.threads > 1 ? d.run_threads(d.whole, t) : d.run(d.whole, t);
  };
  p.scalar_share = static_cast<double>(part.heads * part_pairs) / static_cast<double>(m.heads * pairs);
  p.out = d.out.data();
  p.out_dtype = s.type;
  p.out_elements = count(m.heads, d.n_q, m.d_v);
  p.first = count(part.first_row, m.d_v);
  p.count = part.first_row > 0 ? count(d.n_q - part.first_row, m.d_v) : count(part.heads, d.n_q, m.d_v);
  p.absolute = 1e-4;  // scores of size 10 that differ by some 2^-20, and values of at most 1
  p.relative = s.type == DType::kBF16 ? 0x1p-7 : s.type == DType::kF16 ? 0x1p-10 : 0;
  p.flops = 2.0 * static_cast<double>(m.heads * pairs * (m.d_qk + m.d_v));
  if (s.threads == 1) {
    // Keys and values of the window, for all heads; contiguous enough for a probe.
    const double share = streamed_tokens / static_cast<double>(d.sequences * d.longest);
    const auto visible_bytes = [&](const Buffer& b) {
      return b.bytes().first(static_cast<size_t>(share * static_cast<double>(b.size())) / 64 * 64);
    };
    p.streams.push_back(visible_bytes(d.k));
    if (!m.v_is_k) p.streams.push_back(visible_bytes(d.v));
  }
  return p;
}

std::string layout(const Setup& s) { return s.model.v_is_k ? "shared" : s.panels ? "panels" : "rows"; }

void add(std::vector<Case>& cases, const char* kernel, std::string shape, const Setup& s, bool main) {
  Case c;
  c.kernel = kernel;
  c.shape = std::move(shape);
  c.type = type_name(s.type);
  c.main = main;
  c.threads = s.threads > 1;
  c.work = work_of(s);
  const bool one_head = s.model.heads == 1;
  c.peers = std::string_view(kernel) == "decode"
                ? (s.model.name == kLlama3.name && (s.panels || s.n_kv == 4096)) ||
                      (s.model.name == kLlama2.name && !s.panels && s.n_kv <= 4096 && s.type == DType::kF32)
                : std::string_view(kernel) == "prefill" && s.n_q <= 2048 && one_head && !s.panels &&
                      s.type != DType::kF16 && (s.model.name == kLlama3.name || s.model.name == kGpt2.name);
  c.weight = 3;  // long calls, cold caches: few samples per second
  if (s.threads > 1) {
    c.companion = "1 thread";
  } else if (s.reference > 0) {
    c.companion = s.n_q > 1 ? "2048 rows, per key" : "8192 keys, per key";
  } else if (!s.panels) {
    c.companion = "panels";
  }
  c.prepare = [s] { return prepare(s); };
  cases.push_back(std::move(c));
}

constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

void add_decode(std::vector<Case>& cases) {
  for (const DType type : kTypes) {
    for (const Model& m : kModels) {
      for (const int64_t n : kDecodeKeys) {
        for (const bool panels : {true, false}) {
          if (m.v_is_k && panels) continue;  // values are rows, and here they are the keys
          const Setup s{.model = m, .type = type, .panels = panels, .n_kv = n};
          const bool llama = m.name == kLlama3.name;
          const bool main = llama                    ? panels || (n == 4096 && type != DType::kF16)
                            : m.v_is_k               ? n == 4096 && type == DType::kBF16
                            : m.name == kLlama2.name ? !panels && type == DType::kF32 && n == 4096
                                                     : panels && type == DType::kF32 && n == 4096;
          add(cases, "decode", std::string(m.name) + "_" + std::to_string(n) + "_" + layout(s), s, main);
        }
      }
    }
  }
}

void add_prefill(std::vector<Case>& cases) {
  for (const DType type : kTypes) {
    for (const Model& m : kModels) {
      if (m.name == kLlama2.name) continue;  // one head is as of kLlama3
      for (const bool one_head : {true, false}) {
        for (const int64_t n : kPrefillRows) {
          for (const bool panels : {false, true}) {
            if (m.v_is_k && panels) continue;
            Setup s{.model = m, .type = type, .panels = panels, .n_q = n, .n_kv = n};
            if (one_head) s.model.heads = s.model.kv_heads = 1;
            const bool llama = m.name == kLlama3.name;
            const bool gpt2 = m.name == kGpt2.name;
            const bool main = one_head && (llama && type == DType::kF32           ? !panels || n == 2048
                                           : llama && type == DType::kBF16        ? n == 2048 && !panels
                                           : gpt2 && type == DType::kF32          ? n == 2048 && !panels
                                           : m.softcap > 0 && type == DType::kF32 ? n == 512 && !panels
                                                                                  : false);
            add(cases, "prefill",
                std::string(m.name) + (one_head ? "_1head_" : "_") + std::to_string(n) + "_" + layout(s), s, main);
          }
        }
      }
    }
  }
}

/// One prompt beside eight sequences that decode; and a chunk of a prompt after its beginning.
void add_mixed(std::vector<Case>& cases) {
  for (const DType type : kTypes) {
    add(cases, "mixed", "llama3-8b_256+8x1_panels",
        {.model = kLlama3,
         .type = type,
         .panels = true,
         .n_kv = 2048,
         .rows = {256, 1, 1, 1, 1, 1, 1, 1, 1},
         .lengths = {256, 300, 500, 700, 900, 1100, 1400, 1700, 2048}},
        type == DType::kBF16);
    add(cases, "mixed", "llama3-8b_chunk512of4096_panels",
        {.model = kLlama3, .type = type, .panels = true, .n_q = 512, .n_kv = 4096}, false);
  }
}

/// Time per visible key as sequences grow: a key head of two groups, so that 8192 f32 keys are 16 MiB with their
/// values.
void add_growth(std::vector<Case>& cases) {
  constexpr Model kGrowing{.name = "", .heads = 8, .kv_heads = 2, .d_qk = 128, .d_v = 128};
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const int64_t n : {1024, 2048, 4096, 16384, 32768, 65536}) {
      add(cases, "growth", "decode_" + std::to_string(n),
          {.model = kGrowing, .type = type, .panels = true, .n_kv = n, .reference = 8192}, n == 65536);
    }
    for (const int64_t n : {1024, 4096, 8192, 16384, 32768, 65536}) {
      Setup s{.model = kGrowing, .type = type, .panels = true, .n_q = n, .n_kv = n, .reference = 2048};
      s.model.heads = s.model.kv_heads = 1;
      add(cases, "growth", "prefill_" + std::to_string(n), s, n == 8192 && type == DType::kF32);
    }
  }
}

void add_threads(std::vector<Case>& cases) {
  constexpr int kThreads = 2;
  add(cases, "threads", "prefill_2048_x" + std::to_string(kThreads),
      {.model = {.name = "", .heads = 4, .kv_heads = 1, .d_qk = 128, .d_v = 128},
       .panels = true,
       .n_q = 2048,
       .n_kv = 2048,
       .threads = kThreads},
      true);
  add(cases, "threads", "decode_32768_x" + std::to_string(kThreads),
      {.model = {.name = "", .heads = 8, .kv_heads = 2, .d_qk = 128, .d_v = 128},
       .panels = true,
       .n_kv = 32768,
       .threads = kThreads},
      true);
}

}  // namespace

void add_attention_cases(std::vector<Case>& cases) {
  add_decode(cases);
  add_prefill(cases);
  add_mixed(cases);
  add_growth(cases);
  add_threads(cases);
}

}  // namespace bench
