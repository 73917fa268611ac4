#include "tests/support/problems.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "tests/support/bound_plans.h"
#include "tests/support/reference.h"

namespace simdattn::test {

std::string hex(uint64_t bits) {
  char text[24];
  std::snprintf(text, sizeof text, "%08llx", static_cast<unsigned long long>(bits));
  return text;
}

namespace {

bool in_ring(KvForm form) { return form == KvForm::kRingRows || form == KvForm::kRingPanels; }

/// Lets the sequences begin with the same pages, those of the first one: a prompt that all share.
void share_pages(Random& random, const KvStorage& s, const Array<4>& rows) {
  const auto& shape = rows.view.shape;
  if (s.kv.page_size == 0 || shape[2] < s.kv.page_size) return;
  const int64_t tokens = random.integer(1, shape[2] / s.kv.page_size) * s.kv.page_size;
  for (int64_t b = 1; b < shape[0]; ++b) {
    for (int64_t t = 0; t < tokens; ++t) {
      s.page(b, t) = s.page(0, t);
      for (int64_t h = 0; h < shape[1]; ++h) {
        for (int64_t d = 0; d < shape[3]; ++d) rows.set_at({b, h, t, d}, rows.get_at({0, h, t, d}));
      }
    }
  }
}

}  // namespace

AttentionCase random_attention(Random& random, const AttentionLimits& limits) {
  AttentionCase c;
  const int64_t batch = random.integer(1, limits.max_batch);
  const int64_t kv_heads = random.integer(1, limits.max_kv_heads);
  const int64_t heads = kv_heads * random.integer(1, limits.max_group);
  // Whole blocks now and then.
  const auto some_dim = [&] {
    const int64_t size = random.size(1, limits.max_dim);
    return limits.narrow && limits.max_dim >= 32 && random.coin() ? (size + 31) / 32 * 32 : size;
  };
  const int64_t dim = some_dim();
  const int64_t dim_v = random.coin() ? dim : some_dim();
  const bool packed_q = limits.varlen && random.one_in(3);
  const bool packed_k = packed_q && random.coin();
  ScoringShapes shapes;
  shapes.heads = heads;
  const int64_t common_q = random.coin() ? random.integer(0, 3) : random.integer(0, limits.max_q);
  const int64_t common_kv = random.size(0, limits.max_kv);
  for (int64_t b = 0; b < batch; ++b) {
    shapes.n_q.push_back(packed_q ? random.integer(0, limits.max_q) : common_q);
    shapes.n_kv.push_back(packed_k ? random.size(0, limits.max_kv) : common_kv);
  }
  const int64_t total_q = std::accumulate(shapes.n_q.begin(), shapes.n_q.end(), int64_t{0});
  const int64_t total_k = std::accumulate(shapes.n_kv.begin(), shapes.n_kv.end(), int64_t{0});
  shapes.mask_batch = packed_q ? 1 : batch;
  shapes.mask_rows = packed_q ? total_q : common_q;
  shapes.mask_columns = *std::max_element(shapes.n_kv.begin(), shapes.n_kv.end());
  c.scoring = random_scoring(random, shapes, limits.scoring);

  const int64_t rows_batch = packed_q ? 1 : batch;
  c.q = Array<4>(random, random.storage(), {rows_batch, heads, shapes.mask_rows, dim}, Strides::kInput);
  c.q.fill(random, limits.values);
  c.out = Array<4>(random, random.storage(), {rows_batch, heads, shapes.mask_rows, dim_v}, Strides::kOutput);
  c.lse = Array<3>(random, DType::kF32, {rows_batch, heads, shapes.mask_rows}, Strides::kOutput);
  const std::array<int64_t, 4> k_shape = {packed_k ? 1 : batch, kv_heads, packed_k ? total_k : common_kv, dim};
  std::array<int64_t, 4> v_shape = k_shape;
  v_shape[3] = dim_v;
  c.k_rows = Array<4>(random, random.storage(), k_shape);
  c.v_rows = Array<4>(random, random.coin() ? c.k_rows.view.dtype : random.storage(), v_shape);
  c.k_rows.fill(random, limits.values);
  c.v_rows.fill(random, limits.values);
  KvForm k_form = KvForm::kRows, v_form = KvForm::kRows;
  if (limits.forms && !packed_k) {
    k_form = random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels});
    v_form = random.of({KvForm::kRows, KvForm::kPagedRows});
    if (limits.rings && random.one_in(3)) k_form = random.of({KvForm::kRingRows, KvForm::kRingPanels});
    if (limits.rings && random.one_in(3)) v_form = KvForm::kRingRows;
  }
  const auto narrow = [&](Array<4>& rows, KvForm form) {
    const KvType type = random_narrow_type(random, in_rows(form));
    if (!limits.narrow || !random.one_in(3) || rows.view.shape[3] % reference::codes_of(type).numbers != 0) {
      return kv_type_of(rows.view.dtype);
    }
    rows = Array<4>(random, DType::kF32, rows.view.shape);
    return type;
  };
  const KvType k_type = narrow(c.k_rows, k_form), v_type = narrow(c.v_rows, v_form);
  const bool k_ring = in_ring(k_form), v_ring = in_ring(v_form);
  const auto spare = [&](bool ring) {
    return limits.forms && !packed_k && !ring && random.one_in(4) ? random.integer(1, 70) : 0;
  };
  const int64_t k_spare = spare(k_ring), v_spare = spare(v_ring);
  const int64_t ring = random.integer(1, common_kv + 1);
  const auto store = [&](KvType type, const Array<4>& rows, KvForm form, int64_t more) {
    KvStorage s = type > KvType::kF16 ? random_codes(random, type, rows, form, limits.values, ring, more)
                                      : store_kv(random, rows, form, ring, more);
    // Nobody writes what lies beside an odd last dimension of bf16 but kv_append: half of it is no zero here.
    if (s.kv.layout == KvLayout::kPanels && s.kv.type == KvType::kBF16 && rows.view.shape[3] % 2 == 1) {
      const auto& shape = rows.view.shape;
      for (int64_t i = 0; i < shape[0] * shape[1] * shape[2]; i += 2) {
        const int64_t t = i % shape[2], h = i / shape[2] % shape[1], b = i / shape[2] / shape[1];
        set_element_bits(s.kv.data, s.dtype(), s.at(b, h, t, shape[3]),
                         t % 3 == 0 ? 0x7FC1 : 0x7F00 + static_cast<uint64_t>(t % 128));
      }
    }
    if (random.coin()) share_pages(random, s, rows);
    return s;
  };
  c.k = store(k_type, c.k_rows, k_form, k_spare);
  c.v = store(v_type, c.v_rows, v_form, v_spare);
  // A ring holds the last tokens there are: shorter sequences would need those that these have overwritten.
  if (k_ring || v_ring) c.scoring.scoring.kv_length = nullptr;

  AttentionProblem& a = c.problem;
  a.q = c.q.view;
  a.k = c.k.kv;
  a.v = c.v.kv;
  a.out = c.out.view;
  if (!random.one_in(4)) a.lse = c.lse.view;
  a.scoring = c.scoring.scoring;
  if (packed_q) {
    std::vector<int32_t> cu_q = {0}, cu_k = {0};
    for (int64_t b = 0; b < batch; ++b) {
      cu_q.push_back(cu_q.back() + static_cast<int32_t>(shapes.n_q[static_cast<size_t>(b)]));
      cu_k.push_back(cu_k.back() + static_cast<int32_t>(shapes.n_kv[static_cast<size_t>(b)]));
    }
    c.cu_q = Numbers<int32_t>(random, cu_q);
    a.cu_q = c.cu_q.data();
    a.n_sequences = batch;
    if (packed_k) {
      c.cu_k = Numbers<int32_t>(random, cu_k);
      a.cu_k = c.cu_k.data();
    }
  }
  if (limits.arithmetics) a.arithmetic = random_arithmetic(random);
  // Integers that are taken as they are have no numbers to compare with: narrow_test.cc does.
  const auto integers = [](KvType type, bool keys) {
    return type == KvType::kInt8 || (keys && (type == KvType::kQ8_0 || type == KvType::kQ4_0));
  };
  if (a.arithmetic == Arithmetic::kInt8 && (integers(k_type, true) || integers(v_type, false))) {
    a.arithmetic = random.coin() ? Arithmetic::kF32 : Arithmetic::kBF16;
  }
  return c;
}

std::string describe(const AttentionProblem& a) {
  const char* const types[] = {"f32",  "bf16", "f16",  "int8", "e4m3", "e5m2",
                               "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"};
  std::string text = "q [";
  for (const int64_t n : a.q.shape) text += std::to_string(n) + " ";
  text += std::string("] ") + types[static_cast<size_t>(a.q.dtype)];
  for (const ConstKv* kv : {&a.k, &a.v}) {
    text += std::string(kv == &a.k ? ", k" : ", v") + " [" + std::to_string(kv->batch) + " " +
            std::to_string(kv->heads) + " " + std::to_string(kv->capacity) + " " + std::to_string(kv->dim) + "] " +
            types[static_cast<size_t>(kv->type)];
    if (kv->layout == KvLayout::kPanels) text += " panels";
    if (kv->length >= 0) text += " of length " + std::to_string(kv->length);
    if (kv->page_size > 0) text += " pages of " + std::to_string(kv->page_size);
    if (kv->ring > 0) text += " ring of " + std::to_string(kv->ring);
  }
  text += std::string(", out ") + types[static_cast<size_t>(a.out.dtype)];
  if (a.cu_q != nullptr) {
    text += ", cu_q";
    for (int64_t s = 0; s <= a.n_sequences; ++s) text += " " + std::to_string(a.cu_q[s]);
  }
  if (a.cu_k != nullptr) {
    text += ", cu_k";
    for (int64_t s = 0; s <= a.n_sequences; ++s) text += " " + std::to_string(a.cu_k[s]);
  }
  if (a.arithmetic != Arithmetic::kF32) text += std::string(", arithmetic ") + arithmetic_name(a.arithmetic);
  return text + describe(a.scoring);
}

namespace {

template <class F>
Status with_workspace(size_t bytes, const Target* target, const F& f) {
  const Guarded workspace(bytes, Guard::kAfter);
  std::memset(workspace.data(), 0xFF, bytes);
  return f(Exec{.target = target, .workspace = workspace.data(), .workspace_bytes = bytes});
}

}  // namespace

Status run_scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out, const ScoreOptions& options,
                  const Target* target) {
  return with_workspace(scores_workspace(options.arithmetic, q.shape[3]), target,
                        [&](const Exec& exec) { return scores(q, k, out, options, exec); });
}
Status run_weighted_values(const ConstView<4>& p, const ConstView<4>& v, const View<4>& out,
                           const ValueOptions& options, const Target* target) {
  return with_workspace(weighted_values_workspace(options.arithmetic, v.shape[3]), target,
                        [&](const Exec& exec) { return weighted_values(p, v, out, options, exec); });
}

Status run_attention(const AttentionProblem& problem, const Target* target) {
  Plan plan;
  Exec exec = {.target = target};
  if (const Status s = attention_plan(problem, &plan, exec); !s.ok()) return s;
  const Guarded workspace(plan.workspace_bytes, Guard::kAfter);
  exec.workspace = workspace.data();
  exec.workspace_bytes = workspace.size();
  const Status s = attention(problem, exec);
  if (s.ok()) expect_bound_plans_agree(problem, target);
  return s;
}

Result result_of(const AttentionCase& c, const AttentionProblem& a, const Target& target) {
  EXPECT_TRUE(ok(run_attention(a, &target))) << describe(a);
  const Result result = written(c);
  c.clear();
  return result;
}

Status run_tasks(const AttentionProblem& problem, const Target* target, Random& random) {
  Plan plan;
  const Exec exec = {.target = target, .threads = random.coin() ? 0 : random.integer(1, 100)};
  if (const Status s = attention_plan(problem, &plan, exec); !s.ok()) return s;
  const Plan copy = plan;
  return run_plan(plan, copy, target, random);
}

}  // namespace simdattn::test
