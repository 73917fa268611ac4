// examples/join_states: two raw states joined have the bits of attention over all keys in one call, on every target
// with fused multiply-add.
#include "join_states.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

namespace {

namespace sa = simdattn;

constexpr int64_t kHeads = 3;

std::vector<float> numbers(int64_t n, uint32_t state, float size) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& f : x)
    f = size * static_cast<float>(static_cast<int32_t>(state = state * 1664525 + 1013904223)) * 0x1p-31f;
  return x;
}

void attention(const sa::AttentionProblem& problem, const sa::Target* target) {
  sa::Plan plan;
  EXPECT_EQ(sa::attention_plan(problem, &plan, {.target = target}).detail, std::string());
  std::vector<std::byte> workspace(plan.workspace_bytes);
  const sa::Exec exec{.target = target, .workspace = workspace.data(), .workspace_bytes = workspace.size()};
  EXPECT_EQ(sa::attention(problem, exec).detail, std::string());
}

/// n rows over `prefix` + `suffix` keys, [rows, kHeads, d] each.
bool same(const sa::Target* target, int64_t prefix, int64_t suffix, int64_t n, int64_t d) {
  const int64_t rows = n + 2, keys = prefix + suffix;  // two rows more, which nothing may touch
  const auto q = numbers(rows * kHeads * d, 1, 3), k = numbers(keys * kHeads * d, 2, 2),
             v = numbers(keys * kHeads * d, 3, 1);
  const auto of = [&](auto* x, int64_t n_rows) {
    return sa::view(x, {1, kHeads, n_rows, d}, {n_rows * kHeads * d, d, kHeads * d, 1});
  };
  std::vector<float> expected(static_cast<size_t>(n * kHeads * d)), out(expected.size(), NAN);
  attention({.q = of(q.data(), n), .k = of(k.data(), keys), .v = of(v.data(), keys), .out = of(expected.data(), n)},
            target);

  std::vector<float> acc(static_cast<size_t>(2 * rows * kHeads * d), NAN),
      max(static_cast<size_t>(2 * rows * kHeads), NAN), sum(max);
  const auto state = [&](int64_t part, int64_t first, int64_t n_keys) {
    sa::AttentionProblem problem{.q = of(q.data(), n),
                                 .k = of(k.data() + first * kHeads * d, n_keys),
                                 .v = of(v.data() + first * kHeads * d, n_keys)};
    problem.acc = of(acc.data() + part * rows * kHeads * d, n);
    problem.max = sa::view(max.data() + part * kHeads * rows, {1, kHeads, n}, {kHeads * rows, rows, 1});
    problem.sum = sa::view(sum.data() + part * kHeads * rows, {1, kHeads, n}, {kHeads * rows, rows, 1});
    attention(problem, target);
  };
  state(0, prefix, suffix);
  state(1, 0, prefix);
  StateJoin join;
  join({acc.data(), max.data(), sum.data(), n, rows, kHeads, d}, out.data(),
       [&](int, const sa::AttentionProblem& problem) { attention(problem, target); });
  return std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)) == 0;
}

TEST(JoinStates, BitsOfOneCall) {
  for (const sa::Target* target : sa::targets()) {
    if (!sa::target_runnable(*target) || !sa::target_exact(*target)) continue;
    const auto compare = [&](int64_t prefix, int64_t suffix, int64_t n, int64_t d) {
      EXPECT_TRUE(same(target, prefix, suffix, n, d))
          << sa::target_name(*target) << ": " << prefix << " + " << suffix << " keys, " << n << " rows of " << d;
    };
    for (const int64_t prefix : {sa::kKeySplit, 2 * sa::kKeySplit}) {
      for (const int64_t suffix : {int64_t{1}, int64_t{255}, int64_t{257}, sa::kKeySplit}) {
        compare(prefix, suffix, 5, 8);
        compare(prefix, suffix, 1, 33);
      }
    }
    compare(sa::kKeySplit, 0, 2, 8);
    compare(0, 7, 2, 8);
    compare(0, 0, 2, 8);
  }
}

/// What the limits in join_states.h are for: elsewhere the bits differ, if only in some of so many numbers.
TEST(JoinStates, OtherBoundariesRoundElsewhere) {
  const sa::Target* target = nullptr;
  ASSERT_TRUE(sa::find_target("scalar", &target).ok());
  EXPECT_FALSE(same(target, 1000, 100, 20, 8));
  EXPECT_FALSE(same(target, sa::kKeySplit, sa::kKeySplit + 500, 20, 8));
}

}  // namespace
