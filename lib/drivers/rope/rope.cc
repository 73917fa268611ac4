// rope(): rotates rows by the angles of their positions. rope_direct(): by angles that are computed on the way.
#include "dispatch/environment.h"
#include "dispatch/target.h"
#include "lib/drivers/attention/workspace.h"
#include "lib/drivers/drivers.h"
#include "lib/drivers/rope/rope_columns.h"
#include "lib/drivers/rows/convert.h"
#include "lib/drivers/rows/rows.h"
#include "lib/rules/rules.h"

namespace simdattn {
namespace {

/// Up to this many pairs, their constants and one row of cos and sin stand on the stack (36 KiB).
constexpr int64_t kStackPairs = 1024;

struct DirectBuffers {
  Workspace w;
  int64_t pairs;
  RopeColumn* columns = w.take<RopeColumn>(pairs);
  float* cos = w.take<float>(pairs);
  float* sin = w.take<float>(pairs);
};

/// All heads of a token, as `call` says.
void rotate_token(const UKernels& uk, const ConstView<4>& x, const View<4>& out, int64_t b, int64_t i,
                  RopeHeads& call) {
  call.x = row_of(x, b, 0, i);
  call.y = row_of(out, b, 0, i);
  call.x_stride = x.stride[1];
  call.y_stride = out.stride[1];
  call.heads = x.shape[1];
  rotate_heads(uk, x.dtype, out.dtype, call);
}

}  // namespace

Status drivers::rope(const ConstView<4>& x, const ConstView<2>& cos, const ConstView<2>& sin,
                     const ConstView<2>& positions, const View<4>& out, const RopeOptions& options, const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  bool empty = false;
  SIMDATTN_CHECK(check_rope(x, cos, sin, positions, out, options, &empty));
  if (empty) return {};

  const Environment environment;
  RopeHeads call = rotation_of(options, x.shape[3], cos.shape[1]);
  for (int64_t b = 0; b < x.shape[0]; ++b) {
    for (int64_t i = 0; i < x.shape[2]; ++i) {
      const int64_t p = position_at(positions, options.start, b, i);
      call.cos = table_row(cos, p);
      call.sin = table_row(sin, p);
      rotate_token(*uk, x, out, b, i, call);
    }
  }
  return {};
}

size_t drivers::rope_direct_workspace(int64_t pairs) {
  return pairs > kStackPairs && pairs <= kMaxColumns ? DirectBuffers{Workspace(nullptr), pairs}.w.bytes() : 0;
}

Status drivers::rope_direct(const ConstView<4>& x, int64_t pairs, const RopeTableOptions& table,
                            const ConstView<3>& positions, const View<4>& out, const RopeOptions& options,
                            const Exec& exec) {
  const UKernels* uk = nullptr;
  SIMDATTN_CHECK(resolve(exec, &uk));
  RopeDirectBytes bytes;
  SIMDATTN_CHECK(check_rope_direct_rows(x, pairs, out, options, &bytes));
  RopeScaling scaling;
  SIMDATTN_CHECK(resolve_rope_scaling(table, pairs, true, &scaling));
  SIMDATTN_CHECK(check_rope_direct_positions(x, table, scaling.axes, positions, out, options, bytes, exec,
                                             rope_direct_workspace(pairs)));
  if (bytes.out.empty()) return {};

  const bool given = positions.data != nullptr;
  const int64_t axes = given ? positions.shape[0] : 1;
  alignas(64) char stack[kStackPairs * (sizeof(RopeColumn) + 2 * sizeof(float)) + 64];
  const DirectBuffers buffers = {Workspace(pairs > kStackPairs ? exec.workspace : stack), pairs};
  rope_columns(scaling, axes == 1, 0, pairs, buffers.columns);
  RopeHeads call = rotation_of(options, x.shape[3], pairs);
  call.cos = buffers.cos;
  call.sin = buffers.sin;
  for (int64_t i = 0; i < x.shape[2]; ++i) {
    std::array<int64_t, 4> last = {kPositionLimit};  // no position: the row in the buffers is of none yet
    for (int64_t b = 0; b < x.shape[0]; ++b) {
      std::array<int64_t, 4> position = {given ? 0 : options.start + i};
      for (int64_t axis = 0; given && axis < axes; ++axis) {
        position[static_cast<size_t>(axis)] =
            index_at(positions.data, positions.dtype,
                     axis * positions.stride[0] + b * positions.stride[1] + i * positions.stride[2]);
      }
      if (position != last) rope_row(scaling, buffers.columns, pairs, position.data(), buffers.cos, buffers.sin);
      last = position;
      rotate_token(*uk, x, out, b, i, call);
    }
  }
  return {};
}

}  // namespace simdattn
