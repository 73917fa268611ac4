// The plug-in in a host, against a CPU backend that was made before it was loaded, which is ggml's own. A ggml that has
// the hook of hook.patch calls it for that backend too, unless the host wants ggml's reference.
//
//   plugin_test PLUGIN [CASES]
#include <ggml-cpu.h>
#include <malloc.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "graphs.h"

namespace {

using tests::check;
using tests::cpu_backend;
using tests::cpu_function;
using tests::error;
using tests::Floats;
using tests::Graph;
using tests::kMostError;

ggml_backend_t stock, ours;

// ---- Allocations ----------------------------------------------------------------------------------------------------

std::atomic<long> allocations{0};

}  // namespace

extern "C" void* __libc_malloc(size_t);
/// The process's malloc, that of operator new too.
extern "C" __attribute__((visibility("default"))) void* malloc(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(bytes);
}

namespace {

long allocations_of_a_run(ggml_backend_t backend, Graph& graph) {
  graph.write_inputs();
  const long before = allocations;
  check(ggml_backend_graph_compute(backend, graph.graph) == GGML_STATUS_SUCCESS, "graph_compute");
  return allocations - before;
}

/// ggml itself may allocate for a graph. The plug-in adds nothing, from the second run on.
void nothing_is_allocated_again() {
  for (const unsigned seed : {1u, 2u, 3u}) {
    Graph graph(seed, 3);
    graph.allocate();
    const Floats once = graph.run(ours), again = graph.run(ours);
    check(once == again, "the same bits again");
    graph.run(stock);
    const long of_stock = allocations_of_a_run(stock, graph), of_ours = allocations_of_a_run(ours, graph);
    check(of_ours <= of_stock,
          "allocations: " + std::to_string(of_ours) + ", of ggml's own " + std::to_string(of_stock));
  }
}

void freed_backends_leave_nothing() {
  Graph graph(4, 3);
  graph.allocate();
  const auto bytes_after = [&](int count) {
    std::vector<ggml_backend_t> all;
    for (int i = 0; i < count; ++i) graph.run(all.emplace_back(cpu_backend(2)));
    for (ggml_backend_t backend : all) ggml_backend_free(backend);
    const auto used = mallinfo2();
    return used.uordblks + used.hblkhd;
  };
  const size_t before = bytes_after(2), after = bytes_after(20);
  check(after < before + (1 << 20), "20 backends leave " + std::to_string(after - before) + " bytes");
}

// ---- Results --------------------------------------------------------------------------------------------------------

void random_graphs(int cases) {
  double worst = 0;
  int equal = 0;
  for (int i = 0; i < cases; ++i) {
    Graph graph(static_cast<unsigned>(i + 1));
    graph.allocate();
    const Floats expected = graph.run(stock), got = graph.run(ours);
    const double e = error(got, expected);
    check(e < kMostError, graph.text + ": " + std::to_string(e));
    worst = std::max(worst, e);
    equal += got == expected ? 1 : 0;
  }
  check(equal < cases, "the plug-in computes something: all results have ggml's bits");
  std::printf("%d graphs, worst error %.1e\n", cases, worst);
}

void any_number_of_threads_gives_the_same_bits() {
  Graph graph(7, 3);
  const Floats expected = graph.allocate().run(ours);
  for (int i = 0; i < 12; ++i) {
    tests::set_threads(ours, 1 + i % 6);
    check(graph.run(ours) == expected, "bits with " + std::to_string(1 + i % 6) + " threads");
  }
  tests::set_threads(ours, 2);
}

using UseReference = void (*)(ggml_backend_t, bool);
UseReference use_reference_function() { return cpu_function<UseReference>("ggml_backend_cpu_set_use_ref"); }
bool has_hook() { return cpu_function<void*>("ggml_cpu_set_op_hook") != nullptr; }

void reference_is_ggmls() {
  Graph graph(8, 1);
  graph.allocate();
  const auto use_reference = use_reference_function();
  if (use_reference == nullptr) return;  // older than 0.9.6
  use_reference(stock, true);
  const Floats expected = graph.run(stock);
  use_reference(stock, has_hook());
  use_reference(ours, true);
  check(graph.run(ours) == expected, "a host that wants ggml's reference gets it");
  use_reference(ours, false);
  check(graph.run(ours) != expected, "and afterwards ours again");
}

// ---- What hosts do --------------------------------------------------------------------------------------------------

void graph_plans_are_ggmls() {
  Graph graph(9, 3);
  graph.allocate();
  const Floats expected = graph.run(stock), of_ours = graph.run(ours);
  graph.write_inputs();
  ggml_backend_graph_plan_t plan = ggml_backend_graph_plan_create(ours, graph.graph);
  check(ggml_backend_graph_plan_compute(ours, plan) == GGML_STATUS_SUCCESS &&
            error(graph.result(), expected) < kMostError,
        "a graph plan");
  if (has_hook()) check(graph.result() == of_ours, "a graph plan is reached by the hook");
  ggml_backend_graph_plan_free(ours, plan);
}

void thread_pools() {
  Graph graph(10, 3);
  const Floats expected = graph.allocate().run(stock);
  ggml_threadpool_params params = ggml_threadpool_params_default(3);
  auto* pool = cpu_function<ggml_threadpool* (*)(ggml_threadpool_params*)>("ggml_threadpool_new")(&params);
  const auto set_pool = cpu_function<void (*)(ggml_backend_t, ggml_threadpool*)>("ggml_backend_cpu_set_threadpool");
  set_pool(ours, pool);
  check(error(graph.run(ours), expected) < kMostError, "a thread pool of the host's");
  set_pool(ours, nullptr);
  cpu_function<void (*)(ggml_threadpool*)>("ggml_threadpool_free")(pool);
}

void aborted_graphs() {
  Graph graph(11, 3);
  const Floats expected = graph.allocate().run(stock);
  static std::atomic<int> left;
  const auto set_callback = cpu_function<ggml_backend_set_abort_callback_t>("ggml_backend_set_abort_callback");
  set_callback(ours, [](void*) { return left.fetch_sub(1) <= 0; }, nullptr);
  int aborted = 0;
  for (int i = 0; i < 20; ++i) {
    left = i;
    graph.write_inputs();
    aborted += ggml_backend_graph_compute(ours, graph.graph) == GGML_STATUS_ABORTED ? 1 : 0;
    check(graph.as_built(), "the graph after an abort");
  }
  set_callback(ours, nullptr, nullptr);
  check(aborted > 5, "some graphs were aborted");
  check(error(graph.run(ours), expected) < kMostError, "a graph after aborted ones");
}

/// An eval callback runs every node as a graph of its own, and sees ggml's operators.
void schedulers() {
  Graph graph(12, 3), other(12, 3);
  const Floats expected = other.allocate().run(stock);
  ggml_backend_sched_t sched = ggml_backend_sched_new(&ours, nullptr, 1, 2048, false, true);
  static int seen;
  for (const bool callback : {false, true}) {
    ggml_backend_sched_reset(sched);
    seen = 0;
    const auto count = [](ggml_tensor* t, bool, void*) {
      seen += std::strcmp(ggml_op_name(t->op), "FLASH_ATTN_EXT") == 0 ? 1 : 0;
      return true;
    };
    if (callback) ggml_backend_sched_set_eval_callback(sched, count, nullptr);
    check(ggml_backend_sched_alloc_graph(sched, graph.graph), "alloc_graph");
    graph.write_inputs();
    check(ggml_backend_sched_graph_compute(sched, graph.graph) == GGML_STATUS_SUCCESS, "a scheduler");
    check(error(graph.result(), expected) < kMostError && (seen > 0) == callback, "a scheduler's result");
    check(ggml_backend_sched_get_n_splits(sched) == 1, "no split more");
  }
  ggml_backend_sched_free(sched);
}

void several_backends_at_once() {
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([t, &wrong] {
      for (unsigned r = 0; r < 5; ++r) {
        ggml_backend_t one = cpu_backend(1), many = cpu_backend(1 + static_cast<int>(t % 3));
        Graph graph(100 + t * 10 + r);
        const Floats expected = graph.allocate().run(one);
        for (int i = 0; i < 5; ++i) wrong += graph.run(many) == expected ? 0 : 1;
        ggml_backend_free(one);
        ggml_backend_free(many);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  check(wrong == 0, "backends of several threads");
}

/// Every thread of this process, and the CPUs on which it may run.
std::map<std::string, std::string> threads_and_their_cpus() {
  std::map<std::string, std::string> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("Cpus_allowed_list:", 0) == 0) found[task.path().filename()] = line;
    }
  }
  return found;
}

/// The caller bound itself to one CPU, and ggml has made its threads. The plug-in makes none and moves none.
void threads_are_ggmls_where_the_caller_put_them() {
  cpu_set_t before, one;
  sched_getaffinity(0, sizeof before, &before);
  CPU_ZERO(&one);
  for (int cpu = CPU_SETSIZE - 1; CPU_COUNT(&one) == 0; --cpu) {
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  }
  sched_setaffinity(0, sizeof one, &one);
  Graph graph(15, 3);
  graph.allocate().run(stock);
  const auto of_ggml = threads_and_their_cpus();
  graph.run(ours);
  check(threads_and_their_cpus() == of_ggml, "the threads and their CPUs after a graph");
  sched_setaffinity(0, sizeof before, &before);
}

/// One thread: OpenMP's do not survive a fork, with or without the plug-in.
void fork_after_loading() {
  Graph graph(13, 1);
  graph.allocate();
  tests::set_threads(ours, 1);
  const Floats expected = graph.run(ours);
  const pid_t child = fork();
  if (child == 0) {
    ggml_backend_t fresh = cpu_backend(1);
    _exit(graph.run(ours) == expected && graph.run(fresh) == expected ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  check(status == 0, "a forked process");
  tests::set_threads(ours, 2);
}

void load_twice_and_unload(const char* file, ggml_backend_reg_t registration) {
  check(ggml_backend_load(file) == registration, "a second load gives the same");
  Graph graph(14, 3);
  const Floats expected = graph.allocate().run(ours);
  ggml_backend_unload(registration);
  check(graph.run(ours) == expected, "after unloading: a backend that was there");
  ggml_backend_t fresh = cpu_backend(2);
  check(graph.run(fresh) == expected, "after unloading: a new backend");
  ggml_backend_free(fresh);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  ggml_backend_load_all();
  stock = cpu_backend(2);
  ggml_backend_reg_t registration = ggml_backend_load(argv[1]);
  if (registration == nullptr) return std::printf("the plug-in was not loaded\n"), 1;
  check(ggml_backend_reg_dev_count(registration) == 0, "no device");
  if (has_hook()) use_reference_function()(stock, true);
  ours = cpu_backend(2);
  random_graphs(argc > 2 ? std::atoi(argv[2]) : 20);
  any_number_of_threads_gives_the_same_bits();
  nothing_is_allocated_again();
  freed_backends_leave_nothing();
  reference_is_ggmls();
  graph_plans_are_ggmls();
  thread_pools();
  aborted_graphs();
  schedulers();
  several_backends_at_once();
  threads_are_ggmls_where_the_caller_put_them();
  fork_after_loading();
  load_twice_and_unload(argv[1], registration);
  ggml_backend_free(ours);
  ggml_backend_free(stock);
  std::printf("%d failures\n", tests::failures);
  return tests::failures == 0 ? 0 : 1;
}
