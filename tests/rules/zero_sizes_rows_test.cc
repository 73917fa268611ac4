// Sizes of 0 of functions of rows (zero_sizes.h).
#include <string>
#include <vector>

#include "tests/rules/zero_sizes.h"

namespace simdattn::test {
namespace {

TEST_P(ZeroSizes, Scores) {
  Array<4> q(random_, DType::kF32, {2, 4, 3, 8}, Values::kOrdinary),
      k(random_, DType::kF32, {2, 2, 5, 8}, Values::kOrdinary), out(random_, DType::kF32, {2, 4, 3, 5});
  Array<3> m(random_, DType::kF32, {4, 8, 8}, Values::kOrdinary),
      wk(random_, DType::kF32, {2, 6, 8}, Values::kOrdinary), wq(random_, DType::kF32, {4, 6, 8}, Values::kOrdinary);
  Array<2> w(random_, DType::kF32, {4, 6}, Values::kOrdinary);
  const auto shape = [](auto& array, size_t i) { return &array.view.shape[i]; };
  const std::vector<Size> shared = {
      {"batch", true, {shape(q, 0), shape(k, 0), shape(out, 0)}},
      {"key heads", false, {shape(k, 1), shape(wk, 0)}},
      {"heads", true, {shape(q, 1), shape(out, 1), shape(m, 0), shape(wq, 0), shape(w, 0)}},
      {"rows", true, {shape(q, 2), shape(out, 2)}},
      {"keys", true, {shape(k, 2), shape(out, 3)}}};
  const auto sizes = [&](std::vector<Size> more) {
    more.insert(more.begin(), shared.begin(), shared.end());
    return more;
  };
  const std::vector<Size> dot = sizes({{"dimension", false, {shape(q, 3), shape(k, 3)}}});
  for (const Arithmetic arithmetic : kArithmetics) {
    check({"scores",
           dot,
           [&](bool null) {
             return scores(bare(q.view, null), bare(k.view, null), bare(out.view, null), {.arithmetic = arithmetic},
                           with(scores_workspace(arithmetic, q.view.shape[3])));
           },
           {&out.memory}});
  }
  check({"gaussian_scores",
         dot,
         [&](bool null) {
           return gaussian_scores(bare(q.view, null), bare(k.view, null), bare(out.view, null), {}, exec());
         },
         {&out.memory}});
  check({"bilinear_scores",
         sizes({{"d_q", false, {shape(q, 3), shape(m, 1)}}, {"d_k", false, {shape(k, 3), shape(m, 2)}}}),
         [&](bool null) {
           return bilinear_scores(bare(q.view, null), bare(m.view, null), bare(k.view, null), bare(out.view, null), {},
                                  with(bilinear_scores_workspace(q.view.shape[3], k.view.shape[3])));
         },
         {&out.memory}});
  check({"additive_scores",
         sizes({{"d_q", false, {shape(q, 3), shape(wq, 2)}},
                {"d_k", false, {shape(k, 3), shape(wk, 2)}},
                {"d", false, {shape(w, 1), shape(wq, 1), shape(wk, 1)}}}),
         [&](bool null) {
           return additive_scores(bare(q.view, null), bare(k.view, null), bare(w.view, null), bare(out.view, null),
                                  wq.view, wk.view,
                                  with(additive_scores_workspace(q.view.shape[3], k.view.shape[3], w.view.shape[1])));
         },
         {&out.memory}});
}

TEST_P(ZeroSizes, SoftmaxAndValues) {
  Array<2> x(random_, DType::kF32, {3, 40}, Values::kOrdinary), y = x.like(random_);
  Array<1> row_lse(random_, DType::kF32, {3});
  check({"softmax",
         {{"rows", true, {&x.view.shape[0], &y.view.shape[0], &row_lse.view.shape[0]}},
          {"columns", true, {&x.view.shape[1], &y.view.shape[1]}}},
         [&](bool null) { return softmax(bare(x.view, null), bare(y.view, null), row_lse.view, exec()); },
         {&y.memory, &row_lse.memory},
         nullptr,
         [&](const std::string& text) {
           if (x.view.shape[1] == 0) expect_all(row_lse.view, -kInf, text);
         }});

  Array<4> p(random_, DType::kF32, {2, 4, 3, 5}, Values::kOrdinary),
      v(random_, DType::kF16, {2, 2, 5, 8}, Values::kOrdinary), masked = p.like(random_),
                                                                out(random_, DType::kF32, {2, 4, 3, 8});
  Array<3> lse(random_, DType::kF32, {2, 4, 3});
  Array<4> bias(random_, DType::kF32, {2, 4, 3, 5}, Values::kOrdinary);
  const auto shape = [](auto& array, size_t i) { return &array.view.shape[i]; };
  for (const bool modified : {false, true}) {
    const auto of = [&](size_t i) -> std::vector<int64_t*> {
      std::vector<int64_t*> at = {shape(p, i), shape(masked, i), shape(bias, i)};
      if (i < 3) at.push_back(shape(lse, i));
      return at;
    };
    check({"masked_softmax",
           {{"batch", true, of(0)}, {"heads", true, of(1)}, {"rows", true, of(2)}, {"keys", true, of(3)}},
           [&](bool null) {
             Scoring s;
             s.causal = true;
             if (modified) s.bias = bias.view, s.softcap = 2;
             return masked_softmax(bare(p.view, null), bare(masked.view, null), s, lse.view, exec());
           },
           {&masked.memory, &lse.memory},
           nullptr,
           [&](const std::string& text) {
             if (p.view.shape[3] == 0) expect_all(lse.view, -kInf, text);
           }});
  }
  for (const Arithmetic arithmetic : kArithmetics) {
    check({"weighted_values",
           {{"batch", true, {shape(p, 0), shape(v, 0), shape(out, 0)}},
            {"value heads", false, {shape(v, 1)}},
            {"heads", true, {shape(p, 1), shape(out, 1)}},
            {"rows", true, {shape(p, 2), shape(out, 2)}},
            {"keys", true, {shape(p, 3), shape(v, 2)}},
            {"dimension", false, {shape(v, 3), shape(out, 3)}}},
           [&](bool null) {
             return weighted_values(bare(p.view, null), bare(v.view, null), bare(out.view, null),
                                    {.arithmetic = arithmetic},
                                    with(weighted_values_workspace(arithmetic, v.view.shape[3])));
           },
           {&out.memory},
           nullptr,
           [&](const std::string& text) {
             if (p.view.shape[3] == 0) expect_all(out.view, 0, text);
           }});
  }
}

TEST_P(ZeroSizes, Positions) {
  Array<4> x(random_, DType::kF32, {2, 3, 5, 8}, Values::kOrdinary), p = x.with(random_, Strides::kContiguous),
                                                                     y = x.like(random_);
  Array<2> cos(random_, DType::kF32, {9, 3}, Values::kOrdinary),
      sin = cos.with(random_, Strides::kContiguous), made_cos = cos.like(random_), made_sin = cos.like(random_),
      encoding(random_, DType::kF32, {9, 7});
  Guarded numbers(64, Guard::kAfter);
  int64_t pairs = 3, heads = 3, block = 8;
  const auto rows = [&](bool dimension, auto&... more) -> std::vector<Size> {
    const auto at = [&](size_t i) -> std::vector<int64_t*> {
      return {&x.view.shape[i], &y.view.shape[i], &more.view.shape[i]...};
    };
    return {{"batch", true, at(0)}, {"heads", true, at(1)}, {"rows", true, at(2)}, {"dimension", dimension, at(3)}};
  };
  const auto with_sizes = [](std::vector<Size> sizes, std::initializer_list<Size> more) {
    sizes.insert(sizes.end(), more);
    return sizes;
  };
  const std::vector<const Guarded*> out = {&y.memory};
  for (const RowNorm norm : {RowNorm::kNone, RowNorm::kRms}) {
    check({"rope",
           with_sizes(rows(true), {{"positions", true, {&cos.view.shape[0], &sin.view.shape[0]}},
                                   {"pairs", true, {&cos.view.shape[1], &sin.view.shape[1]}}}),
           [&](bool null) {
             return rope(bare(x.view, null), bare(cos.view, null), bare(sin.view, null), 0, bare(y.view, null),
                         {.norm = norm}, exec());
           },
           out,
           [&] {
             const auto& n = x.view.shape;
             return (n[3] > 0 || cos.view.shape[1] == 0) && (cos.view.shape[0] > 0 || n[2] == 0);
           }});
    check({"rope_direct", with_sizes(rows(false), {{"pairs", false, {&pairs}}}),
           [&](bool null) {
             return rope_direct(bare(x.view, null), pairs, {}, 0, bare(y.view, null), {.norm = norm},
                                with(rope_direct_workspace(pairs)));
           },
           out});
  }
  check({"hadamard", with_sizes(rows(false), {{"block", true, {&block}}}),
         [&](bool null) { return hadamard(bare(x.view, null), bare(y.view, null), block, exec()); }, out});
  check({"add_rows", rows(true, p),
         [&](bool null) { return add_rows(bare(x.view, null), bare(p.view, null), bare(y.view, null), exec()); }, out});
  check({"rope_frequencies",
         {{"pairs", false, {&pairs}}},
         [&](bool) { return rope_frequencies(reinterpret_cast<double*>(numbers.data()), pairs, nullptr); },
         {&numbers}});
  check({"alibi_slopes",
         {{"heads", false, {&heads}}},
         [&](bool) { return alibi_slopes(heads, reinterpret_cast<float*>(numbers.data())); },
         {&numbers}});
  check({"rope_table",
         {{"positions", true, {&made_cos.view.shape[0], &made_sin.view.shape[0]}},
          {"pairs", false, {&made_cos.view.shape[1], &made_sin.view.shape[1]}}},
         [&](bool null) { return rope_table(bare(made_cos.view, null), bare(made_sin.view, null)); },
         {&made_cos.memory, &made_sin.memory}});
  check({"sinusoidal_table",
         {{"positions", true, {&encoding.view.shape[0]}}, {"dimension", false, {&encoding.view.shape[1]}}},
         [&](bool null) { return sinusoidal_table(bare(encoding.view, null)); },
         {&encoding.memory}});
}

SIMDATTN_FOR_EACH_TARGET(ZeroSizes);

}  // namespace
}  // namespace simdattn::test
