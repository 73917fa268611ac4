// Control words that a caller may have, and calls of every function, with numbers that tell: subnormal ones of
// every type, and ones halfway between two of a narrower type.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "simdattn/extras.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn::test {

// ---------------------------------------------------------------------------------------------------------------------
// Control words

struct Word {
  const char* what;
  uint64_t bits;  // that differ from the default
};

#if defined(__x86_64__)
constexpr uint64_t kControl = 0xFFC0;
inline uint64_t read_word() { return _mm_getcsr() & kControl; }
/// Without flags of what has happened: one that is set when its exception is unmasked would fault.
inline void write_word(uint64_t word) { _mm_setcsr(static_cast<unsigned>(word)); }
constexpr Word kWords[] = {
    {"results flushed to zero", 0x8000},
    {"subnormal inputs are zeros", 0x0040},
    {"rounding down", 0x2000},
    {"rounding up", 0x4000},
    {"rounding towards zero", 0x6000},
    {"exceptions unmasked", 0x1F80},
    {"everything", 0xDFC0},
};
#elif defined(__aarch64__)
// Traps are those of CPUs that have them; elsewhere their bits stay 0.
inline uint64_t read_word() {
  uint64_t word;
  asm volatile("mrs %0, fpcr" : "=r"(word) : : "memory");
  return word;
}
inline void write_word(uint64_t word) { asm volatile("msr fpcr, %0" : : "r"(word) : "memory"); }
constexpr Word kWords[] = {
    {"flushed to zero", uint64_t{1} << 24},
    {"f16 flushed to zero", uint64_t{1} << 19},
    {"rounding up", uint64_t{1} << 22},
    {"rounding down", uint64_t{2} << 22},
    {"rounding towards zero", uint64_t{3} << 22},
    {"default NaN", uint64_t{1} << 25},
    {"alternative f16", uint64_t{1} << 26},
    {"exceptions unmasked", 0x9F00},
    {"everything", 0x07489F00},
};
#elif defined(__powerpc64__) && defined(__LITTLE_ENDIAN__)
// FPSCR, and in the upper half VSCR.
using Vector [[gnu::vector_size(16)]] = uint32_t;
inline uint64_t read_word() {
  double fpscr;
  Vector vscr;
  asm volatile("mffs %0\n\tmfvscr %1" : "=d"(fpscr), "=v"(vscr) : : "memory");
  return (std::bit_cast<uint64_t>(fpscr) & 0xFF) | uint64_t{vscr[0]} << 32;
}
inline void write_word(uint64_t word) {
  const Vector vscr = {static_cast<uint32_t>(word >> 32)};
  asm volatile("mtfsf 255,%0\n\tmtvscr %1" : : "d"(std::bit_cast<double>(word & 0xFF)), "v"(vscr) : "memory");
}
constexpr Word kWords[] = {
    {"rounding towards zero", 1},
    {"rounding up", 2},
    {"rounding down", 3},
    {"non-IEEE mode", 4},
    {"exceptions unmasked", 0xF8},
    {"the other mode of VMX", uint64_t{1} << 48},
    {"everything", 0x00010000000000FF},
};
#elif defined(__riscv)
inline uint64_t read_word() {
  uint64_t word;
  asm volatile("frrm %0" : "=r"(word) : : "memory");
  return word;
}
inline void write_word(uint64_t word) { asm volatile("fsrm %0" : : "r"(word) : "memory"); }
constexpr Word kWords[] = {
    {"rounding towards zero", 1}, {"rounding down", 2}, {"rounding up", 3}, {"rounding ties away from zero", 4}};
#else
inline uint64_t read_word() { return 0; }
inline void write_word(uint64_t) {}
constexpr Word kWords[] = {{"no control word is known here", 0}};
#endif

// ---------------------------------------------------------------------------------------------------------------------
// Calls of every function

/// Numbers that another environment reads, computes or rounds differently.
template <int kRank>
Array<kRank> numbers(Random& random, DType dtype, const std::array<int64_t, kRank>& shape) {
  Array<kRank> result(random, dtype, shape);
  for_each_element(result.view, [&](int64_t at) {
    const float x = random.uniform();
    const auto bits = std::bit_cast<uint32_t>(x);
    const auto put_at = [&](float y) { put(result.view.data, dtype, at, y); };
    switch (random.integer(1, 6)) {
      case 1: put_at(std::bit_cast<float>((bits & 0xFFFF0000u) | 0x8000u)); break;  // halfway in bf16
      case 2: put_at(std::bit_cast<float>((bits & 0xFFFFE000u) | 0x1000u)); break;  // halfway in f16
      case 3: put_at(x * 0x1p-15f); break;                                          // subnormal in f16
      case 4:                                                                       // subnormal in its own type
        set_element_bits(result.view.data, dtype, at,
                         (random.bits() & (dtype == DType::kF32    ? 0x807FFFFFu
                                           : dtype == DType::kBF16 ? 0x807Fu
                                                                   : 0x83FFu)));
        break;
      default: put_at(x);
    }
  });
  return result;
}

struct Call {
  const char* function;
  std::function<Status()> run;
  std::vector<const Guarded*> outputs;
  bool in_place = false;
};

/// Arrays for every function, in which `t` is the type of elements, and its calls.
struct Scene {
  Random random;
  DType t;
  Exec exec;
  Array<4> q = numbers<4>(random, t, {2, 4, 3, 37}), k = numbers<4>(random, t, {2, 2, 45, 37}),
           v = numbers<4>(random, t, {2, 2, 45, 21}), p = numbers<4>(random, DType::kF32, {2, 4, 3, 45}),
           x = numbers<4>(random, DType::kF32, {2, 4, 3, 37}), w4 = numbers<4>(random, t, {2, 4, 3, 37}),
           bias = numbers<4>(random, t, {2, 4, 3, 45});
  Array<3> m = numbers<3>(random, t, {4, 37, 37}), wk = numbers<3>(random, t, {2, 20, 37}),
           wq = numbers<3>(random, t, {4, 20, 37});
  Array<2> w = numbers<2>(random, DType::kF32, {4, 20}), rows = numbers<2>(random, DType::kF32, {9, 83});
  Array<4> lists{random, DType::kI32, {2, 4, 3, 11}}, indexed{random, DType::kF32, {2, 1, 3, 45}};
  Array<4> out_scores{random, DType::kF32, {2, 4, 3, 45}}, out_q{random, t, {2, 4, 3, 37}},
      out_v{random, t, {2, 4, 3, 21}}, acc{random, DType::kF32, {2, 4, 3, 21}};
  Array<2> out_rows{random, DType::kF32, {9, 83}};
  Array<1> row_lse{random, DType::kF32, {9}};
  Array<3> head_weights{random, DType::kF32, {2, 3, 4}, Values::kOrdinary};
  Array<3> lse{random, DType::kF32, {2, 4, 3}}, max = lse.like(random), sum = lse.like(random);
  Array<5> parts = numbers<5>(random, t, {3, 2, 4, 3, 21});
  Array<4> part_lse = numbers<4>(random, DType::kF32, {3, 2, 4, 3});
  Array<2> cos{random, DType::kF32, {60, 18}}, sin{random, DType::kF32, {60, 18}},
      used_cos = cos.like(random), used_sin = cos.like(random), encoding{random, DType::kF32, {40, 33}},
      positions{random, DType::kI32, {2, 3}};
  KvStorage panels = store_kv(random, k, KvForm::kPanels), values = store_kv(random, v, KvForm::kRows),
            shifted = store_kv(random, k, KvForm::kPanels),
            appended = make_kv(random, t, KvForm::kPanels, 2, 4, 64, 37),
            appended_rows = make_kv(random, t, KvForm::kRows, 2, 4, 64, 37),
            integers = make_kv(random, KvType::kInt8, KvForm::kPanels, 2, 4, 64, 37);
  Array<4> loaded{random, DType::kF32, {2, 4, 64, 37}};
  Array<4> long_q = numbers<4>(random, t, {1, 2, 1, 37}), long_k = numbers<4>(random, t, {1, 1, 2500, 37}),
           long_v = numbers<4>(random, t, {1, 1, 2500, 21}), long_out{random, t, {1, 2, 1, 21}};
  Guarded workspace{1 << 20, Guard::kAfter}, partial{1 << 16, Guard::kAfter}, other_partial{1 << 16, Guard::kAfter};
  Guarded slopes{13 * sizeof(float), Guard::kAfter}, frequencies{19 * sizeof(double), Guard::kAfter};
  float factors[4] = {0.7f, 1e-39f, -0.3f, 1.1f}, weights[37];
  double factor = 0;
  Array<4> beta = numbers<4>(random, t, {2, 4, 3, 1}), state = numbers<4>(random, DType::kF32, {2, 4, 37, 37}),
           linear_out{random, t, {2, 4, 3, 37}};
  Array<3> conv_x = numbers<3>(random, t, {2, 5, 9}), conv_state = numbers<3>(random, t, {2, 5, 3}),
           conv_out{random, t, {2, 5, 9}};
  Array<2> taps = numbers<2>(random, t, {5, 4});
  LinearAttentionProblem linear;
  CausalConvProblem conv;
  AttentionProblem problem, divided;
  Plan plan;
  RopeTableOptions table;

  Scene(uint64_t seed, DType type, const Target* target) : random(seed), t(type) {
    exec.target = target;
    exec.workspace = workspace.data();
    exec.workspace_bytes = workspace.size();
    for (int32_t i = 0; i < 6; ++i) static_cast<int32_t*>(positions.view.data)[i] = 5 + 3 * i;
    EXPECT_TRUE(rope_table(used_cos.view, used_sin.view).ok());
    problem.q = q.view, problem.k = panels.kv, problem.v = values.kv, problem.out = out_v.view, problem.lse = lse.view;
    problem.acc = acc.view, problem.max = max.view, problem.sum = sum.view;
    problem.scoring.causal = true;
    problem.scoring.softcap = 3;
    problem.scoring.bias = bias.view;
    problem.scoring.bias_scale = problem.scoring.alibi_slopes = problem.scoring.sinks = factors;
    divided.q = long_q.view, divided.k = long_k.view, divided.v = long_v.view, divided.out = long_out.view;
    linear.q = linear.k = linear.v = linear.decay = x.view, linear.beta = beta.view;
    linear.state = state.view, linear.out = linear_out.view;
    conv.x = conv_x.view, conv.weight = taps.view, conv.state = conv_state.view, conv.out = conv_out.view,
    conv.silu = true;
    table.rope_type = RopeType::kYarn;
    table.factor = 3.3;
    table.original_max_position_embeddings = 4096;
    table.rope_theta = 12345;
  }

  static constexpr Arithmetic kBF16 = Arithmetic::kBF16, kInt8 = Arithmetic::kInt8;
  static constexpr float kTinyScale = 0x1.234568p-120f;
  AttentionProblem in(Arithmetic arithmetic) const {
    AttentionProblem result = problem;
    result.arithmetic = arithmetic;
    return result;
  }

  std::vector<Call> calls() {
    const ScoreOptions tiny = {.scale = kTinyScale}, plain = {.scale = 0.3f};
    const KeyRotation rotation = {.cos = used_cos.view, .sin = used_sin.view};
    const std::vector<const Guarded*> whole = {&out_v.memory, &lse.memory, &acc.memory, &max.memory, &sum.memory};
    return {
        {"scores", [=, this] { return scores(q.view, k.view, out_scores.view, plain, exec); }, {&out_scores.memory}},
        {"scores, tiny",
         [=, this] { return scores(q.view, k.view, out_scores.view, tiny, exec); },
         {&out_scores.memory}},
        {"softmax",
         [this] { return softmax(rows.view, out_rows.view, row_lse.view, exec); },
         {&out_rows.memory, &row_lse.memory}},
        {"masked_softmax",
         [this] { return masked_softmax(p.view, out_scores.view, problem.scoring, lse.view, exec); },
         {&out_scores.memory, &lse.memory}},
        {"weighted_values", [this] { return weighted_values(p.view, v.view, out_v.view, {}, exec); }, {&out_v.memory}},
        {"scores in bf16",
         [=, this] { return scores(q.view, k.view, out_scores.view, {.scale = 0.3f, .arithmetic = kBF16}, exec); },
         {&out_scores.memory}},
        {"scores in bf16, tiny",
         [=, this] {
           return scores(q.view, k.view, out_scores.view, {.scale = kTinyScale, .arithmetic = kBF16}, exec);
         },
         {&out_scores.memory}},
        {"scores in int8",
         [=, this] { return scores(q.view, k.view, out_scores.view, {.scale = 0.3f, .arithmetic = kInt8}, exec); },
         {&out_scores.memory}},
        {"scores in int8, tiny",
         [=, this] {
           return scores(q.view, k.view, out_scores.view, {.scale = kTinyScale, .arithmetic = kInt8}, exec);
         },
         {&out_scores.memory}},
        {"weighted_values in bf16",
         [=, this] { return weighted_values(p.view, v.view, out_v.view, {.arithmetic = kBF16}, exec); },
         {&out_v.memory}},
        {"weighted_values in int8",
         [=, this] { return weighted_values(p.view, v.view, out_v.view, {.arithmetic = kInt8}, exec); },
         {&out_v.memory}},
        {"attention in bf16", [this] { return attention(in(kBF16), exec); }, whole},
        {"attention in int8", [this] { return attention(in(kInt8), exec); }, whole},
        {"gaussian_scores",
         [=, this] { return gaussian_scores(q.view, k.view, out_scores.view, tiny, exec); },
         {&out_scores.memory}},
        {"bilinear_scores",
         [=, this] { return bilinear_scores(q.view, m.view, k.view, out_scores.view, plain, exec); },
         {&out_scores.memory}},
        {"additive_scores",
         [this] { return additive_scores(q.view, k.view, w.view, out_scores.view, wq.view, wk.view, exec); },
         {&out_scores.memory}},
        {"alibi_slopes", [this] { return alibi_slopes(13, reinterpret_cast<float*>(slopes.data())); }, {&slopes}},
        {"hadamard", [this] { return hadamard(x.view, out_q.view, 0, exec); }, {&out_q.memory}},
        {"add_rows", [this] { return add_rows(x.view, w4.view, out_q.view, exec); }, {&out_q.memory}},
        {"rope",
         [this] { return rope(x.view, used_cos.view, used_sin.view, 7, out_q.view, {}, exec); },
         {&out_q.memory}},
        {"rope_frequencies",
         [this] { return rope_frequencies(reinterpret_cast<double*>(frequencies.data()), 19, &factor, table); },
         {&frequencies}},
        {"rope_table",
         [this] { return rope_table(cos.view, sin.view, table, {}, 100000); },
         {&cos.memory, &sin.memory}},
        {"rope_table in f32",
         [this] { return rope_table(cos.view, sin.view, {.rope_theta = 777, .f32_angles = true}, {}, 100000); },
         {&cos.memory, &sin.memory}},
        {"rope_direct",
         [this] { return rope_direct(x.view, 18, table, 100000, out_q.view, {}, exec); },
         {&out_q.memory}},
        {"index_scores",
         [this] {
           ConstKv one_head = k.view;
           one_head.heads = 1;
           return index_scores(q.view, one_head, head_weights.view, indexed.view, {.scale = kTinyScale, .relu = true},
                               exec);
         },
         {&indexed.memory}},
        {"top_k", [this] { return top_k(p.view, 11, lists.view, {}, exec); }, {&lists.memory}},
        {"sinusoidal_table", [this] { return sinusoidal_table(encoding.view, 1234, {}, 100000); }, {&encoding.memory}},
        {"kv_append",
         [=, this] { return kv_append(x.view, positions.view, appended.kv, {.rope = rotation}, exec); },
         {&appended.memory}},
        {"kv_append without a table",
         [this] { return kv_append(x.view, positions.view, appended_rows.kv, {}, exec); },
         {&appended_rows.memory}},
        {"kv_shift", [=, this] { return kv_shift(shifted.kv, 10, 40, -7, rotation, exec); }, {&shifted.memory}, true},
        {"kv_append of integers",
         [=, this] { return kv_append(x.view, positions.view, integers.kv, {.rope = rotation}, exec); },
         {&integers.memory, &integers.scales}},
        {"kv_read", [this] { return kv_read(integers.kv, 0, loaded.view, exec); }, {&loaded.memory}},
        {"attention", [this] { return attention(problem, exec); }, whole},
        // The plan holds numbers, too; the runs are in the default environment first, then plan and run in the other.
        {"attention_plan, attention_bind, attention_range, attention_reduce",
         [this] {
           Status s = attention_plan(divided, &plan, exec);
           if (s.ok()) s = attention_bind(divided, &plan);
           if (s.ok()) s = attention_range(plan, 0, plan.tasks, partial.data(), partial.size(), exec);
           if (s.ok()) s = attention_reduce(plan, 0, plan.reduce_tasks, partial.data(), partial.size(), exec);
           return s;
         },
         {&long_out.memory}},
        {"attention_range",
         [this] { return attention_range(plan, 0, plan.tasks, other_partial.data(), other_partial.size(), exec); },
         {&other_partial}},
        {"attention_reduce",
         [this] { return attention_reduce(plan, 0, plan.reduce_tasks, partial.data(), partial.size(), exec); },
         {&long_out.memory}},
        {"linear_attention",
         [this] { return linear_attention(linear, exec); },
         {&state.memory, &linear_out.memory},
         true},
        {"linear_attention_range",
         [this] { return linear_attention_range(linear, 1, 3, exec); },
         {&state.memory, &linear_out.memory},
         true},
        {"causal_conv", [this] { return causal_conv(conv, exec); }, {&conv_state.memory, &conv_out.memory}, true},
        {"attention_merge",
         [this] { return attention_merge(parts.view, part_lse.view, out_v.view, lse.view, factors, exec); },
         {&out_v.memory, &lse.memory}},
    };
  }
};

}  // namespace simdattn::test
