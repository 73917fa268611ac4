#include "hook.h"

#include <ggml.h>

#include <cstdint>
#include <new>

#include "host.h"
#include "operators.h"
#include "runner.h"

struct ggml_threadpool;

namespace simdattn_ggml {
namespace {

/// ggml_cpu_op_hook, which no header of a release has.
struct Hook {
  size_t (*work_size)(const ggml_tensor* node, int n_threads);
  bool (*compute)(ggml_tensor* node, int ith, int nth, void* work, size_t work_size, ggml_threadpool* pool);
};
using SetHook = void (*)(ggml_op, const Hook*);
using Barrier = void (*)(ggml_threadpool*);

Barrier barrier;

template <class F>
F function(ggml_backend_dev_t cpu, const char* name) {
  return reinterpret_cast<F>(host.ggml_backend_reg_get_proc_address(host.ggml_backend_dev_backend_reg(cpu), name));
}

constexpr size_t kLine = 64;
size_t in_lines(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

/// The beginning of ggml's work buffer while a node runs. Partial results of all threads lie behind it, and then a
/// workspace for each thread.
struct alignas(kLine) Work {
  Call call;
  Progress progress;
  const Operator* op;  // null: ggml computes the node

  char* partial() { return reinterpret_cast<char*>(this + 1); }
  char* workspace(int ith) {
    return partial() + in_lines(call.partial_bytes) + static_cast<size_t>(ith) * in_lines(call.workspace_bytes);
  }
  static size_t bytes(const Call& call, int threads) {
    return sizeof(Work) + in_lines(call.partial_bytes) + static_cast<size_t>(threads) * in_lines(call.workspace_bytes);
  }
};

/// The buffer has the alignment of operator new.
constexpr size_t kBefore = kLine - 1;
Work* work_in(void* buffer) {
  const auto address = reinterpret_cast<uintptr_t>(buffer);
  return reinterpret_cast<Work*>(static_cast<char*>(buffer) + (kLine - address % kLine) % kLine);
}

size_t work_size(const ggml_tensor* node, int n_threads) {
  const Operator* const op = operator_of(*node);
  Call call;
  call.threads = n_threads;
  if (op == nullptr || !(op->plan(*node, false, &call) || op->plan(*node, true, &call))) return 0;
  return kBefore + Work::bytes(call, n_threads);
}

/// The plan of this node, where it has room.
void begin(const ggml_tensor& node, int nth, size_t size, Work* work) {
  new (work) Work;
  work->op = operator_of(node);
  if (work->op == nullptr) return;
  work->call.threads = nth;
  if (work->op->plan(node, false, &work->call) && kBefore + Work::bytes(work->call, nth) <= size) {
    ++counts.taken;
    return;
  }
  work->op = nullptr;
  report_left(node);
}

bool compute(ggml_tensor* node, int ith, int nth, void* buffer, size_t size, ggml_threadpool* pool) {
  if (size < kBefore + sizeof(Work)) return false;
  Work* const work = work_in(buffer);
  if (ith == 0) begin(*node, nth, size, work);
  barrier(pool);
  if (work->op == nullptr) {
    barrier(pool);  // ggml's own code writes to the buffer
    return false;
  }
  sa::Exec exec;
  exec.workspace = work->workspace(ith);
  exec.workspace_bytes = work->call.workspace_bytes;
  run_share(*work->op, work->call, &work->progress, nth, work->call.partial_bytes != 0 ? work->partial() : nullptr,
            exec);
  return true;
}

}  // namespace

bool has_hook(ggml_backend_dev_t cpu) {
  return function<SetHook>(cpu, "ggml_cpu_set_op_hook") != nullptr &&
         function<Barrier>(cpu, "ggml_threadpool_barrier") != nullptr;
}

void set_hooks(ggml_backend_dev_t cpu) {
  const auto set = function<SetHook>(cpu, "ggml_cpu_set_op_hook");
  barrier = function<Barrier>(cpu, "ggml_threadpool_barrier");
  const Hook hook = {work_size, compute};
  for (const ggml_op op : operators_taken()) set(op, &hook);
}

}  // namespace simdattn_ggml
