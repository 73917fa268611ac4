// Modifiers and the softmax of a key block, against formulas in float64; and what drivers know of each modifier,
// against what it does.
#include "tests/attention/parts.h"

namespace simdattn::test {
namespace {

/// Every modifier alone and with others.
struct AnyModifiers {
  std::vector<float> slopes, factors, bias;
  std::vector<uint8_t> mask, bits;
  Scoring scoring;

  AnyModifiers(Random& random, int64_t which, int64_t heads, int64_t n_q, int64_t n_kv) {
    const size_t n = static_cast<size_t>(heads * n_q * n_kv);
    const int64_t shape[4] = {1, heads, n_q, n_kv};
    for (int64_t h = 0; h < heads; ++h) slopes.push_back(0.01f * static_cast<float>(h + 1));
    for (int64_t h = 0; h < heads; ++h) factors.push_back(static_cast<float>(h + 1));
    for (size_t i = 0; i < n; ++i) bias.push_back(random.one_in(5) ? -kInfinity : random.uniform());
    for (size_t i = 0; i < n; ++i) mask.push_back(random.one_in(5) ? 0 : 1);
    for (size_t i = 0; i < n; ++i) bits.push_back(static_cast<uint8_t>(random.bits()));
    if (which & 1) scoring.softcap = 2.0f;
    if (which & 2) scoring.alibi_slopes = slopes.data();
    if (which & 4) scoring.bias = view(static_cast<const float*>(bias.data()), shape);
    if (which & 4) scoring.bias_scale = factors.data();
    if (which & 8) scoring.mask = view(static_cast<const uint8_t*>(mask.data()), shape);
    if (which & 16) scoring.packed_mask = {bits.data(), n_kv, {0, n_q * n_kv, n_kv}};
  }
  double of(double t, int64_t h, int64_t i, int64_t j) const {
    const Scoring& s = scoring;
    const int64_t n_q = shape(2), n_kv = shape(3);
    const size_t at = static_cast<size_t>((h * n_q + i) * n_kv + j);
    if (s.softcap > 0) t = static_cast<double>(s.softcap) * std::tanh(t / static_cast<double>(s.softcap));
    if (s.alibi_slopes)
      t -= static_cast<double>(slopes[static_cast<size_t>(h)]) * std::abs(static_cast<double>(i + n_kv - n_q - j));
    if (s.bias.data)
      t += bias[at] == -kInfinity ? -INFINITY : static_cast<double>(factors[static_cast<size_t>(h)] * bias[at]);
    if (s.mask.data && mask[at] == 0) t = -INFINITY;
    if (s.packed_mask.data && (bits[static_cast<size_t>((h * n_q + i) * n_kv + j / 8)] >> j % 8 & 1) == 0)
      t = -INFINITY;
    return t;
  }
  int64_t rows = 0, keys = 0;
  int64_t shape(int d) const { return d == 2 ? rows : keys; }
};

class Weigh : public TargetTest {};

TEST_P(Weigh, ModifiesScoresAndTakesThemIn) {
  Random random(4);
  for (int64_t n = 0; n < 128; ++n) {
    const int64_t heads = random.integer(1, 3), n_q = random.integer(1, 3), n_kv = random.size(1, 256);
    AnyModifiers m(random, n % 32, heads, n_q, n_kv);
    m.rows = n_q;
    m.keys = n_kv;
    m.scoring.causal = random.coin();
    const SmallProblem p(random, KvType::kF32, KvForm::kRows, m.scoring, heads, n_q, n_kv, 4, target());
    const RowBlock rows(*p.run, {0, 0, 0});
    // A list now and then: keys in any order.
    std::vector<int32_t> tokens;
    for (int64_t j = 0; j < n_kv; ++j) tokens.push_back(static_cast<int32_t>(random.integer(0, n_kv - 1)));
    const bool listed = n >= 64;
    KeyBlock block(0, listed ? tokens.data() : nullptr, {rows.k_store, 0}, {rows.v_store, 0});
    if (listed) look_at_list(rows, n_kv, &block);
    else look(rows, &block);
    const TileRows tile = {0, rows.rows, block.seen_by(0, rows.rows)};
    if (tile.see.lo >= tile.see.hi) continue;
    std::vector<float> x(static_cast<size_t>(rows.rows * kKeyBlock));
    for (float& value : x) value = 3 * random.uniform();
    for (int64_t r = 0; r < rows.rows; ++r) std::copy_n(x.data() + r * kKeyBlock, kKeyBlock, rows.scores(r));
    const RowStates& states = rows.memory.total;
    start_states(rows, states, true);
    const bool masked = modify_tile(rows, block, tile);
    weigh(rows, block, tile, states);
    bool hides = false;
    for (int64_t r = 0; r < rows.rows; ++r) {
      std::vector<double> t(static_cast<size_t>(n_kv), -INFINITY);
      double max = -INFINITY, sum = 0;
      for (int64_t c = block.row[r].lo; c < block.row[r].hi; ++c) {
        const int64_t j = block.key(c);
        double& at = t[static_cast<size_t>(c)];
        if (rows.see(r).has(j))
          at = m.of(static_cast<double>(x[static_cast<size_t>(r * kKeyBlock + c)]), rows.head_of(r),
                    rows.position_of(r), j);
        hides |= at == -INFINITY;
        max = std::max(max, at);
      }
      for (int64_t c = tile.see.lo; c < tile.see.hi; ++c) {
        const double want = max == -INFINITY ? 0 : std::exp(t[static_cast<size_t>(c)] - max);
        sum += want;
        ASSERT_NEAR(static_cast<double>(rows.scores(r)[c]), want, 2e-6) << n << " row " << r << " column " << c;
      }
      ASSERT_NEAR(static_cast<double>(states.sum[r]), sum, 1e-5 * sum) << n << " row " << r;
      if (max == -INFINITY) ASSERT_EQ(states.max[r], -kInfinity);
      else ASSERT_NEAR(static_cast<double>(states.max[r]), max, 1e-5);
    }
    ASSERT_EQ(masked, hides) << n;
  }
}

TEST_P(Weigh, KnowsWhatEachModifierDoes) {
  Random random(5);
  constexpr int64_t kHeads = 2, kRows = 2, kKeys = 40;
  for (int64_t which = 0; which < 32; ++which) {
    AnyModifiers m(random, which, kHeads, kRows, kKeys);
    m.rows = kRows;
    m.keys = kKeys;
    Modifiers does;
    for (int64_t j = 0; j < kKeys; ++j) {
      const double t = m.of(1.5, 1, 1, j);
      does.any |= t != 1.5;
      does.hides |= t == -INFINITY;
      does.changes_all |= (which & 3) != 0 && t != 1.5;
      does.by_position |= t != m.of(1.5, 1, 1, 0);
      does.by_head |= t != m.of(1.5, 0, 1, j);
    }
    const Modifiers known = modifiers_of(m.scoring);
    EXPECT_EQ(known.any, does.any) << which;
    EXPECT_EQ(known.hides, does.hides) << which;
    EXPECT_EQ(known.changes_all, does.changes_all) << which;
    EXPECT_EQ(known.by_position, does.by_position) << which;
    EXPECT_EQ(known.by_head, does.by_head) << which;
  }
}

SIMDATTN_FOR_EACH_TARGET(Weigh);

}  // namespace
}  // namespace simdattn::test
