// Every slot of every runnable target against the definition: bit by bit where the target has fused multiply-add, else
// within a bound derived from the operation count. Shapes, strides, alignments and values are random; buffers lie
// against inaccessible pages and outputs with strides keep a pattern between their rows.
//
// The exhaustive sweeps of exp and tanh take minutes:
//   slots_test --gtest_also_run_disabled_tests --gtest_filter='*Every*'
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "dispatch/target.h"
#include "lib/dtypes.h"
#include "lib/math_constants.h"
#include "lib/ukernels.h"
#include "tests/support/guarded.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn {
#ifdef SIMDATTN_HAVE_SCALAR_FMA
extern const UKernels kScalarKernels;
#endif

namespace test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr double kEps = 0x1p-24;  // half a unit in the last place, relative
// How far exp and tanh without fused multiply-add may be from the definition, relative. Each has at most 2 ulp of its
// own (the suite below measures that), the definition 1 and 2.
constexpr double kExpApart = 3 * 2 * kEps;
constexpr double kTanhApart = 4 * 2 * kEps;

const char* const kTypeName[] = {"f32", "bf16", "f16"};

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

int64_t input_stride(Random& random, int64_t columns) {
  switch (random.integer(0, 5)) {
    case 0: return 0;
    case 1: return -(columns + random.integer(0, 5));
    case 2: return columns + random.integer(1, 70);
    default: return columns;
  }
}
int64_t output_stride(Random& random, int64_t columns) { return columns + (random.coin() ? random.integer(1, 40) : 0); }

Rows random_rows(Random& random, DType dtype, int64_t rows, int64_t columns, Values values) {
  Rows result(dtype, rows, columns, input_stride(random, columns), random.guard());
  result.fill(random, values);
  return result;
}
/// Strides that drivers use for their own f32 arrays.
Rows random_workspace(Random& random, int64_t rows, int64_t columns, Values values) {
  Rows result(DType::kF32, rows, columns, output_stride(random, columns), random.guard());
  result.fill(random, values);
  return result;
}
/// A copy of `r` with its own guards.
Rows copy_of(const Rows& r, Guard guard) {
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

std::string hex(uint32_t bits) {
  char text[16];
  std::snprintf(text, sizeof text, "%08x", bits);
  return text;
}

/// How far the target's element (r, c) may be from the definition's; used for targets that are not exact only.
using Allowance = std::function<double(int64_t r, int64_t c)>;

/// Compares rows; an empty string if they agree.
std::string difference(const Rows& want, const Rows& got, NaN nan, bool exact, const Allowance& allowance) {
  const auto where = [&](int64_t r, int64_t c) {
    return " at row " + std::to_string(r) + " of " + std::to_string(want.rows) + ", column " + std::to_string(c) +
           " of " + std::to_string(want.columns) + ": " + std::to_string(got.at(r, c)) + " (" + hex(got.bits(r, c)) +
           "), definition " + std::to_string(want.at(r, c)) + " (" + hex(want.bits(r, c)) + ")";
  };
  for (int64_t r = 0; r < want.rows; ++r) {
    for (int64_t c = 0; c < want.columns; ++c) {
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
  }
  if (!want.gaps_intact()) return "the definition wrote between rows";
  if (!got.gaps_intact()) return "wrote between rows";
  return "";
}
double exactly(int64_t, int64_t) { return 0; }

class Slots : public TargetTest {
 protected:
  static const UKernels& uk() { return *target().kernels; }
  static const UKernels& definition() {
#ifdef SIMDATTN_HAVE_SCALAR_FMA
    // The scalar target itself may be the copy that was compiled with FMA instructions.
    if (&target() == &scalar_target()) return kScalarKernels;
#endif
    return *scalar_target().kernels;
  }
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

TEST_P(Slots, TableIsComplete) {
  const UKernels& t = uk();
  for (size_t x = 0; x < kElementTypes; ++x) {
    EXPECT_NE(t.score_rows[x], nullptr) << kTypeName[x];
    EXPECT_NE(t.widen[x], nullptr) << kTypeName[x];
    EXPECT_NE(t.finish[x], nullptr) << kTypeName[x];
    EXPECT_NE(t.gaussian_rows[x], nullptr) << kTypeName[x];
    EXPECT_NE(t.additive_rows[x], nullptr) << kTypeName[x];
    EXPECT_NE(t.rope_heads[x], nullptr) << kTypeName[x];
    EXPECT_NE(t.add_rows[x], nullptr) << kTypeName[x];
  }
  for (size_t x = 0; x < kKvTypes; ++x) {
    const KvKernels& kv = t.kv[x];
    EXPECT_NE(kv.all_finite, nullptr) << x;
    EXPECT_NE(kv.load_rows, nullptr) << x;
    if (!is_read_only(static_cast<KvType>(x))) {
      EXPECT_NE(kv.store_rows, nullptr) << x;
      EXPECT_NE(kv.store_panels, nullptr) << x;
      EXPECT_NE(kv.load_panels, nullptr) << x;
    }
    if (x < kElementTypes) {
      EXPECT_NE(kv.rotate_columns, nullptr) << x;
    }
  }
  EXPECT_NE(t.softmax_rows, nullptr);
  EXPECT_NE(t.modify_row, nullptr);
  for (const AttentionKernels& a : t.attention) {
    EXPECT_GE(a.tile_rows, 1);
    EXPECT_NE(a.query_bytes, nullptr);
    EXPECT_NE(a.values_bytes, nullptr);
    for (size_t x = 0; x < kElementTypes; ++x) EXPECT_NE(a.prepare_query[x], nullptr) << x;
    // A null slot is replaced by f32 rows and the slots of f32 storage.
    for (size_t x = 0; x < kKvTypes; ++x) {
      EXPECT_NE(a.kv[x].panel_bytes, nullptr) << x;
      EXPECT_NE(a.kv[x].score_packed, nullptr) << x;
    }
    EXPECT_NE(a.kv[slot(KvType::kF32)].pack_keys, nullptr);
    EXPECT_NE(a.kv[slot(KvType::kF32)].pack_values, nullptr);
    EXPECT_NE(a.softmax_tile, nullptr);
    EXPECT_NE(a.value_packed, nullptr);
  }
  EXPECT_NE(t.hadamard_sums, nullptr);
  EXPECT_NE(t.any_zero, nullptr);
  EXPECT_NE(t.merge, nullptr);
  EXPECT_NE(t.exp, nullptr);
}

// ---------------------------------------------------------------------------------------------------------------------
// Scores

TEST_P(Slots, ScoreRows) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    Random random(seed() * 100 + type);
    for (int64_t i = 0; i < cases(1500); ++i) {
      const int64_t dim = random.size(1, 300);
      // One query: now and then keys on both sides of 2 MiB, beyond which a kernel may be another one.
      const bool is_long = i % 25 == 3 && dim > 16;
      const int64_t n_q = is_long ? 1 : random.integer(0, 9);
      const int64_t n_k = is_long    ? (int64_t{1} << 19) / dim + random.integer(0, 1)
                          : n_q == 1 ? random.integer(0, 2 * 8192 / dim + 1) % 1000
                                     : random.size(0, dim > 100 ? 40 : 100);
      const Rows q = random_workspace(random, n_q, dim, values(i));
      const Rows k = random_rows(random, static_cast<DType>(type), n_k, dim, values(i));
      const float scale = random.coin() ? 1.0f : number(random, Values::kWide);
      Outputs s(random, DType::kF32, n_q, n_k);
      ScoreRows a = {q.f32(), q.stride, n_q, k.data(), k.stride, n_k, dim, scale, s.want.f32(), s.want.stride};
      a.fetch = any_fetch(random);
      definition().score_rows[type](a);
      a.s = s.got.f32();
      uk().score_rows[type](a);
      const std::string problem = difference(s.want, s.got, NaN::kCanonical, is_exact(), [&](int64_t r, int64_t c) {
        double sum = 0;
        for (int64_t d = 0; d < dim; ++d)
          sum += std::fabs(static_cast<double>(q.at(r, d)) * static_cast<double>(k.at(c, d)));
        // Roundings: fused, one per element of a partial sum, four folds and the scale; unfused, one more per element.
        const double roundings = 3.0 * static_cast<double>((dim + 15) / 16) + 10;
        return (roundings * (kEps * sum + 0x1p-149) + 0x1p-149) * std::fabs(static_cast<double>(scale)) + 0x1p-149;
      });
      ASSERT_EQ(problem, "") << describe(i, type, {{"dim", dim}, {"n_q", n_q}, {"n_k", n_k}, {"ldk", k.stride}});
    }
  }
}

/// Gaussian (`additive` false) or additive scores of random rows.
void check_other_scores(const UKernels& uk, const UKernels& definition, bool is_exact, bool additive, size_t type,
                        Random& random, Values values, const std::string& message) {
  const int64_t dim = random.size(1, 300);
  const int64_t n_q = random.integer(0, 9);
  const int64_t n_k = random.size(0, dim > 100 ? 40 : 100);
  const Rows q = random_workspace(random, n_q, dim, values);
  const Rows k = random_rows(random, static_cast<DType>(type), n_k, dim, values);
  const Rows w = random_rows(random, DType::kF32, n_q, dim, values);
  const float scale = random.coin() ? -0.5f : number(random, Values::kWide);
  Outputs s(random, DType::kF32, n_q, n_k);
  AdditiveRows a = {
      {q.f32(), q.stride, n_q, k.data(), k.stride, n_k, dim, scale, s.want.f32(), s.want.stride}, w.f32(), w.stride};
  additive ? definition.additive_rows[type](a) : definition.gaussian_rows[type](a.rows);
  a.rows.s = s.got.f32();
  additive ? uk.additive_rows[type](a) : uk.gaussian_rows[type](a.rows);
  const std::string problem = difference(s.want, s.got, NaN::kCanonical, is_exact, [&](int64_t r, int64_t c) {
    double sum = 0;
    for (int64_t d = 0; d < dim; ++d) {
      const double x = static_cast<double>(q.at(r, d)), y = static_cast<double>(k.at(c, d));
      sum += additive ? std::fabs(static_cast<double>(w.at(r, d))) : (x - y) * (x - y);
    }
    const double factor = additive ? 1 : std::fabs(static_cast<double>(scale));
    // As for the dot product, and a subtraction or the two hyperbolic tangents.
    const double roundings = 3.0 * static_cast<double>((dim + 15) / 16) + 14 + (additive ? kTanhApart / kEps : 0);
    return (roundings * (kEps * sum + 0x1p-149) + 0x1p-149) * factor + 0x1p-149;
  });
  ASSERT_EQ(problem, "") << message << ", additive " << additive << ", dim " << dim << ", n_q " << n_q << ", n_k "
                         << n_k << ", ldk " << k.stride << ", ldw " << w.stride;
}

TEST_P(Slots, GaussianRows) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    Random random(seed() * 100 + 200 + type);
    for (int64_t i = 0; i < cases(1000); ++i) {
      check_other_scores(uk(), definition(), is_exact(), false, type, random, values(i), describe(i, type, {}));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Slots, AdditiveRows) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    Random random(seed() * 100 + 210 + type);
    for (int64_t i = 0; i < cases(600); ++i) {
      check_other_scores(uk(), definition(), is_exact(), true, type, random, values(i), describe(i, type, {}));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(Slots, ScoreTile) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    Random random(seed() * 100 + 10 + type);
    const DType dtype = static_cast<DType>(type);
    for (int64_t i = 0; i < cases(1000); ++i) {
      const int64_t dim = random.size(1, 200);
      const int64_t rows = random.integer(0, random.coin() ? f32(uk()).tile_rows : 33);
      const int64_t n_panels = random.integer(0, dim > 100 ? 3 : 8);
      const Rows q = random_workspace(random, rows, dim, values(i));
      const int64_t panel = panel_bytes(kv_type_of(dtype), dim) / size_of(dtype);
      const Rows panels = random_rows(random, dtype, n_panels, panel, values(i));
      const float scale = random.coin() ? 1.0f : number(random, Values::kWide);
      Outputs s(random, DType::kF32, rows, n_panels * kPanelWidth);
      ScoreTile a = {};
      a.q = q.data();
      a.q_stride = q.stride_bytes();
      a.rows = rows;
      a.panels = panels.data();
      a.panel_stride = panels.stride_bytes();
      a.n_panels = n_panels;
      a.dim = dim;
      a.scale = scale;
      a.s = s.want.f32();
      a.lds = s.want.stride;
      a.fetch = any_fetch(random);
      f32(definition()).kv[type].score_tile(a);
      a.s = s.got.f32();
      a.half_last = random.coin();
      f32(uk()).kv[type].score_tile(a);
      if (a.half_last && n_panels > 0) {
        for (int64_t r = 0; r < rows; ++r) {
          std::copy_n(s.want.f32() + r * a.lds + n_panels * kPanelWidth - kHalfPanel, kHalfPanel,
                      s.got.f32() + r * a.lds + n_panels * kPanelWidth - kHalfPanel);
        }
      }
      const std::string problem = difference(s.want, s.got, NaN::kAny, is_exact(), [&](int64_t r, int64_t c) {
        double sum = 0;
        for (int64_t d = 0; d < dim; ++d) {
          const int64_t lane = c % kPanelWidth;
          const int64_t e = dtype == DType::kBF16 ? (d / 2 * kPanelWidth + lane) * 2 + d % 2 : d * kPanelWidth + lane;
          sum += std::fabs(static_cast<double>(q.at(r, d)) * static_cast<double>(panels.at(c / kPanelWidth, e)));
        }
        const double roundings = 3.0 * static_cast<double>(dim) + 2;
        return (roundings * (kEps * sum + 0x1p-149) + 0x1p-149) * std::fabs(static_cast<double>(scale)) + 0x1p-149;
      });
      ASSERT_EQ(problem, "") << describe(i, type,
                                         {{"dim", dim},
                                          {"rows", rows},
                                          {"n_panels", n_panels},
                                          {"half_last", a.half_last},
                                          {"panel_stride", panels.stride},
                                          {"lds", a.lds}});
    }
  }
}

/// Keys in rows, against the definition's panels of the same keys.
TEST_P(Slots, ScoreKeyRows) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    const KvOperands& own = f32(uk()).kv[type];
    if (own.score_rows == nullptr) continue;  // optional: they are packed
    const KvOperands& other = f32(definition()).kv[type];
    Random random(seed() * 100 + 15 + type);
    const DType dtype = static_cast<DType>(type);
    for (int64_t i = 0; i < cases(600); ++i) {
      const int64_t dim = random.integer(1, random.coin() ? 9 : kMostDirectRowDims / kDirectRowDims) * kDirectRowDims;
      ASSERT_TRUE(has_direct_rows(dim));
      const int64_t rows = random.integer(0, kMostScoreRows);
      const int64_t n_panels = random.integer(0, dim > 100 ? 3 : 8);
      const Rows q = random_workspace(random, rows, dim, values(i));
      const Rows k = random_rows(random, dtype, n_panels * kPanelWidth, dim, values(i));
      Outputs s(random, DType::kF32, rows, n_panels * kPanelWidth);
      ScoreTile a = {};
      a.q = q.data();
      a.q_stride = q.stride_bytes();
      a.rows = rows;
      a.n_panels = n_panels;
      a.dim = dim;
      a.scale = random.coin() ? 1.0f : number(random, Values::kWide);
      a.lds = s.want.stride;
      a.fetch = any_fetch(random);
      a.keys_at_once = random.coin() ? kPanelWidth : kPanelWidth / 2;
      std::vector<float> panels(static_cast<size_t>(n_panels * kPanelWidth * dim));
      for (int64_t p = 0; p < n_panels; ++p) {
        other.pack_keys({.from = static_cast<const char*>(k.data()) + p * kPanelWidth * k.stride_bytes(),
                         .token_stride = k.stride_bytes(),
                         .keys = kPanelWidth,
                         .dim = dim,
                         .panel = panels.data() + p * kPanelWidth * dim,
                         .stream = false});
      }
      a.panels = panels.data();
      a.panel_stride = kPanelWidth * dim * 4;
      a.s = s.want.f32();
      other.score_packed(a);
      a.panels = k.data();
      a.panel_stride = k.stride_bytes();
      a.s = s.got.f32();
      own.score_rows(a);
      const std::string problem = difference(s.want, s.got, NaN::kAny, is_exact(), [&](int64_t r, int64_t c) {
        double sum = 0;
        for (int64_t d = 0; d < dim; ++d)
          sum += std::fabs(static_cast<double>(q.at(r, d)) * static_cast<double>(k.at(c, d)));
        const double roundings = 3.0 * static_cast<double>(dim) + 2;
        return (roundings * (kEps * sum + 0x1p-149) + 0x1p-149) * std::fabs(static_cast<double>(a.scale)) + 0x1p-149;
      });
      ASSERT_EQ(problem, "") << describe(
          i, type, {{"dim", dim}, {"rows", rows}, {"n_panels", n_panels}, {"stride", k.stride}, {"lds", a.lds}});
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Softmax

TEST_P(Slots, SoftmaxRows) {
  Random random(seed() * 100 + 20);
  for (int64_t i = 0; i < cases(4000); ++i) {
    const int64_t n = random.size(0, 700);
    const int64_t rows = random.integer(0, n > 100 ? 5 : 11);
    int64_t lo = 0, hi = n;
    if (random.coin()) {
      lo = random.integer(0, n);
      hi = random.integer(lo, n);
    }
    // The interval of the last row, too, is inside of the row.
    const auto random_step = [&](int64_t begin) {
      const int64_t step = random.integer(-2, 2);
      const int64_t end = begin + (rows - 1) * step;
      return end >= 0 && end <= n ? step : 0;
    };
    const int64_t lo_step = random.coin() ? random_step(lo) : 0;
    const int64_t hi_step = random.coin() ? random_step(hi) : 0;
    const bool in_place = random.one_in(3);
    const Rows x =
        in_place ? random_workspace(random, rows, n, values(i)) : random_rows(random, DType::kF32, rows, n, values(i));
    // Scores of real attention, rows of -inf, and lone NaN.
    if (random.coin()) {
      for (int64_t r = 0; r < rows; ++r) {
        const float spread = random.of({0.0f, 1.0f, 10.0f, 100.0f});
        for (int64_t c = 0; c < n; ++c) x.set(r, c, random.one_in(20) ? -kInf : spread * random.uniform());
        if (random.one_in(6))
          for (int64_t c = 0; c < n; ++c) x.set(r, c, -kInf);
        if (random.one_in(6) && n > 0) x.set(r, random.integer(0, n - 1), std::nanf("7"));
        if (random.one_in(6) && n > 0) x.set(r, random.integer(0, n - 1), kInf);
      }
    }
    const float scale = random.coin() ? 1.0f : number(random, Values::kOrdinary);
    const float sink = random.one_in(3) ? number(random, values(i)) : -kInf;
    Outputs y(random, DType::kF32, rows, n, in_place ? x.stride : output_stride(random, n));
    Outputs state(random, DType::kF32, 2, rows);
    const bool want_state = random.coin();
    SoftmaxRows a = {x.f32(), x.stride, nullptr, y.want.stride, rows,    n,       lo,     hi,
                     lo_step, hi_step,  scale,   sink,          nullptr, nullptr, nullptr};
    Guarded known(static_cast<size_t>(rows) * 4, random.guard());
    if (random.one_in(3)) {
      a.scale = 1.0f;
      a.known_max = reinterpret_cast<float*>(known.data());
      for (int64_t r = 0; r < rows; ++r) {
        float m = -kInf;
        for (int64_t c = lo + r * lo_step; c < hi + r * hi_step; ++c) m = x.at(r, c) > m ? x.at(r, c) : m;
        std::memcpy(known.data() + 4 * r, &m, 4);
      }
    }
    for (const bool is_definition : {true, false}) {
      const Rows& out = is_definition ? y.want : y.got;
      const Rows& ml = is_definition ? state.want : state.got;
      if (in_place) {
        std::memcpy(out.memory.data(), x.memory.data(), x.memory.size());
        a.x = out.f32();
      }
      a.y = out.f32();
      a.max = want_state ? ml.f32() : nullptr;
      a.sum = want_state ? ml.f32() + ml.stride : nullptr;
      (is_definition ? definition() : uk()).softmax_rows(a);
    }
    const auto message = [&] {
      return describe(i, 0,
                      {{"rows", rows},
                       {"n", n},
                       {"lo", lo},
                       {"hi", hi},
                       {"lo_step", lo_step},
                       {"hi_step", hi_step},
                       {"ldx", x.stride},
                       {"in_place", in_place},
                       {"known", a.known_max != nullptr}}) +
             ", sink " + std::to_string(sink);
    };
    // Numerator, denominator, and the two roundings of the reciprocal and the product.
    const std::string problem = difference(y.want, y.got, NaN::kCanonical, is_exact(), [&](int64_t r, int64_t c) {
      return static_cast<double>(y.want.at(r, c)) * (2 * kExpApart + 4 * kEps) + 0x1p-148;
    });
    ASSERT_EQ(problem, "") << message();
    if (want_state) {
      const std::string state_problem =
          difference(state.want, state.got, NaN::kCanonical, is_exact(), [&](int64_t r, int64_t c) {
            return r == 0 ? 0.0 : static_cast<double>(state.want.at(r, c)) * (kExpApart + 2 * kEps);
          });
      ASSERT_EQ(state_problem, "") << "max and sum, " << message();
    }
  }
}

TEST_P(Slots, SoftmaxTile) {
  Random random(seed() * 100 + 30);
  for (int64_t i = 0; i < cases(3000); ++i) {
    const int64_t columns = 16 * random.integer(0, kKeyBlock / 16);
    const int64_t rows = random.integer(0, random.coin() ? f32(uk()).tile_rows : 40);
    Rows s = random_workspace(random, rows, columns, values(i));
    Rows state = random_workspace(random, 3, rows, Values::kOrdinary);  // max, sum, alpha
    std::vector<int32_t> bounds;
    Guarded lo(static_cast<size_t>(rows) * 4, random.guard());
    Guarded hi(static_cast<size_t>(rows) * 4, random.guard());
    for (int64_t r = 0; r < rows; ++r) {
      int32_t l = 0, h = static_cast<int32_t>(columns);
      if (random.coin()) {
        l = static_cast<int32_t>(random.integer(0, columns));
        h = static_cast<int32_t>(random.integer(0, columns));
        if (l > h && !random.one_in(4)) std::swap(l, h);
      }
      std::memcpy(lo.data() + 4 * r, &l, 4);
      std::memcpy(hi.data() + 4 * r, &h, 4);
      if (random.coin()) {
        const float spread = random.of({1.0f, 30.0f, 200.0f});
        for (int64_t c = 0; c < columns; ++c) {
          s.set(r, c, c >= l && c < h ? (random.one_in(30) ? -kInf : spread * random.uniform()) : std::nanf("5"));
        }
        if (random.one_in(8))
          for (int64_t c = 0; c < columns; ++c) s.set(r, c, -kInf);
      }
      // The state of a row: nothing seen yet, a sink, blocks seen.
      state.set(0, r, random.coin() ? -kInf : 20 * random.uniform());
      state.set(1, r, state.at(0, r) == -kInf ? 0.0f : 1.0f + 100 * std::fabs(random.uniform()));
      if (random.one_in(20)) state.set(1, r, std::nanf("3"));
      if (random.one_in(20)) state.set(0, r, kInf);
    }
    const Rows s_want = copy_of(s, random.guard());
    const Rows state_want = copy_of(state, random.guard());
    const auto call = [&](const UKernels& table, const Rows& weights, const Rows& mla) {
      f32(table).softmax_tile({weights.f32(), weights.stride, rows, columns,
                               reinterpret_cast<const int32_t*>(lo.data()), reinterpret_cast<const int32_t*>(hi.data()),
                               mla.f32(), mla.f32() + mla.stride, mla.f32() + 2 * mla.stride});
    };
    const Rows before = copy_of(state, random.guard());
    call(definition(), s_want, state_want);
    call(uk(), s, state);
    const auto message = [&] { return describe(i, 0, {{"rows", rows}, {"columns", columns}, {"lds", s.stride}}); };
    const std::string problem = difference(s_want, s, NaN::kAny, is_exact(), [&](int64_t r, int64_t c) {
      return static_cast<double>(s_want.at(r, c)) * kExpApart;
    });
    ASSERT_EQ(problem, "") << message();
    const std::string state_problem = difference(state_want, state, NaN::kAny, is_exact(), [&](int64_t r, int64_t c) {
      // The maximum has no rounding; alpha is an exponential; the sum is one of exponentials plus a product.
      if (r == 0) return 0.0;
      if (r == 2) return static_cast<double>(state_want.at(r, c)) * kExpApart;
      return static_cast<double>(state_want.at(1, c)) * (kExpApart + 4 * kEps);
    });
    ASSERT_EQ(state_problem, "") << "max, sum, alpha, " << message();
  }
}

TEST_P(Slots, ModifyRow) {
  Random random(seed() * 100 + 40);
  for (int64_t i = 0; i < cases(6000); ++i) {
    const int64_t n = random.size(0, 300);
    const int64_t lo = random.coin() ? 0 : random.integer(0, n);
    const int64_t hi = random.coin() ? n : random.integer(lo, n);
    const int64_t first_key = random.coin() ? 0 : random.integer(0, 5000);
    const bool in_place = random.coin();
    ModifyRow a = {};
    a.first_key = first_key;
    a.lo = lo;
    a.hi = hi;
    a.scale = random.coin() ? 1.0f : number(random, Values::kWide);
    a.note_masked = random.coin();
    RowModifiers& m = a.row;
    if (random.coin()) m.softcap = random.of({0.5f, 5.0f, 30.0f, 50.0f, 1e-3f, 1e30f});
    if (random.coin()) m.slope = random.of({0.25f, -0.125f, 0.7071f, 1e-8f, 3.0f});
    m.position = static_cast<int32_t>(
        random.of<int64_t>({first_key + hi, 0, -5, random.integer(0, 6000), int64_t{1} << 30, -(int64_t{1} << 30)}));
    // Only keys of [lo, hi) may be read: the arrays hold no others, and the pointers are where key 0 would be.
    const int64_t count = hi - lo;
    const int64_t skipped = first_key + lo;
    m.bias_dtype = random.storage();
    m.bias_scale = random.coin() ? 1.0f : random.of({0.0f, -0.5f, 0.7071f, -3.0f, 1e30f});
    Guarded bias = random_buffer(m.bias_dtype, count, random, values(i));
    for (int64_t c = 0; c < count; ++c)
      if (random.one_in(9)) put(bias.data(), m.bias_dtype, c, -kInf);
    Guarded keep(static_cast<size_t>(count), random.guard());
    for (int64_t c = 0; c < count; ++c)
      keep.data()[c] = random.one_in(4) ? 0 : static_cast<uint8_t>(random.integer(1, 255));
    m.first_bit =
        random.of<int64_t>({0, skipped, skipped + random.integer(0, count), random.integer(0, first_key + n)});
    // Bits of the keys that have one.
    const int64_t first_byte = std::max<int64_t>(skipped - m.first_bit, 0) / 8;
    const int64_t last_bit = first_key + hi - m.first_bit;
    const int64_t n_bytes = count == 0 || last_bit <= 0 ? 0 : (last_bit + 7) / 8 - first_byte;
    Guarded bits(static_cast<size_t>(n_bytes), random.guard());
    for (int64_t b = 0; b < n_bytes; ++b)
      bits.data()[b] = static_cast<uint8_t>(random.bits() | (random.coin() ? random.bits() : 0));
    const auto back = [](const unsigned char* p, int64_t bytes) {
      return reinterpret_cast<const unsigned char*>(reinterpret_cast<uintptr_t>(p) - static_cast<uintptr_t>(bytes));
    };
    if (random.coin()) m.bias = back(bias.data(), skipped * size_of(m.bias_dtype));
    if (random.coin()) m.keep = back(keep.data(), skipped);
    if (random.coin()) m.bits = back(bits.data(), first_byte);
    const Rows x = random_workspace(random, 1, count, values(i));
    if (random.coin())
      for (int64_t c = 0; c < count; ++c) x.set(0, c, 20 * random.uniform());
    Outputs t(random, DType::kF32, 1, count, count);
    ModifyResult result[2];
    for (const bool is_definition : {true, false}) {
      const Rows& out = is_definition ? t.want : t.got;
      if (in_place) std::memcpy(out.memory.data(), x.memory.data(), x.memory.size());
      a.x = reinterpret_cast<const float*>(back(in_place ? out.memory.data() : x.memory.data(), 4 * lo));
      a.t = reinterpret_cast<float*>(reinterpret_cast<uintptr_t>(out.data()) - static_cast<uintptr_t>(4 * lo));
      result[is_definition] = (is_definition ? definition() : uk()).modify_row(a);
    }
    const auto message = [&] {
      return describe(i, static_cast<size_t>(m.bias_dtype),
                      {{"lo", lo},
                       {"hi", hi},
                       {"first_key", first_key},
                       {"position", m.position},
                       {"bias", m.bias != nullptr},
                       {"keep", m.keep != nullptr},
                       {"bits", m.bits != nullptr},
                       {"first_bit", m.first_bit},
                       {"note_masked", a.note_masked},
                       {"in_place", in_place}}) +
             ", softcap " + std::to_string(m.softcap) + ", slope " + std::to_string(m.slope) + ", bias_scale " +
             std::to_string(m.bias_scale);
    };
    // Of all steps only tanh contains fused operations; what follows rounds the shifted value anew.
    double apart_max = 0;
    const Allowance allowance = [&](int64_t, int64_t c) {
      if (m.softcap == 0.0f) return 0.0;
      const double cap = static_cast<double>(m.softcap);
      const double capped = std::min(cap, std::fabs(static_cast<double>(a.scale) * static_cast<double>(x.at(0, c))));
      const double distance = std::fabs(static_cast<double>(m.position - (skipped + c)));
      const double shift = std::fabs(static_cast<double>(m.slope)) * distance;
      const double b =
          m.bias != nullptr
              ? std::fabs(static_cast<double>(m.bias_scale) * static_cast<double>(get(bias.data(), m.bias_dtype, c)))
              : 0.0;
      return capped * (kTanhApart + 4 * kEps) + 2 * kEps * (2 * shift + b) + 0x1p-148;
    };
    const std::string problem = difference(t.want, t.got, NaN::kAny, is_exact(), [&](int64_t r, int64_t c) {
      apart_max = std::max(apart_max, allowance(r, c));
      return allowance(r, c);
    });
    ASSERT_EQ(problem, "") << message();
    ASSERT_TRUE(!a.note_masked || result[1].masked == result[0].masked) << message();
    if (is_exact() || m.softcap == 0.0f) {
      // Two zeros are one maximum.
      ASSERT_EQ(result[1].max, result[0].max) << message();
    } else if (std::isfinite(result[1].max)) {
      ASSERT_NEAR(static_cast<double>(result[1].max), static_cast<double>(result[0].max), apart_max) << message();
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Values

TEST_P(Slots, ValueTile) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    Random random(seed() * 100 + 50 + type);
    const DType dtype = static_cast<DType>(type);
    for (int64_t i = 0; i < cases(1000); ++i) {
      // Every fourth: one row, and as many columns from memory as a tile of some target has. Such values have kernels of their own.
      const bool one_tile = i % 4 == 3;
      // A few rows are longer than all that kernels take of some keys at a time.
      const bool long_rows = i % 64 == 5;
      const int64_t dim = one_tile    ? int64_t{32} << (i / 4 % 3)
                          : long_rows ? random.integer(8190, 8230)
                                      : random.size(1, 200);
      const int64_t rows = one_tile    ? 1
                           : long_rows ? random.integer(1, 3)
                                       : random.integer(0, random.coin() ? f32(uk()).tile_rows : 20);
      // weighted_values() gives all keys at once where it can.
      const bool many = i % 16 >= 14;
      const int64_t keys =
          many ? random.integer(kKeyBlock - 1, 3 * kKeyBlock) : random.size(0, dim > 64 ? 40 : kKeyBlock);
      const Rows w = random_workspace(random, rows, keys, values(i));
      if (random.coin())
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < keys; ++c)
            if (random.coin()) w.set(r, c, 0.0f);
      const Rows v = random_rows(random, dtype, keys, dim, values(i));
      Rows o = random_workspace(random, rows, dim, values(i));
      const Rows o_before = copy_of(o, random.guard());
      const Rows o_want = copy_of(o, random.guard());
      const Rows alpha = random_workspace(random, 1, rows, values(i));
      ValueTile a = {};
      a.w = w.f32();
      a.ldw = w.stride;
      a.rows = rows;
      a.v = v.data();
      a.key_stride = v.stride_bytes();
      a.group_stride = kValueGroup * size_of(dtype);
      a.keys = keys;
      a.dim = dim;
      a.o = o_want.f32();
      a.ldo = o.stride;
      a.alpha = random.coin() ? alpha.f32() : nullptr;
      a.fetch = one_tile && !many ? static_cast<Fetch>(1 + i / 12 % 3) : long_rows ? Fetch::kMemory : any_fetch(random);
      f32(definition()).kv[type].value_tile(a);
      a.o = o.f32();
      f32(uk()).kv[type].value_tile(a);
      const std::string problem = difference(o_want, o, NaN::kAny, is_exact(), [&](int64_t r, int64_t c) {
        double sum = std::fabs(static_cast<double>(o_before.at(r, c)) *
                               (a.alpha != nullptr ? static_cast<double>(alpha.at(0, r)) : 1.0));
        for (int64_t j = 0; j < keys; ++j) {
          sum += std::fabs(static_cast<double>(w.at(r, j)) * static_cast<double>(v.at(j, c)));
        }
        return (3.0 * static_cast<double>(keys) + 2) * (kEps * sum + 0x1p-149);
      });
      ASSERT_EQ(problem, "") << describe(
          i, type,
          {{"dim", dim}, {"rows", rows}, {"keys", keys}, {"key_stride", a.key_stride}, {"alpha", a.alpha != nullptr}});
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Packing. How a packed panel or block looks is the target's own business: what it computes with them is compared.

/// Query rows in the form that the tiles read.
Guarded prepared(const AttentionKernels& kernels, const Rows& q, Guard guard) {
  const int64_t bytes = kernels.query_bytes(q.columns);
  Guarded result(static_cast<size_t>(q.rows * bytes), guard);
  for (int64_t r = 0; r < q.rows; ++r) {
    kernels.prepare_query[slot(q.dtype)](static_cast<const char*>(q.data()) + r * q.stride_bytes(),
                                         result.data() + r * bytes, q.columns);
  }
  return result;
}

TEST_P(Slots, PackedKeys) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    Random random(seed() * 100 + 60 + type);
    const DType dtype = static_cast<DType>(type);
    for (int64_t i = 0; i < cases(1500); ++i) {
      const int64_t dim = random.size(1, 300);
      const int64_t keys = random.coin() ? kPanelWidth : random.integer(0, kPanelWidth);
      const bool from_panel = random.coin();
      const Rows rows = random_rows(random, dtype, keys, dim, values(i));
      // The same keys in a panel of their own type; other columns hold 0, as pack_keys has them.
      Guarded panel(static_cast<size_t>(panel_bytes(kv_type_of(dtype), dim)), random.guard());
      std::memset(panel.data(), 0, panel.size());
      for (int64_t j = 0; j < keys; ++j) {
        for (int64_t d = 0; d < dim; ++d) {
          const int64_t e = dtype == DType::kBF16 ? (d / 2 * kPanelWidth + j) * 2 + d % 2 : d * kPanelWidth + j;
          std::memcpy(panel.data() + e * size_of(dtype),
                      static_cast<const char*>(rows.data()) + (j * rows.stride + d) * size_of(dtype),
                      static_cast<size_t>(size_of(dtype)));
        }
      }
      const Rows q = random_rows(random, random.storage(), random.integer(0, 9), dim, values(i));
      const float scale = random.coin() ? 1.0f : number(random, Values::kWide);
      Outputs s(random, DType::kF32, q.rows, kPanelWidth);
      for (const bool is_definition : {true, false}) {
        const AttentionKernels& kernels = f32(is_definition ? definition() : uk());
        const Guarded queries = prepared(kernels, q, random.guard());
        const Guarded packed(static_cast<size_t>(kernels.kv[type].panel_bytes(dim)), random.guard());
        std::memset(packed.data(), 0xFF, packed.size());
        const PackKeys pack = {.from = from_panel ? panel.data() : rows.data(),
                               .token_stride = rows.stride_bytes(),
                               .keys = keys,
                               .dim = dim,
                               .panel = packed.data(),
                               .stream = random.coin()};
        // Panels of the type may be packed ones as they are.
        const bool as_is = from_panel && kernels.kv[type].pack_panel == nullptr;
        if (!as_is) (from_panel ? kernels.kv[type].pack_panel : kernels.kv[type].pack_keys)(pack);
        const Rows& out = is_definition ? s.want : s.got;
        ScoreTile a = {};
        a.q = queries.data();
        a.q_stride = kernels.query_bytes(dim);
        a.rows = q.rows;
        a.panels = as_is ? panel.data() : packed.data();
        a.panel_stride = kernels.kv[type].panel_bytes(dim);
        a.n_panels = 1;
        a.dim = dim;
        a.scale = scale;
        a.s = out.f32();
        a.lds = out.stride;
        kernels.kv[type].score_packed(a);
      }
      const std::string problem = difference(s.want, s.got, NaN::kAny, is_exact(), [&](int64_t r, int64_t c) {
        double sum = 0;
        for (int64_t d = 0; d < dim && c < keys; ++d)
          sum += std::fabs(static_cast<double>(q.at(r, d)) * static_cast<double>(rows.at(c, d)));
        const double roundings = 3.0 * static_cast<double>(dim) + 2;
        return (roundings * (kEps * sum + 0x1p-149) + 0x1p-149) * std::fabs(static_cast<double>(scale)) + 0x1p-149;
      });
      ASSERT_EQ(problem, "") << describe(
          i, type, {{"dim", dim}, {"keys", keys}, {"from_panel", from_panel}, {"token_stride", rows.stride}});
    }
  }
}

TEST_P(Slots, PackedValues) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    Random random(seed() * 100 + 80 + type);
    const DType dtype = static_cast<DType>(type);
    for (int64_t i = 0; i < cases(600); ++i) {
      const int64_t dim = random.size(1, 200);
      const int64_t keys = random.size(0, dim > 64 ? 40 : kKeyBlock);
      const int64_t cut = random.integer(0, keys);  // packed in two calls, as from two pages
      const int64_t first = random.coin() ? 0 : random.integer(0, keys), count = random.integer(0, keys - first);
      const Rows v = random_rows(random, dtype, keys, dim, values(i));
      const Rows w = random_workspace(random, random.integer(0, 20), count, values(i));
      // Whole groups of columns, zeros past the last one.
      const Rows o = random_workspace(random, w.rows, (dim + kValueGroup - 1) / kValueGroup * kValueGroup, values(i));
      for (int64_t r = 0; r < o.rows; ++r) std::fill_n(o.f32() + r * o.stride + dim, o.columns - dim, 0.0f);
      const Rows o_want = copy_of(o, random.guard()), o_got = copy_of(o, random.guard());
      for (const bool is_definition : {true, false}) {
        const AttentionKernels& kernels = f32(is_definition ? definition() : uk());
        const Guarded block(static_cast<size_t>(kernels.values_bytes(dim)), random.guard());
        std::memset(block.data(), 0xFF, block.size());
        for (const bool second : {false, true}) {
          const int64_t from = second ? cut : 0;
          kernels.kv[type].pack_values({.rows = static_cast<const char*>(v.data()) + from * v.stride_bytes(),
                                        .token_stride = v.stride_bytes(),
                                        .first = from,
                                        .keys = second ? keys - cut : cut,
                                        .dim = dim,
                                        .column = 0,
                                        .columns = dim,
                                        .block = block.data()});
        }
        const Rows& out = is_definition ? o_want : o_got;
        ValueTile a = {};
        a.w = w.f32();
        a.ldw = w.stride;
        a.rows = w.rows;
        a.v = block.data();
        a.first_key = first;
        a.keys = count;
        a.dim = dim;
        a.o = out.f32();
        a.ldo = out.stride;
        kernels.value_packed(a);
      }
      const std::string problem = difference(o_want, o_got, NaN::kAny, is_exact(), [&](int64_t r, int64_t c) {
        double sum = std::fabs(static_cast<double>(o.at(r, c)));
        for (int64_t j = 0; j < count && c < dim; ++j)
          sum += std::fabs(static_cast<double>(w.at(r, j)) * static_cast<double>(v.at(first + j, c)));
        return (3.0 * static_cast<double>(count) + 2) * (kEps * sum + 0x1p-149);
      });
      ASSERT_EQ(problem, "") << describe(
          i, type, {{"dim", dim}, {"keys", keys}, {"cut", cut}, {"first", first}, {"token_stride", v.stride}});
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Conversion: no arithmetic that a target could round differently.

/// Rows or panels of one storage type, for StoreRows and LoadRows.
struct Stored {
  int64_t dim, tokens, column, units, unit;  // unit: elements of a row or panel
  Stored(Random& random, DType dtype, bool panels)
      : dim(random.size(1, 200)),
        tokens(random.integer(0, 40)),
        column(panels ? random.integer(0, kPanelWidth - 1) : 0) {
    units = panels ? (column + tokens + kPanelWidth - 1) / kPanelWidth : tokens;
    unit = panels ? panel_bytes(kv_type_of(dtype), dim) / size_of(dtype) : dim;
  }
};

TEST_P(Slots, StoreRows) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    Random random(seed() * 100 + 230 + type);
    const DType dtype = static_cast<DType>(type);
    for (int64_t i = 0; i < cases(1500); ++i) {
      const bool panels = random.coin();
      const Stored s(random, dtype, panels);
      const bool as_stored = random.coin();
      const Rows rows = random_rows(random, as_stored ? dtype : DType::kF32, s.tokens, s.dim, values(i));
      Outputs out(random, dtype, s.units, s.unit);
      for (const bool is_definition : {true, false}) {
        const Rows& to = is_definition ? out.want : out.got;
        const KvKernels& kv = (is_definition ? definition() : uk()).kv[type];
        const StoreRows a = {rows.data(), rows.stride_bytes(), s.tokens, s.dim,
                             to.data(),   to.stride_bytes(),   s.column, as_stored};
        panels ? kv.store_panels(a) : kv.store_rows(a);
      }
      const auto message = [&] {
        return describe(i, type, {{"panels", panels}, {"dim", s.dim}, {"tokens", s.tokens}, {"column", s.column}});
      };
      ASSERT_EQ(difference(out.want, out.got, NaN::kCanonical, true, exactly), "") << message();
      // Columns of other tokens keep their bytes.
      for (int64_t p = 0; panels && p < s.units; ++p) {
        for (int64_t e = 0; e < s.unit; ++e) {
          const int64_t lane = dtype == DType::kBF16 ? e / 2 % kPanelWidth : e % kPanelWidth;
          const int64_t token = p * kPanelWidth + lane - s.column;
          if (token >= 0 && token < s.tokens) continue;
          uint32_t untouched = 0;
          std::memset(&untouched, Guarded::kCanary, static_cast<size_t>(size_of(dtype)));
          ASSERT_EQ(out.got.bits(p, e), untouched) << message() << ", panel " << p << ", element " << e;
        }
      }
    }
  }
}

TEST_P(Slots, LoadRows) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    Random random(seed() * 100 + 240 + type);
    const DType dtype = static_cast<DType>(type);
    for (int64_t i = 0; i < cases(1500); ++i) {
      const bool panels = random.coin();
      const Stored s(random, dtype, panels);
      const Rows in = random_rows(random, dtype, s.units, s.unit, values(i));
      const bool as_stored = random.coin();
      Outputs out(random, as_stored ? dtype : DType::kF32, s.tokens, s.dim);
      for (const bool is_definition : {true, false}) {
        const Rows& to = is_definition ? out.want : out.got;
        const KvKernels& kv = (is_definition ? definition() : uk()).kv[type];
        const LoadRows a = {in.data(), in.stride_bytes(), s.column,          s.tokens,
                            s.dim,     to.data(),         to.stride_bytes(), as_stored};
        panels ? kv.load_panels(a) : kv.load_rows(a);
      }
      ASSERT_EQ(difference(out.want, out.got, as_stored ? NaN::kCanonical : NaN::kAny, true, exactly), "")
          << describe(i, type, {{"panels", panels}, {"dim", s.dim}, {"tokens", s.tokens}, {"column", s.column}});
    }
  }
}

TEST_P(Slots, Widen) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    Random random(seed() * 100 + 90 + type);
    for (int64_t i = 0; i < cases(1000); ++i) {
      const int64_t n = random.size(0, 500);
      const Guarded in = random_buffer(static_cast<DType>(type), n, random, values(i));
      Outputs out(random, DType::kF32, 1, n);
      definition().widen[type](in.data(), out.want.f32(), n);
      uk().widen[type](in.data(), out.got.f32(), n);
      ASSERT_EQ(difference(out.want, out.got, NaN::kAny, true, exactly), "") << describe(i, type, {{"n", n}});
    }
  }
}

TEST_P(Slots, WidenEvery16BitPattern) {
  for (const size_t type : {1u, 2u}) {
    std::vector<uint16_t> in(65536);
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint16_t>(i);
    std::vector<float> out(in.size());
    uk().widen[type](in.data(), out.data(), 65536);
    for (size_t i = 0; i < in.size(); ++i) {
      const float want = type == 1 ? to_f32(bf16{in[i]}) : to_f32(f16{in[i]});
      if (want != want) {
        ASSERT_TRUE(out[i] != out[i]) << kTypeName[type] << " " << i;
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(want), std::bit_cast<uint32_t>(out[i])) << kTypeName[type] << " " << i;
      }
    }
  }
}

TEST_P(Slots, Finish) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    Random random(seed() * 100 + 100 + type);
    for (int64_t i = 0; i < cases(2000); ++i) {
      const int64_t n = random.size(0, 500);
      const Rows in = random_workspace(random, 1, n, values(i));
      // Halfway cases and their neighbours, the edges of the subnormals, overflow.
      if (random.coin()) {
        for (int64_t c = 0; c < n; ++c) {
          const uint32_t exponent = static_cast<uint32_t>(random.integer(90, 145)) << 23;
          const uint32_t fraction = static_cast<uint32_t>(random.bits() & 0x7FE000u) |
                                    random.of<uint32_t>({0, 0x1000, 0xFFF, 0x1001, 0x8000, 0x7FFF, 0x8001});
          in.set(0, c, std::bit_cast<float>(exponent | fraction | static_cast<uint32_t>(random.bits() & 0x80000000u)));
        }
      }
      const float factor = random.coin() ? 1.0f : number(random, values(i));
      Outputs out(random, static_cast<DType>(type), 1, n);
      definition().finish[type](in.f32(), factor, out.want.data(), n);
      uk().finish[type](in.f32(), factor, out.got.data(), n);
      ASSERT_EQ(difference(out.want, out.got, NaN::kCanonical, true, exactly), "")
          << describe(i, type, {{"n", n}}) << ", factor " << factor;
    }
  }
}

TEST_P(Slots, AllFinite) {
  // Halfway between the largest number of bf16 and the next one, which is infinite; and just below.
  for (const bool negative : {false, true}) {
    const uint32_t sign = negative ? 0x80000000u : 0;
    float row[40] = {};
    for (const int64_t at : {0, 7, 39}) {
      row[at] = std::bit_cast<float>(sign | 0x7F7F7FFFu);
      EXPECT_TRUE(uk().kv[slot(KvType::kF32)].all_finite({row, sizeof row, nullptr, 1, 40})) << at;
      row[at] = std::bit_cast<float>(sign | 0x7F7F8000u);
      EXPECT_FALSE(uk().kv[slot(KvType::kF32)].all_finite({row, sizeof row, nullptr, 1, 40})) << at;
      row[at] = 0;
    }
  }
  for (size_t type = 0; type < kElementTypes; ++type) {
    Random random(seed() * 100 + 110 + type);
    for (int64_t i = 0; i < cases(1500); ++i) {
      const int64_t dim = random.size(0, 200);
      const int64_t keys = random.integer(0, 12);
      const Rows rows = random_rows(random, static_cast<DType>(type), keys, dim, Values::kWide);
      if (keys > 0 && dim > 0 && random.coin()) {
        rows.set(random.integer(0, keys - 1), random.integer(0, dim - 1),
                 random.of({kInf, -kInf, std::nanf("1"), -std::nanf("77"), std::bit_cast<float>(0x7F800001u),
                            std::bit_cast<float>(0x7F7F7FFFu), std::bit_cast<float>(0xFF7F8000u)}));
      }
      const FiniteRows a = {rows.data(), rows.stride_bytes(), nullptr, keys, dim};
      const bool want = definition().kv[type].all_finite(a);
      ASSERT_EQ(uk().kv[type].all_finite(a), want)
          << describe(i, type, {{"dim", dim}, {"keys", keys}, {"token_stride", rows.stride}});
    }
  }
}

TEST_P(Slots, AnyZero) {
  Random random(seed() * 100 + 120);
  for (int64_t i = 0; i < cases(2000); ++i) {
    const int64_t n = random.size(0, 300);
    const Rows w = random_workspace(random, 1, n, Values::kSpecial);
    for (int64_t c = 0; c < n; ++c)
      if (w.at(0, c) == 0.0f) w.set(0, c, 0x1p-149f);
    if (n > 0 && random.coin()) w.set(0, random.integer(0, n - 1), random.of({0.0f, -0.0f}));
    const bool want = definition().any_zero(w.f32(), n);
    ASSERT_EQ(uk().any_zero(w.f32(), n), want) << describe(i, 0, {{"n", n}});
  }
}

TEST_P(Slots, Merge) {
  Random random(seed() * 100 + 130);
  for (int64_t i = 0; i < cases(2000); ++i) {
    const int64_t n = random.size(0, 300);
    Rows a = random_workspace(random, 1, n, values(i));
    const Rows before = copy_of(a, random.guard());
    const Rows a_want = copy_of(a, random.guard());
    const Rows b = random_workspace(random, 1, n, values(i));
    const float wa = random.one_in(4) ? 1.0f : number(random, values(i));
    const float wb = random.one_in(4) ? 0.0f : number(random, values(i));
    definition().merge(a_want.f32(), wa, b.f32(), wb, n);
    uk().merge(a.f32(), wa, b.f32(), wb, n);
    const std::string problem = difference(a_want, a, NaN::kAny, is_exact(), [&](int64_t, int64_t c) {
      const double sum = std::fabs(static_cast<double>(before.at(0, c)) * static_cast<double>(wa)) +
                         std::fabs(static_cast<double>(b.at(0, c)) * static_cast<double>(wb));
      return 5 * (kEps * sum + 0x1p-149);
    });
    ASSERT_EQ(problem, "") << describe(i, 0, {{"n", n}});
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Rotation

TEST_P(Slots, RopeHeads) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    Random random(seed() * 100 + 140 + type);
    for (int64_t i = 0; i < cases(700); ++i) {
      const bool pieces = random.one_in(8);  // rows of whole pieces
      const int64_t half = pieces ? 64 * random.integer(1, 2) : random.size(0, 130);
      const bool partial = !pieces && random.coin();
      const int64_t first = partial ? random.integer(0, 40) : 0;
      const int64_t dim = first + 2 * half + (partial ? random.integer(0, 40) : 0);
      const int64_t heads = random.one_in(20) ? random.integer(30, 70) : random.integer(0, 6);  // kernels group 32
      const bool in_place = random.coin();
      const DType dtype = static_cast<DType>(type);
      const Rows x = in_place ? Rows(dtype, heads, dim, output_stride(random, dim), random.guard())
                              : random_rows(random, dtype, heads, dim, values(i));
      if (in_place) x.fill(random, values(i));
      const Rows cosine =
          random_workspace(random, 1, half, values(i) == Values::kOrdinary ? Values::kOrdinary : Values::kWide);
      const Rows sine =
          random_workspace(random, 1, half, values(i) == Values::kOrdinary ? Values::kOrdinary : Values::kWide);
      // A NaN whose rounding to bf16 by integers would carry into the sign.
      const float nan = std::bit_cast<float>(0x7FFFFFFFu);
      if (half > 0 && random.one_in(8)) {
        (random.coin() ? cosine : sine).set(0, random.integer(0, half - 1), random.of({nan, -nan, kInf, 0.0f}));
      }
      Outputs y(random, dtype, heads, dim, in_place ? x.stride : output_stride(random, dim));
      RopeHeads a = {};
      a.heads = heads;
      a.dim = dim;
      a.first = first;
      a.half = half;
      a.cos = cosine.f32();
      a.sin = sine.f32();
      a.interleaved = random.coin();
      a.inverse = random.coin();
      a.x_stride = x.stride;
      a.y_stride = y.want.stride;
      for (const bool is_definition : {true, false}) {
        const Rows& out = is_definition ? y.want : y.got;
        if (in_place) std::memcpy(out.memory.data(), x.memory.data(), x.memory.size());
        a.x = in_place ? out.data() : x.data();
        a.y = out.data();
        (is_definition ? definition() : uk()).rope_heads[type](a);
      }
      const auto rotated = [&](int64_t d) { return d >= first && d < first + 2 * half; };
      const auto message = [&] {
        return describe(i, type,
                        {{"heads", heads},
                         {"dim", dim},
                         {"first", first},
                         {"half", half},
                         {"interleaved", a.interleaved},
                         {"inverse", a.inverse},
                         {"in_place", in_place},
                         {"x_stride", a.x_stride}});
      };
      const std::string problem = difference(y.want, y.got, NaN::kAny, is_exact(), [&](int64_t r, int64_t d) {
        if (!rotated(d)) return 0.0;
        const int64_t pair = a.interleaved ? (d - first) / 2 : (d - first) % half;
        const int64_t d0 = first + (a.interleaved ? 2 * pair : pair);
        const int64_t d1 = d0 + (a.interleaved ? 1 : half);
        const double x0 = std::fabs(static_cast<double>(x.at(r, d0))), x1 = std::fabs(static_cast<double>(x.at(r, d1)));
        const double c = std::fabs(static_cast<double>(a.cos[pair])), s = std::fabs(static_cast<double>(a.sin[pair]));
        const double sum = std::max(x0 * c + x1 * s, x0 * s + x1 * c);
        // Another f32 may be the neighbour once rounded to the type of y.
        const double step =
            type == 0 ? 0.0 : std::ldexp(std::fabs(static_cast<double>(y.want.at(r, d))), type == 1 ? -7 : -10);
        return 5 * (kEps * sum + 0x1p-149) + step + (type == 2 ? 0x1p-24 : 0.0);
      });
      ASSERT_EQ(problem, "") << message();
      // Copies keep their bits, computed NaN is canonical.
      for (int64_t r = 0; r < heads; ++r) {
        for (int64_t d = 0; d < dim; ++d) {
          const float got = y.got.at(r, d);
          if (!rotated(d)) {
            ASSERT_EQ(y.got.bits(r, d), x.bits(r, d)) << message() << ", copied dimension " << d;
          } else if (got != got) {
            ASSERT_EQ(y.got.bits(r, d), type == 0 ? 0x7FC00000u : type == 1 ? 0x7FC0u : 0x7E00u) << message();
          }
        }
      }
    }
  }
}

TEST_P(Slots, RotateColumns) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    Random random(seed() * 100 + 250 + type);
    const DType dtype = static_cast<DType>(type);
    for (int64_t i = 0; i < cases(1500); ++i) {
      const int64_t half = random.one_in(8) ? 0 : random.size(0, 100);
      const bool partial = random.coin();
      const int64_t first = partial ? random.integer(0, 40) : 0;
      const int64_t dim = std::max<int64_t>(first + 2 * half + (partial ? random.integer(0, 40) : 0), 1);
      // Whole panels, some columns, and columns of one panel that overlap.
      const bool whole = random.coin();
      const bool in_place = random.coin();
      const int64_t columns = whole ? kPanelWidth : random.integer(0, kPanelWidth);
      const int64_t from_column = random.coin() ? 0 : random.integer(0, kPanelWidth - 1);
      const int64_t to_column = random.integer(0, kPanelWidth - columns);
      const int64_t elements = panel_bytes(kv_type_of(dtype), dim) / size_of(dtype);
      const int64_t panels = from_column + columns > kPanelWidth ? 2 : 1;
      const int64_t in_place_at = random.integer(0, panels - 1);
      const Rows x = random_rows(random, dtype, panels, elements, values(i));
      const Values table = values(i) == Values::kOrdinary ? Values::kOrdinary : Values::kWide;
      const Rows cosine = random_workspace(random, 1, half, table);
      const Rows sine = random_workspace(random, 1, half, table);
      // A NaN whose rounding to bf16 by integers would carry into the sign.
      const float nan = std::bit_cast<float>(0x7FFFFFFFu);
      if (half > 0 && random.one_in(8)) {
        (random.coin() ? cosine : sine).set(0, random.integer(0, half - 1), random.of({nan, -nan, kInf, 0.0f}));
      }
      Outputs y(random, dtype, 1, elements);
      RotateColumns a = {};
      Rows sources[] = {copy_of(x, random.guard()), copy_of(x, random.guard())};
      a.from_stride = x.stride_bytes();
      a.from_column = from_column;
      a.to_column = to_column;
      a.columns = columns;
      a.dim = dim;
      a.first = first;
      a.half = half;
      a.cos = cosine.f32();
      a.sin = sine.f32();
      a.interleaved = random.coin();
      a.inverse = random.coin();
      for (const bool is_definition : {true, false}) {
        const Rows& out = is_definition ? y.want : y.got;
        const Rows& source = sources[is_definition ? 0 : 1];
        char* const panel = static_cast<char*>(source.data()) + in_place_at * source.stride_bytes();
        a.from = in_place ? source.data() : x.data();
        a.to = in_place ? panel : out.data();
        (is_definition ? definition() : uk()).kv[type].rotate_columns(a);
        if (in_place) std::memcpy(out.data(), panel, static_cast<size_t>(elements * size_of(dtype)));
      }
      const auto message = [&] {
        return describe(i, type,
                        {{"dim", dim},
                         {"first", first},
                         {"half", half},
                         {"from_column", from_column},
                         {"to_column", to_column},
                         {"columns", columns},
                         {"interleaved", a.interleaved},
                         {"inverse", a.inverse},
                         {"in_place", in_place}});
      };
      const auto index = [&](int64_t d, int64_t j) {
        return dtype == DType::kBF16 ? (d / 2 * kPanelWidth + j) * 2 + d % 2 : d * kPanelWidth + j;
      };
      const auto rotated = [&](int64_t d) { return d >= first && d < first + 2 * half; };
      const auto bits_from = [&](int64_t d, int64_t j) {
        return x.bits((from_column + j) / kPanelWidth, index(d, (from_column + j) % kPanelWidth));
      };
      const auto magnitude = [&](int64_t d, int64_t j) {
        return std::fabs(
            static_cast<double>(x.at((from_column + j) / kPanelWidth, index(d, (from_column + j) % kPanelWidth))));
      };
      std::vector<double> allowed(static_cast<size_t>(elements), 0.0);
      for (int64_t d = first; !is_exact() && d < first + 2 * half; ++d) {
        const int64_t pair = a.interleaved ? (d - first) / 2 : (d - first) % half;
        const int64_t d0 = first + (a.interleaved ? 2 * pair : pair);
        const int64_t d1 = d0 + (a.interleaved ? 1 : half);
        const double c = std::fabs(static_cast<double>(a.cos[pair])), s = std::fabs(static_cast<double>(a.sin[pair]));
        for (int64_t j = 0; j < columns; ++j) {
          const double x0 = magnitude(d0, j);
          const double x1 = magnitude(d1, j);
          const int64_t to = index(d, to_column + j);
          // Another f32 may be the neighbour once rounded to the storage type.
          const double step =
              type == 0 ? 0.0 : std::ldexp(std::fabs(static_cast<double>(y.want.at(0, to))), type == 1 ? -7 : -10);
          allowed[static_cast<size_t>(to)] =
              5 * (kEps * std::max(x0 * c + x1 * s, x0 * s + x1 * c) + 0x1p-149) + step + (type == 2 ? 0x1p-24 : 0.0);
        }
      }
      const std::string problem = difference(y.want, y.got, NaN::kAny, is_exact(),
                                             [&](int64_t, int64_t e) { return allowed[static_cast<size_t>(e)]; });
      ASSERT_EQ(problem, "") << message();
      // Computed NaN is canonical, copies keep their bits and other columns their bytes.
      for (int64_t d = 0; d < dim; ++d) {
        for (int64_t j = 0; j < kPanelWidth; ++j) {
          const uint32_t got = y.got.bits(0, index(d, j));
          if (j < to_column || j >= to_column + columns) {
            uint32_t untouched = 0;
            std::memset(&untouched, Guarded::kCanary, static_cast<size_t>(size_of(dtype)));
            if (in_place) untouched = x.bits(in_place_at, index(d, j));
            ASSERT_EQ(got, untouched) << message() << ", dimension " << d << ", column " << j;
          } else if (!rotated(d)) {
            ASSERT_EQ(got, bits_from(d, j - to_column)) << message() << ", dimension " << d << ", column " << j;
          } else if (const float rotated_to = y.got.at(0, index(d, j)); rotated_to != rotated_to) {
            ASSERT_EQ(got, type == 0 ? 0x7FC00000u : type == 1 ? 0x7FC0u : 0x7E00u) << message();
          }
        }
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Addition

TEST_P(Slots, AddRows) {
  for (size_t type = 0; type < kElementTypes; ++type) {
    Random random(seed() * 100 + 220 + type);
    for (int64_t i = 0; i < cases(400); ++i) {
      const int64_t dim = random.size(0, 300);
      const int64_t rows = random.integer(0, 6);
      const DType dtype = static_cast<DType>(type);
      const bool in_place = random.coin();
      const Rows x = in_place ? Rows(dtype, rows, dim, output_stride(random, dim), random.guard())
                              : random_rows(random, dtype, rows, dim, values(i));
      if (in_place) x.fill(random, values(i));
      const Rows p = random_rows(random, DType::kF32, rows, dim, values(i));
      Outputs y(random, dtype, rows, dim, in_place ? x.stride : output_stride(random, dim));
      for (const bool is_definition : {true, false}) {
        const Rows& out = is_definition ? y.want : y.got;
        if (in_place) std::memcpy(out.memory.data(), x.memory.data(), x.memory.size());
        const AddRows a = {
            in_place ? out.data() : x.data(), p.f32(), out.data(), x.stride, p.stride, out.stride, rows, dim};
        (is_definition ? definition() : uk()).add_rows[type](a);
      }
      // A single addition: the same bits without fused multiply-add too.
      ASSERT_EQ(difference(y.want, y.got, NaN::kCanonical, true, exactly), "") << describe(
          i, type,
          {{"rows", rows}, {"dim", dim}, {"in_place", in_place}, {"x_stride", x.stride}, {"p_stride", p.stride}});
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Hadamard

TEST_P(Slots, HadamardSums) {
  Random random(seed() * 100 + 230);
  for (int64_t i = 0; i < cases(1500); ++i) {
    const int64_t block = int64_t{1} << random.integer(0, 9);
    const int64_t n = block * random.integer(0, block < 64 ? 20 : 3);
    const Rows x = random_workspace(random, 1, n, values(i));
    const Rows want = copy_of(x, random.guard()), got = copy_of(x, random.guard());
    definition().hadamard_sums(want.f32(), n, block);
    uk().hadamard_sums(got.f32(), n, block);
    // Additions alone: the same bits without fused multiply-add too.
    ASSERT_EQ(difference(want, got, NaN::kAny, true, exactly), "") << describe(i, 0, {{"n", n}, {"block", block}});
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// exp and tanh

TEST_P(Slots, Exp) {
  Random random(seed() * 100 + 160);
  for (int64_t i = 0; i < cases(2000); ++i) {
    const int64_t n = random.size(0, 300);
    const Rows x = random_workspace(random, 1, n, values(i));
    for (int64_t c = 0; c < n; ++c) {
      if (random.coin()) x.set(0, c, 100 * random.uniform());
      if (x.at(0, c) > 88.0f) x.set(0, c, 88.0f);
    }
    Outputs y(random, DType::kF32, 1, n);
    definition().exp(x.f32(), y.want.f32(), n);
    uk().exp(x.f32(), y.got.f32(), n);
    ASSERT_EQ(difference(y.want, y.got, NaN::kCanonical, is_exact(),
                         [&](int64_t, int64_t c) { return kExpApart * static_cast<double>(y.want.at(0, c)); }),
              "")
        << describe(i, 0, {{"n", n}});
  }
}

/// By a softcap of 1.
void tanh_by(const UKernels& uk, const float* x, float* y, int64_t n) {
  ModifyRow a = {};
  a.row.softcap = 1.0f;
  a.x = x;
  a.t = y;
  a.hi = n;
  a.scale = 1.0f;
  uk.modify_row(a);
}

TEST_P(Slots, Tanh) {
  Random random(seed() * 100 + 170);
  for (int64_t i = 0; i < cases(2000); ++i) {
    const int64_t n = random.size(0, 300);
    const Rows x = random_workspace(random, 1, n, values(i));
    for (int64_t c = 0; c < n; ++c)
      if (random.coin()) x.set(0, c, 10 * random.uniform());
    Outputs y(random, DType::kF32, 1, n);
    tanh_by(definition(), x.f32(), y.want.f32(), n);
    tanh_by(uk(), x.f32(), y.got.f32(), n);
    ASSERT_EQ(difference(y.want, y.got, NaN::kCanonical, is_exact(),
                         [&](int64_t, int64_t c) {
                           return kTanhApart * std::fabs(static_cast<double>(y.want.at(0, c))) + 0x1p-148;
                         }),
              "")
        << describe(i, 0, {{"n", n}});
  }
}

/// |got - exact| in units in the last place of an f32 at `exact`. std::exp and std::tanh of f64 are within 1 ulp of
/// f64, 2^-29 of what is measured.
double ulps(float got, double exact) {
  const int exponent = exact == 0 ? -126 : std::max(std::ilogb(exact), -126);
  return std::fabs(static_cast<double>(got) - exact) / std::ldexp(1.0, exponent - 23);
}

/// The largest error of a function over every step-th f32 of [first, last] given by their bits.
struct Worst {
  double error = 0;
  float at = 0;
};
template <class F>
Worst sweep(const F& function, double (*exact)(double), uint32_t first, uint32_t last, uint32_t step) {
  constexpr size_t kBatch = 4096;
  std::vector<float> x, y(kBatch);
  Worst worst;
  for (uint64_t bits = first; bits <= last;) {
    x.clear();
    for (; x.size() < kBatch && bits <= last; bits += step)
      x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    function(x.data(), y.data(), static_cast<int64_t>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double error = ulps(y[i], exact(static_cast<double>(x[i])));
      if (!(error <= worst.error)) worst = {error, x[i]};
    }
  }
  return worst;
}

void sweep_exp(const UKernels& uk, double bound, uint32_t step, std::string* report) {
  const auto exp = [](double x) { return std::exp(x); };
  const uint32_t bits_88 = std::bit_cast<uint32_t>(88.0f);
  const uint32_t bits_lowest = std::bit_cast<uint32_t>(kExpLowest);
  for (const Worst& w :
       {sweep(uk.exp, exp, 0, bits_88, step), sweep(uk.exp, exp, bits_88 - 70000, bits_88, 1),
        sweep(uk.exp, exp, 0x80000000u, bits_lowest, step), sweep(uk.exp, exp, bits_lowest - 70000, bits_lowest, 1)}) {
    EXPECT_LE(w.error, bound) << "exp(" << w.at << ")";
    *report += " " + std::to_string(w.error);
  }
  // Below the smallest normal result: exactly 0.
  for (uint64_t bits = bits_lowest + 1; bits <= 0xFF800000u; bits += step) {
    const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
    float y = 1;
    uk.exp(&x, &y, 1);
    ASSERT_EQ(std::bit_cast<uint32_t>(y), 0u) << "exp(" << x << ")";
  }
}
void sweep_tanh(const UKernels& uk, double bound, uint32_t step, std::string* report) {
  const auto tanh = [](double x) { return std::tanh(x); };
  const auto own = [&](const float* x, float* y, int64_t n) { tanh_by(uk, x, y, n); };
  for (const uint32_t sign : {0u, 0x80000000u}) {
    const Worst w = sweep(own, tanh, sign, sign | 0x7F800000u, step);
    EXPECT_LE(w.error, bound) << "tanh(" << w.at << ")";
    *report += " " + std::to_string(w.error);
  }
}

// The published bounds hold for the definition; without fused multiply-add two more roundings are in the last steps.
constexpr double kExpUlps = 1, kExpUlpsUnfused = 2;
constexpr double kTanhUlps = 2, kTanhUlpsUnfused = 4;

/// Every how manyth f32 an ordinary run tries. Odd, so that all last bits of the significand take part.
uint32_t sweep_step() { return static_cast<uint32_t>(1999 * 1000 / std::max<int64_t>(cases(1000), 50)) | 1; }

TEST_P(Slots, ExpError) {
  std::string report;
  sweep_exp(uk(), is_exact() ? kExpUlps : kExpUlpsUnfused, sweep_step(), &report);
  RecordProperty("ulp", report);
}
TEST_P(Slots, TanhError) {
  std::string report;
  sweep_tanh(uk(), is_exact() ? kTanhUlps : kTanhUlpsUnfused, sweep_step(), &report);
  RecordProperty("ulp", report);
}
TEST_P(Slots, DISABLED_ExpErrorOfEveryF32) {
  std::string report;
  sweep_exp(uk(), is_exact() ? kExpUlps : kExpUlpsUnfused, 1, &report);
  std::printf("exp: largest errors in ulp%s\n", report.c_str());
}
TEST_P(Slots, DISABLED_TanhErrorOfEveryF32) {
  std::string report;
  sweep_tanh(uk(), is_exact() ? kTanhUlps : kTanhUlpsUnfused, 1, &report);
  std::printf("tanh: largest errors in ulp%s\n", report.c_str());
}

TEST_P(Slots, ExpAndTanhOfSpecialNumbers) {
  const float x[] = {0.0f, -0.0f, -kInf, std::nanf("3"), -std::nanf("3"), 0x1p-149f, -0x1p-149f};
  float y[7];
  uk().exp(x, y, 7);
  const uint32_t want_exp[] = {0x3F800000u, 0x3F800000u, 0u, 0x7FC00000u, 0x7FC00000u, 0x3F800000u, 0x3F800000u};
  for (int i = 0; i < 7; ++i) EXPECT_EQ(std::bit_cast<uint32_t>(y[i]), want_exp[i]) << "exp(" << x[i] << ")";
  const float x2[] = {0.0f, -0.0f, -kInf, kInf, 0x1p-149f, -100.0f, std::nanf("3")};
  tanh_by(uk(), x2, y, 7);
  const uint32_t want_tanh[] = {0u, 0x80000000u, 0xBF800000u, 0x3F800000u, 1u, 0xBF800000u};
  EXPECT_TRUE(std::isnan(y[6]));  // of scores any NaN
  for (int i = 0; i < 6; ++i) EXPECT_EQ(std::bit_cast<uint32_t>(y[i]), want_tanh[i]) << "tanh(" << x2[i] << ")";
}

SIMDATTN_FOR_EACH_TARGET(Slots);

}  // namespace
}  // namespace test
}  // namespace simdattn
