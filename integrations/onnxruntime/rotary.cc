#include "kernels.h"
#include "rotation.h"

namespace simdattn_onnxruntime {

void rotary_embedding(Call* call) {
  const Node& node = call->node;
  const int ids_at = node.onnx ? 3 : 1, cos_at = node.onnx ? 1 : 2;
  const Tensor x = call->input(0), ids = call->input(ids_at), table = call->input(cos_at);
  const sa::DType type = call->type_of(0, x);
  if (x.rank != 3 && x.rank != 4) call->refuse(0, "has neither 3 nor 4 dimensions");
  if (!table || table.rank == 0) call->refuse(cos_at, "is needed");
  const int64_t batch = x.dim[0], columns = table.dim[static_cast<size_t>(table.rank - 1)];
  int64_t heads = x.dim[1], n = x.dim[2], d = x.dim[3];
  std::array<int64_t, 3> stride{x.dim[1] * x.dim[2] * x.dim[3], x.dim[2] * x.dim[3], x.dim[3]};
  if (x.rank == 3) {
    n = x.dim[1];
    d = node.num_heads > 0 ? x.dim[2] / node.num_heads : 2 * columns;
    heads = d > 0 ? x.dim[2] / d : 0;
    if (heads * d != x.dim[2]) call->refuse(0, "cannot be divided into heads");
    stride = {n * x.dim[2], d, x.dim[2]};
  }
  if (2 * columns > d || (node.rotary_embedding_dim > 0 && node.rotary_embedding_dim != 2 * columns))
    call->refuse(cos_at, "has another number of columns than half of the rotated part of a head");
  Places places{batch, n};
  if (ids) {
    if (ids.element != ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64) call->refuse(ids_at, "is not int64");
    const auto* const given = static_cast<const int64_t*>(ids.data);
    if (ids.size() == 1 && !node.onnx && batch * n != 1) {  // the position of the first row
      auto* const all = call->room<int64_t>(batch * n);
      for (int64_t i = 0; i < batch * n; ++i) all[i] = *given + i % n;
      places.ids = all;
    } else {
      if (ids.size() != batch * n) call->refuse(ids_at, "has another shape than [batch_size, sequence_length]");
      places.ids = given;
    }
  }
  const Rotation r = make_rotation(call, cos_at, table, places);
  const Tensor out = x.rank == 3 ? call->output(0, {batch, n, x.dim[2]}) : call->output(0, {batch, heads, n, d});
  if (x.size() == 0) return;
  // Heads of some 64 KB together give threads enough to share; few bytes are one call.
  const int64_t size = sa::dtype_bytes(type), bytes = 4 * x.size() * size;
  const int64_t most = call->shares(bytes) ? std::clamp<int64_t>(bytes / batch >> 16, 1, heads) : 1;
  const int64_t together = (heads + most - 1) / most, parts = (heads + together - 1) / together;
  call->check(call->parallel(batch * parts, bytes, [&](int64_t job) {
    const int64_t b = job / parts, head = job % parts * together;
    const int64_t n_heads = std::min(together, heads - head), at = (b * stride[0] + head * stride[1]) * size;
    const auto rows = [&](char* p) {
      return sa::View<4>(p + at, type, {1, n_heads, n, d}, {0, stride[1], stride[2], 1});
    };
    return sa::rope(rows(x.bytes()), r.cos, r.sin, r.positions(b), rows(out.bytes()), r.options);
  }));
}

}  // namespace simdattn_onnxruntime
