// The RMS norm on the way: rows that rope(), rope_direct() and kv_append() norm have the bits of rows that were normed
// before, by the formula of docs/numerics.md.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

class Norm : public TargetTest {};

/// x[b,h,i,:] in f32 after the norm.
Array<4> normed(Random& random, const Array<4>& x, const RopeOptions& o) {
  Array<4> y(random, DType::kF32, x.view.shape);
  const auto [batch, heads, n, dim] = x.view.shape;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < n; ++i) {
        float partial[16] = {};
        for (int64_t d = 0; d < dim; ++d) {
          const float e = x.get_at({b, h, i, d});
          partial[d % 16] = std::fma(e, e, partial[d % 16]);
        }
        for (int64_t half = 8; half > 0; half /= 2) {
          for (int64_t p = 0; p < half; ++p) partial[p] += partial[p + half];
        }
        const float r = 1.0f / std::sqrt(partial[0] / static_cast<float>(dim) + o.norm_epsilon);
        for (int64_t d = 0; d < dim; ++d) {
          const float w = o.norm_weight == nullptr         ? 1.0f
                          : o.norm == RowNorm::kRmsPlusOne ? 1.0f + o.norm_weight[d]
                                                           : o.norm_weight[d];
          y.set_at({b, h, i, d}, (x.get_at({b, h, i, d}) * r) * w);
        }
      }
    }
  }
  return y;
}

TEST_P(Norm, IsTheFormula) {
  if (!is_exact()) return;
  Random random(seed() * 9000 + 51);
  for (int64_t c = 0; c < cases(300); ++c) {
    const int64_t batch = random.integer(1, 2), heads = random.integer(1, 3), n = random.integer(1, 4),
                  dim = random.one_in(20) ? 2048 : random.size(2, 300), half = random.integer(1, dim / 2);
    const Array<4> x(random, random.storage(), {batch, heads, n, dim}, Values::kOrdinary, Strides::kInput);
    const Array<1> weight(random, DType::kF32, {dim}, Values::kOrdinary);
    const Array<2> cosine(random, DType::kF32, {9, half}, Values::kOrdinary),
        sine(random, DType::kF32, {9, half}, Values::kOrdinary);
    RopeOptions o, plain;
    o.pairing = plain.pairing = random.of({RopePairing::kHalfSplit, RopePairing::kInterleaved});
    const int64_t start = random.integer(0, 5);
    o.norm = random.of({RowNorm::kRms, RowNorm::kRmsPlusOne});
    o.norm_epsilon = random.of({1e-6f, 1e-5f, 0.0f, 2.0f});
    if (o.norm == RowNorm::kRmsPlusOne || random.coin()) o.norm_weight = static_cast<const float*>(weight.view.data);
    const Array<4> before = normed(random, x, o);
    const DType to = random.storage();
    const Array<4> want(random, to, x.view.shape), got(random, to, x.view.shape, Strides::kOutput);
    ASSERT_TRUE(ok(rope(before.view, cosine.view, sine.view, start, want.view, plain, exec())));
    ASSERT_TRUE(ok(rope(x.view, cosine.view, sine.view, start, got.view, o, exec())));
    ASSERT_EQ(difference(want, got), "") << "rope, case " << c << ", dimension " << dim;
    ASSERT_TRUE(ok(rope_direct(before.view, half, {}, {}, want.view, plain, exec())));
    ASSERT_TRUE(ok(rope_direct(x.view, half, {}, {}, got.view, o, exec())));
    ASSERT_EQ(difference(want, got), "") << "rope_direct, case " << c;

    // Into a cache, with a table or without one.
    const bool narrow = dim % 32 == 0 && random.coin();
    const KvForm form = random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels});
    const KvType type = narrow ? random_narrow_type(random, false) : kv_type_of(random.storage());
    KvStorage one = make_kv(random, type, form, batch, heads, 9, dim);
    Guarded bytes(one.memory.size(), Guard::kAfter), scales(one.scales.size(), Guard::kAfter);
    const auto save = [&](bool back) {
      for (const auto& [kept, own] : {std::pair(&bytes, &one.memory), std::pair(&scales, &one.scales)}) {
        if (own->size() > 0)
          std::memcpy(back ? own->data() : kept->data(), back ? kept->data() : own->data(), own->size());
      }
    };
    save(false);
    AppendOptions append;
    append.start = start;
    if (random.coin()) append.rope.cos = cosine.view, append.rope.sin = sine.view;
    append.rope.options = plain;
    if (dim % 4 == 0 && random.coin()) append.rope.hadamard_block = 4;
    ASSERT_TRUE(ok(kv_append(before.view, {}, one.kv, append, exec())));
    const std::vector<unsigned char> wanted(one.memory.data(), one.memory.data() + one.memory.size());
    save(true);
    append.rope.options.norm = o.norm;
    append.rope.options.norm_epsilon = o.norm_epsilon;
    append.rope.options.norm_weight = o.norm_weight;
    ASSERT_TRUE(ok(kv_append(x.view, {}, one.kv, append, exec())));
    ASSERT_EQ(std::memcmp(wanted.data(), one.memory.data(), wanted.size()), 0) << "kv_append, case " << c;
  }
}

TEST_P(Norm, BadCalls) {
  std::vector<float> x(2 * 2100, 1.0f), y(x.size(), 7.0f), table(100, 0.5f);
  const ConstView<4> in = view(static_cast<const float*>(x.data()), {1, 1, 2, 2100});
  const View<4> out = view(y.data(), {1, 1, 2, 2100});
  const ConstView<2> angles = view(static_cast<const float*>(table.data()), {2, 50});
  const auto refused = [&](const Status& s, Code code, const std::string& begins) {
    EXPECT_EQ(static_cast<int>(s.code), static_cast<int>(code)) << s.detail;
    EXPECT_EQ(std::string(s.detail).rfind(begins, 0), 0u) << s.detail;
    for (const float e : y) ASSERT_EQ(e, 7.0f);
  };
  RopeOptions o;
  o.norm = RowNorm::kRms;
  refused(rope(in, angles, angles, {}, out, o, exec()), Code::kShape, "options.norm");
  const ConstView<4> short_in(x.data(), DType::kF32, {1, 1, 2, 100});
  const View<4> short_out(y.data(), DType::kF32, {1, 1, 2, 100});
  o.norm = static_cast<RowNorm>(3);
  refused(rope(short_in, angles, angles, {}, short_out, o, exec()), Code::kRange, "options.norm:");
  o.norm = RowNorm::kRmsPlusOne;
  refused(rope_direct(short_in, 50, {}, {}, short_out, o, exec()), Code::kNullPointer, "options.norm_weight");
  o.norm_weight = y.data() + 10;
  refused(rope(short_in, angles, angles, {}, short_out, o, exec()), Code::kOverlap, "out");
  refused(rope_direct(short_in, 50, {}, {}, short_out, o, exec()), Code::kOverlap, "out");
  const Kv kv = short_out;
  refused(kv_append(short_in, {}, kv, {.rope = {.options = o}}, exec()), Code::kOverlap, "kv");
  o.norm_weight = x.data();
  o.norm_epsilon = -1.0f;
  refused(rope(short_in, angles, angles, {}, short_out, o, exec()), Code::kRange, "options.norm_epsilon");
  refused(kv_append(short_in, {}, kv, {.rope = {.options = o}}, exec()), Code::kRange,
          "options.rope.options.norm_epsilon");
  o.norm_epsilon = 0;
  refused(kv_shift(kv, 0, 1, 1, {.cos = angles, .sin = angles, .options = o}, exec()), Code::kRange,
          "rope.options.norm");
}

SIMDATTN_FOR_EACH_TARGET(Norm);

}  // namespace
}  // namespace simdattn::test
