// The rules on softmax() and masked_softmax().
#ifndef SIMDATTN_LIB_RULES_SOFTMAX_H_
#define SIMDATTN_LIB_RULES_SOFTMAX_H_

#include "lib/rules/views.h"

namespace simdattn {

Status check_softmax(const ConstView<2>& x, const View<2>& out, const View<1>& lse);
Status check_masked_softmax(const ConstView<4>& x, const View<4>& out, const Scoring& scoring, const View<3>& lse);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_SOFTMAX_H_
