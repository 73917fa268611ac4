// Different ways to say the same thing give the same bits.
//
// ALiBi equals a bias whose entries are the f32 products -(slope * |p - j|): the definition rounds that product, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/attention/identities.h"
#include "tests/support/indices.h"
#include "tests/support/reference.h"

namespace simdattn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// ---------------------------------------------------------------------------------------------------------------------
// Ways to mask

/// Entries that all intervals of a Scoring leave visible, [B,H,n_q,n_kv].
std::vector<bool> visible(const Scoring& s, const std::array<int64_t, 4>& shape) {
  reference::Tensor v;
  const reference::Tensor zero({shape[0], shape[1], shape[2], shape[3]});
  (void)reference::modified_scores(zero, s, &v);
  std::vector<bool> result;
  for (const double x : v.data) result.push_back(x != 0);
  return result;
}

/// One set of visible keys as a byte mask, a bit mask and a bias.
struct Masks {
  Array<4> keep, bias;
  Guarded bits;
  PackedMask bit_mask;
  Masks(Random& random, const std::array<int64_t, 4>& shape, const std::vector<bool>& seen)
      : keep(random, DType::kU8, shape), bias(random, random.storage(), shape) {
    const int64_t n = shape[3], row_bytes = (n + 7) / 8;
    const int64_t rows = shape[0] * shape[1] * shape[2];
    bits = Guarded(static_cast<size_t>(rows * row_bytes), random.guard());
    std::memset(bits.data(), 0, bits.size());
    for (const auto [r, j] : indices(rows, n)) {
      const bool on = seen[static_cast<size_t>(r * n + j)];
      keep.memory.data()[r * n + j] = on ? static_cast<uint8_t>(random.integer(1, 255)) : 0;
      put(bias.view.data, bias.view.dtype, r * n + j, on ? 0.0f : -kInf);
      if (on)
        bits.data()[r * row_bytes + j / 8] = static_cast<uint8_t>(bits.data()[r * row_bytes + j / 8] | 1 << j % 8);
    }
    bit_mask = {bits.data(), n, {shape[1] * shape[2] * row_bytes, shape[2] * row_bytes, row_bytes}};
  }
};

/// A Scoring in which masks stand for the intervals: causal, offset (kept, for ALiBi), windows, chunk, prefix, lengths.
Scoring without_intervals(const Scoring& s, int64_t offset) {
  Scoring r = s;
  r.causal = false;
  r.offset = offset;
  r.window_left = r.window_right = -1;
  r.chunk = 0;
  r.prefix_end = r.kv_start = r.kv_length = nullptr;
  return r;
}

TEST_P(Identities, IntervalsAreMasks) {
  Random random(seed() * 3000 + 1);
  for (int64_t i = 0; i < cases(400); ++i) {
    const AttentionCase c = plain(random, false);
    AttentionProblem a = c.problem;
    const int64_t n_q = a.q.shape[2], n_kv = a.k.capacity;
    a.scoring.kv_length = a.scoring.offsets = nullptr;  // with lengths that differ, the position of row 0 would, too
    const int64_t offset = a.scoring.offset == kBottomRight ? n_kv - n_q : a.scoring.offset;
    const std::array<int64_t, 4> shape = {a.q.shape[0], a.q.shape[1], n_q, n_kv};
    const Masks m(random, shape, visible(a.scoring, shape));
    const Result want = run(random, a);
    AttentionProblem masked = a;
    masked.scoring = without_intervals(a.scoring, offset);
    masked.scoring.mask = m.keep.view;
    ASSERT_EQ(run(random, masked), want) << "keep, " << where(i, a);
    masked.scoring.mask = ConstView<4>();
    masked.scoring.packed_mask = m.bit_mask;
    ASSERT_EQ(run(random, masked), want) << "bits, " << where(i, a);
    masked.scoring.packed_mask = PackedMask();
    masked.scoring.bias = m.bias.view;
    ASSERT_EQ(run(random, masked), want) << "bias, " << where(i, a);

    // The same of masked_softmax().
    Array<4> x(random, DType::kF32, shape, Values::kWide, Strides::kInput);
    std::vector<Result> results;
    const Scoring stripped = without_intervals(a.scoring, offset);
    std::vector<Scoring> ways = {a.scoring, stripped, stripped, stripped};
    ways[1].mask = m.keep.view;
    ways[2].packed_mask = m.bit_mask;
    ways[3].bias = m.bias.view;
    for (const Scoring& s : ways) {
      Array<4> out(random, DType::kF32, shape, Strides::kOutput);
      Array<3> lse(random, DType::kF32, {shape[0], shape[1], n_q}, Strides::kOutput);
      ASSERT_TRUE(ok(masked_softmax(x.view, out.view, s, lse.view, exec())));
      results.push_back({out.bits(), lse.bits()});
      ASSERT_EQ(results.back(), results.front()) << "masked_softmax, way " << results.size() - 1 << ", " << where(i, a);
    }
  }
}

/// Rows of masked_softmax() whose ends masks hide.
TEST_P(Identities, HiddenEndsOfLongRows) {
  Random random(seed() * 3000 + 21);
  for (int64_t i = 0; i < cases(30); ++i) {
    const std::array<int64_t, 4> shape = {1, 2, 2, random.integer(1020, 5000)};
    const int32_t lo = static_cast<int32_t>(random.integer(0, shape[3]));
    const int32_t hi = static_cast<int32_t>(random.integer(lo, shape[3]));
    Scoring s;
    s.kv_start = &lo;
    s.kv_length = &hi;
    const Masks m(random, shape, visible(s, shape));
    const Array<4> x(random, DType::kF32, shape, Values::kWide, Strides::kInput);
    std::vector<Result> results;
    std::vector<Scoring> ways(4);
    ways[0] = s;
    ways[1].mask = m.keep.view;
    ways[2].packed_mask = m.bit_mask;
    ways[3].bias = m.bias.view;
    for (const Scoring& way : ways) {
      const Array<4> out(random, DType::kF32, shape, Strides::kOutput);
      const Array<3> lse(random, DType::kF32, {1, 2, 2}, Strides::kOutput);
      ASSERT_TRUE(ok(masked_softmax(x.view, out.view, way, lse.view, exec())));
      results.push_back({out.bits(), lse.bits()});
      ASSERT_EQ(results.back(), results.front()) << "way " << results.size() - 1 << ", keys " << lo << " .. " << hi;
    }
  }
}

TEST_P(Identities, LengthsAreMasks) {
  Random random(seed() * 3000 + 2);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random, false);
    AttentionProblem a = c.problem;
    // kv_start and kv_length differ from sequence to sequence; with an explicit position of row 0 they only mask.
    a.scoring.offsets = nullptr;
    if (a.scoring.offset == kBottomRight) a.scoring.offset = random.integer(-3, a.k.capacity);
    std::vector<int32_t> length, start;
    for (int64_t b = 0; b < a.k.batch; ++b) {
      length.push_back(static_cast<int32_t>(random.integer(0, a.k.capacity)));
      start.push_back(static_cast<int32_t>(random.integer(0, a.k.capacity + 1)));
    }
    a.scoring.kv_length = length.data();
    if (random.coin()) a.scoring.kv_start = start.data();
    const std::array<int64_t, 4> shape = {a.q.shape[0], a.q.shape[1], a.q.shape[2], a.k.capacity};
    const Masks m(random, shape, visible(a.scoring, shape));
    AttentionProblem masked = a;
    masked.scoring = without_intervals(a.scoring, a.scoring.offset);
    masked.scoring.mask = m.keep.view;
    ASSERT_EQ(run(random, masked), run(random, a)) << where(i, a);
  }
}

/// Positions of row 0 by sequence, all the same, and those that kBottomRight gives.
TEST_P(Identities, OffsetsAreTheOffset) {
  Random random(seed() * 3000 + 19);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random);
    AttentionProblem a = c.problem;
    a.scoring.offsets = nullptr;
    const Result want = run(random, a);
    std::vector<int32_t> offsets;
    for (int64_t b = 0; b < a.k.batch; ++b) {
      const int64_t bottom_right = key_count(a.scoring, b, a.k.capacity) - a.q.shape[2];
      offsets.push_back(static_cast<int32_t>(a.scoring.offset == kBottomRight ? bottom_right : a.scoring.offset));
    }
    a.scoring.offset = random.integer(-3, 3);
    a.scoring.offsets = offsets.data();
    ASSERT_EQ(run(random, a), want) << where(i, a);
  }
}

/// A length says the same as fewer tokens.
TEST_P(Identities, LengthIsFewerTokens) {
  Random random(seed() * 3000 + 20);
  for (int64_t i = 0; i < cases(150); ++i) {
    const AttentionCase c = plain(random);
    const AttentionProblem& a = c.problem;
    AttentionProblem b = a;
    const KvStorage k = store_kv(random, c.k_rows, random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedPanels}), 0,
                                 random.integer(1, 300)),
                    v = store_kv(random, c.v_rows, random.of({KvForm::kRows, KvForm::kPagedRows}), 0,
                                 random.integer(1, 300));
    b.k = k.kv;
    b.v = v.kv;
    ASSERT_EQ(run(random, b), run(random, a)) << where(i, b);
  }
}

TEST_P(Identities, TailOfATreeIsAFullBitMask) {
  Random random(seed() * 3000 + 3);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random, false);
    AttentionProblem a = c.problem;
    a.scoring.kv_length = nullptr;
    const int64_t n = a.k.capacity, tail = random.integer(0, n);
    const std::array<int64_t, 4> shape = {a.q.shape[0], a.q.shape[1], a.q.shape[2], n};
    const std::array<int64_t, 4> tail_shape = {shape[0], shape[1], shape[2], tail};
    std::vector<bool> all, last;
    for (const auto [r, j] : indices(shape[0] * shape[1] * shape[2], n)) {
      const bool on = j < n - tail || random.coin();
      all.push_back(on);
      if (j >= n - tail) last.push_back(on);
    }
    const Masks full(random, shape, all), part(random, tail_shape, last);
    a.scoring.packed_mask = full.bit_mask;
    const Result want = run(random, a);
    a.scoring.packed_mask = part.bit_mask;
    ASSERT_EQ(run(random, a), want) << "tail of " << tail << ", " << where(i, a);
  }
}

TEST_P(Identities, AlibiIsABias) {
  Random random(seed() * 3000 + 4);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random, false);
    AttentionProblem a = c.problem;
    a.scoring.kv_length = a.scoring.offsets = nullptr;
    const std::array<int64_t, 4> shape = {a.q.shape[0], a.q.shape[1], a.q.shape[2], a.k.capacity};
    std::vector<float> slopes(static_cast<size_t>(shape[1]));
    ASSERT_TRUE(alibi_slopes(shape[1], slopes.data()).ok());
    for (float& s : slopes) s *= random.of({1.0f, 0.7f, 3.3f});
    a.scoring.alibi_slopes = slopes.data();
    const Result want = run(random, a);
    const int64_t offset = a.scoring.offset == kBottomRight ? shape[3] - shape[2] : a.scoring.offset;
    const Array<4> bias(random, DType::kF32, {1, shape[1], shape[2], shape[3]});
    for (const auto [h, r, j] : indices(shape[1], shape[2], shape[3])) {
      bias.set_at({0, h, r, j}, -(slopes[static_cast<size_t>(h)] * static_cast<float>(std::abs(r + offset - j))));
    }
    a.scoring.alibi_slopes = nullptr;
    a.scoring.bias = bias.view;
    a.scoring.bias.shape[0] = shape[0];
    a.scoring.bias.stride[0] = 0;
    ASSERT_EQ(run(random, a), want) << where(i, a);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Storage

TEST_P(Identities, PanelsPagesAndRingsAreRows) {
  Random random(seed() * 3000 + 12);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random);
    AttentionProblem a = c.problem;
    const Result want = run(random, a);
    for (const KvForm k_form : {KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels}) {
      const KvStorage k = store_kv(random, c.k_rows, k_form);
      const KvStorage v = store_kv(random, c.v_rows, random.coin() ? KvForm::kRows : KvForm::kPagedRows);
      AttentionProblem b = a;
      b.k = k.kv;
      b.v = v.kv;
      ASSERT_EQ(run(random, b), want) << "form " << static_cast<int>(k_form) << ", " << where(i, b);
    }
    // A ring holds the last tokens of each sequence: the same as a later start.
    const int64_t tokens = a.k.capacity;
    if (tokens == 0) continue;
    a.scoring.kv_length = nullptr;
    const int64_t capacity = random.integer(1, tokens);
    for (const KvForm k_form : {KvForm::kRingRows, KvForm::kRingPanels, KvForm::kRows}) {
      const KvStorage k = store_kv(random, c.k_rows, k_form, capacity);
      const KvStorage v = store_kv(random, c.v_rows, KvForm::kRingRows, capacity);
      AttentionProblem b = a;
      b.k = k.kv;
      b.v = v.kv;
      const int64_t held = std::min(b.v.ring, k_form == KvForm::kRows ? b.v.ring : b.k.ring);
      std::vector<int32_t> start;
      for (int64_t s = 0; s < a.k.batch; ++s) {
        start.push_back(static_cast<int32_t>(
            std::max<int64_t>({0, tokens - held, a.scoring.kv_start != nullptr ? a.scoring.kv_start[s] : 0})));
      }
      AttentionProblem contiguous = a;
      contiguous.scoring.kv_start = start.data();
      ASSERT_EQ(run(random, b), run(random, contiguous))
          << "ring of " << held << ", form " << static_cast<int>(k_form) << ", " << where(i, b);
    }
  }
}

TEST_P(Identities, TokensBeforeHeadsIsHeadsBeforeTokens) {
  Random random(seed() * 3000 + 13);
  for (int64_t i = 0; i < cases(250); ++i) {
    const AttentionCase c = plain(random);
    const Result want = run(random, c.problem);
    // [B, L, H, D] of everything.
    const auto blhd = [&](const Array<4>& x) {
      Array<4> r(random, x.view.dtype, {x.view.shape[0], x.view.shape[2], x.view.shape[1], x.view.shape[3]});
      std::swap(r.view.shape[1], r.view.shape[2]);
      std::swap(r.view.stride[1], r.view.stride[2]);
      r.assign(x.bits());
      return r;
    };
    const Array<4> q = blhd(c.q), k = blhd(c.k_rows), v = blhd(c.v_rows), out = blhd(c.out);
    AttentionProblem a = c.problem;
    a.q = q.view;
    a.k = k.view;
    a.v = v.view;
    a.out = out.view;
    a.lse = c.lse.view;
    ASSERT_TRUE(run_attention(a, &target()).ok());
    ASSERT_EQ((Result{out.bits(), c.lse.bits()}), want) << where(i, a);
  }
}

TEST_P(Identities, ValuesMayAliasKeys) {
  Random random(seed() * 3000 + 14);
  for (int64_t i = 0; i < cases(60); ++i) {
    // MLA: a key row is [latent | rope], the value its first part.
    const int64_t latent = random.integer(1, 64), rotated = random.integer(0, 16), n = random.size(1, 300),
                  heads = random.integer(1, 16);
    const Array<4> kv(random, random.storage(), {1, 1, n, latent + rotated}, Values::kOrdinary);
    const Array<4> q(random, DType::kF32, {1, heads, 2, latent + rotated}, Values::kOrdinary);
    AttentionProblem a;
    a.q = q.view;
    a.k = kv.view;
    View<4> values = kv.view;
    values.shape[3] = latent;
    a.v = values;
    a.out.dtype = DType::kF32;
    a.scoring.causal = true;
    a.arithmetic = random_arithmetic(random);
    const Array<4> copy(random, kv.view.dtype, {1, 1, n, latent});
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t d = 0; d < latent; ++d)
        set_element_bits(copy.view.data, copy.view.dtype, copy.at({0, 0, t, d}),
                         element_bits(kv.view.data, kv.view.dtype, kv.at({0, 0, t, d})));
    }
    const Result aliased = run(random, a);
    a.v = copy.view;
    ASSERT_EQ(run(random, a), aliased) << where(i, a);
  }
}

SIMDATTN_FOR_EACH_TARGET(Identities);

}  // namespace
}  // namespace simdattn::test
