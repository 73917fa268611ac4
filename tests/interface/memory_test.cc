// What a call touches: nothing outside its arguments, no key that no row can see, no input for writing.
//
// The buffers of every suite lie against inaccessible pages (tests/support/guarded.h); here they also become read-only,
// the unseen parts of caches inaccessible, workspaces exactly as long as was asked for at every alignment.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "simdattn/extras.h"
#include "tests/support/indices.h"
#include "tests/support/pages.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

class Memory : public TargetTest {};

// ---------------------------------------------------------------------------------------------------------------------
// Inputs are only read, workspaces are as long as was said

TEST_P(Memory, InputsAreOnlyRead) {
  Random random(seed() * 4000 + 2);
  for (int64_t i = 0; i < cases(300); ++i) {
    AttentionLimits limits;
    limits.values = Values::kSpecial;
    AttentionCase c = random_attention(random, limits);
    for (Guarded* m :
         {&c.q.memory, &c.k.memory, &c.v.memory, &c.k.scales, &c.v.scales, &c.k.table.memory, &c.v.table.memory,
          &c.cu_q.memory, &c.cu_k.memory, &c.scoring.offsets.memory, &c.scoring.prefix_end.memory,
          &c.scoring.kv_start.memory, &c.scoring.kv_length.memory, &c.scoring.slopes.memory, &c.scoring.sinks.memory,
          &c.scoring.bias.memory, &c.scoring.bias_scale.memory, &c.scoring.mask.memory, &c.scoring.packed_mask}) {
      m->read_only();
    }
    ASSERT_TRUE(ok(run_attention(c.problem, &target())));
    ASSERT_TRUE(c.out.gaps_intact() && c.lse.gaps_intact()) << describe(c.problem);
    Array<4> x(random, DType::kF32, {1, 2, random.integer(0, 5), random.size(0, 60)}, Strides::kInput),
        y(random, DType::kF32, x.view.shape, Strides::kOutput);
    x.fill(random, Values::kSpecial);
    x.memory.read_only();
    ASSERT_TRUE(masked_softmax(x.view, y.view, {.causal = true}, {}, exec()).ok());
    Array<4> v(random, random.storage(), {1, 1, x.view.shape[3], random.size(1, 50)}, Values::kSpecial,
               Strides::kInput);
    v.memory.read_only();
    Array<4> out(random, random.storage(), {1, 2, x.view.shape[2], v.view.shape[3]}, Strides::kOutput);
    const ValueOptions options = {.arithmetic = random_arithmetic(random)};
    ASSERT_TRUE(run_weighted_values(x.view, v.view, out.view, options, &target()).ok());
    ASSERT_TRUE(out.gaps_intact() && y.gaps_intact());
    Array<4> q(random, random.storage(), {1, 2, x.view.shape[2], v.view.shape[3]}, Values::kSpecial, Strides::kInput);
    q.memory.read_only();
    ASSERT_TRUE(run_scores(q.view, v.view, y.view, {.arithmetic = options.arithmetic}, &target()).ok());
    ASSERT_TRUE(y.gaps_intact());
  }
}

TEST_P(Memory, WorkspaceOfAnyAlignment) {
  Random random(seed() * 4000 + 3);
  AttentionLimits limits;
  limits.max_kv = 2600;
  limits.max_batch = 1;
  limits.max_q = 3;
  limits.max_dim = 50;
  for (size_t shift = 0; shift < 64; ++shift) {
    const AttentionCase c = random_attention(random, limits);
    Plan plan;
    ASSERT_TRUE(attention_plan(c.problem, &plan, exec()).ok());
    ASSERT_TRUE(run_attention(c.problem, &target()).ok());
    const std::vector<uint64_t> want = c.out.bits();
    for (const Guard guard : {Guard::kBefore, Guard::kAfter}) {
      // Exactly the bytes that were asked for, `shift` bytes from one of the guard pages; the bytes between hold a
      // pattern.
      const auto at = [&](const Guarded& memory) {
        return guard == Guard::kBefore ? memory.data() + shift : memory.data();
      };
      const auto intact = [&](const Guarded& memory, size_t bytes) {
        for (size_t b = 0; b < shift; ++b) {
          if (memory.data()[guard == Guard::kBefore ? b : bytes + b] != Guarded::kCanary) return false;
        }
        return true;
      };
      const Guarded workspace(plan.workspace_bytes + shift, guard), partial(plan.partial_bytes + shift, guard);
      for (const Guarded* m : {&workspace, &partial}) std::memset(m->data(), Guarded::kCanary, m->size());
      const Exec e = {.target = &target(), .workspace = at(workspace), .workspace_bytes = plan.workspace_bytes};
      c.clear();
      ASSERT_TRUE(attention(c.problem, e).ok());
      ASSERT_EQ(c.out.bits(), want) << "shift " << shift << ", " << describe(c.problem);
      c.clear();
      ASSERT_TRUE(attention_range(plan, 0, plan.tasks, at(partial), plan.partial_bytes, e).ok());
      ASSERT_TRUE(attention_reduce(plan, 0, plan.reduce_tasks, at(partial), plan.partial_bytes, e).ok());
      ASSERT_EQ(c.out.bits(), want) << "tasks, shift " << shift << ", " << describe(c.problem);
      ASSERT_TRUE(intact(workspace, plan.workspace_bytes) && intact(partial, plan.partial_bytes)) << "shift " << shift;
    }
  }
}

TEST_P(Memory, WorkspaceIsConstantInTheLengths) {
  size_t bytes = 0;
  for (const int64_t n : {int64_t{5000}, int64_t{50000}, int64_t{1} << 20}) {
    AttentionProblem a;
    float unused = 0;
    a.q = ConstView<4>(&unused, DType::kF32, {1, 8, 1, 128});
    a.k = ConstView<4>(&unused, DType::kF32, {1, 2, n, 128});
    a.v = a.k;
    a.out.dtype = DType::kF32;
    Plan plan;
    ASSERT_TRUE(attention_plan(a, &plan, exec()).ok());
    if (bytes == 0) bytes = plan.workspace_bytes;
    ASSERT_EQ(plan.workspace_bytes, bytes);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Keys that no row can see

/// Rows of 4096 bytes, so that each key has a page of its own; keys outside [lo, hi), rounded outwards to whole panels,
/// become inaccessible.
class PagedKeys {
 public:
  PagedKeys(Random& random, int64_t n, int64_t dim) : dim_(dim), row_(static_cast<int64_t>(Guarded::page()) / 4) {
    bytes_ = static_cast<size_t>(n * row_ * 4);
    base_ = static_cast<float*>(map_pages(bytes_, Access::kWrite));
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t d = 0; d < dim; ++d) base_[t * row_ + d] = random.uniform();
    }
  }
  PagedKeys(const PagedKeys&) = delete;
  PagedKeys& operator=(const PagedKeys&) = delete;
  ~PagedKeys() { unmap_pages(base_, bytes_); }
  void close(int64_t lo, int64_t hi) {
    const int64_t n = static_cast<int64_t>(bytes_) / 4 / row_;
    lo = lo / kPanelWidth * kPanelWidth;
    hi = std::min(n, (hi + kPanelWidth - 1) / kPanelWidth * kPanelWidth);
    if (lo > 0) protect_pages(base_, static_cast<size_t>(lo * row_ * 4), Access::kNone);
    if (hi < n) protect_pages(base_ + hi * row_, static_cast<size_t>((n - hi) * row_ * 4), Access::kNone);
  }
  /// The same for keys that `seen` has not: in each block of 256 those before its first and behind its last eight keys
  /// of which one is seen, if they are 32 or more. If all rows see the same keys: of blocks of which they see a
  /// quarter, or less, all others as well.
  void close_hidden(const std::vector<bool>& seen, bool same) {
    const auto close = [&](int64_t from, int64_t to) {
      if (from < to) protect_pages(base_ + from * row_, static_cast<size_t>((to - from) * row_ * 4), Access::kNone);
    };
    const int64_t n = static_cast<int64_t>(seen.size());
    for (int64_t t = 0; t < n; t += kKeyBlock) {
      const int64_t end = std::min(n, t + kKeyBlock);
      int64_t first = end, last = t, count = 0;
      for (int64_t j = t; j < end; ++j) {
        if (!seen[static_cast<size_t>(j)]) continue;
        first = std::min(first, j / 8 * 8);
        last = std::min(end, j / 8 * 8 + 8);
        ++count;
      }
      if (count > 0 && first - t < 32) first = t;
      if (count > 0 && end - last < 32) last = end;
      close(t, first);
      close(std::max(first, last), end);
      if (!same || last - first <= 64 || 4 * count > last - first) continue;
      for (int64_t j = first; j < last; ++j) close(j, seen[static_cast<size_t>(j)] ? j : j + 1);
    }
  }
  void close_all_but(const std::vector<bool>& open) {
    for (size_t t = 0; t < open.size(); ++t) {
      if (!open[t]) protect_pages(base_ + static_cast<int64_t>(t) * row_, static_cast<size_t>(row_ * 4), Access::kNone);
    }
  }
  ConstView<4> view(int64_t n) const { return {base_, DType::kF32, {1, 1, n, dim_}, {0, 0, row_, 1}}; }

 private:
  int64_t dim_;
  int64_t row_;
  size_t bytes_;
  float* base_;
};

TEST_P(Memory, KeysThatNoRowSeesAreNotTouched) {
  Random random(seed() * 4000 + 4);
  for (int64_t i = 0; i < cases(80); ++i) {
    const int64_t n = random.integer(40, random.one_in(5) ? 2300 : 700), n_q = random.integer(1, 6),
                  dim = random.integer(1, 20);
    PagedKeys k(random, n, dim), v(random, n, dim);
    const Array<4> q(random, DType::kF32, {1, 2, n_q, dim}), out = q.like(random);
    q.fill(random, Values::kOrdinary);
    Scoring s;
    const int32_t length = static_cast<int32_t>(random.integer(0, n)),
                  start = static_cast<int32_t>(random.integer(0, n));
    s.offset = random.integer(0, n);
    switch (random.integer(0, 4)) {
      case 0: s.kv_length = &length; break;
      case 1: s.kv_start = &start; break;
      case 2: s.causal = true; break;
      case 3: s.window_left = random.integer(0, 60), s.window_right = random.integer(0, 60); break;
      default: s.chunk = random.integer(1, 200); break;
    }
    if (random.coin()) s.causal = true;
    // The keys between the first and the last one that some row sees. (n = 1: one reference row per key is enough.)
    reference::Tensor seen;
    (void)reference::modified_scores(reference::Tensor({1, 1, n_q, n}), s, &seen);
    int64_t lo = n, hi = 0;
    for (int64_t e = 0; e < seen.size(); ++e) {
      if (seen[e] != 0) lo = std::min(lo, e % n), hi = std::max(hi, e % n + 1);
    }
    AttentionProblem a;
    a.q = q.view, a.k = k.view(n), a.v = v.view(n), a.out = out.view;
    a.scoring = s;
    ASSERT_TRUE(run_attention(a, &target()).ok());
    const std::vector<uint64_t> want = out.bits();
    out.fill_bytes(0);
    k.close(std::min(lo, hi), hi);
    v.close(std::min(lo, hi), hi);
    ASSERT_TRUE(run_attention(a, &target()).ok());
    ASSERT_EQ(out.bits(), want) << describe(a);
    Random order(static_cast<uint64_t>(i));
    ASSERT_TRUE(run_tasks(a, &target(), order).ok());
    ASSERT_EQ(out.bits(), want) << describe(a);
  }
}

TEST_P(Memory, KeysThatMasksHideAreNotTouched) {
  Random random(seed() * 4000 + 14);
  for (int64_t i = 0; i < cases(80); ++i) {
    const int64_t n = random.integer(40, random.one_in(5) ? 2300 : 700), n_q = random.of<int64_t>({1, 2, 6, 20}),
                  dim = random.integer(1, 20);
    PagedKeys k(random, n, dim), v(random, n, dim);
    const int64_t heads = random.of<int64_t>({1, 4});
    const Array<4> q(random, DType::kF32, {1, heads, n_q, dim}), out = q.like(random);
    q.fill(random, Values::kOrdinary);
    // Rows see runs of keys; some of them the same.
    const Array<4> keep(random, DType::kU8, {1, 1, n_q, n}), bias(random, random.storage(), {1, 1, n_q, n});
    std::vector<uint8_t> bits(static_cast<size_t>(n_q * ((n + 7) / 8)), 0);
    std::vector<bool> seen(static_cast<size_t>(n), false);
    const int64_t run = random.of<int64_t>({1, 20, 64, 256, 300}), of = random.of<int64_t>({3, 8, 50, 300}),
                  shift = random.of<int64_t>({0, 0, run});
    for (const auto [r, t] : indices(n_q, n)) {
      const bool sees = (t + r * shift) / run % of == 0;
      set_element_bits(keep.view.data, DType::kU8, keep.at({0, 0, r, t}), sees ? 1 : 0);
      bias.set_at({0, 0, r, t}, sees ? 0.5f : -std::numeric_limits<float>::infinity());
      uint8_t& byte = bits[static_cast<size_t>(r * ((n + 7) / 8) + t / 8)];
      byte = static_cast<uint8_t>(byte | (sees ? 1 << t % 8 : 0));
      if (sees) seen[static_cast<size_t>(t)] = true;
    }
    AttentionProblem a;
    a.q = q.view, a.k = k.view(n), a.v = v.view(n), a.out = out.view;
    const int64_t way = random.integer(0, 3);
    for (const auto [x, t] : indices(way == 3 ? n_q : 0, n)) {  // what both hide, one of them does
      if (t % 2 == 0) set_element_bits(keep.view.data, DType::kU8, keep.at({0, 0, x, t}), 1);
      else bias.set_at({0, 0, x, t}, 0.5f);
    }
    if (way == 0 || way == 3) a.scoring.mask = keep.view;
    if (way % 2 == 1) a.scoring.bias = bias.view;
    if (way == 2) a.scoring.packed_mask = {bits.data(), n, {0, 0, (n + 7) / 8}};
    ASSERT_TRUE(run_attention(a, &target()).ok());
    const std::vector<uint64_t> want = out.bits();
    out.fill_bytes(0);
    const bool gathers = shift == 0 && (heads == 4 || n_q <= 4);
    k.close_hidden(seen, gathers);
    v.close_hidden(seen, gathers);
    ASSERT_TRUE(run_attention(a, &target()).ok());
    ASSERT_EQ(out.bits(), want) << describe(a);
    Random order(static_cast<uint64_t>(i));
    ASSERT_TRUE(run_tasks(a, &target(), order).ok());
    ASSERT_EQ(out.bits(), want) << describe(a);
  }
}

TEST_P(Memory, ListedKeysThatNoRowSeesAreNotTouched) {
  Random random(seed() * 4000 + 15);
  for (int64_t i = 0; i < cases(80); ++i) {
    const int64_t n = random.integer(40, random.one_in(5) ? 2300 : 700), dim = random.integer(1, 20);
    const int64_t n_q = random.integer(1, 3), heads = random.of<int64_t>({1, 4});
    PagedKeys k(random, n, dim), v(random, n, dim);
    const Array<4> q(random, DType::kF32, {1, heads, n_q, dim}), out = q.like(random);
    q.fill(random, Values::kOrdinary);
    AttentionProblem a;
    a.q = q.view, a.k = k.view(n), a.v = v.view(n), a.out = out.view;
    Scoring& s = a.scoring;
    const int32_t length = static_cast<int32_t>(random.integer(n / 2, n)),
                  start = static_cast<int32_t>(random.integer(0, n / 2));
    s.offset = random.integer(0, n - 1);
    if (random.coin()) s.kv_length = &length;
    if (random.coin()) s.kv_start = &start;
    if (random.coin()) s.causal = true;
    if (random.coin()) s.window_left = random.integer(0, n / 2);
    // Lists ascend, and often have all keys. Each row has its own, or all rows share one. Of a shared list those keys
    // are read that lie between the first and the last one that some row sees.
    const bool same = random.coin();
    const int64_t size = random.of<int64_t>({1, 1, 4, 32}), end = (s.kv_length != nullptr ? length : n) / size,
                  entries = std::min(end, random.of<int64_t>({1, 100, n, n}));
    std::vector<int32_t> lists;
    for (int64_t r = 0; r < (same ? 1 : n_q); ++r) {
      int64_t chosen = 0;
      for (int64_t e = 0; e < end; ++e) {
        if (random.integer(0, end - e - 1) >= entries - chosen) continue;
        lists.push_back(static_cast<int32_t>(e));
        ++chosen;
      }
    }
    a.lists = {.data = lists.data(),
               .heads = 1,
               .length = entries,
               .block_size = size,
               .stride = {same ? entries : n_q * entries, 0, same ? 0 : entries}};
    reference::Tensor seen;
    (void)reference::modified_scores(reference::Tensor({1, 1, n_q, n}), s, &seen);
    std::vector<int64_t> lo(static_cast<size_t>(n_q), n), hi(static_cast<size_t>(n_q), 0);
    for (int64_t e = 0; e < seen.size(); ++e) {
      if (seen[e] == 0) continue;
      const auto r = static_cast<size_t>(same ? 0 : e / n);
      lo[r] = std::min(lo[r], e % n), hi[r] = std::max(hi[r], e % n + 1);
    }
    std::vector<bool> open(static_cast<size_t>(n), false);
    for (size_t x = 0; x < lists.size(); ++x) {
      const size_t r = x / static_cast<size_t>(entries);
      for (int64_t t = lists[x] * size; t < (lists[x] + 1) * size; ++t) {
        if (t >= lo[r] && t < hi[r]) open[static_cast<size_t>(t)] = true;
      }
    }
    ASSERT_TRUE(ok(run_attention(a, &target()))) << describe(a);
    const std::vector<uint64_t> want = out.bits();
    out.fill_bytes(0);
    k.close_all_but(open);
    v.close_all_but(open);
    ASSERT_TRUE(run_attention(a, &target()).ok());
    ASSERT_EQ(out.bits(), want) << describe(a);
  }
}

TEST_P(Memory, PagesThatNoRowSeesNeedNotExist) {
  Random random(seed() * 4000 + 5);
  for (int64_t i = 0; i < cases(100); ++i) {
    // A sliding window over paged caches: pages before the window were given back, pages behind the length do not
    // exist.
    const int64_t n = random.integer(100, 900), left = random.integer(0, 100), dim = random.integer(1, 20);
    const Array<4> rows(random, random.storage(), {1, 1, n, dim}, Values::kOrdinary);
    const Array<4> q(random, DType::kF32, {1, 3, 1, dim}), out = q.like(random);
    q.fill(random, Values::kOrdinary);
    const KvStorage k = store_kv(random, rows, random.of({KvForm::kPagedPanels, KvForm::kPagedRows})),
                    v = store_kv(random, rows, KvForm::kPagedRows);
    const int32_t length = static_cast<int32_t>(random.integer(1, n));
    AttentionProblem a;
    a.q = q.view, a.k = k.kv, a.v = v.kv, a.out = out.view;
    a.scoring.causal = true;
    a.scoring.window_left = left;
    a.scoring.kv_length = &length;
    ASSERT_TRUE(run_attention(a, &target()).ok());
    const std::vector<uint64_t> want = out.bits();
    for (const KvStorage* s : {&k, &v}) {
      const int64_t pages = (n + s->kv.page_size - 1) / s->kv.page_size;
      for (int64_t p = 0; p < pages; ++p) {
        if ((p + 1) * s->kv.page_size <= length - 1 - left || p * s->kv.page_size >= length)
          s->table.data()[p] = random.of({-1, 1 << 30, -123456});
      }
    }
    ASSERT_TRUE(ok(run_attention(a, &target())));
    ASSERT_EQ(out.bits(), want) << describe(a);
  }
}

TEST_P(Memory, WhatMaskedKeysHoldDoesNotMatter) {
  Random random(seed() * 4000 + 6);
  int64_t poisoned = 0;
  for (int64_t i = 0; i < cases(400); ++i) {
    AttentionLimits limits;
    limits.varlen = limits.forms = false;
    if (random.one_in(5)) limits.max_kv = 1500, limits.max_batch = 1, limits.max_q = 30;
    AttentionCase c = random_attention(random, limits);
    AttentionProblem& a = c.problem;
    a.lse = c.lse.view;
    const KvStorage k = store_kv(random, c.k_rows,
                                 random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels}));
    const KvStorage v = store_kv(random, c.v_rows, random.of({KvForm::kRows, KvForm::kPagedRows}));
    a.k = k.kv;
    a.v = v.kv;
    ASSERT_TRUE(run_attention(a, &target()).ok());
    const std::vector<uint64_t> want = c.out.bits(), want_lse = c.lse.bits();
    reference::Tensor seen;
    const int64_t batch = a.k.batch, heads = a.q.shape[1], n_q = a.q.shape[2], n = a.k.capacity,
                  group = heads / a.k.heads;
    (void)reference::modified_scores(reference::Tensor({batch, heads, n_q, n}), a.scoring, &seen);
    for (const auto [b, h, t] : indices(batch, a.k.heads, n)) {
      bool used = false;
      for (int64_t g = 0; g < group; ++g) {
        for (int64_t r = 0; r < n_q; ++r) used = used || seen.at({b, h * group + g, r, t}) != 0;
      }
      if (used) continue;
      ++poisoned;
      const float garbage = random.of({std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                       -3e38f, std::numeric_limits<float>::max()});  // which is infinite as bf16
      for (int64_t d = 0; d < a.k.dim; ++d) put(k.kv.data, k.dtype(), k.at(b, h, t, d), garbage);
      for (int64_t d = 0; d < a.v.dim; ++d) put(v.kv.data, v.dtype(), v.at(b, h, t, d), garbage);
    }
    c.clear();
    ASSERT_TRUE(run_attention(a, &target()).ok());
    ASSERT_EQ(c.out.bits(), want) << "case " << i << ": " << describe(a);
    ASSERT_EQ(c.lse.bits(), want_lse) << "case " << i << ": " << describe(a);
  }
  EXPECT_GT(poisoned, 0);
}

/// A key that one row sees and another does not may hold NaN: it shows in the first row only. Nor do others see the
/// largest number, which is infinite as bf16.
TEST_P(Memory, NaNReachesOnlyTheRowsThatSeeIt) {
  Random random(seed() * 4000 + 7);
  for (int64_t i = 0; i < cases(300); ++i) {
    AttentionLimits limits;
    limits.varlen = limits.forms = limits.narrow = false;
    limits.scoring.per_sequence = random.coin();
    if (random.one_in(5)) limits.max_kv = 1500, limits.max_batch = 1;
    AttentionCase c = random_attention(random, limits);
    AttentionProblem& a = c.problem;
    a.lse = c.lse.view;
    if (random.coin()) {  // intervals alone go another way through the tiles
      a.scoring.softcap = 0;
      a.scoring.bias = a.scoring.mask = ConstView<4>();
      a.scoring.bias_scale = nullptr;
      a.scoring.packed_mask = PackedMask();
      a.scoring.alibi_slopes = nullptr;
    }
    const int64_t batch = a.k.batch, heads = a.q.shape[1], n_q = a.q.shape[2], dim_v = a.v.dim;
    const int64_t n = a.k.capacity;
    if (n == 0) continue;
    ASSERT_TRUE(run_attention(a, &target()).ok());
    const std::vector<uint64_t> want = c.out.bits(), want_lse = c.lse.bits();
    reference::Tensor seen;
    (void)reference::modified_scores(reference::Tensor({batch, heads, n_q, n}), a.scoring, &seen);
    // Mostly a token that some rows see and others do not.
    std::vector<int64_t> partly;
    for (int64_t t = 0; t < n; ++t) {
      int64_t rows = 0;
      for (int64_t r = 0; r < batch * heads * n_q; ++r) rows += seen[r * n + t] != 0;
      if (rows > 0 && rows < batch * heads * n_q) partly.push_back(t);
    }
    const int64_t token = partly.empty() || random.one_in(4)
                              ? random.integer(0, n - 1)
                              : partly[static_cast<size_t>(random.integer(0, static_cast<int64_t>(partly.size()) - 1))];

    const bool in_key = random.coin();
    const bool largest = random.one_in(3);
    const float poison = largest ? std::numeric_limits<float>::max() : std::numeric_limits<float>::quiet_NaN();
    const KvStorage& store = in_key ? c.k : c.v;
    const int64_t column = random.integer(0, store.kv.dim - 1);
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < a.k.heads; ++h) put(store.kv.data, store.dtype(), store.at(b, h, token, column), poison);
    }
    c.clear();
    ASSERT_TRUE(run_attention(a, &target()).ok());
    const std::vector<uint64_t> out = c.out.bits(), lse = c.lse.bits();
    const uint64_t nan = a.out.dtype == DType::kF32 ? 0x7FC00000u : a.out.dtype == DType::kBF16 ? 0x7FC0u : 0x7E00u;
    for (int64_t r = 0; r < batch * heads * n_q; ++r) {
      const bool sees = seen[r * n + token] != 0;
      for (int64_t d = 0; d < dim_v; ++d) {
        const size_t e = static_cast<size_t>(r * dim_v + d);
        const bool is_nan = sees && (in_key || d == column || a.arithmetic == Arithmetic::kInt8);  // one scale a value
        if (is_nan && largest) continue;
        ASSERT_EQ(out[e], is_nan ? nan : want[e])
            << "row " << r << ", column " << d << ", NaN in " << (in_key ? "key " : "value ") << token << ", case " << i
            << ": " << describe(a);
      }
      if (sees && in_key && largest) continue;
      ASSERT_EQ(lse[static_cast<size_t>(r)], sees && in_key ? 0x7FC00000u : want_lse[static_cast<size_t>(r)])
          << "row " << r << ", case " << i << ": " << describe(a);
    }
  }
}

SIMDATTN_FOR_EACH_TARGET(Memory);

}  // namespace
}  // namespace simdattn::test
