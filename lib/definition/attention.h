// The inside of attention in each arithmetic: scores, weights of the online softmax, weighted values, and the operands
// of integers.
#pragma once

#include <bit>
#include <cstring>
#include <limits>

#include "lib/contract/int8_operands.h"
#include "lib/definition/flushed.h"
#include "lib/definition/math.h"

namespace simdattn {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// What stands `bytes` behind p.
template <class T>
const T* at(const void* p, int64_t bytes) {
  return reinterpret_cast<const T*>(static_cast<const char*>(p) + bytes);
}
template <class T>
T* at(void* p, int64_t bytes) {
  return reinterpret_cast<T*>(static_cast<char*>(p) + bytes);
}

/// Where element d of key j of a panel is.
template <class T>
constexpr int64_t panel_index(int64_t d, int64_t j) {
  return std::is_same_v<T, bf16> ? (d / 2 * kPanelWidth + j) * 2 + d % 2 : d * kPanelWidth + j;
}

/// The larger one; a NaN in `x` is ignored: it comes back through the sum of exponentials.
float max_number(float m, float x) { return x > m ? x : m; }
/// -inf - -inf would be NaN: with nothing visible yet, exponentials are taken relative to 0.
float reference_point(float m) { return m == -kInf ? 0.0f : m; }

// ---- Arithmetics ----------------------------------------------------------------------------------------------------
// Each has the numbers that are multiplied, and add(): sum and x(i) * y(i) for 0 <= i < n, where `first` says which
// product of the whole sum x(0) * y(0) is, because the order of kBF16 depends on it.

/// kF32: one product after the other.
struct F32Arithmetic {
  static float number(float x) { return x; }
  static float scaled(float factor, float x) { return factor * x; }
  template <class X, class Y>
  static float add(float sum, int64_t /*first*/, int64_t n, const X& x, const Y& y) {
    for (int64_t i = 0; i < n; ++i) sum = fma(x(i), y(i), sum);
    return sum;
  }
};

/// kBF16, in the order of TDPBF16PS: of every group of 32 a chain over the even and one over the odd numbers, each
/// from 0. What is joined is added to the sum.
struct Bf16Arithmetic {
  static float number(float x) { return to_f32(from_f32<bf16>(x)); }
  /// -0 becomes +0.
  static float scaled(float factor, float x) { return scalar::flushed_fma(factor, x, 0.0f); }
  template <class X, class Y>
  static float add(float sum, int64_t first, int64_t n, const X& x, const Y& y) {
    for (int64_t i = 0; i < n;) {
      float chain[2] = {0.0f, 0.0f};
      do {
        float& c = chain[(first + i) % 2];
        c = scalar::flushed_fma(x(i), y(i), c);
        ++i;
      } while (i < n && (first + i) % kChainGroup != 0);
      sum = scalar::flushed_add(sum, scalar::flushed_add(chain[0], chain[1]));
    }
    return sum;
  }
};

/// score(query, panel, column of it) for every query and key.
template <class F>
void for_each_score(const ScoreTile& a, const F& score) {
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < a.n_panels * kPanelWidth; ++c) {
      const char* panel = at<char>(a.panels, c / kPanelWidth * a.panel_stride);
      a.s[r * a.lds + c] = score(at<char>(a.q, r * a.q_stride), panel, c % kPanelWidth);
    }
  }
}

/// From queries of f32 and panels of T.
template <class A, class T>
void scores(const ScoreTile& a) {
  for_each_score(a, [&a](const void* query, const void* panel, int64_t j) {
    const float sum = A::add(
        0.0f, 0, a.dim, [query](int64_t d) { return static_cast<const float*>(query)[d]; },
        [panel, j](int64_t d) { return A::number(to_f32(static_cast<const T*>(panel)[panel_index<T>(d, j)])); });
    return A::scaled(a.scale, sum);
  });
}

/// value(key, column): the numbers of the values.
template <class A, class F>
void add_values(const ValueTile& a, const F& value) {
  for (int64_t r = 0; r < a.rows; ++r) {
    const float* w = a.w + r * a.ldw;
    for (int64_t c = 0; c < a.dim; ++c) {
      float& o = a.o[r * a.ldo + c];
      const float before = a.alpha == nullptr ? o : A::scaled(a.alpha[r], o);
      o = A::add(before, a.first_key, a.keys, [w](int64_t j) { return w[j]; }, [&](int64_t j) { return value(j, c); });
    }
  }
}
/// From rows of T.
template <class A, class T>
void weighted_values(const ValueTile& a) {
  add_values<A>(a, [&a](int64_t j, int64_t c) {
    return A::number(to_f32(at<T>(a.v, c / kValueGroup * a.group_stride + j * a.key_stride)[c % kValueGroup]));
  });
}

/// Weights are rounded, and the sum adds what is used.
template <class A>
void softmax_tile(const SoftmaxTile& a) {
  for (int64_t r = 0; r < a.rows; ++r) {
    float* s = a.s + r * a.lds;
    for (int64_t j = a.lo[r]; j < a.hi[r] && a.scale != 1.0f; ++j) s[j] = A::scaled(a.scale, s[j]);
    float m = a.max[r];
    for (int64_t j = a.lo[r]; j < a.hi[r]; ++j) m = max_number(m, s[j]);
    const float base = reference_point(m);
    float partial[16] = {};
    for (int64_t j = 0; j < a.columns; ++j) {
      s[j] = j < a.lo[r] || j >= a.hi[r] ? 0.0f : A::number(scalar::exp(s[j] - base));
      partial[j % 16] += s[j];
    }
    a.alpha[r] = scalar::exp(a.max[r] - base);
    a.sum[r] = fma(a.sum[r], a.alpha[r], scalar::fold(partial));
    a.max[r] = m + 0.0f;  // +0 where both zeros are the maximum: their order must not matter
  }
}

/// kBF16 by the names that table_of_kernels.h asks for.
struct Bf16Chains {
  static void round(const float* in, float* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = Bf16Arithmetic::number(in[i]);
  }
  static constexpr auto score_tile = scores<Bf16Arithmetic, float>;
  static constexpr auto score_tile_bf16 = scores<Bf16Arithmetic, bf16>;
  static constexpr auto value_tile = weighted_values<Bf16Arithmetic, float>;
  static constexpr auto value_tile_bf16 = weighted_values<Bf16Arithmetic, bf16>;
  static constexpr auto softmax_tile = simdattn::softmax_tile<Bf16Arithmetic>;
};

/// The largest magnitude of n numbers, as bits; infinity's or more if one of them is NaN or infinite.
template <class T>
uint32_t largest_bits(const T* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(to_f32(x[i])) & 0x7FFFFFFFu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}
/// Nearest even; |x| < 2^21.
int32_t round_to_integer(float x) { return static_cast<int32_t>(std::bit_cast<uint32_t>(x + 0x1.8p23f) - 0x4B400000u); }
/// n numbers as integers, of which the largest magnitude becomes `most`.
struct Integers : IntegerScale {
  template <class T>
  Integers(const T* x, int64_t n, float most) : IntegerScale(largest_bits(x, n), most) {}
  int32_t operator()(float x) const { return inverse == 0.0f ? 0 : round_to_integer(x * inverse); }
};

/// kInt8: products of 8-bit integers, exact sums, one scale per query, key and value row.
struct Int8Integers {
  static constexpr auto query_bytes = int8_query_bytes;
  static constexpr auto panel_bytes = int8_panel_bytes;
  static constexpr auto values_bytes = int8_values_bytes;

  /// Where number i of column c is: of a dimension and a key, or of a key and a column of values.
  static int64_t cell(int64_t i, int64_t c) { return (i / 4 * kPanelWidth + c) * 4 + i % 4; }
  static int64_t value_cell(int64_t key, int64_t column) {
    static_assert(kValueGroup == kPanelWidth);
    return column / kValueGroup * kValueGroup * kKeyBlock + cell(key, column % kValueGroup);
  }

  template <class T>
  static void prepare_query(const void* row, void* query, int64_t dim) {
    const T* x = static_cast<const T*>(row);
    const Integers quantise(x, dim, 127.0f);
    int8_t* out = static_cast<int8_t*>(query);
    std::memset(out, 0, static_cast<size_t>(int8_query_bytes(dim)));
    Int8Query info = {quantise.scale, 0};
    for (int64_t d = 0; d < dim; ++d) {
      out[d] = static_cast<int8_t>(quantise(to_f32(x[d])));
      info.sum += out[d];
    }
    std::memcpy(out + int8_query_numbers(dim), &info, sizeof(info));
  }

  template <class T>
  static void pack_keys(const PackKeys& a) {
    int8_t* panel = static_cast<int8_t*>(a.panel);
    std::memset(panel, 0, static_cast<size_t>(int8_panel_bytes(a.dim)));
    for (int64_t j = 0; j < a.keys; ++j) {
      const T* row = at<T>(a.from, j * a.token_stride);
      const Integers quantise(row, a.dim, 127.0f);
      at<float>(a.panel, int8_panel_numbers(a.dim))[j] = quantise.scale;
      for (int64_t d = 0; d < a.dim; ++d) panel[cell(d, j)] = static_cast<int8_t>(quantise(to_f32(row[d])));
    }
  }

  static int32_t dot(const char* query, const char* panel, int64_t j, int64_t first, int64_t end) {
    int32_t sum = 0;
    for (int64_t d = first; d < end; ++d) sum += at<int8_t>(query, d)[0] * at<int8_t>(panel, cell(d, j))[0];
    return sum;
  }
  static float query_scale(const ScoreTile& a, const char* query) {
    return at<Int8Query>(query, int8_query_numbers(a.dim))->scale * a.scale;
  }
  static void score_packed(const ScoreTile& a) {
    for_each_score(a, [&a](const char* query, const char* panel, int64_t j) {
      const float key_scale = at<float>(panel, int8_panel_numbers(a.dim))[j];
      return static_cast<float>(dot(query, panel, j, 0, a.dim)) * (query_scale(a, query) * key_scale);
    });
  }
  static void score_blocks(const ScoreTile& a) {
    for_each_score(a, [&a](const char* query, const char* panel, int64_t j) {
      const float* const scales = at<float>(panel, int8_panel_numbers(a.dim)) + j;
      float score = 0.0f;
      for (int64_t d = 0; d < a.dim; d += kBlockDims) {
        score = fma(static_cast<float>(dot(query, panel, j, d, d + kBlockDims)), scales[d / kBlockDims * kPanelWidth],
                    score);
      }
      return score * query_scale(a, query);
    });
  }

  template <class T>
  static void pack_values(const PackValues& a) {
    const int64_t numbers = int8_values_numbers(a.columns);
    for (int64_t j = 0; j < a.keys; ++j) {
      const T* row = at<T>(a.rows, j * a.token_stride);
      const Integers quantise(row, a.dim, 127.0f);
      at<float>(a.packed, numbers)[a.first + j] = quantise.scale;
      for (int64_t c = 0; c < numbers / kKeyBlock; ++c) {
        static_cast<int8_t*>(a.packed)[value_cell(a.first + j, c)] =
            static_cast<int8_t>(c < a.columns ? quantise(to_f32(row[a.column + c])) : 0);
      }
    }
  }

  static void value_packed(const ValueTile& a) {
    const float* scales = at<float>(a.v, int8_values_numbers(a.dim)) + a.first_key;
    for (int64_t r = 0; r < a.rows; ++r) {
      const float* w = a.w + r * a.ldw;
      float u[kKeyBlock];  // negative ones count as 0
      for (int64_t j = 0; j < a.keys; ++j) {
        const float product = w[j] * scales[j];
        u[j] = product < 0.0f && is_finite(product) ? 0.0f : product;
      }
      const Integers quantise(u, a.keys, 255.0f);
      uint8_t p[kKeyBlock];
      for (int64_t j = 0; j < a.keys; ++j) p[j] = static_cast<uint8_t>(quantise(u[j]));
      for (int64_t c = 0; c < a.dim; ++c) {
        int32_t sum = 0;
        for (int64_t j = 0; j < a.keys; ++j)
          sum += p[j] * static_cast<const int8_t*>(a.v)[value_cell(a.first_key + j, c)];
        float& o = a.o[r * a.ldo + c];
        const float before = a.alpha == nullptr ? o : a.alpha[r] * o;
        o = fma(static_cast<float>(sum), quantise.scale, before);
      }
    }
  }
};

}  // namespace
}  // namespace simdattn
