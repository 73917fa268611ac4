// The rules on scores() and its relatives.
#ifndef SIMDATTN_LIB_RULES_SCORES_H_
#define SIMDATTN_LIB_RULES_SCORES_H_

#include "lib/rules/views.h"

namespace simdattn {

/// `needed`: bytes of the workspace that the call uses; here and below.
Status check_scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out, const ScoreOptions& options,
                    const Exec& exec, size_t needed);

Status check_gaussian_scores(const ConstView<4>& q, const ConstView<4>& k, const View<4>& out,
                             const ScoreOptions& options);

Status check_bilinear_scores(const ConstView<4>& q, const ConstView<3>& m, const ConstView<4>& k, const View<4>& out,
                             const ScoreOptions& options, const Exec& exec, size_t needed);

/// `needed` means nothing without projections.
Status check_additive_scores(const ConstView<4>& q, const ConstView<4>& k, const ConstView<2>& w, const View<4>& out,
                             const ConstView<3>& wq, const ConstView<3>& wk, const Exec& exec, size_t needed);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_SCORES_H_
