// The plug-in's AMX beside ggml's own in one process. ggml configures its tiles once a thread, and multiplies weights
// that lie in buffers of its type AMX by them. A call of the library that left the tiles otherwise would end the
// program by SIGILL.
//
//   tiles_test PLUGIN [BUFFERS ARITHMETIC]
//
// Skipped where ggml's CPU backend has no such buffers, as without AMX. BUFFERS: others of the CPU's ("CPU": ordinary
// ones) run the same text anywhere.
#include <sys/wait.h>
#include <unistd.h>

#include "graphs.h"

namespace {

using tests::Floats;
using tests::Graph;

/// The CPU's buffers of this name; null if it has none.
ggml_backend_buffer_type_t buffers(const std::string& name) {
  if (name == "CPU") return ggml_backend_cpu_buffer_type();
  ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  const auto extra = tests::cpu_function<ggml_backend_dev_get_extra_bufts_t>("ggml_backend_dev_get_extra_bufts");
  if (extra == nullptr) return nullptr;
  for (ggml_backend_buffer_type_t* type = extra(cpu); type != nullptr && *type != nullptr; ++type) {
    if (name == ggml_backend_buft_name(*type)) return *type;
  }
  return nullptr;
}

constexpr int kSkipped = 77;

/// The exit status of a process, whose threads are new.
int process(const char* plugin, const std::string& name, const char* arithmetic, bool ours_first) {
  setenv("SIMDATTN_GGML_ARITHMETIC", arithmetic, 1);
  ggml_backend_load_all();
  ggml_backend_buffer_type_t type = buffers(name);
  if (type == nullptr) {
    std::printf("skipped: ggml's CPU backend has no buffers %s here\n", name.c_str());
    return kSkipped;
  }
  ggml_backend_t stock = tests::cpu_backend(2);
  if (ggml_backend_load(plugin) == nullptr) {
    std::printf("skipped: the plug-in has no instructions for %s: its targets, or the CPU's\n", arithmetic);
    return kSkipped;
  }
  ggml_backend_t ours = tests::cpu_backend(2);
  int many_rows = 0;
  for (unsigned seed = 1; seed <= 12; ++seed) {
    Graph plain(seed, 1), tiles(seed, 3, type);
    plain.allocate();
    tiles.allocate();
    many_rows += tiles.queries >= 64;
    if (ours_first) plain.run(ours);
    const Floats once = tiles.run(ours);
    plain.run(ours);
    tests::check(tiles.run(ours) == once, "the same bits again: " + tiles.text);
    const double e = tests::error(once, tiles.run(stock));
    tests::check(e < 2 * tests::kMostError, tiles.text + ": " + std::to_string(e));
  }
  tests::check(many_rows > 2, "no graph has as many rows as narrow arithmetic takes");
  return tests::failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string name = argc > 3 ? argv[2] : "AMX";
  const std::vector<const char*> all = {"bf16", "int8"}, one = {argc > 3 ? argv[3] : ""};
  for (const char* arithmetic : argc > 3 ? one : all) {
    for (const bool ours_first : {false, true}) {
      std::fflush(stdout);
      const pid_t child = fork();
      if (child == 0) {
        const int status = process(argv[1], name, arithmetic, ours_first);
        std::fflush(stdout);
        _exit(status);
      }
      int status = 1;
      waitpid(child, &status, 0);
      if (WIFEXITED(status) && WEXITSTATUS(status) == kSkipped) return kSkipped;
      tests::check(status == 0, std::string(arithmetic) + (ours_first ? ", ours first" : ", ggml first") + ": status " +
                                    std::to_string(status));
    }
  }
  std::printf("%d failures\n", tests::failures);
  return tests::failures == 0 ? 0 : 1;
}
