// The public functions: every exact target returns the bits of the definition, whatever shapes, strides, types, options
// and values; the definition is compared with the best other target. Targets without fused multiply-add have bits of their
// own; for them a second call with other strides and alignments has to give the same ones.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/problems.h"
#include "tests/random.h"
#include "tests/target_test.h"

namespace simdattn::test {
namespace {

class Bits : public TargetTest {
 protected:
  /// The target whose bits are expected, and how: see above.
  static Exec other() { return {.target = &counterpart(target())}; }
  static Values values(Random& random) {
    return random.of({Values::kOrdinary, Values::kWide, Values::kSpecial, Values::kHuge});
  }
};

/// The first difference between two outputs of one shape and type; also checks their gaps.
template <int kRank>
std::string difference(const Array<kRank>& want, const Array<kRank>& got) {
  const std::vector<uint64_t> w = want.bits(), g = got.bits();
  for (size_t i = 0; i < w.size(); ++i) {
    if (w[i] != g[i]) {
      char text[120];
      std::snprintf(text, sizeof text, "element %zu of %zu: %08llx, expected %08llx", i, w.size(),
                    static_cast<unsigned long long>(g[i]), static_cast<unsigned long long>(w[i]));
      return text;
    }
  }
  return want.gaps_intact() && got.gaps_intact() ? "" : "bytes between the elements of an output were written";
}

/// An output of the same shape, with the same or other strides.
template <int kRank>
Array<kRank> sibling(Random& random, const Array<kRank>& a) {
  return Array<kRank>(random, a.view.dtype, a.view.shape, Strides::kOutput);
}

std::string sizes(std::initializer_list<int64_t> list) {
  std::string text = " [";
  for (const int64_t n : list) text += std::to_string(n) + " ";
  return text + "]";
}

TEST_P(Bits, Scores) {
  Random random(seed() * 2000 + 1);
  for (int64_t i = 0; i < cases(1500); ++i) {
    const bool tall = random.one_in(20);  // other arithmetics take 64 rows at a time
    const int64_t kv_heads = random.integer(1, 3), heads = kv_heads * random.integer(1, 5);
    const int64_t batch = random.integer(1, 2), n_q = random.integer(0, tall ? 70 : 6), n_kv = random.size(0, 70),
                  dim = random.size(1, tall ? 40 : 140);
    Array<4> q(random, random.storage(), {batch, heads, n_q, dim}, Strides::kInput);
    Array<4> k(random, random.storage(), {batch, kv_heads, n_kv, dim}, Strides::kInput);
    const Values kind = values(random);
    q.fill(random, kind);
    k.fill(random, kind);
    Array<4> want(random, DType::kF32, {batch, heads, n_q, n_kv}, Strides::kOutput), got = sibling(random, want);
    Optional<float> scale;
    if (random.coin()) scale = number(random, Values::kWide);
    const Array<4> q2 = q.with(random, Strides::kOutput), k2 = k.with(random, Strides::kOutput);
    const ScoreOptions options = {.scale = scale, .arithmetic = random_arithmetic(random)};
    ASSERT_TRUE(run_scores(q.view, k.view, want.view, options, other().target).ok());
    ASSERT_TRUE(run_scores(q2.view, k2.view, got.view, options, &target()).ok());
    ASSERT_EQ(difference(want, got), "") << "case " << i << sizes({batch, heads, kv_heads, n_q, n_kv, dim})
                                         << arithmetic_name(options.arithmetic);
  }
}

TEST_P(Bits, Softmax) {
  Random random(seed() * 2000 + 2);
  for (int64_t i = 0; i < cases(2500); ++i) {
    const int64_t rows = random.integer(0, 12), n = random.size(0, 500);
    Array<2> x(random, DType::kF32, {rows, n}, Strides::kInput);
    x.fill(random, values(random));
    const float spread = random.of({1.0f, 60.0f});
    if (random.coin())
      for_each_element(x.view, [&](int64_t at) { put(x.view.data, DType::kF32, at, spread * random.uniform()); });
    Array<2> want(random, DType::kF32, {rows, n}, Strides::kOutput), got = sibling(random, want);
    Array<1> want_lse(random, DType::kF32, {rows}), got_lse(random, DType::kF32, {rows});
    const bool in_place = random.coin();
    if (in_place) got.assign(x.bits());
    const View<1> absent;
    const bool with_lse = random.coin();
    ASSERT_TRUE(softmax(x.view, want.view, want_lse.view, other()).ok());
    ASSERT_TRUE(softmax(in_place ? ConstView<2>(got.view) : ConstView<2>(x.view), got.view,
                        with_lse ? got_lse.view : absent, exec())
                    .ok());
    ASSERT_EQ(difference(want, got), "") << "case " << i << sizes({rows, n}) << " in place " << in_place;
    if (with_lse) {
      ASSERT_EQ(difference(want_lse, got_lse), "") << "lse, case " << i << sizes({rows, n});
    }
  }
}

TEST_P(Bits, MaskedSoftmax) {
  Random random(seed() * 2000 + 3);
  for (int64_t i = 0; i < cases(3000); ++i) {
    // Some with more rows than one call of the slot takes, and some with longer rows than fit into its buffer.
    const bool tall = random.one_in(30), wide = random.one_in(100);
    const int64_t batch = tall || wide ? 1 : random.integer(1, 3), heads = random.integer(1, tall || wide ? 2 : 4),
                  n_q = random.integer(0, tall ? 150 : 9), n_kv = random.size(0, wide ? 6000 : 200);
    Array<4> x(random, DType::kF32, {batch, heads, n_q, n_kv}, Strides::kInput);
    x.fill(random, values(random));
    if (random.coin())
      for_each_element(x.view, [&](int64_t at) { put(x.view.data, DType::kF32, at, 15 * random.uniform()); });
    const std::vector<int64_t> q(static_cast<size_t>(batch), n_q), kv(static_cast<size_t>(batch), n_kv);
    const ScoringCase c = random_scoring(random, {heads, batch, n_q, n_kv, q, kv}, {.extreme = random.coin()});
    Array<4> want(random, DType::kF32, {batch, heads, n_q, n_kv}, Strides::kOutput), got = sibling(random, want);
    Array<3> want_lse(random, DType::kF32, {batch, heads, n_q}, Strides::kOutput), got_lse = sibling(random, want_lse);
    const bool in_place = random.coin();
    if (in_place) got.assign(x.bits());
    const View<3> absent;
    const bool with_lse = random.coin();
    ASSERT_TRUE(masked_softmax(x.view, want.view, c.scoring, want_lse.view, other()).ok());
    ASSERT_TRUE(masked_softmax(in_place ? ConstView<4>(got.view) : ConstView<4>(x.view), got.view, c.scoring,
                               with_lse ? got_lse.view : absent, exec())
                    .ok());
    ASSERT_EQ(difference(want, got), "") << "case " << i << sizes({batch, heads, n_q, n_kv}) << " in place " << in_place
                                         << describe(c.scoring);
    if (with_lse) {
      ASSERT_EQ(difference(want_lse, got_lse), "")
          << "lse, case " << i << sizes({batch, heads, n_q, n_kv}) << describe(c.scoring);
    }
  }
}

TEST_P(Bits, WeightedValues) {
  Random random(seed() * 2000 + 4);
  for (int64_t i = 0; i < cases(1200); ++i) {
    const bool tall = random.one_in(20);  // other arithmetics take 64 rows at a time
    const int64_t kv_heads = random.integer(1, 2), heads = kv_heads * random.integer(1, 5);
    const int64_t batch = random.integer(1, 2), n_q = random.integer(0, tall ? 70 : 10),
                  n_kv = random.size(0, random.one_in(8) ? 600 : 60), dim = random.size(1, tall ? 40 : 140);
    Array<4> p(random, DType::kF32, {batch, heads, n_q, n_kv}, Strides::kInput);
    Array<4> v(random, random.storage(), {batch, kv_heads, n_kv, dim}, Strides::kInput);
    const Values kind = values(random);
    p.fill(random, random.coin() ? Values::kOrdinary : kind);
    if (random.coin())
      for_each_element(p.view, [&](int64_t at) {
        if (random.coin()) put(p.view.data, DType::kF32, at, 0.0f);
      });
    v.fill(random, kind);
    Array<4> want(random, random.storage(), {batch, heads, n_q, dim}, Strides::kOutput), got = sibling(random, want);
    const Array<4> p2 = p.with(random, Strides::kOutput), v2 = v.with(random, Strides::kOutput);
    const ValueOptions options = {.arithmetic = random_arithmetic(random)};
    ASSERT_TRUE(run_weighted_values(p.view, v.view, want.view, options, other().target).ok());
    ASSERT_TRUE(run_weighted_values(p2.view, v2.view, got.view, options, &target()).ok());
    ASSERT_EQ(difference(want, got), "") << "case " << i << sizes({batch, heads, kv_heads, n_q, n_kv, dim})
                                         << arithmetic_name(options.arithmetic);
  }
}

TEST_P(Bits, Rope) {
  Random random(seed() * 2000 + 5);
  for (int64_t i = 0; i < cases(2000); ++i) {
    const int64_t half = random.size(1, 70);
    RopeOptions options;
    options.pairing = random.coin() ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
    options.inverse = random.coin();
    options.first_dim = random.coin() ? 0 : random.integer(0, 20);
    const int64_t dim = options.first_dim + 2 * half + (random.coin() ? 0 : random.integer(1, 20));
    const int64_t batch = random.integer(1, 3), heads = random.integer(1, 5), n = random.integer(0, 7),
                  n_positions = n + random.integer(1, 9);
    Array<4> x(random, random.storage(), {batch, heads, n, dim}, Strides::kInput);
    x.fill(random, values(random));
    const bool in_place = random.one_in(3);
    Array<4> want(random, in_place ? x.view.dtype : random.storage(), {batch, heads, n, dim}, Strides::kOutput),
        got = sibling(random, want);
    if (in_place) got.assign(x.bits());
    Array<2> cosine(random, DType::kF32, {n_positions, half}, Strides::kInput),
        sine(random, DType::kF32, {n_positions, half}, Strides::kInput);
    cosine.fill(random, values(random));
    sine.fill(random, values(random));
    Array<2> positions(random, random.coin() ? DType::kI64 : DType::kI32, {batch, n}, Strides::kInput);
    for_each_element(positions.view, [&](int64_t at) {
      set_element_bits(positions.view.data, positions.view.dtype, at,
                       static_cast<uint64_t>(random.integer(0, n_positions - 1)));
    });
    const ConstView<2> absent;
    const ConstView<2> given = random.coin() ? ConstView<2>(positions.view) : absent;
    ASSERT_TRUE(rope(x.view, cosine.view, sine.view, given, want.view, options, other()).ok());
    const Status s = rope(in_place ? ConstView<4>(got.view) : ConstView<4>(x.view), cosine.view, sine.view, given,
                          got.view, options, exec());
    ASSERT_TRUE(s.ok()) << s.detail;
    ASSERT_EQ(difference(want, got), "") << "case " << i << sizes({batch, heads, n, dim, half, options.first_dim})
                                         << " in place " << in_place;
  }
}

TEST_P(Bits, KvAppend) {
  Random random(seed() * 2000 + 6);
  for (int64_t i = 0; i < cases(1500); ++i) {
    const int64_t batch = random.integer(1, 3), heads = random.integer(1, 3), n = random.integer(0, 6),
                  half = i % 100 == 99 ? random.integer(1000, 1100) : random.size(1, 30);
    const int64_t dim = 2 * half + (random.coin() ? 0 : random.integer(1, 9));
    const int64_t tokens = random.size(1, i % 100 == 99 ? 40 : 150);
    Array<4> rows(random, random.storage(), {batch, heads, n, dim}, Strides::kInput);
    rows.fill(random, values(random));
    const KvForm form = random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels,
                                   KvForm::kRingRows, KvForm::kRingPanels});
    const DType type = random.storage();
    const KvStorage want = make_kv(random, type, form, batch, heads, tokens, dim, 40);
    // The same storage once more.
    Guarded copy(want.memory.size(), random.guard());
    std::memcpy(copy.data(), want.memory.data(), copy.size());
    Kv got = want.kv;
    got.data = copy.data();
    // Tokens whose page is negative are skipped.
    if (want.kv.page_size > 0 && random.coin()) want.table.data()[0] = -1;
    Array<2> positions(random, random.coin() ? DType::kI64 : DType::kI32, {batch, n}, Strides::kOutput);
    // No two tokens of a sequence at one place: which would win is nobody's business.
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t first = random.integer(0, tokens - 1);
      for (int64_t t = 0; t < n; ++t) {
        const int64_t p = random.one_in(5) || first + t >= tokens ? -1 : first + t;
        set_element_bits(positions.view.data, positions.view.dtype, positions.at({b, t}), static_cast<uint64_t>(p));
      }
    }
    Array<2> cosine(random, DType::kF32, {tokens, half}), sine(random, DType::kF32, {tokens, half});
    cosine.fill(random, Values::kOrdinary);
    sine.fill(random, Values::kOrdinary);
    AppendOptions options;
    if (random.coin()) {
      options.rope.cos = cosine.view;
      options.rope.sin = sine.view;
      options.rope.options.pairing = random.coin() ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
      options.rope.options.first_dim = random.integer(0, dim - 2 * half);
    }
    Status s = kv_append(rows.view, positions.view, want.kv, options, other());
    ASSERT_TRUE(s.ok()) << s.detail;
    s = kv_append(rows.view, positions.view, got, options, exec());
    ASSERT_TRUE(s.ok()) << s.detail;
    ASSERT_EQ(std::memcmp(want.memory.data(), copy.data(), copy.size()), 0)
        << "case " << i << sizes({batch, heads, n, dim, tokens}) << " form " << static_cast<int>(form) << " type "
        << static_cast<int>(type) << " from " << static_cast<int>(rows.view.dtype);
  }
}

/// Positions, a start, starts, counts and page slots say the same places.
TEST_P(Bits, KvAppendPlaces) {
  Random random(seed() * 2000 + 10);
  for (int64_t i = 0; i < cases(600); ++i) {
    const int64_t batch = random.integer(1, 3), heads = random.integer(1, 3), n = random.integer(1, 6),
                  half = random.size(1, 20), tokens = random.size(n, 150), dim = 2 * half;
    Array<4> rows(random, random.storage(), {batch, heads, n, dim}, Strides::kInput);
    rows.fill(random, values(random));
    const KvForm form = random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels});
    const KvStorage want = make_kv(random, random.storage(), form, batch, heads, tokens, dim);
    Guarded copy(want.memory.size(), random.guard());
    std::memcpy(copy.data(), want.memory.data(), copy.size());
    Kv got = want.kv;
    got.data = copy.data();
    Array<2> cosine(random, DType::kF32, {tokens, half}), sine(random, DType::kF32, {tokens, half});
    cosine.fill(random, Values::kOrdinary);
    sine.fill(random, Values::kOrdinary);
    AppendOptions options;
    if (random.coin()) {
      options.rope.cos = cosine.view;
      options.rope.sin = sine.view;
    }
    // 0: start, 1: starts, 2: counts beside them, 3: slots.
    const int64_t way = random.integer(0, want.kv.page_size > 0 ? 3 : 2);
    const bool counted = way >= 2 && random.coin();
    std::vector<int32_t> starts(static_cast<size_t>(batch)),
        counts(static_cast<size_t>(batch), static_cast<int32_t>(n));
    const int32_t start = static_cast<int32_t>(random.integer(0, tokens - n));
    Array<2> stored(random, DType::kI32, {batch, n}), positions(random, DType::kI32, {batch, n}),
        slots(random, random.coin() ? DType::kI64 : DType::kI32, {batch, n});
    for (int64_t b = 0; b < batch; ++b) {
      const size_t s = static_cast<size_t>(b);
      starts[s] = way == 0 ? start : static_cast<int32_t>(random.integer(0, tokens - n));
      if (way == 2 || counted) counts[s] = static_cast<int32_t>(random.integer(0, n));
      for (int64_t t = 0; t < n; ++t) {
        const int64_t p = starts[s] + t;
        bool skipped = t >= counts[s];
        set_element_bits(positions.view.data, DType::kI32, positions.at({b, t}), static_cast<uint64_t>(p));
        if (want.kv.page_size > 0) {
          const bool no_slot = way == 3 && random.one_in(5);
          const int64_t place = want.page(b, p) * want.kv.page_size + p % want.kv.page_size;
          set_element_bits(slots.view.data, slots.view.dtype, slots.at({b, t}),
                           static_cast<uint64_t>(no_slot ? -1 : place));
          skipped = skipped || no_slot;
        }
        set_element_bits(stored.view.data, DType::kI32, stored.at({b, t}), static_cast<uint64_t>(skipped ? -1 : p));
      }
    }
    Status s = kv_append(rows.view, stored.view, want.kv, options, other());
    ASSERT_TRUE(s.ok()) << s.detail;
    if (way == 0) options.start = start;
    if (way == 1 || way == 2) options.starts = starts.data();
    if (way == 2 || counted) options.counts = counts.data();
    if (way == 3) options.slots = slots.view;
    const ConstView<2> absent;
    s = kv_append(rows.view, way == 3 ? ConstView<2>(positions.view) : absent, got, options, exec());
    ASSERT_TRUE(s.ok()) << s.detail;
    ASSERT_EQ(std::memcmp(want.memory.data(), copy.data(), copy.size()), 0)
        << "case " << i << sizes({batch, heads, n, dim, tokens}) << " form " << static_cast<int>(form) << " way "
        << way;
  }
}

/// Rows that stand at start, start + 1, ...
TEST_P(Bits, RopeStart) {
  Random random(seed() * 2000 + 11);
  for (int64_t i = 0; i < cases(300); ++i) {
    const int64_t batch = random.integer(1, 2), heads = random.integer(1, 3), n = random.integer(0, 6),
                  half = random.size(1, 30), start = random.integer(0, 50);
    Array<4> x(random, random.storage(), {batch, heads, n, 2 * half}, Strides::kInput);
    x.fill(random, Values::kOrdinary);
    Array<2> cosine(random, DType::kF32, {start + n, half}), sine(random, DType::kF32, {start + n, half}),
        positions(random, DType::kI32, {batch, n});
    cosine.fill(random, Values::kOrdinary);
    sine.fill(random, Values::kOrdinary);
    for (int64_t b = 0; b < batch; ++b)
      for (int64_t t = 0; t < n; ++t)
        set_element_bits(positions.view.data, DType::kI32, positions.at({b, t}), static_cast<uint64_t>(start + t));
    Array<4> want(random, random.storage(), x.view.shape, Strides::kOutput), got = sibling(random, want);
    ASSERT_TRUE(rope(x.view, cosine.view, sine.view, positions.view, want.view, {}, other()).ok());
    const Status s = rope(x.view, cosine.view, sine.view, {}, got.view, {.start = start}, exec());
    ASSERT_TRUE(s.ok()) << s.detail;
    ASSERT_EQ(difference(want, got), "") << "case " << i << sizes({batch, heads, n, half, start});
  }
}

TEST_P(Bits, Attention) {
  Random random(seed() * 2000 + 7);
  for (int64_t i = 0; i < cases(2500); ++i) {
    AttentionLimits limits;
    limits.values = values(random);
    limits.scoring.extreme = random.coin();
    switch (random.integer(0, 9)) {
      case 0: limits.max_kv = 2500, limits.max_q = 4, limits.max_dim = 16, limits.max_batch = 1; break;
      case 1: limits.max_dim = 200, limits.max_q = 3; break;
      case 2: limits.max_q = 90, limits.max_batch = 1; break;
      case 3: limits.max_kv = 400; break;
      default: break;
    }
    const AttentionCase c = random_attention(random, limits);
    Array<4> got = sibling(random, c.out);
    Array<3> got_lse = sibling(random, c.lse);
    Attention second = c.problem;
    second.out = got.view;
    if (second.lse.data != nullptr) second.lse = got_lse.view;
    const Array<4> q = c.q.with(random, Strides::kOutput);
    second.q = q.view;
    Status s = run_attention(c.problem, other().target);
    ASSERT_TRUE(s.ok()) << s.detail << " case " << i << ": " << describe(c.problem);
    s = run_attention(second, &target());
    ASSERT_TRUE(s.ok()) << s.detail;
    ASSERT_EQ(difference(c.out, got), "") << "case " << i << ": " << describe(c.problem);
    if (second.lse.data != nullptr) {
      ASSERT_EQ(difference(c.lse, got_lse), "") << "lse, case " << i << ": " << describe(c.problem);
    }
  }
}

TEST_P(Bits, RawStates) {
  Random random(seed() * 2000 + 8);
  for (int64_t i = 0; i < cases(600); ++i) {
    AttentionLimits limits;
    limits.values = values(random);
    if (random.one_in(10)) limits.max_kv = 2500, limits.max_q = 4;
    const AttentionCase c = random_attention(random, limits);
    Attention first = c.problem, second = c.problem;
    const auto& shape = c.out.view.shape;
    Array<4> want_acc(random, DType::kF32, shape, Strides::kOutput), got_acc = sibling(random, want_acc);
    const std::array<int64_t, 3> numbers = {shape[0], shape[1], shape[2]};
    Array<3> want_max(random, DType::kF32, numbers, Strides::kOutput), got_max = sibling(random, want_max);
    Array<3> want_sum(random, DType::kF32, numbers, Strides::kOutput), got_sum = sibling(random, want_sum);
    first.acc = want_acc.view, first.max = want_max.view, first.sum = want_sum.view;
    second.acc = got_acc.view, second.max = got_max.view, second.sum = got_sum.view;
    second.out = View<4>();
    second.lse = View<3>();
    Status s = run_attention(first, other().target);
    ASSERT_TRUE(s.ok()) << s.detail << describe(first);
    s = run_attention(second, &target());
    ASSERT_TRUE(s.ok()) << s.detail << describe(first);
    ASSERT_EQ(difference(want_acc, got_acc), "") << "case " << i << ": " << describe(first);
    ASSERT_EQ(difference(want_max, got_max), "") << "case " << i << ": " << describe(first);
    ASSERT_EQ(difference(want_sum, got_sum), "") << "case " << i << ": " << describe(first);
  }
}

TEST_P(Bits, AttentionMerge) {
  Random random(seed() * 2000 + 9);
  for (int64_t i = 0; i < cases(1500); ++i) {
    const int64_t parts = random.integer(1, 6), batch = random.integer(1, 2), heads = random.integer(1, 3),
                  n = random.integer(0, 4), dim = random.size(1, 140);
    Array<5> part(random, random.storage(), {parts, batch, heads, n, dim}, Strides::kInput);
    Array<4> part_lse(random, DType::kF32, {parts, batch, heads, n}, Strides::kInput);
    const Values kind = values(random);
    part.fill(random, kind);
    part_lse.fill(random, kind);
    for_each_element(part_lse.view, [&](int64_t at) {
      if (random.one_in(4))
        put(part_lse.view.data, DType::kF32, at,
            random.coin() ? -std::numeric_limits<float>::infinity() : 30 * random.uniform());
    });
    Array<4> want(random, random.storage(), {batch, heads, n, dim}, Strides::kOutput), got = sibling(random, want);
    Array<3> want_lse(random, DType::kF32, {batch, heads, n}, Strides::kOutput), got_lse = sibling(random, want_lse);
    std::vector<float> values;
    for (int64_t h = 0; h < heads; ++h) values.push_back(5 * random.uniform());
    const Numbers<float> sinks(random, values);
    const float* const given = random.coin() ? sinks.data() : nullptr;
    const Array<5> part2 = part.with(random, Strides::kOutput);
    ASSERT_TRUE(attention_merge(part.view, part_lse.view, want.view, want_lse.view, given, other()).ok());
    ASSERT_TRUE(attention_merge(part2.view, part_lse.view, got.view, got_lse.view, given, exec()).ok());
    ASSERT_EQ(difference(want, got), "") << "case " << i << sizes({parts, batch, heads, n, dim});
    ASSERT_EQ(difference(want_lse, got_lse), "") << "lse, case " << i << sizes({parts, batch, heads, n, dim});
  }
}

SIMDATTN_FOR_EACH_TARGET(Bits);

}  // namespace
}  // namespace simdattn::test
