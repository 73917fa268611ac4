// Graphs of ggml's CPU backend, of which the library computes the nodes that it takes.
//
// For the time of a call these nodes are nodes GGML_OP_CUSTOM, which ggml's own threads run. A pool of threads of our
// own was rejected: beside OpenMP's, whose threads spin between nodes, it takes twice as long.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include "memory.h"
#include "operators.h"

namespace simdattn_ggml {

/// How many nodes of the table's operators the library took and left, in this process.
struct Counts {
  std::atomic<int64_t> taken{0}, left{0};
};
extern Counts counts;

/// Counts a node that the library does not take; with SIMDATTN_GGML_LOG=1 a line, of the first few.
void report_left(const ggml_tensor& node);

/// What the threads of a call share. Threads take tasks as they come: a thread that is late takes none, and no other
/// one waits for it. What the plan wrote is visible to every thread, because ggml starts its threads, or lets them go
/// on, by a lock or a barrier. Taking a task orders nothing, since no task reads what another one wrote. A reduction
/// does: done_tasks releases a task's partial results, and who waits for the sum acquires them, of all threads, since
/// additions continue a release.
struct Progress {
  struct Counter {
    alignas(64) std::atomic<int64_t> n{0};
  };
  Counter next_task, done_tasks, next_reduction;
};

/// This thread's share of a call that nth threads run, each by this function. Its partial results are `partial`.
void run_share(const Operator& op, const Call& call, Progress* progress, int nth, void* partial, const sa::Exec& exec);

/// What runs the graphs of one backend. One thread at a time may call run().
class Runner {
 public:
  using Compute = ggml_status (*)(ggml_backend_t, ggml_cgraph*);
  Runner();
  ~Runner();
  /// `compute` on the graph, with the library's nodes in the place of ggml's. The graph is afterwards as it was.
  ggml_status run(ggml_backend_t backend, ggml_cgraph* graph, Compute compute);

 private:
  struct Node;
  struct alignas(64) ThreadMemory : Memory {};
  static void run_custom(ggml_tensor*, int ith, int nth, void* data);
  Node* add_node();
  size_t plan(ggml_cgraph* graph);

  std::vector<std::unique_ptr<Node>> nodes_;  // op_params hold their addresses
  std::vector<ThreadMemory> workspaces_;
  Memory partial_;
  /// Of the last graph, because ggml tells a graph's threads to its nodes alone; 0: none yet.
  std::atomic<int> threads_{0};
};

}  // namespace simdattn_ggml
