#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "tests/conformance/conformance_engine.h"

namespace conformance {

using simdattn::DType;

Operand::Operand(const Array& array) : exact(array.shape), storage(array.bytes) {
  for (int64_t i = 0; i < exact.size(); ++i) exact[i] = array.value(i);
  switch (array.type) {
    case Type::kF32: dtype = DType::kF32; break;
    case Type::kF16: dtype = DType::kF16; break;
    case Type::kBF16: dtype = DType::kBF16; break;
    case Type::kI64: dtype = DType::kI64; break;
    case Type::kI32: dtype = DType::kI32; break;
    case Type::kU8:
    case Type::kBool: dtype = DType::kU8; break;
    case Type::kF64: storage = Operand(exact).storage; break;
  }
}

Operand::Operand(const Tensor& tensor, DType type) : exact(tensor), dtype(type) {
  storage.resize(static_cast<size_t>(tensor.size()) * reference::bytes(type));
  for (int64_t i = 0; i < tensor.size(); ++i) reference::store(storage.data(), type, i, tensor[i]);
}

template <int kRank>
Tensor Slice<kRank>::exact() const {
  Tensor result(std::vector<int64_t>(shape.begin(), shape.end()));
  std::array<int64_t, kRank> index{};
  for (double& value : result.data) {
    int64_t element = 0;
    for (size_t d = 0; d < kRank; ++d) element += index[d] * stride[d];
    value = operand->exact[element];
    for (size_t d = kRank; d-- > 0;) {
      if (++index[d] < shape[d]) break;
      index[d] = 0;
    }
  }
  return result;
}

Slice<4> as_rank4(const Operand& operand) {
  std::array<int64_t, 4> shape{1, 1, 1, 1};
  const std::vector<int64_t>& dims = operand.exact.shape;
  if (dims.size() > 4) throw CaseError("an array of more than four dimensions");
  std::copy(dims.begin(), dims.end(), shape.end() - static_cast<std::ptrdiff_t>(dims.size()));
  return reshape<4>(operand, shape);
}

Slice<4> broadcast(const Operand& operand, const std::array<int64_t, 4>& shape) {
  Slice<4> result = as_rank4(operand);
  for (size_t d = 0; d < 4; ++d) {
    if (result.shape[d] == shape[d]) continue;
    if (result.shape[d] != 1) throw CaseError("an array does not broadcast to the shape it is used in");
    result.shape[d] = shape[d];
    result.stride[d] = 0;
  }
  return result;
}
bool poison_hidden(const AttentionCall& call, Operand* k, Operand* v) {
  const auto [batch, heads, n_q, dim] = call.q.shape;
  const int64_t kv_heads = call.k.shape[1], n_kv = call.k.shape[2];
  Tensor visible;
  reference::modified_scores(Tensor({batch, heads, n_q, n_kv}), call.scoring, &visible, 1.0);
  Tensor seen({batch, kv_heads, n_kv});
  for (int64_t i = 0; i < visible.size(); ++i) {
    const int64_t b = i / (heads * n_q * n_kv), h = i / (n_q * n_kv) % heads;
    if (visible[i] != 0) seen.at({b, h / (heads / kv_heads), i % n_kv}) = 1;
  }
  bool any = false;
  for (const auto& [slice, operand] : {std::pair{&call.k, k}, std::pair{&call.v, v}}) {
    Tensor values = slice->exact();
    for (int64_t i = 0; i < values.size(); ++i) {
      if (seen[i / values.dim(3)] != 0) continue;
      values[i] = std::numeric_limits<double>::quiet_NaN();
      any = true;
    }
    *operand = Operand(values, slice->operand->dtype);
  }
  return any;
}

template struct Slice<2>;
template struct Slice<4>;
template struct Slice<5>;

}  // namespace conformance
