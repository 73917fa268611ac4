// scores(): dot products of query rows with row-major keys.
#include <cmath>

#include "dispatch/target.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/score_rows.h"
#include "lib/rules/scores.h"
#include "lib/scalar/scores.h"

namespace simdattn {

Status drivers::scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out, const ScoreOptions& options,
                       const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  SIMDATTN_CHECK(check_scores(q, k, out, options));
  const float factor = options.scale ? *options.scale : 1.0f / std::sqrt(static_cast<float>(q.shape[3]));
  score_all_rows(
      *uk, q, k, out, factor, [&](const ScoreRows& call, int64_t, int64_t) { uk->score_rows[slot(k.dtype)](call); },
      [&](const auto* row, const auto* key, int64_t) { return scalar::dot(row, key, q.shape[3]); });
  return {};
}

}  // namespace simdattn
