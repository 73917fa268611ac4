#include <algorithm>
#include <cmath>
#include <limits>

#include "bench/peers.h"
#include "lib/contract/dtypes.h"

// The textbook formulas in float64, row by row. Nothing of the library's is used but the reading of stored numbers.

namespace bench {
namespace {

using simdattn::DType;

std::vector<double> widened(const void* data, DType type, int64_t first, int64_t count) {
  std::vector<double> out(static_cast<size_t>(count));
  simdattn::with_storage(type, [&]<class T>(T) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = static_cast<double>(simdattn::to_f32(static_cast<const T*>(data)[static_cast<size_t>(first) + i]));
    }
  });
  return out;
}

double dot(const std::vector<double>& a, const double* b) {
  double sum = 0;
  for (size_t e = 0; e < a.size(); ++e) sum += a[e] * b[e];
  return sum;
}

void softmax(std::vector<double>& x) {
  const double max = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double& v : x) sum += v = std::exp(v - max);
  for (double& v : x) v /= sum;
}

class Rows {
 public:
  explicit Rows(const Work& w) : w_(w) {}
  int64_t length() const {
    switch (w_.kind) {
      case Kind::kSoftmax:
      case Kind::kScores: return w_.n;
      case Kind::kRope: return w_.heads * w_.d;
      default: return w_.d;
    }
  }
  std::vector<double> row(int64_t i) {
    const Work& w = w_;
    switch (w.kind) {
      case Kind::kSoftmax: {
        std::vector<double> x = widened(w.q, DType::kF32, i * w.n, w.n);
        softmax(x);
        return x;
      }
      case Kind::kScores: return scores(i, 0, w.n);
      case Kind::kWeightedValues: return weighted(widened(w.q, DType::kF32, i * w.n, w.n), 0);
      case Kind::kRope: return rotated(i);
      default: {
        const int64_t head = i / w.n_q, row = i % w.n_q, kv = head * w.kv_heads / w.heads;
        std::vector<double> p = scores(i, kv, w.causal ? row + 1 + w.n - w.n_q : w.n);
        for (size_t j = 0; w.masked && j < p.size(); ++j) {
          if (w.keep[row * w.n + static_cast<int64_t>(j)] == 0) p[j] = -std::numeric_limits<double>::infinity();
        }
        softmax(p);
        return weighted(p, kv);
      }
    }
  }

 private:
  void cache(std::vector<double>& of, int64_t& head, const void* data, int64_t kv) {
    if (head != kv) of = widened(data, w_.type, kv * w_.n * w_.d, w_.n * w_.d);
    head = kv;
  }
  std::vector<double> scores(int64_t row, int64_t kv, int64_t keys) {
    cache(k_, k_head_, w_.k, kv);
    const std::vector<double> q = widened(w_.q, w_.type, row * w_.d, w_.d);
    std::vector<double> s(static_cast<size_t>(keys));
    for (size_t j = 0; j < s.size(); ++j) s[j] = static_cast<double>(w_.scale) * dot(q, k_.data() + j * q.size());
    return s;
  }
  std::vector<double> weighted(const std::vector<double>& p, int64_t kv) {
    cache(v_, v_head_, w_.v, kv);
    std::vector<double> out(static_cast<size_t>(w_.d));
    for (size_t j = 0; j < p.size(); ++j) {
      for (size_t e = 0; e < out.size(); ++e) out[e] += p[j] * v_[j * out.size() + e];
    }
    return out;
  }
  std::vector<double> rotated(int64_t token) {
    const int64_t half = w_.d / 2;
    std::vector<double> x = widened(w_.original != nullptr ? w_.original : w_.q, w_.type, token * length(), length());
    for (int64_t h = 0; h < w_.heads; ++h) {
      for (int64_t e = 0; e < half; ++e) {
        const size_t a = static_cast<size_t>(h * w_.d + (w_.interleaved ? 2 * e : e));
        const size_t b = a + static_cast<size_t>(w_.interleaved ? 1 : half);
        const double c = static_cast<double>(w_.cos[token * half + e]),
                     s = static_cast<double>(w_.sin[token * half + e]);
        const double x0 = x[a], x1 = x[b];
        x[a] = x0 * c - x1 * s;
        x[b] = x0 * s + x1 * c;
      }
    }
    return x;
  }

  const Work& w_;
  std::vector<double> k_, v_;
  int64_t k_head_ = -1, v_head_ = -1;
};

/// The gated delta rule in the last layer, [n_q][heads][d].
std::vector<double> state_rule(const Work& w) {
  std::vector<double> out(static_cast<size_t>(w.n_q * w.heads * w.d)), s(static_cast<size_t>(w.d * w.d));
  const size_t d = static_cast<size_t>(w.d);
  for (int64_t h = 0; h < w.heads; ++h) {
    const float* const past = w.states + ((w.layers - 1) * w.heads + h) * w.d * w.d;
    for (size_t i = 0; i < s.size(); ++i) s[i] = static_cast<double>(past[i]);
    for (int64_t t = 0; t < w.n_q; ++t) {
      const int64_t row = t * w.heads + h;
      const std::vector<double> q = widened(w.q, w.type, row * w.d, w.d), k = widened(w.k, w.type, row * w.d, w.d);
      std::vector<double> u = widened(w.v, w.type, row * w.d, w.d);
      std::vector<double> read(d);
      for (size_t i = 0; i < d; ++i) {
        const float decay = w.decay[w.by_channel ? row * w.d + static_cast<int64_t>(i) : row];
        const double factor = std::exp(static_cast<double>(decay));
        for (size_t j = 0; j < d; ++j) read[j] += k[i] * (s[i * d + j] *= factor);
      }
      for (size_t j = 0; j < d; ++j) u[j] = static_cast<double>(w.beta[row]) * (u[j] - read[j]);
      double* const o = out.data() + static_cast<size_t>(row) * d;
      for (size_t i = 0; i < d; ++i) {
        for (size_t j = 0; j < d; ++j) o[j] += static_cast<double>(w.scale) * q[i] * (s[i * d + j] += k[i] * u[j]);
      }
    }
  }
  return out;
}

}  // namespace

std::vector<double> exact(const Work& work, size_t first, size_t count) {
  if (work.kind == Kind::kState) {
    const std::vector<double> all = state_rule(work);
    const auto from = all.begin() + static_cast<std::ptrdiff_t>(first);
    return {from, from + static_cast<std::ptrdiff_t>(count)};
  }
  Rows rows(work);
  std::vector<double> out;
  const size_t length = static_cast<size_t>(rows.length());
  for (size_t i = first / length; out.size() < count + first % length; ++i) {
    const std::vector<double> row = rows.row(static_cast<int64_t>(i));
    out.insert(out.end(), row.begin(), row.end());
  }
  out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(first % length));
  out.resize(count);
  return out;
}

}  // namespace bench
