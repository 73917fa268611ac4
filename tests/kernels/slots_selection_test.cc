// What selects keys, and the norm on the way into a cache: the slots of every runnable target against the definition.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "tests/kernels/slots.h"

namespace simdattn::test {
namespace {

TEST_P(Slots, Above) {
  Random random(seed() * 100 + 125);
  for (int64_t i = 0; i < cases(2000); ++i) {
    const int64_t n = random.size(0, 300);
    const Rows x = random_workspace(random, 1, n, Values::kSpecial);
    const float bound =
        n > 0 && random.coin() ? x.at(0, random.integer(0, n - 1)) : random.of({0.0f, -0.0f, -kInf, 0.5f});
    const int32_t first = static_cast<int32_t>(random.integer(0, 1 << 30));
    std::vector<int32_t> want(static_cast<size_t>(n + kMorePlaces), 7), got = want;
    const int64_t count = definition().above(x.f32(), bound, n, first, want.data());
    ASSERT_EQ(uk().above(x.f32(), bound, n, first, nullptr), count) << describe(i, 0, {{"n", n}});
    ASSERT_EQ(uk().above(x.f32(), bound, n, first, got.data()), count) << describe(i, 0, {{"n", n}});
    ASSERT_EQ(definition().above(x.f32(), bound, n, first, nullptr), count);
    for (auto* const places : {&want, &got}) places->resize(static_cast<size_t>(count));
    ASSERT_EQ(got, want) << describe(i, 0, {{"n", n}});
  }
}

TEST_P(Slots, JoinRows) {
  Random random(seed() * 100 + 127);
  for (int64_t i = 0; i < cases(2000); ++i) {
    const int64_t rows = random.size(0, 70), columns = random.size(0, 300);
    const Rows s = random_workspace(random, rows, columns, values(i));
    const Rows w = random_workspace(random, 1, rows, values(i));
    const Rows before = random_workspace(random, 1, columns, Values::kOrdinary);
    JoinRows a = {.s = s.f32(),
                  .lds = s.stride,
                  .rows = rows,
                  .columns = columns,
                  .weights = random.coin() ? w.f32() : nullptr,
                  .relu = random.coin(),
                  .largest = random.coin(),
                  .more = random.coin(),
                  .y = nullptr};
    std::vector<float> want(before.f32(), before.f32() + columns), got = want;
    a.y = want.data();
    definition().join_rows(a);
    a.y = got.data();
    uk().join_rows(a);
    if (!is_exact()) continue;
    for (size_t c = 0; c < want.size(); ++c) {
      ASSERT_EQ(std::bit_cast<uint32_t>(want[c]), std::bit_cast<uint32_t>(got[c]))
          << describe(i, 0, {{"rows", rows}, {"columns", columns}, {"column", static_cast<int64_t>(c)}});
    }
  }
}

TEST_P(Slots, NormRow) {
  Random random(seed() * 100 + 128);
  for (int64_t i = 0; i < cases(2000); ++i) {
    const int64_t n = random.size(0, 300);
    const Rows x = random_workspace(random, 1, n, values(i)), w = random_workspace(random, 1, n, values(i));
    const float factor = number(random, values(i));
    const float* weights = random.one_in(4) ? nullptr : w.f32();
    const bool plus_one = random.coin();
    std::vector<float> want(x.f32(), x.f32() + n), got = want;
    definition().norm_row(want.data(), n, factor, weights, plus_one);
    uk().norm_row(got.data(), n, factor, weights, plus_one);
    ASSERT_TRUE(n == 0 || std::memcmp(want.data(), got.data(), want.size() * 4) == 0) << describe(i, 0, {{"n", n}});
  }
}

}  // namespace
}  // namespace simdattn::test
