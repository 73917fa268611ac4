// The tables of micro-kernels of one instruction set: SIMDATTN_ADAPTER is the adapter's header, SIMDATTN_TABLE the name of its own table,
// SIMDATTN_OVERLAYS those of overlays with it as their base: OVERLAY(table, name) each. Compiled once per row of meson.build, with that
// instruction set's flags.
#include "lib/contract/narrow_operands.h"
#include "lib/kernels/int8_stored.h"
#include "lib/kernels/kernels.h"
#include "lib/kernels/narrow.h"
#include "lib/kernels/overlays.h"

namespace simdattn {
namespace {

constexpr UKernels kUKernels = with_narrow_types<Narrow>(
    table_of(int8_attention<Int8Kernels>(!kPairCells, kInt8Rows, softmax_tile<false>, Int8Kernels::value_stored())));

}  // namespace

extern const UKernels SIMDATTN_TABLE;
constinit const UKernels SIMDATTN_TABLE = kUKernels;
#define OVERLAY(backend, name)                       \
  extern const UKernels kKernels_##backend##_##name; \
  constinit const UKernels kKernels_##backend##_##name = overlaid<kUKernels>(static_cast<const name*>(nullptr));
SIMDATTN_OVERLAYS
#undef OVERLAY

}  // namespace simdattn
