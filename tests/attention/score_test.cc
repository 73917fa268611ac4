// Scores of key blocks in every way that there is, against sums in float64 over the numbers that kv_read() tells.
#include <set>

#include "tests/attention/parts.h"

namespace simdattn::test {
namespace {

class Score : public TargetTest {};

TEST_P(Score, IsADotProductInEveryWay) {
  Random random(3);
  std::set<ScoreWay> ways;
  for (int64_t n = 0; n < 300; ++n) {
    const KvForm form = random.of({KvForm::kRows, KvForm::kPanels, KvForm::kPagedRows, KvForm::kPagedPanels});
    const KvType type = random.of({KvType::kF32, KvType::kBF16, KvType::kF16, KvType::kInt8, KvType::kQ8_0});
    const int64_t dim = random.of({32, 64, 96, 128});
    const int64_t n_q = random.of({1, 2, 4, 5, 12, 13, 30}), n_kv = random.size(1, 300);
    const SmallProblem p(random, type, form, {}, 1, n_q, n_kv, dim, target());
    const RowBlock rows(*p.run, {0, 0, 0});
    const KernelHooks hooks(rows.arithmetic);
    rows.load_queries();
    const int64_t base = n_kv > kKeyBlock && random.coin() ? kKeyBlock : 0, keys = std::min(n_kv - base, kKeyBlock);
    const BlockTokens tokens(rows.k_store, base);
    Interval see = {random.integer(0, keys - 1), 0};
    see.hi = random.integer(see.lo + 1, keys);
    const int64_t at_once = random.coin() ? kScoreRows : rows.arithmetic.tile_rows;
    const ScoreWay way = rows.k.prepare_keys(tokens, see, rows.rows, at_once);
    ways.insert(way);
    for (int64_t r = 0; r < rows.rows; r += at_once) {
      const TileRows tile = {r, std::min(at_once, rows.rows - r), see};
      score(rows, tokens, way, tile);
      for (int64_t i = 0; i < tile.count; ++i) {
        for (int64_t c = see.lo; c < see.hi; ++c) {
          double want = 0, size = 0;
          for (int64_t d = 0; d < dim; ++d) {
            const double product =
                static_cast<double>(p.query(rows, r + i, d)) * static_cast<double>(p.key(base + c, d));
            want += product;
            size += std::abs(product);
          }
          const double scale = static_cast<double>(p.division.scale);
          ASSERT_NEAR(static_cast<double>(rows.scores(i)[c]), scale * want, 1e-5 * scale * size + 1e-9)
              << n << ": type " << static_cast<int>(type) << ", form " << static_cast<int>(form) << ", row " << r + i
              << " of " << rows.rows << ", column " << c;
        }
      }
    }
  }
  // The definition has no slots for rows in place, and panels of no type but its own. x86 with vectors of four lanes
  // packs rows, too.
  const bool in_place = target().kernels->attention[0].kv[0].score_rows != nullptr;
  EXPECT_GE(ways.size(), &target() == &scalar_target() ? 1u : in_place ? 4u : 3u);
}

SIMDATTN_FOR_EACH_TARGET(Score);

}  // namespace
}  // namespace simdattn::test
