// Every slot in plain C++: the definition of each result. Here those outside of attention's inside (attention.h),
// states (state.h) and narrow storage (narrow.h).
#pragma once

#include "lib/definition/attention.h"

namespace simdattn {
namespace {

/// f(row of queries, key): the sum of a score.
template <class T, class F>
void all_rows(const ScoreRows& a, const F& f) {
  const T* k = static_cast<const T*>(a.k);
  for (int64_t i = 0; i < a.n_q; ++i) {
    for (int64_t j = 0; j < a.n_k; ++j) a.s[i * a.lds + j] = canonical(f(i, k + j * a.ldk));
  }
}

template <class T>
void score_rows(const ScoreRows& a) {
  all_rows<T>(a, [&a](int64_t i, const T* k) { return scalar::dot(a.q + i * a.ldq, k, a.dim) * a.scale; });
}

template <class T>
void gaussian_rows(const ScoreRows& a) {
  all_rows<T>(a, [&a](int64_t i, const T* k) { return scalar::squared_distance(a.q + i * a.ldq, k, a.dim) * a.scale; });
}

template <class T>
void additive_rows(const AdditiveRows& a) {
  all_rows<T>(a.rows, [&a](int64_t i, const T* k) {
    return scalar::additive(a.rows.q + i * a.rows.ldq, k, a.w + i * a.ldw, a.rows.dim);
  });
}

void softmax_rows(const SoftmaxRows& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* x = a.x + r * a.ldx;
    float* y = a.y + r * a.ldy;
    const int64_t lo = a.lo + r * a.lo_step;
    const int64_t hi = a.hi + r * a.hi_step;
    float m = a.sink;
    if (a.known_max != nullptr) {
      m = max_number(m, a.known_max[r]);
    } else {
      for (int64_t j = lo; j < hi; ++j) m = max_number(m, a.scale * x[j]);
    }
    const float base = reference_point(m);
    float partial[16] = {};
    for (int64_t j = lo; j < hi; ++j) {
      y[j] = scalar::exp(a.scale * x[j] - base);
      partial[j % 16] += y[j];
    }
    const float l = scalar::fold(partial) + scalar::exp(a.sink - base);
    if (is_nan(l)) {
      for (int64_t j = 0; j < a.n; ++j) y[j] = canonical(l);
      m = l;
    } else {
      const float inverse = l > 0.0f ? 1.0f / l : 0.0f;
      for (int64_t j = 0; j < a.n; ++j) y[j] = j < lo || j >= hi ? 0.0f : y[j] * inverse;
    }
    if (a.max != nullptr) {
      a.max[r] = canonical(m + 0.0f);
      a.sum[r] = canonical(l);
    }
  }
}

ModifyResult modify_row(const ModifyRow& a) {
  const RowModifiers& m = a.row;
  ModifyResult result = {-kInf, false};
  for (int64_t c = a.lo; c < a.hi; ++c) {
    const int64_t key = a.first_key + c;
    float t = a.scale * a.x[c];
    if (m.softcap > 0.0f) t = m.softcap * scalar::tanh(t / m.softcap);
    if (m.slope != 0.0f) {
      const float distance = static_cast<float>(std::abs(m.position - static_cast<int32_t>(key)));
      t = t + -(m.slope * distance);
    }
    bool masked = false;
    if (m.bias != nullptr) {
      const float b = with_storage(m.bias_dtype,
                                   [&](auto type) { return to_f32(static_cast<const decltype(type)*>(m.bias)[key]); });
      masked = b == -kInf;
      t = t + b * m.bias_scale;
    }
    if (m.keep != nullptr) masked = masked || m.keep[key] == 0;
    if (m.bits != nullptr && key >= m.first_bit) {
      const int64_t bit = key - m.first_bit;
      masked = masked || (m.bits[bit / 8] >> (bit % 8) & 1) == 0;
    }
    if (masked) t = -kInf;
    result.masked = result.masked || masked;
    result.max = max_number(result.max, t);
    a.t[c] = t;
  }
  return result;
}

// Functions and no variables, because clang does not instantiate what a template of a variable names.
template <class T>
void score_tile(const ScoreTile& a) {
  scores<F32Arithmetic, T>(a);
}
template <class T>
void value_tile(const ValueTile& a) {
  weighted_values<F32Arithmetic, T>(a);
}

template <class T>
void pack_keys(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* panel, bool /*stream*/) {
  for (int64_t d = 0; d < dim; ++d) {
    for (int64_t j = 0; j < kPanelWidth; ++j) {
      panel[d * kPanelWidth + j] = j < keys ? to_f32(at<T>(rows, j * token_stride)[d]) : 0.0f;
    }
  }
}

template <class T>
void widen_panel(const void* panel, int64_t dim, float* out) {
  for (int64_t d = 0; d < dim; ++d) {
    for (int64_t j = 0; j < kPanelWidth; ++j) {
      out[d * kPanelWidth + j] = to_f32(static_cast<const T*>(panel)[panel_index<T>(d, j)]);
    }
  }
}

template <class T>
void pack_values(const void* rows, int64_t token_stride, int64_t keys, int64_t dim, float* out) {
  for (int64_t g = 0; g * kValueGroup < dim; ++g) {
    for (int64_t j = 0; j < keys; ++j) {
      const T* row = at<T>(rows, j * token_stride);
      for (int64_t c = 0; c < kValueGroup; ++c) {
        const int64_t column = g * kValueGroup + c;
        out[(g * kKeyBlock + j) * kValueGroup + c] = column < dim ? to_f32(row[column]) : 0.0f;
      }
    }
  }
}

template <class T>
void widen(const void* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = to_f32(static_cast<const T*>(in)[i]);
}

template <class T>
void finish(const float* in, float factor, void* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) static_cast<T*>(out)[i] = from_f32<T>((in[i] + 0.0f) * factor);
}

template <class T>
bool all_finite(const FiniteRows& a) {
  for (int64_t j = 0; j < a.keys; ++j) {
    for (int64_t d = 0; d < a.dim; ++d) {
      const float x = to_f32(at<T>(a.rows, j * a.token_stride)[d]);
      if (!is_finite(to_f32(from_f32<bf16>(x)))) return false;
    }
  }
  return true;
}

bool any_zero(const float* w, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    if (w[i] == 0.0f) return true;
  }
  return false;
}

int64_t above(const float* x, float bound, int64_t n, int32_t first, int32_t* places) {
  int64_t count = 0;
  for (int64_t j = 0; j < n; ++j) {
    if (!(x[j] > bound)) continue;
    if (places != nullptr) places[count] = first + static_cast<int32_t>(j);
    ++count;
  }
  return count;
}

void join_rows(const JoinRows& a) {
  for (int64_t c = 0; c < a.columns; ++c) {
    float y = a.more ? a.y[c] : a.largest ? -kInf : 0.0f;
    for (int64_t r = 0; r < a.rows; ++r) {
      const float s = a.s[r * a.lds + c];
      const float t = a.relu ? max_number(0.0f, s) : s;
      y = a.largest ? max_number(y, t) : fma(a.weights != nullptr ? a.weights[r] : 1.0f, t, y);
    }
    a.y[c] = canonical(y);
  }
}

void norm_row(float* x, int64_t n, float factor, const float* weights, bool plus_one) {
  for (int64_t i = 0; i < n; ++i) {
    const float w = weights == nullptr ? 1.0f : plus_one ? 1.0f + weights[i] : weights[i];
    x[i] = canonical((x[i] * factor) * w);
  }
}

void merge(float* a, float wa, const float* b, float wb, int64_t n) {
  for (int64_t i = 0; i < n; ++i) a[i] = fma(a[i], wa, b[i] * wb);
}

template <class T>
void rope_heads(const RopeHeads& a) {
  for (int64_t h = 0; h < a.heads; ++h) {
    const T* x = static_cast<const T*>(a.x) + h * a.x_stride;
    T* y = static_cast<T*>(a.y) + h * a.y_stride;
    for (int64_t i = 0; i < a.half; ++i) {
      const int64_t d0 = a.first + (a.interleaved ? 2 * i : i);
      const int64_t d1 = d0 + (a.interleaved ? 1 : a.half);
      const float x0 = to_f32(x[d0]), x1 = to_f32(x[d1]), c = a.cos[i], s = a.inverse ? -a.sin[i] : a.sin[i];
      y[d0] = from_f32<T>(fma(x0, c, -(x1 * s)));
      y[d1] = from_f32<T>(fma(x0, s, x1 * c));
    }
    for (int64_t d = 0; d < a.dim; ++d) {
      if (a.x != a.y && (d < a.first || d >= a.first + 2 * a.half)) y[d] = x[d];
    }
  }
}

template <class T>
void add_rows(const AddRows& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const T* x = static_cast<const T*>(a.x) + r * a.x_stride;
    const float* p = a.p + r * a.p_stride;
    T* y = static_cast<T*>(a.y) + r * a.y_stride;
    for (int64_t d = 0; d < a.dim; ++d) y[d] = from_f32<T>(to_f32(x[d]) + p[d]);
  }
}

/// Dimension d of token t in rows or panels that begin at `cache`.
template <class T, bool kPanels, class A, class Cache>
auto* stored(const A& a, Cache* cache, int64_t t, int64_t d) {
  if (!kPanels) return at<T>(cache, t * a.stride) + d;
  const int64_t j = a.column + t;
  return at<T>(cache, j / kPanelWidth * a.stride) + panel_index<T>(d, j % kPanelWidth);
}
template <class T, bool kPanels>
void store(const StoreRows& a) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    for (int64_t d = 0; d < a.dim; ++d) {
      *stored<T, kPanels>(a, a.out, t, d) =
          a.as_stored ? at<T>(a.rows, t * a.ld)[d] : from_f32<T>(at<float>(a.rows, t * a.ld)[d]);
    }
    const bool half_pair = kPanels && std::is_same_v<T, bf16> && a.dim % 2 != 0;  // paired with zero
    if (half_pair) *stored<T, kPanels>(a, a.out, t, a.dim) = T{};
  }
}
template <class T>
constexpr auto store_rows = store<T, false>;
template <class T>
constexpr auto store_panels = store<T, true>;

template <class T, bool kPanels>
void load(const LoadRows& a) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    for (int64_t d = 0; d < a.dim; ++d) {
      const T x = *stored<T, kPanels>(a, a.in, t, d);
      if (a.as_stored) {
        at<T>(a.rows, t * a.ld)[d] = x;
      } else {
        at<float>(a.rows, t * a.ld)[d] = to_f32(x);
      }
    }
  }
}
template <class T>
constexpr auto load_rows = load<T, false>;
template <class T>
constexpr auto load_panels = load<T, true>;

void hadamard_sums(float* x, int64_t n, int64_t block) {
  for (int64_t half = 1; half < block; half *= 2) {
    for (int64_t i = 0; i < n; ++i) {
      if ((i & half) != 0) continue;
      const float a = x[i], b = x[i + half];
      x[i] = a + b;
      x[i + half] = a - b;
    }
  }
}

void exp_array(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = canonical(scalar::exp(x[i]));
}

}  // namespace
}  // namespace simdattn
