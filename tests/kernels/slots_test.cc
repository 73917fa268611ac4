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
#include <limits>
#include <string>
#include <vector>

#include "lib/contract/math_constants.h"
#include "tests/kernels/slots.h"

namespace simdattn::test {
namespace {

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
    EXPECT_NE(a.kv[index_of(KvType::kF32)].pack_keys, nullptr);
    EXPECT_NE(a.kv[index_of(KvType::kF32)].pack_values, nullptr);
    EXPECT_NE(a.softmax_tile, nullptr);
    EXPECT_NE(a.value_packed, nullptr);
  }
  EXPECT_NE(t.hadamard_sums, nullptr);
  EXPECT_NE(t.any_zero, nullptr);
  EXPECT_NE(t.above, nullptr);
  EXPECT_NE(t.join_rows, nullptr);
  EXPECT_NE(t.norm_row, nullptr);
  EXPECT_NE(t.merge, nullptr);
  EXPECT_NE(t.exp, nullptr);
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
  for_each_type(230, 1500, [&](Random& random, size_t type, int64_t i) {
    const DType dtype = static_cast<DType>(type);
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
  });
}

TEST_P(Slots, LoadRows) {
  for_each_type(240, 1500, [&](Random& random, size_t type, int64_t i) {
    const DType dtype = static_cast<DType>(type);
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
  });
}

TEST_P(Slots, Widen) {
  for_each_type(90, 1000, [&](Random& random, size_t type, int64_t i) {
    const int64_t n = random.size(0, 500);
    const Guarded in = random_buffer(static_cast<DType>(type), n, random, values(i));
    Outputs out(random, DType::kF32, 1, n);
    definition().widen[type](in.data(), out.want.f32(), n);
    uk().widen[type](in.data(), out.got.f32(), n);
    ASSERT_EQ(difference(out.want, out.got, NaN::kAny, true, exactly), "") << describe(i, type, {{"n", n}});
  });
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
  for_each_type(100, 2000, [&](Random& random, size_t type, int64_t i) {
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
  });
}

TEST_P(Slots, AllFinite) {
  // Halfway between the largest number of bf16 and the next one, which is infinite; and just below.
  for (const bool negative : {false, true}) {
    const uint32_t sign = negative ? 0x80000000u : 0;
    float row[40] = {};
    for (const int64_t at : {0, 7, 39}) {
      row[at] = std::bit_cast<float>(sign | 0x7F7F7FFFu);
      EXPECT_TRUE(uk().kv[index_of(KvType::kF32)].all_finite({row, sizeof row, nullptr, 1, 40})) << at;
      row[at] = std::bit_cast<float>(sign | 0x7F7F8000u);
      EXPECT_FALSE(uk().kv[index_of(KvType::kF32)].all_finite({row, sizeof row, nullptr, 1, 40})) << at;
      row[at] = 0;
    }
  }
  for_each_type(110, 1500, [&](Random& random, size_t type, int64_t i) {
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
  });
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
// Addition

TEST_P(Slots, AddRows) {
  for_each_type(220, 400, [&](Random& random, size_t type, int64_t i) {
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
  });
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
}  // namespace simdattn::test
