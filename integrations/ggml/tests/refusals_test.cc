// Hosts whose ggml is not as expected: the plug-in must leave them as they are, and say why. This program defines
// functions of ggml itself, which the plug-in then calls in the place of ggml's.
//
//   refusals_test PLUGIN
#include <dlfcn.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "graphs.h"

namespace {

enum class Strange {
  kNothing,
  kTwoCalls,
  kReadsBehindAWord,
  kWaits,
  kWrongResult,
  kOtherTensor
} strange = Strange::kNothing;

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

std::string lines;  // of ggml's log

}  // namespace

extern "C" {
#define EXPORT __attribute__((visibility("default")))

EXPORT ggml_backend_t ggml_backend_dev_init(ggml_backend_dev_t device, const char* params) {
  if (strange == Strange::kTwoCalls) ggml_backend_dev_type(device);
  return next<decltype(&ggml_backend_dev_init)>("ggml_backend_dev_init")(device, params);
}

EXPORT ggml_backend_dev_t ggml_backend_get_device(ggml_backend_t backend) {
  if (strange == Strange::kReadsBehindAWord) {
    // As if a device were behind two pointers.
    return **reinterpret_cast<ggml_backend_dev_t**>(reinterpret_cast<void**>(backend)[17]);
  }
  while (strange == Strange::kWaits) sleep(1);
  return next<decltype(&ggml_backend_get_device)>("ggml_backend_get_device")(backend);
}

/// The first of the self-test's runs is ggml's own.
EXPORT ggml_status ggml_backend_graph_compute(ggml_backend_t backend, ggml_cgraph* graph) {
  const ggml_status status = next<decltype(&ggml_backend_graph_compute)>("ggml_backend_graph_compute")(backend, graph);
  ggml_tensor* node = ggml_graph_node(graph, -1);
  if (strange == Strange::kWrongResult && std::strcmp(ggml_op_name(node->op), "CUSTOM") != 0)
    static_cast<float*>(node->data)[3] += 1e3f;
  return status;
}

EXPORT void ggml_set_output(ggml_tensor* tensor) {
  if (strange == Strange::kOtherTensor) return;  // as if the flags stood elsewhere
  next<decltype(&ggml_set_output)>("ggml_set_output")(tensor);
}
}

namespace {

/// As ggml_backend_load() does it, but called by this program, whose functions the plug-in then takes.
ggml_backend_reg_t load_from_here(const char* file) {
  void* const plugin = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) return nullptr;
  const auto init = reinterpret_cast<ggml_backend_reg_t (*)()>(dlsym(plugin, "ggml_backend_init"));
  ggml_backend_reg_t volatile registration = init != nullptr ? init() : nullptr;  // no call from the tail of this one
  return registration;
}

/// Signals so far apart, as those of a profiler's timer; 0: no more.
void interrupt(suseconds_t microseconds) {
  signal(SIGALRM, [](int) {});
  const itimerval timer = {{0, microseconds}, {0, microseconds}};
  setitimer(ITIMER_REAL, &timer, nullptr);
}

/// In a process of its own, as a host loads once. True: the line holds `reason`, nothing is registered, and graphs have
/// ggml's bits.
bool refuses(const char* file, Strange what, const char* reason) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    ggml_log_set([](ggml_log_level, const char* text, void*) { lines += text; }, nullptr);
    ggml_backend_load_all();
    tests::Graph graph(3, 2);
    ggml_backend_t stock = tests::cpu_backend(1);
    const tests::Floats expected = graph.allocate().run(stock);
    strange = what;
    interrupt(2000);
    ggml_backend_reg_t registration = load_from_here(file);
    interrupt(0);
    strange = Strange::kNothing;
    ggml_backend_t after = tests::cpu_backend(1);
    const bool same = graph.run(after) == expected;
    const bool refused = registration == nullptr && same &&
                         lines.find("simdattn: does nothing: ") != std::string::npos &&
                         lines.find(reason) != std::string::npos;
    const bool taken = registration != nullptr && !same;
    if (what == Strange::kNothing ? !taken : !refused)
      std::printf("%s: same bits %d, log:\n%s\n", reason, same, lines.c_str());
    std::fflush(stdout);
    _exit(what == Strange::kNothing ? !taken : !refused);
  }
  int status = 1;
  waitpid(child, &status, 0);
  return status == 0;
}

/// What ggml asks a file for before it loads it, in a process of its own: the environment is read once.
int score(const char* file, const char* way) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("SIMDATTN_GGML", way, 1);
    void* const plugin = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    _exit(plugin != nullptr ? reinterpret_cast<int (*)()>(dlsym(plugin, "ggml_backend_score"))() : 99);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/// What it writes with SIMDATTN_GGML_LOG=1 where the host throws its own log away.
std::string written(const char* file) {
  int ends[2];
  if (pipe(ends) != 0) return "";
  const pid_t child = fork();
  if (child == 0) {
    setenv("SIMDATTN_GGML_LOG", "1", 1);
    ggml_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    ggml_backend_load_all();
    dup2(ends[1], STDERR_FILENO);
    strange = Strange::kTwoCalls;
    _exit(load_from_here(file) != nullptr);
  }
  close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t n = read(ends[0], text.data(), text.size());  // the only line
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return n > 0 ? text : "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const char* const file = argv[1];
  tests::check(refuses(file, Strange::kNothing, "an ordinary host"), "an ordinary host");
  tests::check(refuses(file, Strange::kTwoCalls, "struct of a device is not known"),
               "a function that calls two members");
  tests::check(refuses(file, Strange::kReadsBehindAWord, "crashed or did not end"), "a function that crashes");
  tests::check(refuses(file, Strange::kWaits, "crashed or did not end"), "a function that does not return");
  tests::check(refuses(file, Strange::kWrongResult, "results that are not ggml's"), "results that differ");
  tests::check(refuses(file, Strange::kOtherTensor, "ggml_tensor is another struct"), "another struct of tensors");
  tests::check(score(file, "off") == 0 && score(file, "interpose") == 1, "ggml leaves it where SIMDATTN_GGML=off");
  tests::check(written(file).find("simdattn: does nothing: ") == 0, "a line of SIMDATTN_GGML_LOG=1");
  setenv("SIMDATTN_GGML", "hook", 1);
  tests::check(refuses(file, Strange::kTwoCalls, "neither interpose, device nor off"), "a variable without a meaning");
  std::printf("%d failures\n", tests::failures);
  return tests::failures == 0 ? 0 : 1;
}
