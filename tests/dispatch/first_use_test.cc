// The first call of a process may come from many threads at once: each gets the same list of targets, the same default
// and the same sentences, complete. One child process after another, because a process has one first call.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "simdattn/simdattn.h"

namespace {

constexpr int kThreads = 8;

struct Seen {
  const simdattn::Target* const* list = nullptr;
  size_t size = 0;
  const simdattn::Target* chosen = nullptr;
  const char* sentence = nullptr;
  size_t length = 0;
  bool complete = false;
};

Seen look() {
  Seen seen;
  seen.list = simdattn::targets().data;
  seen.size = simdattn::targets().size();
  seen.complete = simdattn::default_target(&seen.chosen).ok() && seen.size > 0;
  for (const simdattn::Target* t : simdattn::targets()) {
    seen.complete = seen.complete && t != nullptr && *simdattn::target_name(*t) != '\0';
  }
  const simdattn::Target* none = nullptr;
  seen.sentence = simdattn::find_target("none", &none).detail;
  seen.length = std::strlen(seen.sentence);
  return seen;
}

/// In a process that has not called the library yet.
bool race() {
  std::atomic<int> waiting{0};
  Seen seen[kThreads];
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      waiting.fetch_add(1);
      while (waiting.load() < kThreads) {
      }
      seen[i] = look();
    });
  }
  for (std::thread& t : threads) t.join();
  const Seen after = look();
  bool ok = after.complete && std::strstr(after.sentence, "scalar") != nullptr;
  for (const Seen& s : seen) {
    ok = ok && s.complete && s.list == after.list && s.size == after.size && s.chosen == after.chosen &&
         s.sentence == after.sentence && s.length == after.length;
  }
  return ok;
}

}  // namespace

int main() {
  unsetenv("SIMDATTN_TARGET");
  for (int i = 0; i < 100; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(race() ? 0 : 1);
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
      std::printf("process %d: threads disagree about the targets\n", i);
      return 1;
    }
  }
  return 0;
}
