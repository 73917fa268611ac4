#include "runner.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <new>

#include "host.h"
#include "settings.h"

namespace simdattn_ggml {

Counts counts;

// ---- One node, by all threads ---------------------------------------------------------------------------------------

/// A node of the graph that runs.
struct Runner::Node {
  Runner* runner = nullptr;
  ggml_tensor* tensor = nullptr;
  const Operator* op = nullptr;
  Call call;
  // What the tensor has while it runs, and what it has before and after.
  ggml_op custom_op{}, own_op{};
  char custom_params[sizeof(ggml_tensor::op_params)], own_params[sizeof(ggml_tensor::op_params)];
  Progress progress;

  void run(int ith, int nth);
};

namespace {

/// A range cannot fail after its plan, unless memory of the graph is overwritten meanwhile.
void must(const sa::Status& status) {
  if (!status.ok()) host.ggml_abort(__FILE__, __LINE__, "simdattn: %s", status.detail);
}

void pause_a_little(int turn) {
  if (turn > 2000) {
    sched_yield();
  } else {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
  }
}

/// Calls f(first, last) for parts of 0 .. total-1 that no other thread has, and returns when none is left. Eight parts
/// a thread let the threads end together although rows of a mask take unlike times.
template <class F>
void take_parts(std::atomic<int64_t>* next, int64_t total, int nth, const F& f) {
  const int64_t step = std::max<int64_t>(1, total / (8 * static_cast<int64_t>(nth)));
  for (int64_t first; (first = next->fetch_add(step, std::memory_order_relaxed)) < total;)
    f(first, std::min(first + step, total));
}

}  // namespace

void report_left(const ggml_tensor& node) {
  constexpr int64_t kLines = 8;
  if (counts.left++ >= kLines || !settings().log) return;
  char sources[320] = "";
  for (size_t i = 0, end = 0; i < 6 && node.src[i] != nullptr; ++i) {
    const ggml_tensor& t = *node.src[i];
    const int n =
        std::snprintf(sources + end, sizeof sources - end, " %s[%lld,%lld,%lld,%lld]", host.ggml_type_name(t.type),
                      static_cast<long long>(t.ne[0]), static_cast<long long>(t.ne[1]), static_cast<long long>(t.ne[2]),
                      static_cast<long long>(t.ne[3]));
    end = std::min(sizeof sources - 1, end + static_cast<size_t>(std::max(n, 0)));
  }
  say(GGML_LOG_LEVEL_INFO, "simdattn: left to ggml: %s of%s", host.ggml_op_name(node.op), sources);
}

void run_share(const Operator& op, const Call& call, Progress* progress, int nth, void* partial, const sa::Exec& exec) {
  take_parts(&progress->next_task.n, call.tasks, nth, [&](int64_t first, int64_t last) {
    must(op.run(call, first, last, partial, exec));
    progress->done_tasks.n.fetch_add(last - first, std::memory_order_release);
  });
  if (call.reductions == 0) return;
  for (int turn = 0; progress->done_tasks.n.load(std::memory_order_acquire) < call.tasks; ++turn) pause_a_little(turn);
  take_parts(&progress->next_reduction.n, call.reductions, nth,
             [&](int64_t first, int64_t last) { must(op.reduce(call, first, last, partial, exec)); });
}

void Runner::Node::run(int ith, int nth) {
  if (static_cast<size_t>(ith) >= runner->workspaces_.size()) return;
  if (ith == 0) runner->threads_.store(nth, std::memory_order_relaxed);
  sa::Exec exec;
  exec.workspace = runner->workspaces_[static_cast<size_t>(ith)].at_least(call.workspace_bytes);
  exec.workspace_bytes = call.workspace_bytes;
  if (exec.workspace == nullptr) return;  // thread 0 has one, and takes what is left
  run_share(*op, call, &progress, nth, call.partial_bytes != 0 ? runner->partial_.data() : nullptr, exec);
}

// ---- The graph ------------------------------------------------------------------------------------------------------

Runner::Runner() : workspaces_(GGML_MAX_N_THREADS) {}
Runner::~Runner() = default;

void Runner::run_custom(ggml_tensor*, int ith, int nth, void* data) { static_cast<Node*>(data)->run(ith, nth); }

/// The next node, with what a custom node of this ggml has in op and op_params.
Runner::Node* Runner::add_node() {
  nodes_.push_back(std::make_unique<Node>());
  Node* const node = nodes_.back().get();
  node->runner = this;
  ggml_context* c = host.ggml_init({2 * host.ggml_tensor_overhead() + 256, nullptr, true});
  if (c == nullptr) return nodes_.pop_back(), nullptr;
  const ggml_tensor* t =
      host.ggml_custom_4d(c, GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0, run_custom, GGML_N_TASKS_MAX, node);
  node->custom_op = t->op;
  std::memcpy(node->custom_params, t->op_params, sizeof node->custom_params);
  host.ggml_free(c);
  return node;
}

/// Plans every node that can be taken, and makes room. Returns how many there are.
size_t Runner::plan(ggml_cgraph* graph) {
  size_t used = 0, workspace = 0, partial = 0;
  for (int i = 0, n = host.ggml_graph_n_nodes(graph); i < n; ++i) {
    ggml_tensor* tensor = host.ggml_graph_node(graph, i);
    const Operator* op = operator_of(*tensor);
    if (op == nullptr) continue;
    Node* const node = used < nodes_.size() ? nodes_[used].get() : add_node();
    if (node == nullptr) return 0;
    node->call.threads = threads_.load(std::memory_order_relaxed);
    if (!op->plan(*tensor, false, &node->call)) {
      report_left(*tensor);
      continue;
    }
    node->tensor = tensor;
    node->op = op;
    node->own_op = tensor->op;
    std::memcpy(node->own_params, tensor->op_params, sizeof node->own_params);
    for (Progress::Counter* counter :
         {&node->progress.next_task, &node->progress.done_tasks, &node->progress.next_reduction})
      counter->n.store(0, std::memory_order_relaxed);
    workspace = std::max(workspace, node->call.workspace_bytes);
    partial = std::max(partial, node->call.partial_bytes);
    ++used;
  }
  if (used != 0 && (workspaces_[0].at_least(workspace) == nullptr || partial_.at_least(partial) == nullptr)) return 0;
  return used;
}

ggml_status Runner::run(ggml_backend_t backend, ggml_cgraph* graph, Compute compute) {
  const size_t used = plan(graph);
  for (size_t i = 0; i < used; ++i) {
    nodes_[i]->tensor->op = nodes_[i]->custom_op;
    std::memcpy(nodes_[i]->tensor->op_params, nodes_[i]->custom_params, sizeof nodes_[i]->custom_params);
  }
  const ggml_status status = compute(backend, graph);
  for (size_t i = 0; i < used; ++i) {
    nodes_[i]->tensor->op = nodes_[i]->own_op;
    std::memcpy(nodes_[i]->tensor->op_params, nodes_[i]->own_params, sizeof nodes_[i]->own_params);
  }
  counts.taken += static_cast<int64_t>(used);
  return status;
}

}  // namespace simdattn_ggml
