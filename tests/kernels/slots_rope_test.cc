// Rotation: the slots of every runnable target against the definition.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/kernels/slots.h"
#include "tests/support/indices.h"

namespace simdattn::test {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Rotation

/// Cosines and sines of the pairs at one position.
struct Angles {
  Rows cosine;
  Rows sine;
  /// `x`: what the rows have that are rotated.
  Angles(Random& random, int64_t half, Values x)
      : cosine(random_workspace(random, 1, half, x == Values::kOrdinary ? x : Values::kWide)),
        sine(random_workspace(random, 1, half, x == Values::kOrdinary ? x : Values::kWide)) {
    // A NaN whose rounding to bf16 by integers would carry into the sign.
    const float nan = std::bit_cast<float>(0x7FFFFFFFu);
    if (half > 0 && random.one_in(8)) {
      (random.coin() ? cosine : sine).set(0, random.integer(0, half - 1), random.of({nan, -nan, kInf, 0.0f}));
    }
  }
};

TEST_P(Slots, RopeHeads) {
  for_each_type(140, 700, [&](Random& random, size_t type, int64_t i) {
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
    const Angles angles(random, half, values(i));
    Outputs y(random, dtype, heads, dim, in_place ? x.stride : output_stride(random, dim));
    RopeHeads a = {};
    a.heads = heads;
    a.dim = dim;
    a.first = first;
    a.half = half;
    a.cos = angles.cosine.f32();
    a.sin = angles.sine.f32();
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
    for (const auto [r, d] : indices(heads, dim)) {
      const float got = y.got.at(r, d);
      if (!rotated(d)) {
        ASSERT_EQ(y.got.bits(r, d), x.bits(r, d)) << message() << ", copied dimension " << d;
      } else if (got != got) {
        ASSERT_EQ(y.got.bits(r, d), type == 0 ? 0x7FC00000u : type == 1 ? 0x7FC0u : 0x7E00u) << message();
      }
    }
  });
}

}  // namespace
}  // namespace simdattn::test
