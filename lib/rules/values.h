// The rules on weighted_values().
#ifndef SIMDATTN_LIB_RULES_VALUES_H_
#define SIMDATTN_LIB_RULES_VALUES_H_

#include "lib/rules/views.h"

namespace simdattn {

/// `needed`: bytes of the workspace that the call uses.
Status check_weighted_values(const ConstView<4>& p, const ConstView<4>& v, const View<4>& out,
                             const ValueOptions& options, const Exec& exec, size_t needed);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_VALUES_H_
