// Weights times the values of a key block, in place and packed, against sums in float64; and values that are not
// finite, which no row sees.
#include "tests/attention/parts.h"

namespace simdattn::test {
namespace {

class ValuesPart : public TargetTest {};

TEST_P(ValuesPart, AddsWhatRowsSee) {
  Random random(6);
  for (int64_t n = 0; n < 300; ++n) {
    const KvForm form = random.of({KvForm::kRows, KvForm::kPagedRows});
    const KvType type = random.of({KvType::kF32, KvType::kBF16, KvType::kF16, KvType::kInt8, KvType::kQ8_0});
    const int64_t dim = random.of({32, 64, 96});
    const int64_t n_q = random.of({1, 3, 12, 13, 30}), n_kv = random.size(2, 256);
    const bool hides = is_narrow(type) ? false : random.coin();
    Scoring scoring;
    scoring.causal = hides;
    scoring.offset = 0;
    SmallProblem p(random, type, form, scoring, 1, n_q, n_kv, dim, target());
    // The last key is seen by the last row at most.
    if (hides) {
      const std::vector<float> nan(static_cast<size_t>(dim), NAN);
      const ConstView<4> row = view(nan.data(), {1, 1, 1, dim});
      ASSERT_TRUE(kv_append(row, {}, p.v_store.kv, {.start = n_kv - 1}, exec()).ok());
    }
    const RowBlock rows(*p.run, {0, 0, 0});
    const KernelHooks hooks(rows.arithmetic);
    KeyBlock block = block_of(rows, 0);
    look(rows, &block);
    const TileRows tile = {0, rows.rows, hides ? Interval{0, n_kv} : block.seen_by(0, rows.rows)};
    const RowStates& states = rows.memory.total;
    start_states(rows, states, false);
    std::vector<double> was(static_cast<size_t>(rows.rows));
    for (int64_t r = 0; r < rows.rows; ++r) {
      rows.memory.alpha[r] = 0.5f;
      was[static_cast<size_t>(r)] = static_cast<double>(states.acc[r * states.ld] = random.uniform());
      for (int64_t c = 0; c < n_kv; ++c) {
        const bool sees = c >= block.row[r].lo && c < block.row[r].hi;
        rows.scores(r)[c] = sees ? 0.5f + 0.5f * random.uniform() : 0.0f;
      }
    }
    BlockValues values(rows, block.v, tile.see, rows.rows);
    if (hides) values.add_visible(block, tile, states);
    else values.add(tile, states);
    for (int64_t r = 0; r < rows.rows; ++r) {
      for (int64_t d = 0; d < dim; ++d) {
        double want = d == 0 ? 0.5 * was[static_cast<size_t>(r)] : 0;
        for (int64_t c = block.row[r].lo; c < block.row[r].hi; ++c) {
          want += static_cast<double>(rows.scores(r)[c]) *
                  (hides && c == n_kv - 1 ? static_cast<double>(NAN) : static_cast<double>(p.value(c, d)));
        }
        const float got = states.acc[r * states.ld + d];
        if (std::isnan(want)) ASSERT_TRUE(std::isnan(got)) << n << " row " << r << " dimension " << d;
        else ASSERT_NEAR(static_cast<double>(got), want, 1e-4) << n << " row " << r << " dimension " << d;
      }
    }
  }
}

SIMDATTN_FOR_EACH_TARGET(ValuesPart);

}  // namespace
}  // namespace simdattn::test
