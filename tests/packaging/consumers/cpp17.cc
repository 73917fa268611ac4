// A user's program in C++17, as other engines are: what c99.c does, without designated initialisers. Prints the same.
#include <simdattn/simdattn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

constexpr int64_t kHeads = 4, kKvHeads = 2, kRows = 3, kDim = 8, kTokens = 32, kPairs = kDim / 2;

void check(simdattn::Status status, const char* what) {
  if (!status.ok()) {
    std::printf("%s: %s\n", what, status.detail);
    std::exit(1);
  }
}

std::vector<float> numbers(int64_t n, int64_t seed) {
  std::vector<float> x(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i)
    x[static_cast<size_t>(i)] = static_cast<float>((i * 37 + seed * 11) % 101 - 50) / 64.0f;
  return x;
}

}  // namespace

int main() {
  const std::vector<float> q = numbers(kHeads * kRows * kDim, 1), k = numbers(kKvHeads * kRows * kDim, 2),
                           v = numbers(kKvHeads * kRows * kDim, 3);
  std::vector<float> rotated(q.size()), out(q.size());

  std::printf("version %s, last target %s\n", simdattn::version(), simdattn::target_name(*simdattn::targets().back()));
  simdattn::Exec exec;
  check(simdattn::default_target(&exec.target), "default_target");

  std::array<float, 4> row = {1, 2, 3, 4};
  float lse = 0;
  check(simdattn::softmax(simdattn::view(row.data(), {1, 4}), simdattn::view(row.data(), {1, 4}),
                          simdattn::view(&lse, {1}), exec),
        "softmax");
  std::printf("softmax %.5f %.5f %.5f %.5f, lse %.5f\n", static_cast<double>(row[0]), static_cast<double>(row[1]),
              static_cast<double>(row[2]), static_cast<double>(row[3]), static_cast<double>(lse));

  std::vector<float> cosines(kRows * kPairs), sines(kRows * kPairs);
  const auto cos = simdattn::view(cosines.data(), {kRows, kPairs}), sin = simdattn::view(sines.data(), {kRows, kPairs});
  check(simdattn::rope_table(cos, sin), "rope_table");
  check(simdattn::rope(simdattn::view(q.data(), {1, kHeads, kRows, kDim}), cos, sin, {},
                       simdattn::view(rotated.data(), {1, kHeads, kRows, kDim}), {}, exec),
        "rope");

  std::vector<float> key_memory(kKvHeads * kTokens * kDim);
  std::vector<simdattn::f16> value_memory(kKvHeads * kTokens * kDim);
  simdattn::Kv keys = simdattn::key_panels(key_memory.data(), 1, kKvHeads, kTokens, kDim);
  simdattn::Kv values = simdattn::view(value_memory.data(), {1, kKvHeads, kTokens, kDim});
  const std::array<int32_t, kRows> order = {0, 1, 2};
  const auto positions = simdattn::view(order.data(), {1, kRows});
  simdattn::AppendOptions append;
  append.rope.cos = cos;
  append.rope.sin = sin;
  check(simdattn::kv_append(simdattn::view(k.data(), {1, kKvHeads, kRows, kDim}), positions, keys, append, exec),
        "kv_append of keys");
  check(simdattn::kv_append(simdattn::view(v.data(), {1, kKvHeads, kRows, kDim}), positions, values, {}, exec),
        "kv_append of values");
  keys.length = values.length = kRows;

  simdattn::AttentionProblem problem;
  problem.q = simdattn::view(rotated.data(), {1, kHeads, kRows, kDim});
  problem.k = keys;
  problem.v = values;
  problem.out = simdattn::view(out.data(), {1, kHeads, kRows, kDim});
  problem.scoring.causal = true;
  simdattn::Plan plan;
  check(simdattn::attention_plan(problem, &plan, exec), "attention_plan");
  std::vector<char> workspace(plan.workspace_bytes), partial(plan.partial_bytes);
  exec.workspace = workspace.data();
  exec.workspace_bytes = workspace.size();
  for (int64_t task = 0; task < plan.tasks; ++task)
    check(simdattn::attention_range(plan, task, task + 1, partial.data(), partial.size(), exec), "attention_range");
  check(simdattn::attention_reduce(plan, 0, plan.reduce_tasks, partial.data(), partial.size(), exec),
        "attention_reduce");
  double sum = 0;
  for (size_t i = 0; i < out.size(); ++i) sum += static_cast<double>(out[i]) * static_cast<double>(i + 1);
  std::printf("attention %.3f\n", sum);

  problem.arithmetic = simdattn::Arithmetic::kInt8;
  check(simdattn::attention_plan(problem, &plan, exec), "attention_plan in int8");
  workspace.resize(plan.workspace_bytes);
  exec.workspace = workspace.data();
  exec.workspace_bytes = workspace.size();
  check(simdattn::attention(problem, exec), "attention in int8");
  sum = 0;
  for (size_t i = 0; i < out.size(); ++i) sum += static_cast<double>(out[i]) * static_cast<double>(i + 1);
  std::printf("attention in int8 %.3f\n", sum);

  problem.q.data = nullptr;
  problem.out.data = nullptr;
  std::printf("without data: code %d\n", static_cast<int>(simdattn::attention(problem, exec).code));
  return 0;
}
