// The rules on kv_shift().
#ifndef SIMDATTN_LIB_RULES_SHIFT_H_
#define SIMDATTN_LIB_RULES_SHIFT_H_

#include "lib/rules/kv.h"

namespace simdattn {

/// `empty`: the store has no bytes.
Status check_kv_shift(const Kv& kv, int64_t first, int64_t last, int64_t delta, const KeyRotation& rope, bool* empty);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_SHIFT_H_
