#include "tests/attention/second_definition.h"
#include "tests/support/indices.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "lib/contract/fma.h"
#include "lib/definition/math.h"

namespace second {

using reference::Tensor;
using simdattn::Arithmetic;
using simdattn::test::indices;

namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNaN = std::bit_cast<float>(0x7FC00000u);
constexpr int64_t kBlock = 256;
constexpr int64_t kSplit = 1024;
constexpr int64_t kGroup = 32;

using Row = std::vector<float>;

bool flushes_before_rounding = false;

float canonical(float x) { return x == x ? x : kNaN; }

/// A subnormal number is a zero of its sign.
double zeroed(float x) {
  return (std::bit_cast<uint32_t>(x) & 0x7F800000u) == 0 ? std::copysign(0.0, static_cast<double>(x))
                                                         : static_cast<double>(x);
}

/// The exact sum of two numbers, rounded to 24 bits as if exponents had no limits; then what is tiny becomes zero.
float rounded_sum(double x, double y) {
  double sum = x + y;
  if (!std::isfinite(sum) || sum == 0) return canonical(static_cast<float>(sum));
  // The error of the sum (Knuth). With it, the last bit is made odd: rounding once more is then the same as once.
  const double back = sum - x;
  const double error = (x - (sum - back)) + (y - back);
  if (error != 0 && (std::bit_cast<uint64_t>(sum) & 1) == 0) {
    sum = std::nextafter(
        sum, error > 0 ? std::numeric_limits<double>::infinity() : -std::numeric_limits<double>::infinity());
  }
  if (flushes_before_rounding && std::fabs(sum) < 0x1p-126) return static_cast<float>(std::copysign(0.0, sum));
  const int unit = std::ilogb(sum) - 23;
  const double result = std::ldexp(std::nearbyint(std::ldexp(sum, -unit)), unit);
  if (std::fabs(result) < 0x1p-126) return static_cast<float>(std::copysign(0.0, sum));
  return static_cast<float>(result);  // exact, or infinite
}

float bf16(float x) { return static_cast<float>(reference::from_bf16(reference::to_bf16(static_cast<double>(x)))); }
Row bf16(Row x) {
  for (float& value : x) value = bf16(value);
  return x;
}

/// s (+) (e (+) o) for pairs [0, n) of a group.
float add_group(float s, const Row& x, const Row& y) {
  float e = 0, o = 0;
  for (size_t i = 0; i < x.size(); i += 2) e = flushed_fma(x[i], y[i], e);
  for (size_t i = 1; i < x.size(); i += 2) o = flushed_fma(x[i], y[i], o);
  return flushed_add(s, flushed_add(e, o));
}

Row part(const Row& x, int64_t first, int64_t last) { return {x.begin() + first, x.begin() + last}; }

/// A row of kInt8.
struct Integers {
  std::vector<int> x;
  float scale = 0;

  Integers() = default;
  explicit Integers(const Row& row) {
    float largest = 0;
    bool finite = true;
    for (const float value : row) {
      finite = finite && std::isfinite(value);
      largest = std::max(largest, std::fabs(value));
    }
    const float inverse = 127.0f / largest;
    const bool none = !finite || !std::isfinite(inverse);
    scale = !finite ? kNaN : none ? 0.0f : largest / 127.0f;
    for (const float value : row) x.push_back(none ? 0 : static_cast<int>(std::nearbyint(value * inverse)));
  }
};

/// A row of queries or keys as an arithmetic takes it.
struct Operand {
  Row numbers;
  Integers integers;
  Operand(const Row& row, Arithmetic a) {
    if (a == Arithmetic::kF32) numbers = row;
    if (a == Arithmetic::kBF16) numbers = bf16(row);
    if (a == Arithmetic::kInt8) integers = Integers(row);
  }
};

float score(const Operand& q, const Operand& k, float scale, Arithmetic a) {
  if (a == Arithmetic::kInt8) {
    const int64_t sum = std::inner_product(q.integers.x.begin(), q.integers.x.end(), k.integers.x.begin(), int64_t{0});
    return static_cast<float>(sum) * ((q.integers.scale * scale) * k.integers.scale);
  }
  const int64_t dim = std::ssize(q.numbers);
  float s = 0;
  if (a == Arithmetic::kF32) {
    for (size_t d = 0; d < q.numbers.size(); ++d) s = simdattn::fma(q.numbers[d], k.numbers[d], s);
    return s * scale;
  }
  for (int64_t d = 0; d < dim; d += kGroup) {
    const int64_t end = std::min(dim, d + kGroup);
    s = add_group(s, part(q.numbers, d, end), part(k.numbers, d, end));
  }
  return flushed_fma(s, scale, 0.0f);
}

/// Values of some keys, in the arithmetic's operands.
struct Values {
  std::vector<Row> rows;
  std::vector<Integers> integers;
  int64_t dim = 0;

  Values(const double* data, int64_t n, int64_t width, Arithmetic a) : dim(width) {
    for (int64_t j = 0; j < n; ++j) {
      const Row row(data + j * dim, data + (j + 1) * dim);
      if (a == Arithmetic::kInt8) integers.emplace_back(row);
      else rows.push_back(a == Arithmetic::kBF16 ? bf16(row) : row);
    }
  }
};

/// o = alpha * o + the weights w of keys base, base + 1, ... times their values; keys that count for nothing are not
/// `seen`.
void add_block(Row& o, const float* alpha, const Row& w, const std::vector<bool>& seen, int64_t base, const Values& v,
               Arithmetic a) {
  const int64_t n = std::ssize(w);
  if (a == Arithmetic::kInt8) {
    Row u(w.size(), 0.0f);
    float largest = 0;
    bool finite = true;
    for (size_t j = 0; j < w.size(); ++j) {
      if (!seen[j]) continue;
      u[j] = w[j] * v.integers[static_cast<size_t>(base) + j].scale;
      finite = finite && std::isfinite(u[j]);
      if (u[j] > largest) largest = u[j];
    }
    float scale = largest / 255.0f;
    float inverse = 255.0f / largest;
    if (!std::isfinite(inverse)) scale = inverse = 0;
    for (int64_t d = 0; d < v.dim; ++d) {
      int64_t sum = 0;
      for (size_t j = 0; j < w.size(); ++j) {
        if (!finite || !(u[j] > 0)) continue;
        const int integer = static_cast<int>(std::nearbyint(u[j] * inverse));
        sum += integer * v.integers[static_cast<size_t>(base) + j].x[static_cast<size_t>(d)];
      }
      float& x = o[static_cast<size_t>(d)];
      if (alpha != nullptr) x = *alpha * x;
      x = simdattn::fma(static_cast<float>(sum), finite ? scale : kNaN, x);
    }
    return;
  }
  for (int64_t d = 0; d < v.dim; ++d) {
    float& x = o[static_cast<size_t>(d)];
    Row column(w.size(), 0.0f), weights(w.size(), 0.0f);
    for (size_t j = 0; j < w.size(); ++j) {
      if (!seen[j]) continue;
      weights[j] = w[j];
      column[j] = v.rows[static_cast<size_t>(base) + j][static_cast<size_t>(d)];
    }
    if (a == Arithmetic::kF32) {
      if (alpha != nullptr) x = *alpha * x;
      for (size_t j = 0; j < w.size(); ++j) x = simdattn::fma(weights[j], column[j], x);
      continue;
    }
    if (alpha != nullptr) x = flushed_fma(*alpha, x, 0.0f);
    for (int64_t j = 0; j < n; j += kGroup) {
      const int64_t end = std::min(n, j + kGroup);
      x = add_group(x, part(weights, j, end), part(column, j, end));
    }
  }
}

struct State {
  float max = -kInf;
  float sum = 0;
  Row o;
};

float base_of(float m) { return m == -kInf ? 0.0f : m; }

void add_keys(State& s, const Row& t, const std::vector<bool>& seen, int64_t base, const Values& v, Arithmetic a) {
  if (std::find(seen.begin(), seen.end(), true) == seen.end()) return;
  float m = s.max;
  for (size_t j = 0; j < t.size(); ++j) {
    if (seen[j] && t[j] > m) m = t[j];
  }
  const float alpha = simdattn::scalar::exp(s.max - base_of(m));
  Row w(t.size(), 0.0f);
  std::array<float, 16> partial{};
  for (size_t j = 0; j < t.size(); ++j) {
    if (seen[j]) w[j] = simdattn::scalar::exp(t[j] - base_of(m));
    if (a == Arithmetic::kBF16) w[j] = bf16(w[j]);
    partial[j % 16] += w[j];
  }
  for (size_t n = 8; n > 0; n /= 2) {
    for (size_t j = 0; j < n; ++j) partial[j] += partial[j + n];
  }
  s.sum = simdattn::fma(s.sum, alpha, partial[0]);
  s.max = m;
  add_block(s.o, &alpha, w, seen, base, v, a);
}

/// a and the state of later keys.
void join(State& a, const State& b) {
  const float m = std::max(a.max, b.max);
  const float wa = simdattn::scalar::exp(a.max - base_of(m));
  const float wb = simdattn::scalar::exp(b.max - base_of(m));
  a.max = m;
  a.sum = simdattn::fma(a.sum, wa, b.sum * wb);
  for (size_t d = 0; d < a.o.size(); ++d) a.o[d] = simdattn::fma(a.o[d], wa, b.o[d] * wb);
}

std::vector<Operand> operands(const Tensor& x, int64_t head, Arithmetic a) {
  std::vector<Operand> result;
  const int64_t n = x.dim(1), dim = x.dim(2);
  for (int64_t j = 0; j < n; ++j) {
    const double* row = x.data.data() + x.offset({head, j});
    result.emplace_back(Row(row, row + dim), a);
  }
  return result;
}

}  // namespace

void flush_before_rounding(bool yes) { flushes_before_rounding = yes; }

float flushed_fma(float a, float b, float c) { return rounded_sum(zeroed(a) * zeroed(b), zeroed(c)); }
float flushed_add(float x, float y) { return rounded_sum(zeroed(x), zeroed(y)); }

Attention attention(const simdattn::AttentionProblem& problem) {
  const simdattn::Scoring& scoring = problem.scoring;
  const Arithmetic a = problem.arithmetic;
  const auto& shape = problem.q.shape;
  const int64_t heads = shape[1], group = heads / problem.k.heads, dim_v = problem.v.dim;
  const float scale = scoring.scale ? *scoring.scale : 1.0f / std::sqrt(static_cast<float>(shape[3]));
  const size_t rows = static_cast<size_t>(shape[0] * heads * shape[2]);
  Attention result;
  result.max = result.sum = Row(rows, 0.0f);
  result.out = result.acc = Row(rows * static_cast<size_t>(dim_v), 0.0f);
  for (const reference::SequenceRows& s : reference::sequences(problem)) {
    const int64_t n = s.k.dim(1);
    std::vector<std::vector<Operand>> keys;
    std::vector<Values> values;
    for (int64_t h = 0; h < problem.k.heads; ++h) {
      keys.push_back(operands(s.k, h, a));
      values.emplace_back(s.v.data.data() + s.v.offset({h}), n, dim_v, a);
    }
    for (int64_t h = 0; h < heads; ++h) {
      const size_t kv_head = static_cast<size_t>(h / group);
      const std::vector<Operand> queries = operands(s.q, h, a);
      for (int64_t i = 0; i < s.q.dim(1); ++i) {
        State total;
        for (int64_t first = 0; first == 0 || first < n; first += kSplit) {
          State state;
          state.o = Row(static_cast<size_t>(dim_v), 0.0f);
          if (first == 0 && scoring.sinks != nullptr) {
            state.max = scoring.sinks[h];
            state.sum = state.max == -kInf ? 0.0f : std::isfinite(state.max) ? 1.0f : kNaN;
          }
          const int64_t last = std::min(n, first + kSplit);
          for (int64_t base = first; base < last; base += kBlock) {
            Row t;
            std::vector<bool> seen;
            for (int64_t j = base; j < std::min(last, base + kBlock); ++j) {
              seen.push_back(s.visible.at({h, i, j}) != 0);
              float x = score(queries[static_cast<size_t>(i)], keys[kv_head][static_cast<size_t>(j)], scale, a);
              if (scoring.softcap > 0) x = scoring.softcap * simdattn::scalar::tanh(x / scoring.softcap);
              if (scoring.alibi_slopes != nullptr) {
                const float distance = static_cast<float>(std::llabs(s.positions[static_cast<size_t>(i)] - j));
                x = x + -(scoring.alibi_slopes[h] * distance);
              }
              if (scoring.bias.data != nullptr) {
                const float bias = static_cast<float>(s.bias.at({h, i, j}));
                x = x + bias * (scoring.bias_scale != nullptr ? scoring.bias_scale[h] : 1.0f);
              }
              t.push_back(x);
            }
            add_keys(state, t, seen, base, values[kv_head], a);
          }
          if (first == 0) total = state;
          else join(total, state);
        }
        const size_t row = static_cast<size_t>((s.batch * heads + h) * shape[2] + s.first_row + i);
        const bool nan = total.sum != total.sum;
        result.sum[row] = canonical(total.sum);
        result.max[row] = nan ? kNaN : total.max + 0.0f;
        for (size_t d = 0; d < static_cast<size_t>(dim_v); ++d) {
          const float o = total.sum == 0 ? 0.0f : total.o[d] + 0.0f;
          result.acc[row * static_cast<size_t>(dim_v) + d] = nan ? kNaN : canonical(o);
          result.out[row * static_cast<size_t>(dim_v) + d] = nan              ? kNaN
                                                             : total.sum == 0 ? 0.0f
                                                                              : canonical(o * (1.0f / total.sum));
        }
      }
    }
  }
  return result;
}

std::vector<float> scores(const Tensor& q, const Tensor& k, float scale, Arithmetic arithmetic) {
  std::vector<float> result;
  const int64_t group = q.dim(1) / k.dim(1), dim = q.dim(3);
  const auto operand = [&](const Tensor& x, int64_t b, int64_t h, int64_t i) {
    const double* row = x.data.data() + x.offset({b, h, i});
    return Operand(Row(row, row + dim), arithmetic);
  };
  for (const auto [b, h] : indices(q.dim(0), q.dim(1))) {
    std::vector<Operand> keys;
    for (int64_t j = 0; j < k.dim(2); ++j) keys.push_back(operand(k, b, h / group, j));
    for (int64_t i = 0; i < q.dim(2); ++i) {
      const Operand query = operand(q, b, h, i);
      for (const Operand& key : keys) result.push_back(canonical(score(query, key, scale, arithmetic)));
    }
  }
  return result;
}

std::vector<float> weighted_values(const Tensor& p, const Tensor& v, Arithmetic arithmetic) {
  std::vector<float> result;
  const int64_t group = p.dim(1) / v.dim(1), n = v.dim(2), dim = v.dim(3);
  for (const auto [b, h] : indices(p.dim(0), p.dim(1))) {
    const Values values(v.data.data() + v.offset({b, h / group}), n, dim, arithmetic);
    for (int64_t i = 0; i < p.dim(2); ++i) {
      Row o(static_cast<size_t>(dim), 0.0f);
      for (int64_t base = 0; base < n; base += kBlock) {
        Row w;
        std::vector<bool> seen;
        for (int64_t j = base; j < std::min(n, base + kBlock); ++j) {
          const float weight = static_cast<float>(p.at({b, h, i, j}));
          seen.push_back(weight != 0 && !(arithmetic == Arithmetic::kInt8 && weight < 0));
          w.push_back(arithmetic == Arithmetic::kBF16 ? bf16(weight) : weight);
        }
        add_block(o, nullptr, w, seen, base, values, arithmetic);
      }
      for (const float x : o) result.push_back(canonical(x + 0.0f));
    }
  }
  return result;
}

}  // namespace second
