// What the suites of slots share: rows in guarded memory, their comparison, and the definition's table.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

#include "dispatch/environment.h"
#include "dispatch/target.h"
#include "lib/contract/dtypes.h"
#include "lib/contract/ukernels.h"
#include "tests/support/indices.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn {
#ifdef SIMDATTN_HAVE_SCALAR_FMA
extern const UKernels kScalarKernels;
#endif

namespace test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr double kEps = 0x1p-24;  // half a unit in the last place, relative
// How far exp and tanh without fused multiply-add may be from the definition, relative. Each has at most 2 ulp of its
// own (slots_test.cc measures that), the definition 1 and 2.
inline constexpr double kExpApart = 3 * 2 * kEps;
inline constexpr double kTanhApart = 4 * 2 * kEps;

inline const char* const kTypeName[] = {"f32", "bf16", "f16"};

// ---------------------------------------------------------------------------------------------------------------------
// Buffers

/// Rows of a type with `stride` elements between them (0 and negative ones too), in guarded memory.
struct Rows {
  Guarded memory;
  DType dtype;
  int64_t rows;
  int64_t columns;
  int64_t stride;

  Rows(DType type, int64_t n_rows, int64_t n_columns, int64_t step, Guard guard)
      : memory(static_cast<size_t>(span(n_rows, n_columns, step) * size_of(type)), guard),
        dtype(type),
        rows(n_rows),
        columns(n_columns),
        stride(step) {
    std::memset(memory.data(), Guarded::kCanary, memory.size());
  }
  static int64_t span(int64_t rows, int64_t columns, int64_t stride) {
    return rows == 0 || columns == 0 ? 0 : (rows - 1) * std::abs(stride) + columns;
  }
  int64_t first() const { return stride < 0 && rows > 0 && columns > 0 ? (rows - 1) * -stride : 0; }
  void* data() const { return memory.data() + first() * size_of(dtype); }
  float* f32() const { return static_cast<float*>(data()); }
  int64_t stride_bytes() const { return stride * size_of(dtype); }
  float at(int64_t r, int64_t c) const { return get(data(), dtype, r * stride + c); }
  uint32_t bits(int64_t r, int64_t c) const {
    uint32_t result = 0;
    std::memcpy(&result, static_cast<char*>(data()) + (r * stride + c) * size_of(dtype),
                static_cast<size_t>(size_of(dtype)));
    return result;
  }
  void set(int64_t r, int64_t c, float x) const { put(data(), dtype, r * stride + c, x); }
  void fill(Random& random, Values values) const {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) set(r, c, number(random, values));
    }
  }
  /// True if what lies between the rows holds the pattern.
  bool gaps_intact() const {
    if (stride <= columns || columns == 0) return true;
    const auto* const bytes = memory.data();
    for (int64_t r = 0; r + 1 < rows; ++r) {
      for (int64_t b = (r * stride + columns) * size_of(dtype); b < (r + 1) * stride * size_of(dtype); ++b) {
        if (bytes[b] != Guarded::kCanary) return false;
      }
    }
    return true;
  }
};

inline int64_t input_stride(Random& random, int64_t columns) {
  switch (random.integer(0, 5)) {
    case 0: return 0;
    case 1: return -(columns + random.integer(0, 5));
    case 2: return columns + random.integer(1, 70);
    default: return columns;
  }
}
inline int64_t output_stride(Random& random, int64_t columns) {
  return columns + (random.coin() ? random.integer(1, 40) : 0);
}

inline Rows random_rows(Random& random, DType dtype, int64_t rows, int64_t columns, Values values) {
  Rows result(dtype, rows, columns, input_stride(random, columns), random.guard());
  result.fill(random, values);
  return result;
}
/// Strides that drivers use for their own f32 arrays.
inline Rows random_workspace(Random& random, int64_t rows, int64_t columns, Values values) {
  Rows result(DType::kF32, rows, columns, output_stride(random, columns), random.guard());
  result.fill(random, values);
  return result;
}
/// Rows of f32 in guarded memory, up to 40 numbers apart.
struct FloatRows {
  Guarded memory;
  int64_t stride;
  FloatRows(Random& random, int64_t rows, int64_t columns)
      : stride(columns + (random.coin() ? 0 : random.integer(1, 40))) {
    memory = Guarded(static_cast<size_t>(rows == 0 ? 0 : ((rows - 1) * stride + columns) * 4), random.guard());
    std::memset(memory.data(), Guarded::kCanary, memory.size());
  }
  FloatRows(Random& random, int64_t rows, int64_t columns, float size) : FloatRows(random, rows, columns) {
    for (const auto [r, c] : indices(rows, columns)) {
      at(r, c) = random.uniform() * size;
    }
  }
  float* data() const { return reinterpret_cast<float*>(memory.data()); }
  float& at(int64_t r, int64_t c) const { return data()[r * stride + c]; }
};

/// A copy of `r` with its own guards.
inline Rows copy_of(const Rows& r, Guard guard) {
  Rows result(r.dtype, r.rows, r.columns, r.stride, guard);
  std::memcpy(result.memory.data(), r.memory.data(), r.memory.size());
  return result;
}
/// Two equal outputs filled with the pattern: for the definition and for the target.
struct Outputs {
  Rows want;
  Rows got;
  Outputs(Random& random, DType dtype, int64_t rows, int64_t columns, int64_t stride)
      : want(dtype, rows, columns, stride, random.guard()), got(dtype, rows, columns, stride, random.guard()) {}
  Outputs(Random& random, DType dtype, int64_t rows, int64_t columns)
      : Outputs(random, dtype, rows, columns, output_stride(random, columns)) {}
};

// ---------------------------------------------------------------------------------------------------------------------
// Comparison

enum class NaN : uint8_t {
  kCanonical,  // the contract's NaN
  kAny,        // inside a computation that ends in a canonical one
};

/// How far the target's element (r, c) may be from the definition's; used for targets that are not exact only.
using Allowance = std::function<double(int64_t r, int64_t c)>;

/// Compares rows; an empty string if they agree.
inline std::string difference(const Rows& want, const Rows& got, NaN nan, bool exact, const Allowance& allowance) {
  const auto where = [&](int64_t r, int64_t c) {
    return " at row " + std::to_string(r) + " of " + std::to_string(want.rows) + ", column " + std::to_string(c) +
           " of " + std::to_string(want.columns) + ": " + std::to_string(got.at(r, c)) + " (" + hex(got.bits(r, c)) +
           "), definition " + std::to_string(want.at(r, c)) + " (" + hex(want.bits(r, c)) + ")";
  };
  for (const auto [r, c] : indices(want.rows, want.columns)) {
    if (want.bits(r, c) == got.bits(r, c)) continue;
    const float w = want.at(r, c);
    const float g = got.at(r, c);
    if (nan == NaN::kAny && w != w && g != g) continue;
    if (exact) return "bits differ" + where(r, c);
    if (w != w || g != g) return "NaN differs" + where(r, c);
    const double most = allowance(r, c);
    // A magnitude that is not finite says that the operands were not; equal infinities have equal bits.
    if (!(std::fabs(static_cast<double>(w) - static_cast<double>(g)) <= most) && std::isfinite(most)) {
      return "beyond the bound " + std::to_string(most) + where(r, c);
    }
  }
  if (!want.gaps_intact()) return "the definition wrote between rows";
  if (!got.gaps_intact()) return "wrote between rows";
  return "";
}
inline double exactly(int64_t, int64_t) { return 0; }

/// Where dimension d of key `lane` stands in a panel.
inline int64_t panel_element(DType dtype, int64_t d, int64_t lane) {
  return dtype == DType::kBF16 ? (d / 2 * kPanelWidth + lane) * 2 + d % 2 : d * kPanelWidth + lane;
}
/// Roundings of a dot product that is not fused, of elements x(d) and y(d), times a scale.
template <class X, class Y>
double dot_bound(double roundings, int64_t dim, float scale, const X& x, const Y& y) {
  double sum = 0;
  for (int64_t d = 0; d < dim; ++d) sum += std::fabs(static_cast<double>(x(d)) * static_cast<double>(y(d)));
  return (roundings * (kEps * sum + 0x1p-149) + 0x1p-149) * std::fabs(static_cast<double>(scale)) + 0x1p-149;
}

/// Query rows in the form that the tiles read.
inline Guarded prepared(const AttentionKernels& kernels, const Rows& q, Guard guard) {
  const int64_t bytes = kernels.query_bytes(q.columns);
  Guarded result(static_cast<size_t>(q.rows * bytes), guard);
  for (int64_t r = 0; r < q.rows; ++r) {
    kernels.prepare_query[index_of(q.dtype)](static_cast<const char*>(q.data()) + r * q.stride_bytes(),
                                             result.data() + r * bytes, q.columns);
  }
  return result;
}

/// The table of the target and that of the definition.
class SlotTest : public TargetTest {
 protected:
  SlotTest() {
    for (size_t i = 0; i < kArithmetics; ++i) {
      if (uk().attention[i].begin != nullptr) uk().attention[i].begin(&kept_[i]);
    }
  }
  ~SlotTest() override {
    for (size_t i = kArithmetics; i-- > 0;) {
      if (uk().attention[i].end != nullptr) uk().attention[i].end(kept_[i]);
    }
  }
  static const UKernels& uk() { return *target().kernels; }
  /// Random cases of every element type, until one fails.
  template <class F>
  static void for_each_type(uint64_t stream, int64_t n, const F& run) {
    for (size_t type = 0; type < kElementTypes; ++type) {
      Random random(seed() * 100 + stream + type);
      for (int64_t i = 0; i < cases(n) && !HasFatalFailure(); ++i) run(random, type, i);
    }
  }
  static const UKernels& definition() {
#ifdef SIMDATTN_HAVE_SCALAR_FMA
    // The scalar target itself may be the copy that was compiled with FMA instructions.
    if (&target() == &scalar_target()) return kScalarKernels;
#endif
    return *scalar_target().kernels;
  }

 private:
  Environment environment_;  // slots rely on it
  KeptRegisters kept_[kArithmetics];
};

/// The slots of f32 arithmetic, and those that every arithmetic shares.
class Slots : public SlotTest {
 protected:
  static const AttentionKernels& f32(const UKernels& t) { return t.attention[static_cast<size_t>(Arithmetic::kF32)]; }
  /// Values for case i. Overflow of an intermediate product depends on whether it is fused.
  static Values values(int64_t i) {
    constexpr Values kinds[] = {Values::kOrdinary, Values::kWide, Values::kSpecial, Values::kHuge};
    return kinds[i % (is_exact() ? 4 : 3)];
  }
  static std::string describe(int64_t i, size_t type, std::initializer_list<std::pair<const char*, int64_t>> numbers) {
    std::string result = "case " + std::to_string(i) + ", " + kTypeName[type];
    for (const auto& [key, value] : numbers) result += std::string(", ") + key + " " + std::to_string(value);
    return result;
  }
};

}  // namespace test
}  // namespace simdattn
