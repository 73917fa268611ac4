// The rules on attention_merge().
#ifndef SIMDATTN_LIB_RULES_MERGE_H_
#define SIMDATTN_LIB_RULES_MERGE_H_

#include "lib/rules/views.h"

namespace simdattn {

Status check_attention_merge(const ConstView<5>& parts, const ConstView<4>& part_lse, const View<4>& out,
                             const View<3>& lse, const float* sinks);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_MERGE_H_
