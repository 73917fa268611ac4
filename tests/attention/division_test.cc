// How a problem divides into tasks for a number of threads: how evenly they load these, and what a plan may promise.
// The work of a task is counted here from the formula of causality, key by key, and not by the library's intervals.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <vector>

#include "lib/drivers/attention/division.h"
#include "simdattn/simdattn.h"
#include "tests/support/random.h"

namespace simdattn::test {
namespace {

struct Shape {
  int64_t heads, kv_heads, d_qk, d_v, n_q, n_kv;
  std::vector<int32_t> lengths;  // of a batch; empty: one sequence of n_kv keys
  double most[3];                // of `kThreads`: the load of the thread that has most, over the mean
};
constexpr int64_t kThreads[] = {2, 8, 32};

AttentionProblem problem_of(const Shape& s) {
  const int64_t n = s.lengths.empty() ? 1 : static_cast<int64_t>(s.lengths.size());
  const auto rows = [&](int64_t heads, int64_t count, int64_t dim) {
    return View<4>(static_cast<void*>(nullptr), DType::kF32, {n, heads, count, dim});
  };
  AttentionProblem a;
  a.q = rows(s.heads, s.n_q, s.d_qk);
  a.k = contiguous_kv(static_cast<void*>(nullptr), KvType::kF32, KvLayout::kRows, n, s.kv_heads, s.n_kv, s.d_qk);
  a.v = contiguous_kv(static_cast<void*>(nullptr), KvType::kF32, KvLayout::kRows, n, s.kv_heads, s.n_kv, s.d_v);
  a.out = rows(s.heads, s.n_q, s.d_v);
  a.scoring.causal = true;
  if (!s.lengths.empty()) a.scoring.kv_length = s.lengths.data();
  return a;
}

Division divided(const AttentionProblem& a, int64_t threads) {
  Division d;
  ProblemBytes bytes;
  EXPECT_TRUE(check_attention(a, Data::kLater, &d.sizes, &bytes).ok());
  EXPECT_TRUE(divide(a, threads, &d).ok());
  return d;
}

/// Pairs of a row and a key of every task, in the order of tasks.
std::vector<double> work_of_tasks(const AttentionProblem& a, const Division& d) {
  std::vector<double> work;
  TaskIterator at(a, d, 0, 0);
  for (int64_t t = 0; t < d.tasks; ++t, at.next()) {
    const RowBlockIndex index = at.row_block();
    const int64_t length = a.scoring.kv_length != nullptr ? a.scoring.kv_length[index.sequence] : a.k.keys();
    const int64_t rows = a.q.shape[2], group = a.q.shape[1] / a.k.heads;
    const int64_t first_key = d.split ? 1024 * at.split() : 0;
    const int64_t last_key = d.split ? std::min(first_key + 1024, length) : length;
    double pairs = 0;
    for (int64_t r = index.first_row; r < std::min(index.first_row + d.row_block(), rows * group); ++r) {
      const int64_t seen = std::min(last_key, length - rows + r / group + 1);
      pairs += static_cast<double>(std::max(seen - first_key, int64_t{0}));
    }
    work.push_back(pairs);
  }
  return work;
}

/// Where each thread takes the next task when it has none.
double imbalance(const std::vector<double>& work, int64_t threads) {
  std::vector<double> load(static_cast<size_t>(threads));
  for (const double w : work) *std::min_element(load.begin(), load.end()) += w;
  return *std::max_element(load.begin(), load.end()) * static_cast<double>(threads) /
         std::accumulate(load.begin(), load.end(), 0.0);
}

/// Where each thread has as many tasks one after the other.
double imbalance_of_ranges(const std::vector<double>& work, int64_t threads) {
  const auto tasks = static_cast<int64_t>(work.size());
  double most = 0;
  for (int64_t i = 0; i < threads; ++i) {
    const auto first = work.begin() + tasks * i / threads, last = work.begin() + tasks * (i + 1) / threads;
    most = std::max(most, std::accumulate(first, last, 0.0));
  }
  return most * static_cast<double>(threads) / std::accumulate(work.begin(), work.end(), 0.0);
}

std::vector<int32_t> lengths_between(int32_t first, int32_t last, int32_t n) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < n; ++i) lengths.push_back(first + (last - first) * (i * 7 % n) / n);
  return lengths;
}

/// Limits above 1.1 are what the splits of 1024 keys leave (32 threads for 8 heads of 512 keys), or rows: row blocks of
/// 16 would take half as long again.
TEST(Division, TasksLoadThreadsEvenly) {
  const Shape shapes[] = {
      {32, 8, 128, 128, 1, 512, {}, {1, 1, 4}},
      {32, 8, 128, 128, 1, 4096, {}, {1, 1, 1}},
      {32, 8, 128, 128, 1, 16384, {}, {1, 1, 1}},
      {32, 8, 128, 128, 1, 8192, lengths_between(256, 8192, 16), {1.1, 1.1, 1.1}},
      {32, 8, 128, 128, 128, 128, {}, {1.1, 1.1, 1.1}},
      {32, 8, 128, 128, 512, 512, {}, {1.1, 1.1, 1.1}},
      {32, 8, 128, 128, 2048, 2048, {}, {1.1, 1.1, 1.1}},
      {32, 8, 128, 128, 512, 8704, {}, {1.1, 1.1, 1.1}},
      {12, 12, 64, 64, 512, 512, {}, {1.1, 1.1, 1.2}},
      {128, 1, 576, 512, 1, 4096, {}, {1, 1, 1}},
      {128, 1, 576, 512, 1, 16384, {}, {1, 1, 1}},
      {128, 1, 576, 512, 1, 8192, lengths_between(256, 8192, 16), {1.1, 1.1, 1.2}},
  };
  for (const Shape& s : shapes) {
    const AttentionProblem a = problem_of(s);
    const std::vector<double> one = work_of_tasks(a, divided(a, 1));
    for (size_t i = 0; i < std::size(kThreads); ++i) {
      const std::vector<double> work = work_of_tasks(a, divided(a, kThreads[i]));
      EXPECT_EQ(std::accumulate(work.begin(), work.end(), 0.0), std::accumulate(one.begin(), one.end(), 0.0));
      EXPECT_LE(imbalance(work, kThreads[i]), s.most[i] * 1.0001)
          << s.heads << " heads, " << s.n_q << " rows, " << s.n_kv << " keys, " << kThreads[i] << " threads";
    }
  }
}

/// Threads may take ranges of equal size, too, because long and short row blocks alternate.
TEST(Division, EqualRangesOfAPromptLoadThreadsEvenly) {
  for (const int64_t rows : {128, 512, 2048}) {
    const AttentionProblem a = problem_of({32, 8, 128, 128, rows, rows, {}, {}});
    for (const int64_t threads : kThreads) {
      EXPECT_LE(imbalance_of_ranges(work_of_tasks(a, divided(a, threads)), threads), 1.0001)
          << rows << " rows, " << threads;
    }
  }
}

/// Every row of every head is in one task, with odd numbers of row blocks too.
TEST(Division, EveryRowBlockIsOneTask) {
  Random random(6);
  for (int turn = 0; turn < 500; ++turn) {
    const int64_t kv_heads = random.integer(1, 5), group = random.integer(1, 5), rows = random.integer(1, 700);
    const AttentionProblem a =
        problem_of({kv_heads * group, kv_heads, 8, 8, rows, rows + random.integer(0, 3000), {}, {}});
    const Division d = divided(a, random.integer(1, 64));
    std::vector<std::array<int64_t, 3>> found, wanted;
    TaskIterator at(a, d, 0, 0);
    for (int64_t t = 0; t < d.tasks; ++t, at.next()) {
      found.push_back({at.row_block().kv_head, at.row_block().first_row, d.split ? at.split() : 0});
    }
    for (int64_t head = 0; head < kv_heads; ++head) {
      for (int64_t row = 0; row < rows * group; row += d.row_block()) {
        for (int64_t key = 0; key < (d.split ? a.k.keys() : 1); key += 1024) wanted.push_back({head, row, key / 1024});
      }
    }
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, wanted);
  }
}

/// Memory that a plan from shapes asks for is enough for all shorter sequences, whatever the number of threads.
TEST(Division, ShorterSequencesTakeNoMoreMemory) {
  Random random(5);
  for (int turn = 0; turn < 2000; ++turn) {
    const int64_t kv_heads = random.integer(1, 8), n = random.integer(1, 20), n_kv = random.integer(1, 20000);
    Shape s = {kv_heads * random.integer(1, 40),           kv_heads, 8,  8,
               random.integer(1, random.coin() ? 4 : 300), n_kv,     {}, {}};
    s.lengths.assign(static_cast<size_t>(n), static_cast<int32_t>(n_kv));
    const AttentionProblem a = problem_of(s);
    const Exec exec = {.threads = random.one_in(4) ? 0 : random.integer(1, 100)};
    AttentionProblem longest = a;
    longest.scoring.kv_length = nullptr;
    Plan at_most, plan;
    ASSERT_TRUE(attention_plan(longest, &at_most, exec).ok());
    for (int32_t& length : s.lengths) length = static_cast<int32_t>(random.integer(0, n_kv));
    ASSERT_TRUE(attention_plan(a, &plan, exec).ok());
    EXPECT_LE(plan.partial_bytes, at_most.partial_bytes) << exec.threads << " threads, " << n << " sequences";
    EXPECT_LE(plan.workspace_bytes, at_most.workspace_bytes);
  }
}

/// A plan asks for one state of each row for every 1024 keys, whichever size of row blocks it chooses: a maximum, a sum
/// and d_v numbers, of which some lie apart.
TEST(Division, RowsHaveOneStatePerSplit) {
  for (const int64_t rows : {16, 64, 256, 512}) {
    const int64_t keys = 50 * 1024, d_v = 512, group = 16;
    const AttentionProblem a = problem_of({group, 1, 64, d_v, rows / group, keys, {}, {}});
    Plan plan;
    ASSERT_TRUE(attention_plan(a, &plan, {.threads = 64}).ok());
    const double states = static_cast<double>(rows * (keys / 1024) * (d_v + 2) * 4);
    EXPECT_GE(static_cast<double>(plan.partial_bytes), states) << rows << " rows";
    EXPECT_LE(static_cast<double>(plan.partial_bytes), 1.1 * states) << rows << " rows";
  }
}

TEST(Division, RefusesNegativeThreads) {
  const Shape s = {8, 8, 64, 64, 1, 512, {}, {}};
  Plan plan;
  const Status status = attention_plan(problem_of(s), &plan, {.threads = -1});
  EXPECT_EQ(status.code, Code::kRange);
  EXPECT_EQ(std::string(status.detail), "exec.threads: negative");
}

}  // namespace
}  // namespace simdattn::test
