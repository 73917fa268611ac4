// What holds of every plan whose arrays come later, or lie elsewhere.
#pragma once

#include "simdattn/simdattn.h"
#include "tests/support/problem_arrays.h"
#include "tests/support/random.h"

namespace simdattn::test {

/// All of a problem but the arrays that may come later.
AttentionProblem without_arrays(AttentionProblem a);
/// Addresses that a plan may be made from where `a` has others: any array null, values inside of keys or apart.
AttentionProblem other_addresses(const AttentionProblem& a, Random& random);

/// All tasks of a plan in ranges of random lengths and order, then those of the reduction, with guard pages behind the
/// workspace of each and behind the partial states. `copy` is used now and then in the place of the plan.
Status run_plan(const Plan& plan, const Plan& copy, const Target* target, Random& random);

/// That a plan computes what was bound to it, whatever it was made from, or refuses it by name. `a` is a problem whose
/// outputs attention() has just written, and which have the same bits afterwards.
void expect_bound_plans_agree(const AttentionProblem& a, const Target* target);

}  // namespace simdattn::test
