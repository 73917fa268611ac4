// What the suites of identities share: running a problem, and random problems that can be cut and masked.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn::test {

inline int64_t key_count(const Scoring& s, int64_t b, int64_t n_kv) {
  return s.kv_length != nullptr ? s.kv_length[b] : n_kv;
}

class Identities : public TargetTest {
 protected:
  static Result run(Random& random, AttentionProblem a) {
    const auto& q = a.q.shape;
    const Array<4> out(random, a.out.dtype, {q[0], q[1], q[2], a.v.dim}, Strides::kOutput);
    const Array<3> lse(random, DType::kF32, {q[0], q[1], q[2]}, Strides::kOutput);
    a.out = out.view;
    a.lse = lse.view;
    EXPECT_TRUE(ok(run_attention(a, &target()))) << ": " << describe(a);
    return {out.bits(), lse.bits()};
  }
  static Result result_of(const AttentionCase& c, const AttentionProblem& a) { return test::result_of(c, a, target()); }
  /// A problem without varlen, its caches plain rows, mostly small, sometimes with several blocks and splits.
  static AttentionCase plain(Random& random, bool masks = true) {
    AttentionLimits limits;
    limits.varlen = limits.forms = false;
    limits.max_q = 20;
    limits.values = random.of({Values::kOrdinary, Values::kWide});
    switch (random.integer(0, 7)) {
      case 0: limits.max_kv = 2600, limits.max_batch = 1, limits.max_dim = 16, limits.max_q = 5; break;
      case 1: limits.max_kv = 300; break;
      case 2: limits.max_q = 80, limits.max_batch = 1; break;
      default: break;
    }
    AttentionCase c = random_attention(random, limits);
    c.problem.lse = c.lse.view;
    if (!masks) {
      c.problem.scoring.bias = c.problem.scoring.mask = ConstView<4>();
      c.problem.scoring.bias_scale = nullptr;
      c.problem.scoring.packed_mask = PackedMask();
    }
    return c;
  }
  static std::string where(int64_t i, const AttentionProblem& a) {
    return "case " + std::to_string(i) + ": " + describe(a);
  }
};

}  // namespace simdattn::test
