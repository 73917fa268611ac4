// The tile instructions of AMX in software, as ../shared/hardware recorded them, and the kernels of lib/overlays over
// them: what lets a CPU that has AVX-512 test the code of one that has AMX.
#pragma once

#include <cstdint>

#include "lib/contract/ukernels.h"

namespace simdattn::test {

/// `amx`, the table of intrinsics/amx, with software in every slot that executes a tile instruction.
UKernels over_software_tiles(const UKernels& amx);

/// c[16][16] += a[16] * b[16], rows of 64 bytes.
void software_add_bf16(const void* a, const void* b, void* c);
void software_add_signed(const void* a, const void* b, void* c);
void software_add_unsigned(const void* a, const void* b, void* c);

/// Since the last call, of this thread.
struct TileCounts {
  int64_t products;
  int64_t begun;  // ranges
  int64_t ended;
  int64_t broken_rules;  // of AMX
};
TileCounts take_tile_counts();

}  // namespace simdattn::test
