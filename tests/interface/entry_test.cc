// The functions with C linkage: pointers that are null, structs of other versions of the header, stores made by a call.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lib/api/sized.h"
#include "simdattn/extras.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"

namespace simdattn {
namespace {
/// A struct whose first version ended behind `first`.
struct Grown {
  size_t struct_size = sizeof(Grown);
  int64_t first = 11;
  double second = 2.5;
  int32_t third = -1;
};
}  // namespace
template <>
inline constexpr size_t kFirstSize<Grown> = 16;
}  // namespace simdattn

namespace simdattn::test {
namespace {

// ---------------------------------------------------------------------------------------------------------------------
// Pointers that are null. After each parameter's name:
//   !  must not be null
//   =  null means the default, which is what the good call passes: the same result
//   ?  an array that may be absent
//   w  null means no workspace, and the function needs one
//   (nothing) not a pointer, or one of the struct behind it

class NullPointers {
 public:
  NullPointers(std::vector<const Guarded*> outputs) : outputs_(std::move(outputs)) {}

  /// Of the signature alone depends how a call is made, all parameters as they are or one of them null.
  template <class... P, class... A>
  void check(const char* function, simdattn_status (*f)(P...), const std::string& parameters, A... arguments) {
    const std::tuple<P...> good(static_cast<P>(arguments)...);
    check_call(function, {std::is_pointer_v<P>...}, parameters, [&](size_t null) {
      std::tuple<P...> call = good;
      size_t i = 0;
      std::apply([&](auto&... p) { (set_null(p, i++ == null), ...); }, call);
      return std::apply(f, call);
    });
  }

 private:
  static constexpr size_t kNone = ~size_t{0};
  template <class T>
  static void set_null(T& parameter, bool null) {
    if (null) parameter = T{};
  }
  void check_call(const std::string& function, const std::vector<bool>& is_pointer, const std::string& parameters,
                  const std::function<Status(size_t)>& call) {
    clear();
    const Status s = call(kNone);
    ASSERT_TRUE(s.ok()) << function << ", the good call: " << s.detail;
    ASSERT_NE(s.detail, nullptr);
    const auto want = bytes();
    std::istringstream names(parameters);
    std::string name;
    size_t i = 0;
    for (; names >> name; ++i) {
      ASSERT_LT(i, is_pointer.size()) << function;
      check_null(function, name, is_pointer[i], want, [&] { return call(i); });
    }
    ASSERT_EQ(i, is_pointer.size()) << function;
  }
  void check_null(const std::string& function, std::string name, bool is_pointer,
                  const std::vector<std::vector<unsigned char>>& want, const std::function<Status()>& call) {
    const char kind = name.find_last_of("!=?w") == name.size() - 1 ? name.back() : ' ';
    ASSERT_EQ(kind != ' ', is_pointer) << function << ": say what null means for pointers alone: " << name;
    if (!is_pointer) return;
    name.pop_back();
    clear();
    const auto before = bytes();
    const Status s = call();
    const std::string what = function + ", " + name + " null: " + s.detail;
    if (kind == '!' || kind == 'w') {
      EXPECT_EQ(static_cast<int>(s.code), static_cast<int>(kind == '!' ? Code::kNullPointer : Code::kWorkspace))
          << what;
      EXPECT_EQ(std::string(s.detail).rfind(name, 0), 0u) << what;
      EXPECT_EQ(bytes(), before) << what << ", and an output was written";
    } else {
      EXPECT_TRUE(s.ok()) << what;
      if (kind == '=') {
        EXPECT_EQ(bytes(), want) << what << ", not as with the defaults";
      }
    }
  }
  void clear() const {
    for (const Guarded* m : outputs_) std::memset(m->data(), 0x3C, m->size());
  }
  std::vector<std::vector<unsigned char>> bytes() const {
    std::vector<std::vector<unsigned char>> result;
    for (const Guarded* m : outputs_) result.emplace_back(m->data(), m->data() + m->size());
    return result;
  }
  std::vector<const Guarded*> outputs_;
};

TEST(Entry, NullPointers) {
  Random random(seed() * 8000 + 1);
  Array<4> q(random, DType::kF32, {2, 4, 3, 20}), k(random, DType::kF32, {2, 2, 5, 20}),
      p(random, DType::kF32, {2, 4, 3, 5}), out_q = q.like(random), out_p = p.like(random);
  Array<3> m(random, DType::kF32, {4, 20, 20}), w3(random, DType::kF32, {4, 20, 20}),
      wk(random, DType::kF32, {2, 20, 20}), lse(random, DType::kF32, {2, 4, 3});
  Array<2> w(random, DType::kF32, {4, 20}), rows(random, DType::kF32, {4, 33}),
      out_rows = rows.like(random), cos(random, DType::kF32, {9, 10}), sin = cos.like(random),
      out_cos = cos.like(random), out_sin = cos.like(random), positions(random, DType::kI32, {2, 3});
  Array<1> row_lse(random, DType::kF32, {4});
  Array<5> parts(random, DType::kF32, {2, 2, 4, 3, 20}, Values::kOrdinary);
  Array<4> part_lse(random, DType::kF32, {2, 2, 4, 3});
  for (const Array<4>* a : {&q, &k, &p, &part_lse}) a->fill(random, Values::kOrdinary);
  for (const Array<3>* a : {&m, &w3, &wk}) a->fill(random, Values::kOrdinary);
  for (const Array<2>* a : {&w, &rows, &cos, &sin}) a->fill(random, Values::kOrdinary);
  for (int32_t i = 0; i < 6; ++i) static_cast<int32_t*>(positions.view.data)[i] = i % 3;
  const Array<1> one_row(random, DType::kI32, {4});
  one_row.fill_bytes(0);
  const Guarded memory(1 << 20, Guard::kAfter), partial(1 << 16, Guard::kAfter), slopes(4 * 4, Guard::kAfter),
      frequencies(10 * 8, Guard::kAfter), factor(8, Guard::kAfter);
  const KvStorage store = make_kv(random, DType::kF32, KvForm::kPanels, 2, 4, 40, 20);
  const Array<4> dequantised(random, DType::kF32, {2, 4, 7, 20}, Strides::kOutput);
  const simdattn_const_view4 cq = q.view, ck = k.view, cp = p.view, cpart_lse = part_lse.view;
  const simdattn_const_view3 cm = m.view, cw3 = w3.view, cwk = wk.view;
  const simdattn_const_view2 cw = w.view, crows = rows.view, ccos = cos.view, csin = sin.view,
                             cpositions = positions.view;
  const simdattn_const_view1 cone = one_row.view;
  const simdattn_const_view5 cparts = parts.view;
  const Exec e = {.workspace = memory.data(), .workspace_bytes = memory.size()};
  const Scoring scoring;
  const ScoreOptions score_options;
  const ValueOptions value_options;
  const RopeOptions rope_options;
  const Positions from_0;
  const RopeTableOptions table_options;
  const AppendOptions append_options;
  const KeyRotation rotation;
  AttentionProblem problem;
  problem.q = q.view, problem.k = k.view, problem.v = k.view, problem.out = out_q.view;
  Array<4> long_k(random, DType::kF32, {1, 1, 2100, 8}, Values::kOrdinary), one_q(random, DType::kF32, {1, 1, 1, 8}),
      one_out = one_q.like(random);
  one_q.fill(random, Values::kOrdinary);
  AttentionProblem split;
  split.q = one_q.view, split.k = long_k.view, split.v = long_k.view, split.out = one_out.view;
  Plan plan;
  ASSERT_TRUE(attention_plan(split, &plan).ok());
  ASSERT_GT(plan.reduce_tasks, 0);
  ASSERT_LE(plan.workspace_bytes, memory.size());
  ASSERT_LE(plan.partial_bytes, partial.size());
  float sinks[4] = {};
  const Target* found = nullptr;
  const Array<4> lists(random, DType::kI32, {2, 4, 3, 4}), indexed(random, DType::kF32, {2, 1, 3, 5});
  const Array<3> head_weight(random, DType::kF32, {2, 3, 4}, Values::kOrdinary);
  const Array<4> state(random, DType::kF32, {1, 1, 8, 8});
  const Array<3> channels(random, DType::kF32, {1, 8, 5}, Values::kOrdinary), inputs(random, DType::kF32, {1, 8, 2});
  const Array<2> taps(random, DType::kF32, {8, 3}, Values::kOrdinary);
  LinearAttentionProblem linear;
  linear.rule = LinearRule::kDelta;
  linear.q = linear.k = linear.v = one_q.view, linear.state = state.view, linear.out = one_out.view;
  ASSERT_LE(linear_attention_workspace(linear), memory.size());
  CausalConvProblem conv;
  conv.x = channels.view, conv.weight = taps.view, conv.state = inputs.view;
  const Array<3> convolved = channels.like(random);
  conv.out = convolved.view;

  NullPointers n({&lists.memory, &indexed.memory, &state.memory, &inputs.memory, &convolved.memory, &out_q.memory,
                  &out_p.memory, &lse.memory, &out_rows.memory, &out_cos.memory, &out_sin.memory, &row_lse.memory,
                  &slopes, &frequencies, &factor, &store.memory, &dequantised.memory, &one_out.memory});
#define SIMDATTN_NULLS(name, ...) n.check(#name, simdattn_##name, __VA_ARGS__)
  SIMDATTN_NULLS(find_target, "name! target!", "scalar", &found);
  SIMDATTN_NULLS(default_target, "target!", &found);
  SIMDATTN_NULLS(scores, "q! k! out! options= exec=", &cq, &ck, &out_p.view, &score_options, &e);
  const ScoreOptions int8_scores = {.arithmetic = Arithmetic::kInt8};
  SIMDATTN_NULLS(scores, "q! k! out! options? execw", &cq, &ck, &out_p.view, &int8_scores, &e);
  SIMDATTN_NULLS(softmax, "x! out! lse? exec=", &crows, &out_rows.view, &row_lse.view, &e);
  SIMDATTN_NULLS(masked_softmax, "x! out! scoring= lse? exec=", &cp, &out_p.view, &scoring, &lse.view, &e);
  SIMDATTN_NULLS(weighted_values, "p! v! out! options= exec=", &cp, &ck, &out_q.view, &value_options, &e);
  const ValueOptions bf16_values = {.arithmetic = Arithmetic::kBF16};
  SIMDATTN_NULLS(weighted_values, "p! v! out! options? execw", &cp, &ck, &out_q.view, &bf16_values, &e);
  SIMDATTN_NULLS(gaussian_scores, "q! k! out! options= exec=", &cq, &ck, &out_p.view, &score_options, &e);
  SIMDATTN_NULLS(bilinear_scores, "q! m! k! out! options= execw", &cq, &cm, &ck, &out_p.view, &score_options, &e);
  SIMDATTN_NULLS(additive_scores, "q! k! w! out! wq? wk? execw", &cq, &ck, &cw, &out_p.view, &cw3, &cwk, &e);
  SIMDATTN_NULLS(alibi_slopes, "heads slopes!", 4, reinterpret_cast<float*>(slopes.data()));
  SIMDATTN_NULLS(hadamard, "x! out! block exec=", &cq, &out_q.view, int64_t{0}, &e);
  SIMDATTN_NULLS(add_rows, "x! p! out! exec=", &cq, &cq, &out_q.view, &e);
  SIMDATTN_NULLS(rope, "x! cos! sin! positions= out! options= exec=", &cq, &ccos, &csin, &from_0, &out_q.view,
                 &rope_options, &e);
  SIMDATTN_NULLS(rope_frequencies,
                 "inv_freq! pairs attention_factor? options=", reinterpret_cast<double*>(frequencies.data()), 10,
                 reinterpret_cast<double*>(factor.data()), &table_options);
  const simdattn_const_view2 table_positions = ConstView<2>(one_row.view.data, DType::kI32, {1, 4});
  const simdattn_view2 four_cos = View<2>(out_cos.view.data, DType::kF32, {4, 10}),
                       four_sin = View<2>(out_sin.view.data, DType::kF32, {4, 10});
  SIMDATTN_NULLS(rope_table, "cos! sin! options= positions? first", &four_cos, &four_sin, &table_options,
                 &table_positions, 0);
  SIMDATTN_NULLS(rope_direct, "x! pairs table= positions= out! options= exec=", &cq, 10, &table_options, &from_0,
                 &out_q.view, &rope_options, &e);
  const TopKOptions top_k_options;
  const IndexOptions index_options;
  const simdattn_const_kv index_keys = ConstView<4>(ck.data, DType::kF32, {2, 1, 5, 20});
  const simdattn_const_view3 head_weights = head_weight.view;
  SIMDATTN_NULLS(index_scores, "q! k! weights? scores! options= execw", &cq, &index_keys, &head_weights, &indexed.view,
                 &index_options, &e);
  SIMDATTN_NULLS(top_k, "scores! k lists! options= execw", &cp, 3, &lists.view, &top_k_options, &e);
  const simdattn_view2 encoding = View<2>(out_rows.view.data, DType::kF32, {4, 33});
  SIMDATTN_NULLS(sinusoidal_table, "out! base positions? first", &encoding, 10000.0, &cone, 0);
  SIMDATTN_NULLS(kv_append, "rows! positions? kv! options= exec=", &cq, &cpositions, &store.kv, &append_options, &e);
  const ConstKv stored = store.kv;
  SIMDATTN_NULLS(kv_read, "kv! first out! exec=", &stored, 4, &dequantised.view, &e);
  SIMDATTN_NULLS(kv_shift, "kv! first last delta rope= exec=", &store.kv, 4, 9, -2, &rotation, &e);
  SIMDATTN_NULLS(attention, "problem! execw", &problem, &e);
  SIMDATTN_NULLS(attention_plan, "problem! plan! exec=", &split, &plan, &e);
  SIMDATTN_NULLS(attention_bind, "problem! plan!", &split, &plan);
  SIMDATTN_NULLS(attention_range, "plan! first last partial! partial_bytes execw", &plan, 0, plan.tasks, partial.data(),
                 partial.size(), &e);
  SIMDATTN_NULLS(attention_reduce, "plan! first last partial! partial_bytes execw", &plan, 0, plan.reduce_tasks,
                 partial.data(), partial.size(), &e);
  SIMDATTN_NULLS(attention_merge, "parts! part_lse! out! lse? sinks? exec=", &cparts, &cpart_lse, &out_q.view,
                 &lse.view, sinks, &e);
  SIMDATTN_NULLS(linear_attention, "problem! execw", &linear, &e);
  SIMDATTN_NULLS(linear_attention_range, "problem! first last execw", &linear, 0,
                 simdattn_linear_attention_tasks(&linear), &e);
  SIMDATTN_NULLS(causal_conv, "problem! exec=", &conv, &e);
#undef SIMDATTN_NULLS
}

TEST(Entry, TargetsWithoutPointers) {
  size_t count = 0;
  EXPECT_EQ(simdattn_targets(nullptr), simdattn_targets(&count));
  EXPECT_GT(count, 0u);
  EXPECT_STREQ(simdattn_target_name(nullptr), "");
  EXPECT_EQ(simdattn_linear_attention_tasks(nullptr), 0);
  EXPECT_STREQ(simdattn_target_missing(nullptr), "");
  EXPECT_FALSE(simdattn_target_runnable(nullptr));
  EXPECT_FALSE(simdattn_target_exact(nullptr));
  EXPECT_FALSE(simdattn_target_native(nullptr, Arithmetic::kF32));
}

// ---------------------------------------------------------------------------------------------------------------------
// Structs of other versions

/// A struct of `size` bytes that ends at an inaccessible page.
template <class T>
struct OtherVersion {
  Guarded memory;
  OtherVersion(const T& value, size_t size) : memory((size + 7) / 8 * 8, Guard::kAfter) {
    std::memset(memory.data(), 0, memory.size());
    std::memcpy(memory.data(), &value, std::min(size, sizeof(T)));
    std::memcpy(memory.data(), &size, sizeof size);
  }
  const T* get() const { return reinterpret_cast<const T*>(memory.data()); }
};

TEST(Entry, StructsOfOtherVersions) {
  const auto status = [](const Grown* g) { return Sized<Grown>(g).ok(); };
  {
    const Sized<Grown> s(nullptr);
    ASSERT_TRUE(s.ok());
    EXPECT_EQ((*s).first, 11);
    EXPECT_EQ((*s).second, 2.5);
    EXPECT_EQ((*s).third, -1);
  }
  Grown g;
  g.first = 5, g.second = 7, g.third = 9;
  {
    const Sized<Grown> s(&g);
    ASSERT_TRUE(s.ok());
    EXPECT_EQ(&*s, &g);  // today's version is not copied
  }
  // Older: what it does not have is default, and what stands behind it is not read.
  for (const auto& [size, second] : {std::pair<size_t, double>{16, 2.5}, {24, 7}}) {
    const OtherVersion<Grown> old(g, size);
    const Sized<Grown> s(old.get());
    ASSERT_TRUE(s.ok()) << size;
    EXPECT_EQ((*s).struct_size, sizeof(Grown));
    EXPECT_EQ((*s).first, 5);
    EXPECT_EQ((*s).second, second);
    EXPECT_EQ((*s).third, -1);
  }
  // Newer: taken if the rest is 0, and looks like today's from there on.
  for (const size_t size : {sizeof(Grown) + 8, sizeof(Grown) + 800}) {
    const OtherVersion<Grown> newer(g, size);
    {
      const Sized<Grown> s(newer.get());
      ASSERT_TRUE(s.ok()) << size;
      EXPECT_EQ((*s).struct_size, sizeof(Grown));
      EXPECT_EQ((*s).third, 9);
    }
    newer.memory.data()[size - 1] = 1;
    EXPECT_FALSE(status(newer.get())) << size;
  }
  // None of any version: cleared, before the first, between two, not initialised.
  for (const size_t size : {size_t{0}, size_t{8}, size_t{15}, size_t{17}, size_t{31}, sizeof(Grown) + 1}) {
    const OtherVersion<Grown> none(g, std::max(size, sizeof(Grown)));
    std::memcpy(none.memory.data(), &size, sizeof size);
    EXPECT_FALSE(status(none.get())) << size;
  }
  for (const size_t size : {size_t{0xA5A5A5A5A5A5A5A5}, ~size_t{0}, size_t{1} << 40}) {
    const OtherVersion<Grown> none(g, sizeof(Grown));
    std::memcpy(none.memory.data(), &size, sizeof size);
    EXPECT_FALSE(status(none.get())) << size;
  }
}

/// Every struct of every function: a newer caller's is taken, a cleared one is not, also inside of others.
TEST(Entry, SizesOfStructs) {
  Random random(seed() * 8000 + 2);
  const Array<4> x(random, DType::kF32, {1, 1, 2, 8}), out = x.like(random), p(random, DType::kF32, {1, 1, 2, 2});
  const Array<2> cos(random, DType::kF32, {4, 4}), sin = cos.like(random), positions(random, DType::kI32, {1, 2});
  for (const Array<4>* a : {&x, &p}) a->fill(random, Values::kOrdinary);
  for (const Array<2>* a : {&cos, &sin}) a->fill(random, Values::kOrdinary);
  positions.fill_bytes(0);
  static_cast<int32_t*>(positions.view.data)[1] = 1;
  const KvStorage store = make_kv(random, DType::kF32, KvForm::kRows, 1, 1, 4, 8);
  const Array<4> four_tokens(random, DType::kF32, {1, 1, 4, 8});
  const Guarded memory(1 << 20, Guard::kAfter);
  const Exec exec = {.workspace = memory.data(), .workspace_bytes = memory.size()};
  const simdattn_const_view4 cx = x.view, cp = p.view;
  const simdattn_const_view2 ccos = cos.view, csin = sin.view, cpositions = positions.view;
  double frequencies[4];
  AppendOptions append;
  append.rope.cos = ccos, append.rope.sin = csin;
  AttentionProblem problem;
  problem.q = x.view, problem.k = problem.v = x.view;
  problem.out = out.view;

  const auto check = [](const char* what, const auto& value, const auto& call) {
    using T = std::decay_t<decltype(value)>;
    Status s = call(&value);
    EXPECT_TRUE(s.ok()) << what << ": " << s.detail;
    const OtherVersion<T> newer(value, sizeof(T) + 64);
    s = call(newer.get());
    EXPECT_TRUE(s.ok()) << what << " of a newer version: " << s.detail;
    newer.memory.data()[sizeof(T) + 3] = 1;
    EXPECT_EQ(call(newer.get()).code, Code::kStructSize) << what << ", something new is used";
    for (const size_t size : {size_t{0}, size_t{8}, sizeof(T) - 1, size_t{0xA5A5A5A5A5A5A5A5}}) {
      T bad = value;
      bad.struct_size = size;
      s = call(&bad);
      EXPECT_EQ(s.code, Code::kStructSize) << what << ", size " << size << ": " << s.detail;
    }
  };
  check("exec", exec, [&](const Exec* e) { return simdattn_add_rows(&cx, &cx, &out.view, e); });
  check("score options", ScoreOptions(),
        [&](const ScoreOptions* o) { return simdattn_scores(&cx, &cx, &p.view, o, nullptr); });
  check("value options", ValueOptions(),
        [&](const ValueOptions* o) { return simdattn_weighted_values(&cp, &cx, &out.view, o, nullptr); });
  check("scoring", Scoring(),
        [&](const Scoring* s) { return simdattn_masked_softmax(&cp, &p.view, s, nullptr, nullptr); });
  check("rope options", RopeOptions(),
        [&](const RopeOptions* o) { return simdattn_rope(&cx, &ccos, &csin, nullptr, &out.view, o, nullptr); });
  check("rope table options", RopeTableOptions(),
        [&](const RopeTableOptions* o) { return simdattn_rope_frequencies(frequencies, 4, nullptr, o); });
  check("kv", store.kv, [&](const Kv* kv) { return simdattn_kv_append(&cx, &cpositions, kv, nullptr, nullptr); });
  check("const kv", ConstKv(store.kv),
        [&](const ConstKv* kv) { return simdattn_kv_read(kv, 0, &four_tokens.view, nullptr); });
  check("append options", append,
        [&](const AppendOptions* o) { return simdattn_kv_append(&cx, &cpositions, &store.kv, o, nullptr); });
  check("key rotation", append.rope,
        [&](const KeyRotation* r) { return simdattn_kv_shift(&store.kv, 0, 2, 1, r, nullptr); });
  check("problem", problem, [&](const AttentionProblem* a) { return simdattn_attention(a, &exec); });

  // Inside of others there is one size, and what is reserved is 0.
  const auto refuse = [&](const char* what, Code code, const auto& value, const auto& change, const auto& call) {
    auto bad = value;
    change(bad);
    const Status s = call(bad);
    EXPECT_EQ(static_cast<int>(s.code), static_cast<int>(code)) << what << ": " << s.detail;
  };
  const auto attend = [&](const AttentionProblem& a) { return attention(a, exec); };
  const auto store_rows = [&](const AppendOptions& o) { return kv_append(cx, cpositions, store.kv, o); };
  const auto shift = [&](const KeyRotation& r) { return kv_shift(store.kv, 0, 2, 1, r); };
  using A = AttentionProblem;
  refuse("problem.k", Code::kStructSize, problem, [](A& a) { a.k.struct_size = 0; }, attend);
  refuse("problem.v", Code::kStructSize, problem, [](A& a) { a.v.struct_size += 8; }, attend);
  refuse("problem.scoring", Code::kStructSize, problem, [](A& a) { a.scoring.struct_size = 0; }, attend);
  refuse("problem.k.reserved", Code::kStructSize, problem, [](A& a) { a.k.reserved[3] = 1; }, attend);
  refuse("problem.scoring.reserved", Code::kStructSize, problem, [](A& a) { a.scoring.reserved[0] = 1; }, attend);
  using O = AppendOptions;
  refuse("append.rope", Code::kStructSize, append, [](O& o) { o.rope.struct_size = 0; }, store_rows);
  refuse("append.rope.options", Code::kStructSize, append, [](O& o) { o.rope.options.struct_size = 0; }, store_rows);
  refuse("append.rope.reserved", Code::kStructSize, append, [](O& o) { o.rope.reserved[1] = 1; }, store_rows);
  using R = KeyRotation;
  refuse("rope.options", Code::kStructSize, append.rope, [](R& r) { r.options.struct_size = 0; }, shift);
  refuse("rope.reserved", Code::kStructSize, append.rope, [](R& r) { r.reserved[0] = 1; }, shift);
  refuse(
      "options.norm", Code::kRange, RopeOptions(), [](RopeOptions& o) { o.norm = static_cast<RowNorm>(9); },
      [&](const RopeOptions& o) { return rope(cx, ccos, csin, {}, out.view, o); });
  // Plans are made by the library in the caller's struct.
  Plan plan;
  plan.struct_size = 0;
  EXPECT_EQ(attention_plan(problem, &plan, exec).code, Code::kStructSize);
  EXPECT_EQ(attention_bind(problem, &plan).code, Code::kStructSize);
  EXPECT_EQ(attention_range(plan, 0, 0, nullptr, 0, exec).code, Code::kStructSize);
  EXPECT_EQ(attention_reduce(plan, 0, 0, nullptr, 0, exec).code, Code::kStructSize);
}

// ---------------------------------------------------------------------------------------------------------------------
// What computes no result

/// f32 needs no workspace; the others some for any dimension, also one that no call takes.
TEST(Entry, WorkspacesOfArithmetics) {
  for (const auto& bytes : {simdattn_scores_workspace, simdattn_weighted_values_workspace}) {
    EXPECT_EQ(bytes(Arithmetic::kF32, 128), 0u);
    for (const Arithmetic a : {Arithmetic::kBF16, Arithmetic::kInt8}) {
      size_t last = 0;
      for (const int64_t dim : {int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{128}, int64_t{5000}, INT64_MAX}) {
        EXPECT_GE(bytes(a, dim), std::max<size_t>(last, 1)) << dim;
        last = bytes(a, dim);
      }
      EXPECT_EQ(bytes(a, INT64_MIN), bytes(a, 0));
    }
  }
}

TEST(Entry, NarrowBytesAndScales) {
  const struct {
    KvType type;
    int64_t row, panel;  // of 64 numbers
    bool scales;
  } types[] = {{KvType::kInt8, 64, 2048, true},  {KvType::kFp8E4M3, 64, 2048, true}, {KvType::kFp8E5M2, 64, 2048, true},
               {KvType::kQ8_0, 68, 2176, false}, {KvType::kQ4_0, 36, 1152, false},   {KvType::kQ4_1, 40, 1280, false},
               {KvType::kQ5_0, 44, 1408, false}, {KvType::kQ5_1, 48, 1536, false},   {KvType::kIq4Nl, 36, 1152, false}};
  for (const auto& t : types) {
    EXPECT_EQ(simdattn_row_bytes(t.type, 64), t.row);
    EXPECT_EQ(simdattn_panel_bytes(t.type, 64), t.panel);
    EXPECT_EQ(simdattn_has_scales(t.type), t.scales);
  }
  EXPECT_EQ(simdattn_row_bytes(KvType::kInt8, 5), 5);
  EXPECT_EQ(simdattn_panel_bytes(KvType::kInt8, 5), 256);
  char memory[8];
  float scales[1];
  const simdattn_kv plain = simdattn_contiguous_kv(memory, KvType::kInt8, KvLayout::kPanels, 2, 3, 70, 7);
  const simdattn_kv kv = simdattn_contiguous_scales(plain, scales);
  Kv want = plain;
  want.scales = scales;
  want.scale_token_stride = 4, want.scale_head_stride = 280, want.scale_batch_stride = 840;
  EXPECT_EQ(std::memcmp(&kv, &want, sizeof kv), 0);
}

TEST(Entry, BytesAndStores) {
  EXPECT_EQ(simdattn_dtype_bytes(DType::kI64), 8);
  EXPECT_EQ(simdattn_dtype_bytes(static_cast<DType>(99)), 0);
  EXPECT_EQ(simdattn_dtype_bytes(static_cast<DType>(-1)), 0);
  for (const KvType type : {KvType::kF32, KvType::kBF16, KvType::kF16, static_cast<KvType>(99)}) {
    EXPECT_EQ(simdattn_row_bytes(type, 7), type == KvType::kF32 ? 28 : type == static_cast<KvType>(99) ? 0 : 14);
    EXPECT_EQ(simdattn_panel_bytes(type, 7), 32 * (type == KvType::kF32    ? 28
                                                   : type == KvType::kBF16 ? 16
                                                   : type == KvType::kF16  ? 14
                                                                           : 0));
    EXPECT_FALSE(simdattn_has_scales(type));
    for (const KvLayout layout : {KvLayout::kRows, KvLayout::kPanels}) {
      char memory[8];
      const simdattn_kv kv = simdattn_contiguous_kv(memory, type, layout, 2, 3, 70, 7);
      const int64_t token = layout == KvLayout::kPanels ? panel_bytes(type, 7) : row_bytes(type, 7),
                    units = layout == KvLayout::kPanels ? 3 : 70;
      EXPECT_EQ(simdattn_kv_bytes(type, layout, 2, 3, 70, 7), 2 * 3 * units * token);
      // Everything but what was asked for is as in a new store.
      Kv want;
      want.data = memory, want.type = type, want.layout = layout;
      want.batch = 2, want.heads = 3, want.capacity = 70, want.dim = 7;
      want.token_stride = token, want.head_stride = units * token, want.batch_stride = 3 * units * token;
      EXPECT_EQ(std::memcmp(&kv, &want, sizeof kv), 0);
    }
  }
}

}  // namespace
}  // namespace simdattn::test
