#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "bench/harness.h"
#include "bench/shapes.h"
#include "dispatch/target.h"
#include "lib/contract/ukernels.h"

// What a plan costs, what a range of its tasks costs, and what the driver costs that runs them: a batch of sequences
// that decode, in pages, one range per task, as an engine runs it.

namespace bench {
namespace {

using simdattn::AttentionProblem;
using simdattn::DType;
using simdattn::Exec;
using simdattn::KvLayout;
using simdattn::Plan;
using simdattn::Status;
using simdattn::Target;
using simdattn::UKernels;

// ---------------------------------------------------------------------------------------------------------------------
// The slot calls of a run, recorded, and made once more without the driver

struct PrepareQuery {
  void (*slot)(const void*, void*, int64_t);
  const void* row;
  void* query;
  int64_t dim;
  void call() const { slot(row, query, dim); }
};
struct Finish {
  void (*slot)(const float*, float, void*, int64_t);
  const float* in;
  float factor;
  void* out;
  int64_t n;
  void call() const { slot(in, factor, out, n); }
};
template <class A>
struct OneStruct {
  void (*slot)(const A&);
  A a;
  void call() const { slot(a); }
};
using Call = std::variant<OneStruct<simdattn::ScoreTile>, OneStruct<simdattn::ValueTile>,
                          OneStruct<simdattn::SoftmaxTile>, OneStruct<simdattn::PackKeys>, PrepareQuery, Finish>;

struct Tape {
  std::vector<Call> calls;
  std::vector<std::unique_ptr<int32_t[]>> intervals;  // those of softmax_tile are on the driver's stack

  void play() const {
    for (const Call& c : calls) std::visit([](const auto& call) { call.call(); }, c);
  }
};

// Slots take no context: what the recording ones write to and call. Recording runs on one thread.
Tape* g_tape;
const UKernels* g_slots;

template <class C>
void record(C call) {
  call.call();
  g_tape->calls.push_back(call);
}

template <auto kSlot, class A>
void record_struct(const A& a) {
  A kept = a;
  if constexpr (std::is_same_v<A, simdattn::SoftmaxTile>) {
    const size_t rows = static_cast<size_t>(a.rows);
    auto interval = std::make_unique<int32_t[]>(2 * rows);
    std::copy_n(a.lo, rows, interval.get());
    std::copy_n(a.hi, rows, interval.get() + rows);
    kept.lo = interval.get();
    kept.hi = interval.get() + rows;
    g_tape->intervals.push_back(std::move(interval));
  }
  record(OneStruct<A>{kSlot(*g_slots), kept});
}

constexpr size_t kF32 = 0;  // Arithmetic

template <size_t kType>
void record_type(UKernels* table) {
  simdattn::AttentionKernels& ops = table->attention[kF32];
  ops.prepare_query[kType] = [](const void* row, void* query, int64_t dim) {
    record(PrepareQuery{g_slots->attention[kF32].prepare_query[kType], row, query, dim});
  };
  simdattn::KvOperands& kv = ops.kv[kType];
  kv.score_tile =
      record_struct<[](const UKernels& k) { return k.attention[kF32].kv[kType].score_tile; }, simdattn::ScoreTile>;
  kv.value_tile =
      record_struct<[](const UKernels& k) { return k.attention[kF32].kv[kType].value_tile; }, simdattn::ValueTile>;
  kv.score_packed =
      record_struct<[](const UKernels& k) { return k.attention[kF32].kv[kType].score_packed; }, simdattn::ScoreTile>;
  kv.pack_keys =
      record_struct<[](const UKernels& k) { return k.attention[kF32].kv[kType].pack_keys; }, simdattn::PackKeys>;
  kv.pack_panel =
      record_struct<[](const UKernels& k) { return k.attention[kF32].kv[kType].pack_panel; }, simdattn::PackKeys>;
  table->finish[kType] = [](const float* in, float factor, void* out, int64_t n) {
    record(Finish{g_slots->finish[kType], in, factor, out, n});
  };
}

/// The table of a target with the slots that decode uses replaced by recording ones.
UKernels recording(const UKernels& slots) {
  UKernels table = slots;
  record_type<0>(&table);
  record_type<1>(&table);
  record_type<2>(&table);
  table.attention[kF32].softmax_tile =
      record_struct<[](const UKernels& k) { return k.attention[kF32].softmax_tile; }, simdattn::SoftmaxTile>;
  return table;
}

// ---------------------------------------------------------------------------------------------------------------------
// A batch

constexpr int64_t kQueryHeads = 8;  // of one key head
constexpr int64_t kDim = 128;

struct Batch {
  Buffer q, k, v, out, workspace;
  std::vector<int32_t> cu_q, lengths, table;
  AttentionProblem problem;
  std::map<const Target*, Plan> plans;
  std::map<const Target*, Tape> tapes;

  Batch(int64_t sequences, DType type, int64_t page_size, bool panels, int64_t shortest, int64_t longest) {
    const int64_t pages_each = (longest + page_size - 1) / page_size;
    const int64_t pages = sequences * pages_each;
    const auto count = [](auto... factors) { return static_cast<size_t>((int64_t{1} * ... * factors)); };
    q = random_buffer(DType::kF32, count(sequences, kQueryHeads, kDim), 1);
    out = Buffer(count(sequences, kQueryHeads, kDim) * sizeof(float));
    k = random_buffer(type, count(pages, page_size, kDim), 2);
    v = random_buffer(type, count(pages, page_size, kDim), 3);
    // Pages in no order, as a server leaves them after a while.
    uint64_t random = 1;
    for (int32_t i = 0; i < pages; ++i) table.push_back(i);
    for (size_t i = table.size(); i > 1; --i) {
      random = random * 6364136223846793005u + 1442695040888963407u;
      std::swap(table[i - 1], table[(random >> 33) % i]);
    }
    for (int32_t s = 0; s <= sequences; ++s) cu_q.push_back(s);
    for (int64_t s = 0; s < sequences; ++s) {
      lengths.push_back(static_cast<int32_t>(shortest + s * 97 % (longest - shortest + 1)));
    }
    const auto store = [&](const Buffer& b, KvLayout layout) {
      simdattn::ConstKv kv;
      kv.data = b.data();
      kv.type = simdattn::kv_type_of(type);
      kv.layout = layout;
      kv.batch = sequences;
      kv.heads = 1;
      kv.capacity = longest;
      kv.dim = kDim;
      const int64_t row = kDim * static_cast<int64_t>(element_size(type));
      kv.token_stride = layout == KvLayout::kPanels ? row * simdattn::kPanelWidth : row;
      kv.head_stride = kv.batch_stride = page_size * row;
      kv.page_size = page_size;
      kv.n_pages = pages;
      kv.block_table = table.data();
      return kv;
    };
    const std::array<int64_t, 4> shape{1, kQueryHeads, sequences, kDim};
    const std::array<int64_t, 4> stride{0, kDim, kQueryHeads * kDim, 1};
    problem.q = {q.data(), DType::kF32, shape, stride};
    problem.out = {out.data(), DType::kF32, shape, stride};
    problem.k = store(k, panels ? KvLayout::kPanels : KvLayout::kRows);
    problem.v = store(v, KvLayout::kRows);
    problem.cu_q = cu_q.data();
    problem.n_sequences = sequences;
    problem.scoring.kv_length = lengths.data();
    problem.scoring.causal = true;
    size_t bytes = 0;
    for (const Target* t : simdattn::targets()) {
      if (!simdattn::target_runnable(*t)) continue;
      (void)simdattn::attention_plan(problem, &plans[t], {.target = t});
      bytes = std::max(bytes, plans[t].workspace_bytes);
    }
    workspace = Buffer(bytes);
  }

  Exec exec(const Target* t) const {
    return {.target = t, .workspace = workspace.data(), .workspace_bytes = workspace.size()};
  }
  /// Tasks [0, tasks), `step` of them in a range.
  static Status run(const Plan& plan, int64_t tasks, int64_t step, const Exec& exec) {
    for (int64_t i = 0; i < tasks; i += step) {
      const Status s = simdattn::attention_range(plan, i, i + step, nullptr, 0, exec);
      if (!s.ok()) return s;
    }
    return {};
  }

  /// Records what a run of all tasks calls. Keys that the driver gathers from several pages are taken from the store
  /// instead, as many bytes in as wild an order, so that both wait for memory as long.
  Status record_calls(const Target* t) {
    const UKernels slots = recording(*t->kernels);
    Target target = *t;
    target.kernels = &slots;
    Plan plan;
    Status s = simdattn::attention_plan(problem, &plan, {.target = &target});
    if (!s.ok()) return s;
    g_tape = &tapes[t];
    g_slots = t->kernels;
    s = run(plan, plan.tasks, 1, exec(&target));
    size_t page = 0;
    for (Call& c : g_tape->calls) {
      auto* pack = std::get_if<OneStruct<simdattn::PackKeys>>(&c);
      if (pack == nullptr) continue;
      const char* rows = static_cast<const char*>(pack->a.from);
      if (rows < workspace.as<char>() || rows >= workspace.as<char>() + workspace.size()) continue;
      // Two pages that lie side by side, the one of them in the place where the driver reads.
      pack->a.from = k.as<char>() + (table[page] & ~1) * problem.k.batch_stride;
      page = (page + 2) % table.size();
    }
    return s;
  }
};

Prepared of_batch(const std::shared_ptr<Batch>& batch) {
  Prepared p;
  p.keep = batch;
  p.out = batch->out.data();
  p.out_elements = batch->out.size() / sizeof(float);
  p.count = p.out_elements;
  p.absolute = 1e-4;
  return p;
}

Prepared prepare_plan(int64_t sequences) {
  auto batch = std::make_shared<Batch>(sequences, DType::kBF16, 16, false, 64, 64);
  Prepared p = of_batch(batch);
  p.out_elements = p.count = 1;  // the number of tasks
  auto plan = std::make_shared<Plan>();
  p.run = [b = batch.get(), plan](const Target* t, bool) {
    const Status s = simdattn::attention_plan(b->problem, plan.get(), {.target = t});
    *b->out.as<float>() = static_cast<float>(plan->tasks);
    return s;
  };
  return p;
}

/// Tasks of one key, so that what a range costs is not lost among them.
Prepared prepare_range() {
  constexpr int64_t kTasks = 256;
  auto batch = std::make_shared<Batch>(kTasks, DType::kBF16, 16, false, 1, 1);
  Prepared p = of_batch(batch);
  p.run = [b = batch.get()](const Target* t, bool) { return Batch::run(b->plans[t], kTasks, 1, b->exec(t)); };
  p.companion = [b = batch.get()](const Target* t) { return Batch::run(b->plans[t], kTasks, kTasks, b->exec(t)); };
  p.more_calls = kTasks - 1;
  return p;
}

Prepared prepare_paged(DType type, int64_t page_size, bool panels) {
  constexpr int64_t kPart = 4;  // sequences that the definition computes
  auto batch = std::make_shared<Batch>(256, type, page_size, panels, 512, 2048);
  Prepared p = of_batch(batch);
  p.run = [b = batch.get()](const Target* t, bool part) {
    return Batch::run(b->plans[t], part ? kPart : 256, 1, b->exec(t));
  };
  p.companion = [b = batch.get()](const Target* t) {
    if (b->tapes.contains(t)) return b->tapes[t].play(), Status{};
    return b->record_calls(t);
  };
  double keys = 0, part = 0;
  for (size_t s = 0; s < 256; ++s) (s < kPart ? part : keys) += batch->lengths[s];
  keys += part;
  p.scalar_share = part / keys;
  p.count = kPart * kQueryHeads * kDim;
  p.flops = 4.0 * keys * kQueryHeads * kDim;
  return p;
}

}  // namespace

void add_plan_cases(std::vector<Case>& cases) {
  const auto add = [&](const char* kernel, std::string shape, DType type, auto prepare) {
    Case c;
    c.kernel = kernel;
    c.shape = std::move(shape);
    c.type = type_name(type);
    c.main = true;
    c.prepare = prepare;
    cases.push_back(std::move(c));
    return &cases.back();
  };
  for (const int64_t n : {1, 256}) {
    add("plan", "sequences_" + std::to_string(n), DType::kBF16, [n] { return prepare_plan(n); })->fixed_cost = true;
  }
  Case* range = add("range", "one_task", DType::kBF16, prepare_range);
  range->fixed_cost = true;
  range->companion = "all in one range";
  for (const DType type : {DType::kF32, DType::kBF16}) {
    for (const auto& [shape, page_size, panels] :
         {std::tuple{"pages_16", 16, false}, std::tuple{"pages_64", 64, false}, std::tuple{"panels_64", 64, true}}) {
      Case* c = add("paged", shape, type, [=] { return prepare_paged(type, page_size, panels); });
      c->companion = "its slots alone";
      c->weight = 3;
    }
  }
}

}  // namespace bench
