// The tile instructions of AMX in software, as ../shared/hardware recorded them, and the kernels of lib/overlays over
// them: what lets any CPU test the code of one that has AMX.
#pragma once

#include <cstdint>

#include "dispatch/cpu.h"
#include "dispatch/target.h"
#include "lib/contract/ukernels.h"

namespace simdattn::test {

/// What the functions below are compiled for: a CPU without it must not call them.
extern const Isa kSoftwareTilesIsa;
inline bool runs_software_tiles() { return *missing_feature(kSoftwareTilesIsa) == '\0'; }

/// "test/software_tiles": another target, but for kBF16 and kInt8. Null: the library lacks that target.
const Target* make_software_tiles();
/// The same; null where this CPU cannot run it, too.
inline const Target* software_tiles() { return runs_software_tiles() ? make_software_tiles() : nullptr; }

/// c[16][16] += a[16] * b[16], rows of 64 bytes.
void software_add_bf16(const void* a, const void* b, void* c);
void software_add_signed(const void* a, const void* b, void* c);
void software_add_unsigned(const void* a, const void* b, void* c);

/// Since the last call, of all threads.
struct TileCounts {
  int64_t products;
  int64_t begun;  // ranges
  int64_t ended;
  int64_t broken_rules;  // of AMX
};
TileCounts take_tile_counts();

/// This thread configures its tiles as no kernel does; true if they still are.
void configure_as_caller();
bool is_configured_as_caller();

}  // namespace simdattn::test
