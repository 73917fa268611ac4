// The definition of Arithmetic::kInt8: products of 8-bit integers, exact sums, one scale per query, key and value row.
#ifndef SIMDATTN_LIB_DEFINITION_INT8_ATTENTION_H_
#define SIMDATTN_LIB_DEFINITION_INT8_ATTENTION_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lib/contract/dtypes.h"
#include "lib/contract/fma.h"
#include "lib/contract/int8_operands.h"
#include "lib/contract/ukernels.h"

namespace simdattn {
namespace {

/// The largest magnitude of n numbers; NaN if one of them is NaN or infinite.
template <class T>
float largest_magnitude(const T* x, int64_t n) {
  float largest = 0.0f;
  bool finite = true;
  for (int64_t i = 0; i < n; ++i) {
    const float size = std::fabs(to_f32(x[i]));
    finite = finite && size < std::numeric_limits<float>::infinity();
    if (size > largest) largest = size;
  }
  return finite ? largest : canonical(std::numeric_limits<float>::quiet_NaN());
}

struct Int8Integers {
  static constexpr auto query_bytes = int8_query_bytes;
  static constexpr auto panel_bytes = int8_panel_bytes;
  static constexpr auto values_bytes = int8_values_bytes;

  template <class T>
  static void prepare_query(const void* row, void* query, int64_t dim) {
    const T* x = static_cast<const T*>(row);
    const RowScale quantise(largest_magnitude(x, dim));
    int8_t* out = static_cast<int8_t*>(query);
    std::memset(out, 0, static_cast<size_t>(int8_query_bytes(dim)));
    Int8Query info = {quantise.scale, 0};
    for (int64_t d = 0; d < dim; ++d) {
      out[d] = quantise(to_f32(x[d]));
      info.sum += out[d];
    }
    std::memcpy(out + int8_query_numbers(dim), &info, sizeof(info));
  }

  static void pack_keys(const PackKeys& a) {
    int8_t* panel = static_cast<int8_t*>(a.panel);
    std::memset(panel, 0, static_cast<size_t>(int8_panel_bytes(a.dim)));
    float* scales = reinterpret_cast<float*>(panel + int8_panel_numbers(a.dim));
    for (int64_t j = 0; j < a.keys; ++j) {
      const auto* row = reinterpret_cast<const float*>(static_cast<const char*>(a.from) + j * a.token_stride);
      const RowScale quantise(largest_magnitude(row, a.dim));
      scales[j] = quantise.scale;
      for (int64_t d = 0; d < a.dim; ++d) panel[(d / 4 * kPanelWidth + j) * 4 + d % 4] = quantise(row[d]);
    }
  }

  static void score_packed(const ScoreTile& a) {
    for (int64_t r = 0; r < a.rows; ++r) {
      const auto* q = reinterpret_cast<const int8_t*>(static_cast<const char*>(a.q) + r * a.q_stride);
      Int8Query info;
      std::memcpy(&info, q + int8_query_numbers(a.dim), sizeof(info));
      for (int64_t c = 0; c < a.n_panels * kPanelWidth; ++c) {
        const char* bytes = static_cast<const char*>(a.panels) + c / kPanelWidth * a.panel_stride;
        const auto* panel = reinterpret_cast<const int8_t*>(bytes);
        const int64_t j = c % kPanelWidth;
        int32_t sum = 0;
        for (int64_t d = 0; d < a.dim; ++d) sum += q[d] * panel[(d / 4 * kPanelWidth + j) * 4 + d % 4];
        const float k_scale = reinterpret_cast<const float*>(panel + int8_panel_numbers(a.dim))[j];
        a.s[r * a.lds + c] = static_cast<float>(sum) * ((info.scale * a.scale) * k_scale);
      }
    }
  }

  static void pack_values(const PackValues& a) {
    int8_t* block = static_cast<int8_t*>(a.block);
    float* scales = reinterpret_cast<float*>(block + int8_values_numbers(a.columns));
    for (int64_t j = a.first; j < a.first + a.keys; ++j) {
      const char* bytes = static_cast<const char*>(a.rows) + (j - a.first) * a.token_stride;
      const auto* row = reinterpret_cast<const float*>(bytes);
      const RowScale quantise(largest_magnitude(row, a.dim));
      scales[j] = quantise.scale;
      for (int64_t c = 0; c < int8_values_numbers(a.columns) / kKeyBlock; ++c) {
        int8_t* group = block + c / kValueGroup * kValueGroup * kKeyBlock;
        group[(j / 4 * kValueGroup + c % kValueGroup) * 4 + j % 4] =
            c < a.columns ? quantise(row[a.column + c]) : int8_t{0};
      }
    }
  }

  static void value_packed(const ValueTile& a) {
    const auto* block = static_cast<const int8_t*>(a.v);
    const float* scales = reinterpret_cast<const float*>(block + int8_values_numbers(a.dim)) + a.first_key;
    for (int64_t r = 0; r < a.rows; ++r) {
      const float* w = a.w + r * a.ldw;
      float u[kKeyBlock];
      float largest = 0.0f;
      bool finite = true;
      for (int64_t j = 0; j < a.keys; ++j) {
        u[j] = w[j] * scales[j];
        finite = finite && std::fabs(u[j]) < std::numeric_limits<float>::infinity();
        if (u[j] > largest) largest = u[j];
      }
      const WeightScale quantise(largest, finite);
      uint8_t p[kKeyBlock];
      for (int64_t j = 0; j < a.keys; ++j) p[j] = quantise(u[j]);
      for (int64_t c = 0; c < a.dim; ++c) {
        const int8_t* group = block + c / kValueGroup * kValueGroup * kKeyBlock;
        int32_t sum = 0;
        for (int64_t j = 0; j < a.keys; ++j) {
          const int64_t key = a.first_key + j;
          sum += p[j] * group[(key / 4 * kValueGroup + c % kValueGroup) * 4 + key % 4];
        }
        float& o = a.o[r * a.ldo + c];
        const float before = a.alpha == nullptr ? o : a.alpha[r] * o;
        o = fma(static_cast<float>(sum), quantise.scale, before);
      }
    }
  }
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_DEFINITION_INT8_ATTENTION_H_
