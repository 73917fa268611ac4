// Attention on a pool of std::thread: the library divides a problem into tasks, the caller runs them where it likes. Shows
// one causal prefill and one long decode, on 1 thread and on all, and that both give the same bits.
//
//   attention_threads [THREADS]
#include <simdattn/simdattn.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sa = simdattn;

namespace {

void check(const sa::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "attention_threads: %s\n", status.detail);
  std::exit(1);
}

/// Lets threads go on when all of them have come. std::barrier, but that gcc 12's forgets to wake a thread now and then on
/// Windows.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void arrive_and_wait() {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    if (++arrived_ < threads_) {
      all_came_.wait(lock, [&] { return round_ != round; });
    } else {
      arrived_ = 0;
      ++round_;
      all_came_.notify_all();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_came_;
  int threads_;
  int arrived_ = 0;
  int64_t round_ = 0;
};

/// Threads that wait between jobs. A job calls body(task, thread) once for each task, in no particular order.
class Pool {
 public:
  explicit Pool(int threads) : begin_(threads), end_(threads) {
    for (int t = 1; t < threads; ++t) {
      threads_.emplace_back([this, t] {
        for (begin_.arrive_and_wait(); body_ != nullptr; begin_.arrive_and_wait()) work(t);
      });
    }
  }
  ~Pool() {
    body_ = nullptr;
    begin_.arrive_and_wait();
    for (std::thread& t : threads_) t.join();
  }
  int size() const { return static_cast<int>(threads_.size()) + 1; }

  void run(int64_t tasks, const std::function<void(int64_t task, int thread)>& body) {
    body_ = &body;
    tasks_ = tasks;
    next_ = 0;
    begin_.arrive_and_wait();
    work(0);
  }

 private:
  void work(int thread) {
    for (int64_t task; (task = next_++) < tasks_;) (*body_)(task, thread);
    end_.arrive_and_wait();
  }

  Barrier begin_, end_;
  std::atomic<int64_t> next_ = 0;
  int64_t tasks_ = 0;
  const std::function<void(int64_t, int)>* body_ = nullptr;
  std::vector<std::thread> threads_;
};

/// attention() on a pool. Memory is allocated here for brevity; an engine would keep it from call to call.
void attention_on(Pool& pool, const sa::Attention& problem) {
  sa::AttentionPlan plan;
  check(sa::attention_plan(problem, &plan));
  std::vector<std::vector<std::byte>> workspace(static_cast<size_t>(pool.size()));
  for (auto& bytes : workspace) bytes.resize(plan.workspace_bytes);
  std::vector<std::byte> partial(plan.partial_bytes);
  const auto exec = [&](int thread) {
    return sa::Exec{.workspace = workspace[static_cast<size_t>(thread)].data(),
                    .workspace_bytes = plan.workspace_bytes};
  };
  pool.run(plan.tasks, [&](int64_t task, int thread) {
    check(sa::attention_range(plan, task, task + 1, partial.data(), partial.size(), exec(thread)));
  });
  pool.run(plan.reduce_tasks, [&](int64_t task, int thread) {
    check(sa::attention_reduce(plan, task, task + 1, partial.data(), partial.size(), exec(thread)));
  });
}

std::vector<float> data(int64_t n) {  // anything between -1 and 1
  std::vector<float> x(static_cast<size_t>(n));
  uint32_t state = 1;
  for (float& f : x) f = static_cast<float>(static_cast<int32_t>(state = state * 1664525 + 1013904223)) * 0x1p-31f;
  return x;
}

bool compare(const char* what, int threads, int64_t heads, int64_t kv_heads, int64_t n_q, int64_t n_kv, int64_t d) {
  const std::vector<float> q = data(heads * n_q * d), k = data(kv_heads * n_kv * d), v = data(kv_heads * n_kv * d);
  std::vector<float> out[2];
  double seconds[2];
  for (const int many : {0, 1}) {
    out[many].resize(q.size());
    sa::Attention problem{.q = sa::view(q.data(), {1, heads, n_q, d}),
                          .k = sa::view(k.data(), {1, kv_heads, n_kv, d}),
                          .v = sa::view(v.data(), {1, kv_heads, n_kv, d}),
                          .out = sa::view(out[many].data(), {1, heads, n_q, d}),
                          .scoring = {.causal = true}};
    Pool pool(many ? threads : 1);
    attention_on(pool, problem);  // once to warm up
    const auto start = std::chrono::steady_clock::now();
    attention_on(pool, problem);
    seconds[many] = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  const bool same = std::memcmp(out[0].data(), out[1].data(), out[0].size() * sizeof(float)) == 0;
  std::printf("%s: 1 thread %.2f ms, %d threads %.2f ms, %s\n", what, seconds[0] * 1e3, threads, seconds[1] * 1e3,
              same ? "the same bits" : "DIFFERENT BITS");
  return same;
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : static_cast<int>(std::thread::hardware_concurrency());
  if (threads < 1 || threads > 1024) {
    std::fprintf(stderr, "usage: attention_threads [THREADS], from 1 to 1024\n");
    return 1;
  }
  const bool prefill = compare("causal prefill of 1024 tokens, 8/2 heads of 64", threads, 8, 2, 1024, 1024, 64);
  const bool decode = compare("decode at 65536 tokens, 8/2 heads of 64", threads, 8, 2, 1, 65536, 64);
  return prefill && decode ? 0 : 1;
}
