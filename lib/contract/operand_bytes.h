// Sizes that hold operands of every arithmetic on every target, for drivers that size their workspace before they know
// either. lib/targets/table.cc asserts them of each table.
#pragma once

#include "lib/contract/steps.h"
#include "lib/contract/ukernels.h"

namespace simdattn {

/// Of a row of queries: no operand is wider than f32, none is padded to more than 64 dimensions.
constexpr int64_t most_query_bytes(int64_t dim) { return 4 * round_up(dim, 64) + 64; }
/// Of a packed panel: the same, and a scale for each key.
constexpr int64_t most_panel_bytes(int64_t dim) { return kPanelWidth * (4 * round_up(dim, 64) + 4); }
/// Of kKeyBlock packed values: the same, in groups of columns.
constexpr int64_t most_values_bytes(int64_t dim) { return kKeyBlock * (4 * round_up(dim, kValueGroup) + 4); }

/// Whether the operands of a table fit. Sizes grow in steps of 64 dimensions at most, so that a few tell of all.
constexpr bool operands_fit(const UKernels& table) {
  for (int64_t dim = 1; dim <= 320; ++dim) {
    for (const AttentionKernels& kernels : table.attention) {
      bool fit =
          kernels.query_bytes(dim) <= most_query_bytes(dim) && kernels.values_bytes(dim) <= most_values_bytes(dim);
      for (const KvOperands& kv : kernels.kv) {
        fit = fit && (kv.panel_bytes == nullptr || kv.panel_bytes(dim) <= most_panel_bytes(dim));
      }
      if (!fit) return false;
    }
  }
  return true;
}

}  // namespace simdattn
