// What happens to scores between their scale and the softmax: softcap, ALiBi, bias and masks, which one pass over a
// row's scores applies.
#ifndef SIMDATTN_LIB_DRIVERS_SHARED_MODIFIERS_H_
#define SIMDATTN_LIB_DRIVERS_SHARED_MODIFIERS_H_

#include <cstdint>

#include "include/simdattn/simdattn.h"
#include "lib/contract/ukernels.h"

namespace simdattn {

/// What some modifier of a call does, by the table of modifiers.cc.
struct Modifiers {
  bool any = false;
  bool hides = false;        // it may hide keys, so a look at it pays before keys are read
  bool changes_all = false;  // it changes every score: a look cannot leave out columns
  bool by_position = false;  // it depends on the key's position: runs of keys of a list are modified one by one
  bool by_head = false;      // it differs between the heads of a group
};
Modifiers modifiers_of(const Scoring& scoring);

/// Where a row is in what modifies it. In varlen, places in bias, mask and packed_mask differ from sequence and row.
struct RowPlace {
  int64_t head;
  int64_t position;
  int64_t mask_batch;
  int64_t mask_row;
  int64_t length;  // keys of the sequence
};
/// The modifiers of one row.
RowModifiers row_modifiers(const Scoring& scoring, const RowPlace& row);

/// The slot modify_row, also where a bias or mask is one number for all keys.
ModifyResult modify(const UKernels& uk, const ModifyRow& a);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_DRIVERS_SHARED_MODIFIERS_H_
