#include "trial.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace simdattn_ggml {
namespace {

/// Emulated, on a busy machine, a trial takes more than ten seconds.
constexpr std::chrono::seconds kLongest{60};

Verdict none(const char* reason) {
  Verdict v = {};
  std::snprintf(v.reason, sizeof v.reason, "%s", reason);
  return v;
}

/// The child prints nothing, leaves no core and no trace of the stack, and runs none of the host's handlers.
[[noreturn]] void child(int out, Verdict (*f)()) {
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  for (const int s : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP}) signal(s, SIG_DFL);
  setenv("GGML_NO_BACKTRACE", "1", 1);
  const int nowhere = open("/dev/null", O_WRONLY);
  if (nowhere >= 0) {
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
  }
  const Verdict v = f();
  _exit(write(out, &v, sizeof v) == static_cast<ssize_t>(sizeof v) ? 0 : 1);
}

/// Reads the verdict, which a pipe delivers in one piece. Signals of the host, of a profiler's timer say, make the wait
/// neither shorter nor longer.
bool read_verdict(int in, Verdict* v) {
  using std::chrono::milliseconds, std::chrono::steady_clock;
  const auto end = steady_clock::now() + kLongest;
  pollfd p = {in, POLLIN, 0};
  int ready;
  do {
    const auto left = std::chrono::duration_cast<milliseconds>(end - steady_clock::now());
    ready = poll(&p, 1, static_cast<int>(std::max(left, milliseconds(0)).count()));
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) return false;
  ssize_t n;
  do n = read(in, v, sizeof *v);
  while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(sizeof *v);
}

}  // namespace

Verdict try_in_child(Verdict (*f)()) {
  int ends[2];
  if (pipe(ends) != 0) return none("no pipe for a trial in a process of its own");
  for (const int end : ends) fcntl(end, F_SETFD, FD_CLOEXEC);
  const pid_t pid = fork();
  if (pid < 0) {
    close(ends[0]);
    close(ends[1]);
    return none("no process for a trial");
  }
  if (pid == 0) {
    close(ends[0]);
    child(ends[1], f);
  }
  close(ends[1]);
  Verdict v = {};
  const bool good = read_verdict(ends[0], &v);
  close(ends[0]);
  if (!good) kill(pid, SIGKILL);
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return good ? v : none("a trial in a process of its own crashed or did not end");
}

}  // namespace simdattn_ggml
