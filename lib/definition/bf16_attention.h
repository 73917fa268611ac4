// The definition of Arithmetic::kBF16: products of bf16 numbers, sums in f32, in the order of TDPBF16PS.
#ifndef SIMDATTN_LIB_DEFINITION_BF16_ATTENTION_H_
#define SIMDATTN_LIB_DEFINITION_BF16_ATTENTION_H_

#include <algorithm>
#include <cmath>

#include "lib/contract/dtypes.h"
#include "lib/contract/f32_operands.h"
#include "lib/contract/ukernels.h"
#include "lib/definition/flushed.h"
#include "lib/definition/softmax.h"

namespace simdattn {
namespace {

/// Numbers per group: one instruction's worth of pairs.
constexpr int64_t kBf16Group = 32;

/// One group: chains over the even and the odd numbers of it, from 0. Number i of the group is x(i) * y(i), i in [from, to).
template <class X, class Y>
float bf16_group(int64_t from, int64_t to, const X& x, const Y& y) {
  float chain[2] = {0.0f, 0.0f};
  for (int64_t i = from; i < to; ++i) chain[i % 2] = scalar::flushed_fma(x(i), y(i), chain[i % 2]);
  return scalar::flushed_add(chain[0], chain[1]);
}

/// What is multiplied. Rounding a number of bf16 does nothing.
inline float bf16_number(float x) { return to_f32(from_f32<bf16>(x)); }
inline float bf16_number(bf16 x) { return to_f32(x); }

/// The chains of kBF16 over f32 numbers that are bf16 ones, and over bf16.
struct Bf16Chains {
  static void round(const float* in, float* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = to_f32(from_f32<bf16>(in[i]));
  }

  /// panel_index(d, j): where dimension d of key j is.
  template <class T, class Index>
  static void score(const ScoreTile& a, const Index& panel_index) {
    for (int64_t r = 0; r < a.rows; ++r) {
      const float* q = reinterpret_cast<const float*>(static_cast<const char*>(a.q) + r * a.q_stride);
      for (int64_t c = 0; c < a.n_panels * kPanelWidth; ++c) {
        const char* bytes = static_cast<const char*>(a.panels) + c / kPanelWidth * a.panel_stride;
        const T* panel = reinterpret_cast<const T*>(bytes);
        float s = 0.0f;
        for (int64_t g = 0; g < a.dim; g += kBf16Group) {
          const float sum = bf16_group(
              0, std::min(kBf16Group, a.dim - g), [&](int64_t i) { return q[g + i]; },
              [&](int64_t i) { return bf16_number(panel[panel_index(g + i, c % kPanelWidth)]); });
          s = scalar::flushed_add(s, sum);
        }
        a.s[r * a.lds + c] = scalar::flushed_fma(s, a.scale, 0.0f);  // a score of -0 becomes +0
      }
    }
  }
  static void score_tile(const ScoreTile& a) {
    score<float>(a, [](int64_t d, int64_t j) { return d * kPanelWidth + j; });
  }
  static void score_tile_bf16(const ScoreTile& a) {
    score<bf16>(a, [](int64_t d, int64_t j) { return (d / 2 * kPanelWidth + j) * 2 + d % 2; });
  }

  template <class T>
  static void values(const ValueTile& a) {
    for (int64_t r = 0; r < a.rows; ++r) {
      const float* w = a.w + r * a.ldw;
      for (int64_t c = 0; c < a.dim; ++c) {
        const char* column = static_cast<const char*>(a.v) + c / kValueGroup * a.group_stride;
        float sum = a.o[r * a.ldo + c];
        if (a.alpha != nullptr) sum = scalar::flushed_fma(a.alpha[r], sum, 0.0f);
        // Groups are counted from the first key of the block.
        for (int64_t j = 0; j < a.keys;) {
          const int64_t first = (a.first_key + j) % kBf16Group;
          const int64_t last = std::min(kBf16Group, first + a.keys - j);
          const float add = bf16_group(
              first, last, [&](int64_t i) { return w[j + i - first]; },
              [&](int64_t i) {
                const char* key = column + (j + i - first) * a.key_stride;
                return bf16_number(reinterpret_cast<const T*>(key)[c % kValueGroup]);
              });
          sum = scalar::flushed_add(sum, add);
          j += last - first;
        }
        a.o[r * a.ldo + c] = sum;
      }
    }
  }
  static void value_tile(const ValueTile& a) { values<float>(a); }
  static constexpr auto value_tile_f32 = value_tile;
  static void value_tile_bf16(const ValueTile& a) { values<bf16>(a); }

  /// Weights are rounded to bf16, and the sum adds what is used.
  static void softmax_tile(const SoftmaxTile& a) {
    scalar::weigh(a, [](float w) { return to_f32(from_f32<bf16>(w)); });
  }
};

}  // namespace
}  // namespace simdattn

#endif  // SIMDATTN_LIB_DEFINITION_BF16_ATTENTION_H_
