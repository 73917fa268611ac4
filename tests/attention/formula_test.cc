// The public functions against the float64 formulas of tests/support/reference.cc, on every target, within bounds
// derived from the operations: (roundings) * 2^-24 * (sum of the absolute values of the terms), plus half a unit in the
// last place of the output's type.
//
// SIMDATTN_TEST_EFFORT scales the number of random calls, SIMDATTN_TEST_SEED chooses others.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "simdattn/extras.h"
#include "tests/attention/compare.h"
#include "tests/support/bounds.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/reference.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

double to_double(float x) { return static_cast<double>(x); }

class Formula : public TargetTest {
 protected:
  static Costs cost() { return costs(target()); }
};

// ---------------------------------------------------------------------------------------------------------------------
// The unfused functions

TEST_P(Formula, Scores) {
  Random random(seed() * 1000 + 1);
  for (int64_t i = 0; i < cases(600); ++i) {
    const int64_t kv_heads = random.integer(1, 3);
    const int64_t heads = kv_heads * random.integer(1, 4);
    // Query rows of 16-bit types are widened 8 at a time, at most 8192 elements; longer ones are not.
    const int64_t long_dims[] = {1023, 1024, 1025, 1500, 2731, 4096, 4097, 8191, 8192, 8193, 8300};
    const bool large = i % 32 == 0;
    const int64_t batch = random.integer(1, large ? 1 : 3), n_q = random.integer(0, large ? 19 : 9),
                  n_kv = random.size(0, large ? 8 : 60),
                  dim = large ? long_dims[i / 32 % std::ssize(long_dims)] : random.size(1, 150);
    Array<4> q(random, random.storage(), {batch, heads, n_q, dim}, Values::kOrdinary, Strides::kInput);
    Array<4> k(random, random.storage(), {batch, kv_heads, n_kv, dim}, Values::kOrdinary, Strides::kInput);
    Array<4> out(random, DType::kF32, {batch, heads, n_q, n_kv}, Strides::kOutput);
    Optional<float> scale;
    if (random.coin()) scale = 4 * random.uniform();
    const Arithmetic a = random_arithmetic(random);
    ASSERT_TRUE(ok(run_scores(q.view, k.view, out.view, {.scale = scale, .arithmetic = a}, &target())));
    reference::Tensor magnitude;
    const double s = scale ? to_double(*scale) : 1.0 / std::sqrt(static_cast<double>(dim));
    const reference::Tensor want = reference::scores(reference::operands(reference::read(q.view), a),
                                                     reference::operands(reference::read(k.view), a), s, &magnitude);
    // The published bound counts the roundings of fused operations, of the folds, of the scale and of the default
    // scale.
    const double roundings = a == Arithmetic::kF32 ? cost().fma * std::ceil(static_cast<double>(dim) / 16) + 5
                                                   : score_roundings(a, cost(), static_cast<double>(dim)) + 2;
    ASSERT_EQ(
        compare(out, want,
                [&](int64_t e) {
                  return roundings * kEps * magnitude[e] +
                         (a == Arithmetic::kBF16 ? static_cast<double>(dim) * kTiny * std::max(std::fabs(s), 1.0) : 0);
                }),
        "")
        << "case " << i << ", dim " << dim << ", n_kv " << n_kv << ", arithmetic " << arithmetic_name(a);
  }
}

TEST_P(Formula, Softmax) {
  Random random(seed() * 1000 + 2);
  for (int64_t i = 0; i < cases(1500); ++i) {
    // Some on both sides of 8192 columns: of longer rows the next one is fetched.
    const int64_t rows = random.integer(0, 8);
    const int64_t n = random.one_in(60) ? random.of<int64_t>({8191, 8192, 8193, 8700}) : random.size(0, 600);
    Array<2> x(random, DType::kF32, {rows, n}, Strides::kInput);
    const float spread = random.of({0.1f, 5.0f, 39.0f});
    for_each_element(x.view, [&](int64_t at) {
      put(x.view.data, DType::kF32, at, spread * random.uniform() + (random.one_in(50) ? -kInf : 0.0f));
    });
    Array<2> out(random, DType::kF32, {rows, n}, Strides::kOutput);
    Array<1> lse(random, DType::kF32, {rows});
    const bool wants_lse = random.coin();
    ASSERT_TRUE(ok(softmax(x.view, out.view, wants_lse ? lse.view : View<1>(), exec())));
    reference::Tensor want_lse;
    const reference::Tensor want = reference::softmax(reference::read(x.view), &want_lse);
    // Numerator: rounding of the difference to the maximum (half a unit in its last place, so relative to its size) and
    // exp. Denominator: the same, each weighted by its probability (the mean of those differences is at most ln n), and
    // the chain of a partial sum and its folds. Then a division and a product.
    const double chain = static_cast<double>(n) / 16 + 6;
    const double mean = std::log(static_cast<double>(std::max<int64_t>(n, 1)));
    std::vector<double> largest;  // of each row
    for (auto row = want.data.begin(); row != want.data.end(); row += n) {
      largest.push_back(*std::max_element(row, row + n));
    }
    ASSERT_EQ(compare(out, want,
                      [&](int64_t e) {
                        if (want[e] == 0) return 0.0;
                        const double distance = std::log(largest[static_cast<size_t>(e / n)] / want[e]);
                        return (2 * cost().exp + distance + mean + chain + 2) * kEps * want[e];
                      }),
              "")
        << "case " << i << ", n " << n << ", spread " << spread;
    // ln(sum) moves by the relative error of the sum.
    const double sum = cost().exp + mean + chain;
    if (!wants_lse) continue;
    ASSERT_EQ(compare(lse, want_lse, [&](int64_t) { return sum * kEps; }), "") << "lse, case " << i << ", n " << n;
  }
}

TEST_P(Formula, MaskedSoftmax) {
  Random random(seed() * 1000 + 3);
  for (int64_t i = 0; i < cases(3000); ++i) {
    // Some with more rows than one call of the slot takes, and some with longer rows than fit into its buffer.
    const bool tall = random.one_in(30), wide = random.one_in(100);
    const int64_t batch = tall || wide ? 1 : random.integer(1, 3), heads = random.integer(1, tall || wide ? 2 : 4);
    const int64_t n_q = random.integer(0, tall ? 150 : 9), n_kv = random.size(0, wide ? 9000 : 90);
    Array<4> x(random, DType::kF32, {batch, heads, n_q, n_kv}, Strides::kInput);
    for_each_element(x.view, [&](int64_t at) {
      put(x.view.data, DType::kF32, at, random.one_in(60) ? -kInf : 10 * random.uniform());
    });
    const ScoringCase c =
        random_scoring(random, {heads, batch, n_q, n_kv, std::vector<int64_t>(static_cast<size_t>(batch), n_q),
                                std::vector<int64_t>(static_cast<size_t>(batch), n_kv)});
    // A score of -inf times a scale of 0 is NaN: a visible one makes the row NaN in the formula and here.
    Array<4> out(random, DType::kF32, {batch, heads, n_q, n_kv}, Strides::kOutput);
    Array<3> lse(random, DType::kF32, {batch, heads, n_q}, Strides::kOutput);
    const bool wants_lse = random.coin();
    ASSERT_TRUE(ok(masked_softmax(x.view, out.view, c.scoring, wants_lse ? lse.view : View<3>(), exec())))
        << describe(c.scoring);
    reference::Tensor want_lse;
    reference::Tensor want = reference::masked_softmax(reference::read(x.view), c.scoring, &want_lse);
    for (int64_t r = 0; r < want_lse.size(); ++r) {  // all of a NaN row is NaN
      if (std::isnan(want_lse[r])) std::fill_n(want.data.begin() + r * n_kv, n_kv, std::nan(""));
    }
    const double scaled = 10 * std::fabs(to_double(c.scoring.scale.value_or(1.0f)));
    const double shift = to_double(c.largest_shift), bias = to_double(c.largest_bias);
    const double error = score_error(c.scoring, cost(), scaled, 0, shift, bias);
    // Numerator and denominator: the score's error, the subtraction of the maximum (at most the range of the scores, or
    // down to a sink), the exponential; the sum; division and product.
    const double range = 2 * (scaled + shift + bias) + 10;
    const double relative = 2 * (error + range + cost().exp) + static_cast<double>(n_kv) / 16 + 8;
    ASSERT_EQ(compare(out, want, [&](int64_t e) { return want[e] == 0 ? 0.0 : relative * kEps * want[e] + kTiny; }), "")
        << "case " << i << ", n_q " << n_q << ", n_kv " << n_kv << describe(c.scoring);
    if (!wants_lse) continue;
    const double sum = error + range + cost().exp + static_cast<double>(n_kv) / 16 + 6;
    ASSERT_EQ(compare(lse, want_lse, [&](int64_t) { return sum * kEps; }), "")
        << "lse, case " << i << ", n_q " << n_q << ", n_kv " << n_kv << describe(c.scoring);
  }
}

TEST_P(Formula, WeightedValues) {
  Random random(seed() * 1000 + 4);
  for (int64_t i = 0; i < cases(600); ++i) {
    const int64_t kv_heads = random.integer(1, 3);
    const int64_t heads = kv_heads * random.integer(1, 4);
    const bool wide = i % 16 == 0;  // 512 columns are computed at a time
    const int64_t batch = random.integer(1, wide ? 1 : 3), n_q = random.integer(0, 10);
    const int64_t dim = wide ? random.of<int64_t>({511, 512, 513, 1023, 1024, 1025, 1100}) : random.size(1, 120);
    const int64_t n_kv = random.size(0, random.one_in(6) ? 600 : 50);
    Array<4> p(random, DType::kF32, {batch, heads, n_q, n_kv}, Strides::kInput);
    Array<4> v(random, random.storage(), {batch, kv_heads, n_kv, dim}, Strides::kInput);
    Array<4> out(random, random.storage(), {batch, heads, n_q, dim}, Strides::kOutput);
    const bool zeros = random.coin();
    for_each_element(p.view, [&](int64_t at) {
      put(p.view.data, DType::kF32, at, zeros && random.coin() ? 0.0f : random.uniform());
    });
    v.fill(random, random.coin() ? Values::kOrdinary : Values::kSpecial);
    const Arithmetic a = random_arithmetic(random);
    ASSERT_TRUE(ok(run_weighted_values(p.view, v.view, out.view, {.arithmetic = a}, &target())));
    reference::Tensor magnitude, weights;
    // What the arithmetic multiplies in the place of p is a part of its definition: kBF16 rounds it.
    const reference::Tensor want =
        reference::weighted_values(reference::read(p.view), reference::read(v.view), &magnitude, a, &weights);
    // Large values in f16 overflow to infinity where the formula is just below it: allow one unit there.
    const double roundings = value_roundings(a, cost(), static_cast<double>(n_kv));
    const double tiny = a == Arithmetic::kBF16 ? 4 * kTiny : a == Arithmetic::kInt8 ? kInt8Lost : 0x1p-149;
    bool overflows = false;
    for (int64_t e = 0; e < want.size(); ++e)
      overflows = overflows || (out.view.dtype == DType::kF16 && std::fabs(want[e]) > 65000);
    if (overflows) continue;
    ASSERT_EQ(compare(out, want,
                      [&](int64_t e) {
                        return std::isfinite(magnitude[e])
                                   ? roundings * kEps * magnitude[e] + kWeightSlack * weights[e] +
                                         (roundings + static_cast<double>(n_kv)) * tiny
                                   : 0.0;
                      }),
              "")
        << "case " << i << ", n_kv " << n_kv << ", dim " << dim << ", arithmetic " << arithmetic_name(a);
  }
}

TEST_P(Formula, Rope) {
  Random random(seed() * 1000 + 5);
  for (int64_t i = 0; i < cases(1500); ++i) {
    const int64_t half = random.size(1, 70);
    RopeOptions options;
    options.pairing = random.coin() ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
    options.inverse = random.coin();
    options.first_dim = random.coin() ? 0 : random.integer(0, 20);
    const int64_t dim = options.first_dim + 2 * half + (random.coin() ? 0 : random.integer(1, 20));
    const int64_t batch = random.integer(1, 3), heads = random.integer(1, 4), n = random.integer(0, 7);
    const int64_t n_positions = n + random.integer(1, 20);
    const bool in_place = random.one_in(3);
    Array<4> x(random, random.storage(), {batch, heads, n, dim}, Values::kOrdinary,
               in_place ? Strides::kOutput : Strides::kInput);
    Array<4> out = in_place ? x.with(random, Strides::kContiguous)
                            : Array<4>(random, random.storage(), {batch, heads, n, dim}, Strides::kOutput);
    Array<2> cosine(random, DType::kF32, {n_positions, half}, Values::kOrdinary, Strides::kInput),
        sine(random, DType::kF32, {n_positions, half}, Values::kOrdinary, Strides::kInput);
    const bool wide = random.coin();
    Array<2> positions(random, wide ? DType::kI64 : DType::kI32, {batch, n}, Strides::kInput);
    for_each_element(positions.view, [&](int64_t at) {
      set_element_bits(positions.view.data, positions.view.dtype, at,
                       static_cast<uint64_t>(random.integer(0, n_positions - 1)));
    });
    const bool given = random.coin();
    std::vector<int64_t> list;
    if (given)
      for (const uint64_t p : positions.bits()) list.push_back(static_cast<int64_t>(p));
    const reference::Tensor in = reference::read(x.view);
    const reference::Tensor want =
        reference::rope(in, reference::read(cosine.view), reference::read(sine.view), list, options);
    const ConstView<2> absent;
    const ConstView<4> from = in_place ? ConstView<4>(out.view) : ConstView<4>(x.view);
    ASSERT_TRUE(ok(
        rope(from, cosine.view, sine.view, given ? ConstView<2>(positions.view) : absent, out.view, options, exec())));
    // Two products of numbers below 1 and their sum: three roundings (four unfused) of at most 2 * kEps.
    ASSERT_EQ(compare(out, want,
                      [&](int64_t e) {
                        const int64_t d = e % dim;
                        return d >= options.first_dim && d < options.first_dim + 2 * half ? 4 * 2 * kEps : 0.0;
                      }),
              "")
        << "case " << i << ", dim " << dim << ", half " << half << ", first " << options.first_dim << ", in place "
        << in_place;
  }
}

TEST_P(Formula, AlibiSlopes) {
  for (int64_t heads = 1; heads <= 130; ++heads) {
    Guarded memory(static_cast<size_t>(heads) * 4, Guard::kAfter);
    float* const slopes = reinterpret_cast<float*>(memory.data());
    ASSERT_TRUE(alibi_slopes(heads, slopes).ok());
    const std::vector<double> want = reference::alibi_slopes(heads);
    for (int64_t h = 0; h < heads; ++h) {
      const double w = want[static_cast<size_t>(h)];
      ASSERT_LE(std::fabs(to_double(slopes[h]) - w), 2 * reference::half_ulp(DType::kF32, w)) << h << " of " << heads;
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Attention

/// Compares one call of attention() with the formula. Inputs are within -1 .. 1.
std::string check_attention(const AttentionCase& c, const reference::AttentionResult& want, const Target& t) {
  c.clear();
  const Status status = run_attention(c.problem, &t);
  if (!status.ok()) return status.detail;
  const AttentionBound bound = attention_bound(c, costs(t));
  std::string problem = compare(c.out, want.out, [&](int64_t e) {
    return std::isfinite(want.magnitude[e])
               ? bound.out * kEps * want.magnitude[e] + kWeightSlack * want.weights[e] + bound.tiny
               : 0.0;
  });
  if (!problem.empty()) return "out, " + problem;
  if (c.problem.lse.data != nullptr) {
    problem = compare(c.lse, want.lse, [&](int64_t) { return bound.lse * kEps; });
    if (!problem.empty()) return "lse, " + problem;
  }
  return "";
}

TEST_P(Formula, Attention) {
  Random random(seed() * 1000 + 6);
  for (int64_t i = 0; i < cases(250); ++i) {
    AttentionLimits limits;
    limits.max_q = 40;
    limits.max_kv = random.one_in(12) ? 2600 : 400;
    limits.max_batch = 2;
    limits.max_dim = limits.max_kv > 400 ? 20 : 90;
    const AttentionCase c = random_attention(random, limits);
    const reference::AttentionResult want = reference::attention(c.problem);
    ASSERT_EQ(check_attention(c, want, target()), "") << "case " << i << ": " << describe(c.problem);
  }
}

/// The error that the bounds allow for rounded weights is reached, nearly: all weights but that of the first key round
/// the same way, in kBF16 those with a value of 1 up and those of -1 down, by half a unit.
TEST_P(Formula, WeightsThatRoundTheSameWay) {
  Random random(seed() * 1000 + 10);
  constexpr int64_t kKeys = 1000;
  for (const Arithmetic arithmetic : {Arithmetic::kBF16, Arithmetic::kInt8}) {
    const bool is_bf16 = arithmetic == Arithmetic::kBF16;
    AttentionCase c;
    c.q = Array<4>(random, DType::kF32, {1, 1, 1, 1});
    c.out = c.q.like(random);
    const Array<4> k(random, DType::kF32, {1, 1, kKeys, 1}), v = k.like(random);
    c.scoring.bias = Array<4>(random, DType::kF32, {1, 1, 1, kKeys});
    c.q.set_at({0, 0, 0, 0}, 1);
    for (int64_t j = 0; j < kKeys; ++j) {
      const bool up = is_bf16 && j % 2 == 0;
      const double weight = is_bf16 ? 0.5 + 0x1p-9 + (up ? 0x1p-14 : -0x1p-14) : 0.499 / 255;
      k.set_at({0, 0, j, 0}, 0);
      v.set_at({0, 0, j, 0}, is_bf16 && !up ? -1.0f : 1.0f);
      // In kInt8 every block has a key to which the others are small; its value is not theirs.
      const bool first = is_bf16 ? j == 0 : j % kKeyBlock == 0;
      c.scoring.bias.set_at({0, 0, 0, j}, first ? 0.0f : static_cast<float>(std::log(weight)));
      if (first && !is_bf16) v.set_at({0, 0, j, 0}, -1);
    }
    AttentionProblem& a = c.problem;
    a.q = c.q.view, a.k = k.view, a.v = v.view, a.out = c.out.view;
    a.scoring.bias = c.scoring.bias.view;
    c.scoring.largest_bias = 7;
    a.arithmetic = arithmetic;
    const reference::AttentionResult want = reference::attention(a);
    ASSERT_EQ(check_attention(c, want, target()), "") << arithmetic_name(arithmetic);
    const double error = std::fabs(to_double(c.out.get_at({0, 0, 0, 0})) - want.out[0]);
    EXPECT_GT(error, 0.95 * want.weights[0]) << arithmetic_name(arithmetic);
  }
}

/// The raw state against the formula: the accumulator is relative to the maximum that was written beside it.
TEST_P(Formula, RawState) {
  Random random(seed() * 1000 + 9);
  for (int64_t i = 0; i < cases(250); ++i) {
    AttentionLimits limits;
    limits.max_q = random.one_in(6) ? 150 : 12;
    limits.max_kv = random.one_in(3) ? 2600 : 300;  // states of several splits are joined
    if (limits.max_kv > 400) limits.max_q = 4;
    limits.max_batch = 2;
    limits.max_dim = limits.max_kv > 400 || limits.max_q > 100 ? 20 : 90;
    const AttentionCase c = random_attention(random, limits);
    const auto& shape = c.out.view.shape;
    const Array<4> acc(random, DType::kF32, shape, Strides::kOutput);
    const Array<3> max(random, DType::kF32, {shape[0], shape[1], shape[2]}, Strides::kOutput), sum = max.like(random);
    AttentionProblem a = c.problem;
    a.acc = acc.view, a.max = max.view, a.sum = sum.view;
    if (random.coin()) a.out = {};
    if (random.coin()) a.lse = {};
    ASSERT_TRUE(ok(random.coin() ? run_attention(a, &target()) : run_tasks(a, &target(), random))) << describe(a);
    const reference::AttentionResult want = reference::attention(a);
    // A maximum is one score: its error is less than that of a log-sum-exp, which brings the sum's along.
    const AttentionBound bound = attention_bound(c, cost());
    ASSERT_EQ(compare(max, want.max, [&](int64_t) { return bound.lse * kEps; }), "")
        << "max, case " << i << ": " << describe(a);
    const std::vector<uint64_t> maxima = max.bits();
    const auto moved = [&](int64_t row) {
      const double got = to_double(std::bit_cast<float>(static_cast<uint32_t>(maxima[static_cast<size_t>(row)])));
      return std::isfinite(got) ? std::exp(want.max[row] - got) : 1.0;
    };
    reference::Tensor want_sum = want.sum, want_acc = want.out;
    for (int64_t r = 0; r < want_sum.size(); ++r) want_sum[r] *= moved(r);
    for (int64_t e = 0; e < want_acc.size(); ++e) want_acc[e] *= want_sum[e / shape[3]];
    ASSERT_EQ(compare(sum, want_sum, [&](int64_t r) { return bound.lse * kEps * want_sum[r]; }), "")
        << "sum, case " << i << ": " << describe(a);
    ASSERT_EQ(compare(acc, want_acc,
                      [&](int64_t e) {
                        // Not divided by the sum of the rounded weights, each term of kBF16 has its own error.
                        const double weights = a.arithmetic == Arithmetic::kBF16 ? kBF16Eps * want.magnitude[e]
                                                                                 : kWeightSlack * want.weights[e];
                        const double of_one = bound.out * kEps * want.magnitude[e] + weights + bound.tiny;
                        return std::isfinite(of_one) ? of_one * want_sum[e / shape[3]] : 0.0;
                      }),
              "")
        << "acc, case " << i << ": " << describe(a);
  }
}

/// Random option mixes over small shapes: every target against one evaluation of the formula.
TEST(FormulaMixes, AttentionOnEveryTarget) {
  Random random(seed() * 1000 + 7);
  const std::vector<const Target*> all = runnable_targets();
  for (int64_t i = 0; i < cases(100000); ++i) {
    AttentionLimits limits;
    limits.max_batch = 2;
    limits.max_kv_heads = 2;
    limits.max_group = 3;
    limits.max_q = 4;
    limits.max_kv = 20;
    limits.max_dim = 9;
    const AttentionCase c = random_attention(random, limits);
    const reference::AttentionResult want = reference::attention(c.problem);
    // Every mix on the definition; the others take turns, for what they do to a block does not depend on the options.
    const Target* turn[] = {&scalar_target(), all[static_cast<size_t>(i) % all.size()]};
    for (const Target* t : turn) {
      ASSERT_EQ(check_attention(c, want, *t), "")
          << "mix " << i << " on " << target_name(*t) << ": " << describe(c.problem);
      if (turn[0] == turn[1]) break;
    }
  }
}

/// The same over stores of every type in tensors, pages (shared ones too) and rings, keys and values apart.
TEST(FormulaMixes, EveryTypeInEveryForm) {
  Random random(seed() * 1000 + 11);
  const std::vector<const Target*> all = runnable_targets();
  std::set<std::pair<KvType, bool>> seen;
  for (int64_t i = 0; i < cases(6000); ++i) {
    AttentionLimits limits;
    limits.rings = true;
    limits.max_batch = 2;
    limits.max_group = 3;
    limits.max_q = 4;
    limits.max_kv = 100;
    limits.max_dim = 70;
    const AttentionCase c = random_attention(random, limits);
    const reference::AttentionResult want = reference::attention(c.problem);
    seen.emplace(c.problem.k.type, c.problem.k.ring > 0);
    const Target* turn[] = {&scalar_target(), all[static_cast<size_t>(i) % all.size()]};
    for (const Target* t : turn) {
      ASSERT_EQ(check_attention(c, want, *t), "")
          << "mix " << i << " on " << target_name(*t) << ": " << describe(c.problem);
      if (turn[0] == turn[1]) break;
    }
  }
  if (cases(6000) >= 2000) {
    EXPECT_EQ(seen.size(), 24u) << "12 types, in rings and elsewhere";
  }
}

TEST_P(Formula, AttentionMerge) {
  Random random(seed() * 1000 + 8);
  for (int64_t i = 0; i < cases(1000); ++i) {
    const bool wide = i % 16 == 0;  // columns are joined 1024 at a time
    const int64_t parts = random.integer(1, 6), batch = random.integer(1, 2), heads = random.integer(1, 3),
                  n = random.integer(0, wide ? 2 : 4);
    const int64_t dim = wide ? random.of<int64_t>({1023, 1024, 1025, 2047, 2048, 2049, 2300}) : random.size(1, 80);
    Array<5> part(random, random.storage(), {parts, batch, heads, n, dim}, Values::kOrdinary, Strides::kOutput);
    Array<4> part_lse(random, DType::kF32, {parts, batch, heads, n}, Strides::kOutput);
    for_each_element(part_lse.view, [&](int64_t at) {
      put(part_lse.view.data, DType::kF32, at, random.one_in(4) ? -kInf : 10 * random.uniform());
    });
    // What a part of no keys holds has no influence.
    for (int64_t e = 0; e < parts * batch * heads * n; ++e) {
      const std::array<int64_t, 4> at = {e / n / heads / batch, e / n / heads % batch, e / n % heads, e % n};
      if (part_lse.get_at(at) != -kInf || random.coin()) continue;
      for (int64_t d = 0; d < dim; ++d) part.set_at({at[0], at[1], at[2], at[3], d}, random.coin() ? kNaN : kInf);
    }
    Array<4> out(random, random.storage(), {batch, heads, n, dim}, Strides::kOutput);
    Array<3> lse(random, DType::kF32, {batch, heads, n}, Strides::kOutput);
    std::vector<double> sinks;
    Numbers<float> sink_array;
    if (random.coin()) {
      std::vector<float> values;
      for (int64_t h = 0; h < heads; ++h)
        values.push_back(5 * random.uniform()), sinks.push_back(to_double(values.back()));
      sink_array = Numbers<float>(random, values);
    }
    ASSERT_TRUE(ok(attention_merge(part.view, part_lse.view, out.view, lse.view,
                                   sinks.empty() ? nullptr : sink_array.data(), exec())));
    const reference::AttentionResult want =
        reference::attention_merge(reference::read(part.view), reference::read(part_lse.view), sinks);
    // Weights: a difference of at most 20, an exponential; the chain over the parts; sums, division, product.
    const double roundings = 2 * (20 + cost().exp) + 3 * static_cast<double>(parts) + 8;
    ASSERT_EQ(compare(out, want.out, [&](int64_t e) { return roundings * kEps * want.magnitude[e]; }), "")
        << "case " << i;
    ASSERT_EQ(
        compare(lse, want.lse, [&](int64_t) { return (20 + cost().exp + static_cast<double>(parts) + 4) * kEps; }), "")
        << "lse, case " << i;
    // Into one of the parts, whichever: the same bits.
    if (out.view.dtype != part.view.dtype) continue;
    const int64_t p = random.integer(0, parts - 1);
    View<4> place = out.view;
    place.data = static_cast<char*>(part.view.data) + p * part.view.stride[0] * size_of(part.view.dtype);
    for (size_t d = 0; d < 4; ++d) place.stride[d] = part.view.stride[d + 1];
    const Status in_place =
        attention_merge(part.view, part_lse.view, place, {}, sinks.empty() ? nullptr : sink_array.data(), exec());
    ASSERT_TRUE(in_place.ok()) << "into part " << p << " of " << parts << ": " << in_place.detail;
    std::vector<uint64_t> got;
    for_each_element(place, [&](int64_t at) { got.push_back(element_bits(place.data, place.dtype, at)); });
    ASSERT_EQ(got, out.bits()) << "into part " << p << " of " << parts << ", case " << i;
    ASSERT_TRUE(part.gaps_intact());
  }
}

SIMDATTN_FOR_EACH_TARGET(Formula);

}  // namespace
}  // namespace simdattn::test
