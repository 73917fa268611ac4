// Nodes GGML_OP_GATED_DELTA_NET and GGML_OP_SSM_CONV of ggml as problems of the library. docs/guide-engines.md explains
// and quotes this file. `Tensor` is ggml_tensor, or a struct with its members: no header of ggml is needed here.
#pragma once

#include <simdattn/simdattn.h>

#include <cstdint>

#include "attention_node.h"

namespace simdattn_ggml {

/// q, k, v, decay or beta: [d, heads, tokens, batch] in ggml's order.
template <class Tensor>
sa::ConstView<4> ggml_tokens(const Tensor& t) {
  const auto step = [&](int i) { return static_cast<int64_t>(t.nb[i]) / 4; };
  return {t.data, sa::DType::kF32, {t.ne[3], t.ne[1], t.ne[2], t.ne[0]}, {step(3), step(1), step(2), 1}};
}

/// A node GGML_OP_GATED_DELTA_NET as a problem. False: it cannot be expressed.
template <class Tensor>
bool ggml_delta_net(const Tensor& dst, sa::LinearAttentionProblem* problem) {
  for (int i = 0; i < 6; ++i) {
    if (!ggml_is(*dst.src[i], 0, 4)) return false;
  }
  const Tensor &q = *dst.src[0], &k = *dst.src[1], &v = *dst.src[2], &past = *dst.src[5];
  const int64_t d = v.ne[0], heads = v.ne[1], n = v.ne[2], batch = v.ne[3], snapshots = dst.op_params[0];
  if (q.ne[3] != batch || k.ne[3] != batch || snapshots < 1 || n < 1 || !ggml_is(dst, 0, 4)) return false;
  problem->head_order = sa::HeadOrder::kRepeated;
  problem->transposed = true;
  problem->q = ggml_tokens(q);
  problem->k = ggml_tokens(k);
  problem->v = ggml_tokens(v);
  problem->decay = ggml_tokens(*dst.src[3]);
  problem->beta = ggml_tokens(*dst.src[4]);
  problem->state_in = ggml_view(past, sa::DType::kF32);
  float* const out = static_cast<float*>(dst.data);
  problem->out = sa::view(out, {batch, heads, n, d}, {n * heads * d, d, heads * d, 1});
  float* const states = out + batch * n * heads * d;
  const int64_t slot = batch * heads * d * d;
  if (snapshots == 1 || n == 1) {  // one state: in slot 0
    problem->state = sa::view(states, {batch, heads, d, d});
  } else {  // the last one in slot 0
    problem->states =
        sa::view(states + (snapshots - 1) * slot, {batch, snapshots, heads, d, d}, {heads * d * d, -slot, d * d, d, 1});
  }
  return true;
}

/// A node GGML_OP_SSM_CONV as a problem. False: it cannot be expressed.
template <class Tensor>
bool ggml_ssm_conv(const Tensor& dst, sa::CausalConvProblem* problem) {
  const Tensor &inputs = *dst.src[0], &weight = *dst.src[1];
  if (!ggml_is(inputs, 0, 4) || !ggml_is(weight, 0, 4) || !ggml_is(dst, 0, 4)) return false;
  const int64_t width = weight.ne[0], channels = dst.ne[0], n = dst.ne[1], batch = dst.ne[2];
  if (inputs.ne[0] != width - 1 + n || inputs.ne[1] != channels || inputs.ne[2] != batch || weight.ne[1] != channels)
    return false;
  const int64_t stride[] = {static_cast<int64_t>(inputs.nb[2]) / 4, static_cast<int64_t>(inputs.nb[1]) / 4, 1};
  const float* const past = static_cast<const float*>(inputs.data);
  if (width > 1) problem->state_in = sa::view(past, {batch, channels, width - 1}, stride);
  problem->x = sa::view(past + (width - 1), {batch, channels, n}, stride);
  problem->weight =
      sa::view(static_cast<const float*>(weight.data), {channels, width}, {static_cast<int64_t>(weight.nb[1]) / 4, 1});
  problem->out = sa::view(static_cast<float*>(dst.data), {batch, n, channels},
                          {static_cast<int64_t>(dst.nb[2]) / 4, static_cast<int64_t>(dst.nb[1]) / 4, 1});
  problem->out_transposed = true;
  return true;
}

}  // namespace simdattn_ggml
