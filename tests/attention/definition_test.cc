// The arithmetics kBF16 and kInt8 against a second implementation of docs/numerics.md
// (tests/attention/second_definition.h). Bits, on every exact target. The others are compared with the formulas by
// formula_test.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "lib/contract/dtypes.h"
#include "simdattn/simdattn.h"
#include "tests/attention/definition_test.h"
#include "tests/support/indices.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"

namespace simdattn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

uint32_t bits_of(float x) { return x == x ? std::bit_cast<uint32_t>(x) : 0x7FC00000u; }

Values any_values(Random& random) {
  return random.of(
      {Values::kOrdinary, Values::kOrdinary, Values::kWide, Values::kSpecial, Values::kHuge, Values::kTiny});
}

/// Compares an output with numbers in logical order, rounded to its type.
template <int kRank>
std::string difference(const Array<kRank>& got, const std::vector<float>& want) {
  std::string text;
  size_t i = 0;
  for_each_element(got.view, [&](int64_t at) {
    const double w = static_cast<double>(want[i]);
    const uint64_t expected = got.view.dtype == DType::kBF16  ? reference::to_bf16(w)
                              : got.view.dtype == DType::kF16 ? reference::to_f16(w)
                                                              : bits_of(want[i]);
    const uint64_t bits = element_bits(got.view.data, got.view.dtype, at);
    if (bits != expected && text.empty()) {
      char line[120];
      std::snprintf(line, sizeof line, "element %zu of %zu: %08llx, expected %08llx", i, want.size(),
                    static_cast<unsigned long long>(bits), static_cast<unsigned long long>(expected));
      text = line;
    }
    ++i;
  });
  if (text.empty() && !got.gaps_intact()) text = "bytes between the elements of an output were written";
  return text;
}

TEST_P(Definition, Scores) {
  if (!is_exact()) GTEST_SKIP() << "no fused multiply-add";
  Random random(seed() * 8000 + 3);
  for (int64_t i = 0; i < cases(400); ++i) {
    const bool tall = random.one_in(12);  // 64 rows are taken at a time
    const int64_t kv_heads = random.integer(1, 2), heads = kv_heads * random.integer(1, 3);
    const int64_t batch = random.integer(1, 2), n_q = random.integer(0, tall ? 70 : 6),
                  n_kv = random.size(0, tall ? 10 : 70), dim = random.size(1, tall ? 20 : 140);
    Array<4> q(random, random.storage(), {batch, heads, n_q, dim}, Strides::kInput);
    Array<4> k(random, random.storage(), {batch, kv_heads, n_kv, dim}, Strides::kInput);
    const Values kind = any_values(random);
    q.fill(random, kind);
    k.fill(random, kind);
    const Array<4> out(random, DType::kF32, {batch, heads, n_q, n_kv}, Strides::kOutput);
    ScoreOptions options = {.arithmetic = random.of({Arithmetic::kBF16, Arithmetic::kInt8})};
    if (random.coin()) options.scale = number(random, Values::kWide);
    ASSERT_TRUE(ok(run_scores(q.view, k.view, out.view, options, &target())));
    const float scale = options.scale ? *options.scale : 1.0f / std::sqrt(static_cast<float>(dim));
    ASSERT_EQ(
        difference(out, second::scores(reference::read(q.view), reference::read(k.view), scale, options.arithmetic)),
        "")
        << "case " << i << " " << arithmetic_name(options.arithmetic) << ", dim " << dim << ", n_q " << n_q << ", n_kv "
        << n_kv;
  }
}

TEST_P(Definition, WeightedValues) {
  if (!is_exact()) GTEST_SKIP() << "no fused multiply-add";
  Random random(seed() * 8000 + 4);
  for (int64_t i = 0; i < cases(300); ++i) {
    const bool tall = random.one_in(12);  // 64 rows are taken at a time
    const int64_t kv_heads = random.integer(1, 2), heads = kv_heads * random.integer(1, 3);
    const int64_t batch = random.integer(1, 2), n_q = random.integer(0, tall ? 70 : 6),
                  n_kv = random.size(0, random.one_in(6) ? 600 : 60),
                  dim = random.size(1, tall || n_kv > 60 ? 20 : 140);
    Array<4> p(random, DType::kF32, {batch, heads, n_q, n_kv}, Strides::kInput);
    Array<4> v(random, random.storage(), {batch, kv_heads, n_kv, dim}, Strides::kInput);
    const Values kind = any_values(random);
    p.fill(random, random.coin() ? Values::kOrdinary : kind);
    const bool zeros = random.coin(), negative = random.one_in(3);
    for_each_element(p.view, [&](int64_t at) {
      const float x = get(p.view.data, DType::kF32, at);
      if (!negative) put(p.view.data, DType::kF32, at, std::fabs(x));
      if (zeros && random.coin()) put(p.view.data, DType::kF32, at, 0.0f);
    });
    v.fill(random, kind);
    const Array<4> out(random, random.storage(), {batch, heads, n_q, dim}, Strides::kOutput);
    const ValueOptions options = {.arithmetic = random.of({Arithmetic::kBF16, Arithmetic::kInt8})};
    ASSERT_TRUE(ok(run_weighted_values(p.view, v.view, out.view, options, &target())));
    ASSERT_EQ(
        difference(out, second::weighted_values(reference::read(p.view), reference::read(v.view), options.arithmetic)),
        "")
        << "case " << i << " " << arithmetic_name(options.arithmetic) << ", dim " << dim << ", n_q " << n_q << ", n_kv "
        << n_kv;
  }
}

/// Values that are 2^-60 times as small as `limits.values` says: with weights up to 1, sums near the smallest normal
/// number.
void shrink(const Array<4>& v) {
  for_each_element(
      v.view, [&](int64_t at) { put(v.view.data, v.view.dtype, at, get(v.view.data, v.view.dtype, at) * 0x1p-60f); });
}

/// The same as sums: +-2^-126 less fractions of its last place in one chain, and a score whose scale takes it there.
TEST_P(Definition, SumsNearTheSmallestNormalNumber) {
  if (!is_exact()) GTEST_SKIP() << "no fused multiply-add";
  Random random(seed() * 8000 + 8);
  constexpr int64_t kRows = 5, kDim = 40;
  for (int64_t i = 0; i < cases(300); ++i) {
    const Array<4> q(random, DType::kF32, {1, 1, kRows, kDim}),
        k(random, random.of({DType::kF32, DType::kBF16}), {1, 1, 33, kDim}), s(random, DType::kF32, {1, 1, kRows, 33}),
        v(random, k.view.dtype, {1, 1, kDim, 33}), o(random, DType::kF32, {1, 1, kRows, 33});
    for (const Array<4>* a : {&q, &k, &v}) a->fill_bytes(0);
    const int64_t first = random.integer(0, kDim / 2 - 1), second = random.integer(first + 1, kDim / 2) * 2 + first % 2;
    const bool scaled = random.one_in(3);
    for (int64_t r = 0; r < kRows; ++r) {
      const float sign = random.coin() ? 1.0f : -1.0f;
      q.set_at({0, 0, r, first}, scaled ? sign : sign * 0x1p-63f);
      if (second < kDim) q.set_at({0, 0, r, second}, scaled ? -sign * 0x1p-13f : -sign * 0x1p-76f);
    }
    for (int64_t j = 0; j < 33; ++j) {
      const float part = static_cast<float>(random.integer(0, 16)) * (scaled ? 0x1p-14f : 0x1p-78f);  // 2^-154 a step
      k.set_at({0, 0, j, first}, scaled ? 1.0f : 0x1p-63f);
      v.set_at({0, 0, first, j}, scaled ? 0x1p-126f : 0x1p-63f);
      if (second < kDim) k.set_at({0, 0, j, second}, part), v.set_at({0, 0, second, j}, scaled ? 0.0f : part);
    }
    const ScoreOptions options = {.scale = scaled ? 0x1p-126f : 0x1p100f, .arithmetic = Arithmetic::kBF16};
    Status status = run_scores(q.view, k.view, s.view, options, &target());
    ASSERT_TRUE(status.ok()) << status.detail;
    ASSERT_EQ(difference(s, second::scores(reference::read(q.view), reference::read(k.view), *options.scale,
                                           Arithmetic::kBF16)),
              "")
        << "scores, case " << i;
    status = run_weighted_values(q.view, v.view, o.view, {.arithmetic = Arithmetic::kBF16}, &target());
    ASSERT_TRUE(status.ok()) << status.detail;
    ASSERT_EQ(
        difference(o, second::weighted_values(reference::read(q.view), reference::read(v.view), Arithmetic::kBF16)), "")
        << "values, case " << i;
  }
}

/// A NaN or an infinity in one value, in any block, behind weights of 0.
TEST_P(Definition, OneHiddenValue) {
  if (!is_exact()) GTEST_SKIP() << "no fused multiply-add";
  Random random(seed() * 8000 + 10);
  for (int64_t i = 0; i < cases(100); ++i) {
    const int64_t heads = random.integer(1, 3), n_q = random.integer(1, 40), n = random.size(1, 700),
                  dim = random.size(1, 40);
    const Array<4> p(random, DType::kF32, {1, heads, n_q, n}, Strides::kInput),
        v(random, random.storage(), {1, 1, n, dim}, Values::kOrdinary),
        out(random, DType::kF32, {1, heads, n_q, dim}, Strides::kOutput);
    for_each_element(p.view, [&](int64_t at) { put(p.view.data, DType::kF32, at, std::fabs(random.uniform())); });
    const int64_t hidden = random.integer(0, n - 1);
    v.set_at({0, 0, hidden, random.integer(0, dim - 1)}, random.of({kInf, -kInf, std::nanf("")}));
    for (const auto [h, r] : indices(heads, n_q)) {
      if (!random.one_in(4)) p.set_at({0, h, r, hidden}, 0);
    }
    const ValueOptions options = {.arithmetic = random.of({Arithmetic::kBF16, Arithmetic::kInt8})};
    ASSERT_TRUE(ok(run_weighted_values(p.view, v.view, out.view, options, &target())));
    ASSERT_EQ(
        difference(out, second::weighted_values(reference::read(p.view), reference::read(v.view), options.arithmetic)),
        "")
        << "case " << i << " " << arithmetic_name(options.arithmetic) << ", n " << n << ", key " << hidden;
  }
}

/// kInt8 takes a negative weight for 0, whatever its size and its value: the bits are those of weights of 0.
TEST_P(Definition, NegativeWeights) {
  Random random(seed() * 8000 + 11);
  for (int64_t i = 0; i < cases(100); ++i) {
    const int64_t heads = random.integer(1, 3), n_q = random.integer(1, 40), n = random.size(1, 700),
                  dim = random.size(1, 40);
    const Array<4> p(random, DType::kF32, {1, heads, n_q, n}, Strides::kInput),
        zeros = p.with(random, Strides::kInput), v(random, DType::kF32, {1, 1, n, dim}, Values::kOrdinary),
        out(random, DType::kF32, {1, heads, n_q, dim});
    for_each_element(p.view, [&](int64_t at) { put(p.view.data, DType::kF32, at, std::fabs(random.uniform())); });
    const int64_t key = random.integer(0, n - 1);
    v.set_at({0, 0, key, random.integer(0, dim - 1)}, random.of({1e5f, 3e38f, kInf, std::nanf("")}));
    const float weight = random.of({-1e-45f, -1.0f, -3e38f, -kInf});
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t r = 0; r < n_q; ++r) p.set_at({0, h, r, key}, weight);
    }
    zeros.assign(p.bits());
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t r = 0; r < n_q; ++r) zeros.set_at({0, h, r, key}, 0);
    }
    const ValueOptions options = {.arithmetic = Arithmetic::kInt8};
    ASSERT_TRUE(run_weighted_values(zeros.view, v.view, out.view, options, &target()).ok());
    const std::vector<uint64_t> want = out.bits();
    out.fill_bytes(0xAB);
    ASSERT_TRUE(run_weighted_values(p.view, v.view, out.view, options, &target()).ok());
    ASSERT_EQ(out.bits(), want) << "case " << i << ", n " << n << ", key " << key << ", weight " << weight;
    for (const uint64_t bits : want) ASSERT_LT(bits & 0x7FFFFFFF, 0x7F800000u) << "case " << i << ", n " << n;
  }
}

/// out and the raw state, with everything that a problem may have.
std::string check_attention(const AttentionCase& c, Random& random, const Target& t) {
  const auto& shape = c.out.view.shape;
  const Array<4> acc(random, DType::kF32, shape, Strides::kOutput);
  const Array<3> max(random, DType::kF32, {shape[0], shape[1], shape[2]}, Strides::kOutput), sum = max.like(random);
  AttentionProblem a = c.problem;
  a.acc = acc.view, a.max = max.view, a.sum = sum.view;
  c.clear();
  const Status status = random.coin() ? run_attention(a, &t) : run_tasks(a, &t, random);
  if (!status.ok()) return status.detail;
  const second::Attention want = second::attention(a);
  if (const std::string text = difference(max, want.max); !text.empty()) return "max, " + text;
  if (const std::string text = difference(sum, want.sum); !text.empty()) return "sum, " + text;
  if (const std::string text = difference(acc, want.acc); !text.empty()) return "acc, " + text;
  if (const std::string text = difference(c.out, want.out); !text.empty()) return "out, " + text;
  return "";
}

TEST_P(Definition, Attention) {
  if (!is_exact()) GTEST_SKIP() << "no fused multiply-add";
  Random random(seed() * 8000 + 5);
  for (int64_t i = 0; i < cases(400); ++i) {
    AttentionLimits limits;
    limits.values = any_values(random);
    limits.scoring.extreme = random.one_in(4);
    switch (random.integer(0, 7)) {
      case 0: limits.max_kv = 2500, limits.max_q = 3, limits.max_dim = 12, limits.max_batch = 1; break;
      case 1: limits.max_dim = 150, limits.max_q = 3; break;
      case 2: limits.max_q = 80, limits.max_batch = 1, limits.max_dim = 10; break;
      case 3: limits.max_kv = 600, limits.max_dim = 12; break;
      default: break;
    }
    AttentionCase c = random_attention(random, limits);
    if (limits.values == Values::kTiny && c.problem.cu_k == nullptr) {
      shrink(c.v_rows);
      c.v = store_kv(random, c.v_rows, random.of({KvForm::kRows, KvForm::kPagedRows}));
      c.problem.v = c.v.kv;
    }
    ASSERT_EQ(check_attention(c, random, target()), "") << "case " << i << ": " << describe(c.problem);
  }
}

/// Masks become windows, sequences in turns, holes: of each mask the rows see runs of keys, the same ones or others in
/// each row.
void hide_most(const AttentionCase& c, Random& random) {
  const int64_t run = random.of<int64_t>({1, 1, 1, 3, 32, 100, 300}), of = random.of<int64_t>({2, 4, 5, 8, 20});
  const int64_t shift = random.of<int64_t>({0, 0, 1, run, 37}), first = random.integer(0, run * of - 1);
  const int64_t noise = random.of<int64_t>({10, 1000, 1 << 30});
  const auto hides = [&](int64_t row, int64_t j) {
    return (first + row * shift + j) / run % of != 0 && !random.one_in(noise);
  };
  const Scoring& s = c.problem.scoring;
  for (const ConstView<4>& mask : {s.bias, s.mask}) {
    if (mask.data == nullptr || mask.shape[3] == 1) continue;
    for (const auto [b, h, i, j] : indices(mask.shape[0], mask.shape[1], mask.shape[2], mask.shape[3])) {
      if (!hides(i, j)) continue;
      const auto& at = mask.stride;
      void* const data = const_cast<void*>(mask.data);
      const int64_t index = b * at[0] + h * at[1] + i * at[2] + j * at[3];
      if (mask.dtype == DType::kU8) static_cast<uint8_t*>(data)[index] = 0;
      else put(data, mask.dtype, index, -kInf);
    }
  }
  for (size_t i = 0; s.packed_mask.data != nullptr && i < c.scoring.packed_mask.size(); ++i) {
    for (int64_t j = 0; j < 8; ++j) {
      if (hides(0, static_cast<int64_t>(i) * 8 + j)) c.scoring.packed_mask.data()[i] &= static_cast<uint8_t>(~(1 << j));
    }
  }
}

TEST_P(Definition, MasksThatHideMost) {
  if (!is_exact()) GTEST_SKIP() << "no fused multiply-add";
  Random random(seed() * 8000 + 12);
  for (int64_t i = 0; i < cases(400);) {
    AttentionLimits limits;
    limits.values = random.of({Values::kOrdinary, Values::kSpecial});
    limits.scoring.extreme = random.one_in(4);
    limits.max_kv = random.of<int64_t>({200, 600, 600, 1500});
    limits.max_dim = 12, limits.max_batch = 2;
    limits.max_q = random.of<int64_t>({1, 4, 9});
    limits.varlen = random.one_in(4);
    const AttentionCase c = random_attention(random, limits);
    const Scoring& s = c.problem.scoring;
    if (s.bias.data == nullptr && s.mask.data == nullptr && s.packed_mask.data == nullptr) continue;
    hide_most(c, random);
    ASSERT_EQ(check_attention(c, random, target()), "") << "case " << i << ": " << describe(c.problem);
    ++i;
  }
}

/// Every option alone and with others over few keys: what a row sees.
TEST_P(Definition, AttentionMixes) {
  if (!is_exact()) GTEST_SKIP() << "no fused multiply-add";
  Random random(seed() * 8000 + 6);
  for (int64_t i = 0; i < cases(1500); ++i) {
    AttentionLimits limits;
    limits.max_q = 5, limits.max_kv = 45, limits.max_dim = 9, limits.max_batch = 2;
    limits.values = random.of({Values::kOrdinary, Values::kSpecial});
    const AttentionCase c = random_attention(random, limits);
    ASSERT_EQ(check_attention(c, random, target()), "") << "case " << i << ": " << describe(c.problem);
  }
}

/// Keys and values in every form: pages that do not begin at a multiple of 32 keys, rings that wrap anywhere.
TEST_P(Definition, Forms) {
  if (!is_exact()) GTEST_SKIP() << "no fused multiply-add";
  Random random(seed() * 8000 + 7);
  for (int64_t i = 0; i < cases(250); ++i) {
    AttentionLimits limits;
    limits.varlen = limits.forms = false;
    limits.max_q = random.one_in(4) ? 20 : 2;
    limits.max_kv = random.one_in(4) ? 1300 : 320;
    limits.max_dim = limits.max_kv > 400 ? 8 : 40;
    limits.max_batch = 2;
    limits.values = random.of({Values::kOrdinary, Values::kSpecial});
    AttentionCase c = random_attention(random, limits);
    const int64_t n = c.problem.k.capacity;
    const int64_t ring = random.of<int64_t>({1, 16, 31, 33, 48, 50, 96, 255, 256, 300});
    c.k = store_kv(random, c.k_rows,
                   random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels,
                              KvForm::kRingRows, KvForm::kRingPanels}),
                   std::min(ring, n + 1));
    c.v = store_kv(random, c.v_rows, random.of({KvForm::kRows, KvForm::kPagedRows, KvForm::kRingRows}),
                   std::min(random.of<int64_t>({1, 17, 32, 48, 64, 80, 256, 400}), n + 1));
    c.problem.k = c.k.kv;
    c.problem.v = c.v.kv;
    if (c.problem.scoring.kv_length != nullptr && (c.problem.k.ring > 0 || c.problem.v.ring > 0)) {
      c.problem.scoring.kv_length = nullptr;  // a shorter sequence's last tokens are not what the ring was filled with
    }
    ASSERT_EQ(check_attention(c, random, target()), "") << "case " << i << ": " << describe(c.problem);
  }
}

/// Few rows, whose values are read in place if the arithmetic can: runs of pages and rings that do and do not end where
/// groups of 32 keys do, windows that begin anywhere.
TEST_P(Definition, ValuesInPlace) {
  if (!is_exact()) GTEST_SKIP() << "no fused multiply-add";
  Random random(seed() * 8000 + 11);
  for (int64_t i = 0; i < cases(300); ++i) {
    const int64_t heads = random.integer(1, 3), n_q = random.integer(1, 3), n = random.integer(30, 400), dim = 8;
    const Array<4> k(random, DType::kBF16, {1, 1, n, dim}), v(random, DType::kBF16, {1, 1, n, 5});
    AttentionCase c;
    c.q = Array<4>(random, DType::kF32, {1, heads, n_q, dim});
    c.out = Array<4>(random, DType::kF32, {1, heads, n_q, 5});
    c.lse = Array<3>(random, DType::kF32, {1, heads, n_q});
    for (const Array<4>* a : std::initializer_list<const Array<4>*>{&c.q, &k, &v}) a->fill(random, Values::kOrdinary);
    const KvForm form = random.of({KvForm::kRows, KvForm::kPagedRows, KvForm::kRingRows});
    const int64_t ring = random.of<int64_t>({32, 48, 64, 80, 96, 112, 160, 256, 272});
    c.v = store_kv(random, v, form, ring);
    if (form == KvForm::kPagedRows && random.coin()) {  // pages of whole groups
      const int64_t page = random.of<int64_t>({16, 32, 48, 64, 96, 160}), pages = (n + page - 1) / page;
      Array<4> whole(random, DType::kBF16, {1, 1, pages * page, 5});
      whole.fill_bytes(0xFF);
      std::vector<int32_t> table;
      for (int64_t at = 0; at < pages; ++at) table.push_back(static_cast<int32_t>(pages - 1 - at));
      c.v.table = Numbers<int32_t>(random, table);
      for (const auto [t, d] : indices(n, 5)) {
        whole.set_at({0, 0, table[static_cast<size_t>(t / page)] * page + t % page, d}, v.get_at({0, 0, t, d}));
      }
      c.v.memory = std::move(whole.memory);
      c.v.kv = contiguous_kv(static_cast<void*>(c.v.memory.data()), KvType::kBF16, KvLayout::kRows, pages, 1, page, 5);
      c.v.kv.batch = 1, c.v.kv.capacity = n, c.v.kv.page_size = page, c.v.kv.n_pages = pages;
      c.v.kv.block_table = c.v.table.data();
    }
    AttentionProblem& a = c.problem;
    a.q = c.q.view, a.k = k.view, a.v = c.v.kv, a.out = c.out.view;
    a.arithmetic = random.of({Arithmetic::kBF16, Arithmetic::kBF16, Arithmetic::kInt8});
    a.scoring.causal = random.coin();
    if (random.coin()) a.scoring.window_left = random.integer(1, 200);
    ASSERT_EQ(check_attention(c, random, target()), "") << "case " << i << ": " << describe(a);
  }
}

SIMDATTN_FOR_EACH_TARGET(Definition);

}  // namespace
}  // namespace simdattn::test
