// Plans whose arrays come later, or lie elsewhere than those that the plan was made from: what runs is what was bound.
#include <gtest/gtest.h>

#include <vector>

#include "simdattn/simdattn.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

constexpr int64_t kHeads = 2, kRows = 5, kKeys = 40, kDim = 16;

class BoundPlans : public TargetTest {
 protected:
  /// Binds `a` to a plan that was made from `shapes`, and runs it against guard pages.
  Status run(const AttentionProblem& shapes, const AttentionProblem& a) {
    Plan plan;
    Exec e = exec();
    if (const Status s = attention_plan(shapes, &plan, e); !s.ok()) return s;
    if (const Status s = attention_bind(a, &plan); !s.ok()) return s;
    EXPECT_EQ(plan.workspace_bytes, attention_workspace(a, e));
    const Guarded workspace(plan.workspace_bytes, Guard::kAfter), partial(plan.partial_bytes, Guard::kAfter);
    e.workspace = workspace.data(), e.workspace_bytes = workspace.size();
    if (const Status s = attention_range(plan, 0, plan.tasks, partial.data(), partial.size(), e); !s.ok()) return s;
    return attention_reduce(plan, 0, plan.reduce_tasks, partial.data(), partial.size(), e);
  }
};

/// What modifies scores, and the arrays that tell how.
TEST_P(BoundPlans, ModifiersComeLater) {
  Random random(seed() * 8100 + 1);
  const auto array = [&](DType dtype, const std::array<int64_t, 4>& shape) {
    return Array<4>(random, dtype, shape, Values::kOrdinary);
  };
  const Array<4> q = array(DType::kF32, {1, kHeads, kRows, kDim}), k = array(DType::kF32, {1, 1, kKeys, kDim}),
                 out = array(DType::kF32, q.view.shape), bias = array(DType::kF32, {1, kHeads, kRows, kKeys});
  std::vector<uint8_t> mask(kRows * kKeys), bits(kRows * kKeys / 8);
  for (uint8_t& x : mask) x = random.coin();
  for (uint8_t& x : bits) x = static_cast<uint8_t>(random.bits());
  const float slopes[kHeads] = {0.5f, 0.25f}, factors[kHeads] = {2, -1}, sinks[kHeads] = {1, 2};
  AttentionProblem plain;
  plain.q = q.view, plain.k = k.view, plain.v = k.view, plain.out = out.view;

  struct Modifier {
    const char* name;
    void (*clear)(Scoring*);  // to the shape without data
    Scoring scoring;
  };
  std::vector<Modifier> modifiers = {
      {"bias", [](Scoring* s) { s->bias.data = nullptr; }, {}},
      {"bias_scale", [](Scoring* s) { s->bias_scale = nullptr; }, {}},
      {"mask", [](Scoring* s) { s->mask.data = nullptr; }, {}},
      {"packed_mask", [](Scoring* s) { s->packed_mask.data = nullptr; }, {}},
      {"alibi_slopes", [](Scoring* s) { s->alibi_slopes = nullptr; }, {}},
      {"sinks", [](Scoring* s) { s->sinks = nullptr; }, {}},
  };
  modifiers[0].scoring.bias = modifiers[1].scoring.bias = bias.view;
  modifiers[1].scoring.bias_scale = factors;
  modifiers[2].scoring.mask = view(static_cast<const uint8_t*>(mask.data()), {1, 1, kRows, kKeys});
  modifiers[3].scoring.packed_mask = {.data = bits.data(), .columns = kKeys, .stride = {0, 0, kKeys / 8}};
  modifiers[4].scoring.alibi_slopes = slopes;
  modifiers[5].scoring.sinks = sinks;
  for (const Modifier& m : modifiers) {
    AttentionProblem a = plain;
    a.scoring = m.scoring;
    ASSERT_TRUE(ok(run_attention(a, GetParam())));
    const auto want = out.bits();
    for (const bool no_data : {false, true}) {
      AttentionProblem shapes = a;
      m.clear(&shapes.scoring);
      if (no_data) {
        shapes.q.data = shapes.k.data = shapes.v.data = nullptr;
        shapes.out.data = nullptr;
      }
      out.fill_bytes(Guarded::kCanary);
      ASSERT_TRUE(ok(run(shapes, a)));
      EXPECT_EQ(out.bits(), want) << m.name << " came with attention_bind";
    }
    // What the plan was promised by its shape and does not get is refused by name; nothing is written.
    AttentionProblem without = a;
    m.clear(&without.scoring);
    out.fill_bytes(Guarded::kCanary);
    const Status s = run(a, without);
    if (!s.ok()) {
      EXPECT_EQ(std::string(s.detail).rfind(std::string("scoring.") + m.name, 0), 0u) << s.detail;
      EXPECT_TRUE(out.untouched());
      continue;
    }
    const auto got = out.bits();
    ASSERT_TRUE(ok(run_attention(without, GetParam())));
    EXPECT_EQ(got, out.bits()) << m.name << " was there for the plan alone";
  }
}

/// Values that lie inside of their keys are read from copies of listed keys. The plan has room for these wherever its
/// own values lie.
TEST_P(BoundPlans, ValuesMoveIntoKeys) {
  Random random(seed() * 8100 + 2);
  constexpr int64_t kList = 1200, kTokens = 1600, kValues = 12, kGroup = 4, kManyRows = 64;  // fill the workspace
  std::vector<int32_t> list;
  for (int32_t i = 0; i < kList; ++i) list.push_back(i * 7 % static_cast<int32_t>(kTokens));
  for (const KvType type : {KvType::kF32, KvType::kBF16, KvType::kInt8}) {
    for (const KvForm form : {KvForm::kRows, KvForm::kPagedRows}) {
      KvStorage k = make_kv(random, type, form, 1, 1, kTokens, kDim);
      const Array<4> rows(random, DType::kF32, {1, 1, kTokens, kDim}, Values::kOrdinary);
      ASSERT_TRUE(ok(kv_append(rows.view, {}, k.kv, {}, exec())));
      const Array<4> q(random, DType::kF32, {1, kGroup, kManyRows, kDim}, Values::kOrdinary);
      const Array<4> out(random, DType::kF32, {1, kGroup, kManyRows, kValues});
      AttentionProblem inside;
      inside.q = q.view, inside.k = k.kv, inside.v = k.kv, inside.out = out.view;
      inside.v.dim = kValues;
      inside.lists = {.data = list.data(), .heads = 1, .length = kList};
      ASSERT_TRUE(ok(run_attention(inside, GetParam())));
      const auto want = out.bits();
      AttentionProblem shapes[4] = {inside, inside, inside, inside};
      shapes[0].v.data = nullptr;
      shapes[1].v.scales = nullptr;
      shapes[2].k.block_table = nullptr;
      shapes[3].v.data = static_cast<const char*>(k.kv.data) + (int64_t{1} << 30);  // a plan reads no values
      for (const AttentionProblem& s : shapes) {
        out.fill_bytes(Guarded::kCanary);
        ASSERT_TRUE(ok(run(s, inside)));
        EXPECT_EQ(out.bits(), want) << "plan " << &s - shapes << ", type " << static_cast<int>(type);
      }
    }
  }
}

SIMDATTN_FOR_EACH_TARGET(BoundPlans);

}  // namespace
}  // namespace simdattn::test
