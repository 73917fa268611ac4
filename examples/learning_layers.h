// Layers that learn: a matrix, a feed-forward block and attention, forward and backward. Forward through the library;
// its log-sum-exp is what the backward pass of attention needs. Everything is computed row by row: a row has the same
// bits in any company.
#pragma once

#include <simdattn/simdattn.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

namespace learning {

namespace sa = simdattn;
using Rows = std::vector<float>;  // [n, columns]

inline void check(const sa::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.detail);
}
inline size_t count(int64_t n) { return static_cast<size_t>(n); }
inline void add(Rows& x, const Rows& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

/// attention() with a workspace that is kept.
inline void attend(const sa::AttentionProblem& problem) {
  static std::vector<std::byte> workspace;
  sa::Plan plan;
  check(sa::attention_plan(problem, &plan));
  if (workspace.size() < plan.workspace_bytes) workspace.resize(plan.workspace_bytes);
  check(sa::attention(problem, {.workspace = workspace.data(), .workspace_bytes = workspace.size()}));
}

/// Numbers that are learned by Adam (Kingma and Ba 2014): weights [rows, columns], as in a PyTorch Linear or Embedding.
struct Matrix {
  int64_t rows, columns;
  Rows weight, gradient, mean, square;

  Matrix(int64_t rows_, int64_t columns_, float spread, std::mt19937& random) : rows(rows_), columns(columns_) {
    weight.resize(count(rows * columns));
    gradient = mean = square = Rows(weight.size());
    // Not std::normal_distribution: its numbers differ from one C++ library to the next.
    for (float& w : weight) w = spread * (static_cast<float>(random() >> 8) * 0x1p-23f - 1.0f);
  }

  /// y = x W^T, which is `scores` without a scale.
  Rows forward(const Rows& x) const {
    const int64_t n = static_cast<int64_t>(x.size()) / columns;
    Rows y(count(n * rows));
    check(sa::scores(sa::view(x.data(), {1, 1, n, columns}), sa::view(weight.data(), {1, 1, rows, columns}),
                     sa::view(y.data(), {1, 1, n, rows}), {.scale = 1.0f}));
    return y;
  }
  /// dx = dy W, which is `weighted_values`; gradient += dy^T x.
  Rows backward(const Rows& x, const Rows& dy) {
    const int64_t n = static_cast<int64_t>(x.size()) / columns;
    for (int64_t i = 0; i < n; ++i) {
      const float* row = x.data() + i * columns;
      for (int64_t o = 0; o < rows; ++o) {
        const float d = dy[count(i * rows + o)];
        if (d == 0) continue;
        float* g = gradient.data() + o * columns;
        for (int64_t c = 0; c < columns; ++c) g[c] += d * row[c];
      }
    }
    Rows dx(x.size());
    check(sa::weighted_values(sa::view(dy.data(), {1, 1, n, rows}), sa::view(weight.data(), {1, 1, rows, columns}),
                              sa::view(dx.data(), {1, 1, n, columns})));
    return dx;
  }
  /// Step number `step`, from 1.
  void learn(float rate, int64_t step) {
    const float s = static_cast<float>(step), m = 1 - std::pow(0.9f, s), v = 1 - std::pow(0.98f, s);
    for (size_t i = 0; i < weight.size(); ++i) {
      const float g = std::exchange(gradient[i], 0.0f);
      mean[i] = 0.9f * mean[i] + 0.1f * g;
      square[i] = 0.98f * square[i] + 0.02f * g * g;
      weight[i] -= rate * (mean[i] / m) / (std::sqrt(square[i] / v) + 1e-9f);
    }
  }
};

/// relu(x W1^T) W2^T.
struct FeedForward {
  Matrix first, second;
  Rows x, hidden;

  FeedForward(int64_t columns, int64_t width, std::mt19937& random)
      : first(width, columns, std::sqrt(3.0f / static_cast<float>(columns)), random),
        second(columns, width, std::sqrt(1.0f / static_cast<float>(width)), random) {}

  Rows forward(const Rows& input) {
    x = input;
    hidden = first.forward(x);
    for (float& h : hidden) h = h > 0 ? h : 0;
    return second.forward(hidden);
  }
  Rows backward(const Rows& dy) {
    Rows dh = second.backward(hidden, dy);
    for (size_t i = 0; i < dh.size(); ++i) dh[i] = hidden[i] > 0 ? dh[i] : 0;
    return first.backward(x, dh);
  }
};

/// Multi-head attention of queries made of x [batch, n_q, columns] to keys and values made of y [batch, n_kv, columns].
struct Attention {
  int64_t heads, dim;
  Matrix wq, wk, wv, wo;
  int64_t batch = 0, n_q = 0, n_kv = 0;
  sa::Scoring scoring;
  Rows x, y, q, k, v, out, lse;

  Attention(int64_t heads_, int64_t dim_, std::mt19937& random)
      : heads(heads_),
        dim(dim_),
        wq(columns(), columns(), spread(), random),
        wk(columns(), columns(), spread(), random),
        wv(columns(), columns(), spread(), random),
        wo(columns(), columns(), spread(), random) {}

  int64_t columns() const { return heads * dim; }
  float spread() const { return std::sqrt(1.5f / static_cast<float>(columns())); }

  /// Rows [batch, n, heads, dim], as projections leave them, with dimensions in the library's order.
  template <class T>
  auto view(T* rows, int64_t n) const {
    return sa::view(rows, {batch, heads, n, dim}, {n * columns(), dim, columns(), 1});
  }

  Rows forward(const Rows& x_, const Rows& y_, int64_t batch_, const sa::Scoring& scoring_) {
    x = x_, y = y_, batch = batch_, scoring = scoring_;
    n_q = static_cast<int64_t>(x.size()) / (batch * columns());
    n_kv = static_cast<int64_t>(y.size()) / (batch * columns());
    q = wq.forward(x), k = wk.forward(y), v = wv.forward(y);
    out.resize(q.size());
    lse.resize(count(batch * heads * n_q));
    attend({.q = view(q.data(), n_q),
            .k = view(std::as_const(k).data(), n_kv),
            .v = view(std::as_const(v).data(), n_kv),
            .out = view(out.data(), n_q),
            .lse = sa::view(lse.data(), {batch, heads, n_q}),
            .scoring = scoring});
    return wo.forward(out);
  }

  /// The gradients of x and y. With p = exp(score - lse): dv = p^T dout, dscore = p (dout v^T - sum dout out), and so
  /// on (Dao et al. 2022).
  std::pair<Rows, Rows> backward(const Rows& dy) {
    const Rows dout = wo.backward(out, dy);
    Rows dq(q.size()), dk(k.size()), dv(v.size());
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    const auto dot = [&](const float* a, const float* b) {
      float sum = 0;
      for (int64_t d = 0; d < dim; ++d) sum += a[d] * b[d];
      return sum;
    };
    const auto add = [&](float* a, float factor, const float* b) {
      for (int64_t d = 0; d < dim; ++d) a[d] += factor * b[d];
    };
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t length = scoring.kv_length != nullptr ? scoring.kv_length[b] : n_kv;
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < n_q; ++i) {
          const int64_t qi = ((b * n_q + i) * heads + h) * dim;
          const float total = dot(&dout[count(qi)], &out[count(qi)]);
          for (int64_t j = 0; j < (scoring.causal ? i + 1 : length); ++j) {
            const int64_t kj = ((b * n_kv + j) * heads + h) * dim;
            const float score = scale * dot(&q[count(qi)], &k[count(kj)]);
            const float p = std::exp(score - lse[count((b * heads + h) * n_q + i)]);
            const float ds = scale * p * (dot(&dout[count(qi)], &v[count(kj)]) - total);
            add(&dv[count(kj)], p, &dout[count(qi)]);
            add(&dq[count(qi)], ds, &k[count(kj)]);
            add(&dk[count(kj)], ds, &q[count(qi)]);
          }
        }
      }
    }
    Rows dx = wq.backward(x, dq), dkeys = wk.backward(y, dk);
    learning::add(dkeys, wv.backward(y, dv));
    return {dx, dkeys};
  }
};

}  // namespace learning
