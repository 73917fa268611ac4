// hadamard() against the matrix in f64, its own inverse, and bad calls.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "simdattn/extras.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

class Hadamard : public TargetTest {};

/// Of the last dimension: the default block, or a power of two that divides it.
int64_t random_block(Random& random, int64_t dim) {
  if (random.coin()) return 0;
  int64_t block = 1;
  while (dim % (2 * block) == 0 && block < 4096 && random.coin()) block *= 2;
  return block;
}
int64_t block_of(int64_t block, int64_t dim) {
  if (block != 0) return block;
  for (block = 1; dim % (2 * block) == 0 && block < 4096;) block *= 2;
  return block;
}
double half_unit(DType t) { return t == DType::kBF16 ? 0x1p-8 : t == DType::kF16 ? 0x1p-11 : 0; }

TEST_P(Hadamard, IsTheMatrix) {
  Random random(seed() * 9000 + 1);
  for (int64_t i = 0; i < cases(500); ++i) {
    // Powers of two, odd numbers, and both sides of a vector.
    const int64_t dim = i % 50 == 49    ? 8192
                        : random.coin() ? int64_t{1} << random.integer(0, 9)
                                        : random.integer(1, 40) * (int64_t{1} << random.integer(0, 5));
    const std::array<int64_t, 4> shape = {random.integer(1, 2), random.integer(1, 2), random.integer(1, 3), dim};
    Array<4> x(random, random.storage(), shape, Values::kOrdinary, Strides::kInput);
    const bool in_place = random.one_in(3);
    Array<4> out(random, in_place ? x.view.dtype : random.storage(), shape, Strides::kOutput);
    if (in_place) out.assign(x.bits());
    const int64_t given = random_block(random, dim);
    const int64_t block = block_of(given, dim);
    std::vector<double> xs;
    for_each_element(x.view, [&](int64_t at) { xs.push_back(get(x.view.data, x.view.dtype, at)); });
    ASSERT_TRUE(ok(hadamard(in_place ? ConstView<4>(out.view) : ConstView<4>(x.view), out.view, given, exec())));
    std::vector<double> got;
    for_each_element(out.view, [&](int64_t at) { got.push_back(get(out.view.data, out.view.dtype, at)); });
    const double root = std::sqrt(static_cast<double>(block));
    const double roundings = std::log2(static_cast<double>(block)) + 1;
    // Of long rows some elements are enough.
    for (size_t e = 0; e < got.size(); e += dim > 1000 ? 37 : 1) {
      const size_t first = e / static_cast<size_t>(block) * static_cast<size_t>(block);
      double sum = 0, size = 0;
      for (size_t j = 0; j < static_cast<size_t>(block); ++j) {
        sum += std::popcount((e - first) & j) % 2 != 0 ? -xs[first + j] : xs[first + j];
        size += std::fabs(xs[first + j]);
      }
      const double want = sum / root;
      ASSERT_NEAR(got[e], want,
                  roundings * 0x1p-24 * size / root + half_unit(out.view.dtype) * std::fabs(want) + 0x1p-25)
          << "element " << e << ", dimension " << dim << ", block " << block << ", case " << i;
    }
    ASSERT_TRUE(out.gaps_intact());
  }
}

/// Whole numbers whose sums are exact: the second rotation gives them back to the bit.
TEST_P(Hadamard, UndoesItself) {
  Random random(seed() * 9000 + 2);
  for (const int64_t block : {4, 16, 64, 256, 1024}) {
    std::vector<float> x(static_cast<size_t>(3 * block)), y(x.size());
    for (float& e : x) e = static_cast<float>(random.integer(-100, 100));
    const std::array<int64_t, 4> shape = {1, 1, 1, 3 * block};
    for (const auto& [from, to] : {std::pair(x.data(), y.data()), std::pair(y.data(), y.data())}) {
      ASSERT_TRUE(ok(hadamard(ConstView<4>(from, DType::kF32, shape), View<4>(to, DType::kF32, shape), block, exec())));
      ASSERT_EQ(to == y.data() && from == x.data(), y != x);
    }
    EXPECT_EQ(x, y);
  }
}

/// kv_append rotates in f32 between RoPE and the one rounding: the bytes of three calls.
TEST_P(Hadamard, OnTheWayIntoACache) {
  Random random(seed() * 9000 + 3);
  for (int64_t i = 0; i < cases(300); ++i) {
    const KvType type = random.of({KvType::kF32, KvType::kBF16, KvType::kF16, KvType::kInt8, KvType::kFp8E4M3,
                                   KvType::kFp8E5M2, KvType::kQ8_0, KvType::kQ4_0});
    const KvLayout layout = random.coin() ? KvLayout::kRows : KvLayout::kPanels;
    const int64_t dim = i % 50 == 49 ? 8192 : 32 * random.integer(1, 6);
    const int64_t heads = random.integer(1, 3), n = random.integer(1, 5), capacity = 64, start = random.integer(0, 40);
    int64_t block = 1;
    while (dim % (2 * block) == 0 && block < 4096 && !random.one_in(4)) block *= 2;
    Array<4> x(random, random.storage(), {1, heads, n, dim}, Values::kOrdinary, Strides::kInput);
    Array<2> cos(random, DType::kF32, {capacity, dim / 4}), sin = cos.like(random);
    cos.fill(random, Values::kOrdinary);
    sin.fill(random, Values::kOrdinary);
    KeyRotation rope;
    if (random.coin()) {
      rope.cos = cos.view;
      rope.sin = sin.view;
      rope.options.pairing = random.coin() ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
      rope.options.first_dim = random.integer(0, dim / 2);
    }
    const size_t bytes = static_cast<size_t>(kv_bytes(type, layout, 1, heads, capacity, dim));
    std::vector<std::byte> want(bytes), got(bytes);
    std::vector<float> want_scales(static_cast<size_t>(heads * capacity), 0.5f), got_scales = want_scales;
    const auto store = [&](std::vector<std::byte>& memory, std::vector<float>& scales) {
      const Kv kv = contiguous_kv(memory.data(), type, layout, 1, heads, capacity, dim);
      return has_scales(type) ? contiguous_scales(kv, scales.data()) : kv;
    };
    std::vector<float> rows(static_cast<size_t>(heads * n * dim));
    const View<4> f32(rows.data(), DType::kF32, {1, heads, n, dim});
    size_t e = 0;
    for_each_element(x.view, [&](int64_t place) { rows[e++] = get(x.view.data, x.view.dtype, place); });
    Status s;
    if (rope.cos.data != nullptr) s = simdattn::rope(f32, rope.cos, rope.sin, start, f32, rope.options, exec());
    ASSERT_TRUE(s.ok()) << s.detail;
    s = hadamard(f32, f32, block, exec());
    ASSERT_TRUE(s.ok()) << s.detail;
    AppendOptions plain;
    plain.start = start;
    s = kv_append(f32, {}, store(want, want_scales), plain, exec());
    ASSERT_TRUE(s.ok()) << s.detail;
    AppendOptions options = plain;
    options.rope = rope;
    options.rope.hadamard_block = block;
    s = kv_append(x.view, {}, store(got, got_scales), options, exec());
    ASSERT_TRUE(s.ok()) << s.detail;
    ASSERT_EQ(want, got) << "case " << i << ", type " << static_cast<int>(type) << ", dim " << dim << ", block "
                         << block;
    ASSERT_EQ(want_scales, got_scales) << "case " << i;
  }
}

/// x times the matrix, block by block, in f64.
std::vector<double> spread(const std::vector<double>& x, int64_t block) {
  std::vector<double> y(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t first = i / static_cast<size_t>(block) * static_cast<size_t>(block);
    for (size_t k = first; k < first + static_cast<size_t>(block); ++k) {
      y[i] +=
          (std::popcount((i - first) & (k - first)) % 2 != 0 ? -1 : 1) * x[k] / std::sqrt(static_cast<double>(block));
    }
  }
  return y;
}

/// kv_shift() takes the matrix away, rotates, and puts it back: the bytes of five calls, and in f32 the formula in f64.
TEST_P(Hadamard, ShiftedInACache) {
  Random random(seed() * 9000 + 4);
  for (int64_t i = 0; i < cases(300); ++i) {
    const KvType type = random.of({KvType::kF32, KvType::kBF16, KvType::kF16, KvType::kInt8, KvType::kFp8E4M3,
                                   KvType::kFp8E5M2, KvType::kQ8_0, KvType::kQ4_0});
    const KvLayout layout = random.coin() ? KvLayout::kRows : KvLayout::kPanels;
    const int64_t dim = i % 50 == 49 ? 8192 : 32 * random.integer(1, 6);
    const int64_t heads = random.integer(1, 3), capacity = 96;
    const int64_t n = dim > 1000 ? 2 : random.integer(0, 70), first = random.integer(0, capacity - n);
    const int64_t delta = random.integer(-first, capacity - n - first);
    int64_t block = 1;
    while (dim % (2 * block) == 0 && block < 4096 && !random.one_in(4)) block *= 2;
    Array<4> x(random, DType::kF32, {1, heads, capacity, dim}, Values::kOrdinary, Strides::kInput);
    const int64_t half = random.integer(1, dim / 2);
    std::vector<float> cosine(static_cast<size_t>(half)), sine(cosine.size());
    for (size_t k = 0; k < cosine.size(); ++k) {
      const double angle = static_cast<double>(random.integer(-1000, 1000)) / 300;
      cosine[k] = static_cast<float>(std::cos(angle));
      sine[k] = static_cast<float>(std::sin(angle));
    }
    KeyRotation rope;
    rope.cos = ConstView<2>(cosine.data(), DType::kF32, {capacity, half}, {0, 1});
    rope.sin = ConstView<2>(sine.data(), DType::kF32, {capacity, half}, {0, 1});
    rope.options.pairing = random.coin() ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
    rope.options.first_dim = random.integer(0, dim - 2 * half);
    rope.hadamard_block = block;
    const bool rotates = !random.one_in(8);
    const size_t bytes = static_cast<size_t>(kv_bytes(type, layout, 1, heads, capacity, dim));
    std::vector<std::byte> want(bytes), got(bytes);
    std::vector<float> want_scales(static_cast<size_t>(heads * capacity), 0.5f), got_scales = want_scales;
    const auto store = [&](std::vector<std::byte>& memory, std::vector<float>& scales) {
      const Kv kv = contiguous_kv(memory.data(), type, layout, 1, heads, capacity, dim);
      return has_scales(type) ? contiguous_scales(kv, scales.data()) : kv;
    };
    Status s = kv_append(x.view, {}, store(want, want_scales), {}, exec());
    ASSERT_TRUE(s.ok()) << s.detail;
    got = want;
    got_scales = want_scales;

    std::vector<float> rows(static_cast<size_t>(heads * n * dim));
    const View<4> f32(rows.data(), DType::kF32, {1, heads, n, dim});
    s = kv_read(store(want, want_scales), first, f32, exec());
    ASSERT_TRUE(s.ok()) << s.detail;
    const std::vector<float> before = rows;
    if (rotates && delta != 0) {
      RopeOptions by = rope.options;
      by.inverse = delta < 0;
      const std::vector<int32_t> distance(static_cast<size_t>(n), static_cast<int32_t>(std::abs(delta)));
      const ConstView<2> positions = view(distance.data(), {1, n});
      s = hadamard(f32, f32, block, exec());
      ASSERT_TRUE(s.ok()) << s.detail;
      s = simdattn::rope(f32, rope.cos, rope.sin, positions, f32, by, exec());
      ASSERT_TRUE(s.ok()) << s.detail;
      s = hadamard(f32, f32, block, exec());
      ASSERT_TRUE(s.ok()) << s.detail;
      AppendOptions at;
      at.start = first + delta;
      s = kv_append(f32, {}, store(want, want_scales), at, exec());
      ASSERT_TRUE(s.ok()) << s.detail;
    } else {
      rope.cos = rope.sin = {};
      s = kv_shift(store(want, want_scales), first, first + n, delta, {}, exec());
      ASSERT_TRUE(s.ok()) << s.detail;
    }
    s = kv_shift(store(got, got_scales), first, first + n, delta, rope, exec());
    ASSERT_TRUE(s.ok()) << s.detail;
    ASSERT_EQ(want, got) << "case " << i << ", type " << static_cast<int>(type) << ", dim " << dim << ", block "
                         << block << ", " << n << " tokens from " << first << " by " << delta;
    ASSERT_EQ(want_scales, got_scales) << "case " << i;

    if (type != KvType::kF32 || !rotates || delta == 0 || n == 0 || dim > 1000) continue;
    std::vector<float> after(rows.size());
    s = kv_read(store(got, got_scales), first + delta, View<4>(after.data(), DType::kF32, {1, heads, n, dim}), exec());
    ASSERT_TRUE(s.ok()) << s.detail;
    for (size_t row = 0; row < before.size(); row += static_cast<size_t>(dim)) {
      std::vector<double> key(before.begin() + static_cast<int64_t>(row),
                              before.begin() + static_cast<int64_t>(row) + dim);
      double sum = 0;
      for (const double k : key) sum += std::fabs(k);
      key = spread(key, block);
      for (int64_t k = 0; k < half; ++k) {
        const bool pairs = rope.options.pairing == RopePairing::kInterleaved;
        const int64_t d0 = rope.options.first_dim + (pairs ? 2 * k : k), d1 = pairs ? d0 + 1 : d0 + half;
        double& a = key[static_cast<size_t>(d0)];
        double& b = key[static_cast<size_t>(d1)];
        const double c = static_cast<double>(cosine[static_cast<size_t>(k)]);
        const double sn = static_cast<double>(sine[static_cast<size_t>(k)]) * (delta < 0 ? -1 : 1);
        const double a0 = a;
        a = a0 * c - b * sn;
        b = a0 * sn + b * c;
      }
      key = spread(key, block);
      const double allowed = (3 * std::log2(static_cast<double>(block)) + 9) * 0x1p-24 * sum;
      for (size_t d = 0; d < key.size(); ++d) {
        ASSERT_NEAR(static_cast<double>(after[row + d]), key[d], allowed)
            << "case " << i << ", dim " << dim << ", block " << block << ", dimension " << d;
      }
    }
  }
}

TEST(HadamardRules, ShiftNamesTheOption) {
  std::vector<float> cache(1 << 16, 7.0f);
  for (const int64_t block : {-1, 3, 16, 8192}) {
    KeyRotation rope;
    rope.hadamard_block = block;
    const Status s = kv_shift(view(cache.data(), {1, 1, 3, 24}), 1, 2, 1, rope);
    EXPECT_EQ(s.code, Code::kRange) << s.detail;
    EXPECT_EQ(std::string(s.detail).rfind("rope.hadamard_block", 0), 0u) << s.detail;
  }
  KeyRotation rope;
  rope.hadamard_block = 4096;
  EXPECT_EQ(kv_shift(view(cache.data(), {1, 1, 3, 12288}), 1, 2, 1, rope).code, Code::kRange);
  for (const float c : cache) ASSERT_EQ(c, 7.0f);
}

TEST(HadamardRules, AppendNamesTheOption) {
  std::vector<float> memory(1 << 16, 1.0f), cache(1 << 16, 7.0f);
  const auto refused = [&](int64_t dim, int64_t block) {
    AppendOptions options;
    options.rope.hadamard_block = block;
    const Status s = kv_append(view(static_cast<const float*>(memory.data()), {1, 1, 2, dim}), {},
                               view(cache.data(), {1, 1, 3, dim}), options);
    EXPECT_EQ(s.code, Code::kRange) << s.detail;
    EXPECT_NE(std::strstr(s.detail, "options.rope.hadamard_block"), nullptr) << s.detail;
  };
  for (const int64_t block : {-1, 3, 16, 8192}) refused(24, block);
  refused(16384, 8192);
  refused(12288, 4096);
  for (const float c : cache) ASSERT_EQ(c, 7.0f);
}

TEST(HadamardRules, NamesTheArgument) {
  std::vector<float> memory(4096, 1.0f), result(4096, 7.0f);
  const ConstView<4> x = view(static_cast<const float*>(memory.data()), {2, 2, 3, 24});
  const View<4> out = view(result.data(), {2, 2, 3, 24});
  const auto expect = [](Code code, const char* detail, const Status& s) {
    EXPECT_EQ(s.code, code) << s.detail;
    EXPECT_NE(std::strstr(s.detail, detail), nullptr) << s.detail << " does not say " << detail;
  };
  expect(Code::kNullPointer, "x.data", hadamard(ConstView<4>(nullptr, DType::kF32, {2, 2, 3, 24}), out));
  expect(Code::kNullPointer, "out.data", hadamard(x, View<4>(nullptr, DType::kF32, {2, 2, 3, 24})));
  expect(Code::kDType, "x.dtype", hadamard(ConstView<4>(memory.data(), DType::kU8, {2, 2, 3, 24}), out));
  expect(Code::kShape, "out.shape", hadamard(x, view(result.data(), {2, 2, 3, 23})));
  expect(Code::kShape, "x.shape[3]",
         hadamard(view(static_cast<const float*>(memory.data()), {2, 2, 3, 0}), view(result.data(), {2, 2, 3, 0})));
  for (const int64_t block : {-8, 3, 16, 48, 8192}) expect(Code::kRange, "block", hadamard(x, out, block));
  expect(Code::kStride, "out.stride", hadamard(x, view(result.data(), {2, 2, 3, 24}, {0, 72, 24, 1})));
  expect(Code::kOverlap, "overlaps x",
         hadamard(view(static_cast<const float*>(result.data() + 8), {2, 2, 3, 24}), out));
  for (const float r : result) ASSERT_EQ(r, 7.0f);
  EXPECT_TRUE(hadamard(view(static_cast<const float*>(nullptr), {0, 2, 3, 24}),
                       view(static_cast<float*>(nullptr), {0, 2, 3, 24}))
                  .ok());
}

SIMDATTN_FOR_EACH_TARGET(Hadamard);

}  // namespace
}  // namespace simdattn::test
