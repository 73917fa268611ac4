// How evenly the tasks of a plan load threads, and what threads cannot share: what docs/performance.md has as a table.
//
//   simdattn-tasks           balance, by counting the multiply-adds of tasks: the same on every machine
//   simdattn-tasks --times   also the share of a call that plan and reduce take on one thread of this machine
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "include/simdattn/simdattn.h"
#include "lib/drivers/attention/division.h"

namespace {

using simdattn::AttentionProblem;
using simdattn::Interval;

struct Shape {
  std::string name;
  int64_t heads, kv_heads, d_qk, d_v;
  int64_t n_q;                   // of each sequence
  std::vector<int32_t> lengths;  // keys of each sequence
};

/// `n` sequences whose lengths go evenly from `first` to `last`, long and short ones in turns.
std::vector<int32_t> mixed(int32_t n, int32_t first, int32_t last) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < n; ++i) {
    const int32_t at = i % 2 == 0 ? i / 2 : n - 1 - i / 2;
    lengths.push_back(first + (last - first) * at / (n - 1));
  }
  return lengths;
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const int32_t keys : {512, 4096, 16384, 131072}) {
    all.push_back({"one token, " + std::to_string(keys), 32, 8, 128, 128, 1, {keys}});
  }
  all.push_back({"16 sequences of 256 - 8192, a token each", 32, 8, 128, 128, 1, mixed(16, 256, 8192)});
  all.push_back({"64 sequences of 256 - 8192, a token each", 32, 8, 128, 128, 1, mixed(64, 256, 8192)});
  for (const int32_t rows : {128, 512, 2048, 8192}) {
    all.push_back({"prompt of " + std::to_string(rows), 32, 8, 128, 128, rows, {rows}});
  }
  all.push_back({"512 rows after 8192 keys", 32, 8, 128, 128, 512, {8192 + 512}});
  all.push_back({"prompt of 512, 12 heads of 64 without groups", 12, 12, 64, 64, 512, {512}});
  for (const int32_t keys : {4096, 16384}) {
    all.push_back({"MLA, one token, " + std::to_string(keys), 128, 1, 576, 512, 1, {keys}});
  }
  all.push_back({"MLA, 16 sequences of 256 - 8192", 128, 1, 576, 512, 1, mixed(16, 256, 8192)});
  all.push_back({"MLA, prompt of 2048", 128, 1, 576, 512, 2048, {2048}});
  return all;
}

AttentionProblem problem_of(const Shape& s, void* q, void* kv, void* out) {
  const auto n = static_cast<int64_t>(s.lengths.size());
  const int64_t keys = *std::max_element(s.lengths.begin(), s.lengths.end());
  // Sequences share memory, so that any batch fits; nothing that is counted depends on addresses.
  const auto view = [&](void* data, int64_t heads, int64_t rows, int64_t d) {
    return simdattn::View<4>(data, simdattn::DType::kF32, {n, heads, rows, d}, {0, rows * d, d, 1});
  };
  return {.q = simdattn::ConstView<4>(q, simdattn::DType::kF32, {n, s.heads, s.n_q, s.d_qk},
                                      {0, s.n_q * s.d_qk, s.d_qk, 1}),
          .k = view(kv, s.kv_heads, keys, s.d_qk),
          .v = view(kv, s.kv_heads, keys, s.d_v),
          .out = simdattn::view(static_cast<float*>(out), {n, s.heads, s.n_q, s.d_v}),
          .scoring = {.causal = true, .kv_length = s.lengths.data()}};
}

struct Tasks {
  std::vector<double> work;  // multiply-adds of each
  double keys = 0;           // that each task reads, added up
};

/// As a plan for so many threads divides them.
Tasks count(const AttentionProblem& a, int64_t threads) {
  simdattn::ProblemBytes bytes;
  simdattn::Division d;
  if (!simdattn::check_attention(a, simdattn::Data::kLater, &d.sizes, &bytes).ok()) return {};
  if (!simdattn::divide(a, threads, &d).ok()) return {};
  Tasks tasks;
  simdattn::TaskIterator at(a, d, 0, 0);
  for (int64_t t = 0; t < d.tasks; ++t, at.next()) {
    const simdattn::RowBlockIndex index = at.row_block();
    const simdattn::Sequence seq = simdattn::sequence_of(a, index.sequence);
    const int64_t rows = std::min(d.row_block(), seq.n_q * d.sizes.group - index.first_row);
    const int64_t first_key = d.split ? at.split() * simdattn::kKeySplit : 0;
    const Interval part = {first_key, d.split ? first_key + simdattn::kKeySplit : seq.rules.length};
    double seen = 0;
    Interval any = {seq.rules.length, 0};
    for (int64_t r = index.first_row; r < index.first_row + rows; ++r) {
      const Interval keys = simdattn::visible_interval(a.scoring, seq.rules, r / d.sizes.group) & part;
      if (keys.size() <= 0) continue;
      seen += static_cast<double>(keys.size());
      any = {std::min(any.lo, keys.lo), std::max(any.hi, keys.hi)};
    }
    tasks.work.push_back(seen * static_cast<double>(d.sizes.d_qk + d.sizes.d_v));
    tasks.keys += static_cast<double>(std::max(any.size(), int64_t{0}));
  }
  return tasks;
}

/// The work of the thread that has most, over the mean, where each thread takes the next task when it is free.
double imbalance(const std::vector<double>& work, int threads) {
  std::vector<double> load(static_cast<size_t>(threads), 0);
  double total = 0;
  for (const double w : work) *std::min_element(load.begin(), load.end()) += w, total += w;
  return *std::max_element(load.begin(), load.end()) * threads / total;
}

/// Seconds of the fastest of some calls.
double seconds(const std::function<void()>& call) {
  double least = 1e9;
  double spent = 0;
  for (int i = 0; i < 3 || (spent < 0.2 && i < 1000); ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    least = std::min(least, s);
    spent += s;
  }
  return least;
}

/// Percent of a call on one thread that plan and reduce take.
struct Serial {
  double plan, reduce;
};
Serial time_parts(const Shape& s, const AttentionProblem& a) {
  simdattn::Plan plan;
  const auto make = [&] { return simdattn::attention_plan(a, &plan).ok(); };
  if (!make()) return {};
  std::vector<char> workspace(plan.workspace_bytes), partial(plan.partial_bytes);
  const simdattn::Exec exec = {.workspace = workspace.data(), .workspace_bytes = workspace.size()};
  const double planning = seconds([&] { make(); });
  const double running = seconds([&] {
    if (!simdattn::attention_range(plan, 0, plan.tasks, partial.data(), partial.size(), exec).ok()) {
      std::fprintf(stderr, "%s: a range failed\n", s.name.c_str());
    }
  });
  const double reducing = seconds([&] {
    if (plan.reduce_tasks > 0) {
      (void)simdattn::attention_reduce(plan, 0, plan.reduce_tasks, partial.data(), partial.size(), exec);
    }
  });
  const double all = planning + running + reducing;
  return {100 * planning / all, 100 * reducing / all};
}

}  // namespace

int main(int argc, char** argv) {
  const bool times = argc == 2 && std::strcmp(argv[1], "--times") == 0;
  if (argc != 1 && !times) {
    std::fputs("usage: simdattn-tasks [--times]\n", stderr);
    return 2;
  }
  constexpr int kThreads[] = {2, 8, 32, 64};
  std::printf("| work |");
  for (const int n : kThreads) std::printf(" %d threads |", n);
  if (times) std::printf(" plan, %% | reduce, %% |");
  std::printf("\n|---|---|---|---|---|%s\n", times ? "---|---|" : "");
  for (const Shape& s : shapes()) {
    const auto n = static_cast<int64_t>(s.lengths.size());
    const int64_t keys = *std::max_element(s.lengths.begin(), s.lengths.end());
    const size_t of_q = static_cast<size_t>(times ? s.heads * s.n_q * s.d_qk : 0);
    const size_t of_kv = static_cast<size_t>(times ? s.kv_heads * keys * s.d_qk : 0);
    std::vector<float> q(of_q, 0.5f), kv(of_kv, 0.25f), out(times ? static_cast<size_t>(n) * of_q : 0);
    const AttentionProblem a = problem_of(s, q.data(), kv.data(), out.data());
    double stored = 0;
    for (const int32_t length : s.lengths) stored += static_cast<double>(length * s.kv_heads);
    std::printf("| %s |", s.name.c_str());
    for (const int threads : kThreads) {
      const Tasks tasks = count(a, threads);
      std::printf(" %zu, %.2f, %.1f |", tasks.work.size(), imbalance(tasks.work, threads), tasks.keys / stored);
    }
    if (times) {
      const Serial serial = time_parts(s, a);
      std::printf(" %.2f | %.2f |", serial.plan, serial.reduce);
    }
    std::printf("\n");
  }
}
