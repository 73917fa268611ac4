// The tables of micro-kernels of one instruction set: SIMDATTN_ADAPTER is the adapter's header, SIMDATTN_TABLE the name
// of its own table, SIMDATTN_OVERLAYS those of overlays with it as their base: OVERLAY(table, name) each. Compiled once
// per row of meson.build, with that instruction set's flags.
#include "lib/contract/operand_bytes.h"
#include "lib/kernels/bf16_chains.h"
#include "lib/kernels/elementwise.h"
#include "lib/kernels/int8.h"
#include "lib/kernels/modify_row.h"
#include "lib/kernels/narrow.h"
#include "lib/kernels/pack.h"
#include "lib/kernels/rope.h"
#include "lib/kernels/score_key_rows.h"
#include "lib/kernels/score_tile.h"
#include "lib/kernels/scores.h"
#include "lib/kernels/softmax.h"
#include "lib/kernels/state.h"
#include "lib/kernels/store.h"
#include "lib/kernels/value_tile.h"
#include "lib/overlays/overlays.h"

#include "lib/contract/table_of_kernels.h"  // behind the kernels, which it names

namespace simdattn {
namespace {

constexpr AttentionKernels attention_in_f32() {
  AttentionKernels kernels = f32_attention<softmax_tile<false>>(kTileRows);
  if constexpr (kScoresKeyRows) {
    kernels.kv[index_of(KvType::kF32)].score_rows = score_key_rows<float>;
    kernels.kv[index_of(KvType::kBF16)].score_rows = score_key_rows<bf16>;
    kernels.kv[index_of(KvType::kF16)].score_rows = score_key_rows<f16>;
    for (size_t type = 0; type < kElementTypes; ++type) kernels.kv[type].takes_lists = true;
  }
  return kernels;
}
constexpr UKernels kUKernels = with_narrow_types<Narrow>(
    table_of(attention_in_f32(), bf16_attention<Bf16Kernels>(kTileRows),
             int8_attention<Int8Kernels>(!kPairCells, kInt8Rows, softmax_tile<false>, Int8Kernels::value_stored())));

static_assert(operands_fit(kUKernels));

}  // namespace

extern const UKernels SIMDATTN_TABLE;
constinit const UKernels SIMDATTN_TABLE = kUKernels;
#define OVERLAY(backend, name)                                                                                   \
  extern const UKernels kKernels_##backend##_##name;                                                             \
  constinit const UKernels kKernels_##backend##_##name = overlaid<kUKernels>(static_cast<const name*>(nullptr)); \
  static_assert(operands_fit(overlaid<kUKernels>(static_cast<const name*>(nullptr))));
SIMDATTN_OVERLAYS
#undef OVERLAY

}  // namespace simdattn
