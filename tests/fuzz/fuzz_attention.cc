// libFuzzer over attention(): the input bytes make every choice of tests/support/problems.h, so that coverage steers
// shapes, storage and options. A good call is compared between two targets and with the float64 formula, and cut into
// tasks; a call with a field broken must be refused or still write only its outputs.
//
//   tools/fuzz            a run of every fuzzer, from the corpus in tests/data/fuzz.tar.gz
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "dispatch/target.h"
#include "simdattn/simdattn.h"
#include "tests/support/bounds.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

void require(bool condition, const char* what, const AttentionProblem& a) {
  if (condition) return;
  std::fprintf(stderr, "%s: %s\n", what, describe(a).c_str());
  std::abort();
}

/// `got` is the rounded one of a number no further than `allowance` from `want`.
void require_near(DType dtype, double got, double want, double allowance, const char* what, int64_t element,
                  const AttentionProblem& a) {
  if (std::isnan(want) ? std::isnan(got) : got == want) return;
  // Half a unit in the last place of the larger one: the allowance may lead into the next power of two.
  const double rounding = reference::half_ulp(dtype, std::fabs(got) > std::fabs(want) ? got : want) * (1 + 0x1p-8);
  if (std::fabs(got - want) <= allowance + rounding) return;
  std::fprintf(stderr, "element %lld is %.9g, the formula says %.9g and allows %.3g\n", static_cast<long long>(element),
               got, want, allowance + rounding);
  require(false, what, a);
}

void compare_with_formula(const AttentionCase& c, const Target& t) {
  const reference::AttentionResult want = reference::attention(c.problem);
  const AttentionBound bound = attention_bound(c, costs(t));
  int64_t e = 0;
  for_each_element(c.out.view, [&](int64_t at) {
    const double most = bound.out * kEps * want.magnitude[e] + kWeightSlack * want.weights[e] + bound.tiny;
    const double got = static_cast<double>(get(c.out.view.data, c.out.view.dtype, at));
    require_near(c.out.view.dtype, got, want.out[e], most, "out", e, c.problem);
    ++e;
  });
  if (c.problem.lse.data == nullptr) return;
  e = 0;
  for_each_element(c.lse.view, [&](int64_t at) {
    const double got = static_cast<double>(get(c.lse.view.data, DType::kF32, at));
    require_near(DType::kF32, got, want.lse[e], bound.lse * kEps, "lse", e, c.problem);
    ++e;
  });
}

/// Breaks one field in a way that cannot lead outside of memory as long as it is noticed.
void break_a_field(AttentionProblem& a, Random& random) {
  const int64_t bad = random.of<int64_t>({-1, 0, 1, 7, int64_t{1} << 30, int64_t{1} << 40, INT64_MAX, INT64_MIN});
  switch (random.integer(0, 13)) {
    case 0: a.q.shape[static_cast<size_t>(random.integer(0, 3))] = -1 - random.integer(0, 3); break;
    case 1: a.k.dim = -random.integer(0, 2); break;
    case 2: a.v.heads += 1; break;
    case 3: a.out.shape[static_cast<size_t>(random.integer(0, 3))] += 1; break;
    case 4: a.q.dtype = random.of({DType::kU8, DType::kI32, DType::kI64}); break;
    case 5: a.scoring.window_left = bad; break;
    case 6: a.scoring.chunk = bad; break;
    case 7: a.scoring.offset = bad; break;
    case 8: a.scoring.softcap = random.of({-1.0f, std::nanf(""), 1e30f}); break;
    case 9: a.scoring.scale = random.of({std::nanf(""), 1e38f, 0.0f}); break;
    case 10: a.k.ring = random.of<int64_t>({-1, 33}); break;
    case 11: a.k.data = nullptr; break;
    case 12: a.out.stride[static_cast<size_t>(random.integer(0, 2))] = 0; break;
    default: a.v.length = a.k.keys() + 1; break;
  }
}

void one_input(const uint8_t* data, size_t size) {
  Random random(data, size);
  // Small: what is large differs in little but its time. Now and then several blocks of keys, or splits.
  AttentionLimits limits;
  limits.max_batch = 2, limits.max_group = 3, limits.max_q = 5, limits.max_kv = 40, limits.max_dim = 12;
  if (random.one_in(8)) limits.max_dim = 40;
  if (random.one_in(24)) limits.max_kv = 1300, limits.max_q = 2, limits.max_dim = 4, limits.max_batch = 1;
  limits.values = random.of({Values::kOrdinary, Values::kSpecial, Values::kHuge});
  limits.scoring.extreme = limits.values != Values::kOrdinary;
  const AttentionCase c = random_attention(random, limits);
  if (random.one_in(4)) {
    AttentionProblem broken = c.problem;
    break_a_field(broken, random);
    c.clear();
    const Status s = run_attention(broken, &scalar_target());
    require(s.detail != nullptr && (s.ok() || (*s.detail != '\0' && c.out.untouched() && c.lse.untouched())),
            "a refused call wrote or said nothing", broken);
    return;
  }
  require(run_attention(c.problem, &scalar_target()).ok(), "refused", c.problem);
  const std::vector<uint64_t> out = c.out.bits(), lse = c.lse.bits();
  if (limits.values == Values::kOrdinary) compare_with_formula(c, scalar_target());
  const std::vector<const Target*> all = runnable_targets();
  const Target* const other = all[static_cast<size_t>(random.integer(0, static_cast<int64_t>(all.size()) - 1))];
  c.clear();
  require(run_attention(c.problem, other).ok(), "refused", c.problem);
  if (target_exact(*other)) {
    require(c.out.bits() == out && c.lse.bits() == lse, target_name(*other), c.problem);
  } else if (limits.values == Values::kOrdinary) {
    compare_with_formula(c, *other);
  }
  c.clear();
  require(run_tasks(c.problem, &scalar_target(), random).ok(), "tasks refused", c.problem);
  require(c.out.bits() == out && c.lse.bits() == lse, "tasks", c.problem);
  require(c.out.gaps_intact() && c.lse.gaps_intact(), "wrote between elements", c.problem);
}

}  // namespace
}  // namespace simdattn::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  simdattn::test::one_input(data, size);
  // Canaries of guarded buffers report through GoogleTest.
  if (::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed()) std::abort();
  return 0;
}
