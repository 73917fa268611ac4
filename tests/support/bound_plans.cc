#include "tests/support/bound_plans.h"

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "tests/support/problems.h"

namespace simdattn::test {
namespace {

/// The bits of all outputs that a problem has.
class Outputs {
 public:
  explicit Outputs(const AttentionProblem& a) : a_(a) {}
  std::vector<uint64_t> bits() const {
    std::vector<uint64_t> bits;
    for_each([&](void* data, DType dtype, int64_t at) { bits.push_back(element_bits(data, dtype, at)); });
    return bits;
  }
  void assign(const std::vector<uint64_t>& bits) const {
    size_t i = 0;
    for_each([&](void* data, DType dtype, int64_t at) { set_element_bits(data, dtype, at, bits[i++]); });
  }
  void clear() const {
    for_each([](void* data, DType dtype, int64_t at) { set_element_bits(data, dtype, at, 0xA5A5A5A5A5A5A5A5u); });
  }

 private:
  template <class F>
  void for_each(const F& f) const {
    const auto elements = [&f](const auto& view) {
      if (view.data == nullptr) return;
      for_each_element(view, [&](int64_t at) { f(view.data, view.dtype, at); });
    };
    elements(a_.out);
    elements(a_.lse);
    elements(a_.acc);
    elements(a_.max);
    elements(a_.sum);
  }
  const AttentionProblem& a_;
};

/// The arrays of a problem that have data, numbered.
int64_t count_arrays(AttentionProblem a, Read wanted) {
  int64_t count = 0;
  for_each_array(&a, [&](const char*, auto& pointer, Read read) { count += pointer != nullptr && read == wanted; });
  return count;
}
/// Takes one of them away; its name.
std::string remove_array(AttentionProblem* a, Read wanted, int64_t number) {
  std::string removed;
  for_each_array(a, [&](const char* name, auto& pointer, Read read) {
    if (pointer == nullptr || read != wanted || number-- != 0) return;
    removed = name;
    pointer = nullptr;
  });
  return removed;
}

/// Refused, and the sentence names the array. A sentence on a whole store begins with the store's name alone; the raw
/// state is acc, max and sum.
void expect_names(const Status& s, const std::string& name, const AttentionProblem& a) {
  const bool no_output = std::string(s.detail).rfind("out: null", 0) == 0;
  const bool raw_state = no_output && (name == "acc" || name == "max" || name == "sum");
  EXPECT_NE(std::string(s.detail).find(raw_state ? "the raw state" : name), std::string::npos)
      << s.detail << ", without " << name << describe(a);
}

/// All arrays come with attention_bind(), or lie elsewhere.
void arrays_come_later(const AttentionProblem& a, const Plan& whole, const Exec& exec, Random& random) {
  const auto promised = [](const ConstView<4>& v) { return v.data == nullptr && v.shape[0] != 0; };
  if (promised(a.scoring.bias) || promised(a.scoring.mask)) return;
  const Outputs outputs(a);
  const std::vector<uint64_t> want = outputs.bits();
  const AttentionProblem shapes = other_addresses(a, random);
  Plan plan;
  const Status made = attention_plan(shapes, &plan, exec);
  if (made.code == Code::kOverlap) return;  // values were moved into an output
  ASSERT_TRUE(ok(made)) << describe(a);
  EXPECT_EQ(plan.tasks, whole.tasks) << describe(a);
  EXPECT_EQ(plan.reduce_tasks, whole.reduce_tasks) << describe(a);
  EXPECT_EQ(plan.workspace_bytes, whole.workspace_bytes) << describe(a);
  EXPECT_EQ(plan.partial_bytes, whole.partial_bytes) << describe(a);
  ASSERT_TRUE(ok(attention_bind(a, &plan))) << describe(a);
  outputs.clear();
  ASSERT_TRUE(ok(run_plan(plan, plan, exec.target, random))) << describe(a);
  EXPECT_TRUE(outputs.bits() == want) << "a bound plan has other bits: " << describe(a);
  outputs.assign(want);
}

/// An array is there when the plan is made, and is not bound.
void array_goes(const AttentionProblem& a, Plan plan, const Exec& exec, Random& random) {
  const int64_t count = count_arrays(a, Read::kByRanges);
  if (count == 0) return;
  AttentionProblem without = a;
  const std::string name = remove_array(&without, Read::kByRanges, random.integer(0, count - 1));
  if (const Status s = attention_bind(without, &plan); !s.ok()) return expect_names(s, name, a);
  const Outputs outputs(a), left(without);
  const std::vector<uint64_t> want = outputs.bits();
  outputs.clear();
  ASSERT_TRUE(ok(run_plan(plan, plan, exec.target, random))) << "without " << name << describe(a);
  const std::vector<uint64_t> got = outputs.bits();
  outputs.clear();
  const Guarded workspace(plan.workspace_bytes, Guard::kAfter);
  Exec whole = exec;
  whole.workspace = workspace.data(), whole.workspace_bytes = workspace.size();
  ASSERT_TRUE(ok(attention(without, whole))) << "without " << name << describe(a);
  EXPECT_TRUE(outputs.bits() == got) << "a bound plan has other bits without " << name << ": " << describe(a);
  outputs.assign(want);
}

/// Lengths that come or go are refused.
void lengths_stay(const AttentionProblem& a, Plan plan, const Exec& exec, Random& random) {
  const int64_t count = count_arrays(a, Read::kByPlans);
  if (count == 0) return;
  AttentionProblem without = a;
  const std::string name = remove_array(&without, Read::kByPlans, random.integer(0, count - 1));
  Status s = attention_bind(without, &plan);
  EXPECT_FALSE(s.ok()) << "without " << name << describe(a);
  expect_names(s, name, a);
  if (!attention_plan(without, &plan, exec).ok()) return;
  s = attention_bind(a, &plan);
  EXPECT_EQ(s.code, Code::kStalePlan) << "with " << name << describe(a);
  expect_names(s, name, a);
}

}  // namespace

AttentionProblem without_arrays(AttentionProblem a) {
  for_each_array(&a, [](const char*, auto& pointer, Read read) {
    if (read == Read::kByRanges) pointer = nullptr;
  });
  return a;
}

AttentionProblem other_addresses(const AttentionProblem& a, Random& random) {
  AttentionProblem b = a;
  if (b.out.data == nullptr) b.out = {};  // without data a shape is a promise
  // A plan reads no keys and values, so that these addresses need not be real.
  if (b.v.data != nullptr && b.k.data != nullptr && random.coin()) {
    constexpr uintptr_t kFar = static_cast<uintptr_t>(uint64_t{1} << (sizeof(void*) == 8 ? 44 : 31));
    const uintptr_t far = reinterpret_cast<uintptr_t>(a.v.data) ^ kFar;
    b.v.data = random.coin() ? a.k.data : reinterpret_cast<const void*>(far);
  }
  if (b.v.scales != nullptr && b.k.scales != nullptr && random.coin()) b.v.scales = b.k.scales;
  if (b.v.block_table != nullptr && b.k.block_table != nullptr && random.coin()) b.v.block_table = b.k.block_table;
  const int64_t one_in = random.of({1, 2, 4});
  for_each_array(&b, [&](const char*, auto& pointer, Read read) {
    if (read == Read::kByRanges && random.one_in(one_in)) pointer = nullptr;
  });
  // The raw state is all three of them.
  if (b.acc.data == nullptr || b.max.data == nullptr || b.sum.data == nullptr) {
    b.acc.data = b.max.data = b.sum.data = nullptr;
  }
  return b;
}

Status run_plan(const Plan& plan, const Plan& copy, const Target* target, Random& random) {
  Exec exec = {.target = target};
  const Guarded partial(plan.partial_bytes, random.guard());
  for (const bool reduce : {false, true}) {
    const int64_t count = reduce ? plan.reduce_tasks : plan.tasks;
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (int64_t first = 0; first < count;) {
      const int64_t last = std::min(count, first + (random.coin() ? 1 : random.integer(1, 5)));
      ranges.emplace_back(first, last);
      first = last;
    }
    random.shuffle(ranges);
    for (const auto& [first, last] : ranges) {
      const Guarded workspace(plan.workspace_bytes, random.guard());
      std::memset(workspace.data(), 0xFF, workspace.size());
      exec.workspace = workspace.data();
      exec.workspace_bytes = workspace.size();
      const Plan& p = random.coin() ? plan : copy;
      const Status s = reduce ? attention_reduce(p, first, last, partial.data(), partial.size(), exec)
                              : attention_range(p, first, last, partial.data(), partial.size(), exec);
      if (!s.ok()) return s;
    }
  }
  return {};
}

void expect_bound_plans_agree(const AttentionProblem& a, const Target* target) {
  constexpr int64_t kMostTasks = 1000;
  constexpr size_t kMostPartial = size_t{64} << 20;
  // The same problem, the same choices: a fuzzer's input comes again.
  uint64_t digest = seed();
  for (const uint64_t bits : Outputs(a).bits()) digest = digest * 0x9E3779B97F4A7C15u + bits;
  Random random(digest);
  const Exec exec = {.target = target, .threads = random.coin() ? 0 : random.integer(1, 100)};
  Plan plan;
  ASSERT_TRUE(ok(attention_plan(a, &plan, exec))) << describe(a);
  if (plan.tasks > kMostTasks || plan.partial_bytes > kMostPartial) return;
  if (random.one_in(2)) arrays_come_later(a, plan, exec, random);
  if (random.one_in(4)) array_goes(a, plan, exec, random);
  if (random.one_in(4)) lengths_stay(a, plan, exec, random);
}

}  // namespace simdattn::test
