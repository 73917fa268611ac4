// The formulas of softmax, weighted values and attention.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/indices.h"
#include "tests/support/reference.h"

namespace reference {

using simdattn::Arithmetic;
using simdattn::Scoring;
using simdattn::test::indices;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0); }

// What rounding the weights p of one row costs: adds to error[d] for keys j whose values are the rows of v, [n, dim] at
// `values`, with the scales of kInt8. Keys of weight 0 count for nothing.
void add_weight_error(Arithmetic arithmetic, const std::vector<double>& p, const double* values, const double* scales,
                      int64_t dim, double* error) {
  const int64_t n = static_cast<int64_t>(p.size());
  if (arithmetic == Arithmetic::kBF16) {
    // The mean of p |v - out| is at most the root of the mean of p v^2.
    for (int64_t d = 0; d < dim; ++d) {
      double largest = 0;
      for (int64_t j = 0; j < n; ++j) {
        if (p[static_cast<size_t>(j)] != 0) largest = std::max(largest, std::fabs(values[j * dim + d]));
      }
      error[d] += largest * 0x1p-8;
    }
  }
  if (arithmetic != Arithmetic::kInt8) return;
  // Half a step of 1 / 255 of the block's largest p * scale, times the integer.
  for (int64_t block = 0; block < n; block += 256) {
    const int64_t end = std::min(n, block + 256);
    double largest = 0;
    for (int64_t j = block; j < end; ++j) largest = std::max(largest, p[static_cast<size_t>(j)] * scales[j]);
    for (int64_t j = block; j < end; ++j) {
      if (p[static_cast<size_t>(j)] == 0 || scales[j] == 0) continue;
      for (int64_t d = 0; d < dim; ++d) error[d] += largest / 510 * std::fabs(values[j * dim + d]) / scales[j];
    }
  }
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// Softmax

namespace {

// The weights of one row of scores, and its log-sum-exp. A visible score of -inf is a key of weight 0.
struct Weights {
  std::vector<double> p;
  double lse = -kInf;  // NaN: so is all of the row
  double max = -kInf;
  double sum = 0;  // of exp(t - max); 0: no visible score above -inf, and no sink
};

Weights weigh(const std::vector<double>& t, const std::vector<bool>& visible, std::optional<double> sink) {
  Weights w;
  w.p.assign(t.size(), 0.0);
  w.max = sink.value_or(-kInf);
  bool invalid = std::isnan(w.max) || w.max == kInf;
  for (size_t j = 0; j < t.size(); ++j) {
    if (!visible[j]) continue;
    invalid = invalid || std::isnan(t[j]) || t[j] == kInf;
    w.max = std::max(w.max, t[j]);
  }
  if (invalid) {
    for (size_t j = 0; j < t.size(); ++j) {
      if (visible[j]) w.p[j] = kNaN;
    }
    w.lse = w.max = w.sum = kNaN;
    return w;
  }
  if (w.max == -kInf) return w;
  if (sink) w.sum = std::exp(*sink - w.max);
  for (size_t j = 0; j < t.size(); ++j) {
    if (!visible[j]) continue;
    w.p[j] = std::exp(t[j] - w.max);
    w.sum += w.p[j];
  }
  for (double& p : w.p) p /= w.sum;
  w.lse = w.max + std::log(w.sum);
  return w;
}

// Where the rows of one sequence are: `index` in the per-sequence arrays of Scoring, `batch` and `first_row` in its
// bias and masks.
struct Sequence {
  int64_t index;
  int64_t batch;
  int64_t first_row;
  int64_t n_q;
  int64_t n_kv;
  int64_t first_key = 0;  // what a ring has overwritten before it cannot be seen

  Sequence(const Scoring& scoring, int64_t index_, int64_t batch_, int64_t first_row_, int64_t n_q_, int64_t n_kv_)
      : index(index_),
        batch(batch_),
        first_row(first_row_),
        n_q(n_q_),
        n_kv(scoring.kv_length != nullptr ? scoring.kv_length[index_] : n_kv_) {}

  int64_t position(const Scoring& scoring, int64_t i) const {
    if (scoring.offsets != nullptr) return i + scoring.offsets[index];
    return i + (scoring.offset == simdattn::kBottomRight ? n_kv - n_q : scoring.offset);
  }
};

// An entry of a bias or mask; a size of 1 broadcasts.
double entry(const simdattn::ConstView<4>& v, const Sequence& s, int64_t h, int64_t i, int64_t j) {
  const int64_t index[4] = {s.batch, h, s.first_row + i, j};
  int64_t element = 0;
  for (size_t d = 0; d < 4; ++d) element += v.shape[d] == 1 ? 0 : index[d] * v.stride[d];
  return load(v.data, v.dtype, element);
}

double modify(const Scoring& scoring, const Sequence& s, int64_t h, int64_t i, int64_t j, double t) {
  const double cap = static_cast<double>(scoring.softcap);
  if (cap > 0) t = cap * std::tanh(t / cap);
  if (scoring.alibi_slopes != nullptr) {
    t -= static_cast<double>(scoring.alibi_slopes[h]) * std::fabs(static_cast<double>(s.position(scoring, i) - j));
  }
  if (scoring.bias.data != nullptr) {
    const double bias = entry(scoring.bias, s, h, i, j);
    const double factor = scoring.bias_scale != nullptr ? static_cast<double>(scoring.bias_scale[h]) : 1.0;
    t += bias == -kInf ? bias : factor * bias;
  }
  return t;
}

bool is_visible(const Scoring& scoring, const Sequence& s, int64_t h, int64_t i, int64_t j) {
  const int64_t p = s.position(scoring, i);
  if (j >= s.n_kv) return false;
  if (scoring.kv_start != nullptr && j < scoring.kv_start[s.index]) return false;
  if (j < s.first_key) return false;
  if (scoring.causal || scoring.prefix_end != nullptr) {
    int64_t last = p;
    if (scoring.prefix_end != nullptr) last = std::max(last, int64_t{scoring.prefix_end[s.index]} - 1);
    if (j > last) return false;
  }
  if (scoring.window_left >= 0 && j < p - scoring.window_left) return false;
  if (scoring.window_right >= 0 && j > p + scoring.window_right) return false;
  if (scoring.chunk > 0 && floor_div(j, scoring.chunk) != floor_div(p, scoring.chunk)) return false;
  if (scoring.bias.data != nullptr && entry(scoring.bias, s, h, i, j) == -kInf) return false;
  if (scoring.mask.data != nullptr && entry(scoring.mask, s, h, i, j) == 0) return false;
  if (scoring.packed_mask.data != nullptr) {
    const int64_t column = j - (s.n_kv - scoring.packed_mask.columns);
    const uint8_t* row = scoring.packed_mask.data + s.batch * scoring.packed_mask.stride[0] +
                         h * scoring.packed_mask.stride[1] + (s.first_row + i) * scoring.packed_mask.stride[2];
    if (column >= 0 && ((row[column / 8] >> (column % 8)) & 1) == 0) return false;
  }
  return true;
}

Weights weigh_row(const Scoring& scoring, const Sequence& s, int64_t h, int64_t i, const std::vector<double>& scaled) {
  std::vector<double> t(scaled.size(), 0.0);
  std::vector<bool> visible(scaled.size(), false);
  for (size_t j = 0; j < scaled.size(); ++j) {
    visible[j] = is_visible(scoring, s, h, i, static_cast<int64_t>(j));
    if (visible[j]) t[j] = modify(scoring, s, h, i, static_cast<int64_t>(j), scaled[j]);
  }
  std::optional<double> sink;
  if (scoring.sinks != nullptr) sink = static_cast<double>(scoring.sinks[h]);
  return weigh(t, visible, sink);
}

double scale_of(const Scoring& scoring, std::optional<double> scale, double fallback) {
  if (scale) return *scale;
  return scoring.scale ? static_cast<double>(*scoring.scale) : fallback;
}

}  // namespace

Tensor softmax(const Tensor& x, Tensor* lse) {
  const int64_t rows = x.dim(0), n = x.dim(1);
  Tensor result({rows, n});
  if (lse != nullptr) *lse = Tensor({rows});
  for (int64_t r = 0; r < rows; ++r) {
    const auto begin = x.data.begin() + r * n;
    const Weights w = weigh({begin, begin + n}, std::vector<bool>(static_cast<size_t>(n), true), {});
    std::copy(w.p.begin(), w.p.end(), result.data.begin() + r * n);
    if (lse != nullptr) (*lse)[r] = w.lse;
  }
  return result;
}

Tensor modified_scores(const Tensor& x, const Scoring& scoring, Tensor* visible, std::optional<double> scale) {
  Tensor result(x.shape);
  if (visible != nullptr) *visible = result;
  const double factor = scale_of(scoring, scale, 1.0);
  int64_t element = 0;
  for (int64_t b = 0; b < x.dim(0); ++b) {
    const Sequence s(scoring, b, b, 0, x.dim(2), x.dim(3));
    for (const auto [h, i] : indices(x.dim(1), x.dim(2))) {
      for (int64_t j = 0; j < x.dim(3); ++j, ++element) {
        result[element] = modify(scoring, s, h, i, j, factor * x[element]);
        if (visible != nullptr) (*visible)[element] = is_visible(scoring, s, h, i, j) ? 1 : 0;
      }
    }
  }
  return result;
}

Tensor masked_softmax(const Tensor& x, const Scoring& scoring, Tensor* lse, std::optional<double> scale) {
  const double factor = scale_of(scoring, scale, 1.0);
  const int64_t n_q = x.dim(2), n_kv = x.dim(3);
  Tensor result(x.shape);
  if (lse != nullptr) *lse = Tensor({x.dim(0), x.dim(1), n_q});
  for (int64_t b = 0; b < x.dim(0); ++b) {
    const Sequence s(scoring, b, b, 0, n_q, n_kv);
    for (const auto [h, i] : indices(x.dim(1), n_q)) {
      const int64_t row = x.offset({b, h, i});
      std::vector<double> scaled(x.data.begin() + row, x.data.begin() + row + n_kv);
      for (double& t : scaled) t *= factor;
      const Weights w = weigh_row(scoring, s, h, i, scaled);
      std::copy(w.p.begin(), w.p.end(), result.data.begin() + row);
      if (lse != nullptr) lse->at({b, h, i}) = w.lse;
    }
  }
  return result;
}

Tensor weighted_values(const Tensor& p, const Tensor& v, Tensor* magnitude, Arithmetic arithmetic, Tensor* weights) {
  const int64_t n_q = p.dim(2), n_kv = p.dim(3), dim = v.dim(3);
  const int64_t group = p.dim(1) / v.dim(1);
  Tensor result({p.dim(0), p.dim(1), n_q, dim});
  if (magnitude != nullptr) *magnitude = result;
  if (weights != nullptr) *weights = result;
  Tensor scales;
  const Tensor values = operands(v, arithmetic, &scales);
  const Tensor rounded = arithmetic == Arithmetic::kBF16 ? operands(p, arithmetic) : p;
  for (const auto [b, h] : indices(p.dim(0), p.dim(1))) {
    const double* rows = values.row({b, h / group});
    for (int64_t i = 0; i < n_q; ++i) {
      const double* const p_row = p.row({b, h, i});
      const double* const rounded_row = rounded.row({b, h, i});
      double* const out = result.row({b, h, i});
      double* const sizes = magnitude != nullptr ? magnitude->row({b, h, i}) : nullptr;
      std::vector<double> used(static_cast<size_t>(n_kv), 0.0);
      for (int64_t j = 0; j < n_kv; ++j) {
        // In kInt8 negative weights are 0.
        if (p_row[j] == 0 || (arithmetic == Arithmetic::kInt8 && p_row[j] < 0)) continue;
        const double weight = rounded_row[j];
        used[static_cast<size_t>(j)] = weight;
        for (int64_t d = 0; d < dim; ++d) {
          const double term = weight * rows[j * dim + d];
          out[d] += term;
          if (sizes != nullptr) sizes[d] += std::fabs(term);
        }
      }
      if (weights != nullptr && arithmetic == Arithmetic::kInt8) {
        add_weight_error(arithmetic, used, rows, scales.row({b, h / group}), dim, weights->row({b, h, i}));
      }
    }
  }
  return result;
}

// ---------------------------------------------------------------------------------------------------------------------
// Attention

namespace {

// One sequence: q [Hq, n_q, d], k [Hk, n, d], v [Hk, n, d_v]. Writes rows `row`, row + 1, ... of batch b of `result`.
void attend(const Tensor& q_stored, const Tensor& k_stored, const Tensor& v_stored, Arithmetic arithmetic,
            const Scoring& scoring, const Sequence& s, double scale, int64_t b, int64_t row, AttentionResult* result) {
  Tensor scales;
  const Tensor q = operands(q_stored, arithmetic), k = operands(k_stored, arithmetic),
               v = operands(v_stored, arithmetic, &scales);
  const int64_t group = q.dim(0) / k.dim(0);
  const int64_t n = k.dim(1), dim = k.dim(2), dim_v = v.dim(2);
  for (int64_t h = 0; h < q.dim(0); ++h) {
    const double* values = v.row({h / group});
    for (int64_t i = 0; i < q.dim(1); ++i) {
      std::vector<double> scaled(static_cast<size_t>(n), 0.0);
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        const double* q_row = q.row({h, i});
        const double* k_row = k.row({h / group, j});
        for (int64_t d = 0; d < dim; ++d) sum += q_row[d] * k_row[d];
        scaled[static_cast<size_t>(j)] = scale * sum;
      }
      const Weights w = weigh_row(scoring, s, h, i, scaled);
      result->lse.at({b, h, row + i}) = w.lse;
      double* out = result->out.row({b, h, row + i});
      double* magnitude = result->magnitude.row({b, h, row + i});
      double* weights = result->weights.row({b, h, row + i});
      result->max.at({b, h, row + i}) = w.max;
      result->sum.at({b, h, row + i}) = w.sum;
      if (std::isnan(w.lse)) std::fill_n(out, dim_v, kNaN);
      if (std::isnan(w.lse) || w.sum == 0) continue;
      for (int64_t j = 0; j < n; ++j) {
        // A weight of 0 hides no value of a visible key: a NaN or infinity in it makes NaN.
        if (!is_visible(scoring, s, h, i, j)) continue;
        const double p = w.p[static_cast<size_t>(j)];
        for (int64_t d = 0; d < dim_v; ++d) {
          out[d] += p * values[j * dim_v + d];
          magnitude[d] += std::fabs(p * values[j * dim_v + d]);
        }
      }
      add_weight_error(arithmetic, w.p, values, scales.row({h / group}), dim_v, weights);
    }
  }
}

// Batch entry b of a [B, H, n, d] tensor, rows first .. first+count-1: [H, count, d].
Tensor rows_of(const Tensor& x, int64_t b, int64_t first, int64_t count) {
  Tensor result({x.dim(1), count, x.dim(3)});
  for (int64_t h = 0; h < x.dim(1); ++h) {
    const auto begin = x.data.begin() + x.offset({b, h}) + first * x.dim(3);
    std::copy(begin, begin + count * x.dim(3), result.data.begin() + result.offset({h}));
  }
  return result;
}

AttentionResult empty_result(int64_t batch, int64_t heads, int64_t n_q, int64_t dim_v) {
  const Tensor rows({batch, heads, n_q});
  const Tensor elements({batch, heads, n_q, dim_v});
  return {elements, rows, elements, rows, rows, elements};
}

}  // namespace

AttentionResult attention(const Tensor& q, const Tensor& k, const Tensor& v, const Scoring& scoring,
                          std::optional<double> scale) {
  const int64_t n_q = q.dim(2), n_kv = k.dim(2);
  const double factor = scale_of(scoring, scale, 1.0 / std::sqrt(static_cast<double>(q.dim(3))));
  AttentionResult result = empty_result(q.dim(0), q.dim(1), n_q, v.dim(3));
  for (int64_t b = 0; b < q.dim(0); ++b) {
    attend(rows_of(q, b, 0, n_q), rows_of(k, b, 0, n_kv), rows_of(v, b, 0, n_kv), Arithmetic::kF32, scoring,
           Sequence(scoring, b, b, 0, n_q, n_kv), factor, b, 0, &result);
  }
  return result;
}

namespace {

// f(q, k, v, sequence) for each sequence of a problem: what it stores and sees.
template <class F>
void for_each_sequence(const simdattn::AttentionProblem& problem, const F& f) {
  const Scoring& scoring = problem.scoring;
  const Tensor q = read(problem.q);
  const bool varlen = problem.cu_q != nullptr;
  for (int64_t s = 0; s < (varlen ? problem.n_sequences : q.dim(0)); ++s) {
    const int64_t batch = varlen ? 0 : s;
    const int64_t first_row = varlen ? problem.cu_q[s] : 0;
    const int64_t n_q = varlen ? problem.cu_q[s + 1] - first_row : q.dim(2);
    int64_t n_kv = problem.k.length < 0 ? problem.k.capacity : problem.k.length;
    Tensor k, v;
    if (problem.cu_k != nullptr) {
      const int64_t first_key = problem.cu_k[s];
      n_kv = problem.cu_k[s + 1] - first_key;
      const auto packed = [&](const simdattn::ConstKv& kv) {
        Tensor all = read(kv, 0, first_key + n_kv);
        all.shape.insert(all.shape.begin(), 1);
        return rows_of(all, 0, first_key, n_kv);
      };
      k = packed(problem.k);
      v = packed(problem.v);
    } else {
      // Reading no further than the length matters for rings: it is the last tokens of the sequence that they hold.
      const int64_t length = scoring.kv_length != nullptr ? scoring.kv_length[s] : n_kv;
      k = read(problem.k, s, length);
      v = read(problem.v, s, length);
    }
    Sequence sequence(scoring, s, batch, first_row, n_q, n_kv);
    for (const int64_t ring : {problem.k.ring, problem.v.ring}) {
      if (ring > 0) sequence.first_key = std::max(sequence.first_key, sequence.n_kv - ring);
    }
    f(rows_of(q, batch, first_row, n_q), k, v, sequence);
  }
}

}  // namespace

AttentionResult attention(const simdattn::AttentionProblem& problem) {
  const auto& shape = problem.q.shape;
  const double factor = scale_of(problem.scoring, {}, 1.0 / std::sqrt(static_cast<double>(shape[3])));
  AttentionResult result = empty_result(shape[0], shape[1], shape[2], problem.v.dim);
  for_each_sequence(problem, [&](const Tensor& q, const Tensor& k, const Tensor& v, const Sequence& s) {
    attend(q, k, v, problem.arithmetic, problem.scoring, s, factor, s.batch, s.first_row, &result);
  });
  return result;
}

std::vector<SequenceRows> sequences(const simdattn::AttentionProblem& problem) {
  const Scoring& scoring = problem.scoring;
  std::vector<SequenceRows> result;
  for_each_sequence(problem, [&](const Tensor& q, const Tensor& k, const Tensor& v, const Sequence& s) {
    SequenceRows rows = {q, k, v, s.batch, s.first_row, {}, Tensor({q.dim(0), q.dim(1), k.dim(1)}), {}};
    for (int64_t i = 0; i < q.dim(1); ++i) rows.positions.push_back(s.position(scoring, i));
    if (scoring.bias.data != nullptr) rows.bias = rows.visible;
    int64_t element = 0;
    for (const auto [h, i] : indices(q.dim(0), q.dim(1))) {
      for (int64_t j = 0; j < k.dim(1); ++j, ++element) {
        rows.visible[element] = is_visible(scoring, s, h, i, j) ? 1 : 0;
        if (scoring.bias.data != nullptr) rows.bias[element] = entry(scoring.bias, s, h, i, j);
      }
    }
    result.push_back(rows);
  });
  return result;
}

AttentionResult attention_merge(const Tensor& parts, const Tensor& part_lse, const std::vector<double>& sinks) {
  const int64_t n_parts = parts.dim(0), dim = parts.dim(4);
  AttentionResult result = empty_result(parts.dim(1), parts.dim(2), parts.dim(3), dim);
  for (const auto [b, h, i] : indices(parts.dim(1), parts.dim(2), parts.dim(3))) {
    // The parts are keys whose scores are their log-sum-exps, and a sink is a sink.
    std::vector<double> lse;
    for (int64_t p = 0; p < n_parts; ++p) lse.push_back(part_lse.at({p, b, h, i}));
    std::optional<double> sink;
    if (!sinks.empty()) sink = sinks[static_cast<size_t>(h)];
    const Weights w = weigh(lse, std::vector<bool>(lse.size(), true), sink);
    result.lse.at({b, h, i}) = w.lse;
    for (int64_t p = 0; p < n_parts; ++p) {
      const double weight = w.p[static_cast<size_t>(p)];
      if (lse[static_cast<size_t>(p)] == -kInf && !std::isnan(weight)) continue;
      for (int64_t d = 0; d < dim; ++d) {
        const double term = weight * parts.at({p, b, h, i, d});
        result.out.at({b, h, i, d}) += term;
        result.magnitude.at({b, h, i, d}) += std::fabs(term);
      }
    }
  }
  return result;
}

}  // namespace reference
