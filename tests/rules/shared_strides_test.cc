// Arrays with strides, with bytes between their elements or with none: which count as bytes of an array.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "simdattn/extras.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

class SharedStrides : public TargetTest {};

/// Arrays that interleave share no byte: q, k, v, out and acc as slices of one buffer [L, 5, H, D].
TEST_P(SharedStrides, PackedBuffersAreApart) {
  Random random(seed() * 7000 + 6);
  for (const int64_t heads : {1, 2, 3, 5, 8}) {
    const int64_t n = 6, dim = 4, row = 5 * heads * dim;
    std::vector<float> packed(static_cast<size_t>(n * row));
    for (float& x : packed) x = random.uniform();
    const auto part = [&](int64_t i) {
      return view(packed.data() + i * heads * dim, {1, heads, n, dim}, {n * row, dim, row, 1});
    };
    std::vector<float> numbers(static_cast<size_t>(2 * heads * n));
    AttentionProblem a;
    a.q = part(0), a.k = ConstView<4>(part(1)), a.v = ConstView<4>(part(2)), a.out = part(3), a.acc = part(4);
    a.max = view(numbers.data(), {1, heads, n}, {2 * heads * n, 2 * n, 1});
    a.sum = view(numbers.data() + n, {1, heads, n}, {2 * heads * n, 2 * n, 1});
    a.scoring.causal = true;
    const reference::AttentionResult want = reference::attention(a);
    const Status s = run_attention(a, GetParam());
    ASSERT_TRUE(s.ok()) << heads << " heads: " << s.detail;
    const reference::Tensor got = reference::read(a.out);
    for (int64_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want.out[i], 1e-5);
    // One element further they meet.
    a.out.data = static_cast<float*>(a.out.data) + 1;
    EXPECT_EQ(run_attention(a, GetParam()).code, Code::kOverlap) << heads;
  }
}

// Strides of what has no element are multiplied all the same, so they must not reach further than 2^58 bytes either.
// UndefinedBehaviorSanitizer sees it if a product overflows.
TEST_P(SharedStrides, StridesOfEmptyArrays) {
  const float none = 0;
  float two[8] = {7, 7, 7, 7, 7, 7, 7, 7};
  for (const int64_t far : {int64_t{1} << 56, -(int64_t{1} << 56), int64_t{1} << 57, -(int64_t{1} << 57), INT64_MAX}) {
    const bool fits = std::abs(far) <= int64_t{1} << 56;
    const std::array<int64_t, 4> stride = {far, far, far, 1};
    const auto check = [&](const Status& s) {
      EXPECT_EQ(s.code, fits ? Code::kOk : Code::kStride) << far << " " << s.detail;
    };
    const auto empty = [&](int64_t rows, int64_t columns) {
      return ConstView<4>(&none, DType::kF32, {2, 2, rows, columns}, stride);
    };
    const ConstView<4> keys = view(static_cast<const float*>(two), {2, 2, 2, 1});
    const View<4> no_out(two, DType::kF32, {2, 2, 0, 2}, stride);
    for (const Arithmetic arithmetic : {Arithmetic::kF32, Arithmetic::kBF16, Arithmetic::kInt8}) {
      check(run_scores(empty(0, 1), keys, no_out, {.arithmetic = arithmetic}, GetParam()));
      float sums[8] = {7, 7, 7, 7, 7, 7, 7, 7};
      check(run_weighted_values(empty(2, 0), empty(0, 1), view(sums, {2, 2, 2, 1}), {.arithmetic = arithmetic},
                                GetParam()));
      for (const float x : sums) EXPECT_EQ(x, fits ? 0.0f : 7.0f);
    }
    check(gaussian_scores(empty(0, 1), keys, no_out, {}, {.target = GetParam()}));
    const View<4> no_columns(two, DType::kF32, {2, 2, 2, 0}, stride);
    check(masked_softmax(ConstView<4>(no_columns), no_columns, {}, {}, {.target = GetParam()}));

    // A cache without tokens: the output is zeros.
    AttentionProblem a;
    const float q[4] = {1, 1, 1, 1};
    float out[4] = {7, 7, 7, 7};
    a.q = view(q, {2, 2, 1, 1});
    a.out = view(out, {2, 2, 1, 1});
    for (const KvType type : {KvType::kF32, KvType::kInt8}) {
      for (const bool in_scales : {false, true}) {
        if (in_scales && type == KvType::kF32) continue;
        a.k = ConstKv();
        a.k.data = &none;
        a.k.type = type;
        a.k.batch = a.k.heads = 2;
        a.k.dim = 1;
        const int64_t bytes = far > INT64_MAX / 4 ? INT64_MAX : 4 * far;
        (in_scales ? a.k.scale_head_stride : a.k.head_stride) = bytes;
        (in_scales ? a.k.scale_batch_stride : a.k.batch_stride) = bytes;
        a.v = a.k;
        check(run_attention(a, GetParam()));
      }
    }
    for (const float x : out) EXPECT_EQ(x, fits ? 0.0f : 7.0f);
  }
  for (const float x : two) EXPECT_EQ(x, 7.0f);
}

// Scales of integers are inputs as their codes are, those of keys and of values.
TEST_P(SharedStrides, OutputsOverScales) {
  constexpr int64_t kTokens = 40, kDim = 8;
  std::vector<int8_t> codes(2 * kTokens * kDim, 1);
  std::vector<float> memory(4 * kTokens, 1.0f), q(kDim, 1.0f), elsewhere(kDim);
  for (const bool values : {false, true}) {
    AttentionProblem a;
    a.q = view(static_cast<const float*>(q.data()), {1, 1, 1, kDim});
    a.k = contiguous_kv(static_cast<const void*>(codes.data()), KvType::kInt8, KvLayout::kRows, 1, 1, kTokens, kDim);
    a.v = a.k;
    float* const other = memory.data() + 2 * kTokens;
    a.k = contiguous_scales(a.k, values ? other : memory.data());
    a.v = contiguous_scales(a.v, values ? memory.data() : other);
    a.out = view(elsewhere.data(), {1, 1, 1, kDim});
    const char* const name = values ? "v.scales" : "k.scales";
    for (const int64_t at : {int64_t{0}, kTokens - 1}) {  // the first and the last scale
      AttentionProblem b = a;
      b.out = view(memory.data() + at, {1, 1, 1, kDim});
      Status s = run_attention(b, GetParam());
      EXPECT_EQ(s.code, Code::kOverlap) << name << " " << at;
      EXPECT_NE(std::string(s.detail).find(name), std::string::npos) << s.detail;
      b = a;
      b.lse = view(memory.data() + at, {1, 1, 1});
      s = run_attention(b, GetParam());
      EXPECT_EQ(s.code, Code::kOverlap) << name << " " << at;
      EXPECT_NE(std::string(s.detail).find(name), std::string::npos) << s.detail;
    }
    AttentionProblem b = a;
    b.lse = view(memory.data() + kTokens, {1, 1, 1});  // behind the last
    EXPECT_TRUE(run_attention(b, GetParam()).ok());
    for (const float x : elsewhere) EXPECT_EQ(x, 1.0f);
  }
}

// The last of many sinks is an input as the first is.
TEST(SharedStridesOf, MergeOverItsLastSink) {
  constexpr int64_t kHeads = 8;
  std::vector<float> parts(kHeads, 1.0f), lse(kHeads, 0.0f), memory(3 * kHeads, 7.0f);
  const float* const sinks = memory.data() + kHeads;
  const ConstView<5> x = view(static_cast<const float*>(parts.data()), {1, 1, kHeads, 1, 1});
  const ConstView<4> of_x = view(static_cast<const float*>(lse.data()), {1, 1, kHeads, 1});
  for (int64_t at = 0; at <= 2 * kHeads; ++at) {
    const bool apart = at == 0 || at == 2 * kHeads;
    const Status s = attention_merge(x, of_x, view(memory.data() + at, {1, kHeads, 1, 1}), {}, sinks);
    EXPECT_EQ(s.code, apart ? Code::kOk : Code::kOverlap) << at << ": " << s.detail;
  }
}

/// Arrays with a number for every head or sequence are inputs up to their last number.
TEST_P(SharedStrides, AttentionOverTheLastOfManyNumbers) {
  constexpr int64_t kMany = 8;
  Random random(seed() * 7000 + 8);
  Array<4> q(random, DType::kF32, {kMany, kMany, 1, 1}), bias = q.like(random);
  q.fill(random, Values::kOrdinary);
  bias.fill(random, Values::kOrdinary);
  KvStorage k = make_kv(random, DType::kF32, KvForm::kRows, kMany, kMany, 2, 1);
  AttentionProblem a;
  a.q = q.view, a.k = k.kv, a.v = k.kv, a.scoring.bias = bias.view;
  std::memset(k.memory.data(), 0, k.memory.size());
  constexpr int64_t kOut = kMany * kMany;
  std::vector<int32_t> memory(kMany + kOut, 0);  // zeros are legal numbers of each array
  const auto over_the_last = [&](const char* name, auto member) {
    AttentionProblem b = a;
    b.scoring.*member = reinterpret_cast<std::remove_reference_t<decltype(b.scoring.*member)>>(memory.data());
    for (int64_t at = kMany; at >= 0; --at) {  // beside the last one first, which alone is written
      b.out = view(reinterpret_cast<float*>(memory.data() + at), {kMany, kMany, 1, 1});
      const Status s = run_attention(b, GetParam());
      EXPECT_EQ(s.code, at == kMany ? Code::kOk : Code::kOverlap) << name << " from " << at << ": " << s.detail;
    }
  };
  over_the_last("alibi_slopes", &Scoring::alibi_slopes);
  over_the_last("bias_scale", &Scoring::bias_scale);
  over_the_last("sinks", &Scoring::sinks);
  over_the_last("offsets", &Scoring::offsets);
  over_the_last("prefix_end", &Scoring::prefix_end);
  over_the_last("kv_start", &Scoring::kv_start);
  over_the_last("kv_length", &Scoring::kv_length);
}

/// Elements of an output may be distinct although their strides do not nest.
TEST_P(SharedStrides, StridesNeedNotNest) {
  Random random(seed() * 7000 + 7);
  // Rows at 0, 6, 12 and 4, 10, 16 (two heads): of width 2, all apart, none of the strides a multiple of the other.
  std::vector<float> memory(64, 9.0f);
  Array<4> q(random, DType::kF32, {1, 2, 3, 4}), k(random, DType::kF32, {1, 2, 5, 4}),
      v(random, DType::kF32, {1, 2, 5, 2}), want(random, DType::kF32, {1, 2, 3, 2});
  for (const Array<4>* x : {&q, &k, &v}) x->fill(random, Values::kOrdinary);
  AttentionProblem a;
  a.q = q.view, a.k = k.view, a.v = v.view, a.out = want.view;
  ASSERT_TRUE(run_attention(a, GetParam()).ok());
  a.out = view(memory.data(), {1, 2, 3, 2}, {0, 4, 6, 1});
  ASSERT_TRUE(ok(run_attention(a, GetParam())));
  int64_t e = 0;
  for_each_element(a.out, [&](int64_t at) {
    ASSERT_EQ(std::bit_cast<uint32_t>(memory[static_cast<size_t>(at)]), want.bits()[static_cast<size_t>(e++)]);
  });
  // With 3 columns they meet: 4 .. 6 and 6 .. 8.
  Array<4> wide(random, DType::kF32, {1, 2, 5, 3});
  a.v = wide.view;
  a.out = view(memory.data(), {1, 2, 3, 3}, {0, 4, 6, 1});
  EXPECT_EQ(run_attention(a, GetParam()).code, Code::kStride);
}

SIMDATTN_FOR_EACH_TARGET(SharedStrides);

}  // namespace
}  // namespace simdattn::test
