// rope_direct(): rotation by angles that are computed on the way.
#include "dispatch/target.h"
#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "lib/drivers/attention/workspace.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/rope/rope_columns.h"
#include "lib/drivers/rows/convert.h"
#include "lib/rules/rules.h"

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
  RopeDirectBytes bytes;
  SIMDATTN_CHECK(check_rope_direct_rows(x, pairs, out, options, &bytes));
  RopeScaling scaling;
  if (Status status = resolve_rope_scaling(table, pairs, true, &scaling); !status.ok()) return status;
  SIMDATTN_CHECK(check_rope_direct_positions(x, table, scaling.axes, positions, out, options, bytes, exec,
                                             rope_direct_workspace(pairs)));
  if (bytes.out.empty()) return {};

  const auto [batch, heads, n, dim] = x.shape;
  const bool given = positions.data != nullptr;
  const int64_t axes = given ? positions.shape[0] : 1;
  const auto position_of = [&](int64_t axis, int64_t b, int64_t i) {
    if (!given) return options.start + i;
    return index_at(positions.data, positions.dtype,
                    axis * positions.stride[0] + b * positions.stride[1] + i * positions.stride[2]);
  };
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
      rotate_heads(*uk, x.dtype, out.dtype, call);
    }
  }
  return {};
}

}  // namespace simdattn
