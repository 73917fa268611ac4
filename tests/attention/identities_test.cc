// Different ways to say the same thing give the same bits; what is equal only up to rounding is compared within the
// bounds of tests/support/bounds.h.
//
// ALiBi equals a bias whose entries are the f32 products -(slope * |p - j|): the definition rounds that product, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/support/bounds.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// ---------------------------------------------------------------------------------------------------------------------
// Parts of problems

template <int kRank, bool kConst>
BasicView<kRank, kConst> slice(BasicView<kRank, kConst> v, size_t dim, int64_t first, int64_t count) {
  if (v.data == nullptr) return v;
  using Byte = std::conditional_t<kConst, const char, char>;
  v.data = static_cast<Byte*>(v.data) + first * v.stride[dim] * size_of(v.dtype);
  v.shape[dim] = count;
  return v;
}

/// The same of a bias or mask, whose sizes of 1 broadcast.
ConstView<4> mask_slice(const ConstView<4>& v, size_t dim, int64_t first, int64_t count) {
  return v.shape[dim] == 1 ? v : slice(v, dim, first, count);
}

int64_t key_count(const Scoring& s, int64_t b, int64_t n_kv) { return s.kv_length != nullptr ? s.kv_length[b] : n_kv; }

/// Rows [first, first + count) of a problem whose queries are [B,H,n,d]; positions become explicit.
Attention rows_of(Attention a, int64_t first, int64_t count, int64_t offset) {
  a.q = slice(a.q, 2, first, count);
  a.out = slice(a.out, 2, first, count);
  a.lse = slice(a.lse, 2, first, count);
  a.scoring.bias = mask_slice(a.scoring.bias, 2, first, count);
  a.scoring.keep = mask_slice(a.scoring.keep, 2, first, count);
  if (a.scoring.bits.data != nullptr) a.scoring.bits.data += first * a.scoring.bits.stride[2];
  a.scoring.offset = offset + first;
  a.scoring.offsets = nullptr;
  return a;
}
void move_scales(ConstKv* kv, int64_t bytes) {
  if (kv->scales != nullptr) kv->scales = static_cast<const char*>(kv->scales) + bytes;
}

/// Batch entry b alone. Caches must not be paged.
Attention entry_of(Attention a, int64_t b) {
  a.q = slice(a.q, 0, b, 1);
  a.out = slice(a.out, 0, b, 1);
  a.lse = slice(a.lse, 0, b, 1);
  for (ConstKv* kv : {&a.k, &a.v}) {
    kv->data = static_cast<const char*>(kv->data) + b * kv->batch_stride;
    move_scales(kv, b * kv->scale_batch_stride);
    kv->batch = 1;
  }
  Scoring& s = a.scoring;
  s.bias = mask_slice(s.bias, 0, b, 1);
  s.keep = mask_slice(s.keep, 0, b, 1);
  if (s.bits.data != nullptr) s.bits.data += b * s.bits.stride[0];
  if (s.offsets != nullptr) s.offsets += b;
  if (s.prefix_end != nullptr) s.prefix_end += b;
  if (s.kv_start != nullptr) s.kv_start += b;
  if (s.kv_length != nullptr) s.kv_length += b;
  return a;
}
/// Key head h with its query heads alone.
Attention head_of(Attention a, int64_t h) {
  const int64_t group = a.q.shape[1] / a.k.heads;
  a.q = slice(a.q, 1, h * group, group);
  a.out = slice(a.out, 1, h * group, group);
  a.lse = slice(a.lse, 1, h * group, group);
  for (ConstKv* kv : {&a.k, &a.v}) {
    kv->data = static_cast<const char*>(kv->data) + h * kv->head_stride;
    move_scales(kv, h * kv->scale_head_stride);
    kv->heads = 1;
  }
  Scoring& s = a.scoring;
  s.bias = mask_slice(s.bias, 1, h * group, group);
  s.keep = mask_slice(s.keep, 1, h * group, group);
  if (s.bits.data != nullptr) s.bits.data += h * group * s.bits.stride[1];
  if (s.bias_scale != nullptr) s.bias_scale += h * group;
  if (s.alibi_slopes != nullptr) s.alibi_slopes += h * group;
  if (s.sinks != nullptr) s.sinks += h * group;
  return a;
}

/// What a problem gave: the bits of out and lse in logical order.
struct Result {
  std::vector<uint64_t> out, lse;
  bool operator==(const Result&) const = default;
};

class Identities : public TargetTest {
 protected:
  static Result run(Random& random, Attention a) {
    const auto& q = a.q.shape;
    const Array<4> out(random, a.out.dtype, {q[0], q[1], q[2], a.v.dim}, Strides::kOutput);
    const Array<3> lse(random, DType::kF32, {q[0], q[1], q[2]}, Strides::kOutput);
    a.out = out.view;
    a.lse = lse.view;
    const Status s = run_attention(a, &target());
    EXPECT_TRUE(s.ok()) << s.detail << ": " << describe(a);
    return {out.bits(), lse.bits()};
  }
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
      c.problem.scoring.bias = c.problem.scoring.keep = ConstView<4>();
      c.problem.scoring.bias_scale = nullptr;
      c.problem.scoring.bits = BitMask();
    }
    return c;
  }
  static std::string where(int64_t i, const Attention& a) { return "case " + std::to_string(i) + ": " + describe(a); }
};

// ---------------------------------------------------------------------------------------------------------------------
// Ways to mask

/// Entries that all intervals of a Scoring leave visible, [B,H,n_q,n_kv].
std::vector<bool> visible(const Scoring& s, const std::array<int64_t, 4>& shape) {
  reference::Tensor v;
  const reference::Tensor zero({shape[0], shape[1], shape[2], shape[3]});
  (void)reference::modified_scores(zero, s, &v);
  std::vector<bool> result;
  for (const double x : v.data) result.push_back(x != 0);
  return result;
}

/// One set of visible keys as a byte mask, a bit mask and a bias.
struct Masks {
  Array<4> keep, bias;
  Guarded bits;
  BitMask bit_mask;
  Masks(Random& random, const std::array<int64_t, 4>& shape, const std::vector<bool>& seen)
      : keep(random, DType::kU8, shape), bias(random, random.storage(), shape) {
    const int64_t n = shape[3], row_bytes = (n + 7) / 8;
    const int64_t rows = shape[0] * shape[1] * shape[2];
    bits = Guarded(static_cast<size_t>(rows * row_bytes), random.guard());
    std::memset(bits.data(), 0, bits.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < n; ++j) {
        const bool on = seen[static_cast<size_t>(r * n + j)];
        keep.memory.data()[r * n + j] = on ? static_cast<uint8_t>(random.integer(1, 255)) : 0;
        put(bias.view.data, bias.view.dtype, r * n + j, on ? 0.0f : -kInf);
        if (on)
          bits.data()[r * row_bytes + j / 8] = static_cast<uint8_t>(bits.data()[r * row_bytes + j / 8] | 1 << j % 8);
      }
    }
    bit_mask = {bits.data(), n, {shape[1] * shape[2] * row_bytes, shape[2] * row_bytes, row_bytes}};
  }
};

/// A Scoring in which masks stand for the intervals: causal, offset (kept, for ALiBi), windows, chunk, prefix, lengths.
Scoring without_intervals(const Scoring& s, int64_t offset) {
  Scoring r = s;
  r.causal = false;
  r.offset = offset;
  r.window_left = r.window_right = -1;
  r.chunk = 0;
  r.prefix_end = r.kv_start = r.kv_length = nullptr;
  return r;
}

TEST_P(Identities, IntervalsAreMasks) {
  Random random(seed() * 3000 + 1);
  for (int64_t i = 0; i < cases(400); ++i) {
    const AttentionCase c = plain(random, false);
    Attention a = c.problem;
    const int64_t n_q = a.q.shape[2], n_kv = a.k.tokens;
    a.scoring.kv_length = a.scoring.offsets = nullptr;  // with lengths that differ, the position of row 0 would, too
    const int64_t offset = a.scoring.offset == kBottomRight ? n_kv - n_q : a.scoring.offset;
    const std::array<int64_t, 4> shape = {a.q.shape[0], a.q.shape[1], n_q, n_kv};
    const Masks m(random, shape, visible(a.scoring, shape));
    const Result want = run(random, a);
    Attention masked = a;
    masked.scoring = without_intervals(a.scoring, offset);
    masked.scoring.keep = m.keep.view;
    ASSERT_EQ(run(random, masked), want) << "keep, " << where(i, a);
    masked.scoring.keep = ConstView<4>();
    masked.scoring.bits = m.bit_mask;
    ASSERT_EQ(run(random, masked), want) << "bits, " << where(i, a);
    masked.scoring.bits = BitMask();
    masked.scoring.bias = m.bias.view;
    ASSERT_EQ(run(random, masked), want) << "bias, " << where(i, a);

    // The same of masked_softmax().
    Array<4> x(random, DType::kF32, shape, Strides::kInput);
    x.fill(random, Values::kWide);
    std::vector<Result> results;
    const Scoring stripped = without_intervals(a.scoring, offset);
    std::vector<Scoring> ways = {a.scoring, stripped, stripped, stripped};
    ways[1].keep = m.keep.view;
    ways[2].bits = m.bit_mask;
    ways[3].bias = m.bias.view;
    for (const Scoring& s : ways) {
      Array<4> out(random, DType::kF32, shape, Strides::kOutput);
      Array<3> lse(random, DType::kF32, {shape[0], shape[1], n_q}, Strides::kOutput);
      const Status status = masked_softmax(x.view, out.view, s, lse.view, exec());
      ASSERT_TRUE(status.ok()) << status.detail;
      results.push_back({out.bits(), lse.bits()});
      ASSERT_EQ(results.back(), results.front()) << "masked_softmax, way " << results.size() - 1 << ", " << where(i, a);
    }
  }
}

TEST_P(Identities, LengthsAreMasks) {
  Random random(seed() * 3000 + 2);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random, false);
    Attention a = c.problem;
    // kv_start and kv_length differ from sequence to sequence; with an explicit position of row 0 they only mask.
    a.scoring.offsets = nullptr;
    if (a.scoring.offset == kBottomRight) a.scoring.offset = random.integer(-3, a.k.tokens);
    std::vector<int32_t> length, start;
    for (int64_t b = 0; b < a.k.batch; ++b) {
      length.push_back(static_cast<int32_t>(random.integer(0, a.k.tokens)));
      start.push_back(static_cast<int32_t>(random.integer(0, a.k.tokens + 1)));
    }
    a.scoring.kv_length = length.data();
    if (random.coin()) a.scoring.kv_start = start.data();
    const std::array<int64_t, 4> shape = {a.q.shape[0], a.q.shape[1], a.q.shape[2], a.k.tokens};
    const Masks m(random, shape, visible(a.scoring, shape));
    Attention masked = a;
    masked.scoring = without_intervals(a.scoring, a.scoring.offset);
    masked.scoring.keep = m.keep.view;
    ASSERT_EQ(run(random, masked), run(random, a)) << where(i, a);
  }
}

/// Positions of row 0 by sequence, all the same, and those that kBottomRight gives.
TEST_P(Identities, OffsetsAreTheOffset) {
  Random random(seed() * 3000 + 19);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random);
    Attention a = c.problem;
    a.scoring.offsets = nullptr;
    const Result want = run(random, a);
    std::vector<int32_t> offsets;
    for (int64_t b = 0; b < a.k.batch; ++b) {
      const int64_t bottom_right = key_count(a.scoring, b, a.k.tokens) - a.q.shape[2];
      offsets.push_back(static_cast<int32_t>(a.scoring.offset == kBottomRight ? bottom_right : a.scoring.offset));
    }
    a.scoring.offset = random.integer(-3, 3);
    a.scoring.offsets = offsets.data();
    ASSERT_EQ(run(random, a), want) << where(i, a);
  }
}

/// A length says the same as fewer tokens.
TEST_P(Identities, LengthIsFewerTokens) {
  Random random(seed() * 3000 + 20);
  for (int64_t i = 0; i < cases(150); ++i) {
    const AttentionCase c = plain(random);
    const Attention& a = c.problem;
    Attention b = a;
    const KvStorage k = store_kv(random, c.k_rows, random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedPanels}), 0,
                                 random.integer(1, 300)),
                    v = store_kv(random, c.v_rows, random.of({KvForm::kRows, KvForm::kPagedRows}), 0,
                                 random.integer(1, 300));
    b.k = k.kv;
    b.v = v.kv;
    ASSERT_EQ(run(random, b), run(random, a)) << where(i, b);
  }
}

TEST_P(Identities, TailOfATreeIsAFullBitMask) {
  Random random(seed() * 3000 + 3);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random, false);
    Attention a = c.problem;
    a.scoring.kv_length = nullptr;
    const int64_t n = a.k.tokens, tail = random.integer(0, n);
    const std::array<int64_t, 4> shape = {a.q.shape[0], a.q.shape[1], a.q.shape[2], n};
    const std::array<int64_t, 4> tail_shape = {shape[0], shape[1], shape[2], tail};
    std::vector<bool> all, last;
    for (int64_t r = 0; r < shape[0] * shape[1] * shape[2]; ++r) {
      for (int64_t j = 0; j < n; ++j) {
        const bool on = j < n - tail || random.coin();
        all.push_back(on);
        if (j >= n - tail) last.push_back(on);
      }
    }
    const Masks full(random, shape, all), part(random, tail_shape, last);
    a.scoring.bits = full.bit_mask;
    const Result want = run(random, a);
    a.scoring.bits = part.bit_mask;
    ASSERT_EQ(run(random, a), want) << "tail of " << tail << ", " << where(i, a);
  }
}

TEST_P(Identities, AlibiIsABias) {
  Random random(seed() * 3000 + 4);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random, false);
    Attention a = c.problem;
    a.scoring.kv_length = a.scoring.offsets = nullptr;
    const std::array<int64_t, 4> shape = {a.q.shape[0], a.q.shape[1], a.q.shape[2], a.k.tokens};
    std::vector<float> slopes(static_cast<size_t>(shape[1]));
    ASSERT_TRUE(alibi_slopes(shape[1], slopes.data()).ok());
    for (float& s : slopes) s *= random.of({1.0f, 0.7f, 3.3f});
    a.scoring.alibi_slopes = slopes.data();
    const Result want = run(random, a);
    const int64_t offset = a.scoring.offset == kBottomRight ? shape[3] - shape[2] : a.scoring.offset;
    const Array<4> bias(random, DType::kF32, {1, shape[1], shape[2], shape[3]});
    for (int64_t h = 0; h < shape[1]; ++h) {
      for (int64_t r = 0; r < shape[2]; ++r) {
        for (int64_t j = 0; j < shape[3]; ++j) {
          bias.set_at({0, h, r, j}, -(slopes[static_cast<size_t>(h)] * static_cast<float>(std::abs(r + offset - j))));
        }
      }
    }
    a.scoring.alibi_slopes = nullptr;
    a.scoring.bias = bias.view;
    a.scoring.bias.shape[0] = shape[0];
    a.scoring.bias.stride[0] = 0;
    ASSERT_EQ(run(random, a), want) << where(i, a);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Cuts

TEST_P(Identities, HeadsOfAGroupAreRepeatedHeads) {
  Random random(seed() * 3000 + 5);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random);
    const Attention& a = c.problem;
    const int64_t group = a.q.shape[1] / a.k.heads;
    Attention repeated = a;
    Array<4> stores[2];
    for (const bool keys : {true, false}) {
      const Array<4>& rows = keys ? c.k_rows : c.v_rows;
      const auto& shape = rows.view.shape;
      Array<4>& all = stores[keys];
      all = Array<4>(random, rows.view.dtype, {shape[0], a.q.shape[1], shape[2], shape[3]}, Strides::kOutput);
      for (int64_t b = 0; b < shape[0]; ++b) {
        for (int64_t h = 0; h < a.q.shape[1]; ++h) {
          for (int64_t t = 0; t < shape[2]; ++t) {
            for (int64_t d = 0; d < shape[3]; ++d) {
              set_element_bits(all.view.data, all.view.dtype, all.at({b, h, t, d}),
                               element_bits(rows.view.data, rows.view.dtype, rows.at({b, h / group, t, d})));
            }
          }
        }
      }
      (keys ? repeated.k : repeated.v) = all.view;
    }
    ASSERT_EQ(run(random, repeated), run(random, a)) << where(i, a);
  }
}

TEST_P(Identities, TasksAreTheWhole) {
  Random random(seed() * 3000 + 6);
  int64_t reduced = 0;
  for (int64_t i = 0; i < cases(250) || (reduced == 0 && i < 250); ++i) {
    AttentionLimits limits;
    if (random.one_in(3)) limits.max_kv = 3000, limits.max_q = 3, limits.max_dim = 12, limits.max_batch = 2;
    if (random.one_in(4)) limits.max_q = 150, limits.max_dim = 8;
    limits.values = random.of({Values::kOrdinary, Values::kSpecial});
    const AttentionCase c = random_attention(random, limits);
    const Status s = run_attention(c.problem, &target());
    ASSERT_TRUE(s.ok()) << s.detail;
    AttentionPlan plan;
    ASSERT_TRUE(attention_plan(c.problem, &plan, exec()).ok());
    reduced += plan.reduce_tasks > 0;
    const Result want = {c.out.bits(), c.lse.bits()};
    c.clear();
    const Status cut = run_tasks(c.problem, &target(), random);
    ASSERT_TRUE(cut.ok()) << cut.detail;
    ASSERT_EQ((Result{c.out.bits(), c.lse.bits()}), want) << where(i, c.problem);
  }
  EXPECT_GE(reduced, 1) << "no case had its keys split";
}

/// One plan for the layers of a model: made without data, then given the arrays of one layer and of the next.
TEST_P(Identities, BoundPlansAreTheirProblems) {
  Random random(seed() * 3000 + 18);
  for (int64_t i = 0; i < cases(200); ++i) {
    AttentionLimits limits;
    if (random.one_in(4)) limits.max_kv = 2500, limits.max_q = 3, limits.max_dim = 12, limits.max_batch = 2;
    const AttentionCase c = random_attention(random, limits);
    const Attention& a = c.problem;
    AttentionPlan whole, plan;
    ASSERT_TRUE(attention_plan(a, &whole, exec()).ok());
    Attention shapes = a;
    shapes.q.data = shapes.k.data = shapes.v.data = nullptr;
    shapes.out.data = nullptr;
    Status s = attention_plan(shapes, &plan, exec());
    ASSERT_TRUE(s.ok()) << s.detail << " " << where(i, a);
    ASSERT_EQ(plan.tasks, whole.tasks);
    ASSERT_EQ(plan.reduce_tasks, whole.reduce_tasks);
    ASSERT_EQ(plan.workspace_bytes, whole.workspace_bytes);
    ASSERT_EQ(plan.partial_bytes, whole.partial_bytes);
    std::vector<char> workspace(plan.workspace_bytes), partial(plan.partial_bytes);
    const Exec e = {.target = GetParam(), .workspace = workspace.data(), .workspace_bytes = workspace.size()};
    for (int layer = 0; layer < 2; ++layer) {
      const Array<4> q = c.q.like(random), out = c.out.like(random);
      q.fill(random, Values::kOrdinary);
      Attention next = a;
      next.q = q.view;
      next.out = out.view;
      ASSERT_TRUE(run_attention(next, &target()).ok());
      const Result want = {out.bits(), c.lse.bits()};
      out.fill_bytes(Guarded::kCanary);
      c.clear();
      s = attention_bind(next, &plan);
      ASSERT_TRUE(s.ok()) << s.detail << " " << where(i, a);
      ASSERT_TRUE(attention_range(plan, 0, plan.tasks, partial.data(), partial.size(), e).ok());
      ASSERT_TRUE(attention_reduce(plan, 0, plan.reduce_tasks, partial.data(), partial.size(), e).ok());
      ASSERT_EQ((Result{out.bits(), c.lse.bits()}), want) << "layer " << layer << ", " << where(i, a);
    }
  }
}

TEST_P(Identities, ThreadsDoNotMatter) {
  Random random(seed() * 3000 + 7);
  for (int64_t i = 0; i < cases(24); ++i) {
    AttentionLimits limits;
    limits.max_kv = random.coin() ? 2500 : 200;
    limits.max_q = 70;
    limits.max_dim = 8;
    const AttentionCase c = random_attention(random, limits);
    ASSERT_TRUE(run_attention(c.problem, &target()).ok());
    const Result want = {c.out.bits(), c.lse.bits()};
    c.clear();
    AttentionPlan plan;
    ASSERT_TRUE(attention_plan(c.problem, &plan, exec()).ok());
    std::vector<char> partial(plan.partial_bytes);
    const int64_t n_threads = random.integer(1, 16);
    for (const bool reduce : {false, true}) {
      std::atomic<int64_t> next = 0;
      std::atomic<int> failures = 0;
      const auto work = [&] {
        std::vector<char> workspace(plan.workspace_bytes);
        const Exec e = {.target = GetParam(), .workspace = workspace.data(), .workspace_bytes = workspace.size()};
        for (int64_t t; (t = next++) < (reduce ? plan.reduce_tasks : plan.tasks);) {
          const Status s = reduce ? attention_reduce(plan, t, t + 1, partial.data(), partial.size(), e)
                                  : attention_range(plan, t, t + 1, partial.data(), partial.size(), e);
          failures += !s.ok();
        }
      };
      std::vector<std::thread> threads;
      for (int64_t t = 0; t < n_threads; ++t) threads.emplace_back(work);
      for (std::thread& t : threads) t.join();
      ASSERT_EQ(failures, 0);
    }
    ASSERT_EQ((Result{c.out.bits(), c.lse.bits()}), want) << n_threads << " threads, " << where(i, c.problem);
  }
}

TEST_P(Identities, BatchEntriesAndHeadsAlone) {
  Random random(seed() * 3000 + 8);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random);
    const Attention& a = c.problem;
    ASSERT_TRUE(run_attention(a, &target()).ok());
    const Result want = {c.out.bits(), c.lse.bits()};
    c.clear();
    for (int64_t b = a.k.batch; b-- > 0;) {
      const Attention entry = entry_of(a, b);
      for (int64_t h = a.k.heads; h-- > 0;) {
        const Status s = run_attention(head_of(entry, h), &target());
        ASSERT_TRUE(s.ok()) << s.detail;
      }
    }
    ASSERT_EQ((Result{c.out.bits(), c.lse.bits()}), want) << where(i, a);
  }
}

TEST_P(Identities, DecodeRowIsPrefillRowIsChunkedPrefillRow) {
  Random random(seed() * 3000 + 9);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random);
    Attention a = c.problem;
    // One position of row 0 for all sequences, so that a cut can say it.
    a.scoring.offsets = nullptr;
    if (a.scoring.offset == kBottomRight) a.scoring.kv_length = nullptr;
    const int64_t n_q = a.q.shape[2], n_kv = a.k.tokens;
    const int64_t offset = a.scoring.offset == kBottomRight ? n_kv - n_q : a.scoring.offset;
    ASSERT_TRUE(run_attention(a, &target()).ok());
    const Result want = {c.out.bits(), c.lse.bits()};
    c.clear();
    for (int64_t r = 0; r < n_q; ++r) ASSERT_TRUE(run_attention(rows_of(a, r, 1, offset), &target()).ok());
    ASSERT_EQ((Result{c.out.bits(), c.lse.bits()}), want) << "row by row, " << where(i, a);
    c.clear();
    for (int64_t r = 0; r < n_q;) {
      const int64_t count = random.integer(1, n_q - r);
      ASSERT_TRUE(run_attention(rows_of(a, r, count, offset), &target()).ok());
      r += count;
    }
    ASSERT_EQ((Result{c.out.bits(), c.lse.bits()}), want) << "in chunks, " << where(i, a);
  }
}

/// A conversation: every step appends its tokens to caches of any form and attends to them; each row equals the row of
/// one causal prefill over everything.
TEST_P(Identities, DecodeWithACacheIsPrefill) {
  Random random(seed() * 3000 + 10);
  for (int64_t i = 0; i < cases(40); ++i) {
    const int64_t batch = random.integer(1, 2), kv_heads = random.integer(1, 2),
                  heads = kv_heads * random.integer(1, 3);
    const int64_t n = random.one_in(6) ? 1100 : random.integer(1, 90), half = random.integer(1, 12),
                  dim_v = random.integer(1, 20);
    const int64_t dim = 2 * half;
    const DType q_type = random.storage(), k_type = random.storage(), v_type = random.storage(),
                out_type = random.storage();
    Array<4> q(random, q_type, {batch, heads, n, dim}, Strides::kOutput);
    Array<4> k(random, random.storage(), {batch, kv_heads, n, dim}, Strides::kOutput);
    Array<4> v(random, random.storage(), {batch, kv_heads, n, dim_v}, Strides::kOutput);
    q.fill(random, Values::kOrdinary);
    k.fill(random, Values::kOrdinary);
    v.fill(random, Values::kOrdinary);
    Array<2> cosine(random, DType::kF32, {n, half}), sine(random, DType::kF32, {n, half});
    cosine.fill(random, Values::kOrdinary);
    sine.fill(random, Values::kOrdinary);

    // Whole: rotate and convert with rope(), one causal call.
    Array<4> k_all(random, k_type, {batch, kv_heads, n, dim}), v_all(random, v_type, {batch, kv_heads, n, dim_v});
    ASSERT_TRUE(rope(k.view, cosine.view, sine.view, {}, k_all.view, {}, exec()).ok());
    const Array<2> none_cos(random, DType::kF32, {n, 0}), none_sin(random, DType::kF32, {n, 0});
    ASSERT_TRUE(rope(v.view, none_cos.view, none_sin.view, {}, v_all.view, {}, exec()).ok());
    Attention whole;
    whole.q = q.view;
    whole.k = k_all.view;
    whole.v = v_all.view;
    whole.scoring.causal = true;
    whole.arithmetic = random_arithmetic(random);
    const bool window = random.coin();
    const int64_t left = random.integer(0, 30);
    if (window) whole.scoring.window_left = left;
    Array<4> out(random, out_type, {batch, heads, n, dim_v});
    Array<3> lse(random, DType::kF32, {batch, heads, n});
    whole.out = out.view;
    whole.lse = lse.view;
    ASSERT_TRUE(run_attention(whole, &target()).ok());

    // Step by step.
    const std::initializer_list<KvForm> key_forms = {KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows,
                                                     KvForm::kPagedPanels};
    const std::initializer_list<KvForm> value_forms = {KvForm::kRows, KvForm::kPagedRows};
    // A ring holds what the window of the longest step can see.
    const bool ring = window && random.coin();
    const int64_t step_limit = random.integer(1, 20);
    const KvForm k_form = ring ? random.of({KvForm::kRingRows, KvForm::kRingPanels}) : random.of(key_forms);
    const KvForm v_form = ring ? KvForm::kRingRows : random.of(value_forms);
    const KvStorage k_cache = make_kv(random, k_type, k_form, batch, kv_heads, n, dim, left + step_limit);
    const KvStorage v_cache = make_kv(random, v_type, v_form, batch, kv_heads, n, dim_v, left + step_limit);
    Array<4> got(random, out_type, {batch, heads, n, dim_v});
    Array<3> got_lse(random, DType::kF32, {batch, heads, n});
    for (int64_t done = 0; done < n;) {
      const int64_t count = std::min(n - done, random.coin() ? 1 : random.integer(1, step_limit));
      Array<2> positions(random, random.coin() ? DType::kI32 : DType::kI64, {1, count});
      for (int64_t t = 0; t < count; ++t)
        set_element_bits(positions.view.data, positions.view.dtype, t, static_cast<uint64_t>(done + t));
      ConstView<2> all_positions = positions.view;
      all_positions.shape[0] = batch;
      all_positions.stride[0] = 0;
      AppendOptions rotated;
      rotated.rope.cos = cosine.view;
      rotated.rope.sin = sine.view;
      Status s = kv_append(slice(ConstView<4>(k.view), 2, done, count), all_positions, k_cache.kv, rotated, exec());
      ASSERT_TRUE(s.ok()) << s.detail;
      s = kv_append(slice(ConstView<4>(v.view), 2, done, count), all_positions, v_cache.kv, {}, exec());
      ASSERT_TRUE(s.ok()) << s.detail;
      Attention step = whole;
      step.q = slice(ConstView<4>(q.view), 2, done, count);
      step.k = k_cache.kv;
      step.v = v_cache.kv;
      const std::vector<int32_t> lengths(static_cast<size_t>(batch), static_cast<int32_t>(done + count));
      if (random.coin()) {
        step.k.length = step.v.length = done + count;
      } else {
        step.scoring.kv_length = lengths.data();
      }
      step.out = slice(got.view, 2, done, count);
      step.lse = slice(got_lse.view, 2, done, count);
      s = run_attention(step, &target());
      ASSERT_TRUE(s.ok()) << s.detail << " " << describe(step);
      done += count;
    }
    ASSERT_EQ((Result{got.bits(), got_lse.bits()}), (Result{out.bits(), lse.bits()}))
        << "key form " << static_cast<int>(k_form) << ", value form " << static_cast<int>(v_form) << ", "
        << where(i, whole);
  }
}

TEST_P(Identities, VarlenIsSeparateCalls) {
  Random random(seed() * 3000 + 11);
  int64_t packed = 0;
  for (int64_t i = 0; i < cases(600); ++i) {
    AttentionLimits limits;
    limits.forms = random.coin();
    limits.max_batch = 5;
    if (random.one_in(8)) limits.max_kv = 1500, limits.max_dim = 10, limits.max_batch = 2;
    const AttentionCase c = random_attention(random, limits);
    const Attention& a = c.problem;
    if (a.cu_q == nullptr) continue;
    ++packed;
    ASSERT_TRUE(run_attention(a, &target()).ok());
    const Result want = {c.out.bits(), c.lse.bits()};
    c.clear();
    for (int64_t s = 0; s < a.n_sequences; ++s) {
      const int64_t first = a.cu_q[s], count = a.cu_q[s + 1] - first;
      Attention alone = a;
      alone.cu_q = alone.cu_k = nullptr;
      for (ConstKv* kv : {&alone.k, &alone.v}) {
        kv->batch = 1;
        if (a.cu_k != nullptr) {
          kv->data = static_cast<const char*>(kv->data) + a.cu_k[s] * kv->token_stride;
          move_scales(kv, a.cu_k[s] * kv->scale_token_stride);
          kv->tokens = a.cu_k[s + 1] - a.cu_k[s];
        } else if (kv->page_size > 0) {
          const int64_t tight = (kv->tokens + kv->page_size - 1) / kv->page_size;
          kv->block_table += s * (kv->block_table_stride < 0 ? tight : kv->block_table_stride);
        } else {
          kv->data = static_cast<const char*>(kv->data) + s * kv->batch_stride;
          move_scales(kv, s * kv->scale_batch_stride);
        }
      }
      Scoring& r = alone.scoring;
      if (r.offsets != nullptr) r.offsets += s;
      if (r.prefix_end != nullptr) r.prefix_end += s;
      if (r.kv_start != nullptr) r.kv_start += s;
      if (r.kv_length != nullptr) r.kv_length += s;
      const int64_t n_kv = alone.k.keys();
      const int64_t offset = r.offsets != nullptr       ? r.offsets[0]
                             : r.offset == kBottomRight ? key_count(r, 0, n_kv) - count
                                                        : r.offset;
      r.bias = mask_slice(r.bias, 3, 0, n_kv);
      r.keep = mask_slice(r.keep, 3, 0, n_kv);
      const int64_t keep_offset = offset - first;
      const Status status = run_attention(rows_of(alone, first, count, keep_offset), &target());
      ASSERT_TRUE(status.ok()) << status.detail << " sequence " << s << " of " << where(i, a);
    }
    ASSERT_EQ((Result{c.out.bits(), c.lse.bits()}), want) << where(i, a);
  }
  EXPECT_GE(packed, 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Storage

TEST_P(Identities, PanelsPagesAndRingsAreRows) {
  Random random(seed() * 3000 + 12);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random);
    Attention a = c.problem;
    const Result want = run(random, a);
    for (const KvForm k_form : {KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels}) {
      const KvStorage k = store_kv(random, c.k_rows, k_form);
      const KvStorage v = store_kv(random, c.v_rows, random.coin() ? KvForm::kRows : KvForm::kPagedRows);
      Attention b = a;
      b.k = k.kv;
      b.v = v.kv;
      ASSERT_EQ(run(random, b), want) << "form " << static_cast<int>(k_form) << ", " << where(i, b);
    }
    // A ring holds the last tokens of each sequence: the same as a later start.
    const int64_t tokens = a.k.tokens;
    if (tokens == 0) continue;
    a.scoring.kv_length = nullptr;
    const int64_t capacity = random.integer(1, tokens);
    for (const KvForm k_form : {KvForm::kRingRows, KvForm::kRingPanels, KvForm::kRows}) {
      const KvStorage k = store_kv(random, c.k_rows, k_form, capacity);
      const KvStorage v = store_kv(random, c.v_rows, KvForm::kRingRows, capacity);
      Attention b = a;
      b.k = k.kv;
      b.v = v.kv;
      const int64_t held = std::min(b.v.ring, k_form == KvForm::kRows ? b.v.ring : b.k.ring);
      std::vector<int32_t> start;
      for (int64_t s = 0; s < a.k.batch; ++s) {
        start.push_back(static_cast<int32_t>(
            std::max<int64_t>({0, tokens - held, a.scoring.kv_start != nullptr ? a.scoring.kv_start[s] : 0})));
      }
      Attention contiguous = a;
      contiguous.scoring.kv_start = start.data();
      ASSERT_EQ(run(random, b), run(random, contiguous))
          << "ring of " << held << ", form " << static_cast<int>(k_form) << ", " << where(i, b);
    }
  }
}

TEST_P(Identities, TokensBeforeHeadsIsHeadsBeforeTokens) {
  Random random(seed() * 3000 + 13);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random);
    const Result want = run(random, c.problem);
    // [B, L, H, D] of everything.
    const auto blhd = [&](const Array<4>& x) {
      Array<4> r(random, x.view.dtype, {x.view.shape[0], x.view.shape[2], x.view.shape[1], x.view.shape[3]});
      std::swap(r.view.shape[1], r.view.shape[2]);
      std::swap(r.view.stride[1], r.view.stride[2]);
      r.assign(x.bits());
      return r;
    };
    const Array<4> q = blhd(c.q), k = blhd(c.k_rows), v = blhd(c.v_rows), out = blhd(c.out);
    Attention a = c.problem;
    a.q = q.view;
    a.k = k.view;
    a.v = v.view;
    a.out = out.view;
    a.lse = c.lse.view;
    ASSERT_TRUE(run_attention(a, &target()).ok());
    ASSERT_EQ((Result{out.bits(), c.lse.bits()}), want) << where(i, a);
  }
}

TEST_P(Identities, ValuesMayAliasKeys) {
  Random random(seed() * 3000 + 14);
  for (int64_t i = 0; i < cases(60); ++i) {
    // MLA: a key row is [latent | rope], the value its first part.
    const int64_t latent = random.integer(1, 64), rotated = random.integer(0, 16), n = random.size(1, 300),
                  heads = random.integer(1, 16);
    const Array<4> kv(random, random.storage(), {1, 1, n, latent + rotated});
    kv.fill(random, Values::kOrdinary);
    const Array<4> q(random, DType::kF32, {1, heads, 2, latent + rotated});
    q.fill(random, Values::kOrdinary);
    Attention a;
    a.q = q.view;
    a.k = kv.view;
    View<4> values = kv.view;
    values.shape[3] = latent;
    a.v = values;
    a.out.dtype = DType::kF32;
    a.scoring.causal = true;
    a.arithmetic = random_arithmetic(random);
    const Array<4> copy(random, kv.view.dtype, {1, 1, n, latent});
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t d = 0; d < latent; ++d)
        set_element_bits(copy.view.data, copy.view.dtype, copy.at({0, 0, t, d}),
                         element_bits(kv.view.data, kv.view.dtype, kv.at({0, 0, t, d})));
    }
    const Result aliased = run(random, a);
    a.v = copy.view;
    ASSERT_EQ(run(random, a), aliased) << where(i, a);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Within the bound

double rounding(DType t, double x) { return reference::half_ulp(t, x); }
double weight_error(const reference::AttentionResult& formula, int64_t e) { return kWeightSlack * formula.weights[e]; }

TEST_P(Identities, SinkIsAKeyOfValueZero) {
  Random random(seed() * 3000 + 15);
  for (int64_t i = 0; i < cases(200); ++i) {
    const int64_t heads = random.integer(1, 3), n_q = random.integer(1, 5), n = random.size(0, 300),
                  dim = random.integer(1, 20), dim_v = random.integer(1, 20);
    Array<4> q(random, DType::kF32, {1, heads, n_q, dim}), k(random, DType::kF32, {1, heads, n, dim}),
        v(random, DType::kF32, {1, heads, n, dim_v});
    q.fill(random, Values::kOrdinary);
    k.fill(random, Values::kOrdinary);
    v.fill(random, Values::kOrdinary);
    std::vector<float> sinks;
    for (int64_t h = 0; h < heads; ++h) sinks.push_back(4 * random.uniform());
    // One more dimension carries the sink: queries have 1 there, keys 0, the virtual key the sink.
    Array<4> q1(random, DType::kF32, {1, heads, n_q, dim + 1}), k1(random, DType::kF32, {1, heads, n + 1, dim + 1}),
        v1(random, DType::kF32, {1, heads, n + 1, dim_v});
    const int64_t at = random.integer(0, n);  // where the virtual key stands
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t r = 0; r < n_q; ++r) {
        for (int64_t d = 0; d <= dim; ++d) q1.set_at({0, h, r, d}, d < dim ? q.get_at({0, h, r, d}) : 1.0f);
      }
      for (int64_t t = 0; t <= n; ++t) {
        const int64_t from = t < at ? t : t - 1;
        for (int64_t d = 0; d <= dim; ++d)
          k1.set_at({0, h, t, d}, t == at   ? (d < dim ? 0.0f : sinks[static_cast<size_t>(h)])
                                  : d < dim ? k.get_at({0, h, from, d})
                                            : 0.0f);
        for (int64_t d = 0; d < dim_v; ++d) v1.set_at({0, h, t, d}, t == at ? 0.0f : v.get_at({0, h, from, d}));
      }
    }
    Array<4> out(random, DType::kF32, {1, heads, n_q, dim_v}), out1 = out.like(random);
    Array<3> lse(random, DType::kF32, {1, heads, n_q}), lse1 = lse.like(random);
    AttentionCase c;
    Attention& a = c.problem;
    a.q = q.view, a.k = k.view, a.v = v.view, a.out = out.view, a.lse = lse.view;
    a.scoring.scale = 1.0f;
    a.scoring.sinks = sinks.data();
    ASSERT_TRUE(run_attention(a, &target()).ok());
    const reference::AttentionResult exact_result = reference::attention(a);
    Attention b = a;
    b.q = q1.view, b.k = k1.view, b.v = v1.view, b.out = out1.view, b.lse = lse1.view;
    b.scoring.sinks = nullptr;
    ASSERT_TRUE(run_attention(b, &target()).ok());
    const AttentionBound bound = attention_bound(c, costs(target()));
    for (int64_t e = 0; e < exact_result.out.size(); ++e) {
      const double x = static_cast<double>(get(out.view.data, DType::kF32, e)),
                   y = static_cast<double>(get(out1.view.data, DType::kF32, e));
      ASSERT_LE(std::fabs(x - y), 2 * (bound.out * kEps * exact_result.magnitude[e] + rounding(DType::kF32, x)))
          << "case " << i << " n " << n;
    }
    for (int64_t e = 0; e < exact_result.lse.size(); ++e) {
      const double x = static_cast<double>(get(lse.view.data, DType::kF32, e)),
                   y = static_cast<double>(get(lse1.view.data, DType::kF32, e));
      ASSERT_LE(std::fabs(x - y), 2 * (bound.lse * kEps + rounding(DType::kF32, x))) << "case " << i << " n " << n;
    }
  }
}

TEST_P(Identities, FusedIsTheThreeSteps) {
  Random random(seed() * 3000 + 16);
  for (int64_t i = 0; i < cases(250); ++i) {
    AttentionLimits limits;
    limits.varlen = limits.forms = false;
    limits.max_kv = random.one_in(6) ? 600 : 60;
    const AttentionCase c = random_attention(random, limits);
    Attention a = c.problem;
    a.lse = c.lse.view;
    ASSERT_TRUE(run_attention(a, &target()).ok());
    const auto& qs = a.q.shape;
    const Array<4> s(random, DType::kF32, {qs[0], qs[1], qs[2], a.k.tokens});
    const Array<4> out = c.out.like(random);
    const Array<3> lse = c.lse.like(random);
    Scoring scoring = a.scoring;
    const ScoreOptions score_options = {.scale = scoring.scale, .arithmetic = a.arithmetic};
    ASSERT_TRUE(run_scores(a.q, c.k_rows.view, s.view, score_options, &target()).ok());
    scoring.scale = {};
    ASSERT_TRUE(masked_softmax(s.view, s.view, scoring, lse.view, exec()).ok());
    const ValueOptions value_options = {.arithmetic = a.arithmetic};
    const Status status = run_weighted_values(s.view, c.v_rows.view, out.view, value_options, &target());
    ASSERT_TRUE(status.ok()) << status.detail;
    const reference::AttentionResult formula = reference::attention(a);
    const AttentionBound bound = attention_bound(c, costs(target()));
    int64_t e = 0;
    std::string problem;
    for_each_element(out.view, [&](int64_t at) {
      const double x = static_cast<double>(get(c.out.view.data, c.out.view.dtype, at)),
                   y = static_cast<double>(get(out.view.data, out.view.dtype, at));
      const double most = 2 *
                          (bound.out * kEps * formula.magnitude[e] + weight_error(formula, e) + bound.tiny +
                           rounding(out.view.dtype, x)) *
                          (1 + 0x1p-8);
      if (!(std::fabs(x - y) <= most)) problem = "element " + std::to_string(e);
      ++e;
    });
    ASSERT_EQ(problem, "") << where(i, a);
    e = 0;
    for_each_element(lse.view, [&](int64_t at) {
      const double x = static_cast<double>(get(c.lse.view.data, DType::kF32, at)),
                   y = static_cast<double>(get(lse.view.data, DType::kF32, at));
      if (!(x == y || std::fabs(x - y) <= 2 * (bound.lse * kEps + rounding(DType::kF32, x))))
        problem = "lse " + std::to_string(e);
      ++e;
    });
    ASSERT_EQ(problem, "") << where(i, a);
  }
}

/// Attention over disjoint ranges of keys, joined; a sink in one of them or afterwards.
TEST_P(Identities, MergedPartsAreTheWhole) {
  Random random(seed() * 3000 + 17);
  for (int64_t i = 0; i < cases(200); ++i) {
    AttentionLimits limits;
    limits.varlen = limits.forms = false;
    limits.max_kv = random.one_in(8) ? 1500 : 100;
    AttentionCase c = random_attention(random, limits);
    Attention& a = c.problem;
    const int64_t n = a.k.tokens, n_q = a.q.shape[2];
    a.scoring.kv_length = a.scoring.offsets = nullptr;
    if (a.scoring.offset == kBottomRight) a.scoring.offset = n - n_q;
    a.scoring.bits = BitMask();  // its columns count from the end of the keys
    a.lse = c.lse.view;
    ASSERT_TRUE(run_attention(a, &target()).ok());
    const reference::AttentionResult formula = reference::attention(a);
    const int64_t n_parts = random.integer(1, 4);
    const auto& shape = c.out.view.shape;
    const Array<5> parts(random, DType::kF32, {n_parts, shape[0], shape[1], shape[2], shape[3]}, Strides::kOutput);
    const Array<4> part_lse(random, DType::kF32, {n_parts, shape[0], shape[1], shape[2]}, Strides::kOutput);
    const bool sinks_after = random.coin();
    const int64_t sinks_in = random.integer(0, n_parts - 1);
    int64_t first = 0;
    for (int64_t p = 0; p < n_parts; ++p) {
      const int64_t last = p + 1 == n_parts ? n : random.integer(first, n);
      Attention part = a;
      // Keys keep their numbers: a part is what lies between a start and a length.
      const std::vector<int32_t> length(static_cast<size_t>(shape[0]), static_cast<int32_t>(last));
      std::vector<int32_t> start;
      for (int64_t b = 0; b < shape[0]; ++b)
        start.push_back(
            std::max(static_cast<int32_t>(first), a.scoring.kv_start != nullptr ? a.scoring.kv_start[b] : 0));
      part.scoring.kv_start = start.data();
      part.scoring.kv_length = length.data();
      if (sinks_after || p != sinks_in) part.scoring.sinks = nullptr;
      part.out = View<4>(static_cast<float*>(parts.view.data) + p * parts.view.stride[0], DType::kF32, shape,
                         {parts.view.stride[1], parts.view.stride[2], parts.view.stride[3], 1});
      part.lse = View<3>(static_cast<float*>(part_lse.view.data) + p * part_lse.view.stride[0], DType::kF32,
                         {shape[0], shape[1], shape[2]},
                         {part_lse.view.stride[1], part_lse.view.stride[2], part_lse.view.stride[3]});
      const Status s = run_attention(part, &target());
      ASSERT_TRUE(s.ok()) << s.detail;
      first = last;
    }
    const Array<4> out = c.out.like(random);
    const Array<3> lse = c.lse.like(random);
    const Status s =
        attention_merge(parts.view, part_lse.view, out.view, lse.view, sinks_after ? a.scoring.sinks : nullptr, exec());
    ASSERT_TRUE(s.ok()) << s.detail;
    const AttentionBound bound = attention_bound(c, costs(target()));
    // The parts' own errors, and the merge: weights whose exponents carry the error of a log-sum-exp each.
    const double more = 2 * bound.lse + 2 * costs(target()).exp + 3 * static_cast<double>(n_parts) + 8;
    int64_t e = 0;
    std::string problem;
    for_each_element(out.view, [&](int64_t at) {
      const double x = static_cast<double>(get(c.out.view.data, c.out.view.dtype, at)),
                   y = static_cast<double>(get(out.view.data, out.view.dtype, at));
      const double most = 2 *
                          ((bound.out + more) * kEps * formula.magnitude[e] + weight_error(formula, e) + bound.tiny +
                           rounding(out.view.dtype, x)) *
                          (1 + 0x1p-8);
      if (!(std::fabs(x - y) <= most))
        problem = "element " + std::to_string(e) + ": " + std::to_string(x) + " " + std::to_string(y);
      ++e;
    });
    ASSERT_EQ(problem, "") << n_parts << " parts, " << where(i, a);
    e = 0;
    for_each_element(lse.view, [&](int64_t at) {
      const double x = static_cast<double>(get(c.lse.view.data, DType::kF32, at)),
                   y = static_cast<double>(get(lse.view.data, DType::kF32, at));
      if (!(x == y || std::fabs(x - y) <= 2 * ((bound.lse + more) * kEps + rounding(DType::kF32, x))))
        problem = "lse " + std::to_string(e);
      ++e;
    });
    ASSERT_EQ(problem, "") << n_parts << " parts, " << where(i, a);
  }
}

SIMDATTN_FOR_EACH_TARGET(Identities);

}  // namespace
}  // namespace simdattn::test
