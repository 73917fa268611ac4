// rope_direct(): rotation by angles that are computed on the way.
#include "dispatch/target.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/rope_columns.h"
#include "lib/drivers/table_positions.h"
#include "lib/drivers/workspace.h"
#include "lib/dtypes.h"
#include "lib/rules/positions.h"
#include "lib/ukernels.h"

namespace simdattn {
namespace {

/// Up to this many pairs, their constants and one row of cos and sin stand on the stack (36 KiB).
constexpr int64_t kStackPairs = 1024;

struct DirectBuffers {
  RopeColumn* columns;
  float* cos;
  float* sin;
  size_t bytes;
  DirectBuffers(void* memory, int64_t pairs) {
    Workspace w(memory);
    columns = w.take<RopeColumn>(pairs);
    cos = w.take<float>(pairs);
    sin = w.take<float>(pairs);
    bytes = w.bytes();
  }
};

}  // namespace

size_t drivers::rope_direct_workspace(int64_t pairs) {
  return pairs > kStackPairs && pairs <= kMaxColumns ? DirectBuffers(nullptr, pairs).bytes : 0;
}

Status drivers::rope_direct(const ConstView<4>& x, int64_t pairs, const RopeTableOptions& table,
                            const ConstView<3>& positions, const View<4>& out, const RopeOptions& options,
                            const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  ByteSet ex, eo, ep;
  SIMDATTN_CHECK(check_view(x, Accept::kElements, SIMDATTN_ARGUMENT("x"), &ex));
  SIMDATTN_CHECK(check_view(out, Accept::kElements, SIMDATTN_ARGUMENT("out"), &eo));
  SIMDATTN_REQUIRE(same_shape(x, out), Code::kShape, "out.shape != x.shape");
  const auto [batch, heads, n, dim] = x.shape;
  SIMDATTN_REQUIRE(pairs >= 1 && pairs <= kMaxColumns, Code::kRange, "pairs: must be in 1 .. 2^20");
  SIMDATTN_CHECK(
      check_rope_options(options, pairs, dim, kRope, "pairs: first_dim + 2 * pairs exceeds the head dimension"));
  RopeScaling scaling;
  if (Status status = resolve_rope_scaling(table, pairs, true, &scaling); !status.ok()) return status;
  const bool given = positions.data != nullptr;
  int64_t axes = 1;
  if (given) {
    axes = positions.shape[0];
    SIMDATTN_REQUIRE(axes == 1 || axes == scaling.axes, Code::kShape,
                     "positions.shape[0]: must be 1 or the number of position axes in table.mrope_section");
    SIMDATTN_REQUIRE(positions.shape[1] == batch && positions.shape[2] == n, Code::kShape,
                     "positions.shape: must be [axes, batch, rows]");
    SIMDATTN_CHECK(check_view(positions, Accept::kIndex, SIMDATTN_ARGUMENT("positions"), &ep));
  } else {
    SIMDATTN_REQUIRE(positions.shape[0] == 0 || positions.shape[1] == 0 || positions.shape[2] == 0, Code::kNullPointer,
                     "positions.data: null although its shape is not empty");
  }
  const auto position_of = [&](int64_t axis, int64_t b, int64_t i) {
    if (!given) return options.start + i;
    return index_at(positions.data, positions.dtype,
                    axis * positions.stride[0] + b * positions.stride[1] + i * positions.stride[2]);
  };
  for (int64_t axis = 0; axis < axes && given; ++axis) {
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t p = position_of(axis, b, i);
        SIMDATTN_REQUIRE(p > -kPositionLimit && p < kPositionLimit, Code::kRange,
                         "positions: every position must be in (-2^31, 2^31)");
      }
    }
  }
  SIMDATTN_REQUIRE(same_elements(x, out) || !share_bytes(eo, ex), Code::kOverlap, "out: overlaps x without being x");
  SIMDATTN_REQUIRE(!share_bytes(eo, ep), Code::kOverlap, "out: overlaps positions");
  SIMDATTN_REQUIRE(!overlaps_options(eo, table), Code::kOverlap, "out: overlaps an array of table");
  if (pairs > kStackPairs) {
    SIMDATTN_REQUIRE(exec.workspace != nullptr, Code::kWorkspace, "exec.workspace: null; see rope_direct_workspace");
    SIMDATTN_REQUIRE(exec.workspace_bytes >= rope_direct_workspace(pairs), Code::kWorkspace,
                     "exec.workspace_bytes: less than rope_direct_workspace(pairs)");
    const ByteSet memory = ByteSet::of(exec.workspace, static_cast<int64_t>(rope_direct_workspace(pairs)));
    SIMDATTN_REQUIRE(!share_bytes(memory, eo), Code::kOverlap, "exec.workspace: overlaps out");
    SIMDATTN_REQUIRE(!share_bytes(memory, ex), Code::kOverlap, "exec.workspace: overlaps x");
    SIMDATTN_REQUIRE(!share_bytes(memory, ep), Code::kOverlap, "exec.workspace: overlaps positions");
    SIMDATTN_REQUIRE(!overlaps_options(memory, table), Code::kOverlap, "exec.workspace: overlaps an array of table");
  }
  if (eo.empty()) return {};

  alignas(64) char stack[kStackPairs * (sizeof(RopeColumn) + 2 * sizeof(float)) + 64];
  const DirectBuffers buffers(pairs > kStackPairs ? exec.workspace : stack, pairs);
  rope_columns(scaling, axes == 1, 0, pairs, buffers.columns);
  RopeHeads call = {.x = nullptr,
                    .y = nullptr,
                    .x_stride = x.stride[1],
                    .y_stride = out.stride[1],
                    .heads = heads,
                    .dim = dim,
                    .first = options.first_dim,
                    .half = pairs,
                    .cos = buffers.cos,
                    .sin = buffers.sin,
                    .interleaved = options.pairing == RopePairing::kInterleaved,
                    .inverse = options.inverse};
  const auto kernel = uk->rope_heads[slot(x.dtype)][slot(out.dtype)];
  for (int64_t i = 0; i < n; ++i) {
    int64_t last[4] = {kPositionLimit};  // no position: the row in the buffers is of none yet
    for (int64_t b = 0; b < batch; ++b) {
      int64_t position[4] = {};
      bool same = true;
      for (int64_t axis = 0; axis < axes; ++axis) {
        position[axis] = position_of(axis, b, i);
        same = same && position[axis] == last[axis];
      }
      if (!same) {
        rope_row(scaling, buffers.columns, pairs, position, buffers.cos, buffers.sin);
        for (int64_t axis = 0; axis < axes; ++axis) last[axis] = position[axis];
      }
      call.x = static_cast<const char*>(x.data) + (b * x.stride[0] + i * x.stride[2]) * size_of(x.dtype);
      call.y = static_cast<char*>(out.data) + (b * out.stride[0] + i * out.stride[2]) * size_of(out.dtype);
      kernel(call);
    }
  }
  return {};
}

}  // namespace simdattn
