// Nodes of ggml as calls of the library: random ones, whose arrays are there or not when the plug-in is asked, apart or
// inside one another. What it takes by shapes alone it takes with arrays; a node without an array that a run reads is
// left to ggml; and what runs has the bits of one call of the library, near ggml's own result, and writes nothing
// beyond the sizes that the plan names. By threads of the test's own too, which ThreadSanitizer sees, as ggml's are
// not: tools/test-ggml threads.
//
//   nodes_test [CASES]
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "../host.h"
#include "../operators.h"
#include "../runner.h"
#include "graphs.h"
#include "tests/support/pages.h"

namespace {

/// The linker has the library's call here.
int amx_requests = 0;

}  // namespace

extern "C" simdattn::Status __wrap_simdattn_request_amx() {
  ++amx_requests;
  return {simdattn::Code::kTarget, "refused"};
}

namespace {

using namespace simdattn_ggml;
using simdattn::test::Access;
using tests::check;

/// Bytes that end at a page without access.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : bytes_(bytes), page_(simdattn::test::page_size()) {
    whole_ = (bytes + page_ - 1) / page_ * page_;
    pages_ = static_cast<char*>(simdattn::test::map_pages(whole_ + page_, Access::kWrite));
    simdattn::test::protect_pages(pages_ + whole_, page_, Access::kNone);
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { simdattn::test::unmap_pages(pages_, whole_ + page_); }
  char* data() const { return pages_ + whole_ - bytes_; }
  size_t size() const { return bytes_; }

 private:
  size_t bytes_, page_, whole_;
  char* pages_;
};

class Random {
 public:
  explicit Random(unsigned seed) : numbers_(seed) {}
  int below(int n) { return static_cast<int>(numbers_() >> 8) % n; }
  int between(int first, int last) { return first + below(last - first + 1); }
  bool coin() { return below(2) == 0; }
  float number(float size) { return size * (static_cast<float>(numbers_()) * 0x1p-30f - 1.0f); }

 private:
  std::minstd_rand numbers_;
};

/// A node, its sources, and their memory.
struct Node {
  ggml_context* context = ggml_init({size_t{1} << 18, nullptr, true});
  ggml_tensor* node = nullptr;
  std::vector<std::unique_ptr<Guarded>> memory;

  Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() { ggml_free(context); }
  /// Tensors between the inputs and the node are views.
  void allocate() {
    for (ggml_tensor* t = ggml_get_first_tensor(context); t != nullptr; t = ggml_get_next_tensor(context, t)) {
      if (t->view_src != nullptr) {
        t->data = static_cast<char*>(t->view_src->data) + t->view_offs;
      } else {
        memory.push_back(std::make_unique<Guarded>(ggml_nbytes(t)));
        t->data = memory.back()->data();
      }
    }
  }
  std::set<ggml_tensor*> arrays() const {
    std::set<ggml_tensor*> all(node->src, node->src + GGML_MAX_SRC);
    all.insert(node);
    all.erase(nullptr);
    return all;
  }
  std::string bytes() const { return {static_cast<const char*>(node->data), ggml_nbytes(node)}; }
  tests::Floats floats() const {
    tests::Floats x(static_cast<size_t>(ggml_nelements(node)));
    std::memcpy(x.data(), node->data, ggml_nbytes(node));
    return x;
  }
};

void fill(Random& random, ggml_tensor* t, float size) {
  tests::Floats x(static_cast<size_t>(ggml_nelements(t)));
  for (float& y : x) y = random.number(size);
  if (t->type == GGML_TYPE_F32) std::memcpy(t->data, x.data(), ggml_nbytes(t));
  else ggml_quantize_chunk(t->type, x.data(), t->data, 0, ggml_nrows(t), t->ne[0], nullptr);
}

ggml_tensor* turned(ggml_context* c, ggml_tensor* t) { return ggml_permute(c, t, 0, 2, 1, 3); }

void make_attention(Random& random, Node* n) {
  constexpr ggml_type kTypes[] = {GGML_TYPE_F16,  GGML_TYPE_F32,  GGML_TYPE_BF16, GGML_TYPE_Q8_0,  GGML_TYPE_Q4_0,
                                  GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL};
  ggml_context* const c = n->context;
  const ggml_type k_type = kTypes[random.below(9)], v_type = kTypes[random.below(9)];
  const int d = 32 * random.between(1, 4), d_v = 32 * random.between(1, d / 32), kv_heads = random.between(1, 2),
            heads = kv_heads * random.between(1, 3), batch = random.between(1, 2);
  const int queries = random.between(1, 40), keys = random.coin() ? random.between(1, 300) : random.between(1025, 2200);
  ggml_tensor* q = ggml_new_tensor_4d(c, GGML_TYPE_F32, d, heads, queries, batch);
  ggml_tensor* k = ggml_new_tensor_4d(c, k_type, d, kv_heads, keys, batch);
  const bool inside = random.coin();  // as in latent attention
  ggml_tensor* v = inside ? ggml_view_4d(c, k, d_v, kv_heads, keys, batch, k->nb[1], k->nb[2], k->nb[3], 0)
                          : ggml_new_tensor_4d(c, v_type, d_v, kv_heads, keys, batch);
  const int rows = (queries + 63) / 64 * 64;  // ggml 0.9 wants so many
  ggml_tensor* mask = random.coin() ? ggml_new_tensor_2d(c, GGML_TYPE_F16, keys, rows) : nullptr;
  ggml_tensor* sinks = random.coin() ? ggml_new_tensor_1d(c, GGML_TYPE_F32, heads) : nullptr;
  const float softcap = random.below(4) == 0 ? 30.0f : 0.0f,
              bias = mask != nullptr && random.below(4) == 0 ? 8.0f : 0.0f;
  n->node = ggml_flash_attn_ext(c, turned(c, q), turned(c, k), turned(c, v), mask, 1 / std::sqrt(static_cast<float>(d)),
                                bias, softcap);
  if (sinks != nullptr) ggml_flash_attn_ext_add_sinks(n->node, sinks);
  n->allocate();
  fill(random, q, 1);
  fill(random, k, 1);
  if (!inside) fill(random, v, 1);
  if (sinks != nullptr) fill(random, sinks, 1);
  if (mask == nullptr) return;
  for (int i = 0; i < rows * keys; ++i) {
    const float x = random.below(4) != 0 || i % keys == 0 ? random.number(1) : -INFINITY;
    static_cast<ggml_fp16_t*>(mask->data)[i] = ggml_fp32_to_fp16(x);
  }
}

void make_delta_net(Random& random, Node* n) {
  using Make = ggml_tensor* (*)(ggml_context*, ggml_tensor*, ggml_tensor*, ggml_tensor*, ggml_tensor*, ggml_tensor*,
                                ggml_tensor*, int64_t);
  const auto make = reinterpret_cast<Make>(dlsym(RTLD_DEFAULT, "ggml_gated_delta_net"));
  if (make == nullptr) return;
  ggml_context* const c = n->context;
  const int d = 32 * random.between(1, 2), key_heads = random.between(1, 2), heads = key_heads * random.between(1, 2),
            tokens = random.between(1, 20), batch = random.between(1, 3), snapshots = random.coin() ? 1 : tokens;
  const auto tensor = [&](int width, int h) { return ggml_new_tensor_4d(c, GGML_TYPE_F32, width, h, tokens, batch); };
  ggml_tensor *q = tensor(d, key_heads), *k = random.coin() ? q : tensor(d, key_heads), *v = tensor(d, heads),
              *decay = tensor(1, heads), *beta = random.coin() ? decay : tensor(1, heads),
              *past = ggml_new_tensor_4d(c, GGML_TYPE_F32, d, d, heads, batch);
  n->node = make(c, q, k, v, decay, beta, past, snapshots);
  n->allocate();
  for (ggml_tensor* t : {q, k, v, beta, past}) fill(random, t, t == q || t == k ? 0.1f : 1.0f);
  if (decay != beta) fill(random, decay, 1);
}

void make_convolution_of(Random& random, Node* n, int channels, int batch) {
  ggml_context* const c = n->context;
  const int width = random.between(2, 5), tokens = random.between(1, 9);
  ggml_tensor* inputs = ggml_new_tensor_3d(c, GGML_TYPE_F32, width - 1 + tokens, channels, batch);
  ggml_tensor* weight = ggml_new_tensor_2d(c, GGML_TYPE_F32, width, channels);
  n->node = ggml_ssm_conv(c, inputs, weight);
  n->allocate();
  fill(random, inputs, 1);
  fill(random, weight, 1);
}
void make_convolution(Random& random, Node* n) {
  make_convolution_of(random, n, random.between(1, 700), random.between(1, 3));
}

/// One call of the library. False: it refuses.
bool whole_attention(const ggml_tensor& node) {
  sa::AttentionProblem a;
  float slopes[kGgmlSlopes];
  if (!ggml_attention(node, slopes, &a)) return false;
  const Guarded workspace(sa::attention_workspace(a));
  sa::Exec exec;
  exec.workspace = workspace.data(), exec.workspace_bytes = workspace.size();
  return sa::attention(a, exec).ok();
}
bool whole_delta_net(const ggml_tensor& node) {
  sa::LinearAttentionProblem a;
  if (!ggml_delta_net(node, &a)) return false;
  const Guarded workspace(sa::linear_attention_workspace(a));
  sa::Exec exec;
  exec.workspace = workspace.data(), exec.workspace_bytes = workspace.size();
  return sa::linear_attention(a, exec).ok();
}
bool whole_convolution(const ggml_tensor& node) {
  sa::CausalConvProblem a;
  return ggml_ssm_conv(node, &a) && sa::causal_conv(a).ok();
}

struct Kind {
  void (*make)(Random&, Node*);
  bool (*whole)(const ggml_tensor&);
};
constexpr Kind kKinds[kOperators] = {
    {make_attention, whole_attention}, {make_delta_net, whole_delta_net}, {make_convolution, whole_convolution}};

/// Asks with a few arrays null or where another one is: the answer to shapes is what it was; a run without an array is
/// refused.
void with_other_arrays(Random& random, const Operator& op, const Node& n, bool taken, Call* call) {
  const std::set<ggml_tensor*> arrays = n.arrays();
  std::vector<void*> data;
  int gone = 0;
  for (ggml_tensor* t : arrays) {
    data.push_back(t->data);
    if (random.coin()) t->data = nullptr, ++gone;
    else if (random.coin()) t->data = data[static_cast<size_t>(random.below(static_cast<int>(data.size())))];
  }
  check(op.plan(*n.node, true, call) == taken, std::string(op.name) + ": shapes alone, another answer");
  check(gone == 0 || !op.plan(*n.node, false, call), std::string(op.name) + ": planned a run without an array");
  auto before = data.begin();
  for (ggml_tensor* t : arrays) t->data = *before++;
}

/// Runs a plan in random ranges.
void run(Random& random, const Operator& op, const Call& call) {
  const Guarded partial(call.partial_bytes);
  for (const bool reduce : {false, true}) {
    for (int64_t first = 0, count = reduce ? call.reductions : call.tasks; first < count;) {
      const int64_t last = std::min<int64_t>(count, first + random.between(1, 3));
      const Guarded workspace(call.workspace_bytes);
      sa::Exec exec;
      exec.workspace = workspace.data(), exec.workspace_bytes = workspace.size();
      const sa::Status s = (reduce ? op.reduce : op.run)(call, first, last, partial.data(), exec);
      check(s.ok(), std::string(op.name) + ": " + s.detail);
      first = last;
    }
  }
}

/// What ggml_custom_4d() leaves in op_params.
struct Custom {
  ggml_custom_op_t function;
  int tasks;
  void* data;
};
int team;

/// In ggml's place: runs the custom nodes of a graph by `team` new threads each.
ggml_status by_threads(ggml_backend_t, ggml_cgraph* graph) {
  for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
    ggml_tensor* const node = ggml_graph_node(graph, i);
    if (std::strcmp(ggml_op_name(node->op), "CUSTOM") != 0) continue;
    Custom custom;
    std::memcpy(&custom, node->op_params, sizeof custom);
    std::vector<std::thread> threads;
    for (int ith = 0; ith < team; ++ith) threads.emplace_back(custom.function, node, ith, team, custom.data);
    for (std::thread& t : threads) t.join();
  }
  return GGML_STATUS_SUCCESS;
}

/// Whether the node was taken.
bool one_case(Random& random, int kind, ggml_backend_t stock, Call* call) {
  const Operator& op = kTable[kind];
  Node n;
  kKinds[kind].make(random, &n);
  if (n.node == nullptr) return false;
  const bool taken = op.plan(*n.node, false, call);
  for (int i = 0; i < 4; ++i) with_other_arrays(random, op, n, taken, call);
  if (!taken) return false;
  ggml_cgraph* graph = ggml_new_graph(n.context);
  ggml_build_forward_expand(graph, n.node);
  check(ggml_backend_graph_compute(stock, graph) == GGML_STATUS_SUCCESS, "graph_compute");
  const tests::Floats of_ggml = n.floats();
  std::memset(n.node->data, 0xff, ggml_nbytes(n.node));
  check(kKinds[kind].whole(*n.node), std::string(op.name) + ": taken, but one call refuses it");
  const std::string want = n.bytes();
  std::memset(n.node->data, 0xff, ggml_nbytes(n.node));
  call->threads = random.below(9);
  check(op.plan(*n.node, false, call), std::string(op.name) + ": planned once, and not again");
  run(random, op, *call);
  check(n.bytes() == want, std::string(op.name) + ": the bits of one call");
  static Runner runner;
  std::memset(n.node->data, 0xff, ggml_nbytes(n.node));
  team = random.between(1, 4);
  check(runner.run(stock, graph, by_threads) == GGML_STATUS_SUCCESS && n.bytes() == want,
        std::string(op.name) + ": the bits of one call, by " + std::to_string(team) + " threads");
  const double e = tests::error(n.floats(), of_ggml);
  check(e < tests::kMostError, std::string(op.name) + ": far from ggml's result, " + std::to_string(e));
  return true;
}

/// A plan looks at every sequence, where there are more of them than channels, and writes nothing.
void plan_of_many_sequences(Call* call) {
  Random random(1);
  Node n;
  make_convolution_of(random, &n, 1, 5000);
  std::memset(n.node->data, 0xff, ggml_nbytes(n.node));
  const std::string before = n.bytes();
  check(kTable[2].plan(*n.node, false, call) && n.bytes() == before, "SSM_CONV of 5000 sequences");
}

/// The exit status of a process. A cache of bf16 asks for AMX, once; others do not.
int requests_of_amx() {
  unsetenv("SIMDATTN_GGML_ARITHMETIC");
  unsetenv("SIMDATTN_TARGET");
  const auto requests = [](int sample) {
    ggml_context* const c = ggml_init({kSampleBytes, nullptr, false});
    auto call = std::make_unique<Call>();
    check(kTable[0].plan(*kTable[0].samples[sample](c), false, call.get()), "a sample is taken");
    ggml_free(c);
    return amx_requests;
  };
  check(requests(0) == 0, "AMX is asked for a cache of f16");
  check(requests(1) == 1 && requests(1) == 1, "AMX is not asked once for a cache of bf16");
  return tests::failures;
}

}  // namespace

int main(int argc, char** argv) {
  setenv("SIMDATTN_GGML_ARITHMETIC", "f32", 1);  // that of the one call
  ggml_backend_load_all();
  if (const char* missing = find_host(reinterpret_cast<const void*>(ggml_backend_load_all)))
    return std::printf("ggml has no %s\n", missing), 1;
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const int status = requests_of_amx();
    std::fflush(stdout);
    _exit(status);
  }
  int status = 1;
  waitpid(child, &status, 0);
  check(status == 0, "requests of AMX");
  ggml_backend_t stock = tests::cpu_backend(2);
  const int cases = argc > 1 ? std::atoi(argv[1]) : 60;
  auto call = std::make_unique<Call>();  // the same for all, as a graph's nodes come again
  int taken[kOperators] = {};
  const unsigned found = find_operators();
  take_operators(found);
  plan_of_many_sequences(call.get());
  for (int i = 0; i < cases; ++i) {
    Random random(static_cast<unsigned>(i + 1));
    const int kind = i % kOperators;
    taken[kind] += one_case(random, kind, stock, call.get());
  }
  for (int i = 0; i < kOperators; ++i) {
    std::printf("%s: took %d of %d nodes\n", kTable[i].name, taken[i], cases / kOperators);
    check((found >> i & 1u) == 0 || taken[i] > cases / kOperators / 3,
          std::string(kTable[i].name) + ": most are taken");
  }
  ggml_backend_free(stock);
  std::printf("%d failures\n", tests::failures);
  return tests::failures == 0 ? 0 : 1;
}
