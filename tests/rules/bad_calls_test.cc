// Of the unfused functions.
#include "tests/rules/bad_calls.h"

namespace simdattn::test {
namespace {

struct ScoresCall : BadCall {
  Random random{1};
  Array<4> q_memory{random, DType::kF32, {2, 4, 3, 8}}, k_memory{random, DType::kBF16, {2, 2, 5, 8}},
      out_memory{random, DType::kF32, {2, 4, 3, 5}};
  ConstView<4> q = q_memory.view, k = k_memory.view;
  View<4> out = out_memory.view;
  ScoreOptions options;
  Status call() const override { return scores(q, k, out, options, exec); }
  std::vector<const Guarded*> outputs() const override { return {&out_memory.memory}; }
};

TEST_P(BadCalls, Scores) {
  using C = ScoresCall;
  const std::vector<Bad<C>> table = {
      {"q null", kNullPointer, "q", [](C& c) { c.q.data = nullptr; }},
      {"k null", kNullPointer, "k", [](C& c) { c.k.data = nullptr; }},
      {"out null", kNullPointer, "out", [](C& c) { c.out.data = nullptr; }},
      {"q of integers", kDType, "q", [](C& c) { c.q.dtype = DType::kI32; }},
      {"k of bytes", kDType, "k", [](C& c) { c.k.dtype = DType::kU8; }},
      {"k of a type that does not exist", kDType, "k", [](C& c) { c.k.dtype = static_cast<DType>(77); }},
      {"out in bf16", kDType, "out", [](C& c) { c.out.dtype = DType::kBF16; }},
      {"batch differs", kShape, "k.shape[0]", [](C& c) { c.k.shape[0] = 1; }},
      {"no key head", kShape, "k.shape[1]", [](C& c) { c.k.shape[1] = 0; }},
      {"heads not a multiple", kShape, "q.shape[1]", [](C& c) { c.q.shape[1] = c.out.shape[1] = 3; }},
      {"head dimension differs", kShape, "k.shape[3]", [](C& c) { c.k.shape[3] = 7; }},
      {"head dimension 0", kShape, "q.shape[3]", [](C& c) { c.q.shape[3] = c.k.shape[3] = 0; }},
      {"out has other rows", kShape, "out.shape", [](C& c) { c.out.shape[2] = 2; }},
      {"out has other columns", kShape, "out.shape", [](C& c) { c.out.shape[3] = 4; }},
      {"negative size", kShape, "q", [](C& c) { c.q.shape[2] = -1; }},
      {"huge size", kShape, "k", [](C& c) { c.k.shape[2] = kHuge; }},
      {"q not contiguous", kStride, "q", [](C& c) { c.q.stride[3] = 2; }},
      {"k backwards in the last dimension", kStride, "k", [](C& c) { c.k.stride[3] = -1; }},
      {"k broadcast in the last dimension", kStride, "k", [](C& c) { c.k.stride[3] = 0; }},
      {"out not contiguous", kStride, "out", [](C& c) { c.out.stride[3] = 2; }},
      {"out broadcast", kStride, "out", [](C& c) { c.out.stride[1] = 0; }},
      {"rows of out coincide", kStride, "out", [](C& c) { c.out.stride[2] = 4; }},
      {"rows of out coincide backwards", kStride, "out", [](C& c) { c.out.stride[2] = -4; }},
      {"stride overflows", kStride, "q", [](C& c) { c.q.stride[0] = std::numeric_limits<int64_t>::max(); }},
      {"stride overflows below", kStride, "q", [](C& c) { c.q.stride[1] = std::numeric_limits<int64_t>::min(); }},
      {"out is q", kOverlap, "out", [](C& c) { c.q.data = c.out.data; }},
      {"out ends in k", kOverlap, "out",
       [](C& c) { c.k.data = static_cast<char*>(c.out.data) + 4 * 2 * 4 * 3 * 5 - 2; }},
      {"scale NaN", kRange, "options.scale", [](C& c) { c.options.scale = kNaN; }},
      {"scale infinite", kRange, "options.scale", [](C& c) { c.options.scale = -kInf; }},
      {"arithmetic that does not exist", kRange, "options.arithmetic",
       [](C& c) { c.options.arithmetic = static_cast<Arithmetic>(99); }},
      {"options that were only cleared", kStructSize, "options", [](C& c) { c.options.struct_size = 0; }},
      {"arithmetic past the last", kRange, "options.arithmetic",
       [](C& c) { c.options.arithmetic = static_cast<Arithmetic>(3); }},
      {"negative arithmetic", kRange, "options.arithmetic",
       [](C& c) { c.options.arithmetic = static_cast<Arithmetic>(-1); }},
      {"options of a size between two members", kStructSize, "options", [](C& c) { c.options.struct_size -= 1; }},
      {"exec that was only cleared", kStructSize, "exec", [](C& c) { c.exec.struct_size = 0; }},
  };
  check<C>("scores", table);
}

/// An arithmetic that needs a workspace.
template <class Base, Arithmetic kArithmetic, size_t (*kBytes)(Arithmetic, int64_t), int64_t kDim>
struct WithWorkspace : Base {
  Guarded workspace{kBytes(kArithmetic, kDim), Guard::kAfter};
  WithWorkspace() {
    this->options.arithmetic = kArithmetic;
    this->exec.workspace = workspace.data();
    this->exec.workspace_bytes = workspace.size();
  }
  /// The last bytes of the workspace.
  void* end(int64_t bytes) const { return workspace.data() + workspace.size() - bytes; }
  std::vector<const Guarded*> outputs() const override {
    std::vector<const Guarded*> result = Base::outputs();
    result.push_back(&workspace);
    return result;
  }
};

template <Arithmetic kArithmetic>
using ScoresWithWorkspace = WithWorkspace<ScoresCall, kArithmetic, scores_workspace, 8>;
template <class C>
std::vector<Bad<C>> scores_workspace_rows() {
  return {
      {"workspace null", kWorkspace, "exec.workspace:", [](C& c) { c.exec.workspace = nullptr; }},
      {"workspace one byte short", kWorkspace, "exec.workspace_bytes", [](C& c) { --c.exec.workspace_bytes; }},
      {"workspace ends in q", kOverlap, "exec.workspace", [](C& c) { c.q.data = c.end(4); }},
      {"workspace ends in k", kOverlap, "exec.workspace", [](C& c) { c.k.data = c.end(2); }},
      {"workspace ends in out", kOverlap, "exec.workspace", [](C& c) { c.out.data = c.end(4); }},
      {"scale NaN", kRange, "options.scale", [](C& c) { c.options.scale = kNaN; }},
      {"out is q", kOverlap, "out", [](C& c) { c.q.data = c.out.data; }},
  };
}
TEST_P(BadCalls, ScoresWithAWorkspace) {
  using Bf16 = ScoresWithWorkspace<Arithmetic::kBF16>;
  using Int8 = ScoresWithWorkspace<Arithmetic::kInt8>;
  check<Bf16>("scores of kBF16", scores_workspace_rows<Bf16>());
  check<Int8>("scores of kInt8", scores_workspace_rows<Int8>());
}

// ---------------------------------------------------------------------------------------------------------------------

struct SoftmaxCall : BadCall {
  Random random{2};
  Array<2> x_memory{random, DType::kF32, {3, 20}}, out_memory{random, DType::kF32, {3, 20}};
  Array<1> lse_memory{random, DType::kF32, {3}};
  ConstView<2> x = x_memory.view;
  View<2> out = out_memory.view;
  View<1> lse = lse_memory.view;
  Status call() const override { return softmax(x, out, lse, exec); }
  std::vector<const Guarded*> outputs() const override { return {&out_memory.memory, &lse_memory.memory}; }
};

TEST_P(BadCalls, Softmax) {
  using C = SoftmaxCall;
  const std::vector<Bad<C>> table = {
      {"x null", kNullPointer, "x", [](C& c) { c.x.data = nullptr; }},
      {"out null", kNullPointer, "out", [](C& c) { c.out.data = nullptr; }},
      {"x in f16", kDType, "x", [](C& c) { c.x.dtype = DType::kF16; }},
      {"out in bf16", kDType, "out", [](C& c) { c.out.dtype = DType::kBF16; }},
      {"lse of integers", kDType, "lse", [](C& c) { c.lse.dtype = DType::kI32; }},
      {"other columns", kShape, "out.shape", [](C& c) { c.out.shape[1] = 19; }},
      {"other rows", kShape, "out.shape", [](C& c) { c.out.shape[0] = 2; }},
      {"lse of other length", kShape, "lse.shape", [](C& c) { c.lse.shape[0] = 2; }},
      {"negative size", kShape, "x", [](C& c) { c.x.shape[0] = c.out.shape[0] = -3; }},
      {"x not contiguous", kStride, "x", [](C& c) { c.x.stride[1] = 2; }},
      {"rows of out coincide", kStride, "out", [](C& c) { c.out.stride[0] = 19; }},
      {"lse with a stride", kStride, "lse", [](C& c) { c.lse.stride[0] = 2; }},
      {"out one element into x", kOverlap, "out",
       [](C& c) {
         c.x.data = static_cast<float*>(c.out.data) + 1, c.x.shape[0] = 2, c.out.shape[0] = 2, c.lse.shape[0] = 2;
       }},
      {"out is x with other strides", kOverlap, "out", [](C& c) { c.x.data = c.out.data, c.x.stride[0] = 0; }},
      {"lse in out", kOverlap, "lse", [](C& c) { c.lse.data = c.out.data; }},
      {"lse in x", kOverlap, "lse", [](C& c) { c.x.data = c.lse.data, c.x.stride[0] = 0; }},
  };
  check<C>("softmax", table);
}

// ---------------------------------------------------------------------------------------------------------------------

struct MaskedSoftmaxCall : BadCall {
  Random random{4};
  std::unique_ptr<ScoringArrays> arrays = std::make_unique<ScoringArrays>();
  Array<4> x_memory{random, DType::kF32, {2, 4, 3, 20}}, out_memory{random, DType::kF32, {2, 4, 3, 20}};
  Array<3> lse_memory{random, DType::kF32, {2, 4, 3}};
  ConstView<4> x = x_memory.view;
  View<4> out = out_memory.view;
  View<3> lse = lse_memory.view;
  Scoring s = arrays->all();
  Status call() const override { return masked_softmax(x, out, s, lse, exec); }
  std::vector<const Guarded*> outputs() const override { return {&out_memory.memory, &lse_memory.memory}; }
};

TEST_P(BadCalls, MaskedSoftmax) {
  using C = MaskedSoftmaxCall;
  std::vector<Bad<C>> table = scoring_rows<C>();
  const std::vector<Bad<C>> own = {
      {"x null", kNullPointer, "x", [](C& c) { c.x.data = nullptr; }},
      {"out null", kNullPointer, "out", [](C& c) { c.out.data = nullptr; }},
      {"x in bf16", kDType, "x", [](C& c) { c.x.dtype = DType::kBF16; }},
      {"out in f16", kDType, "out", [](C& c) { c.out.dtype = DType::kF16; }},
      {"lse in f16", kDType, "lse", [](C& c) { c.lse.dtype = DType::kF16; }},
      {"out of other shape", kShape, "out.shape", [](C& c) { c.out.shape[2] = 2; }},
      {"lse of other shape", kShape, "lse.shape", [](C& c) { c.lse.shape[1] = 3; }},
      {"x not contiguous", kStride, "x", [](C& c) { c.x.stride[3] = 3; }},
      {"out broadcast", kStride, "out", [](C& c) { c.out.stride[0] = 0; }},
      {"lse broadcast", kStride, "lse", [](C& c) { c.lse.stride[1] = 0; }},
      {"out is x moved", kOverlap, "out",
       [](C& c) { c.x.data = static_cast<float*>(c.out.data) + 7, c.x.stride[0] = 0; }},
      {"out in the bias", kOverlap, "out", [](C& c) { c.s.bias.data = c.out.data; }},
      {"out in keep", kOverlap, "out", [](C& c) { c.s.mask.data = c.out.data; }},
      {"out in the bit mask", kOverlap, "out",
       [](C& c) { c.s.packed_mask.data = static_cast<uint8_t*>(c.out.data) + 5; }},
      {"out in the slopes", kOverlap, "out",
       [](C& c) { c.s.alibi_slopes = static_cast<float*>(c.out.data) + 2, std::memset(c.out.data, 0, 100); }},
      {"out in the sinks", kOverlap, "out", [](C& c) { c.s.sinks = static_cast<float*>(c.out.data) + 400; }},
      {"out in the lengths", kOverlap, "out",
       [](C& c) { c.s.kv_start = static_cast<int32_t*>(c.out.data) + 2, std::memset(c.out.data, 0, 100); }},
      {"out in the offsets", kOverlap, "out",
       [](C& c) { c.s.offsets = static_cast<int32_t*>(c.out.data) + 2, std::memset(c.out.data, 0, 100); }},
      {"out in bias_scale", kOverlap, "out",
       [](C& c) { c.s.bias_scale = static_cast<float*>(c.out.data) + 2, std::memset(c.out.data, 0, 100); }},
      {"lse in the sinks", kOverlap, "lse", [](C& c) { c.s.sinks = static_cast<float*>(c.lse.data); }},
      {"lse in out", kOverlap, "lse", [](C& c) { c.lse.data = c.out.data; }},
  };
  table.insert(table.end(), own.begin(), own.end());
  check<C>("masked_softmax", table);
}

// ---------------------------------------------------------------------------------------------------------------------

struct WeightedValuesCall : BadCall {
  Random random{5};
  Array<4> p_memory{random, DType::kF32, {2, 4, 3, 5}}, v_memory{random, DType::kF16, {2, 2, 5, 8}},
      out_memory{random, DType::kBF16, {2, 4, 3, 8}};
  ConstView<4> p = p_memory.view, v = v_memory.view;
  View<4> out = out_memory.view;
  ValueOptions options;
  Status call() const override { return weighted_values(p, v, out, options, exec); }
  std::vector<const Guarded*> outputs() const override { return {&out_memory.memory}; }
};

TEST_P(BadCalls, WeightedValues) {
  using C = WeightedValuesCall;
  const std::vector<Bad<C>> table = {
      {"p null", kNullPointer, "p", [](C& c) { c.p.data = nullptr; }},
      {"v null", kNullPointer, "v", [](C& c) { c.v.data = nullptr; }},
      {"out null", kNullPointer, "out", [](C& c) { c.out.data = nullptr; }},
      {"p in bf16", kDType, "p", [](C& c) { c.p.dtype = DType::kBF16; }},
      {"v of integers", kDType, "v", [](C& c) { c.v.dtype = DType::kI64; }},
      {"out of bytes", kDType, "out", [](C& c) { c.out.dtype = DType::kU8; }},
      {"batch differs", kShape, "v.shape[0]", [](C& c) { c.v.shape[0] = 1; }},
      {"no value head", kShape, "v.shape[1]", [](C& c) { c.v.shape[1] = 0; }},
      {"heads not a multiple", kShape, "p.shape[1]", [](C& c) { c.p.shape[1] = c.out.shape[1] = 3; }},
      {"other keys", kShape, "v.shape[2]", [](C& c) { c.v.shape[2] = 4; }},
      {"dimension 0", kShape, "v.shape[3]", [](C& c) { c.v.shape[3] = c.out.shape[3] = 0; }},
      {"out of other shape", kShape, "out.shape", [](C& c) { c.out.shape[3] = 7; }},
      {"p not contiguous", kStride, "p", [](C& c) { c.p.stride[3] = 2; }},
      {"v not contiguous", kStride, "v", [](C& c) { c.v.stride[3] = 2; }},
      {"rows of out coincide", kStride, "out", [](C& c) { c.out.stride[2] = 7; }},
      {"out in p", kOverlap, "out", [](C& c) { c.p.data = c.out.data, c.p.stride = {0, 0, 0, 1}; }},
      {"out in v", kOverlap, "out", [](C& c) { c.v.data = c.out.data; }},
      {"arithmetic that does not exist", kRange, "options.arithmetic",
       [](C& c) { c.options.arithmetic = static_cast<Arithmetic>(-1); }},
      {"arithmetic past the last", kRange, "options.arithmetic",
       [](C& c) { c.options.arithmetic = static_cast<Arithmetic>(3); }},
      {"options that were only cleared", kStructSize, "options", [](C& c) { c.options.struct_size = 0; }},
  };
  check<C>("weighted_values", table);
}

template <Arithmetic kArithmetic>
using ValuesWithWorkspace = WithWorkspace<WeightedValuesCall, kArithmetic, weighted_values_workspace, 8>;
template <class C>
std::vector<Bad<C>> values_workspace_rows() {
  return {
      {"workspace null", kWorkspace, "exec.workspace:", [](C& c) { c.exec.workspace = nullptr; }},
      {"workspace one byte short", kWorkspace, "exec.workspace_bytes", [](C& c) { --c.exec.workspace_bytes; }},
      {"workspace ends in p", kOverlap, "exec.workspace", [](C& c) { c.p.data = c.end(4); }},
      {"workspace ends in v", kOverlap, "exec.workspace", [](C& c) { c.v.data = c.end(2); }},
      {"workspace ends in out", kOverlap, "exec.workspace", [](C& c) { c.out.data = c.end(2); }},
      {"out in v", kOverlap, "out", [](C& c) { c.v.data = c.out.data; }},
  };
}
TEST_P(BadCalls, WeightedValuesWithAWorkspace) {
  using Bf16 = ValuesWithWorkspace<Arithmetic::kBF16>;
  using Int8 = ValuesWithWorkspace<Arithmetic::kInt8>;
  check<Bf16>("weighted_values of kBF16", values_workspace_rows<Bf16>());
  check<Int8>("weighted_values of kInt8", values_workspace_rows<Int8>());
}

// ---------------------------------------------------------------------------------------------------------------------

struct RopeCall : BadCall {
  Random random{6};
  Array<4> x_memory{random, DType::kF32, {2, 4, 3, 16}}, out_memory{random, DType::kF32, {2, 4, 3, 16}};
  Array<2> cos_memory{random, DType::kF32, {10, 6}}, sin_memory{random, DType::kF32, {10, 6}},
      positions_memory{random, DType::kI64, {2, 3}};
  ConstView<4> x = x_memory.view;
  View<4> out = out_memory.view;
  ConstView<2> cos = cos_memory.view, sin = sin_memory.view;
  Positions positions = positions_memory.view;
  RopeOptions options{.first_dim = 4};
  RopeCall() { positions_memory.fill_bytes(0); }
  void position(int64_t p) const {
    set_element_bits(positions_memory.view.data, DType::kI64, 5, static_cast<uint64_t>(p));
  }
  Status call() const override { return rope(x, cos, sin, positions, out, options, exec); }
  std::vector<const Guarded*> outputs() const override { return {&out_memory.memory}; }
};

TEST_P(BadCalls, Rope) {
  using C = RopeCall;
  const std::vector<Bad<C>> table = {
      {"x null", kNullPointer, "x", [](C& c) { c.x.data = nullptr; }},
      {"out null", kNullPointer, "out", [](C& c) { c.out.data = nullptr; }},
      {"cos null", kNullPointer, "cos", [](C& c) { c.cos.data = nullptr; }},
      {"sin null", kNullPointer, "sin", [](C& c) { c.sin.data = nullptr; }},
      {"x of integers", kDType, "x", [](C& c) { c.x.dtype = DType::kI32; }},
      {"cos in bf16", kDType, "cos", [](C& c) { c.cos.dtype = DType::kBF16; }},
      {"positions of floats", kDType, "positions", [](C& c) { c.positions.rows.dtype = DType::kF32; }},
      {"out of other shape", kShape, "out.shape", [](C& c) { c.out.shape[1] = 3; }},
      {"sin of other shape", kShape, "sin.shape", [](C& c) { c.sin.shape[1] = 5; }},
      {"an odd dimension cannot be halved", kShape, "cos.shape[1]", [](C& c) { c.x.shape[3] = c.out.shape[3] = 15; }},
      {"table wider than the dimension", kShape, "cos.shape[1]", [](C& c) { c.options.first_dim = 5; }},
      {"first_dim negative", kRange, "options.first_dim", [](C& c) { c.options.first_dim = -2; }},
      {"first_dim beyond the dimension", kRange, "options.first_dim", [](C& c) { c.options.first_dim = 17; }},
      {"pairing that does not exist", kRange, "options.pairing",
       [](C& c) { c.options.pairing = static_cast<RopePairing>(9); }},
      {"positions of other shape", kShape, "positions.shape", [](C& c) { c.positions.rows.shape[2] = 2; }},
      {"positions of two axes", kShape, "positions.shape", [](C& c) { c.positions.rows.shape[0] = 2; }},
      {"position negative", kRange, "positions", [](C& c) { c.position(-1); }},
      {"position past the table", kRange, "positions", [](C& c) { c.position(10); }},
      {"position that wraps in 32 bits", kRange, "positions", [](C& c) { c.position(int64_t{1} << 32); }},
      {"no positions and a short table", kRange, "positions.start",
       [](C& c) { c.positions = {}, c.cos.shape[0] = c.sin.shape[0] = 2; }},
      {"no positions and a start past the table", kRange, "positions.start", [](C& c) { c.positions = 8; }},
      {"no positions and a negative start", kRange, "positions.start", [](C& c) { c.positions = -1; }},
      {"options that were only cleared", kStructSize, "options", [](C& c) { c.options.struct_size = 0; }},
      {"x not contiguous", kStride, "x", [](C& c) { c.x.stride[3] = 2; }},
      {"cos not contiguous", kStride, "cos", [](C& c) { c.cos.stride[1] = 2; }},
      {"out broadcast", kStride, "out", [](C& c) { c.out.stride[1] = 0; }},
      {"out is x moved", kOverlap, "out",
       [](C& c) { c.x.data = static_cast<float*>(c.out.data) + 16, c.x.stride[0] = 0; }},
      {"out is x of another type", kOverlap, "out", [](C& c) { c.x.data = c.out.data, c.x.dtype = DType::kBF16; }},
      {"out in sin", kOverlap, "out", [](C& c) { c.sin.data = c.out.data; }},
  };
  check<C>("rope", table);
}

// ---------------------------------------------------------------------------------------------------------------------

struct MergeCall : BadCall {
  Random random{10};
  Array<5> parts_memory{random, DType::kF32, {3, 2, 4, 3, 8}};
  Array<4> part_lse_memory{random, DType::kF32, {3, 2, 4, 3}}, out_memory{random, DType::kF32, {2, 4, 3, 8}};
  Array<3> lse_memory{random, DType::kF32, {2, 4, 3}};
  float sink_numbers[4] = {1, 2, 3, 4};
  ConstView<5> parts = parts_memory.view;
  ConstView<4> part_lse = part_lse_memory.view;
  View<4> out = out_memory.view;
  View<3> lse = lse_memory.view;
  const float* sinks = sink_numbers;
  Status call() const override { return attention_merge(parts, part_lse, out, lse, sinks, exec); }
  std::vector<const Guarded*> outputs() const override {
    return {&out_memory.memory, &lse_memory.memory, &parts_memory.memory};
  }
};

TEST_P(BadCalls, AttentionMerge) {
  using C = MergeCall;
  const std::vector<Bad<C>> table = {
      {"parts null", kNullPointer, "parts", [](C& c) { c.parts.data = nullptr; }},
      {"part_lse null", kNullPointer, "part_lse", [](C& c) { c.part_lse.data = nullptr; }},
      {"out null", kNullPointer, "out", [](C& c) { c.out.data = nullptr; }},
      {"parts of integers", kDType, "parts", [](C& c) { c.parts.dtype = DType::kI32; }},
      {"part_lse in bf16", kDType, "part_lse", [](C& c) { c.part_lse.dtype = DType::kBF16; }},
      {"part_lse of other shape", kShape, "part_lse.shape", [](C& c) { c.part_lse.shape[0] = 2; }},
      {"out of other shape", kShape, "out.shape", [](C& c) { c.out.shape[3] = 7; }},
      {"lse of other shape", kShape, "lse.shape", [](C& c) { c.lse.shape[0] = 1; }},
      {"dimension 0", kShape, "parts.shape[4]", [](C& c) { c.parts.shape[4] = c.out.shape[3] = 0; }},
      {"parts not contiguous", kStride, "parts", [](C& c) { c.parts.stride[4] = 2; }},
      {"part_lse not contiguous", kStride, "part_lse", [](C& c) { c.part_lse.stride[3] = 2; }},
      {"out broadcast", kStride, "out", [](C& c) { c.out.stride[0] = 0; }},
      {"out between two parts", kOverlap, "out",
       [](C& c) { c.out.data = static_cast<float*>(c.parts_memory.view.data) + 100; }},
      {"out in part_lse", kOverlap, "out", [](C& c) { c.part_lse.data = c.out.data; }},
      {"lse in part_lse", kOverlap, "lse", [](C& c) { c.part_lse.data = c.lse.data, c.part_lse.stride[0] = 0; }},
      {"lse in out", kOverlap, "lse", [](C& c) { c.lse.data = c.out.data; }},
      {"out in the sinks", kOverlap, "out", [](C& c) { c.sinks = static_cast<float*>(c.out.data) + 3; }},
      {"lse in the sinks", kOverlap, "lse", [](C& c) { c.sinks = static_cast<float*>(c.lse.data); }},
  };
  check<C>("attention_merge", table);
}

TEST_P(BadCalls, AlibiSlopes) {
  float slopes[3] = {7, 7, 7};
  EXPECT_EQ(alibi_slopes(0, slopes).code, kShape);
  EXPECT_EQ(alibi_slopes(-1, slopes).code, kShape);
  EXPECT_EQ(alibi_slopes(3, nullptr).code, kNullPointer);
  for (const float s : slopes) EXPECT_EQ(s, 7.0f);
}

/// Empty problems pass with any pointer, and do nothing.
TEST_P(BadCalls, EmptyIsNotBad) {
  const Exec e = exec();
  const ConstView<4> q(nullptr, DType::kF32, {2, 4, 0, 8}), k(nullptr, DType::kF32, {2, 2, 0, 8});
  EXPECT_TRUE(scores(q, k, {nullptr, DType::kF32, {2, 4, 0, 0}}, {}, e).ok());
  EXPECT_TRUE(scores({nullptr, DType::kF32, {0, 4, 3, 8}}, {nullptr, DType::kF32, {0, 2, 5, 8}},
                     {nullptr, DType::kF32, {0, 4, 3, 5}}, {}, e)
                  .ok());
  EXPECT_TRUE(softmax({nullptr, DType::kF32, {0, 5}}, {nullptr, DType::kF32, {0, 5}}, {}, e).ok());
  EXPECT_TRUE(masked_softmax({nullptr, DType::kF32, {2, 4, 3, 0}}, {nullptr, DType::kF32, {2, 4, 3, 0}},
                             {.causal = true}, {}, e)
                  .ok());
  const float table[2] = {1, 1};
  EXPECT_TRUE(rope({nullptr, DType::kF32, {2, 4, 0, 8}}, view(table, {1, 2}), view(table, {1, 2}), {},
                   {nullptr, DType::kF32, {2, 4, 0, 8}}, {}, e)
                  .ok());
  EXPECT_TRUE(attention_merge({nullptr, DType::kF32, {2, 0, 4, 3, 8}}, {nullptr, DType::kF32, {2, 0, 4, 3}},
                              {nullptr, DType::kF32, {0, 4, 3, 8}}, {}, nullptr, e)
                  .ok());
  // No parts: the identity of merging.
  float out[2] = {9, 9}, lse[1] = {9};
  EXPECT_TRUE(attention_merge({nullptr, DType::kF32, {0, 1, 1, 1, 2}}, {nullptr, DType::kF32, {0, 1, 1, 1}},
                              view(out, {1, 1, 1, 2}), view(lse, {1, 1, 1}), nullptr, e)
                  .ok());
  EXPECT_EQ(out[0], 0.0f);
  EXPECT_EQ(lse[0], -kInf);
  AttentionProblem a;
  a.q = q;
  a.k = ConstView<4>(k);
  a.v = a.k;
  a.out = View<4>(nullptr, DType::kF32, {2, 4, 0, 8});
  EXPECT_TRUE(attention(a, e).ok());
  // No keys: they share no byte with the output, wherever they are said to be.
  float row[8] = {9, 9, 9, 9, 9, 9, 9, 9};
  a.q = ConstView<4>(row, DType::kF32, {1, 1, 1, 8});
  float result[8] = {9, 9, 9, 9, 9, 9, 9, 9};
  a.out = View<4>(result, DType::kF32, {1, 1, 1, 8});
  a.k = ConstView<4>(result, DType::kF32, {1, 1, 0, 8});
  a.v = a.k;
  Plan plan;
  ASSERT_TRUE(attention_plan(a, &plan, e).ok());
  std::vector<char> workspace(plan.workspace_bytes);
  EXPECT_TRUE(
      ok(attention(a, {.target = e.target, .workspace = workspace.data(), .workspace_bytes = workspace.size()})));
  for (const float x : result) EXPECT_EQ(x, 0.0f);
}

SIMDATTN_FOR_EACH_TARGET(BadCalls);

}  // namespace
}  // namespace simdattn::test
