// What the suites of kBF16's slots share: random operands, comparisons of rows.
#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/kernels/slots.h"
#include "tests/support/records.h"

namespace simdattn::test {

constexpr double kSmallest = 0x1p-126;

/// Numbers of a case. Products of tiny ones lie around the smallest normal number, where results are flushed or not.
enum class Class : uint8_t { kOrdinary, kWide, kTiny, kSpecial, kHuge };
constexpr Class kClasses[] = {Class::kOrdinary, Class::kWide, Class::kTiny, Class::kSpecial, Class::kHuge};

inline float number_of(Random& random, Class c) {
  switch (c) {
    case Class::kOrdinary: return number(random, Values::kOrdinary);
    case Class::kWide: return number(random, Values::kWide);
    case Class::kSpecial: return number(random, Values::kSpecial);
    case Class::kHuge: return number(random, Values::kHuge);
    default: break;
  }
  if (random.one_in(20)) return std::ldexp(random.uniform(), static_cast<int>(random.integer(-149, -120)));
  return std::ldexp(random.uniform(), static_cast<int>(random.integer(-66, -60)));
}

/// Numbers of a group of weights that pairs of bf16 hold, in the first half of the group's floats.
constexpr int64_t kNarrowGroup = 32;

/// What it has of n weights, apart from the numbers in the second halves. in_order: as AMX takes them. VDPBF16PS takes
/// of four numbers the third, first, fourth and second one.
inline std::vector<float> pairs_of_weights(const float* w, int64_t n, bool in_order) {
  constexpr int64_t kPlaces[] = {1, 3, 0, 2};
  const int64_t groups = (n + kNarrowGroup - 1) / kNarrowGroup;
  std::vector<float> out(static_cast<size_t>(groups * kNarrowGroup));
  for (int64_t i = 0; i < n; ++i) {
    const bf16 x = from_f32<bf16>(w[i]);
    const int64_t in_group = i % kNarrowGroup;
    const int64_t place = in_order ? in_group : in_group / 4 * 4 + kPlaces[in_group % 4];
    std::memcpy(reinterpret_cast<char*>(&out[static_cast<size_t>(i - in_group)]) + place * 2, &x, 2);
  }
  return out;
}

class Bf16Slots : public SlotTest {
 protected:
  /// See pairs_of_weights().
  static bool has_narrow_weights() { return kernels().scales_in_softmax; }
  static std::vector<float> narrow_weights(const float* w, int64_t n) {
    return pairs_of_weights(w, n, kernels().begin != nullptr);
  }
  static const AttentionKernels& of(const UKernels& t) { return t.attention[index_of(Arithmetic::kBF16)]; }
  static const AttentionKernels& definition() { return of(SlotTest::definition()); }
  static const AttentionKernels& kernels() { return of(uk()); }
  /// Overflow of an intermediate product depends on whether it is fused.
  static Class class_of(int64_t i) { return kClasses[i % (is_exact() ? 5 : 4)]; }
  /// 64-bit ARM flushes before it rounds (docs/numerics.md, *kBF16*): a sum of tiny products may lose 2^-126.
  static bool same_bits(int64_t i) { return is_exact() && !(kFlushesBeforeRounding && class_of(i) == Class::kTiny); }
  static int64_t rows_of(Random& random) { return random.coin() ? random.integer(0, 9) : random.integer(0, 33); }

  struct Matrix : Rows {
    Matrix(Random& random, DType type, int64_t n_rows, int64_t n_columns, Class c)
        : Rows(type, n_rows, n_columns, n_columns + (random.coin() ? random.integer(0, 70) : 0), random.guard()) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t e = 0; e < columns; ++e) set(r, e, number_of(random, c));
      }
    }
    /// What kBF16 multiplies.
    double operand(int64_t r, int64_t c) const { return static_cast<double>(to_f32(from_f32<bf16>(at(r, c)))); }
  };
  static Guarded copy_of(const Guarded& from, Random& random) {
    Guarded copy(from.size(), random.guard());
    std::memcpy(copy.data(), from.data(), from.size());
    return copy;
  }

  /// Compares n rows of f32, all bits between them too. NaN is NaN here: later steps make it canonical; and the sign of
  /// a zero is left out where they leave it out.
  template <class Allowance>
  static std::string difference(const Guarded& want, const Guarded& got, int64_t stride, bool exact,
                                const Allowance& allowance, bool zeros_have_signs = true) {
    const int64_t n = static_cast<int64_t>(want.size() / 4);
    if (std::memcmp(want.data(), got.data(), want.size()) == 0) return "";
    for (int64_t i = 0; i < n; ++i) {
      const float w = get(want.data(), DType::kF32, i), g = get(got.data(), DType::kF32, i);
      if (std::bit_cast<uint32_t>(w) == std::bit_cast<uint32_t>(g) || (is_nan(w) && is_nan(g))) continue;
      if (!zeros_have_signs && w == 0 && g == 0) continue;
      if (!exact) {
        const double most = allowance(i / stride, i % stride);
        if (!std::isfinite(most) || std::fabs(static_cast<double>(w) - static_cast<double>(g)) <= most) continue;
      }
      char text[200];
      std::snprintf(text, sizeof text, "row %lld, column %lld: %a (%08x), definition %a (%08x)",
                    static_cast<long long>(i / stride), static_cast<long long>(i % stride), static_cast<double>(g),
                    std::bit_cast<uint32_t>(g), static_cast<double>(w), std::bit_cast<uint32_t>(w));
      return text;
    }
    return "";
  }
  static std::string text(std::initializer_list<std::pair<const char*, int64_t>> numbers) {
    std::string result;
    for (const auto& [key, value] : numbers) result += std::string(key) + " " + std::to_string(value) + ", ";
    return result;
  }
};

/// The rows of a tile whose first key is `first` of its block, as the target's value slots take them. Returns the
/// beginning.
inline const float* prepared(const AttentionKernels& kernels, int64_t first, ValueTile& tile,
                             std::vector<float>& memory) {
  const int64_t before = first % kNarrowGroup, n = before + tile.keys;
  const int64_t ld = (n + kNarrowGroup - 1) / kNarrowGroup * kNarrowGroup;
  memory.assign(static_cast<size_t>(tile.rows * ld + kNarrowGroup), 0.0f);
  std::vector<float> row(static_cast<size_t>(n + 1));
  for (int64_t r = 0; r < tile.rows; ++r) {
    std::copy_n(tile.w + r * tile.ldw, tile.keys, row.begin() + before);
    kernels.prepare_weights(row.data(), memory.data() + r * ld, n);
  }
  tile.ldw = ld;
  return memory.data() + before;
}
}  // namespace simdattn::test
