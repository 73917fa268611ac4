// Attention over keys and values of narrow types.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "lib/contract/fma.h"
#include "simdattn/simdattn.h"
#include "tests/cache/narrow.h"
#include "tests/support/indices.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/records.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

class NarrowAttention : public TargetTest {};

/// Attention sees the numbers, but for integers that kInt8 takes as they are: the bits are those of the same numbers
/// stored as f32.
TEST_P(NarrowAttention, AttentionSeesNumbers) {
  Random random(seed() * 7000 + 4);
  for (int64_t i = 0; i < cases(800); ++i) {
    AttentionLimits limits;
    const bool few_rows = random.coin();  // over keys that are read where they are
    limits.max_q = few_rows ? 1 : random.one_in(4) ? 40 : 4;
    limits.max_kv = random.one_in(12) ? 2600 : 300;
    limits.max_batch = 2;
    limits.forms = !few_rows || random.one_in(3);
    limits.varlen = !few_rows;
    limits.max_dim = limits.max_kv > 400 ? 20 : few_rows && random.one_in(8) ? 620 : 140;
    limits.values = few_rows || random.coin() ? Values::kOrdinary : Values::kSpecial;
    limits.arithmetics = false;
    const AttentionCase c = random_attention(random, limits);
    AttentionProblem a = c.problem;
    const auto integers = [](KvType type, bool keys) {
      return type == KvType::kInt8 || (keys && (type == KvType::kQ8_0 || type == KvType::kQ4_0));
    };
    a.arithmetic = few_rows || limits.max_kv > 400 ? Arithmetic::kF32 : random_arithmetic(random);
    if (a.arithmetic == Arithmetic::kInt8 && (integers(a.k.type, true) || integers(a.v.type, false))) {
      a.arithmetic = random.coin() ? Arithmetic::kF32 : Arithmetic::kBF16;
    }
    const Result got = result_of(c, a, target());
    const auto replace = [&](ConstKv& kv, const Array<4>& rows) {
      if (kv.type <= KvType::kF16) return;
      const int64_t length = kv.length;
      const int64_t tokens = kv.capacity;
      kv = rows.view;
      if (length >= 0) kv.length = length, kv.capacity = std::min(tokens, kv.capacity);
    };
    replace(a.k, c.k_rows);
    replace(a.v, c.v_rows);
    ASSERT_EQ(result_of(c, a, target()), got) << describe(c.problem);
  }
}

/// Attention in kInt8 has the bits of the definition.
TEST_P(NarrowAttention, IntegersAsTheDefinition) {
  Random random(seed() * 7000 + 5);
  if (!is_exact()) GTEST_SKIP() << "the definition's bits need fused multiply-add";
  for (int64_t i = 0; i < cases(100); ++i) {
    AttentionLimits limits;
    limits.max_q = random.one_in(4) ? 40 : 4;
    limits.max_kv = 300;
    limits.max_batch = 2;
    limits.max_dim = 140;
    limits.values = random.coin() ? Values::kOrdinary : Values::kSpecial;
    limits.arithmetics = false;
    const AttentionCase c = random_attention(random, limits);
    AttentionProblem a = c.problem;
    a.arithmetic = Arithmetic::kInt8;
    const Result got = result_of(c, a, target());
    ASSERT_EQ(result_of(c, a, scalar_target()), got) << describe(c.problem);
  }
}

/// The sign of a row moves from its integers into its scale. `most`: -127 becomes -128, whose negative is 127 as well.
void turn_sign(const KvStorage& s, int64_t b, int64_t h, int64_t t, bool most) {
  *s.scale(b, h, t) *= -1;
  for (int64_t d = 0; d < s.kv.dim; ++d) {
    unsigned char* const code = s.byte(b, h, t, d);
    *code = static_cast<unsigned char>(most && *code == 127 ? 128 : 256 - *code);
  }
}
/// Of one row in `every` or so; with -128 in some rows of values.
void turn_signs(Random& random, const KvStorage& s, int64_t every, bool values) {
  for (const auto [b, h, t] : indices(s.kv.batch, s.kv.heads, s.kv.capacity)) {
    if (random.one_in(every)) turn_sign(s, b, h, t, values && random.coin());
  }
}

/// int8 stores hold the integers that kInt8 makes of rows of f32: the bits are the same. So they are where integers and
/// scale are negative.
TEST_P(NarrowAttention, IntegersAsStored) {
  Random random(seed() * 7000 + 6);
  for (int64_t i = 0; i < cases(100); ++i) {
    AttentionLimits limits;
    limits.max_q = random.one_in(4) ? 40 : 4;
    limits.max_kv = 300;
    limits.max_batch = 2;
    limits.max_dim = 140;
    limits.narrow = limits.varlen = limits.arithmetics = false;
    limits.values = random.coin() ? Values::kOrdinary : Values::kSpecial;
    const AttentionCase c = random_attention(random, limits);
    AttentionProblem a = c.problem;
    a.arithmetic = Arithmetic::kInt8;
    const Result want = result_of(c, a, target());
    const auto stored = [&](const Array<4>& rows, bool panels) {
      const auto& shape = rows.view.shape;
      const KvForm form = panels ? kForms[random.integer(0, 3)] : random.of({KvForm::kRows, KvForm::kPagedRows});
      KvStorage s = make_kv(random, KvType::kInt8, form, shape[0], shape[1], shape[2], shape[3]);
      EXPECT_TRUE(kv_append(rows.view, {}, s.kv, {}, exec()).ok());
      if (random.coin()) turn_signs(random, s, random.of({1, 3, 100}), !panels);
      return s;
    };
    const KvStorage k = stored(c.k_rows, true), v = stored(c.v_rows, false);
    a.k = k.kv;
    a.v = v.kv;
    ASSERT_EQ(result_of(c, a, target()), want) << describe(a);
  }
}

/// Of few keys that a mask shows, values are multiplied as stored unless a scale is negative: that of any of them.
TEST_P(NarrowAttention, SignsOfFewValues) {
  constexpr int64_t kKeys = 128, kDim = 64, kShown[] = {9, 40, 77};
  Random random(seed() * 7000 + 9);
  const Array<4> q(random, DType::kF32, {1, 1, 3, kDim}, Values::kOrdinary),
      rows(random, DType::kF32, {1, 1, kKeys, kDim}, Values::kOrdinary), want = q.like(random), got = q.like(random);
  const KvStorage v = make_kv(random, KvType::kInt8, KvForm::kRows, 1, 1, kKeys, kDim);
  ASSERT_TRUE(ok(kv_append(rows.view, {}, v.kv, {}, exec())));
  uint8_t mask[kKeys] = {};
  for (const int64_t t : kShown) mask[t] = 1;
  AttentionProblem a;
  a.q = q.view, a.k = rows.view, a.v = v.kv, a.out = want.view;
  a.scoring.mask = view(mask, {1, 1, 1, kKeys});
  a.arithmetic = Arithmetic::kInt8;
  ASSERT_TRUE(ok(run_attention(a, &target())));
  a.out = got.view;
  for (const int64_t t : kShown) {
    turn_sign(v, 0, 0, t, false);
    ASSERT_TRUE(ok(run_attention(a, &target())));
    ASSERT_EQ(difference(want, got), "") << "key " << t;
    turn_sign(v, 0, 0, t, false);
  }
}

/// Keys in blocks are multiplied as integers, block by block. With one key the log-sum-exp is the score.
TEST_P(NarrowAttention, BlocksOfIntegers) {
  Random random(seed() * 7000 + 7);
  if (!is_exact()) GTEST_SKIP() << "sums of blocks are joined by fused multiply-add";
  for (int64_t i = 0; i < cases(300); ++i) {
    const KvType type = random.coin() ? KvType::kQ8_0 : KvType::kQ4_0;
    const int64_t dim = 32 * (random.one_in(20) ? random.integer(60, 80) : random.integer(1, 12)),
                  rows = random.integer(1, 20);
    const Array<4> numbers(random, DType::kF32, {1, 1, 1, dim});
    const KvStorage k = random_codes(random, type, numbers, kForms[random.integer(0, 5)],
                                     random.coin() ? Values::kOrdinary : Values::kSpecial, 40);
    const Array<4> q(random, DType::kF32, {1, 1, rows, dim}), v(random, DType::kF32, {1, 1, 1, 3}, Values::kOrdinary);
    q.fill(random, random.coin() ? Values::kOrdinary : Values::kWide);
    const Array<3> lse(random, DType::kF32, {1, 1, rows});
    const float scale = random.coin() ? 0.25f : random.uniform();
    AttentionProblem a;
    a.q = q.view, a.k = k.kv, a.v = v.view, a.lse = lse.view;
    a.arithmetic = Arithmetic::kInt8;
    a.scoring.scale = scale;
    ASSERT_TRUE(ok(run_attention(a, &target())));
    const CodedRow row = row_of(k, 0, 0, 0);
    const int64_t bytes = reference::codes_of(type).bytes;
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<float> x;
      for (int64_t d = 0; d < dim; ++d) x.push_back(q.get_at({0, 0, r, d}));
      const CodedRow query = encode(KvType::kInt8, x, 1);
      float acc = 0;
      for (int64_t b = 0; b < dim / 32; ++b) {
        const unsigned char* const block = row.bytes.data() + b * bytes;
        int sum = 0;
        for (int64_t e = 0; e < 32; ++e) {
          const int code = type == KvType::kQ8_0 ? static_cast<signed char>(block[2 + e])
                                                 : (e < 16 ? block[2 + e] & 15 : block[2 + e - 16] >> 4) - 8;
          sum += code * static_cast<signed char>(query.bytes[static_cast<size_t>(32 * b + e)]);
        }
        const float d = static_cast<float>(reference::from_f16(static_cast<uint16_t>(block[0] | block[1] << 8)));
        acc = simdattn::fma(static_cast<float>(sum), d, acc);
      }
      const float want = acc * (query.scale * scale);
      const float got = lse.get_at({0, 0, r});
      ASSERT_TRUE(same(got, want + 0.0f) || std::fabs(want) == kInf) << got << ", not " << want << ", dim " << dim;
    }
  }
}

/// With many keys and rows each column takes the scales of its own key: the bits are those of the definition.
TEST_P(NarrowAttention, BlocksOfIntegersOfManyKeys) {
  Random random(seed() * 7000 + 8);
  if (!is_exact()) GTEST_SKIP() << "sums of blocks are joined by fused multiply-add";
  for (int64_t i = 0; i < cases(60); ++i) {
    const KvType type = random.coin() ? KvType::kQ8_0 : KvType::kQ4_0;
    const int64_t dim = 32 * random.integer(1, 5), rows = random.integer(1, 40), keys = random.integer(1, 300);
    const Array<4> numbers(random, DType::kF32, {1, 1, keys, dim});
    const KvStorage k = random_codes(random, type, numbers, kForms[random.integer(0, 5)], Values::kOrdinary, keys);
    const Array<4> q(random, DType::kF32, {1, 1, rows, dim}), v(random, DType::kF32, {1, 1, keys, 33});
    q.fill(random, Values::kOrdinary);
    v.fill(random, Values::kOrdinary);
    const Array<4> out(random, DType::kF32, {1, 1, rows, 33}), want = out.like(random);
    AttentionProblem a;
    a.q = q.view, a.k = k.kv, a.v = v.view, a.out = out.view;
    a.arithmetic = Arithmetic::kInt8;
    ASSERT_TRUE(ok(run_attention(a, &target())));
    a.out = want.view;
    ASSERT_TRUE(ok(run_attention(a, &scalar_target())));
    ASSERT_EQ(out.bits(), want.bits()) << describe(a);
  }
}

SIMDATTN_FOR_EACH_TARGET(NarrowAttention);

}  // namespace
}  // namespace simdattn::test
