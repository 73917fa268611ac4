// A problem cut into heads, rows, tasks, steps or sequences gives the bits of the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "tests/attention/identities.h"
#include "tests/support/bound_plans.h"
#include "tests/support/indices.h"

namespace simdattn::test {
namespace {

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

/// Rows [first, first + count) of a problem whose queries are [B,H,n,d]; positions become explicit.
AttentionProblem rows_of(AttentionProblem a, int64_t first, int64_t count, int64_t offset) {
  a.q = slice(a.q, 2, first, count);
  a.out = slice(a.out, 2, first, count);
  a.lse = slice(a.lse, 2, first, count);
  a.scoring.bias = mask_slice(a.scoring.bias, 2, first, count);
  a.scoring.mask = mask_slice(a.scoring.mask, 2, first, count);
  if (a.scoring.packed_mask.data != nullptr) a.scoring.packed_mask.data += first * a.scoring.packed_mask.stride[2];
  a.scoring.offset = offset + first;
  a.scoring.offsets = nullptr;
  return a;
}
void move_scales(ConstKv* kv, int64_t bytes) {
  if (kv->scales != nullptr) kv->scales = static_cast<const char*>(kv->scales) + bytes;
}

/// Batch entry b alone. Caches must not be paged.
AttentionProblem entry_of(AttentionProblem a, int64_t b) {
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
  s.mask = mask_slice(s.mask, 0, b, 1);
  if (s.packed_mask.data != nullptr) s.packed_mask.data += b * s.packed_mask.stride[0];
  if (s.offsets != nullptr) s.offsets += b;
  if (s.prefix_end != nullptr) s.prefix_end += b;
  if (s.kv_start != nullptr) s.kv_start += b;
  if (s.kv_length != nullptr) s.kv_length += b;
  return a;
}
/// Key head h with its query heads alone.
AttentionProblem head_of(AttentionProblem a, int64_t h) {
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
  s.mask = mask_slice(s.mask, 1, h * group, group);
  if (s.packed_mask.data != nullptr) s.packed_mask.data += h * group * s.packed_mask.stride[1];
  if (s.bias_scale != nullptr) s.bias_scale += h * group;
  if (s.alibi_slopes != nullptr) s.alibi_slopes += h * group;
  if (s.sinks != nullptr) s.sinks += h * group;
  return a;
}

// ---------------------------------------------------------------------------------------------------------------------
// Cuts

TEST_P(Identities, HeadsOfAGroupAreRepeatedHeads) {
  Random random(seed() * 3000 + 5);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random);
    const AttentionProblem& a = c.problem;
    const int64_t group = a.q.shape[1] / a.k.heads;
    AttentionProblem repeated = a;
    Array<4> stores[2];
    for (const bool keys : {true, false}) {
      const Array<4>& rows = keys ? c.k_rows : c.v_rows;
      const auto& shape = rows.view.shape;
      Array<4>& all = stores[keys];
      all = Array<4>(random, rows.view.dtype, {shape[0], a.q.shape[1], shape[2], shape[3]}, Strides::kOutput);
      for (const auto [b, h, t, d] : indices(shape[0], a.q.shape[1], shape[2], shape[3])) {
        set_element_bits(all.view.data, all.view.dtype, all.at({b, h, t, d}),
                         element_bits(rows.view.data, rows.view.dtype, rows.at({b, h / group, t, d})));
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
    ASSERT_TRUE(ok(run_attention(c.problem, &target())));
    Plan plan;
    ASSERT_TRUE(attention_plan(c.problem, &plan, exec()).ok());
    reduced += plan.reduce_tasks > 0;
    const Result want = {c.out.bits(), c.lse.bits()};
    c.clear();
    ASSERT_TRUE(ok(run_tasks(c.problem, &target(), random)));
    ASSERT_EQ(written(c), want) << where(i, c.problem);
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
    const AttentionProblem& a = c.problem;
    Plan whole, plan;
    ASSERT_TRUE(attention_plan(a, &whole, exec()).ok());
    Status s = attention_plan(without_arrays(a), &plan, exec());
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
      AttentionProblem next = a;
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
    const Result want = result_of(c, c.problem);
    Plan plan;
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
    ASSERT_EQ(written(c), want) << n_threads << " threads, " << where(i, c.problem);
  }
}

TEST_P(Identities, BatchEntriesAndHeadsAlone) {
  Random random(seed() * 3000 + 8);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random);
    const AttentionProblem& a = c.problem;
    const Result want = result_of(c, a);
    for (int64_t b = a.k.batch; b-- > 0;) {
      const AttentionProblem entry = entry_of(a, b);
      for (int64_t h = a.k.heads; h-- > 0;) {
        ASSERT_TRUE(ok(run_attention(head_of(entry, h), &target())));
      }
    }
    ASSERT_EQ(written(c), want) << where(i, a);
  }
}

TEST_P(Identities, DecodeRowIsPrefillRowIsChunkedPrefillRow) {
  Random random(seed() * 3000 + 9);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random);
    AttentionProblem a = c.problem;
    // One position of row 0 for all sequences, so that a cut can say it.
    a.scoring.offsets = nullptr;
    if (a.scoring.offset == kBottomRight) a.scoring.kv_length = nullptr;
    const int64_t n_q = a.q.shape[2], n_kv = a.k.capacity;
    const int64_t offset = a.scoring.offset == kBottomRight ? n_kv - n_q : a.scoring.offset;
    const Result want = result_of(c, a);
    for (int64_t r = 0; r < n_q; ++r) ASSERT_TRUE(run_attention(rows_of(a, r, 1, offset), &target()).ok());
    ASSERT_EQ(written(c), want) << "row by row, " << where(i, a);
    c.clear();
    for (int64_t r = 0; r < n_q;) {
      const int64_t count = random.integer(1, n_q - r);
      ASSERT_TRUE(run_attention(rows_of(a, r, count, offset), &target()).ok());
      r += count;
    }
    ASSERT_EQ(written(c), want) << "in chunks, " << where(i, a);
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
    Array<4> q(random, q_type, {batch, heads, n, dim}, Values::kOrdinary, Strides::kOutput);
    Array<4> k(random, random.storage(), {batch, kv_heads, n, dim}, Values::kOrdinary, Strides::kOutput);
    Array<4> v(random, random.storage(), {batch, kv_heads, n, dim_v}, Values::kOrdinary, Strides::kOutput);
    Array<2> cosine(random, DType::kF32, {n, half}, Values::kOrdinary),
        sine(random, DType::kF32, {n, half}, Values::kOrdinary);

    // Whole: rotate and convert with rope(), one causal call.
    Array<4> k_all(random, k_type, {batch, kv_heads, n, dim}), v_all(random, v_type, {batch, kv_heads, n, dim_v});
    ASSERT_TRUE(rope(k.view, cosine.view, sine.view, {}, k_all.view, {}, exec()).ok());
    const Array<2> none_cos(random, DType::kF32, {n, 0}), none_sin(random, DType::kF32, {n, 0});
    ASSERT_TRUE(rope(v.view, none_cos.view, none_sin.view, {}, v_all.view, {}, exec()).ok());
    AttentionProblem whole;
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
      AttentionProblem step = whole;
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
    const AttentionProblem& a = c.problem;
    if (a.cu_q == nullptr) continue;
    ++packed;
    const Result want = result_of(c, a);
    for (int64_t s = 0; s < a.n_sequences; ++s) {
      const int64_t first = a.cu_q[s], count = a.cu_q[s + 1] - first;
      AttentionProblem alone = a;
      alone.cu_q = alone.cu_k = nullptr;
      for (ConstKv* kv : {&alone.k, &alone.v}) {
        kv->batch = 1;
        if (a.cu_k != nullptr) {
          kv->data = static_cast<const char*>(kv->data) + a.cu_k[s] * kv->token_stride;
          move_scales(kv, a.cu_k[s] * kv->scale_token_stride);
          kv->capacity = a.cu_k[s + 1] - a.cu_k[s];
        } else if (kv->page_size > 0) {
          const int64_t tight = (kv->capacity + kv->page_size - 1) / kv->page_size;
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
      r.mask = mask_slice(r.mask, 3, 0, n_kv);
      const int64_t keep_offset = offset - first;
      ASSERT_TRUE(ok(run_attention(rows_of(alone, first, count, keep_offset), &target())))
          << " sequence " << s << " of " << where(i, a);
    }
    ASSERT_EQ(written(c), want) << where(i, a);
  }
  EXPECT_GE(packed, 1);
}

}  // namespace
}  // namespace simdattn::test
