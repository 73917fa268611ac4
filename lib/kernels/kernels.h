// The kernels of one instruction set, and the table of them all.
#ifndef SIMDATTN_LIB_KERNELS_KERNELS_H_
#define SIMDATTN_LIB_KERNELS_KERNELS_H_

#include "lib/kernels/bf16_attention.h"
#include "lib/kernels/elementwise.h"
#include "lib/kernels/modify_row.h"
#include "lib/kernels/pack.h"
#include "lib/kernels/rope.h"
#include "lib/kernels/score_key_rows.h"
#include "lib/kernels/score_tile.h"
#include "lib/kernels/scores.h"
#include "lib/kernels/softmax_rows.h"
#include "lib/kernels/softmax_tile.h"
#include "lib/kernels/store.h"
#include "lib/kernels/value_tile.h"

#include "lib/contract/table_of_kernels.h"  // behind the kernels, which it names

namespace simdattn {
namespace {

constexpr AttentionKernels attention_in_f32() {
  AttentionKernels kernels = f32_attention<softmax_tile<false>>(kTileRows);
  if constexpr (kScoresKeyRows) {
    kernels.kv[slot(KvType::kF32)].score_rows = score_key_rows<float>;
    kernels.kv[slot(KvType::kBF16)].score_rows = score_key_rows<bf16>;
    kernels.kv[slot(KvType::kF16)].score_rows = score_key_rows<f16>;
  }
  return kernels;
}

/// All but the narrow storage types, with the inside of kInt8 as given.
constexpr UKernels table_of(const AttentionKernels& int8) {
  return table_of(attention_in_f32(), bf16_attention<Bf16Kernels>(kTileRows), int8);
}

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_KERNELS_KERNELS_H_
