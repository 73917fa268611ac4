// The rules on reading tokens of a store.
#ifndef SIMDATTN_LIB_RULES_DEQUANTISE_H_
#define SIMDATTN_LIB_RULES_DEQUANTISE_H_

#include "lib/rules/kv.h"

namespace simdattn {

/// Everything that dequantise() demands of its arguments.
Status check_dequantise(const ConstKv& kv, int64_t first, const View<4>& out);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_DEQUANTISE_H_
