// Attention with a state, and the convolution before it, in float64.
#include <algorithm>
#include <cmath>

#include "tests/support/indices.h"
#include "tests/support/reference.h"

namespace reference {

using simdattn::test::indices;

StateResult linear_attention(const StateProblem& p) {
  constexpr double kUnit = 0x1p-24;
  const int64_t batch = p.v.dim(0), heads = p.v.dim(1), n = p.v.dim(2), d_v = p.v.dim(3), d_k = p.k.dim(3);
  const int64_t q_heads = p.q.dim(1), k_heads = p.k.dim(1), out_heads = std::max(q_heads, heads);
  const auto pick = [&](int64_t h, int64_t of, int64_t among) { return p.repeated ? h % of : h / (among / of); };
  StateResult r;
  r.out = Tensor({batch, out_heads, n, d_v});
  r.states = Tensor({batch, n, heads, d_k, d_v});
  r.state = p.state;
  r.out_bound = r.out;
  r.state_bound = Tensor(p.state.shape);
  for (const auto [b, h] : indices(batch, heads)) {
    for (int64_t j = 0; j < d_v; ++j) {
      for (int64_t t = 0; t < n; ++t) {
        const double* const k = p.k.row({b, pick(h, k_heads, heads), t});
        const auto s = [&](int64_t i) -> double& { return r.state.at({b, h, i, j}); };
        const auto e = [&](int64_t i) -> double& { return r.state_bound.at({b, h, i, j}); };
        double read = 0, read_bound = 0;
        for (int64_t i = 0; i < d_k; ++i) {
          if (p.decay.size() > 0) {
            const double g = std::exp(p.decay.at({b, h, t, p.decay.dim(3) == 1 ? 0 : i}));
            e(i) = g == 0 ? 0 : g * (e(i) + 3 * kUnit * std::fabs(s(i))) + 0x1p-126 * std::fabs(s(i));
            s(i) = g == 0 ? 0 : g * s(i);
          }
          read += k[i] * s(i);
          read_bound += std::fabs(k[i]) * (e(i) + static_cast<double>(d_k + !p.fused) * kUnit * std::fabs(s(i)));
        }
        double u = p.v.at({b, h, t, j}), u_bound = 0;
        if (p.delta) {
          const double beta = p.beta.size() > 0 ? p.beta.at({b, p.beta.dim(1) == 1 ? 0 : h, t, 0}) : 1;
          u = beta * (u - read);
          u_bound = std::fabs(beta) * read_bound + 2 * kUnit * std::fabs(u);
        }
        for (int64_t i = 0; i < d_k; ++i) {
          s(i) += k[i] * u;
          e(i) += std::fabs(k[i]) * u_bound + kUnit * std::fabs(s(i)) + 0x1p-149;
          if (!p.fused) e(i) += kUnit * std::fabs(k[i] * u);
          r.states.at({b, t, h, i, j}) = s(i);
        }
        for (int64_t o = 0; o < out_heads; ++o) {
          if (pick(o, heads, out_heads) != h) continue;
          const double* const q = p.q.row({b, pick(o, q_heads, out_heads), t});
          double sum = 0, bound = 0;
          for (int64_t i = 0; i < d_k; ++i) {
            sum += q[i] * s(i);
            bound += std::fabs(q[i]) * (e(i) + static_cast<double>(d_k + 2) * kUnit * std::fabs(s(i)));
          }
          r.out.at({b, o, t, j}) = p.scale * sum;
          r.out_bound.at({b, o, t, j}) = std::fabs(p.scale) * bound + 0x1p-140;
        }
      }
    }
  }
  return r;
}

Tensor causal_conv(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor* state, bool silu, Tensor* bound) {
  constexpr double kUnit = 0x1p-24;
  const int64_t batch = x.dim(0), channels = x.dim(1), n = x.dim(2), width = weight.dim(1), past = width - 1;
  Tensor y(x.shape), next = *state;
  if (bound != nullptr) *bound = y;
  for (const auto [b, c] : indices(batch, channels)) {
    const auto z = [&](int64_t t) { return t < past ? state->at({b, c, t}) : x.at({b, c, t - past}); };
    for (int64_t t = 0; t < n; ++t) {
      double sum = bias.size() > 0 ? bias[c] : 0, size = std::fabs(sum);
      for (int64_t j = 0; j < width; ++j) {
        sum += weight.at({c, j}) * z(t + j);
        size += std::fabs(weight.at({c, j}) * z(t + j));
      }
      y.at({b, c, t}) = silu ? sum / (1 + std::exp(-sum)) : sum;
      if (bound == nullptr) continue;
      const double error = static_cast<double>(width + 1) * kUnit * size + 0x1p-148;
      bound->at({b, c, t}) = silu ? 1.1 * error + 8 * kUnit * std::fabs(y.at({b, c, t})) + 0x1p-119 : error;
    }
    for (int64_t t = 0; t < past; ++t) next.at({b, c, t}) = z(n + t);
  }
  *state = next;
  return y;
}

}  // namespace reference
