// Bad calls of linear_attention() and causal_conv().
#include <ctime>

#include "tests/rules/bad_calls.h"

namespace simdattn::test {
namespace {

struct LinearCall : BadCall {
  Random random{7};
  Array<4> q{random, DType::kF32, {2, 2, 3, 16}, Values::kOrdinary},
      k{random, DType::kBF16, {2, 2, 3, 16}, Values::kOrdinary},
      v{random, DType::kF32, {2, 4, 3, 40}, Values::kOrdinary},
      decay{random, DType::kF32, {2, 4, 3, 16}, Values::kOrdinary},
      beta{random, DType::kF16, {2, 1, 3, 1}, Values::kOrdinary}, state{random, DType::kF32, {3, 4, 16, 40}},
      out{random, DType::kF32, {2, 4, 3, 40}};
  Array<4> past{random, DType::kF32, {3, 4, 16, 40}, Values::kOrdinary};
  Array<5> states{random, DType::kF32, {2, 2, 4, 16, 40}};
  int32_t index[2] = {2, 0}, cu_q[4] = {0, 1, 1, 3};
  LinearAttentionProblem p;
  Guarded memory;
  LinearCall() {
    p.q = q.view, p.k = k.view, p.v = v.view, p.decay = decay.view, p.beta = beta.view;
    p.state = state.view, p.out = out.view, p.states = states.view, p.state_index = index;
    memory = Guarded(linear_attention_workspace(p), Guard::kAfter);
    exec.workspace = memory.data();
    exec.workspace_bytes = memory.size();
  }
  /// One batch entry of three sequences.
  void varlen() {
    p.cu_q = cu_q;
    p.n_sequences = 3;
    p.state_index = nullptr;
    p.states = {};
    for (ConstView<4>* x : {&p.q, &p.k, &p.v, &p.decay, &p.beta}) x->shape[0] = 1;
    p.out.shape[0] = 1;
  }
  Status call() const override { return linear_attention(p, exec); }
  std::vector<const Guarded*> outputs() const override { return {&state.memory, &out.memory, &states.memory}; }
};

TEST_P(BadCalls, LinearAttention) {
  using C = LinearCall;
  const std::vector<Bad<C>> table = {
      {"q null", kNullPointer, "q", [](C& c) { c.p.q.data = nullptr; }},
      {"state null", kNullPointer, "state", [](C& c) { c.p.state.data = nullptr; }},
      {"out null", kNullPointer, "out", [](C& c) { c.p.out.data = nullptr; }},
      {"cu_q forgotten", kNullPointer, "cu_q: null",
       [](C& c) { c.p.state_index = nullptr, c.p.n_sequences = c.p.state.shape[0]; }},
      {"no decay", kNullPointer, "decay", [](C& c) { c.p.decay = {}; }},
      {"a decay too many", kRange, "decay", [](C& c) { c.p.rule = LinearRule::kDelta; }},
      {"a beta too many", kRange, "beta", [](C& c) { c.p.rule = LinearRule::kGated; }},
      {"no rule", kRange, "rule", [](C& c) { c.p.rule = static_cast<LinearRule>(4); }},
      {"a negative rule", kRange, "rule", [](C& c) { c.p.rule = static_cast<LinearRule>(-1); }},
      {"no order of heads", kRange, "head_order", [](C& c) { c.p.head_order = static_cast<HeadOrder>(2); }},
      {"scale NaN", kRange, "scale", [](C& c) { c.p.scale = kNaN; }},
      {"scale infinite", kRange, "scale", [](C& c) { c.p.scale = -kInf; }},
      {"reserved numbers", kStructSize, "reserved", [](C& c) { c.p.reserved[3] = 1; }},
      {"a struct that was only cleared", kStructSize, "problem", [](C& c) { c.p.struct_size = 0; }},
      {"q of integers", kDType, "q", [](C& c) { c.p.q.dtype = DType::kI32; }},
      {"state of bf16", kDType, "state", [](C& c) { c.p.state.dtype = DType::kBF16; }},
      {"states of f16", kDType, "states", [](C& c) { c.p.states.dtype = DType::kF16; }},
      {"decay of bytes", kDType, "decay", [](C& c) { c.p.decay.dtype = DType::kU8; }},
      {"no head dimension", kShape, "q.shape[3]", [](C& c) { c.p.q.shape[3] = c.p.k.shape[3] = 0; }},
      {"no value dimension", kShape, "v.shape[3]", [](C& c) { c.p.v.shape[3] = 0; }},
      {"no heads of k", kShape, "q.shape[1], k.shape[1]", [](C& c) { c.p.k.shape[1] = 0; }},
      {"other tokens in k", kShape, "k.shape", [](C& c) { c.p.k.shape[2] = 2; }},
      {"another dimension of k", kShape, "k.shape", [](C& c) { c.p.k.shape[3] = 15; }},
      {"another batch of v", kShape, "v.shape", [](C& c) { c.p.v.shape[0] = 1; }},
      {"heads that do not divide", kShape, "v.shape[1]", [](C& c) { c.p.v.shape[1] = 3; }},
      {"heads of q that do not divide", kShape, "q.shape[1]",
       [](C& c) { c.p.q.shape[1] = 3, c.p.k.shape[1] = 1, c.p.q.stride[1] = 0; }},
      {"too many heads of q", kShape, "q.shape[1]", [](C& c) { c.p.q.shape[1] = 4 * 257, c.p.q.stride[1] = 0; }},
      {"heads of out", kShape, "out.shape", [](C& c) { c.p.out.shape[1] = 2; }},
      {"heads of the decay", kShape, "decay.shape[1]", [](C& c) { c.p.decay.shape[1] = 2; }},
      {"tokens of the decay", kShape, "decay.shape", [](C& c) { c.p.decay.shape[2] = 2; }},
      {"channels of the decay", kShape, "decay.shape[3]", [](C& c) { c.p.decay.shape[3] = 15; }},
      {"a beta per channel", kShape, "beta.shape[3]", [](C& c) { c.p.beta.shape[3] = 16; }},
      {"heads of beta", kShape, "beta.shape[1]", [](C& c) { c.p.beta.shape[1] = 2, c.p.beta.stride[1] = 0; }},
      {"shape of the state", kShape, "state.shape", [](C& c) { c.p.state.shape[2] = 15; }},
      {"a state that is not transposed", kShape, "state.shape", [](C& c) { c.p.transposed = true; }},
      {"more states than sequences", kShape, "state.shape[0]", [](C& c) { c.p.state_index = nullptr; }},
      {"shape of the states", kShape, "states.shape", [](C& c) { c.p.states.shape[0] = 1; }},
      {"a state that is none", kRange, "state_index", [](C& c) { c.index[1] = 3; }},
      {"a state twice", kRange, "state_index", [](C& c) { c.index[0] = 0; }},
      {"cu_q not from 0", kRange, "cu_q[0]", [](C& c) { c.varlen(), c.cu_q[0] = 1; }},
      {"cu_q falls", kRange, "cu_q", [](C& c) { c.varlen(), c.cu_q[1] = 2; }},
      {"cu_q ends early", kShape, "cu_q", [](C& c) { c.varlen(), c.cu_q[3] = 2; }},
      {"cu_q with a batch", kShape, "q.shape[0]", [](C& c) { c.p.cu_q = c.cu_q, c.p.n_sequences = 3; }},
      {"sequences negative", kRange, "n_sequences", [](C& c) { c.varlen(), c.p.n_sequences = -1; }},
      {"q not contiguous", kStride, "q", [](C& c) { c.p.q.stride[3] = 2; }},
      {"states that coincide", kStride, "state", [](C& c) { c.p.state.stride[1] = 0; }},
      {"huge stride", kStride, "v", [](C& c) { c.p.v.stride[0] = kHuge << 20; }},
      {"out is v", kOverlap, "out", [](C& c) { c.p.v = c.p.out; }},
      {"state in out", kOverlap, "state",
       [](C& c) {
         c.p.state.data = c.out.memory.data(), c.p.state.shape = {1, 4, 16, 40}, c.p.state_index = nullptr, c.varlen(),
         c.p.n_sequences = 1, c.cu_q[1] = 3;
       }},
      {"states in the state", kOverlap, "states",
       [](C& c) { c.p.states.data = c.state.memory.data(), c.p.states.shape[1] = 1; }},
      {"the index in the state", kOverlap, "state: overlaps state",
       [](C& c) {
         std::memset(c.state.memory.data(), 0xFF, 8);  // -1 twice: skipped
         c.p.state_index = reinterpret_cast<const int32_t*>(c.state.memory.data());
       }},
      {"state_in null", kNullPointer, "state.data",
       [](C& c) { c.p.state_in = c.past.view, c.p.state_in.data = nullptr, c.p.state.data = nullptr; }},
      {"a state without data behind state_in", kNullPointer, "state",
       [](C& c) { c.p.state_in = c.past.view, c.p.state.data = nullptr; }},
      {"state_in of f16", kDType, "state_in",
       [](C& c) { c.p.state_in = c.past.view, c.p.state_in.dtype = DType::kF16; }},
      {"shape of state_in", kShape,
       "state_in.shape: ", [](C& c) { c.p.state_in = c.past.view, c.p.state_in.shape[3] = 39; }},
      {"states of state_in", kShape, "state_in.shape[0]",
       [](C& c) { c.p.state_in = c.past.view, c.p.state_in.shape[0] = 2; }},
      {"states of state_in alone", kShape, "state_in.shape[0]",
       [](C& c) { c.p.state_in = c.past.view, c.p.state = {}, c.p.state_index = nullptr; }},
      {"a state that is none in state_in", kRange, "state_index: must be below state_in",
       [](C& c) { c.p.state_in = c.past.view, c.p.state = {}, c.index[0] = 3; }},
      {"state one row into state_in", kOverlap, "state: overlaps state_in",
       [](C& c) {
         c.p.state_in = c.p.state, c.p.state_in.shape[0] = c.p.state.shape[0] = 2, c.index[0] = 1;
         c.p.state_in.data = static_cast<float*>(c.p.state.data) + c.p.state.stride[0];
       }},
      {"state_in the other way round", kOverlap, "state: overlaps state_in",
       [](C& c) {
         c.p.state_in = c.p.state;
         c.p.state_in.data = static_cast<float*>(c.p.state.data) + 2 * c.p.state.stride[0];
         c.p.state_in.stride[0] = -c.p.state.stride[0];
       }},
      {"states in state_in", kOverlap, "states",
       [](C& c) {
         c.p.state_in = c.past.view, c.p.state_in.data = c.states.memory.data(), c.p.state_in.stride[0] = 0;
       }},
      {"out in state_in", kOverlap, "out",
       [](C& c) { c.p.state_in = c.past.view, c.p.state_in.data = c.out.memory.data(), c.p.state_in.stride[0] = 0; }},
      {"workspace in state_in", kOverlap, "exec.workspace",
       [](C& c) { c.p.state_in = c.past.view, c.exec.workspace = c.past.memory.data(), c.p.state_in.stride[0] = 0; }},
      {"workspace null", kWorkspace, "exec.workspace", [](C& c) { c.exec.workspace = nullptr; }},
      {"workspace short", kWorkspace, "exec.workspace_bytes", [](C& c) { --c.exec.workspace_bytes; }},
      {"workspace in out", kOverlap, "exec.workspace", [](C& c) { c.exec.workspace = c.out.memory.data(); }},
  };
  check<C>("linear_attention", table);
  {
    LinearCall c;
    c.p.n_sequences = 5;
    const Status s = linear_attention_range(c.p, 0, 20, c.exec);
    EXPECT_EQ(s.code, kNullPointer);
    EXPECT_EQ(std::string(s.detail).rfind("cu_q: null", 0), 0u) << s.detail;
  }
  for (const auto& [first, last] : {std::pair<int64_t, int64_t>{-1, 1}, {2, 1}, {0, 9}}) {
    const LinearCall c;
    const Status s = linear_attention_range(c.p, first, last, c.exec);
    EXPECT_EQ(s.code, kRange);
    EXPECT_EQ(std::string(s.detail).rfind("first, last", 0), 0u);
  }
}

struct ConvCall : BadCall {
  Random random{8};
  Array<3> x{random, DType::kBF16, {2, 40, 5}, Values::kOrdinary}, state{random, DType::kBF16, {2, 40, 3}},
      out{random, DType::kF32, {2, 40, 5}};
  Array<2> weight{random, DType::kF32, {40, 4}, Values::kOrdinary};
  Array<3> past{random, DType::kBF16, {2, 40, 3}, Values::kOrdinary};
  Array<1> bias{random, DType::kF16, {40}, Values::kOrdinary};
  int32_t index[2] = {1, 0}, cu_q[2] = {0, 5};
  CausalConvProblem p;
  ConvCall() {
    p.x = x.view, p.weight = weight.view, p.bias = bias.view, p.state = state.view, p.out = out.view;
    p.state_index = index;
  }
  Status call() const override { return causal_conv(p, exec); }
  std::vector<const Guarded*> outputs() const override { return {&state.memory, &out.memory}; }
};

TEST_P(BadCalls, CausalConv) {
  using C = ConvCall;
  const std::vector<Bad<C>> table = {
      {"x null", kNullPointer, "x", [](C& c) { c.p.x.data = nullptr; }},
      {"weight null", kNullPointer, "weight", [](C& c) { c.p.weight.data = nullptr; }},
      {"state null", kNullPointer, "state", [](C& c) { c.p.state.data = nullptr; }},
      {"reserved numbers", kStructSize, "reserved", [](C& c) { c.p.reserved[0] = 1; }},
      {"a struct that was only cleared", kStructSize, "problem", [](C& c) { c.p.struct_size = 0; }},
      {"x of bytes", kDType, "x", [](C& c) { c.p.x.dtype = DType::kU8; }},
      {"a state of another type", kDType, "state", [](C& c) { c.p.state.dtype = DType::kF16; }},
      {"another shape of out", kShape, "out.shape", [](C& c) { c.p.out.shape[2] = 4; }},
      {"channels of weight", kShape, "weight.shape[0]", [](C& c) { c.p.weight.shape[0] = 39; }},
      {"no width", kShape, "weight.shape[1]", [](C& c) { c.p.weight.shape[1] = 0; }},
      {"too wide", kShape, "weight.shape[1]", [](C& c) { c.p.weight.shape[1] = 33, c.p.weight.stride[0] = 0; }},
      {"another width than that of the states", kShape, "weight.shape[1]",
       [](C& c) { c.p.state_in = c.past.view, c.p.weight.shape[1] = 3; }},
      {"cu_q forgotten", kNullPointer, "cu_q: null",
       [](C& c) { c.p.state_index = nullptr, c.p.n_sequences = c.p.state.shape[0] = 3; }},
      {"channels of bias", kShape, "bias.shape[0]", [](C& c) { c.p.bias.shape[0] = 39; }},
      {"width of the state", kShape, "state.shape", [](C& c) { c.p.state.shape[2] = 2; }},
      {"channels last", kShape, "weight.shape[0]", [](C& c) { c.p.channels_last = true; }},
      {"a state that is none", kRange, "state_index", [](C& c) { c.index[0] = 2; }},
      {"a state twice", kRange, "state_index", [](C& c) { c.index[0] = 0; }},
      {"fewer states", kShape, "state.shape[0]", [](C& c) { c.p.state.shape[0] = 1, c.p.state_index = nullptr; }},
      {"a state of width 1", kRange, "state: given", [](C& c) { c.p.weight.shape[1] = 1, c.p.state_index = nullptr; }},
      {"an empty state of width 1", kRange, "state: given",
       [](C& c) { c.p.weight.shape[1] = 1, c.p.state_index = nullptr, c.p.state.shape[2] = 0; }},
      {"a state_in of width 1", kRange, "state_in: given",
       [](C& c) { c.p.weight.shape[1] = 1, c.p.state_index = nullptr, c.p.state = {}, c.p.state_in = c.past.view; }},
      {"an index of width 1", kRange, "state_index: given", [](C& c) { c.p.weight.shape[1] = 1, c.p.state = {}; }},
      {"cu_q with a batch", kShape, "x.shape[0]", [](C& c) { c.p.cu_q = c.cu_q, c.p.n_sequences = 1; }},
      {"no state", kShape, "state.shape", [](C& c) { c.p.state = {}; }},
      {"type of state_in", kDType, "state_in",
       [](C& c) { c.p.state_in = c.past.view, c.p.state_in.dtype = DType::kF16; }},
      {"shape of state_in", kShape,
       "state_in.shape: ", [](C& c) { c.p.state_in = c.past.view, c.p.state_in.shape[2] = 2; }},
      {"states of state_in", kShape, "state_in.shape[0]",
       [](C& c) { c.p.state_in = c.past.view, c.p.state_in.shape[0] = 1; }},
      {"a state that is none in state_in", kRange, "state_index",
       [](C& c) { c.p.state_in = c.past.view, c.p.state = {}, c.index[0] = 2; }},
      {"state over a part of state_in", kOverlap, "state: overlaps state_in",
       [](C& c) { c.p.state_in = c.p.state, c.p.state_in.stride[0] = 0; }},
      {"out over state_in", kOverlap, "out",
       [](C& c) { c.p.state_in = c.past.view, c.p.state_in.data = c.out.memory.data(); }},
      {"out not transposed", kShape, "out.shape", [](C& c) { c.p.out_transposed = true; }},
      {"out transposed over x", kOverlap, "out",
       [](C& c) {
         c.p.out_transposed = true;
         c.p.out = {c.out.memory.data(), DType::kF32, {2, 5, 40}, {200, 40, 1}};
         c.p.x = {c.out.memory.data(), DType::kF32, {2, 40, 5}, {200, 5, 1}};
         c.p.state_in = {c.past.memory.data(), DType::kF32, {2, 40, 3}, {0, 0, 1}};
         c.p.state = {};
       }},
      {"x not contiguous", kStride, "x", [](C& c) { c.p.x.stride[2] = 0; }},
      {"out that coincides", kStride, "out", [](C& c) { c.p.out.stride[1] = 0; }},
      {"out over x", kOverlap, "out", [](C& c) { c.p.x.data = c.out.memory.data(); }},
      {"out over weight", kOverlap, "out", [](C& c) { c.p.weight.data = c.out.memory.data(); }},
      {"state over bias", kOverlap, "state", [](C& c) { c.p.bias.data = c.state.memory.data(); }},
  };
  check<C>("causal_conv", table);
}

/// States of many sequences: two equal entries are found wherever they are, and a call does not compare each pair.
TEST_P(BadCalls, StateIndexOfManySequences) {
  Random random(9);
  constexpr int64_t kSequences = 60000, kStates = int64_t{1} << 20;
  float in = 0, weights[2] = {}, result = 0;
  std::vector<int32_t> index(kSequences);
  for (int64_t s = 0; s < kSequences; ++s) index[static_cast<size_t>(s)] = static_cast<int32_t>(kStates - 1 - 17 * s);
  random.shuffle(index);
  CausalConvProblem p;
  p.x = {&in, DType::kF32, {kSequences, 1, 0}, {0, 0, 1}};
  p.weight = {weights, DType::kF32, {1, 2}};
  p.out = {&result, DType::kF32, {kSequences, 1, 0}, {0, 0, 1}};
  p.state_in = {&in, DType::kF32, {kStates, 1, 1}, {0, 0, 1}};
  p.state_index = index.data();
  const std::clock_t start = std::clock();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(ok(causal_conv(p, exec())));
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 5.0);  // each pair: 36e9 comparisons
  for (int i = 0; i < 40; ++i) {
    const auto first = static_cast<size_t>(random.integer(0, kSequences - 1));
    const auto second = (first + static_cast<size_t>(random.integer(1, kSequences - 1))) % kSequences;
    const int32_t before = index[second];
    index[second] = index[first];
    EXPECT_EQ(causal_conv(p, exec()).code, kRange);
    index[first] = index[second] = -1;  // several may be skipped
    EXPECT_TRUE(ok(causal_conv(p, exec())));
    index[first] = before;
  }
}

SIMDATTN_FOR_EACH_TARGET(BadCalls);

}  // namespace
}  // namespace simdattn::test
