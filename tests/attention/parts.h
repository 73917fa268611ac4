// The parts of a key block's life, one by one: a small problem, divided as attention() divides it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "lib/drivers/attention/key_block.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn::test {

/// Queries of one sequence, `group` heads of which share the one key head. Keys and values have the numbers `k` and
/// `v`.
struct SmallProblem {
  int64_t group, n_q, n_kv, dim;
  std::vector<float> q, k, v, out;
  KvStorage k_store, v_store;
  AttentionProblem a;
  Division division;
  std::vector<char> bytes;
  std::unique_ptr<AttentionRun> run;

  SmallProblem(Random& random, KvType type, KvForm form, const Scoring& scoring, int64_t heads, int64_t rows,
               int64_t keys, int64_t d, const Target& target)
      : group(heads), n_q(rows), n_kv(keys), dim(d), q(random_floats(random, heads * rows * d)), out(q.size()) {
    const KvForm value_form = in_rows(form) ? form : KvForm::kPagedRows;
    k_store = make_kv(random, type, form, 1, 1, keys, d);
    v_store = make_kv(random, type, value_form, 1, 1, keys, d);
    k = stored(random, k_store.kv, target);
    v = stored(random, v_store.kv, target);
    a.q = view(q.data(), {1, heads, rows, d});
    a.k = k_store.kv;
    a.v = v_store.kv;
    a.out = view(out.data(), {1, heads, rows, d});
    a.scoring = scoring;
    ProblemBytes arrays;
    Status status = check_attention(a, Data::kNeeded, &division.sizes, &arrays);
    if (status.ok()) status = divide(a, 1, &division);
    EXPECT_TRUE(status.ok()) << status.detail;
    const UKernels& uk = *target.kernels;
    bytes.resize(AttentionRun{a, division, uk, nullptr}.memory.w.bytes());
    run.reset(new AttentionRun{a, division, uk, bytes.data()});
  }

  static std::vector<float> random_floats(Random& random, int64_t n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& value : x) value = random.uniform();
    return x;
  }
  /// Fills a store with random rows; the numbers that it holds then.
  std::vector<float> stored(Random& random, const Kv& kv, const Target& target) const {
    std::vector<float> rows = random_floats(random, n_kv * dim);
    const ConstView<4> from = view(static_cast<const float*>(rows.data()), {1, 1, n_kv, dim});
    EXPECT_TRUE(kv_append(from, {}, kv, {}, {.target = &target}).ok());
    EXPECT_TRUE(kv_read(kv, 0, view(rows.data(), {1, 1, n_kv, dim}), {.target = &target}).ok());
    return rows;
  }
  float key(int64_t j, int64_t d) const { return k[static_cast<size_t>(j * dim + d)]; }
  float value(int64_t j, int64_t d) const { return v[static_cast<size_t>(j * dim + d)]; }
  /// Row r of the first row block.
  float query(const RowBlock& rows, int64_t r, int64_t d) const {
    return q[static_cast<size_t>((rows.head_of(r) * n_q + rows.position_of(r)) * dim + d)];
  }
};

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// The key block at `base` of a problem without lists, at which nobody has looked.
inline KeyBlock block_of(const RowBlock& rows, int64_t base) {
  return {base, nullptr, {rows.k_store, base}, {rows.v_store, base}};
}

}  // namespace simdattn::test
