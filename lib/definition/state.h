// Attention with a state, and the convolution before it: the definitions.
#pragma once

#include "lib/contract/ukernels.h"
#include "lib/definition/math.h"

namespace simdattn {
namespace {

void update_state(const StateTile& a) {
  const StateRows& s = a.to;
  for (int64_t column = 0; column < a.groups * kStateGroup; ++column) {
    for (int64_t i = 0; i < a.dim; ++i) s.s[i * s.stride + column] = a.from.s[i * a.from.stride + column];
    for (int64_t t = 0; t < a.tokens; ++t) {
      const float* const k = a.k + t * a.dim;
      const float v = a.v[t * a.v_stride + column];
      float r = 0.0f;
      for (int64_t i = 0; i < a.dim; ++i) {
        float& state = s.s[i * s.stride + column];
        const float decay = a.decay[a.by_row ? t * a.dim + i : t];
        state = decay == 0.0f ? 0.0f : decay * state;
        r = fma(k[i], state, r);
      }
      const float u = a.beta == nullptr ? v : (v - r) * a.beta[t];
      for (int64_t i = 0; i < a.dim; ++i) {
        float& state = s.s[i * s.stride + column];
        state = canonical(fma(k[i], u, state));
      }
      for (int64_t x = 0; x < a.queries; ++x) {
        const float* const q = a.q + (t * a.queries + x) * a.dim;
        float o = 0.0f;
        for (int64_t i = 0; i < a.dim; ++i) o = fma(q[i], s.s[i * s.stride + column], o);
        a.o[(t * a.queries + x) * kStateColumns + column] = o;
      }
    }
  }
}

/// x / (1 + exp(-x)), without an exponential of what is positive.
float silu(float x) {
  const float e = scalar::exp(x < 0.0f ? x : -x);
  return (x < 0.0f ? x * e : x) / (1.0f + e);
}

void convolve(const ConvTile& a) {
  for (int64_t channel = 0; channel < a.panels * kStateGroup; ++channel) {
    const int64_t p = channel / kStateGroup, c = channel % kStateGroup;
    for (int64_t t = 0; t < a.tokens; ++t) {
      float* const z = a.z + p * a.panel + t * a.row + c;
      float y = a.bias[channel];
      for (int64_t j = 0; j < a.width; ++j) y = fma(a.w[(p * a.width + j) * kStateGroup + c], z[j * a.row], y);
      *z = a.silu ? silu(y) : y;
    }
  }
}

}  // namespace
}  // namespace simdattn
