// Numbers among the options: whether a number is refused, and what comes out, is the same whatever the caller's
// control word says. A rule that compares numbers before the word is set takes a subnormal one for 0, or raises
// what the caller has unmasked.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tests/interface/environment_scene.h"

namespace simdattn::test {
namespace {

class Options : public TargetTest {};

/// A number that an option may be, or not, and what a call with it writes.
template <class Number>
struct Option {
  std::string what;
  std::function<Status(Number)> call;
  std::vector<const Guarded*> outputs;
};

/// What is refused, and what comes out, is the same in every environment.
template <class Number>
void expect_judged_alike(const std::vector<Option<Number>>& options, const std::vector<Number>& numbers) {
  const uint64_t word = read_word();
  for (const Option<Number>& option : options) {
    bool refused = false, accepted = false;
    for (size_t n = 0; n < numbers.size(); ++n) {
      std::vector<std::vector<unsigned char>> want;
      const auto run = [&](uint64_t bits) {
        for (const Guarded* m : option.outputs) std::memset(m->data(), Guarded::kCanary, m->size());
        write_word(word ^ bits);
        const Status s = option.call(numbers[n]);
        write_word(word);
        return s;
      };
      const Status status = run(0);
      (status.ok() ? accepted : refused) = true;
      for (const Guarded* m : option.outputs) want.emplace_back(m->data(), m->data() + m->size());
      for (const Word& other : kWords) {
        const Status s = run(other.bits);
        EXPECT_STREQ(s.detail, status.detail) << option.what << ", number " << n << ", " << other.what;
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_EQ(std::memcmp(option.outputs[i]->data(), want[i].data(), want[i].size()), 0)
              << option.what << ", number " << n << ", " << other.what << ": output " << i << " differs";
        }
      }
    }
    EXPECT_TRUE(accepted) << option.what;
    EXPECT_TRUE(refused || option.what.find("sinks") != std::string::npos ||
                option.what.find("weight") != std::string::npos)
        << option.what << ": no number is refused";
  }
}

using FloatOptions = std::vector<Option<float>>;
void add(FloatOptions& all, const char* what, std::vector<const Guarded*> outputs, std::function<Status(float)> call) {
  all.push_back({what, std::move(call), std::move(outputs)});
}

void add_scales(FloatOptions& all, Scene& s) {
  for (const Arithmetic arithmetic : {Arithmetic::kF32, Arithmetic::kBF16, Arithmetic::kInt8}) {
    add(all, "scores, scale", {&s.out_scores.memory}, [&s, arithmetic](float x) {
      return scores(s.q.view, s.k.view, s.out_scores.view, {.scale = x, .arithmetic = arithmetic}, s.exec);
    });
  }
  add(all, "gaussian_scores, scale", {&s.out_scores.memory},
      [&s](float x) { return gaussian_scores(s.q.view, s.k.view, s.out_scores.view, {.scale = x}, s.exec); });
  add(all, "bilinear_scores, scale", {&s.out_scores.memory},
      [&s](float x) { return bilinear_scores(s.q.view, s.m.view, s.k.view, s.out_scores.view, {.scale = x}, s.exec); });
  add(all, "index_scores, scale", {&s.indexed.memory}, [&s](float x) {
    ConstKv one_head = s.k.view;
    one_head.heads = 1;
    return index_scores(s.q.view, one_head, {}, s.indexed.view, {.scale = x}, s.exec);
  });
  add(all, "linear_attention, scale", {&s.linear_out.memory, &s.state.memory}, [&s](float x) {
    LinearAttentionProblem p = s.linear;
    p.scale = x;
    return linear_attention(p, s.exec);
  });
  add(all, "attention_merge, sinks", {&s.out_v.memory, &s.lse.memory}, [&s](float x) {
    s.factors[1] = x;
    return attention_merge(s.parts.view, s.part_lse.view, s.out_v.view, s.lse.view, s.factors, s.exec);
  });
}

void add_scoring(FloatOptions& all, Scene& s) {
  struct Member {
    const char* what;
    void (*put)(Scoring& scoring, float* heads, float x);
  };
  static constexpr Member kMembers[] = {
      {"scale", [](Scoring& o, float*, float x) { o.scale = x; }},
      {"softcap", [](Scoring& o, float*, float x) { o.softcap = x; }},
      {"slopes", [](Scoring& o, float* heads, float x) { heads[1] = x, o.alibi_slopes = heads; }},
      {"bias_scale", [](Scoring& o, float* heads, float x) { heads[1] = x, o.bias_scale = heads; }},
      {"sinks", [](Scoring& o, float* heads, float x) { heads[1] = x, o.sinks = heads; }}};
  for (const Member& member : kMembers) {
    const auto with = [&s, put = member.put](float x) {
      Scoring o;
      o.bias = s.bias.view;
      s.factors[0] = s.factors[2] = s.factors[3] = 1;
      put(o, s.factors, x);
      return o;
    };
    add(all, member.what, {&s.out_scores.memory, &s.lse.memory},
        [&s, with](float x) { return masked_softmax(s.p.view, s.out_scores.view, with(x), s.lse.view, s.exec); });
    add(all, member.what, {&s.out_v.memory, &s.lse.memory}, [&s, with](float x) {
      AttentionProblem a = s.problem;
      a.scoring = with(x);
      return attention(a, s.exec);
    });
    add(all, member.what, {&s.out_v.memory, &s.lse.memory}, [&s, with](float x) {
      AttentionProblem a = s.problem;
      a.scoring = with(x);
      Status status = attention_plan(a, &s.plan, s.exec);
      if (status.ok()) status = attention_bind(a, &s.plan);
      return status.ok() ? attention_range(s.plan, 0, s.plan.tasks, s.partial.data(), s.partial.size(), s.exec)
                         : status;
    });
  }
}

void add_norms(FloatOptions& all, Scene& s) {
  for (const bool weight : {false, true}) {
    for (const RowNorm norm : {RowNorm::kNone, RowNorm::kRms, RowNorm::kRmsPlusOne}) {
      if (weight && norm == RowNorm::kNone) continue;
      const auto with = [&s, norm, weight](float x) {
        std::fill_n(s.weights, 37, 1.0f);
        RopeOptions o = {.norm = norm, .norm_weight = s.weights};
        (weight ? s.weights[3] : o.norm_epsilon) = x;
        return o;
      };
      const char* const what = weight ? "norm_weight" : "norm_epsilon";
      add(all, what, {&s.out_q.memory}, [&s, with](float x) {
        return rope(s.x.view, s.used_cos.view, s.used_sin.view, 7, s.out_q.view, with(x), s.exec);
      });
      add(all, what, {&s.out_q.memory},
          [&s, with](float x) { return rope_direct(s.x.view, 18, s.table, 100000, s.out_q.view, with(x), s.exec); });
      add(all, what, {&s.appended.memory}, [&s, with](float x) {
        const KeyRotation r = {.cos = s.used_cos.view, .sin = s.used_sin.view, .options = with(x)};
        return kv_append(s.x.view, s.positions.view, s.appended.kv, {.rope = r}, s.exec);
      });
      if (norm != RowNorm::kNone) continue;
      add(all, what, {&s.shifted.memory}, [&s, with](float x) {
        const KeyRotation r = {.cos = s.used_cos.view, .sin = s.used_sin.view, .options = with(x)};
        return kv_shift(s.shifted.kv, 10, 40, -7, r, s.exec);
      });
    }
  }
}

TEST_P(Options, FloatsAreJudgedAlike) {
  Scene scene(seed() * 7000 + 3, DType::kF32, &target());
  FloatOptions options;
  add_scales(options, scene);
  add_scoring(options, scene);
  add_norms(options, scene);
  using Limits = std::numeric_limits<float>;
  // clang-format off
  const std::vector<float> numbers = {
      0.0f, -0.0f, Limits::denorm_min(), -Limits::denorm_min(), 1e-39f, -1e-39f, Limits::min(), 1.0f, -1.0f,
      Limits::max(), Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(), Limits::signaling_NaN()};
  // clang-format on
  expect_judged_alike(options, numbers);
}

/// A number of RopeTableOptions, or one of an array of numbers; neither: attention_factor.
struct TableNumber {
  const char* what;
  RopeType type;
  double RopeTableOptions::* at;
  Doubles RopeTableOptions::* array;
};
using O = RopeTableOptions;
constexpr TableNumber kTableNumbers[] = {
    {"rope_theta", RopeType::kDefault, &O::rope_theta, nullptr},
    {"factor", RopeType::kLinear, &O::factor, nullptr},
    {"factor", RopeType::kYarn, &O::factor, nullptr},
    {"beta_fast", RopeType::kYarn, &O::beta_fast, nullptr},
    {"beta_slow", RopeType::kYarn, &O::beta_slow, nullptr},
    {"mscale", RopeType::kYarn, &O::mscale, nullptr},
    {"mscale_all_dim", RopeType::kYarn, &O::mscale_all_dim, nullptr},
    {"low_freq_factor", RopeType::kLlama3, &O::low_freq_factor, nullptr},
    {"high_freq_factor", RopeType::kLlama3, &O::high_freq_factor, nullptr},
    {"partial_rotary_factor", RopeType::kProportional, &O::partial_rotary_factor, nullptr},
    {"attention_factor", RopeType::kDefault, nullptr, nullptr},
    {"short_factor", RopeType::kLongRope, nullptr, &O::short_factor},
    {"long_factor", RopeType::kLongRope, nullptr, &O::long_factor},
    {"freq_factors", RopeType::kDefault, nullptr, &O::freq_factors},
    {"inv_freq", RopeType::kDefault, nullptr, &O::inv_freq}};

TEST_P(Options, DoublesAreJudgedAlike) {
  Scene s(seed() * 7000 + 4, DType::kF32, &target());
  std::vector<double> ones(18, 1.0), changed = ones;
  std::vector<Option<double>> options;
  for (const TableNumber& m : kTableNumbers) {
    const auto with = [&](double x) {
      O o;
      o.rope_type = m.type;
      if (m.type == RopeType::kYarn) o.factor = 2;
      o.original_max_position_embeddings = 4096;
      if (m.type == RopeType::kLongRope) o.short_factor = o.long_factor = {ones.data(), 18};
      changed[5] = x;
      if (m.at != nullptr) o.*m.at = x;
      else if (m.array != nullptr) o.*m.array = {changed.data(), 18};
      else o.attention_factor = x;
      return o;
    };
    options.push_back({std::string("rope_frequencies, ") + m.what,
                       [&s, with](double x) {
                         return rope_frequencies(reinterpret_cast<double*>(s.frequencies.data()), 18, nullptr, with(x));
                       },
                       {&s.frequencies}});
    options.push_back({std::string("rope_table, ") + m.what,
                       [&s, with](double x) { return rope_table(s.cos.view, s.sin.view, with(x)); },
                       {&s.cos.memory, &s.sin.memory}});
    options.push_back({std::string("rope_direct, ") + m.what,
                       [&s, with](double x) { return rope_direct(s.x.view, 18, with(x), 3, s.out_q.view, {}, s.exec); },
                       {&s.out_q.memory}});
  }
  options.push_back({"sinusoidal_table, base",
                     [&s](double x) { return sinusoidal_table(s.encoding.view, x); },
                     {&s.encoding.memory}});
  using Limits = std::numeric_limits<double>;
  // clang-format off
  const std::vector<double> numbers = {
      0.0, -0.0, Limits::denorm_min(), -Limits::denorm_min(), 1e-310, Limits::min(), 1e-6, 1e-3, 0.5, 1.0, 2.0, -1.0,
      1e6, 1e15, 1e16, Limits::max(), Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(), Limits::signaling_NaN()};
  // clang-format on
  expect_judged_alike(options, numbers);
}

SIMDATTN_FOR_EACH_TARGET(Options);

}  // namespace
}  // namespace simdattn::test
