// Plans: what they remember and refuse, where ranges begin and end, and that no row is ever left unwritten with kOk.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/support/bound_plans.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

class Plans : public TargetTest {};

/// Many sequences of unequal lengths, some without rows, some without keys.
struct Batch {
  Array<4> q, out, acc;
  Array<3> lse, max, sum;
  Array<4> k, v;
  std::vector<int32_t> cu_q = {0}, cu_k = {0}, kv_length, kv_start, prefix_end, offsets;
  AttentionProblem a;

  enum class Kind : uint8_t { kVarlen, kVarlenCaches, kCaches };
  Batch(Random& random, int64_t sequences, Kind kind, int64_t max_q, int64_t max_kv, int64_t heads = 2,
        int64_t kv_heads = 1) {
    const int64_t dim = random.integer(1, 9);
    const bool caches = kind != Kind::kVarlen;
    for (int64_t s = 0; s < sequences; ++s) {
      cu_q.push_back(cu_q.back() + static_cast<int32_t>(random.one_in(4) ? 0 : random.integer(1, max_q)));
      cu_k.push_back(cu_k.back() + static_cast<int32_t>(random.one_in(6) ? 0 : random.integer(0, max_kv)));
      const int32_t n = caches ? static_cast<int32_t>(max_kv) : cu_k.back() - cu_k[static_cast<size_t>(s)];
      kv_length.push_back(random.one_in(6) ? 0 : static_cast<int32_t>(random.integer(0, n)));
      kv_start.push_back(static_cast<int32_t>(random.integer(0, 3)));
      prefix_end.push_back(static_cast<int32_t>(random.integer(0, 3)));
      offsets.push_back(static_cast<int32_t>(random.integer(0, max_kv)));
    }
    const int64_t rows = kind == Kind::kCaches ? max_q : cu_q.back();
    const int64_t q_batch = kind == Kind::kCaches ? sequences : 1;
    q = Array<4>(random, random.storage(), {q_batch, heads, rows, dim});
    out = Array<4>(random, DType::kF32, {q_batch, heads, rows, dim}, Strides::kOutput);
    acc = out.like(random);
    lse = Array<3>(random, DType::kF32, {q_batch, heads, rows}, Strides::kOutput);
    max = lse.like(random), sum = lse.like(random);
    const std::array<int64_t, 4> shape = {caches ? sequences : 1, kv_heads, caches ? max_kv : cu_k.back(), dim};
    k = Array<4>(random, random.storage(), shape), v = Array<4>(random, random.storage(), shape);
    for (const Array<4>* x : {&q, &k, &v}) x->fill(random, Values::kOrdinary);
    a.q = q.view, a.k = k.view, a.v = v.view, a.out = out.view, a.lse = lse.view;
    a.arithmetic = random_arithmetic(random);
    if (random.one_in(3)) a.acc = acc.view, a.max = max.view, a.sum = sum.view;
    if (kind != Kind::kCaches) a.cu_q = cu_q.data(), a.n_sequences = sequences;
    if (kind == Kind::kVarlen) a.cu_k = cu_k.data();
    if (caches || random.coin()) a.scoring.kv_length = kv_length.data();
    if (random.one_in(3)) a.scoring.kv_start = kv_start.data();
    if (random.one_in(4)) a.scoring.prefix_end = prefix_end.data();
    if (random.one_in(4)) a.scoring.offsets = offsets.data();
    a.scoring.causal = random.coin();
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  void clear() const {
    out.fill_bytes(Guarded::kCanary), acc.fill_bytes(Guarded::kCanary);
    for (const Array<3>* x : {&lse, &max, &sum}) x->fill_bytes(Guarded::kCanary);
  }
  std::vector<std::vector<uint64_t>> results() const {
    return {out.bits(), lse.bits(), acc.bits(), max.bits(), sum.bits()};
  }
};

/// One thread's way through a plan.
struct Runner {
  Plan plan;
  std::vector<char> workspace, partial;
  Exec exec;
  explicit Runner(const Target* target) { exec.target = target; }
  Status make(const AttentionProblem& a) {
    exec.workspace = nullptr;
    const Status s = attention_plan(a, &plan, exec);
    if (!s.ok()) return s;
    EXPECT_EQ(plan.partial_bytes > 0, plan.reduce_tasks > 0);
    workspace.resize(plan.workspace_bytes), partial.resize(plan.partial_bytes);
    exec.workspace = workspace.data(), exec.workspace_bytes = workspace.size();
    return s;
  }
  Status range(int64_t first, int64_t last) const {
    return attention_range(plan, first, last, const_cast<char*>(partial.data()), partial.size(), exec);
  }
  Status reduce(int64_t first, int64_t last) const {
    return attention_reduce(plan, first, last, partial.data(), partial.size(), exec);
  }
  Status all() const {
    if (const Status s = range(0, plan.tasks); !s.ok()) return s;
    return reduce(0, plan.reduce_tasks);
  }
};

/// Ranges from every task to the end and from everywhere to everywhere: each row is written by the range that holds it
/// and by no other, as attention() writes it.
TEST_P(Plans, RangesOfManySequences) {
  Random random(seed() * 8000 + 1);
  int64_t split_plans = 0;
  int turn = 0;
  for (const int64_t sequences : {1, 2, 5, 63, 64, 65, 100, 127, 128, 129, 150, 200, 257}) {
    ++turn;
    for (const Batch::Kind kind : {Batch::Kind::kVarlen, Batch::Kind::kVarlenCaches, Batch::Kind::kCaches}) {
      // Where few random cases are asked for, one kind for each number of sequences, in turn.
      if (cases(3) < 3 && static_cast<int>(kind) != turn % 3) continue;
      const bool long_keys = sequences <= 5 || (sequences < 130 && random.one_in(3));
      const Batch b(random, sequences, kind, sequences < 3 ? 300 : 3, long_keys ? 2200 : 20, 2, random.integer(1, 2));
      const std::string text = std::to_string(sequences) + " sequences, kind " + std::to_string(static_cast<int>(kind));
      b.clear();
      ASSERT_TRUE(run_attention(b.a, GetParam()).ok()) << text;
      const auto want = b.results();
      // Against the formula, not only against another way through the same code.
      const reference::AttentionResult formula = reference::attention(b.a);
      const reference::Tensor out = reference::read(b.out.view);
      for (int64_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], formula.out[i], 1e-2) << text;
      Runner r(GetParam());
      ASSERT_TRUE(r.make(b.a).ok());
      split_plans += r.plan.reduce_tasks > 0;
      for (int trial = 0; trial < 4; ++trial) {
        b.clear();
        std::fill(r.partial.begin(), r.partial.end(), '\xFF');
        for (const bool reduce : {false, true}) {
          const int64_t count = reduce ? r.plan.reduce_tasks : r.plan.tasks;
          std::vector<int64_t> cuts = {0, count};
          if (trial == 0) {
            cuts.resize(static_cast<size_t>(count + 1));
            std::iota(cuts.begin(), cuts.end(), 0);
          } else if (trial > 1) {
            for (int i = 0; i < 7; ++i) cuts.push_back(random.integer(0, count));
          }
          std::sort(cuts.begin(), cuts.end());
          // Backwards: no range may rely on what an earlier one left.
          for (size_t i = cuts.size(); i-- > 1;) {
            ASSERT_TRUE(ok(reduce ? r.reduce(cuts[i - 1], cuts[i]) : r.range(cuts[i - 1], cuts[i]))) << ", " << text;
          }
        }
        ASSERT_EQ(b.results(), want) << text << ", trial " << trial;
      }
    }
  }
  EXPECT_GT(split_plans, 0);
}

/// Splits among few sequences, most of them empty: checkpoints count tasks and row blocks apart.
TEST_P(Plans, SplitsAmongManyEmptySequences) {
  Random random(seed() * 8000 + 2);
  for (const int64_t sequences : {64, 65, 130, 300}) {
    const int64_t heads = 2, dim = 4, most = 2500;
    std::vector<int32_t> cu_q = {0}, cu_k = {0};
    for (int64_t s = 0; s < sequences; ++s) {
      const bool full = s % 37 == 5 || s == sequences - 1;
      cu_q.push_back(cu_q.back() + (full ? 1 + static_cast<int32_t>(random.integer(0, 2)) : 0));
      cu_k.push_back(cu_k.back() + (full || random.one_in(9) ? static_cast<int32_t>(random.integer(0, most)) : 0));
    }
    Array<4> q(random, DType::kF32, {1, heads, cu_q.back(), dim}),
        k(random, DType::kBF16, {1, 1, cu_k.back(), dim}, Values::kOrdinary), out = q.like(random);
    q.fill(random, Values::kOrdinary);
    AttentionProblem a;
    a.q = q.view, a.k = k.view, a.v = k.view, a.out = out.view;
    a.cu_q = cu_q.data(), a.cu_k = cu_k.data(), a.n_sequences = sequences;
    a.arithmetic = random_arithmetic(random);
    ASSERT_TRUE(run_attention(a, GetParam()).ok());
    const auto want = out.bits();
    Runner r(GetParam());
    ASSERT_TRUE(r.make(a).ok());
    ASSERT_GT(r.plan.reduce_tasks, 0);
    for (int trial = 0; trial < 10; ++trial) {
      out.fill_bytes(Guarded::kCanary);
      ASSERT_TRUE(run_tasks(a, GetParam(), random).ok());
      ASSERT_EQ(out.bits(), want) << sequences;
    }
    // Each task alone, and each reduction.
    out.fill_bytes(Guarded::kCanary);
    for (int64_t t = r.plan.tasks; t-- > 0;) ASSERT_TRUE(r.range(t, t + 1).ok());
    for (int64_t t = r.plan.reduce_tasks; t-- > 0;) ASSERT_TRUE(r.reduce(t, t + 1).ok());
    ASSERT_EQ(out.bits(), want) << sequences;
  }
}

/// A number of any array changes: every range and reduction that holds a row of that sequence refuses, and writes
/// nothing; one that says kOk has written all of its rows.
TEST_P(Plans, ChangedLengthsAreRefused) {
  Random random(seed() * 8000 + 3);
  int64_t refused = 0;
  for (const int64_t sequences : {1, 3, 64, 65, 130, 200}) {
    for (const Batch::Kind kind : {Batch::Kind::kVarlen, Batch::Kind::kVarlenCaches, Batch::Kind::kCaches}) {
      Batch b(random, sequences, kind, 3, sequences < 10 ? 2100 : 20);
      b.a.scoring.kv_length = b.kv_length.data(), b.a.scoring.kv_start = b.kv_start.data();
      b.a.scoring.prefix_end = b.prefix_end.data(), b.a.scoring.offsets = b.offsets.data();
      Runner r(GetParam());
      ASSERT_TRUE(r.make(b.a).ok());
      const int64_t tasks = r.plan.tasks, reductions = r.plan.reduce_tasks;
      ASSERT_TRUE(r.all().ok());
      for (int trial = 0; trial < 30; ++trial) {
        const size_t s = static_cast<size_t>(random.integer(0, sequences - 1));
        std::vector<std::pair<const char*, int32_t*>> numbers = {{"kv_length", &b.kv_length[s]},
                                                                 {"kv_start", &b.kv_start[s]},
                                                                 {"prefix_end", &b.prefix_end[s]},
                                                                 {"offsets", &b.offsets[s]}};
        if (kind != Batch::Kind::kCaches && s > 0) numbers.emplace_back("cu_q", &b.cu_q[s]);
        if (kind == Batch::Kind::kVarlen && s > 0) numbers.emplace_back("cu_k", &b.cu_k[s]);
        const auto [what, number] = numbers[static_cast<size_t>(random.integer(0, std::ssize(numbers) - 1))];
        const int32_t before = *number;
        // The sequence has rows, or its neighbour, if the number is a border of both. What no task belongs to is met
        // only by ranges that go across it.
        const auto rows = [&](size_t i) { return kind == Batch::Kind::kCaches || b.cu_q[i + 1] > b.cu_q[i]; };
        const bool holds_rows = rows(s) || (what[0] == 'c' && rows(s - 1));
        *number = random.coin() ? before + 1 : before > 0 ? before - 1 : before + 2;
        b.clear();
        const auto untouched = b.results();
        const std::string text = std::string(what) + " of " + std::to_string(s) + " of " + std::to_string(sequences);
        const Status whole = r.range(0, tasks);
        if (holds_rows) {
          ASSERT_EQ(whole.code, Code::kStalePlan) << text << ": " << whole.detail;
          ASSERT_EQ(b.results(), untouched) << text;
          if (reductions > 0) {
            ASSERT_EQ(r.reduce(0, reductions).code, Code::kStalePlan) << text;
            ASSERT_EQ(b.results(), untouched) << text;
          }
          ++refused;
        }
        // Task by task: at least one refuses, the others are those of other sequences.
        int64_t refusals = 0;
        for (int64_t t = 0; t < tasks; ++t) {
          const Status one = r.range(t, t + 1);
          ASSERT_TRUE(one.ok() || one.code == Code::kStalePlan) << one.detail;
          refusals += !one.ok();
        }
        if (holds_rows) {
          ASSERT_GT(refusals, 0) << text;
        }
        *number = before;
        ASSERT_TRUE(r.all().ok()) << text;
      }
    }
  }
  EXPECT_GT(refused, 0);
}

/// Keys that move from one sequence to another leave sums as they are, not the digest of their group.
TEST_P(Plans, LengthsThatAreExchangedAreRefused) {
  Random random(seed() * 8000 + 8);
  constexpr int64_t kSequences = 64 * 20;  // 20 a group
  const Array<4> q(random, DType::kF32, {1, 1, 1, 2}), k(random, DType::kF32, {1, 1, 4, 2}),
      out(random, DType::kF32, {kSequences, 1, 1, 2});
  std::vector<int32_t> lengths(kSequences, 2);
  AttentionProblem a;
  a.q = ConstView<4>(q.view.data, DType::kF32, {kSequences, 1, 1, 2}, {0, 2, 2, 1});
  a.k = a.v = ConstView<4>(k.view.data, DType::kF32, {kSequences, 1, 4, 2}, {0, 8, 2, 1});
  a.out = out.view;
  a.scoring.kv_length = lengths.data();
  Runner r(GetParam());
  ASSERT_TRUE(r.make(a).ok());
  for (size_t from = 20; from < 40; ++from) {
    for (size_t to = 20; to < 40; ++to) {
      if (from == to) continue;
      --lengths[from], ++lengths[to];
      ASSERT_EQ(r.range(29, 30).code, Code::kStalePlan) << from << " to " << to;
      ++lengths[from], --lengths[to];
    }
  }
  ASSERT_TRUE(r.range(29, 30).ok());
}

/// The last `ring` tokens of a sequence in rings: tasks and their states are as many as these need, however long the
/// sequence is, never fewer for a longer one; and the bits are those of a store that has all tokens, of which kv_start
/// hides the others.
TEST_P(Plans, RingsDivideByWhatTheyHold) {
  Random random(seed() * 8000 + 9);
  for (const int64_t ring : {1, 64, 1024, 1025, 1026, 1500, 3072, 4096}) {
    for (const bool only_values : {false, true}) {
      const int64_t dim = random.integer(1, 5), heads = 2;
      Array<4> q(random, DType::kF32, {1, heads, 2, dim}), out = q.like(random);
      Array<3> lse(random, DType::kF32, {1, heads, 2});
      q.fill(random, Values::kOrdinary);
      const std::array<float, 2> sinks = {0.5f, -1.0f};
      AttentionProblem a;
      a.q = q.view, a.out = out.view, a.lse = lse.view;
      a.scoring.causal = true;
      a.scoring.sinks = sinks.data();
      a.arithmetic = random_arithmetic(random);
      const int64_t splits = (ring + 1022) / 1024 + 1;  // that so many tokens touch at most
      int64_t tasks = 0;
      size_t bytes = 0;
      for (const int64_t length :
           {int64_t{1}, ring - 1, ring, ring + 1, ring + 1023, ring + 1024, ring + 5000, int64_t{1} << 20}) {
        const bool run = length > 0 && length < 10000;
        const std::array<int64_t, 4> all = {1, 1, run ? length : 1, dim}, held = {1, 1, run ? ring : 1, dim};
        Array<4> k(random, DType::kF32, all), v(random, DType::kF32, all), k_ring(random, DType::kF32, held),
            v_ring(random, DType::kF32, held);
        if (run) {
          k.fill(random, Values::kOrdinary), v.fill(random, Values::kOrdinary);
          for (int64_t t = std::max<int64_t>(length - ring, 0); t < length; ++t) {
            for (int64_t d = 0; d < dim; ++d) {
              k_ring.set_at({0, 0, t % ring, d}, k.get_at({0, 0, t, d}));
              v_ring.set_at({0, 0, t % ring, d}, v.get_at({0, 0, t, d}));
            }
          }
        }
        const auto rings = [&](const Array<4>& rows, const Array<4>& last, bool is_ring) {
          ConstKv kv = is_ring ? last.view : rows.view;
          if (is_ring) kv.ring = ring;
          if (is_ring) kv.capacity = (int64_t{1} << 30) - 1;
          kv.length = std::max<int64_t>(length, 0);
          if (!run) kv.data = nullptr;
          return kv;
        };
        if (!run && only_values) continue;
        a.k = rings(k, k_ring, !only_values);
        a.v = rings(v, v_ring, true);
        a.v.capacity = a.k.capacity = only_values ? a.k.capacity : a.v.capacity;
        Runner r(GetParam());
        ASSERT_TRUE(ok(r.make(a)));
        ASSERT_LE(r.plan.tasks, std::min(splits, (length + 1023) / 1024 + 1)) << ring << ", " << length;
        ASSERT_GE(r.plan.tasks, tasks) << ring << ", " << length;
        ASSERT_GE(r.plan.partial_bytes, bytes) << ring << ", " << length;
        tasks = r.plan.tasks, bytes = r.plan.partial_bytes;
        if (!run) continue;
        out.fill_bytes(Guarded::kCanary);
        ASSERT_TRUE(run_tasks(a, GetParam(), random).ok());
        const auto got = out.bits(), got_lse = lse.bits();
        out.fill_bytes(Guarded::kCanary);
        ASSERT_TRUE(run_attention(a, GetParam()).ok());
        ASSERT_EQ(out.bits(), got) << ring << ", " << length;
        const int32_t start = static_cast<int32_t>(std::max<int64_t>(length - ring, 0));
        AttentionProblem whole = a;
        whole.k = rings(k, k_ring, false), whole.v = rings(v, v_ring, false);
        whole.scoring.kv_start = &start;
        ASSERT_TRUE(run_attention(whole, GetParam()).ok());
        ASSERT_EQ(out.bits(), got) << ring << ", " << length;
        ASSERT_EQ(lse.bits(), got_lse) << ring << ", " << length;
      }
    }
  }
}

/// A plan of bytes: the caller may copy it wherever it likes.
TEST_P(Plans, CopiesAreThePlan) {
  Random random(seed() * 8000 + 4);
  const Batch b(random, 70, Batch::Kind::kVarlenCaches, 3, 40);
  b.clear();
  ASSERT_TRUE(run_attention(b.a, GetParam()).ok());
  const auto want = b.results();
  auto first = std::make_unique<Runner>(GetParam());
  ASSERT_TRUE(first->make(b.a).ok());
  std::vector<unsigned char> bytes(sizeof(Plan));
  std::memcpy(bytes.data(), &first->plan, bytes.size());
  Runner second(GetParam());
  second.workspace.resize(first->plan.workspace_bytes), second.partial.resize(first->plan.partial_bytes);
  second.exec.workspace = second.workspace.data(), second.exec.workspace_bytes = second.workspace.size();
  std::memset(static_cast<void*>(&first->plan), 0xEE, sizeof(Plan));
  first.reset();
  std::memcpy(static_cast<void*>(&second.plan), bytes.data(), bytes.size());
  b.clear();
  ASSERT_TRUE(second.all().ok());
  EXPECT_EQ(b.results(), want);
}

/// A plan from shapes alone tells the same sizes, runs nothing, and with data does all.
TEST_P(Plans, ShapesFirstDataLater) {
  Random random(seed() * 8000 + 5);
  for (const int64_t sequences : {1, 3, 70, 140}) {
    for (const Batch::Kind kind : {Batch::Kind::kVarlen, Batch::Kind::kVarlenCaches, Batch::Kind::kCaches}) {
      const Batch b(random, sequences, kind, 4, sequences < 5 ? 2100 : 20);
      b.clear();
      ASSERT_TRUE(run_attention(b.a, GetParam()).ok());
      const auto want = b.results();
      const AttentionProblem shapes = without_arrays(b.a);
      Runner whole(GetParam()), later(GetParam());
      ASSERT_TRUE(whole.make(b.a).ok());
      ASSERT_TRUE(later.make(shapes).ok());
      EXPECT_EQ(later.plan.tasks, whole.plan.tasks);
      EXPECT_EQ(later.plan.reduce_tasks, whole.plan.reduce_tasks);
      EXPECT_EQ(later.plan.workspace_bytes, whole.plan.workspace_bytes);
      EXPECT_EQ(later.plan.partial_bytes, whole.plan.partial_bytes);
      b.clear();
      const auto untouched = b.results();
      if (later.plan.tasks > 0) {
        EXPECT_EQ(later.range(0, 1).code, Code::kNullPointer);
        EXPECT_EQ(b.results(), untouched);
      }
      ASSERT_TRUE(ok(attention_bind(b.a, &later.plan)));
      ASSERT_TRUE(later.all().ok());
      EXPECT_EQ(b.results(), want);
      // The binding of one copy leaves the others as they are.
      const Batch other(random, sequences, kind, 4, 20);
      EXPECT_FALSE(attention_bind(other.a, &later.plan).ok());
      b.clear();
      ASSERT_TRUE(later.all().ok());
      EXPECT_EQ(b.results(), want);
    }
  }
}

/// As many row blocks as sequences, but not one in each; and lengths, alone, of no key more than there are.
TEST_P(Plans, RowBlocksAreNotSequences) {
  Random random(seed() * 8000 + 7);
  constexpr int64_t kRows = 32;
  Array<4> q(random, DType::kF32, {1, 1, kRows, 2}), k(random, DType::kF32, {2, 1, 4, 2}),
      out(random, DType::kF32, {1, 1, kRows, 2});
  const int32_t cu_q[3] = {0, kRows, kRows};
  int32_t lengths[2] = {4, 3};
  AttentionProblem a;
  a.q = q.view, a.k = k.view, a.v = k.view, a.out = out.view;
  a.cu_q = cu_q, a.n_sequences = 2;
  a.scoring.kv_length = lengths;
  Runner r(GetParam());
  ASSERT_TRUE(r.make(a).ok());
  ASSERT_EQ(r.plan.tasks, 2);
  out.fill_bytes(0);
  for (int64_t t = 0; t < r.plan.tasks; ++t) ASSERT_TRUE(r.range(t, t + 1).ok());
  for (int64_t i = 0; i < kRows; ++i) ASSERT_NE(out.get_at({0, 0, i, 0}), 0.0f) << i;
  for (const int32_t wrong : {5, -1}) {
    lengths[1] = wrong;
    ASSERT_EQ(r.make(a).code, Code::kRange) << wrong;
  }
}

/// Row blocks of a sequence go last, first, second to last, ...: the first half of a causal problem's tasks and the
/// second take about as long.
TEST_P(Plans, HalvesOfACausalProblemAreAlike) {
  Random random(seed() * 8000 + 6);
  for (const int64_t n : {1024, 5000, 9000}) {
    if ((n > 1024 && GetParam() == &scalar_target()) || (n > 5000 && cases(3) < 3)) continue;  // seconds
    Array<4> q(random, DType::kF32, {1, 1, n, 1}), k(random, DType::kF32, {1, 1, n, 1}),
        out(random, DType::kF32, {1, 1, n, 1});
    for_each_element(q.view, [&](int64_t at) { put(q.view.data, DType::kF32, at, 0.0f); });
    for_each_element(k.view, [&](int64_t at) { put(k.view.data, DType::kF32, at, 1.0f); });
    AttentionProblem a;
    a.q = q.view, a.k = k.view, a.v = k.view, a.out = out.view;
    a.scoring.causal = true;
    Runner r(GetParam());
    ASSERT_TRUE(r.make(a).ok());
    if (r.plan.reduce_tasks > 0) continue;
    for (int64_t parts = 2; parts <= 4; ++parts) {
      if (r.plan.tasks < 4 * parts) continue;
      for (int64_t part = 0; part < parts; ++part) {
        out.fill_bytes(0);
        ASSERT_TRUE(r.range(part * r.plan.tasks / parts, (part + 1) * r.plan.tasks / parts).ok());
        // Every row that was computed is 1; row i has i + 1 keys.
        double keys = 0;
        for (int64_t i = 0; i < n; ++i) keys += out.get_at({0, 0, i, 0}) != 0.0f ? static_cast<double>(i + 1) : 0;
        const double share = keys / (static_cast<double>(n) * static_cast<double>(n + 1) / 2);
        EXPECT_NEAR(share, 1.0 / static_cast<double>(parts), 0.3 / static_cast<double>(parts))
            << n << ", part " << part << " of " << parts;
      }
    }
    // And the order itself.
    const int64_t block =
                      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>((n + r.plan.tasks - 1) / r.plan.tasks))),
                  blocks = (n + block - 1) / block;
    ASSERT_EQ(blocks, r.plan.tasks);
    for (int64_t t = 0; t < r.plan.tasks; ++t) {
      out.fill_bytes(0);
      ASSERT_TRUE(r.range(t, t + 1).ok());
      const int64_t want = t % 2 == 0 ? blocks - 1 - t / 2 : t / 2;
      for (int64_t i = 0; i < n; ++i)
        ASSERT_EQ(out.get_at({0, 0, i, 0}) != 0.0f, i / block == want) << t << " row " << i;
    }
  }
}

SIMDATTN_FOR_EACH_TARGET(Plans);

}  // namespace
}  // namespace simdattn::test
