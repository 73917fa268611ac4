// Attention with a state, and the convolution before it: the slots of every runnable target against the definition.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/kernels/slots.h"

namespace simdattn::test {
namespace {

TEST_P(Slots, UpdateState) {
  Random random(seed() * 31 + 5);
  for (int64_t i = 0; i < cases(600); ++i) {
    const Values kind = values(i);
    const int64_t dim = random.size(1, 140), tokens = random.integer(1, 7), groups = random.integer(1, 2);
    const int64_t queries = random.one_in(3) ? random.integer(2, 4) : 1, columns = groups * kStateGroup;
    const Rows q = random_workspace(random, tokens * queries, dim, kind),
               k = random_workspace(random, tokens, dim, kind), v = random_workspace(random, tokens, columns, kind),
               beta = random_workspace(random, 1, tokens, kind);
    const bool by_row = random.coin(), delta = random.coin();
    const Rows decay(DType::kF32, 1, by_row ? tokens * dim : tokens, by_row ? tokens * dim : tokens, random.guard());
    std::vector<uint8_t> clears(static_cast<size_t>(tokens), 0);
    for (int64_t x = 0; x < decay.columns; ++x) {
      const bool zero = random.one_in(by_row ? 200 : 6);
      decay.set(0, x,
                zero               ? 0.0f
                : random.one_in(9) ? std::fabs(number(random, kind))
                                   : 0.5f + 0.5f * std::fabs(random.uniform()));
      if (decay.at(0, x) == 0.0f) clears[static_cast<size_t>(by_row ? x / dim : x)] = 1;
    }
    const Rows state = random_workspace(random, dim, columns, kind);
    // In place, with scratch memory between; the scratch itself; or from one place to another.
    const int64_t form = random.integer(0, 2);
    Outputs to(random, DType::kF32, dim, columns), o(random, DType::kF32, tokens * queries, columns, kStateColumns);
    const Rows scratch(DType::kF32, dim, columns, kStateColumns, random.guard());
    for (const bool is_definition : {true, false}) {
      const Rows& result = is_definition ? to.want : to.got;
      const Rows from = copy_of(state, random.guard());
      for (int64_t r = 0; r < dim; ++r) {
        for (int64_t c = 0; c < columns; ++c) result.set(r, c, state.at(r, c));
      }
      StateTile a = {};
      a.to = {result.f32(), result.stride};
      a.from = form == 2 ? StateRows{from.f32(), from.stride} : a.to;
      a.scratch = form == 1 ? a.to : StateRows{scratch.f32(), scratch.stride};
      a.groups = groups;
      a.dim = dim;
      a.tokens = tokens;
      a.q = q.f32();
      a.k = k.f32();
      a.v = v.f32(), a.v_stride = v.stride;
      a.o = (is_definition ? o.want : o.got).f32();
      a.queries = queries;
      a.decay = decay.f32(), a.by_row = by_row, a.clears = clears.data();
      a.beta = delta ? beta.f32() : nullptr;
      a.ahead = from.f32();
      (is_definition ? definition() : uk()).update_state(a);
    }
    const std::string what = "case " + std::to_string(i) + ", dim " + std::to_string(dim) + ", tokens " +
                             std::to_string(tokens) + ", queries " + std::to_string(queries) +
                             (by_row ? ", by row" : "") + (delta ? ", delta" : "");
    // Without fused multiply-add a sum of 7 tokens has errors of its own: formula tests bound them.
    if (!is_exact()) continue;
    ASSERT_EQ(difference(to.want, to.got, NaN::kCanonical, true, {}), "") << what;
    ASSERT_EQ(difference(o.want, o.got, NaN::kAny, true, {}), "") << "o, " << what;
    ASSERT_TRUE(to.got.gaps_intact() && o.got.gaps_intact()) << what;
  }
}

TEST_P(Slots, Convolve) {
  Random random(seed() * 31 + 6);
  for (int64_t i = 0; i < cases(600); ++i) {
    const Values kind = values(i);
    const int64_t width = random.integer(1, 12), tokens = random.integer(1, 40), panels = random.integer(1, 3);
    const bool in_panels = random.coin();  // a panel behind the other, or side by side
    const int64_t rows = tokens + width - 1, columns = in_panels ? kStateGroup : panels * kStateGroup;
    const auto numbers = [&](int64_t n) {
      Rows r(DType::kF32, n, kStateGroup, kStateGroup, random.guard());
      r.fill(random, kind);
      return r;
    };
    const Rows w = numbers(panels * width), bias = numbers(panels);
    Outputs z(random, DType::kF32, in_panels ? panels * rows : rows, columns, columns);
    z.want.fill(random, kind);
    for (int64_t r = 0; r < z.want.rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) z.got.set(r, c, z.want.at(r, c));
    }
    ConvTile a = {.w = w.f32(),
                  .bias = bias.f32(),
                  .z = z.want.f32(),
                  .row = columns,
                  .panel = in_panels ? rows * kStateGroup : kStateGroup,
                  .panels = panels,
                  .width = width,
                  .tokens = tokens,
                  .silu = random.coin()};
    definition().convolve(a);
    a.z = z.got.f32();
    uk().convolve(a);
    if (!is_exact()) continue;
    ASSERT_EQ(difference(z.want, z.got, NaN::kAny, true, {}), "") << "case " << i << ", width " << width;
  }
}

}  // namespace
}  // namespace simdattn::test
