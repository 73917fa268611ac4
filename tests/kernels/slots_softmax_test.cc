// Softmax of rows and tiles, and what changes scores before it: the slots of every runnable target against the
// definition.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/slots.h"

namespace simdattn::test {
namespace {

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
    ASSERT_EQ(result[1].masked, result[0].masked) << message();
    if (is_exact() || m.softcap == 0.0f) {
      // Two zeros are one maximum.
      ASSERT_EQ(result[1].max, result[0].max) << message();
    } else if (std::isfinite(result[1].max)) {
      ASSERT_NEAR(static_cast<double>(result[1].max), static_cast<double>(result[0].max), apart_max) << message();
    }
  }
}

}  // namespace
}  // namespace simdattn::test
