// A table of bad calls: each returns its code and a sentence that names the argument, and writes nothing. Every row is a
// change to a good call, which is made first.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr int64_t kHuge = int64_t{1} << 40;

/// A plain pointer to the change: std::function of 500 lambdas took half of the time to compile.
template <class Call>
struct Bad {
  const char* what;
  Code code;
  const char* argument;  // the sentence begins with it
  void (*change)(Call&);
};

/// Call: a struct with `Status call() const` and `std::vector<Guarded*> outputs()`. Row: the same or its base.
template <class Call, class Row = Call>
void check(const char* function, const std::function<void(Call&)>& prepare, const std::vector<Bad<Row>>& table) {
  const auto fill = [](Call& call) {
    for (const Guarded* m : call.outputs()) std::memset(m->data(), Guarded::kCanary, m->size());
  };
  {
    Call good;
    prepare(good);
    fill(good);
    const Status s = good.call();
    ASSERT_TRUE(s.ok()) << function << ", the good call: " << s.detail;
    ASSERT_NE(s.detail, nullptr);
  }
  for (const Bad<Row>& bad : table) {
    Call call;
    prepare(call);
    fill(call);
    // Inputs may be changed by the row, too, so what counts as written is what changes during the call.
    bad.change(call);
    std::vector<std::vector<unsigned char>> before;
    for (const Guarded* m : call.outputs()) before.emplace_back(m->data(), m->data() + m->size());
    const Status s = call.call();
    EXPECT_EQ(static_cast<int>(s.code), static_cast<int>(bad.code)) << function << ", " << bad.what << ": " << s.detail;
    EXPECT_EQ(std::string(s.detail).rfind(bad.argument, 0), 0u)
        << function << ", " << bad.what << ": the sentence is \"" << s.detail << "\" and should name " << bad.argument;
    EXPECT_GT(std::strlen(s.detail), std::strlen(bad.argument)) << function << ", " << bad.what << ": no rule";
    size_t i = 0;
    for (const Guarded* m : call.outputs()) {
      EXPECT_EQ(std::memcmp(m->data(), before[i].data(), m->size()), 0)
          << function << ", " << bad.what << ": output " << i << " was written";
      ++i;
    }
  }
}

class BadCalls : public TargetTest {};

/// A target that says that it cannot run.
const Target* not_runnable() {
  static const Target t = {"test/none", scalar_target().kernels, true, false, "nothing has it"};
  return &t;
}

// ---------------------------------------------------------------------------------------------------------------------

struct ScoresCall {
  Random random{1};
  Array<4> q_memory{random, DType::kF32, {2, 4, 3, 8}}, k_memory{random, DType::kBF16, {2, 2, 5, 8}},
      out_memory{random, DType::kF32, {2, 4, 3, 5}};
  ConstView<4> q = q_memory.view, k = k_memory.view;
  View<4> out = out_memory.view;
  ScoreOptions options;
  Exec exec;
  Status call() const { return scores(q, k, out, options, exec); }
  std::vector<const Guarded*> outputs() const { return {&out_memory.memory}; }
};

TEST_P(BadCalls, Scores) {
  using C = ScoresCall;
  const Target* const t = GetParam();
  check<C>(
      "scores", [t](C& c) { c.exec.target = t; },
      {
          {"q null", Code::kNullPointer, "q", [](C& c) { c.q.data = nullptr; }},
          {"k null", Code::kNullPointer, "k", [](C& c) { c.k.data = nullptr; }},
          {"out null", Code::kNullPointer, "out", [](C& c) { c.out.data = nullptr; }},
          {"q of integers", Code::kDType, "q", [](C& c) { c.q.dtype = DType::kI32; }},
          {"k of bytes", Code::kDType, "k", [](C& c) { c.k.dtype = DType::kU8; }},
          {"k of a type that does not exist", Code::kDType, "k", [](C& c) { c.k.dtype = static_cast<DType>(77); }},
          {"out in bf16", Code::kDType, "out", [](C& c) { c.out.dtype = DType::kBF16; }},
          {"batch differs", Code::kShape, "k.shape[0]", [](C& c) { c.k.shape[0] = 1; }},
          {"no key head", Code::kShape, "k.shape[1]", [](C& c) { c.k.shape[1] = 0; }},
          {"heads not a multiple", Code::kShape, "q.shape[1]", [](C& c) { c.q.shape[1] = c.out.shape[1] = 3; }},
          {"head dimension differs", Code::kShape, "k.shape[3]", [](C& c) { c.k.shape[3] = 7; }},
          {"head dimension 0", Code::kShape, "q.shape[3]", [](C& c) { c.q.shape[3] = c.k.shape[3] = 0; }},
          {"out has other rows", Code::kShape, "out.shape", [](C& c) { c.out.shape[2] = 2; }},
          {"out has other columns", Code::kShape, "out.shape", [](C& c) { c.out.shape[3] = 4; }},
          {"negative size", Code::kShape, "q", [](C& c) { c.q.shape[2] = -1; }},
          {"huge size", Code::kShape, "k", [](C& c) { c.k.shape[2] = kHuge; }},
          {"q not contiguous", Code::kStride, "q", [](C& c) { c.q.stride[3] = 2; }},
          {"k backwards in the last dimension", Code::kStride, "k", [](C& c) { c.k.stride[3] = -1; }},
          {"k broadcast in the last dimension", Code::kStride, "k", [](C& c) { c.k.stride[3] = 0; }},
          {"out not contiguous", Code::kStride, "out", [](C& c) { c.out.stride[3] = 2; }},
          {"out broadcast", Code::kStride, "out", [](C& c) { c.out.stride[1] = 0; }},
          {"rows of out coincide", Code::kStride, "out", [](C& c) { c.out.stride[2] = 4; }},
          {"rows of out coincide backwards", Code::kStride, "out", [](C& c) { c.out.stride[2] = -4; }},
          {"stride overflows", Code::kStride, "q", [](C& c) { c.q.stride[0] = std::numeric_limits<int64_t>::max(); }},
          {"stride overflows below", Code::kStride, "q",
           [](C& c) { c.q.stride[1] = std::numeric_limits<int64_t>::min(); }},
          {"out is q", Code::kOverlap, "out", [](C& c) { c.q.data = c.out.data; }},
          {"out ends in k", Code::kOverlap, "out",
           [](C& c) { c.k.data = static_cast<char*>(c.out.data) + 4 * 2 * 4 * 3 * 5 - 2; }},
          {"scale NaN", Code::kRange, "options.scale", [](C& c) { c.options.scale = kNaN; }},
          {"scale infinite", Code::kRange, "options.scale", [](C& c) { c.options.scale = -kInf; }},
          {"arithmetic that does not exist", Code::kRange, "options.arithmetic",
           [](C& c) { c.options.arithmetic = static_cast<Arithmetic>(99); }},
          {"options that were only cleared", Code::kStructSize, "options", [](C& c) { c.options.struct_size = 0; }},
          {"arithmetic past the last", Code::kRange, "options.arithmetic",
           [](C& c) { c.options.arithmetic = static_cast<Arithmetic>(3); }},
          {"negative arithmetic", Code::kRange, "options.arithmetic",
           [](C& c) { c.options.arithmetic = static_cast<Arithmetic>(-1); }},
          {"options of a size between two members", Code::kStructSize, "options",
           [](C& c) { c.options.struct_size -= 1; }},
          {"exec that was only cleared", Code::kStructSize, "exec", [](C& c) { c.exec.struct_size = 0; }},
          {"target cannot run", Code::kTarget, "exec.target", [](C& c) { c.exec.target = not_runnable(); }},
      });
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
  std::vector<const Guarded*> outputs() const {
    std::vector<const Guarded*> result = Base::outputs();
    result.push_back(&workspace);
    return result;
  }
};

template <Arithmetic kArithmetic>
void check_scores_workspace(const Target* t) {
  using C = WithWorkspace<ScoresCall, kArithmetic, scores_workspace, 8>;
  check<C>("scores with a workspace", [t](C& c) { c.exec.target = t; },
           {
               {"workspace null", Code::kWorkspace, "exec.workspace:", [](C& c) { c.exec.workspace = nullptr; }},
               {"workspace one byte short", Code::kWorkspace, "exec.workspace_bytes",
                [](C& c) { --c.exec.workspace_bytes; }},
               {"workspace ends in q", Code::kOverlap, "exec.workspace", [](C& c) { c.q.data = c.end(4); }},
               {"workspace ends in k", Code::kOverlap, "exec.workspace", [](C& c) { c.k.data = c.end(2); }},
               {"workspace ends in out", Code::kOverlap, "exec.workspace", [](C& c) { c.out.data = c.end(4); }},
               {"scale NaN", Code::kRange, "options.scale", [](C& c) { c.options.scale = kNaN; }},
               {"out is q", Code::kOverlap, "out", [](C& c) { c.q.data = c.out.data; }},
           });
}
TEST_P(BadCalls, ScoresWithAWorkspace) {
  check_scores_workspace<Arithmetic::kBF16>(GetParam());
  check_scores_workspace<Arithmetic::kInt8>(GetParam());
}

// ---------------------------------------------------------------------------------------------------------------------

struct SoftmaxCall {
  Random random{2};
  Array<2> x_memory{random, DType::kF32, {3, 20}}, out_memory{random, DType::kF32, {3, 20}};
  Array<1> lse_memory{random, DType::kF32, {3}};
  ConstView<2> x = x_memory.view;
  View<2> out = out_memory.view;
  View<1> lse = lse_memory.view;
  Exec exec;
  Status call() const { return softmax(x, out, lse, exec); }
  std::vector<const Guarded*> outputs() const { return {&out_memory.memory, &lse_memory.memory}; }
};

TEST_P(BadCalls, Softmax) {
  using C = SoftmaxCall;
  const Target* const t = GetParam();
  check<C>("softmax", [t](C& c) { c.exec.target = t; },
           {
               {"x null", Code::kNullPointer, "x", [](C& c) { c.x.data = nullptr; }},
               {"out null", Code::kNullPointer, "out", [](C& c) { c.out.data = nullptr; }},
               {"x in f16", Code::kDType, "x", [](C& c) { c.x.dtype = DType::kF16; }},
               {"out in bf16", Code::kDType, "out", [](C& c) { c.out.dtype = DType::kBF16; }},
               {"lse of integers", Code::kDType, "lse", [](C& c) { c.lse.dtype = DType::kI32; }},
               {"other columns", Code::kShape, "out.shape", [](C& c) { c.out.shape[1] = 19; }},
               {"other rows", Code::kShape, "out.shape", [](C& c) { c.out.shape[0] = 2; }},
               {"lse of other length", Code::kShape, "lse.shape", [](C& c) { c.lse.shape[0] = 2; }},
               {"negative size", Code::kShape, "x", [](C& c) { c.x.shape[0] = c.out.shape[0] = -3; }},
               {"x not contiguous", Code::kStride, "x", [](C& c) { c.x.stride[1] = 2; }},
               {"rows of out coincide", Code::kStride, "out", [](C& c) { c.out.stride[0] = 19; }},
               {"lse with a stride", Code::kStride, "lse", [](C& c) { c.lse.stride[0] = 2; }},
               {"out one element into x", Code::kOverlap, "out",
                [](C& c) {
                  c.x.data = static_cast<float*>(c.out.data) + 1, c.x.shape[0] = 2, c.out.shape[0] = 2,
                  c.lse.shape[0] = 2;
                }},
               {"out is x with other strides", Code::kOverlap, "out",
                [](C& c) { c.x.data = c.out.data, c.x.stride[0] = 0; }},
               {"lse in out", Code::kOverlap, "lse", [](C& c) { c.lse.data = c.out.data; }},
               {"lse in x", Code::kOverlap, "lse",
                [](C& c) {
                  c.x.data = c.lse.data;
                  c.x.stride[0] = 0;
                }},
               {"target cannot run", Code::kTarget, "exec.target", [](C& c) { c.exec.target = not_runnable(); }},
           });
}

// ---------------------------------------------------------------------------------------------------------------------

/// Arrays that the rows of scoring tables may use.
struct ScoringArrays {
  Random random{3};
  Array<4> bias{random, DType::kF16, {2, 4, 3, 20}}, keep{random, DType::kU8, {2, 4, 3, 20}};
  Guarded bits{64, Guard::kAfter};
  int32_t numbers[2] = {5, 6};
  int32_t offsets[2] = {0, 17};
  float slopes[4] = {1, 2, 3, 4}, sinks[4] = {0, 1, 2, 3}, bias_scale[4] = {1, -2, 0, 3};
  ScoringArrays() {
    bias.fill_bytes(0);
    keep.fill_bytes(1);
    std::memset(bits.data(), 0xFF, bits.size());
  }
  /// Every option at once.
  Scoring all() {
    Scoring s;
    s.scale = 0.5f;
    s.softcap = 10;
    s.causal = true;
    s.window_left = 3;
    s.window_right = 3;
    s.chunk = 9;
    s.prefix_end = s.kv_start = s.kv_length = numbers;
    s.bias = bias.view;
    s.bias_scale = bias_scale;
    s.keep = keep.view;
    s.bits = {bits.data(), 5, {0, 0, 1}};
    s.alibi_slopes = slopes;
    s.sinks = sinks;
    return s;
  }
};

/// The rows that masked_softmax() and attention() have in common; n_kv = 20. C has `s` and `arrays`.
template <class C>
std::vector<Bad<C>> scoring_rows() {
  return {
      {"scale NaN", Code::kRange, "scoring.scale", [](C& c) { c.s.scale = kNaN; }},
      {"scale infinite", Code::kRange, "scoring.scale", [](C& c) { c.s.scale = kInf; }},
      {"softcap negative", Code::kRange, "scoring.softcap", [](C& c) { c.s.softcap = -1; }},
      {"softcap infinite", Code::kRange, "scoring.softcap", [](C& c) { c.s.softcap = kInf; }},
      {"softcap NaN", Code::kRange, "scoring.softcap", [](C& c) { c.s.softcap = kNaN; }},
      {"offset too large", Code::kRange, "scoring.offset", [](C& c) { c.s.offset = (int64_t{1} << 30) + 1; }},
      {"offset too small", Code::kRange, "scoring.offset", [](C& c) { c.s.offset = -(int64_t{1} << 30) - 1; }},
      {"offset next to kBottomRight", Code::kRange, "scoring.offset", [](C& c) { c.s.offset = kBottomRight + 1; }},
      {"an offset of a sequence too large", Code::kRange, "scoring.offsets",
       [](C& c) { c.arrays->offsets[1] = (1 << 30) + 1, c.s.offsets = c.arrays->offsets; }},
      {"an offset of a sequence too small", Code::kRange, "scoring.offsets",
       [](C& c) { c.arrays->offsets[0] = -(1 << 30) - 1, c.s.offsets = c.arrays->offsets; }},
      {"window -2", Code::kRange, "scoring.window_left", [](C& c) { c.s.window_left = -2; }},
      {"right window -2", Code::kRange, "scoring.window", [](C& c) { c.s.window_right = -2; }},
      {"chunk negative", Code::kRange, "scoring.chunk", [](C& c) { c.s.chunk = -1; }},
      {"length beyond the keys", Code::kRange, "scoring.kv_length", [](C& c) { c.arrays->numbers[1] = 21; }},
      {"length negative", Code::kRange, "scoring.kv_length", [](C& c) { c.arrays->numbers[1] = -1; }},
      {"start negative", Code::kRange, "scoring.kv_start",
       [](C& c) { c.arrays->numbers[0] = -1, c.s.kv_length = nullptr; }},
      {"prefix negative", Code::kRange, "scoring.prefix_end",
       [](C& c) { c.arrays->numbers[0] = -1, c.s.kv_length = c.s.kv_start = nullptr; }},
      {"bias of bytes", Code::kDType, "scoring.bias", [](C& c) { c.s.bias.dtype = DType::kU8; }},
      {"bias of other shape", Code::kShape, "scoring.bias", [](C& c) { c.s.bias.shape[3] = 19; }},
      {"bias of half of the heads", Code::kShape, "scoring.bias", [](C& c) { c.s.bias.shape[1] = 2; }},
      {"bias of no rows", Code::kShape, "scoring.bias", [](C& c) { c.s.bias.shape[2] = 0; }},
      {"bias_scale NaN", Code::kRange, "scoring.bias_scale", [](C& c) { c.arrays->bias_scale[3] = kNaN; }},
      {"bias_scale infinite", Code::kRange, "scoring.bias_scale", [](C& c) { c.arrays->bias_scale[0] = kInf; }},
      {"bias not contiguous", Code::kStride, "scoring.bias", [](C& c) { c.s.bias.stride[3] = 0; }},
      {"keep of floats", Code::kDType, "scoring.keep", [](C& c) { c.s.keep.dtype = DType::kF32; }},
      {"keep of other shape", Code::kShape, "scoring.keep", [](C& c) { c.s.keep.shape[1] = 3; }},
      {"keep not contiguous", Code::kStride, "scoring.keep", [](C& c) { c.s.keep.stride[3] = 20; }},
      {"more mask columns than keys", Code::kRange, "scoring.bits",
       [](C& c) { c.s.bits.columns = 21, c.s.kv_length = nullptr; }},
      {"more mask columns than a length", Code::kRange, "scoring.bits", [](C& c) { c.s.bits.columns = 6; }},
      {"mask columns negative", Code::kRange, "scoring.bits", [](C& c) { c.s.bits.columns = -1; }},
      {"mask columns without a mask", Code::kNullPointer, "scoring.bits", [](C& c) { c.s.bits.data = nullptr; }},
      {"huge mask stride", Code::kStride, "scoring.bits",
       [](C& c) { c.s.bits.stride[1] = std::numeric_limits<int64_t>::max(); }},
      {"slope NaN", Code::kRange, "scoring.alibi_slopes", [](C& c) { c.arrays->slopes[3] = kNaN; }},
      {"scoring that was only cleared", Code::kStructSize, "scoring", [](C& c) { c.s.struct_size = 0; }},
      {"reserved numbers", Code::kStructSize, "scoring", [](C& c) { c.s.reserved[1] = 1; }},
  };
}

struct MaskedSoftmaxCall {
  Random random{4};
  std::unique_ptr<ScoringArrays> arrays = std::make_unique<ScoringArrays>();
  Array<4> x_memory{random, DType::kF32, {2, 4, 3, 20}}, out_memory{random, DType::kF32, {2, 4, 3, 20}};
  Array<3> lse_memory{random, DType::kF32, {2, 4, 3}};
  ConstView<4> x = x_memory.view;
  View<4> out = out_memory.view;
  View<3> lse = lse_memory.view;
  Scoring s = arrays->all();
  Exec exec;
  Status call() const { return masked_softmax(x, out, s, lse, exec); }
  std::vector<const Guarded*> outputs() const { return {&out_memory.memory, &lse_memory.memory}; }
};

TEST_P(BadCalls, MaskedSoftmax) {
  using C = MaskedSoftmaxCall;
  const Target* const t = GetParam();
  std::vector<Bad<C>> table = scoring_rows<C>();
  const std::vector<Bad<C>> own = {
      {"x null", Code::kNullPointer, "x", [](C& c) { c.x.data = nullptr; }},
      {"out null", Code::kNullPointer, "out", [](C& c) { c.out.data = nullptr; }},
      {"x in bf16", Code::kDType, "x", [](C& c) { c.x.dtype = DType::kBF16; }},
      {"out in f16", Code::kDType, "out", [](C& c) { c.out.dtype = DType::kF16; }},
      {"lse in f16", Code::kDType, "lse", [](C& c) { c.lse.dtype = DType::kF16; }},
      {"out of other shape", Code::kShape, "out.shape", [](C& c) { c.out.shape[2] = 2; }},
      {"lse of other shape", Code::kShape, "lse.shape", [](C& c) { c.lse.shape[1] = 3; }},
      {"x not contiguous", Code::kStride, "x", [](C& c) { c.x.stride[3] = 3; }},
      {"out broadcast", Code::kStride, "out", [](C& c) { c.out.stride[0] = 0; }},
      {"lse broadcast", Code::kStride, "lse", [](C& c) { c.lse.stride[1] = 0; }},
      {"out is x moved", Code::kOverlap, "out",
       [](C& c) {
         c.x.data = static_cast<float*>(c.out.data) + 7;
         c.x.stride[0] = 0;
       }},
      {"out in the bias", Code::kOverlap, "out", [](C& c) { c.s.bias.data = c.out.data; }},
      {"out in keep", Code::kOverlap, "out", [](C& c) { c.s.keep.data = c.out.data; }},
      {"out in the bit mask", Code::kOverlap, "out",
       [](C& c) { c.s.bits.data = static_cast<uint8_t*>(c.out.data) + 5; }},
      {"out in the slopes", Code::kOverlap, "out",
       [](C& c) {
         c.s.alibi_slopes = static_cast<float*>(c.out.data) + 2;
         std::memset(c.out.data, 0, 100);
       }},
      {"out in the sinks", Code::kOverlap, "out", [](C& c) { c.s.sinks = static_cast<float*>(c.out.data) + 400; }},
      {"out in the lengths", Code::kOverlap, "out",
       [](C& c) {
         c.s.kv_start = static_cast<int32_t*>(c.out.data) + 2;
         std::memset(c.out.data, 0, 100);
       }},
      {"out in the offsets", Code::kOverlap, "out",
       [](C& c) {
         c.s.offsets = static_cast<int32_t*>(c.out.data) + 2;
         std::memset(c.out.data, 0, 100);
       }},
      {"out in bias_scale", Code::kOverlap, "out",
       [](C& c) {
         c.s.bias_scale = static_cast<float*>(c.out.data) + 2;
         std::memset(c.out.data, 0, 100);
       }},
      {"lse in the sinks", Code::kOverlap, "lse", [](C& c) { c.s.sinks = static_cast<float*>(c.lse.data); }},
      {"lse in out", Code::kOverlap, "lse", [](C& c) { c.lse.data = c.out.data; }},
      {"target cannot run", Code::kTarget, "exec.target", [](C& c) { c.exec.target = not_runnable(); }},
  };
  table.insert(table.end(), own.begin(), own.end());
  check<C>("masked_softmax", [t](C& c) { c.exec.target = t; }, table);
}

// ---------------------------------------------------------------------------------------------------------------------

struct WeightedValuesCall {
  Random random{5};
  Array<4> p_memory{random, DType::kF32, {2, 4, 3, 5}}, v_memory{random, DType::kF16, {2, 2, 5, 8}},
      out_memory{random, DType::kBF16, {2, 4, 3, 8}};
  ConstView<4> p = p_memory.view, v = v_memory.view;
  View<4> out = out_memory.view;
  ValueOptions options;
  Exec exec;
  Status call() const { return weighted_values(p, v, out, options, exec); }
  std::vector<const Guarded*> outputs() const { return {&out_memory.memory}; }
};

TEST_P(BadCalls, WeightedValues) {
  using C = WeightedValuesCall;
  const Target* const t = GetParam();
  check<C>(
      "weighted_values", [t](C& c) { c.exec.target = t; },
      {
          {"p null", Code::kNullPointer, "p", [](C& c) { c.p.data = nullptr; }},
          {"v null", Code::kNullPointer, "v", [](C& c) { c.v.data = nullptr; }},
          {"out null", Code::kNullPointer, "out", [](C& c) { c.out.data = nullptr; }},
          {"p in bf16", Code::kDType, "p", [](C& c) { c.p.dtype = DType::kBF16; }},
          {"v of integers", Code::kDType, "v", [](C& c) { c.v.dtype = DType::kI64; }},
          {"out of bytes", Code::kDType, "out", [](C& c) { c.out.dtype = DType::kU8; }},
          {"batch differs", Code::kShape, "v.shape[0]", [](C& c) { c.v.shape[0] = 1; }},
          {"no value head", Code::kShape, "v.shape[1]", [](C& c) { c.v.shape[1] = 0; }},
          {"heads not a multiple", Code::kShape, "p.shape[1]", [](C& c) { c.p.shape[1] = c.out.shape[1] = 3; }},
          {"other keys", Code::kShape, "v.shape[2]", [](C& c) { c.v.shape[2] = 4; }},
          {"dimension 0", Code::kShape, "v.shape[3]", [](C& c) { c.v.shape[3] = c.out.shape[3] = 0; }},
          {"out of other shape", Code::kShape, "out.shape", [](C& c) { c.out.shape[3] = 7; }},
          {"p not contiguous", Code::kStride, "p", [](C& c) { c.p.stride[3] = 2; }},
          {"v not contiguous", Code::kStride, "v", [](C& c) { c.v.stride[3] = 2; }},
          {"rows of out coincide", Code::kStride, "out", [](C& c) { c.out.stride[2] = 7; }},
          {"out in p", Code::kOverlap, "out",
           [](C& c) {
             c.p.data = c.out.data;
             c.p.stride = {0, 0, 0, 1};
           }},
          {"out in v", Code::kOverlap, "out", [](C& c) { c.v.data = c.out.data; }},
          {"arithmetic that does not exist", Code::kRange, "options.arithmetic",
           [](C& c) { c.options.arithmetic = static_cast<Arithmetic>(-1); }},
          {"arithmetic past the last", Code::kRange, "options.arithmetic",
           [](C& c) { c.options.arithmetic = static_cast<Arithmetic>(3); }},
          {"options that were only cleared", Code::kStructSize, "options", [](C& c) { c.options.struct_size = 0; }},
          {"target cannot run", Code::kTarget, "exec.target", [](C& c) { c.exec.target = not_runnable(); }},
      });
}

template <Arithmetic kArithmetic>
void check_values_workspace(const Target* t) {
  using C = WithWorkspace<WeightedValuesCall, kArithmetic, weighted_values_workspace, 8>;
  check<C>("weighted_values with a workspace", [t](C& c) { c.exec.target = t; },
           {
               {"workspace null", Code::kWorkspace, "exec.workspace:", [](C& c) { c.exec.workspace = nullptr; }},
               {"workspace one byte short", Code::kWorkspace, "exec.workspace_bytes",
                [](C& c) { --c.exec.workspace_bytes; }},
               {"workspace ends in p", Code::kOverlap, "exec.workspace", [](C& c) { c.p.data = c.end(4); }},
               {"workspace ends in v", Code::kOverlap, "exec.workspace", [](C& c) { c.v.data = c.end(2); }},
               {"workspace ends in out", Code::kOverlap, "exec.workspace", [](C& c) { c.out.data = c.end(2); }},
               {"out in v", Code::kOverlap, "out", [](C& c) { c.v.data = c.out.data; }},
           });
}
TEST_P(BadCalls, WeightedValuesWithAWorkspace) {
  check_values_workspace<Arithmetic::kBF16>(GetParam());
  check_values_workspace<Arithmetic::kInt8>(GetParam());
}

// ---------------------------------------------------------------------------------------------------------------------

struct RopeCall {
  Random random{6};
  Array<4> x_memory{random, DType::kF32, {2, 4, 3, 16}}, out_memory{random, DType::kF32, {2, 4, 3, 16}};
  Array<2> cos_memory{random, DType::kF32, {10, 6}}, sin_memory{random, DType::kF32, {10, 6}},
      positions_memory{random, DType::kI64, {2, 3}};
  ConstView<4> x = x_memory.view;
  View<4> out = out_memory.view;
  ConstView<2> cos = cos_memory.view, sin = sin_memory.view, positions = positions_memory.view;
  RopeOptions options{.first_dim = 4};
  Exec exec;
  RopeCall() { positions_memory.fill_bytes(0); }
  void position(int64_t p) const {
    set_element_bits(positions_memory.view.data, DType::kI64, 5, static_cast<uint64_t>(p));
  }
  Status call() const { return rope(x, cos, sin, positions, out, options, exec); }
  std::vector<const Guarded*> outputs() const { return {&out_memory.memory}; }
};

TEST_P(BadCalls, Rope) {
  using C = RopeCall;
  const Target* const t = GetParam();
  check<C>(
      "rope", [t](C& c) { c.exec.target = t; },
      {
          {"x null", Code::kNullPointer, "x", [](C& c) { c.x.data = nullptr; }},
          {"out null", Code::kNullPointer, "out", [](C& c) { c.out.data = nullptr; }},
          {"cos null", Code::kNullPointer, "cos", [](C& c) { c.cos.data = nullptr; }},
          {"sin null", Code::kNullPointer, "sin", [](C& c) { c.sin.data = nullptr; }},
          {"x of integers", Code::kDType, "x", [](C& c) { c.x.dtype = DType::kI32; }},
          {"cos in bf16", Code::kDType, "cos", [](C& c) { c.cos.dtype = DType::kBF16; }},
          {"positions of floats", Code::kDType, "positions", [](C& c) { c.positions.dtype = DType::kF32; }},
          {"out of other shape", Code::kShape, "out.shape", [](C& c) { c.out.shape[1] = 3; }},
          {"sin of other shape", Code::kShape, "sin.shape", [](C& c) { c.sin.shape[1] = 5; }},
          {"an odd dimension cannot be halved", Code::kShape, "cos.shape[1]",
           [](C& c) { c.x.shape[3] = c.out.shape[3] = 15; }},
          {"table wider than the dimension", Code::kShape, "cos.shape[1]", [](C& c) { c.options.first_dim = 5; }},
          {"first_dim negative", Code::kRange, "options.first_dim", [](C& c) { c.options.first_dim = -2; }},
          {"first_dim beyond the dimension", Code::kRange, "options.first_dim", [](C& c) { c.options.first_dim = 17; }},
          {"pairing that does not exist", Code::kRange, "options.pairing",
           [](C& c) { c.options.pairing = static_cast<RopePairing>(9); }},
          {"positions of other shape", Code::kShape, "positions.shape", [](C& c) { c.positions.shape[1] = 2; }},
          {"position negative", Code::kRange, "positions", [](C& c) { c.position(-1); }},
          {"position past the table", Code::kRange, "positions", [](C& c) { c.position(10); }},
          {"position that wraps in 32 bits", Code::kRange, "positions", [](C& c) { c.position(int64_t{1} << 32); }},
          {"no positions and a short table", Code::kRange, "options.start",
           [](C& c) { c.positions = {}, c.cos.shape[0] = c.sin.shape[0] = 2; }},
          {"no positions and a start past the table", Code::kRange, "options.start",
           [](C& c) { c.positions = {}, c.options.start = 8; }},
          {"no positions and a negative start", Code::kRange, "options.start",
           [](C& c) { c.positions = {}, c.options.start = -1; }},
          {"options that were only cleared", Code::kStructSize, "options", [](C& c) { c.options.struct_size = 0; }},
          {"x not contiguous", Code::kStride, "x", [](C& c) { c.x.stride[3] = 2; }},
          {"cos not contiguous", Code::kStride, "cos", [](C& c) { c.cos.stride[1] = 2; }},
          {"out broadcast", Code::kStride, "out", [](C& c) { c.out.stride[1] = 0; }},
          {"out is x moved", Code::kOverlap, "out",
           [](C& c) {
             c.x.data = static_cast<float*>(c.out.data) + 16;
             c.x.stride[0] = 0;
           }},
          {"out is x of another type", Code::kOverlap, "out",
           [](C& c) {
             c.x.data = c.out.data;
             c.x.dtype = DType::kBF16;
           }},
          {"out in sin", Code::kOverlap, "out", [](C& c) { c.sin.data = c.out.data; }},
          {"target cannot run", Code::kTarget, "exec.target", [](C& c) { c.exec.target = not_runnable(); }},
      });
}

// ---------------------------------------------------------------------------------------------------------------------

struct KvAppendCall {
  Random random{7};
  Array<4> rows_memory{random, DType::kF32, {2, 2, 3, 16}};
  Array<2> positions_memory{random, DType::kI32, {2, 3}}, cos_memory{random, DType::kF32, {40, 8}},
      sin_memory{random, DType::kF32, {40, 8}};
  KvStorage storage = make_kv(random, DType::kBF16, KvForm::kPanels, 2, 2, 40, 16);
  KvStorage paged = make_kv(random, DType::kF32, KvForm::kPagedPanels, 2, 2, 40, 16);
  KvStorage integers = make_kv(random, KvType::kInt8, KvForm::kPanels, 2, 2, 40, 16);
  KvStorage blocks = make_kv(random, KvType::kQ8_0, KvForm::kRows, 2, 2, 40, 32);
  void* scales = integers.kv.scales;
  void narrow() { cache = integers.kv; }
  KvStorage ring = make_kv(random, DType::kF32, KvForm::kRingPanels, 2, 2, 40, 16, 32);
  ConstView<4> rows = rows_memory.view;
  ConstView<2> positions = positions_memory.view;
  Kv cache = storage.kv;
  int32_t starts[2] = {0, 1}, counts[2] = {3, 0};
  Array<2> slots_memory{random, DType::kI64, {2, 3}};
  AppendOptions options;
  Exec exec;
  KvAppendCall() {
    options.rope.cos = cos_memory.view;
    options.rope.sin = sin_memory.view;
    for (int64_t i = 0; i < 6; ++i) slot(i, i);
    for (int64_t i = 0; i < 6; ++i) position(i, static_cast<int32_t>(i % 3 + 7));
  }
  void position(int64_t i, int32_t p) const {
    set_element_bits(positions_memory.view.data, DType::kI32, i, static_cast<uint64_t>(static_cast<uint32_t>(p)));
  }
  void slot(int64_t i, int64_t place) const {
    set_element_bits(slots_memory.view.data, DType::kI64, i, static_cast<uint64_t>(place));
  }
  /// Numbers inside of a store: zeros, which any rule on numbers accepts.
  static const int32_t* zeros(const KvStorage& /*store*/, void* inside) {
    std::memset(inside, 0, 64);
    return static_cast<const int32_t*>(inside);
  }
  static const int32_t* zeros(const KvStorage& s) {
    std::memset(s.memory.data(), 0, 64);
    return reinterpret_cast<const int32_t*>(s.memory.data());
  }
  /// Places from a list of slots of the paged store.
  void by_slots() {
    cache = paged.kv;
    options.slots = slots_memory.view;
  }
  Status call() const { return kv_append(rows, positions, cache, options, exec); }
  std::vector<const Guarded*> outputs() const {
    return {&storage.memory, &paged.memory, &ring.memory, &integers.memory, &integers.scales, &blocks.memory};
  }
};

TEST_P(BadCalls, KvAppend) {
  using C = KvAppendCall;
  const Target* const t = GetParam();
  check<C>(
      "kv_append", [t](C& c) { c.exec.target = t; },
      {
          {"rows null", Code::kNullPointer, "rows", [](C& c) { c.rows.data = nullptr; }},
          {"cache null", Code::kNullPointer, "kv", [](C& c) { c.cache.data = nullptr; }},
          {"start past the store", Code::kRange, "options.start", [](C& c) { c.positions = {}, c.options.start = 38; }},
          {"a sequence's start past the store", Code::kRange, "options.starts",
           [](C& c) { c.positions = {}, c.starts[1] = 38, c.options.starts = c.starts; }},
          {"more rows than there are", Code::kRange, "options.counts",
           [](C& c) { c.counts[1] = 4, c.options.counts = c.counts; }},
          {"a negative number of rows", Code::kRange, "options.counts",
           [](C& c) { c.counts[0] = -1, c.options.counts = c.counts; }},
          {"slots of floats", Code::kDType, "options.slots",
           [](C& c) { c.by_slots(), c.options.slots.dtype = DType::kF32; }},
          {"slots of other shape", Code::kShape, "options.slots",
           [](C& c) { c.by_slots(), c.options.slots.shape[1] = 2; }},
          {"slots of a store without data, for sequences of no tokens", Code::kNullPointer, "kv.data",
           [](C& c) { c.by_slots(), c.cache.tokens = 0, c.cache.data = nullptr; }},
          {"slots of a store in the rows, for sequences of no tokens", Code::kOverlap, "kv: overlaps row",
           [](C& c) { c.by_slots(), c.cache.tokens = 0, c.cache.data = const_cast<void*>(c.rows.data); }},
          {"slot past the pool", Code::kRange, "options.slots",
           [](C& c) { c.by_slots(), c.slot(5, c.cache.n_pages * c.cache.page_size); }},
          {"options that were only cleared", Code::kStructSize, "options", [](C& c) { c.options.struct_size = 0; }},
          {"store that was only cleared", Code::kStructSize, "kv", [](C& c) { c.cache.struct_size = 0; }},
          {"reserved numbers", Code::kStructSize, "kv", [](C& c) { c.cache.reserved[0] = 7; }},
          {"only cos", Code::kNullPointer, "options.rope.sin", [](C& c) { c.options.rope.sin.data = nullptr; }},
          {"cos in bf16", Code::kDType, "options.rope.cos", [](C& c) { c.options.rope.cos.dtype = DType::kBF16; }},
          {"pairing that does not exist", Code::kRange, "options.rope.options.pairing",
           [](C& c) { c.options.rope.options.pairing = static_cast<RopePairing>(5); }},
          {"first dimension negative", Code::kRange, "options.rope.options.first_dim",
           [](C& c) { c.options.rope.options.first_dim = -1; }},
          {"rows of integers", Code::kDType, "rows", [](C& c) { c.rows.dtype = DType::kI32; }},
          {"cache of a type that does not exist", Code::kDType, "kv.type",
           [](C& c) { c.cache.type = static_cast<KvType>(77); }},
          {"cache of a type that can be read only", Code::kDType, "kv.type",
           [](C& c) { c.cache.type = KvType::kQ5_0, c.cache.layout = KvLayout::kRows; }},
          {"scales of a type that has none", Code::kDType, "kv.scales", [](C& c) { c.cache.scales = c.scales; }},
          {"integers without scales", Code::kNullPointer, "kv.scales",
           [](C& c) { c.narrow(), c.cache.scales = nullptr; }},
          {"scales between floats", Code::kStride, "kv.scale",
           [](C& c) { c.narrow(), c.cache.scale_token_stride = 6; }},
          {"one scale for all tokens", Code::kStride, "kv.scale",
           [](C& c) { c.narrow(), c.cache.scale_token_stride = 0; }},
          {"scales too far apart", Code::kStride, "kv",
           [](C& c) { c.narrow(), c.cache.scale_head_stride = INT64_MAX - 3; }},
          {"scales in the store", Code::kOverlap, "kv: overlaps",
           [](C& c) { c.narrow(), c.cache.scales = c.cache.data; }},
          {"rows in scales", Code::kOverlap, "kv.scales: overlaps",
           [](C& c) { c.narrow(), c.cache.scales = const_cast<void*>(c.rows.data); }},
          {"positions in scales", Code::kOverlap, "kv.scales: overlaps",
           [](C& c) { c.narrow(), c.cache.scales = const_cast<void*>(c.positions.data); }},
          {"starts in scales", Code::kOverlap, "kv.scales: overlaps",
           [](C& c) { c.narrow(), c.options.starts = c.zeros(c.integers, c.scales), c.positions = {}; }},
          {"counts in scales", Code::kOverlap, "kv.scales: overlaps",
           [](C& c) { c.narrow(), c.options.counts = c.zeros(c.integers, c.scales); }},
          {"cos in scales", Code::kOverlap, "kv.scales: overlaps options.rope.cos",
           [](C& c) { c.narrow(), c.options.rope.cos.data = c.scales; }},
          {"a part of a block", Code::kShape, "kv.dim", [](C& c) { c.cache.type = KvType::kQ8_0; }},
          {"a block that begins at an odd byte", Code::kStride, "kv",
           [](C& c) {
             c.cache = c.blocks.kv;
             c.cache.dim = 32, c.rows.shape[3] = 32, c.rows.stride = {0, 0, 0, 1};
             c.cache.token_stride = 33;
           }},
          {"an integer row that is too long", Code::kShape, "kv.dim", [](C& c) { c.narrow(), c.cache.dim = 8193; }},
          {"batch differs", Code::kShape, "kv.batch", [](C& c) { c.cache.batch = 1; }},
          {"heads differ", Code::kShape, "kv.heads", [](C& c) { c.cache.heads = 1; }},
          {"dimension differs", Code::kShape, "kv.dim", [](C& c) { c.cache.dim = 15; }},
          {"dimension 0", Code::kShape, "kv.dim", [](C& c) { c.cache.dim = 0, c.rows.shape[3] = 0; }},
          {"tokens negative", Code::kShape, "kv.tokens", [](C& c) { c.cache.tokens = -1; }},
          {"positions of other shape", Code::kShape, "positions", [](C& c) { c.positions.shape[1] = 2; }},
          {"positions of floats", Code::kDType, "positions", [](C& c) { c.positions.dtype = DType::kF32; }},
          {"position past the cache", Code::kRange, "positions", [](C& c) { c.position(5, 40); }},
          {"position past the table", Code::kRange, "positions",
           [](C& c) { c.position(5, 39), c.options.rope.cos.shape[0] = c.options.rope.sin.shape[0] = 39; }},
          {"table wider than the dimension", Code::kShape, "options.rope.cos.shape[1]",
           [](C& c) { c.options.rope.options.first_dim = 1; }},
          {"sin of other shape", Code::kShape, "options.rope.sin.shape",
           [](C& c) { c.options.rope.sin.shape[0] = 39; }},
          {"layout that does not exist", Code::kShape, "kv.layout",
           [](C& c) { c.cache.layout = static_cast<KvLayout>(5); }},
          {"ring that cuts panels", Code::kRange, "kv.ring", [](C& c) { c.cache.ring = 33; }},
          {"ring negative", Code::kRange, "kv.ring", [](C& c) { c.cache.ring = -32; }},
          {"pages and a ring", Code::kRange, "kv", [](C& c) { c.cache = c.paged.kv, c.cache.ring = 32; }},
          {"page size negative", Code::kShape, "kv.page_size",
           [](C& c) { c.cache = c.paged.kv, c.cache.page_size = -32; }},
          {"pages without a table", Code::kNullPointer, "kv.block_table",
           [](C& c) { c.cache = c.paged.kv, c.cache.block_table = nullptr; }},
          {"block table that overlaps itself", Code::kShape, "kv.block_table_stride",
           [](C& c) { c.cache = c.paged.kv, c.cache.block_table_stride = -2; }},
          {"page that cuts panels", Code::kShape, "kv.page_size",
           [](C& c) { c.cache = c.paged.kv, c.cache.page_size = 33; }},
          {"page past the pool", Code::kRange, "kv.block_table",
           [](C& c) { c.cache = c.paged.kv, c.paged.table.data()[0] = static_cast<int32_t>(c.cache.n_pages); }},
          {"rows not contiguous", Code::kStride, "rows", [](C& c) { c.rows.stride[3] = 2; }},
          {"tokens of the cache coincide", Code::kStride, "kv", [](C& c) { c.cache.token_stride = 8; }},
          {"rows in the cache", Code::kOverlap, "kv",
           [](C& c) {
             c.rows.data = c.cache.data;
             c.rows.stride = {0, 0, 0, 1};
           }},
          {"positions in the store", Code::kOverlap, "kv: overlaps position",
           [](C& c) { c.positions.data = c.zeros(c.storage); }},
          {"slots in the store", Code::kOverlap, "kv: overlaps options.slot",
           [](C& c) { c.by_slots(), c.options.slots.data = c.zeros(c.paged); }},
          {"starts in the store", Code::kOverlap, "kv: overlaps options.start",
           [](C& c) { c.positions = {}, c.options.starts = c.zeros(c.storage); }},
          {"counts in the store", Code::kOverlap, "kv: overlaps options.count",
           [](C& c) { c.options.counts = c.zeros(c.storage); }},
          {"block table in the store", Code::kOverlap, "kv: overlaps kv.block",
           [](C& c) { c.cache = c.paged.kv, c.cache.block_table = c.zeros(c.paged); }},
          {"slots without pages", Code::kRange, "options.slots", [](C& c) { c.options.slots = c.slots_memory.view; }},
          {"ring beyond all sizes", Code::kRange, "kv.ring",
           [](C& c) { c.cache = c.ring.kv, c.cache.ring = std::numeric_limits<int64_t>::max(); }},
          {"pages beyond all sizes", Code::kShape, "kv.page_size",
           [](C& c) { c.cache = c.paged.kv, c.cache.page_size = int64_t{1} << 40; }},
          {"batch beyond all sizes", Code::kShape, "kv.batch", [](C& c) { c.cache.batch = int64_t{1} << 30; }},
          {"sin in the store", Code::kOverlap, "kv: overlaps options.rope",
           [](C& c) { c.options.rope.sin.data = c.cache.data; }},
          {"cos in the cache", Code::kOverlap, "kv", [](C& c) { c.options.rope.cos.data = c.cache.data; }},
          {"target cannot run", Code::kTarget, "exec.target", [](C& c) { c.exec.target = not_runnable(); }},
      });
}

// ---------------------------------------------------------------------------------------------------------------------

struct AttentionCall {
  Random random{8};
  std::unique_ptr<ScoringArrays> arrays = std::make_unique<ScoringArrays>();
  Array<4> q_memory{random, DType::kF32, {2, 4, 3, 16}}, out_memory{random, DType::kF32, {2, 4, 3, 8}},
      acc_memory{random, DType::kF32, {2, 4, 3, 8}};
  Array<3> lse_memory{random, DType::kF32, {2, 4, 3}}, max_memory{random, DType::kF32, {2, 4, 3}},
      sum_memory{random, DType::kF32, {2, 4, 3}};
  Array<4> k_memory{random, DType::kBF16, {2, 2, 20, 16}}, k32_memory{random, DType::kF32, {2, 2, 20, 16}},
      v_memory{random, DType::kF16, {2, 2, 20, 8}};
  Array<4> packed_q{random, DType::kF32, {1, 4, 6, 16}}, packed_out{random, DType::kF32, {1, 4, 6, 8}},
      packed_k{random, DType::kF32, {1, 2, 30, 16}}, packed_v{random, DType::kF32, {1, 2, 30, 8}};
  KvStorage paged_k = make_kv(random, DType::kF32, KvForm::kPagedPanels, 2, 2, 20, 16),
            paged_v = make_kv(random, DType::kF32, KvForm::kPagedRows, 2, 2, 20, 8);
  KvStorage panels = make_kv(random, DType::kF32, KvForm::kPanels, 2, 2, 20, 16),
            value_panels = make_kv(random, DType::kF32, KvForm::kPanels, 2, 2, 20, 8);
  int32_t cu_q[3] = {0, 2, 6}, cu_k[3] = {0, 10, 30};
  Attention a;
  Scoring& s = a.scoring;
  Guarded workspace, partial_memory{1 << 16, Guard::kAfter};
  Exec exec;
  AttentionCall() {
    a.q = q_memory.view;
    a.k = k_memory.view;
    a.v = v_memory.view;
    a.out = out_memory.view;
    a.lse = lse_memory.view;
    a.acc = acc_memory.view;
    a.max = max_memory.view;
    a.sum = sum_memory.view;
    a.scoring = arrays->all();
    AttentionPlan plan;
    if (!attention_plan(a, &plan).ok()) return;
    workspace = Guarded(plan.workspace_bytes, Guard::kAfter);
    exec.workspace = workspace.data();
    exec.workspace_bytes = workspace.size();
  }
  AttentionCall(const AttentionCall&) = delete;
  AttentionCall& operator=(const AttentionCall&) = delete;
  /// A mixed batch of sequences.
  void varlen() {
    a.q = packed_q.view;
    a.out = packed_out.view;
    a.k = packed_k.view;
    a.v = packed_v.view;
    a.lse = {};
    a.acc = {};
    a.max = a.sum = {};
    a.scoring = {};
    a.cu_q = cu_q;
    a.cu_k = cu_k;
    a.n_sequences = 2;
  }
  Status call() const { return attention(a, exec); }
  std::vector<const Guarded*> outputs() const {
    return {&out_memory.memory, &lse_memory.memory, &acc_memory.memory, &max_memory.memory,
            &sum_memory.memory, &packed_out.memory, &workspace};
  }
};

std::vector<Bad<AttentionCall>> attention_rows() {
  using C = AttentionCall;
  std::vector<Bad<C>> table = scoring_rows<C>();
  const std::vector<Bad<C>> own = {
      {"q null", Code::kNullPointer, "q", [](C& c) { c.a.q.data = nullptr; }},
      {"k null", Code::kNullPointer, "k", [](C& c) { c.a.k.data = nullptr; }},
      {"v null", Code::kNullPointer, "v", [](C& c) { c.a.v.data = nullptr; }},
      {"q of integers", Code::kDType, "q", [](C& c) { c.a.q.dtype = DType::kI64; }},
      {"k of a type that does not exist", Code::kDType, "k.type", [](C& c) { c.a.k.type = static_cast<KvType>(77); }},
      {"v of a type that does not exist", Code::kDType, "v.type", [](C& c) { c.a.v.type = static_cast<KvType>(-1); }},
      {"k of bytes", Code::kDType, "k.type",
       [](C& c) {
         ConstView<4> k = c.k_memory.view;
         k.dtype = DType::kU8;
         c.a.k = k;
       }},
      {"out of integers", Code::kDType, "out", [](C& c) { c.a.out.dtype = DType::kI32; }},
      {"lse in bf16", Code::kDType, "lse", [](C& c) { c.a.lse.dtype = DType::kBF16; }},
      {"acc in bf16", Code::kDType, "acc", [](C& c) { c.a.acc.dtype = DType::kBF16; }},
      {"d_qk = 0", Code::kShape, "q.shape[3]", [](C& c) { c.a.q.shape[3] = 0; }},
      {"d_qk = 0 in k", Code::kShape, "k.dim", [](C& c) { c.a.k.dim = 0; }},
      {"d_v = 0", Code::kShape, "v.dim", [](C& c) { c.a.v.dim = c.a.out.shape[3] = 0; }},
      {"k not contiguous", Code::kShape, "k.dim",
       [](C& c) {
         View<4> k = c.k_memory.view;
         k.stride[3] = 2;
         c.a.k = k;
       }},
      {"dimensions differ", Code::kShape, "k.dim", [](C& c) { c.a.k.dim = 15; }},
      {"Hk = 0", Code::kShape, "k.heads", [](C& c) { c.a.k.heads = c.a.v.heads = 0; }},
      {"value heads differ", Code::kShape, "v.heads", [](C& c) { c.a.v.heads = 1; }},
      {"heads not a multiple", Code::kShape, "q.shape[1]", [](C& c) { c.a.q.shape[1] = 3; }},
      {"fewer values than keys", Code::kShape, "v", [](C& c) { c.a.v.tokens = 19; }},
      {"values of other length", Code::kShape, "v.length", [](C& c) { c.a.v.length = 19; }},
      {"length beyond the tokens", Code::kShape, "k.length", [](C& c) { c.a.k.length = c.a.v.length = 21; }},
      {"length negative", Code::kShape, "k.length", [](C& c) { c.a.k.length = c.a.v.length = -2; }},
      {"key batch differs", Code::kShape, "k.batch", [](C& c) { c.a.k.batch = 1; }},
      {"value batch differs", Code::kShape, "v.batch", [](C& c) { c.a.v.batch = 1; }},
      {"tokens negative", Code::kShape, "k.tokens", [](C& c) { c.a.k.tokens = c.a.v.tokens = -1; }},
      {"huge", Code::kShape, "k.tokens", [](C& c) { c.a.k.tokens = c.a.v.tokens = kHuge; }},
      {"one token more than all sizes", Code::kShape, "k.tokens",
       [](C& c) { c.a.k.tokens = c.a.v.tokens = int64_t{1} << 30, c.a.k.length = c.a.v.length = 20; }},
      {"one key head more than all sizes", Code::kShape, "k.heads", [](C& c) { c.a.k.heads = int64_t{1} << 30; }},
      {"one sequence of keys more than all sizes", Code::kShape, "k.batch: must be in",
       [](C& c) { c.a.k.batch = int64_t{1} << 30; }},
      {"one dimension of values more than all sizes", Code::kShape, "v.dim",
       [](C& c) { c.a.v.dim = int64_t{1} << 30, c.a.out = {}, c.a.acc = {}, c.a.max = c.a.sum = {}; }},
      {"values in panels", Code::kShape, "v.layout", [](C& c) { c.a.v = c.value_panels.kv; }},
      {"k layout that does not exist", Code::kShape, "k.layout", [](C& c) { c.a.k.layout = static_cast<KvLayout>(3); }},
      {"out of other shape", Code::kShape, "out.shape", [](C& c) { c.a.out.shape[2] = 2; }},
      {"out of other dimension", Code::kShape, "out.shape", [](C& c) { c.a.out.shape[3] = 7; }},
      {"lse of other shape", Code::kShape, "lse.shape", [](C& c) { c.a.lse.shape[2] = 2; }},
      {"acc of other shape", Code::kShape, "acc.shape", [](C& c) { c.a.acc.shape[3] = 7; }},
      {"max of other shape", Code::kShape, "max.shape", [](C& c) { c.a.max.shape[0] = 1; }},
      {"sum of other shape", Code::kShape, "sum.shape", [](C& c) { c.a.sum.shape[1] = 2; }},
      {"the raw state without sum", Code::kNullPointer, "acc, max, sum", [](C& c) { c.a.sum = {}; }},
      {"the raw state without max", Code::kNullPointer, "acc, max, sum", [](C& c) { c.a.max = {}; }},
      {"the raw state without acc", Code::kNullPointer, "acc, max, sum", [](C& c) { c.a.acc = {}; }},
      {"acc alone", Code::kNullPointer, "acc, max, sum", [](C& c) { c.a.max = c.a.sum = {}; }},
      {"max alone", Code::kNullPointer, "acc, max, sum",
       [](C& c) {
         c.a.acc = {};
         c.a.sum = {};
       }},
      {"sum alone", Code::kNullPointer, "acc, max, sum",
       [](C& c) {
         c.a.acc = {};
         c.a.max = {};
       }},
      {"no output at all", Code::kNullPointer, "out",
       [](C& c) {
         c.a.out.data = nullptr;
         c.a.lse = {};
         c.a.acc = {};
         c.a.max = c.a.sum = {};
       }},
      {"q not contiguous", Code::kStride, "q", [](C& c) { c.a.q.stride[3] = 2; }},
      {"k stride overflows", Code::kStride, "k",
       [](C& c) { c.a.k.token_stride = std::numeric_limits<int64_t>::max(); }},
      {"k stride between elements", Code::kStride, "k", [](C& c) { c.a.k.token_stride += 1; }},
      {"v stride between elements", Code::kStride, "v", [](C& c) { c.a.v.head_stride += 1; }},
      {"stride of f32 keys between elements", Code::kStride, "k",
       [](C& c) {
         c.a.k = c.k32_memory.view;
         c.a.k.head_stride += 2;
       }},
      {"all k strides between elements", Code::kStride, "k",
       [](C& c) { c.a.k.token_stride += 1, c.a.k.head_stride += 1, c.a.k.batch_stride += 1; }},
      {"reserved member 0 of keys", Code::kStructSize, "k.reserved", [](C& c) { c.a.k.reserved[0] = 1; }},
      {"reserved member 1 of keys", Code::kStructSize, "k.reserved", [](C& c) { c.a.k.reserved[1] = 1; }},
      {"reserved member 2 of keys", Code::kStructSize, "k.reserved", [](C& c) { c.a.k.reserved[2] = 1; }},
      {"reserved member 3 of keys", Code::kStructSize, "k.reserved", [](C& c) { c.a.k.reserved[3] = 1; }},
      {"scales of keys that have none", Code::kDType, "k.scales", [](C& c) { c.a.k.scales = c.a.v.data; }},
      {"block table of keys that have no pages", Code::kRange, "k.block_table",
       [](C& c) { c.a.k.block_table = c.paged_k.kv.block_table; }},
      {"block table stride below -1", Code::kShape, "k.block_table_stride",
       [](C& c) { c.a.k.block_table_stride = -2; }},
      {"out broadcast", Code::kStride, "out", [](C& c) { c.a.out.stride[0] = 0; }},
      {"rows of lse coincide", Code::kStride, "lse", [](C& c) { c.a.lse.stride[1] = 1; }},
      {"out in q", Code::kOverlap, "out",
       [](C& c) {
         c.a.q.data = c.a.out.data;
         c.a.q.stride = {0, 0, 0, 1};
       }},
      {"out in k", Code::kOverlap, "out", [](C& c) { c.a.k.data = c.a.out.data; }},
      {"out in v", Code::kOverlap, "out", [](C& c) { c.a.v.data = c.a.out.data; }},
      {"lse in out", Code::kOverlap, "", [](C& c) { c.a.lse.data = c.a.out.data; }},
      {"acc is out", Code::kOverlap, "", [](C& c) { c.a.acc = c.a.out; }},
      {"max is sum", Code::kOverlap, "", [](C& c) { c.a.max = c.a.sum; }},
      {"out in the sinks", Code::kOverlap, "out", [](C& c) { c.s.sinks = static_cast<float*>(c.a.out.data); }},
      {"ring and cut panels", Code::kRange, "k.ring",
       [](C& c) {
         c.a.k = c.panels.kv;
         c.a.k.ring = 20;
       }},
      {"ring and pages", Code::kRange, "k",
       [](C& c) {
         c.a.k = c.paged_k.kv;
         c.a.k.ring = 32;
       }},
      {"page that cuts panels", Code::kShape, "k.page_size",
       [](C& c) {
         c.a.k = c.paged_k.kv;
         c.a.k.page_size = 20;
       }},
      {"page size negative", Code::kShape, "v.page_size",
       [](C& c) {
         c.a.v = c.paged_v.kv;
         c.a.v.page_size = -1;
       }},
      {"pages without a table", Code::kNullPointer, "v.block_table",
       [](C& c) {
         c.a.v = c.paged_v.kv;
         c.a.v.block_table = nullptr;
       }},
      {"arithmetic that does not exist", Code::kRange, "arithmetic",
       [](C& c) { c.a.arithmetic = static_cast<Arithmetic>(99); }},
      {"arithmetic past the last", Code::kRange, "arithmetic",
       [](C& c) { c.a.arithmetic = static_cast<Arithmetic>(3); }},
      {"negative arithmetic", Code::kRange, "arithmetic", [](C& c) { c.a.arithmetic = static_cast<Arithmetic>(-1); }},
      {"problem that was only cleared", Code::kStructSize, "problem", [](C& c) { c.a.struct_size = 0; }},
      {"k that was only cleared", Code::kStructSize, "k", [](C& c) { c.a.k.struct_size = 0; }},
      {"reserved numbers in v", Code::kStructSize, "v", [](C& c) { c.a.v.reserved[3] = 1; }},
      {"missing page", Code::kRange, "k.block_table",
       [](C& c) {
         c.s = {};
         c.a.k = c.paged_k.kv;
         c.paged_k.table.data()[0] = -1;
       }},
      {"page past the pool", Code::kRange, "v.block_table",
       [](C& c) {
         c.s = {};
         c.a.v = c.paged_v.kv;
         c.paged_v.table.data()[0] = static_cast<int32_t>(c.a.v.n_pages);
       }},
      {"cu_k without cu_q", Code::kNullPointer, "cu_q",
       [](C& c) {
         c.varlen();
         c.a.cu_q = nullptr;
       }},
      {"cu_q does not begin at 0", Code::kRange, "cu_q",
       [](C& c) {
         c.varlen();
         c.cu_q[0] = 1;
       }},
      {"cu_q decreases", Code::kRange, "cu_q",
       [](C& c) {
         c.varlen();
         c.cu_q[1] = 7;
       }},
      {"cu_q ends elsewhere", Code::kShape, "cu_q",
       [](C& c) {
         c.varlen();
         c.cu_q[2] = 5;
       }},
      {"cu_k does not begin at 0", Code::kRange, "cu_k",
       [](C& c) {
         c.varlen();
         c.cu_k[0] = -1;
       }},
      {"cu_k decreases", Code::kRange, "cu_k",
       [](C& c) {
         c.varlen();
         c.cu_k[1] = 31;
       }},
      {"cu_k ends elsewhere", Code::kShape, "cu_k",
       [](C& c) {
         c.varlen();
         c.cu_k[2] = 29;
       }},
      {"batched varlen q", Code::kShape, "q.shape[0]",
       [](C& c) {
         c.varlen();
         c.a.q.shape[0] = 2;
       }},
      {"batched varlen k", Code::kShape, "k.batch",
       [](C& c) {
         c.varlen();
         c.a.k.batch = 2;
       }},
      {"sequences negative", Code::kRange, "n_sequences",
       [](C& c) {
         c.varlen();
         c.a.n_sequences = -1;
       }},
      {"varlen bias of one sequence", Code::kShape, "scoring.bias",
       [](C& c) {
         c.varlen();
         c.s.bias = c.arrays->bias.view;
       }},
      {"length beyond a varlen sequence", Code::kRange, "scoring.kv_length",
       [](C& c) {
         c.varlen();
         c.arrays->numbers[0] = 11;
         c.s.kv_length = c.arrays->numbers;
       }},
      {"target cannot run", Code::kTarget, "exec.target", [](C& c) { c.exec.target = not_runnable(); }},
  };
  table.insert(table.end(), own.begin(), own.end());
  return table;
}

TEST_P(BadCalls, Attention) {
  using C = AttentionCall;
  const Target* const t = GetParam();
  std::vector<Bad<C>> table = attention_rows();
  table.push_back({"workspace null", Code::kWorkspace, "exec.workspace", [](C& c) { c.exec.workspace = nullptr; }});
  table.push_back(
      {"workspace one byte short", Code::kWorkspace, "exec.workspace_bytes", [](C& c) { --c.exec.workspace_bytes; }});
  check<C>("attention", [t](C& c) { c.exec.target = t; }, table);
}

struct PlanCall : AttentionCall {
  mutable AttentionPlan plan;
  AttentionPlan* pointer = &plan;
  PlanCall() {
    plan.tasks = plan.reduce_tasks = -1;
    plan.workspace_bytes = plan.partial_bytes = 99;
  }
  Status call() const {
    const Status status = attention_plan(a, pointer, exec);
    // On failure the struct is an output like others.
    if (!status.ok()) {
      EXPECT_EQ(plan.tasks, -1);
      EXPECT_EQ(plan.workspace_bytes, 99u);
    }
    return status;
  }
};

TEST_P(BadCalls, AttentionPlan) {
  using C = PlanCall;
  const Target* const t = GetParam();
  std::vector<Bad<AttentionCall>> table;
  for (const Bad<AttentionCall>& bad : attention_rows()) {
    // Arrays need not be there yet when the work is divided, and ranges look at the pages.
    const std::string what = bad.what;
    if (what == "q null" || what == "k null" || what == "v null" || what == "no output at all") continue;
    if (what == "pages without a table" || what == "missing page" || what == "page past the pool") continue;
    if (what == "mask columns without a mask") continue;
    table.push_back(bad);
  }
  check<C>("attention_plan", [t](C& c) { c.exec.target = t; }, table);
  check<C>("attention_plan", [t](C& c) { c.exec.target = t; },
           {
               {"plan null", Code::kNullPointer, "plan", [](C& c) { c.pointer = nullptr; }},
               {"plan that was only cleared", Code::kStructSize, "plan", [](C& c) { c.plan.struct_size = 0; }},
           });
}

/// Long keys, so that there is something to reduce.
struct RangeCall {
  Random random{9};
  Array<4> q_memory{random, DType::kF32, {1, 2, 1, 8}}, out_memory{random, DType::kF32, {1, 2, 1, 8}},
      k_memory{random, DType::kF32, {1, 1, 3000, 8}};
  int32_t length = 3000;
  Attention a;
  AttentionPlan plan;
  Guarded workspace, partial_memory;
  void* partial = nullptr;
  size_t partial_bytes = 0;
  int64_t first = 0, last = 1;
  Exec exec;
  RangeCall() {
    k_memory.fill(random, Values::kOrdinary);
    q_memory.fill(random, Values::kOrdinary);
    a.q = q_memory.view;
    a.k = k_memory.view;
    a.v = k_memory.view;
    a.out = out_memory.view;
    a.scoring.kv_length = &length;
    make_plan(nullptr);
    EXPECT_GT(plan.reduce_tasks, 0);
    workspace = Guarded(plan.workspace_bytes, Guard::kAfter);
    partial_memory = Guarded(plan.partial_bytes, Guard::kAfter);
    exec.workspace = workspace.data();
    exec.workspace_bytes = workspace.size();
    partial = partial_memory.data();
    partial_bytes = partial_memory.size();
  }
  RangeCall(const RangeCall&) = delete;
  RangeCall& operator=(const RangeCall&) = delete;
  void make_plan(const Target* t) {
    exec.target = t;
    const Status s = attention_plan(a, &plan, exec);
    EXPECT_TRUE(s.ok()) << s.detail;
  }
  Status call() const { return attention_range(plan, first, last, partial, partial_bytes, exec); }
  std::vector<const Guarded*> outputs() const { return {&out_memory.memory, &partial_memory, &workspace}; }
};
struct ReduceCall : RangeCall {
  Status call() const { return attention_reduce(plan, first, last, partial, partial_bytes, exec); }
};

template <class C>
std::vector<Bad<C>> range_rows() {
  return {
      {"plan without data", Code::kNullPointer, "",
       [](C& c) {
         c.a.q.data = nullptr;
         c.make_plan(c.exec.target);
       }},
      {"plan without an output", Code::kNullPointer, "",
       [](C& c) {
         c.a.out.data = nullptr;
         c.make_plan(c.exec.target);
       }},
      {"plan that was only cleared", Code::kStructSize, "plan", [](C& c) { c.plan.struct_size = 0; }},
      {"plan of another length", Code::kStalePlan, "", [](C& c) { c.length = 2500; }},
      {"first negative", Code::kRange, "first", [](C& c) { c.first = -1; }},
      {"last before first", Code::kRange, "first, last", [](C& c) { c.first = 1, c.last = 0; }},
      {"last past the tasks", Code::kRange, "first, last", [](C& c) { c.last = 1000; }},
      {"workspace null", Code::kWorkspace, "exec.workspace", [](C& c) { c.exec.workspace = nullptr; }},
      {"workspace one byte short", Code::kWorkspace, "exec.workspace_bytes", [](C& c) { --c.exec.workspace_bytes; }},
      {"partial null", Code::kNullPointer, "partial", [](C& c) { c.partial = nullptr; }},
      {"partial one byte short", Code::kWorkspace, "partial_bytes", [](C& c) { --c.partial_bytes; }},
      {"target cannot run", Code::kTarget, "exec.target", [](C& c) { c.exec.target = not_runnable(); }},
  };
}

TEST_P(BadCalls, AttentionRange) {
  const Target* const t = GetParam();
  check<RangeCall>("attention_range", [t](RangeCall& c) { c.make_plan(t); }, range_rows<RangeCall>());
}
TEST_P(BadCalls, AttentionReduce) {
  const Target* const t = GetParam();
  check<ReduceCall>(
      "attention_reduce",
      [t](ReduceCall& c) {
        c.make_plan(t);
        std::memset(c.partial_memory.data(), 0, c.partial_memory.size());
      },
      range_rows<ReduceCall>());
}

/// The arrays of another layer.
struct BindCall : RangeCall {
  Array<4> next_k{random, DType::kF32, {1, 1, 3000, 8}}, next_out{random, DType::kF32, {1, 2, 1, 8}};
  mutable AttentionPlan bound;
  AttentionPlan* pointer = &bound;
  BindCall() { next_k.fill(random, Values::kOrdinary); }
  void next_layer(const Target* t) {
    make_plan(t);
    a.k = next_k.view;
    a.v = next_k.view;
    a.out = next_out.view;
  }
  Status call() const {
    bound = plan;
    const Status status = attention_bind(a, pointer);
    if (status.ok()) return attention_range(bound, first, last, partial, partial_bytes, exec);
    EXPECT_EQ(std::memcmp(&bound, &plan, sizeof plan), 0) << "the plan was written";
    return status;
  }
  std::vector<const Guarded*> outputs() const { return {&out_memory.memory, &next_out.memory}; }
};

TEST_P(BadCalls, AttentionBind) {
  using C = BindCall;
  const Target* const t = GetParam();
  check<C>("attention_bind", [t](C& c) { c.next_layer(t); },
           {
               {"plan null", Code::kNullPointer, "plan", [](C& c) { c.pointer = nullptr; }},
               {"q null", Code::kNullPointer, "q", [](C& c) { c.a.q.data = nullptr; }},
               {"out in k", Code::kOverlap, "out", [](C& c) { c.a.k.data = c.a.out.data; }},
               {"other rows", Code::kStalePlan, "q:", [](C& c) { c.a.q.shape[1] = c.a.out.shape[1] = 1; }},
               {"other stride", Code::kStalePlan, "k:", [](C& c) { c.a.k.token_stride = 0; }},
               {"other type", Code::kStalePlan, "k:", [](C& c) { c.a.k.type = KvType::kBF16; }},
               {"other capacity", Code::kStalePlan, "v:", [](C& c) { c.a.v.length = 3000; }},
               {"other scales", Code::kStalePlan, "v:", [](C& c) { c.a.v.scale_token_stride = 4; }},
               {"other arithmetic", Code::kStalePlan, "arithmetic:", [](C& c) { c.a.arithmetic = Arithmetic::kInt8; }},
               {"other sequences", Code::kStalePlan, "n_sequences:", [](C& c) { c.a.n_sequences = 1; }},
               {"with cu_q", Code::kStalePlan, "cu_q:", [](C& c) { c.a.cu_q = &c.length; }},
               {"with cu_k", Code::kStalePlan, "cu_k:", [](C& c) { c.a.cu_k = &c.length; }},
               {"other scale", Code::kStalePlan, "scoring.scale:", [](C& c) { c.a.scoring.scale = 3.0f; }},
               {"other softcap", Code::kStalePlan, "scoring.softcap:", [](C& c) { c.a.scoring.softcap = 3.0f; }},
               {"causal", Code::kStalePlan, "scoring.causal:", [](C& c) { c.a.scoring.causal = true; }},
               {"other offset", Code::kStalePlan, "scoring.offset:", [](C& c) { c.a.scoring.offset = 3; }},
               {"window", Code::kStalePlan, "scoring.window_left:", [](C& c) { c.a.scoring.window_left = 3; }},
               {"window", Code::kStalePlan, "scoring.window_right:", [](C& c) { c.a.scoring.window_right = 3; }},
               {"chunk", Code::kStalePlan, "scoring.chunk:", [](C& c) { c.a.scoring.chunk = 3; }},
               {"offsets", Code::kStalePlan, "scoring.offsets:", [](C& c) { c.a.scoring.offsets = &c.length; }},
               {"prefix", Code::kStalePlan, "scoring.prefix_end:", [](C& c) { c.a.scoring.prefix_end = &c.length; }},
               {"start", Code::kStalePlan, "scoring.kv_start:", [](C& c) { c.a.scoring.kv_start = &c.length; }},
               {"no lengths", Code::kStalePlan, "scoring.kv_length:", [](C& c) { c.a.scoring.kv_length = nullptr; }},
               {"bias", Code::kStalePlan, "scoring.bias:", [](C& c) { c.a.scoring.bias = c.a.q; }},
               {"keep", Code::kStalePlan, "scoring.keep:", [](C& c) { c.a.scoring.keep = c.a.q; }},
               {"bits", Code::kStalePlan, "scoring.bits.columns:", [](C& c) { c.a.scoring.bits.columns = 3; }},
               {"bits", Code::kStalePlan, "scoring.bits.stride:", [](C& c) { c.a.scoring.bits.stride[0] = 3; }},
               {"other length", Code::kStalePlan, "", [](C& c) { c.length = 2500; }},
               {"problem that was only cleared", Code::kStructSize, "problem", [](C& c) { c.a.struct_size = 0; }},
               {"plan that was only cleared", Code::kStructSize, "plan", [](C& c) { c.plan.struct_size = 0; }},
           });
}

// ---------------------------------------------------------------------------------------------------------------------

struct MergeCall {
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
  Exec exec;
  Status call() const { return attention_merge(parts, part_lse, out, lse, sinks, exec); }
  std::vector<const Guarded*> outputs() const { return {&out_memory.memory, &lse_memory.memory, &parts_memory.memory}; }
};

TEST_P(BadCalls, AttentionMerge) {
  using C = MergeCall;
  const Target* const t = GetParam();
  check<C>("attention_merge",
           [t](C& c) {
             c.exec.target = t;
             c.sinks = c.sink_numbers;
           },
           {
               {"parts null", Code::kNullPointer, "parts", [](C& c) { c.parts.data = nullptr; }},
               {"part_lse null", Code::kNullPointer, "part_lse", [](C& c) { c.part_lse.data = nullptr; }},
               {"out null", Code::kNullPointer, "out", [](C& c) { c.out.data = nullptr; }},
               {"parts of integers", Code::kDType, "parts", [](C& c) { c.parts.dtype = DType::kI32; }},
               {"part_lse in bf16", Code::kDType, "part_lse", [](C& c) { c.part_lse.dtype = DType::kBF16; }},
               {"part_lse of other shape", Code::kShape, "part_lse.shape", [](C& c) { c.part_lse.shape[0] = 2; }},
               {"out of other shape", Code::kShape, "out.shape", [](C& c) { c.out.shape[3] = 7; }},
               {"lse of other shape", Code::kShape, "lse.shape", [](C& c) { c.lse.shape[0] = 1; }},
               {"dimension 0", Code::kShape, "parts.shape[4]", [](C& c) { c.parts.shape[4] = c.out.shape[3] = 0; }},
               {"parts not contiguous", Code::kStride, "parts", [](C& c) { c.parts.stride[4] = 2; }},
               {"part_lse not contiguous", Code::kStride, "part_lse", [](C& c) { c.part_lse.stride[3] = 2; }},
               {"out broadcast", Code::kStride, "out", [](C& c) { c.out.stride[0] = 0; }},
               {"out between two parts", Code::kOverlap, "out",
                [](C& c) { c.out.data = static_cast<float*>(c.parts_memory.view.data) + 100; }},
               {"out in part_lse", Code::kOverlap, "out", [](C& c) { c.part_lse.data = c.out.data; }},
               {"lse in part_lse", Code::kOverlap, "lse",
                [](C& c) {
                  c.part_lse.data = c.lse.data;
                  c.part_lse.stride[0] = 0;
                }},
               {"lse in out", Code::kOverlap, "lse", [](C& c) { c.lse.data = c.out.data; }},
               {"out in the sinks", Code::kOverlap, "out", [](C& c) { c.sinks = static_cast<float*>(c.out.data) + 3; }},
               {"lse in the sinks", Code::kOverlap, "lse", [](C& c) { c.sinks = static_cast<float*>(c.lse.data); }},
               {"target cannot run", Code::kTarget, "exec.target", [](C& c) { c.exec.target = not_runnable(); }},
           });
}

TEST_P(BadCalls, AlibiSlopes) {
  float slopes[3] = {7, 7, 7};
  EXPECT_EQ(alibi_slopes(0, slopes).code, Code::kShape);
  EXPECT_EQ(alibi_slopes(-1, slopes).code, Code::kShape);
  EXPECT_EQ(alibi_slopes(3, nullptr).code, Code::kNullPointer);
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
  Attention a;
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
  AttentionPlan plan;
  ASSERT_TRUE(attention_plan(a, &plan, e).ok());
  std::vector<char> workspace(plan.workspace_bytes);
  const Status status =
      attention(a, {.target = e.target, .workspace = workspace.data(), .workspace_bytes = workspace.size()});
  EXPECT_TRUE(status.ok()) << status.detail;
  for (const float x : result) EXPECT_EQ(x, 0.0f);
}

SIMDATTN_FOR_EACH_TARGET(BadCalls);

}  // namespace
}  // namespace simdattn::test
