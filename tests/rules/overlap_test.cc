// Which bytes strided arrays share: against enumeration, on the layouts that engines have, and on hostile ones.
#include "lib/rules/overlap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tests/support/random.h"

namespace simdattn::test {
namespace {

struct Axis {
  int64_t count;
  int64_t step;  // bytes
};

/// An array as a caller has it: `axes` from the outermost to the innermost, of any sign and order.
struct Array {
  uintptr_t data;
  std::vector<Axis> axes;
  int64_t width;

  ByteSet bytes() const {
    ByteSet set = ByteSet::of(reinterpret_cast<const void*>(data), width);
    for (size_t i = axes.size(); i-- > 0;) EXPECT_TRUE(set.add(axes[i].count, axes[i].step));
    return set;
  }
  /// Every byte as often as it is touched.
  std::vector<uintptr_t> enumerated() const {
    std::vector<uintptr_t> starts = {data};
    for (const Axis& axis : axes) {
      std::vector<uintptr_t> more;
      for (const uintptr_t start : starts) {
        for (int64_t i = 0; i < axis.count; ++i) more.push_back(start + static_cast<uintptr_t>(i * axis.step));
      }
      starts = std::move(more);
    }
    std::vector<uintptr_t> all;
    for (const uintptr_t start : starts) {
      for (int64_t i = 0; i < width; ++i) all.push_back(start + static_cast<uintptr_t>(i));
    }
    std::sort(all.begin(), all.end());
    return all;
  }
  std::string text() const {
    std::string s = "at " + std::to_string(data) + " width " + std::to_string(width);
    for (const Axis& axis : axes) s += ", " + std::to_string(axis.count) + " x " + std::to_string(axis.step);
    return s;
  }
};

/// The decision, and how often it tried.
struct Decision {
  bool yes = false;
  int tries = 0;
};
Decision share(const ByteSet& a, const ByteSet& b, int work = kOverlapWork) {
  if (!extents_meet(a, b)) return {};
  int left = work;
  const bool yes = share_bytes_inside(a, b, &left);
  return {yes, work - left};
}
Decision coincide(const ByteSet& a, int work = kOverlapWork) {
  if (a.nested) return {};
  int left = work;
  const bool yes = self_overlap_inside(a, &left);
  return {yes, work - left};
}

Array random_array(Random& random) {
  Array array;
  array.data = static_cast<uintptr_t>(100000 + random.integer(-300, 300));
  array.width = random.one_in(3) ? 1 : random.integer(1, 9);
  const int64_t rank = random.integer(0, ByteSet::kMaxDims);
  const int64_t most = rank < 3 ? 9 : rank < 5 ? 5 : 3;
  // Multiples of a unit leave gaps; few large steps that do not divide each other need the search.
  const int64_t unit = random.of({int64_t{1}, int64_t{2}, int64_t{8}, int64_t{12}});
  const int64_t far = random.of({int64_t{4}, int64_t{20}, int64_t{120}});
  for (int64_t i = 0; i < rank; ++i) {
    array.axes.push_back({random.integer(1, most), unit * random.integer(-far, far)});
    if (random.one_in(16)) array.axes.back().step = 0;
    if (random.one_in(3)) array.axes.back().step += random.integer(-2, 2);
  }
  return array;
}

TEST(Overlap, OfSmallSetsIsThatOfTheirBytes) {
  Random random(seed() * 6000 + 1);
  int64_t shared = 0, apart = 0, tried = 0, met = 0, undecided = 0;
  for (int64_t i = 0; i < cases(60000); ++i) {
    const Array a = random_array(random);
    Array b = random_array(random);
    if (random.one_in(4)) b.axes = a.axes;
    const std::vector<uintptr_t> in_a = a.enumerated(), in_b = b.enumerated();
    const ByteSet set_a = a.bytes(), set_b = b.bytes();
    ASSERT_EQ(set_a.first, in_a.front()) << a.text();
    ASSERT_EQ(set_a.first + static_cast<uintptr_t>(set_a.span), in_a.back() + 1) << a.text();
    std::vector<uintptr_t> both;
    std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(), std::back_inserter(both));
    const Decision decision = share(set_a, set_b);
    ASSERT_EQ(share_bytes(set_a, set_b), decision.yes);
    const bool refused = decision.tries > kOverlapWork;
    ASSERT_TRUE(decision.yes == !both.empty() || refused) << a.text() << "\n" << b.text();
    undecided += refused;
    ASSERT_TRUE(refused || decision.yes == share(set_b, set_a).yes) << a.text() << "\n" << b.text();
    met += extents_meet(set_a, set_b);
    tried += decision.tries > 0;
    ++(both.empty() ? apart : shared);
    apart -= !extents_meet(set_a, set_b);
  }
  if (cases(60000) >= 1000) {
    EXPECT_GT(shared, met / 4);
    EXPECT_GT(apart, met / 10);
    EXPECT_GT(tried, met / 100);
    EXPECT_LE(undecided, met / 1000 + 1);
  }
}

TEST(Overlap, OfASetWithItselfIsAByteTouchedTwice) {
  Random random(seed() * 6000 + 2);
  int64_t twice = 0, once = 0, tried = 0;
  for (int64_t i = 0; i < cases(60000); ++i) {
    Array a = random_array(random);
    // Small steps nearly always coincide.
    if (random.coin()) {
      for (Axis& axis : a.axes) axis.step *= random.integer(1, 40);
    }
    const std::vector<uintptr_t> in_a = a.enumerated();
    const bool expected = std::adjacent_find(in_a.begin(), in_a.end()) != in_a.end();
    ASSERT_EQ(self_overlap(a.bytes()), expected) << a.text();
    ++(expected ? twice : once);
    tried += coincide(a.bytes()).tries > 0;
  }
  if (cases(60000) >= 1000) {
    EXPECT_GT(twice, cases(60000) / 10);
    EXPECT_GT(once, cases(60000) / 10);
    EXPECT_GT(tried, cases(60000) / 100);
  }
}

/// Long rows whose steps have no order: apart is never said wrongly.
TEST(Overlap, OfTwoLongRowsIsNeverMissed) {
  Random random(seed() * 6000 + 3);
  int64_t shared = 0, apart = 0;
  const int64_t n = cases(4000);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t step = random.integer(50, 4000);
    const Array a = {static_cast<uintptr_t>(random.integer(1000000, 1000100)),
                     {{random.integer(1, 300), step}},
                     random.integer(1, 3)};
    const Array b = {static_cast<uintptr_t>(random.integer(1000000, 1100000)),
                     {{random.integer(1, 300), (random.coin() ? 1 : -1) * (step + random.integer(-40, 40))}},
                     random.integer(1, 3)};
    const std::vector<uintptr_t> in_a = a.enumerated(), in_b = b.enumerated();
    std::vector<uintptr_t> both;
    std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(), std::back_inserter(both));
    const Decision decision = share(a.bytes(), b.bytes());
    ASSERT_TRUE(decision.yes || both.empty()) << a.text() << "\n" << b.text();
    ASSERT_TRUE(!decision.yes || !both.empty() || decision.tries > kOverlapWork) << a.text() << "\n" << b.text();
    shared += !both.empty();
    apart += !decision.yes;
  }
  if (n >= 400) {
    EXPECT_GT(shared, n / 20);
    EXPECT_GT(apart, n / 2);
  }
}

TEST(Overlap, TheOrderOfDimensionsMeansNothing) {
  Random random(seed() * 6000 + 4);
  for (int64_t i = 0; i < cases(5000); ++i) {
    Array a = random_array(random);
    const Array b = random_array(random);
    const bool with_b = share_bytes(a.bytes(), b.bytes()), with_itself = self_overlap(a.bytes());
    for (size_t j = a.axes.size(); j > 1; --j) {
      std::swap(a.axes[j - 1], a.axes[static_cast<size_t>(random.integer(0, static_cast<int64_t>(j) - 1))]);
    }
    ASSERT_EQ(share_bytes(a.bytes(), b.bytes()), with_b) << a.text() << "\n" << b.text();
    ASSERT_EQ(self_overlap(a.bytes()), with_itself) << a.text();
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Layouts by name

constexpr uintptr_t kBuffer = 0x7F0000001000;

/// Part `part` of `parts` in [batch, tokens, parts, heads, dim] of `size` bytes an element, seen as [batch, heads,
/// tokens, dim].
Array packed(int64_t part, int64_t parts, int64_t batch, int64_t tokens, int64_t heads, int64_t dim, int64_t size) {
  const int64_t row = dim * size;
  return {kBuffer + static_cast<uintptr_t>(part * heads * row),
          {{batch, tokens * parts * heads * row}, {heads, row}, {tokens, parts * heads * row}},
          row};
}

TEST(Overlap, PartsOfAPackedBufferAreApart) {
  for (const int64_t batch : {1, 3}) {
    for (const int64_t tokens : {1, 2, 7, 4096}) {
      for (int64_t heads = 1; heads <= 9; ++heads) {
        for (const int64_t dim : {1, 3, 64, 128}) {
          for (const int64_t size : {2, 4}) {
            std::vector<ByteSet> sets;
            for (int64_t part = 0; part < 5; ++part) {
              sets.push_back(packed(part, 5, batch, tokens, heads, dim, size).bytes());
            }
            for (const ByteSet& a : sets) {
              EXPECT_EQ(coincide(a).yes, false);
              EXPECT_EQ(coincide(a).tries, 0);
              for (const ByteSet& b : sets) {
                const Decision decision = share(a, b);
                ASSERT_EQ(decision.yes, &a == &b) << batch << " " << tokens << " " << heads << " " << dim;
                ASSERT_LE(decision.tries, 16);
              }
            }
          }
        }
      }
    }
  }
}

TEST(Overlap, OneByteTooFarIsSeen) {
  for (const int64_t heads : {1, 3, 8}) {
    const Array q = packed(0, 3, 2, 100, heads, 64, 4);
    Array k = packed(1, 3, 2, 100, heads, 64, 4);
    EXPECT_FALSE(share_bytes(q.bytes(), k.bytes()));
    k.data -= 1;
    EXPECT_TRUE(share_bytes(q.bytes(), k.bytes()));
    k.data += 2;
    EXPECT_FALSE(share_bytes(q.bytes(), k.bytes()));  // into v
    Array wide = q;
    wide.width += 1;
    EXPECT_EQ(share_bytes(wide.bytes(), packed(1, 3, 2, 100, heads, 64, 4).bytes()), true);
    EXPECT_EQ(self_overlap(wide.bytes()), heads > 1);
  }
}

TEST(Overlap, FewHeadsBesideManyAreApart) {
  // Grouped queries: [tokens, 8 + 2 + 2 heads, 64].
  const auto part = [](int64_t first, int64_t heads) {
    return Array{kBuffer + static_cast<uintptr_t>(first * 256), {{heads, 256}, {1000, 12 * 256}}, 256}.bytes();
  };
  EXPECT_FALSE(share_bytes(part(0, 8), part(8, 2)));
  EXPECT_FALSE(share_bytes(part(0, 8), part(10, 2)));
  EXPECT_FALSE(share_bytes(part(8, 2), part(10, 2)));
  EXPECT_TRUE(share_bytes(part(0, 9), part(8, 2)));
  EXPECT_FALSE(self_overlap(part(0, 12)));
  EXPECT_TRUE(self_overlap(part(0, 13)));  // its last head is the first of the next token
}

TEST(Overlap, StepsThatDoNotNestMayBeDistinct) {
  // 0 2 4, 3 5 7: all different, though 3 does not skip 0 .. 4.
  EXPECT_FALSE(self_overlap(Array{kBuffer, {{2, 3}, {3, 2}}, 1}.bytes()));
  EXPECT_TRUE(self_overlap(Array{kBuffer, {{2, 4}, {3, 2}}, 1}.bytes()));
  EXPECT_FALSE(self_overlap(Array{kBuffer, {{2, 3}, {4, 2}}, 1}.bytes()));  // 6 = 2 * 3 wants a third row
  EXPECT_TRUE(self_overlap(Array{kBuffer, {{3, 3}, {4, 2}}, 1}.bytes()));
  // Elements of 4 bytes.
  EXPECT_FALSE(self_overlap(Array{kBuffer, {{2, 12}, {3, 8}}, 4}.bytes()));
  EXPECT_TRUE(self_overlap(Array{kBuffer, {{2, 12}, {3, 8}}, 5}.bytes()));
}

TEST(Overlap, RepeatedBytesAndBackwardsRows) {
  EXPECT_TRUE(self_overlap(Array{kBuffer, {{2, 0}, {3, 64}}, 64}.bytes()));
  EXPECT_FALSE(self_overlap(Array{kBuffer, {{1, 0}, {3, 64}}, 64}.bytes()));
  const Array forwards = {kBuffer, {{10, 128}}, 64};
  const Array backwards = {kBuffer + 9 * 128 + 64, {{10, -128}}, 64};
  EXPECT_FALSE(self_overlap(backwards.bytes()));
  EXPECT_FALSE(share_bytes(forwards.bytes(), backwards.bytes()));
  EXPECT_TRUE(share_bytes(forwards.bytes(), Array{kBuffer + 9 * 128 + 63, {{10, -128}}, 64}.bytes()));
  // A mask that is broadcast, under an output.
  const Array mask = {kBuffer + 64, {{8, 0}, {10, 128}}, 64};
  EXPECT_FALSE(share_bytes(forwards.bytes(), mask.bytes()));
  EXPECT_TRUE(share_bytes(forwards.bytes(), Array{kBuffer + 63, {{8, 0}, {10, 128}}, 64}.bytes()));
}

TEST(Overlap, PlainRangesAndNothing) {
  const char bytes[64] = {};
  const ByteSet a = ByteSet::of(bytes, 16), b = ByteSet::of(bytes + 16, 16), c = ByteSet::of(bytes + 15, 2);
  EXPECT_FALSE(share_bytes(a, b));
  EXPECT_FALSE(share_bytes(b, a));
  EXPECT_FALSE(extents_meet(a, b));
  EXPECT_FALSE(extents_meet(b, a));
  EXPECT_TRUE(share_bytes(a, c));
  EXPECT_TRUE(share_bytes(c, b));
  EXPECT_TRUE(share_bytes(a, a));
  for (const ByteSet& none : {ByteSet::of(bytes + 8, 0), ByteSet::of(nullptr, 8), ByteSet::of(bytes + 8, -1)}) {
    EXPECT_TRUE(none.empty());
    EXPECT_FALSE(share_bytes(a, none));
    EXPECT_FALSE(share_bytes(none, a));
    EXPECT_FALSE(share_bytes(none, none));
    EXPECT_FALSE(self_overlap(none));
  }
  ByteSet cleared = ByteSet::of(bytes, 16);
  EXPECT_TRUE(cleared.add(2, 0));
  cleared.clear();
  EXPECT_FALSE(share_bytes(a, cleared));
  EXPECT_FALSE(self_overlap(cleared));
}

/// Views into one dense buffer, as slicing and transposing makes them, with equal steps in a dimension: exact with few
/// tries.
TEST(Overlap, SlicesOfOneBufferTakeFewTries) {
  Random random(seed() * 6000 + 5);
  int most = 0;
  int64_t shared = 0;
  const int64_t n = cases(20000);
  for (int64_t i = 0; i < n; ++i) {
    int64_t sizes[ByteSet::kMaxDims];
    for (int64_t& size : sizes)
      size = random.of({int64_t{1}, int64_t{2}, int64_t{3}, int64_t{5}, int64_t{8}, int64_t{31}, int64_t{32},
                        int64_t{100}, int64_t{300}});
    const int64_t dim = random.of({int64_t{1}, int64_t{64}, int64_t{80}, int64_t{128}}) * 4;
    const bool gaps = random.coin();  // after rows, matrices, ...
    int64_t gap[ByteSet::kMaxDims];
    for (int64_t& bytes : gap) bytes = gaps && random.coin() ? 4 * random.integer(1, 100) : 0;
    int64_t steps[ByteSet::kMaxDims];
    for (int64_t& by : steps) by = random.one_in(4) ? random.integer(1, 4) : 1;
    const auto slice = [&] {
      Array a = {kBuffer, {}, dim};
      int64_t step = dim;
      for (size_t k = 0; k < ByteSet::kMaxDims; ++k) {
        const int64_t size = sizes[k];
        step += gap[k];
        const int64_t by = steps[k];
        const int64_t begin = random.coin() ? 0 : random.integer(0, size - 1);
        const int64_t count = random.integer(1, (size - begin + by - 1) / by);
        const bool backwards = random.one_in(4);
        a.data += static_cast<uintptr_t>(step * (begin + (backwards ? (count - 1) * by : 0)));
        a.axes.insert(a.axes.begin() + random.integer(0, static_cast<int64_t>(a.axes.size())),
                      Axis{count, (backwards ? -by : by) * step});
        step *= size;
      }
      return a;
    };
    const Array a = slice(), b = slice();
    const Decision decision = share(a.bytes(), b.bytes()), itself = coincide(a.bytes());
    ASSERT_FALSE(itself.yes) << a.text();
    most = std::max({most, decision.tries, itself.tries});
    shared += decision.yes;
  }
  RecordProperty("tries", most);
  EXPECT_LT(most, 50);
  if (n >= 400) {
    EXPECT_GT(shared, n / 20);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Hostile input

TEST(Overlap, WorkIsBoundedAndThenRefuses) {
  Random random(seed() * 6000 + 6);
  int64_t exhausted = 0;
  for (int64_t i = 0; i < cases(60); ++i) {
    // Sparse sums of many terms without a common divisor: most of these share nothing, and nobody can tell quickly.
    const auto hostile = [&] {
      Array a = {kBuffer + static_cast<uintptr_t>(random.integer(0, 1 << 20)), {}, 1};
      for (int k = 0; k < ByteSet::kMaxDims; ++k) {
        a.axes.push_back({random.integer(50, 200), random.integer(int64_t{1} << 48, int64_t{1} << 49)});
      }
      return a;
    };
    const ByteSet a = hostile().bytes(), b = hostile().bytes();
    const Decision decision = share(a, b), itself = coincide(a);
    ASSERT_LE(decision.tries, kOverlapWork + 2 * ByteSet::kMaxDims);
    ASSERT_LE(itself.tries, kOverlapWork + 2 * ByteSet::kMaxDims);
    ASSERT_TRUE(decision.yes || decision.tries <= kOverlapWork);
    ASSERT_TRUE(itself.yes || itself.tries <= kOverlapWork);
    exhausted += decision.tries > kOverlapWork;
  }
  EXPECT_GT(exhausted, 0);  // else this tests nothing
}

TEST(Overlap, TheLargestSetsDoNotOverflow) {
  Random random(seed() * 6000 + 7);
  for (int64_t i = 0; i < cases(3000); ++i) {
    const auto huge = [&] {
      Array a = {random.coin() ? random.bits() : kBuffer, {}, random.of({int64_t{1}, int64_t{1} << 33})};
      for (int k = 0; k < ByteSet::kMaxDims; ++k) {
        const int64_t count = random.of({int64_t{2}, int64_t{3}, int64_t{1} << 15, (int64_t{1} << 30) - 1});
        const int64_t step = ByteSet::kMaxReach / (count - 1) - (random.coin() ? 0 : random.integer(0, 1000));
        a.axes.push_back({count, random.coin() ? step : -step});
      }
      return a;
    };
    const ByteSet a = huge().bytes(), b = huge().bytes();
    EXPECT_EQ(share(a, b, 1000).yes, share(b, a, 1000).yes || share(b, a, 1000).tries > 1000);
    EXPECT_TRUE(share(a, a, 1000).yes);
    coincide(a, 1000);
  }
}

TEST(Overlap, WhatReachesTooFarIsRefused) {
  ByteSet set = ByteSet::of(reinterpret_cast<const void*>(kBuffer), 4);
  for (const int64_t stride : {INT64_MAX, INT64_MIN, int64_t{1} << 62, -(int64_t{1} << 62), int64_t{1} << 57,
                               -(int64_t{1} << 57), (ByteSet::kMaxReach / 8) + 1}) {
    EXPECT_FALSE(set.add(2, stride, 8)) << stride;
    EXPECT_FALSE(set.add((int64_t{1} << 30) - 1, stride, 8)) << stride;
    EXPECT_TRUE(set.add(1, stride, 8)) << stride;
    EXPECT_EQ(set.outer, 0);
    EXPECT_EQ(set.span, 4);
    EXPECT_EQ(set.first, kBuffer);
  }
  EXPECT_TRUE(set.add(2, ByteSet::kMaxReach / 8, 8));
  EXPECT_EQ(set.span, ByteSet::kMaxReach + 4);
  EXPECT_TRUE(set.add(2, -ByteSet::kMaxReach / 8, 8));
  EXPECT_EQ(set.first, kBuffer - static_cast<uintptr_t>(ByteSet::kMaxReach));
}

}  // namespace
}  // namespace simdattn::test
