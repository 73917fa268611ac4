// A node GGML_OP_FLASH_ATTN_EXT of ggml as an AttentionProblem. docs/guide-engines.md explains and quotes this file.
// `Tensor` is ggml_tensor, or a struct with its members: no header of ggml is needed here.
#pragma once

#include <simdattn/simdattn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace simdattn_ggml {

namespace sa = simdattn;

/// ggml_type, whose numbers files hold, its KvType, and how many numbers a block has.
struct GgmlType {
  int32_t number;
  sa::KvType type;
  int64_t block;
};
inline constexpr GgmlType kGgmlTypes[] = {
    {0, sa::KvType::kF32, 1},      // GGML_TYPE_F32
    {1, sa::KvType::kF16, 1},      // GGML_TYPE_F16
    {30, sa::KvType::kBF16, 1},    // GGML_TYPE_BF16
    {8, sa::KvType::kQ8_0, 32},    // GGML_TYPE_Q8_0
    {2, sa::KvType::kQ4_0, 32},    // GGML_TYPE_Q4_0
    {3, sa::KvType::kQ4_1, 32},    // GGML_TYPE_Q4_1
    {6, sa::KvType::kQ5_0, 32},    // GGML_TYPE_Q5_0
    {7, sa::KvType::kQ5_1, 32},    // GGML_TYPE_Q5_1
    {20, sa::KvType::kIq4Nl, 32},  // GGML_TYPE_IQ4_NL
};

/// Whether a tensor has this type, contiguous rows, and strides of whole elements.
template <class Tensor>
bool ggml_is(const Tensor& t, int32_t type, size_t size) {
  return static_cast<int32_t>(t.type) == type && t.nb[0] == size && t.nb[1] % size == 0 && t.nb[2] % size == 0 &&
         t.nb[3] % size == 0;
}

/// q, mask or output: [ne3, ne2, ne1, ne0]. `type`: the tensor's.
template <class Tensor>
sa::View<4> ggml_view(const Tensor& t, sa::DType type) {
  const int64_t size = sa::dtype_bytes(type);
  const auto step = [&](int i) { return static_cast<int64_t>(t.nb[i]) / size; };
  return {t.data, type, {t.ne[3], t.ne[2], t.ne[1], t.ne[0]}, {step(3), step(2), step(1), 1}};
}

/// k or v: [d, n_kv, heads, batch] in ggml's order. `heads`: as many as the problem has, which share the tensor's head
/// if it has one. False: the type, the order of bytes or the number of heads cannot be expressed.
template <class Tensor>
bool ggml_kv(const Tensor& t, int64_t heads, sa::ConstKv* kv) {
  const auto* type = std::find_if(std::begin(kGgmlTypes), std::end(kGgmlTypes),
                                  [&](const GgmlType& x) { return x.number == static_cast<int32_t>(t.type); });
  if (type == std::end(kGgmlTypes) || (t.ne[2] != heads && t.ne[2] != 1)) return false;
  if (static_cast<int64_t>(t.nb[0]) != sa::row_bytes(type->type, type->block)) return false;
  kv->data = t.data;
  kv->type = type->type;
  kv->batch = t.ne[3];
  kv->heads = heads;
  kv->capacity = t.ne[1];
  kv->dim = t.ne[0];
  kv->batch_stride = static_cast<int64_t>(t.nb[3]);
  kv->head_stride = t.ne[2] == heads ? static_cast<int64_t>(t.nb[2]) : 0;
  kv->token_stride = static_cast<int64_t>(t.nb[1]);
  return true;
}

/// What ggml multiplies the mask of head h with, where max_bias > 0.
inline void ggml_slopes(int64_t heads, float max_bias, float* slopes) {
  int64_t power = 1;
  while (2 * power <= heads) power *= 2;
  for (int64_t h = 0; h < heads; ++h) {
    const double base = h < power ? -static_cast<double>(max_bias) / static_cast<double>(power)
                                  : -static_cast<double>(max_bias) / 2 / static_cast<double>(power);
    const int64_t exponent = h < power ? h + 1 : 2 * (h - power) + 1;
    slopes[h] = static_cast<float>(std::exp2(base * static_cast<double>(exponent)));
  }
}

inline constexpr int64_t kGgmlSlopes = 256;

/// A node GGML_OP_FLASH_ATTN_EXT as a problem. `slopes`: room for kGgmlSlopes numbers, which must outlive the problem.
/// False: it cannot be expressed.
template <class Tensor>
bool ggml_attention(const Tensor& dst, float* slopes, sa::AttentionProblem* problem) {
  constexpr int32_t kF32 = 0, kF16 = 1;
  const Tensor &q = *dst.src[0], &k = *dst.src[1], &v = *dst.src[2];
  const Tensor *mask = dst.src[3], *sinks = dst.src[4];
  const int64_t heads = q.ne[2], n = q.ne[1], batch = q.ne[3];
  float params[3];  // scale, max_bias, logit_softcap; behind them precision and n_kv_max, which change nothing here
  std::memcpy(params, dst.op_params, sizeof params);
  const int64_t kv_heads = std::max(k.ne[2], v.ne[2]);
  if (!ggml_kv(k, kv_heads, &problem->k) || !ggml_kv(v, kv_heads, &problem->v)) return false;
  if (!ggml_is(q, kF32, 4) || !ggml_is(dst, kF32, 4)) return false;
  problem->q = ggml_view(q, sa::DType::kF32);
  problem->out = ggml_view(dst, sa::DType::kF32);  // [batch, n, heads, d]
  std::swap(problem->out.shape[1], problem->out.shape[2]);
  std::swap(problem->out.stride[1], problem->out.stride[2]);
  sa::Scoring& scoring = problem->scoring;
  scoring.scale = params[0];
  scoring.softcap = params[2];
  if (sinks != nullptr) {
    if (!ggml_is(*sinks, kF32, 4)) return false;
    scoring.sinks = static_cast<const float*>(sinks->data);
  }
  if (mask == nullptr) return true;
  if ((mask->ne[2] != 1 && mask->ne[2] != heads) || (mask->ne[3] != 1 && mask->ne[3] != batch)) return false;
  if (!ggml_is(*mask, kF16, 2) || mask->ne[1] < n) return false;
  scoring.bias = ggml_view(*mask, sa::DType::kF16);
  scoring.bias.shape[2] = n;  // a mask may have more rows
  if (params[1] <= 0) return true;
  if (heads > kGgmlSlopes) return false;
  ggml_slopes(heads, params[1], slopes);
  scoring.bias_scale = slopes;
  return true;
}

}  // namespace simdattn_ggml
